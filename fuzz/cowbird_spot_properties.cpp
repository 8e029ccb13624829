// Spot engines over a memory of which the script says what takes effect when, and what is never heard of again.
#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cowbird/engine.h"
#include "fuzz/cowbird_properties.h"
#include "fuzz/cowbird_world.h"
#include "fuzz/script.h"
#include "remote/mapped.h"

namespace sluice::fuzz {
namespace {

using cowbird::ChannelLayout;
using remote::Operation;
using remote::OpKind;

constexpr Duration kMaxFlight = Duration::microseconds(150);
constexpr Duration kLeavesWithin = Duration::microseconds(300);
constexpr remote::NodeId kCompute{1};
constexpr remote::RegionKey kBlockKey{0xB1};

bool is_empty(MutableBytes bytes) { return bytes.data() == nullptr; }

// What a connection that is over has left under way.
struct Late {
  Time until;
  std::uint32_t node = 0;
  std::uint32_t key = 0;
  std::uint64_t address = 0;
  Bytes bytes;
};

// One side's memory, for one engine: operations wait until the script has them done.
class Wire final : public remote::RemoteMemory {
 public:
  struct Judge {
    virtual ~Judge() = default;
    // The place is one that the engine may touch.
    virtual void check(const Operation& operation) = 0;
    // Empty: no such right.
    virtual MutableBytes bytes_at(const Operation& operation) = 0;
    // Whether the memory knows the node, and it can be reached.
    virtual remote::Status reaches(remote::NodeId node) = 0;
  };
  Wire(remote::Scheduler& scheduler, Judge& judge, bool ordered)
      : RemoteMemory(scheduler), judge_(judge), ordered_(ordered) {}
  remote::Capabilities capabilities() const override {
    return {.atomics = false, .ordered = ordered_, .max_length = 1u << 20, .name = "wire"};
  }
  void submit(Operation& operation) override {
    judge_.check(operation);
    const remote::Status status = shut_out ? remote::Status::kUnreachable : judge_.reaches(operation.remote.node);
    if (status != remote::Status::kOk) return complete(operation, status);
    open_.push_back(&operation);
  }
  // The next, or without an order another one. Its answer may be all that is lost.
  void work(Time now, std::uint8_t which) {
    if (open_.empty()) return;
    const auto it = open_.begin() + (ordered_ ? 0 : which % static_cast<std::ptrdiff_t>(open_.size()));
    Operation& operation = **it;
    open_.erase(it);
    if (operation.kind != OpKind::kWrite || now < operation.not_after) return complete(operation, execute(operation));
    // What stands behind it must not pass it.
    std::deque<Operation*> late{&operation};
    if (ordered_) late.insert(late.end(), open_.begin(), open_.end());
    if (ordered_) open_.clear();
    for (Operation* const one : late) complete(*one, remote::Status::kUnreachable);
  }
  bool idle() const { return open_.empty(); }
  // The connection to the node is lost: of what was under way some has taken effect, some still will and some never.
  void lose(Time now, remote::NodeId node, std::uint8_t how, std::vector<Late>* late, bool is_heard) {
    std::deque<Operation*> lost;
    const std::size_t most = !ordered_ && is_heard && late != nullptr && how % 2 == 0
                                 ? 1
                                 : open_.size();  // without a connection, one may be lost alone
    std::erase_if(open_, [&](Operation* o) {
      if (o->remote.node != node || lost.size() == most) return false;
      lost.push_back(o);
      return true;
    });
    std::size_t done = how / 3 % 8;  // first
    for (Operation* const operation : lost) {
      const bool write = operation->kind == OpKind::kWrite;
      const bool now_done = done != 0 || how % 3 == 0;
      if (done != 0) --done;
      if (write && now_done) static_cast<void>(execute(*operation));
      if (write && !now_done && how % 3 == 1 && late != nullptr)
        late->push_back({std::min(now, operation->not_after) + kMaxFlight, node.value, operation->remote.key.value,
                         operation->remote.address, Bytes(operation->local.begin(), operation->local.end())});
      if (!ordered_) how = static_cast<std::uint8_t>(how / 3 + 85 * (how % 3));
      if (is_heard) complete(*operation, remote::Status::kUnknown);
    }
  }
  bool shut_out = false;

 private:
  remote::Status execute(Operation& operation) {
    const MutableBytes bytes = judge_.bytes_at(operation);
    if (is_empty(bytes)) return remote::Status::kAccessDenied;
    if (operation.kind == OpKind::kWrite) {
      std::ranges::copy(operation.local, bytes.begin());
    } else {
      std::ranges::copy(bytes, operation.local.begin());
    }
    return remote::Status::kOk;
  }

  Judge& judge_;
  bool ordered_;
  std::deque<Operation*> open_;
};

// The first node's memory is in the engine's process.
class PartlyNear final : public remote::RemoteMemory {
 public:
  PartlyNear(remote::MappedMemory& near, Wire& far) : RemoteMemory(far.scheduler()), near_(near), far_(far) {}
  remote::Capabilities capabilities() const override { return far_.capabilities(); }
  remote::MappedMemory* mapped() override { return &near_; }
  void submit(Operation& operation) override {
    if (operation.remote.node.value == kFirstNode) return near_.submit(operation);
    far_.submit(operation);
  }

 private:
  remote::MappedMemory& near_;
  Wire& far_;
};

class World {
 public:
  World(Script& script, std::uint8_t options, std::uint8_t more)
      : script_(script), options_(options), more_(more), good_(shape(), pool_, kMaxFlight * 2), bad_(shape(), pool_) {
    remember_regions();
    start(Who::kGood);
    start(Who::kBad);
  }

  Reached play() {
    for (int steps = 0; !script_.empty() && steps < 3000; ++steps) step();
    finish();
    good_.add_answers(reached_);
    return reached_;
  }

 private:
  bool elsewhere() const { return (options_ & 1) != 0; }
  bool near() const { return (options_ & 2) != 0; }
  bool pool_ordered() const { return (options_ & 4) != 0; }
  bool compute_ordered() const { return (options_ & 8) != 0; }
  cowbird::Shape shape() const {
    if ((options_ & 16) != 0) return {.entries = 4, .request_bytes = 64, .response_bytes = 128};
    return {.entries = 16, .request_bytes = 2048, .response_bytes = 4096};
  }

  // An engine's process.
  struct Process final : Wire::Judge {
    Process(World& its_world, Who whose) : world(its_world), who(whose) {}
    // Coroutines go before what they use.
    ~Process() override { scheduler.reset(); }
    void check(const Operation& operation) override { world.check(*this, operation); }
    MutableBytes bytes_at(const Operation& operation) override { return world.bytes_at(*this, operation); }
    remote::Status reaches(remote::NodeId node) override { return world.reaches(node); }

    World& world;
    Who who;
    std::unique_ptr<remote::Scheduler> scheduler = std::make_unique<remote::Scheduler>();
    std::unique_ptr<Wire> rings, pool;
    std::unique_ptr<remote::MappedMemory> beside, near;
    std::unique_ptr<PartlyNear> partly;
    std::unique_ptr<cowbird::Engine> engine;
    bool ended = false;
    Time looked{};  // when it asked for the issuer line last
  };
  static remote::Task<void> run(cowbird::Engine& engine, bool& ended) {
    co_await engine.run();
    ended = true;
  }

  Rings& rings(Who who) { return who == Who::kGood ? good_.rings : bad_.rings; }
  remote::RemoteAddress block() const { return {kCompute, kBlockKey, kBlockBase}; }
  std::vector<std::unique_ptr<Process>>& processes(Who who) { return processes_[who == Who::kGood ? 0 : 1]; }

  void start(Who who) {
    auto& made = *processes(who).emplace_back(std::make_unique<Process>(*this, who));
    remote::Scheduler& scheduler = *made.scheduler;
    scheduler.run(now_);
    made.rings = std::make_unique<Wire>(scheduler, made, compute_ordered());
    made.pool = std::make_unique<Wire>(scheduler, made, pool_ordered());
    remote::RemoteMemory* compute = made.rings.get();
    if (!elsewhere()) {
      made.beside = std::make_unique<remote::MappedMemory>(scheduler);
      made.beside->add(block(), rings(who).block());
      compute = made.beside.get();
    }
    remote::RemoteMemory* pool = made.pool.get();
    if (near()) {
      made.near = std::make_unique<remote::MappedMemory>(scheduler);
      map(made);
      made.partly = std::make_unique<PartlyNear>(*made.near, *made.pool);
      pool = made.partly.get();
    }
    cowbird::EngineConfig config;
    config.probe_most = Duration::microseconds(50);
    config.awake = Duration::microseconds(100);
    config.batch_size = 1 + more_ % 7u;
    config.copied_a_turn = std::size_t{16} << more_ / 8 % 8;
    config.heartbeat = Duration::microseconds(200);
    config.retry = Duration::microseconds(20);
    config.max_flight = kMaxFlight;
    config.leaves_within = kLeavesWithin;
    config.patience = Duration::milliseconds(2);
    made.engine = std::make_unique<cowbird::Engine>(scheduler, *compute, block(), rings(who).layout, 0, *pool, config);
    scheduler.spawn(run(*made.engine, made.ended));
  }
  void map(Process& process) {
    if (!process.near) return;
    process.near->clear();
    for (const Who who : {Who::kGood, Who::kBad}) {
      const std::uint64_t start = who == Who::kGood ? 0 : kHalf;
      process.near->add({remote::NodeId(kFirstNode), remote::RegionKey(pool_[0].key(who)), kPoolBase + start},
                        MutableBytes(pool_[0].bytes).subspan(start, kHalf));
    }
  }

  // --- the script ---

  void step() {
    const std::uint8_t what = script_.next();
    switch (what % 16) {
      case 0:
      case 1:
      case 2:
      case 3: good_.issue(script_, now_); return;
      case 4: return good_.take(now_, 1 + what / 16u);
      case 5: bad_.act(script_); return remember_regions();
      case 6:
      case 7:
      case 8: {
        const std::uint8_t how = script_.next();
        return work(what % 32 < 16 ? Who::kGood : Who::kBad, 1 + what / 32, how);
      }
      case 9:
      case 10: return pass(Duration::microseconds(1 + script_.next() % 64));
      case 11: return move_all(1 + what / 16);
      case 12: return what < 128 ? lose(what / 16u, script_.next()) : move_all(2);
      case 13: return what < 64 ? befall(script_.next() % 16u) : move_all(2);
      case 14: return be_late(script_.next());
      default: return pass(Duration::microseconds(300));
    }
  }

  void befall(unsigned what) {
    const Who who = what % 2 == 0 ? Who::kGood : Who::kBad;
    switch (what / 2) {
      case 0: up_[what % kNodes] = !up_[what % kNodes]; return;
      case 1: {
        MemoryNode& node = pool_[what % kNodes];
        ++node.epoch;
        for (auto& all : processes_) {
          for (auto& process : all) {
            if (what % kNodes == 0) map(*process);
          }
        }
        return;
      }
      case 2: good_.renew(); return remember_regions();
      case 3: return replace(who, false);
      case 4: return replace(who, true);
      case 5: known_[what % kNodes] = !known_[what % kNodes]; return;
      case 6: return pass(Duration::milliseconds(12));
      default: now_ = now_ + Duration::milliseconds(600); return;  // all engines stood still
    }
  }

  // Another engine. The last one ends by itself, or is killed, or cut off from the rings and goes on for a while.
  void replace(Who who, bool at_once) {
    if (++engines_ > 8) return;
    auto& all = processes(who);
    if (!at_once) {
      all.back()->engine->stop();
      // (It may have found in its line that it must wait for two seconds.)
      for (int i = 0; i < 400 && !all.back()->ended; ++i) {
        move_all(1);
        if (i > 40) pass(Duration::milliseconds(10));
      }
      SLUICE_CHECK(all.back()->ended);
      all.pop_back();
      ++reached_["stopped"];
    } else if (elsewhere() && engines_ % 2 == 0) {
      all.back()->rings->lose(now_, kCompute, 2, nullptr, true);
      all.back()->rings->shut_out = true;
      ++reached_["shut out"];
    } else {
      kill(*all.back());
      all.pop_back();
      ++reached_["killed"];
    }
    start(who);
  }
  void kill(Process& process) {
    for (std::uint32_t n = 0; n < kNodes; ++n)
      process.pool->lose(now_, remote::NodeId(kFirstNode + n), script_.next(), &late_, false);
    process.rings->lose(now_, kCompute, 2, nullptr, false);
  }

  template <class F>
  void for_each(F f) {
    for (auto& all : processes_) {
      for (std::size_t i = 0; i < all.size(); ++i) f(*all[i]);
    }
  }
  void turn() {
    for_each([this](Process& process) { process.scheduler->run(now_, 20'000); });
  }
  void work(Who who, int how_many, std::uint8_t how) {
    for (int i = 0; i < how_many; ++i) {
      for (auto& process : processes(who)) {
        Wire& wire = *(((how >> i) & 1) != 0 ? process->pool : process->rings);
        wire.work(now_, how);
      }
      turn();
    }
  }
  void lose(unsigned what, std::uint8_t how) {
    const Who who = what % 2 == 0 ? Who::kGood : Who::kBad;
    Process& process = *processes(who).back();
    // (What reaches the rings late is not asked: an engine's connection ends before the next one's begins.)
    if (what / 2 % 3 == 2) return process.rings->lose(now_, kCompute, how, nullptr, true);
    process.pool->lose(now_, remote::NodeId(kFirstNode + what / 2 % 3), how, &late_, true);
    ++reached_["lost"];
  }
  void be_late(std::uint8_t which) {
    std::erase_if(late_, [this](const Late& one) { return one.until <= now_; });
    if (late_.empty()) return;
    const auto it = late_.begin() + (pool_ordered() ? 0 : which % static_cast<std::ptrdiff_t>(late_.size()));
    const MutableBytes to = pool_[it->node - kFirstNode].at(it->key, it->address, it->bytes.size());
    if (!is_empty(to)) std::ranges::copy(it->bytes, to.begin());
    late_.erase(it);
    ++reached_["late"];
  }
  void pass(Duration time) {
    const Time until = now_ + time;
    for (int i = 0; i < 400 && now_ < until; ++i) {
      Time next = until;
      for_each([&](Process& process) { next = std::min(next, process.scheduler->next_deadline()); });
      now_ = std::clamp(next, now_ + Duration::nanoseconds(100), until);
      turn();
    }
    now_ = until;
  }
  void move_all(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      for_each([this](Process& process) {
        for (int k = 0; k < 64 && !(process.rings->idle() && process.pool->idle()); ++k) {
          process.rings->work(now_, 0);
          process.pool->work(now_, 0);
          process.scheduler->run(now_, 20'000);
        }
      });
      pass(Duration::microseconds(5));
    }
  }

  // --- what engines may touch ---

  void remember_regions() {
    for (const Who who : {Who::kGood, Who::kBad}) {
      auto& told = told_[who == Who::kGood ? 0 : 1];
      for (const cowbird::Region& region : rings(who).regions()) {
        if (region.length != 0 && std::ranges::find(told, region) == told.end()) told.push_back(region);
      }
    }
  }
  static bool lies_in(std::uint64_t at, std::uint64_t length, std::uint64_t start, std::uint64_t bytes) {
    return at >= start && at - start <= bytes && length <= bytes - (at - start);
  }
  void check(Process& process, const Operation& operation) {
    const bool write = operation.kind == OpKind::kWrite;
    const std::uint64_t at = operation.remote.address;
    const std::uint64_t length = operation.local.size();
    SLUICE_CHECK(length != 0);
    if (operation.remote.node != kCompute) {
      SLUICE_CHECK(std::ranges::any_of(told_[process.who == Who::kGood ? 0 : 1], [&](const cowbird::Region& r) {
        return r.node == operation.remote.node.value && r.key == operation.remote.key.value && (r.writable || !write) &&
               at - r.base <= r.length && length <= r.length - (at - r.base);
      }));
      // The next engine may be at work by then.
      if (elsewhere() && write) SLUICE_CHECK(operation.not_after <= process.looked + kLeavesWithin);
      return;
    }
    const cowbird::ChannelLayout layout = rings(process.who).layout.channel();
    const std::uint64_t start = kBlockBase + rings(process.who).layout.channel_at(0);
    const auto is_in = [&](std::size_t offset, std::uint64_t bytes) {
      return lies_in(at, length, start + offset, bytes);
    };
    if (!write && is_in(ChannelLayout::kIssuer, cowbird::kLine)) process.looked = now_;
    if (write) {
      SLUICE_CHECK(is_in(ChannelLayout::kProgress, cowbird::kLine) ||
                   is_in(ChannelLayout::kErrorLog, cowbird::kErrorBlock) ||
                   is_in(layout.responses, layout.shape.response_bytes));
    } else {
      SLUICE_CHECK(is_in(ChannelLayout::kIssuer, ChannelLayout::kMetadata) ||
                   is_in(ChannelLayout::kMetadata, std::uint64_t{layout.shape.entries} * cowbird::kEntryBytes) ||
                   is_in(layout.requests, layout.shape.request_bytes) ||
                   lies_in(at, length, kBlockBase + cowbird::InstanceLayout::kRegions,
                           cowbird::kMaxRegions * cowbird::kRegionBytes));
    }
  }
  MutableBytes bytes_at(const Process& process, const Operation& operation) {
    if (operation.remote.node == kCompute)
      return rings(process.who).block().subspan(operation.remote.address - kBlockBase, operation.local.size());
    return pool_[operation.remote.node.value - kFirstNode].at(operation.remote.key.value, operation.remote.address,
                                                              operation.local.size());
  }
  remote::Status reaches(remote::NodeId node) const {
    if (node == kCompute) return remote::Status::kOk;
    if (node.value < kFirstNode || node.value >= kFirstNode + kNodes || !known_[node.value - kFirstNode])
      return remote::Status::kNodeUnknown;
    return up_[node.value - kFirstNode] ? remote::Status::kOk : remote::Status::kUnreachable;
  }

  // --- the end ---

  void finish() {
    up_.fill(true);
    known_.fill(true);
    good_.renew();
    remember_regions();
    for (int i = 0; i < 4000 && !good_.all_done(); ++i) {
      move_all(4);
      if (i > 40) pass(Duration::microseconds(100));
      good_.take(now_, 16);
    }
    SLUICE_CHECK(!processes(Who::kGood).back()->engine->broken());
    SLUICE_CHECK(good_.all_done());
    good_.check_pool();
    reached_["broken"] += processes(Who::kBad).back()->engine->broken() ? 1u : 0u;
    for_each([this](Process& process) {
      const auto& c = process.engine->counters();
      for (const auto& [name, n] :
           {std::pair{"waited", c.waited}, {"retries", c.retries}, {"refused", c.refused}, {"malformed", c.malformed}})
        reached_[name] += n;
      process.engine->stop();
    });
    const auto ended = [this] {
      bool all = true;
      for_each([&](const Process& process) { all = all && (process.ended || process.rings->shut_out); });
      return all;
    };
    for (int i = 0; i < 400 && !ended(); ++i) {
      move_all(1);
      if (i > 40) pass(Duration::milliseconds(10));
    }
    SLUICE_CHECK(ended());
    for_each([this](Process& process) { kill(process); });
  }

  Script& script_;
  std::uint8_t options_;
  std::uint8_t more_;
  Time now_;
  Pool pool_;
  std::array<bool, kNodes> up_{true, true};
  std::array<bool, kNodes> known_{true, true};
  GoodApplication good_;
  BadApplication bad_;
  std::array<std::vector<cowbird::Region>, 2> told_{};
  std::vector<Late> late_;
  std::array<std::vector<std::unique_ptr<Process>>, 2> processes_;
  int engines_ = 0;
  Reached reached_;
};

}  // namespace

Reached check_cowbird_spot(ByteView bytes) {
  Script script(bytes);
  const std::uint8_t options = script.next();
  World world(script, options, script.next());
  return world.play();
}

}  // namespace sluice::fuzz
