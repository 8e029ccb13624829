#include "sim/load/cowbird_core.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "sim/edm/edm_memory.h"
#include "sim/load/host_memory.h"

namespace sluice::sim {

using remote::Operation;

namespace {

constexpr std::size_t kMostTaken = 16;   // completions of a turn, of each channel: turns stay short
constexpr std::size_t kMostPosted = 32;  // … and operations

}  // namespace

// One queue pair, or flow.
class EngineMemory::Path final : public CompletionListener, public EdmPort::Listener {
 public:
  explicit Path(CowbirdCore& core) : core_(core) {}
  void on_completions(Time now) override { core_.wake(now); }
  void on_done(Time now, Operation& operation) override {
    done.push_back(&operation);
    core_.wake(now);
  }

  rc::QueuePair* pair = nullptr;
  EdmPort::Flow* flow = nullptr;
  std::deque<Operation*> submitted;
  std::deque<Operation*> posted;
  std::deque<Operation*> signaled;  // of the flow: the last of each turn
  std::size_t in_flow = 0;
  std::deque<Operation*> done;  // of the flow, and not taken yet

 private:
  CowbirdCore& core_;
};

EngineMemory::EngineMemory(CowbirdCore& core, Rack& rack, Rack::Machine& machine)
    : RemoteMemory(core.scheduler()),
      core_(core),
      rack_(rack),
      machine_(machine),
      completions_(machine.make_completions(4 * kDepth)) {
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

void EngineMemory::connect(EdmPort& port) {
  SLUICE_CHECK(paths_.empty());
  edm_ = &port;
  paths_.push_back(std::make_unique<Path>(core_));
  paths_.back()->flow = port.make_flow(*paths_.back());
}

remote::Capabilities EngineMemory::capabilities() const {
  if (edm_ != nullptr) return EdmPort::capabilities();
  return {.atomics = true, .ordered = paths_.size() == 1, .max_length = 1u << 20, .name = "simulated"};
}

void EngineMemory::submit(Operation& operation) {
  count(operation);
  paths_[turn_]->submitted.push_back(&operation);
  turn_ = (turn_ + 1) % paths_.size();
}

std::size_t EngineMemory::take() {
  if (edm_ != nullptr) return take_from_flow();
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
      complete(*operation, well ? remote::Status::kOk : remote::Status::kUnknown);
    }
  }
  return n;
}

std::size_t EngineMemory::take_from_flow() {
  Path& path = *paths_.front();
  std::size_t n = 0;
  while (n < kMostTaken && may_take(path)) {
    Operation* const operation = path.done.front();
    path.done.pop_front();
    --path.in_flow;
    if (operation->status != remote::Status::kOk) core_.problem_ = "an operation of the engine's failed";
    if (std::erase(path.signaled, operation) != 0) ++n;
    complete(*operation, operation->status);
  }
  return n;
}

// As with queue pairs: those before a completion are known by it.
bool EngineMemory::may_take(const Path& path) {
  if (path.done.size() == path.in_flow) return !path.done.empty();
  return std::ranges::any_of(path.done, [&](const Operation* operation) {
    return std::ranges::find(path.signaled, operation) != path.signaled.end();
  });
}

void EngineMemory::post(Time now, Duration& spent) {
  const HostParameters& host = core_.host();
  for (const auto& path : paths_) {
    if (path->submitted.empty()) continue;
    const std::size_t open = path->posted.size() + path->in_flow;
    std::size_t n = std::min({path->submitted.size(), kMostPosted, std::size_t{kDepth} - open});
    if (n == 0) continue;
    spent = spent + host.post_cost * static_cast<std::int64_t>(n) + host.doorbell_cost;
    for (; n > 0; --n) {
      Operation& operation = *path->submitted.front();
      path->submitted.pop_front();
      if (path->flow != nullptr) {
        ++path->in_flow;
        if (n == 1) path->signaled.push_back(&operation);
        edm_->submit(now + spent, *path->flow, operation);
        continue;
      }
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
  return std::ranges::any_of(paths_, [](const auto& path) {
    return may_take(*path) || (!path->submitted.empty() && path->posted.size() + path->in_flow < kDepth);
  });
}

CowbirdCore::CowbirdCore(Rack& rack, const HostParameters& host, Duration each)
    : rack_(rack), host_(host), each_(each) {}

void CowbirdCore::serve(cowbird::Engine& engine) {
  engines_.push_back(&engine);
  scheduler_.spawn(engine.run());
}

std::uint64_t CowbirdCore::carried_out() const {
  std::uint64_t sum = 0;
  for (const cowbird::Engine* const engine : engines_) sum += engine->counters().reads + engine->counters().writes;
  return sum;
}

void CowbirdCore::fire(Time now) {
  Duration spent{};
  for (EngineMemory* const memory : memories_) {
    const std::size_t n = memory->take();
    if (n != 0) spent = spent + host_.poll_cost + host_.completion_cost * static_cast<std::int64_t>(n);
  }
  scheduler_.run(now, 1);  // the next one runs when this one has been paid for and what it submitted has left
  const std::uint64_t done = carried_out();
  spent = spent + each_ * static_cast<std::int64_t>(done - std::exchange(paid_for_, done));
  for (EngineMemory* const memory : memories_) memory->post(now, spent);
  busy_ = busy_ + spent;
  busy_until_ = now + std::max(spent, Duration::nanoseconds(1));
  if (std::ranges::any_of(memories_, [](const EngineMemory* memory) { return memory->waiting(); })) wake(now);
  if (const Time next = scheduler_.next_deadline(); next != Time::never()) wake(next);
}

}  // namespace sluice::sim
