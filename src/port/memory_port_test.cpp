#include "port/memory_port.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace sluice::port {
namespace {

constexpr Time kNow;

bool send(Port& port, std::uint8_t fill, std::size_t length) {
  std::uint8_t* room = port.reserve(length);
  if (room == nullptr) return false;
  std::fill_n(room, length, fill);
  port.commit(length);
  return true;
}

TEST(MemoryPort, DeliversFramesInOrderOnceFlushed) {
  auto [a, b] = make_memory_cable(4);
  ASSERT_TRUE(send(*a, 1, 60));
  ASSERT_TRUE(send(*a, 2, kMaxFrame));
  std::array<Frame, 8> burst;
  EXPECT_EQ(b->receive(kNow, burst), 0u);
  EXPECT_TRUE(b->arm());
  a->flush(kNow);
  EXPECT_FALSE(b->arm());
  ASSERT_EQ(b->receive(kNow, burst), 2u);
  EXPECT_EQ(burst[0].length, 60u);
  EXPECT_EQ(burst[0].data[59], 1);
  EXPECT_EQ(burst[1].length, kMaxFrame);
  EXPECT_EQ(burst[1].data[kMaxFrame - 1], 2);
}

TEST(MemoryPort, RefusesWhenFullUntilTheOtherEndTakesBackItsFrames) {
  auto [a, b] = make_memory_cable(2);
  EXPECT_TRUE(send(*a, 1, 60));
  EXPECT_TRUE(send(*a, 2, 60));
  EXPECT_FALSE(send(*a, 3, 60));
  EXPECT_EQ(a->counters().tx_full, 1u);
  a->flush(kNow);
  std::array<Frame, 8> burst;
  ASSERT_EQ(b->receive(kNow, burst), 2u);
  EXPECT_FALSE(send(*a, 3, 60));  // they are still being read
  EXPECT_EQ(b->receive(kNow, burst), 0u);
  EXPECT_TRUE(send(*a, 3, 60));
}

TEST(MemoryPort, ForgetsAReservationThatWasNotCommitted) {
  auto [a, b] = make_memory_cable(2);
  ASSERT_NE(a->reserve(100), nullptr);
  ASSERT_TRUE(send(*a, 7, 20));
  a->flush(kNow);
  std::array<Frame, 2> burst;
  ASSERT_EQ(b->receive(kNow, burst), 1u);
  EXPECT_EQ(burst[0].length, 20u);
}

TEST(MemoryPort, ForgetsWhatIsDiscardedAndNothingElse) {
  auto [a, b] = make_memory_cable(4);
  ASSERT_TRUE(send(*a, 1, 60));
  a->flush(kNow);
  for (std::uint8_t i = 2; i < 5; ++i) ASSERT_TRUE(send(*a, i, 60));
  ASSERT_FALSE(send(*a, 5, 60));
  a->discard();
  EXPECT_EQ(a->counters().tx_discarded, 3u);
  for (std::uint8_t i = 6; i < 9; ++i) ASSERT_TRUE(send(*a, i, 60)) << "as much room as before";
  a->flush(kNow);
  a->discard();
  EXPECT_EQ(a->counters().tx_discarded, 3u);
  std::array<Frame, 8> burst;
  ASSERT_EQ(b->receive(kNow, burst), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(burst[i].data[0], i == 0 ? 1 : 5 + i);
}

TEST(MemoryPort, TurnsDownAndDropsWhenItsOtherEndIsGone) {
  auto [a, b] = make_memory_cable(2);
  ASSERT_TRUE(send(*b, 9, 30));
  b->flush(kNow);
  b.reset();
  EXPECT_EQ(a->state(), PortState::kDown);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(send(*a, 1, 60));
  EXPECT_EQ(a->counters().tx_dropped, 5u);
  std::array<Frame, 2> burst;
  EXPECT_EQ(a->receive(kNow, burst), 1u);  // what had been sent before
}

TEST(MemoryPort, CarriesBothDirectionsAtOnceAndCounts) {
  auto [a, b] = make_memory_cable(10);
  std::array<Frame, 8> burst;
  for (int round = 0; round < 100; ++round) {
    for (std::uint8_t i = 0; i < 5; ++i) {
      ASSERT_TRUE(send(*a, i, 60u + i));
      ASSERT_TRUE(send(*b, i, 70u + i));
    }
    a->flush(kNow);
    b->flush(kNow);
    ASSERT_EQ(b->receive(kNow, burst), 5u);
    EXPECT_EQ(burst[4].length, 64u);
    ASSERT_EQ(a->receive(kNow, burst), 5u);
    EXPECT_EQ(burst[4].length, 74u);
  }
  EXPECT_EQ(a->counters().tx_frames, 500u);
  EXPECT_EQ(b->counters().rx_frames, 500u);
  EXPECT_EQ(a->counters().tx_bytes, b->counters().rx_bytes);
}

}  // namespace
}  // namespace sluice::port
