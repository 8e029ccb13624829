// Frames of a virtual device of DPDK's, by its poll-mode driver.
//
//   dpdk:af_xdp,iface=eth1            XDP sockets                        dpdk:null,size=64     frames from nowhere, to nowhere
//   dpdk:af_packet,iface=eth1         the kernel's packet sockets        dpdk:ring             what is sent comes back
//   dpdk:memif,socket=/run/m.sock     shared memory with VPP and others  dpdk:pcap,rx_pcap=a.pcap,tx_pcap=b.pcap
// Every option but ours goes to the driver as it is. Ours: queue=DESCRIPTORS each way.
//
// Receiving:  in place, in the driver's buffers, until the next receive().
// Sending:    buffers from the port's pool, one burst a flush; what the driver does not take waits, in order, as far as there is room.
// Waiting:    polled only.
// Errors:     a frame in several pieces, or too long: dropped, rx_malformed; one that the driver lost: rx_lost. No buffer, or the driver full:
//             reserve() refuses. The driver takes nothing for kPatience (memif has no peer): kDown until it takes or brings something,
//             counted in resets.
// Life:       the interface of af_packet or af_xdp is looked at every kLookInterval: down or gone: kDown, counted in resets, and the device
//             is closed with what it holds; there again, and up: it is opened anew.
// Threads:    one owner.
// Limits:     kBuffers buffers of kMaxFrame bytes a port; one queue each way.
//             - af_xdp: frames of kXdpFrame bytes (path MTU 1024), for XDP's buffers lie on one page each, so an interface with a larger MTU
//               is refused; one receive channel of the interface, so more are refused; no other XDP program on it.
//             - af_packet takes what the host itself sends on the interface for received frames, and a VLAN tag of type 0x88A8 comes back
//               as 0x8100. packet:IF does neither.
//             - Both pass checksums on that the sender has left to hardware (veth, virtio, tap): `ethtool -K IF tx off` at the other end.
//               packet:IF finishes them.
// Source:     DPDK 22.11, Programmer's Guide, "Poll Mode Driver"; Network Interface Controller Drivers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "port/port.h"

struct rte_mbuf;
struct rte_mempool;

namespace sluice::dpdk {

// A device by DPDK's name for its driver, without "net_", and what the driver is told.
struct DeviceSpec {
  std::string driver;
  std::string arguments;  // KEY=VALUE,...
  std::uint16_t descriptors = 512;
};

// One device with one queue each way, and the pool that its buffers come from. One at a time is opened or ended.
class Device {
 public:
  static constexpr std::uint32_t kBuffers = 4095;

  // `room`: bytes of a frame that a buffer holds.
  static Result<std::unique_ptr<Device>> open(const DeviceSpec& spec, std::uint32_t room = port::kMaxFrame);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  std::uint16_t number() const { return number_; }
  rte_mempool* pool() const { return pool_; }
  const std::string& name() const { return name_; }

 private:
  static constexpr std::uint16_t kNoNumber = 0xFFFF;
  Device() = default;
  void note_sockets();

  std::string name_;
  std::uint16_t number_ = kNoNumber;
  bool started_ = false;
  bool plugged_ = false;
  rte_mempool* pool_ = nullptr;
  std::vector<int>
      others_sockets_;  // XDP's, from before; ours: which af_xdp's close leaves open, and bound to the queue
  std::vector<int> our_sockets_;
};

class DpdkPort final : public port::Port {
 public:
  static Result<std::unique_ptr<DpdkPort>> open(const DeviceSpec& spec);
  ~DpdkPort() override;

  std::uint8_t* reserve(std::size_t length) override;
  void commit(std::size_t length) override;
  bool make_room() override;
  bool flush_some(Time now) override;
  void discard() override {
    counters_.tx_discarded += forget_unsent();
    refused_since_ = Time::never();  // what comes next has not waited yet
  }
  std::size_t receive(Time now, std::span<port::Frame> burst) override;
  port::PortState state() const override { return up_ ? port::PortState::kUp : port::PortState::kDown; }
  const port::PortCounters& counters() const override { return counters_; }
  std::string name() const override { return "dpdk:" + name_; }

 private:
  static constexpr std::size_t kBurst = 64;
  static constexpr std::size_t kUnsent = 256;
  static constexpr Duration kPatience = Duration::milliseconds(100);
  static constexpr Duration kLookInterval = Duration::milliseconds(100);
  static constexpr Duration kOpenPause = Duration::seconds(1);  // after opening the device anew has failed

  DpdkPort(DeviceSpec spec, std::uint32_t room);
  Result<void> open_device();
  void close_device();
  void look_around(Time now);
  void count_lost();
  void take_back();
  void hand_over();
  void drop_unsent();
  std::uint32_t forget_unsent();

  DeviceSpec spec_;
  std::string name_;
  std::string interface_;                 // of the kernel's, that the driver stands on; empty: none
  unsigned interface_number_ = 0;         // when the device was opened
  std::unique_ptr<Device> device_;        // none: its interface is down or gone
  std::array<rte_mbuf*, kBurst> lent_{};  // received ones that the owner may look at
  std::uint32_t lent_count_ = 0;
  std::array<rte_mbuf*, kUnsent> unsent_{};
  std::uint32_t unsent_count_ = 0;
  rte_mbuf* reserved_ = nullptr;
  std::uint32_t room_;
  std::vector<std::uint8_t> nowhere_;  // where frames go that do not fit into a buffer, or have no device
  bool reserved_nowhere_ = false;
  bool entered_ = false;
  bool up_ = true;
  Time now_;                            // the owner's last
  Time refused_since_ = Time::never();  // by the driver, which has taken nothing from then on
  Time next_look_;
  std::uint64_t lost_ = 0;  // of the driver's frames, as it has told so far
  port::PortCounters counters_;
};

// From now on ports::open_port() takes "dpdk:...". REQUIRES: before the first port is opened.
void add_port_kind();

}  // namespace sluice::dpdk
