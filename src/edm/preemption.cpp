#include "edm/preemption.h"

#include <utility>

#include "base/check.h"

namespace sluice::edm {
namespace {

bool is_type(const Block& block, MemoryBlock type) {
  return block.is_control() && block.type() == static_cast<std::uint8_t>(type);
}

// What may go first. A NULL may not: it is an answer, and goes along a circuit as others do.
bool overtakes(const Block& block) {
  const bool single = block.is_control() && !is_type(block, MemoryBlock::kStart) && !is_type(block, MemoryBlock::kEnd);
  return single && !goes_through(block);
}

}  // namespace

TransmitMultiplexer::TransmitMultiplexer(Policy policy, Neighbour neighbour)
    : policy_(policy), neighbour_(neighbour), unit_(kMaxUnitBlocks) {}

void TransmitMultiplexer::offer_frame(const Block& block) {
  SLUICE_CHECK(frame_has_room());
  frame_.push(block);
  if (block != kIdleBlock) ++frames_wait_;
}

bool TransmitMultiplexer::offer(const Unit& unit) {
  if (neighbour_ == Neighbour::kPlain) return false;
  const std::size_t blocks = unit_blocks(unit);
  write_unit(unit, unit_);
  BlockQueue& queue = overtakes(unit_[0]) ? singles_ : memory_;
  if (queue.room() < blocks) return false;
  for (std::size_t i = 0; i < blocks; ++i) queue.push(unit_[i]);
  return true;
}

bool TransmitMultiplexer::offer(const Block& block) {
  if (neighbour_ == Neighbour::kPlain) return false;
  BlockQueue& queue = overtakes(block) ? singles_ : memory_;
  if (queue.room() == 0) return false;
  queue.push(block);
  return true;
}

Block TransmitMultiplexer::next() {
  const bool memory = !singles_.empty() || !memory_.empty();
  if (!memory) return next_of_frame();
  const bool frame_turn = !in_message_ && owed_ != 0 && frames_wait_ != 0;
  const bool idle = !frame_.empty() && frame_.front() == kIdleBlock;
  // Idle blocks are there to be used, but a message begun in front of a frame whose turn it is would take more than its place.
  const bool uses_idle = idle && (!frame_turn || !singles_.empty());
  if (frame_turn && !uses_idle) return next_of_frame();
  if (uses_idle) pop_frame();
  return next_of_memory();
}

Block TransmitMultiplexer::pop_frame() {
  const Block out = frame_.pop();
  if (out != kIdleBlock) --frames_wait_;
  return out;
}

Block TransmitMultiplexer::next_of_frame() {
  if (frame_.empty()) {
    owed_ = 0;
    return kIdleBlock;
  }
  if (owed_ != 0) --owed_;
  return pop_frame();
}

Block TransmitMultiplexer::next_of_memory() {
  std::size_t over = 0;
  Block out;
  if (!singles_.empty()) {
    out = singles_.pop();
    over = in_message_ ? 0 : 1;
    message_sent_ += in_message_ ? 1 : 0;
  } else {
    out = memory_.pop();
    if (!is_type(out, MemoryBlock::kSingle)) in_message_ = !is_type(out, MemoryBlock::kEnd);
    ++message_sent_;
    if (!in_message_) over = std::exchange(message_sent_, 0);
  }
  if (policy_ == Policy::kFair) owed_ = frames_wait_ == 0 ? 0 : owed_ + over;
  return out;
}

ReceiveSeparator::ReceiveSeparator(std::size_t most_frame_blocks) : queue_(most_frame_blocks + 2) {}

bool ReceiveSeparator::receive(const Block& block) {
  if (in_message_ && (block.is_data() || is_type(block, MemoryBlock::kEnd))) {
    in_message_ = block.is_data();
    return true;
  }
  if (is_memory_control(block)) {
    if (is_type(block, MemoryBlock::kStart)) in_message_ = true;
    return true;
  }
  if (in_message_) {
    in_message_ = false;
    ++counters_.broken_messages;
  }
  keep(block);
  return false;
}

void ReceiveSeparator::keep(const Block& block) {
  const BlockClass what = class_of(block);
  if (skipping_) {
    skipping_ = what == BlockClass::kData;
    if (what != BlockClass::kStart) return;
  }
  if (queue_.room() == 0) {
    // Only an open frame can fill the queue: it is dropped, and with it whatever was wrong with it.
    ++counters_.frames_too_long;
    queue_.drop_newest(open_);
    open_ = 0;
    in_frame_ = false;
    skipping_ = what == BlockClass::kData;
    if (skipping_ || queue_.room() == 0) return;
  }
  queue_.push(block);
  if (what == BlockClass::kStart) {
    in_frame_ = true;
    open_ = 1;
  } else if (in_frame_ && what == BlockClass::kData) {
    ++open_;
  } else {
    in_frame_ = false;
    open_ = 0;
  }
}

Block ReceiveSeparator::next() { return queue_.size() > open_ ? queue_.pop() : kIdleBlock; }

}  // namespace sluice::edm
