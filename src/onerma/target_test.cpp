// A target alone, at a port that may be full, and requests from initiators that are not there.
#include "onerma/target.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "onerma/test_world.h"

namespace sluice::onerma {
namespace {

constexpr std::uint64_t kBase = 0x10000;

struct Sink final : port::FrameSink {
  std::uint8_t* reserve(std::size_t) override { return full ? nullptr : frame.data(); }
  void commit(std::size_t length) override {
    Message message;
    ASSERT_EQ(parse(ByteView(frame).first(length), message), Verdict::kOk);
    ++sent[message.header.kind];
    if (message.header.kind == Kind::kPull) {
      pulls.push_back(message.header);
      pulled_from.push_back(frame[5]);
    }
    if (message.header.kind == Kind::kCompletion) completed.push_back(message.header.status);
  }

  bool full = false;
  std::array<std::uint8_t, port::kMaxFrame> frame{};
  std::map<Kind, int> sent;
  std::vector<Header> pulls;
  std::vector<int> pulled_from;  // the MAC's last byte
  std::vector<Status> completed;
};

struct TargetWorld {
  explicit TargetWorld(NodeConfig config = {}) : node(at(config, 1)) {
    region = node.regions().add(memory, kBase, memory::kAllAccess, test_key(1)).value();
    sealer.set_key(node.regions().grant(region, kInitiator, {Rights::kAll})->key);
  }
  static NodeConfig at(NodeConfig config, std::uint8_t number) {
    config.mac = wire::MacAddress{{2, 0, 0, 0, 1, number}};
    config.ip = wire::Ipv4Address{0x0A4D0100u + number};
    config.boot = Boot(number);
    return config;
  }
  void be(InitiatorId who) {
    initiator = who;
    sealer.set_key(node.regions().grant(region, who, {Rights::kAll})->key);
  }
  Header header_of(Kind kind, std::uint64_t op) const {
    return {.kind = kind,
            .rights = {Rights::kAll},
            .op = OpId(op << 16),
            .initiator = initiator,
            .region = region,
            .generation = Generation(1),
            .boot = Boot(2)};
  }
  void send(const Header& header, ByteView body) {
    std::vector<std::uint8_t> frame(FrameWriter::frame_size(body.size()));
    const NodeConfig from = at({}, 2);
    const wire::MacAddress mac = sender.value_or(from.mac);
    FrameWriter(mac, from.ip, kUdpPort).write(frame.data(), node.address(), header, body.size());
    std::ranges::copy(body, frame.begin() + kBodyOffset);
    if (header.plain) {
      write_checksum(frame.data(), body.size());
    } else {
      sealer.seal(frame.data(), header, body.size());
    }
    node.on_frame(now, {frame.data(), static_cast<std::uint32_t>(frame.size())});
  }
  void request(Kind kind, std::uint64_t op, std::uint32_t length) {
    std::array<std::uint8_t, kRequestBody> body{};
    RequestBody{kBase, length}.write(body.data());
    send(header_of(kind, op), body);
  }
  // The data that the last pull asked for.
  void send_data(std::uint32_t length) {
    const Header& pull = sink.pulls.back();
    Header header = header_of(Kind::kData, pull.op.value >> 16);
    header.place = pull.place;
    header.pull_boot = pull.boot;
    header.counter = pull.counter;
    send(header, std::vector<std::uint8_t>(length));
  }
  void flush() {
    while (node.poll_transmit(now, sink)) {
    }
  }
  void pass(Duration time) {
    now = now + time;
    if (node.next_deadline() <= now) node.on_deadline(now);
    flush();
  }
  const TargetCounters& counters() { return node.target().counters(); }

  static constexpr InitiatorId kInitiator{9};
  InitiatorId initiator = kInitiator;
  Node node;
  std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(1 << 16);
  RegionId region{};
  Sealer sealer;
  Sink sink;
  Time now = Time::at(Duration::milliseconds(1));
  std::optional<wire::MacAddress> sender;  // in place of the initiator's
};

TEST(Target, PullsWhoseTimeIsOverBeforeThePortHasRoomAreNotSent) {
  TargetWorld w;
  w.sink.full = true;
  std::uint64_t op = 0;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 14; ++i) w.request(Kind::kWriteRequest, ++op, 4096);
    w.flush();
    w.pass(Duration::microseconds(26));
  }
  for (int i = 0; i < 14; ++i) w.request(Kind::kWriteRequest, ++op, 4096);
  w.sink.full = false;
  w.flush();
  EXPECT_EQ(w.sink.pulls.size(), 14u);
  EXPECT_LE(w.sink.pulls.size() * FrameWriter::frame_size(4096), w.node.window().limit());
  EXPECT_EQ(w.counters().pull_timeouts, 280u);
  EXPECT_EQ(w.counters().dropped, 0u);
  w.send_data(4096);
  w.flush();
  EXPECT_EQ(w.sink.completed, std::vector{Status::kOk});
}

TEST(Target, AReadThatItsKeyHasLeftIsCountedOnceHoweverOftenAFullPortIsTried) {
  TargetWorld w;
  w.sink.full = true;
  w.request(Kind::kReadRequest, 1, 64);
  ASSERT_TRUE(w.node.regions().rekey(w.region, test_key(2)));
  for (int i = 0; i < 5; ++i) w.flush();
  EXPECT_EQ(w.counters().old_key, 0u);
  w.sink.full = false;
  w.flush();
  EXPECT_EQ(w.sink.completed, std::vector{Status::kBadKey});
  EXPECT_EQ(w.counters().old_key, 1u);
  EXPECT_EQ(w.counters().reads, 0u);
}

TEST(Target, APullIsNotSentAtTheMomentAtWhichItsTimeIsOver) {
  TargetWorld w;
  w.sink.full = true;
  w.request(Kind::kWriteRequest, 1, 64);
  w.now = w.now + Duration::microseconds(25);
  w.sink.full = false;
  w.flush();  // before anybody has looked at deadlines
  EXPECT_EQ(w.sink.pulls.size(), 0u);
  w.pass({});
  EXPECT_EQ(w.node.target().open_pulls(), 0u);
  EXPECT_EQ(w.node.window().used(), 0u);
}

TEST(Target, SmallReadsAreShedBeforeTheyFillTheQueueAndWhatEndsAWriteHasAPlace) {
  NodeConfig config;
  config.target.nack_bytes = 4 << 20;
  TargetWorld w(config);
  w.request(Kind::kWriteRequest, 1, 64);
  w.flush();
  ASSERT_EQ(w.sink.pulls.size(), 1u);
  w.sink.full = true;
  for (std::uint64_t op = 2; op < 3002; ++op) w.request(Kind::kReadRequest, op, 64);
  EXPECT_EQ(w.counters().nacks, 3000u - 2048u);
  EXPECT_EQ(w.counters().dropped, 0u);
  // Now NACKs, too, find no place any more.
  for (std::uint64_t op = 3002; op < 10'002; ++op) w.request(Kind::kReadRequest, op, 64);
  EXPECT_EQ(w.counters().dropped, 10'000u - 3072u);
  const std::uint64_t dropped = w.counters().dropped;
  w.send_data(64);
  EXPECT_EQ(w.counters().writes, 1u);
  EXPECT_EQ(w.counters().dropped, dropped);
  w.sink.full = false;
  w.flush();
  EXPECT_EQ(w.sink.completed, std::vector{Status::kOk});
  EXPECT_EQ(w.sink.sent[Kind::kReadResponse], 2048);
  EXPECT_EQ(w.sink.sent[Kind::kRefusal], 1024);
}

TEST(Target, ReplaysOfOneRequestHoldOnePlace) {
  TargetWorld w;
  for (int i = 0; i < 1000; ++i) w.request(Kind::kWriteRequest, 1, 4096);
  w.flush();
  EXPECT_EQ(w.sink.pulls.size(), 1u);
  EXPECT_EQ(w.node.window().used(), FrameWriter::frame_size(4096));
  EXPECT_EQ(w.counters().doubled, 999u);
  // Others have their places, and it has none again when its time is over: its initiator has given it up.
  w.request(Kind::kWriteRequest, 2, 4096);
  w.flush();
  EXPECT_EQ(w.sink.pulls.size(), 2u);
  w.pass(Duration::microseconds(26));
  for (int i = 0; i < 10; ++i) w.request(Kind::kWriteRequest, 1, 4096);
  w.flush();
  EXPECT_EQ(w.sink.pulls.size(), 2u);
  EXPECT_EQ(w.counters().requests_again, 10u);
  EXPECT_EQ(w.node.target().open_pulls(), 0u);
}

// 35 bytes are answered for each one that asks: nobody without a key is to have that twice.
TEST(Target, AReadThatIsReplayedIsNotAnsweredAgain) {
  TargetWorld w;
  for (int i = 0; i < 1000; ++i) {
    w.request(Kind::kReadRequest, 1, 4096);
    w.flush();
  }
  EXPECT_EQ(w.sink.sent[Kind::kReadResponse], 1);
  EXPECT_EQ(w.counters().requests_again, 999u);
  // Whoever else asks, and whatever else it asks itself, has its answer.
  w.request(Kind::kReadRequest, 2, 4096);
  w.be(InitiatorId(10));
  w.request(Kind::kReadRequest, 1, 4096);
  w.flush();
  EXPECT_EQ(w.sink.sent[Kind::kReadResponse], 3);
}

// A derived key's place in the cache goes to whoever names another one, with a forged tag: what has been seen does not hang on that.
TEST(Target, ForgedRequestsDoNotMakeItForgetWhatItHasSeen) {
  NodeConfig config;
  config.cached_keys = 1;
  config.target.remembered = 1;
  TargetWorld w(config);
  w.request(Kind::kReadRequest, 1, 64);
  Header forged = w.header_of(Kind::kReadRequest, 2);
  forged.initiator = InitiatorId(10);
  w.send(forged, std::array<std::uint8_t, kRequestBody>{});
  EXPECT_EQ(w.counters().forged, 1u);
  w.request(Kind::kReadRequest, 1, 64);
  w.flush();
  EXPECT_EQ(w.sink.sent[Kind::kReadResponse], 1);
  EXPECT_EQ(w.counters().requests_again, 1u);
}

// Nor do plain requests, whose numbers anybody may make up, where they are obeyed; of those themselves nothing is known.
TEST(Target, PlainRequestsAreNotToldFromReplaysAndKeepNoSealedOnesOut) {
  NodeConfig config;
  config.allow_plain = true;
  TargetWorld w(config);
  Header plain = w.header_of(Kind::kReadRequest, 1'000'000);
  plain.plain = true;
  std::array<std::uint8_t, kRequestBody> body{};
  RequestBody{kBase, 64}.write(body.data());
  w.send(plain, body);
  w.send(plain, body);
  w.request(Kind::kReadRequest, 1, 64);
  w.flush();
  EXPECT_EQ(w.sink.sent[Kind::kReadResponse], 3);
  EXPECT_EQ(w.counters().requests_again, 0u);
}

// What was shed has not been seen: its copy may find less before it.
TEST(Target, ARequestThatWasShedIsNoReplayWhenItComesAgain) {
  NodeConfig config;
  config.target.nack_bytes = 1;
  TargetWorld w(config);
  w.request(Kind::kReadRequest, 1, 64);
  w.request(Kind::kReadRequest, 2, 64);
  w.flush();
  EXPECT_EQ(w.counters().nacks, 1u);
  w.request(Kind::kReadRequest, 2, 64);
  w.flush();
  EXPECT_EQ(w.sink.sent[Kind::kReadResponse], 2);
}

TEST(Target, ReplaysThatWaitForThePlaceOfTheirFirstAreDroppedAtTheirTurn) {
  NodeConfig config;
  config.target.pulls = 1;
  TargetWorld w(config);
  w.request(Kind::kWriteRequest, 1, 64);
  for (int i = 0; i < 10; ++i) w.request(Kind::kWriteRequest, 2, 64);
  w.request(Kind::kWriteRequest, 3, 64);
  w.flush();
  w.send_data(64);
  w.flush();
  w.send_data(64);  // of the second: what repeats it makes way for the third
  w.flush();
  ASSERT_EQ(w.sink.pulls.size(), 3u);
  EXPECT_EQ(w.sink.pulls.back().op, OpId(std::uint64_t{3} << 16));
  EXPECT_EQ(w.counters().doubled, 9u);
}

TEST(Target, ReplaysOfAWriteThatIsOverDoNotStandInLine) {
  NodeConfig config;
  config.target.pulls = 1;
  TargetWorld w(config);
  w.request(Kind::kWriteRequest, 1, 64);
  w.flush();
  w.send_data(64);
  for (std::uint64_t other = 10; other < 13; ++other) {  // the first has the place, the others wait for it
    w.be(InitiatorId(other));
    w.request(Kind::kWriteRequest, 1, 64);
  }
  w.be(TargetWorld::kInitiator);
  for (std::uint64_t i = 1; i <= 100; ++i) {
    w.request(Kind::kWriteRequest, 1, 64);
    ASSERT_EQ(w.counters().requests_again, i);
  }
}

TEST(Target, ACopyThatStillStandsInLineWhenItsFirstIsOverHasNoPullOfItsOwn) {
  NodeConfig config;
  config.target.pulls = 1;
  TargetWorld w(config);
  w.request(Kind::kWriteRequest, 1, 64);
  w.be(InitiatorId(10));
  for (int i = 0; i < 2; ++i) w.request(Kind::kWriteRequest, 2, 64);
  w.be(InitiatorId(11));
  for (std::uint64_t op = 3; op < 5; ++op) w.request(Kind::kWriteRequest, op, 64);
  w.flush();
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_EQ(w.sink.pulls.size(), i + 1);
    w.be(w.sink.pulls.back().initiator);
    w.send_data(64);
    w.flush();
  }
  EXPECT_EQ(w.sink.pulls.size(), 4u);
  EXPECT_EQ(w.counters().writes, 4u);
  EXPECT_EQ(w.counters().doubled, 0u);
  EXPECT_EQ(w.counters().requests_again, 1u);
}

// Its MAC is not authenticated: a captured request that is sent on from another one, and comes first, does not take the genuine one's place.
TEST(Target, ARequestThatACopyFromAnotherMacHasOvertakenIsPulledToo) {
  for (const bool is_queued : {false, true}) {
    NodeConfig config;
    config.target.pulls = 1;
    TargetWorld w(config);
    if (is_queued) w.request(Kind::kWriteRequest, 1, 64);
    w.sender = wire::MacAddress{{2, 0, 0, 0, 1, 66}};
    w.request(Kind::kWriteRequest, 2, 64);
    w.sender.reset();
    w.request(Kind::kWriteRequest, 2, 64);
    w.flush();
    if (is_queued) w.send_data(64);
    w.flush();
    ASSERT_GE(w.sink.pulls.size(), 2u);
    const std::size_t last = w.sink.pulls.size() - 1;
    EXPECT_EQ(w.sink.pulled_from[last - 1], 66);
    EXPECT_EQ(w.sink.pulled_from[last], 2);
    EXPECT_EQ(w.sink.pulls[last].place, w.sink.pulls[last - 1].place);
    EXPECT_EQ(w.sink.pulls[last].counter, w.sink.pulls[last - 1].counter);
    EXPECT_EQ(w.node.target().open_pulls(), 1u);
    EXPECT_EQ(w.node.window().used(), FrameWriter::frame_size(64));
    EXPECT_EQ(w.counters().pulls, is_queued ? 2u : 1u);
    w.send_data(64);
    w.flush();
    EXPECT_EQ(w.counters().writes, is_queued ? 2u : 1u);
    EXPECT_EQ(w.node.target().open_pulls(), 0u);
  }
}

TEST(Target, PullsLeaveAPlaceForWhatEndsTheirWrites) {
  NodeConfig config;
  config.target.queue = 8;
  TargetWorld w(config);
  w.request(Kind::kWriteRequest, 1, 64);
  w.flush();
  ASSERT_EQ(w.sink.pulls.size(), 1u);
  w.sink.full = true;
  for (std::uint64_t op = 2; op < 12; ++op) w.request(Kind::kWriteRequest, op, 64);
  w.send_data(64);
  w.sink.full = false;
  w.flush();
  EXPECT_EQ(w.sink.completed, std::vector{Status::kOk});
  EXPECT_EQ(w.sink.pulls.size(), 11u);
  EXPECT_EQ(w.counters().dropped, 0u);
}

// Place and counter of every pull are in clear: whoever has a key of his own could name them.
TEST(Target, DataThatAreNotThePulledOnesOwnAreAReplayWhateverKeyTheyCarry) {
  TargetWorld w;
  std::vector<std::uint8_t> theirs(1 << 12, 0x77);
  const RegionId other = w.node.regions().add(theirs, kBase, memory::kAllAccess, test_key(2)).value();
  w.request(Kind::kWriteRequest, 1, 64);
  w.flush();
  ASSERT_EQ(w.sink.pulls.size(), 1u);
  const Header& pull = w.sink.pulls.back();
  Header good = w.header_of(Kind::kData, 1);
  good.place = pull.place;
  good.pull_boot = pull.boot;
  good.counter = pull.counter;
  const std::vector<std::uint8_t> evil(64, 0xEE);
  const auto before = w.memory;
  const auto refused = [&](const Header& h) {
    w.sealer.set_key(w.node.regions().grant(h.region, h.initiator, h.rights)->key);
    const auto replays = w.counters().replays;
    w.send(h, evil);
    EXPECT_EQ(w.counters().replays, replays + 1);
    EXPECT_EQ(w.memory, before);
    EXPECT_EQ(w.node.target().open_pulls(), 1u);
  };
  Header h = good;
  h.initiator = InitiatorId(10);
  refused(h);
  h = good;
  h.region = other;
  refused(h);
  h = good;
  h.rights = kMayWrite;
  refused(h);
  h = good;
  h.op = OpId(2 << 16);
  refused(h);
  h = good;
  h.pull_boot = Boot(99);
  refused(h);
  h = good;
  h.initiator = InitiatorId(10);
  h.region = other;
  h.rights = kMayRead;  // not even the right to write
  h.op = OpId(7 << 16);
  refused(h);
  w.sealer.set_key(w.node.regions().grant(w.region, TargetWorld::kInitiator, {Rights::kAll})->key);
  w.send(good, evil);
  EXPECT_EQ(w.memory[0], 0xEE);
}

// A target that obeys plain clients, too, does not take plain data for what it has asked a sealed one for, nor those of another generation.
TEST(Target, DataMustBeOfTheGenerationAndTheFormOfWhatWasAskedFor) {
  NodeConfig config;
  config.allow_plain = true;
  TargetWorld w(config);
  w.request(Kind::kWriteRequest, 1, 64);
  w.flush();
  ASSERT_EQ(w.sink.pulls.size(), 1u);
  const Header& pull = w.sink.pulls.back();
  Header header = w.header_of(Kind::kData, 1);
  header.place = pull.place;
  header.pull_boot = pull.boot;
  header.counter = pull.counter;
  header.plain = true;
  w.send(header, std::vector<std::uint8_t>(64, 0xEE));
  EXPECT_EQ(w.counters().replays, 1u);
  header.plain = false;
  header.generation = Generation(2);
  ASSERT_TRUE(w.node.regions().rekey(w.region, test_key(3)));
  w.sealer.set_key(w.node.regions().grant(w.region, TargetWorld::kInitiator, {Rights::kAll})->key);
  w.send(header, std::vector<std::uint8_t>(64, 0xEE));
  EXPECT_EQ(w.counters().replays, 2u);
  EXPECT_EQ(w.counters().writes, 0u);
  EXPECT_EQ(w.memory[0], 0);
}

// A tenant that asks for as many writes as it can, and gives no data; another one, eight writes at a time.
TEST(Target, WhoGivesNoDataKeepsNobodyElseFromWriting) {
  constexpr InitiatorId kSilent{9}, kHonest{10};
  for (const std::uint32_t length : {64u, 4096u}) {
    TargetWorld w;
    std::uint64_t op = 0;
    int open = 0;
    std::size_t looked = 0;
    for (int round = 0; round < 100; ++round) {  // 1 ms
      w.be(kSilent);
      for (int i = 0; i < 100; ++i) w.request(Kind::kWriteRequest, ++op, length);
      w.be(kHonest);
      for (; open < 8; ++open) w.request(Kind::kWriteRequest, ++op, 4096);
      w.flush();
      const std::vector<Header> pulls(w.sink.pulls.begin() + static_cast<std::ptrdiff_t>(looked), w.sink.pulls.end());
      looked = w.sink.pulls.size();
      for (const Header& pull : pulls) {
        if (pull.initiator != kHonest) continue;
        Header header = w.header_of(Kind::kData, pull.op.value >> 16);
        header.place = pull.place;
        header.pull_boot = pull.boot;
        header.counter = pull.counter;
        w.send(header, std::vector<std::uint8_t>(4096));
        --open;
      }
      w.pass(Duration::microseconds(10));
    }
    EXPECT_GT(w.counters().writes, 200u) << "beside " << length;
  }
}

// Nor is who asks for one thing at a time kept waiting by who gives nothing for all that he has asked: one operation's room is never his.
TEST(Target, WhoGivesNoDataDoesNotMakeWhoComesThenWaitForATimeOut) {
  constexpr InitiatorId kSilent{9}, kHonest{10};
  for (const std::uint32_t length : {0u, 64u, 4096u}) {
    TargetWorld w;
    std::uint64_t op = 0;
    w.be(kSilent);
    for (int i = 0; i < 300; ++i) w.request(Kind::kWriteRequest, ++op, length);
    w.flush();
    w.be(kHonest);
    for (int i = 0; i < 100; ++i) {  // no time passes
      w.request(Kind::kWriteRequest, ++op, 4096);
      w.flush();
      ASSERT_EQ(w.sink.pulls.back().initiator, kHonest) << length;
      w.send_data(4096);
      w.flush();
    }
    EXPECT_EQ(w.counters().writes, 100u);
    EXPECT_EQ(w.counters().pull_timeouts, 0u);
  }
}

TEST(Target, WhoIsAloneHasAllOfTheWindowButAnOperationsRoomAndWhoComesThenIsNext) {
  TargetWorld w;
  std::uint64_t op = 0;
  w.be(InitiatorId(10));
  w.request(Kind::kWriteRequest, ++op, 64);
  w.flush();
  w.send_data(64);
  w.be(InitiatorId(9));
  for (int i = 0; i < 30; ++i) w.request(Kind::kWriteRequest, ++op, 4096);
  w.flush();
  EXPECT_EQ(w.node.target().open_pulls(), 14u);
  w.be(InitiatorId(10));
  w.request(Kind::kWriteRequest, ++op, 4096);
  w.request(Kind::kWriteRequest, ++op, 4096);
  w.flush();
  ASSERT_EQ(w.sink.pulls.back().initiator, InitiatorId(10));
  ASSERT_EQ(w.node.target().open_pulls(), 15u);
  const std::size_t pulled = w.sink.pulls.size();
  w.send_data(4096);
  w.flush();
  ASSERT_EQ(w.sink.pulls.size(), pulled + 1);
  EXPECT_EQ(w.sink.pulls.back().initiator, InitiatorId(10));
}

// Whoever is asked first in that turn.
TEST(Target, RoomThatAReadNoLongerWantsIsForAPullInTheSameTurn) {
  for (int first = 0; first < 2; ++first) {
    NodeConfig config;
    config.window_bytes = 2 * static_cast<std::uint32_t>(FrameWriter::frame_size(4096));
    TargetWorld w(config);
    const NodeConfig other = TargetWorld::at({}, 2);
    const GrantId grant = w.node.initiator().add_grant(
        {.mac = other.mac, .ip = other.ip}, *w.node.regions().grant(w.region, InitiatorId(1), {Rights::kAll}));
    std::vector<std::uint8_t> local(4096);
    CompletionRing ring(4);
    for (int i = 0; i < first; ++i) w.node.poll_transmit(w.now, w.sink);
    w.request(Kind::kWriteRequest, 1, 4096);  // over after 25 us
    w.pass(Duration::microseconds(5));
    w.request(Kind::kWriteRequest, 2, 4096);  // after 30
    w.pass(Duration::microseconds(15));
    ASSERT_TRUE(w.node.initiator().issue(w.now, {.op = OpKind::kRead,
                                                 .grant = grant,
                                                 .address = kBase,
                                                 .local = local,
                                                 .completions = &ring}));  // waits for no more than 10
    for (std::uint64_t op = 3; op < 5; ++op) w.request(Kind::kWriteRequest, op, 4096);
    w.flush();
    w.now = w.now + Duration::microseconds(5);
    w.node.on_deadline(w.now);
    w.request(Kind::kWriteRequest, 5,
              4096);  // the third takes what is free, while the read waits: it is the read's turn now
    w.flush();
    ASSERT_EQ(w.sink.pulls.size(), 3u);
    w.now = w.now + Duration::microseconds(5);
    w.node.on_deadline(w.now);
    ASSERT_FALSE(ring.empty());
    EXPECT_TRUE(w.node.poll_transmit(w.now, w.sink));
    EXPECT_EQ(w.sink.pulls.size(), 4u);
  }
}

// Whoever is asked first in that turn: nobody calls again before something comes.
TEST(Target, APullWhoseRegionHasGoneMakesWayForTheNextInTheSameTurn) {
  for (int first = 0; first < 2; ++first) {
    NodeConfig config;
    config.target.pulls = 1;
    TargetWorld w(config);
    std::vector<std::uint8_t> others(1 << 12);
    const RegionId other = w.node.regions().add(others, kBase, memory::kAllAccess, test_key(2)).value();
    for (int i = 0; i < first; ++i) w.node.poll_transmit(w.now, w.sink);
    w.sink.full = true;
    Header header = w.header_of(Kind::kWriteRequest, 1);
    header.region = other;
    w.sealer.set_key(w.node.regions().grant(other, TargetWorld::kInitiator, {Rights::kAll})->key);
    std::array<std::uint8_t, kRequestBody> body{};
    RequestBody{kBase, 64}.write(body.data());
    w.send(header, body);
    w.flush();
    w.be(TargetWorld::kInitiator);
    w.request(Kind::kWriteRequest, 2, 64);
    ASSERT_TRUE(w.node.regions().remove(other));
    w.sink.full = false;
    EXPECT_TRUE(w.node.poll_transmit(w.now, w.sink));
    ASSERT_EQ(w.sink.pulls.size(), 1u);
    EXPECT_EQ(w.sink.pulls[0].region, w.region);
  }
}

TEST(Target, OneInitiatorDoesNotFillTheLinesOfOthers) {
  NodeConfig config;
  config.target.pulls = 1;
  config.target.nack_bytes = 1 << 30;
  TargetWorld w(config);
  std::uint64_t op = 0;
  for (int i = 0; i < 5000; ++i) w.request(Kind::kWriteRequest, ++op, 0);
  EXPECT_GT(w.counters().nacks, 2000u);
  const std::uint64_t nacks = w.counters().nacks;
  w.be(InitiatorId(10));
  for (int i = 0; i < 500; ++i) w.request(Kind::kWriteRequest, ++op, 0);
  EXPECT_EQ(w.counters().nacks, nacks);
}

}  // namespace
}  // namespace sluice::onerma
