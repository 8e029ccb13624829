// SNAPSHOT: changes one replicated word, without locks: backups decide who wins, the primary says when.
//
// Change:     CAS(old -> mine) on all backups at once. Then, of what the backups hold: all mine, I have won (rule 1); more than half of all are
//             one word, it has won (rule 2); none is `old` any more, the smallest has won (rule 3). The winner puts its word into the other backups,
//             then into the primary. Who has lost waits until the primary has changed.
// Read:       the primary alone. A change takes effect in the CAS of the primary.
// Finish:     anybody may do what the winner would: after a lease, when it has waited for somebody else; at once, when it does not know what became of
//             its own proposal. A backup that still holds `old` may be given any word that another backup already holds.
//
// Why this is right. Words are unique: a word is proposed to one slot, to follow one `old`, and never again.
//   1. A slot's epoch lasts while its primary holds one word, `old`. In it a backup goes from `old` to a proposal, once, and from there only to the winner.
//   2. decide() of what the backups hold in an epoch names nobody or always the same: more than half cannot be two, and once none is `old` no proposal
//      is added, and replacing any by the winner leaves it in front by both rules. This is so, too, when each backup is read at another moment.
//   3. All backups hold the winner before the primary does, and until it does; so the next epoch begins with all alike.
//   4. What was read of backups counts only when the primary holds `old` afterwards: else it may be of a later epoch. (The paper looks
//      for rule 3 alone. With others who may finish, rule 2 needs it: a word of the next epoch would be overwritten.)
//   5. CAS by unique words: late ones and repeated ones do nothing. Lost outcomes need not be waited out; looking again is enough.
//   snapshot_test.cpp tries every interleaving of this very code for two and three writers, and every death.
// Views:      all that is read and swapped in one turn belongs to the replicas of one view (membership.h); in the next one everything is looked at anew.
// Who won:    when the primary has moved on unseen, the embedded logs tell what followed `old`.
// Errors:     Changed. An outcome is given up as unknown when the deadline has come or words may no longer be unique (hold).
// Threads:    the client's.
// Source:     FUSEE (FAST 2023) §4.3, Algorithm 1; finishing without a master is ours.
#pragma once

#include <array>
#include <optional>
#include <span>

#include "fusee/connection.h"

namespace sluice::fusee {

// The word that has won an epoch, if what the backups hold says so. REQUIRES: at least one.
std::optional<std::uint64_t> decide(std::span<const std::uint64_t> backups, std::uint64_t old);

enum class Changed : std::uint8_t {
  kWon,
  kLost,         // another word followed `old`; this one never did
  kUnavailable,  // nothing happened and nothing will
  kStale,  // the same: `old` was read too long ago, or is frozen, or what `mine` names is not in all replicas any more
  kUnknown,
};

// What a replicated word is: for an entry of the index, logs tell its past, and what is replaced is freed.
enum class WordKind : std::uint8_t { kEntry, kOwner };

// Is told of entries that were taken out of their slots on behalf of somebody else. (Who has won a change knows it by kWon.)
class Retirement {
 public:
  virtual ~Retirement() = default;
  // `seen`: when it was in its slot, surely.
  virtual void on_replaced(Word old, Time seen) = 0;
};

class Snapshot {
 public:
  Snapshot(Connection& connection, Retirement& retirement) : c_(connection), retirement_(retirement) {}

  // REQUIRES: `old` was in the primary at `seen`, and `mine` is unique: used for nothing but to follow `old` here. What it names is whole, in
  // all replicas of view `written`: it is proposed as long as no view has more. kEverywhere: it names nothing, or what `old` does.
  remote::Task<Changed> change(WordKind kind, Place at, std::uint64_t old, std::uint64_t mine, std::uint32_t written,
                               Time seen, Time deadline);
  static constexpr std::uint32_t kEverywhere = ~std::uint32_t{0};
  // Ends what others have left half done. False: not before the deadline.
  remote::Task<bool> finish(WordKind kind, Place at, Time deadline);

 private:
  using Backups = std::array<std::uint64_t, kMostReplicas - 1>;
  // One change, as one of those who work on it knows it.
  struct Epoch {
    WordKind kind{};
    Place at{};
    std::uint64_t old = 0;
    std::uint64_t mine = 0;  // 0: only finishing
    std::uint32_t written = 0;
    Time seen{};  // the primary held `old`
    Time deadline{};
    Time help_from{};
    std::uint32_t view = 0;
    std::uint32_t count = 0;  // of backups, in this view
    bool moved = false;       // it began in another view
    Backups backups{};
    bool backups_read = false;  // and the primary not yet after them
    std::optional<std::uint64_t> winner{};
    std::uint64_t now = 0;  // in the primary, once it is over
  };
  enum class End : std::uint8_t { kOver, kIdle, kNotOver };  // kIdle: nobody has proposed anything

  // Is the view to be acted in still the epoch's? Else it is from now on, and nothing is known. Unless there is none before the deadline.
  enum class Turn : std::uint8_t { kGo, kAnew, kNone };
  bool holds(const Epoch& epoch) const { return c_.acts_in(epoch.view); }
  bool proposable(const Epoch& epoch) const { return epoch.mine != 0 && epoch.written >= c_.grown; }
  void enter(Epoch& epoch) const;
  remote::Task<Turn> hold_view(Epoch& epoch);
  remote::Task<std::optional<std::uint64_t>> primary(Place at);
  remote::Task<bool> read_backups(Epoch& epoch);
  remote::Task<End> settle(Epoch& epoch);
  remote::Task<bool> propose(Epoch& epoch);
  remote::Task<bool> enforce(Epoch& epoch);
  remote::Task<bool> commit(Epoch& epoch);
  remote::Task<Changed> change_alone(Epoch& epoch);
  remote::Task<Changed> await_end(Epoch& epoch, bool nowhere);
  // Was `old` frozen before anything else could follow it? Then nothing will.
  static bool frozen_instead(const Epoch& epoch);
  remote::Task<Changed> judge(Epoch& epoch);
  // What followed `old`, by the logs of what came after.
  remote::Task<std::optional<Word>> successor(const Epoch& epoch);

  Connection& c_;
  Retirement& retirement_;
};

}  // namespace sluice::fusee
