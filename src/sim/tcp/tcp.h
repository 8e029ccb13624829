// TCP of bulk transfers: a sender that always has more to send, a receiver whose program takes all at once.
//
// Life:       sender:   poll_transmit(now) -> the segment to send … ; on_ack(now, ack); next_deadline(), on_deadline(now).
//             receiver: on_segment(now, sequence); poll_transmit(now) -> the ACK to send; the same two for the delayed one.
// Sender:     congestion control by CUBIC (cubic.h). What was lost is told by SACK: a segment counts as lost when one that was sent later has arrived, and
//             three have that were selectively acknowledged, or a repair is under way; "later" is the order of sending, so that a lost repair is found, too
//             (RFC 8985 §6.2, of a network that does not reorder). Repairs go first, as many as the window has room for (RFC 6675).
//             Time-out: RFC 6298, twice as long each time, then slow start.
// Receiver:   an ACK for each second segment, for what is out of order or fills a gap at once, for a lone one after a while (RFC 5681 §4.2).
// Not here:   opening and closing (they begin established), Nagle, ECN, timestamps' contents, tail-loss probes, pacing, PRR.
// Invariant:  every segment is full: sequence numbers are multiples of the MSS, in 64 bits (tcp_frame.h has 32).
// Errors:     ACKs of what was never sent, and old ones, are ignored.
// Threads:    one owner.
// Source:     RFC 9293, 5681, 6298, 6675, 6928, 2018, 8985 (RACK), 9438; Linux's values where it departs from them, said beside each.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/time.h"
#include "sim/tcp/cubic.h"

namespace sluice::sim {

struct TcpParameters {
  std::uint32_t mss = 1448;                              // of an MTU of 1,500: IP, TCP, timestamps
  std::uint64_t receive_window = 3u << 20;               // Linux: tcp_rmem's most, 6 MiB, half of it for payload
  std::uint32_t initial_segments = 10;                   // RFC 6928
  std::uint32_t ack_every = 2;                           // segments: RFC 5681
  Duration ack_delay = Duration::milliseconds(40);       // Linux: TCP_DELACK_MIN; RFC 5681: at most 500
  Duration least_timeout = Duration::milliseconds(200);  // Linux: TCP_RTO_MIN; RFC 6298: 1 s
};

// Bytes from `from` up to `to`.
struct TcpBlock {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  friend bool operator==(const TcpBlock&, const TcpBlock&) = default;
};

struct TcpAck {
  static constexpr std::size_t kMostBlocks = 3;  // beside timestamps
  std::uint64_t next = 0;                        // all before it has come
  std::uint64_t window = 0;                      // from there
  std::uint32_t block_count = 0;
  std::array<TcpBlock, kMostBlocks> blocks{};
};

class TcpSender {
 public:
  struct Counters {
    std::uint64_t segments = 0;  // repairs included
    std::uint64_t repairs = 0;
    std::uint64_t losses = 0;  // windows in which there were any
    std::uint64_t timeouts = 0;
  };

  explicit TcpSender(const TcpParameters& parameters);

  // The sequence number of a segment that may be sent now.
  std::optional<std::uint64_t> poll_transmit(Time now);
  void on_ack(Time now, const TcpAck& ack);
  Time next_deadline() const { return timeout_at_; }
  void on_deadline(Time now);

  std::uint64_t acknowledged() const { return first_; }
  std::uint64_t window() const { return cubic_.window(); }
  Duration round_trip() const { return smoothed_; }
  const Counters& counters() const { return counters_; }

 private:
  struct Segment {
    std::uint64_t order = 0;  // of sending
    Time sent;
    bool arrived = false;
    bool lost = false;  // and not sent again
    bool repaired = false;
  };
  struct Arrivals;

  std::uint64_t in_flight() const { return (segments_.size() - arrived_ - lost_) * mss_; }
  std::uint64_t next() const { return first_ + segments_.size() * mss_; }
  bool is_repairing() const { return first_ < repaired_to_; }
  std::uint64_t send(Time now, std::size_t place);
  void take_cumulative(Time now, std::uint64_t to, Arrivals& arrivals);
  void take_blocks(Time now, const TcpAck& ack, Arrivals& arrivals);
  void note(Time now, const Segment& segment, Arrivals& arrivals);
  void find_losses();
  void mark_lost(std::size_t place);
  void sample(Duration round_trip);

  TcpParameters parameters_;
  std::uint64_t mss_;
  Cubic cubic_;
  std::deque<Segment> segments_;  // from first_ on
  std::uint64_t first_ = 0;       // not acknowledged
  std::uint64_t window_end_;      // of the receiver
  std::size_t arrived_ = 0, lost_ = 0;
  std::uint64_t lost_from_ = 0;  // no segment before it is lost
  std::uint64_t order_ = 0;
  std::uint64_t latest_ = 0;       // order of the latest sent that has arrived
  std::uint64_t repaired_to_ = 0;  // the losses of a window end there
  bool hold_window_ = false;       // while they are repaired, unless by a time-out
  bool send_one_ = false;          // whatever the window
  Duration smoothed_{}, variation_{}, least_{}, timeout_;
  Time timeout_at_ = Time::never();
  Counters counters_;
};

class TcpReceiver {
 public:
  explicit TcpReceiver(const TcpParameters& parameters);

  void on_segment(Time now, std::uint64_t sequence);
  // REQUIRES: asked after each segment; an ACK is made for each one that has to have its own.
  std::optional<TcpAck> poll_transmit(Time now);
  Time next_deadline() const { return ack_at_; }
  void on_deadline(Time now);

  // Bytes that the program has.
  std::uint64_t received() const { return next_; }

 private:
  void keep(TcpBlock block);

  TcpParameters parameters_;
  std::uint64_t next_ = 0;
  std::vector<TcpBlock> blocks_;  // beyond it, the one that changed last first (RFC 2018 §4)
  std::uint32_t owed_ = 0;        // segments since the last ACK
  bool ack_now_ = false;
  Time ack_at_ = Time::never();
};

}  // namespace sluice::sim
