#include "rack/cowbird_spot.h"

#include <algorithm>

#include "remote/mapped.h"

namespace sluice::rack {
namespace {

// The block's place in the address space of MappedMemory; engines see nothing else there.
const remote::RemoteAddress kBlock{remote::NodeId(0), remote::RegionKey(1), 0x10000};

class Serving final : public CowbirdServing {
 public:
  Serving(remote::Scheduler& scheduler, remote::RemoteMemory& pool, const cowbird::EngineConfig& config,
          MutableBytes block, const cowbird::InstanceLayout& layout)
      : memory_(scheduler) {
    memory_.add(kBlock, block);
    for (std::uint32_t i = 0; i < layout.channels; ++i) {
      engines_.push_back(std::make_unique<cowbird::Engine>(scheduler, memory_, kBlock, layout, i, pool, config));
      ++*running_;
      scheduler.spawn(run(*engines_.back(), running_));
    }
  }
  void stop() override {
    for (const auto& engine : engines_) engine->stop();
  }
  bool ended() const override { return *running_ == 0; }
  std::size_t broken() const override {
    return static_cast<std::size_t>(
        std::count_if(engines_.begin(), engines_.end(), [](const auto& engine) { return engine->broken(); }));
  }

 private:
  static remote::Task<void> run(cowbird::Engine& engine, std::shared_ptr<std::size_t> running) {
    co_await engine.run();
    --*running;
  }

  remote::MappedMemory memory_;
  std::vector<std::unique_ptr<cowbird::Engine>> engines_;
  std::shared_ptr<std::size_t> running_ = std::make_shared<std::size_t>(0);
};

}  // namespace

Result<std::unique_ptr<CowbirdServing>> CowbirdSpot::serve(MutableBytes block, const cowbird::InstanceLayout& layout) {
  return std::make_unique<Serving>(scheduler_, pool_, config_, block, layout);
}

}  // namespace sluice::rack
