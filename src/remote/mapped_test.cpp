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
