#include "rack/switch/port_labels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "switching/host_stage.h"

namespace sluice::rack {
namespace {

// A switch with two ports, a directory, and what the metrics of both are labelled with.
class PortLabelsTest : public ::testing::Test {
 protected:
  PortLabelsTest() {
    report_.ports.emplace_back().number = switching::PortNumber{0};
    report_.ports.emplace_back().number = switching::PortNumber{1};
  }

  static wire::MacAddress mac(std::uint8_t last) { return wire::MacAddress{{2, 0, 0, 0, 0, last}}; }

  void join(std::uint8_t last, NodeKind kind = NodeKind::kMemory) {
    NodeRecord& node = nodes_.nodes.emplace_back();
    node.description = {.name = std::string(kind == NodeKind::kClient ? "client" : "node") + std::to_string(last),
                        .kind = kind};
    node.state = NodeState::kReady;
    node.mac = mac(last);
  }
  NodeRecord& node(std::uint8_t last) { return *std::ranges::find(nodes_.nodes, mac(last), &NodeRecord::mac); }
  void forget(std::uint8_t last) {
    std::erase_if(nodes_.nodes, [&](const NodeRecord& node) { return node.mac == mac(last); });
  }

  void see(std::uint8_t last, std::uint16_t port = 0) {
    age(last);
    report_.macs.push_back({.mac = mac(last), .port = switching::PortNumber{port}, .seen = Time()});
  }
  void age(std::uint8_t last) {
    std::erase_if(report_.macs, [&](const auto& entry) { return entry.mac == mac(last); });
  }

  std::string label(std::uint16_t port = 0) { return labels_.look(report_, &nodes_)[switching::PortNumber{port}]; }

  SwitchReport report_;
  Snapshot nodes_;
  PortLabels labels_;
};

TEST_F(PortLabelsTest, ProgramsThatShareANodesNicAreThatNode) {
  join(1, NodeKind::kClient);
  for (const std::uint8_t place : std::array<std::uint8_t, 2>{1, 255}) {
    report_.macs.push_back({switching::HostStage::mac_at(mac(1), place), switching::PortNumber{0}, Time()});
  }
  EXPECT_EQ(label(), "client1");
}

TEST_F(PortLabelsTest, APortThatSeveralNodesShareNamesThemAllUpToFour) {
  EXPECT_EQ(label(), "");
  join(2);
  see(2);
  see(0);  // nobody's
  EXPECT_EQ(label(), "node2");
  join(1, NodeKind::kMetadata);
  see(1);
  EXPECT_EQ(label(), "node1,node2");
  for (std::uint8_t last = 3; last <= 9; ++last) {
    join(last);
    see(last);
  }
  EXPECT_EQ(label(), "node1,node2,node3,node4,...");
}

TEST_F(PortLabelsTest, OneThatIsSilentStaysUntilTheDirectoryForgetsIt) {
  for (std::uint8_t last = 1; last <= 2; ++last) {
    join(last);
    see(last);
  }
  ASSERT_EQ(label(), "node1,node2");
  age(1);
  EXPECT_EQ(label(), "node1,node2");
  forget(1);
  EXPECT_EQ(label(), "node2");
  EXPECT_EQ(label(), "node2");
}

TEST_F(PortLabelsTest, OneThatIsGoneStaysWhileItsAddressIsKnown) {
  join(1);
  see(1);
  node(1).state = NodeState::kGone;
  EXPECT_EQ(label(), "node1");
  age(1);
  EXPECT_EQ(label(), "") << "the port may be another's by now";
}

TEST_F(PortLabelsTest, OneThatIsSeenElsewhereHasMoved) {
  join(1);
  see(1, 0);
  EXPECT_EQ(label(0), "node1");
  see(1, 1);
  EXPECT_EQ(label(0), "");
  EXPECT_EQ(label(1), "node1");
}

TEST_F(PortLabelsTest, OneWhosePortIsGoneIsNowhere) {
  join(1);
  see(1, 1);
  ASSERT_EQ(label(1), "node1");
  age(1);
  const auto port = report_.ports.back();
  report_.ports.pop_back();
  EXPECT_EQ(label(1), "");
  report_.ports.push_back(port);
  EXPECT_EQ(label(1), "") << "who has that number now is another";
}

TEST_F(PortLabelsTest, ClientsThatComeAndGoChangeNoNameOfAServersPort) {
  join(3);
  see(3);
  join(1, NodeKind::kClient);
  see(1);
  EXPECT_EQ(label(), "node3");
  age(3);
  EXPECT_EQ(label(), "node3") << "silent, and the client is not";
  forget(1);
  EXPECT_EQ(label(), "node3");
  join(2, NodeKind::kClient);
  see(2, 1);
  EXPECT_EQ(label(1), "client2") << "nobody else is there";
}

TEST_F(PortLabelsTest, WhatWasKnownHoldsWhileTheDirectoryDoesNotAnswer) {
  join(1);
  see(1);
  ASSERT_EQ(label(), "node1");
  EXPECT_EQ(labels_.look(report_, nullptr)[switching::PortNumber{0}], "node1");
}

}  // namespace
}  // namespace sluice::rack
