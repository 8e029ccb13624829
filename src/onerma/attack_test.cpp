// Somebody on the wire who sees every frame and may send any, but has no key.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "onerma/test_world.h"

namespace sluice::onerma {
namespace {

constexpr std::uint64_t kBase = 0x10000;
constexpr std::size_t kSize = 16384;
constexpr std::size_t kAddresses = wire::EthernetHeader::kSize + 12;

using Bytes = std::vector<std::uint8_t>;

class NullSink final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t) override { return bytes_.data(); }
  void commit(std::size_t length) override {
    last_.assign(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(length));
  }
  const Bytes& last() const { return last_; }

 private:
  std::array<std::uint8_t, port::kMaxFrame> bytes_{};
  Bytes last_;
};

// Lengths and checksum of the network's headers are no secret.
void mend(Bytes& frame) {
  std::uint8_t* const ip = frame.data() + wire::EthernetHeader::kSize;
  const auto length = static_cast<std::uint16_t>(frame.size() - wire::EthernetHeader::kSize);
  store_be(ip + 2, length);
  store_be(ip + 24, static_cast<std::uint16_t>(length - wire::Ipv4Header::kSize));
  store_be(ip + 10, wire::ipv4_checksum(ip));
}

// Two initiators, two regions of one target, and all that went over the wire for two of each operation.
struct Scene {
  explicit Scene(const NodeConfig& config = {})
      : a(world.add_host()), b(world.add_host()), target(world.add_host(config)) {
    world.set_tap([this](MutableBytes frame) {
      seen.emplace_back(frame.begin(), frame.end());
      return !lose_answers || frame[5] == 3;
    });
    for (std::size_t r = 0; r < 2; ++r) {
      regions.push_back(target.node->regions().add(memory[r], kBase, memory::kAllAccess, test_key(r)).value());
    }
    std::uint64_t number = 1;
    for (World::Host* host : {&a, &b}) {
      for (std::size_t r = 0; r < 2; ++r) {
        const Grant grant = *target.node->regions().grant(regions[r], InitiatorId(number++), {Rights::kAll});
        const GrantId id = host->node->initiator().add_grant(target.node->address(), grant);
        run(*host, id, OpKind::kRead);
        run(*host, id, OpKind::kWrite);
      }
    }
    // Under a key that is now the one before.
    Secret fresh = test_key(40);
    run(a, GrantId(0), OpKind::kRekey, fresh.mutable_bytes());
    a.node->initiator().replace_grant(GrantId(0),
                                      *target.node->regions().grant(regions[0], InitiatorId(1), {Rights::kAll}));
    run(a, GrantId(0), OpKind::kWrite);
  }

  void run(World::Host& host, GrantId grant, OpKind op, MutableBytes local = {}) {
    if (local.empty()) local = buffer;
    ASSERT_TRUE(host.node->initiator().issue(
        world.now, {.op = op, .grant = grant, .address = kBase, .local = local, .completions = &ring}));
    ASSERT_TRUE(world.run_until([&] { return !ring.empty(); }));
    ASSERT_EQ(ring.pop().status, Status::kOk);
  }
  // Takes all answers that nodes want to send.
  void drain() {
    for (World::Host* host : {&a, &b, &target}) {
      while (host->node->poll_transmit(world.now, sink)) {
      }
    }
  }
  World::Host& addressee(const Bytes& frame) { return world.host(std::size_t{frame[5]} - 1); }
  void deliver(const Bytes& frame) {
    World::Host& to = addressee(frame);
    scratch = frame;
    to.node->on_frame(world.now, {scratch.data(), static_cast<std::uint32_t>(scratch.size())});
  }
  // Everything that says no.
  std::uint64_t refused() {
    std::uint64_t n = 0;
    for (World::Host* host : {&a, &b, &target}) {
      for (std::size_t v = 1; v < kVerdictCount; ++v) n += host->node->frames(static_cast<Verdict>(v));
      const auto& i = host->node->initiator().counters();
      n += i.stray + i.unauthentic + i.mismatched;
      const auto& t = host->node->target().counters();
      n += t.forged + t.old_key + t.plain_refused + t.replays + t.nacks;
    }
    return n;
  }

  World world;
  World::Host& a;
  World::Host& b;
  World::Host& target;
  Bytes memory[2] = {Bytes(kSize, 0x11), Bytes(kSize, 0x22)};
  std::vector<RegionId> regions;
  Bytes buffer = Bytes(64, 0x33);
  CompletionRing ring{64};
  std::vector<Bytes> seen;
  Bytes scratch;
  NullSink sink;
  bool lose_answers = false;
};

Kind kind_of(const Bytes& frame) { return static_cast<Kind>(frame[kNetworkSize + 1]); }

// A frame that nobody with a key has made: one of those seen, changed where it is authenticated.
Bytes forge(Rng& rng, const std::vector<Bytes>& seen, Bytes& base) {
  base = seen[rng.below(seen.size())];
  Bytes frame = base;
  const auto at = [&](std::size_t offset) -> std::uint8_t& { return frame[offset]; };
  switch (rng.below(7)) {
    case 0:  // flipped bits
      for (std::uint64_t n = 1 + rng.below(8); n != 0; --n) {
        const std::size_t byte = kNetworkSize + rng.below(frame.size() - kNetworkSize);
        at(byte) = static_cast<std::uint8_t>(at(byte) ^ 1u << rng.below(8));
      }
      break;
    case 1: {  // the header of one, the body and tag of another
      const Bytes& other = seen[rng.below(seen.size())];
      frame.resize(kBodyOffset);
      frame.insert(frame.end(), other.begin() + kBodyOffset, other.end());
      break;
    }
    case 2: {  // one header field, of another frame
      constexpr std::pair<std::size_t, std::size_t> kFields[] = {{3, 1},  {6, 2},  {8, 8},  {16, 8},
                                                                 {24, 4}, {28, 4}, {32, 4}, {40, 8}};
      const auto [offset, length] = kFields[rng.below(std::size(kFields))];
      const Bytes& other = seen[rng.below(seen.size())];
      std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(kNetworkSize + offset), length,
                  frame.begin() + static_cast<std::ptrdiff_t>(kNetworkSize + offset));
      break;
    }
    case 3: {  // a tag cut short
      const std::size_t cut = 1 + rng.below(kTagSize);
      frame.resize(frame.size() - cut);
      break;
    }
    case 4:  // a body and tag out of thin air
      for (std::size_t i = kBodyOffset; i < frame.size(); ++i) at(i) = static_cast<std::uint8_t>(rng.next());
      break;
    case 5:  // said to come from elsewhere, to be answered there
      at(kAddresses + rng.below(4)) = static_cast<std::uint8_t>(rng.next());
      break;
    default:  // as if plain
      at(kNetworkSize + 2) = 1;
      write_checksum(frame.data(), frame.size() - kOverhead);
      break;
  }
  mend(frame);
  return frame;
}

TEST(OnermaAttack, AMillionForgeriesAreRefusedAndCounted) {
  Scene s;
  // Operations that are open while answers are forged.
  const auto first = s.seen;
  s.lose_answers = true;
  Bytes open_bytes(64, 0x44);
  for (const OpKind op : {OpKind::kRead, OpKind::kWrite}) {
    ASSERT_TRUE(s.a.node->initiator().issue(
        s.world.now, {.op = op, .grant = GrantId(1), .address = kBase, .local = open_bytes, .completions = &s.ring}));
  }
  s.world.round();
  s.world.round();
  s.drain();
  const auto memory0 = s.memory[0], memory1 = s.memory[1];
  const auto writes = s.target.node->target().counters().writes;
  const auto rekeys = s.target.node->target().counters().rekeys;
  const std::uint64_t before = s.refused();
  Rng rng(8);
  std::uint64_t forged = 0;
  std::map<Kind, int> kinds;
  while (forged < 1'000'000) {
    Bytes base;
    const Bytes frame = forge(rng, s.seen, base);
    if (frame.size() < kNetworkSize + 2 || frame == base || std::ranges::find(s.seen, frame) != s.seen.end()) continue;
    s.deliver(frame);
    ++kinds[kind_of(frame)];
    ++forged;
    if (forged % 64 == 0) s.drain();
  }
  EXPECT_EQ(s.refused() - before, forged);
  EXPECT_EQ(s.memory[0], memory0);
  EXPECT_EQ(s.memory[1], memory1);
  EXPECT_EQ(open_bytes, Bytes(64, 0x44));
  EXPECT_EQ(s.target.node->target().counters().writes, writes);
  EXPECT_EQ(s.target.node->target().counters().rekeys, rekeys);
  EXPECT_TRUE(s.ring.empty()) << "an operation ended by a forgery";
  EXPECT_EQ(s.a.node->initiator().slots().open(), 2u);
  for (std::uint8_t k = 1; k < 8; ++k) EXPECT_GT(kinds[static_cast<Kind>(k)], 1000) << int{k};
}

TEST(OnermaAttack, ReplaysOfAllThatWasEverSentChangeNothing) {
  Scene s;
  s.drain();
  const auto recorded = s.seen;
  s.memory[0].assign(kSize, 0x55);
  s.memory[1].assign(kSize, 0x66);
  const auto before = s.target.node->target().counters();
  const auto strays = s.a.node->initiator().counters().stray + s.b.node->initiator().counters().stray;
  Rng rng(4);
  for (int round = 0; round < 200; ++round) {
    const Bytes& frame = recorded[rng.below(recorded.size())];
    s.world.inject(frame);
    s.world.run_for(Duration::microseconds(static_cast<std::int64_t>(rng.below(40))));
  }
  s.world.run_for(Duration::milliseconds(1));
  const auto& after = s.target.node->target().counters();
  EXPECT_EQ(s.memory[0], Bytes(kSize, 0x55));
  EXPECT_EQ(s.memory[1], Bytes(kSize, 0x66));
  EXPECT_EQ(after.writes, before.writes);
  EXPECT_EQ(after.rekeys, before.rekeys);
  EXPECT_GT(after.replays, before.replays);  // data
  EXPECT_EQ(after.pull_timeouts, before.pull_timeouts);
  EXPECT_EQ(after.reads, before.reads);
  EXPECT_GT(after.requests_again, before.requests_again);
  EXPECT_GT(after.old_key, before.old_key);
  EXPECT_GT(s.a.node->initiator().counters().stray + s.b.node->initiator().counters().stray, strays);
  EXPECT_EQ(s.target.node->target().open_pulls(), 0u);
}

// A write is done, its completion lost, the region's key replaced: a replay of the request is answered with "bad key", which says that nothing
// happened.
TEST(OnermaAttack, AReplayedRequestDoesNotUndoWhatItsDataDid) {
  Scene scene;
  World::Host& host = scene.b;
  scene.seen.clear();
  bool lost = false;
  scene.world.set_tap([&](MutableBytes frame) {
    scene.seen.emplace_back(frame.begin(), frame.end());
    const bool completion = kind_of(scene.seen.back()) == Kind::kCompletion;
    lost = lost || completion;
    return !completion;
  });
  Bytes bytes(64, 0x77);
  ASSERT_TRUE(host.node->initiator().issue(
      scene.world.now,
      {.op = OpKind::kWrite, .grant = GrantId(1), .address = kBase, .local = bytes, .completions = &scene.ring}));
  ASSERT_TRUE(scene.world.run_until([&] { return lost; }));
  EXPECT_EQ(scene.memory[1][0], 0x77);
  const Bytes request = scene.seen.front();
  ASSERT_EQ(kind_of(request), Kind::kWriteRequest);
  ASSERT_TRUE(scene.target.node->regions().rekey(scene.regions[1], test_key(77)));
  scene.world.set_tap([](MutableBytes) { return true; });
  const std::uint64_t before = host.node->initiator().counters().mismatched;
  scene.world.inject(request);
  ASSERT_TRUE(scene.world.run_until([&] { return !scene.ring.empty(); }));
  EXPECT_EQ(scene.ring.pop().status, Status::kTimeout);
  EXPECT_EQ(host.node->initiator().counters().mismatched, before + 1);
}

// Of two initiators where one is remembered, each in turn, so that either has been forgotten when it comes again.
TEST(OnermaAttack, AReplayedReadThatIsAnsweredIsUnderANonceOfItsOwn) {
  NodeConfig forgetful;
  forgetful.target.remembered = 1;
  Scene s(forgetful);
  s.drain();
  std::vector<Bytes> requests;
  for (const Bytes& frame : s.seen) {
    Message message;
    ASSERT_EQ(parse(frame, message), Verdict::kOk);
    const bool is_good = message.header.region == s.regions[1];  // the other's key has changed
    if (message.header.kind == Kind::kReadRequest && is_good) requests.push_back(frame);
  }
  ASSERT_EQ(requests.size(), 2u);
  std::set<Bytes> answers, nonces;
  for (int i = 0; i < 10'000; ++i) {
    s.deliver(requests[static_cast<std::size_t>(i) % 2]);
    ASSERT_TRUE(s.target.node->poll_transmit(s.world.now, s.sink) || s.target.node->poll_transmit(s.world.now, s.sink));
    Message message;
    ASSERT_EQ(parse(s.sink.last(), message), Verdict::kOk);
    ASSERT_EQ(message.header.kind, Kind::kReadResponse);
    const Nonce nonce = nonce_of(message.header);
    nonces.insert({nonce.begin(), nonce.end()});
    answers.insert({s.sink.last().begin() + kBodyOffset, s.sink.last().end()});
  }
  EXPECT_EQ(nonces.size(), 10'000u);
  EXPECT_EQ(answers.size(), 10'000u);
}

// Over everything that was sealed in a whole conversation, with losses and retries.
TEST(OnermaAttack, NoNonceIsUsedTwiceUnderOneKey) {
  port::Impairment bad;
  bad.drop = 50'000;
  World world(3, bad);
  World::Host& a = world.add_host();
  World::Host& target = world.add_host();
  Bytes memory(kSize);
  const RegionId region = target.node->regions().add(memory, kBase, memory::kAllAccess, test_key(1)).value();
  const Algorithm1 policy;
  RemoteOnerma client(world.scheduler, a.node->initiator(), policy, {});
  client.add_node(remote::NodeId(0), target.node->address());
  client.add_grant(remote::NodeId(0), *target.node->regions().grant(region, InitiatorId(1), {Rights::kAll}));
  a.clients.push_back(&client);
  std::set<Bytes> nonces;
  std::uint64_t sealed = 0;
  world.set_tap([&](MutableBytes frame) {
    Message message;
    if (parse(frame, message) != Verdict::kOk || message.header.kind == Kind::kRefusal) return true;
    const Nonce nonce = nonce_of(message.header);
    nonces.insert({nonce.begin(), nonce.end()});
    ++sealed;
    return true;
  });
  const auto work = [&]() -> remote::Task<void> {
    Bytes bytes(10'000);
    for (int i = 0; i < 100; ++i) {
      const remote::RemoteAddress at{remote::NodeId(0), remote::RegionKey(region.value), kBase};
      co_await client.write(at, bytes);
      co_await client.read(at, bytes);
    }
  };
  world.scheduler.spawn(work());
  ASSERT_TRUE(world.run_until([&] { return world.scheduler.live() == 0; }));
  EXPECT_GT(sealed, 1500u);
  EXPECT_EQ(nonces.size(), sealed);
}

TEST(OnermaAttack, ARefusalInClearMustRepeatWhatOnlyASeerOfTheRequestKnows) {
  Scene s;
  s.lose_answers = true;
  Bytes bytes(64);
  ASSERT_TRUE(s.a.node->initiator().issue(
      s.world.now,
      {.op = OpKind::kRead, .grant = GrantId(1), .address = kBase, .local = bytes, .completions = &s.ring}));
  const std::size_t sent = s.seen.size();
  ASSERT_TRUE(s.world.run_until([&] { return s.seen.size() > sent; }));
  Message request;
  ASSERT_EQ(parse(s.seen[sent], request), Verdict::kOk);
  const auto refuse = [&](const Echo& echo) {
    Header header = request.header;
    header.kind = Kind::kRefusal;
    header.status = Status::kNack;
    header.counter = 1;
    const FrameWriter writer(s.target.config.mac, s.target.config.ip, kUdpPort);
    Bytes frame(FrameWriter::frame_size(kRefusalBody));
    writer.write(frame.data(), s.a.node->address(), header, kRefusalBody);
    echo.write(frame.data() + kBodyOffset);
    write_checksum(frame.data(), kRefusalBody);
    s.deliver(frame);
  };
  const Echo echo = Echo::of(s.seen[sent].data(), kRequestBody);
  for (std::uint64_t i = 1; i <= 999; ++i) refuse({echo.tag_end + i, echo.checksum});
  refuse({echo.tag_end, echo.checksum + 1});
  EXPECT_TRUE(s.ring.empty());
  EXPECT_EQ(s.a.node->initiator().counters().unauthentic, 1000u);
  refuse(echo);
  EXPECT_EQ(s.ring.pop().status, Status::kNack);
}

// Who has a key to the same region, with all rights, still cannot open what another one says or is told; whom it is meant for can.
TEST(OnermaAttack, AnotherInitiatorOfTheRegionOpensNothingOfWhatIsNotIts) {
  Scene scene;
  std::vector<Sealer> keys;  // of every initiator and region, as Scene grants them
  for (std::uint64_t number = 1; number <= 4; ++number) {
    const RegionKey key(test_key((number - 1) % 2));
    keys.emplace_back(key.derive(scene.regions[(number - 1) % 2], InitiatorId(number), {Rights::kAll}));
  }
  std::uint64_t opened = 0, tried = 0;
  for (const Bytes& frame : scene.seen) {
    Message message;
    ASSERT_EQ(parse(frame, message), Verdict::kOk);
    if (message.header.kind == Kind::kRefusal || message.header.generation != Generation(1)) continue;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      Bytes copy = frame;
      const bool right = keys[i].open(copy.data(), message.header, message.body_length);
      EXPECT_EQ(right, message.header.initiator == InitiatorId(i + 1));
      opened += right ? 1u : 0u;
      ++tried;
    }
  }
  EXPECT_GT(opened, 20u);
  EXPECT_EQ(tried, 4 * opened);
}

}  // namespace
}  // namespace sluice::onerma
