#include <algorithm>
#include <unordered_map>

#include "workload/register_check.h"

namespace sluice::workload {
namespace {

bool has_value(const Event& e) {
  switch (e.kind) {
    case EventKind::kGet: return e.outcome == Outcome::kOk;
    case EventKind::kPut:
    case EventKind::kInsert: return e.outcome == Outcome::kOk || e.outcome == Outcome::kUnknown;
    case EventKind::kErase: return false;
  }
  return false;
}

}  // namespace

Violation Zones::violation(std::string what, std::initializer_list<std::size_t> events) const {
  Violation v{.key = events_.front().key, .what = std::move(what), .events = {}};
  for (const auto i : events) {
    if (i != kNoEvent) v.events.push_back(events_[i]);
  }
  return v;
}

std::optional<Violation> Zones::build_clusters(std::vector<Cluster>& clusters) {
  std::unordered_map<ValueId, std::size_t> by_value;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const auto& e = events_[i];
    if (!has_value(e)) continue;
    const auto [at, added] = by_value.try_emplace(e.value, clusters.size());
    if (added) clusters.emplace_back();
    auto& c = clusters[at->second];
    if (e.kind == EventKind::kGet) {
      c.read = true;
    } else if (c.write != kNoEvent) {
      return violation("two writes of one value: not a history that can be judged", {c.write, i});
    } else {
      c.write = i;
    }
    if (c.first_to_end == kNoEvent || end_of(e) < c.f) {
      c.f = end_of(e);
      c.first_to_end = i;
    }
    if (c.last_to_begin == kNoEvent || e.begin > c.s) {
      c.s = e.begin;
      c.last_to_begin = i;
    }
  }
  for (const auto& c : clusters) {
    if (c.write == kNoEvent) return violation("a get returned a value that nobody put", {c.first_to_end});
    if (c.f < events_[c.write].begin) {
      return violation("a get returned a value before its put began", {c.first_to_end, c.write});
    }
  }
  return std::nullopt;
}

std::optional<Violation> Zones::build() {
  std::vector<Cluster> clusters;
  if (auto bad = build_clusters(clusters)) return bad;
  for (const auto& c : clusters) {
    if (!c.read && events_[c.write].outcome == Outcome::kUnknown) {
      idle_writes_.push_back(c.write);
    } else {
      (c.f < c.s ? zones_ : points_).push_back(c);
    }
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

const Cluster* Zones::around(std::int64_t t) const {
  const auto after = std::partition_point(zones_.begin(), zones_.end(), [t](const Cluster& z) { return z.f < t; });
  if (after == zones_.begin()) return nullptr;
  const auto& zone = *std::prev(after);
  return t < zone.s ? &zone : nullptr;
}

std::optional<Violation> Zones::trim(std::int64_t& from, std::int64_t& to, std::size_t event) const {
  const auto* const at_start = around(from);
  const auto* const at_end = around(to);
  if (at_start != nullptr && at_start == at_end) {
    return violation("it took place while another value stood",
                     {event, at_start->first_to_end, at_start->last_to_begin});
  }
  if (at_start != nullptr) from = at_start->s;
  if (at_end != nullptr) to = at_end->f;
  return std::nullopt;
}

}  // namespace sluice::workload
