#include "workload/linearizability.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_set>

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

// ----------------------------------------------------- Wing and Gong's search with Lowe's memory: the oracle for longer histories

enum class Search : std::uint8_t { kLinearizable, kNot, kUndecided };

// What an operation does to a register that holds `value` (0: absent). False: it cannot have answered so.
bool apply(const Event& e, ValueId& value) {
  const bool present = value != 0;
  const bool unknown = e.outcome == Outcome::kUnknown;
  switch (e.kind) {
    case EventKind::kGet: return e.outcome == Outcome::kOk ? value == e.value : !present;
    case EventKind::kPut: value = e.value; return true;
    case EventKind::kInsert:
      if (e.outcome == Outcome::kExists) return present;
      if (present) return unknown;
      value = e.value;
      return true;
    case EventKind::kErase:
      if (e.outcome == Outcome::kNotFound) return !present;
      if (!present) return unknown;
      value = 0;
      return true;
  }
  return false;
}

// The invocations and responses as a list in the order of time, from which placed operations are taken out (Lowe's).
class OrderSearch {
 public:
  OrderSearch(std::span<const Event> events, std::uint64_t limit) : events_(events), limit_(limit) {
    Rng rng(0x51u);
    for (std::size_t i = 0; i < events.size(); ++i) hashes_.push_back({rng.next(), rng.next()});
    struct Point {
      std::int64_t at;
      bool response;
      std::size_t event;
    };
    std::vector<Point> points;
    for (std::size_t i = 0; i < events.size(); ++i) {
      points.push_back({events[i].begin, false, i});
      if (must_happen(events[i])) points.push_back({events[i].end, true, i});
    }
    std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
      return a.at != b.at ? a.at < b.at : a.response != b.response ? b.response : a.event < b.event;
    });
    nodes_.resize(points.size() + 1);  // the first is the list's head
    response_of_.assign(events.size(), 0);
    for (std::size_t i = 0; i < points.size(); ++i) {
      auto& node = nodes_[i + 1];
      node = {i, i + 2 <= points.size() ? i + 2 : 0, points[i].event, points[i].response};
      if (points[i].response) {
        response_of_[points[i].event] = i + 1;
        ++responses_left_;
      }
    }
    nodes_[0] = {0, points.empty() ? 0u : 1u, 0, false};
  }

  Search run() {
    std::size_t at = nodes_[0].next;
    while (responses_left_ != 0) {
      if (at != 0 && !nodes_[at].response) {
        at = try_call(at);
        continue;
      }
      // A response whose operation is not placed yet, or nothing more to try.
      if (seen_.size() >= limit_) return Search::kUndecided;
      if (placed_.empty()) return Search::kNot;
      at = take_back();
    }
    return Search::kLinearizable;
  }

 private:
  struct Node {
    std::size_t previous = 0;
    std::size_t next = 0;
    std::size_t event = 0;
    bool response = false;
  };
  struct Placed {
    std::size_t call = 0;
    ValueId before = 0;
  };
  using Hash = std::array<std::uint64_t, 2>;
  struct Fold {
    std::size_t operator()(const Hash& h) const { return h[0]; }
  };

  static bool must_happen(const Event& e) { return e.outcome != Outcome::kUnknown; }

  // Places the operation that is called at `at`, if that is possible and new. Returns where to go on.
  std::size_t try_call(std::size_t at) {
    const auto event = nodes_[at].event;
    ValueId value = value_;
    if (apply(events_[event], value)) {
      Hash hash{placed_hash_[0] ^ hashes_[event][0], placed_hash_[1] ^ hashes_[event][1]};
      const Hash configuration{hash[0] + value * 0x9E3779B97F4A7C15u, hash[1] ^ value * 0xC2B2AE3D27D4EB4Fu};
      if (seen_.insert(configuration).second) {
        placed_.push_back({at, value_});
        value_ = value;
        placed_hash_ = hash;
        unlink(at);
        if (const auto response = response_of_[event]; response != 0) {
          unlink(response);
          --responses_left_;
        }
        return nodes_[0].next;
      }
    }
    return nodes_[at].next;
  }

  std::size_t take_back() {
    const Placed last = placed_.back();
    placed_.pop_back();
    const auto event = nodes_[last.call].event;
    value_ = last.before;
    placed_hash_ = {placed_hash_[0] ^ hashes_[event][0], placed_hash_[1] ^ hashes_[event][1]};
    if (const auto response = response_of_[event]; response != 0) {
      relink(response);
      ++responses_left_;
    }
    relink(last.call);
    return nodes_[last.call].next;
  }

  void unlink(std::size_t i) {
    nodes_[nodes_[i].previous].next = nodes_[i].next;
    if (nodes_[i].next != 0) nodes_[nodes_[i].next].previous = nodes_[i].previous;
  }
  void relink(std::size_t i) {
    nodes_[nodes_[i].previous].next = i;
    if (nodes_[i].next != 0) nodes_[nodes_[i].next].previous = i;
  }

  std::span<const Event> events_;
  std::uint64_t limit_;
  std::vector<Hash> hashes_;
  std::vector<Node> nodes_;
  std::vector<std::size_t> response_of_;  // 0: none
  std::size_t responses_left_ = 0;
  std::vector<Placed> placed_;
  Hash placed_hash_{};
  ValueId value_ = 0;
  std::unordered_set<Hash, Fold> seen_;
};

Search search_order(std::span<const Event> events, std::uint64_t limit) { return OrderSearch(events, limit).run(); }

std::optional<Violation> sweep_values(std::span<const Event> events) {
  Zones zones(events);
  if (auto bad = zones.build()) return bad;
  return workload::sweep_values(zones);
}

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

// Intervals and answers without any register behind them: mostly not linearizable.
std::vector<Event> make_wild(Rng& rng, int operations) {
  std::vector<Event> events;
  std::vector<ValueId> values;
  for (int i = 0; i < operations; ++i) {
    Event e{.key = 1, .client = static_cast<std::uint32_t>(i)};
    e.outcome = rng.below(6) == 0 ? Outcome::kUnknown : Outcome::kOk;
    e.begin = static_cast<std::int64_t>(rng.below(40)) * 100 + i;
    e.end = e.begin + 1 + static_cast<std::int64_t>(rng.below(25)) * 100 + i;
    switch (rng.below(6)) {
      case 0:
        e.kind = EventKind::kErase;
        if (rng.below(5) == 0) e.outcome = Outcome::kNotFound;
        break;
      case 1:
      case 2:
        e.kind = rng.below(2) == 0 ? EventKind::kPut : EventKind::kInsert;
        e.value = value_id(1, static_cast<std::uint64_t>(i + 1));
        values.push_back(e.value);
        break;
      case 3:
        e.kind = EventKind::kInsert;
        e.value = value_id(1, static_cast<std::uint64_t>(i + 1));
        e.outcome = Outcome::kExists;
        break;
      default:
        e.kind = EventKind::kGet;
        e.value = values.empty() || rng.below(3) == 0 ? 0 : values[rng.below(values.size())];
        e.outcome = e.value == 0 ? Outcome::kNotFound : Outcome::kOk;
    }
    events.push_back(e);
  }
  return events;
}

std::string show(const std::vector<Event>& events) {
  std::string text;
  for (const auto& e : events) text += to_string(e) + "\n";
  return text;
}

TEST(Linearizability, SweepAgreesWithBruteForceOnThousandsOfSmallHistories) {
  Rng rng(1);
  std::map<bool, int> answers;
  for (int round = 0; round < 60'000; ++round) {
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
  for (int round = 0; round < 60'000; ++round) {
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

TEST(Linearizability, AgreesWithBruteForceAndWithSearchOnConditions) {
  Rng rng(3);
  std::map<bool, int> answers;
  for (int round = 0; round < 60'000; ++round) {
    const Shape shape{.operations = 2 + static_cast<int>(rng.below(7)),
                      .spread = 1 + static_cast<int>(rng.below(5)),
                      .conditional = true};
    auto events = make_history(rng, shape);
    const auto mutations = rng.below(4);
    for (std::uint64_t i = 0; i < mutations; ++i) mutate(rng, events);
    const bool expected = Oracle{true, events}.linearizable();
    ASSERT_EQ(search_order(events, 1'000'000), expected ? Search::kLinearizable : Search::kNot) << show(events);
    const auto verdict = check_linearizable(events);
    ASSERT_EQ(verdict.linearizable(), expected) << "round " << round << "\n" << show(events) << verdict.explain();
    ASSERT_EQ(verdict.undecided, 0u);
    ++answers[expected];
  }
  EXPECT_GT(answers[true], 10'000);
  EXPECT_GT(answers[false], 2'000);
}

TEST(Linearizability, AgreesWithBruteForceOnWildHistoriesWithConditions) {
  Rng rng(4);
  std::map<bool, int> answers;
  for (int round = 0; round < 100'000; ++round) {
    const auto events = make_wild(rng, 3 + static_cast<int>(rng.below(6)));
    const bool expected = Oracle{true, events}.linearizable();
    const auto verdict = check_linearizable(events);
    ASSERT_EQ(verdict.linearizable(), expected) << "round " << round << "\n" << show(events) << verdict.explain();
    ++answers[expected];
  }
  EXPECT_GT(answers[true], 10'000);
  EXPECT_GT(answers[false], 10'000);
}

TEST(Linearizability, AgreesWithSearchOnLongerHistoriesWithConditions) {
  Rng rng(8);
  std::map<Search, int> answers;
  for (int round = 0; round < 1'500; ++round) {
    auto events =
        make_history(rng, {.operations = 40, .spread = 1 + static_cast<int>(rng.below(6)), .conditional = true});
    const auto mutations = rng.below(3);
    for (std::uint64_t i = 0; i < mutations; ++i) mutate(rng, events);
    const Search expected = search_order(events, 200'000);
    ++answers[expected];
    if (expected == Search::kUndecided) continue;
    const auto verdict = check_linearizable(events);
    ASSERT_EQ(verdict.linearizable(), expected == Search::kLinearizable) << "round " << round << "\n" << show(events);
  }
  EXPECT_GT(answers[Search::kLinearizable], 500);
  EXPECT_GT(answers[Search::kNot], 100);
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

TEST(Linearizability, ExplainsTenKeysAndCountsTheRest) {
  std::vector<Event> events;
  for (std::uint32_t key = 0; key < 13; ++key) {
    events.push_back(get(1, 2, 9));
    events.back().key = key;
  }
  const std::string text = check_linearizable(events).explain();
  EXPECT_NE(text.find("key 9: "), std::string::npos);
  EXPECT_EQ(text.find("key 10: "), std::string::npos);
  EXPECT_NE(text.find("and 3 more keys"), std::string::npos) << text;
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
  EXPECT_FALSE(verdict.proven());
  EXPECT_EQ(verdict.undecided, 1u);
  EXPECT_EQ(verdict.explain(), "1 keys have too many orders to be searched: undecided\n");
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
