#include "sim/world/nic.h"

#include <algorithm>

#include "base/check.h"
#include "sim/world/roce_packet.h"
#include "wire/bth.h"

namespace sluice::sim {
namespace {

using wire::Kind;

constexpr std::size_t kBth = kBthOffset;
constexpr std::size_t kExtended = kBth + wire::Bth::kSize;

std::uint8_t opcode_of(const Packet& packet) { return packet.data[kBth]; }
std::uint32_t destination_of(const Packet& packet) {
  return load_be<std::uint32_t>(packet.data + kBth + 4) & 0xFF'FFFF;
}

}  // namespace

Nic::Nic(EventLoop& loop, PacketPool& pool, Trace& trace, const NicParameters& parameters,
         const rc::AdapterConfig& config, std::uint32_t number)
    : loop_(loop),
      pool_(pool),
      trace_(trace),
      parameters_(parameters),
      number_(number),
      first_qpn_(config.first_qpn.value),
      adapter_(config),
      domain_(adapter_.create_domain()),
      memory_chance_(Rng(config.seed).fork("memory")),
      sink_(*this),
      guards_(kGuards) {}

Nic::~Nic() {
  for (PacketHeap* heap : {&leaving_, &arriving_}) {
    while (!heap->empty()) pool_.give_back(heap->pop());
  }
}

Nic::Turns& Nic::turns_of(std::uint32_t qpn) {
  const std::uint32_t place = qpn - first_qpn_;
  if (place >= rc::AdapterLimits{}.max_queue_pairs) return other_;
  if (place >= turns_.size()) turns_.resize(place + 1);
  return turns_[place];
}

// ---------------------------------------------------------------------------------------------------------------- out

rc::PostError Nic::post(Time now, Duration launch, rc::QueuePair& pair, const rc::SendRequest& request) {
  const rc::PostError error = adapter_.post_send(now, pair, request);
  if (error != rc::PostError::kNone) return error;
  sender_ = &turns_of(pair.qpn().value);
  count(*sender_, &pair);
  launch_ = launch;
  drain(now);
  return error;
}

void Nic::touched(Time now, Duration launch) {
  sender_ = &other_;
  launch_ = launch;
  answer_after_ = {};
  drain(now);
}

// Everything that the adapter would send; `sender_`, `launch_` and `answer_after_` say of whom, and from when on.
void Nic::drain(Time now) {
  sink_.now = now;
  while (adapter_.poll_transmit(now, sink_)) {
  }
  arm_timer();
}

void Nic::enqueue_transmit(Time now, Packet* packet) {
  const bool roce = is_roce(*packet);
  const wire::OpcodeTraits& traits = wire::opcode_traits(opcode_of(*packet));
  Turns& turns = roce && adapter_.config().dcqcn ? turns_of_sender(*packet) : *sender_;
  if (roce && !traits.is_request) {
    const Time ready = now + answer_after_ + parameters_.transmit_latency;
    packet->when = turns.answer_out = std::max(ready, turns.answer_out);
  } else {
    Time ready = now + launch_ + parameters_.transmit_latency;
    const std::size_t overhead = kExtended + traits.extended_length + wire::kIcrcSize;
    if (roce && traits.has_payload && packet->length > overhead + parameters_.inline_bytes)
      ready = ready + parameters_.fetch_latency;
    packet->when = std::max(ready, turns.request_out);
    turns.request_out = packet->when + parameters_.requester_qp_interval;
  }
  leaving_.push(packet);
  loop_.schedule_no_later(transmit_event_, std::max(leaving_.front()->when, packet_out_));
}

// What DCQCN has held back is sent by a timer, which is nobody's; it must not overtake what its queue pair has sent before.
Nic::Turns& Nic::turns_of_sender(const Packet& packet) {
  const std::uint64_t peer = std::uint64_t{load_be<std::uint32_t>(packet.data + 2)} << 32 | destination_of(packet);
  if (sender_ != &other_) {
    senders_[peer] = static_cast<std::size_t>(sender_ - turns_.data());
    return *sender_;
  }
  const auto found = senders_.find(peer);
  return found == senders_.end() ? other_ : turns_[found->second];
}

void Nic::transmit(Time now) {
  Packet* const packet = leaving_.pop();
  packet_out_ = now + parameters_.packet_interval;
  if (!leaving_.empty()) loop_.schedule(transmit_event_, std::max(leaving_.front()->when, packet_out_));
  if (cut_) return pool_.give_back(packet);
  ++counters_.wire_packets;
  counters_.wire_bytes += packet->length;
  wire_->send(now, now, packet);
}

// ----------------------------------------------------------------------------------------------------------------- in

void Nic::on_packet(Time now, Packet* packet) {
  if (cut_) return pool_.give_back(packet);
  if (not_roce_ != nullptr && !is_roce(*packet)) return not_roce_->on_packet(now, packet);
  ++counters_.wire_packets;
  counters_.wire_bytes += packet->length;
  trace_.arrival(now, number_, packet->frame().bytes());
  const Time taken = std::max(now, packet_in_);
  packet_in_ = taken + parameters_.packet_interval;
  const Time at = taken + parameters_.receive_latency;
  packet->answer_after = {};
  packet->when = at;
  if (is_roce(*packet)) {
    Turns& turns = turns_of(destination_of(*packet));
    const wire::OpcodeTraits& traits = wire::opcode_traits(opcode_of(*packet));
    if (traits.is_request && traits.valid) {
      packet->when = time_of_request(at, turns, packet, opcode_of(*packet));
    } else {
      const Time done = at + parameters_.completion_latency + refetch();
      packet->when = turns.response_in = std::max(done, turns.response_in);
    }
  }
  arriving_.push(packet);
  loop_.schedule_no_later(execute_event_, arriving_.front()->when);
}

// Null: it is gone.
void Nic::count(Turns& turns, const rc::QueuePair* pair) {
  if (&turns == &other_) return;
  const std::uint32_t open = pair == nullptr ? 0 : pair->send_queue_length();
  open_ += open;
  open_ -= turns.open;
  turns.open = open;
}

// Of a work request whose answer has come: on average, what finding it takes.
Duration Nic::refetch() const {
  if (open_ <= parameters_.work_requests_kept) return {};
  const std::uint64_t span = parameters_.work_requests_lost - parameters_.work_requests_kept;
  const std::uint64_t beyond = std::min(open_ - parameters_.work_requests_kept, span);
  return parameters_.fetch_latency * static_cast<std::int64_t>(beyond) / static_cast<std::int64_t>(span);
}

Time Nic::time_of_request(Time at, Turns& turns, Packet* packet, std::uint8_t opcode) {
  const wire::OpcodeTraits& traits = wire::opcode_traits(opcode);
  ++counters_.requests;
  Time when = std::max(at, turns.request_in);
  bool device = false;
  if (traits.is_atomic() && packet->length >= kExtended + wire::AtomicEth::kSize) {
    const auto header = wire::AtomicEth::parse(packet->data + kExtended);
    device = is_device(header.rkey.value, header.virtual_address);
    when = time_of_atomic(when, turns, packet, header.virtual_address, device);
  } else if (traits.has(wire::Extended::kReth) && packet->length >= kExtended + wire::Reth::kSize) {
    const auto header = wire::Reth::parse(packet->data + kExtended);
    device = is_device(header.rkey.value, header.virtual_address);
    when = after_atomic(when, header.virtual_address);
    if (traits.kind == Kind::kReadRequest) {
      ++counters_.reads;
      packet->answer_after = device ? parameters_.read_latency_device : parameters_.read_latency;
      if (!device) {
        when = std::max(when, read_);
        read_ = when + parameters_.read_interval;
      }
    }
  }
  // A WRITE is posted: its ACK does not wait for memory.
  if (!device && packet->answer_after != Duration{}) packet->answer_after = packet->answer_after + memory_delay(when);
  turns.request_in = when + (device ? parameters_.responder_qp_interval_device : parameters_.responder_qp_interval);
  return when;
}

// What reads or writes an address waits until the atomics that came there before it are done.
Time Nic::after_atomic(Time at, std::uint64_t address) {
  const Guard& guard = guard_of(address);
  return guard.address == address ? std::max(at, guard.free) : at;
}

// Three lines at once: all atomics, those of the address, those of the queue pair.
Time Nic::time_of_atomic(Time at, Turns& turns, Packet* packet, std::uint64_t address, bool device) {
  ++counters_.atomics;
  const Time turn = std::max(at, atomic_);
  atomic_ = turn + parameters_.atomic_interval;
  Guard& guard = guard_of(address);
  Time begin = std::max(turn, turns.atomic);
  if (guard.address == address || guard.free > begin) begin = std::max(begin, guard.free);
  guard.address = address;
  guard.free = begin + (device ? parameters_.atomic_address_interval_device : parameters_.atomic_address_interval);
  turns.atomic = begin + (device ? parameters_.atomic_address_interval_device : parameters_.atomic_qp_interval);
  packet->answer_after = device ? parameters_.atomic_latency_device : parameters_.atomic_latency;
  return begin;
}

bool Nic::is_device(std::uint32_t rkey, std::uint64_t address) const {
  const auto found = const_cast<rc::Adapter&>(adapter_).regions().translate(memory::Key{rkey}, domain_, address, 1,
                                                                            memory::kLocalRead);
  return found.fault == memory::AccessFault::kNone && found.kind == memory::RegionKind::kDevice;
}

// Beyond the usual. Stalls come by time, not by access: at the full rate they are as rare as at a low one (Figures 1 and 3 beside 2).
Duration Nic::memory_delay(Time at) {
  Duration delay = draw(parameters_.memory_jitter);
  if (parameters_.stall_interval == Duration{} || at < next_stall_) return delay;
  next_stall_ = at + draw(parameters_.stall_interval * 2);
  ++counters_.stalls;
  delay = delay + draw(parameters_.stall_step);
  while ((memory_chance_.next() & 1) != 0) delay = delay + parameters_.stall_step;
  return delay;
}

// Evenly from 0 to `most`.
Duration Nic::draw(Duration most) {
  if (most == Duration{}) return {};
  return Duration::picoseconds(
      static_cast<std::int64_t>(memory_chance_.below(static_cast<std::uint64_t>(most.picoseconds()) + 1)));
}

void Nic::execute(Time now) {
  Packet* const packet = arriving_.pop();
  if (!arriving_.empty()) loop_.schedule(execute_event_, arriving_.front()->when);
  const bool roce = is_roce(*packet);
  const std::uint32_t qpn = roce ? destination_of(*packet) : 0;
  sender_ = roce ? &turns_of(qpn) : &other_;
  launch_ = {};
  answer_after_ = packet->answer_after;
  rc::QueuePair* const pair = roce ? adapter_.find(rc::Qpn{qpn}) : nullptr;
  if (roce) count(*sender_, pair);
  adapter_.on_frame(now, packet->frame());
  pool_.give_back(packet);
  drain(now);
  if (pair == nullptr) return;
  count(turns_of(qpn), pair);
  notify(now, *pair);
}

void Nic::notify(Time now, rc::QueuePair& pair) {
  if (pair.user == nullptr) return;
  const bool any = pair.config().send_completions->size() != 0 || pair.config().receive_completions->size() != 0;
  if (any) static_cast<CompletionListener*>(pair.user)->on_completions(now);
}

// -------------------------------------------------------------------------------------------------------------- timers

void Nic::arm_timer() {
  const Time next = adapter_.next_deadline();
  if (next != Time::never()) loop_.schedule_no_later(timer_, next);
}

// It may be early: work that a deadline was for has been done since.
void Nic::on_timer(Time now) {
  if (adapter_.next_deadline() > now) return arm_timer();
  adapter_.on_deadline(now);
  sender_ = &other_;
  launch_ = {};
  answer_after_ = {};
  drain(now);
  for (std::uint32_t place = 0; place < turns_.size(); ++place) {
    rc::QueuePair* const pair = adapter_.find(rc::Qpn{first_qpn_ + place});
    count(turns_[place], pair);
    if (pair != nullptr) notify(now, *pair);
  }
}

}  // namespace sluice::sim
