// Intra-frame preemption: frames' blocks and memory's on one link, and apart again behind it.
//
// Sending:    TransmitMultiplexer picks the next 66 bits. Any of memory's blocks go into idle ones where there are any, and between the blocks of a
//             frame where there are not; a message /MS/ … /MT/ is not broken up by frames, for its data blocks look like theirs. What
//             the MAC sends meanwhile waits in four blocks, then the MAC is told to wait.
// Receiving:  ReceiveSeparator takes memory's blocks out. A frame's are kept until its /T/ and then given to the decoder back to back, idle blocks
//             where memory's had been: a legal stream, one block for one block.
// Fair:       after so many of memory's blocks, as many of a frame's that waited; a message counts when it is over, and none begins before, not in
//             the gap between two frames either. Where frames do not wait, nothing is owed to them. kMemoryFirst: never.
// Invariant:  frames come out as they went in, in order; so does what goes along a circuit, data and NULL. /N/, /G/ and requests of one block go first, in
//             order among themselves: also inside a message.
// Errors:     what breaks off a message, a frame longer than the buffer: counted; the stream behind stays legal.
// Threads:    one owner each; no allocation after construction.
// Source:     EDM §3.2, §3.2.3.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "edm/memory_blocks.h"
#include "edm/pcs.h"

namespace sluice::edm {

// Blocks in order, as many as there were set out to be.
class BlockQueue {
 public:
  explicit BlockQueue(std::size_t capacity) : blocks_(capacity) {}
  std::size_t size() const { return size_; }
  std::size_t room() const { return blocks_.size() - size_; }
  bool empty() const { return size_ == 0; }
  const Block& front() const { return blocks_[head_]; }
  void push(const Block& block) { blocks_[(head_ + size_++) % blocks_.size()] = block; }
  Block pop() {
    const Block out = blocks_[head_];
    head_ = (head_ + 1) % blocks_.size();
    --size_;
    return out;
  }
  void drop_newest(std::size_t count) { size_ -= count; }

 private:
  std::vector<Block> blocks_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

class TransmitMultiplexer {
 public:
  enum class Policy : std::uint8_t { kFair, kMemoryFirst };
  // A neighbour without EDM is sent none of its blocks.
  enum class Neighbour : std::uint8_t { kEdm, kPlain };
  static constexpr std::size_t kFrameBlocks = 4;
  static constexpr std::size_t kMemoryBlocks = 2 * kMaxUnitBlocks;
  static constexpr std::size_t kSingles = 64;

  TransmitMultiplexer(Policy policy, Neighbour neighbour);

  // Back-pressure: no block may be offered while this says no.
  bool frame_has_room() const { return frame_.room() != 0; }
  void offer_frame(const Block& block);
  // False, and nothing is taken: no room, or a plain neighbour.
  bool offer(const Unit& unit);
  // A block of memory that passes through a switch, in the order in which it came. Once a message has begun, its blocks must come as fast as they are
  // taken: see starved().
  bool offer(const Block& block);
  // Inside a message whose next block is not here: what next() gave now would break it.
  bool starved() const { return in_message_ && memory_.empty() && singles_.empty(); }

  Block next();
  std::size_t frame_waiting() const { return frame_.size(); }
  std::size_t memory_waiting() const { return memory_.size() + singles_.size(); }

 private:
  Block next_of_frame();
  Block pop_frame();
  Block next_of_memory();

  Policy policy_;
  Neighbour neighbour_;
  BlockQueue frame_{kFrameBlocks};
  BlockQueue memory_{kMemoryBlocks};
  BlockQueue singles_{kSingles};
  std::vector<Block> unit_;  // while one is written
  bool in_message_ = false;
  std::size_t message_sent_ = 0;
  std::size_t frames_wait_ = 0;  // blocks that are not idle, among frame_
  std::size_t owed_ = 0;         // to frames
};

class ReceiveSeparator {
 public:
  struct Counters {
    std::uint64_t broken_messages = 0;  // by a block that is none of theirs
    std::uint64_t frames_too_long = 0;
  };

  explicit ReceiveSeparator(std::size_t most_frame_blocks = 1'200);  // 9,000 bytes and some

  // A block from the line. True: it is memory's, to be given to a UnitReader. False: no message goes on behind it, so a UnitReader is reset(); or the end of
  // one message might be taken for that of another, whose own has not come.
  bool receive(const Block& block);
  // The block for the decoder, once for each that was received.
  Block next();
  std::size_t waiting() const { return queue_.size(); }
  const Counters& counters() const { return counters_; }

 private:
  void keep(const Block& block);

  BlockQueue queue_;
  std::size_t open_ = 0;  // blocks at the end of the queue of a frame that is not over
  bool in_frame_ = false;
  bool skipping_ = false;  // the rest of a frame that was too long
  bool in_message_ = false;
  Counters counters_;
};

}  // namespace sluice::edm
