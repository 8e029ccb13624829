// Whole operations between two adapters on one cable.
#include <gtest/gtest.h>

#include <numeric>

#include "rc/two_adapters.h"

namespace sluice::rc {
namespace {

constexpr std::uint64_t kRemoteBase = 0x7000'0000;

std::vector<std::uint8_t> pattern(std::size_t length, unsigned seed = 1) {
  std::vector<std::uint8_t> bytes(length);
  Rng rng(seed);
  for (auto& b : bytes) b = static_cast<std::uint8_t>(rng.next());
  return bytes;
}

class Transfer : public ::testing::Test {
 protected:
  Transfer() : remote(1 << 20), key(world.region(world.b, remote, kRemoteBase)), pair(world.connect()) {}

  PostError post(const SendRequest& request) { return world.a.adapter->post_send(world.now, *pair.a, request); }
  Completion one_completion(Host& host) {
    world.run_until([&] { return host.completions->size() != 0; });
    auto all = TwoAdapters::take(host);
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? Completion{.status = CompletionStatus::kGeneralError} : all[0];
  }

  TwoAdapters world;
  std::vector<std::uint8_t> remote;
  memory::Key key;
  TwoAdapters::Pair pair;
};

TEST_F(Transfer, WritesMessagesOfEveryLengthAroundTheMtu) {
  for (const std::size_t length : {0u, 1u, 3u, 8u, 1023u, 1024u, 1025u, 2048u, 5000u, 300'000u}) {
    const auto data = pattern(length, static_cast<unsigned>(length));
    const Sge sge = Sge::of(data);
    ASSERT_EQ(post({.id = length,
                    .op = SendOp::kWrite,
                    .sges = {&sge, 1},
                    .remote_address = kRemoteBase + 16,
                    .remote_key = key}),
              PostError::kNone);
    const Completion c = one_completion(world.a);
    EXPECT_EQ(c.status, CompletionStatus::kSuccess);
    EXPECT_EQ(c.kind, CompletionKind::kWrite);
    EXPECT_EQ(c.id, length);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), remote.begin() + 16)) << length;
  }
}

TEST_F(Transfer, ReadsMessagesOfEveryLengthAroundTheMtu) {
  remote = pattern(remote.size());
  const auto again = world.region(world.b, remote, kRemoteBase);
  for (const std::size_t length : {0u, 1u, 8u, 1024u, 1025u, 5000u, 300'000u}) {
    std::vector<std::uint8_t> into(length);
    const Sge sge = Sge::of(into);
    ASSERT_EQ(post({.op = SendOp::kRead, .sges = {&sge, 1}, .remote_address = kRemoteBase + 5, .remote_key = again}),
              PostError::kNone);
    const Completion c = one_completion(world.a);
    EXPECT_EQ(c.status, CompletionStatus::kSuccess);
    EXPECT_EQ(c.length, length);
    EXPECT_TRUE(std::equal(into.begin(), into.end(), remote.begin() + 5)) << length;
  }
}

TEST_F(Transfer, SwapsAndAddsAndReturnsThePriorValue) {
  store_le<std::uint64_t>(&remote[64], 41);
  std::uint64_t prior = 0;
  const Sge sge{reinterpret_cast<std::uintptr_t>(&prior), 8};
  post({.op = SendOp::kFetchAndAdd,
        .sges = {&sge, 1},
        .remote_address = kRemoteBase + 64,
        .remote_key = key,
        .swap_or_add = 1});
  EXPECT_EQ(one_completion(world.a).kind, CompletionKind::kFetchAndAdd);
  EXPECT_EQ(prior, 41u);
  post({.op = SendOp::kCompareAndSwap,
        .sges = {&sge, 1},
        .remote_address = kRemoteBase + 64,
        .remote_key = key,
        .compare = 42,
        .swap_or_add = 7});
  EXPECT_EQ(one_completion(world.a).status, CompletionStatus::kSuccess);
  EXPECT_EQ(prior, 42u);
  EXPECT_EQ(load_le<std::uint64_t>(&remote[64]), 7u);
  post({.op = SendOp::kCompareAndSwap,
        .sges = {&sge, 1},
        .remote_address = kRemoteBase + 64,
        .remote_key = key,
        .compare = 42,
        .swap_or_add = 9});
  one_completion(world.a);
  EXPECT_EQ(prior, 7u);
  EXPECT_EQ(load_le<std::uint64_t>(&remote[64]), 7u);
}

TEST_F(Transfer, SendsIntoPostedBuffersWithImmediate) {
  std::vector<std::uint8_t> buffer(10'000);
  const Sge into = Sge::of(buffer);
  ASSERT_EQ(world.b.adapter->post_receive(*pair.b, {.id = 9, .sges = {&into, 1}}), PostError::kNone);
  const auto data = pattern(6000);
  const Sge pieces[2] = {Sge::of(ByteView(data).first(1500)), Sge::of(ByteView(data).subspan(1500))};
  post({.op = SendOp::kSendWithImmediate, .sges = pieces, .immediate = 0xAABBCCDD});
  const Completion received = one_completion(world.b);
  EXPECT_EQ(received.kind, CompletionKind::kReceive);
  EXPECT_EQ(received.id, 9u);
  EXPECT_EQ(received.length, 6000u);
  EXPECT_TRUE(received.has_immediate);
  EXPECT_EQ(received.immediate, 0xAABBCCDDu);
  EXPECT_TRUE(std::equal(data.begin(), data.end(), buffer.begin()));
  EXPECT_EQ(one_completion(world.a).kind, CompletionKind::kSend);
}

TEST_F(Transfer, WriteWithImmediateTakesAReceiveRequestAndNoBuffer) {
  ASSERT_EQ(world.b.adapter->post_receive(*pair.b, {.id = 5}), PostError::kNone);
  const auto data = pattern(3000);
  const Sge sge = Sge::of(data);
  post({.op = SendOp::kWriteWithImmediate,
        .sges = {&sge, 1},
        .immediate = 77,
        .remote_address = kRemoteBase,
        .remote_key = key});
  const Completion c = one_completion(world.b);
  EXPECT_EQ(c.kind, CompletionKind::kReceiveWithImmediate);
  EXPECT_EQ(c.immediate, 77u);
  EXPECT_EQ(c.length, 3000u);
  EXPECT_TRUE(std::equal(data.begin(), data.end(), remote.begin()));
}

TEST_F(Transfer, SendWithInvalidateWithdrawsTheRegion) {
  std::uint8_t buffer[8];
  const Sge into = Sge::of(buffer);
  world.b.adapter->post_receive(*pair.b, {.sges = {&into, 1}});
  post({.op = SendOp::kSendWithInvalidate, .invalidate_key = key});
  const Completion c = one_completion(world.b);
  EXPECT_TRUE(c.has_invalidate);
  EXPECT_EQ(c.immediate, key.value);
  EXPECT_EQ(world.b.adapter->regions().translate(key, world.b.pd, kRemoteBase, 1, memory::kRemoteRead).fault,
            memory::AccessFault::kUnknownKey);
}

TEST_F(Transfer, InlineDataMayChangeRightAfterThePost) {
  std::uint8_t data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const Sge sge = Sge::of(data);
  post({.op = SendOp::kWrite,
        .flags = {.inline_data = true},
        .sges = {&sge, 1},
        .remote_address = kRemoteBase,
        .remote_key = key});
  std::fill_n(data, 8, std::uint8_t{0});
  one_completion(world.a);
  EXPECT_EQ(remote[7], 8);
}

TEST_F(Transfer, WaitsWhileTheReceiverIsNotReady) {
  const auto data = pattern(4000);
  const Sge sge = Sge::of(data);
  post({.op = SendOp::kSend, .sges = {&sge, 1}});
  const Time start = world.now;
  world.run_until([&] { return world.now - start > Duration::milliseconds(5); });
  EXPECT_EQ(world.a.completions->size(), 0u);
  EXPECT_GT(world.a.adapter->counters().rx_rnr_naks, 3u);
  std::vector<std::uint8_t> buffer(4000);
  const Sge into = Sge::of(buffer);
  world.b.adapter->post_receive(*pair.b, {.sges = {&into, 1}});
  EXPECT_EQ(one_completion(world.a).status, CompletionStatus::kSuccess);
  EXPECT_EQ(buffer, data);
}

TEST_F(Transfer, CompletesInOrderAndOnlyWhatIsSignaled) {
  const auto data = pattern(2000);
  const Sge sge = Sge::of(data);
  for (std::uint64_t i = 0; i < 100; ++i) {
    const SendOp op = i % 3 == 0 ? SendOp::kRead : SendOp::kWrite;
    ASSERT_EQ(post({.id = i,
                    .op = op,
                    .flags = {.signaled = i % 5 == 4},
                    .sges = {&sge, 1},
                    .remote_address = kRemoteBase,
                    .remote_key = key}),
              PostError::kNone);
  }
  world.run_until([&] { return world.a.completions->size() == 20; });
  const auto all = TwoAdapters::take(world.a);
  ASSERT_EQ(all.size(), 20u);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].id, i * 5 + 4);
  EXPECT_EQ(pair.a->send_queue_length(), 0u);
}

TEST_F(Transfer, RefusesAWrongKeyAndFlushesTheRestOfBothQueues) {
  const auto data = pattern(8);
  const Sge sge = Sge::of(data);
  world.a.adapter->post_receive(*pair.a, {.id = 50});
  world.b.adapter->post_receive(*pair.b, {.id = 60});
  post({.id = 1,
        .op = SendOp::kWrite,
        .sges = {&sge, 1},
        .remote_address = kRemoteBase,
        .remote_key = memory::Key{key.value ^ 1}});
  post({.id = 2, .op = SendOp::kWrite, .sges = {&sge, 1}, .remote_address = kRemoteBase, .remote_key = key});
  world.run_until([&] { return world.a.completions->size() == 3 && world.b.completions->size() == 1; });
  const auto all = TwoAdapters::take(world.a);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].id, 1u);
  EXPECT_EQ(all[0].status, CompletionStatus::kRemoteAccessError);
  EXPECT_EQ(all[1].status, CompletionStatus::kFlushed);
  EXPECT_EQ(all[2].status, CompletionStatus::kFlushed);
  EXPECT_EQ(pair.a->state(), QpState::kError);
  EXPECT_EQ(pair.b->state(), QpState::kError);
  EXPECT_EQ(TwoAdapters::take(world.b)[0].status, CompletionStatus::kFlushed);
  EXPECT_EQ(remote[0], 0);
}

struct Refusal {
  const char* name;
  SendRequest request;
  CompletionStatus status;
};
class Refused : public Transfer, public ::testing::WithParamInterface<Refusal> {};

TEST_P(Refused, WithTheSpecifiedStatusAndWithoutATrace) {
  std::uint64_t word = 0x5555;
  const Sge sge{reinterpret_cast<std::uintptr_t>(&word), 8};
  SendRequest request = GetParam().request;
  request.remote_key = key;
  request.sges = {&sge, 1};
  const auto before = remote;
  ASSERT_EQ(post(request), PostError::kNone);
  EXPECT_EQ(one_completion(world.a).status, GetParam().status);
  EXPECT_EQ(remote, before);
}

INSTANTIATE_TEST_SUITE_P(
    Requests, Refused,
    ::testing::Values(Refusal{"WriteBeforeTheRegion",
                              {.op = SendOp::kWrite, .remote_address = kRemoteBase - 1},
                              CompletionStatus::kRemoteAccessError},
                      Refusal{"WriteOverTheEnd",
                              {.op = SendOp::kWrite, .remote_address = kRemoteBase + (1 << 20) - 7},
                              CompletionStatus::kRemoteAccessError},
                      Refusal{"ReadOverTheEnd",
                              {.op = SendOp::kRead, .remote_address = kRemoteBase + (1 << 20) - 7},
                              CompletionStatus::kRemoteAccessError},
                      Refusal{"ReadAtTheEndOfAddressSpace",
                              {.op = SendOp::kRead, .remote_address = ~0ull - 3},
                              CompletionStatus::kRemoteAccessError},
                      Refusal{"MisalignedAtomic",
                              {.op = SendOp::kFetchAndAdd, .remote_address = kRemoteBase + 4},
                              CompletionStatus::kRemoteInvalidRequest},
                      Refusal{"AtomicOverTheEnd",
                              {.op = SendOp::kCompareAndSwap, .remote_address = kRemoteBase + (1 << 20)},
                              CompletionStatus::kRemoteAccessError}),
    [](const auto& refusal) { return std::string(refusal.param.name); });

TEST_F(Transfer, RightsOfTheRegionAndOfTheQueuePairBothCount) {
  const auto read_only = world.region(world.b, remote, 0x9000'0000, memory::kRemoteRead);
  const auto data = pattern(8);
  const Sge sge = Sge::of(data);
  post({.op = SendOp::kWrite, .sges = {&sge, 1}, .remote_address = 0x9000'0000, .remote_key = read_only});
  EXPECT_EQ(one_completion(world.a).status, CompletionStatus::kRemoteAccessError);

  pair = world.connect({.access = memory::kRemoteRead});
  post({.op = SendOp::kWrite, .sges = {&sge, 1}, .remote_address = kRemoteBase, .remote_key = key});
  EXPECT_EQ(one_completion(world.a).status, CompletionStatus::kRemoteInvalidRequest);
}

TEST_F(Transfer, ASendLongerThanItsBufferFailsOnBothSides) {
  std::uint8_t buffer[100];
  const Sge into = Sge::of(buffer);
  world.b.adapter->post_receive(*pair.b, {.sges = {&into, 1}});
  const auto data = pattern(101);
  const Sge sge = Sge::of(data);
  post({.op = SendOp::kSend, .sges = {&sge, 1}});
  EXPECT_EQ(one_completion(world.a).status, CompletionStatus::kRemoteInvalidRequest);
  EXPECT_EQ(one_completion(world.b).status, CompletionStatus::kLocalLengthError);
}

TEST_F(Transfer, GivesUpOnASilentPeerAfterTheConfiguredRetries) {
  world.b.adapter->modify(world.now, *pair.b, {.state = QpState::kReset});
  const auto data = pattern(8);
  const Sge sge = Sge::of(data);
  const Time start = world.now;
  post({.op = SendOp::kWrite, .sges = {&sge, 1}, .remote_address = kRemoteBase, .remote_key = key});
  EXPECT_EQ(one_completion(world.a).status, CompletionStatus::kRetryExceeded);
  const Duration waited = world.now - start;
  EXPECT_GE(waited, Duration::microseconds(1048 * 8));
  EXPECT_LE(waited, Duration::microseconds(1048 * 9));
  EXPECT_EQ(world.a.adapter->counters().timeouts, 8u);
}

TEST_F(Transfer, ManyQueuePairsShareTheLinkFairly) {
  std::vector<TwoAdapters::Pair> pairs;
  for (int i = 0; i < 8; ++i) pairs.push_back(world.connect());
  const auto data = pattern(100'000);
  const Sge sge = Sge::of(data);
  for (std::uint64_t i = 0; i < pairs.size(); ++i) {
    world.a.adapter->post_send(world.now, *pairs[i].a,
                               {.id = i,
                                .op = SendOp::kWrite,
                                .sges = {&sge, 1},
                                .remote_address = kRemoteBase + i * 100'000,
                                .remote_key = key});
  }
  world.run_until([&] { return world.a.completions->size() == 8; });
  EXPECT_EQ(TwoAdapters::take(world.a).size(), 8u);
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_TRUE(std::equal(data.begin(), data.end(), remote.begin() + static_cast<long>(i * 100'000)));
}

TEST_F(Transfer, SharedReceiveQueueServesSeveralQueuePairs) {
  SharedReceiveQueue* const shared = world.b.adapter->create_shared_receive_queue(world.b.pd, 16, 1);
  std::vector<std::vector<std::uint8_t>> buffers(4, std::vector<std::uint8_t>(64));
  for (std::uint64_t i = 0; i < buffers.size(); ++i) {
    const Sge into = Sge::of(buffers[i]);
    ASSERT_EQ(world.b.adapter->post_receive(*shared, {.id = i, .sges = {&into, 1}}), PostError::kNone);
  }
  const auto first = world.connect({.b_shared_receives = shared});
  const auto second = world.connect({.b_shared_receives = shared});
  const auto data = pattern(64);
  const Sge sge = Sge::of(data);
  for (QueuePair* qp : {first.a, second.a, first.a, second.a})
    world.a.adapter->post_send(world.now, *qp, {.op = SendOp::kSend, .sges = {&sge, 1}});
  world.run_until([&] { return world.b.completions->size() == 4; });
  for (const auto& b : buffers) EXPECT_EQ(b, data);
}

TEST_F(Transfer, BuffersOfASharedReceiveQueueLieInItsOwnDomain) {
  const memory::PdId domain = world.b.adapter->create_domain();
  SharedReceiveQueue* const shared = world.b.adapter->create_shared_receive_queue(domain, 16, 1);
  std::vector<std::uint8_t> buffer(64);
  const memory::Key own = world.b.adapter->regions()
                              .add({.pd = domain, .bytes = buffer, .address = 0, .access = memory::kLocalWrite})
                              .value();
  const memory::Key of_pair = world.region(world.b, buffer, 0);
  const auto data = pattern(64);
  const Sge sge = Sge::of(data);
  for (const Transport transport : {Transport::kRc, Transport::kUd}) {
    for (const memory::Key used : {own, of_pair}) {
      const auto both = world.connect({.transport = transport, .b_shared_receives = shared});
      const Sge into{0, 64, used};
      ASSERT_EQ(world.b.adapter->post_receive(*shared, {.id = 1, .sges = {&into, 1}}), PostError::kNone);
      const UdDestination to{
          .gid = world.b.adapter->config().gids[0], .qpn = both.b->qpn(), .qkey = wire::QKey{0x1111}};
      const Sge piece{sge.address, transport == Transport::kUd ? 24u : 64u, sge.key};
      ASSERT_EQ(world.a.adapter->post_send(world.now, *both.a,
                                           {.op = SendOp::kSend, .sges = {&piece, 1}, .destination = &to}),
                PostError::kNone);
      world.settle();
      const auto done = TwoAdapters::take(world.b);
      ASSERT_EQ(done.size(), 1u);
      EXPECT_EQ(done[0].status, used == own ? CompletionStatus::kSuccess : CompletionStatus::kLocalProtectionError);
      TwoAdapters::take(world.a);
    }
  }
}

TEST_F(Transfer, UnreliableConnectionsCompleteAtOnceAndDropWhatFollowsAGap) {
  const auto uc = world.connect({.transport = Transport::kUc});
  const auto data = pattern(5000);
  const Sge sge = Sge::of(data);
  world.a.adapter->post_send(
      world.now, *uc.a, {.op = SendOp::kWrite, .sges = {&sge, 1}, .remote_address = kRemoteBase, .remote_key = key});
  EXPECT_EQ(one_completion(world.a).status, CompletionStatus::kSuccess);
  world.settle();
  EXPECT_TRUE(std::equal(data.begin(), data.end(), remote.begin()));
  EXPECT_EQ(world.a.adapter->post_send(world.now, *uc.a, {.op = SendOp::kRead, .sges = {&sge, 1}}),
            PostError::kUnsupportedOp);
}

TEST_F(Transfer, DatagramsCarryAGrhAndTheirSender) {
  const auto ud = world.connect({.transport = Transport::kUd});
  std::vector<std::uint8_t> buffer(40 + 100);
  const Sge into = Sge::of(buffer);
  ASSERT_EQ(world.b.adapter->post_receive(*ud.b, {.id = 3, .sges = {&into, 1}}), PostError::kNone);
  const auto data = pattern(100);
  const Sge sge = Sge::of(data);
  const UdDestination to{.gid = world.b.adapter->config().gids[0], .qpn = ud.b->qpn(), .qkey = wire::QKey{0x1111}};
  ASSERT_EQ(world.a.adapter->post_send(world.now, *ud.a, {.op = SendOp::kSend, .sges = {&sge, 1}, .destination = &to}),
            PostError::kNone);
  const Completion c = one_completion(world.b);
  EXPECT_EQ(c.status, CompletionStatus::kSuccess);
  EXPECT_TRUE(c.has_grh);
  EXPECT_EQ(c.length, 140u);
  EXPECT_EQ(c.source_qpn, ud.a->qpn());
  EXPECT_TRUE(std::equal(data.begin(), data.end(), buffer.begin() + 40));

  const UdDestination wrong{.gid = to.gid, .qpn = to.qpn, .qkey = wire::QKey{0x2222}};
  world.a.adapter->post_send(world.now, *ud.a, {.op = SendOp::kSend, .sges = {&sge, 1}, .destination = &wrong});
  world.settle();
  EXPECT_EQ(world.b.adapter->counters().rx_ud_dropped, 1u);
}

TEST(FeignedRnr, HoldsMessagesUpAndLosesNone) {
  AdapterConfig config;
  config.feigned_rnr_ppm = 300'000;
  TwoAdapters world(nullptr, config);
  const TwoAdapters::Pair pair = world.connect();
  std::vector<std::uint8_t> into(8);
  const Sge sge = Sge::of(into);
  constexpr int kMessages = 50;
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_EQ(world.b.adapter->post_receive(*pair.b, {.sges = {&sge, 1}}), PostError::kNone);
    ASSERT_EQ(world.a.adapter->post_send(world.now, *pair.a, {.sges = {&sge, 1}}), PostError::kNone);
  }
  world.run_until([&] { return world.b.completions->size() == kMessages && world.a.completions->size() == kMessages; });
  for (Host* const host : {&world.a, &world.b}) {
    for (const Completion& c : TwoAdapters::take(*host)) EXPECT_EQ(c.status, CompletionStatus::kSuccess);
  }
  EXPECT_GT(world.b.adapter->counters().tx_rnr_naks, 5u);
}

}  // namespace
}  // namespace sluice::rc
