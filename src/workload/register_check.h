// The parts of check_linearizable(): the zones of one key's history, the sweep over values, the sweep over conditions. Nobody else
// includes this but their tests.
//
// Every value was written once, so its write and its reads (its cluster) follow each other without another write between. Let f be
// the earliest end in a cluster and s its latest begin. If f < s the value stands from f to s (a zone): zones of two values
// must not overlap, and nothing else can take place inside one. Otherwise all of the cluster can take place at any one instant
// of [s, f] that lies outside of zones. (Gibbons and Korach.)
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "workload/linearizability.h"

namespace sluice::workload {

inline constexpr std::int64_t kForever = Event::kNever;
inline constexpr std::size_t kNoEvent = ~std::size_t{0};

// An operation of unknown outcome may take effect at any time from its begin on.
inline std::int64_t end_of(const Event& e) { return e.outcome == Outcome::kUnknown ? kForever : e.end; }
inline bool finds_nothing(const Event& e) {
  return e.outcome == Outcome::kNotFound && (e.kind == EventKind::kGet || e.kind == EventKind::kErase);
}
inline bool may_erase(const Event& e) {
  return e.kind == EventKind::kErase && (e.outcome == Outcome::kOk || e.outcome == Outcome::kUnknown);
}

// A write and its reads, as indices of events.
struct Cluster {
  std::size_t write = kNoEvent;
  std::size_t first_to_end = kNoEvent;
  std::size_t last_to_begin = kNoEvent;
  bool read = false;
  std::int64_t f = kForever;
  std::int64_t s = 0;
};

class Zones {
 public:
  explicit Zones(std::span<const Event> events) : events_(events) {}

  // Nothing when the values alone are in order.
  std::optional<Violation> build();

  std::span<const Event> events() const { return events_; }
  const std::vector<Cluster>& zones() const { return zones_; }                  // by time
  const std::vector<Cluster>& points() const { return points_; }                // clusters that fit into an instant
  const std::vector<std::size_t>& idle_writes() const { return idle_writes_; }  // of unknown outcome and never read

  // The zone that has `t` strictly inside, if any.
  const Cluster* around(std::int64_t t) const;
  // Cuts an interval back to the gaps between zones; a violation by `event` when nothing is left.
  std::optional<Violation> trim(std::int64_t& from, std::int64_t& to, std::size_t event) const;

  Violation violation(std::string what, std::initializer_list<std::size_t> events) const;

 private:
  std::optional<Violation> build_clusters(std::vector<Cluster>& clusters);

  std::span<const Event> events_;
  std::vector<Cluster> zones_;
  std::vector<Cluster> points_;
  std::vector<std::size_t> idle_writes_;
};

// REQUIRES of both: zones.build() found nothing.

// Exact when every insert and erase is taken as a write whatever was there before.
std::optional<Violation> sweep_values(const Zones& zones);

// Exact also in what inserts and erases say they found. Looks at up to `limit` configurations; `decided` tells whether that was enough.
std::optional<Violation> sweep_conditions(const Zones& zones, std::uint64_t limit, bool& decided);

}  // namespace sluice::workload
