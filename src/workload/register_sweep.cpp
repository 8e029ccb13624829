// Values of a register, in O(n log n).
//
// Absence is written by every erase, and any erase will do for a get that finds nothing, so it has no cluster. In the gaps between
// zones there are: erases E and "nothing" gets N, each at an instant of its interval, and clusters C that fit into an instant.
// The state is "present" or "absent". N needs absent; E makes absent; C and zones make present. Sweep over time:
//   - While absent, every N begun is placed at once. While present, every C begun is placed at once: neither does harm.
//   - An E is held back until it must be: at its own deadline, or at the deadline of an N while present; then of the E's begun the
//     one with the earliest deadline is taken. All C's begun go just before it, and all N's begun just after.
//   - A C not placed by its deadline goes then, and makes present. Before a zone all C's begun are placed.
// Holding back is never worse: an E used later serves all N's that it could have served earlier and whose deadlines had not come.
#include <algorithm>
#include <set>

#include "workload/register_check.h"

namespace sluice::workload {
namespace {

// Something that must take place at one instant of [from, to].
struct Item {
  enum Kind : std::uint8_t { kNothing, kErase, kCluster } kind{};
  std::int64_t from = 0;
  std::int64_t to = kForever;
  std::size_t event = kNoEvent;  // to blame
};

class Sweep {
 public:
  explicit Sweep(const Zones& zones) : zones_(zones) {}

  std::optional<Violation> judge() {
    if (auto bad = build_items()) return bad;
    return sweep();
  }

 private:
  struct Point {
    enum Kind : std::uint8_t { kZoneEnd, kBegin, kDeadline, kZoneBegin } kind{};
    std::int64_t at = 0;
    std::size_t item = 0;
  };

  std::optional<Violation> build_items() {
    for (const auto& c : zones_.points()) {
      if (auto bad = add_item({Item::kCluster, c.s, c.f, c.last_to_begin})) return bad;
    }
    const auto events = zones_.events();
    for (std::size_t i = 0; i < events.size(); ++i) {
      const bool nothing = finds_nothing(events[i]);
      if (!nothing && !may_erase(events[i])) continue;
      if (auto bad = add_item({nothing ? Item::kNothing : Item::kErase, events[i].begin, end_of(events[i]), i}))
        return bad;
    }
    return std::nullopt;
  }

  std::optional<Violation> add_item(Item item) {
    if (auto bad = zones_.trim(item.from, item.to, item.event)) return bad;
    items_.push_back(item);
    return std::nullopt;
  }

  std::vector<Point> points() const {
    std::vector<Point> all;
    for (const auto& z : zones_.zones()) {
      all.push_back({Point::kZoneBegin, z.f, 0});
      all.push_back({Point::kZoneEnd, z.s, 0});
    }
    for (std::size_t i = 0; i < items_.size(); ++i) {
      all.push_back({Point::kBegin, items_[i].from, i});
      if (items_[i].to != kForever) all.push_back({Point::kDeadline, items_[i].to, i});
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
            return zones_.violation("a get or erase found nothing, and no erase can have made it so",
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

  const Zones& zones_;
  std::vector<Item> items_;
  // While sweeping: begun and not placed.
  bool present_ = false;
  std::set<std::size_t> open_nothings_;
  std::set<std::pair<std::int64_t, std::size_t>> open_erases_;  // by deadline
  std::set<std::size_t> open_clusters_;
  std::size_t last_placed_ = kNoEvent;
};

}  // namespace

std::optional<Violation> sweep_values(const Zones& zones) { return Sweep(zones).judge(); }

}  // namespace sluice::workload
