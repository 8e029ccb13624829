// Box memory: what SwordBox's tables take, by feature, of a box made for so many connections, keys and words. Nothing is simulated: a box
// is made and asked.
//
// Units:      KiB of address space.
// Source:     SwordBox §5.1, Figure 8: there the shares of a switch's pipeline; a program has memory instead.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/world/fields.h"
#include "swordbox/box.h"

namespace sluice::sim {

struct BoxMemoryWorkload {
  std::string feature = "all";  // all, or a swordbox::feature_name()
  std::uint64_t connections = 4096;
  std::uint64_t keys = 1024;
  std::uint64_t nodes = std::uint64_t{1} << 16;  // remembered, of all keys
  std::uint64_t words = std::uint64_t{1} << 20;
  std::uint64_t held_packets = 1024;
  // Not in experiments: operations remembered of each connection, a power of two; keys that it has places for, 0: for `keys`.
  std::uint64_t ring = 128;
  std::uint64_t most_keys = 0;

  void read(Fields& fields);
};

// Steering Clover and replacing atomics; ask for its account().
std::unique_ptr<swordbox::Box> make_box(const BoxMemoryWorkload& workload);
// kib, and bytes_a_connection, bytes_a_key, bytes_a_word: the feature's memory spread over each.
std::vector<std::pair<std::string, double>> run_box_memory(const BoxMemoryWorkload& workload);

}  // namespace sluice::sim
