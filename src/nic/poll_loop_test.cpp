#include "nic/poll_loop.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

#include "remote/scheduler.h"

namespace sluice::nic {
namespace {

// Sleeps as soon as it may.
constexpr WaitPolicy kSleepy{.spin_turns = 1, .awake = Duration{}, .shortest_sleep = Duration{}};

class Counting final : public Pollable {
 public:
  std::size_t poll(Time now) override {
    ++polls;
    last = now;
    if (on_poll) on_poll(now);
    return work;
  }
  void transmit(Time now) override {
    ++transmits;
    if (on_transmit) on_transmit(now);
  }
  Time next_deadline() const override { return deadline; }

  int polls = 0;
  int transmits = 0;
  std::size_t work = 0;
  Time last;
  Time deadline = Time::never();
  std::function<void(Time)> on_poll;
  std::function<void(Time)> on_transmit;
};

// A port that has nothing to say until its bell rings.
class BellPort final : public port::Port {
 public:
  explicit BellPort(int bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) : bell_(bell) {}
  ~BellPort() override {
    if (bell_ >= 0) close(bell_);
  }
  std::uint8_t* reserve(std::size_t) override { return nullptr; }
  void commit(std::size_t) override {}
  bool flush_some(Time now) override {
    ++flushes;
    flushed_at = now;
    return on_flush && on_flush();
  }
  void discard() override { ++discards; }
  std::size_t receive(Time, std::span<port::Frame>) override { return 0; }
  int wait_descriptor() const override { return bell_; }
  bool arm() override {
    ++arms;
    if (refusals > 0) return --refusals, false;
    armed = true;
    if (on_arm) on_arm();
    return true;
  }
  void disarm() override {
    armed = false;
    std::uint64_t rings = 0;
    static_cast<void>(!read(bell_, &rings, sizeof rings));
  }
  const port::PortCounters& counters() const override { return counters_; }
  std::string name() const override { return "bell"; }

  void ring() const {
    const std::uint64_t one = 1;
    ASSERT_EQ(write(bell_, &one, sizeof one), 8);
  }

  int flushes = 0;
  int discards = 0;
  Time flushed_at;
  int arms = 0;
  int refusals = 0;
  bool armed = false;
  std::function<void()> on_arm;
  std::function<bool()> on_flush;  // is there more?

 private:
  int bell_;
  port::PortCounters counters_;
};

// As one that is stopped and goes on.
void let_pass(Duration duration) {
  const Clock clock;
  while (clock.now().since_start() <= duration) {
  }
}

TEST(PollLoop, PollsAllThenTransmitsAllThenFlushesThePortsInATurn) {
  PollLoop loop;
  Counting a;
  Counting b;
  BellPort port;
  b.on_poll = [&](Time) { EXPECT_EQ(a.transmits, b.transmits); };
  b.on_transmit = [&](Time) { EXPECT_EQ(port.flushes, b.transmits - 1); };
  loop.add_port(port);
  loop.add(a);
  loop.add(b);
  EXPECT_EQ(loop.turn(), 0u);
  b.work = 3;
  EXPECT_EQ(loop.turn(), 3u);
  EXPECT_EQ(a.polls, 2);
  EXPECT_EQ(a.transmits, 2);
  EXPECT_EQ(b.transmits, 2);
  EXPECT_EQ(port.flushes, 2);
  EXPECT_EQ(a.last, b.last) << "one clock read for all of them";
}

// A program may be stopped amid a turn: what leaves at its end is judged by the time that it is then.
TEST(PollLoop, TransmitsAndFlushesByTheTimeThatItIsThen) {
  PollLoop loop({.longest_lag = Duration::seconds(60)});
  Counting pollable;
  BellPort port;
  Time transmitted;
  pollable.on_poll = [](Time) { let_pass(Duration::microseconds(1)); };
  pollable.on_transmit = [&](Time now) {
    transmitted = now;
    let_pass(Duration::microseconds(1));
  };
  loop.add(pollable);
  loop.add_port(port);
  loop.turn();
  EXPECT_GT(transmitted, pollable.last);
  EXPECT_GT(port.flushed_at, transmitted);
}

TEST(PollLoop, DiscardsWhatThePortsWereGivenBeforeItWasStopped) {
  PollLoop loop({.longest_lag = Duration::milliseconds(1)});
  Counting pollable;
  BellPort port;
  pollable.on_transmit = [](Time) { let_pass(Duration::milliseconds(1)); };
  loop.add(pollable);
  loop.add_port(port);
  loop.turn();
  EXPECT_EQ(port.flushes, 0);
  EXPECT_EQ(port.discards, 1);
  EXPECT_EQ(loop.counters().stops, 1u);
}

TEST(PollLoop, DiscardsWhatThePortsWereGivenInPollBeforeItWasStopped) {
  PollLoop loop({.longest_lag = Duration::milliseconds(1)});
  Counting pollable;
  BellPort port;
  pollable.on_poll = [](Time) { let_pass(Duration::milliseconds(1)); };
  pollable.on_transmit = [&](Time) { EXPECT_EQ(port.discards, 1) << "before there is anything new"; };
  loop.add(pollable);
  loop.add_port(port);
  loop.turn();
  EXPECT_EQ(pollable.transmits, 1);
  EXPECT_GE(loop.counters().stops, 1u);
}

TEST(PollLoop, LooksAtTheClockBetweenAPortsCallsOfTheKernel) {
  PollLoop patient({.longest_lag = Duration::seconds(60)});
  BellPort whole;
  whole.on_flush = [&] { return whole.flushes < 3; };
  patient.add_port(whole);
  patient.turn();
  EXPECT_EQ(whole.flushes, 3);
  EXPECT_EQ(whole.discards, 0);

  PollLoop loop({.longest_lag = Duration::milliseconds(1)});
  BellPort cut_short;
  cut_short.on_flush = [] {
    let_pass(Duration::milliseconds(1));
    return true;
  };
  loop.add_port(cut_short);
  loop.turn();
  EXPECT_LE(cut_short.flushes, 1);
  EXPECT_EQ(cut_short.discards, 1);
  EXPECT_EQ(loop.counters().stops, 1u);
}

TEST(PollLoop, LooksAtTheClockBetweenPorts) {
  PollLoop loop({.longest_lag = Duration::milliseconds(1)});
  BellPort first;
  BellPort second;
  first.on_flush = [] {
    let_pass(Duration::milliseconds(1));
    return false;
  };
  loop.add_port(first);
  loop.add_port(second);
  loop.turn();
  EXPECT_EQ(second.flushes, 0);
  EXPECT_EQ(second.discards, 1);
  EXPECT_EQ(loop.counters().stops, 1u);
}

TEST(PollLoop, ATurnAfterAStopInTheLastFlushKnowsWhatTimeItIs) {
  PollLoop loop({.longest_lag = Duration::milliseconds(1)});
  Counting busy;
  BellPort port;
  Time went_on;
  int discards = 0;
  busy.work = 1;
  busy.on_poll = [&](Time now) {
    EXPECT_GE(now, went_on);
    discards = port.discards;
  };
  port.on_flush = [&] {
    let_pass(Duration::milliseconds(1));
    went_on = loop.now();
    return false;
  };
  loop.add(busy);
  loop.add_port(port);
  EXPECT_TRUE(loop.run_until([&] { return busy.polls == 2; }));
  EXPECT_GE(discards, 1) << "what the port could not send";
}

TEST(PollLoop, DiscardsWhatAPortCouldNotSendBeforeItWasStoppedBetweenTurns) {
  PollLoop loop({.longest_lag = Duration::milliseconds(1)});
  Counting pollable;
  BellPort port;
  loop.add(pollable);
  loop.add_port(port);
  loop.turn();
  const int before = port.discards;
  EXPECT_EQ(before, static_cast<int>(loop.counters().stops));
  let_pass(Duration::milliseconds(1));
  pollable.on_poll = [&](Time) { EXPECT_EQ(port.discards, before + 1) << "before there is anything new"; };
  loop.turn();
  EXPECT_GT(port.discards, before);
}

TEST(PollLoop, APollableMayRemoveItselfAndOthersInPoll) {
  PollLoop loop;
  Counting a;
  Counting b;
  a.on_poll = [&](Time) {
    loop.remove(a);
    loop.remove(b);
  };
  loop.add(a);
  loop.add(b);
  loop.turn();
  loop.turn();
  EXPECT_EQ(a.polls, 1);
  EXPECT_EQ(b.polls, 0);
  EXPECT_EQ(b.transmits, 0);
}

TEST(PollLoop, SleepsWhenIdleAndWakesForAPort) {
  PollLoop loop(kSleepy);
  BellPort port;
  loop.add_port(port);
  port.on_arm = [&] { port.ring(); };
  EXPECT_TRUE(loop.run_until([&] { return loop.counters().sleeps == 3; }));
  EXPECT_FALSE(port.armed);
}

TEST(PollLoop, DoesNotSleepWhenAPortRefusesToBeArmed) {
  PollLoop loop(kSleepy);
  BellPort first;
  BellPort second;
  loop.add_port(first);
  loop.add_port(second);
  second.refusals = 5;
  second.on_arm = [&] { second.ring(); };
  EXPECT_TRUE(loop.run_until([&] {
    if (second.refusals > 0) {
      EXPECT_EQ(loop.counters().sleeps, 0u);
      EXPECT_FALSE(first.armed) << "disarmed again when another port refused";
    }
    return loop.counters().sleeps == 1;
  }));
  EXPECT_EQ(second.arms, 6);
}

TEST(PollLoop, WakesForAPortWhoseDescriptorWasReplaced) {
  PollLoop loop(kSleepy);
  auto port = std::make_unique<BellPort>();
  loop.add_port(*port);
  port->on_arm = [&] { port->ring(); };
  ASSERT_TRUE(loop.run_until([&] { return loop.counters().sleeps == 1; }));
  loop.remove_port(*port);
  port = std::make_unique<BellPort>();  // very likely with the same descriptor number
  port->on_arm = [&] { port->ring(); };
  loop.add_port(*port);
  EXPECT_TRUE(loop.run_until([&] { return loop.counters().sleeps == 2; }));
}

TEST(PollLoop, StillWatchesADescriptorThatARemovedPortShared) {
  PollLoop loop(kSleepy);
  BellPort port;
  Counting limit;
  limit.deadline = loop.now() + Duration::seconds(5);
  bool ready = false;
  loop.add(limit);
  loop.watch(port.wait_descriptor(), [&](Time) { ready = true; });
  loop.add_port(port);
  loop.remove_port(port);
  port.ring();
  EXPECT_TRUE(loop.run_until([&] { return ready || loop.now() >= limit.deadline; }));
  EXPECT_TRUE(ready);
}

TEST(PollLoop, WakesAtADeadlineAndNotBefore) {
  PollLoop loop(kSleepy);
  Counting sleeper;
  sleeper.deadline = loop.now() + Duration::milliseconds(20);
  loop.add(sleeper);
  EXPECT_TRUE(loop.run_until([&] { return sleeper.last >= sleeper.deadline; }));
  EXPECT_GE(loop.counters().sleeps, 1u);
  EXPECT_LT(sleeper.polls, 20) << "it slept, rather than spun";
}

TEST(PollLoop, NapsOnlyBrieflyWhenAPortHasNoDescriptor) {
  PollLoop loop(kSleepy);
  BellPort blind(-1);
  loop.add_port(blind);
  const Time start = loop.now();
  EXPECT_TRUE(loop.run_until([&] { return loop.counters().sleeps == 5; }));
  EXPECT_LT(loop.now() - start, Duration::seconds(5));
  EXPECT_EQ(blind.arms, 0);
}

TEST(PollLoop, YieldsForAWhileBeforeItSleeps) {
  PollLoop loop({.spin_turns = 4, .awake = Duration::milliseconds(5)});
  BellPort port;
  port.on_arm = [&] { port.ring(); };
  loop.add_port(port);
  EXPECT_TRUE(loop.run_until([&] { return loop.counters().sleeps == 1; }));
  EXPECT_GE(loop.now().since_start(), Duration::milliseconds(5));
  EXPECT_GT(loop.counters().yields, 0u);
}

TEST(PollLoop, RunsPostedFunctionsInItsOwnThreadAlsoWhenAsleep) {
  LoopThread thread({}, kSleepy);
  std::thread::id where;
  for (int i = 0; i < 100; ++i) thread.call([&](Time) { where = std::this_thread::get_id(); });
  EXPECT_NE(where, std::thread::id{});
  EXPECT_NE(where, std::this_thread::get_id());
}

TEST(PollLoop, LosesNoPostAmongManyThreads) {
  LoopThread thread({}, kSleepy);
  int ran = 0;  // touched by the loop's thread alone
  constexpr int kEach = 5'000;
  const auto post_many = [&] {
    for (int i = 0; i < kEach; ++i) thread.loop().post([&](Time) { ++ran; });
  };
  std::thread one(post_many);
  std::thread two(post_many);
  one.join();
  two.join();
  int seen = 0;
  thread.call([&](Time) { seen = ran; });
  EXPECT_EQ(seen, 2 * kEach);
}

TEST(PollLoop, ServesWatchedDescriptorsWhenIdleAndUnderLoad) {
  for (const bool load : {false, true}) {
    PollLoop loop(kSleepy);
    Counting busy;
    busy.work = 1;
    if (load) loop.add(busy);
    const int descriptor = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
    int served = 0;
    loop.watch(descriptor, [&](Time) {
      if (++served == 3) loop.unwatch(descriptor);
    });
    EXPECT_TRUE(loop.run_until([&] { return served == 3; }));
    for (int i = 0; i < 10; ++i) loop.turn();
    EXPECT_EQ(served, 3);
    close(descriptor);
  }
}

TEST(PollLoop, KeepsWatchingADescriptorThatAPortHasSharedAndLeft) {
  PollLoop loop(kSleepy);
  BellPort port;
  int served = 0;
  loop.watch(port.wait_descriptor(), [&](Time) { ++served; });
  loop.add_port(port);
  loop.remove_port(port);
  port.ring();
  EXPECT_TRUE(loop.run_until([&] { return served != 0; }));
}

TEST(PollLoop, WatchesADescriptorThatAPortHasSleptOnBefore) {
  PollLoop loop(kSleepy);
  Counting limit;
  BellPort port;
  loop.add(limit);
  loop.add_port(port);
  port.on_arm = [&] { port.ring(); };
  ASSERT_TRUE(loop.run_until([&] { return loop.counters().sleeps == 1; }));
  port.on_arm = nullptr;
  limit.deadline = loop.now() + Duration::seconds(5);
  bool ready = false;
  loop.watch(port.wait_descriptor(), [&](Time) { ready = true; });
  port.ring();
  EXPECT_TRUE(loop.run_until([&] { return ready || loop.now() >= limit.deadline; }));
  EXPECT_TRUE(ready);
}

TEST(PollLoop, ComesToRestAfterSomethingWasRemovedBetweenTurns) {
  PollLoop loop(kSleepy);
  Counting gone;
  Counting stays;
  stays.deadline = loop.now();
  loop.add(gone);
  loop.add(stays);
  EXPECT_TRUE(loop.run_until([&] {
    loop.remove(gone);
    return stays.polls == 3;
  }));
  EXPECT_EQ(gone.polls, 1);
}

TEST(PollLoop, StopEndsAnEndlessSleep) {
  PollLoop loop(kSleepy);
  std::thread other([&] { loop.stop(); });
  EXPECT_FALSE(loop.run_until([] { return false; }));
  other.join();
}

TEST(PollLoop, CallsAPeriodicFunctionOnceAPeriod) {
  PollLoop loop(kSleepy);
  int calls = 0;
  Periodic periodic(Duration::milliseconds(2), [&](Time) { ++calls; });
  loop.add(periodic);
  const Time start = loop.now();
  loop.run_until([&] { return calls == 4; });
  EXPECT_GE(loop.now() - start, Duration::milliseconds(6));
}

TEST(LoopThreadDeathTest, SaysThatNobodyIsThereToBeCalled) {
  const auto call_a_stopped_one = [] {
    LoopThread thread;
    thread.loop().stop();
    thread.call([](Time) {});
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(call_a_stopped_one(), "stopping");
}

}  // namespace
}  // namespace sluice::nic
