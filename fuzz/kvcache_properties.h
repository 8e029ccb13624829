// What must hold for a cache whatever its clients write into their mailboxes, and for its parsers whatever they are given.
//
// Parsers:    read nothing outside their bytes; what they accept, written again, is the same bytes. So too with a checksum that is right over bytes that
//             are not.
// Server:     by a script of requests that are right, or wrong under a right checksum, or come in two parts; of raw bytes in mailboxes; and of changes of
//             its own. Beside a model of its own: who takes what, what is forgotten, every entry's bytes and place, every word of the index, every
//             counter. A mailbox changes by its answer alone, and once for each request; nothing else is written.
#pragma once

#include "base/bytes.h"

namespace sluice::fuzz {

void check_kvcache_bytes(ByteView bytes);
void check_kvcache_server(ByteView script);

}  // namespace sluice::fuzz
