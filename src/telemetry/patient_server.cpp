#include "telemetry/patient_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace sluice::telemetry {
namespace {

using Clock = std::chrono::steady_clock;

bool is_ready(int socket, short events, std::chrono::milliseconds patience) {
  pollfd descriptor{socket, events, 0};
  return poll(&descriptor, 1, static_cast<int>(std::max<std::int64_t>(patience.count(), 0))) == 1 &&
         (descriptor.revents & (events | POLLHUP)) != 0;
}

void set_blocking(int socket, bool blocking) {
  const int flags = fcntl(socket, F_GETFL);
  fcntl(socket, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

void set_patience(int socket, int which, std::chrono::milliseconds patience) {
  const timeval time{.tv_sec = patience.count() / 1000, .tv_usec = patience.count() % 1000 * 1000};
  setsockopt(socket, SOL_SOCKET, which, &time, sizeof time);
}

// Who is at the other end, for telling one from many: an IPv4 address (as IPv6 has it, too), or the network of an IPv6 address, which all are
// one's own. All who come over a UNIX socket are one.
std::string address_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  const auto bytes = [](const auto& of, std::size_t many) {
    return std::string(reinterpret_cast<const char*>(&of), many);
  };
  if (address.ss_family == AF_INET) return bytes(reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  if (address.ss_family != AF_INET6) return {};
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return IN6_IS_ADDR_V4MAPPED(&v6) ? bytes(v6.s6_addr[12], 4) : bytes(v6, 8);
}

// What a head says under this name. The first counts, as for cpp-httplib.
std::optional<std::string> field(std::string_view head, std::string_view name) {
  for (std::size_t end = 0; (end = head.find('\n', end)) != std::string_view::npos;) {
    const std::size_t at = ++end;
    const std::string_view line = head.substr(at, head.find('\r', at) - at);
    const bool is_it = line.size() > name.size() && line[name.size()] == ':' &&
                       strncasecmp(line.data(), name.data(), name.size()) == 0;
    if (is_it) return std::string(line.substr(name.size() + 1));
  }
  return std::nullopt;
}

// A socket as cpp-httplib reads and writes it, behind what has been read of it; `tls`, if there is any, lies between.
class SocketStream final : public httplib::Stream {
 public:
  SocketStream(int socket, std::string said, Clock::time_point read_until, TlsConnection* tls)
      : socket_(socket), read_until_(read_until), tls_(tls), said_(std::move(said)), received_(said_.size()) {}

  bool is_readable() const override {
    return !said_.empty() || at_ < end_ || (tls_ != nullptr && tls_->pending()) ||
           is_ready(socket_, POLLIN, left_to_read());
  }
  // At once: who streams can wait, and do something else meanwhile.
  bool is_writable() const override { return is_ready(socket_, POLLOUT, std::chrono::milliseconds(0)); }
  // Its caller reads a head byte by byte.
  ssize_t read(char* to, std::size_t size) override {
    if (said_at_ < said_.size()) {
      const std::size_t n = said_.copy(to, size, said_at_);
      said_at_ += n;
      if (said_at_ == said_.size()) said_.clear();
      return static_cast<ssize_t>(n);
    }
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
    if (waited_ > PatientServer::kWriting + std::chrono::seconds(written_ / PatientServer::kSlowest)) return -1;
    const auto began = Clock::now();
    const ssize_t n = write_some(from, size);
    waited_ += Clock::now() - began;
    written_ += static_cast<std::size_t>(std::max<ssize_t>(n, 0));
    return n;
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
  ssize_t write_some(const char* from, std::size_t size) {
    if (tls_ != nullptr) return tls_->write(from, size, Clock::now() + PatientServer::kWriting);
    return is_ready(socket_, POLLOUT, PatientServer::kWriting) ? send(socket_, from, size, MSG_NOSIGNAL) : -1;
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
  std::string said_;  // empty: it has been taken
  std::size_t said_at_ = 0;
  std::array<char, 4096> buffer_{};
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  std::size_t received_;
  std::size_t written_ = 0;
  Clock::duration waited_{};  // in write()
};

}  // namespace

// A connection until it is answered. Its owner closes it.
struct PatientServer::Guest {
  enum class State : std::uint8_t { kWaits, kHasAsked, kIsOver };

  Guest(int its_socket, const TlsServerContext* context) : socket(its_socket), address(address_of(its_socket)) {
    set_blocking(socket, false);
    if (context != nullptr) tls = std::make_unique<TlsConnection>(*context, socket);
  }
  ~Guest() {
    tls.reset();
    ::shutdown(socket, SHUT_RDWR);
    ::close(socket);
  }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;

  // Takes what has come. It has asked once its request is whole, or there is no telling when that will be.
  State listen() {
    said_something = true;
    if (tls && !is_known) {
      const auto progress = tls->accept_some();
      if (progress == TlsConnection::Progress::kNone) return State::kWaits;
      if (progress == TlsConnection::Progress::kFailed) return State::kIsOver;
    }
    is_known = true;
    for (std::array<char, 4096> piece{};;) {
      const long n = tls ? tls->read_some(piece.data(), piece.size()) : recv(socket, piece.data(), piece.size(), 0);
      const bool none = n < 0 && (tls ? n == TlsConnection::kNothingYet : errno == EAGAIN || errno == EINTR);
      if (none) return State::kWaits;
      if (n <= 0) return State::kIsOver;
      const std::size_t before = said.size() < 2 ? 0 : said.size() - 2;
      said.append(piece.data(), static_cast<std::size_t>(n));
      if (whole_at == 0) read_head(said.find("\n\r\n", before));
      if (whole_at != 0 && said.size() >= whole_at) return State::kHasAsked;
      if (whole_at == 0 && said.size() >= kMostHead) return State::kIsOver;
    }
  }
  // How long the request is, by its head, which ends there. What is too long is refused without its body.
  void read_head(std::size_t end) {
    if (end == std::string::npos) return;
    const std::size_t size = end + 3;
    const auto head = std::string_view(said).substr(0, size);
    const auto length = field(head, "Content-Length");
    const bool has_no_body = !length && (head.starts_with("GET ") || head.starts_with("HEAD "));
    is_open = field(head, "Expect") || field(head, "Transfer-Encoding") || (!length && !has_no_body);
    const std::uint64_t body = length ? std::strtoull(length->c_str(), nullptr, 10) : 0;
    whole_at = is_open || body > kMostRead - size ? size : size + body;
  }
  // REQUIRES: its head has come.
  std::string_view path() const {
    const auto line = std::string_view(said).substr(0, said.find_first_of("?\r\n"));
    const std::size_t from = line.find(' ') + 1;
    return line.substr(from, line.find(' ', from) - from);
  }
  Clock::time_point deadline() const { return came_at + (said_something ? kReading : kFirstByte); }
  short events() const { return tls && tls->wants_to_write() ? POLLOUT : POLLIN; }

  int socket;
  std::string address;
  Clock::time_point came_at = Clock::now();
  std::unique_ptr<TlsConnection> tls{};
  std::string said{};
  std::size_t whole_at = 0;  // so many bytes are its request; 0: its head has not come
  bool is_open = false;      // how much follows the head, or when, only its reader finds out
  bool has_share = false;    // of the threads
  bool said_something = false;
  bool is_known = false;  // by certificate, where one is asked for
};

// Where connections are until their requests have come, without a thread each; then they are given to one.
class PatientServer::Hall final {
 public:
  Hall(PatientServer& server, std::size_t threads)
      : server_(server),
        most_open_(std::max<std::size_t>(threads / 8, 1)),
        most_of_one_{.threads = std::max<std::size_t>(threads / 2, 1),
                     .open = std::max<std::size_t>(most_open_ / 2, 1)},
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        pool_(threads),
        express_(server.hurried_.empty() ? nullptr : std::make_unique<httplib::ThreadPool>(kHurried)),
        usher_([this] { attend(); }) {}
  ~Hall() {
    if (wake_ >= 0) close(wake_);
  }
  Hall(const Hall&) = delete;
  Hall& operator=(const Hall&) = delete;
  void admit(socket_t socket);
  void shutdown();

 private:
  void attend();
  void welcome();
  template <class Weight>
  std::size_t make_room(Weight weight);
  void wait();
  void hear();
  void hand_over(std::unique_ptr<Guest> guest);
  void let_in();
  void begin(httplib::TaskQueue& pool, std::unique_ptr<Guest> guest);
  bool take_share(Guest& guest);
  void give_back_share(const Guest& guest);
  void refuse(const Guest& guest);

  // Requests that have a thread, or soon.
  struct Share {
    std::size_t threads = 0;
    std::size_t open = 0;  // of them, those that are not whole
  };

  PatientServer& server_;
  std::size_t most_open_;
  Share most_of_one_;  // that comes by TCP
  int wake_;           // -1: there was none to be had, and the usher looks now and then
  std::mutex mutex_;
  std::condition_variable room_;
  std::vector<socket_t> arrivals_;  // guarded by mutex_, as the next four
  std::size_t asked_ = 0;           // and wait for a thread
  std::size_t open_ = 0;
  std::map<std::string, Share> shares_;  // of addresses; who has none is not in it
  bool ending_ = false;
  std::list<std::unique_ptr<Guest>> guests_;  // the usher's, as the next; the oldest first
  std::list<std::unique_ptr<Guest>> line_;    // the usher's, too: those who have asked and whose address has its share
  std::vector<pollfd> heard_;                 // wake_ and the guests, in their order
  httplib::ThreadPool pool_;
  std::unique_ptr<httplib::ThreadPool> express_;  // null: no path is hurried
  std::thread usher_;
};

void PatientServer::Hall::admit(socket_t socket) {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [this] { return arrivals_.size() + asked_ < kMostWaiting; });
  arrivals_.push_back(socket);
  lock.unlock();
  eventfd_write(wake_, 1);
}

void PatientServer::Hall::shutdown() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  eventfd_write(wake_, 1);
  usher_.join();
  pool_.shutdown();
  if (express_) express_->shutdown();
}

void PatientServer::Hall::attend() {
  const NoPipeSignal quiet;
  const auto ends = [this] {
    const std::scoped_lock lock(mutex_);
    return ending_;
  };
  while (!ends()) {
    welcome();
    wait();
    hear();
    let_in();
  }
  const std::scoped_lock lock(mutex_);
  for (const socket_t socket : arrivals_) ::close(socket);
  guests_.clear();
  line_.clear();
}

void PatientServer::Hall::welcome() {
  std::vector<socket_t> came;
  {
    const std::scoped_lock lock(mutex_);
    came.swap(arrivals_);
  }
  room_.notify_one();
  for (const socket_t socket : came) {
    if (guests_.size() >= kMostWaiting) make_room([](const Guest&) { return std::size_t{1}; });
    guests_.push_back(std::make_unique<Guest>(socket, server_.tls_.get()));
  }
}

// Whoever comes with many connections, or with much, ends his own.
template <class Weight>
std::size_t PatientServer::Hall::make_room(Weight weight) {
  std::map<std::string, std::size_t> weights;
  std::size_t most = 0;
  for (const auto& guest : guests_) most = std::max(most, weights[guest->address] += weight(*guest));
  const auto oldest = std::ranges::find_if(guests_, [&](const auto& guest) { return weights[guest->address] == most; });
  const std::size_t freed = weight(**oldest);
  refuse(**oldest);
  guests_.erase(oldest);
  return freed;
}

// Until somebody says something, somebody comes, or somebody's time is over.
void PatientServer::Hall::wait() {
  auto until = Clock::now() + (wake_ < 0 ? std::chrono::milliseconds(20) : kReading);
  heard_.assign(1, {wake_, POLLIN, 0});
  for (const auto& guest : guests_) {
    heard_.push_back({guest->socket, guest->events(), 0});
    until = std::min(until, guest->deadline());
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  poll(heard_.data(), heard_.size(), static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
  eventfd_t ignored = 0;
  eventfd_read(wake_, &ignored);
}

void PatientServer::Hall::hear() {
  const auto now = Clock::now();
  std::size_t held = 0;
  auto heard = heard_.begin();
  for (auto at = guests_.begin(); at != guests_.end();) {
    Guest& guest = **at;
    auto state = Guest::State::kWaits;
    if ((++heard)->revents != 0) state = guest.listen();
    if (state == Guest::State::kWaits && guest.deadline() <= now) state = Guest::State::kIsOver;
    if (state == Guest::State::kWaits) {
      held += guest.said.size();
      ++at;
      continue;
    }
    auto leaving = std::move(*at);
    at = guests_.erase(at);
    if (state == Guest::State::kHasAsked)
      hand_over(std::move(leaving));
    else
      refuse(*leaving);
  }
  const auto size_of = [](const Guest& guest) { return guest.said.size(); };
  while (held > kMostHeld) held -= make_room(size_of);
}

void PatientServer::Hall::hand_over(std::unique_ptr<Guest> guest) {
  if (express_ && !guest->is_open && server_.hurried_.contains(guest->path()))
    return begin(*express_, std::move(guest));
  if (take_share(*guest)) return begin(pool_, std::move(guest));
  const auto in_line =
      std::ranges::count_if(line_, [&](const auto& other) { return other->address == guest->address; });
  const bool has_room = static_cast<std::size_t>(in_line) < kMostInLine && line_.size() < kMostWaiting;
  if (!guest->is_open && has_room) line_.push_back(std::move(guest));
}

void PatientServer::Hall::let_in() {
  for (auto at = line_.begin(); at != line_.end();) {
    if (!take_share(**at)) {
      ++at;
      continue;
    }
    begin(pool_, std::move(*at));
    at = line_.erase(at);
  }
}

// False: it, or its address, has no room.
bool PatientServer::Hall::take_share(Guest& guest) {
  const std::scoped_lock lock(mutex_);
  const std::size_t open = guest.is_open ? 1 : 0;
  if (open_ + open > most_open_) return false;
  if (!guest.address.empty()) {
    Share& share = shares_[guest.address];
    if (share.threads >= most_of_one_.threads || share.open + open > most_of_one_.open) return false;
    ++share.threads;
    share.open += open;
  }
  open_ += open;
  guest.has_share = true;
  return true;
}

void PatientServer::Hall::give_back_share(const Guest& guest) {
  const std::scoped_lock lock(mutex_);
  const std::size_t open = guest.is_open ? 1 : 0;
  open_ -= open;
  if (guest.address.empty()) return;
  const auto share = shares_.find(guest.address);
  share->second.open -= open;
  if (--share->second.threads == 0) shares_.erase(share);
}

void PatientServer::Hall::begin(httplib::TaskQueue& pool, std::unique_ptr<Guest> guest) {
  {
    const std::scoped_lock lock(mutex_);
    ++asked_;
  }
  pool.enqueue([this, guest = std::shared_ptr<Guest>(std::move(guest))]() mutable {
    {
      const std::scoped_lock lock(mutex_);
      --asked_;
    }
    room_.notify_one();
    server_.process(*guest);
    if (guest->has_share) give_back_share(*guest);  // before the other end learns that this is over
    guest.reset();
    eventfd_write(wake_, 1);
  });
}

void PatientServer::Hall::refuse(const Guest& guest) {
  if (guest.tls && guest.said_something && !guest.is_known) ++server_.handshakes_failed_;
}

PatientServer::PatientServer(std::size_t threads, std::shared_ptr<TlsServerContext> tls)
    : threads_(threads), tls_(std::move(tls)) {}

PatientServer::~PatientServer() {
  end();
  if (ended_ >= 0) ::close(ended_);
}

void PatientServer::serve() {
  constexpr std::chrono::milliseconds kTryAgain{1};
  // cpp-httplib's backlog of 5 is full with a few who come at once, and the kernel lets the next wait a second.
  ::listen(svr_sock_, kBacklog);
  Hall hall(*this, threads_);
  for (int listening = svr_sock_; listening != INVALID_SOCKET; listening = svr_sock_) {
    const int socket = accept_one(listening);
    if (socket < 0) {
      std::this_thread::sleep_for(kTryAgain);
      continue;
    }
    set_patience(socket, SO_RCVTIMEO, kReading);
    set_patience(socket, SO_SNDTIMEO, kWriting);
    hall.admit(socket);
  }
  hall.shutdown();
}

void PatientServer::end() {
  const int listening = svr_sock_.exchange(INVALID_SOCKET);
  if (listening == INVALID_SOCKET) return;
  ended_ = listening;
  ::shutdown(listening, SHUT_RDWR);
}

int PatientServer::accept_one(int listening) { return accept4(listening, nullptr, nullptr, SOCK_CLOEXEC); }

void PatientServer::process(Guest& guest) {
  bool closed = false;
  if (!guest.tls) set_blocking(guest.socket, true);
  const auto read_until = Clock::now() + (guest.is_open ? kReading : std::chrono::milliseconds(0));
  SocketStream stream(guest.socket, std::move(guest.said), read_until, guest.tls.get());
  // cpp-httplib catches what handlers throw, not what else of it runs in our thread.
  try {
    process_request(stream, true, closed, [&guest](httplib::Request& request) {
      if (guest.tls) request.ssl = guest.tls->get();
      // Nobody needs parts of an answer, and cpp-httplib makes one of as many, overlapping, as a header holds.
      request.ranges.clear();
    });
  } catch (const std::exception&) {
  }
}

}  // namespace sluice::telemetry
