// Client: finding the tail of a chain, keeping mirrors equal, coping with nodes that do not answer.
#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/check.h"
#include "clover/client_parts.h"

namespace sluice::clover {

using remote::NodeId;
using remote::RemoteAddress;
using remote::Status;
using remote::Task;

namespace {

// Trying again cannot help: the transport cannot do it. A node that refuses us or is not known may have started anew, and the next
// view will say so.
bool is_final(Status status) {
  return status == Status::kMisaligned || status == Status::kUnsupported || status == Status::kTooLong;
}

}  // namespace

const Volume* Client::volume_of(NodePointer node) const { return &view_.volumes[node.volume()]; }

RemoteAddress Client::primary_of(NodePointer node) const {
  SLUICE_CHECK(is_there(node));
  const auto& volume = *volume_of(node);
  return volume.locate(node, volume.primary());
}

bool Client::in_lease(const Cursor& cursor) const { return leased() && in_time(cursor) && is_there(cursor.node); }

Client::Trust Client::trust(const Cursor& cursor) const {
  return {view_name(), std::min(lease_, cursor.confirmed + view_.cursor_lifetime) + view_.max_flight};
}

// Not when it came so late that the slot may have been used again, or the replica been left out, before it took effect.
bool Client::believable(const Trust& trust) {
  const bool good = now() < trust.until && view_name() == trust.view;
  if (!good) ++counters_.late;
  return good;
}

// ------------------------------------------------------------------------------------------------------------ walking

Task<Outcome> Client::look_up(Key key, Cursor& cursor, Time deadline) {
  do {
    if (!leased() && !co_await ensure_lease(deadline)) co_return Outcome::kUnavailable;
    Call request(Request::kLookup, 1, membership());
    request.body.put(key);
    ++counters_.lookups;
    if (!co_await call(request, deadline)) co_return Outcome::kUnavailable;
    if (request.header.result == Answer::kOk && request.header.count == 1 && request.member.store == view_.store) {
      cursor = {NodePointer{request.answer.take64()}, request.submitted};
      if (!cursor.node) co_return Outcome::kNotFound;
      // Lost it stays, in all views that follow.
      const bool is_lost = cursor.node.volume() < view_.volumes.size() && !is_there(cursor.node);
      co_return is_lost ? Outcome::kUnavailable : Outcome::kOk;
    }
  } while (now() < deadline);
  co_return Outcome::kUnavailable;
}

const Cursor* Client::cached_cursor(Key key) {
  const auto* const known = cursors_.find(key);
  if (known == nullptr || !in_lease(*known)) return nullptr;
  ++counters_.cursor_hits;
  return known;
}

// What the next word of `at`'s node says of it.
Client::Found Client::judge_next(Key key, Cursor& at, std::uint64_t next) {
  if (!is_end(next)) return next != 0 ? Found::kPassed : Found::kForeign;
  if (next == sealed_word(key)) return Found::kSealed;
  if (next != free_word(key, NodeKind::kValue) && next != free_word(key, NodeKind::kTombstone)) return Found::kForeign;
  at.node = at.node.as(next == free_word(key, NodeKind::kTombstone) ? NodeKind::kTombstone : NodeKind::kValue);
  return Found::kTail;
}

// What has been read in place of `at`? When a box has led the READ elsewhere, `at` becomes the node that it was led to.
Client::Found Client::judge_node(Key key, Cursor& at, const NodeView& seen) {
  const bool ours = seen.key == key && seen.volume() < view_.volumes.size() && seen.length() <= layout_.value_bytes();
  const NodePointer self = ours ? seen.self(view_.volumes[seen.volume()].base) : NodePointer{};
  const bool steered = self != at.node.as(NodeKind::kValue);
  const bool other_life = steered && self.address() == at.node.address();
  Cursor judged = at;
  if (steered) judged.node = self;
  const Found found = self.generation() != 0 && !other_life ? judge_next(key, judged, seen.next) : Found::kForeign;
  if (found == Found::kForeign) return found;
  if (steered) ++counters_.steered;
  at = judged;
  return found;
}

Task<Status> Client::read_with_shortcut(Key key, RemoteAddress where, MutableBytes node, NodePointer& shortcut) {
  Buffer word(buffers_, layout_.node_bytes());
  std::array<remote::Operation, 2> both = {
      remote::read_operation(where, node),
      remote::read_operation(config_.shortcuts->word_of(key), word.bytes().first(sizeof(std::uint64_t)))};
  ++counters_.shortcuts;
  counters_.bytes += sizeof(std::uint64_t);
  co_await memory_.all(both);
  if (both[1].status == Status::kOk) shortcut = NodePointer{load_le<std::uint64_t>(word.bytes().data())};
  co_return both[0].status;
}

// Where the server says. kOk: `walk` goes on, in the view of now, unless that or the lease is over already.
Task<Outcome> Client::begin_anew(Walk& walk, Key key, Time deadline) {
  walk.previous = {};
  walk.asked = true;
  const Outcome found = co_await look_up(key, walk.at, deadline);
  if (found != Outcome::kOk) co_return found;
  if (now() >= deadline) co_return Outcome::kUnavailable;
  if (walk.view.store == view_.store) walk.view = view_name();
  co_return Outcome::kOk;
}

// Another version follows, by `next`. False: it is lost, and the server has been asked for something newer.
bool Client::go_on(Walk& walk, std::uint64_t next, NodePointer shortcut) {
  ++counters_.walks;
  // As published: also where it names the very node, which is then read once more.
  if (shortcut && shortcut.volume() < view_.volumes.size()) {
    walk.previous = {};
    walk.at.node = shortcut;
    return true;
  }
  if (!is_there(NodePointer{next})) {
    lose_way(walk);
    return !walk.asked;
  }
  walk.previous = walk.at;
  walk.link = next;
  walk.at.node = NodePointer{next};
  if (++walk.steps == config_.steps_before_lookup) lose_way(walk);
  return true;
}

// The server is asked before anything else is read.
void Client::lose_way(Walk& walk) { walk.at.confirmed = Time() - view_.cursor_lifetime - view_.cursor_lifetime; }

Task<Client::Tail> Client::find_tail(Key key, Cursor start, Time deadline, MutableBytes node) {
  Walk walk{.at = start, .view = view_name()};
  const bool whole = node.size() == layout_.node_bytes();
  bool asks_shortcut = config_.shortcuts != nullptr;  // once, as published
  Duration backoff = config_.backoff_first;
  for (;;) {
    if (walk.view.store != view_.store) co_return Tail{.outcome = Outcome::kUnavailable};  // whose nodes may be longer
    // A link that was not stable may stand on no replica of the next view: the walk begins anew, at what the server knows.
    if (walk.view != view_name()) lose_way(walk);
    if (!in_lease(walk.at)) {
      const Outcome begun = co_await begin_anew(walk, key, deadline);
      if (begun != Outcome::kOk) co_return Tail{.outcome = begun};
      if (walk.view != view_name() || !in_lease(walk.at)) continue;
    }
    const Trust terms = trust(walk.at);
    const Time submitted = now();
    const std::uint64_t stamp = clock_;
    const RemoteAddress where = primary_of(walk.at.node);
    ++counters_.reads;
    ++counters_.round_trips;
    counters_.bytes += node.size();
    NodePointer shortcut;
    depart();
    Status status{};
    if (asks_shortcut) {
      status = co_await read_with_shortcut(key, where, node, shortcut);
    } else {
      status = co_await memory_.read(where, node);
    }
    arrive(where.node, status);
    if (status != Status::kOk) {
      if (!co_await recover(where.node, status, deadline, backoff)) co_return Tail{.outcome = Outcome::kUnavailable};
      continue;
    }
    node_works(where.node);
    asks_shortcut = false;
    NodeView seen;
    const Cursor read = walk.at;
    Found found = Found::kForeign;
    if (believable(terms)) {
      seen = whole ? parse_node(layout_, node) : NodeView{.next = load_le<std::uint64_t>(node.data())};
      found = whole ? judge_node(key, walk.at, seen) : judge_next(key, walk.at, seen.next);
      if (found == Found::kForeign) ++counters_.foreign;
    }
    if (walk.at.node.as(NodeKind::kValue) != read.node.as(NodeKind::kValue)) walk.previous = {};
    switch (found) {
      case Found::kForeign:
        cursors_.drop(key, read.node);
        lose_way(walk);
        continue;
      case Found::kSealed:
        cursors_.drop(key, read.node);
        if (!co_await report_sealed(key, walk.at, deadline)) co_return Tail{.outcome = Outcome::kUnavailable};
        lose_way(walk);
        continue;
      case Found::kPassed:
        if (!go_on(walk, seen.next, shortcut)) co_return Tail{.outcome = Outcome::kUnavailable};
        continue;
      case Found::kTail: break;
    }
    if (walk.previous.node && mirrored(walk.previous.node)) {
      const Mirrored stable = co_await stabilise(walk.previous, key, walk.link);
      if (stable.late) continue;
      if (stable.status != Status::kOk) {
        if (!co_await recover(stable.failed, stable.status, deadline, backoff))
          co_return Tail{.outcome = Outcome::kUnavailable};
        walk.at = std::exchange(walk.previous, Cursor{});
        continue;
      }
    }
    walk.at.confirmed = submitted;
    co_return Tail{.outcome = Outcome::kOk, .cursor = walk.at, .length = seen.length(), .stamp = stamp};
  }
}

Task<bool> Client::report_sealed(Key key, Cursor node, Time deadline) {
  const ViewName view = view_name();
  Duration backoff = config_.backoff_first;
  while (view != view_name() || mirrored(node.node)) {
    Mirrored stable{.late = true};  // in the next view nobody may have sealed it
    if (view == view_name()) stable = co_await stabilise(node, key, sealed_word(key));
    if (stable.late) co_return co_await ensure_lease(deadline);  // asks the server again, who may still name it
    if (stable.status == Status::kOk) break;
    if (!co_await recover(stable.failed, stable.status, deadline, backoff)) co_return false;
  }
  Call request(Request::kSealed, 1, membership());
  request.body.put(key);
  request.body.put(node.node.as(NodeKind::kTombstone).word);
  co_return co_await call(request, deadline);
}

// ------------------------------------------------------------------------------------------------------------ mirrors

Task<Client::Mirrored> Client::stabilise(Cursor cursor, Key key, std::uint64_t next) {
  const NodePointer node = cursor.node;
  if (!in_lease(cursor)) co_return Mirrored{.late = true};
  const Trust terms = trust(cursor);
  const Volume volume = *volume_of(node);
  const std::size_t primary = volume.primary();
  std::uint64_t expected[kMaxReplicas];
  bool open[kMaxReplicas] = {};
  for (std::size_t j = 0; j < volume.count; ++j) {
    expected[j] = free_word(key, node.kind());
    open[j] = volume.is_live(j) && j != primary;
  }
  Mirrored result;
  for (;;) {
    std::array<remote::Operation, kMaxReplicas> swaps;
    std::array<std::size_t, kMaxReplicas> replica{};
    std::size_t count = 0;
    for (std::size_t j = 0; j < volume.count; ++j) {
      if (!open[j]) continue;
      replica[count] = j;
      swaps[count++] = remote::swap_operation(volume.locate(node, j), expected[j], next);
    }
    if (count == 0) break;
    ++counters_.round_trips;
    counters_.swaps += count;
    counters_.bytes += 8 * count;
    depart(count);
    co_await memory_.all(std::span(swaps).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      arrive(swaps[i].remote.node, swaps[i].status);
      const std::size_t j = replica[i];
      if (swaps[i].status != Status::kOk) {
        result.status = swaps[i].status;
        result.failed = volume.replicas[j].node;
        open[j] = false;
        continue;
      }
      node_works(volume.replicas[j].node);
      // What a loser left on this replica gives way to the primary's word.
      open[j] = swaps[i].prior != expected[j] && swaps[i].prior != next;
      expected[j] = swaps[i].prior;
    }
    if (!in_lease(cursor) || view_name() != terms.view) break;
  }
  for (const bool unfinished : open) result.late = result.late || unfinished;
  if (result.status == Status::kOk && !believable(terms)) result.late = true;
  co_return result;
}

Task<Client::Mirrored> Client::write_mirrors(NodePointer node, ByteView bytes) {
  const Volume volume = *volume_of(node);
  std::array<remote::Operation, kMaxReplicas> writes;
  std::size_t count = 0;
  for (std::size_t j = 0; j < volume.count; ++j) {
    if (volume.is_live(j)) writes[count++] = remote::write_operation(volume.locate(node, j), bytes);
  }
  ++counters_.round_trips;
  counters_.writes += count;
  counters_.bytes += bytes.size() * count;
  depart(count);
  co_await memory_.all(std::span(writes).first(count));
  Mirrored result;
  for (std::size_t i = 0; i < count; ++i) {
    arrive(writes[i].remote.node, writes[i].status);
    if (writes[i].status == Status::kOk) {
      node_works(writes[i].remote.node);
      continue;
    }
    // An unknown outcome says the most: the slot must not be used again.
    if (result.status != Status::kUnknown) result.status = writes[i].status;
    result.failed = writes[i].remote.node;
  }
  co_return result;
}

// ----------------------------------------------------------------------------------------------------------- failures

void Client::arrive(NodeId node, Status status) {
  --under_way_;
  if (status != Status::kUnknown) return;
  std::erase_if(doubtful_, [this](const auto& entry) { return entry.second <= now(); });
  doubtful_.emplace_back(node, now() + view_.max_flight);
}

// What is doubtful on a dead node will never take effect.
bool Client::anything_under_way() {
  const auto dead = [this](NodeId node) {
    return std::ranges::any_of(view_.volumes, [node](const Volume& volume) {
      for (std::size_t j = 0; j < volume.count; ++j) {
        if (volume.replicas[j].node == node && volume.is_dead(j)) return true;
      }
      return false;
    });
  };
  const auto counts = [&](const auto& entry) { return entry.second > now() && !dead(entry.first); };
  return under_way_ != 0 || std::ranges::any_of(doubtful_, counts);
}

Client::NodeHealth& Client::health_of(NodeId node) {
  for (auto& health : health_) {
    if (health.node == node) return health;
  }
  return health_.emplace_back(NodeHealth{.node = node, .failing = false, .since = {}, .report_at = {}});
}

void Client::node_works(NodeId node) {
  for (auto& health : health_) {
    if (health.node == node) health.failing = false;
  }
}

Task<void> Client::back_off(Duration& backoff) {
  co_await scheduler_.sleep_for(remote::draw_back_off(backoff, config_.backoff_most, rng_));
}

Task<bool> Client::recover(NodeId node, Status status, Time deadline, Duration& backoff) {
  ++counters_.failures;
  if (is_final(status)) co_return false;
  {
    auto& health = health_of(node);
    if (!health.failing) {
      health.failing = true;
      health.since = now();
      health.report_at = now() + config_.suspect_after;
    }
    const Duration failing = now() - health.since;
    if (now() >= health.report_at) {
      health.report_at = Time::never();  // others of this client need not, meanwhile
      const bool told = co_await suspect(node);
      if (!told) health_of(node).report_at = now() + config_.suspect_after;
    }
    // A node that has been away for long fails an operation at its first try.
    if (failing >= config_.timeout || now() >= deadline) co_return false;
  }
  co_await back_off(backoff);
  co_return leased() || co_await ensure_lease(deadline);
}

Task<bool> Client::suspect(NodeId node) {
  bool has_mirror = false;
  for (const auto& volume : view_.volumes) {
    for (std::size_t j = 0; j < volume.count; ++j) {
      has_mirror = has_mirror || (volume.replicas[j].node == node && volume.is_live(j) && volume.mirrored());
    }
  }
  if (!has_mirror || !leased()) co_return false;
  Call request(Request::kSuspect, 1, membership());
  request.body.put(node.value);
  if (!co_await call(request, now() + config_.timeout)) co_return false;
  co_return request.header.result == Answer::kOk;
}

}  // namespace sluice::clover
