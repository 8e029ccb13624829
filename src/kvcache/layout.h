// What a cache has in memory that others read: an index over a circular log; and the mailbox through which a client asks for changes.
//
//   table:    header (64 bytes) | buckets, 64 bytes each | log
//   header:   magic 8, life 8, buckets 8, log bytes 8, zeros 28, CRC 4
//   bucket:   8 words of 8: tag 16 | length 16 | place 32, the last two in units of 64 bytes, the place from the log's start; 0: none
//   entry:    hash 8, version 8, key length 2, flags 2, value length 4, zeros 4, CRC 4 | key | value. In the log it begins on a unit.
//   mailbox:  answer: sequence 8, outcome 8, version 8, zeros 8 | request: sequence 8 (greater each time), zeros 24 | entry
//
// CRC:        CRC-32 of the rest, begun with where the entry is (its place; its request's sequence), so that neither a part of an entry nor one that
//             was meant for somewhere else passes for one.
// Order:      little-endian.
// Errors:     parse functions say false; they read nothing outside their bytes.
// Limits:     kMaxKey; an entry has at most 65,535 units (4 MiB).
// Source:     ours; README.md.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "base/strong.h"

namespace sluice::kvcache {

inline constexpr std::size_t kUnit = 64;
inline constexpr std::size_t kWays = 8;
inline constexpr std::size_t kBucketBytes = kWays * 8;
inline constexpr std::size_t kTableHeader = 64;
inline constexpr std::size_t kEntryHeader = 32;
inline constexpr std::size_t kMaxKey = 250;
inline constexpr std::size_t kAnswerBytes = 32;
inline constexpr std::size_t kRequestOffset = 32;  // in a mailbox
inline constexpr std::size_t kMailEntry = 64;      // where the entry begins there

// Of two changes of one key the newer wins. A counter above, 16 bits that name the client below.
using Version = Strong<struct VersionTag, std::uint64_t>;
// `a` is less than half a round ahead of `b`: counters go round, so that above any version there is another, whatever a client has chosen.
constexpr bool newer(Version a, Version b) { return static_cast<std::int64_t>(a.value - b.value) > 0; }

using Hash = Strong<struct HashTag, std::uint64_t>;

Hash hash_of(ByteView key);

struct Geometry {
  std::uint64_t buckets = 0;    // a power of two
  std::uint64_t log_bytes = 0;  // a multiple of kUnit

  // The largest that fits into so many bytes with entries of about this length.
  static Geometry fitting(std::uint64_t table_bytes, std::uint64_t entry_bytes);
  std::uint64_t log_offset() const { return kTableHeader + buckets * kBucketBytes; }
  std::uint64_t table_bytes() const { return log_offset() + log_bytes; }
  std::uint64_t bucket_offset(Hash hash) const { return kTableHeader + (hash.value & (buckets - 1)) * kBucketBytes; }
  bool sound() const;
  friend bool operator==(const Geometry&, const Geometry&) = default;
};

struct TableHeader {
  std::uint64_t life = 0;  // another one for each life of the table
  Geometry geometry{};

  void write(std::uint8_t* p) const;
  static std::optional<TableHeader> parse(ByteView bytes);
};

// A word of a bucket.
struct Word {
  std::uint16_t tag = 0;
  std::uint16_t units = 0;
  std::uint32_t place = 0;

  std::uint64_t raw() const { return std::uint64_t{tag} << 48 | std::uint64_t{units} << 32 | place; }
  static Word of(std::uint64_t raw) {
    return {static_cast<std::uint16_t>(raw >> 48), static_cast<std::uint16_t>(raw >> 32),
            static_cast<std::uint32_t>(raw)};
  }
  bool empty() const { return units == 0; }
};
inline std::uint16_t tag_of(Hash hash) { return static_cast<std::uint16_t>(hash.value >> 48); }

struct Entry {
  Hash hash{};
  Version version{};
  ByteView key{};
  ByteView value{};
  bool erased = false;

  std::size_t bytes() const { return kEntryHeader + key.size() + value.size(); }
  std::size_t units() const { return (bytes() + kUnit - 1) / kUnit; }
  // REQUIRES: room for bytes().
  void write(std::uint8_t* p, std::uint64_t where) const;
  // Views into `bytes`.
  static std::optional<Entry> parse(ByteView bytes, std::uint64_t where);
  // Its key alone, unchecked: all that the beginning of one can tell. REQUIRES: the longest key fits into `bytes`.
  static ByteView key_of(ByteView bytes);
  // Its length alone, if what the header says fits; for who wrote it himself.
  static std::optional<std::size_t> length_of(ByteView bytes);
};

enum class ChangeOutcome : std::uint8_t {
  kTaken = 1,
  kOlder = 2,    // something newer is there; the answer has its version
  kTooLong = 3,  // longer than a quarter of the log
};

struct Answer {
  std::uint64_t sequence = 0;
  ChangeOutcome outcome{};
  Version version{};

  void write(std::uint8_t* p) const;
  static std::optional<Answer> parse(ByteView bytes);
};

}  // namespace sluice::kvcache
