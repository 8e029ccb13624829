// Devices and contexts: what there is, opening it, asking what it can do.
#include <fmt/core.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/bytes.h"
#include "verbs/objects.h"
#include "verbs/uncancelled.h"

namespace sluice::verbs {
namespace {

constexpr std::uint32_t kSoftwareVendor =
    0xFFFFFF;  // as rxe: hardware's numbers would choose other code paths in programs
constexpr std::size_t kBasicDeviceAttributes = offsetof(ibv_device_attr_ex, comp_mask);

// The one device of this process and, once opened, its NIC. Lives to the end: programs call verbs in their last destructors.
struct Machine {
  std::mutex mutex;
  bool looked = false;
  std::optional<Settings> settings{};
  Device device{};
  std::unique_ptr<ProcessNic> nic{};
  std::atomic<bool> forked{false};   // a child of the process that opened it
  std::vector<Context*> contexts{};  // open; guarded by the NIC's lock
};

Machine& machine() {
  static Machine* const one = new Machine;
  return *one;
}

void complain(std::string_view text) {
  const Uncancelled guard;
  std::fprintf(stderr, "sluice: %.*s\n", static_cast<int>(text.size()), text.data());
}

template <std::size_t N>
void copy_text(char (&to)[N], std::string_view from) {
  to[from.copy(to, N - 1)] = '\0';
}

// REQUIRES: the mutex. False: there is no device.
bool look_up(Machine& m) {
  if (m.looked) return m.settings.has_value();
  m.looked = true;
  auto read = read_settings([](const char* name) -> const char* { return std::getenv(name); });
  if (!read) return false;
  if (!*read) {
    complain(read->error().message);
    return false;
  }
  m.settings = std::move(**read);
  ibv_device& d = m.device.abi;
  d.node_type = IBV_NODE_CA;
  d.transport_type = IBV_TRANSPORT_IB;
  copy_text(d.name, m.settings->device);
  copy_text(d.dev_name, "uverbs0");
  copy_text(d.dev_path, "/sys/class/infiniband_verbs/uverbs0");
  copy_text(d.ibdev_path, fmt::format("/sys/class/infiniband/{}", m.settings->device));
  return true;
}

void at_exit() {
  Machine& m = machine();
  if (m.nic && !m.forked) m.nic->retire();
}

void before_fork() {
  if (machine().nic) machine().nic->hold_for_fork();
}

void in_parent_of_fork() {
  if (machine().nic) machine().nic->release_after_fork();
}

void in_child_of_fork() {
  Machine& m = machine();
  if (!m.nic) return;
  m.forked = true;
  m.nic->abandon();
}

// REQUIRES: the NIC's lock.
void tell_of_link() {
  ibv_async_event event{};
  event.event_type = machine().nic->link_up() ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
  event.element.port_num = 1;
  for (Context* const context : machine().contexts) context->tell(event);
}

void tell_of_conflict() {
  const wire::Gid& own = machine().settings->gids[ipv4_index(machine().settings->gids)];
  complain(
      fmt::format("another NIC on this network has our address {}: give each program its own, and look for one that "
                  "was left behind",
                  own.v4().to_string()));
}

// REQUIRES: the mutex.
bool open_nic(Machine& m) {
  if (m.forked) {
    complain("the device was opened before fork(): a child has no NIC of its own; open the device in the child only");
    errno = ENODEV;
    return false;
  }
  if (m.nic) return true;
  auto opened = ProcessNic::open(*m.settings);
  if (!opened) {
    complain(opened.error().message);
    errno = ENODEV;
    return false;
  }
  m.nic = std::move(*opened);
  {
    const NicLock guard(m.nic->lock());
    m.nic->adapter().set_event_handler(on_async_event);
    m.nic->set_link_handler(tell_of_link);
    m.nic->set_conflict_handler(tell_of_conflict);
  }
  pthread_atfork(before_fork, in_parent_of_fork, in_child_of_fork);
  std::atexit(at_exit);
  return true;
}

__be64 guid_of(const wire::MacAddress& mac) {
  const auto& m = mac.bytes;
  const std::uint8_t eui[8] = {static_cast<std::uint8_t>(m[0] ^ 2), m[1], m[2], 0xFF, 0xFE, m[3], m[4], m[5]};
  return load_le<std::uint64_t>(eui);  // as it stands in memory
}

ibv_device_attr device_attributes(ProcessNic& nic) {
  const rc::AdapterLimits& limits = nic.adapter().config().limits;
  const auto whole = [](std::uint32_t n) { return static_cast<int>(n); };
  ibv_device_attr a{};
  copy_text(a.fw_ver, "0.1.0");
  a.node_guid = a.sys_image_guid = guid_of(nic.settings().mac);
  a.max_mr_size = ~std::uint64_t{0};
  a.page_size_cap = 0xFFFFF000;
  a.vendor_id = kSoftwareVendor;
  a.max_qp = whole(limits.max_queue_pairs);
  a.max_qp_wr = whole(std::min(limits.max_send_depth, limits.max_receive_depth));
  a.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID;
  a.max_sge = a.max_sge_rd = a.max_srq_sge = whole(limits.max_sges);
  a.max_cq = a.max_srq = a.max_pd = a.max_ah = 65'536;
  a.max_cqe = 1 << 22;
  a.max_mr = whole(memory::RegionTable::kMaxRegions - 1);
  a.max_qp_rd_atom = whole(limits.max_reads_in_flight);
  a.max_qp_init_rd_atom = whole(limits.max_reads_started);
  a.max_res_rd_atom = whole(limits.max_reads_in_flight * limits.max_queue_pairs);
  // They are the processor's own, so IBV_ATOMIC_GLOB would be true as well; but this is what NICs say, and what programs look for.
  a.atomic_cap = IBV_ATOMIC_HCA;
  a.max_srq_wr = whole(limits.max_receive_depth);
  a.max_pkeys = 1;
  a.phys_port_cnt = 1;
  return a;
}

struct LinkRate {
  std::uint64_t most;  // bits a second
  std::uint8_t width;
  std::uint8_t speed;
};

// What a port can say of its rate, as the kernel has it for RoCE (ib_get_eth_speed in drivers/infiniband/core/verbs.c).
constexpr std::uint64_t kGigabit = 1'000'000'000;
constexpr LinkRate kLinkRates[] = {
    {1 * kGigabit, 1, 1},     // 1X SDR, 2.5 Gb/s a lane
    {10 * kGigabit, 1, 8},    // 1X FDR10, 10
    {20 * kGigabit, 2, 2},    // 4X DDR, 5
    {25 * kGigabit, 1, 32},   // 1X EDR, 25
    {40 * kGigabit, 2, 8},    // 4X FDR10
    {50 * kGigabit, 16, 32},  // 2X EDR
    {100 * kGigabit, 2, 32},  // 4X EDR
    {200 * kGigabit, 2, 64},  // 4X HDR, 50
};
constexpr LinkRate kFastest = {~0ull, 2, 128};  // 4X NDR, 100

// Without DCQCN there is no line rate that anything goes by: that of a common NIC.
LinkRate link_rate(const Settings& settings) {
  const std::uint64_t rate = settings.dcqcn ? settings.line_rate : 100 * kGigabit;
  for (const LinkRate& known : kLinkRates) {
    if (rate <= known.most) return known;
  }
  return kFastest;
}

void fill_context(Context& c, ibv_device* device) {
  verbs_context& v = c.abi;
  v.sz = sizeof v;
  v.query_port = query_port;
  v.query_device_ex = query_device_extended;
  v.create_cq_ex = create_extended_completion_queue;
  v.create_qp_ex = create_extended_queue_pair;
  v.create_srq_ex = create_extended_shared_receive_queue;
  v.alloc_dm = allocate_device_memory;
  v.free_dm = free_device_memory;
  v.reg_dm_mr = register_device_memory;
  ibv_context& b = v.context;
  b.device = device;
  b.ops.poll_cq = poll_completions;
  b.ops.req_notify_cq = request_notification;
  b.ops.post_send = post_send;
  b.ops.post_recv = post_receive;
  b.ops.post_srq_recv = post_shared_receive;
  b.ops.alloc_mw = [](ibv_pd*, ibv_mw_type) -> ibv_mw* {
    refuse(EOPNOTSUPP, "memory windows are not supported");
    return nullptr;
  };
  b.ops.bind_mw = [](ibv_qp*, ibv_mw*, ibv_mw_bind*) { return EOPNOTSUPP; };
  b.ops.dealloc_mw = [](ibv_mw*) { return EOPNOTSUPP; };
  b.cmd_fd = -1;
  b.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  b.num_comp_vectors = 1;
  pthread_mutex_init(&b.mutex, nullptr);
  b.abi_compat = __VERBS_ABI_IS_EXTENDED;
}

}  // namespace

bool is_forked() { return machine().forked; }

ibv_mtu mtu_code(std::uint32_t bytes) {
  for (const ibv_mtu code : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048}) {
    if (bytes == 128u << code) return code;
  }
  return IBV_MTU_4096;
}

int refuse(int error, std::string_view why) {
  static const bool verbose = [] {
    const char* const text = std::getenv("SLUICE_VERBOSE");
    return text != nullptr && std::strcmp(text, "0") != 0;
  }();
  if (verbose) complain(why);
  errno = error;
  return error;
}

int query_device_extended(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attributes,
                          std::size_t size) {
  if (size < kBasicDeviceAttributes || (input != nullptr && input->comp_mask != 0)) return EINVAL;
  ibv_device_attr_ex all{};
  all.orig_attr = device_attributes(*Context::of(context).nic);
  all.phys_port_cnt_ex = 1;
  all.device_cap_flags_ex = all.orig_attr.device_cap_flags;
  all.max_dm_size = kDeviceMemory;
  std::memset(attributes, 0, size);
  std::memcpy(attributes, &all, std::min(size, sizeof all));
  return 0;
}

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes, std::size_t size) {
  if (port != 1) return refuse(EINVAL, fmt::format("port {}: the device has one, number 1", port));
  ProcessNic& nic = *Context::of(context).nic;
  const bool up = [&] {
    const NicLock locked(nic.lock());
    return nic.link_up();
  }();
  ibv_port_attr a{};
  a.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  a.max_mtu = a.active_mtu = mtu_code(nic.settings().mtu);
  a.gid_tbl_len = static_cast<int>(nic.settings().gids.size());
  a.port_cap_flags = IBV_PORT_CM_SUP;
  a.flags = IBV_QPF_GRH_REQUIRED;  // as any RoCE port: without one a path is refused
  a.max_msg_sz = 1u << 31;
  a.pkey_tbl_len = 1;
  const LinkRate rate = link_rate(nic.settings());
  a.active_width = rate.width;
  a.active_speed = rate.speed;
  a.phys_state = up ? 5 : 3;  // link up; disabled
  a.link_layer = IBV_LINK_LAYER_ETHERNET;
  std::memset(attributes, 0, size);
  std::memcpy(attributes, &a, std::min(size, sizeof a));
  return 0;
}

}  // namespace sluice::verbs

using namespace sluice;
using namespace sluice::verbs;

SLUICE_VERB ibv_device** ibv_get_device_list(int* count) {
  Machine& m = machine();
  const std::lock_guard guard(m.mutex);
  // A list of one, and its end.
  auto** list = static_cast<ibv_device**>(std::calloc(2, sizeof(void*)));
  if (list == nullptr) return nullptr;
  const bool there = look_up(m);
  if (there) list[0] = &m.device.abi;
  if (count != nullptr) *count = there ? 1 : 0;
  return list;
}

SLUICE_VERB void ibv_free_device_list(ibv_device** list) { std::free(list); }
SLUICE_VERB const char* ibv_get_device_name(ibv_device* device) { return device->name; }
SLUICE_VERB int ibv_get_device_index(ibv_device*) { return 0; }

SLUICE_VERB __be64 ibv_get_device_guid(ibv_device*) {
  Machine& m = machine();
  const std::lock_guard guard(m.mutex);
  return look_up(m) ? guid_of(m.settings->mac) : 0;
}

SLUICE_VERB ibv_context* ibv_open_device(ibv_device* device) {
  const Uncancelled cancelled_later;
  Machine& m = machine();
  const std::lock_guard guard(m.mutex);
  if (!look_up(m) || !open_nic(m)) return nullptr;
  auto context = std::make_unique<Context>();
  context->nic = m.nic.get();
  fill_context(*context, device);
  if (context->abi.context.async_fd < 0) return nullptr;
  const NicLock locked(m.nic->lock());
  m.contexts.push_back(context.get());
  return context.release()->handle();
}

SLUICE_VERB int ibv_close_device(ibv_context* context) {
  Context& c = Context::of(context);
  {
    const NicLock locked(c.nic->lock());
    if (c.queue_pairs != 0) {
      refuse(EBUSY, "device: queue pairs still use it");
      return -1;  // as its man page has it
    }
    std::erase(machine().contexts, &c);
  }
  close(c.abi.context.async_fd);
  delete &c;
  return 0;
}

SLUICE_VERB int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  *attributes = device_attributes(*Context::of(context).nic);
  return 0;
}

// Programs older than ibv_port_attr's last member come here; they have room for all before it.
SLUICE_VERB int ibv_query_port(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attributes) {
  return query_port(context, port, reinterpret_cast<ibv_port_attr*>(attributes),
                    offsetof(ibv_port_attr, port_cap_flags2));
}

SLUICE_VERB int ibv_query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid) {
  const auto& gids = Context::of(context).nic->settings().gids;
  if (port != 1 || index < 0 || static_cast<std::size_t>(index) >= gids.size()) {
    errno = EINVAL;
    return -1;
  }
  std::ranges::copy(gids[static_cast<std::size_t>(index)].bytes, gid->raw);
  return 0;
}

SLUICE_VERB int _ibv_query_gid_ex(ibv_context* context, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry,
                                  std::uint32_t flags, std::size_t size) {
  ibv_gid_entry e{};
  if (flags != 0 || port != 1 || ibv_query_gid(context, 1, static_cast<int>(index), &e.gid) != 0) return EINVAL;
  e.gid_index = index;
  e.port_num = 1;
  e.gid_type = IBV_GID_TYPE_ROCE_V2;
  std::memcpy(entry, &e, std::min(size, sizeof e));
  return 0;
}

SLUICE_VERB ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, std::size_t most,
                                         std::uint32_t flags, std::size_t size) {
  const std::size_t count = std::min(most, Context::of(context).nic->settings().gids.size());
  auto* at = reinterpret_cast<char*>(entries);
  for (std::uint32_t i = 0; i < count; ++i, at += size) {
    const int error = _ibv_query_gid_ex(context, 1, i, reinterpret_cast<ibv_gid_entry*>(at), flags, size);
    if (error != 0) return -error;
  }
  return static_cast<ssize_t>(count);
}

// In the private part of the ABI, where 1 stands for RoCE v2; ibv_devinfo asks by it.
SLUICE_VERB int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, int* type) {
  ibv_gid gid;
  *type = 1;
  return ibv_query_gid(context, port, static_cast<int>(index), &gid);
}

SLUICE_VERB int ibv_query_pkey(ibv_context*, std::uint8_t port, int index, __be16* pkey) {
  if (port != 1 || index != 0) return -1;
  *pkey = 0xFFFF;
  return 0;
}

SLUICE_VERB int ibv_get_pkey_index(ibv_context*, std::uint8_t port, __be16 pkey) {
  return port == 1 && pkey == 0xFFFF ? 0 : -1;
}

SLUICE_VERB int ibv_read_sysfs_file(const char*, const char*, char*, std::size_t) { return -1; }
SLUICE_VERB int ibv_fork_init() { return 0; }
SLUICE_VERB ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }

// Objects of another process's context.
SLUICE_VERB ibv_context* ibv_import_device(int) {
  refuse(EOPNOTSUPP, "importing a device is not supported");
  return nullptr;
}
SLUICE_VERB ibv_pd* ibv_import_pd(ibv_context*, std::uint32_t) {
  refuse(EOPNOTSUPP, "importing a protection domain is not supported");
  return nullptr;
}
SLUICE_VERB ibv_mr* ibv_import_mr(ibv_pd*, std::uint32_t) {
  refuse(EOPNOTSUPP, "importing a memory region is not supported");
  return nullptr;
}
SLUICE_VERB ibv_dm* ibv_import_dm(ibv_context*, std::uint32_t) {
  refuse(EOPNOTSUPP, "importing device memory is not supported");
  return nullptr;
}
SLUICE_VERB void ibv_unimport_pd(ibv_pd*) {}
SLUICE_VERB void ibv_unimport_mr(ibv_mr*) {}
SLUICE_VERB void ibv_unimport_dm(ibv_dm*) {}
SLUICE_VERB const char* ibv_get_sysfs_path() { return "/sys"; }
