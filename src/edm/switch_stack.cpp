#include "edm/switch_stack.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::edm {

SwitchStack::SwitchStack(const SchedulerConfig& scheduler, Duration cycle)
    : scheduler_(scheduler), cycle_(cycle), circuits_(std::size_t{scheduler.ports} * scheduler.ports) {}

void SwitchStack::take(Time now, PortId from, const Unit& unit, std::uint64_t behind) {
  Request request{unit, {unit.data.begin(), unit.data.end()}, behind};
  const Time at = now + cycle_ * (kIdentifyCycles + kInsertCycles);
  auto place = coming_.end();
  while (place != coming_.begin() && std::prev(place)->at == at && std::prev(place)->from.value > from.value) --place;
  coming_.insert(place, {at, from, std::move(request)});
}

Time SwitchStack::next_deadline() const {
  Time next = scheduler_.next_deadline();
  if (!coming_.empty()) next = std::min(next, coming_.front().at);
  if (!going_.empty()) next = std::min(next, going_.front().at);
  return next;
}

void SwitchStack::on_deadline(Time now) {
  for (;;) {
    const Time coming = coming_.empty() ? Time::never() : coming_.front().at;
    const Time next = std::min(scheduler_.next_deadline(), coming);
    if (next > now) return;
    if (coming == next) {
      notify(coming_.front());
      coming_.pop_front();
    } else {
      scheduler_.on_deadline(next);
      for (Grant grant; scheduler_.poll_grant(grant);) granted(grant);
    }
  }
}

void SwitchStack::notify(const Notified& notified) {
  const Unit& unit = notified.request.unit;
  const bool write = unit.kind == UnitKind::kNotify;
  const Demand demand{.source = write ? notified.from : unit.port,
                      .destination = write ? unit.port : notified.from,
                      .id = unit.id,
                      .kind = write ? DemandKind::kWrite : DemandKind::kResponse,
                      .bytes = unit.kind == UnitKind::kModify ? 8 : unit.bytes};
  if (scheduler_.notify(notified.at, demand) != NotifyVerdict::kAccepted) {
    ++refused_;
    refused_writes_ += write ? 1 : 0;
    return;
  }
  if (!write) requests_[{demand.source.value, demand.destination.value}].push_back(notified.request);
}

void SwitchStack::granted(const Grant& grant) {
  ++circuits(grant.source, grant.destination);
  Outgoing out{.at = grant.at, .to = grant.source, .request = {}};
  if (grant.first && grant.kind == DemandKind::kResponse) {
    auto& waiting = requests_.at({grant.source.value, grant.destination.value});
    SLUICE_CHECK(!waiting.empty() && waiting.front().unit.id == grant.id);
    out.request = std::move(waiting.front());
    waiting.pop_front();
    out.request.unit.port = grant.destination;
  } else {
    out.request.unit = {.kind = UnitKind::kGrant,
                        .port = grant.destination,
                        .id = grant.id,
                        .bytes = grant.bytes,
                        .last = grant.last,
                        .of_response = grant.kind == DemandKind::kResponse,
                        .data = {}};
  }
  going_.push_back(std::move(out));
}

bool SwitchStack::forward(PortId from, PortId to) {
  const std::uint32_t ports = scheduler_.config().ports;
  return from.value < ports && to.value < ports && circuits(from, to)-- > 0;
}

bool SwitchStack::poll(Time now, Down& out) {
  if (going_.empty() || going_.front().at > now) return false;
  sending_ = std::move(going_.front());
  going_.pop_front();
  out = {.to = sending_.to, .unit = sending_.request.unit, .behind = sending_.request.behind};
  out.unit.data = sending_.request.data;
  return true;
}

}  // namespace sluice::edm
