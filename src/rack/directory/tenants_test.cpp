// Tenants, over a directory in memory: who gets in, who sees what, and whose quota is over.
#include "rack/directory/tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "rack/directory/sqlite_directory.h"

namespace sluice::rack {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint64_t kMib = std::uint64_t{1} << 20;
constexpr Duration kLease = Duration::seconds(10);

class TenantsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = SqliteDirectory::open(":memory:", {}, [] { return Time(); });
    ASSERT_TRUE(opened) << opened.error().message;
    directory_ = std::move(*opened);
  }
  Tenants& tenants() { return directory_->tenants(); }
  std::string add(const std::string& name, std::uint64_t bytes = 100 * kMib, std::uint64_t regions = 4) {
    const auto token = tenants().add(name, {bytes, regions}, false);
    EXPECT_TRUE(token) << token.error().message;
    return *token;
  }
  LeaseId join(const NodeDescription& description) {
    const auto joined = directory_->join(description, kLease);
    EXPECT_TRUE(joined) << joined.error().message;
    EXPECT_TRUE(directory_->publish(joined->lease, description));
    return joined->lease;
  }
  NodeDescription memory(const std::string& name, std::uint64_t bytes) {
    return {name,
            NodeKind::kMemory,
            7471,
            {{kMainRegion, 0x1000, 64 * kMib, 7}},
            {{kTenantBytesAttribute, std::to_string(bytes)}}};
  }
  // As the node does when it learns of it.
  void make_all_regions_of(const std::string& node, LeaseId lease) {
    NodeDescription description = directory_->nodes()->find(node)->description;
    std::erase_if(description.regions, [](const RegionRecord& region) { return !region.owner.empty(); });
    const auto seen = tenants().view(*directory_->nodes(), {.is_rack = true});
    for (const TenantRegion& region : seen->regions) {
      if (region.node == node) description.regions.push_back({region.name, 0x2000, region.length, 9, region.tenant});
    }
    EXPECT_TRUE(directory_->publish(lease, description));
  }
  Snapshot seen_by(const std::string& tenant) { return tenants().view(*directory_->nodes(), {false, tenant}).value(); }
  std::string why_not(const Result<TenantRegion>& region) { return region ? "it was given" : region.error().message; }

  std::unique_ptr<SqliteDirectory> directory_;
};

TEST_F(TenantsTest, ARackWithoutTenantsIsOpenToAllWhoReachIt) {
  EXPECT_TRUE(tenants().identify("", true)->is_rack);
  EXPECT_TRUE(tenants().identify("", false)->is_rack);
  const Snapshot seen = tenants().view(*directory_->nodes(), {.is_rack = true}).value();
  EXPECT_FALSE(seen.has_tenants);
  EXPECT_FALSE(tenants().identify("sluice_0000", true)) << "who shows a token means somebody";
}

TEST_F(TenantsTest, ATokenTellsWhoAsksAndNothingElseDoes) {
  const std::string red = add("red");
  const std::string blue = add("blue");
  EXPECT_NE(red, blue);
  EXPECT_EQ(red.size(), std::string("sluice_").size() + 64) << "256 bits";
  EXPECT_EQ(tenants().identify(red, false)->tenant, "red");
  EXPECT_EQ(tenants().identify(blue, true)->tenant, "blue") << "also at the socket";
  EXPECT_FALSE(tenants().identify(red, false)->is_rack);
  EXPECT_TRUE(tenants().identify("", true)->is_rack) << "the run directory is its owner's";

  const auto missing = tenants().identify("", false);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("--token-file"));
  std::string wrong = red;
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  const std::string longer = red + "0";
  for (const std::string& token : {wrong, std::string("x"), longer, std::string(10'000, 'a')}) {
    const auto refused = tenants().identify(token, true);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("of no tenant"));
  }
  EXPECT_EQ(tenants().refused(Tenants::Refusal::kMissing), 1u);
  EXPECT_EQ(tenants().refused(Tenants::Refusal::kWrong), 4u);
}

TEST_F(TenantsTest, TokensAreNotKept) {
  const std::string token = add("red");
  const std::string text = directory_->ledger()->text;
  EXPECT_THAT(text, HasSubstr("red"));
  EXPECT_EQ(text.find(token), std::string::npos);
  EXPECT_EQ(text.find(token.substr(7)), std::string::npos);
}

TEST_F(TenantsTest, AnOperatorsTokenIsTheRacksOwn) {
  const auto token = tenants().add("ops", {}, true);
  EXPECT_TRUE(tenants().identify(*token, false)->is_rack);
  EXPECT_FALSE(tenants().identify("", false)) << "operators are reason enough to ask who comes";
}

TEST_F(TenantsTest, ARotatedTokenReplacesTheOneBefore) {
  const std::string before = add("red");
  const auto after = tenants().rotate("red");
  EXPECT_FALSE(tenants().identify(before, false));
  EXPECT_EQ(tenants().identify(*after, false)->tenant, "red");
  EXPECT_FALSE(tenants().rotate("nobody"));
}

TEST_F(TenantsTest, ARevokedTenantIsOutWithItsNodesAndKeepsItsRegions) {
  const std::string token = add("red");
  const LeaseId node = join(memory("memory1", 100 * kMib));
  ASSERT_TRUE(tenants().add_region("red", "heap", kMib, ""));
  const auto description = tenants().admitted({"app", NodeKind::kClient, 0, {}, {}}, {false, "red"});
  const LeaseId client = join(*description);
  join({"another", NodeKind::kClient, 0, {}, {}});
  ASSERT_TRUE(tenants().revoke("red"));

  const auto refused = tenants().identify(token, false);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("'red' was revoked"));
  EXPECT_EQ(tenants().refused(Tenants::Refusal::kRevoked), 1u);
  EXPECT_FALSE(directory_->renew(client));
  EXPECT_EQ(directory_->nodes()->find("app")->state, NodeState::kGone);
  EXPECT_EQ(directory_->nodes()->find("another")->state, NodeState::kReady);
  EXPECT_TRUE(directory_->renew(node));
  EXPECT_EQ(tenants().list()->front().used.regions, 1u);
  EXPECT_TRUE(tenants().list()->front().is_revoked);
  const auto again = tenants().rotate("red");
  EXPECT_EQ(tenants().identify(*again, false)->tenant, "red");
}

TEST_F(TenantsTest, ATenantSeesItsOwnAndNothingOfOthers) {
  add("red");
  add("blue");
  const LeaseId lease = join(memory("memory1", 100 * kMib));
  join(memory("memory2", 0));
  join({"metadata", NodeKind::kMetadata, 7471, {}, {}});
  join({"switch", NodeKind::kSwitch, 0, {}, {}});
  join(*tenants().admitted({"app", NodeKind::kClient, 0, {}, {}}, {false, "red"}));
  join({"operators", NodeKind::kClient, 0, {}, {}});
  ASSERT_TRUE(tenants().add_region("red", "heap", 2 * kMib, ""));
  ASSERT_TRUE(tenants().add_region("blue", "heap", 3 * kMib, ""));
  EXPECT_EQ(seen_by("red").find("memory1"), nullptr) << "its region is not there yet";
  EXPECT_EQ(seen_by("red").regions.size(), 1u) << "but has been given";
  make_all_regions_of("memory1", lease);

  const Snapshot red = seen_by("red");
  ASSERT_NE(red.find("memory1"), nullptr);
  ASSERT_EQ(red.find("memory1")->description.regions.size(), 1u);
  EXPECT_EQ(red.find("memory1")->description.regions[0].owner, "red");
  EXPECT_EQ(red.find_memory("heap").region->length, 2 * kMib);
  EXPECT_EQ(red.find_memory("memory1").region->length, 2 * kMib) << "the node is, for it, what it has there";
  EXPECT_EQ(red.find_memory("blue/heap").node, nullptr);
  EXPECT_EQ(red.find("memory2"), nullptr);
  EXPECT_EQ(red.find("metadata"), nullptr);
  EXPECT_EQ(red.find("operators"), nullptr);
  EXPECT_NE(red.find("switch"), nullptr);
  EXPECT_NE(red.find("app"), nullptr);
  EXPECT_EQ(seen_by("blue").find("app"), nullptr);

  const Snapshot all = tenants().view(*directory_->nodes(), {.is_rack = true}).value();
  EXPECT_EQ(all.find("memory1")->description.regions.size(), 3u);
  EXPECT_EQ(all.regions.size(), 2u);
  EXPECT_EQ(all.find_memory("memory1").region->name, kMainRegion);
  EXPECT_EQ(all.find_memory("heap").node, nullptr) << "two are called so";
  EXPECT_EQ(all.find_memory("blue/heap").region->length, 3 * kMib);
}

TEST_F(TenantsTest, ANodesNameStandsForATenantsOneRegionThereAndForNoneOfSeveral) {
  add("red");
  const LeaseId lease = join(memory("memory1", 100 * kMib));
  ASSERT_TRUE(tenants().add_region("red", "b1", kMib, ""));
  make_all_regions_of("memory1", lease);
  EXPECT_EQ(seen_by("red").memory_called("memory1")->region->name, "b1");
  ASSERT_TRUE(tenants().add_region("red", "a1", kMib, ""));
  make_all_regions_of("memory1", lease);

  const Snapshot red = seen_by("red");
  EXPECT_EQ(red.find_memory("memory1").node, nullptr) << "which of them it is would change with the next";
  EXPECT_TRUE(red.find_memory("memory1").are_several);
  const auto refused = red.memory_called("memory1");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("memory1 has several regions of yours; name one of b1, a1"));
  EXPECT_EQ(red.memory_called("b1")->region->name, "b1");
  EXPECT_EQ(red.memory_called("red/a1")->region->name, "a1");
  EXPECT_THAT(red.memory_called("c1").error().message,
              HasSubstr("there is no memory node c1; there are red/b1, red/a1"))
      << "and memory1 would be refused";
  const Snapshot all = tenants().view(*directory_->nodes(), {.is_rack = true}).value();
  EXPECT_EQ(all.memory_called("memory1")->region->name, kMainRegion) << "the rack's own is one, whatever tenants have";
}

TEST_F(TenantsTest, ANameThatSeveralTenantsUseIsNoneOfTheirs) {
  add("red");
  add("blue");
  add("green");
  const LeaseId lease = join(memory("memory1", 100 * kMib));
  for (const char* const tenant : {"red", "blue", "green"}) ASSERT_TRUE(tenants().add_region(tenant, "heap", kMib, ""));
  make_all_regions_of("memory1", lease);
  const Snapshot all = tenants().view(*directory_->nodes(), {.is_rack = true}).value();
  EXPECT_EQ(all.find_memory("heap").node, nullptr);
  EXPECT_THAT(all.memory_called("heap").error().message,
              AllOf(HasSubstr("several regions are called heap; name one of "), HasSubstr("red/heap"),
                    HasSubstr("blue/heap"), HasSubstr("green/heap")));
}

TEST_F(TenantsTest, MemoryThatIsSharedIsEverybodys) {
  add("red");
  NodeDescription shared = memory("memory1", 100 * kMib);
  shared.attributes[kSharedAttribute] = "true";
  join(shared);
  join({"metadata", NodeKind::kMetadata, 7471, {}, {}});
  const Snapshot red = seen_by("red");
  ASSERT_NE(red.find("memory1"), nullptr);
  EXPECT_EQ(red.find_memory("memory1").region->name, kMainRegion);
  EXPECT_NE(red.find("metadata"), nullptr) << "the store lies there";
  EXPECT_THAT(why_not(tenants().add_region("red", "heap", kMib, "")),
              HasSubstr("no memory node has memory for tenants"));
}

TEST_F(TenantsTest, OverQuotaIsRefusedInALineThatSaysEverything) {
  add("red", 10 * kMib, 2);
  join(memory("memory1", 100 * kMib));
  ASSERT_TRUE(tenants().add_region("red", "one", 6 * kMib, ""));
  EXPECT_EQ(
      why_not(tenants().add_region("red", "two", 5 * kMib, "")),
      "over quota: tenant 'red' asked for 5MiB, uses 6MiB, and is allowed 10MiB; remove a region, or ask the rack's "
      "operator for more");
  EXPECT_THAT(why_not(tenants().add_region("red", "two", ~std::uint64_t{0}, "")), HasSubstr("over quota"));
  ASSERT_TRUE(tenants().add_region("red", "two", 4 * kMib, "")) << "to the last byte";
  EXPECT_THAT(why_not(tenants().add_region("red", "three", 1, "")), HasSubstr("over quota"));
  ASSERT_TRUE(tenants().remove_region("red", "one"));
  ASSERT_TRUE(tenants().add_region("red", "three", kMib, ""));
  EXPECT_THAT(why_not(tenants().add_region("red", "four", kMib, "")),
              HasSubstr("'red' asked for 1 region, uses 2, and is allowed 2"));
  EXPECT_EQ(tenants().refused(Tenants::Refusal::kOverQuota), 4u);
  // What it has it keeps when it is allowed less.
  ASSERT_TRUE(tenants().set_quota("red", {kMib, 4}));
  EXPECT_THAT(why_not(tenants().add_region("red", "five", 1, "")), HasSubstr("uses 5MiB, and is allowed 1MiB"));
  // What is not said stays as it is.
  EXPECT_EQ(tenants().set_quota("red", {.regions = 9}).value(), (Tenants::Quota{kMib, 9}));
  EXPECT_EQ(tenants().set_quota("red", {.bytes = 2 * kMib}).value(), (Tenants::Quota{2 * kMib, 9}));
}

TEST_F(TenantsTest, ManyWhoAskAtOnceDoNotGetMoreThanTheQuota) {
  add("red", 10 * kMib, 100);
  join(memory("memory1", 100 * kMib));
  std::atomic<int> given{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i)
        given += tenants().add_region("red", "r" + std::to_string(t) + "-" + std::to_string(i), kMib, "") ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(given, 10);
  EXPECT_EQ(tenants().list()->front().used, (Tenants::Quota{10 * kMib, 10}));
}

TEST_F(TenantsTest, ARegionGoesWhereThereIsTheMostRoomOrWhereItIsAskedFor) {
  add("red", 1000 * kMib, 100);
  EXPECT_THAT(why_not(tenants().add_region("red", "r", kMib, "")), HasSubstr("--tenant-size"));
  join(memory("memory1", 10 * kMib));
  join(memory("memory2", 20 * kMib));
  EXPECT_EQ(tenants().add_region("red", "a", 15 * kMib, "")->node, "memory2");
  EXPECT_EQ(tenants().add_region("red", "b", 4 * kMib, "")->node, "memory1");
  EXPECT_EQ(tenants().add_region("red", "c", 5 * kMib, "memory2")->node, "memory2");
  EXPECT_THAT(why_not(tenants().add_region("red", "d", 1, "memory2")), HasSubstr("memory2 has the most room, 0"));
  EXPECT_THAT(why_not(tenants().add_region("red", "d", 7 * kMib, "")), HasSubstr("memory1 has the most room, 6MiB"));
  EXPECT_THAT(why_not(tenants().add_region("red", "d", 1, "memory9")), HasSubstr("'memory9' is not there"));
}

TEST_F(TenantsTest, ANodeThatIsDrainedIsGivenNoMoreRegions) {
  add("red", 1000 * kMib, 100);
  join(memory("memory1", 10 * kMib));
  join(memory("memory2", 20 * kMib));
  ASSERT_TRUE(tenants().add_region("red", "a", kMib, "memory2"));
  ASSERT_TRUE(tenants().drain("memory2", true));
  EXPECT_EQ(tenants().add_region("red", "b", kMib, "")->node, "memory1");
  EXPECT_THAT(why_not(tenants().add_region("red", "c", kMib, "memory2")), HasSubstr("is being drained"));
  EXPECT_EQ(tenants().view(*directory_->nodes(), {.is_rack = true})->draining, std::vector<std::string>{"memory2"});
  ASSERT_TRUE(tenants().drain("memory2", false));
  EXPECT_EQ(tenants().add_region("red", "c", kMib, "")->node, "memory2");
  EXPECT_FALSE(tenants().drain("memory9", true));
}

TEST_F(TenantsTest, AMoveIsBegunAndEndedOrUndone) {
  add("red", 1000 * kMib, 100);
  join(memory("memory1", 10 * kMib));
  ASSERT_TRUE(tenants().add_region("red", "a", kMib, ""));
  EXPECT_FALSE(tenants().begin_move("red", "a", "memory1")) << "it is there";
  EXPECT_FALSE(tenants().begin_move("red", "a", "")) << "there is no other node";
  EXPECT_FALSE(tenants().begin_move("red", "b", ""));
  LeaseId second = join(memory("memory2", 2 * kMib));
  const auto begun = tenants().begin_move("red", "a", "");
  ASSERT_TRUE(begun) << begun.error().message;
  EXPECT_EQ(begun->node, "memory1");
  EXPECT_EQ(begun->moving_to, "memory2");
  EXPECT_NE(begun->next_birth, begun->birth);
  EXPECT_EQ(tenants().begin_move("red", "a", "memory2")->next_birth, begun->next_birth) << "goes on";
  EXPECT_THAT(why_not(tenants().add_region("red", "b", 2 * kMib, "memory2")), HasSubstr("1MiB"))
      << "it takes room there";
  EXPECT_FALSE(tenants().end_move("red", "a", begun->next_birth + 1, 1));
  const auto undone = tenants().undo_move("red", "a");
  EXPECT_EQ(undone->birth, begun->birth);
  EXPECT_EQ(undone->moving_to, "");
  EXPECT_FALSE(tenants().end_move("red", "a", begun->next_birth, 1)) << "who was copying comes too late";
  const auto again = tenants().begin_move("red", "a", "");
  EXPECT_NE(again->next_birth, begun->next_birth) << "blank again";
  ASSERT_TRUE(directory_->leave(second));
  EXPECT_THAT(why_not(tenants().end_move("red", "a", again->next_birth, 1)), HasSubstr("has left the rack"));
  second = join(memory("memory2", 2 * kMib));
  EXPECT_THAT(why_not(tenants().end_move("red", "a", again->next_birth, 1)), HasSubstr("joined it anew"))
      << "what was copied is gone";
  const auto moved = tenants().end_move("red", "a", again->next_birth, 2);
  ASSERT_TRUE(moved) << moved.error().message;
  EXPECT_EQ(moved->node, "memory2");
  EXPECT_EQ(moved->birth, again->next_birth);
  EXPECT_EQ(moved->moving_to, "");
  EXPECT_EQ(tenants().list()->front().used, (Tenants::Quota{kMib, 1}));
}

TEST_F(TenantsTest, RefusesNamesThatWouldBeMistaken) {
  add("red");
  join(memory("memory1", 10 * kMib));
  for (const char* name : {"", "a b", "a/b", "main", "é"}) {
    EXPECT_FALSE(tenants().add(name, {}, false)) << name;
    EXPECT_FALSE(tenants().add_region("red", name, kMib, "")) << name;
  }
  EXPECT_FALSE(tenants().add("red", {}, false)) << "there is one";
  EXPECT_FALSE(tenants().add_region("red", "memory1", kMib, "")) << "a node's name";
  ASSERT_TRUE(tenants().add_region("red", "heap", kMib, ""));
  EXPECT_FALSE(tenants().add_region("red", "heap", kMib, ""));
  EXPECT_FALSE(tenants().add_region("nobody", "heap", kMib, ""));
  EXPECT_FALSE(tenants().add_region("red", "empty", 0, ""));
  EXPECT_FALSE(tenants().remove_region("red", "other"));
}

TEST_F(TenantsTest, ATenantJoinsAsAClientUnderANameThatIsNobodyElses) {
  add("red");
  join({"operators", NodeKind::kClient, 0, {}, {}});
  join(*tenants().admitted({"blues", NodeKind::kClient, 0, {}, {}}, {false, "blue"}));
  const Tenants::Asker red{false, "red"};
  for (const NodeKind kind : {NodeKind::kMemory, NodeKind::kMetadata, NodeKind::kSwitch})
    EXPECT_FALSE(tenants().admitted({"mine", kind, 0, {}, {}}, red));
  EXPECT_FALSE(tenants().admitted({"operators", NodeKind::kClient, 0, {}, {}}, red));
  EXPECT_FALSE(tenants().admitted({"blues", NodeKind::kClient, 0, {}, {}}, red));
  NodeDescription liar{"mine", NodeKind::kClient, 0, {{"heap", 0, 1, 1, "blue"}}, {{kTenantAttribute, "blue"}}};
  liar.attributes[kHttpAttribute] = "192.0.2.1:80";  // which Prometheus would ask
  const auto admitted = tenants().admitted(liar, red);
  ASSERT_TRUE(admitted);
  EXPECT_EQ(admitted->attributes.at(kTenantAttribute), "red");
  EXPECT_FALSE(admitted->attributes.contains(kHttpAttribute));
  EXPECT_TRUE(admitted->regions.empty());
  const LeaseId lease = join(*admitted);
  const auto published = tenants().published(liar);
  EXPECT_EQ(published->attributes.at(kTenantAttribute), "red") << "it stays whose it was";
  EXPECT_TRUE(published->regions.empty());
  EXPECT_TRUE(directory_->publish(lease, *published));
  EXPECT_TRUE(tenants().admitted({"mine", NodeKind::kClient, 0, {}, {}}, red)) << "its own name it may take again";
  EXPECT_FALSE(tenants().admitted(liar, {.is_rack = true})->attributes.contains(kTenantAttribute));
}

TEST_F(TenantsTest, ATenantKeepsNoDaemonFromItsName) {
  const Tenants::Asker red{false, "red"};
  ASSERT_TRUE(tenants().add("red", {kMib, 1}, false));
  for (const char* const name : {"switch", "memory", "memory3", "metadata", "box-agent", "cowbird", "m2.cowbird"}) {
    const auto admitted = tenants().admitted({name, NodeKind::kClient, 0, {}, {}}, red);
    ASSERT_FALSE(admitted) << name;
    EXPECT_THAT(admitted.error().message, HasSubstr("for the rack's own daemons; choose one of your own (--name)"));
    EXPECT_TRUE(tenants().admitted({name, NodeKind::kClient, 0, {}, {}}, {.is_rack = true}));
  }
  for (const char* const name : {"memory3-of-red", "cowbird-of-red", "m2.cowbird-of-red"})
    EXPECT_TRUE(tenants().admitted({name, NodeKind::kClient, 0, {}, {}}, red)) << name;
}

TEST_F(TenantsTest, ATenantHasNoMoreClientsThanLeaveRoomForOthers) {
  add("red");
  add("blue");
  const Tenants::Asker red{false, "red"};
  const Tenants::Asker blue{false, "blue"};
  LeaseId last;
  for (std::size_t i = 0; i < Tenants::kMostClients; ++i) {
    last = directory_->join({"red" + std::to_string(i), NodeKind::kClient, 0, {}, {{kTenantAttribute, "red"}}}, kLease)
               ->lease;
  }
  const auto refused = tenants().admitted({"more", NodeKind::kClient, 0, {}, {}}, red);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("over quota: tenant 'red' has 1024 clients"));
  EXPECT_TRUE(tenants().admitted({"another", NodeKind::kClient, 0, {}, {}}, blue));
  ASSERT_TRUE(directory_->leave(last));
  EXPECT_TRUE(tenants().admitted({"more", NodeKind::kClient, 0, {}, {}}, red));

  NodeDescription talker{"talker", NodeKind::kClient, 0, {}, {{"story", std::string(Tenants::kMostAttributes, 'a')}}};
  EXPECT_FALSE(tenants().admitted(talker, blue));
  EXPECT_TRUE(tenants().admitted(talker, {.is_rack = true}));
  talker.name = "red0";
  EXPECT_FALSE(tenants().published(talker));
}

TEST_F(TenantsTest, WhatATenantsClientsSayIsBoundedInAllAndGoesWithThem) {
  add("red");
  add("blue");
  const Tenants::Asker red{false, "red"};
  const auto talker = [](std::size_t i) {
    return NodeDescription{"talker" + std::to_string(i),
                           NodeKind::kClient,
                           0,
                           {},
                           {{"tale", std::string(Tenants::kMostAttributes - 4, 'a')}, {kMachineAttribute, "m2"}}};
  };
  constexpr std::size_t kMost = Tenants::kMostAttributesInAll / Tenants::kMostAttributes;
  for (std::size_t i = 0; i < kMost; ++i) {
    const auto admitted = tenants().admitted(talker(i), red);
    ASSERT_TRUE(admitted) << admitted.error().message;
    join(*admitted);
  }
  const auto refused = tenants().admitted(talker(kMost), red);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("over quota: tenant 'red' has clients that say 262144 bytes"));
  EXPECT_TRUE(tenants().published(talker(0))) << "what it said before goes";
  EXPECT_TRUE(tenants().admitted({"silent", NodeKind::kClient, 0, {}, {}}, red));
  EXPECT_TRUE(tenants().admitted(talker(kMost), {false, "blue"}));
  EXPECT_TRUE(tenants().admitted(talker(kMost), {.is_rack = true}));

  const std::string last = talker(kMost - 1).name;
  ASSERT_TRUE(directory_->evict(last));
  EXPECT_EQ(directory_->nodes()->find(last)->description.attributes,
            (std::map<std::string, std::string>{{kMachineAttribute, "m2"}, {kTenantAttribute, "red"}}));
  EXPECT_TRUE(tenants().admitted(talker(kMost), red));
}

TEST_F(TenantsTest, AnothersClientIsInTheWayOfNoRegion) {
  add("red");
  add("blue");
  join(memory("memory1", 10 * kMib));
  join(*tenants().admitted({"heap", NodeKind::kClient, 0, {}, {}}, {false, "red"}));
  EXPECT_THAT(why_not(tenants().add_region("red", "heap", kMib, "")), HasSubstr("name of a node"));
  EXPECT_TRUE(tenants().add_region("blue", "heap", kMib, ""));
}

TEST_F(TenantsTest, WhetherItIsTheRackItselfIsNoRequest) {
  EXPECT_TRUE(tenants().is_rack("", false)) << "without tenants everybody is";
  const std::string red = add("red");
  const std::string ops = tenants().add("ops", {}, true).value();
  EXPECT_TRUE(tenants().is_rack("", true));
  EXPECT_TRUE(tenants().is_rack(ops, false));
  for (const std::string& token : {std::string(), red, std::string("sluice_00")})
    EXPECT_FALSE(tenants().is_rack(token, false)) << token;
  EXPECT_FALSE(tenants().is_rack(red, true));
  ASSERT_TRUE(tenants().revoke("ops"));
  EXPECT_FALSE(tenants().is_rack(ops, false));
  for (const auto why : {Tenants::Refusal::kMissing, Tenants::Refusal::kWrong, Tenants::Refusal::kRevoked})
    EXPECT_EQ(tenants().refused(why), 0u);
}

TEST_F(TenantsTest, ATenantWithRegionsIsRemovedOnlyWithThem) {
  const std::string token = add("red");
  join(memory("memory1", 10 * kMib));
  ASSERT_TRUE(tenants().add_region("red", "heap", kMib, ""));
  const auto kept = tenants().remove("red", Tenants::Regions::kKeep);
  ASSERT_FALSE(kept);
  EXPECT_THAT(kept.error().message, HasSubstr("has 1 region, 1MiB"));
  ASSERT_TRUE(tenants().remove("red", Tenants::Regions::kRemove));
  EXPECT_FALSE(tenants().identify(token, false));
  EXPECT_TRUE(tenants().list()->empty());
  EXPECT_TRUE(tenants().view(*directory_->nodes(), {.is_rack = true})->regions.empty());
  EXPECT_FALSE(tenants().remove("red", Tenants::Regions::kKeep));
}

TEST_F(TenantsTest, ALedgerThatMakesNoSenseIsAnErrorAndNoOpenDoor) {
  for (const char* text :
       {"{", "{}", R"({"tenants": [{"name": 1}], "regions": [], "draining": []})",
        R"({"tenants": [], "regions": [{"tenant": "x"}], "draining": []})",
        R"({"tenants": {}, "regions": [], "draining": []})", R"({"tenants": [], "regions": {}, "draining": []})",
        R"({"tenants": [], "regions": [], "draining": {}})"}) {
    auto opened = SqliteDirectory::open(":memory:", {}, [] { return Time(); });
    ASSERT_TRUE((*opened)->replace_ledger(0, text).value());
    Tenants& damaged = (*opened)->tenants();
    const auto sound = damaged.check();
    ASSERT_FALSE(sound) << text;
    EXPECT_FALSE(damaged.identify("", false));
    EXPECT_FALSE(damaged.identify("sluice_00", true));
    EXPECT_FALSE(damaged.view(*(*opened)->nodes(), {.is_rack = true})) << "a memory node would remove everything";
    EXPECT_FALSE(damaged.add("red", {}, false));
  }
}

}  // namespace
}  // namespace sluice::rack
