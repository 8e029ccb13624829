// A host's stack against what no peer that keeps to the rules would send. What it does among its like: sim/edm_testbed_test.cpp.
#include "edm/host_stack.h"

#include <gtest/gtest.h>

namespace sluice::edm {
namespace {

constexpr PortId kPeer{1};

struct Host {
  std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(4096, 7);
  HostStack stack{{.port = PortId(0)}, memory};
  Time now;

  // All that the stack has to say by now.
  std::vector<UnitKind> said() {
    now = now + Duration::microseconds(1);
    std::vector<UnitKind> kinds;
    for (Unit unit; stack.poll(now, unit);) kinds.push_back(unit.kind);
    return kinds;
  }
  void comes(const Unit& unit) { stack.take(now, now, unit); }
};

TEST(EdmHostStack, GrantsOfNothingOrOfTooMuchAreStrays) {
  for (const std::uint32_t bytes : {0u, kMaxChunkBytes + 1}) {
    Host host;
    ASSERT_TRUE(host.stack.write(host.now, kPeer, 0, std::vector<std::uint8_t>(8192)));
    EXPECT_EQ(host.said(), std::vector{UnitKind::kNotify});
    host.comes({.kind = UnitKind::kGrant, .port = kPeer, .bytes = 256, .data = {}});
    EXPECT_EQ(host.said(), std::vector{UnitKind::kWrite});
    host.comes({.kind = UnitKind::kRead, .port = kPeer, .id = MessageId(3), .bytes = 600, .address = 0, .data = {}});
    EXPECT_EQ(host.said(), std::vector{UnitKind::kResponse});
    host.comes({.kind = UnitKind::kGrant, .port = kPeer, .bytes = bytes, .data = {}});
    host.comes(
        {.kind = UnitKind::kGrant, .port = kPeer, .id = MessageId(3), .bytes = bytes, .of_response = true, .data = {}});
    EXPECT_TRUE(host.said().empty());
    EXPECT_EQ(host.stack.strays(), 2u);
  }
}

TEST(EdmHostStack, AnAnswerLongerThanWhatWasAskedForIsAStray) {
  Host host;
  ASSERT_TRUE(host.stack.read(host.now, kPeer, 0, 64, 5));
  EXPECT_EQ(host.said().size(), 1u);
  const std::vector<std::uint8_t> data(256, 9);
  host.comes({.kind = UnitKind::kResponse, .port = kPeer, .bytes = 256, .data = data});
  Done done;
  EXPECT_FALSE(host.stack.poll_done(done));
  EXPECT_EQ(host.stack.strays(), 1u);
  host.comes({.kind = UnitKind::kResponse, .port = kPeer, .bytes = 64, .data = ByteView(data).first(64)});
  ASSERT_TRUE(host.stack.poll_done(done));
  EXPECT_EQ(done.data.size(), 64u);
  EXPECT_FALSE(done.null);
}

}  // namespace
}  // namespace sluice::edm
