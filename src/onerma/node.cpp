#include "onerma/node.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::onerma {
namespace {

TargetConfig target_config(const NodeConfig& config) {
  TargetConfig target = config.target;
  target.mac = config.mac;
  target.ip = config.ip;
  target.boot = config.boot;
  target.allow_plain = config.allow_plain;
  return target;
}

std::shared_ptr<memory::RegionTable> table_of(const NodeConfig& config) {
  if (config.regions != nullptr) return config.regions;
  return std::make_shared<memory::RegionTable>(Rng(config.boot.value).fork("regions"));
}

}  // namespace

Node::Node(const NodeConfig& config)
    : mac_(config.mac),
      ip_(config.ip),
      window_(config.window_bytes),
      regions_(table_of(config), config.domain, config.cached_keys),
      initiator_({.mac = config.mac,
                  .ip = config.ip,
                  .boot = config.boot,
                  .slots = config.slots,
                  .protection = config.protection},
                 window_),
      target_(target_config(config), regions_, window_) {}

void Node::on_frame(Time now, port::Frame frame) {
  Message message;
  Verdict verdict = parse(frame.bytes(), message);
  if (verdict == Verdict::kOk && message.to != ip_) verdict = Verdict::kNotOurs;
  ++verdicts_[static_cast<std::size_t>(verdict)];
  if (verdict != Verdict::kOk) return;
  if (is_to_target(message.header.kind)) return target_.on_message(now, frame.mutable_bytes(), message);
  initiator_.on_message(now, frame.mutable_bytes(), message);
}

bool Node::poll_transmit(Time now, port::FrameSink& sink) {
  targets_turn_ = !targets_turn_;
  const auto target = [&] { return target_.poll_transmit(now, sink); };
  const auto initiator = [&] { return initiator_.poll_transmit(now, sink); };
  // The target comes again: reads may no longer want what of the window was kept for them, since their time was over. What it waits for
  // itself it wants until it has it.
  return targets_turn_ ? target() || initiator() || target() : initiator() || target();
}

Time Node::next_deadline() const { return std::min(initiator_.next_deadline(), target_.next_deadline()); }

void Node::on_deadline(Time now) {
  initiator_.on_deadline(now);
  target_.on_deadline(now);
}

}  // namespace sluice::onerma
