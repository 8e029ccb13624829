// The checksum that a sender has left to its hardware, for frames that never meet such hardware (veth, virtio, tap).
//
// Limits:     TCP and UDP over IPv4, and over IPv6 without extension headers, behind at most two VLAN tags.
// Source:     RFC 9293 §3.1, RFC 768, RFC 8200 §8.1.
#pragma once

#include "base/bytes.h"

namespace sluice::ports {

// Writes the right one. False: a frame of another kind, or cut short; it is left as it is.
bool finish_checksum(MutableBytes frame);

}  // namespace sluice::ports
