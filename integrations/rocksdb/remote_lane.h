// Remote lane: one libcowbird thread's rings, shared by whichever threads of the database come by.
//
// Life:       RemoteLane(thread, region, node) -> write(), read() -> poll() until the Read says done, or nobody wants it any more.
//             hold() -> is_idle() -> use() another region.
// Order:      reads complete in the order of issue. A read of this lane sees its earlier writes; that of another lane may not yet.
// Errors:     a full ring or an absent engine refuses; the caller does without its cache.
// Threads:    any; a lock each call, never held while waiting.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "libcowbird/cowbird.h"

namespace sluice::rocksdb_cache {

// What lanes hear of the memory node that they have in common.
struct NodeState {
  std::atomic<bool> denies{false};  // it has refused the region: it has to be asked for anew
  std::atomic<std::uint64_t> writes_failed{0};
};

// The lane keeps it until it is done, so that its bytes have a place even when the reader has given up.
struct Read {
  std::int64_t request = 0;
  std::vector<char> bytes;
  int status = 0;  // of libcowbird; read it when `done`
  std::atomic<bool> done{false};
};

class RemoteLane {
 public:
  // `thread` belongs to this lane from now on. `node` outlives it.
  RemoteLane(cowbird_thread_t* thread, std::uint16_t region, NodeState& node);

  // False: refused, because the rings are full or no engine is there. One that fails later is counted in NodeState.
  bool write(std::uint64_t offset, std::span<const char> bytes);
  // Null: refused likewise.
  std::shared_ptr<Read> read(std::uint64_t offset, std::uint32_t length);
  // Takes what has completed. False: nothing has, and no engine is at work.
  bool poll();

  // As long as it is held nobody else calls anything.
  std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }
  // REQUIRES: held. Whether an engine is at work and has completed all that was issued.
  bool is_idle();
  // REQUIRES: held, and idle.
  void use(std::uint16_t region) { region_ = region; }

 private:
  bool poll_locked();

  std::mutex mutex_;
  cowbird_thread_t* thread_;
  std::uint16_t region_;
  NodeState& node_;
  std::deque<std::shared_ptr<Read>> reads_;  // issued, not complete
  std::size_t writes_ = 0;                   // likewise
};

}  // namespace sluice::rocksdb_cache
