// Cowbird's memory on the compute node: what stands where in an instance's block, shared by the issuing side and the engines.
//
// Layout:     little-endian, offsets from the start of the block:
//               header (64): magic, version, channels, shape of a channel, regions
//               region table: kMaxRegions of 32 bytes {node u32, key u32, base u64, length u64, rights u32, 0}
//               channels, one a thread that issues, each:
//                 issuer line (64):  metadata_tail u64, errors_taken u64, regions_generation u64     written by the issuer
//                 progress line (64): reads_done u64, writes_done u64, metadata_head u64,
//                                    heartbeat u64, epoch u64, flight u64 (ns)                       written by the engine
//                 errors (272):      logged u64, 0, kErrors of {sequence and type u64, status u64}    written by the engine
//                 metadata ring: entries of 32 bytes; request data ring; response data ring
//             All that one side writes lies together and is read by the other in one piece (paper Figure 4, R3). Lines of the two
//             sides are 128 bytes apart, so that no prefetcher drags one along with the other.
// Entry:      Table 3, and the sequence number: req_addr u64, resp_addr u64, length u32 | region_id u16 | rw_type u16, sequence u64.
//             The sequence number is written last, the word with rw_type before it. req_addr of a read and resp_addr of a write: offset into the region; the other one:
//             offset from the start of the channel, inside its request or response data ring.
// Order:      the issuer stores entry and payload before metadata_tail; an engine writes response data and errors, those before their count, before
//             the progress that covers them, and in the progress line metadata_head last of the three: when an engine dies amid its stores, the
//             next one finds no head that is ahead.
// Flight:     what the engine that wrote the line has asked of the pool may take effect for so long after it was shut out; 0 once it has ended (which the
//             one in the switch never says). The next engine waits for that.
// Source:     Cowbird §4.2, Table 3, Figure 4. Ours: region table and errors in the block, sequence numbers, epoch, heartbeat, flight.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"
#include "base/time.h"

namespace sluice::cowbird {

inline constexpr std::uint64_t kMagic = 0x31445249'42574f43;  // "COWBIRD1"
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kEntryBytes = 32;
inline constexpr std::size_t kMaxRegions = 64;
inline constexpr std::size_t kRegionBytes = 32;
inline constexpr std::size_t kErrors = 16;
inline constexpr std::size_t kErrorBytes = 16;
inline constexpr std::size_t kErrorBlock = kErrorBytes * (kErrors + 1);
inline constexpr std::size_t kMaxChannels = 256;
inline constexpr std::size_t kDataAlignment = 8;
// What so many bytes take of a data ring.
constexpr std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kDataAlignment - 1) & ~(kDataAlignment - 1); }

enum class RwType : std::uint16_t { kNone = 0, kRead = 1, kWrite = 2 };

// Of an instance: an engine keeps as much memory for it, and some 150 bytes for each entry.
inline constexpr std::uint64_t kMostInstanceBytes = std::uint64_t{4} << 30;
inline constexpr std::uint64_t kMostInstanceEntries = 1u << 20;

// Sizes of a channel's rings: entries a power of two from 2 to 65,536; data rings multiples of 64 from 64 bytes to 1 GiB.
struct Shape {
  std::uint32_t entries = 1024;
  std::uint32_t request_bytes = 256 << 10;
  std::uint32_t response_bytes = 256 << 10;
  friend bool operator==(const Shape&, const Shape&) = default;
};

// Where things stand in a channel, from its start.
struct ChannelLayout {
  explicit ChannelLayout(const Shape& shape);

  static constexpr std::size_t kIssuer = 0;
  static constexpr std::size_t kProgress = 2 * kLine;
  static constexpr std::size_t kErrorLog = 4 * kLine;
  static constexpr std::size_t kMetadata = 10 * kLine;
  Shape shape;
  std::size_t requests;   // request data ring
  std::size_t responses;  // response data ring
  std::size_t bytes;      // of the whole channel

  std::size_t entry(std::uint64_t index) const { return kMetadata + (index & (shape.entries - 1)) * kEntryBytes; }
};

// Words of the issuer line, the progress line and the error block, from their starts.
struct IssuerLine {
  static constexpr std::size_t kTail = 0, kErrorsTaken = 8, kRegionsGeneration = 16;
};
struct ProgressLine {
  static constexpr Duration kLongestFlight = Duration::seconds(2);  // whatever stands there
  static constexpr std::size_t kReads = 0, kWrites = 8, kHead = 16, kHeartbeat = 24, kEpoch = 32, kFlight = 40;
  static Duration flight(const std::uint8_t* line) {
    const auto longest = static_cast<std::uint64_t>(kLongestFlight.nanoseconds());
    return Duration::nanoseconds(static_cast<std::int64_t>(std::min(load_le<std::uint64_t>(line + kFlight), longest)));
  }
};

struct Entry {
  RwType type = RwType::kNone;
  std::uint16_t region = 0;
  std::uint32_t length = 0;
  std::uint64_t req_addr = 0;
  std::uint64_t resp_addr = 0;
  std::uint64_t sequence = 0;  // of its type in its channel, from 1

  bool is_write() const { return type == RwType::kWrite; }
  // Offset into the region.
  std::uint64_t remote() const { return type == RwType::kRead ? req_addr : resp_addr; }
  // Offset into the channel.
  std::uint64_t local() const { return type == RwType::kRead ? resp_addr : req_addr; }
  // The word that holds rw_type.
  std::uint64_t type_word() const {
    return length | std::uint64_t{region} << 32 | std::uint64_t{static_cast<std::uint16_t>(type)} << 48;
  }
  static Entry parse(const std::uint8_t* bytes) {  // of every request: inline
    const auto word = load_le<std::uint64_t>(bytes + 16);
    return {.type = static_cast<RwType>(word >> 48),
            .region = static_cast<std::uint16_t>(word >> 32),
            .length = static_cast<std::uint32_t>(word),
            .req_addr = load_le<std::uint64_t>(bytes),
            .resp_addr = load_le<std::uint64_t>(bytes + 8),
            .sequence = load_le<std::uint64_t>(bytes + 24)};
  }
};

struct Region {
  std::uint32_t node = 0;
  std::uint32_t key = 0;
  std::uint64_t base = 0;    // of the memory node's address space
  std::uint64_t length = 0;  // bytes; 0: no such region
  bool writable = true;
  // Whoever told an engine of it knows that the memory node would refuse: another key, or not all of it exported. Not in the block.
  bool denied = false;

  static Region parse(const std::uint8_t* bytes);
  void write(std::uint8_t* bytes) const;
  friend bool operator==(const Region&, const Region&) = default;
};

// A whole instance.
struct InstanceLayout {
  Shape shape;
  std::uint32_t channels = 1;

  static constexpr std::size_t kRegions = kLine;
  static constexpr std::size_t kChannels = 4096;
  static constexpr std::size_t kHeaderBytes = kLine;

  ChannelLayout channel() const { return ChannelLayout(shape); }
  std::size_t channel_at(std::uint32_t index) const { return kChannels + index * channel().bytes; }
  std::size_t bytes() const { return channel_at(channels); }

  // What is wrong with it names the value and what is allowed.
  Result<void> check() const;
  // REQUIRES: check() passed; kHeaderBytes at `bytes`.
  void write(std::uint8_t* bytes) const;
  // From the header of a block that somebody else has made.
  static Result<InstanceLayout> parse(ByteView header);
};

}  // namespace sluice::cowbird
