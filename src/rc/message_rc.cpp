#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <span>

#include "base/check.h"
#include "rc/remote_rc.h"

namespace sluice::rc {
namespace {

using remote::Call;
using remote::kMaxMessage;
using remote::Status;

constexpr std::size_t kPollBurst = 32;

// One buffer for each slot.
class Buffers {
 public:
  explicit Buffers(std::uint32_t slots)
      : bytes_(new std::uint8_t[slots * kMaxMessage]) {}  // untouched, so unpaid, until used
  MutableBytes operator[](std::uint64_t slot) { return {&bytes_[slot * kMaxMessage], kMaxMessage}; }

 private:
  std::unique_ptr<std::uint8_t[]> bytes_;
};

bool post_buffer(Adapter& adapter, QueuePair& pair, std::uint64_t slot, MutableBytes buffer) {
  const Sge sge = Sge::of(buffer);
  return adapter.post_receive(pair, {.id = slot, .sges = {&sge, 1}}) == PostError::kNone;
}

bool post_message(Adapter& adapter, Time now, QueuePair& pair, std::uint64_t slot, ByteView message) {
  const Sge sge = Sge::of(message);
  return adapter.post_send(now, pair, {.id = slot, .op = SendOp::kSend, .sges = {&sge, 1}}) == PostError::kNone;
}

template <class F>
std::size_t for_each_completion(CompletionQueue& completions, F&& f) {
  std::array<Completion, kPollBurst> burst;
  std::size_t total = 0;
  for (;;) {
    const std::size_t n = completions.poll(burst);
    for (std::size_t i = 0; i < n; ++i) f(burst[i]);
    total += n;
    if (n < burst.size()) return total;
  }
}

}  // namespace

// --- client ---

struct MessageClientRc::State {
  State(Adapter& a, QueuePair& p, CompletionQueue& c, std::uint32_t buffers)
      : adapter(a), pair(p), completions(c), depth(buffers), requests(buffers), answers(buffers) {
    for (std::uint32_t slot = 0; slot < depth; ++slot) {
      free_slots.push_back(slot);
      failed = !post_buffer(adapter, pair, slot, answers[slot]) || failed;
    }
  }

  void submit(Call& call);
  bool send(Call& call);
  void on_completion(const Completion& completion);
  void on_answer(const Completion& completion);
  void go_on();
  void fail();
  static void complete(Call& call, Status status, std::size_t length = 0) {
    call.result = {.status = status, .length = length};
    call.on_complete(call);
  }

  Adapter& adapter;
  QueuePair& pair;
  CompletionQueue& completions;
  std::uint32_t depth;
  Buffers requests;  // copies: a request may have to be sent again after its answer has come
  Buffers answers;
  std::vector<std::uint32_t> free_slots;
  std::deque<Call*> outstanding;  // sent, in order; answers come in this order too
  std::deque<Call*> waiting;
  Time now;
  bool failed = false;
};

MessageClientRc::MessageClientRc(remote::Scheduler& scheduler, Adapter& adapter, QueuePair& pair,
                                 CompletionQueue& completions, std::uint32_t depth)
    : MessageChannel(scheduler), state_(std::make_unique<State>(adapter, pair, completions, depth)) {}
MessageClientRc::~MessageClientRc() = default;

bool MessageClientRc::failed() const { return state_->failed; }

void MessageClientRc::submit(Call& call) { state_->submit(call); }

std::size_t MessageClientRc::poll(Time now) {
  state_->now = now;
  return for_each_completion(state_->completions, [&](const Completion& c) { state_->on_completion(c); });
}

void MessageClientRc::State::submit(Call& call) {
  if (call.request.size() > kMaxMessage) return complete(call, Status::kTooLong);
  if (failed) return complete(call, Status::kUnreachable);
  waiting.push_back(&call);
  go_on();
}

void MessageClientRc::State::go_on() {
  // Each call has a buffer for its answer: no more are outstanding than that.
  while (!failed && !waiting.empty() && !free_slots.empty() && outstanding.size() < depth) {
    Call& call = *waiting.front();
    if (!send(call)) return fail();
    waiting.pop_front();
    outstanding.push_back(&call);
  }
}

bool MessageClientRc::State::send(Call& call) {
  const std::uint32_t slot = free_slots.back();
  const MutableBytes copy = requests[slot].first(call.request.size());
  std::ranges::copy(call.request, copy.begin());
  if (!post_message(adapter, now, pair, slot, copy)) return false;
  free_slots.pop_back();
  return true;
}

void MessageClientRc::State::on_completion(const Completion& completion) {
  if (failed) return;
  if (completion.status != CompletionStatus::kSuccess) return fail();
  switch (completion.kind) {
    case CompletionKind::kReceive: return on_answer(completion);
    case CompletionKind::kSend: free_slots.push_back(static_cast<std::uint32_t>(completion.id)); return go_on();
    default: return fail();  // a WRITE that notifies: not the protocol that we speak
  }
}

void MessageClientRc::State::on_answer(const Completion& completion) {
  if (outstanding.empty()) return fail();  // nobody asked: not the protocol that we speak
  Call& call = *outstanding.front();
  outstanding.pop_front();
  const ByteView answer = answers[completion.id].first(completion.length);
  const bool fits = answer.size() <= call.response.size();
  if (fits) std::ranges::copy(answer, call.response.begin());
  failed = !post_buffer(adapter, pair, completion.id, answers[completion.id]);
  complete(call, fits ? Status::kOk : Status::kTooLong, fits ? answer.size() : 0);
  if (failed) return fail();
  go_on();
}

void MessageClientRc::State::fail() {
  failed = true;
  const auto sent = std::exchange(outstanding, {});
  const auto unsent = std::exchange(waiting, {});
  for (Call* call : sent) complete(*call, Status::kUnknown);
  for (Call* call : unsent) complete(*call, Status::kUnreachable);
}

// --- server ---

struct MessageServerRc::State {
  struct Peer {
    Peer(QueuePair& p, std::uint32_t depth) : pair(&p), requests(depth), answers(depth) {
      for (std::uint32_t slot = 0; slot < depth; ++slot) free_answers.push_back(slot);
    }
    QueuePair* pair;
    Buffers requests;
    Buffers answers;
    std::vector<std::uint32_t> free_answers;
    // Requests that wait for an answer's acknowledgement, so for a buffer: only after a loss.
    struct Request {
      std::uint64_t slot;
      std::uint32_t length;
    };
    std::deque<Request> waiting;
  };

  void on_completion(const Completion& completion);
  void serve(Peer& peer);

  Adapter& adapter;
  remote::MessageService& service;
  CompletionQueue& completions;
  std::uint32_t depth;
  std::map<Qpn, Peer> peers;
  Time now;
};

MessageServerRc::MessageServerRc(Adapter& adapter, remote::MessageService& service, CompletionQueue& completions,
                                 std::uint32_t depth)
    : state_(new State{adapter, service, completions, depth, {}, {}}) {}
MessageServerRc::~MessageServerRc() = default;

void MessageServerRc::add(QueuePair& pair) {
  State& s = *state_;
  const auto [at, fresh] = s.peers.try_emplace(pair.qpn(), pair, s.depth);
  SLUICE_CHECK(fresh);
  for (std::uint32_t slot = 0; slot < s.depth; ++slot) {
    // Refused only by a queue pair that is no good any more; its peer notices.
    if (!post_buffer(s.adapter, pair, slot, at->second.requests[slot])) return;
  }
}

void MessageServerRc::remove(QueuePair& pair) { state_->peers.erase(pair.qpn()); }

std::size_t MessageServerRc::poll(Time now) {
  state_->now = now;
  return for_each_completion(state_->completions, [&](const Completion& c) { state_->on_completion(c); });
}

void MessageServerRc::State::on_completion(const Completion& completion) {
  const auto found = peers.find(completion.qpn);
  if (found == peers.end() || completion.status != CompletionStatus::kSuccess)
    return;  // a lost peer is its owner's to remove
  Peer& peer = found->second;
  switch (completion.kind) {
    case CompletionKind::kReceive: peer.waiting.push_back({completion.id, completion.length}); break;
    case CompletionKind::kSend: peer.free_answers.push_back(static_cast<std::uint32_t>(completion.id)); break;
    default: return;  // a WRITE that notifies: not the protocol that we speak, and the buffer that it took is gone
  }
  serve(peer);
}

void MessageServerRc::State::serve(Peer& peer) {
  while (!peer.waiting.empty() && !peer.free_answers.empty()) {
    const auto [slot, request_length] = peer.waiting.front();
    peer.waiting.pop_front();
    const std::uint32_t to = peer.free_answers.back();
    peer.free_answers.pop_back();
    const std::size_t length = service.handle(now, peer.requests[slot].first(request_length), peer.answers[to]);
    SLUICE_CHECK(length <= kMaxMessage);
    // The buffer is there again before the answer invites the next request: the peer never finds us not ready.
    if (!post_buffer(adapter, *peer.pair, slot, peer.requests[slot])) return;
    if (!post_message(adapter, now, *peer.pair, to, peer.answers[to].first(length))) return;
  }
}

}  // namespace sluice::rc
