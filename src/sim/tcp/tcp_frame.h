// TCP segments as Ethernet frames: IPv4, TCP with the options that Linux sends with each, payload of zeros.
//
// Life:       write_segment() or write_ack() -> frame; read_tcp() of what arrives; near() makes 64 bits of a sequence number of 32.
// Limits:     data from the client alone, so that a frame with payload is a segment and one without an ACK; a window scale of 10.
//             Timestamps are there, twelve bytes, and say nothing; checksums of TCP are 0: links damage nothing silently.
// Threads:    none of its own.
// Source:     RFC 9293 §3.1; RFC 7323 (scale, timestamps), RFC 2018 (SACK).
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "sim/tcp/tcp.h"
#include "wire/address.h"

namespace sluice::sim {

inline constexpr std::uint32_t kTcpHeaders = 20 + 20 + 12;  // IP, TCP, timestamps: MTU less MSS
inline constexpr std::uint32_t kTcpWindowScale = 10;
inline constexpr std::uint64_t kMostTcpWindow = std::uint64_t{0xFFFF} << kTcpWindowScale;

struct TcpHostAddress {
  wire::MacAddress mac{};
  wire::Ipv4Address ip{};
};

struct TcpRoute {
  TcpHostAddress from{};
  TcpHostAddress to{};
  std::uint16_t from_port = 0;
  std::uint16_t to_port = 0;
};

// Return the frame's length. REQUIRES: room for 14 + kTcpHeaders + mss bytes, and for 14 + kTcpHeaders + 28.
std::uint32_t write_segment(std::uint8_t* out, const TcpRoute& route, std::uint64_t sequence, std::uint32_t mss);
std::uint32_t write_ack(std::uint8_t* out, const TcpRoute& route, const TcpAck& ack);

struct TcpFrame {
  std::uint16_t from_port = 0;
  std::uint16_t to_port = 0;
  std::uint32_t sequence = 0;
  std::uint32_t payload = 0;  // bytes
  TcpAck ack{};               // numbers of 32 bits
};

// Whether it is one.
bool read_tcp(ByteView frame, TcpFrame& out);

// The number that has the lower half of `wire` and is nearest to `to`.
inline std::uint64_t near(std::uint64_t to, std::uint64_t wire) {
  const auto apart = static_cast<std::int32_t>(static_cast<std::uint32_t>(wire) - static_cast<std::uint32_t>(to));
  return to + static_cast<std::uint64_t>(std::int64_t{apart});
}

}  // namespace sluice::sim
