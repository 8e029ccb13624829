// Shared receive queues.
#include <fmt/core.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>

#include "verbs/objects.h"

namespace sluice::verbs {
namespace {

// REQUIRES: the lock. Called from within the machine.
void on_limit(SharedReceiveQueue& srq) {
  ibv_async_event event{};
  event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
  event.element.srq = &srq.abi;
  Context::of(srq.abi.context).tell(event);
}

}  // namespace

ibv_srq* create_extended_shared_receive_queue(ibv_context*, ibv_srq_init_attr_ex* a) {
  const bool basic = (a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) == 0 || a->srq_type == IBV_SRQT_BASIC;
  if (!basic || (a->comp_mask & ~static_cast<std::uint32_t>(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD)) != 0) {
    refuse(EOPNOTSUPP, "shared receive queue: only the basic type is supported");
    return nullptr;
  }
  refuse(EINVAL, "a shared receive queue needs a protection domain");
  return nullptr;
}

}  // namespace sluice::verbs

using namespace sluice::verbs;

SLUICE_VERB ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* a) {
  Domain& domain = Domain::of(pd);
  const auto& limits = domain.nic().adapter().config().limits;
  if (a->attr.max_wr == 0 || a->attr.max_wr > limits.max_receive_depth || a->attr.max_sge > limits.max_sges) {
    refuse(EINVAL, fmt::format("shared receive queue: 1 to {} requests of at most {} pieces", limits.max_receive_depth,
                               limits.max_sges));
    return nullptr;
  }
  auto srq = std::make_unique<SharedReceiveQueue>();
  srq->abi.context = pd->context;
  srq->abi.srq_context = a->srq_context;
  srq->abi.pd = pd;
  pthread_mutex_init(&srq->abi.mutex, nullptr);
  pthread_cond_init(&srq->abi.cond, nullptr);
  srq->max_wr = a->attr.max_wr;
  srq->max_sge = a->attr.max_sge = std::max(a->attr.max_sge, 1u);
  const NicLock guard(domain.nic().lock());
  srq->queue = domain.nic().adapter().create_shared_receive_queue(domain.id, srq->max_wr, srq->max_sge);
  srq->queue->on_limit = [raw = srq.get()] { on_limit(*raw); };
  ++domain.users;
  return &srq.release()->abi;
}

SLUICE_VERB int ibv_modify_srq(ibv_srq* handle, ibv_srq_attr* attributes, int mask) {
  SharedReceiveQueue& srq = SharedReceiveQueue::of(handle);
  if ((mask & ~IBV_SRQ_LIMIT) != 0) return refuse(EOPNOTSUPP, "a shared receive queue cannot be resized");
  if ((mask & IBV_SRQ_LIMIT) == 0) return 0;
  if (attributes->srq_limit > srq.max_wr) return refuse(EINVAL, "shared receive queue: limit beyond its depth");
  const NicLock guard(srq.nic().lock());
  srq.queue->limit = attributes->srq_limit;
  return 0;
}

SLUICE_VERB int ibv_query_srq(ibv_srq* handle, ibv_srq_attr* attributes) {
  SharedReceiveQueue& srq = SharedReceiveQueue::of(handle);
  const NicLock guard(srq.nic().lock());
  *attributes = {.max_wr = srq.max_wr, .max_sge = srq.max_sge, .srq_limit = srq.queue->limit};
  return 0;
}

SLUICE_VERB int ibv_destroy_srq(ibv_srq* handle) {
  SharedReceiveQueue& srq = SharedReceiveQueue::of(handle);
  ProcessNic& nic = srq.nic();
  {
    const NicLock guard(nic.lock());
    if (srq.users != 0) return refuse(EBUSY, "shared receive queue: queue pairs still use it");
    nic.adapter().destroy(srq.queue);
    --Domain::of(handle->pd).users;
    Context::of(handle->context).forget([&](const ibv_async_event& event) {
      return event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == handle;
    });
  }
  await_acknowledged(nic, srq.async_given, srq.async_acknowledged);
  delete &srq;
  return 0;
}
