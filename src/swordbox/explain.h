// What the box would do to each packet of a conversation, and why, in words: the what-if tool behind `sluice box explain FILE.pcap`.
//
// Life:       make one with the box's configuration -> explain() each packet in the order of its arrival.
// Invariant:  it is the production pipeline that answers, on a copy of the packet.
// Source:     katran's simulator: the what-if tool is made of the code that forwards.
#pragma once

#include <optional>
#include <string>

#include "base/bytes.h"
#include "swordbox/box.h"
#include "swordbox/clover_rule.h"

namespace sluice::swordbox {

class Explainer {
 public:
  // Without a rule's configuration: what the box alone would do.
  explicit Explainer(const BoxConfig& box, const std::optional<CloverConfig>& rule = std::nullopt);
  ~Explainer();

  // One line for the packet, one more if it leaves changed, and one for each packet that the box makes or lets go on its account or
  // before it, because time has passed.
  std::string explain(Time now, ByteView frame);

  // All counts that are not zero, one a line, with what they mean.
  std::string summary() const;

 private:
  class Collector;

  Box box_;
  std::unique_ptr<Collector> outbox_;
};

}  // namespace sluice::swordbox
