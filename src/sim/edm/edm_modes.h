// EDM's two simulations held against each other: the same messages at the same times, block by block (edm_testbed.h) and chunk by chunk
// (edm_cluster.h), compared message by message.
//
// Same:      where all times are whole blocks and each request is one block (/N/, a line's read), every message ends at the same instant in both,
//            whatever the load, the matching and the policy. A request that the testbed holds behind data of its own sender is the exception.
// Different: requests of two blocks or more. On the testbed none of them stands inside a chunk, nor a chunk inside one of them, for /MD/ looks like /D/; the
//            cluster lets them pass block by block. And times that are no whole blocks, which the cluster rounds.
// Metrics:   differ                  messages that do not take exactly as long in both; all_same is 1 if there are none, otherwise 0
//            testbed_ns, cluster_ns  the mean of how long messages take
//            difference_percent      by which the cluster's is above the testbed's
//            most_ns                 the largest difference of a message
//            held                    requests that the testbed could not send down at once
//            met, waited_ns          chunks of data that found others on their way down; the longest that one waited in the switch (edm_testbed.h)
// Not here:  DRAM's time, which the cluster does not have; frames.
// Source:    EDM §4.2 (testbed), §4.3 (the cluster: "the latency of each of the EDM's modules … configured to match the testbed").
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/edm/edm_cluster.h"
#include "sim/edm/edm_testbed.h"

namespace sluice::sim {

// The stages of the testbed's stacks and links, as the cluster counts them.
EdmHardware cluster_of(const EdmTestbedHardware& hardware);

// A cycle of its stacks takes a whole number of blocks.
bool can_be_whole_blocks(const EdmTestbedHardware& hardware);
// Links as long, and a scheduler's clock as slow, as makes every time a whole number of blocks. REQUIRES: can_be_whole_blocks().
EdmTestbedHardware in_whole_blocks(EdmTestbedHardware hardware);

struct EdmModesWorkload {
  EdmTestbed::Settings bed{
      .hosts = 4, .read_timer = EdmTestbed::kNoTimer};  // but for its memory, which is as large as it has to be
  std::uint64_t messages = 1'000;
  std::uint64_t bits_per_second = 0;  // of data that each host sends, on average
  std::uint32_t reads_per_mille = 500;
  std::uint32_t write_bytes = 1'000;  // at most; all lengths alike
  std::uint32_t read_bytes = 0;       // the same; 0: a line of 64 B each, whose request is one block
  enum class Pairs : std::uint8_t {
    kMixed,
    kApart,  // of one host to another, all messages are reads or all are writes
  };
  Pairs pairs = Pairs::kMixed;
  bool whole_blocks = true;

  void read(Fields& fields);
};

struct EdmModesOutcome {
  struct Message {
    TraceRow row;
    Duration on_testbed{};  // from its coming to the end of its last block's processing
    Duration in_cluster{};
  };
  std::vector<Message> messages;
  EdmTestbed::Counts counts;
};

EdmModesOutcome run_both_modes(const EdmTestbedHardware& hardware, const EdmModesWorkload& workload,
                               std::uint64_t seed);
std::vector<std::pair<std::string, double>> run_edm_modes(const EdmTestbedHardware& hardware,
                                                          const EdmModesWorkload& workload, std::uint64_t seed);

}  // namespace sluice::sim
