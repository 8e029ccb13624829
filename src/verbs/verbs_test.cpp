#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "base/effort_test.h"
#include "verbs/loopback_pair.h"
#include "verbs/objects.h"

namespace sluice::verbs::test {
namespace {

TEST(Device, HasAGidTableWithTheIpv4AddressAtIndexOneAndThree) {
  ibv_context* const context = open_device();
  ASSERT_NE(context, nullptr);
  ibv_gid_entry entries[8];
  ASSERT_EQ(ibv_query_gid_table(context, entries, 8, 0), 4);
  for (const int index : {1, 3}) {
    EXPECT_EQ(entries[index].gid_type, std::uint32_t{IBV_GID_TYPE_ROCE_V2});
    EXPECT_EQ(std::memcmp(entries[index].gid.raw + 10, "\xFF\xFF\x0A\x4D\x00\x09", 6), 0);
  }
  EXPECT_EQ(entries[0].gid.raw[0], 0xFE);
  ibv_gid gid;
  EXPECT_NE(ibv_query_gid(context, 1, 4, &gid), 0);
  ibv_close_device(context);
}

TEST(Device, TellsItsLimitsAndItsPort) {
  ibv_context* const context = open_device();
  ibv_device_attr_ex attributes;
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &attributes), 0);
  EXPECT_EQ(attributes.orig_attr.vendor_id, 0xFFFFFFu);
  EXPECT_GE(attributes.orig_attr.max_sge, 16);
  EXPECT_EQ(attributes.orig_attr.atomic_cap, IBV_ATOMIC_HCA) << "UCX looks for no other";
  EXPECT_EQ(attributes.device_cap_flags_ex, attributes.orig_attr.device_cap_flags) << "the same, with room for more";
  ibv_port_attr port{};
  ASSERT_EQ(___ibv_query_port(context, 1, &port), 0);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.active_mtu, IBV_MTU_4096);
  EXPECT_EQ(port.flags, IBV_QPF_GRH_REQUIRED) << "who asks whether a path needs a GRH hears that it does";
  EXPECT_EQ(___ibv_query_port(context, 2, &port), EINVAL);
  ibv_close_device(context);
}

TEST(Region, RefusesMemoryThatIsNotMappedAndRemoteWritesWithoutLocal) {
  LoopbackPair pair;
  const std::size_t size = 8192;
  void* const hole = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(hole, size);
  EXPECT_EQ(ibv_reg_mr(pair.pd, hole, size, IBV_ACCESS_LOCAL_WRITE), nullptr);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(ibv_reg_mr(pair.pd, pair.memory.data(), 8, IBV_ACCESS_REMOTE_WRITE), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST(Region, RefusesMemoryWhosePagesDoNotPermitWhatItShall) {
  LoopbackPair pair;
  const std::size_t size = 8192;
  auto* const pages =
      static_cast<std::uint8_t*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(mprotect(pages + 4096, 4096, PROT_READ), 0);
  for (const int writes : {int{IBV_ACCESS_LOCAL_WRITE}, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE}) {
    errno = 0;
    EXPECT_EQ(ibv_reg_mr(pair.pd, pages, size, writes), nullptr);
    EXPECT_EQ(errno, EFAULT);
  }
  for (const auto& [length, access] :
       {std::pair(size, int{IBV_ACCESS_REMOTE_READ}), std::pair(std::size_t{4096}, kAllAccess)}) {
    ibv_mr* const mr = ibv_reg_mr(pair.pd, pages, length, access);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
  ASSERT_EQ(mprotect(pages + 4096, 4096, PROT_NONE), 0);
  EXPECT_EQ(ibv_reg_mr(pair.pd, pages, size, IBV_ACCESS_REMOTE_READ), nullptr);
  EXPECT_EQ(errno, EFAULT);
  munmap(pages, size);
}

TEST(Region, RefusesWhatPassesTheEndOfTheAddressSpace) {
  LoopbackPair pair;
  for (const int access : {int{IBV_ACCESS_REMOTE_READ}, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND}) {
    errno = 0;
    EXPECT_EQ(ibv_reg_mr_iova2(pair.pd, pair.memory.data(), ~std::size_t{0} - 100, 0, static_cast<unsigned>(access)),
              nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
}

TEST(Region, IsNamedByItsIova) {
  LoopbackPair pair;
  pair.connect();
  ibv_mr* const zero_based = ibv_reg_mr_iova2(pair.pd, pair.memory.data() + 4096, 64, 0, kAllAccess);
  ASSERT_NE(zero_based, nullptr);
  pair.memory[0] = 77;
  ibv_sge sge = pair.piece(0, 1);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.wr.rdma.remote_addr = 5;
  wr.wr.rdma.rkey = zero_based->rkey;
  ASSERT_EQ(pair.post(0, wr), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_SUCCESS);
  EXPECT_EQ(pair.memory[4096 + 5], 77);
  EXPECT_EQ(ibv_dereg_mr(zero_based), 0);
}

TEST(Region, IsRegisteredAnewUnderOtherKeys) {
  LoopbackPair pair;
  pair.connect();
  ibv_pd* const own = ibv_alloc_pd(pair.context);
  ibv_mr* const mr = ibv_reg_mr(own, pair.memory.data() + 4096, 64, kAllAccess);
  const auto write = [&](std::size_t to, std::uint32_t rkey) {
    EXPECT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), to, rkey), 0);
    return pair.status(0);
  };
  std::uint32_t before = mr->rkey;
  ASSERT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pair.pd, nullptr, 0, 0), 0);
  EXPECT_NE(mr->rkey, before);
  EXPECT_EQ(mr->lkey, mr->rkey);
  EXPECT_EQ(mr->pd, pair.pd);
  EXPECT_EQ(ibv_dealloc_pd(own), 0) << "the region is another's";
  EXPECT_EQ(write(4096, mr->rkey), IBV_WC_SUCCESS);

  ASSERT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, pair.memory.data() + 8192, 128, 0), 0);
  EXPECT_EQ(mr->addr, pair.memory.data() + 8192);
  EXPECT_EQ(mr->length, 128u);
  pair.memory[0] = 55;
  EXPECT_EQ(write(8192 + 120, mr->rkey), IBV_WC_SUCCESS) << "with the rights that it had";
  EXPECT_EQ(pair.memory[8192 + 120], 55);

  before = mr->rkey;
  ASSERT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_REMOTE_READ), 0);
  ASSERT_EQ(pair.post(0, IBV_WR_RDMA_READ, pair.piece(0, 8), 8192, mr->rkey), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_SUCCESS);
  EXPECT_EQ(write(8192, before), IBV_WC_REM_ACCESS_ERR) << "the key of before";
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST(Region, WithOtherRightsRefusesWhatItPermittedBefore) {
  LoopbackPair pair;
  pair.connect();
  ibv_mr* const mr = ibv_reg_mr(pair.pd, pair.memory.data() + 4096, 64, kAllAccess);
  ASSERT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_REMOTE_READ), 0);
  ASSERT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), 4096, mr->rkey), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST(Region, ThatCannotBeRegisteredAnewStaysAsItWas) {
  LoopbackPair pair;
  pair.connect();
  ibv_mr* const mr = ibv_reg_mr(pair.pd, pair.memory.data() + 4096, 64, kAllAccess);
  const std::uint32_t key = mr->rkey;
  std::uint8_t* const other = pair.memory.data() + 8192;
  const auto refused = [&](int flags, void* address, std::size_t length, int access) {
    errno = 0;
    return ibv_rereg_mr(mr, flags, nullptr, address, length, access);
  };
  constexpr int kMove = IBV_REREG_MR_CHANGE_TRANSLATION;
  EXPECT_EQ(refused(0, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(refused(8, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(refused(kMove, nullptr, 64, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(refused(kMove, other, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(refused(kMove, other, 64, IBV_ACCESS_REMOTE_READ), IBV_REREG_MR_ERR_INPUT) << "access without its flag";
  EXPECT_EQ(errno, EINVAL);
  const std::size_t size = 8192;
  void* const hole = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(hole, size);
  EXPECT_EQ(refused(kMove, hole, size, 0), IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(refused(IBV_REREG_MR_CHANGE_ACCESS, nullptr, 0, IBV_ACCESS_MW_BIND), IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(refused(IBV_REREG_MR_CHANGE_ACCESS, nullptr, 0, IBV_ACCESS_REMOTE_WRITE), IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EINVAL);
  ibv_context* const apart = open_device();
  ibv_pd* const theirs = ibv_alloc_pd(apart);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, theirs, nullptr, 0, 0), IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(ibv_dealloc_pd(theirs), 0);
  EXPECT_EQ(ibv_close_device(apart), 0);
  EXPECT_EQ(mr->rkey, key);
  EXPECT_EQ(mr->length, 64u);
  ASSERT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), 4096 + 56, key), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST(DeviceMemory, IsReachedByPeersAsAnyRegionAndByTheHostByCopying) {
  LoopbackPair pair;
  pair.connect();
  ibv_alloc_dm_attr wanted{.length = 4096, .log_align_req = 6, .comp_mask = 0};
  ibv_dm* const dm = ibv_alloc_dm(pair.context, &wanted);
  ASSERT_NE(dm, nullptr);
  EXPECT_EQ(ibv_reg_dm_mr(pair.pd, dm, 64, 128, kAllAccess), nullptr) << "not zero-based";
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_reg_dm_mr(pair.pd, dm, 4000, 128, kAllAccess | IBV_ACCESS_ZERO_BASED), nullptr) << "beyond the end";
  ibv_mr* const mr = ibv_reg_dm_mr(pair.pd, dm, 64, 128, kAllAccess | IBV_ACCESS_ZERO_BASED);
  ASSERT_NE(mr, nullptr);

  const std::uint64_t before = 40;
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 64 + 8, &before, sizeof before), 0);
  ibv_sge sge = pair.piece(0, 8);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.wr.atomic = {.remote_addr = 8, .compare_add = 2, .swap = 0, .rkey = mr->rkey};
  ASSERT_EQ(pair.post(0, wr), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_SUCCESS);
  std::uint64_t after = 0;
  EXPECT_EQ(ibv_memcpy_from_dm(&after, dm, 64 + 8, sizeof after), 0);
  EXPECT_EQ(after, 42u);
  EXPECT_EQ(ibv_memcpy_from_dm(&after, dm, 4090, sizeof after), EINVAL);

  EXPECT_EQ(ibv_free_dm(dm), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

TEST(DeviceMemory, HasAnEndThatTheDeviceTells) {
  LoopbackPair pair;
  ibv_device_attr_ex attributes{};
  ASSERT_EQ(ibv_query_device_ex(pair.context, nullptr, &attributes), 0);
  ibv_alloc_dm_attr wanted{.length = attributes.max_dm_size, .log_align_req = 0, .comp_mask = 0};
  ibv_dm* const all = ibv_alloc_dm(pair.context, &wanted);
  ASSERT_NE(all, nullptr);
  wanted.length = 1;
  EXPECT_EQ(ibv_alloc_dm(pair.context, &wanted), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(ibv_free_dm(all), 0);
  ibv_dm* const one = ibv_alloc_dm(pair.context, &wanted);
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(ibv_free_dm(one), 0);
}

TEST(Handles, AreBusyWhileOthersUseThem) {
  LoopbackPair pair;
  EXPECT_EQ(ibv_dealloc_pd(pair.pd), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(pair.cq[0]), EBUSY);
  EXPECT_EQ(ibv_destroy_comp_channel(pair.channel), EBUSY);
  errno = 0;
  EXPECT_EQ(ibv_close_device(pair.context), -1) << "ibv_close_device(3): no errno, unlike the others";
  EXPECT_EQ(errno, EBUSY);
}

TEST(Handles, OfTwoContextsDoNotGoTogether) {
  LoopbackPair pair;
  ibv_context* const other = open_device();
  ibv_pd* const pd = ibv_alloc_pd(other);
  ibv_cq* const cq = ibv_create_cq(other, 1, nullptr, nullptr, 0);
  ibv_srq_init_attr few{.srq_context = nullptr, .attr = {.max_wr = 1, .max_sge = 1, .srq_limit = 0}};
  ibv_srq* const srq = ibv_create_srq(pd, &few);
  const auto refused = [](const char* what, const auto& call) {
    errno = 0;
    EXPECT_EQ(call(), nullptr) << what;
    EXPECT_EQ(errno, EINVAL) << what;
  };
  const auto make = [&](const auto& change) {
    ibv_qp_init_attr_ex a{};
    a.send_cq = a.recv_cq = pair.cq[0];
    a.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    a.qp_type = IBV_QPT_RC;
    a.comp_mask = IBV_QP_INIT_ATTR_PD;
    a.pd = pair.pd;
    change(a);
    return ibv_create_qp_ex(pair.context, &a);
  };
  refused("sends' queue", [&] { return make([&](auto& a) { a.send_cq = cq; }); });
  refused("receives' queue", [&] { return make([&](auto& a) { a.recv_cq = cq; }); });
  refused("shared receives", [&] { return make([&](auto& a) { a.srq = srq; }); });
  refused("domain", [&] { return make([&](auto& a) { a.pd = pd; }); });
  refused("all but the context", [&] {
    return make([&](auto& a) {
      a.send_cq = a.recv_cq = cq;
      a.pd = pd;
      a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;  // else the header asks the domain alone
      a.send_ops_flags = IBV_QP_EX_WITH_SEND;
    });
  });
  refused("channel", [&] { return ibv_create_cq(other, 1, nullptr, pair.channel, 0); });
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(other), 0);
}

TEST(QueuePair, NeedsAllThatATransitionAsksForAndNothingElse) {
  LoopbackPair pair;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.port_num = 1;
  EXPECT_EQ(ibv_modify_qp(pair.qp[0], &a, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX), EINVAL);
  EXPECT_EQ(pair.to_receive(0, 1), EINVAL);
  EXPECT_EQ(pair.to_init(0), 0);
  EXPECT_EQ(pair.to_send(0), EINVAL);
  a.timeout = 3;
  EXPECT_EQ(ibv_modify_qp(pair.qp[0], &a, IBV_QP_STATE | IBV_QP_TIMEOUT), EINVAL);
  EXPECT_EQ(pair.state(0), IBV_QPS_INIT);
}

TEST(QueuePair, IsDrainedThoughWorkWaits) {
  LoopbackPair pair;
  pair.connect();
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_SQD;
  ASSERT_EQ(ibv_modify_qp(pair.qp[0], &a, IBV_QP_STATE), 0);
  ASSERT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), 8192), 0);
  ibv_qp_init_attr init;
  ASSERT_EQ(ibv_query_qp(pair.qp[0], &a, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(a.qp_state, IBV_QPS_SQD);
  EXPECT_EQ(a.sq_draining, 0);
}

TEST(QueuePair, TellsWhatWasSet) {
  LoopbackPair pair;
  ibv_qp_attr set{};
  set.qp_state = IBV_QPS_INIT;
  set.port_num = 1;
  set.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  ASSERT_EQ(ibv_modify_qp(pair.qp[0], &set, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), 0);
  set.qp_state = IBV_QPS_RTR;
  set.ah_attr = pair.path();
  set.ah_attr.grh.traffic_class = 0x68;
  set.ah_attr.grh.hop_limit = 7;
  set.path_mtu = IBV_MTU_2048;
  set.dest_qp_num = pair.qp[1]->qp_num;
  set.rq_psn = 0xABCDEF;
  set.max_dest_rd_atomic = 5;
  set.min_rnr_timer = 9;
  ASSERT_EQ(ibv_modify_qp(pair.qp[0], &set,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            0);
  set.qp_state = IBV_QPS_RTS;
  set.sq_psn = 0x123456;
  set.timeout = 13;
  set.retry_cnt = 4;
  set.rnr_retry = 3;
  set.max_rd_atomic = 6;
  ASSERT_EQ(ibv_modify_qp(pair.qp[0], &set,
                          IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_MAX_QP_RD_ATOMIC),
            0);
  ibv_qp_attr told{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(pair.qp[0], &told, ~0, &init), 0);
  EXPECT_EQ(told.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(told.cur_qp_state, IBV_QPS_RTS);
  EXPECT_EQ(told.port_num, 1);
  EXPECT_EQ(told.qp_access_flags, set.qp_access_flags);
  EXPECT_EQ(std::memcmp(told.ah_attr.grh.dgid.raw, set.ah_attr.grh.dgid.raw, sizeof set.ah_attr.grh.dgid), 0);
  EXPECT_EQ(told.ah_attr.is_global, 1);
  EXPECT_EQ(told.ah_attr.port_num, 1);
  EXPECT_EQ(told.ah_attr.grh.sgid_index, kGidIndex);
  EXPECT_EQ(told.ah_attr.grh.traffic_class, 0x68);
  EXPECT_EQ(told.ah_attr.grh.hop_limit, 7);
  EXPECT_EQ(told.path_mtu, IBV_MTU_2048);
  EXPECT_EQ(told.dest_qp_num, pair.qp[1]->qp_num);
  EXPECT_EQ(told.rq_psn, 0xABCDEFu);
  EXPECT_EQ(told.sq_psn, 0x123456u);
  EXPECT_EQ(told.max_dest_rd_atomic, 5);
  EXPECT_EQ(told.max_rd_atomic, 6);
  EXPECT_EQ(told.min_rnr_timer, 9);
  EXPECT_EQ(told.timeout, 13);
  EXPECT_EQ(told.retry_cnt, 4);
  EXPECT_EQ(told.rnr_retry, 3);
  EXPECT_EQ(told.cap.max_send_wr, pair.options.depth);
  EXPECT_EQ(told.cap.max_inline_data, pair.options.inline_bytes);
  EXPECT_EQ(init.qp_type, IBV_QPT_RC);
  EXPECT_EQ(init.send_cq, pair.cq[0]);
}

TEST(QueuePair, MovesDataBothWaysByEveryOperation) {
  LoopbackPair pair;
  pair.connect();
  std::fill_n(pair.memory.begin(), 5000, 0x5A);
  EXPECT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 5000), 8192), 0);
  auto wc = pair.poll(0);
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc->opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(wc->qp_num, pair.qp[0]->qp_num);
  EXPECT_EQ(std::memcmp(&pair.memory[0], &pair.memory[8192], 5000), 0);
  EXPECT_EQ(pair.post(1, IBV_WR_RDMA_READ, pair.piece(20000, 5000), 8192), 0);
  EXPECT_EQ(pair.status(1), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(&pair.memory[20000], &pair.memory[8192], 5000), 0);
}

TEST(QueuePair, GathersAndScattersSixteenPiecesAndCarriesAnImmediate) {
  LoopbackPair pair;
  pair.connect();
  std::vector<ibv_sge> from;
  std::vector<ibv_sge> to;
  for (std::uint32_t i = 0; i < 16; ++i) {
    pair.memory[i * 100] = static_cast<std::uint8_t>(i);
    from.push_back(pair.piece(i * 100, 1 + i));
    to.push_back(pair.piece(10000 + i * 100, 1 + i));
  }
  ibv_recv_wr receive{.wr_id = 7, .next = nullptr, .sg_list = to.data(), .num_sge = 16};
  ASSERT_EQ(pair.post(1, receive), 0);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  wr.imm_data = htonl(0xCAFE);
  wr.sg_list = from.data();
  wr.num_sge = 16;
  ASSERT_EQ(pair.post(0, wr), 0);
  const auto wc = pair.poll(1);
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->wr_id, 7u);
  EXPECT_EQ(wc->byte_len, 136u);
  EXPECT_EQ(wc->wc_flags, unsigned{IBV_WC_WITH_IMM});
  EXPECT_EQ(ntohl(wc->imm_data), 0xCAFEu);
  for (std::uint32_t i = 0; i < 16; ++i) EXPECT_EQ(pair.memory[10000 + i * 100], i);
  ibv_wc none;
  EXPECT_EQ(ibv_poll_cq(pair.cq[0], 1, &none), 0) << "not signalled";
}

TEST(QueuePair, ReturnsTheValueBeforeAnAtomic) {
  LoopbackPair pair;
  pair.connect();
  const std::uint64_t five = 5;
  std::memcpy(&pair.memory[1024], &five, 8);
  ibv_sge sge = pair.piece(0, 8);
  ibv_send_wr add{};
  add.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  add.send_flags = IBV_SEND_SIGNALED;
  add.sg_list = &sge;
  add.num_sge = 1;
  add.wr.atomic.remote_addr = pair.address(1024);
  add.wr.atomic.rkey = pair.mr->rkey;
  add.wr.atomic.compare_add = 3;
  ibv_send_wr swap = add;
  ibv_sge swap_sge = pair.piece(8, 8);
  swap.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  swap.sg_list = &swap_sge;
  swap.wr.atomic.compare_add = 8;
  swap.wr.atomic.swap = 99;
  add.next = &swap;
  ASSERT_EQ(pair.post(0, add), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_SUCCESS);
  EXPECT_EQ(pair.status(0), IBV_WC_SUCCESS);
  std::uint64_t seen[2];
  std::memcpy(seen, &pair.memory[0], 16);
  EXPECT_EQ(seen[0], 5u);
  EXPECT_EQ(seen[1], 8u);
  EXPECT_EQ(pair.memory[1024], 99);
}

// --- errors as real NICs give them ---

TEST(Errors, AWrongKeyIsARemoteAccessErrorAndBothQueuePairsAreFlushed) {
  LoopbackPair pair;
  pair.connect();
  ASSERT_EQ(pair.post_receive(1, 5, pair.piece(0, 8)), 0);
  ASSERT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), 8192, pair.mr->rkey ^ 1), 0);
  ASSERT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), 8192), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(pair.status(0), IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(pair.status(1), IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(pair.state(0), IBV_QPS_ERR);
  EXPECT_EQ(pair.state(1), IBV_QPS_ERR);
  ASSERT_EQ(pair.post(0, IBV_WR_SEND, pair.piece(0, 8)), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_WR_FLUSH_ERR);
}

TEST(Errors, WhatARegionDoesNotAllowIsARemoteAccessError) {
  constexpr int kReadable = IBV_ACCESS_REMOTE_READ;
  constexpr int kWritable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  constexpr int kAtomic = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  struct Forbidden {
    const char* what;
    ibv_wr_opcode opcode;
    std::size_t offset;  // in a region of 64 bytes
    int access;
  };
  for (const Forbidden& f : {Forbidden{"write, read only", IBV_WR_RDMA_WRITE, 0, kReadable},
                             Forbidden{"read, write only", IBV_WR_RDMA_READ, 0, kWritable},
                             Forbidden{"atomic, write only", IBV_WR_ATOMIC_FETCH_AND_ADD, 0, kWritable},
                             Forbidden{"write, atomic only", IBV_WR_RDMA_WRITE, 0, kAtomic},
                             Forbidden{"write over the end", IBV_WR_RDMA_WRITE, 60, kWritable},
                             Forbidden{"read over the end", IBV_WR_RDMA_READ, 60, kReadable},
                             Forbidden{"read behind the end", IBV_WR_RDMA_READ, 4096, kReadable},
                             Forbidden{"atomic behind the end", IBV_WR_ATOMIC_CMP_AND_SWP, 64, kAtomic}}) {
    SCOPED_TRACE(f.what);
    LoopbackPair pair;
    pair.connect();
    ibv_mr* const region = ibv_reg_mr(pair.pd, pair.memory.data() + 8192, 64, f.access);
    ASSERT_NE(region, nullptr);
    ibv_sge sge = pair.piece(0, 8);
    ibv_send_wr wr{};
    wr.opcode = f.opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    if (f.opcode == IBV_WR_RDMA_WRITE || f.opcode == IBV_WR_RDMA_READ) {
      wr.wr.rdma = {.remote_addr = pair.address(8192 + f.offset), .rkey = region->rkey};
    } else {
      wr.wr.atomic = {.remote_addr = pair.address(8192 + f.offset), .compare_add = 0, .swap = 1, .rkey = region->rkey};
    }
    ASSERT_EQ(pair.post(0, wr), 0);
    EXPECT_EQ(pair.status(0), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(pair.state(0), IBV_QPS_ERR);
    EXPECT_EQ(pair.state(1), IBV_QPS_ERR);
    EXPECT_EQ(ibv_dereg_mr(region), 0);
  }
}

TEST(Errors, AWrongLocalKeyIsALocalProtectionError) {
  LoopbackPair pair;
  pair.connect();
  ibv_sge sge = pair.piece(0, 8);
  for (const std::uint32_t key : {0u, pair.mr->lkey ^ 1}) {
    sge.lkey = key;
    ASSERT_EQ(pair.post(key == 0 ? 0 : 1, IBV_WR_RDMA_WRITE, sge, 8192), 0);
    EXPECT_EQ(pair.status(key == 0 ? 0 : 1), IBV_WC_LOC_PROT_ERR);
  }
}

TEST(Errors, AReceiverThatIsNotReadyExhaustsTheRetries) {
  LoopbackPair pair({.rnr_retries = 1});
  pair.connect();
  ASSERT_EQ(pair.post(0, IBV_WR_SEND, pair.piece(0, 8)), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(pair.state(0), IBV_QPS_ERR);
}

TEST(Errors, APeerThatIsGoneExhaustsTheRetriesInTheConfiguredTime) {
  LoopbackPair pair({.timeout = 12, .retries = 2});  // 16.8 ms, three times
  pair.connect(0, 0xABCDE);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(pair.post(0, IBV_WR_SEND, pair.piece(0, 8)), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_RETRY_EXC_ERR);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(45));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << "a busy machine may be late";
  EXPECT_EQ(pair.state(0), IBV_QPS_ERR);
}

TEST(Errors, ATooLongSendIsRefusedByTheReceiver) {
  LoopbackPair pair;
  pair.connect();
  ASSERT_EQ(pair.post_receive(1, 5, pair.piece(0, 8)), 0);
  ASSERT_EQ(pair.post(0, IBV_WR_SEND, pair.piece(0, 16)), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(pair.status(1), IBV_WC_LOC_LEN_ERR);
}

TEST(Errors, ARegionIsNotForThePeerToInvalidate) {
  LoopbackPair pair;
  pair.connect();
  ASSERT_EQ(pair.post_receive(1, 5, pair.piece(0, 8)), 0);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND_WITH_INV;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.invalidate_rkey = pair.mr->rkey;
  ASSERT_EQ(pair.post(0, wr), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(pair.status(1), IBV_WC_WR_FLUSH_ERR);
  LoopbackPair next;
  next.connect();
  ASSERT_EQ(next.post(0, IBV_WR_RDMA_WRITE, next.piece(0, 8), 8192), 0);
  EXPECT_EQ(next.status(0), IBV_WC_SUCCESS);
}

TEST(Errors, AReceiveThatEndsWithAnErrorEndsItsQueuePair) {
  for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD}) {
    for (const bool wrong_key : {false, true}) {
      LoopbackPair pair({.type = type});
      pair.connect();
      ibv_sge into = pair.piece(8192, 8);
      if (wrong_key) into.lkey ^= 1;
      ASSERT_EQ(pair.post_receive(1, 5, into), 0);
      ASSERT_EQ(pair.post_receive(1, 6, into), 0);
      ibv_ah_attr to = pair.path();
      ibv_ah* const ah = ibv_create_ah(pair.pd, &to);
      ibv_sge from = pair.piece(0, 16);
      ibv_send_wr wr{};
      wr.opcode = IBV_WR_SEND;
      wr.sg_list = &from;
      wr.num_sge = 1;
      if (type == IBV_QPT_UD) wr.wr.ud = {.ah = ah, .remote_qpn = pair.qp[1]->qp_num, .remote_qkey = 0x1234};
      ASSERT_EQ(pair.post(0, wr), 0);
      EXPECT_EQ(pair.status(1), wrong_key ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_LEN_ERR);
      EXPECT_EQ(pair.status(1), IBV_WC_WR_FLUSH_ERR);
      EXPECT_EQ(pair.state(1), IBV_QPS_ERR);
      EXPECT_EQ(ibv_destroy_ah(ah), 0);
    }
  }
}

TEST(Errors, PostingNamesTheFirstRequestThatWasRefused) {
  LoopbackPair pair({.depth = 4, .sges = 2});
  ibv_sge sges[3] = {pair.piece(0, 8), pair.piece(8, 8), pair.piece(16, 8)};
  ibv_send_wr second{};
  second.opcode = IBV_WR_SEND;
  second.sg_list = sges;
  second.num_sge = 3;
  ibv_send_wr first = second;
  first.num_sge = 2;
  first.next = &second;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(pair.qp[0], &first, &bad), EINVAL) << "in RESET";
  EXPECT_EQ(bad, &first);
  pair.connect();
  EXPECT_EQ(ibv_post_send(pair.qp[0], &first, &bad), EINVAL) << "too many pieces";
  EXPECT_EQ(bad, &second);
  ibv_recv_wr receive{.wr_id = 1, .next = nullptr, .sg_list = sges, .num_sge = 3};
  ibv_recv_wr* bad_receive = nullptr;
  EXPECT_EQ(ibv_post_recv(pair.qp[0], &receive, &bad_receive), EINVAL);
  EXPECT_EQ(bad_receive, &receive);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pair.post_receive(0, 1, pair.piece(0, 8)), 0);
  EXPECT_EQ(pair.post_receive(0, 1, pair.piece(0, 8)), ENOMEM) << "the queue is full";
}

TEST(Errors, AFullSendQueueAndTooMuchInlineAreRefusedWithTheirRequest) {
  LoopbackPair pair({.depth = 4, .inline_bytes = 64});
  pair.connect(0, 0xABCDE);  // nobody answers
  ibv_sge sge = pair.piece(0, 65);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_INLINE;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(pair.qp[0], &wr, &bad), EINVAL);
  EXPECT_EQ(bad, &wr);
  sge.length = 64;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(ibv_post_send(pair.qp[0], &wr, &bad), 0);
  bad = nullptr;
  EXPECT_EQ(ibv_post_send(pair.qp[0], &wr, &bad), ENOMEM);
  EXPECT_EQ(bad, &wr);
}

TEST(Errors, AFullCompletionQueueBreaksItsQueuePairsAndIsTold) {
  LoopbackPair pair({.completions = 2});
  pair.connect();
  for (int i = 0; i < 4; ++i) ASSERT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), 8192), 0);
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(pair.context, &event), 0);  // the progress thread makes it happen
  EXPECT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(event.element.cq, pair.cq[0]);
  ibv_ack_async_event(&event);
  EXPECT_EQ(pair.state(0), IBV_QPS_ERR);
}

TEST(Errors, APathThatIsRefusedLeavesTheOldOne) {
  LoopbackPair pair;
  pair.connect();
  ibv_qp_attr before{};
  ibv_qp_attr a{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(pair.qp[0], &before, IBV_QP_AV, &init), 0);
  a.qp_state = IBV_QPS_SQD;
  ASSERT_EQ(ibv_modify_qp(pair.qp[0], &a, IBV_QP_STATE), 0);
  a.ah_attr = before.ah_attr;  // from an IPv4 address
  ASSERT_EQ(ibv_query_gid(pair.context, 1, 0, &a.ah_attr.grh.dgid), 0);
  EXPECT_EQ(ibv_modify_qp(pair.qp[0], &a, IBV_QP_STATE | IBV_QP_AV), EINVAL);
  ASSERT_EQ(ibv_query_qp(pair.qp[0], &a, IBV_QP_AV, &init), 0);
  EXPECT_EQ(std::memcmp(a.ah_attr.grh.dgid.raw, before.ah_attr.grh.dgid.raw, sizeof before.ah_attr.grh.dgid), 0);
  a.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(ibv_modify_qp(pair.qp[0], &a, IBV_QP_STATE), 0);
  ASSERT_EQ(pair.post_receive(1, 5, pair.piece(0, 8)), 0);
  ASSERT_EQ(pair.post(0, IBV_WR_SEND, pair.piece(8, 8)), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_SUCCESS);
  EXPECT_EQ(pair.status(1), IBV_WC_SUCCESS);
}

TEST(Errors, APathLeadsFromThePortToOnePeer) {
  LoopbackPair pair;
  ASSERT_EQ(pair.to_init(0), 0);
  const auto to_receive = [&](const auto& change) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_1024;
    a.ah_attr = pair.path();
    change(a.ah_attr);
    return ibv_modify_qp(pair.qp[0], &a,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  };
  EXPECT_EQ(to_receive([](ibv_ah_attr& path) { path.port_num = 7; }), EINVAL);
  EXPECT_EQ(to_receive([](ibv_ah_attr& path) { path.grh.dgid.raw[12] = 224; }), EINVAL) << "an IPv4 group";
  EXPECT_EQ(to_receive([&](ibv_ah_attr& path) {
              ibv_query_gid(pair.context, 1, 0, &path.grh.dgid);
              path.grh.dgid.raw[0] = 0xFF;
              path.grh.sgid_index = 0;
            }),
            EINVAL);
  EXPECT_EQ(pair.state(0), IBV_QPS_INIT);
  EXPECT_EQ(to_receive([](ibv_ah_attr&) {}), 0);
}

TEST(CompletionQueue, IsResizedWithWhatIsInIt) {
  LoopbackPair pair({.completions = 2});
  pair.connect();
  const auto post = [&](std::uint64_t id) {
    ibv_sge sge = pair.piece(0, 8);
    ibv_send_wr wr{};
    wr.wr_id = id;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.wr.rdma = {.remote_addr = pair.address(8192), .rkey = pair.mr->rkey};
    ASSERT_EQ(pair.post(0, wr), 0);
  };
  EXPECT_EQ(ibv_resize_cq(pair.cq[0], 0), EINVAL);
  EXPECT_EQ(ibv_resize_cq(pair.cq[0], -1), EINVAL);
  EXPECT_EQ(ibv_resize_cq(pair.cq[0], (1 << 22) + 1), EINVAL);
  EXPECT_EQ(pair.cq[0]->cqe, 2);
  for (std::uint64_t id = 0; id < 2; ++id) {
    ASSERT_EQ(ibv_req_notify_cq(pair.cq[0], 0), 0);
    post(id);
    ibv_cq* of = nullptr;
    void* user = nullptr;
    ASSERT_EQ(ibv_get_cq_event(pair.channel, &of, &user), 0);
    ibv_ack_cq_events(of, 1);
  }
  ASSERT_EQ(ibv_resize_cq(pair.cq[0], 1), EINVAL) << "two are in it";
  ASSERT_EQ(ibv_resize_cq(pair.cq[0], 8), 0);
  EXPECT_EQ(pair.cq[0]->cqe, 8);
  for (std::uint64_t id = 2; id < 8; ++id) post(id);
  for (std::uint64_t id = 0; id < 8; ++id) {
    const auto wc = pair.poll(0);
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc->wr_id, id);
  }
  EXPECT_EQ(ibv_resize_cq(pair.cq[0], 1), 0);
  EXPECT_EQ(pair.cq[0]->cqe, 1);
}

// What a verb that is not supported returns, and errno. docs/verbs.md lists them.
TEST(Errors, WhatIsNotSupportedSaysSo) {
  LoopbackPair pair({.type = IBV_QPT_UD});
  ibv_gid group{};
  group.raw[0] = 0xFF;
  EXPECT_EQ(ibv_attach_mcast(pair.qp[0], &group, 0), EOPNOTSUPP);
  EXPECT_EQ(ibv_detach_mcast(pair.qp[0], &group, 0), EOPNOTSUPP);

  const auto refused = [](const char* what, const auto& call) {
    errno = 0;
    EXPECT_EQ(call(), nullptr) << what;
    EXPECT_EQ(errno, EOPNOTSUPP) << what;
  };
  refused("memory window", [&] { return ibv_alloc_mw(pair.pd, IBV_MW_TYPE_1); });
  refused("address handle of an IPv4 group", [&] {
    ibv_ah_attr to = pair.path();
    to.grh.dgid.raw[12] = 224;
    return ibv_create_ah(pair.pd, &to);
  });
  refused("address handle of an IPv6 group", [&] {
    ibv_ah_attr to = pair.path();
    to.grh.sgid_index = 0;
    to.grh.dgid = group;
    return ibv_create_ah(pair.pd, &to);
  });
  refused("dma-buf", [&] { return ibv_reg_dmabuf_mr(pair.pd, 0, 8, 0, 0, IBV_ACCESS_LOCAL_WRITE); });
  refused("another process's device", [&] { return ibv_import_device(0); });
  refused("another process's domain", [&] { return ibv_import_pd(pair.context, 0); });
  refused("another process's region", [&] { return ibv_import_mr(pair.pd, 0); });
  refused("another process's device memory", [&] { return ibv_import_dm(pair.context, 0); });
  refused("thread domain", [&] {
    ibv_td_init_attr a{};
    return ibv_alloc_td(pair.context, &a);
  });
  refused("XRC domain", [&] {
    ibv_xrcd_init_attr a{};
    return ibv_open_xrcd(pair.context, &a);
  });
  refused("flow steering", [&] {
    ibv_flow_attr a{};
    return ibv_create_flow(pair.qp[0], &a);
  });
  refused("raw packets", [&] {
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = pair.cq[0];
    a.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    a.qp_type = IBV_QPT_RAW_PACKET;
    return ibv_create_qp(pair.pd, &a);
  });
  for (const auto stamp : {IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK}) {
    refused("time stamps", [&] {
      ibv_cq_init_attr_ex a{};
      a.cqe = 1;
      a.wc_flags = stamp;
      return ibv_create_cq_ex(pair.context, &a);
    });
  }
  refused("completion queue of a domain", [&] {
    ibv_cq_init_attr_ex a{};
    a.cqe = 1;
    a.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
    return ibv_create_cq_ex(pair.context, &a);
  });
  refused("completion queue that may overrun", [&] {
    ibv_cq_init_attr_ex a{};
    a.cqe = 1;
    a.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    a.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    return ibv_create_cq_ex(pair.context, &a);
  });
}

// --- events ---

TEST(Channel, WakesAProgramThatSleepsWhileItsPeerIsServedByNobodyElse) {
  LoopbackPair pair;
  pair.connect();
  ASSERT_EQ(ibv_req_notify_cq(pair.cq[1], 0), 0);
  ASSERT_EQ(pair.post_receive(1, 5, pair.piece(0, 8)), 0);
  ASSERT_EQ(pair.post(0, IBV_WR_SEND, pair.piece(8, 8)), 0);
  pollfd ready{pair.channel->fd, POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 10'000), 1);
  ibv_cq* from = nullptr;
  void* user = nullptr;
  ASSERT_EQ(ibv_get_cq_event(pair.channel, &from, &user), 0);
  EXPECT_EQ(from, pair.cq[1]);
  ibv_ack_cq_events(from, 1);
  EXPECT_EQ(pair.status(1), IBV_WC_SUCCESS);
}

TEST(Channel, ThatDoesNotBlockSaysThatThereIsNothing) {
  LoopbackPair pair;
  ASSERT_EQ(fcntl(pair.channel->fd, F_SETFL, O_NONBLOCK), 0);
  ibv_cq* from = nullptr;
  void* user = nullptr;
  EXPECT_EQ(ibv_get_cq_event(pair.channel, &from, &user), -1);
  EXPECT_EQ(errno, EAGAIN);
}

// --- shared receive queues, datagrams, the extended interfaces ---

TEST(QueuePairOfASharedReceiveQueue, IsMadeWhateverIsAskedOfAReceiveQueueOfItsOwn) {
  LoopbackPair pair({.shared_receives = true});
  ibv_qp_init_attr a{};
  a.send_cq = a.recv_cq = pair.cq[0];
  a.srq = pair.srq;
  a.qp_type = IBV_QPT_RC;
  a.cap = {.max_send_wr = 1, .max_recv_wr = ~0u, .max_send_sge = 1, .max_recv_sge = ~0u, .max_inline_data = 0};
  ibv_qp* const qp = ibv_create_qp(pair.pd, &a);
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(a.cap.max_recv_wr, 0u);
  EXPECT_EQ(a.cap.max_recv_sge, 0u);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

class DatagramOfGid : public testing::TestWithParam<std::uint8_t> {};
INSTANTIATE_TEST_SUITE_P(Gids, DatagramOfGid,
                         testing::Values(std::uint8_t{0}, std::uint8_t{1}, std::uint8_t{2}, std::uint8_t{3}));

TEST_P(DatagramOfGid, CarriesAGrhFromWhichTheAnswerFindsItsWay) {
  LoopbackPair pair({.type = IBV_QPT_UD});
  pair.connect();
  ASSERT_EQ(pair.post_receive(1, 5, pair.piece(0, 100)), 0);
  ibv_ah_attr to = pair.path();
  to.grh.sgid_index = GetParam();
  ASSERT_EQ(ibv_query_gid(pair.context, 1, GetParam(), &to.grh.dgid), 0);
  ibv_ah* const ah = ibv_create_ah(pair.pd, &to);
  ASSERT_NE(ah, nullptr);
  ibv_sge sge = pair.piece(1000, 32);
  pair.memory[1000] = 42;
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.wr.ud = {.ah = ah, .remote_qpn = pair.qp[1]->qp_num, .remote_qkey = 0x1234};
  ASSERT_EQ(pair.post(0, wr), 0);
  auto wc = pair.poll(1);
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->byte_len, 72u);
  EXPECT_EQ(wc->src_qp, pair.qp[0]->qp_num);
  EXPECT_EQ(pair.memory[40], 42);
  ibv_ah_attr back;
  ASSERT_EQ(ibv_init_ah_from_wc(pair.context, 1, &*wc, reinterpret_cast<ibv_grh*>(pair.memory.data()), &back), 0);
  EXPECT_EQ(std::memcmp(back.grh.dgid.raw, to.grh.dgid.raw, 16), 0);
  EXPECT_EQ(back.grh.sgid_index, GetParam() == 3 ? 1 : GetParam()) << "the first with that address";
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST(Datagram, WithoutAGrhOrForSomebodyElseNamesNobodyToAnswer) {
  LoopbackPair pair;
  ibv_wc wc{};
  ibv_grh grh{};
  ibv_ah_attr back{};
  const auto refused = [&] {
    errno = 0;
    EXPECT_EQ(ibv_init_ah_from_wc(pair.context, 1, &wc, &grh, &back), -1);
    EXPECT_EQ(errno, EINVAL);
    errno = 0;
    EXPECT_EQ(ibv_create_ah_from_wc(pair.pd, &wc, &grh, 1), nullptr);
    EXPECT_EQ(errno, EINVAL);
  };
  refused();
  wc.wc_flags = IBV_WC_GRH;
  grh.version_tclass_flow = 0x60;
  refused();
}

TEST(Extended, PostsWhatWasPutTogetherAllOrNothing) {
  LoopbackPair pair({.extended_operations = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND});
  pair.connect();
  ibv_qp_ex* const qp = ibv_qp_to_qp_ex(pair.qp[0]);
  ASSERT_NE(qp, nullptr);
  ibv_wr_start(qp);
  qp->wr_id = 1;
  qp->wr_flags = 0;
  ibv_wr_rdma_write(qp, pair.mr->rkey, pair.address(8192));
  std::uint8_t text[] = "inline";
  ibv_wr_set_inline_data(qp, text, sizeof text);
  text[0] = 'X';  // too late
  qp->wr_id = 2;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(qp, pair.mr->rkey, pair.address(8200));
  ibv_wr_set_sge(qp, pair.mr->lkey, pair.address(0), 4);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  const auto wc = pair.poll(0);
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->wr_id, 2u);
  EXPECT_EQ(std::memcmp(&pair.memory[8192], "inline", 7), 0);
  ibv_wr_start(qp);
  for (int i = 0; i < 65; ++i) ibv_wr_rdma_write(qp, pair.mr->rkey, pair.address(8192));
  EXPECT_EQ(ibv_wr_complete(qp), ENOMEM);
  // The second is refused, so the first is not posted either.
  qp->wr_id = 3;
  ibv_wr_start(qp);
  ibv_wr_rdma_write(qp, pair.mr->rkey, pair.address(9000));
  ibv_wr_set_sge(qp, pair.mr->lkey, pair.address(8192), 4);
  ibv_wr_rdma_write(qp, pair.mr->rkey, pair.address(9100));
  std::uint8_t too_long[129] = {};
  ibv_wr_set_inline_data(qp, too_long, sizeof too_long);
  EXPECT_EQ(ibv_wr_complete(qp), EINVAL);
  ASSERT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), 9200), 0);
  const auto next = pair.poll(0);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->wr_id, 1000u + IBV_WR_RDMA_WRITE);
  EXPECT_EQ(pair.memory[9000], 0);
}

TEST(Extended, RefusesWhatTheQueuePairWasNotMadeFor) {
  LoopbackPair pair({.extended_operations = IBV_QP_EX_WITH_SEND});
  pair.connect();
  ibv_qp_ex* const qp = ibv_qp_to_qp_ex(pair.qp[0]);
  ibv_wr_start(qp);
  ibv_wr_rdma_write(qp, pair.mr->rkey, pair.address(8192));
  ibv_wr_set_sge(qp, pair.mr->lkey, pair.address(0), 8);
  EXPECT_EQ(ibv_wr_complete(qp), EINVAL);
  ASSERT_EQ(pair.post_receive(1, 5, pair.piece(8192, 8)), 0);
  ibv_wr_start(qp);
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(qp);
  ibv_wr_set_sge(qp, pair.mr->lkey, pair.address(0), 8);
  EXPECT_EQ(ibv_wr_complete(qp), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_SUCCESS);
}

TEST(Extended, TakesTheSettersWordForWhatIsInline) {
  LoopbackPair pair({.extended_operations = IBV_QP_EX_WITH_RDMA_WRITE});
  pair.connect();
  ibv_qp_ex* const qp = ibv_qp_to_qp_ex(pair.qp[0]);
  std::fill_n(pair.memory.begin(), 8, std::uint8_t{7});
  ibv_wr_start(qp);
  qp->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  ibv_wr_rdma_write(qp, pair.mr->rkey, pair.address(8192));
  ibv_wr_set_sge(qp, pair.mr->lkey, pair.address(0), 8);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(&pair.memory[0], &pair.memory[8192], 8), 0);
}

TEST(Extended, WorkIsItsThreadsUntilItIsPostedOrAborted) {
  LoopbackPair pair({.extended_operations = IBV_QP_EX_WITH_RDMA_WRITE});
  pair.connect();
  ibv_qp_ex* const qp = ibv_qp_to_qp_ex(pair.qp[0]);
  const auto begin = [&](std::uint64_t id) {
    ibv_wr_start(qp);
    qp->wr_id = id;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(qp, pair.mr->rkey, pair.address(8192));
    ibv_wr_set_sge(qp, pair.mr->lkey, pair.address(0), 8);
  };
  begin(1);
  std::atomic<bool> has_begun{false};
  std::thread other([&] {
    begin(2);
    has_begun = true;
    EXPECT_EQ(ibv_wr_complete(qp), 0);
  });
  for (int i = 0; i < 10'000 && !has_begun; ++i) std::this_thread::yield();
  EXPECT_FALSE(has_begun);
  EXPECT_EQ(ibv_wr_complete(qp), 0);
  other.join();
  for (std::uint64_t id = 1; id <= 2; ++id) {
    const auto wc = pair.poll(0);
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, id);
  }
  begin(3);
  ibv_wr_abort(qp);
  std::thread next([&] {
    begin(4);
    EXPECT_EQ(ibv_wr_complete(qp), 0);
  });
  next.join();
  const auto wc = pair.poll(0);
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->wr_id, 4u);
}

TEST(Extended, ACompletionIsItsThreadsUntilTheEndOfThePoll) {
  LoopbackPair pair;
  pair.connect();
  for (std::uint64_t id = 1; id <= 2; ++id) ASSERT_EQ(pair.post_receive(0, id, pair.piece(0, 8)), 0);
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(pair.qp[0], &error, IBV_QP_STATE), 0);
  auto* const cq = reinterpret_cast<ibv_cq_ex*>(pair.cq[0]);
  ibv_poll_cq_attr none{};
  ASSERT_EQ(ibv_start_poll(cq, &none), 0);
  std::atomic<bool> has_polled{false};
  std::uint64_t others = 0;
  std::thread other([&] {
    if (ibv_start_poll(cq, &none) != 0) return;
    has_polled = true;
    others = cq->wr_id;
    ibv_end_poll(cq);
  });
  for (int i = 0; i < 10'000 && !has_polled; ++i) std::this_thread::yield();
  EXPECT_FALSE(has_polled);
  EXPECT_EQ(cq->wr_id, 1u);
  ibv_end_poll(cq);
  other.join();
  EXPECT_EQ(others, 2u);
  EXPECT_EQ(ibv_start_poll(cq, &none), ENOENT);
  EXPECT_EQ(ibv_start_poll(cq, &none), ENOENT) << "holds nobody up";
}

TEST(Extended, TellsTheServiceLevelAsTheOtherInterfaceDoes) {
  LoopbackPair pair({.type = IBV_QPT_UD});
  pair.connect();
  ibv_ah_attr to = pair.path();
  ibv_ah* const ah = ibv_create_ah(pair.pd, &to);
  ibv_sge sge = pair.piece(1000, 8);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.wr.ud = {.ah = ah, .remote_qpn = pair.qp[1]->qp_num, .remote_qkey = 0x1234};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(pair.post_receive(1, 5, pair.piece(0, 100)), 0);
    ASSERT_EQ(pair.post(0, wr), 0);
  }
  const auto wc = pair.poll(1);
  ASSERT_TRUE(wc);
  auto* const cq = reinterpret_cast<ibv_cq_ex*>(pair.cq[1]);
  ibv_poll_cq_attr none{};
  int error = ENOENT;
  while (error == ENOENT) error = ibv_start_poll(cq, &none);
  ASSERT_EQ(error, 0);
  EXPECT_NE(wc->sl, 0);
  EXPECT_EQ(ibv_wc_read_sl(cq), wc->sl);
  ibv_end_poll(cq);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST(Extended, CompletionQueueReadsOneCompletionAfterTheOther) {
  LoopbackPair pair;
  pair.connect();
  for (int i = 0; i < 2; ++i) ASSERT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), 8192), 0);
  auto* const cq = reinterpret_cast<ibv_cq_ex*>(pair.cq[0]);
  ibv_poll_cq_attr none{};
  int error = ENOENT;
  while (error == ENOENT) error = ibv_start_poll(cq, &none);
  ASSERT_EQ(error, 0);
  EXPECT_EQ(ibv_wc_read_opcode(cq), IBV_WC_RDMA_WRITE);
  while ((error = ibv_next_poll(cq)) == ENOENT) continue;
  EXPECT_EQ(error, 0);
  EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
  ibv_end_poll(cq);
}

// --- threads and processes ---

TEST(Threads, MayPostAndPollAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kEach = 300;
  LoopbackPair pair({.depth = 256, .completions = 4096});
  pair.connect();
  std::atomic<int> completed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const int side = t % 2;
      int posted = 0;
      ibv_wc wc[8];
      while (posted < kEach || completed < kThreads * kEach) {
        if (posted < kEach) {
          const auto at = static_cast<std::size_t>(t) * 64;
          posted += pair.post(side, IBV_WR_RDMA_WRITE, pair.piece(at, 64), 8192 + at) == 0 ? 1 : 0;
        }
        const int count = ibv_poll_cq(pair.cq[side], 8, wc);
        for (int i = 0; i < count; ++i) EXPECT_EQ(wc[i].status, IBV_WC_SUCCESS);
        completed += count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(completed, kThreads * kEach);
}

// What threads do besides posting and polling: objects of their own come and go on the one NIC, sleepers are woken.
TEST(Threads, MayMakeUseAndDestroyObjectsAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 10;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int round = 0; round < kRounds; ++round) {
        LoopbackPair pair;
        pair.connect();
        EXPECT_EQ(ibv_req_notify_cq(pair.cq[1], 0), 0);
        ASSERT_EQ(pair.post_receive(1, 7, pair.piece(0, 64)), 0);
        pair.memory[1000] = static_cast<std::uint8_t>(t);
        ASSERT_EQ(pair.post(0, IBV_WR_SEND, pair.piece(1000, 1)), 0);
        ibv_cq* from = nullptr;
        void* user = nullptr;
        ASSERT_EQ(ibv_get_cq_event(pair.channel, &from, &user), 0);
        EXPECT_EQ(from, pair.cq[1]);
        ibv_ack_cq_events(from, 1);
        EXPECT_EQ(pair.status(1), IBV_WC_SUCCESS);
        EXPECT_EQ(pair.status(0), IBV_WC_SUCCESS);
        EXPECT_EQ(pair.memory[0], t);
        // The peer's refusal moves both queue pairs to the error state, which is told on the other thread's time.
        ASSERT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), 0, 0xDEAD'0000), 0);
        EXPECT_EQ(pair.status(0), IBV_WC_REM_ACCESS_ERR);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The NIC's thread sleeps, so posting wakes it by a system call, as a completion does with the program's sleepers.
TEST(Threads, AreCancelledAfterAVerbNotWithin) {
  LoopbackPair pair;
  pair.connect();
  ASSERT_EQ(ibv_req_notify_cq(pair.cq[1], 0), 0);
  ASSERT_EQ(pair.post_receive(1, 7, pair.piece(0, 64)), 0);
  pollfd nothing{pair.channel->fd, POLLIN, 0};
  ASSERT_EQ(poll(&nothing, 1, 50), 0);
  std::atomic<bool> cancelled{false};
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!cancelled) std::this_thread::yield();
    EXPECT_EQ(pair.post(0, IBV_WR_SEND, pair.piece(1000, 8)), 0);
    ibv_wc wc{};
    while (ibv_poll_cq(pair.cq[1], 1, &wc) == 0) continue;
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    done = true;
    for (;;) pause();
  });
  ASSERT_EQ(pthread_cancel(other.native_handle()), 0);
  cancelled = true;
  other.join();
  EXPECT_TRUE(done);
  ibv_cq* from = nullptr;
  void* user = nullptr;
  ASSERT_EQ(ibv_get_cq_event(pair.channel, &from, &user), 0);
  ibv_ack_cq_events(from, 1);
  EXPECT_EQ(pair.status(0), IBV_WC_SUCCESS);
}

TEST(Threads, AreCancelledWhileTheyWaitForAnEvent) {
  LoopbackPair pair;
  rdma_event_channel* const channel = rdma_create_event_channel();
  const auto cancelled = [](const auto& wait) {
    std::atomic<bool> begun{false};
    std::thread other([&] {
      begun = true;
      wait();
      ADD_FAILURE() << "an event";
    });
    while (!begun) std::this_thread::yield();
    pthread_cancel(other.native_handle());
    other.join();
  };
  cancelled([&] {
    ibv_cq* from = nullptr;
    void* user = nullptr;
    ibv_get_cq_event(pair.channel, &from, &user);
  });
  cancelled([&] {
    ibv_async_event event{};
    ibv_get_async_event(pair.context, &event);
  });
  cancelled([&] {
    rdma_cm_event* event = nullptr;
    rdma_get_cm_event(channel, &event);
  });
  // Nobody holds the lock.
  rdma_destroy_event_channel(channel);
  pair.connect();
}

TEST(Fork, LeavesTheParentsNicAloneAndTheChildWithoutOne) {
  LoopbackPair pair;
  pair.connect();
  const pid_t child = fork();
  if (child == 0) {
    pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), 8192);
    _exit(open_device() == nullptr ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), 8192), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_SUCCESS);
}

TEST(Fork, LeavesEventsToTheParent) {
  LoopbackPair pair({.shared_receives = true});
  pair.connect();
  ASSERT_EQ(ibv_req_notify_cq(pair.cq[0], 0), 0);
  ASSERT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), 8192), 0);
  ASSERT_EQ(pair.status(0), IBV_WC_SUCCESS);
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(pair.qp[0], &error, IBV_QP_STATE), 0);
  ibv_cq* from = nullptr;
  void* user = nullptr;
  ibv_async_event event{};
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    errno = 0;
    bool fine = ibv_get_cq_event(pair.channel, &from, &user) == -1 && errno == ENODEV;
    errno = 0;
    fine = ibv_get_async_event(pair.context, &event) == -1 && errno == ENODEV && fine;
    _exit(fine ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const int descriptor : {pair.channel->fd, pair.context->async_fd}) {
    pollfd ready{descriptor, POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, 0), 1) << "the child has taken it";
  }
  ASSERT_EQ(ibv_get_cq_event(pair.channel, &from, &user), 0);
  EXPECT_EQ(from, pair.cq[0]);
  ibv_ack_cq_events(from, 1);
  ASSERT_EQ(ibv_get_async_event(pair.context, &event), 0);
  EXPECT_EQ(event.element.qp, pair.qp[0]);
  ibv_ack_async_event(&event);
}

TEST(Fork, WaitsUntilNobodyIsInTheNic) {
  LoopbackPair pair;
  SpinLock& lock = Context::of(pair.context).nic->lock();
  std::atomic<bool> held{false};
  std::atomic<bool> forking{false};
  std::atomic<bool> whole{false};  // the NIC's objects: the other thread has done what it does with them
  std::thread other([&] {
    const NicLock guard(lock);
    held = true;
    while (!forking) std::this_thread::yield();
    for (int i = 0; i < 20'000; ++i) std::this_thread::yield();
    whole = true;
  });
  while (!held) std::this_thread::yield();
  forking = true;
  const pid_t child = fork();
  if (child == 0) _exit(whole ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  other.join();
}

// A signal comes upon this thread while it is in the NIC: its request's pieces are nowhere.
void exit_in_a_handler_within_a_verb() {
  alarm(60);  // against hanging
  LoopbackPair pair;
  pair.connect();
  signal(SIGSEGV, [](int) { std::exit(0); });
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND;
  wr.sg_list = static_cast<ibv_sge*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  wr.num_sge = 1;
  pair.post(0, wr);
}

TEST(ExitDeathTest, EndsTheProgramAlsoInASignalHandlerThatCameUponAVerb) {
  if (kThreadSanitizer) GTEST_SKIP() << "it reports exit() in a handler, which is the point";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_in_a_handler_within_a_verb(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice::verbs::test
