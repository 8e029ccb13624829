// How the published simulation counts EDM's rivals: which lines, over which ideals, and until when. For its own runs (rival_published.h) and for others.
//
// Units:    slots of a block of 8 B.
// Errors:   none.
// Source:   the public artifact of EDM (wegul/EDM, netsimu/src): initialize_flow() and the end of work_per_timeslot() of each program.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/edm/edm_cluster.h"
#include "sim/edm/edm_rivals.h"
#include "sim/edm/edm_trace.h"

namespace sluice::sim {

// Its ideal for that protocol (EDM's: edm_cluster.h): each has its own formula, for messages of up to 256 bytes and for longer ones.
// `hop`: a link's time in that protocol's simulation.
PublishedIdeal published_ideal(Rival rival, std::int64_t hop, const TraceRow& row);

// A line of the published output.
enum class PublishedPart : std::uint8_t { kWrite, kRequest, kAnswer };
struct PublishedRow {
  std::uint32_t row = 0;  // of the trace
  PublishedPart part = PublishedPart::kWrite;
  std::int64_t created = 0;
  std::int64_t started = -1;
  std::int64_t finished = -1;  // -1: not over at the end
};

// The published simulation ends once every message, and every answer that there is by then, has begun; but CXL's when so many lines are over,
// whatever remains, and Fastpass' not before more than so many are.
constexpr std::size_t kCxlOver = 1'500;
constexpr std::size_t kFastpassOver = 1'800;

// The slot in which it would have ended, from lines that were run to their end. `protocol`, here and below: none is EDM itself.
std::int64_t published_end(std::optional<Rival> protocol, const std::vector<PublishedRow>& rows);

// The mean that it prints: slowdowns over published_ideal(), at least 1, of the lines that are over by then. Of Fastpass, in
// traces of more than 1,000 messages, 3 less than that, times a number that grows with the load.
double published_mean(std::optional<Rival> protocol, std::int64_t hop, const std::vector<TraceRow>& trace,
                      const std::vector<PublishedRow>& rows, std::int64_t end);

}  // namespace sluice::sim
