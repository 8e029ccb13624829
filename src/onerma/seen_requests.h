// Which requests a target has obeyed already: for each initiator of a region a window over the sequence numbers in its OpIds, as IPsec has it.
//
// Life:       take() for each request whose tag was right: true the first time.
// Order:      an initiator numbers its requests as they leave, so only the network changes their order; kWindow requests behind the newest, to
//             whomever they went, is too late.
// Soft:       a fixed number of initiators is remembered. Who is new takes the place of who has sent nothing, and had nothing replayed, for
//             longest: what that one has sent may be replayed once more. Only what is authentic makes anybody new, or moves a window.
// Restarts:   another boot, region or initiator is another line: a number that begins anew is not taken for an old one.
// Threads:    one owner; nothing is allocated after construction.
// Source:     RFC 4303 §3.4.3, RFC 6479 (blocks of bits); 1RMA says nothing of it: docs/design/onerma.md §6.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "onerma/index_fifo.h"
#include "onerma/types.h"

namespace sluice::onerma {

class SeenRequests {
 public:
  // What is late by more is refused, by up to 64 less is not.
  static constexpr std::uint64_t kWindow = 1024;

  // REQUIRES: 0 < initiators < kNoIndex.
  explicit SeenRequests(std::uint32_t initiators);

  // False: it has been taken before, or is too late for anybody to know. REQUIRES: it is authentic.
  bool take(RegionId region, InitiatorId initiator, Boot boot, OpId op);

 private:
  static constexpr std::uint64_t kWords = kWindow / 64;

  struct Line {
    RegionId region{};
    InitiatorId initiator{};
    Boot boot{};
    std::uint64_t newest = 0;                  // word of sequence numbers that has been seen
    std::array<std::uint64_t, kWords> seen{};  // a bit each
    std::uint16_t next = kNoIndex;
    std::uint16_t previous = kNoIndex;
    std::uint16_t alike = kNoIndex;  // the next one in its bucket
  };

  std::size_t bucket_of(RegionId region, InitiatorId initiator) const;
  Line& line_of(RegionId region, InitiatorId initiator, Boot boot, std::uint64_t word);
  Line& begin(std::size_t bucket, std::uint64_t word);

  std::vector<Line> lines_;
  std::vector<std::uint16_t> alike_;  // buckets
  IndexFifo<Line> used_;              // all that have been used, the one that has been idle for longest first
  std::uint16_t unused_ = 0;          // from here on
};

}  // namespace sluice::onerma
