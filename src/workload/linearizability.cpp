#include "workload/linearizability.h"

#include <algorithm>
#include <span>

#include "workload/register_check.h"

namespace sluice::workload {
namespace {

constexpr std::size_t kMostExplained = 10;  // keys: one fault breaks many in the same way

// Whether the event tells anything about its key.
bool counts(const Event& e) {
  switch (e.outcome) {
    case Outcome::kOk:
    case Outcome::kNotFound:
    case Outcome::kExists: return true;
    case Outcome::kUnknown: return e.kind != EventKind::kGet;
    case Outcome::kNoSpace:
    case Outcome::kUnavailable:
    case Outcome::kRefused: return false;
  }
  return false;
}

bool has_condition(const Event& e) {
  return e.kind == EventKind::kInsert || (e.kind == EventKind::kErase && e.outcome == Outcome::kOk);
}

std::optional<Violation> judge_key(std::span<const Event> events, const CheckOptions& options, Verdict& verdict) {
  Zones zones(events);
  if (auto bad = zones.build()) return bad;
  if (auto bad = sweep_values(zones)) return bad;
  if (!options.conditions || std::none_of(events.begin(), events.end(), has_condition)) return std::nullopt;
  bool decided = false;
  auto bad = sweep_conditions(zones, options.search_limit, decided);
  if (!decided) ++verdict.undecided;
  return bad;
}

}  // namespace

Verdict check_linearizable(std::span<const Event> history, const CheckOptions& options) {
  std::vector<Event> events;
  events.reserve(history.size());
  std::copy_if(history.begin(), history.end(), std::back_inserter(events), counts);
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.key < b.key; });
  Verdict verdict;
  verdict.operations = events.size();
  for (std::size_t from = 0; from < events.size();) {
    std::size_t to = from;
    while (to < events.size() && events[to].key == events[from].key) ++to;
    ++verdict.keys;
    auto bad = judge_key(std::span(events).subspan(from, to - from), options, verdict);
    if (bad) verdict.violations.push_back(std::move(*bad));
    from = to;
  }
  return verdict;
}

std::string Verdict::explain() const {
  std::string text;
  for (const auto& violation : std::span(violations).first(std::min(violations.size(), kMostExplained))) {
    text += "key " + std::to_string(violation.key) + ": " + violation.what + "\n";
    for (const auto& event : violation.events) text += "  " + to_string(event) + "\n";
  }
  if (violations.size() > kMostExplained)
    text += "and " + std::to_string(violations.size() - kMostExplained) + " more keys that no order explains\n";
  if (undecided != 0) text += std::to_string(undecided) + " keys have too many orders to be searched: undecided\n";
  return text;
}

}  // namespace sluice::workload
