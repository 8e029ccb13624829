// What Clover keeps in the memory of the memory nodes, byte by byte: versions of values, chained by their next words.
//
// Node:       offset 0                  u64  next word, see below
//             offset 8                  u64  key
//             offset 16                 the value, then zeros up to value_bytes rounded up to 8
//             offset 16 + that          u64  trailer: bits 13..0 length of the value, bits 19..14 generation, bits 27..20 volume,
//                                            bits 63..28 the node's offset in its volume, in units of 64 bytes
//             Everything little-endian. A node is written whole by one WRITE; of it only the next word ever changes. Values
//             of 1,000 bytes make nodes of 1,024, as the authors' do.
// Next word:  bit 63 = 0: pointer to the next version, or 0 in memory never used
//               bit  62       the next version is a tombstone: the key was erased
//               bits 61..54   volume
//               bits 53..48   generation of the slot, 1 to 63: how often it has been handed out
//               bits 47..0    virtual address of the node in the volume's first replica
//             bit 63 = 1: end of the chain
//               bits 62..61   0 "free", this node is a value; 1 "free", this node is a tombstone; 2 sealed: nothing will ever follow
//               bits 60..0    hash of the key
// Why so:     The trailer names the node, so that a reader knows what it has read: another life of the slot, or what a box in the
//             network has steered it to. A CAS replaces "free" by a pointer. The hash in it makes a CAS fail that comes (too) late, when the slot belongs to
//             another key; the kind in it makes a conditional append (insert, erase) fail at a tail of the other kind, wherever a box
//             in the network may have steered it. The low 48 bits of a pointer are the address of the WRITE that made the node, so
//             a box can tell which CAS belongs to which WRITE.
// Source:     reference captures of Clover (ConnectX): next pointer, key, value, trailer; SwordBox §4.4.2.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace sluice::clover {

using Key = std::uint64_t;

inline constexpr std::size_t kNextOffset = 0;
inline constexpr std::size_t kNextBytes = 8;
inline constexpr std::size_t kKeyOffset = 8;
inline constexpr std::size_t kValueOffset = 16;
inline constexpr std::size_t kTrailerBytes = 8;
inline constexpr std::size_t kMaxReplicas = 3;
inline constexpr std::size_t kMaxVolumes = 48;
inline constexpr std::uint64_t kMaxAddress = (std::uint64_t{1} << 48) - 1;
inline constexpr std::uint64_t kMaxVolumeBytes = std::uint64_t{1} << 42;  // what a trailer can tell

// Values up to 4,072 bytes make nodes of at most 4,096: one packet each way at RoCE's largest MTU.
inline constexpr std::uint32_t kMinValueBytes = 8;
inline constexpr std::uint32_t kMaxValueBytes = 16'360;

// Where things are in nodes of one store.
class NodeLayout {
 public:
  NodeLayout() = default;
  // REQUIRES: kMinValueBytes <= value_bytes <= kMaxValueBytes.
  constexpr explicit NodeLayout(std::uint32_t value_bytes) : value_bytes_(value_bytes) {}

  constexpr std::uint32_t value_bytes() const { return value_bytes_; }
  constexpr std::size_t trailer_offset() const { return kValueOffset + (value_bytes_ + 7u) / 8 * 8; }
  // What one READ or WRITE carries.
  constexpr std::size_t node_bytes() const { return trailer_offset() + kTrailerBytes; }
  // What a node takes up: whole cache lines.
  constexpr std::size_t slot_bytes() const { return (node_bytes() + 63) / 64 * 64; }

 private:
  std::uint32_t value_bytes_ = kMinValueBytes;
};

enum class NodeKind : std::uint8_t { kValue = 0, kTombstone = 1 };

struct NodePointer {
  std::uint64_t word = 0;  // 0: none

  static constexpr NodePointer make(std::uint32_t volume, std::uint32_t generation, std::uint64_t address) {
    return {std::uint64_t{volume & 0xFF} << 54 | std::uint64_t{generation & 0x3F} << 48 | (address & kMaxAddress)};
  }
  constexpr explicit operator bool() const { return word != 0; }
  constexpr std::uint32_t volume() const { return static_cast<std::uint32_t>(word >> 54 & 0xFF); }
  constexpr std::uint32_t generation() const { return static_cast<std::uint32_t>(word >> 48 & 0x3F); }
  constexpr std::uint64_t address() const { return word & kMaxAddress; }
  constexpr NodeKind kind() const { return (word >> 62 & 1) != 0 ? NodeKind::kTombstone : NodeKind::kValue; }
  constexpr NodePointer as(NodeKind kind) const {
    return {(word & ~(std::uint64_t{1} << 62)) | std::uint64_t{kind == NodeKind::kTombstone} << 62};
  }
  friend constexpr bool operator==(NodePointer, NodePointer) = default;
};

// The 61 bits of a key that its ends of chain carry.
constexpr std::uint64_t key_hash(Key key) {
  std::uint64_t x = (key ^ key >> 31) * 0x7FB5D329728EA185u;
  x = (x ^ x >> 27) * 0x81DADEF4BC2DD44Du;
  return (x ^ x >> 33) & ((std::uint64_t{1} << 61) - 1);
}

// The next word of a node that is the tail of its key's chain.
constexpr std::uint64_t free_word(Key key, NodeKind kind) {
  return std::uint64_t{1} << 63 | std::uint64_t{kind == NodeKind::kTombstone} << 61 | key_hash(key);
}
// The next word of a tombstone that ends its chain for good: the metadata server may forget the key.
constexpr std::uint64_t sealed_word(Key key) { return std::uint64_t{2} << 61 | std::uint64_t{1} << 63 | key_hash(key); }

constexpr bool is_end(std::uint64_t next) { return next >> 63 != 0; }
constexpr bool is_sealed(std::uint64_t next) { return next >> 61 == 6; }

// A node's trailer: which node it is, and how long its value.
constexpr std::uint64_t trailer_word(NodePointer node, std::uint64_t volume_base, std::size_t length) {
  return (node.address() - volume_base) / 64 << 28 | std::uint64_t{node.volume()} << 20 |
         std::uint64_t{node.generation()} << 14 | (length & 0x3FFF);
}

// A node as read.
struct NodeView {
  std::uint64_t next = 0;
  Key key = 0;
  std::uint64_t trailer = 0;

  std::uint32_t length() const { return static_cast<std::uint32_t>(trailer & 0x3FFF); }
  std::uint32_t volume() const { return static_cast<std::uint32_t>(trailer >> 20 & 0xFF); }
  // Itself, without its kind.
  NodePointer self(std::uint64_t volume_base) const {
    return NodePointer::make(volume(), static_cast<std::uint32_t>(trailer >> 14 & 0x3F),
                             volume_base + (trailer >> 28) * 64);
  }
};

// REQUIRES: bytes.size() == layout.node_bytes().
inline NodeView parse_node(const NodeLayout& layout, ByteView bytes) {
  return {.next = load_le<std::uint64_t>(bytes.data() + kNextOffset),
          .key = load_le<std::uint64_t>(bytes.data() + kKeyOffset),
          .trailer = load_le<std::uint64_t>(bytes.data() + layout.trailer_offset())};
}

// Fills `bytes` with a node that ends its chain. REQUIRES: value.size() <= value_bytes; bytes.size() == node_bytes().
void compose_node(const NodeLayout& layout, Key key, NodeKind kind, ByteView value, std::uint64_t trailer,
                  MutableBytes bytes);

}  // namespace sluice::clover
