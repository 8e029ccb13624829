#include "fusee/layout.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace sluice::fusee {
namespace {

constexpr std::uint64_t kMagic = 0x36'4545'5355'4653;  // "SFUSEE6"

std::uint32_t crc(ByteView bytes, std::uint32_t start) {
  return crc32_iscsi(const_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size()), start);
}

// The finaliser of splitmix64 (Steele, Lea, Flood 2014).
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58'476D'1CE4'E5B9;
  x = (x ^ x >> 27) * 0x94D0'49BB'1331'11EB;
  return x ^ x >> 31;
}

std::uint32_t object_check(ByteView object, Place place) {
  std::array<std::uint8_t, 8> seed;
  store_le(seed.data(), place.raw);
  const std::uint32_t head = crc(object.first(32), crc(seed, 0xF05EE));
  return crc(object.subspan(36), head);
}

std::uint32_t superblock_check(ByteView bytes) { return crc(bytes.subspan(40, 16), crc(bytes.first(36), 0)); }

}  // namespace

const char* Geometry::refusal() const {
  if (replicas < 1 || replicas > kMostReplicas) return "there are 1 to 4 replicas";
  if (index_replicas > replicas) return "the index has at most as many replicas as objects";
  if (groups < 2) return "a table of the index has at least two groups";
  if (tables < 1 || tables > 1u << 24) return "an index has 1 to 16,777,216 tables";
  if (doublings > kMostIndexDoublings) return "an index doubles at most 16 times";
  if (groups > (std::uint64_t{1} << 32) / (std::uint64_t{tables} << (doublings + 1))) return "the index is too large";
  if (value_bytes > kMostValueBytes) return "a value has at most 16,280 bytes";
  if (block_bytes % kUnit != 0 || shape_of(block_bytes, class_of(most_units())).objects < 1)
    return "not one object fits into a block";
  return "";
}

std::uint32_t class_of(std::uint32_t units) {
  const std::uint32_t power = std::bit_ceil(units);
  const std::uint32_t between = power / 4 * 3;
  return std::min<std::uint32_t>(units <= between ? between : power, 255);
}

BlockShape shape_of(std::uint32_t block_bytes, std::uint32_t class_units) {
  const auto first = [](std::uint32_t objects) { return (objects * 8 + kUnit - 1) / kUnit * kUnit; };
  std::uint32_t objects = block_bytes / (class_units * kUnit + 8);
  while (objects > 0 && first(objects) + objects * class_units * kUnit > block_bytes) --objects;
  return {class_units, objects, first(objects)};
}

MemoryMap::MemoryMap(std::vector<MemoryNode> nodes, const Geometry& geometry)
    : nodes_(std::move(nodes)), geometry_(geometry) {
  SLUICE_CHECK(geometry.replicas <= nodes_.size() && nodes_.size() <= 256);
  homes_.resize(nodes_.size());
  members_.assign(nodes_.size(), Member::kWhole);
  for (std::uint32_t partition = 0; partition < partitions(); ++partition)
    homes_[partition] = {among(partition, geometry.replicas), among(partition, geometry.word_replicas())};
  std::uint64_t heap = ~std::uint64_t{0};
  for (const auto& node : nodes_) heap = std::min(heap, node.heap_bytes);
  if (heap < kSuperblockBytes) return;
  share_ = (heap - kSuperblockBytes) / geometry.replicas / kUnit * kUnit;
  if (share_ <= index_bytes() + kUnit) return;
  blocks_ = static_cast<std::uint32_t>((share_ - index_bytes() - kUnit) / (std::uint64_t{geometry.block_bytes} + 8));
  first_block_ = (index_bytes() + std::uint64_t{8} * blocks_ + kUnit - 1) / kUnit * kUnit;
}

MemoryMap::Replicas MemoryMap::among(std::uint32_t partition, std::uint32_t shares) const {
  Replicas found;
  for (const Member wanted : {Member::kWhole, Member::kApprentice}) {
    for (std::uint32_t share = 0; share < shares; ++share) {
      if (members_[(partition + share) % partitions()] != wanted) continue;
      found.shares[found.count++] = static_cast<std::uint8_t>(share);
    }
    if (wanted == Member::kWhole) found.whole = found.count;
  }
  return found;
}

std::optional<remote::RemoteAddress> MemoryMap::on(std::uint32_t node, Place place) const {
  const std::uint32_t share = share_on(node, place.partition());
  if (share >= geometry_.replicas) return std::nullopt;
  return in_share(place, share);
}

bool MemoryMap::can_leave(std::uint32_t node) const {
  if (members_[node] != Member::kWhole) return members_[node] == Member::kApprentice;
  for (std::uint32_t partition = 0; partition < partitions(); ++partition) {
    if (homes_[partition].words.whole == 1 && primary(partition) == node) return false;
  }
  return true;
}

void MemoryMap::set(std::uint32_t node, Member member) {
  members_[node] = member;
  for (std::uint32_t share = 0; share < geometry_.replicas; ++share) {
    const std::uint32_t partition = (node + partitions() - share) % partitions();
    homes_[partition] = {among(partition, geometry_.replicas), among(partition, geometry_.word_replicas())};
  }
}

void MemoryMap::leave(std::uint32_t node) {
  SLUICE_CHECK(can_leave(node));
  set(node, Member::kLeft);
}

void MemoryMap::join(std::uint32_t node, remote::RemoteAddress heap) {
  SLUICE_CHECK(has_left(node));
  nodes_[node].heap = heap;
  set(node, Member::kApprentice);
}

void MemoryMap::complete(std::uint32_t node) {
  SLUICE_CHECK(members_[node] == Member::kApprentice);
  set(node, Member::kWhole);
}

namespace {
std::uint64_t first_hash(Key key) { return mix(key + 0x9E37'79B9'7F4A'7C15); }
std::uint64_t second_hash(std::uint64_t first) { return mix(first + 0xD1B5'4A32'D192'ED03); }
std::uint8_t mark_of(std::uint64_t second) { return static_cast<std::uint8_t>((second & 0xFF) == 0 ? 0xA5 : second); }
}  // namespace

std::uint8_t MemoryMap::fingerprint(Key key) const { return mark_of(second_hash(first_hash(key))); }

// The halvings go by bits of a hash of their own, the first by the lowest.
Table MemoryMap::table(Key key, std::uint32_t level) const {
  if (geometry_.tables == 1 && level == 0) return {};
  const std::uint64_t hash = mix(second_hash(first_hash(key)) + 0x8CB9'2BA7'2F3D'8DD7);
  std::uint64_t index = (hash >> 32) % geometry_.tables;
  for (std::uint32_t i = 0; i < level; ++i) index = 2 * index + (hash >> i & 1);
  return {level, index};
}

Choices MemoryMap::choices(Key key, Table table) const {
  const std::uint64_t first = first_hash(key);
  const std::uint64_t second = second_hash(first);
  const std::uint64_t groups = std::uint64_t{partitions()} * geometry_.groups;
  const std::uint64_t a = (first >> 8) % groups;
  const std::uint64_t b = (a + 1 + (second >> 8) % (groups - 1)) % groups;
  const auto run = [this, table](std::uint64_t group, std::uint64_t side) {
    return slots(table, static_cast<std::uint32_t>(group % partitions())) + (group / partitions() * 192 + side * 64);
  };
  return {{run(a, first & 1), run(b, first >> 1 & 1)}, mark_of(second)};
}

std::vector<Extent> MemoryMap::extents(const std::vector<bool>& used) const {
  std::vector<Extent> found;
  const auto add = [&found](std::uint64_t offset, std::uint64_t length) {
    if (!found.empty() && found.back().offset + found.back().length == offset) {
      found.back().length += length;
    } else {
      found.push_back({offset, length});
    }
  };
  add(0, header_bytes());
  for (std::uint64_t number = 0; number < used.size(); ++number) {
    if (used[number]) add(header_bytes() + number * table_bytes(), table_bytes());
  }
  add(index_bytes(), std::uint64_t{8} * blocks_);
  return found;
}

bool MemoryMap::holds(Word word) const {
  const Place place = word.object();
  if (word.units() == 0 || word.units() > 255 || place.partition() >= partitions()) return false;
  if (place.offset() < first_block_) return false;
  const std::uint64_t inside = place.offset() - first_block_;
  if (inside / geometry_.block_bytes >= blocks_) return false;
  const BlockShape shape = shape_of(geometry_.block_bytes, class_of(word.units()));
  const std::uint64_t in_block = inside % geometry_.block_bytes;
  if (in_block < shape.first) return false;
  const std::uint64_t stride = std::uint64_t{shape.units} * kUnit;
  return (in_block - shape.first) % stride == 0 && (in_block - shape.first) / stride < shape.objects;
}

Place MemoryMap::block_of(Word word) const {
  const std::uint64_t offset = word.object().offset();
  return Place::at(word.object().partition(), offset - (offset - first_block_) % geometry_.block_bytes);
}

Place MemoryMap::mark(Word word) const {
  const BlockShape shape = shape_of(geometry_.block_bytes, class_of(word.units()));
  const Place block = block_of(word);
  const std::uint64_t in_block = word.object().offset() - block.offset();
  return block + (in_block - shape.first) / (std::uint64_t{shape.units} * kUnit) * 8;
}

void put_superblock(MutableBytes into, const Superblock& superblock) {
  std::uint8_t* const p = into.data();
  const Geometry& geometry = superblock.geometry;
  store_le(p, kMagic);
  store_le<std::uint32_t>(p + 8, geometry.replicas | geometry.index_replicas << 8 | geometry.doublings << 16);
  store_le<std::uint32_t>(p + 12, geometry.groups);
  store_le<std::uint32_t>(p + 16, geometry.value_bytes);
  store_le<std::uint32_t>(p + 20, geometry.block_bytes);
  store_le<std::uint32_t>(p + 24, superblock.nodes | superblock.index << 16);
  store_le<std::uint32_t>(p + 28, geometry.tables);
  store_le<std::uint32_t>(p + 32, superblock.votes_from);
  store_le<std::uint64_t>(p + 40, superblock.heap_bytes);
  store_le<std::uint64_t>(p + 48, superblock.store_id);
  store_le<std::uint32_t>(p + 36, superblock_check(into));
}

bool superblock_taken(ByteView bytes) {
  const auto magic = load_le<std::uint64_t>(bytes.data());
  Superblock superblock;
  return (magic != 0 && magic != kMagic) || (parse_superblock(bytes, superblock) && superblock_made(bytes));
}

bool superblock_made(ByteView bytes) { return load_le<std::uint64_t>(bytes.data() + kMadeOffset) == 1; }

bool parse_superblock(ByteView bytes, Superblock& superblock) {
  const std::uint8_t* const p = bytes.data();
  if (bytes.size() < kSuperblockHead || load_le<std::uint64_t>(p) != kMagic) return false;
  if (load_le<std::uint32_t>(p + 36) != superblock_check(bytes)) return false;
  const auto counts = load_le<std::uint32_t>(p + 8);
  superblock = {.geometry = {.replicas = counts & 0xFF,
                             .groups = load_le<std::uint32_t>(p + 12),
                             .value_bytes = load_le<std::uint32_t>(p + 16),
                             .block_bytes = load_le<std::uint32_t>(p + 20),
                             .index_replicas = counts >> 8 & 0xFF,
                             .tables = load_le<std::uint32_t>(p + 28),
                             .doublings = counts >> 16},
                .nodes = load_le<std::uint16_t>(p + 24),
                .index = load_le<std::uint16_t>(p + 26),
                .store_id = load_le<std::uint32_t>(p + 48),
                .heap_bytes = load_le<std::uint64_t>(p + 40),
                .votes_from = load_le<std::uint32_t>(p + 32)};
  return *superblock.geometry.refusal() == '\0' && superblock.geometry.replicas <= superblock.nodes &&
         superblock.index < superblock.nodes;
}

ByteView put_object(MutableBytes into, Place place, const Object& object) {
  std::uint8_t* const p = into.data();
  store_le(p, object.key);
  store_le(p + kSequenceOffset, object.sequence);
  store_le(p + kOldWordOffset, object.log.old.raw);
  store_le(p + 24, object.log.old_sequence);
  const auto kind = static_cast<std::uint32_t>(object.kind);
  store_le<std::uint32_t>(p + 36, kind << 24 | static_cast<std::uint32_t>(object.value.size()));
  std::ranges::copy(object.value, into.begin() + kObjectHeader);
  const MutableBytes whole = into.first(kObjectHeader + object.value.size());
  store_le<std::uint32_t>(p + 32, object_check(whole, place));
  return whole;
}

bool parse_object(ByteView bytes, Place place, Object& object) {
  if (bytes.size() < kObjectHeader) return false;
  const std::uint8_t* const p = bytes.data();
  const auto form = load_le<std::uint32_t>(p + 36);
  const std::size_t length = form & 0xFF'FFFF;
  if (length > bytes.size() - kObjectHeader) return false;
  if (load_le<std::uint32_t>(p + 32) != object_check(bytes.first(kObjectHeader + length), place)) return false;
  const auto kind = static_cast<Kind>(form >> 24);
  if (kind != Kind::kValue && kind != Kind::kTombstone) return false;
  object = {.key = load_le<std::uint64_t>(p),
            .sequence = load_le<std::uint64_t>(p + kSequenceOffset),
            .log = {{load_le<std::uint64_t>(p + kOldWordOffset)}, load_le<std::uint64_t>(p + 24)},
            .kind = kind,
            .value = bytes.subspan(kObjectHeader, length)};
  return true;
}

}  // namespace sluice::fusee
