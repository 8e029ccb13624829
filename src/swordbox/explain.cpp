#include "swordbox/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

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

std::string Explainer::explain(Time now, ByteView frame) {
  if (box_.next_deadline() <= now) box_.on_deadline(now, *outbox_);
  std::string text = outbox_->take();

  std::vector<std::uint8_t> bytes(frame.begin(), frame.end());
  Packet packet;
  packet.frame = {bytes.data(), static_cast<std::uint32_t>(bytes.size())};
  box_.process(now, {&packet, 1}, *outbox_);
  const VerdictRow& verdict = row(packet.verdict);
  const std::string_view outcome = verdict.action == sluice::swordbox::Action::kForward ? "passes"
                                   : verdict.action == sluice::swordbox::Action::kDrop  ? "dropped"
                                                                                        : "waits";
  text += fmt::format("{}\n  {}: {}: {}\n", wire::describe(frame), outcome, verdict.name, verdict.meaning);
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
  return text;
}

}  // namespace sluice::swordbox
