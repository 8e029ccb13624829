#include "sim/cowbird_core.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "sim/host_memory.h"

namespace sluice::sim {

using remote::Operation;

namespace {

constexpr std::size_t kMostTaken = 16;   // completions of a turn, of each channel: turns stay short
constexpr std::size_t kMostPosted = 32;  // … and operations

}  // namespace

// One queue pair.
class EngineMemory::Path final : public CompletionListener {
 public:
  explicit Path(CowbirdCore& core) : core_(core) {}
  void on_completions(Time now) override { core_.wake(now); }

  rc::QueuePair* pair = nullptr;
  std::deque<Operation*> submitted;
  std::deque<Operation*> posted;

 private:
  CowbirdCore& core_;
};

EngineMemory::EngineMemory(CowbirdCore& core, Rack& rack, Rack::Machine& machine, bool counted)
    : RemoteMemory(core.scheduler()),
      core_(core),
      rack_(rack),
      machine_(machine),
      completions_(machine.make_completions(4 * kDepth)),
      counted_(counted) {
  core.add(*this);
}

EngineMemory::~EngineMemory() = default;

void EngineMemory::connect(Rack::Machine& server, rc::CompletionQueue& server_completions, std::size_t pairs) {
  for (std::size_t i = 0; i < pairs; ++i) {
    auto path = std::make_unique<Path>(core_);
    path->pair = rack_.connect({&machine_, completions_, path.get(), kDepth}, {&server, &server_completions}).a;
    paths_.push_back(std::move(path));
  }
}

void EngineMemory::submit(Operation& operation) {
  count(operation);
  paths_[turn_]->submitted.push_back(&operation);
  turn_ = (turn_ + 1) % paths_.size();
}

std::size_t EngineMemory::take(std::size_t& operations) {
  std::array<rc::Completion, kMostTaken> found;
  const std::size_t n = completions_->poll(found);
  for (std::size_t i = 0; i < n; ++i) {
    auto* const last = reinterpret_cast<Operation*>(static_cast<std::uintptr_t>(found.at(i).id));
    const bool well = found.at(i).status == rc::CompletionStatus::kSuccess;
    if (!well) core_.problem_ = "an operation of the engine's failed";
    const auto path = std::ranges::find_if(paths_, [&](const auto& p) { return p->pair->qpn() == found.at(i).qpn; });
    SLUICE_CHECK(path != paths_.end());
    for (bool more = true; more && !(*path)->posted.empty();) {
      Operation* const operation = (*path)->posted.front();
      (*path)->posted.pop_front();
      more = operation != last;
      if (counted_) ++operations;
      complete(*operation, well ? remote::Status::kOk : remote::Status::kUnknown);
    }
  }
  return n;
}

void EngineMemory::post(Time now, Duration& spent) {
  const HostParameters& host = core_.host();
  for (const auto& path : paths_) {
    if (path->submitted.empty()) continue;
    std::size_t n = std::min({path->submitted.size(), kMostPosted, std::size_t{kDepth} - path->posted.size()});
    if (n == 0) continue;
    spent = spent + host.post_cost * static_cast<std::int64_t>(n) + host.doorbell_cost;
    for (; n > 0; --n) {
      Operation& operation = *path->submitted.front();
      path->submitted.pop_front();
      rc::Sge sge;
      rc::SendRequest request = request_of(operation, sge);
      request.flags.signaled = n == 1;
      const auto error = machine_.nic.post(now, spent + machine_.nic.doorbell_latency(), *path->pair, request);
      SLUICE_CHECK(error == rc::PostError::kNone);
      path->posted.push_back(&operation);
    }
  }
}

bool EngineMemory::waiting() const {
  if (completions_->size() != 0) return true;
  return std::ranges::any_of(paths_,
                             [](const auto& path) { return !path->submitted.empty() && path->posted.size() < kDepth; });
}

CowbirdCore::CowbirdCore(Rack& rack, const HostParameters& host, Duration each)
    : rack_(rack), host_(host), each_(each) {}

void CowbirdCore::fire(Time now) {
  Duration spent{};
  for (EngineMemory* const memory : memories_) {
    std::size_t operations = 0;
    const std::size_t n = memory->take(operations);
    if (n == 0) continue;
    spent = spent + host_.poll_cost + host_.completion_cost * static_cast<std::int64_t>(n) +
            each_ * static_cast<std::int64_t>(operations);
  }
  scheduler_.run(now);
  for (EngineMemory* const memory : memories_) memory->post(now, spent);
  busy_ = busy_ + spent;
  busy_until_ = now + std::max(spent, Duration::nanoseconds(1));
  if (std::ranges::any_of(memories_, [](const EngineMemory* memory) { return memory->waiting(); })) wake(now);
  if (const Time next = scheduler_.next_deadline(); next != Time::never()) wake(next);
}

}  // namespace sluice::sim
