// What must hold of Clover's metadata server whatever it is sent; the fuzzer looks for a script that breaks it, the replay test goes
// over those kept.
//
// Script:  commands of a byte each and their arguments. To one server anything is sent: well-formed requests about slots really granted, raw
//          bytes; memory nodes die and come back, time passes, it is started anew (clover_properties.cpp). With another one clients that keep
//          to the rules build chains, in any order and with any delay, and no version that somebody may read is used again
//          (clover_chains.cpp).
// Errors:  a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include "base/bytes.h"

namespace sluice::fuzz {

void check_metadata_server(ByteView script);
void check_chains(ByteView script);

}  // namespace sluice::fuzz
