#include "ports/packet_port.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <pcap/pcap.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "ports/unfinished_checksum.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

namespace sluice::ports {
namespace {

// A slot holds the longest frame behind the kernel's header; four slots make whole pages.
constexpr std::size_t kSlotBytes = 5120;
constexpr std::size_t kSlotsPerBlock = 4;
constexpr std::size_t kSlots = 2048;
constexpr std::size_t kRingBytes = kSlots * kSlotBytes;
constexpr std::size_t kSlotHeader = (sizeof(tpacket2_hdr) + 15) / 16 * 16;  // TPACKET_ALIGN, which has a sign
static_assert(kSlotBytes % 16 == 0 && kSlotsPerBlock * kSlotBytes % 4096 == 0);
static_assert(kSlotHeader + sizeof(sockaddr_ll) + 64 + port::kMaxFrame <= kSlotBytes);

constexpr std::size_t kOutboxBytes = 256 << 10;
constexpr std::size_t kBatch = 64;
constexpr std::size_t kVlanTag = 4;
constexpr Duration kLookInterval = Duration::milliseconds(100);
constexpr Duration kBusyRetry = Duration::microseconds(100);

constexpr const char* kRoceOnly =
    "udp dst port 4791 or udp dst port 61444 or arp or (icmp6 and ip6[40] >= 133 and ip6[40] <= 137)";

tl::unexpected<Error> system_failure(std::string_view what) {
  return fail(fmt::format("{}: {}", what, std::strerror(errno)));
}

std::string interfaces_here() {
  std::string names;
  struct if_nameindex* all = if_nameindex();
  for (auto* one = all; one != nullptr && one->if_index != 0; ++one) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", one->if_name);
  }
  if (all != nullptr) if_freenameindex(all);
  return names;
}

bool set_option(int fd, int name, int value) { return setsockopt(fd, SOL_PACKET, name, &value, sizeof value) == 0; }

// libpcap compiles, the kernel runs.
Result<void> attach_filter(int fd) {
  pcap_t* compiler = pcap_open_dead(DLT_EN10MB, 65535);
  bpf_program program{};
  const int compiled = pcap_compile(compiler, &program, kRoceOnly, 1, PCAP_NETMASK_UNKNOWN);
  if (compiled != 0) {
    auto error = fail(fmt::format("cannot compile the packet filter: {}", pcap_geterr(compiler)));
    pcap_close(compiler);
    return error;
  }
  std::vector<sock_filter> code(program.bf_len);
  std::memcpy(code.data(), program.bf_insns, code.size() * sizeof(sock_filter));
  static_assert(sizeof(sock_filter) == sizeof(bpf_insn));
  pcap_freecode(&program);
  pcap_close(compiler);
  const sock_fprog filter{static_cast<unsigned short>(code.size()), code.data()};
  if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) != 0) {
    return system_failure("cannot attach the packet filter");
  }
  return {};
}

Result<Mapping> make_ring(int fd) {
  if (!set_option(fd, PACKET_VERSION, TPACKET_V2)) return system_failure("no TPACKET_V2");
  tpacket_req request{};
  request.tp_block_size = kSlotsPerBlock * kSlotBytes;
  request.tp_block_nr = kSlots / kSlotsPerBlock;
  request.tp_frame_size = kSlotBytes;
  request.tp_frame_nr = kSlots;
  if (setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) != 0) {
    return system_failure(fmt::format("no receive ring of {} MiB", kRingBytes >> 20));
  }
  void* start = mmap(nullptr, kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (start == MAP_FAILED) return system_failure("cannot map the receive ring");
  return Mapping(static_cast<std::uint8_t*>(start), kRingBytes);
}

// Reads and clears the socket's pending error.
int take_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

bool is_up(int fd, const std::string& interface) {
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  return ioctl(fd, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_UP) != 0;
}

// Ethernet, or the loopback's, which looks the same.
bool has_ethernet_frames(int fd) {
  sockaddr_ll address{};
  socklen_t length = sizeof address;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
         (address.sll_hatype == ARPHRD_ETHER || address.sll_hatype == ARPHRD_LOOPBACK);
}

// The interface that the socket is bound to: none any more once that is gone, even when another comes under its number.
int bound_to(int fd) {
  sockaddr_ll address{};
  socklen_t length = sizeof address;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 ? address.sll_ifindex : 0;
}

}  // namespace

PacketPort::PacketPort(std::string interface, PacketFilter filter)
    : interface_(std::move(interface)),
      filter_(filter),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      outbox_(std::make_unique_for_overwrite<std::uint8_t[]>(kOutboxBytes)) {
  outgoing_.reserve(kOutboxBytes / 64);
}

Result<std::unique_ptr<PacketPort>> PacketPort::open(const std::string& interface, PacketFilter filter) {
  std::unique_ptr<PacketPort> made(new PacketPort(interface, filter));
  if (!made->epoll_) return system_failure("epoll");
  if (const auto attached = made->attach(); !attached) return tl::unexpected(attached.error());
  made->up_ = is_up(made->socket_.get(), interface);
  if (!made->up_) return fail(fmt::format("interface {} is down: `ip link set {} up` first", interface, interface));
  return made;
}

Result<void> PacketPort::attach() {
  const unsigned index = if_nametoindex(interface_.c_str());
  if (index == 0) {
    return fail(fmt::format("no interface is named {}; this machine has {}", interface_, interfaces_here()));
  }
  // Protocol 0: nothing arrives before filter and ring are there.
  Descriptor socket(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket && errno == EPERM) {
    return fail(
        "raw frames need CAP_NET_RAW: run as root, or `setcap cap_net_raw+ep` a daemon's program; `sluice run`, whose "
        "preloading that would shut out, is to inherit it (setpriv, see docs/verbs.md); udp: and shm: ports need no "
        "privileges");
  }
  if (!socket) return system_failure("cannot make a packet socket");
  if (filter_ == PacketFilter::kRoce) {
    if (auto attached = attach_filter(socket.get()); !attached) return attached;
  }
  set_option(socket.get(), PACKET_IGNORE_OUTGOING, 1);  // before Linux 4.20: see take()
  auto ring = make_ring(socket.get());
  if (!ring) return tl::unexpected(ring.error());

  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(index);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return system_failure(fmt::format("cannot bind to {}", interface_));
  }
  if (!has_ethernet_frames(socket.get()))
    return fail(fmt::format("interface {} carries no Ethernet frames (a tunnel, IP over InfiniBand, ...)", interface_));
  // Our NICs have MAC addresses of their own.
  packet_mreq promiscuous{};
  promiscuous.mr_ifindex = address.sll_ifindex;
  promiscuous.mr_type = PACKET_MR_PROMISC;
  setsockopt(socket.get(), SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous);

  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) return system_failure("epoll");
  ring_ = std::move(*ring);
  socket_ = std::move(socket);
  next_ = held_ = 0;
  return {};
}

// Receiving -----------------------------------------------------------------------------------------------------------

std::uint8_t* PacketPort::slot(std::size_t index) const { return ring_.start() + index * kSlotBytes; }

std::uint32_t PacketPort::status(std::size_t index) const {
  return __atomic_load_n(reinterpret_cast<const std::uint32_t*>(slot(index)), __ATOMIC_ACQUIRE);
}

void PacketPort::give_back() {
  for (; held_ > 0; --held_) {
    const std::size_t index = (next_ + kSlots - held_) % kSlots;
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(slot(index)), TP_STATUS_KERNEL, __ATOMIC_RELEASE);
  }
}

std::size_t PacketPort::receive(Time now, std::span<port::Frame> burst) {
  reserved_ = 0;
  give_back();
  if (now >= next_look_) look_around(now);
  std::size_t count = 0;
  while (count < burst.size() && held_ < kSlots && (status(next_) & TP_STATUS_USER) != 0) {
    if (take(next_, burst[count])) counters_.rx_bytes += burst[count++].length;
    next_ = (next_ + 1) % kSlots;
    ++held_;
  }
  counters_.rx_frames += count;
  return count;
}

// False: no frame for us.
bool PacketPort::take(std::size_t index, port::Frame& frame) {
  static_assert(offsetof(tpacket2_hdr, tp_status) == 0);
  tpacket2_hdr header;
  std::memcpy(&header, slot(index), sizeof header);
  sockaddr_ll source;
  std::memcpy(&source, slot(index) + kSlotHeader, sizeof source);
  if (source.sll_pkttype == PACKET_OUTGOING) return false;

  std::uint8_t* start = slot(index) + header.tp_mac;
  std::size_t length = header.tp_snaplen;
  const bool tagged = (header.tp_status & TP_STATUS_VLAN_VALID) != 0;
  if (header.tp_len != header.tp_snaplen || length < ETH_HLEN || length + (tagged ? kVlanTag : 0) > port::kMaxFrame) {
    ++counters_.rx_malformed;
    return false;
  }
  if (tagged) {
    const bool has_type = (header.tp_status & TP_STATUS_VLAN_TPID_VALID) != 0;
    std::memmove(start - kVlanTag, start, 2 * ETH_ALEN);
    start -= kVlanTag;
    length += kVlanTag;
    store_be<std::uint16_t>(start + 2 * ETH_ALEN, has_type ? header.tp_vlan_tpid : std::uint16_t{ETH_P_8021Q});
    store_be<std::uint16_t>(start + 2 * ETH_ALEN + 2, header.tp_vlan_tci);
  }
  frame = {start, static_cast<std::uint32_t>(length)};
  if ((header.tp_status & TP_STATUS_CSUMNOTREADY) != 0) finish_checksum(frame.mutable_bytes());
  return true;
}

bool PacketPort::arm() {
  // A slot that is still out would keep the socket readable: receive() first.
  return held_ == 0 && (status(next_) & TP_STATUS_USER) == 0;
}

void PacketPort::disarm() {
  // An error that stays would wake us again at once; the next receive() finds out what it means.
  if (take_error(socket_.get()) != 0) next_look_ = Time();
}

Time PacketPort::next_deadline() const { return up_ ? retry_at_ : next_look_; }

// Is the interface still there, and up? Counts what the ring had no room for.
void PacketPort::look_around(Time now) {
  next_look_ = now + kLookInterval;
  tpacket_stats statistics{};
  socklen_t length = sizeof statistics;
  if (getsockopt(socket_.get(), SOL_PACKET, PACKET_STATISTICS, &statistics, &length) == 0) {
    counters_.rx_lost += statistics.tp_drops;
  }
  take_error(socket_.get());
  const auto index = static_cast<int>(if_nametoindex(interface_.c_str()));
  const bool present = index != 0 && is_up(socket_.get(), interface_);
  if (present && index != bound_to(socket_.get()) && !attach()) return;
  if (up_ && !present) ++counters_.resets;
  up_ = present;
}

// Sending -------------------------------------------------------------------------------------------------------------

std::uint8_t* PacketPort::reserve(std::size_t length) {
  SLUICE_CHECK(length <= port::kMaxFrame);
  reserved_ = 0;
  if (outbox_used_ + length > kOutboxBytes) {
    ++counters_.tx_full;
    return nullptr;
  }
  reserved_ = length;
  return outbox_.get() + outbox_used_;
}

void PacketPort::commit(std::size_t length) {
  SLUICE_CHECK(length > 0 && length <= reserved_);
  reserved_ = 0;
  if (!up_) {
    ++counters_.tx_dropped;
    return;
  }
  outgoing_.push_back({outbox_used_, length});
  outbox_used_ += length;
  ++counters_.tx_frames;
  counters_.tx_bytes += length;
}

bool PacketPort::make_room() {
  while (!outgoing_.empty()) {
    if (!send_some()) return false;
  }
  return true;
}

bool PacketPort::flush_some(Time now) {
  reserved_ = 0;
  const bool is_busy = !outgoing_.empty() && !send_some();
  retry_at_ = is_busy ? now + kBusyRetry : Time::never();
  return !is_busy && !outgoing_.empty();
}

void PacketPort::discard() {
  reserved_ = 0;
  counters_.tx_discarded += outgoing_.size() - sent_;
  outgoing_.clear();
  outbox_used_ = sent_ = 0;
}

// One call. False: the device is busy, come again. REQUIRES: there is something to send.
bool PacketPort::send_some() {
  std::array<mmsghdr, kBatch> messages{};
  std::array<iovec, kBatch> vectors{};
  const std::size_t count = std::min(kBatch, outgoing_.size() - sent_);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& frame = outgoing_[sent_ + i];
    vectors[i] = {outbox_.get() + frame.offset, frame.length};
    messages[i].msg_hdr.msg_iov = &vectors[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int done = sendmmsg(socket_.get(), messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (done > 0) {
    sent_ += static_cast<std::size_t>(done);
  } else if (errno == EAGAIN || errno == EINTR) {
    return false;
  } else {
    ++counters_.tx_dropped;  // a full device queue, a frame beyond its MTU, a link that is down
    ++sent_;
  }
  if (sent_ == outgoing_.size()) {
    outgoing_.clear();
    outbox_used_ = sent_ = 0;
  }
  return true;
}

}  // namespace sluice::ports
