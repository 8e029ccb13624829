// What must hold of 1RMA for any input: the parser, and a node that hears what it will.
//
// Errors:  a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include "base/bytes.h"

namespace sluice::fuzz {

// Any bytes as a frame: nothing outside them is read, and what parses is written again the same.
void check_onerma_frame(ByteView input);
// A script for two nodes and an intruder: commands, time, frames lost, doubled, kept for later, changed, made up. In the end memory is
// what completed writes left, windows are given back, and every command has completed once.
void check_onerma_nodes(ByteView script);

}  // namespace sluice::fuzz
