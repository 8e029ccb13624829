#include "fuzz/responder_model.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::fuzz {

using wire::Extended;
using wire::Kind;
using wire::Position;

void ResponderModel::start(const rc::QueuePair& pair, memory::PdId domain, const memory::RegionTable& regions) {
  *this = {};
  pair_ = &pair;
  regions_ = &regions;
  domain_ = domain;
  expected_ = pair.attributes().receive_psn.value_or(rc::Psn());
}

bool ResponderModel::may_be(Verdict verdict, Verdict due, const wire::ParsedFrame& p, Receives receives) const {
  if (verdict == due) return true;
  const Kind kind = p.traits().kind;
  if (verdict == Verdict::kPutOff) return p.psn == expected_ && (kind == Kind::kReadRequest || p.traits().is_atomic());
  if (verdict == Verdict::kNotReady) return due == Verdict::kExecuted && receives == Receives::kUnknown;
  // Its receive is too short or not to be had, or what it invalidates is not.
  return due == Verdict::kExecuted && kind == Kind::kSend &&
         (verdict == Verdict::kInvalid || verdict == Verdict::kOperation ||
          (verdict == Verdict::kAccess && p.traits().has(Extended::kIeth)));
}

ResponderModel::Verdict ResponderModel::due(ByteView frame, const wire::ParsedFrame& p, Receives receives) const {
  const std::int32_t ahead = p.psn.since(expected_);
  if (ahead != 0) return ahead < 0 ? Verdict::kDuplicate : Verdict::kGap;
  if (!is_well_formed(p)) return Verdict::kInvalid;
  switch (p.traits().kind) {
    case Kind::kSend:
      return p.traits().starts_message() && receives == Receives::kNone ? Verdict::kNotReady : Verdict::kExecuted;
    case Kind::kWrite: return due_write(frame, p, receives);
    case Kind::kReadRequest: return due_read(wire::get<wire::Reth>(frame.data(), p));
    default: return due_atomic(wire::AtomicEth::parse(frame.data() + p.extended_offset()));
  }
}

// Its place in its message, and its length.
bool ResponderModel::is_well_formed(const wire::ParsedFrame& p) const {
  const wire::OpcodeTraits& traits = p.traits();
  if (traits.starts_message() == in_message_) return false;
  if (in_message_ && traits.kind != message_) return false;
  if (!traits.has_payload) return true;
  const std::uint32_t length = p.payload_length;
  if (traits.position == Position::kFirst || traits.position == Position::kMiddle) return length == mtu();
  return length <= mtu() && (length != 0 || traits.position == Position::kOnly);
}

ResponderModel::Write ResponderModel::write_of(ByteView frame, const wire::ParsedFrame& p) const {
  if (!p.traits().starts_message()) return write_;
  const auto reth = wire::get<wire::Reth>(frame.data(), p);
  return {
      .key = memory::Key{reth.rkey.value}, .address = reth.virtual_address, .length = reth.length, .left = reth.length};
}

ResponderModel::Verdict ResponderModel::due_write(ByteView frame, const wire::ParsedFrame& p, Receives receives) const {
  const wire::OpcodeTraits& traits = p.traits();
  if (!allows(memory::kRemoteWrite)) return Verdict::kInvalid;
  if (traits.has(Extended::kImmDt) && receives == Receives::kNone) return Verdict::kNotReady;
  const Write write = write_of(frame, p);
  const bool there = write.length == 0 || find(write.key, write.address, write.length, memory::kRemoteWrite) != nullptr;
  const bool fits = traits.ends_message() ? p.payload_length == write.left : p.payload_length < write.left;
  if (traits.starts_message() && write.length > rc::kLongestMessage) return Verdict::kInvalid;
  if (traits.starts_message() && !there) return Verdict::kAccess;
  if (!fits) return Verdict::kInvalid;
  return there ? Verdict::kExecuted : Verdict::kAccess;
}

ResponderModel::Verdict ResponderModel::due_read(const wire::Reth& reth) const {
  if (reth.length > rc::kLongestMessage || !has_room() || !allows(memory::kRemoteRead)) return Verdict::kInvalid;
  const bool there = reth.length == 0 || find(memory::Key{reth.rkey.value}, reth.virtual_address, reth.length,
                                              memory::kRemoteRead) != nullptr;
  return there ? Verdict::kExecuted : Verdict::kAccess;
}

ResponderModel::Verdict ResponderModel::due_atomic(const wire::AtomicEth& atomic) const {
  if (atomic.virtual_address % 8 != 0 || !has_room() || !allows(memory::kRemoteAtomic)) return Verdict::kInvalid;
  const std::uint8_t* const word =
      find(memory::Key{atomic.rkey.value}, atomic.virtual_address, 8, memory::kRemoteAtomic);
  const bool there = word != nullptr && reinterpret_cast<std::uintptr_t>(word) % 8 == 0;
  return there ? Verdict::kExecuted : Verdict::kAccess;
}

std::uint8_t* ResponderModel::find(memory::Key key, std::uint64_t address, std::uint64_t length,
                                   memory::Access right) const {
  return regions_->translate(key, domain_, address, length, right).host;
}

void ResponderModel::on_verdict(Verdict verdict, Verdict due, ByteView frame, const wire::ParsedFrame& p,
                                Receives receives) {
  SLUICE_CHECK(!refuses_ && may_be(verdict, due, p, receives));
  refuses_ = verdict == Verdict::kInvalid || verdict == Verdict::kAccess || verdict == Verdict::kOperation;
  if (verdict != Verdict::kExecuted) return;
  const wire::OpcodeTraits& traits = p.traits();
  std::uint32_t packets = 1;
  if (traits.kind == Kind::kReadRequest) {
    const std::uint32_t length = wire::get<wire::Reth>(frame.data(), p).length;
    packets = std::max(1u, length / mtu() + (length % mtu() != 0 ? 1 : 0));
  }
  expected_ = expected_ + packets;
  if (traits.kind == Kind::kReadRequest || traits.is_atomic()) waiting_.push_back(expected_ - 1);
  if (traits.kind == Kind::kWrite) {
    write_ = write_of(frame, p);
    write_.left -= p.payload_length;
  }
  in_message_ = !traits.ends_message();
  message_ = traits.kind;
  taken_ = traits.kind == Kind::kSend && in_message_;
  SLUICE_CHECK(pair_->expected_psn() == expected_);
}

void ResponderModel::on_answer(rc::Psn psn) {
  if (!waiting_.empty() && waiting_.front() == psn) waiting_.pop_front();
}

}  // namespace sluice::fuzz
