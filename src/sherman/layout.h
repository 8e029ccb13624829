// Every byte of a Sherman tree in remote memory: nodes, entries, lock words, redo records, superblock, and where they lie.
//
// Superblock    geometry and the tree's number, on every memory node alike, which of them this is, and how much of it is used | who makes the tree: u64;
//               and on the first: root: u64 | clients: u64
// Memory node   [superblock 4096 | chunk owners 8 each | redo records, one a lock | chunks of tree nodes or blocks], and in a region of its own
//               (memory of the NIC, on real ones) the lock table: 64-bit words.
// Tree node     u64 version | u64 low | u64 last | u64 sibling | u64 self | u64 leftmost child | u8 level, u8 0, u16 count, u32 check of
//               these 60 bytes | body | u64 version again | u32 check of the body (internal nodes), u32 0
// Leaf body     slots in no order: u32 version | u16 length | u8 used | u8 0 | u64 key | value, filled up to 8 | u32 version again | u32 check;
//               used 2: the value is in a block of its own (values.h), and in its place u64 block | u64 tag | u32 length | u32 0
// Internal body u64 key, u64 child, sorted; a child holds the keys from its own up to the next one; leftmost those before the first.
//
// Two versions  as in the paper: the node's, changed by what rewrites it whole (split), and the entry's, changed when one slot is written.
// Checks        are what makes a reader believe: an entry's covers the node's version, the node's address and the number of the slot besides its own
//               bytes, so that an entry and a header that never stood together are not taken for one leaf (see README.md).
// Covering      a node holds the keys low..last, both included; `sibling` is the node from last + 1 on. `low` of a node never changes.
// Units:        little-endian; offsets in bytes from the base of a memory node's heap.
// Source:       Wang, Lu, Shu, "Sherman" (SIGMOD 2022) §4.1, §4.4; Lehman and Yao (TODS 1981) for siblings.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "remote/remote_memory.h"

namespace sluice::sherman {

using Key = std::uint64_t;
inline constexpr Key kLastKey = ~Key{0};

// Where a tree node is: number of the memory node, offset in its heap. Offset 0 of node 0 is the superblock: raw 0 is no node.
struct NodePointer {
  std::uint64_t raw = 0;

  static constexpr NodePointer at(std::uint32_t node, std::uint64_t offset) {
    return {std::uint64_t{node} << 40 | offset};
  }
  constexpr std::uint32_t node() const { return static_cast<std::uint32_t>(raw >> 40 & 0xFFFF); }
  constexpr std::uint64_t offset() const { return raw & 0xFF'FFFF'FFFF; }
  explicit constexpr operator bool() const { return raw != 0; }
  friend constexpr auto operator<=>(const NodePointer&, const NodePointer&) = default;
};

// The root and its level in one word, so that both change by one CAS.
struct Root {
  NodePointer node;
  std::uint8_t level = 0;

  static constexpr Root of(std::uint64_t word) {
    return {{word & 0xFF'FFFF'FFFF'FFFF}, static_cast<std::uint8_t>(word >> 56)};
  }
  constexpr std::uint64_t word() const { return std::uint64_t{level} << 56 | node.raw; }
};

inline constexpr std::uint32_t kNodeHeader = 64;
inline constexpr std::uint32_t kBlockHeader = 24;  // of a value's block
inline constexpr std::uint32_t kFarBytes = 24;     // of what names it in a leaf

// What all clients of a tree agree on.
struct Geometry {
  std::uint32_t node_bytes = 1024;
  std::uint32_t value_bytes = 8;  // the most that a value in a leaf may have
  std::uint32_t locks = 4096;     // words in each lock table
  std::uint32_t chunk_bytes = 64 << 10;
  // A WRITE of so many bytes is executed whole or not at all even if its client dies meanwhile (one packet). Longer ones go to a redo record first.
  std::uint32_t whole_bytes = 1024;
  std::uint32_t long_bytes = 0;  // the most that a value in a block of its own may have; 0: there are none

  constexpr std::uint32_t entry_bytes() const { return 24 + (value_bytes + 7) / 8 * 8; }
  constexpr std::uint32_t leaf_slots() const { return (node_bytes - 80) / entry_bytes(); }
  constexpr std::uint32_t separators() const { return (node_bytes - 80) / 16; }
  constexpr bool nodes_logged() const { return node_bytes > whole_bytes; }
  constexpr bool entries_logged() const { return entry_bytes() > whole_bytes; }
  constexpr std::uint32_t longest_value() const { return std::max(value_bytes, long_bytes); }
  // Of the block for a value of so many bytes: 64, 96, 128, 192, …
  static constexpr std::uint32_t block_bytes(std::uint32_t length) {
    std::uint32_t bytes = 64;
    while (bytes < kBlockHeader + length) bytes += std::has_single_bit(bytes) ? bytes / 2 : bytes / 3;
    return bytes;
  }
  constexpr std::uint32_t record_bytes() const { return nodes_logged() ? 32 + node_bytes : 0; }
  // Empty, or why no tree can have it.
  const char* refusal() const;
  friend constexpr bool operator==(const Geometry&, const Geometry&) = default;
};

// A memory node's part of a tree.
struct MemoryNode {
  remote::RemoteAddress heap;
  std::uint64_t heap_bytes = 0;
  remote::RemoteAddress locks;  // Geometry::locks words
};

// Where everything lies. Pure.
class MemoryMap {
 public:
  MemoryMap() = default;
  MemoryMap(std::vector<MemoryNode> nodes, const Geometry& geometry);

  std::uint32_t nodes() const { return static_cast<std::uint32_t>(nodes_.size()); }
  // A node's memory is reached there now.
  void moved(std::uint32_t node, remote::RemoteAddress heap, remote::RemoteAddress locks);
  std::uint32_t chunks(std::uint32_t node) const;
  remote::RemoteAddress owner_of_chunk(std::uint32_t node, std::uint32_t chunk) const;
  NodePointer start_of_chunk(std::uint32_t node, std::uint32_t chunk) const;
  remote::RemoteAddress root() const;  // its word
  remote::RemoteAddress at(NodePointer pointer) const { return nodes_[pointer.node()].heap + pointer.offset(); }
  // The lock of a tree node is in the table of its memory node; several tree nodes may share one.
  std::uint32_t lock_of(NodePointer pointer) const;
  remote::RemoteAddress lock_word(std::uint32_t node, std::uint32_t lock) const;
  remote::RemoteAddress record(std::uint32_t node, std::uint32_t lock) const;

 private:
  std::uint64_t first_chunk(std::uint32_t node) const;
  std::uint64_t first_record(std::uint32_t node) const;
  std::vector<MemoryNode> nodes_;
  Geometry geometry_;
};

// ------------------------------------------------------------------------------------------------------- superblock

inline constexpr std::uint64_t kSuperblockBytes = 4096;
// u64: 0, or Maker::word() of who made the tree or is making it: as long as nobody can parse the rest of the superblock, that one and nobody else
// writes here.
inline constexpr std::uint64_t kMakerOffset = 56;
inline constexpr std::uint64_t kRootOffset = 64;    // u64 Root
inline constexpr std::uint64_t kClientOffset = 72;  // u64: clients that ever joined
// A number that nobody else has who might make a tree in the same memory.
struct Maker {
  std::uint32_t number = 1;
  constexpr std::uint64_t word() const { return std::uint64_t{1} << 32 | number; }
};
struct Superblock {
  Geometry geometry;
  std::uint32_t nodes = 0;
  std::uint32_t index = 0;    // of this one among them
  std::uint32_t tree_id = 0;  // its maker's number: no other tree on the rack has it
  std::uint64_t heap_bytes = 0;
};
inline constexpr std::size_t kSuperblockRead = 64;                     // of it, by who wants to know what is there
void put_superblock(MutableBytes into, const Superblock& superblock);  // kMakerOffset bytes
// Is a tree there, or something else? Not: nothing, or what a client that died while it made a tree has left.
bool superblock_taken(ByteView bytes);
// False: no tree. On the first memory node the superblock is written last: the others may have theirs when there is no tree yet.
bool parse_superblock(ByteView bytes, Superblock& superblock);

// -------------------------------------------------------------------------------------------------------- lock words

// 0: free. Else who took it, that client's how manieth, and how often others have begun to recover it (after 15 comes 1).
struct LockWord {
  std::uint64_t raw = 0;

  static constexpr LockWord of(std::uint32_t client, std::uint64_t sequence) {
    return {std::uint64_t{client} << 44 | (sequence & 0xFF'FFFF'FFFF) << 4};
  }
  constexpr std::uint32_t client() const { return static_cast<std::uint32_t>(raw >> 44); }
  constexpr std::uint64_t holder() const { return raw & ~std::uint64_t{15}; }
  constexpr bool in_recovery() const { return (raw & 15) != 0; }
  constexpr LockWord next_attempt() const { return {holder() | ((raw & 15) % 15 + 1)}; }
};

inline constexpr std::uint64_t kMostClients =
    0xF'FFFE;  // numbers have 20 bits, and the founder's chunk is of none of them

// ------------------------------------------------------------------------------------------------------ chunk owners

// 0: nobody's. Else the client, what it cuts the chunk into (blocks of so many bytes; 0: nodes), and that client's how manieth claim. Of one
// that has left: kNobody, and the client's number in the place of the claim.
struct ChunkOwner {
  std::uint64_t raw = 0;

  static constexpr ChunkOwner of(std::uint32_t client, std::uint32_t block_bytes, std::uint32_t claim) {
    return {std::uint64_t{client} << 44 | std::uint64_t{block_bytes / 32} << 24 | (claim & 0xFF'FFFF)};
  }
  constexpr std::uint32_t client() const { return static_cast<std::uint32_t>(raw >> 44); }
  constexpr std::uint32_t block_bytes() const { return static_cast<std::uint32_t>(raw >> 24 & 0xF'FFFF) * 32; }
};
inline constexpr std::uint32_t kNobody = 0;  // no client has this number
// Of the chunk with the first leaf, which nobody cuts up.
inline constexpr ChunkOwner kFounder{~std::uint64_t{0}};

// -------------------------------------------------------------------------------------------------------- redo records

// u64 holder's lock word | u64 offset of the target | u32 length | u32 check of all but these | u64 0 | bytes
void put_record(MutableBytes into, LockWord word, std::uint64_t target, ByteView bytes);
struct Record {
  std::uint64_t target = 0;
  ByteView bytes;
};
// False: none that the holder of this word had finished writing.
bool parse_record(ByteView bytes, LockWord word, Record& record);

// -------------------------------------------------------------------------------------------------------- nodes

struct NodeHeader {
  std::uint64_t version = 0;
  Key low = 0;
  Key last = kLastKey;
  NodePointer sibling{};
  NodePointer self{};
  NodePointer leftmost{};
  std::uint8_t level = 0;
  std::uint16_t count = 0;  // of separators
};

// Where a value is that no leaf holds, and which one is meant.
struct FarValue {
  NodePointer block;
  std::uint64_t tag = 0;
  std::uint32_t length = 0;
  explicit constexpr operator bool() const { return static_cast<bool>(block); }
};

struct Entry {
  bool used = false;
  Key key = 0;
  ByteView value{};
  bool far = false;  // the value is a FarValue
};
FarValue far_value(const Entry& entry);  // REQUIRES: entry.far
void put_far_value(std::span<std::uint8_t, kFarBytes> into, const FarValue& far);

// REQUIRES: into.size() == kBlockHeader + value.size().
void put_block(MutableBytes into, Key key, const FarValue& far, ByteView value);
// False: it is torn, or has become another's.
bool is_block(ByteView block, Key key, const FarValue& far);

struct Separator {
  Key key = 0;
  NodePointer child{};
};

// A leaf in local memory. Writing keeps all versions and checks right.
class Leaf {
 public:
  Leaf(MutableBytes bytes, const Geometry& geometry) : bytes_(bytes), geometry_(geometry) {}

  // Builds one: all slots empty but for `entries`. `bytes` of entries must not lie in this leaf.
  void build(const NodeHeader& header, std::span<const Entry> entries);
  // Is it the node that was meant, whole as far as header and end say?
  bool frame_whole(NodePointer self) const;
  NodeHeader header() const;
  // Of a leaf whose frame is whole. False: torn, or not of this leaf.
  bool entry(std::uint32_t slot, Entry& entry) const;
  void set_entry(std::uint32_t slot, const Entry& entry);
  ByteView entry_bytes(std::uint32_t slot) const { return bytes_.subspan(offset(slot), geometry_.entry_bytes()); }
  std::uint32_t offset(std::uint32_t slot) const { return 64 + slot * geometry_.entry_bytes(); }

 private:
  std::uint32_t seed() const;
  std::uint32_t entry_check(std::uint32_t slot) const;
  MutableBytes bytes_;
  Geometry geometry_;
};

void build_internal(MutableBytes bytes, const NodeHeader& header, std::span<const Separator> separators);
bool internal_whole(ByteView bytes, NodePointer self);
// Of a whole node of either kind.
NodeHeader parse_header(ByteView bytes);
Separator separator(ByteView internal, std::uint32_t index);
// REQUIRES: the internal node covers the key.
NodePointer child_for(ByteView internal, Key key);

}  // namespace sluice::sherman
