// One direction of a shared-memory cable: a byte ring with one writer and one reader, each in its own process.
//
// Layout:     the ring's bytes are mapped twice in a row, so every record is contiguous whatever its place. A record is an
//             8-byte header and the frame, rounded up to kRecordAlign. The header says in one word how long the frame is
//             and where the record begins (bytes since the start, which never wrap); zero: nothing is there yet. So the
//             line that tells the reader of a frame is the one that holds its first 56 bytes.
// Life:       writer: reserve -> commit ... -> publish (or discard) once a burst.   reader: receive -> frames -> the next receive.
// Invariant:  the header behind the last published record is zero; it is cleared before the records in front of it are
//             shown, by storing the header of the first of them last. head <= published <= head + size - kRecordAlign.
// Trust:      nothing in shared memory is believed. Either side keeps its own index to itself; the reader takes a header only
//             once and only if it is exactly right for its place, the writer takes a head only if it moved forward and
//             not beyond what was published. Whatever a mad peer stores there, no access leaves the mapping. The bytes of a
//             frame may still change while it is read: parsers must load a field once.
// Waking:     the reader stores `armed` and then looks at the header; the writer stores the header and then looks at `armed`.
//             Both with sequential consistency, so at least one sees the other and no wake-up is lost.
// Errors:     broken() once the peer's index or a header was impossible; from then on nothing is read or reserved.
// Threads:    one writer, one reader.
// Source:     port/port.h; the double mapping is the classic "magic ring buffer".
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "port/port.h"

namespace sluice::ports {

// What the two sides share besides the bytes. Two cache lines each: the prefetcher fetches neighbours in pairs.
struct RingControl {
  alignas(128) std::atomic<std::uint64_t> head{0};   // the reader's: bytes given back since the start
  alignas(128) std::atomic<std::uint32_t> armed{0};  // 1: the reader sleeps and wants to be woken
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

inline constexpr std::size_t kRecordHeader = 8;
inline constexpr std::size_t kRecordAlign = 64;

// Bytes that a frame takes in the ring.
constexpr std::size_t record_size(std::size_t frame) {
  return (kRecordHeader + frame + kRecordAlign - 1) / kRecordAlign * kRecordAlign;
}

// The header of the record that begins at byte `position`: never zero.
constexpr std::uint64_t record_header(std::uint64_t position, std::size_t frame) {
  return position / kRecordAlign << 16 | frame;
}

class RingWriter {
 public:
  RingWriter() = default;
  // REQUIRES: `bytes` is zero, and mapped for 2 * size, the second half the same memory as the first; size a power of two.
  RingWriter(RingControl* control, std::uint8_t* bytes, std::size_t size)
      : control_(control), bytes_(bytes), size_(size) {}

  // Room for a frame in place, or nullptr when the ring is full (or broken, or there is none).
  std::uint8_t* reserve(std::size_t length);
  // REQUIRES: 0 < length <= the length of the last reserve, which was not refused.
  void commit(std::size_t length);
  // Shows all commits to the reader. True: the reader sleeps and it is on the caller to wake it.
  bool publish();
  // Forgets all commits that have not been shown.
  void discard();

  bool broken() const { return broken_; }

 private:
  std::uint64_t* header_at(std::uint64_t position) const {
    return reinterpret_cast<std::uint64_t*>(bytes_ + (position & (size_ - 1)));
  }
  bool look_at_head(std::size_t needed);
  void own_next();

  RingControl* control_ = nullptr;
  std::uint8_t* bytes_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t committed_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t first_header_ = 0;  // of the record at published_, not shown yet
  std::uint64_t head_seen_ = 0;
  std::uint64_t owned_ = 0;  // lines up to here have been stored to already
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
  std::uint64_t load_header(int order) const;

  RingControl* control_ = nullptr;
  std::uint8_t* bytes_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t position_ = 0;  // the next record
  std::uint64_t released_ = 0;  // what head says
  bool broken_ = false;
};

// The hot path, inline ------------------------------------------------------------------------------------------------

inline std::uint8_t* RingWriter::reserve(std::size_t length) {
  // One header more: the end of what will be published.
  const std::size_t needed = record_size(length) + kRecordAlign;
  if (committed_ + needed - head_seen_ > size_ && !look_at_head(needed)) return nullptr;
  return bytes_ + (committed_ & (size_ - 1)) + kRecordHeader;
}

inline void RingWriter::commit(std::size_t length) {
  const std::uint64_t header = record_header(committed_, length);
  if (committed_ == published_) {
    first_header_ = header;
  } else {
    *header_at(committed_) = header;
  }
  committed_ += record_size(length);
  if (committed_ >= owned_) own_next();
}

// The reader has read these lines a lap ago. A store waits until its line is this core's, and all later stores wait behind it: so many lines
// are asked for at once, one behind the other. (prefetchw of a line that is shared does nothing on AMD's processors.)
inline void RingWriter::own_next() {
  constexpr std::uint64_t kOwned = 8 * kRecordAlign;
  owned_ = committed_ + kOwned;
  if (owned_ - head_seen_ > size_) return;
  for (std::uint64_t at = committed_ + kRecordAlign; at < owned_; at += kRecordAlign) *header_at(at) = 0;
}

inline bool RingWriter::publish() {
  if (published_ == committed_) return false;
  __atomic_store_n(header_at(committed_), std::uint64_t{0}, __ATOMIC_RELAXED);
  __atomic_store_n(header_at(published_), first_header_, __ATOMIC_SEQ_CST);
  published_ = committed_;
  return control_->armed.load(std::memory_order_seq_cst) != 0 &&
         control_->armed.exchange(0, std::memory_order_seq_cst) != 0;
}

inline std::uint64_t RingReader::load_header(int order) const {
  const auto* header = reinterpret_cast<const std::uint64_t*>(bytes_ + (position_ & (size_ - 1)));
  return __atomic_load_n(header, order);
}

inline std::size_t RingReader::receive(std::span<port::Frame> burst) {
  if (released_ != position_) {
    released_ = position_;
    control_->head.store(position_, std::memory_order_release);
  }
  if (control_ == nullptr || broken_) return 0;
  std::size_t count = 0;
  while (count < burst.size()) {
    const std::uint64_t header = load_header(__ATOMIC_ACQUIRE);
    if (header == 0) break;
    const std::uint64_t length = header & 0xFFFF;
    if (header != record_header(position_, length) || length == 0 || length > port::kMaxFrame) {
      broken_ = true;
      break;
    }
    burst[count++] = {bytes_ + (position_ & (size_ - 1)) + kRecordHeader, static_cast<std::uint32_t>(length)};
    position_ += record_size(length);
  }
  return count;
}

}  // namespace sluice::ports
