// Clover session: one thread's use of the rack's Clover store: the metadata server besides the memory nodes, and any number of Clover clients,
// each with cursors of its own.
//
// Life, errors, threads: as StoreSession.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "clover/client.h"
#include "clover/metadata.h"
#include "rack/clients/store_session.h"
#include "rack/endpoint/message_link.h"

namespace sluice::rack {

struct CloverSessionConfig : StoreSessionConfig {
  clover::ClientConfig client{};
  CloverSessionConfig() = default;
  explicit CloverSessionConfig(const StoreSessionConfig& session) : StoreSessionConfig(session) {
    nodes.leaves_within = clover::ServerConfig{}.max_flight / 2;
  }
};

class CloverSession final : public StoreSession {
 public:
  static Result<std::unique_ptr<StoreSession>> open(const CloverSessionConfig& config);
  ~CloverSession() override;

  std::string problems() const override;

 private:
  explicit CloverSession(CloverSessionConfig config) : config_(std::move(config)) {}
  Result<void> connect();
  Result<void> join();
  void set_nodes(Time now, const Snapshot& snapshot);

  CloverSessionConfig config_;
  std::unique_ptr<MessageLink> metadata_;
  std::string metadata_name_;
  std::vector<std::unique_ptr<clover::Client>> clients_;
};

}  // namespace sluice::rack
