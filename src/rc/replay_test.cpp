// Answers to duplicates that wait while the records they stand for are used again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "rc/two_adapters.h"

namespace sluice::rc {
namespace {

// Keeps what an adapter sends, instead of a cable.
class Recorder final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    room_.assign(length, 0);
    return room_.data();
  }
  void commit(std::size_t length) override {
    frames.emplace_back(room_.begin(), room_.begin() + static_cast<std::ptrdiff_t>(length));
  }

  std::vector<std::vector<std::uint8_t>> frames;

 private:
  std::vector<std::uint8_t> room_;
};

class Replay : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kRemoteBase = 0x10'0000;

  // What the adapter wants to send now. A machine that never comes to an end stops at a limit, and shows by it.
  std::vector<std::vector<std::uint8_t>> sent_by(Host& host) {
    Recorder recorder;
    for (int i = 0; i < 1000; ++i) {
      if (!host.adapter->poll_transmit(world.now, recorder)) return recorder.frames;
    }
    ADD_FAILURE() << "poll_transmit() never says that there is nothing more to send";
    return recorder.frames;
  }

  void give(Host& host, std::vector<std::uint8_t> frame) {
    host.adapter->on_frame(world.now, {frame.data(), static_cast<std::uint32_t>(frame.size())});
  }

  // The READ requests for `count` reads of 8 bytes.
  std::vector<std::vector<std::uint8_t>> requests(int count) {
    const Sge sge = Sge::of(local);
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(world.a.adapter->post_send(
                    world.now, *pair.a,
                    {.op = SendOp::kRead, .sges = {&sge, 1}, .remote_address = kRemoteBase, .remote_key = key}),
                PostError::kNone);
    }
    return sent_by(world.a);
  }

  // Finds out the peers' addresses, so that only RoCE frames follow.
  void SetUp() override {
    const Sge sge = Sge::of(local);
    world.a.adapter->post_send(
        world.now, *pair.a, {.op = SendOp::kRead, .sges = {&sge, 1}, .remote_address = kRemoteBase, .remote_key = key});
    world.settle();
    ASSERT_EQ(TwoAdapters::take(world.a).size(), 1u);
  }

  TwoAdapters world;
  TwoAdapters::Pair pair = world.connect();
  std::vector<std::uint8_t> remote = std::vector<std::uint8_t>(64);
  std::vector<std::uint8_t> local = std::vector<std::uint8_t>(8);
  memory::Key key = world.region(world.b, remote, kRemoteBase);
};

TEST_F(Replay, ADuplicateReadWhoseRecordServesAnotherReadIsDropped) {
  const auto first = requests(1);
  ASSERT_EQ(first.size(), 1u);
  give(world.b, first[0]);
  for (const auto& answer : sent_by(world.b)) give(world.a, answer);
  ASSERT_EQ(TwoAdapters::take(world.a).size(), 1u);

  give(world.b, first[0]);         // asked again; the answer waits ...
  const auto more = requests(16);  // ... while as many READs as may be in flight take all records
  ASSERT_EQ(more.size(), 16u);
  for (const auto& request : more) give(world.b, request);
  const auto answers = sent_by(world.b);
  EXPECT_EQ(answers.size(), 16u);
  for (const auto& answer : answers) give(world.a, answer);
  EXPECT_EQ(TwoAdapters::take(world.a).size(), 16u);
}

}  // namespace
}  // namespace sluice::rc
