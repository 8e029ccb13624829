// Frames for a NIC under test, as a script wants them: nearly right ones, wrong in one way or in several, and noise.
//
// Life:     frame() or odd_frame(); the bytes are good until the next call.
// Limits:   port::kMaxFrame bytes.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "fuzz/script.h"
#include "memory/region.h"
#include "wire/address.h"
#include "wire/frame.h"

namespace sluice::fuzz {

inline constexpr wire::MacAddress kOurMac{{2, 0, 0, 0, 0, 1}};
inline constexpr wire::MacAddress kPeerMac{{2, 0, 0, 0, 0, 2}};
wire::Gid our_gid(bool v6);
wire::Gid peer_gid(bool v6);

class FrameMaker {
 public:
  // Whom a frame is for, and what is needed to make one that it would take.
  struct Target {
    wire::Qpn qpn{};
    wire::Psn expected{};   // of the next request
    wire::Psn last_sent{};  // of the requests to be answered
    std::span<const memory::Key> keys{};
  };
  // The address at which the i-th region of the program begins.
  static constexpr std::uint64_t address_of(std::size_t i) { return 0x10'0000 * (i + 1); }

  // A RoCE packet.
  MutableBytes frame(const Target& to, Script& script);
  // One without fault, of the peer's: `payload` bytes at the end of what follows the BTH are payload.
  MutableBytes packet(const wire::Bth& bth, bool v6, std::vector<std::uint8_t> body, std::size_t payload);
  // The last one once more.
  MutableBytes again() { return MutableBytes(frame_).first(length_); }
  // Anything else: ARP, neighbour discovery, other IP, noise.
  MutableBytes odd_frame(Script& script);

 private:
  struct Packet {
    wire::Bth bth{};
    wire::AddressVector way{};
    std::vector<std::uint8_t> body;  // extended headers and payload
  };
  static wire::AddressVector way_of(std::uint8_t fault, bool v6, bool marked);
  static void add_extended(Packet& packet, wire::Extended which, const Target& to, Script& script);
  static void add_management(Packet& packet, Script& script);
  void write(const Packet& packet);
  void damage(Script& script);

  std::array<std::uint8_t, 2 * wire::kMaxFrameSize> frame_{};
  std::size_t length_ = 0;
};

}  // namespace sluice::fuzz
