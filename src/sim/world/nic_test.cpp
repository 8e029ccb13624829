#include "sim/world/nic.h"

#include <gtest/gtest.h>

#include <array>
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
  explicit World(const Hardware& hardware = simple())
      : rack(hardware, 1), server(rack.add_machine()), client(rack.add_machine()) {
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

}  // namespace
}  // namespace sluice::sim
