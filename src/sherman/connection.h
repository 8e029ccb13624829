// What the parts of a Sherman client share: its remote memory, where the tree lies, its settings, and the account of what it does.
//
// Threads:    the client's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "base/time.h"
#include "remote/buffers.h"
#include "remote/counted_memory.h"
#include "remote/task.h"
#include "sherman/layout.h"

namespace sluice::sherman {

using remote::Buffer;
using remote::Buffers;

struct ClientConfig {
  std::size_t cached_nodes = 4096;  // internal nodes in the index cache
  Duration timeout = Duration::seconds(4);
  // A lock that has not changed hands for lease + flight belongs to nobody any more. Its holder submits nothing later than lease after it
  // submitted the CAS that took it.
  Duration lease = Duration::milliseconds(400);
  // What was submitted longer ago has been executed or never will be, also when its connection was lost.
  Duration flight = Duration::milliseconds(100);
  Duration backoff_first = Duration::microseconds(2);  // doubling, each drawn between half and whole
  Duration backoff_most = Duration::microseconds(200);
  std::uint32_t hand_overs = 8;   // of a lock within this client, in a row; then others get their chance
  std::uint32_t torn_reads = 16;  // in a row, then the node's lock is taken to read it
  std::uint32_t scan_ahead = 8;   // leaves that a scan reads at once
};

struct ClientCounters : remote::AccessCounters {
  std::uint64_t gets = 0;
  std::uint64_t puts = 0;
  std::uint64_t inserts = 0;
  std::uint64_t erases = 0;
  std::uint64_t scans = 0;
  std::uint64_t swaps_lost = 0;  // the lock was taken
  std::uint64_t cache_hits = 0;  // the leaf was known without reading
  std::uint64_t walks = 0;       // to a sibling, or down again, because what led there was old
  std::uint64_t torn = 0;        // reads not believed
  std::uint64_t locked_reads = 0;
  std::uint64_t hand_overs = 0;
  std::uint64_t combined = 0;  // write-back and unlock in one chain
  std::uint64_t splits = 0;
  std::uint64_t roots = 0;
  std::uint64_t chunks = 0;
  std::uint64_t failures = 0;        // remote operations that did not end as kOk
  std::uint64_t resolved = 0;        // … whose outcome was then found out
  std::uint64_t abandoned = 0;       // locks left to others, their lease over
  std::uint64_t recovered = 0;       // locks of others, gone or late
  std::uint64_t redone = 0;          // … whose half-done write was finished
  std::uint64_t damaged = 0;         // nodes that were not whole even under their lock
  std::uint64_t nodes_doubtful = 0;  // written, and it cannot be known whether they are linked until an audit
  std::uint64_t far_reads = 0;       // of values in blocks of their own
  std::uint64_t far_changed = 0;     // … which had become another's
  std::uint64_t blocks_doubtful =
      0;                         // changes of such values of which only an audit finds out which block is nobody's now
  std::uint64_t taken_over = 0;  // chunks of dead clients
  std::uint64_t collected = 0;   // blocks that others had marked
  std::uint64_t reclaimed = 0;   // nodes and blocks that audits found to be nobody's, unmarked
};

// The client's way to remote memory.
struct Connection : remote::CountedMemory<ClientCounters> {
  Connection(remote::RemoteMemory& m, const ClientConfig& c, Rng r) : CountedMemory(m, r), config(c) {}

  // Several, submitted together in their order.
  auto chain(std::span<remote::Operation> operations) { return all(operations); }
  // Wait for it at once.
  auto back_off(Duration& backoff) {
    return CountedMemory::back_off(backoff, config.backoff_first, config.backoff_most);
  }
  // For one thing that no operation waits for: long enough to see a dead client's lock through.
  Duration patience() const { return std::max(config.timeout, (config.lease + config.flight) * 8); }
  // Until nothing submitted before can still be executed.
  auto outlive() { return scheduler.sleep_for(config.flight); }

  ClientConfig config;
  Geometry geometry;  // and these, once joined
  MemoryMap map;
  std::uint32_t client = 0;
  std::uint32_t claims = 0;  // of chunks; names each
  std::shared_ptr<Buffers> buffers;
};

}  // namespace sluice::sherman
