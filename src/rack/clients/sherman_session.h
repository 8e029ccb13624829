// Sherman session: one thread's use of the tree in the rack's memory: any number of Sherman clients, each with an index cache and local locks
// of its own. Makes the tree if there is none and it may.
//
// Life, errors, threads: as StoreSession.
// Memory:     all memory nodes' main regions in the order of their numbers: 64 KiB for the lock table, then the heap. Lock words lie in
//             ordinary memory here, where the originals' lie in the NIC's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rack/clients/store_session.h"
#include "sherman/client.h"

namespace sluice::rack {

struct ShermanSessionConfig : StoreSessionConfig {
  bool may_create = false;         // the others wait for the one that may
  std::uint32_t value_bytes = 64;  // of a tree that is made
  sherman::ClientConfig client{
      .timeout = Duration::seconds(15), .lease = Duration::seconds(4), .flight = Duration::seconds(1)};
};

class ShermanSession final : public StoreSession {
 public:
  static Result<std::unique_ptr<StoreSession>> open(const ShermanSessionConfig& config);
  ~ShermanSession() override;

 private:
  explicit ShermanSession(ShermanSessionConfig config) : config_(std::move(config)) {}
  Result<void> connect();
  Result<void> join();
  remote::Task<void> join_all(std::string& refused);

  ShermanSessionConfig config_;
  std::vector<sherman::MemoryNode> memory_;
  std::vector<std::unique_ptr<sherman::Client>> clients_;
};

}  // namespace sluice::rack
