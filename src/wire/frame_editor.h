// Edits a received frame in place and keeps its lengths, checksum and ICRC right, in constant time for any payload.
//
// Life:       construct on a parsed frame -> set_... in any order -> at most one replace_... -> commit.
// Invariant:  between the first edit and commit the ICRC of the frame is stale; after commit it is what it was before,
//             changed by what the edits change: a wrong ICRC stays wrong, so damage from upstream stays visible.
//             `parsed` always tells the frame as it now is. A commit clears the UDP checksum, as NICs send it.
// Errors:     none: every edit's conditions are REQUIRES.
// Limits:     one replace_... a commit. With a payload behind the replaced headers it costs their CRC and a move of the
//             payload; otherwise nothing depends on the length.
// Source:     crc32_algebra.h; SwordBox (CAS -> WRITE, ACK -> Atomic ACK); Cowbird fig. 6 and 7.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "wire/crc32_algebra.h"
#include "wire/frame.h"

namespace sluice::wire {

class FrameEditor {
 public:
  // `parsed` is what parse() said about `frame`; both outlive the editor.
  FrameEditor(std::uint8_t* frame, ParsedFrame& parsed)
      : frame_(frame),
        parsed_(parsed),
        icrc_offset_(parsed.icrc_offset()),
        icrc_(load_le<std::uint32_t>(frame + parsed.icrc_offset())) {}

  void set_destination(Qpn qpn) {
    set_bits(parsed_.bth_offset + std::size_t{4}, kLast24, swap_bytes(qpn.value));
    parsed_.destination = qpn;
  }
  void set_psn(Psn psn) {
    set_bits(parsed_.bth_offset + std::size_t{8}, kLast24, swap_bytes(psn.value()));
    parsed_.psn = psn;
  }
  void set_ack_request(bool on) {
    set_bits(parsed_.bth_offset + std::size_t{8}, kFirstBit, on ? kFirstBit : 0);
    parsed_.ack_request = on;
  }
  // MAC and IP addresses, UDP source port; the rest of `route` stays as the frame has it. REQUIRES: the same IP version.
  void set_route(const AddressVector& route);
  // Rewrites the extended header H. REQUIRES: parsed.traits().has(H::kExtended); before any replace_...
  template <class H>
  void set(const H& header) {
    std::array<std::uint8_t, H::kSize> bytes;
    header.write(bytes.data());
    set_bytes(parsed_.extended_offset() + parsed_.traits().offset_of(H::kExtended), bytes);
  }
  // Overwrites bytes behind the BTH. REQUIRES: they lie between it and the ICRC; offset and size are multiples of four from
  // the BTH on; before any replace_...
  void set_bytes(std::size_t offset, ByteView bytes);

  // Makes the packet another one: `body` is all that follows the BTH, its pad included.
  // REQUIRES: body.size() is a multiple of four that opcode and pad allow; the buffer has room.
  void replace_body(Opcode opcode, ByteView body, std::uint8_t pad_count = 0);
  // Gives the packet another opcode and its extended headers, and keeps payload and pad.
  // REQUIRES: extended.size() is what the opcode needs; the opcode carries payload if the packet has one; the buffer has room.
  void replace_extended(Opcode opcode, ByteView extended);

  // Writes the ICRC and returns the length of the frame. The editor is then spent.
  std::size_t commit();

 private:
  static constexpr std::size_t kBatch = 16;
  // Fields of a word that is loaded little-endian, though they stand in network order.
  static constexpr std::uint32_t kLast24 = 0xFFFF'FF00;  // QPN, PSN
  static constexpr std::uint32_t kFirst16 = 0x0000'FFFF;
  static constexpr std::uint32_t kLast16 = 0xFFFF'0000;
  static constexpr std::uint32_t kFirstBit = 0x0000'0080;

  void change_word(std::size_t offset, std::uint32_t difference) {
    if (pending_ == kBatch) flush();
    changes_[pending_++] = {difference, static_cast<std::uint32_t>(icrc_offset_ - offset - 4)};
  }
  void set_word(std::size_t offset, std::uint32_t value) {
    const auto before = load_le<std::uint32_t>(frame_ + offset);
    store_le(frame_ + offset, value);
    change_word(offset, before ^ value);
  }
  void set_bits(std::size_t offset, std::uint32_t mask, std::uint32_t value) {
    set_word(offset, (load_le<std::uint32_t>(frame_ + offset) & ~mask) | value);
  }
  void flush();
  void set_opcode(Opcode opcode, std::uint8_t pad_count);
  void set_lengths();
  void patch_ip_checksum(std::uint16_t before, std::uint16_t after);
  void splice(std::size_t old_length, ByteView bytes);
  std::uint32_t effect_of_span(ByteView bytes) const;

  std::uint8_t* frame_;
  ParsedFrame& parsed_;
  std::size_t icrc_offset_;  // as received: distances of changes count from here
  std::uint32_t icrc_;
  std::uint32_t effect_ = 0;
  std::size_t pending_ = 0;
  std::array<crc32::Change, kBatch> changes_;
  // A splice: behind the BTH, out_size_ bytes became in_size_ others; kept_ bytes stand between them and the ICRC.
  bool spliced_ = false;
  std::uint32_t inserted_ = 0;  // what the bytes put in add to the CRC
  std::size_t out_size_ = 0;
  std::size_t in_size_ = 0;
  std::size_t kept_ = 0;
};

// Overwrites eight bytes, as loaded little-endian, behind the BTH: what an editor with one set_bytes() and its commit() does, sooner.
// REQUIRES: they lie between BTH and ICRC.
inline void patch_word(std::uint8_t* frame, const ParsedFrame& parsed, std::size_t offset, std::uint64_t word) {
  const std::size_t end = parsed.icrc_offset();
  const crc32::WideChange change{load_le<std::uint64_t>(frame + offset) ^ word,
                                 static_cast<std::uint32_t>(end - offset - sizeof word)};
  store_le(frame + offset, word);
  store_be(frame + parsed.udp_offset() + 6, std::uint16_t{0});
  store_le(frame + end, load_le<std::uint32_t>(frame + end) ^ crc32::effect_of_wide({&change, 1}));
}

}  // namespace sluice::wire
