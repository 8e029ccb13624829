#include "ports/pcap_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include "port/memory_port.h"

namespace sluice::ports {
namespace {

using port::Frame;
using port::Port;
using port::PortState;
using testing::HasSubstr;

class PcapPortTest : public testing::Test {
 protected:
  PcapPortTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-pcap-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    file_ = directory_ + "/frames.pcap";
  }
  ~PcapPortTest() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
  std::string file_;
  Time now_;
};

void send(Port& port, std::uint8_t fill, std::size_t length, Time now) {
  std::uint8_t* room = port.reserve(length);
  ASSERT_NE(room, nullptr);
  std::fill_n(room, length, fill);
  port.commit(length);
  port.flush(now);
}

std::vector<std::vector<std::uint8_t>> take(Port& port, Time now) {
  std::vector<std::vector<std::uint8_t>> all;
  std::array<Frame, 100> burst;
  while (const auto count = port.receive(now, burst)) {
    for (const auto& frame : std::span(burst).first(count)) all.emplace_back(frame.data, frame.data + frame.length);
  }
  return all;
}

// Three frames out, one in, a millisecond apart.
void record_some(const std::string& file) {
  auto [near, far] = port::make_memory_cable();
  auto port = recording(std::move(near), file).value();
  Time now;
  for (std::uint8_t i = 1; i <= 3; ++i) {
    now = now + Duration::milliseconds(1);
    take(*port, now);
    send(*port, i, 60u * i, now);
  }
  send(*far, 9, 4352, now);
  take(*port, now + Duration::milliseconds(1));
  EXPECT_EQ(port->recorded(), 4u);
  EXPECT_EQ(take(*far, now).size(), 3u);
}

TEST_F(PcapPortTest, ReplaysWhatWasRecordedInBothDirections) {
  record_some(file_);
  auto replay = PcapPort::open(file_).value();
  EXPECT_EQ(replay->state(), PortState::kUp);
  const auto frames = take(*replay, now_);
  ASSERT_EQ(frames.size(), 4u);
  for (std::uint8_t i = 1; i <= 3; ++i) EXPECT_EQ(frames[i - 1u], std::vector<std::uint8_t>(60u * i, i));
  EXPECT_EQ(frames[3], std::vector<std::uint8_t>(4352, 9));
  EXPECT_EQ(replay->state(), PortState::kDown);
  EXPECT_TRUE(replay->arm());
}

// It has everybody's data and keys.
TEST_F(PcapPortTest, WhatIsRecordedIsForItsOwnerAloneWhateverWasThere) {
  const mode_t before = umask(0022);
  const auto mode = [&] {
    struct stat status {};
    EXPECT_EQ(stat(file_.c_str(), &status), 0);
    return status.st_mode & 0777;
  };
  record_some(file_);
  EXPECT_EQ(mode(), 0600u);
  const auto size = std::filesystem::file_size(file_);
  std::ofstream(file_) << std::string(2 * size, 'x');
  ASSERT_EQ(chmod(file_.c_str(), 0644), 0);
  record_some(file_);
  EXPECT_EQ(mode(), 0600u);
  EXPECT_EQ(std::filesystem::file_size(file_), size) << "and begins anew";
  umask(before);
}

TEST_F(PcapPortTest, ReplaysAtTheRecordedTimes) {
  record_some(file_);
  auto replay = PcapPort::open(file_, Pace::kAsRecorded).value();
  now_ = Time::at(Duration::seconds(5));
  EXPECT_EQ(take(*replay, now_).size(), 1u);
  EXPECT_EQ(replay->next_deadline(), now_ + Duration::milliseconds(1));
  EXPECT_TRUE(replay->arm());
  EXPECT_TRUE(take(*replay, now_ + Duration::microseconds(999)).empty());
  EXPECT_EQ(take(*replay, now_ + Duration::milliseconds(1)).size(), 1u);
  EXPECT_EQ(take(*replay, now_ + Duration::seconds(1)).size(), 2u);
  EXPECT_EQ(replay->next_deadline(), Time::never());
}

// Classic pcap with nanoseconds: a frame of four bytes for each stamp.
void write_stamped(const std::string& file, const std::vector<std::array<std::uint32_t, 2>>& stamps) {
  std::vector<std::uint32_t> words = {0xA1B23C4D, 0x00040002, 0, 0, 65535, 1};
  for (const auto& stamp : stamps) words.insert(words.end(), {stamp[0], stamp[1], 4, 4, 0});
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(words.data()), static_cast<std::streamsize>(words.size() * 4));
}

TEST_F(PcapPortTest, WaitsAHundredDaysAtMostForAFrameWhoseStampIsFurther) {
  constexpr std::uint32_t kDay = 86'400;
  write_stamped(file_, {{0, 0}, {99 * kDay, 5}, {200 * kDay, 0}, {0xFFFF'FFFF, 0}});
  auto replay = PcapPort::open(file_, Pace::kAsRecorded).value();
  now_ = Time::at(Duration::seconds(5));
  EXPECT_EQ(take(*replay, now_).size(), 1u);
  EXPECT_EQ(replay->next_deadline(), now_ + Duration::seconds(99 * kDay) + Duration::nanoseconds(5));
  EXPECT_EQ(take(*replay, replay->next_deadline()).size(), 1u);
  EXPECT_EQ(replay->next_deadline(), now_ + Duration::seconds(100 * kDay));
  EXPECT_EQ(take(*replay, replay->next_deadline()).size(), 2u);
}

TEST(CaptureStamps, AreNoFurtherFromEachOtherThanADurationHolds) {
  constexpr Duration kHundredDays = Duration::seconds(100 * 86'400);
  constexpr auto kMost = std::numeric_limits<time_t>::max();
  constexpr auto kLeast = std::numeric_limits<time_t>::min();
  EXPECT_EQ(distance({1'800'000'000, 999'999'999}, {1'800'000'001, 1}), Duration::nanoseconds(2));
  EXPECT_EQ(distance({1'800'000'001, 1}, {1'800'000'000, 999'999'999}), Duration::nanoseconds(-2));
  EXPECT_EQ(distance({0, 0}, {1'800'000'000, 0}), kHundredDays);
  EXPECT_EQ(distance({kLeast, 0}, {kMost, 0}), kHundredDays);
  EXPECT_EQ(distance({kMost, 0}, {kLeast, 0}), kHundredDays * -1);
}

TEST_F(PcapPortTest, WritesTheLastFramesOutWhenNothingFollows) {
  auto [near, far] = port::make_memory_cable();
  auto port = recording(std::move(near), file_).value();
  EXPECT_EQ(port->next_deadline(), Time::never());
  send(*port, 1, 60, now_);
  send(*port, 2, 60, now_ + Duration::milliseconds(1));
  EXPECT_EQ(take(*PcapPort::open(file_).value(), now_).size(), 1u);
  const Time due = port->next_deadline();
  EXPECT_EQ(due, now_ + Duration::milliseconds(100));
  port->flush(due);
  EXPECT_EQ(port->next_deadline(), Time::never());
  EXPECT_EQ(take(*PcapPort::open(file_).value(), now_).size(), 2u) << "while it is still being recorded";
}

TEST_F(PcapPortTest, StampsFramesWithTheWallClockToTheNanosecond) {
  const auto before = std::chrono::system_clock::now();
  record_some(file_);
  // The oracle is the format itself: magic for nanoseconds, seconds and nanoseconds of the first record.
  std::ifstream stream(file_, std::ios::binary);
  std::array<char, 40> raw{};
  stream.read(raw.data(), raw.size());
  std::array<std::uint8_t, 40> head{};
  std::copy(raw.begin(), raw.end(), head.begin());
  EXPECT_EQ(load_le<std::uint32_t>(head.data()), 0xA1B23C4Du);
  const auto seconds = std::chrono::seconds(load_le<std::uint32_t>(head.data() + 24));
  EXPECT_GE(std::chrono::system_clock::time_point(seconds) + std::chrono::seconds(2), before);
  EXPECT_LT(load_le<std::uint32_t>(head.data() + 28), 1'000'000'000u);
  EXPECT_EQ(load_le<std::uint32_t>(head.data() + 32), 60u);
}

TEST_F(PcapPortTest, CountsWhatIsSentIntoAReplay) {
  record_some(file_);
  auto replay = PcapPort::open(file_).value();
  send(*replay, 1, 60, now_);
  EXPECT_EQ(replay->counters().tx_frames, 1u);
  EXPECT_EQ(take(*replay, now_).size(), 4u);
}

TEST_F(PcapPortTest, PassesOnThatAFrameIsDiscarded) {
  auto [near, far] = port::make_memory_cable();
  auto port = recording(std::move(near), file_).value();
  ASSERT_NE(port->reserve(60), nullptr);
  port->commit(60);
  port->discard();
  EXPECT_EQ(port->counters().tx_discarded, 1u);
  send(*port, 2, 70, now_);
  const auto got = take(*far, now_);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].size(), 70u);
}

TEST_F(PcapPortTest, GoesOnWhenTheDiskIsFullAndSaysSoOnce) {
  auto [near, far] = port::make_memory_cable(2000);
  testing::internal::CaptureStderr();
  {
    auto port = recording(std::move(near), "/dev/full").value();
    for (int i = 0; i < 1000; ++i) {
      now_ = now_ + Duration::milliseconds(1);
      send(*port, 1, 1000, now_);
    }
    EXPECT_GT(port->lost(), 0u);
  }
  EXPECT_EQ(take(*far, now_).size(), 1000u);
  const auto said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("recording to /dev/full ends here"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

TEST_F(PcapPortTest, NoticesADiskThatFillsUpBetweenTwoFlushes) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{64 << 10, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  auto [near, far] = port::make_memory_cable(2000);
  testing::internal::CaptureStderr();
  {
    auto port = recording(std::move(near), file_).value();
    for (int i = 0; i < 1000; ++i) {
      if (i % 100 == 0) now_ = now_ + Duration::milliseconds(100);
      send(*port, 1, 1000, now_);
    }
    EXPECT_EQ(port->recorded() + port->lost(), 1000u);
    EXPECT_LT(port->recorded(), 70u);
  }
  const auto said = testing::internal::GetCapturedStderr();
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(said, HasSubstr("recording to " + file_ + " ends here"));
  EXPECT_THAT(said, HasSubstr("File too large"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  auto replay = PcapPort::open(file_).value();
  const auto kept = take(*replay, now_);
  EXPECT_GT(kept.size(), 60u);
  EXPECT_EQ(replay->counters().rx_malformed, 0u) << "the file ends with a whole frame";
}

TEST_F(PcapPortTest, SkipsFramesThatWereCutShortOrAreTooLong) {
  record_some(file_);
  std::fstream stream(file_, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(24 + 12);  // the first record's original length
  stream.put(61);
  stream.close();
  auto replay = PcapPort::open(file_).value();
  EXPECT_EQ(take(*replay, now_).size(), 3u);
  EXPECT_EQ(replay->counters().rx_malformed, 1u);
}

TEST_F(PcapPortTest, CountsAndTellsThatAFileIsBroken) {
  record_some(file_);
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) - 10);
  auto replay = PcapPort::open(file_).value();
  testing::internal::CaptureStderr();
  const auto frames = take(*replay, now_);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("ends before the file does"));
  EXPECT_EQ(frames.size(), 3u);
  EXPECT_EQ(replay->counters().rx_malformed, 1u);
  EXPECT_EQ(replay->state(), PortState::kDown);
}

TEST_F(PcapPortTest, RefusesWhatItCannotReplayOrRecord) {
  EXPECT_THAT(PcapPort::open(file_).error().message, HasSubstr(file_));
  std::ofstream(file_) << "this is no capture at all, is it";
  EXPECT_THAT(PcapPort::open(file_).error().message, HasSubstr("cannot replay"));
  // A capture of raw IP packets (link type 101).
  record_some(file_);
  std::fstream stream(file_, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(20);
  stream.put(101);
  stream.close();
  EXPECT_THAT(PcapPort::open(file_).error().message, HasSubstr("only Ethernet captures"));
  auto [near, far] = port::make_memory_cable();
  const auto refused = recording(std::move(near), directory_ + "/no/such/place.pcap");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("cannot record"));
}

TEST_F(PcapPortTest, ReplaysCapturesOfRealNetworkCards) {
  const std::filesystem::path captures = SLUICE_REFERENCE_DIR "/pcap";
  if (!std::filesystem::exists(captures)) GTEST_SKIP() << "no reference data";
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(captures)) {
    if (entry.path().extension() != ".pcap") continue;
    ++files;
    auto replay = PcapPort::open(entry.path().string()).value();
    EXPECT_GT(take(*replay, now_).size(), 0u) << entry.path();
    EXPECT_EQ(replay->counters().rx_malformed, 0u) << entry.path();
  }
  EXPECT_GT(files, 10u);
}

}  // namespace
}  // namespace sluice::ports
