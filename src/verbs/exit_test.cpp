// What a program's end is to its peers: two processes, each with a NIC, on a cable of shared memory.
#include <arpa/inet.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "verbs/abi.h"

namespace sluice::verbs::test {
namespace {

constexpr std::uint16_t kPort = 7400;

void check(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "%d: %s\n", getpid(), what);
  _exit(1);
}

// The next event, acknowledged; of whom.
rdma_cm_id* expect(rdma_event_channel* channel, rdma_cm_event_type kind, int within_ms = 20'000) {
  pollfd ready{channel->fd, POLLIN, 0};
  rdma_cm_event* event = nullptr;
  check(poll(&ready, 1, within_ms) == 1 && rdma_get_cm_event(channel, &event) == 0, rdma_event_str(kind));
  check(event->event == kind, rdma_event_str(event->event));
  rdma_cm_id* const id = event->id;
  rdma_ack_cm_event(event);
  return id;
}

sockaddr_in server_address() {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(kPort);
  inet_pton(AF_INET, "10.77.0.1", &a.sin_addr);
  return a;
}

void make_queue_pair(rdma_cm_id* id) {
  ibv_qp_init_attr init{};
  init.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  init.qp_type = IBV_QPT_RC;
  check(rdma_create_qp(id, nullptr, &init) == 0, "no queue pair");
}

rdma_cm_id* connected(const std::string& cable) {
  setenv("SLUICE_PORT", ("shm:" + cable).c_str(), 1);
  setenv("SLUICE_IP", "10.77.0.2", 1);
  rdma_event_channel* const channel = rdma_create_event_channel();
  rdma_cm_id* id = nullptr;
  check(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0, "no id");
  sockaddr_in to = server_address();
  check(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 2000) == 0, "no address");
  expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
  check(rdma_resolve_route(id, 2000) == 0, "no route");
  expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
  make_queue_pair(id);
  rdma_conn_param parameters{};
  check(rdma_connect(id, &parameters) == 0, "no connection");
  expect(channel, RDMA_CM_EVENT_ESTABLISHED);
  return id;
}

// Serves a client, another process, which connects and then does as it is told.
template <class Client>
void serve(Client client) {
  alarm(60);  // against hanging
  const std::string cable = fmt::format("/tmp/sluice-exit-{}", getpid());
  if (fork() == 0) client(cable);
  setenv("SLUICE_PORT", ("cable:" + cable).c_str(), 1);
  setenv("SLUICE_IP", "10.77.0.1", 1);
  rdma_event_channel* const channel = rdma_create_event_channel();
  rdma_cm_id* listener = nullptr;
  check(rdma_create_id(channel, &listener, nullptr, RDMA_PS_TCP) == 0, "no listener");
  sockaddr_in at = server_address();
  check(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&at)) == 0 && rdma_listen(listener, 1) == 0, "no port");
  rdma_cm_id* const id = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
  make_queue_pair(id);
  rdma_conn_param parameters{};
  check(rdma_accept(id, &parameters) == 0, "not accepted");
  expect(channel, RDMA_CM_EVENT_ESTABLISHED);
  check(expect(channel, RDMA_CM_EVENT_DISCONNECTED, 2000) == id, "another id");
  int status = 0;
  check(wait(&status) > 0 && status == 0, "the client has failed");
  unlink(cable.c_str());
  _exit(0);
}

TEST(ExitDeathTest, EndsTheProgramsConnections) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not opened the device may fork
  const auto client = [](const std::string& cable) {
    connected(cable);
    std::exit(0);
  };
  EXPECT_EXIT(serve(client), testing::ExitedWithCode(0), "");
}

TEST(ExitDeathTest, IsToldToWhatEndsAfterTheNic) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // Older than the NIC, so it goes after it.
  static struct LastOne {
    rdma_cm_id* id = nullptr;
    ~LastOne() {
      if (id == nullptr) return;
      check(rdma_disconnect(id) == 0, "not disconnected");
      check(expect(id->channel, RDMA_CM_EVENT_DISCONNECTED) == id, "another id");
      rdma_destroy_qp(id);
      check(rdma_destroy_id(id) == 0, "not destroyed");
      _exit(0);
    }
  } last_one;
  const auto client = [](const std::string& cable) {
    last_one.id = connected(cable);
    std::exit(1);
  };
  EXPECT_EXIT(serve(client), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice::verbs::test
