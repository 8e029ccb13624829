// RemoteMemory and MessageChannel over reliable connections: a queue pair for each memory node, one completion queue for all.
//
// Life:       add_node() with a connected queue pair -> submit() -> the owner's loop drives the adapter, then calls poll().
//             When a queue pair fails, its operations end as kUnknown and the node is unreachable until add_node() gives a new one.
// Order:      as one queue pair has it: operations to one node execute in order; a READ and a later WRITE are not fenced.
// Limits:     up to `depth` operations a node in the send queue; what is submitted beyond waits in line, without limit.
// Threads:    the adapter's owner.
#pragma once

#include <unordered_map>
#include <vector>

#include "rc/adapter.h"
#include "remote/message_channel.h"
#include "remote/remote_memory.h"

namespace sluice::rc {

class RemoteRc final : public remote::RemoteMemory {
 public:
  // `completions` must be used by this object's queue pairs alone, for sending and receiving.
  RemoteRc(remote::Scheduler& scheduler, Adapter& adapter, CompletionQueue& completions);
  ~RemoteRc() override;

  // REQUIRES: the pair is in RTS, its send completions go to `completions`.
  void add_node(remote::NodeId node, QueuePair& pair);
  // Ends what is outstanding as kUnknown. The pair itself stays the caller's.
  void remove_node(remote::NodeId node);
  bool connected(remote::NodeId node) const;

  remote::Capabilities capabilities() const override;
  void submit(remote::Operation& operation) override;

  // Takes completions and ends operations; call after the adapter has moved. Returns how many.
  std::size_t poll(Time now);
  // The time that submit() passes to the adapter, updated by poll().
  Time now() const { return now_; }

 private:
  struct Node;
  void post(Node& node, remote::Operation& operation);
  void fail_all(Node& node, remote::Status status);

  Adapter& adapter_;
  CompletionQueue& completions_;
  std::unordered_map<std::uint32_t, std::unique_ptr<Node>> nodes_;  // by NodeId
  std::unordered_map<std::uint32_t, Node*> by_qpn_;
  Time now_;
};

// Client of a MessageService at the other end of one queue pair: SEND carries the request, the answer comes as SEND.
class MessageClientRc final : public remote::MessageChannel {
 public:
  // REQUIRES: the pair is in RTS and has this completion queue, for itself alone, on both sides, with room for 2 * depth.
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
  MessageServerRc(Adapter& adapter, remote::MessageService& service, CompletionQueue& completions, std::uint32_t depth = 16);
  ~MessageServerRc();

  // REQUIRES: the pair uses `completions` on both sides and may still be in INIT (its receives are posted now).
  void add(QueuePair& pair);
  void remove(QueuePair& pair);
  std::size_t poll(Time now);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::rc
