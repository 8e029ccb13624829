#include "onerma/remote_onerma.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace sluice::onerma {

using remote::NodeId;
using remote::Operation;

// First in, first out, by the elements' own links.
template <class Element>
struct RemoteOnerma::Line {
  Element* first = nullptr;
  Element* last = nullptr;

  bool empty() const { return first == nullptr; }
  void push(Element& element) {
    element.next = nullptr;
    (first == nullptr ? first : last->next) = &element;
    last = &element;
  }
  Element& pop() { return *std::exchange(first, first->next); }
  // The first that `wanted` says yes to, out of turn, or nullptr.
  template <class Wanted>
  Element* take(Wanted wanted) {
    Element* before = nullptr;
    for (Element* one = first; one != nullptr; before = std::exchange(one, one->next)) {
      if (!wanted(*one)) continue;
      (before == nullptr ? first : before->next) = one->next;
      if (last == one) last = before;
      return one;
    }
    return nullptr;
  }
};

// Reads from a node, or writes to it.
struct RemoteOnerma::Direction {
  PathId path{};
  Line<Transfer> turns;    // with more to issue
  std::uint32_t open = 0;  // pieces before the executor or under way
  bool starved = false;
  Direction* next_starved = nullptr;
};

struct RemoteOnerma::Node {
  Peer peer{};
  Direction read{};
  Direction write{};
  Line<Operation> behind;  // kInOrder: submitted while another is under way
  bool busy = false;       // kInOrder
};

struct RemoteOnerma::Region {
  NodeId node{};
  RegionId id{};
  GrantId grant{};
  RegionKeys keys;
  std::uint64_t replaced = 0;  // grants before this one
  // No key is left to try: what was refused waits, and what has not been issued is not, but for what has waited for long enough,
  // and for one operation at a time, which finds out whether that still holds.
  bool refused = false;
  bool probed = false;  // such a one is under way
  Line<Piece> waiting{};
  Line<Transfer> parked{};
};

struct RemoteOnerma::Transfer {
  Operation* operation = nullptr;
  Node* node = nullptr;
  Region* region = nullptr;
  Transfer* next = nullptr;
  Transfer* older = nullptr;  // while its give_up is to come
  Transfer* younger = nullptr;
  Time give_up;
  bool old = false;              // not, or no more, in that line
  bool succeeded = false;        // some operation of it
  bool expired = false;          // before any of them had
  bool waited = false;           // for a key, in vain; none of it has succeeded since
  std::size_t issued = 0;        // bytes handed to pieces
  std::uint32_t open = 0;        // pieces
  Status failure = Status::kOk;  // the first that was final
  bool touched = false;          // a write of which something has been done, or may have been
  Time key_deadline{};           // while it is parked
};

struct RemoteOnerma::Piece {
  Request request{};
  Transfer* transfer = nullptr;
  RemoteOnerma* owner = nullptr;
  Piece* next = nullptr;
  std::uint64_t replaced = 0;  // its region's, when it was submitted
  Time key_deadline;
};

namespace {

constexpr std::uint32_t kAhead = 2;  // pieces that wait at the executor, so that it need not wait for us

std::uint64_t key_of(NodeId node, RegionId region) { return std::uint64_t{node.value} << 32 | region.value; }

// What a failed transfer says: nothing happened, or nobody knows how much did.
remote::Status status_of(Status failure, bool touched) {
  if (failure == Status::kOk) return remote::Status::kOk;
  if (touched) return remote::Status::kUnknown;
  const bool denied = failure == Status::kBadKey || failure == Status::kBadBounds || failure == Status::kRightMissing;
  return denied ? remote::Status::kAccessDenied : remote::Status::kUnreachable;
}

// Whether memory may have changed: not before the data have left, whatever became of the request.
bool touches(const Completion& completion) {
  const Status s = completion.status;
  return completion.data_left && (s == Status::kOk || s == Status::kTimeout || s == Status::kReplay);
}

}  // namespace

RemoteOnerma::RemoteOnerma(remote::Scheduler& scheduler, Initiator& initiator, const CongestionPolicy& policy,
                           const Parameters& parameters)
    : RemoteMemory(scheduler),
      parameters_(parameters),
      initiator_(initiator),
      executor_(parameters.executor, policy, initiator.slots()),
      transfers_(parameters.transfers),
      pieces_(parameters.pieces),
      waiting_(std::make_unique<Line<Operation>>()) {
  SLUICE_CHECK(parameters.piece != 0 && parameters.piece <= kMaxOp);
  for (Transfer& transfer : transfers_) transfer.next = std::exchange(free_transfers_, &transfer);
  for (Piece& piece : pieces_) {
    piece.owner = this;
    piece.request.context = &piece;
    piece.request.on_complete = on_piece;
    piece.next = std::exchange(free_pieces_, &piece);
  }
}

RemoteOnerma::~RemoteOnerma() = default;

void RemoteOnerma::add_node(NodeId node, const Peer& peer) {
  auto made = std::make_unique<Node>();
  made->peer = peer;
  made->read.path = executor_.add_path();
  made->write.path = executor_.add_path(Executor::Direction::kOutbound);
  nodes_[node.value] = std::move(made);
}

void RemoteOnerma::add_grant(NodeId node, const Grant& grant) {
  const auto found = nodes_.find(node.value);
  SLUICE_CHECK(found != nodes_.end());
  regions_[key_of(node, grant.region)] =
      std::make_unique<Region>(Region{.node = node,
                                      .id = grant.region,
                                      .grant = initiator_.add_grant(found->second->peer, grant),
                                      .keys = RegionKeys(grant)});
  refused_.reserve(regions_.size());
}

void RemoteOnerma::replace_grant(Time now, NodeId node, const Grant& grant) {
  now_ = std::max(now_, now);
  Region* const region = find(node, grant.region);
  SLUICE_CHECK(region != nullptr);
  region->keys.replace(grant);
  use_present(*region);
  release(*region);
}

void RemoteOnerma::use_present(Region& region) {
  initiator_.replace_grant(region.grant, region.keys.present());
  ++region.replaced;
}

void RemoteOnerma::announce_grant(NodeId node, const Grant& grant) {
  Region* const region = find(node, grant.region);
  SLUICE_CHECK(region != nullptr);
  region->keys.announce(grant);
  if (region->refused) release(*region);
}

const Grant& RemoteOnerma::grant(NodeId node, RegionId region) {
  const Region* const found = find(node, region);
  SLUICE_CHECK(found != nullptr);
  return found->keys.present();
}

void RemoteOnerma::rekey(Time now, NodeId node, RegionId region, const Secret& key,
                         std::function<void(Time now, Status status)> done) {
  Region* const found = find(node, region);
  SLUICE_CHECK(found != nullptr && !rekey_done_);
  new_key_ = key;
  rekey_done_ = std::move(done);
  rekey_ = {.op = OpKind::kRekey,
            .grant = found->grant,
            .path = nodes_.find(node.value)->second->write.path,
            .local = new_key_.mutable_bytes(),
            .on_complete =
                [](Time at, Request& request, const Completion& completion) {
                  auto& self = *static_cast<RemoteOnerma*>(request.context);
                  self.new_key_ = Secret();
                  std::exchange(self.rekey_done_, nullptr)(at, completion.status);
                },
            .context = this};
  executor_.submit(now, rekey_);
}

remote::Capabilities RemoteOnerma::capabilities() const {
  return {.atomics = false,
          .ordered = parameters_.order == Order::kInOrder,
          .max_length = std::numeric_limits<std::uint32_t>::max(),
          .name = "onerma"};
}

RemoteOnerma::Region* RemoteOnerma::find(NodeId node, RegionId region) {
  const auto found = regions_.find(key_of(node, region));
  return found == regions_.end() ? nullptr : found->second.get();
}

// ------------------------------------------------------------------------------------------------------- transfers in

remote::Status RemoteOnerma::judge(const Operation& operation) {
  if (operation.kind == remote::OpKind::kCompareAndSwap || operation.kind == remote::OpKind::kFetchAndAdd)
    return remote::Status::kUnsupported;
  if (!nodes_.contains(operation.remote.node.value)) return remote::Status::kNodeUnknown;
  if (operation.local.size() > capabilities().max_length) return remote::Status::kTooLong;
  const Region* const region = find(operation.remote.node, RegionId(operation.remote.key.value));
  return region == nullptr ? remote::Status::kAccessDenied : remote::Status::kOk;
}

void RemoteOnerma::submit(Operation& operation) {
  count(operation);
  if (const remote::Status verdict = judge(operation); verdict != remote::Status::kOk)
    return complete(operation, verdict);
  Node& node = *nodes_.find(operation.remote.node.value)->second;
  if (parameters_.order == Order::kInOrder) {
    if (node.busy) return node.behind.push(operation);
    node.busy = true;
  }
  begin(operation);
}

void RemoteOnerma::begin(Operation& operation) {
  if (free_transfers_ == nullptr) return waiting_->push(operation);
  Transfer& transfer = *std::exchange(free_transfers_, free_transfers_->next);
  transfer = {.operation = &operation,
              .node = nodes_.find(operation.remote.node.value)->second.get(),
              .region = find(operation.remote.node, RegionId(operation.remote.key.value)),
              .give_up = Time::never()};
  grow_old(transfer);
  Direction& direction = direction_of(transfer);
  direction.turns.push(transfer);
  pump(direction);
}

RemoteOnerma::Direction& RemoteOnerma::direction_of(const Transfer& transfer) {
  return transfer.operation->kind == remote::OpKind::kRead ? transfer.node->read : transfer.node->write;
}

// One piece of each transfer that has more, in turn, while the executor would take it.
void RemoteOnerma::pump(Direction& direction) {
  while (!direction.turns.empty() && direction.open < executor_.window(direction.path).operations() + kAhead) {
    if (free_pieces_ == nullptr) {
      if (!std::exchange(direction.starved, true)) direction.next_starved = std::exchange(starved_, &direction);
      return;
    }
    Transfer& transfer = direction.turns.pop();
    if (transfer.failure != Status::kOk) continue;  // ends with its last piece
    if (transfer.region->refused && !transfer.waited && !may_probe(transfer)) {
      park(transfer);
      continue;
    }
    issue(transfer, direction);
    if (transfer.issued != transfer.operation->local.size()) direction.turns.push(transfer);
  }
}

// A refusal may have been forged, and whoever was asked for a key may have missed it: while others come, one at a time tries whether
// the key is still refused, each transfer by its first operation.
bool RemoteOnerma::may_probe(const Transfer& transfer) {
  return transfer.issued == 0 && !std::exchange(transfer.region->probed, true);
}

// It would be refused, too, and take pieces and turns from others meanwhile.
void RemoteOnerma::park(Transfer& transfer) {
  transfer.key_deadline = now_ + parameters_.key_wait;
  transfer.region->parked.push(transfer);
}

void RemoteOnerma::feed_starved() {
  Direction* waiting = std::exchange(starved_, nullptr);
  while (waiting != nullptr) {
    Direction& direction = *std::exchange(waiting, waiting->next_starved);
    direction.starved = false;
    pump(direction);
  }
}

void RemoteOnerma::issue(Transfer& transfer, Direction& direction) {
  Piece& piece = *std::exchange(free_pieces_, free_pieces_->next);
  const Operation& operation = *transfer.operation;
  const std::size_t length = std::min<std::size_t>(operation.local.size() - transfer.issued, parameters_.piece);
  const bool read = operation.kind == remote::OpKind::kRead;
  piece.transfer = &transfer;
  piece.replaced = transfer.region->replaced;
  piece.request.op = read ? OpKind::kRead : OpKind::kWrite;
  piece.request.grant = transfer.region->grant;
  piece.request.path = direction.path;
  piece.request.address = operation.remote.address + transfer.issued;
  piece.request.local = operation.local.subspan(transfer.issued, length);
  transfer.issued += length;
  ++transfer.open;
  ++direction.open;
  executor_.submit(now_, piece.request);
}

void RemoteOnerma::resubmit(Piece& piece) {
  ++counters_.retries;
  piece.replaced = piece.transfer->region->replaced;
  executor_.submit(now_, piece.request);
}

// ---------------------------------------------------------------------------------------------------------- pieces out

void RemoteOnerma::on_piece(Time now, Request& request, const Completion& completion) {
  Piece& piece = *static_cast<Piece*>(request.context);
  piece.owner->now_ = std::max(piece.owner->now_, now);
  piece.owner->ended(piece, completion);
}

void RemoteOnerma::ended(Piece& piece, const Completion& completion) {
  Transfer& transfer = *piece.transfer;
  transfer.touched = transfer.touched || touches(completion);
  if (completion.status == Status::kOk) {
    transfer.succeeded = true;
    if (piece.replaced == transfer.region->replaced) key_works(transfer);
    ++counters_.operations;
    return piece_done(piece, Status::kOk);
  }
  if (transfer.failure == Status::kOk && retry(piece, completion)) return;
  piece_done(piece, completion.status);
}

// False: there is no use in trying again.
bool RemoteOnerma::retry(Piece& piece, const Completion& completion) {
  const Status status = completion.status;
  if (status == Status::kBadBounds || status == Status::kRightMissing || now_ >= piece.transfer->give_up) return false;
  if (touches(completion) && !parameters_.repeat_writes) return false;
  if (status == Status::kBadKey && !another_key(piece)) return wait_for_key(piece);
  resubmit(piece);
  return true;
}

// Whether there is one that has not been refused. Generations do not tell which is newer: a target that restarts begins anew with them.
bool RemoteOnerma::another_key(const Piece& piece) {
  Region& region = *piece.transfer->region;
  if (piece.replaced != region.replaced) return true;
  if (!region.keys.refused()) return false;
  use_present(region);
  return true;
}

// False: it has waited, and been refused again.
bool RemoteOnerma::wait_for_key(Piece& piece) {
  if (piece.transfer->waited) return false;
  Region& region = *piece.transfer->region;
  ++counters_.key_waits;
  if (!std::exchange(region.refused, true)) refused_.push_back(&region);
  region.probed = false;
  piece.key_deadline = now_ + parameters_.key_wait;
  region.waiting.push(piece);
  Direction& direction = direction_of(*piece.transfer);
  --direction.open;
  if (ask_) ask_(now_, region.node, region.id);
  pump(direction);
  return true;
}

// Whatever refused it was not the target, or does no more.
void RemoteOnerma::key_works(Transfer& transfer) {
  transfer.waited = false;
  transfer.region->keys.works();
  if (transfer.region->refused) release(*transfer.region);
}

void RemoteOnerma::release(Region& region) {
  region.refused = region.probed = false;
  std::erase(refused_, &region);
  Line<Piece> waiting = std::exchange(region.waiting, {});
  Line<Transfer> parked = std::exchange(region.parked, {});
  while (!waiting.empty()) rejoin(waiting.pop());
  while (!parked.empty()) unpark(parked.pop());
}

void RemoteOnerma::rejoin(Piece& piece) {
  ++direction_of(*piece.transfer).open;
  resubmit(piece);
}

void RemoteOnerma::unpark(Transfer& transfer) {
  Direction& direction = direction_of(transfer);
  direction.turns.push(transfer);
  pump(direction);
}

void RemoteOnerma::end_key_waits() {
  for (std::size_t i = refused_.size(); i-- != 0;) end_key_waits(*refused_[i]);
}

// What has waited for long enough is tried once more: whoever saw the request may have forged its refusal.
void RemoteOnerma::end_key_waits(Region& region) {
  const auto last_try = [](Transfer& transfer) {
    transfer.waited = true;
    transfer.region->keys.try_anew();
  };
  while (!region.waiting.empty() && region.waiting.first->key_deadline <= now_) {
    Piece& piece = region.waiting.pop();
    last_try(*piece.transfer);
    rejoin(piece);
  }
  while (!region.parked.empty() && region.parked.first->key_deadline <= now_) {
    Transfer& transfer = region.parked.pop();
    last_try(transfer);
    unpark(transfer);
  }
  forget_refusal(region);
}

// Nothing is known of a key for which nobody waits.
void RemoteOnerma::forget_refusal(Region& region) {
  if (!region.refused || !region.waiting.empty() || !region.parked.empty()) return;
  region.refused = region.probed = false;
  std::erase(refused_, &region);
}

void RemoteOnerma::piece_done(Piece& piece, Status status) {
  Transfer& transfer = *piece.transfer;
  Direction& direction = direction_of(transfer);
  transfer.region->probed = false;
  piece.next = std::exchange(free_pieces_, &piece);
  --direction.open;
  if (status != Status::kOk && transfer.failure == Status::kOk) fail(transfer, status);
  const bool failed = transfer.failure != Status::kOk;
  const bool all_issued = transfer.issued == transfer.operation->local.size();
  if (--transfer.open == 0 && (failed || all_issued)) {
    if (!all_issued) leave_turns(transfer);
    finish(transfer);
  }
  pump(direction);
  if (starved_ != nullptr) feed_starved();
}

// What of it has not been issued would only wait for time-outs at a node that may be dead, and keep others there from their turn.
// REQUIRES: the piece that failed is still counted as open, so that the transfer does not end here.
void RemoteOnerma::fail(Transfer& transfer, Status status) {
  transfer.failure = status;
  if (transfer.open == 1) return;
  executor_.withdraw(now_, direction_of(transfer).path, [](const Request& request) {
    return request.on_complete == on_piece &&
           static_cast<const Piece*>(request.context)->transfer->failure != Status::kOk;
  });
  while (Piece* const piece = take_waiting(transfer)) piece_done(*piece, status);
}

// One of its pieces that wait for a key, open again, or nullptr.
RemoteOnerma::Piece* RemoteOnerma::take_waiting(const Transfer& transfer) {
  Piece* const piece = transfer.region->waiting.take([&](const Piece& one) { return one.transfer == &transfer; });
  if (piece == nullptr) return nullptr;
  ++direction_of(transfer).open;
  forget_refusal(*transfer.region);
  return piece;
}

void RemoteOnerma::leave_turns(const Transfer& transfer) {
  const auto is_it = [&](const Transfer& one) { return &one == &transfer; };
  if (direction_of(transfer).turns.take(is_it) != nullptr) return;
  transfer.region->parked.take(is_it);
  forget_refusal(*transfer.region);
}

void RemoteOnerma::finish(Transfer& transfer) {
  Operation& operation = *transfer.operation;
  Node& node = *transfer.node;
  const remote::Status status = status_of(transfer.failure, transfer.touched);
  leave_the_old(transfer);
  transfer.next = std::exchange(free_transfers_, &transfer);
  if (parameters_.order == Order::kInOrder) {
    node.busy = !node.behind.empty();
    if (node.busy) begin(node.behind.pop());
  }
  start_waiting();
  complete(operation, status);
}

void RemoteOnerma::grow_old(Transfer& transfer) {
  transfer.older = youngest_;
  (youngest_ == nullptr ? oldest_ : youngest_->younger) = &transfer;
  youngest_ = &transfer;
}

void RemoteOnerma::leave_the_old(Transfer& transfer) {
  if (std::exchange(transfer.old, true)) return;
  (transfer.older == nullptr ? oldest_ : transfer.older->younger) = transfer.younger;
  (transfer.younger == nullptr ? youngest_ : transfer.younger->older) = transfer.older;
}

// Those that have come since the last poll: between polls nobody says what time it is.
void RemoteOnerma::set_give_ups() {
  for (Transfer* one = youngest_; one != nullptr && one->give_up == Time::never(); one = one->older) {
    one->give_up = now_ + parameters_.give_up;
  }
}

void RemoteOnerma::expire_transfers() {
  while (oldest_ != nullptr && oldest_->give_up <= now_) {
    Transfer& transfer = *oldest_;
    leave_the_old(transfer);
    if (transfer.failure == Status::kOk) expire(transfer);
  }
}

void RemoteOnerma::expire(Transfer& transfer) {
  if (Piece* const refused = take_waiting(transfer)) return piece_done(*refused, Status::kBadKey);
  if (transfer.succeeded) return;
  if (transfer.open == 0) {
    transfer.failure = transfer.region->refused ? Status::kBadKey : Status::kTimeout;
    leave_turns(transfer);
    return finish(transfer);
  }
  // What still waits for its turn, at a path whose window has shrunk, would wait for long.
  transfer.expired = true;
  executor_.withdraw(now_, direction_of(transfer).path, [](const Request& request) {
    return request.on_complete == on_piece && static_cast<const Piece*>(request.context)->transfer->expired;
  });
}

void RemoteOnerma::start_waiting() {
  while (free_transfers_ != nullptr && !waiting_->empty()) begin(waiting_->pop());
}

std::size_t RemoteOnerma::poll(Time now) {
  now_ = now;
  const std::size_t done = executor_.poll(now);
  if (!refused_.empty()) end_key_waits();
  set_give_ups();
  expire_transfers();
  set_give_ups();  // of what callbacks have submitted meanwhile
  return done;
}

Time RemoteOnerma::next_deadline() const {
  Time next = executor_.next_deadline();
  if (youngest_ != nullptr && youngest_->give_up == Time::never()) return now_;
  if (oldest_ != nullptr) next = std::min(next, oldest_->give_up);
  for (const Region* region : refused_) {
    if (!region->waiting.empty()) next = std::min(next, region->waiting.first->key_deadline);
    if (!region->parked.empty()) next = std::min(next, region->parked.first->key_deadline);
  }
  return next;
}

}  // namespace sluice::onerma
