// A small hash of names, the same on every machine and for ever. Not against those who choose names so that two have one hash.
//
// Source: FNV-1a, 64 bits; Fowler, Noll and Vo.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice {

constexpr std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}
static_assert(fnv1a("foobar") == 0x85944171F73967E8u);  // the source's own example

}  // namespace sluice
