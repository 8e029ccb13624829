// Patient server: cpp-httplib's server that cannot be kept busy by those who connect and are slow to ask.
//
// A connection:  its request has to begin within kFirstByte, and to be there, head and body, within kReading; until then it has no thread. Each
//                piece of the answer has to be taken within kWriting, and the whole as fast as kSlowest, but for kWriting. One request each.
// Open requests: a body whose length the head does not tell, or that waits to be asked for (Expect), comes to a thread and has kReading
//                there; an eighth of the threads, at least one, are for such, and the next end unanswered.
// Fairness:      who comes by TCP has half of the threads at most, and of those for open requests; more that have asked wait until one
//                of theirs is over, kMostInLine of them, and the next end unanswered. Requests to paths that hurry() names, if they are not open, have
//                threads of their own, kHurried, and wait for none of this.
// Length:        kMostHead bytes of a head and kMostRead of a connection are read, however its request says how long it is; the rest is as though
//                it never came, and who still sends it sees the connection end rather than the answer.
// With TLS:      the same times; the handshake comes before the head. A peer without a certificate that counts is refused, and counted.
// Waiting:       kMostWaiting connections whose request has not come, and kMostHeld bytes of them: the next takes the place of the oldest from
//                the address that has most of them. As many whose request is there and waits for a thread; then the kernel keeps the others,
//                so that no more descriptors are taken.
// Accepting:     is tried again when the kernel has no descriptor or no memory for one who comes (cpp-httplib's own loop would end for good).
// Threads:       `threads` that answer, and kHurried; one that listens to those who have not asked yet, and serve()'s, which accepts.
// Source:        cpp-httplib 0.11: Server::process_request, ThreadPool.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "telemetry/tls.h"

namespace sluice::telemetry {

class PatientServer : public httplib::Server {
 public:
  static constexpr std::chrono::milliseconds kFirstByte{1000};
  static constexpr std::chrono::milliseconds kReading{5000};
  static constexpr std::chrono::milliseconds kWriting{5000};
  static constexpr std::size_t kSlowest = std::size_t{128} << 10;  // bytes a second
  static constexpr std::size_t kMostWaiting = 128;
  static constexpr std::size_t kMostInLine = kMostWaiting / 2;
  static constexpr std::size_t kHurried = 4;
  static constexpr int kBacklog = 1024;  // of the kernel
  static constexpr std::size_t kMostHead = std::size_t{64} << 10;
  static constexpr std::size_t kMostRead = (std::size_t{1} << 20) + kMostHead;  // head and body
  static constexpr std::size_t kMostHeld = 16 * kMostRead;                      // of requests that are not whole

  // `tls` null: plain HTTP.
  explicit PatientServer(std::size_t threads, std::shared_ptr<TlsServerContext> tls = nullptr);
  ~PatientServer() override;

  // Requests to this path are soon done, and must not wait. REQUIRES: it does not listen yet.
  void hurry(const std::string& path) { hurried_.insert(path); }
  std::uint64_t handshakes_failed() const { return handshakes_failed_; }

  // Until end(), which any thread may call. REQUIRES: it is bound.
  void serve();
  void end();

 protected:
  // As accept4().
  virtual int accept_one(int listening);

 private:
  struct Guest;
  class Hall;

  void process(Guest& guest);

  std::size_t threads_;
  std::shared_ptr<TlsServerContext> tls_;
  std::set<std::string, std::less<>> hurried_;
  std::atomic<int> ended_{-1};  // the socket that was listened at: closed when serve() does not look at it any more
  std::atomic<std::uint64_t> handshakes_failed_{0};
};

}  // namespace sluice::telemetry
