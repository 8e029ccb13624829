#include "swordbox/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "wire/frame.h"
#include "wire/text.h"

namespace sluice::swordbox {

class Explainer::Collector final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    room_.resize(length);
    return room_.data();
  }
  void commit(std::size_t length) override {
    text_ += fmt::format("  sent:  {}\n", wire::describe({room_.data(), length}));
  }
  std::string take() { return std::exchange(text_, {}); }

 private:
  std::vector<std::uint8_t> room_;
  std::string text_;
};

Explainer::Explainer(const BoxConfig& box, const std::optional<CloverConfig>& rule)
    : box_(box), outbox_(std::make_unique<Collector>()) {
  if (rule) box_.set_rule(std::make_unique<CloverRule>(*rule, box_.connections(), box_.counters()));
}

Explainer::~Explainer() = default;

bool Explainer::is_first(ByteView frame) {
  wire::ParsedFrame parsed;
  if (wire::parse(frame, parsed) != wire::Verdict::kOk || !parsed.traits().is_request) return false;
  std::uint32_t numbers = 1;
  if (parsed.traits().kind == wire::Kind::kReadRequest) {
    constexpr std::uint32_t kLeastMtu = 256;  // its own is not known: rather too many
    constexpr std::uint32_t kMost = 1u << 22;
    numbers = std::min(wire::Reth::parse(frame.data() + parsed.extended_offset()).length / kLeastMtu + 1, kMost);
  }
  const auto [known, is_new] =
      beyond_.try_emplace({wire::destination_gid(frame.data(), parsed), parsed.destination.value}, parsed.psn);
  const bool first = parsed.psn.since(known->second) >= 0;
  if (const Psn after = parsed.psn + numbers; after.since(known->second) > 0) known->second = after;
  return first;
}

std::string Explainer::explain(Time now, ByteView frame) {
  if (box_.next_deadline() <= now) box_.on_deadline(now, *outbox_);
  std::string text = outbox_->take();

  std::vector<std::uint8_t> bytes(frame.begin(), frame.end());
  Packet packet;
  packet.frame = {bytes.data(), static_cast<std::uint32_t>(bytes.size())};
  box_.process(now, {&packet, 1}, *outbox_);
  const VerdictRow& verdict = row(packet.verdict);
  const bool first = is_first(frame);
  const std::string_view outcome = verdict.action == sluice::swordbox::Action::kForward ? "passes"
                                   : verdict.action == sluice::swordbox::Action::kDrop  ? "dropped"
                                                                                        : "waits";
  text += fmt::format("{}\n  {}: {}: {}\n", wire::describe(frame), outcome, verdict.name, verdict.meaning);
  if (first && verdict.name.starts_with("Repeated")) {
    ++alleged_;
    text += "  but:   nothing of this number has come before: it is none, if there was a box that replaces atomics\n";
  }
  const bool changed = !std::ranges::equal(bytes, frame);
  if (packet.action == sluice::swordbox::Action::kForward && changed)
    text += fmt::format("  as:    {}\n", wire::describe(bytes));
  return text + outbox_->take();
}

std::string Explainer::summary() const {
  std::string text;
  box_.counters().for_each([&](std::string_view name, std::string_view meaning, std::uint64_t value) {
    if (value != 0) text += fmt::format("{:>10}  {:<24} {}\n", value, name, meaning);
  });
  if (alleged_ != 0)
    text += fmt::format(
        "Retransmissions of numbers that had not come before: {}. A box that replaces atomics (`words`) numbers\n"
        "what it sends itself; recorded before one, answers may be ahead of requests, which only look repeated then.\n",
        alleged_);
  return text;
}

}  // namespace sluice::swordbox
