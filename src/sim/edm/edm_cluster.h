// A cluster of EDM nodes around one switch, chunk by chunk: the scheduler itself (edm/scheduler.h) between models of the links and hosts.
//
// Life:       a message comes to its host -> /N/ or RREQ up -> demand -> grant -> /G/ or RREQ down -> a chunk up, through, and down.
// Time:       blocks (8 bytes) are the unit of all links and latencies; only the scheduler's iterations are finer. What a chunk does after
//             its grant is fixed then, so there are events for messages and for the scheduler, none for chunks on their way.
// Links:      up, granted chunks go first, and requests in the gaps that they leave. Down, requests and grants go between the blocks of a chunk,
//             which they displace by as many. A request of several blocks may stand apart; those of the testbed (edm_testbed.h) may not: edm_modes.h
//             says what that comes to.
// Ties:       of one instant, messages that come are before those that X lets go, and requests reach the scheduler in the order of their ports.
// Invariant:  a granted chunk never finds another one before it, neither at its host nor in the switch: checked for each, always.
// Not here:   DRAM's time, as in the published simulation; frames that are no memory messages.
// Units:      blocks since the start; Time for the scheduler.
// Errors:     none: rows are checked when read.
// Source:     EDM §3.1, §4.3; the public artifact for what a timeslot is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "edm/scheduler.h"
#include "sim/edm/edm_hardware.h"
#include "sim/edm/edm_trace.h"

namespace sluice::sim {

struct ClusterSettings {
  std::uint32_t nodes = 144;
  std::uint32_t active_per_pair =
      3;  // X: requests of one host to another that have no answer yet; for reads and for writes
  std::uint32_t chunk_bytes = 256;
  std::uint32_t framing_blocks = 0;  // that a chunk has on the wire besides its bytes
  std::uint32_t gap_blocks = 0;      // that the scheduler leaves free after each
  edm::Policy policy = edm::Policy::kShortestRemaining;
  edm::Matching matching = edm::Matching::kPim;
  Duration patience{};  // edm::SchedulerConfig
  // Of an answer's chunk, where it has fewer than a write's; the scheduler allows for framing_blocks.
  std::optional<std::uint32_t> answer_framing_blocks = {};
  std::uint32_t longest_request_blocks =
      0;  // that the scheduler allows for before an answer; 0: the longest of the trace
  edm::Iterations iterations = edm::Iterations::kFreeRunning;
  // Writes that X keeps back ask as one, with the room for their framing up to so many bytes (edm/mega_message.h); 0: each for itself.
  std::uint32_t mega_bytes = 0;

  std::uint32_t framing_of(const TraceRow& row) const {
    return row.reads() ? answer_framing_blocks.value_or(framing_blocks) : framing_blocks;
  }
};

// When what happened to a message, in blocks.
struct MessageTimes {
  std::int64_t requested = -1;  // the last block of its /N/ or RREQ left its host
  std::int64_t demanded = -1;   // the scheduler knew of it
  std::int64_t granted = -1;    // the first grant left the switch
  std::int64_t started = -1;    // its first byte left
  std::int64_t finished = -1;   // its last byte came
};

struct ClusterOutcome {
  std::vector<MessageTimes> times;  // by row
  std::int64_t most_displaced = 0;  // blocks by which grants and requests held up a chunk
  std::uint64_t chunks = 0;
  std::uint64_t batched = 0;  // writes that have asked with others
  std::uint64_t iterations = 0;
  std::uint64_t events = 0;
  std::uint64_t trace_hash = 0;
};

ClusterOutcome run_cluster(const EdmHardware& hardware, const ClusterSettings& settings,
                           const std::vector<TraceRow>& rows);

// In blocks, for one message alone, with a scheduler that takes no time; from its coming to its last byte's.
std::int64_t alone_blocks(const EdmHardware& hardware, const ClusterSettings& settings, const TraceRow& row);

// In blocks: the message's bytes straight through the switch, a read's after its request. No protocol does it in less.
std::int64_t ideal_blocks(const EdmHardware& hardware, const TraceRow& row);

// The published simulation's ideals for EDM, in blocks; `hop`: a link's time.
struct PublishedIdeal {
  std::int64_t request = 0;  // of a read; 0: no such row is counted there
  std::int64_t data = 0;     // of a write, or of the answer
};
PublishedIdeal published_ideal(std::int64_t hop, const TraceRow& row);

// The published metric: how many times its ideal a message took, at least 1, by the artifact's own formulas; of an RREQ and of
// the answer apart, which are two rows there.
struct PublishedSlowdown {
  double request = 0;  // reads only
  double data = 0;
};
PublishedSlowdown published_slowdown(const EdmHardware& hardware, const TraceRow& row, const MessageTimes& times);

// A line of the published output: FlowID,FlowType,Src,Dst,FlowSize,Create,NotifTime,GrantTime,Start,Finish,FCT,Slowdown.
std::string format_outcome(const EdmHardware& hardware, const std::vector<TraceRow>& rows,
                           const ClusterOutcome& outcome);

}  // namespace sluice::sim
