// What must hold for any blocks whatever on an EDM link.
//
// Errors:  a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include "base/bytes.h"

namespace sluice::fuzz {

// Nine bytes a block: the sync header's lowest bit, the payload.
void check_edm_line(ByteView input);

}  // namespace sluice::fuzz
