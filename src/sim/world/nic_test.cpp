#include "sim/world/nic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "sim/world/rack.h"

namespace sluice::sim {
namespace {

Duration ns(std::int64_t n) { return Duration::nanoseconds(n); }

// Round numbers, so that what a test expects can be added up.
Hardware simple() {
  Hardware hardware;
  hardware.nic = {.packet_interval = ns(1),
                  .requester_qp_interval = ns(10),
                  .responder_qp_interval = ns(50),
                  .responder_qp_interval_device = ns(20),
                  .transmit_latency = ns(100),
                  .receive_latency = ns(100),
                  .completion_latency = ns(200),
                  .doorbell_latency = ns(100),
                  .fetch_latency = ns(500),
                  .work_requests_kept = 1000,
                  .work_requests_lost = 2000,
                  .inline_bytes = 64,
                  .read_latency = ns(400),
                  .read_latency_device = ns(40),
                  .read_interval = ns(10),
                  .atomic_latency = ns(500),
                  .atomic_latency_device = ns(50),
                  .atomic_address_interval = ns(300),
                  .atomic_address_interval_device = ns(100),
                  .atomic_qp_interval = ns(350),
                  .atomic_interval = ns(20)};
  hardware.link = {.bits_per_second = 8'000'000'000'000, .delay = ns(50)};  // a byte a picosecond
  hardware.net_switch = {.pipeline_latency = ns(200), .queue_bytes = 1 << 20};
  return hardware;
}

struct World {
  explicit World(const Hardware& hardware = simple(), const RackOptions& options = {})
      : rack(hardware, 1, options), server(rack.add_machine()), client(rack.add_machine()) {
    key = server.share(memory, 0x1000);
    device_key = server.share(device, 0x9000, memory::RegionKind::kDevice);
    completions = client.make_completions(256);
    server_completions = server.make_completions(16);
  }
  rc::QueuePair& pair() { return *rack.connect({&client, completions, nullptr, 64}, {&server, server_completions}).a; }
  void post(rc::QueuePair& pair, rc::SendOp op, memory::Key to, std::uint64_t address, std::uint64_t id = 0) {
    const rc::Sge sge = rc::Sge::of(local);
    const rc::SendRequest request{
        .id = id, .op = op, .sges = {&sge, 1}, .remote_address = address, .remote_key = to, .swap_or_add = 1};
    EXPECT_EQ(client.nic.post(rack.loop.now(), client.nic.doorbell_latency(), pair, request), rc::PostError::kNone);
  }
  // When each completion comes, in order.
  std::vector<Time> times(std::size_t count) {
    std::vector<Time> out;
    rack.loop.run_until(Time::at(Duration::milliseconds(1)), [&] {
      std::array<rc::Completion, 16> found;
      for (std::size_t n = completions->poll(found); n > 0; --n) out.push_back(rack.loop.now());
      return out.size() == count;
    });
    return out;
  }
  Duration one(rc::SendOp op, memory::Key to, std::uint64_t address) {
    const Time begun = rack.loop.now();
    post(pair(), op, to, address);
    return times(1).at(0) - begun;
  }

  std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(4096);
  std::vector<std::uint8_t> device = std::vector<std::uint8_t>(256);
  std::vector<std::uint8_t> local = std::vector<std::uint8_t>(8);
  Rack rack;
  Rack::Machine& server;
  Rack::Machine& client;
  memory::Key key;
  memory::Key device_key;
  rc::CompletionQueue* completions;
  rc::CompletionQueue* server_completions;
};

// Doorbell 100, transmit 100, link 50, switch 200, link 50, receive 100; back the same without doorbell, and completion 200. The bytes
// themselves take less than a nanosecond.
constexpr std::int64_t kRoundTrip = 100 + 100 + 50 + 200 + 50 + 100 + 100 + 50 + 200 + 50 + 100 + 200;

TEST(Nic, TakesForEachOperationTheSumOfItsParts) {
  EXPECT_EQ(World().one(rc::SendOp::kWrite, World().key, 0x1000).nanoseconds(), kRoundTrip);
  World w;
  EXPECT_EQ(w.one(rc::SendOp::kWrite, w.key, 0x1000).nanoseconds(), kRoundTrip);
  EXPECT_EQ(w.one(rc::SendOp::kRead, w.key, 0x1000).nanoseconds(), kRoundTrip + 400);
  EXPECT_EQ(w.one(rc::SendOp::kRead, w.device_key, 0x9000).nanoseconds(), kRoundTrip + 40);
  EXPECT_EQ(w.one(rc::SendOp::kFetchAndAdd, w.key, 0x1000).nanoseconds(), kRoundTrip + 500);
  EXPECT_EQ(w.one(rc::SendOp::kFetchAndAdd, w.device_key, 0x9000).nanoseconds(), kRoundTrip + 50);
}

TEST(Nic, ForgetsNoOpenRequestForWhatAnotherWayPosted) {
  const auto reads_end = [](bool beside) {
    Hardware hardware = simple();
    hardware.nic.work_requests_kept = 4;
    hardware.nic.work_requests_lost = 8;
    hardware.nic.read_latency = Duration::microseconds(50);
    World w(hardware);
    rc::QueuePair& pair = w.pair();
    for (int i = 0; i < 8; ++i) w.post(pair, rc::SendOp::kRead, w.key, 0x1000);
    if (beside) {
      rc::QueuePair& other = w.pair();
      const rc::Sge sge = rc::Sge::of(w.local);
      for (int i = 0; i < 8; ++i)
        EXPECT_EQ(w.client.nic.adapter().post_send(
                      w.rack.loop.now(), other,
                      {.op = rc::SendOp::kWrite, .sges = {&sge, 1}, .remote_address = 0x1000, .remote_key = w.key}),
                  rc::PostError::kNone);
      w.client.nic.touched(w.rack.loop.now(), w.client.nic.doorbell_latency());
      w.times(8);
    }
    return w.times(8);
  };
  EXPECT_EQ(reads_end(false), reads_end(true));
}

TEST(Nic, ReallyDoesWhatItIsAsked) {
  World w;
  for (int i = 0; i < 3; ++i) w.one(rc::SendOp::kFetchAndAdd, w.key, 0x1008);
  EXPECT_EQ(w.memory[8], 3);
}

TEST(Nic, FetchesPayloadThatIsNotInline) {
  World w;
  w.local.resize(65);
  EXPECT_EQ(w.one(rc::SendOp::kWrite, w.key, 0x1000).nanoseconds(), kRoundTrip + 500);
}

TEST(Nic, ExecutesOneQueuePairsRequestsOneAfterTheOther) {
  World w;
  rc::QueuePair& pair = w.pair();
  for (int i = 0; i < 3; ++i) w.post(pair, rc::SendOp::kWrite, w.key, 0x1000);
  const auto times = w.times(3);
  EXPECT_EQ((times[1] - times[0]).nanoseconds(), 50);
  EXPECT_EQ((times[2] - times[1]).nanoseconds(), 50);
}

TEST(Nic, ExecutesDifferentQueuePairsRequestsAtOnce) {
  World w;
  for (int i = 0; i < 3; ++i) w.post(w.pair(), rc::SendOp::kWrite, w.key, 0x1000);
  const auto times = w.times(3);
  EXPECT_LE((times[2] - times[0]).nanoseconds(), 2);
}

TEST(Nic, SerializesAtomicsOnOneAddressButNotOnTwo) {
  World same;
  for (int i = 0; i < 3; ++i) same.post(same.pair(), rc::SendOp::kFetchAndAdd, same.key, 0x1000);
  const auto one = same.times(3);
  EXPECT_EQ((one[2] - one[0]).nanoseconds(), 600);
  World different;
  for (unsigned i = 0; i < 3; ++i) {
    different.post(different.pair(), rc::SendOp::kFetchAndAdd, different.key, 0x1000 + 64u * i);
  }
  const auto three = different.times(3);
  EXPECT_EQ((three[2] - three[0]).nanoseconds(), 40);  // the unit itself
}

TEST(Nic, SerializesAtomicsOfOneQueuePair) {
  World w;
  rc::QueuePair& pair = w.pair();
  for (unsigned i = 0; i < 3; ++i) w.post(pair, rc::SendOp::kFetchAndAdd, w.key, 0x1000 + 64u * i);
  const auto times = w.times(3);
  EXPECT_EQ((times[2] - times[0]).nanoseconds(), 700);
}

TEST(Nic, LetsAReadWaitForAnAtomicOnItsAddress) {
  World w;
  rc::QueuePair& atomic = w.pair();
  rc::QueuePair& read = w.pair();
  w.post(atomic, rc::SendOp::kFetchAndAdd, w.key, 0x1000);
  w.post(read, rc::SendOp::kRead, w.key, 0x1000);
  w.times(2);
  EXPECT_EQ(w.local[0], 1);  // the READ's answer came later, and has seen the addition
  EXPECT_EQ(w.rack.loop.now().since_start().nanoseconds(), kRoundTrip + 300 + 400);
}

TEST(Nic, LetsAReadWaitForAllAtomicsThatCameToItsAddressBefore) {
  World w;
  for (int i = 0; i < 3; ++i) w.post(w.pair(), rc::SendOp::kFetchAndAdd, w.key, 0x1000);
  w.post(w.pair(), rc::SendOp::kRead, w.key, 0x1000);
  w.times(4);
  EXPECT_EQ(w.local[0], 3);
  EXPECT_EQ(w.rack.loop.now().since_start().nanoseconds(), kRoundTrip + 3 * 300 + 400);
}

// Those that find `open` work requests open, the answered one among them.
std::int64_t first_of(std::size_t open, std::size_t before = 0) {
  Hardware hardware = simple();
  hardware.nic.work_requests_kept = 4;
  hardware.nic.work_requests_lost = 8;
  World w(hardware);
  rc::QueuePair& pair = w.pair();
  for (std::size_t i = 0; i < before; ++i) {
    w.post(pair, rc::SendOp::kRead, w.key, 0x1000);
    w.times(1);
  }
  const Time begun = w.rack.loop.now();
  for (std::size_t i = 0; i < open; ++i) w.post(pair, rc::SendOp::kRead, w.key, 0x1000);
  return (w.times(open).front() - begun).nanoseconds();
}

TEST(Nic, FetchesAWorkRequestAgainTheLikelierTheMoreAreOpen) {
  constexpr std::int64_t kRead = kRoundTrip + 400;
  EXPECT_EQ(first_of(4), kRead);
  EXPECT_EQ(first_of(5), kRead + 500 / 4);
  EXPECT_EQ(first_of(6), kRead + 500 / 2);
  EXPECT_EQ(first_of(8), kRead + 500);
  EXPECT_EQ(first_of(16), kRead + 500);
  EXPECT_EQ(first_of(6, 20), kRead + 500 / 2);  // those that are done are open no more
}

// The first answers wait for their work requests, the last ones need not: they may not overtake them.
TEST(Nic, KeepsAnswersOfAQueuePairInOrderThoughSomeHaveToWaitForTheirWorkRequests) {
  Hardware hardware = simple();
  hardware.nic.work_requests_kept = 15;
  hardware.nic.work_requests_lost = 16;
  hardware.nic.responder_qp_interval = ns(100);  // the last ones come when the first is done
  World w(hardware);
  rc::QueuePair& pair = w.pair();
  for (int i = 0; i < 16; ++i) w.post(pair, rc::SendOp::kRead, w.key, 0x1000);
  const auto times = w.times(16);
  ASSERT_EQ(times.size(), 16u);
  EXPECT_EQ(w.server.nic.counters().reads, 16u);  // none was sent again
}

TEST(Nic, AnswersInOrderThoughAReadTakesLongerThanTheWriteBehindIt) {
  World w;
  rc::QueuePair& pair = w.pair();
  w.post(pair, rc::SendOp::kRead, w.key, 0x1000);
  w.post(pair, rc::SendOp::kWrite, w.key, 0x1000);
  const auto times = w.times(2);
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times[0].since_start().nanoseconds(), kRoundTrip + 400);
  EXPECT_LE((times[1] - times[0]).nanoseconds(), 2);
  EXPECT_EQ(w.server.nic.counters().requests, 2u);  // none was sent again
}

TEST(Nic, TakesAPayloadAlongUpToItsInlineBytes) {
  World w;
  w.local.resize(64);
  EXPECT_EQ(w.one(rc::SendOp::kWrite, w.key, 0x1000).nanoseconds(), kRoundTrip);
}

TEST(Nic, SendsOnePacketAfterTheOther) {
  Hardware hardware = simple();
  hardware.nic.packet_interval = ns(30);
  World w(hardware);
  for (int i = 0; i < 3; ++i) w.post(w.pair(), rc::SendOp::kWrite, w.key, 0x1000);
  for (const auto& [when, sent] : {std::pair{199, 0u}, {200, 1u}, {229, 1u}, {230, 2u}, {259, 2u}, {260, 3u}}) {
    w.rack.loop.run_until(Time::at(ns(when)));
    EXPECT_EQ(w.client.nic.counters().wire_packets, sent) << when;
  }
}

// Two machines' packets come at one instant, to be executed 600 ns after they were posted.
TEST(Nic, TakesOnePacketInAfterTheOther) {
  Hardware hardware = simple();
  hardware.nic.packet_interval = ns(30);
  World w(hardware);
  w.local[0] = 1;
  Rack::Machine& other = w.rack.add_machine();
  rc::CompletionQueue* const others = other.make_completions(16);
  rc::QueuePair& second = *w.rack.connect({&other, others, nullptr, 16}, {&w.server, w.server_completions}).a;
  w.post(w.pair(), rc::SendOp::kWrite, w.key, 0x1000);
  const rc::Sge sge = rc::Sge::of(w.local);
  const rc::SendRequest request{
      .op = rc::SendOp::kWrite, .sges = {&sge, 1}, .remote_address = 0x1008, .remote_key = w.key};
  EXPECT_EQ(other.nic.post(w.rack.loop.now(), other.nic.doorbell_latency(), second, request), rc::PostError::kNone);
  for (const auto& [when, executed] : {std::pair{599, 0}, {601, 1}, {629, 1}, {631, 2}}) {
    w.rack.loop.run_until(Time::at(ns(when)));
    EXPECT_EQ(w.memory[0] + w.memory[8], executed) << when;
  }
}

// What DCQCN holds back is sent by a timer, when what was sent before may yet be waiting for its payload.
TEST(Nic, KeepsRequestsOfAQueuePairInOrderThatDcqcnHasHeldBack) {
  Hardware hardware = simple();
  hardware.link.bits_per_second = 100'000'000'000;
  hardware.net_switch.ecn_from_bytes = hardware.net_switch.ecn_to_bytes = 1;
  World w(hardware);
  rc::QueuePair& pair = w.pair();
  const std::vector<std::uint8_t> bytes(1'000);
  std::uint64_t posted = 0;
  for (int round = 0; round < 20; ++round) {
    for (const std::size_t length : {1'000u, 8u, 8u, 1'000u, 8u, 8u}) {
      const rc::Sge sge = rc::Sge::of(ByteView(bytes).first(length));
      EXPECT_EQ(w.client.nic.post(
                    w.rack.loop.now(), w.client.nic.doorbell_latency(), pair,
                    {.op = rc::SendOp::kWrite, .sges = {&sge, 1}, .remote_address = 0x1000, .remote_key = w.key}),
                rc::PostError::kNone);
      ++posted;
    }
    EXPECT_EQ(w.times(6).size(), 6u);
  }
  EXPECT_GT(w.rack.net_switch().out(0).marked, 0u);
  EXPECT_EQ(w.server.nic.counters().requests, posted);  // none came out of order and was sent again
}

TEST(Nic, HasItsPacketsMarkedWhereTheSwitchsQueueIsLong) {
  Hardware hardware = simple();
  hardware.link.bits_per_second = 1'000'000'000'000;
  hardware.net_switch.ecn_from_bytes = hardware.net_switch.ecn_to_bytes = 1;
  World w(hardware);
  rc::QueuePair& pair = w.pair();
  for (int i = 0; i < 3; ++i) w.post(pair, rc::SendOp::kWrite, w.key, 0x1000);
  w.times(3);
  EXPECT_EQ(w.rack.net_switch().out(0).marked, 2u);
}

TEST(Nic, ReadsOfHostMemoryFollowEachOtherAndThoseOfItsOwnMemoryNeedNot) {
  Hardware hardware = simple();
  hardware.nic.read_interval = ns(300);
  World w(hardware);
  for (int i = 0; i < 3; ++i) w.post(w.pair(), rc::SendOp::kRead, w.key, 0x1000);
  const auto host = w.times(3);
  EXPECT_EQ((host[2] - host[0]).nanoseconds(), 600);
  for (int i = 0; i < 3; ++i) w.post(w.pair(), rc::SendOp::kRead, w.device_key, 0x9000);
  const auto device = w.times(3);
  EXPECT_LE((device[2] - device[0]).nanoseconds(), 2);
}

TEST(Nic, SendsAndExecutesAQueuePairsRequestsAtItsRateAlsoInItsOwnMemory) {
  World w;
  rc::QueuePair& pair = w.pair();
  for (int i = 0; i < 3; ++i) w.post(pair, rc::SendOp::kWrite, w.device_key, 0x9000);
  const auto executed = w.times(3);
  EXPECT_EQ((executed[2] - executed[0]).nanoseconds(), 40);
  Hardware hardware = simple();
  hardware.nic.responder_qp_interval = ns(1);
  World fast(hardware);
  rc::QueuePair& one = fast.pair();
  for (int i = 0; i < 3; ++i) fast.post(one, rc::SendOp::kWrite, fast.key, 0x1000);
  const auto sent = fast.times(3);
  EXPECT_EQ((sent[2] - sent[0]).nanoseconds(), 20);
}

TEST(Nic, SerializesAtomicsOnOneAddressOfItsOwnMemory) {
  World w;
  for (int i = 0; i < 3; ++i) w.post(w.pair(), rc::SendOp::kFetchAndAdd, w.device_key, 0x9000);
  const auto times = w.times(3);
  EXPECT_EQ((times[2] - times[0]).nanoseconds(), 200);
}

TEST(Nic, HostMemoryAnswersABitUnevenlyAndItsOwnDoesNot) {
  Hardware hardware = simple();
  hardware.nic.memory_jitter = ns(100);
  World w(hardware);
  Duration least = Duration::max();
  Duration most{};
  for (int i = 0; i < 100; ++i) {
    const Duration took = w.one(rc::SendOp::kRead, w.key, 0x1000);
    least = std::min(least, took);
    most = std::max(most, took);
    EXPECT_EQ(w.one(rc::SendOp::kRead, w.device_key, 0x9000).nanoseconds(), kRoundTrip + 40);
    EXPECT_EQ(w.one(rc::SendOp::kWrite, w.key, 0x1000).nanoseconds(), kRoundTrip);  // its ACK does not wait
  }
  EXPECT_LT(least.nanoseconds(), kRoundTrip + 400 + 10);
  EXPECT_GE(least.nanoseconds(), kRoundTrip + 400);
  EXPECT_GT(most.nanoseconds(), kRoundTrip + 400 + 90);
  EXPECT_LE(most.nanoseconds(), kRoundTrip + 400 + 100);
}

// One each 20 us, by up to a step or, half as often each time, a whole step more.
TEST(Nic, StallsSoOftenAndForSoLong) {
  Hardware hardware = simple();
  hardware.nic.stall_interval = Duration::microseconds(20);
  hardware.nic.stall_step = ns(1'000);
  World w(hardware);
  rc::QueuePair& pair = w.pair();
  std::array<int, 4> late{};  // by so many whole steps
  const Time begun = w.rack.loop.now();
  for (int i = 0; i < 5'000; ++i) {
    const Time posted = w.rack.loop.now();
    w.post(pair, rc::SendOp::kRead, w.key, 0x1000);
    ASSERT_TRUE(w.rack.loop.run_until(Time::never(), [&] { return w.completions->size() != 0; }));
    std::array<rc::Completion, 1> found;
    w.completions->poll(found);
    const Duration more = w.rack.loop.now() - posted - ns(kRoundTrip + 400);
    if (more > ns(1)) ++late.at(static_cast<std::size_t>(std::min<std::int64_t>(more / ns(1'000), 3)));
  }
  const auto stalls = static_cast<double>(w.server.nic.counters().stalls);
  const auto expected = static_cast<double>((w.rack.loop.now() - begun) / Duration::microseconds(20));
  EXPECT_NEAR(stalls, expected, expected / 5);
  EXPECT_NEAR(late[0], stalls / 2, stalls / 6);
  EXPECT_NEAR(late[1], stalls / 4, stalls / 8);
  EXPECT_NEAR(late[2] + late[3], stalls / 4, stalls / 8);
  EXPECT_GT(late[3], 0);
}

TEST(Nic, OfAMachineThatHasDiedNothingLeaves) {
  World w;
  w.post(w.pair(), rc::SendOp::kWrite, w.key, 0x1000);
  w.client.nic.cut();
  w.rack.loop.run_until(Time::at(Duration::microseconds(10)));
  EXPECT_EQ(w.server.nic.counters().wire_packets, 0u);
  World dead;
  dead.server.nic.cut();
  dead.post(dead.pair(), rc::SendOp::kWrite, dead.key, 0x1000);
  dead.rack.loop.run_until(Time::at(Duration::microseconds(10)));
  EXPECT_EQ(dead.server.nic.counters().requests, 0u);
  EXPECT_EQ(dead.rack.net_switch().out(1).packets, 0u);
}

// The time-out of the first request is over when the second has not been answered for a short while.
TEST(Nic, NoticesALossAfterATimerThatNoRequestNeededAnyMore) {
  World w(simple(), {.ack_timeout = 4});  // 66 us
  rc::QueuePair& pair = w.pair();
  w.post(pair, rc::SendOp::kWrite, w.key, 0x1000);
  w.times(1);
  w.rack.loop.run_until(Time::at(Duration::microseconds(60)));
  w.server.nic.cut();
  w.post(pair, rc::SendOp::kWrite, w.key, 0x1000);
  w.rack.loop.run_until(Time::at(Duration::milliseconds(100)));
  std::array<rc::Completion, 2> found;
  ASSERT_EQ(w.completions->poll(found), 1u);
  EXPECT_EQ(found[0].status, rc::CompletionStatus::kRetryExceeded);
}

// Where addresses share an entry of the table, the later one waits rather than let the earlier be forgotten.
TEST(Nic, ForgetsNoAtomicForOneElsewhere) {
  const auto entry = [](std::uint64_t address) { return (address >> 3) * 0x9E37'79B9'7F4A'7C15u >> 51; };
  World w;
  std::vector<std::uint8_t> much(1 << 20);
  const memory::Key key = w.server.share(much, 0x100000);
  std::uint64_t other = 0x100008;
  while (entry(other) != entry(0x100000)) other += 8;
  ASSERT_LT(other, 0x100000 + much.size());
  for (const std::uint64_t address : {std::uint64_t{0x100000}, other})
    w.post(w.pair(), rc::SendOp::kFetchAndAdd, key, address);
  const auto times = w.times(2);
  EXPECT_EQ((times[1] - times[0]).nanoseconds(), 300);
}

}  // namespace
}  // namespace sluice::sim
