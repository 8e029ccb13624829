// What must hold of Clover's metadata server whatever it is sent; the fuzzer looks for a script that breaks it, the replay test goes
// over those kept.
//
// Script:  commands of a byte each and their arguments, see clover_properties.cpp: time passes, well-formed requests about slots really
//          granted, and raw bytes.
// Errors:  a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include "base/bytes.h"

namespace sluice::fuzz {

void check_metadata_server(ByteView script);

}  // namespace sluice::fuzz
