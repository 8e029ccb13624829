#include "nic/nic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "nic/machine_poll.h"
#include "port/memory_port.h"
#include "rc/neighbors.h"
#include "rc/remote_rc.h"

namespace sluice::nic {
namespace {

using rc::QpState;
using wire::Gid;
using wire::Ipv4Address;

ShardAddress address(std::uint8_t n) {
  return {wire::MacAddress{{2, 0, 0, 0, 0, n}}, {Gid::from(Ipv4Address{0x0A4D0000u + n})}};
}

// A port whose program is stopped for a while in the midst of what it sends.
class StoppingPort final : public port::Port {
 public:
  explicit StoppingPort(std::unique_ptr<port::Port> inner) : inner_(std::move(inner)) {}
  void stop_at_next_frame(Duration duration) { stop_ = duration; }

  std::uint8_t* reserve(std::size_t length) override { return inner_->reserve(length); }
  void commit(std::size_t length) override {
    inner_->commit(length);
    const Clock clock;
    while (clock.now().since_start() < stop_) {
    }
    stop_ = {};
  }
  bool flush_some(Time now) override { return inner_->flush_some(now); }
  void discard() override { inner_->discard(); }
  std::size_t receive(Time now, std::span<port::Frame> burst) override { return inner_->receive(now, burst); }
  const port::PortCounters& counters() const override { return inner_->counters(); }
  std::string name() const override { return "stopping"; }

 private:
  std::unique_ptr<port::Port> inner_;
  Duration stop_;
};

// Two NICs on one cable in one loop, a queue pair from client to server.
class NicTest : public testing::Test {
 public:  // the tests' coroutines are lambdas without captures
  explicit NicTest(Duration longest_lag = kLongestLag, Duration leaves_within = {})
      : loop_({.longest_lag = longest_lag}) {
    auto cable = port::make_memory_cable(8);
    auto stopping = std::make_unique<StoppingPort>(std::move(cable.a));
    port_ = stopping.get();
    Shard& shard = client_.add_shard(address(1), std::move(stopping));
    shard.attach(loop_);
    server_.add_shard(address(2), std::move(cable.b)).attach(loop_);
    completions_ = client().create_completion_queue(1024);
    remote_ = std::make_unique<rc::RemoteRc>(scheduler_, client(), *completions_, leaves_within);
    polled_ = std::make_unique<Polled<rc::RemoteRc>>(*remote_);
    loop_.add(*polled_);
    loop_.add(coroutines_);
    connect();
  }
  rc::Adapter& client() { return client_.shard(0).adapter(); }
  rc::Adapter& server() { return server_.shard(0).adapter(); }

  void connect() {
    auto* unused = server().create_completion_queue(16);
    const memory::PdId domain = server().create_domain();
    rc::QueuePair* b =
        server().create_queue_pair({.pd = domain, .send_completions = unused, .receive_completions = unused}).value();
    rc::QueuePair* a =
        client()
            .create_queue_pair(
                {.pd = client().create_domain(), .send_completions = completions_, .receive_completions = completions_})
            .value();
    ready(client(), *a, b->qpn(), address(2).gids[0]);
    ready(server(), *b, a->qpn(), address(1).gids[0]);
    remote_->add_node(remote::NodeId(2), *a);
    key_ = server_.regions()
               .add({.pd = domain, .bytes = memory_, .address = 0x1000, .access = memory::kAllAccess})
               .value();
  }
  void ready(rc::Adapter& adapter, rc::QueuePair& pair, wire::Qpn peer, const Gid& gid) {
    const Time now = loop_.now();
    ASSERT_TRUE(adapter.modify(now, pair, {.state = QpState::kInit, .access = memory::kAllAccess}));
    ASSERT_TRUE(adapter.modify(now, pair,
                               {.state = QpState::kReadyToReceive,
                                .remote_gid = gid,
                                .remote_qpn = peer,
                                .path_mtu = 4096,
                                .receive_psn = wire::Psn(7),
                                .min_rnr_timer = 1,
                                .max_reads_in = 16}));
    ASSERT_TRUE(adapter.modify(now, pair,
                               {.state = QpState::kReadyToSend,
                                .send_psn = wire::Psn(7),
                                .timeout = 14,
                                .retry_count = 7,
                                .rnr_retry_count = 7,
                                .max_reads_out = 16}));
  }
  remote::RemoteAddress at(std::uint64_t offset) const {
    return {remote::NodeId(2), remote::RegionKey(key_.value), 0x1000 + offset};
  }
  void run(remote::Task<void> task) {
    scheduler_.spawn(std::move(task));
    ASSERT_TRUE(loop_.run_until([&] { return scheduler_.live() == 0; }));
  }

  PollLoop loop_;
  StoppingPort* port_ = nullptr;  // the client's
  Nic client_{NicConfig{}};
  Nic server_{NicConfig{}};
  remote::Scheduler scheduler_;
  SchedulerPoll coroutines_{scheduler_};
  rc::CompletionQueue* completions_ = nullptr;
  std::unique_ptr<rc::RemoteRc> remote_;
  std::unique_ptr<Polled<rc::RemoteRc>> polled_;
  std::vector<std::uint8_t> memory_ = std::vector<std::uint8_t>(1 << 20);
  memory::Key key_{};
};

TEST_F(NicTest, CoroutinesReadWriteAndSwapAcrossACable) {
  run([](NicTest& t) -> remote::Task<void> {
    std::vector<std::uint8_t> out(100'000);
    std::iota(out.begin(), out.end(), std::uint8_t{3});
    EXPECT_EQ(co_await t.remote_->write(t.at(64), out), remote::Status::kOk);
    std::vector<std::uint8_t> in(out.size());
    EXPECT_EQ(co_await t.remote_->read(t.at(64), in), remote::Status::kOk);
    EXPECT_EQ(in, out);
    const auto added = co_await t.remote_->fetch_and_add(t.at(0), 5);
    EXPECT_EQ(added.prior, 0u);
    const auto swapped = co_await t.remote_->compare_and_swap(t.at(0), 5, 9);
    EXPECT_EQ(swapped.prior, 5u);
  }(*this));
  EXPECT_EQ(memory_[0], 9);
  EXPECT_EQ(memory_[64], 3);
}

TEST_F(NicTest, ManyOperationsAtOnceCompleteThoughThePortIsSmall) {
  int done = 0;
  for (int i = 0; i < 200; ++i) {
    scheduler_.spawn([](NicTest& t, int n, int& count) -> remote::Task<void> {
      std::vector<std::uint8_t> bytes(9'000, static_cast<std::uint8_t>(n));
      const auto place = t.at(static_cast<std::uint64_t>(n % 100) * 10'000);
      EXPECT_EQ(co_await t.remote_->write(place, bytes), remote::Status::kOk);
      EXPECT_EQ(co_await t.remote_->read(place, bytes), remote::Status::kOk);
      ++count;
    }(*this, i, done));
  }
  ASSERT_TRUE(loop_.run_until([&] { return scheduler_.live() == 0; }));
  EXPECT_EQ(done, 200);
  EXPECT_GT(client_.shard(0).port().counters().tx_full, 0u) << "the cable of 8 frames was meant to be too small";
}

TEST_F(NicTest, ABadKeyEndsTheOperationAndTheConnection) {
  run([](NicTest& t) -> remote::Task<void> {
    std::uint8_t byte = 1;
    auto place = t.at(0);
    place.key.value ^= 0xFF;
    EXPECT_EQ(co_await t.remote_->write(place, {&byte, 1}), remote::Status::kAccessDenied);
    EXPECT_EQ(co_await t.remote_->write(t.at(0), {&byte, 1}), remote::Status::kUnreachable);
  }(*this));
  EXPECT_FALSE(remote_->connected(remote::NodeId(2)));
}

TEST_F(NicTest, CoroutinesSleepInRealTime) {
  const Time start = loop_.now();
  run([](NicTest& t) -> remote::Task<void> { co_await t.scheduler_.sleep_for(Duration::milliseconds(3)); }(*this));
  EXPECT_GE(loop_.now() - start, Duration::milliseconds(3));
}

// Its loop finds out when it has been stopped for longer than 20 ms.
class StoppedNicTest : public NicTest {
 protected:
  explicit StoppedNicTest(Duration leaves_within = {}) : NicTest(Duration::milliseconds(20), leaves_within) {}
  void write_and_be_stopped(remote::Status& status) {
    run([](NicTest& t) -> remote::Task<void> {  // addresses are resolved
      std::uint8_t byte = 1;
      EXPECT_EQ(co_await t.remote_->read(t.at(0), {&byte, 1}), remote::Status::kOk);
    }(*this));
    port_->stop_at_next_frame(Duration::milliseconds(60));
    run([](NicTest& t, remote::Status& outcome) -> remote::Task<void> {
      const std::uint8_t byte = 7;
      outcome = co_await t.remote_->write(t.at(0), {&byte, 1});
    }(*this, status));
    EXPECT_GE(client_.shard(0).port().counters().tx_discarded, 1u);
    EXPECT_GE(loop_.counters().stops, 1u);
  }
};

TEST_F(StoppedNicTest, SendsAgainWhatWasDiscardedWhenTheProgramWasStoppedAmidIt) {
  remote::Status status{};
  write_and_be_stopped(status);
  EXPECT_EQ(status, remote::Status::kOk);
  EXPECT_EQ(memory_[0], 7);
}

class StoppedNicOfAStore : public StoppedNicTest {
 protected:
  StoppedNicOfAStore() : StoppedNicTest(Duration::milliseconds(40)) {}
};

// What it had packed in time must not come out afterwards.
TEST_F(StoppedNicOfAStore, NothingIsExecutedLaterThanItMayLeave) {
  remote::Status status{};
  write_and_be_stopped(status);
  EXPECT_EQ(status, remote::Status::kUnknown);
  for (const Time end = loop_.now() + Duration::milliseconds(2); loop_.now() < end;) loop_.turn();
  EXPECT_EQ(memory_[0], 0);
}

TEST(HeldUp, IsADeadlineOfThePastUntilNothingHasMovedForAWhile) {
  HeldUp held_up;
  EXPECT_FALSE(held_up);
  EXPECT_EQ(held_up.next_try(), Time::never());
  Time now = Time::at(Duration::seconds(1));
  held_up.note(now, true, false);
  EXPECT_TRUE(held_up);
  EXPECT_EQ(held_up.next_try(), Time());
  held_up.note(now + HeldUp::kPatience, true, false);
  EXPECT_EQ(held_up.next_try(), now + HeldUp::kPatience + HeldUp::kPause);
  now = now + HeldUp::kPatience * 2;
  held_up.note(now, true, true);
  EXPECT_EQ(held_up.next_try(), Time()) << "some have left";
  held_up.note(now + HeldUp::kPatience, false, false);
  EXPECT_FALSE(held_up);
  EXPECT_EQ(held_up.next_try(), Time::never());
}

// Its reader never comes.
class FullPort final : public port::Port {
 public:
  std::uint8_t* reserve(std::size_t) override {
    ++counters_.tx_full;
    return nullptr;
  }
  void commit(std::size_t) override {}
  bool flush_some(Time) override { return false; }
  void discard() override {}
  std::size_t receive(Time, std::span<port::Frame>) override { return 0; }
  const port::PortCounters& counters() const override { return counters_; }
  std::string name() const override { return "full"; }

 private:
  port::PortCounters counters_;
};

// Whoever empties a port that is full may wait for the core that the loop runs on; who does not empty it is stopped.
void expect_yields_and_then_sleeps(PollLoop& loop) {
  ASSERT_TRUE(loop.run_until([&] { return loop.counters().sleeps == 1; }));
  EXPECT_GE(loop.now().since_start(), HeldUp::kPatience) << "at first it only yields: nobody would wake it";
  const PollLoopCounters before = loop.counters();
  ASSERT_TRUE(loop.run_until([&] { return loop.counters().sleeps == 10; }));
  EXPECT_LT(loop.counters().turns - before.turns, 10'000u) << "few turns in between";
  EXPECT_LT(loop.counters().busy_turns, 10u) << "only deadlines of the adapter's are work";
}

TEST(Nic, AFullPortLeavesTheCoreToOthers) {
  PollLoop loop;
  Nic nic{NicConfig{}};
  Shard& shard = nic.add_shard(address(1), std::make_unique<FullPort>());
  shard.attach(loop);
  shard.adapter().neighbors().resolve(loop.now(), address(2).gids[0]);  // something to send
  expect_yields_and_then_sleeps(loop);
}

TEST(MachinePoll, AFullPortLeavesTheCoreToOthers) {
  PollLoop loop;
  rc::AdapterConfig config;
  config.mac = address(1).mac;
  config.gids = address(1).gids;
  rc::Adapter machine(config);
  MachinePoll polled(machine, std::make_unique<FullPort>());
  polled.attach(loop);
  machine.neighbors().resolve(loop.now(), address(2).gids[0]);
  expect_yields_and_then_sleeps(loop);
}

// Frames that came while the program was stopped.
class BacklogPort final : public port::Port {
 public:
  explicit BacklogPort(std::size_t frames) : frames_(frames) {}
  std::uint8_t* reserve(std::size_t) override { return nullptr; }
  void commit(std::size_t) override {}
  bool flush_some(Time) override { return false; }
  void discard() override {}
  std::size_t receive(Time, std::span<port::Frame> burst) override {
    const std::size_t count = std::min(frames_, burst.size());
    frames_ -= count;
    return count;
  }
  const port::PortCounters& counters() const override { return counters_; }
  std::string name() const override { return "backlog"; }

 private:
  std::size_t frames_;
  port::PortCounters counters_;
};

// Its deadline waits for a certain frame.
struct WaitingMachine {
  void on_frame(Time, port::Frame) {
    if (++frames == awaited) deadline = Time::never();
  }
  bool poll_transmit(Time, port::FrameSink&) { return false; }
  Time next_deadline() const { return deadline; }
  void on_deadline(Time) {
    ++timeouts;
    deadline = Time::never();
  }

  std::size_t awaited;
  Time deadline = Time::at(Duration::milliseconds(67));
  std::size_t frames = 0;
  int timeouts = 0;
};

TEST(MachinePoll, AfterAStopADeadlineWaitsForWhatHasCome) {
  WaitingMachine machine{.awaited = 999};
  MachinePoll polled(machine, std::make_unique<BacklogPort>(1000));
  polled.poll(Time::at(Duration::milliseconds(1)));
  ASSERT_LT(machine.frames, machine.awaited) << "more than a turn takes";
  for (int turn = 0; turn < 20; ++turn) polled.poll(Time::at(Duration::milliseconds(100)));
  EXPECT_EQ(machine.frames, 1000u);
  EXPECT_EQ(machine.timeouts, 0);
}

TEST(MachinePoll, ADeadlinePassesWhereFramesComeWithoutEnd) {
  WaitingMachine machine{.awaited = 1'000'000};
  MachinePoll polled(machine, std::make_unique<BacklogPort>(1'000'000));
  for (int turn = 0; turn < 64; ++turn) {
    EXPECT_EQ(machine.timeouts, 0) << turn;
    polled.poll(Time::at(Duration::milliseconds(100 + turn * 10)));  // as if stopped again and again
  }
  EXPECT_EQ(machine.timeouts, 1);
  machine.deadline = Time::at(Duration::milliseconds(730));
  polled.poll(Time::at(Duration::milliseconds(732)));
  EXPECT_EQ(machine.timeouts, 2) << "who is not stopped is not patient";
}

TEST(Nic, ShardsTakeDisjointQpnsAndShareRegions) {
  Nic nic({.queue_pairs_per_shard = 1000});
  auto one = port::make_memory_cable();
  auto two = port::make_memory_cable();
  rc::Adapter& a = nic.add_shard(address(1), std::move(one.a)).adapter();
  rc::Adapter& b = nic.add_shard(address(2), std::move(two.a)).adapter();
  const auto make = [](rc::Adapter& adapter) {
    auto* queue = adapter.create_completion_queue(4);
    return adapter.create_queue_pair({.send_completions = queue, .receive_completions = queue}).value()->qpn().value;
  };
  EXPECT_EQ(make(b), make(a) + 1000);
  EXPECT_EQ(&a.regions(), &b.regions());
  EXPECT_EQ(&a.regions(), &nic.regions());
}

}  // namespace
}  // namespace sluice::nic
