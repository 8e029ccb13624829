// A host's stack in the PHY, at a compute node and at a memory node alike: messages as units of blocks, each after as many cycles as the
// paper's hardware takes.
//
// Life:       read(), write(), modify() -> take(now, unit) for what comes -> poll(now, unit) for what is to be sent, when next_deadline() says so ->
//             poll_done() for what is over.
// Cycles:     request or /N/ 2; /G/ 2, then 4 for the grant queue and 3 for data; RREQ 3, then the same 4 and 3; data that came 3.
// Order:      messages to one node are done in the order in which they were asked for, reads among themselves and writes among themselves.
// Link up:    what is granted leaves as soon as it is ready, so that it finds the switch as the scheduler has placed it (zero queueing, EDM §3.1.1);
//             requests leave when nothing granted is. The paper does not say which of the two goes first.
// X:          of each peer, so many reads and as many writes have asked for bandwidth and wait; further ones wait here, oldest first. With `mega_bytes`,
//             the writes that wait ask as one (mega_message.h) as soon as one may.
// Ids:        answers of one node come in the order of their reads, so one that comes, late or not, says that no earlier read is answered any more. A
//             message id is not used anew before: a node that has left 256 reads in a row unanswered is sent no more until it answers one of
//             them, and reads of it end as NULL when their timers do.
//             A write that is never granted keeps its id for good; the others have the rest.
// Errors:     what comes and fits nothing that is under way, or is for another host, is counted; a read without an answer is done as NULL when its timer
//             ends, which runs from when it was asked for: also one that X has kept here and that nobody has been sent.
// Threads:    one owner. Allocates for each message: it is a model of hardware, and not for a data path.
// Limits:     256 messages a peer and direction; further ones are refused, unless X is kept here. How many of them X keeps waiting is not bounded.
// Source:     EDM §3.2.1; the cycles, its last paragraph.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "base/time.h"
#include "edm/mega_message.h"
#include "edm/memory_blocks.h"

namespace sluice::edm {

// What the paper's hardware takes for each step, in cycles.
inline constexpr std::int64_t kRequestCycles = 2;       // message queue, block
inline constexpr std::int64_t kGrantCycles = 2;         // parse, grant queue
inline constexpr std::int64_t kRequestTakenCycles = 3;  // the same, and the memory controller
inline constexpr std::int64_t kGrantQueueCycles = 4;    // across the clock domains
inline constexpr std::int64_t kDataCycles = 3;          // state table, data buffer, block
inline constexpr std::int64_t kDataTakenCycles = 3;     // parse, address, on to memory

inline constexpr std::uint32_t kMessageIds = 256;

// What of an answer waits for DRAM. Chunks that all come as late after their grants keep apart in the switch as the scheduler has placed them;
// where the first alone is late, the scheduler must keep its ports for that time too (SchedulerConfig::response_lead).
enum class MemoryTime : std::uint8_t {
  kFirstChunk,  // read at once, as its request comes; a modification takes two accesses
  kEachChunk,   // each as it is granted; a modification is answered after the first access
};

struct HostConfig {
  PortId port{};
  Duration cycle = Duration::picoseconds(2'560);
  Duration dram{};  // a memory node's
  MemoryTime memory_time = MemoryTime::kFirstChunk;
  Duration read_timer = Duration::microseconds(100);
  std::uint32_t chunk_bytes = 256;
  Duration
      block{};  // on the link up; 0: whoever polls looks after the link, and gets units in the order of their times
  std::uint32_t active_per_pair = 0;  // X, of reads and of writes each; 0: whoever asks keeps to it
  std::uint32_t mega_bytes =
      0;  // that several writes may ask for as one, with the room for their framing; 0: each asks for itself
  bool keeps_written = true;  // for written()
};

// A message that is over.
struct Done {
  std::uint64_t tag = 0;
  bool null = false;   // a read that nobody answered
  Time first_block{};  // when the first block of the answer had been processed; of a write, see HostStack::written()
  Time last_block{};
  std::vector<std::uint8_t> data;  // read: the bytes; modify: the word before
};

class HostStack {
 public:
  HostStack(const HostConfig& config, MutableBytes memory) : config_(config), memory_(memory) {}

  // False: too many under way. REQUIRES: lengths above 0; modify: as many operands as op has.
  bool read(Time now, PortId node, std::uint64_t address, std::uint32_t bytes, std::uint64_t tag);
  bool write(Time now, PortId node, std::uint64_t address, std::vector<std::uint8_t> bytes);
  bool modify(Time now, PortId node, std::uint64_t address, ModifyOp op, std::uint64_t operand, std::uint64_t compare,
              std::uint64_t tag);

  // The first block of a unit has come, and when it was whole.
  void take(Time first_block, Time now, const Unit& unit);
  // A unit that is ready; what it points to is the host's until the next call.
  bool poll(Time now, Unit& out);
  Time next_deadline() const;
  void on_deadline(Time now);
  bool poll_done(Done& out);

  struct Written {
    Time first_block{};  // had been processed
    Time last_block{};
    std::uint64_t address = 0;
    std::uint32_t bytes = 0;
  };
  // Writes that have asked with others, of all.
  std::uint64_t batched() const { return batched_; }
  // How many writes to that node have left with all their chunks; in the order in which they were asked for.
  std::uint64_t writes_left(PortId node) const { return writes_left_.at(node.value); }
  // What has been written to this node's memory, in order.
  const std::vector<Written>& written() const { return written_; }
  std::uint64_t strays() const { return strays_; }

 private:
  using Peer = std::pair<std::uint16_t, std::uint8_t>;  // port, message id
  struct Read {
    std::uint64_t tag = 0;
    Time deadline{};
    Time first_block = Time::never();
    std::vector<std::uint8_t> data;
    std::uint32_t wanted = 0;
  };
  struct Unsent {  // a read for which there is no message id
    PortId node{};
    std::uint64_t tag = 0;
    Time deadline{};
  };
  struct Answer {
    std::vector<std::uint8_t> data;
    std::size_t sent = 0;
  };
  struct Write {
    std::uint64_t address = 0;
    std::vector<std::uint8_t> data;
  };
  struct Asked {  // for by one /N/
    MegaMessage message;
    std::vector<Write> writes;
  };
  struct Ready {
    Time at{};
    Unit unit;
    std::vector<std::uint8_t> data;
  };
  struct Question {  // a read or a modification
    Unit unit;
    std::vector<std::uint8_t> operands;
    std::uint64_t tag = 0;
    Time deadline{};
  };
  // Messages to one peer: how many are under way, and those that X keeps back.
  struct Line {
    std::uint32_t reads = 0;
    std::uint32_t writes = 0;
    std::uint64_t asked = 0;    // reads, numbered; the lowest byte is the message id
    std::uint64_t settled = 0;  // those before it are not answered any more
    std::deque<Question> waiting_reads;
    std::deque<Write> waiting_writes;
  };

  Time after(Time now, std::int64_t cycles) const { return now + config_.cycle * cycles; }
  bool each_chunk() const { return config_.memory_time == MemoryTime::kEachChunk; }
  MegaLayout layout() const { return {config_.chunk_bytes, kWriteFramingBlocks}; }
  bool full(std::uint32_t active) const { return config_.active_per_pair != 0 && active >= config_.active_per_pair; }
  bool ask(Time now, Question question);
  bool start_read(Time now, Question question);
  // As the times of reads that have no answer end.
  void end_waiting(Time now);
  void null(Time now, std::uint64_t tag);
  bool start_writes(Time now, PortId node, Asked&& asked);
  void read_over(Time now, PortId node);
  void write_over(Time now, PortId node);
  void request(Time at, const Unit& unit, std::vector<std::uint8_t> data = {});
  // What is to be sent next, once its time has come and the link is free; nullptr: nothing.
  const Ready* next_ready() const;
  // What goes along a circuit leaves in the order of its grants, as from a grant queue: so it finds the switch as the scheduler has placed it.
  void granted(Time at, const Unit& unit, std::vector<std::uint8_t> data = {});
  void send_writes(Time at, const Peer& peer, Asked& asked, std::uint32_t bytes);
  void send_answer(Time at, const Peer& peer, Answer& answer, std::uint32_t bytes);
  void serve(Time now, const Unit& request);
  void modify_here(Time now, const Unit& request);
  void answered(Time first_block, Time now, const Unit& unit);
  void settle(const Unit& answer);
  bool inside(std::uint64_t address, std::uint64_t bytes) const {
    return bytes <= memory_.size() && address <= memory_.size() - bytes;
  }

  HostConfig config_;
  MutableBytes memory_;
  std::map<Peer, Read> reads_;
  std::deque<Unsent> unsent_;  // in order of time
  std::map<Peer, Asked> writes_;
  std::map<Peer, Answer> answers_;
  std::array<std::uint8_t, kMaxPorts> next_write_{};
  std::array<std::uint64_t, kMaxPorts> writes_left_{};
  std::map<std::uint16_t, Line> lines_;
  std::deque<Ready> requests_;  // in order of time
  std::deque<Ready> granted_;   // the same
  Time link_free_{};
  Ready sending_;
  std::deque<Done> done_;
  std::vector<Written> written_;
  std::vector<MegaMessage::Piece> pieces_;  // of a chunk
  std::uint64_t batched_ = 0;
  std::uint64_t strays_ = 0;
};

}  // namespace sluice::edm
