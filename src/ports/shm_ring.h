// One direction of a shared-memory cable: a byte ring with one writer and one reader, each in its own process.
//
// Layout:     the ring's bytes are mapped twice in a row, so every record is contiguous whatever its place. A record is
//             an 8-byte header (frame length, zero) and the frame, rounded up to kRecordAlign. tail and head count bytes
//             since the start and never wrap; each has cache lines of its own.
// Life:       writer: reserve -> commit ... -> publish once a burst.   reader: receive -> frames -> the next receive.
// Invariant:  head <= tail <= head + size; only the writer moves tail, only the reader head, each only forward.
// Trust:      nothing in shared memory is believed. Either side keeps its own index to itself, checks the other's before
//             each use, and reads a record's length once; whatever a mad peer stores there, no access leaves the mapping.
//             Contents of a frame may still change while it is read: parsers must load a field once.
// Waking:     the reader stores `armed` and then looks at tail; the writer stores tail and then looks at `armed`. Both with
//             sequential consistency, so at least one sees the other and no wake-up is lost.
// Errors:     broken() once the peer's index or a record was impossible; from then on nothing is read or reserved.
// Threads:    one writer, one reader.
// Source:     DESIGN §3 "Port"; the double mapping is the classic "magic ring buffer".
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "port/port.h"

namespace sluice::ports {

// What the two sides share besides the bytes. Two cache lines each: the prefetcher fetches neighbours in pairs.
struct RingControl {
  alignas(128) std::atomic<std::uint64_t> tail{0};   // the writer's: bytes published
  alignas(128) std::atomic<std::uint64_t> head{0};   // the reader's: bytes given back
  alignas(128) std::atomic<std::uint32_t> armed{0};  // 1: the reader sleeps and wants to be woken
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

inline constexpr std::size_t kRecordHeader = 8;
inline constexpr std::size_t kRecordAlign = 64;

// Bytes that a frame takes in the ring.
constexpr std::size_t record_size(std::size_t frame) {
  return (kRecordHeader + frame + kRecordAlign - 1) / kRecordAlign * kRecordAlign;
}

class RingWriter {
 public:
  RingWriter() = default;
  // REQUIRES: `bytes` is mapped for 2 * size, the second half the same memory as the first; size a power of two.
  RingWriter(RingControl* control, std::uint8_t* bytes, std::size_t size)
      : control_(control), bytes_(bytes), size_(size) {}

  // Room for a frame in place, or nullptr when the ring is full (or broken, or there is none).
  std::uint8_t* reserve(std::size_t length);
  // REQUIRES: length <= the length of the last reserve, which was not refused.
  void commit(std::size_t length);
  // Shows all commits to the reader. True: the reader sleeps and it is on the caller to wake it.
  bool publish();

  bool broken() const { return broken_; }

 private:
  bool look_at_head(std::size_t needed);

  RingControl* control_ = nullptr;
  std::uint8_t* bytes_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t committed_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t head_seen_ = 0;
  bool broken_ = false;
};

class RingReader {
 public:
  RingReader() = default;
  // REQUIRES: as for RingWriter.
  RingReader(RingControl* control, std::uint8_t* bytes, std::size_t size)
      : control_(control), bytes_(bytes), size_(size) {}

  // Gives back the frames of the call before, fills `burst` from its start, returns how many.
  std::size_t receive(std::span<port::Frame> burst);
  // Asks the writer to wake the reader. False: there is something to receive already, and nothing was asked.
  bool arm();
  void disarm();

  bool broken() const { return broken_; }

 private:
  void look_at_tail();

  RingControl* control_ = nullptr;
  std::uint8_t* bytes_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t position_ = 0;  // the next record
  std::uint64_t released_ = 0;  // what head says
  std::uint64_t tail_seen_ = 0;
  bool broken_ = false;
};

// The hot path, inline ------------------------------------------------------------------------------------------------

inline std::uint8_t* RingWriter::reserve(std::size_t length) {
  const std::size_t needed = record_size(length);
  if (committed_ + needed - head_seen_ > size_ && !look_at_head(needed)) return nullptr;
  return bytes_ + (committed_ & (size_ - 1)) + kRecordHeader;
}

inline void RingWriter::commit(std::size_t length) {
  store_le<std::uint64_t>(bytes_ + (committed_ & (size_ - 1)), length);
  committed_ += record_size(length);
}

inline bool RingWriter::publish() {
  if (published_ == committed_) return false;
  published_ = committed_;
  control_->tail.store(committed_, std::memory_order_seq_cst);
  return control_->armed.load(std::memory_order_seq_cst) != 0 &&
         control_->armed.exchange(0, std::memory_order_seq_cst) != 0;
}

inline std::size_t RingReader::receive(std::span<port::Frame> burst) {
  if (released_ != position_) {
    released_ = position_;
    control_->head.store(position_, std::memory_order_release);
  }
  if (position_ == tail_seen_) {
    look_at_tail();
    if (position_ == tail_seen_) return 0;
  }
  std::size_t count = 0;
  while (count < burst.size() && position_ != tail_seen_) {
    std::uint8_t* record = bytes_ + (position_ & (size_ - 1));
    const std::uint64_t length = __atomic_load_n(reinterpret_cast<std::uint64_t*>(record), __ATOMIC_RELAXED);
    if (length == 0 || length > port::kMaxFrame || record_size(length) > tail_seen_ - position_) {
      broken_ = true;
      tail_seen_ = position_;
      break;
    }
    burst[count++] = {record + kRecordHeader, static_cast<std::uint32_t>(length)};
    position_ += record_size(length);
  }
  return count;
}

}  // namespace sluice::ports
