#include "edm/scheduler.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace sluice::edm {
namespace {

constexpr std::uint32_t kSequenceBits = 40;
constexpr Key kSequenceMask = (Key{1} << kSequenceBits) - 1;

}  // namespace

std::uint32_t minimum_chunk_bytes(std::uint32_t ports, Duration iteration, Duration block_time) {
  constexpr std::int64_t kBurst = 64;
  const std::int64_t iterations = std::bit_width(std::uint32_t{ports - 1});  // log2, rounded up
  const std::int64_t matching = (iteration * iterations).picoseconds();
  const std::int64_t bytes = (matching * 8 + block_time.picoseconds() - 1) / block_time.picoseconds();
  return static_cast<std::uint32_t>((bytes + kBurst - 1) / kBurst * kBurst);
}

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config),
      ring_(config.active_per_pair * 2),
      pair_count_(std::size_t{config.ports} * config.ports),
      pairs_(pair_count_),
      messages_(pair_count_ * ring_),
      by_destination_(config.ports),
      by_source_(config.ports),
      wanted_of_(config.ports),
      source_held_for_(config.ports),
      destination_held_for_(config.ports),
      whole_(config.ports),
      best_of_(config.ports),
      grants_(std::size_t{config.ports} * 2) {
  SLUICE_CHECK(config.ports >= 2 && config.ports <= kMaxPorts);
  SLUICE_CHECK(config.active_per_pair >= 1 && config.active_per_pair <= 127);
  SLUICE_CHECK(config.chunk_bytes >= 8 && config.chunk_bytes % 8 == 0);
  SLUICE_CHECK(config.block_time > Duration{} && config.iteration > Duration{});
  SLUICE_CHECK(config.numbers > pair_count_ * ring_ && config.numbers <= kSequenceMask + 1);
  parts_.reserve(config.ports);
  candidates_.reserve(std::size_t{config.ports} * 2);
  for (std::uint32_t port = 0; port < config.ports; ++port) {
    free_sources_.add(port);
    free_destinations_.add(port);
  }
}

NotifyVerdict Scheduler::judge(const Demand& demand) const {
  if (demand.source.value >= config_.ports || demand.destination.value >= config_.ports)
    return NotifyVerdict::kNoSuchPort;
  if (demand.source == demand.destination) return NotifyVerdict::kToItself;
  if (demand.bytes == 0) return NotifyVerdict::kEmpty;
  SLUICE_CHECK(demand.later == 0 || demand.bytes <= config_.chunk_bytes);
  if (std::uint64_t{demand.bytes} + demand.later > kMaxMessageBytes) return NotifyVerdict::kTooLong;
  if (active(demand.source, demand.destination, demand.kind) == config_.active_per_pair)
    return NotifyVerdict::kTooManyActive;
  return NotifyVerdict::kAccepted;
}

NotifyVerdict Scheduler::notify(Time now, const Demand& demand) {
  const NotifyVerdict verdict = judge(demand);
  ++counters_.notified[static_cast<std::size_t>(verdict)];
  if (verdict != NotifyVerdict::kAccepted) return verdict;
  const std::uint32_t source = demand.source.value;
  const std::uint32_t destination = demand.destination.value;
  if (waiting_messages_ == 0) sequence_ = 0;  // orders those that wait
  if (sequence_ == config_.numbers) number_anew();
  Pair& queue = pair(source, destination);
  Message& added = message(source, destination, queue.count++);
  if (demand.kind == DemandKind::kWrite) ++queue.writes;
  added = {.key = key_of(demand.bytes + demand.later, sequence_++),
           .since = now,
           .remaining = demand.bytes,
           .id = demand.id,
           .kind = demand.kind};
  waiting_bytes_ += demand.bytes;
  ++waiting_messages_;
  if (queue.count > 1) return verdict;
  list(source, destination, added.key);
  if (config_.patience > Duration{}) let_go_for(now, source, destination);
  if (!free_sources_.has(source) || !free_destinations_.has(destination)) return verdict;
  touched_destinations_.add(destination);
  match_later(now);
  return verdict;
}

Time Scheduler::next_deadline() const {
  Time next = match_at_;
  if (whole_count_ != 0) next = std::min(next, whole_[whole_head_].at);
  if (!parts_.empty()) next = std::min(next, parts_.front().at);
  return next;
}

void Scheduler::on_deadline(Time now) {
  // A step grants each source one chunk at most.
  while (grants_count_ + config_.ports <= grants_.size()) {
    const Time next = next_deadline();
    if (next > now) return;
    step(now - next > config_.most_late ? now - config_.most_late : next);
  }
}

bool Scheduler::poll_grant(Grant& out) {
  if (grants_count_ == 0) return false;
  out = grants_[grants_head_];
  if (++grants_head_ == grants_.size()) grants_head_ = 0;
  --grants_count_;
  return true;
}

bool Scheduler::withdraw(Time now, PortId from, PortId to, DemandKind kind) {
  const std::uint32_t source = from.value;
  const std::uint32_t destination = to.value;
  Pair& queue = pair(source, destination);
  std::uint32_t place = 0;
  for (; place < queue.count; ++place) {
    const Message& waits = message(source, destination, place);
    if (waits.kind == kind && (kind == DemandKind::kWrite || !waits.granted)) break;
  }
  if (place == queue.count) return false;
  const bool was_listed = place == 0;
  if (was_listed) unlist(source, destination, message(source, destination, 0).key);
  waiting_bytes_ -= message(source, destination, place).remaining;
  --waiting_messages_;
  ++counters_.withdrawn;
  if (kind == DemandKind::kWrite) --queue.writes;
  for (; place + 1 < queue.count; ++place)
    message(source, destination, place) = message(source, destination, place + 1);
  --queue.count;
  if (was_listed) list_next(now, source, destination);
  return true;
}

// Instead of a pair's first message, which is gone, the next one; no port is held for the former.
void Scheduler::list_next(Time now, std::uint32_t source, std::uint32_t destination) {
  if (held_sources_.has(source) && source_held_for_[source] == destination) free_source(now, source);
  if (held_destinations_.has(destination) && destination_held_for_[destination] == source)
    free_destination(now, destination);
  if (pair(source, destination).count == 0) return;
  list(source, destination, message(source, destination, 0).key);
  if (!free_sources_.has(source) || !free_destinations_.has(destination)) return;
  touched_destinations_.add(destination);
  match_later(now);
}

void Scheduler::forget_port(Time now, PortId port) {
  const auto drop = [this](std::uint32_t source, std::uint32_t destination) {
    Pair& queue = pair(source, destination);
    if (queue.count == 0) return;
    unlist(source, destination, message(source, destination, 0).key);
    for (std::uint32_t i = 0; i < queue.count; ++i) waiting_bytes_ -= message(source, destination, i).remaining;
    waiting_messages_ -= queue.count;
    counters_.dropped += queue.count;
    queue.count = queue.writes = 0;
  };
  for (std::uint32_t peer = 0; peer < config_.ports; ++peer) {
    drop(port.value, peer);
    drop(peer, port.value);
  }
  // What was held may have been held for one of these.
  const PortSet sources = held_sources_;
  const PortSet destinations = held_destinations_;
  sources.each([&](std::uint32_t held) { free_source(now, held); });
  destinations.each([&](std::uint32_t held) { free_destination(now, held); });
}

// From 0, in the order that they have. Only the first of a pair stands in lists.
void Scheduler::number_anew() {
  struct Waiting {
    std::uint64_t number = 0;
    std::uint16_t source = 0;
    std::uint16_t destination = 0;
    std::uint32_t place = 0;
  };
  std::vector<Waiting> waiting;
  waiting.reserve(waiting_messages_);
  for (std::uint32_t source = 0; source < config_.ports; ++source) {
    for (std::uint32_t destination = 0; destination < config_.ports; ++destination) {
      for (std::uint32_t place = 0; place < pair(source, destination).count; ++place) {
        const Key key = message(source, destination, place).key;
        if (place == 0) unlist(source, destination, key);
        waiting.push_back(
            {key & kSequenceMask, static_cast<std::uint16_t>(source), static_cast<std::uint16_t>(destination), place});
      }
    }
  }
  std::ranges::sort(waiting, {}, &Waiting::number);
  sequence_ = 0;
  for (const Waiting& w : waiting) {
    Message& m = message(w.source, w.destination, w.place);
    m.key = (m.key & ~kSequenceMask) | sequence_++;
    if (w.place == 0) list(w.source, w.destination, m.key);
  }
  ++counters_.renumbered;
}

Key Scheduler::key_of(std::uint32_t remaining, std::uint64_t sequence) const {
  return config_.policy == Policy::kFirstCome ? sequence : Key{remaining} << kSequenceBits | sequence;
}

void Scheduler::list(std::uint32_t source, std::uint32_t destination, Key key) {
  by_destination_.insert(destination, key, static_cast<std::uint16_t>(source));
  by_source_.insert(source, key, static_cast<std::uint16_t>(destination));
  wanted_of_[source].add(destination);
}

void Scheduler::unlist(std::uint32_t source, std::uint32_t destination, Key key) {
  by_destination_.erase(destination, key);
  by_source_.erase(source, key);
  wanted_of_[source].remove(destination);
}

void Scheduler::step(Time now) {
  release_due(now);
  if (match_at_ > now) return;
  match_at_ = Time::never();
  ++counters_.rounds;
  config_.matching == Matching::kGreedy ? match_greedily(now) : match_once(now);
}

void Scheduler::release_due(Time now) {
  while (whole_count_ != 0 && whole_[whole_head_].at <= now) {
    const Release due = whole_[whole_head_];
    if (++whole_head_ == whole_.size()) whole_head_ = 0;
    --whole_count_;
    release(due);
  }
  while (!parts_.empty() && parts_.front().at <= now) {
    std::pop_heap(parts_.begin(), parts_.end(), std::greater<>{});
    const Release due = parts_.back();
    parts_.pop_back();
    release(due);
  }
}

void Scheduler::release(const Release& due) {
  if (config_.patience > Duration{}) {
    // Who has waited for either of these two waits no longer.
    held_sources_.each([&](std::uint32_t port) {
      if (source_held_for_[port] == due.destination) free_source(due.at, port);
    });
    held_destinations_.each([&](std::uint32_t port) {
      if (destination_held_for_[port] == due.source) free_destination(due.at, port);
    });
    if (hold_source(due)) held_sources_.add(due.source);
    if (hold_destination(due)) held_destinations_.add(due.destination);
  }
  if (!held_sources_.has(due.source)) free_source(due.at, due.source);
  if (!held_destinations_.has(due.destination)) free_destination(due.at, due.destination);
}

bool Scheduler::free_early(Time now, PortId from, PortId to) {
  const auto is_theirs = [&](const Release& r) { return r.source == from.value && r.destination == to.value; };
  std::size_t place = 0;
  while (place < whole_count_ && !is_theirs(whole(place))) ++place;
  const auto part = std::ranges::find_if(parts_, is_theirs);
  if (place < whole_count_) {
    for (--whole_count_; place < whole_count_; ++place) whole(place) = whole(place + 1);
  } else if (part != parts_.end()) {
    parts_.erase(part);
    std::make_heap(parts_.begin(), parts_.end(), std::greater<>{});
  } else {
    return false;
  }
  release({now, from.value, to.value});
  return true;
}

// Whether a pair's message is the most urgent at both its ports, and has waited long enough to be waited for.
bool Scheduler::worth_waiting(Time now, std::uint32_t source, std::uint32_t destination) {
  return by_source_.at(source, 0).peer == destination && by_destination_.at(destination, 0).peer == source &&
         now - message(source, destination, 0).since >= config_.patience;
}

bool Scheduler::hold_source(const Release& due) {
  if (by_source_.size(due.source) == 0) return false;
  const std::uint16_t destination = by_source_.at(due.source, 0).peer;
  if (destination == due.destination || free_destinations_.has(destination)) return false;
  if (!worth_waiting(due.at, due.source, destination)) return false;
  if (held_destinations_.has(destination)) {  // for somebody less urgent
    free_destination(due.at, destination);
    return false;
  }
  source_held_for_[due.source] = destination;
  ++counters_.holds;
  return true;
}

bool Scheduler::hold_destination(const Release& due) {
  if (by_destination_.size(due.destination) == 0) return false;
  const std::uint16_t source = by_destination_.at(due.destination, 0).peer;
  if (source == due.source || free_sources_.has(source)) return false;
  if (!worth_waiting(due.at, source, due.destination)) return false;
  if (held_sources_.has(source)) {
    free_source(due.at, source);
    return false;
  }
  destination_held_for_[due.destination] = source;
  ++counters_.holds;
  return true;
}

// A port that is held for a less urgent message is there for a new one whose other port is there too.
void Scheduler::let_go_for(Time now, std::uint32_t source, std::uint32_t destination) {
  const bool source_there = free_sources_.has(source) || held_sources_.has(source);
  const bool destination_there = free_destinations_.has(destination) || held_destinations_.has(destination);
  if (!source_there || !destination_there) return;
  if (by_source_.at(source, 0).peer != destination || by_destination_.at(destination, 0).peer != source) return;
  if (held_sources_.has(source)) free_source(now, source);
  if (held_destinations_.has(destination)) free_destination(now, destination);
}

void Scheduler::free_source(Time now, std::uint32_t port) {
  held_sources_.remove(port);
  free_sources_.add(port);
  if (config_.matching == Matching::kGreedy) {
    touched_sources_.add(port);
  } else {
    // Every free destination with a message from this source may have been waiting for it.
    touched_destinations_.add_all(both(wanted_of_[port], free_destinations_));
  }
  match_later(now);
}

void Scheduler::free_destination(Time now, std::uint32_t port) {
  held_destinations_.remove(port);
  free_destinations_.add(port);
  touched_destinations_.add(port);
  match_later(now);
}

void Scheduler::match_later(Time now) {
  // Iterations are far enough apart for one that is this near to be the next one.
  if (match_at_ < now + config_.iteration) {
    if (config_.matching == Matching::kGreedy) match_at_ = std::min(match_at_, now);
    return;
  }
  Time at = now;
  if (config_.matching == Matching::kPim && config_.iterations == Iterations::kOnDemand) {
    at = std::max(now, iterating_until_);
  } else if (config_.matching == Matching::kPim) {
    const std::int64_t each = config_.iteration.picoseconds();
    const std::int64_t since = now.since_start().picoseconds();
    at = Time::at(Duration::picoseconds((since + each - 1) / each * each));
  }
  match_at_ = std::min(match_at_, at);
}

// Before ports became free no message had both of its ports free; so all that can be matched now has one of those ports. Their best
// messages are tried in order; one whose peer has been taken meanwhile is followed by the port's next best, which is less urgent.
void Scheduler::match_greedily(Time now) {
  candidates_.clear();
  touched_sources_.each([&](std::uint32_t port) { offer(port, true); });
  touched_destinations_.each([&](std::uint32_t port) { offer(port, false); });
  touched_sources_ = {};
  touched_destinations_ = {};
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>{});
    const Candidate best = candidates_.back();
    candidates_.pop_back();
    const bool source = free_sources_.has(best.source);
    const bool destination = free_destinations_.has(best.destination);
    if (source && destination) {
      grant(now, best.source, best.destination);
    } else if (best.of_source ? source : destination) {
      offer(best.of_source ? best.source : best.destination, best.of_source);
    }
  }
}

void Scheduler::offer(std::uint32_t port, bool as_source) {
  OrderedLists::Entry entry;
  const auto port16 = static_cast<std::uint16_t>(port);
  const bool found = as_source
                         ? free_sources_.has(port) &&
                               by_source_.first(
                                   port, [this](std::uint16_t peer) { return free_destinations_.has(peer); }, entry)
                         : free_destinations_.has(port) &&
                               by_destination_.first(
                                   port, [this](std::uint16_t peer) { return free_sources_.has(peer); }, entry);
  if (!found) return;
  candidates_.push_back({.key = entry.key,
                         .source = as_source ? port16 : entry.peer,
                         .destination = as_source ? entry.peer : port16,
                         .of_source = as_source});
  std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>{});
}

// One iteration. Its grants leave when its three cycles are over; nothing else looks at the ports until then.
void Scheduler::match_once(Time now) {
  const PortSet asking = both(touched_destinations_, free_destinations_);
  touched_destinations_ = {};
  bool lost = false;
  asking.each([&](std::uint32_t destination) {
    OrderedLists::Entry entry;
    const auto is_free = [this](std::uint16_t peer) { return free_sources_.has(peer); };
    if (!by_destination_.first(destination, is_free, entry)) return;
    ++counters_.requests;
    Candidate& best = best_of_[entry.peer];
    const bool first = !asked_.has(entry.peer);
    asked_.add(entry.peer);
    if (!first) {
      // Whoever loses asks again in the next iteration.
      lost = true;
      touched_destinations_.add(best.key < entry.key ? destination : best.destination);
      if (best.key < entry.key) return;
    }
    best = {.key = entry.key, .source = entry.peer, .destination = static_cast<std::uint16_t>(destination)};
  });
  const Time at = iterating_until_ = now + config_.iteration;
  asked_.each([&](std::uint32_t source) { grant(at, source, best_of_[source].destination); });
  asked_ = {};
  if (lost) match_later(at);
}

void Scheduler::grant(Time at, std::uint32_t source, std::uint32_t destination) {
  SLUICE_CHECK(free_sources_.has(source) && free_destinations_.has(destination));
  free_sources_.remove(source);
  free_destinations_.remove(destination);
  Pair& queue = pair(source, destination);
  Message& granted = message(source, destination, 0);
  const std::uint32_t bytes = std::min(config_.chunk_bytes, granted.remaining);
  std::size_t place = grants_head_ + grants_count_++;
  if (place >= grants_.size()) place -= grants_.size();
  Grant& out = grants_[place];
  out = {.at = at,
         .source = PortId(static_cast<std::uint16_t>(source)),
         .destination = PortId(static_cast<std::uint16_t>(destination)),
         .id = granted.id,
         .kind = granted.kind,
         .first = !granted.granted,
         .last = bytes == granted.remaining,
         .bytes = bytes};
  ++counters_.grants;
  counters_.granted_bytes += bytes;
  waiting_bytes_ -= bytes;
  granted.granted = true;
  granted.remaining -= bytes;
  if (granted.remaining != 0) {
    if (config_.policy == Policy::kShortestRemaining) {
      const Key key = key_of(granted.remaining, granted.key & kSequenceMask);
      by_destination_.promote(destination, granted.key, key);
      by_source_.promote(source, granted.key, key);
      granted.key = key;
    }
  } else {
    unlist(source, destination, granted.key);
    --waiting_messages_;
    --queue.count;
    if (granted.kind == DemandKind::kWrite) --queue.writes;
    // An empty ring begins anew, so that the places that are used most lie together.
    if (queue.count == 0 || ++queue.head == ring_) queue.head = 0;
    if (queue.count != 0) list(source, destination, message(source, destination, 0).key);
  }
  const Release due{at + time_taken(out), static_cast<std::uint16_t>(source), static_cast<std::uint16_t>(destination)};
  if (bytes == config_.chunk_bytes && due.at == at + wire_time(bytes)) {
    std::size_t end = whole_head_ + whole_count_++;
    if (end >= whole_.size()) end -= whole_.size();
    whole_[end] = due;
  } else {
    parts_.push_back(due);
    std::push_heap(parts_.begin(), parts_.end(), std::greater<>{});
  }
}

}  // namespace sluice::edm
