// Posting work, as arrays of requests: the shape of programs' hottest calls.
#include <array>
#include <cerrno>
#include <span>

#include "base/bytes.h"
#include "verbs/objects.h"

namespace sluice::verbs {
namespace {

constexpr std::size_t kMaxSges = 32;
constexpr memory::Key kNobodysKey{
    1};  // never given out; key 0 would be the adapter's own, for all memory of the process

int error_of(rc::PostError error) {
  switch (error) {
    case rc::PostError::kNone: return 0;
    case rc::PostError::kQueueFull: return ENOMEM;
    default: return EINVAL;
  }
}

bool translate_operation(const ibv_send_wr& wr, rc::SendRequest& request) {
  switch (wr.opcode) {
    case IBV_WR_SEND: request.op = rc::SendOp::kSend; return true;
    case IBV_WR_SEND_WITH_IMM:
      request.op = rc::SendOp::kSendWithImmediate;
      request.immediate = swap_bytes(wr.imm_data);
      return true;
    case IBV_WR_SEND_WITH_INV:
      request.op = rc::SendOp::kSendWithInvalidate;
      request.invalidate_key = memory::Key(wr.invalidate_rkey);
      return true;
    case IBV_WR_RDMA_WRITE_WITH_IMM: request.immediate = swap_bytes(wr.imm_data); [[fallthrough]];
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_READ:
      request.op = wr.opcode == IBV_WR_RDMA_READ    ? rc::SendOp::kRead
                   : wr.opcode == IBV_WR_RDMA_WRITE ? rc::SendOp::kWrite
                                                    : rc::SendOp::kWriteWithImmediate;
      request.remote_address = wr.wr.rdma.remote_addr;
      request.remote_key = memory::Key(wr.wr.rdma.rkey);
      return true;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      request.op = rc::SendOp::kCompareAndSwap;
      request.compare = wr.wr.atomic.compare_add;
      request.swap_or_add = wr.wr.atomic.swap;
      break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      request.op = rc::SendOp::kFetchAndAdd;
      request.swap_or_add = wr.wr.atomic.compare_add;
      break;
    default: return false;
  }
  request.remote_address = wr.wr.atomic.remote_addr;
  request.remote_key = memory::Key(wr.wr.atomic.rkey);
  return true;
}

// Returns 0 or why not; `into` has the pieces then.
int translate_pieces(const ibv_sge* list, int count, std::array<rc::Sge, kMaxSges>& into) {
  if (count < 0 || static_cast<std::size_t>(count) > kMaxSges) return EINVAL;
  for (int i = 0; i < count; ++i) {
    const memory::Key key = list[i].lkey == 0 ? kNobodysKey : memory::Key(list[i].lkey);
    into[static_cast<std::size_t>(i)] = {list[i].addr, list[i].length, key};
  }
  return 0;
}

// Calls use(adapter, request); returns why not, or what that says.
template <class Use>
[[gnu::always_inline]] inline int with_request(QueuePair& pair, const ibv_send_wr& wr, Use use) {
  rc::SendRequest request;
  std::array<rc::Sge, kMaxSges> pieces;
  if (!translate_operation(wr, request)) return EINVAL;
  if (const int error = translate_pieces(wr.sg_list, wr.num_sge, pieces); error != 0) return error;
  request.id = wr.wr_id;
  request.sges = std::span<const rc::Sge>(pieces).first(static_cast<std::size_t>(wr.num_sge));
  request.flags = {.signaled = (wr.send_flags & IBV_SEND_SIGNALED) != 0,
                   .fence = (wr.send_flags & IBV_SEND_FENCE) != 0,
                   .solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0,
                   .inline_data = (wr.send_flags & IBV_SEND_INLINE) != 0};
  rc::UdDestination destination;
  if (pair.base().qp_type == IBV_QPT_UD) {
    if (wr.wr.ud.ah == nullptr) return EINVAL;
    destination = AddressHandle::of(wr.wr.ud.ah).destination;
    destination.qpn = rc::Qpn(wr.wr.ud.remote_qpn & 0xFFFFFF);
    destination.qkey = wire::QKey(wr.wr.ud.remote_qkey);
    request.destination = &destination;
  }
  return error_of(use(pair.nic().adapter(), request));
}

}  // namespace

int post_one(QueuePair& pair, const ibv_send_wr& wr) {
  return with_request(pair, wr, [&](rc::Adapter& adapter, const rc::SendRequest& request) {
    return adapter.post_send(pair.nic().now(), *pair.pair, request);
  });
}

int check_one(QueuePair& pair, const ibv_send_wr& wr) {
  return with_request(pair, wr, [&](const rc::Adapter& adapter, const rc::SendRequest& request) {
    return adapter.check_send(*pair.pair, request);
  });
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  QueuePair& pair = QueuePair::of(qp);
  ProcessNic& nic = pair.nic();
  const NicLock guard(nic.lock());
  int error = 0;
  for (; wr != nullptr && error == 0; wr = wr->next) {
    error = post_one(pair, *wr);
    if (error != 0) *bad = wr;
  }
  nic.transmit();
  return error;
}

int post_receive(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  QueuePair& pair = QueuePair::of(qp);
  std::array<rc::Sge, kMaxSges> pieces;
  const NicLock guard(pair.nic().lock());
  for (; wr != nullptr; wr = wr->next) {
    int error = translate_pieces(wr->sg_list, wr->num_sge, pieces);
    if (error == 0) {
      const auto used = std::span<const rc::Sge>(pieces).first(static_cast<std::size_t>(wr->num_sge));
      error = error_of(pair.nic().adapter().post_receive(*pair.pair, {.id = wr->wr_id, .sges = used}));
    }
    if (error == 0) continue;
    *bad = wr;
    return error;
  }
  return 0;
}

int post_shared_receive(ibv_srq* handle, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  SharedReceiveQueue& srq = SharedReceiveQueue::of(handle);
  std::array<rc::Sge, kMaxSges> pieces;
  const NicLock guard(srq.nic().lock());
  for (; wr != nullptr; wr = wr->next) {
    int error = translate_pieces(wr->sg_list, wr->num_sge, pieces);
    if (error == 0) {
      const auto used = std::span<const rc::Sge>(pieces).first(static_cast<std::size_t>(wr->num_sge));
      error = error_of(srq.nic().adapter().post_receive(*srq.queue, {.id = wr->wr_id, .sges = used}));
    }
    if (error == 0) continue;
    *bad = wr;
    return error;
  }
  return 0;
}

}  // namespace sluice::verbs
