// Two ports in one process, joined by bounded queues: what one end flushes the other receives, in order and at once.
//
// Life:      make_memory_cable(frames) -> the two ends. An end whose other end is destroyed turns kDown.
// Invariant: taken <= received <= sent <= committed <= taken + capacity, in each direction.
// Threads:   both ends belong to one thread; deterministic, no clock, no chance.
// Limits:    `frames` of any length up to kMaxFrame wait in each direction; then reserve() refuses.
#pragma once

#include <cstddef>
#include <memory>

#include "port/port.h"

namespace sluice::port {

struct MemoryCable {
  std::unique_ptr<Port> a;
  std::unique_ptr<Port> b;
};

// REQUIRES: frames > 0.
MemoryCable make_memory_cable(std::size_t frames = 256);

}  // namespace sluice::port
