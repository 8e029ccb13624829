#include "rack/switch/cowbird_stage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace sluice::rack {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Nowhere final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t) override { return nullptr; }
  void commit(std::size_t) override {}
};

class CowbirdStageTest : public testing::Test {
 protected:
  json end(std::uint32_t qpn) {
    return end_json(
        {{{2, 0, 0, 0, 0, 1}}, wire::Gid::from(wire::Ipv4Address{0x0A4D0001}), wire::Qpn(qpn), wire::Psn(7)});
  }
  json ask(json wish, const char* owner = "host1") {
    wish["owner"] = owner;
    const auto answer = stage.control(now, wish.dump());
    return answer ? json::parse(*answer) : json{{"error", answer.error().message}};
  }
  json attach(const char* owner = "host1") { return ask(attachment(), owner); }
  json attach_in(std::uint64_t incarnation) {
    json wish = attachment();
    wish["incarnation"] = incarnation;
    return ask(std::move(wish));
  }
  json attachment() {
    return {{"do", "attach"},
            {"layout", {{"channels", 1}, {"entries", 16}, {"request_bytes", 1024}, {"response_bytes", 1024}}},
            {"channel", 0},
            {"address", 0x10000},
            {"key", 5},
            {"host", end(0x11)},
            {"mtu", 1024},
            {"max_reads", 16}};
  }
  json connect(std::uint32_t id) { return ask(connection(id)); }
  json connection(std::uint32_t id) {
    return {{"do", "connect"},   {"id", id},    {"node", 3},        {"host", end(0x22)},
            {"pool", end(0x33)}, {"mtu", 1024}, {"host_reads", 16}, {"pool_reads", 16}};
  }

  Time now = Time::at(Duration::seconds(1));
  Nowhere nowhere;
  CowbirdStage stage{{{2, 0, 0, 0, 0, 0xFE}}, wire::Gid::from(wire::Ipv4Address{0x0A4DFFFD}), {}, 1};
};

TEST_F(CowbirdStageTest, SetsUpAChannelAndTellsOfIt) {
  const json attached = attach();
  ASSERT_TRUE(attached.contains("id")) << attached;
  EXPECT_EQ(attached["engine"]["ip"], "10.77.255.253");
  const auto id = attached["id"].get<std::uint32_t>();
  EXPECT_FALSE(connect(id).contains("error"));
  EXPECT_FALSE(ask({{"do", "regions"},
                    {"id", id},
                    {"generation", 1},
                    {"regions", {{{"node", 3}, {"key", 9}, {"base", 0}, {"length", 4096}, {"writable", true}}}}})
                   .contains("error"));
  const json renewed = ask({{"do", "renew"}});
  EXPECT_EQ(renewed["boot"], attached["boot"]);
  ASSERT_EQ(renewed["channels"].size(), 1u);
  EXPECT_EQ(renewed["channels"][0]["nodes"], json::array({3}));
  EXPECT_EQ(renewed["channels"][0]["generation"], 1);
  EXPECT_EQ(json::parse(stage.status_json())["channels"][0]["owner"], "host1");
  EXPECT_FALSE(ask({{"do", "disconnect"}, {"id", id}, {"node", 3}}).contains("error"));
  EXPECT_TRUE(ask({{"do", "renew"}})["channels"][0]["nodes"].empty());
  EXPECT_FALSE(ask({{"do", "detach"}, {"id", id}}).contains("error"));
  EXPECT_TRUE(ask({{"do", "renew"}})["channels"].empty());
}

TEST_F(CowbirdStageTest, SaysWhatIsWrong) {
  EXPECT_THAT(stage.control(now, "no").error().message, HasSubstr("\"owner\" and \"do\""));
  EXPECT_THAT(ask({{"do", "dance"}, {"id", 1}})["error"].get<std::string>(), HasSubstr("host1 has no channel 1"));
  const auto id = attach()["id"].get<std::uint32_t>();
  EXPECT_THAT(ask({{"do", "dance"}, {"id", id}})["error"].get<std::string>(), HasSubstr("attach, connect"));
  EXPECT_THAT(ask({{"do", "connect"}, {"id", id}})["error"].get<std::string>(), HasSubstr("host"));
  EXPECT_THAT(ask({{"do", "detach"}, {"id", id}}, "host2")["error"].get<std::string>(),
              HasSubstr("host2 has no channel"))
      << "nobody takes another's channels away";
}

TEST_F(CowbirdStageTest, ANewLifeOfAnOwnerEndsTheChannelsOfTheLast) {
  const auto in_life = [](std::uint64_t incarnation, json wish) {
    wish["incarnation"] = incarnation;
    return wish;
  };
  const auto id = attach()["id"].get<std::uint32_t>();
  EXPECT_FALSE(connect(id).contains("error"));
  EXPECT_TRUE(ask(in_life(1, {{"do", "renew"}}))["channels"].empty());
  const auto again = attach_in(1)["id"].get<std::uint32_t>();
  // Queue pairs of the same numbers, in the same place.
  EXPECT_FALSE(ask(in_life(1, connection(again))).contains("error"));
  EXPECT_EQ(ask(in_life(1, {{"do", "renew"}}))["channels"].size(), 1u);
  EXPECT_THAT(ask(in_life(0, {{"do", "renew"}}))["error"].get<std::string>(), HasSubstr("started again"));
  EXPECT_EQ(json::parse(stage.status_json())["channels"].size(), 1u);
}

TEST_F(CowbirdStageTest, LetsGoOfWhatASilentOwnerHasAttached) {
  attach("host1");
  attach("host2");
  for (int i = 0; i < 4; ++i) {
    now = now + CowbirdStage::kLease / 3;
    ask({{"do", "renew"}}, "host2");
    stage.on_deadline(now, nowhere);
  }
  const json channels = json::parse(stage.status_json())["channels"];
  ASSERT_EQ(channels.size(), 1u);
  EXPECT_EQ(channels[0]["owner"], "host2");
}

}  // namespace
}  // namespace sluice::rack
