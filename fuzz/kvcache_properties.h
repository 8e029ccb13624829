// What must hold for a cache whatever its clients write into their mailboxes, and for its parsers whatever they are given.
//
// Parsers:    read nothing outside their bytes; what they accept, written again, is the same bytes.
// Server:     by a script of right requests, raw bytes in mailboxes and changes of its own: every word of the index leads to a whole entry of that bucket,
//             no longer than the word says; a key's entry is that of the greatest version that was taken, or the key is forgotten; an answer is there for
//             every request that was whole.
#pragma once

#include "base/bytes.h"

namespace sluice::fuzz {

void check_kvcache_bytes(ByteView bytes);
void check_kvcache_server(ByteView script);

}  // namespace sluice::fuzz
