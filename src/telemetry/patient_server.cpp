#include "telemetry/patient_server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>

namespace sluice::telemetry {
namespace {

using Clock = std::chrono::steady_clock;

bool is_ready(int socket, short events, std::chrono::milliseconds patience) {
  pollfd descriptor{socket, events, 0};
  return poll(&descriptor, 1, static_cast<int>(std::max<std::int64_t>(patience.count(), 0))) == 1 &&
         (descriptor.revents & (events | POLLHUP)) != 0;
}

// A socket as cpp-httplib reads and writes it; `tls`, if there is any, lies between.
class SocketStream final : public httplib::Stream {
 public:
  SocketStream(int socket, Clock::time_point read_until, TlsConnection* tls)
      : socket_(socket), read_until_(read_until), tls_(tls) {}

  bool is_readable() const override {
    return at_ < end_ || (tls_ != nullptr && tls_->pending()) || is_ready(socket_, POLLIN, left_to_read());
  }
  bool is_writable() const override { return is_ready(socket_, POLLOUT, PatientServer::kWriting); }
  // Its caller reads a head byte by byte.
  ssize_t read(char* to, std::size_t size) override {
    if (at_ == end_) {
      const ssize_t n = receive();
      if (n <= 0) return n;
      at_ = 0;
      end_ = static_cast<std::size_t>(n);
    }
    const std::size_t n = std::min(size, end_ - at_);
    std::memcpy(to, buffer_.data() + at_, n);
    at_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, std::size_t size) override {
    if (tls_ != nullptr) return tls_->write(from, size, Clock::now() + PatientServer::kWriting);
    return is_writable() ? send(socket_, from, size, MSG_NOSIGNAL) : -1;
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override { name(getpeername, ip, port); }
  void get_local_ip_and_port(std::string& ip, int& port) const override { name(getsockname, ip, port); }
  socket_t socket() const override { return socket_; }

 private:
  std::chrono::milliseconds left_to_read() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(read_until_ - Clock::now());
  }
  ssize_t receive() {
    if (received_ >= PatientServer::kMostRead) return -1;
    const ssize_t n = receive_some();
    if (n > 0) received_ += static_cast<std::size_t>(n);
    return n;
  }
  ssize_t receive_some() {
    if (tls_ != nullptr) return tls_->read(buffer_.data(), buffer_.size(), read_until_);
    if (!is_ready(socket_, POLLIN, left_to_read())) return -1;
    return recv(socket_, buffer_.data(), buffer_.size(), 0);
  }
  template <class Ask>
  void name(Ask ask, std::string& ip, int& port) const {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (ask(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return;
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (address.ss_family == AF_INET) {
      const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
      inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
      port = ntohs(v4.sin_port);
    } else if (address.ss_family == AF_INET6) {
      const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
      inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
      port = ntohs(v6.sin6_port);
    }
    ip = text.data();
  }

  int socket_;
  Clock::time_point read_until_;
  TlsConnection* tls_;
  std::array<char, 4096> buffer_{};
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  std::size_t received_ = 0;
};

}  // namespace

PatientServer::PatientServer(std::size_t threads, std::shared_ptr<TlsServerContext> tls) : tls_(std::move(tls)) {
  new_task_queue = [this, threads] { return new Line(threads, waiting_); };
}

void PatientServer::Line::enqueue(std::function<void()> task) {
  {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [this] { return waiting_ < kMostWaiting || ending_; });
    ++waiting_;
  }
  pool_.enqueue([this, task = std::move(task)] {
    {
      const std::scoped_lock lock(mutex_);
      --waiting_;
    }
    room_.notify_one();
    task();
  });
}

void PatientServer::Line::shutdown() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  room_.notify_all();
  pool_.shutdown();
}

bool PatientServer::process(socket_t socket) {
  bool closed = false;
  const auto read_until = Clock::now() + kReading;
  if (!tls_) {
    SocketStream stream(socket, read_until, nullptr);
    return process_request(stream, true, closed, nullptr);
  }
  TlsConnection tls(*tls_, socket);
  if (!tls.accept(read_until)) {
    ++handshakes_failed_;
    return false;
  }
  SocketStream stream(socket, read_until, &tls);
  return process_request(stream, true, closed, [&tls](httplib::Request& request) { request.ssl = tls.get(); });
}

bool PatientServer::process_and_close_socket(socket_t socket) {
  const auto patience = waiting_ > 0 ? kCrowded : kFirstByte;
  bool done = false;
  // cpp-httplib catches what handlers throw, not what else of it runs in our thread.
  try {
    done = is_ready(socket, POLLIN, patience) && process(socket);
  } catch (const std::exception&) {
  }
  ::shutdown(socket, SHUT_RDWR);
  ::close(socket);
  return done;
}

}  // namespace sluice::telemetry
