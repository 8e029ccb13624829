// Every interleaving of one issuer and one engine over small rings, with the code that runs in production.
//
// How:        both sides are replayed: what one has done is determined by the values that it has loaded, so a state of the world is the
//             shared words, each side's history of loads, and each side's stores that are not visible yet. From every state each
//             next step of either side is tried: a load, one store becoming visible, an engine's next probe. States that were met
//             before (by a 128-bit hash) are not gone through again. What no other side touches is no step of its own.
// Order:      kTso: the issuer's stores become visible in program order, at any later time, as on x86. kWeak: in any order that acquire and
//             release allow. The engine's become visible in program order at any later time (remote/mapped.h, RDMA's WRITEs).
// Waiting:    a look that finds nothing is taken back, and tried again once one of the words it saw has changed. So every run ends.
// Errors:     what is wrong is told in words, with the number of states; a deadlock is wrong, too.
// Threads:    none.
// Source:     Cowbird §4.3 (rings), §5.3 (consistency).
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/effort_test.h"
#include "cowbird/channel_impl.h"
#include "cowbird/engine.h"

namespace sluice::cowbird {
namespace {

enum class StoreOrder : std::uint8_t { kTso, kWeak };
// What is broken on purpose, to see that it is found. kTailBeforeEntry: the tail may become visible before the entry.
enum class Flaw : std::uint8_t { kNone, kTailBeforeEntry };

// One request of 8 bytes of word `word` of the pool; a write's value is its place in the program, from 1.
struct RingOp {
  bool write = false;
  std::uint32_t word = 0;
};

struct Exploration {
  StoreOrder order = StoreOrder::kTso;
  std::uint32_t entries = 2;  // of the metadata ring
  std::vector<RingOp> program{};
  Flaw flaw = Flaw::kNone;
  std::uint64_t most_states = 50'000'000;
};

struct Explored {
  std::uint64_t states = 0;
  std::uint64_t ends = 0;            // states in which all is done
  std::optional<std::string> wrong;  // the first thing found
};

constexpr std::size_t kTail = ChannelLayout::kIssuer + IssuerLine::kTail;
constexpr std::size_t kLastRead =
    ChannelLayout::kProgress + ProgressLine::kHead;  // of what the issuer loads of that line
constexpr std::size_t kPoolWords = 4;
constexpr std::uint32_t kWordBytes = 8;

struct Store {
  std::size_t at;
  std::uint64_t value;
  bool publish;  // not before what precedes it
};
using Words = std::vector<std::uint64_t>;

// A side's code met something that it has not done yet.
struct LoadNeeded {
  std::size_t at;
};
struct InVain {
  std::size_t history;  // before the look
};
struct Wrong {
  std::string what;
};

// What a replayed side has loaded so far, and what it stores meanwhile.
struct Replay {
  const Words& history;
  std::size_t position = 0;
  std::vector<std::size_t> addresses{};  // of the loads
  std::vector<Store> stores{};

  std::uint64_t load(std::size_t at) {
    if (position == history.size()) throw LoadNeeded{at};
    addresses.push_back(at);
    return history[position++];
  }
};

// Issuer --------------------------------------------------------------------------------------------------------------

class ReplayedWords {
 public:
  ReplayedWords(Replay& replay, const bool& making, Flaw flaw) : replay_(&replay), making_(&making), flaw_(flaw) {}
  std::uint64_t load(std::size_t at) const {
    if (*making_ || (at >= ChannelLayout::kErrorLog && at < ChannelLayout::kMetadata)) return 0;  // no engine writes it
    return replay_->load(at);
  }
  void store(std::size_t at, std::uint64_t value) { replay_->stores.push_back({at, value, false}); }
  void publish(std::size_t at, std::uint64_t value) {
    const bool flawed = flaw_ == Flaw::kTailBeforeEntry && at == kTail;
    replay_->stores.push_back({at, value, !flawed});
  }
  void copy_in(std::size_t at, const void* from, std::size_t length) {
    for (std::size_t i = 0; i < length; i += kWordBytes) {
      store(at + i, load_le<std::uint64_t>(static_cast<const std::uint8_t*>(from) + i));
    }
  }
  void copy_out(void* to, std::size_t at, std::size_t length) const {
    for (std::size_t i = 0; i < length; i += kWordBytes) {
      store_le(static_cast<std::uint8_t*>(to) + i, load(at + i));
    }
  }
  // The same bytes again, by the only one who writes them: no order can tell.
  void own(std::size_t) const {}
  void look_soon(std::size_t) const {}

 private:
  Replay* replay_;
  const bool* making_;
  Flaw flaw_;
};

// The program of an issuer: issues what there is room for, looks for completions, checks them.
class IssuerRun {
 public:
  IssuerRun(Replay& replay, const Exploration& what, const ChannelLayout& layout, const std::vector<Region>& regions)
      : replay_(replay),
        what_(what),
        into_(what.program.size()),
        channel_(ReplayedWords(replay, making_, what.flaw), layout, regions) {
    making_ = false;
  }

  // Ends when all is done; throws LoadNeeded, InVain or Wrong otherwise.
  void run() {
    for (std::size_t i = 0; i < what_.program.size(); ++i) {
      while (!issue(i)) collect();
    }
    while (completed_[0] + completed_[1] < what_.program.size()) collect();
  }

 private:
  bool issue(std::size_t i) {
    look_ = replay_.position;
    const RingOp& op = what_.program[i];
    const std::uint64_t value = i + 1;
    const std::int64_t id = op.write ? channel_.async_write(0, &value, op.word * kWordBytes, kWordBytes)
                                     : channel_.async_read(0, op.word * kWordBytes, &into_[i], kWordBytes);
    if (id < 0) return false;
    issued_[op.write].push_back(i);
    look_ = replay_.position;
    return true;
  }
  void collect() {
    Completion done[8];
    const std::size_t n = channel_.collect(done);
    if (n == 0) throw InVain{look_};
    for (std::size_t k = 0; k < n; ++k) check(done[k]);
    look_ = replay_.position;
  }
  void check(const Completion& completion) {
    const bool write = completion.id.is_write();
    if (completion.status != Status::kOk) throw Wrong{"a request failed"};
    if (completion.id.sequence() != ++completed_[write]) throw Wrong{"a completion out of order"};
    if (completed_[write] > issued_[write].size()) throw Wrong{"a completion of nothing"};
    const std::size_t i = issued_[write][completed_[write] - 1];
    if (!write && into_[i] != expected(i)) {
      throw Wrong{fmt::format("read {} brought {} instead of {}", i, into_[i], expected(i))};
    }
  }
  std::uint64_t expected(std::size_t before) const {
    for (std::size_t i = before; i-- > 0;) {
      if (what_.program[i].write && what_.program[i].word == what_.program[before].word) return i + 1;
    }
    return 0;
  }

  Replay& replay_;
  const Exploration& what_;
  bool making_ = true;
  std::size_t look_ = 0;  // where in the history that began which is in vain if nothing is found
  std::vector<std::uint64_t> into_;
  std::vector<std::size_t> issued_[2];
  std::uint64_t completed_[2] = {};
  BasicChannel<ReplayedWords> channel_;
};

// Engine --------------------------------------------------------------------------------------------------------------

constexpr std::uint64_t kTick = 0;  // in an engine's history: time for its next probe

// The compute node as the engine sees it: operations are done word by word, as the history tells.
class ReplayedCompute final : public remote::RemoteMemory {
 public:
  ReplayedCompute(remote::Scheduler& scheduler, Replay& replay, const InstanceLayout& layout, ByteView constant)
      : RemoteMemory(scheduler), replay_(replay), layout_(layout), constant_(constant) {}
  remote::Capabilities capabilities() const override {
    return {.atomics = false, .ordered = true, .max_length = 1u << 20, .name = "replayed"};
  }
  void submit(remote::Operation& operation) override { queue_.push_back(&operation); }
  bool idle() const { return queue_.empty(); }
  // Throws LoadNeeded.
  void work() {
    while (!queue_.empty()) {
      remote::Operation& o = *queue_.front();
      for (std::size_t i = 0; i < o.local.size(); i += kWordBytes) word(o, i);
      queue_.pop_front();
      complete(o, remote::Status::kOk);
    }
  }

 private:
  void word(remote::Operation& o, std::size_t i) {
    const std::uint64_t at = o.remote.address + i;
    std::uint8_t* const local = o.local.data() + i;
    const bool outside = at < layout_.channel_at(0);
    if (o.kind == remote::OpKind::kWrite) {
      replay_.stores.push_back({at - layout_.channel_at(0), load_le<std::uint64_t>(local), true});
    } else if (outside) {
      std::memcpy(local, constant_.data() + at, kWordBytes);
    } else {
      store_le(local, is_issuers(at - layout_.channel_at(0)) ? replay_.load(at - layout_.channel_at(0)) : 0);
    }
  }
  // Words that the issuer writes; of the others the engine reads only what was there at the beginning.
  bool is_issuers(std::size_t at) const {
    return at == kTail || (at >= ChannelLayout::kMetadata && at < layout_.channel().responses);
  }

  Replay& replay_;
  const InstanceLayout& layout_;
  ByteView constant_;
  std::deque<remote::Operation*> queue_;
};

class Pool final : public remote::RemoteMemory {
 public:
  explicit Pool(remote::Scheduler& scheduler) : RemoteMemory(scheduler) {}
  remote::Capabilities capabilities() const override {
    return {.atomics = false, .ordered = true, .max_length = 1u << 20, .name = "pool"};
  }
  void submit(remote::Operation& o) override {
    std::uint8_t* const at = bytes + o.remote.address;
    if (o.kind == remote::OpKind::kWrite) {
      std::memcpy(at, o.local.data(), o.local.size());
    } else {
      std::memcpy(o.local.data(), at, o.local.size());
    }
    complete(o, remote::Status::kOk);
  }
  std::uint8_t bytes[kPoolWords * kWordBytes] = {};
};

// Explorer ------------------------------------------------------------------------------------------------------------

struct Side {
  Words history;
  std::size_t pushed = 0;           // of its stores, into `buffer`
  std::vector<Store> buffer;        // not visible yet
  std::optional<std::size_t> load;  // the next one
};

struct State {
  Words memory;  // of the channel
  Side issuer, engine;
  std::vector<std::pair<std::size_t, std::uint64_t>> vain;  // what the issuer's last look saw
  bool issuer_done = false;
  bool engine_idle = false;
  bool engine_busy = false;     // though idle, it has requests under way
  std::uint64_t last_tail = 0;  // that the engine has seen
  Words pool;
};

class Explorer {
 public:
  explicit Explorer(const Exploration& what) : what_(what) {
    layout_.shape = {.entries = what.entries, .request_bytes = kLine, .response_bytes = kLine};
    header_.resize(InstanceLayout::kChannels);
    layout_.write(header_.data());
    regions_.push_back({.node = 1, .key = 1, .base = 0, .length = kPoolWords * kWordBytes});
    regions_[0].write(header_.data() + InstanceLayout::kRegions);
  }

  Explored run() {
    State first;
    first.memory.resize(layout_.channel().bytes / kWordBytes);
    try {
      advance_issuer(first);
      advance_engine(first);
      std::vector<State> open;
      visit(std::move(first), open);
      while (!open.empty() && result_.states < what_.most_states) {
        const State state = std::move(open.back());
        open.pop_back();
        step(state, open);
      }
      if (!open.empty()) throw Wrong{"too many states"};
    } catch (const Wrong& wrong) {
      result_.wrong = wrong.what;
    }
    return result_;
  }

 private:
  static std::uint64_t& word(State& s, std::size_t at) { return s.memory[at / kWordBytes]; }
  static std::uint64_t word(const State& s, std::size_t at) { return s.memory[at / kWordBytes]; }

  // All steps that are possible from here.
  void step(const State& s, std::vector<State>& open) {
    const bool seen = !s.vain.empty() && std::all_of(s.vain.begin(), s.vain.end(), [&](const auto& look) {
      return word(s, look.first) == look.second;
    });
    std::size_t steps = 0;
    const auto go = [&](auto change) {
      State next = s;
      change(next);
      visit(std::move(next), open);
      ++steps;
    };
    if (s.issuer.load && !seen) {
      go([this](State& n) {
        n.vain.clear();
        n.issuer.history.push_back(word(n, *n.issuer.load));
        advance_issuer(n);
      });
    }
    for (std::size_t i = 0; i < s.issuer.buffer.size(); ++i) {
      if (may_drain(s.issuer.buffer, i)) go([i](State& n) { drain(n, n.issuer, i); });
    }
    if (s.engine.load) {
      go([this](State& n) {
        n.engine.history.push_back(word(n, *n.engine.load));
        if (*n.engine.load == kTail) n.last_tail = n.engine.history.back();
        advance_engine(n);
      });
    }
    if (!s.engine.buffer.empty()) go([](State& n) { drain(n, n.engine, 0); });
    if (s.engine_idle && (s.engine_busy || word(s, kTail) != s.last_tail)) {
      go([this](State& n) {
        n.engine.history.push_back(kTick);
        advance_engine(n);
      });
    }
    if (steps != 0) return;
    if (!s.issuer_done) throw Wrong{"both sides wait for ever"};
    ++result_.ends;
    for (std::size_t w = 0; w < kPoolWords; ++w) {
      std::uint64_t last = 0;
      for (std::size_t i = 0; i < what_.program.size(); ++i) {
        if (what_.program[i].write && what_.program[i].word == w) last = i + 1;
      }
      if (s.pool[w] != last)
        throw Wrong{fmt::format("word {} of the pool ends as {} instead of {}", w, s.pool[w], last)};
    }
  }

  bool may_drain(const std::vector<Store>& buffer, std::size_t i) const {
    if (i == 0) return true;
    if (what_.order == StoreOrder::kTso && what_.flaw == Flaw::kNone) return false;
    return !buffer[i].publish && std::none_of(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(i),
                                              [&](const Store& earlier) { return earlier.at == buffer[i].at; });
  }
  static void drain(State& s, Side& side, std::size_t i) {
    word(s, side.buffer[i].at) = side.buffer[i].value;
    side.buffer.erase(side.buffer.begin() + static_cast<std::ptrdiff_t>(i));
    drain_unseen(s);
  }
  // Words of the engine's that the issuer never loads: no step.
  static void drain_unseen(State& s) {
    auto& buffer = s.engine.buffer;
    while (!buffer.empty() && buffer[0].at > kLastRead && buffer[0].at < ChannelLayout::kMetadata) {
      word(s, buffer[0].at) = buffer[0].value;
      buffer.erase(buffer.begin());
    }
  }
  static void take_stores(Side& side, const Replay& replay) {
    side.buffer.insert(side.buffer.end(), replay.stores.begin() + static_cast<std::ptrdiff_t>(side.pushed),
                       replay.stores.end());
    side.pushed = replay.stores.size();
  }

  void advance_issuer(State& s) {
    s.issuer.load.reset();
    Replay replay{.history = s.issuer.history};
    try {
      IssuerRun(replay, what_, layout_.channel(), regions_).run();
      s.issuer_done = true;
    } catch (const LoadNeeded& needed) {
      s.issuer.load = needed.at;
    } catch (const InVain& look) {
      for (std::size_t i = look.history; i < replay.position; ++i) {
        s.vain.emplace_back(replay.addresses[i], s.issuer.history[i]);
      }
      s.issuer.load = replay.addresses[look.history];
      s.issuer.history.resize(look.history);
    }
    take_stores(s.issuer, replay);
  }

  void advance_engine(State& s) {
    Side& side = s.engine;
    side.load.reset();
    s.engine_idle = s.engine_busy = false;
    Replay replay{.history = side.history};
    remote::Scheduler scheduler;
    ReplayedCompute compute(scheduler, replay, layout_, header_);
    Pool pool(scheduler);
    Engine engine(scheduler, compute, {remote::NodeId(0), remote::RegionKey(1), 0}, layout_, 0, pool, config_);
    scheduler.spawn(engine.run());
    Time now;
    try {
      for (;;) {
        scheduler.run(now);
        if (engine.broken()) throw Wrong{"the engine read what made no sense"};
        if (!compute.idle()) {
          compute.work();
        } else if (replay.position == side.history.size()) {
          s.engine_idle = true;
          s.engine_busy = engine.under_way() != 0;
          break;
        } else {
          replay.load(0);  // the tick
          now = now + config_.probe_least;
        }
      }
    } catch (const LoadNeeded& needed) {
      side.load = needed.at;
    }
    if (engine.counters().malformed != 0) throw Wrong{"the engine took an entry for malformed"};
    take_stores(side, replay);
    s.pool.resize(kPoolWords);
    for (std::size_t w = 0; w < kPoolWords; ++w) s.pool[w] = load_le<std::uint64_t>(pool.bytes + w * kWordBytes);
    drain_unseen(s);
  }

  // Two independent 64-bit hashes of all that a state consists of.
  struct Hash {
    std::uint64_t a = 0x9e3779b97f4a7c15, b = 0xc2b2ae3d27d4eb4f;
    void add(std::uint64_t v) {
      a = (a ^ v) * 0xff51afd7ed558ccd;
      a ^= a >> 32;
      b = (b + v) * 0xc4ceb9fe1a85ec53;
      b ^= b >> 29;
    }
    void add(const Side& side) {
      add(side.history.size());
      for (const auto v : side.history) add(v);
      add(side.buffer.size());
      for (const Store& store : side.buffer) {
        add(store.at);
        add(store.value);
      }
    }
    friend bool operator==(const Hash&, const Hash&) = default;
  };
  struct Hasher {
    std::size_t operator()(const Hash& hash) const { return hash.a; }
  };

  void visit(State state, std::vector<State>& open) {
    Hash hash;
    for (const auto v : state.memory) hash.add(v);
    hash.add(state.issuer);
    hash.add(state.engine);
    hash.add(state.vain.size());
    for (const auto& [at, value] : state.vain) hash.add(value);
    if (!visited_.insert(hash).second) return;
    ++result_.states;
    open.push_back(std::move(state));
  }

  const Exploration& what_;
  InstanceLayout layout_{};
  EngineConfig config_{};
  std::vector<std::uint8_t> header_;
  std::vector<Region> regions_;
  std::unordered_set<Hash, Hasher> visited_;
  Explored result_;
};

// Completions come once and in order; a read brings what the last write before it in the program has written, and so ends the pool.
Explored explore(const Exploration& what) { return Explorer(what).run(); }

RingOp read_of(std::uint32_t word) { return {.write = false, .word = word}; }
RingOp write_of(std::uint32_t word) { return {.write = true, .word = word}; }

// The first `usual` requests of the program, or as many as SLUICE_REQUESTS says: a request more takes ten times as long, and so does the
// address sanitizer, under which two are enough.
void expect_all_well(Exploration what, std::size_t usual) {
  const auto most = from_environment("SLUICE_REQUESTS", kAddressSanitizer ? 2 : usual);
  if (what.program.size() > most) what.program.resize(most);
  const Explored explored = explore(what);
  EXPECT_EQ(explored.wrong.value_or(""), "");
  EXPECT_GT(explored.ends, 0u);
  fmt::print("{} states, {} ends\n", explored.states, explored.ends);
}

TEST(Rings, EveryInterleavingOfAReadAfterAWriteIsRightOnX86) {
  expect_all_well({.order = StoreOrder::kTso, .entries = 2, .program = {write_of(0), read_of(0)}}, 2);
}

TEST(Rings, EveryInterleavingIsRightThroughRingsThatFillAndTurnOnX86) {
  expect_all_well(
      {.order = StoreOrder::kTso, .entries = 2, .program = {write_of(0), read_of(0), write_of(0), read_of(0)}}, 4);
}

TEST(Rings, EveryInterleavingIsRightAsAcquireAndReleaseAllow) {
  expect_all_well({.order = StoreOrder::kWeak, .entries = 2, .program = {write_of(0), read_of(0), write_of(0)}}, 3);
}

TEST(Rings, EveryInterleavingOfReadsAndWritesOfTwoWordsIsRight) {
  expect_all_well(
      {.order = StoreOrder::kTso, .entries = 4, .program = {write_of(0), write_of(1), read_of(0), write_of(0)}}, 3);
}

TEST(Rings, ATailThatMayBeSeenBeforeItsEntryIsFound) {
  const Explored explored = explore(
      {.order = StoreOrder::kWeak, .entries = 2, .program = {write_of(0), read_of(0)}, .flaw = Flaw::kTailBeforeEntry});
  EXPECT_TRUE(explored.wrong.has_value());
}

}  // namespace
}  // namespace sluice::cowbird
