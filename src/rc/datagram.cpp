#include "rc/datagram.h"

#include <algorithm>
#include <bit>

#include "wire/bth.h"

namespace sluice::rc {
namespace {

constexpr std::size_t kGrhSize = 40;
constexpr Duration kResolveWait = Duration::milliseconds(100);  // should nobody tell how it ended
constexpr std::uint32_t kControlledQkey = 1u << 31;  // the top bit: take the queue pair's own Q_Key (§3.5.3)

}  // namespace

DatagramHalf::DatagramHalf(Connection& connection, SharedReceiveQueue& receives, std::uint32_t depth,
                           std::uint32_t max_sges, std::uint32_t max_inline)
    : connection_(connection),
      receives_(receives),
      queue_(depth, max_sges, max_inline),
      destinations_(std::bit_ceil(depth)),
      receive_pieces_(receives.queue.max_sges()) {}

void DatagramHalf::start(const wire::AddressVector& source, Psn first) {
  source_ = source;
  next_psn_ = first;
}

PostError DatagramHalf::check(const SendRequest& request) const {
  if (request.op != SendOp::kSend && request.op != SendOp::kSendWithImmediate) return PostError::kUnsupportedOp;
  if (request.destination == nullptr) return PostError::kNoDestination;
  if (request.destination->gid.is_v4() != source_of(*request.destination).is_v4()) return PostError::kNoDestination;
  std::uint64_t length = 0;
  for (const Sge& sge : request.sges) length += sge.length;
  if (length > connection_.mtu) return PostError::kTooLong;
  return queue_.check(request);
}

PostError DatagramHalf::post(const SendRequest& request) {
  if (const PostError error = check(request); error != PostError::kNone) return error;
  destinations_[queue_.tail() & (destinations_.size() - 1)] = *request.destination;
  return queue_.push(request);
}

bool DatagramHalf::find_route(Time now, const UdDestination& to, wire::AddressVector& route) {
  route = source_;
  route.source = source_of(to);
  route.destination = to.gid;
  route.destination_mac = to.mac;
  route.traffic_class = to.traffic_class;
  route.hop_limit = to.hop_limit;
  if (to.mac != wire::MacAddress{}) return true;
  const auto mac = resolve_ ? resolve_(now, to.gid) : std::nullopt;
  if (mac) route.destination_mac = *mac;
  return mac.has_value();
}

bool DatagramHalf::is_absent(Time now, const wire::Gid& gid) const {
  return std::ranges::any_of(absent_, [&](const Absent& absent) { return now < absent.until && absent.gid == gid; });
}

// Ends the oldest messages as long as nobody has their addresses.
void DatagramHalf::fail_absent(Time now) {
  while (queue_.size() != 0 && !connection_.broken()) {
    const UdDestination& to = destination_of(queue_.head());
    if (to.mac != wire::MacAddress{} || !is_absent(now, to.gid)) return;
    complete_head(CompletionStatus::kRetryExceeded);
  }
}

// The oldest message's destination is being looked for; those of the next are, too, so that each does not cost a wait of its own.
void DatagramHalf::await_head(Time now) {
  retry_at_ = now + kResolveWait;
  const std::uint32_t count = std::min(queue_.size(), kAhead);
  for (std::uint32_t i = 1; i < count; ++i) {
    const UdDestination& to = destination_of(queue_.head() + i);
    if (resolve_ && to.mac == wire::MacAddress{} && !is_absent(now, to.gid)) static_cast<void>(resolve_(now, to.gid));
  }
}

bool DatagramHalf::poll_transmit(Time now, port::FrameSink& sink) {
  if (!can_transmit(now)) return false;
  fail_absent(now);
  if (queue_.size() == 0 || connection_.broken()) return false;
  SendWqe& wqe = queue_[queue_.head()];
  const UdDestination& to = destination_of(queue_.head());
  wire::AddressVector route;
  if (!find_route(now, to, route)) {
    await_head(now);
    return false;
  }
  retry_at_ = Time();
  const auto pieces = queue_.pieces(queue_.head());
  if (!resolve(pieces, *connection_.regions, connection_.pd, memory::kLocalRead)) {
    complete_head(CompletionStatus::kLocalProtectionError);
    connection_.break_off(Breakage::kSendQueue);
    return false;
  }
  const bool immediate = wqe.op == SendOp::kSendWithImmediate;
  const std::uint8_t pad = wire::pad_for(wqe.length);
  const wire::Bth bth{.opcode = immediate ? wire::Opcode::kUdSendOnlyImmediate : wire::Opcode::kUdSendOnly,
                      .solicited = wqe.flags.solicited,
                      .pad_count = pad,
                      .destination = to.qpn,
                      .psn = next_psn_};
  const wire::HeaderTemplate headers(route);
  const std::size_t extended = wire::Deth::kSize + (immediate ? wire::ImmDt::kSize : 0);
  PacketWriter packet(connection_, headers, sink, bth, extended + wqe.length + pad);
  if (!packet.ok()) return false;
  const bool own_qkey = (to.qkey.value & kControlledQkey) != 0;
  wire::Deth{.qkey = own_qkey ? qkey_ : to.qkey, .source = connection_.qpn}.write(packet.body());
  if (immediate) store_be(packet.body() + wire::Deth::kSize, wqe.immediate);
  gather(pieces, 0, packet.body() + extended, wqe.length);
  std::fill_n(packet.body() + extended + wqe.length, pad, std::uint8_t{0});
  packet.finish();
  ++connection_.counters->tx_packets;
  ++next_psn_;
  complete_head(CompletionStatus::kSuccess);
  return true;
}

bool DatagramHalf::on_resolution(Time now, const wire::Gid& gid, bool found) {
  if (found) {
    for (Absent& absent : absent_) {
      if (absent.gid == gid) absent = {};
    }
  } else if (queue_.size() != 0 && !is_absent(now, gid)) {
    absent_[next_absent_++ % absent_.size()] = {gid, now + kAbsence};
  }
  if (queue_.size() == 0 || retry_at_ == Time() || destination_of(queue_.head()).gid != gid) return false;
  retry_at_ = Time();
  fail_absent(now);
  return true;
}

void DatagramHalf::on_datagram(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  const auto deth = wire::get<wire::Deth>(frame, parsed);
  if (deth.qkey != qkey_ || receives_.queue.empty()) {
    ++connection_.counters->rx_ud_dropped;
    return;
  }
  const auto taken = receives_.take(receive_pieces_);
  const std::span<LocalPiece> pieces{receive_pieces_.data(), taken.sge_count};
  Completion completion{.id = taken.id,
                        .kind = CompletionKind::kReceive,
                        .has_grh = true,
                        .over_ipv6 = !parsed.is_v4,
                        .solicited = parsed.solicited,
                        .length = static_cast<std::uint32_t>(kGrhSize + parsed.payload_length),
                        .qpn = connection_.qpn,
                        .source_qpn = deth.source};
  const std::size_t length = kGrhSize + parsed.payload_length;
  if (!resolve(stretch_of(pieces, 0, length).pieces, *connection_.regions, receives_.pd, memory::kLocalWrite)) {
    completion.status = CompletionStatus::kLocalProtectionError;
  } else if (total_length(pieces) < length) {
    completion.status = CompletionStatus::kLocalLengthError;
  } else {
    std::uint8_t grh[kGrhSize];
    wire::write_received_grh(frame, parsed, grh);
    scatter(pieces, 0, grh, kGrhSize);
    scatter(pieces, kGrhSize, frame + parsed.payload_offset, parsed.payload_length);
  }
  if (parsed.traits().has(wire::Extended::kImmDt)) {
    completion.has_immediate = true;
    completion.immediate = wire::get<wire::ImmDt>(frame, parsed).immediate;
  }
  ++connection_.counters->rx_requests;
  connection_.complete_receive(completion);
  if (completion.status != CompletionStatus::kSuccess) connection_.break_off(Breakage::kAll);
}

void DatagramHalf::complete_head(CompletionStatus status) {
  const SendWqe& wqe = queue_[queue_.head()];
  if (wqe.flags.signaled || connection_.signal_all || status != CompletionStatus::kSuccess) {
    connection_.complete_send({.id = wqe.id,
                               .status = status,
                               .kind = CompletionKind::kSend,
                               .never_sent = status != CompletionStatus::kSuccess,
                               .qpn = connection_.qpn});
  }
  queue_.pop();
}

void DatagramHalf::flush() {
  while (queue_.size() != 0) complete_head(CompletionStatus::kFlushed);
  retry_at_ = Time();
}

void DatagramHalf::reset() {
  while (queue_.size() != 0) queue_.pop();
  retry_at_ = Time();
  absent_ = {};
}

}  // namespace sluice::rc
