// rdma_cm between two ids of one NIC, over its loopback: requests that nobody takes, and what channels say of events that are gone.
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "verbs/loopback_pair.h"

namespace sluice::verbs::test {
namespace {

bool is_readable(const rdma_event_channel* channel, int within_ms = 0) {
  pollfd ready{channel->fd, POLLIN, 0};
  return ::poll(&ready, 1, within_ms) == 1;
}

class Connections : public testing::Test {
 protected:
  Connections() {
    device = open_device();
    server = rdma_create_event_channel();
    client = rdma_create_event_channel();
  }
  ~Connections() override {
    rdma_destroy_event_channel(client);
    rdma_destroy_event_channel(server);
    EXPECT_EQ(ibv_close_device(device), 0);
  }
  static sockaddr_in address(std::uint16_t port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(port);
    inet_pton(AF_INET, "10.77.0.9", &a.sin_addr);
    return a;
  }
  rdma_cm_id* bound(std::uint16_t port) const {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(server, &id, nullptr, RDMA_PS_TCP), 0);
    sockaddr_in at = address(port);
    EXPECT_EQ(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&at)), 0);
    return id;
  }
  rdma_cm_id* listening(std::uint16_t port, int backlog = 8) const {
    rdma_cm_id* const id = bound(port);
    EXPECT_EQ(rdma_listen(id, backlog), 0);
    return id;
  }
  // The next event, which is of this kind, acknowledged; of whom.
  static rdma_cm_id* expect(rdma_event_channel* channel, rdma_cm_event_type kind) {
    rdma_cm_event* event = nullptr;
    if (!is_readable(channel, 20'000) || rdma_get_cm_event(channel, &event) != 0) {
      ADD_FAILURE() << "no event " << rdma_event_str(kind);
      return nullptr;
    }
    EXPECT_STREQ(rdma_event_str(event->event), rdma_event_str(kind));
    rdma_cm_id* const id = event->id;
    rdma_ack_cm_event(event);
    return id;
  }
  rdma_cm_id* resolved(std::uint16_t port, rdma_port_space space = RDMA_PS_TCP) const {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(client, &id, nullptr, space), 0);
    sockaddr_in to = address(port);
    EXPECT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 2000), 0);
    expect(client, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(rdma_resolve_route(id, 2000), 0);
    expect(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
    return id;
  }
  static void make_queue_pair(rdma_cm_id* id, ibv_srq* srq = nullptr) {
    ibv_qp_init_attr init{};
    init.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    init.qp_type = id->qp_type;
    init.srq = srq;
    EXPECT_EQ(rdma_create_qp(id, nullptr, &init), 0);
  }
  rdma_cm_id* connecting(std::uint16_t port, rdma_conn_param parameters = {}) const {
    rdma_cm_id* const id = resolved(port);
    make_queue_pair(id);
    EXPECT_EQ(rdma_connect(id, &parameters), 0);
    return id;
  }
  // The other end of a connection that is asked for.
  rdma_cm_id* accepting(rdma_conn_param parameters = {}) const {
    rdma_cm_id* const id = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
    make_queue_pair(id);
    EXPECT_EQ(rdma_accept(id, &parameters), 0);
    expect(client, RDMA_CM_EVENT_ESTABLISHED);
    expect(server, RDMA_CM_EVENT_ESTABLISHED);
    return id;
  }
  static void destroy(rdma_cm_id* id) {
    rdma_destroy_qp(id);
    EXPECT_EQ(rdma_destroy_id(id), 0);
  }

  ibv_context* device = nullptr;
  rdma_event_channel* server = nullptr;
  rdma_event_channel* client = nullptr;
};

TEST_F(Connections, AreRejectedWhereNobodyComesToListen) {
  rdma_cm_id* const never_listens = bound(7301);
  ASSERT_EQ(rdma_destroy_id(listening(7302)), 0);
  rdma_cm_id* const first = connecting(7301);
  rdma_cm_id* const second = connecting(7302);
  expect(client, RDMA_CM_EVENT_REJECTED);
  expect(client, RDMA_CM_EVENT_REJECTED);
  destroy(first);
  destroy(second);
  // From then on at once, until somebody listens after all.
  rdma_cm_id* const third = connecting(7301);
  expect(client, RDMA_CM_EVENT_REJECTED);
  destroy(third);
  ASSERT_EQ(rdma_listen(never_listens, 1), 0);
  rdma_cm_id* const fourth = connecting(7301);
  EXPECT_EQ(rdma_destroy_id(expect(server, RDMA_CM_EVENT_CONNECT_REQUEST)), 0);
  expect(client, RDMA_CM_EVENT_REJECTED);
  destroy(fourth);
  ASSERT_EQ(rdma_destroy_id(never_listens), 0);
}

TEST_F(Connections, WaitForAListenerThatComesSoon) {
  ASSERT_EQ(rdma_destroy_id(listening(7303)), 0);
  rdma_cm_id* const id = connecting(7303);
  rdma_cm_id* const listener = listening(7303);
  EXPECT_EQ(rdma_destroy_id(expect(server, RDMA_CM_EVENT_CONNECT_REQUEST)), 0);
  expect(client, RDMA_CM_EVENT_REJECTED);
  destroy(id);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, AreRejectedWhenTheirListenerGoesBeforeItLooksAtThem) {
  rdma_cm_id* const listener = listening(7304);
  rdma_cm_id* const id = connecting(7304);
  ASSERT_TRUE(is_readable(server, 20'000));
  ASSERT_EQ(rdma_destroy_id(listener), 0);
  EXPECT_FALSE(is_readable(server));
  expect(client, RDMA_CM_EVENT_REJECTED);
  destroy(id);
}

TEST_F(Connections, GoAlongWithAListenerThatChangesItsChannel) {
  rdma_cm_id* const listener = listening(7305);
  rdma_cm_id* const id = connecting(7305);
  ASSERT_TRUE(is_readable(server, 20'000));
  rdma_event_channel* const other = rdma_create_event_channel();
  ASSERT_EQ(rdma_migrate_id(listener, other), 0);
  EXPECT_FALSE(is_readable(server));
  rdma_cm_id* const request = expect(other, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_EQ(request->channel, other);
  ASSERT_EQ(rdma_reject(request, nullptr, 0), 0);
  expect(client, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(rdma_destroy_id(request), 0);
  destroy(id);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
  rdma_destroy_event_channel(other);
}

TEST_F(Connections, LeaveTheEventsOfOthersBehindOnTheirChannel) {
  const auto ask = [&] {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(client, &id, nullptr, RDMA_PS_TCP), 0);
    sockaddr_in to = address(7346);
    EXPECT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 2000), 0);
    return id;
  };
  rdma_cm_id* const first = ask();
  rdma_cm_id* const moves = ask();
  rdma_cm_id* const last = ask();
  rdma_event_channel* const other = rdma_create_event_channel();
  ASSERT_EQ(rdma_migrate_id(moves, other), 0);
  EXPECT_EQ(expect(client, RDMA_CM_EVENT_ADDR_RESOLVED), first);
  EXPECT_EQ(expect(client, RDMA_CM_EVENT_ADDR_RESOLVED), last);
  EXPECT_FALSE(is_readable(client));
  EXPECT_EQ(expect(other, RDMA_CM_EVENT_ADDR_RESOLVED), moves);
  EXPECT_FALSE(is_readable(other));
  for (rdma_cm_id* const id : {first, moves, last}) EXPECT_EQ(rdma_destroy_id(id), 0);
  rdma_destroy_event_channel(other);
}

TEST_F(Connections, BeyondTheBacklogAreRejected) {
  rdma_cm_id* const listener = listening(7306, 1);
  rdma_cm_id* const first = connecting(7306);
  ASSERT_TRUE(is_readable(server, 20'000));
  rdma_cm_id* const second = connecting(7306);
  EXPECT_EQ(expect(client, RDMA_CM_EVENT_REJECTED), second);
  rdma_cm_id* const request = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  rdma_cm_id* const third = connecting(7306);
  EXPECT_EQ(rdma_destroy_id(expect(server, RDMA_CM_EVENT_CONNECT_REQUEST)), 0);
  EXPECT_EQ(expect(client, RDMA_CM_EVENT_REJECTED), third);
  EXPECT_EQ(rdma_destroy_id(request), 0);
  EXPECT_EQ(expect(client, RDMA_CM_EVENT_REJECTED), first);
  for (rdma_cm_id* const id : {first, second, third}) destroy(id);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, ThatAreNotAcceptedCannotBeEnded) {
  rdma_cm_id* const listener = listening(7307);
  rdma_cm_id* const id = connecting(7307);
  rdma_cm_id* const request = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  errno = 0;
  EXPECT_EQ(rdma_disconnect(request), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_FALSE(is_readable(client));
  ASSERT_EQ(rdma_reject(request, nullptr, 0), 0);
  expect(client, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(rdma_destroy_id(request), 0);
  destroy(id);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, TakeTheirEventsAlongWhenTheirIdIsDestroyed) {
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(client, &id, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in to = address(7308);
  ASSERT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 2000), 0);
  EXPECT_TRUE(is_readable(client));
  ASSERT_EQ(rdma_destroy_id(id), 0);
  EXPECT_FALSE(is_readable(client));
}

TEST_F(Connections, SayHowTheirQueuePairsAreSetUp) {
  rdma_cm_id* const listener = listening(7310);
  rdma_conn_param parameters{};
  parameters.responder_resources = parameters.initiator_depth = 3;
  parameters.retry_count = 5;
  parameters.rnr_retry_count = 6;
  rdma_cm_id* const active = connecting(7310, parameters);
  rdma_cm_id* const passive = accepting(parameters);
  ibv_gid own;
  ASSERT_EQ(ibv_query_gid(device, 1, kGidIndex, &own), 0);
  for (const auto& [id, other] : {std::pair(active, passive), std::pair(passive, active)}) {
    ibv_qp_attr a{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(ibv_query_qp(id->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU, &init), 0);
    EXPECT_EQ(a.qp_state, IBV_QPS_RTS);
    EXPECT_EQ(a.path_mtu, IBV_MTU_4096);
    EXPECT_EQ(a.dest_qp_num, other->qp->qp_num);
    EXPECT_EQ(a.ah_attr.is_global, 1);
    EXPECT_EQ(a.ah_attr.port_num, 1);
    EXPECT_EQ(std::memcmp(a.ah_attr.grh.dgid.raw, own.raw, sizeof own), 0);
    EXPECT_EQ(a.ah_attr.grh.sgid_index, kGidIndex);
    EXPECT_EQ(a.max_rd_atomic, 3);
    EXPECT_EQ(a.max_dest_rd_atomic, 3);
    EXPECT_EQ(a.retry_cnt, 5);
    EXPECT_EQ(a.rnr_retry, 6);
    EXPECT_NE(a.timeout, 0);
  }
  destroy(active);
  destroy(passive);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, TellWhatThePeerHasAskedFor) {
  rdma_cm_id* const listener = listening(7311);
  rdma_conn_param parameters{};
  parameters.retry_count = 5;
  parameters.rnr_retry_count = 6;
  rdma_cm_id* const active = connecting(7311, parameters);
  rdma_cm_event* event = nullptr;
  ASSERT_TRUE(is_readable(server, 20'000));
  ASSERT_EQ(rdma_get_cm_event(server, &event), 0);
  EXPECT_EQ(event->param.conn.retry_count, 5);
  EXPECT_EQ(event->param.conn.rnr_retry_count, 6);
  EXPECT_EQ(event->param.conn.srq, 0);
  rdma_cm_id* const passive = event->id;
  ASSERT_EQ(rdma_ack_cm_event(event), 0);

  ibv_srq_init_attr wanted{.srq_context = nullptr, .attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0}};
  ibv_pd* const pd = ibv_alloc_pd(passive->verbs);
  ibv_srq* const srq = ibv_create_srq(pd, &wanted);
  make_queue_pair(passive, srq);
  parameters.rnr_retry_count = 4;
  ASSERT_EQ(rdma_accept(passive, &parameters), 0);
  ASSERT_TRUE(is_readable(client, 20'000));
  ASSERT_EQ(rdma_get_cm_event(client, &event), 0);
  EXPECT_EQ(event->event, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(event->param.conn.rnr_retry_count, 4);
  EXPECT_EQ(event->param.conn.srq, 1);
  ASSERT_EQ(rdma_ack_cm_event(event), 0);
  destroy(active);
  destroy(passive);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, HaveAProtectionDomainAsSoonAsADevice) {
  rdma_cm_id* const listener = listening(7312);
  EXPECT_NE(listener->pd, nullptr);
  rdma_cm_id* const active = resolved(7312);
  EXPECT_NE(active->pd, nullptr);
  make_queue_pair(active);
  rdma_conn_param parameters{};
  ASSERT_EQ(rdma_connect(active, &parameters), 0);
  rdma_cm_id* const passive = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_NE(passive->pd, nullptr);
  EXPECT_EQ(rdma_destroy_id(passive), 0);
  expect(client, RDMA_CM_EVENT_REJECTED);
  destroy(active);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, MayBeRejectedByWhoAskedAndSeesTheAnswer) {
  rdma_cm_id* const listener = listening(7313);
  rdma_cm_id* const active = resolved(7313);
  rdma_conn_param parameters{};
  parameters.qp_num = 0x123;  // one of the program's own, that rdma_cm knows nothing of
  ASSERT_EQ(rdma_connect(active, &parameters), 0);
  rdma_cm_id* const passive = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  make_queue_pair(passive);
  ASSERT_EQ(rdma_accept(passive, &parameters), 0);
  expect(client, RDMA_CM_EVENT_CONNECT_RESPONSE);
  ASSERT_EQ(rdma_reject(active, "no", 3), 0);
  rdma_cm_event* event = nullptr;
  ASSERT_TRUE(is_readable(server, 20'000));
  ASSERT_EQ(rdma_get_cm_event(server, &event), 0);
  EXPECT_STREQ(rdma_event_str(event->event), "RDMA_CM_EVENT_REJECTED");
  EXPECT_STREQ(static_cast<const char*>(event->param.conn.private_data), "no");
  ASSERT_EQ(rdma_ack_cm_event(event), 0);
  EXPECT_EQ(rdma_destroy_id(active), 0);
  destroy(passive);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

// As programs do that make their queue pairs without rdma_cm, and move them as rdma_init_qp_attr says.
TEST_F(Connections, TellHowTheProgramsOwnQueuePairsAreMoved) {
  rdma_cm_id* const listener = listening(7347);
  rdma_cm_id* const active = resolved(7347);
  LoopbackPair pair({.rnr_retries = 6});
  const auto move = [](rdma_cm_id* id, ibv_qp* qp, ibv_qp_state to) {
    ibv_qp_attr a{};
    int mask = 0;
    a.qp_state = to;
    ASSERT_EQ(rdma_init_qp_attr(id, &a, &mask), 0);
    ASSERT_EQ(ibv_modify_qp(qp, &a, mask), 0);
  };
  const auto refused = [](rdma_cm_id* id, ibv_qp_state to) {
    ibv_qp_attr a{};
    int mask = 0;
    a.qp_state = to;
    errno = 0;
    EXPECT_EQ(rdma_init_qp_attr(id, &a, &mask), -1);
    EXPECT_EQ(errno, EINVAL);
  };
  rdma_conn_param parameters{};
  parameters.responder_resources = 3;
  parameters.initiator_depth = 2;
  parameters.retry_count = 5;
  parameters.rnr_retry_count = 6;
  parameters.qp_num = pair.qp[0]->qp_num;
  move(active, pair.qp[0], IBV_QPS_INIT);
  refused(active, IBV_QPS_RTR);
  ASSERT_EQ(rdma_connect(active, &parameters), 0);
  refused(active, IBV_QPS_RTR);
  rdma_cm_id* const passive = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  parameters.responder_resources = 2;
  parameters.initiator_depth = 3;
  parameters.qp_num = pair.qp[1]->qp_num;
  for (const ibv_qp_state to : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) move(passive, pair.qp[1], to);
  refused(passive, IBV_QPS_SQD);
  ASSERT_EQ(rdma_accept(passive, &parameters), 0);
  expect(client, RDMA_CM_EVENT_CONNECT_RESPONSE);
  for (const ibv_qp_state to : {IBV_QPS_RTR, IBV_QPS_RTS}) move(active, pair.qp[0], to);
  ASSERT_EQ(rdma_establish(active), 0);
  expect(server, RDMA_CM_EVENT_ESTABLISHED);
  for (const int side : {0, 1}) {
    ibv_qp_attr a{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(ibv_query_qp(pair.qp[side], &a, IBV_QP_STATE, &init), 0);
    EXPECT_EQ(a.qp_state, IBV_QPS_RTS);
    EXPECT_EQ(a.dest_qp_num, pair.qp[1 - side]->qp_num);
    EXPECT_EQ(a.path_mtu, IBV_MTU_4096);
    EXPECT_EQ(a.ah_attr.grh.sgid_index, kGidIndex);
    EXPECT_EQ(a.retry_cnt, 5);
    EXPECT_EQ(a.rnr_retry, 6);
    EXPECT_NE(a.timeout, 0);
    EXPECT_NE(a.min_rnr_timer, 0);
    ASSERT_EQ(pair.post_receive(1 - side, 1, pair.piece(0, 8)), 0);
    ASSERT_EQ(pair.post(side, IBV_WR_SEND, pair.piece(64, 8)), 0);
    EXPECT_EQ(pair.status(side), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.status(1 - side), IBV_WC_SUCCESS);
  }
  ASSERT_EQ(rdma_disconnect(passive), 0) << "what has been accepted can be ended";
  expect(server, RDMA_CM_EVENT_DISCONNECTED);
  expect(client, RDMA_CM_EVENT_DISCONNECTED);
  for (rdma_cm_id* const id : {active, passive, listener}) EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Connections, ThatAreEstablishedCannotBeRejected) {
  rdma_cm_id* const listener = listening(7314);
  rdma_cm_id* const active = connecting(7314);
  rdma_cm_id* const passive = accepting();
  for (rdma_cm_id* const id : {active, passive}) {
    errno = 0;
    EXPECT_EQ(rdma_reject(id, nullptr, 0), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  ASSERT_EQ(rdma_disconnect(active), 0);
  expect(client, RDMA_CM_EVENT_DISCONNECTED);
  expect(server, RDMA_CM_EVENT_DISCONNECTED);
  destroy(active);
  destroy(passive);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

// Both ends are told, unless they have gone by then.
TEST_F(Connections, ThatAreOverAreToldWhenTheirTimeWaitIs) {
  rdma_cm_id* const listener = listening(7318);
  rdma_cm_id* const active = connecting(7318);
  rdma_cm_id* const passive = accepting();
  ASSERT_EQ(rdma_disconnect(active), 0);
  expect(client, RDMA_CM_EVENT_DISCONNECTED);
  expect(server, RDMA_CM_EVENT_DISCONNECTED);
  destroy(passive);
  EXPECT_EQ(expect(client, RDMA_CM_EVENT_TIMEWAIT_EXIT), active);
  EXPECT_FALSE(is_readable(server));
  destroy(active);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, AreRejectedWhenTheirQueuePairCannotBeMade) {
  rdma_addrinfo hints{};
  hints.ai_flags = RAI_PASSIVE | RAI_NUMERICHOST;
  hints.ai_port_space = RDMA_PS_TCP;
  rdma_addrinfo* at = nullptr;
  ASSERT_EQ(rdma_getaddrinfo("10.77.0.9", "7315", &hints, &at), 0);
  ibv_qp_init_attr too_much{};
  too_much.cap = {.max_send_wr = 1 << 20, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  rdma_cm_id* listener = nullptr;
  ASSERT_EQ(rdma_create_ep(&listener, at, nullptr, &too_much), 0);
  rdma_freeaddrinfo(at);
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  rdma_cm_id* const active = connecting(7315);
  rdma_cm_id* passive = nullptr;
  ASSERT_EQ(rdma_get_request(listener, &passive), -1);
  expect(client, RDMA_CM_EVENT_REJECTED);
  destroy(active);
  rdma_destroy_ep(listener);
}

TEST_F(Connections, WithoutDescriptorsHaveNoIds) {
  const int next = dup(client->fd);
  close(next);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{static_cast<rlim_t>(next), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP), -1);
  EXPECT_EQ(errno, EMFILE);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(Connections, AreListenedForAtAnyPortByWhoHasNotChosenOne) {
  rdma_cm_id* listener = nullptr;
  ASSERT_EQ(rdma_create_id(server, &listener, nullptr, RDMA_PS_TCP), 0);
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  const std::uint16_t port = ntohs(rdma_get_src_port(listener));
  ASSERT_NE(port, 0);
  rdma_cm_id* const active = connecting(port);
  EXPECT_EQ(rdma_destroy_id(expect(server, RDMA_CM_EVENT_CONNECT_REQUEST)), 0);
  expect(client, RDMA_CM_EVENT_REJECTED);
  destroy(active);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, WithoutAnAddressCanDoNothing) {
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(client, &id, nullptr, RDMA_PS_TCP), 0);
  const auto refused = [](const char* what, const auto& call) {
    errno = 0;
    EXPECT_EQ(call(), -1) << what;
    EXPECT_EQ(errno, EINVAL) << what;
  };
  rdma_conn_param parameters{};
  refused("connect", [&] { return rdma_connect(id, &parameters); });
  refused("accept", [&] { return rdma_accept(id, &parameters); });
  refused("reject", [&] { return rdma_reject(id, nullptr, 0); });
  refused("establish", [&] { return rdma_establish(id); });
  refused("disconnect", [&] { return rdma_disconnect(id); });
  refused("attributes", [&] {
    ibv_qp_attr a{};
    int mask = 0;
    a.qp_state = IBV_QPS_INIT;
    return rdma_init_qp_attr(id, &a, &mask);
  });
  refused("shared receives", [&] {
    ibv_srq_init_attr a{.srq_context = nullptr, .attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0}};
    return rdma_create_srq(id, nullptr, &a);
  });
  ASSERT_EQ(rdma_destroy_id(id), 0);
}

void expect_that_it_cannot_connect(rdma_cm_id* id) {
  rdma_conn_param parameters{};
  errno = 0;
  EXPECT_EQ(rdma_connect(id, &parameters), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Connections, NeedThePeersAddressBesidesTheirOwn) {
  rdma_cm_id* const id = bound(7328);
  expect_that_it_cannot_connect(id);
  errno = 0;
  EXPECT_EQ(rdma_resolve_route(id, 2000), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_FALSE(is_readable(server));
  ASSERT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Connections, NeedARoute) {
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(client, &id, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in to = address(7340);
  ASSERT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 2000), 0);
  expect(client, RDMA_CM_EVENT_ADDR_RESOLVED);
  make_queue_pair(id);
  expect_that_it_cannot_connect(id);
  destroy(id);
}

void expect_invalid(const char* what, int outcome) {
  EXPECT_EQ(outcome, -1) << what;
  EXPECT_EQ(errno, EINVAL) << what;
  errno = 0;
}

TEST_F(Connections, AskForNothingThatTheDeviceCannotDo) {
  ibv_device_attr limits{};
  ASSERT_EQ(ibv_query_device(device, &limits), 0);
  const auto beyond = [](int most) { return static_cast<std::uint8_t>(most + 1); };
  rdma_conn_param to_answer{}, to_start{}, all{};
  to_answer.responder_resources = beyond(limits.max_qp_rd_atom);
  to_start.initiator_depth = beyond(limits.max_qp_init_rd_atom);
  all.responder_resources = RDMA_MAX_RESP_RES;
  all.initiator_depth = RDMA_MAX_INIT_DEPTH;
  rdma_cm_id* const listener = listening(7341);
  rdma_cm_id* const active = resolved(7341);
  expect_invalid("no queue pair is named", rdma_connect(active, nullptr));
  make_queue_pair(active);
  expect_invalid("answers", rdma_connect(active, &to_answer));
  expect_invalid("starts", rdma_connect(active, &to_start));
  ASSERT_EQ(rdma_connect(active, &all), 0);
  rdma_cm_id* const passive = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  expect_invalid("no queue pair is named", rdma_accept(passive, nullptr));
  make_queue_pair(passive);
  expect_invalid("answers", rdma_accept(passive, &to_answer));
  expect_invalid("starts", rdma_accept(passive, &to_start));
  ASSERT_EQ(rdma_accept(passive, nullptr), 0) << "as the request has it";
  expect(client, RDMA_CM_EVENT_ESTABLISHED);
  expect(server, RDMA_CM_EVENT_ESTABLISHED);
  ibv_qp_attr a{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(passive->qp, &a, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(a.max_dest_rd_atomic, limits.max_qp_rd_atom);
  EXPECT_EQ(a.max_rd_atomic, limits.max_qp_rd_atom);
  destroy(active);
  destroy(passive);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, HaveOneAddressAndOnePeer) {
  rdma_cm_id* none = nullptr;
  expect_invalid("no such port space", rdma_create_id(client, &none, nullptr, static_cast<rdma_port_space>(7)));
  sockaddr_in at = address(7343);
  sockaddr_in to = address(7344);
  auto* const own = reinterpret_cast<sockaddr*>(&at);
  auto* const peer = reinterpret_cast<sockaddr*>(&to);
  rdma_cm_id* const listener = listening(7342);
  expect_invalid("bound", rdma_bind_addr(listener, own));
  expect_invalid("listens", rdma_resolve_addr(listener, nullptr, peer, 2000));
  EXPECT_EQ(ntohs(rdma_get_src_port(listener)), 7342);
  rdma_cm_id* const active = resolved(7342);
  expect_invalid("has a peer", rdma_resolve_addr(active, nullptr, peer, 2000));
  expect_invalid("has an address", rdma_bind_addr(active, own));
  EXPECT_EQ(ntohs(rdma_get_dst_port(active)), 7342);
  EXPECT_FALSE(is_readable(client));
  make_queue_pair(active);
  rdma_conn_param parameters{};
  ASSERT_EQ(rdma_connect(active, &parameters), 0);
  rdma_cm_id* const passive = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  expect_invalid("came from a peer", rdma_resolve_addr(passive, nullptr, peer, 2000));
  expect_invalid("came to an address", rdma_bind_addr(passive, own));
  EXPECT_EQ(rdma_destroy_id(passive), 0);
  expect(client, RDMA_CM_EVENT_REJECTED);
  destroy(active);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, HaveTheQueuePairOfADomainOfTheirContext) {
  rdma_cm_id* const id = resolved(7345);
  ibv_pd* const pd = ibv_alloc_pd(device);  // of a context that the program has opened itself
  ibv_qp_init_attr init{};
  init.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  init.qp_type = IBV_QPT_RC;
  ibv_cq* const cq = ibv_create_cq(device, 4, nullptr, nullptr, 0);
  expect_invalid("another domain", rdma_create_qp(id, pd, &init));
  EXPECT_EQ(id->qp, nullptr);
  EXPECT_EQ(id->send_cq, nullptr);
  init.send_cq = init.recv_cq = cq;
  expect_invalid("another domain, with its queues", rdma_create_qp(id, pd, &init));
  expect_invalid("other queues", rdma_create_qp(id, nullptr, &init));
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  ASSERT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Connections, AreNotRejectedWithMoreThanAMessageHolds) {
  const std::vector<std::uint8_t> data(255, 7);
  rdma_cm_id* const listener = listening(7329);
  rdma_cm_id* const active = connecting(7329);
  rdma_cm_id* const request = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  for (const std::uint8_t length : {std::uint8_t{255}, std::uint8_t{149}}) {
    errno = 0;
    EXPECT_EQ(rdma_reject(request, data.data(), length), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_FALSE(is_readable(client));
  EXPECT_EQ(rdma_reject(request, data.data(), 148), 0);
  rdma_cm_event* event = nullptr;
  ASSERT_TRUE(is_readable(client, 20'000));
  ASSERT_EQ(rdma_get_cm_event(client, &event), 0);
  EXPECT_EQ(event->param.conn.private_data_len, 148);
  EXPECT_EQ(std::memcmp(event->param.conn.private_data, data.data(), 148), 0);
  ASSERT_EQ(rdma_ack_cm_event(event), 0);
  EXPECT_EQ(rdma_destroy_id(request), 0);
  destroy(active);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, OfDatagramsAreNotRejectedWithMoreThanAMessageHolds) {
  const std::vector<std::uint8_t> data(255, 7);
  rdma_cm_id* listener = nullptr;
  ASSERT_EQ(rdma_create_id(server, &listener, nullptr, RDMA_PS_UDP), 0);
  sockaddr_in at = address(7330);
  ASSERT_EQ(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&at)), 0);
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  rdma_cm_id* const active = resolved(7330, RDMA_PS_UDP);
  rdma_conn_param parameters{};
  ASSERT_EQ(rdma_connect(active, &parameters), 0);
  rdma_cm_id* const request = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  errno = 0;
  EXPECT_EQ(rdma_reject(request, data.data(), 137), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_reject(request, data.data(), 136), 0);
  rdma_cm_event* event = nullptr;
  ASSERT_TRUE(is_readable(client, 20'000));
  ASSERT_EQ(rdma_get_cm_event(client, &event), 0);
  EXPECT_EQ(event->event, RDMA_CM_EVENT_UNREACHABLE);
  EXPECT_EQ(event->status, 2) << "IB_SIDR_REJECT";
  EXPECT_EQ(event->param.ud.private_data_len, 136);
  ASSERT_EQ(rdma_ack_cm_event(event), 0);
  for (rdma_cm_id* const id : {active, request, listener}) EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Connections, BeginOnce) {
  rdma_cm_id* const listener = listening(7320);
  expect_that_it_cannot_connect(listener);
  rdma_cm_id* const active = connecting(7320);
  expect_that_it_cannot_connect(active);
  rdma_cm_id* const passive = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_FALSE(is_readable(server));
  expect_that_it_cannot_connect(passive);
  destroy(active);
  EXPECT_EQ(rdma_destroy_id(passive), 0);
  // Nothing of the first is left that the next could come upon.
  rdma_cm_id* const next = connecting(7320);
  rdma_cm_id* const accepted = accepting();
  expect_that_it_cannot_connect(next);
  destroy(next);
  destroy(accepted);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, OfDatagramsAskOnce) {
  rdma_cm_id* listener = nullptr;
  ASSERT_EQ(rdma_create_id(server, &listener, nullptr, RDMA_PS_UDP), 0);
  sockaddr_in at = address(7321);
  ASSERT_EQ(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&at)), 0);
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  rdma_cm_id* const active = resolved(7321, RDMA_PS_UDP);
  rdma_conn_param parameters{};
  ASSERT_EQ(rdma_connect(active, &parameters), 0);
  expect_that_it_cannot_connect(active);
  rdma_cm_id* const passive = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  parameters.qp_num = 0x123;
  ASSERT_EQ(rdma_accept(passive, &parameters), 0);
  expect(client, RDMA_CM_EVENT_ESTABLISHED);
  expect_that_it_cannot_connect(active);
  for (rdma_cm_id* const id : {active, passive, listener}) EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Connections, OfDatagramsAreAnsweredWithAQueuePair) {
  rdma_cm_id* listener = nullptr;
  ASSERT_EQ(rdma_create_id(server, &listener, nullptr, RDMA_PS_UDP), 0);
  sockaddr_in at = address(7348);
  ASSERT_EQ(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&at)), 0);
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  rdma_cm_id* const active = resolved(7348, RDMA_PS_UDP);
  ASSERT_EQ(rdma_connect(active, nullptr), 0);
  rdma_cm_id* const passive = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  errno = 0;
  EXPECT_EQ(rdma_accept(passive, nullptr), -1) << "none is named";
  EXPECT_EQ(errno, EINVAL);
  make_queue_pair(passive);
  ASSERT_EQ(rdma_accept(passive, nullptr), 0);
  rdma_cm_event* event = nullptr;
  ASSERT_TRUE(is_readable(client, 20'000));
  ASSERT_EQ(rdma_get_cm_event(client, &event), 0);
  EXPECT_EQ(event->event, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(event->status, 0);
  EXPECT_EQ(event->param.ud.qp_num, passive->qp->qp_num);
  EXPECT_EQ(event->param.ud.qkey, std::uint32_t{RDMA_UDP_QKEY});
  ASSERT_EQ(rdma_ack_cm_event(event), 0);
  EXPECT_EQ(rdma_destroy_id(active), 0);
  destroy(passive);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, DoNotShareAPort) {
  rdma_cm_id* const first = bound(7326);
  rdma_cm_id* second = nullptr;
  ASSERT_EQ(rdma_create_id(server, &second, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in at = address(7326);
  const auto bind = [&] { return rdma_bind_addr(second, reinterpret_cast<sockaddr*>(&at)); };
  int yes = 1;
  errno = 0;
  EXPECT_EQ(bind(), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  ASSERT_EQ(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes), 0);
  EXPECT_EQ(bind(), -1);
  ASSERT_EQ(rdma_set_option(first, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes), 0);
  EXPECT_EQ(bind(), 0);
  yes = 0;
  ASSERT_EQ(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes), 0);
  ASSERT_EQ(rdma_destroy_id(first), 0);
  ASSERT_EQ(rdma_listen(second, 1), 0);
  ASSERT_EQ(rdma_destroy_id(second), 0);
  ASSERT_EQ(rdma_destroy_id(listening(7326)), 0);
}

// An address that is not the first of the device's IPv6 ones.
class ConnectionsOfAnAddress : public Connections, public testing::WithParamInterface<rdma_port_space> {
 protected:
  static sockaddr_in6 second_address(std::uint16_t port) {
    sockaddr_in6 a{};
    a.sin6_family = AF_INET6;
    a.sin6_port = htons(port);
    inet_pton(AF_INET6, "fd00::9", &a.sin6_addr);
    return a;
  }
  static void expect_second(const sockaddr* address) {
    const sockaddr_in6 second = second_address(0);
    ASSERT_EQ(address->sa_family, AF_INET6);
    EXPECT_EQ(std::memcmp(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, &second.sin6_addr, 16), 0);
  }
};
INSTANTIATE_TEST_SUITE_P(Spaces, ConnectionsOfAnAddress, testing::Values(RDMA_PS_TCP, RDMA_PS_UDP));

TEST_P(ConnectionsOfAnAddress, LeadFromItAndToIt) {
  constexpr std::uint8_t kSecond = 2;
  sockaddr_in6 at = second_address(7327);
  sockaddr_in6 from = second_address(0);
  rdma_cm_id* listener = nullptr;
  rdma_cm_id* active = nullptr;
  ASSERT_EQ(rdma_create_id(server, &listener, nullptr, GetParam()), 0);
  ASSERT_EQ(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&at)), 0);
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  ASSERT_EQ(rdma_create_id(client, &active, nullptr, GetParam()), 0);
  ASSERT_EQ(rdma_resolve_addr(active, reinterpret_cast<sockaddr*>(&from), reinterpret_cast<sockaddr*>(&at), 2000), 0);
  expect(client, RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_resolve_route(active, 2000), 0);
  expect(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
  make_queue_pair(active);
  rdma_conn_param parameters{};
  ASSERT_EQ(rdma_connect(active, &parameters), 0);
  rdma_cm_id* const passive = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
  expect_second(rdma_get_local_addr(passive));
  expect_second(rdma_get_peer_addr(passive));
  expect_second(rdma_get_local_addr(active));
  make_queue_pair(passive);
  ASSERT_EQ(rdma_accept(passive, &parameters), 0);
  rdma_cm_event* event = nullptr;
  ASSERT_TRUE(is_readable(client, 20'000));
  ASSERT_EQ(rdma_get_cm_event(client, &event), 0);
  ASSERT_EQ(event->event, RDMA_CM_EVENT_ESTABLISHED);
  if (GetParam() == RDMA_PS_UDP) {
    EXPECT_EQ(event->param.ud.ah_attr.grh.sgid_index, kSecond);
  } else {
    for (rdma_cm_id* const id : {active, passive}) {
      ibv_qp_attr a{};
      ibv_qp_init_attr init{};
      ASSERT_EQ(ibv_query_qp(id->qp, &a, IBV_QP_AV, &init), 0);
      EXPECT_EQ(a.ah_attr.grh.sgid_index, kSecond);
    }
  }
  ASSERT_EQ(rdma_ack_cm_event(event), 0);
  destroy(active);
  destroy(passive);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_P(ConnectionsOfAnAddress, AreForWhoListensAtIt) {
  const bool datagrams = GetParam() == RDMA_PS_UDP;
  constexpr std::uint16_t kPort = 7331;
  sockaddr_in first = address(kPort);
  sockaddr_in6 second = second_address(kPort);
  sockaddr_in6 any = second;
  any.sin6_addr = in6addr_any;
  const auto listen = [&](auto& at, bool one_family = false) {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(server, &id, nullptr, GetParam()), 0);
    int yes = 1;
    if (one_family) {
      EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof yes), 0);
    }
    EXPECT_EQ(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&at)), 0);
    EXPECT_EQ(rdma_listen(id, 8), 0);
    return id;
  };
  // Who is told of a request to `to`; null: it is turned away.
  const auto ask = [&](auto& to) {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(client, &id, nullptr, GetParam()), 0);
    EXPECT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 2000), 0);
    expect(client, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(rdma_resolve_route(id, 2000), 0);
    expect(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_queue_pair(id);
    rdma_conn_param parameters{};
    EXPECT_EQ(rdma_connect(id, &parameters), 0);
    pollfd ready[] = {{server->fd, POLLIN, 0}, {client->fd, POLLIN, 0}};
    EXPECT_GE(::poll(ready, 2, 20'000), 1);
    rdma_cm_id* told = nullptr;
    if (ready[0].revents != 0) {
      rdma_cm_event* event = nullptr;
      EXPECT_EQ(rdma_get_cm_event(server, &event), 0);
      told = event->listen_id;
      rdma_cm_id* const request = event->id;
      rdma_ack_cm_event(event);
      EXPECT_EQ(rdma_destroy_id(request), 0);
    }
    if (told == nullptr || !datagrams) expect(client, datagrams ? RDMA_CM_EVENT_UNREACHABLE : RDMA_CM_EVENT_REJECTED);
    destroy(id);
    return told;
  };
  rdma_cm_id* const at_second = listen(second);
  EXPECT_EQ(ask(second), at_second);
  EXPECT_EQ(ask(first), nullptr);
  rdma_cm_id* const at_first = listen(first);
  EXPECT_EQ(ask(second), at_second);
  EXPECT_EQ(ask(first), at_first);
  rdma_cm_id* const at_any = listen(any);
  EXPECT_EQ(ask(second), at_second);
  EXPECT_EQ(ask(first), at_first);
  ASSERT_EQ(rdma_destroy_id(at_second), 0);
  EXPECT_EQ(ask(second), at_any);
  ASSERT_EQ(rdma_destroy_id(at_first), 0);
  EXPECT_EQ(ask(first), at_any) << "IPv6's any is IPv4's, too";
  ASSERT_EQ(rdma_destroy_id(at_any), 0);
  rdma_cm_id* const alone = listen(any, true);
  EXPECT_EQ(ask(second), alone);
  EXPECT_EQ(ask(first), nullptr);
  ASSERT_EQ(rdma_destroy_id(alone), 0);
}

TEST_F(Connections, KnowTheirOptions) {
  rdma_cm_id* const id = bound(7332);
  int yes = 1;
  errno = 0;
  EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, 77, &yes, sizeof yes), -1);
  EXPECT_EQ(errno, ENOSYS);
  ASSERT_EQ(rdma_destroy_id(id), 0);
}

// A descriptor's number, which is the lowest that is free: the same again, and nothing has been left open meanwhile.
int next_descriptor() {
  const int next = dup(STDERR_FILENO);
  close(next);
  return next;
}

TEST_F(Connections, TakeTheCompletionQueuesThatTheirIdHas) {
  rdma_cm_id* const listener = listening(7322);
  rdma_cm_id* const active = resolved(7322);
  ibv_cq* const mine = ibv_create_cq(active->verbs, 16, nullptr, nullptr, 0);
  active->send_cq = active->recv_cq = mine;
  make_queue_pair(active);
  EXPECT_EQ(active->qp->send_cq, mine);
  EXPECT_EQ(active->qp->recv_cq, mine);
  EXPECT_EQ(active->send_cq_channel, nullptr);
  rdma_conn_param parameters{};
  ASSERT_EQ(rdma_connect(active, &parameters), 0);
  rdma_cm_id* const passive = accepting();
  ASSERT_EQ(rdma_disconnect(active), 0);
  ibv_send_wr wr{};
  wr.wr_id = 7;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(active->qp, &wr, &bad), 0);  // flushed at once
  ibv_wc wc{};
  ASSERT_EQ(ibv_poll_cq(mine, 1, &wc), 1);
  EXPECT_EQ(wc.wr_id, 7u);
  expect(client, RDMA_CM_EVENT_DISCONNECTED);
  expect(server, RDMA_CM_EVENT_DISCONNECTED);
  destroy(active);  // with its completion queue, as behind librdmacm
  destroy(passive);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, WhoseQueuePairCannotBeMadeKeepTheCompletionQueuesTheyHad) {
  rdma_cm_id* const id = resolved(7323);
  ibv_cq* const mine = ibv_create_cq(id->verbs, 16, nullptr, nullptr, 0);
  ibv_cq* const other = ibv_create_cq(id->verbs, 16, nullptr, nullptr, 0);
  id->send_cq = mine;
  ibv_qp_init_attr wanted{};
  wanted.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  wanted.qp_type = IBV_QPT_RC;
  wanted.send_cq = other;
  errno = 0;
  EXPECT_EQ(rdma_create_qp(id, nullptr, &wanted), -1);
  EXPECT_EQ(errno, EINVAL);
  const int next = next_descriptor();
  wanted.send_cq = nullptr;
  wanted.cap.max_send_wr = 1 << 20;  // too much for the queue pair, when its completion queues have been made
  EXPECT_EQ(rdma_create_qp(id, nullptr, &wanted), -1);
  EXPECT_EQ(id->send_cq, mine);
  EXPECT_EQ(id->recv_cq, nullptr);
  id->send_cq = nullptr;
  wanted.cap.max_send_wr = 4;
  wanted.cap.max_recv_wr = 1 << 30;  // too much for the second completion queue
  EXPECT_EQ(rdma_create_qp(id, nullptr, &wanted), -1);
  EXPECT_EQ(id->send_cq, nullptr);
  EXPECT_EQ(id->send_cq_channel, nullptr);
  EXPECT_EQ(next_descriptor(), next);
  EXPECT_EQ(ibv_destroy_cq(mine), 0);
  EXPECT_EQ(ibv_destroy_cq(other), 0);
  ASSERT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Connections, AreOverAtOnceWhenTheyAreEndedBeforeAnAnswer) {
  rdma_cm_id* const listener = listening(7324);
  for (int i = 0; i < 5; ++i) {
    rdma_cm_id* const active = connecting(7324);
    rdma_cm_id* const request = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
    ASSERT_EQ(rdma_disconnect(active), 0);
    EXPECT_TRUE(is_readable(client));
    expect(client, RDMA_CM_EVENT_DISCONNECTED);
    destroy(active);
    EXPECT_EQ(rdma_destroy_id(request), 0);
  }
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, AreNotForTheChildOfAFork) {
  rdma_cm_id* const listener = listening(7325);
  rdma_cm_id* const id = resolved(7325);
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    const auto refused = [](bool failed) { return failed && std::exchange(errno, 0) == ENODEV; };
    sockaddr_in to = address(7325);
    rdma_cm_id* other = nullptr;
    rdma_cm_event* event = nullptr;
    bool fine = refused(rdma_create_event_channel() == nullptr);
    fine = refused(rdma_create_id(client, &other, nullptr, RDMA_PS_TCP) != 0) && fine;
    fine = refused(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 2000) != 0) && fine;
    fine = refused(rdma_resolve_route(id, 2000) != 0) && fine;
    fine = refused(rdma_connect(id, nullptr) != 0) && fine;
    fine = refused(rdma_listen(id, 1) != 0) && fine;
    fine = refused(rdma_get_cm_event(client, &event) != 0) && fine;
    fine = rdma_destroy_id(id) == 0 && fine;
    _exit(fine ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(rdma_destroy_id(id), 0);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Connections, HaveNoEventAtNoAddress) {
  errno = 0;
  EXPECT_EQ(rdma_ack_cm_event(nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
}

rdma_addrinfo* addresses(const char* node, const char* port, rdma_addrinfo hints) {
  rdma_addrinfo* found = nullptr;
  EXPECT_EQ(rdma_getaddrinfo(node, port, &hints, &found), 0);
  return found;
}

TEST_F(Connections, FindTheAddressesOfNames) {
  rdma_addrinfo hints{};
  hints.ai_flags = RAI_NUMERICHOST;
  rdma_addrinfo* found = addresses("10.77.0.9", "7349", hints);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->ai_qp_type, IBV_QPT_RC);
  EXPECT_EQ(found->ai_port_space, RDMA_PS_TCP);
  EXPECT_EQ(found->ai_src_addr, nullptr);
  EXPECT_EQ(found->ai_next, nullptr);
  const sockaddr_in wanted = address(7349);
  ASSERT_EQ(found->ai_dst_len, sizeof wanted);
  EXPECT_EQ(std::memcmp(found->ai_dst_addr, &wanted, sizeof wanted), 0);

  // What is known already is the answer where no name is asked for.
  hints = {};
  hints.ai_dst_addr = found->ai_dst_addr;
  hints.ai_dst_len = found->ai_dst_len;
  hints.ai_port_space = RDMA_PS_UDP;
  rdma_addrinfo* const known = addresses(nullptr, nullptr, hints);
  ASSERT_NE(known, nullptr);
  EXPECT_EQ(known->ai_qp_type, IBV_QPT_UD);
  EXPECT_NE(known->ai_dst_addr, found->ai_dst_addr) << "a copy";
  EXPECT_EQ(std::memcmp(known->ai_dst_addr, &wanted, sizeof wanted), 0);
  rdma_freeaddrinfo(known);
  rdma_freeaddrinfo(found);

  hints = {};
  hints.ai_flags = RAI_PASSIVE | RAI_FAMILY;
  hints.ai_family = AF_INET6;
  found = addresses(nullptr, "7349", hints);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->ai_dst_addr, nullptr);
  ASSERT_NE(found->ai_src_addr, nullptr);
  EXPECT_EQ(found->ai_src_addr->sa_family, AF_INET6);
  rdma_freeaddrinfo(found);

  rdma_addrinfo* nothing = nullptr;
  errno = 0;
  EXPECT_EQ(rdma_getaddrinfo(nullptr, nullptr, nullptr, &nothing), -1);
  EXPECT_EQ(errno, EINVAL);
  hints = {};
  hints.ai_flags = RAI_NUMERICHOST;
  EXPECT_EQ(rdma_getaddrinfo("no address", "7349", &hints, &nothing), EAI_NONAME);
  EXPECT_EQ(nothing, nullptr);
}

// Without channels calls wait, and their ids have the events.
TEST_F(Connections, AreMadeByEndpointsThatWait) {
  rdma_addrinfo hints{};
  hints.ai_flags = RAI_PASSIVE | RAI_NUMERICHOST;
  rdma_addrinfo* const at = addresses("10.77.0.9", "7350", hints);
  hints.ai_flags = RAI_NUMERICHOST;
  rdma_addrinfo* const to = addresses("10.77.0.9", "7350", hints);
  ibv_qp_init_attr init{};
  init.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 16};
  rdma_cm_id* listener = nullptr;
  ibv_qp_init_attr for_each = init;
  ASSERT_EQ(rdma_create_ep(&listener, at, nullptr, &for_each), 0);
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  rdma_cm_id* active = nullptr;
  ASSERT_EQ(rdma_create_ep(&active, to, nullptr, &init), 0);
  ASSERT_NE(active->qp, nullptr);
  const char question[] = "how are you";
  std::thread asks([&] {
    rdma_conn_param parameters{};
    parameters.private_data = question;
    parameters.private_data_len = sizeof question;
    EXPECT_EQ(rdma_connect(active, &parameters), 0);
    EXPECT_EQ(active->event->event, RDMA_CM_EVENT_ESTABLISHED);
    EXPECT_EQ(rdma_post_send(active, nullptr, const_cast<char*>(question), sizeof question, nullptr,
                             IBV_SEND_INLINE | IBV_SEND_SIGNALED),
              0);
    ibv_wc wc{};
    EXPECT_EQ(rdma_get_send_comp(active, &wc), 1);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  });
  rdma_cm_id* passive = nullptr;
  ASSERT_EQ(rdma_get_request(listener, &passive), 0);
  ASSERT_NE(passive->qp, nullptr);
  ASSERT_NE(passive->event, nullptr);
  EXPECT_EQ(passive->event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_STREQ(static_cast<const char*>(passive->event->param.conn.private_data), question);
  char answer[64] = {};
  ibv_mr* const mr = rdma_reg_msgs(passive, answer, sizeof answer);
  ASSERT_NE(mr, nullptr);
  ASSERT_EQ(rdma_post_recv(passive, nullptr, answer, sizeof answer, mr), 0);
  ASSERT_EQ(rdma_accept(passive, nullptr), 0);
  EXPECT_EQ(passive->event->event, RDMA_CM_EVENT_ESTABLISHED);
  ibv_wc wc{};
  ASSERT_EQ(rdma_get_recv_comp(passive, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_STREQ(answer, question);
  asks.join();
  ASSERT_EQ(rdma_disconnect(active), 0);
  EXPECT_EQ(active->event->event, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(rdma_disconnect(passive), 0);
  EXPECT_EQ(rdma_dereg_mr(mr), 0);
  for (rdma_cm_id* const id : {active, passive, listener}) rdma_destroy_ep(id);
  rdma_freeaddrinfo(at);
  rdma_freeaddrinfo(to);
}

TEST_F(Connections, KnowThePortsOfBothEnds) {
  rdma_cm_id* const listener = listening(7316);
  rdma_cm_id* const active = connecting(7316);
  rdma_cm_id* const passive = accepting();
  EXPECT_NE(rdma_get_src_port(active), 0);
  EXPECT_EQ(rdma_get_dst_port(passive), rdma_get_src_port(active));
  EXPECT_EQ(ntohs(rdma_get_src_port(passive)), 7316);
  EXPECT_EQ(ntohs(rdma_get_dst_port(active)), 7316);
  destroy(active);
  destroy(passive);
  ASSERT_EQ(rdma_destroy_id(listener), 0);
}

}  // namespace
}  // namespace sluice::verbs::test
