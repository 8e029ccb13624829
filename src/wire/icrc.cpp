#include "wire/icrc.h"

#include <array>

#include "wire/crc32_algebra.h"
#include "wire/icrc_inline.h"

namespace sluice::wire {
namespace {

using detail::kAfterEightOnes;
using detail::kMasksOfIpv4;
using detail::kOnesOfIpv4;
using detail::kStartOfIpv4;
using detail::Masks;

// Traffic class and flow label; hop limit.
constexpr Masks kMasksOfIpv6 = detail::masks_of(Ipv6Header::kSize, {0, 0xFFFF'FF0F}, {4, 0xFF00'0000});
constexpr crc32::Ones kOnesOfIpv6 = detail::ones_of(kMasksOfIpv6);

// Long packets: one pass over the bytes as they are, and what setting the masked bits changes. Copying the headers to mask them
// first costs more: two short CRCs take longer than one, and wide loads stall on narrow stores.
std::uint32_t masked_crc(const std::uint8_t* ip, std::size_t length, const Masks& masks, const crc32::Ones& ones) {
  if (length <= crc32::kShort && length % 4 == 0 && crc32::has_short()) {
    return crc32::update_short(kAfterEightOnes, ip, length, ones);
  }
  return crc32::effect_of_masks(ip, length, masks) ^ crc32::update(kAfterEightOnes, {ip, length});
}

}  // namespace

std::uint32_t icrc_ipv4(const std::uint8_t* ip, std::size_t length) {
  static_assert(EthernetHeader::kSize >= crc32::Start::kBefore);
  if (length <= crc32::kShort && length % 4 == 0 && crc32::has_short())
    return crc32::crc_short(ip, length, kStartOfIpv4);
  return masked_crc(ip, length, kMasksOfIpv4, kOnesOfIpv4);
}
std::uint32_t icrc_ipv6(const std::uint8_t* ip, std::size_t length) {
  return masked_crc(ip, length, kMasksOfIpv6, kOnesOfIpv6);
}

namespace {

std::uint32_t icrc_up_to(std::size_t end, const std::uint8_t* frame, const ParsedFrame& parsed) {
  const std::uint8_t* ip = frame + parsed.ip_offset;
  return parsed.is_v4 ? icrc_ipv4(ip, end - parsed.ip_offset) : icrc_ipv6(ip, end - parsed.ip_offset);
}

}  // namespace

std::uint32_t icrc(const std::uint8_t* frame, const ParsedFrame& parsed) {
  return icrc_up_to(parsed.icrc_offset(), frame, parsed);
}

std::uint32_t icrc_of_headers(const std::uint8_t* frame, const ParsedFrame& parsed) {
  return icrc_up_to(parsed.extended_offset(), frame, parsed);
}

bool verify_icrc(const std::uint8_t* frame, const ParsedFrame& parsed) {
  return icrc(frame, parsed) == load_le<std::uint32_t>(frame + parsed.icrc_offset());
}

}  // namespace sluice::wire
