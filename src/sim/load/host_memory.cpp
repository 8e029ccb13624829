#include "sim/load/host_memory.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "sim/edm/edm_memory.h"

namespace sluice::sim {

using remote::Operation;
using remote::OpKind;
using remote::Status;

namespace {

rc::SendOp send_op(OpKind kind) {
  switch (kind) {
    case OpKind::kRead: return rc::SendOp::kRead;
    case OpKind::kWrite: return rc::SendOp::kWrite;
    case OpKind::kCompareAndSwap: return rc::SendOp::kCompareAndSwap;
    case OpKind::kFetchAndAdd: return rc::SendOp::kFetchAndAdd;
  }
  return rc::SendOp::kWrite;
}

}  // namespace

rc::SendRequest request_of(Operation& operation, rc::Sge& sge) {
  const bool atomic = operation.kind == OpKind::kCompareAndSwap || operation.kind == OpKind::kFetchAndAdd;
  sge = rc::Sge::of(operation.local);
  if (atomic) sge = {reinterpret_cast<std::uintptr_t>(&operation.prior), sizeof operation.prior, memory::kReservedKey};
  return {.id = reinterpret_cast<std::uintptr_t>(&operation),
          .op = send_op(operation.kind),
          .sges = {&sge, 1},
          .remote_address = operation.remote.address,
          .remote_key = memory::Key{operation.remote.key.value},
          .compare = operation.compare,
          .swap_or_add = operation.swap_or_add};
}

SharedQueuePairs::SharedQueuePairs(Rack& rack, Rack::Machine& machine, Rack::Machine& server,
                                   rc::CompletionQueue& server_completions, std::uint32_t count, std::uint32_t depth)
    : completions_(*machine.make_completions(count * depth)) {
  for (std::uint32_t i = 0; i < count; ++i)
    pairs_.push_back(rack.connect({&machine, &completions_, this, depth}, {&server, &server_completions}).a);
}

std::uint64_t SharedQueuePairs::enter(Operation& operation, Listener& listener) {
  if (free_.empty()) {
    free_.push_back(open_.size());
    open_.emplace_back();
  }
  const std::uint64_t id = free_.back();
  free_.pop_back();
  open_[id] = {&operation, &listener};
  return id;
}

void SharedQueuePairs::on_completions(Time now) {
  std::array<rc::Completion, 16> found;
  while (const std::size_t n = completions_.poll(found)) {
    for (const rc::Completion& completion : std::span(found).first(n)) {
      const Open open = open_[completion.id];
      leave(completion.id);
      open.operation->status = completion.status == rc::CompletionStatus::kSuccess ? Status::kOk : Status::kUnknown;
      open.listener->on_done(now, *open.operation);
    }
  }
}

// One thread: its queue pairs, one a node, its flow, and the completions it is about to find.
class HostMemory::Thread final : public Event,
                                 public CompletionListener,
                                 public EdmPort::Listener,
                                 public SharedQueuePairs::Listener {
 public:
  Thread(HostMemory& owner, std::uint32_t number, rc::CompletionQueue* completions)
      : owner_(owner), number_(number), completions_(completions), poster_(owner, *this) {}

  rc::CompletionQueue* completions() const { return completions_; }
  struct Way {
    rc::QueuePair* pair = nullptr;
    SharedQueuePairs* shared = nullptr;  // the pair is one of these
  };
  void set_way(remote::NodeId node, const Way& way) {
    if (node.value >= ways_.size()) ways_.resize(node.value + 1);
    ways_[node.value] = way;
  }
  Way way(remote::NodeId node) const { return node.value < ways_.size() ? ways_[node.value] : Way(); }
  void set_flow(remote::NodeId node, EdmPort& port) {
    if (flow_ == nullptr) flow_ = port.make_flow(*this);
    if (node.value >= over_edm_.size()) over_edm_.resize(node.value + 1);
    over_edm_[node.value] = true;
  }
  EdmPort::Flow* flow(remote::NodeId node) const {
    return node.value < over_edm_.size() && over_edm_[node.value] ? flow_ : nullptr;
  }

  // Times never decrease.
  void post_at(Time when, Operation& operation, const Way& way) {
    poster_.waiting.push_back({when, &operation, way});
    if (!poster_.scheduled()) owner_.rack_.loop.schedule(poster_, when);
  }

  // The completions are in host memory: the thread will have found and handled them once it has been free for long enough.
  void on_completions(Time now) override {
    if (scheduled()) return;  // it looks again when it is through with what it has
    const HostParameters& host = owner_.cpu_.host();
    const std::size_t most = std::min(host.poll_batch, found_.size());
    std::array<rc::Completion, kMostFound> polled;
    const std::size_t n = completions_->poll(std::span(polled).first(most));
    for (found_count_ = 0; found_count_ < n; ++found_count_) {
      const bool done = polled.at(found_count_).status == rc::CompletionStatus::kSuccess;
      found_.at(found_count_) = {reinterpret_cast<Operation*>(polled.at(found_count_).id),
                                 done ? Status::kOk : Status::kUnknown};
    }
    for (; found_count_ < most && !done_.empty(); done_.pop_front())
      found_.at(found_count_++) = {done_.front(), done_.front()->status};
    if (found_count_ == 0) return;
    const Duration cost = host.poll_cost + host.completion_cost * static_cast<std::int64_t>(found_count_);
    owner_.rack_.loop.schedule(*this, owner_.cpu_.finish_of(owner_.first_ + number_, now, cost));
  }
  void on_done(Time now, Operation& operation) override {
    done_.push_back(&operation);
    on_completions(now);
  }

 private:
  static constexpr std::size_t kMostFound = HostParameters::kMostPolled;
  struct Found {
    Operation* operation = nullptr;
    Status status{};
  };

  // Posts when it is time.
  class Poster final : public Event {
   public:
    Poster(HostMemory& owner, Thread& thread) : owner_(owner), thread_(thread) {}
    struct Waiting {
      Time when;
      Operation* operation = nullptr;
      Way way;
    };
    std::deque<Waiting> waiting;

   private:
    void fire(Time now) override {
      for (; !waiting.empty() && waiting.front().when <= now; waiting.pop_front()) post(now, waiting.front());
      if (!waiting.empty()) owner_.rack_.loop.schedule(*this, waiting.front().when);
    }
    void post(Time now, const Waiting& next) {
      Nic& nic = owner_.machine_.nic;
      rc::Sge sge;
      rc::SendRequest request = request_of(*next.operation, sge);
      request.id = next.way.shared->enter(*next.operation, thread_);
      if (nic.post(now, nic.doorbell_latency(), *next.way.pair, request) == rc::PostError::kNone) return;
      next.way.shared->leave(request.id);
      next.operation->status = Status::kUnreachable;
      thread_.on_done(now, *next.operation);
    }
    HostMemory& owner_;
    Thread& thread_;
  };

  void fire(Time now) override {
    for (std::size_t i = 0; i < found_count_; ++i) complete(*found_.at(i).operation, found_.at(i).status);
    owner_.run(now, number_);
    on_completions(now);
  }

  HostMemory& owner_;
  std::uint32_t number_;
  rc::CompletionQueue* completions_;
  std::vector<Way> ways_;  // by node
  EdmPort::Flow* flow_ = nullptr;
  std::vector<bool> over_edm_;   // by node
  std::deque<Operation*> done_;  // over EDM or a shared queue pair, and not found yet
  Poster poster_;
  std::array<Found, kMostFound> found_;
  std::size_t found_count_ = 0;
};

// Wakes coroutines that wait for a time.
class HostMemory::Sleeper final : public Event {
 public:
  explicit Sleeper(HostMemory& owner) : owner_(owner) {}
  void fire(Time now) override { owner_.run(now, 0); }

 private:
  HostMemory& owner_;
};

HostMemory::HostMemory(remote::Scheduler& scheduler, Rack& rack, Rack::Machine& machine, Cpu& cpu, HostThreads threads,
                       StepCost step)
    : RemoteMemory(scheduler),
      rack_(rack),
      machine_(machine),
      cpu_(cpu),
      first_(threads.first),
      step_(step),
      chance_(Rng(rack.seed()).fork("step").fork(machine.nic.number()).fork(threads.first)),
      sleeper_(std::make_unique<Sleeper>(*this)) {
  for (std::uint32_t i = 0; i < threads.count; ++i) {
    threads_.push_back(std::make_unique<Thread>(*this, i, machine.make_completions(256)));
  }
}

HostMemory::~HostMemory() = default;

void HostMemory::connect(remote::NodeId node, Rack::Machine& server, rc::CompletionQueue& server_completions) {
  for (const auto& thread : threads_) {
    const auto made =
        rack_.connect({&machine_, thread->completions(), thread.get(), kDepth}, {&server, &server_completions});
    thread->set_way(node, {made.a, nullptr});
  }
}

void HostMemory::connect(remote::NodeId node, SharedQueuePairs& pairs) {
  for (std::uint32_t i = 0; i < threads_.size(); ++i) threads_[i]->set_way(node, {&pairs.pair_of(first_ + i), &pairs});
}

void HostMemory::connect(remote::NodeId node, EdmPort& port) {
  SLUICE_CHECK(edm_ == nullptr || edm_ == &port);
  edm_ = &port;
  for (const auto& thread : threads_) thread->set_flow(node, port);
}

remote::Capabilities HostMemory::capabilities() const {
  if (edm_ != nullptr) return EdmPort::capabilities();
  return {.atomics = true, .ordered = true, .max_length = 1u << 20, .name = "simulated"};
}

Duration around(Duration mean, std::uint64_t spread_percent, Rng& chance) {
  const std::int64_t most = mean.picoseconds() * static_cast<std::int64_t>(spread_percent) / 100;
  if (most == 0) return mean;
  const auto more = static_cast<std::int64_t>(chance.below(static_cast<std::uint64_t>(2 * most + 1)));
  return mean - Duration::picoseconds(most - more);
}

void HostMemory::submit(Operation& operation) {
  count(operation);
  Thread& thread = *threads_[current_];
  const Thread::Way way = thread.way(operation.remote.node);
  EdmPort::Flow* const flow = thread.flow(operation.remote.node);
  if (way.pair == nullptr && flow == nullptr) return complete(operation, Status::kNodeUnknown);
  const Time now = rack_.loop.now();
  const HostParameters& host = cpu_.host();
  const bool more = step_.of == StepCost::Of::kBatch && submitter_ == current_;  // of what is posted at once
  submitter_ = current_;
  Duration cost =
      more ? host.post_cost : around(step_.cost, step_.spread_percent, chance_) + host.post_cost + host.doorbell_cost;
  if (operation.kind == OpKind::kCompareAndSwap) cost = cost + step_.swap;
  const Time posted = cpu_.finish_of(first_ + current_, now, cost);
  if (flow != nullptr) return edm_->submit(posted, *flow, operation);
  rc::Sge sge;
  // On a queue pair of others, too, it takes its place when it is posted, and not while its thread has yet to come to that.
  if (way.shared != nullptr) return thread.post_at(posted, operation, way);
  const rc::SendRequest request = request_of(operation, sge);
  const auto error = machine_.nic.post(now, posted - now + machine_.nic.doorbell_latency(), *way.pair, request);
  if (error != rc::PostError::kNone) complete(operation, Status::kUnreachable);
}

void HostMemory::run(Time now, std::uint32_t thread) {
  current_ = thread;
  submitter_ = kNobody;
  scheduler().run(now);
  machine_.nic.touched(now, cpu_.host().doorbell_cost + machine_.nic.doorbell_latency());
  wake_at(std::max(scheduler().next_deadline(), now + Duration::nanoseconds(1)));
  for (HostMemory* const neighbor : neighbors_) {
    const remote::Scheduler& other = neighbor->scheduler();
    if (neighbor != this && other.next_deadline() <= other.now()) neighbor->wake_at(now);  // something is ready
  }
}

void HostMemory::wake_at(Time when) {
  if (when != Time::never()) rack_.loop.schedule_no_later(*sleeper_, when);
}

}  // namespace sluice::sim
