#include "xdp/steering.h"

#ifdef SLUICE_HAS_XDP

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/core.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <utility>

#include "wire/crc32_algebra.h"
#include "xdp/steer_state.h"
// Made by bpftool; it names the types above.
#include <steer.skel.h>

namespace sluice::xdp {
namespace {

using swordbox::Counters;
using swordbox::kVerdicts;

constexpr int kOrderTries = 1000;
constexpr const char* kProgram = "sluice_steer";
// A value of the map that holds all tables, as this build lays it out.
using Tables = std::remove_pointer_t<decltype(steer_bpf::bss)>;
using Constants = std::remove_pointer_t<decltype(steer_bpf::rodata)>;

std::string reason(int error) {
  const int number = std::abs(error);
  if (number == EPERM || number == EACCES) return "not permitted (root, or CAP_BPF with CAP_NET_ADMIN)";
  return std::strerror(number);
}

// The same of what is found by its number.
std::string reason_by_number(int error) {
  if (error == EPERM)
    return "not permitted (root, or CAP_SYS_ADMIN, which looking at a program that is attached takes)";
  return reason(error);
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  void reset() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd_;
};

struct Unload {
  void operator()(steer_bpf* program) const { steer_bpf::destroy(program); }
};

// What libbpf says when the kernel refuses; the last line with a word in it is shown.
thread_local std::string last_words;
int keep_last_words(libbpf_print_level level, const char* format, va_list arguments) {
  if (level != LIBBPF_WARN) return 0;
  std::array<char, 512> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  last_words = text.data();
  while (!last_words.empty() && last_words.back() == '\n') last_words.pop_back();
  return 0;
}

std::uint64_t nanoseconds(Duration d) { return static_cast<std::uint64_t>(d.nanoseconds()); }

void copy_address(const wire::Gid& gid, __u64 (&out)[2]) {
  const auto address = swordbox::NetAddress::from(gid);
  out[0] = address.high;
  out[1] = address.low;
}

// Packets to end `to` of the connection.
steer_end_key end_key(const swordbox::Announcement& a, std::size_t to) {
  steer_end_key key{};
  copy_address(a.address[1 - to], key.source);
  copy_address(a.address[to], key.destination);
  key.qpn = a.qpn[to].value;
  return key;
}

// The program's clock is the kernel's of its ticks, which stands between two: what it takes for a duration is wrong by up to one, by two where the
// processor that counts them goes to rest, and by five where that one is kept from running, until another takes it over. Twice as much.
Duration tick() {
  timespec tick{.tv_sec = 0, .tv_nsec = 4'000'000};
  clock_getres(CLOCK_MONOTONIC_COARSE, &tick);
  return Duration::seconds(tick.tv_sec) + Duration::nanoseconds(tick.tv_nsec);
}
Duration clock_error() { return tick() * 10; }

steer_region_key region_key(const swordbox::Region& region) {
  steer_region_key key{};
  copy_address(region.server, key.server);
  key.rkey = region.rkey.value;
  return key;
}

Result<steer_config> constants_of(const SteeringConfig& config) {
  const swordbox::CloverConfig& rule = config.rule;
  const swordbox::ChainLayout& layout = rule.layout;
  if (!std::has_single_bit(rule.ring) || rule.ring > STEER_RING)
    return fail(fmt::format("ring = {}: must be a power of two up to {}", rule.ring, +STEER_RING));
  if (config.connections == 0 || config.connections > STEER_CONNECTIONS)
    return fail(fmt::format("connections = {}: at most {}", config.connections, +STEER_CONNECTIONS));
  if (rule.tracked_keys == 0 || rule.tracked_keys > STEER_KEY_SETS * STEER_KEY_WAYS)
    return fail(fmt::format("keys = {}: at most {}", rule.tracked_keys, STEER_KEY_SETS * STEER_KEY_WAYS));
  if (rule.regions.size() > STEER_REGIONS || layout.regions_by_volume.size() > STEER_VOLUMES)
    return fail(fmt::format("at most {} regions and {} volumes", +STEER_REGIONS, +STEER_VOLUMES));
  if (rule.regions.empty()) return fail("no memory to watch: name at least one region");
  for (auto region = rule.regions.begin(); region != rule.regions.end(); ++region) {
    if (std::find(rule.regions.begin(), region, *region) != region)
      return fail(
          fmt::format("a region is named twice: key {:#x} of {}", region->rkey.value, region->server.to_string()));
  }
  if (layout.next_offset > 0xF8 || layout.key_offset > 0xF8)
    return fail("next word and key must lie in a node's first 256 bytes");
  steer_config c{};
  c.free_mask = layout.free_mask;
  c.free_value = layout.free_value;
  c.pointer_mask = layout.pointer_mask;
  c.pointer_value = layout.pointer_value;
  c.address_base = layout.address_base;
  c.address_mask = layout.address_mask;
  c.address_stride = layout.address_stride;
  c.volume_mask = layout.volume_mask;
  c.steer_reads_for = nanoseconds(std::max(rule.steer_reads_for - clock_error(), Duration()));
  c.flight = nanoseconds(config.flight + clock_error());
  c.idle = nanoseconds(config.idle);
  c.closing = nanoseconds(config.closing);
  c.tick = nanoseconds(tick());
  c.next_offset = layout.next_offset;
  c.key_offset = layout.key_offset;
  c.min_node_bytes = layout.min_node_bytes;
  c.max_node_bytes = layout.max_node_bytes;
  c.address_shift = layout.address_shift;
  c.volume_shift = layout.volume_shift;
  c.volumes = static_cast<__u32>(layout.regions_by_volume.size());
  std::ranges::copy(layout.regions_by_volume, std::begin(c.volume_regions));
  c.connections = config.connections;
  c.ring_mask = rule.ring - 1;
  const std::uint32_t nodes = std::clamp<std::uint32_t>(std::bit_ceil(rule.history_entries), STEER_HISTORY_WAYS,
                                                        std::uint32_t{STEER_HISTORY_SETS} * STEER_HISTORY_WAYS);
  c.history_sets_mask = nodes / STEER_HISTORY_WAYS - 1;
  // No more keys than asked for: whole sets, or one that is not full.
  c.key_ways = std::min<std::uint32_t>(rule.tracked_keys, STEER_KEY_WAYS);
  c.key_sets_mask = std::bit_floor(std::max<std::uint32_t>(rule.tracked_keys / STEER_KEY_WAYS, 1)) - 1;
  c.hot_from = rule.hot_from;
  c.mirrored = rule.mirrored ? 1 : 0;
  c.forward = static_cast<__u8>(config.way_out);
  return c;
}

// What a changed byte of the remote address changes the ICRC by: the address opens both headers, the ICRC ends them.
void fill_effects(__u32 (&effect)[STEER_KINDS][8][256]) {
  constexpr std::array<std::uint32_t, STEER_KINDS> kHeader = {16, 28};
  for (std::size_t kind = 0; kind < STEER_KINDS; ++kind) {
    for (std::uint32_t byte = 0; byte < 8; ++byte) {
      for (std::uint32_t difference = 0; difference < 256; ++difference) {
        const wire::crc32::Change change{.word = difference << byte % 4 * 8,
                                         .distance = kHeader[kind] - (byte / 4 + 1) * 4};
        effect[kind][byte][difference] = wire::crc32::effect_of({&change, 1});
      }
    }
  }
}

// What a message's last byte adds to its CRC.
void fill_crc(__u32 (&crc_of_byte)[256]) {
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const wire::crc32::Change last{.word = byte << 24, .distance = 0};
    crc_of_byte[byte] = wire::crc32::effect_of({&last, 1});
  }
}

// ------------------------------------------------------------------------------------------------- what is in the kernel

// A program found by its number, with the maps that it uses.
struct Found {
  Descriptor program;
  Descriptor tables;
  Descriptor verdicts;
  Descriptor regions;
  Descriptor constants;
};

bool is_steering(int program) {
  bpf_prog_info about{};
  __u32 length = sizeof about;
  return bpf_obj_get_info_by_fd(program, &about, &length) == 0 && std::string_view(about.name) == kProgram;
}

// The compiler lets a struct end at a whole word, the map does not.
constexpr std::size_t padded(std::size_t size) { return (size + 7) / 8 * 8; }

// None: the number is 0, or its program has just gone.
Result<Descriptor> program_with(__u32 number) {
  if (number == 0) return Descriptor();
  Descriptor program(bpf_prog_get_fd_by_id(number));
  if (!program && errno != ENOENT) return fail(reason_by_number(errno));
  return program;
}

Result<Found> find(const std::string& interface) {
  const unsigned index = if_nametoindex(interface.c_str());
  if (index == 0) return fail(fmt::format("there is no interface {}", interface));
  __u32 number = 0;
  if (const int error = bpf_xdp_query_id(static_cast<int>(index), 0, &number); error != 0)
    return fail(fmt::format("{}: {}", interface, reason(error)));
  auto program = program_with(number);
  if (!program) return fail(fmt::format("{} has an XDP program: {}", interface, program.error().message));
  Found found;
  found.program = std::move(*program);
  if (!found.program || !is_steering(found.program.get()))
    return fail(fmt::format("{} has no steering program; `sluice xdp attach {}` attaches one", interface, interface));
  std::array<__u32, 32> maps{};
  bpf_prog_info about{};
  about.nr_map_ids = maps.size();
  about.map_ids = reinterpret_cast<std::uintptr_t>(maps.data());
  __u32 length = sizeof about;
  if (const int error = bpf_obj_get_info_by_fd(found.program.get(), &about, &length); error != 0)
    return fail(fmt::format("{}: {}", interface, reason(error)));
  for (std::size_t i = 0; i < std::min<std::size_t>(about.nr_map_ids, maps.size()); ++i) {
    Descriptor map(bpf_map_get_fd_by_id(maps[i]));
    bpf_map_info kind{};
    __u32 size = sizeof kind;
    if (!map || bpf_obj_get_info_by_fd(map.get(), &kind, &size) != 0) continue;
    const std::string_view name = kind.name;
    Descriptor* place = nullptr;
    if (name.ends_with(".bss") && padded(kind.value_size) == sizeof(Tables)) place = &found.tables;
    if (name.ends_with(".rodata") && padded(kind.value_size) == sizeof(Constants)) place = &found.constants;
    if (name == "verdicts" && kind.max_entries == kVerdicts) place = &found.verdicts;
    if (name == "regions") place = &found.regions;
    if (place != nullptr) *place = std::move(map);
  }
  if (!found.tables || !found.verdicts || !found.regions || !found.constants)
    return fail(fmt::format("{} has the steering program of another build of Sluice: detach it and attach this one's",
                            interface));
  return found;
}

class Mapping {
 public:
  Mapping(int map, std::size_t size, int protection)
      : size_(size), at_(::mmap(nullptr, size, protection, MAP_SHARED, map, 0)) {}
  ~Mapping() {
    if (at_ != MAP_FAILED) ::munmap(at_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  template <class T>
  T* as() const {
    return at_ == MAP_FAILED ? nullptr : static_cast<T*>(at_);
  }

 private:
  std::size_t size_;
  void* at_;
};

class LoadedSteering final : public Steering {
 public:
  // Owns the program. REQUIRES: loaded.
  explicit LoadedSteering(std::unique_ptr<steer_bpf, Unload> program)
      : object_(std::move(program)),
        program_(bpf_program__fd(object_->progs.sluice_steer)),
        orders_(bpf_program__fd(object_->progs.sluice_order)),
        verdicts_(bpf_map__fd(object_->maps.verdicts)),
        regions_(bpf_map__fd(object_->maps.regions)),
        tables_(object_->bss),
        constants_(object_->rodata) {}
  // Only looks at one that is attached.
  LoadedSteering(Found found, std::unique_ptr<Mapping> tables, std::unique_ptr<Mapping> constants)
      : found_(std::move(found)),
        mapped_tables_(std::move(tables)),
        mapped_constants_(std::move(constants)),
        program_(found_.program.get()),
        verdicts_(found_.verdicts.get()),
        regions_(found_.regions.get()),
        tables_(mapped_tables_->as<Tables>()),
        constants_(mapped_constants_->as<Constants>()) {}

  Result<Attachment> attach(std::span<const std::string> interfaces) override {
    if (!object_) return fail("it is attached already");
    std::vector<int> indices;
    for (const std::string& name : interfaces) {
      const unsigned index = if_nametoindex(name.c_str());
      if (index == 0) return fail(fmt::format("there is no interface {}", name));
      if (std::ranges::find(indices, static_cast<int>(index)) != indices.end())
        return fail(fmt::format("{} is named twice", name));
      indices.push_back(static_cast<int>(index));
    }
    const bool across = constants_->config.forward == STEER_ACROSS;
    if (indices.empty() || (across && indices.size() != 2))
      return fail(across ? "from one interface to another: name two" : "name at least one interface");
    for (std::size_t i = 0; across && i < 2; ++i) {
      const __u32 from = static_cast<__u32>(indices[i]);
      const __u32 to = static_cast<__u32>(indices[1 - i]);
      if (const int error = bpf_map_update_elem(bpf_map__fd(object_->maps.across), &from, &to, BPF_ANY); error != 0)
        return fail(fmt::format("{}: {}", interfaces[i], reason(error)));
    }
    int error = attach_all(indices, XDP_FLAGS_DRV_MODE);
    if (error == 0) return Attachment::kDriver;
    if (error != -EBUSY && error != -EEXIST) {
      error = attach_all(indices, XDP_FLAGS_SKB_MODE);
      if (error == 0) return Attachment::kGeneric;
    }
    if (error == -EBUSY || error == -EEXIST)
      return fail(
          "an interface has an XDP program already; detach that first (`sluice xdp detach`, `ip link set … xdp off`)");
    return fail(fmt::format("cannot attach: {}", reason(error)));
  }

  Result<void> announce(const swordbox::Announcement& a) override {
    steer_order order{};
    order.kind = STEER_ANNOUNCE;
    order.mtu = a.mtu;
    for (std::size_t end = 0; end < 2; ++end) {
      order.ends[end] = end_key(a, end);
      order.psn[end] = a.starting_psn[1 - end].value();
    }
    const auto answer = run_order(order);
    if (!answer) return tl::unexpected(answer.error());
    if (*answer != XDP_PASS) return fail("no room for another connection, or its path MTU is not known");
    return {};
  }
  Result<void> close(const swordbox::Announcement& a) override {
    steer_order order{};
    order.kind = STEER_CLOSE;
    order.ends[0] = end_key(a, 0);
    const auto answer = run_order(order);
    if (!answer) return tl::unexpected(answer.error());
    return {};
  }
  Result<void> switch_on(bool on) override {
    if ((tables_->wishes.on != 0) == on) return {};
    if (orders_ < 0) return fail("it can be switched only by who has loaded it");
    if (!on) tables_->wishes.on = 0;
    for (__u32 first = 0; first < std::size(tables_->history); first += STEER_FORGET_AT_ONCE) {
      steer_order order{};
      order.kind = STEER_FORGET;
      order.first = first;
      std::uint32_t answer = XDP_DROP;  // the tables were in use for too long
      for (int tries = 0; answer != XDP_PASS; ++tries) {
        const auto ran = run_order(order);
        if (!ran) return tl::unexpected(ran.error());
        if (tries == kOrderTries) return fail("the program's tables are held by somebody who does not get on");
        answer = *ran;
      }
    }
    if (on) tables_->wishes.on = 1;
    return {};
  }
  void steer_reads(bool on) override { tables_->wishes.steer_reads = on ? 1 : 0; }
  void steer_writes(bool on) override { tables_->wishes.steer_writes = on ? 1 : 0; }

  void start_over() override {
    const steer_wishes wishes = tables_->wishes;
    std::memset(static_cast<void*>(tables_), 0, sizeof *tables_);
    tables_->wishes = wishes;
    tables_->wishes.on = 1;
    const int ends = bpf_map__fd(object_->maps.ends);
    steer_end_key key{};
    while (bpf_map_get_next_key(ends, nullptr, &key) == 0) bpf_map_delete_elem(ends, &key);
  }

  void hold(bool held) override { tables_->tables_lock.held = held ? 1 : 0; }

  Result<Outcome> try_frame(ByteView frame) override {
    Outcome outcome;
    outcome.frame.resize(std::max<std::size_t>(frame.size(), 64) + 64);
    bpf_test_run_opts run{};
    run.sz = sizeof run;
    run.data_in = frame.data();
    run.data_size_in = static_cast<__u32>(frame.size());
    run.data_out = outcome.frame.data();
    run.data_size_out = static_cast<__u32>(outcome.frame.size());
    if (const int error = bpf_prog_test_run_opts(program_, &run); error != 0)
      return fail(fmt::format("the kernel does not run the program on a frame: {}", reason(error)));
    outcome.frame.resize(run.data_size_out);
    outcome.dropped = run.retval == XDP_DROP;
    return outcome;
  }
  Result<std::uint32_t> time_frame(ByteView frame, std::uint32_t repeat) override {
    bpf_test_run_opts run{};
    run.sz = sizeof run;
    run.data_in = frame.data();
    run.data_size_in = static_cast<__u32>(frame.size());
    run.repeat = static_cast<int>(repeat);
    if (const int error = bpf_prog_test_run_opts(program_, &run); error != 0)
      return fail(fmt::format("the kernel does not run the program on a frame: {}", reason(error)));
    return run.duration;
  }

  Counters counters() const override {
    Counters counters;
    const int cpus = libbpf_num_possible_cpus();
    std::vector<std::uint64_t> each(static_cast<std::size_t>(std::max(cpus, 1)));
    for (__u32 i = 0; i < kVerdicts; ++i) {
      if (bpf_map_lookup_elem(verdicts_, &i, each.data()) != 0) continue;
      for (const std::uint64_t n : each) counters.verdicts[i] += n;
    }
    std::size_t at = 0;
#define X(name, meaning) counters.name = tables_->events[at++];
    SLUICE_BOX_EVENTS(X)
#undef X
    return counters;
  }

  Status status(std::size_t most_keys) const override {
    Status s;
    s.on = tables_->wishes.on != 0;
    s.way_out = static_cast<WayOut>(constants_->config.forward);
    for (const steer_connection& c : tables_->connections) s.connections += c.alive;
    for (std::size_t i = 0; i < std::size(tables_->keys); ++i) {
      const steer_key& k = tables_->keys[i];
      if (k.used == 0) continue;
      ++s.tracked_keys;
      s.open_links += k.link.open;
      s.hottest.push_back({.key = tables_->key_names[i],
                           .heat = k.opened,
                           .links = k.opened,
                           .tail = k.tail & swordbox::kAddressBits,
                           .use = {.writes_steered = k.writes_steered, .reads_steered = k.reads_steered}});
    }
    const std::size_t n = std::min(most_keys, s.hottest.size());
    std::ranges::partial_sort(s.hottest, s.hottest.begin() + static_cast<std::ptrdiff_t>(n), std::greater<>{},
                              [](const auto& k) { return std::pair(k.links, ~k.key); });
    s.hottest.resize(n);
    steer_region_key region{};
    for (void* before = nullptr; bpf_map_get_next_key(regions_, before, &region) == 0; before = &region) ++s.regions;
    return s;
  }
  std::optional<std::uint64_t> tail_of(std::uint64_t key) const override {
    for (std::size_t i = 0; i < std::size(tables_->keys); ++i) {
      const steer_key& k = tables_->keys[i];
      if (k.used != 0 && tables_->key_names[i] == key && k.tail != 0) return k.tail & swordbox::kAddressBits;
    }
    return std::nullopt;
  }

 private:
  int attach_all(const std::vector<int>& indices, __u32 mode) const {
    const __u32 flags = mode | XDP_FLAGS_UPDATE_IF_NOEXIST;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const int error = bpf_xdp_attach(indices[i], program_, flags, nullptr);
      if (error == 0) continue;
      for (std::size_t k = 0; k < i; ++k) bpf_xdp_detach(indices[k], mode, nullptr);
      return error;
    }
    return 0;
  }
  Result<std::uint32_t> run_order(steer_order order) const {
    if (orders_ < 0) return fail("only who has loaded it can give it orders");
    bpf_test_run_opts run{};
    run.sz = sizeof run;
    run.data_in = &order;
    run.data_size_in = sizeof order;
    if (const int error = bpf_prog_test_run_opts(orders_, &run); error != 0)
      return fail(fmt::format("the kernel does not take the order: {}", reason(error)));
    return run.retval;
  }

  std::unique_ptr<steer_bpf, Unload> object_;
  Found found_;
  std::unique_ptr<Mapping> mapped_tables_;
  std::unique_ptr<Mapping> mapped_constants_;
  int program_ = -1;
  int orders_ = -1;
  int verdicts_ = -1;
  int regions_ = -1;
  Tables* tables_;
  Constants* constants_;
};

}  // namespace

std::string Steering::refusal() {
  libbpf_set_print(keep_last_words);
  const int map = bpf_map_create(BPF_MAP_TYPE_ARRAY, "sluice_probe", 4, 8, 1, nullptr);
  if (map < 0) return fmt::format("the kernel refuses BPF maps: {}", reason(errno));
  ::close(map);
  return {};
}

Result<std::unique_ptr<Steering>> Steering::load(const SteeringConfig& config) {
  libbpf_set_print(keep_last_words);
  const auto constants = constants_of(config);
  if (!constants) return tl::unexpected(constants.error());
  // Kernels before 5.11 count maps as locked memory.
  const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
  setrlimit(RLIMIT_MEMLOCK, &unlimited);
  last_words.clear();
  std::unique_ptr<steer_bpf, Unload> program(steer_bpf::open());
  if (!program) return fail(fmt::format("cannot open the steering program: {}", reason(errno)));
  std::memcpy(&program->rodata->config, &*constants, sizeof *constants);
  fill_effects(program->rodata->effect);
  fill_crc(program->rodata->crc_of_byte);
  for (std::size_t i = 0; i < config.rule.regions.size(); ++i)
    program->rodata->region_names[i] = region_key(config.rule.regions[i]);
  program->bss->wishes = {
      .on = 1, .steer_writes = config.rule.steer_writes ? 1u : 0, .steer_reads = config.rule.steer_reads ? 1u : 0};
  if (const int error = steer_bpf::load(program.get()); error != 0)
    return fail(fmt::format("the kernel does not take the steering program: {}{}{}", reason(error),
                            last_words.empty() ? "" : "; ", last_words));
  __u32 number = 0;
  for (const swordbox::Region& region : config.rule.regions) {
    const steer_region_key key = region_key(region);
    if (const int error = bpf_map_update_elem(bpf_map__fd(program->maps.regions), &key, &number, BPF_ANY); error != 0)
      return fail(fmt::format("regions: {}", reason(error)));
    ++number;
  }
  return std::make_unique<LoadedSteering>(std::move(program));
}

Result<std::unique_ptr<Steering>> Steering::open(const std::string& interface) {
  libbpf_set_print(keep_last_words);
  auto found = find(interface);
  if (!found) return tl::unexpected(found.error());
  auto tables = std::make_unique<Mapping>(found->tables.get(), sizeof(Tables), PROT_READ | PROT_WRITE);
  auto constants = std::make_unique<Mapping>(found->constants.get(), sizeof(Constants), PROT_READ);
  if (tables->as<Tables>() == nullptr || constants->as<Constants>() == nullptr)
    return fail(fmt::format("cannot look into the program of {}: {}", interface, reason(errno)));
  return std::make_unique<LoadedSteering>(std::move(*found), std::move(tables), std::move(constants));
}

Result<std::vector<std::string>> Steering::attached() {
  std::vector<std::string> names;
  const std::unique_ptr<struct if_nameindex, decltype(&::if_freenameindex)> all(::if_nameindex(), &::if_freenameindex);
  for (const struct if_nameindex* i = all.get(); i != nullptr && i->if_index != 0; ++i) {
    __u32 number = 0;
    if (bpf_xdp_query_id(static_cast<int>(i->if_index), 0, &number) != 0) continue;
    const auto program = program_with(number);
    if (!program) return fail(fmt::format("{} has an XDP program: {}", i->if_name, program.error().message));
    if (*program && is_steering(program->get())) names.emplace_back(i->if_name);
  }
  return names;
}

Result<void> Steering::detach(const std::string& interface) {
  libbpf_set_print(keep_last_words);
  auto found = find(interface);
  if (!found) return tl::unexpected(found.error());
  const auto index = static_cast<int>(if_nametoindex(interface.c_str()));
  // Before the network stack, where the driver has its own: the kernel looks at the driver's unless told.
  bpf_xdp_query_opts how{};
  how.sz = sizeof how;
  const bool generic = bpf_xdp_query(index, 0, &how) == 0 && how.attach_mode == XDP_ATTACHED_SKB;
  bpf_xdp_attach_opts only_this{};
  only_this.sz = sizeof only_this;
  only_this.old_prog_fd = found->program.get();
  const __u32 mode = generic ? XDP_FLAGS_SKB_MODE : XDP_FLAGS_DRV_MODE;
  const int error = bpf_xdp_detach(index, XDP_FLAGS_REPLACE | mode, &only_this);
  if (error != 0) return fail(fmt::format("{}: cannot detach: {}", interface, reason(error)));
  return {};
}

}  // namespace sluice::xdp

#else

namespace sluice::xdp {
namespace {

constexpr const char* kWithout =
    "this sluice was built without XDP; install libbpf-dev, clang-14 and bpftool (scripts/install-packages) and build "
    "again";

}  // namespace

std::string Steering::refusal() { return kWithout; }
Result<std::unique_ptr<Steering>> Steering::load(const SteeringConfig&) { return fail(kWithout); }
Result<std::unique_ptr<Steering>> Steering::open(const std::string&) { return fail(kWithout); }
Result<std::vector<std::string>> Steering::attached() { return fail(kWithout); }
Result<void> Steering::detach(const std::string&) { return fail(kWithout); }

}  // namespace sluice::xdp

#endif
