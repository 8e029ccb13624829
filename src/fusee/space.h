// Memory for objects: blocks of the partitions, claimed one-sided, cut up by the client that owns them (two-level allocation).
//
// Claim:      the block's owner word, replicated by Snapshot, 0 -> {client, how manieth claim, units an object}. Partitions in turn.
// Life:       take() -> written, proposed -> placed() (its word is or may be in a slot) or give_back() (surely in none)
//             -> marked by whoever replaced its word -> seen in a scan of the marks -> hold + flight later free again. Who has replaced a word of its
//             own needs no mark.
// Marks:      written with retire(), by WRITE: the sequence of the allocation that is over, so that a mark that is repeated is harmless. (One that
//             is late may hide a newer one, until an audit. The paper adds bits by FAA, which cannot be repeated when its outcome is lost.) A block's marks are on its primary.
// Whose:      an owner word with the client's number is no proof that the block was empty: it may have taken it over from one that has gone
//             (Client::recover). Only what it has claimed itself, as nobody's, is given out without being looked through.
// Errors:     Given. Waits for memory that is about to be free, up to the deadline, before it says kNoSpace.
// Threads:    the client's.
// Source:     FUSEE (FAST 2023) §4.4.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "fusee/snapshot.h"

namespace sluice::fusee {

// A block that this client owns.
struct Block {
  enum class Use : std::uint8_t { kFree, kBusy, kPlaced, kWaiting };
  struct Item {
    std::uint64_t sequence = 0;  // kPlaced: 0 while it is not known what it is (recovery)
    Time since;                  // kPlaced
    Use use = Use::kFree;
  };
  Place at;
  BlockShape shape;
  std::vector<Item> items;
  std::uint32_t fresh = 0;  // items from here on were never used

  // Of some item nobody has looked yet what it is.
  bool unexamined() const {
    return std::ranges::any_of(items, [](const Item& item) { return item.use == Use::kPlaced && item.sequence == 0; });
  }
  Place object(std::uint32_t index) const { return at + (shape.first + std::uint64_t{index} * shape.units * kUnit); }
};

// Memory for one object.
struct Piece {
  Block* block = nullptr;
  std::uint32_t index = 0;
  std::uint64_t sequence = 0;

  Place place() const { return block->object(index); }
};

class Space {
 public:
  Space(Connection& connection, Snapshot& snapshot) : c_(connection), snapshot_(snapshot) {}

  enum class Given : std::uint8_t { kOk, kNoSpace, kUnavailable };
  // What for: something more; or instead of something else, which comes free for it. The last one of a size is not given for more, or else a store that
  // is full could be neither changed nor emptied. The last block of a partition is claimed only instead of something that is alive, when there is nothing
  // else (kLast), and then as much is kept as it has, or else who comes when others have all blocks could do neither.
  enum class Purpose : std::uint8_t { kMore, kInstead, kLast };
  remote::Task<Given> take(std::uint32_t units, Purpose purpose, Time deadline, Piece& piece);
  // So large at least, of what there is already.
  remote::Task<Given> take_any(std::uint32_t units, Purpose purpose, Time deadline, Piece& piece);
  void placed(const Piece& piece);
  void give_back(const Piece& piece);
  // The object's word was taken out of its slot. If it is of one of this client's blocks, it is free by that. False: it is to be marked.
  bool free_own(Word old, std::uint64_t sequence);
  // The same, of whomever: marks it. Its bytes are its own: call and forget.
  remote::Task<void> retire(Word old, std::uint64_t sequence);

  // For recovery: a block whose owner word is now this client's, though somebody else may have used it: of its items nothing is known. Null: it
  // is known already.
  Block* adopt_used(Place at, std::uint32_t units);
  void free_later(Block& block, std::uint32_t index);
  bool owns(Place block) const;
  // Where this client looks first, so that not all look in the same. REQUIRES: joined.
  std::uint32_t first_partition() const {
    const std::uint32_t partitions = c_.map.partitions();
    return ((c_.client - 1) / partitions + 1) % partitions;  // see Client::take_number
  }
  // Is this what the client itself has put, or tries to put, into the owner word of a block that was nobody's?
  bool claims_fresh(Owner owner) const;
  std::uint64_t next_claim() { return ++claims_; }
  std::span<const std::unique_ptr<Block>> blocks() const { return blocks_; }
  // Reads the marks of all blocks.
  remote::Task<bool> scan_all(Time deadline);

 private:
  struct Waiting {
    Block* block;
    std::uint32_t index;
    Time ready;
  };
  struct Pool {  // of one size
    std::deque<Waiting> waiting;
    std::vector<Block*> blocks;
    std::size_t unused = 0;  // blocks before this have no fresh items
    std::size_t cursor = 0;  // of the scan
    std::size_t fresh = 0;   // items that were never used
    std::size_t busy = 0;    // of operations under way
    std::size_t kept = 1;    // so many are not given for more
  };
  bool has(const Pool& pool, Purpose purpose) const {
    return pool.waiting.size() + pool.fresh > (purpose == Purpose::kMore ? pool.kept : 0);
  }
  bool cut(Pool& pool, Purpose purpose, Piece& piece);
  // All of the pool's.
  remote::Task<bool> scan_pool(Pool& pool, Time deadline);
  remote::Task<Given> refill(Pool& pool, std::uint32_t units, Purpose purpose, Time deadline);
  remote::Task<bool> scan(Block& block, Time deadline);
  // One of the blocks before `end`.
  remote::Task<Given> claim(std::uint32_t units, std::uint32_t end, Time deadline);
  remote::Task<Given> claim_in(std::uint32_t partition, std::uint32_t units, std::uint32_t end, Time deadline);
  Block& adopt(Place at, std::uint32_t units);
  void close_claim(Owner claim);

  Connection& c_;
  Snapshot& snapshot_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unordered_map<std::uint64_t, Block*> by_place_;  // never iterated
  std::map<std::uint32_t, Pool> pools_;                 // by units
  std::vector<std::uint32_t> hints_;                    // by partition: blocks before this are taken
  std::vector<std::uint8_t> marks_;
  std::uint32_t turn_ = 0;
  std::uint64_t claims_ = 0;
  std::vector<Owner> open_claims_;  // of blocks that were nobody's: under way, or of unknown outcome
  std::uint64_t sequences_ = 0;
  bool filling_ = false;
};

}  // namespace sluice::fusee
