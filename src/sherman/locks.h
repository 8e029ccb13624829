// Locks of tree nodes: first among the coroutines of this client, then among clients by a word in the memory node's lock table.
//
// Life:       lock_and_read() -> change the image -> write_and_release(), or release().
// Take:       CAS(0 -> a word never used before), and in the same chain a READ of the node, which counts if the CAS took the lock.
// Release:    the write-back and a WRITE of 0, in one chain: transport order, without which there is no tree, lets nobody see the lock free before
//             the write.
// Hand-over:  who waits in this client gets the lock from its holder, without a word on the wire, up to `hand_overs` times in a row.
// Lease:      a holder submits nothing later than until = (when it submitted its CAS) + lease. Who has seen a word unchanged for lease + flight
//             by its own clock knows that its holder is gone and that nothing of it is under way; so does, without waiting,
//             who has been told and has let flight pass (free_of_dead). No two clocks are compared.
// Recovery:   CAS(word -> its next attempt) with a lease of its own; then what the redo record of that holder says is written again; then
//             WRITE of 0. The word names the holder throughout, so that a recovery that dies is itself recovered.
// Redo:       writes longer than Geometry::whole_bytes are preceded in their chain by a record of them, one place a lock. It counts only for
//             the word that it names. A lock under which a record was written is not handed on to writes that leave none.
// Invariants: 1. Nothing under a lock is submitted outside its lease.
//             2. No coroutine waits for a second lock while it holds one.
// Errors:     an operation of unknown outcome is waited out (flight) and then judged by the lock word: still ours, it is done again; free or
//             another's within our lease, our release has been executed, and what was before it in the chain too.
// Threads:    the client's.
// Siblings:   clients of one owner may share their local locks; each waits and is resumed on its own scheduler.
// Source:     Sherman (SIGMOD 2022) §4.2, §4.3. Leases and redo are ours: README.md.
#pragma once

#include <coroutine>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>

#include "sherman/connection.h"

namespace sluice::sherman {

// A lock that is held.
struct Grip {
  NodePointer node{};  // for whose sake
  LockWord word{};     // raw 0: not taken yet
  Time until{};        // the end of the lease
  std::uint32_t handed = 0;
  bool logged = false;
};

class NodeLocks {
 public:
  explicit NodeLocks(Connection& connection);
  // Shares the local locks of a sibling's.
  NodeLocks(Connection& connection, const NodeLocks& sibling) : c_(connection), locals_(sibling.locals_) {}
  NodeLocks(const NodeLocks&) = delete;
  NodeLocks& operator=(const NodeLocks&) = delete;

  // The lock is held and `image` was read under it. False: not before the deadline; nothing is held.
  remote::Task<bool> lock_and_read(NodePointer node, MutableBytes image, Time deadline, Grip& grip);

  enum class Written : std::uint8_t { kYes, kNo, kUnknown };
  // Writes `bytes` (stay valid meanwhile) at `offset` of the node, and lets go of the lock in any case.
  remote::Task<Written> write_and_release(Grip& grip, std::uint64_t offset, ByteView bytes);
  remote::Task<void> release(Grip& grip);

  // A lock whose holder has died, without waiting for its lease: what its record says is written, and it is free. Nothing of that client may be
  // under way, and none of its siblings hold what it has handed on. Two that begin with one word: the CAS lets one of them. False: left to whoever wants
  // the lock, when the lease of this attempt is over.
  remote::Task<bool> free_of_dead(std::uint32_t node, std::uint32_t lock, LockWord word);

  // Writes what nobody else can know of yet, while a lock is held. False: not surely done within the lease.
  remote::Task<bool> write_fresh(const Grip& grip, NodePointer node, ByteView bytes);

 private:
  struct Local;
  class Turn;
  enum class Step : std::uint8_t { kDone, kAgain, kFailed };
  static std::uint64_t id(const MemoryMap& map, NodePointer node) {
    return std::uint64_t{node.node()} << 32 | map.lock_of(node);
  }
  remote::RemoteAddress word_address(NodePointer node) const {
    return c_.map.lock_word(node.node(), c_.map.lock_of(node));
  }
  remote::RemoteAddress record_address(NodePointer node) const {
    return c_.map.record(node.node(), c_.map.lock_of(node));
  }
  remote::Task<bool> take(Local& local, MutableBytes image, Time deadline, Grip& grip, bool& read);
  // One try. `read`: the image too, if the lock was taken.
  remote::Task<Step> try_take(Local& local, MutableBytes image, Grip& grip, bool& read, bool with_read);
  remote::Task<Step> resolve_take(Grip& grip, LockWord word, Time until);
  // False: not surely done.
  remote::Task<bool> recover(NodePointer node, LockWord word);
  remote::Task<bool> redo(NodePointer node, LockWord word, Time until);
  remote::Task<bool> read_under(const Grip& grip, MutableBytes image);
  // Submits, and says whether all before the last, and the last, have surely been executed.
  struct Sent {
    bool body = false;
    bool unlock = false;
    bool unlock_tells = false;  // nothing before it was refused: if it has been executed, so has all of that
  };
  remote::Task<Sent> send(std::span<remote::Operation> operations, bool with_unlock);
  // After something of unknown outcome: is the word still ours? kFailed: cannot be known in the lease.
  remote::Task<Step> still_ours(const Grip& grip);
  remote::Task<void> unlock(Grip& grip);
  bool may_hand_over(const Local& local, const Grip& grip) const;
  void pass_on(Grip& grip, bool with_lock);

  Connection& c_;
  using Locals = std::unordered_map<std::uint64_t, Local>;
  std::shared_ptr<Locals> locals_;  // of locks in use or under watch here; never iterated
  std::uint64_t sequence_ = 0;
};

// One lock, as this client sees it.
struct NodeLocks::Local {
  bool busy = false;
  std::deque<Turn*> waiting;
  // The last foreign word seen there, and since when it has not changed.
  std::uint64_t seen = 0;
  Time since;
};

inline NodeLocks::NodeLocks(Connection& connection) : c_(connection), locals_(std::make_shared<Locals>()) {}

}  // namespace sluice::sherman
