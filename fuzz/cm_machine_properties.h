// What must hold for two connection managers whatever their programs, the cable and an intruder do in whatever order.
//
// Properties:  a connection tells its program kEstablished at most once and one end at most, and nothing after that or after release();
//              a queue pair is in RTS when kEstablished is told and in ERR when an end is; once everything is released and the cable
//              is whole, both managers come to rest with no connection left.
// Errors:      a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include "base/bytes.h"

namespace sluice::fuzz {

// Takes the input as a script of steps.
void check_connection_managers(ByteView input);

// The same without an intruder: each message, event, deadline and queue pair is what a table of the rules says.
void check_connection_rules(ByteView input);

}  // namespace sluice::fuzz
