#include "wire/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <numeric>
#include <thread>
#include <tuple>
#include <vector>

#include "base/effort_test.h"
#include "base/instructions.h"
#include "base/rng.h"
#include "wire/frame_inline.h"
#include "wire/icrc.h"
#include "wire/icrc_inline.h"

namespace sluice::wire {
namespace {

AddressVector address(bool v6, bool vlan) {
  AddressVector a{.source_mac = MacAddress::parse("02:00:00:00:00:01").value(),
                  .destination_mac = MacAddress::parse("02:00:00:00:00:02").value(),
                  .source = Gid::parse(v6 ? "fd00::1" : "10.0.0.1").value(),
                  .destination = Gid::parse(v6 ? "fd00::2" : "10.0.0.2").value(),
                  .source_port = 0xC123,
                  .traffic_class = 0x02};
  if (vlan) a.vlan_tci = 0x6064;
  return a;
}

// A WRITE of `length` bytes 0, 1, 2 ...
std::vector<std::uint8_t> write_only(const AddressVector& from, std::size_t length) {
  const HeaderTemplate headers(from);
  const std::uint8_t pad = pad_for(length);
  const std::size_t transport = Bth::kSize + Reth::kSize + length + pad;
  std::vector<std::uint8_t> frame(headers.frame_size(transport));
  std::uint8_t* p = frame.data() + headers.write(frame.data(), transport);
  Bth{.opcode = Opcode::kRcWriteOnly,
      .pad_count = pad,
      .destination = Qpn(0x11),
      .ack_request = true,
      .psn = Psn(0xFFFFFE)}
      .write(p);
  Reth{.virtual_address = 0x1122334455667788, .rkey = RKey(7), .length = static_cast<std::uint32_t>(length)}.write(
      p + Bth::kSize);
  std::iota(p + Bth::kSize + Reth::kSize, p + Bth::kSize + Reth::kSize + length, std::uint8_t{0});
  EXPECT_EQ(headers.seal(frame.data(), frame.size() - kIcrcSize), frame.size());
  return frame;
}

// Gives an edited IPv4 header without VLAN its checksum again.
void fix_checksum(std::vector<std::uint8_t>& frame) { store_be(frame.data() + 24, ipv4_checksum(frame.data() + 14)); }

Verdict verdict_of(const std::vector<std::uint8_t>& frame) {
  ParsedFrame parsed;
  return parse(frame, parsed);
}

class FrameOver : public testing::TestWithParam<std::tuple<bool, bool, std::size_t>> {};
INSTANTIATE_TEST_SUITE_P(Networks, FrameOver,
                         testing::Combine(testing::Bool(), testing::Bool(),
                                          testing::Values(std::size_t{0}, std::size_t{1}, std::size_t{4},
                                                          std::size_t{63}, std::size_t{4096})));

TEST_P(FrameOver, ParsesToWhatWasWritten) {
  const auto [v6, vlan, length] = GetParam();
  const auto frame = write_only(address(v6, vlan), length);
  ParsedFrame parsed;
  ASSERT_EQ(parse_and_verify(frame, parsed), Verdict::kOk);
  EXPECT_EQ(parsed.is_v4, !v6);
  EXPECT_EQ(parsed.has_vlan, vlan);
  EXPECT_EQ(parsed.vlan_tci, vlan ? 0x6064 : 0);
  EXPECT_EQ(parsed.opcode, Opcode::kRcWriteOnly);
  EXPECT_EQ(parsed.destination, Qpn(0x11));
  EXPECT_EQ(parsed.psn, Psn(0xFFFFFE));
  EXPECT_EQ(parsed.length, frame.size());
  EXPECT_EQ(parsed.payload_length, length);
  EXPECT_EQ(parsed.ecn(), Ecn::kCapable0);
  EXPECT_TRUE(parsed.ack_request);
  EXPECT_EQ(get<Reth>(frame.data(), parsed), (Reth{0x1122334455667788, RKey(7), static_cast<std::uint32_t>(length)}));
  for (std::size_t i = 0; i < length; ++i) ASSERT_EQ(payload(frame.data(), parsed)[i], i % 256);
  EXPECT_EQ(source_gid(frame.data(), parsed), address(v6, vlan).source);
  EXPECT_EQ(destination_gid(frame.data(), parsed), address(v6, vlan).destination);
}

TEST_P(FrameOver, EndsWhereIpSaysThoughEthernetPadsIt) {
  const auto [v6, vlan, length] = GetParam();
  auto frame = write_only(address(v6, vlan), length);
  const std::size_t unpadded = frame.size();
  frame.resize(unpadded + 17, 0xEE);
  ParsedFrame parsed;
  ASSERT_EQ(parse_and_verify(frame, parsed), Verdict::kOk);
  EXPECT_EQ(parsed.length, unpadded);
  EXPECT_EQ(parsed.payload_length, length);
}

TEST_P(FrameOver, RefusesEveryTruncation) {
  const auto [v6, vlan, length] = GetParam();
  const auto frame = write_only(address(v6, vlan), length);
  for (std::size_t n = 0; n < frame.size(); ++n) {
    const std::vector<std::uint8_t> cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(n));
    ASSERT_NE(verdict_of(cut), Verdict::kOk) << n;
  }
}

TEST_P(FrameOver, AnswersTheWayItCame) {
  const auto [v6, vlan, length] = GetParam();
  const auto frame = write_only(address(v6, vlan), length);
  ParsedFrame parsed;
  ASSERT_EQ(parse(frame, parsed), Verdict::kOk);
  const AddressVector there = address(v6, vlan);
  AddressVector expected = there;
  std::swap(expected.source, expected.destination);
  std::swap(expected.source_mac, expected.destination_mac);
  EXPECT_EQ(AddressVector::reply_to(frame.data(), parsed), expected);
}

TEST_P(FrameOver, MarksCongestionWithoutTouchingTheIcrc) {
  const auto [v6, vlan, length] = GetParam();
  auto frame = write_only(address(v6, vlan), length);
  ParsedFrame parsed;
  ASSERT_EQ(parse(frame, parsed), Verdict::kOk);
  mark_congestion(frame.data(), parsed);
  ParsedFrame again;
  ASSERT_EQ(parse_and_verify(frame, again), Verdict::kOk);
  EXPECT_EQ(again.ecn(), Ecn::kCongestionExperienced);
  EXPECT_EQ(again.traffic_class, parsed.traffic_class);
}

TEST(Frame, NamesWhatIsWrong) {
  const auto good = write_only(address(false, false), 8);
  constexpr std::size_t ip = 14;
  constexpr std::size_t udp = 34;
  constexpr std::size_t bth = 42;
  struct Case {
    const char* what;
    Verdict expected;
    std::function<void(std::vector<std::uint8_t>&)> damage;
  };
  const Case cases[] = {
      {"no Ethernet", Verdict::kTruncatedEthernet, [](auto& f) { f.resize(13); }},
      {"half a VLAN tag", Verdict::kTruncatedEthernet, [](auto& f) { f[12] = 0x81, f[13] = 0, f.resize(17); }},
      {"ARP", Verdict::kNotIp, [](auto& f) { f[13] = 0x06; }},
      {"half an IP header", Verdict::kTruncatedIp, [](auto& f) { f.resize(ip + 19); }},
      {"IPv5", Verdict::kBadIpVersion, [](auto& f) { f[ip] = 0x55; }},
      {"IPv4 options", Verdict::kBadIpHeaderLength, [](auto& f) { f[ip] = 0x46; }},
      {"IP longer than the frame", Verdict::kBadIpLength, [](auto& f) { f.pop_back(); }},
      {"IP shorter than its header", Verdict::kBadIpLength, [](auto& f) { f[ip + 2] = 0, f[ip + 3] = 19; }},
      {"checksum", Verdict::kBadIpChecksum, [](auto& f) { f[ip + 10] ^= 1; }},
      {"fragment", Verdict::kFragment, [](auto& f) { f[ip + 6] = 0x20, fix_checksum(f); }},
      {"TCP", Verdict::kNotUdp, [](auto& f) { f[ip + 9] = 6, fix_checksum(f); }},
      {"no UDP", Verdict::kTruncatedUdp, [](auto& f) { f[ip + 3] = 27, fix_checksum(f); }},
      {"DNS", Verdict::kNotRoce, [](auto& f) { f[udp + 2] = 0, f[udp + 3] = 53; }},
      {"UDP length", Verdict::kBadUdpLength, [](auto& f) { f[udp + 5] ^= 4; }},
      {"no BTH", Verdict::kTruncatedBth, [](auto& f) { f[ip + 3] = 43, f[udp + 5] = 23, fix_checksum(f); }},
      {"BTH version", Verdict::kBadTransportVersion, [](auto& f) { f[bth + 1] |= 1; }},
      {"opcode", Verdict::kUnknownOpcode, [](auto& f) { f[bth] = 0x15; }},
      {"half a RETH", Verdict::kTruncatedExtended, [](auto& f) { f[ip + 3] = 56, f[udp + 5] = 36, fix_checksum(f); }},
      {"a READ request with payload", Verdict::kUnexpectedPayload, [](auto& f) { f[bth] = 0x0C; }},
      {"pad without payload", Verdict::kBadPad,
       [](auto& f) { f[ip + 3] = 60, f[udp + 5] = 40, f[bth + 1] |= 0x10, fix_checksum(f); }},
      {"not a multiple of four", Verdict::kBadPad, [](auto& f) { f[ip + 3] -= 1, f[udp + 5] -= 1, fix_checksum(f); }},
  };
  EXPECT_EQ(verdict_of(good), Verdict::kOk);
  for (const Case& c : cases) {
    auto frame = good;
    c.damage(frame);
    EXPECT_EQ(to_string(verdict_of(frame)), to_string(c.expected)) << c.what;
  }
}

TEST(Frame, RefusesIpv6ThatClaimsToBeIpv4) {
  for (const std::size_t address_at : {14U + 8U, 14U + 24U}) {
    auto frame = write_only(address(true, false), 8);
    const Gid mapped = Gid::parse("10.0.0.1").value();
    std::copy(mapped.bytes.begin(), mapped.bytes.end(), frame.begin() + static_cast<std::ptrdiff_t>(address_at));
    EXPECT_EQ(verdict_of(frame), Verdict::kBadIpAddress);
  }
}

TEST(Frame, TakesIpv6AddressesThatOnlyResembleMappedOnes) {
  for (const char* text : {"::1", "::10.0.0.1", "fd00::ffff:10.0.0.1", "::fffe:10.0.0.1"}) {
    AddressVector from = address(true, false);
    from.source = Gid::parse(text).value();
    EXPECT_EQ(verdict_of(write_only(from, 8)), Verdict::kOk) << text;
    std::swap(from.source, from.destination);
    EXPECT_EQ(verdict_of(write_only(from, 8)), Verdict::kOk) << text;
  }
}

TEST(Frame, RefusesMoreThanItsLimitEvenWhenIpCanSayIt) {
  const std::size_t longest = kMaxFrameSize - 42 - Bth::kSize - Reth::kSize - kIcrcSize;
  EXPECT_EQ(verdict_of(write_only(address(false, false), longest - longest % 4)), Verdict::kOk);
  EXPECT_EQ(verdict_of(write_only(address(false, false), longest + 4)), Verdict::kOversized);
}

auto fields(const ParsedFrame& p) {
  return std::tuple(p.length, p.ip_offset, p.bth_offset, p.payload_offset, p.payload_length, p.vlan_tci, p.pkey,
                    p.traffic_class, p.pad_count, p.opcode, p.is_v4, p.has_vlan, p.solicited, p.ack_request, p.fecn,
                    p.becn, p.destination, p.psn);
}

[[SLUICE_FOR_NEW_MACHINES]] Verdict parse_there(ByteView frame, ParsedFrame& out) {
  return parse_on_new_machine(frame, out);
}

// Frames as they are, and with up to three bytes of their headers changed, with more or less behind them, and with any opcode.
TEST(Frame, IsParsedAlikeHoweverItIsParsed) {
  if (!has_new_instructions()) GTEST_SKIP();
  Rng rng(5);
  std::size_t sound = 0;
  for (int i = 0; i < 200'000; ++i) {
    auto frame = write_only(address(rng.below(8) == 0, rng.below(8) == 0), rng.below(6) * rng.below(30));
    if (rng.below(2) == 0) frame[42] = static_cast<std::uint8_t>(rng.below(256));
    for (auto k = rng.below(4); k-- > 0;) {
      const std::size_t at = rng.below(2) == 0 ? 12 + rng.below(46) : rng.below(frame.size());
      frame[at] = static_cast<std::uint8_t>(rng.below(4) == 0 ? rng.below(256) : frame[at] ^ 1u << rng.below(8));
    }
    if (rng.below(2) == 0) fix_checksum(frame);
    if (rng.below(4) == 0) frame.resize(rng.below(frame.size() + 20));
    ParsedFrame plain;
    ParsedFrame common;
    ParsedFrame there;
    const Verdict verdict = parse(frame, plain);
    ASSERT_EQ(parse_inline(frame, common), verdict) << i;
    ASSERT_EQ(parse_there(frame, there), verdict) << i;
    if (verdict != Verdict::kOk) continue;
    ++sound;
    ASSERT_EQ(fields(common), fields(plain)) << i;
    ASSERT_EQ(fields(there), fields(plain)) << i;
  }
  EXPECT_GT(sound, 50'000u);
}

// Frames lie in memory that their sender can still write to.
TEST(Frame, HasTheOpcodeThatItWasCheckedForWhoeverChangesItMeanwhile) {
  if (kThreadSanitizer) GTEST_SKIP() << "a race by intent";
  const HeaderTemplate headers(address(false, false));
  std::vector<std::uint8_t> frame(headers.frame_size(Bth::kSize + Aeth::kSize));
  std::uint8_t* const bth = frame.data() + headers.write(frame.data(), Bth::kSize + Aeth::kSize);
  Bth{.opcode = Opcode::kRcAcknowledge}.write(bth);
  std::atomic<bool> done{false};
  std::thread sender([&] {
    const std::atomic_ref opcode(*bth);
    while (!done) {
      opcode.store(static_cast<std::uint8_t>(Opcode::kRcAtomicAcknowledge), std::memory_order_relaxed);
      opcode.store(static_cast<std::uint8_t>(Opcode::kRcAcknowledge), std::memory_order_relaxed);
    }
  });
  std::size_t sound = 0;
  std::size_t wrong = 0;
  for (std::uint64_t i = 0; i < usual_effort(10'000'000); ++i) {
    ParsedFrame parsed;
    const Verdict verdict =
        i % 4 != 0 && has_new_instructions() ? parse_there(frame, parsed) : parse_inline(frame, parsed);
    if (verdict != Verdict::kOk) continue;  // as an answer to an atomic it would be too short
    ++sound;
    wrong += parsed.opcode == Opcode::kRcAcknowledge ? 0 : 1;
  }
  done = true;
  sender.join();
  EXPECT_GT(sound, 0u);
  EXPECT_EQ(wrong, 0u);
}

TEST(Frame, FindsAnyFlippedBitByChecksumOrIcrcUnlessItIsMasked) {
  const auto good = write_only(address(false, false), 8);
  for (std::size_t bit = 14 * 8; bit < good.size() * 8; ++bit) {
    auto frame = good;
    frame[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    ParsedFrame parsed;
    const std::size_t byte = bit / 8;
    const bool masked = byte == 34 + 6 || byte == 34 + 7 || byte == 42 + 4;  // UDP checksum, BTH reserved
    EXPECT_EQ(parse_and_verify(frame, parsed) == Verdict::kOk, masked) << "byte " << byte << " bit " << bit % 8;
  }
}

TEST(Frame, FindsAnyFlippedBitOverIpv6UnlessItIsMasked) {
  const auto good = write_only(address(true, false), 8);
  for (std::size_t bit = 14 * 8; bit < good.size() * 8; ++bit) {
    auto frame = good;
    frame[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    ParsedFrame parsed;
    const std::size_t byte = bit / 8;
    const bool of_ip = (byte == 14 && bit % 8 < 4) || (byte > 14 && byte < 18) || byte == 21;  // class, flow, hop limit
    const bool masked = of_ip || byte == 54 + 6 || byte == 54 + 7 || byte == 62 + 4;
    EXPECT_EQ(parse_and_verify(frame, parsed) == Verdict::kOk, masked) << "byte " << byte << " bit " << bit % 8;
  }
}

// A17.3.3 to the letter: a copy of the packet with ones where routers may write, behind eight bytes of ones.
TEST_P(FrameOver, HasTheIcrcOfAMaskedCopy) {
  const auto [v6, vlan, length] = GetParam();
  const auto frame = write_only(address(v6, vlan), length);
  const std::ptrdiff_t ip = vlan ? 18 : 14;
  std::vector<std::uint8_t> copy(frame.begin() + ip, frame.end() - kIcrcSize);
  const std::size_t udp = v6 ? 40 : 20;
  if (v6) copy[0] |= 0x0F;
  for (const std::size_t byte : v6 ? std::vector<std::size_t>{1, 2, 3, 7} : std::vector<std::size_t>{1, 8, 10, 11})
    copy[byte] = 0xFF;
  for (const std::size_t byte : {udp + 6, udp + 7, udp + 8 + 4}) copy[byte] = 0xFF;
  copy.insert(copy.begin(), 8, 0xFF);
  EXPECT_EQ(crc32::update(0, copy), load_le<std::uint32_t>(frame.data() + frame.size() - kIcrcSize));
}

TEST(Frame, GivesADatagramReceiverItsGrh) {
  for (const bool v6 : {false, true}) {
    const auto frame = write_only(address(v6, false), 8);
    ParsedFrame parsed;
    ASSERT_EQ(parse(frame, parsed), Verdict::kOk);
    std::array<std::uint8_t, Grh::kSize> grh;
    grh.fill(0xEE);
    write_received_grh(frame.data(), parsed, grh.data());
    if (v6) {
      EXPECT_EQ(Grh::parse(grh.data()).source, address(true, false).source);
    } else {
      EXPECT_EQ(grh[0] | grh[19], 0);
      EXPECT_EQ(Ipv4Header::parse(grh.data() + 20).source, address(false, false).source.v4());
    }
  }
}

[[SLUICE_FOR_NEW_MACHINES]] void write_answer_inline(const PacketTemplate& packet, std::uint8_t* out,
                                                     const std::array<std::uint64_t, 2>& fields) {
  write_inline<AtomicAckEth::kSize, 0>(packet, out, fields);
}

[[SLUICE_FOR_NEW_MACHINES]] void write_plain_answer_inline(const PacketTemplate& packet, std::uint8_t* out,
                                                           const std::array<std::uint64_t, 2>& fields) {
  constexpr std::size_t kTransport = Bth::kSize + Aeth::kSize + AtomicAckEth::kSize;
  write_plain_inline<kTransport, AtomicAckEth::kSize, 0>(packet, out, fields);
}

TEST(PacketTemplate, WritesWhatItsHeadersAndFieldsWrittenByHandWouldBe) {
  Rng rng(11);
  for (const bool v6 : {false, true}) {
    for (const bool tagged : {false, true}) {
      const HeaderTemplate headers(address(v6, tagged));
      constexpr std::size_t kTransport = Bth::kSize + Aeth::kSize + AtomicAckEth::kSize;
      std::array<std::uint8_t, kTransport> transport{};
      const Bth bth{.opcode = Opcode::kRcAtomicAcknowledge, .destination = Qpn(0x123456)};
      bth.write(transport.data());
      const PacketTemplate packet(headers, transport);
      for (int i = 0; i < 100; ++i) {
        Bth expected_bth = bth;
        expected_bth.psn = Psn(static_cast<std::uint32_t>(rng.next()));
        const Aeth aeth = Aeth::ack(static_cast<std::uint32_t>(rng.below(1u << 24)));
        const std::uint64_t original = rng.next();
        std::vector<std::uint8_t> expected(headers.frame_size(kTransport));
        const std::size_t at = headers.write(expected.data(), kTransport);
        expected_bth.write(expected.data() + at);
        aeth.write(expected.data() + at + Bth::kSize);
        AtomicAckEth{original}.write(expected.data() + at + Bth::kSize + Aeth::kSize);
        headers.seal(expected.data(), at + kTransport);
        std::vector<std::uint8_t> written(packet.frame_size());
        const std::array<PacketTemplate::Field, 2> fields = {
            {{load_le<std::uint64_t>(expected.data() + at + 8), AtomicAckEth::kSize}, {swap_bytes(original), 0}}};
        packet.write(written.data(), fields);
        ASSERT_EQ(written, expected);
        if (!has_new_instructions()) continue;
        std::ranges::fill(written, std::uint8_t{0});
        write_answer_inline(packet, written.data(), {fields[0].bytes, fields[1].bytes});
        ASSERT_EQ(written, expected);
        if (v6 || tagged) continue;
        std::ranges::fill(written, std::uint8_t{0});
        write_plain_answer_inline(packet, written.data(), {fields[0].bytes, fields[1].bytes});
        ASSERT_EQ(written, expected);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::wire
