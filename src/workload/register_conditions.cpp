// Values and conditions of a register: the sweep of register_sweep.cpp, now with choices, all of which are followed.
//
// Items, in the gaps between zones, each at an instant of its interval:
//   nothing    a get or erase that found nothing     needs absent
//   something  an insert that found the key          needs present
//   erase      ok                                    needs present, makes absent; forced
//   maybe erase  unknown                             the same; may be left out
//   put        a cluster begun by a put              makes present; forced, or may be left out (unknown and never read)
//   insert     a cluster begun by an insert          needs absent, makes present; forced, or may be left out
// A zone begins with a put or an insert likewise. A cluster or zone whose write has begun may be entered before its reads
// begin; nothing else can take place from then until its s ("locked").
//
// A configuration is the state and the items that have begun and are not placed. Items of one kind differ only in their
// deadlines, so the one with the earliest is always taken. Nothing is placed before some deadline forces it, save what costs nothing
// where it stands: "nothing" while absent, "something" while present, any number of puts just before an erase, and just before
// a put (which asks for nothing) an insert or erase, whichever fits the state. At a
// deadline the item is placed, after one other that makes the state that it needs, in all ways there are.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "workload/register_check.h"

namespace sluice::workload {
namespace {

enum class Kind : std::uint8_t { kNothing, kSomething, kErase, kPut, kInsert, kMaybeErase, kMaybePut, kMaybeInsert };
constexpr std::size_t kForcedKinds = 5;
constexpr std::size_t kMaybeKinds = 3;
constexpr bool is_forced(Kind kind) { return static_cast<std::size_t>(kind) < kForcedKinds; }
constexpr std::size_t maybe_index(Kind kind) { return static_cast<std::size_t>(kind) - kForcedKinds; }

struct Item {
  Kind kind{};
  std::int64_t from = 0;
  std::int64_t to = kForever;
  std::int64_t enter_from = kForever;  // clusters: their write may stand alone from here on
  std::size_t event = kNoEvent;
};

constexpr std::uint32_t kUnlocked = ~std::uint32_t{0};
constexpr std::uint32_t kZoneLock = 0x8000'0000;  // + number of the zone; others: number of the item

struct Shape {
  bool present = false;
  std::uint32_t lock = kUnlocked;
  std::vector<std::uint32_t> open;  // ranks of forced items: by kind, then by deadline

  friend bool operator==(const Shape&, const Shape&) = default;
};
struct ShapeHash {
  std::size_t operator()(const Shape& s) const {
    std::uint64_t h = s.lock * std::uint64_t{2} + (s.present ? 1 : 0);
    for (const auto item : s.open)
      h = (h ^ item) * 0x9E37'79B9'7F4A'7C15;  // Fibonacci hashing; the top bits are the good ones
    return h ^ (h >> 32);
  }
};
// How many items of each maybe kind are open. All are alike: they have no deadline.
using Maybes = std::array<std::uint32_t, kMaybeKinds>;

struct Configuration : Shape {
  Maybes maybes{};
};

// Configurations, without those that have nothing that another one of their shape has not.
class Configurations {
 public:
  void insert(const Configuration& c) {
    auto& best = by_shape_[c];
    const auto covers = [](const Maybes& a, const Maybes& b) { return a[0] >= b[0] && a[1] >= b[1] && a[2] >= b[2]; };
    for (const auto& known : best) {
      if (covers(known, c.maybes)) return;
    }
    count_ -= std::erase_if(best, [&](const Maybes& known) { return covers(c.maybes, known); });
    best.push_back(c.maybes);
    ++count_;
  }
  // Those whose shape `chosen` says yes to, moved to `taken`.
  template <class Chosen>
  void take(Chosen chosen, std::vector<Configuration>& taken) {
    taken.clear();
    for (auto at = by_shape_.begin(); at != by_shape_.end();) {
      if (!chosen(at->first)) {
        ++at;
        continue;
      }
      for (const auto& maybes : at->second) taken.push_back(Configuration{at->first, maybes});
      count_ -= at->second.size();
      at = by_shape_.erase(at);
    }
  }
  std::size_t size() const { return count_; }

 private:
  std::unordered_map<Shape, std::vector<Maybes>, ShapeHash> by_shape_;
  std::size_t count_ = 0;
};

class ConditionSweep {
 public:
  ConditionSweep(const Zones& zones, std::uint64_t limit) : zones_(zones), limit_(limit) {}

  std::optional<Violation> judge(bool& decided) {
    decided = true;
    if (auto bad = build_items()) return bad;
    current_.insert(Configuration{});
    for (const auto& point : points()) {
      current_.take([&](const Shape& s) { return concerns(point, s); }, stepping_);
      for (const auto& c : stepping_) step(point, c, current_);
      if (current_.size() == 0) return refusal(point);
      seen_ += current_.size();
      if (seen_ > limit_) {
        decided = false;
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

 private:
  struct Point {
    enum Type : std::uint8_t { kZoneEnd, kBegin, kDeadline, kZoneBegin } type{};
    std::int64_t at = 0;
    std::uint32_t number = 0;  // of the item or zone
  };

  // ------------------------------------------------------------------------------------------------------------ items

  Kind kind_of_write(std::size_t event, bool optional) const {
    const bool insert = zones_.events()[event].kind == EventKind::kInsert;
    if (optional) return insert ? Kind::kMaybeInsert : Kind::kMaybePut;
    return insert ? Kind::kInsert : Kind::kPut;
  }

  std::optional<Violation> build_items() {
    const auto events = zones_.events();
    for (const auto& c : zones_.points()) {
      const Item item{kind_of_write(c.write, false), c.s, c.f, events[c.write].begin, c.last_to_begin};
      if (auto bad = add_item(item)) return bad;
    }
    for (const auto i : zones_.idle_writes()) {
      if (auto bad = add_item({kind_of_write(i, true), events[i].begin, kForever, kForever, i})) return bad;
    }
    for (std::size_t i = 0; i < events.size(); ++i) {
      const auto& e = events[i];
      Kind kind{};
      if (finds_nothing(e)) {
        kind = Kind::kNothing;
      } else if (may_erase(e)) {
        kind = e.outcome == Outcome::kOk ? Kind::kErase : Kind::kMaybeErase;
      } else if (e.outcome == Outcome::kExists) {
        if (zones_.around(e.begin) != nullptr || zones_.around(e.end) != nullptr) continue;  // found what stood there
        kind = Kind::kSomething;
      } else {
        continue;
      }
      if (auto bad = add_item({kind, e.begin, end_of(e), kForever, i})) return bad;
    }
    // Ranks: within a kind the earliest deadline first.
    std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
      return a.kind != b.kind ? a.kind < b.kind : a.to != b.to ? a.to < b.to : a.event < b.event;
    });
    for (std::uint32_t i = 0; i < items_.size(); ++i) ++first_of_kind_.at(static_cast<std::size_t>(items_[i].kind) + 1);
    for (std::size_t k = 1; k < first_of_kind_.size(); ++k) first_of_kind_[k] += first_of_kind_[k - 1];
    return std::nullopt;
  }

  std::optional<Violation> add_item(Item item) {
    if (auto bad = zones_.trim(item.from, item.to, item.event)) return bad;
    items_.push_back(item);
    return std::nullopt;
  }

  std::vector<Point> points() const {
    std::vector<Point> all;
    for (std::uint32_t i = 0; i < zones_.zones().size(); ++i) {
      all.push_back({Point::kZoneBegin, zones_.zones()[i].f, i});
      all.push_back({Point::kZoneEnd, zones_.zones()[i].s, i});
    }
    for (std::uint32_t i = 0; i < items_.size(); ++i) {
      all.push_back({Point::kBegin, items_[i].from, i});
      if (items_[i].to != kForever) all.push_back({Point::kDeadline, items_[i].to, i});
    }
    std::sort(all.begin(), all.end(), [](const Point& a, const Point& b) {
      return a.at != b.at ? a.at < b.at : a.type != b.type ? a.type < b.type : a.number < b.number;
    });
    return all;
  }

  // ------------------------------------------------------------------------------------------------- configurations

  static bool is_open(const Shape& s, std::uint32_t item) {
    return std::binary_search(s.open.begin(), s.open.end(), item);
  }
  static void close(Configuration& c, std::uint32_t item) {
    c.open.erase(std::lower_bound(c.open.begin(), c.open.end(), item));
  }
  static void open(Configuration& c, std::uint32_t item) {
    c.open.insert(std::lower_bound(c.open.begin(), c.open.end(), item), item);
  }
  // The open items of a kind.
  std::span<const std::uint32_t> open_of(const Configuration& c, Kind kind) const {
    const auto k = static_cast<std::size_t>(kind);
    const auto from = std::lower_bound(c.open.begin(), c.open.end(), first_of_kind_[k]);
    const auto to = std::lower_bound(from, c.open.end(), first_of_kind_[k + 1]);
    return {from, to};
  }
  void close_all(Configuration& c, Kind kind) const {
    const auto k = static_cast<std::size_t>(kind);
    const auto from = std::lower_bound(c.open.begin(), c.open.end(), first_of_kind_[k]);
    c.open.erase(from, std::lower_bound(from, c.open.end(), first_of_kind_[k + 1]));
  }
  void become(Configuration& c, bool present) const {
    c.present = present;
    close_all(c, present ? Kind::kSomething : Kind::kNothing);
  }

  // REQUIRES: c is present and not locked. All ways to place an erase: `erase`, or if that is none, any.
  template <class Then>
  void erase_in_all_ways(const Configuration& c, std::optional<std::uint32_t> erase, Then then) const {
    const auto puts = open_of(c, Kind::kPut);
    for (std::size_t before = 0; before <= puts.size(); ++before) {
      Configuration d = c;
      for (std::size_t i = 0; i < before; ++i) close(d, puts[i]);
      become(d, false);
      const auto with = [&](std::uint32_t item) {
        Configuration e = d;
        close(e, item);
        then(e);
      };
      if (erase) {
        with(*erase);
        continue;
      }
      if (const auto some = open_of(d, Kind::kErase); !some.empty()) with(some.front());
      Configuration e = d;
      if (use_maybe(e, Kind::kMaybeErase)) then(e);
    }
  }

  static bool use_maybe(Configuration& c, Kind kind) {
    auto& left = c.maybes[maybe_index(kind)];
    if (left == 0) return false;
    --left;
    return true;
  }

  // REQUIRES: c is absent and not locked. All ways to make it present without locking it.
  template <class Then>
  void write_in_all_ways(const Configuration& c, Then then) const {
    for (const Kind kind : {Kind::kPut, Kind::kInsert}) {
      const auto some = open_of(c, kind);
      if (some.empty()) continue;
      Configuration d = c;
      close(d, some.front());
      become(d, true);
      then(d);
    }
    for (const Kind kind : {Kind::kMaybePut, Kind::kMaybeInsert}) {
      Configuration d = c;
      if (!use_maybe(d, kind)) continue;
      become(d, true);
      then(d);
    }
  }

  // REQUIRES: c is not locked. `then` puts, whatever is there: what needs the present state may go just before it.
  template <class Then>
  void before_put(const Configuration& c, Then then) const {
    then(c);
    if (c.present) return erase_in_all_ways(c, std::nullopt, then);
    const auto some = open_of(c, Kind::kInsert);
    if (some.empty()) return;
    Configuration d = c;
    close(d, some.front());
    become(d, true);
    then(d);
  }

  // REQUIRES: c is absent and not locked. All ways to enter, at `now`, a cluster or zone whose reads are still to come.
  template <class Then>
  void enter_in_all_ways(const Configuration& c, std::int64_t now, Then then) const {
    std::int64_t gap_began = std::numeric_limits<std::int64_t>::min();
    const auto& zones = zones_.zones();
    const auto next = std::partition_point(zones.begin(), zones.end(), [now](const Cluster& z) { return z.f < now; });
    if (next != zones.begin()) gap_began = std::prev(next)->s;
    const auto enter = [&](std::uint32_t lock, bool by_put) {
      const auto lock_it = [&](Configuration d) {
        d.lock = lock;
        become(d, true);
        then(d);
      };
      if (!by_put) return lock_it(c);
      before_put(c, lock_it);
    };
    if (next != zones.end() && zones_.events()[next->write].begin <= now) {
      enter(kZoneLock + static_cast<std::uint32_t>(next - zones.begin()),
            zones_.events()[next->write].kind == EventKind::kPut);
    }
    for (const Kind kind : {Kind::kPut, Kind::kInsert}) {
      const auto k = static_cast<std::size_t>(kind);
      for (auto i = first_of_kind_[k]; i < first_of_kind_[k + 1]; ++i) {
        if (items_[i].enter_from <= now && items_[i].from > now && items_[i].from > gap_began)
          enter(i, kind == Kind::kPut);
      }
    }
  }

  // Whether the point can change configurations of this shape.
  static bool concerns(const Point& point, const Shape& s) {
    return point.type != Point::kDeadline || is_open(s, point.number);
  }

  // REQUIRES: the point concerns c. Puts into `next` all that c can become.
  void step(const Point& point, const Configuration& c, Configurations& next) const {
    switch (point.type) {
      case Point::kZoneEnd: return end_zone(c, next);
      case Point::kBegin: return begin(point.number, c, next);
      case Point::kDeadline: return meet_deadline(point, c, next);
      case Point::kZoneBegin: return begin_zone(point.number, c, next);
    }
  }

  static void end_zone(Configuration c, Configurations& next) {
    c.lock = kUnlocked;
    next.insert(c);
  }

  void begin_zone(std::uint32_t zone, const Configuration& c, Configurations& next) const {
    const std::uint32_t lock = kZoneLock + zone;
    const auto enter = [&](Configuration d) {
      d.lock = lock;
      become(d, true);
      next.insert(d);
    };
    if (c.lock == lock) {
      next.insert(c);
    } else if (c.lock == kUnlocked) {
      const bool by_put = zones_.events()[zones_.zones()[zone].write].kind == EventKind::kPut;
      if (by_put) {
        before_put(c, enter);
      } else if (!c.present) {
        enter(c);
      } else {
        erase_in_all_ways(c, std::nullopt, enter);
      }
    }
  }

  void begin(std::uint32_t item, Configuration c, Configurations& next) const {
    if (c.lock == item) {
      c.lock = kUnlocked;
    } else {
      const Kind kind = items_[item].kind;
      const bool at_once = (kind == Kind::kNothing && !c.present) || (kind == Kind::kSomething && c.present);
      if (!is_forced(kind)) {
        ++c.maybes[maybe_index(kind)];
      } else if (!at_once) {
        open(c, item);
      }
    }
    next.insert(c);
  }

  void meet_deadline(const Point& point, const Configuration& c, Configurations& next) const {
    const std::uint32_t item = point.number;
    if (c.lock != kUnlocked) return;  // too late: another value stands
    const auto keep = [&next](const Configuration& d) { next.insert(d); };
    const auto place = [&](Configuration d) {  // a write
      close(d, item);
      become(d, true);
      next.insert(d);
    };
    switch (items_[item].kind) {
      case Kind::kNothing: return erase_in_all_ways(c, std::nullopt, keep);
      case Kind::kSomething: write_in_all_ways(c, keep); return enter_in_all_ways(c, point.at, keep);
      case Kind::kErase:
        if (c.present) return erase_in_all_ways(c, item, keep);
        return write_in_all_ways(c, [&](const Configuration& d) { erase_in_all_ways(d, item, keep); });
      case Kind::kPut: {
        Configuration others = c;
        close(others, item);
        return before_put(others, [&](Configuration d) {
          become(d, true);
          next.insert(d);
        });
      }
      case Kind::kInsert:
        if (!c.present) return place(c);
        return erase_in_all_ways(c, std::nullopt, place);
      default: return;  // never forced
    }
  }

  Violation refusal(const Point& point) const {
    const bool zone = point.type == Point::kZoneBegin;
    const std::size_t event = zone ? zones_.zones()[point.number].write : items_[point.number].event;
    return zones_.violation("no order explains what inserts and erases found; all orders fail here at the latest",
                            {event});
  }

  const Zones& zones_;
  std::uint64_t limit_;
  std::uint64_t seen_ = 0;
  std::vector<Item> items_;  // by rank
  std::array<std::uint32_t, kForcedKinds + kMaybeKinds + 1> first_of_kind_{};
  Configurations current_;
  std::vector<Configuration> stepping_;
};

}  // namespace

std::optional<Violation> sweep_conditions(const Zones& zones, std::uint64_t limit, bool& decided) {
  return ConditionSweep(zones, limit).judge(decided);
}

}  // namespace sluice::workload
