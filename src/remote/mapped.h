// The `mapped` backend: memory that other processes of this machine share with us, reached by load and store.
//
// Life:       add() ranges -> operations complete within submit() -> clear().
// Order:      operations take effect in the order of submission. Of a write, aligned words of 8 bytes (before and behind them
//             of 4) are stored one after the other in the order of their addresses and never torn; of a read likewise.
// Errors:     kAccessDenied outside of what was added, kMisaligned.
// Threads:    one owner; the memory itself may be touched by anybody at any time.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/prefetch.h"
#include "remote/remote_memory.h"

namespace sluice::remote {

class MappedMemory final : public RemoteMemory {
 public:
  explicit MappedMemory(Scheduler& scheduler) : RemoteMemory(scheduler) {}

  // The bytes are known from now on as those from `start` on. They must stay until clear(), or outlive this object.
  void add(RemoteAddress start, MutableBytes bytes) {
    ranges_.push_back({start, bytes});
    ++generation_;
  }
  // Nothing is known any more.
  void clear() {
    ranges_.clear();
    ++generation_;
  }
  // Another number after each change of the ranges.
  std::uint64_t generation() const { return generation_; }

  Capabilities capabilities() const override {
    return {.atomics = true, .ordered = true, .max_length = 1u << 30, .name = "mapped"};
  }
  void submit(Operation& operation) override;
  MappedMemory* mapped() override { return this; }

  // The same without an Operation, for whoever knows that it is this backend; not counted in traffic().
  Status read_now(RemoteAddress from, MutableBytes into);
  Status write_now(RemoteAddress to, ByteView bytes);
  // Where the bytes are, to be asked for by prefetch_bytes() and copied as what others write meanwhile (memory/access.h). Null: not all of it is inside a range.
  // Right as long as generation() stays.
  const std::uint8_t* place_of(const RemoteAddress& at, std::size_t length) const { return find(at, length); }

 private:
  struct Range {
    RemoteAddress start;
    MutableBytes bytes;
  };
  Status execute(Operation& operation) const;
  // Null: not all of it is inside a range.
  std::uint8_t* find(const RemoteAddress& at, std::size_t length) const;

  std::vector<Range> ranges_;
  std::uint64_t generation_ = 0;
};

// Asks for the lines of a read that comes soon.
inline void prefetch_bytes(const std::uint8_t* from, std::size_t length) {
  constexpr std::size_t kLine = 64;
  const std::uint8_t* const end = from + length;
  for (const std::uint8_t* line = from - reinterpret_cast<std::uintptr_t>(from) % kLine; line < end; line += kLine)
    prefetch(line);
}

}  // namespace sluice::remote
