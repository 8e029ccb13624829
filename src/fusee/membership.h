// Which memory nodes a store still has: views, the leases on them, and what makes a backup the primary. One-sided, like all of FUSEE.
//
// View:       the number of memory nodes that have left, and which. The k-th departure is decided by Paxos among all memory nodes' superblocks, a
//             CAS for each promise and each acceptance; any client that misses a memory node for long enough proposes it. None comes back.
// Lease:      a client acts upon view k for hold / 4 from when it began a reading of more than half of the memory nodes none of which had accepted
//             anything for departure k. Nothing is submitted without one; every READ and CAS of an epoch goes to one view's replicas.
// Change:     who knows departure k to be decided waits for hold / 4 + flight. Then nothing of view k can take effect any more: whoever has
//             read that nothing was accepted did so before it was decided. The replicas of a partition that has another primary now are made
//             alike: its word, the first survivor's, goes wherever another stands. When more than half of the memory nodes know that this is done,
//             view k + 1 is acted upon.
//
// Why this is right.
//   1. Views are acted upon one after the other, never two at once: by the wait.
//   2. What was read of the old primary, or acknowledged, stands in every survivor, or something that follows it does: a word is in all backups
//      before it is in the primary (snapshot.h, 3). The new primary holds such a word. So it is as if this had been committed when the view changed.
//   3. Until the view is acted upon nobody but repairers changes words, and they put in what the new primary says, which does not change: they agree.
//      One that is late swaps a word that it read when the view had not been begun, as it sees by reading that afterwards; and such a word
//      is gone by then, and never comes again.
//   4. Where the primary stays, backups may hold proposals as ever; decide() is asked of those that are left, and nobody acts any more
//      on what it said of more.
//   5. A writer that finds itself in another view looks anew at who has won: its word, if that is in the primary or was followed there.
//   The whole holds for memory nodes that are out of reach of some, though they live.
// Limits:     fewer than half of the memory nodes may leave, never the last replica of a slot; so it takes three nodes and two replicas of the index.
//             In other stores nobody ever leaves, and there are no leases.
// Errors:     hopeless(): nothing is to be hoped for but that nodes come back into reach.
// Threads:    the client's.
// Source:     FUSEE (FAST 2023) §5, where a master decides; Lamport, "Paxos Made Simple"; docs/design/fusee.md.
#pragma once

#include <optional>
#include <vector>

#include "fusee/connection.h"

namespace sluice::fusee {

class Membership {
 public:
  // Can memory nodes leave such a store at all?
  static bool possible(std::size_t nodes, const Geometry& geometry) {
    return nodes >= 3 && geometry.word_replicas() >= 2;
  }

  // REQUIRES: the connection has its geometry, map and number. `blank`: nodes that have lost their memory.
  Membership(Connection& connection, std::span<const MemoryNode> nodes, const std::vector<bool>& blank);

  void trouble(remote::NodeId node);
  // Looks after the lease, the nodes that are missed and the next view; by itself until all is well or hopeless.
  void tend();
  bool troubled() const;
  bool hopeless() const { return hopeless_; }

 private:
  struct Node {
    remote::RemoteAddress heap;
    bool blank = false;
    bool voted = false;            // has answered the last reading
    Time missed = Time::never();   // since when
    std::uint32_t unanswered = 0;  // readings, one after the other
    Ballot ballot;
    std::uint64_t ready = 0;
  };

  std::size_t majority() const { return nodes_.size() / 2 + 1; }
  remote::RemoteAddress record(const Node& node, std::uint32_t view) const {
    return node.heap + (kDepartureOffset + kDepartureBytes * view);
  }
  bool long_missed(const Node& node) const;
  std::optional<std::uint32_t> missing() const;
  bool in_need() const;

  remote::Task<void> work();
  // One reading, and what follows from it. False: to be tried again later.
  remote::Task<bool> turn();
  // Asks all about departure `view`. False: fewer than a majority have answered.
  remote::Task<bool> ask(std::uint32_t view);
  // The same, and: nobody has accepted anything, so a lease can be had.
  remote::Task<bool> ask_for_lease();
  remote::Task<std::optional<std::uint32_t>> decide(std::uint32_t view, std::uint32_t wanted);
  void depart(std::uint32_t node);
  // Sees to it that the present view may be begun.
  remote::Task<bool> begin();
  remote::Task<bool> announce();
  remote::Task<bool> repair();
  remote::Task<bool> repair_part(std::uint32_t partition, std::uint64_t offset, std::size_t length);

  Connection& c_;
  std::vector<Node> nodes_;
  std::vector<std::uint8_t> records_;
  std::vector<std::uint8_t> words_;  // of repair
  bool working_ = false;
  bool begun_ = true;  // the present view
  bool hopeless_ = false;
  Time decided_;                   // known to be
  Time asked_;                     // when the last reading began
  Time outvoted_ = Time::never();  // fewer than a majority have answered since
};

}  // namespace sluice::fusee
