// Every order, with memory of the configurations that led nowhere.
#include <algorithm>
#include <array>
#include <unordered_set>

#include "base/rng.h"
#include "workload/register_check.h"

namespace sluice::workload {
namespace {

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

  Search run(Event& stuck) {
    std::size_t at = nodes_[0].next;
    std::size_t best = ~std::size_t{0};
    while (responses_left_ != 0) {
      if (at != 0 && !nodes_[at].response) {
        at = try_call(at);
        continue;
      }
      // A response whose operation is not placed yet, or nothing more to try.
      if (at != 0 && responses_left_ < best) {
        best = responses_left_;
        stuck = events_[nodes_[at].event];
      }
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

}  // namespace

Search search_order(std::span<const Event> events, std::uint64_t limit, Event& stuck) {
  return OrderSearch(events, limit).run(stuck);
}

}  // namespace sluice::workload
