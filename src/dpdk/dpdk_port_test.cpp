// Ports on DPDK's devices that need no privilege: ring, null, pcap. af_packet is an integration test (tests/integration/dpdk_test.py).
#include "dpdk/dpdk_port.h"

#include <gtest/gtest.h>
#include <pcap/pcap.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "ports/open.h"

namespace sluice::dpdk {
namespace {

class DpdkPorts : public testing::Test {
 protected:
  static void SetUpTestSuite() { add_port_kind(); }

  static std::unique_ptr<port::Port> open(const std::string& spec) {
    auto port = ports::open_port(spec);
    EXPECT_TRUE(port) << port.error().message;
    return port ? std::move(*port) : nullptr;
  }
  static std::string refusal(const std::string& spec) {
    const auto port = ports::open_port(spec);
    EXPECT_FALSE(port);
    return port ? "" : port.error().message;
  }
  // A frame that tells its number.
  static bool send(port::Port& port, std::uint32_t number, std::size_t length = 100) {
    std::uint8_t* const out = port::reserve_at_once(port, length);
    if (out == nullptr) return false;
    for (std::size_t i = 0; i < length; ++i) out[i] = static_cast<std::uint8_t>(number + i);
    port.commit(length);
    return true;
  }
  static bool is(const port::Frame& frame, std::uint32_t number, std::size_t length = 100) {
    if (frame.length != length) return false;
    for (std::size_t i = 0; i < length; ++i) {
      if (frame.data[i] != static_cast<std::uint8_t>(number + i)) return false;
    }
    return true;
  }
  std::array<port::Frame, 64> burst_{};
};

TEST_F(DpdkPorts, RingGivesBackWhatIsSentInOrder) {
  const auto port = open("dpdk:ring");
  ASSERT_NE(port, nullptr);
  EXPECT_EQ(port->receive(Time(), burst_), 0u);
  std::uint32_t sent = 0;
  std::uint32_t received = 0;
  for (int turn = 0; turn < 1000; ++turn) {
    for (int k = 0; k < 40; ++k) ASSERT_TRUE(send(*port, sent++));
    port->flush(Time());
    const std::size_t n = port->receive(Time(), burst_);
    ASSERT_EQ(n, 40u) << "turn " << turn;
    for (std::size_t i = 0; i < n; ++i) ASSERT_TRUE(is(burst_[i], received++));
  }
  EXPECT_EQ(port->counters().rx_frames, 40'000u);
  EXPECT_EQ(port->counters().tx_frames, 40'000u);
  EXPECT_EQ(port->counters().tx_bytes, 4'000'000u);
}

TEST_F(DpdkPorts, TakesTheLongestFrame) {
  const auto port = open("dpdk:ring");
  ASSERT_NE(port, nullptr);
  ASSERT_TRUE(send(*port, 3, port::kMaxFrame));
  port->flush(Time());
  ASSERT_EQ(port->receive(Time(), burst_), 1u);
  EXPECT_TRUE(is(burst_[0], 3, port::kMaxFrame));
}

TEST_F(DpdkPorts, RefusesWhenTheWayOutIsFullAndLosesNothingThatItTook) {
  const auto port = open("dpdk:ring");
  ASSERT_NE(port, nullptr);
  std::uint32_t taken = 0;
  while (taken < 100'000 && send(*port, taken)) ++taken;
  ASSERT_LT(taken, 100'000u) << "never full";
  EXPECT_GE(port->counters().tx_full, 1u);
  std::uint32_t received = 0;
  for (int turn = 0; turn < 10'000 && received < taken; ++turn) {
    port->flush(Time());
    const std::size_t n = port->receive(Time(), burst_);
    for (std::size_t i = 0; i < n; ++i) ASSERT_TRUE(is(burst_[i], received++));
  }
  EXPECT_EQ(received, taken);
  ASSERT_TRUE(send(*port, 0)) << "there is room again";
}

TEST_F(DpdkPorts, ForgetsWhatIsDiscarded) {
  const auto port = open("dpdk:ring");
  ASSERT_NE(port, nullptr);
  std::uint64_t discarded = 0;
  for (int round = 0; round < 1000; ++round) {  // more than there are buffers
    for (std::uint32_t i = 0; i < 100; ++i, ++discarded) ASSERT_TRUE(send(*port, i));
    port->discard();
  }
  EXPECT_EQ(port->counters().tx_discarded, discarded);
  ASSERT_TRUE(send(*port, 7));
  port->flush(Time());
  ASSERT_EQ(port->receive(Time(), burst_), 1u);
  EXPECT_TRUE(is(burst_[0], 7));
}

TEST_F(DpdkPorts, ForgetsAReservationThatIsNotCommitted) {
  const auto port = open("dpdk:ring");
  ASSERT_NE(port, nullptr);
  for (int i = 0; i < 10'000; ++i) ASSERT_NE(port->reserve(1000), nullptr);
  port->flush(Time());
  EXPECT_EQ(port->receive(Time(), burst_), 0u);
}

TEST_F(DpdkPorts, NullMakesFramesOfTheLengthAskedForAndSwallowsAll) {
  const auto port = open("dpdk:null,size=90");
  ASSERT_NE(port, nullptr);
  ASSERT_EQ(port->receive(Time(), std::span(burst_).first(32)), 32u);
  EXPECT_EQ(burst_[0].length, 90u);
  for (std::uint32_t i = 0; i < 100'000; ++i) ASSERT_TRUE(send(*port, i));
}

TEST_F(DpdkPorts, PcapReadsOneFileAndWritesAnother) {
  const auto folder = std::filesystem::temp_directory_path() / ("sluice_dpdk_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string in = folder / "in.pcap";
  const std::string out = folder / "out.pcap";
  pcap_t* const format = pcap_open_dead(DLT_EN10MB, 65535);
  pcap_dumper_t* const writer = pcap_dump_open(format, in.c_str());
  ASSERT_NE(writer, nullptr);
  for (std::uint32_t number = 0; number < 50; ++number) {
    std::array<std::uint8_t, 100> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(number + i);
    const pcap_pkthdr header{.ts = {}, .caplen = 100, .len = 100};
    pcap_dump(reinterpret_cast<u_char*>(writer), &header, bytes.data());
  }
  pcap_dump_close(writer);
  pcap_close(format);

  {
    const auto port = open("dpdk:pcap,rx_pcap=" + in + ",tx_pcap=" + out);
    ASSERT_NE(port, nullptr);
    std::uint32_t seen = 0;
    for (int turn = 0; turn < 100 && seen < 50; ++turn) {
      const std::size_t n = port->receive(Time(), burst_);
      for (std::size_t i = 0; i < n; ++i) ASSERT_TRUE(is(burst_[i], seen++));
    }
    EXPECT_EQ(seen, 50u);
    for (std::uint32_t number = 0; number < 20; ++number) ASSERT_TRUE(send(*port, 100 + number));
    port->flush(Time());
  }
  const auto written = ports::open_port("pcap:" + out);
  ASSERT_TRUE(written) << written.error().message;
  std::uint32_t seen = 0;
  while (const std::size_t n = (*written)->receive(Time(), burst_)) {
    for (std::size_t i = 0; i < n; ++i) ASSERT_TRUE(is(burst_[i], 100 + seen++));
  }
  EXPECT_EQ(seen, 20u);
  std::filesystem::remove_all(folder);
}

// A driver that makes no port under its own name, after one that works.
TEST_F(DpdkPorts, LeavesOthersAloneWhenItFindsNoPort) {
  const auto port = open("dpdk:ring");
  ASSERT_NE(port, nullptr);
  testing::internal::CaptureStderr();
  EXPECT_NE(refusal("dpdk:vdev_netvsc"), "");
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("close"), std::string::npos) << said;
  ASSERT_TRUE(send(*port, 7));
  port->flush(Time());
  ASSERT_EQ(port->receive(Time(), burst_), 1u);
  EXPECT_TRUE(is(burst_[0], 7));
}

TEST_F(DpdkPorts, SaysWhatIsWrong) {
  EXPECT_NE(refusal("dpdk:nothing_of_that_name").find("nothing_of_that_name"), std::string::npos);
  EXPECT_NE(refusal("dpdk:ring,queue=many").find("queue=many"), std::string::npos);
  EXPECT_NE(refusal("dpdk:pcap,rx_pcap=/no/such/file").find("/no/such/file"), std::string::npos);
  EXPECT_NE(refusal("dpdk:af_packet,iface=nosuch0").find("no interface is named nosuch0"), std::string::npos);
  EXPECT_NE(refusal("dpdk:af_xdp").find("iface=NAME"), std::string::npos);
}

TEST_F(DpdkPorts, LeavesNoFolderBehind) {
  ASSERT_NE(open("dpdk:null"), nullptr);
  const char* const of_user = std::getenv("XDG_RUNTIME_DIR");
  for (const std::string place : {"/run", "/tmp", of_user == nullptr ? "/tmp" : of_user}) {
    const std::string folder = place + "/dpdk/sluice" + std::to_string(getpid());
    EXPECT_FALSE(std::filesystem::exists(folder)) << folder;
  }
}

TEST_F(DpdkPorts, LeavesTheThreadItsProcessors) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  ASSERT_NE(open("dpdk:null"), nullptr);
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

}  // namespace
}  // namespace sluice::dpdk
