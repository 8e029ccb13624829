#include "workload/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "workload/value.h"

namespace sluice::workload {
namespace {

// Pairs in the memory of this process, and what a scan makes of them.
class OrderedStore final : public Store {
 public:
  enum class Fault { kNone, kFlippedBit, kOutOfOrder, kBeforeTheFirst };

  explicit OrderedStore(Fault fault) : fault_(fault) {}

  std::string_view name() const override { return "ordered"; }
  StoreAbilities abilities() const override { return {.scan = true}; }
  std::size_t max_value_bytes() const override { return 64; }
  StoreCost cost() const override { return {}; }
  remote::Task<GetResult> get(Key key, MutableBytes into) override {
    if (!pairs_.contains(key)) co_return GetResult{Outcome::kNotFound, 0};
    const auto& value = pairs_[key];
    std::ranges::copy(value, into.begin());
    co_return GetResult{Outcome::kOk, value.size()};
  }
  remote::Task<Outcome> put(Key key, ByteView value) override {
    pairs_[key] = {value.begin(), value.end()};
    co_return Outcome::kOk;
  }
  remote::Task<Outcome> insert(Key key, ByteView value) override { return put(key, value); }
  remote::Task<Outcome> erase(Key) override { co_return Outcome::kNotFound; }
  remote::Task<ScanResult> scan(Key first, std::size_t count, ScanSink& sink) override {
    std::vector<std::pair<Key, std::vector<std::uint8_t>>> found;
    for (auto it = pairs_.lower_bound(first); it != pairs_.end() && found.size() < count; ++it) found.push_back(*it);
    if (fault_ == Fault::kFlippedBit && !found.empty()) found.back().second.back() ^= 1;
    if (fault_ == Fault::kOutOfOrder && found.size() > 1) std::swap(found[0], found[1]);
    if (fault_ == Fault::kBeforeTheFirst && first != 0) found.insert(found.begin(), *pairs_.find(first - 1));
    for (const auto& [key, value] : found) sink.on_pair(key, value);
    co_return ScanResult{Outcome::kOk, found.size()};
  }

 private:
  Fault fault_;
  std::map<Key, std::vector<std::uint8_t>> pairs_;
};

TEST(Runner, NumbersItsValuesFromWhereItIsTold) {
  OrderedStore store(OrderedStore::Fault::kNone);
  Store* const stores[] = {&store};
  remote::Scheduler scheduler;
  Runner runner(scheduler, stores, {.records = 1, .clients = 1, .value_bytes = 32, .first_sequence = 4711});
  runner.start_load();
  Time now;
  for (; !runner.done(); now = now + Duration::microseconds(1)) scheduler.run(now);
  std::vector<std::uint8_t> into(64);
  Outcome outcome = Outcome::kUnknown;
  ValueId read = 0;
  scheduler.spawn([](Store& from, std::vector<std::uint8_t>& value, Outcome& ended, ValueId& id) -> remote::Task<void> {
    const GetResult got = co_await from.get(0, value);
    ended = got.outcome;
    id = verify_value(0, ByteView(value).first(got.length)).value_or(0);
  }(store, into, outcome, read));
  scheduler.run(now);
  EXPECT_EQ(outcome, Outcome::kOk);
  EXPECT_EQ(read, value_id(1, 4712));
}

TEST(Runner, ThreadsLoadEachRecordOnceAndNoTwoClientsAreTheSameWriter) {
  OrderedStore store(OrderedStore::Fault::kNone);
  Store* const stores[] = {&store};
  remote::Scheduler scheduler;
  std::uint64_t loaded = 0;
  for (const std::uint32_t thread : {0u, 1u, 2u}) {
    Runner runner(scheduler, stores,
                  {.records = 20, .clients = 2, .value_bytes = 32, .place = {.thread = thread, .threads = 3}});
    runner.start_load();
    for (Time now; !runner.done(); now = now + Duration::microseconds(1)) scheduler.run(now);
    loaded += runner.completed();
  }
  EXPECT_EQ(loaded, 20u);
  std::map<std::uint32_t, std::vector<Key>> by_writer;
  for (Key key = 0; key < 20; ++key) {
    std::vector<std::uint8_t> value(64);
    scheduler.spawn([](Store& from, Key wanted, std::vector<std::uint8_t>& into) -> remote::Task<void> {
      into.resize((co_await from.get(wanted, into)).length);
    }(store, key, value));
    scheduler.run(Time());
    const auto id = verify_value(key, value);
    ASSERT_TRUE(id.has_value()) << key;
    by_writer[writer_of(*id)].push_back(key);
  }
  EXPECT_EQ(by_writer.size(), 6u);
  for (const auto& [writer, keys] : by_writer) {
    EXPECT_NE(writer, 0u);
    for (const Key key : keys) EXPECT_EQ(key % 6, keys.front() % 6) << "of one client of one thread";
  }
}

RunResult scans_of(OrderedStore::Fault fault) {
  OrderedStore store(fault);
  Store* const stores[] = {&store};
  remote::Scheduler scheduler;
  Runner runner(scheduler, stores,
                {.mix = *Mix::parse("E"), .records = 100, .operations = 500, .clients = 2, .value_bytes = 32});
  runner.start_load();
  for (Time now; !runner.done(); now = now + Duration::microseconds(1)) scheduler.run(now);
  runner.start_run();
  for (Time now; !runner.done(); now = now + Duration::microseconds(1)) scheduler.run(now);
  return runner.result();
}

TEST(Runner, VerifiesWhatScansFind) {
  const RunResult right = scans_of(OrderedStore::Fault::kNone);
  EXPECT_GT(right.values_verified, 500u);
  EXPECT_EQ(right.values_wrong, 0u);
  for (const auto fault :
       {OrderedStore::Fault::kFlippedBit, OrderedStore::Fault::kOutOfOrder, OrderedStore::Fault::kBeforeTheFirst}) {
    const RunResult wrong = scans_of(fault);
    EXPECT_GT(wrong.values_wrong, 100u);
    EXPECT_EQ(wrong.errors.size(), 10u) << "the first of them";
  }
}

// A microsecond for every get; remembers the keys.
class TimedStore final : public Store {
 public:
  explicit TimedStore(remote::Scheduler& scheduler) : scheduler_(scheduler) {}

  std::string_view name() const override { return "timed"; }
  StoreAbilities abilities() const override { return {}; }
  std::size_t max_value_bytes() const override { return 64; }
  StoreCost cost() const override { return {.round_trips = keys.size()}; }
  remote::Task<GetResult> get(Key key, MutableBytes) override {
    keys.push_back(key);
    co_await scheduler_.sleep_for(Duration::microseconds(1));
    co_return GetResult{Outcome::kNotFound, 0};
  }
  remote::Task<Outcome> put(Key, ByteView) override { co_return Outcome::kRefused; }
  remote::Task<Outcome> insert(Key, ByteView) override { co_return Outcome::kRefused; }
  remote::Task<Outcome> erase(Key) override { co_return Outcome::kNotFound; }
  remote::Task<ScanResult> scan(Key, std::size_t, ScanSink&) override { co_return ScanResult{Outcome::kRefused, 0}; }

  std::vector<Key> keys;

 private:
  remote::Scheduler& scheduler_;
};

class TimedRun : public ::testing::Test {
 protected:
  void run_for(int microseconds) {
    for (int i = 0; i < microseconds; ++i) scheduler_.run(now_ = now_ + Duration::microseconds(1));
  }

  Time now_;
  remote::Scheduler scheduler_;
  TimedStore store_{scheduler_};
  Store* const stores_[1] = {&store_};
  Runner runner_{scheduler_,
                 stores_,
                 {.mix = *Mix::parse("C"), .records = 1000, .operations = 100, .clients = 1, .value_bytes = 32}};
};

TEST_F(TimedRun, EachRunHasKeysOfItsOwn) {
  runner_.start_run();
  run_for(110);
  ASSERT_TRUE(runner_.done());
  const auto first = std::exchange(store_.keys, {});
  runner_.start_run();
  run_for(110);
  EXPECT_EQ(runner_.completed(), 100u) << "of this run";
  EXPECT_EQ(runner_.result().operations(), 100u);
  EXPECT_EQ(runner_.result().cost.round_trips, 100u);
  ASSERT_EQ(store_.keys.size(), first.size());
  EXPECT_NE(store_.keys, first);
}

TEST_F(TimedRun, CountedAnewAResultHasNothingOfTheWarmUp) {
  runner_.start_run();
  run_for(40);
  const std::uint64_t before = runner_.completed();
  runner_.count_anew();
  EXPECT_EQ(runner_.result().operations(), 0u);
  run_for(80);
  ASSERT_TRUE(runner_.done());
  EXPECT_EQ(runner_.completed(), 100u);
  EXPECT_EQ(runner_.result().operations(), 100 - before);
  // The one that was under way had cost its round trip already.
  EXPECT_EQ(runner_.result().cost.round_trips, 100 - before - 1);
  EXPECT_LE((runner_.result().ended - runner_.result().begun).nanoseconds(), 61'000);
}

// What fails at its first try is quicker than what is done.
TEST(Runner, OperationsThatFailedAreNoLatency) {
  remote::Scheduler scheduler;
  TimedStore store(scheduler);
  Store* const stores[] = {&store};
  Runner runner(scheduler, stores,
                {.mix = *Mix::parse("A"), .records = 10, .operations = 200, .clients = 1, .value_bytes = 32});
  runner.start_run();
  for (Time now; !runner.done(); now = now + Duration::microseconds(1)) scheduler.run(now);
  const auto& reads = runner.result().actions[static_cast<std::size_t>(Action::kRead)];
  const auto& updates = runner.result().actions[static_cast<std::size_t>(Action::kUpdate)];
  EXPECT_GT(updates.count, 50u);
  EXPECT_EQ(updates.done(), 0u);
  EXPECT_EQ(updates.latency_ns.count(), 0u);
  EXPECT_EQ(reads.done(), reads.count);
  EXPECT_EQ(reads.latency_ns.count(), reads.count);
  EXPECT_EQ(runner.result().done(), reads.count);
}

TEST(RunResult, OperationsThatFailedAreNoThroughput) {
  RunResult result;
  auto& reads = result.actions[static_cast<std::size_t>(Action::kRead)];
  reads.count = 1000;
  reads.outcomes[static_cast<std::size_t>(Outcome::kOk)] = 100;
  reads.outcomes[static_cast<std::size_t>(Outcome::kNotFound)] = 50;
  reads.outcomes[static_cast<std::size_t>(Outcome::kUnavailable)] = 850;
  result.ended = result.begun + Duration::seconds(2);
  EXPECT_EQ(result.operations(), 1000u);
  EXPECT_EQ(reads.done(), 150u);
  EXPECT_DOUBLE_EQ(result.operations_per_second(), 75);
  result.ended = result.begun;
  EXPECT_DOUBLE_EQ(result.operations_per_second(), 0) << "of no time there is no rate";
}

// One of two threads that has its share done early does nothing for the rest of the time.
TEST(RunResult, ThroughputOfThreadsIsByTheTimeOfThemAll) {
  const auto ran = [](int from_second, int to_second) {
    RunResult result;
    auto& reads = result.actions[static_cast<std::size_t>(Action::kRead)];
    reads.count = reads.outcomes[static_cast<std::size_t>(Outcome::kOk)] = 1000;
    result.begun = Time{} + Duration::seconds(from_second);
    result.ended = Time{} + Duration::seconds(to_second);
    return result;
  };
  RunResult all;
  all.merge(ran(100, 101));
  all.merge(ran(101, 110));
  EXPECT_DOUBLE_EQ(all.seconds(), 10);
  EXPECT_DOUBLE_EQ(all.operations_per_second(), 200);
}

TEST(RunResult, OfThreadsIsAllThatTheyHaveDone) {
  const auto ran = [](std::uint64_t n) {
    RunResult result;
    for (RunResult::PerAction& action : result.actions) {
      action.count = n;
      action.outcomes[static_cast<std::size_t>(Outcome::kOk)] = n - 1;
      action.outcomes[static_cast<std::size_t>(Outcome::kUnknown)] = 1;
      action.latency_ns.record(static_cast<std::int64_t>(n), n - 1);
    }
    result.values_verified = 10 * n;
    result.values_wrong = n;
    result.errors.assign(n, "of " + std::to_string(n));
    result.cost = {.round_trips = n,
                   .remote_operations = 2 * n,
                   .remote_bytes = 3 * n,
                   .messages = 4 * n,
                   .atomics = 5 * n,
                   .atomics_failed = 6 * n,
                   .walks = 7 * n};
    return result;
  };
  RunResult all = ran(3);
  all.merge(ran(8));
  for (const RunResult::PerAction& action : all.actions) {
    EXPECT_EQ(action.count, 11u);
    EXPECT_EQ(action.done(), 9u);
    EXPECT_EQ(action.latency_ns.count(), 9u);
    EXPECT_EQ(action.latency_ns.min(), 3);
    EXPECT_EQ(action.latency_ns.max(), 8);
  }
  EXPECT_EQ(all.operations(), 11 * kActions);
  EXPECT_EQ(all.with_outcome(Outcome::kUnknown), 2 * kActions);
  EXPECT_EQ(all.values_verified, 110u);
  EXPECT_EQ(all.values_wrong, 11u);
  EXPECT_EQ(all.errors.size(), 10u) << "the first of them";
  EXPECT_EQ(all.errors.front(), "of 3");
  EXPECT_EQ(all.errors.back(), "of 8");
  EXPECT_EQ(all.cost.round_trips, 11u);
  EXPECT_EQ(all.cost.remote_operations, 22u);
  EXPECT_EQ(all.cost.remote_bytes, 33u);
  EXPECT_EQ(all.cost.messages, 44u);
  EXPECT_EQ(all.cost.atomics, 55u);
  EXPECT_EQ(all.cost.atomics_failed, 66u);
  EXPECT_EQ(all.cost.walks, 77u);
}

}  // namespace
}  // namespace sluice::workload
