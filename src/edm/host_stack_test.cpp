// A host's stack against what no peer that keeps to the rules would send. What it does among its like: sim/edm/edm_testbed_test.cpp.
#include "edm/host_stack.h"

#include <gtest/gtest.h>

#include <map>

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

TEST(EdmHostStack, WhatIsForAnotherHostIsAStray) {
  Host host;
  ASSERT_TRUE(host.stack.read(host.now, kPeer, 0, 8, 5));
  const std::vector<std::uint8_t> data(8, 9);
  host.comes({.kind = UnitKind::kWrite, .port = PortId(2), .bytes = 8, .address = 16, .data = data});
  host.comes({.kind = UnitKind::kResponse, .port = kPeer, .to = PortId(2), .bytes = 8, .data = data});
  host.comes({.kind = UnitKind::kNull, .port = kPeer, .to = PortId(2), .data = {}});
  EXPECT_EQ(host.memory[16], 7);
  Done done;
  EXPECT_FALSE(host.stack.poll_done(done));
  EXPECT_EQ(host.stack.strays(), 3u);
}

// However many X keeps back, of a node that answers nothing; another one is read meanwhile.
TEST(EdmHostStack, EveryReadEndsWithItsOwnTimer) {
  std::vector<std::uint8_t> memory(64);
  HostStack stack({.port = PortId(0), .read_timer = Duration::microseconds(100), .active_per_pair = 3}, memory);
  const Time second = Time::at(Duration::microseconds(40));
  for (std::uint64_t tag = 0; tag < 60; ++tag) ASSERT_TRUE(stack.read(tag < 30 ? Time{} : second, kPeer, 0, 8, tag));
  ASSERT_TRUE(stack.read(second, PortId(2), 0, 8, 100));
  std::map<std::uint64_t, Time> ended;
  for (Time now; (now = stack.next_deadline()) != Time::never();) {
    stack.on_deadline(now);
    for (Unit unit; stack.poll(now, unit);) {
      if (unit.port != PortId(2)) continue;
      const std::vector<std::uint8_t> data(8, 9);
      stack.take(
          now, now,
          {.kind = UnitKind::kResponse, .port = unit.port, .id = unit.id, .bytes = 8, .last = true, .data = data});
    }
    for (Done done; stack.poll_done(done);) {
      EXPECT_EQ(done.null, done.tag != 100);
      EXPECT_TRUE(ended.try_emplace(done.tag, now).second);
    }
  }
  ASSERT_EQ(ended.size(), 61u);
  for (const auto& [tag, when] : ended) {
    if (tag != 100) {
      EXPECT_EQ(when, (tag < 30 ? Time{} : second) + Duration::microseconds(100)) << tag;
    }
  }
}

// One that comes so late that all 256 ids have been used must not be taken for another read's.
TEST(EdmHostStack, AnAnswerIsNeverTakenForThatOfALaterReadWithTheSameId) {
  Host host;
  ASSERT_TRUE(host.stack.read(host.now, kPeer, 0, 64, 0));
  const auto over = [&](std::uint64_t tag) {
    host.now = host.stack.next_deadline();
    host.stack.on_deadline(host.now);
    Done done;
    return host.stack.poll_done(done) && done.tag == tag && done.null;
  };
  EXPECT_EQ(host.said().size(), 1u);
  ASSERT_TRUE(over(0));
  for (std::uint64_t tag = 1; tag < 256; ++tag) {
    ASSERT_TRUE(host.stack.read(host.now, kPeer, tag * 64, 64, tag));
    ASSERT_EQ(host.said().size(), 1u);
    ASSERT_TRUE(over(tag));
  }
  // No id is left: it is not sent, and ends as the others.
  ASSERT_TRUE(host.stack.read(host.now, kPeer, 0x8000, 64, 256));
  EXPECT_TRUE(host.said().empty());
  const std::vector<std::uint8_t> data(64, 9);
  const auto answer = [&](std::uint8_t id) {
    host.comes(
        {.kind = UnitKind::kResponse, .port = kPeer, .id = MessageId(id), .bytes = 64, .last = true, .data = data});
  };
  answer(0);
  Done done;
  EXPECT_FALSE(host.stack.poll_done(done));
  EXPECT_EQ(host.stack.strays(), 1u);
  ASSERT_TRUE(over(256));
  // Now the first id is free again, and no other one.
  ASSERT_TRUE(host.stack.read(host.now, kPeer, 64, 64, 257));
  ASSERT_TRUE(host.stack.read(host.now, kPeer, 64, 64, 258));
  EXPECT_EQ(host.said().size(), 1u);
  // An answer to the newest: none of the others comes any more.
  answer(0);
  ASSERT_TRUE(host.stack.poll_done(done));
  EXPECT_EQ(done.tag, 257u);
  EXPECT_FALSE(done.null);
  for (std::uint64_t tag = 0; tag < 255; ++tag) ASSERT_TRUE(host.stack.read(host.now, kPeer, 64, 64, tag));
  EXPECT_EQ(host.said().size(), 255u);
  EXPECT_FALSE(host.stack.read(host.now, kPeer, 64, 64, 255));  // 256 are under way
}

// A node answers each grant of a read that it refuses, so a NULL does not say that no more of its read comes.
TEST(EdmHostStack, ASecondNullIsNeverTakenForTheAnswerToALaterReadWithTheSameId) {
  Host host;
  const auto over = [&](std::uint64_t tag) {
    host.now = host.stack.next_deadline();
    host.stack.on_deadline(host.now);
    Done done;
    return host.stack.poll_done(done) && done.tag == tag && done.null;
  };
  const Unit null{.kind = UnitKind::kNull, .port = kPeer, .id = MessageId(0), .data = {}};
  ASSERT_TRUE(host.stack.read(host.now, kPeer, 0, 600, 0));
  EXPECT_EQ(host.said().size(), 1u);
  ASSERT_TRUE(over(0));
  host.comes(null);
  for (std::uint64_t tag = 1; tag < 256; ++tag) {
    ASSERT_TRUE(host.stack.read(host.now, kPeer, 0, 64, tag));
    ASSERT_EQ(host.said().size(), 1u);
    ASSERT_TRUE(over(tag));
  }
  ASSERT_TRUE(host.stack.read(host.now, kPeer, 0, 64, 256));
  EXPECT_TRUE(host.said().empty());
  host.comes(null);
  Done done;
  EXPECT_FALSE(host.stack.poll_done(done));
  EXPECT_EQ(host.stack.strays(), 2u);
  // What comes of a later one says that it was the last.
  host.comes({.kind = UnitKind::kNull, .port = kPeer, .id = MessageId(1), .data = {}});
  ASSERT_TRUE(host.stack.read(host.now, kPeer, 0, 64, 257));
  EXPECT_EQ(host.said().size(), 1u);
}

// A read that the switch has refused keeps its id until its timer ends, however many others are answered meanwhile.
TEST(EdmHostStack, AReadThatIsNeverAnsweredHoldsUpNoOtherOne) {
  Host host;
  ASSERT_TRUE(host.stack.read(host.now, kPeer, 0, 64, 1'000));
  EXPECT_EQ(host.said().size(), 1u);
  const std::vector<std::uint8_t> data(8, 9);
  for (std::uint64_t tag = 0; tag < 600; ++tag) {
    ASSERT_TRUE(host.stack.modify(host.now, kPeer, 0, ModifyOp::kSwap, 1, 0, tag));
    Unit asked;
    while (!host.stack.poll(host.now, asked)) host.now = host.stack.next_deadline();
    ASSERT_NE(asked.id.value, 0);
    host.comes({.kind = UnitKind::kResponse, .port = kPeer, .id = asked.id, .bytes = 8, .last = true, .data = data});
    Done done;
    ASSERT_TRUE(host.stack.poll_done(done));
    ASSERT_EQ(done.tag, tag);
    ASSERT_FALSE(done.null);
  }
  host.stack.on_deadline(host.stack.next_deadline());
  Done done;
  ASSERT_TRUE(host.stack.poll_done(done));
  EXPECT_EQ(done.tag, 1'000u);
  EXPECT_TRUE(done.null);
}

// A write whose /N/ was lost is never granted: it keeps its id, and costs the others nothing else.
TEST(EdmHostStack, AWriteThatIsNeverGrantedHoldsUpNoOtherOne) {
  for (const std::uint32_t active_per_pair : {0u, 3u}) {
    Host host;
    host.stack = HostStack({.port = PortId(0), .active_per_pair = active_per_pair}, host.memory);
    std::uint64_t granted = 0;
    std::map<std::uint8_t, int> ids;
    // Four at a time, so that with X some begin as others end.
    for (int i = 0; i < 600; ++i) {
      for (int j = 0; j < 4; ++j) ASSERT_TRUE(host.stack.write(host.now, kPeer, 0, std::vector<std::uint8_t>(8)));
      for (bool any = true; any;) {
        any = false;
        std::vector<Unit> asked;
        host.now = host.now + Duration::microseconds(1);
        for (Unit unit; host.stack.poll(host.now, unit);) {
          if (unit.kind == UnitKind::kNotify) asked.push_back(unit);
        }
        for (const Unit& unit : asked) {
          ++ids[unit.id.value];
          if (i == 2 && asked.size() > 1 && &unit == &asked.front()) continue;  // lost
          host.comes({.kind = UnitKind::kGrant, .port = kPeer, .id = unit.id, .bytes = unit.bytes, .data = {}});
          ++granted;
          any = true;
        }
      }
    }
    EXPECT_EQ(host.stack.writes_left(kPeer), granted) << active_per_pair;
    EXPECT_EQ(granted, 600u * 4 - 1);
    EXPECT_EQ(ids.size(), 256u);
    EXPECT_EQ(host.stack.strays(), 0u);
  }
}

TEST(EdmHostStack, AWriteIsRefusedWhenAllMessageIdsAreInUse) {
  Host host;
  for (int i = 0; i < 256; ++i) ASSERT_TRUE(host.stack.write(host.now, kPeer, 0, std::vector<std::uint8_t>(8)));
  EXPECT_FALSE(host.stack.write(host.now, kPeer, 0, std::vector<std::uint8_t>(8)));
  EXPECT_EQ(host.said().size(), 256u);
  host.comes({.kind = UnitKind::kGrant, .port = kPeer, .id = MessageId(7), .bytes = 8, .data = {}});
  ASSERT_TRUE(host.stack.write(host.now, kPeer, 0, std::vector<std::uint8_t>(8)));
  Unit unit;
  while (!host.stack.poll(host.now, unit) || unit.kind != UnitKind::kNotify) host.now = host.stack.next_deadline();
  EXPECT_EQ(unit.id, MessageId(7));
}

}  // namespace
}  // namespace sluice::edm
