// Brings a memory node back into the store: a step at a time, one-sided, while everybody reads and writes.
//
// Invite:     a memory node that has left answers again. All words of its shares are made 0 (they are, if its memory is new), in the view in which
//             it is none of the store's; then it is proposed that it joins. With that view it gets all words (membership.h) and from then on
//             every object that is written, as an apprentice: the last of all replicas, and never read.
// Complete:   every object that a word of the index names, in any replica, is copied from a primary; `hold` + `flight` later it is proposed that the node is
//             whole. Its partitions have it as their primary again.
// Restorer:   one client at a time does this for a memory node: a word in its superblock says who, and is counted up; who has seen it stand still for
//             long takes over. Two at once are no harm, only a waste.
//
// Why an apprentice that has been gone through has all objects that anybody may read:
//   1. No word is proposed in a view unless its object is in all replicas of that view (Snapshot, `written`). So what is not on the apprentice is
//      named by words that stood in primaries or backups when it joined.
//   2. The halves of a table are gone through after it, if it is split by then; else they have what was seen in it, or came later. Of each slot the backups are read first, then the primary. A word that stood there when the node joined, and is not seen, was replaced for good.
//   3. An object is written to the apprentice only for as long as its word may be relied on (`hold`), so that no later one in its place is overwritten.
//      What is left by then is looked for anew: of what was seen first, that which still stands. What came later is there by 1.
//   4. Whoever follows the logs of what was replaced does so for no longer than `hold`; older objects than that nobody asks for.
// Threads:    the client's.
// Source:     docs/design/fusee.md, "A memory node comes back". Not in the paper.
#pragma once

#include <vector>

#include "fusee/connection.h"

namespace sluice::fusee {

class Restoration {
 public:
  Restoration(Connection& connection, Membership& membership) : c_(connection), membership_(membership) {}
  void tend();

 private:
  std::optional<std::uint32_t> target() const;
  remote::Task<void> work();
  // False: not now.
  remote::Task<bool> invite(std::uint32_t node);
  remote::Task<bool> complete(std::uint32_t node);

  remote::Task<bool> probe(std::uint32_t node);
  remote::Task<bool> elected(std::uint32_t node);
  remote::Task<bool> beat(std::uint32_t node);
  remote::Task<bool> clean(std::uint32_t node, std::uint32_t view);
  remote::Task<bool> clean_part(std::uint32_t node, Place first, std::size_t length);
  remote::Task<bool> copy(std::uint32_t node);
  remote::Task<bool> copy_table(std::uint32_t node, Table table, bool& split);
  // Copies what some slots name, if the table is not split. False: to be done again; once they are `listed`, for what of `wanted_` still stands.
  remote::Task<bool> copy_part(std::uint32_t node, Table table, Place first, std::size_t length, bool& listed,
                               bool& split);
  // Objects, each once, that words in words_ name; those that `node` is to have.
  std::vector<Word> named(std::uint32_t node, std::size_t length) const;
  remote::Task<bool> copy_objects(std::uint32_t node, std::uint32_t view, Time seen);
  // Waits until the wish has come true. False: it has not.
  remote::Task<bool> proposed(const Change& change);
  bool apprentice(std::uint32_t node) const { return c_.map.member(node) == Member::kApprentice; }

  Connection& c_;
  Membership& membership_;
  bool working_ = false;
  Time next_;
  std::uint64_t word_ = 0;  // as restorer
  Time next_beat_;
  std::uint64_t watched_ = 0;
  Time watched_since_ = Time::never();
  std::vector<std::uint8_t> words_;
  std::vector<std::uint8_t> objects_;
  std::vector<Word> wanted_;   // by the place of their objects
  std::vector<Place> broken_;  // and not to be waited for
};

}  // namespace sluice::fusee
