// Shard: which of several boxes, each on a core of its own, a packet belongs to, so that they share nothing.
//
// A memory node's connections all belong to one shard, and with them its words, keys and shared connections: what one operation decides for
// another is always about memory of one node. So the node's address decides: of a request where it goes to, of an answer where it comes from.
// Unreliable connections, and requests that nobody here understands, go where they would change memory. Management packets concern whoever will see the
// connection: they belong to every shard.
// Invariant:  all that belongs to one direction of a connection and concerns one node's memory goes to one shard, in order.
// Limits:     a rack spreads as well as its memory nodes do; a single node is one shard's work.
// Source:     docs/design/swordbox.md ("Several cores").
#pragma once

#include <cstdint>

#include "swordbox/connections.h"
#include "swordbox/flat_index.h"
#include "wire/frame.h"

namespace sluice::swordbox {

inline constexpr std::uint32_t kEveryShard = kNone;

constexpr std::uint32_t shard_of(const NetAddress& node, std::uint32_t shards) {
  // The high half times the number of shards: evenly, and without a division.
  return static_cast<std::uint32_t>((mix(node.high * 3 + node.low) >> 32) * shards >> 32);
}

// REQUIRES: `parsed` is what parse() said of `frame`, which was kOk; shards is not 0.
inline std::uint32_t shard_of(const std::uint8_t* frame, const wire::ParsedFrame& parsed, std::uint32_t shards) {
  const wire::OpcodeTraits& traits = parsed.traits();
  // The server whose shared connection it is about sends it.
  if (traits.transport == wire::Transport::kCnp) return shard_of(NetAddress::source_of(frame, parsed), shards);
  if (traits.transport == wire::Transport::kUd) return kEveryShard;
  return shard_of(traits.is_request ? NetAddress::destination_of(frame, parsed) : NetAddress::source_of(frame, parsed),
                  shards);
}

// The same of a frame that parse() found to be kUnknownOpcode.
inline std::uint32_t shard_of_unknown(const std::uint8_t* frame, const wire::ParsedFrame& parsed,
                                      std::uint32_t shards) {
  return shard_of(NetAddress::destination_of(frame, parsed), shards);
}

}  // namespace sluice::swordbox
