#include "ports/shm_ring.h"

namespace sluice::ports {

bool RingWriter::look_at_head(std::size_t needed) {
  if (control_ == nullptr || broken_) return false;
  const std::uint64_t head = control_->head.load(std::memory_order_acquire);
  // The reader gives back only what was published, and never takes back what it gave.
  if (published_ - head > published_ - head_seen_) {
    broken_ = true;
    head_seen_ = committed_ - size_;  // full for ever
    return false;
  }
  head_seen_ = head;
  return committed_ + needed - head_seen_ <= size_;
}

// The header at published_ is still zero; those behind it are stored anew before anybody is shown the way to them.
void RingWriter::discard() {
  committed_ = published_;
  if (broken_) head_seen_ = committed_ - size_;
}

bool RingReader::arm() {
  if (control_ == nullptr || broken_) return true;
  control_->armed.store(1, std::memory_order_seq_cst);
  if (load_header(__ATOMIC_SEQ_CST) == 0) return true;
  disarm();
  return false;
}

void RingReader::disarm() {
  if (control_ != nullptr) control_->armed.store(0, std::memory_order_seq_cst);
}

}  // namespace sluice::ports
