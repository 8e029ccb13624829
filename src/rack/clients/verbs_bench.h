// Verbs bench: bare RDMA operations between two processes, timed where they are posted: no coroutines, no data structure.
//
// Life:       the peer process: serve_verbs() until killed.      The measuring process: VerbsClient::open() -> measure() each point.
// Invariant:  the first and the last operation of every point are verified against what the memory must hold.
// Units:      latencies in nanoseconds, post to completion.
// Threads:    one in each process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/histogram.h"
#include "base/result.h"
#include "nic/connector.h"
#include "nic/nic.h"
#include "rc/work.h"

namespace sluice::rack {

struct VerbsEnd {
  std::string port;     // "shm:…", "cable:…", "udp:…"
  bool listen = false;  // a listener whose first caller is the peer
  wire::Ipv4Address ip{};
};

// Of the NIC that such a process has at an end of its port.
rc::AdapterConfig bench_adapter_config(wire::Ipv4Address ip);

// Exports memory and takes SENDs until the process is told to end. `ready` is called when peers may connect.
Result<void> serve_verbs(const VerbsEnd& end, const std::function<void()>& ready);

struct VerbsPoint {
  rc::SendOp op = rc::SendOp::kWrite;
  std::uint32_t bytes = 8;
  std::uint32_t depth = 1;
  Duration duration = Duration::milliseconds(500);
};

struct VerbsMeasured {
  std::uint64_t operations = 0;
  double rate = 0;  // a second
  Histogram latency_ns;
};

class VerbsClient {
 public:
  static constexpr std::uint32_t kMaxBytes = 1u << 20;
  static constexpr std::uint32_t kMaxDepth = 1024;

  static Result<std::unique_ptr<VerbsClient>> open(const VerbsEnd& end, wire::Ipv4Address peer, Duration patience);
  ~VerbsClient();
  Result<VerbsMeasured> measure(const VerbsPoint& point);
  std::string port_name() const { return shard_->port().name(); }
  nic::PollLoop& loop() { return loop_; }

 private:
  class Driver;
  VerbsClient() = default;
  Result<void> connect(wire::Ipv4Address peer, Duration patience);
  Result<void> verify(const VerbsPoint& point);
  bool run_for(Duration patience, const std::function<bool()>& done);

  nic::PollLoop loop_;
  std::unique_ptr<nic::Shard> shard_;
  std::unique_ptr<nic::Connector> connector_;
  rc::CompletionQueue* completions_ = nullptr;
  rc::QueuePair* pair_ = nullptr;
  std::uint64_t remote_address_ = 0;
  memory::Key remote_key_{};
  std::vector<std::uint8_t> local_;
  bool up_ = false;
  std::string why_;
};

}  // namespace sluice::rack
