// What must hold for any blocks whatever on an EDM link.
//
// Errors:  a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include "base/bytes.h"

namespace sluice::fuzz {

// Nine bytes a block: the sync header in the lowest two bits (0: control, 1: data, 2: 00, 3: 11), the payload.
void check_edm_line(ByteView input);

}  // namespace sluice::fuzz
