// What must hold of UDP containers and sessions for any bytes that a network may bring.
//
// Errors:  a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include "base/bytes.h"

namespace sluice::fuzz {

// The input is one datagram: frames lie inside it, in order, those that its records say, and pack into the same frames
// again.
void check_container(ByteView datagram);

// The input is a script of headers, times and refusals for a caller and a callee, each beside a model of it; in the end they
// find each other.
void check_sessions(ByteView script);

}  // namespace sluice::fuzz
