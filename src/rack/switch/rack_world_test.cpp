// Clients, memory nodes and a metadata service on a switch.
#include "rack/switch/rack_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "rack/directory/tenants.h"
#include "rack/endpoint/message_link.h"

namespace sluice::rack {
namespace {

using remote::NodeId;
using remote::Status;
using testing::HasSubstr;

TEST_F(RackWorld, AClientWritesIntoTheMemoryOfTwoNodesThroughTheSwitch) {
  start_memory(1);
  start_memory(2);
  connect_all();
  EXPECT_EQ(write(1, 10, 0xAB), Status::kOk);
  EXPECT_EQ(write(2, 20, 0xCD), Status::kOk);
  EXPECT_EQ(memories_[1].node->bytes()[10], 0xAB);
  EXPECT_EQ(memories_[2].node->bytes()[20], 0xCD);
  EXPECT_EQ(memories_[1].node->bytes()[20], 0);
  const auto status = nlohmann::json::parse(switch_.report(loop_.now()).to_json());
  EXPECT_EQ(status["ports"].size(), 3u);
  EXPECT_GT(status["ports"][0]["rx_frames"].get<int>(), 0);
  EXPECT_EQ(status["ports"][0]["macs"].size(), 1u);
}

TEST_F(RackWorld, AMemoryNodeThatDiesGivesErrorsAndOneThatReturnsIsConnectedAgain) {
  start_memory(1);
  start_memory(2);
  connect_all();
  const remote::RemoteAddress lost = at(1, 0);
  kill_memory(1);
  EXPECT_EQ(write_to(lost, 1), Status::kUnknown) << "nobody can tell whether it was executed";
  EXPECT_EQ(write_to(lost, 1), Status::kUnreachable);
  EXPECT_THAT(nodes_->problems(), HasSubstr("memory1"));
  EXPECT_EQ(write(2, 0, 1), Status::kOk) << "the other is not concerned";

  start_memory(1, 2);
  connect_all();
  EXPECT_EQ(write(1, 0, 7), Status::kOk);
  EXPECT_EQ(nodes_->problems(), "");
}

TEST_F(RackWorld, ALinkThatBrokeIsMadeAgainThoughTheDirectorySaysNothing) {
  start_memory(1);
  connect_all();
  EXPECT_EQ(write(1, 0, 1), Status::kOk);
  remote::RemoteAddress wrong = at(1, 0);
  wrong.key.value ^= 0xFF00;
  EXPECT_EQ(write_to(wrong, 1), Status::kAccessDenied) << "which breaks a reliable connection";
  ASSERT_TRUE(run_until([&] { return nodes_->reconnects() == 1 && nodes_->up() == 1; })) << nodes_->problems();
  EXPECT_EQ(write(1, 1, 2), Status::kOk);
  EXPECT_EQ(memories_[1].node->acceptor().accepted(), 2u);
}

TEST_F(RackWorld, AnAcceptorRefusesMoreThanItsLimitAndDropsThoseWhoAreGone) {
  start_memory(1);
  connect_all();
  Acceptor& acceptor = memories_[1].node->acceptor();
  EXPECT_EQ(acceptor.connections(), 1u);
  Snapshot gone;
  gone.nodes.push_back({.description = {"client", NodeKind::kClient, 0, {}, {}},
                        .state = NodeState::kGone,
                        .id = NodeId(100),
                        .ip = Subnet{}.ip_of(NodeId(100))});
  acceptor.drop_gone(loop_.now(), gone);
  EXPECT_EQ(acceptor.connections(), 0u);
}

TEST_F(RackWorld, AnAcceptorThatLooksLateDropsThoseWhoAreForgottenAndNobodyWhoWasNeverNamed) {
  start_memory(1);
  connect_all();
  Acceptor& acceptor = memories_[1].node->acceptor();
  acceptor.drop_gone(loop_.now(), snapshot());
  EXPECT_EQ(acceptor.connections(), 1u) << "from an address that is not the directory's";
  Snapshot there = snapshot();
  there.nodes.push_back({.description = {"client", NodeKind::kClient, 0, {}, {}},
                         .state = NodeState::kReady,
                         .id = NodeId(100),
                         .ip = Subnet{}.ip_of(NodeId(100))});
  acceptor.drop_gone(loop_.now(), there);
  EXPECT_EQ(acceptor.connections(), 1u);
  acceptor.drop_gone(loop_.now(), snapshot());
  EXPECT_EQ(acceptor.connections(), 0u);
}

// --- tenants ---

class TenantsWorld : public RackWorld {
 public:
  // What the directory says: who the client is, and which regions there are.
  Snapshot word(const std::string& tenant, std::vector<TenantRegion> regions) {
    Snapshot s = snapshot();
    s.has_tenants = true;
    s.regions = std::move(regions);
    NodeRecord client;
    client.description = {"client", NodeKind::kClient, 0, {}, {}};
    if (!tenant.empty()) client.description.attributes[kTenantAttribute] = tenant;
    client.state = NodeState::kReady;
    client.id = NodeId(100);
    client.ip = Subnet{}.ip_of(client.id);
    s.nodes.push_back(client);
    return s;
  }
  MemoryNode& node() { return *memories_[1].node; }
  bool follow(const Snapshot& s) { return node().follow(loop_.now(), s, "memory1"); }
  remote::RemoteAddress address_of(const std::string& owner) {
    for (const RegionRecord& region : node().regions()) {
      if (region.owner == owner) return {NodeId(1), remote::RegionKey(region.key), region.address};
    }
    return {};
  }
};

TEST_F(TenantsWorld, AKeyOpensNothingForAnotherTenant) {
  start_memory(1);
  const Snapshot red = word("red", {{"red", "heap", "memory1", 1 << 16, 1},
                                    {"blue", "heap", "memory1", 1 << 16, 2},
                                    {"red", "elsewhere", "memory2", 1 << 16, 3}});
  EXPECT_TRUE(follow(red));
  EXPECT_FALSE(follow(red)) << "it is as it should be";
  ASSERT_EQ(node().regions().size(), 3u);
  connect_all();
  EXPECT_EQ(write_to(address_of("red"), 1), Status::kOk);
  // Right in every bit, and another's; each refusal breaks the connection.
  for (const std::string& owner : {std::string("blue"), std::string()}) {
    EXPECT_EQ(write_to(address_of(owner), 1), Status::kAccessDenied);
    ASSERT_TRUE(run_until([&] { return nodes_->up() == 1; })) << nodes_->problems();
  }
  EXPECT_EQ(node().bytes()[0], 0);
  EXPECT_EQ(write_to(address_of("red"), 1), Status::kOk);
}

TEST_F(TenantsWorld, TheRacksOwnClientsUseItsOwnMemory) {
  start_memory(1);
  EXPECT_TRUE(follow(word("", {{"red", "heap", "memory1", 1 << 16, 1}})));
  connect_all();
  EXPECT_EQ(write_to(address_of(""), 5), Status::kOk);
  EXPECT_EQ(write_to(address_of("red"), 5), Status::kAccessDenied);
}

TEST_F(TenantsWorld, WhoIsNotOnTheRackIsNotConnectedTo) {
  start_memory(1);
  Snapshot without = word("red", {});
  without.nodes.pop_back();
  follow(without);
  nodes_->set_nodes(loop_.now(), snapshot());
  ASSERT_TRUE(run_until([&] { return node().acceptor().refused() > 0; }));
  EXPECT_EQ(nodes_->up(), 0u);
  follow(word("red", {}));
  EXPECT_TRUE(run_until([&] { return nodes_->up() == 1; })) << "it is tried again: " << nodes_->problems();
}

TEST_F(TenantsWorld, NobodyIsConnectedToBeforeItIsKnownWhoIsWhose) {
  make_memory(1);
  nodes_->set_nodes(loop_.now(), snapshot());
  ASSERT_TRUE(run_until([&] { return node().acceptor().refused() > 0 || nodes_->up() == 1; }));
  EXPECT_EQ(nodes_->up(), 0u) << "a tenant's client would be taken for the rack's own";
  EXPECT_TRUE(follow(word("red", {{"red", "heap", "memory1", 1 << 16, 1}})));
  ASSERT_TRUE(run_until([&] { return nodes_->up() == 1; })) << nodes_->problems();
  EXPECT_EQ(write_to(address_of(""), 1), Status::kAccessDenied);
}

TEST_F(TenantsWorld, ARegionThatIsGivenBackIsGoneAndItsSuccessorBlank) {
  start_memory(1);
  const std::vector<TenantRegion> regions{{"red", "heap", "memory1", 1 << 16, 1}};
  EXPECT_TRUE(follow(word("red", regions)));
  connect_all();
  const remote::RemoteAddress before = address_of("red");
  EXPECT_EQ(write_to(before, 1), Status::kOk);
  EXPECT_TRUE(follow(word("red", {})));
  EXPECT_EQ(node().tenants_bytes(), 0u);
  EXPECT_EQ(write_to(before, 1), Status::kAccessDenied);
  EXPECT_TRUE(follow(word("red", {{"red", "heap", "memory1", 1 << 16, 2}})));
  const remote::RemoteAddress after = address_of("red");
  EXPECT_NE(after.key, before.key);
  EXPECT_EQ(*reinterpret_cast<const std::uint8_t*>(after.address), 0);
}

TEST_F(TenantsWorld, OtherMemoryOfTheSameNameIsBlankThoughNobodySawTheFirstGo) {
  start_memory(1);
  EXPECT_TRUE(follow(word("red", {{"red", "heap", "memory1", 1 << 16, 1}})));
  connect_all();
  EXPECT_EQ(write_to(address_of("red"), 1), Status::kOk);
  EXPECT_TRUE(follow(word("red", {{"red", "heap", "memory1", 1 << 16, 2}})));
  EXPECT_EQ(*reinterpret_cast<const std::uint8_t*>(address_of("red").address), 0);
}

TEST_F(TenantsWorld, ARegionThatIsBeingMovedIsForTheRackAlone) {
  start_memory(1);
  const TenantRegion here{"red", "heap", "memory1", 1 << 16, 1};
  EXPECT_TRUE(follow(word("red", {here})));
  connect_all();
  const remote::RemoteAddress before = address_of("red");
  EXPECT_EQ(write_to(before, 1), Status::kOk);
  TenantRegion moving = here;
  moving.moving_to = "memory2";
  moving.next_birth = 9;
  EXPECT_TRUE(follow(word("red", {moving})));
  EXPECT_FALSE(follow(word("red", {moving})));
  ASSERT_EQ(node().regions().size(), 2u);
  EXPECT_EQ(node().regions()[1].name, "leaving:red/heap");
  EXPECT_EQ(node().regions()[1].owner, "");
  const auto key = remote::RegionKey(node().regions()[1].key);
  for (const auto& address : {before, remote::RemoteAddress{NodeId(1), key, before.address}}) {
    EXPECT_EQ(write_to(address, 2), Status::kAccessDenied);
    ASSERT_TRUE(run_until([&] { return nodes_->up() == 1; })) << nodes_->problems();
  }
  // It stays after all, as it was; or it is elsewhere.
  EXPECT_TRUE(follow(word("red", {here})));
  EXPECT_EQ(*reinterpret_cast<const std::uint8_t*>(before.address), 1);
  EXPECT_EQ(write_to(address_of("red"), 3), Status::kOk);
  EXPECT_TRUE(follow(word("red", {{"red", "heap", "memory2", 1 << 16, 9}})));
  EXPECT_EQ(node().regions().size(), 1u);
}

TEST_F(TenantsWorld, ARegionThatArrivesIsTheTenantsOnceItIsThere) {
  start_memory(1);
  const TenantRegion moving{"red", "heap", "memory2", 1 << 16, 1, "memory1", 9};
  EXPECT_TRUE(follow(word("", {moving})));
  ASSERT_EQ(node().regions().size(), 2u);
  EXPECT_EQ(node().regions()[1].name, "arriving:red/heap");
  connect_all();
  const remote::RemoteAddress at{NodeId(1), remote::RegionKey(node().regions()[1].key), node().regions()[1].address};
  EXPECT_EQ(write_to(at, 7), Status::kOk) << "by the rack itself";
  EXPECT_TRUE(follow(word("", {{"red", "heap", "memory1", 1 << 16, 9}})));
  EXPECT_EQ(*reinterpret_cast<const std::uint8_t*>(address_of("red").address), 7);
  EXPECT_EQ(write_to(address_of("red"), 8), Status::kAccessDenied) << "it is the tenant's now";
}

TEST_F(TenantsWorld, AFencedNodeGivesTenantsRegionsOtherKeysToo) {
  start_memory(1);
  EXPECT_TRUE(follow(word("red", {{"red", "heap", "memory1", 1 << 16, 1}})));
  connect_all();
  const remote::RemoteAddress before = address_of("red");
  EXPECT_EQ(write_to(before, 7), Status::kOk);
  node().fence(loop_.now());
  EXPECT_NE(address_of("red").key, before.key);
  ASSERT_TRUE(run_until([&] { return nodes_->up() == 1 && nodes_->reconnects() == 1; })) << nodes_->problems();
  EXPECT_EQ(write_to(before, 8), Status::kAccessDenied);
  EXPECT_EQ(*reinterpret_cast<const std::uint8_t*>(before.address), 7) << "what it holds stays";
}

TEST_F(TenantsWorld, MemoryThatIsSharedIsForEverybody) {
  start_memory(1);
  node().share_with_all();
  follow(word("red", {}));
  connect_all();
  EXPECT_EQ(write_to(address_of(""), 5), Status::kOk);
}

TEST_F(TenantsWorld, WhoIsShutOutIsOutOfSharedMemoryToo) {
  start_memory(1);
  node().share_with_all();
  follow(word("red", {}));
  connect_all();
  Snapshot revoked = word("red", {});
  revoked.nodes.back().state = NodeState::kGone;
  follow(revoked);
  EXPECT_EQ(node().acceptor().connections(), 0u);
  const auto refused = node().acceptor().refused();
  EXPECT_TRUE(run_until([&] { return node().acceptor().refused() > refused || nodes_->reconnects() > 0; }));
  EXPECT_EQ(node().acceptor().connections(), 0u) << "its client tries again";
}

TEST_F(RackWorld, TheSwitchLetsGoOfAPortWhoseEndIsGone) {
  start_memory(1);
  connect_all();
  ASSERT_EQ(switch_.ports(), 2u);
  kill_memory(1);
  EXPECT_TRUE(run_until([&] { return switch_.ports() == 1; }));
}

// --- messages ---

// Answers each request with itself, reversed.
class Reverse final : public remote::MessageService {
 public:
  std::size_t handle(Time, ByteView request, MutableBytes response) override {
    std::reverse_copy(request.begin(), request.end(), response.begin());
    return request.size();
  }
};

TEST_F(RackWorld, MessagesGoThereAndBackAndFailCleanlyWhenTheServiceDies) {
  auto service = std::make_unique<Station>(loop_, listener_->call(), 3);
  Reverse reverse;
  auto* completions = service->shard->adapter().create_completion_queue(256);
  auto server = std::make_unique<rc::MessageServerRc>(service->shard->adapter(), reverse, *completions, 8);
  auto polled = std::make_unique<nic::Polled<rc::MessageServerRc>>(*server);
  loop_.add(*polled);
  const rc::QueuePairConfig pair{.pd = service->shard->adapter().create_domain(),
                                 .send_completions = completions,
                                 .receive_completions = completions,
                                 .send_depth = 8,
                                 .receive_depth = 8};
  auto acceptor = std::make_unique<Acceptor>(*service->connector, pair, 8,
                                             Acceptor::Events{.on_made = [&](rc::QueuePair& p) { server->add(p); },
                                                              .on_gone = [&](rc::QueuePair& p) { server->remove(p); },
                                                              .greeting = {}});
  ASSERT_TRUE(acceptor->listen(7471));

  MessageLink link(*client_->connector, scheduler_, 8);
  loop_.add(link);
  const auto call = [&]() {
    remote::MessageResult result;
    std::string text(3, '?');
    scheduler_.spawn([](MessageLink& l, std::string& answer, remote::MessageResult& r) -> remote::Task<void> {
      const std::string question = "abc";
      std::array<std::uint8_t, 16> bytes{};
      r = co_await l.call({reinterpret_cast<const std::uint8_t*>(question.data()), 3}, bytes);
      answer.assign(bytes.begin(), bytes.begin() + 3);
    }(link, text, result));
    EXPECT_TRUE(run_until([&] { return scheduler_.live() == 0; }));
    return result.status == Status::kOk ? text : std::string(to_string(result.status));
  };
  EXPECT_EQ(call(), to_string(Status::kUnreachable)) << "not connected yet";
  link.want(loop_.now(), Link::Peer{wire::Gid::from(Subnet{}.ip_of(NodeId(3))), 7471});
  ASSERT_TRUE(run_until([&] { return link.up(); })) << link.why();
  EXPECT_EQ(call(), "cba");

  loop_.remove(*polled);
  acceptor.reset();
  server.reset();
  service.reset();
  EXPECT_EQ(call(), to_string(Status::kUnknown)) << "asked, never answered";
  EXPECT_EQ(call(), to_string(Status::kUnreachable));
  loop_.remove(link);
}

}  // namespace
}  // namespace sluice::rack
