// 1RMA in real time: a target process that exports memory, and a client that measures operations on it.
//
// Life:       serve_onerma() opens its port, writes a file of grants, and serves until it is told to end. OnermaClient::open() takes a grant from the
//             file, which is then nobody else's -> measure() each point. A grant that no frame has shown goes back at the end.
// Numbers:    a client's is that of its grant, and its address follows from it: clients of one target share a switch.
// Keys:       drawn from the kernel for each life of the target. The file of grants is a secret: mode 0600, for whoever runs clients.
// Invariant:  the first and the last operation of every point are verified against what the memory must hold.
// Units:      latencies in nanoseconds, submission to completion.
// Threads:    one in each process.
// Source:     docs/onerma.md; the control plane that hands out keys is not 1RMA's (§5.2).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/histogram.h"
#include "base/result.h"
#include "nic/machine_poll.h"
#include "onerma/node.h"
#include "onerma/remote_onerma.h"
#include "rack/endpoint/onerma_grants.h"

namespace sluice::rack {

// Time-outs, targets and queues for processes that share cores: a round trip is tens of microseconds, and now and then some time slices of a
// scheduler, which say nothing of congestion.
onerma::NodeConfig real_time_node(wire::Ipv4Address ip);
// Operations of as many bytes as frames of the port hold. Writes are repeated: nobody else may write what the client does before it has ended.
Result<onerma::RemoteOnerma::Parameters> real_time_client(const std::string& port);
// With windows of one operation at least: less than one a round trip, where that is measured in time slices, is hardly any.
onerma::Algorithm1Parameters real_time_algorithm();

inline constexpr std::uint64_t kMostNumber =
    0x7CFF;  // of a client with an address of its own; 10.77.252.255 is the last
// The first of so many clients' numbers, in a row, of one life of a target: from chance, so that those whom an earlier life let in, or whom
// another target lets in, have others.
std::uint64_t draw_first_number(std::uint64_t clients);
// 10.77.128.1 on; beyond kMostNumber those come again.
wire::Ipv4Address address_of_client(std::uint64_t number);

// Turns the client library in a loop, behind its node.
std::unique_ptr<nic::Pollable> make_client_poll(onerma::RemoteOnerma& remote);

// Opens the node's port, says so by `listening`, unless that finds something wrong, and turns the node in the loop until that is stopped; `behind`, if
// there is one, right behind it.
Result<void> serve_node(onerma::Node& node, const std::string& port, bool listen, nic::PollLoop& loop,
                        const std::function<Result<void>()>& listening, nic::Pollable* behind = nullptr);

struct OnermaTargetEnd {
  std::string port;     // "shm:…", "cable:…", "udp:…", "packet:…,filter=all"
  bool listen = false;  // a listener whose first caller is the peer
  wire::Ipv4Address ip{};
  std::uint64_t memory = 64u << 20;
  std::uint64_t clients = 16;  // grants in the file
  bool allow_plain = false;
  bool allow_rekey = false;  // clients may also change the region's key, which ends the others' grants
  std::string grants;        // the file
};

// Serves until the process is told to end. `ready` is called when the file is there and clients may come; `ended`, at the end, with what the target
// has counted.
using TargetEnded = std::function<void(const onerma::TargetCounters& counters)>;
Result<void> serve_onerma(
    const OnermaTargetEnd& end, const std::function<void()>& ready,
    const TargetEnded& ended = [](const onerma::TargetCounters&) {});

struct OnermaClientEnd {
  std::string port;
  std::string grants;
  onerma::Protection protection = onerma::Protection::kSealed;
};

struct OnermaPoint {
  onerma::OpKind op = onerma::OpKind::kRead;  // kRead or kWrite
  std::uint32_t bytes = 64;
  std::uint32_t depth = 1;
  Duration duration = Duration::milliseconds(500);
  Duration rekey_every{};  // the client changes the region's key this often meanwhile; zero: never
};

struct OnermaMeasured {
  std::uint64_t operations = 0;
  std::uint64_t retries = 0;  // of operations of at most 4 KB
  double rate = 0;            // a second
  Histogram latency_ns;
  // Of each Rekey: the longest time in which no operation ended, from its request until the first one that ended after the new key came into use.
  Histogram pause_ns;
};

// What a try to change a key has come to.
enum class RekeyTry : std::uint8_t { kDone, kAgain, kFailed };
struct RekeySoFar {
  int tries = 0;              // with this one
  bool in_use = false;        // operations use the new key already
  bool time_is_over = false;  // or the client has no more use for it
};
RekeyTry judge_rekey(onerma::Status status, const RekeySoFar& so_far);

class OnermaClient {
 public:
  static constexpr std::uint32_t kMaxBytes = 1u << 20;
  static constexpr std::uint32_t kMaxDepth = 1024;

  static Result<std::unique_ptr<OnermaClient>> open(const OnermaClientEnd& end);
  ~OnermaClient();
  Result<OnermaMeasured> measure(const OnermaPoint& point);
  std::string port_name() const { return shard_->port().name(); }
  nic::PollLoop& loop() { return loop_; }

 private:
  class Driver;
  class Rekeys;
  OnermaClient() = default;
  Result<void> verify(std::uint32_t bytes);
  Result<void> run(remote::Operation operation);
  onerma::RegionId region() const { return onerma::RegionId(base_.key.value); }

  std::optional<TakenGrants> grants_;
  nic::PollLoop loop_;
  remote::Scheduler scheduler_;
  std::unique_ptr<onerma::Node> node_;
  std::unique_ptr<nic::MachinePoll<onerma::Node>> shard_;
  onerma::Algorithm1 policy_{real_time_algorithm()};
  std::unique_ptr<onerma::RemoteOnerma> remote_;
  std::unique_ptr<nic::Pollable> remote_poll_;
  remote::RemoteAddress base_{};
  std::uint64_t length_ = 0;
  onerma::Protection protection_{};
  std::vector<std::uint8_t> local_;
};

}  // namespace sluice::rack
