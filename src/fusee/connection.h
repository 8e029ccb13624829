// What the parts of a FUSEE client share: its remote memory, where the store lies, its settings, and the account of what it does.
//
// Threads:    the client's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/rng.h"
#include "base/time.h"
#include "fusee/layout.h"
#include "remote/buffers.h"
#include "remote/counted_memory.h"
#include "remote/task.h"

namespace sluice::fusee {

struct ClientConfig {
  std::size_t cached_keys = 65536;  // a power of two, not 1: places for their slots
  Duration timeout = Duration::seconds(4);
  // How long a word that was read from a slot may be relied on: nothing is submitted for its sake later. What was taken out of a slot is used again
  // no sooner than hold + flight after. (Only this makes words unique; see snapshot.h.)
  Duration hold = Duration::milliseconds(400);
  // What was submitted longer ago has been executed or never will be, also when its connection was lost. This and `hold` are the same for all clients.
  Duration flight = Duration::milliseconds(100);
  // A memory node that has been out of reach for so long is to leave the store, if the store can do without it.
  Duration suspect_after = Duration::milliseconds(100);
  // A memory node that has left is taken back no sooner than so long after it has been seen to leave, twice as long each time that it came back
  // before. Zero: not at all.
  Duration return_after = Duration::seconds(2);
  // Who has waited so long for a change of somebody else's to end, ends it. No safety hangs on it.
  Duration lease = Duration::milliseconds(5);
  Duration backoff_first = Duration::microseconds(2);  // doubling, each drawn between half and whole
  Duration backoff_most = Duration::microseconds(200);
  // A key whose cached word was wrong in more than this many of 16 cases is read in two steps (§4.6).
  std::uint32_t cache_doubt = 8;
  bool trusts_words = true;  // false: every cached key is read in two steps

  // How long a view may be acted upon, from when it was asked for: so short that a change outlives a change of the view.
  Duration view_lease() const { return hold / 4; }
};

struct ClientCounters : remote::AccessCounters {
  std::uint64_t gets = 0;
  std::uint64_t puts = 0;
  std::uint64_t inserts = 0;
  std::uint64_t erases = 0;
  std::uint64_t swaps_lost = 0;  // found something else there
  std::uint64_t cache_hits = 0;  // the cached word was right
  std::uint64_t walks = 0;       // it was not
  std::uint64_t won_all = 0;     // changes decided by rule 1,
  std::uint64_t won_more = 0;    // by rule 2 or 3
  std::uint64_t lost = 0;
  std::uint64_t finished = 0;    // changes of others, ended for them
  std::uint64_t withdrawn = 0;   // tentative entries, own and others'
  std::uint64_t splits = 0;      // of tables of the index, that this client has brought to their end
  std::uint64_t blocks = 0;      // claimed
  std::uint64_t reused = 0;      // objects
  std::uint64_t recovered = 0;   // blocks of dead clients
  std::uint64_t left = 0;        // blocks that it has seen, or made, to be none of who leaves
  std::uint64_t reclaimed = 0;   // objects found to be nobody's
  std::uint64_t failures = 0;    // remote operations that did not end as kOk
  std::uint64_t unknown = 0;     // changes whose outcome could not be found out
  std::uint64_t damaged = 0;     // objects that a slot named and that were not whole
  std::uint64_t renewals = 0;    // of the lease on the view
  std::uint64_t departures = 0;  // memory nodes that have left the view
  std::uint64_t returns = 0;     // that have come back, whole
  std::uint64_t restored = 0;    // objects given to those that came back
  std::uint64_t repaired = 0;    // words that a backup which became primary has prevailed in
};

// Where nothing is asked for anything.
inline constexpr remote::RemoteAddress kNowhere{remote::NodeId(~std::uint32_t{0}), {}, 0};

// Knows which memory nodes the store has (membership.h).
class Membership;

// The client's way to remote memory.
struct Connection : remote::CountedMemory<ClientCounters> {
  Connection(remote::RemoteMemory& m, const ClientConfig& c, Rng r) : CountedMemory(m, r), config(c) {}

  // May what was read at `seen` still be relied on?
  bool fresh(Time seen) const { return now() < seen + config.hold; }
  // May be acted upon what is known of the memory nodes?
  bool leased() const { return now() < lease; }
  bool acts_in(std::uint32_t v) const { return v == view && leased(); }
  // The same, for READs alone: while a memory node joins, primaries stay what they are.
  bool readable() const { return now() < std::max(lease, read_lease); }
  // An operation has failed there.
  void trouble(remote::NodeId node);
  // Waits for a lease. False: none can be had, or not before the deadline.
  remote::Task<bool> ensure_view(Time deadline);
  remote::Task<bool> ensure_reads(Time deadline);
  // Something has failed: waits until it may go better. False: it will not. Waits in any case.
  remote::Task<bool> again(Time deadline);
  // Is this superblock of the store's `node`-th memory node?
  bool ours(const Superblock& its, std::size_t node) const {
    return its.store_id == store_id && its.index == node && its.nodes == map.partitions() && its.geometry == geometry;
  }
  // Early enough that nobody has to wait for the next lease.
  void tend();

  // Wait for it at once.
  auto back_off(Duration& backoff) {
    return CountedMemory::back_off(backoff, config.backoff_first, config.backoff_most);
  }
  // Reads (or writes, the same again) until all is done. False: a node cannot be reached, not before the deadline, or the view is another now.
  remote::Task<bool> read_all(std::span<remote::Operation> operations, Time deadline);

  // What of every partition's words may be anything but 0, in any replica: for whoever has to go through all of them. Reads the headers of all tables, and
  // needs no lease: a table is used for ever once it is. False: out of reach.
  remote::Task<bool> words_in_use(std::vector<Extent>& extents);

  remote::Task<bool> wait_a_turn(Duration& backoff, Time deadline);

  ClientConfig config;
  Geometry geometry;             // and these, once joined
  std::uint64_t heap_bytes = 0;  // of each memory node
  std::uint32_t store_id = 0;
  MemoryMap map;
  std::uint32_t client = 0;
  std::uint32_t view = 0;  // number of changes that `map` knows of
  std::uint32_t grown =
      0;  // the last view with more replicas than the one before: what was written before is not in all
  Time lease = Time::never();                // the view may be acted upon until then
  Time read_lease;                           // READs may go on until then
  Membership* membership = nullptr;          // none: no memory node can leave
  std::shared_ptr<remote::Buffers> buffers;  // each for the longest object
};

}  // namespace sluice::fusee
