// The host's side of an application's socket, with a service that the test plays.
#include "rack/cowbird/cowbird_host.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ports/unix_socket.h"

namespace sluice::rack {
namespace {

// Serves by doing nothing, and ends when the test says so.
class Service final : public CowbirdService {
 public:
  Result<std::unique_ptr<CowbirdServing>> serve(MutableBytes, const cowbird::InstanceLayout&) override {
    if (out_of_memory) throw std::bad_alloc();
    ++served;
    return std::make_unique<Serving>(*this);
  }
  bool out_of_memory = false;
  int served = 0;
  int stopped = 0;
  bool ended = false;
  std::size_t broken = 0;

 private:
  class Serving final : public CowbirdServing {
   public:
    explicit Serving(Service& service) : service_(service) {}
    void stop() override { ++service_.stopped; }
    bool ended() const override { return service_.ended; }
    std::size_t broken() const override { return service_.broken; }
    cowbird::EngineCounters engines() const override { return {.reads = 3, .denied = 1}; }

   private:
    Service& service_;
  };
};

class CowbirdHostTest : public testing::Test {
 protected:
  CowbirdHostTest() {
    layout.write(block.bytes().data());
    host = CowbirdHost::open(path, loop, service, 4).value();
    loop.add(*host);
  }
  ~CowbirdHostTest() override { loop.remove(*host); }

  ports::Descriptor connect() { return ports::connect_unix(path, ports::UnixKind::kMessages).value(); }
  // What the host answers to it.
  std::string hand_over(const ports::Descriptor& socket) { return hand_over(socket, block); }
  std::string hand_over(const ports::Descriptor& socket, const ports::SharedBlock& rings) {
    EXPECT_TRUE(ports::send_message(socket.get(), cowbird::instance_message(rings.bytes().size()), rings.descriptor()));
    ports::Message answer;
    loop.run_until([&] { return ports::receive_message(socket.get(), answer) == ports::Arrival::kMessage; });
    return answer.text;
  }
  bool hung_up(const ports::Descriptor& socket) {
    ports::Message message;
    return ports::receive_message(socket.get(), message) == ports::Arrival::kGone;
  }

  const std::string path = fmt::format("{}/host{}.sock", testing::TempDir(), getpid());
  cowbird::InstanceLayout layout{.shape = {.entries = 16, .request_bytes = 1024, .response_bytes = 1024}};
  ports::SharedBlock block = ports::SharedBlock::create(layout.bytes()).value();
  nic::PollLoop loop;
  Service service;
  std::unique_ptr<CowbirdHost> host;
};

TEST(CowbirdExports, AreWhatReadyMemoryNodesHaveForWhoAsks) {
  const auto memory = [](std::uint32_t id, NodeState state, std::vector<RegionRecord> regions) {
    NodeRecord node;
    node.description.kind = NodeKind::kMemory;
    node.description.regions = std::move(regions);
    node.id = remote::NodeId(id);
    node.state = state;
    return node;
  };
  Snapshot snapshot;
  snapshot.nodes = {
      memory(1, NodeState::kReady, {{"main", 4096, 64, 7}, {"heap", 8192, 64, 8, "red"}, {"log", 0, 64, 9, "blue"}}),
      memory(2, NodeState::kGone, {{"main", 0, 64, 5}})};
  const cowbird::Region main{.node = 1, .key = 7, .base = 4096, .length = 64};
  const cowbird::Region heap{.node = 1, .key = 8, .base = 8192, .length = 64};
  EXPECT_THAT(exports_of(snapshot, ""), testing::ElementsAre(main));
  EXPECT_THAT(exports_of(snapshot, "red"), testing::ElementsAre(main, heap));
}

TEST_F(CowbirdHostTest, AHostThatStopsTakesNobodyAndHangsUpWhenItIsDone) {
  const auto socket = connect();
  ASSERT_EQ(hand_over(socket), "ok");
  host->stop();
  EXPECT_EQ(service.stopped, 1);
  EXPECT_FALSE(ports::connect_unix(path, ports::UnixKind::kMessages)) << "or it would take back whom it lets go";
  loop.turn();
  EXPECT_FALSE(hung_up(socket)) << "its engines still write";
  service.ended = true;
  loop.turn();
  EXPECT_TRUE(hung_up(socket));
  EXPECT_EQ(host->instances(), 0u);
}

TEST_F(CowbirdHostTest, AnApplicationThatComesAgainWaitsForItsLastServing) {
  ASSERT_EQ(hand_over(connect()), "ok");  // and hangs up
  loop.run_until([&] { return service.stopped == 1; });
  EXPECT_THAT(hand_over(connect()), testing::HasSubstr("still being ended; try again"));
  service.ended = true;
  loop.run_until([&] { return host->instances() == 0; });
  const auto socket = connect();
  EXPECT_EQ(hand_over(socket), "ok");
  EXPECT_EQ(service.served, 2);
  EXPECT_EQ(host->engines().reads, 6u) << "those of the last serving count";
  EXPECT_EQ(host->engines().denied, 2u);
}

TEST_F(CowbirdHostTest, ChannelsThatMakeNoSenseAreCountedWhileTheirApplicationWaitsForThem) {
  {
    const auto socket = connect();
    ASSERT_EQ(hand_over(socket), "ok");
    EXPECT_EQ(host->counters().broken, 0u);
    service.broken = 2;
    EXPECT_EQ(host->counters().broken, 2u);
  }
  service.ended = true;
  loop.run_until([&] { return host->instances() == 0; });
  EXPECT_EQ(host->counters().broken, 2u) << "and once";
}

TEST_F(CowbirdHostTest, TurnsAwayWhoComesWhenDescriptorsHaveRunOut) {
  const auto socket = connect();  // waits at the listener
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const ports::Descriptor lowest(dup(socket.get()));
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(lowest.get()) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  ports::Message answer;
  for (int i = 0; i < 1000 && host->counters().refused == 0; ++i) loop.turn();
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(host->counters().refused, 1u) << "left to wait, it would keep the loop awake for ever";
  EXPECT_EQ(ports::receive_message(socket.get(), answer), ports::Arrival::kMessage);
  EXPECT_THAT(answer.text, testing::HasSubstr("ulimit -n"));
  EXPECT_EQ(hand_over(connect()), "ok");
}

TEST_F(CowbirdHostTest, TheLogSaysOnceWhyApplicationsAreNotServed) {
  testing::internal::CaptureStdout();
  service.out_of_memory = true;
  const std::string why = hand_over(connect());
  EXPECT_EQ(hand_over(connect()), why);
  service.out_of_memory = false;
  std::vector<ports::Descriptor> served;
  std::vector<ports::SharedBlock> blocks;
  for (int i = 0; i < 6; ++i) {
    layout.write(blocks.emplace_back(ports::SharedBlock::create(layout.bytes()).value()).bytes().data());
    hand_over(served.emplace_back(connect()), blocks.back());
  }
  EXPECT_EQ(host->counters().refused, 4u);
  const std::string log = testing::internal::GetCapturedStdout();
  const auto times = [&](const std::string& text) {
    int found = 0;
    for (auto at = log.find(text); at != log.npos; at = log.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(times("no memory left for rings of"), 1) << log;
  EXPECT_EQ(times("serves 4 applications already"), 1) << log;
}

TEST_F(CowbirdHostTest, WhoHandsOverNothingTakesNobodysPlaceAndIsLetGo) {
  std::vector<ports::Descriptor> idle;
  for (std::size_t i = 0; i < 10; ++i) idle.push_back(connect());
  loop.run_until([&] { return host->instances() == idle.size(); });
  const auto socket = connect();
  EXPECT_EQ(hand_over(socket), "ok") << "though four are served at most";
  EXPECT_EQ(host->served(), 1u);
  const Time now = loop.now();
  host->poll(now + CowbirdHost::kPatience - Duration::seconds(2));
  EXPECT_EQ(host->instances(), 11u);
  EXPECT_LE(host->next_deadline(), now + CowbirdHost::kPatience);
  host->poll(now + CowbirdHost::kPatience);
  EXPECT_EQ(host->instances(), 1u);
  EXPECT_EQ(host->next_deadline(), Time::never());
  ports::Message said;
  ASSERT_EQ(ports::receive_message(idle[0].get(), said), ports::Arrival::kMessage);
  EXPECT_THAT(said.text, testing::HasSubstr("no instance was handed over in time"));
  EXPECT_TRUE(hung_up(idle[0]));
  EXPECT_FALSE(hung_up(socket));
}

TEST_F(CowbirdHostTest, OfManyWhoHandOverNothingTheOldestIsLetGo) {
  std::vector<ports::Descriptor> idle;
  for (std::size_t i = 0; i <= CowbirdHost::kMostWaiting; ++i) {
    idle.push_back(connect());
    loop.run_until([&] { return host->instances() + host->counters().refused > i; });
  }
  loop.turn();
  EXPECT_EQ(host->instances(), CowbirdHost::kMostWaiting);
  ports::Message said;
  EXPECT_EQ(ports::receive_message(idle[0].get(), said), ports::Arrival::kMessage);
  EXPECT_EQ(ports::receive_message(idle[1].get(), said), ports::Arrival::kNothing);
  EXPECT_EQ(hand_over(idle.back()), "ok");
}

TEST_F(CowbirdHostTest, RingsForWhichThereIsNoMemoryCostNobodyElseAnything) {
  const ports::Descriptor first = connect();
  EXPECT_EQ(hand_over(first), "ok");
  const ports::SharedBlock others = ports::SharedBlock::create(layout.bytes()).value();
  layout.write(others.bytes().data());
  service.out_of_memory = true;
  EXPECT_THAT(hand_over(connect(), others), testing::HasSubstr("no memory left for rings of"));
  service.out_of_memory = false;
  EXPECT_FALSE(hung_up(first));
}

}  // namespace
}  // namespace sluice::rack
