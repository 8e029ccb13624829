// Frames a second and round trips over the ports, beside what the kernel's own sockets reach on the same machine.
//
// Two processes, each on a core of its own where there are two; they spin, or sleep in poll() where the name says so.
//   shm, udp          our ports; udp with datagrams of up to 60,000 bytes and of 1,472 (an Ethernet's MTU)
//   unix, raw_udp     one frame a datagram over plain sockets: what a port without rings and containers would cost
// one_way counts frames that arrived, round_trip one frame there and back. Lengths: an 8-byte WRITE's acknowledgement (62), its
// request (82), 1 KiB and 4 KiB of payload.
// Run: bench/port_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "ports/descriptor.h"
#include "ports/shm_port.h"
#include "ports/udp_port.h"

namespace {

using sluice::Duration;
using sluice::Time;
using sluice::port::Frame;
using sluice::port::Port;
using sluice::port::PortState;
using sluice::ports::Descriptor;

constexpr std::size_t kBurst = 32;

Time now() {
  static const auto start = std::chrono::steady_clock::now();
  return Time::at(Duration::nanoseconds((std::chrono::steady_clock::now() - start).count()));
}

void pin_to(std::size_t core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core % static_cast<std::size_t>(sysconf(_SC_NPROCESSORS_ONLN)), &set);
  sched_setaffinity(0, sizeof set, &set);
}

// Both ends of one cable. `near` is made in this process, `far` in its companion, at the same time.
struct Ends {
  std::function<std::unique_ptr<Port>()> near;
  std::function<std::unique_ptr<Port>()> far;
};
using MakeEnds = std::function<Ends()>;

// A second process that runs `work` until it is killed, with its parent at the latest.
class Companion {
 public:
  explicit Companion(const std::function<void()>& work) : pid_(fork()) {
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      pin_to(1);
      work();
      _exit(0);
    }
    pin_to(0);
  }
  ~Companion() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

std::unique_ptr<Port> wait_until_up(std::unique_ptr<Port> port) {
  std::array<Frame, kBurst> burst;
  while (port->state() != PortState::kUp) {
    port->receive(now(), std::span(burst).first(0));
    sched_yield();
  }
  return port;
}

// The ends ------------------------------------------------------------------------------------------------------------

Ends shm_ends() {
  const std::string path = "/tmp/sluice-port-bench-" + std::to_string(getpid()) + ".sock";
  return {.near = [path] { return wait_until_up(sluice::ports::ShmPort::listen_one(path).value()); },
          .far =
              [path] {
                return wait_until_up(sluice::ports::ShmPort::connect(path, sluice::ports::Absent::kWait).value());
              }};
}

Ends udp_ends(std::size_t datagram_bytes) {
  using namespace sluice::ports;
  const UdpOptions options{.datagram_bytes = datagram_bytes};
  const std::shared_ptr<UdpListener> listener = UdpListener::listen({"127.0.0.1", 0}, options).value();
  return {.near =
              [listener] {
                std::unique_ptr<Port> port;
                while (!port) port = listener->accept(now());
                return port;
              },
          .far =
              [listener, options] {
                return wait_until_up(UdpPort::connect({"127.0.0.1", listener->port_number()}, options).value());
              }};
}

// One frame a datagram, sent at once.
class SocketPort final : public Port {
 public:
  explicit SocketPort(Descriptor socket)
      : socket_(std::move(socket)), out_(sluice::port::kMaxFrame), in_(kBurst * sluice::port::kMaxFrame) {}

  std::uint8_t* reserve(std::size_t) override { return out_.data(); }
  void commit(std::size_t length) override {
    while (send(socket_.get(), out_.data(), length, MSG_DONTWAIT) < 0 && errno == EAGAIN) {
    }
  }
  bool flush_some(Time) override { return false; }
  void discard() override {}
  std::size_t receive(Time, std::span<Frame> burst) override {
    std::size_t count = 0;
    for (; count < burst.size(); ++count) {
      std::uint8_t* at = in_.data() + count * sluice::port::kMaxFrame;
      const auto got = recv(socket_.get(), at, sluice::port::kMaxFrame, MSG_DONTWAIT);
      if (got <= 0) break;
      burst[count] = {at, static_cast<std::uint32_t>(got)};
    }
    return count;
  }
  int wait_descriptor() const override { return socket_.get(); }
  bool arm() override { return true; }
  const sluice::port::PortCounters& counters() const override { return counters_; }
  std::string name() const override { return "socket"; }

 private:
  Descriptor socket_;
  std::vector<std::uint8_t> out_;
  std::vector<std::uint8_t> in_;
  sluice::port::PortCounters counters_;
};

Ends socket_ends(std::array<int, 2> pair) {
  return {.near = [fd = pair[0]] { return std::make_unique<SocketPort>(Descriptor(fd)); },
          .far = [fd = pair[1]] { return std::make_unique<SocketPort>(Descriptor(fd)); }};
}

Ends unix_ends() {
  std::array<int, 2> pair{};
  SLUICE_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) == 0);
  return socket_ends(pair);
}

Ends raw_udp_ends() {
  std::array<int, 2> pair{};
  std::array<sockaddr_in, 2> names{};
  for (std::size_t i = 0; i < 2; ++i) {
    pair[i] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const int buffer = 4 << 20;  // holds a window of frames
    setsockopt(pair[i], SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer);
    names[i].sin_family = AF_INET;
    names[i].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    SLUICE_CHECK(bind(pair[i], reinterpret_cast<sockaddr*>(&names[i]), sizeof names[i]) == 0);
    socklen_t length = sizeof names[i];
    getsockname(pair[i], reinterpret_cast<sockaddr*>(&names[i]), &length);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    SLUICE_CHECK(connect(pair[i], reinterpret_cast<sockaddr*>(&names[1 - i]), sizeof names[i]) == 0);
  }
  return socket_ends(pair);
}

// What is measured ----------------------------------------------------------------------------------------------------

bool put(Port& port, std::size_t length) {
  std::uint8_t* const room = sluice::port::reserve_at_once(port, length);
  if (room == nullptr) return false;
  std::memset(room, 1, length);
  port.commit(length);
  return true;
}

// Spins, or sleeps, until there is something.
enum class Waiting { kSpin, kSleep };

std::size_t receive_some(Port& port, std::span<Frame> burst, Waiting waiting) {
  for (;;) {
    if (const auto count = port.receive(now(), burst)) return count;
    if (waiting == Waiting::kSpin) continue;
    pollfd entry{port.wait_descriptor(), POLLIN, 0};
    if (port.arm()) poll(&entry, 1, 1000);
    port.disarm();
  }
}

[[noreturn]] void echo_for_ever(Port& port, Waiting waiting) {
  std::array<Frame, kBurst> burst;
  for (;;) {
    const auto count = receive_some(port, burst, waiting);
    for (const auto& frame : std::span(burst).first(count)) {
      std::uint8_t* const room = sluice::port::reserve_at_once(port, frame.length);
      if (room == nullptr) continue;
      std::memcpy(room, frame.data, frame.length);
      port.commit(frame.length);
    }
    port.flush(now());
  }
}

void round_trip(benchmark::State& state, const MakeEnds& make, Waiting waiting) {
  const auto length = static_cast<std::size_t>(state.range(0));
  const Ends ends = make();
  Companion echo([&] { echo_for_ever(*ends.far(), waiting); });
  const auto port = ends.near();
  std::array<Frame, 1> burst;
  for (auto _ : state) {
    put(*port, length);
    port->flush(now());
    receive_some(*port, burst, waiting);
    benchmark::DoNotOptimize(burst[0].data[0]);
  }
}

// Keeps a window of frames under way, as a transport does: a socket's buffer would overflow otherwise.
void one_way(benchmark::State& state, const MakeEnds& make) {
  constexpr std::uint64_t kWindow = 512;
  const auto length = static_cast<std::size_t>(state.range(0));
  const Ends ends = make();
  void* shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* arrived = new (shared) std::atomic<std::uint64_t>(0);
  {
    Companion sink([&] {
      const auto port = ends.far();
      std::array<Frame, kBurst> burst;
      for (std::uint64_t all = 0;;) {
        const auto count = receive_some(*port, burst, Waiting::kSpin);
        for (const auto& frame : std::span(burst).first(count)) benchmark::DoNotOptimize(frame.data[0]);
        arrived->store(all += count, std::memory_order_relaxed);
      }
    });
    const auto port = ends.near();
    std::array<Frame, kBurst> none;
    std::uint64_t sent = 0;
    for (auto _ : state) {
      while (sent - arrived->load(std::memory_order_relaxed) > kWindow - kBurst) {
      }
      for (std::size_t i = 0; i < kBurst; ++i) sent += put(*port, length) ? 1u : 0u;
      port->flush(now());
      port->receive(now(), none);
    }
    state.SetItemsProcessed(static_cast<std::int64_t>(arrived->load()));
    state.SetBytesProcessed(state.items_processed() * state.range(0));
  }
  munmap(shared, 4096);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::vector<std::pair<std::string, MakeEnds>> kinds{{"shm", shm_ends},
                                                            {"udp_60000", [] { return udp_ends(0); }},
                                                            {"udp_1472", [] { return udp_ends(1472); }},
                                                            {"unix", unix_ends},
                                                            {"raw_udp", raw_udp_ends}};
  for (const auto& [name, make] : kinds) {
    for (const int length : {62, 82, 1098, 4170}) {
      benchmark::RegisterBenchmark((name + "/one_way").c_str(), one_way, make)->Arg(length)->UseRealTime();
      benchmark::RegisterBenchmark((name + "/round_trip").c_str(), round_trip, make, Waiting::kSpin)
          ->Arg(length)
          ->UseRealTime();
    }
    benchmark::RegisterBenchmark((name + "/round_trip_asleep").c_str(), round_trip, make, Waiting::kSleep)
        ->Arg(82)
        ->UseRealTime();
  }
  benchmark::RunSpecifiedBenchmarks();
}
