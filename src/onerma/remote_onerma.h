// RemoteOnerma: RemoteMemory over 1RMA, the client library. Transfers of any length become operations of at most 4 KB, which are tried
// again until they succeed or time is over; order, where it is wanted, is kept here, above the transport.
//
// Life:       add_node() -> add_grant() -> submit() / co_await -> poll() completes.
// Atomics:    none, and capabilities() says so: they end as kUnsupported.
// Retries:    NACK, dispatch time-out, time-out, replay: again, at the pace that congestion control leaves. One that is reported as timed out
//             has no effect later, so that a new try never undoes what this client does after it.
// Repeats:    an operation whose data have left, and to which no answer came, may have been done. A new try would do it again, and undo what
//             another client has written meanwhile, after it saw the first. So a write ends as kUnknown then, unless `repeat_writes` says
//             that nobody else writes those bytes until it has ended. Reads are tried again whatever happens.
// Rekey:      a key that is refused waits for another: announce_grant() before the Rekey, or replace_grant() after it, lets what was
//             refused go on, one round trip later; after `key_wait` it is tried once more, and ends as kAccessDenied if that is refused,
//             too. Meanwhile nothing else of the region is issued, which would be refused as well and take pieces from other nodes, but
//             one operation at a time, one a transfer: if it succeeds, all goes on; if it is refused, who hands out keys is asked again.
//             No key is forgotten because it was refused, only because another works (region_keys.h): a refusal may be forged.
// Order:      kNone: operations are under way together. kInOrder: to one node, one after the other, as they were submitted.
// Turns:      transfers to one node that have more to issue take turns, an operation each, and no more stand before the executor than its
//             window takes: a long transfer does not hold up a short one.
// Gives up:   a transfer of which nothing has been done when `give_up` is over, counted from the first poll() after its turn has come: behind others to the node
//             (kInOrder), and beyond `transfers`, it waits besides. One that has begun to succeed goes on until an operation of it fails after that;
//             what of it has not been issued by then is not. What waits for a key when its time is over has failed.
// Errors:     kAccessDenied: bad key, bounds or right. kUnreachable: not done when `give_up` was over. kUnknown: a write that failed after
//             some part of it had been done, or may have been: its data had left.
// Threads:    one owner, the scheduler's. After set-up nothing is allocated, but for coroutines by who makes them.
// Limits:     Parameters; what is beyond waits its turn.
// Source:     1RMA §3 (ordering and retry are software's), §5.2; ARCHITECTURE.md "Contracts" (RemoteMemory).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "onerma/executor.h"
#include "onerma/initiator.h"
#include "onerma/region_keys.h"
#include "remote/remote_memory.h"

namespace sluice::onerma {

class RemoteOnerma final : public remote::RemoteMemory {
 public:
  enum class Order : std::uint8_t { kNone, kInOrder };
  struct Parameters {
    ExecutorParameters executor{};
    Order order = Order::kNone;
    bool repeat_writes = false;      // which may have been done
    std::uint32_t piece = kMaxOp;    // bytes of an operation; less where frames of as many do not fit the network
    std::uint32_t transfers = 1024;  // under way at once
    std::uint32_t pieces = 1024;     // operations under way or waiting to be issued
    Duration give_up = Duration::milliseconds(100);  // of a transfer
    Duration key_wait = Duration::milliseconds(10);  // for a new key
  };
  struct Counters {
    std::uint64_t operations = 0;  // of at most 4 KB, that succeeded
    std::uint64_t retries = 0;
    std::uint64_t key_waits = 0;
  };

  // All outlive it.
  RemoteOnerma(remote::Scheduler& scheduler, Initiator& initiator, const CongestionPolicy& policy,
               const Parameters& parameters);
  ~RemoteOnerma() override;

  // --- set-up ---
  void add_node(remote::NodeId node, const Peer& peer);
  // REQUIRES: the node has been added; its region key in RemoteAddress is the region's number.
  void add_grant(remote::NodeId node, const Grant& grant);
  // After a Rekey: the key for operations from now on.
  void replace_grant(Time now, remote::NodeId node, const Grant& grant);
  // Before a Rekey: a key to go on with when the present one is refused. It does not replace that until an operation has succeeded under it.
  // What has been refused already goes on at once.
  void announce_grant(remote::NodeId node, const Grant& grant);
  // The one that operations use now. REQUIRES: such a grant.
  const Grant& grant(remote::NodeId node, RegionId region);
  // Who wants to know that a key has been refused and none has been announced. Called from poll(), for each
  // operation that then waits; may call replace_grant().
  void on_key_refused(std::function<void(Time now, remote::NodeId node, RegionId region)> ask) {
    ask_ = std::move(ask);
  }

  // Changes the key of a region through a grant that may: remote or third-party Rekey. Calls done(now, status) once, from poll().
  // REQUIRES: such a grant; one at a time.
  void rekey(Time now, remote::NodeId node, RegionId region, const Secret& key,
             std::function<void(Time now, Status status)> done);

  // --- RemoteMemory ---
  remote::Capabilities capabilities() const override;
  void submit(remote::Operation& operation) override;

  // Takes completions, issues what may be issued. Returns how much was done.
  std::size_t poll(Time now);
  Time next_deadline() const;

  Executor& executor() { return executor_; }
  const Counters& counters() const { return counters_; }

 private:
  template <class Element>
  struct Line;
  struct Direction;
  struct Node;
  struct Region;
  struct Transfer;
  struct Piece;

  Region* find(remote::NodeId node, RegionId region);
  void use_present(Region& region);
  remote::Status judge(const remote::Operation& operation);
  void begin(remote::Operation& operation);
  void start_waiting();
  static Direction& direction_of(const Transfer& transfer);
  void pump(Direction& direction);
  void feed_starved();
  void issue(Transfer& transfer, Direction& direction);
  void resubmit(Piece& piece);
  static void on_piece(Time now, Request& request, const Completion& completion);
  void ended(Piece& piece, const Completion& completion);
  bool retry(Piece& piece, const Completion& completion);
  bool another_key(const Piece& piece);
  bool wait_for_key(Piece& piece);
  void key_works(Transfer& transfer);
  static bool may_probe(const Transfer& transfer);
  void park(Transfer& transfer);
  void unpark(Transfer& transfer);
  void release(Region& region);
  void rejoin(Piece& piece);
  void end_key_waits();
  void end_key_waits(Region& region);
  void forget_refusal(Region& region);
  Piece* take_waiting(const Transfer& transfer);
  void leave_turns(const Transfer& transfer);
  void set_give_ups();
  void expire_transfers();
  void expire(Transfer& transfer);
  void grow_old(Transfer& transfer);
  void leave_the_old(Transfer& transfer);
  void piece_done(Piece& piece, Status status);
  void fail(Transfer& transfer, Status status);
  void finish(Transfer& transfer);

  Parameters parameters_;
  Initiator& initiator_;
  Executor executor_;
  std::unordered_map<std::uint32_t, std::unique_ptr<Node>> nodes_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Region>> regions_;  // by node and region
  std::vector<Transfer> transfers_;
  std::vector<Piece> pieces_;
  Transfer* free_transfers_ = nullptr;
  Piece* free_pieces_ = nullptr;
  Direction* starved_ = nullptr;                      // could issue more, had there been pieces
  std::unique_ptr<Line<remote::Operation>> waiting_;  // for a transfer's place
  std::vector<Region*> refused_;
  Transfer* oldest_ = nullptr;  // of those whose give_up is to come, in its order
  Transfer* youngest_ = nullptr;
  std::function<void(Time, remote::NodeId, RegionId)> ask_;
  Secret new_key_{};
  Request rekey_{};
  std::function<void(Time, Status)> rekey_done_;
  Time now_;
  Counters counters_;
};

}  // namespace sluice::onerma
