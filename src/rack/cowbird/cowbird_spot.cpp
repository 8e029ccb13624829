#include "rack/cowbird/cowbird_spot.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "remote/mapped.h"

namespace sluice::rack {
namespace {

// The block's place in the address space of MappedMemory; engines see nothing else there.
const remote::RemoteAddress kBlock{remote::NodeId(0), remote::RegionKey(1), kBlockBase};

remote::Task<void> run(cowbird::Engine& engine, std::uint32_t channel, std::string whose,
                       std::shared_ptr<std::size_t> running) {
  co_await engine.run();
  if (engine.broken()) {
    spdlog::warn("cowbird: channel {} of {} makes no sense; it is not served any more", channel, whose);
  }
  --*running;
}

class Serving final : public CowbirdServing {
 public:
  Serving(remote::Scheduler& scheduler, remote::RemoteMemory& pool, const cowbird::EngineConfig& config,
          MutableBytes block, const cowbird::InstanceLayout& layout)
      : memory_(scheduler) {
    memory_.add(kBlock, block);
    engines_ = std::make_unique<CowbirdEngines>(scheduler, memory_, kBlock, layout, pool, config, "an application");
  }
  void stop() override { engines_->stop(); }
  bool ended() const override { return engines_->ended(); }
  std::size_t broken() const override { return engines_->broken(); }
  cowbird::EngineCounters engines() const override { return engines_->engines(); }

 private:
  remote::MappedMemory memory_;
  std::unique_ptr<CowbirdEngines> engines_;
};

}  // namespace

CowbirdEngines::CowbirdEngines(remote::Scheduler& scheduler, remote::RemoteMemory& compute, remote::RemoteAddress at,
                               const cowbird::InstanceLayout& layout, remote::RemoteMemory& pool,
                               const cowbird::EngineConfig& config, const std::string& whose) {
  for (std::uint32_t i = 0; i < layout.channels; ++i) {
    engines_.push_back(std::make_unique<cowbird::Engine>(scheduler, compute, at, layout, i, pool, config));
  }
  // Once there is memory for all.
  for (std::uint32_t i = 0; i < layout.channels; ++i) {
    ++*running_;
    scheduler.spawn(run(*engines_[i], i, whose, running_));
  }
}

void CowbirdEngines::stop() {
  for (const auto& engine : engines_) engine->stop();
}

std::size_t CowbirdEngines::broken() const {
  return static_cast<std::size_t>(
      std::count_if(engines_.begin(), engines_.end(), [](const auto& engine) { return engine->broken(); }));
}

cowbird::EngineCounters CowbirdEngines::engines() const {
  cowbird::EngineCounters sum;
  for (const auto& engine : engines_) sum += engine->counters();
  return sum;
}

Result<std::unique_ptr<CowbirdServing>> CowbirdSpot::serve(MutableBytes block, const cowbird::InstanceLayout& layout) {
  return std::make_unique<Serving>(scheduler_, pool_, config_, block, layout);
}

}  // namespace sluice::rack
