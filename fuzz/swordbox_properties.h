// What must hold of SwordBox whatever crosses it.
#pragma once

#include "base/bytes.h"
#include "swordbox/verdict.h"

namespace sluice::fuzz {

// Plays the script against a box with both its applications: requests and answers of a few clients, nearly right ones and wrong ones, time,
// connections that come and go. Aborts when something does not hold.
void check_swordbox(ByteView script);

// Plays the script with clients and a server that keep to the rules of RC, and a network that loses, repeats and
// reorders. Every ticket of a counter is drawn once, in the order of time; a value that a swap replaced is never seen
// again; what a client is told has been done by then; a chain has each of its nodes once, those that clients were
// told of among them and those that were refused not; nothing waits for ever, and no client fails but because the box
// says so. Boxes are lost, clients die, the agent is slow. Returns what the (last) box has counted, by which a test
// sees what its inputs reach.
swordbox::Counters check_operations_through_swordbox(ByteView script);

}  // namespace sluice::fuzz
