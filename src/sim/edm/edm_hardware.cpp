#include "sim/edm/edm_hardware.h"

#include "sim/world/fields.h"

namespace sluice::sim {

Result<EdmHardware> parse_edm_hardware(std::string text, const std::string& path) {
  const auto parsed = parse_toml(text, path);
  if (!parsed) return tl::unexpected(parsed.error());
  EdmHardware hardware;
  std::string error;
  Fields top(*parsed, path, "", error);
  top.text("name", hardware.name);
  const toml::node* const node = top.node("edm");
  if (node != nullptr && !node->is_table()) top.fail(*node, "edm", "must be a table");
  if (error.empty()) {
    Fields fields(*node->as_table(), path, "edm", error, Fields::Sources::kRequired);
    const auto stage = [&](std::string_view key, Duration& out, Fields::Need need = Fields::Need::kRequired) {
      fields.duration(key, out, Duration{}, kLongestStage, need);
    };
    fields.rate("bits_per_second", hardware.bits_per_second, kSlowestLinkMbps);
    stage("propagation", hardware.propagation);
    stage("host_latency", hardware.host_latency);
    stage("switch_latency", hardware.switch_latency);
    fields.duration("iteration", hardware.iteration, kShortestCycle, kLongestStage);
    stage("request_latency", hardware.request_latency, Fields::Need::kOptional);
    stage("notify_latency", hardware.notify_latency, Fields::Need::kOptional);
    stage("answer_latency", hardware.answer_latency, Fields::Need::kOptional);
    stage("receive_latency", hardware.receive_latency, Fields::Need::kOptional);
    fields.finish();
    if (error.empty() && hardware.hop_blocks() + hardware.host_blocks() == 0)
      top.fail(*node, "edm", "needs a propagation of a block at least");
    if (error.empty() && hardware.answer_blocks() < hardware.host_blocks())
      top.fail(*node, "answer_latency",
               "must not be under host_latency: a grant's way through a host is part of an answer's");
  }
  if (!top.finish()) return fail(error);
  hardware.text = std::move(text);
  return hardware;
}

Result<EdmHardware> load_edm_hardware(const std::string& path) {
  auto text = read_text(path);
  if (!text) return tl::unexpected(text.error());
  return parse_edm_hardware(std::move(*text), path);
}

}  // namespace sluice::sim
