// Clover's metadata server: where each key's chain is found, who may write to which slot, what may be used again. Off the data
// path: clients read and append without it.
//
// Life:       handle() is called once a message; time passes only through its `now`, there are no timers to keep.
// Invariants: 1. Every live slot is in its key's chain. A key's head has the highest stamp of them; all retired ones are before it.
//             2. A retired slot is granted again only cursor_lifetime + max_flight later: no client still holds a cursor to it.
//             3. Every slot is free, owned by one living client, live, set aside, retired or an orphan that is being looked into: none leaks.
//             4. A view that leaves a replica out takes effect only when every lease on the view before has run out.
//             5. A replica that has come back is counted only when it has all that any live version needs; until then it is never primary, nor
//                is the last one that is counted left out. Of several the dead ones go; where nobody knows which are dead, none does.
// Units:      lifetimes in whole microseconds on the wire.
// Errors:     what is malformed or impossible is answered so and counted; nothing a client sends stops the server.
// Threads:    one owner.
// Source:     Clover (Tsai, Shan, Zhang; ATC 2020) §4 as far as the SwordBox papers tell; docs/design/clover.md has the argument.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "clover/messages.h"
#include "clover/slots.h"
#include "remote/message_channel.h"

namespace sluice::clover {

struct ServerConfig {
  std::vector<Volume> volumes;
  std::uint32_t value_bytes = 1000;  // the most a value may have
  // How long a client may trust a tail that it has seen, and a view. Longer: fewer look-ups; shorter: memory comes back sooner.
  Duration cursor_lifetime = Duration::seconds(1);
  // No operation takes effect later than this after its submission. The transport's retries must have ended by then.
  Duration max_flight = Duration::seconds(1);
  std::uint32_t grant_slots = 256;  // at most, with one kAllocate
  std::uint32_t suspicions = 1;     // so many clients must suspect a node before it is left out
  // The memory that the volumes lie in; without it nodes that come back are not recognised.
  std::vector<Home> homes{};
  // Another for each store that there is: a client that outlives its store must not be taken for one of the next.
  std::uint32_t store = 0;
};

// What is wrong with a configuration, if anything.
Result<void> check(const ServerConfig& config);

// Where the server writes what it must not forget: appended before the answer leaves.
class Journal {
 public:
  virtual ~Journal() = default;
  virtual void append(ByteView record) = 0;
};

enum class RecordKind : std::uint8_t;  // records.h

struct ServerCounters {
  std::uint64_t requests = 0;
  std::uint64_t malformed = 0;
  std::uint64_t refused = 0;
  std::uint64_t lookups = 0;
  std::uint64_t created = 0;
  std::uint64_t links = 0;        // reported for the first time
  std::uint64_t confirmed = 0;    // reported again
  std::uint64_t links_stale = 0;  // reported of a slot that has gone back meanwhile
  std::uint64_t retired = 0;
  std::uint64_t grants = 0;  // slots
  std::uint64_t expired_clients = 0;
  std::uint64_t orphans = 0;
  std::uint64_t sealed = 0;    // keys forgotten
  std::uint64_t views = 0;     // changed
  std::uint64_t rejoined = 0;  // replicas that came back
  std::uint64_t copied = 0;    // versions, onto them
  std::uint64_t let_go = 0;    // views that ended before their time was up, since all clients had let go of them
  std::uint64_t restored = 0;  // replicas that count again
};

// A version that a replica lacks: everything but the next word is to be written to it, and then the next word, if it is still 0.
struct CopyTask {
  NodePointer node;
  remote::RemoteAddress from;
  remote::RemoteAddress to;
  std::uint8_t replica = 0;
  std::uint32_t view = 0;  // that the replica came back with
};

// Memory to be blanked before a replica in it may come back: the next words of so many slots.
struct WipeTask {
  std::uint32_t volume = 0;
  remote::RemoteAddress at;
  std::size_t slots = 0;
};

class MetadataServer : public remote::MessageService {
 public:
  // REQUIRES: check(config) has nothing to say. The journal, if any, outlives the server.
  explicit MetadataServer(ServerConfig config, Journal* journal = nullptr);
  ~MetadataServer() override;

  std::size_t handle(Time now, ByteView request, MutableBytes response) override;

  // Before the first handle(): takes in one record of an earlier life, in order. False: not a record of this configuration. The lifetime of
  // cursors may be another: that of the life before holds until restart().
  bool replay(ByteView record);
  // All that it knows as one record, with which a new journal may begin.
  std::vector<std::uint8_t> state(Time now) const;
  // After the last replay(): leases, graces and orphans start again at `now`, as long as the longest lifetime of cursors that a client may still go by.
  void restart(Time now);
  // Whoever serves it is awake. To be called every eighth of cursor_lifetime, once it has been called at all: where it is late, because the process was
  // stopped say, or wrote a long journal, nobody was heard meanwhile, and nobody is taken for lost for that time.
  void awake(Time now);

  // Replicas come and go (replicas.cpp), as whoever watches the memory nodes tells; section 4 of docs/design/clover.md.
  enum class Advice : std::uint8_t {
    kNothing,  // the node has its part, or none
    kWait,     // it will be left out soon
    kWipe,     // do what wipes() says, then rejoin()
  };
  // The node is there. A known life under another key is taken as what it was; another life is first left out.
  Advice see(Time now, const Home& home);
  // The node is gone: left out with the next view, where others have what it had. False: nothing to leave out.
  bool lose(Time now, remote::NodeId node);
  // The store lies in this very memory.
  bool knows(const Home& home) const;
  // Of a node that the store lies on; where that is not known its number.
  std::string name_of(remote::NodeId node) const;
  // It lies, or lay, in memory of this node.
  bool has_part_on(const Home& home) const { return find_home(home) != nullptr; }
  // And it has this number there.
  bool has_part_on(remote::NodeId node, const std::string& name) const;
  std::vector<WipeTask> wipes(const Home& home) const;
  // Blank memory takes its part again where it has been left out: written to from now on. `blanked` is what wipes() said before it
  // was done: a volume that it did not name, for the view was another then, is let alone until it is blank, too.
  // Nor where the only replica that counts is lost as well: what the node has of that volume is let alone.
  // REQUIRES: see() says kWipe.
  void rejoin(Time now, const Home& home, std::span<const WipeTask> blanked);
  // Versions to copy now. What is done about them is submitted before `until`. Returns how many.
  std::size_t next_copies(Time now, std::span<CopyTask> out, Time& until);
  // It has been; or the primary holds no such node: not there.
  void copied(const CopyTask& task);
  void not_there(const CopyTask& task);
  // How many replicas are live and not counted yet; out of the view, of volumes that are not lost.
  std::size_t joining() const { return joins_.size(); }
  std::size_t missing() const;
  // Volumes whose keys are unavailable for good.
  std::size_t lost_volumes() const;
  const NodeLayout& layout() const { return layout_; }
  Duration max_flight() const { return config_.max_flight; }
  std::span<const Volume> volumes() const { return config_.volumes; }

  const ServerCounters& counters() const { return counters_; }
  const SlotTable& slots() const { return slots_; }
  SlotTable& slots() { return slots_; }
  std::size_t keys() const { return directory_.size(); }
  std::size_t clients() const { return clients_.size(); }
  // Versions of all keys that are not retired; looks at every key.
  std::size_t live_versions() const;
  std::uint32_t view_number() const { return view_; }
  std::uint64_t free_slots() const { return slots_.room(config_.volumes).free; }
  // Granted at some time: what the server's memory grows with, up to all slots.
  std::uint64_t touched_slots() const;
  std::string summary() const;

 private:
  // A version known to be linked; or, set aside, an orphan that no walk has met: it is not linked, or comes before the head of then.
  struct Known {
    NodePointer node;
    std::uint64_t told = 0;   // the clock when it became known
    std::uint64_t stamp = 0;  // all known by then comes before it
  };
  struct Entry {
    Known head;
    std::vector<Known> others;  // not known to come before the head
    bool settling = false;      // in settles_
  };
  struct ClientState {
    Time until;
    std::uint32_t last_sequence = 0;  // of kAllocate
    std::vector<NodePointer> last_grant;
    std::vector<NodePointer> slots;  // granted; some are no longer owned
    std::size_t tidy_at = 1024;
    std::uint32_t settled = 0;  // has reported all that it did under views before
    std::uint32_t let_go = 0;   // does no more under this view, and nothing that it did is under way
  };
  // A live replica that does not count yet.
  struct Join {
    std::uint32_t volume = 0;
    std::uint8_t replica = 0;
    std::uint32_t view = 0;  // that it came back with
    Time ready;              // nobody acts under a view before any more
    std::uint32_t at = 0;    // of this pass through all slots
    bool clean = true;       // this pass has found nothing lacking
    bool settled = false;    // when this pass began, all clients were
  };
  struct DueKey {
    Time due;
    Key key = 0;
    NodePointer node;
  };

  void advance(Time now);
  void note_awake(Time now);
  void expire_clients(Time now);
  // `clean`: nothing that it did is under way.
  void expire(std::uint32_t client, Time now, bool clean);
  void make_orphan(Time now, Slot& slot, NodePointer pointer);
  void change_view(Time now);
  bool counts(std::size_t volume, std::size_t j) const;
  // The replica lives, and the volume can do without it.
  bool can_leave(std::size_t volume, std::size_t j) const;
  bool can_leave(remote::NodeId node) const;
  bool leaves_now(std::size_t v, std::size_t j) const;
  bool is_lost(const Volume& volume) const;
  // The only replica that counts is gone for good: no new key and no new version goes there.
  void give_up(std::uint32_t volume);
  bool is_given_up(NodePointer node) const { return config_.volumes[node.volume()].live == 0; }
  bool takes_back(const Volume& volume, std::size_t j, const Home& home) const;
  bool is_leaving(remote::NodeId node) const;
  void leave_out(Time now, remote::NodeId node);
  // What the node that is leaving held is gone for good.
  void note_dead(remote::NodeId node);
  // Who leaves with the present view is dead, and the server itself does nothing under it.
  bool may_end_early() const;
  bool all_have_let_go(Time now) const;
  bool has_let_go(std::uint32_t client) const;
  const Home* home_of(remote::NodeId node) const;
  // By its name, where that is known: a node that the directory had forgotten has another number, and its number may be another's.
  const Home* find_home(const Home& home) const;
  void rename(remote::NodeId from, remote::NodeId to);
  void name_home(const Home& home);
  void rename_volumes(const std::vector<Home>& before);
  void take_home(const Home& home);
  void rekey(const Home& home);
  void admit(Time now, const Home& home, std::span<const std::uint32_t> without);
  void count_replica(std::uint32_t volume, std::uint8_t replica);
  Slot* awaits_copy(const CopyTask& task);
  bool all_settled(std::uint32_t view) const;
  bool replay_replicas(Time now, RecordKind kind, MessageReader& in);
  Duration lease_left(Time now) const;
  // On the view. Shorter than that on a cursor: so long everybody waits when a replica is lost.
  Duration view_lease() const { return config_.cursor_lifetime / 4; }
  bool work_waits(Time now) const;
  Time reusable(Time now) const { return std::max(now + config_.cursor_lifetime + config_.max_flight, grace_until_); }
  // Nobody acts under a view that the life before has told of.
  Time old_leases_end() const { return grace_until_ - longest_ + longest_ / 4; }

  Answer serve(Time now, const RequestHeader& header, MessageReader& in, MessageWriter& out, std::uint16_t& count);
  Answer enter(Time now, const RequestHeader& header, MessageWriter& out, std::uint16_t& count);
  void put_current_view(std::uint32_t client, MessageWriter& out, std::uint16_t& count) const;
  Answer look_up(const RequestHeader& header, MessageReader& in, MessageWriter& out, std::uint16_t& count);
  Answer create(const RequestHeader& header, MessageReader& in, MessageWriter& out, std::uint16_t& count);
  Answer report(Time now, const RequestHeader& header, MessageReader& in);
  Answer allocate(Time now, const RequestHeader& header, MessageReader& in, MessageWriter& out, std::uint16_t& count);
  Answer give_back(Time now, const RequestHeader& header, MessageReader& in);
  Answer take_checked(Time now, const RequestHeader& header, MessageReader& in);
  Answer hand_out_work(Time now, const RequestHeader& header, MessageWriter& out, std::uint16_t& count);
  Answer suspect(Time now, const RequestHeader& header, MessageReader& in);
  Answer settle(const RequestHeader& header, MessageReader& in);
  Answer let_go(Time now, const RequestHeader& header, MessageReader& in);

  Answer take_sealed(Time now, const RequestHeader& header, MessageReader& in);
  void take_link(Time now, const Link& link);
  // Whether it is one of the entry's live versions.
  static bool names(const Entry& entry, NodePointer node);
  // Takes what is known of a live version out of its entry; nothing when it is not there.
  static std::optional<Known> take_known(Entry& entry, NodePointer node);
  // Retires all versions of `entry` that come before `newer`, which takes over what their stamps say.
  void supersede(Time now, Entry& entry, Known& newer);
  void retire(Time now, NodePointer node);
  void tidy(ClientState& client, std::uint32_t id);
  void renew(Time now, Duration lifetime, Duration longest);
  bool load(MessageReader& in);
  void write_journal(Time now, RecordKind kind, ByteView bytes);

  ServerConfig config_;
  Duration lifetime_asked_;  // of cursors, from restart() on
  Duration longest_;         // lifetime that clients may go by until the grace after restart() ends
  Time grace_until_;
  Time last_record_;  // replayed
  Journal* journal_;
  NodeLayout layout_;
  SlotTable slots_;
  std::unordered_map<Key, Entry> directory_;
  std::uint64_t clock_ = 0;
  std::map<std::uint32_t, ClientState> clients_;
  std::vector<std::uint32_t> client_order_;  // by number, for decisions that go over all of them
  std::uint32_t next_client_ = 1;
  Time next_expiry_;
  std::optional<Time> awake_at_;  // last; none: nobody says
  std::deque<DueKey> settles_;    // keys with several live versions
  std::deque<DueKey> seals_;      // keys whose head is a tombstone
  std::deque<DueKey> orphans_;
  std::uint32_t view_ = 1;
  Time view_change_ = Time::never();
  std::vector<remote::NodeId> leaving_;                // with the next view
  std::vector<remote::NodeId> dead_;                   // of those
  std::vector<remote::NodeId> anew_;                   // last seen with another life than the store knows
  Time last_gone_ = Time() - Duration::seconds(3600);  // when a client went that had not let go
  std::vector<Join> joins_;
  std::vector<std::pair<std::uint32_t, remote::NodeId>> suspicions_;
  bool replaying_ = false;
  ServerCounters counters_;
};

}  // namespace sluice::clover
