// A verbs endpoint that a test drives over TCP, one line a command: the same for Linux rxe and for Sluice's NIC.
//
// Life:       open -> (the test tells each side of the other) connect -> post, poll, flood, absorb ... -> open again, or quit.
// Protocol:   "verb name=number name=number ..." in; "ok name=number ..." or "error WHY" out. serve() in peer.cpp has the verbs.
// Units:      bytes; offsets into the endpoint's one registered region; statuses are numbers of ibv_wc_status.
// Threads:    one.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

namespace sluice::interop {

enum class Op : std::uint8_t {
  kSend,
  kSendWithImmediate,
  kWrite,
  kWriteWithImmediate,
  kRead,
  kCompareAndSwap,
  kFetchAndAdd
};

struct Work {
  Op op{};
  std::uint64_t id = 0;
  std::uint64_t offset = 0;  // of the local bytes
  std::uint32_t length = 0;
  std::uint64_t remote = 0;  // address at the peer
  std::uint32_t rkey = 0;
  std::uint32_t immediate = 0;
  std::uint64_t compare = 0;
  std::uint64_t value = 0;  // to swap in, to add
};

struct Done {
  std::uint64_t id = 0;
  int status = 0;
  bool received = false;
  std::uint32_t length = 0;  // of what was received
  std::optional<std::uint32_t> immediate{};
};

// "name=number" pairs of a line.
class Arguments {
 public:
  explicit Arguments(const std::string& line);  // throws PeerError
  std::uint64_t number(const std::string& name) const;
  std::uint64_t number(const std::string& name, std::uint64_t otherwise) const;
  std::string text(const std::string& name) const;

 private:
  std::map<std::string, std::string> values_;
};

// Says why a command failed; serve() answers with it.
struct PeerError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  // Makes region and queue pair anew. Arguments: size; access, pair_access (of the region, of the queue
  // pair; bits as ibv_access_flags); depth; psn.
  // Returns what the peer needs: "qpn=… psn=… rkey=… address=… gid=…".
  virtual std::string open(const Arguments& arguments) = 0;
  // To RTS. Arguments: qpn, psn, gid, mtu, timeout, retry, rnr_retry, min_rnr.
  virtual void connect(const Arguments& arguments) = 0;
  virtual void post(const Work& work) = 0;
  virtual void post_receive(std::uint64_t id, std::uint64_t offset, std::uint32_t length) = 0;
  virtual std::optional<Done> poll() = 0;
  virtual std::span<std::uint8_t> memory() = 0;

  // --- connections made by RDMA-CM; the region and the queue pair are made with them (size, as with open) ---
  // Private data is one number each way. What connect and accept return: "rkey=… address=… data=NUMBER", data the peer's.
  virtual void cm_listen(std::uint16_t service) = 0;
  // Arguments: to (an IPv4 address), service, data, ms, size. Throws "rejected reason=… data=…".
  virtual std::string cm_connect(const Arguments& arguments) = 0;
  // Waits for a request and accepts it. Arguments: data, ms, size.
  virtual std::string cm_accept(const Arguments& arguments) = 0;
  // Waits for a request and refuses it. Arguments: data, ms.
  virtual void cm_reject(const Arguments& arguments) = 0;
  virtual void cm_disconnect() = 0;
  virtual void cm_wait_until_disconnected(const Arguments& arguments) = 0;

  // Lets the endpoint work while the test says nothing; returns for how many milliseconds it may be left alone.
  virtual int turn() = 0;
};

// A point in time some milliseconds ahead: argument ms, 10,000 by default.
class Patience {
 public:
  explicit Patience(const Arguments& arguments)
      : end_(std::chrono::steady_clock::now() + std::chrono::milliseconds(arguments.number("ms", 10'000))) {}
  bool over() const { return std::chrono::steady_clock::now() > end_; }

 private:
  std::chrono::steady_clock::time_point end_;
};

// Listens on the TCP port, prints "listening", serves one connection after another until "quit" or SIGTERM.
int serve(Endpoint& endpoint, std::uint16_t port);

}  // namespace sluice::interop
