// How the index grows: a full table is split into two halves, one-sided, by whoever needs room; the others read on, and end what a dead one has begun.
//
// Claim:      the table's header names who splits it. That keeps others from doing the same work, no more: who sees the claim stand still takes it over.
// Freeze:     every word of the table, w, is followed by w frozen, by Snapshot. Nothing follows a frozen word, so from then on the table stands still.
// Move:       every live word goes into the half that its key is of, to the same place in it, by Snapshot: to follow 0, which stands there until then. What
//             is void or tentative stays behind.
// Open:       the header says, by Snapshot, that the table is split. Nobody looks at the halves before, and for good at nothing else after. What was left
//             behind is freed. Nothing is ever written to a split table again, and its memory is not used for anything else.
//
// Who meets a frozen word. A reader that has found any word of its key's choices not frozen has seen the table when it was whole; if all are frozen it reads
//   the header after them, and the halves if that says so. It waits for nobody. A writer that needs a frozen slot, or finds no room, splits, or waits for who
//   does. Nobody has to be told of a split: the cached directory, which tables are known to be split, is wrong in one direction only, and frozen words say so.
// Why this is right.
//   1. A table is split only after all its words were frozen. So who finds a word of it not frozen finds it whole: no half had been looked at by anyone.
//   2. A frozen table never changes. So all who move its words move the same words to the same places, and what is moved is what stood there last.
//   3. A change either wins before its slot is frozen, and is moved; or the frozen word follows instead, and it has not happened (Changed::kStale).
//   4. Entries do not move within a table, and no half is looked at before its table stands still: so the argument about inserts (client.h) holds for the table
//      and its halves in turn. A tentative entry that is frozen never becomes live, and is not moved.
//   5. Who moves reads the key in the object that a frozen word names. Until the table is split the object is that word's; so this counts for `hold` from when the
//      table was found not to be split.
//   6. Words are unique: a word is frozen once, and a moved one is the first word of its slot.
// Errors:     False: not before the deadline. All steps can be taken any number of times, by anybody at once.
// Threads:    the client's.
// Source:     Zuo et al., "RACE" (ATC 2021) §4.3: its directory, whose locks and suffixes in headers are here the frozen words; docs/design/fusee.md.
#pragma once

#include <vector>

#include "fusee/space.h"

namespace sluice::fusee {

class Growth {
 public:
  Growth(Connection& connection, Snapshot& snapshot, Space& space)
      : c_(connection), snapshot_(snapshot), space_(space) {}
  // REQUIRES: the connection has its map.
  void begin() { split_.assign(c_.map.grows() ? c_.map.tables() : 0, false); }

  // The key's table, as far as is known.
  Table table(Key key) const;
  // Reads whether it is split, if that is not known.
  remote::Task<bool> find_out(Table table, Time deadline, bool& split);
  // Waits until it is split: by somebody else, or by this client.
  remote::Task<bool> split(Table table, Time deadline);
  // Ends what this client, one that has died, has begun.
  remote::Task<bool> end_splits(std::uint32_t client, Time deadline);

 private:
  struct Job;
  // A word that is to follow what stands in a slot. `word` 0: the same, frozen.
  struct Step {
    Place at;
    std::uint64_t there = 0;
    Word word{};
  };
  struct Left {
    Word word{};
    std::uint64_t sequence = 0;
  };
  bool known(Table table) const { return c_.map.may_split(table) && split_[c_.map.number(table)]; }
  Duration patience() const { return c_.config.lease * 4; }

  remote::Task<void> work(Table table);
  remote::Task<bool> read_header(Table table, Time deadline, Owner& header);
  remote::Task<bool> freeze(Job& job);
  remote::Task<bool> move(Job& job);
  remote::Task<bool> move_part(Job& job, std::uint32_t partition, std::uint64_t offset, std::size_t length);
  remote::Task<bool> open(Job& job);
  remote::Task<void> beat(Job& job);
  // All of them, many at a time. `seen`: when the words stood there.
  remote::Task<bool> take(const std::vector<Step>& steps, Time seen, Time deadline);
  remote::Task<bool> take_one(Step step, Time seen, Time deadline);
  remote::Task<void> retire(std::vector<Left> left);
  remote::Task<bool> end_some(std::uint32_t client, std::uint32_t partition, std::uint64_t first, std::uint64_t count,
                              Time deadline);

  Connection& c_;
  Snapshot& snapshot_;
  Space& space_;
  std::vector<bool> split_;          // by number: known to be
  std::vector<std::uint64_t> work_;  // numbers of tables that this client is at
};

}  // namespace sluice::fusee
