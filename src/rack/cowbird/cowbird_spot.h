// Cowbird's spot engines for the applications of this machine: one for every channel, over memory shared with the application and
// connections to the memory nodes. And the same engines wherever the block is.
//
// Threads:    the scheduler's.
// Source:     Cowbird §6.
#pragma once

#include "cowbird/engine.h"
#include "rack/cowbird/cowbird_host.h"

namespace sluice::rack {

// The engines of one block. Destroyed once it has ended, or after the scheduler.
class CowbirdEngines final : public CowbirdServing {
 public:
  // The block stands at `at` in `compute`; both memories outlive the engines. `whose`: for the log.
  CowbirdEngines(remote::Scheduler& scheduler, remote::RemoteMemory& compute, remote::RemoteAddress at,
                 const cowbird::InstanceLayout& layout, remote::RemoteMemory& pool, const cowbird::EngineConfig& config,
                 const std::string& whose);
  void stop() override;
  bool ended() const override { return *running_ == 0; }
  std::size_t broken() const override;
  cowbird::EngineCounters engines() const override;

 private:
  std::vector<std::unique_ptr<cowbird::Engine>> engines_;
  std::shared_ptr<std::size_t> running_ = std::make_shared<std::size_t>(0);
};

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
