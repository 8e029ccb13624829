#include "workload/value.h"

#include <cstring>

namespace sluice::workload {
namespace {

constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15u;

std::uint64_t first_word(Key key, ValueId id, std::size_t size) {
  std::uint64_t x = key * 0xFF51AFD7ED558CCDu ^ id * 0xC4CEB9FE1A85EC53u ^ size * 0x9FB21C651E98DF25u;
  x = (x ^ x >> 33) * kStep;
  return x ^ x >> 29;
}

}  // namespace

void fill_value(Key key, ValueId id, MutableBytes into) {
  store_le<std::uint64_t>(into.data(), id);
  std::size_t at = 8;
  if (into.size() >= 16) {
    store_le<std::uint64_t>(into.data() + 8, key);
    at = 16;
  }
  std::uint64_t word = first_word(key, id, into.size());
  for (; at + 8 <= into.size(); at += 8, word += kStep) store_le(into.data() + at, word);
  if (at < into.size()) std::memcpy(into.data() + at, &word, into.size() - at);
}

std::optional<ValueId> verify_value(Key key, ByteView value) {
  if (value.size() < kMinValueBytes) return std::nullopt;
  const ValueId id = load_le<std::uint64_t>(value.data());
  if (id == 0) return std::nullopt;
  std::size_t at = 8;
  if (value.size() >= 16) {
    if (load_le<std::uint64_t>(value.data() + 8) != key) return std::nullopt;
    at = 16;
  }
  std::uint64_t word = first_word(key, id, value.size());
  std::uint64_t difference = 0;
  for (; at + 8 <= value.size(); at += 8, word += kStep) difference |= load_le<std::uint64_t>(value.data() + at) ^ word;
  if (at < value.size()) difference |= std::memcmp(value.data() + at, &word, value.size() - at) != 0 ? 1u : 0u;
  if (difference != 0) return std::nullopt;
  return id;
}

}  // namespace sluice::workload
