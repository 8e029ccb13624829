#include "ports/udp_socket.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <linux/errqueue.h>
#include <linux/sock_diag.h>
#include <netdb.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace sluice::ports {
namespace {

constexpr int kWantedReceiveBuffer = 32 << 20;
constexpr int kWantedSendBuffer = 4 << 20;
constexpr std::size_t kLongestTrain = 64;      // UDP_MAX_SEGMENTS before Linux 6.9
constexpr std::size_t kLargestTrain = 65'000;  // bytes: an IP packet's limit, less headers
constexpr std::size_t kSmallestMtu = 576;

void set_option(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

void set_buffer(int fd, int force_name, int name, int value) {
  if (setsockopt(fd, SOL_SOCKET, force_name, &value, sizeof value) != 0) set_option(fd, SOL_SOCKET, name, value);
}

template <class Address>
const Address& as(const sockaddr_storage& storage) {
  return *reinterpret_cast<const Address*>(&storage);
}

// How many datagrams from the start can go as one train: they touch, and all but the last are equally long.
std::size_t train_length(std::span<const ContainerTrain::Datagram> datagrams) {
  std::size_t count = 1;
  std::size_t bytes = datagrams.front().length;
  for (; count < datagrams.size() && count < kLongestTrain; ++count) {
    const auto& before = datagrams[count - 1];
    const auto& next = datagrams[count];
    if (before.length != datagrams.front().length || next.length > before.length) break;
    if (next.offset != before.offset + before.length || bytes + next.length > kLargestTrain) break;
    bytes += next.length;
  }
  return count;
}

}  // namespace

// Addresses -----------------------------------------------------------------------------------------------------------

SocketAddress::SocketAddress(const sockaddr_storage& storage, socklen_t length) : storage_(storage), length_(length) {}

const sockaddr* SocketAddress::get() const { return reinterpret_cast<const sockaddr*>(&storage_); }

std::array<std::uint8_t, 22> SocketAddress::key() const {
  std::array<std::uint8_t, 22> bytes{};
  if (storage_.ss_family == AF_INET) {
    const auto& v4 = as<sockaddr_in>(storage_);
    std::memcpy(bytes.data(), &v4.sin_addr, 4);
    std::memcpy(bytes.data() + 16, &v4.sin_port, 2);
  } else if (storage_.ss_family == AF_INET6) {
    const auto& v6 = as<sockaddr_in6>(storage_);
    std::memcpy(bytes.data(), &v6.sin6_addr, 16);
    std::memcpy(bytes.data() + 16, &v6.sin6_port, 2);
    std::memcpy(bytes.data() + 18, &v6.sin6_scope_id, 4);
  }
  return bytes;
}

std::strong_ordering SocketAddress::operator<=>(const SocketAddress& other) const {
  if (const auto family = storage_.ss_family <=> other.storage_.ss_family; family != 0) return family;
  return key() <=> other.key();
}

std::uint16_t SocketAddress::port_number() const {
  return ntohs(storage_.ss_family == AF_INET ? as<sockaddr_in>(storage_).sin_port
                                             : as<sockaddr_in6>(storage_).sin6_port);
}

std::string SocketAddress::host() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (storage_.ss_family == AF_INET) {
    inet_ntop(AF_INET, &as<sockaddr_in>(storage_).sin_addr, text.data(), text.size());
  } else {
    inet_ntop(AF_INET6, &as<sockaddr_in6>(storage_).sin6_addr, text.data(), text.size());
  }
  return text.data();
}

std::string SocketAddress::to_string() const {
  if (storage_.ss_family == AF_INET) return fmt::format("{}:{}", host(), port_number());
  return fmt::format("[{}]:{}", host(), port_number());
}

Result<SocketAddress> resolve(const HostPort& where) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  if (error != 0) {
    return fail(fmt::format("cannot resolve host \"{}\": {}; give a name that this machine knows or an IP address",
                            where.host, gai_strerror(error)));
  }
  sockaddr_storage storage{};
  const socklen_t length = found->ai_addrlen;
  std::memcpy(&storage, found->ai_addr, length);
  freeaddrinfo(found);
  return SocketAddress(storage, length);
}

// Set-up --------------------------------------------------------------------------------------------------------------

struct UdpSocket::Headers {
  std::array<mmsghdr, kBatch> messages{};
  std::array<iovec, kBatch> vectors{};
  std::array<sockaddr_storage, kBatch> names{};
  struct alignas(cmsghdr) Control {
    std::array<std::uint8_t, CMSG_SPACE(sizeof(int))> bytes{};
  };
  std::array<Control, kBatch> controls{};
};

UdpSocket::UdpSocket(Descriptor socket) : socket_(std::move(socket)), headers_(std::make_shared<Headers>()) {
  arrivals_.reserve(kBatch);
}

Result<UdpSocket> UdpSocket::connect(const SocketAddress& peer) {
  UdpSocket made(Descriptor(socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!made.socket_) return fail(fmt::format("cannot make a UDP socket: {}", std::strerror(errno)));
  if (::connect(made.socket_.get(), peer.get(), peer.length()) != 0) {
    return fail(fmt::format("no way to {}: {}", peer.to_string(), std::strerror(errno)));
  }
  made.connected_ = true;
  made.set_up();
  return made;
}

Result<UdpSocket> UdpSocket::bind(const SocketAddress& local) {
  UdpSocket made(Descriptor(socket(local.family(), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!made.socket_) return fail(fmt::format("cannot make a UDP socket: {}", std::strerror(errno)));
  if (::bind(made.socket_.get(), local.get(), local.length()) != 0) {
    const char* hint = errno == EADDRINUSE      ? "; another program uses that port: take another"
                       : errno == EADDRNOTAVAIL ? "; this machine does not have that address"
                       : errno == EACCES        ? "; ports below 1024 need root"
                                                : "";
    return fail(fmt::format("cannot listen at udp:{}: {}{}", local.to_string(), std::strerror(errno), hint));
  }
  // Only so do we learn which of many peers is gone.
  set_option(made.socket_.get(), IPPROTO_IP, IP_RECVERR, 1);
  if (local.family() == AF_INET6) set_option(made.socket_.get(), IPPROTO_IPV6, IPV6_RECVERR, 1);
  made.set_up();
  return made;
}

void UdpSocket::connect_anew(const SocketAddress& peer) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  // Where one fails now, sending does, and brings us here again.
  static_cast<void>(::connect(socket_.get(), &nobody, sizeof nobody));
  static_cast<void>(::connect(socket_.get(), peer.get(), peer.length()));
}

void UdpSocket::set_up() {
  set_buffer(socket_.get(), SO_RCVBUFFORCE, SO_RCVBUF, kWantedReceiveBuffer);
  set_buffer(socket_.get(), SO_SNDBUFFORCE, SO_SNDBUF, kWantedSendBuffer);
  set_option(socket_.get(), SOL_UDP, UDP_GRO, 1);
  int probe = 0;
  socklen_t probe_length = sizeof probe;
  segmentation_ = getsockopt(socket_.get(), SOL_UDP, UDP_SEGMENT, &probe, &probe_length) == 0;
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&storage), &length);
  local_ = SocketAddress(storage, length);
}

std::size_t UdpSocket::datagram_limit(const SocketAddress& peer) {
  const bool v4 = peer.family() == AF_INET;
  const std::size_t headers = v4 ? 28 : 48;
  const Descriptor probe(socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  int mtu = 1500;
  socklen_t length = sizeof mtu;
  if (probe && ::connect(probe.get(), peer.get(), peer.length()) == 0) {
    getsockopt(probe.get(), v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MTU : IPV6_MTU, &mtu, &length);
  }
  return std::min(std::max(static_cast<std::size_t>(std::max(mtu, 0)), kSmallestMtu) - headers, kLargestDatagram);
}

std::uint64_t UdpSocket::overruns() const {
  std::array<std::uint32_t, SK_MEMINFO_VARS> memory{};
  socklen_t length = sizeof memory;
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_MEMINFO, memory.data(), &length) != 0) return 0;
  return memory[SK_MEMINFO_DROPS];
}

// Sending -------------------------------------------------------------------------------------------------------------

UdpSocket::SendStatus UdpSocket::status_of_error() {
  switch (errno) {
    case EAGAIN:
    case ENOBUFS:
    case ENOMEM:
    case EINTR: return SendStatus::kBusy;
    case ECONNREFUSED: error_seen_ = refused_seen_ = true; return SendStatus::kRefused;
    default: error_seen_ = true; return SendStatus::kFailed;
  }
}

namespace {

// What the kernel says of a train that it will not cut up (udp_send_skb and udp_sendmsg of Linux, net/ipv4/udp.c), and
// would take datagram by datagram. Of a path whose MTU is less than a datagram it says EINVAL or EMSGSIZE, and paths
// change and differ between peers; a kernel or device that cannot says the others.
bool may_be_mended(int error) { return error == EINVAL || error == EMSGSIZE; }
bool is_refused_train(int error) { return may_be_mended(error) || error == EIO || error == EOPNOTSUPP; }

}  // namespace

UdpSocket::SendResult UdpSocket::send(ContainerTrain& train, const SocketAddress* to) {
  const auto rest = train.datagrams();
  std::size_t sent = 0;
  for (bool together = segmentation_; !rest.empty();) {
    std::size_t count = together ? train_length(rest) : 1;
    if (count > 1) {
      sent = send_train(train, to, count);
      if (sent == 0 && is_refused_train(errno)) {
        if (!may_be_mended(errno)) segmentation_ = false;
        together = false;
        continue;
      }
    } else {
      while (count < rest.size() && count < kBatch && (!together || train_length(rest.subspan(count)) == 1)) ++count;
      sent = send_apart(train, to, count);
    }
    if (sent == 0) return {0, status_of_error()};
    train.sent(sent);
    break;
  }
  return {sent, SendStatus::kSent};
}

std::size_t UdpSocket::send_train(ContainerTrain& train, const SocketAddress* to, std::size_t count) {
  const auto datagrams = train.datagrams().first(count);
  iovec vector{train.bytes(datagrams.front()).data(), 0};
  for (const auto& datagram : datagrams) vector.iov_len += datagram.length;
  alignas(cmsghdr) std::array<std::uint8_t, CMSG_SPACE(sizeof(std::uint16_t))> control{};
  msghdr message{};
  message.msg_name = to == nullptr ? nullptr : const_cast<sockaddr*>(to->get());
  message.msg_namelen = to == nullptr ? 0 : to->length();
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_UDP;
  header->cmsg_type = UDP_SEGMENT;
  header->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
  const auto segment = static_cast<std::uint16_t>(datagrams.front().length);
  std::memcpy(CMSG_DATA(header), &segment, sizeof segment);
  return sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ? count : 0;
}

std::size_t UdpSocket::send_apart(ContainerTrain& train, const SocketAddress* to, std::size_t count) {
  if (count == 1) return put(train.bytes(train.datagrams().front()), to) ? 1 : 0;
  std::array<mmsghdr, kBatch> messages{};
  std::array<iovec, kBatch> vectors{};
  for (std::size_t i = 0; i < count; ++i) {
    const auto bytes = train.bytes(train.datagrams()[i]);
    vectors[i] = {bytes.data(), bytes.size()};
    messages[i].msg_hdr.msg_name = to == nullptr ? nullptr : const_cast<sockaddr*>(to->get());
    messages[i].msg_hdr.msg_namelen = to == nullptr ? 0 : to->length();
    messages[i].msg_hdr.msg_iov = &vectors[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int sent = sendmmsg(socket_.get(), messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent > 0 ? static_cast<std::size_t>(sent) : 0;
}

UdpSocket::SendStatus UdpSocket::send_one(ByteView datagram, const SocketAddress* to) {
  return put(datagram, to) ? SendStatus::kSent : status_of_error();
}

bool UdpSocket::put(ByteView datagram, const SocketAddress* to) const {
  return sendto(socket_.get(), datagram.data(), datagram.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                to == nullptr ? nullptr : to->get(), to == nullptr ? 0 : to->length()) >= 0;
}

// Receiving -----------------------------------------------------------------------------------------------------------

std::span<const UdpSocket::Arrival> UdpSocket::receive(std::span<std::uint8_t* const> buffers) {
  arrivals_.clear();
  // One look costs least when nothing or one thing is there; a full batch asks for a longer one next time.
  const std::size_t wanted = std::min({buffers.size(), next_batch_, kBatch});
  if (wanted == 0) return arrivals_;
  Headers& headers = *headers_;
  for (std::size_t i = 0; i < wanted; ++i) {
    headers.vectors[i] = {buffers[i], kBuffer};
    auto& message = headers.messages[i].msg_hdr;
    message.msg_iov = &headers.vectors[i];
    message.msg_iovlen = 1;
    message.msg_name = connected_ ? nullptr : &headers.names[i];
    message.msg_namelen = connected_ ? 0 : sizeof(sockaddr_storage);
    message.msg_control = headers.controls[i].bytes.data();
    message.msg_controllen = sizeof headers.controls[i].bytes;
  }
  const int got =
      recvmmsg(socket_.get(), headers.messages.data(), static_cast<unsigned>(wanted), MSG_DONTWAIT, nullptr);
  emptied_ = got < static_cast<int>(wanted);
  next_batch_ = got < 1 ? 1 : static_cast<std::size_t>(got) == wanted ? 2 * wanted : static_cast<std::size_t>(got);
  if (got < 0) {
    status_of_error();
    return arrivals_;
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(got); ++i) {
    auto& message = headers.messages[i].msg_hdr;
    Arrival arrival{
        .buffer = i, .length = headers.messages[i].msg_len, .segment = headers.messages[i].msg_len, .source = {}};
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      int segment = 0;
      if (header->cmsg_level != SOL_UDP || header->cmsg_type != UDP_GRO) continue;
      std::memcpy(&segment, CMSG_DATA(header), sizeof segment);
      if (segment > 0) arrival.segment = static_cast<std::size_t>(segment);
    }
    if (!connected_) arrival.source = SocketAddress(headers.names[i], message.msg_namelen);
    arrivals_.push_back(arrival);
  }
  return arrivals_;
}

std::vector<SocketAddress> UdpSocket::take_refusals() {
  std::vector<SocketAddress> refusals;
  error_seen_ = false;
  if (connected_) {
    if (std::exchange(refused_seen_, false)) refusals.emplace_back();
    return refusals;
  }
  refused_seen_ = false;
  for (;;) {
    sockaddr_storage name{};
    alignas(cmsghdr) std::array<std::uint8_t, 512> control{};
    std::array<std::uint8_t, 64> payload{};
    iovec vector{payload.data(), payload.size()};
    msghdr message{};
    message.msg_name = &name;
    message.msg_namelen = sizeof name;
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(socket_.get(), &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return refusals;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      const bool v4 = header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_RECVERR;
      const bool v6 = header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_RECVERR;
      if (!v4 && !v6) continue;
      sock_extended_err error{};
      std::memcpy(&error, CMSG_DATA(header), sizeof error);
      if (error.ee_errno == ECONNREFUSED) refusals.emplace_back(name, message.msg_namelen);
    }
  }
}

}  // namespace sluice::ports
