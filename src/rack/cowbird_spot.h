// Cowbird's spot engines for the applications of this machine: one for every channel, over memory shared with the application and
// connections to the memory nodes.
//
// Threads:    the scheduler's.
// Source:     Cowbird §6.
#pragma once

#include "cowbird/engine.h"
#include "rack/cowbird_host.h"

namespace sluice::rack {

class CowbirdSpot final : public CowbirdService {
 public:
  // `pool`: where the rack's memory nodes are. Both outlive the service.
  CowbirdSpot(remote::Scheduler& scheduler, remote::RemoteMemory& pool, const cowbird::EngineConfig& config)
      : scheduler_(scheduler), pool_(pool), config_(config) {}

  Result<std::unique_ptr<CowbirdServing>> serve(MutableBytes block, const cowbird::InstanceLayout& layout) override;

 private:
  remote::Scheduler& scheduler_;
  remote::RemoteMemory& pool_;
  cowbird::EngineConfig config_;
};

}  // namespace sluice::rack
