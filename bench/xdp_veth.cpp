// Steering in the kernel on a veth pair, beside a plain reflector (XDP_TX) in the same place, in one run.
//
// In a network namespace of its own the kernel itself (BPF_PROG_TEST_RUN with live frames) sends prepared frames into one end of a veth pair. At
// the other end sits the reflector, or the steering program that sends back what it has judged. What comes back is counted and dropped.
// Frames are whole conversations with right PSNs and ICRCs: READs of an old node with their answers; and writes: WRITE, ACK, CAS, Atomic ACK.
// All three run on one core, so a packet's time is that of making it, of two crossings of the pair, and of judging it.
//
// The nodes that are written follow each other in memory, as a client takes them, STRIDE bytes apart.
//
//   xdp_veth [ROUNDS [SECONDS [STRIDE]]]     5, 1 and 256
#include "bench/xdp_veth.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/core.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xdp_veth.skel.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ports/packet_port.h"
#include "wire/crc32_algebra.h"
#include "wire/frame.h"
#include "wire/icrc.h"
#include "xdp/steering.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using wire::Opcode;

constexpr std::uint64_t kOld = 0x10000;
constexpr std::uint64_t kNodes = 0x20000;
constexpr std::uint64_t kFree = std::uint64_t{1} << 63 | 7;
constexpr std::uint64_t kKey = 7;
constexpr std::uint32_t kNodeBytes = 64;
const wire::Gid kClient = wire::Gid::from(wire::Ipv4Address{0x0A4D000Au});
const wire::Gid kServer = wire::Gid::from(wire::Ipv4Address{0x0A4D0001u});
constexpr wire::Qpn kClientQpn{0x100};
constexpr wire::Qpn kServerQpn{0x200};
constexpr wire::RKey kRkey{0x1001};

[[noreturn]] void die(const std::string& why) {
  fmt::print(stderr, "xdp_veth: {}\n", why);
  std::exit(1);
}
std::uint64_t stride = 256;
std::uint64_t node(std::uint32_t i) { return kNodes + i * stride; }
std::uint64_t pointer(std::uint64_t address) { return std::uint64_t{1} << 48 | address; }

enum Kind : std::uint32_t { kRead, kData, kWrite, kAck, kCas, kPrior };

struct Body {
  Kind kind;
  Opcode opcode;
  std::vector<std::uint8_t> bytes{};
  template <class H>
  Body& put(const H& header) {
    bytes.resize(bytes.size() + H::kSize);
    header.write(bytes.data() + bytes.size() - H::kSize);
    return *this;
  }
  Body& put_node() {
    std::array<std::uint8_t, kNodeBytes> content{};
    store_le(content.data(), kFree);
    store_le(content.data() + 8, kKey);
    bytes.insert(bytes.end(), content.begin(), content.end());
    return *this;
  }
  bool is_request() const { return kind == kRead || kind == kWrite || kind == kCas; }
};

Body read_old() { return Body{kRead, Opcode::kRcReadRequest}.put(wire::Reth{kOld, kRkey, kNodeBytes}); }
Body data() { return Body{kData, Opcode::kRcReadResponseOnly}.put(wire::Aeth::ack(1)).put_node(); }
Body write(std::uint64_t address) {
  return Body{kWrite, Opcode::kRcWriteOnly}.put(wire::Reth{address, kRkey, kNodeBytes}).put_node();
}
Body ack() { return Body{kAck, Opcode::kRcAcknowledge}.put(wire::Aeth::ack(1)); }
Body cas(std::uint64_t address) {
  return Body{kCas, Opcode::kRcCompareSwap}.put(wire::AtomicEth{kOld, kRkey, pointer(address), kFree});
}
Body prior() {
  return Body{kPrior, Opcode::kRcAtomicAcknowledge}.put(wire::Aeth::ack(1)).put(wire::AtomicAckEth{kFree});
}

std::vector<std::uint8_t> frame_of(const Body& body, std::uint32_t psn) {
  wire::AddressVector route;
  route.source_mac = {{2, 0, 0, 0, 0, 1}};
  route.destination_mac = {{2, 0, 0, 0, 0, 2}};
  route.source = body.is_request() ? kClient : kServer;
  route.destination = body.is_request() ? kServer : kClient;
  const wire::HeaderTemplate headers(route);
  std::vector<std::uint8_t> frame(headers.frame_size(wire::Bth::kSize + body.bytes.size()));
  std::size_t at = headers.write(frame.data(), wire::Bth::kSize + body.bytes.size());
  wire::Bth{.opcode = body.opcode, .destination = body.is_request() ? kServerQpn : kClientQpn, .psn = wire::Psn(psn)}
      .write(frame.data() + at);
  at += wire::Bth::kSize;
  std::ranges::copy(body.bytes, frame.begin() + static_cast<std::ptrdiff_t>(at));
  headers.seal(frame.data(), at + body.bytes.size());
  return frame;
}

struct Load {
  std::string name;
  std::vector<std::vector<std::uint8_t>> frames{};
  std::vector<Kind> kinds{};
  std::vector<std::uint32_t> psns{};
  std::uint32_t numbers = 0;                            // PSNs a lap
  std::array<std::uint32_t, BENCH_KINDS> behind_psn{};  // bytes between the PSN and the ICRC

  void add(const Body& body, std::uint32_t psn) {
    frames.push_back(frame_of(body, psn));
    kinds.push_back(body.kind);
    psns.push_back(psn);
    behind_psn[body.kind] = static_cast<std::uint32_t>(body.bytes.size());
    numbers = std::max(numbers, psn + 1);
  }
};

Load reads() {
  Load load{.name = "READs steered, and their answers"};
  for (std::uint32_t i = 0; i < BENCH_FRAMES / 2; ++i) {
    load.add(read_old(), i);
    load.add(data(), i);
  }
  return load;
}
Load writes() {
  Load load{.name = "WRITE, ACK, CAS steered, Atomic ACK"};
  for (std::uint32_t i = 0; i < BENCH_FRAMES / 4; ++i) {
    load.add(write(node(i + 1)), 2 * i);
    load.add(ack(), 2 * i);
    load.add(cas(node(i + 1)), 2 * i + 1);
    load.add(prior(), 2 * i + 1);
  }
  return load;
}

struct Unload {
  void operator()(xdp_veth_bpf* program) const { xdp_veth_bpf::destroy(program); }
};

std::unique_ptr<xdp_veth_bpf, Unload> load_ends(const Load& load, unsigned out) {
  std::unique_ptr<xdp_veth_bpf, Unload> ends(xdp_veth_bpf::open());
  if (!ends) die("cannot open its programs");
  ends->rodata->out_interface = out;
  ends->rodata->frames_in_use = static_cast<__u32>(load.frames.size());
  ends->rodata->numbers_a_lap = load.numbers;
  for (std::size_t kind = 0; kind < BENCH_KINDS; ++kind) {
    for (std::uint32_t byte = 0; byte < 3; ++byte) {
      for (std::uint32_t difference = 0; difference < 256; ++difference) {
        const wire::crc32::Change change{.word = difference << (byte + 1) * 8, .distance = load.behind_psn[kind]};
        ends->rodata->effect[kind][byte][difference] = wire::crc32::effect_of({&change, 1});
      }
    }
  }
  if (xdp_veth_bpf::load(ends.get()) != 0) die("the kernel does not take its programs");
  for (__u32 i = 0; i < load.frames.size(); ++i) {
    bench_frame frame{};
    const auto& bytes = load.frames[i];
    std::copy_n(bytes.begin(), bytes.size(), std::begin(frame.bytes));
    frame.psn = load.psns[i];
    frame.icrc_offset = static_cast<__u32>(bytes.size() - 4);
    frame.icrc = load_le<std::uint32_t>(bytes.data() + frame.icrc_offset);
    frame.kind = load.kinds[i];
    bpf_map_update_elem(bpf_map__fd(ends->maps.frames), &i, &frame, BPF_ANY);
  }
  return ends;
}

// The program with a connection, a key, and its tail known.
std::unique_ptr<xdp::Steering> prepared_steering() {
  xdp::SteeringConfig config;
  config.rule.regions = {{kServer, kRkey}};
  config.rule.ring = 32;
  config.rule.hot_from = 1;
  config.rule.steer_reads_for = Duration::seconds(3600);
  config.way_out = xdp::WayOut::kBack;
  auto steering = xdp::Steering::load(config);
  if (!steering) die(steering.error().message);
  constexpr std::uint32_t kFirst = 0xFFFFFC;
  if (!(*steering)->announce({.address = {kClient, kServer},
                              .qpn = {kClientQpn, kServerQpn},
                              .starting_psn = {wire::Psn(kFirst), wire::Psn(kFirst)},
                              .mtu = 1024}))
    die("no connection");
  const auto feed = [&](const Body& body, std::uint32_t psn) {
    if (!(*steering)->try_frame(frame_of(body, psn))) die("no test run");
  };
  feed(write(kOld), kFirst);
  feed(ack(), kFirst);
  feed(write(node(0)), kFirst + 1);
  feed(ack(), kFirst + 1);
  feed(cas(node(0)), kFirst + 2);
  feed(prior(), kFirst + 2);
  feed(read_old(), kFirst + 3);
  feed(data(), kFirst + 3);
  if ((*steering)->tail_of(kKey) != node(0)) die("the tail is not known");
  return std::move(*steering);
}

void make_frames(xdp_veth_bpf& ends, std::uint32_t count) {
  std::array<std::uint8_t, BENCH_BYTES> room{};
  bpf_test_run_opts run{};
  run.sz = sizeof run;
  run.data_in = room.data();
  run.data_size_in = room.size();
  run.flags = BPF_F_TEST_XDP_LIVE_FRAMES;
  run.repeat = static_cast<int>(count);
  run.batch_size = 64;
  if (const int error = bpf_prog_test_run_opts(bpf_program__fd(ends.progs.bench_make), &run); error != 0)
    die(fmt::format("the kernel does not send live frames: {}", std::strerror(-error)));
}

struct Rate {
  double packets_a_second = 0;
  double lost = 0;
};

Rate measure(xdp_veth_bpf& ends, double seconds) {
  // Before and after each run the kernel waits until all readers of its dispatcher are gone, some 10 ms each: a run must be long beside it.
  constexpr std::uint32_t kAtOnce = 1 << 22;
  make_frames(ends, kAtOnce);
  const std::uint64_t made = ends.bss->made;
  const std::uint64_t back = ends.bss->came_back;
  const auto start = Clock::now();
  double passed = 0;
  do {
    make_frames(ends, kAtOnce);
    passed = std::chrono::duration<double>(Clock::now() - start).count();
  } while (passed < seconds);
  const auto out = static_cast<double>(ends.bss->made - made);
  const auto in = static_cast<double>(ends.bss->came_back - back);
  return {in / passed, 1 - in / out};
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void attach(const char* interface, const bpf_program* program) {
  if (bpf_xdp_attach(static_cast<int>(if_nametoindex(interface)), bpf_program__fd(program), XDP_FLAGS_DRV_MODE,
                     nullptr) != 0)
    die(fmt::format("{}: cannot attach", interface));
}
void detach(const char* interface) {
  bpf_xdp_detach(static_cast<int>(if_nametoindex(interface)), XDP_FLAGS_DRV_MODE, nullptr);
}

// Whether all that comes back is whole: each ICRC is computed anew.
std::size_t verify(xdp_veth_bpf& ends) {
  detach("near");
  attach("near", ends.progs.bench_pass);
  auto port = ports::PacketPort::open("near");
  if (!port) die(port.error().message);
  std::size_t seen = 0;
  std::array<port::Frame, 64> burst;
  for (int round = 0; round < 64; ++round) {
    make_frames(ends, 64);
    pollfd ready{(*port)->wait_descriptor(), POLLIN, 0};
    while (poll(&ready, 1, 20) > 0) {
      const std::size_t n = (*port)->receive(Time(), burst);
      if (n == 0) break;
      for (std::size_t i = 0; i < n; ++i) {
        wire::ParsedFrame parsed;
        if (wire::parse_and_verify(burst[i].bytes(), parsed) != wire::Verdict::kOk) die("a frame came back damaged");
        ++seen;
      }
    }
  }
  port->reset();
  detach("near");
  attach("near", ends.progs.bench_sink);
  return seen;
}

void run_load(const Load& load, int rounds, double seconds) {
  auto ends = load_ends(load, if_nametoindex("near"));
  attach("near", ends->progs.bench_sink);
  std::vector<double> plain;
  std::vector<double> steered;
  std::vector<double> ratios;
  double steering_share = 0;
  std::size_t verified = 0;
  for (int round = 0; round < rounds; ++round) {
    attach("far", ends->progs.bench_reflect);
    const Rate without = measure(*ends, seconds);
    detach("far");
    ends->bss->made = 0;
    auto steering = prepared_steering();
    const std::vector<std::string> far{"far"};
    if (auto done = steering->attach(far); !done) die(done.error().message);
    const Rate with = measure(*ends, seconds);
    if (round == 0) verified = verify(*ends);
    const auto counters = steering->counters();
    steering_share = static_cast<double>(counters.of(swordbox::Verdict::kReadSteered) +
                                         counters.of(swordbox::Verdict::kCasSteered)) /
                     static_cast<double>(ends->bss->made);
    if (auto gone = xdp::Steering::detach("far"); !gone) die(gone.error().message);
    if (without.lost > 0.01 || with.lost > 0.01)
      fmt::print("  (lost: {:.1f} % plain, {:.1f} % steered)\n", 100 * without.lost, 100 * with.lost);
    plain.push_back(without.packets_a_second);
    steered.push_back(with.packets_a_second);
    ratios.push_back(with.packets_a_second / without.packets_a_second);
  }
  detach("near");
  fmt::print(
      "{:<40} reflector {:5.2f} M/s   steering {:5.2f} M/s   ratio {:.2f}   {:.0f} ns a packet more; {:.0f} % steered; "
      "{} verified\n",
      load.name, median(plain) / 1e6, median(steered) / 1e6, median(ratios),
      1e9 / median(steered) - 1e9 / median(plain), 100 * steering_share, verified);
}

int run(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 1;
  if (argc > 3) stride = std::strtoull(argv[3], nullptr, 10);
  if (rounds < 1 || seconds <= 0 || stride < kNodeBytes || stride % 8 != 0)
    die("usage: xdp_veth [ROUNDS [SECONDS [STRIDE]]], STRIDE a multiple of 8 from 64 on");
  if (unshare(CLONE_NEWNET) != 0) die("needs root: no network namespace of its own");
  if (std::system(
          "ip link set lo up && ip link add near type veth peer name far && ip link set near addrgenmode none && "
          "ip link set far addrgenmode none && ip link set near up && ip link set far up") != 0)
    die("`ip link add ... type veth` does not work here");
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  sched_setaffinity(0, sizeof one, &one);
  run_load(reads(), rounds, seconds);
  run_load(writes(), rounds, seconds);
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::run(argc, argv); }
