// A "mega" message: several writes of one pair that ask for bandwidth by one /N/, and are granted as one message.
//
// Layout:   what is asked for is a line of bytes, of which each grant is for the next chunk. In it stand the writes' data, each from a whole block on, and
//           before each but the first of a chunk the room that its own framing takes on the wire (a chunk's first has that from the scheduler). A
//           write that would find room for its framing alone begins with the next chunk. One that lies in two chunks is sent in two pieces.
// So:       a chunk's pieces, each with its framing, are as long on the wire as the scheduler takes the ports for, or shorter.
// Invariant: every byte of each write is in one piece; pieces come in the order of the writes; each granted chunk has one at least.
// Source:   EDM §3.1.2: "senders may also batch several small active messages between a source–destination pair into one "mega" message and
//           send 1 notification"; how they stand in it is ours.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace sluice::edm {

struct MegaLayout {
  std::uint32_t chunk_bytes = 256;
  std::uint32_t framing_blocks = 3;
};

class MegaMessage {
 public:
  explicit MegaMessage(const MegaLayout& layout) : layout_(layout) {}

  // What would have to be asked for with a write of that many bytes more.
  std::uint32_t bytes_with(std::uint32_t bytes) const { return next_start() + bytes; }
  // REQUIRES: bytes > 0; nothing has been granted yet.
  void add(std::uint32_t bytes) {
    SLUICE_CHECK(bytes > 0 && granted_ == 0);
    const std::uint32_t start = next_start();
    writes_.push_back({start, bytes});
    asked_ = start + bytes;
  }
  std::uint32_t bytes() const { return asked_; }
  std::size_t writes() const { return writes_.size(); }
  bool all_granted() const { return granted_ == asked_; }

  struct Piece {
    std::size_t write = 0;   // in the order of add()
    std::uint32_t from = 0;  // its first byte, of the write's
    std::uint32_t bytes = 0;
    std::uint32_t block = 0;   // where it begins on the wire, counted from the chunk's first block
    std::uint32_t blocks = 0;  // on the wire
    bool last_of_write = false;
    bool last_of_chunk = false;
  };
  // What to send for the next grant, in order: a chunk's, or of what is left. Another length than the scheduler's has fewer promises: it may be nothing.
  void grant(std::uint32_t bytes, std::vector<Piece>& out) {
    const std::uint32_t end = granted_ + std::min(bytes, asked_ - granted_);
    out.clear();
    for (; next_ < writes_.size() && writes_[next_].start < end; ++next_) {
      const Write& w = writes_[next_];
      const std::uint32_t begins = std::max(w.start, granted_);
      const std::uint32_t ends = std::min(w.start + w.bytes, end);
      const std::uint32_t at = (begins - granted_) / 8;
      out.push_back({.write = next_,
                     .from = begins - w.start,
                     .bytes = ends - begins,
                     .block = out.empty() ? 0 : at,
                     .blocks = layout_.framing_blocks + (ends - begins + 7) / 8,
                     .last_of_write = ends == w.start + w.bytes});
      if (!out.back().last_of_write) break;
    }
    if (!out.empty()) out.back().last_of_chunk = true;
    granted_ = end;
  }

 private:
  struct Write {
    std::uint32_t start = 0;  // of its data
    std::uint32_t bytes = 0;
  };
  std::uint32_t next_start() const {
    const std::uint32_t end = (asked_ + 7) / 8 * 8;
    const std::uint32_t used = end % layout_.chunk_bytes;
    if (used == 0) return end;  // the first of all, or of a chunk
    const std::uint32_t framing = layout_.framing_blocks * 8;
    return used + framing < layout_.chunk_bytes ? end + framing : end - used + layout_.chunk_bytes;
  }

  MegaLayout layout_;
  std::vector<Write> writes_;
  std::size_t next_ = 0;
  std::uint32_t asked_ = 0;
  std::uint32_t granted_ = 0;
};

}  // namespace sluice::edm
