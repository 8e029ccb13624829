#include "remote/local.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

namespace sluice::remote {
namespace {

constexpr std::uint64_t kBase = 0x10000;

LocalOptions seeded(std::uint64_t seed) { return {.mode = LocalMode::kSeeded, .seed = seed}; }

struct World {
  explicit World(const LocalOptions& options) : fabric(options) {
    node = fabric.add_node();
    region = fabric.add_region(node, kBase, 4096);
  }
  Scheduler scheduler;
  LocalFabric fabric;
  NodeId node;
  RemoteAddress region;

  void run() { run_until_idle(scheduler, fabric, Time(), Time::at(Duration::seconds(1))); }
  // As well, and every coroutine must have ended.
  void run_out() {
    run();
    EXPECT_EQ(scheduler.live(), 0u);
  }
};

Task<void> write_then_read(RemoteMemory& memory, RemoteAddress at, bool& same) {
  const std::array<std::uint8_t, 5> sent{1, 2, 3, 4, 5};
  std::array<std::uint8_t, 5> got{};
  const Status wrote = co_await memory.write(at, sent);
  const Status read = co_await memory.read(at, got);
  same = wrote == Status::kOk && read == Status::kOk && sent == got;
}

TEST(Local, ReadsBackWhatItWroteInBothModes) {
  for (const auto mode : {LocalMode::kImmediate, LocalMode::kSeeded}) {
    World w({.mode = mode});
    LocalMemory memory(w.scheduler, w.fabric);
    bool same = false;
    w.scheduler.spawn(write_then_read(memory, w.region + 7, same));
    w.run();
    EXPECT_TRUE(same);
    EXPECT_EQ(memory.traffic().operations, 2u);
    EXPECT_EQ(memory.traffic().payload_bytes, 10u);
  }
}

Task<void> expect_status(RemoteMemory& memory, Operation operation, Status expected) {
  struct Awaiter {
    RemoteMemory& memory;
    Operation& operation;
    std::coroutine_handle<> waiter{};
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> handle) {
      waiter = handle;
      operation.context = this;
      operation.on_complete = [](Operation& o) {
        auto& self = *static_cast<Awaiter*>(o.context);
        self.memory.scheduler().post(self.waiter);
      };
      memory.submit(operation);
    }
    void await_resume() const {}
  };
  co_await Awaiter{memory, operation};
  EXPECT_EQ(operation.status, expected) << to_string(operation.status);
}

TEST(Local, RefusesWhatItsContractSaysItRefuses) {
  for (const auto mode : {LocalMode::kImmediate, LocalMode::kSeeded}) {
    World w({.mode = mode, .max_length = 2048});
    const auto read_only = w.fabric.add_region(w.node, 0, 64, {.read = true, .write = false, .atomic = false});
    LocalMemory memory(w.scheduler, w.fabric);
    std::vector<std::uint8_t> buffer(4096, 0xEE);
    const MutableBytes all(buffer);
    const auto expect = [&](OpKind kind, RemoteAddress at, std::size_t length, Status status) {
      w.scheduler.spawn(expect_status(memory, {.kind = kind, .remote = at, .local = all.first(length)}, status));
    };
    auto bad_key = w.region;
    bad_key.key = RegionKey(w.region.key.value + 5);
    auto other_node = w.region;
    other_node.node = NodeId(9);
    expect(OpKind::kRead, bad_key, 8, Status::kAccessDenied);
    expect(OpKind::kWrite, w.region + 4089, 8, Status::kAccessDenied);
    expect(OpKind::kWrite, RemoteAddress{w.node, w.region.key, kBase - 1}, 8, Status::kAccessDenied);
    expect(OpKind::kWrite, RemoteAddress{w.node, w.region.key, ~std::uint64_t{0}}, 8, Status::kAccessDenied);
    expect(OpKind::kFetchAndAdd, w.region + 4096, 0, Status::kAccessDenied);
    expect(OpKind::kCompareAndSwap, w.region + 4, 0, Status::kMisaligned);
    expect(OpKind::kRead, other_node, 8, Status::kNodeUnknown);
    expect(OpKind::kRead, w.region, 4096, Status::kTooLong);
    expect(OpKind::kWrite, read_only, 8, Status::kAccessDenied);
    expect(OpKind::kCompareAndSwap, read_only, 0, Status::kAccessDenied);
    expect(OpKind::kRead, read_only, 64, Status::kOk);
    w.run();
    for (const auto byte : w.fabric.region_bytes(w.region)) ASSERT_EQ(byte, 0);
  }
}

Task<void> add_many(RemoteMemory& memory, RemoteAddress at, int n, std::set<std::uint64_t>& priors) {
  for (int i = 0; i < n; ++i) {
    const AtomicResult r = co_await memory.fetch_and_add(at, 1);
    EXPECT_EQ(r.status, Status::kOk);
    EXPECT_TRUE(priors.insert(r.prior).second) << "two clients saw the same prior value";
  }
}

TEST(Local, AtomicsOfManyClientsSeeEveryPriorValueOnce) {
  World w(seeded(3));
  std::vector<std::unique_ptr<LocalMemory>> clients;
  std::set<std::uint64_t> priors;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<LocalMemory>(w.scheduler, w.fabric));
    w.scheduler.spawn(add_many(*clients.back(), w.region, 100, priors));
  }
  w.run();
  EXPECT_EQ(priors.size(), 800u);
  EXPECT_EQ(load_le<std::uint64_t>(w.fabric.region_bytes(w.region).data()), 800u);
}

// Two writes to the same word without waiting for the first: which one stays?
Task<void> write_twice(RemoteMemory& memory, RemoteAddress at) {
  const std::array<std::uint8_t, 1> first{1};
  const std::array<std::uint8_t, 1> second{2};
  auto a = memory.write(at, first);
  auto b = memory.write(at, second);
  a.start();
  b.start();
  co_await b;
  co_await a;
}

TEST(Local, KeepsTheOrderOfSubmissionWithinAConnection) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    World w(seeded(seed));
    LocalMemory memory(w.scheduler, w.fabric);
    w.scheduler.spawn(write_twice(memory, w.region));
    w.run_out();
    EXPECT_EQ(w.fabric.region_bytes(w.region)[0], 2);
  }
}

Task<void> write_one(RemoteMemory& memory, RemoteAddress at, std::uint8_t value) {
  const std::vector<std::uint8_t> bytes(64, value);
  co_await memory.write(at, bytes);
}

Task<void> read_one(RemoteMemory& memory, RemoteAddress at, std::vector<std::uint8_t>& into) {
  into.resize(64);
  co_await memory.read(at, into);
}

TEST(Local, ExploresEveryInterleavingOfTwoClientsOverSeeds) {
  std::set<std::uint8_t> last;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    World w(seeded(seed));
    LocalMemory a(w.scheduler, w.fabric);
    LocalMemory b(w.scheduler, w.fabric);
    w.scheduler.spawn(write_one(a, w.region, 1));
    w.scheduler.spawn(write_one(b, w.region, 2));
    w.run();
    last.insert(w.fabric.region_bytes(w.region)[0]);
  }
  EXPECT_EQ(last, (std::set<std::uint8_t>{1, 2}));
}

TEST(Local, TearsReadsOnlyWhenAskedTo) {
  for (const std::uint32_t piece : {0u, 8u}) {
    int torn = 0;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      auto options = seeded(seed);
      options.piece_bytes = piece;
      World w(options);
      LocalMemory a(w.scheduler, w.fabric);
      LocalMemory b(w.scheduler, w.fabric);
      std::vector<std::uint8_t> got;
      w.scheduler.spawn(write_one(a, w.region, 7));
      w.scheduler.spawn(read_one(b, w.region, got));
      w.run();
      torn += std::set<std::uint8_t>(got.begin(), got.end()).size() == 2;
    }
    EXPECT_EQ(torn > 0, piece != 0);
  }
}

TEST(Local, IsTheSameAgainForTheSameSeed) {
  const auto trace = [](std::uint64_t seed) {
    auto options = seeded(seed);
    options.disconnect_per_million = 50'000;
    World w(options);
    std::vector<std::unique_ptr<LocalMemory>> clients;
    for (std::uint8_t i = 0; i < 20; ++i) {
      clients.push_back(std::make_unique<LocalMemory>(w.scheduler, w.fabric));
      w.scheduler.spawn(write_one(*clients.back(), w.region + 32u * i, i));
    }
    w.run();
    const auto bytes = w.fabric.region_bytes(w.region);
    return std::vector<std::uint8_t>(bytes.begin(), bytes.end());
  };
  EXPECT_EQ(trace(5), trace(5));
  EXPECT_NE(trace(5), trace(6));
}

Task<void> add_all(RemoteMemory& memory, RemoteAddress at, std::uint64_t& sum) {
  std::array<Operation, 3> operations{add_operation(at, 1), add_operation(at, 10), add_operation(at + 4, 100)};
  co_await memory.all(operations);
  EXPECT_EQ(operations[2].status, Status::kMisaligned);
  sum = operations[0].prior + operations[1].prior;
  co_await memory.all({});
}

TEST(Local, WaitsForAllOperationsOfABatch) {
  for (const auto mode : {LocalMode::kImmediate, LocalMode::kSeeded}) {
    World w({.mode = mode});
    LocalMemory memory(w.scheduler, w.fabric);
    std::uint64_t sum = 0;
    w.scheduler.spawn(add_all(memory, w.region, sum));
    w.run();
    EXPECT_EQ(w.scheduler.live(), 0u);
    EXPECT_EQ(sum, 1u);
    EXPECT_EQ(w.fabric.region_bytes(w.region)[0], 11);
  }
}

struct Outcome {
  Status status = Status::kOk;
  bool done = false;
};

Task<void> swap_once(RemoteMemory& memory, RemoteAddress at, Outcome& outcome) {
  const AtomicResult r = co_await memory.compare_and_swap(at, 0, 1);
  outcome = {r.status, true};
}

TEST(Local, ALostConnectionLeavesTheOutcomeToTheSeedAndWorksAgain) {
  int happened = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    World w(seeded(seed));
    LocalMemory memory(w.scheduler, w.fabric);
    Outcome first;
    w.scheduler.spawn(swap_once(memory, w.region, first));
    w.scheduler.run(Time());
    memory.disconnect(w.node);
    w.scheduler.run(Time());
    ASSERT_TRUE(first.done);
    EXPECT_EQ(first.status, Status::kUnknown);
    happened += w.fabric.region_bytes(w.region)[0] == 1;
    Outcome second;
    w.scheduler.spawn(swap_once(memory, w.region, second));
    w.run();
    EXPECT_EQ(second.status, Status::kOk);
  }
  EXPECT_GT(happened, 20);
  EXPECT_LT(happened, 80);
}

TEST(Local, AStragglerMayExecuteAfterItsConnectionWasLostButNotLaterThanItsLifetime) {
  int late = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    auto options = seeded(seed);
    options.straggler_lifetime = Duration::microseconds(10);
    World w(options);
    LocalMemory memory(w.scheduler, w.fabric);
    Outcome outcome;
    w.scheduler.spawn(swap_once(memory, w.region, outcome));
    w.scheduler.run(Time());
    memory.disconnect(w.node);
    const bool at_once = w.fabric.region_bytes(w.region)[0] == 1;
    Time now;
    for (int i = 0; i < 1000; ++i) w.fabric.pump(now = now + Duration::nanoseconds(10));
    const bool later = w.fabric.region_bytes(w.region)[0] == 1;
    late += !at_once && later;
    for (int i = 0; i < 1000; ++i) w.fabric.pump(now = now + Duration::nanoseconds(10));
    EXPECT_EQ(w.fabric.region_bytes(w.region)[0] == 1, later);
  }
  EXPECT_GT(late, 5);
}

TEST(Local, AKilledNodeAnswersUnknownToWhatWasInFlightAndUnreachableAfterwards) {
  World w(seeded(1));
  LocalMemory memory(w.scheduler, w.fabric);
  Outcome in_flight;
  Outcome afterwards;
  w.scheduler.spawn(swap_once(memory, w.region, in_flight));
  w.scheduler.run(Time());
  w.fabric.kill_node(w.node);
  w.scheduler.spawn(swap_once(memory, w.region, afterwards));
  w.run();
  EXPECT_EQ(in_flight.status, Status::kUnknown);
  EXPECT_EQ(afterwards.status, Status::kUnreachable);
  EXPECT_FALSE(w.fabric.alive(w.node));
}

TEST(Local, AStoppedNodeGoesOnWithItsBytesUnderAnotherKey) {
  World w(seeded(1));
  LocalMemory memory(w.scheduler, w.fabric);
  const auto swapped = [&](RemoteAddress at) {
    Outcome outcome;
    w.scheduler.spawn(swap_once(memory, at, outcome));
    w.run();
    return outcome.status;
  };
  EXPECT_EQ(swapped(w.region), Status::kOk);
  w.fabric.stop_node(w.node);
  EXPECT_EQ(swapped(w.region + 8), Status::kUnreachable);
  const RemoteAddress now = w.fabric.resume_node(w.region);
  EXPECT_NE(now.key, w.region.key);
  EXPECT_EQ(swapped(w.region + 8), Status::kAccessDenied);
  EXPECT_EQ(w.fabric.region_bytes(now)[0], 1);
  EXPECT_EQ(swapped(now + 8), Status::kOk);
}

class LocalCut : public testing::TestWithParam<LocalMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, LocalCut, testing::Values(LocalMode::kImmediate, LocalMode::kSeeded));

TEST_P(LocalCut, ANodeThatIsCutOffFromOneClientLivesForOthers) {
  World w({.mode = GetParam(), .seed = 1});
  LocalMemory one(w.scheduler, w.fabric);
  LocalMemory other(w.scheduler, w.fabric);
  one.cut(w.node);
  Outcome a;
  Outcome b;
  w.scheduler.spawn(swap_once(one, w.region, a));
  w.scheduler.spawn(swap_once(other, w.region + 8, b));
  w.run();
  EXPECT_EQ(a.status, Status::kUnreachable);
  EXPECT_EQ(b.status, Status::kOk);
  EXPECT_EQ(w.fabric.region_bytes(w.region)[0], 0);
  one.mend(w.node);
  w.scheduler.spawn(swap_once(one, w.region, a));
  w.run();
  EXPECT_EQ(a.status, Status::kOk);
}

TEST(Local, AKilledClientNeverHearsAgain) {
  World w(seeded(1));
  Outcome outcome;
  auto memory = std::make_unique<LocalMemory>(w.scheduler, w.fabric);
  w.scheduler.spawn(swap_once(*memory, w.region, outcome));
  w.scheduler.run(Time());
  memory->kill();
  w.run();
  EXPECT_FALSE(outcome.done);
  EXPECT_EQ(w.fabric.in_flight(), 0u);
}

// Answers each message with its bytes reversed.
class Reverser : public MessageService {
 public:
  std::size_t handle(Time, ByteView request, MutableBytes response) override {
    ++handled;
    std::copy(request.rbegin(), request.rend(), response.begin());
    return request.size();
  }
  int handled = 0;
};

Task<void> call_once(MessageChannel& channel, MessageResult& result, std::vector<std::uint8_t>& answer) {
  const std::array<std::uint8_t, 3> request{1, 2, 3};
  answer.resize(8);
  result = co_await channel.call(request, answer);
  answer.resize(result.length);
}

TEST(Local, CallsAServiceAndTellsWhenItIsGone) {
  for (const auto mode : {LocalMode::kImmediate, LocalMode::kSeeded}) {
    World w({.mode = mode});
    Reverser service;
    LocalChannel channel(w.scheduler, w.fabric, service);
    MessageResult result;
    std::vector<std::uint8_t> answer;
    w.scheduler.spawn(call_once(channel, result, answer));
    w.run();
    EXPECT_EQ(result.status, Status::kOk);
    EXPECT_EQ(answer, (std::vector<std::uint8_t>{3, 2, 1}));
    channel.set_service(nullptr);
    w.scheduler.spawn(call_once(channel, result, answer));
    w.run();
    EXPECT_EQ(result.status, Status::kUnreachable);
    EXPECT_EQ(service.handled, 1);
  }
}

TEST(Local, ACallInFlightOnALostConnectionIsUnknownWhetherHandledOrNot) {
  int handled = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    World w(seeded(seed));
    Reverser service;
    LocalChannel channel(w.scheduler, w.fabric, service);
    MessageResult result;
    std::vector<std::uint8_t> answer;
    w.scheduler.spawn(call_once(channel, result, answer));
    w.scheduler.run(Time());
    channel.disconnect();
    w.run();
    EXPECT_EQ(result.status, Status::kUnknown);
    handled += service.handled;
  }
  EXPECT_GT(handled, 20);
  EXPECT_LT(handled, 80);
}

}  // namespace
}  // namespace sluice::remote
