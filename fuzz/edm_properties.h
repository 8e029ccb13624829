// What must hold for any blocks whatever on an EDM link.
//
// Errors:  a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include "base/bytes.h"

namespace sluice::fuzz {

// Nine bytes a block: the sync header in the lowest two bits (0: control, 1: data, 2: 00, 3: 11), the payload.
void check_edm_line(ByteView input);

// A script of units and frames for one end of a link, and of bits that flip on the way. What goes in comes out at the other end, in order. What is damaged
// comes out as it was or not at all, and takes nothing with it but what stood in the same blocks; behind it all is whole.
void check_edm_link(ByteView input);

}  // namespace sluice::fuzz
