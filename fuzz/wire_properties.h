// What must hold for any input whatever; the fuzzers look for one that breaks it, the replay test goes over those kept.
//
// Errors:  a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace sluice::fuzz {

void check_frame(ByteView input);
void check_cm(ByteView input);

}  // namespace sluice::fuzz
