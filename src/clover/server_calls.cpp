// Client: what it says to the metadata server, in its own interest and in everyone's.
#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "clover/client_parts.h"
#include "remote/at_once.h"

namespace sluice::clover {

using remote::NodeId;
using remote::RemoteAddress;
using remote::Status;
using remote::Task;

namespace {
constexpr std::uint16_t kWorkAtOnce = 32;
constexpr std::size_t kFirstGrant = 8;  // slots; each further one of the volume is twice as large
constexpr std::size_t kKept = 4;        // slots of a volume, of a client that writes little, while few are free
constexpr std::size_t kWorkers = 8;     // of these, at it at the same time
}  // namespace

Client::Client(remote::RemoteMemory& memory, remote::MessageChannel& channel, const ClientConfig& config, Rng rng)
    : memory_(memory),
      channel_(channel),
      scheduler_(memory.scheduler()),
      config_(config),
      rng_(rng),
      cursors_(config.cursors),
      buffers_(std::make_shared<Buffers>()) {}

Client::~Client() = default;

// ------------------------------------------------------------------------------------------------------------- calling

Task<bool> Client::call(Call& call, Time deadline) {
  const auto request = ByteView(call.request).first(call.body.length());
  Duration backoff = config_.backoff_first;
  for (;;) {
    ++counters_.messages;
    call.submitted = now();
    const remote::MessageResult result = co_await channel_.call(request, call.response);
    if (result.status == Status::kOk) {
      call.answer = MessageReader(ByteView(call.response).first(result.length));
      const auto header = take_answer_header(call.answer);
      if (!header || header->type != call.expected) co_return false;
      call.header = *header;
      break;
    }
    call.uncertain = call.uncertain || result.status == Status::kUnknown;
    if (now() >= deadline) co_return false;
    co_await back_off(backoff);
  }
  if (call.member != membership()) co_return true;  // asked in an earlier life
  clock_ = std::max(clock_, call.header.clock);
  work_waits_ = call.header.work_waits;
  slots_short_ = call.header.slots_short;
  if (call.header.result == Answer::kExpired) {
    lost_membership();
    co_return true;
  }
  if (call.header.view_ends && call.header.view == view_.number && let_go_ != view_.number && !is_letting_go_ &&
      !leaving_) {
    is_letting_go_ = true;
    scheduler_.spawn(let_go(view_.number));
  }
  if (call.header.view != view_.number) {
    view_stale_ = true;
  } else {
    lease_ = std::max(lease_, call.submitted + Duration::microseconds(call.header.lease_us));
  }
  co_return true;
}

// The server has given our slots to be looked into by others. What they find of ours it is told by them: a report of ours may come
// when the slot is in another life, of another key's.
void Client::lost_membership() {
  joined_ = false;
  lease_ = Time();
  slots_.take_all();
  uses_.clear();
  spare_.clear();
  links_told_ += links_.size();
  links_.clear();
  orphans_.clear();
  grant_open_ = false;
  grant_sequence_ = 0;
}

// What is under way in the one before ends by itself: by `op.store`, and by the names of views.
void Client::begin_in_another_store() {
  cursors_.clear();
  full_until_.clear();
  out_of_space_ = false;
  letting_go_ = let_go_ = settling_ = 0;
  clock_ = 0;
}

Task<bool> Client::ensure_lease(Time deadline) {
  Duration backoff = config_.backoff_first;
  for (;;) {
    if (!renewing_) {
      renewing_ = true;
      const bool answered = co_await renew_lease(deadline);
      renewing_ = false;
      if (!answered) co_return false;
    }
    if (leased()) co_return true;
    if (now() >= deadline) co_return false;
    co_await back_off(backoff);  // between two views nobody has a lease
  }
}

Task<bool> Client::renew_lease(Time deadline) {
  const bool enters = !joined_;
  Call request(enters ? Request::kRegister : Request::kRefresh, 0, membership());
  if (!co_await call(request, deadline)) co_return false;
  if (request.header.result == Answer::kExpired) co_return true;  // enters at the next try
  if (request.header.result != Answer::kOk) co_return false;
  auto view = take_view(request.answer, request.header.count);
  if (!view) co_return false;
  view->number = request.header.view;
  if (enters) {
    lost_membership();
    if (view->store != view_.store) begin_in_another_store();
    settled_ = view->number;  // the server looks into all that we had before
  } else {
    view->client = view_.client;
  }
  // What was retired under a shorter one may be in use again: a longer one is not for cursors that were there before.
  if (view->cursor_lifetime != view_.cursor_lifetime) lifetime_since_ = request.submitted;
  for (std::uint32_t v = 0; v < view->volumes.size(); ++v) {
    if (view->volumes[v].is_lost()) slots_.take_rest(v, 0, spare_);
  }
  layout_ = NodeLayout(view->value_bytes);
  config_.timeout = std::max(config_.timeout, (view->cursor_lifetime / 4 + view->max_flight) * 2);
  if (view->number != view_.number) {
    // Who was suspected in vain, because others were as well, is suspected again, each time after twice as long: a view that ends costs everybody.
    for (auto& health : health_)
      health.report_at = std::min(health.report_at, now() + std::max(config_.suspect_after, now() - health.since));
  }
  view_ = std::move(*view);
  joined_ = ever_joined_ = true;
  view_stale_ = false;
  clock_ = std::max(clock_, request.header.clock);
  lease_ = request.submitted + Duration::microseconds(request.header.lease_us);
  co_return true;
}

Task<Outcome> Client::join() {
  if (!memory_.capabilities().atomics) co_return Outcome::kNoAtomics;
  const bool entered = co_await ensure_lease(now() + config_.timeout);
  co_return entered ? Outcome::kOk : Outcome::kUnavailable;
}

Task<void> Client::leave() {
  leaving_ = true;
  Duration backoff = config_.backoff_first;
  while (flushing_ || refilling_ || sending_orphans_ || maintaining_ || working_ || is_letting_go_)
    co_await back_off(backoff);
  co_await flush_links();
  if (joined_) {
    const bool told = co_await send_orphans();
    static_cast<void>(told);
    auto unused = slots_.take_all();
    unused.insert(unused.end(), spare_.begin(), spare_.end());
    const bool released = co_await send_slots(Request::kRelease, membership(), std::move(unused));
    static_cast<void>(released);  // what is not is found when the server misses us
    Call request(Request::kLeave, anything_under_way() ? 0 : 1, membership());
    co_await call(request, now() + config_.timeout);
    joined_ = false;
    lease_ = Time();
  }
}

Task<void> Client::maintain() {
  maintaining_ = true;
  for (;;) {
    co_await scheduler_.sleep_for(view_.cursor_lifetime / 8);
    if (leaving_) break;
    const Time deadline = now() + view_.cursor_lifetime;
    if (now() >= lease_ - view_.cursor_lifetime / 2 || view_stale_) co_await ensure_lease(deadline);
    if (!flushing_) co_await flush_links();
    if (!orphans_.empty() && leased()) {
      const bool told = co_await send_orphans();
      static_cast<void>(told);
    }
    if (settled_ != view_.number) co_await settle_view();
    if (leased() && (slots_short_ || !spare_.empty())) co_await release_spare();
    for (auto& use : uses_) use.taken = 0;
    begin_work();
  }
  maintaining_ = false;
}

// --------------------------------------------------------------------------------------------------------------- slots

Task<Outcome> Client::take_slot(const Operation& op, NodePointer& slot) {
  const std::size_t kept_back = op.how == Append::kErase ? 0 : 1;
  const Time give_up = std::max(op.deadline, now() + config_.space_timeout);
  const Time any_volume = now() + std::min(config_.volume_patience, (op.deadline - now()) / 2);
  bool waits_for_space = false;  // a grant in between may be too small, or taken by others
  Duration backoff = config_.backoff_first;
  for (;;) {
    if (std::ranges::all_of(view_.volumes, &Volume::is_lost)) co_return Outcome::kUnavailable;
    const std::uint32_t volume = home_of(op.key);
    const bool low = slots_.size_of(volume) <= std::max(kept_back, use_of(volume).granted / 4);
    // Where its volume is full a key takes slots of others: no reason to hoard them.
    const bool room = slots_.size() < config_.slots_wanted * view_.volumes.size();
    if (low && room && !refilling_ && leased()) {
      refilling_ = true;
      scheduler_.spawn(refill(volume));
    }
    const bool any = now() >= any_volume || is_full(volume);
    if (slots_.size() > kept_back && (any || slots_.size_of(volume) != 0)) {
      slots_.take(volume, slot);
      ++use_of(slot.volume()).taken;
      counters_.strays += static_cast<std::uint64_t>(slot.volume() != volume);
      co_return Outcome::kOk;
    }
    waits_for_space = waits_for_space || out_of_space_;
    const Time until = waits_for_space ? give_up : op.deadline;
    if (!leased() && !co_await ensure_lease(until)) co_return Outcome::kUnavailable;
    if (now() >= until) co_return waits_for_space ? Outcome::kNoSpace : Outcome::kUnavailable;
    co_await back_off(backoff);
  }
}

// The volume for a key's versions: the same one for all clients, so that a box in the network can lead any append to any tail.
std::uint32_t Client::home_of(Key key) const {
  const auto live = [](const Volume& volume) { return !volume.is_lost(); };
  const auto count = static_cast<std::uint64_t>(std::ranges::count_if(view_.volumes, live));
  std::uint64_t turn = count == 0 ? 0 : key_hash(key) % count;
  for (std::uint32_t v = 0; v < view_.volumes.size(); ++v) {
    if (live(view_.volumes[v]) && turn-- == 0) return v;
  }
  return 0;
}

Client::Use& Client::use_of(std::uint32_t volume) {
  if (volume >= uses_.size()) uses_.resize(volume + std::size_t{1});
  return uses_[volume];
}

// Into a volume that is lost for good nothing is written again.
void Client::put_back(NodePointer slot) {
  slot = slot.as(NodeKind::kValue);
  if (!is_there(slot)) return spare_.push_back(slot);
  slots_.put_back(slot);
}

Task<void> Client::release_spare() {
  for (std::uint32_t v = 0; v < uses_.size() && slots_short_; ++v) {
    const std::size_t keep = std::max(kKept, uses_[v].taken * 2);
    slots_.take_rest(v, keep, spare_);
    uses_[v].granted = std::min(uses_[v].granted, keep);
  }
  auto slots = std::exchange(spare_, {});
  const Membership member = membership();
  const bool told = co_await send_slots(Request::kRelease, member, slots);
  // Those that the server has heard of it knows no more.
  if (!told && joined_ && member == membership()) spare_.insert(spare_.end(), slots.begin(), slots.end());
}

// REQUIRES: refilling_ was just set.
Task<void> Client::refill(std::uint32_t volume) {
  if (!grant_open_) ++grant_sequence_;
  grant_open_ = true;
  Call request(Request::kAllocate, 1, membership(), grant_sequence_);
  const std::size_t wanted = std::max(kFirstGrant, use_of(volume).granted * 2);
  request.body.put(std::uint64_t{std::min<std::size_t>(wanted, config_.slots_wanted)});
  request.body.put(std::uint64_t{volume});
  const bool answered = co_await call(request, now() + config_.timeout);
  if (answered && request.member == membership() && joined_) {
    grant_open_ = false;
    out_of_space_ = request.header.result == Answer::kNoSpace;
    bool some = false;
    if (request.header.result == Answer::kOk) {
      use_of(volume).granted = request.header.count;
      for (std::size_t i = 0; i < request.header.count; ++i) {
        const NodePointer slot{request.answer.take64()};
        some = some || slot.volume() == volume;
        // The view may be newer than the grant.
        if (is_there(slot)) {
          slots_.add(slot);
        } else {
          spare_.push_back(slot);
        }
      }
    }
    if (!some) {
      if (full_until_.size() <= volume) full_until_.resize(volume + std::size_t{1});
      full_until_[volume] = now() + view_.cursor_lifetime / 8;
    }
    if (out_of_space_) {
      // What others may use again waits in our own reports, too.
      if (!flushing_) co_await flush_links();
      begin_work();  // nor need tombstones and orphans be left
      co_await scheduler_.sleep_for(std::min(view_.cursor_lifetime / 8, config_.backoff_most));
    }
  }
  refilling_ = false;
}

void Client::orphan(NodePointer slot) {
  ++counters_.orphans;
  orphans_.push_back(slot.as(NodeKind::kValue));
}

Task<bool> Client::send_slots(Request type, Membership member, std::vector<NodePointer> slots) {
  for (std::size_t from = 0; from < slots.size();) {
    const std::size_t count = std::min(slots.size() - from, kMaxSlotsPerMessage);
    Call request(type, count, member);
    for (std::size_t i = 0; i < count; ++i) request.body.put(slots[from + i].word);
    from += count;
    // What gets lost here is found when this client's lease ends.
    if (!co_await call(request, now() + config_.timeout)) co_return false;
  }
  co_return true;
}

// REQUIRES: !sending_orphans_.
Task<bool> Client::send_orphans() {
  sending_orphans_ = true;
  auto slots = std::exchange(orphans_, {});
  const Membership member = membership();
  const bool told = co_await send_slots(Request::kOrphan, member, slots);
  // Those that the server has been told of already it refuses.
  if (!told && joined_ && member == membership()) orphans_.insert(orphans_.end(), slots.begin(), slots.end());
  sending_orphans_ = false;
  co_return told;
}

// REQUIRES: is_letting_go_ was just set.
Task<void> Client::let_go(std::uint32_t view) {
  const Membership member = membership();
  letting_go_ = view;
  Duration backoff = config_.backoff_first;
  // Who is dead the view itself says, as it is now.
  while (renewing_) co_await back_off(backoff);
  renewing_ = true;
  bool good = co_await renew_lease(now() + view_.cursor_lifetime);
  renewing_ = false;
  const auto same = [&] { return joined_ && view_.number == view && membership() == member && !view_stale_; };
  while (good && same() && anything_under_way()) {
    co_await back_off(backoff);
    good = !leaving_;
  }
  if (good && same()) {
    Call request(Request::kLetGo, 1, member);
    request.body.put(view);
    const bool answered = co_await call(request, now() + config_.timeout);
    if (answered && request.header.result == Answer::kOk) let_go_ = view;
  }
  is_letting_go_ = false;
}

Task<void> Client::settle_view() {
  const std::uint32_t view = view_.number;
  const Membership member = membership();
  const auto older = [view](const auto& entry) { return entry.first < view; };
  if (!leased() || std::ranges::any_of(writing_, older)) co_return;
  if (settling_ != view) {
    // Whatever is reported from here on was written under this view.
    settling_ = view;
    settling_links_ = links_told_ + links_.size();
  }
  if (!flushing_) co_await flush_links();
  if (links_told_ < settling_links_ || sending_orphans_) co_return;
  const bool told = co_await send_orphans();
  if (!told || !leased() || member != membership() || view != view_.number) co_return;
  Call request(Request::kSettled, 1, member);
  request.body.put(view);
  const bool answered = co_await call(request, now() + config_.timeout);
  if (answered && request.header.result == Answer::kOk && member == membership()) settled_ = view;
}

// ------------------------------------------------------------------------------------------------------------- reports

void Client::report(const Link& link) {
  links_.push_back(link);
  if (links_.size() >= config_.links_per_report && !flushing_) scheduler_.spawn(flush_links());
}

Task<void> Client::flush_links() {
  if (flushing_) co_return;
  flushing_ = true;
  while (!links_.empty()) {
    if (!leased() && !co_await ensure_lease(now() + config_.timeout)) break;
    const std::size_t count = std::min(links_.size(), kMaxLinksPerMessage);
    Call request(Request::kReport, count, membership());
    for (std::size_t i = 0; i < count; ++i) {
      request.body.put(links_[i].key);
      request.body.put(links_[i].node.word);
      request.body.put(links_[i].stamp);
    }
    const std::uint64_t told = links_told_;
    if (!co_await call(request, now() + config_.timeout)) break;
    if (request.header.result == Answer::kExpired || links_told_ != told)
      continue;  // these are not ours to tell any more
    links_.erase(links_.begin(), links_.begin() + static_cast<std::ptrdiff_t>(count));
    links_told_ += count;
  }
  flushing_ = false;
}

// ---------------------------------------------------------------------------------------------------------------- work

void Client::begin_work() {
  if (!work_waits_ || working_ || leaving_ || !leased()) return;
  working_ = true;
  scheduler_.spawn(do_work());
}

// REQUIRES: working_ was just set.
Task<void> Client::do_work() {
  // Dead clients leave orphans, and erased keys tombstones, in slots that nobody can use meanwhile: where there is more than a batch of them it goes on,
  // until maintain() comes by again.
  const Time enough = now() + view_.cursor_lifetime / 8;
  bool more = true;
  while (more && leased() && !leaving_ && now() < enough) {
    Call request(Request::kWork, kWorkAtOnce, membership());
    const bool answered = co_await call(request, now() + config_.timeout);
    if (!answered || request.header.result != Answer::kOk || request.member != membership()) break;
    more = request.header.count == kWorkAtOnce;
    const Membership member = request.member;
    std::vector<Work> pieces;
    for (std::size_t i = 0; i < request.header.count; ++i) {
      Work piece;
      piece.kind = static_cast<WorkKind>(request.answer.take64());
      piece.key = request.answer.take64();
      piece.node.word = request.answer.take64();
      if (request.answer.ok()) pieces.push_back(piece);
    }
    std::vector<Checked> checked;
    remote::AtOnce all(scheduler_, pieces.size(), kWorkers,
                       [&](std::size_t i) { return do_piece(pieces[i], member, request.submitted, checked); });
    co_await all;
    if (checked.empty()) continue;
    Call answer(Request::kChecked, checked.size(), member);
    for (const auto& [key, slot] : checked) {
      answer.body.put(key);
      answer.body.put(slot.word);
    }
    const bool told = co_await call(answer, now() + config_.timeout);
    static_cast<void>(told);  // what is not comes up again
  }
  working_ = false;
}

Task<bool> Client::do_piece(Work piece, Membership member, Time submitted, std::vector<Checked>& checked) {
  if (member != membership()) co_return false;
  ++counters_.work;
  if (piece.kind != WorkKind::kOrphan) {
    co_await settle(piece.key, {piece.node, submitted}, piece.kind);
    co_return true;
  }
  const auto passed = co_await check_orphan(piece.node);
  if (passed) checked.push_back(*passed);
  co_return true;
}

Task<void> Client::settle(Key key, Cursor head, WorkKind kind) {
  const Time deadline = now() + config_.timeout;
  Buffer node(buffers_, layout_.node_bytes());
  const Tail tail = co_await find_tail(key, head, deadline, node.bytes());
  if (tail.outcome != Outcome::kOk) co_return;
  const NodePointer last = tail.cursor.node;
  if (kind == WorkKind::kSeal && last.kind() == NodeKind::kTombstone && in_lease(tail.cursor)) {
    const Trust terms = trust(tail.cursor);
    ++counters_.swaps;
    ++counters_.round_trips;
    const NodeId where = primary_of(last).node;
    depart();
    const auto swapped =
        co_await memory_.compare_and_swap(primary_of(last), free_word(key, NodeKind::kTombstone), sealed_word(key));
    arrive(where, swapped.status);
    const bool sealed = swapped.status == Status::kOk &&
                        (swapped.prior == free_word(key, NodeKind::kTombstone) || swapped.prior == sealed_word(key));
    if (sealed && believable(terms)) {
      cursors_.drop(key, last);
      co_await report_sealed(key, tail.cursor, deadline);
    }
    co_return;
  }
  report({key, last, tail.stamp});
}

Task<std::optional<Client::Checked>> Client::check_orphan(NodePointer slot) {
  if (!is_there(slot) || !leased()) co_return std::nullopt;
  Buffer node(buffers_, layout_.node_bytes());
  ++counters_.reads;
  ++counters_.round_trips;
  const ViewName view = view_name();
  const RemoteAddress where = primary_of(slot);
  depart();
  const Status status = co_await memory_.read(where, node.bytes());
  arrive(where.node, status);
  if (status != Status::kOk || view != view_name()) co_return std::nullopt;
  const NodeView seen = parse_node(layout_, node.bytes());
  const bool erases = seen.next == free_word(seen.key, NodeKind::kTombstone);
  const Met met = co_await meets(seen.key, slot.as(erases ? NodeKind::kTombstone : NodeKind::kValue));
  if (met != Met::kNo) co_return std::nullopt;
  co_return Checked{seen.key, slot};
}

// Walks the whole chain of `key`; reports `slot` when it is met. By next words alone: READs of nodes a box may lead past what is to be found, and would as
// long as the key is written.
Task<Client::Met> Client::meets(Key key, NodePointer slot) {
  const Time deadline = now() + config_.timeout;
  Cursor at;
  const Outcome found = co_await look_up(key, at, deadline);
  if (found == Outcome::kNotFound) co_return Met::kNo;
  if (found != Outcome::kOk) co_return Met::kCannotTell;
  std::array<std::uint8_t, kNextBytes> word{};
  while (in_lease(at)) {
    if (at.node.as(NodeKind::kValue) == slot.as(NodeKind::kValue)) {
      report({key, at.node, 0});
      co_return Met::kYes;
    }
    const Trust terms = trust(at);
    const RemoteAddress where = primary_of(at.node);
    ++counters_.reads;
    ++counters_.round_trips;
    depart();
    const Status status = co_await memory_.read(where, word);
    arrive(where.node, status);
    if (status != Status::kOk || !believable(terms)) break;
    const auto next = load_le<std::uint64_t>(word.data());
    switch (judge_next(key, at, next)) {
      case Found::kForeign: ++counters_.foreign; co_return Met::kCannotTell;
      case Found::kTail: {
        if (!mirrored(at.node)) co_return Met::kNo;
        const bool unnamed = co_await unname(at, key, slot);
        co_return unnamed ? Met::kNo : Met::kCannotTell;
      }
      case Found::kSealed:  // behind which a mirror may name the slot, too
      case Found::kPassed: break;
    }
    if (mirrored(at.node)) {
      const Mirrored stable = co_await stabilise(at, key, next);
      if (stable.late || stable.status != Status::kOk) break;
    }
    if (next == sealed_word(key)) co_return Met::kNo;
    at.node = NodePointer{next};
  }
  co_return Met::kCannotTell;
}

// Where its writer died when it had linked it on some replicas of a view before, mirrors may still name it behind the tail: the next of these to be the
// primary would link it, in whatever life its slot is then. Nobody links it on the primary any more.
Task<bool> Client::unname(Cursor tail, Key key, NodePointer orphan) {
  if (!in_lease(tail)) co_return false;
  const Trust terms = trust(tail);
  const Volume volume = *volume_of(tail.node);
  std::array<remote::Operation, kMaxReplicas> swaps;
  std::size_t count = 0;
  for (std::size_t j = 0; j < volume.count; ++j) {
    if (!volume.is_live(j) || j == volume.primary()) continue;
    const auto where = volume.locate(tail.node, j);
    swaps[count++] = remote::swap_operation(where, orphan.word, free_word(key, tail.node.kind()));
  }
  ++counters_.round_trips;
  counters_.swaps += count;
  counters_.bytes += 8 * count;
  depart(count);
  co_await memory_.all(std::span(swaps).first(count));
  bool done = true;
  for (const auto& swap : std::span(swaps).first(count)) {
    arrive(swap.remote.node, swap.status);
    done = done && swap.status == Status::kOk;
  }
  co_return believable(terms) && done;
}

}  // namespace sluice::clover
