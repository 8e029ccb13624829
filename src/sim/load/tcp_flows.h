// TcpFlows: bulk TCP flows, as of an iperf3 client, from a machine of the rack to a server beside it, on the links that the rack's RDMA takes first.
//
// Life:       TcpFlows(rack, machine, settings, rng): they start within the first 10 us -> received() as time passes.
// Hosts:      the NIC takes of a segment what it takes of RDMA's with payload from memory; processors and stacks take no time.
// Threads:    one owner.
// Source:     Cowbird §8.4; tcp.h.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "sim/tcp/tcp_host.h"
#include "sim/world/fields.h"
#include "sim/world/rack.h"

namespace sluice::sim {

struct TcpFlowsSettings {
  std::uint64_t flows = 0;              // 0: none
  std::uint64_t link = 25'000'000'000;  // the server's, bits a second
  std::uint64_t mtu = 1500;
  std::uint64_t window = TcpParameters{}.receive_window;  // of the receivers
  std::uint64_t ack_every = TcpParameters{}.ack_every;    // segments

  void read(Fields& fields);
  // Empty: it can be simulated.
  std::string problem() const;
  TcpParameters parameters() const;
};

class TcpFlows {
 public:
  // REQUIRES: the switch has had priorities since before its first port. All outlive it.
  TcpFlows(Rack& rack, Rack::Machine& from, const TcpFlowsSettings& settings, const Rng& rng);
  TcpFlows(const TcpFlows&) = delete;
  TcpFlows& operator=(const TcpFlows&) = delete;

  // Bytes that the server's program has, of all flows; of one.
  std::uint64_t received() const;
  std::uint64_t received(std::size_t flow) const { return server_.receiver(flow).received(); }
  TcpSender::Counters counters() const;  // of all
  Duration round_trip() const;           // smoothed, the mean of all

 private:
  class Start final : public Event {
   public:
    Start(TcpHost& host, std::size_t flow) : host_(host), flow_(flow) {}
    void fire(Time now) override { host_.start(now, flow_); }

   private:
    TcpHost& host_;
    std::size_t flow_;
  };

  std::size_t flows_;
  TcpHost client_;
  TcpHost server_;
  std::unique_ptr<Pipe> up_;  // from the server
  std::deque<Start> starts_;
};

}  // namespace sluice::sim
