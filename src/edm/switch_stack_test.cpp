// The switch's stack by itself: what a request goes behind travels with it, and what the scheduler refuses leaves nothing. Among hosts: sim/edm/edm_testbed_test.cpp.
#include "edm/switch_stack.h"

#include <gtest/gtest.h>

namespace sluice::edm {
namespace {

constexpr PortId kReader{0};
constexpr PortId kNode{1};
constexpr Duration kCycle = Duration::picoseconds(2'560);

Unit read(std::uint8_t id) {
  return {.kind = UnitKind::kRead, .port = kNode, .id = MessageId(id), .bytes = 64, .address = 8, .data = {}};
}
Unit notify(PortId to, std::uint8_t id) {
  return {.kind = UnitKind::kNotify, .port = to, .id = MessageId(id), .bytes = 64, .data = {}};
}

struct Switch {
  SwitchStack stack{{.ports = 3, .active_per_pair = 2, .matching = Matching::kGreedy}, kCycle};
  Time now;

  // All that goes down within a microsecond.
  std::vector<SwitchStack::Down> sent() {
    const Time end = now + Duration::microseconds(1);
    for (Time next; (next = stack.next_deadline()) <= end;) {
      stack.on_deadline(next);
      for (SwitchStack::Down down; stack.poll(next, down);) all_.push_back(down);
    }
    now = end;
    return std::exchange(all_, {});
  }

 private:
  std::vector<SwitchStack::Down> all_;
};

TEST(RequestOrder, LetsARequestGoWhenWhatItGoesBehindHasGone) {
  RequestOrder order;
  EXPECT_EQ(order.came(kReader), 0u);
  EXPECT_TRUE(order.may_go(kReader, 0));
  order.write_came(kReader);
  const std::uint64_t first = order.came(kReader);
  order.write_came(kReader);
  const std::uint64_t second = order.came(kReader);
  EXPECT_EQ(order.came(kNode), 0u);
  order.write_gone(kNode);  // another sender's
  EXPECT_FALSE(order.may_go(kReader, first));
  order.write_gone(kReader);
  EXPECT_TRUE(order.may_go(kReader, first));
  EXPECT_FALSE(order.may_go(kReader, second));
  order.write_gone(kReader);
  EXPECT_TRUE(order.may_go(kReader, second));
}

TEST(SwitchStack, GivesARequestBackWithWhatItGoesBehind) {
  Switch s;
  s.stack.take(s.now, kReader, read(1), 5);
  s.stack.take(s.now, kReader, read(2), 7);
  const auto sent = s.sent();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].unit.id, MessageId(1));
  EXPECT_EQ(sent[0].to, kNode);
  EXPECT_EQ(sent[0].unit.port, kReader);
  EXPECT_EQ(sent[0].behind, 5u);
  EXPECT_EQ(sent[1].behind, 7u);
}

TEST(SwitchStack, ARefusedRequestLeavesNothingToThoseAfterIt) {
  Switch s;
  for (std::uint8_t id = 0; id < 5; ++id) s.stack.take(s.now, kReader, read(id), id);
  auto sent = s.sent();
  ASSERT_EQ(sent.size(), 2u);  // X
  EXPECT_EQ(s.stack.refused(), 3u);
  s.stack.take(s.now, kReader, read(9), 9);
  sent = s.sent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].unit.id, MessageId(9));
  EXPECT_EQ(sent[0].behind, 9u);
}

// Data may go where a grant has said, as often as it has: or where a mirrored switch's has, which is then set off.
TEST(SwitchStack, DataUseTheGrantsOfTheirPair) {
  Switch s;
  for (const std::uint16_t to : {std::uint16_t{0}, std::uint16_t{2}}) s.stack.take(s.now, kNode, notify(PortId(to), 1));
  EXPECT_EQ(s.sent().size(), 2u);
  EXPECT_FALSE(s.stack.forward(kNode, PortId(9)));
  EXPECT_FALSE(s.stack.forward(kReader, kNode));
  EXPECT_TRUE(s.stack.forward(kNode, PortId(2)));
  EXPECT_TRUE(s.stack.forward(kNode, PortId(0)));
  EXPECT_FALSE(s.stack.forward(kNode, PortId(0)));
  s.stack.take(s.now, kNode, notify(PortId(0), 2));
  EXPECT_EQ(s.sent().size(), 1u);
  EXPECT_FALSE(s.stack.forward(kNode, PortId(0)));
}

// However many reads of a pair wait here, the other host's /N/ is taken.
TEST(SwitchStack, ReadsDoNotTakeTheRoomOfWritesOfTheSamePair) {
  Switch s;
  for (std::uint8_t id = 0; id < 20; ++id) s.stack.take(s.now, kReader, read(id));
  for (std::uint8_t id = 0; id < 2; ++id) s.stack.take(s.now, kNode, notify(kReader, id));
  const auto sent = s.sent();
  EXPECT_EQ(s.stack.refused(), 18u);
  ASSERT_EQ(sent.size(), 4u);
  for (const auto& down : sent) EXPECT_EQ(down.to, kNode);
  EXPECT_EQ(sent[2].unit.kind, UnitKind::kGrant);
  EXPECT_FALSE(sent[2].unit.of_response);
  EXPECT_EQ(sent[2].behind, 0u);
  EXPECT_EQ(sent[3].unit.kind, UnitKind::kGrant);
}

}  // namespace
}  // namespace sluice::edm
