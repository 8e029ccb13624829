#include "rc/service_resolver.h"

#include <fmt/format.h>

#include <algorithm>

#include "rc/adapter.h"
#include "rc/cm_codes.h"

namespace sluice::rc {
namespace {

using Kind = ResolutionEvent::Kind;
using wire::SidrStatus;

constexpr Duration kShortestWait = Duration::milliseconds(1);
// Questions of ours and answers that wait to leave. An answer its peer asks for again.
constexpr std::size_t kMaxOutgoing = 65'536;
constexpr std::size_t kMaxAnswers = 8192;
constexpr std::uint16_t kFirstEphemeralPort = 0x8000;

}  // namespace

// --- what the program asks for ---

Result<void> ServiceResolver::listen(wire::ServiceId service) {
  if (!services_.insert(service).second) return fail(fmt::format("service {:#x} has a listener", service.value));
  return {};
}

Result<ResolutionId> ServiceResolver::resolve(Time now, const wire::Gid& remote, wire::ServiceId service,
                                              const ResolutionParameters& p) {
  const auto& gids = adapter_.config().gids;
  const auto own = std::ranges::find_if(
      gids, [&](const wire::Gid& gid) { return gid.is_v4() == remote.is_v4() && gid == p.source.value_or(gid); });
  if (own == gids.end()) return fail(fmt::format("cannot reach {}: no such address here", remote.to_string()));
  const bool ip = is_ip_service(service);
  const std::size_t room = ip ? kPrivateIpQuery : kPrivateQuery;
  if (p.private_data.size() > room) {
    return fail(fmt::format("{} bytes of private data: at most {}", p.private_data.size(), room));
  }
  const auto made = make_record();
  if (!made) return tl::unexpected(made.error());

  Record& r = **made;
  r.ours = true;
  r.transaction_id = rng_.next();
  r.service = service;
  r.peer = {
      .gid = remote, .source = *own, .qpn = wire::kCmQpn, .qkey = wire::kCmQkey, .traffic_class = p.traffic_class};
  r.wait = std::max(p.response_timeout, kShortestWait);
  r.give_up_at = now + r.wait * (p.max_retries + 1);
  r.patient_until = now + p.patience;
  wire::CmSidrReq req{.request_id = wire::SidrRequestId(r.id.value), .service_id = service};
  auto at = req.private_data.begin();
  if (ip) {
    const auto port = static_cast<std::uint16_t>(kFirstEphemeralPort | rng_.next());
    wire::IpCmHeader{.source_port = port, .source = *own, .destination = remote}.write(req.private_data.data());
    at += wire::IpCmHeader::kSize;
  }
  std::ranges::copy(p.private_data, at);
  send(r, req);
  set_deadline(r, now + r.wait);
  return r.id;
}

Result<void> ServiceResolver::answer(ResolutionId id, Qpn qpn, wire::QKey qkey, ByteView private_data) {
  Record* const r = find(id);
  if (r == nullptr || r->ours || r->answered) return fail("no question waits for that answer");
  if (private_data.size() > kPrivateAnswer) {
    return fail(fmt::format("{} bytes of private data: at most {}", private_data.size(), kPrivateAnswer));
  }
  wire::CmSidrRep rep{.request_id = r->request_id, .qpn = qpn, .service_id = r->service, .qkey = qkey};
  std::ranges::copy(private_data, rep.private_data.begin());
  r->answered = true;
  send(*r, rep);
  return {};
}

void ServiceResolver::refuse(ResolutionId id, SidrStatus why, ByteView private_data) {
  Record* const r = find(id);
  if (r == nullptr || r->ours || r->answered) return;
  ++counters_.refused;
  wire::CmSidrRep rep{.request_id = r->request_id, .status = why, .service_id = r->service};
  std::ranges::copy(private_data.first(std::min(private_data.size(), kPrivateAnswer)), rep.private_data.begin());
  send(*r, rep);
  erase(*r);
}

void ServiceResolver::release(ResolutionId id) {
  Record* const r = find(id);
  if (r == nullptr) return;
  if (!r->ours && !r->answered) return refuse(id, SidrStatus::kRejected, {});
  erase(*r);
}

std::optional<ResolutionEvent> ServiceResolver::poll_event() {
  if (events_.empty()) return std::nullopt;
  ResolutionEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

// --- what comes in ---

std::optional<SidrStatus> ServiceResolver::judge(const wire::CmSidrReq& req) const {
  if (!services_.contains(req.service_id)) return SidrStatus::kNoSuchService;
  if (!is_ip_service(req.service_id)) return std::nullopt;
  const auto header = wire::IpCmHeader::parse(req.private_data.data());
  if (!header || header->version != 0) return SidrStatus::kUnsupportedVersion;
  const auto& own = adapter_.config().gids;
  if (std::ranges::find(own, header->destination) == own.end()) return SidrStatus::kNoSuchService;
  return std::nullopt;
}

void ServiceResolver::on(Time, const UdDestination& from, std::uint64_t transaction_id, const wire::CmSidrReq& req) {
  Record stranger{.peer = from, .request_id = req.request_id, .transaction_id = transaction_id};
  const auto known = by_question_.find(key_of(stranger));
  if (known != by_question_.end()) {
    ++counters_.duplicates;
    const Record& record = records_.at(known->second);
    if (record.answered) send_again(record);
    return;
  }
  auto refusal = judge(req);
  const auto made = refusal ? Result<Record*>(nullptr) : make_record();
  if (!made) refusal = SidrStatus::kNoQp;
  if (refusal) {
    ++counters_.refused;
    return send(stranger,
                wire::CmSidrRep{.request_id = req.request_id, .status = *refusal, .service_id = req.service_id});
  }
  Record& r = **made;
  r.peer = from;
  r.request_id = req.request_id;
  r.transaction_id = transaction_id;
  r.service = req.service_id;
  by_question_[key_of(r)] = r.id.value;
  const std::size_t skip = is_ip_service(r.service) ? wire::IpCmHeader::kSize : 0;
  tell(r, {.kind = Kind::kQuery,
           .private_data = {req.private_data.begin() + static_cast<std::ptrdiff_t>(skip), req.private_data.end()}});
}

void ServiceResolver::on(Time now, const wire::CmSidrRep& rep) {
  Record* const r = find(ResolutionId(rep.request_id.value));
  if (r == nullptr || !r->ours || r->deadline == Time::never() || rep.service_id != r->service) {
    ++counters_.unexpected;
    return;
  }
  if (rep.status == SidrStatus::kNoSuchService && now < r->patient_until) {
    r->unknown = true;
    return set_deadline(*r, std::min(now + r->wait / 8, r->give_up_at));
  }
  set_deadline(*r, Time::never());
  const bool found = rep.status == SidrStatus::kValid;
  tell(*r, {.kind = found ? Kind::kResolved : Kind::kRefused,
            .status = rep.status,
            .qpn = rep.qpn,
            .qkey = rep.qkey,
            .private_data = {rep.private_data.begin(), rep.private_data.end()}});
  if (!found) erase(*r);
}

void ServiceResolver::on_deadline(Time now) {
  while (next_deadline() <= now) {
    Record& r = records_.at(timers_.begin()->second);
    if (now < r.give_up_at) {
      send_again(r);
      set_deadline(r, std::min(now + r.wait, r.give_up_at));
      continue;
    }
    ++counters_.given_up;
    tell(r, r.unknown ? ResolutionEvent{.kind = Kind::kRefused, .status = SidrStatus::kNoSuchService}
                      : ResolutionEvent{.kind = Kind::kUnreachable});
    erase(r);
  }
}

// --- what goes out ---

void ServiceResolver::send(Record& record, const wire::CmMessage& message) {
  wire::write_cm(record.last.data(), {record.transaction_id, message});
  push(record);
}

void ServiceResolver::send_again(const Record& record) {
  ++counters_.resent;
  push(record);
}

void ServiceResolver::push(const Record& record) {
  if (outgoing_.size() < (record.ours ? kMaxOutgoing : kMaxAnswers)) outgoing_.push_back({record.peer, record.last});
}

bool ServiceResolver::poll_mad(UdDestination& to, std::span<std::uint8_t, wire::kMadSize> mad) {
  if (outgoing_.empty()) return false;
  to = outgoing_.front().to;
  std::ranges::copy(outgoing_.front().bytes, mad.begin());
  outgoing_.pop_front();
  return true;
}

// --- records ---

Result<ServiceResolver::Record*> ServiceResolver::make_record() {
  if (records_.size() >= kMaxOpen) return fail(fmt::format("at most {} questions", kMaxOpen));
  const std::uint8_t prefix = adapter_.config().communication_prefix;
  std::uint32_t id = 0;
  while (id == 0 || records_.contains(id)) {
    id = static_cast<std::uint32_t>(rng_.next());
    if (prefix != 0) id = std::uint32_t{prefix} << 24 | (id & 0xFF'FFFF);
  }
  Record& record = records_[id];
  record.id = ResolutionId(id);
  return &record;
}

ServiceResolver::Record* ServiceResolver::find(ResolutionId id) {
  const auto found = records_.find(id.value);
  return found == records_.end() ? nullptr : &found->second;
}

void ServiceResolver::erase(Record& record) {
  set_deadline(record, Time::never());
  if (!record.ours) by_question_.erase(key_of(record));
  records_.erase(record.id.value);
}

void ServiceResolver::set_deadline(Record& record, Time when) {
  if (record.deadline != Time::never()) timers_.erase({record.deadline, record.id.value});
  record.deadline = when;
  if (when != Time::never()) timers_.insert({when, record.id.value});
}

void ServiceResolver::tell(const Record& record, ResolutionEvent event) {
  event.id = record.id;
  event.remote = record.peer.gid;
  event.local = record.peer.source;
  event.service = record.service;
  event.port = static_cast<std::uint16_t>(is_ip_service(record.service) ? record.service.value : 0);
  events_.push_back(std::move(event));
}

}  // namespace sluice::rc
