// FUSEE session: one thread's use of the replicated hash table in the rack's memory: any number of FUSEE clients, each with a cache and blocks of
// its own. Makes the store if there is none and it may.
//
// Life, errors, threads: as StoreSession. Clients that go leave their blocks to whoever recovers them.
// Memory:     all memory nodes' main regions in the order of their numbers, behind their first 64 KiB, which are Sherman's lock tables; so each of
//             the two finds the other's superblock in its place. Those that are gone are still of the store, if it was made with them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fusee/client.h"
#include "rack/store_session.h"

namespace sluice::rack {

struct FuseeSessionConfig : StoreSessionConfig {
  bool may_create = false;         // the others wait for the one that may
  std::uint32_t value_bytes = 64;  // of a store that is made
  std::uint32_t replicas = 3;      // of a store that is made; at most as many as memory nodes
  fusee::ClientConfig client{.timeout = Duration::seconds(15),
                             .hold = Duration::seconds(1),
                             .flight = Duration::seconds(1),
                             .suspect_after = Duration::seconds(1),
                             .lease = Duration::milliseconds(20)};
};

class FuseeSession final : public StoreSession {
 public:
  static Result<std::unique_ptr<StoreSession>> open(const FuseeSessionConfig& config);
  ~FuseeSession() override { detach(); }

 private:
  explicit FuseeSession(FuseeSessionConfig config) : config_(std::move(config)) {}
  Result<void> connect();
  Result<void> join();
  remote::Task<void> join_all(std::string& refused);
  fusee::Geometry geometry() const;

  FuseeSessionConfig config_;
  remote::Task<void> find_gone();

  std::vector<fusee::MemoryNode> memory_;
  std::vector<fusee::MemoryNode> with_gone_;  // and those that the directory remembers
  std::unique_ptr<fusee::Client> scout_;
  std::vector<std::unique_ptr<fusee::Client>> clients_;
};

}  // namespace sluice::rack
