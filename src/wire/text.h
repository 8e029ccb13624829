// One line of text about a frame, for people.
//
// Source:  none: the words are IBTA's and this project's.
#pragma once

#include <string>

#include "base/bytes.h"
#include "wire/cm.h"

namespace sluice::wire {

// "10.0.0.1 > 10.0.0.2 RC RDMA_WRITE_ONLY qpn 0x11 psn 123 A va 0x7000 rkey 0x7 len 64 | payload 64 | icrc ok"; of a frame
// that is no RoCE, what it is; of one that is wrong, what is wrong. Never fails.
std::string describe(ByteView frame);
// Of a frame of `length` bytes of which a capture has kept only the first: what those tell, and "| cut, 128 of 1082 bytes" instead of the ICRC.
// REQUIRES: start.size() <= length
std::string describe_cut(ByteView start, std::size_t length);
// Without network and payload: "REQ comm 0xe9ad0a55 service 0x1061c06 qpn 0x13 psn 15303186 …".
std::string describe(const CmMessage& message);

}  // namespace sluice::wire
