// memcached and Redis under the same YCSB as our stores: a closed loop a connection, over a Unix socket or TCP on loopback, from one
// thread, every value verified. Prints what `sluice bench clover --json` prints of a run, as far as it applies.
//
//   peer_stores memcached|redis unix:PATH|tcp:PORT --workload A --records 10000 --clients 64 --value-size 64 --seconds 3 --seed 1
//
// bench/stores_beside_peers.py starts the servers and lays the figures beside ours.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "remote/scheduler.h"
#include "workload/runner.h"

namespace {

using namespace sluice;
using workload::GetResult;
using workload::Key;
using workload::Outcome;

[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "peer_stores: {}\n", why);
  std::exit(1);
}

int connect_to(const std::string& address) {
  const bool local = address.starts_with("unix:");
  const int fd = socket(local ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int failed = -1;
  if (local) {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    if (address.size() - 5 >= sizeof to.sun_path) give_up("the socket's path is too long");
    address.copy(to.sun_path, sizeof to.sun_path - 1, 5);
    failed = connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  } else {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(address.c_str() + 4)));
    failed = connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  if (failed != 0) give_up(fmt::format("{}: {}", address, std::strerror(errno)));
  return fd;
}

// One connection with one request under way. Waits on the socket are the owner's: it wakes us.
class Connection {
 public:
  Connection(remote::Scheduler& scheduler, const std::string& address)
      : scheduler_(scheduler), fd_(connect_to(address)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { close(fd_); }

  int descriptor() const { return fd_; }
  void wake() {
    if (waiting_) scheduler_.post(std::exchange(waiting_, nullptr));
  }

  void send(std::string_view request) {
    received_.clear();
    while (!request.empty()) {  // requests are far smaller than a socket's buffer
      const ssize_t n = write(fd_, request.data(), request.size());
      if (n < 0) give_up(fmt::format("write: {}", std::strerror(errno)));
      request.remove_prefix(static_cast<std::size_t>(n));
    }
  }

 private:
  auto more() {
    struct Awaiter {
      Connection& c;
      bool await_ready() const { return false; }
      void await_suspend(std::coroutine_handle<> handle) const { c.waiting_ = handle; }
      void await_resume() const {
        std::array<char, 32768> part;
        const ssize_t n = recv(c.fd_, part.data(), part.size(), MSG_DONTWAIT);
        if (n == 0) give_up("the server has closed a connection");
        if (n < 0 && errno != EAGAIN) give_up(fmt::format("recv: {}", std::strerror(errno)));
        if (n > 0) c.received_.append(part.data(), static_cast<std::size_t>(n));
      }
    };
    return Awaiter{*this};
  }

 public:
  // The next line, without its end, and then so many bytes: until `length` is known, wait for a line.
  remote::Task<std::string_view> line() {
    std::size_t end;
    while ((end = received_.find("\r\n")) == std::string::npos) co_await more();
    co_return std::string_view(received_).substr(0, end);
  }
  remote::Task<std::string_view> bytes(std::size_t at, std::size_t length) {
    while (received_.size() < at + length) co_await more();
    co_return std::string_view(received_).substr(at, length);
  }

 private:
  remote::Scheduler& scheduler_;
  int fd_;
  std::string received_;
  std::coroutine_handle<> waiting_ = nullptr;
};

std::size_t number_after(std::string_view line, std::size_t prefix) {
  std::size_t value = 0;
  std::from_chars(line.data() + prefix, line.data() + line.size(), value);
  return value;
}

// Neither inserts, erases nor scans here: the mixes asked for need none of it.
class PeerStore : public workload::Store {
 public:
  PeerStore(remote::Scheduler& scheduler, const std::string& address) : connection_(scheduler, address) {}
  Connection& connection() { return connection_; }

  workload::StoreAbilities abilities() const final { return {.insert = false, .erase = false, .scan = false}; }
  std::size_t max_value_bytes() const final { return 16'384; }
  workload::StoreCost cost() const final { return cost_; }
  remote::Task<Outcome> insert(Key, ByteView) final { co_return Outcome::kRefused; }
  remote::Task<Outcome> erase(Key) final { co_return Outcome::kRefused; }

 protected:
  // The rest of an answer that begins with a line of `head` bytes and has `length` bytes of value.
  remote::Task<GetResult> take(std::size_t head, std::size_t length, MutableBytes into) {
    const std::string_view value = co_await connection_.bytes(head + 2, length + 2);
    std::memcpy(into.data(), value.data(), length);
    co_return GetResult{Outcome::kOk, length};
  }
  void count(std::size_t bytes) {
    ++cost_.messages;
    ++cost_.round_trips;
    cost_.remote_bytes += bytes;
  }

  Connection connection_;
  std::string request_;

 private:
  workload::StoreCost cost_;
};

std::string_view text(ByteView value) { return {reinterpret_cast<const char*>(value.data()), value.size()}; }

// The meta protocol (memcached 1.6, doc/protocol.txt).
class Memcached final : public PeerStore {
 public:
  using PeerStore::PeerStore;
  std::string_view name() const override { return "memcached"; }

  remote::Task<GetResult> get(Key key, MutableBytes into) override {
    request_ = fmt::format("mg {:016x} v\r\n", key);
    connection_.send(request_);
    const std::string_view line = co_await connection_.line();
    if (line == "EN") co_return GetResult{Outcome::kNotFound, 0};
    if (!line.starts_with("VA ")) co_return GetResult{Outcome::kUnavailable, 0};
    const std::size_t length = number_after(line, 3);
    count(length);
    const GetResult result = co_await take(line.size(), length, into);
    co_return result;
  }
  remote::Task<Outcome> put(Key key, ByteView value) override {
    request_ = fmt::format("ms {:016x} {}\r\n", key, value.size());
    request_.append(text(value)).append("\r\n");
    count(value.size());
    connection_.send(request_);
    const std::string_view line = co_await connection_.line();
    co_return line.starts_with("HD") ? Outcome::kOk : Outcome::kUnavailable;
  }
};

// RESP.
class Redis final : public PeerStore {
 public:
  using PeerStore::PeerStore;
  std::string_view name() const override { return "redis"; }

  remote::Task<GetResult> get(Key key, MutableBytes into) override {
    request_ = fmt::format("*2\r\n$3\r\nGET\r\n$16\r\n{:016x}\r\n", key);
    connection_.send(request_);
    const std::string_view line = co_await connection_.line();
    if (line == "$-1") co_return GetResult{Outcome::kNotFound, 0};
    if (!line.starts_with("$")) co_return GetResult{Outcome::kUnavailable, 0};
    const std::size_t length = number_after(line, 1);
    count(length);
    const GetResult result = co_await take(line.size(), length, into);
    co_return result;
  }
  remote::Task<Outcome> put(Key key, ByteView value) override {
    request_ = fmt::format("*3\r\n$3\r\nSET\r\n$16\r\n{:016x}\r\n${}\r\n", key, value.size());
    request_.append(text(value)).append("\r\n");
    count(value.size());
    connection_.send(request_);
    const std::string_view line = co_await connection_.line();
    co_return line == "+OK" ? Outcome::kOk : Outcome::kUnavailable;
  }
};

class Loop {
 public:
  explicit Loop(const std::vector<std::unique_ptr<PeerStore>>& stores) : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    for (const auto& store : stores) {
      epoll_event event{.events = EPOLLIN, .data = {.ptr = &store->connection()}};
      epoll_ctl(epoll_, EPOLL_CTL_ADD, store->connection().descriptor(), &event);
    }
  }
  ~Loop() { close(epoll_); }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  Time now() const {
    const auto since = std::chrono::steady_clock::now() - begin_;
    return Time() + Duration::nanoseconds(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
  }
  // Until the runner is done, or `most` is over and what was under way has ended.
  void turn(remote::Scheduler& scheduler, workload::Runner& runner, Duration most) {
    const Time until = now() + most;
    std::array<epoll_event, 256> events;
    while (!runner.done()) {
      scheduler.run(now());
      if (runner.done()) break;
      if (now() >= until) runner.stop();
      const int n = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 100);
      for (int i = 0; i < n; ++i) static_cast<Connection*>(events.at(static_cast<std::size_t>(i)).data.ptr)->wake();
    }
  }

 private:
  int epoll_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

nlohmann::json figures(const Histogram& h) {
  const auto us = [](std::int64_t ns) { return static_cast<double>(ns) / 1e3; };
  return {{"p50", us(h.at_quantile(0.5))}, {"p99", us(h.at_quantile(0.99))}, {"p999", us(h.at_quantile(0.999))}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("memcached and Redis under the YCSB of our stores");
  std::string kind, address, mix_name = "A";
  workload::RunConfig config{.records = 10'000, .clients = 64, .value_bytes = 64};
  double seconds = 3;
  app.add_option("STORE", kind)->required()->check(CLI::IsMember({"memcached", "redis"}));
  app.add_option("ADDRESS", address, "unix:PATH or tcp:PORT")->required()->check([](const std::string& a) {
    return a.starts_with("unix:") || a.starts_with("tcp:") ? "" : "must be unix:PATH or tcp:PORT";
  });
  app.add_option("--workload", mix_name, "A, B, C or wN");
  app.add_option("--records", config.records);
  app.add_option("--clients", config.clients);
  app.add_option("--value-size", config.value_bytes)->check(CLI::Range(8, 16'384));
  app.add_option("--seconds", seconds);
  app.add_option("--seed", config.seed);
  CLI11_PARSE(app, argc, argv);
  auto mix = workload::Mix::parse(mix_name);
  if (!mix) give_up(mix.error().message);
  if (const auto impossible = mix->impossible_for({.insert = false, .erase = false, .scan = false});
      !impossible.empty())
    give_up(fmt::format("--workload {}: there is no {} here", mix_name, impossible));
  config.mix = *mix;
  config.operations = ~std::uint64_t{0} / 2;

  remote::Scheduler scheduler;
  std::vector<std::unique_ptr<PeerStore>> stores;
  std::vector<workload::Store*> views;
  for (std::uint32_t i = 0; i < config.clients; ++i) {
    if (kind == "redis") {
      stores.push_back(std::make_unique<Redis>(scheduler, address));
    } else {
      stores.push_back(std::make_unique<Memcached>(scheduler, address));
    }
    views.push_back(stores.back().get());
  }
  Loop loop(stores);
  workload::Runner runner(scheduler, views, config);
  runner.start_load();
  loop.turn(scheduler, runner, Duration::seconds(600));
  runner.start_run();
  loop.turn(scheduler, runner, Duration::nanoseconds(std::llround(seconds * 1e9)));

  const workload::RunResult& run = runner.result();
  nlohmann::json actions = nlohmann::json::object();
  std::uint64_t wrong = run.values_wrong;
  for (std::size_t i = 0; i < workload::kActions; ++i) {
    const auto& action = run.actions.at(i);
    if (action.count == 0) continue;
    wrong += action.count - action.outcomes[0];
    actions[std::string(to_string(static_cast<workload::Action>(i)))] = {{"count", action.count},
                                                                         {"latency_us", figures(action.latency_ns)}};
  }
  fmt::print("{}\n", nlohmann::json{{"store", kind},
                                    {"operations_per_second", run.operations_per_second()},
                                    {"values_verified", run.values_verified},
                                    {"wrong", wrong},
                                    {"actions", std::move(actions)}}
                         .dump(2));
  return wrong == 0 ? 0 : 1;
}
