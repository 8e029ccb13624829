// Adapter: a software RDMA NIC as a machine (IBTA's channel adapter): queue pairs, memory regions, completion queues, one link.
//
// Life:       create_* -> modify() queue pairs to RTS -> post -> on_frame / poll_transmit / on_deadline -> poll completions.
// Order:      one queue pair's frames leave in order, answers and work of its own by turns; queue pairs take turns.
// Invariant:  frames that are not for us, not whole or not valid change nothing but a counter. After on_deadline(now),
//             next_deadline() is later than `now`. Once set up, frames and work requests allocate nothing.
// Units:      bytes; deadlines in Time (ps).
// Errors:     never fails on input. Set-up errors are Results with what to do.
// Threads:    one owner. To share, lock around it.
// Limits:     AdapterLimits, all told to the program as device attributes.
// Source:     IBTA vol. 1 ch. 9 to 12, annex A17 (RoCEv2).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "base/time.h"
#include "memory/region.h"
#include "port/port.h"
#include "rc/completion_queue.h"
#include "rc/counters.h"
#include "rc/dcqcn.h"
#include "rc/queue_pair.h"
#include "rc/work.h"
#include "wire/address.h"

namespace sluice::rc {

struct AdapterLimits {
  std::uint32_t max_queue_pairs = 65'536;
  std::uint32_t max_send_depth = 16'384;
  std::uint32_t max_receive_depth = 16'384;
  std::uint32_t max_sges = 32;
  std::uint32_t max_inline = 512;
  std::uint32_t max_reads_in_flight = 16;  // READs and atomics, either side, per queue pair
  std::uint32_t max_reads_started =
      0;  // more than those that a queue pair may start at once, if its peer answers so many
};

struct AdapterConfig {
  wire::MacAddress mac{};
  std::vector<wire::Gid> gids;  // at least one; GID table of the port, index 0 first
  std::uint32_t mtu = 4096;     // largest path MTU: 256 … 4096
  std::uint64_t seed = 1;
  std::shared_ptr<memory::RegionTable> regions;  // shared among the shards of one NIC; made when empty
  bool coalesce_acks = true;                     // one ACK for all requests of a burst
  bool advertise_credits = false;                // ACKs tell how many receive buffers are ready (rxe does not)
  std::uint32_t max_unacked_packets = 256;       // a queue pair's window
  std::uint32_t feigned_rnr_ppm = 0;             // of the messages that need a receive request: as if there were none
  bool dcqcn = false;                            // obey CNPs, send CNPs for ECN marks
  std::uint64_t line_rate = DcqcnParameters{}.line_rate;  // bits a second; where DCQCN begins
  Qpn first_qpn{0x11};                                    // shards of one NIC take disjoint ranges
  std::uint8_t communication_prefix = 0;                  // the top byte of the connection manager's ids, when not 0
  AdapterLimits limits{};
};

class ConnectionManager;
class Neighbors;

// What happens to a queue pair besides completions (ibv_async_event; IBTA vol. 1 §11.6.3).
struct AsyncEvent {
  enum class Kind : std::uint8_t {
    kCommunicationEstablished,  // the peer's first request has come, and been executed
    kSendQueueDrained,          // in SQD: nothing that had started is left
    kLastReceiveReached,        // in ERR: it takes no more from its shared receive queue
    kFatal,                     // into ERR, and a completion of its own has been lost
    kAccessError,               // into ERR: a request of the peer's was refused, with this reason
    kInvalidRequest,            // … or this one
    kCompletionQueueOverrun,
  };
  Kind kind{};
  QueuePair* pair = nullptr;  // with an overrun: who met it
  CompletionQueue* completions = nullptr;
};

class Adapter {
 public:
  explicit Adapter(const AdapterConfig& config);
  ~Adapter();

  // --- set-up ---
  memory::PdId create_domain();
  memory::RegionTable& regions() { return *regions_; }
  CompletionQueue* create_completion_queue(std::uint32_t depth);
  void destroy(CompletionQueue* queue);  // REQUIRES: no queue pair uses it
  SharedReceiveQueue* create_shared_receive_queue(memory::PdId domain, std::uint32_t depth, std::uint32_t max_sges);
  void destroy(SharedReceiveQueue* queue);
  Result<QueuePair*> create_queue_pair(const QueuePairConfig& config);
  void destroy(QueuePair* pair);
  QueuePair* find(Qpn qpn) const;

  // Moves a queue pair along RESET -> INIT -> RTR -> RTS (-> SQD -> RTS), or to ERR or RESET from anywhere.
  // For RTR the path's destination MAC may be left zero: the adapter resolves it (ARP, ND) and sends when it is known.
  Result<void> modify(Time now, QueuePair& pair, const QueuePairAttributes& attributes);

  // Called from within the machine: the handler may note what it hears, and not call the adapter.
  void set_event_handler(std::function<void(const AsyncEvent&)> handler) { on_event_ = std::move(handler); }

  // RDMA-CM on QP1; made at first use.
  ConnectionManager& connections();
  Neighbors& neighbors() { return *neighbors_; }

  // --- posting (these only queue; frames leave at poll_transmit) ---
  PostError post_send(Time now, QueuePair& pair, const SendRequest& request);
  // What post_send() would return.
  PostError check_send(const QueuePair& pair, const SendRequest& request) const;
  PostError post_receive(QueuePair& pair, const ReceiveRequest& request);
  PostError post_receive(SharedReceiveQueue& queue, const ReceiveRequest& request);

  // --- the machine ---
  void on_frame(Time now, port::Frame frame);
  // Writes what may be sent now; false when nothing is left to send or the sink is full.
  bool poll_transmit(Time now, port::FrameSink& sink);
  Time next_deadline() const;
  void on_deadline(Time now);

  const AdapterConfig& config() const { return config_; }
  const AdapterCounters& counters() const { return counters_; }

 private:
  // modify (transitions.cpp)
  Result<void> check_transition(const QueuePair& pair, const QueuePairAttributes& a) const;
  Result<void> find_path(Time now, QueuePair& pair);
  void enter_ready_to_send(QueuePair& pair);
  void enter_send_queue_error(QueuePair& pair);
  void enter_error(QueuePair& pair);
  void enter_reset(QueuePair& pair);
  void set_route(QueuePair& pair, const wire::MacAddress& mac);
  void lose_path(QueuePair& pair);
  void tell_overruns(QueuePair& pair);
  void tell_refusal(QueuePair& pair);
  void tell(AsyncEvent::Kind kind, QueuePair& pair, CompletionQueue* completions = nullptr);

  // Frames in (adapter.cpp)
  void count_refusal(wire::Verdict verdict);
  bool is_for_us(const std::uint8_t* frame, const wire::ParsedFrame& parsed) const;
  void on_management_datagram(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  void dispatch(Time now, QueuePair& pair, const std::uint8_t* frame, const wire::ParsedFrame& parsed);
  void on_early_request(Time now, QueuePair& pair, std::uint64_t executed_before);
  void on_congestion(Time now, QueuePair& pair);

  // Frames out
  bool transmit(Time now, port::FrameSink& sink);
  std::uint32_t transmit_quantum(Time now, QueuePair& pair, port::FrameSink& sink);
  bool transmit_work(Time now, port::FrameSink& sink);
  bool transmit_management(Time now, port::FrameSink& sink);
  bool transmit_mad(Time now, port::FrameSink& sink);
  bool fetch_mad(Time now);
  bool transmit_cnp(QueuePair& pair, port::FrameSink& sink);
  void activate(QueuePair& pair) {
    if (!pair.is_linked()) active_.push_back(pair);
  }
  // After a queue pair has moved.
  void settle(QueuePair& pair) {
    if (pair.connection_.broken() || pair.state_ == QpState::kSendQueueDrained) [[unlikely]]
      return settle_elsewhere(pair);
    note_deadline(pair);
  }
  void settle_elsewhere(QueuePair& pair);
  // Its deadline goes into the heap if that came nearer.
  void note_deadline(QueuePair& pair) {
    const Time next = pair.next_deadline();
    if (next < pair.deadline_.when) deadlines_.set(pair.deadline_, next);
  }
  PostError post_elsewhere(QueuePair& pair, const SendRequest& request);
  void deliver_resolutions(Time now);

  // A MAD taken from the connection manager that has not left yet.
  struct PendingMad {
    UdDestination to{};
    std::array<std::uint8_t, 256> bytes{};
  };

  AdapterConfig config_;
  std::vector<HeaderAddress> own_;  // config_.gids
  Rng rng_;
  FeignedRnr feigned_rnr_;
  DcqcnParameters dcqcn_parameters_{};
  std::shared_ptr<memory::RegionTable> regions_;
  AdapterCounters counters_;
  std::unique_ptr<Neighbors> neighbors_;
  std::unique_ptr<ConnectionManager> connections_;
  std::function<void(const AsyncEvent&)> on_event_;
  std::deque<PendingMad> ready_mads_;
  std::vector<PendingMad> unresolved_mads_;
  Psn next_mad_psn_{};
  std::vector<std::unique_ptr<CompletionQueue>> completion_queues_;
  std::vector<std::unique_ptr<SharedReceiveQueue>> shared_receives_;
  // In turn; a queue pair that goes away leaves by itself.
  boost::intrusive::list<QueuePair, boost::intrusive::constant_time_size<false>> active_;
  std::uint32_t turns_ = 0;
  bool mad_is_next_ = true;
  DeadlineHeap deadlines_;
  std::vector<std::unique_ptr<QueuePair>> pairs_;  // by qpn - first_qpn
  std::deque<std::uint32_t> free_places_;          // oldest first: a QPN rests before it is used again
  std::uint32_t live_pairs_ = 0;
  std::uint32_t next_domain_ = 1;
};

}  // namespace sluice::rc
