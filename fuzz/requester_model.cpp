#include "fuzz/requester_model.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace sluice::fuzz {

using rc::CompletionKind;
using rc::CompletionStatus;
using rc::Psn;
using rc::SendOp;
using wire::Extended;
using wire::Kind;

void RequesterModel::start(const rc::QueuePair& pair, std::uint32_t window) {
  pair_ = &pair;
  window_ = window;
  works_.clear();
  reads_.clear();
  una_ = highest_ = pair.attributes().send_psn.value_or(Psn());
  rnr_until_ = Time();
  rnr_waits_ = false;
  progressed();
}

void RequesterModel::progressed() {
  strikes_ = 0;
  retries_ = pair_->attributes().retry_count.value_or(7);
  rnr_left_ = pair_->attributes().rnr_retry_count.value_or(7);
}

void RequesterModel::post(const rc::SendRequest& r) {
  if (!is_on()) return;
  Work work{.id = r.id, .op = r.op, .flags = r.flags, .not_after = r.not_after};
  work.pieces.assign(r.sges.begin(), r.sges.end());
  for (const rc::Sge& piece : r.sges) work.length += piece.length;
  if (rc::is_atomic(r.op)) work.length = 8;
  if (r.flags.inline_data) work.copied = bytes_of(work, 0, work.length);
  work.immediate = r.op == SendOp::kSendWithInvalidate ? r.invalidate_key.value : r.immediate;
  work.address = r.remote_address;
  work.key = r.remote_key;
  work.compare = r.compare;
  work.swap_or_add = r.swap_or_add;
  works_.push_back(std::move(work));
}

RequesterModel::Work* RequesterModel::head() {
  const auto found = std::ranges::find_if(works_, [](const Work& work) { return !work.done; });
  return found == works_.end() ? nullptr : &*found;
}

bool RequesterModel::is_usable(const Work& work) const {
  return work.copies() || std::ranges::all_of(work.pieces, [&](const rc::Sge& piece) {
           return piece.length == 0 || find_(piece) != nullptr;
         });
}

// As they are now; of inline data as they were.
std::vector<std::uint8_t> RequesterModel::bytes_of(const Work& work, std::uint32_t offset, std::size_t length) const {
  std::vector<std::uint8_t> all = work.copied;
  if (all.empty()) {
    for (const rc::Sge& piece : work.pieces) {
      if (piece.length == 0) continue;
      const std::uint8_t* const from = find_(piece);
      SLUICE_CHECK(from != nullptr);
      all.insert(all.end(), from, from + piece.length);
    }
  }
  const auto from = all.begin() + static_cast<std::ptrdiff_t>(offset);
  return {from, from + static_cast<std::ptrdiff_t>(length)};
}

// -------------------------------------------------------------------------------------------------------- what leaves

// Whose packet that is: of what has been sent, or is next.
RequesterModel::Work& RequesterModel::sender_of(Psn psn) {
  const bool is_new = psn == highest_;
  const auto found = std::ranges::find_if(works_, [&](const Work& work) {
    return is_new ? work.packets == 0 || work.sent < work.packets : work.holds(psn);
  });
  SLUICE_CHECK(found != works_.end());
  return *found;
}

void RequesterModel::begin(Work& work) {
  SLUICE_CHECK(!work.flags.fence || reads_.empty());
  work.first = highest_;
  work.packets = rc::is_atomic(work.op) ? 1 : std::max(1u, (work.length + mtu() - 1) / mtu());
}

void RequesterModel::on_packet(Time now, ByteView frame, const wire::ParsedFrame& p) {
  SLUICE_CHECK(now >= rnr_until_);
  SLUICE_CHECK(p.psn.since(una_) >= 0 && p.psn.since(highest_) <= 0);
  Work& work = sender_of(p.psn);
  SLUICE_CHECK(!work.done && !work.failed && is_usable(work) && now <= work.not_after);
  if (work.packets == 0) begin(work);
  const auto index = static_cast<std::uint32_t>(p.psn.since(work.first));
  const std::uint32_t covered = work.op == SendOp::kRead ? check_read(work, index, frame, p)
                                : rc::is_atomic(work.op) ? check_atomic(work, frame, p)
                                                         : check_message(work, index, frame, p);
  if (p.psn == highest_) {
    const auto unacked = static_cast<std::uint32_t>(highest_.since(una_));
    SLUICE_CHECK(unacked == 0 || unacked + covered <= window_);
    if (rc::reads(work.op)) {
      SLUICE_CHECK(reads_.size() < pair_->attributes().max_reads_out.value_or(16));
      reads_.push_back(p.psn + covered);
    }
  }
  rnr_waits_ = false;
  work.sent = std::max(work.sent, index + covered);
  const Psn end = p.psn + covered;
  if (end.since(highest_) > 0) highest_ = end;
  if (reliable()) return;
  una_ = highest_;
  work.done = work.sent == work.packets;
}

// Returns how many PSNs it takes, as do the others.
std::uint32_t RequesterModel::check_message(const Work& work, std::uint32_t index, ByteView frame,
                                            const wire::ParsedFrame& p) const {
  const wire::OpcodeTraits& traits = p.traits();
  const bool writes = work.op == SendOp::kWrite || work.op == SendOp::kWriteWithImmediate;
  const bool first = index == 0;
  const bool last = index + 1 == work.packets;
  SLUICE_CHECK(traits.transport == pair_->config().transport && traits.kind == (writes ? Kind::kWrite : Kind::kSend));
  SLUICE_CHECK(traits.starts_message() == first && traits.ends_message() == last);
  const std::uint32_t offset = index * mtu();
  SLUICE_CHECK(p.payload_length == std::min(mtu(), work.length - offset));
  SLUICE_CHECK(std::ranges::equal(wire::payload(frame.data(), p), bytes_of(work, offset, p.payload_length)));
  if (writes && first) {
    const auto reth = wire::get<wire::Reth>(frame.data(), p);
    SLUICE_CHECK(reth.virtual_address == work.address && reth.rkey.value == work.key.value &&
                 reth.length == work.length);
  }
  const bool immediate = work.op == SendOp::kSendWithImmediate || work.op == SendOp::kWriteWithImmediate;
  SLUICE_CHECK(traits.has(Extended::kImmDt) == (last && immediate));
  SLUICE_CHECK(traits.has(Extended::kIeth) == (last && work.op == SendOp::kSendWithInvalidate));
  if (traits.has(Extended::kImmDt)) SLUICE_CHECK(wire::get<wire::ImmDt>(frame.data(), p).immediate == work.immediate);
  if (traits.has(Extended::kIeth)) SLUICE_CHECK(wire::get<wire::Ieth>(frame.data(), p).rkey.value == work.immediate);
  SLUICE_CHECK(p.solicited == (last && work.flags.solicited));
  SLUICE_CHECK(reliable() ? p.ack_request || !last : !p.ack_request);
  return 1;
}

std::uint32_t RequesterModel::check_read(const Work& work, std::uint32_t index, ByteView frame,
                                         const wire::ParsedFrame& p) const {
  SLUICE_CHECK(p.opcode == wire::Opcode::kRcReadRequest);
  const auto reth = wire::get<wire::Reth>(frame.data(), p);
  const std::uint32_t offset = index * mtu();
  SLUICE_CHECK(reth.virtual_address == work.address + offset && reth.rkey.value == work.key.value);
  const std::uint32_t left = work.length - offset;
  SLUICE_CHECK(reth.length == left || (reth.length != 0 && reth.length < left && reth.length % mtu() == 0));
  return std::max(1u, (reth.length + mtu() - 1) / mtu());
}

std::uint32_t RequesterModel::check_atomic(const Work& work, ByteView frame, const wire::ParsedFrame& p) const {
  const bool swaps = work.op == SendOp::kCompareAndSwap;
  SLUICE_CHECK(p.opcode == (swaps ? wire::Opcode::kRcCompareSwap : wire::Opcode::kRcFetchAdd));
  const auto atomic = wire::get<wire::AtomicEth>(frame.data(), p);
  SLUICE_CHECK(atomic.virtual_address == work.address && atomic.rkey.value == work.key.value &&
               atomic.swap_or_add == work.swap_or_add && (!swaps || atomic.compare == work.compare));
  return 1;
}

// ------------------------------------------------------------------------------------------------------------ answers

void RequesterModel::on_response(Time now, ByteView frame, const wire::ParsedFrame& p, const Write& write) {
  if (p.psn.since(una_) < 0) {
    SLUICE_CHECK(p.traits().kind == Kind::kAcknowledge && p.psn == una_ - 1);  // for its credits
    return;
  }
  SLUICE_CHECK(p.psn.since(highest_) < 0);
  const Kind kind = p.traits().kind;
  if (kind == Kind::kAcknowledge) return on_acknowledge(now, p.psn, wire::get<wire::Aeth>(frame.data(), p));
  acknowledge_through(p.psn - 1);
  if (kind == Kind::kReadResponse) return on_data(SendOp::kRead, p.psn, wire::payload(frame.data(), p), write);
  std::array<std::uint8_t, 8> word;
  store_le(word.data(), wire::get<wire::AtomicAckEth>(frame.data(), p).original);
  on_data(SendOp::kCompareAndSwap, p.psn, word, write);
}

void RequesterModel::on_acknowledge(Time now, Psn psn, const wire::Aeth& aeth) {
  if (aeth.is_ack()) return acknowledge_through(psn);
  if (aeth.is_rnr_nak()) return on_not_ready(now, psn, aeth);
  if (!aeth.is_nak()) return;  // no type that there is
  acknowledge_through(psn - 1);
  Work* const oldest = head();
  ++strikes_;
  if (oldest == nullptr || !oldest->holds(psn)) return;
  switch (aeth.nak_code()) {
    case wire::NakCode::kInvalidRequest:
    case wire::NakCode::kInvalidRdRequest: oldest->failed = CompletionStatus::kRemoteInvalidRequest; return;
    case wire::NakCode::kRemoteAccessError: oldest->failed = CompletionStatus::kRemoteAccessError; return;
    case wire::NakCode::kRemoteOperationalError: oldest->failed = CompletionStatus::kRemoteOperationError; return;
    default: return;  // a gap, or no code that there is
  }
}

void RequesterModel::on_not_ready(Time now, Psn psn, const wire::Aeth& aeth) {
  if (rnr_waits_) return;
  acknowledge_through(psn - 1);
  Work* const oldest = head();
  const bool names_oldest = oldest != nullptr && oldest->holds(psn);
  if (rnr_left_ == 0) {
    if (names_oldest) oldest->failed = CompletionStatus::kRnrRetryExceeded;
    return;
  }
  if (rnr_left_ != 7) --rnr_left_;
  if (names_oldest) {
    strikes_ = 0;
    retries_ = pair_->attributes().retry_count.value_or(7);
  } else {
    ++strikes_;
  }
  rnr_waits_ = true;
  rnr_until_ = now + aeth.rnr_delay();
}

void RequesterModel::on_data(SendOp op, Psn psn, ByteView bytes, const Write& write) {
  Work* const oldest = head();
  // What is not the next packet of the oldest READ or atomic says that one is missing, and no more.
  if (oldest == nullptr || oldest->packets == 0 || !rc::reads(oldest->op) || oldest->first + oldest->received != psn)
    return;
  const std::uint32_t offset = oldest->received * mtu();
  const bool fits =
      rc::is_atomic(oldest->op) == rc::is_atomic(op) && bytes.size() == std::min(mtu(), oldest->length - offset);
  if (!fits || !is_usable(*oldest)) {
    oldest->failed = fits ? CompletionStatus::kLocalProtectionError : CompletionStatus::kBadResponse;
    return;
  }
  std::uint64_t skip = offset;
  for (const rc::Sge& piece : oldest->pieces) {
    const std::uint64_t begin = std::min<std::uint64_t>(skip, piece.length);
    skip -= begin;
    const std::size_t n = std::min<std::size_t>(bytes.size(), piece.length - begin);
    if (n != 0) write(find_(piece) + begin, bytes.first(n));
    bytes = bytes.subspan(n);
  }
  ++oldest->received;
  oldest->done = oldest->received == oldest->packets;
  una_ = psn + 1;
  while (!reads_.empty() && reads_.front().since(una_) <= 0) reads_.pop_front();
  progressed();
}

// A READ or atomic is not done by that.
void RequesterModel::acknowledge_through(Psn psn) {
  for (Work* oldest = head(); oldest != nullptr && oldest->packets != 0 && !rc::reads(oldest->op); oldest = head()) {
    if (psn.since(una_) < 0) return;
    const Psn end = oldest->first + oldest->packets;
    oldest->done = psn.since(end) >= -1;
    una_ = oldest->done ? end : psn + 1;
    progressed();
  }
}

// --------------------------------------------------------------------------------------------- time, and how it ends

void RequesterModel::on_time(Time now, std::uint64_t timeouts) {
  strikes_ += timeouts;
  if (now >= rnr_until_) rnr_waits_ = false;
}

void RequesterModel::drop_silent() {
  while (!works_.empty() && works_.front().done && !works_.front().flags.signaled) works_.pop_front();
}

void RequesterModel::on_completion(const rc::Completion& c) {
  if (!is_on()) return;
  drop_silent();
  SLUICE_CHECK(!works_.empty() && works_.front().id == c.id);
  const Work& work = works_.front();
  switch (work.op) {
    case SendOp::kRead: SLUICE_CHECK(c.kind == CompletionKind::kRead); break;
    case SendOp::kCompareAndSwap: SLUICE_CHECK(c.kind == CompletionKind::kCompareAndSwap); break;
    case SendOp::kFetchAndAdd: SLUICE_CHECK(c.kind == CompletionKind::kFetchAndAdd); break;
    case SendOp::kWrite:
    case SendOp::kWriteWithImmediate: SLUICE_CHECK(c.kind == CompletionKind::kWrite); break;
    default: SLUICE_CHECK(c.kind == CompletionKind::kSend);
  }
  SLUICE_CHECK((c.status == CompletionStatus::kSuccess) == work.done);
  if (work.done) {
    SLUICE_CHECK(c.length == (rc::reads(work.op) ? work.length : 0));
  } else {
    SLUICE_CHECK(c.never_sent == (work.sent == 0));
    SLUICE_CHECK(c.begun == (work.sent != 0 && !rc::reads(work.op) && una_.since(work.first) > 0));
    check_reason(work, c.status);
  }
  works_.pop_front();
}

void RequesterModel::check_reason(const Work& work, CompletionStatus status) const {
  const rc::QpState state = pair_->state();
  if (status == CompletionStatus::kLocalProtectionError) {
    SLUICE_CHECK(!is_usable(work));  // also of what was to be sent again, and is refused meanwhile
  } else if (work.failed) {
    SLUICE_CHECK(status == *work.failed);
  } else if (status == CompletionStatus::kRetryExceeded) {
    SLUICE_CHECK(strikes_ > retries_ || !pair_->path_ready());
  } else {
    SLUICE_CHECK(status == CompletionStatus::kFlushed);
    SLUICE_CHECK(state == rc::QpState::kError || state == rc::QpState::kSendQueueError);
  }
}

void RequesterModel::check_settled() {
  if (!is_on()) return;
  drop_silent();
  SLUICE_CHECK(works_.size() == pair_->send_queue_length());
  if (works_.empty()) return;
  SLUICE_CHECK(!works_.front().done && !works_.front().failed);
  SLUICE_CHECK(pair_->state() == rc::QpState::kReadyToSend || pair_->state() == rc::QpState::kSendQueueDrained);
}

// --------------------------------------------------------------------------------------------- a peer that can answer

constexpr std::uint8_t kNo = 0xE0;  // from here on it says no, or not yet

std::optional<RequesterModel::Answer> RequesterModel::next_answer(std::uint8_t how) const {
  using enum wire::Opcode;
  if (!is_on() || una_ == highest_) return std::nullopt;
  const Work* const oldest = head();
  if (oldest == nullptr || oldest->packets == 0) return std::nullopt;
  Answer answer{.opcode = kRcAcknowledge, .psn = una_};
  const bool middle = oldest->op == SendOp::kRead && how % 4 == 1;
  if (!middle) {
    answer.body.resize(wire::Aeth::kSize);
    wire::Aeth{}.write(answer.body.data());
  }
  if (how >= kNo) {
    constexpr std::uint8_t kSyndromes[] = {0x21, 0x21, 0x22, 0x60,
                                           0x60, 0x60, 0x61, 0x62};  // not ready; a gap; refused
    const auto unacked = static_cast<std::uint32_t>(highest_.since(una_));
    answer.psn = una_ + (how >> 3 & 3u) % unacked;
    answer.body.resize(wire::Aeth::kSize);
    wire::Aeth{.syndrome = kSyndromes[how & 7u]}.write(answer.body.data());
  } else if (oldest->op == SendOp::kRead) {
    constexpr wire::Opcode kNames[] = {kRcReadResponseFirst, kRcReadResponseMiddle, kRcReadResponseLast,
                                       kRcReadResponseOnly};
    answer.opcode = kNames[how % 4];
    answer.payload = std::min(mtu(), oldest->length - oldest->received * mtu());
    answer.body.resize(answer.body.size() + answer.payload, how);
  } else if (rc::is_atomic(oldest->op)) {
    answer.opcode = kRcAtomicAcknowledge;
    answer.body.resize(wire::Aeth::kSize + wire::AtomicAckEth::kSize);
    wire::AtomicAckEth{std::uint64_t{how} << 40 | 0x1234}.write(answer.body.data() + wire::Aeth::kSize);
  } else if (how % 2 == 1) {
    answer.psn = highest_ - 1;
  }
  return answer;
}

}  // namespace sluice::fuzz
