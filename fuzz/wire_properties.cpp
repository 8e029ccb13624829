#include "fuzz/wire_properties.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "wire/cm.h"
#include "wire/frame.h"
#include "wire/frame_editor.h"
#include "wire/icrc.h"
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

// Edits drawn from the input itself, on a copy with room to grow.
void check_edits(ByteView input, const ParsedFrame& original) {
  std::array<std::uint8_t, kMaxFrameSize> frame;
  std::memcpy(frame.data(), input.data(), original.length);
  ParsedFrame parsed = original;
  const bool was_right = verify_icrc(frame.data(), parsed);
  const std::uint32_t salt = load_le<std::uint32_t>(input.data() + original.icrc_offset());

  FrameEditor editor(frame.data(), parsed);
  if ((salt & 1) != 0) editor.set_psn(Psn(salt));
  if ((salt & 2) != 0) editor.set_destination(Qpn(salt & 0xFF'FFFF));
  if ((salt & 4) != 0) editor.set_route(AddressVector::reply_to(input.data(), original));
  if ((salt & 8) != 0) editor.set_ack_request((salt & 16) != 0);
  const auto opcode = static_cast<Opcode>(salt >> 8);
  const OpcodeTraits& next = opcode_traits(opcode);
  const bool fits = original.length + std::size_t{64} <= kMaxFrameSize;
  if (next.valid && fits && (next.has_payload || original.payload_length + original.pad_count == 0)) {
    std::array<std::uint8_t, 64> extended;
    extended.fill(static_cast<std::uint8_t>(salt >> 16));
    editor.replace_extended(opcode, {extended.data(), next.extended_length});
  } else if (next.valid && (salt & 32) != 0) {
    const std::array<std::uint8_t, 64> body{};
    editor.replace_body(opcode, {body.data(), next.extended_length});
  }
  const std::size_t length = editor.commit();

  ParsedFrame again;
  SLUICE_CHECK(parse({frame.data(), length}, again) == Verdict::kOk);
  SLUICE_CHECK(again.length == parsed.length && again.opcode == parsed.opcode && again.psn == parsed.psn);
  SLUICE_CHECK(again.payload_offset == parsed.payload_offset && again.payload_length == parsed.payload_length);
  SLUICE_CHECK(verify_icrc(frame.data(), again) == was_right);
}

// With its ICRC made right, the same frame must verify and stay right.
void check_sealed(ByteView input, const ParsedFrame& parsed) {
  std::vector<std::uint8_t> frame(input.begin(), input.begin() + parsed.length);
  store_le(frame.data() + parsed.icrc_offset(), icrc(frame.data(), parsed));
  ParsedFrame again;
  SLUICE_CHECK(parse_and_verify(frame, again) == Verdict::kOk);
  check_edits(frame, again);
  mark_congestion(frame.data(), again);
  SLUICE_CHECK(parse_and_verify(frame, again) == Verdict::kOk);
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
  if (parse(input, parsed) != Verdict::kOk) return;
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

void check_cm(ByteView input) {
  const auto mad = parse_cm(input);
  if (!mad) return;
  SLUICE_CHECK(!describe(mad->message).empty());
  std::array<std::uint8_t, kMadSize> written;
  write_cm(written.data(), *mad);
  SLUICE_CHECK(parse_cm(written) == mad);
  const auto* req = std::get_if<CmReq>(&mad->message);
  if (req == nullptr) return;
  const auto ip = IpCmHeader::parse(req->private_data.data());
  if (!ip) return;
  std::array<std::uint8_t, IpCmHeader::kSize> header;
  ip->write(header.data());
  SLUICE_CHECK(IpCmHeader::parse(header.data()) == ip);
}

}  // namespace sluice::fuzz
