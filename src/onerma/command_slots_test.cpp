// Command slots alone: who enters service, and in which turn.
#include "onerma/command_slots.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <vector>

#include "onerma/message.h"

namespace sluice::onerma {
namespace {

constexpr std::uint32_t kLarge = FrameWriter::frame_size(kMaxOp);

struct Bench {
  bool issue(CompletionRing& ring, std::size_t bytes, OpKind op = OpKind::kRead, std::uint64_t user = 0) {
    return slots.issue(now, {.op = op, .local = MutableBytes(local).first(bytes), .user = user, .completions = &ring});
  }
  // Whose operation enters service next.
  CompletionRing* send() {
    Slot* const slot = slots.next_to_send();
    if (slot == nullptr) return nullptr;
    EXPECT_EQ(slot, slots.next_to_send()) << "the same until it is sent";
    slots.number(*slot);
    if (first == OpId{}) first = slot->op;
    sequence = sequence_of(slot->op);
    sent = slot;
    slots.on_sent(now, *slot);
    return slot->command.completions;
  }

  SolicitationWindow window{64 * kLarge};
  CommandSlots slots{{.slots = 1024}, window};
  std::array<std::uint8_t, kMaxOp> local{};
  CompletionRing a{512}, b{512};
  OpId first{};                // that was sent
  std::uint64_t sequence = 0;  // of the last
  Slot* sent = nullptr;
  Time now = Time::at(Duration::milliseconds(1));
};

TEST(CommandSlots, UsersTakeTurnsOfEqualBytes) {
  Bench w;
  for (int i = 0; i < 30; ++i) w.issue(w.a, kMaxOp);
  for (int i = 0; i < 400; ++i) w.issue(w.b, 64);
  std::uint32_t a_bytes = 0, b_bytes = 0;
  for (int i = 0; i < 10 * 25; ++i) {
    CompletionRing* const who = w.send();
    ASSERT_NE(who, nullptr);
    (who == &w.a ? a_bytes : b_bytes) += who == &w.a ? kLarge : static_cast<std::uint32_t>(FrameWriter::frame_size(64));
  }
  EXPECT_GT(a_bytes, 0u);
  EXPECT_NEAR(static_cast<double>(a_bytes), static_cast<double>(b_bytes), 2.0 * kLarge);
}

TEST(CommandSlots, AUserAloneHasAllTurnsAndItsReadsGoInOrder) {
  Bench w;
  for (std::uint64_t i = 0; i < 20; ++i) w.issue(w.a, i % 2 == 0 ? kMaxOp : 64, OpKind::kRead, i);
  for (std::uint64_t i = 0; i < 20; ++i) {
    Slot* const slot = w.slots.next_to_send();
    ASSERT_NE(slot, nullptr);
    EXPECT_EQ(slot->command.user, i);
    w.slots.on_sent(w.now, *slot);
  }
  EXPECT_EQ(w.send(), nullptr);
}

// It has no number before it is sent; but whoever made up an answer to 0 would else have met the first slot's.
TEST(CommandSlots, WhatHasNotBeenSentIsFoundByNoAnswer) {
  Bench w;
  w.issue(w.a, 64);
  EXPECT_EQ(w.slots.find(OpId{}), nullptr);
  w.send();
  EXPECT_EQ(w.slots.find(OpId{}), nullptr);
  EXPECT_EQ(w.slots.find(w.first), w.sent);
}

// By these targets tell replays, and remember how far they have come.
TEST(CommandSlots, OperationsAreNumberedInTheOrderInWhichTheyLeaveHoweverLongTheyWait) {
  Bench w;
  for (int i = 0; i < 65; ++i) w.issue(w.a, kMaxOp);  // the last does not fit the window
  for (int i = 0; i < 64; ++i) ASSERT_EQ(w.send(), &w.a);
  std::uint64_t newest = w.sequence;
  for (int i = 0; i < 2000; ++i) {
    w.issue(w.b, 64, OpKind::kWrite);
    ASSERT_EQ(w.send(), &w.b);
    EXPECT_EQ(w.sequence, ++newest);
    w.slots.complete(w.now, *w.sent, Status::kOk);
    w.b.pop();
  }
  w.slots.complete(w.now, *w.slots.find(w.first), Status::kOk);
  ASSERT_EQ(w.send(), &w.a);
  EXPECT_EQ(w.sequence, newest + 1);
}

TEST(CommandSlots, WhatWasSentLateEndsNoLaterForIt) {
  Bench w;
  const Time begun = w.now;
  for (int i = 0; i < 65; ++i) w.issue(w.a, kMaxOp);
  for (int i = 0; i < 64; ++i) ASSERT_EQ(w.send(), &w.a);
  w.now = w.now + Duration::microseconds(9);
  w.issue(w.b, kMaxOp, OpKind::kWrite);
  ASSERT_EQ(w.send(), &w.b);
  w.slots.complete(w.now, *w.slots.find(w.first), Status::kOk);
  ASSERT_EQ(w.send(), &w.a);
  EXPECT_EQ(w.slots.next_deadline(), begun + SlotParameters{}.timeout);
  w.slots.expire(begun + SlotParameters{}.timeout);
  EXPECT_EQ(w.slots.open(), 1u);  // the write
}

TEST(CommandSlots, AFullWindowHoldsReadsBackAndLetsWritesPass) {
  Bench w;
  for (int i = 0; i < 65; ++i) w.issue(w.a, kMaxOp);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(w.send(), &w.a);
  EXPECT_EQ(w.send(), nullptr);
  w.issue(w.b, kMaxOp, OpKind::kWrite);
  EXPECT_EQ(w.send(), &w.b);
  w.now = w.now + SlotParameters{}.dispatch_timeout;
  w.slots.expire(w.now);
  EXPECT_EQ(w.a.pop().status, Status::kDispatchTimeout);
  w.now = w.now + SlotParameters{}.timeout;
  w.slots.expire(w.now);
  EXPECT_EQ(w.window.used(), 0u);
  EXPECT_EQ(w.slots.open(), 0u);
  EXPECT_EQ(w.slots.next_deadline(), Time::never());
}

// Who stops asking has lost its turn: what it asks for much later is a new wish, behind those of who has asked all the time.
TEST(CommandSlots, WhoHasNotAskedForLongWaitsAnew) {
  SolicitationWindow window{1 << 24};
  CommandSlots slots({.slots = 2}, window);
  std::array<std::uint8_t, 64> local{};
  CompletionRing a{512}, b{512}, c{512};
  Time now = Time::at(Duration::milliseconds(1));
  const auto issue = [&](CompletionRing& ring) {
    return slots.issue(now, {.op = OpKind::kRead, .local = local, .completions = &ring});
  };
  ASSERT_TRUE(issue(c) && issue(c));
  EXPECT_FALSE(issue(a));
  now = now + SlotParameters{}.dispatch_timeout / 2;
  EXPECT_FALSE(issue(b));
  now = now + SlotParameters{}.dispatch_timeout / 2;
  EXPECT_FALSE(issue(b));
  EXPECT_FALSE(issue(a));  // its time was over
  slots.complete(now, *slots.next_to_send(), Status::kOk);
  EXPECT_FALSE(issue(a));
  EXPECT_TRUE(issue(b));
}

// Users who want without end, called in the same order each time; each operation ends in its turn. How many each has had.
std::vector<int> share_slots(std::uint16_t slots, const std::vector<int>& depths) {
  SolicitationWindow window{1 << 24};
  CommandSlots shared({.slots = slots}, window);
  std::vector<CompletionRing> rings(depths.size(), CompletionRing(1024));
  std::vector<int> done(depths.size());
  std::array<std::uint8_t, 64> local{};
  std::deque<Slot*> under_way;
  Time now = Time::at(Duration::milliseconds(1));
  for (int i = 0; i < 10'000; ++i) {
    for (std::size_t user = 0; user < rings.size(); ++user) {
      for (; !rings[user].empty(); ++done[user]) rings[user].pop();
      while (rings[user].open() < static_cast<std::uint32_t>(depths[user]) &&
             shared.issue(now, {.op = OpKind::kRead, .local = local, .completions = &rings[user]})) {
      }
    }
    while (Slot* const slot = shared.next_to_send()) {
      shared.on_sent(now, *slot);
      under_way.push_back(slot);
    }
    now = now + Duration::nanoseconds(100);
    shared.complete(now, *under_way.front(), Status::kOk);
    under_way.pop_front();
  }
  return done;
}

TEST(CommandSlots, WhoWantsOneHasItHoweverManyTheOthersWant) {
  const auto done = share_slots(16, {1000, 1000, 1000, 1000, 1});
  for (std::size_t user = 0; user < 4; ++user) EXPECT_GT(done[user], 1500) << user;
  EXPECT_GT(done[4], 400);
}

TEST(CommandSlots, MoreUsersThanSlotsHaveThemInTurn) {
  const auto done = share_slots(2, {1000, 1000, 1000, 1000, 1});
  for (std::size_t user = 0; user < 5; ++user) EXPECT_GT(done[user], 1200) << user;
}

TEST(CommandSlots, NoSlotIsKeptForLongForWhoDoesNotComeAgain) {
  SolicitationWindow window{1 << 24};
  CommandSlots slots({.slots = 2}, window);
  std::array<std::uint8_t, 64> local{};
  CompletionRing a{512}, b{512};
  Time now = Time::at(Duration::milliseconds(1));
  const auto issue = [&](CompletionRing& ring) {
    return slots.issue(now, {.op = OpKind::kRead, .local = local, .completions = &ring});
  };
  ASSERT_TRUE(issue(a) && issue(a));
  EXPECT_FALSE(issue(b));
  slots.complete(now, *slots.next_to_send(), Status::kOk);
  EXPECT_FALSE(issue(a));  // it is for b
  EXPECT_EQ(slots.next_try(a), now + SlotParameters{}.dispatch_timeout);
  EXPECT_EQ(slots.next_try(b), Time());
  now = now + SlotParameters{}.dispatch_timeout;
  EXPECT_TRUE(issue(a));
}

}  // namespace
}  // namespace sluice::onerma
