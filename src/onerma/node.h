// Node: one machine on one port, initiator and target in one, that share a solicitation window.
//
// Life:       on_frame / poll_transmit / on_deadline, as every machine; initiator() and target() for the rest.
// Order:      answers of the target and requests of the initiator take turns.
// Invariant:  frames that are not for us or not valid change nothing but a counter.
// Threads:    one owner.
// Limits:     peers are told by address; no ARP.
// Source:     ARCHITECTURE.md "Contracts" (Machine).
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "memory/region.h"
#include "onerma/initiator.h"
#include "onerma/target.h"
#include "onerma/window.h"
#include "port/port.h"

namespace sluice::onerma {

struct NodeConfig {
  wire::MacAddress mac{};
  wire::Ipv4Address ip{};
  Boot boot{};  // drawn from real chance for each life
  Protection protection = Protection::kSealed;
  bool allow_plain = false;
  std::uint32_t window_bytes = 64 << 10;
  std::uint32_t cached_keys = 1024;
  SlotParameters slots{};
  // Of these, addresses, boot, allow_plain are overridden by the above.
  TargetConfig target{};
  std::shared_ptr<memory::RegionTable> regions{};  // shared with the node's other transports; made when empty
  memory::PdId domain{1};
};

class Node {
 public:
  explicit Node(const NodeConfig& config);

  void on_frame(Time now, port::Frame frame);
  bool poll_transmit(Time now, port::FrameSink& sink);
  Time next_deadline() const;
  void on_deadline(Time now);

  Initiator& initiator() { return initiator_; }
  Target& target() { return target_; }
  Regions& regions() { return regions_; }
  const SolicitationWindow& window() const { return window_; }
  Peer address() const { return {mac_, ip_, kUdpPort}; }
  // Frames that were not taken, by Verdict; kOk: those that were.
  std::uint64_t frames(Verdict verdict) const { return verdicts_[static_cast<std::size_t>(verdict)]; }

 private:
  wire::MacAddress mac_;
  wire::Ipv4Address ip_;
  SolicitationWindow window_;
  Regions regions_;
  Initiator initiator_;
  Target target_;
  std::array<std::uint64_t, kVerdictCount> verdicts_{};
  bool targets_turn_ = true;
};

}  // namespace sluice::onerma
