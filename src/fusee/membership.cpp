#include "fusee/membership.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fusee/restoration.h"

namespace sluice::fusee {

using remote::Operation;
using remote::Status;
using remote::Task;

namespace {

constexpr std::size_t kRepairedAtOnce = 128 << 10;  // bytes of words
constexpr std::size_t kBatchesAtOnce = 16;          // before it is asked whether another has done it meanwhile
constexpr std::size_t kSwapsAtOnce = 64;
constexpr int kRounds = 16;
constexpr std::uint32_t kMissedBefore =
    3;  // readings that a node has not answered: one may be lost with its connection
constexpr std::uint32_t kMostRounds = 255;
constexpr std::uint32_t kBallotClient = 0xF'FFFF;  // of a ballot
constexpr std::int64_t kPatienceForStrange = 4;
constexpr std::uint32_t kMostDoublings = 10;  // of the time until a node that left is taken back

}  // namespace

Membership::Membership(Connection& connection, std::span<const MemoryNode> nodes, std::span<const Found> found)
    : c_(connection),
      nodes_(nodes.size()),
      records_(nodes.size() * kChangeBytes),
      touched_(nodes.size(), false),
      restoration_(std::make_unique<Restoration>(connection, *this)) {
  SLUICE_CHECK(possible(nodes.size(), connection.geometry));
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    nodes_[i].heap = nodes[i].heap;
    nodes_[i].known = found[i].known;
    nodes_[i].unseen = !found[i].known;
    nodes_[i].blank = found[i].blank;
    nodes_[i].votes_from = found[i].votes_from;
    // It came with a change that is to be learned of yet; or has to; or is to be looked into first.
    nodes_[i].strange = lost(nodes_[i]) || found[i].votes_from != 0;
    if (lost(nodes_[i])) nodes_[i].missed = c_.now();
    if (nodes_[i].unseen) c_.map.moved(static_cast<std::uint32_t>(i), kNowhere);
  }
  c_.lease = Time();
}

Membership::~Membership() = default;

// ---------------------------------------------------------------------------------------------------- who is missed

void Membership::trouble(remote::NodeId node) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].heap.node == node && !c_.map.has_left(static_cast<std::uint32_t>(i)))
      nodes_[i].missed = std::min(nodes_[i].missed, c_.now());
  }
  tend();
}

bool Membership::troubled() const {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].missed != Time::never() && !c_.map.has_left(static_cast<std::uint32_t>(i))) return true;
  }
  return false;
}

bool Membership::long_missed(const Node& node) const {
  // Where its memory is not known, others may know it yet.
  const Duration patience = c_.config.suspect_after * (node.gone ? 0 : node.told_late ? kPatienceForStrange : 1);
  const bool tried = (node.known && lost(node)) || node.unanswered >= kMissedBefore;
  return tried && node.missed != Time::never() && node.missed + patience <= c_.now();
}

// A node that has been missed for long enough, and that the store can do without.
std::optional<std::uint32_t> Membership::missing() const {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const auto node = static_cast<std::uint32_t>(i);
    if (long_missed(nodes_[i]) && c_.map.can_leave(node)) return node;
  }
  return std::nullopt;
}

// A node is missed for long, and must be waited for.
bool Membership::in_need() const {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const auto node = static_cast<std::uint32_t>(i);
    if (long_missed(nodes_[i]) && !c_.map.has_left(node) && !c_.map.can_leave(node)) return true;
  }
  return false;
}

void Membership::tend() {
  if (working_) return;
  working_ = true;
  // What was found before may be of long ago.
  hopeless_ = false;
  outvoted_ = Time::never();
  c_.scheduler.spawn(work());
}

void Membership::restore() { restoration_->tend(); }

void Membership::moved(std::uint32_t node, remote::RemoteAddress heap) {
  Node& n = nodes_[node];
  if (n.heap == heap) return;
  n.heap = heap;
  n.known = false;
  const bool member = !c_.map.has_left(node);
  if (member && n.joins != 0 && heap.key == n.joined_with) {
    // The others knew it before.
    n.known = true;
    n.unseen = false;
    n.strange = n.told_late = n.gone = false;
    n.blank = false;
    n.missed = Time::never();
    c_.map.moved(node, heap);
    return;
  }
  if (member) {
    // It is there, and may be what it was: that is to be looked into before it is long missed.
    n.strange = true;
    n.missed = c_.now();
  }
  hopeless_ = false;
  outvoted_ = Time::never();
  tend();
}

bool Membership::awaited(std::uint32_t node) const {
  if (!c_.map.has_left(node) || c_.config.return_after == Duration{}) return false;
  // Enough must be left for all to leave.
  if (c_.view + 2 * nodes_.size() + 4 > kMostChanges) return false;
  const Node& n = nodes_[node];
  const Duration wait = c_.config.return_after * (std::int64_t{1} << std::min(n.joins, kMostDoublings));
  return n.left + wait <= c_.now();
}

void Membership::learned(std::uint32_t node, const Found& found) {
  nodes_[node].known = true;
  nodes_[node].unseen = false;
  nodes_[node].blank = found.blank;
  nodes_[node].votes_from = found.votes_from;
}

void Membership::wish(const Change& change) {
  wish_ = change;
  wish_view_ = c_.view;
  tend();
}

// ------------------------------------------------------------------------------------------------------------- asking

Task<bool> Membership::ask(std::uint32_t view) {
  std::vector<Operation> reads;
  std::vector<std::size_t> whose;
  reads.reserve(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].voted = false;
    if (!votes(nodes_[i], view) && !tells(nodes_[i], view)) continue;
    whose.push_back(i);
    reads.push_back(remote::read_operation(record(nodes_[i], view),
                                           MutableBytes(records_).subspan(kChangeBytes * i, kChangeBytes)));
  }
  const Time asked = c_.now();
  ++c_.counters.renewals;
  co_await c_.memory.all(reads);
  asked_ = asked;
  told_.reset();
  std::size_t voted = 0;
  for (std::size_t read = 0; read < reads.size(); ++read) {
    const std::size_t i = whose[read];
    Node& node = nodes_[i];
    if (reads[read].remote != record(node, view)) continue;  // it is another meanwhile
    const bool voter = votes(node, view);
    if (!voter && !tells(node, view)) continue;
    const Status status = reads[read].status;
    if (status != Status::kOk) {
      // Not since it was asked: this program may have been stopped meanwhile, and the connection have ended for that.
      node.missed = std::min(node.missed, c_.now());
      ++node.unanswered;
      continue;
    }
    if (!node.strange) node.missed = Time::never();
    node.unanswered = 0;
    const std::uint8_t* const its = records_.data() + kChangeBytes * i;
    node.ballot = {load_le<std::uint64_t>(its)};
    node.ready = load_le<std::uint64_t>(its + 8);
    node.proposals = {Proposal{load_le<std::uint64_t>(its + 16)}, Proposal{load_le<std::uint64_t>(its + 24)}};
    // One that has accepted something since its proposals were read says so with the next reading.
    node.voted = voter && (node.ballot.accepted() == 0 || node.accepted_in() != nullptr);
    if (!voter && node.accepted_in() != nullptr) told_ = node.accepted_in()->change(node.ballot.node());
    voted += node.voted;
  }
  if (told_ || voted >= majority()) {
    outvoted_ = Time::never();
    co_return true;
  }
  outvoted_ = std::min(outvoted_, c_.now());
  if (outvoted_ + c_.config.suspect_after <= c_.now()) hopeless_ = true;
  co_return false;
}

Task<bool> Membership::ask_for_lease() {
  const bool answered = co_await ask(c_.view);
  co_return answered && !told_ &&
      std::ranges::none_of(nodes_, [](const Node& node) { return node.voted && node.ballot.accepted() != 0; });
}

// All come to propose a change at the same moment, and whoever outbids another keeps that one from being through. So who has a promise is given a lease's time.
bool Membership::may_be_at_work(std::uint32_t ballot) {
  if (ballot == 0 || (ballot & kBallotClient) == (c_.client & kBallotClient)) return false;
  if (ballot != rival_) {
    rival_ = ballot;
    outbid_from_ = c_.now() + c_.config.lease + drawn(c_.config.lease);
  }
  return c_.now() < outbid_from_;
}

std::optional<Change> Membership::accepted_by_most() const {
  for (const Node& node : nodes_) {
    if (!node.voted || node.ballot.accepted() == 0) continue;
    const auto same = std::ranges::count_if(nodes_, [&node](const Node& other) {
      return other.voted && other.ballot.accepted() == node.ballot.accepted();
    });
    if (static_cast<std::size_t>(same) >= majority()) return node.accepted_in()->change(node.ballot.node());
  }
  return std::nullopt;
}

Task<void> Membership::swap(std::vector<Promise>& promises, std::vector<Operation> swaps) {
  SLUICE_CHECK(promises.size() == swaps.size());
  co_await c_.memory.all(swaps);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < swaps.size(); ++i) {
    if (swaps[i].status == Status::kOk && swaps[i].prior == swaps[i].compare) promises[kept++] = promises[i];
  }
  promises.resize(kept);
}

Task<void> Membership::promise(std::uint32_t view, std::uint32_t ballot, std::vector<Promise>& promises) {
  std::vector<Operation> swaps;
  promises.clear();
  for (const Node& node : nodes_) {
    if (!node.voted) continue;
    const Proposal* const named = node.accepted_in();
    const std::size_t free = named == node.proposals.data() ? 1 : 0;
    promises.push_back({.at = record(node, view),
                        .before = node.ballot,
                        .offset = 16 + 8 * free,
                        .there = node.proposals[free].raw,
                        .accepted = named == nullptr ? Change{} : named->change(node.ballot.node())});
    const Ballot promised = Ballot::of(ballot, node.ballot.accepted(), node.ballot.node());
    swaps.push_back(remote::swap_operation(promises.back().at, node.ballot.raw, promised.raw));
  }
  co_await swap(promises, std::move(swaps));
}

Task<void> Membership::accept(std::uint32_t ballot, const Change& value, std::vector<Promise>& promises) {
  std::vector<Operation> swaps;
  for (const Promise& p : promises)
    swaps.push_back(remote::swap_operation(p.at + p.offset, p.there, Proposal::of(ballot, value).raw));
  co_await swap(promises, std::exchange(swaps, {}));
  for (const Promise& p : promises) {
    const Ballot promised = Ballot::of(ballot, p.before.accepted(), p.before.node());
    swaps.push_back(remote::swap_operation(p.at, promised.raw, Ballot::of(ballot, ballot, value.node).raw));
  }
  co_await swap(promises, std::move(swaps));
}

// Paxos, with this client as proposer. Nothing: not decided, as far as is known.
//
// A ballot is accepted in one CAS, and has no place for all of a change; so the rest is written before, in that of an acceptor's two proposals which
// its ballot does not name, by CAS from what was read there when the promise was asked for. Whoever has a promise is the only one whose ballot
// can still be accepted there, unless another gets one after it; and of two who write in one place, the later one's promise shows it what the earlier had
// put there, or its own CAS fails, and it does not go on with this acceptor. So what a ballot has accepted stays where it is.
Task<std::optional<Change>> Membership::decide(std::uint32_t view, Change wanted) {
  Duration backoff{};
  std::vector<Promise> promises;
  for (int round = 0; round < kRounds; ++round) {
    const bool answered = co_await ask(view);
    if (!answered) co_return std::nullopt;
    if (told_) co_return told_;
    if (const auto decided = accepted_by_most()) co_return decided;
    std::uint32_t highest = 0;
    for (const Node& node : nodes_) {
      if (node.voted) highest = std::max(highest, node.ballot.promised());
    }
    if (may_be_at_work(highest)) co_return std::nullopt;
    const std::uint32_t round_before = highest >> 20;
    if (round_before >= kMostRounds) co_return std::nullopt;
    const std::uint32_t mine = (round_before + 1) << 20 | (c_.client & kBallotClient);

    co_await promise(view, mine, promises);
    if (promises.size() >= majority()) {
      // What was accepted last may have been decided.
      Change value = wanted;
      std::uint32_t latest = 0;
      for (const Promise& p : promises) {
        if (p.before.accepted() <= latest) continue;
        latest = p.before.accepted();
        value = p.accepted;
      }
      co_await accept(mine, value, promises);
      if (promises.size() >= majority()) co_return value;
    }
    co_await c_.back_off(backoff);
  }
  co_return std::nullopt;
}

// -------------------------------------------------------------------------------------------------------- the next view

bool Membership::possible(const Change& change) const {
  if (change.node >= nodes_.size()) return false;
  switch (change.kind) {
    case ChangeKind::kLeave: return c_.map.can_leave(change.node);
    case ChangeKind::kJoin: return c_.map.has_left(change.node);
    case ChangeKind::kComplete: return c_.map.member(change.node) == Member::kApprentice;
  }
  return false;
}

Duration Membership::drawn(Duration most) {
  return Duration::picoseconds(
      static_cast<std::int64_t>(c_.rng.below(static_cast<std::uint64_t>(most.picoseconds()) + 1)));
}

void Membership::apply(const Change& change) {
  std::vector<std::uint32_t> primaries;
  for (std::uint32_t partition = 0; partition < c_.map.partitions(); ++partition)
    primaries.push_back(c_.map.primary(partition));
  if (begun_) quiet_ = true;
  changes_.push_back(change);
  ++c_.view;
  Node& node = nodes_[change.node];
  switch (change.kind) {
    case ChangeKind::kLeave:
      c_.map.leave(change.node);
      node.strange = node.told_late = node.gone = false;
      node.left = c_.now();
      ++c_.counters.departures;
      break;
    case ChangeKind::kJoin: {
      remote::RemoteAddress heap = node.heap;
      if (heap.key == change.key) {
        if (lost(node)) node.votes_from = c_.view;
        if (node.known) node.life = node.votes_from;
        node.known = true;
        node.blank = false;
        node.strange = node.told_late = node.gone = false;
        node.missed = Time::never();
      } else {
        // It is not to be asked for anything before its memory is known. (Which may have changed its key since.)
        heap.key = change.key;
        node.known = false;
        node.strange = node.told_late = true;
        node.gone = false;
        node.missed = c_.now();
        node.votes_from = c_.view;
      }
      ++node.joins;
      node.unanswered = 0;
      node.joined_with = change.key;
      c_.map.join(change.node, heap);
      c_.grown = c_.view;
      for (std::uint32_t partition = 0; partition < c_.map.partitions(); ++partition)
        touched_[partition] = touched_[partition] || c_.map.has_words(change.node, partition);
      break;
    }
    case ChangeKind::kComplete:
      c_.map.complete(change.node);
      ++c_.counters.returns;
      break;
  }
  for (std::uint32_t partition = 0; partition < c_.map.partitions(); ++partition) {
    if (c_.map.primary(partition) == primaries[partition]) continue;
    touched_[partition] = true;
    quiet_ = false;
  }
  c_.lease = Time();
  c_.read_lease = Time();
  begun_ = false;
  decided_ = c_.now();
  stagger_ = drawn(c_.config.view_lease());
  rival_ = 0;
  wish_.reset();
}

Task<bool> Membership::announce() {
  std::array<std::uint8_t, 8> done;
  store_le<std::uint64_t>(done.data(), 1);
  std::vector<Operation> writes;
  for (const Node& node : nodes_) {
    if (votes(node, c_.view)) writes.push_back(remote::write_operation(record(node, c_.view) + 8, done));
  }
  co_await c_.memory.all(writes);
  const auto told = std::ranges::count_if(writes, [](const Operation& o) { return o.status == Status::kOk; });
  co_return static_cast<std::size_t>(told) >= majority();
}

// REQUIRES: ask_for_lease() has just said yes.
Task<bool> Membership::begin() {
  const auto told = std::ranges::count_if(nodes_, [](const Node& node) { return node.voted && node.ready != 0; });
  if (static_cast<std::size_t>(told) < majority()) {
    if (told == 0) {
      // One is enough, so not all at once.
      if (c_.now() < decided_ + (c_.config.view_lease() + c_.config.flight) + stagger_) co_return false;
      const bool repaired = co_await repair();
      if (!repaired) co_return false;
    }
    const bool announced = co_await announce();
    if (!announced) co_return false;
  }
  begun_ = true;
  touched_.assign(touched_.size(), false);
  co_return true;
}

// REQUIRES: nothing of the view before can take effect any more.
Task<bool> Membership::repair() {
  for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
    if (c_.map.member(node) != Member::kApprentice) continue;
    const bool admitted = co_await admit(node);
    if (!admitted) co_return false;
  }
  std::vector<Extent> extents;
  const bool known = co_await c_.words_in_use(extents);
  if (!known) co_return false;
  std::size_t batches = 0;
  for (std::uint32_t partition = 0; partition < c_.map.partitions(); ++partition) {
    if (!touched_[partition] || c_.map.word_replicas(Place::at(partition, 0)) < 2) continue;
    for (const Extent& extent : extents) {
      for (std::uint64_t done = 0; done < extent.length; done += kRepairedAtOnce) {
        const std::size_t length = std::min<std::uint64_t>(kRepairedAtOnce, extent.length - done);
        const bool repaired = co_await repair_part(partition, extent.offset + done, length);
        if (!repaired) co_return false;
        if (batches++ % kBatchesAtOnce != 0) continue;
        const bool leased = co_await ask_for_lease();
        if (!leased) co_return false;
        if (std::ranges::any_of(nodes_, [](const Node& n) { return n.voted && n.ready != 0; })) co_return true;
      }
    }
  }
  co_return true;
}

// Makes the replicas of some words alike. True as well: another has done all of them meanwhile.
Task<bool> Membership::repair_part(std::uint32_t partition, std::uint64_t offset, std::size_t length) {
  const Place first = Place::at(partition, offset);
  const std::uint32_t replicas = c_.map.word_replicas(first);
  words_.resize(kMostReplicas * kRepairedAtOnce);
  std::vector<Operation> operations;
  while (true) {
    const Time seen = c_.now();
    operations.clear();
    for (std::uint32_t i = 0; i < replicas; ++i) {
      operations.push_back(
          remote::read_operation(c_.map.word_at(first, i), MutableBytes(words_).subspan(kRepairedAtOnce * i, length)));
    }
    co_await c_.memory.all(operations);
    if (std::ranges::any_of(operations, [](const Operation& o) { return o.status != Status::kOk; })) co_return false;
    operations.clear();
    for (std::uint64_t at = 0; at < length && operations.size() < kSwapsAtOnce; at += 8) {
      const auto truth = load_le<std::uint64_t>(words_.data() + at);
      for (std::uint32_t i = 1; i < replicas; ++i) {
        const auto other = load_le<std::uint64_t>(words_.data() + kRepairedAtOnce * i + at);
        if (other != truth) operations.push_back(remote::swap_operation(c_.map.word_at(first + at, i), other, truth));
      }
    }
    if (operations.empty()) co_return true;
    // What has been read is of before the view is acted upon if nobody has been told yet that it may be.
    const bool leased = co_await ask_for_lease();
    if (!leased) co_return false;
    if (std::ranges::any_of(nodes_, [](const Node& node) { return node.voted && node.ready != 0; })) co_return true;
    if (!c_.fresh(seen) || c_.now() >= asked_ + c_.config.view_lease()) continue;
    co_await c_.memory.all(operations);
    for (const Operation& o : operations) c_.counters.repaired += o.status == Status::kOk && o.prior == o.compare;
  }
}

// Its memory may be new: then it gets its superblock here, the changes so far, and counts clients from where the others do.
Task<bool> Membership::admit(std::uint32_t node) {
  // Only what the view means may get the superblock by which it is known again.
  if (lost(nodes_[node])) co_return false;
  const remote::RemoteAddress heap = nodes_[node].heap;
  std::array<std::uint8_t, kClientOffset + 8> its;
  const Status status = co_await c_.read(heap, its);
  if (status != Status::kOk) {
    c_.trouble(heap.node);
    co_return false;
  }
  Superblock superblock;
  if (parse_superblock(its, superblock) && c_.ours(superblock, node) && superblock_made(its)) co_return true;
  std::vector<std::uint8_t> counts(nodes_.size() * 8);
  std::vector<Operation> reads;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (i != node && votes(nodes_[i], c_.view))
      reads.push_back(remote::read_operation(nodes_[i].heap + kClientOffset, MutableBytes(counts).subspan(i * 8, 8)));
  }
  co_await c_.memory.all(reads);
  std::erase_if(reads, [](const Operation& o) { return o.status != Status::kOk; });
  if (reads.size() < majority()) co_return false;
  std::uint64_t most = 0;
  for (const Operation& o : reads) most = std::max(most, load_le<std::uint64_t>(o.local.data()));
  const auto count = load_le<std::uint64_t>(its.data() + kClientOffset);
  if (count < most) {
    const auto raised = co_await c_.swap(heap + kClientOffset, count, most);
    if (raised.status != Status::kOk || (raised.prior != count && raised.prior < most)) co_return false;
  }
  // What was decided before it votes, as if it had accepted that: in a ballot that nobody has.
  std::vector<std::uint8_t> decided(kChangeBytes * nodes_[node].votes_from);
  for (std::size_t i = 0; i < nodes_[node].votes_from; ++i) {
    constexpr std::uint32_t kBallot = 1 << 20;
    std::uint8_t* const entry = decided.data() + kChangeBytes * i;
    store_le<std::uint64_t>(entry, Ballot::of(kBallot, kBallot, changes_[i].node).raw);
    store_le<std::uint64_t>(entry + 8, 1);
    store_le<std::uint64_t>(entry + 16, Proposal::of(kBallot, changes_[i]).raw);
  }
  const Status remembered = co_await c_.write(heap + kChangeOffset, decided);
  if (remembered != Status::kOk) co_return false;
  std::array<std::uint8_t, kSuperblockHead> head;
  put_superblock(head, {.geometry = c_.geometry,
                        .nodes = c_.map.partitions(),
                        .index = node,
                        .store_id = c_.store_id,
                        .heap_bytes = c_.heap_bytes,
                        .votes_from = nodes_[node].votes_from});
  const Status written = co_await c_.write(heap, head);
  if (written != Status::kOk) co_return false;
  std::array<std::uint8_t, 8> made;
  store_le<std::uint64_t>(made.data(), 1);
  const Status told = co_await c_.write(heap + kMadeOffset, made);
  co_return told == Status::kOk;
}

// ------------------------------------------------------------------------------------------------------------- working

Task<void> Membership::look_into_new_memory() {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    // One that is blank may have been given something.
    if (node.known && !node.blank) continue;
    const remote::RemoteAddress heap = node.heap;
    std::array<std::uint8_t, kSuperblockRead> bytes;
    const Status status = co_await c_.read(heap, bytes);
    if (node.heap != heap) continue;
    if (status != Status::kOk) {
      ++node.unanswered;
      continue;
    }
    Superblock superblock;
    const bool whole = parse_superblock(bytes, superblock) && c_.ours(superblock, i);
    node.known = true;
    node.unseen = false;
    node.blank = !whole;
    node.votes_from = superblock.votes_from;
    const auto number = static_cast<std::uint32_t>(i);
    if (!node.strange || c_.map.has_left(number)) continue;
    // What took its place came with a change that the view does not have yet.
    node.gone = !whole || superblock.votes_from > c_.view || is_outlived(number, superblock);
    if (node.gone) continue;
    node.life = superblock.votes_from;
    node.strange = node.told_late = false;
    node.missed = Time::never();
    node.unanswered = 0;
    c_.map.moved(number, heap);
  }
}

Task<bool> Membership::turn() {
  co_await look_into_new_memory();
  const bool leased = co_await ask_for_lease();
  const Time asked = asked_;
  if (told_) {
    if (!possible(*told_)) co_return false;
    apply(*told_);
    co_return true;
  }
  std::optional<Change> change;
  std::size_t voted = 0;
  for (const Node& node : nodes_) {
    voted += node.voted;
    if (node.voted && node.ballot.accepted() != 0) change = node.accepted_in()->change(node.ballot.node());
  }
  if (voted < majority()) co_return false;
  if (leased) {
    if (const auto leaver = missing()) change = Change{ChangeKind::kLeave, *leaver, {}};
    const bool wished = !change && begun_ && wish_ && wish_view_ == c_.view && possible(*wish_);
    if (wished) change = *wish_;
    if (begun_) wish_.reset();
  }
  if (change) {
    if (c_.view >= kMostChanges) co_return false;
    const auto decided = co_await decide(c_.view, *change);
    // Proposed and not decided: no lease is to be had meanwhile.
    if (!decided || !possible(*decided)) co_return false;
    apply(*decided);
    co_return true;
  }
  hopeless_ = in_need();
  // What has forgotten everything must not be asked for anything: it leaves first. One that has not answered yet is asked for nothing anyway, and where it
  // cannot leave, what does not need it goes on.
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (!lost(nodes_[i]) || c_.map.has_left(i)) continue;
    if (!nodes_[i].unseen || c_.map.can_leave(i)) co_return false;
  }
  if (!begun_) {
    if (quiet_ && asked == asked_) c_.read_lease = std::max(c_.read_lease, asked + c_.config.view_lease());
    co_return co_await begin();
  }
  if (asked == asked_) c_.lease = std::max(c_.lease, asked + c_.config.view_lease());
  co_return hopeless_ || !troubled();
}

Task<void> Membership::work() {
  const Duration change = c_.config.suspect_after + c_.config.view_lease() + c_.config.flight;
  const Time give_up = c_.now() + std::max(c_.config.timeout, change * 4);
  while (c_.now() < give_up) {
    const std::uint32_t view = c_.view;
    const bool done = co_await turn();
    if (!done) {
      // Not all at once, and not so often that it were a burden to those that still live.
      const Duration pause = c_.config.view_lease() / 32;
      co_await c_.scheduler.sleep_for(pause + drawn(pause));
      continue;
    }
    if (view == c_.view && c_.leased()) break;
  }
  if (!c_.leased()) hopeless_ = true;
  working_ = false;
}

}  // namespace sluice::fusee
