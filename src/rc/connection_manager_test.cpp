#include "rc/connection_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "rc/cm_codes.h"
#include "rc/two_adapters.h"
#include "wire/bth.h"
#include "wire/frame.h"

namespace sluice::rc {
namespace {

using Kind = ConnectionEvent::Kind;
using wire::CmMad;
using wire::CmMessageKind;
using wire::CmRejectReason;

constexpr std::uint16_t kPort = 7174;

std::vector<std::uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// Two adapters that connect over their cable.
class Connecting : public testing::Test {
 protected:
  explicit Connecting(const port::ImpairmentSpec* impairment = nullptr) : world(impairment) {}

  ConnectionManager& a() { return world.a.adapter->connections(); }
  ConnectionManager& b() { return world.b.adapter->connections(); }
  QueuePair& make_pair(Host& host) {
    return **host.adapter->create_queue_pair(
        {.pd = host.pd, .send_completions = host.completions, .receive_completions = host.completions});
  }
  wire::Gid gid(const Host& host) { return host.adapter->config().gids[0]; }

  std::optional<ConnectionEvent> wait(ConnectionManager& manager) {
    std::optional<ConnectionEvent> event;
    world.run_until([&] { return (event = manager.poll_event()).has_value(); });
    return event;
  }
  ConnectionEvent expect(ConnectionManager& manager, Kind kind) {
    const auto event = wait(manager);
    EXPECT_TRUE(event) << "no event";
    if (event) {
      EXPECT_EQ(event->kind, kind);
    }
    return event.value_or(ConnectionEvent{});
  }

  struct Both {
    ConnectionId a{};
    ConnectionId b{};
    QueuePair* a_pair = nullptr;
    QueuePair* b_pair = nullptr;
  };
  Both establish() {
    Both both{.a_pair = &make_pair(world.a), .b_pair = &make_pair(world.b)};
    both.a = *a().connect(world.now, gid(world.b), kPort, {.pair = both.a_pair});
    both.b = expect(b(), Kind::kRequest).id;
    EXPECT_TRUE(b().accept(world.now, both.b, {.pair = both.b_pair}));
    EXPECT_EQ(expect(a(), Kind::kEstablished).id, both.a);
    EXPECT_EQ(expect(b(), Kind::kEstablished).id, both.b);
    return both;
  }

  TwoAdapters world;
};

class ConnectionManagerTest : public Connecting {
 protected:
  ConnectionManagerTest() { EXPECT_TRUE(b().listen(kPort)); }
};

TEST_F(ConnectionManagerTest, ConnectsTwoQueuePairsThatThenCarryData) {
  const Both both = establish();
  EXPECT_EQ(both.a_pair->state(), QpState::kReadyToSend);
  EXPECT_EQ(both.b_pair->state(), QpState::kReadyToSend);

  std::vector<std::uint8_t> memory(64);
  const memory::Key key = world.region(world.b, memory, 0x1000);
  const auto data = bytes_of("over a connection made by messages");
  const Sge sge = Sge::of(data);
  ASSERT_EQ(world.a.adapter->post_send(
                world.now, *both.a_pair,
                {.op = SendOp::kWrite, .sges = {&sge, 1}, .remote_address = 0x1000, .remote_key = key}),
            PostError::kNone);
  world.run_until([&] { return world.a.completions->size() != 0; });
  const auto completions = TwoAdapters::take(world.a);
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].status, CompletionStatus::kSuccess);
  EXPECT_TRUE(std::equal(data.begin(), data.end(), memory.begin()));
}

TEST_F(ConnectionManagerTest, EndsAConnectionOnBothSides) {
  const Both both = establish();
  a().disconnect(world.now, both.a, bytes_of("bye"));
  EXPECT_EQ(both.a_pair->state(), QpState::kError) << "at once";
  const auto theirs = expect(b(), Kind::kDisconnected);
  EXPECT_EQ(std::string(theirs.private_data.begin(), theirs.private_data.begin() + 3), "bye");
  EXPECT_EQ(both.b_pair->state(), QpState::kError);
  EXPECT_EQ(expect(a(), Kind::kDisconnected).id, both.a);
  world.settle();
  EXPECT_EQ(a().size(), 0u) << "time-wait ends";
  EXPECT_EQ(b().size(), 0u);
}

TEST_F(ConnectionManagerTest, EndsAConnectionThatBothSidesEndAtOnce) {
  const Both both = establish();
  a().disconnect(world.now, both.a);
  b().disconnect(world.now, both.b);
  expect(a(), Kind::kDisconnected);
  expect(b(), Kind::kDisconnected);
  world.settle();
  EXPECT_FALSE(a().poll_event());
  EXPECT_FALSE(b().poll_event());
  EXPECT_EQ(a().counters().given_up + b().counters().given_up, 0u);
}

TEST_F(ConnectionManagerTest, CarriesPrivateDataBothWays) {
  QueuePair& pair = make_pair(world.a);
  const auto id = a().connect(world.now, gid(world.b), kPort, {.pair = &pair, .private_data = bytes_of("question")});
  ASSERT_TRUE(id);
  const auto request = expect(b(), Kind::kRequest);
  EXPECT_EQ(request.port, kPort);
  EXPECT_EQ(request.remote, gid(world.a));
  EXPECT_EQ(request.remote_qpn, pair.qpn());
  ASSERT_EQ(request.private_data.size(), ConnectionManager::kPrivateIpRequest);
  EXPECT_EQ(std::string(request.private_data.begin(), request.private_data.begin() + 9), std::string("question\0", 9));
  ASSERT_TRUE(b().accept(world.now, request.id, {.pair = &make_pair(world.b), .private_data = bytes_of("answer")}));
  const auto answer = expect(a(), Kind::kEstablished);
  EXPECT_EQ(answer.private_data.size(), ConnectionManager::kPrivateReply);
  EXPECT_EQ(std::string(answer.private_data.begin(), answer.private_data.begin() + 6), "answer");
}

TEST_F(ConnectionManagerTest, ServesRawServiceIdsWithAllTheirPrivateData) {
  constexpr ServiceId kService{0x1000'0000'0000'0007};
  ASSERT_TRUE(b().listen(kService));
  const std::vector<std::uint8_t> all(ConnectionManager::kPrivateRequest, 0x5A);
  ASSERT_TRUE(a().connect(world.now, gid(world.b), kService, {.pair = &make_pair(world.a), .private_data = all}));
  const auto request = expect(b(), Kind::kRequest);
  EXPECT_EQ(request.service, kService);
  EXPECT_EQ(request.port, 0);
  EXPECT_EQ(request.private_data, all);
}

TEST_F(ConnectionManagerTest, AgreesOnTheSmallerNumberOfReadsInFlight) {
  struct Case {
    std::uint8_t a_accepts, a_starts, b_accepts, b_starts;
    std::uint8_t a_may_start, b_may_start;
  };
  for (const Case& c : {Case{16, 16, 16, 16, 16, 16}, Case{4, 8, 16, 16, 8, 4}, Case{16, 16, 3, 2, 3, 2},
                        Case{1, 200, 200, 200, 16, 1}, Case{0, 0, 16, 16, 0, 0}}) {
    QueuePair& a_pair = make_pair(world.a);
    QueuePair& b_pair = make_pair(world.b);
    ASSERT_TRUE(a().connect(world.now, gid(world.b), kPort,
                            {.pair = &a_pair, .responder_resources = c.a_accepts, .initiator_depth = c.a_starts}));
    const auto request = expect(b(), Kind::kRequest);
    ASSERT_TRUE(b().accept(world.now, request.id,
                           {.pair = &b_pair, .responder_resources = c.b_accepts, .initiator_depth = c.b_starts}));
    const auto on_a = expect(a(), Kind::kEstablished);
    const auto on_b = expect(b(), Kind::kEstablished);
    EXPECT_EQ(on_a.initiator_depth, c.a_may_start);
    EXPECT_EQ(on_b.responder_resources, c.a_may_start);
    EXPECT_EQ(on_b.initiator_depth, c.b_may_start);
    EXPECT_EQ(on_a.responder_resources, c.b_may_start);
    EXPECT_EQ(a_pair.attributes().max_reads_out, std::max<std::uint8_t>(c.a_may_start, 1));
    EXPECT_EQ(b_pair.attributes().max_reads_in, std::max<std::uint8_t>(c.a_may_start, 1));
  }
}

TEST_F(ConnectionManagerTest, GivesTheQueuePairsWhatTheMessagesSay) {
  QueuePair& a_pair = make_pair(world.a);
  QueuePair& b_pair = make_pair(world.b);
  ASSERT_TRUE(a().connect(world.now, gid(world.b), kPort,
                          {.pair = &a_pair,
                           .psn = Psn(0x123456),
                           .retry_count = 3,
                           .rnr_retry_count = 4,
                           .ack_timeout = 17,
                           .path_mtu = 2048}));
  const auto request = expect(b(), Kind::kRequest);
  EXPECT_EQ(request.send_psn, Psn(0x123456));
  ASSERT_TRUE(b().accept(world.now, request.id, {.pair = &b_pair, .psn = Psn(0x654321), .rnr_retry_count = 5}));
  expect(a(), Kind::kEstablished);
  EXPECT_EQ(a_pair.attributes().remote_qpn, b_pair.qpn());
  EXPECT_EQ(b_pair.attributes().remote_qpn, a_pair.qpn());
  // A message says where its receiver shall begin to send.
  EXPECT_EQ(b_pair.attributes().send_psn, Psn(0x123456));
  EXPECT_EQ(a_pair.attributes().receive_psn, Psn(0x123456));
  EXPECT_EQ(a_pair.attributes().send_psn, Psn(0x654321));
  EXPECT_EQ(b_pair.attributes().receive_psn, Psn(0x654321));
  EXPECT_EQ(a_pair.attributes().path_mtu, 2048u);
  EXPECT_EQ(b_pair.attributes().path_mtu, 2048u);
  EXPECT_EQ(a_pair.attributes().timeout, 17);
  EXPECT_EQ(b_pair.attributes().timeout, 17);
  EXPECT_EQ(b_pair.attributes().retry_count, 3) << "the REQ's, for the peer that accepts it";
  EXPECT_EQ(b_pair.attributes().rnr_retry_count, 4);
  EXPECT_EQ(a_pair.attributes().rnr_retry_count, 5) << "the REP's";
}

TEST_F(ConnectionManagerTest, IsRejectedWhereNobodyListens) {
  QueuePair& pair = make_pair(world.a);
  ASSERT_TRUE(a().connect(world.now, gid(world.b), 9999, {.pair = &pair}));
  EXPECT_EQ(expect(a(), Kind::kRejected).reject_reason, CmRejectReason::kInvalidServiceId);
  EXPECT_EQ(pair.state(), QpState::kError);
  b().stop_listening(kPort);
  ASSERT_TRUE(a().connect(world.now, gid(world.b), kPort, {.pair = &make_pair(world.a)}));
  EXPECT_EQ(expect(a(), Kind::kRejected).reject_reason, CmRejectReason::kInvalidServiceId);
  EXPECT_EQ(a().size() + b().size(), 0u);
}

TEST_F(ConnectionManagerTest, IsRejectedByTheProgramWithItsWords) {
  ASSERT_TRUE(a().connect(world.now, gid(world.b), kPort, {.pair = &make_pair(world.a)}));
  b().reject(world.now, expect(b(), Kind::kRequest).id, bytes_of("not today"));
  const auto event = expect(a(), Kind::kRejected);
  EXPECT_EQ(event.reject_reason, CmRejectReason::kConsumerDefined);
  EXPECT_EQ(std::string(event.private_data.begin(), event.private_data.begin() + 9), "not today");
  EXPECT_EQ(a().size() + b().size(), 0u);
}

TEST_F(ConnectionManagerTest, DoesNotTakeAPacketOfAnotherTimeForAReadyMessage) {
  QueuePair& a_pair = make_pair(world.a);
  QueuePair& b_pair = make_pair(world.b);
  ASSERT_TRUE(a().connect(world.now, gid(world.b), kPort, {.pair = &a_pair}));
  const auto request = expect(b(), Kind::kRequest);
  ASSERT_TRUE(b().accept(world.now, request.id, {.pair = &b_pair}));
  // The REP is lost, and then something comes that an earlier queue pair of the peer's had sent.
  world.b.turn(world.now);
  port::Frame lost[8];
  while (world.a.port->receive(world.now, lost) != 0) {
  }
  const wire::HeaderTemplate headers({.source_mac = world.a.adapter->config().mac,
                                      .destination_mac = world.b.adapter->config().mac,
                                      .source = gid(world.a),
                                      .destination = gid(world.b)});
  std::vector<std::uint8_t> frame(headers.frame_size(wire::Bth::kSize));
  const std::size_t at = headers.write(frame.data(), wire::Bth::kSize);
  wire::Bth{.opcode = wire::Opcode::kRcSendOnly, .destination = b_pair.qpn(), .psn = b_pair.expected_psn() - 77}.write(
      frame.data() + at);
  headers.seal(frame.data(), at + wire::Bth::kSize);
  world.b.adapter->on_frame(world.now, {frame.data(), static_cast<std::uint32_t>(frame.size())});
  EXPECT_FALSE(b().poll_event());
  expect(a(), Kind::kEstablished);
  expect(b(), Kind::kEstablished);
}

TEST_F(ConnectionManagerTest, LetsACarefulCallerMoveHisOwnQueuePairs) {
  QueuePair& a_pair = make_pair(world.a);
  QueuePair& b_pair = make_pair(world.b);
  const auto a_id = a().connect(world.now, gid(world.b), kPort, {.qpn = a_pair.qpn(), .psn = Psn(7)});
  ASSERT_TRUE(a_id);
  EXPECT_FALSE(a().attributes(*a_id, QpState::kReadyToReceive)) << "nothing known yet";
  const auto request = expect(b(), Kind::kRequest);
  ASSERT_TRUE(world.b.adapter->modify(world.now, b_pair, *b().attributes(request.id, QpState::kInit)));
  ASSERT_TRUE(world.b.adapter->modify(world.now, b_pair, *b().attributes(request.id, QpState::kReadyToReceive)));
  ASSERT_TRUE(b().accept(world.now, request.id, {.qpn = b_pair.qpn()}));
  ASSERT_TRUE(world.b.adapter->modify(world.now, b_pair, *b().attributes(request.id, QpState::kReadyToSend)));

  EXPECT_EQ(expect(a(), Kind::kResponse).id, *a_id);
  EXPECT_EQ(a_pair.state(), QpState::kReset);
  for (const QpState state : {QpState::kInit, QpState::kReadyToReceive, QpState::kReadyToSend}) {
    ASSERT_TRUE(world.a.adapter->modify(world.now, a_pair, *a().attributes(*a_id, state)));
  }
  EXPECT_FALSE(b().poll_event()) << "no RTU before establish()";
  ASSERT_TRUE(a().establish(world.now, *a_id));
  expect(b(), Kind::kEstablished);
  EXPECT_EQ(a_pair.attributes().receive_psn, Psn(7));
  EXPECT_EQ(b_pair.attributes().send_psn, Psn(7));
  EXPECT_EQ(a_pair.attributes().send_psn, b_pair.attributes().receive_psn);
  EXPECT_FALSE(a().poll_event());
  EXPECT_FALSE(a().establish(world.now, *a_id)) << "only once";
}

TEST_F(ConnectionManagerTest, KeepsTheConnectionWhileACallerTakesHisTime) {
  QueuePair& a_pair = make_pair(world.a);
  const auto a_id = *a().connect(world.now, gid(world.b), kPort, {.qpn = a_pair.qpn()});
  const auto request = expect(b(), Kind::kRequest);
  ASSERT_TRUE(b().accept(world.now, request.id, {.pair = &make_pair(world.b)}));
  expect(a(), Kind::kResponse);
  const Time until = world.now + Duration::seconds(20);
  world.run_until([&] { return world.now >= until; });
  EXPECT_GT(a().counters().duplicates, 0u) << "the peer asks, and is told to wait";
  ASSERT_TRUE(a().establish(world.now, a_id));
  expect(b(), Kind::kEstablished);
}

TEST_F(ConnectionManagerTest, KeepsTheRequestWhileTheProgramDecides) {
  ASSERT_TRUE(a().connect(world.now, gid(world.b), kPort, {.pair = &make_pair(world.a)}));
  const auto request = expect(b(), Kind::kRequest);
  const Time until = world.now + Duration::seconds(60);
  world.run_until([&] { return world.now >= until; });
  EXPECT_FALSE(a().poll_event());
  EXPECT_FALSE(b().poll_event()) << "a duplicate is no second request";
  ASSERT_TRUE(b().accept(world.now, request.id, {.pair = &make_pair(world.b)}));
  expect(a(), Kind::kEstablished);
  expect(b(), Kind::kEstablished);
}

TEST_F(ConnectionManagerTest, FindsOutThatThePeerHasStartedAnewAndConnectsAgain) {
  const Both before = establish();
  // The peer's process dies without a word; its successor has the same addresses and the same QPNs, but other names and PSNs.
  AdapterConfig config = world.a.adapter->config();
  config.seed += 1000;
  config.regions = nullptr;
  world.a.adapter = std::make_unique<Adapter>(config);
  world.a.pd = world.a.adapter->create_domain();
  world.a.completions = world.a.adapter->create_completion_queue(64);
  QueuePair& pair = make_pair(world.a);
  ASSERT_EQ(pair.qpn(), Qpn(0x100)) << "the first of its adapter, as before";
  const auto id = a().connect(world.now, gid(world.b), kPort, {.pair = &pair});
  ASSERT_TRUE(id);
  EXPECT_EQ(expect(b(), Kind::kDisconnected).id, before.b);
  EXPECT_EQ(before.b_pair->state(), QpState::kError);
  const auto request = expect(b(), Kind::kRequest);
  ASSERT_TRUE(b().accept(world.now, request.id, {.pair = &make_pair(world.b)}));
  EXPECT_EQ(expect(a(), Kind::kEstablished).id, *id);
  EXPECT_EQ(b().counters().stale, 1u);
}

TEST_F(ConnectionManagerTest, FindsOutThatTheServerHasStartedAnewAndConnectsAgain) {
  const Both before = establish();
  AdapterConfig config = world.b.adapter->config();
  config.seed += 1000;
  config.regions = nullptr;
  world.b.adapter = std::make_unique<Adapter>(config);
  world.b.pd = world.b.adapter->create_domain();
  world.b.completions = world.b.adapter->create_completion_queue(64);
  ASSERT_TRUE(b().listen(kPort));
  QueuePair& pair = make_pair(world.a);
  const auto id = a().connect(world.now, gid(world.b), kPort, {.pair = &pair});
  ASSERT_TRUE(id);
  bool established = false;
  std::vector<ConnectionId> gone;
  world.run_until([&] {
    while (const auto event = b().poll_event()) {
      if (event->kind != Kind::kRequest) continue;
      EXPECT_TRUE(b().accept(world.now, event->id, {.pair = &make_pair(world.b)}));
    }
    while (const auto event = a().poll_event()) {
      if (event->kind == Kind::kDisconnected) gone.push_back(event->id);
      if (event->kind == Kind::kEstablished) established = event->id == *id;
    }
    return established;
  });
  EXPECT_TRUE(established);
  EXPECT_EQ(gone, std::vector{before.a});
  EXPECT_EQ(before.a_pair->state(), QpState::kError);
}

TEST_F(ConnectionManagerTest, FindsOutThatNobodyKnowsOfWhatItAccepts) {
  ASSERT_TRUE(a().connect(world.now, gid(world.b), kPort, {.pair = &make_pair(world.a)}));
  const auto request = expect(b(), Kind::kRequest);
  AdapterConfig config = world.a.adapter->config();
  config.seed += 1000;
  config.regions = nullptr;
  world.a.adapter = std::make_unique<Adapter>(config);
  EXPECT_EQ(a().size(), 0u);
  QueuePair& pair = make_pair(world.b);
  const Time start = world.now;
  ASSERT_TRUE(b().accept(world.now, request.id, {.pair = &pair}));
  EXPECT_EQ(expect(b(), Kind::kRejected).reject_reason, CmRejectReason::kInvalidCommId);
  EXPECT_LT(world.now - start, Duration::milliseconds(1)) << "a round trip";
  EXPECT_EQ(pair.state(), QpState::kError);
  EXPECT_EQ(b().size(), 0u);
}

TEST_F(ConnectionManagerTest, TellsThePeerOfWhateverItsOwnerReleases) {
  // While asking.
  auto id = *a().connect(world.now, gid(world.b), kPort, {.pair = &make_pair(world.a)});
  expect(b(), Kind::kRequest);
  a().release(world.now, id);
  EXPECT_EQ(expect(b(), Kind::kRejected).reject_reason, CmRejectReason::kTimeout);
  // While being asked.
  id = *a().connect(world.now, gid(world.b), kPort, {.pair = &make_pair(world.a)});
  b().release(world.now, expect(b(), Kind::kRequest).id);
  EXPECT_EQ(expect(a(), Kind::kRejected).reject_reason, CmRejectReason::kConsumerDefined);
  // Once established.
  const Both both = establish();
  b().release(world.now, both.b);
  expect(a(), Kind::kDisconnected);
  world.settle();
  EXPECT_FALSE(a().poll_event());
  EXPECT_FALSE(b().poll_event());
  EXPECT_EQ(a().size() + b().size(), 0u);
}

TEST_F(ConnectionManagerTest, GivesUpWhereNobodyAnswers) {
  QueuePair& pair = make_pair(world.a);
  const Time start = world.now;
  ASSERT_TRUE(a().connect(world.now, *wire::Gid::parse("10.77.0.99"), kPort, {.pair = &pair, .max_retries = 3}));
  expect(a(), Kind::kUnreachable);
  const Duration patience = wire::cm_timeout(16) * 4;  // 200 ms is rounded up to 268 ms
  EXPECT_GE(world.now - start, patience);
  EXPECT_LT(world.now - start, patience + Duration::microseconds(10));
  EXPECT_EQ(pair.state(), QpState::kError);
  EXPECT_EQ(a().size(), 0u);
}

TEST_F(ConnectionManagerTest, RefusesParametersThatCannotWork) {
  QueuePair& pair = make_pair(world.a);
  const auto error = [&](const ConnectionParameters& p, const char* to = "10.77.0.2") {
    const auto result = a().connect(world.now, *wire::Gid::parse(to), kPort, p);
    return result ? std::string("accepted") : result.error().message;
  };
  EXPECT_THAT(error({.pair = &pair, .private_data = std::vector<std::uint8_t>(57)}), testing::HasSubstr("at most 56"));
  EXPECT_THAT(error({.pair = &pair, .path_mtu = 1500}), testing::HasSubstr("path MTU 1500"));
  EXPECT_THAT(error({.pair = &pair, .max_retries = 16}), testing::HasSubstr("at most 15"));
  EXPECT_THAT(error({.pair = &pair}, "fe80::1"), testing::HasSubstr("no IPv6 address"));
  EXPECT_EQ(a().size(), 0u);
  EXPECT_EQ(pair.state(), QpState::kReset);
  EXPECT_FALSE(b().listen(kPort)) << "twice";
  EXPECT_FALSE(b().accept(world.now, ConnectionId(1), {}));
}

// --- one manager against messages made by hand ---

class ManagerAlone : public testing::Test {
 protected:
  explicit ManagerAlone(std::uint32_t reads = 16) : max_reads(reads) { EXPECT_TRUE(manager.listen(kPort)); }

  void receive(const wire::CmMessage& message, std::uint64_t transaction = 77) { receive(from, message, transaction); }
  void receive(const UdDestination& sender, const wire::CmMessage& message, std::uint64_t transaction = 77) {
    std::array<std::uint8_t, wire::kMadSize> mad{};
    wire::write_cm(mad.data(), {transaction, message});
    manager.on_mad(now, sender, mad);
  }
  std::vector<CmMad> sent() {
    std::vector<CmMad> all;
    std::array<std::uint8_t, wire::kMadSize> mad{};
    UdDestination to;
    while (manager.poll_mad(now, to, mad)) {
      all.push_back(wire::parse_cm(mad).value());
      last_to = to;
    }
    return all;
  }
  // The only message sent, of this kind.
  template <class M>
  M sent_only() {
    const auto all = sent();
    EXPECT_EQ(all.size(), 1u);
    if (all.size() != 1 || !std::holds_alternative<M>(all[0].message)) {
      ADD_FAILURE() << "another message, or none";
      return M{};
    }
    last_transaction = all[0].transaction_id;
    return std::get<M>(all[0].message);
  }
  Kind next_kind() {
    const auto event = manager.poll_event();
    EXPECT_TRUE(event);
    last_event = event.value_or(ConnectionEvent{});
    return last_event.kind;
  }
  wire::CmReq request() const {
    wire::CmReq req{.local_comm_id = wire::CommId(0x1111),
                    .service_id = wire::rdma_service(kPort),
                    .local_ca_guid = 0xABCD,
                    .local_qpn = Qpn(0x55),
                    .responder_resources = 4,
                    .initiator_depth = 4,
                    .remote_cm_response_timeout = 18,
                    .starting_psn = Psn(100),
                    .local_cm_response_timeout = 18,
                    .retry_count = 7,
                    .path_mtu = 3,
                    .rnr_retry_count = 7,
                    .max_cm_retries = 3};
    req.primary = {.local_gid = from.gid, .remote_gid = own, .local_ack_timeout = 14};
    wire::IpCmHeader{.source_port = 1, .source = from.gid, .destination = own}.write(req.private_data.data());
    return req;
  }
  // The peer has heard nothing from us.
  void give_up() {
    wire::CmRej rej{.local_comm_id = wire::CommId(0x1111),
                    .rejected = CmMessageKind::kReq,
                    .info_length = 8,
                    .reason = CmRejectReason::kTimeout};
    store_be<std::uint64_t>(rej.info.data(), 0xABCD);
    receive(rej);
  }
  QueuePair& make_pair() {
    return **adapter.create_queue_pair(
        {.pd = adapter.create_domain(), .send_completions = completions, .receive_completions = completions});
  }
  // Its owner takes it for something else.
  void reuse_pair() {
    ASSERT_EQ(pair->state(), QpState::kError);
    ASSERT_TRUE(adapter.modify(now, *pair, {.state = QpState::kReset}));
    ASSERT_TRUE(adapter.modify(now, *pair, {.state = QpState::kInit, .access = memory::kRemoteWrite}));
  }
  // Brings a passive connection to where its REP is out, and takes that.
  wire::CmRep reply_to_request() {
    receive(request());
    EXPECT_EQ(next_kind(), Kind::kRequest);
    pair = &make_pair();
    EXPECT_TRUE(manager.accept(now, last_event.id, {.pair = pair}));
    return sent_only<wire::CmRep>();
  }
  // … and to where it is established.
  wire::CmRep establish() {
    const auto rep = reply_to_request();
    receive(wire::CmRtu{.local_comm_id = wire::CommId(0x1111), .remote_comm_id = rep.local_comm_id});
    EXPECT_EQ(next_kind(), Kind::kEstablished);
    return rep;
  }
  wire::CmReq connect(Duration patience = {}) {
    pair = &make_pair();
    id = manager.connect(now, from.gid, kPort, {.pair = pair, .max_retries = 3, .patience = patience}).value();
    return sent_only<wire::CmReq>();
  }
  wire::CmRep reply_for(const wire::CmReq& req) const {
    return {.local_comm_id = wire::CommId(0x2222),
            .remote_comm_id = req.local_comm_id,
            .local_qpn = Qpn(0x66),
            .starting_psn = Psn(5),
            .responder_resources = 4,
            .initiator_depth = 4,
            .rnr_retry_count = 7,
            .local_ca_guid = 0xABCD};
  }
  void wait(Duration d) {
    const Time end = now + d;
    while (manager.next_deadline() <= end) {
      now = std::max(now, manager.next_deadline());
      manager.on_deadline(now);
    }
    now = end;
  }

  const std::uint32_t max_reads;
  const wire::Gid own = *wire::Gid::parse("10.77.0.1");
  const UdDestination from{
      .gid = *wire::Gid::parse("10.77.0.2"), .mac = {{2, 0, 0, 0, 0, 2}}, .qpn = wire::kCmQpn, .qkey = wire::kCmQkey};
  Adapter adapter{[&] {
    AdapterConfig config;
    config.mac = {{2, 0, 0, 0, 0, 1}};
    config.gids = {own};
    config.mtu = 2048;
    config.limits.max_reads_in_flight = max_reads;
    return config;
  }()};
  CompletionQueue* completions = adapter.create_completion_queue(1024);
  ConnectionManager& manager = adapter.connections();
  QueuePair* pair = nullptr;
  ConnectionId id{};
  Time now = Time::at(Duration::seconds(1));
  ConnectionEvent last_event;
  UdDestination last_to;
  std::uint64_t last_transaction = 0;
};

// Its queue pairs cannot be made ready.
class ManagerWithoutReads : public ManagerAlone {
 protected:
  ManagerWithoutReads() : ManagerAlone(0) {}
};

TEST_F(ManagerAlone, AnswersARequestWithItsTransactionAndIds) {
  const auto rep = reply_to_request();
  EXPECT_EQ(last_transaction, 77u);
  EXPECT_EQ(rep.remote_comm_id, wire::CommId(0x1111));
  EXPECT_EQ(rep.local_qpn, pair->qpn());
  EXPECT_EQ(rep.local_ca_guid, 0x000000FFFE000001u) << "EUI-64 of 02:00:00:00:00:01";
  EXPECT_EQ(last_to.mac, from.mac);
  EXPECT_EQ(last_to.gid, from.gid);
  EXPECT_EQ(last_to.qpn, wire::kCmQpn);
}

TEST_F(ManagerAlone, RepeatsItsReplyToARepeatedRequest) {
  const auto rep = reply_to_request();
  receive(request());
  EXPECT_EQ(sent_only<wire::CmRep>(), rep);
  EXPECT_FALSE(manager.poll_event());
}

TEST_F(ManagerAlone, RepeatsItsReplyUntilThePeerIsReady) {
  const auto rep = reply_to_request();
  wait(wire::cm_timeout(16));
  EXPECT_EQ(sent_only<wire::CmRep>(), rep);
  receive(wire::CmRtu{.local_comm_id = wire::CommId(0x1111), .remote_comm_id = rep.local_comm_id});
  EXPECT_EQ(next_kind(), Kind::kEstablished);
  wait(Duration::seconds(60));
  EXPECT_TRUE(sent().empty());
}

TEST_F(ManagerAlone, GivesUpAPeerThatNeverGetsReadyOnlyAfterTheTimeThatItAskedFor) {
  reply_to_request();
  const Time start = now;
  while (!manager.poll_event()) wait(Duration::milliseconds(1));
  // 18 is 1.07 s, and three retries make four.
  EXPECT_GE(now - start, wire::cm_timeout(18) * 4);
  EXPECT_LT(now - start, wire::cm_timeout(18) * 4 + Duration::milliseconds(10));
  const auto all = sent();
  ASSERT_FALSE(all.empty());
  const auto* rej = std::get_if<wire::CmRej>(&all.back().message);
  ASSERT_NE(rej, nullptr);
  EXPECT_EQ(rej->reason, CmRejectReason::kTimeout);
  EXPECT_EQ(rej->rejected, CmMessageKind::kRep);
  EXPECT_EQ(pair->state(), QpState::kError);
}

TEST_F(ManagerAlone, AsksThePeerToWaitWhileTheProgramDecides) {
  receive(request());
  receive(request());
  const auto mra = sent_only<wire::CmMra>();
  EXPECT_EQ(mra.received, CmMessageKind::kReq);
  EXPECT_EQ(mra.remote_comm_id, wire::CommId(0x1111));
  EXPECT_EQ(next_kind(), Kind::kRequest);
  EXPECT_FALSE(manager.poll_event());
}

TEST_F(ManagerAlone, ForgetsARequestWhosePeerAsksNoMore) {
  receive(request());
  EXPECT_EQ(next_kind(), Kind::kRequest);
  for (int i = 0; i < 10; ++i) {
    wait(Duration::seconds(20));  // 1.07 s and, whenever it is told to wait, 4.3 s, four times
    receive(request());
  }
  EXPECT_FALSE(manager.poll_event()) << "it waits still";
  wait(Duration::seconds(22));
  EXPECT_EQ(next_kind(), Kind::kUnreachable);
  EXPECT_EQ(manager.size(), 0u);
  EXPECT_FALSE(manager.accept(now, last_event.id, {.pair = &make_pair()}));
}

TEST_F(ManagerAlone, RejectsWhatItCannotServe) {
  const auto reason_for = [&](const std::function<void(wire::CmReq&)>& change) {
    auto req = request();
    change(req);
    receive(req);
    const auto rej = sent_only<wire::CmRej>();
    EXPECT_EQ(rej.rejected, CmMessageKind::kReq);
    EXPECT_EQ(rej.remote_comm_id, wire::CommId(0x1111));
    return rej.reason;
  };
  EXPECT_EQ(reason_for([](auto& r) { r.service_id = wire::rdma_service(1); }), CmRejectReason::kInvalidServiceId);
  EXPECT_EQ(reason_for([](auto& r) { r.transport_service = 1; }), CmRejectReason::kInvalidTransportType);
  EXPECT_EQ(reason_for([](auto& r) { r.primary.remote_gid = *wire::Gid::parse("10.77.0.9"); }),
            CmRejectReason::kInvalidGid);
  EXPECT_EQ(reason_for([](auto& r) { r.primary.local_gid = *wire::Gid::parse("10.77.0.9"); }),
            CmRejectReason::kInvalidGid);
  EXPECT_EQ(last_to.gid, from.gid) << "to whoever has asked";
  EXPECT_EQ(reason_for([](auto& r) { r.path_mtu = 5; }), CmRejectReason::kInvalidMtu);
  EXPECT_EQ(reason_for([](auto& r) { r.path_mtu = 0; }), CmRejectReason::kInvalidMtu);
  EXPECT_EQ(reason_for([](auto& r) { r.private_data[1] = 0x70; }), CmRejectReason::kUnsupported);
  EXPECT_FALSE(manager.poll_event());
  EXPECT_EQ(manager.size(), 0u);
}

TEST_F(ManagerAlone, RepeatsItsRequestAndSaysReadyToEveryReply) {
  const auto req = connect();
  wait(wire::cm_timeout(16));
  EXPECT_EQ(sent_only<wire::CmReq>(), req);
  receive(reply_for(req));
  EXPECT_EQ(next_kind(), Kind::kEstablished);
  const auto rtu = sent_only<wire::CmRtu>();
  EXPECT_EQ(rtu.remote_comm_id, wire::CommId(0x2222));
  receive(reply_for(req));
  EXPECT_EQ(sent_only<wire::CmRtu>(), rtu);
  EXPECT_FALSE(manager.poll_event());
}

TEST_F(ManagerAlone, WaitsLongerForAPeerThatAsksForTime) {
  const auto req = connect();
  receive(wire::CmMra{.local_comm_id = wire::CommId(0x2222),
                      .remote_comm_id = req.local_comm_id,
                      .received = CmMessageKind::kReq,
                      .service_timeout = 22});  // 17 s
  wait(wire::cm_timeout(22));
  EXPECT_TRUE(sent().empty());
  EXPECT_FALSE(manager.poll_event());
  wait(wire::cm_timeout(16));
  EXPECT_EQ(sent_only<wire::CmReq>(), req) << "then asks again";
}

TEST_F(ManagerAlone, TellsAPeerThatRepliesToNothing) {
  receive(wire::CmRep{.local_comm_id = wire::CommId(0x2222), .remote_comm_id = wire::CommId(0x9999)});
  const auto rej = sent_only<wire::CmRej>();
  EXPECT_EQ(rej.reason, CmRejectReason::kInvalidCommId);
  EXPECT_EQ(rej.rejected, CmMessageKind::kRep);
  EXPECT_EQ(rej.local_comm_id, wire::CommId(0x9999));
  EXPECT_EQ(rej.remote_comm_id, wire::CommId(0x2222));
}

TEST_F(ManagerAlone, AnswersADisconnectInEveryState) {
  // Of a connection that it does not know (any more).
  receive(wire::CmDreq{.local_comm_id = wire::CommId(1), .remote_comm_id = wire::CommId(2), .remote_qpn = Qpn(3)}, 5);
  auto drep = sent_only<wire::CmDrep>();
  EXPECT_EQ(drep.local_comm_id, wire::CommId(2));
  EXPECT_EQ(drep.remote_comm_id, wire::CommId(1));
  EXPECT_EQ(last_transaction, 5u);
  // Of one whose RTU was lost.
  const auto rep = reply_to_request();
  const wire::CmDreq dreq{
      .local_comm_id = wire::CommId(0x1111), .remote_comm_id = rep.local_comm_id, .remote_qpn = rep.local_qpn};
  receive(dreq);
  sent_only<wire::CmDrep>();
  EXPECT_EQ(next_kind(), Kind::kDisconnected);
  EXPECT_EQ(pair->state(), QpState::kError);
  // Of one that is over.
  receive(dreq);
  sent_only<wire::CmDrep>();
  EXPECT_FALSE(manager.poll_event());
}

TEST_F(ManagerAlone, IsNotDisconnectedByAMessageForAnotherQueuePair) {
  const auto rep = establish();
  receive(wire::CmDreq{
      .local_comm_id = wire::CommId(0x1111), .remote_comm_id = rep.local_comm_id, .remote_qpn = Qpn(0x777)});
  EXPECT_TRUE(sent().empty());
  EXPECT_FALSE(manager.poll_event());
  EXPECT_EQ(pair->state(), QpState::kReadyToSend);
}

TEST_F(ManagerAlone, RepeatsItsDisconnectAndGoesOnWithoutAnAnswer) {
  establish();
  manager.disconnect(now, last_event.id);
  sent_only<wire::CmDreq>();
  EXPECT_FALSE(manager.poll_event()) << "not yet";
  wait(Duration::seconds(10));
  EXPECT_EQ(next_kind(), Kind::kDisconnected);
  EXPECT_EQ(sent().size(), 10u);
  wait(Duration::seconds(10));
  EXPECT_EQ(manager.size(), 0u);
}

TEST_F(ManagerAlone, RejectsAStalePeerAndLetsItsOldConnectionGo) {
  establish();
  const ConnectionId old = last_event.id;
  auto again = request();
  again.local_comm_id = wire::CommId(0x3333);
  again.starting_psn = Psn(9);
  receive(again);
  const auto all = sent();
  ASSERT_EQ(all.size(), 2u);
  const auto& dreq = std::get<wire::CmDreq>(all[0].message);
  EXPECT_EQ(dreq.remote_qpn, Qpn(0x55));
  EXPECT_EQ(std::get<wire::CmRej>(all[1].message).reason, CmRejectReason::kStaleConnection);
  receive(wire::CmDrep{.local_comm_id = dreq.remote_comm_id, .remote_comm_id = dreq.local_comm_id});
  EXPECT_EQ(next_kind(), Kind::kDisconnected);
  EXPECT_EQ(last_event.id, old);
  receive(again);
  EXPECT_EQ(next_kind(), Kind::kRequest);
}

TEST_F(ManagerAlone, LetsNoStrangerEndAConnectionByItsNames) {
  establish();
  UdDestination stranger = from;
  stranger.gid = *wire::Gid::parse("10.77.0.99");
  stranger.mac = {{2, 0, 0, 0, 0, 0x63}};
  auto theirs = request();  // the peer's GUID and QPN, from an address of its own
  theirs.primary.local_gid = stranger.gid;
  theirs.starting_psn = Psn(9);
  receive(stranger, theirs);  // the peer's communication id, too
  EXPECT_EQ(next_kind(), Kind::kRequest);
  theirs.local_comm_id = wire::CommId(0x3333);
  theirs.local_qpn = Qpn(0x56);
  receive(stranger, theirs);
  EXPECT_EQ(next_kind(), Kind::kRequest);
  wire::CmRej rej{.local_comm_id = wire::CommId(0x1111),
                  .rejected = CmMessageKind::kRep,
                  .info_length = 8,
                  .reason = CmRejectReason::kTimeout};
  store_be<std::uint64_t>(rej.info.data(), 0xABCD);
  stranger.gid = *wire::Gid::parse("10.77.0.98");
  receive(stranger, rej);
  EXPECT_FALSE(manager.poll_event());
  EXPECT_EQ(sent().size(), 0u);
  EXPECT_EQ(pair->state(), QpState::kReadyToSend);
  EXPECT_EQ(manager.counters().stale, 0u);
}

TEST_F(ManagerAlone, LetsNoServerEndAConnectionWithAnotherByItsNames) {
  establish();
  QueuePair& first = *pair;
  UdDestination server = from;
  server.gid = *wire::Gid::parse("10.77.0.99");
  ASSERT_TRUE(manager.connect(now, server.gid, kPort, {.pair = &make_pair()}));
  auto rep = reply_for(sent_only<wire::CmReq>());
  rep.local_qpn = Qpn(0x55);  // of another's, with that one's GUID
  receive(server, rep);
  EXPECT_EQ(next_kind(), Kind::kEstablished);
  EXPECT_EQ(first.state(), QpState::kReadyToSend);
}

TEST_F(ManagerAlone, KnowsAReusedNameForANewConnection) {
  establish();
  auto again = request();  // the same communication id, as from a peer whose names come from a fixed seed
  again.local_qpn = Qpn(0x56);
  receive(again);
  ASSERT_EQ(sent().size(), 2u);
  wait(Duration::seconds(20));  // nobody answers the DREQ
  EXPECT_EQ(next_kind(), Kind::kDisconnected);
  sent();
  receive(again);
  EXPECT_EQ(next_kind(), Kind::kRequest);
}

TEST_F(ManagerAlone, DoesNotTakeALateDuplicateOfARequestForANewOne) {
  const auto rep = establish();
  receive(wire::CmDreq{
      .local_comm_id = wire::CommId(0x1111), .remote_comm_id = rep.local_comm_id, .remote_qpn = rep.local_qpn});
  sent();
  EXPECT_EQ(next_kind(), Kind::kDisconnected);
  receive(request());
  EXPECT_EQ(sent_only<wire::CmRej>().reason, CmRejectReason::kStaleConnection);
  EXPECT_FALSE(manager.poll_event());
}

TEST_F(ManagerAlone, TriesAgainWhenThePeerCallsItStale) {
  const auto req = connect();
  receive(wire::CmRej{.local_comm_id = wire::CommId(0),
                      .remote_comm_id = req.local_comm_id,
                      .rejected = CmMessageKind::kReq,
                      .reason = CmRejectReason::kStaleConnection});
  EXPECT_FALSE(manager.poll_event());
  wait(Duration::milliseconds(50));
  EXPECT_EQ(sent_only<wire::CmReq>(), req) << "soon";
  wait(Duration::seconds(2));
  EXPECT_EQ(next_kind(), Kind::kRejected) << "but not for ever";
  EXPECT_EQ(last_event.reject_reason, CmRejectReason::kStaleConnection);
}

TEST_F(ManagerAlone, AsksAgainWhereNobodyListensAsLongAsItIsPatient) {
  const auto refuse = [&](const wire::CmReq& req) {
    receive(wire::CmRej{.local_comm_id = wire::CommId(0),
                        .remote_comm_id = req.local_comm_id,
                        .rejected = CmMessageKind::kReq,
                        .reason = CmRejectReason::kInvalidServiceId});
  };
  const auto req = connect(Duration::seconds(1));
  refuse(req);
  EXPECT_FALSE(manager.poll_event());
  wait(Duration::milliseconds(50));
  EXPECT_EQ(sent_only<wire::CmReq>(), req);
  wait(Duration::seconds(1));
  EXPECT_FALSE(manager.poll_event());
  refuse(req);
  EXPECT_EQ(next_kind(), Kind::kRejected);
  EXPECT_EQ(last_event.reject_reason, CmRejectReason::kInvalidServiceId);
}

TEST_F(ManagerAlone, TakesAPacketOnItsQueuePairForAReadyMessage) {
  const auto rep = reply_to_request();
  manager.on_communication_established(now, pair->qpn());
  EXPECT_EQ(next_kind(), Kind::kEstablished);
  receive(wire::CmRtu{.local_comm_id = wire::CommId(0x1111), .remote_comm_id = rep.local_comm_id});
  EXPECT_FALSE(manager.poll_event()) << "once is enough";
}

TEST_F(ManagerAlone, IsToldByNameAloneThatThePeerGaveUp) {
  receive(request());
  EXPECT_EQ(next_kind(), Kind::kRequest);
  give_up();
  EXPECT_EQ(next_kind(), Kind::kRejected);
  EXPECT_FALSE(manager.accept(now, last_event.id, {.pair = &make_pair()}));
}

TEST_F(ManagerAlone, SurvivesAQueuePairThatIsDestroyedUnderIt) {
  establish();
  adapter.destroy(pair);
  manager.disconnect(now, last_event.id);
  wait(Duration::seconds(20));
  EXPECT_EQ(next_kind(), Kind::kDisconnected);
  sent();
  const auto req = connect();
  adapter.destroy(pair);
  receive(reply_for(req));
  EXPECT_EQ(next_kind(), Kind::kRejected);
  EXPECT_EQ(sent_only<wire::CmRej>().reason, CmRejectReason::kNoQp);
}

TEST_F(ManagerAlone, LeavesAQueuePairAloneThatItHasGivenBackByRelease) {
  // Neither the DREP nor the end of our patience concerns it.
  for (const bool answered : {true, false}) {
    const auto rep = establish();
    manager.release(now, last_event.id);
    const auto dreq = sent_only<wire::CmDreq>();
    reuse_pair();
    if (answered) receive(wire::CmDrep{.local_comm_id = dreq.remote_comm_id, .remote_comm_id = rep.local_comm_id});
    wait(Duration::seconds(60));
    EXPECT_EQ(pair->state(), QpState::kInit);
    EXPECT_EQ(manager.size(), 0u);
    sent();
  }
}

TEST_F(ManagerWithoutReads, LeavesAQueuePairAloneThatItHasGivenBackByAnAcceptThatFails) {
  receive(request());
  ASSERT_EQ(next_kind(), Kind::kRequest);
  pair = &make_pair();
  EXPECT_FALSE(manager.accept(now, last_event.id, {.pair = pair}));
  reuse_pair();
  give_up();  // the request still waited
  EXPECT_EQ(next_kind(), Kind::kRejected);
  EXPECT_EQ(pair->state(), QpState::kInit);
}

TEST_F(ManagerAlone, NoFloodOfQuestionsStandsBeforeWhatOthersWaitFor) {
  constexpr std::uint32_t kFlood = 20'000;
  constexpr std::uint32_t kAnswers = 8192;  // of connections, and as many of services, may wait
  auto req = request();
  req.service_id = wire::rdma_service(1);  // nobody's
  const wire::CmSidrReq query{.service_id = wire::rdma_datagram_service(1)};
  for (std::uint32_t i = 0; i < kFlood; ++i) {
    req.local_comm_id = wire::CommId(0x5000 + i);
    receive(req);
    auto another = query;
    another.request_id = wire::SidrRequestId(0x5000 + i);
    receive(another);
  }
  pair = &make_pair();
  ASSERT_TRUE(manager.connect(now, from.gid, kPort, {.pair = pair}));
  std::size_t before = 0;
  const auto all = sent();
  while (before < all.size() && !std::holds_alternative<wire::CmReq>(all[before].message)) ++before;
  EXPECT_LT(before, all.size()) << "ours is among them";
  EXPECT_LE(before, 2 * kAnswers + 1);
  EXPECT_LE(all.size(), 2 * kAnswers + 1);
  EXPECT_GE(manager.counters().dropped, kFlood - kAnswers);
  // Connections and services take turns.
  EXPECT_NE(std::holds_alternative<wire::CmRej>(all[0].message), std::holds_alternative<wire::CmRej>(all[1].message));
}

TEST_F(ManagerAlone, CountsWhatIsNoMessage) {
  std::array<std::uint8_t, wire::kMadSize> mad{};
  manager.on_mad(now, from, mad);
  manager.on_mad(now, from, ByteView(mad).first(20));
  EXPECT_EQ(manager.counters().malformed, 2u);
  receive(wire::CmRtu{});
  receive(wire::CmDrep{});
  receive(wire::CmRej{});
  receive(wire::CmMra{});
  EXPECT_EQ(manager.counters().unexpected, 4u);
  EXPECT_TRUE(sent().empty());
}

// --- over a bad cable ---

struct BadCable : Connecting {
  static const port::ImpairmentSpec& spec() {
    static const port::ImpairmentSpec s = [] {
      port::ImpairmentSpec made;
      made.tx.drop = made.rx.drop = 200'000;
      made.tx.duplicate = made.rx.duplicate = 100'000;
      made.tx.reorder = made.rx.reorder = 100'000;
      made.seed = 11;
      return made;
    }();
    return s;
  }
  BadCable() : Connecting(&spec()) { EXPECT_TRUE(b().listen(kPort)); }
};

TEST_F(BadCable, ConnectsAndDisconnectsThroughLossDuplicationAndReordering) {
  for (int i = 0; i < 100; ++i) {
    const Both both = establish();
    ASSERT_FALSE(HasFailure()) << "connection " << i;
    const bool first = i % 2 == 0;
    (first ? a() : b()).disconnect(world.now, first ? both.a : both.b);
    EXPECT_EQ(expect(a(), Kind::kDisconnected).id, both.a);
    EXPECT_EQ(expect(b(), Kind::kDisconnected).id, both.b);
    world.a.adapter->destroy(both.a_pair);
    world.b.adapter->destroy(both.b_pair);
  }
  world.settle();
  EXPECT_EQ(a().size() + b().size(), 0u);
  EXPECT_FALSE(a().poll_event());
  EXPECT_FALSE(b().poll_event());
  EXPECT_GT(a().counters().resent + b().counters().resent, 100u);
}

// --- codes ---

TEST(CmCodes, RoundDurationsUpToCodes) {
  EXPECT_EQ(code_of_duration(Duration::nanoseconds(1)), 0);
  EXPECT_EQ(code_of_duration(Duration::nanoseconds(4096)), 0);
  EXPECT_EQ(code_of_duration(Duration::nanoseconds(4097)), 1);
  EXPECT_EQ(code_of_duration(Duration::milliseconds(200)), 16);
  EXPECT_EQ(code_of_duration(Duration::max()), 31);
  for (std::uint8_t code = 0; code <= 31; ++code) EXPECT_EQ(code_of_duration(wire::cm_timeout(code)), code);
}

TEST(CmCodes, KnowTheFiveMtus) {
  for (std::uint32_t mtu = 0; mtu < 10'000; ++mtu) {
    const std::uint8_t code = code_of_mtu(mtu);
    if (code != 0) {
      EXPECT_EQ(mtu_of_code(code), mtu);
    }
  }
  EXPECT_EQ(code_of_mtu(4096), 5);
  EXPECT_EQ(mtu_of_code(6), 0u);
}

TEST(CmCodes, MakeTheGuidThatLinuxMakes) {
  EXPECT_EQ(guid_of(*wire::MacAddress::parse("52:54:00:4d:00:0b")), 0x505400FFFE4D000Bu);  // rping_cm.pcap
}

}  // namespace
}  // namespace sluice::rc
