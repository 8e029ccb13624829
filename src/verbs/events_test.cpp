// Async events of queue pairs and shared receive queues; docs/verbs.md lists them.
#include <poll.h>

#include "verbs/loopback_pair.h"

namespace sluice::verbs::test {
namespace {

// The next event, acknowledged; nothing after ten seconds.
std::optional<ibv_async_event> next_event(ibv_context* context) {
  pollfd ready{context->async_fd, POLLIN, 0};
  ibv_async_event event{};
  if (::poll(&ready, 1, 10'000) != 1 || ibv_get_async_event(context, &event) != 0) {
    ADD_FAILURE() << "no event";
    return std::nullopt;
  }
  ibv_ack_async_event(&event);
  return event;
}

bool has_event(ibv_context* context) {
  pollfd ready{context->async_fd, POLLIN, 0};
  return ::poll(&ready, 1, 0) == 1;
}

int post_shared(LoopbackPair& pair, std::uint64_t id) {
  ibv_sge sge = pair.piece(id * 64, 64);
  ibv_recv_wr wr{.wr_id = id, .next = nullptr, .sg_list = &sge, .num_sge = 1};
  ibv_recv_wr* bad = nullptr;
  return ibv_post_srq_recv(pair.srq, &wr, &bad);
}

TEST(Events, ASharedReceiveQueueTellsOnceThatFewerThanItsLimitAreLeft) {
  LoopbackPair pair({.shared_receives = true});
  pair.connect();
  for (std::uint64_t id = 0; id < 4; ++id) ASSERT_EQ(post_shared(pair, id), 0);
  ibv_srq_attr limit{.max_wr = 0, .max_sge = 0, .srq_limit = 3};
  ASSERT_EQ(ibv_modify_srq(pair.srq, &limit, IBV_SRQ_LIMIT), 0);
  limit.srq_limit = 1;
  ASSERT_EQ(ibv_modify_srq(pair.srq, &limit, 0), 0) << "nothing is to change";
  ASSERT_EQ(pair.post(0, IBV_WR_SEND, pair.piece(1000, 8)), 0);
  EXPECT_EQ(pair.status(1), IBV_WC_SUCCESS);
  EXPECT_FALSE(has_event(pair.context)) << "three are left";
  for (int i = 0; i < 2; ++i) ASSERT_EQ(pair.post(0, IBV_WR_SEND, pair.piece(1000, 8)), 0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(pair.status(1), IBV_WC_SUCCESS);
  const auto event = next_event(pair.context);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(event->element.srq, pair.srq);
  EXPECT_FALSE(has_event(pair.context)) << "until the limit is set again";
  ASSERT_EQ(ibv_query_srq(pair.srq, &limit), 0);
  EXPECT_EQ(limit.srq_limit, 0u);
}

TEST(Events, AQueuePairInErrorTellsThatItTakesNoMoreOfASharedReceiveQueue) {
  LoopbackPair pair({.shared_receives = true});
  pair.connect();
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(pair.qp[1], &a, IBV_QP_STATE), 0);
  const auto event = next_event(pair.context);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  EXPECT_EQ(event->element.qp, pair.qp[1]);
}

TEST(Events, AQueuePairThatHasRefusedARequestTellsWhy) {
  struct Refused {
    ibv_wr_opcode opcode;
    std::size_t remote;
    std::uint32_t key;  // with which the region's is wrong
    ibv_event_type told;
  };
  for (const Refused& r : {Refused{IBV_WR_RDMA_WRITE, 8192, 1, IBV_EVENT_QP_ACCESS_ERR},
                           Refused{IBV_WR_RDMA_READ, 1 << 16, 0, IBV_EVENT_QP_ACCESS_ERR},
                           Refused{IBV_WR_ATOMIC_FETCH_AND_ADD, 8196, 0, IBV_EVENT_QP_REQ_ERR},
                           Refused{IBV_WR_SEND, 0, 0, IBV_EVENT_QP_REQ_ERR}}) {
    LoopbackPair pair;
    pair.connect();
    if (r.opcode == IBV_WR_SEND) {
      ASSERT_EQ(pair.post_receive(1, 5, pair.piece(0, 4)), 0);
    }
    ibv_sge sge = pair.piece(0, 8);
    ibv_send_wr wr{};
    wr.opcode = r.opcode;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    if (r.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      wr.wr.atomic = {.remote_addr = pair.address(r.remote), .compare_add = 1, .swap = 0, .rkey = pair.mr->rkey};
    } else {
      wr.wr.rdma = {.remote_addr = pair.address(r.remote), .rkey = pair.mr->rkey ^ r.key};
    }
    ASSERT_EQ(pair.post(0, wr), 0);
    const auto event = next_event(pair.context);
    ASSERT_TRUE(event);
    EXPECT_EQ(event->event_type, r.told);
    EXPECT_EQ(event->element.qp, pair.qp[1]);
    EXPECT_FALSE(has_event(pair.context)) << "the requester has a completion";
    EXPECT_EQ(pair.state(1), IBV_QPS_ERR);
  }
}

TEST(Events, ASendQueueTellsThatItIsDrained) {
  LoopbackPair pair;
  pair.connect();
  ASSERT_EQ(pair.post(0, IBV_WR_RDMA_WRITE, pair.piece(0, 8), 8192), 0);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_SQD;
  a.en_sqd_async_notify = 1;
  ASSERT_EQ(ibv_modify_qp(pair.qp[0], &a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  EXPECT_EQ(pair.status(0), IBV_WC_SUCCESS);
  const auto event = next_event(pair.context);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event_type, IBV_EVENT_SQ_DRAINED);
  EXPECT_EQ(event->element.qp, pair.qp[0]);
  EXPECT_EQ(pair.state(0), IBV_QPS_SQD);
}

TEST(Events, ASendQueueThatIsNotAskedToTellThatItIsDrainedDoesNot) {
  LoopbackPair pair;
  pair.connect();
  ibv_qp_attr a{};
  a.en_sqd_async_notify = 1;  // of which the mask says nothing
  for (const int asked : {0, int{IBV_QP_EN_SQD_ASYNC_NOTIFY}, 0}) {
    a.qp_state = IBV_QPS_SQD;
    ASSERT_EQ(ibv_modify_qp(pair.qp[0], &a, IBV_QP_STATE | asked), 0);
    EXPECT_EQ(has_event(pair.context), asked != 0);
    if (asked != 0) next_event(pair.context);
    a.qp_state = IBV_QPS_RTS;
    ASSERT_EQ(ibv_modify_qp(pair.qp[0], &a, IBV_QP_STATE), 0);
  }
}

TEST(Events, AFirstMessageBeforeTheMoveToSendingIsTold) {
  LoopbackPair pair;
  pair.connect(0, pair.qp[1]->qp_num);
  ASSERT_EQ(pair.to_init(1), 0);
  ASSERT_EQ(pair.post_receive(1, 5, pair.piece(0, 8)), 0);
  ASSERT_EQ(pair.to_receive(1, pair.qp[0]->qp_num), 0);
  ASSERT_EQ(pair.post(0, IBV_WR_SEND, pair.piece(64, 8)), 0);
  const auto event = next_event(pair.context);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event_type, IBV_EVENT_COMM_EST);
  EXPECT_EQ(event->element.qp, pair.qp[1]);
  EXPECT_EQ(pair.status(1), IBV_WC_SUCCESS);
}

TEST(Events, AreForgottenWithTheObjectThatTheyAreAbout) {
  LoopbackPair pair({.shared_receives = true});
  pair.connect();
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(pair.qp[0], &error, IBV_QP_STATE), 0);
  ASSERT_TRUE(has_event(pair.context));
  ibv_qp_init_attr_ex a{};
  a.send_cq = a.recv_cq = pair.cq[0];
  a.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  a.qp_type = IBV_QPT_RC;
  a.pd = pair.pd;
  a.comp_mask = IBV_QP_INIT_ATTR_PD;
  ASSERT_EQ(ibv_destroy_qp(pair.qp[0]), 0);
  EXPECT_FALSE(has_event(pair.context)) << "the descriptor says so too";
  pair.qp[0] = ibv_create_qp_ex(pair.context, &a);
  ASSERT_EQ(ibv_modify_qp(pair.qp[1], &error, IBV_QP_STATE), 0);
  const auto event = next_event(pair.context);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->element.qp, pair.qp[1]);
}

TEST(Events, OfACompletionQueueLeaveItsChannelWithIt) {
  LoopbackPair pair;
  ibv_cq* const cq = ibv_create_cq(pair.context, 4, nullptr, pair.channel, 0);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  init.qp_type = IBV_QPT_RC;
  ibv_qp* const qp = ibv_create_qp(pair.pd, &init);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.port_num = 1;
  ASSERT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), 0);
  ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
  ibv_recv_wr wr{};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
  a.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
  pollfd ready{pair.channel->fd, POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 0), 1);
  ASSERT_EQ(ibv_destroy_qp(qp), 0);
  ASSERT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
}

}  // namespace
}  // namespace sluice::verbs::test
