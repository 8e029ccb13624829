// The words that EDM's rooms share: ports of the switch, ids of messages, demands and grants.
//
// Units:   lengths in bytes, times in Time (ps).
// Limits:  512 ports (nine bits of a notification), 256 message ids a pair (eight bits); both from EDM §3.1.4.
// Source:  EDM §2.3, §3.1.1, §3.1.4.
#pragma once

#include <cstdint>

#include "base/strong.h"
#include "base/time.h"

namespace sluice::edm {

constexpr std::uint32_t kMaxPorts = 512;
// The paper gives a notification's size 16 bits; messages of its own traces are longer (1.8 MB), so sizes here have 24.
constexpr std::uint32_t kMaxMessageBytes = (1u << 24) - 1;

using PortId = Strong<struct PortIdTag, std::uint16_t>;  // of the switch, and so of the one host behind it
using MessageId = Strong<struct MessageIdTag, std::uint8_t>;

// Who asks for bandwidth, and how: by a notification of its own, or by the request that its bytes answer.
enum class DemandKind : std::uint8_t {
  kWrite,     // /N/ of a WREQ: the source is the compute node
  kResponse,  // RREQ or RMWREQ: the source is the memory node, and the first grant is the request itself
};

// A message that wants to be sent. Its source and destination are those of the data, not of the request.
struct Demand {
  PortId source{};
  PortId destination{};
  MessageId id{};
  DemandKind kind = DemandKind::kWrite;
  std::uint32_t bytes = 0;
  // Of the same message besides, which its sender will ask for later: it counts for the rank alone. REQUIRES, but for 0: `bytes` are one chunk at most.
  std::uint32_t later = 0;

  friend constexpr bool operator==(const Demand&, const Demand&) = default;
};

// Leave to send one chunk.
struct Grant {
  Time
      at{};  // when the scheduler has decided; source and destination are taken from now until at + the chunk's time on the wire
  PortId source{};
  PortId destination{};
  MessageId id{};
  DemandKind kind = DemandKind::kWrite;
  bool first = false;  // of its message
  bool last = false;
  std::uint32_t bytes = 0;
};

}  // namespace sluice::edm
