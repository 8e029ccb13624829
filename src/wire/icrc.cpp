#include "wire/icrc.h"

#include <isa-l/crc.h>

#include <array>
#include <cstring>

namespace sluice::wire {
namespace {

// zlib's crc32 of the eight 0xFF bytes that stand for the local route header of InfiniBand.
constexpr std::uint32_t kAfterEightOnes = 0x2144DF1C;

// Ones over whatever the ICRC leaves out, for IP, UDP and BTH headers.
template <std::size_t kIpSize>
constexpr std::array<std::uint8_t, kIpSize + UdpHeader::kSize + Bth::kSize> make_mask() {
  std::array<std::uint8_t, kIpSize + UdpHeader::kSize + Bth::kSize> mask{};
  if constexpr (kIpSize == Ipv4Header::kSize) {
    mask[1] = 0xFF;              // type of service
    mask[8] = 0xFF;              // time to live
    mask[10] = mask[11] = 0xFF;  // header checksum
  } else {
    mask[0] = 0x0F;  // traffic class and flow label, after the version
    mask[1] = mask[2] = mask[3] = 0xFF;
    mask[7] = 0xFF;  // hop limit
  }
  mask[kIpSize + 6] = mask[kIpSize + 7] = 0xFF;  // UDP checksum
  mask[kIpSize + UdpHeader::kSize + 4] = 0xFF;   // FECN, BECN and reserved bits of the BTH
  return mask;
}

template <std::size_t kIpSize>
std::uint32_t whole(const std::uint8_t* ip, std::size_t length) {
  static constexpr auto kMask = make_mask<kIpSize>();
  std::array<std::uint8_t, kMask.size()> headers;
  for (std::size_t i = 0; i < headers.size(); ++i) headers[i] = ip[i] | kMask[i];
  const std::uint32_t crc = crc32_gzip_refl(kAfterEightOnes, headers.data(), headers.size());
  return crc32_gzip_refl(crc, ip + headers.size(), length - headers.size());
}

}  // namespace

std::uint32_t icrc_ipv4(const std::uint8_t* ip, std::size_t length) { return whole<Ipv4Header::kSize>(ip, length); }
std::uint32_t icrc_ipv6(const std::uint8_t* ip, std::size_t length) { return whole<Ipv6Header::kSize>(ip, length); }

std::uint32_t icrc(const std::uint8_t* frame, const ParsedFrame& parsed) {
  const std::uint8_t* ip = frame + parsed.ip_offset;
  const std::size_t covered = parsed.icrc_offset() - parsed.ip_offset;
  return parsed.is_v4 ? icrc_ipv4(ip, covered) : icrc_ipv6(ip, covered);
}

bool verify_icrc(const std::uint8_t* frame, const ParsedFrame& parsed) {
  return icrc(frame, parsed) == load_le<std::uint32_t>(frame + parsed.icrc_offset());
}

}  // namespace sluice::wire
