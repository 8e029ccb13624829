#include "rc/queue_pair.h"

namespace sluice::rc {

std::string_view to_string(QpState state) {
  switch (state) {
    case QpState::kReset: return "RESET";
    case QpState::kInit: return "INIT";
    case QpState::kReadyToReceive: return "RTR";
    case QpState::kReadyToSend: return "RTS";
    case QpState::kSendQueueDrained: return "SQD";
    case QpState::kSendQueueError: return "SQE";
    case QpState::kError: return "ERR";
  }
  return "?";
}

QueuePair::QueuePair(Qpn qpn, const QueuePairConfig& config, std::uint8_t max_reads, memory::RegionTable& regions,
                     AdapterCounters& counters)
    : own_receives_(config.pd, config.shared_receives == nullptr ? config.receive_depth : 0, config.max_receive_sges),
      config_(config) {
  deadline_.qpn = connection_.qpn = qpn;
  connection_.pd = config.pd;
  connection_.regions = &regions;
  connection_.counters = &counters;
  connection_.send_completions = config.send_completions;
  connection_.receive_completions = config.receive_completions;
  connection_.signal_all = config.signal_all;
  const bool shared = config.shared_receives != nullptr;
  SharedReceiveQueue& receives = shared ? *config.shared_receives : own_receives_;
  if (config.transport == Transport::kUd) {
    datagrams_ = std::make_unique<DatagramHalf>(connection_, receives, config.send_depth, config.max_send_sges,
                                                config.max_inline);
    return;
  }
  const bool reliable = config.transport == Transport::kRc;
  requester_.emplace(connection_, config.send_depth, config.max_send_sges, config.max_inline, reliable);
  responder_.emplace(connection_, receives, shared, reliable, max_reads);
}

std::uint32_t QueuePair::send_queue_length() const {
  return is_datagram() ? datagrams_->queue_length() : requester_->queue_length();
}

void QueuePair::on_deadline(Time now) {
  if (connection_.paced_until <= now) connection_.paced_until = Time::never();
  if (is_datagram()) {
    datagrams_->on_deadline(now);
  } else {
    requester_->on_deadline(now);
  }
}

void QueuePair::flush_sends() {
  if (is_datagram()) {
    datagrams_->flush();
  } else {
    requester_->flush();
  }
}

void QueuePair::flush_receives() {
  if (!is_datagram()) return responder_->flush();
  if (config_.shared_receives != nullptr) return;
  std::vector<LocalPiece> pieces(own_receives_.queue.max_sges());
  while (!own_receives_.queue.empty()) {
    connection_.complete_receive({.id = own_receives_.queue.take(pieces).id,
                                  .status = CompletionStatus::kFlushed,
                                  .kind = CompletionKind::kReceive,
                                  .qpn = qpn()});
  }
}

void QueuePair::reset() {
  if (is_datagram()) {
    datagrams_->reset();
    std::vector<LocalPiece> pieces(own_receives_.queue.max_sges());
    while (!own_receives_.queue.empty()) own_receives_.queue.take(pieces);
  } else {
    requester_->reset();
    responder_->reset();
  }
  connection_.send_completions->remove_of(qpn());
  if (connection_.receive_completions != connection_.send_completions)
    connection_.receive_completions->remove_of(qpn());
  connection_.breakage = Breakage::kNone;
  connection_.pace.reset();
  connection_.paced_until = Time::never();
  connection_.path_ready = connection_.completion_lost = cnp_due_ = heard_ = drain_told_ = own_is_next_ = false;
  sent_in_turn_ = 0;
  connection_.mtu = Connection{}.mtu;
  congestion_ = {};
  attributes_ = {};
}

namespace {
template <class T>
void take_over(std::optional<T>& to, const std::optional<T>& from) {
  if (from) to = from;
}
}  // namespace

void QueuePair::apply(const QueuePairAttributes& a) {
  take_over(attributes_.access, a.access);
  take_over(attributes_.remote_gid, a.remote_gid);
  if (a.remote_gid) attributes_.remote_mac.reset();  // which was another's
  take_over(attributes_.remote_mac, a.remote_mac);
  take_over(attributes_.source_gid_index, a.source_gid_index);
  take_over(attributes_.traffic_class, a.traffic_class);
  take_over(attributes_.hop_limit, a.hop_limit);
  take_over(attributes_.remote_qpn, a.remote_qpn);
  take_over(attributes_.qkey, a.qkey);
  take_over(attributes_.path_mtu, a.path_mtu);
  take_over(attributes_.send_psn, a.send_psn);
  take_over(attributes_.receive_psn, a.receive_psn);
  take_over(attributes_.timeout, a.timeout);
  take_over(attributes_.retry_count, a.retry_count);
  take_over(attributes_.rnr_retry_count, a.rnr_retry_count);
  take_over(attributes_.min_rnr_timer, a.min_rnr_timer);
  take_over(attributes_.max_reads_out, a.max_reads_out);
  take_over(attributes_.max_reads_in, a.max_reads_in);

  if (is_datagram()) datagrams_->set_qkey(attributes_.qkey.value_or(wire::QKey{}));
  Connection& c = connection_;
  c.access = attributes_.access.value_or(memory::Access{});
  c.remote_gid = attributes_.remote_gid.value_or(wire::Gid{});
  c.peer = HeaderAddress(c.remote_gid);
  c.remote_qpn = attributes_.remote_qpn.value_or(Qpn{});
  c.mtu = attributes_.path_mtu.value_or(c.mtu);
  const std::uint8_t timeout = attributes_.timeout.value_or(14);
  c.timeout = timeout == 0 ? Duration()
                           : Duration::nanoseconds(std::int64_t{4096} << timeout);  // 4.096 us · 2^timeout (§9.7.6.1.3)
  c.retry_count = attributes_.retry_count.value_or(7);
  c.rnr_retry_count = attributes_.rnr_retry_count.value_or(7);
  c.min_rnr_timer = attributes_.min_rnr_timer.value_or(12);
  c.max_reads_out = attributes_.max_reads_out.value_or(16);
  c.max_reads_in = attributes_.max_reads_in.value_or(16);
}

}  // namespace sluice::rc
