#include "wire/frame_editor.h"

#include <cstring>

#include "base/check.h"
#include "wire/icrc.h"

namespace sluice::wire {
namespace {

// The masks of a word loaded little-endian whose fields stand in network order.
constexpr std::uint32_t kLow24 = 0xFFFF'FF00;     // QPN or PSN in the last three bytes
constexpr std::uint32_t kHigh16 = 0x0000'FFFF;    // a 16-bit field in the first two
constexpr std::uint32_t kSecond16 = 0xFFFF'0000;  // or in the last two

std::uint32_t le_word_of(std::uint32_t value) { return swap_bytes(value); }

}  // namespace

void FrameEditor::change_word(std::size_t offset, std::uint32_t difference) {
  if (pending_ == kBatch) flush();
  changes_[pending_++] = {difference, static_cast<std::uint32_t>(icrc_offset_ - offset - 4)};
}

void FrameEditor::set_word(std::size_t offset, std::uint32_t value) {
  const auto before = load_le<std::uint32_t>(frame_ + offset);
  store_le(frame_ + offset, value);
  change_word(offset, before ^ value);
}

void FrameEditor::flush() {
  effect_ ^= crc32::effect_of({changes_.data(), pending_});
  pending_ = 0;
}

void FrameEditor::set_destination(Qpn qpn) {
  const std::size_t at = parsed_.bth_offset + std::size_t{4};
  set_word(at, (load_le<std::uint32_t>(frame_ + at) & ~kLow24) | le_word_of(qpn.value & 0xFF'FFFF));
  parsed_.destination = qpn;
}

void FrameEditor::set_psn(Psn psn) {
  const std::size_t at = parsed_.bth_offset + std::size_t{8};
  set_word(at, (load_le<std::uint32_t>(frame_ + at) & ~kLow24) | le_word_of(psn.value()));
  parsed_.psn = psn;
}

void FrameEditor::set_ack_request(bool on) {
  const std::size_t at = parsed_.bth_offset + std::size_t{8};
  set_word(at, (load_le<std::uint32_t>(frame_ + at) & ~std::uint32_t{0x80}) | (on ? 0x80 : 0));
  parsed_.ack_request = on;
}

void FrameEditor::set_opcode(Opcode opcode, std::uint8_t pad_count) {
  const std::size_t at = parsed_.bth_offset;
  const std::uint32_t rest = load_le<std::uint32_t>(frame_ + at) & ~std::uint32_t{0x30FF};
  set_word(at, rest | static_cast<std::uint32_t>(opcode) | static_cast<std::uint32_t>(pad_count) << 12);
  parsed_.opcode = opcode;
  parsed_.pad_count = pad_count;
}

void FrameEditor::patch_ip_checksum(std::size_t offset, const std::uint8_t* before, std::size_t size) {
  std::uint8_t* field = frame_ + parsed_.ip_offset + 10;
  auto checksum = load_be<std::uint16_t>(field);
  for (std::size_t i = 0; i < size; i += 2) {
    checksum =
        patch_checksum(checksum, load_be<std::uint16_t>(before + i), load_be<std::uint16_t>(frame_ + offset + i));
  }
  store_be(field, checksum);
}

void FrameEditor::set_route(const AddressVector& route) {
  std::memcpy(frame_, route.destination_mac.bytes.data(), 6);
  std::memcpy(frame_ + 6, route.source_mac.bytes.data(), 6);
  const std::size_t udp = parsed_.udp_offset();
  const std::size_t size = parsed_.is_v4 ? 8 : 32;
  const std::size_t at = udp - size;  // source and destination end both IP headers

  std::array<std::uint8_t, 32> before;
  std::memcpy(before.data(), frame_ + at, size);
  for (const Gid* gid : {&route.source, &route.destination}) {
    const std::size_t part = size / 2;
    const std::size_t to = gid == &route.source ? at : at + part;
    for (std::size_t i = 0; i < part; i += 4) {
      set_word(to + i, load_le<std::uint32_t>(gid->bytes.data() + gid->bytes.size() - part + i));
    }
  }
  if (parsed_.is_v4) patch_ip_checksum(at, before.data(), size);
  set_word(udp, (load_le<std::uint32_t>(frame_ + udp) & ~kHigh16) | swap_bytes(route.source_port));
}

void FrameEditor::set_bytes(std::size_t offset, ByteView bytes) {
  for (std::size_t i = 0; i < bytes.size(); i += 4) set_word(offset + i, load_le<std::uint32_t>(bytes.data() + i));
}

// Writes IP and UDP lengths for parsed_.length.
void FrameEditor::set_lengths() {
  const std::size_t udp = parsed_.udp_offset();
  const auto udp_length = static_cast<std::uint16_t>(parsed_.length - udp);
  const std::size_t length_word = udp + 4;  // length, and the checksum that the ICRC does not see
  const auto udp_before = load_le<std::uint32_t>(frame_ + length_word);
  store_be(frame_ + length_word, udp_length);
  change_word(length_word, (udp_before ^ load_le<std::uint32_t>(frame_ + length_word)) & kHigh16);

  const std::size_t ip_word = parsed_.ip_offset + (parsed_.is_v4 ? std::size_t{0} : std::size_t{4});
  const std::size_t field = parsed_.is_v4 ? ip_word + 2 : ip_word;
  const auto ip_before = load_le<std::uint32_t>(frame_ + ip_word);
  std::array<std::uint8_t, 2> before;
  std::memcpy(before.data(), frame_ + field, before.size());
  const std::size_t ip_length = parsed_.is_v4 ? parsed_.length - std::size_t{parsed_.ip_offset} : udp_length;
  store_be(frame_ + field, static_cast<std::uint16_t>(ip_length));
  change_word(ip_word, (ip_before ^ load_le<std::uint32_t>(frame_ + ip_word)) & (parsed_.is_v4 ? kSecond16 : kHigh16));
  if (parsed_.is_v4) patch_ip_checksum(field, before.data(), before.size());
}

// Replaces the first `old_length` bytes behind the BTH by `bytes` and moves what follows.
void FrameEditor::splice(std::size_t old_length, ByteView bytes) {
  SLUICE_CHECK(!spliced_ && parsed_.length - old_length + bytes.size() <= kMaxFrameSize);
  std::uint8_t* at = frame_ + parsed_.extended_offset();
  spliced_ = true;
  out_size_ = old_length;
  in_size_ = bytes.size();
  kept_ = icrc_offset_ - parsed_.extended_offset() - old_length;
  out_ = crc32::remainder({at, old_length});
  in_ = crc32::remainder(bytes);
  std::memmove(at + in_size_, at + out_size_, kept_);
  std::memcpy(at, bytes.data(), bytes.size());
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
    state = crc32::shift(state ^ out_, static_cast<std::ptrdiff_t>(in_size_) - static_cast<std::ptrdiff_t>(out_size_)) ^
            in_;
  } else if (spliced_) {
    // What is kept adds the same as before; all before it now stands farther from the end, or nearer.
    const std::uint32_t headers = ~icrc_of_headers(frame_, parsed_);
    const auto kept = static_cast<std::uint32_t>(kept_ - 4);
    const std::array<crc32::Change, 3> moved = {{{headers, kept + static_cast<std::uint32_t>(out_size_)},
                                                 {headers, kept + static_cast<std::uint32_t>(in_size_)},
                                                 {out_ ^ in_, kept}}};
    state ^= crc32::effect_of(moved);
  }
  store_le(frame_ + parsed_.icrc_offset(), ~state);
  return parsed_.length;
}

}  // namespace sluice::wire
