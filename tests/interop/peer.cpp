#include "peer.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <sstream>
#include <vector>

namespace sluice::interop {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::pair<const char*, Op> kOps[] = {
    {"send", Op::kSend},       {"send_imm", Op::kSendWithImmediate},
    {"write", Op::kWrite},     {"write_imm", Op::kWriteWithImmediate},
    {"read", Op::kRead},       {"cas", Op::kCompareAndSwap},
    {"faa", Op::kFetchAndAdd},
};

std::optional<Op> op_named(const std::string& name) {
  for (const auto& [known, op] : kOps) {
    if (name == known) return op;
  }
  return std::nullopt;
}

bool is_atomic(Op op) { return op == Op::kCompareAndSwap || op == Op::kFetchAndAdd; }

// The pattern of a seed: different at every offset and for every seed (splitmix64).
std::uint8_t pattern(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t z = seed * 0x9E3779B97F4A7C15u + i / 8 + 1;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<std::uint8_t>((z ^ (z >> 31)) >> (8 * (i % 8)));
}

std::string hex(std::uint64_t value) {
  char text[19];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

// What one connection can ask for.
class Commands {
 public:
  explicit Commands(Endpoint& endpoint) : endpoint_(endpoint) {}

  std::string run(const std::string& line) {
    const auto verb = line.substr(0, line.find(' '));
    const Arguments a(line);
    if (verb == "open") return endpoint_.open(a);
    if (verb == "connect") return endpoint_.connect(a), "";
    if (verb == "cm_listen") return endpoint_.cm_listen(static_cast<std::uint16_t>(a.number("service"))), "";
    if (verb == "cm_connect") return endpoint_.cm_connect(a);
    if (verb == "cm_accept") return endpoint_.cm_accept(a);
    if (verb == "cm_reject") return endpoint_.cm_reject(a), "";
    if (verb == "cm_disconnect") return endpoint_.cm_disconnect(), "";
    if (verb == "cm_wait_until_disconnected") return endpoint_.cm_wait_until_disconnected(a), "";
    if (verb == "fill") return fill(bytes(a.number("offset"), a.number("length")), a.number("seed")), "";
    if (verb == "check") return check(bytes(a.number("offset"), a.number("length")), a.number("seed")), "";
    if (verb == "fill_slots") return slots(a, fill), "";
    if (verb == "check_slots") return slots(a, check), "";
    if (verb == "word") return "value=" + hex(word(a.number("offset")));
    if (verb == "set") return set(a), "";
    if (verb == "recv") return receive(a), "";
    if (verb == "poll") return poll(a);
    if (verb == "flood") return flood(a);
    if (verb == "absorb") return absorb(a);
    if (const auto op = op_named(verb)) return endpoint_.post(work(*op, a)), "";
    throw PeerError("no command " + verb);
  }

 private:
  using Bytes = std::span<std::uint8_t>;

  Bytes bytes(std::uint64_t offset, std::uint64_t length) {
    const auto all = endpoint_.memory();
    if (offset > all.size() || length > all.size() - offset) throw PeerError("outside of the region");
    return all.subspan(offset, length);
  }

  static void fill(Bytes bytes, std::uint64_t seed) {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(seed, i);
  }

  static void check(Bytes bytes, std::uint64_t seed) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != pattern(seed, i)) {
        throw PeerError("byte " + std::to_string(i) + " of " + std::to_string(bytes.size()) + " is " + hex(bytes[i]) +
                        ", not " + hex(pattern(seed, i)));
      }
    }
  }

  // Slots: `depth` places of `length` bytes one after the other; number i has the pattern of seed + i.
  template <class Do>
  void slots(const Arguments& a, Do act) {
    for (std::uint64_t i = 0; i < a.number("depth"); ++i) {
      act(bytes(a.number("offset") + i * a.number("length"), a.number("length")), a.number("seed") + i);
    }
  }

  std::uint64_t word(std::uint64_t offset) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes(offset, 8).data(), 8);
    return value;
  }

  void set(const Arguments& a) {
    const auto value = a.number("value");
    std::memcpy(bytes(a.number("offset"), 8).data(), &value, 8);
  }

  Work work(Op op, const Arguments& a) {
    Work w{.op = op, .id = a.number("id", 0), .offset = a.number("offset", 0)};
    w.length = static_cast<std::uint32_t>(is_atomic(op) ? 8 : a.number("length"));
    w.remote = a.number("remote", 0);
    w.rkey = static_cast<std::uint32_t>(a.number("rkey", 0));
    w.immediate = static_cast<std::uint32_t>(a.number("immediate", 0));
    w.compare = a.number("compare", 0);
    w.value = a.number("value", 0);
    bytes(w.offset, w.length);
    return w;
  }

  void receive(const Arguments& a) {
    const auto into = bytes(a.number("offset"), a.number("length"));
    endpoint_.post_receive(a.number("id", 0), a.number("offset"), static_cast<std::uint32_t>(into.size()));
  }

  // Waits for the next completion; nullopt when patience is over.
  std::optional<Done> next(const Patience& patience) {
    while (true) {
      endpoint_.turn();
      if (const auto done = endpoint_.poll()) return done;
      if (patience.over()) return std::nullopt;
    }
  }

  // Waits for `count` completions: "done=id:status:length:immediate,…", in their order.
  std::string poll(const Arguments& a) {
    std::string list;
    const Patience patience(a);
    for (std::uint64_t i = 0; i < a.number("count"); ++i) {
      const auto done = next(patience);
      if (!done) throw PeerError(std::to_string(i) + " completions after the time given: " + list);
      list += (i == 0 ? "" : ",") + std::to_string(done->id) + ":" + std::to_string(done->status) + ":" +
              std::to_string(done->length) + ":" + (done->immediate ? hex(*done->immediate) : "-");
    }
    return "done=" + list;
  }

  // `count` operations of one kind, `depth` at a time, through slots from `offset` on both sides; each result is checked.
  // WRITE and SEND number i carry the pattern of seed + i; a READ expects that of its slot; CAS and FAA expect to see the
  // word count up from 0 by one, none twice, none left out.
  std::string flood(const Arguments& a) {
    const auto op = op_named(a.text("op"));
    if (!op) throw PeerError("no operation " + a.text("op"));
    const auto count = a.number("count");
    const auto depth = a.number("depth");
    const Patience patience(a);
    const auto began = Clock::now();
    for (std::uint64_t posted = 0, completed = 0; completed < count;) {
      for (; posted < count && posted < completed + depth; ++posted) post_one(*op, a, posted);
      const auto done = next(patience);
      if (!done) throw PeerError("only " + std::to_string(completed) + " operations completed in the time given");
      if (done->status != 0 || done->id != completed) {
        throw PeerError("completion " + std::to_string(completed) + " is of operation " + std::to_string(done->id) +
                        " with status " + std::to_string(done->status));
      }
      check_one(*op, a, completed++);
    }
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began);
    return "us=" + std::to_string(took.count());
  }

  void post_one(Op op, const Arguments& a, std::uint64_t i) {
    const auto length = is_atomic(op) ? 8 : a.number("length");
    const auto slot = i % a.number("depth");
    const auto local = bytes(a.number("offset") + slot * length, length);
    const auto seed = a.number("seed", 0) + i;
    Work w{
        .op = op, .id = i, .offset = a.number("offset") + slot * length, .length = static_cast<std::uint32_t>(length)};
    w.remote = a.number("remote", 0) + (is_atomic(op) ? 0 : slot * length);
    w.rkey = static_cast<std::uint32_t>(a.number("rkey", 0));
    w.immediate = static_cast<std::uint32_t>(seed);
    w.compare = i;
    w.value = op == Op::kFetchAndAdd ? 1 : i + 1;
    if (op == Op::kRead || is_atomic(op)) {
      std::memset(local.data(), 0xEE, local.size());
    } else {
      fill(local, seed);
    }
    endpoint_.post(w);
  }

  void check_one(Op op, const Arguments& a, std::uint64_t i) {
    const auto slot = i % a.number("depth");
    if (op == Op::kRead) {
      check(bytes(a.number("offset") + slot * a.number("length"), a.number("length")), a.number("seed", 0) + slot);
    } else if (is_atomic(op)) {
      const auto prior = word(a.number("offset") + slot * 8);
      if (prior != i) throw PeerError("atomic " + std::to_string(i) + " saw " + hex(prior));
    }
  }

  // Receives `count` messages of `length` bytes, `depth` buffers at a time from `offset`; number i must have the pattern of
  // seed + i, and as immediate data, when there is any, seed + i. With write=1 the messages are WRITEs with immediate data,
  // whose bytes do not come here.
  std::string absorb(const Arguments& a) {
    const auto count = a.number("count");
    const auto depth = a.number("depth");
    const auto length = a.number("length");
    const Patience patience(a);
    const auto place = [&](std::uint64_t i) { return a.number("offset") + i % depth * length; };
    for (std::uint64_t i = 0; i < depth && i < count; ++i) {
      endpoint_.post_receive(i, place(i), static_cast<std::uint32_t>(length));
    }
    if (begun_) begun_();
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto done = next(patience);
      if (!done) throw PeerError("only " + std::to_string(i) + " messages came in the time given");
      const auto seed = a.number("seed", 0) + i;
      if (done->status != 0 || done->id != i || done->length != length) {
        throw PeerError("message " + std::to_string(i) + " came as " + std::to_string(done->id) + " with status " +
                        std::to_string(done->status) + ", length " + std::to_string(done->length));
      }
      if (done->immediate && *done->immediate != static_cast<std::uint32_t>(seed))
        throw PeerError("wrong immediate data");
      if (a.number("write", 0) == 0) check(bytes(place(i), length), seed);
      if (i + depth < count) endpoint_.post_receive(i + depth, place(i), static_cast<std::uint32_t>(length));
    }
    return "";
  }

  Endpoint& endpoint_;

 public:
  std::function<void()> begun_;  // called by absorb when its buffers are posted
};

class Connection {
 public:
  explicit Connection(int fd) : fd_(fd) {}
  ~Connection() { ::close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The next line, while `turn` is called again and again; nullopt when the test has gone.
  std::optional<std::string> line(Endpoint& endpoint) {
    while (true) {
      if (const auto end = pending_.find('\n'); end != std::string::npos) {
        auto line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        return line;
      }
      pollfd ready{fd_, POLLIN, 0};
      if (::poll(&ready, 1, endpoint.turn()) <= 0) continue;
      char buffer[4096];
      const auto n = ::recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0) return std::nullopt;
      pending_.append(buffer, static_cast<std::size_t>(n));
    }
  }

  void say(std::string text) {
    text += '\n';
    for (std::size_t sent = 0; sent < text.size();) {
      const auto n = ::send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<std::size_t>(n);
    }
  }

 private:
  int fd_;
  std::string pending_;
};

// Serves one test; false when it said "quit".
bool serve_one(Endpoint& endpoint, int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  Connection connection(fd);
  Commands commands(endpoint);
  commands.begun_ = [&] { connection.say("begun"); };
  while (const auto line = connection.line(endpoint)) {
    if (*line == "quit") return connection.say("ok"), false;
    try {
      const auto answer = commands.run(*line);
      connection.say(answer.empty() ? "ok" : "ok " + answer);
    } catch (const PeerError& error) {
      connection.say(std::string("error ") + error.what());
    }
  }
  return true;
}

}  // namespace

Arguments::Arguments(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;  // the verb
  while (words >> word) {
    const auto equals = word.find('=');
    if (equals == std::string::npos) throw PeerError("not name=value: " + word);
    values_[word.substr(0, equals)] = word.substr(equals + 1);
  }
}

std::string Arguments::text(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) throw PeerError("missing " + name);
  return found->second;
}

std::uint64_t Arguments::number(const std::string& name) const {
  const auto digits = text(name);
  std::size_t used = 0;
  std::uint64_t value = 0;
  try {
    value = std::stoull(digits, &used, 0);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != digits.size()) throw PeerError(name + " is no number: " + digits);
  return value;
}

std::uint64_t Arguments::number(const std::string& name, std::uint64_t otherwise) const {
  return values_.contains(name) ? number(name) : otherwise;
}

int serve(Endpoint& endpoint, std::uint16_t port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 || ::listen(listener, 1) != 0) {
    std::perror("listen");
    return 1;
  }
  std::puts("listening");
  std::fflush(stdout);
  bool go_on = true;
  while (go_on) {
    pollfd ready{listener, POLLIN, 0};
    if (::poll(&ready, 1, endpoint.turn()) <= 0) continue;
    const int fd = ::accept(listener, nullptr, nullptr);
    if (fd >= 0) go_on = serve_one(endpoint, fd);
  }
  ::close(listener);
  return 0;
}

}  // namespace sluice::interop
