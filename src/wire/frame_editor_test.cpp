#include "wire/frame_editor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/instructions.h"
#include "base/rng.h"
#include "wire/frame_inline.h"
#include "wire/icrc.h"
#include "wire/icrc_inline.h"

namespace sluice::wire {
namespace {

constexpr std::uint64_t kSeed = 4791;

MacAddress random_mac(Rng& rng) {
  MacAddress mac;
  for (auto& byte : mac.bytes) byte = static_cast<std::uint8_t>(rng.next());
  return mac;
}

Gid random_gid(Rng& rng, bool v4) {
  if (v4) return Gid::from(Ipv4Address{static_cast<std::uint32_t>(rng.next())});
  Gid gid;
  for (auto& byte : gid.bytes) byte = static_cast<std::uint8_t>(rng.next());
  gid.bytes[0] = 0xFD;
  return gid;
}

AddressVector random_route(Rng& rng, bool v4) {
  AddressVector route{.source_mac = random_mac(rng),
                      .destination_mac = random_mac(rng),
                      .source = random_gid(rng, v4),
                      .destination = random_gid(rng, v4),
                      .source_port = static_cast<std::uint16_t>(0xC000 | rng.below(0x4000)),
                      .traffic_class = static_cast<std::uint8_t>(rng.next()),
                      .hop_limit = static_cast<std::uint8_t>(rng.next()),
                      .flow_label = static_cast<std::uint32_t>(rng.below(1 << 20))};
  if (rng.below(4) == 0) route.vlan_tci = static_cast<std::uint16_t>(rng.next());
  return route;
}

// All random: network, opcode, header contents, payload; in a buffer of kMaxFrameSize.
struct RandomFrame {
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(kMaxFrameSize);
  std::size_t length = 0;
  ParsedFrame parsed;

  ByteView view() const { return {bytes.data(), length}; }

  void fill(Rng& rng, Opcode opcode, std::size_t payload_length) {
    const HeaderTemplate headers(random_route(rng, rng.below(2) == 0));
    const OpcodeTraits& traits = opcode_traits(opcode);
    const std::uint8_t pad = pad_for(payload_length);
    const std::size_t body = traits.extended_length + payload_length + pad;
    std::uint8_t* p = bytes.data() + headers.write(bytes.data(), Bth::kSize + body);
    Bth{.opcode = opcode,
        .pad_count = pad,
        .fecn = rng.below(2) == 0,
        .destination = Qpn(static_cast<std::uint32_t>(rng.below(1 << 24))),
        .ack_request = rng.below(2) == 0,
        .psn = Psn(static_cast<std::uint32_t>(rng.next()))}
        .write(p);
    for (std::size_t i = 0; i < body; i += 4) store_le(p + Bth::kSize + i, static_cast<std::uint32_t>(rng.next()));
    length = headers.seal(bytes.data(), static_cast<std::size_t>(p - bytes.data()) + Bth::kSize + body);
    ASSERT_EQ(parse(view(), parsed), Verdict::kOk);
  }
};

Opcode random_opcode(Rng& rng) {
  for (;;) {
    const auto code = static_cast<std::uint8_t>(rng.next());
    if (opcode_traits(code).valid) return static_cast<Opcode>(code);
  }
}

std::vector<std::uint8_t> random_bytes(Rng& rng, std::size_t length) {
  std::vector<std::uint8_t> bytes(length);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(rng.next());
  return bytes;
}

bool same(const ParsedFrame& a, const ParsedFrame& b) {
  return a.length == b.length && a.payload_offset == b.payload_offset && a.payload_length == b.payload_length &&
         a.opcode == b.opcode && a.pad_count == b.pad_count && a.destination == b.destination && a.psn == b.psn &&
         a.ack_request == b.ack_request;
}

// One edit drawn at random; returns whether it may be followed by another that looks behind the BTH.
void random_edit(Rng& rng, FrameEditor& editor, const ParsedFrame& parsed) {
  switch (rng.below(5)) {
    case 0: return editor.set_destination(Qpn(static_cast<std::uint32_t>(rng.below(1 << 24))));
    case 1: return editor.set_psn(Psn(static_cast<std::uint32_t>(rng.next())));
    case 2: return editor.set_ack_request(rng.below(2) == 0);
    case 3: return editor.set_route(random_route(rng, parsed.is_v4));
    default: break;
  }
  const std::size_t words = (parsed.icrc_offset() - parsed.extended_offset()) / 4;
  if (words == 0) return;
  const std::size_t first = rng.below(words);
  const std::size_t count = 1 + rng.below(std::min<std::size_t>(words - first, 12));
  editor.set_bytes(parsed.extended_offset() + 4 * first, random_bytes(rng, 4 * count));
}

void random_replacement(Rng& rng, FrameEditor& editor, const ParsedFrame& parsed) {
  Opcode opcode = random_opcode(rng);
  if (rng.below(2) == 0) {
    const std::size_t payload = opcode_traits(opcode).has_payload ? rng.below(64) : 0;
    const std::uint8_t pad = pad_for(payload);
    return editor.replace_body(opcode, random_bytes(rng, opcode_traits(opcode).extended_length + payload + pad), pad);
  }
  while (parsed.payload_length != 0 && !opcode_traits(opcode).has_payload) opcode = random_opcode(rng);
  editor.replace_extended(opcode, random_bytes(rng, opcode_traits(opcode).extended_length));
}

// Ten random edits a frame: with replacements, as many frames as make two million changes in all.
TEST(FrameEditor, KeepsTheIcrcRightThroughRandomEdits) {
  Rng rng(kSeed);
  RandomFrame frame;
  constexpr int kFrames = 100'000;
  std::size_t changes = 0;
  for (int i = 0; i < kFrames; ++i) {
    const Opcode opcode = random_opcode(rng);
    const std::size_t longest = i % 16 == 0 ? 4000 : 128;
    frame.fill(rng, opcode, opcode_traits(opcode).has_payload ? rng.below(longest) : 0);
    ParsedFrame& parsed = frame.parsed;
    for (int round = 0; round < 4; ++round) {
      FrameEditor editor(frame.bytes.data(), parsed);
      for (int edit = 0; edit < 5; ++edit) random_edit(rng, editor, parsed);
      const bool replace = rng.below(2) == 0 && parsed.length < kMaxFrameSize - 64;
      if (replace) random_replacement(rng, editor, parsed);
      frame.length = editor.commit();
      changes += replace ? 6 : 5;
    }
    ParsedFrame again;
    ASSERT_EQ(parse_and_verify(frame.view(), again), Verdict::kOk) << "seed " << kSeed << " frame " << i;
    ASSERT_TRUE(same(parsed, again)) << "seed " << kSeed << " frame " << i;
  }
  EXPECT_GE(changes, 2'000'000u);
}

TEST(FrameEditor, PatchesOneWordAsAnEditorWould) {
  Rng rng(kSeed);
  RandomFrame frame;
  for (int i = 0; i < 20'000; ++i) {
    const Opcode opcode = random_opcode(rng);
    frame.fill(rng, opcode, opcode_traits(opcode).has_payload ? rng.below(i % 16 == 0 ? 4000 : 128) : 0);
    const std::size_t words = (frame.parsed.icrc_offset() - frame.parsed.extended_offset()) / 4;
    if (words < 2) continue;
    if (rng.below(4) == 0) frame.bytes[frame.parsed.icrc_offset()] ^= 1;  // stays wrong
    const std::size_t at = frame.parsed.extended_offset() + 4 * rng.below(words - 1);
    const std::uint64_t word = rng.next();
    std::vector<std::uint8_t> edited(frame.bytes.begin(), frame.bytes.end());
    ParsedFrame parsed = frame.parsed;
    std::array<std::uint8_t, 8> bytes;
    store_le(bytes.data(), word);
    FrameEditor editor(edited.data(), parsed);
    editor.set_bytes(at, bytes);
    editor.commit();
    patch_word(frame.bytes.data(), frame.parsed, at, word);
    ASSERT_TRUE(std::ranges::equal(ByteView(edited).first(parsed.length), frame.view())) << i;
  }
}

// These are compiled for new machines only, as what they are inlined into is.
[[SLUICE_FOR_NEW_MACHINES]] bool verified_inline(const RandomFrame& frame) {
  return verify_icrc_inline(frame.bytes.data(), frame.parsed);
}

TEST(Icrc, VerifiedInlineIsTheSame) {
  if (!has_new_instructions()) GTEST_SKIP() << "an old machine";
  Rng rng(kSeed);
  RandomFrame frame;
  for (int i = 0; i < 50'000; ++i) {
    const Opcode opcode = random_opcode(rng);
    frame.fill(rng, opcode, opcode_traits(opcode).has_payload ? rng.below(i % 16 == 0 ? 4000 : 300) : 0);
    ParsedFrame parsed;
    ASSERT_EQ(parse_inline(frame.view(), parsed), Verdict::kOk);
    ASSERT_TRUE(same(parsed, frame.parsed));
    ASSERT_TRUE(verified_inline(frame)) << i;
    const std::size_t covered = frame.parsed.length - frame.parsed.ip_offset;
    frame.bytes[frame.parsed.ip_offset + rng.below(covered)] ^= static_cast<std::uint8_t>(1 + rng.below(255));
    ASSERT_EQ(verified_inline(frame), verify_icrc(frame.bytes.data(), frame.parsed)) << i;
  }
}

template <std::size_t kTransport>
[[SLUICE_FOR_NEW_MACHINES]] bool verified_plain(const RandomFrame& frame) {
  return verify_plain_icrc_inline<kTransport>(frame.bytes.data(), frame.parsed);
}

TEST(Icrc, VerifiedInlineOfAPlainFrameIsTheSame) {
  if (!has_new_instructions()) GTEST_SKIP() << "an old machine";
  constexpr std::size_t kAck = Bth::kSize + Aeth::kSize;
  constexpr std::size_t kAtomic = Bth::kSize + AtomicEth::kSize;
  constexpr std::size_t kWrite = Bth::kSize + Reth::kSize + 40;
  Rng rng(kSeed);
  RandomFrame frame;
  int plain = 0;
  for (std::size_t i = 0; i < 30'000; ++i) {
    const Opcode opcode = std::array{Opcode::kRcAcknowledge, Opcode::kRcFetchAdd, Opcode::kRcWriteOnly}[i % 3];
    frame.fill(rng, opcode, i % 3 == 2 ? 40 : 0);
    if (!frame.parsed.is_plain()) continue;
    ++plain;
    const auto verified = [&] {
      return i % 3 == 0   ? verified_plain<kAck>(frame)
             : i % 3 == 1 ? verified_plain<kAtomic>(frame)
                          : verified_plain<kWrite>(frame);
    };
    ASSERT_TRUE(verified()) << i;
    const std::size_t covered = frame.parsed.length - frame.parsed.ip_offset;
    frame.bytes[frame.parsed.ip_offset + rng.below(covered)] ^= static_cast<std::uint8_t>(1 + rng.below(255));
    ASSERT_EQ(verified(), verify_icrc(frame.bytes.data(), frame.parsed)) << i;
  }
  EXPECT_GT(plain, 1'000);
}

TEST(FrameEditor, LeavesAWrongIcrcWrong) {
  Rng rng(kSeed);
  RandomFrame frame;
  for (int i = 0; i < 20'000; ++i) {
    const Opcode opcode = random_opcode(rng);
    frame.fill(rng, opcode, opcode_traits(opcode).has_payload ? rng.below(256) : 0);
    // A burst of up to 32 bits, which CRC-32 always finds.
    const std::size_t at =
        frame.parsed.extended_offset() + rng.below(frame.length - frame.parsed.extended_offset() - 3);
    const auto damage = static_cast<std::uint32_t>(1 + rng.below(0xFFFF'FFFF));
    store_le(frame.bytes.data() + at, load_le<std::uint32_t>(frame.bytes.data() + at) ^ damage);
    ASSERT_EQ(parse_and_verify(frame.view(), frame.parsed), Verdict::kBadIcrc);

    FrameEditor editor(frame.bytes.data(), frame.parsed);
    random_edit(rng, editor, frame.parsed);
    if (i % 2 == 0) random_replacement(rng, editor, frame.parsed);
    frame.length = editor.commit();
    ParsedFrame again;
    ASSERT_EQ(parse_and_verify(frame.view(), again), Verdict::kBadIcrc) << "seed " << kSeed << " frame " << i;
  }
}

TEST(FrameEditor, TurnsACompareSwapIntoAWriteFourBytesShorter) {
  Rng rng(kSeed);
  RandomFrame frame;
  frame.fill(rng, Opcode::kRcCompareSwap, 0);
  const std::size_t before = frame.length;
  const auto atomic = get<AtomicEth>(frame.bytes.data(), frame.parsed);

  std::array<std::uint8_t, Reth::kSize + 8> body;
  Reth{atomic.virtual_address, atomic.rkey, 8}.write(body.data());
  store_be(body.data() + Reth::kSize, atomic.swap_or_add);
  FrameEditor editor(frame.bytes.data(), frame.parsed);
  editor.replace_body(Opcode::kRcWriteOnly, body);
  frame.length = editor.commit();

  EXPECT_EQ(frame.length, before - 4);
  ParsedFrame again;
  ASSERT_EQ(parse_and_verify(frame.view(), again), Verdict::kOk);
  EXPECT_EQ(get<Reth>(frame.bytes.data(), again), (Reth{atomic.virtual_address, atomic.rkey, 8}));
  EXPECT_EQ(again.payload_length, 8);
}

TEST(FrameEditor, TurnsAnAckIntoAnAtomicAckEightBytesLonger) {
  Rng rng(kSeed);
  RandomFrame frame;
  frame.fill(rng, Opcode::kRcAcknowledge, 0);
  const std::size_t before = frame.length;
  const auto aeth = get<Aeth>(frame.bytes.data(), frame.parsed);

  std::array<std::uint8_t, Aeth::kSize + AtomicAckEth::kSize> extended;
  aeth.write(extended.data());
  AtomicAckEth{0x0123456789ABCDEF}.write(extended.data() + Aeth::kSize);
  FrameEditor editor(frame.bytes.data(), frame.parsed);
  editor.replace_extended(Opcode::kRcAtomicAcknowledge, extended);
  frame.length = editor.commit();

  EXPECT_EQ(frame.length, before + 8);
  ParsedFrame again;
  ASSERT_EQ(parse_and_verify(frame.view(), again), Verdict::kOk);
  EXPECT_EQ(get<Aeth>(frame.bytes.data(), again), aeth);
  EXPECT_EQ(get<AtomicAckEth>(frame.bytes.data(), again).original, 0x0123456789ABCDEFu);
}

TEST(FrameEditor, TurnsAReadResponseIntoAWriteAndKeepsItsPayload) {
  Rng rng(kSeed);
  RandomFrame frame;
  frame.fill(rng, Opcode::kRcReadResponseOnly, 1021);
  const auto data = payload(frame.bytes.data(), frame.parsed);
  const std::vector<std::uint8_t> before(data.begin(), data.end());

  const Reth reth{0x7000, RKey(99), 1021};
  std::array<std::uint8_t, Reth::kSize> extended;
  reth.write(extended.data());
  FrameEditor editor(frame.bytes.data(), frame.parsed);
  editor.replace_extended(Opcode::kRcWriteOnly, extended);
  editor.set_destination(Qpn(0x123));
  frame.length = editor.commit();

  ParsedFrame again;
  ASSERT_EQ(parse_and_verify(frame.view(), again), Verdict::kOk);
  EXPECT_EQ(get<Reth>(frame.bytes.data(), again), reth);
  EXPECT_EQ(again.destination, Qpn(0x123));
  const auto after = payload(frame.bytes.data(), again);
  EXPECT_EQ(std::vector<std::uint8_t>(after.begin(), after.end()), before);
}

}  // namespace
}  // namespace sluice::wire
