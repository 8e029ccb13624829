#include "onerma/target.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "memory/access.h"

namespace sluice::onerma {
namespace {

using Side = SolicitationWindow::Side;

std::uint32_t wire_bytes(std::uint32_t body) { return static_cast<std::uint32_t>(FrameWriter::frame_size(body)); }

OpKind op_of(Kind request) {
  if (request == Kind::kReadRequest) return OpKind::kRead;
  return request == Kind::kWriteRequest ? OpKind::kWrite : OpKind::kRekey;
}

// So many hold so much that one more makes no difference to who is alone.
constexpr std::uint32_t kManyFrames = 8;

memory::Access access_of(OpKind op) { return op == OpKind::kRead ? memory::kRemoteRead : memory::kRemoteWrite; }

std::size_t body_of(Kind answer, std::uint32_t length) {
  if (answer == Kind::kReadResponse) return length;
  return answer == Kind::kRefusal ? kRefusalBody : 0;
}

}  // namespace

Target::Target(const TargetConfig& config, Regions& regions, SolicitationWindow& window)
    : config_(config),
      regions_(regions),
      window_(window),
      writer_(config.mac, config.ip, kUdpPort),
      seen_(config.remembered),
      answers_(config.queue),
      waiting_(config.queue),
      places_(config.pulls),
      spare_(window.limit() >= kManyFrames * wire_bytes(kMaxOp) && config.pulls >= kManyFrames
                 ? Spare{.places = 1, .bytes = wire_bytes(kMaxOp)}
                 : Spare{}),
      alike_(std::bit_ceil(std::size_t{config.pulls}), kNoIndex) {
  SLUICE_CHECK(config.boot.value >> 24 == 0 && config.queue != 0);
  SLUICE_CHECK(config.pulls != 0 && config.pulls < kNoIndex);
  SLUICE_CHECK(window.limit() >= wire_bytes(kMaxOp));
  SLUICE_CHECK(config.queue < kNoIndex);
  free_waiting_.reserve(waiting_.size());
  for (std::size_t i = waiting_.size(); i-- != 0;) free_waiting_.push_back(static_cast<std::uint16_t>(i));
  free_.reserve(places_.size());
  for (std::size_t i = places_.size(); i-- != 0;) free_.push_back(static_cast<std::uint16_t>(i));
}

// ----------------------------------------------------------------------------------------------------------------- in

void Target::on_message(Time now, MutableBytes frame, const Message& message) {
  if (message.header.plain && !config_.allow_plain) {
    ++counters_.plain_refused;
    return refuse(frame, message, Status::kBadKey);
  }
  if (message.header.kind == Kind::kData) return on_data(now, frame, message);
  on_request(now, frame, message);
}

Target::Job Target::job_of(const Message& message, Kind answer) {
  const Header& h = message.header;
  return {.kind = answer,
          .rights = h.rights,
          .plain = h.plain,
          .to = message.from,
          .id = h.op,
          .initiator = h.initiator,
          .region = h.region,
          .generation = h.generation};
}

Target::Seal Target::check(MutableBytes frame, const Message& message) {
  const Header& h = message.header;
  if (h.plain) {
    const Regions::Age age = regions_.age_of(h.region, h.generation);
    if (age == Regions::Age::kUnknown || !checksum_is_right(frame.data(), message.body_length)) return Seal::kForged;
    return age == Regions::Age::kCurrent ? Seal::kGood : Seal::kOldKey;
  }
  const Regions::Found found = regions_.find(h.region, h.generation, h.initiator, h.rights);
  if (found.sealer == nullptr || !found.sealer->open(frame.data(), h, message.body_length)) return Seal::kForged;
  return found.current ? Seal::kGood : Seal::kOldKey;
}

void Target::on_request(Time now, MutableBytes frame, const Message& message) {
  const bool read = message.header.kind == Kind::kReadRequest;
  if (is_crowded(message)) {
    ++counters_.nacks;
    return refuse(frame, message, Status::kNack);
  }
  // Opening spoils the body, which a refusal speaks of.
  std::array<std::uint8_t, kRequestBody> body;
  const auto sealed = frame.subspan(kBodyOffset, message.body_length);
  std::ranges::copy(sealed, body.begin());
  const Seal seal = check(frame, message);
  if (seal == Seal::kForged) {
    ++counters_.forged;
    std::copy_n(body.begin(), sealed.size(), sealed.begin());
    return refuse(frame, message, Status::kBadKey);
  }
  Job job = job_of(message, read ? Kind::kReadResponse : Kind::kPull);
  job.op = op_of(message.header.kind);
  if (job.op != OpKind::kRekey) {
    const auto asked = RequestBody::parse(frame.data() + kBodyOffset);
    job.address = asked.address;
    job.length = asked.length;
  } else {
    job.length = Secret::kSize;
  }
  if (seal == Seal::kOldKey) {
    ++counters_.old_key;
    return complete(job, Status::kBadKey);
  }
  if (const Status status = judge(job); status != Status::kOk) return complete(job, status);
  job.again = !is_first(message);
  if (!read) {
    if (const Place* const first = asked_as(job)) return on_double(job, *first);
  }
  // A copy of a write that still waits, perhaps the genuine one, is told at its turn.
  if (job.again && (read || shares_[share_of(job.initiator)].line.empty())) {
    ++counters_.requests_again;
    return;
  }
  if (read) return answer(job);
  wait(job);
  start_pulls(now);
}

// Of what is plain nobody knows who has sent it: numbers that are made up would keep others' requests out.
bool Target::is_first(const Message& message) {
  const Header& h = message.header;
  return h.plain || seen_.take(h.region, h.initiator, h.boot, h.op);
}

// By what is said in clear: who says that he is another is shed as that one, and fills no line.
bool Target::is_crowded(const Message& message) const {
  if (message.header.kind == Kind::kReadRequest)
    return answers_.size() >= room_for(Kind::kReadResponse) || queued_bytes_ > config_.nack_bytes;
  const std::uint32_t index = share_of(message.header.initiator);
  const Share& share = shares_[index];
  const auto lines = static_cast<std::uint64_t>(std::popcount(lines_ | 1u << index));
  return share.waiting >= free_waiting_.size() ||
         (waiting_bytes_ > config_.nack_bytes && share.waiting_bytes * lines > config_.nack_bytes);
}

// What is wrong with an authentic request.
Status Target::judge(const Job& job) {
  // A key in clear is none, and would end those of who speaks sealed.
  if (!job.rights.allow(job.op) || (job.plain && job.op == OpKind::kRekey)) {
    ++counters_.right_missing;
    return Status::kRightMissing;
  }
  if (job.op == OpKind::kRekey) return Status::kOk;
  if (job.length > kMaxOp) {
    ++counters_.bad_bounds;
    return Status::kBadBounds;
  }
  switch (regions_.translate(job.region, job.address, job.length, access_of(job.op)).fault) {
    case memory::AccessFault::kNone: return Status::kOk;
    case memory::AccessFault::kOutOfBounds: ++counters_.bad_bounds; return Status::kBadBounds;
    case memory::AccessFault::kRightMissing: ++counters_.right_missing; return Status::kRightMissing;
    default: return Status::kBadKey;
  }
}

void Target::on_data(Time now, MutableBytes frame, const Message& message) {
  const Header& h = message.header;
  const Seal seal = check(frame, message);
  if (seal == Seal::kForged) {
    ++counters_.forged;
    return;
  }
  Place* const place = h.place < places_.size() ? &places_[h.place] : nullptr;
  // Whoever has not been called for a while finds data before it has found that their time is over.
  const bool asked = place != nullptr && place->open && now < place->expires && place->job.counter == h.counter &&
                     h.pull_boot == config_.boot && place->job.id == h.op && place->job.initiator == h.initiator &&
                     place->job.region == h.region && place->job.rights == h.rights &&
                     place->job.generation == h.generation && place->job.plain == h.plain;
  if (!asked) {
    ++counters_.replays;
    return complete_data(job_of(message, Kind::kCompletion), Status::kReplay);
  }
  Job job = place->job;
  job.to = message.from;
  close(h.place);
  if (seal == Seal::kOldKey) {
    ++counters_.old_key;
    complete_data(job, Status::kBadKey);
  } else {
    complete_data(job, execute(job, frame.subspan(kBodyOffset, message.body_length)));
  }
}

// Its key is the region's, and these are the bytes that it was asked for.
Status Target::execute(const Job& job, MutableBytes body) {
  if (body.size() != job.length) {
    ++counters_.bad_bounds;
    return Status::kBadBounds;
  }
  if (job.op == OpKind::kRekey) {
    const bool changed = regions_.rekey(job.region, Secret(body));
    OPENSSL_cleanse(body.data(), body.size());
    if (!changed) return Status::kBadKey;
    ++counters_.rekeys;
    return Status::kOk;
  }
  // The region may have gone since the request.
  const auto found = regions_.translate(job.region, job.address, job.length, access_of(job.op));
  if (found.fault != memory::AccessFault::kNone) return Status::kBadKey;
  memory::copy_in(found.host, body.data(), body.size());
  ++counters_.writes;
  return Status::kOk;
}

void Target::refuse(MutableBytes frame, const Message& message, Status status) {
  if (!is_request(message.header.kind)) return;
  Job job = job_of(message, Kind::kRefusal);
  job.status = status;
  job.echo = Echo::of(frame.data(), message.body_length);
  answer(job);
}

void Target::complete(Job job, Status status) {
  job.kind = Kind::kCompletion;
  job.status = status;
  job.place = 0;
  answer(job);
}

void Target::complete_data(Job job, Status status) {
  job.of_data = true;
  complete(std::move(job), status);
}

// Places for what ends a write are kept free of pulls and refusals, and places for these free of answers to reads: small ones would fill the ring
// long before their bytes shed any load, and a NACK that finds no place is a time-out.
std::size_t Target::room_for(Kind answer) const {
  const std::size_t all = config_.queue;
  if (answer == Kind::kReadResponse) return all - all / 2;
  return answer == Kind::kCompletion ? all : all - all / 4;
}

void Target::answer(const Job& job) {
  const Kind kind = job.kind == Kind::kCompletion && !job.of_data ? Kind::kRefusal : job.kind;
  if (answers_.size() >= room_for(kind)) {
    ++counters_.dropped;
    return;
  }
  queued_bytes_ += wire_bytes(static_cast<std::uint32_t>(body_of(job.kind, job.length)));
  answers_.push(job);
}

// -------------------------------------------------------------------------------------------------------------- pulls

void Target::start_pulls(Time now) {
  while (lines_ != 0) {
    const std::uint32_t share = next_share();
    const Job& next = waiting_[shares_[share].line.first()].job;
    const std::uint32_t bytes = wire_bytes(next.length);
    const Place* const first = asked_as(next);
    if (first == nullptr && next.again) {  // what it is a copy of has had its pull, which is over
      take_waiting(share);
      ++counters_.requests_again;
      continue;
    }
    if (first == nullptr) {
      const Spare spare = shares_[share].held == 0 ? Spare{} : spare_;
      if (free_.size() <= spare.places || answers_.size() >= room_for(Kind::kPull))
        return window_.want_nothing(Side::kPulls);
      if (!window_.has_room(Side::kPulls, bytes + spare.bytes)) return;
    }
    Job job = take_waiting(share);
    if (first != nullptr) {
      on_double(job, *first);
    } else {
      pull(now, job);
    }
  }
  window_.want_nothing(Side::kPulls);
}

std::uint32_t Target::share_of(InitiatorId initiator) {
  static_assert(kShares == 1u << 5);
  return static_cast<std::uint32_t>(initiator.value * 0x9E37'79B9'7F4A'7C15u >> 59);
}

// Who has least under way; of these, in turn. REQUIRES: somebody waits.
std::uint32_t Target::next_share() const {
  std::uint32_t best = kShares;
  for (std::uint32_t left = std::rotr(lines_, static_cast<int>(turn_)); left != 0; left &= left - 1) {
    const std::uint32_t one = (turn_ + static_cast<std::uint32_t>(std::countr_zero(left))) % kShares;
    if (best == kShares || shares_[one].held < shares_[best].held) best = one;
  }
  return best;
}

// REQUIRES: !is_crowded().
void Target::wait(const Job& job) {
  const std::uint32_t index = share_of(job.initiator);
  Share& share = shares_[index];
  const std::uint16_t place = free_waiting_.back();
  free_waiting_.pop_back();
  waiting_[place].job = job;
  share.line.push(waiting_, place);
  ++share.waiting;
  share.waiting_bytes += wire_bytes(job.length);
  waiting_bytes_ += wire_bytes(job.length);
  lines_ |= 1u << index;
}

Target::Job Target::take_waiting(std::uint32_t index) {
  Share& share = shares_[index];
  const std::uint16_t place = share.line.first();
  share.line.remove(waiting_, place);
  free_waiting_.push_back(place);
  const Job& job = waiting_[place].job;
  --share.waiting;
  share.waiting_bytes -= wire_bytes(job.length);
  waiting_bytes_ -= wire_bytes(job.length);
  if (share.line.empty()) lines_ &= ~(1u << index);
  turn_ = (index + 1) % kShares;
  return job;
}

// A copy from another MAC may be the genuine one: the place's pull goes there, too, the very same frame but for that address.
void Target::on_double(const Job& job, const Place& first) {
  ++counters_.doubled;
  if (job.to.mac == first.job.to.mac) return;
  Job again = first.job;
  again.to = job.to;
  answer(again);
}

void Target::pull(Time now, Job& job) {
  window_.take(Side::kPulls, wire_bytes(job.length));
  shares_[share_of(job.initiator)].held += wire_bytes(job.length);
  job.place = free_.back();
  free_.pop_back();
  job.counter = ++counter_;
  std::uint16_t& alike = alike_[bucket_of(job)];
  places_[job.place] = {.job = job, .expires = now + config_.pull_timeout, .open = true, .alike = alike};
  alike = job.place;
  asked_.push(places_, job.place);
  answer(job);
  ++counters_.pulls;
}

std::size_t Target::bucket_of(const Job& job) const {
  const std::uint64_t mixed = (job.id.value ^ job.initiator.value * 0x9E37'79B9'7F4A'7C15u) * 0xD6E8'FEB8'6659'FD93u;
  return static_cast<std::size_t>(mixed >> 32) & (alike_.size() - 1);
}

// Where its data have been asked for and have not come: an initiator gives its data once, so this is the request's double, or a replay.
Target::Place* Target::asked_as(const Job& job) {
  for (std::uint16_t at = alike_[bucket_of(job)]; at != kNoIndex; at = places_[at].alike) {
    const Job& open = places_[at].job;
    if (open.id == job.id && open.initiator == job.initiator && open.region == job.region &&
        open.generation == job.generation && open.rights == job.rights && open.plain == job.plain)
      return &places_[at];
  }
  return nullptr;
}

void Target::close(std::uint16_t place) {
  asked_.remove(places_, place);
  std::uint16_t* link = &alike_[bucket_of(places_[place].job)];
  while (*link != place) link = &places_[*link].alike;
  *link = places_[place].alike;
  places_[place].open = false;
  free_.push_back(place);
  const std::uint32_t bytes = wire_bytes(places_[place].job.length);
  shares_[share_of(places_[place].job.initiator)].held -= bytes;
  window_.give_back(bytes);
}

Time Target::next_deadline() const { return asked_.empty() ? Time::never() : places_[asked_.first()].expires; }

void Target::on_deadline(Time now) {
  while (next_deadline() <= now) {
    ++counters_.pull_timeouts;
    close(asked_.first());
  }
}

// ---------------------------------------------------------------------------------------------------------------- out

bool Target::poll_transmit(Time now, port::FrameSink& sink) {
  // Here, not where data give room back: the window may be shared with an initiator, whose turn it may be.
  // And again after each answer that is dropped here, which gives its place back.
  for (start_pulls(now); !answers_.empty(); start_pulls(now)) {
    const Job& job = answers_.front();
    const std::uint32_t bytes = wire_bytes(static_cast<std::uint32_t>(body_of(job.kind, job.length)));
    if (is_over(now, job)) {
      answers_.pop();
      queued_bytes_ -= bytes;
      continue;
    }
    const Sent sent = send(job, sink);
    if (sent == Sent::kFull) return false;
    const bool pull = job.kind == Kind::kPull;
    const std::uint16_t place = job.place;
    const std::uint64_t counter = job.counter;
    answers_.pop();
    queued_bytes_ -= bytes;
    if (sent == Sent::kYes) return true;
    ++counters_.dropped;
    // Nobody will answer what was never asked.
    if (pull && places_[place].open && places_[place].job.counter == counter) close(place);
  }
  return false;
}

// A pull that has waited for the port for longer than data are waited for: these would be refused, and the window no longer counts them.
bool Target::is_over(Time now, const Job& job) const {
  if (job.kind != Kind::kPull) return false;
  const Place& place = places_[job.place];
  return !place.open || place.job.counter != job.counter || now >= place.expires;
}

// Whether there is a key to answer under. A read whose region has changed its key or is gone becomes a refusal.
bool Target::prepare(Job& job, Sealer*& sealer) {
  bool current = job.plain && regions_.age_of(job.region, job.generation) == Regions::Age::kCurrent;
  if (!job.plain) {
    const Regions::Found found = regions_.find(job.region, job.generation, job.initiator, job.rights);
    if (found.sealer == nullptr) return false;
    sealer = found.sealer;
    current = found.current;
  }
  if (job.kind == Kind::kReadResponse && !current) {
    job.kind = Kind::kCompletion;
    job.status = Status::kBadKey;
  }
  return true;
}

Target::Sent Target::send(Job job, port::FrameSink& sink) {
  Sealer* sealer = nullptr;
  const bool read = job.kind == Kind::kReadResponse;
  if (job.kind != Kind::kRefusal && !prepare(job, sealer)) return Sent::kDropped;
  const std::size_t body = body_of(job.kind, job.length);
  const std::size_t size = FrameWriter::frame_size(body);
  const std::uint8_t* memory = nullptr;
  if (job.kind == Kind::kReadResponse) {
    memory = regions_.translate(job.region, job.address, job.length, memory::kRemoteRead).host;
    if (memory == nullptr && job.length != 0) return Sent::kDropped;  // removed, with its key
  }
  std::uint8_t* const frame = sink.reserve(size);
  if (frame == nullptr) return Sent::kFull;
  const Header header{.kind = job.kind,
                      .plain = job.plain,
                      .of_data = job.of_data,
                      .rights = job.rights,
                      .status = job.status,
                      .place = job.place,
                      .op = job.id,
                      .initiator = job.initiator,
                      .region = job.region,
                      .generation = job.generation,
                      .boot = config_.boot,
                      .counter = job.kind == Kind::kPull ? job.counter : ++counter_};
  writer_.write(frame, job.to, header, body);
  if (memory != nullptr) memory::copy_out(frame + kBodyOffset, memory, body);
  if (job.kind == Kind::kRefusal) job.echo.write(frame + kBodyOffset);
  if (sealer == nullptr) {
    write_checksum(frame, body);
  } else {
    sealer->seal(frame, header, body);
  }
  sink.commit(size);
  // Once for each, however often a full sink was tried.
  if (read) ++(job.kind == Kind::kReadResponse ? counters_.reads : counters_.old_key);
  return Sent::kYes;
}

}  // namespace sluice::onerma
