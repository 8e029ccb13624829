// Which memory nodes a store has: views, the leases on them, what makes a backup the primary, and how a memory node comes back. One-sided, like all of
// FUSEE.
//
// View:       the number of changes so far, and who is whole, an apprentice or has left by them. The k-th change is decided by Paxos among all memory
//             nodes' superblocks, a CAS for each promise and each acceptance. Any client that misses a memory node for long enough proposes that
//             it leaves; who finds that it has come back, that it joins as an apprentice; who has given it all objects, that it is whole (restoration.h).
// Lease:      a client acts upon view k for hold / 4 from when it began a reading of more than half of the memory nodes none of which had accepted
//             anything for change k. Nothing is submitted without one; every READ and CAS of an epoch goes to one view's replicas.
// Change:     who knows change k to be decided waits for hold / 4 + flight. Then nothing of view k can take effect any more: whoever has
//             read that nothing was accepted did so before it was decided. The replicas of a partition that has another primary now, or one more
//             replica, are made alike: its word, the primary's, goes wherever another stands. When more than half of the memory nodes know that this
//             is done, view k + 1 is acted upon. Where no primary is another one, READs go on meanwhile.
// Keys:       a memory node that did not get on for longer than its lease has the same memory under another key, and nothing is lost. Its superblock
//             tells that from memory that took its place: this is blank, or says that it came with a later change than the view has.
// Votes:      memory that was lost has forgotten what it promised. What comes back in its place votes on changes after the one that it joined
//             with, which names its key; its superblock says so to those who come later, and of the changes before what was decided.
//
// Why this is right.
//   1. Views are acted upon one after the other, never two at once: by the wait.
//   2. What was read of the old primary, or acknowledged, stands in every survivor, or something that follows it does: a word is in all backups
//      before it is in the primary (snapshot.h, 3). The new primary holds such a word. So it is as if this had been committed when the view changed.
//   3. Until the view is acted upon nobody but repairers changes words, and they put in what the new primary says, which does not change: they agree.
//      One that is late swaps a word that it read when the view had not been begun, as it sees by reading that afterwards; and such a word
//      is gone by then, and never comes again. (What joins holds 0 everywhere, which no slot takes again.)
//   4. Where the primary stays, backups may hold proposals as ever; decide() is asked of those that are left, and nobody acts any more
//      on what it said of more.
//   5. A writer that finds itself in another view looks anew at who has won: its word, if that is in the primary or was followed there.
//   The whole holds for memory nodes that are out of reach of some, though they live; and docs/design/fusee.md has all of it at length.
// Limits:     fewer than half of the memory nodes may be missing at once, never the last whole replica of a slot; so it takes three nodes and two replicas
//             of the index. In other stores nobody ever leaves, and there are no leases. kMostChanges; near to it nobody is taken back.
// Errors:     hopeless(): nothing is to be hoped for but that nodes come back into reach.
// Threads:    the client's.
// Source:     FUSEE (FAST 2023) §5, where a master decides; Lamport, "Paxos Made Simple"; docs/design/fusee.md.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "fusee/connection.h"

namespace sluice::fusee {

class Restoration;

class Membership {
 public:
  // Can memory nodes leave such a store at all?
  static bool possible(std::size_t nodes, const Geometry& geometry) {
    return nodes >= 3 && geometry.word_replicas() >= 2;
  }

  // What is known of a memory node's memory when somebody joins.
  struct Found {
    bool known = true;   // it has answered; else it may be anything
    bool blank = false;  // has forgotten everything
    std::uint32_t votes_from = 0;
  };
  // REQUIRES: the connection has its geometry, map and number.
  Membership(Connection& connection, std::span<const MemoryNode> nodes, std::span<const Found> found);
  ~Membership();

  void trouble(remote::NodeId node);
  // Looks after the lease, the nodes that are missed and the next view; by itself until all is well or hopeless.
  void tend();
  // Brings back who has left and is there again; by itself, a step at a time.
  void restore();
  bool troubled() const;
  bool hopeless() const { return hopeless_; }
  // The memory node has this memory now: the one it had, or another.
  void moved(std::uint32_t node, remote::RemoteAddress heap);

  // --- for Restoration ---
  std::size_t nodes() const { return nodes_.size(); }
  remote::RemoteAddress heap(std::uint32_t node) const { return nodes_[node].heap; }
  // Of one that has left: may it be asked to come back already?
  bool awaited(std::uint32_t node) const;
  std::uint32_t joins(std::uint32_t node) const { return nodes_[node].joins; }
  // Of memory that was lost before what took its place.
  bool is_outlived(std::uint32_t node, const Superblock& its) const { return its.votes_from < nodes_[node].life; }
  // What its superblock says. REQUIRES: it has left.
  void learned(std::uint32_t node, const Found& found);
  // Is proposed as soon as a lease is had; forgotten when the view is another.
  void wish(const Change& change);

 private:
  struct Node {
    remote::RemoteAddress heap;  // the newest that is known
    bool known = true;           // what is in there
    bool unseen = false;         // it was not known when this client joined, nor since
    bool blank = false;
    bool strange = false;    // the view means other memory than this
    bool told_late = false;  // and this client has not been told of that yet
    bool gone = false;       // what the view means is lost for good: other memory was seen in its place
    std::uint32_t votes_from = 0;
    std::uint32_t life = 0;  // of the memory that the view means, or meant last: it votes from so late at least
    std::uint32_t joins = 0;
    remote::RegionKey joined_with{};
    Time left;                     // known to have
    bool voted = false;            // has answered the last reading
    Time missed = Time::never();   // since when
    std::uint32_t unanswered = 0;  // readings, one after the other
    Ballot ballot;
    std::uint64_t ready = 0;
    std::array<Proposal, 2> proposals;

    // Of these, what the ballot has accepted. nullptr: nothing, or it was written after they were read.
    const Proposal* accepted_in() const {
      const auto named =
          std::ranges::find_if(proposals, [this](Proposal p) { return p.ballot() == ballot.accepted(); });
      return ballot.accepted() == 0 || named == proposals.end() ? nullptr : &*named;
    }
  };

  // Of one acceptor.
  struct Promise {
    remote::RemoteAddress at;  // its record
    Ballot before;
    std::uint64_t offset = 0;  // of the proposal that may be written over
    std::uint64_t there = 0;
    Change accepted;
  };

  std::size_t majority() const { return nodes_.size() / 2 + 1; }
  remote::RemoteAddress record(const Node& node, std::uint32_t view) const {
    return node.heap + (kChangeOffset + kChangeBytes * view);
  }
  bool lost(const Node& node) const { return !node.known || node.blank || node.strange; }
  bool votes(const Node& node, std::uint32_t view) const { return !lost(node) && node.votes_from <= view; }
  // What was decided before it votes, it knows.
  bool tells(const Node& node, std::uint32_t view) const { return node.known && !node.blank && node.votes_from > view; }
  bool long_missed(const Node& node) const;
  std::optional<std::uint32_t> missing() const;
  bool in_need() const;
  bool possible(const Change& change) const;

  remote::Task<void> work();
  // One reading, and what follows from it. False: to be tried again later.
  remote::Task<bool> turn();
  // Reads the superblocks of memory that nothing is known of: lost memory's successor, or what the view means under another key.
  remote::Task<void> look_into_new_memory();
  // Asks all about change `view`. False: fewer than a majority have answered, and none that knows what was decided.
  remote::Task<bool> ask(std::uint32_t view);
  // The same, and: nobody has accepted anything, so a lease can be had.
  remote::Task<bool> ask_for_lease();
  bool may_be_at_work(std::uint32_t ballot);
  // Of those who have voted in the last reading.
  std::optional<Change> accepted_by_most() const;
  // Asks them to promise `ballot`: left are those who have.
  remote::Task<void> promise(std::uint32_t view, std::uint32_t ballot, std::vector<Promise>& promises);
  // Asks those who have promised `ballot` to accept it: left are those who have.
  remote::Task<void> accept(std::uint32_t ballot, const Change& value, std::vector<Promise>& promises);
  // A CAS at each: left are those where it has swapped.
  remote::Task<void> swap(std::vector<Promise>& promises, std::vector<remote::Operation> swaps);
  remote::Task<std::optional<Change>> decide(std::uint32_t view, Change wanted);
  void apply(const Change& change);
  // At most this, at random.
  Duration drawn(Duration most);
  // Sees to it that the present view may be begun.
  remote::Task<bool> begin();
  remote::Task<bool> announce();
  remote::Task<bool> repair();
  remote::Task<bool> repair_part(std::uint32_t partition, std::uint64_t offset, std::size_t length);
  // Gives the superblock to memory that has joined.
  remote::Task<bool> admit(std::uint32_t node);

  Connection& c_;
  std::vector<Node> nodes_;
  std::vector<Change> changes_;  // that `c_.view` is made of
  std::vector<std::uint8_t> records_;
  std::optional<Change> told_;       // of the change last asked for: it is decided, says one that did not vote on it
  std::vector<std::uint8_t> words_;  // of repair
  bool working_ = false;
  bool begun_ = true;          // the present view
  bool quiet_ = true;          // no primary has changed since a view was begun
  std::vector<bool> touched_;  // partitions to be repaired before the view is begun
  bool hopeless_ = false;
  Time decided_;  // known to be
  Duration stagger_;
  std::uint32_t rival_ = 0;  // the ballot that somebody else had last, for the present change
  Time outbid_from_;
  Time asked_;                     // when the last reading began
  Time outvoted_ = Time::never();  // fewer than a majority have answered since
  std::optional<Change> wish_;
  std::uint32_t wish_view_ = 0;
  std::unique_ptr<Restoration> restoration_;
};

}  // namespace sluice::fusee
