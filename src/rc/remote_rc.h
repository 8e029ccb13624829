// RemoteMemory and MessageChannel over reliable connections: a queue pair for each memory node, one completion queue for all.
//
// Life:       add_node() with a connected queue pair -> submit() -> the owner's loop drives the adapter, then calls poll().
//             When a queue pair fails, what it may have executed ends as kUnknown, what it never sent as kUnreachable, what the peer
//             refused as kAccessDenied; the node is then unreachable until add_node() gives a new queue pair.
// Order:      as one queue pair has it: operations to one node execute in order; a READ and a later WRITE are not fenced.
// Flight:     an operation's not_after holds for each of its packets, and with a bound of our own, no packet of a WRITE or an atomic leaves later
//             than that after submit(), however long the port was full, the queue long or the program stopped: the queue pair breaks instead.
//             (What was packed in time, and has not left when the program goes on after a stop, is discarded by its loop: nic/poll_loop.h,
//             "Stopped". Up to 0.1 s may pass unnoticed.) With what a packet may take on its way, this is what makes the stores' `flight` true:
//             what was submitted longer ago has been executed, or never will be. A READ may be late. What expires in line ends as kUnreachable,
//             and all that stands behind it: nothing passes it.
// Limits:     up to `depth` operations a node in the send queue; what is submitted beyond waits in line, without limit.
// Threads:    the adapter's owner.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "rc/adapter.h"
#include "remote/message_channel.h"
#include "remote/remote_memory.h"

namespace sluice::rc {

class RemoteRc final : public remote::RemoteMemory {
 public:
  // `completions` must be used by this object's queue pairs alone, for sending and receiving. `leaves_within`: see Flight; zero: no bound.
  RemoteRc(remote::Scheduler& scheduler, Adapter& adapter, CompletionQueue& completions, Duration leaves_within = {});
  ~RemoteRc() override;

  // REQUIRES: the pair is in RTS, its send completions go to `completions`, which has room for the send depths of all nodes' pairs.
  // Replaces the node's pair, as if by remove_node() first.
  void add_node(remote::NodeId node, QueuePair& pair);
  // Ends what has been answered as it was, what is outstanding as kUnknown, what waits in line as kUnreachable. The pair itself stays the
  // caller's, who moves it to ERR (better before: then what never left is known, too) or RESET, or destroys it, before the memory of those
  // operations goes away.
  void remove_node(remote::NodeId node);
  bool connected(remote::NodeId node) const;

  remote::Capabilities capabilities() const override;
  void submit(remote::Operation& operation) override;

  // Takes completions and ends operations; call after the adapter has moved. Returns how many. May be called from on_complete.
  std::size_t poll(Time now);
  // The time that submit() passes to the adapter, updated by poll().
  Time now() const { return now_; }

 private:
  struct Line {  // first in, first out, linked through Operation::next
    remote::Operation* first = nullptr;
    remote::Operation* last = nullptr;

    bool empty() const { return first == nullptr; }
    void push(remote::Operation& operation);
    remote::Operation& pop();  // REQUIRES: not empty
  };
  struct Node {
    QueuePair* pair = nullptr;
    std::uint32_t in_flight = 0;
    std::uint32_t depth = 0;
    bool failed = false;
    Line posted;   // in the send queue, so in the order of their completions
    Line waiting;  // the send queue was full
  };

  Node* find(remote::NodeId node) const;
  Node* find(Qpn qpn);
  bool post(Node& node, remote::Operation& operation);
  void on_completion(const Completion& completion);
  void post_waiting(Node& node);
  void fail_all(Line& line, remote::Status status);

  Adapter& adapter_;
  CompletionQueue& completions_;
  std::vector<Node*> near_;                                         // nodes with small numbers, by number
  std::unordered_map<std::uint32_t, std::unique_ptr<Node>> nodes_;  // by NodeId
  std::unordered_map<std::uint32_t, Node*> by_qpn_;
  std::unordered_set<std::uint32_t> lost_;  // nodes that were connected, and are not now: unreachable, not unknown
  Qpn last_qpn_{};                          // looked up last: completions come in runs
  Node* last_node_ = nullptr;
  std::uint32_t total_depth_ = 0;
  Duration leaves_within_;
  Time now_;
  std::array<Completion, 32> burst_;  // taken from the queue: those from next_ on are still to be looked at
  std::size_t next_ = 0;
  std::size_t taken_ = 0;
};

// Client of a MessageService at the other end of one queue pair: SEND carries the request, the answer comes as SEND.
class MessageClientRc final : public remote::MessageChannel {
 public:
  // REQUIRES: the pair is in RTS and has this completion queue, for itself alone, on both sides, with room for 2 * depth; its queues
  // are at least `depth` deep. Buffers live here: the pair goes to ERR or RESET, or is destroyed, before this object.
  MessageClientRc(remote::Scheduler& scheduler, Adapter& adapter, QueuePair& pair, CompletionQueue& completions,
                  std::uint32_t depth = 16);
  ~MessageClientRc() override;

  void submit(remote::Call& call) override;
  std::size_t poll(Time now);
  bool failed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Serves a MessageService to the other ends of any number of queue pairs.
class MessageServerRc {
 public:
  MessageServerRc(Adapter& adapter, remote::MessageService& service, CompletionQueue& completions,
                  std::uint32_t depth = 16);
  ~MessageServerRc();

  // REQUIRES: the pair uses `completions` on both sides, its queues are at least `depth` deep, and it is in INIT or beyond (its receives
  // are posted now; before RTS no request can be answered).
  void add(QueuePair& pair);
  // REQUIRES: the pair is in ERR or RESET, or is destroyed before the adapter runs again: its buffers are freed.
  void remove(QueuePair& pair);
  std::size_t poll(Time now);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::rc
