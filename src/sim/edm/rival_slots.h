// The published simulation's rack, slot by slot: what the protocols of rival_published.h have in common. A slot is a block's time.
//
// Life:       run() -> each slot: messages come, the switch decides and forwards, nodes send, the switch's ports send, and what has come over a
//             link is taken from it, at the switch and then at the nodes.
// Links:      a block a slot each way, whatever number of bytes it stands for; `hop` slots long. Both ends take from a link one block a slot.
// Invariant:  messages() are the trace's rows, and then the answers in the order of their coming.
// Threads:    one owner.
// Source:     work_per_timeslot() of each program in the public artifact (wegul/EDM, netsimu/src).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "sim/edm/edm_trace.h"

namespace sluice::sim::slots {

constexpr std::int64_t kBlockBytes = 8;
constexpr std::int64_t kShort =
    256;  // bytes: EDM's chunk, and up to where a message is a short one (the artifact's CHUNK_SIZE)

enum class Part : std::uint8_t { kWrite, kRequest, kAnswer };
enum class State : std::uint8_t { kGranted, kNew, kWaiting };  // in the order in which a node serves them

// A row of the published output: a write, a read's request, or its answer.
struct Message {
  std::uint32_t row = 0;
  Part part = Part::kWrite;
  std::uint16_t source = 0;
  std::uint16_t destination = 0;
  std::int64_t bytes = 0;
  std::int64_t turn = -1;  // bytes left of its turn, or of its grant
  State state = State::kNew;
  std::int64_t sent = 0;
  std::int64_t received = 0;
  std::int64_t acknowledged = 0;
  std::int64_t created = 0;
  std::int64_t started = -1;
  std::int64_t finished = -1;
  std::optional<std::uint32_t> answer = {};  // of a request

  bool over() const { return finished >= 0; }
  std::int64_t to_send() const { return bytes - sent; }
};

struct Block {
  enum class Kind : std::uint8_t { kData, kAck, kAsk, kGrant, kPause, kResume, kCredit };
  Kind kind = Kind::kData;
  std::uint32_t message = 0;
  std::uint16_t from = 0;
  std::uint16_t to = 0;
  std::int64_t first = 0;   // of a message, its first byte
  std::int64_t bytes = 0;   // of a message; of a grant, that are granted
  std::int64_t credit = 0;  // of a credit
  bool marked = false;
  std::int64_t due = 0;  // when it comes out of its link
};

class Rack {
 public:
  Rack(std::int64_t hop, std::uint32_t nodes, const std::vector<TraceRow>& rows);
  virtual ~Rack() = default;
  Rack(const Rack&) = delete;
  Rack& operator=(const Rack&) = delete;

  // Until over(), or until nothing moves any more, for which the published simulation would not end.
  void run();

  const std::vector<Message>& messages() const { return messages_; }
  std::int64_t now() const { return now_; }
  std::uint64_t blocks() const { return blocks_; }

 protected:
  struct Node {
    std::vector<std::uint32_t> line;       // messages to be sent
    std::optional<std::uint32_t> current;  // the one that is being sent; not in the line
  };

  // The message as a row is sent, with the bytes and the turn that it begins with.
  virtual Message message_of(const TraceRow& row) const = 0;
  // The published simulation's end: by default as soon as every message, and every answer that there is, has begun to leave.
  virtual bool over() const { return started_ == all(); }
  virtual void decide() {}
  virtual void forward();
  // One block at most, by send_up().
  virtual void send(std::uint16_t node) = 0;
  // Whether the port's turn is taken by something else.
  virtual bool instead(std::uint16_t /*port*/) { return false; }
  virtual std::size_t next_of(std::uint16_t /*port*/) { return 0; }
  virtual void left(const Block&) {}
  virtual void at_switch(std::uint16_t port, const Block& block) { in_[port].push_back(block); }
  virtual void at_node(const Block& block) { take(block); }

  std::size_t all() const { return messages_.size(); }
  Message& message(std::uint32_t which) { return messages_[which]; }
  std::uint16_t nodes() const { return static_cast<std::uint16_t>(nodes_.size()); }
  // So many bytes of the message, in a block.
  void send_data(std::uint32_t which, std::int64_t bytes);
  void send_up(std::uint16_t node, Block block);
  void send_down(std::uint16_t port, Block block);
  // Counts what has come of a message.
  void take(const Block& block);
  // It comes to its node in the next slot.
  void answer(std::uint32_t request, std::int64_t turn, State state);
  // The line's message at that place becomes the one being sent.
  void begin(Node& node, std::size_t place);
  const TraceRow& row(const Message& m) const { return rows_[m.row]; }

  std::int64_t now_ = 0;
  std::vector<Node> nodes_;
  std::vector<std::deque<Block>> in_;   // at the switch, by where they have come in
  std::vector<std::deque<Block>> out_;  // by where they go out
  std::uint64_t started_ = 0;
  std::uint64_t finished_ = 0;

 private:
  void come();

  std::int64_t hop_;
  const std::vector<TraceRow>& rows_;
  std::vector<Message> messages_;
  std::size_t next_row_ = 0;
  std::size_t next_answer_;
  std::vector<std::deque<Block>> up_;
  std::vector<std::deque<Block>> down_;
  std::uint64_t blocks_ = 0;
  std::int64_t moved_ = 0;  // when the last block left, or the last message came
};

}  // namespace sluice::sim::slots
