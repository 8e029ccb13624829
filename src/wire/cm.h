// Connection management: the MAD header and the messages by which two sides bring a connection up and take it down.
//
// Life:       active side  REQ ->          <- REP          RTU ->    ... DREQ ->        <- DREP
//             either side may answer REJ; a slow one says MRA first. All are UD SENDs from QP 1 to QP 1.
//             Datagrams need no connection: SIDR_REQ asks for the queue pair of a service, SIDR_REP names it.
// Invariant:  parse_cm(write_cm(m)) == m. Reserved bits are read over and written as zeros.
// Units:      time-outs are codes: 4.096 us * 2^code.
// Errors:     anything else than one of these nine messages is no message: std::nullopt.
// Source:     IBTA vol. 1 §12.6 and §12.11 (messages), §13.4.2 (MAD header), annex A11 (RDMA IP CM service); Linux cm_msgs.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

#include "base/bytes.h"
#include "base/strong.h"
#include "base/time.h"
#include "wire/address.h"
#include "wire/frame.h"
#include "wire/types.h"

namespace sluice::wire {

using CommId = Strong<struct CommIdTag, std::uint32_t>;        // names a connection at one of its sides
using ServiceId = Strong<struct ServiceIdTag, std::uint64_t>;  // names who listens

inline constexpr Qpn kCmQpn{1};
inline constexpr QKey kCmQkey{0x8001'0000};
inline constexpr std::size_t kMadSize = 256;

// The service identifier of a TCP-like port in rdma_cm (annex A11.3.1).
constexpr ServiceId rdma_service(std::uint16_t port) { return ServiceId(0x0000'0000'0106'0000 | port); }
// … of a UDP-like one, whose queue pairs are datagram ones.
constexpr ServiceId rdma_datagram_service(std::uint16_t port) { return ServiceId(0x0000'0000'0111'0000 | port); }
// The waiting time that a 5-bit code stands for.
constexpr Duration cm_timeout(std::uint8_t code) {
  return Duration::nanoseconds(4096) * (std::int64_t{1} << (code & 0x1F));
}

struct MadHeader {
  static constexpr std::size_t kSize = 24;
  static constexpr std::uint8_t kClassCm = 7;
  static constexpr std::uint8_t kMethodSend = 3;
  std::uint8_t base_version = 1;
  std::uint8_t management_class = kClassCm;
  std::uint8_t class_version = 2;
  std::uint8_t method = kMethodSend;
  std::uint16_t status = 0;
  std::uint16_t class_specific = 0;
  std::uint64_t transaction_id = 0;
  std::uint16_t attribute_id = 0;
  std::uint16_t reserved = 0;
  std::uint32_t attribute_modifier = 0;

  static MadHeader parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const MadHeader&, const MadHeader&) = default;
};

// A path through the network, as REQ describes one.
struct CmPath {
  std::uint16_t local_lid = 0xFFFF;  // permissive: Ethernet has none
  std::uint16_t remote_lid = 0xFFFF;
  Gid local_gid{};
  Gid remote_gid{};
  std::uint32_t flow_label = 0;  // 20 bits
  std::uint8_t packet_rate = 0;  // 6 bits
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 64;
  std::uint8_t service_level = 0;  // 4 bits
  bool subnet_local = false;
  std::uint8_t local_ack_timeout = 0;  // 5-bit code

  friend bool operator==(const CmPath&, const CmPath&) = default;
};

// Asks for a connection: who I am, what I can take, where my PSNs start.
struct CmReq {
  static constexpr std::uint16_t kAttribute = 0x10;
  CommId local_comm_id{};
  ServiceId service_id{};
  std::uint64_t local_ca_guid = 0;
  QKey local_qkey{};
  Qpn local_qpn{};
  std::uint8_t responder_resources = 0;  // READs and atomics that I answer at a time
  std::uint32_t local_eecn = 0;
  std::uint8_t initiator_depth = 0;  // and that I have outstanding
  std::uint32_t remote_eecn = 0;
  std::uint8_t remote_cm_response_timeout = 0;
  std::uint8_t transport_service = 0;  // 0 RC, 1 UC
  bool end_to_end_flow_control = false;
  Psn starting_psn{};  // where the receiver of this message shall begin to send (§12.7.31)
  std::uint8_t local_cm_response_timeout = 0;
  std::uint8_t retry_count = 0;
  std::uint16_t pkey = kDefaultPkey;
  std::uint8_t path_mtu = 0;  // 1 to 5 for 256 to 4096
  bool rdc_exists = false;
  std::uint8_t rnr_retry_count = 0;
  std::uint8_t max_cm_retries = 0;
  bool srq = false;
  std::uint8_t extended_transport = 0;
  CmPath primary{};
  CmPath alternate{.local_lid = 0, .remote_lid = 0, .hop_limit = 0};
  std::array<std::uint8_t, 92> private_data{};

  friend bool operator==(const CmReq&, const CmReq&) = default;
};

// Accepts it, and says the same of the other side.
struct CmRep {
  static constexpr std::uint16_t kAttribute = 0x13;
  CommId local_comm_id{};
  CommId remote_comm_id{};
  QKey local_qkey{};
  Qpn local_qpn{};
  std::uint32_t local_eecn = 0;
  Psn starting_psn{};  // where the receiver of this message shall begin to send (§12.7.31)
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t target_ack_delay = 0;
  std::uint8_t failover_accepted = 0;
  bool end_to_end_flow_control = false;
  std::uint8_t rnr_retry_count = 0;
  bool srq = false;
  std::uint64_t local_ca_guid = 0;
  std::array<std::uint8_t, 196> private_data{};

  friend bool operator==(const CmRep&, const CmRep&) = default;
};

// The active side is ready: the passive one may send.
struct CmRtu {
  static constexpr std::uint16_t kAttribute = 0x14;
  CommId local_comm_id{};
  CommId remote_comm_id{};
  std::array<std::uint8_t, 224> private_data{};

  friend bool operator==(const CmRtu&, const CmRtu&) = default;
};

// Which message a REJ or MRA answers.
enum class CmMessageKind : std::uint8_t { kReq = 0, kRep = 1, kOther = 2 };

enum class CmRejectReason : std::uint16_t {
  kNoQp = 1,
  kNoResources = 3,
  kTimeout = 4,
  kUnsupported = 5,
  kInvalidCommId = 6,
  kInvalidCommInstance = 7,
  kInvalidServiceId = 8,
  kInvalidTransportType = 9,
  kStaleConnection = 10,
  kInvalidGid = 12,
  kPortAndCmRedirect = 24,
  kPortRedirect = 25,
  kInvalidMtu = 26,
  kInsufficientResponderResources = 27,
  kConsumerDefined = 28,
  kInvalidRnrRetry = 29,
  kDuplicateLocalCommId = 30,
};

// Refuses, with a reason; from either side, also instead of RTU.
struct CmRej {
  static constexpr std::uint16_t kAttribute = 0x12;
  CommId local_comm_id{};
  CommId remote_comm_id{};
  CmMessageKind rejected{};
  std::uint8_t info_length = 0;  // bytes of `info` that count, up to 72
  CmRejectReason reason{};
  std::array<std::uint8_t, 72> info{};
  std::array<std::uint8_t, 148> private_data{};

  friend bool operator==(const CmRej&, const CmRej&) = default;
};

// "I have your message; the answer takes longer than you would wait."
struct CmMra {
  static constexpr std::uint16_t kAttribute = 0x11;
  CommId local_comm_id{};
  CommId remote_comm_id{};
  CmMessageKind received{};
  std::uint8_t service_timeout = 0;  // 5-bit code
  std::array<std::uint8_t, 222> private_data{};

  friend bool operator==(const CmMra&, const CmMra&) = default;
};

// Ends a connection; names the receiver's QP so that a stale one is not hit.
struct CmDreq {
  static constexpr std::uint16_t kAttribute = 0x15;
  CommId local_comm_id{};
  CommId remote_comm_id{};
  Qpn remote_qpn{};
  std::array<std::uint8_t, 220> private_data{};

  friend bool operator==(const CmDreq&, const CmDreq&) = default;
};

struct CmDrep {
  static constexpr std::uint16_t kAttribute = 0x16;
  CommId local_comm_id{};
  CommId remote_comm_id{};
  std::array<std::uint8_t, 224> private_data{};

  friend bool operator==(const CmDrep&, const CmDrep&) = default;
};

using SidrRequestId = Strong<struct SidrRequestIdTag, std::uint32_t>;  // names a question at who asks it

// Asks for the datagram queue pair of a service.
struct CmSidrReq {
  static constexpr std::uint16_t kAttribute = 0x17;
  SidrRequestId request_id{};
  std::uint16_t pkey = kDefaultPkey;
  ServiceId service_id{};
  std::array<std::uint8_t, 216> private_data{};

  friend bool operator==(const CmSidrReq&, const CmSidrReq&) = default;
};

enum class SidrStatus : std::uint8_t {
  kValid = 0,
  kNoSuchService = 1,
  kRejected = 2,
  kNoQp = 3,
  kRedirect = 4,
  kUnsupportedVersion = 5,
};

// Names it, or says why not.
struct CmSidrRep {
  static constexpr std::uint16_t kAttribute = 0x18;
  SidrRequestId request_id{};
  SidrStatus status{};
  std::uint8_t info_length = 0;  // bytes of `info` that count, up to 72
  Qpn qpn{};
  ServiceId service_id{};
  QKey qkey{};
  std::array<std::uint8_t, 72> info{};
  std::array<std::uint8_t, 136> private_data{};

  friend bool operator==(const CmSidrRep&, const CmSidrRep&) = default;
};

using CmMessage = std::variant<CmReq, CmRep, CmRtu, CmRej, CmMra, CmDreq, CmDrep, CmSidrReq, CmSidrRep>;

// A message and the transaction that it belongs to: answers carry the transaction of their question.
struct CmMad {
  std::uint64_t transaction_id = 0;
  CmMessage message{};

  friend bool operator==(const CmMad&, const CmMad&) = default;
};

std::optional<CmMad> parse_cm(ByteView mad);
// The one in a frame, if it is a UD SEND to QP 1 with the right Q_Key. The ICRC is the caller's to check.
std::optional<CmMad> parse_cm(const std::uint8_t* frame, const ParsedFrame& parsed);

// Writes all kMadSize bytes.
void write_cm(std::uint8_t* out, const CmMad& mad);
// Writes a whole frame from QP 1 to QP 1 and returns its length. REQUIRES: room for cm_frame_size(headers).
std::size_t write_cm_frame(std::uint8_t* out, const HeaderTemplate& headers, Psn psn, const CmMad& mad);
inline std::size_t cm_frame_size(const HeaderTemplate& headers) {
  return headers.frame_size(Bth::kSize + Deth::kSize + kMadSize);
}

// How rdma_cm begins the private data of a REQ or SIDR_REQ: the IP addresses and source port of the connection (annex A11.4).
struct IpCmHeader {
  static constexpr std::size_t kSize = 36;
  std::uint8_t version = 0;  // major and minor, four bits each
  std::uint16_t source_port = 0;
  Gid source{};
  Gid destination{};  // REQUIRES: the same IP version as `source`

  // Nothing when the IP version is neither 4 nor 6, or the addresses are of two kinds.
  static std::optional<IpCmHeader> parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const IpCmHeader&, const IpCmHeader&) = default;
};

}  // namespace sluice::wire
