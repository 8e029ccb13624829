#include "kvcache/layout.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "wire/crc32_algebra.h"

namespace sluice::kvcache {
namespace {

constexpr std::uint64_t kMagic = 0x31'4856'4B'5355'4C53;  // "SLUSKVH1"
constexpr std::uint16_t kErased = 1;
constexpr std::size_t kEntryCrc = 28;
constexpr std::size_t kHeaderCrc = 60;

std::uint32_t checksum(ByteView bytes, std::size_t crc_at, std::uint64_t where) {
  std::array<std::uint8_t, 8> begin;
  store_le(begin.data(), where);
  const std::uint32_t head = wire::crc32::update(wire::crc32::update(0, begin), bytes.first(crc_at));
  return wire::crc32::update(head, bytes.subspan(crc_at + 4));
}

// The finaliser of splitmix64 (Steele, Lea, Flood 2014).
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58'476D'1CE4'E5B9;
  x = (x ^ x >> 27) * 0x94D0'49BB'1331'11EB;
  return x ^ x >> 31;
}

}  // namespace

Hash hash_of(ByteView key) {
  std::uint64_t state = mix(key.size() + 1);
  for (; key.size() >= 8; key = key.subspan(8)) state = mix(state ^ load_le<std::uint64_t>(key.data()));
  std::array<std::uint8_t, 8> rest{};
  std::copy(key.begin(), key.end(), rest.begin());
  return Hash(mix(state ^ load_le<std::uint64_t>(rest.data())));
}

Geometry Geometry::fitting(std::uint64_t table_bytes, std::uint64_t entry_bytes) {
  const std::uint64_t units = (std::max<std::uint64_t>(entry_bytes, 1) + kUnit - 1) / kUnit;
  // Half of the ways are meant to be in use.
  Geometry geometry;
  geometry.buckets =
      std::bit_floor(std::max<std::uint64_t>(table_bytes / (units * kUnit * kWays / 2 + kBucketBytes), 1));
  SLUICE_CHECK(table_bytes > geometry.log_offset() + 4 * kUnit);
  geometry.log_bytes = (table_bytes - geometry.log_offset()) / kUnit * kUnit;
  return geometry;
}

bool Geometry::sound() const {
  return std::has_single_bit(buckets) && buckets <= std::uint64_t{1} << 40 && log_bytes % kUnit == 0 &&
         log_bytes >= 4 * kUnit && log_bytes / kUnit <= std::uint64_t{1} << 32;
}

void TableHeader::write(std::uint8_t* p) const {
  std::fill_n(p, kTableHeader, std::uint8_t{0});
  store_le(p, kMagic);
  store_le(p + 8, life);
  store_le(p + 16, geometry.buckets);
  store_le(p + 24, geometry.log_bytes);
  store_le(p + kHeaderCrc, checksum({p, kTableHeader}, kHeaderCrc, kMagic));
}

std::optional<TableHeader> TableHeader::parse(ByteView bytes) {
  if (bytes.size() < kTableHeader) return std::nullopt;
  const TableHeader header{load_le<std::uint64_t>(bytes.data() + 8),
                           {load_le<std::uint64_t>(bytes.data() + 16), load_le<std::uint64_t>(bytes.data() + 24)}};
  std::array<std::uint8_t, kTableHeader> whole;
  header.write(whole.data());
  const bool right = std::equal(whole.begin(), whole.end(), bytes.begin());
  return right && header.geometry.sound() ? std::optional(header) : std::nullopt;
}

void Entry::write(std::uint8_t* p, std::uint64_t where) const {
  SLUICE_CHECK(key.size() <= kMaxKey);
  store_le(p, hash.value);
  store_le(p + 8, version.value);
  store_le(p + 16, static_cast<std::uint16_t>(key.size()));
  store_le(p + 18, erased ? kErased : std::uint16_t{0});
  store_le(p + 20, static_cast<std::uint32_t>(value.size()));
  store_le(p + 24, std::uint32_t{0});
  std::copy(key.begin(), key.end(), p + kEntryHeader);
  std::copy(value.begin(), value.end(), p + kEntryHeader + key.size());
  store_le(p + kEntryCrc, checksum({p, bytes()}, kEntryCrc, where));
}

std::optional<std::size_t> Entry::length_of(ByteView bytes) {
  if (bytes.size() < kEntryHeader) return std::nullopt;
  const std::size_t key = load_le<std::uint16_t>(bytes.data() + 16);
  const std::size_t value = load_le<std::uint32_t>(bytes.data() + 20);
  const std::size_t all = kEntryHeader + key + value;
  return key <= kMaxKey && all <= bytes.size() ? std::optional(all) : std::nullopt;
}

std::optional<Entry> Entry::parse(ByteView bytes, std::uint64_t where) {
  const auto length = length_of(bytes);
  if (!length || load_le<std::uint16_t>(bytes.data() + 18) > kErased) return std::nullopt;
  if (load_le<std::uint32_t>(bytes.data() + 24) != 0) return std::nullopt;
  bytes = bytes.first(*length);
  if (load_le<std::uint32_t>(bytes.data() + kEntryCrc) != checksum(bytes, kEntryCrc, where)) return std::nullopt;
  const std::size_t key = load_le<std::uint16_t>(bytes.data() + 16);
  return Entry{.hash = Hash(load_le<std::uint64_t>(bytes.data())),
               .version = Version(load_le<std::uint64_t>(bytes.data() + 8)),
               .key = bytes.subspan(kEntryHeader, key),
               .value = bytes.subspan(kEntryHeader + key),
               .erased = load_le<std::uint16_t>(bytes.data() + 18) == kErased};
}

ByteView Entry::key_of(ByteView bytes) {
  const std::size_t key = load_le<std::uint16_t>(bytes.data() + 16);
  return bytes.subspan(kEntryHeader, std::min(key, kMaxKey));
}

void Answer::write(std::uint8_t* p) const {
  store_le(p, sequence);
  store_le(p + 8, std::uint64_t{static_cast<std::uint8_t>(outcome)});
  store_le(p + 16, version.value);
  store_le(p + 24, mix(sequence ^ mix(static_cast<std::uint8_t>(outcome) ^ mix(version.value))));
}

std::optional<Answer> Answer::parse(ByteView bytes) {
  if (bytes.size() < kAnswerBytes) return std::nullopt;
  const auto number = load_le<std::uint64_t>(bytes.data() + 8);
  if (number < 1 || number > 3) return std::nullopt;
  const Answer answer{load_le<std::uint64_t>(bytes.data()), static_cast<ChangeOutcome>(number),
                      Version(load_le<std::uint64_t>(bytes.data() + 16))};
  std::array<std::uint8_t, kAnswerBytes> whole;
  answer.write(whole.data());
  return std::equal(whole.begin(), whole.end(), bytes.begin()) ? std::optional(answer) : std::nullopt;
}

}  // namespace sluice::kvcache
