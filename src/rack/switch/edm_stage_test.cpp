// EDM's grants on RoCEv2 packets: incast with and without them, order, what must not wait for ever.
#include "rack/switch/edm_stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "base/rng.h"
#include "switching/host_stage.h"

namespace sluice::rack {
namespace {

using switching::Packet;
using wire::Opcode;
using Bytes = std::vector<std::uint8_t>;

wire::MacAddress mac(std::uint32_t host) {
  return {{2, 0, 0, 0, static_cast<std::uint8_t>(host >> 8), static_cast<std::uint8_t>(host & 0xFF)}};
}

// `length` is a READ's or WRITE's, and of what carries data how much.
Bytes frame(std::uint32_t from, std::uint32_t to, Opcode opcode, std::uint32_t length, std::uint32_t psn = 0) {
  const wire::HeaderTemplate headers({.source_mac = mac(from),
                                      .destination_mac = mac(to),
                                      .source = wire::Gid::from(wire::Ipv4Address{0x0A4D0000u + from + 1}),
                                      .destination = wire::Gid::from(wire::Ipv4Address{0x0A4D0000u + to + 1})});
  const wire::OpcodeTraits& traits = wire::opcode_traits(opcode);
  const std::size_t payload = traits.has_payload ? length : 0;
  const std::size_t transport = wire::Bth::kSize + traits.extended_length + payload;
  Bytes bytes(headers.frame_size(transport));
  const std::size_t at = headers.write(bytes.data(), transport);
  wire::Bth bth;
  bth.opcode = opcode;
  bth.destination = wire::Qpn(0x11);
  bth.psn = wire::Psn(psn);
  bth.write(bytes.data() + at);
  if (traits.has(wire::Extended::kReth))
    wire::Reth{0, wire::RKey(1), length}.write(bytes.data() + at + wire::Bth::kSize);
  headers.seal(bytes.data(), at + transport);
  return bytes;
}

Bytes nak(std::uint32_t from, std::uint32_t to, std::uint32_t psn) {
  Bytes bytes = frame(from, to, Opcode::kRcAcknowledge, 0, psn);
  wire::Aeth::nak(0, wire::NakCode::kRemoteAccessError).write(bytes.data() + bytes.size() - 4 - wire::Aeth::kSize);
  return bytes;
}

class Kept final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    space_.resize(length);
    return frames.size() < room ? space_.data() : nullptr;
  }
  void commit(std::size_t length) override {
    frames.emplace_back(space_.begin(), space_.begin() + static_cast<std::ptrdiff_t>(length));
  }
  std::size_t room = 256;
  std::vector<Bytes> frames;

 private:
  Bytes space_;
};

// Hosts on links of one rate around a switch with or without the stage: what waits at its ways out.
class Rack {
 public:
  Rack(const EdmStageSettings& settings, bool granted) : settings_(settings) {
    if (granted) stage = std::make_unique<EdmStage>(settings);
  }

  // A host sends, one frame behind the other.
  void send(std::uint32_t from, Bytes bytes) {
    Time& free = up_[from];
    free = std::max(free, now) + time_of(bytes.size());
    at(free, [this, sent = std::move(bytes)]() mutable { at_switch(sent); });
  }
  void run() {
    while (!events_.empty()) {
      const auto first = events_.begin();
      now = first->first.first;
      const std::function<void()> act = std::move(first->second);
      events_.erase(first);
      act();
    }
  }

  std::unique_ptr<EdmStage> stage;
  Time now = Time::at(Duration::seconds(1));
  std::uint64_t most_queued = 0;  // bytes at a way out
  std::map<std::uint32_t, std::uint64_t> received;
  std::function<void(std::uint32_t to, const Bytes&)> deliver = [](std::uint32_t, const Bytes&) {};
  Duration host_delay = Duration::microseconds(2);
  void at(Time when, std::function<void()> act) { events_.emplace(std::pair{when, order_++}, std::move(act)); }

 private:
  Duration time_of(std::uint64_t bytes) const {
    return Duration::picoseconds(
        static_cast<std::int64_t>((bytes + 24) * 8'000'000'000'000u / settings_.bits_per_second));
  }
  void at_switch(Bytes& bytes) {
    if (!stage) return forward(bytes);
    Kept outbox;
    std::array<Packet, 1> packets{{{{bytes.data(), static_cast<std::uint32_t>(bytes.size())}, {}, {}}}};
    stage->process(now, packets, outbox);
    if (packets[0].action == Packet::Action::kForward) forward(bytes);
    after(outbox);
  }
  void after(Kept& outbox) {
    for (const Bytes& out : outbox.frames) forward(out);
    const Time next = stage->next_deadline();
    const bool comes = next_ > now && next_ <= next && next_ != Time::never();
    if (next == Time::never() || comes) return;
    next_ = std::max(next, now + Duration::nanoseconds(1));
    at(next_, [this] {
      Kept more;
      stage->on_deadline(now, more);
      after(more);
    });
  }
  void forward(const Bytes& bytes) {
    const std::uint32_t to = bytes[4] * 256u + bytes[5];
    Time& free = down_[to];
    free = std::max(free, now) + time_of(bytes.size());
    const auto waits = static_cast<std::uint64_t>((free - now).picoseconds());
    most_queued = std::max(most_queued, waits / 8 * (settings_.bits_per_second / 1'000'000) / 1'000'000);
    received[to] += bytes.size();
    at(free + host_delay, [this, to, bytes] { deliver(to, bytes); });
  }

  EdmStageSettings settings_;
  std::map<std::pair<Time, std::uint64_t>, std::function<void()>> events_;
  std::uint64_t order_ = 0;
  Time next_ = Time::never();
  std::map<std::uint32_t, Time> up_, down_;
};

constexpr std::uint32_t kMtu = 1'024;
constexpr std::uint32_t kLong = 64 << 10;

Opcode place(std::uint32_t i, std::uint32_t of, Opcode first, Opcode middle, Opcode last) {
  return i == 0 ? first : i + 1 == of ? last : middle;
}

// One host reads from eight others at once, each again when it has all, ten times. Returns how long all took.
Duration read_from_eight(Rack& rack, std::uint32_t bytes) {
  const std::uint32_t packets = bytes / kMtu;
  std::map<std::uint32_t, std::uint32_t> rounds;
  rack.deliver = [&](std::uint32_t to, const Bytes& came) {
    const std::uint32_t from = came[10] * 256u + came[11];
    if (to != 0) {
      for (std::uint32_t i = 0; i < packets; ++i)
        rack.send(to, frame(to, 0,
                            place(i, packets, Opcode::kRcReadResponseFirst, Opcode::kRcReadResponseMiddle,
                                  Opcode::kRcReadResponseLast),
                            kMtu));
      return;
    }
    wire::ParsedFrame parsed;
    ASSERT_EQ(wire::parse(came, parsed), wire::Verdict::kOk);
    if (parsed.opcode == Opcode::kRcReadResponseLast && ++rounds[from] < 10)
      rack.send(0, frame(0, from, Opcode::kRcReadRequest, bytes));
  };
  const Time begun = rack.now;
  for (std::uint32_t node = 1; node <= 8; ++node) rack.send(0, frame(0, node, Opcode::kRcReadRequest, bytes));
  rack.run();
  for (std::uint32_t node = 1; node <= 8; ++node) EXPECT_EQ(rounds[node], 10u) << node;
  return rack.now - begun;
}

// For docs/edm.md.
void record(const Rack& plain, const Rack& granted, Duration without, Duration with) {
  testing::Test::RecordProperty("plain_queued_bytes", std::to_string(plain.most_queued));
  testing::Test::RecordProperty("granted_queued_bytes", std::to_string(granted.most_queued));
  testing::Test::RecordProperty("plain_ns", std::to_string(without.nanoseconds()));
  testing::Test::RecordProperty("granted_ns", std::to_string(with.nanoseconds()));
}

TEST(EdmStage, KeepsTheWayToOneReaderOfEightNodesEmptyAndBusy) {
  Rack plain({}, false);
  const Duration without = read_from_eight(plain, kLong);
  Rack granted({}, true);
  const Duration with = read_from_eight(granted, kLong);
  record(plain, granted, without, with);
  EXPECT_GT(plain.most_queued, 6u * kLong);
  EXPECT_LT(granted.most_queued, 16u << 10);
  EXPECT_EQ(granted.stage->counters().reads, 80u);
  EXPECT_EQ(granted.stage->counters().overdue, 0u);
  EXPECT_LT(with.picoseconds(), without.picoseconds() * 110 / 100);
}

TEST(EdmStage, KeepsTheWayToOneNodeOfEightWritersShort) {
  const auto write = [](Rack& rack) {
    for (std::uint32_t i = 0; i < 64; ++i) {
      for (std::uint32_t host = 1; host <= 8; ++host)
        rack.send(host, frame(host, 0,
                              place(i, 64, Opcode::kRcWriteFirst, Opcode::kRcWriteMiddle, Opcode::kRcWriteLast), kMtu));
    }
    const Time begun = rack.now;
    rack.run();
    return rack.now - begun;
  };
  Rack plain({}, false);
  const Duration without = write(plain);
  Rack granted({}, true);
  const Duration with = write(granted);
  record(plain, granted, without, with);
  EXPECT_GT(plain.most_queued, 6u * kLong);
  EXPECT_LT(granted.most_queued, 16u << 10);
  EXPECT_EQ(granted.received[0], plain.received[0]);
  EXPECT_LT(with.picoseconds(), without.picoseconds() * 105 / 100);
}

// Behind each READ there is an atomic, which needs no grant, and in the end what is let go.
TEST(EdmStage, CountsAsWaitedWhatWasGrantedLate) {
  EdmStageSettings settings;
  Rack rack(settings, true);
  for (std::uint32_t node = 1; node <= 8; ++node) {
    rack.send(0, frame(0, node, Opcode::kRcReadRequest, kLong));
    rack.send(0, frame(0, node, Opcode::kRcCompareSwap, 8, 1));
  }
  rack.run();
  EXPECT_EQ(rack.stage->counters().reads, 8u);
  EXPECT_EQ(rack.stage->counters().waited, 7u);
  for (std::uint32_t i = 0; i < 4; ++i) rack.send(9, frame(9, 1, Opcode::kRcReadRequest, 1 << 30, i));
  rack.run();
  EXPECT_EQ(rack.stage->counters().reads, 9u);
  EXPECT_EQ(rack.stage->counters().overdue, 3u);
  EXPECT_EQ(rack.stage->counters().waited, 7u);
}

// Whatever is switched on or off, however little room and patience there is: each frame once, requests of a pair in order.
TEST(EdmStage, LosesNothingAndReordersNoPairsRequests) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Rng rng(seed);
    EdmStageSettings settings;
    settings.frames = 512;
    settings.bits_per_second = 100'000'000 * (1 + rng.below(100));
    settings.hold = Duration::microseconds(static_cast<std::int64_t>(20 + rng.below(2'000)));
    settings.chunk = 4'096 + 8 * rng.below(8'192);
    EdmStage stage(settings);
    constexpr std::uint32_t kHosts = 5;
    constexpr std::array kOpcodes{Opcode::kRcReadRequest, Opcode::kRcWriteOnly,       Opcode::kRcSendOnly,
                                  Opcode::kRcCompareSwap, Opcode::kRcReadRequest,     Opcode::kRcWriteMiddle,
                                  Opcode::kRcAcknowledge, Opcode::kRcReadResponseOnly};
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> sent, seen;
    std::uint64_t in = 0, out = 0;
    const auto forwarded = [&](const Bytes& bytes) {
      ++out;
      wire::ParsedFrame parsed;
      ASSERT_EQ(wire::parse_and_verify(bytes, parsed), wire::Verdict::kOk);
      if (!parsed.traits().is_request) return;
      ASSERT_EQ(wire::get_bth(bytes.data(), parsed).psn, wire::Psn(seen[{bytes[11], bytes[5]}]++)) << seed;
    };
    Time now = Time::at(Duration::seconds(1));
    const auto turn = [&] {
      Kept outbox;
      outbox.room = 1 + rng.below(256);
      stage.on_deadline(now, outbox);
      for (const Bytes& bytes : outbox.frames) forwarded(bytes);
    };
    for (int i = 0; i < 2'000; ++i) {
      now = now + Duration::nanoseconds(static_cast<std::int64_t>(rng.below(3'000)));
      if (rng.below(200) == 0) {
        ASSERT_TRUE(stage.change(rng.below(2) == 0 ? R"({"on":false})" : R"({"on":true})"));
      }
      if (stage.next_deadline() <= now) turn();
      const auto from = static_cast<std::uint32_t>(rng.below(kHosts));
      const auto to = static_cast<std::uint32_t>((from + 1 + rng.below(kHosts - 1)) % kHosts);
      const Opcode opcode = kOpcodes.at(rng.below(kOpcodes.size()));
      const bool request = wire::opcode_traits(opcode).is_request;
      const auto length = static_cast<std::uint32_t>(4 * (1 + rng.below(256)));
      Bytes bytes = frame(from, to, opcode, length, request ? sent[{from, to}]++ : 0);
      Kept outbox;
      std::array<Packet, 1> packets{{{{bytes.data(), static_cast<std::uint32_t>(bytes.size())}, {}, {}}}};
      stage.process(now, packets, outbox);
      ++in;
      if (packets[0].action == Packet::Action::kForward) forwarded(bytes);
      for (const Bytes& made : outbox.frames) forwarded(made);
    }
    for (int i = 0; i < 100'000 && stage.next_deadline() != Time::never(); ++i) {
      now = std::max(now, stage.next_deadline());
      turn();
    }
    ASSERT_EQ(in, out) << seed;
    ASSERT_EQ(stage.held(), 0u) << seed;
    ASSERT_EQ(stage.counters().lost, 0u) << seed;
  }
}

TEST(EdmStage, SendsNoBurstAfterRestNorWhenItIsCalledLate) {
  EdmStage stage({});
  std::vector<Bytes> bytes;
  for (std::uint32_t node = 1; node <= 8; ++node) bytes.push_back(frame(0, node, Opcode::kRcReadRequest, kLong));
  const auto read = [&](Time now, std::size_t count) {
    std::vector<Packet> packets;
    for (std::size_t i = 0; i < count; ++i)
      packets.push_back({{bytes[i].data(), static_cast<std::uint32_t>(bytes[i].size())}, {}, {}});
    Kept outbox;
    stage.process(now, packets, outbox);
    return outbox.frames.size();
  };
  Time now = Time::at(Duration::seconds(1));
  EXPECT_EQ(read(now, 1), 1u);
  for (now = now + Duration::seconds(1); stage.next_deadline() <= now;) {
    Kept outbox;
    stage.on_deadline(now, outbox);
  }
  EXPECT_EQ(read(now, 8), 1u);
  for (std::size_t i = 2; i <= 8; ++i) {
    now = now + Duration::microseconds(500);  // an answer takes 57 us
    Kept outbox;
    stage.on_deadline(now, outbox);
    EXPECT_EQ(outbox.frames.size(), 1u) << i;
  }
}

TEST(EdmStage, LetsGoWhatHasWaitedForTooLong) {
  EdmStageSettings settings;
  settings.bits_per_second = 1'000'000;
  settings.hold = Duration::milliseconds(1);
  Rack rack(settings, true);
  std::uint32_t came = 0;
  rack.deliver = [&](std::uint32_t, const Bytes&) { ++came; };
  // A megabyte at a megabit a second.
  for (std::uint32_t i = 0; i < 5; ++i) rack.send(i + 1, frame(i + 1, 0, Opcode::kRcReadRequest, 1 << 20));
  for (std::uint32_t i = 0; i < 5; ++i) rack.send(9, frame(9, i + 1, Opcode::kRcReadRequest, 1 << 20));
  rack.run();
  EXPECT_EQ(came, 10u);
  EXPECT_GT(rack.stage->counters().overdue, 0u);
  EXPECT_LT(rack.stage->counters().longest, Duration::milliseconds(2));
}

// A host that reads more at once than its link brings within `hold`: the excess goes without a grant, and no more.
TEST(EdmStage, OfTooManyReadsOnlyThoseThatAreOverdueGoWithoutAGrant) {
  const auto read = [](Rack& rack) {
    std::map<std::uint32_t, std::uint32_t> over;
    constexpr std::uint32_t kBytes = 256 << 10;
    constexpr std::uint32_t kPackets = kBytes / kMtu;
    rack.deliver = [&](std::uint32_t host, const Bytes& came) {
      const std::uint32_t peer = came[10] * 256u + came[11];
      for (std::uint32_t i = 0; host != 0 && i < kPackets; ++i) {
        rack.send(host, frame(host, 0,
                              place(i, kPackets, Opcode::kRcReadResponseFirst, Opcode::kRcReadResponseMiddle,
                                    Opcode::kRcReadResponseLast),
                              kMtu));
      }
      wire::ParsedFrame parsed;
      ASSERT_EQ(wire::parse(came, parsed), wire::Verdict::kOk);
      if (parsed.opcode == Opcode::kRcReadResponseLast && ++over[peer] < 30)
        rack.send(0, frame(0, peer, Opcode::kRcReadRequest, kBytes));
    };
    // 32 of them, 7 ms of the link; `hold` is 5.
    for (int each = 0; each < 4; ++each) {
      for (std::uint32_t node = 1; node <= 8; ++node) rack.send(0, frame(0, node, Opcode::kRcReadRequest, kBytes));
    }
    rack.run();
  };
  Rack plain({}, false);
  read(plain);
  Rack granted({}, true);
  read(granted);
  const EdmStage::Counters& counters = granted.stage->counters();
  EXPECT_EQ(granted.received[0], plain.received[0]);
  EXPECT_GT(counters.overdue, 0u);
  EXPECT_GT(counters.reads, counters.overdue);
  EXPECT_LT(granted.most_queued, plain.most_queued / 2);
  RecordProperty("reads", std::to_string(counters.reads));
  RecordProperty("overdue", std::to_string(counters.overdue));
  RecordProperty("plain_queued_bytes", std::to_string(plain.most_queued));
  RecordProperty("granted_queued_bytes", std::to_string(granted.most_queued));
}

// One host's writes to another, a burst and then one at a time, far apart; on both ways there come others' frames, one each `gap`.
// How many of those sent after half of the time take nearly `hold`, and how many went without a grant at any time.
struct Held {
  std::uint64_t late = 0;
  std::uint64_t overdue = 0;
};
Held held_by_others(Duration gap, int burst) {
  Rack rack({}, true);
  const Time begun = rack.now;
  const Duration time = Duration::milliseconds(60);
  std::map<std::uint32_t, Time> sent;
  Held held;
  std::uint32_t came = 0;
  rack.deliver = [&](std::uint32_t to, const Bytes& bytes) {
    if (to != 1 || bytes[11] != 0) return;
    wire::ParsedFrame parsed;
    ASSERT_EQ(wire::parse(bytes, parsed), wire::Verdict::kOk);
    const Time since = sent.at(wire::get_bth(bytes.data(), parsed).psn.value());
    ++came;
    held.late += since > begun + time / 2 && rack.now - since > EdmStageSettings{}.hold * 9 / 10 ? 1u : 0u;
  };
  const auto write = [&](std::uint32_t from, std::uint32_t to, std::uint32_t psn) {
    rack.send(from, frame(from, to, Opcode::kRcWriteOnly, 4'096, psn));
  };
  for (Duration at; at < time; at = at + gap) {
    rack.at(begun + at, [&] { write(0, 2, 0); });
    rack.at(begun + at + Duration::nanoseconds(1'700), [&] { write(3, 1, 0); });
  }
  std::uint32_t psn = 0;
  const auto watched = [&] {
    sent[psn] = rack.now;
    write(0, 1, psn++);
  };
  for (int i = 0; i < burst; ++i) watched();
  for (Duration at; at < time; at = at + Duration::microseconds(1'200)) rack.at(begun + at, watched);
  rack.run();
  EXPECT_EQ(came, psn);
  held.overdue = rack.stage->counters().overdue;
  return held;
}

// A frame takes 3,355 ns.
TEST(EdmStage, ALineOfWritesStaysOverdueNoLongerThanForItsBurst) {
  const Held full = held_by_others(Duration::nanoseconds(3'352), 20);
  EXPECT_GT(full.overdue, 0u);
  EXPECT_EQ(full.late, 0u);
  const Held nearly = held_by_others(Duration::nanoseconds(3'420), 400);
  EXPECT_EQ(nearly.overdue, 0u);
  EXPECT_EQ(nearly.late, 0u);
}

void answer(Rack& rack, std::uint32_t node, std::uint32_t reader, std::uint32_t packets, std::uint32_t psn) {
  for (std::uint32_t i = 0; i < packets; ++i) {
    const Opcode opcode =
        place(i, packets, Opcode::kRcReadResponseFirst, Opcode::kRcReadResponseMiddle, Opcode::kRcReadResponseLast);
    rack.send(node, frame(node, reader, packets == 1 ? Opcode::kRcReadResponseOnly : opcode, kMtu, psn + i));
  }
}

// Host 2 reads 64 KiB of node 1 each millisecond; host 9 sends READs of `bytes` there, one each `gap`, of which node 1 makes what `answers` says.
// How long host 2's requests take to the node.
struct Beside {
  std::uint32_t bytes = 0;
  Duration gap{};
  std::function<void(Rack&, std::uint32_t psn)> answers = [](Rack&, std::uint32_t) {};
  EdmStageSettings settings{};
};
struct Waits {
  Duration median{};
  Duration most{};
  Duration most_later{};  // of those that are sent after 20 ms
  EdmStage::Counters counters{};
};
Waits read_beside(const Beside& beside) {
  Rack rack(beside.settings, true);
  const Time begun = rack.now;
  const Duration time = Duration::milliseconds(60);
  std::map<std::uint32_t, Time> sent;
  std::vector<std::pair<Duration, Time>> took;
  rack.deliver = [&](std::uint32_t host, const Bytes& bytes) {
    wire::ParsedFrame parsed;
    ASSERT_EQ(wire::parse(bytes, parsed), wire::Verdict::kOk);
    if (host != 1) return;
    const std::uint32_t psn = parsed.psn.value();
    if (bytes[11] != 2) return beside.answers(rack, psn);
    took.emplace_back(rack.now - sent.at(psn), sent.at(psn));
    answer(rack, 1, 2, kLong / kMtu, psn);
  };
  std::uint32_t own = 0;
  for (Duration at = Duration::microseconds(100); at < time; at = at + Duration::milliseconds(1), own += 64) {
    rack.at(begun + at, [&rack, &sent, own] {
      sent[own] = rack.now;
      rack.send(2, frame(2, 1, Opcode::kRcReadRequest, kLong, own));
    });
  }
  std::uint32_t others = 0;
  for (Duration at; beside.bytes != 0 && at < time; at = at + beside.gap, others += 8) {
    rack.at(begun + at,
            [&rack, &beside, others] { rack.send(9, frame(9, 1, Opcode::kRcReadRequest, beside.bytes, others)); });
  }
  rack.run();
  EXPECT_EQ(took.size(), 60u);
  Waits out{.counters = rack.stage->counters()};
  for (const auto& [one, since] : took) {
    if (since >= begun + Duration::milliseconds(20)) out.most_later = std::max(out.most_later, one);
  }
  std::ranges::sort(took);
  out.median = took[took.size() / 2].first;
  out.most = took.back().first;
  testing::Test::RecordProperty("median_ns", std::to_string(out.median.nanoseconds()));
  testing::Test::RecordProperty("most_ns", std::to_string(out.most.nanoseconds()));
  testing::Test::RecordProperty("most_later_ns", std::to_string(out.most_later.nanoseconds()));
  return out;
}

constexpr std::uint32_t kGigabyte = 1 << 30;

// A request alone takes 2.2 us, and its NAK as long.
TEST(EdmStage, AReadThatIsRefusedTakesItsPortsAsLongAsItsNakTakes) {
  EXPECT_LT(read_beside({}).most, Duration::microseconds(3));
  const auto refuse = [](Rack& rack, std::uint32_t psn) { rack.send(1, nak(1, 9, psn)); };
  for (const Duration gap : {Duration::milliseconds(13), Duration::microseconds(1'000), Duration::microseconds(100)}) {
    const Waits waits = read_beside({.bytes = kGigabyte, .gap = gap, .answers = refuse});
    EXPECT_LT(waits.most, Duration::microseconds(8));
    EXPECT_EQ(waits.counters.overdue, 0u);
    EXPECT_GT(waits.counters.refused, 3u);
  }
}

// They are over before their NAKs come. A chunk's time is 210 us.
TEST(EdmStage, ReadsThatANodeNeverAnswersTakeNobodysTimeForLong) {
  const auto refuse = [](Rack& rack, std::uint32_t psn) { rack.send(1, nak(1, 9, psn)); };
  const Waits refused = read_beside({.bytes = 1'024, .gap = Duration::nanoseconds(885), .answers = refuse});
  EXPECT_LT(refused.median, Duration::microseconds(3));
  EXPECT_LT(refused.most_later, Duration::microseconds(3));
  EXPECT_LE(refused.counters.overdue, 6u);
  EXPECT_GT(refused.counters.unanswered, 50'000u);
  const Waits silent = read_beside({.bytes = kGigabyte, .gap = Duration::milliseconds(1)});
  EXPECT_LT(silent.most, Duration::microseconds(220));
  EXPECT_EQ(silent.counters.reads - 60, 8u);  // then the node is known to be silent
  const Waits short_ones = read_beside({.bytes = 1'024, .gap = Duration::nanoseconds(885)});
  EXPECT_LT(short_ones.most_later, Duration::microseconds(3));
}

// A turn that is late has several grants at once; with the first of them the node is known to be silent.
TEST(EdmStage, ANodeMayBecomeSilentInTheMidstOfATurnsGrants) {
  EdmStage stage({});
  const Time begun = Time::at(Duration::seconds(1));
  std::size_t left = 0;
  const auto read = [&](Duration at, std::uint32_t host, std::uint32_t bytes) {
    Bytes request = frame(host, 1, Opcode::kRcReadRequest, bytes);
    std::array<Packet, 1> packets{{{{request.data(), static_cast<std::uint32_t>(request.size())}, {}, {}}}};
    Kept outbox;
    stage.process(begun + at, packets, outbox);
    left += outbox.frames.size();
  };
  for (int i = 0; i < 8; ++i) read(Duration::microseconds(2 * i), 9, 1'024);
  read(Duration::microseconds(4'980), 2, kLong);
  for (int i = 0; i < 4; ++i) read(Duration::microseconds(4'985), 9, 1'024);
  EXPECT_EQ(left, 9u);
  Kept outbox;
  stage.on_deadline(begun + Duration::microseconds(5'060), outbox);
  EXPECT_EQ(outbox.frames.size(), 4u);
  EXPECT_EQ(stage.held(), 0u);
}

// Of what is answered each READ is granted, as if nothing else were known.
TEST(EdmStage, ANodeThatAnswersAgainIsGrantedFor) {
  std::uint32_t asked = 0;
  const Waits waits = read_beside(
      {.bytes = 1'024, .gap = Duration::microseconds(100), .answers = [&asked](Rack& rack, std::uint32_t psn) {
         if (++asked > 100) answer(rack, 1, 9, 1, psn);
       }});
  EXPECT_GT(waits.counters.unanswered, 30u);
  EXPECT_LT(waits.counters.unanswered, 60u);
  EXPECT_EQ(waits.counters.reads + waits.counters.unanswered, 660u);
}

// READs of 4 KiB that fill 99 % of the node's link, answered, beside 64 KiB each millisecond.
TEST(EdmStage, ShortReadsKeepALongOneWaitingByWhatIsLeftAndNotByTheOrderOfComing) {
  const auto wait = [](edm::Policy policy) {
    return read_beside({.bytes = 4'096,
                        .gap = Duration::nanoseconds(3'600),
                        .answers = [](Rack& rack, std::uint32_t psn) { answer(rack, 1, 9, 4, psn); },
                        .settings = {.policy = policy}});
  };
  const Waits shortest = wait(edm::Policy::kShortestRemaining);
  EXPECT_GT(shortest.median, Duration::milliseconds(1));
  EXPECT_GT(shortest.counters.overdue, 0u);
  const Waits first_come = wait(edm::Policy::kFirstCome);
  EXPECT_LT(first_come.median, shortest.median / 10);
  EXPECT_NE(EdmStage({.policy = edm::Policy::kFirstCome}).status_json().find(R"("policy":"fcfs")"), std::string::npos);
  EXPECT_NE(EdmStage({}).status_json().find(R"("policy":"srpt")"), std::string::npos);
}

// It says a gigabyte, and the answer is a packet.
TEST(EdmStage, TheLastPacketOfAnAnswerEndsWhatIsLeftOfARead) {
  const Waits waits =
      read_beside({.bytes = kGigabyte, .gap = Duration::milliseconds(1), .answers = [](Rack& rack, std::uint32_t psn) {
                     answer(rack, 1, 9, 1, psn);
                   }});
  EXPECT_EQ(waits.counters.reads, 120u);
  EXPECT_LT(waits.most, Duration::microseconds(220));
  EXPECT_EQ(waits.counters.abandoned, 0u);
}

TEST(EdmStage, AReadWhoseAnswerBreaksOffIsForgottenAndOneThatIsAskedForAnewIsNot) {
  for (const bool anew : {false, true}) {
    Rack rack({}, true);
    std::vector<Time> came;
    rack.deliver = [&](std::uint32_t host, const Bytes&) {
      if (host != 1) return;
      came.push_back(rack.now);
      if (came.size() == 1) {
        for (std::uint32_t i = 0; i < 10; ++i)
          rack.send(1, frame(1, 0, i == 0 ? Opcode::kRcReadResponseFirst : Opcode::kRcReadResponseMiddle, kMtu, i));
      }
    };
    const Time begun = rack.now;
    rack.send(0, frame(0, 1, Opcode::kRcReadRequest, 4 << 20, 0));
    rack.at(begun + Duration::milliseconds(1),
            [&] { rack.send(0, frame(0, 1, Opcode::kRcReadRequest, 64, anew ? 10 : 5'000)); });
    rack.at(begun + Duration::milliseconds(9), [&] { rack.send(0, frame(0, 1, Opcode::kRcReadRequest, 64, 5'001)); });
    rack.run();
    ASSERT_EQ(came.size(), 3u);
    EXPECT_EQ(came[1] - begun < Duration::microseconds(1'300), anew);
    EXPECT_LT(came[2] - begun, Duration::microseconds(9'010));
    EXPECT_EQ(rack.stage->counters().reads, anew ? 3u : 2u);
    EXPECT_EQ(rack.stage->counters().overdue, anew ? 0u : 1u);
  }
}

// Of a program on the node's NIC, too: who is asked and who answers may be known by different ones of their addresses.
TEST(EdmStage, TheLastPacketEndsAReadOfNoWholePacketsToo) {
  for (const std::uint8_t place : std::array<std::uint8_t, 2>{0, 3}) {
    Rack rack({}, true);
    constexpr std::uint32_t kBytes = 4'096 * kMtu + 100;
    std::vector<Time> came;
    const auto answer = [&](Opcode opcode, std::uint32_t bytes, std::uint32_t psn) {
      Bytes packet = frame(1, 0, opcode, bytes, psn);
      packet[6 + switching::HostStage::kPlaceByte] = place;
      rack.send(1, packet);
    };
    rack.deliver = [&](std::uint32_t host, const Bytes&) {
      if (host != 1) return;
      came.push_back(rack.now);
      if (came.size() != 1) return;
      answer(Opcode::kRcReadResponseFirst, kMtu, 0);
      answer(Opcode::kRcReadResponseLast, 100, 4'096);
    };
    const Time begun = rack.now;
    rack.send(0, frame(0, 1, Opcode::kRcReadRequest, kBytes, 0));
    rack.send(0, frame(0, 1, Opcode::kRcReadRequest, 64, 4'097));
    rack.run();
    ASSERT_EQ(came.size(), 2u);
    EXPECT_LT(came[1] - begun, Duration::microseconds(430)) << int{place};  // two chunks
    EXPECT_EQ(rack.stage->counters().overdue, 0u);
  }
}

TEST(EdmStage, WhatIsForTheRouterPasses) {
  Rack rack({.router = mac(1)}, true);
  std::vector<Time> came;
  rack.deliver = [&](std::uint32_t, const Bytes&) { came.push_back(rack.now); };
  const Time begun = rack.now;
  for (std::uint32_t i = 0; i < 4; ++i) rack.send(0, frame(0, 1, Opcode::kRcReadRequest, 1 << 20, i << 10));
  rack.run();
  ASSERT_EQ(came.size(), 4u);
  EXPECT_LT(came.back() - begun, Duration::microseconds(10));
  EXPECT_EQ(rack.stage->counters().reads, 0u);
}

// Four chunks each.
TEST(EdmStage, ReadsOfManyChunksKeepTheWayToTheirReaderBusyAndShort) {
  constexpr std::uint32_t kVeryLong = 1 << 20;
  Rack plain({}, false);
  const Duration without = read_from_eight(plain, kVeryLong);
  Rack granted({}, true);
  const Duration with = read_from_eight(granted, kVeryLong);
  record(plain, granted, without, with);
  EXPECT_EQ(granted.stage->counters().reads + granted.stage->counters().overdue, 80u);
  EXPECT_EQ(granted.stage->counters().abandoned, 0u);
  EXPECT_LT(granted.most_queued, plain.most_queued);
  EXPECT_LT(with.picoseconds(), without.picoseconds() * 105 / 100);
}

TEST(EdmStage, HostsThatHaveGoneMakeRoomForOthers) {
  EdmStage stage({});
  const auto read_from = [&stage](Time now, std::uint32_t client) {
    Bytes bytes = frame(client, 1, Opcode::kRcReadRequest, 64);
    Kept outbox;
    std::array<Packet, 1> packets{{{{bytes.data(), static_cast<std::uint32_t>(bytes.size())}, {}, {}}}};
    stage.process(now, packets, outbox);
    for (int i = 0; i < 100 && stage.next_deadline() != Time::never(); ++i)
      stage.on_deadline(std::max(stage.next_deadline(), now), outbox);
    EXPECT_EQ(outbox.frames.size() + (packets[0].action == Packet::Action::kForward ? 1 : 0), 1u);
  };
  constexpr std::uint32_t kClients = 5 * EdmStage::kHosts;
  Time now = Time::at(Duration::seconds(1));
  for (std::uint32_t client = 0; client < kClients; ++client, now = now + EdmStage::kSilence / 50)
    read_from(now, client + 2);
  EXPECT_EQ(stage.counters().strangers, 0u);
  EXPECT_EQ(stage.counters().reads, kClients);
  // As many at the same time as there is no room for.
  for (std::uint32_t client = 0; client < kClients; ++client) read_from(now, kClients + client + 2);
  EXPECT_GT(stage.counters().strangers, 0u);
}

// The stage alone, given a frame at a time; its turns besides when a test says so.
struct Alone {
  EdmStage stage;
  Time now = Time::at(Duration::seconds(1));
  std::size_t left = 0;  // frames that it has given back

  explicit Alone(const EdmStageSettings& settings = {}) : stage(settings) {}

  // Whether the frame has passed, or gone on at once.
  bool send(Bytes bytes) {
    const std::size_t before = left;
    Kept outbox;
    std::array<Packet, 1> packets{{{{bytes.data(), static_cast<std::uint32_t>(bytes.size())}, {}, {}}}};
    stage.process(now, packets, outbox);
    left += outbox.frames.size();
    return packets[0].action == Packet::Action::kForward || left != before;
  }
  bool read(std::uint32_t from, std::uint32_t to, std::uint32_t bytes, std::uint32_t psn = 0) {
    return send(frame(from, to, Opcode::kRcReadRequest, bytes, psn));
  }
  // How many frames it gives back until then.
  std::size_t until(Duration since_begun) {
    const std::size_t before = left;
    Kept outbox;
    const Time end = Time::at(Duration::seconds(1)) + since_begun;
    for (int turns = 0; stage.next_deadline() <= end && turns < 100'000; ++turns) {
      now = std::max(now, stage.next_deadline());
      stage.on_deadline(now, outbox);
    }
    now = end;
    left += outbox.frames.size();
    return left - before;
  }
};

Bytes to_pair(Bytes bytes, std::uint8_t number) {
  bytes[14 + 20 + 8 + 7] = number;  // the lowest byte of the queue pair, which is 0x11 else
  return bytes;
}

// Packets of 1,024 B and a rest of 100. What host 2 asks of the node shows whether its port is free.
TEST(EdmStage, OnlyANakOfThePacketsOfTheReadThatWasGrantedLastFreesItsPorts) {
  const auto is_freed_by = [](Bytes refusal, bool begun) {
    Alone alone;
    EXPECT_TRUE(alone.read(0, 1, kLong + 100, 100));
    if (begun) {
      alone.send(frame(1, 0, Opcode::kRcReadResponseFirst, kMtu, 100));
      alone.send(frame(1, 0, Opcode::kRcReadResponseLast, 100, 164));
    }
    EXPECT_FALSE(alone.read(2, 1, 64));
    alone.send(std::move(refusal));
    return alone.stage.held() == 0;
  };
  EXPECT_FALSE(is_freed_by(nak(1, 0, 99), false));
  EXPECT_TRUE(is_freed_by(nak(1, 0, 100), false));
  EXPECT_FALSE(is_freed_by(nak(1, 0, 101), false)) << "how long its packets are nobody knows yet";
  EXPECT_TRUE(is_freed_by(nak(1, 0, 101), true));
  EXPECT_TRUE(is_freed_by(nak(1, 0, 164), true));
  EXPECT_FALSE(is_freed_by(nak(1, 0, 165), true));
  EXPECT_FALSE(is_freed_by(to_pair(nak(1, 0, 101), 0x12), true)) << "another queue pair";
  EXPECT_FALSE(is_freed_by(nak(3, 0, 100), false)) << "another node";
  EXPECT_FALSE(is_freed_by(frame(1, 0, Opcode::kRcAcknowledge, 0, 100), false));
}

// A chunk takes 215 us: the first packet of the answer asks for the second one, which is granted then, if nobody takes it back.
TEST(EdmStage, AReadOfAnotherQueuePairIsNoneThatIsAskedForAnew) {
  struct Second {
    std::uint8_t pair = 0;
    std::uint32_t psn = 0;
    bool is_anew = false;
  };
  for (const Second& second : {Second{0x11, 10, true}, Second{0x12, 10, false}, Second{0x11, 5'000, false}}) {
    Alone alone;
    EXPECT_TRUE(alone.read(0, 1, 1 << 20));
    alone.send(frame(1, 0, Opcode::kRcReadResponseFirst, kMtu));
    EXPECT_FALSE(alone.send(to_pair(frame(0, 1, Opcode::kRcReadRequest, 64, second.psn), second.pair)));
    EXPECT_EQ(alone.until(Duration::microseconds(300)), second.is_anew ? 1u : 0u) << second.psn;
  }
}

TEST(EdmStage, AChunkIsAskedForWhenAllOfTheOneBeforeTheLastHasCome) {
  Alone alone;
  EXPECT_TRUE(alone.read(0, 1, 64 << 20));
  std::uint32_t psn = 0;
  const auto packets_come = [&](std::uint32_t count) {
    for (const std::uint32_t end = psn + count; psn != end; ++psn)
      alone.send(frame(1, 0, Opcode::kRcReadResponseMiddle, kMtu, psn));
  };
  // Host 2's READ waits for as long as the node's port is taken.
  std::uint32_t asked = 0;
  const auto is_taken_at = [&](std::int64_t at) {
    alone.until(Duration::microseconds(at));
    const bool taken = !alone.read(2, 1, 64, asked++);
    alone.send(nak(1, 2, asked - 1));
    return taken;
  };
  packets_come(1);
  EXPECT_TRUE(is_taken_at(220)) << "the second chunk was asked for when the first had begun to come";
  packets_come(200);
  EXPECT_FALSE(is_taken_at(440)) << "240 packets are a chunk";
  packets_come(50);
  EXPECT_TRUE(is_taken_at(445)) << "the third";
  packets_come(1);
  alone.until(Duration::microseconds(600));
  EXPECT_FALSE(is_taken_at(680)) << "and one alone";
}

TEST(EdmStage, ANakCountsOnceAndWhileThereIsSomethingToFree) {
  Alone alone;
  EXPECT_TRUE(alone.read(0, 1, kLong));
  for (int i = 0; i < 2; ++i) alone.send(nak(1, 0, 0));
  EXPECT_EQ(alone.stage.counters().refused, 1u);
  EXPECT_TRUE(alone.read(0, 1, 64, 1));
  alone.until(Duration::milliseconds(1));
  alone.send(nak(1, 0, 1));
  EXPECT_EQ(alone.stage.counters().refused, 1u);
}

TEST(EdmStage, ANakFreesThePortsOfALaterChunkToo) {
  Alone alone;
  EXPECT_TRUE(alone.read(0, 1, 1 << 20));
  alone.send(frame(1, 0, Opcode::kRcReadResponseFirst, kMtu));
  alone.until(Duration::microseconds(220));
  EXPECT_FALSE(alone.read(2, 1, 64));
  alone.send(nak(1, 0, 1));
  EXPECT_EQ(alone.stage.held(), 0u);
}

// One of a chunk is, with its headers, longer than a chunk of another. First of both at the scheduler, then of a second chunk and it.
TEST(EdmStage, ALongReadIsAsUrgentAsAllThatIsLeftOfItAndNotAsItsChunk) {
  const auto chunk = static_cast<std::uint32_t>(EdmStageSettings{}.chunk);
  for (const bool begun : {false, true}) {
    Alone alone;
    if (!begun) alone.read(4, 1, kLong);
    EXPECT_EQ(alone.read(2, 1, 4 << 20), begun);
    if (begun) alone.send(frame(1, 2, Opcode::kRcReadResponseFirst, kMtu));
    EXPECT_FALSE(alone.read(3, 1, chunk));
    const std::uint64_t reads = alone.stage.counters().reads;
    const std::uint64_t bytes = alone.stage.counters().read_bytes;
    alone.until(begun ? Duration::microseconds(220) : Duration::microseconds(65));
    EXPECT_EQ(alone.stage.counters().reads, reads + 1) << begun;
    EXPECT_EQ(alone.stage.counters().read_bytes, bytes + chunk) << begun;
  }
}

// Of two chunks, and what is behind it; both wait for the first answer's 57 us.
TEST(EdmStage, WhatIsBehindALongReadIsAskedForWhenItsLastChunkIsGranted) {
  Alone alone;
  EXPECT_TRUE(alone.read(4, 1, kLong));
  EXPECT_FALSE(alone.read(2, 1, 300 << 10));
  EXPECT_FALSE(alone.read(2, 1, 64, 300));
  EXPECT_EQ(alone.until(Duration::microseconds(70)), 1u);
  EXPECT_EQ(alone.until(Duration::microseconds(400)), 0u) << "its answer has not begun to come";
  alone.send(frame(1, 2, Opcode::kRcReadResponseFirst, kMtu));
  EXPECT_EQ(alone.until(Duration::microseconds(420)), 0u) << "the second chunk's time";
  EXPECT_EQ(alone.until(Duration::microseconds(500)), 1u);
}

TEST(EdmStage, AReadIsNotAbandonedWhileItsAnswerComes) {
  Alone alone;
  EXPECT_TRUE(alone.read(0, 1, 64 << 20));
  const auto hold_something = [&] { alone.read(0, 1, 64, 1 << 20); };  // which goes when it is overdue
  for (std::uint32_t i = 0; i < 20; ++i) {
    if (i % 4 == 0) hold_something();
    alone.send(frame(1, 0, Opcode::kRcReadResponseMiddle, kMtu, i));
    alone.until(Duration::milliseconds(i + 1));
  }
  EXPECT_EQ(alone.stage.counters().abandoned, 0u);
  hold_something();
  alone.until(Duration::milliseconds(40));
  EXPECT_EQ(alone.stage.counters().abandoned, 1u);
}

// Its second chunk waits for the first one's 21 ms when it is given up; nothing of its own host does.
TEST(EdmStage, AReadThatIsAbandonedAsksForNoMore) {
  Alone alone({.bits_per_second = 100'000'000});
  EXPECT_TRUE(alone.read(0, 1, 1 << 20));
  alone.send(frame(1, 0, Opcode::kRcReadResponseFirst, kMtu));
  EXPECT_FALSE(alone.read(2, 1, 64));
  alone.until(Duration::milliseconds(3));
  EXPECT_FALSE(alone.read(3, 1, 64));
  alone.until(Duration::milliseconds(10));
  EXPECT_EQ(alone.stage.counters().abandoned, 1u);
  alone.now = alone.now + Duration::milliseconds(15);
  EXPECT_TRUE(alone.read(4, 1, 64));
}

Bytes write(std::uint32_t from, std::uint32_t to, std::uint32_t bytes) {
  return frame(from, to, Opcode::kRcWriteOnly, bytes);
}

// The node's port is taken for 6.4 ms.
TEST(EdmStage, WhatIsBehindAnOverduePacketIsAskedForAnew) {
  Alone alone({.bits_per_second = 100'000'000});
  EXPECT_TRUE(alone.read(0, 1, 75 << 10));
  EXPECT_FALSE(alone.send(write(1, 3, 64)));
  alone.until(Duration::milliseconds(4));
  EXPECT_FALSE(alone.send(write(1, 3, 64)));
  EXPECT_EQ(alone.until(Duration::milliseconds(6)), 1u);
  EXPECT_EQ(alone.until(Duration::milliseconds(8)), 1u);
  EXPECT_EQ(alone.stage.counters().overdue, 1u);
}

// A packet that is a little longer than a chunk, which takes 3.3 ms, is granted in part when it goes.
TEST(EdmStage, AnOverduePacketLeavesNoGrantToThoseBehindIt) {
  Alone alone({.bits_per_second = 10'000'000, .chunk = 4'096, .hold = Duration::milliseconds(2)});
  EXPECT_FALSE(alone.send(write(0, 1, 4'096)));
  EXPECT_EQ(alone.until(Duration::milliseconds(10)), 1u);
  EXPECT_EQ(alone.stage.counters().overdue, 1u);
  EXPECT_TRUE(alone.read(5, 0, 1'024));  // 0.9 ms of host 0's port
  EXPECT_FALSE(alone.send(write(0, 1, 64)));
  EXPECT_FALSE(alone.send(write(0, 1, 64)));
  EXPECT_EQ(alone.until(Duration::microseconds(10'900)), 1u);
  EXPECT_EQ(alone.until(Duration::microseconds(11'200)), 1u);
  alone.until(Duration::milliseconds(20));
  EXPECT_TRUE(alone.send(write(0, 1, 64)));
  EXPECT_EQ(alone.stage.counters().overdue, 1u);
}

// As many that read of their neighbours as there are places left.
void fill_places(Alone& alone, std::uint32_t taken) {
  for (std::uint32_t i = 0; i + taken < EdmStage::kHosts; i += 2) {
    EXPECT_TRUE(alone.read(100 + i, 101 + i, 64));
  }
}

TEST(EdmStage, WhoTakesAPlaceInheritsNothingOfTheReadsThatWereGrantedToItsFormerHost) {
  constexpr std::uint32_t kReader = 0, kNode = 1, kNew = 50;
  for (const bool is_node : {false, true}) {
    for (const std::uint32_t bytes : {1u << 20, 64u}) {
      Alone alone;
      EXPECT_TRUE(alone.read(kReader, kNode, bytes));
      for (std::uint32_t i = 0; bytes == 64 && i < 7; ++i) alone.read(kReader, kNode, bytes, 1 + i);
      alone.until(Duration::milliseconds(500));
      fill_places(alone, 2);
      is_node ? alone.read(kReader, 100, 64) : alone.read(100, kNode, 64);
      alone.until(Duration::milliseconds(1'200));
      const std::uint64_t reads = alone.stage.counters().reads;
      EXPECT_TRUE(is_node ? alone.read(kReader, kNew, 64) : alone.read(kNew, kNode, 64)) << is_node << " " << bytes;
      EXPECT_EQ(alone.stage.counters().reads, reads + 1) << is_node << " " << bytes;
      EXPECT_EQ(alone.stage.counters().strangers, 0u);
    }
  }
}

TEST(EdmStage, TheHostThatHasBeenSilentForLongestMakesRoom) {
  Alone alone;
  alone.read(0, 1, 64);
  alone.until(Duration::milliseconds(100));
  alone.read(2, 3, 64);
  alone.until(Duration::milliseconds(500));
  fill_places(alone, 4);
  alone.until(Duration::milliseconds(900));
  EXPECT_TRUE(alone.read(50, 100, 64));
  EXPECT_EQ(alone.stage.counters().strangers, 1u) << "nobody has been silent for a second";
  alone.until(Duration::milliseconds(1'200));
  EXPECT_TRUE(alone.read(50, 100, 64));
  EXPECT_TRUE(alone.read(2, 3, 64));
  EXPECT_EQ(alone.stage.counters().strangers, 1u);
  EXPECT_TRUE(alone.read(0, 100, 64));
  EXPECT_EQ(alone.stage.counters().strangers, 2u) << "one search in a millisecond";
  alone.until(Duration::milliseconds(1'202));
  EXPECT_TRUE(alone.read(0, 100, 64));
  EXPECT_EQ(alone.stage.counters().strangers, 2u);
}

// At a megabit a second a chunk takes two seconds. One has one chunk and waits for another, one waits for the first of them; and one has a chunk
// and waits for nothing.
TEST(EdmStage, AHostThatWaitsForAGrantKeepsItsPlace) {
  Alone alone({.bits_per_second = 1'000'000, .hold = Duration::seconds(20)});
  EXPECT_TRUE(alone.read(0, 1, 1 << 20));
  alone.send(frame(1, 0, Opcode::kRcReadResponseFirst, kMtu));
  EXPECT_TRUE(alone.read(2, 3, 1 << 20));
  alone.send(frame(3, 2, Opcode::kRcReadResponseFirst, kMtu));
  EXPECT_FALSE(alone.read(4, 3, 1 << 20));
  alone.until(Duration::milliseconds(500));
  fill_places(alone, 6);
  alone.until(Duration::milliseconds(510));
  EXPECT_TRUE(alone.read(100, 5, 64));
  alone.until(Duration::milliseconds(1'200));
  EXPECT_TRUE(alone.read(50, 101, 64));
  EXPECT_EQ(alone.stage.counters().strangers, 1u);
  alone.until(Duration::milliseconds(2'400));
  EXPECT_EQ(alone.stage.counters().abandoned, 0u);
}

TEST(EdmStage, OffItForgetsTheReadThatIsUnderWayAndWhatWasNotAnswered) {
  Alone alone;
  const auto turn = [&](const char* wish) { ASSERT_TRUE(alone.stage.change(wish)); };
  EXPECT_TRUE(alone.read(0, 1, 1 << 20));
  alone.send(frame(1, 0, Opcode::kRcReadResponseFirst, kMtu));  // a second chunk is asked for
  for (std::uint32_t i = 0; i < 8; ++i) EXPECT_TRUE(alone.read(2, 3, 64, i) || i != 0);
  alone.until(Duration::microseconds(10));
  EXPECT_EQ(alone.stage.counters().reads, 9u);
  turn(R"({"on":false})");
  turn(R"({"on":true})");
  alone.until(Duration::milliseconds(6));
  EXPECT_TRUE(alone.read(0, 1, 64, 5'000));
  EXPECT_TRUE(alone.read(2, 3, 64, 8));
  EXPECT_EQ(alone.stage.counters().reads, 11u);
  EXPECT_EQ(alone.stage.counters().unanswered, 0u);
}

TEST(EdmStage, WhatFindsNoRoomOnItsWayOutGoesInTheNextTurn) {
  Alone alone;
  EXPECT_TRUE(alone.read(0, 1, kLong));
  for (std::uint32_t host = 2; host < 5; ++host) EXPECT_FALSE(alone.read(host, 1, kLong));
  ASSERT_TRUE(alone.stage.change(R"({"on":false})"));
  for (const std::size_t room : {std::size_t{1}, std::size_t{2}}) {
    EXPECT_LE(alone.stage.next_deadline(), alone.now);
    Kept outbox;
    outbox.room = room;
    alone.stage.on_deadline(alone.now, outbox);
    EXPECT_EQ(outbox.frames.size(), room);
  }
  EXPECT_EQ(alone.stage.next_deadline(), Time::never());
}

TEST(EdmStage, WhenThereIsNoRoomWhatComesGoesWithAllThatItsHostHasForTheOtherOne) {
  Alone alone({.bits_per_second = 1'000'000, .frames = 512});
  EXPECT_TRUE(alone.read(2, 3, kLong));
  EXPECT_FALSE(alone.read(4, 3, 64));
  std::size_t sent = 0;
  while ((!alone.send(write(0, 1, 64)) || sent == 0) && sent < 1'000) ++sent;  // the first one is granted
  EXPECT_EQ(alone.stage.held(), 1u) << "of others";
  EXPECT_EQ(alone.stage.counters().overflow, sent);
  EXPECT_EQ(alone.stage.counters().lost, 0u);
}

// Programs of one NIC, which differ in the second byte of their addresses.
TEST(EdmStage, WhatAHostSendsToItselfPasses) {
  Alone alone;
  for (int i = 0; i < 2; ++i) {
    Bytes request = frame(0, 0, Opcode::kRcReadRequest, kLong);
    request[6 + switching::HostStage::kPlaceByte] = 3;
    EXPECT_TRUE(alone.send(std::move(request)));
  }
  EXPECT_EQ(alone.stage.held(), 0u);
}

TEST(EdmStage, OffItLooksAtNothing) {
  Alone alone;
  ASSERT_TRUE(alone.stage.change(R"({"on":false})"));
  EXPECT_TRUE(alone.read(0, 1, 1 << 20));
  EXPECT_TRUE(alone.read(0, 1, 1 << 20));
  EXPECT_EQ(alone.left, 0u);
  EXPECT_NE(alone.stage.status_json().find(R"("hosts":0)"), std::string::npos);
}

TEST(EdmStage, SaysWhatMayChange) {
  EdmStage stage({});
  EXPECT_FALSE(stage.change("no"));
  EXPECT_FALSE(stage.change(R"({"off": true})"));
  EXPECT_TRUE(stage.change(R"({"on": false})"));
  EXPECT_NE(stage.status_json().find(R"("on":false)"), std::string::npos);
}

}  // namespace
}  // namespace sluice::rack
