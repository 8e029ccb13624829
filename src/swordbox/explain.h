// What the box would do to each packet of a conversation, and why, in words: the what-if tool behind `sluice box explain FILE.pcap`.
//
// Life:       make one with the box's configuration -> explain() each packet in the order of its arrival.
// Invariant:  it is the production pipeline that answers, on a copy of the packet.
// Limits:     a box that replaces atomics numbers what it sends by itself. In what was recorded before one, answers may have numbers that no request
//             had yet; requests that come to these look like retransmissions then, and are told apart.
// Source:     katran's simulator: the what-if tool is made of the code that forwards.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "swordbox/box.h"
#include "swordbox/clover_rule.h"
#include "wire/address.h"
#include "wire/types.h"

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

  // Notes a request's numbers. False: one of them, or a later one, has come before, as of a retransmission.
  bool is_first(ByteView frame);

  Box box_;
  std::map<std::pair<wire::Gid, std::uint32_t>, Psn> beyond_;  // by destination: the first number after those seen
  std::uint64_t alleged_ = 0;                                  // retransmissions of what has not been seen
  std::unique_ptr<Collector> outbox_;
};

}  // namespace sluice::swordbox
