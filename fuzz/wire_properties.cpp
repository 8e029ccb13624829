#include "fuzz/wire_properties.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "base/instructions.h"
#include "wire/cm.h"
#include "wire/frame.h"
#include "wire/frame_editor.h"
#include "wire/frame_inline.h"
#include "wire/icrc.h"
#include "wire/icrc_inline.h"
#include "wire/text.h"

namespace sluice::fuzz {
namespace {

using namespace wire;

template <class H>
void check_header(const std::uint8_t* p) {
  std::array<std::uint8_t, H::kSize> written;
  const H header = H::parse(p);
  header.write(written.data());
  SLUICE_CHECK(std::equal(written.begin(), written.end(), p));
  SLUICE_CHECK(H::parse(written.data()) == header);
}

template <class H>
void check_extended(const std::uint8_t* frame, const ParsedFrame& parsed) {
  if (!parsed.traits().has(H::kExtended)) return;
  const std::size_t at = parsed.extended_offset() + parsed.traits().offset_of(H::kExtended);
  SLUICE_CHECK(at + H::kSize <= parsed.payload_offset);
  check_header<H>(frame + at);
}

void check_layout(ByteView frame, const ParsedFrame& p) {
  SLUICE_CHECK(p.length <= frame.size() && p.length <= kMaxFrameSize);
  SLUICE_CHECK(p.traits().valid);
  SLUICE_CHECK(p.ip_offset < p.bth_offset && p.extended_offset() <= p.payload_offset);
  SLUICE_CHECK(p.payload_offset == p.extended_offset() + p.traits().extended_length);
  SLUICE_CHECK(std::size_t{p.payload_offset} + p.payload_length + p.pad_count == p.icrc_offset());
  SLUICE_CHECK(p.payload_length == 0 || p.traits().has_payload);
  const Bth bth = get_bth(frame.data(), p);
  SLUICE_CHECK(bth.opcode == p.opcode && bth.psn == p.psn && bth.destination == p.destination);
  SLUICE_CHECK(bth.ack_request == p.ack_request && bth.solicited == p.solicited && bth.pad_count == p.pad_count);
  SLUICE_CHECK(bth.fecn == p.fecn && bth.becn == p.becn && bth.pkey == p.pkey);
  const std::uint8_t* const ip = frame.data() + p.ip_offset;
  SLUICE_CHECK(p.is_v4 == (ip[0] >> 4 == 4) && p.has_vlan == (p.ip_offset == 18));
  SLUICE_CHECK(p.vlan_tci == (p.has_vlan ? load_be<std::uint16_t>(frame.data() + 14) : 0));
  SLUICE_CHECK(p.traffic_class == (p.is_v4 ? ip[1] : static_cast<std::uint8_t>(ip[0] << 4 | ip[1] >> 4)));
}

void check_headers(const std::uint8_t* frame, const ParsedFrame& parsed) {
  check_header<EthernetHeader>(frame);
  if (parsed.has_vlan) check_header<VlanTag>(frame + EthernetHeader::kSize);
  if (parsed.is_v4) check_header<Ipv4Header>(frame + parsed.ip_offset);
  if (!parsed.is_v4) check_header<Ipv6Header>(frame + parsed.ip_offset);
  check_header<UdpHeader>(frame + parsed.udp_offset());
  check_header<Bth>(frame + parsed.bth_offset);
  check_extended<Reth>(frame, parsed);
  check_extended<Aeth>(frame, parsed);
  check_extended<AtomicEth>(frame, parsed);
  check_extended<MaskedAtomicEth>(frame, parsed);
  check_extended<AtomicAckEth>(frame, parsed);
  check_extended<ImmDt>(frame, parsed);
  check_extended<Ieth>(frame, parsed);
  check_extended<Deth>(frame, parsed);
}

// Masked and summed as the specification says, byte by byte.
std::uint32_t icrc_by_rule(ByteView frame, const ParsedFrame& p) {
  const ByteView summed = frame.subspan(p.ip_offset, p.icrc_offset() - p.ip_offset);
  std::vector<std::uint8_t> bytes(8 + summed.size(), 0xFF);
  std::ranges::copy(summed, bytes.begin() + 8);
  std::uint8_t* const ip = bytes.data() + 8;
  if (p.is_v4) {
    ip[1] = ip[8] = ip[10] = ip[11] = 0xFF;
  } else {
    ip[0] |= 0x0F;
    ip[1] = ip[2] = ip[3] = ip[7] = 0xFF;
  }
  std::uint8_t* const bth = ip + (p.bth_offset - p.ip_offset);
  bth[-2] = bth[-1] = bth[4] = 0xFF;
  return crc32::update(0, bytes);
}

// Whether a frame is one that parse() accepts: the rules of frame.h, read from the frame from front to back.
bool is_sound(ByteView f) {
  const auto at16 = [&](std::size_t at) { return std::size_t{load_be<std::uint16_t>(f.data() + at)}; };
  if (f.size() < 14) return false;
  const std::size_t ip = at16(12) == kEtherTypeVlan ? 18 : 14;
  if (f.size() < ip) return false;
  const bool v4 = at16(ip - 2) == kEtherTypeIpv4;
  const std::size_t ip_size = v4 ? 20 : 40;
  if ((!v4 && at16(ip - 2) != kEtherTypeIpv6) || f.size() < ip + ip_size) return false;
  std::size_t length = ip + at16(ip + 2);
  if (v4) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < 20; i += 2) sum += static_cast<std::uint32_t>(at16(ip + i));
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    if (f[ip] != 0x45 || sum != 0xFFFF || (at16(ip + 6) & 0x3FFF) != 0 || f[ip + 9] != 17) return false;
  } else {
    length = ip + 40 + at16(ip + 4);
    constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
    const auto mapped = [&](std::size_t at) {
      return std::equal(kMapped.begin(), kMapped.end(), f.begin() + static_cast<std::ptrdiff_t>(at));
    };
    if (f[ip] >> 4 != 6 || f[ip + 6] != 17 || mapped(ip + 8) || mapped(ip + 24)) return false;
  }
  const std::size_t bth = ip + ip_size + 8;
  if (length > f.size() || length > kMaxFrameSize || length < bth + 16) return false;
  if (at16(bth - 6) != 4791 || at16(bth - 4) != length - ip - ip_size || (f[bth + 1] & 0xF) != 0) return false;
  const OpcodeTraits& traits = opcode_traits(f[bth]);
  const std::size_t headers = std::size_t{12} + traits.extended_length + 4;
  if (!traits.valid || length - bth < headers) return false;
  const std::size_t body = length - bth - headers;
  return body % 4 == 0 && body >= (f[bth + 1] >> 4 & 3u) && (body == 0 || traits.has_payload);
}

[[SLUICE_FOR_NEW_MACHINES]] Verdict parse_there(ByteView frame, ParsedFrame& out) {
  return parse_on_new_machine(frame, out);
}
[[SLUICE_FOR_NEW_MACHINES]] bool verify_there(const std::uint8_t* frame, const ParsedFrame& parsed) {
  return verify_icrc_inline(frame, parsed);
}
auto all_of(const ParsedFrame& p) {
  return std::tuple(p.length, p.ip_offset, p.bth_offset, p.payload_offset, p.payload_length, p.vlan_tci, p.pkey,
                    p.traffic_class, p.pad_count, p.opcode, p.is_v4, p.has_vlan, p.solicited, p.ack_request, p.fecn,
                    p.becn, p.destination, p.psn);
}
// All that read frames say the same, and what the rules say.
void check_readers(ByteView input, Verdict verdict, const ParsedFrame& parsed) {
  SLUICE_CHECK((verdict == Verdict::kOk) == is_sound(input));
  ParsedFrame other;
  SLUICE_CHECK(parse_inline(input, other) == verdict);
  if (verdict == Verdict::kOk) SLUICE_CHECK(all_of(other) == all_of(parsed));
  if (!has_new_instructions()) return;
  ParsedFrame third;
  SLUICE_CHECK(parse_there(input, third) == verdict);
  if (verdict == Verdict::kOk) SLUICE_CHECK(all_of(third) == all_of(parsed));
}
void check_icrc(ByteView input, const ParsedFrame& parsed) {
  const std::uint32_t right = icrc_by_rule(input, parsed);
  SLUICE_CHECK(icrc(input.data(), parsed) == right);
  const bool is_right = load_le<std::uint32_t>(input.data() + parsed.icrc_offset()) == right;
  SLUICE_CHECK(verify_icrc(input.data(), parsed) == is_right);
  if (has_new_instructions()) SLUICE_CHECK(verify_there(input.data(), parsed) == is_right);
}

// One word behind the BTH overwritten: nothing else changes, and the ICRC is as right or as wrong as it was.
void check_patched_word(ByteView input, const ParsedFrame& parsed, std::uint32_t salt) {
  const std::size_t words = (parsed.icrc_offset() - parsed.extended_offset()) / 4;
  if (words < 2) return;
  const std::size_t at = parsed.extended_offset() + salt / 8 % (words - 1) * 4;
  std::vector<std::uint8_t> frame(input.begin(), input.begin() + parsed.length);
  std::vector<std::uint8_t> due = frame;
  const std::uint32_t error = icrc_by_rule(due, parsed) ^ load_le<std::uint32_t>(due.data() + parsed.icrc_offset());
  store_le(due.data() + at, std::uint64_t{salt} << 17 ^ salt);
  store_be(due.data() + parsed.udp_offset() + 6, std::uint16_t{0});
  store_le(due.data() + parsed.icrc_offset(), icrc_by_rule(due, parsed) ^ error);
  patch_word(frame.data(), parsed, at, std::uint64_t{salt} << 17 ^ salt);
  SLUICE_CHECK(frame == due);
}

// What edits must make of a frame, put together anew.
struct Wanted {
  Bth bth{};
  std::vector<std::uint8_t> extended;
  std::vector<std::uint8_t> body;  // with pad
  std::optional<AddressVector> route{};
};
std::vector<std::uint8_t> put_together(ByteView input, const ParsedFrame& original, const Wanted& wanted) {
  std::vector<std::uint8_t> out(input.begin(), input.begin() + original.bth_offset);
  out.resize(original.extended_offset());
  wanted.bth.write(out.data() + original.bth_offset);
  out.insert(out.end(), wanted.extended.begin(), wanted.extended.end());
  out.insert(out.end(), wanted.body.begin(), wanted.body.end());
  out.resize(out.size() + kIcrcSize);
  std::uint8_t* const ip = out.data() + original.ip_offset;
  std::uint8_t* const udp = out.data() + original.udp_offset();
  if (wanted.route) {
    std::ranges::copy(wanted.route->destination_mac.bytes, out.begin());
    std::ranges::copy(wanted.route->source_mac.bytes, out.begin() + 6);
    const std::size_t size = original.is_v4 ? 4 : 16;
    std::copy_n(wanted.route->source.bytes.end() - static_cast<std::ptrdiff_t>(size), size, udp - 2 * size);
    std::copy_n(wanted.route->destination.bytes.end() - static_cast<std::ptrdiff_t>(size), size, udp - size);
    store_be(udp, wanted.route->source_port);
  }
  const auto udp_length = static_cast<std::uint16_t>(out.size() - original.udp_offset());
  store_be(udp + 4, udp_length);
  store_be(udp + 6, std::uint16_t{0});
  store_be(ip + (original.is_v4 ? 2 : 4), static_cast<std::uint16_t>(udp_length + (original.is_v4 ? 20 : 0)));
  return out;
}

template <class H>
void edit_extended(FrameEditor& editor, const ParsedFrame& parsed, Wanted& wanted, std::uint32_t salt) {
  if (!parsed.traits().has(H::kExtended)) return;
  std::array<std::uint8_t, H::kSize> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(salt * (i + 1) >> 3);
  editor.set(H::parse(bytes.data()));
  std::ranges::copy(bytes,
                    wanted.extended.begin() + static_cast<std::ptrdiff_t>(parsed.traits().offset_of(H::kExtended)));
}
void edit_bytes(FrameEditor& editor, const ParsedFrame& parsed, Wanted& wanted, std::uint32_t salt) {
  const std::size_t words = (parsed.icrc_offset() - parsed.extended_offset()) / 4;
  if (words == 0) return;
  const std::size_t from = salt % words, count = std::min<std::size_t>(words - from, 1 + salt / 64 % 40);
  std::vector<std::uint8_t> bytes(4 * count);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(salt >> i % 24);
    const std::size_t at = 4 * from + i;
    (at < wanted.extended.size() ? wanted.extended[at] : wanted.body[at - wanted.extended.size()]) = bytes[i];
  }
  editor.set_bytes(parsed.extended_offset() + 4 * from, bytes);
}

// Edits drawn from the input itself, on a copy with room to grow, beside a frame that is put together anew.
void check_edits(ByteView input, const ParsedFrame& original) {
  std::array<std::uint8_t, kMaxFrameSize> frame;
  std::memcpy(frame.data(), input.data(), original.length);
  ParsedFrame parsed = original;
  const bool was_right = verify_icrc(frame.data(), parsed);
  const std::uint32_t salt = load_le<std::uint32_t>(input.data() + original.icrc_offset());
  const std::uint32_t more = salt * 0x9E37'79B1u;
  const auto piece = [&](std::size_t from, std::size_t to) {
    return std::vector<std::uint8_t>(input.begin() + static_cast<std::ptrdiff_t>(from),
                                     input.begin() + static_cast<std::ptrdiff_t>(to));
  };
  Wanted wanted{.bth = get_bth(input.data(), original),
                .extended = piece(original.extended_offset(), original.payload_offset),
                .body = piece(original.payload_offset, original.icrc_offset())};

  FrameEditor editor(frame.data(), parsed);
  if ((salt & 1) != 0) editor.set_psn(wanted.bth.psn = Psn(salt));
  if ((salt & 2) != 0) editor.set_destination(wanted.bth.destination = Qpn(salt & 0xFF'FFFF));
  if ((salt & 4) != 0) editor.set_route(wanted.route.emplace(AddressVector::reply_to(input.data(), original)));
  if ((salt & 8) != 0) editor.set_ack_request(wanted.bth.ack_request = (salt & 16) != 0);
  if ((more & 0x300) == 0) {
    edit_extended<Reth>(editor, parsed, wanted, more);
    edit_extended<Aeth>(editor, parsed, wanted, more);
    edit_extended<AtomicAckEth>(editor, parsed, wanted, more);
    edit_extended<ImmDt>(editor, parsed, wanted, more);
  }
  if ((more & 0xC00) == 0) edit_bytes(editor, parsed, wanted, more >> 12);
  const auto opcode = static_cast<Opcode>(salt >> 8);
  const OpcodeTraits& next = opcode_traits(opcode);
  const bool fits = original.length + std::size_t{64} <= kMaxFrameSize;
  if (next.valid && fits && (next.has_payload || original.payload_length + original.pad_count == 0)) {
    wanted.extended.assign(next.extended_length, static_cast<std::uint8_t>(salt >> 16));
    wanted.bth.opcode = opcode;
    editor.replace_extended(opcode, wanted.extended);
  } else if (next.valid && (salt & 32) != 0) {
    wanted.extended.assign(next.extended_length, static_cast<std::uint8_t>(more));
    wanted.body.assign(next.has_payload ? more / 256 % 32 * 4 : 0, static_cast<std::uint8_t>(more >> 20));
    wanted.bth.opcode = opcode;
    wanted.bth.pad_count = static_cast<std::uint8_t>(wanted.body.empty() ? 0 : more >> 6 & 3);
    std::vector<std::uint8_t> body = wanted.extended;
    body.insert(body.end(), wanted.body.begin(), wanted.body.end());
    editor.replace_body(opcode, body, wanted.bth.pad_count);
  }
  const std::size_t length = editor.commit();

  ParsedFrame again;
  SLUICE_CHECK(parse({frame.data(), length}, again) == Verdict::kOk);
  SLUICE_CHECK(all_of(again) == all_of(parsed));
  SLUICE_CHECK(verify_icrc(frame.data(), again) == was_right);
  const std::vector<std::uint8_t> due = put_together(input, original, wanted);
  SLUICE_CHECK(due.size() == length);
  // The IP header's checksum has been checked by parse(), and may be written in two ways.
  const std::size_t checksum_at = original.ip_offset + (original.is_v4 ? 10u : 0u);
  const std::size_t behind = checksum_at + (original.is_v4 ? 2 : 0);
  SLUICE_CHECK(std::equal(due.begin(), due.begin() + static_cast<std::ptrdiff_t>(checksum_at), frame.begin()));
  SLUICE_CHECK(std::equal(due.begin() + static_cast<std::ptrdiff_t>(behind), due.end() - kIcrcSize,
                          frame.begin() + static_cast<std::ptrdiff_t>(behind)));
  check_patched_word(input, original, more);
}

// With its ICRC made right, the same frame must verify and stay right.
void check_sealed(ByteView input, const ParsedFrame& parsed) {
  std::vector<std::uint8_t> frame(input.begin(), input.begin() + parsed.length);
  store_le(frame.data() + parsed.icrc_offset(), icrc(frame.data(), parsed));
  ParsedFrame again;
  SLUICE_CHECK(parse_and_verify(frame, again) == Verdict::kOk);
  check_edits(frame, again);
  const std::uint8_t traffic = again.traffic_class;
  mark_congestion(frame.data(), again);
  SLUICE_CHECK(parse_and_verify(frame, again) == Verdict::kOk);
  SLUICE_CHECK(again.ecn() == Ecn::kCongestionExperienced && again.traffic_class >> 2 == traffic >> 2);
}

// Gives bytes that begin like IP over Ethernet the lengths, port and checksum that let them through to the transport: chance alone
// seldom does.
void make_plausible(std::vector<std::uint8_t>& frame) {
  constexpr std::size_t kIp = EthernetHeader::kSize;
  if (frame.size() < kIp + Ipv6Header::kSize + UdpHeader::kSize || frame.size() > kMaxFrameSize) return;
  std::uint8_t* ip = frame.data() + kIp;
  const bool v4 = (frame[0] & 1) == 0;
  store_be(ip - 2, v4 ? kEtherTypeIpv4 : kEtherTypeIpv6);
  const std::size_t ip_size = v4 ? Ipv4Header::kSize : Ipv6Header::kSize;
  const auto udp_length = static_cast<std::uint16_t>(frame.size() - kIp - ip_size);
  if (v4) {
    Ipv4Header h = Ipv4Header::parse(ip);
    h.version = 4;
    h.header_words = 5;
    h.total_length = static_cast<std::uint16_t>(frame.size() - kIp);
    h.fragment = Ipv4Header::kDontFragment;
    h.protocol = kIpProtocolUdp;
    h.write(ip);
    store_be(ip + 10, ipv4_checksum(ip));
  } else {
    Ipv6Header h = Ipv6Header::parse(ip);
    h.version = 6;
    h.payload_length = udp_length;
    h.next_header = kIpProtocolUdp;
    h.write(ip);
  }
  store_be(ip + ip_size + 2, kRoceUdpPort);
  store_be(ip + ip_size + 4, udp_length);
  if (udp_length > UdpHeader::kSize + 1) ip[ip_size + UdpHeader::kSize + 1] &= 0xF0;  // BTH version 0
}

void check_one_frame(ByteView input) {
  SLUICE_CHECK(!describe(input).empty());
  ParsedFrame parsed;
  const Verdict verdict = parse(input, parsed);
  check_readers(input, verdict, parsed);
  if (verdict != Verdict::kOk) return;
  check_icrc(input, parsed);
  check_layout(input, parsed);
  check_headers(input.data(), parsed);
  std::array<std::uint8_t, Grh::kSize> grh;
  write_received_grh(input.data(), parsed, grh.data());
  check_edits(input, parsed);
  check_sealed(input, parsed);
}

}  // namespace

void check_frame(ByteView input) {
  check_one_frame(input);
  std::vector<std::uint8_t> plausible(input.begin(), input.end());
  make_plausible(plausible);
  check_one_frame(plausible);
}

namespace {

// Bits of a message that mean something, from the end of the MAD's header (IBTA vol. 1 §12.6): the others are written as zeros.
std::array<std::uint8_t, kMadSize - MadHeader::kSize> meaning_of(std::uint16_t attribute) {
  std::array<std::uint8_t, kMadSize - MadHeader::kSize> mask;
  mask.fill(0xFF);
  const auto unused = [&](std::size_t from, std::size_t to) {
    std::fill(mask.begin() + static_cast<std::ptrdiff_t>(from), mask.begin() + static_cast<std::ptrdiff_t>(to),
              std::uint8_t{0});
  };
  switch (attribute) {
    case CmReq::kAttribute:
      unused(4, 8);
      unused(24, 28);
      for (const std::size_t path : {std::size_t{52}, std::size_t{96}}) {
        mask[path + 38] = 0xF0;
        mask[path + 39] = 0x3F;
        mask[path + 42] = 0xF8;
        mask[path + 43] = 0xF8;
      }
      break;
    case CmRep::kAttribute:
      mask[15] = mask[19] = mask[23] = 0;
      mask[27] = 0xF0;
      break;
    case CmRej::kAttribute:
      mask[8] = 0xC0;
      mask[9] = 0xFE;
      break;
    case CmMra::kAttribute:
      mask[8] = 0xC0;
      mask[9] = 0xF8;
      break;
    case CmDreq::kAttribute: mask[11] = 0; break;
    case CmSidrReq::kAttribute: unused(6, 8); break;
    case CmSidrRep::kAttribute:
      unused(6, 8);
      mask[11] = 0;
      break;
    default: break;
  }
  return mask;
}

void check_ip_cm(const std::uint8_t* p) {
  const auto ip = IpCmHeader::parse(p);
  if (!ip) return;
  std::array<std::uint8_t, IpCmHeader::kSize> header;
  ip->write(header.data());
  SLUICE_CHECK(IpCmHeader::parse(header.data()) == ip);
  SLUICE_CHECK(p[0] == header[0] && std::equal(p + 2, p + 4, header.begin() + 2));
  if (p[1] >> 4 == 6) {
    SLUICE_CHECK(std::equal(p + 4, p + 20, ip->source.bytes.begin()));
    SLUICE_CHECK(std::equal(p + 20, p + 36, ip->destination.bytes.begin()));
  } else {
    SLUICE_CHECK(std::equal(p + 16, p + 20, ip->source.bytes.begin() + 12));
    SLUICE_CHECK(std::equal(p + 32, p + 36, ip->destination.bytes.begin() + 12));
  }
}

void check_one_cm(ByteView input) {
  const auto mad = parse_cm(input);
  if (!mad) return;
  SLUICE_CHECK(!describe(mad->message).empty());
  std::array<std::uint8_t, kMadSize> written;
  write_cm(written.data(), *mad);
  SLUICE_CHECK(parse_cm(written) == mad);
  const auto attribute = load_be<std::uint16_t>(input.data() + 16);
  SLUICE_CHECK(std::equal(input.begin(), input.begin() + 4, written.begin()));
  SLUICE_CHECK(std::equal(input.begin() + 8, input.begin() + 18, written.begin() + 8));
  const auto mask = meaning_of(attribute);
  for (std::size_t i = 0; i < mask.size(); ++i)
    SLUICE_CHECK(written[MadHeader::kSize + i] == (input[MadHeader::kSize + i] & mask[i]));
  if (const auto* req = std::get_if<CmReq>(&mad->message)) check_ip_cm(req->private_data.data());
}

// What begins like a message gets the length and the header that let it through.
void make_plausible_cm(std::vector<std::uint8_t>& mad) {
  constexpr std::array<std::uint16_t, 9> kAttributes{CmReq::kAttribute,  CmRep::kAttribute,     CmRtu::kAttribute,
                                                     CmRej::kAttribute,  CmMra::kAttribute,     CmDreq::kAttribute,
                                                     CmDrep::kAttribute, CmSidrReq::kAttribute, CmSidrRep::kAttribute};
  const std::uint8_t kind = mad.empty() ? std::uint8_t{0} : mad.back();
  mad.resize(kMadSize, kind);
  MadHeader header{.transaction_id = load_be<std::uint64_t>(mad.data() + 8), .attribute_id = kAttributes[kind % 9u]};
  header.write(mad.data());
}

}  // namespace

void check_cm(ByteView input) {
  check_one_cm(input);
  std::vector<std::uint8_t> plausible(input.begin(), input.end());
  make_plausible_cm(plausible);
  check_one_cm(plausible);
}

}  // namespace sluice::fuzz
