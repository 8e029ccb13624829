// Async events: what happens to queues besides completions.
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "verbs/objects.h"

namespace sluice::verbs {
namespace {

struct Acknowledgement {
  std::uint32_t* given;
  std::uint32_t* acknowledged;
};

// The counters of the object that an event is about; none for events of the port or the device.
Acknowledgement counters_of(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR: {
      CompletionQueue& cq = CompletionQueue::of(event.element.cq);
      return {&cq.async_given, &cq.async_acknowledged};
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      QueuePair& pair = QueuePair::of(event.element.qp);
      return {&pair.async_given, &pair.async_acknowledged};
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      SharedReceiveQueue& srq = SharedReceiveQueue::of(event.element.srq);
      return {&srq.async_given, &srq.async_acknowledged};
    }
    default: return {nullptr, nullptr};
  }
}

ibv_event_type type_of(rc::AsyncEvent::Kind kind) {
  switch (kind) {
    case rc::AsyncEvent::Kind::kCommunicationEstablished: return IBV_EVENT_COMM_EST;
    case rc::AsyncEvent::Kind::kSendQueueDrained: return IBV_EVENT_SQ_DRAINED;
    case rc::AsyncEvent::Kind::kLastReceiveReached: return IBV_EVENT_QP_LAST_WQE_REACHED;
    case rc::AsyncEvent::Kind::kFatal: return IBV_EVENT_QP_FATAL;
    case rc::AsyncEvent::Kind::kAccessError: return IBV_EVENT_QP_ACCESS_ERR;
    case rc::AsyncEvent::Kind::kInvalidRequest: return IBV_EVENT_QP_REQ_ERR;
    case rc::AsyncEvent::Kind::kCompletionQueueOverrun: return IBV_EVENT_CQ_ERR;
  }
  return IBV_EVENT_QP_FATAL;
}

}  // namespace

void add_token(int descriptor) {
  if (is_forked()) return;
  const std::uint64_t one = 1;
  syscall(SYS_write, descriptor, &one, sizeof one);  // nobody is cancelled here, as write() would permit
}

// Without blocking, whatever the descriptor's flags say: a thread that has a token already and waits for the lock finds no event then,
// and reads on. Kernels before 5.8 cannot, and leave one token too many, which wakes a sleeper for nothing.
void take_tokens(int descriptor, std::size_t count) {
  if (is_forked()) return;
  std::uint64_t token = 0;
  const iovec into{&token, sizeof token};
  constexpr long kNowhere = -1;  // the offset, in two halves
  for (; count != 0; --count) syscall(SYS_preadv2, descriptor, &into, 1L, kNowhere, kNowhere, RWF_NOWAIT);
}

int refuse_child() {
  refuse(ENODEV, "events are the parent's, where the device was opened: a child of a fork has none");
  return -1;
}

void Context::tell(const ibv_async_event& event) {
  events.push_back(event);
  add_token(abi.context.async_fd);
}

void on_async_event(const rc::AsyncEvent& told) {
  auto* const pair = static_cast<QueuePair*>(told.pair->user);
  if (pair == nullptr) return;  // being made or destroyed
  ibv_qp& base = pair->base();
  ibv_async_event event{};
  event.event_type = type_of(told.kind);
  if (told.kind == rc::AsyncEvent::Kind::kCommunicationEstablished) {
    // Real NICs tell only of what comes before the move to RTS.
    if (told.pair->state() != rc::QpState::kReadyToReceive) return;
  }
  const bool drained = told.kind == rc::AsyncEvent::Kind::kSendQueueDrained;
  if (drained && pair->attributes.en_sqd_async_notify == 0) return;
  if (told.kind == rc::AsyncEvent::Kind::kCompletionQueueOverrun) {
    const bool of_sends = CompletionQueue::of(base.send_cq).queue == told.completions;
    event.element.cq = of_sends ? base.send_cq : base.recv_cq;
  } else {
    event.element.qp = &base;
  }
  Context::of(base.context).tell(event);
}

}  // namespace sluice::verbs

using namespace sluice::verbs;

SLUICE_VERB int ibv_get_async_event(ibv_context* handle, ibv_async_event* event) {
  Context& context = Context::of(handle);
  if (is_forked()) return refuse_child();
  for (;;) {
    std::uint64_t one = 0;
    if (read(handle->async_fd, &one, sizeof one) != static_cast<ssize_t>(sizeof one)) return -1;
    const NicLock guard(context.nic->lock());
    if (context.events.empty()) continue;  // what it was about has been destroyed
    *event = context.events.front();
    context.events.pop_front();
    if (const auto counters = counters_of(*event); counters.given != nullptr) ++*counters.given;
    return 0;
  }
}

SLUICE_VERB void ibv_ack_async_event(ibv_async_event* event) {
  const Acknowledgement counters = counters_of(*event);
  if (counters.given == nullptr) return;
  ProcessNic* nic = nullptr;
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR: nic = &CompletionQueue::of(event->element.cq).nic(); break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: nic = &SharedReceiveQueue::of(event->element.srq).nic(); break;
    default: nic = &QueuePair::of(event->element.qp).nic(); break;
  }
  const NicLock guard(nic->lock());
  ++*counters.acknowledged;
}
