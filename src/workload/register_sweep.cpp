// Values of a register, in O(n log n).
//
// Every value was written once, so its write and its reads (its cluster) must follow each other without another write between. Let
// f be the earliest end in a cluster and s its latest begin. If f < s the value must stand from f to s (a forward zone): zones
// of two values must not overlap, and nothing else can take place inside one. Otherwise all of the cluster can take place at any
// one instant of [s, f] outside of others' zones. (Gibbons and Korach.)
//
// Absence is written by every erase, and any erase will do for a get that finds nothing, so it has no clusters. Between zones,
// in the gaps, there are: erases E and "nothing" gets N, each at an instant of its interval, and clusters C that fit into an
// instant. The state is "present" or "absent". N needs absent; E makes absent; C makes present; a zone makes present. Sweep:
//   - While absent, every N begun is placed at once. While present, every C begun is placed at once: neither does harm.
//   - An E is held back until it must be: at its own deadline, or at the deadline of an N while present; then of the E's begun the one
//     with the earliest deadline is taken. All C's begun go just before it, and all N's begun just after.
//   - A C not placed by its deadline goes then, and makes present. Before a zone all C's begun are placed.
// Holding back is never worse: an E used later serves all N's that it could have served earlier, whose deadlines had not come.
#include <algorithm>
#include <set>
#include <unordered_map>

#include "workload/register_check.h"

namespace sluice::workload {
namespace {

constexpr std::int64_t kNever = Event::kNever;
constexpr std::size_t kNone = ~std::size_t{0};

bool has_value(const Event& e) {
  switch (e.kind) {
    case EventKind::kGet: return e.outcome == Outcome::kOk;
    case EventKind::kPut:
    case EventKind::kInsert: return e.outcome == Outcome::kOk || e.outcome == Outcome::kUnknown;
    case EventKind::kErase: return false;
  }
  return false;
}
bool finds_nothing(const Event& e) {
  return e.outcome == Outcome::kNotFound && (e.kind == EventKind::kGet || e.kind == EventKind::kErase);
}
bool erases(const Event& e) {
  return e.kind == EventKind::kErase && (e.outcome == Outcome::kOk || e.outcome == Outcome::kUnknown);
}
// An operation of unknown outcome may take effect at any time from its begin on.
std::int64_t end_of(const Event& e) { return e.outcome == Outcome::kUnknown ? kNever : e.end; }

struct Cluster {
  std::size_t write = kNone;
  std::size_t first_to_end = kNone;
  std::size_t last_to_begin = kNone;
  bool read = false;
  std::int64_t f = kNever;
  std::int64_t s = 0;
};

// Something that must take place at one instant of [from, to].
struct Item {
  enum Kind : std::uint8_t { kNothing, kErase, kCluster } kind{};
  std::int64_t from = 0;
  std::int64_t to = kNever;
  std::size_t event = kNone;  // to blame
};

class Sweep {
 public:
  explicit Sweep(std::span<const Event> events) : events_(events) {}

  std::optional<Violation> judge() {
    if (auto bad = build_clusters()) return bad;
    if (auto bad = build_zones()) return bad;
    if (auto bad = build_items()) return bad;
    return sweep();
  }

 private:
  Violation violation(std::string what, std::initializer_list<std::size_t> events) const {
    Violation v{.key = events_.front().key, .what = std::move(what), .events = {}};
    for (const auto i : events) {
      if (i != kNone) v.events.push_back(events_[i]);
    }
    return v;
  }

  std::optional<Violation> build_clusters() {
    std::unordered_map<ValueId, std::size_t> by_value;
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const auto& e = events_[i];
      if (!has_value(e)) continue;
      const auto [at, added] = by_value.try_emplace(e.value, clusters_.size());
      if (added) clusters_.emplace_back();
      auto& c = clusters_[at->second];
      if (e.kind == EventKind::kGet) {
        c.read = true;
      } else if (c.write != kNone) {
        return violation("two writes of one value: not a history that can be judged", {c.write, i});
      } else {
        c.write = i;
      }
      if (c.first_to_end == kNone || end_of(e) < c.f) {
        c.f = end_of(e);
        c.first_to_end = i;
      }
      if (c.last_to_begin == kNone || e.begin > c.s) {
        c.s = e.begin;
        c.last_to_begin = i;
      }
    }
    for (const auto& c : clusters_) {
      if (c.write == kNone) return violation("a get returned a value that nobody put", {c.first_to_end});
      if (c.f < events_[c.write].begin)
        return violation("a get returned a value before its put began", {c.first_to_end, c.write});
    }
    // A write of unknown outcome that nobody has read need not have happened.
    std::erase_if(clusters_,
                  [this](const Cluster& c) { return !c.read && events_[c.write].outcome == Outcome::kUnknown; });
    return std::nullopt;
  }

  std::optional<Violation> build_zones() {
    for (const auto& c : clusters_) {
      if (c.f < c.s) zones_.push_back(c);
    }
    std::sort(zones_.begin(), zones_.end(), [](const Cluster& a, const Cluster& b) { return a.f < b.f; });
    for (std::size_t i = 1; i < zones_.size(); ++i) {
      const auto& a = zones_[i - 1];
      const auto& b = zones_[i];
      if (b.f < a.s) {
        return violation("two values would have to stand at once: each was seen on both sides of the other",
                         {a.first_to_end, a.last_to_begin, b.first_to_end, b.last_to_begin});
      }
    }
    return std::nullopt;
  }

  std::optional<Violation> build_items() {
    for (const auto& c : clusters_) {
      if (c.f < c.s) continue;
      if (auto bad = add_item({Item::kCluster, c.s, c.f, c.last_to_begin})) return bad;
    }
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const auto& e = events_[i];
      const bool nothing = finds_nothing(e);
      if (!nothing && !erases(e)) continue;
      if (auto bad = add_item({nothing ? Item::kNothing : Item::kErase, e.begin, end_of(e), i})) return bad;
    }
    return std::nullopt;
  }

  // The zone that has `t` strictly inside, if any.
  const Cluster* zone_around(std::int64_t t) const {
    const auto after = std::partition_point(zones_.begin(), zones_.end(), [t](const Cluster& z) { return z.f < t; });
    if (after == zones_.begin()) return nullptr;
    const auto& zone = *std::prev(after);
    return t < zone.s ? &zone : nullptr;
  }

  // Cuts the item's interval back to where gaps are.
  std::optional<Violation> add_item(Item item) {
    const auto* const at_start = zone_around(item.from);
    const auto* const at_end = zone_around(item.to);
    if (at_start != nullptr && at_start == at_end) {
      return violation("it took place while another value stood",
                       {item.event, at_start->first_to_end, at_start->last_to_begin});
    }
    if (at_start != nullptr) item.from = at_start->s;
    if (at_end != nullptr) item.to = at_end->f;
    items_.push_back(item);
    return std::nullopt;
  }

  struct Point {
    enum Kind : std::uint8_t { kZoneEnd, kBegin, kDeadline, kZoneBegin } kind{};
    std::int64_t at = 0;
    std::size_t item = 0;
  };

  std::vector<Point> points() const {
    std::vector<Point> all;
    for (const auto& z : zones_) {
      all.push_back({Point::kZoneBegin, z.f, 0});
      all.push_back({Point::kZoneEnd, z.s, 0});
    }
    for (std::size_t i = 0; i < items_.size(); ++i) {
      all.push_back({Point::kBegin, items_[i].from, i});
      if (items_[i].to != kNever) all.push_back({Point::kDeadline, items_[i].to, i});
    }
    std::sort(all.begin(), all.end(), [](const Point& a, const Point& b) {
      return a.at != b.at ? a.at < b.at : a.kind != b.kind ? a.kind < b.kind : a.item < b.item;
    });
    return all;
  }

  std::optional<Violation> sweep() {
    for (const auto& point : points()) {
      switch (point.kind) {
        case Point::kZoneEnd:
        case Point::kZoneBegin:
          open_clusters_.clear();
          present_ = true;
          break;
        case Point::kBegin: begin(point.item); break;
        case Point::kDeadline:
          if (!meet_deadline(point.item)) {
            return violation("a get or erase found nothing, and no erase can have made it so",
                             {items_[point.item].event, last_placed_});
          }
      }
    }
    return std::nullopt;
  }

  void begin(std::size_t i) {
    switch (items_[i].kind) {
      case Item::kNothing:
        if (present_) open_nothings_.insert(i);
        break;
      case Item::kErase: open_erases_.insert({items_[i].to, i}); break;
      case Item::kCluster:
        if (present_) {
          last_placed_ = items_[i].event;
        } else {
          open_clusters_.insert(i);
        }
    }
  }

  bool meet_deadline(std::size_t i) {
    switch (items_[i].kind) {
      case Item::kNothing:
        if (!open_nothings_.contains(i)) return true;
        if (open_erases_.empty()) return false;
        place_erase(*open_erases_.begin());
        return true;
      case Item::kErase:
        if (open_erases_.contains({items_[i].to, i})) place_erase({items_[i].to, i});
        return true;
      case Item::kCluster:
        if (!open_clusters_.contains(i)) return true;
        open_clusters_.clear();
        present_ = true;
        last_placed_ = items_[i].event;
        return true;
    }
    return true;
  }

  void place_erase(std::pair<std::int64_t, std::size_t> erase) {
    open_erases_.erase(erase);
    open_clusters_.clear();
    open_nothings_.clear();
    present_ = false;
  }

  std::span<const Event> events_;
  std::vector<Cluster> clusters_;
  std::vector<Cluster> zones_;  // forward, by time
  std::vector<Item> items_;
  // While sweeping: begun and not placed.
  bool present_ = false;
  std::set<std::size_t> open_nothings_;
  std::set<std::pair<std::int64_t, std::size_t>> open_erases_;  // by deadline
  std::set<std::size_t> open_clusters_;
  std::size_t last_placed_ = kNone;
};

}  // namespace

std::optional<Violation> sweep_values(std::span<const Event> events) {
  if (events.empty()) return std::nullopt;
  return Sweep(events).judge();
}

}  // namespace sluice::workload
