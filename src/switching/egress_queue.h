// Frames that wait because the port they leave through has no room: bounded, first in first out.
//
// Invariant:  bytes() <= capacity; frames leave in the order they came.
// Limits:     the buffer is made at the first frame and kept; most ports never need one.
// Threads:    one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "port/port.h"

namespace sluice::switching {

class EgressQueue {
 public:
  // REQUIRES: capacity >= 2 * port::kMaxFrame.
  explicit EgressQueue(std::size_t capacity);

  // Copies the frame in and returns the copy, or an empty range when it does not fit.
  MutableBytes push(ByteView frame);
  // Moves frames to `sink` until it refuses or none is left; calls sent(length) for each.
  template <class Sent>
  void drain(port::FrameSink& sink, Sent&& sent);

  bool empty() const { return frames_ == 0; }
  std::size_t frames() const { return frames_; }
  std::size_t bytes() const { return used_; }

 private:
  static constexpr std::size_t kHeader = 4;  // the frame's length; kWrap: the next record is at the start
  static constexpr std::uint32_t kWrap = ~0u;
  static std::size_t record_size(std::size_t length) { return kHeader + (length + 3) / 4 * 4; }
  ByteView front();
  void pop();

  std::size_t capacity_;
  std::unique_ptr<std::uint8_t[]> buffer_;
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
  std::size_t used_ = 0;  // bytes between head and tail, wrapped-over space included
  std::size_t frames_ = 0;
};

template <class Sent>
void EgressQueue::drain(port::FrameSink& sink, Sent&& sent) {
  while (!empty()) {
    const ByteView frame = front();
    std::uint8_t* const room = port::reserve_at_once(sink, frame.size());
    if (room == nullptr) return;
    std::memcpy(room, frame.data(), frame.size());
    sink.commit(frame.size());
    sent(frame.size());
    pop();
  }
}

}  // namespace sluice::switching
