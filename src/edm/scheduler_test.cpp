// The scheduler against two plain models: a greedy matcher that sorts all messages each time, and the hardware's PIM with its arrays,
// flags and priority encoders. And properties that hold whatever the models say, over thousands of seeds.
#include "edm/scheduler.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "base/effort_test.h"
#include "base/rng.h"

namespace sluice::edm {
namespace {

constexpr Duration kBlock = Duration::picoseconds(640);

Time at_blocks(std::int64_t n) { return Time::at(kBlock * n); }
Demand demand(std::uint32_t source, std::uint32_t destination, std::uint32_t bytes, std::uint32_t id = 0) {
  return {.source = PortId(static_cast<std::uint16_t>(source)),
          .destination = PortId(static_cast<std::uint16_t>(destination)),
          .id = MessageId(static_cast<std::uint8_t>(id)),
          .bytes = bytes};
}
using GrantRow = std::tuple<std::int64_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, bool, bool>;
GrantRow row(const Grant& g) {
  return {g.at.since_start().picoseconds(), g.source.value, g.destination.value, g.id.value, g.bytes, g.first, g.last};
}

std::vector<Grant> poll_all(Scheduler& scheduler) {
  std::vector<Grant> out;
  for (Grant grant; scheduler.poll_grant(grant);) out.push_back(grant);
  return out;
}
std::vector<Grant> run_to(Scheduler& scheduler, Time end) {
  std::vector<Grant> out;
  while (scheduler.next_deadline() <= end) {
    scheduler.on_deadline(end);
    for (const Grant& grant : poll_all(scheduler)) out.push_back(grant);
  }
  return out;
}

// What waits, as a plain list; shared by both models.
class Model {
 public:
  struct Message {
    Demand demand;
    std::uint64_t sequence = 0;
    std::uint32_t remaining = 0;
    bool granted = false;
  };

  explicit Model(const SchedulerConfig& config)
      : config_(config), source_busy_(config.ports), destination_busy_(config.ports) {}

  void notify(const Demand& d) { waiting_.push_back({d, sequence_++, d.bytes}); }
  bool free_source(std::uint32_t port, Time now) const { return source_busy_[port] <= now; }
  bool free_destination(std::uint32_t port, Time now) const { return destination_busy_[port] <= now; }
  // Only the oldest message of a pair stands for it.
  std::vector<Message*> heads() {
    std::map<std::pair<std::uint32_t, std::uint32_t>, Message*> oldest;
    for (Message& m : waiting_) oldest.try_emplace({m.demand.source.value, m.demand.destination.value}, &m);
    std::vector<Message*> out;
    for (const auto& [pair, message] : oldest) out.push_back(message);
    std::sort(out.begin(), out.end(), [this](const Message* a, const Message* b) { return before(*a, *b); });
    return out;
  }
  bool before(const Message& a, const Message& b) const {
    if (config_.policy == Policy::kShortestRemaining && a.remaining != b.remaining) return a.remaining < b.remaining;
    return a.sequence < b.sequence;
  }
  GrantRow grant(Time at, Message& m) {
    const std::uint32_t bytes = std::min(config_.chunk_bytes, m.remaining);
    m.remaining -= bytes;
    const Time until = at + config_.block_time * static_cast<std::int64_t>((bytes + 7) / 8 + config_.framing_blocks +
                                                                           config_.gap_blocks);
    source_busy_[m.demand.source.value] = destination_busy_[m.demand.destination.value] = until;
    const Grant out{.at = at,
                    .source = m.demand.source,
                    .destination = m.demand.destination,
                    .id = m.demand.id,
                    .first = !m.granted,
                    .last = m.remaining == 0,
                    .bytes = bytes};
    m.granted = true;
    if (m.remaining == 0) std::erase_if(waiting_, [](const Message& done) { return done.remaining == 0; });
    return row(out);
  }
  std::vector<GrantRow> match_greedily(Time now) {
    std::vector<GrantRow> out;
    for (bool matched = true; matched;) {
      matched = false;
      for (Message* m : heads()) {
        if (!free_source(m->demand.source.value, now) || !free_destination(m->demand.destination.value, now)) continue;
        out.push_back(grant(now, *m));
        matched = true;
        break;
      }
    }
    return out;
  }
  // The hardware's iteration: requests by destination; for each source an array of all destinations in order of priority, with a flag
  // each, and an encoder that finds the first flag set.
  std::vector<GrantRow> iterate(Time now) {
    const std::vector<Message*> in_order = heads();
    std::vector<std::vector<Message*>> array(config_.ports);  // by source
    for (Message* m : in_order) array[m->demand.source.value].push_back(m);
    std::vector<std::vector<bool>> flag(config_.ports);
    for (std::uint32_t s = 0; s < config_.ports; ++s) flag[s].resize(array[s].size());
    for (std::uint32_t d = 0; d < config_.ports; ++d) {
      if (!free_destination(d, now)) continue;
      for (Message* m : in_order) {
        const std::uint32_t s = m->demand.source.value;
        if (m->demand.destination.value != d || !free_source(s, now)) continue;
        flag[s][static_cast<std::size_t>(std::find(array[s].begin(), array[s].end(), m) - array[s].begin())] = true;
        break;
      }
    }
    std::vector<Message> chosen;
    for (std::uint32_t s = 0; s < config_.ports; ++s) {
      const auto encoded = std::find(flag[s].begin(), flag[s].end(), true);
      if (encoded != flag[s].end()) chosen.push_back(*array[s][static_cast<std::size_t>(encoded - flag[s].begin())]);
    }
    std::vector<GrantRow> out;
    for (const Message& c : chosen) {
      const auto same = [&](const Message& m) { return m.sequence == c.sequence; };
      out.push_back(grant(now + config_.iteration, *std::find_if(waiting_.begin(), waiting_.end(), same)));
    }
    return out;
  }
  bool anything_eligible(Time now) {
    return std::ranges::any_of(heads(), [&](const Message* m) {
      return free_source(m->demand.source.value, now) && free_destination(m->demand.destination.value, now);
    });
  }
  std::uint32_t active(const Demand& d) const {
    return static_cast<std::uint32_t>(std::ranges::count_if(waiting_, [&](const Message& m) {
      return m.demand.source == d.source && m.demand.destination == d.destination && m.demand.kind == d.kind;
    }));
  }
  const std::deque<Message>& waiting() const { return waiting_; }

 private:
  SchedulerConfig config_;
  std::deque<Message> waiting_;
  std::uint64_t sequence_ = 0;
  std::vector<Time> source_busy_;
  std::vector<Time> destination_busy_;
};

SchedulerConfig drawn_config(Rng& rng, Matching matching) {
  return {.ports = 2 + static_cast<std::uint32_t>(rng.below(15)),
          .active_per_pair = 1 + static_cast<std::uint32_t>(rng.below(4)),
          .policy = rng.below(2) == 0 ? Policy::kFirstCome : Policy::kShortestRemaining,
          .matching = matching,
          .chunk_bytes = 64u << rng.below(3),
          .framing_blocks = static_cast<std::uint32_t>(rng.below(3)),
          .gap_blocks = static_cast<std::uint32_t>(rng.below(2)),
          .iteration = Duration::picoseconds(static_cast<std::int64_t>(100 + rng.below(2'000)))};
}
Demand drawn_demand(Rng& rng, std::uint32_t ports, std::uint32_t id) {
  const auto source = static_cast<std::uint32_t>(rng.below(ports));
  const auto step = 1 + static_cast<std::uint32_t>(rng.below(ports - 1));
  // Some destinations are more popular; some messages are long.
  const std::uint32_t destination = rng.below(4) == 0 && source != 0 ? 0 : (source + step) % ports;
  Demand d =
      demand(source, destination, 1 + static_cast<std::uint32_t>(rng.below(rng.below(4) == 0 ? 5'000 : 200)), id);
  if (rng.below(2) == 0) d.kind = DemandKind::kResponse;
  return d;
}

TEST(Scheduler, GrantsAsAGreedyMatcherThatSortsEverythingEachTime) {
  for (std::uint64_t seed = 0; seed < seeds(2'000); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const SchedulerConfig config = drawn_config(rng, Matching::kGreedy);
    Scheduler scheduler(config);
    Model model(config);
    std::uint32_t id = 0;
    const std::uint64_t heat = 1 + rng.below(6);
    for (std::int64_t slot = 0; slot < 300; ++slot) {
      const Time now = at_blocks(slot);
      for (std::uint64_t i = rng.below(heat); i != 0 && slot < 150; --i) {
        const Demand d = drawn_demand(rng, config.ports, ++id);
        const bool room = model.active(d) < config.active_per_pair;
        ASSERT_EQ(scheduler.active(d.source, d.destination, d.kind), model.active(d));
        ASSERT_EQ(scheduler.notify(now, d), room ? NotifyVerdict::kAccepted : NotifyVerdict::kTooManyActive);
        if (room) model.notify(d);
      }
      scheduler.on_deadline(now);
      std::vector<GrantRow> ours;
      for (const Grant& grant : poll_all(scheduler)) ours.push_back(row(grant));
      ASSERT_EQ(ours, model.match_greedily(now)) << "slot " << slot;
      ASSERT_FALSE(model.anything_eligible(now));
      ASSERT_EQ(scheduler.waiting_messages(), model.waiting().size());
    }
  }
}

TEST(Scheduler, IteratesAsTheHardwareWithItsArraysAndPriorityEncoders) {
  for (std::uint64_t seed = 0; seed < seeds(2'000); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const SchedulerConfig config = drawn_config(rng, Matching::kPim);
    Scheduler scheduler(config);
    Model model(config);
    std::uint32_t id = 0;
    for (std::int64_t tick = 0; tick < 300; ++tick) {
      const Time now = Time::at(config.iteration * tick);
      for (std::uint64_t i = rng.below(4); i != 0 && tick < 150; --i) {
        const Demand d = drawn_demand(rng, config.ports, ++id);
        if (model.active(d) == config.active_per_pair) continue;
        ASSERT_EQ(scheduler.notify(now, d), NotifyVerdict::kAccepted);
        model.notify(d);
      }
      scheduler.on_deadline(now);
      std::vector<GrantRow> ours;
      for (const Grant& grant : poll_all(scheduler)) ours.push_back(row(grant));
      ASSERT_EQ(ours, model.iterate(now)) << "tick " << tick;
    }
  }
}

TEST(Scheduler, PimReachesAMaximalMatchingWithinAsManyIterationsAsPorts) {
  std::uint64_t most = 0;
  for (std::uint64_t seed = 0; seed < seeds(2'000); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    SchedulerConfig config = drawn_config(rng, Matching::kPim);
    config.iteration = Duration::picoseconds(1);  // so that no port becomes free again meanwhile
    config.chunk_bytes = 256;
    Scheduler scheduler(config);
    Model model(config);
    for (std::uint32_t i = 0; i < config.ports * 4; ++i) {
      const Demand d = drawn_demand(rng, config.ports, i);
      if (scheduler.notify(Time{}, d) == NotifyVerdict::kAccepted) model.notify(d);
    }
    std::uint64_t rounds = 0;
    for (Time now; model.anything_eligible(now); now = now + config.iteration) {
      scheduler.on_deadline(now);
      const std::vector<GrantRow> theirs = model.iterate(now);
      ASSERT_EQ(poll_all(scheduler).size(), theirs.size());
      ASSERT_FALSE(theirs.empty());  // each iteration matches at least one
      ASSERT_LE(++rounds, config.ports);
    }
    most = std::max(most, rounds);
  }
  EXPECT_GT(most, 2u);  // or it would have been no test of iterating
}

// Watches grants alone.
class Checker {
 public:
  explicit Checker(const Scheduler& scheduler)
      : scheduler_(scheduler), source_until_(scheduler.config().ports), destination_until_(scheduler.config().ports) {}

  void asked(const Demand& d) {
    asked_bytes_ += d.bytes;
    expected_[{d.source.value, d.destination.value}].push_back({d.id, d.bytes});
  }
  void granted(const Grant& g) {
    Time& source = source_until_[g.source.value];
    Time& destination = destination_until_[g.destination.value];
    ASSERT_LE(source, g.at) << "source granted twice at once";
    ASSERT_LE(destination, g.at) << "destination granted twice at once";
    source = destination = g.at + scheduler_.time_taken(g);
    auto& pair = expected_[{g.source.value, g.destination.value}];
    ASSERT_FALSE(pair.empty());
    ASSERT_EQ(pair.front().first, g.id) << "out of order within a pair";
    ASSERT_GT(g.bytes, 0u);
    ASSERT_LE(g.bytes, scheduler_.config().chunk_bytes);
    ASSERT_LE(g.bytes, pair.front().second);
    pair.front().second -= g.bytes;
    ASSERT_EQ(g.last, pair.front().second == 0);
    if (g.last) pair.pop_front();
    granted_bytes_ += g.bytes;
  }
  void all_done() const {
    EXPECT_EQ(granted_bytes_, asked_bytes_);
    EXPECT_EQ(scheduler_.waiting_bytes(), 0u);
    EXPECT_EQ(scheduler_.waiting_messages(), 0u);
  }

 private:
  const Scheduler& scheduler_;
  std::vector<Time> source_until_;
  std::vector<Time> destination_until_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<std::pair<MessageId, std::uint32_t>>> expected_;
  std::uint64_t asked_bytes_ = 0;
  std::uint64_t granted_bytes_ = 0;
};

TEST(Scheduler, NeverGrantsAPortTwiceKeepsPairsInOrderAndGrantsEveryByteOnce) {
  for (std::uint64_t seed = 0; seed < seeds(4'000); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    SchedulerConfig config = drawn_config(rng, rng.below(2) == 0 ? Matching::kGreedy : Matching::kPim);
    if (rng.below(2) == 0) config.response_lead = kBlock * static_cast<std::int64_t>(rng.below(20));
    if (rng.below(2) == 0) config.patience = kBlock * static_cast<std::int64_t>(1 + rng.below(200));
    Scheduler scheduler(config);
    Checker checker(scheduler);
    Time now;
    for (std::uint32_t i = 0; i < 200; ++i) {
      const Demand d = drawn_demand(rng, config.ports, i);
      now = now + Duration::picoseconds(static_cast<std::int64_t>(rng.below(20'000)));
      for (const Grant& grant : run_to(scheduler, now)) checker.granted(grant);
      if (scheduler.notify(now, d) == NotifyVerdict::kAccepted) checker.asked(d);
      if (HasFatalFailure()) return;
    }
    for (const Grant& grant : run_to(scheduler, now + Duration::milliseconds(10))) checker.granted(grant);
    ASSERT_EQ(scheduler.next_deadline(), Time::never());
    checker.all_done();
    if (HasFailure()) return;
  }
}

TEST(Scheduler, RefusesWhatNoSenderMayAskAndCountsIt) {
  Scheduler scheduler({.ports = 4, .active_per_pair = 2});
  EXPECT_EQ(scheduler.notify(Time{}, demand(4, 0, 8)), NotifyVerdict::kNoSuchPort);
  EXPECT_EQ(scheduler.notify(Time{}, demand(0, 4, 8)), NotifyVerdict::kNoSuchPort);
  EXPECT_EQ(scheduler.notify(Time{}, demand(1, 1, 8)), NotifyVerdict::kToItself);
  EXPECT_EQ(scheduler.notify(Time{}, demand(0, 1, 0)), NotifyVerdict::kEmpty);
  EXPECT_EQ(scheduler.notify(Time{}, demand(0, 1, kMaxMessageBytes + 1)), NotifyVerdict::kTooLong);
  EXPECT_EQ(scheduler.notify(Time{}, demand(0, 1, kMaxMessageBytes)), NotifyVerdict::kAccepted);
  EXPECT_EQ(scheduler.notify(Time{}, demand(0, 1, 8)), NotifyVerdict::kAccepted);
  EXPECT_EQ(scheduler.notify(Time{}, demand(0, 1, 8)), NotifyVerdict::kTooManyActive);
  EXPECT_EQ(scheduler.notify(Time{}, demand(1, 0, 8)), NotifyVerdict::kAccepted);
  EXPECT_EQ(scheduler.counters().notified[static_cast<std::size_t>(NotifyVerdict::kNoSuchPort)], 2u);
  EXPECT_EQ(scheduler.counters().notified[static_cast<std::size_t>(NotifyVerdict::kTooManyActive)], 1u);
  EXPECT_EQ(scheduler.waiting_messages(), 3u);
}

// Reads of one host and writes of the other are messages of the same pair: neither takes the other's room, and both stay in order.
TEST(Scheduler, CountsAPairsWritesAndResponsesApart) {
  Scheduler scheduler({.ports = 2, .active_per_pair = 2, .matching = Matching::kGreedy});
  const auto ask = [&](DemandKind kind, std::uint32_t id) {
    Demand d = demand(0, 1, 256, id);
    d.kind = kind;
    return scheduler.notify(Time{}, d);
  };
  constexpr auto kWrite = DemandKind::kWrite;
  constexpr auto kResponse = DemandKind::kResponse;
  EXPECT_EQ(ask(kResponse, 1), NotifyVerdict::kAccepted);
  EXPECT_EQ(ask(kResponse, 2), NotifyVerdict::kAccepted);
  EXPECT_EQ(ask(kResponse, 3), NotifyVerdict::kTooManyActive);
  EXPECT_EQ(ask(kWrite, 4), NotifyVerdict::kAccepted);
  EXPECT_EQ(ask(kWrite, 5), NotifyVerdict::kAccepted);
  EXPECT_EQ(ask(kWrite, 6), NotifyVerdict::kTooManyActive);
  EXPECT_EQ(scheduler.active(PortId(0), PortId(1), kWrite), 2u);
  EXPECT_EQ(scheduler.active(PortId(0), PortId(1), kResponse), 2u);
  scheduler.on_deadline(Time{});  // the first response goes
  EXPECT_EQ(ask(kWrite, 6), NotifyVerdict::kTooManyActive);
  EXPECT_EQ(ask(kResponse, 7), NotifyVerdict::kAccepted);
  std::vector<std::uint32_t> ids;
  for (const Grant& grant : run_to(scheduler, Time::at(Duration::microseconds(1)))) ids.push_back(grant.id.value);
  EXPECT_EQ(ids, (std::vector<std::uint32_t>{1, 2, 4, 5, 7}));
  EXPECT_EQ(ask(kWrite, 8), NotifyVerdict::kAccepted);
  scheduler.forget_port(Time{}, PortId(0));
  for (std::uint32_t id = 0; id < 2; ++id) {
    EXPECT_EQ(ask(kWrite, id), NotifyVerdict::kAccepted);
    EXPECT_EQ(ask(kResponse, id), NotifyVerdict::kAccepted);
  }
}

TEST(Scheduler, FreesPortsWhenTheChunkIsOffTheWire) {
  Scheduler scheduler({.ports = 2, .matching = Matching::kGreedy, .chunk_bytes = 256});
  ASSERT_EQ(scheduler.notify(Time{}, demand(0, 1, 600)), NotifyVerdict::kAccepted);
  const std::vector<Grant> grants = run_to(scheduler, Time::at(Duration::microseconds(1)));
  ASSERT_EQ(grants.size(), 3u);
  EXPECT_EQ(row(grants[0]), (GrantRow{0, 0, 1, 0, 256, true, false}));
  EXPECT_EQ(row(grants[1]), (GrantRow{32 * 640, 0, 1, 0, 256, false, false}));
  EXPECT_EQ(row(grants[2]), (GrantRow{64 * 640, 0, 1, 0, 88, false, true}));
}

TEST(Scheduler, ServesTheShortestFirstButNeverBeforeAnOlderOneOfItsPair) {
  Scheduler scheduler({.ports = 3, .matching = Matching::kGreedy, .chunk_bytes = 64});
  ASSERT_EQ(scheduler.notify(Time{}, demand(0, 2, 640, 1)), NotifyVerdict::kAccepted);
  ASSERT_EQ(scheduler.notify(Time{}, demand(0, 2, 8, 2)), NotifyVerdict::kAccepted);
  ASSERT_EQ(scheduler.notify(Time{}, demand(1, 2, 128, 3)), NotifyVerdict::kAccepted);
  std::vector<std::uint32_t> ids;
  for (const Grant& grant : run_to(scheduler, Time::at(Duration::microseconds(1)))) {
    if (grant.last) ids.push_back(grant.id.value);
  }
  EXPECT_EQ(ids, (std::vector<std::uint32_t>{3, 1, 2}));
}

// Sources 0 and 1, destinations 2 and 3, all of them with more to do than they can; and the pair 0 -> 2 whose ports become free half a
// chunk apart. Returns when the pair had its grant.
std::optional<Time> out_of_phase(Duration patience, Matching matching) {
  Scheduler scheduler({.ports = 4,
                       .active_per_pair = 3,
                       .policy = Policy::kFirstCome,
                       .matching = matching,
                       .chunk_bytes = 256,
                       .iteration = Duration::picoseconds(640),
                       .patience = patience});
  std::optional<Time> granted;
  for (std::int64_t slot = 0; slot < 20'000 && !granted; ++slot) {
    const Time now = at_blocks(slot);
    const auto refill = [&](std::uint32_t s, std::uint32_t d) {
      const Demand more = demand(s, d, 256);
      while (scheduler.active(more.source, more.destination, more.kind) < 2)
        EXPECT_EQ(scheduler.notify(now, more), NotifyVerdict::kAccepted);
    };
    refill(0, 3);
    if (slot >= 16) refill(1, 2);
    if (slot == 20) {
      EXPECT_EQ(scheduler.notify(now, demand(0, 2, 64)), NotifyVerdict::kAccepted);
    }
    scheduler.on_deadline(now);
    for (const Grant& grant : poll_all(scheduler)) {
      if (grant.source == PortId(0) && grant.destination == PortId(2)) granted = grant.at;
    }
  }
  return granted;
}

TEST(Scheduler, FirstComeFirstServedStarvesAPairWhosePortsAreNeverFreeTogether) {
  EXPECT_EQ(out_of_phase({}, Matching::kGreedy), std::nullopt);
  EXPECT_EQ(out_of_phase({}, Matching::kPim), std::nullopt);
}

TEST(Scheduler, WithPatienceItDoesNot) {
  const Duration chunk = kBlock * 32;
  for (const Matching matching : {Matching::kGreedy, Matching::kPim}) {
    const auto granted = out_of_phase(chunk * 4, matching);
    ASSERT_TRUE(granted.has_value());
    // It came in slot 20; two chunks before it are older at each port.
    EXPECT_LE(*granted, at_blocks(20) + chunk * 8);
  }
}

TEST(Scheduler, WithPatienceNoMessageWaitsLongerThanThoseBeforeItTake) {
  for (std::uint64_t seed = 0; seed < seeds(500); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    SchedulerConfig config = drawn_config(rng, rng.below(2) == 0 ? Matching::kGreedy : Matching::kPim);
    config.policy = Policy::kFirstCome;
    config.iteration = Duration::picoseconds(500);
    config.patience = kBlock * 64;
    Scheduler scheduler(config);
    std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::pair<Time, Duration>> asked;
    for (std::int64_t slot = 0; slot < 2'000; ++slot) {
      const Time now = at_blocks(slot);
      for (int i = 0; i < 3; ++i) {  // more than the ports can take, all the time
        const Demand d = drawn_demand(rng, config.ports, static_cast<std::uint32_t>(rng.below(256)));
        const auto key = std::tuple{d.source.value, d.destination.value, d.id.value};
        if (asked.contains(key)) continue;
        // Each message before it may take both ports once, and hold a port for a chunk before each of its own.
        const Duration all = config.block_time * static_cast<std::int64_t>(scheduler.waiting_bytes() / 8) +
                             config.block_time *
                                 static_cast<std::int64_t>(config.framing_blocks + config.gap_blocks + 1) *
                                 static_cast<std::int64_t>(scheduler.waiting_bytes() / config.chunk_bytes +
                                                           scheduler.waiting_messages() + 1);
        if (scheduler.notify(now, d) == NotifyVerdict::kAccepted)
          asked[key] = {now, all * 3 + config.patience + scheduler.wire_time(config.chunk_bytes) * 50};
      }
      scheduler.on_deadline(now);
      for (const Grant& grant : poll_all(scheduler)) {
        if (!grant.first) continue;
        const auto key = std::tuple{grant.source.value, grant.destination.value, grant.id.value};
        ASSERT_LE(grant.at - asked.at(key).first, asked.at(key).second);
        asked.erase(key);
      }
      for (const auto& [key, since] : asked) ASSERT_LE(now - since.first, since.second);
    }
    EXPECT_GT(scheduler.counters().grants, 100u);
  }
}

TEST(Scheduler, ForgetsTheMessagesOfAHostThatIsGone) {
  Scheduler scheduler({.ports = 3, .matching = Matching::kGreedy, .chunk_bytes = 64});
  ASSERT_EQ(scheduler.notify(Time{}, demand(0, 1, 640, 1)), NotifyVerdict::kAccepted);
  ASSERT_EQ(scheduler.notify(Time{}, demand(1, 2, 640, 2)), NotifyVerdict::kAccepted);
  ASSERT_EQ(scheduler.notify(Time{}, demand(0, 2, 640, 3)), NotifyVerdict::kAccepted);
  scheduler.on_deadline(Time{});
  EXPECT_EQ(poll_all(scheduler).size(), 2u);
  scheduler.forget_port(Time{}, PortId(1));
  EXPECT_EQ(scheduler.counters().dropped, 2u);
  std::uint32_t bytes = 0;
  for (const Grant& grant : run_to(scheduler, Time::at(Duration::microseconds(1)))) {
    EXPECT_EQ(grant.id, MessageId(3));
    bytes += grant.bytes;
  }
  EXPECT_EQ(bytes, 640u);
}

TEST(Scheduler, WithdrawsTheOldestDemandOfAPairThatHasNoGrant) {
  Scheduler scheduler({.ports = 3, .matching = Matching::kGreedy, .chunk_bytes = 64});
  const auto response = [](std::uint32_t source, std::uint32_t destination, std::uint32_t bytes, std::uint32_t id) {
    Demand d = demand(source, destination, bytes, id);
    d.kind = DemandKind::kResponse;
    return d;
  };
  ASSERT_EQ(scheduler.notify(Time{}, response(0, 1, 128, 1)), NotifyVerdict::kAccepted);
  ASSERT_EQ(scheduler.notify(Time{}, response(0, 1, 64, 2)), NotifyVerdict::kAccepted);
  ASSERT_EQ(scheduler.notify(Time{}, demand(0, 1, 64, 3)), NotifyVerdict::kAccepted);
  scheduler.on_deadline(Time{});
  EXPECT_EQ(poll_all(scheduler).size(), 1u);
  EXPECT_TRUE(scheduler.withdraw(Time{}, PortId(0), PortId(1), DemandKind::kResponse));
  EXPECT_FALSE(scheduler.withdraw(Time{}, PortId(0), PortId(1), DemandKind::kResponse));  // the first one has begun
  EXPECT_FALSE(scheduler.withdraw(Time{}, PortId(1), PortId(0), DemandKind::kWrite));
  EXPECT_EQ(scheduler.counters().withdrawn, 1u);
  std::vector<std::uint32_t> ids;
  for (const Grant& grant : run_to(scheduler, Time::at(Duration::microseconds(1)))) ids.push_back(grant.id.value);
  EXPECT_EQ(ids, (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(scheduler.waiting_messages(), 0u);
}

// At any time, of any pair, with ports held or not: what stays is granted whole, each byte once, and the scheduler comes to rest.
TEST(Scheduler, WhatIsWithdrawnLeavesTheOthersAsTheyWere) {
  for (std::uint64_t seed = 0; seed < 2'000; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    SchedulerConfig config = drawn_config(rng, rng.below(2) == 0 ? Matching::kGreedy : Matching::kPim);
    const std::uint32_t ports = config.ports = 2 + static_cast<std::uint32_t>(rng.below(4));
    config.patience = Duration::nanoseconds(static_cast<std::int64_t>(rng.below(2) * 20));
    Scheduler scheduler(config);
    std::uint64_t asked = 0;
    std::uint64_t granted = 0;
    std::uint64_t messages = 0;
    Time now;
    for (int i = 0; i < 200; ++i) {
      const Demand d = drawn_demand(rng, ports, static_cast<std::uint32_t>(i));
      if (rng.below(3) == 0) {
        const std::uint64_t before = scheduler.waiting_bytes();
        const bool found = scheduler.withdraw(now, d.source, d.destination, d.kind);
        messages -= found ? 1 : 0;
        asked -= before - scheduler.waiting_bytes();
        ASSERT_EQ(found, scheduler.waiting_bytes() < before);
      } else if (scheduler.notify(now, d) == NotifyVerdict::kAccepted) {
        asked += d.bytes;
        ++messages;
      }
      now = now + Duration::nanoseconds(static_cast<std::int64_t>(rng.below(60)));
      for (const Grant& grant : run_to(scheduler, now)) {
        granted += grant.bytes;
        messages -= grant.last ? 1 : 0;
      }
      ASSERT_EQ(scheduler.waiting_messages(), messages);
      ASSERT_EQ(scheduler.waiting_bytes(), asked - granted);
    }
    for (const Grant& grant : run_to(scheduler, now + Duration::milliseconds(1))) granted += grant.bytes;
    EXPECT_EQ(granted, asked);
    EXPECT_EQ(scheduler.waiting_messages(), 0u);
  }
}

TEST(Scheduler, WhatWillBeAskedForLaterCountsForTheRankAlone) {
  Scheduler scheduler({.ports = 3, .matching = Matching::kGreedy, .chunk_bytes = 64});
  ASSERT_EQ(scheduler.notify(Time{}, demand(0, 1, 64, 1)), NotifyVerdict::kAccepted);
  scheduler.on_deadline(Time{});
  Demand part = demand(0, 2, 64, 2);
  part.later = 1'000;
  ASSERT_EQ(scheduler.notify(Time{}, part), NotifyVerdict::kAccepted);
  ASSERT_EQ(scheduler.notify(Time{}, demand(0, 1, 1'000, 3)), NotifyVerdict::kAccepted);
  EXPECT_EQ(scheduler.waiting_bytes(), 1'064u);
  std::vector<std::uint32_t> ids;
  for (const Grant& grant : run_to(scheduler, Time::at(Duration::microseconds(1)))) {
    if (grant.first) ids.push_back(grant.id.value);
  }
  EXPECT_EQ(ids, (std::vector<std::uint32_t>{1, 3, 2}));
  part.later = kMaxMessageBytes;
  EXPECT_EQ(scheduler.notify(Time{}, part), NotifyVerdict::kTooLong);
}

TEST(Scheduler, PortsOfWhatWillNotComeAreFreeAtOnce) {
  for (const std::uint32_t bytes : {640u, 600u}) {  // a whole chunk, and a part of one
    Scheduler scheduler({.ports = 5, .matching = Matching::kGreedy, .chunk_bytes = 640});
    ASSERT_EQ(scheduler.notify(Time{}, demand(3, 4, bytes, 1)), NotifyVerdict::kAccepted);
    ASSERT_EQ(scheduler.notify(Time{}, demand(0, 1, bytes, 2)), NotifyVerdict::kAccepted);
    ASSERT_EQ(scheduler.notify(Time{}, demand(0, 2, 800, 3)), NotifyVerdict::kAccepted);
    ASSERT_EQ(scheduler.notify(Time{}, demand(3, 2, 1'000, 4)), NotifyVerdict::kAccepted);
    EXPECT_EQ(run_to(scheduler, at_blocks(9)).size(), 2u);
    EXPECT_FALSE(scheduler.free_early(at_blocks(10), PortId(0), PortId(2)));
    EXPECT_TRUE(scheduler.free_early(at_blocks(10), PortId(0), PortId(1)));
    EXPECT_FALSE(scheduler.free_early(at_blocks(10), PortId(0), PortId(1)));
    const std::vector<Grant> then = run_to(scheduler, at_blocks(300));
    ASSERT_GE(then.size(), 3u);
    EXPECT_EQ(row(then[0]), (GrantRow{10 * 640, 0, 2, 3, 640, true, false}));
    // Nobody else's ports: 0 and 2 are taken for a chunk, 3 for what it had.
    EXPECT_EQ(row(then[1]), (GrantRow{90 * 640, 0, 2, 3, 160, false, true}));
    EXPECT_EQ(row(then[2]), (GrantRow{110 * 640, 3, 2, 4, 640, true, false}));
  }
}

// With numbers for a few more messages than can wait, and something always waiting: grants are those of a scheduler that has numbers for all.
TEST(Scheduler, NumbersWhatWaitsAnewInItsOrderWhenNumbersAreUsedUp) {
  std::uint64_t renumbered = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    SchedulerConfig config = drawn_config(rng, rng.below(2) == 0 ? Matching::kGreedy : Matching::kPim);
    config.ports = 2 + static_cast<std::uint32_t>(rng.below(3));
    config.patience = Duration::nanoseconds(static_cast<std::int64_t>(rng.below(2) * 20));
    Scheduler plenty(config);
    config.numbers = std::uint64_t{config.ports} * config.ports * config.active_per_pair * 2 + 1 + rng.below(20);
    Scheduler few(config);
    Time now;
    for (int i = 0; i < 400; ++i) {
      const Demand d = drawn_demand(rng, config.ports, static_cast<std::uint32_t>(i));
      ASSERT_EQ(few.notify(now, d), plenty.notify(now, d));
      if (rng.below(8) == 0) {
        ASSERT_EQ(few.withdraw(now, d.source, d.destination, d.kind),
                  plenty.withdraw(now, d.source, d.destination, d.kind));
      }
      now = now + Duration::nanoseconds(static_cast<std::int64_t>(rng.below(40)));
      const std::vector<Grant> grants = run_to(few, now);
      const std::vector<Grant> expected = run_to(plenty, now);
      ASSERT_EQ(grants.size(), expected.size());
      for (std::size_t g = 0; g < grants.size(); ++g) ASSERT_EQ(row(grants[g]), row(expected[g]));
    }
    renumbered += few.counters().renumbered;
    EXPECT_EQ(plenty.counters().renumbered, 0u);
  }
  EXPECT_GT(renumbered, 100u);
}

TEST(Scheduler, DerivesTheMinimumChunkOfThePaper) {
  EXPECT_EQ(minimum_chunk_bytes(512, Duration::nanoseconds(1), kBlock), 128u);
  EXPECT_EQ(minimum_chunk_bytes(144, Duration::nanoseconds(1), kBlock), 128u);
  EXPECT_EQ(minimum_chunk_bytes(16, Duration::nanoseconds(1), kBlock), 64u);
}

}  // namespace
}  // namespace sluice::edm
