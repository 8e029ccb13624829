#include "rack/switch/switch_ports.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace sluice::rack {
namespace {

constexpr Duration kLookAround = Duration::milliseconds(1);
constexpr Duration kLastWords = Duration::milliseconds(100);  // the longest that what a lost end had sent is taken

}  // namespace

SwitchPorts::SwitchPorts(switching::SwitchConfig config, nic::PollLoop& loop)
    : loop_(loop), machine_(std::move(config)), burst_(switching::LearningSwitch::kBurst) {
  machine_.set_probe(&probe_);
}

SwitchPorts::~SwitchPorts() {
  for (const Attached& attached : ports_) loop_.remove_port(*attached.port);
}

void SwitchPorts::add_listener(std::unique_ptr<port::Listener> listener) {
  loop_.watch(listener->wait_descriptor(), [this](Time now) { accept(now); });
  listeners_.push_back(std::move(listener));
}

bool SwitchPorts::add_port(std::unique_ptr<port::Port> port) {
  const std::size_t before = ports_.size();
  attach(loop_.now(), std::move(port), true);
  return ports_.size() != before;
}

void SwitchPorts::accept(Time now) {
  for (const auto& listener : listeners_) {
    while (auto port = listener->accept(now)) attach(now, std::move(port), false);
  }
}

void SwitchPorts::attach(Time now, std::unique_ptr<port::Port> port, bool stays) {
  const auto number = machine_.attach(now, *port);
  if (!number) {
    ++turned_away_;
    return;
  }
  loop_.add_port(*port);
  ports_.push_back({std::move(port), *number, stays});
}

std::size_t SwitchPorts::poll(Time now) {
  if (now >= next_look_) {
    next_look_ = now + kLookAround;
    let_go(now);
    accept(now);
  }
  std::size_t work = 0;
  // A different port is first each time, so that none has a better chance at a full way out.
  first_ = ports_.empty() ? 0 : (first_ + 1) % ports_.size();
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    const std::size_t place = first_ + i;
    work += receive(now, ports_[place < ports_.size() ? place : place - ports_.size()]);
  }
  machine_.on_deadline(now);
  machine_.offer_spare(now);
  return work;
}

std::size_t SwitchPorts::receive(Time now, Attached& attached) {
  const std::size_t n = attached.port->receive(now, burst_);
  attached.is_empty = n == 0;
  if (n != 0) machine_.process(now, attached.number, std::span(burst_).first(n));
  return n;
}

void SwitchPorts::transmit(Time now) {
  const std::size_t left = machine_.drain();
  held_up_.note(now, left != 0, left != std::exchange(waiting_, left));
}

void SwitchPorts::let_go(Time now) {
  std::erase_if(ports_, [&](Attached& attached) {
    if (attached.stays || attached.port->state() == port::PortState::kUp) return false;
    attached.down_at = std::min(attached.down_at, now);
    if (!attached.is_empty && now < attached.down_at + kLastWords) return false;
    loop_.remove_port(*attached.port);
    machine_.detach(attached.number);
    return true;
  });
}

SwitchReport SwitchPorts::report(Time now) const {
  SwitchReport report;
  for (const Attached& attached : ports_) {
    report.ports.push_back({attached.number, attached.port->name(), attached.port->state() == port::PortState::kUp,
                            machine_.statistics(attached.number), attached.port->counters(),
                            machine_.queued_bytes(attached.number)});
  }
  report.macs = machine_.macs().entries(now);
  report.turned_away = turned_away_;
  report.macs_refused = machine_.macs().refused();
  report.macs_replaced = machine_.macs().replaced();
  report.macs_moved = machine_.macs().moves();
  report.strays = machine_.strays();
  for (const auto& listener : listeners_) {
    report.strangers_refused += listener->refused();
    report.lost_at_listeners += listener->lost();
  }
  report.latency = probe_.counts();
  return report;
}

std::vector<std::pair<std::string, std::uint64_t>> SwitchReport::Port::drops() const {
  std::vector<std::pair<std::string, std::uint64_t>> all{{"malformed", link.rx_malformed},
                                                         {"lost on arrival", link.rx_lost},
                                                         {"lost on the way out", link.tx_dropped},
                                                         {"switch was stopped", link.tx_discarded}};
  for (std::size_t i = 0; i < switching::kDropReasons; ++i) {
    const auto reason = static_cast<switching::DropReason>(i);
    all.emplace_back(to_string(reason), statistics.dropped(reason));
  }
  return all;
}

std::string SwitchReport::to_json() const {
  using nlohmann::json;
  std::map<switching::PortNumber, json> macs_of;
  for (const auto& entry : macs) macs_of[entry.port].push_back(entry.mac.to_string());
  json all = json::array();
  for (const Port& port : ports) {
    const switching::PortStatistics& s = port.statistics;
    json drops = json::object();
    for (const auto& [reason, count] : port.drops()) {
      if (count != 0) drops[reason] = count;
    }
    const auto learned = macs_of.find(port.number);
    all.push_back({{"number", port.number.value},
                   {"name", port.name},
                   {"up", port.up},
                   {"macs", learned == macs_of.end() ? json::array() : learned->second},
                   {"rx_frames", s.rx_frames},
                   {"rx_bytes", s.rx_bytes},
                   {"tx_frames", s.tx_frames},
                   {"tx_bytes", s.tx_bytes},
                   {"flooded", s.flooded},
                   {"queued", s.queued},
                   {"queued_bytes_now", port.queued_bytes},
                   {"ecn_marked", s.ecn_marked},
                   {"resets", port.link.resets},
                   {"drops", std::move(drops)}});
  }
  json operations = json::object();
  for (std::size_t i = 0; i < latency.size(); ++i) {
    const auto operation = static_cast<switching::LatencyProbe::Operation>(i);
    operations[std::string(switching::LatencyProbe::name_of(operation))] = {{"counts", latency[i].counts},
                                                                            {"sum_ns", latency[i].sum_ns}};
  }
  return json{{"ports", std::move(all)},
              {"turned_away", turned_away},
              {"macs_refused", macs_refused},
              {"macs_replaced", macs_replaced},
              {"macs_moved", macs_moved},
              {"lost_at_listeners", lost_at_listeners},
              {"latency_edges_s", switching::LatencyCounts::edges()},
              {"latency", std::move(operations)}}
      .dump();
}

void SwitchReport::collect(telemetry::MetricSet& set, const Labels& nodes) const {
  for (const Port& port : ports) {
    const switching::PortStatistics& s = port.statistics;
    const auto behind = nodes.find(port.number);
    const telemetry::Labels labels{{"port", std::to_string(port.number.value)},
                                   {"node", behind == nodes.end() ? "" : behind->second}};
    set.gauge("port_up", "1 while the port is connected", port.up ? 1 : 0, labels);
    set.counter("port_receive_packets", "frames that came in at the port", s.rx_frames, labels);
    set.counter("port_receive_bytes", "bytes of them", s.rx_bytes, labels);
    set.counter("port_transmit_packets",
                "frames handed to the port to leave; of those port_dropped says which were lost on the way out",
                s.tx_frames, labels);
    set.counter("port_transmit_bytes", "bytes of them", s.tx_bytes, labels);
    set.counter("port_flooded", "frames from the port that went to all", s.flooded, labels);
    set.counter("port_queued", "frames to the port that had to wait", s.queued, labels);
    set.counter("port_ecn_marked", "frames to the port that were marked as having met congestion", s.ecn_marked,
                labels);
    set.gauge("port_queue_bytes", "bytes that wait for the port now", static_cast<double>(port.queued_bytes), labels);
    set.counter("port_resets", "times that the port's other end was lost", port.link.resets, labels);
    for (const auto& [reason, count] : port.drops()) {
      telemetry::Labels with_reason = labels;
      with_reason.emplace_back("reason", reason);
      set.counter("port_dropped", "frames that went nowhere; taken by stage: the box's doing", count, with_reason);
    }
  }
  set.counter("switch_listeners_lost", "frames that found no room before it was known of which port they are",
              lost_at_listeners);
  set.counter("switch_turned_away", "ports that found no room", turned_away);
  set.counter("switch_strangers_refused", "ends that a listener did not admit, or could not understand",
              strangers_refused);
  set.counter("switch_addresses_refused", "MAC addresses that found no room", macs_refused);
  set.counter("switch_addresses_replaced", "MAC addresses that made room for others: of the port that had most",
              macs_replaced);
  set.counter("switch_addresses_moved", "MAC addresses that were seen at another port than before", macs_moved);
  for (std::size_t i = 0; i < switching::kDropReasons; ++i) {
    const auto reason = static_cast<switching::DropReason>(i);
    set.counter("switch_strays_dropped", "frames of no port, given back by a stage, that went nowhere",
                strays.dropped(reason), {{"reason", std::string(to_string(reason))}});
  }
}

}  // namespace sluice::rack
