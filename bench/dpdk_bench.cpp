// The box between two DPDK devices, on one core: receive a burst, judge it, send what is left of it and what the box has made.
//
// Null:   net_null to net_null, as `dpdk-testpmd` does it: 64-byte frames that are no RoCE, seen and passed.
// Ring:   net_ring to net_ring. Under the clock: from the receive burst to the send burst, buffers taken and given back included. Not
//         under it: making the packets, and the sink, which verifies the ICRC of every one.
// Beside dpdk-testpmd in one run: bench/beside_testpmd.py. Buffers of 512 bytes on both sides: larger ones
//         without huge pages share few sets of the caches.
// Arguments:  connections, tracked words or keys, Zipf (1) or uniform (0).
#include <benchmark/benchmark.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include <array>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/prefetch.h"
#include "bench/swordbox_world.h"
#include "dpdk/dpdk_port.h"
#include "dpdk/eal.h"

namespace sluice::swordbox {
namespace {

constexpr std::uint32_t kRoom = 384;
constexpr std::size_t kBursts = 30;  // at once in a ring of 1,024

std::unique_ptr<dpdk::Device> device(const char* driver, const char* arguments) {
  auto made = dpdk::Device::open({driver, arguments}, kRoom);
  SLUICE_CHECK(made.has_value());
  dpdk::enter_thread();
  return std::move(*made);
}

// The two rings of all runs, empty between them: net_ring gives none of its memory back when a device is closed.
struct Rings {
  std::unique_ptr<dpdk::Device> in = device("ring", "");
  std::unique_ptr<dpdk::Device> out = device("ring", "");
};
Rings& rings() {
  static Rings* const all = new Rings;  // ends with the process
  return *all;
}

// What the box makes, in buffers of the way out.
class Outbox final : public port::FrameSink {
 public:
  explicit Outbox(rte_mempool* pool) : pool_(pool) {}
  ~Outbox() override { rte_pktmbuf_free_bulk(blank_.data(), static_cast<unsigned>(blank_count_)); }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  std::uint8_t* reserve(std::size_t) override {
    if (made_count_ == made_.size()) return nullptr;
    if (blank_count_ == 0) {
      if (rte_pktmbuf_alloc_bulk(pool_, blank_.data(), kBurst) != 0) return nullptr;
      blank_count_ = kBurst;
      for (rte_mbuf* const buffer : blank_) {
        prefetch(rte_pktmbuf_mtod(buffer, std::uint8_t*));
        prefetch(rte_pktmbuf_mtod(buffer, std::uint8_t*) + 64);
      }
    }
    return rte_pktmbuf_mtod(blank_[blank_count_ - 1], std::uint8_t*);
  }
  void commit(std::size_t length) override {
    rte_mbuf* const buffer = blank_[--blank_count_];
    buffer->data_len = static_cast<std::uint16_t>(length);
    buffer->pkt_len = static_cast<std::uint32_t>(length);
    made_[made_count_++] = buffer;
  }
  void send(std::uint16_t port) {
    if (made_count_ == 0) return;
    const std::uint16_t sent = rte_eth_tx_burst(port, 0, made_.data(), made_count_);
    rte_pktmbuf_free_bulk(made_.data() + sent, made_count_ - sent);
    made_count_ = 0;
  }

 private:
  rte_mempool* pool_;
  std::array<rte_mbuf*, kBurst> blank_{};  // taken from the pool, not used yet
  std::size_t blank_count_ = 0;
  std::array<rte_mbuf*, 128> made_{};
  std::uint16_t made_count_ = 0;
};

// One burst from one device to the other. Returns how many were received.
std::size_t turn(Box& box, const dpdk::Device& in, const dpdk::Device& out, Outbox& outbox) {
  std::array<rte_mbuf*, kBurst> buffers;
  std::array<rte_mbuf*, kBurst> leave;
  std::array<rte_mbuf*, kBurst> end;
  std::array<Packet, kBurst> packets;
  const std::uint16_t n = rte_eth_rx_burst(in.number(), 0, buffers.data(), kBurst);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t room = std::uint32_t{buffers[i]->buf_len} - buffers[i]->data_off;
    packets[i].frame = {rte_pktmbuf_mtod(buffers[i], std::uint8_t*), buffers[i]->pkt_len, room};
    prefetch(packets[i].frame.data);
    prefetch(packets[i].frame.data + 64);
  }
  box.process(Time(), {packets.data(), n}, outbox);
  std::uint16_t leaving = 0;
  unsigned ending = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (packets[i].action != Action::kForward) {
      end[ending++] = buffers[i];
      continue;
    }
    buffers[i]->pkt_len = packets[i].frame.length;
    buffers[i]->data_len = static_cast<std::uint16_t>(packets[i].frame.length);
    leave[leaving++] = buffers[i];
  }
  const std::uint16_t sent = rte_eth_tx_burst(out.number(), 0, leave.data(), leaving);
  rte_pktmbuf_free_bulk(leave.data() + sent, leaving - sent);
  rte_pktmbuf_free_bulk(end.data(), ending);
  outbox.send(out.number());
  return n;
}

// Packets from a world into a ring, through the box, into another ring, into a sink.
class Track {
 public:
  explicit Track(World& world) : world_(world) {}

  // Makes bursts by `make`, which the way in holds.
  template <class Make>
  void fill(Make make) {
    for (std::size_t b = 0; b < kBursts; ++b) {
      make();
      World::Saved saved;
      world_.save(saved);
      std::array<rte_mbuf*, kBurst> buffers;
      SLUICE_CHECK(rte_pktmbuf_alloc_bulk(in_->pool(), buffers.data(), kBurst) == 0);
      for (std::size_t k = 0; k < kBurst; ++k) {
        std::memcpy(rte_pktmbuf_mtod(buffers[k], std::uint8_t*), saved.bytes[k].data(), saved.lengths[k]);
        buffers[k]->pkt_len = saved.lengths[k];
        buffers[k]->data_len = static_cast<std::uint16_t>(saved.lengths[k]);
      }
      SLUICE_CHECK(rte_eth_tx_burst(in_->number(), 0, buffers.data(), kBurst) == kBurst);
    }
  }
  std::size_t pass() {
    std::size_t packets = 0;
    while (const std::size_t n = turn(world_.box(), *in_, *out_, outbox_)) packets += n;
    return packets;
  }
  // Takes all that has come out. Returns how many.
  std::size_t drain() {
    std::array<rte_mbuf*, kBurst> buffers;
    std::size_t packets = 0;
    while (const std::uint16_t n = rte_eth_rx_burst(out_->number(), 0, buffers.data(), kBurst)) {
      packets += n;
      for (std::size_t i = 0; i < n; ++i) {
        wire::ParsedFrame parsed;
        const ByteView bytes{rte_pktmbuf_mtod(buffers[i], const std::uint8_t*), buffers[i]->pkt_len};
        SLUICE_CHECK(wire::parse_and_verify(bytes, parsed) == wire::Verdict::kOk);
      }
      rte_pktmbuf_free_bulk(buffers.data(), n);
    }
    return packets;
  }

 private:
  World& world_;
  const std::unique_ptr<dpdk::Device>& in_ = rings().in;
  const std::unique_ptr<dpdk::Device>& out_ = rings().out;
  Outbox outbox_{out_->pool()};
};

template <class Make>
void run(benchmark::State& state, World& world, Make make) {
  Track track(world);
  std::size_t packets = 0;
  std::size_t verified = 0;
  double seconds = 0;
  CycleClock clock;
  const auto before = world.box().counters();
  for ([[maybe_unused]] auto unused : state) {
    track.fill(make);
    const double start = thread_seconds();
    const std::size_t passed = track.pass();
    const double took = thread_seconds() - start;
    state.SetIterationTime(took);
    seconds += took;
    clock.look();
    packets += passed;
    verified += track.drain();
  }
  state.counters["verified"] = static_cast<double>(verified) / static_cast<double>(packets);
  state.counters["cycles"] = seconds / static_cast<double>(packets) / clock.seconds();
  report(state, world, before, packets);
}

void NullForward(benchmark::State& state) {
  World world(64, 16, true);
  const auto in = device("null", "size=64");
  const auto out = device("null", "size=64");
  Outbox outbox(out->pool());
  std::size_t packets = 0;
  for ([[maybe_unused]] auto unused : state) packets += turn(world.box(), *in, *out, outbox);
  state.SetItemsProcessed(static_cast<std::int64_t>(packets));
}
BENCHMARK(NullForward);

// The devices, the buffers and the loop alone.
void RingWithoutBox(benchmark::State& state) {
  const auto& [in, out] = rings();
  std::array<rte_mbuf*, kBurst> buffers;
  SLUICE_CHECK(rte_pktmbuf_alloc_bulk(in->pool(), buffers.data(), kBurst) == 0);
  SLUICE_CHECK(rte_eth_tx_burst(in->number(), 0, buffers.data(), kBurst) == kBurst);
  std::size_t packets = 0;
  bool forth = true;
  for ([[maybe_unused]] auto unused : state) {
    const auto& from = forth ? in : out;
    const auto& to = forth ? out : in;
    const std::uint16_t n = rte_eth_rx_burst(from->number(), 0, buffers.data(), kBurst);
    packets += rte_eth_tx_burst(to->number(), 0, buffers.data(), n);
    forth = !forth;
  }
  for (const std::uint16_t ring : {in->number(), out->number()}) {
    rte_pktmbuf_free_bulk(buffers.data(), rte_eth_rx_burst(ring, 0, buffers.data(), kBurst));
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(packets));
}
BENCHMARK(RingWithoutBox);

// READs and their answers: of no interest to the rule (tracked 0), or of old nodes, steered.
void RingReads(benchmark::State& state, bool steered) {
  const auto connections = static_cast<std::uint32_t>(state.range(0));
  const auto keys = static_cast<std::uint32_t>(state.range(1));
  World world(connections, keys, true);
  run(state, world,
      steered ? ReadLoad::steered(world, connections, keys, state.range(2) != 0)
              : ReadLoad::unwatched(world, connections));
}
void RingForward(benchmark::State& state) { RingReads(state, false); }
void RingSteerReads(benchmark::State& state) { RingReads(state, true); }
BENCHMARK(RingForward)->Args({64, 1024, 0})->Args({4096, 1024, 0})->UseManualTime();
BENCHMARK(RingSteerReads)->ArgsProduct({{64, 4096}, {1024, 1 << 20}, {0, 1}})->UseManualTime();

void RingReplaceAtomics(benchmark::State& state) {
  const auto connections = static_cast<std::uint32_t>(state.range(0));
  const auto words = static_cast<std::uint32_t>(state.range(1));
  World world(connections, 16, false);
  run(state, world, AddLoad(world, connections, words, state.range(2) != 0));
}
BENCHMARK(RingReplaceAtomics)->ArgsProduct({{64, 4096}, {1024, 1 << 20}, {0, 1}})->UseManualTime();

}  // namespace
}  // namespace sluice::swordbox
