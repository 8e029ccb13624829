// What `sluice bench cowbird` measures: how many remote records a program looks up in a hash table, and how long each takes.
//
// Probe:      one thread looks random keys up in an index of local memory, then their records, of which one in twenty lies in local memory and the rest remotely; every record is checked.
// Errors:     failed operations, wrong bytes.
// Threads:    the caller's.
// Source:     Cowbird, Figures 8 and 13.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "cli/cowbird_cost.h"

namespace sluice::cli {

// Reads of one size: from memory of this process, through verbs, through Cowbird with an engine that batches and one that does not; with `depth`
// reads under way and with one at a time.
class CowbirdProbe {
 public:
  // Instance 0 of the world has an engine that batches, 1 one that does not.
  CowbirdProbe(rack::CowbirdWorld& world, VerbsPool& verbs, std::size_t depth, Duration duration);
  ~CowbirdProbe();
  CowbirdProbe(const CowbirdProbe&) = delete;
  CowbirdProbe& operator=(const CowbirdProbe&) = delete;

  // `on_way` is called before each way begins, with its name.
  Result<CowbirdRows> measure(std::uint32_t bytes, const std::function<void(std::string_view way)>& on_way);
  static std::uint64_t ways(std::size_t depth) { return depth == 1 ? 5 : 8; }  // each of them takes `duration`

 private:
  struct Ways;
  std::unique_ptr<Ways> ways_;
  std::vector<std::uint8_t> local_;
  std::size_t depth_;
  Duration duration_;
};

}  // namespace sluice::cli
