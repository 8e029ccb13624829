#include "wire/ethernet.h"

#include <cstring>

#include "base/bytes.h"

namespace sluice::wire {
namespace {

MacAddress load_mac(const std::uint8_t* p) {
  MacAddress mac;
  std::memcpy(mac.bytes.data(), p, mac.bytes.size());
  return mac;
}

void store_mac(std::uint8_t* p, const MacAddress& mac) { std::memcpy(p, mac.bytes.data(), mac.bytes.size()); }

}  // namespace

EthernetHeader EthernetHeader::parse(const std::uint8_t* p) {
  return {.destination = load_mac(p), .source = load_mac(p + 6), .ether_type = load_be<std::uint16_t>(p + 12)};
}

void EthernetHeader::write(std::uint8_t* p) const {
  store_mac(p, destination);
  store_mac(p + 6, source);
  store_be(p + 12, ether_type);
}

VlanTag VlanTag::parse(const std::uint8_t* p) {
  return {.tci = load_be<std::uint16_t>(p), .ether_type = load_be<std::uint16_t>(p + 2)};
}

void VlanTag::write(std::uint8_t* p) const {
  store_be(p, tci);
  store_be(p + 2, ether_type);
}

ArpPacket ArpPacket::parse(const std::uint8_t* p) {
  return {.hardware_type = load_be<std::uint16_t>(p),
          .protocol_type = load_be<std::uint16_t>(p + 2),
          .hardware_length = p[4],
          .protocol_length = p[5],
          .operation = load_be<std::uint16_t>(p + 6),
          .sender_mac = load_mac(p + 8),
          .sender_ip = {load_be<std::uint32_t>(p + 14)},
          .target_mac = load_mac(p + 18),
          .target_ip = {load_be<std::uint32_t>(p + 24)}};
}

void ArpPacket::write(std::uint8_t* p) const {
  store_be(p, hardware_type);
  store_be(p + 2, protocol_type);
  p[4] = hardware_length;
  p[5] = protocol_length;
  store_be(p + 6, operation);
  store_mac(p + 8, sender_mac);
  store_be(p + 14, sender_ip.value);
  store_mac(p + 18, target_mac);
  store_be(p + 24, target_ip.value);
}

}  // namespace sluice::wire
