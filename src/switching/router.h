// The switch's third layer: answers ARP for its own addresses and moves IPv4 packets that are sent to its MAC between subnets.
//
// Life:       snoop() every frame that carries an IPv4 or ARP source -> a neighbour is known -> route() rewrites packets to it.
// Invariant:  the rewrite touches only what the RoCE ICRC masks or does not cover: MACs, TTL, header checksum.
// Errors:     a verdict for each way to be refused.
// Limits:     max_neighbors; IPv4 only, and only hosts that are attached directly: no next-hop routers.
// Threads:    one owner.
// Source:     RFC 1812 §5.2, RFC 826; IBTA A17.3.3 (fields that the ICRC masks).
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "port/port.h"
#include "switching/types.h"
#include "wire/address.h"
#include "wire/ethernet.h"

namespace sluice::switching {

struct RouterConfig {
  wire::MacAddress mac{};  // all zero: no router
  struct Interface {
    wire::Ipv4Address address{};
    std::uint8_t prefix_length = 24;
  };
  std::vector<Interface> interfaces{};
  std::size_t max_neighbors = 65'536;
};

class Router {
 public:
  explicit Router(RouterConfig config);

  bool enabled() const { return config_.mac != wire::MacAddress{}; }
  const wire::MacAddress& mac() const { return config_.mac; }

  // Learns who sends ARP. REQUIRES for both: the frame has a whole Ethernet header.
  void snoop_arp(ByteView frame);
  // Whether the router must answer, and with which bytes: an ARP request for one of its addresses.
  std::optional<std::array<std::uint8_t, 42>> answer_arp(ByteView frame) const;

  enum class Outcome : std::uint8_t { kForward, kUnknown, kTtlExceeded, kMalformed };
  // Rewrites a packet addressed to the router's MAC. kForward: send it to its new destination MAC.
  // kUnknown with `request` set: broadcast that ARP request; the sender's retransmission will pass.
  Outcome route(MutableBytes frame, std::optional<std::array<std::uint8_t, 42>>& request);

  std::size_t neighbors() const { return neighbors_.size(); }

 private:
  const RouterConfig::Interface* interface_to(wire::Ipv4Address destination) const;

  RouterConfig config_;
  std::unordered_map<std::uint32_t, wire::MacAddress> neighbors_;
};

}  // namespace sluice::switching
