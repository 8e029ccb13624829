#include "ports/udp_session.h"

#include <gtest/gtest.h>

namespace sluice::ports {
namespace {

using Role = UdpSession::Role;
using Verdict = UdpSession::Verdict;

constexpr SessionId kCallerId(11);
constexpr SessionId kCalleeId(22);

class UdpSessionTest : public testing::Test {
 protected:
  // Passes control datagrams both ways until there are none.
  void exchange() {
    for (bool moved = true; moved;) {
      moved = false;
      while (const auto header = caller_.poll_transmit(now_)) {
        moved = true;
        callee_.on_header(now_, *header);
      }
      while (const auto header = callee_.poll_transmit(now_)) {
        moved = true;
        caller_.on_header(now_, *header);
      }
    }
  }

  Time now_;
  UdpSession caller_{Role::kCaller, kCallerId, Time()};
  UdpSession callee_{Role::kCallee, kCalleeId, Time()};
};

TEST_F(UdpSessionTest, RisesByHelloAndWelcome) {
  EXPECT_FALSE(caller_.up());
  EXPECT_EQ(caller_.next_deadline(), now_);
  exchange();
  EXPECT_TRUE(caller_.up());
  EXPECT_TRUE(callee_.up());
  EXPECT_EQ(callee_.on_header(now_, caller_.header(ContainerKind::kData)), Verdict::kTakeFrames);
  EXPECT_EQ(caller_.on_header(now_, callee_.header(ContainerKind::kData)), Verdict::kTakeFrames);
}

TEST_F(UdpSessionTest, GreetsAgainWithBackOffUntilWelcomed) {
  int hellos = 0;
  for (; now_ < Time::at(Duration::seconds(10)); now_ = caller_.next_deadline()) {
    const auto header = caller_.poll_transmit(now_);
    ASSERT_TRUE(header && header->kind == ContainerKind::kHello);
    EXPECT_FALSE(caller_.poll_transmit(now_));
    EXPECT_LE(caller_.next_deadline() - now_, UdpSession::kLastHello);
    ++hellos;
  }
  EXPECT_GT(hellos, 20);
  EXPECT_LT(hellos, 40);
}

TEST_F(UdpSessionTest, KeepsAliveOnlyWhenItSendsNothing) {
  exchange();
  now_ = now_ + UdpSession::kKeepAlive;
  caller_.on_data_sent(now_);
  EXPECT_FALSE(caller_.poll_transmit(now_));
  const auto alive = callee_.poll_transmit(now_);
  ASSERT_TRUE(alive);
  EXPECT_EQ(alive->kind, ContainerKind::kKeepAlive);
  EXPECT_EQ(caller_.on_header(now_, *alive), Verdict::kDone);
}

TEST_F(UdpSessionTest, StaysUpForAnHourOfSilentFrames) {
  exchange();
  while (now_ < Time::at(Duration::seconds(3600))) {
    now_ = std::min(caller_.next_deadline(), callee_.next_deadline());
    caller_.on_deadline(now_);
    callee_.on_deadline(now_);
    exchange();
    ASSERT_TRUE(caller_.up() && callee_.up());
  }
  EXPECT_EQ(caller_.resets() + callee_.resets(), 0u);
}

TEST_F(UdpSessionTest, FallsWhenThePeerIsSilentForTooLong) {
  exchange();
  for (const Time end = now_ + UdpSession::kSilence; now_ < end; now_ = caller_.next_deadline()) {
    caller_.on_deadline(now_);
    caller_.poll_transmit(now_);
    EXPECT_TRUE(caller_.up());
  }
  caller_.on_deadline(now_);
  EXPECT_FALSE(caller_.up());
  EXPECT_EQ(caller_.resets(), 1u);
  EXPECT_LT(caller_.next_deadline(), now_ + Duration::seconds(1));  // greets again
  callee_.on_deadline(now_);
  EXPECT_FALSE(callee_.up());
  EXPECT_EQ(callee_.next_deadline(), Time::never());  // is over
}

TEST_F(UdpSessionTest, FallsAtOnceOnRefusalAndGoodbye) {
  exchange();
  callee_.on_refused(now_);
  EXPECT_FALSE(callee_.up());
  EXPECT_EQ(caller_.on_header(now_, {ContainerKind::kGoodbye, kCalleeId, kCallerId}), Verdict::kDone);
  EXPECT_FALSE(caller_.up());
  caller_.on_refused(now_);
  EXPECT_EQ(caller_.resets(), 1u);  // it was down already
}

TEST_F(UdpSessionTest, IgnoresAGoodbyeThatIsNotForIt) {
  exchange();
  EXPECT_EQ(caller_.on_header(now_, {ContainerKind::kGoodbye, kCalleeId, SessionId(99)}), Verdict::kStale);
  EXPECT_EQ(caller_.on_header(now_, {ContainerKind::kGoodbye, SessionId(99), kCallerId}), Verdict::kStale);
  EXPECT_TRUE(caller_.up());
}

TEST_F(UdpSessionTest, NoticesACallerThatStartedAnewAtTheSameAddress) {
  exchange();
  const auto old_data = caller_.header(ContainerKind::kData);
  caller_ = UdpSession(Role::kCaller, SessionId(33), now_);
  exchange();
  EXPECT_TRUE(caller_.up());
  EXPECT_EQ(callee_.resets(), 1u);
  EXPECT_EQ(callee_.on_header(now_, old_data), Verdict::kStale);
  EXPECT_EQ(callee_.on_header(now_, caller_.header(ContainerKind::kData)), Verdict::kTakeFrames);
}

TEST_F(UdpSessionTest, TellsACallerOfAnEarlierLifeToBeginAnew) {
  exchange();
  callee_ = UdpSession(Role::kCallee, SessionId(44), now_);
  EXPECT_EQ(callee_.on_header(now_, caller_.header(ContainerKind::kData)), Verdict::kStale);
  const auto reply = callee_.poll_transmit(now_);
  ASSERT_TRUE(reply);
  EXPECT_EQ(caller_.on_header(now_, *reply), Verdict::kDone);
  EXPECT_FALSE(caller_.up());
  EXPECT_EQ(caller_.resets(), 1u);
  now_ = caller_.next_deadline();
  exchange();
  EXPECT_TRUE(caller_.up() && callee_.up());
}

TEST_F(UdpSessionTest, TakesNoFramesBeforeItIsUp) {
  EXPECT_EQ(caller_.on_header(now_, {ContainerKind::kData, kCalleeId, kCallerId}), Verdict::kStale);
  EXPECT_EQ(callee_.on_header(now_, {ContainerKind::kData, kCallerId, kCalleeId}), Verdict::kStale);
  EXPECT_EQ(callee_.on_header(now_, {ContainerKind::kHello, SessionId(), SessionId()}), Verdict::kStale);
  EXPECT_EQ(caller_.on_header(now_, {ContainerKind::kHello, kCalleeId, SessionId()}), Verdict::kStale);
  EXPECT_EQ(caller_.on_header(now_, {ContainerKind::kWelcome, kCalleeId, SessionId(99)}), Verdict::kStale);
}

}  // namespace
}  // namespace sluice::ports
