// Sherman session: one thread's use of the tree in the rack's memory: any number of Sherman clients, each with an index cache and local locks
// of its own. Makes the tree if there is none and it may.
//
// Life, errors, threads: as StoreSession.
// Memory:     all memory nodes' first regions, when the tree is made, in the order of their numbers: 64 KiB for the lock table, then the heap. Lock words
//             lie in ordinary memory here, where the originals' lie in the NIC's. Later, what the superblocks say (store_parts.h): memory nodes that have
//             come to the rack since are left alone. One that was stopped for longer than its lease has a key that its memory had not before, and is used on.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "rack/clients/store_parts.h"
#include "rack/clients/store_session.h"
#include "sherman/client.h"

namespace sluice::rack {

struct ShermanSessionConfig : StoreSessionConfig {
  bool may_create = false;         // the others wait for the one that may
  std::uint32_t value_bytes = 64;  // of a tree that is made
  sherman::ClientConfig client{
      .timeout = Duration::seconds(15), .lease = Duration::seconds(4), .flight = Duration::seconds(1)};
  ShermanSessionConfig() = default;
  explicit ShermanSessionConfig(const StoreSessionConfig& session) : StoreSessionConfig(session) {
    nodes.leaves_within = client.flight / 2;
  }
};

class ShermanSession final : public StoreSession {
 public:
  static Result<std::unique_ptr<StoreSession>> open(const ShermanSessionConfig& config);
  ~ShermanSession() override;
  Spread spread() const override { return {1, static_cast<std::uint32_t>(memory_.size())}; }

 private:
  explicit ShermanSession(ShermanSessionConfig config) : config_(std::move(config)) {}
  Result<void> join();
  remote::Task<void> join_all(std::string& refused);
  remote::Task<bool> make(const StorePlan& plan, std::string& refused);  // as MakeStore
  std::vector<sherman::MemoryNode> memory_of(const StorePlan& plan) const;
  void look_for_moved_memory();
  std::string refusal_of(const sherman::Geometry& shape) const;  // empty: it can be used from here

  ShermanSessionConfig config_;
  const sherman::Maker maker_{std::random_device{}()};
  std::vector<StorePart> parts_;
  std::vector<sherman::MemoryNode> memory_;
  std::vector<std::string> names_;  // of the memory nodes
  std::vector<std::unique_ptr<sherman::Client>> clients_;
};

}  // namespace sluice::rack
