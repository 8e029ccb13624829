// NIC: the project's own rc::Adapter behind a model of a hardware NIC's timing. The adapter decides what is sent and what memory holds;
// the model decides when.
//
// Out:        post() -> the adapter makes packets -> each waits for doorbell and fetch, its queue pair's turn, the pipeline -> wire.
// In:         a packet arrives -> waits for the pipeline, its queue pair's turn, the atomic unit, PCIe -> the adapter executes it;
//             what the adapter answers leaves when memory would have been read.
// Invariant:  packets of one queue pair are executed, and answered, in the order of their arrival; those of different ones as the model has it.
// Threads:    one owner.
// Limits:     an adapter's. Stalls are the only thing that is drawn.
// Source:     hardware.h says what each number does. Work requests that the NIC has to fetch again: Kalia et al., ATC'16, §3.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/rng.h"
#include "rc/adapter.h"
#include "sim/world/event_loop.h"
#include "sim/world/hardware.h"
#include "sim/world/packet.h"
#include "sim/world/packet_sink.h"
#include "sim/world/pipe.h"
#include "sim/world/trace.h"

namespace sluice::sim {

// Whoever polls the completion queue of a queue pair whose `user` points here.
class CompletionListener {
 public:
  virtual ~CompletionListener() = default;
  virtual void on_completions(Time now) = 0;
};

class Nic final : public Consumer {
 public:
  struct Counters {
    std::uint64_t requests = 0;  // executed for others
    std::uint64_t reads = 0;
    std::uint64_t atomics = 0;
    std::uint64_t stalls = 0;
    std::uint64_t wire_packets = 0;  // sent and received
    std::uint64_t wire_bytes = 0;    // of them, without FCS
  };

  // All references outlive the NIC.
  Nic(EventLoop& loop, PacketPool& pool, Trace& trace, const NicParameters& parameters, const rc::AdapterConfig& config,
      std::uint32_t number);
  ~Nic() override;

  rc::Adapter& adapter() { return adapter_; }
  memory::PdId domain() const { return domain_; }
  std::uint32_t number() const { return number_; }
  // REQUIRES: before the first packet.
  void attach(Pipe& wire) { wire_ = &wire; }
  // What is not RoCE goes there. Null: to the adapter.
  void set_other(Consumer* other) { not_roce_ = other; }

  // The program posts; the NIC learns of it `launch` later.
  rc::PostError post(Time now, Duration launch, rc::QueuePair& pair, const rc::SendRequest& request);
  // After anything else was done to the adapter (receives posted, queue pairs modified, messages sent).
  void touched(Time now, Duration launch);
  Duration doorbell_latency() const { return parameters_.doorbell_latency; }
  // The machine has died: nothing comes in or goes out any more.
  void cut() { cut_ = true; }

  void on_packet(Time now, Packet* packet) override;

  const Counters& counters() const { return counters_; }

 private:
  // When a queue pair's next packet of each kind may come at the earliest.
  struct Turns {
    Time request_out;
    Time answer_out;
    Time request_in;
    Time response_in;
    Time atomic;
    std::uint32_t open = 0;  // work requests in its send queue, as last counted
  };
  // An address at which an atomic is or was at work.
  struct Guard {
    std::uint64_t address = 0;
    Time free;
  };
  static constexpr std::size_t kGuards = 8192;

  class Sink final : public PacketSink {
   public:
    explicit Sink(Nic& nic) : PacketSink(nic.pool_), nic_(nic) {}
    Time now;

   private:
    void sent(Packet* packet) override { nic_.enqueue_transmit(now, packet); }
    Nic& nic_;
  };

  void transmit(Time now);
  void execute(Time now);
  void on_timer(Time now);
  void drain(Time now);
  void arm_timer();
  void enqueue_transmit(Time now, Packet* packet);
  Turns& turns_of_sender(const Packet& packet);
  Time time_of_request(Time at, Turns& turns, Packet* packet, std::uint8_t opcode);
  Time time_of_atomic(Time at, Turns& turns, Packet* packet, std::uint64_t address, bool device);
  Time after_atomic(Time at, std::uint64_t address);
  Guard& guard_of(std::uint64_t address) { return guards_[(address >> 3) * 0x9E3779B97F4A7C15u >> 51]; }
  bool is_device(std::uint32_t rkey, std::uint64_t address) const;
  void count(Turns& turns, const rc::QueuePair* pair);
  Duration refetch() const;
  Duration memory_delay(Time at);
  Duration draw(Duration most);
  Turns& turns_of(std::uint32_t qpn);
  void notify(Time now, rc::QueuePair& pair);

  EventLoop& loop_;
  PacketPool& pool_;
  Trace& trace_;
  NicParameters parameters_;
  std::uint32_t number_;
  std::uint32_t first_qpn_;
  rc::Adapter adapter_;
  memory::PdId domain_;
  Rng memory_chance_;
  Pipe* wire_ = nullptr;
  Consumer* not_roce_ = nullptr;
  bool cut_ = false;
  Sink sink_;
  Counters counters_;

  std::vector<Turns> turns_;
  Turns other_;  // management, and what time-outs send
  std::vector<Guard> guards_;
  Time packet_out_;  // through the whole NIC
  Time packet_in_;
  Time read_;
  Time atomic_;
  Time next_stall_;
  std::uint64_t open_ = 0;  // work requests posted and not completed; messages from when their answers come on

  std::unordered_map<std::uint64_t, std::size_t> senders_;  // by peer, with DCQCN: whose turns the packets to it take

  // Of the packets that the adapter makes now.
  Turns* sender_ = nullptr;
  Duration launch_;
  Duration answer_after_;

  PacketHeap leaving_;
  PacketHeap arriving_;
  MemberEvent<Nic, &Nic::transmit> transmit_event_{*this};
  MemberEvent<Nic, &Nic::execute> execute_event_{*this};
  MemberEvent<Nic, &Nic::on_timer> timer_{*this};
};

}  // namespace sluice::sim
