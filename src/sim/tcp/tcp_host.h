// TcpHost: a machine's end of bulk TCP flows: its senders or receivers between a link in and a pipe out.
//
// Life:       add_sender(), add_receiver() -> start(); packets arrive -> `latency` later the machines have them -> the pipe asks for what they send.
// Out:        ACKs first, in their order; then the senders in turn, a segment each, when the pipe is free: so none of them queues behind the others at home, as
//             TCP small queues have it in Linux.
// Invariant:  it is the low source of its pipe: what else is sent there goes first.
// Errors:     frames that are no TCP, or of no flow here, are dropped and counted.
// Threads:    one owner.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/tcp/tcp.h"
#include "sim/tcp/tcp_frame.h"
#include "sim/world/event_loop.h"
#include "sim/world/packet.h"
#include "sim/world/pipe.h"
#include "sim/world/trace.h"

namespace sluice::sim {

class TcpHost final : public Consumer, public Pipe::Source {
 public:
  // All outlive it but the pipe. `latency`: of NIC and stack, both ways together.
  TcpHost(EventLoop& loop, PacketPool& pool, Trace& trace, const TcpHostAddress& address, std::uint32_t number,
          Duration latency);
  ~TcpHost() override;
  TcpHost(const TcpHost&) = delete;
  TcpHost& operator=(const TcpHost&) = delete;

  // Before the first packet.
  void attach(Pipe& out);
  const TcpHostAddress& address() const { return address_; }
  // Flow `n` on either side: the one that was added as the n-th. REQUIRES: the same number on both.
  void add_sender(const TcpHostAddress& to, const TcpParameters& parameters);
  void add_receiver(const TcpHostAddress& from, const TcpParameters& parameters);
  // The flow has something to send from now on.
  void start(Time now, std::size_t flow);

  const TcpSender& sender(std::size_t flow) const { return senders_[flow].machine; }
  const TcpReceiver& receiver(std::size_t flow) const { return receivers_[flow].machine; }
  // Frames of no flow of its own.
  std::uint64_t ignored() const { return ignored_; }
  std::size_t flows() const { return std::max(senders_.size(), receivers_.size()); }

  void on_packet(Time now, Packet* packet) override;
  Packet* next(Time now) override;

 private:
  struct Sender {
    TcpRoute route;
    TcpParameters parameters;
    TcpSender machine;
    bool started = false;
  };
  struct Receiver {
    TcpRoute route;
    TcpReceiver machine;
  };

  void take(Time now);
  void take_data(Time now, Receiver& receiver, const TcpFrame& frame);
  void take_ack(Time now, TcpSender& sender, TcpAck ack);
  void on_timer(Time now);
  void arm_timer();
  void answer(Time now, Receiver& receiver);

  EventLoop& loop_;
  PacketPool& pool_;
  Trace& trace_;
  TcpHostAddress address_;
  std::uint32_t number_;
  Duration latency_;
  Pipe* out_ = nullptr;
  std::vector<Sender> senders_;
  std::vector<Receiver> receivers_;
  std::size_t turn_ = 0;  // of the senders
  PacketLine arrived_;
  PacketLine acks_;
  std::uint64_t ignored_ = 0;
  MemberEvent<TcpHost, &TcpHost::take> take_{*this};
  MemberEvent<TcpHost, &TcpHost::on_timer> timer_{*this};
};

}  // namespace sluice::sim
