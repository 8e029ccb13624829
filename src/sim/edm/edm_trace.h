// Traces of memory messages, in the format of the published EDM simulation, and generators of them.
//
// File:    a line a message: id,type,src,dst,size_bytes,request_bytes,timeslot. Type 1: RREQ (size_bytes is its own size, request_bytes what
//          it reads), 3: WREQ (request_bytes -1), 100: a frame that is no memory message. A timeslot is one block of 8 bytes. These names may stand
//          in a first line. For users: docs/edm.md, "Traces".
// Chance:  integers only, so that a trace depends on its seed alone.
// Errors:  line, and what is wrong with it.
// Source:  the public artifact of EDM; EDM §4.3.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/rng.h"

namespace sluice::sim {

struct TraceRow {
  enum class Type : std::uint8_t { kRead = 1, kWrite = 3, kFrame = 100 };

  std::uint32_t id = 0;
  Type type = Type::kWrite;
  std::uint16_t source = 0;  // of the request
  std::uint16_t destination = 0;
  std::uint32_t bytes = 0;          // of what the source sends
  std::uint32_t request_bytes = 0;  // kRead: of what comes back
  std::int64_t slot = 0;

  bool reads() const { return type == Type::kRead; }
  std::uint32_t data_bytes() const { return reads() ? request_bytes : bytes; }
  friend bool operator==(const TraceRow&, const TraceRow&) = default;
};

// Rows in order of time. `nodes`: sources and destinations are below; `last_slot`: the latest that may be.
inline constexpr std::string_view kTraceColumns = "id,type,src,dst,size_bytes,request_bytes,timeslot";
Result<std::vector<TraceRow>> parse_trace(std::string_view text, std::uint32_t nodes, std::int64_t last_slot);
std::string format_trace(const std::vector<TraceRow>& rows);

// Message sizes as a cumulative distribution, straight lines between its points, cut down to whole units.
struct SizeDistribution {
  struct Point {
    std::uint64_t units = 0;
    std::uint64_t up_to_per_mille = 0;  // that many messages of a thousand are no longer
  };
  std::vector<Point> points;  // rising; the last is 1,000
  std::uint32_t unit_bytes = 1460;

  static SizeDistribution constant(std::uint32_t bytes) { return {{{1, 1'000}}, bytes}; }
  std::uint32_t draw(Rng& rng) const;
  // Of the lines, as the published generator takes it; what draw() cuts off is up to a unit a message.
  std::uint64_t mean_bytes() const;
};

// The published files of sizes: a line a point, its size in units, a number that says nothing (1) and the share of messages that are no longer, from 0 to 1 in
// three decimals at most, with blanks or commas between. Names of columns may stand in the first line.
Result<SizeDistribution> parse_sizes(std::string_view text, std::uint32_t unit_bytes);

struct TraceSpec {
  std::uint32_t nodes = 144;
  std::uint64_t messages = 2'000;
  std::uint64_t bits_per_second = 0;  // of data that each node sends, on average
  std::uint32_t reads_per_mille = 0;
  std::uint32_t request_bytes = 16;  // of an RREQ
  std::int64_t slot_ps = 640;
  SizeDistribution sizes;
  // The messages of the published traces (published_trace.h), of which a seed draws only the reads. For 144 nodes alone.
  bool published = false;
};

// Whether, by a draw that is as bad as it may be, the last message would come later than 2^64 fs; and what is then to be said of the rate.
bool lasts_too_long(const TraceSpec& spec);
inline constexpr std::string_view kLastsTooLong = "must be higher: so many messages would come over more than 400 s";

// Poisson arrivals, between any two nodes alike. REQUIRES: it does not last too long.
std::vector<TraceRow> generate_trace(const TraceSpec& spec, std::uint64_t seed);

// An exponential variate of that mean, rounded down.
std::uint64_t draw_exponential(Rng& rng, std::uint64_t mean);

}  // namespace sluice::sim
