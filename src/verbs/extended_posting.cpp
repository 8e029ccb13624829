// Posting work by calls (ibv_wr_start … ibv_wr_complete): put together aside, then posted all or none.
#include <cerrno>

#include "verbs/objects.h"

namespace sluice::verbs {
namespace {

std::uint64_t flag_of(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_SEND: return IBV_QP_EX_WITH_SEND;
    case IBV_WR_SEND_WITH_IMM: return IBV_QP_EX_WITH_SEND_WITH_IMM;
    case IBV_WR_SEND_WITH_INV: return IBV_QP_EX_WITH_SEND_WITH_INV;
    case IBV_WR_RDMA_WRITE: return IBV_QP_EX_WITH_RDMA_WRITE;
    case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    case IBV_WR_RDMA_READ: return IBV_QP_EX_WITH_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    default: return 0;
  }
}

// A new request with what the program has set in the handle. An operation that it has not asked for when it made the queue pair is one
// that a NIC in hardware has no function for.
ibv_send_wr& begin(ibv_qp_ex* qp, ibv_wr_opcode opcode) {
  Assembly& assembly = QueuePair::of(qp).assembly;
  if ((QueuePair::of(qp).allowed_operations & flag_of(opcode)) == 0)
    assembly.error = refuse(EINVAL, "ibv_wr_*: this operation is not among send_ops_flags of the queue pair");
  Assembly::Request request;
  request.first_sge = assembly.sges.size();
  request.first_inline = assembly.inlined.size();
  request.wr.wr_id = qp->wr_id;
  request.wr.opcode = opcode;
  request.wr.send_flags = qp->wr_flags & ~static_cast<unsigned>(IBV_SEND_INLINE);  // the setters' to say
  assembly.requests.push_back(request);
  return assembly.requests.back().wr;
}

void one_sided(ibv_qp_ex* qp, ibv_wr_opcode opcode, std::uint32_t rkey, std::uint64_t address) {
  ibv_send_wr& wr = begin(qp, opcode);
  wr.wr.rdma.rkey = rkey;
  wr.wr.rdma.remote_addr = address;
}

void atomic(ibv_qp_ex* qp, ibv_wr_opcode opcode, std::uint32_t rkey, std::uint64_t address, std::uint64_t compare_add,
            std::uint64_t swap) {
  ibv_send_wr& wr = begin(qp, opcode);
  wr.wr.atomic.rkey = rkey;
  wr.wr.atomic.remote_addr = address;
  wr.wr.atomic.compare_add = compare_add;
  wr.wr.atomic.swap = swap;
}

// The request that setters are about; nothing before the first.
Assembly::Request* current(ibv_qp_ex* qp) {
  Assembly& assembly = QueuePair::of(qp).assembly;
  if (!assembly.requests.empty()) return &assembly.requests.back();
  assembly.error = EINVAL;
  return nullptr;
}

void set_pieces(ibv_qp_ex* qp, std::size_t count, const ibv_sge* list) {
  Assembly::Request* const request = current(qp);
  if (request == nullptr) return;
  Assembly& assembly = QueuePair::of(qp).assembly;
  assembly.sges.insert(assembly.sges.end(), list, list + count);
  request->wr.num_sge = static_cast<int>(count);
}

void set_inline(ibv_qp_ex* qp, std::size_t count, const ibv_data_buf* list) {
  Assembly::Request* const request = current(qp);
  if (request == nullptr) return;
  Assembly& assembly = QueuePair::of(qp).assembly;
  std::size_t length = 0;
  for (const ibv_data_buf& piece : std::span(list, count)) {
    const auto* const bytes = static_cast<const std::uint8_t*>(piece.addr);
    assembly.inlined.insert(assembly.inlined.end(), bytes, bytes + piece.length);
    length += piece.length;
  }
  assembly.sges.push_back({.addr = 0, .length = static_cast<std::uint32_t>(length), .lkey = 0});
  request->wr.num_sge = 1;
  request->wr.send_flags |= IBV_SEND_INLINE;
}

// Threads take turns (ibv_wr_post(3), "Concurrency").
void start(ibv_qp_ex* qp) {
  QueuePair& pair = QueuePair::of(qp);
  if (!pair.posting.is_mine()) pair.posting.lock();
  Assembly& assembly = pair.assembly;
  assembly.requests.clear();
  assembly.sges.clear();
  assembly.inlined.clear();
  assembly.error = 0;
}

// REQUIRES: the lock.
int post_assembled(QueuePair& pair) {
  Assembly& assembly = pair.assembly;
  if (pair.pair->send_queue_length() + assembly.requests.size() > pair.init.cap.max_send_wr) return ENOMEM;
  const bool several = assembly.requests.size() > 1;  // one alone is posted or not
  for (Assembly::Request& request : assembly.requests) {
    request.wr.sg_list = assembly.sges.data() + request.first_sge;
    if ((request.wr.send_flags & IBV_SEND_INLINE) != 0)
      request.wr.sg_list->addr = reinterpret_cast<std::uintptr_t>(assembly.inlined.data() + request.first_inline);
    if (const int error = several ? check_one(pair, request.wr) : 0; error != 0) return error;
  }
  for (const Assembly::Request& request : assembly.requests) {
    if (const int error = post_one(pair, request.wr); error != 0) return error;
  }
  return 0;
}

void finish(QueuePair& pair) {
  if (pair.posting.is_mine()) pair.posting.unlock();
}

int complete(ibv_qp_ex* qp) {
  QueuePair& pair = QueuePair::of(qp);
  int error = pair.assembly.error;
  if (error == 0) {
    ProcessNic& nic = pair.nic();
    const NicLock guard(nic.lock());
    error = post_assembled(pair);
    nic.transmit();
  }
  finish(pair);
  return error;
}

}  // namespace

void set_extended_posting(QueuePair& pair) {
  ibv_qp_ex& x = pair.abi;
  x.wr_start = start;
  x.wr_complete = complete;
  x.wr_abort = [](ibv_qp_ex* qp) { finish(QueuePair::of(qp)); };
  x.wr_send = [](ibv_qp_ex* qp) { begin(qp, IBV_WR_SEND); };
  x.wr_send_imm = [](ibv_qp_ex* qp, __be32 immediate) { begin(qp, IBV_WR_SEND_WITH_IMM).imm_data = immediate; };
  x.wr_send_inv = [](ibv_qp_ex* qp, std::uint32_t rkey) { begin(qp, IBV_WR_SEND_WITH_INV).invalidate_rkey = rkey; };
  x.wr_rdma_write = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address) {
    one_sided(qp, IBV_WR_RDMA_WRITE, rkey, address);
  };
  x.wr_rdma_write_imm = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address, __be32 immediate) {
    one_sided(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address);
    QueuePair::of(qp).assembly.requests.back().wr.imm_data = immediate;
  };
  x.wr_rdma_read = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address) {
    one_sided(qp, IBV_WR_RDMA_READ, rkey, address);
  };
  x.wr_atomic_cmp_swp = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address, std::uint64_t compare,
                           std::uint64_t swap) { atomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, address, compare, swap); };
  x.wr_atomic_fetch_add = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address, std::uint64_t add) {
    atomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, address, add, 0);
  };
  x.wr_set_ud_addr = [](ibv_qp_ex* qp, ibv_ah* ah, std::uint32_t qpn, std::uint32_t qkey) {
    if (Assembly::Request* const request = current(qp)) request->wr.wr.ud = {ah, qpn, qkey};
  };
  x.wr_set_sge = [](ibv_qp_ex* qp, std::uint32_t lkey, std::uint64_t address, std::uint32_t length) {
    const ibv_sge piece{.addr = address, .length = length, .lkey = lkey};
    set_pieces(qp, 1, &piece);
  };
  x.wr_set_sge_list = set_pieces;
  x.wr_set_inline_data = [](ibv_qp_ex* qp, void* address, std::size_t length) {
    const ibv_data_buf piece{.addr = address, .length = length};
    set_inline(qp, 1, &piece);
  };
  x.wr_set_inline_data_list = set_inline;
}

}  // namespace sluice::verbs
