// What two NICs said to each other, out of a capture: requests one way, answers the other, one conversation a connection and direction.
//
// A capture is taken near the requester: it holds requests that were lost behind it. Which they were follows from what the responder
// said (see reached_responder).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "golden/capture.h"
#include "wire/frame.h"

namespace sluice::golden {

struct Packet {
  std::size_t number = 0;  // in its capture, from 1
  FrameBytes bytes;
  wire::ParsedFrame parsed{};

  wire::Psn psn() const { return parsed.psn; }
  const wire::OpcodeTraits& traits() const { return parsed.traits(); }
  ByteView payload() const { return wire::payload(bytes.data(), parsed); }
  template <class H>
  H get() const {
    return wire::get<H>(bytes.data(), parsed);
  }
};

struct Conversation {
  std::vector<Packet> packets;  // both ways, in order
  std::size_t order = 0;        // of this conversation in its capture

  const Packet& first() const { return packets.front(); }
  // Absent when nobody answered.
  const Packet* first_answer() const;
  std::uint32_t mtu() const;  // as far as the packets tell; at least 1024
  // Of the first message, if it is a NAK; 4096 and beyond never.
  std::optional<wire::NakCode> fatal() const;
  std::optional<std::uint8_t> rnr_timer() const;
};

// The RC conversations of a capture. One ends when its responder refuses something for good.
std::vector<Conversation> conversations_of(const std::filesystem::path& file);

// Whether the request packets[i] came through to the responder, as its answers tell:
//  - one of the expected PSN did unless it was sent again before any answer came that needs it;
//  - a duplicate did if an answer to that PSN follows before the PSN is sent again;
//  - one beyond the expected PSN may have, without any effect but the NAK that names the expected one.
class Delivery {
 public:
  explicit Delivery(const Conversation& conversation);
  bool reached_responder(std::size_t i) const { return reached_[i]; }

 private:
  std::vector<bool> reached_;
};

// How many PSNs a request takes: a READ one for each packet of its response.
std::uint32_t psns_of(const Packet& request, std::uint32_t mtu);

}  // namespace sluice::golden
