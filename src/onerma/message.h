// 1RMA on the wire: Ethernet, IPv4, UDP, a fixed header, a body, a tag.
//
//   offset  bytes  header (all integers big-endian; all of it authenticated, with both IP addresses before it)
//        0      1  version, 1
//        1      1  kind
//        2      1  flags: 1 = plain; kCompletion: 2 = of kData, else of the request
//        3      1  rights that the key was derived with
//        4      1  status (kCompletion, kRefusal; else 0)
//        5      1  0
//        6      2  place of the target's solicitation (kPull, kData; else 0)
//        8      8  OpId
//       16      8  InitiatorId
//       24      4  RegionId
//       28      4  Generation
//       32      4  Boot of the sender; its top byte is 0
//       36      4  kData: Boot that the kPull came with; else 0
//       40      8  answers: the target's counter; kData: that of the kPull; else 0
//   body, sealed: requests: address (8), length (4); kRekeyRequest: nothing
//                 kReadResponse: the bytes read; kData: the bytes to write, or the new region key; kPull, kCompletion: nothing
//                 kRefusal, in clear: the last 8 bytes of the refused request, which only who saw it knows, and the CRC-32 of what
//                 arrived of it before those (pseudo-header, header, body, tag): damage on the way is then not taken for a bad key
//   tag           16: AES-128-GCM's. Plain: CRC-32 of pseudo-header, header and body, then zeros. kRefusal: the same as plain.
//
// Who sends what:  initiator: the requests, kData. target: kReadResponse, kPull, kCompletion, kRefusal.
// Nonce:           kind or 0x80 (target), 3 bytes of Boot, then OpId (initiator) or counter (target): unique under a derived key, since
//                  an OpId makes one request and one kData, and a counter one answer.
// Errors:          every way to be wrong is a Verdict; parse() reads nothing outside the frame.
// Limits:          IPv4, no VLAN tag, no IP options; one UDP port, of the dynamic range.
// Source:          ours: docs/design/onerma.md; the messages are those of 1RMA §3 and §5.1.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "onerma/types.h"
#include "wire/address.h"
#include "wire/ethernet.h"
#include "wire/ip.h"

namespace sluice::onerma {

inline constexpr std::uint16_t kUdpPort = 61'444;
inline constexpr std::size_t kNetworkSize =
    wire::EthernetHeader::kSize + wire::Ipv4Header::kSize + wire::UdpHeader::kSize;
inline constexpr std::size_t kHeaderSize = 48;
inline constexpr std::size_t kTagSize = 16;
inline constexpr std::size_t kBodyOffset = kNetworkSize + kHeaderSize;
inline constexpr std::size_t kRequestBody = 12;
inline constexpr std::size_t kRefusalBody = 12;
// What a frame has besides its body.
inline constexpr std::size_t kOverhead = kBodyOffset + kTagSize;

enum class Kind : std::uint8_t {
  kReadRequest = 1,
  kWriteRequest = 2,
  kRekeyRequest = 3,
  kData = 4,
  kReadResponse = 5,
  kPull = 6,
  kCompletion = 7,
  kRefusal = 8,
};
constexpr bool is_request(Kind kind) { return kind <= Kind::kRekeyRequest; }
constexpr bool is_to_target(Kind kind) { return kind <= Kind::kData; }

struct Header {
  Kind kind{};
  bool plain = false;
  bool of_data = false;  // kCompletion
  Rights rights{};
  Status status = Status::kOk;
  std::uint16_t place = 0;
  OpId op{};
  InitiatorId initiator{};
  RegionId region{};
  Generation generation{};
  Boot boot{};
  Boot pull_boot{};
  std::uint64_t counter = 0;

  void write(std::uint8_t* p) const;
  friend bool operator==(const Header&, const Header&) = default;
};

struct RequestBody {
  std::uint64_t address = 0;
  std::uint32_t length = 0;

  static RequestBody parse(const std::uint8_t* p) { return {load_be<std::uint64_t>(p), load_be<std::uint32_t>(p + 8)}; }
  void write(std::uint8_t* p) const {
    store_be(p, address);
    store_be(p + 8, length);
  }
};

// A node on our link.
struct Peer {
  wire::MacAddress mac{};
  wire::Ipv4Address ip{};
  std::uint16_t port = kUdpPort;  // where it sends from, and is answered at kUdpPort all the same

  friend constexpr bool operator==(const Peer&, const Peer&) = default;
};

enum class Verdict : std::uint8_t {
  kOk,
  kNotOurs,  // not IPv4 over UDP to our port, or to another address
  kTruncated,
  kBadNetworkHeader,  // IP options, a fragment, a wrong checksum, lengths that do not fit
  kBadVersion,
  kUnknownKind,
  kBadField,   // a field that must be zero is not, or an unknown status or right
  kBadLength,  // no body that this kind may have
};
inline constexpr std::size_t kVerdictCount = 8;
std::string_view to_string(Verdict verdict);

// What one pass over a frame finds. Nothing of it is to be believed before its tag has been checked.
struct Message {
  Header header{};
  Peer from{};
  wire::Ipv4Address to{};
  std::uint16_t body_length = 0;  // at kBodyOffset; the tag follows
};

// `out` is unspecified unless the verdict is kOk.
Verdict parse(ByteView frame, Message& out);

// What is authenticated besides the body: both addresses and the header.
inline constexpr std::size_t kAssociatedSize = 8 + kHeaderSize;
std::array<std::uint8_t, kAssociatedSize> associated_data(const std::uint8_t* frame);

using Nonce = std::array<std::uint8_t, 12>;
Nonce nonce_of(const Header& header);

// Ethernet, IP and UDP of one node's frames to others, all but addresses and lengths made once.
class FrameWriter {
 public:
  FrameWriter() = default;
  FrameWriter(const wire::MacAddress& mac, wire::Ipv4Address ip, std::uint16_t source_port);

  static constexpr std::size_t frame_size(std::size_t body) { return kOverhead + body; }
  // Everything before the body. REQUIRES: room for frame_size(body).
  void write(std::uint8_t* frame, const Peer& to, const Header& header, std::size_t body) const;

 private:
  std::array<std::uint8_t, kNetworkSize> bytes_{};
  std::uint32_t checksum_base_ = 0;  // of the IP header without length and destination
};

// CRC-32 of pseudo-header, header and as many bytes behind it.
std::uint32_t checksum(const std::uint8_t* frame, std::size_t body);
// What a refusal of this request repeats. REQUIRES: the body is as it is on the wire.
struct Echo {
  std::uint64_t tag_end = 0;
  std::uint32_t checksum = 0;

  static Echo of(const std::uint8_t* frame, std::size_t body);
  static Echo parse(const std::uint8_t* p) { return {load_be<std::uint64_t>(p), load_be<std::uint32_t>(p + 8)}; }
  void write(std::uint8_t* p) const {
    store_be(p, tag_end);
    store_be(p + 8, checksum);
  }
  friend bool operator==(const Echo&, const Echo&) = default;
};

// Plain and refusals: the tag's place holds a checksum against damage, no more.
void write_checksum(std::uint8_t* frame, std::size_t body);
bool checksum_is_right(const std::uint8_t* frame, std::size_t body);

}  // namespace sluice::onerma
