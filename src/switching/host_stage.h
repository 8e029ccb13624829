// A host's NIC that several programs share: one IP address, each program a place of its own on it.
//
// Addresses:  a program at place P has the host's MAC with P as its second byte, queue pair numbers P << 16 and up, and communication ids
//             (and SIDR request ids) whose top byte is P. Peers send to whichever of those MACs they happened to learn.
// A packet:   to one of the host's MACs, whatever its P: the MAC becomes that of the program which its queue pair number names; a MAD to
//             queue pair 1 goes by its communication id, a request for a connection to who listens at its port. The rest
//             (ARP, ND) stays as it is. The ICRC does not cover MACs.
// Errors:     a request that nobody listens for goes to the program where the packet was sent, which rejects it.
// Threads:    the switch's owner.
// Source:     IBTA vol. 1 §12.6 (where ids stand in the CM's messages), annex A11.3.1 (ports); docs/verbs.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "switching/stage.h"
#include "wire/address.h"

namespace sluice::switching {

class HostStage final : public Stage {
 public:
  using Place = std::uint8_t;  // 1 to 255
  // Who listens for a service of rdma_cm: port space and port, the low 24 bits of its id.
  using Listener = std::function<std::optional<Place>(std::uint32_t service)>;

  HostStage(const wire::MacAddress& host, Listener listener) : host_(host), listener_(std::move(listener)) {}

  static constexpr std::size_t kPlaceByte = 1;
  static wire::MacAddress mac_at(wire::MacAddress host, Place place) {
    host.bytes[kPlaceByte] = place;
    return host;
  }
  // Of a rack's node, whose own second byte is 0, or of a program on its NIC.
  static wire::MacAddress host_of(const wire::MacAddress& mac) { return mac_at(mac, 0); }

  void process(Time now, std::span<Packet> packets, port::FrameSink& outbox) override;

 private:
  static void send_back(Packet& packet, port::FrameSink& outbox);
  bool is_to_host(ByteView frame) const;
  std::optional<Place> place_of(ByteView frame) const;
  std::optional<Place> place_of_mad(ByteView mad) const;

  wire::MacAddress host_;
  Listener listener_;
};

}  // namespace sluice::switching
