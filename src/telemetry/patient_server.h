// Patient server: cpp-httplib's server that cannot be kept busy by those who connect and say nothing.
//
// A connection:  its request has to begin within a second, or within kCrowded when others wait for a thread, and has to be there within
//                kReading; each piece of the answer has to be taken within kWriting. One request each.
// Length:        kMostRead bytes of a connection are read, however its request says how long it is; the rest is as though it never came, and who still sends it sees the
//                connection end rather than the answer.
// With TLS:      the same times; the handshake is part of what has to be there within kReading. A peer without a certificate that counts is
//                refused, and counted.
// Waiting:       kMostWaiting accepted connections at most; then the kernel keeps the others, so that no more descriptors are taken.
// Threads:       `threads` of its own, and cpp-httplib's that accepts.
// Source:        cpp-httplib 0.11: Server::process_and_close_socket, TaskQueue.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "telemetry/tls.h"

namespace sluice::telemetry {

class PatientServer final : public httplib::Server {
 public:
  static constexpr std::chrono::milliseconds kFirstByte{1000};
  static constexpr std::chrono::milliseconds kCrowded{20};
  static constexpr std::chrono::milliseconds kReading{5000};
  static constexpr std::chrono::milliseconds kWriting{5000};
  static constexpr int kMostWaiting = 128;
  static constexpr std::size_t kMostRead = (std::size_t{1} << 20) + (std::size_t{64} << 10);  // head and body

  // `tls` null: plain HTTP.
  explicit PatientServer(std::size_t threads, std::shared_ptr<TlsServerContext> tls = nullptr);

  std::uint64_t handshakes_failed() const { return handshakes_failed_; }

 private:
  // Counts who waits for a thread, and makes the accepting thread wait when those are too many.
  class Line final : public httplib::TaskQueue {
   public:
    Line(std::size_t threads, std::atomic<int>& waiting) : pool_(threads), waiting_(waiting) {}
    void enqueue(std::function<void()> task) override;
    void shutdown() override;

   private:
    httplib::ThreadPool pool_;
    std::atomic<int>& waiting_;
    std::mutex mutex_;
    std::condition_variable room_;
    bool ending_ = false;  // guarded by mutex_
  };

  bool process_and_close_socket(socket_t socket) override;
  bool process(socket_t socket);

  std::shared_ptr<TlsServerContext> tls_;
  std::atomic<int> waiting_{0};
  std::atomic<std::uint64_t> handshakes_failed_{0};
};

}  // namespace sluice::telemetry
