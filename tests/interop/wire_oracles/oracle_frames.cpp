// Our side of the wire oracles: writes a capture of everything we can build, and says what we read in a capture.
//
//   oracle_frames write FILE.pcap   every opcode, four networks, several payload sizes; every CM message
//   oracle_frames read FILE.pcap    one line of JSON a frame: {"ok": true, "icrc": n, "fields": {tshark's name: value}}
#include <pcap/pcap.h>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "golden/capture.h"
#include "wire/cm.h"
#include "wire/frame.h"
#include "wire/icrc.h"

namespace sluice::wire {
namespace {

using nlohmann::json;

// ---- what we read ----

json fields_of(const Bth& h) {
  return {{"infiniband.bth.opcode", static_cast<unsigned>(h.opcode)},
          {"infiniband.bth.se", h.solicited},
          {"infiniband.bth.m", h.migrated},
          {"infiniband.bth.padcnt", h.pad_count},
          {"infiniband.bth.tver", h.version},
          {"infiniband.bth.p_key", h.pkey},
          {"infiniband.bth.destqp", h.destination.value},
          {"infiniband.bth.a", h.ack_request},
          {"infiniband.bth.psn", h.psn.value()}};
}

json fields_of(const Reth& h) {
  return {{"infiniband.reth.va", h.virtual_address},
          {"infiniband.reth.r_key", h.rkey.value},
          {"infiniband.reth.dmalen", h.length}};
}

json fields_of(const Aeth& h) {
  json fields = {{"infiniband.aeth.syndrome", h.syndrome}, {"infiniband.aeth.msn", h.msn}};
  if (h.is_ack()) fields["infiniband.aeth.syndrome.credit_count"] = h.value();
  if (h.is_rnr_nak()) fields["infiniband.aeth.syndrome.timer"] = h.value();
  if (h.is_nak()) fields["infiniband.aeth.syndrome.error_code"] = static_cast<unsigned>(h.nak_code());
  return fields;
}

// tshark gives an AtomicETH the address and key names of the RETH.
json fields_of(const AtomicEth& h) {
  return {{"infiniband.reth.va", h.virtual_address},
          {"infiniband.reth.r_key", h.rkey.value},
          {"infiniband.atomiceth.swapdt", h.swap_or_add},
          {"infiniband.atomiceth.cmpdt", h.compare}};
}

json fields_of(const AtomicAckEth& h) { return {{"infiniband.atomicacketh.origremdt", h.original}}; }
json fields_of(const Deth& h) {
  return {{"infiniband.deth.q_key", h.qkey.value}, {"infiniband.deth.srcqp", h.source.value}};
}

template <class H>
void add_extended(json& fields, const std::uint8_t* frame, const ParsedFrame& parsed) {
  if (parsed.traits().has(H::kExtended)) fields.update(fields_of(get<H>(frame, parsed)));
}

struct CmFields {
  json operator()(const CmReq& m) const {
    json fields = {{"infiniband.cm.req", m.local_comm_id.value},
                   {"infiniband.cm.req.serviceid", m.service_id.value},
                   {"infiniband.cm.req.localcaguid", m.local_ca_guid},
                   {"infiniband.cm.req.localqkey", m.local_qkey.value},
                   {"infiniband.cm.req.localqpn", m.local_qpn.value},
                   {"infiniband.cm.req.responderres", m.responder_resources},
                   {"infiniband.cm.req.localeecn", m.local_eecn},
                   {"infiniband.cm.req.initdepth", m.initiator_depth},
                   {"infiniband.cm.req.remoteeecn", m.remote_eecn},
                   {"infiniband.cm.req.remoteresptout", m.remote_cm_response_timeout},
                   {"infiniband.cm.req.transpsvctype", m.transport_service},
                   {"infiniband.cm.req.e2eflowctrl", m.end_to_end_flow_control},
                   {"infiniband.cm.req.startpsn", m.starting_psn.value()},
                   {"infiniband.cm.req.localresptout", m.local_cm_response_timeout},
                   {"infiniband.cm.req.retrcount", m.retry_count},
                   {"infiniband.cm.req.pkey", m.pkey},
                   {"infiniband.cm.req.pppmtu", m.path_mtu},
                   {"infiniband.cm.req.rdcexist", m.rdc_exists},
                   {"infiniband.cm.req.rnrretrcount", m.rnr_retry_count},
                   {"infiniband.cm.req.maxcmretr", m.max_cm_retries},
                   {"infiniband.cm.req.srq", m.srq},
                   {"infiniband.cm.req.ext_transport", m.extended_transport}};
    add_path(fields, "infiniband.cm.req.prim_", m.primary);
    add_path(fields, "infiniband.cm.req.alt_", m.alternate);
    if (const auto ip = IpCmHeader::parse(m.private_data.data())) {
      const std::string family = ip->source.is_v4() ? "4" : "6";
      fields["infiniband.cm.req.ip_cm.sport"] = ip->source_port;
      fields["infiniband.cm.req.ip_cm.sip" + family] = ip->source.to_string();
      fields["infiniband.cm.req.ip_cm.dip" + family] = ip->destination.to_string();
    }
    return fields;
  }
  json operator()(const CmRep& m) const {
    return {{"infiniband.cm.rep", m.local_comm_id.value},
            {"infiniband.cm.rep.remotecommid", m.remote_comm_id.value},
            {"infiniband.cm.rep.localqkey", m.local_qkey.value},
            {"infiniband.cm.rep.localqpn", m.local_qpn.value},
            {"infiniband.cm.rep.localeecn", m.local_eecn},
            {"infiniband.cm.rep.startpsn", m.starting_psn.value()},
            {"infiniband.cm.rep.respres", m.responder_resources},
            {"infiniband.cm.rep.initdepth", m.initiator_depth},
            {"infiniband.cm.rep.tgtackdelay", m.target_ack_delay},
            {"infiniband.cm.rep.failoveracc", m.failover_accepted},
            {"infiniband.cm.rep.e2eflowctrl", m.end_to_end_flow_control},
            {"infiniband.cm.rep.rnrretrcount", m.rnr_retry_count},
            {"infiniband.cm.rep.srq", m.srq},
            {"infiniband.cm.rep.localcaguid", m.local_ca_guid},
            {"infiniband.cm.rep.private", bytes(m.private_data)}};
  }
  json operator()(const CmRtu& m) const { return pair("infiniband.cm.rtu.", m); }
  json operator()(const CmDrep& m) const { return pair("infiniband.cm.drsp.", m); }
  json operator()(const CmDreq& m) const {
    json fields = pair("infiniband.cm.dreq.", m);
    fields["infiniband.cm.req.remoteqpneecn"] = m.remote_qpn.value;
    return fields;
  }
  json operator()(const CmRej& m) const {
    json fields = pair("infiniband.cm.rej.", m);
    fields["infiniband.cm.rej.msgrej"] = static_cast<unsigned>(m.rejected);
    fields["infiniband.cm.rej.rejinfolen"] = m.info_length;
    fields["infiniband.cm.rej.reason"] = static_cast<unsigned>(m.reason);
    fields["infiniband.cm.rej.ari"] = bytes(m.info);
    return fields;
  }
  // tshark knows none of their fields.
  json operator()(const CmMra&) const { return json::object(); }
  json operator()(const CmSidrReq&) const { return json::object(); }
  json operator()(const CmSidrRep&) const { return json::object(); }

 private:
  static std::string bytes(ByteView data) {
    std::string text;
    for (const std::uint8_t byte : data) {
      std::array<char, 4> hex{};
      std::snprintf(hex.data(), hex.size(), "%s%02x", text.empty() ? "" : ":", byte);
      text += hex.data();
    }
    return text;
  }
  static void add_path(json& fields, const std::string& prefix, const CmPath& path) {
    fields[prefix + "locallid"] = path.local_lid;
    fields[prefix + "remotelid"] = path.remote_lid;
    fields[prefix + "tfcclass"] = path.traffic_class;
    fields[prefix + "hoplim"] = path.hop_limit;
    fields[prefix + "sl"] = path.service_level;
    fields[prefix + "subnetlocal"] = path.subnet_local;
    fields[prefix + "localacktout"] = path.local_ack_timeout;
    if (prefix.find("prim") == std::string::npos) {
      fields[prefix + "localgid"] = bytes(path.local_gid.bytes);
      fields[prefix + "remotegid"] = bytes(path.remote_gid.bytes);
    } else {
      const std::string family = path.local_gid.is_v4() ? "_ipv4" : "";
      fields[prefix + "localgid" + family] = path.local_gid.to_string();
      fields[prefix + "remotegid" + family] = path.remote_gid.to_string();
    }
    // Not the flow label and packet rate: tshark 4.0 reads them at wrong places (24 of the 32 bits).
  }
  template <class M>
  static json pair(const std::string& prefix, const M& m) {
    return {{prefix + "localcommid", m.local_comm_id.value},
            {prefix + "remotecommid", m.remote_comm_id.value},
            {prefix + "private", bytes(m.private_data)}};
  }
};

json read_frame(ByteView frame) {
  ParsedFrame parsed;
  const Verdict verdict = parse_and_verify(frame, parsed);
  if (verdict != Verdict::kOk) return {{"ok", false}, {"verdict", to_string(verdict)}};
  const std::uint8_t* bytes = frame.data();
  json fields = fields_of(get_bth(bytes, parsed));
  add_extended<Reth>(fields, bytes, parsed);
  add_extended<Aeth>(fields, bytes, parsed);
  add_extended<AtomicEth>(fields, bytes, parsed);
  add_extended<AtomicAckEth>(fields, bytes, parsed);
  add_extended<Deth>(fields, bytes, parsed);
  if (const auto mad = parse_cm(bytes, parsed)) {
    fields["infiniband.mad.transactionid"] = mad->transaction_id;
    fields.update(std::visit(CmFields{}, mad->message));
  }
  return {{"ok", true}, {"icrc", load_be<std::uint32_t>(bytes + parsed.icrc_offset())}, {"fields", fields}};
}

// ---- what we write ----

class Capture {
 public:
  explicit Capture(const char* file) : pcap_(pcap_open_dead(DLT_EN10MB, 65535), pcap_close) {
    dumper_.reset(pcap_dump_open(pcap_.get(), file));
    if (!dumper_) {
      std::cerr << file << ": " << pcap_geterr(pcap_.get()) << '\n';
      std::exit(1);
    }
  }
  void add(ByteView frame) {
    pcap_pkthdr header{};
    header.ts.tv_sec = ++count_;
    header.caplen = header.len = static_cast<bpf_u_int32>(frame.size());
    pcap_dump(reinterpret_cast<u_char*>(dumper_.get()), &header, frame.data());
  }

 private:
  std::unique_ptr<pcap_t, decltype(&pcap_close)> pcap_;
  std::unique_ptr<pcap_dumper_t, decltype(&pcap_dump_close)> dumper_{nullptr, pcap_dump_close};
  int count_ = 0;
};

struct Network {
  HeaderTemplate headers;
  bool v4;
};

std::vector<Network> networks() {
  std::vector<Network> made;
  for (const char* ip : {"10.0.0.", "fd00::"}) {
    for (const bool vlan : {false, true}) {
      AddressVector address{.source_mac = MacAddress::parse("02:00:00:00:00:01").value(),
                            .destination_mac = MacAddress::parse("02:00:00:00:00:02").value(),
                            .source = Gid::parse(std::string(ip) + "1").value(),
                            .destination = Gid::parse(std::string(ip) + "2").value(),
                            .source_port = 0xD00D,
                            .traffic_class = 0x6A,
                            .hop_limit = 61,
                            .flow_label = 0x12345};
      if (vlan) address.vlan_tci = 0x6064;
      made.push_back({HeaderTemplate(address), address.source.is_v4()});
    }
  }
  return made;
}

void write_opcode(Capture& capture, const HeaderTemplate& headers, Rng& rng, const OpcodeTraits& traits, Opcode opcode,
                  std::size_t payload_length) {
  std::array<std::uint8_t, kMaxFrameSize> frame;
  const std::uint8_t pad = pad_for(payload_length);
  const std::size_t body = traits.extended_length + payload_length + pad;
  std::uint8_t* p = frame.data() + headers.write(frame.data(), Bth::kSize + body);
  Bth{.opcode = opcode,
      .solicited = rng.below(2) == 0,
      .pad_count = pad,
      .becn = opcode == Opcode::kCnp,
      .destination = Qpn(static_cast<std::uint32_t>(2 + rng.below(0xFF'FFF0))),
      .ack_request = rng.below(2) == 0,
      .psn = Psn(static_cast<std::uint32_t>(rng.next()))}
      .write(p);
  p += Bth::kSize;
  const std::uint8_t fill = opcode == Opcode::kCnp ? 0 : 0xFF;
  for (std::size_t i = 0; i < body; ++i) p[i] = static_cast<std::uint8_t>(rng.next()) & fill;
  if (traits.has(Extended::kAeth)) {
    const auto msn = static_cast<std::uint32_t>(rng.below(1 << 24));
    const auto code = static_cast<std::uint8_t>(rng.below(32));
    const Aeth kinds[] = {Aeth::ack(msn, code), Aeth::rnr_nak(msn, code),
                          Aeth::nak(msn, static_cast<NakCode>(code % 5))};
    kinds[traits.kind == Kind::kAcknowledge ? rng.below(3) : 0].write(p);
  }
  capture.add({frame.data(), headers.seal(frame.data(), static_cast<std::size_t>(p - frame.data()) + body)});
}

void write_cm_messages(Capture& capture, const HeaderTemplate& headers, bool v4, Rng& rng) {
  for (const std::uint16_t attribute : {CmReq::kAttribute, CmRep::kAttribute, CmRtu::kAttribute, CmRej::kAttribute,
                                        CmMra::kAttribute, CmDreq::kAttribute, CmDrep::kAttribute}) {
    std::array<std::uint8_t, kMadSize> random;
    for (auto& byte : random) byte = static_cast<std::uint8_t>(rng.next());
    MadHeader{.transaction_id = rng.next(), .attribute_id = attribute}.write(random.data());
    CmMad mad = parse_cm(random).value();
    if (auto* req = std::get_if<CmReq>(&mad.message)) {
      // As rdma_cm does, the addresses that the frame has; tshark expects it, too.
      const Gid from = Gid::parse(v4 ? "10.0.0.1" : "fd00::1").value();
      const Gid to = Gid::parse(v4 ? "10.0.0.2" : "fd00::2").value();
      req->service_id = rdma_service(18515);
      req->primary.local_gid = from;
      req->primary.remote_gid = to;
      IpCmHeader{.source_port = 0xABCD, .source = from, .destination = to}.write(req->private_data.data());
    }
    std::array<std::uint8_t, 512> frame;
    capture.add({frame.data(), write_cm_frame(frame.data(), headers, Psn(1), mad)});
  }
}

void write_everything(const char* file) {
  Capture capture(file);
  Rng rng(1);
  for (const auto& [headers, v4] : networks()) {
    for (unsigned code = 0; code < 256; ++code) {
      const OpcodeTraits& traits = opcode_traits(static_cast<std::uint8_t>(code));
      if (!traits.valid) continue;
      for (const std::size_t payload_length : {0U, 1U, 8U, 250U, 1024U, 4096U}) {
        if (payload_length != 0 && !traits.has_payload) break;
        write_opcode(capture, headers, rng, traits, static_cast<Opcode>(code), payload_length);
      }
    }
    for (int i = 0; i < 4; ++i) write_cm_messages(capture, headers, v4, rng);
  }
}

}  // namespace
}  // namespace sluice::wire

int main(int argc, char** argv) {
  const std::string_view command = argc == 3 ? argv[1] : "";
  if (command == "write") {
    sluice::wire::write_everything(argv[2]);
  } else if (command == "read") {
    for (const auto& frame : sluice::golden::read_capture(argv[2]))
      std::cout << sluice::wire::read_frame(frame) << '\n';
  } else {
    std::cerr << "usage: oracle_frames write|read FILE.pcap\n";
    return 2;
  }
  return 0;
}
