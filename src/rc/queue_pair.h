// Queue pair: the two halves of a connection (requester, responder), the path to the peer, and the state they share.
//
// Life:       RESET -> INIT -> RTR (responder answers) -> RTS (requester sends) -> SQD or ERR -> RESET.
//             SQD: what has started finishes, nothing new starts. SQE (UC and UD): the send queue is flushed, the rest goes on.
// Invariant:  in ERR all work is flushed, in order, and nothing is sent.
// Threads:    the adapter's owner.
// Limits:     under 4 KiB besides the work queues' buffers (a test measures it).
// Source:     IBTA vol. 1 §10.3 (states).
#pragma once

#include <algorithm>
#include <boost/intrusive/list.hpp>
#include <cstdint>
#include <memory>
#include <optional>

#include "rc/completion_queue.h"
#include "rc/connection.h"
#include "rc/datagram.h"
#include "rc/deadline_heap.h"
#include "rc/requester.h"
#include "rc/responder.h"
#include "rc/work.h"
#include "wire/opcode.h"

namespace sluice::rc {

using wire::Transport;
enum class QpState : std::uint8_t {
  kReset,
  kInit,
  kReadyToReceive,
  kReadyToSend,
  kSendQueueDrained,
  kSendQueueError,
  kError
};
std::string_view to_string(QpState state);

struct QueuePairConfig {
  Transport transport = Transport::kRc;
  memory::PdId pd{};
  CompletionQueue* send_completions = nullptr;
  CompletionQueue* receive_completions = nullptr;
  SharedReceiveQueue* shared_receives = nullptr;  // instead of a receive queue of its own
  std::uint32_t send_depth = 64;
  std::uint32_t receive_depth = 64;
  std::uint32_t max_send_sges = 1;
  std::uint32_t max_receive_sges = 1;
  std::uint32_t max_inline = 64;
  bool signal_all = false;  // every send leaves a completion
};

// What modify() may change; absent fields stay.
struct QueuePairAttributes {
  std::optional<QpState> state{};
  std::optional<memory::Access> access{};  // what the peer may do at all
  std::optional<wire::Gid> remote_gid{};
  std::optional<wire::MacAddress> remote_mac{};  // absent: resolved
  std::optional<std::uint8_t> source_gid_index{};
  std::optional<std::uint8_t> traffic_class{};
  std::optional<std::uint8_t> hop_limit{};
  std::optional<Qpn> remote_qpn{};
  std::optional<wire::QKey> qkey{};         // UD
  std::optional<std::uint32_t> path_mtu{};  // 256 … 4096
  std::optional<Psn> send_psn{};
  std::optional<Psn> receive_psn{};
  std::optional<std::uint8_t> timeout{};          // 4.096 us · 2^timeout; 0: never
  std::optional<std::uint8_t> retry_count{};      // 0 … 7
  std::optional<std::uint8_t> rnr_retry_count{};  // 7: for ever
  std::optional<std::uint8_t> min_rnr_timer{};    // IBTA table 45 code, 0 … 31
  std::optional<std::uint8_t> max_reads_out{};    // READs and atomics we start at once
  std::optional<std::uint8_t> max_reads_in{};     // … we accept at once
};

// A place in the adapter's line of queue pairs that may have something to send.
using ActiveHook = boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>>;

class QueuePair : public ActiveHook {
 public:
  // `max_reads` is the most that max_reads_in will ever be.
  QueuePair(Qpn qpn, const QueuePairConfig& config, std::uint8_t max_reads, memory::RegionTable& regions,
            AdapterCounters& counters);
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  Qpn qpn() const { return connection_.qpn; }
  QpState state() const { return state_; }
  const QueuePairConfig& config() const { return config_; }
  const QueuePairAttributes& attributes() const { return attributes_; }  // all that has been set
  // Nothing of the send queue is under way.
  bool is_drained() const { return is_datagram() || requester_->idle(); }
  // Work posted to the send queue and not completed.
  std::uint32_t send_queue_length() const;
  // The PSN that the peer's next request must have: what a box or a test compares.
  Psn expected_psn() const { return responder_ ? responder_->expected_psn() : Psn(); }
  // The PSN that our next request will have; the peer's expected_psn() once all is answered.
  Psn next_psn() const { return requester_ ? requester_->next_psn() : Psn(); }
  bool path_ready() const { return connection_.path_ready; }

  void* user = nullptr;  // the owner's

 private:
  friend class Adapter;

  bool is_datagram() const { return datagrams_ != nullptr; }
  ReceiveQueue& receives() {
    return config_.shared_receives != nullptr ? config_.shared_receives->queue : own_receives_.queue;
  }
  bool is_open() const { return state_ >= QpState::kReadyToReceive && state_ <= QpState::kSendQueueError; }
  bool sends() const { return state_ == QpState::kReadyToSend || state_ == QpState::kSendQueueDrained; }
  // What every packet asks: all of it inline.
  bool can_transmit(Time now) {
    if (!is_open()) return false;
    if (is_datagram()) [[unlikely]]
      return state_ == QpState::kReadyToSend && datagrams_->can_transmit(now);
    return responder_->can_transmit(now) || (sends() && requester_->can_transmit(now));
  }
  // REQUIRES: is_open(). False: nothing may be sent now, or the sink is full.
  bool poll_transmit(Time now, port::FrameSink& sink) {
    if (is_datagram()) [[unlikely]]
      return can_transmit(now) && datagrams_->poll_transmit(now, sink);
    // Answers let the peer go on, but a peer that reads without end must not keep our own work back: packet by packet.
    const bool answers = responder_->can_transmit(now);
    if (sends() && (!answers || (own_is_next_ && requester_->can_transmit(now)))) {
      if (requester_->poll_transmit(now, sink)) {
        own_is_next_ = false;
        return true;
      }
      if (connection_.sink_full || connection_.broken()) return false;
    }
    own_is_next_ = answers && responder_->poll_transmit(now, sink);
    return own_is_next_;
  }
  Time next_deadline() const {
    if (!is_open()) return Time::never();
    if (!sends()) return connection_.paced_until;  // READ responses
    return is_datagram() ? datagrams_->next_deadline() : std::min(requester_->next_deadline(), connection_.paced_until);
  }
  void on_deadline(Time now);
  PostError post(const SendRequest& request) {
    return is_datagram() ? datagrams_->post(request) : requester_->post(request);
  }
  PostError check(const SendRequest& request) const {
    return is_datagram() ? datagrams_->check(request) : requester_->check(request);
  }
  void flush_sends();
  void flush_receives();
  void reset();
  // Takes over what modify() sets, and what follows from it.
  void apply(const QueuePairAttributes& attributes);

  QpState state_ = QpState::kReset;
  bool cnp_due_ = false;
  bool heard_ = false;              // a request of the peer's has been executed
  bool drain_told_ = false;         // SQD: the event has been given
  bool own_is_next_ = false;        // an answer was the last to leave
  std::uint32_t sent_in_turn_ = 0;  // packets, since it came to be first in the adapter's line
  Connection connection_;
  std::optional<Requester> requester_;       // RC and UC
  std::optional<Responder> responder_;       // RC and UC
  std::unique_ptr<DatagramHalf> datagrams_;  // UD
  DeadlineHeap::Place deadline_;             // not later than next_deadline()
  NotificationPoint congestion_;
  SharedReceiveQueue own_receives_;
  QueuePairConfig config_;
  QueuePairAttributes attributes_;
  wire::AddressVector route_;
};

}  // namespace sluice::rc
