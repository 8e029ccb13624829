// The switch engine packet by packet: what it makes of each answer, by hand-made passive ends.
#include "cowbird/switch_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

#include "cowbird/request_id.h"
#include "wire/icrc.h"

namespace sluice::cowbird {
namespace {

using wire::Opcode;
using wire::Psn;
using wire::Qpn;
using wire::Reth;
using wire::RKey;
using Bytes = std::vector<std::uint8_t>;

class Sink final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    if (full) return nullptr;
    next_.assign(length, 0);
    return next_.data();
  }
  void commit(std::size_t length) override {
    next_.resize(length);
    frames.push_back(next_);
  }
  std::deque<Bytes> frames;
  bool full = false;

 private:
  Bytes next_;
};

// A frame of the engine's, taken apart.
struct Seen {
  Opcode opcode{};
  Psn psn{};
  Qpn to{};
  bool ack_request = false;
  std::string from_ip{};
  std::string to_ip{};
  wire::MacAddress to_mac{};
  Reth reth{};
  Bytes payload{};
  Bytes frame{};
};

Seen take_apart(const Bytes& frame) {
  wire::ParsedFrame parsed;
  EXPECT_EQ(wire::parse_and_verify(frame, parsed), wire::Verdict::kOk);
  Seen seen{.opcode = parsed.opcode, .psn = parsed.psn, .to = parsed.destination, .ack_request = parsed.ack_request};
  seen.from_ip = wire::source_gid(frame.data(), parsed).to_string();
  seen.to_ip = wire::destination_gid(frame.data(), parsed).to_string();
  std::copy_n(frame.begin(), 6, seen.to_mac.bytes.begin());
  if (parsed.traits().has(wire::Extended::kReth)) seen.reth = wire::get<Reth>(frame.data(), parsed);
  const auto payload = wire::payload(frame.data(), parsed);
  seen.payload.assign(payload.begin(), payload.end());
  seen.frame = frame;
  return seen;
}

ConnectionEnd end_of(std::uint8_t number, std::uint32_t qpn, std::uint32_t psn) {
  return {{{2, 0, 0, 0, 0, number}}, wire::Gid::from(wire::Ipv4Address{0x0A4D0000u + number}), Qpn(qpn), Psn(psn)};
}

constexpr std::uint64_t kBlock = 0x10000;
constexpr std::uint64_t kPool = 0x7000'0000;
const RKey kBlockKey{0xB10C};
const RKey kPoolKey{0x9001};
constexpr std::uint32_t kMtu = 512;

// The engine, one application's NIC (10.77.0.1) and one memory node (10.77.0.2), of which the test plays the parts.
class SwitchEngineTest : public testing::Test {
 protected:
  explicit SwitchEngineTest(const Shape& shape = {.entries = 64, .request_bytes = 8192, .response_bytes = 8192})
      : layout{.shape = shape, .channels = 1},
        engine({{2, 0, 0, 0, 0, 0xFE}}, wire::Gid::from(wire::Ipv4Address{0x0A4D00FE}), config(), 1) {
    const auto attached =
        engine
            .attach(now,
                    {.layout = layout, .address = kBlock, .key = kBlockKey, .host = end_of(1, 0x111, 0), .mtu = kMtu})
            .value();
    id = attached.id;
    control = attached.engine;
    EXPECT_TRUE(engine.connect(now, id, {.node = 7, .host = host, .pool = pool, .mtu = kMtu}));
    EXPECT_TRUE(engine.set_regions(now, id, 1, {{.node = 7, .key = kPoolKey.value, .base = kPool, .length = 1 << 16}}));
  }
  static SwitchEngineConfig config() {
    SwitchEngineConfig c;
    c.probe_slot = Duration::microseconds(2);
    return c;
  }

  // What the engine sends next; time passes if need be.
  Seen next() {
    for (int i = 0; i < 100 && sink.frames.empty(); ++i) {
      now = std::max(now, engine.next_deadline());
      engine.on_deadline(now, sink);
      engine.on_spare(
          now, [this](const wire::MacAddress&) { return idle; }, sink);
    }
    if (sink.frames.empty()) {
      ADD_FAILURE() << "nothing more is sent";
      return {};
    }
    const Seen seen = take_apart(sink.frames.front());
    sink.frames.pop_front();
    return seen;
  }
  Seen next(Opcode expected) {
    const Seen seen = next();
    EXPECT_EQ(wire::opcode_traits(seen.opcode).name, wire::opcode_traits(expected).name);
    return seen;
  }

  // From the node that the request went to, to whom it seemed to come from.
  Bytes answer(const ConnectionEnd& from, const ConnectionEnd& to, Opcode opcode, Psn psn, ByteView payload,
               std::uint8_t syndrome = wire::Aeth::kNoCredits) {
    const wire::HeaderTemplate headers({.source_mac = from.mac,
                                        .destination_mac = to.mac,
                                        .source = from.gid,
                                        .destination = to.gid,
                                        .source_port = 0xC123});
    const bool aeth = wire::opcode_traits(opcode).has(wire::Extended::kAeth);
    const std::uint8_t pad = wire::pad_for(payload.size());
    const std::size_t body = (aeth ? 4 : 0) + payload.size() + pad;
    Bytes frame(headers.frame_size(wire::Bth::kSize + body));
    std::size_t at = headers.write(frame.data(), wire::Bth::kSize + body);
    wire::Bth{.opcode = opcode, .pad_count = pad, .destination = to.qpn, .psn = psn}.write(frame.data() + at);
    at += wire::Bth::kSize;
    if (aeth) wire::Aeth{syndrome, 1}.write(frame.data() + at);
    at += aeth ? 4 : 0;
    std::copy(payload.begin(), payload.end(), frame.begin() + static_cast<std::ptrdiff_t>(at));
    headers.seal(frame.data(), at + payload.size() + pad);
    return frame;
  }
  bool give(Bytes frame) {
    now = now + Duration::nanoseconds(100);
    return engine.on_frame(now, {frame.data(), static_cast<std::uint32_t>(frame.size())}, sink);
  }
  // Answers of the NIC on the control connection.
  void data(const Seen& read, ByteView payload) {
    EXPECT_TRUE(give(answer(end_of(1, 0x111, 0), control, Opcode::kRcReadResponseOnly, read.psn, payload)));
  }
  void ack(const Seen& write) {
    EXPECT_TRUE(give(answer(end_of(1, 0x111, 0), control, Opcode::kRcAcknowledge, write.psn, {})));
  }
  // Answers on the data connection.
  void from_pool(Psn psn, ByteView payload, Opcode opcode = Opcode::kRcReadResponseOnly) {
    EXPECT_TRUE(give(answer(pool, host, opcode, psn, payload)));
  }
  void from_host(Psn psn, ByteView payload, Opcode opcode = Opcode::kRcReadResponseOnly) {
    EXPECT_TRUE(give(answer(host, pool, opcode, psn, payload)));
  }
  void ack_from_pool(Psn psn) { EXPECT_TRUE(give(answer(pool, host, Opcode::kRcAcknowledge, psn, {}))); }
  void ack_from_host(Psn psn) { EXPECT_TRUE(give(answer(host, pool, Opcode::kRcAcknowledge, psn, {}))); }

  // Time passes without probes, and the NIC answers what it is asked.
  void pass(Duration time) {
    for (const Time end = now + time; now < end;) {
      now = std::min(end, std::max(now + Duration::microseconds(100), engine.next_deadline()));
      engine.on_deadline(now, sink);
      answer_nic();
    }
  }
  void answer_nic() {
    for (std::deque<Bytes> sent = std::exchange(sink.frames, {}); const Bytes& frame : sent) {
      const Seen seen = take_apart(frame);
      if (seen.to != Qpn(0x111)) {
        sink.frames.push_back(frame);
      } else if (seen.opcode == Opcode::kRcWriteOnly) {
        ack(seen);
      } else {
        data(seen, line(tail));
      }
    }
  }
  // Both ends have made another connection.
  void reconnect() {
    host = end_of(1, host.qpn.value + 1, 0x100);
    pool = end_of(2, pool.qpn.value + 1, 0x200);
    EXPECT_TRUE(engine.connect(now, id, {.node = 7, .host = host, .pool = pool, .mtu = kMtu}));
    sink.frames.clear();
  }
  // The next frame to this queue pair.
  Seen next_to(Qpn qpn) {
    for (int i = 0; i < 10'000; ++i) {
      for (; !sink.frames.empty(); sink.frames.pop_front()) {
        const Seen seen = take_apart(sink.frames.front());
        if (seen.to == qpn) return seen;
      }
      pass(Duration::milliseconds(1));
    }
    ADD_FAILURE() << "nothing is sent there";
    return {};
  }

  // Attaches, takes the first heartbeat, and answers the first probe with this many requests.
  Seen until_entries(std::uint64_t count) {
    tail = count;
    data(next(Opcode::kRcReadRequest), Bytes(400));
    ack(next(Opcode::kRcWriteOnly));
    data(next(Opcode::kRcReadRequest), line(tail));
    return next(Opcode::kRcReadRequest);
  }
  // And the request is a read of eight bytes.
  void until_a_read() {
    const Seen entries = until_entries(1);
    Bytes ring;
    put(ring, read_entry(1, 0, 8));
    data(entries, ring);
  }
  static Bytes line(std::uint64_t tail, std::uint64_t generation = 1) {
    Bytes bytes(kLine);
    store_le(bytes.data(), tail);
    store_le(bytes.data() + IssuerLine::kRegionsGeneration, generation);
    return bytes;
  }
  void put(Bytes& ring, const Entry& entry) const {
    const std::size_t at = ring.size();
    ring.resize(at + kEntryBytes);
    store_le(ring.data() + at, entry.req_addr);
    store_le(ring.data() + at + 8, entry.resp_addr);
    store_le(ring.data() + at + 16, entry.type_word());
    store_le(ring.data() + at + 24, entry.sequence);
  }
  Entry read_entry(std::uint64_t sequence, std::uint64_t from, std::uint32_t length, std::uint64_t slot = 0) const {
    return {.type = RwType::kRead,
            .length = length,
            .req_addr = from,
            .resp_addr = channel.responses + slot,
            .sequence = sequence};
  }
  Entry write_entry(std::uint64_t sequence, std::uint64_t to, std::uint32_t length, std::uint64_t slot = 0) const {
    return {.type = RwType::kWrite,
            .length = length,
            .req_addr = channel.requests + slot,
            .resp_addr = to,
            .sequence = sequence};
  }
  std::uint64_t at(std::size_t offset) const { return kBlock + layout.channel_at(0) + offset; }
  static Bytes bytes(std::size_t n, std::uint8_t first = 1) {
    Bytes b(n);
    for (std::size_t i = 0; i < n; ++i) b[i] = static_cast<std::uint8_t>(first + i);
    return b;
  }

  Time now;
  Sink sink;
  std::uint64_t tail = 0;
  bool idle = true;
  InstanceLayout layout;
  ChannelLayout channel = layout.channel();
  ConnectionEnd host = end_of(1, 0x222, 0x100);
  ConnectionEnd pool = end_of(2, 0x333, 0xFFFFFF);
  SwitchEngine engine;
  SwitchEngine::ChannelId id = 0;
  ConnectionEnd control;
};

TEST_F(SwitchEngineTest, AReadGoesThroughTheFourPhases) {
  // Where the last engine left off, and that a new one is here.
  const Seen attach = next(Opcode::kRcReadRequest);
  EXPECT_EQ(attach.reth, (Reth{at(ChannelLayout::kProgress), kBlockKey, 400}));
  EXPECT_EQ(attach.to, Qpn(0x111));
  EXPECT_EQ(attach.psn, control.expected);
  EXPECT_EQ(attach.from_ip, "10.77.0.254");
  EXPECT_EQ(attach.to_ip, "10.77.0.1");
  data(attach, Bytes(400));
  const Seen hello = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(hello.reth, (Reth{at(ChannelLayout::kProgress), kBlockKey, 48}));
  EXPECT_EQ(load_le<std::uint64_t>(hello.payload.data() + ProgressLine::kEpoch), 1u);
  EXPECT_EQ(ProgressLine::flight(hello.payload.data()), config().max_flight) << "the next engine waits for that";
  EXPECT_EQ(hello.psn, attach.psn + 1);
  ack(hello);
  // Probe: one request has come (figure 5).
  const Seen probe = next(Opcode::kRcReadRequest);
  EXPECT_EQ(probe.reth, (Reth{at(ChannelLayout::kIssuer), kBlockKey, kLine}));
  data(probe, line(1));
  const Seen entries = next(Opcode::kRcReadRequest);
  EXPECT_EQ(entries.reth, (Reth{at(ChannelLayout::kMetadata), kBlockKey, kEntryBytes}));
  Bytes ring;
  put(ring, read_entry(1, 4096, 41, 64));
  data(entries, ring);
  // Execute (figure 6): the pool is asked in the NIC's name, and its answer becomes a WRITE in the pool's.
  const Seen fetch = next(Opcode::kRcReadRequest);
  EXPECT_EQ(fetch.reth, (Reth{kPool + 4096, kPoolKey, 41}));
  EXPECT_EQ(fetch.from_ip, "10.77.0.1");
  EXPECT_EQ(fetch.to_ip, "10.77.0.2");
  EXPECT_EQ(fetch.to, pool.qpn);
  EXPECT_EQ(fetch.psn, pool.expected);
  from_pool(fetch.psn, bytes(41));
  const Seen move = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(move.reth, (Reth{at(channel.responses + 64), kBlockKey, 41}));
  EXPECT_EQ(move.payload, bytes(41));
  EXPECT_EQ(move.psn, host.expected);
  EXPECT_EQ(move.to, host.qpn);
  EXPECT_EQ(move.to_mac, host.mac);
  EXPECT_EQ(move.from_ip, "10.77.0.2");
  EXPECT_TRUE(move.ack_request);
  // Complete: progress only after the data's ACK.
  EXPECT_TRUE(sink.frames.empty());
  ack_from_host(move.psn);
  const Seen progress = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(progress.reth, (Reth{at(ChannelLayout::kProgress), kBlockKey, 48}));
  EXPECT_EQ(load_le<std::uint64_t>(progress.payload.data() + ProgressLine::kReads), 1u);
  EXPECT_EQ(load_le<std::uint64_t>(progress.payload.data() + ProgressLine::kWrites), 0u);
  EXPECT_EQ(load_le<std::uint64_t>(progress.payload.data() + ProgressLine::kHead), 1u);
}

// What comes out must be the packet that a NIC would have made of the payload, to the last byte.
TEST_F(SwitchEngineTest, ARelayedPacketIsWhatItsSenderWouldHaveSent) {
  const Seen entries = until_entries(1);
  Bytes ring;
  put(ring, read_entry(1, 0, 30));
  data(entries, ring);
  from_pool(next(Opcode::kRcReadRequest).psn, bytes(30));
  const Seen move = next(Opcode::kRcWriteOnly);
  const wire::HeaderTemplate headers({.source_mac = pool.mac,
                                      .destination_mac = host.mac,
                                      .source = pool.gid,
                                      .destination = host.gid,
                                      .source_port = 0xC123});
  Bytes expected(headers.frame_size(wire::Bth::kSize + Reth::kSize + 32));
  const std::size_t bth = headers.write(expected.data(), wire::Bth::kSize + Reth::kSize + 32);
  wire::Bth{.opcode = Opcode::kRcWriteOnly,
            .pad_count = 2,
            .destination = host.qpn,
            .ack_request = true,
            .psn = host.expected}
      .write(expected.data() + bth);
  Reth{at(channel.responses), kBlockKey, 30}.write(expected.data() + bth + wire::Bth::kSize);
  const Bytes payload = bytes(30);
  std::copy(payload.begin(), payload.end(), expected.data() + bth + wire::Bth::kSize + Reth::kSize);
  headers.seal(expected.data(), bth + wire::Bth::kSize + Reth::kSize + 32);
  EXPECT_EQ(move.frame, expected);
}

TEST_F(SwitchEngineTest, AWriteIsTheMirror) {
  const Seen entries = until_entries(1);
  Bytes ring;
  put(ring, write_entry(1, 8192, 24, 128));
  data(entries, ring);
  const Seen fetch = next(Opcode::kRcReadRequest);
  EXPECT_EQ(fetch.reth, (Reth{at(channel.requests + 128), kBlockKey, 24}));
  EXPECT_EQ(fetch.to, host.qpn);
  EXPECT_EQ(fetch.from_ip, "10.77.0.2");
  from_host(fetch.psn, bytes(24));
  const Seen move = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(move.reth, (Reth{kPool + 8192, kPoolKey, 24}));
  EXPECT_EQ(move.payload, bytes(24));
  EXPECT_EQ(move.to, pool.qpn);
  EXPECT_EQ(move.from_ip, "10.77.0.1");
  ack_from_pool(move.psn);
  const Seen progress = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(load_le<std::uint64_t>(progress.payload.data() + ProgressLine::kWrites), 1u);
}

TEST_F(SwitchEngineTest, FirstMiddleAndLastOfAResponseBecomeThoseOfAWrite) {
  const Seen entries = until_entries(1);
  Bytes ring;
  put(ring, read_entry(1, 0, 3 * kMtu - 100));
  data(entries, ring);
  const Seen fetch = next(Opcode::kRcReadRequest);
  const Opcode in[] = {Opcode::kRcReadResponseFirst, Opcode::kRcReadResponseMiddle, Opcode::kRcReadResponseLast};
  const Opcode out[] = {Opcode::kRcWriteFirst, Opcode::kRcWriteMiddle, Opcode::kRcWriteLast};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Bytes payload = bytes(i == 2 ? kMtu - 100 : kMtu, static_cast<std::uint8_t>(i));
    from_pool(fetch.psn + i, payload, in[i]);
    const Seen move = next(out[i]);
    EXPECT_EQ(move.psn, host.expected + i);
    EXPECT_EQ(move.payload, payload);
    EXPECT_EQ(move.ack_request, i == 2);
    if (i == 0) {
      EXPECT_EQ(move.reth, (Reth{at(channel.responses), kBlockKey, 3 * kMtu - 100}));
    }
  }
}

TEST_F(SwitchEngineTest, ReadsPauseWhileAWriteIsOut) {
  const Seen entries = until_entries(2);
  Bytes ring;
  put(ring, write_entry(1, 0, 8));
  put(ring, read_entry(1, 4096, 8));
  data(entries, ring);
  const Seen fetch = next(Opcode::kRcReadRequest);
  EXPECT_EQ(fetch.to, host.qpn);
  from_host(fetch.psn, bytes(8));
  const Seen move = next(Opcode::kRcWriteOnly);
  EXPECT_TRUE(sink.frames.empty()) << "the read must wait for the write's ACK";
  ack_from_pool(move.psn);
  std::vector<Qpn> next_two{next().to, next().to};
  EXPECT_THAT(next_two, testing::UnorderedElementsAre(Qpn(0x111), pool.qpn)) << "progress, and the read";
  EXPECT_EQ(engine.counters().paused, 1u);
}

TEST_F(SwitchEngineTest, AWriteWaitsUntilReadsBeforeItArePublished) {
  const Seen entries = until_entries(2);
  Bytes ring;
  put(ring, read_entry(1, 0, 8));
  put(ring, write_entry(1, 4096, 8));
  data(entries, ring);
  const Seen fetch = next(Opcode::kRcReadRequest);
  from_pool(fetch.psn, bytes(8));
  ack_from_host(next(Opcode::kRcWriteOnly).psn);
  const Seen progress = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(progress.to, Qpn(0x111));
  EXPECT_TRUE(sink.frames.empty()) << "until the progress is acknowledged the read might be done again";
  ack(progress);
  EXPECT_EQ(next(Opcode::kRcReadRequest).to, host.qpn);
}

TEST_F(SwitchEngineTest, AfterANakTheDataAreFetchedAgainForTheSamePsn) {
  const Seen entries = until_entries(1);
  Bytes ring;
  put(ring, read_entry(1, 0, 3 * kMtu));
  data(entries, ring);
  const Seen fetch = next(Opcode::kRcReadRequest);
  from_pool(fetch.psn, bytes(kMtu), Opcode::kRcReadResponseFirst);
  from_pool(fetch.psn + 1, bytes(kMtu), Opcode::kRcReadResponseMiddle);
  from_pool(fetch.psn + 2, bytes(kMtu), Opcode::kRcReadResponseLast);
  for (int i = 0; i < 3; ++i) next();
  // The second packet was lost.
  const auto nak = wire::Aeth::nak(0, wire::NakCode::kPsnSequenceError).syndrome;
  EXPECT_TRUE(give(answer(host, pool, Opcode::kRcAcknowledge, host.expected + 1, {}, nak)));
  const Seen again = next(Opcode::kRcReadRequest);
  EXPECT_EQ(again.reth, (Reth{kPool + kMtu, kPoolKey, 2 * kMtu}));
  EXPECT_EQ(again.psn, fetch.psn + 3);
  from_pool(again.psn, bytes(kMtu, 9), Opcode::kRcReadResponseFirst);
  const Seen middle = next(Opcode::kRcWriteMiddle);
  EXPECT_EQ(middle.psn, host.expected + 1);
  EXPECT_EQ(middle.payload, bytes(kMtu, 9));
  from_pool(again.psn + 1, bytes(kMtu), Opcode::kRcReadResponseLast);
  EXPECT_EQ(next(Opcode::kRcWriteLast).psn, host.expected + 2);
}

TEST_F(SwitchEngineTest, WhatIsNotAnsweredIsAskedForAgainWithTheSamePsn) {
  const Seen attach = next(Opcode::kRcReadRequest);
  const Seen again = next(Opcode::kRcReadRequest);
  EXPECT_EQ(again.frame, attach.frame);
  EXPECT_GE(now, Time::at(Duration::milliseconds(4)));
  EXPECT_EQ(engine.counters().timeouts, 1u);
}

TEST_F(SwitchEngineTest, ItAsksEverMoreRarelyUntilItIsAnsweredAndThenAsBefore) {
  next(Opcode::kRcReadRequest);
  Time last = now;
  const auto again = [&] {
    const Seen seen = next();
    return std::pair(seen, now - std::exchange(last, now));
  };
  for (const int expected : {4, 8, 16, 32, 64, 128, 128}) {
    const auto took = again().second;
    EXPECT_EQ(took, Duration::milliseconds(expected));
  }
  data(again().first, Bytes(400));
  next(Opcode::kRcWriteOnly);
  last = now;
  const auto took = again().second;
  EXPECT_EQ(took, config().timeout) << "the progress line";
}

// Two signs of one loss, then one of another.
TEST_F(SwitchEngineTest, GoesBackOncePerLoss) {
  const Seen entries = until_entries(1);
  Bytes ring;
  put(ring, read_entry(1, 0, 3 * kMtu));
  data(entries, ring);
  const Seen fetch = next(Opcode::kRcReadRequest);
  from_pool(fetch.psn, bytes(kMtu), Opcode::kRcReadResponseFirst);
  from_pool(fetch.psn + 1, bytes(kMtu), Opcode::kRcReadResponseMiddle);
  from_pool(fetch.psn + 2, bytes(kMtu), Opcode::kRcReadResponseLast);
  const auto nak = wire::Aeth::nak(0, wire::NakCode::kPsnSequenceError).syndrome;
  const auto lost = [&](std::uint32_t packet) {
    EXPECT_TRUE(give(answer(host, pool, Opcode::kRcAcknowledge, host.expected + packet, {}, nak)));
    return engine.counters().rewinds;
  };
  EXPECT_EQ(lost(1), 1u);
  EXPECT_EQ(lost(1), 1u);
  EXPECT_EQ(lost(2), 2u);
  // Sent once more, and lost again.
  const Seen again = next_to(pool.qpn);
  from_pool(again.psn, bytes(kMtu), Opcode::kRcReadResponseFirst);
  from_pool(again.psn + 1, bytes(kMtu), Opcode::kRcReadResponseLast);
  EXPECT_EQ(next_to(host.qpn).psn, host.expected + 2);
  pass(config().timeout + Duration::microseconds(200));
  const auto rewinds = engine.counters().rewinds;
  EXPECT_EQ(rewinds, 3u) << "nobody has answered";
  EXPECT_EQ(lost(2), 4u);
}

TEST_F(SwitchEngineTest, ALostResponseIsAskedForOnceALaterOneShowsIt) {
  const Seen entries = until_entries(2);
  Bytes ring;
  put(ring, read_entry(1, 0, 8));
  put(ring, read_entry(2, 64, 8, 8));
  data(entries, ring);
  const Seen first = next(Opcode::kRcReadRequest);
  const Seen second = next(Opcode::kRcReadRequest);
  from_pool(second.psn, bytes(8));
  EXPECT_EQ(engine.counters().timeouts, 0u);
  const Seen again = next(Opcode::kRcReadRequest);
  EXPECT_EQ(again.psn, first.psn);
  EXPECT_EQ(again.reth, first.reth);
}

// Its ACK was late, and so its data were asked for again.
TEST_F(SwitchEngineTest, AnAnswerToWhatWasSentBeforeItWentBackCounts) {
  until_a_read();
  from_pool(next(Opcode::kRcReadRequest).psn, bytes(8));
  const Seen move = next_to(host.qpn);
  pass(config().timeout);
  EXPECT_GT(engine.counters().rewinds, 0u);
  EXPECT_EQ(engine.counters().reads, 0u);
  ack_from_host(move.psn);
  EXPECT_EQ(engine.counters().reads, 1u);
}

TEST_F(SwitchEngineTest, NoMoreReadsAreUnderWayThanTheOtherEndAnswersAtOnce) {
  EXPECT_TRUE(engine.connect(now, id, {.node = 7, .host = host, .pool = pool, .mtu = kMtu, .pool_reads = 2}));
  const Seen entries = until_entries(3);
  Bytes ring;
  for (std::uint64_t i = 0; i < 3; ++i) put(ring, read_entry(i + 1, 64 * i, 8, 8 * i));
  data(entries, ring);
  const Seen first = next_to(pool.qpn);
  const auto to_pool = [&] {
    return std::ranges::count_if(sink.frames, [&](const Bytes& frame) { return take_apart(frame).to == pool.qpn; });
  };
  EXPECT_EQ(to_pool(), 2);
  from_pool(first.psn, bytes(8));
  EXPECT_EQ(to_pool(), 3);
}

// Its node owes no answer.
TEST_F(SwitchEngineTest, AnIdleConnectionStaysOpen) {
  until_a_read();
  from_pool(next(Opcode::kRcReadRequest).psn, bytes(8));
  ack_from_host(next_to(host.qpn).psn);
  pass(config().silence * 3);
  EXPECT_EQ(engine.counters().reads, 1u);
  EXPECT_TRUE(engine.channel(id)->connections()[0].open);
}

class LargeRings : public SwitchEngineTest {
 protected:
  LargeRings() : SwitchEngineTest({.entries = 1024, .request_bytes = 8192, .response_bytes = 1 << 21}) {
    EXPECT_TRUE(engine.set_regions(now, id, 1, {{.node = 7, .key = kPoolKey.value, .base = kPool, .length = 1 << 21}}));
  }
  // Answers what asks for entries with reads of so many bytes. What goes to the memory node.
  std::vector<Seen> give_entries(std::uint64_t count, std::uint32_t length) {
    std::vector<Seen> to_pool;
    std::uint64_t given = 0;
    for (Seen seen = until_entries(count);; sink.frames.pop_front()) {
      if (seen.to == pool.qpn) {
        to_pool.push_back(seen);
      } else if (seen.reth.virtual_address >= at(ChannelLayout::kMetadata)) {
        Bytes ring;
        for (std::uint32_t i = 0; i < seen.reth.length / kEntryBytes; ++i, ++given)
          put(ring, read_entry(given + 1, 0, length, given * length % (1 << 21)));
        data(seen, ring);
      }
      if (sink.frames.empty()) return to_pool;
      seen = take_apart(sink.frames.front());
    }
  }
};

TEST_F(LargeRings, NoMoreEntriesAreReadThanRequestsAreKept) {
  give_entries(600, 8);
  EXPECT_EQ(engine.channel(id)->under_way(), SwitchChannel::kWindow);
}

TEST_F(LargeRings, ARequestIsAskedForHoweverLongAndTheNextOnceThereIsRoomForIt) {
  constexpr std::uint32_t kLength = 600 << 10;
  const std::vector<Seen> asked = give_entries(2, kLength);
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].reth.length, kLength);
  constexpr std::uint32_t kPackets = kLength / kMtu;
  for (std::uint32_t i = 0; i < kPackets; ++i) {
    sink.frames.clear();
    from_pool(asked[0].psn + i, bytes(kMtu),
              i == 0              ? Opcode::kRcReadResponseFirst
              : i == kPackets - 1 ? Opcode::kRcReadResponseLast
                                  : Opcode::kRcReadResponseMiddle);
  }
  EXPECT_EQ(next_to(pool.qpn).reth.length, kLength);
}

TEST_F(SwitchEngineTest, AnAnswerOfAnotherLengthIsNotPassedOn) {
  until_a_read();
  const Seen fetch = next(Opcode::kRcReadRequest);
  from_pool(fetch.psn, bytes(4));
  EXPECT_EQ(engine.counters().unwanted, 1u);
  EXPECT_EQ(engine.counters().relayed, 0u);
}

TEST_F(SwitchEngineTest, ANewConnectionIsUsedOnceWhatTheLastOneHasSentCannotArriveAnyMore) {
  until_a_read();
  next(Opcode::kRcReadRequest);
  reconnect();
  const Time begun = now;
  next_to(pool.qpn);
  EXPECT_GE(now - begun, config().max_flight);
  EXPECT_LE(now - begun, config().max_flight + Duration::milliseconds(2));
}

TEST_F(SwitchEngineTest, ARefusalOfTheNicBreaksTheChannelAndClosesNothing) {
  until_a_read();
  next(Opcode::kRcReadRequest);
  Seen probe = next(Opcode::kRcReadRequest);
  const auto nak = wire::Aeth::nak(0, wire::NakCode::kRemoteAccessError).syndrome;
  EXPECT_TRUE(give(answer(end_of(1, 0x111, 0), control, Opcode::kRcAcknowledge, probe.psn, {}, nak)));
  EXPECT_TRUE(engine.channel(id)->broken());
  EXPECT_EQ(engine.counters().closed, 0u);
}

// The application has not taken any of them.
TEST_F(SwitchEngineTest, NoFailureIsPublishedThatTheLogHasNoRoomFor) {
  const auto answer_all = [&](std::uint64_t taken, std::uint64_t until) {
    std::uint64_t published = 0;
    for (int i = 0; i < 200 && published < until; ++i) {
      const Seen seen = next();
      if (seen.opcode == Opcode::kRcWriteOnly) {
        if (seen.reth.virtual_address == at(ChannelLayout::kProgress))
          published = load_le<std::uint64_t>(seen.payload.data() + ProgressLine::kReads);
        ack(seen);
      } else if (seen.reth.length == kLine) {
        Bytes issuer = line(20);
        store_le(issuer.data() + IssuerLine::kErrorsTaken, taken);
        data(seen, issuer);
      } else {
        Bytes ring;
        const auto first = (seen.reth.virtual_address - at(ChannelLayout::kMetadata)) / kEntryBytes;
        for (std::uint64_t e = 0; e < seen.reth.length / kEntryBytes; ++e)
          put(ring, read_entry(first + e + 1, 1 << 16, 8));
        data(seen, ring);
      }
    }
    return published;
  };
  data(next(Opcode::kRcReadRequest), Bytes(400));
  EXPECT_EQ(answer_all(0, kErrors + 1), kErrors);
  EXPECT_EQ(answer_all(kErrors, 20), 20u);
}

TEST_F(SwitchEngineTest, ProbesOnlyWhenNothingElseWantsToBeSentThere) {
  data(next(Opcode::kRcReadRequest), Bytes(400));
  ack(next(Opcode::kRcWriteOnly));
  idle = false;
  const auto probes = engine.counters().probes;
  for (int i = 0; i < 50; ++i) {
    now = now + Duration::microseconds(2);
    engine.on_spare(
        now, [](const wire::MacAddress&) { return false; }, sink);
  }
  EXPECT_EQ(engine.counters().probes, probes);
  EXPECT_TRUE(sink.frames.empty());
  idle = true;
  EXPECT_EQ(next(Opcode::kRcReadRequest).reth.length, kLine);
}

TEST_F(SwitchEngineTest, RequestsWaitForRegionsThatTheControlPlaneHasNotToldOf) {
  data(next(Opcode::kRcReadRequest), Bytes(400));
  ack(next(Opcode::kRcWriteOnly));
  data(next(Opcode::kRcReadRequest), line(1, 2));
  Bytes ring;
  put(ring, read_entry(1, 0, 8));
  ring[16 + 4] = 1;  // region 1
  data(next(Opcode::kRcReadRequest), ring);
  EXPECT_TRUE(sink.frames.empty());
  EXPECT_TRUE(engine.set_regions(now, id, 2,
                                 {{.node = 7, .key = 1, .base = kPool, .length = 64},
                                  {.node = 7, .key = kPoolKey.value, .base = kPool + 64, .length = 64}}));
  for (;;) {
    const Seen seen = next(Opcode::kRcReadRequest);
    if (seen.to == pool.qpn) {
      EXPECT_EQ(seen.reth, (Reth{kPool + 64, kPoolKey, 8}));
      break;
    }
    data(seen, line(1, 2));
  }
}

TEST_F(SwitchEngineTest, WhatMakesNoSenseIsReportedAndNothingIsSentForIt) {
  const Region good{.node = 7, .key = kPoolKey.value, .base = kPool, .length = 1 << 16};
  Region stale = good;  // as the spot engine's memory node answers to an old key
  stale.denied = true;
  EXPECT_TRUE(engine.set_regions(now, id, 1, {good, stale}));
  const Seen entries = until_entries(4);
  Bytes ring;
  put(ring, read_entry(1, (1 << 16) - 4, 8));  // beyond the region
  auto far = read_entry(2, 0, 8);
  far.region = 9;
  put(ring, far);
  auto elsewhere = read_entry(3, 0, 8);
  elsewhere.resp_addr = 0;  // outside its ring
  put(ring, elsewhere);
  auto old = read_entry(4, 0, 8);
  old.region = 1;
  put(ring, old);
  data(entries, ring);
  const Seen log = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(log.reth, (Reth{at(ChannelLayout::kErrorLog) + 16, kBlockKey, kErrorBlock - 16}));
  std::vector<Status> why;
  for (std::size_t i = 0; i < 4; ++i)
    why.push_back(static_cast<Status>(load_le<std::uint64_t>(log.payload.data() + 8 + 16 * i)));
  EXPECT_THAT(why, testing::ElementsAre(Status::kOutOfRange, Status::kNoRegion, Status::kMalformed, Status::kDenied));
  EXPECT_EQ(engine.counters().malformed, 3u);
  EXPECT_EQ(engine.counters().denied, 1u);
  const Seen count = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(count.reth, (Reth{at(ChannelLayout::kErrorLog), kBlockKey, 8}));
  EXPECT_EQ(load_le<std::uint64_t>(count.payload.data()), 4u);
  EXPECT_EQ(count.psn, log.psn + 1) << "whoever sees the count sees what it counts";
  const Seen progress = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(load_le<std::uint64_t>(progress.payload.data() + ProgressLine::kReads), 4u);
  EXPECT_EQ(progress.psn, count.psn + 1);
}

TEST_F(SwitchEngineTest, LetsGoOfAChannelWhoseMemoryMakesNoSense) {
  Bytes ring;
  put(ring, read_entry(5, 0, 8));  // the first is number 1
  const Seen entries = until_entries(1);
  data(entries, ring);
  EXPECT_TRUE(engine.channel(id)->broken());
  EXPECT_EQ(engine.next_deadline(), Time::never());
}

TEST_F(SwitchEngineTest, ARefusalOfTheMemoryNodeFailsTheRequestAndClosesTheConnection) {
  until_a_read();
  const Seen fetch = next(Opcode::kRcReadRequest);
  const auto nak = wire::Aeth::nak(0, wire::NakCode::kRemoteAccessError).syndrome;
  EXPECT_TRUE(give(answer(pool, host, Opcode::kRcAcknowledge, fetch.psn, {}, nak)));
  const Seen log = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(static_cast<Status>(load_le<std::uint64_t>(log.payload.data() + 8)), Status::kDenied);
  EXPECT_EQ(engine.counters().denied, 1u);
  EXPECT_FALSE(engine.channel(id)->connections()[0].open);
}

TEST_F(SwitchEngineTest, ANodeThatHasRefusedHasBeenHeardAndPatienceWithItBeginsAnew) {
  until_a_read();
  const Seen fetch = next(Opcode::kRcReadRequest);
  const auto nak = wire::Aeth::nak(0, wire::NakCode::kRemoteAccessError).syndrome;
  EXPECT_TRUE(give(answer(pool, host, Opcode::kRcAcknowledge, fetch.psn, {}, nak)));
  reconnect();
  pass(config().patience * 2);
  tail = 2;
  for (bool is_asked = false; !is_asked;) {
    const Seen seen = next();
    is_asked = seen.opcode == Opcode::kRcReadRequest && seen.reth.length == kEntryBytes;
    Bytes other;
    put(other, read_entry(2, 64, 8, 8));
    if (seen.opcode == Opcode::kRcReadRequest)
      data(seen, is_asked ? other : line(tail));
    else
      ack(seen);
  }
  next_to(pool.qpn);  // and is not answered
  pass(config().silence * 2);
  EXPECT_EQ(engine.counters().failed, 1u);
  pass(config().patience);
  EXPECT_EQ(engine.counters().failed, 2u);
}

// The READ before it was carried out, and its response is lost.
TEST_F(SwitchEngineTest, ARefusalBehindALostResponseIsARefusalAndTheReadBeginsAgainOverTheNextConnection) {
  const Seen entries = until_entries(2);
  Bytes ring;
  put(ring, read_entry(1, 0, 8));
  put(ring, read_entry(2, 64, 8, 8));
  data(entries, ring);
  next(Opcode::kRcReadRequest);
  const Seen second = next(Opcode::kRcReadRequest);
  const auto nak = wire::Aeth::nak(0, wire::NakCode::kRemoteAccessError).syndrome;
  EXPECT_TRUE(give(answer(pool, host, Opcode::kRcAcknowledge, second.psn, {}, nak)));
  EXPECT_EQ(engine.counters().denied, 1u);
  EXPECT_FALSE(engine.channel(id)->connections()[0].open);
  reconnect();
  EXPECT_EQ(next_to(pool.qpn).reth, (Reth{kPool, kPoolKey, 8}));
  EXPECT_EQ(engine.counters().failed, 1u);
}

TEST_F(SwitchEngineTest, PatienceDoesNotCountTimeInWhichTheSwitchWasStopped) {
  until_a_read();
  next(Opcode::kRcReadRequest);  // which is not answered
  const Duration patience = config().patience;
  now = now + patience;
  engine.on_deadline(now, sink);
  EXPECT_EQ(engine.counters().failed, 0u);
  EXPECT_TRUE(engine.channel(id)->connections()[0].open);
  pass(patience - Duration::milliseconds(100));
  EXPECT_EQ(engine.counters().failed, 0u);
  pass(Duration::milliseconds(200));
  EXPECT_EQ(engine.counters().failed, 1u);
}

// A refusal that is lost is one: the node says nothing any more, and takes another connection.
TEST_F(SwitchEngineTest, AConnectionWithoutAnAnswerIsClosedLongBeforeItsRequestsFail) {
  until_a_read();
  next(Opcode::kRcReadRequest);
  pass(config().silence + Duration::milliseconds(200));
  EXPECT_FALSE(engine.channel(id)->connections()[0].open);
  reconnect();
  from_pool(next_to(pool.qpn).psn, bytes(8));
  next_to(host.qpn);
  EXPECT_EQ(engine.counters().failed, 0u);
}

TEST_F(SwitchEngineTest, ANodeThatTakesConnectionsAndAnswersNothingFailsItsRequestsAfterPatience) {
  until_a_read();
  next(Opcode::kRcReadRequest);
  const Time begun = now;
  while (engine.counters().failed == 0 && now - begun < config().patience * 3) {
    pass(Duration::milliseconds(100));
    if (!engine.channel(id)->connections()[0].open) reconnect();
  }
  EXPECT_EQ(engine.counters().failed, 1u);
  EXPECT_GE(now - begun, config().patience);
  EXPECT_LE(now - begun, config().patience + config().silence * 2);
}

TEST_F(SwitchEngineTest, NodesThatAreNotConnectedAreRememberedAsLongAsTheyAreNamed) {
  until_entries(1);
  for (std::uint32_t generation = 2; generation < 1000; ++generation) {
    std::vector<Region> regions;
    for (std::uint32_t i = 0; i < kMaxRegions; ++i) {
      regions.push_back({.node = generation * 100 + i, .key = 1, .length = 1, .denied = i % 2 == 0});
    }
    ASSERT_TRUE(engine.set_regions(now, id, generation, regions));
    ASSERT_EQ(engine.channel(id)->absent_nodes(), kMaxRegions / 2);
  }
  EXPECT_EQ(engine.channel(id)->connections().size(), 1u);
}

// The table is another one by then.
TEST_F(SwitchEngineTest, ARequestToANodeThatNeverCameFailsAfterPatienceThoughItsRegionIsGone) {
  EXPECT_TRUE(engine.set_regions(now, id, 1, {{.node = 8, .key = 1, .base = kPool, .length = 1 << 16}}));
  const Time told = now;
  until_a_read();
  EXPECT_TRUE(engine.set_regions(now, id, 1, {}));
  EXPECT_EQ(engine.channel(id)->absent_nodes(), 1u);
  pass(config().patience - (now - told) - Duration::milliseconds(50));
  EXPECT_EQ(engine.counters().failed, 0u);
  pass(Duration::milliseconds(100));
  EXPECT_EQ(engine.counters().failed, 1u);
  EXPECT_TRUE(engine.set_regions(now, id, 1, {}));
  EXPECT_EQ(engine.channel(id)->absent_nodes(), 0u);
}

TEST_F(SwitchEngineTest, WaitsForWhatTheLastEngineMayHaveLeftUnderWay) {
  Bytes attachment(400);
  store_le(attachment.data() + ProgressLine::kFlight, std::uint64_t{500'000'000});
  data(next(Opcode::kRcReadRequest), attachment);
  const Time attached = now;
  Seen seen = next();
  EXPECT_GE(now - attached, Duration::milliseconds(500)) << "until then its own flight stands there";
  for (; seen.opcode == Opcode::kRcWriteOnly; seen = next()) ack(seen);
  EXPECT_EQ(wire::opcode_traits(seen.opcode).name, wire::opcode_traits(Opcode::kRcReadRequest).name);
  EXPECT_GE(now - attached, Duration::milliseconds(500));
}

TEST_F(SwitchEngineTest, LooksForRequestsOnceTheNextEngineKnowsForHowLongToWait) {
  data(next(Opcode::kRcReadRequest), Bytes(400));
  const Seen hello = next(Opcode::kRcWriteOnly);
  engine.on_spare(
      now, [](const wire::MacAddress&) { return true; }, sink);
  EXPECT_TRUE(sink.frames.empty()) << "what it finds it would move, and the line may be lost";
  const Seen again = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(again.psn, hello.psn);
  ack(again);
  EXPECT_EQ(next(Opcode::kRcReadRequest).reth.virtual_address, at(ChannelLayout::kIssuer));
}

TEST_F(SwitchEngineTest, AWriteThatMayHaveHappenedIsNotSaidToBeRefused) {
  const Seen entries = until_entries(1);
  Bytes ring;
  put(ring, write_entry(1, 8192, 24));
  data(entries, ring);
  from_host(next(Opcode::kRcReadRequest).psn, bytes(24));
  next(Opcode::kRcWriteOnly);  // its answer is lost with the connection
  host = end_of(1, 0x223, 0x100);
  pool = end_of(2, 0x334, 0x100);
  EXPECT_TRUE(engine.connect(now, id, {.node = 7, .host = host, .pool = pool, .mtu = kMtu}));
  Seen fetch = next();
  for (; fetch.to != host.qpn; fetch = next()) {  // heartbeats and probes meanwhile
    if (fetch.opcode == Opcode::kRcWriteOnly) {
      ack(fetch);
    } else {
      data(fetch, line(1));
    }
  }
  from_host(fetch.psn, bytes(24));
  const Seen move = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(move.to, pool.qpn);
  const auto nak = wire::Aeth::nak(0, wire::NakCode::kRemoteAccessError).syndrome;
  EXPECT_TRUE(give(answer(pool, host, Opcode::kRcAcknowledge, move.psn, {}, nak)));
  const Seen log = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(static_cast<Status>(load_le<std::uint64_t>(log.payload.data() + 8)), Status::kUnknown);
}

// Over a connection that was another switch's.
TEST_F(SwitchEngineTest, AWriteThatAnEarlierEngineMayHaveDoneIsNotSaidToBeRefused) {
  Bytes before(400);
  store_le(before.data() + ProgressLine::kEpoch, std::uint64_t{3});
  data(next(Opcode::kRcReadRequest), before);
  ack(next(Opcode::kRcWriteOnly));
  tail = 1;
  data(next(Opcode::kRcReadRequest), line(tail));
  Bytes ring;
  put(ring, write_entry(1, 0, 8));
  data(next(Opcode::kRcReadRequest), ring);
  from_host(next(Opcode::kRcReadRequest).psn, bytes(8));
  const Seen move = next(Opcode::kRcWriteOnly);
  const auto nak = wire::Aeth::nak(0, wire::NakCode::kRemoteAccessError).syndrome;
  EXPECT_TRUE(give(answer(pool, host, Opcode::kRcAcknowledge, move.psn, {}, nak)));
  const Seen log = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(static_cast<Status>(load_le<std::uint64_t>(log.payload.data() + 8)), Status::kUnknown);
}

TEST_F(SwitchEngineTest, OtherPacketsPassAndDamagedOnesAreLost) {
  const Seen attach = next(Opcode::kRcReadRequest);
  const auto request = answer(end_of(1, 0x111, 0), control, Opcode::kRcSendOnly, attach.psn, Bytes(400));
  EXPECT_FALSE(give(request)) << "a request, even to a known queue pair, is not an answer";
  EXPECT_FALSE(give(attach.frame)) << "nor is one of its own";
  EXPECT_FALSE(give(answer(pool, end_of(1, 0x999, 0), Opcode::kRcAcknowledge, Psn(1), {}))) << "another queue pair";
  EXPECT_FALSE(give(answer(pool, end_of(3, 0x222, 0), Opcode::kRcAcknowledge, Psn(1), {}))) << "another host";
  EXPECT_FALSE(give(Bytes(60)));
  Bytes damaged = answer(end_of(1, 0x111, 0), control, Opcode::kRcReadResponseOnly, attach.psn, Bytes(400));
  damaged[100] ^= 1;
  EXPECT_TRUE(give(damaged));
  EXPECT_EQ(engine.damaged(), 1u);
  EXPECT_FALSE(engine.channel(id)->attached());
}

TEST_F(SwitchEngineTest, DetachedItKnowsNothingOfItsPackets) {
  next(Opcode::kRcReadRequest);
  const Seen attach = next(Opcode::kRcReadRequest);
  ASSERT_TRUE(engine.detach(id));
  EXPECT_FALSE(give(answer(end_of(1, 0x111, 0), control, Opcode::kRcReadResponseOnly, attach.psn, Bytes(400))));
  EXPECT_EQ(engine.next_deadline(), Time::never());
  EXPECT_FALSE(engine.detach(id));
  EXPECT_EQ(engine.counters().timeouts, 1u) << "what it has counted stays";
}

TEST_F(SwitchEngineTest, DisconnectedQueuePairsMayBeAnotherChannels) {
  const auto other =
      engine
          .attach(now,
                  {.layout = layout, .address = kBlock, .key = kBlockKey, .host = end_of(1, 0x112, 0), .mtu = kMtu})
          .value();
  const DataConnection same{.node = 7, .host = host, .pool = pool, .mtu = kMtu};
  EXPECT_FALSE(engine.connect(now, other.id, same)) << "they belong to the first";
  ASSERT_TRUE(engine.disconnect(now, id, 7));
  EXPECT_TRUE(engine.connect(now, other.id, same));
  // The first one's next connection takes nothing away from the second's.
  EXPECT_TRUE(
      engine.connect(now, id, {.node = 7, .host = end_of(1, 0x223, 1), .pool = end_of(2, 0x334, 1), .mtu = kMtu}));
  EXPECT_TRUE(give(answer(pool, host, Opcode::kRcAcknowledge, Psn(1), {}))) << "still the engine's";
  ASSERT_TRUE(engine.detach(id));
  EXPECT_TRUE(give(answer(pool, host, Opcode::kRcAcknowledge, Psn(1), {}))) << "nor does its end";
}

TEST_F(SwitchEngineTest, ADisconnectedQueuePairMayServeAnotherNodeOfItsChannel) {
  ASSERT_TRUE(engine.disconnect(now, id, 7));
  const ConnectionEnd elsewhere = end_of(3, 0x444, 1);
  ASSERT_TRUE(engine.connect(now, id, {.node = 8, .host = host, .pool = elsewhere, .mtu = kMtu}));
  EXPECT_TRUE(
      engine.connect(now, id, {.node = 7, .host = end_of(1, 0x223, 1), .pool = end_of(2, 0x334, 1), .mtu = kMtu}));
  EXPECT_TRUE(give(answer(elsewhere, host, Opcode::kRcAcknowledge, Psn(1), {}))) << "still the engine's";
  ASSERT_TRUE(engine.disconnect(now, id, 8));
  EXPECT_FALSE(give(answer(elsewhere, host, Opcode::kRcAcknowledge, Psn(1), {})));
}

TEST_F(SwitchEngineTest, WhatTheLastEngineLoggedAsFailedStaysSo) {
  Bytes attachment(400);
  std::uint8_t* const log = attachment.data() + ChannelLayout::kErrorLog - ChannelLayout::kProgress;
  store_le(log, std::uint64_t{1});
  store_le(log + 16, static_cast<std::uint64_t>(RequestId(RwType::kRead, 0, 1).value()));
  store_le(log + 24, static_cast<std::uint64_t>(Status::kUnreachable));
  data(next(Opcode::kRcReadRequest), attachment);
  ack(next(Opcode::kRcWriteOnly));
  data(next(Opcode::kRcReadRequest), line(1));
  Bytes ring;
  put(ring, read_entry(1, 0, 8));
  data(next(Opcode::kRcReadRequest), ring);
  const Seen progress = next(Opcode::kRcWriteOnly);
  EXPECT_EQ(progress.reth, (Reth{at(ChannelLayout::kProgress), kBlockKey, 48}))
      << "nothing is read, and nothing logged again";
  EXPECT_EQ(load_le<std::uint64_t>(progress.payload.data() + ProgressLine::kReads), 1u);
}

TEST_F(SwitchEngineTest, AFullWayOutDelaysAndLosesNothing) {
  const Seen entries = until_entries(1);
  Bytes ring;
  put(ring, read_entry(1, 0, 8));
  sink.full = true;
  data(entries, ring);
  EXPECT_TRUE(sink.frames.empty());
  sink.full = false;
  const std::vector<Qpn> two{next(Opcode::kRcReadRequest).to, next(Opcode::kRcReadRequest).to};
  EXPECT_THAT(two, testing::UnorderedElementsAre(Qpn(0x111), pool.qpn)) << "a probe, and what had to wait";
}

TEST_F(SwitchEngineTest, ProbesChannelsInTurnOneASlot) {
  std::vector<ConnectionEnd> ends{control};
  for (std::uint32_t i = 1; i < 3; ++i) {
    ends.push_back(
        engine
            .attach(
                now,
                {.layout = layout, .address = kBlock, .key = kBlockKey, .host = end_of(1, 0x111 + i, 0), .mtu = kMtu})
            .value()
            .engine);
  }
  const auto answer_from = [&](const Seen& read, ByteView payload) {
    const std::uint32_t i = read.to.value - 0x111;
    EXPECT_TRUE(give(answer(end_of(1, read.to.value, 0), ends[i], Opcode::kRcReadResponseOnly, read.psn, payload)));
  };
  std::vector<Time> when[3];
  for (int i = 0; i < 60; ++i) {
    const Seen seen = next();
    if (seen.opcode == Opcode::kRcWriteOnly) {
      EXPECT_TRUE(
          give(answer(end_of(1, seen.to.value, 0), ends[seen.to.value - 0x111], Opcode::kRcAcknowledge, seen.psn, {})));
    } else if (seen.reth.length == kLine) {
      when[seen.to.value - 0x111].push_back(now);
      answer_from(seen, line(0));
    } else {
      answer_from(seen, Bytes(400));
    }
  }
  std::vector<Time> all;
  for (const auto& one : when) {
    EXPECT_GE(one.size(), 15u);
    all.insert(all.end(), one.begin(), one.end());
    for (std::size_t i = 2; i < one.size(); ++i)
      EXPECT_GE(one[i] - one[i - 1], Duration::microseconds(5)) << "each third slot";
  }
  std::sort(all.begin(), all.end());
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_GE(all[i] - all[i - 1], Duration::microseconds(2));
}

TEST_F(SwitchEngineTest, AnIdleChannelIsProbedEverLessOften) {
  data(next(Opcode::kRcReadRequest), Bytes(400));
  Time last;
  Duration longest{};
  for (int i = 0; i < 20'000; ++i) {
    const Seen seen = next();
    if (seen.opcode == Opcode::kRcWriteOnly) {
      ack(seen);
      continue;
    }
    if (last != Time()) longest = std::max(longest, now - last);
    last = now;
    data(seen, line(0));
    if (longest >= Duration::microseconds(999)) break;
  }
  EXPECT_GE(longest, Duration::microseconds(999));
  EXPECT_GE(now, Time::at(config().awake));
}

TEST_F(SwitchEngineTest, RefusesWhatItCannotServe) {
  const ChannelConfig good{.layout = layout, .address = kBlock, .key = kBlockKey, .host = end_of(1, 1, 0), .mtu = kMtu};
  auto bad = good;
  bad.mtu = 256;
  EXPECT_THAT(engine.attach(now, bad).error().message, testing::HasSubstr("path MTU of 256; 512 to 4096"));
  bad = good;
  bad.channel = 1;
  EXPECT_THAT(engine.attach(now, bad).error().message, testing::HasSubstr("channel 1 of 1"));
  bad = good;
  bad.layout.shape.entries = 3;
  EXPECT_THAT(engine.attach(now, bad).error().message, testing::HasSubstr("power of two"));
  const auto second = engine.attach(now, good).value();
  EXPECT_THAT(engine.connect(now, second.id, {.node = 7, .host = host, .pool = pool, .mtu = kMtu}).error().message,
              testing::HasSubstr("belongs to another channel"));
  EXPECT_FALSE(engine.connect(now, 99, {.node = 7, .host = host, .pool = pool, .mtu = kMtu}));
}

}  // namespace
}  // namespace sluice::cowbird
