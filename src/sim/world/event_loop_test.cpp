#include "sim/world/event_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace sluice::sim {
namespace {

Time at(std::int64_t ps) { return Time::at(Duration::picoseconds(ps)); }

// Notes when it fires, and as which.
class Note final : public Event {
 public:
  Note(int name, std::vector<std::pair<int, Time>>& notes) : name_(name), notes_(notes) {}
  void fire(Time now) override { notes_.emplace_back(name_, now); }

 private:
  int name_;
  std::vector<std::pair<int, Time>>& notes_;
};

TEST(EventLoop, FiresInTheOrderOfTimeAndWithinAnInstantInTheOrderOfScheduling) {
  EventLoop loop;
  std::vector<std::pair<int, Time>> notes;
  Note a(1, notes);
  Note b(2, notes);
  Note c(3, notes);
  loop.schedule(a, at(20));
  loop.schedule(b, at(10));
  loop.schedule(c, at(20));
  loop.run_until(at(19));
  EXPECT_EQ(notes.size(), 1u);
  loop.run_until(at(30));
  const std::vector<std::pair<int, Time>> expected{{2, at(10)}, {1, at(20)}, {3, at(20)}};
  EXPECT_EQ(notes, expected);
  EXPECT_EQ(loop.now(), at(30));
}

TEST(EventLoop, MovesAnEventThatIsScheduledAgain) {
  EventLoop loop;
  std::vector<std::pair<int, Time>> notes;
  Note a(1, notes);
  loop.schedule(a, at(10));
  loop.schedule(a, at(50));
  loop.schedule_no_later(a, at(60));
  loop.schedule_no_later(a, at(40));
  loop.run_until(at(100));
  const std::vector<std::pair<int, Time>> expected{{1, at(40)}};
  EXPECT_EQ(notes, expected);
}

TEST(EventLoop, ForgetsAnEventThatIsCancelledOrGone) {
  EventLoop loop;
  std::vector<std::pair<int, Time>> notes;
  Note a(1, notes);
  loop.schedule(a, at(10));
  {
    Note b(2, notes);
    loop.schedule(b, at(10));
  }
  loop.cancel(a);
  EXPECT_FALSE(a.scheduled());
  loop.run_until(at(100));
  EXPECT_TRUE(notes.empty());
}

TEST(EventLoop, FiresWhatIsDueAtTheEndAndWhatIsPastAtOnce) {
  EventLoop loop;
  std::vector<std::pair<int, Time>> notes;
  Note a(1, notes);
  Note b(2, notes);
  loop.schedule(a, at(20));
  loop.run_until(at(20));
  loop.schedule(b, at(5));
  loop.run_until(at(20));
  const std::vector<std::pair<int, Time>> expected{{1, at(20)}, {2, at(20)}};
  EXPECT_EQ(notes, expected);
}

TEST(EventLoop, NeverGoesBack) {
  EventLoop loop;
  loop.run_until(at(20));
  loop.run_until(at(10));
  EXPECT_EQ(loop.now(), at(20));
  EXPECT_FALSE(loop.run_until(at(10), [] { return false; }));
  EXPECT_EQ(loop.now(), at(20));
}

// Each event notes as which of all schedulings it fires: those of one instant rise.
TEST(EventLoop, FiresEachInstantsEventsInTheOrderOfSchedulingHoweverOftenTheyAreMoved) {
  struct Numbered final : Event {
    void fire(Time now) override { fired->emplace_back(now, number); }
    std::uint64_t number = 0;
    std::vector<std::pair<Time, std::uint64_t>>* fired = nullptr;
  };
  EventLoop loop;
  std::vector<std::pair<Time, std::uint64_t>> fired;
  std::vector<Numbered> events(100);
  Rng rng(3);
  std::uint64_t last = 0;
  for (int i = 0; i < 5000; ++i) {
    Numbered& event = events[rng.below(events.size())];
    event.fired = &fired;
    if (rng.below(4) == 0) {
      loop.cancel(event);
    } else {
      event.number = ++last;
      loop.schedule(event, loop.now() + Duration::picoseconds(static_cast<std::int64_t>(rng.below(10))));
    }
    if (rng.below(20) == 0) loop.run_until(loop.now() + Duration::picoseconds(3));
  }
  loop.run_until(loop.now() + Duration::picoseconds(10));
  EXPECT_GT(fired.size(), 1000u);
  EXPECT_TRUE(std::ranges::is_sorted(fired));
}

TEST(EventLoop, KeepsOrderAmongManyThatAreMovedAndCancelled) {
  EventLoop loop;
  std::vector<std::pair<int, Time>> notes;
  std::vector<std::unique_ptr<Note>> events;
  Rng rng(7);
  for (int i = 0; i < 200; ++i) events.push_back(std::make_unique<Note>(i, notes));
  for (int i = 0; i < 5000; ++i) {
    Note& event = *events[rng.below(events.size())];
    if (rng.below(4) == 0) {
      loop.cancel(event);
    } else {
      loop.schedule(event, loop.now() + Duration::picoseconds(static_cast<std::int64_t>(rng.below(1000))));
    }
    if (rng.below(8) == 0) loop.run_until(loop.now() + Duration::picoseconds(20));
  }
  loop.run_until(loop.now() + Duration::microseconds(1));
  EXPECT_GT(notes.size(), 500u);
  EXPECT_TRUE(std::is_sorted(notes.begin(), notes.end(), [](auto& x, auto& y) { return x.second < y.second; }));
  for (const auto& event : events) EXPECT_FALSE(event->scheduled());
}

TEST(EventLoop, StopsWhenAskedTo) {
  EventLoop loop;
  std::vector<std::pair<int, Time>> notes;
  Note a(1, notes);
  Note b(2, notes);
  loop.schedule(a, at(10));
  loop.schedule(b, at(20));
  EXPECT_TRUE(loop.run_until(at(100), [&] { return !notes.empty(); }));
  EXPECT_EQ(loop.now(), at(10));
  EXPECT_FALSE(loop.run_until(at(100), [&] { return notes.size() == 3; }));
  EXPECT_EQ(loop.now(), at(100));
}

}  // namespace
}  // namespace sluice::sim
