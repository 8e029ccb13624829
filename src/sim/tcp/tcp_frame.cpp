#include "sim/tcp/tcp_frame.h"

#include <algorithm>

#include "wire/ethernet.h"
#include "wire/ip.h"

namespace sluice::sim {
namespace {

constexpr std::uint8_t kProtocol = 6;
constexpr std::size_t kIp = wire::EthernetHeader::kSize;
constexpr std::size_t kTcp = kIp + wire::Ipv4Header::kSize;
constexpr std::size_t kOptions = kTcp + 20;
constexpr std::size_t kTimestamps = 12;
constexpr std::uint8_t kAckFlag = 0x10;
constexpr std::uint8_t kNop = 1, kSack = 5, kTimestampOption = 8;

// All but numbers, window and what follows the timestamps.
void write_headers(std::uint8_t* out, const TcpRoute& route, std::size_t length, std::size_t options) {
  wire::EthernetHeader{route.to.mac, route.from.mac, wire::kEtherTypeIpv4}.write(out);
  wire::Ipv4Header{.total_length = static_cast<std::uint16_t>(length - kIp),
                   .protocol = kProtocol,
                   .source = route.from.ip,
                   .destination = route.to.ip}
      .write(out + kIp);
  store_be(out + kIp + 10, wire::ipv4_checksum(out + kIp));
  std::fill(out + kTcp, out + length, std::uint8_t{0});
  store_be(out + kTcp, route.from_port);
  store_be(out + kTcp + 2, route.to_port);
  out[kTcp + 12] = static_cast<std::uint8_t>((20 + options) / 4 << 4);
  out[kTcp + 13] = kAckFlag;
  std::uint8_t* const timestamps = out + kOptions;
  timestamps[0] = timestamps[1] = kNop;
  timestamps[2] = kTimestampOption;
  timestamps[3] = 10;
}

}  // namespace

std::uint32_t write_segment(std::uint8_t* out, const TcpRoute& route, std::uint64_t sequence, std::uint32_t mss) {
  const std::size_t length = kOptions + kTimestamps + mss;
  write_headers(out, route, length, kTimestamps);
  store_be(out + kTcp + 4, static_cast<std::uint32_t>(sequence));
  return static_cast<std::uint32_t>(length);
}

std::uint32_t write_ack(std::uint8_t* out, const TcpRoute& route, const TcpAck& ack) {
  const std::size_t sack = ack.block_count == 0 ? 0 : 4 + std::size_t{ack.block_count} * 8;
  const std::size_t length = kOptions + kTimestamps + sack;
  write_headers(out, route, length, kTimestamps + sack);
  store_be(out + kTcp + 8, static_cast<std::uint32_t>(ack.next));
  store_be(out + kTcp + 14, static_cast<std::uint16_t>(std::min<std::uint64_t>(ack.window >> kTcpWindowScale, 0xFFFF)));
  if (sack == 0) return static_cast<std::uint32_t>(length);
  std::uint8_t* at = out + kOptions + kTimestamps;
  at[0] = at[1] = kNop;
  at[2] = kSack;
  at[3] = static_cast<std::uint8_t>(sack - 2);
  at += 4;
  for (std::uint32_t i = 0; i < ack.block_count; ++i, at += 8) {
    store_be(at, static_cast<std::uint32_t>(ack.blocks.at(i).from));
    store_be(at + 4, static_cast<std::uint32_t>(ack.blocks.at(i).to));
  }
  return static_cast<std::uint32_t>(length);
}

bool read_tcp(ByteView frame, TcpFrame& out) {
  if (frame.size() < kOptions + kTimestamps) return false;
  if (load_be<std::uint16_t>(frame.data() + 12) != wire::kEtherTypeIpv4) return false;
  const auto ip = wire::Ipv4Header::parse(frame.data() + kIp);
  if (ip.protocol != kProtocol || !wire::ipv4_checksum_is_right(frame.data() + kIp)) return false;
  const std::uint8_t* const tcp = frame.data() + kTcp;
  const std::size_t headers = kTcp + std::size_t{tcp[12]} / 16 * 4;
  const std::size_t end = kIp + ip.total_length;
  if (headers < kOptions + kTimestamps || headers > end || end > frame.size()) return false;
  out = {.from_port = load_be<std::uint16_t>(tcp),
         .to_port = load_be<std::uint16_t>(tcp + 2),
         .sequence = load_be<std::uint32_t>(tcp + 4),
         .payload = static_cast<std::uint32_t>(end - headers)};
  out.ack.next = load_be<std::uint32_t>(tcp + 8);
  out.ack.window = std::uint64_t{load_be<std::uint16_t>(tcp + 14)} << kTcpWindowScale;
  const std::size_t sack = headers - kOptions - kTimestamps;
  if (sack < 4) return true;
  out.ack.block_count = static_cast<std::uint32_t>(std::min((sack - 4) / 8, TcpAck::kMostBlocks));
  const std::uint8_t* at = tcp + 20 + kTimestamps + 4;
  for (std::uint32_t i = 0; i < out.ack.block_count; ++i, at += 8)
    out.ack.blocks.at(i) = {load_be<std::uint32_t>(at), load_be<std::uint32_t>(at + 4)};
  return true;
}

}  // namespace sluice::sim
