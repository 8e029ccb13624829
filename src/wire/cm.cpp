#include "wire/cm.h"

#include <algorithm>
#include <cstring>

namespace sluice::wire {
namespace {

// Fields of fewer than eight bits, as byte offset, distance from the byte's low end, and width.
std::uint8_t load_bits(const std::uint8_t* p, unsigned shift, unsigned width) {
  return static_cast<std::uint8_t>(*p >> shift & ((1U << width) - 1));
}
bool load_bit(const std::uint8_t* p, unsigned shift) { return load_bits(p, shift, 1) != 0; }
// REQUIRES: the bits are zero so far.
void add_bits(std::uint8_t* p, unsigned shift, unsigned width, unsigned value) {
  *p = static_cast<std::uint8_t>(*p | (value & ((1U << width) - 1)) << shift);
}

template <std::size_t N>
void load_array(std::array<std::uint8_t, N>& to, const std::uint8_t* p) {
  std::memcpy(to.data(), p, N);
}
template <std::size_t N>
void store_array(std::uint8_t* p, const std::array<std::uint8_t, N>& from) {
  std::memcpy(p, from.data(), N);
}

CommId load_comm_id(const std::uint8_t* p) { return CommId(load_be<std::uint32_t>(p)); }

// All that `p` points to below is the data of a MAD, 232 zeroed bytes when written.

constexpr std::size_t kPathSize = 44;

CmPath load_path(const std::uint8_t* p) {
  CmPath path{.local_lid = load_be<std::uint16_t>(p), .remote_lid = load_be<std::uint16_t>(p + 2)};
  load_array(path.local_gid.bytes, p + 4);
  load_array(path.remote_gid.bytes, p + 20);
  path.flow_label = load_be24(p + 36) >> 4;
  path.packet_rate = load_bits(p + 39, 0, 6);
  path.traffic_class = p[40];
  path.hop_limit = p[41];
  path.service_level = load_bits(p + 42, 4, 4);
  path.subnet_local = load_bit(p + 42, 3);
  path.local_ack_timeout = load_bits(p + 43, 3, 5);
  return path;
}

void store(std::uint8_t* p, const CmPath& path) {
  store_be(p, path.local_lid);
  store_be(p + 2, path.remote_lid);
  store_array(p + 4, path.local_gid.bytes);
  store_array(p + 20, path.remote_gid.bytes);
  store_be24(p + 36, path.flow_label << 4);
  add_bits(p + 39, 0, 6, path.packet_rate);
  p[40] = path.traffic_class;
  p[41] = path.hop_limit;
  add_bits(p + 42, 4, 4, path.service_level);
  add_bits(p + 42, 3, 1, path.subnet_local);
  add_bits(p + 43, 3, 5, path.local_ack_timeout);
}

CmReq load_req(const std::uint8_t* p) {
  CmReq m{.local_comm_id = load_comm_id(p),
          .service_id = ServiceId(load_be<std::uint64_t>(p + 8)),
          .local_ca_guid = load_be<std::uint64_t>(p + 16),
          .local_qkey = QKey(load_be<std::uint32_t>(p + 28)),
          .local_qpn = Qpn(load_be24(p + 32)),
          .responder_resources = p[35],
          .local_eecn = load_be24(p + 36),
          .initiator_depth = p[39],
          .remote_eecn = load_be24(p + 40),
          .remote_cm_response_timeout = load_bits(p + 43, 3, 5),
          .transport_service = load_bits(p + 43, 1, 2),
          .end_to_end_flow_control = load_bit(p + 43, 0),
          .starting_psn = Psn(load_be24(p + 44)),
          .local_cm_response_timeout = load_bits(p + 47, 3, 5),
          .retry_count = load_bits(p + 47, 0, 3),
          .pkey = load_be<std::uint16_t>(p + 48),
          .path_mtu = load_bits(p + 50, 4, 4),
          .rdc_exists = load_bit(p + 50, 3),
          .rnr_retry_count = load_bits(p + 50, 0, 3),
          .max_cm_retries = load_bits(p + 51, 4, 4),
          .srq = load_bit(p + 51, 3),
          .extended_transport = load_bits(p + 51, 0, 3),
          .primary = load_path(p + 52),
          .alternate = load_path(p + 52 + kPathSize)};
  load_array(m.private_data, p + 140);
  return m;
}

void store(std::uint8_t* p, const CmReq& m) {
  store_be(p, m.local_comm_id.value);
  store_be(p + 8, m.service_id.value);
  store_be(p + 16, m.local_ca_guid);
  store_be(p + 28, m.local_qkey.value);
  store_be24(p + 32, m.local_qpn.value);
  p[35] = m.responder_resources;
  store_be24(p + 36, m.local_eecn);
  p[39] = m.initiator_depth;
  store_be24(p + 40, m.remote_eecn);
  add_bits(p + 43, 3, 5, m.remote_cm_response_timeout);
  add_bits(p + 43, 1, 2, m.transport_service);
  add_bits(p + 43, 0, 1, m.end_to_end_flow_control);
  store_be24(p + 44, m.starting_psn.value());
  add_bits(p + 47, 3, 5, m.local_cm_response_timeout);
  add_bits(p + 47, 0, 3, m.retry_count);
  store_be(p + 48, m.pkey);
  add_bits(p + 50, 4, 4, m.path_mtu);
  add_bits(p + 50, 3, 1, m.rdc_exists);
  add_bits(p + 50, 0, 3, m.rnr_retry_count);
  add_bits(p + 51, 4, 4, m.max_cm_retries);
  add_bits(p + 51, 3, 1, m.srq);
  add_bits(p + 51, 0, 3, m.extended_transport);
  store(p + 52, m.primary);
  store(p + 52 + kPathSize, m.alternate);
  store_array(p + 140, m.private_data);
}

CmRep load_rep(const std::uint8_t* p) {
  CmRep m{.local_comm_id = load_comm_id(p),
          .remote_comm_id = load_comm_id(p + 4),
          .local_qkey = QKey(load_be<std::uint32_t>(p + 8)),
          .local_qpn = Qpn(load_be24(p + 12)),
          .local_eecn = load_be24(p + 16),
          .starting_psn = Psn(load_be24(p + 20)),
          .responder_resources = p[24],
          .initiator_depth = p[25],
          .target_ack_delay = load_bits(p + 26, 3, 5),
          .failover_accepted = load_bits(p + 26, 1, 2),
          .end_to_end_flow_control = load_bit(p + 26, 0),
          .rnr_retry_count = load_bits(p + 27, 5, 3),
          .srq = load_bit(p + 27, 4),
          .local_ca_guid = load_be<std::uint64_t>(p + 28)};
  load_array(m.private_data, p + 36);
  return m;
}

void store(std::uint8_t* p, const CmRep& m) {
  store_be(p, m.local_comm_id.value);
  store_be(p + 4, m.remote_comm_id.value);
  store_be(p + 8, m.local_qkey.value);
  store_be24(p + 12, m.local_qpn.value);
  store_be24(p + 16, m.local_eecn);
  store_be24(p + 20, m.starting_psn.value());
  p[24] = m.responder_resources;
  p[25] = m.initiator_depth;
  add_bits(p + 26, 3, 5, m.target_ack_delay);
  add_bits(p + 26, 1, 2, m.failover_accepted);
  add_bits(p + 26, 0, 1, m.end_to_end_flow_control);
  add_bits(p + 27, 5, 3, m.rnr_retry_count);
  add_bits(p + 27, 4, 1, m.srq);
  store_be(p + 28, m.local_ca_guid);
  store_array(p + 36, m.private_data);
}

// RTU and DREP: two identifiers and private data.
template <class M>
M load_pair(const std::uint8_t* p) {
  M m{.local_comm_id = load_comm_id(p), .remote_comm_id = load_comm_id(p + 4)};
  load_array(m.private_data, p + 8);
  return m;
}

template <class M>
void store_pair(std::uint8_t* p, const M& m) {
  store_be(p, m.local_comm_id.value);
  store_be(p + 4, m.remote_comm_id.value);
  store_array(p + 8, m.private_data);
}

void store(std::uint8_t* p, const CmRtu& m) { store_pair(p, m); }
void store(std::uint8_t* p, const CmDrep& m) { store_pair(p, m); }

CmRej load_rej(const std::uint8_t* p) {
  CmRej m{.local_comm_id = load_comm_id(p),
          .remote_comm_id = load_comm_id(p + 4),
          .rejected = static_cast<CmMessageKind>(load_bits(p + 8, 6, 2)),
          .info_length = load_bits(p + 9, 1, 7),
          .reason = static_cast<CmRejectReason>(load_be<std::uint16_t>(p + 10))};
  load_array(m.info, p + 12);
  load_array(m.private_data, p + 84);
  return m;
}

void store(std::uint8_t* p, const CmRej& m) {
  store_be(p, m.local_comm_id.value);
  store_be(p + 4, m.remote_comm_id.value);
  add_bits(p + 8, 6, 2, static_cast<unsigned>(m.rejected));
  add_bits(p + 9, 1, 7, m.info_length);
  store_be(p + 10, static_cast<std::uint16_t>(m.reason));
  store_array(p + 12, m.info);
  store_array(p + 84, m.private_data);
}

CmMra load_mra(const std::uint8_t* p) {
  CmMra m{.local_comm_id = load_comm_id(p),
          .remote_comm_id = load_comm_id(p + 4),
          .received = static_cast<CmMessageKind>(load_bits(p + 8, 6, 2)),
          .service_timeout = load_bits(p + 9, 3, 5)};
  load_array(m.private_data, p + 10);
  return m;
}

void store(std::uint8_t* p, const CmMra& m) {
  store_be(p, m.local_comm_id.value);
  store_be(p + 4, m.remote_comm_id.value);
  add_bits(p + 8, 6, 2, static_cast<unsigned>(m.received));
  add_bits(p + 9, 3, 5, m.service_timeout);
  store_array(p + 10, m.private_data);
}

CmDreq load_dreq(const std::uint8_t* p) {
  CmDreq m{
      .local_comm_id = load_comm_id(p), .remote_comm_id = load_comm_id(p + 4), .remote_qpn = Qpn(load_be24(p + 8))};
  load_array(m.private_data, p + 12);
  return m;
}

void store(std::uint8_t* p, const CmDreq& m) {
  store_be(p, m.local_comm_id.value);
  store_be(p + 4, m.remote_comm_id.value);
  store_be24(p + 8, m.remote_qpn.value);
  store_array(p + 12, m.private_data);
}

CmSidrReq load_sidr_req(const std::uint8_t* p) {
  CmSidrReq m{.request_id = SidrRequestId(load_be<std::uint32_t>(p)),
              .pkey = load_be<std::uint16_t>(p + 4),
              .service_id = ServiceId(load_be<std::uint64_t>(p + 8))};
  load_array(m.private_data, p + 16);
  return m;
}

void store(std::uint8_t* p, const CmSidrReq& m) {
  store_be(p, m.request_id.value);
  store_be(p + 4, m.pkey);
  store_be(p + 8, m.service_id.value);
  store_array(p + 16, m.private_data);
}

CmSidrRep load_sidr_rep(const std::uint8_t* p) {
  CmSidrRep m{.request_id = SidrRequestId(load_be<std::uint32_t>(p)),
              .status = static_cast<SidrStatus>(p[4]),
              .info_length = p[5],
              .qpn = Qpn(load_be24(p + 8)),
              .service_id = ServiceId(load_be<std::uint64_t>(p + 12)),
              .qkey = QKey(load_be<std::uint32_t>(p + 20))};
  load_array(m.info, p + 24);
  load_array(m.private_data, p + 96);
  return m;
}

void store(std::uint8_t* p, const CmSidrRep& m) {
  store_be(p, m.request_id.value);
  p[4] = static_cast<std::uint8_t>(m.status);
  p[5] = m.info_length;
  store_be24(p + 8, m.qpn.value);
  store_be(p + 12, m.service_id.value);
  store_be(p + 20, m.qkey.value);
  store_array(p + 24, m.info);
  store_array(p + 96, m.private_data);
}

std::optional<CmMessage> load_message(std::uint16_t attribute, const std::uint8_t* p) {
  switch (attribute) {
    case CmReq::kAttribute: return load_req(p);
    case CmRep::kAttribute: return load_rep(p);
    case CmRtu::kAttribute: return load_pair<CmRtu>(p);
    case CmRej::kAttribute: return load_rej(p);
    case CmMra::kAttribute: return load_mra(p);
    case CmDreq::kAttribute: return load_dreq(p);
    case CmDrep::kAttribute: return load_pair<CmDrep>(p);
    case CmSidrReq::kAttribute: return load_sidr_req(p);
    case CmSidrRep::kAttribute: return load_sidr_rep(p);
    default: return std::nullopt;
  }
}

}  // namespace

MadHeader MadHeader::parse(const std::uint8_t* p) {
  return {.base_version = p[0],
          .management_class = p[1],
          .class_version = p[2],
          .method = p[3],
          .status = load_be<std::uint16_t>(p + 4),
          .class_specific = load_be<std::uint16_t>(p + 6),
          .transaction_id = load_be<std::uint64_t>(p + 8),
          .attribute_id = load_be<std::uint16_t>(p + 16),
          .reserved = load_be<std::uint16_t>(p + 18),
          .attribute_modifier = load_be<std::uint32_t>(p + 20)};
}

void MadHeader::write(std::uint8_t* p) const {
  p[0] = base_version;
  p[1] = management_class;
  p[2] = class_version;
  p[3] = method;
  store_be(p + 4, status);
  store_be(p + 6, class_specific);
  store_be(p + 8, transaction_id);
  store_be(p + 16, attribute_id);
  store_be(p + 18, reserved);
  store_be(p + 20, attribute_modifier);
}

std::optional<CmMad> parse_cm(ByteView mad) {
  if (mad.size() != kMadSize) return std::nullopt;
  const MadHeader header = MadHeader::parse(mad.data());
  const MadHeader expected;
  if (header.base_version != expected.base_version || header.class_version != expected.class_version)
    return std::nullopt;
  if (header.management_class != MadHeader::kClassCm || header.method != MadHeader::kMethodSend) return std::nullopt;
  auto message = load_message(header.attribute_id, mad.data() + MadHeader::kSize);
  if (!message) return std::nullopt;
  return CmMad{header.transaction_id, *message};
}

std::optional<CmMad> parse_cm(const std::uint8_t* frame, const ParsedFrame& parsed) {
  if (parsed.opcode != Opcode::kUdSendOnly || parsed.destination != kCmQpn) return std::nullopt;
  if (get<Deth>(frame, parsed).qkey != kCmQkey) return std::nullopt;
  return parse_cm(payload(frame, parsed));
}

void write_cm(std::uint8_t* out, const CmMad& mad) {
  std::memset(out, 0, kMadSize);
  std::visit(
      [&](const auto& message) {
        MadHeader{.transaction_id = mad.transaction_id, .attribute_id = message.kAttribute}.write(out);
        store(out + MadHeader::kSize, message);
      },
      mad.message);
}

std::size_t write_cm_frame(std::uint8_t* out, const HeaderTemplate& headers, Psn psn, const CmMad& mad) {
  std::uint8_t* p = out + headers.write(out, Bth::kSize + Deth::kSize + kMadSize);
  Bth{.opcode = Opcode::kUdSendOnly, .destination = kCmQpn, .psn = psn}.write(p);
  Deth{.qkey = kCmQkey, .source = kCmQpn}.write(p + Bth::kSize);
  write_cm(p + Bth::kSize + Deth::kSize, mad);
  return headers.seal(out, cm_frame_size(headers) - kIcrcSize);
}

std::optional<IpCmHeader> IpCmHeader::parse(const std::uint8_t* p) {
  const unsigned ip_version = p[1] >> 4;
  if (ip_version != 4 && ip_version != 6) return std::nullopt;
  IpCmHeader h{.version = p[0], .source_port = load_be<std::uint16_t>(p + 2)};
  if (ip_version == 4) {  // twelve unused bytes before each address
    h.source = Gid::from(Ipv4Address{load_be<std::uint32_t>(p + 16)});
    h.destination = Gid::from(Ipv4Address{load_be<std::uint32_t>(p + 32)});
  } else {
    load_array(h.source.bytes, p + 4);
    load_array(h.destination.bytes, p + 20);
    if (h.source.is_v4() != h.destination.is_v4()) return std::nullopt;
  }
  return h;
}

void IpCmHeader::write(std::uint8_t* p) const {
  std::memset(p, 0, kSize);
  p[0] = version;
  p[1] = source.is_v4() ? 0x40 : 0x60;
  store_be(p + 2, source_port);
  if (source.is_v4()) {
    store_be(p + 16, source.v4().value);
    store_be(p + 32, destination.v4().value);
  } else {
    store_array(p + 4, source.bytes);
    store_array(p + 20, destination.bytes);
  }
}

}  // namespace sluice::wire
