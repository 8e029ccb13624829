#include "clover/layout.h"

#include <cstring>

namespace sluice::clover {

void compose_node(const NodeLayout& layout, Key key, NodeKind kind, ByteView value, std::uint64_t trailer,
                  MutableBytes bytes) {
  auto* const p = bytes.data();
  store_le(p + kNextOffset, free_word(key, kind));
  store_le(p + kKeyOffset, key);
  if (!value.empty()) std::memcpy(p + kValueOffset, value.data(), value.size());
  std::memset(p + kValueOffset + value.size(), 0, layout.trailer_offset() - kValueOffset - value.size());
  store_le(p + layout.trailer_offset(), trailer);
}

}  // namespace sluice::clover
