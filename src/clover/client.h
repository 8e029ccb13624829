// Clover's client: get, put, insert and erase on chains of versions in passive memory, one-sided but for the first touch of a key.
//
// get:        READ the node that the cursor names; it is the tail: done. It is not: walk on by next pointers.
// put:        WRITE a new node to its slot, then CAS the tail's next word from free to it. Lost the race: the CAS returned
//             the next pointer: try there. insert wants a tombstone (or no chain) at the tail, erase a value.
// Mirrors:    a version is written to all live replicas first. The primary's next word decides who follows; what it says is then
//             forced on the other replicas before anyone acknowledges the version, returns it or appends to it.
// Life:       `co_await join()`, spawn(maintain()), any number of operations at once, `co_await leave()`.
// Invariants: 1. Nothing is submitted on a cursor, or under a view, that is out of its lease; what completes too late to
//                have surely been within it is not believed.
//             2. A slot goes back to use only when it is known not to be linked; else it becomes an orphan at the server.
// Errors:     Outcome. kUnknown: a CAS was submitted whose outcome could not be learnt in time.
// Threads:    one owner, the thread of the RemoteMemory's scheduler. Operations hold on to the Client: it outlives them, or their
//             scheduler is destroyed without running again.
// Source:     docs/design/clover.md, which also argues that it is linearizable.
#pragma once

#include <coroutine>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "clover/cursor_cache.h"
#include "clover/messages.h"
#include "clover/slot_stock.h"
#include "remote/counted_memory.h"
#include "remote/message_channel.h"
#include "remote/remote_memory.h"
#include "remote/task.h"

namespace sluice::clover {

enum class Outcome : std::uint8_t {
  kOk,
  kNotFound,
  kExists,
  kNoSpace,
  kUnavailable,
  kTooLong,
  kUnknown,
  kNoAtomics,  // join(): the remote memory has no compare-and-swap (1RMA), without which there is no Clover
};
std::string_view to_string(Outcome outcome);

struct GetResult {
  Outcome outcome = Outcome::kOk;
  std::size_t length = 0;
};

// A word a key in remote memory that names one of its newer versions: where a walk that finds its cursor out of date goes on (Clover's
// shortcuts, ATC 2020 §4.2). Whoever has appended sees to it that the word is moved on, some time; it may lag, and point back. Ours do
// without: this is for measuring what the published clients do.
class Shortcuts {
 public:
  virtual ~Shortcuts() = default;
  // Eight bytes, as NodePointer::word; 0: none yet.
  virtual remote::RemoteAddress word_of(Key key) const = 0;
  virtual void linked(Key key, NodePointer newest) = 0;
};

struct ClientConfig {
  std::size_t cursors = 1u << 16;
  // Of an operation whose memory or metadata is out of reach. Where the store's lifetimes are long, it is raised to twice what a change of view takes then.
  Duration timeout = Duration::seconds(4);
  Duration space_timeout = Duration::seconds(5);  // of an operation that waits for garbage collection
  Duration backoff_first =
      Duration::microseconds(20);  // after a failed step, doubling, each drawn between half and whole
  Duration backoff_most = Duration::milliseconds(20);
  Duration suspect_after = Duration::milliseconds(200);  // a node that fails for so long is reported
  std::uint32_t slots_wanted = 256;  // per grant, at most: the first are smaller, for clients that write little
  // How long an append waits for a slot of its key's volume, unless that is full, before it takes another's. A version in another volume
  // than the ones before it cannot be steered to.
  Duration volume_patience = Duration::milliseconds(100);
  std::uint32_t links_per_report = 64;
  std::uint32_t steps_before_lookup = 16;  // of a walk, then the server is asked for a newer version
  std::uint32_t swaps_before_walk = 2;     // lost in a row, then the tail is looked for by reading
  Shortcuts* shortcuts = nullptr;          // outlive the client
  // Writers look for the tail by READs of next words alone, 8 bytes each, as the published client's do; no box leads these on.
  bool writers_read_words = false;
  bool share_finds = true;  // writers tell the client's other operations what tail they found, and go on at theirs
};

struct ClientCounters : remote::AccessCounters {
  std::uint64_t gets = 0;
  std::uint64_t puts = 0;
  std::uint64_t inserts = 0;
  std::uint64_t erases = 0;
  std::uint64_t swaps_lost = 0;  // somebody else was first
  std::uint64_t walks = 0;       // steps to a next version
  std::uint64_t shortcuts = 0;   // read; these are not among `reads`
  std::uint64_t cursor_hits = 0;
  std::uint64_t lookups = 0;
  std::uint64_t messages = 0;
  std::uint64_t late = 0;      // completed out of lease, not believed
  std::uint64_t foreign = 0;   // what was read is not the node that was meant: another life of its slot
  std::uint64_t steered = 0;   // a box on the way led a read to a newer version
  std::uint64_t failures = 0;  // remote operations that did not end as kOk
  std::uint64_t orphans = 0;
  std::uint64_t strays = 0;  // appends to another volume than their key's
  std::uint64_t work = 0;    // pieces done for the server
};

class Client {
 public:
  Client(remote::RemoteMemory& memory, remote::MessageChannel& channel, const ClientConfig& config, Rng rng);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Enters the store. kUnavailable when the server does not answer in time; kNoAtomics when the remote memory has none.
  remote::Task<Outcome> join();
  // Keeps lease and reports going and does work for the server, until leave(). To be spawned.
  remote::Task<void> maintain();
  // Reports what is to report, gives unused slots back and returns when maintain() has ended. REQUIRES: no operation is under
  // way.
  remote::Task<void> leave();

  // The value goes to the start of `into`, which value_bytes() are enough for; kTooLong: they were not, the store is another since.
  remote::Task<GetResult> get(Key key, MutableBytes into);
  remote::Task<Outcome> put(Key key, ByteView value);
  remote::Task<Outcome> insert(Key key, ByteView value);
  remote::Task<Outcome> erase(Key key);

  // The most a value may have, also while it is out for a moment and joins again; 0 before join().
  std::uint32_t value_bytes() const { return ever_joined_ ? layout_.value_bytes() : 0; }
  bool joined() const { return joined_; }
  const ClientCounters& counters() const { return counters_; }
  // Links not yet reported and slots in hand, for tests and status lines.
  std::size_t unreported() const { return links_.size(); }
  std::size_t slots_in_hand() const { return slots_.size(); }

 private:
  enum class Append : std::uint8_t { kPut, kInsert, kErase };
  class Buffers;
  class Buffer;
  struct Operation;
  struct Call;
  // What a walk found: kOk, kNotFound (no such chain) or kUnavailable (out of reach, or lost).
  struct Tail {
    Outcome outcome = Outcome::kOk;
    Cursor cursor{};          // its node has the kind that the tail's next word says
    std::size_t length = 0;   // of its value
    std::uint64_t stamp = 0;  // it was the tail after the server's clock showed this
  };
  // What doing something to the mirrors of a node came to.
  struct Mirrored {
    remote::Status status = remote::Status::kOk;
    remote::NodeId failed{};
    bool late = false;  // not begun or not ended in lease: nothing is known
  };
  // What one try to append came to; kDone: the operation has its outcome.
  enum class Step : std::uint8_t { kDone, kAgain };
  // As whom it acts in which store: what it was granted, or asked for, as another is of no use any more.
  struct Membership {
    std::uint32_t store = 0;
    std::uint32_t client = 0;
    friend bool operator==(const Membership&, const Membership&) = default;
  };
  // Views of different stores may have one number.
  struct ViewName {
    std::uint32_t store = 0;
    std::uint32_t number = 0;
    friend bool operator==(const ViewName&, const ViewName&) = default;
  };
  // Along a chain to its tail.
  struct Walk {
    Cursor at{};
    Cursor previous{};       // it came from here, if its node is set
    std::uint64_t link = 0;  // by this word
    std::uint32_t steps = 0;
    ViewName view;
    bool asked = false;  // the server, for the newest that it knows
  };
  // Under which conditions an answer of remote memory is to be believed.
  struct Trust {
    ViewName view;
    Time until;
  };

  // operations.cpp: appending
  remote::Task<Outcome> append(Append how, Key key, ByteView value);
  remote::Task<Step> first_version(Operation& op);
  remote::Task<Step> append_at(Operation& op);
  remote::Task<Step> judge_swap(Operation& op, std::uint64_t prior);
  remote::Task<Step> finish_link(Operation& op);
  remote::Task<Step> write_node(Operation& op);
  remote::Task<Step> catch_up(Operation& op);
  remote::Task<Step> check_kind(Operation& op);
  Step lose_cursor(Operation& op);
  Step act_later(Operation& op);
  void take_fresh(Operation& op, NodePointer slot);
  // Its node is about to be written to the replicas of the present view.
  void note_writing(Operation& op);
  void forget_writing(Operation& op);
  Outcome close(Operation& op);

  // chain.cpp: walking, mirrors, failures
  // Into `node` goes the tail; or, of kNextBytes, its next word alone.
  remote::Task<Tail> find_tail(Key key, Cursor start, Time deadline, MutableBytes node);
  remote::Task<Outcome> begin_anew(Walk& walk, Key key, Time deadline);
  bool go_on(Walk& walk, std::uint64_t next, NodePointer shortcut);
  void lose_way(Walk& walk);
  // A cursor in the cache that is in lease; nullptr: the server must be asked.
  const Cursor* cached_cursor(Key key);
  // kUnavailable: out of reach, or what the server names is lost.
  remote::Task<Outcome> look_up(Key key, Cursor& cursor, Time deadline);
  // Reads a node, and the key's shortcut with it.
  remote::Task<remote::Status> read_with_shortcut(Key key, remote::RemoteAddress where, MutableBytes node,
                                                  NodePointer& shortcut);
  // Makes the other live replicas of `node` say `next`, as its primary does.
  remote::Task<Mirrored> stabilise(Cursor node, Key key, std::uint64_t next);
  remote::Task<Mirrored> write_mirrors(NodePointer node, ByteView bytes);
  // The chain of `key` has ended for good at `node`: the server may forget it. False: out of reach before the deadline.
  remote::Task<bool> report_sealed(Key key, Cursor node, Time deadline);
  // What the bytes read at `at` are.
  enum class Found : std::uint8_t { kForeign, kPassed, kTail, kSealed };
  Found judge_next(Key key, Cursor& at, std::uint64_t next);
  Found judge_node(Key key, Cursor& at, const NodeView& seen);

  const Volume* volume_of(NodePointer node) const;
  bool mirrored(NodePointer node) const { return volume_of(node)->mirrored(); }
  // In a volume of the view which is not lost: in one that is nothing may be read, found or appended to.
  bool is_there(NodePointer node) const { return node.volume() < view_.volumes.size() && !volume_of(node)->is_lost(); }
  // REQUIRES: is_there(node), as of all that is in lease.
  remote::RemoteAddress primary_of(NodePointer node) const;
  Membership membership() const { return {view_.store, view_.client}; }
  ViewName view_name() const { return {view_.store, view_.number}; }
  bool leased() const { return joined_ && !view_stale_ && letting_go_ != view_.number && now() < lease_; }
  // What it names is still that, if somebody may act on it.
  bool in_time(const Cursor& cursor) const {
    return cursor.confirmed >= lifetime_since_ && now() < cursor.confirmed + view_.cursor_lifetime;
  }
  bool in_lease(const Cursor& cursor) const;
  Trust trust(const Cursor& cursor) const;
  bool believable(const Trust& trust);

  // A step on `node` failed: backs off, tells the server, renews the lease. False: no use in trying again.
  remote::Task<bool> recover(remote::NodeId node, remote::Status status, Time deadline, Duration& backoff);
  void node_works(remote::NodeId node);
  // False: the server was not reached, or cannot do without the node now.
  remote::Task<bool> suspect(remote::NodeId node);
  remote::Task<void> back_off(Duration& backoff);

  // server_calls.cpp: talking with the metadata server
  // False: no answer before the deadline.
  remote::Task<bool> call(Call& call, Time deadline);
  remote::Task<bool> ensure_lease(Time deadline);
  remote::Task<bool> renew_lease(Time deadline);
  void lost_membership();
  // The server's is another store than before: all that was known of that one is of no use.
  void begin_in_another_store();
  // The last slot in hand is kept for erasing: a full store could not be emptied otherwise.
  remote::Task<Outcome> take_slot(const Operation& op, NodePointer& slot);
  // How many slots of a volume are granted, and used, at a time.
  struct Use {
    std::size_t granted = 0;
    std::size_t taken = 0;  // since maintain() came by
  };
  Use& use_of(std::uint32_t volume);
  void put_back(NodePointer slot);
  // Few are free: gives back what it does not need soon.
  remote::Task<void> release_spare();
  bool is_full(std::uint32_t volume) const { return volume < full_until_.size() && now() < full_until_[volume]; }
  remote::Task<void> refill(std::uint32_t volume);
  std::uint32_t home_of(Key key) const;
  void report(const Link& link);
  void orphan(NodePointer slot);
  remote::Task<void> flush_links();
  // That `member` had. False: not all of them have been told.
  remote::Task<bool> send_slots(Request type, Membership member, std::vector<NodePointer> slots);
  remote::Task<bool> send_orphans();
  // Remote memory is used between the two, and every use is counted: a view cannot be let go of while one is under way.
  void depart(std::size_t operations = 1) { under_way_ += operations; }
  void arrive(remote::NodeId node, remote::Status status);
  // The view ends, since a node is dead: does nothing more under it, and tells the server once all that was begun has ended.
  remote::Task<void> let_go(std::uint32_t view);
  bool anything_under_way();
  // A replica has come back, perhaps: tells the server when all that was done under views before has been reported.
  remote::Task<void> settle_view();
  // Orphans to look into, keys to settle and to seal, as the server hands them out: unless there are none, or it is done already.
  void begin_work();
  remote::Task<void> do_work();
  // An orphan that no walk along the chain of the key which it holds has met.
  struct Checked {
    Key key = 0;
    NodePointer slot;
  };
  // False: it is of another membership, of the store before perhaps.
  remote::Task<bool> do_piece(Work piece, Membership member, Time submitted, std::vector<Checked>& checked);
  remote::Task<void> settle(Key key, Cursor head, WorkKind kind);
  // None: it was met, or that is not known.
  remote::Task<std::optional<Checked>> check_orphan(NodePointer slot);
  enum class Met : std::uint8_t { kNo, kYes, kCannotTell };
  remote::Task<Met> meets(Key key, NodePointer slot);
  // No mirror of the tail names the orphan as the next version any more. False: that is not known.
  remote::Task<bool> unname(Cursor tail, Key key, NodePointer orphan);

  Time now() const { return scheduler_.now(); }

  remote::RemoteMemory& memory_;
  remote::MessageChannel& channel_;
  remote::Scheduler& scheduler_;
  ClientConfig config_;
  Rng rng_;

  bool joined_ = false;
  bool ever_joined_ = false;
  bool leaving_ = false;
  bool maintaining_ = false;
  NodeLayout layout_;
  StoreView view_;
  Time lease_;                    // the view, and membership, may be acted upon until then
  bool view_stale_ = false;       // the server has a newer one
  Time lifetime_since_;           // cursors from before were good for another
  std::uint32_t letting_go_ = 0;  // the view under which nothing more is begun
  bool is_letting_go_ = false;
  std::uint32_t let_go_ = 0;   // the view of which the server has been told that
  std::size_t under_way_ = 0;  // operations on remote memory
  // Where one ended of which nobody knows whether it has taken effect, and until when it may.
  std::vector<std::pair<remote::NodeId, Time>> doubtful_;
  bool work_waits_ = false;
  bool working_ = false;
  std::uint64_t clock_ = 0;  // the server's, as last heard
  bool renewing_ = false;

  CursorCache cursors_;
  std::shared_ptr<Buffers> buffers_;
  SlotStock slots_;
  std::vector<Use> uses_;           // by volume
  std::vector<NodePointer> spare_;  // to be given back
  bool slots_short_ = false;        // says the server
  std::uint32_t grant_sequence_ = 0;
  bool grant_open_ = false;  // the last grant was asked for and not answered
  Duration space_wait_;
  bool out_of_space_ = false;
  std::vector<Time> full_until_;  // by volume: a grant that was to be of it had none
  bool refilling_ = false;
  std::deque<Link> links_;
  std::uint64_t links_told_ = 0;  // of all that were ever in links_, or left to the server to find
  bool flushing_ = false;
  std::vector<NodePointer> orphans_;
  bool sending_orphans_ = false;
  // Operations under way whose nodes were written under which view.
  std::vector<std::pair<std::uint32_t, std::size_t>> writing_;
  std::uint32_t settling_ = 0;        // the view that is to be settled,
  std::uint64_t settling_links_ = 0;  // when so many links have been told
  std::uint32_t settled_ = 0;         // the view of which the server knows that all before is reported

  struct NodeHealth {
    remote::NodeId node;
    bool failing = false;
    Time since;
    Time report_at;  // if it is still failing then
  };
  NodeHealth& health_of(remote::NodeId node);
  std::vector<NodeHealth> health_;

  ClientCounters counters_;
};

}  // namespace sluice::clover
