#include "cli/verbs_pool.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace sluice::cli {
namespace {

constexpr const char* kClientIp = "10.77.254.1";
constexpr const char* kPoolIp = "10.77.254.2";
constexpr std::uint8_t kGidIndex = 1;  // the IPv4 address
constexpr std::uint32_t kFirstPsn = 1;
constexpr int kRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
constexpr int kAnswerSeconds = 10;

}  // namespace

// The library's functions; posting and polling go through the context, as in every program.
struct VerbsPool::Api {
  decltype(&ibv_get_device_list) get_device_list = nullptr;
  decltype(&ibv_free_device_list) free_device_list = nullptr;
  decltype(&ibv_open_device) open_device = nullptr;
  decltype(&ibv_close_device) close_device = nullptr;
  decltype(&ibv_query_device) query_device = nullptr;
  decltype(&ibv_alloc_pd) alloc_pd = nullptr;
  decltype(&ibv_dealloc_pd) dealloc_pd = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd*, void*, std::size_t, int) = nullptr;
  decltype(&ibv_dereg_mr) dereg_mr = nullptr;
  decltype(&ibv_create_cq) create_cq = nullptr;
  decltype(&ibv_destroy_cq) destroy_cq = nullptr;
  decltype(&ibv_create_qp) create_qp = nullptr;
  decltype(&ibv_destroy_qp) destroy_qp = nullptr;
  decltype(&ibv_modify_qp) modify_qp = nullptr;
};

// What the two ends tell each other.
struct VerbsPool::Address {
  ibv_gid gid;
  std::uint64_t memory;
  std::uint32_t key;
  std::uint32_t pair;
};

VerbsPool::VerbsPool(std::size_t bytes) : api_(std::make_unique<Api>()), memory_(bytes) {}

Result<void> VerbsPool::load(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays: its threads run in it
  if (handle == nullptr) return fail(dlerror());
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr) missing = name;
  };
  find(api_->get_device_list, "ibv_get_device_list");
  find(api_->free_device_list, "ibv_free_device_list");
  find(api_->open_device, "ibv_open_device");
  find(api_->close_device, "ibv_close_device");
  find(api_->query_device, "ibv_query_device");
  find(api_->alloc_pd, "ibv_alloc_pd");
  find(api_->dealloc_pd, "ibv_dealloc_pd");
  find(api_->reg_mr, "ibv_reg_mr");
  find(api_->dereg_mr, "ibv_dereg_mr");
  find(api_->create_cq, "ibv_create_cq");
  find(api_->destroy_cq, "ibv_destroy_cq");
  find(api_->create_qp, "ibv_create_qp");
  find(api_->destroy_qp, "ibv_destroy_qp");
  find(api_->modify_qp, "ibv_modify_qp");
  if (missing != nullptr) return fail(fmt::format("{} has no {}", library, missing));
  return {};
}

Result<std::unique_ptr<VerbsPool>> VerbsPool::start(const std::string& library, const std::string& folder,
                                                    std::size_t bytes) {
  std::unique_ptr<VerbsPool> pool(new VerbsPool(bytes));
  if (auto loaded = pool->load(library); !loaded) return tl::unexpected(loaded.error());
  const std::string cable = folder + "/verbs";
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return fail("no socket for the verbs pool");
  const timeval patience{kAnswerSeconds, 0};
  setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  pool->socket_ = ends[0];
  const bool ready = pool->pool_.start([&](const std::function<void()>& say_so) {
    close(ends[0]);
    return pool->serve(ends[1], "cable:" + cable, say_so);
  });
  close(ends[1]);
  Address theirs{};
  if (!ready || read(pool->socket_, &theirs, sizeof theirs) != sizeof theirs)
    return fail("the verbs pool did not start");
  if (auto opened = pool->open("shm:" + cable, kClientIp); !opened) return tl::unexpected(opened.error());
  const Address ours = pool->address(kClientIp);
  char connected = 0;
  if (write(pool->socket_, &ours, sizeof ours) != sizeof ours) return fail("the verbs pool has gone");
  if (auto done = pool->connect(theirs); !done) return tl::unexpected(done.error());
  if (read(pool->socket_, &connected, 1) != 1) return fail("the verbs pool did not connect");
  return pool;
}

VerbsPool::~VerbsPool() {
  if (pair_ != nullptr) api_->destroy_qp(pair_);
  if (completions_ != nullptr) api_->destroy_cq(completions_);
  if (mr_ != nullptr) api_->dereg_mr(mr_);
  if (domain_ != nullptr) api_->dealloc_pd(domain_);
  if (context_ != nullptr) api_->close_device(context_);
  if (socket_ >= 0) close(socket_);
}

// The pool's process: its NIC's own thread answers, until the other end goes.
Result<void> VerbsPool::serve(int socket, const std::string& port, const std::function<void()>& ready) {
  std::ranges::fill(memory_, kFill);
  if (auto opened = open(port, kPoolIp); !opened) return opened;
  ready();
  const Address ours = address(kPoolIp);
  Address theirs{};
  if (write(socket, &ours, sizeof ours) != sizeof ours || read(socket, &theirs, sizeof theirs) != sizeof theirs)
    return fail("whoever measures has gone");
  if (auto connected = connect(theirs); !connected) return connected;
  char byte = 1;
  if (write(socket, &byte, 1) == 1) {
    while (read(socket, &byte, 1) > 0) {
    }
  }
  return {};
}

Result<void> VerbsPool::open(const std::string& port, const char* ip) {
  setenv("SLUICE_PORT", port.c_str(), 1);
  setenv("SLUICE_IP", ip, 1);
  ibv_device** const list = api_->get_device_list(nullptr);
  context_ = list == nullptr || list[0] == nullptr ? nullptr : api_->open_device(list[0]);
  if (list != nullptr) api_->free_device_list(list);
  ibv_device_attr attributes{};
  if (context_ == nullptr || api_->query_device(context_, &attributes) != 0)
    return fail("the verbs library does not open its device");
  reads_in_flight_ = static_cast<std::uint8_t>(attributes.max_qp_rd_atom);
  domain_ = api_->alloc_pd(context_);
  mr_ = domain_ == nullptr ? nullptr : api_->reg_mr(domain_, memory_.data(), memory_.size(), kRights);
  completions_ = api_->create_cq(context_, static_cast<int>(2 * kDepth), nullptr, nullptr, 0);
  if (mr_ == nullptr || completions_ == nullptr) return fail("the verbs library registers no memory");
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completions_;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = kDepth;
  wanted.cap.max_recv_wr = 1;
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  pair_ = api_->create_qp(domain_, &wanted);
  if (pair_ == nullptr) return fail("the verbs library makes no queue pair");
  return {};
}

VerbsPool::Address VerbsPool::address(const char* ip) const {
  Address a{};
  a.gid.raw[10] = a.gid.raw[11] = 0xff;
  inet_pton(AF_INET, ip, a.gid.raw + 12);
  a.memory = reinterpret_cast<std::uintptr_t>(memory_.data());
  a.key = mr_->rkey;
  a.pair = pair_->qp_num;
  return a;
}

Result<void> VerbsPool::connect(const Address& peer) {
  remote_address_ = peer.memory;
  remote_key_ = peer.key;
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = 1;
  init.qp_access_flags = kRights;
  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = IBV_MTU_4096;
  receive.dest_qp_num = peer.pair;
  receive.rq_psn = kFirstPsn;
  receive.max_dest_rd_atomic = reads_in_flight_;
  receive.min_rnr_timer = 1;
  receive.ah_attr.is_global = 1;
  receive.ah_attr.port_num = 1;
  receive.ah_attr.grh.sgid_index = kGidIndex;
  receive.ah_attr.grh.dgid = peer.gid;
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.sq_psn = kFirstPsn;
  send.timeout = 14;
  send.retry_cnt = send.rnr_retry = 7;
  send.max_rd_atomic = reads_in_flight_;
  const bool up =
      api_->modify_qp(pair_, &init, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS) == 0 &&
      api_->modify_qp(pair_, &receive,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0 &&
      api_->modify_qp(pair_, &send,
                      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_MAX_QP_RD_ATOMIC) == 0;
  if (!up) return fail("the verbs library does not connect its queue pair");
  return {};
}

void VerbsPool::post_reads(std::span<const Read> reads, std::uint32_t length) {
  std::array<ibv_sge, kDepth> sges;
  std::array<ibv_send_wr, kDepth> requests;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    requests.at(i) = {};
    fill(requests.at(i), sges.at(i), reads[i], length);
    requests.at(i).next = i + 1 == reads.size() ? nullptr : &requests.at(i + 1);
  }
  ibv_send_wr* bad = nullptr;
  failed_ |= ibv_post_send(pair_, requests.data(), &bad) != 0;
}

}  // namespace sluice::cli
