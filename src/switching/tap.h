// Tap: sees the frames that pass the switch, as a mirror port of a switch in hardware does.
//
// Order:      each frame in the order in which it came in, or was given to its way out (or that way's queue). What is dropped is not seen again.
// Threads:    the switch's owner.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "switching/types.h"

namespace sluice::switching {

enum class Direction : std::uint8_t {
  kIn,   // as it came in, before any stage
  kOut,  // as it leaves: what stages and the router have made of it, or made themselves
};

class Tap {
 public:
  virtual ~Tap() = default;
  virtual void sees(PortNumber port, Direction direction, ByteView frame) = 0;
  // The number may be another port's from now on.
  virtual void detached(PortNumber port) = 0;
};

}  // namespace sluice::switching
