// The peer that no one here wrote: an endpoint over libibverbs, run in a guest on Linux Soft-RoCE.
//
//   rxe_peer TCP_PORT

#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "peer.h"

namespace sluice::interop {
namespace {

[[noreturn]] void fail(const std::string& what) { throw PeerError(what + ": " + std::strerror(errno)); }

void check(int result, const std::string& what) {
  if (result != 0) {
    if (result > 0) errno = result;
    fail(what);
  }
}

template <class T>
T* made(T* object, const char* what) {
  if (object == nullptr) fail(what);
  return object;
}

template <auto kDestroy>
struct Destroyer {
  template <class T>
  void operator()(T* object) const {
    kDestroy(object);
  }
};
template <class T, auto kDestroy>
using Owned = std::unique_ptr<T, Destroyer<kDestroy>>;

ibv_mtu mtu_code(std::uint64_t bytes) {
  for (const auto code : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
    if (bytes == std::uint64_t{128} << code) return code;
  }
  throw PeerError("no such MTU");
}

ibv_wr_opcode opcode_of(Op op) {
  switch (op) {
    case Op::kSend: return IBV_WR_SEND;
    case Op::kSendWithImmediate: return IBV_WR_SEND_WITH_IMM;
    case Op::kWrite: return IBV_WR_RDMA_WRITE;
    case Op::kWriteWithImmediate: return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Op::kRead: return IBV_WR_RDMA_READ;
    case Op::kCompareAndSwap: return IBV_WR_ATOMIC_CMP_AND_SWP;
    case Op::kFetchAndAdd: return IBV_WR_ATOMIC_FETCH_AND_ADD;
  }
  throw PeerError("no such operation");
}

class VerbsEndpoint final : public Endpoint {
 public:
  VerbsEndpoint() {
    int count = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    if (devices == nullptr || count == 0) throw PeerError("no RDMA device");
    context_.reset(made(ibv_open_device(devices[0]), "ibv_open_device"));
    ibv_free_device_list(devices);
    domain_.reset(made(ibv_alloc_pd(context_.get()), "ibv_alloc_pd"));
    find_gid();
  }

  std::string open(const Arguments& a) override {
    pair_.reset();
    region_.reset();
    completions_.reset();
    buffer_.assign(a.number("size"), 0);
    const auto depth = static_cast<std::uint32_t>(a.number("depth", 128));
    region_.reset(
        made((ibv_reg_mr)(domain_.get(), buffer_.data(), buffer_.size(), static_cast<int>(a.number("access", 15))),
             "ibv_reg_mr"));
    completions_.reset(
        made(ibv_create_cq(context_.get(), static_cast<int>(2 * depth), nullptr, nullptr, 0), "ibv_create_cq"));
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = completions_.get();
    init.cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    init.qp_type = IBV_QPT_RC;
    init.sq_sig_all = 1;
    pair_.reset(made(ibv_create_qp(domain_.get(), &init), "ibv_create_qp"));
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = static_cast<unsigned>(a.number("pair_access", 15));
    check(ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
          "to INIT");
    psn_ = static_cast<std::uint32_t>(a.number("psn", 0));
    char text[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, &gid_, text, sizeof text);
    return "qpn=" + std::to_string(pair_->qp_num) + " psn=" + std::to_string(psn_) +
           " rkey=" + std::to_string(region_->rkey) +
           " address=" + std::to_string(reinterpret_cast<std::uintptr_t>(buffer_.data())) + " gid=" + text;
  }

  void connect(const Arguments& a) override {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = mtu_code(a.number("mtu"));
    attributes.dest_qp_num = static_cast<std::uint32_t>(a.number("qpn"));
    attributes.rq_psn = static_cast<std::uint32_t>(a.number("psn"));
    attributes.max_dest_rd_atomic = 16;
    attributes.min_rnr_timer = static_cast<std::uint8_t>(a.number("min_rnr", 12));
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.hop_limit = 64;
    attributes.ah_attr.grh.sgid_index = gid_index_;
    if (inet_pton(AF_INET6, a.text("gid").c_str(), &attributes.ah_attr.grh.dgid) != 1) throw PeerError("bad gid");
    check(ibv_modify_qp(pair_.get(), &attributes,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
          "to RTR");
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = psn_;
    attributes.timeout = static_cast<std::uint8_t>(a.number("timeout", 14));
    attributes.retry_cnt = static_cast<std::uint8_t>(a.number("retry", 7));
    attributes.rnr_retry = static_cast<std::uint8_t>(a.number("rnr_retry", 7));
    attributes.max_rd_atomic = 16;
    check(ibv_modify_qp(pair_.get(), &attributes,
                        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_MAX_QP_RD_ATOMIC),
          "to RTS");
  }

  void post(const Work& work) override {
    ibv_sge sge = piece(work.offset, work.length);
    ibv_send_wr request{};
    request.wr_id = work.id;
    request.sg_list = &sge;
    request.num_sge = 1;
    request.opcode = opcode_of(work.op);
    request.imm_data = htobe32(work.immediate);
    if (work.op == Op::kCompareAndSwap || work.op == Op::kFetchAndAdd) {
      request.wr.atomic.remote_addr = work.remote;
      request.wr.atomic.rkey = work.rkey;
      request.wr.atomic.compare_add = work.op == Op::kFetchAndAdd ? work.value : work.compare;
      request.wr.atomic.swap = work.value;
    } else {
      request.wr.rdma.remote_addr = work.remote;
      request.wr.rdma.rkey = work.rkey;
    }
    ibv_send_wr* bad = nullptr;
    check(ibv_post_send(pair_.get(), &request, &bad), "ibv_post_send");
  }

  void post_receive(std::uint64_t id, std::uint64_t offset, std::uint32_t length) override {
    ibv_sge sge = piece(offset, length);
    ibv_recv_wr request{};
    request.wr_id = id;
    request.sg_list = &sge;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    check(ibv_post_recv(pair_.get(), &request, &bad), "ibv_post_recv");
  }

  std::optional<Done> poll() override {
    ibv_wc completion{};
    const int n = ibv_poll_cq(completions_.get(), 1, &completion);
    if (n < 0) fail("ibv_poll_cq");
    if (n == 0) return std::nullopt;
    Done done{.id = completion.wr_id, .status = completion.status};
    if (completion.status == IBV_WC_SUCCESS) {
      done.received = (completion.opcode & IBV_WC_RECV) != 0;
      done.length = completion.byte_len;
      if ((completion.wc_flags & IBV_WC_WITH_IMM) != 0) done.immediate = be32toh(completion.imm_data);
    }
    return done;
  }

  std::span<std::uint8_t> memory() override { return buffer_; }
  int turn() override { return 1000; }

 private:
  ibv_sge piece(std::uint64_t offset, std::uint32_t length) {
    return {.addr = reinterpret_cast<std::uintptr_t>(buffer_.data()) + offset, .length = length, .lkey = region_->lkey};
  }

  // The first GID that is an IPv4 address.
  void find_gid() {
    ibv_port_attr port{};
    check(ibv_query_port(context_.get(), 1, &port), "ibv_query_port");
    for (int i = 0; i < port.gid_tbl_len; ++i) {
      in6_addr address{};
      if (ibv_query_gid(context_.get(), 1, i, &gid_) != 0) continue;
      std::memcpy(&address, gid_.raw, sizeof address);
      if (IN6_IS_ADDR_V4MAPPED(&address)) {
        gid_index_ = static_cast<std::uint8_t>(i);
        return;
      }
    }
    throw PeerError("the device has no IPv4 GID");
  }

  Owned<ibv_context, ibv_close_device> context_;
  Owned<ibv_pd, ibv_dealloc_pd> domain_;
  std::vector<std::uint8_t> buffer_;
  Owned<ibv_mr, ibv_dereg_mr> region_;
  Owned<ibv_cq, ibv_destroy_cq> completions_;
  Owned<ibv_qp, ibv_destroy_qp> pair_;
  ibv_gid gid_{};
  std::uint8_t gid_index_ = 0;
  std::uint32_t psn_ = 0;
};

}  // namespace
}  // namespace sluice::interop

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: rxe_peer TCP_PORT\n");
    return 2;
  }
  try {
    sluice::interop::VerbsEndpoint endpoint;
    return sluice::interop::serve(endpoint, static_cast<std::uint16_t>(std::atoi(argv[1])));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rxe_peer: %s\n", error.what());
    return 1;
  }
}
