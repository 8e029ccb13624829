// Memory for tree nodes, and for long values: chunks of the memory nodes' heaps, claimed one-sided, cut up by the client that claimed them.
//
// Claim:      CAS of the chunk's owner word, 0 -> {client, size of its pieces, how manieth}; an unknown outcome is waited out and read. Chunks are
//             claimed on the memory nodes in turn, beginning with the client's own.
// Owner:      a piece belongs to the owner of its chunk for ever: nobody else writes it, or gives it out. Who replaces an entry that names another's
//             block marks the block (values.h); its owner collects what is marked before it claims a chunk more.
// In hand:    operations under way have something to say of a piece: the one that took it, and whoever is about to replace an entry that names it. It
//             changes hands, and can be given out again, when the last of them has said it. A local lock would not do: another client can split the
//             leaf meanwhile, and then there are two locks.
// Recovery:   the chunks of a client that has died are taken over whole, by CAS of their owner words (Client::recover).
// Threads:    the client's.
// Source:     Sherman (SIGMOD 2022) §4.2.4: two-stage allocation; its first stage is a call to the memory node's processor, ours is a CAS. Owners
//             that collect what others free: FUSEE (FAST 2023) §4.4.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "sherman/connection.h"

namespace sluice::sherman {

class Space {
 public:
  // Of blocks of so many bytes; 0: of tree nodes.
  explicit Space(Connection& connection, std::uint32_t block_bytes = 0) : c_(connection), block_bytes_(block_bytes) {}
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  // Of what is said of a piece in hand, the first of these holds in the end.
  enum class Use : std::uint8_t {
    kFree,
    kDoubtful,  // the tree may lead to it
    kPlaced,    // the tree leads to it; to a block, until somebody replaces its entry
    kInHand,    // of operations under way
  };
  struct Chunk {
    NodePointer start;
    std::vector<Use> uses;  // of its pieces
  };

  enum class Given : std::uint8_t { kOk, kNoSpace, kUnavailable };
  // The piece is in hand.
  remote::Task<Given> take(Time deadline, NodePointer& piece);
  // So is one to which the tree has just been seen to lead, by one operation more. False: that cannot be, it is free. REQUIRES: owns(piece), as do
  // the next three, each of which says something of a piece, for one of those in whose hand it is, if it is.
  bool hold(NodePointer piece);
  // Surely nobody can reach it; it is used again when nothing is under way to it any more.
  void give_back(NodePointer piece) { settle(piece, Use::kFree); }
  void place(NodePointer piece) { settle(piece, Use::kPlaced); }
  void doubt(NodePointer piece) { settle(piece, Use::kDoubtful); }
  bool owns(NodePointer piece) const { return chunk_of(piece) != nullptr; }

  // A chunk whose owner word is this client's now, and of whose pieces nothing is known. Nothing happens if it is known.
  void adopt(NodePointer chunk);
  // Pieces that can be given out, now or soon; as many as are kFree.
  std::size_t to_give_out() const { return returned_.size() + left_; }
  std::uint32_t piece_bytes() const { return block_bytes_ != 0 ? block_bytes_ : c_.geometry.node_bytes; }
  // By where they start. Chunks are added while something is awaited, and none ever goes.
  const std::map<std::uint64_t, Chunk>& chunks() const { return chunks_; }
  NodePointer piece(const Chunk& chunk, std::size_t index) const {
    return NodePointer::at(chunk.start.node(), chunk.start.offset() + index * piece_bytes());
  }

  // Notes which pieces of a chunk change hands while something is awaited: what was found out about those is old.
  class Watch {
   public:
    Watch(const Space& space, const Chunk& chunk) : all_(space.watches_), chunk_(&chunk), touched_(chunk.uses.size()) {
      all_->push_back(this);
    }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    ~Watch() { std::erase(*all_, this); }
    bool touched(std::size_t index) const { return touched_[index]; }

   private:
    friend class Space;
    std::shared_ptr<std::vector<Watch*>> all_;  // the client may go first (client.h)
    const Chunk* chunk_;
    std::vector<bool> touched_;
  };
  // Reads the first `bytes` of each piece of which `wanted` says so (any byte but 0), and puts them one behind the other, of all pieces. False:
  // not all before the deadline.
  remote::Task<bool> read_heads(const Chunk& chunk, const std::vector<std::uint8_t>& wanted, std::uint32_t bytes,
                                Time deadline, std::vector<std::uint8_t>& heads);

 private:
  remote::Task<Given> claim(Time deadline);
  remote::Task<Given> claim_on(std::uint32_t node, Time deadline);
  bool add(NodePointer start, Use use);
  bool cut(NodePointer& piece);
  // From the chunks whose turn it is, until there is enough.
  remote::Task<void> collect_some(Time deadline);
  // Returns how many of its pieces were marked: they are free again.
  remote::Task<std::size_t> collect(const Chunk& chunk, Time deadline);
  const Chunk* chunk_of(NodePointer piece) const;
  void settle(NodePointer piece, Use use);
  void set(NodePointer piece, Use use);
  Use use_of(NodePointer piece) const;

  struct Returned {
    NodePointer piece;
    Time from;
  };
  struct Hand {
    std::uint32_t operations = 0;
    Use said = Use::kPlaced;
  };
  Connection& c_;
  std::uint32_t block_bytes_;
  std::map<std::uint64_t, Chunk> chunks_;
  NodePointer next_;  // the rest of the chunk in hand
  std::uint32_t left_ = 0;
  std::map<std::uint64_t, Hand> in_hand_;  // by piece
  std::deque<Returned> returned_;
  std::uint64_t collected_ = 0;       // the chunk that was looked through last
  std::vector<std::uint32_t> hints_;  // by memory node: chunks before this are taken
  std::uint32_t turn_ = 0;
  bool claiming_ = false;
  std::shared_ptr<std::vector<Watch*>> watches_ = std::make_shared<std::vector<Watch*>>();
};

}  // namespace sluice::sherman
