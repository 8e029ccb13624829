#include "sim/edm/rival_count.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::sim {
namespace {

// The slot in which so many rows are over; none if they never are.
std::optional<std::int64_t> nth_over(const std::vector<PublishedRow>& rows, std::size_t n) {
  std::vector<std::int64_t> finished;
  for (const PublishedRow& row : rows)
    if (row.finished >= 0) finished.push_back(row.finished);
  if (finished.size() < n) return std::nullopt;
  std::ranges::sort(finished);
  return finished[n - 1];
}

}  // namespace

PublishedIdeal published_ideal(Rival rival, std::int64_t hop, const TraceRow& row) {
  constexpr std::int64_t kChunk = 256;
  const bool reads = row.reads();
  const std::int64_t data = row.data_bytes() / 8;
  const std::int64_t own = row.bytes / 8;
  const bool longer = row.data_bytes() > kChunk;
  switch (rival) {
    case Rival::kDctcp: return {.request = reads ? own + 2 * hop : 0, .data = data + 2 * hop + (reads ? 1 : 0)};
    case Rival::kReceiverDriven: {
      // Short writes count as 248 bytes, requests as 64.
      const std::int64_t request = 2 * 64 / 8 + 4 * hop;
      if (reads && !longer) return {.request = request, .data = kChunk / 8 + 3};
      if (reads) {
        const std::int64_t answer = data + 4 * hop + 2 * request;
        // Requests of long reads are not counted.
        return {.request = 0, .data = answer + (data > kChunk ? data * 8 / kChunk + 4 * hop + 2 * request : 0)};
      }
      return {.request = 0, .data = longer ? 3 * data + 8 * hop : 2 * (kChunk / 8 - 1) + 4 * hop};
    }
    case Rival::kPfabric: {
      // Requests are not counted.
      if (reads) return {.request = 0, .data = data + 2 * hop + (longer ? own : 0)};
      return {.request = 0, .data = data + (longer ? 0 : kChunk / 8)};
    }
    case Rival::kPfc:
      // A read is simulated as a write there, of as many bytes.
      if (reads) return {.request = 0, .data = longer ? own + 3 * data + 4 * hop : data + 3 * hop};
      return {.request = 0, .data = longer ? 3 * data + 4 * hop : data + 16 + 8 * hop};
    case Rival::kCxl: {
      const std::int64_t request = own + 4 * hop + (longer ? data : 0);
      if (reads)
        return {.request = request, .data = longer ? (data * 8 / kChunk + 1) * 32 + 4 * hop + request : data + request};
      return {.request = 0, .data = data + 4 * hop + (longer ? 4 * kChunk / 8 : 2 * hop)};
    }
    case Rival::kFastpass: {
      const std::int64_t request = longer ? own * 8 / kChunk + 2 * hop : kChunk / 8 + hop - 4;
      if (reads) return {.request = request, .data = data + 2 * hop + request};
      return {.request = 0, .data = longer ? data * 8 / kChunk + 2 * hop : 2 * kChunk / 8 + 2 * hop};
    }
  }
  SLUICE_CHECK(false);
}

std::int64_t published_end(std::optional<Rival> protocol, const std::vector<PublishedRow>& rows) {
  std::int64_t end = 0;
  for (const PublishedRow& row : rows)
    if (row.part != PublishedPart::kAnswer) end = std::max(end, row.started);
  if (protocol == Rival::kFastpass) end = std::max(end, nth_over(rows, kFastpassOver + 1).value_or(0));
  // Answers that there are by then must have begun too, and those that there are by then.
  for (bool again = true; again;) {
    again = false;
    for (const PublishedRow& row : rows) {
      if (row.part != PublishedPart::kAnswer || row.created - 1 > end || row.started <= end) continue;
      end = row.started;
      again = true;
    }
  }
  if (protocol == Rival::kCxl) end = std::min(end, nth_over(rows, kCxlOver).value_or(end));
  return end;
}

double published_mean(std::optional<Rival> protocol, std::int64_t hop, const std::vector<TraceRow>& trace,
                      const std::vector<PublishedRow>& rows, std::int64_t end) {
  double sum = 0;
  std::uint64_t counted = 0;
  for (const PublishedRow& row : rows) {
    const PublishedIdeal ideals =
        protocol ? published_ideal(*protocol, hop, trace[row.row]) : published_ideal(hop, trace[row.row]);
    const std::int64_t ideal = row.part == PublishedPart::kRequest ? ideals.request : ideals.data;
    if (row.finished < 0 || row.finished > end || ideal == 0) continue;
    sum += std::max(1.0, static_cast<double>(row.finished - row.created) / static_cast<double>(ideal));
    ++counted;
  }
  const double mean = sum / static_cast<double>(counted);
  if (protocol != Rival::kFastpass || trace.size() <= 1'000) return mean;
  const std::int64_t slots = std::max<std::int64_t>(trace[1'000].slot - trace[0].slot, 1);
  const std::int64_t factor = 200 / slots + 1;
  return std::max(1.0, (mean - 3) * static_cast<double>(factor));
}

}  // namespace sluice::sim
