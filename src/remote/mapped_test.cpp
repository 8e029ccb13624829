#include "remote/mapped.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <numeric>
#include <thread>

namespace sluice::remote {
namespace {

class Mapped : public testing::Test {
 protected:
  Mapped() {
    std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
    memory.add(start, bytes);
  }
  Operation run(Operation operation) {
    operation.on_complete = [](Operation&) {};
    memory.submit(operation);
    return operation;
  }

  alignas(8) std::array<std::uint8_t, 64> bytes{};
  Scheduler scheduler;
  MappedMemory memory{scheduler};
  const RemoteAddress start{NodeId(3), RegionKey(7), 0x1000};
};

TEST_F(Mapped, ReadsAndWritesAnyBytesInside) {
  std::vector<std::uint8_t> into(21);
  EXPECT_EQ(run(read_operation(start + 3, into)).status, Status::kOk);
  for (std::size_t i = 0; i < into.size(); ++i) EXPECT_EQ(into[i], i + 3);
  const std::vector<std::uint8_t> from(19, 0xee);
  EXPECT_EQ(run(write_operation(start + 5, from)).status, Status::kOk);
  EXPECT_EQ(bytes[4], 4);
  EXPECT_EQ(bytes[5], 0xee);
  EXPECT_EQ(bytes[23], 0xee);
  EXPECT_EQ(bytes[24], 24);
}

TEST_F(Mapped, DoesNotTearAWordBehindFirstBytesThatAreNone) {
  bytes.fill(0);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    const std::array<std::array<std::uint8_t, 20>, 2> values = {
        {{}, {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
              0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}}};
    for (std::size_t i = 0; i < 1'000'000; ++i) run(write_operation(start + 4, values[i % 2]));
    done = true;
  });
  int torn = 0;
  while (!done) {
    for (std::size_t word = 1; word < 3; ++word) {
      const auto seen = __atomic_load_n(reinterpret_cast<std::uint64_t*>(bytes.data()) + word, __ATOMIC_ACQUIRE);
      torn += seen != 0 && seen != ~0ull ? 1 : 0;
    }
  }
  writer.join();
  EXPECT_EQ(torn, 0);
}

TEST_F(Mapped, CopiesEveryLengthToEveryAlignmentAndTouchesNothingElse) {
  std::array<std::uint8_t, 64> from{};
  std::iota(from.begin(), from.end(), std::uint8_t{100});
  for (std::size_t at = 0; at < 16; ++at) {
    for (std::size_t length = 0; length <= 40; ++length) {
      bytes.fill(1);
      ASSERT_EQ(run(write_operation(start + at, ByteView(from).first(length))).status, Status::kOk);
      std::array<std::uint8_t, 48> into{};
      ASSERT_EQ(run(read_operation(start + at, MutableBytes(into).subspan(3, length))).status, Status::kOk);
      for (std::size_t i = 0; i < bytes.size(); ++i)
        ASSERT_EQ(bytes[i], i >= at && i < at + length ? from[i - at] : 1) << at << " " << length << " " << i;
      for (std::size_t i = 0; i < into.size(); ++i)
        ASSERT_EQ(into[i], i >= 3 && i < 3 + length ? from[i - 3] : 0) << at << " " << length << " " << i;
    }
  }
}

TEST_F(Mapped, TearsNoAlignedWordOfFourBytesBeforeAndBehindThoseOfEight) {
  bytes.fill(0);
  std::atomic<bool> done{false};
  const auto half = [&](std::size_t i) { return reinterpret_cast<std::uint32_t*>(bytes.data()) + i; };
  const auto is_torn = [](std::uint32_t seen) { return seen != 0 && seen != ~0u; };
  int torn = 0;
  std::thread writer([&] {
    const std::array<std::array<std::uint8_t, 16>, 2> values = [] {
      std::array<std::array<std::uint8_t, 16>, 2> two{};
      two[1].fill(0xFF);
      return two;
    }();
    for (std::size_t i = 0; i < 1'000'000; ++i) run(write_operation(start + 4, values[i % 2]));
    done = true;
  });
  while (!done) {
    for (std::size_t i = 1; i < 5; ++i) torn += is_torn(__atomic_load_n(half(i), __ATOMIC_ACQUIRE)) ? 1 : 0;
  }
  writer.join();
  EXPECT_EQ(torn, 0) << "written";
  done = false;
  std::thread storer([&] {
    for (std::uint32_t value = 0; !done; value = ~value) {
      for (std::size_t i = 1; i < 5; ++i) __atomic_store_n(half(i), value, __ATOMIC_RELEASE);
    }
  });
  for (int round = 0; round < 1'000'000; ++round) {
    std::array<std::uint8_t, 16> into{};
    run(read_operation(start + 4, into));
    for (std::size_t i = 0; i < 4; ++i) torn += is_torn(load_le<std::uint32_t>(into.data() + 4 * i)) ? 1 : 0;
  }
  done = true;
  storer.join();
  EXPECT_EQ(torn, 0) << "read";
}

TEST_F(Mapped, AtomicsReturnWhatWasThere) {
  store_le(bytes.data() + 8, std::uint64_t{40});
  EXPECT_EQ(run(add_operation(start + 8, 2)).prior, 40u);
  EXPECT_EQ(run(swap_operation(start + 8, 42, 7)).prior, 42u);
  EXPECT_EQ(run(swap_operation(start + 8, 42, 9)).prior, 7u);
  EXPECT_EQ(load_le<std::uint64_t>(bytes.data() + 8), 7u);
}

TEST_F(Mapped, RefusesWhatIsNotThere) {
  std::vector<std::uint8_t> into(8);
  EXPECT_EQ(run(read_operation(start + 57, into)).status, Status::kAccessDenied);
  EXPECT_EQ(run(read_operation(start + ~0ull, into)).status, Status::kAccessDenied);
  EXPECT_EQ(run(read_operation({NodeId(4), start.key, start.address}, into)).status, Status::kAccessDenied);
  EXPECT_EQ(run(read_operation({start.node, RegionKey(8), start.address}, into)).status, Status::kAccessDenied);
  EXPECT_EQ(run(add_operation(start + 4, 1)).status, Status::kMisaligned);
}

}  // namespace
}  // namespace sluice::remote
