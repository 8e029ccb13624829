// What must hold of Cowbird's engines whatever stands in an application's rings, and whatever befalls the network, the pool and the engines.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/bytes.h"

namespace sluice::fuzz {

// What the script has reached: what the good application was told, what the engines did.
using Reached = std::map<std::string, std::uint64_t>;

// Two applications, one that keeps to the rules and one that writes anything into its rings, a switch engine for both, NICs and memory
// nodes that only answer, and a network that loses, repeats and reorders. Nodes die, come back, refuse; connections and switches are made anew.
// Each packet that the engine makes is whole, lies where its channel may read or write, and says under its PSN what it has said before. What the good application is
// told is true, in the end all its requests are answered, and the other one's change nothing of its bytes.
Reached check_cowbird_switch(ByteView script);

// The same for spot engines, over a memory that loses connections, refuses, and takes its time; on pools that keep an order or do not, or
// are memory of the engine's process.
Reached check_cowbird_spot(ByteView script);

}  // namespace sluice::fuzz
