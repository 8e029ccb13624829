// The invariant CRC at the end of every RoCEv2 packet, computed whole. frame_editor.h patches it in constant time.
//
// Invariant:  what a router may change (TOS, TTL, checksums, flow label, hop limit, and the byte of FECN and BECN in the
//             BTH) counts as ones.
// Units:      lengths in bytes. On the wire the ICRC is little-endian.
// Limits:     kMaxFrameSize.
// Source:     IBTA vol. 1 §7.8.1, A17.3.3; ARCHITECTURE.md "What real NICs do".
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "wire/frame.h"

namespace sluice::wire {

// ICRC of the packet that begins with the IP header at `ip` and has `length` bytes before its ICRC.
// REQUIRES: at least IP, UDP and BTH headers are there, and before them an Ethernet header.
std::uint32_t icrc_ipv4(const std::uint8_t* ip, std::size_t length);
std::uint32_t icrc_ipv6(const std::uint8_t* ip, std::size_t length);

// The ICRC that belongs on a parsed frame, and whether it is there.
std::uint32_t icrc(const std::uint8_t* frame, const ParsedFrame& parsed);
bool verify_icrc(const std::uint8_t* frame, const ParsedFrame& parsed);

// The same CRC over no more than IP, UDP and BTH headers: where the CRC stands before the extended headers.
std::uint32_t icrc_of_headers(const std::uint8_t* frame, const ParsedFrame& parsed);

}  // namespace sluice::wire
