// Every byte of a FUSEE store in remote memory: slots of the index, objects, blocks, superblock, and where their replicas lie.
//
// Partition     [index: headers of tables, 8 each | tables | owners of blocks, 8 each | blocks]. There is one a memory node; its replica j lies on
//               memory node (partition + j) modulo nodes, in share j. So one Place names all replicas of a word or an object.
// Memory node   [superblock 64 KiB | share 0: its own partition | share 1: the one before it | … share r - 1]
// Superblock    geometry and the store's number, on every memory node alike, which of them this is, and from which view on this memory votes |
//               made: u64 | clients: u64 | who restores it: u64 |
//               records of changes, 32 each: the k-th says what changes with view k + 1 (a Ballot, and two Proposals of which it names one), and
//               whether all replicas of view k have been made alike (u64). See membership.h.
// Table         RACE's subtable: groups in every partition. The store begins with `tables` of them; a full one is split into two of its size, up to
//               `doublings` times (growth.h). Each table that there may ever be has its place from the start, which is a number's: those of level 0,
//               then those of level 1, 2 i and 2 i + 1 of which are the halves of i, and so on. Nothing of it is written before it is used.
// Header        an Owner's word, of the table: 0, whole; of units 1: who is splitting it; of units 2: it is split, for ever. Of table n in partition n
//               modulo partitions.
// Group         bucket | overflow bucket | bucket, eight slots of 8 bytes each. A key has two choices, in different groups of
//               its table, at the same places in every table: a bucket and its overflow.
// Slot          8 bits units | 8 bits fingerprint | 48 bits place of the object, in whose lowest bits stands the state: live, tentative, void; and
//               whether it is frozen: nothing follows this word any more, for its table is being split. 0: never used. A slot that held something is void, never 0 again: every word that a slot takes is a new one.
// Block         marks, 8 each | objects of one size, in units of 64. A mark is the sequence of the allocation that is over: whoever took an object's
//               word out of its slot writes it; the block's owner reads it. Written twice it changes nothing; so late that there is another object's
//               by then, it hides that one from the owner until an audit.
// Object        u64 key | u64 sequence | log: u64 old slot word, u64 old object's sequence | u32 check | u8 kind, u24 length | value
// Units:        little-endian; offsets in bytes from the start of a partition.
// Source:       Shen et al., "FUSEE" (FAST 2023) §4.2, §4.4, §4.5; Zuo et al., "RACE" (ATC 2021) §4.1.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "remote/remote_memory.h"

namespace sluice::fusee {

using Key = std::uint64_t;

inline constexpr std::uint32_t kUnit = 64;
inline constexpr std::uint32_t kMostReplicas = 4;
inline constexpr std::uint32_t kObjectHeader = 40;
inline constexpr std::uint32_t kSlotsAChoice = 16;
inline constexpr std::uint32_t kMostValueBytes = 255 * kUnit - kObjectHeader;  // of any store
inline constexpr std::uint32_t kChoiceBytes = kSlotsAChoice * 8;

// Where something is, in all its replicas.
struct Place {
  std::uint64_t raw = 0;

  static constexpr Place at(std::uint32_t partition, std::uint64_t offset) {
    return {std::uint64_t{partition} << 40 | offset};
  }
  constexpr std::uint32_t partition() const { return static_cast<std::uint32_t>(raw >> 40 & 0xFF); }
  constexpr std::uint64_t offset() const { return raw & 0xFF'FFFF'FFFF; }
  friend constexpr Place operator+(Place p, std::uint64_t bytes) { return {p.raw + bytes}; }
  friend constexpr auto operator<=>(const Place&, const Place&) = default;
};

enum class State : std::uint8_t { kLive, kTentative, kVoid };

// What stands in a slot.
struct Word {
  std::uint64_t raw = 0;

  static constexpr Word of(Place object, std::uint8_t fingerprint, std::uint32_t units, State state) {
    return {std::uint64_t{units} << 56 | std::uint64_t{fingerprint} << 48 | object.raw |
            static_cast<std::uint64_t>(state)};
  }
  constexpr Place object() const { return {raw & 0xFFFF'FFFF'FFC0}; }
  constexpr std::uint8_t fingerprint() const { return static_cast<std::uint8_t>(raw >> 48); }
  constexpr std::uint32_t units() const { return static_cast<std::uint32_t>(raw >> 56); }
  constexpr State state() const { return static_cast<State>(raw & 3); }
  constexpr bool frozen() const { return (raw & kFrozen) != 0; }
  // Of a slot that was never used: a void word that names nothing.
  constexpr Word freeze() const {
    return {raw == 0 ? kFrozen | static_cast<std::uint64_t>(State::kVoid) : raw | kFrozen};
  }
  constexpr Word thaw() const { return {units() == 0 ? 0 : raw & ~kFrozen}; }
  constexpr Word with(State state) const { return {(raw & ~std::uint64_t{3}) | static_cast<std::uint64_t>(state)}; }
  constexpr bool live() const { return raw != 0 && state() == State::kLive; }
  // Something may follow these two.
  constexpr bool tentative() const { return raw != 0 && state() == State::kTentative && !frozen(); }
  constexpr bool vacant() const { return raw == 0 || (state() == State::kVoid && !frozen()); }
  friend constexpr auto operator<=>(const Word&, const Word&) = default;

 private:
  static constexpr std::uint64_t kFrozen = 4;
};

// Who a block belongs to, or a table's header; no word is used twice.
struct Owner {
  std::uint64_t raw = 0;

  static constexpr Owner of(std::uint32_t client, std::uint64_t claim, std::uint32_t units) {
    return {std::uint64_t{units} << 56 | (claim & 0xFFFF'FFFF) << 24 | (client & 0xFF'FFFF)};
  }
  constexpr std::uint32_t client() const { return static_cast<std::uint32_t>(raw & 0xFF'FFFF); }
  constexpr std::uint32_t units() const { return static_cast<std::uint32_t>(raw >> 56); }
};

// Of a block whose owner has left: it has this number, which no client has, and the owner's in the place of its claim.
inline constexpr std::uint32_t kNobody = 0;
// Of a store, ever: numbers go into owners' words and into sequences, and come once.
inline constexpr std::uint64_t kMostClients = 0xFF'FFFF;

// What all clients of a store agree on.
struct Geometry {
  std::uint32_t replicas = 3;     // of everything; at most as many as memory nodes
  std::uint32_t groups = 1024;    // of a table of the index, a partition; 24 slots each
  std::uint32_t value_bytes = 8;  // the most that a value may have
  std::uint32_t block_bytes = 64 << 10;
  // Of what Snapshot changes: slots and owners. 0: as many. Fewer is faster, and less of the store outlives its nodes.
  std::uint32_t index_replicas = 0;
  std::uint32_t tables = 1;     // of the index, when the store is made
  std::uint32_t doublings = 0;  // of the index, at most: so many times may each of them, and each half, be split

  constexpr std::uint32_t word_replicas() const { return index_replicas == 0 ? replicas : index_replicas; }
  constexpr std::uint32_t most_units() const { return (kObjectHeader + value_bytes + kUnit - 1) / kUnit; }
  const char* refusal() const;  // empty, or why no store can have it
  friend constexpr bool operator==(const Geometry&, const Geometry&) = default;
};

struct MemoryNode {
  remote::RemoteAddress heap;
  std::uint64_t heap_bytes = 0;
};

inline constexpr std::uint32_t kMostIndexDoublings = 16;

// A part of the index: the `index`-th of those that have been split so many times.
struct Table {
  std::uint32_t level = 0;
  std::uint64_t index = 0;

  constexpr Table half(std::uint64_t which) const { return {level + 1, 2 * index + which}; }
  friend constexpr bool operator==(const Table&, const Table&) = default;
};
// A header's state, where an Owner has units.
inline constexpr std::uint32_t kTableClaimed = 1;
inline constexpr std::uint32_t kTableSplit = 2;

// Where a key may be, in a table: two runs of kSlotsAChoice slots, in different groups.
struct Choices {
  std::array<Place, 2> run;
  std::uint8_t fingerprint = 0;  // never 0
};

// The objects of a block with this many units an object.
struct BlockShape {
  std::uint32_t units = 0;  // an object has at most
  std::uint32_t objects = 0;
  std::uint32_t first = 0;  // offset of the first object
};
// Objects come in these sizes: 1, 2, 3, 4, 6, 8, 12, 16, … units.
std::uint32_t class_of(std::uint32_t units);
BlockShape shape_of(std::uint32_t block_bytes, std::uint32_t class_units);

// What a memory node is to the store. An apprentice has all words, and gets every object that is written, but has not yet those that were
// written before it came; it is the last of all replicas until it is whole.
enum class Member : std::uint8_t { kWhole, kApprentice, kLeft };

// Some bytes of a partition.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// Where everything lies. Pure.
class MemoryMap {
 public:
  MemoryMap() = default;
  // REQUIRES: the geometry is not refused; no more replicas than nodes.
  MemoryMap(std::vector<MemoryNode> nodes, const Geometry& geometry);

  std::uint32_t partitions() const { return static_cast<std::uint32_t>(nodes_.size()); }
  // How many replicas of an object the view has; how many of these can be read, which come first; of a word, which is what Snapshot changes.
  std::uint32_t replicas(Place place) const { return homes_[place.partition()].objects.count; }
  std::uint32_t readable(Place place) const { return homes_[place.partition()].objects.whole; }
  std::uint32_t word_replicas(Place place) const { return homes_[place.partition()].words.count; }
  std::uint32_t blocks() const { return blocks_; }  // a partition
  // Before this are those for anything; the last one is for who could else neither replace nor erase anything (space.h). Of few, all are for anything.
  std::uint32_t free_blocks() const { return blocks_ < kFewBlocks ? blocks_ : blocks_ - 1; }
  bool is_kept(Place block) const { return (block.offset() - first_block_) / geometry_.block_bytes >= free_blocks(); }
  // REQUIRES: replica < replicas(place). Replica 0 is the primary: the first of those that are whole.
  remote::RemoteAddress at(Place place, std::uint32_t replica) const {
    return in_share(place, homes_[place.partition()].objects.shares[replica]);
  }
  // REQUIRES: replica < word_replicas(place). The primary is the same.
  remote::RemoteAddress word_at(Place place, std::uint32_t replica) const {
    return in_share(place, homes_[place.partition()].words.shares[replica]);
  }
  // What the place is on this memory node, of the view or not. Nothing: it has no replica of it.
  std::optional<remote::RemoteAddress> on(std::uint32_t node, Place place) const;
  bool has_words(std::uint32_t node, std::uint32_t partition) const {
    return share_on(node, partition) < geometry_.word_replicas();
  }
  Member member(std::uint32_t node) const { return members_[node]; }
  bool has_left(std::uint32_t node) const { return members_[node] == Member::kLeft; }
  // Could the store do without this memory node? Not if it has the last whole replica of a slot.
  bool can_leave(std::uint32_t node) const;
  // REQUIRES: can_leave(node).
  void leave(std::uint32_t node);
  // REQUIRES: it has left. Its memory may be another now.
  void join(std::uint32_t node, remote::RemoteAddress heap);
  // Where its memory is now, of which the view has nothing, or of which nobody knew where.
  void moved(std::uint32_t node, remote::RemoteAddress heap) { nodes_[node].heap = heap; }
  // REQUIRES: it is an apprentice.
  void complete(std::uint32_t node);
  // The memory node of the partition's primary.
  std::uint32_t primary(std::uint32_t partition) const {
    return (partition + homes_[partition].words.shares[0]) % partitions();
  }
  // The key's table, if its first so many halvings have been made.
  Table table(Key key, std::uint32_t level) const;
  // In which half of a table of this level is the key?
  std::uint32_t half(Key key, std::uint32_t level) const {
    return static_cast<std::uint32_t>(table(key, level + 1).index & 1);
  }
  Choices choices(Key key, Table table) const;
  std::uint8_t fingerprint(Key key) const;
  bool grows() const { return geometry_.doublings != 0; }
  bool may_split(Table table) const { return table.level < geometry_.doublings; }
  // How many tables there may ever be; each has a number below that.
  std::uint64_t tables() const { return tables_below(geometry_.doublings + 1); }
  std::uint64_t number(Table table) const { return tables_below(table.level) + table.index; }
  Table table_of(std::uint64_t number) const {
    Table table;
    while (number >= tables_below(table.level + 1)) ++table.level;
    table.index = number - tables_below(table.level);
    return table;
  }
  Place header(Table table) const {
    return Place::at(static_cast<std::uint32_t>(number(table) % partitions()), number(table) / partitions() * 8);
  }
  // What a partition has of a table, and of all headers, is so many bytes from there on.
  Place slots(Table table, std::uint32_t partition) const {
    return Place::at(partition, header_bytes() + number(table) * table_bytes());
  }
  std::uint64_t table_bytes() const { return std::uint64_t{geometry_.groups} * 192; }
  std::uint64_t header_bytes() const {
    if (!grows()) return 0;
    return ((tables() + partitions() - 1) / partitions() * 8 + kUnit - 1) / kUnit * kUnit;
  }
  Place owner(std::uint32_t partition, std::uint32_t block) const {
    return Place::at(partition, index_bytes() + std::uint64_t{8} * block);
  }
  Place block(std::uint32_t partition, std::uint32_t number) const {
    return Place::at(partition, first_block_ + std::uint64_t{number} * geometry_.block_bytes);
  }
  // All that Snapshot changes: from the start of a partition, so many bytes.
  std::uint64_t word_bytes() const { return index_bytes() + std::uint64_t{8} * blocks_; }
  // What is used, of a partition's words: headers, owners, and those tables that `used` says are, by number.
  std::vector<Extent> extents(const std::vector<bool>& used) const;
  // Of these, headers and slots.
  std::uint64_t index_bytes() const { return header_bytes() + tables() * table_bytes(); }
  // Could an object be there? Nothing that is read is followed without asking this.
  bool holds(Word word) const;
  // Where the block is that its object lies in, and the mark of that object. REQUIRES: holds(word).
  Place block_of(Word word) const;
  Place mark(Word word) const;

  static constexpr std::uint64_t kSuperblockBytes = 64 << 10;

 private:
  static constexpr std::uint32_t kFewBlocks = 8;
  // Which replicas the view has, in their order: the whole ones by their shares, then apprentices.
  struct Replicas {
    std::array<std::uint8_t, kMostReplicas> shares{};
    std::uint8_t count = 0;
    std::uint8_t whole = 0;
  };
  struct Homes {
    Replicas objects;
    Replicas words;
  };
  std::uint64_t tables_below(std::uint32_t level) const { return geometry_.tables * ((std::uint64_t{1} << level) - 1); }
  Replicas among(std::uint32_t partition, std::uint32_t shares) const;
  void set(std::uint32_t node, Member member);
  std::uint32_t share_on(std::uint32_t node, std::uint32_t partition) const {
    return (node + partitions() - partition) % partitions();
  }
  remote::RemoteAddress in_share(Place place, std::uint32_t share) const {
    const std::uint32_t node = (place.partition() + share) % partitions();
    return nodes_[node].heap + (kSuperblockBytes + share * share_ + place.offset());
  }
  std::vector<MemoryNode> nodes_;
  std::vector<Homes> homes_;     // by partition
  std::vector<Member> members_;  // by node
  Geometry geometry_;
  std::uint64_t share_ = 0;
  std::uint64_t first_block_ = 0;
  std::uint32_t blocks_ = 0;
};

// ------------------------------------------------------------------------------------------------------- superblock

inline constexpr std::size_t kSuperblockHead = 56;
// u64: 1 once all memory nodes have the geometry. Before that, on the first memory node, Maker::word() of who makes the store; else 0.
inline constexpr std::uint64_t kMadeOffset = 56;
inline constexpr std::uint64_t kClientOffset =
    64;  // u64: clients that got their number here, or elsewhere from the same count
inline constexpr std::size_t kSuperblockRead = 64;    // of it, by who wants to know what is there
inline constexpr std::uint64_t kRestorerOffset = 72;  // u64: a client's number, and how often it has said that it lives
inline constexpr std::uint64_t kChangeOffset = 512;
inline constexpr std::uint64_t kChangeBytes = 32;
inline constexpr std::uint32_t kMostChanges = (MemoryMap::kSuperblockBytes - kChangeOffset) / kChangeBytes;
// A number that nobody else has who might make a store in the same memory.
struct Maker {
  std::uint32_t number = 1;
  constexpr std::uint64_t word() const { return std::uint64_t{1} << 32 | number; }
};
struct Superblock {
  Geometry geometry;
  std::uint32_t nodes = 0;
  std::uint32_t index = 0;       // of this one among them
  std::uint32_t store_id = 0;    // its maker's number: no other store on the rack has it
  std::uint64_t heap_bytes = 0;  // that are used of each
  // What this memory says of changes before this one counts for nothing: it took the place of memory that had been lost.
  std::uint32_t votes_from = 0;
};
void put_superblock(MutableBytes into, const Superblock& superblock);
// Is a store there, or something else? Not: nothing, or what a client that died while it made a store has left. REQUIRES: kSuperblockRead bytes.
bool superblock_taken(ByteView bytes);
bool superblock_made(ByteView bytes);
// False: no store.
bool parse_superblock(ByteView bytes, Superblock& superblock);

// How the memory nodes of a view become those of the next.
enum class ChangeKind : std::uint8_t {
  kLeave,
  kJoin,      // as an apprentice, with the memory of this key
  kComplete,  // the apprentice has everything
};
struct Change {
  ChangeKind kind{};
  std::uint32_t node = 0;
  remote::RegionKey key{};
  friend constexpr bool operator==(const Change&, const Change&) = default;
};

// What a memory node has to say about a change, as Paxos's acceptor: the highest ballot that it has promised, and what it has accepted in which.
// A ballot is 8 bits of round over the 20 lowest of the client's number, 0: none. Of two clients that have the same one, one is promised it: a promise is a CAS
// from what was there.
struct Ballot {
  std::uint64_t raw = 0;

  static constexpr Ballot of(std::uint32_t promised, std::uint32_t accepted, std::uint32_t node) {
    return {std::uint64_t{promised} << 36 | std::uint64_t{accepted} << 8 | (node & 0xFF)};
  }
  constexpr std::uint32_t promised() const { return static_cast<std::uint32_t>(raw >> 36); }
  constexpr std::uint32_t accepted() const { return static_cast<std::uint32_t>(raw >> 8 & 0xFFF'FFFF); }
  constexpr std::uint32_t node() const { return static_cast<std::uint32_t>(raw & 0xFF); }
  friend constexpr bool operator==(const Ballot&, const Ballot&) = default;
};
// What of the change there is no place for in the ballot. Stands there before the ballot is accepted, and for as long as it is.
struct Proposal {
  std::uint64_t raw = 0;

  static constexpr Proposal of(std::uint32_t ballot, const Change& change) {
    return {std::uint64_t{ballot} << 36 | static_cast<std::uint64_t>(change.kind) << 32 | change.key.value};
  }
  constexpr std::uint32_t ballot() const { return static_cast<std::uint32_t>(raw >> 36); }
  constexpr Change change(std::uint32_t node) const {
    return {static_cast<ChangeKind>(raw >> 32 & 0xF), node, remote::RegionKey(static_cast<std::uint32_t>(raw))};
  }
};

// ---------------------------------------------------------------------------------------------------------- objects

enum class Kind : std::uint8_t { kValue = 1, kTombstone = 2 };
// The embedded log: what the object's word was to replace.
struct Log {
  Word old{};
  std::uint64_t old_sequence = 0;
};
struct Object {
  Key key = 0;
  std::uint64_t sequence = 0;
  Log log{};
  Kind kind = Kind::kValue;
  ByteView value{};
};
inline constexpr std::uint64_t kSequenceOffset = 8;
inline constexpr std::uint64_t kOldWordOffset = 16;

constexpr std::uint32_t units_for(std::size_t value_bytes) {
  return static_cast<std::uint32_t>((kObjectHeader + value_bytes + kUnit - 1) / kUnit);
}
// Returns the bytes to write. REQUIRES: into.size() >= kObjectHeader + value, rounded up to units.
ByteView put_object(MutableBytes into, Place place, const Object& object);
// False: no whole object of this place. `object.value` lies in `bytes`.
bool parse_object(ByteView bytes, Place place, Object& object);

}  // namespace sluice::fusee
