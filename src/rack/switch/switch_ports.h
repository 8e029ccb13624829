// The switch's machine joined to its ports: takes what connects, moves bursts, lets go of what is gone.
//
// Threads:  the loop's owner.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nic/held_up.h"
#include "nic/poll_loop.h"
#include "port/listener.h"
#include "port/port.h"
#include "switching/latency_probe.h"
#include "switching/learning_switch.h"
#include "telemetry/metric_set.h"

namespace sluice::rack {

// The switch at one moment. Taken in the loop's thread; what people and programs read of it is written in another, for text takes longer.
struct SwitchReport {
  struct Port {
    switching::PortNumber number;
    std::string name;
    bool up = false;
    switching::PortStatistics statistics;
    port::PortCounters link;
    std::size_t queued_bytes = 0;

    // Frames that went nowhere, by reason: in the switch's machine, or in the port itself.
    std::vector<std::pair<std::string, std::uint64_t>> drops() const;
  };
  std::vector<Port> ports;
  std::vector<switching::MacTable::Entry> macs;  // addresses learned
  std::uint64_t turned_away = 0;
  std::uint64_t macs_refused = 0;
  std::uint64_t macs_replaced = 0;
  std::uint64_t macs_moved = 0;
  switching::PortStatistics strays;  // see LearningSwitch
  std::uint64_t strangers_refused = 0;
  std::uint64_t lost_at_listeners = 0;
  switching::LatencyProbe::Counts latency;

  std::string to_json() const;
  // For Prometheus. `nodes`: who is behind a port (port_labels.h); a port that is not among them has nobody.
  using Labels = std::map<switching::PortNumber, std::string>;
  void collect(telemetry::MetricSet& set, const Labels& nodes) const;
};

class SwitchPorts final : public nic::Pollable {
 public:
  SwitchPorts(switching::SwitchConfig config, nic::PollLoop& loop);
  ~SwitchPorts() override;

  void add_listener(std::unique_ptr<port::Listener> listener);
  // A port that stays when its other end is gone. False: too many ports.
  bool add_port(std::unique_ptr<port::Port> port);

  std::size_t poll(Time now) override;
  void transmit(Time now) override;
  Time next_deadline() const override { return std::min(held_up_.next_try(), machine_.next_deadline()); }

  switching::LearningSwitch& machine() { return machine_; }
  std::size_t ports() const { return ports_.size(); }
  SwitchReport report(Time now) const;

 private:
  struct Attached {
    std::unique_ptr<port::Port> port;
    switching::PortNumber number;
    bool stays = false;
    bool is_empty = false;         // nothing came at the last look
    Time down_at = Time::never();  // when it was first found so
  };
  void accept(Time now);
  void attach(Time now, std::unique_ptr<port::Port> port, bool stays);
  std::size_t receive(Time now, Attached& attached);
  void let_go(Time now);

  nic::PollLoop& loop_;
  switching::LearningSwitch machine_;
  switching::LatencyProbe probe_;
  std::vector<std::unique_ptr<port::Listener>> listeners_;
  std::vector<Attached> ports_;
  std::vector<port::Frame> burst_;
  std::size_t first_ = 0;    // whose turn it is to be polled first
  Time next_look_;           // for ports that are gone, and at listeners
  nic::HeldUp held_up_;      // frames wait for a port that is full
  std::size_t waiting_ = 0;  // how many
  std::uint64_t turned_away_ = 0;
};

}  // namespace sluice::rack
