#include "rc/local_memory.h"

#include <algorithm>

namespace sluice::rc {

namespace {

// Calls copy(host, length) for each stretch of the list from `offset` on.
template <class Copy>
void for_stretches(std::span<const LocalPiece> pieces, std::uint64_t offset, std::size_t length, Copy copy) {
  for (const LocalPiece& piece : pieces) {
    if (length == 0) return;
    if (offset >= piece.length) {
      offset -= piece.length;
      continue;
    }
    const auto n = std::min<std::size_t>(length, piece.length - offset);
    copy(piece.host + offset, n);
    length -= n;
    offset = 0;
  }
}

}  // namespace

namespace detail {

void gather_pieces(std::span<const LocalPiece> pieces, std::uint64_t offset, std::uint8_t* to, std::size_t length) {
  for_stretches(pieces, offset, length, [&](const std::uint8_t* host, std::size_t n) {
    memory::copy_out(to, host, n);
    to += n;
  });
}

void scatter_pieces(std::span<const LocalPiece> pieces, std::uint64_t offset, const std::uint8_t* from,
                    std::size_t length) {
  for_stretches(pieces, offset, length, [&](std::uint8_t* host, std::size_t n) {
    memory::copy_in(host, from, n);
    from += n;
  });
}

}  // namespace detail

std::uint64_t total_length(std::span<const LocalPiece> pieces) {
  std::uint64_t total = 0;
  for (const LocalPiece& piece : pieces) total += piece.length;
  return total;
}

Stretch stretch_of(std::span<LocalPiece> pieces, std::uint64_t offset, std::uint64_t length) {
  std::size_t first = 0;
  std::uint64_t end = 0;
  if (length == 0) return {};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    end += pieces[i].length;
    if (end <= offset) first = i + 1;
    if (end >= offset + length) return {pieces.subspan(first, i + 1 - first), end};
  }
  return {pieces.subspan(first), end};
}

}  // namespace sluice::rc
