// Real Ethernet frames on a real interface, by AF_PACKET: RoCEv2 that any NIC or rxe on the wire understands.
//
// Needs:      CAP_NET_RAW (root, or `setcap cap_net_raw+ep` on the program; where we are preloaded an ambient capability instead).
// Receiving:  a TPACKET_V2 ring shared with the kernel: frames in place, polling costs a load and no system call. (V3 holds
//             frames back until a block is full or a millisecond is over; recvmmsg costs 0.6 us a frame and a poll.)
// Sending:    copied once, sendmmsg a flush. A TX ring and PACKET_QDISC_BYPASS measured no faster.
// Filter:     in the kernel, before the ring: RoCEv2 (UDP port 4791), 1RMA (61444), ARP and IPv6 neighbour discovery;
//             or everything.
// Pitfalls:   - With an IP address that the host's kernel has on this interface, its UDP stack answers our peers with ICMP "port
//               unreachable" for 4791, unless something is bound there (interface_address.h).
//             - Frames that the local kernel has not segmented or merged yet (GSO, GRO) are longer than kMaxFrame and counted as
//               rx_malformed: `ethtool -K IF gro off`, on a veth's other end `ethtool -K IF tx-udp-segmentation off`.
//             - Checksums that a sender has left to hardware (on veth, virtio, tap) are finished for TCP and UDP; other such frames pass as
//               they are.
//             - Short frames arrive padded to 60 bytes by real NICs. A VLAN tag that the kernel took off is put back.
//             - An interface's MTU must hold IP, UDP, BTH, 4,096 bytes and ICRC (4,200) for path MTU 4096; what does not fit is
//               dropped and counted.
// Life:       interface down or gone: kDown, counted in resets; looked for again every 100 ms, by name.
// Threads:    one owner.
// Source:     packet(7), Documentation/networking/packet_mmap.rst.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "port/port.h"
#include "ports/descriptor.h"
#include "ports/shm_region.h"

namespace sluice::ports {

enum class PacketFilter : std::uint8_t { kRoce, kAll };

class PacketPort final : public port::Port {
 public:
  static Result<std::unique_ptr<PacketPort>> open(const std::string& interface,
                                                  PacketFilter filter = PacketFilter::kRoce);

  std::uint8_t* reserve(std::size_t length) override;
  void commit(std::size_t length) override;
  bool make_room() override;
  bool flush_some(Time now) override;
  void discard() override;
  std::size_t receive(Time now, std::span<port::Frame> burst) override;
  Time next_deadline() const override;
  int wait_descriptor() const override { return epoll_.get(); }
  bool arm() override;
  void disarm() override;
  port::PortState state() const override { return up_ ? port::PortState::kUp : port::PortState::kDown; }
  const port::PortCounters& counters() const override { return counters_; }
  std::string name() const override { return "packet:" + interface_; }

 private:
  struct Outgoing {
    std::size_t offset = 0;
    std::size_t length = 0;
  };

  PacketPort(std::string interface, PacketFilter filter);
  // A socket with its ring, bound to the interface of that name as it is now.
  Result<void> attach();
  std::uint8_t* slot(std::size_t index) const;
  std::uint32_t status(std::size_t index) const;
  void give_back();
  bool take(std::size_t index, port::Frame& frame);
  void look_around(Time now);
  bool send_some();

  std::string interface_;
  PacketFilter filter_;
  Descriptor epoll_;
  Descriptor socket_;
  Mapping ring_;
  std::size_t next_ = 0;  // the slot that the kernel fills next
  std::size_t held_ = 0;  // slots before next_ whose frames are out
  bool up_ = false;
  Time next_look_;
  Time retry_at_ = Time::never();

  std::unique_ptr<std::uint8_t[]> outbox_;
  std::vector<Outgoing> outgoing_;
  std::size_t outbox_used_ = 0;
  std::size_t sent_ = 0;  // of outgoing_
  std::size_t reserved_ = 0;
  port::PortCounters counters_;
};

}  // namespace sluice::ports
