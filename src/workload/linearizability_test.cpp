#include "workload/linearizability.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "base/rng.h"
#include "workload/register_check.h"

namespace sluice::workload {
namespace {

// ------------------------------------------------------------------------------------------- brute force: the oracle

struct Oracle {
  bool conditions = false;  // false: inserts and erases are writes whatever was there
  std::vector<Event> events;

  bool linearizable() const {
    std::vector<bool> placed(events.size());
    return extend(placed, 0);
  }

 private:
  bool must_happen(const Event& e) const { return e.outcome != Outcome::kUnknown; }

  bool allowed(const Event& e, ValueId& value) const {
    const bool present = value != 0;
    if (e.kind == EventKind::kGet) return e.outcome == Outcome::kOk ? value == e.value : !present;
    if (e.kind == EventKind::kPut) return value = e.value, true;
    if (e.kind == EventKind::kErase) {
      if (e.outcome == Outcome::kNotFound) return !present;
      if (conditions && e.outcome == Outcome::kOk && !present) return false;
      return value = 0, true;
    }
    if (e.outcome == Outcome::kExists) return present || !conditions;
    if (conditions && present) return e.outcome == Outcome::kUnknown;
    return value = e.value, true;
  }

  bool extend(std::vector<bool>& placed, ValueId value) const {
    std::int64_t first_end = Event::kNever;
    bool all = true;
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (placed[i] || !must_happen(events[i])) continue;
      all = false;
      first_end = std::min(first_end, events[i].end);
    }
    if (all) return true;
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (placed[i] || events[i].begin > first_end) continue;
      ValueId next = value;
      if (!allowed(events[i], next)) continue;
      placed[i] = true;
      if (extend(placed, next)) return true;
      placed[i] = false;
    }
    return false;
  }
};

// ------------------------------------------------------------------------------------------------ random histories

struct Shape {
  int operations = 7;
  int spread = 12;  // how far intervals reach around the instant of effect
  bool conditional = false;
  bool erase = true;
};

// A history of a real register, its intervals stretched around the instants of effect.
std::vector<Event> make_history(Rng& rng, const Shape& shape) {
  std::vector<Event> events;
  ValueId value = 0;
  std::vector<ValueId> written;
  for (int i = 0; i < shape.operations; ++i) {
    const std::int64_t at = 100 + i * 10;
    Event e{.key = 1, .begin = at, .end = at, .client = static_cast<std::uint32_t>(i)};
    e.outcome = Outcome::kOk;
    const auto dart = rng.below(shape.erase ? 10 : 8);
    if (dart < 4) {
      e.kind = EventKind::kGet;
      e.value = value;
      if (value == 0) e.outcome = Outcome::kNotFound;
    } else if (dart < 8) {
      const bool insert = shape.conditional && rng.below(2) == 0;
      e.kind = insert ? EventKind::kInsert : EventKind::kPut;
      e.value = value_id(1, static_cast<std::uint64_t>(i + 1));
      if (insert && value != 0) {
        e.outcome = Outcome::kExists;
      } else {
        value = e.value;
      }
    } else {
      e.kind = EventKind::kErase;
      if (value == 0) e.outcome = Outcome::kNotFound;
      value = 0;
    }
    // The instants of one history are distinct.
    e.begin = at * 1000 -
              static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(shape.spread) * 10'000)) * 10 / 10 - i;
    e.end = at * 1000 + 1 + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(shape.spread) * 10'000)) + i;
    if (e.kind != EventKind::kGet && rng.below(6) == 0) e.outcome = Outcome::kUnknown;
    events.push_back(e);
  }
  return events;
}

void mutate(Rng& rng, std::vector<Event>& events) {
  auto& e = events[rng.below(events.size())];
  switch (rng.below(4)) {
    case 0: {  // another value, or none, was read
      if (e.kind != EventKind::kGet) return;
      const auto& other = events[rng.below(events.size())];
      e.value = other.kind == EventKind::kPut || other.kind == EventKind::kInsert ? other.value : 0;
      e.outcome = e.value == 0 ? Outcome::kNotFound : Outcome::kOk;
      return;
    }
    case 1: e.begin = e.end - 1; return;
    case 2: e.end = e.begin + 1; return;
    default:
      if (e.outcome == Outcome::kUnknown) e.outcome = Outcome::kOk;
      if (e.kind == EventKind::kErase && rng.below(2) == 0) {
        e.outcome = e.outcome == Outcome::kOk ? Outcome::kNotFound : Outcome::kOk;
      }
  }
}

std::string show(const std::vector<Event>& events) {
  std::string text;
  for (const auto& e : events) text += to_string(e) + "\n";
  return text;
}

TEST(Linearizability, SweepAgreesWithBruteForceOnThousandsOfSmallHistories) {
  Rng rng(1);
  std::map<bool, int> answers;
  for (int round = 0; round < 200'000; ++round) {
    const Shape shape{.operations = 2 + static_cast<int>(rng.below(7)),
                      .spread = 1 + static_cast<int>(rng.below(5)),
                      .conditional = false};
    auto events = make_history(rng, shape);
    const auto mutations = rng.below(4);
    for (std::uint64_t i = 0; i < mutations; ++i) mutate(rng, events);
    const bool expected = Oracle{false, events}.linearizable();
    const auto found = sweep_values(events);
    ASSERT_EQ(!found.has_value(), expected) << "round " << round << "\n" << show(events) << (found ? found->what : "");
    if (mutations == 0) {
      ASSERT_TRUE(expected) << show(events);
    }
    ++answers[expected];
  }
  EXPECT_GT(answers[true], 10'000);
  EXPECT_GT(answers[false], 2'000);
}

TEST(Linearizability, SweepAgreesWithBruteForceWhereErasesAbound) {
  Rng rng(2);
  std::map<bool, int> answers;
  for (int round = 0; round < 200'000; ++round) {
    std::vector<Event> events;
    const int n = 3 + static_cast<int>(rng.below(6));
    std::vector<ValueId> values;
    for (int i = 0; i < n; ++i) {
      Event e{.key = 1, .client = static_cast<std::uint32_t>(i)};
      e.outcome = Outcome::kOk;
      e.begin = static_cast<std::int64_t>(rng.below(40)) * 100 + i;
      e.end = e.begin + 1 + static_cast<std::int64_t>(rng.below(20)) * 100 + i;
      switch (rng.below(4)) {
        case 0:
          e.kind = EventKind::kErase;
          if (rng.below(4) == 0) e.outcome = Outcome::kUnknown;
          break;
        case 1:
          e.kind = EventKind::kPut;
          e.value = value_id(1, static_cast<std::uint64_t>(i + 1));
          if (rng.below(6) == 0) e.outcome = Outcome::kUnknown;
          values.push_back(e.value);
          break;
        default:
          e.kind = EventKind::kGet;
          e.value = values.empty() || rng.below(2) == 0 ? 0 : values[rng.below(values.size())];
          e.outcome = e.value == 0 ? Outcome::kNotFound : Outcome::kOk;
      }
      events.push_back(e);
    }
    const bool expected = Oracle{false, events}.linearizable();
    ASSERT_EQ(!sweep_values(events).has_value(), expected) << "round " << round << "\n" << show(events);
    ++answers[expected];
  }
  EXPECT_GT(answers[true], 5'000);
  EXPECT_GT(answers[false], 2'000);
}

TEST(Linearizability, SearchAgreesWithBruteForceAlsoOnConditions) {
  Rng rng(3);
  std::map<bool, int> answers;
  for (int round = 0; round < 200'000; ++round) {
    const Shape shape{.operations = 2 + static_cast<int>(rng.below(7)),
                      .spread = 1 + static_cast<int>(rng.below(5)),
                      .conditional = true};
    auto events = make_history(rng, shape);
    const auto mutations = rng.below(4);
    for (std::uint64_t i = 0; i < mutations; ++i) mutate(rng, events);
    const bool expected = Oracle{true, events}.linearizable();
    Event stuck;
    const auto found = search_order(events, 1'000'000, stuck);
    ASSERT_EQ(found, expected ? Search::kLinearizable : Search::kNot) << "round " << round << "\n" << show(events);
    // What the sweep refuses, the stricter search must refuse as well; and both together must be what the search alone is.
    if (expected) {
      ASSERT_FALSE(sweep_values(events).has_value()) << "round " << round << "\n" << show(events);
    }
    ASSERT_EQ(check_linearizable(events).linearizable(), expected) << "round " << round << "\n" << show(events);
    ++answers[expected];
  }
  EXPECT_GT(answers[true], 10'000);
  EXPECT_GT(answers[false], 2'000);
}

// ---------------------------------------------------------------------------------------------------------- by name

Event get(std::int64_t begin, std::int64_t end, ValueId value) {
  return {.key = 4,
          .value = value,
          .begin = begin,
          .end = end,
          .client = 1,
          .kind = EventKind::kGet,
          .outcome = value == 0 ? Outcome::kNotFound : Outcome::kOk};
}
Event put(std::int64_t begin, std::int64_t end, ValueId value, Outcome outcome = Outcome::kOk) {
  return {
      .key = 4, .value = value, .begin = begin, .end = end, .client = 2, .kind = EventKind::kPut, .outcome = outcome};
}

TEST(Linearizability, FindsAReadOfAnOverwrittenValueAndNamesWhoContradictsWhom) {
  const auto verdict = check_linearizable(std::vector{put(1, 2, 7), put(3, 4, 8), get(5, 6, 8), get(7, 8, 7)});
  ASSERT_EQ(verdict.violations.size(), 1u);
  EXPECT_EQ(verdict.violations[0].key, 4u);
  EXPECT_GE(verdict.violations[0].events.size(), 3u);
  EXPECT_NE(verdict.explain().find("key 4"), std::string::npos);
}

TEST(Linearizability, LetsAnUnknownWriteHappenLateOrNever) {
  EXPECT_TRUE(
      check_linearizable(std::vector{put(1, 2, 7), put(3, 4, 8, Outcome::kUnknown), get(5, 6, 7)}).linearizable());
  EXPECT_TRUE(check_linearizable(std::vector{put(1, 2, 7), put(3, 4, 8, Outcome::kUnknown), get(5, 6, 7), get(7, 8, 8)})
                  .linearizable());
  EXPECT_FALSE(
      check_linearizable(std::vector{put(1, 2, 7), put(3, 4, 8, Outcome::kUnknown), get(5, 6, 8), get(7, 8, 7)})
          .linearizable());
}

TEST(Linearizability, FindsALostUpdateAndAValueFromNowhere) {
  EXPECT_FALSE(check_linearizable(std::vector{put(1, 2, 7), get(3, 4, 0)}).linearizable());
  EXPECT_FALSE(check_linearizable(std::vector{put(1, 2, 7), get(3, 4, 9)}).linearizable());
  EXPECT_FALSE(check_linearizable(std::vector{get(1, 2, 7), put(3, 4, 7)}).linearizable());
}

TEST(Linearizability, KeepsKeysApart) {
  auto other = get(5, 6, 0);
  other.key = 5;
  const auto verdict = check_linearizable(std::vector{put(1, 2, 7), other});
  EXPECT_TRUE(verdict.linearizable());
  EXPECT_EQ(verdict.keys, 2u);
}

TEST(Linearizability, SaysUndecidedRatherThanGuess) {
  std::vector<Event> events;
  for (int i = 0; i < 24; ++i) {
    Event e = put(1 + i, 1000 + i, value_id(1, static_cast<std::uint64_t>(i + 1)));
    e.kind = EventKind::kInsert;  // all at once and all said to have found nothing
    events.push_back(e);
  }
  const auto verdict = check_linearizable(events, {.search_limit = 10});
  EXPECT_TRUE(verdict.linearizable());
  EXPECT_EQ(verdict.undecided, 1u);
  EXPECT_FALSE(check_linearizable(events).linearizable());
}

TEST(Linearizability, JudgesAMillionOperationsOfOneHotKey) {
  Rng rng(5);
  auto events = make_history(rng, {.operations = 1'000'000, .spread = 64});
  EXPECT_TRUE(check_linearizable(events, {.conditions = false}).linearizable());
  // One read in the middle returns a value that was overwritten long before.
  auto victim =
      std::find_if(events.begin() + 500'000, events.end(), [](const Event& e) { return e.kind == EventKind::kGet; });
  const auto old = std::find_if(events.begin() + 400'000, events.end(),
                                [](const Event& e) { return e.kind == EventKind::kPut && e.outcome == Outcome::kOk; });
  victim->value = old->value;
  victim->outcome = Outcome::kOk;
  EXPECT_FALSE(check_linearizable(events, {.conditions = false}).linearizable());
}

TEST(Linearizability, JudgesConditionsOfManyKeysOfModerateLength) {
  Rng rng(6);
  std::vector<Event> all;
  for (Key key = 0; key < 200; ++key) {
    for (auto e : make_history(rng, {.operations = 500, .spread = 8, .conditional = true})) {
      e.key = key;
      all.push_back(e);
    }
  }
  const auto verdict = check_linearizable(all);
  EXPECT_TRUE(verdict.linearizable()) << verdict.explain();
  EXPECT_EQ(verdict.undecided, 0u);
}

}  // namespace
}  // namespace sluice::workload
