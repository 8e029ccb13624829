// A rack of clients, one memory node and a box, for benchmarks: makes bursts of packets, keeps them, and has them judged.
//
// Units:      frames of at most Saved's length. Threads: one owner.
#pragma once

#include <benchmark/benchmark.h>
#include <time.h>

#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/rng.h"
#include "swordbox/box.h"
#include "swordbox/clover_rule.h"
#include "wire/icrc.h"
#include "workload/zipf.h"

namespace sluice::swordbox {

inline constexpr std::size_t kBurst = 32;
inline constexpr std::uint64_t kBase = 0x10'0000;
inline constexpr std::uint64_t kStride = 0x100;
inline constexpr std::uint32_t kNode = 64;

class NoOutbox final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t) override { return room_.data(); }
  void commit(std::size_t) override { ++frames; }
  std::uint64_t frames = 0;

 private:
  std::array<std::uint8_t, port::kMaxFrame> room_{};
};

inline std::uint64_t free_word(std::uint64_t key) { return std::uint64_t{1} << 63 | key; }

// Memory that this process has touched, in bytes.
inline double resident() {
  std::ifstream pages("/proc/self/statm");
  double all = 0;
  double touched = 0;
  pages >> all >> touched;
  return touched * 4096;
}

// Time of this thread alone: a machine is seldom all ours.
inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// How long a cycle lasts, from a chain of multiplications that wait for one another: clocks drift within seconds.
class CycleClock {
 public:
  // Now and then, beside what is measured.
  void look() {
    constexpr int kTurns = 200;
    constexpr int kCycles =
        3 * 40;  // a turn: forty multiplications of three each, as all x86-64 processors of the last fifteen years take
    std::uint64_t x = 3;
    const double start = thread_seconds();
    for (int i = 0; i < kTurns; ++i) asm volatile(".rept 40\n imul %0, %0\n .endr" : "+r"(x));
    seconds_ += thread_seconds() - start;
    cycles_ += kTurns * kCycles;
  }
  double seconds() const { return cycles_ == 0 ? 0 : seconds_ / static_cast<double>(cycles_); }

 private:
  double seconds_ = 0;
  std::int64_t cycles_ = 0;
};

// Frames are made from templates; the fields that change are patched like the box patches.
class World {
 public:
  World(std::uint32_t connections, std::uint32_t keys, bool steer) : psn_(connections, 100) {
    BoxConfig config;
    config.connections.connections = std::max(connections, 64u);
    box_ = std::make_unique<Box>(config);
    CloverConfig rule;
    rule.regions = {{server_, wire::RKey(7)}};
    rule.tracked_keys = std::max(keys, 16u);
    rule.history_entries = std::max<std::uint32_t>(keys * (keys > 100000 ? 2 : 8), 1024);
    rule.hot_from = 1;
    rule.ring = 64;
    if (steer) box_->set_rule(std::make_unique<CloverRule>(rule, box_->connections(), box_->counters()));
    for (std::uint32_t i = 0; i < connections; ++i) {
      box_->connections().announce(Time(), {.address = {client(i), server_},
                                            .qpn = {Qpn(0x1000 + i), Qpn(0x2000 + i)},
                                            .starting_psn = {Psn(100), Psn(100)},
                                            .mtu = 1024});
      to_server_.push_back(headers(client(i), server_));
      to_client_.push_back(headers(server_, client(i)));
    }
  }

  // Writes a frame into place `k` of the burst.
  template <class Body>
  void put(std::size_t k, std::uint32_t connection, bool request, wire::Opcode opcode, std::uint32_t psn,
           std::size_t size, Body body) {
    std::uint8_t* const frame = buffers_[k].data();
    const auto& h = request ? to_server_[connection] : to_client_[connection];
    const std::size_t at = h.write(frame, wire::Bth::kSize + size);
    wire::Bth{.opcode = opcode,
              .destination = Qpn((request ? 0x2000u : 0x1000u) + connection),
              .ack_request = true,
              .psn = Psn(psn)}
        .write(frame + at);
    body(frame + at + wire::Bth::kSize);
    packets_[k] = Packet{};
    packets_[k].frame = {frame, static_cast<std::uint32_t>(h.seal(frame, at + wire::Bth::kSize + size))};
  }
  void write_node(std::size_t k, std::uint32_t c, std::uint64_t address, std::uint64_t key) {
    put(k, c, true, wire::Opcode::kRcWriteOnly, psn_[c]++, 16 + kNode, [&](std::uint8_t* p) {
      wire::Reth{address, wire::RKey(7), kNode}.write(p);
      std::memset(p + 16, 0, kNode);
      store_le(p + 16, free_word(key));
      store_le(p + 24, key);
    });
  }
  void cas(std::size_t k, std::uint32_t c, std::uint64_t at, std::uint64_t node, std::uint64_t key) {
    put(k, c, true, wire::Opcode::kRcCompareSwap, psn_[c]++, 28, [&](std::uint8_t* p) {
      wire::AtomicEth{at, wire::RKey(7), node | std::uint64_t{1} << 48, free_word(key)}.write(p);
    });
  }
  void read(std::size_t k, std::uint32_t c, std::uint64_t address) {
    put(k, c, true, wire::Opcode::kRcReadRequest, psn_[c]++, 16, [&](std::uint8_t* p) {
      wire::Reth{address, wire::RKey(7), kNode}.write(p);
    });
  }
  void ack(std::size_t k, std::uint32_t c, std::uint32_t psn) {
    put(k, c, false, wire::Opcode::kRcAcknowledge, psn, 4, [](std::uint8_t* p) { wire::Aeth::ack(1).write(p); });
  }
  void swapped(std::size_t k, std::uint32_t c, std::uint32_t psn, std::uint64_t prior) {
    put(k, c, false, wire::Opcode::kRcAtomicAcknowledge, psn, 12, [&](std::uint8_t* p) {
      wire::Aeth::ack(1).write(p);
      wire::AtomicAckEth{prior}.write(p + 4);
    });
  }
  void data(std::size_t k, std::uint32_t c, std::uint32_t psn) {
    put(k, c, false, wire::Opcode::kRcReadResponseOnly, psn, 4 + kNode, [](std::uint8_t* p) {
      wire::Aeth::ack(1).write(p);
      std::memset(p + 4, 0, kNode);
    });
  }
  void add(std::size_t k, std::uint32_t c, std::uint64_t at) {
    put(k, c, true, wire::Opcode::kRcFetchAdd, psn_[c]++, 28, [&](std::uint8_t* p) {
      wire::AtomicEth{at, wire::RKey(7), 1, 0}.write(p);
    });
  }
  // Lets the box replace atomics, and makes every word and every connection known to it: connection 0 is the shared one.
  void share(std::uint32_t words) {
    MultiplexerConfig config;
    config.regions = {{.server = server_, .rkey = wire::RKey(7), .address = kBase, .length = 0, .writable = true}};
    config.words = words;
    config.ring = 64;
    box_->set_multiplexer(std::make_unique<Multiplexer>(config, box_->connections(), box_->counters()));
    const auto connections = static_cast<std::uint32_t>(psn_.size());
    // The first operation of a connection, and on a word, passes by itself. Connection 0 comes last, so that none is shared before.
    for (std::uint32_t c = connections; c-- > 0;) learn(c, 0);
    for (std::uint32_t i = 1; i < words; ++i) learn(connections - 1, i);
    add(0, 0, word(0));
    out_psn_ = psn_[0] - 1;
    settle();
    ack(0, 0, out_psn_++);
    settle();
  }
  void learn(std::uint32_t c, std::uint32_t i) {
    add(0, c, word(i));
    settle();
    swapped(0, c, psn_[c] - 1, 0);
    settle();
  }
  void shared_ack(std::size_t k) { ack(k, 0, out_psn_++); }
  static std::uint64_t word(std::uint64_t i) { return kBase + i * 8; }
  // One by one: for what the clock should not see.
  void settle(std::size_t n = 1) { box_->process(now, {packets_.data(), n}, outbox_); }
  // Links a first node of each key, so that its tail is known.
  void teach(std::uint32_t keys) {
    for (std::uint32_t key = 0; key < keys; ++key) {
      const std::uint32_t c = key % static_cast<std::uint32_t>(psn_.size());
      write_node(0, c, address(key, 0), key);
      settle();
      ack(0, c, psn_[c] - 1);
      settle();
      cas(0, c, address(key, 1), address(key, 0), key);
      settle();
      swapped(0, c, psn_[c] - 1, free_word(key));
      settle();
    }
    // Every connection has to prove its rights once.
    for (std::uint32_t c = 0; c < psn_.size(); ++c) append(c, c % keys);
  }
  void append(std::uint32_t c, std::uint32_t key) {
    const std::uint64_t node = next_node(key);
    write_node(0, c, node, key);
    settle();
    ack(0, c, psn_[c] - 1);
    settle();
    cas(0, c, address(key, 0), node, key);
    settle();
    swapped(0, c, psn_[c] - 1, free_word(key));
    settle();
  }
  // Three nodes a key take turns.
  std::uint64_t next_node(std::uint32_t key) {
    if (turns_.size() <= key) turns_.resize(key + 1);
    return address(key, 1 + (turns_[key]++ & 1u));
  }
  static std::uint64_t address(std::uint64_t key, std::uint64_t which) { return kBase + (key * 4 + which) * kStride; }
  static wire::Gid client(std::uint32_t i) { return wire::Gid::from(wire::Ipv4Address{0x0A4E0000u + i}); }

  // Keeps a burst as it is, to be judged later under the clock.
  struct Saved {
    std::array<std::array<std::uint8_t, 160>, kBurst> bytes;
    std::array<std::uint32_t, kBurst> lengths;
  };
  void save(Saved& out) const {
    for (std::size_t k = 0; k < kBurst; ++k) {
      std::memcpy(out.bytes[k].data(), buffers_[k].data(), packets_[k].frame.length);
      out.lengths[k] = packets_[k].frame.length;
    }
  }
  void load(const Saved& in) {
    for (std::size_t k = 0; k < kBurst; ++k) {
      std::memcpy(buffers_[k].data(), in.bytes[k].data(), in.bytes[k].size());
      packets_[k].frame = {buffers_[k].data(), in.lengths[k]};
    }
  }

  Box& box() { return *box_; }
  // That the box and this world around it have come to take.
  double megabytes() const { return (resident() - resident_before_) / (1 << 20); }
  std::uint32_t psn(std::uint32_t c) const { return psn_[c]; }
  Time now;

 private:
  static wire::HeaderTemplate headers(const wire::Gid& from, const wire::Gid& to) {
    wire::AddressVector v;
    v.source = from;
    v.destination = to;
    return wire::HeaderTemplate(v);
  }
  double resident_before_ = resident();
  wire::Gid server_ = wire::Gid::from(wire::Ipv4Address{0x0A4D0001u});
  std::unique_ptr<Box> box_;
  std::vector<std::uint32_t> psn_;
  std::vector<std::uint32_t> turns_;
  std::vector<wire::HeaderTemplate> to_server_;
  std::vector<wire::HeaderTemplate> to_client_;
  std::array<std::array<std::uint8_t, 512>, kBurst> buffers_{};
  std::array<Packet, kBurst> packets_{};
  NoOutbox outbox_;
  std::uint32_t out_psn_ = 0;  // of the next packet on the shared connection
};

// Draws keys before the clock runs.
class KeyDraw {
 public:
  KeyDraw(std::uint32_t keys, bool zipf) : zipf_(keys, workload::Zipf::kYcsbTheta), count_(keys), skewed_(zipf) {}
  std::uint32_t draw() { return static_cast<std::uint32_t>(skewed_ ? zipf_.draw(rng_) : rng_.below(count_)); }

 private:
  workload::Zipf zipf_;
  Rng rng_{1};
  std::uint32_t count_;
  bool skewed_;
};

// Loads: each call makes a burst of requests, the next one their answers.

// READs, of nodes of all keys that have become old (steered), or of no interest to any rule.
class ReadLoad {
 public:
  static ReadLoad steered(World& world, std::uint32_t connections, std::uint32_t keys, bool zipf) {
    world.teach(keys);
    for (std::uint32_t key = 0; key < keys; ++key) world.append(key % connections, key);
    return {world, connections, KeyDraw(keys, zipf)};
  }
  static ReadLoad unwatched(World& world, std::uint32_t connections) { return {world, connections, std::nullopt}; }

  void operator()() {
    for (std::size_t k = 0; k < kBurst; ++k) {
      if (answers_) {
        world_.data(k, who_[k], psn_[k]);
        continue;
      }
      who_[k] = static_cast<std::uint32_t>(rng_.below(connections_));
      psn_[k] = world_.psn(who_[k]);
      world_.read(k, who_[k], keys_ ? World::address(keys_->draw(), 0) : 0x9000'0000);
    }
    answers_ = !answers_;
  }

 private:
  ReadLoad(World& world, std::uint32_t connections, std::optional<KeyDraw> keys)
      : world_(world), connections_(connections), keys_(std::move(keys)) {}

  World& world_;
  std::uint32_t connections_;
  std::optional<KeyDraw> keys_;
  Rng rng_{2};
  bool answers_ = false;
  std::array<std::uint32_t, kBurst> who_{};
  std::array<std::uint32_t, kBurst> psn_{};
};

// FAAs of all connections on words, to be replaced by WRITEs on a shared one, and the server's ACKs.
class AddLoad {
 public:
  AddLoad(World& world, std::uint32_t connections, std::uint32_t words, bool zipf)
      : world_(world), connections_(connections), words_(words, zipf) {
    world.share(words);
  }
  void operator()() {
    for (std::size_t k = 0; k < kBurst; ++k) {
      if (answers_) {
        world_.shared_ack(k);
      } else {
        world_.add(k, static_cast<std::uint32_t>(rng_.below(connections_)), World::word(words_.draw()));
      }
    }
    answers_ = !answers_;
  }

 private:
  World& world_;
  std::uint32_t connections_;
  KeyDraw words_;
  Rng rng_{4};
  bool answers_ = false;
};

// What the box takes of memory, and the shares of its verdicts since `before`.
inline void report(benchmark::State& state, World& world, const Counters& before, std::size_t packets) {
  state.SetItemsProcessed(static_cast<std::int64_t>(packets));
  state.counters["MB"] = world.megabytes();
  double tables = 0;
  for (const MemoryUse& use : world.box().account()) tables += static_cast<double>(use.bytes);
  state.counters["tables_MB"] = tables / (1 << 20);  // the box's, when all of them are used
  const auto& after = world.box().counters();
  for (std::size_t i = 0; i < kVerdicts; ++i) {
    const auto n = after.verdicts[i] - before.verdicts[i];
    if (n != 0)
      state.counters[std::string(kVerdictTable[i].name)] = static_cast<double>(n) / static_cast<double>(packets);
  }
}

}  // namespace sluice::swordbox
