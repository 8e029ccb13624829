#include "sherman/layout.h"

#include <isa-l/crc.h>

#include <algorithm>

#include "base/check.h"

namespace sluice::sherman {

namespace {

constexpr std::uint64_t kMagic = 0x35'45'45'52'54'48'53'4C;  // "LSHTREE5"
constexpr std::size_t kHeader = kNodeHeader;
constexpr std::size_t kHeaderChecked = 60;
constexpr std::size_t kEnd = 16;
constexpr std::uint8_t kFar = 2;  // of an entry's byte that says whether it is used

// CRC-32C. The library's signature lacks a const.
std::uint32_t crc(ByteView bytes, std::uint32_t start) {
  return crc32_iscsi(const_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size()), start);
}
std::uint32_t crc_words(std::uint64_t a, std::uint64_t b) {
  std::uint8_t words[16];
  store_le(words, a);
  store_le(words + 8, b);
  return crc(words, 0x5EED);
}

void put_header(MutableBytes bytes, const NodeHeader& h) {
  std::uint8_t* const p = bytes.data();
  store_le(p, h.version);
  store_le(p + 8, h.low);
  store_le(p + 16, h.last);
  store_le(p + 24, h.sibling.raw);
  store_le(p + 32, h.self.raw);
  store_le(p + 40, h.leftmost.raw);
  store_le<std::uint64_t>(p + 48, 0);
  p[48] = h.level;
  store_le<std::uint16_t>(p + 50, h.count);
  store_le<std::uint64_t>(p + 56, 0);
  store_le<std::uint32_t>(p + 60, crc(bytes.first(kHeaderChecked), 0));
  store_le(p + bytes.size() - kEnd, h.version);
  store_le<std::uint64_t>(p + bytes.size() - 8, 0);
}

bool header_whole(ByteView bytes, NodePointer self) {
  const std::uint8_t* const p = bytes.data();
  return load_le<std::uint64_t>(p + 32) == self.raw &&
         load_le<std::uint64_t>(p) == load_le<std::uint64_t>(p + bytes.size() - kEnd) &&
         load_le<std::uint32_t>(p + 60) == crc(bytes.first(kHeaderChecked), 0);
}

std::uint32_t body_check(ByteView internal) {
  const auto seed = crc_words(load_le<std::uint64_t>(internal.data()), load_le<std::uint64_t>(internal.data() + 32));
  return crc(internal.subspan(kHeader, internal.size() - kHeader - kEnd), seed);
}

}  // namespace

const char* Geometry::refusal() const {
  if (node_bytes % 8 != 0 || node_bytes < 160 || node_bytes > 1u << 20)
    return "a node has 160 bytes to 1 MiB, in eights";
  if (value_bytes == 0 || value_bytes > 0xFFFF) return "a value has 1 to 65535 bytes";
  if (leaf_slots() < 4) return "a leaf must hold four entries: larger nodes, or smaller values";
  if (locks == 0) return "there must be a lock";
  if (long_bytes != 0 && long_bytes <= value_bytes) return "long values are longer than those in leaves";
  if (long_bytes != 0 && value_bytes < kFarBytes)
    return "with long values, a leaf must have room for 24 bytes of each value";
  if (long_bytes > 1u << 24 || block_bytes(long_bytes) > chunk_bytes)
    return "a chunk must hold the longest value, and 24 bytes more";
  if (chunk_bytes % 8 != 0) return "a chunk has its bytes in eights";
  if (chunk_bytes < node_bytes) return "a chunk must hold a node";
  if (whole_bytes < 8) return "a word is always written whole";
  return "";
}

// ----------------------------------------------------------------------------------------------------------- the map

MemoryMap::MemoryMap(std::vector<MemoryNode> nodes, const Geometry& geometry)
    : nodes_(std::move(nodes)), geometry_(geometry) {}

void MemoryMap::moved(std::uint32_t node, remote::RemoteAddress heap, remote::RemoteAddress locks) {
  nodes_[node].heap = heap;
  nodes_[node].locks = locks;
}
remote::RemoteAddress MemoryMap::root() const { return nodes_[0].heap + kRootOffset; }
std::uint32_t MemoryMap::chunks(std::uint32_t node) const {
  const std::uint64_t records = std::uint64_t{geometry_.locks} * geometry_.record_bytes();
  const std::uint64_t fixed = kSuperblockBytes + records;
  const std::uint64_t heap = nodes_[node].heap_bytes;
  return heap < fixed ? 0 : static_cast<std::uint32_t>((heap - fixed) / (geometry_.chunk_bytes + 8));
}
std::uint64_t MemoryMap::first_record(std::uint32_t node) const {
  return kSuperblockBytes + std::uint64_t{8} * chunks(node);
}
std::uint64_t MemoryMap::first_chunk(std::uint32_t node) const {
  return first_record(node) + std::uint64_t{geometry_.locks} * geometry_.record_bytes();
}
remote::RemoteAddress MemoryMap::owner_of_chunk(std::uint32_t node, std::uint32_t chunk) const {
  return nodes_[node].heap + (kSuperblockBytes + std::uint64_t{8} * chunk);
}
NodePointer MemoryMap::start_of_chunk(std::uint32_t node, std::uint32_t chunk) const {
  return NodePointer::at(node, first_chunk(node) + std::uint64_t{chunk} * geometry_.chunk_bytes);
}
std::uint32_t MemoryMap::lock_of(NodePointer pointer) const {
  // Nodes lie side by side: consecutive numbers spread over the table without collisions until it has gone round.
  return static_cast<std::uint32_t>(pointer.offset() / geometry_.node_bytes % geometry_.locks);
}
remote::RemoteAddress MemoryMap::lock_word(std::uint32_t node, std::uint32_t lock) const {
  return nodes_[node].locks + std::uint64_t{8} * lock;
}
remote::RemoteAddress MemoryMap::record(std::uint32_t node, std::uint32_t lock) const {
  return nodes_[node].heap + (first_record(node) + std::uint64_t{lock} * geometry_.record_bytes());
}

// -------------------------------------------------------------------------------------------------------- superblock

namespace {
std::uint32_t superblock_check(ByteView bytes) {
  return crc(bytes.subspan(40, kMakerOffset - 40), crc(bytes.first(36), 0));
}
}  // namespace

void put_superblock(MutableBytes into, const Superblock& superblock) {
  SLUICE_CHECK(into.size() == kMakerOffset);
  const Geometry& g = superblock.geometry;
  std::uint8_t* const p = into.data();
  store_le(p, kMagic);
  store_le(p + 8, g.node_bytes);
  store_le(p + 12, g.value_bytes);
  store_le(p + 16, g.locks);
  store_le(p + 20, g.chunk_bytes);
  store_le(p + 24, g.whole_bytes);
  store_le<std::uint32_t>(p + 28, superblock.nodes | superblock.index << 16);
  store_le(p + 32, g.long_bytes);
  store_le<std::uint64_t>(p + 40, superblock.heap_bytes);
  store_le<std::uint64_t>(p + 48, superblock.tree_id);
  store_le(p + 36, superblock_check(into));
}

bool superblock_taken(ByteView bytes) {
  const auto magic = load_le<std::uint64_t>(bytes.data());
  Superblock superblock;
  return (magic != 0 && magic != kMagic) || parse_superblock(bytes, superblock);
}

bool parse_superblock(ByteView bytes, Superblock& superblock) {
  const std::uint8_t* const p = bytes.data();
  if (bytes.size() < kMakerOffset || load_le<std::uint64_t>(p) != kMagic) return false;
  if (load_le<std::uint32_t>(p + 36) != superblock_check(bytes)) return false;
  superblock = {.geometry = {.node_bytes = load_le<std::uint32_t>(p + 8),
                             .value_bytes = load_le<std::uint32_t>(p + 12),
                             .locks = load_le<std::uint32_t>(p + 16),
                             .chunk_bytes = load_le<std::uint32_t>(p + 20),
                             .whole_bytes = load_le<std::uint32_t>(p + 24),
                             .long_bytes = load_le<std::uint32_t>(p + 32)},
                .nodes = load_le<std::uint16_t>(p + 28),
                .index = load_le<std::uint16_t>(p + 30),
                .tree_id = load_le<std::uint32_t>(p + 48),
                .heap_bytes = load_le<std::uint64_t>(p + 40)};
  return *superblock.geometry.refusal() == '\0' && superblock.index < superblock.nodes;
}

// ------------------------------------------------------------------------------------------------------ redo records

namespace {
std::uint32_t record_check(const std::uint8_t* p, ByteView bytes) { return crc(bytes, crc({p, 20}, 0x10C)); }
}  // namespace

void put_record(MutableBytes into, LockWord word, std::uint64_t target, ByteView bytes) {
  SLUICE_CHECK(into.size() >= 32 + bytes.size());
  std::uint8_t* const p = into.data();
  store_le(p, word.holder());
  store_le(p + 8, target);
  store_le(p + 16, static_cast<std::uint32_t>(bytes.size()));
  store_le<std::uint64_t>(p + 24, 0);
  std::ranges::copy(bytes, p + 32);
  store_le(p + 20, record_check(p, bytes));
}

bool parse_record(ByteView bytes, LockWord word, Record& record) {
  const std::uint8_t* const p = bytes.data();
  if (bytes.size() < 32 || load_le<std::uint64_t>(p) != word.holder()) return false;
  const auto length = load_le<std::uint32_t>(p + 16);
  if (length > bytes.size() - 32) return false;
  record = {load_le<std::uint64_t>(p + 8), bytes.subspan(32, length)};
  return load_le<std::uint32_t>(p + 20) == record_check(p, record.bytes);
}

// ------------------------------------------------------------------------------------------------------------- nodes

NodeHeader parse_header(ByteView bytes) {
  const std::uint8_t* const p = bytes.data();
  return {.version = load_le<std::uint64_t>(p),
          .low = load_le<std::uint64_t>(p + 8),
          .last = load_le<std::uint64_t>(p + 16),
          .sibling = {load_le<std::uint64_t>(p + 24)},
          .self = {load_le<std::uint64_t>(p + 32)},
          .leftmost = {load_le<std::uint64_t>(p + 40)},
          .level = p[48],
          .count = load_le<std::uint16_t>(p + 50)};
}

FarValue far_value(const Entry& entry) {
  SLUICE_CHECK(entry.far && entry.value.size() == kFarBytes);
  const std::uint8_t* const p = entry.value.data();
  return {.block = {load_le<std::uint64_t>(p)},
          .tag = load_le<std::uint64_t>(p + 8),
          .length = load_le<std::uint32_t>(p + 16)};
}

void put_far_value(std::span<std::uint8_t, kFarBytes> into, const FarValue& far) {
  std::uint8_t* const p = into.data();
  store_le(p, far.block.raw);
  store_le(p + 8, far.tag);
  store_le<std::uint64_t>(p + 16, far.length);
}

namespace {
std::uint32_t block_check(ByteView block) { return crc(block.subspan(kBlockHeader), crc(block.first(20), 0xB10C)); }
}  // namespace

void put_block(MutableBytes into, Key key, const FarValue& far, ByteView value) {
  SLUICE_CHECK(into.size() == kBlockHeader + value.size() && value.size() == far.length);
  std::uint8_t* const p = into.data();
  store_le(p, far.tag);
  store_le(p + 8, key);
  store_le(p + 16, far.length);
  std::ranges::copy(value, p + kBlockHeader);
  store_le(p + 20, block_check(into));
}

bool is_block(ByteView block, Key key, const FarValue& far) {
  const std::uint8_t* const p = block.data();
  return block.size() == kBlockHeader + std::size_t{far.length} && load_le<std::uint64_t>(p) == far.tag &&
         load_le<std::uint64_t>(p + 8) == key && load_le<std::uint32_t>(p + 16) == far.length &&
         load_le<std::uint32_t>(p + 20) == block_check(block);
}

NodeHeader Leaf::header() const { return parse_header(bytes_); }

bool Leaf::frame_whole(NodePointer self) const { return header_whole(bytes_, self) && bytes_[48] == 0; }

std::uint32_t Leaf::seed() const {
  return crc_words(load_le<std::uint64_t>(bytes_.data()), load_le<std::uint64_t>(bytes_.data() + 32));
}

std::uint32_t Leaf::entry_check(std::uint32_t slot) const {
  return crc(bytes_.subspan(offset(slot), geometry_.entry_bytes() - 4), seed() + slot);
}

bool Leaf::entry(std::uint32_t slot, Entry& entry) const {
  const std::uint8_t* const p = bytes_.data() + offset(slot);
  const std::uint32_t size = geometry_.entry_bytes();
  if (load_le<std::uint32_t>(p) != load_le<std::uint32_t>(p + size - 8)) return false;
  if (load_le<std::uint32_t>(p + size - 4) != entry_check(slot)) return false;
  const std::uint16_t length = load_le<std::uint16_t>(p + 4);
  if (length > geometry_.value_bytes) return false;
  entry = {.used = p[6] != 0, .key = load_le<std::uint64_t>(p + 8), .value = {p + 16, length}, .far = p[6] == kFar};
  return true;
}

void Leaf::set_entry(std::uint32_t slot, const Entry& entry) {
  SLUICE_CHECK(entry.value.size() <= geometry_.value_bytes);
  std::uint8_t* const p = bytes_.data() + offset(slot);
  const std::uint32_t size = geometry_.entry_bytes();
  const std::uint32_t version = load_le<std::uint32_t>(p) + 1;
  std::fill(p, p + size, std::uint8_t{0});
  store_le(p, version);
  store_le(p + 4, static_cast<std::uint16_t>(entry.value.size()));
  p[6] = !entry.used ? 0 : entry.far ? kFar : 1;
  store_le(p + 8, entry.key);
  std::ranges::copy(entry.value, p + 16);
  store_le(p + size - 8, version);
  store_le(p + size - 4, entry_check(slot));
}

void Leaf::build(const NodeHeader& header, std::span<const Entry> entries) {
  SLUICE_CHECK(entries.size() <= geometry_.leaf_slots() && header.level == 0);
  std::ranges::fill(bytes_, std::uint8_t{0});
  put_header(bytes_, header);
  for (std::uint32_t i = 0; i < geometry_.leaf_slots(); ++i) set_entry(i, i < entries.size() ? entries[i] : Entry{});
}

void build_internal(MutableBytes bytes, const NodeHeader& header, std::span<const Separator> separators) {
  SLUICE_CHECK(header.level > 0 && separators.size() == header.count &&
               kHeader + 16 * separators.size() + kEnd <= bytes.size());
  std::ranges::fill(bytes, std::uint8_t{0});
  put_header(bytes, header);
  std::uint8_t* p = bytes.data() + kHeader;
  for (const auto& s : separators) {
    store_le(p, s.key);
    store_le(p + 8, s.child.raw);
    p += 16;
  }
  store_le(bytes.data() + bytes.size() - 8, body_check(bytes));
}

bool internal_whole(ByteView bytes, NodePointer self) {
  return header_whole(bytes, self) && bytes[48] != 0 &&
         kHeader + std::size_t{16} * load_le<std::uint16_t>(bytes.data() + 50) + kEnd <= bytes.size() &&
         load_le<std::uint32_t>(bytes.data() + bytes.size() - 8) == body_check(bytes);
}

Separator separator(ByteView internal, std::uint32_t index) {
  const std::uint8_t* const p = internal.data() + kHeader + std::size_t{16} * index;
  return {load_le<std::uint64_t>(p), {load_le<std::uint64_t>(p + 8)}};
}

NodePointer child_for(ByteView internal, Key key) {
  const NodeHeader header = parse_header(internal);
  std::uint32_t begin = 0;  // separators before it are at most the key
  std::uint32_t end = header.count;
  while (begin < end) {
    const std::uint32_t middle = (begin + end) / 2;
    if (separator(internal, middle).key <= key) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin == 0 ? header.leftmost : separator(internal, begin - 1).child;
}

}  // namespace sluice::sherman
