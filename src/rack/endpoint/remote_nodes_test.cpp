#include "rack/endpoint/remote_nodes.h"

#include <gtest/gtest.h>

#include "rc/two_adapters.h"

namespace sluice::rack {
namespace {

constexpr std::uint16_t kPort = 7471;

// A client and a memory node on one cable.
class RemoteNodesTest : public testing::Test {
 protected:
  RemoteNodesTest() {
    EXPECT_TRUE(server_.listen(kPort, [this](Time now, const rc::ConnectionEvent& request) {
      rc::Host& host = world_.b;
      rc::QueuePair* const pair =
          host.adapter
              ->create_queue_pair(
                  {.pd = host.pd, .send_completions = host.completions, .receive_completions = host.completions})
              .value();
      EXPECT_TRUE(server_.accept(now, request.id, {.pair = pair}, [this](Time, const rc::ConnectionEvent& event) {
        disconnected_ |= event.kind == rc::ConnectionEvent::Kind::kDisconnected;
      }));
    }));
  }
  static Snapshot with_node() {
    return {.revision = 1,
            .nodes = {{.description = {.name = "memory1", .kind = NodeKind::kMemory, .cm_port = kPort},
                       .state = NodeState::kReady,
                       .id = remote::NodeId(1),
                       .ip = wire::Ipv4Address{0x0A4D0002},
                       .incarnation = 1}}};
  }
  template <class Condition>
  bool run_until(Condition condition) {
    return world_.run_until(
        [&] {
          client_.poll(world_.now);
          server_.poll(world_.now);
          nodes_.poll(world_.now);
          return condition();
        },
        1000);
  }

  rc::TwoAdapters world_;
  nic::Connector client_{*world_.a.adapter};
  nic::Connector server_{*world_.b.adapter};
  remote::Scheduler scheduler_;
  RemoteNodes nodes_{client_, scheduler_, {.depth = 16}};
  bool disconnected_ = false;
};

TEST_F(RemoteNodesTest, TellsANodeThatItLetsGoOfUntilItAnswers) {
  world_.now = Time::at(Duration::seconds(1000));
  nodes_.set_nodes(world_.now, with_node());
  ASSERT_TRUE(run_until([&] { return nodes_.up() == 1; }));
  nodes_.set_nodes(world_.now, {});
  EXPECT_EQ(nodes_.nodes(), 0u);
  world_.a.turn(world_.now);
  port::Frame lost[8];
  ASSERT_EQ(world_.b.port->receive(world_.now, lost), 1u);
  EXPECT_TRUE(run_until([&] { return disconnected_; }));
}

}  // namespace
}  // namespace sluice::rack
