// The two judges of one key's history behind check_linearizable(): the sweep, exact for values; the search, exact for everything
// and slow at worst. Nobody else includes this but their tests.
#pragma once

#include <optional>
#include <span>

#include "workload/linearizability.h"

namespace sluice::workload {

// REQUIRES of both: events of one key; those that did not happen (refused, unavailable, no space) left out.

// Nothing when the values are in order.
std::optional<Violation> sweep_values(std::span<const Event> events);

enum class Search : std::uint8_t { kLinearizable, kNot, kUndecided };
// `stuck`: the event that could not be placed, in the order that got furthest.
Search search_order(std::span<const Event> events, std::uint64_t limit, Event& stuck);

}  // namespace sluice::workload
