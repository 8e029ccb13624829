// An initiator alone, and a target that holds the key and says what no target would: what it takes for an answer, and what it does not.
#include "onerma/initiator.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "onerma/test_world.h"

namespace sluice::onerma {
namespace {

struct Sink final : port::FrameSink {
  std::uint8_t* reserve(std::size_t) override { return frame.data(); }
  void commit(std::size_t length) override { ASSERT_EQ(parse(ByteView(frame).first(length), last), Verdict::kOk); }
  std::array<std::uint8_t, port::kMaxFrame> frame{};
  Message last;
};

struct InitiatorWorld {
  InitiatorWorld() { sealer.set_key(grant.key); }

  void issue(OpKind op, std::size_t length = 64) {
    ASSERT_TRUE(initiator.issue(
        now, {.op = op, .grant = id, .local = MutableBytes(local).first(length), .completions = &ring}));
    send();
  }
  void send() { ASSERT_TRUE(initiator.poll_transmit(now, sink)); }
  // Of the frame that was sent last.
  Header answer(Kind kind, Status status = Status::kOk) const {
    Header header = sink.last.header;
    header.kind = kind;
    header.status = status;
    header.boot = Boot(7);
    header.pull_boot = Boot();
    header.counter = 1;
    header.of_data = kind == Kind::kCompletion && sink.last.header.kind == Kind::kData;
    return header;
  }
  void say(const Header& header, std::vector<std::uint8_t> body = {}, wire::Ipv4Address from = kTarget.ip) {
    if (header.kind == Kind::kRefusal) {
      body.resize(kRefusalBody);
      Echo::of(sink.frame.data(), sink.last.body_length).write(body.data());
    }
    std::vector<std::uint8_t> frame(FrameWriter::frame_size(body.size()));
    FrameWriter(kTarget.mac, from, kUdpPort).write(frame.data(), kSelf, header, body.size());
    std::ranges::copy(body, frame.begin() + kBodyOffset);
    if (header.plain || header.kind == Kind::kRefusal) {
      write_checksum(frame.data(), body.size());
    } else {
      sealer.seal(frame.data(), header, body.size());
    }
    Message message;
    ASSERT_EQ(parse(frame, message), Verdict::kOk);
    initiator.on_message(now, frame, message);
  }
  void pull() { say(answer(Kind::kPull)); }
  std::uint64_t mismatched() const { return initiator.counters().mismatched; }

  static constexpr Peer kSelf{wire::MacAddress{{2, 0, 0, 0, 1, 1}}, wire::Ipv4Address{0x0A4D0101u}, kUdpPort};
  static constexpr Peer kTarget{wire::MacAddress{{2, 0, 0, 0, 1, 2}}, wire::Ipv4Address{0x0A4D0102u}, kUdpPort};
  Grant grant = make_grant(RegionKey(test_key(1)), RegionId(5), Generation(1), InitiatorId(9), {Rights::kAll});
  SolicitationWindow window{64 << 10};
  Initiator initiator{{.mac = kSelf.mac, .ip = kSelf.ip, .boot = Boot(1)}, window};
  GrantId id = initiator.add_grant(kTarget, grant);
  Sealer sealer;
  CompletionRing ring{16};
  std::array<std::uint8_t, 256> local{};
  Sink sink;
  Time now = Time::at(Duration::milliseconds(1));
};

TEST(Initiator, AnAnswerOfAnotherLengthThanAskedForIsNotCopied) {
  InitiatorWorld w;
  w.issue(OpKind::kRead);
  for (const std::size_t length : {65u, 63u, 0u})
    w.say(w.answer(Kind::kReadResponse), std::vector<std::uint8_t>(length, 0xEE));
  EXPECT_EQ(w.mismatched(), 3u);
  EXPECT_EQ(w.local, (std::array<std::uint8_t, 256>{}));
  EXPECT_TRUE(w.ring.empty());
  w.say(w.answer(Kind::kReadResponse), std::vector<std::uint8_t>(64, 0xEE));
  EXPECT_EQ(w.ring.pop().status, Status::kOk);
  EXPECT_EQ(w.local[63], 0xEE);
  EXPECT_EQ(w.local[64], 0);
}

TEST(Initiator, WhatIsNotOfItsNodeInitiatorOrFormIsNoAnswer) {
  InitiatorWorld w;
  w.issue(OpKind::kRead);
  const std::vector<std::uint8_t> body(64, 0xEE);
  const Header good = w.answer(Kind::kReadResponse);
  w.say(good, body, wire::Ipv4Address{0x0A4D0103u});
  Header other = good;
  other.initiator = InitiatorId(10);
  w.say(other, body);
  other = good;
  other.plain = true;
  w.say(other, body);
  other = good;
  other.region = RegionId(6);
  w.say(other, body);
  other = good;
  other.generation = Generation(2);
  w.say(other, body);
  EXPECT_EQ(w.mismatched(), 5u);
  EXPECT_EQ(w.local[0], 0);
  EXPECT_TRUE(w.ring.empty());
}

TEST(Initiator, ARefusalInClearSaysLittleAndNothingOfWhatWasPulled) {
  InitiatorWorld w;
  w.issue(OpKind::kWrite);
  for (const Status status :
       {Status::kDispatchTimeout, Status::kTimeout, Status::kBadBounds, Status::kRightMissing, Status::kReplay})
    w.say(w.answer(Kind::kRefusal, status));
  EXPECT_EQ(w.mismatched(), 5u);
  EXPECT_TRUE(w.ring.empty());
  const auto request = w.sink;
  w.pull();
  w.say(w.answer(Kind::kRefusal, Status::kNack));
  EXPECT_EQ(w.mismatched(), 6u);
  w.send();  // its data
  w.sink = request;
  w.say(w.answer(Kind::kRefusal, Status::kBadKey));
  EXPECT_EQ(w.mismatched(), 7u);
  EXPECT_TRUE(w.ring.empty());
}

TEST(Initiator, AWriteIsNotDoneBeforeItsDataHaveLeft) {
  InitiatorWorld w;
  w.issue(OpKind::kWrite);
  w.say(w.answer(Kind::kCompletion, Status::kOk));
  EXPECT_EQ(w.mismatched(), 1u);
  w.pull();
  w.say(w.answer(Kind::kCompletion, Status::kOk));
  EXPECT_EQ(w.mismatched(), 2u);
  EXPECT_TRUE(w.ring.empty());
  w.send();
  w.say(w.answer(Kind::kCompletion, Status::kOk));
  EXPECT_EQ(w.ring.pop().status, Status::kOk);
}

TEST(Initiator, TimeOutsAreItsOwnToTell) {
  InitiatorWorld w;
  w.issue(OpKind::kRead);
  w.say(w.answer(Kind::kCompletion, Status::kTimeout));
  w.say(w.answer(Kind::kCompletion, Status::kDispatchTimeout));
  EXPECT_EQ(w.mismatched(), 2u);
  EXPECT_TRUE(w.ring.empty());
}

TEST(Initiator, APullForAReadIsNotObeyed) {
  InitiatorWorld w;
  w.issue(OpKind::kRead);
  w.pull();
  EXPECT_EQ(w.mismatched(), 1u);
  EXPECT_FALSE(w.initiator.poll_transmit(w.now, w.sink));
}

}  // namespace
}  // namespace sluice::onerma
