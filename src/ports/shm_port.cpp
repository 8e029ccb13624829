#include "ports/shm_port.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "ports/unix_socket.h"

namespace sluice::ports {
namespace {

constexpr Duration kLookInterval = Duration::milliseconds(1);
constexpr Duration kFullRetry = Duration::microseconds(100);
constexpr Duration kFirstBackoff = Duration::milliseconds(1);
constexpr Duration kLongestBackoff = Duration::milliseconds(100);

Result<std::size_t> checked_ring(ShmOptions options) {
  if (ShmRegion::is_ring_size(options.ring_bytes)) return options.ring_bytes;
  return fail(fmt::format("a shared-memory ring of {} bytes is not allowed: take a power of two from {} to {}",
                          options.ring_bytes, kMinRing, kMaxRing));
}

}  // namespace

ShmPort::ShmPort(Role role, std::string path, ShmOptions options)
    : role_(role),
      path_(std::move(path)),
      options_(options),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      backoff_(kFirstBackoff),
      scrap_(std::make_unique_for_overwrite<std::uint8_t[]>(port::kMaxFrame)) {}

ShmPort::~ShmPort() {
  if (role_ == Role::kListening && listener_) unlink(path_.c_str());
}

Result<std::unique_ptr<ShmPort>> ShmPort::connect(const std::string& path, Absent absent) {
  std::unique_ptr<ShmPort> made(new ShmPort(Role::kConnecting, path, {}));
  auto socket = connect_unix(path);
  if (!socket && absent == Absent::kFail) return tl::unexpected(socket.error());
  if (socket) made->socket_ = std::move(*socket);
  if (!made->epoll_ || (made->socket_ && !made->watch(made->socket_.get())))
    return fail("shm: out of file descriptors");
  return made;
}

Result<std::unique_ptr<ShmPort>> ShmPort::listen_one(const std::string& path, ShmOptions options) {
  if (const auto ring = checked_ring(options); !ring) return tl::unexpected(ring.error());
  auto listener = listen_unix(path);
  if (!listener) return tl::unexpected(listener.error());
  std::unique_ptr<ShmPort> made(new ShmPort(Role::kListening, path, options));
  made->listener_ = std::move(*listener);
  if (!made->epoll_ || !made->watch(made->listener_.get())) return fail("shm: out of file descriptors");
  return made;
}

std::uint8_t* ShmPort::reserve(std::size_t length) {
  SLUICE_CHECK(length <= port::kMaxFrame);
  std::uint8_t* room = writer_.reserve(length);
  if (room == nullptr && !up_) room = scrap_.get();
  reserved_ = room == nullptr ? 0 : length;
  if (room == nullptr) {
    ++counters_.tx_full;
    refused_ = true;
  }
  return room;
}

void ShmPort::commit(std::size_t length) {
  SLUICE_CHECK(length > 0 && length <= reserved_);
  reserved_ = 0;
  if (!up_) {
    ++counters_.tx_dropped;
    return;
  }
  writer_.commit(length);
  ++counters_.tx_frames;
  counters_.tx_bytes += length;
}

bool ShmPort::flush_some(Time now) {
  reserved_ = 0;
  if (writer_.publish()) ring_peer(socket_.get());
  shown_ = counters_.tx_frames;
  // After a refusal the owner is called again, once: if it still has frames for us, it will be refused again or not.
  retry_at_ = refused_ ? now + kFullRetry : Time::never();
  refused_ = false;
  if (writer_.broken()) next_look_ = Time();  // the next receive() ends it
  return false;
}

void ShmPort::discard() {
  reserved_ = 0;
  writer_.discard();
  counters_.tx_discarded += counters_.tx_frames - shown_;
  shown_ = counters_.tx_frames;
}

std::size_t ShmPort::receive(Time now, std::span<port::Frame> burst) {
  reserved_ = 0;
  if (now >= next_look_) look_around(now);
  const std::size_t count = reader_.receive(burst);
  for (const auto& frame : burst.first(count)) counters_.rx_bytes += frame.length;
  counters_.rx_frames += count;
  if (reader_.broken()) {
    ++counters_.rx_malformed;
    if (up_) lose(now);
    reader_ = RingReader();
  }
  return count;
}

Time ShmPort::next_deadline() const {
  if (up_) return retry_at_;
  // While the hello is awaited the socket itself wakes us.
  return role_ == Role::kConnecting && !socket_ ? next_look_ : Time::never();
}

void ShmPort::disarm() {
  reader_.disarm();
  next_look_ = Time();  // the wake-up is drained by the next receive()
}

// Reattachment --------------------------------------------------------------------------------------------------------

bool ShmPort::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void ShmPort::look_around(Time now) {
  next_look_ = now + kLookInterval;
  if (up_) {
    if (writer_.broken()) {
      ++counters_.rx_malformed;
      lose(now);
    } else if (drain_rings(socket_.get()) == PeerState::kGone) {
      lose(now);
    }
    return;
  }
  if (role_ == Role::kListening) accept_peer();
  if (role_ == Role::kConnecting) seek_peer(now);
  if (up_) attached_at_ = now;
}

void ShmPort::accept_peer() {
  Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket && offer(std::move(socket))) {
    // Whoever comes next waits in the listener's queue, and must not keep us awake meanwhile.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  }
}

void ShmPort::seek_peer(Time now) {
  if (!socket_) {
    if (auto socket = connect_unix(path_); socket && watch(socket->get())) socket_ = std::move(*socket);
  }
  if (socket_) {
    ShmRegion region;
    const HelloState hello = receive_hello(socket_.get(), region);
    if (hello == HelloState::kPending) return;
    if (hello == HelloState::kReceived) return attach(std::move(socket_), std::move(region), 1);
    socket_.close();
  }
  next_look_ = now + backoff_;
  backoff_ = std::min(backoff_ * 2, kLongestBackoff);
}

bool ShmPort::offer(Descriptor socket) {
  if (!epoll_ || !watch(socket.get())) return false;
  auto region = send_hello(socket.get(), options_.ring_bytes);
  if (!region) return false;
  attach(std::move(socket), std::move(*region), 0);
  return true;
}

void ShmPort::attach(Descriptor socket, ShmRegion region, unsigned side) {
  socket_ = std::move(socket);
  region_ = std::move(region);
  region_.close_memfd();
  writer_ = region_.writer(side);
  reader_ = region_.reader(side);
  up_ = true;
}

void ShmPort::lose(Time now) {
  up_ = false;
  socket_.close();
  writer_ = RingWriter();  // the region stays until the next peer: what was published can still be received
  ++counters_.resets;
  if (now - attached_at_ > kLongestBackoff) backoff_ = kFirstBackoff;
  next_look_ = now + backoff_;
  backoff_ = std::min(backoff_ * 2, kLongestBackoff);
  if (role_ == Role::kListening) watch(listener_.get());
}

// Listener ------------------------------------------------------------------------------------------------------------

ShmListener::ShmListener(std::string path, ShmOptions options, Descriptor socket)
    : path_(std::move(path)),
      options_(options),
      socket_(std::move(socket)),
      spare_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {}

ShmListener::~ShmListener() { unlink(path_.c_str()); }

Result<std::unique_ptr<ShmListener>> ShmListener::listen(const std::string& path, ShmOptions options) {
  if (const auto ring = checked_ring(options); !ring) return tl::unexpected(ring.error());
  auto socket = listen_unix(path);
  if (!socket) return tl::unexpected(socket.error());
  return std::unique_ptr<ShmListener>(new ShmListener(path, options, std::move(*socket)));
}

std::unique_ptr<port::Port> ShmListener::accept(Time now) {
  for (;;) {
    Descriptor socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && (errno == EMFILE || errno == ENFILE)) {
      say_out_of_descriptors();
      spare_.close();
      socket = Descriptor(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      socket.close();
      spare_ = Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
      ++refused_;
      return nullptr;
    }
    if (!socket) return nullptr;
    std::unique_ptr<ShmPort> made(new ShmPort(ShmPort::Role::kAccepted, path_, options_));
    if (made->offer(std::move(socket))) {
      made->attached_at_ = now;
      return made;
    }
    if (!Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)) && (errno == EMFILE || errno == ENFILE))
      say_out_of_descriptors();
    ++refused_;
  }
}

void ShmListener::say_out_of_descriptors() {
  if (std::exchange(said_, true)) return;
  std::fprintf(stderr, "%s takes nobody more: out of file descriptors (ulimit -n), of which a port takes two\n",
               name().c_str());
}

}  // namespace sluice::ports
