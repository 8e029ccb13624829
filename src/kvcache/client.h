// A cache's client: looks keys up in any of their replicas by one-sided reads, and changes them in all.
//
// get:        READ of the key's bucket, then of the entry: two round trips. A key's replicas are asked in an order of its own, so that lookups spread; who
//             does not answer is left out, and the next one is asked.
// set, erase: the request into this client's mailbox at every replica, together; then the answers are read until they are there. Where something newer is,
//             all get it again with a version above that.
// Failure:    a replica that has failed `failures` times in a row is left out until it answers a look, every `look_after`. If it has another life by
//             then, what it lacks is asked of others, too; one that missed a change of ours is asked last.
// Life:       `co_await join()`; then any number of lookups at once; changes go one after the other.
// Errors:     Outcome. kPartial: some replicas took the change, others were out of reach, and may have or not.
// Threads:    one owner, the thread of the RemoteMemory's scheduler. Operations hold on to the Client: it outlives them, or their
//             scheduler is destroyed without running again.
// Limits:     ClientConfig.
// Source:     README.md.
#pragma once

#include <coroutine>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kvcache/layout.h"
#include "remote/buffers.h"
#include "remote/remote_memory.h"

namespace sluice::kvcache {

struct ClientConfig {
  std::uint16_t number = 0;        // no other client has it at the same time
  std::uint32_t max_value = 4096;  // bytes
  std::uint32_t failures = 2;      // in a row, until a replica is left out
  Duration look_after = Duration::milliseconds(10);
  Duration answer_pause = Duration::microseconds(20);  // between two looks for an answer
  Duration change_deadline = Duration::milliseconds(500);
};

enum class Outcome : std::uint8_t {
  kOk,
  kMiss,         // get: not there; erase: no difference is made
  kPartial,      // set, erase: not all replicas are known to have it
  kUnavailable,  // no replica could be reached; set, erase: or none took it, for something newer came each time
  kTooLong,      // key, or value
};
std::string_view to_string(Outcome outcome);

struct GetResult {
  Outcome outcome = Outcome::kOk;
  std::size_t length = 0;
  Version version{};
};

// One replica: its table, and this client's mailbox there. length 0: no mailbox, lookups only.
struct Replica {
  remote::RemoteAddress table{};
  remote::RemoteAddress mailbox{};
  std::uint64_t mailbox_bytes = 0;
};

struct ClientCounters {
  std::uint64_t reads = 0;      // one-sided, of lookups
  std::uint64_t again = 0;      // entries that changed while they were read
  std::uint64_t failovers = 0;  // lookups that asked another replica
  std::uint64_t left_out = 0;   // times that a replica was
  std::uint64_t came_back = 0;

  template <class Visit>
  void for_each(Visit visit) const {
    visit("reads", "one-sided reads of lookups", reads);
    visit("again", "entries that changed while they were read", again);
    visit("failovers", "lookups that asked another replica", failovers);
    visit("left_out", "times that a replica was left out", left_out);
    visit("came_back", "times that one came back", came_back);
  }
};

class Client {
 public:
  // The memory outlives the client.
  Client(remote::RemoteMemory& memory, std::vector<Replica> replicas, const ClientConfig& config);
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // kUnavailable: no replica answers as a cache should.
  remote::Task<Outcome> join();
  // The value goes to the start of `into`. kTooLong: it has more bytes than that.
  remote::Task<GetResult> get(ByteView key, MutableBytes into);
  remote::Task<Outcome> set(ByteView key, ByteView value) { return change(key, value, false); }
  remote::Task<Outcome> erase(ByteView key) { return change(key, {}, true); }

  bool up(std::size_t replica) const { return states_[replica].up; }
  const ClientCounters& counters() const { return counters_; }

 private:
  struct State {
    TableHeader header{};
    std::uint32_t failures = 0;  // in a row
    bool known = false;          // the header has been read
    bool up = false;
    bool emptied = false;  // it began another life while we knew it
    bool stale = false;    // it missed a change of ours: asked last, until it begins another life
    bool looking = false;
  };
  enum class Found : std::uint8_t { kYes, kNo, kTooLong, kUnreachable };
  class Turn;

  // In which order replicas are asked: the lower the earlier.
  int rank(std::size_t replica) const;
  std::optional<std::size_t> next_to_ask(std::size_t first, const std::vector<bool>& asked, int end) const;
  remote::Task<bool> look_at(std::size_t replica);
  remote::Task<void> look_until_up(std::size_t replica);
  remote::Task<Found> find(std::size_t replica, ByteView key, MutableBytes into, GetResult& result);
  remote::Task<Found> read_entry(std::size_t replica, Word word, ByteView key, MutableBytes into, GetResult& result,
                                 bool& changed);
  void failed(std::size_t replica);
  void learn(Version version);
  remote::Task<Outcome> change(ByteView key, ByteView value, bool erased);
  struct Asked;
  remote::Task<void> ask(std::size_t replica, ByteView request, Time deadline, Asked& asked);

  remote::RemoteMemory& memory_;
  std::vector<Replica> replicas_;
  std::vector<State> states_;
  ClientConfig config_;
  std::shared_ptr<remote::Buffers> buffers_;
  std::vector<std::uint8_t> request_;
  std::uint64_t sequence_ = 0;
  std::uint64_t counter_ = 0;  // of versions
  bool changing_ = false;
  std::deque<std::coroutine_handle<>> in_turn_;
  ClientCounters counters_;
};

}  // namespace sluice::kvcache
