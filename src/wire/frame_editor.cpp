#include "wire/frame_editor.h"

#include <cstring>

#include "base/check.h"
#include "wire/icrc.h"

namespace sluice::wire {
namespace {

// Up to here words one by one are faster than a CRC by the library.
constexpr std::size_t kFewBytes = 64;

// One's-complement sum over both IPv4 addresses: what they count under a checksum.
std::uint16_t sum_of_addresses(const std::uint8_t* p) {
  std::uint64_t sum = std::uint64_t{load_le<std::uint32_t>(p)} + load_le<std::uint32_t>(p + 4);
  sum = (sum & 0xFFFF'FFFF) + (sum >> 32);
  sum = (sum & 0xFFFF) + (sum >> 16);
  sum = (sum & 0xFFFF) + (sum >> 16);
  return swap_bytes(static_cast<std::uint16_t>(sum));
}

}  // namespace

void FrameEditor::flush() {
  effect_ ^= crc32::effect_of({changes_.data(), pending_});
  pending_ = 0;
}

void FrameEditor::set_opcode(Opcode opcode, std::uint8_t pad_count) {
  constexpr std::uint32_t kOpcodeAndPad = 0x30FF;
  set_bits(parsed_.bth_offset, kOpcodeAndPad,
           static_cast<std::uint32_t>(opcode) | static_cast<std::uint32_t>(pad_count) << 12);
  parsed_.opcode = opcode;
  parsed_.pad_count = pad_count;
}

void FrameEditor::patch_ip_checksum(std::uint16_t before, std::uint16_t after) {
  std::uint8_t* field = frame_ + parsed_.ip_offset + 10;
  store_be(field, patch_checksum(load_be<std::uint16_t>(field), before, after));
}

void FrameEditor::set_route(const AddressVector& route) {
  std::memcpy(frame_, route.destination_mac.bytes.data(), 6);
  std::memcpy(frame_ + 6, route.source_mac.bytes.data(), 6);
  const std::size_t udp = parsed_.udp_offset();
  if (parsed_.is_v4) {
    const std::uint16_t sum_before = sum_of_addresses(frame_ + udp - 8);
    set_word(udp - 8, load_le<std::uint32_t>(route.source.bytes.data() + 12));
    set_word(udp - 4, load_le<std::uint32_t>(route.destination.bytes.data() + 12));
    patch_ip_checksum(sum_before, sum_of_addresses(frame_ + udp - 8));
  } else {
    for (std::size_t i = 0; i < 16; i += 4) {
      set_word(udp - 32 + i, load_le<std::uint32_t>(route.source.bytes.data() + i));
      set_word(udp - 16 + i, load_le<std::uint32_t>(route.destination.bytes.data() + i));
    }
  }
  set_bits(udp, kFirst16, swap_bytes(route.source_port));
}

void FrameEditor::set_bytes(std::size_t offset, ByteView bytes) {
  for (std::size_t i = 0; i < bytes.size(); i += 4) set_word(offset + i, load_le<std::uint32_t>(bytes.data() + i));
}

// Writes IP and UDP lengths for parsed_.length.
void FrameEditor::set_lengths() {
  const std::size_t udp = parsed_.udp_offset();
  const auto udp_length = static_cast<std::uint16_t>(parsed_.length - udp);
  // The other half of the word is the checksum, which the ICRC does not see and commit clears.
  set_bits(udp + 4, kFirst16, swap_bytes(udp_length));

  const std::size_t ip = parsed_.ip_offset;
  if (!parsed_.is_v4) return set_bits(ip + 4, kFirst16, swap_bytes(udp_length));
  const auto before = load_be<std::uint16_t>(frame_ + ip + 2);
  const auto after = static_cast<std::uint16_t>(Ipv4Header::kSize + udp_length);
  set_bits(ip, kLast16, std::uint32_t{swap_bytes(after)} << 16);
  patch_ip_checksum(before, after);
}

std::uint32_t FrameEditor::effect_of_span(ByteView bytes) const {
  if (bytes.size() > kFewBytes) return crc32::shift(crc32::remainder(bytes), static_cast<std::ptrdiff_t>(kept_));
  std::array<crc32::Change, kFewBytes / 4> words;
  for (std::size_t i = 0; i < bytes.size(); i += 4) {
    words[i / 4] = {load_le<std::uint32_t>(bytes.data() + i), static_cast<std::uint32_t>(bytes.size() - i - 4 + kept_)};
  }
  return crc32::effect_of({words.data(), bytes.size() / 4});
}

// Replaces the first `old_length` bytes behind the BTH by `bytes` and moves what follows.
void FrameEditor::splice(std::size_t old_length, ByteView bytes) {
  SLUICE_CHECK(!spliced_ && parsed_.length - old_length + bytes.size() <= kMaxFrameSize);
  std::uint8_t* at = frame_ + parsed_.extended_offset();
  spliced_ = true;
  out_size_ = old_length;
  in_size_ = bytes.size();
  kept_ = icrc_offset_ - parsed_.extended_offset() - old_length;
  inserted_ = effect_of_span(bytes);
  // The bytes taken out become zeros first: a change like any other, at the length that the packet had.
  effect_ ^= effect_of_span({at, old_length});
  if (kept_ != 0) std::memmove(at + in_size_, at + out_size_, kept_);
  if (!bytes.empty()) std::memcpy(at, bytes.data(), bytes.size());
  parsed_.length = static_cast<std::uint16_t>(parsed_.length - old_length + bytes.size());
  set_lengths();
}

void FrameEditor::replace_body(Opcode opcode, ByteView body, std::uint8_t pad_count) {
  set_opcode(opcode, pad_count);
  splice(icrc_offset_ - parsed_.extended_offset(), body);
  const std::size_t extended = parsed_.traits().extended_length;
  parsed_.payload_offset = static_cast<std::uint16_t>(parsed_.extended_offset() + extended);
  parsed_.payload_length = static_cast<std::uint16_t>(body.size() - extended - pad_count);
}

void FrameEditor::replace_extended(Opcode opcode, ByteView extended) {
  const std::size_t before = parsed_.traits().extended_length;
  set_opcode(opcode, parsed_.pad_count);
  splice(before, extended);
  parsed_.payload_offset = static_cast<std::uint16_t>(parsed_.extended_offset() + extended.size());
}

std::size_t FrameEditor::commit() {
  flush();
  store_be(frame_ + parsed_.udp_offset() + 6, std::uint16_t{0});
  // The register of the CRC over the edited bytes, as if they still had the length that they had.
  std::uint32_t state = ~icrc_ ^ effect_;
  if (spliced_ && kept_ == 0) {
    state =
        crc32::shift(state, static_cast<std::ptrdiff_t>(in_size_) - static_cast<std::ptrdiff_t>(out_size_)) ^ inserted_;
  } else if (spliced_) {
    // What is kept adds the same as before; the headers before it now stand farther from the end, or nearer.
    const std::uint32_t headers = ~icrc_of_headers(frame_, parsed_);
    const auto kept = static_cast<std::uint32_t>(kept_ - 4);
    const std::array<crc32::Change, 2> moved = {{{headers, kept + static_cast<std::uint32_t>(out_size_)},
                                                 {headers, kept + static_cast<std::uint32_t>(in_size_)}}};
    state ^= crc32::effect_of(moved) ^ inserted_;
  }
  store_le(frame_ + parsed_.icrc_offset(), ~state);
  return parsed_.length;
}

}  // namespace sluice::wire
