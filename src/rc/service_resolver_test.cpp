#include "rc/service_resolver.h"

#include <gtest/gtest.h>

#include <string_view>

#include "rc/connection_manager.h"
#include "rc/two_adapters.h"

namespace sluice::rc {
namespace {

using Kind = ResolutionEvent::Kind;
using wire::SidrStatus;

constexpr wire::ServiceId kService = wire::rdma_datagram_service(7174);
constexpr Qpn kQpn{0x123};
constexpr wire::QKey kQkey{0x0123'4567};

std::vector<std::uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }
bool begins_with(const std::vector<std::uint8_t>& bytes, std::string_view text) {
  return bytes.size() > text.size() && std::equal(text.begin(), text.end(), bytes.begin()) && bytes[text.size()] == 0;
}

class Resolving : public testing::Test {
 protected:
  explicit Resolving(const port::ImpairmentSpec* impairment = nullptr) : world(impairment) {
    a();
    b();  // from now on MADs are for it
  }

  ServiceResolver& a() { return world.a.adapter->connections().resolver(); }
  ServiceResolver& b() { return world.b.adapter->connections().resolver(); }
  wire::Gid gid(const Host& host) { return host.adapter->config().gids[0]; }
  ResolutionId ask(const ResolutionParameters& parameters = {}) {
    return a().resolve(world.now, gid(world.b), kService, parameters).value();
  }
  ResolutionEvent expect(ServiceResolver& resolver, Kind kind) {
    std::optional<ResolutionEvent> event;
    world.run_until([&] { return (event = resolver.poll_event()).has_value(); });
    EXPECT_TRUE(event) << "no event";
    if (event) {
      EXPECT_EQ(event->kind, kind);
    }
    return event.value_or(ResolutionEvent{});
  }

  TwoAdapters world;
};

TEST_F(Resolving, NamesTheQueuePairBehindAPort) {
  ASSERT_TRUE(b().listen(kService));
  const ResolutionId asked = ask({.private_data = bytes_of("question")});
  const auto query = expect(b(), Kind::kQuery);
  EXPECT_EQ(query.remote, gid(world.a));
  EXPECT_EQ(query.service, kService);
  EXPECT_EQ(query.port, 7174);
  EXPECT_EQ(query.private_data.size(), ServiceResolver::kPrivateIpQuery);
  EXPECT_TRUE(begins_with(query.private_data, "question"));
  ASSERT_TRUE(b().answer(query.id, kQpn, kQkey, bytes_of("answer")));
  EXPECT_FALSE(b().answer(query.id, kQpn, kQkey, {})) << "once";
  const auto resolved = expect(a(), Kind::kResolved);
  EXPECT_EQ(resolved.id, asked);
  EXPECT_EQ(resolved.remote, gid(world.b));
  EXPECT_EQ(resolved.qpn, kQpn);
  EXPECT_EQ(resolved.qkey, kQkey);
  EXPECT_EQ(resolved.private_data.size(), ServiceResolver::kPrivateAnswer);
  EXPECT_TRUE(begins_with(resolved.private_data, "answer"));
  a().release(asked);
  b().release(query.id);
  EXPECT_EQ(a().size() + b().size(), 0u);
  EXPECT_EQ(a().next_deadline(), Time::never());
}

TEST_F(Resolving, IsToldWhereNobodyListens) {
  const ResolutionId asked = ask();
  const auto refused = expect(a(), Kind::kRefused);
  EXPECT_EQ(refused.id, asked);
  EXPECT_EQ(refused.status, SidrStatus::kNoSuchService);
  EXPECT_EQ(a().size() + b().size(), 0u);
}

TEST_F(Resolving, AConnectionsPortIsNoServiceOfDatagrams) {
  ASSERT_TRUE(world.b.adapter->connections().listen(7174));
  ask();
  EXPECT_EQ(expect(a(), Kind::kRefused).status, SidrStatus::kNoSuchService);
}

TEST_F(Resolving, ThePatientAskUntilSomebodyListens) {
  ask({.patience = Duration::seconds(1)});
  world.run_until([&] { return b().counters().refused >= 3; });
  EXPECT_FALSE(a().poll_event());
  ASSERT_TRUE(b().listen(kService));
  ASSERT_TRUE(b().answer(expect(b(), Kind::kQuery).id, kQpn, kQkey, {}));
  expect(a(), Kind::kResolved);
}

TEST_F(Resolving, PatienceEnds) {
  ask({.patience = Duration::seconds(1)});
  EXPECT_EQ(expect(a(), Kind::kRefused).status, SidrStatus::kNoSuchService);
  EXPECT_GE(world.now, Time() + Duration::seconds(1));
}

TEST_F(Resolving, AProgramMayRefuse) {
  ASSERT_TRUE(b().listen(kService));
  ask();
  b().refuse(expect(b(), Kind::kQuery).id, SidrStatus::kRejected, bytes_of("not you"));
  const auto refused = expect(a(), Kind::kRefused);
  EXPECT_EQ(refused.status, SidrStatus::kRejected);
  EXPECT_TRUE(begins_with(refused.private_data, "not you"));
}

TEST_F(Resolving, AQuestionThatIsLetGoIsRefused) {
  ASSERT_TRUE(b().listen(kService));
  ask();
  b().release(expect(b(), Kind::kQuery).id);
  EXPECT_EQ(expect(a(), Kind::kRefused).status, SidrStatus::kRejected);
}

TEST_F(Resolving, AsksAgainAndIsHeardOnce) {
  ASSERT_TRUE(b().listen(kService));
  ask();
  const auto query = expect(b(), Kind::kQuery);
  world.run_until([&] { return b().counters().duplicates >= 2; });  // while the program takes its time
  EXPECT_FALSE(b().poll_event());
  ASSERT_TRUE(b().answer(query.id, kQpn, kQkey, {}));
  expect(a(), Kind::kResolved);
}

TEST_F(Resolving, RefusesMorePrivateDataThanFits) {
  const std::vector<std::uint8_t> long_query(ServiceResolver::kPrivateIpQuery + 1);
  EXPECT_FALSE(a().resolve(world.now, gid(world.b), kService, {.private_data = long_query}));
  ASSERT_TRUE(b().listen(kService));
  EXPECT_FALSE(b().listen(kService));
  ask();
  const auto query = expect(b(), Kind::kQuery);
  const std::vector<std::uint8_t> long_answer(ServiceResolver::kPrivateAnswer + 1);
  EXPECT_FALSE(b().answer(query.id, kQpn, kQkey, long_answer));
  EXPECT_TRUE(b().answer(query.id, kQpn, kQkey, {})) << "the question still waits";
}

port::ImpairmentSpec losing(std::uint32_t per_million) {
  port::ImpairmentSpec spec;
  spec.tx.drop = spec.rx.drop = per_million;
  spec.tx.duplicate = per_million / 3;
  return spec;
}

const port::ImpairmentSpec kLossy = losing(300'000);
class ResolvingWithLosses : public Resolving {
 protected:
  ResolvingWithLosses() : Resolving(&kLossy) {}
};

TEST_F(ResolvingWithLosses, EachQuestionIsHeardOnceAndAnswered) {
  ASSERT_TRUE(b().listen(kService));
  for (int i = 0; i < 200; ++i) {
    const ResolutionId asked = ask({.max_retries = 50});
    const auto query = expect(b(), Kind::kQuery);
    ASSERT_TRUE(b().answer(query.id, kQpn, kQkey, {}));
    ASSERT_EQ(expect(a(), Kind::kResolved).id, asked);
    a().release(asked);
    // The answered question stays: its copies may be on their way.
  }
  world.settle();
  EXPECT_FALSE(b().poll_event());
  EXPECT_GT(b().counters().duplicates, 0u);
}

const port::ImpairmentSpec kDeaf = losing(1'000'000);
class ResolvingInVain : public Resolving {
 protected:
  ResolvingInVain() : Resolving(&kDeaf) {}
};

TEST_F(ResolvingInVain, GivesUpInItsTime) {
  ask({.response_timeout = Duration::milliseconds(100), .max_retries = 4});
  expect(a(), Kind::kUnreachable);
  EXPECT_GE(world.now, Time() + Duration::milliseconds(500));
  EXPECT_LT(world.now, Time() + Duration::seconds(1));
  EXPECT_EQ(a().size(), 0u);
}

}  // namespace
}  // namespace sluice::rc
