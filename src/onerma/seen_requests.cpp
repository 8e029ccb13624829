#include "onerma/seen_requests.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace sluice::onerma {

SeenRequests::SeenRequests(std::uint32_t initiators)
    : lines_(initiators), alike_(std::bit_ceil(std::size_t{initiators}), kNoIndex) {
  SLUICE_CHECK(initiators != 0 && initiators < kNoIndex);
}

bool SeenRequests::take(RegionId region, InitiatorId initiator, Boot boot, OpId op) {
  const std::uint64_t sequence = sequence_of(op);
  const std::uint64_t word = sequence / 64;
  Line& line = line_of(region, initiator, boot, word);
  if (word > line.newest) {
    const std::uint64_t new_words = std::min(word - line.newest, kWords);
    for (std::uint64_t i = 0; i < new_words; ++i) line.seen[(word - i) % kWords] = 0;
    line.newest = word;
  } else if (line.newest - word >= kWords) {
    return false;
  }
  const std::uint64_t bit = std::uint64_t{1} << sequence % 64;
  std::uint64_t& bits = line.seen[word % kWords];
  const bool is_first = (bits & bit) == 0;
  bits |= bit;
  return is_first;
}

std::size_t SeenRequests::bucket_of(RegionId region, InitiatorId initiator) const {
  const std::uint64_t mixed = (initiator.value * 0x9E37'79B9'7F4A'7C15u ^ region.value) * 0xD6E8'FEB8'6659'FD93u;
  return static_cast<std::size_t>(mixed >> 32) & (alike_.size() - 1);
}

SeenRequests::Line& SeenRequests::line_of(RegionId region, InitiatorId initiator, Boot boot, std::uint64_t word) {
  const std::size_t bucket = bucket_of(region, initiator);
  for (std::uint16_t at = alike_[bucket]; at != kNoIndex; at = lines_[at].alike) {
    Line& line = lines_[at];
    if (line.initiator != initiator || line.region != region || line.boot != boot) continue;
    used_.remove(lines_, at);
    used_.push(lines_, at);
    return line;
  }
  Line& line = begin(bucket, word);
  line.region = region;
  line.initiator = initiator;
  line.boot = boot;
  return line;
}

SeenRequests::Line& SeenRequests::begin(std::size_t bucket, std::uint64_t word) {
  std::uint16_t at = unused_;
  if (unused_ != lines_.size()) {
    ++unused_;
  } else {
    at = used_.first();
    used_.remove(lines_, at);
    std::uint16_t* link = &alike_[bucket_of(lines_[at].region, lines_[at].initiator)];
    while (*link != at) link = &lines_[*link].alike;
    *link = lines_[at].alike;
  }
  Line& line = lines_[at];
  line.newest = word;
  line.seen.fill(0);
  line.alike = alike_[bucket];
  alike_[bucket] = at;
  used_.push(lines_, at);
  return line;
}

}  // namespace sluice::onerma
