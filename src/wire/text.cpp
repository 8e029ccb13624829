#include "wire/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "wire/icrc.h"

namespace sluice::wire {
namespace {

using Out = std::back_insert_iterator<std::string>;

void add(Out out, const Reth& h) {
  fmt::format_to(out, " va {:#x} rkey {:#x} len {}", h.virtual_address, h.rkey.value, h.length);
}

void add(Out out, const Aeth& h) {
  switch (h.type()) {
    case Aeth::Type::kAck:
      fmt::format_to(out, " ack");
      if (h.has_credits()) fmt::format_to(out, " credits {}", h.credits());
      break;
    case Aeth::Type::kRnrNak: fmt::format_to(out, " rnr-nak wait {} us", h.rnr_delay().microseconds()); break;
    case Aeth::Type::kNak: fmt::format_to(out, " nak {}", to_string(h.nak_code())); break;
    case Aeth::Type::kReserved: fmt::format_to(out, " reserved syndrome {:#x}", h.syndrome); break;
  }
  fmt::format_to(out, " msn {}", h.msn);
}

void add(Out out, const AtomicEth& h) {
  fmt::format_to(out, " va {:#x} rkey {:#x} swap/add {:#x} compare {:#x}", h.virtual_address, h.rkey.value,
                 h.swap_or_add, h.compare);
}

void add(Out out, const MaskedAtomicEth& h) {
  fmt::format_to(out, " va {:#x} rkey {:#x} swap {:#x} mask {:#x} compare {:#x} mask {:#x}", h.virtual_address,
                 h.rkey.value, h.swap, h.swap_mask, h.compare, h.compare_mask);
}

void add(Out out, const AtomicAckEth& h) { fmt::format_to(out, " original {:#x}", h.original); }
void add(Out out, const ImmDt& h) { fmt::format_to(out, " imm {:#x}", h.immediate); }
void add(Out out, const Ieth& h) { fmt::format_to(out, " invalidate {:#x}", h.rkey.value); }
void add(Out out, const Deth& h) { fmt::format_to(out, " from qpn {:#x} qkey {:#x}", h.source.value, h.qkey.value); }

void add_extended(Out out, Extended kind, const std::uint8_t* frame, const ParsedFrame& parsed) {
  switch (kind) {
    case Extended::kReth: return add(out, get<Reth>(frame, parsed));
    case Extended::kAeth: return add(out, get<Aeth>(frame, parsed));
    case Extended::kAtomicEth: return add(out, get<AtomicEth>(frame, parsed));
    case Extended::kMaskedAtomicEth: return add(out, get<MaskedAtomicEth>(frame, parsed));
    case Extended::kAtomicAckEth: return add(out, get<AtomicAckEth>(frame, parsed));
    case Extended::kImmDt: return add(out, get<ImmDt>(frame, parsed));
    case Extended::kIeth: return add(out, get<Ieth>(frame, parsed));
    case Extended::kDeth: return add(out, get<Deth>(frame, parsed));
    case Extended::kNone:
    case Extended::kCnpReserved: return;
  }
}

std::string_view name_of(Ecn ecn) {
  switch (ecn) {
    case Ecn::kNotCapable: return "";
    case Ecn::kCapable0: return " ect0";
    case Ecn::kCapable1: return " ect1";
    case Ecn::kCongestionExperienced: return " ce";
  }
  return "";
}

// For what is no RoCE: the best name there is.
std::string describe_other(ByteView frame, Verdict verdict) {
  if (frame.size() < EthernetHeader::kSize) return fmt::format("{} bytes: {}", frame.size(), to_string(verdict));
  const EthernetHeader ethernet = EthernetHeader::parse(frame.data());
  if (ethernet.ether_type == kEtherTypeArp && frame.size() >= EthernetHeader::kSize + ArpPacket::kSize) {
    const ArpPacket arp = ArpPacket::parse(frame.data() + EthernetHeader::kSize);
    if (arp.operation == ArpPacket::kRequest) {
      return fmt::format("ARP who has {}? tell {}", arp.target_ip.to_string(), arp.sender_ip.to_string());
    }
    return fmt::format("ARP {} is at {}", arp.sender_ip.to_string(), arp.sender_mac.to_string());
  }
  return fmt::format("{} > {} type {:#06x}, {} bytes: {}", ethernet.source.to_string(),
                     ethernet.destination.to_string(), ethernet.ether_type, frame.size(), to_string(verdict));
}

struct CmText {
  std::string operator()(const CmReq& m) const {
    return fmt::format("REQ comm {:#x} service {:#x} qpn {:#x} psn {} mtu {} retry {} rnr {} resources {} depth {}",
                       m.local_comm_id.value, m.service_id.value, m.local_qpn.value, m.starting_psn.value(),
                       mtu(m.path_mtu), m.retry_count, m.rnr_retry_count, m.responder_resources, m.initiator_depth);
  }
  std::string operator()(const CmRep& m) const {
    return fmt::format("REP comm {:#x} to {:#x} qpn {:#x} psn {} rnr {} resources {} depth {}", m.local_comm_id.value,
                       m.remote_comm_id.value, m.local_qpn.value, m.starting_psn.value(), m.rnr_retry_count,
                       m.responder_resources, m.initiator_depth);
  }
  std::string operator()(const CmRej& m) const {
    return fmt::format("{} reason {}", pair("REJ", m), static_cast<unsigned>(m.reason));
  }
  std::string operator()(const CmMra& m) const {
    return fmt::format("{} wait {} us", pair("MRA", m), cm_timeout(m.service_timeout).microseconds());
  }
  std::string operator()(const CmDreq& m) const {
    return fmt::format("{} qpn {:#x}", pair("DREQ", m), m.remote_qpn.value);
  }
  std::string operator()(const CmRtu& m) const { return pair("RTU", m); }
  std::string operator()(const CmDrep& m) const { return pair("DREP", m); }
  std::string operator()(const CmSidrReq& m) const {
    return fmt::format("SIDR_REQ {:#x} service {:#x}", m.request_id.value, m.service_id.value);
  }
  std::string operator()(const CmSidrRep& m) const {
    return fmt::format("SIDR_REP {:#x} service {:#x} status {} qpn {:#x} qkey {:#x}", m.request_id.value,
                       m.service_id.value, static_cast<unsigned>(m.status), m.qpn.value, m.qkey.value);
  }

 private:
  template <class M>
  static std::string pair(std::string_view name, const M& m) {
    return fmt::format("{} comm {:#x} to {:#x}", name, m.local_comm_id.value, m.remote_comm_id.value);
  }
  static unsigned mtu(std::uint8_t code) { return 128U << code; }
};

}  // namespace

std::string describe(const CmMessage& message) { return std::visit(CmText{}, message); }

namespace {

// All that its headers say.
std::string describe_headers(ByteView frame, const ParsedFrame& parsed) {
  std::string line;
  const Out out = std::back_inserter(line);
  const std::uint8_t* bytes = frame.data();
  fmt::format_to(out, "{} > {}", source_gid(bytes, parsed).to_string(), destination_gid(bytes, parsed).to_string());
  if (parsed.has_vlan) fmt::format_to(out, " vlan {}", parsed.vlan_tci & 0xFFF);
  fmt::format_to(out, " {} qpn {:#x} psn {}", parsed.traits().name, parsed.destination.value, parsed.psn.value());
  if (parsed.ack_request) fmt::format_to(out, " A");
  if (parsed.solicited) fmt::format_to(out, " S");
  fmt::format_to(out, "{}{}{}", name_of(parsed.ecn()), parsed.fecn ? " fecn" : "", parsed.becn ? " becn" : "");
  for (const Extended kind : parsed.traits().extended) add_extended(out, kind, bytes, parsed);
  return line;
}

std::string payload_text(const ParsedFrame& parsed) {
  return parsed.traits().has_payload ? fmt::format(" | payload {}", parsed.payload_length) : "";
}

}  // namespace

std::string describe(ByteView frame) {
  ParsedFrame parsed;
  const Verdict verdict = parse(frame, parsed);
  if (verdict != Verdict::kOk) return describe_other(frame, verdict);
  const auto cm = parse_cm(frame.data(), parsed);
  return describe_headers(frame, parsed) + (cm ? fmt::format(" | CM {}", describe(cm->message)) : "") +
         payload_text(parsed) + " | icrc " + (verify_icrc(frame.data(), parsed) ? "ok" : "BAD");
}

std::string describe_cut(ByteView start, std::size_t length) {
  std::vector<std::uint8_t> whole(start.begin(), start.end());
  whole.resize(std::max(start.size(), std::min(length, kMaxFrameSize)));  // no header says what is beyond it
  ParsedFrame parsed;
  const std::string cut = fmt::format(" | cut, {} of {} bytes", start.size(), length);
  const Verdict verdict = parse(whole, parsed);
  if (verdict == Verdict::kOk && parsed.payload_offset <= start.size())
    return describe_headers(whole, parsed) + payload_text(parsed) + cut;
  if (start.size() < EthernetHeader::kSize) return fmt::format("a frame of {} bytes{}", length, cut);
  const EthernetHeader ethernet = EthernetHeader::parse(start.data());
  return fmt::format("{} > {} type {:#06x}{}", ethernet.source.to_string(), ethernet.destination.to_string(),
                     ethernet.ether_type, cut);
}

}  // namespace sluice::wire
