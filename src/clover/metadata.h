// Clover's metadata server: where each key's chain is found, who may write to which slot, what may be used again. Off the data
// path: clients read and append without it.
//
// Life:       handle() is called once a message; time passes only through its `now`, there are no timers to keep.
// Invariants: 1. Every live slot is in its key's chain. A key's head has the highest stamp of them; all retired ones are before it.
//             2. A retired slot is granted again only cursor_lifetime + max_flight later: no client still holds a cursor to it.
//             3. Every slot is free, owned by one living client, live, retired or an orphan that is being looked into: none leaks.
//             4. A view takes effect only when every lease on the view before has run out.
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
};

// What is wrong with a configuration, if anything.
Result<void> check(const ServerConfig& config);

// Where the server writes what it must not forget: appended before the answer leaves.
class Journal {
 public:
  virtual ~Journal() = default;
  virtual void append(ByteView record) = 0;
};

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
  std::uint64_t sealed = 0;  // keys forgotten
  std::uint64_t views = 0;   // changed
};

class MetadataServer : public remote::MessageService {
 public:
  // REQUIRES: check(config) has nothing to say. The journal, if any, outlives the server.
  explicit MetadataServer(ServerConfig config, Journal* journal = nullptr);
  ~MetadataServer() override;

  std::size_t handle(Time now, ByteView request, MutableBytes response) override;

  // Before the first handle(): takes in one record of an earlier life, in order. False: not a record of this configuration.
  bool replay(ByteView record);
  // After the last replay(): leases, graces and orphans start again at `now`.
  void restart(Time now);

  const ServerCounters& counters() const { return counters_; }
  const SlotTable& slots() const { return slots_; }
  SlotTable& slots() { return slots_; }
  std::size_t keys() const { return directory_.size(); }
  std::size_t clients() const { return clients_.size(); }
  // Versions of all keys that are not retired; looks at every key.
  std::size_t live_versions() const;
  std::uint32_t view_number() const { return view_; }
  std::uint64_t free_slots() const { return slots_.count(SlotState::kFree); }
  std::string summary() const;

 private:
  // A version known to be linked.
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
    std::uint64_t last_sequence = 0;  // of kAllocate
    std::vector<NodePointer> last_grant;
    std::vector<NodePointer> slots;  // granted; some are no longer owned
    std::size_t tidy_at = 1024;
  };
  struct DueKey {
    Time due;
    Key key = 0;
    NodePointer node;
  };

  void advance(Time now);
  void expire_clients(Time now);
  void expire(std::uint32_t client, Time now);
  void change_view();
  Duration lease_left(Time now) const;
  bool work_waits(Time now) const;
  Time reusable(Time now) const { return now + config_.cursor_lifetime + config_.max_flight; }

  Answer serve(Time now, const RequestHeader& header, MessageReader& in, MessageWriter& out, std::uint16_t& count);
  Answer enter(Time now, const RequestHeader& header, MessageWriter& out, std::uint16_t& count);
  void put_current_view(std::uint32_t client, MessageWriter& out, std::uint16_t& count) const;
  Answer look_up(const RequestHeader& header, MessageReader& in, MessageWriter& out, std::uint16_t& count);
  Answer create(const RequestHeader& header, MessageReader& in, MessageWriter& out, std::uint16_t& count);
  Answer report(Time now, const RequestHeader& header, MessageReader& in);
  Answer allocate(Time now, const RequestHeader& header, MessageReader& in, MessageWriter& out, std::uint16_t& count);
  Answer give_back(Time now, const RequestHeader& header, MessageReader& in);
  Answer hand_out_work(Time now, const RequestHeader& header, MessageWriter& out, std::uint16_t& count);
  Answer suspect(Time now, const RequestHeader& header, MessageReader& in);

  Answer take_sealed(Time now, const RequestHeader& header, MessageReader& in);
  void take_link(Time now, const Link& link);
  // Takes what is known of a live version out of its entry; nothing when it is not there.
  static std::optional<Known> take_known(Entry& entry, NodePointer node);
  // Retires all versions of `entry` that come before `newer`, which takes over what their stamps say.
  void supersede(Time now, Entry& entry, Known& newer);
  void retire(Time now, NodePointer node);
  void tidy(ClientState& client, std::uint32_t id);
  void renew(Time now);
  void write_journal(Time now, std::uint8_t kind, ByteView bytes);

  ServerConfig config_;
  Journal* journal_;
  NodeLayout layout_;
  SlotTable slots_;
  std::unordered_map<Key, Entry> directory_;
  std::uint64_t clock_ = 0;
  std::map<std::uint32_t, ClientState> clients_;
  std::vector<std::uint32_t> client_order_;  // by number, for decisions that go over all of them
  std::uint32_t next_client_ = 1;
  Time next_expiry_;
  std::deque<DueKey> settles_;  // keys with several live versions
  std::deque<DueKey> seals_;    // keys whose head is a tombstone
  std::deque<DueKey> orphans_;
  std::uint32_t view_ = 1;
  Time view_change_ = Time::never();
  std::vector<remote::NodeId> leaving_;  // with the next view
  std::vector<std::pair<std::uint32_t, remote::NodeId>> suspicions_;
  bool replaying_ = false;
  ServerCounters counters_;
};

}  // namespace sluice::clover
