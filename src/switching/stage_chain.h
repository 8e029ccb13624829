// Stage chain: two stages one behind the other. What the first one takes the second one never sees; what either makes goes out as it is.
//
// Life:     both outlive the chain.
// Threads:  the switch's owner.
#pragma once

#include <algorithm>

#include "switching/stage.h"

namespace sluice::switching {

class StageChain final : public Stage {
 public:
  // Of at most this many packets at once, as the switch has them.
  static constexpr std::size_t kBurst = 64;

  StageChain(Stage& first, Stage& second) : first_(first), second_(second) {}

  void process(Time now, std::span<Packet> packets, port::FrameSink& outbox) override;
  Time next_deadline() const override { return std::min(first_.next_deadline(), second_.next_deadline()); }
  void on_deadline(Time now, port::FrameSink& outbox) override;
  void on_spare(Time now, const Ways& ways, port::FrameSink& outbox) override;

 private:
  Stage& first_;
  Stage& second_;
};

}  // namespace sluice::switching
