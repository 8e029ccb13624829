#include "dpdk/dpdk_port.h"

#include <fmt/core.h>
#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <functional>
#include <iterator>
#include <semaphore>
#include <utility>

#include "base/check.h"
#include "base/prefetch.h"
#include "dpdk/eal.h"
#include "dpdk/kernel_interface.h"
#include "ports/open.h"
#include "ports/spec.h"

namespace sluice::dpdk {
namespace {

constexpr unsigned kAnySocket = static_cast<unsigned>(SOCKET_ID_ANY);

// What a buffer holds: XDP wants all of it, kXdpFrame and its own headroom, on one page; the packet sockets' driver wants it as large as a
// frame of the kernel's ring.
constexpr std::uint32_t kXdpRoom = 2048;
constexpr std::uint32_t kPacketRoom = 8192;

// DPDK has a thread that serves devices on its own account; memif's other end going away is heard of there. A device that is ended in another
// thread meanwhile would be taken apart by both. Waits until `what` is done.
void in_interrupt_thread(const std::function<void()>& what) {
  struct Call {
    const std::function<void()>& what;
    std::binary_semaphore done{0};
  } call{what};
  const auto run = [](void* argument) {
    auto& this_call = *static_cast<Call*>(argument);
    this_call.what();
    this_call.done.release();
  };
  if (rte_eal_alarm_set(1, run, &call) != 0) return what();
  call.done.acquire();
}

// DPDK's reason is the same whatever such a driver lacked.
std::string_view rights_for(const std::string& driver) {
  return geteuid() != 0 && (driver == "af_packet" || driver == "af_xdp") ? "; it needs root, or CAP_NET_RAW" : "";
}

std::string reason(int error) { return rte_strerror(error < 0 ? -error : error); }

}  // namespace

// -------------------------------------------------------------------------------------------------------------- device

Result<std::unique_ptr<Device>> Device::open(const DeviceSpec& spec, std::uint32_t room) {
  if (auto started = start_environment(); !started) return tl::unexpected(started.error());
  static std::atomic<unsigned> opened{0};
  const unsigned turn = opened.fetch_add(1);
  auto device = std::unique_ptr<Device>(new Device());
  device->name_ = fmt::format("net_{}{}", spec.driver, turn);
  device->others_sockets_ = xdp_sockets();
  if (const int error = rte_eal_hotplug_add("vdev", device->name_.c_str(), spec.arguments.c_str()); error != 0) {
    return fail(fmt::format(
        "{}({}): {}; a driver of DPDK's such as af_packet, af_xdp, memif, ring, pcap or null, with its options{}",
        spec.driver, spec.arguments, reason(error), rights_for(spec.driver)));
  }
  device->plugged_ = true;
  const auto refuse = [&](const char* what, int error) {
    return fail(fmt::format("{}({}): {}: {}", spec.driver, spec.arguments, what, reason(error)));
  };
  if (const int error = rte_eth_dev_get_port_by_name(device->name_.c_str(), &device->number_); error != 0)
    return refuse("no port", error);
  const auto pool_name = fmt::format("sluice{}", turn);
  device->pool_ = rte_pktmbuf_pool_create(pool_name.c_str(), kBuffers, 256, 0,
                                          static_cast<std::uint16_t>(room + RTE_PKTMBUF_HEADROOM), SOCKET_ID_ANY);
  if (device->pool_ == nullptr) return refuse("no memory for its buffers", rte_errno);

  rte_eth_dev_info facts{};
  if (const int error = rte_eth_dev_info_get(device->number_, &facts); error != 0)
    return refuse("no description", error);
  rte_eth_conf configuration{};
  if (const int error = rte_eth_dev_configure(device->number_, 1, 1, &configuration); error != 0)
    return refuse("cannot be configured", error);
  std::uint16_t receive = spec.descriptors;
  std::uint16_t send = spec.descriptors;
  if (const int error = rte_eth_dev_adjust_nb_rx_tx_desc(device->number_, &receive, &send); error != 0)
    return refuse("queue", error);
  if (const int error = rte_eth_rx_queue_setup(device->number_, 0, receive, kAnySocket, nullptr, device->pool_);
      error != 0)
    return refuse("cannot receive", error);
  if (const int error = rte_eth_tx_queue_setup(device->number_, 0, send, kAnySocket, nullptr); error != 0)
    return refuse("cannot send", error);
  if (const int error = rte_eth_dev_start(device->number_); error != 0) return refuse("does not start", error);
  device->started_ = true;
  device->note_sockets();
  // Frames for everybody: a switch stands here. Some drivers know no other way and no such call.
  rte_eth_promiscuous_enable(device->number_);
  return device;
}

void Device::note_sockets() {
  const std::vector<int> now = xdp_sockets();
  std::ranges::set_difference(now, others_sockets_, std::back_inserter(our_sockets_));
}

Device::~Device() {
  if (!started_) note_sockets();
  in_interrupt_thread([this] {
    if (started_) rte_eth_dev_stop(number_);
    if (number_ != kNoNumber) rte_eth_dev_close(number_);
  });
  if (plugged_) rte_eal_hotplug_remove("vdev", name_.c_str());
  const std::vector<int> left_open = xdp_sockets();
  for (const int socket : our_sockets_) {
    if (std::ranges::binary_search(left_open, socket)) close(socket);
  }
  rte_mempool_free(pool_);
}

// ---------------------------------------------------------------------------------------------------------------- port

Result<std::unique_ptr<DpdkPort>> DpdkPort::open(const DeviceSpec& wanted) {
  DeviceSpec spec = wanted;
  std::uint32_t room = port::kMaxFrame;
  if (spec.driver == "af_xdp") room = kXdpRoom;
  if (spec.driver == "af_packet") {
    room = kPacketRoom;
    // So that the longest frame fits, unless somebody knows better.
    if (spec.arguments.find("framesz=") == std::string::npos) {
      const auto add = [&spec](std::string_view key, std::uint32_t value) {
        if (spec.arguments.find(fmt::format("{}=", key)) == std::string::npos)
          spec.arguments += fmt::format(",{}={}", key, value);
      };
      add("blocksz", kPacketRoom);
      add("framesz", kPacketRoom);
      add("framecnt", 512);
    }
  }
  std::unique_ptr<DpdkPort> made(new DpdkPort(std::move(spec), room));
  if (auto opened = made->open_device(); !opened) return tl::unexpected(opened.error());
  made->name_ = made->device_->name();
  return made;
}

DpdkPort::DpdkPort(DeviceSpec spec, std::uint32_t room)
    : spec_(std::move(spec)),
      interface_(interface_of(spec_.driver, spec_.arguments)),
      room_(room),
      nowhere_(port::kMaxFrame) {}

DpdkPort::~DpdkPort() {
  take_back();
  rte_pktmbuf_free_bulk(unsent_.data(), unsent_count_);
  rte_pktmbuf_free(reserved_);
}

Result<void> DpdkPort::open_device() {
  if (auto fit = check_interface(spec_.driver, spec_.arguments); !fit) return fit;
  if (!interface_.empty()) interface_number_ = look_at(interface_).number;
  auto device = Device::open(spec_, room_);
  if (!device) return tl::unexpected(device.error());
  device_ = std::move(*device);
  lost_ = 0;
  return {};
}

// What it holds would go out whenever its interface comes up.
void DpdkPort::close_device() {
  drop_unsent();
  rte_pktmbuf_free(std::exchange(reserved_, nullptr));
  device_.reset();
}

// REQUIRES: no frame is lent, and no reservation counts any more.
void DpdkPort::look_around(Time now) {
  next_look_ = now + kLookInterval;
  if (device_) count_lost();
  if (interface_.empty()) return;
  const InterfaceNow interface = look_at(interface_);
  if (device_ && (!interface.up || interface.number != interface_number_)) close_device();
  if (device_ || !interface.up) return;
  if (!open_device()) {
    next_look_ = now + kOpenPause;
    return;
  }
  up_ = true;
  refused_since_ = Time::never();
}

void DpdkPort::count_lost() {
  rte_eth_stats told{};
  if (rte_eth_stats_get(device_->number(), &told) != 0) return;
  const std::uint64_t lost = told.imissed + told.ierrors + told.rx_nombuf;
  counters_.rx_lost += lost - std::min(lost, lost_);
  lost_ = lost;
}

void DpdkPort::take_back() {
  rte_pktmbuf_free_bulk(lent_.data(), lent_count_);
  lent_count_ = 0;
}

std::uint8_t* DpdkPort::reserve(std::size_t length) {
  SLUICE_CHECK(length <= port::kMaxFrame);
  reserved_nowhere_ = !device_ || length > room_;
  if (reserved_nowhere_) return nowhere_.data();
  if (reserved_ == nullptr && unsent_count_ != kUnsent) reserved_ = rte_pktmbuf_alloc(device_->pool());
  if (reserved_ == nullptr || unsent_count_ == kUnsent) {
    ++counters_.tx_full;
    return nullptr;
  }
  return rte_pktmbuf_mtod(reserved_, std::uint8_t*);
}

void DpdkPort::commit(std::size_t length) {
  if (std::exchange(reserved_nowhere_, false)) {
    ++counters_.tx_dropped;
    return;
  }
  SLUICE_CHECK(reserved_ != nullptr);
  reserved_->data_len = static_cast<std::uint16_t>(length);
  reserved_->pkt_len = static_cast<std::uint32_t>(length);
  unsent_[unsent_count_++] = std::exchange(reserved_, nullptr);
  ++counters_.tx_frames;
  counters_.tx_bytes += length;
}

bool DpdkPort::make_room() {
  const std::uint32_t before = unsent_count_;
  hand_over();
  return unsent_count_ != before;
}

bool DpdkPort::flush_some(Time now) {
  now_ = now;
  hand_over();
  return false;
}

void DpdkPort::hand_over() {
  if (unsent_count_ == 0) return;
  const std::uint16_t sent =
      rte_eth_tx_burst(device_->number(), 0, unsent_.data(), static_cast<std::uint16_t>(unsent_count_));
  if (sent != 0) {
    up_ = true;
    refused_since_ = Time::never();
  } else {
    refused_since_ = std::min(refused_since_, now_);
    if (now_ - refused_since_ >= kPatience) return drop_unsent();
  }
  std::copy(unsent_.begin() + sent, unsent_.begin() + unsent_count_, unsent_.begin());
  unsent_count_ -= sent;
}

void DpdkPort::drop_unsent() {
  if (std::exchange(up_, false)) ++counters_.resets;
  counters_.tx_dropped += forget_unsent();
}

std::uint32_t DpdkPort::forget_unsent() {
  rte_pktmbuf_free_bulk(unsent_.data(), unsent_count_);
  return std::exchange(unsent_count_, 0u);
}

std::size_t DpdkPort::receive(Time now, std::span<port::Frame> burst) {
  if (!entered_) enter_thread();
  entered_ = true;
  take_back();
  if (now >= next_look_) look_around(now);
  if (!device_) return 0;
  const std::uint16_t n =
      rte_eth_rx_burst(device_->number(), 0, lent_.data(), static_cast<std::uint16_t>(std::min(burst.size(), kBurst)));
  lent_count_ = n;
  if (n != 0 && !std::exchange(up_, true)) refused_since_ = Time::never();
  std::size_t frames = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    rte_mbuf* const buffer = lent_[i];
    if (buffer->nb_segs != 1 || buffer->pkt_len > port::kMaxFrame) {
      ++counters_.rx_malformed;
      continue;
    }
    const std::uint32_t room = std::uint32_t{buffer->buf_len} - buffer->data_off;
    burst[frames++] = {rte_pktmbuf_mtod(buffer, std::uint8_t*), buffer->pkt_len, room};
    prefetch(burst[frames - 1].data);
    prefetch(burst[frames - 1].data + 64);
    ++counters_.rx_frames;
    counters_.rx_bytes += buffer->pkt_len;
  }
  return frames;
}

// ---------------------------------------------------------------------------------------------------------------- kind

namespace {

Result<std::unique_ptr<port::Port>> open_spec(const ports::PortSpec& spec) {
  DeviceSpec device;
  device.driver = spec.address.starts_with("net_") ? spec.address.substr(4) : spec.address;
  for (const auto& [key, value] : spec.options) {
    if (key == "queue") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), device.descriptors);
      if (error != std::errc() || end != value.data() + value.size() || device.descriptors == 0)
        return fail(fmt::format("dpdk: queue={}: a number of descriptors, 1 to 65535", value));
      continue;
    }
    device.arguments += fmt::format("{}{}={}", device.arguments.empty() ? "" : ",", key, value);
  }
  auto made = DpdkPort::open(device);
  if (!made) return tl::unexpected(made.error());
  return std::unique_ptr<port::Port>(std::move(*made));
}

}  // namespace

void add_port_kind() { ports::add_port_kind("dpdk", open_spec); }

}  // namespace sluice::dpdk
