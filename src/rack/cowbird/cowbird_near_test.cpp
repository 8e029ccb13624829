#include "rack/cowbird/cowbird_near.h"

#include <gmock/gmock.h>

#include "cowbird/channel.h"
#include "rack/cowbird/cowbird_away.h"
#include "rack/switch/rack_world.h"

namespace sluice::rack {
namespace {

using cowbird::Status;
using remote::NodeId;

// One application with one thread: its block, and how it is served.
struct Application {
  explicit Application(const std::vector<cowbird::Region>& its_regions) : regions(its_regions) {
    layout.write(memory.bytes().data());
    for (std::size_t i = 0; i < regions.size(); ++i) {
      regions[i].write(memory.bytes().data() + cowbird::InstanceLayout::kRegions + i * cowbird::kRegionBytes);
    }
    channel.set_regions_generation(regions.size());
  }
  MutableBytes block() { return memory.bytes(); }

  cowbird::InstanceLayout layout{.shape = {.entries = 16, .request_bytes = 1024, .response_bytes = 1024}};
  Mapping memory = Mapping::make(layout.bytes()).value();
  std::vector<cowbird::Region> regions;
  cowbird::Channel channel{memory.bytes().subspan(layout.channel_at(0)), layout.channel(), regions};
  std::unique_ptr<CowbirdServing> serving;
};

// The client's machine has applications; memory1 has the engine, memory2 has none.
class CowbirdNearWorld : public RackWorld {
 public:
  CowbirdNearWorld() {
    start_memory(1);
    start_memory(2);
    start_host();
    start_engine();
  }
  ~CowbirdNearWorld() override {
    end_engine();
    applications_.clear();
    away_.reset();
    host_.reset();
  }

  void start_host() {
    ++host_incarnation_;
    host_ = std::make_unique<Station>(loop_, listener_->call(), 50);
    away_ = std::make_unique<CowbirdAway>(loop_, *host_->connector, "memory1",
                                          [this](const std::string& offers) -> Result<void> {
                                            if (offers.size() > most_offered_) return fail("too many");
                                            offers_ = offers;
                                            tell();
                                            return {};
                                          });
    ASSERT_TRUE(away_->listen(7471));
  }
  void start_engine() {
    CowbirdNear::Config config;
    config.engine.patience = Duration::milliseconds(200);
    config.most_bytes = most_bytes_;
    Memory& at = memories_[1];
    near_ = std::make_unique<CowbirdNear>(*at.station->connector, *at.node, NodeId(1), "memory1", config);
    loop_.add(*near_);
    tell();
  }
  void end_engine() {
    if (!near_) return;
    loop_.remove(*near_);
    near_.reset();
  }
  // What the directory says reaches everybody.
  void tell() {
    Snapshot s = snapshot();
    s.has_tenants = has_tenants_;
    s.regions = tenant_regions_;
    for (NodeRecord& node : s.nodes) {
      if (node.id == NodeId(1)) node.description.attributes[kCowbirdAttribute] = "true";
    }
    NodeRecord host;
    host.description = {
        "cowbird", NodeKind::kClient, 7471, {}, {{kCowbirdAtAttribute, "memory1"}, {kCowbirdOffersAttribute, offers_}}};
    if (!tenant_.empty()) host.description.attributes[kTenantAttribute] = tenant_;
    host.state = host_state_;
    host.id = NodeId(50);
    host.ip = Subnet{}.ip_of(host.id);
    host.incarnation = host_incarnation_;
    s.nodes.push_back(host);
    for (auto& [number, memory] : memories_) {
      memory.node->follow(loop_.now(), s, "memory" + std::to_string(number));
    }
    if (away_) away_->set_nodes(loop_.now(), s);
    if (near_) near_->set_nodes(loop_.now(), s);
  }

  cowbird::Region region(const RegionRecord& record, std::uint32_t node) {
    return {.node = node, .key = record.key, .base = record.address, .length = record.length};
  }
  cowbird::Region region(std::uint32_t node) { return region(memories_[node].node->region(), node); }
  cowbird::Region region_of(const std::string& tenant) {
    return region(memories_[1].node->regions_of(tenant).front(), 1);
  }
  Application& start_application(const std::vector<cowbird::Region>& regions) {
    auto& application = *applications_.emplace_back(std::make_unique<Application>(regions));
    application.serving = away_->serve(application.block(), application.layout).value();
    return application;
  }
  Status finish(Application& application) {
    cowbird::Completion done{.id = {}, .status = Status::kEngineAbsent};
    EXPECT_TRUE(run_until([&] { return application.channel.collect({&done, 1}) == 1; }));
    return done.status;
  }
  Status write(Application& application, std::uint16_t region, std::uint64_t at, std::uint64_t value) {
    EXPECT_GT(application.channel.async_write(region, &value, at, sizeof value), 0);
    return finish(application);
  }
  // The value, or nothing and the status.
  std::pair<Status, std::uint64_t> read(Application& application, std::uint16_t region, std::uint64_t at) {
    std::uint64_t value = 0;
    EXPECT_GT(application.channel.async_read(region, at, &value, sizeof value), 0);
    const Status status = finish(application);
    return {status, value};
  }
  static constexpr std::pair<Status, std::uint64_t> good(std::uint64_t value) { return {Status::kOk, value}; }

  std::unique_ptr<Station> host_;
  std::unique_ptr<CowbirdAway> away_;
  std::unique_ptr<CowbirdNear> near_;
  std::vector<std::unique_ptr<Application>> applications_;
  std::string offers_;
  std::size_t most_offered_ = 1 << 20;  // bytes
  std::string tenant_;
  bool has_tenants_ = false;
  std::vector<TenantRegion> tenant_regions_;
  std::uint64_t host_incarnation_ = 0;
  NodeState host_state_ = NodeState::kReady;
  std::uint64_t most_bytes_ = 1 << 20;
};

TEST_F(CowbirdNearWorld, MovesDataOfItsOwnAndOfAnotherNode) {
  Application& application = start_application({region(1), region(2)});
  EXPECT_EQ(write(application, 0, 64, 7), Status::kOk);
  EXPECT_EQ(write(application, 1, 64, 8), Status::kOk);
  EXPECT_EQ(read(application, 0, 64), good(7));
  EXPECT_EQ(read(application, 1, 64), good(8));
  EXPECT_EQ(memories_[1].node->bytes()[64], 7);
  EXPECT_EQ(memories_[2].node->bytes()[64], 8);
  EXPECT_EQ(memories_[1].node->acceptor().connections(), 0u) << "its own memory is reached without any";
  EXPECT_EQ(near_->serving(), 1u);
}

TEST_F(CowbirdNearWorld, AnotherEngineGoesOnFromWhatWasPublished) {
  Application& application = start_application({region(1), region(2)});
  for (std::uint64_t i = 1; i <= 5; ++i) {
    EXPECT_EQ(write(application, 1, 8 * i, i), Status::kOk);
    end_engine();  // as if killed: nobody is told
    std::uint64_t value = i + 100;
    EXPECT_GT(application.channel.async_write(1, &value, 8 * i, sizeof value), 0);
    start_engine();
    EXPECT_EQ(finish(application), Status::kOk);
    EXPECT_EQ(read(application, 1, 8 * i), good(i + 100));
    EXPECT_EQ(away_->acceptor().connections(), 1u) << "the last engine's is over";
  }
}

TEST_F(CowbirdNearWorld, CountsWhatItsEnginesHaveMovedAlsoOnceTheyAreGone) {
  Application& application = start_application({region(1), region(2)});
  EXPECT_EQ(write(application, 0, 0, 1), Status::kOk);
  EXPECT_EQ(read(application, 1, 0), good(0));
  EXPECT_EQ(near_->engines().writes, 1u);
  EXPECT_EQ(near_->engines().reads, 1u);
  application.serving->stop();
  EXPECT_TRUE(run_until([&] { return near_->blocks() == 0; }));
  EXPECT_EQ(near_->engines().writes, 1u);
  EXPECT_EQ(near_->engines().reads, 1u);
}

TEST_F(CowbirdNearWorld, AnotherHostProcessOffersTheSameMemoryAnew) {
  Application& application = start_application({region(1)});
  EXPECT_EQ(write(application, 0, 0, 1), Status::kOk);
  application.serving.reset();
  away_.reset();
  host_.reset();
  start_host();
  std::uint64_t value = 2;
  EXPECT_GT(application.channel.async_write(0, &value, 0, sizeof value), 0);
  application.serving = away_->serve(application.block(), application.layout).value();
  EXPECT_EQ(finish(application), Status::kOk);
  EXPECT_EQ(read(application, 0, 0), good(2));
  EXPECT_TRUE(run_until([&] { return near_->blocks() == 1; }));
}

TEST_F(CowbirdNearWorld, LetsGoOfApplicationsThatLeaveAndOfTheirHost) {
  Application& first = start_application({region(1)});
  Application& second = start_application({region(1)});
  EXPECT_EQ(write(first, 0, 0, 1), Status::kOk);
  EXPECT_EQ(write(second, 0, 8, 2), Status::kOk);
  EXPECT_EQ(near_->blocks(), 2u);
  first.serving->stop();
  EXPECT_TRUE(first.serving->ended());
  EXPECT_TRUE(run_until([&] { return near_->blocks() == 1; }));
  EXPECT_EQ(write(second, 0, 8, 3), Status::kOk);
  host_->shard->detach(loop_);  // as if killed: no frame comes from there any more
  host_state_ = NodeState::kGone;
  tell();
  EXPECT_TRUE(run_until([&] { return near_->blocks() == 0; }));
}

TEST_F(CowbirdNearWorld, AnApplicationThatCannotBeToldOfIsRefusedAndTheOthersAreServed) {
  Application& first = start_application({region(1)});
  most_offered_ = offers_.size() + 8;  // serials are longer and shorter
  Application more({region(1)});
  const auto refused = away_->serve(more.block(), more.layout);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "too many");
  EXPECT_EQ(write(first, 0, 0, 1), Status::kOk);
  first.serving->stop();
  EXPECT_EQ(offers_, "");
  Application& second = start_application({region(1)});
  EXPECT_EQ(read(second, 0, 0), good(1));
}

TEST_F(CowbirdNearWorld, StopsWithAllThatIsUnderWayPublished) {
  Application& application = start_application({region(1)});
  EXPECT_EQ(write(application, 0, 0, 1), Status::kOk);
  near_->stop();
  EXPECT_TRUE(run_until([&] { return near_->blocks() == 0; }));
}

TEST_F(CowbirdNearWorld, ABlockThatMakesNoSenseBreaksOnlyItself) {
  Application& bad = start_application({region(1)});
  Application& good_one = start_application({region(1)});
  EXPECT_EQ(write(bad, 0, 0, 1), Status::kOk);
  store_le(bad.block().data() + bad.layout.channel_at(0) + cowbird::ChannelLayout::kIssuer, ~std::uint64_t{0});
  EXPECT_TRUE(run_until([&] { return near_->counters().broken == 1; }));
  EXPECT_EQ(write(good_one, 0, 8, 2), Status::kOk);
  EXPECT_EQ(near_->counters().broken, 1u);
  EXPECT_EQ(near_->counters().served, 2u) << "and is not tried again on the same connection";
}

TEST_F(CowbirdNearWorld, AKeyOfAnotherLifeIsDeniedAndOneOfThisIsServed) {
  Application& stale = start_application({region(1), region(2)});
  EXPECT_EQ(write(stale, 0, 0, 1), Status::kOk);
  memories_[1].node->fence(loop_.now());
  near_->fence(loop_.now());
  tell();
  EXPECT_EQ(read(stale, 0, 0).first, Status::kDenied);
  EXPECT_EQ(write(stale, 0, 0, 2), Status::kDenied) << "no engine before this one has seen it";
  EXPECT_EQ(write(stale, 1, 0, 2), Status::kOk);
  Application& anew = start_application({region(1)});
  EXPECT_EQ(read(anew, 0, 0), good(1)) << "what it holds stays";
}

TEST_F(CowbirdNearWorld, ANodeOutOfReachFailsItsRequestsAlone) {
  Application& application = start_application({region(1), region(2)});
  EXPECT_EQ(write(application, 1, 0, 1), Status::kOk);
  kill_memory(2);
  tell();
  EXPECT_NE(write(application, 1, 0, 2), Status::kOk);
  EXPECT_EQ(write(application, 0, 0, 3), Status::kOk);
}

TEST_F(CowbirdNearWorld, ATenantReachesItsOwnRegionsAndNothingElse) {
  has_tenants_ = true;
  tenant_ = "red";
  tenant_regions_ = {{"red", "heap", "memory1", 1 << 16, 1}, {"blue", "heap", "memory1", 1 << 16, 2}};
  tell();
  Application& application = start_application({region_of("red"), region_of("blue"), region(1), region(2)});
  EXPECT_EQ(write(application, 0, 0, 5), Status::kOk);
  EXPECT_EQ(read(application, 0, 0), good(5));
  for (std::uint16_t other = 1; other <= 3; ++other)
    EXPECT_EQ(write(application, other, 0, 6), Status::kDenied) << other;
  EXPECT_EQ(memories_[1].node->bytes()[0], 0);
  EXPECT_EQ(memories_[2].node->bytes()[0], 0);
  // It is taken away; what was the region's is nobody's.
  tenant_regions_.clear();
  tell();
  EXPECT_EQ(write(application, 0, 0, 7), Status::kDenied);
}

TEST_F(CowbirdNearWorld, TheRackItselfReachesNothingOfATenants) {
  has_tenants_ = true;
  tenant_regions_ = {{"red", "heap", "memory1", 1 << 16, 1}};
  tell();
  Application& application = start_application({region_of("red"), region(1)});
  EXPECT_EQ(write(application, 0, 0, 5), Status::kDenied);
  EXPECT_EQ(write(application, 1, 0, 6), Status::kOk);
}

TEST_F(CowbirdNearWorld, RingsThatDoNotFitWaitForOthersToGo) {
  end_engine();
  most_bytes_ = Application({}).layout.bytes();
  start_engine();
  Application& first = start_application({region(1)});
  EXPECT_EQ(write(first, 0, 0, 1), Status::kOk);
  Application& second = start_application({region(1)});
  EXPECT_TRUE(run_until([&] { return near_->blocks() == 2; }));
  EXPECT_EQ(near_->counters().refused, 1u);
  EXPECT_EQ(near_->serving(), 1u);
  first.serving->stop();
  EXPECT_EQ(write(second, 0, 0, 2), Status::kOk);
}

TEST_F(CowbirdNearWorld, OnlyTheNodeThatWasNamedIsLetIn) {
  Application& application = start_application({region(1)});
  EXPECT_EQ(write(application, 0, 0, 1), Status::kOk);
  const auto offers = parse_offers(offers_);
  ASSERT_EQ(offers.size(), 1u);
  auto& adapter = client_->shard->adapter();
  auto* completions = adapter.create_completion_queue(16);
  LinkConfig config;
  config.pair = {.pd = adapter.create_domain(),
                 .send_completions = completions,
                 .receive_completions = completions,
                 .send_depth = 1,
                 .receive_depth = 1};
  config.private_data = greeting_for(offers[0]);
  Link link(*client_->connector, config, {.on_up = [](Time, rc::QueuePair&) {}, .on_down = {}, .on_made = {}});
  link.want(loop_.now(), Link::Peer{wire::Gid::from(Subnet{}.ip_of(NodeId(50))), 7471});
  EXPECT_TRUE(run_until([&] { return link.state() == Link::State::kWaiting; }));
  EXPECT_THAT(link.why(), testing::HasSubstr("refuses"));
  EXPECT_EQ(write(application, 0, 0, 2), Status::kOk);
}

TEST(CowbirdOffers, AreReadAsTheyAreWritten) {
  const CowbirdOffer offer{.serial = ~0ull, .key = 7, .layout = {.shape = {.entries = 16}, .channels = 3}};
  const auto read = parse_offers(offers_text({offer}));
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read.front().serial, offer.serial);
  EXPECT_EQ(read.front().key, offer.key);
  EXPECT_EQ(read.front().layout.shape, offer.layout.shape);
  EXPECT_EQ(read.front().layout.channels, offer.layout.channels);
  const std::string several = "1:2:3:16:1024:2048 18446744073709551615:4294967295:1:64:128:64";
  EXPECT_EQ(offers_text(parse_offers(several)), several);
  EXPECT_EQ(offers_text({}), "");
}

TEST(CowbirdOffers, LeaveOutWhatMakesNoSense) {
  const std::string sound = "1:2:1:16:1024:1024";
  for (const char* bad :
       {"", " ", "1", "1:2:1:16:1024", "1:2:1:16:1024:1024:9", "1:2:1:16:1024:1024x", "1:2:0:16:1024:1024",
        "1:2:1:15:1024:1024", "1:4294967296:1:16:1024:1024", "-1:2:1:16:1024:1024", "a:b"}) {
    EXPECT_TRUE(parse_offers(bad).empty()) << bad;
    EXPECT_EQ(parse_offers(sound + " " + bad + " " + sound).size(), 2u) << bad;
  }
  EXPECT_EQ(greeted_serial({}), 0u);
}

}  // namespace
}  // namespace sluice::rack
