// For tests: a program's view of two connected queue pairs of one NIC, over its loopback.
//
// Threads:  as real verbs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <vector>

#include "verbs/abi.h"

namespace sluice::verbs::test {

constexpr int kAllAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr std::uint8_t kGidIndex = 1;

inline ibv_context* open_device() {
  static const bool set = setenv("SLUICE_PORT", "loopback", 1) == 0 && setenv("SLUICE_IP", "10.77.0.9", 1) == 0 &&
                          setenv("SLUICE_IP6", "fd00::9", 1) == 0;  // once: tests have threads
  EXPECT_TRUE(set);
  ibv_device** list = ibv_get_device_list(nullptr);
  ibv_context* const context = list == nullptr || list[0] == nullptr ? nullptr : ibv_open_device(list[0]);
  ibv_free_device_list(list);
  return context;
}

struct PairOptions {
  ibv_qp_type type = IBV_QPT_RC;
  std::uint32_t depth = 64;
  int completions = 256;
  std::uint32_t sges = 16;
  std::uint32_t inline_bytes = 128;
  std::uint8_t timeout = 14;
  std::uint8_t retries = 7;
  std::uint8_t rnr_retries = 7;
  std::uint64_t extended_operations = 0;
  bool shared_receives = false;  // both take their receives from one queue
};

class LoopbackPair {
 public:
  explicit LoopbackPair(PairOptions asked = {}) : options(asked), memory(1 << 16) {
    context = open_device();
    pd = ibv_alloc_pd(context);
    mr = ibv_reg_mr(pd, memory.data(), memory.size(), kAllAccess);
    channel = ibv_create_comp_channel(context);
    if (options.shared_receives) {
      ibv_srq_init_attr a{.srq_context = nullptr, .attr = {.max_wr = options.depth, .max_sge = 1, .srq_limit = 0}};
      srq = ibv_create_srq(pd, &a);
    }
    for (int side = 0; side < 2; ++side) {
      cq[side] = ibv_create_cq(context, options.completions, nullptr, channel, 0);
      qp[side] = make_pair(side);
    }
  }
  ~LoopbackPair() {
    for (ibv_qp* pair : qp) EXPECT_EQ(ibv_destroy_qp(pair), 0);
    if (srq != nullptr) {
      EXPECT_EQ(ibv_destroy_srq(srq), 0);
    }
    for (ibv_cq* queue : cq) EXPECT_EQ(ibv_destroy_cq(queue), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    EXPECT_EQ(ibv_close_device(context), 0);
  }
  LoopbackPair(const LoopbackPair&) = delete;
  LoopbackPair& operator=(const LoopbackPair&) = delete;

  void connect() {
    for (int side = 0; side < 2; ++side) connect(side, qp[1 - side]->qp_num);
  }
  void connect(int side, std::uint32_t peer) {
    ASSERT_EQ(to_init(side), 0);
    ASSERT_EQ(to_receive(side, peer), 0);
    ASSERT_EQ(to_send(side), 0);
  }
  int to_init(int side) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = kAllAccess;
    a.qkey = 0x1234;
    const int rights = options.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    return ibv_modify_qp(qp[side], &a, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | rights);
  }
  int to_receive(int side, std::uint32_t peer) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTR;
    if (options.type == IBV_QPT_UD) return ibv_modify_qp(qp[side], &a, IBV_QP_STATE);
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = peer;
    a.rq_psn = 100;
    a.max_dest_rd_atomic = 16;
    a.min_rnr_timer = 1;
    a.ah_attr = path();
    const int reliable = options.type == IBV_QPT_RC ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0;
    return ibv_modify_qp(qp[side], &a,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | reliable);
  }
  int to_send(int side) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTS;
    a.sq_psn = 100;
    a.timeout = options.timeout;
    a.retry_cnt = options.retries;
    a.rnr_retry = options.rnr_retries;
    a.max_rd_atomic = 16;
    const int reliable =
        options.type == IBV_QPT_RC ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0;
    return ibv_modify_qp(qp[side], &a, IBV_QP_STATE | IBV_QP_SQ_PSN | reliable);
  }
  ibv_ah_attr path() const {
    ibv_ah_attr a{};
    a.is_global = 1;
    a.port_num = 1;
    a.grh.sgid_index = kGidIndex;
    ibv_query_gid(context, 1, kGidIndex, &a.grh.dgid);
    return a;
  }

  ibv_sge piece(std::size_t offset, std::uint32_t length) const {
    return {.addr = address(offset), .length = length, .lkey = mr->lkey};
  }
  std::uint64_t address(std::size_t offset) const { return reinterpret_cast<std::uintptr_t>(memory.data()) + offset; }

  // A signalled request with one piece; one-sided ones go to `remote` in the same memory.
  int post(int side, ibv_wr_opcode opcode, ibv_sge sge, std::size_t remote = 0, std::uint32_t rkey = 0) {
    ibv_send_wr wr{};
    wr.wr_id = 1000 + static_cast<std::uint64_t>(opcode);
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.wr.rdma.remote_addr = address(remote);
    wr.wr.rdma.rkey = rkey == 0 ? mr->rkey : rkey;
    return post(side, wr);
  }
  // A chain of them, as it is.
  int post(int side, ibv_send_wr& wr) {
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp[side], &wr, &bad);
  }
  int post(int side, ibv_recv_wr& wr) {
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp[side], &wr, &bad);
  }
  int post_receive(int side, std::uint64_t id, ibv_sge sge) {
    ibv_recv_wr wr{.wr_id = id, .next = nullptr, .sg_list = &sge, .num_sge = 1};
    return post(side, wr);
  }

  // The next completion, or nothing after ten seconds.
  std::optional<ibv_wc> poll(int side) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    ibv_wc wc{};
    while (std::chrono::steady_clock::now() < end) {
      if (ibv_poll_cq(cq[side], 1, &wc) == 1) return wc;
    }
    ADD_FAILURE() << "no completion";
    return std::nullopt;
  }
  ibv_wc_status status(int side) {
    const auto wc = poll(side);
    return wc ? wc->status : IBV_WC_GENERAL_ERR;
  }
  ibv_qp_state state(int side) {
    ibv_qp_attr attributes;
    ibv_qp_init_attr init;
    EXPECT_EQ(ibv_query_qp(qp[side], &attributes, IBV_QP_STATE, &init), 0);
    return attributes.qp_state;
  }

  PairOptions options;
  std::vector<std::uint8_t> memory;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_mr* mr = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_srq* srq = nullptr;
  ibv_cq* cq[2] = {};
  ibv_qp* qp[2] = {};

 private:
  ibv_qp* make_pair(int side) {
    ibv_qp_init_attr_ex a{};
    a.send_cq = a.recv_cq = cq[side];
    a.cap = {.max_send_wr = options.depth,
             .max_recv_wr = options.depth,
             .max_send_sge = options.sges,
             .max_recv_sge = options.sges,
             .max_inline_data = options.inline_bytes};
    a.qp_type = options.type;
    a.srq = srq;
    a.pd = pd;
    a.comp_mask = IBV_QP_INIT_ATTR_PD;
    if (options.extended_operations != 0) {
      a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      a.send_ops_flags = options.extended_operations;
    }
    return ibv_create_qp_ex(context, &a);
  }
};

}  // namespace sluice::verbs::test
