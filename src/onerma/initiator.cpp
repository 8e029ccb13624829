#include "onerma/initiator.h"

#include <utility>

#include "base/check.h"
#include "memory/access.h"

namespace sluice::onerma {
namespace {

constexpr std::uint16_t kSourcePort = kUdpPort;

Kind request_of(OpKind op) {
  switch (op) {
    case OpKind::kRead: return Kind::kReadRequest;
    case OpKind::kWrite: return Kind::kWriteRequest;
    case OpKind::kRekey: return Kind::kRekeyRequest;
  }
  return Kind::kReadRequest;
}

// The tag, or what stands in its place.
void finish(std::uint8_t* frame, const Header& header, Sealer& sealer, std::size_t body) {
  if (header.plain) return write_checksum(frame, body);
  sealer.seal(frame, header, body);
}

}  // namespace

// A grant, its key ready for use, and the one before it for what is under way.
struct Initiator::Held {
  struct Keyed {
    explicit Keyed(const Grant& g) : grant(g), sealer(g.key) {}
    Grant grant;
    Sealer sealer;
  };
  Held(const Peer& p, const Grant& g) : peer(p), current(g), previous(g) {}

  // Of what was begun under this generation, or nullptr.
  Keyed* of(Generation generation) {
    if (generation == current.grant.generation) return &current;
    return generation == previous.grant.generation ? &previous : nullptr;
  }

  Peer peer;
  Keyed current;
  Keyed previous;
};

Initiator::Initiator(const InitiatorConfig& config, SolicitationWindow& window)
    : config_(config),
      writer_(config.mac, config.ip, kSourcePort),
      slots_(config.slots, window),
      pulled_(config.slots.slots) {
  SLUICE_CHECK(config.boot.value >> 24 == 0);
}

Initiator::~Initiator() = default;

GrantId Initiator::add_grant(const Peer& peer, const Grant& grant) {
  grants_.push_back(std::make_unique<Held>(peer, grant));
  return GrantId(static_cast<std::uint32_t>(grants_.size() - 1));
}

void Initiator::replace_grant(GrantId id, const Grant& grant) {
  Held& held = *grants_[id.value];
  SLUICE_CHECK(grant.region == held.current.grant.region);
  std::swap(held.previous, held.current);
  held.current.grant = grant;
  held.current.sealer.set_key(grant.key);
}

const Grant& Initiator::grant(GrantId id) const { return grants_[id.value]->current.grant; }

// ---------------------------------------------------------------------------------------------------------------- out

Header Initiator::header_of(const Slot& slot, const Grant& grant, Kind kind) const {
  return {.kind = kind,
          .plain = config_.protection == Protection::kPlain,
          .rights = grant.rights,
          .op = slot.op,
          .initiator = grant.initiator,
          .region = grant.region,
          .generation = grant.generation,
          .boot = config_.boot};
}

bool Initiator::poll_transmit(Time now, port::FrameSink& sink) {
  while (pulled_out_ != pulled_in_) {
    Slot* const slot = slots_.find(pulled_[pulled_out_ % pulled_.size()]);
    const bool wanted = slot != nullptr && slot->state == Slot::State::kPulled;
    // Its key has been replaced twice since: there is none to seal under, and nothing has happened.
    const bool keyless = wanted && grants_[slot->command.grant.value]->of(slot->generation) == nullptr;
    if (wanted && !keyless && !send_data(now, *slot, sink)) return false;
    ++pulled_out_;
    if (keyless) slots_.complete(now, *slot, Status::kBadKey);
    if (wanted && !keyless) return true;
  }
  Slot* const slot = slots_.next_to_send();
  return slot != nullptr && send_request(now, *slot, sink);
}

bool Initiator::send_request(Time now, Slot& slot, port::FrameSink& sink) {
  Held& held = *grants_[slot.command.grant.value];
  const Kind kind = request_of(slot.command.op);
  const std::size_t body = kind == Kind::kRekeyRequest ? 0 : kRequestBody;
  const std::size_t size = FrameWriter::frame_size(body);
  std::uint8_t* const frame = sink.reserve(size);
  if (frame == nullptr) return false;
  slots_.number(slot);
  const Header header = header_of(slot, held.current.grant, kind);
  writer_.write(frame, held.peer, header, body);
  if (body != 0) {
    RequestBody{slot.command.address, static_cast<std::uint32_t>(slot.command.local.size())}.write(frame + kBodyOffset);
  }
  finish(frame, header, held.current.sealer, body);
  slot.echo = Echo::of(frame, body);
  slot.generation = header.generation;
  sink.commit(size);
  slots_.on_sent(now, slot);
  ++counters_.requests;
  return true;
}

bool Initiator::send_data(Time now, Slot& slot, port::FrameSink& sink) {
  Held& held = *grants_[slot.command.grant.value];
  Held::Keyed* const keyed = held.of(slot.generation);
  const std::size_t body = slot.command.local.size();
  const std::size_t size = FrameWriter::frame_size(body);
  std::uint8_t* const frame = sink.reserve(size);
  if (frame == nullptr) return false;
  Header header = header_of(slot, keyed->grant, Kind::kData);
  header.place = slot.place;
  header.pull_boot = slot.pull_boot;
  header.counter = slot.pull_counter;
  writer_.write(frame, held.peer, header, body);
  memory::copy_out(frame + kBodyOffset, slot.command.local.data(), body);
  finish(frame, header, keyed->sealer, body);
  sink.commit(size);
  slots_.on_data_sent(now, slot);
  ++counters_.data;
  return true;
}

// ----------------------------------------------------------------------------------------------------------------- in

void Initiator::on_message(Time now, MutableBytes frame, const Message& message) {
  const Header& h = message.header;
  Slot* const slot = slots_.find(h.op);
  if (slot == nullptr || slot->state == Slot::State::kWaiting) {
    ++counters_.stray;
    counters_.stray_pulls += h.kind == Kind::kPull ? 1 : 0;
    return;
  }
  Held& held = *grants_[slot->command.grant.value];
  Held::Keyed* const keyed = held.of(slot->generation);
  const bool plain = config_.protection == Protection::kPlain;
  if (keyed == nullptr || message.from.ip != held.peer.ip || h.region != keyed->grant.region ||
      h.generation != slot->generation || h.initiator != keyed->grant.initiator || h.plain != plain) {
    ++counters_.mismatched;
    return;
  }
  if (h.kind == Kind::kRefusal) return on_refusal(now, frame, message, *slot);
  const bool authentic = plain ? checksum_is_right(frame.data(), message.body_length)
                               : keyed->sealer.open(frame.data(), h, message.body_length);
  if (!authentic) {
    ++counters_.unauthentic;
    return;
  }
  if (h.kind == Kind::kPull) return on_pull(now, message, *slot);
  on_answer(now, frame, message, *slot);
}

void Initiator::on_refusal(Time now, MutableBytes frame, const Message& message, Slot& slot) {
  const Status status = message.header.status;
  if (!checksum_is_right(frame.data(), message.body_length) || Echo::parse(frame.data() + kBodyOffset) != slot.echo) {
    ++counters_.unauthentic;
    return;
  }
  if (slot.state != Slot::State::kSent || (status != Status::kNack && status != Status::kBadKey)) {
    ++counters_.mismatched;
    return;
  }
  ++counters_.refused_in_clear;
  ++counters_.completed;
  slots_.complete(now, slot, status);
}

// Once for each operation: what asks again is a replay of the request, or its double.
void Initiator::on_pull(Time now, const Message& message, Slot& slot) {
  if (slot.command.op == OpKind::kRead) {
    ++counters_.mismatched;
    return;
  }
  if (slot.state != Slot::State::kSent) {
    ++counters_.stray;
    ++counters_.stray_pulls;
    return;
  }
  slot.place = message.header.place;
  slot.pull_counter = message.header.counter;
  slot.pull_boot = message.header.boot;
  if (pulled_in_ - pulled_out_ == pulled_.size()) forget_pulled();
  pulled_[pulled_in_++ % pulled_.size()] = slot.op;
  slots_.on_pull(now, slot);
}

// Operations that were over before their data could leave. As many places as slots: one is free after this.
void Initiator::forget_pulled() {
  const std::uint64_t end = std::exchange(pulled_in_, pulled_out_);
  for (std::uint64_t i = pulled_out_; i != end; ++i) {
    const OpId op = pulled_[i % pulled_.size()];
    const Slot* const slot = slots_.find(op);
    if (slot != nullptr && slot->state == Slot::State::kPulled) {
      pulled_[pulled_in_++ % pulled_.size()] = op;
    }
  }
}

void Initiator::on_answer(Time now, MutableBytes frame, const Message& message, Slot& slot) {
  const Header& h = message.header;
  const bool read = slot.command.op == OpKind::kRead;
  const bool response = h.kind == Kind::kReadResponse;
  // Once data have left, what is said of the request is said of a replay of it: they may have been written.
  const bool of_data = slot.state == Slot::State::kDataSent;
  const bool fits = response ? read && message.body_length == slot.command.local.size()
                             : h.of_data == of_data && (of_data || h.status != Status::kOk);
  if (!fits || h.status == Status::kDispatchTimeout || h.status == Status::kTimeout) {
    ++counters_.mismatched;
    return;
  }
  if (response) memory::copy_in(slot.command.local.data(), frame.data() + kBodyOffset, message.body_length);
  ++counters_.completed;
  slots_.complete(now, slot, h.status);
}

}  // namespace sluice::onerma
