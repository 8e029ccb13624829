#include "switching/stage_chain.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace sluice::switching {

void StageChain::process(Time now, std::span<Packet> packets, port::FrameSink& outbox) {
  SLUICE_CHECK(packets.size() <= kBurst);
  first_.process(now, packets, outbox);
  const auto passes = [](const Packet& packet) { return packet.action == Packet::Action::kForward; };
  if (std::all_of(packets.begin(), packets.end(), passes)) return second_.process(now, packets, outbox);
  std::array<Packet, kBurst> left;
  std::array<std::uint8_t, kBurst> from;
  std::size_t count = 0;
  for (std::size_t i = 0; i < packets.size(); ++i) {
    if (!passes(packets[i])) continue;
    from[count] = static_cast<std::uint8_t>(i);
    left[count++] = packets[i];
  }
  second_.process(now, std::span(left).first(count), outbox);
  for (std::size_t i = 0; i < count; ++i) packets[from[i]] = left[i];
}

void StageChain::on_deadline(Time now, port::FrameSink& outbox) {
  if (first_.next_deadline() <= now) first_.on_deadline(now, outbox);
  if (second_.next_deadline() <= now) second_.on_deadline(now, outbox);
}

void StageChain::on_spare(Time now, const Ways& ways, port::FrameSink& outbox) {
  first_.on_spare(now, ways, outbox);
  second_.on_spare(now, ways, outbox);
}

}  // namespace sluice::switching
