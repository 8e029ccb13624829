#include "sim/edm/rival_fabric.h"

#include <algorithm>

namespace sluice::sim::rivals {

Fabric::Fabric(const EdmHardware& hardware, const RivalSettings& settings, const std::vector<TraceRow>& rows)
    : hardware_(hardware),
      settings_(settings),
      rows_(rows),
      hop_(hardware.hop_blocks()),
      switch_(hardware.switch_blocks()),
      nodes_(settings.nodes + 1),
      ports_(settings.nodes + 1) {
  outcome_.times.resize(rows.size());
  flows_.reserve(rows.size() * 2);
}

RivalOutcome Fabric::run(Protocol& protocol) {
  protocol_ = &protocol;
  if (!rows_.empty()) at(rows_.front().slot, What::kArrive, 0);
  while (!steps_.empty()) {
    const Step next = steps_.top();
    steps_.pop();
    ++outcome_.events;
    step(next);
  }
  for (const Flow& flow : flows_) SLUICE_CHECK(flow.finished >= 0 && flow.received == flow.bytes && flow.resend == 0);
  for (const MessageTimes& times : outcome_.times) SLUICE_CHECK(times.finished >= 0);
  outcome_.trace_hash = trace_.hash();
  return std::move(outcome_);
}

void Fabric::at(Blocks when, What what, std::uint32_t where, const Packet& packet) {
  steps_.push({when, order_++, what, where, packet});
}

void Fabric::step(const Step& step) {
  switch (step.what) {
    case What::kArrive: return arrive(step.when);
    case What::kNode:
      if (nodes_[step.where].wake != step.when) return;  // it was woken earlier
      nodes_[step.where].wake = kNeverBlocks;
      return send_from_node(step.when, step.where);
    case What::kAtSwitch: return at_switch(step.when, step.packet);
    case What::kPort:
      if (ports_[step.where].wake != step.when) return;
      ports_[step.where].wake = kNeverBlocks;
      return send_from_port(step.when, step.where);
    case What::kAtNode: return at_node(step.when, step.packet);
    case What::kAnswer: return answer(step.when, step.where);
    case What::kTimer: return protocol_->timer(step.when, step.where);
    case What::kLost: {
      flows_[step.packet.flow].resend += step.packet.bytes;
      return protocol_->lost(step.when, step.packet);
    }
  }
}

void Fabric::wake_node(Blocks when, std::uint32_t node) {
  if (when >= nodes_[node].wake) return;
  nodes_[node].wake = when;
  at(when, What::kNode, node);
}
void Fabric::wake_port(Blocks when, std::uint32_t port) {
  if (when >= ports_[port].wake) return;
  ports_[port].wake = when;
  at(when, What::kPort, port);
}
void Fabric::set_timer(Blocks when, std::uint32_t what) { at(when, What::kTimer, what); }

void Fabric::arrive(Blocks now) {
  for (; next_row_ < rows_.size() && rows_[next_row_].slot <= now; ++next_row_) {
    const TraceRow& row = rows_[next_row_];
    create(now, {.row = static_cast<std::uint32_t>(next_row_),
                 .request = row.reads(),
                 .source = row.source,
                 .destination = row.destination,
                 .bytes = row.bytes});
  }
  if (next_row_ < rows_.size()) at(rows_[next_row_].slot, What::kArrive, 0);
}

void Fabric::create(Blocks now, const Flow& flow) {
  constexpr std::uint32_t kShort = 256;  // as the published simulation draws the line
  const auto which = static_cast<std::uint32_t>(flows_.size());
  flows_.push_back(flow);
  flows_.back().created = now;
  if (!flow.request && !flow.answer && flow.bytes <= kShort) flows_.back().bytes += settings_.message_framing_bytes;
  protocol_->created(now, which);
}

Packet Fabric::packet_of(std::uint32_t which, std::uint32_t bytes) {
  const Flow& flow = flows_[which];
  return {.flow = which,
          .bytes = bytes,
          .blocks = data_blocks(bytes),
          .from = flow.source,
          .to = flow.destination,
          .remaining = flow.remaining()};
}

Packet Fabric::next_packet(std::uint32_t which) {
  Flow& flow = flows_[which];
  const std::uint32_t bytes = std::min(flow.to_send(), settings_.packet_bytes);
  SLUICE_CHECK(bytes > 0);
  (flow.resend != 0 ? flow.resend -= bytes : flow.sent += bytes);
  return packet_of(which, bytes);
}

void Fabric::send_control(Blocks now, const Packet& packet) {
  if (packet.blocks == 0) return at(now + hop_ * 2 + switch_, What::kAtNode, packet.to, packet);
  nodes_[packet.from].control.push_back(packet);
  wake_node(std::max(now, nodes_[packet.from].free_from), packet.from);
}

void Fabric::send_from_node(Blocks now, std::uint32_t node) {
  Queue& link = nodes_[node];
  if (link.free_from > now) return wake_node(link.free_from, node);
  Packet packet;
  if (!link.control.empty()) {
    packet = link.control.front();
    link.control.pop_front();
  } else {
    Blocks again = kNeverBlocks;
    if (node == arbiter() || !protocol_->pick(now, node, packet, again)) {
      if (again != kNeverBlocks) wake_node(again, node);
      return;
    }
  }
  if (!packet.control || packet.kind == 0) {
    Flow& flow = flows_[packet.flow];
    if (flow.started < 0) flow.started = now;
  }
  ++outcome_.packets;
  link.free_from = now + packet.blocks;
  at(now + through(), What::kAtSwitch, node, packet);
  wake_node(link.free_from, node);
}

void Fabric::at_switch(Blocks now, Packet packet) {
  if (!packet.control && !protocol_->admit(now, packet.to, packet)) return;
  enqueue(now, packet.to, packet);
}

void Fabric::enqueue(Blocks now, std::uint32_t which, const Packet& packet) {
  Queue& port = ports_[which];
  if (packet.control) {
    port.control.push_back(packet);
  } else {
    port.data.push_back(packet);
    port.queued += packet.blocks;
    outcome_.longest_queue = std::max(outcome_.longest_queue, port.queued);
    if (packet.marked) ++outcome_.marked;
  }
  wake_port(std::max(now, port.free_from), which);
}

void Fabric::drop(Blocks now, const Packet& packet) {
  ++outcome_.dropped;
  at(now + hardware_.blocks(settings_.retransmit_after), What::kLost, packet.from, packet);
}

void Fabric::send_from_port(Blocks now, std::uint32_t which) {
  Queue& port = ports_[which];
  if (port.free_from > now) return wake_port(port.free_from, which);
  Packet packet;
  if (!port.control.empty()) {
    packet = port.control.front();
    port.control.pop_front();
  } else {
    if (port.data.empty()) return;
    const std::size_t index = protocol_->take(port);
    packet = port.data[index];
    port.data.erase(port.data.begin() + static_cast<std::ptrdiff_t>(index));
    port.queued -= packet.blocks;
  }
  port.free_from = now + packet.blocks;
  at(now + hop_ + packet.blocks - 1, What::kAtNode, which, packet);
  wake_port(port.free_from, which);
  if (!packet.control) protocol_->left(now, which, packet);
}

void Fabric::at_node(Blocks now, const Packet& packet) {
  if (packet.control && packet.kind != 0) return protocol_->control(now, packet);
  Flow& flow = flows_[packet.flow];
  flow.received += packet.bytes;
  const std::uint32_t which = packet.flow;
  const bool whole = flow.received == flow.bytes && flow.finished < 0;
  if (whole) finish(now, flow);
  protocol_->delivered(now, packet);
  // The memory node's stack takes the same time as for EDM.
  if (whole && flows_[which].request) at(now + hardware_.host_blocks(), What::kAnswer, which);
}

void Fabric::answer(Blocks now, std::uint32_t request) {
  const std::uint32_t which = flows_[request].row;
  const TraceRow& row = rows_[which];
  create(
      now,
      {.row = which, .answer = true, .source = row.destination, .destination = row.source, .bytes = row.request_bytes});
}

void Fabric::finish(Blocks now, Flow& flow) {
  flow.finished = now;
  MessageTimes& times = outcome_.times[flow.row];
  trace_.note(static_cast<std::uint64_t>(now) << 32 ^ flow.row);
  if (flow.request) {
    times.requested = flow.started;
    times.demanded = now;
    return;
  }
  times.started = flow.started;
  times.finished = now;
}

}  // namespace sluice::sim::rivals
