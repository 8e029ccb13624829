#include "verbs/process_nic.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ports/shm_port.h"

namespace sluice::verbs {
namespace {

using rc::QpState;

struct Spent {
  Duration processor_time;
  long naps;  // the core was given up, not taken away
};

Spent spent() {
  rusage of{};
  getrusage(RUSAGE_SELF, &of);
  const auto duration = [](timeval t) { return Duration::seconds(t.tv_sec) + Duration::microseconds(t.tv_usec); };
  return {.processor_time = duration(of.ru_utime) + duration(of.ru_stime), .naps = of.ru_nvcsw};
}

// A queue pair whose peer is somewhere out there.
rc::QueuePair* queue_pair(ProcessNic& nic) {
  rc::Adapter& adapter = nic.adapter();
  auto* const completions = adapter.create_completion_queue(16);
  rc::QueuePair* const pair =
      adapter.create_queue_pair({.send_completions = completions, .receive_completions = completions}).value();
  const Time now = nic.now();
  EXPECT_TRUE(adapter.modify(now, *pair, {.state = QpState::kInit}));
  EXPECT_TRUE(adapter.modify(now, *pair,
                             {.state = QpState::kReadyToReceive,
                              .remote_gid = wire::Gid::from(wire::Ipv4Address{0x0A4D0002}),
                              .remote_mac = wire::MacAddress{{2, 0, 0, 0, 0, 2}},
                              .remote_qpn = wire::Qpn{7},
                              .path_mtu = 4096,
                              .receive_psn = wire::Psn(1)}));
  EXPECT_TRUE(adapter.modify(now, *pair, {.state = QpState::kReadyToSend, .send_psn = wire::Psn(1), .timeout = 0}));
  return pair;
}

TEST(ProcessNic, AFullPortLeavesTheCoreToOthers) {
  const std::string cable = fmt::format("/tmp/sluice-full-{}", getpid());
  auto reader = ports::ShmPort::listen_one(cable, {.ring_bytes = 1 << 16}).value();
  Settings settings;
  settings.port = "shm:" + cable;
  settings.mac = wire::MacAddress{{2, 0, 0, 0, 0, 1}};
  settings.gids = {wire::Gid::from(wire::Ipv4Address{0x0A4D0001})};
  auto nic = ProcessNic::open(settings).value();
  const auto is_up = [&] {
    reader->receive(nic->now(), {});
    return reader->state() == port::PortState::kUp;
  };
  while (!is_up()) sched_yield();
  std::vector<std::uint8_t> bytes(1 << 19);
  {
    const NicLock guard(nic->lock());
    while (nic->turn() != 0) {
    }
    rc::QueuePair* const pair = queue_pair(*nic);
    const rc::Sge sge = rc::Sge::of(bytes);
    ASSERT_EQ(nic->adapter().post_send(nic->now(), *pair, {.op = rc::SendOp::kWrite, .sges = {&sge, 1}}),
              rc::PostError::kNone);
    nic->transmit();
  }
  // What the progress thread does while nobody reads shows only in time that passes.
  const Spent before = spent();
  const Time start = nic->now();
  static_cast<void>(poll(nullptr, 0, 200));
  const Spent after = spent();
  // Who spins takes all of a core, and never gives it up. One of the 2,000 looks costs a sanitized build up to 40 us.
  EXPECT_LT((after.processor_time - before.processor_time) * 2, nic->now() - start);
  EXPECT_GT(after.naps - before.naps, 20);
  const NicLock guard(nic->lock());
  EXPECT_NE(nic->port_counters().tx_full, 0u) << "there was room for all of it";
}

// A NIC that talks to itself, and counts into a file.
class CountingNic : public testing::Test {
 protected:
  CountingNic() {
    std::filesystem::remove(file_);
    settings_.mac = wire::MacAddress{{2, 0, 0, 0, 0, 1}};
    settings_.gids = {wire::Gid::from(wire::Ipv4Address{0x0A4D0001})};
    settings_.counters = file_;
    nic_ = ProcessNic::open(settings_).value();
  }
  ~CountingNic() override { std::filesystem::remove(file_); }

  nlohmann::json counted() const {
    std::ifstream file(file_);
    return nlohmann::json::parse(file);
  }

  const std::string file_ = fmt::format("/tmp/sluice-counting-{}", getpid());
  Settings settings_;
  std::unique_ptr<ProcessNic> nic_;
};

TEST_F(CountingNic, WritesAllAtItsEnd) {
  EXPECT_EQ(counted().at("complete"), false);
  rc::AdapterCounters last;
  {
    const NicLock guard(nic_->lock());
    queue_pair(*nic_);  // asks for its peer's address
    nic_->transmit();
    last = nic_->adapter().counters();
  }
  nic_->retire();
  const nlohmann::json counted = this->counted();
  EXPECT_EQ(counted.at("complete"), true);
  EXPECT_EQ(counted.at("address"), "10.77.0.1");
  EXPECT_GT(counted.at("port").at("tx_frames"), 0u);
  last.for_each([&](const char* name, const char*, std::uint64_t value) {
    EXPECT_GE(counted.at("nic").at(name).get<std::uint64_t>(), value) << name;
  });
}

TEST_F(CountingNic, WritesAllAlsoWhenASignalHandlerThatCameUponAVerbEndsTheProcess) {
  const NicLock guard(nic_->lock());
  nic_->retire();
  EXPECT_EQ(counted().at("complete"), true);
}

}  // namespace
}  // namespace sluice::verbs
