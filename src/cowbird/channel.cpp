#include "cowbird/channel.h"

#include "base/check.h"
#include "cowbird/channel_impl.h"

namespace sluice::cowbird {

template <class Words>
std::uint8_t* BasicChannel<Words>::checked(MutableBytes block, const ChannelLayout& layout) {
  SLUICE_CHECK(block.size() >= layout.bytes && reinterpret_cast<std::uintptr_t>(block.data()) % kDataAlignment == 0);
  return block.data();
}

template class BasicChannel<PlainWords>;

}  // namespace sluice::cowbird
