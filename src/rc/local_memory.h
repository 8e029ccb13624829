// Scatter/gather lists: local memory that a work request names, found and copied.
//
// Errors:  resolve() says whether every piece is registered with the rights needed; copies REQUIRE that of those that they touch.
// Source:  IBTA vol. 1 §10.6.3.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "memory/access.h"
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
inline bool resolve(std::span<LocalPiece> pieces, const memory::RegionTable& regions, memory::PdId pd,
                    memory::Access needed) {
  for (LocalPiece& piece : pieces) {
    if (piece.length == 0) continue;
    if (piece.key == memory::kReservedKey) {
      piece.host = reinterpret_cast<std::uint8_t*>(static_cast<std::uintptr_t>(piece.address));
      continue;
    }
    const auto found = regions.translate(piece.key, pd, piece.address, piece.length, needed);
    if (found.fault != memory::AccessFault::kNone) return false;
    piece.host = found.host;
  }
  return true;
}

namespace detail {
void gather_pieces(std::span<const LocalPiece> pieces, std::uint64_t offset, std::uint8_t* to, std::size_t length);
void scatter_pieces(std::span<const LocalPiece> pieces, std::uint64_t offset, const std::uint8_t* from,
                    std::size_t length);
}  // namespace detail

// Copies `length` bytes that begin `offset` bytes into the list. REQUIRES: the list is that long, and what they touch of it resolved.
inline void gather(std::span<const LocalPiece> pieces, std::uint64_t offset, std::uint8_t* to, std::size_t length) {
  if (pieces.size() == 1) [[likely]]
    return memory::copy_out(to, pieces[0].host + offset, length);
  detail::gather_pieces(pieces, offset, to, length);
}
inline void scatter(std::span<const LocalPiece> pieces, std::uint64_t offset, const std::uint8_t* from,
                    std::size_t length) {
  if (pieces.size() == 1) [[likely]]
    return memory::copy_in(pieces[0].host + offset, from, length);
  detail::scatter_pieces(pieces, offset, from, length);
}

std::uint64_t total_length(std::span<const LocalPiece> pieces);

// The pieces that `length` bytes from `offset` on lie in, as far as the list is that long, and where in it the last of these ends.
struct Stretch {
  std::span<LocalPiece> pieces;
  std::uint64_t end = 0;
};
Stretch stretch_of(std::span<LocalPiece> pieces, std::uint64_t offset, std::uint64_t length);

}  // namespace sluice::rc
