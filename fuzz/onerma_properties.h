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
// A script of letters for a target: plain and sealed, believed and not, wrong in one way under a key that is right; data that nobody asked for; keys and
// regions that go meanwhile; a port that is full. Beside a model of its own: memory, each answer to its last bit and in order, every counter.
void check_onerma_target(ByteView script);
// A script of commands for an initiator, plain or sealed, and of answers: what a target would say, or wrong in one way, damaged, late, of another
// operation. Beside a model of its own: requests and data to their last bit, who ends how and when, what reads bring, every counter.
void check_onerma_initiator(ByteView script);

}  // namespace sluice::fuzz
