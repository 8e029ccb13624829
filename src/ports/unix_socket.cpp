#include "ports/unix_socket.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace sluice::ports {
namespace {

constexpr std::uint64_t kMagic = 0x31'63'73'65'63'69'75'6C;
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHelloBytes = 16;

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty()) return fail("a shared-memory cable needs a socket path, as in shm:/run/sluice/switch.sock");
  if (path.size() >= sizeof address.sun_path) {
    return fail(fmt::format("socket path of {} bytes is too long (at most {}): {}", path.size(),
                            sizeof address.sun_path - 1, path));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

const sockaddr* generic(const sockaddr_un& address) { return reinterpret_cast<const sockaddr*>(&address); }

Descriptor new_socket(UnixKind kind) {
  const int type = kind == UnixKind::kStream ? SOCK_STREAM : SOCK_SEQPACKET;
  return Descriptor(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::string explain_connect(const std::string& path) {
  switch (errno) {
    case ENOENT: return fmt::format("nothing is at {}: start the listening side (such as `sluice switch`) first", path);
    case ECONNREFUSED: return fmt::format("nobody listens at {} any more: start the listening side again", path);
    case EACCES: return fmt::format("no permission to connect to {}: it belongs to another user", path);
    default: return fmt::format("cannot connect to {}: {}", path, std::strerror(errno));
  }
}

}  // namespace

Result<Descriptor> listen_unix(const std::string& path, UnixKind kind) {
  const auto address = address_of(path);
  if (!address) return tl::unexpected(address.error());
  Descriptor socket = new_socket(kind);
  if (!socket) return fail(fmt::format("cannot make a UNIX socket: {}", std::strerror(errno)));
  int bound = bind(socket.get(), generic(*address), sizeof *address);
  if (bound != 0 && errno == EADDRINUSE) {
    if (is_listened_at(path, kind))
      return fail(fmt::format("another process listens at {}: stop it or take another path", path));
    // Connecting to what is no socket is refused too.
    const bool refused = errno == ECONNREFUSED;
    struct stat status {};
    const bool is_socket = lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
    if (!refused || !is_socket)
      return fail(fmt::format("{} is there and is no socket to replace: remove it or take another path", path));
    unlink(path.c_str());
    bound = bind(socket.get(), generic(*address), sizeof *address);
  }
  if (bound != 0) return fail(fmt::format("cannot listen at {}: {}", path, std::strerror(errno)));
  if (listen(socket.get(), SOMAXCONN) != 0)
    return fail(fmt::format("cannot listen at {}: {}", path, std::strerror(errno)));
  return socket;
}

bool is_listened_at(const std::string& path, UnixKind kind) {
  return connect_unix(path, kind).has_value() || errno == EAGAIN;  // it takes nobody just now
}

Result<Descriptor> connect_unix(const std::string& path, UnixKind kind) {
  const auto address = address_of(path);
  if (!address) return tl::unexpected(address.error());
  Descriptor socket = new_socket(kind);
  if (!socket) return fail(fmt::format("cannot make a UNIX socket: {}", std::strerror(errno)));
  if (connect(socket.get(), generic(*address), sizeof *address) != 0) {
    const int error = errno;
    auto message = explain_connect(path);
    errno = error;  // listen_unix() looks at it
    return fail(std::move(message));
  }
  return socket;
}

namespace {

struct alignas(cmsghdr) Control {
  std::array<std::uint8_t, CMSG_SPACE(sizeof(int))> bytes{};
};

// The descriptors that came along are ours now, and to be closed, however many they are: the padding alone has room for a second one.
std::vector<Descriptor> descriptors_of(msghdr& message) {
  std::vector<Descriptor> all;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= header->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, reinterpret_cast<const std::uint8_t*>(header) + at, sizeof fd);
      all.emplace_back(fd);
    }
  }
  return all;
}

}  // namespace

bool send_with_descriptor(int socket, ByteView bytes, int descriptor) {
  iovec vector{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
  Control control;
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

std::ptrdiff_t receive_with_descriptor(int socket, MutableBytes bytes, Descriptor& descriptor) {
  iovec vector{bytes.data(), bytes.size()};
  Control control;
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  descriptor.close();
  const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  auto came = descriptors_of(message);
  if (came.size() > 1 || (message.msg_flags & MSG_CTRUNC) != 0) {
    came.clear();
    errno = EPROTO;
    return -1;
  }
  if (!came.empty()) descriptor = std::move(came.front());
  return got;
}

Result<ShmRegion> send_hello(int socket, std::size_t ring_bytes) {
  auto region = ShmRegion::create(ring_bytes);
  if (!region) return region;
  std::array<std::uint8_t, kHelloBytes> hello{};
  store_le<std::uint64_t>(hello.data(), kMagic);
  store_le<std::uint32_t>(hello.data() + 8, kVersion);
  store_le<std::uint32_t>(hello.data() + 12, static_cast<std::uint32_t>(ring_bytes));
  if (!send_with_descriptor(socket, hello, region->memfd())) {
    return fail(fmt::format("cannot greet the peer: {}", std::strerror(errno)));
  }
  return region;
}

HelloState receive_hello(int socket, ShmRegion& region) {
  std::array<std::uint8_t, kHelloBytes> hello{};
  Descriptor memfd;
  const std::ptrdiff_t got = receive_with_descriptor(socket, hello, memfd);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return HelloState::kPending;
  if (got != static_cast<std::ptrdiff_t>(kHelloBytes) || !memfd || load_le<std::uint64_t>(hello.data()) != kMagic ||
      load_le<std::uint32_t>(hello.data() + 8) != kVersion) {
    return HelloState::kRefused;
  }
  auto adopted = ShmRegion::adopt(std::move(memfd), load_le<std::uint32_t>(hello.data() + 12));
  if (!adopted) return HelloState::kRefused;
  region = std::move(*adopted);
  return HelloState::kReceived;
}

void ring_peer(int socket) {
  const std::uint8_t byte = 1;
  // A full buffer holds wake-ups already; a dead peer is noticed by drain_rings().
  [[maybe_unused]] const ssize_t sent = send(socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

PeerState drain_rings(int socket) {
  std::array<std::uint8_t, 256> bytes;
  const ssize_t got = recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got > 0) return PeerState::kAlive;
  return got < 0 && (errno == EAGAIN || errno == EINTR) ? PeerState::kAlive : PeerState::kGone;
}

}  // namespace sluice::ports
