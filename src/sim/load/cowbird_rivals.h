// What Cowbird is compared with, its mechanism and no more.
//
// I/O threads: as Redy has them (Zhang et al., PVLDB 15(4)): beside each application thread one more, on the compute node's own cores, which puts
//             what is asked into messages, one SEND for at most `batch` requests, `messages` of them under way; a thread of the memory node
//             serves a message's requests one after the other and answers with one SEND; the I/O thread hands the records out.
// User threads: as AIFM (Ruan et al., OSDI 2020) and Shenango: each read is a user thread's own, which gives the core to another one while it waits:
//             two switches and one READ a read.
// Costs:      verbs' are the hardware's. What a request costs an I/O thread is what it costs a thread to store one into Cowbird's rings and to take it
//             from there (issue_cost, complete_cost): as much is written and read. A memory node's thread: near_cost less engine_cost, the copying.
// Threads:    one owner.
// Source:     Cowbird §8.2 (Figures 11 and 12).
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "sim/load/cowbird_ways.h"

namespace sluice::sim {

// The thread of the memory node for one I/O thread.
class BatchServer final : public Event, public CompletionListener {
 public:
  BatchServer(Rack& rack, Rack::Machine& pool, Cpu& cpu, std::uint32_t number, ByteView memory,
              const CowbirdWorkload& w);
  rc::CompletionQueue* completions() const { return completions_; }
  void begin(rc::QueuePair& pair);
  void on_completions(Time now) override;

 private:
  void fire(Time now) override;  // the oldest message has been served
  void post_receive(std::size_t message);
  void next(Time now);

  Rack& rack_;
  Nic& nic_;
  Cpu& cpu_;
  std::uint32_t number_;
  ByteView memory_;
  const CowbirdWorkload& w_;
  rc::CompletionQueue* completions_;
  rc::QueuePair* pair_ = nullptr;
  std::vector<std::vector<std::uint8_t>> requests_, answers_;  // by message
  std::deque<std::uint32_t> arrived_;                          // bytes of messages
  std::uint64_t served_ = 0;
};

class IoThreadWay final : public Way, public Event, public CompletionListener {
 public:
  // Its I/O thread is number `io_thread` of `cpu`.
  IoThreadWay(Rack& rack, Rack::Machine& compute, Rack::Machine& pool, Cpu& cpu, std::uint32_t io_thread,
              BatchServer& server, const CowbirdWorkload& w);

  void issue(Time now, std::uint64_t offset, std::size_t slot) override;
  std::size_t look(Time now) override;
  const std::uint8_t* record(std::size_t slot) const override { return buffer_.data() + slot * w_.bytes; }
  Duration issue_cost() const override { return w_.issue_cost; }
  Duration look_cost() const override { return w_.look_cost; }
  Duration complete_cost() const override { return w_.complete_cost; }
  bool failed() const override { return failed_; }

  void on_completions(Time now) override { wake(now); }

 private:
  struct Asked {
    std::uint64_t offset;
    std::size_t slot;
  };
  enum class Doing : std::uint8_t { kNothing, kSend, kHandOut };

  void fire(Time now) override;
  void wake(Time now);
  void poll();
  void send(Time now);
  void hand_out();

  const CowbirdWorkload& w_;
  Rack& rack_;
  Nic& nic_;
  Cpu& cpu_;
  std::uint32_t io_thread_;
  rc::CompletionQueue* completions_;
  rc::QueuePair* pair_ = nullptr;
  std::vector<std::uint8_t> buffer_;
  std::vector<std::vector<std::uint8_t>> requests_, answers_;  // by message
  std::vector<std::vector<std::size_t>> slots_;                // … of its requests
  std::deque<Asked> asked_;
  std::uint64_t sent_ = 0, answered_ = 0, handed_out_ = 0;  // messages
  std::size_t taking_ = 0;                                  // requests of the message that is being made
  std::size_t ready_ = 0;                                   // records that the application has not seen
  Doing doing_ = Doing::kNothing;
  bool failed_ = false;
};

// Another way, with a switch to another user thread before each wait and one back after it.
class UserThreadWay final : public Way {
 public:
  UserThreadWay(std::unique_ptr<Way> way, Duration switch_cost) : way_(std::move(way)), switch_cost_(switch_cost) {}
  void issue(Time now, std::uint64_t offset, std::size_t slot) override { way_->issue(now, offset, slot); }
  std::size_t look(Time now) override { return way_->look(now); }
  const std::uint8_t* record(std::size_t slot) const override { return way_->record(slot); }
  Duration issue_cost() const override { return way_->issue_cost() + switch_cost_; }
  Duration look_cost() const override { return way_->look_cost(); }
  Duration complete_cost() const override { return way_->complete_cost() + switch_cost_; }
  bool failed() const override { return way_->failed(); }

 private:
  std::unique_ptr<Way> way_;
  Duration switch_cost_;
};

}  // namespace sluice::sim
