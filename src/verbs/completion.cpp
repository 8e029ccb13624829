// Completion queues, both interfaces, and the channels that tell of completions.
#include <fmt/core.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/bytes.h"
#include "verbs/objects.h"

namespace sluice::verbs {
namespace {

constexpr int kMostEntries = 1 << 22;
constexpr std::uint32_t kPollsBeforeYield =
    16;  // empty ones: the program waits, and whom it waits for may need the core

// RoCE has no service levels; as on ConnectX the field says what a datagram's GRH is, without which UCX drops it: bit 3 for RoCE v2,
// 2 for IPv4, 1 for IPv6.
constexpr std::uint8_t kRoceV2OverIpv4 = 8 | 2;
constexpr std::uint8_t kRoceV2OverIpv6 = 8 | 1;

static_assert(static_cast<int>(rc::CompletionStatus::kRemoteAccessError) == IBV_WC_REM_ACCESS_ERR);
static_assert(static_cast<int>(rc::CompletionStatus::kFlushed) == IBV_WC_WR_FLUSH_ERR);
static_assert(static_cast<int>(rc::CompletionStatus::kRnrRetryExceeded) == IBV_WC_RNR_RETRY_EXC_ERR);
static_assert(static_cast<int>(rc::CompletionStatus::kGeneralError) == IBV_WC_GENERAL_ERR);

ibv_wc_opcode opcode_of(rc::CompletionKind kind) {
  switch (kind) {
    case rc::CompletionKind::kSend: return IBV_WC_SEND;
    case rc::CompletionKind::kWrite: return IBV_WC_RDMA_WRITE;
    case rc::CompletionKind::kRead: return IBV_WC_RDMA_READ;
    case rc::CompletionKind::kCompareAndSwap: return IBV_WC_COMP_SWAP;
    case rc::CompletionKind::kFetchAndAdd: return IBV_WC_FETCH_ADD;
    case rc::CompletionKind::kReceive: return IBV_WC_RECV;
    case rc::CompletionKind::kReceiveWithImmediate: return IBV_WC_RECV_RDMA_WITH_IMM;
  }
  return IBV_WC_SEND;
}

void translate(const rc::Completion& c, ibv_wc& wc) {
  wc.wr_id = c.id;
  wc.status = static_cast<ibv_wc_status>(c.status);
  wc.opcode = opcode_of(c.kind);
  wc.vendor_err = 0;
  wc.byte_len = c.length;
  wc.imm_data = 0;
  wc.wc_flags = c.has_grh ? unsigned{IBV_WC_GRH} : 0u;
  if (c.has_immediate) {
    wc.wc_flags |= IBV_WC_WITH_IMM;
    wc.imm_data = swap_bytes(c.immediate);
  } else if (c.has_invalidate) {
    wc.wc_flags |= IBV_WC_WITH_INV;
    wc.invalidated_rkey = c.immediate;
  }
  wc.qp_num = c.qpn.value;
  wc.src_qp = c.source_qpn.value;
  wc.pkey_index = 0;
  wc.slid = 0;
  const std::uint8_t network = c.over_ipv6 ? kRoceV2OverIpv6 : kRoceV2OverIpv4;
  wc.sl = c.has_grh ? network : std::uint8_t{0};
  wc.dlid_path_bits = 0;
}

// REQUIRES: the lock.
int take(CompletionQueue& cq, int most, ibv_wc* out) {
  constexpr std::size_t kAtOnce = 32;
  std::array<rc::Completion, kAtOnce> completions;
  int taken = 0;
  while (taken < most) {
    const auto room = std::min(kAtOnce, static_cast<std::size_t>(most - taken));
    const std::size_t count = cq.queue->poll({completions.data(), room});
    for (std::size_t i = 0; i < count; ++i) translate(completions[i], out[taken++]);
    if (count < room) break;
  }
  return taken;
}

// REQUIRES: the lock. Called from within the machine.
void on_completion(CompletionQueue& cq) {
  if (cq.abi.channel == nullptr) return;
  Channel& channel = Channel::of(cq.abi.channel);
  channel.events.push_back(&cq);
  add_token(channel.abi.fd);
}

int next_completion(ibv_cq_ex* abi) {
  CompletionQueue& cq = CompletionQueue::of(abi);
  const int count = poll_completions(cq.handle(), 1, &cq.current);
  if (count == 0) return ENOENT;
  abi->status = cq.current.status;
  abi->wr_id = cq.current.wr_id;
  return 0;
}

int start_poll(ibv_cq_ex* abi, ibv_poll_cq_attr* attributes) {
  if (attributes->comp_mask != 0) return EINVAL;
  SpinLock& polling = CompletionQueue::of(abi).polling;
  if (!polling.is_mine()) polling.lock();
  const int error = next_completion(abi);
  if (error != 0) polling.unlock();
  return error;
}

void end_poll(ibv_cq_ex* abi) {
  SpinLock& polling = CompletionQueue::of(abi).polling;
  if (polling.is_mine()) polling.unlock();
}

void set_extended_polling(ibv_cq_ex& abi) {
  abi.start_poll = start_poll;
  abi.next_poll = next_completion;
  abi.end_poll = end_poll;
  abi.read_opcode = [](ibv_cq_ex* cq) { return CompletionQueue::of(cq).current.opcode; };
  abi.read_vendor_err = [](ibv_cq_ex* cq) { return CompletionQueue::of(cq).current.vendor_err; };
  abi.read_byte_len = [](ibv_cq_ex* cq) { return CompletionQueue::of(cq).current.byte_len; };
  abi.read_imm_data = [](ibv_cq_ex* cq) { return CompletionQueue::of(cq).current.imm_data; };
  abi.read_qp_num = [](ibv_cq_ex* cq) { return CompletionQueue::of(cq).current.qp_num; };
  abi.read_src_qp = [](ibv_cq_ex* cq) { return CompletionQueue::of(cq).current.src_qp; };
  abi.read_wc_flags = [](ibv_cq_ex* cq) { return static_cast<unsigned>(CompletionQueue::of(cq).current.wc_flags); };
  abi.read_slid = [](ibv_cq_ex*) { return 0u; };
  abi.read_sl = [](ibv_cq_ex* cq) { return CompletionQueue::of(cq).current.sl; };
  abi.read_dlid_path_bits = [](ibv_cq_ex*) { return std::uint8_t{0}; };
}

CompletionQueue* make(ibv_context* context, std::uint32_t entries, void* user, ibv_comp_channel* channel,
                      std::uint32_t vector) {
  if (entries == 0 || entries > kMostEntries || vector >= static_cast<std::uint32_t>(context->num_comp_vectors)) {
    refuse(EINVAL, fmt::format("completion queue: {} entries at vector {}: 1 to {} and vector 0 are possible", entries,
                               vector, kMostEntries));
    return nullptr;
  }
  if (channel != nullptr && channel->context != context) {
    refuse(EINVAL, "a completion queue and its channel are of one context");
    return nullptr;
  }
  auto cq = std::make_unique<CompletionQueue>();
  cq->abi.context = context;
  cq->abi.channel = channel;
  cq->abi.cq_context = user;
  cq->abi.cqe = static_cast<int>(entries);
  pthread_mutex_init(&cq->abi.mutex, nullptr);
  pthread_cond_init(&cq->abi.cond, nullptr);
  set_extended_polling(cq->abi);
  ProcessNic& nic = cq->nic();
  const NicLock guard(nic.lock());
  cq->queue = nic.adapter().create_completion_queue(entries);
  cq->queue->set_event_handler([raw = cq.get()] { on_completion(*raw); });
  if (channel != nullptr) ++channel->refcnt;
  return cq.release();
}

}  // namespace

int poll_completions(ibv_cq* handle, int most, ibv_wc* out) {
  if (most <= 0) return 0;
  CompletionQueue& cq = CompletionQueue::of(handle);
  ProcessNic& nic = cq.nic();
  bool yield = false;
  {
    const NicLock guard(nic.lock());
    int taken = take(cq, most, out);
    if (taken == 0) {
      const std::size_t work = nic.turn();
      taken = take(cq, most, out);
      yield = taken == 0 && work == 0 && ++cq.empty_polls >= kPollsBeforeYield;
    }
    if (taken != 0) {
      cq.empty_polls = 0;
      return taken;
    }
  }
  if (!yield) return 0;
  sched_yield();
  // "Nothing" must not be older than the program's next step: libfabric looks for the end of its connection next, and then takes no more
  // completions.
  const NicLock guard(nic.lock());
  const int taken = take(cq, most, out);
  if (taken != 0) cq.empty_polls = 0;
  return taken;
}

int request_notification(ibv_cq* handle, int solicited_only) {
  CompletionQueue& cq = CompletionQueue::of(handle);
  const NicLock guard(cq.nic().lock());
  using Notify = rc::CompletionQueue::Notify;
  cq.queue->request_notification(solicited_only != 0 ? Notify::kSolicited : Notify::kNext);
  return 0;
}

ibv_cq_ex* create_extended_completion_queue(ibv_context* context, ibv_cq_init_attr_ex* a) {
  constexpr std::uint64_t kCanTell =
      IBV_CREATE_CQ_SUP_WC_FLAGS &
      ~static_cast<std::uint64_t>(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK |
                                  IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_TM_INFO);
  if ((a->wc_flags & ~kCanTell) != 0) {
    refuse(EOPNOTSUPP, fmt::format("completion queue: wc_flags {:#x} are not supported", a->wc_flags & ~kCanTell));
    return nullptr;
  }
  const std::uint32_t flags = (a->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 ? a->flags : 0;
  if ((a->comp_mask & ~std::uint32_t{IBV_CQ_INIT_ATTR_MASK_FLAGS}) != 0 ||
      (flags & ~std::uint32_t{IBV_CREATE_CQ_ATTR_SINGLE_THREADED}) != 0) {
    refuse(EOPNOTSUPP,
           fmt::format("completion queue: comp_mask {:#x} with flags {:#x} is not supported", a->comp_mask, flags));
    return nullptr;
  }
  CompletionQueue* const cq = make(context, a->cqe, a->cq_context, a->channel, a->comp_vector);
  return cq == nullptr ? nullptr : &cq->abi;
}

void await_acknowledged(ProcessNic& nic, const std::uint32_t& given, const std::uint32_t& acknowledged) {
  for (;;) {
    {
      const NicLock guard(nic.lock());
      if (given == acknowledged) return;
    }
    sched_yield();
  }
}

}  // namespace sluice::verbs

using namespace sluice;
using namespace sluice::verbs;

SLUICE_VERB ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* user, ibv_comp_channel* channel,
                                  int vector) {
  CompletionQueue* const cq = make(context, static_cast<std::uint32_t>(std::max(entries, 0)), user, channel,
                                   static_cast<std::uint32_t>(vector));
  return cq == nullptr ? nullptr : cq->handle();
}

SLUICE_VERB int ibv_resize_cq(ibv_cq* handle, int entries) {
  CompletionQueue& cq = CompletionQueue::of(handle);
  if (entries <= 0 || entries > kMostEntries)
    return refuse(EINVAL, fmt::format("completion queue: resized to 1 to {} entries, not {}", kMostEntries, entries));
  const NicLock guard(cq.nic().lock());
  if (!cq.queue->resize(static_cast<std::uint32_t>(entries)))
    return refuse(EINVAL, fmt::format("completion queue: {} completions are in it, which {} entries do not hold",
                                      cq.queue->size(), entries));
  handle->cqe = entries;
  return 0;
}

SLUICE_VERB int ibv_destroy_cq(ibv_cq* handle) {
  CompletionQueue& cq = CompletionQueue::of(handle);
  ProcessNic& nic = cq.nic();
  {
    const NicLock guard(nic.lock());
    if (cq.users != 0) return refuse(EBUSY, "completion queue: queue pairs still use it");
    nic.adapter().destroy(cq.queue);
    if (handle->channel != nullptr) {
      take_tokens(handle->channel->fd, std::erase(Channel::of(handle->channel).events, &cq));
      --handle->channel->refcnt;
    }
    Context::of(handle->context).forget([&](const ibv_async_event& event) {
      return event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == handle;
    });
  }
  await_acknowledged(nic, cq.events_given, cq.events_acknowledged);
  await_acknowledged(nic, cq.async_given, cq.async_acknowledged);
  delete &cq;
  return 0;
}

SLUICE_VERB ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto channel = std::make_unique<Channel>();
  channel->abi = {.context = context, .fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE), .refcnt = 0};
  return channel->abi.fd < 0 ? nullptr : &channel.release()->abi;
}

SLUICE_VERB int ibv_destroy_comp_channel(ibv_comp_channel* handle) {
  {
    const NicLock guard(Context::of(handle->context).nic->lock());
    if (handle->refcnt != 0) return refuse(EBUSY, "completion channel: completion queues still use it");
  }
  close(handle->fd);
  delete &Channel::of(handle);
  return 0;
}

SLUICE_VERB int ibv_get_cq_event(ibv_comp_channel* handle, ibv_cq** cq, void** user) {
  Channel& channel = Channel::of(handle);
  if (is_forked()) return refuse_child();
  for (;;) {
    std::uint64_t one = 0;
    if (read(handle->fd, &one, sizeof one) != static_cast<ssize_t>(sizeof one)) return -1;
    const NicLock guard(Context::of(handle->context).nic->lock());
    if (channel.events.empty()) continue;  // its completion queue has been destroyed
    CompletionQueue& from = *channel.events.front();
    channel.events.pop_front();
    ++from.events_given;
    *cq = from.handle();
    *user = from.abi.cq_context;
    return 0;
  }
}

SLUICE_VERB void ibv_ack_cq_events(ibv_cq* handle, unsigned count) {
  CompletionQueue& cq = CompletionQueue::of(handle);
  const NicLock guard(cq.nic().lock());
  cq.events_acknowledged += count;
}
