#include "ports/unfinished_checksum.h"

#include <linux/if_ether.h>
#include <netinet/in.h>

#include <cstddef>
#include <cstdint>

namespace sluice::ports {
namespace {

// Not folded: of even length but for the last part.
std::uint64_t sum_of(ByteView bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) sum += load_be<std::uint16_t>(bytes.data() + i);
  return bytes.size() % 2 == 0 ? sum : sum + (std::uint64_t{bytes.back()} << 8);
}

struct Packet {
  MutableBytes segment;  // header and payload of TCP or UDP, without padding
  ByteView addresses;
  std::uint8_t protocol = 0;
};

bool find_ipv4(MutableBytes ip, Packet& out) {
  if (ip.size() < 20) return false;
  const std::size_t header = std::size_t{ip[0] & 0x0Fu} * 4;
  const std::size_t total = load_be<std::uint16_t>(ip.data() + 2);
  const bool fragment = (load_be<std::uint16_t>(ip.data() + 6) & 0x3FFFu) != 0;
  if (header < 20 || total < header || total > ip.size() || fragment) return false;
  out = {ip.subspan(header, total - header), ip.subspan(12, 8), ip[9]};
  return true;
}

bool find_ipv6(MutableBytes ip, Packet& out) {
  constexpr std::size_t kHeader = 40;
  if (ip.size() < kHeader) return false;
  const std::size_t length = load_be<std::uint16_t>(ip.data() + 4);
  if (length > ip.size() - kHeader) return false;
  out = {ip.subspan(kHeader, length), ip.subspan(8, 32), ip[6]};
  return true;
}

bool find(MutableBytes frame, Packet& out) {
  std::size_t at = 12;
  for (int tags = 0; frame.size() >= at + 2; ++tags, at += 4) {
    const auto type = load_be<std::uint16_t>(frame.data() + at);
    if (type == ETH_P_IP) return find_ipv4(frame.subspan(at + 2), out);
    if (type == ETH_P_IPV6) return find_ipv6(frame.subspan(at + 2), out);
    if (tags == 2 || (type != ETH_P_8021Q && type != ETH_P_8021AD)) return false;
  }
  return false;
}

}  // namespace

bool finish_checksum(MutableBytes frame) {
  Packet packet;
  if (!find(frame, packet)) return false;
  const bool tcp = packet.protocol == IPPROTO_TCP;
  if (!tcp && packet.protocol != IPPROTO_UDP) return false;
  if (packet.segment.size() < (tcp ? 20u : 8u)) return false;
  std::uint8_t* const field = packet.segment.data() + (tcp ? 16 : 6);
  store_be<std::uint16_t>(field, 0);
  std::uint64_t sum = sum_of(packet.addresses) + packet.protocol + packet.segment.size() + sum_of(packet.segment);
  while (sum > 0xFFFF) sum = (sum & 0xFFFF) + (sum >> 16);
  const auto checksum = static_cast<std::uint16_t>(~sum);
  store_be<std::uint16_t>(field, checksum == 0 && !tcp ? std::uint16_t{0xFFFF} : checksum);  // 0 says that UDP has none
  return true;
}

}  // namespace sluice::ports
