#include "wire/ip.h"

#include <cstring>

#include "base/bytes.h"

namespace sluice::wire {

Ipv4Header Ipv4Header::parse(const std::uint8_t* p) {
  return {.version = static_cast<std::uint8_t>(p[0] >> 4),
          .header_words = static_cast<std::uint8_t>(p[0] & 0xF),
          .traffic_class = p[1],
          .total_length = load_be<std::uint16_t>(p + 2),
          .identification = load_be<std::uint16_t>(p + 4),
          .fragment = load_be<std::uint16_t>(p + 6),
          .ttl = p[8],
          .protocol = p[9],
          .checksum = load_be<std::uint16_t>(p + 10),
          .source = {load_be<std::uint32_t>(p + 12)},
          .destination = {load_be<std::uint32_t>(p + 16)}};
}

void Ipv4Header::write(std::uint8_t* p) const {
  p[0] = static_cast<std::uint8_t>(version << 4 | (header_words & 0xF));
  p[1] = traffic_class;
  store_be(p + 2, total_length);
  store_be(p + 4, identification);
  store_be(p + 6, fragment);
  p[8] = ttl;
  p[9] = protocol;
  store_be(p + 10, checksum);
  store_be(p + 12, source.value);
  store_be(p + 16, destination.value);
}

std::uint16_t ipv4_checksum(const std::uint8_t* p) { return swap_bytes(static_cast<std::uint16_t>(~ipv4_sum(p, 0))); }

std::uint16_t patch_checksum(std::uint16_t checksum, std::uint16_t before, std::uint16_t after) {
  std::uint32_t sum = (~std::uint32_t{checksum} & 0xFFFF) + (~std::uint32_t{before} & 0xFFFF) + after;
  sum = (sum & 0xFFFF) + (sum >> 16);
  sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

Ipv6Header Ipv6Header::parse(const std::uint8_t* p) {
  const auto first = load_be<std::uint32_t>(p);
  Ipv6Header h{.version = static_cast<std::uint8_t>(first >> 28),
               .traffic_class = static_cast<std::uint8_t>(first >> 20 & 0xFF),
               .flow_label = first & 0xF'FFFF,
               .payload_length = load_be<std::uint16_t>(p + 4),
               .next_header = p[6],
               .hop_limit = p[7],
               .source = {},
               .destination = {}};
  std::memcpy(h.source.bytes.data(), p + 8, 16);
  std::memcpy(h.destination.bytes.data(), p + 24, 16);
  return h;
}

void Ipv6Header::write(std::uint8_t* p) const {
  store_be(p, std::uint32_t{version} << 28 | std::uint32_t{traffic_class} << 20 | (flow_label & 0xF'FFFF));
  store_be(p + 4, payload_length);
  p[6] = next_header;
  p[7] = hop_limit;
  std::memcpy(p + 8, source.bytes.data(), 16);
  std::memcpy(p + 24, destination.bytes.data(), 16);
}

UdpHeader UdpHeader::parse(const std::uint8_t* p) {
  return {.source_port = load_be<std::uint16_t>(p),
          .destination_port = load_be<std::uint16_t>(p + 2),
          .length = load_be<std::uint16_t>(p + 4),
          .checksum = load_be<std::uint16_t>(p + 6)};
}

void UdpHeader::write(std::uint8_t* p) const {
  store_be(p, source_port);
  store_be(p + 2, destination_port);
  store_be(p + 4, length);
  store_be(p + 6, checksum);
}

}  // namespace sluice::wire
