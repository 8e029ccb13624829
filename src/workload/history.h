// History: who invoked what when, and what came of it; the linearizability checker's food.
//
// Life:       begin() at the invocation, end() at the response. What never gets an end is of unknown outcome, as is what ends so.
// Invariant:  instants of one History are distinct and in the order of the calls: a counter, since virtual time and a poll loop's time
//             stand still while much happens.
// Threads:    one owner. Histories of several threads cannot be merged: their counters know nothing of each other.
// Limits:     48 bytes an operation.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "workload/store.h"
#include "workload/value.h"

namespace sluice::workload {

enum class EventKind : std::uint8_t { kGet, kPut, kInsert, kErase };

struct Event {
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  Key key = 0;
  ValueId value = 0;  // kPut, kInsert: written; kGet that ended as kOk: read
  std::int64_t begin = 0;
  std::int64_t end = kNever;
  std::uint32_t client = 0;
  EventKind kind{};
  Outcome outcome = Outcome::kUnknown;
};

class History {
 public:
  using Id = std::size_t;

  Id begin(std::uint32_t client, EventKind kind, Key key, ValueId written = 0) {
    events_.push_back({.key = key, .value = written, .begin = ++clock_, .client = client, .kind = kind});
    return events_.size() - 1;
  }
  void end(Id id, Outcome outcome, ValueId read = 0) {
    auto& event = events_[id];
    event.end = ++clock_;
    event.outcome = outcome;
    if (event.kind == EventKind::kGet) event.value = read;
  }
  const std::vector<Event>& events() const { return events_; }

 private:
  std::vector<Event> events_;
  std::int64_t clock_ = 0;
};

// "client 3 put 5:17 of key 9, 104..210: ok"; a value is its writer and sequence.
std::string to_string(const Event& event);

}  // namespace sluice::workload
