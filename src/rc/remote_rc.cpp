#include "rc/remote_rc.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::rc {
namespace {

using remote::Operation;
using remote::OpKind;
using remote::Status;

constexpr std::size_t kNear = 4096;  // node numbers below are found without hashing
constexpr std::uint32_t kMaxLength = 1u << 30;

// How a failed work request ends its operation.
Status status_of(const Completion& completion) {
  switch (completion.status) {
    case CompletionStatus::kSuccess: return Status::kOk;
    // Of a long WRITE the right may have been taken away when a part of it was there.
    case CompletionStatus::kRemoteAccessError: return completion.begun ? Status::kUnknown : Status::kAccessDenied;
    case CompletionStatus::kRemoteInvalidRequest: return completion.begun ? Status::kUnknown : Status::kUnsupported;
    default: return completion.never_sent ? Status::kUnreachable : Status::kUnknown;
  }
}

SendRequest request_of(Operation& operation, std::span<Sge, 1> sge) {
  SendRequest request{.id = reinterpret_cast<std::uintptr_t>(&operation),
                      .remote_address = operation.remote.address,
                      .remote_key = memory::Key(operation.remote.key.value),
                      .not_after = operation.not_after};
  switch (operation.kind) {
    case OpKind::kRead: request.op = SendOp::kRead; break;
    case OpKind::kWrite: request.op = SendOp::kWrite; break;
    case OpKind::kCompareAndSwap:
      request.op = SendOp::kCompareAndSwap;
      request.compare = operation.compare;
      request.swap_or_add = operation.swap_or_add;
      break;
    case OpKind::kFetchAndAdd:
      request.op = SendOp::kFetchAndAdd;
      request.swap_or_add = operation.swap_or_add;
      break;
  }
  sge[0] = operation.is_atomic()
               ? Sge{.address = reinterpret_cast<std::uintptr_t>(&operation.prior), .length = sizeof operation.prior}
               : Sge::of(operation.local);
  request.sges = sge;
  return request;
}

// What can be refused without asking anybody.
Status judge(const Operation& operation) {
  if (operation.is_atomic()) return operation.remote.address % 8 != 0 ? Status::kMisaligned : Status::kOk;
  return operation.local.size() > kMaxLength ? Status::kTooLong : Status::kOk;
}

}  // namespace

void RemoteRc::Line::push(Operation& operation) {
  operation.next = nullptr;
  if (last != nullptr) {
    last->next = &operation;
  } else {
    first = &operation;
  }
  last = &operation;
}

Operation& RemoteRc::Line::pop() {
  Operation& operation = *first;
  first = operation.next;
  if (first == nullptr) last = nullptr;
  return operation;
}

RemoteRc::RemoteRc(remote::Scheduler& scheduler, Adapter& adapter, CompletionQueue& completions, Duration leaves_within)
    : RemoteMemory(scheduler),
      adapter_(adapter),
      completions_(completions),
      near_(kNear),
      leaves_within_(leaves_within) {}

RemoteRc::~RemoteRc() = default;

void RemoteRc::add_node(remote::NodeId node, QueuePair& pair) {
  remove_node(node);
  SLUICE_CHECK(pair.config().send_completions == &completions_);
  lost_.erase(node.value);
  auto made = std::make_unique<Node>();
  made->pair = &pair;
  made->depth = pair.config().send_depth;
  total_depth_ += made->depth;
  SLUICE_CHECK(total_depth_ <= completions_.depth());
  by_qpn_[pair.qpn().value] = made.get();
  last_node_ = nullptr;
  if (node.value < kNear) near_[node.value] = made.get();
  nodes_[node.value] = std::move(made);
}

void RemoteRc::remove_node(remote::NodeId node) {
  const auto found = nodes_.find(node.value);
  if (found == nodes_.end()) return;
  const std::unique_ptr<Node> gone = std::move(found->second);
  nodes_.erase(found);
  lost_.insert(node.value);
  if (node.value < kNear) near_[node.value] = nullptr;
  total_depth_ -= gone->depth;
  Line waiting = std::exchange(gone->waiting, {});
  poll(now_);  // what has been answered, and what is known never to have left
  // The queue pair may be gone already: find it by what we know of it.
  std::erase_if(by_qpn_, [&](const auto& entry) { return entry.second == gone.get(); });
  last_node_ = nullptr;
  fail_all(gone->posted, Status::kUnknown);
  fail_all(waiting, Status::kUnreachable);
}

bool RemoteRc::connected(remote::NodeId node) const {
  const Node* found = find(node);
  return found != nullptr && !found->failed && found->pair->state() == QpState::kReadyToSend;
}

remote::Capabilities RemoteRc::capabilities() const {
  return {.atomics = true, .ordered = true, .max_length = kMaxLength, .name = "rc"};
}

RemoteRc::Node* RemoteRc::find(remote::NodeId node) const {
  if (node.value < kNear) return near_[node.value];
  const auto found = nodes_.find(node.value);
  return found == nodes_.end() ? nullptr : found->second.get();
}

RemoteRc::Node* RemoteRc::find(Qpn qpn) {
  if (last_node_ != nullptr && qpn == last_qpn_) return last_node_;
  const auto found = by_qpn_.find(qpn.value);
  last_qpn_ = qpn;
  last_node_ = found == by_qpn_.end() ? nullptr : found->second;
  return last_node_;
}

void RemoteRc::submit(Operation& operation) {
  count(operation);
  Node* node = find(operation.remote.node);
  if (node == nullptr) {
    const bool was_here = lost_.contains(operation.remote.node.value);
    return complete(operation, was_here ? Status::kUnreachable : Status::kNodeUnknown);
  }
  if (const Status verdict = judge(operation); verdict != Status::kOk) return complete(operation, verdict);
  if (node->failed) return complete(operation, Status::kUnreachable);
  if (operation.kind == OpKind::kRead) {
    operation.not_after = Time::never();
  } else if (leaves_within_ > Duration()) {
    operation.not_after = std::min(operation.not_after, now_ + leaves_within_);
  }
  if (node->in_flight == node->depth || !node->waiting.empty()) return node->waiting.push(operation);
  if (!post(*node, operation)) complete(operation, Status::kUnreachable);
}

// False when the queue pair takes no more work at all; the node is then lost.
bool RemoteRc::post(Node& node, Operation& operation) {
  std::array<Sge, 1> sge;
  if (adapter_.post_send(now_, *node.pair, request_of(operation, sge)) != PostError::kNone) {
    node.failed = true;
    return false;
  }
  ++node.in_flight;
  node.posted.push(operation);
  return true;
}

std::size_t RemoteRc::poll(Time now) {
  now_ = now;
  for (std::size_t total = 0;; ++total) {
    if (next_ == taken_) {
      next_ = 0;
      taken_ = completions_.poll(burst_);
      if (taken_ == 0) return total;
    }
    on_completion(burst_[next_++]);
  }
}

void RemoteRc::on_completion(const Completion& completion) {
  Node* node = find(completion.qpn);
  if (node == nullptr || node->posted.empty())
    return;  // of a pair that has been taken away; or a receive, which we never post
  if (reinterpret_cast<std::uintptr_t>(node->posted.first) != completion.id) return;
  Operation& operation = node->posted.pop();
  --node->in_flight;
  const Status status = status_of(completion);
  if (status != Status::kOk) {
    node->failed = true;
    Line lost = std::exchange(node->waiting, {});
    complete(operation, status);
    fail_all(lost, Status::kUnreachable);
    return;
  }
  if (!node->waiting.empty()) post_waiting(*node);
  complete(operation, status);
}

void RemoteRc::post_waiting(Node& node) {
  while (!node.waiting.empty() && node.in_flight < node.depth) {
    Operation& operation = node.waiting.pop();
    const bool expired = now_ >= operation.not_after;
    if (!expired && post(node, operation)) continue;
    // What stands behind it must not pass it: its owner may submit it again.
    Line lost = std::exchange(node.waiting, {});
    complete(operation, Status::kUnreachable);
    return fail_all(lost, Status::kUnreachable);
  }
}

void RemoteRc::fail_all(Line& line, Status status) {
  while (!line.empty()) complete(line.pop(), status);
}

}  // namespace sluice::rc
