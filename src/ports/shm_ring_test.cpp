#include "ports/shm_ring.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>

#include "base/rng.h"
#include "ports/shm_region.h"

namespace sluice::ports {
namespace {

using port::Frame;
using port::kMaxFrame;

// One ring with both sides on one mapping, so that the thread sanitizer sees what they share.
class ShmRing : public testing::Test {
 protected:
  ShmRing() : region_(ShmRegion::create(kMinRing).value()) {}

  RingWriter writer() { return {region_.control(0), region_.bytes(0), kMinRing}; }
  RingReader reader() { return {region_.control(0), region_.bytes(0), kMinRing}; }
  // Stores a record's header as a mad writer might.
  void forge(std::uint64_t at, std::uint64_t header) { store_le(region_.bytes(0) + at, header); }

  ShmRegion region_;
};

void fill(std::uint8_t* data, std::size_t length, std::uint64_t number) {
  for (std::size_t i = 0; i < length; ++i) data[i] = static_cast<std::uint8_t>(number * 7 + i);
}

bool holds(const Frame& frame, std::size_t length, std::uint64_t number) {
  if (frame.length != length) return false;
  for (std::size_t i = 0; i < length; ++i) {
    if (frame.data[i] != static_cast<std::uint8_t>(number * 7 + i)) return false;
  }
  return true;
}

TEST_F(ShmRing, CarriesEveryLengthAcrossItsEndAtEveryAlignment) {
  auto out = writer();
  auto in = reader();
  std::array<Frame, 4> burst;
  std::uint64_t number = 0;
  // Three laps for each step, so that records of many lengths lie across the end, at every place a record may begin.
  for (std::size_t length = 1; length <= kMaxFrame; ++length, ++number) {
    std::uint8_t* room = out.reserve(length);
    ASSERT_NE(room, nullptr);
    fill(room, length, number);
    out.commit(length);
    out.publish();
    ASSERT_EQ(in.receive(burst), 1u);
    ASSERT_TRUE(holds(burst[0], length, number)) << length;
  }
  for (std::size_t start = 0; start < kMinRing; start += kRecordAlign) {
    for (const std::size_t length : {kRecordAlign - kRecordHeader, kMaxFrame}) {
      std::uint8_t* room = out.reserve(length);
      ASSERT_NE(room, nullptr);
      fill(room, length, ++number);
      out.commit(length);
      out.publish();
      ASSERT_EQ(in.receive(burst), 1u);
      ASSERT_TRUE(holds(burst[0], length, number));
    }
  }
}

TEST_F(ShmRing, IsFullAtItsSizeAndFreeAgainWhenFramesAreGivenBack) {
  auto out = writer();
  auto in = reader();
  std::size_t sent = 0;
  while (out.reserve(1000) != nullptr) {
    out.commit(1000);
    ++sent;
  }
  EXPECT_EQ(sent, (kMinRing - kRecordAlign) / record_size(1000));
  out.publish();
  std::array<Frame, 2> burst;
  ASSERT_EQ(in.receive(burst), 2u);
  EXPECT_EQ(out.reserve(1000), nullptr);  // still being read
  ASSERT_EQ(in.receive(burst), 2u);
  EXPECT_NE(out.reserve(1000), nullptr);
}

TEST_F(ShmRing, ShowsNothingBeforeItIsPublished) {
  auto out = writer();
  auto in = reader();
  std::array<Frame, 2> burst;
  ASSERT_NE(out.reserve(60), nullptr);
  out.commit(60);
  EXPECT_EQ(in.receive(burst), 0u);
  out.publish();
  EXPECT_EQ(in.receive(burst), 1u);
}

TEST_F(ShmRing, NothingIsSeenOfWhatWasDiscardedWhereverItLay) {
  auto out = writer();
  auto in = reader();
  Rng rng(3);
  std::array<Frame, 16> burst;
  std::uint64_t number = 0;
  std::uint64_t seen = 0;
  for (int round = 0; round < 20'000; ++round) {
    const bool is_shown = rng.chance_per_million(500'000);
    const std::uint64_t first = number;
    for (std::uint64_t count = rng.below(8); count != 0; --count) {
      const std::size_t length = 1 + rng.below(kMaxFrame);
      std::uint8_t* const room = out.reserve(length);
      if (room == nullptr) break;
      fill(room, length, is_shown ? number : 99);
      out.commit(length);
      ++number;
    }
    if (is_shown) {
      out.publish();
    } else {
      out.discard();
      number = first;
    }
    for (const Frame& frame : std::span(burst).first(in.receive(burst))) {
      ASSERT_TRUE(holds(frame, frame.length, seen)) << round;
      ++seen;
    }
    ASSERT_FALSE(in.broken());
    ASSERT_EQ(seen, number);
  }
  EXPECT_GT(seen, 1000u);
}

TEST_F(ShmRing, AsksForAWakeUpOnlyWhileTheReaderSleeps) {
  auto out = writer();
  auto in = reader();
  const auto send = [&out] {
    out.reserve(60);
    out.commit(60);
    return out.publish();
  };
  std::array<Frame, 8> burst;
  EXPECT_FALSE(send());
  EXPECT_FALSE(in.arm());  // there is a frame already
  EXPECT_EQ(in.receive(burst), 1u);
  EXPECT_TRUE(in.arm());
  EXPECT_TRUE(send());
  EXPECT_FALSE(send());  // rung already
  in.disarm();
  EXPECT_EQ(in.receive(burst), 2u);
  EXPECT_TRUE(in.arm());
  in.disarm();
  EXPECT_FALSE(send());
}

TEST_F(ShmRing, RefusesAHeaderThatIsNotExactlyRightForItsPlace) {
  for (const std::uint64_t header :
       {record_header(64, 60), record_header(kMinRing, 60), record_header(0, 0) | std::uint64_t{1} << 16,
        record_header(0, kMaxFrame + 1), record_header(0, 0xFFFF), ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    forge(0, header);
    auto in = reader();
    std::array<Frame, 8> burst;
    EXPECT_EQ(in.receive(burst), 0u) << header;
    EXPECT_TRUE(in.broken()) << header;
  }
}

TEST_F(ShmRing, DeliversWhatIsGoodBeforeARecordThatIsNot) {
  forge(0, record_header(0, 60));  // two units
  forge(128, record_header(64, 60));
  auto in = reader();
  std::array<Frame, 8> burst;
  EXPECT_EQ(in.receive(burst), 1u);
  EXPECT_TRUE(in.broken());
  EXPECT_EQ(in.receive(burst), 0u);
}

// What a frame holds must not pass for a header on a later lap, not even when its sender meant it to.
TEST_F(ShmRing, DoesNotTakeAFramesBytesForAHeader) {
  auto out = writer();
  auto in = reader();
  std::array<Frame, 8> burst;
  const std::size_t length = 2048 - kRecordHeader;
  for (std::uint64_t position = 0; position < kMinRing; position += record_size(length)) {
    std::uint8_t* room = out.reserve(length);
    ASSERT_NE(room, nullptr);
    // At every place that may be a record's start on the next lap: a perfect header for it.
    for (std::size_t at = kRecordAlign; at < length; at += kRecordAlign) {
      store_le(room - kRecordHeader + at, record_header(position + kMinRing + at, 100));
    }
    out.commit(length);
    out.publish();
    ASSERT_EQ(in.receive(burst), 1u);
    ASSERT_EQ(burst[0].length, length);
    ASSERT_EQ(in.receive(burst), 0u);  // nothing else is there
  }
  // Small records begin at all those places.
  for (int i = 0; i < 5000; ++i) {
    ASSERT_NE(out.reserve(10), nullptr);
    out.commit(10);
    out.publish();
    ASSERT_EQ(in.receive(burst), 1u);
    ASSERT_EQ(burst[0].length, 10u);
    ASSERT_EQ(in.receive(burst), 0u);
    ASSERT_FALSE(in.broken());
  }
}

TEST_F(ShmRing, RefusesAHeadThatNoReaderCouldHaveGivenBack) {
  for (const std::uint64_t head : {std::uint64_t{1} << 40, kMinRing + 64, ~std::uint64_t{0}}) {
    region_.control(0)->head = 0;
    auto out = writer();
    while (out.reserve(1000) != nullptr) out.commit(1000);
    out.publish();
    region_.control(0)->head = head;
    EXPECT_EQ(out.reserve(1000), nullptr);
    EXPECT_TRUE(out.broken()) << head;
    region_.control(0)->head = 128;  // too late
    EXPECT_EQ(out.reserve(1), nullptr);
  }
}

TEST_F(ShmRing, NeverLeavesItsMemoryWhateverAMadPeerStores) {
  Rng rng(11);
  for (int round = 0; round < 2'000; ++round) {
    auto in = reader();
    auto out = writer();
    // A chain of headers that are right but for their lengths, and some that are not.
    for (std::uint64_t at = 0; at < kMinRing;) {
      const auto length = 1 + rng.below(kMaxFrame + 20);
      forge(at, rng.below(20) == 0 ? rng.next() : record_header(at, length));
      at += record_size(length);
    }
    std::array<Frame, 16> burst;
    for (int i = 0; i < 4; ++i) {
      for (const auto& frame : std::span(burst).first(in.receive(burst))) {
        ASSERT_GE(frame.data, region_.bytes(0));
        ASSERT_LE(frame.data + frame.length, region_.bytes(0) + 2 * kMinRing);
        ASSERT_LE(frame.length, kMaxFrame);
      }
      if (std::uint8_t* room = out.reserve(kMaxFrame)) {
        ASSERT_GE(room, region_.bytes(0));
        ASSERT_LE(room + kMaxFrame, region_.bytes(0) + 2 * kMinRing);
        out.commit(1 + rng.below(kMaxFrame));
        out.publish();
      }
      region_.control(0)->head = rng.next() >> rng.below(64);
    }
  }
}

// Frames of drawn lengths from one thread to another; the thread sanitizer watches.
TEST_F(ShmRing, PassesFramesBetweenTwoThreadsInOrderAndWhole) {
  constexpr std::uint64_t kFrames = 100'000;
  const auto length_of = [](std::uint64_t number) { return 8 + number * 2654435761u % 600; };
  std::thread sender([&, out = writer()]() mutable {
    for (std::uint64_t number = 0; number < kFrames;) {
      for (std::uint64_t i = 0; i < 32 && number < kFrames; ++i) {
        std::uint8_t* room = out.reserve(length_of(number));
        if (room == nullptr) break;
        fill(room, length_of(number), number);
        out.commit(length_of(number));
        ++number;
      }
      out.publish();
      std::this_thread::yield();
    }
  });
  auto in = reader();
  std::array<Frame, 32> burst;
  std::uint64_t received = 0;
  std::uint64_t wrong = 0;
  while (received < kFrames) {
    const auto count = in.receive(burst);
    if (count == 0) std::this_thread::yield();
    for (const auto& frame : std::span(burst).first(count)) {
      if (!holds(frame, length_of(received), received)) ++wrong;
      ++received;
    }
  }
  sender.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_FALSE(in.broken());
}

}  // namespace
}  // namespace sluice::ports
