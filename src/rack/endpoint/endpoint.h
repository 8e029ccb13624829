// Endpoint: a process's place on the rack: membership, a NIC with an address of its own, the loop that turns it, connections.
//
// Life:       open() joins the directory and opens the port -> add pollables -> publish() -> loop().run() -> destroyed: leaves.
// Threads:    the loop's owner; one more keeps the lease.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "nic/connector.h"
#include "nic/nic.h"
#include "rack/directory/directory_http.h"
#include "rack/directory/membership.h"
#include "rack/settings/run_directory.h"

namespace sluice::rack {

struct EndpointConfig {
  std::string directory;  // the run directory's path
  NodeDescription description{};
  std::string port;  // empty: the switch of the run directory
  bool dcqcn = false;
  std::uint64_t line_rate = rc::DcqcnParameters{}.line_rate;  // bits a second
  NodeKinds kinds = kAllKinds;                                // that on_change is told of; none: it is not called
  Duration lease = Duration::seconds(3);
  // Of a client: one of its name is on the rack at a time, and others succeed to it. (Most have their process in their name.)
  bool has_successors = false;
  std::function<bool(const Error&)> on_taken{};  // MembershipConfig's, as the next
  std::function<void(const std::string&)> on_trouble{};
  std::shared_ptr<memory::RegionTable> regions{};  // shared with other endpoints of this process
  wire::Qpn first_qpn{0x11};
};

class Endpoint {
 public:
  static Result<std::unique_ptr<Endpoint>> open(const EndpointConfig& config);
  ~Endpoint();

  // Called in the loop's thread whenever the nodes on the rack have changed. Set before the loop runs.
  void on_change(std::function<void(Time, const Snapshot&)> handler) { on_change_ = std::move(handler); }
  // Called in the loop's thread when the lease has been lost, before the name is taken again: ends what others must not go on with, and
  // returns what to publish. Set before publish().
  void on_fence(std::function<NodeDescription(Time)> handler) { on_fence_ = std::move(handler); }
  // Another process has the name of this client, or may have its address (the rack has begun anew): its NIC is off the wire, so that it takes
  // nobody's frames away, and what it had under way ends as when a node dies. In the loop's thread.
  bool is_superseded() const { return is_superseded_; }
  // Turns the loop until it is stopped. An error when the lease has been lost and another process has the name, or may have the address:
  // to answer on would take its frames away.
  Result<void> run();
  Result<void> publish(const NodeDescription& description) {
    published_ = description;
    return membership_->publish(description);
  }

  // In the loop's thread: the same without waiting for the directory.
  void publish_soon(const NodeDescription& description) {
    published_ = description;
    membership_->publish_soon(description);
  }

  const NodeRecord& node() const { return membership_->node(); }
  // As last published.
  const NodeDescription& published() const { return published_; }
  nic::PollLoop& loop() { return loop_; }
  nic::Shard& shard() { return *shard_; }
  rc::Adapter& adapter() { return shard_->adapter(); }
  nic::Connector& connector() { return *connector_; }
  DirectoryClient& directory() { return directory_; }

 private:
  std::optional<NodeDescription> fence();
  void take_soon(const Snapshot& snapshot);
  void take(Time now);
  explicit Endpoint(HttpAddress directory) : directory_(std::move(directory)) {}

  DirectoryClient directory_;
  nic::PollLoop loop_;
  std::function<void(Time, const Snapshot&)> on_change_;
  std::mutex changes_;
  std::optional<Snapshot> newest_;  // that the loop is to take; guarded by changes_
  std::function<NodeDescription(Time)> on_fence_;
  bool is_superseded_ = false;  // the loop's thread
  NodeDescription published_;
  std::atomic<bool> ending_{false};
  std::unique_ptr<nic::Shard> shard_;
  std::unique_ptr<nic::Connector> connector_;
  std::unique_ptr<Membership> membership_;  // goes before those above: its thread posts to the loop
  std::unique_ptr<port::Port> unplugged_;   // of one that is superseded: others look at its counters still
};

// Blocks SIGINT, SIGTERM and SIGHUP and ends the loop when one comes. Made before any thread is started.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  void stop_on_signal(nic::PollLoop& loop);
  // Readable when a signal has come.
  int descriptor() const { return descriptor_; }
  // The number of the signal that has come, or 0.
  int received() const { return received_; }

 private:
  int descriptor_;
  int received_ = 0;
};

}  // namespace sluice::rack
