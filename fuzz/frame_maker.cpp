#include "fuzz/frame_maker.h"

#include <algorithm>
#include <utility>

#include "wire/cm.h"
#include "wire/icrc.h"

namespace sluice::fuzz {
namespace {

using namespace wire;

// What a script's byte names as an opcode: the valid ones in turn, then any.
Opcode opcode_of(std::uint8_t byte) {
  static const std::vector<Opcode> valid = [] {
    std::vector<Opcode> found;
    for (unsigned code = 0; code < 256; ++code) {
      if (opcode_traits(static_cast<Opcode>(code)).valid) found.push_back(static_cast<Opcode>(code));
    }
    return found;
  }();
  return byte < 0xF0 ? valid[byte % valid.size()] : static_cast<Opcode>(byte * 7);
}

// Lengths near the limits of a packet of 256 bytes' MTU, and others.
std::size_t length_of(std::uint8_t byte) {
  constexpr std::size_t kInteresting[] = {0, 1, 3, 4, 8, 255, 256, 257, 64, 512, 4096};
  return byte < 0x80 ? kInteresting[byte % std::size(kInteresting)] : byte & 0x7Fu;
}

// Mostly none; then a little before or after, then far.
std::int32_t step_of(std::uint8_t byte) {
  if (byte < 0x80) return 0;
  return byte < 0xC0 ? byte % 8 - 4 : static_cast<std::int8_t>(byte << 1);
}

// ACKs, RNR NAKs and the NAKs that there are, then any.
std::uint8_t syndrome_of(std::uint8_t byte) {
  constexpr std::uint8_t kInteresting[] = {0x1F, 0x00, 0x05, 0x21, 0x60, 0x61, 0x62, 0x63};
  return byte < 0xC0 ? kInteresting[byte % std::size(kInteresting)] : static_cast<std::uint8_t>(byte << 1);
}

template <class Header>
void append(std::vector<std::uint8_t>& body, const Header& header) {
  body.resize(body.size() + Header::kSize);
  header.write(body.data() + body.size() - Header::kSize);
}

}  // namespace

Gid our_gid(bool v6) {
  if (!v6) return Gid::from(Ipv4Address{0x0A000001});
  return Gid{{0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
}
Gid peer_gid(bool v6) {
  if (!v6) return Gid::from(Ipv4Address{0x0A000002});
  return Gid{{0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}};
}

// `fault`: 0 to 3 none; then one thing wrong.
AddressVector FrameMaker::way_of(std::uint8_t fault, bool v6, bool marked) {
  AddressVector way{.source_mac = kPeerMac,
                    .destination_mac = kOurMac,
                    .source = peer_gid(v6),
                    .destination = our_gid(v6),
                    .traffic_class = static_cast<std::uint8_t>(marked ? 3 : 2)};
  if (fault == 4) way.source.bytes[15] = 9;
  if (fault == 5) way.destination.bytes[15] = 9;
  if (fault == 6) way.destination_mac.bytes[5] = 9;
  if (fault == 7) way.vlan_tci = 5;
  return way;
}

void FrameMaker::add_extended(Packet& packet, Extended which, const Target& to, Script& script) {
  const std::uint8_t region = script.next();
  const memory::Key known = to.keys.empty() ? memory::Key{} : to.keys[region % to.keys.size()];
  const RKey key{region < 0xE0 ? known.value : known.value + region};
  // Near the start of the region or near its end, also a little outside.
  const auto near = static_cast<std::int8_t>(script.next());
  const std::uint64_t base = address_of(region & 3u) + ((region & 0x10) != 0 ? 4096 : 0);
  const std::uint64_t address = base + static_cast<std::uint64_t>(std::int64_t{near} * ((region & 0x20) != 0 ? 1 : 8));
  auto& body = packet.body;
  switch (which) {
    case Extended::kReth: {
      const std::uint8_t length = script.next();
      return append(body,
                    Reth{address, key, length == 0xFF ? 0xFFFF'FFFFu : static_cast<std::uint32_t>(length_of(length))});
    }
    case Extended::kAtomicEth: return append(body, AtomicEth{address, key, script.next16(), script.next()});
    case Extended::kAeth: return append(body, Aeth{syndrome_of(script.next()), script.next()});
    case Extended::kIeth: return append(body, Ieth{key});
    case Extended::kDeth:
      return append(body,
                    Deth{QKey{packet.bth.destination == kCmQpn ? kCmQkey.value : 0x1111u + (region & 1u)}, 0, kCmQpn});
    default:
      for (std::size_t left = extended_size(which); left != 0; --left) body.push_back(script.next());
  }
}

// A message of the connection manager: of some kind, the first fields from the script.
void FrameMaker::add_management(Packet& packet, Script& script) {
  std::array<std::uint8_t, kMadSize> mad{};
  const std::uint8_t kind = script.next();
  if ((kind & 0x80) != 0) {
    const CmReq req{.local_comm_id = CommId{script.next()},
                    .service_id = rdma_service(7),
                    .local_ca_guid = 0x77,
                    .local_qpn = Qpn{0x300u + script.next()},
                    .responder_resources = 4,
                    .initiator_depth = 4,
                    .remote_cm_response_timeout = 10,
                    .starting_psn = Psn{script.next()},
                    .local_cm_response_timeout = 10,
                    .retry_count = 7,
                    .path_mtu = 3,
                    .max_cm_retries = 3,
                    .primary = {.local_gid = peer_gid(false), .remote_gid = our_gid(false)}};
    write_cm(mad.data(), {.transaction_id = 5, .message = req});
  } else {
    MadHeader{.attribute_id = static_cast<std::uint16_t>(0x10 + kind % 8)}.write(mad.data());
  }
  for (std::size_t i = MadHeader::kSize, n = script.next() % 32u; n > 0; --n, ++i) mad[i] = script.next();
  packet.body.insert(packet.body.end(), mad.begin(), mad.end());
}

MutableBytes FrameMaker::frame(const Target& to, Script& script) {
  Packet packet;
  const bool management = to.qpn == kCmQpn;
  const Opcode opcode = management ? Opcode::kUdSendOnly : opcode_of(script.next());
  const OpcodeTraits& traits = opcode_traits(opcode);
  const std::int32_t step = step_of(script.next());
  const std::uint8_t flags = script.next();
  packet.bth = {.opcode = opcode,
                .solicited = (flags & 2) != 0,
                .pkey = static_cast<std::uint16_t>((flags & 0xF8) == 0xF8 ? 0x1234 : kDefaultPkey),
                .destination = to.qpn,
                .ack_request = (flags & 1) != 0,
                .psn = (traits.is_request ? to.expected : to.last_sent) + static_cast<std::uint32_t>(step)};
  packet.way = way_of(flags >> 3 & 7, (flags & 0x40) != 0, (flags & 4) != 0);
  for (const Extended which : traits.extended) {
    if (traits.valid && which != Extended::kNone) add_extended(packet, which, to, script);
  }
  if (management) {
    add_management(packet, script);
  } else if (traits.has_payload || !traits.valid) {
    const std::size_t length = length_of(script.next());
    packet.body.resize(packet.body.size() + length, flags);
    packet.bth.pad_count = pad_for(length);
    packet.body.resize(packet.body.size() + packet.bth.pad_count, 0);
  }
  write(packet);
  damage(script);
  return MutableBytes(frame_).first(length_);
}

MutableBytes FrameMaker::packet(const Bth& bth, bool v6, std::vector<std::uint8_t> body, std::size_t payload) {
  Packet packet{.bth = bth, .way = way_of(0, v6, false), .body = std::move(body)};
  packet.bth.pad_count = pad_for(payload);
  packet.body.resize(packet.body.size() + packet.bth.pad_count, 0);
  write(packet);
  return MutableBytes(frame_).first(length_);
}

void FrameMaker::write(const Packet& packet) {
  const HeaderTemplate headers(packet.way);
  const std::size_t transport =
      std::min(Bth::kSize + packet.body.size(), kMaxFrameSize - kMaxHeadersBeforeBth - kIcrcSize);
  std::uint8_t* const at = frame_.data() + headers.write(frame_.data(), transport);
  packet.bth.write(at);
  std::copy_n(packet.body.begin(), transport - Bth::kSize, at + Bth::kSize);
  length_ = headers.seal(frame_.data(), headers.bth_offset() + transport);
}

// One thing more: cut short, a byte changed (and the ICRC made to fit or not), or bytes behind it.
void FrameMaker::damage(Script& script) {
  const std::uint8_t how = script.next();
  if (how < 0xC0) return;
  const std::size_t where = script.next16() % (length_ + 1);
  if (how < 0xD0) {
    length_ = where;
  } else if (how < 0xE0) {
    std::fill_n(frame_.begin() + static_cast<std::ptrdiff_t>(length_), where % 64, how);
    length_ += where % 64;
  } else if (where < length_) {
    frame_[where] = script.next();
    ParsedFrame parsed;
    if (how < 0xF0 || parse({frame_.data(), length_}, parsed) != Verdict::kOk) return;
    store_le(frame_.data() + parsed.icrc_offset(), icrc(frame_.data(), parsed));
  }
}

MutableBytes FrameMaker::odd_frame(Script& script) {
  const std::uint8_t kind = script.next();
  length_ = kind % 128u;
  for (std::size_t i = 0; i < length_; ++i) frame_[i] = 0;
  const auto put = [&](std::size_t at, std::initializer_list<std::uint8_t> bytes) {
    if (at + bytes.size() <= length_)
      std::copy(bytes.begin(), bytes.end(), frame_.begin() + static_cast<std::ptrdiff_t>(at));
  };
  put(0, {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2});
  if ((kind & 0x80) != 0) {  // ARP: who has, or is at
    put(12, {8, 6, 0, 1, 8, 0, 6, 4, 0, script.next()});
    put(22, {2, 0, 0, 0, 0, script.next(), 10, 0, 0, script.next()});
    put(38, {10, 0, 0, script.next()});
  } else {  // IPv6 with ICMP inside
    put(12, {0x86, 0xDD, 0x60, 0, 0, 0, 0, static_cast<std::uint8_t>(length_ - 54), 58, 255});
  }
  for (std::size_t n = script.next() % 64u; n > 0 && length_ != 0; --n) frame_[script.next() % length_] = script.next();
  return MutableBytes(frame_).first(length_);
}

}  // namespace sluice::fuzz
