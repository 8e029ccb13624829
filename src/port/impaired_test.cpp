#include "port/impaired.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <vector>

#include "port/memory_port.h"

namespace sluice::port {
namespace {

struct Received {
  std::uint64_t number = 0;
  std::vector<std::uint8_t> bytes;
  Time at;
};

// One end impaired, one plain; frames carry their number in their first eight bytes.
class Line {
 public:
  explicit Line(const ImpairmentSpec& spec, std::size_t frames = 256) {
    auto cable = make_memory_cable(frames);
    near = impaired(std::move(cable.a), spec);
    far = std::move(cable.b);
  }

  bool send(Port& port, std::uint64_t number, std::size_t length = 64) {
    std::uint8_t* room = port.reserve(length);
    if (room == nullptr) return false;
    std::fill_n(room, length, std::uint8_t{0});
    store_le(room, number);
    port.commit(length);
    return true;
  }

  std::vector<Received> take(Port& port) {
    std::vector<Received> all;
    std::array<Frame, 16> burst;
    while (const auto count = port.receive(now, burst)) {
      for (const auto& frame : std::span(burst).first(count)) {
        all.push_back({load_le<std::uint64_t>(frame.data), {frame.data, frame.data + frame.length}, now});
      }
    }
    return all;
  }

  // Sends `count` frames from one end, a few a microsecond, and returns what the other end got until nothing is left.
  std::vector<Received> run(Port& from, Port& to, std::uint64_t count, std::size_t length = 64) {
    std::vector<Received> all;
    for (std::uint64_t number = 0; number < count;) {
      for (int i = 0; i < 8 && number < count; ++i) number += send(from, number, length) ? 1u : 0u;
      step(from, to, all);
    }
    for (int i = 0; i < 1000; ++i) step(from, to, all);
    return all;
  }

  void step(Port& from, Port& to, std::vector<Received>& all) {
    from.flush(now);
    now = now + Duration::microseconds(1);
    for (auto& frame : take(to)) all.push_back(std::move(frame));
    take(from);
  }

  std::unique_ptr<ImpairedPort> near;
  std::unique_ptr<Port> far;
  Time now;
};

ImpairmentSpec spec_of(std::string_view text) { return parse_impairment(text).value(); }

std::vector<std::uint64_t> numbers(const std::vector<Received>& frames) {
  std::vector<std::uint64_t> result;
  for (const auto& frame : frames) result.push_back(frame.number);
  return result;
}

std::vector<std::uint64_t> count_up(std::uint64_t n) {
  std::vector<std::uint64_t> result(n);
  for (std::uint64_t i = 0; i < n; ++i) result[i] = i;
  return result;
}

TEST(ImpairedPort, PassesEverythingThroughWhenNothingIsAsked) {
  Line line({});
  EXPECT_EQ(numbers(line.run(*line.near, *line.far, 1000)), count_up(1000));
  EXPECT_EQ(numbers(line.run(*line.far, *line.near, 1000)), count_up(1000));
  EXPECT_EQ(line.near->counters().tx_frames, 1000u);
  EXPECT_EQ(line.near->counters().rx_frames, 1000u);
}

TEST(ImpairedPort, DropsItsShareInTheAskedDirectionOnly) {
  Line line(spec_of("tx.drop=10%,seed=3"));
  const auto there = line.run(*line.near, *line.far, 100'000);
  // Binomial: 10,000 expected, standard deviation 95.
  EXPECT_NEAR(static_cast<double>(there.size()), 90'000, 500);
  EXPECT_EQ(line.near->tx_impairments().dropped, 100'000 - there.size());
  const auto sequence = numbers(there);
  EXPECT_TRUE(std::is_sorted(sequence.begin(), sequence.end()));
  EXPECT_EQ(line.run(*line.far, *line.near, 1000).size(), 1000u);
}

TEST(ImpairedPort, DuplicatesFramesWithinReach) {
  Line line(spec_of("rx.duplicate=20%,seed=4"));
  const auto frames = line.run(*line.far, *line.near, 10'000);
  const auto& done = line.near->rx_impairments();
  EXPECT_NEAR(static_cast<double>(done.duplicated), 2'000, 200);
  ASSERT_EQ(frames.size(), 10'000 + done.duplicated);
  std::map<std::uint64_t, std::vector<std::size_t>> places;
  for (std::size_t i = 0; i < frames.size(); ++i) places[frames[i].number].push_back(i);
  EXPECT_EQ(places.size(), 10'000u);
  std::size_t far_apart = 0;
  for (const auto& [number, at] : places) {
    ASSERT_LE(at.size(), 2u);
    if (at.size() < 2) continue;
    EXPECT_LE(at[1] - at[0], 2 * kReorderReach + 2u);
    far_apart += at[1] - at[0] > 1 ? 1u : 0u;
  }
  EXPECT_GT(far_apart, 1000u);  // some come late, as ghosts do
}

TEST(ImpairedPort, ReordersItsShareAndLosesNone) {
  Line line(spec_of("tx.reorder=5%,seed=5"));
  auto sequence = numbers(line.run(*line.near, *line.far, 20'000));
  EXPECT_NEAR(static_cast<double>(line.near->tx_impairments().reordered), 1'000, 150);
  EXPECT_FALSE(std::is_sorted(sequence.begin(), sequence.end()));
  std::size_t late = 0;
  for (std::size_t i = 1; i < sequence.size(); ++i) late += sequence[i] < sequence[i - 1] ? 1u : 0u;
  EXPECT_GT(late, 700u);
  std::sort(sequence.begin(), sequence.end());
  EXPECT_EQ(sequence, count_up(20'000));
}

TEST(ImpairedPort, LetsALoneReorderedFrameGoWhenItsHoldIsOver) {
  Line line(spec_of("tx.reorder=100%"));
  ASSERT_TRUE(line.send(*line.near, 1));
  line.near->flush(line.now);
  EXPECT_TRUE(line.take(*line.far).empty());
  ASSERT_EQ(line.near->next_deadline(), line.now + kReorderHold);
  line.now = line.near->next_deadline();
  line.take(*line.near);  // receiving alone is enough to let it go
  EXPECT_EQ(line.take(*line.far).size(), 1u);
  EXPECT_EQ(line.near->next_deadline(), Time::never());
}

TEST(ImpairedPort, FlipsOneToEightBitsAnywhere) {
  Line line(spec_of("tx.corrupt=30%,seed=6"));
  std::uint64_t damaged = 0;
  std::array<std::uint64_t, 64> hits{};
  std::array<std::uint64_t, 9> flips{};
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(line.send(*line.near, 0));
    line.near->flush(line.now);
    const auto got = line.take(*line.far);
    ASSERT_EQ(got.size(), 1u);
    std::size_t bits = 0;
    for (std::size_t at = 0; at < 64; ++at) {
      const auto here = static_cast<std::size_t>(std::popcount(got[0].bytes[at]));
      bits += here;
      hits[at] += here;
    }
    ASSERT_LE(bits, 8u);
    ++flips[bits];
    damaged += bits > 0 ? 1u : 0u;
  }
  EXPECT_EQ(line.near->tx_impairments().corrupted, damaged);
  EXPECT_NEAR(static_cast<double>(damaged), 6'000, 350);
  for (const auto hit : hits) EXPECT_GT(hit, 250u);
  for (std::size_t bits = 1; bits <= 8; ++bits) EXPECT_GT(flips[bits], 500u);
}

TEST(ImpairedPort, DelaysEachFrameByTheSameTimeInOrder) {
  Line line(spec_of("delay=10us"));
  ASSERT_TRUE(line.send(*line.near, 1));
  line.near->flush(line.now);
  const Time due = line.now + Duration::microseconds(10);
  EXPECT_EQ(line.near->next_deadline(), due);
  line.now = due - Duration::nanoseconds(1);
  line.near->flush(line.now);
  EXPECT_TRUE(line.take(*line.far).empty());
  line.now = due;
  line.near->flush(line.now);
  EXPECT_EQ(line.take(*line.far).size(), 1u);
  // The way back waits as long.
  ASSERT_TRUE(line.send(*line.far, 2));
  line.far->flush(line.now);
  EXPECT_TRUE(line.take(*line.near).empty());
  EXPECT_EQ(line.near->next_deadline(), line.now + Duration::microseconds(10));
  EXPECT_TRUE(line.near->arm());
  line.now = line.near->next_deadline();
  EXPECT_EQ(line.take(*line.near).size(), 1u);
}

TEST(ImpairedPort, ItsDeadlineIsThatOfTheFirstFrameThatIsStillOnItsWay) {
  Line line(spec_of("tx.delay=10us"));
  const Duration apart = Duration::microseconds(4);
  const Duration delay = Duration::microseconds(10);
  // More than there are slots, three on their way at a time.
  for (std::uint64_t number = 0; number < 2 * ImpairedLink::kSlots; ++number) {
    line.take(*line.near);
    const auto arrived = line.take(*line.far);
    ASSERT_EQ(arrived.size(), number < 3 ? 0u : 1u) << number;
    ASSERT_TRUE(line.send(*line.near, number));
    line.near->flush(line.now);
    ASSERT_EQ(line.near->next_deadline(),
              line.now + delay - apart * static_cast<std::int64_t>(std::min<std::uint64_t>(number, 2)))
        << number;
    line.now = line.now + apart;
  }
}

TEST(ImpairedPort, IsCutAtTheDeadlineThatItTells) {
  Line line(spec_of("cut=5ms"));
  line.near->flush(line.now);
  line.now = line.near->next_deadline();
  ASSERT_EQ(line.now, Time::at(Duration::milliseconds(5)));
  line.near->flush(line.now);
  EXPECT_EQ(line.near->state(), PortState::kDown) << "its owner would wait for this time for ever";
  EXPECT_EQ(line.near->next_deadline(), Time::never());
}

// One that has seen much.
class WornPort final : public Port {
 public:
  std::uint8_t* reserve(std::size_t) override { return nullptr; }
  void commit(std::size_t) override {}
  bool flush_some(Time) override { return false; }
  void discard() override {}
  std::size_t receive(Time, std::span<Frame>) override { return 0; }
  const PortCounters& counters() const override { return counters_; }
  std::string name() const override { return "worn"; }

 private:
  PortCounters counters_{.rx_malformed = 1, .tx_dropped = 2, .tx_discarded = 3, .rx_lost = 4, .resets = 5};
};

TEST(ImpairedPort, TellsWhatThePortBelowHasLost) {
  const auto port = impaired(std::make_unique<WornPort>(), {});
  EXPECT_EQ(port->reserve(64), nullptr);
  EXPECT_EQ(
      port->counters(),
      (PortCounters{.tx_full = 1, .rx_malformed = 1, .tx_dropped = 2, .tx_discarded = 3, .rx_lost = 4, .resets = 5}));
}

TEST(ImpairedPort, DoesTheSameToTheSameFramesWhateverTheTiming) {
  const auto text = "drop=3%,duplicate=3%,corrupt=3%,reorder=3%,seed=99";
  Line first(spec_of(text));
  Line second(spec_of(text));
  second.now = Time::at(Duration::seconds(77));
  const auto a = first.run(*first.near, *first.far, 5'000);
  const auto b = second.run(*second.near, *second.far, 5'000);
  ASSERT_EQ(numbers(a), numbers(b));
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i].bytes, b[i].bytes);

  Line third(spec_of("drop=3%,duplicate=3%,corrupt=3%,reorder=3%,seed=100"));
  EXPECT_NE(numbers(third.run(*third.near, *third.far, 5'000)), numbers(a));
}

TEST(ImpairedPort, DropsTheSameFramesWhetherOrNotOthersAreDamaged) {
  Line plain(spec_of("tx.drop=5%,seed=1"));
  Line busy(spec_of("tx.drop=5%,tx.corrupt=50%,tx.duplicate=10%,seed=1"));
  plain.run(*plain.near, *plain.far, 3'000);
  busy.run(*busy.near, *busy.far, 3'000);
  EXPECT_EQ(plain.near->tx_impairments().dropped, busy.near->tx_impairments().dropped);
}

TEST(ImpairedPort, LosesNothingWhenTheInnerPortIsFullOrTheBurstSmall) {
  Line line(spec_of("delay=1us,duplicate=1ppm"), 4);
  const auto frames = line.run(*line.near, *line.far, 2'000);
  EXPECT_EQ(numbers(frames), count_up(2'000));
  const auto back = line.run(*line.far, *line.near, 2'000);
  EXPECT_EQ(numbers(back), count_up(2'000));
}

TEST(ImpairedPort, IsCutAfterSoManyFramesOfBothDirections) {
  Line line(spec_of("cut=10"));
  for (std::uint64_t i = 0; i < 6; ++i) line.send(*line.near, i);
  line.near->flush(line.now);
  EXPECT_EQ(line.take(*line.far).size(), 6u);
  for (std::uint64_t i = 0; i < 6; ++i) line.send(*line.far, i);
  line.far->flush(line.now);
  EXPECT_EQ(numbers(line.take(*line.near)), (std::vector<std::uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(line.near->state(), PortState::kDown) << "also for one who only receives";
  EXPECT_EQ(line.near->counters().rx_lost, 2u);
  line.send(*line.near, 6);
  line.near->flush(line.now);
  EXPECT_TRUE(line.take(*line.far).empty());
  EXPECT_EQ(line.near->counters().tx_dropped, 1u);
  line.send(*line.far, 7);
  line.far->flush(line.now);
  EXPECT_TRUE(line.take(*line.near).empty());
  EXPECT_EQ(line.near->counters().rx_lost, 3u);
  EXPECT_EQ(line.near->counters().tx_dropped, 1u);
}

TEST(ImpairedPort, IsCutSomeTimeAfterItsFirstUse) {
  Line line(spec_of("cut=5ms,delay=1us"));
  line.now = Time::at(Duration::seconds(3));
  EXPECT_EQ(line.run(*line.near, *line.far, 1).size(), 1u);
  EXPECT_EQ(line.near->state(), PortState::kUp);
  EXPECT_LE(line.near->next_deadline(), Time::at(Duration::seconds(3) + Duration::milliseconds(5)))
      << "its owner is told";
  line.now = Time::at(Duration::seconds(4));
  line.near->flush(line.now);  // as at the deadline
  EXPECT_TRUE(line.run(*line.near, *line.far, 1).empty());
  EXPECT_TRUE(line.run(*line.far, *line.near, 1).empty());
  EXPECT_EQ(line.near->state(), PortState::kDown);
  EXPECT_EQ(line.near->next_deadline(), Time::never());
}

TEST(ImpairedPort, WhatIsOnItsWayWhenItIsCutIsLostAndLeavesNothingToWaitFor) {
  Line line(spec_of("cut=5ms,delay=4ms"));
  line.send(*line.near, 0);
  line.near->flush(line.now);
  line.now = Time::at(Duration::milliseconds(2));
  line.send(*line.near, 1);
  line.near->flush(line.now);
  line.send(*line.far, 2);
  line.far->flush(line.now);
  EXPECT_TRUE(line.take(*line.near).empty()) << "on its way";
  line.now = Time::at(Duration::milliseconds(4));
  line.near->flush(line.now);
  EXPECT_EQ(numbers(line.take(*line.far)), (std::vector<std::uint64_t>{0}));
  line.now = Time::at(Duration::milliseconds(10));
  EXPECT_TRUE(line.take(*line.near).empty());
  line.near->flush(line.now);
  EXPECT_TRUE(line.take(*line.far).empty());
  EXPECT_EQ(line.near->next_deadline(), Time::never());
  EXPECT_EQ(line.near->counters().tx_dropped, 1u);
  EXPECT_EQ(line.near->counters().rx_lost, 1u);
}

TEST(ImpairedPort, ACutByFramesTakesThoseThatAreOnTheirWay) {
  Line line(spec_of("cut=3,tx.delay=1us,tx.reorder=100%"));
  for (std::uint64_t i = 0; i < 4; ++i) line.send(*line.near, i);
  line.near->flush(line.now);
  EXPECT_EQ(line.near->next_deadline(), Time::never());
  EXPECT_EQ(line.near->counters().tx_dropped, 4u);
  EXPECT_TRUE(line.send(*line.near, 4)) << "into a cable that leads nowhere";
  EXPECT_EQ(line.near->counters().tx_dropped, 5u);
}

TEST(ImpairedPort, WhatIsDiscardedHasNotEnteredTheLinkAndWhatHasStaysOnItsWay) {
  for (const auto* const text : {"", "tx.delay=10us,tx.duplicate=100%", "rx.drop=1%"}) {
    Line line(spec_of(text));
    ASSERT_TRUE(line.send(*line.near, 1));
    line.near->flush(line.now);
    for (int i = 0; i < 10'000; ++i) {
      ASSERT_TRUE(line.send(*line.near, 2)) << text << i;
      line.near->discard();
    }
    EXPECT_GE(line.near->counters().tx_discarded, 10'000u) << text;
    ASSERT_TRUE(line.send(*line.near, 3));
    line.near->flush(line.now);
    line.now = line.now + Duration::milliseconds(1);
    line.near->flush(line.now);
    auto seen = numbers(line.take(*line.far));
    std::ranges::sort(seen);  // duplicates may overtake
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    EXPECT_EQ(seen, (std::vector<std::uint64_t>{1, 3})) << text;
  }
}

TEST(ImpairedPort, RefusesWhenItsLinkIsFull) {
  Line line(spec_of("tx.delay=1s"));
  std::size_t sent = 0;
  while (line.send(*line.near, sent)) ++sent;
  EXPECT_GT(sent, ImpairedLink::kSlots / 2);
  EXPECT_LE(sent, ImpairedLink::kSlots);
  EXPECT_EQ(line.near->counters().tx_full, 1u);
  line.near->flush(line.now);
  line.now = line.now + Duration::seconds(1);
  line.near->flush(line.now);
  EXPECT_EQ(line.take(*line.far).size(), 256u);  // as much as the cable holds
  EXPECT_LE(line.near->next_deadline(), line.now + Duration::microseconds(10));
}

}  // namespace
}  // namespace sluice::port
