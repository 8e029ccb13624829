// Scatter/gather lists: local memory that a work request names, found and copied.
//
// Errors:  resolve() says whether every piece is registered with the rights needed; copies REQUIRE resolved pieces.
// Source:  IBTA vol. 1 §10.6.3.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "memory/region.h"
#include "rc/work.h"

namespace sluice::rc {

// A piece of local memory as the queues keep it: as posted, and once resolved where it is in this process.
struct LocalPiece {
  std::uint64_t address = 0;
  std::uint8_t* host = nullptr;
  std::uint32_t length = 0;
  memory::Key key{};
};

// Finds every piece; false when one is not registered in `pd` with `needed`.
bool resolve(std::span<LocalPiece> pieces, const memory::RegionTable& regions, memory::PdId pd, memory::Access needed);

// Copies `length` bytes that begin `offset` bytes into the list. REQUIRES: the list is that long, and resolved.
void gather(std::span<const LocalPiece> pieces, std::uint64_t offset, std::uint8_t* to, std::size_t length);
void scatter(std::span<const LocalPiece> pieces, std::uint64_t offset, const std::uint8_t* from, std::size_t length);

std::uint64_t total_length(std::span<const LocalPiece> pieces);

}  // namespace sluice::rc
