#include "sim/edm/edm_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace sluice::sim {

using remote::Operation;
using remote::OpKind;
using remote::Status;

namespace {

bool is_atomic(OpKind kind) { return kind == OpKind::kCompareAndSwap || kind == OpKind::kFetchAndAdd; }

edm::HostConfig host_config(const EdmFabric& fabric, const EdmPortSettings& settings, edm::PortId port) {
  return {.port = port,
          .cycle = fabric.hardware().cycle,
          .dram = settings.dram,
          .memory_time = edm::MemoryTime::kEachChunk,
          .read_timer = settings.read_timer,
          .chunk_bytes = fabric.settings().chunk_bytes,
          .block = fabric.hardware().block(),
          .keeps_written = false};
}

}  // namespace

class EdmPort::Flow {
 public:
  explicit Flow(Listener& to) : listener(to) {}

  Listener& listener;
  std::map<remote::NodeId, Lane> lanes;
};

EdmPort::EdmPort(EdmFabric& fabric, const EdmRegions& regions, const EdmPortSettings& settings, MutableBytes memory)
    : fabric_(fabric),
      regions_(regions),
      settings_(settings),
      port_(fabric.attach(*this)),
      stack_(host_config(fabric, settings, port_), memory) {}

EdmPort::~EdmPort() = default;

EdmPort::Flow* EdmPort::make_flow(Listener& listener) {
  return flows_.emplace_back(std::make_unique<Flow>(listener)).get();
}

void EdmPort::submit(Time at, Flow& flow, Operation& operation) {
  ++open_;
  submitted_.push({at + settings_.submit_latency, order_++, {&operation, &flow}});
  schedule();
}

void EdmPort::deliver(Time now, Time first_block, const edm::Unit& unit) {
  if (dead_) return;
  stack_.take(first_block, now, unit);
  turn(now);
}

void EdmPort::schedule() {
  Time next = stack_.next_deadline();
  if (!submitted_.empty()) next = std::min(next, submitted_.top().at);
  if (!ended_.empty()) next = std::min(next, ended_.front().at);
  if (next != Time::never()) fabric_.loop().schedule_no_later(event_, next);
}

void EdmPort::turn(Time now) {
  if (dead_) return;
  for (; !submitted_.empty() && submitted_.top().at <= now; submitted_.pop()) arrived(now, submitted_.top().item);
  stack_.on_deadline(now);
  for (bool more = true; more;) {
    more = start_some(now);
    for (edm::Unit unit; stack_.poll(now, unit);) fabric_.send(now, port_, unit);
    more = collect_left() || more;
    more = collect_done(now) || more;
  }
  while (!ended_.empty() && ended_.front().at <= now) {
    const Item item = ended_.front().item;
    ended_.pop_front();
    --open_;
    item.flow->listener.on_done(now, *item.operation);
  }
  schedule();
}

Status EdmPort::judge(const Operation& operation) const {
  const auto found = regions_.by_node.find(operation.remote.node);
  if (found == regions_.by_node.end()) return Status::kNodeUnknown;
  const EdmRegions::Region& region = found->second;
  const std::uint64_t bytes = is_atomic(operation.kind) ? 8 : operation.local.size();
  if (bytes > kMaxLength) return Status::kTooLong;
  const std::uint64_t offset = operation.remote.address - region.base;
  if (operation.remote.key != region.key || operation.remote.address < region.base || bytes > region.bytes ||
      offset > region.bytes - bytes)
    return Status::kAccessDenied;
  if (is_atomic(operation.kind) && operation.remote.address % 8 != 0) return Status::kMisaligned;
  return Status::kOk;
}

EdmPort::Peer& EdmPort::peer_of(remote::NodeId node) {
  Peer& peer = peers_[node];
  peer.region = &regions_.by_node.at(node);
  return peer;
}

void EdmPort::arrived(Time now, const Item& item) {
  const Operation& operation = *item.operation;
  if (const Status status = judge(operation); status != Status::kOk) return end(now, item, status);
  if (!is_atomic(operation.kind) && operation.local.empty()) return end(now, item, Status::kOk);
  Lane& lane = item.flow->lanes[operation.remote.node];
  lane.waiting.push_back(item);
  advance(lane, peer_of(operation.remote.node));
}

// Lets those of a lane have their turn that need not wait for what went before.
void EdmPort::advance(Lane& lane, Peer& peer) {
  for (; !lane.waiting.empty(); lane.waiting.pop_front()) {
    const Item& item = lane.waiting.front();
    if (item.operation->kind == OpKind::kWrite) {
      if (lane.atomics != 0) return;
      ++lane.writes;
      peer.writes.push_back(item);
    } else {
      if (lane.writes != 0) return;
      if (is_atomic(item.operation->kind)) ++lane.atomics;
      peer.reads.push_back(item);
    }
  }
}

// As many as X allows. False: none.
bool EdmPort::start_some(Time now) {
  const std::uint32_t most = fabric_.settings().active_per_pair;
  bool some = false;
  for (auto& [node, peer] : peers_) {
    for (; !peer.reads.empty() && peer.active_reads < most; some = true) start_read(now, peer);
    for (; !peer.writes.empty() && peer.leaving.size() < most; some = true) start_write(now, peer);
  }
  return some;
}

void EdmPort::start_read(Time now, Peer& peer) {
  const Item item = peer.reads.front();
  peer.reads.pop_front();
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(asked_.size()));
    asked_.emplace_back();
  }
  const std::uint32_t tag = free_.back();
  free_.pop_back();
  asked_[tag] = {item, &peer, peer.left};
  ++peer.active_reads;
  const edm::PortId to = peer.region->port;
  if (item.operation == nullptr) {
    ++confirmations_;
    SLUICE_CHECK(stack_.read(now, to, peer.confirm_at, 1, tag));
    return;
  }
  const Operation& operation = *item.operation;
  const std::uint64_t address = operation.remote.address - peer.region->base;
  bool taken = false;
  if (operation.kind == OpKind::kRead) {
    taken = stack_.read(now, to, address, static_cast<std::uint32_t>(operation.local.size()), tag);
  } else {
    const bool swaps = operation.kind == OpKind::kCompareAndSwap;
    const edm::ModifyOp op = swaps ? edm::ModifyOp::kCompareAndSwap : edm::ModifyOp::kFetchAndAdd;
    taken = stack_.modify(now, to, address, op, operation.swap_or_add, operation.compare, tag);
  }
  SLUICE_CHECK(taken);  // X is less than there are message ids
}

void EdmPort::start_write(Time now, Peer& peer) {
  const Item item = peer.writes.front();
  peer.writes.pop_front();
  peer.leaving.push_back(item);
  const Operation& operation = *item.operation;
  SLUICE_CHECK(stack_.write(now, peer.region->port, operation.remote.address - peer.region->base,
                            {operation.local.begin(), operation.local.end()}));
}

// Writes that have left with their last chunk: what waited for that goes on, and somebody has to say that they have come.
bool EdmPort::collect_left() {
  bool some = false;
  for (auto& [node, peer] : peers_) {
    const std::uint64_t left = stack_.writes_left(peer.region->port);
    const bool new_ones = peer.left < left;
    while (peer.left < left) {
      const Item item = peer.leaving.front();
      peer.leaving.pop_front();
      ++peer.left;
      peer.unconfirmed.push_back(item);
      peer.confirm_at = item.operation->remote.address - peer.region->base;
      Lane& lane = item.flow->lanes[node];
      --lane.writes;
      advance(lane, peer);
    }
    if (new_ones && peer.reads.empty()) peer.reads.push_back({});
    some = some || new_ones;
  }
  return some;
}

bool EdmPort::collect_done(Time now) {
  bool some = false;
  for (edm::Done done; stack_.poll_done(done); some = true) {
    const Asked asked = asked_.at(done.tag);
    free_.push_back(static_cast<std::uint32_t>(done.tag));
    Peer& peer = *asked.peer;
    --peer.active_reads;
    const Status status = done.null ? Status::kUnknown : Status::kOk;
    const Time at = std::max(now, done.last_block);
    confirm(at, peer, asked.covers, status);
    if (asked.item.operation == nullptr) continue;
    Operation& operation = *asked.item.operation;
    if (is_atomic(operation.kind)) {
      Lane& lane = asked.item.flow->lanes[operation.remote.node];
      --lane.atomics;
      advance(lane, peer);
      if (!done.null) operation.prior = load_le<std::uint64_t>(done.data.data());
    } else if (!done.null) {
      std::ranges::copy(done.data, operation.local.begin());
    }
    end(at, asked.item, status);
  }
  return some;
}

// Of the writes that have left, the first `up_to` ones.
void EdmPort::confirm(Time at, Peer& peer, std::uint64_t up_to, Status status) {
  while (!peer.unconfirmed.empty() && peer.left - peer.unconfirmed.size() < up_to) {
    end(at, peer.unconfirmed.front(), status);
    peer.unconfirmed.pop_front();
  }
}

void EdmPort::end(Time at, const Item& item, Status status) {
  item.operation->status = status;
  const Time when = at + settings_.completion_latency;
  ended_.push_back({ended_.empty() ? when : std::max(when, ended_.back().at), item});
}

EdmMemory::EdmMemory(remote::Scheduler& scheduler, EventLoop& loop, EdmPort& port)
    : RemoteMemory(scheduler), loop_(loop), port_(port), flow_(port.make_flow(*this)) {
  loop_.schedule(event_, loop_.now());
}

remote::Capabilities EdmMemory::capabilities() const { return EdmPort::capabilities(); }

remote::Capabilities EdmPort::capabilities() {
  return {.atomics = true, .ordered = true, .max_length = kMaxLength, .name = "edm"};
}

void EdmMemory::submit(Operation& operation) {
  count(operation);
  port_.submit(loop_.now(), *flow_, operation);
}

void EdmMemory::on_done(Time now, Operation& operation) {
  complete(operation, operation.status);
  loop_.schedule_no_later(event_, now);
}

// The program's coroutines, at once and as they wake.
void EdmMemory::run(Time now) {
  scheduler().run(now);
  if (const Time next = scheduler().next_deadline(); next != Time::never()) loop_.schedule_no_later(event_, next);
}

void EdmChoice::read(Fields& f) {
  f.choice("edm_host", host, {"bus", "near"}, Fields::Need::kOptional);
  f.integer("edm_active", active, 1, 127, Fields::Need::kOptional);
}

std::string edm_lacks_ports(std::uint64_t machines) {
  if (machines <= edm::kMaxPorts) return {};
  return fmt::format("EDM's switch has {} ports, and with the memory's there are {} machines", edm::kMaxPorts,
                     machines);
}

EdmSide::EdmSide(EventLoop& loop, Trace& trace, const Hardware& hardware, const EdmChoice& choice, std::uint32_t ports)
    : settings_{.dram = hardware.edm->dram},
      fabric_(loop, trace, *hardware.edm,
              {.ports = ports, .active_per_pair = static_cast<std::uint32_t>(choice.active)}) {
  if (choice.host == "near") return;
  settings_.submit_latency = hardware.nic.doorbell_latency;
  settings_.completion_latency = hardware.nic.completion_latency;
}

EdmPort& EdmSide::add(MutableBytes memory) {
  return *ports_.emplace_back(std::make_unique<EdmPort>(fabric_, regions_, settings_, memory));
}

EdmPort& EdmSide::add_memory(const remote::RemoteAddress& at, MutableBytes bytes) {
  EdmPort& port = add(bytes);
  regions_.by_node[at.node] = {port.port(), at.key, at.address, bytes.size()};
  return port;
}

bool EdmSide::at_rest() const {
  return std::ranges::all_of(ports_, [](const auto& port) { return port->open() == 0; });
}

}  // namespace sluice::sim
