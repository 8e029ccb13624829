#include "remote/local.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace sluice::remote {

// ---------------------------------------------------------------------------------------------------------- fabric

LocalFabric::LocalFabric(const LocalOptions& options) : options_(options), rng_(options.seed) {}
LocalFabric::~LocalFabric() = default;

NodeId LocalFabric::add_node() {
  nodes_.emplace_back();
  return NodeId(static_cast<std::uint32_t>(nodes_.size() - 1));
}

RemoteAddress LocalFabric::add_region(NodeId node, std::uint64_t base, std::size_t bytes, LocalRights rights) {
  SLUICE_CHECK(base % 8 == 0 && node.value < nodes_.size());
  auto& regions = nodes_[node.value].regions;
  Region region{.base = base, .length = bytes, .rights = rights, .bytes = {}};
  region.bytes.reset(static_cast<std::uint8_t*>(std::calloc(bytes, 1)));  // pages that are never touched cost nothing
  SLUICE_CHECK(region.bytes != nullptr);
  regions.push_back(std::move(region));
  // Keys of different nodes and regions differ, so that a mixed-up key is refused.
  const auto number = nodes_[node.value].lost + regions.size();
  SLUICE_CHECK(number <= 0xFFF);
  const auto key = RegionKey((node.value + 1) * 0x1000 + static_cast<std::uint32_t>(number));
  return {node, key, base};
}

void LocalFabric::kill_node(NodeId node) {
  SLUICE_CHECK(node.value < nodes_.size());
  if (alive(node)) stop_node(node);
  nodes_[node.value].lost += nodes_[node.value].regions.size();
  nodes_[node.value].regions.clear();
}

void LocalFabric::stop_node(NodeId node) {
  SLUICE_CHECK(alive(node));
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (links_[i]->leads_to(node)) links_[i]->disconnect();
  }
  std::erase_if(stragglers_, [node](const Straggler& s) { return s.operation.remote.node == node; });
  nodes_[node.value].alive = false;
}

RemoteAddress LocalFabric::resume_node(RemoteAddress region) {
  SLUICE_CHECK(!alive(region.node));
  Node& node = nodes_.at(region.node.value);
  const auto shift = static_cast<std::uint32_t>(node.regions.size());
  node.alive = true;
  node.lost += shift;
  return {region.node, RegionKey(region.key.value + shift), region.address};
}

void LocalFabric::restart_node(NodeId node) {
  SLUICE_CHECK(!alive(node));
  nodes_.at(node.value).alive = true;
}

bool LocalFabric::alive(NodeId node) const { return node.value < nodes_.size() && nodes_[node.value].alive; }

MutableBytes LocalFabric::region_bytes(RemoteAddress region) {
  auto& node = nodes_.at(region.node.value);
  auto& r = node.regions.at((region.key.value & 0xFFF) - 1 - node.lost);
  return {r.bytes.get(), r.length};
}

Status LocalFabric::resolve(const Operation& operation, std::uint8_t*& at) {
  const auto& remote = operation.remote;
  if (remote.node.value >= nodes_.size()) return Status::kNodeUnknown;
  auto& node = nodes_[remote.node.value];
  if (!node.alive) return Status::kUnreachable;
  const bool atomic = operation.is_atomic();
  if (atomic && remote.address % 8 != 0) return Status::kMisaligned;
  const std::size_t length = atomic ? 8 : operation.local.size();
  if (length > options_.max_length) return Status::kTooLong;
  const std::size_t index = (remote.key.value & 0xFFF) - 1 - node.lost;  // wraps for keys of lives before
  if (remote.key.value >> 12 != remote.node.value + 1 || index >= node.regions.size()) return Status::kAccessDenied;
  auto& region = node.regions[index];
  if (remote.address < region.base || remote.address - region.base > region.length ||
      region.length - (remote.address - region.base) < length) {
    return Status::kAccessDenied;
  }
  const auto& rights = region.rights;
  const bool granted = atomic ? rights.atomic : operation.kind == OpKind::kRead ? rights.read : rights.write;
  if (!granted) return Status::kAccessDenied;
  at = region.bytes.get() + (remote.address - region.base);
  return Status::kOk;
}

void LocalFabric::execute(Operation& operation, std::uint8_t* at, std::size_t offset, std::size_t length) {
  switch (operation.kind) {
    case OpKind::kRead:
      if (length != 0) std::memcpy(operation.local.data() + offset, at + offset, length);
      return;
    case OpKind::kWrite:
      if (length != 0) std::memcpy(at + offset, operation.local.data() + offset, length);
      return;
    case OpKind::kCompareAndSwap:
      operation.prior = load_le<std::uint64_t>(at);
      if (operation.prior == operation.compare) store_le(at, operation.swap_or_add);
      return;
    case OpKind::kFetchAndAdd:
      operation.prior = load_le<std::uint64_t>(at);
      store_le(at, operation.prior + operation.swap_or_add);
      return;
  }
}

Status LocalFabric::execute_whole(Operation& operation) {
  std::uint8_t* at = nullptr;
  const auto status = resolve(operation, at);
  if (status == Status::kOk) execute(operation, at, 0, operation.local.size());
  return status;
}

bool LocalFabric::keep_straggler(const Operation& operation, Time& earliest) {
  if (operation.kind == OpKind::kRead) return true;
  if (options_.straggler_lifetime == Duration{} || rng_.below(2) == 0) return false;
  const auto delay = rng_.below(static_cast<std::uint64_t>(options_.straggler_lifetime.picoseconds()) + 1);
  Straggler s{.operation = operation,
              .bytes = {operation.local.begin(), operation.local.end()},
              .due = now_ + Duration::picoseconds(static_cast<std::int64_t>(delay))};
  s.operation.local = s.bytes;
  if (options_.stragglers_in_order) earliest = s.due = std::max(earliest, s.due);
  stragglers_.push_back(std::move(s));
  return true;
}

void LocalFabric::pump_stragglers() {
  for (auto& s : stragglers_) {
    if (s.due <= now_) execute_whole(s.operation);
  }
  std::erase_if(stragglers_, [this](const Straggler& s) { return s.due <= now_; });
}

bool LocalFabric::pump(Time now) {
  now_ = now;
  if (!stragglers_.empty()) pump_stragglers();
  if (busy_.empty()) return false;
  auto& link = *busy_[rng_.below(busy_.size())];
  if (options_.disconnect_per_million != 0 && rng_.chance_per_million(options_.disconnect_per_million)) {
    link.disconnect();
  } else {
    link.step();
  }
  return true;
}

void LocalFabric::set_busy(detail::LocalLink& link) {
  link.place_ = busy_.size();
  busy_.push_back(&link);
}

void LocalFabric::set_idle(detail::LocalLink& link) {
  busy_[link.place_] = busy_.back();
  busy_[link.place_]->place_ = link.place_;
  busy_.pop_back();
}

// ------------------------------------------------------------------------------------------------------------ links

namespace detail {

LocalLink::LocalLink(LocalFabric& fabric) : fabric_(fabric) { fabric_.links_.push_back(this); }

LocalLink::~LocalLink() {
  if (in_flight_ != 0) fabric_.set_idle(*this);
  std::erase(fabric_.links_, this);
}

void LocalLink::arrived() {
  if (in_flight_++ == 0) fabric_.set_busy(*this);
}

void LocalLink::left() {
  if (--in_flight_ == 0) fabric_.set_idle(*this);
}

void LocalLink::step() {
  const bool can_execute = executed_ < in_flight_;
  const bool can_report = executed_ > 0;
  if (can_execute && (!can_report || fabric_.rng_.below(2) == 0)) {
    if (execute_next()) ++executed_;
    return;
  }
  --executed_;
  left();
  report_oldest();
}

void LocalLink::end(bool silently) {
  // A prefix has executed when the connection goes.
  auto more = in_flight_ == executed_ ? 0 : fabric_.rng_.below(in_flight_ - executed_ + 1);
  while (more > 0 && executed_ < in_flight_) {
    if (execute_next()) {
      ++executed_;
      --more;
    }
  }
  // A completion may submit again; that belongs to the new connection.
  const std::size_t executed = executed_;
  const std::size_t all = in_flight_;
  executed_ = 0;
  straggling_ = true;
  straggle_from_ = Time();
  for (std::size_t i = 0; i < all; ++i) {
    left();
    abandon_oldest(i < executed, silently);
  }
}

void LocalLink::disconnect() { end(false); }
void LocalLink::vanish() { end(true); }

}  // namespace detail

// ----------------------------------------------------------------------------------------------------------- memory

class LocalMemory::Lane : public detail::LocalLink {
 public:
  Lane(LocalFabric& fabric, NodeId node) : LocalLink(fabric), node_(node) {}

  void push(Operation& operation) {
    operation.status = Status::kOk;
    queue_.push_back(&operation);
    arrived();
  }
  bool leads_to(NodeId node) const override { return node == node_; }
  void set_cut(bool cut) { cut_ = cut; }
  bool is_cut() const { return cut_; }

 private:
  bool execute_next() override {
    auto& operation = *queue_[executed_];
    if (cut_) {
      operation.status = Status::kUnreachable;
      return true;
    }
    std::uint8_t* at = nullptr;
    operation.status = fabric_.resolve(operation, at);
    if (operation.status != Status::kOk) return true;
    const std::size_t length = operation.local.size();
    const std::size_t piece = fabric_.options_.piece_bytes;
    if (piece == 0 || length <= piece) {
      fabric_.execute(operation, at, 0, length);
      return true;
    }
    const std::size_t now = std::min(piece, length - progress_);
    fabric_.execute(operation, at, progress_, now);
    progress_ += now;
    if (progress_ < length) return false;
    progress_ = 0;
    return true;
  }
  void report_oldest() override {
    auto& operation = *take();
    complete(operation, operation.status);
  }
  void abandon_oldest(bool has_executed, bool silently) override {
    auto& operation = *take();
    if (!has_executed) {
      progress_ = 0;
      const bool kept = straggling_ && fabric_.keep_straggler(operation, straggle_from_);
      straggling_ = kept || !fabric_.options().stragglers_in_order;
    }
    // What was refused before the connection went stays refused.
    const bool refused = has_executed && operation.status != Status::kOk;
    if (!silently) complete(operation, refused ? operation.status : Status::kUnknown);
  }
  Operation* take() {
    auto* const operation = queue_.front();
    queue_.pop_front();
    return operation;
  }

  NodeId node_;
  std::deque<Operation*> queue_;
  std::size_t progress_ = 0;  // bytes done of queue_[executed_]
  bool cut_ = false;
};

LocalMemory::LocalMemory(Scheduler& scheduler, LocalFabric& fabric) : RemoteMemory(scheduler), fabric_(fabric) {}
LocalMemory::~LocalMemory() = default;

Capabilities LocalMemory::capabilities() const {
  const LocalOptions& o = fabric_.options_;
  const bool ordered = o.straggler_lifetime == Duration{} || o.stragglers_in_order;
  return {.atomics = true, .ordered = ordered, .max_length = o.max_length, .name = "local"};
}

LocalMemory::Lane* LocalMemory::lane(NodeId node) {
  while (lanes_.size() <= node.value) {
    lanes_.push_back(std::make_unique<Lane>(fabric_, NodeId(static_cast<std::uint32_t>(lanes_.size()))));
  }
  return lanes_[node.value].get();
}

void LocalMemory::submit(Operation& operation) {
  if (killed_) return;
  count(operation);
  if (fabric_.options_.mode == LocalMode::kImmediate) {
    const std::uint32_t node = operation.remote.node.value;
    const bool cut = node < lanes_.size() && lanes_[node]->is_cut();
    return complete(operation, cut ? Status::kUnreachable : fabric_.execute_whole(operation));
  }
  if (operation.remote.node.value >= fabric_.nodes_.size()) return complete(operation, Status::kNodeUnknown);
  lane(operation.remote.node)->push(operation);
}

void LocalMemory::disconnect(NodeId node) {
  if (node.value < lanes_.size()) lanes_[node.value]->disconnect();
}

void LocalMemory::cut(NodeId node) {
  lane(node)->disconnect();
  lane(node)->set_cut(true);
}

void LocalMemory::mend(NodeId node) { lane(node)->set_cut(false); }

void LocalMemory::kill() {
  killed_ = true;
  for (const auto& lane : lanes_) lane->vanish();
}

// ---------------------------------------------------------------------------------------------------------- channel

class LocalChannel::Lane : public detail::LocalLink {
 public:
  Lane(LocalFabric& fabric, LocalChannel& channel) : LocalLink(fabric), channel_(channel) {}

  void push(Call& call) {
    queue_.push_back(&call);
    arrived();
  }
  static void serve(Call& call, MessageService* service, Time now) {
    if (service == nullptr) {
      call.result = {Status::kUnreachable, 0};
      return;
    }
    std::uint8_t answer[kMaxMessage];
    const std::size_t length = service->handle(now, call.request, answer);
    SLUICE_CHECK(length <= kMaxMessage);
    const bool fits = length <= call.response.size();
    if (fits && length != 0) std::memcpy(call.response.data(), answer, length);
    call.result = {fits ? Status::kOk : Status::kTooLong, fits ? length : 0};
  }

 private:
  bool execute_next() override {
    serve(*queue_[executed_], channel_.service_, fabric_.now_);
    return true;
  }
  void report_oldest() override {
    auto& call = *take();
    call.on_complete(call);
  }
  void abandon_oldest(bool has_executed, bool silently) override {
    auto& call = *take();
    if (!has_executed || call.result.status == Status::kOk) call.result = {Status::kUnknown, 0};
    if (!silently) call.on_complete(call);
  }
  Call* take() {
    auto* const call = queue_.front();
    queue_.pop_front();
    return call;
  }

  LocalChannel& channel_;
  std::deque<Call*> queue_;
};

LocalChannel::LocalChannel(Scheduler& scheduler, LocalFabric& fabric, MessageService& service)
    : MessageChannel(scheduler), fabric_(fabric), lane_(std::make_unique<Lane>(fabric, *this)), service_(&service) {}
LocalChannel::~LocalChannel() = default;

void LocalChannel::submit(Call& call) {
  if (killed_) return;
  if (fabric_.options_.mode == LocalMode::kSeeded) return lane_->push(call);
  Lane::serve(call, service_, scheduler().now());
  call.on_complete(call);
}

void LocalChannel::disconnect() { lane_->disconnect(); }

void LocalChannel::kill() {
  killed_ = true;
  lane_->vanish();
}

void LocalChannel::set_service(MessageService* service) { service_ = service; }

// ------------------------------------------------------------------------------------------------------------ running

Time run_until_idle(Scheduler& scheduler, LocalFabric& fabric, Time now, Time until, Duration step) {
  scheduler.run(now);
  while (scheduler.live() != 0 && now < until) {
    if (fabric.pump(now)) {
      now = now + step;
    } else {
      const Time next = scheduler.next_deadline();
      if (next == Time::never()) return now;  // all that is left waits for something that will not come
      now = std::max(now + step, next);
    }
    scheduler.run(now);
  }
  return now;
}

}  // namespace sluice::remote
