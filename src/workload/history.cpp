#include "workload/history.h"

#include <fmt/format.h>

namespace sluice::workload {
namespace {

constexpr std::string_view kNames[] = {"get", "put", "insert", "erase"};

}  // namespace

std::string to_string(const Event& event) {
  const auto value =
      event.value == 0 ? std::string() : fmt::format(" {}:{}", writer_of(event.value), sequence_of(event.value));
  const auto end = event.end == Event::kNever ? std::string("?") : std::to_string(event.end);
  return fmt::format("client {} {}{} of key {}, {}..{}: {}", event.client, kNames[static_cast<std::size_t>(event.kind)],
                     value, event.key, event.begin, end, to_string(event.outcome));
}

}  // namespace sluice::workload
