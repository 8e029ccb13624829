// The `mapped` backend: memory that other processes of this machine share with us, reached by load and store.
//
// Life:       add() ranges -> operations complete within submit().
// Order:      operations take effect in the order of submission. Of a write, aligned words of 8 bytes are stored one after the other in the
//             order of their addresses and never torn; of a read likewise.
// Errors:     kAccessDenied outside of what was added, kMisaligned.
// Threads:    one owner; the memory itself may be touched by anybody at any time.
#pragma once

#include <vector>

#include "remote/remote_memory.h"

namespace sluice::remote {

class MappedMemory final : public RemoteMemory {
 public:
  explicit MappedMemory(Scheduler& scheduler) : RemoteMemory(scheduler) {}

  // The bytes are known from now on as those from `start` on. They must outlive this object.
  void add(RemoteAddress start, MutableBytes bytes) { ranges_.push_back({start, bytes}); }

  Capabilities capabilities() const override {
    return {.atomics = true, .ordered = true, .max_length = 1u << 30, .name = "mapped"};
  }
  void submit(Operation& operation) override;

  // The same without an Operation, for whoever knows that it is this backend; not counted in traffic().
  Status read_now(RemoteAddress from, MutableBytes into);
  Status write_now(RemoteAddress to, ByteView bytes);
  // Asks for the lines of a read that comes soon.
  void prefetch(RemoteAddress from, std::size_t length) const;

 private:
  struct Range {
    RemoteAddress start;
    MutableBytes bytes;
  };
  Status execute(Operation& operation) const;
  // Null: not all of it is inside a range.
  std::uint8_t* find(const RemoteAddress& at, std::size_t length) const;

  std::vector<Range> ranges_;
};

}  // namespace sluice::remote
