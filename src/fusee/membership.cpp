#include "fusee/membership.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::fusee {

using remote::Operation;
using remote::Status;
using remote::Task;

namespace {

constexpr std::size_t kRepairedAtOnce = 16 << 10;  // bytes of words
constexpr std::size_t kSwapsAtOnce = 64;
constexpr int kRounds = 16;
constexpr std::uint32_t kMissedBefore =
    3;  // readings that a node has not answered: one may be lost with its connection
constexpr std::uint32_t kMostRounds = 255;

}  // namespace

Membership::Membership(Connection& connection, std::span<const MemoryNode> nodes, const std::vector<bool>& blank)
    : c_(connection), nodes_(nodes.size()), records_(nodes.size() * kDepartureBytes) {
  SLUICE_CHECK(possible(nodes.size(), connection.geometry));
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    nodes_[i].heap = nodes[i].heap;
    nodes_[i].blank = blank[i];
    if (blank[i]) nodes_[i].missed = c_.now();
  }
  c_.lease = Time();
  outvoted_ = c_.now();
}

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
  const bool tried = node.blank || node.unanswered >= kMissedBefore;
  return tried && node.missed != Time::never() && node.missed + c_.config.suspect_after <= c_.now();
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
  c_.scheduler.spawn(work());
}

// ------------------------------------------------------------------------------------------------------------- asking

Task<bool> Membership::ask(std::uint32_t view) {
  std::vector<Operation> reads;
  reads.reserve(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].voted = false;
    if (nodes_[i].blank) continue;
    reads.push_back(remote::read_operation(record(nodes_[i], view),
                                           MutableBytes(records_).subspan(kDepartureBytes * i, kDepartureBytes)));
  }
  const Time asked = c_.now();
  ++c_.counters.renewals;
  co_await c_.memory.all(reads);
  asked_ = asked;
  std::size_t votes = 0;
  std::size_t next = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (node.blank) continue;
    const Status status = reads[next++].status;
    if (status != Status::kOk) {
      node.missed = std::min(node.missed, asked);
      ++node.unanswered;
      continue;
    }
    node.missed = Time::never();
    node.unanswered = 0;
    node.voted = true;
    node.ballot = {load_le<std::uint64_t>(records_.data() + kDepartureBytes * i)};
    node.ready = load_le<std::uint64_t>(records_.data() + kDepartureBytes * i + 8);
    ++votes;
  }
  if (votes >= majority()) {
    outvoted_ = Time::never();
    co_return true;
  }
  outvoted_ = std::min(outvoted_, asked);
  if (outvoted_ + c_.config.suspect_after <= c_.now()) hopeless_ = true;
  co_return false;
}

Task<bool> Membership::ask_for_lease() {
  const bool answered = co_await ask(c_.view);
  co_return answered&& std::ranges::none_of(nodes_,
                                            [](const Node& node) { return node.voted && node.ballot.accepted() != 0; });
}

// Paxos, with this client as proposer. Nothing: not decided, as far as is known.
Task<std::optional<std::uint32_t>> Membership::decide(std::uint32_t view, std::uint32_t wanted) {
  Duration backoff{};
  std::vector<Operation> swaps;
  for (int round = 0; round < kRounds; ++round) {
    const bool answered = co_await ask(view);
    if (!answered) co_return std::nullopt;
    std::uint32_t highest = 0;
    for (const Node& node : nodes_) {
      if (!node.voted) continue;
      highest = std::max(highest, node.ballot.promised() >> 20);
      const auto same = std::ranges::count_if(nodes_, [&node](const Node& other) {
        return other.voted && other.ballot.accepted() == node.ballot.accepted();
      });
      if (node.ballot.accepted() != 0 && static_cast<std::size_t>(same) >= majority()) co_return node.ballot.node();
    }
    if (highest >= kMostRounds) co_return std::nullopt;
    const std::uint32_t mine = (highest + 1) << 20 | (c_.client & 0xF'FFFF);

    swaps.clear();
    for (const Node& node : nodes_) {
      if (!node.voted) continue;
      const Ballot promise = Ballot::of(mine, node.ballot.accepted(), node.ballot.node());
      swaps.push_back(remote::swap_operation(record(node, view), node.ballot.raw, promise.raw));
    }
    co_await c_.memory.all(swaps);
    std::erase_if(swaps, [](const Operation& o) { return o.status != Status::kOk || o.prior != o.compare; });
    if (swaps.size() >= majority()) {
      std::uint32_t value = wanted;
      std::uint32_t latest = 0;
      for (const Operation& o : swaps) {
        const Ballot before{o.prior};
        if (before.accepted() <= latest) continue;
        latest = before.accepted();
        value = before.node();
      }
      for (Operation& o : swaps) o = remote::swap_operation(o.remote, o.swap_or_add, Ballot::of(mine, mine, value).raw);
      co_await c_.memory.all(swaps);
      const auto accepted = std::ranges::count_if(
          swaps, [](const Operation& o) { return o.status == Status::kOk && o.prior == o.compare; });
      if (static_cast<std::size_t>(accepted) >= majority()) co_return value;
    }
    co_await c_.back_off(backoff);
  }
  co_return std::nullopt;
}

// -------------------------------------------------------------------------------------------------------- the next view

void Membership::depart(std::uint32_t node) {
  c_.map.leave(node);
  ++c_.view;
  c_.lease = Time();
  begun_ = false;
  decided_ = c_.now();
  ++c_.counters.departures;
}

Task<bool> Membership::announce() {
  std::array<std::uint8_t, 8> done;
  store_le<std::uint64_t>(done.data(), 1);
  std::vector<Operation> writes;
  for (const Node& node : nodes_) {
    if (!node.blank) writes.push_back(remote::write_operation(record(node, c_.view) + 8, done));
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
      if (c_.now() < decided_ + (c_.config.view_lease() + c_.config.flight)) co_return false;
      const bool repaired = co_await repair();
      if (!repaired) co_return false;
    }
    const bool announced = co_await announce();
    if (!announced) co_return false;
  }
  begun_ = true;
  co_return true;
}

Task<bool> Membership::repair() {
  for (std::uint32_t partition = 0; partition < c_.map.partitions(); ++partition) {
    if (!c_.map.promoted(partition) || c_.map.word_replicas(Place::at(partition, 0)) < 2) continue;
    for (std::uint64_t offset = 0; offset < c_.map.word_bytes(); offset += kRepairedAtOnce) {
      const std::size_t length = std::min<std::uint64_t>(kRepairedAtOnce, c_.map.word_bytes() - offset);
      const bool done = co_await repair_part(partition, offset, length);
      if (!done) co_return false;
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
          remote::read_operation(c_.map.at(first, i), MutableBytes(words_).subspan(kRepairedAtOnce * i, length)));
    }
    co_await c_.memory.all(operations);
    if (std::ranges::any_of(operations, [](const Operation& o) { return o.status != Status::kOk; })) co_return false;
    operations.clear();
    for (std::uint64_t at = 0; at < length && operations.size() < kSwapsAtOnce; at += 8) {
      const auto truth = load_le<std::uint64_t>(words_.data() + at);
      for (std::uint32_t i = 1; i < replicas; ++i) {
        const auto other = load_le<std::uint64_t>(words_.data() + kRepairedAtOnce * i + at);
        if (other != truth) operations.push_back(remote::swap_operation(c_.map.at(first + at, i), other, truth));
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

// ------------------------------------------------------------------------------------------------------------- working

Task<bool> Membership::turn() {
  const bool leased = co_await ask_for_lease();
  const Time asked = asked_;
  std::optional<std::uint32_t> leaver;
  std::size_t votes = 0;
  for (const Node& node : nodes_) {
    votes += node.voted;
    if (node.voted && node.ballot.accepted() != 0) leaver = node.ballot.node();
  }
  if (votes < majority()) co_return false;
  if (leased) leaver = missing();
  if (leaver) {
    const auto decided = co_await decide(c_.view, *leaver);
    // Proposed and not decided: no lease is to be had meanwhile.
    if (!decided || *decided >= nodes_.size() || !c_.map.can_leave(*decided)) co_return false;
    depart(*decided);
    co_return true;
  }
  if (!begun_) co_return co_await begin();
  // What has forgotten everything must not be asked for anything: it leaves first.
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].blank && !c_.map.has_left(static_cast<std::uint32_t>(i))) co_return false;
  }
  if (asked == asked_) c_.lease = std::max(c_.lease, asked + c_.config.view_lease());
  hopeless_ = in_need();
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
      const auto pause = static_cast<std::uint64_t>((c_.config.view_lease() / 16).picoseconds());
      const auto drawn = static_cast<std::int64_t>(pause / 2 + c_.rng.below(pause / 2 + 1));
      co_await c_.scheduler.sleep_for(Duration::picoseconds(drawn));
      continue;
    }
    if (view == c_.view && c_.leased()) break;
  }
  if (!c_.leased()) hopeless_ = true;
  working_ = false;
}

}  // namespace sluice::fusee
