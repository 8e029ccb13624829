#include "switching/host_stage.h"

#include <algorithm>

#include "wire/cm.h"
#include "wire/frame.h"

namespace sluice::switching {
namespace {

constexpr std::size_t kMacSize = 6;
constexpr std::uint32_t kServiceBits = 24;  // port space and port

std::optional<std::uint8_t> top_byte(std::uint32_t id) {
  const auto place = static_cast<std::uint8_t>(id >> 24);
  return place == 0 ? std::nullopt : std::optional(place);
}

}  // namespace

void HostStage::process(Time, std::span<Packet> packets, port::FrameSink& outbox) {
  for (Packet& packet : packets) {
    if (!is_to_host(packet.frame.bytes())) continue;
    if (const auto place = place_of(packet.frame.bytes())) packet.frame.data[kPlaceByte] = *place;
    if (std::equal(packet.frame.data, packet.frame.data + kMacSize, packet.frame.data + kMacSize)) {
      // From a program to itself: a switch sends nothing back where it came from, unless it comes from nowhere.
      send_back(packet, outbox);
    }
  }
}

void HostStage::send_back(Packet& packet, port::FrameSink& outbox) {
  std::uint8_t* const copy = outbox.reserve(packet.frame.length);
  if (copy == nullptr) return;  // the switch will not send it where it came from, and counts that
  packet.action = Packet::Action::kDrop;
  std::copy_n(packet.frame.data, packet.frame.length, copy);
  outbox.commit(packet.frame.length);
}

bool HostStage::is_to_host(ByteView frame) const {
  if (frame.size() < wire::EthernetHeader::kSize || frame[0] != host_.bytes[0]) return false;
  return std::equal(host_.bytes.begin() + kPlaceByte + 1, host_.bytes.end(), frame.begin() + kPlaceByte + 1);
}

std::optional<HostStage::Place> HostStage::place_of(ByteView frame) const {
  wire::ParsedFrame parsed;
  if (wire::parse(frame, parsed) != wire::Verdict::kOk) return std::nullopt;
  if (parsed.destination == wire::kCmQpn) return place_of_mad(wire::payload(frame.data(), parsed));
  const auto place = static_cast<Place>(parsed.destination.value >> 16);
  return place == 0 ? std::nullopt : std::optional(place);
}

std::optional<HostStage::Place> HostStage::place_of_mad(ByteView mad) const {
  if (mad.size() != wire::kMadSize) return std::nullopt;
  const auto header = wire::MadHeader::parse(mad.data());
  const std::uint8_t* const body = mad.data() + wire::MadHeader::kSize;
  if (header.management_class != wire::MadHeader::kClassCm) return std::nullopt;
  if (header.attribute_id == wire::CmReq::kAttribute || header.attribute_id == wire::CmSidrReq::kAttribute) {
    const auto service = load_be<std::uint64_t>(body + 8);
    if (service >> kServiceBits != wire::rdma_service(0).value >> kServiceBits) return std::nullopt;
    return listener_(static_cast<std::uint32_t>(service & ((1u << kServiceBits) - 1)));
  }
  return top_byte(load_be<std::uint32_t>(body + (header.attribute_id == wire::CmSidrRep::kAttribute ? 0 : 4)));
}

}  // namespace sluice::switching
