// What the two halves of a queue pair share: who they are, the path to the peer, and the negotiated limits.
//
// Threads:  the adapter's owner.
// Source:   IBTA vol. 1 §11.2.4.2 (modify queue pair).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/rng.h"
#include "base/time.h"
#include "memory/region.h"
#include "port/port.h"
#include "rc/completion_queue.h"
#include "rc/counters.h"
#include "rc/dcqcn.h"
#include "rc/work.h"
#include "wire/frame.h"

namespace sluice::rc {

// What of a queue pair cannot go on.
enum class Breakage : std::uint8_t { kNone, kSendQueue, kAll };

// An IP address as it stands in the headers of frames.
class HeaderAddress {
 public:
  HeaderAddress() = default;
  explicit HeaderAddress(const wire::Gid& gid) : bytes_(gid.bytes), is_v4_(gid.is_v4()) {
    if (is_v4_) v4_ = load_le<std::uint32_t>(gid.bytes.data() + 12);
  }
  bool is_source(const std::uint8_t* frame, const wire::ParsedFrame& parsed) const {
    return is_at(frame + parsed.ip_offset + (is_v4_ ? 12 : 8), parsed);
  }
  bool is_destination(const std::uint8_t* frame, const wire::ParsedFrame& parsed) const {
    return is_at(frame + parsed.ip_offset + (is_v4_ ? 16 : 24), parsed);
  }

 private:
  bool is_at(const std::uint8_t* address, const wire::ParsedFrame& parsed) const {
    if (parsed.is_v4 != is_v4_) return false;
    return is_v4_ ? load_le<std::uint32_t>(address) == v4_ : std::memcmp(address, bytes_.data(), bytes_.size()) == 0;
  }

  std::array<std::uint8_t, 16> bytes_{};
  std::uint32_t v4_ = 0;
  bool is_v4_ = false;
};

// For tests of programs: receivers that are not ready now and then.
struct FeignedRnr {
  std::uint32_t per_million = 0;
  Rng rng;

  bool strikes() { return per_million != 0 && rng.chance_per_million(per_million); }
};

struct Connection {
  Qpn qpn{};
  memory::PdId pd{};
  memory::RegionTable* regions = nullptr;
  AdapterCounters* counters = nullptr;
  FeignedRnr* feigned_rnr = nullptr;  // the adapter's
  CompletionQueue* send_completions = nullptr;
  CompletionQueue* receive_completions = nullptr;

  // The path.
  wire::HeaderTemplate headers{};
  wire::PacketTemplate acknowledge{};  // with zeros where PSN and AETH stand
  wire::Gid remote_gid{};
  HeaderAddress peer{};  // the same
  Qpn remote_qpn{};
  std::uint32_t mtu = 1024;
  bool path_ready = false;  // the peer's MAC is known

  // Limits and behaviour, as modify() set them.
  memory::Access access{};  // what the peer may do at all
  Duration timeout{};       // zero: never
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry_count = 7;
  std::uint8_t min_rnr_timer = 12;
  std::uint8_t max_reads_out = 16;
  std::uint8_t max_reads_in = 16;
  std::uint32_t max_unacked_packets = 256;
  bool coalesce_acks = true;
  bool advertise_credits = false;
  bool signal_all = false;  // every send leaves a completion

  // DCQCN, of what either half sends: the requester's packets and the READ responses. Null: no pace.
  std::unique_ptr<ReactionPoint> pace{};
  Time paced_until = Time::never();  // the pace allows nothing before; never: it does not hold us up

  // Set when the sink had no room for a packet that might otherwise have left.
  bool sink_full = false;
  bool completion_lost = false;  // a completion queue had no room for it
  // Set by either half when it cannot go on; the queue pair then moves to SQE or ERR.
  Breakage breakage = Breakage::kNone;

  bool broken() const { return breakage != Breakage::kNone; }
  void break_off(Breakage what) { breakage = std::max(breakage, what); }

  // Whether a packet that the pace is for may leave now.
  bool pace_allows(Time now) { return pace == nullptr || ask_pace(now); }
  void on_paced(Time now, std::size_t bytes) {
    if (pace) pace->on_sent(now, static_cast<std::uint32_t>(bytes));
  }

  void complete_send(const Completion& completion) { complete(*send_completions, completion); }
  void complete_receive(const Completion& completion) { complete(*receive_completions, completion); }

 private:
  bool ask_pace(Time now) {
    const Time next = pace->next_send(now);
    paced_until = next <= now ? Time::never() : next;
    return next <= now;
  }
  void complete(CompletionQueue& queue, const Completion& completion) {
    if (queue.push(completion)) [[likely]]
      return;
    ++counters->completions_lost;
    completion_lost = true;
    break_off(Breakage::kAll);
  }
};

// One packet on its way into a sink: headers first, then what the caller writes at body(), then finish().
class PacketWriter {
 public:
  // `body_length` bytes follow the BTH: extended headers, payload and pad. ok() is false when the sink has no room.
  PacketWriter(Connection& connection, const wire::HeaderTemplate& headers, port::FrameSink& sink, const wire::Bth& bth,
               std::size_t body_length)
      : headers_(headers), sink_(sink), transport_bytes_(wire::Bth::kSize + body_length) {
    frame_ = sink.reserve(headers.frame_size(transport_bytes_));
    connection.sink_full = frame_ == nullptr;
    if (frame_ == nullptr) return;
    const std::size_t at = headers.write(frame_, transport_bytes_);
    bth.write(frame_ + at);
    body_ = frame_ + at + wire::Bth::kSize;
  }
  bool ok() const { return frame_ != nullptr; }
  std::uint8_t* body() const { return body_; }
  void finish() { sink_.commit(headers_.seal(frame_, headers_.bth_offset() + transport_bytes_)); }

 private:
  const wire::HeaderTemplate& headers_;
  port::FrameSink& sink_;
  std::size_t transport_bytes_;
  std::uint8_t* frame_ = nullptr;
  std::uint8_t* body_ = nullptr;
};

}  // namespace sluice::rc
