// The responder, one request packet at a time: past, in order, future, malformed, at the limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "rc/crafted_peer.h"
#include "wire/bth.h"

namespace sluice::rc {
namespace {

using enum wire::Opcode;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using wire::Aeth;
using wire::NakCode;
using Packet = CraftedPeer::Packet;

constexpr std::uint64_t kBase = CraftedPeer::kBase;
constexpr Psn kFirst{0x1000};  // what the responder expects first

std::vector<std::uint8_t> bytes(std::size_t length, std::uint8_t start = 1) {
  std::vector<std::uint8_t> out(length);
  std::iota(out.begin(), out.end(), start);
  return out;
}

class ResponderTest : public ::testing::Test {
 protected:
  using Answer = CraftedPeer::Answer;

  void restart(const CraftedOptions& o, const AdapterConfig& config = {}) {
    p = std::make_unique<CraftedPeer>(o, config);
  }
  Packet write(Psn psn, const std::vector<std::uint8_t>& data, std::uint64_t address = kBase) const {
    return {.opcode = kRcWriteOnly,
            .psn = psn,
            .extended = CraftedPeer::reth(address, p->key, static_cast<std::uint32_t>(data.size())),
            .payload = data};
  }
  Packet write_first(Psn psn, std::uint32_t length, std::size_t mtu = 1024) const {
    return {.opcode = kRcWriteFirst,
            .psn = psn,
            .ack_request = false,
            .extended = CraftedPeer::reth(kBase, p->key, length),
            .payload = bytes(mtu)};
  }
  Packet read(Psn psn, std::uint32_t length, std::uint64_t address = kBase) const {
    return {.opcode = kRcReadRequest, .psn = psn, .extended = CraftedPeer::reth(address, p->key, length)};
  }
  Packet fetch_add(Psn psn, std::uint64_t add, std::uint64_t address = kBase) const {
    return {.opcode = kRcFetchAdd, .psn = psn, .extended = CraftedPeer::atomic(address, p->key, add)};
  }
  static Packet send(Psn psn, const std::vector<std::uint8_t>& data) {
    return {.opcode = kRcSendOnly, .psn = psn, .payload = data};
  }
  std::vector<Answer> ask(const Packet& packet) {
    p->deliver(packet);
    return p->answers();
  }
  void expect_ack(const std::vector<Answer>& answers, Psn psn, std::uint32_t msn) {
    ASSERT_THAT(answers, SizeIs(1));
    EXPECT_EQ(answers[0].opcode(), kRcAcknowledge);
    EXPECT_TRUE(answers[0].aeth().is_ack());
    EXPECT_EQ(answers[0].psn(), psn);
    EXPECT_EQ(answers[0].aeth().msn, msn);
    EXPECT_EQ(answers[0].parsed.destination, CraftedPeer::kPeerQpn);
  }
  // A fatal refusal: the NAK leaves, the queue pair ends, memory is as it was.
  void expect_refusal(const std::vector<Answer>& answers, Psn psn, NakCode code) {
    ASSERT_THAT(answers, SizeIs(1));
    EXPECT_EQ(answers[0].opcode(), kRcAcknowledge);
    ASSERT_TRUE(answers[0].aeth().is_nak());
    EXPECT_EQ(answers[0].aeth().nak_code(), code);
    EXPECT_EQ(answers[0].psn(), psn);
    EXPECT_EQ(p->pair->state(), QpState::kError);
  }
  void expect_silence(const Packet& packet, const std::uint64_t& counter) {
    const std::uint64_t before = counter;
    EXPECT_THAT(ask(packet), IsEmpty());
    EXPECT_EQ(counter, before + 1);
  }
  std::uint64_t word() const { return load_le<std::uint64_t>(&p->storage[CraftedPeer::kGuard]); }
  void set_word(std::uint64_t value) { store_le(&p->storage[CraftedPeer::kGuard], value); }
  bool region_begins_with(const std::vector<std::uint8_t>& data, std::size_t at = 0) const {
    return std::equal(data.begin(), data.end(), p->storage.begin() + static_cast<long>(CraftedPeer::kGuard + at));
  }

  std::unique_ptr<CraftedPeer> p = std::make_unique<CraftedPeer>();
};

// --- in order ---

TEST_F(ResponderTest, ExecutesAWriteAndAcknowledgesIt) {
  expect_ack(ask(write(kFirst, bytes(9))), kFirst, 1);
  EXPECT_TRUE(region_begins_with(bytes(9)));
  EXPECT_TRUE(p->guards_intact());
  EXPECT_EQ(p->pair->expected_psn(), kFirst + 1);
  EXPECT_THAT(p->completed(), IsEmpty()) << "a WRITE is not noticed";
}

TEST_F(ResponderTest, AcknowledgesOnlyWhenAsked) {
  Packet quiet = write(kFirst, bytes(8));
  quiet.ack_request = false;
  EXPECT_THAT(ask(quiet), IsEmpty());
  expect_ack(ask(write(kFirst + 1, bytes(8))), kFirst + 1, 2);
}

TEST_F(ResponderTest, AcknowledgesABurstOnceOrEachAsConfigured) {
  for (const bool coalesce : {true, false}) {
    AdapterConfig config;
    config.coalesce_acks = coalesce;
    restart({}, config);
    for (std::uint32_t i = 0; i < 5; ++i) p->deliver(write(kFirst + i, bytes(8)));
    const auto answers = p->answers();
    EXPECT_EQ(answers.size(), coalesce ? 1u : 5u);
    EXPECT_EQ(answers.back().psn(), kFirst + 4);
    EXPECT_EQ(answers.back().aeth().msn, 5u);
  }
}

TEST_F(ResponderTest, PutsAMessageOfSeveralPacketsTogetherAndCountsItOnce) {
  const auto data = bytes(1024);
  p->deliver(write_first(kFirst, 2148));
  p->deliver({.opcode = kRcWriteMiddle, .psn = kFirst + 1, .ack_request = false, .payload = data});
  EXPECT_THAT(p->answers(), IsEmpty());
  expect_ack(ask({.opcode = kRcWriteLast, .psn = kFirst + 2, .payload = bytes(100)}), kFirst + 2, 1);
  EXPECT_TRUE(region_begins_with(data));
  EXPECT_TRUE(region_begins_with(data, 1024));
  EXPECT_TRUE(region_begins_with(bytes(100), 2048));
}

TEST_F(ResponderTest, AnswersAReadInPackets) {
  const auto answers = ask(read(kFirst, 2500, kBase + 3));
  ASSERT_THAT(answers, SizeIs(3));
  EXPECT_EQ(answers[0].opcode(), kRcReadResponseFirst);
  EXPECT_EQ(answers[1].opcode(), kRcReadResponseMiddle);
  EXPECT_EQ(answers[2].opcode(), kRcReadResponseLast);
  std::size_t at = 3;
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(answers[i].psn(), kFirst + i);
    const auto data = answers[i].payload();
    EXPECT_EQ(data.size(), i < 2 ? 1024u : 452u);
    EXPECT_TRUE(region_begins_with({data.begin(), data.end()}, at));
    at += data.size();
  }
  EXPECT_EQ(answers[0].aeth().msn, 1u);
  EXPECT_EQ(p->pair->expected_psn(), kFirst + 3) << "a READ takes a PSN for each packet of its answer";
}

TEST_F(ResponderTest, ExecutesAtomicsAndAnswersWithWhatWasThere) {
  set_word(40);
  auto answers = ask(fetch_add(kFirst, 2));
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].opcode(), kRcAtomicAcknowledge);
  EXPECT_EQ(answers[0].get<wire::AtomicAckEth>().original, 40u);
  EXPECT_EQ(word(), 42u);

  answers = ask({.opcode = kRcCompareSwap, .psn = kFirst + 1, .extended = CraftedPeer::atomic(kBase, p->key, 7, 42)});
  EXPECT_EQ(answers[0].get<wire::AtomicAckEth>().original, 42u);
  EXPECT_EQ(word(), 7u);

  answers = ask({.opcode = kRcMaskedCompareSwap,
                 .psn = kFirst + 2,
                 .extended = CraftedPeer::written(wire::MaskedAtomicEth{.virtual_address = kBase,
                                                                        .rkey = wire::RKey{p->key.value},
                                                                        .swap = 0xF0,
                                                                        .compare = 0x03,
                                                                        .swap_mask = 0xF0,
                                                                        .compare_mask = 0x03})});
  EXPECT_EQ(answers[0].get<wire::AtomicAckEth>().original, 7u);
  EXPECT_EQ(word(), 0xF7u);
}

TEST_F(ResponderTest, FillsReceivesInOrderWithImmediateAndSolicitation) {
  std::vector<std::uint8_t> buffer(16);
  const Sge into = Sge::of(buffer);
  p->post_receive(1, {&into, 1});
  p->post_receive(2);
  Packet message = send(kFirst, bytes(5));
  message.opcode = kRcSendOnlyImmediate;
  message.solicited = true;
  message.extended = CraftedPeer::written(wire::ImmDt{0xABCD});
  expect_ack(ask(message), kFirst, 1);
  expect_ack(ask({.opcode = kRcWriteOnlyImmediate,
                  .psn = kFirst + 1,
                  .extended =
                      [&] {
                        auto headers = CraftedPeer::reth(kBase, p->key, 4);
                        const auto immediate = CraftedPeer::written(wire::ImmDt{7});
                        headers.insert(headers.end(), immediate.begin(), immediate.end());
                        return headers;
                      }(),
                  .payload = bytes(4)}),
             kFirst + 1, 2);
  const auto done = p->completed();
  ASSERT_THAT(done, SizeIs(2));
  EXPECT_EQ(done[0].id, 1u);
  EXPECT_EQ(done[0].length, 5u);
  EXPECT_EQ(done[0].immediate, 0xABCDu);
  EXPECT_TRUE(done[0].solicited);
  EXPECT_EQ(done[1].id, 2u);
  EXPECT_EQ(done[1].kind, CompletionKind::kReceiveWithImmediate);
  EXPECT_EQ(done[1].length, 4u);
  EXPECT_TRUE(std::equal(buffer.begin(), buffer.begin() + 5, bytes(5).begin()));
}

TEST_F(ResponderTest, TakesMessagesOfNothing) {
  p->key = memory::Key{0xBAD};  // of no bytes the key is not checked
  expect_ack(ask(write(kFirst, {}, ~0ull)), kFirst, 1);
  const auto answers = ask(read(kFirst + 1, 0, ~0ull));
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].opcode(), kRcReadResponseOnly);
  EXPECT_THAT(answers[0].payload(), IsEmpty());
  p->post_receive(3);
  expect_ack(ask(send(kFirst + 2, {})), kFirst + 2, 3);
  EXPECT_EQ(p->completed().at(0).length, 0u);
  EXPECT_TRUE(p->memory_untouched());
}

TEST_F(ResponderTest, GoesOnAcrossTheWrapOfThePsn) {
  CraftedOptions options;
  options.receive_psn = Psn(0xFF'FFFF);
  restart(options);
  expect_ack(ask(write(Psn(0xFF'FFFF), bytes(8))), Psn(0xFF'FFFF), 1);
  expect_ack(ask(write(Psn(0), bytes(8))), Psn(0), 2);
  expect_ack(ask(write(Psn(0xFF'FFFF), bytes(8, 99))), Psn(0), 2);
  EXPECT_TRUE(region_begins_with(bytes(8))) << "the duplicate from before the wrap is not executed";
  EXPECT_THAT(ask(read(Psn(1), 3000)), SizeIs(3));
  EXPECT_EQ(p->pair->expected_psn(), Psn(4));
}

// --- past ---

TEST_F(ResponderTest, AcknowledgesADuplicateWriteAndDoesNotExecuteItAgain) {
  ask(write(kFirst, bytes(8)));
  ask(write(kFirst + 1, bytes(8, 50)));
  expect_ack(ask(write(kFirst, bytes(8))), kFirst + 1, 2);
  EXPECT_TRUE(region_begins_with(bytes(8, 50)));
  EXPECT_EQ(p->counters().rx_duplicate_requests, 1u);
  Packet quiet = write(kFirst, bytes(8));
  quiet.ack_request = false;
  expect_silence(quiet, p->counters().rx_duplicate_requests);
}

TEST_F(ResponderTest, AcknowledgesADuplicateSendAndTakesNoSecondReceive) {
  p->post_receive(1);
  p->post_receive(2);
  ask(send(kFirst, {}));
  expect_ack(ask(send(kFirst, {})), kFirst, 1);
  EXPECT_THAT(p->completed(), SizeIs(1));
}

TEST_F(ResponderTest, ADuplicateInsideAMessageDoesNotDisturbIt) {
  p->deliver(write_first(kFirst, 1030));
  p->deliver(write_first(kFirst, 1030));
  expect_ack(ask({.opcode = kRcWriteLast, .psn = kFirst + 1, .payload = bytes(6)}), kFirst + 1, 1);
}

TEST_F(ResponderTest, AnswersADuplicateAtomicFromItsRecordWithoutExecutingItAgain) {
  set_word(1);
  ask(fetch_add(kFirst, 10));
  ask(fetch_add(kFirst + 1, 100));
  for (int i = 0; i < 3; ++i) {
    const auto answers = ask(fetch_add(kFirst, 10));
    ASSERT_THAT(answers, SizeIs(1));
    EXPECT_EQ(answers[0].psn(), kFirst);
    EXPECT_EQ(answers[0].get<wire::AtomicAckEth>().original, 1u);
  }
  EXPECT_EQ(word(), 111u);
}

TEST_F(ResponderTest, StaysSilentToAnAtomicTooOldToBeOnRecord) {
  for (std::uint32_t i = 0; i < 20; ++i) ask(fetch_add(kFirst + i, 1));
  expect_silence(fetch_add(kFirst, 1), p->counters().rx_stale_duplicates);
  EXPECT_EQ(p->pair->state(), QpState::kReadyToSend);
}

TEST_F(ResponderTest, ExecutesADuplicateReadAgainFromAnyPacketOn) {
  ask(read(kFirst, 4096));
  auto answers = ask(read(kFirst + 1, 3072, kBase + 1024));
  ASSERT_THAT(answers, SizeIs(3));
  EXPECT_EQ(answers[0].psn(), kFirst + 1);
  EXPECT_EQ(answers[0].opcode(), kRcReadResponseFirst);
  EXPECT_EQ(answers[2].opcode(), kRcReadResponseLast);
  answers = ask(read(kFirst + 3, 1024, kBase + 3072));
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].opcode(), kRcReadResponseOnly);
  answers = ask(read(kFirst, 1024));
  ASSERT_THAT(answers, SizeIs(1)) << "a requester may ask for less at a time than before";
  EXPECT_EQ(p->pair->expected_psn(), kFirst + 4);
}

TEST_F(ResponderTest, StaysSilentToADuplicateReadThatAsksForOtherBytes) {
  ask(read(kFirst, 2048));
  auto& stale = p->counters().rx_stale_duplicates;
  expect_silence(read(kFirst, 2049), stale);
  expect_silence(read(kFirst, 2048, kBase + 8), stale);
  expect_silence(read(kFirst + 1, 1024, kBase), stale);
  expect_silence(read(kFirst, 1000), stale);
  expect_silence(fetch_add(kFirst, 1), stale);
  p->key = memory::Key{p->key.value ^ 1};
  expect_silence(read(kFirst, 2048), stale);
}

TEST_F(ResponderTest, ADuplicateDoesNotAcknowledgeAReadWhoseAnswerMayBeLost) {
  ask(write(kFirst, bytes(8)));
  ask(read(kFirst + 1, 8));
  expect_ack(ask(write(kFirst, bytes(8))), kFirst, 2);
}

TEST_F(ResponderTest, FindsTheNewestRecordWhenPsnsHaveComeRound) {
  AdapterCounters counters;
  Connection connection{.pd = p->pd, .regions = &p->adapter->regions(), .counters = &counters};
  connection.path_ready = true;
  connection.access = memory::kAllAccess;
  connection.headers = wire::HeaderTemplate(CraftedPeer::way_to_us());
  SharedReceiveQueue receives(p->pd, 1, 1);
  Responder responder(connection, receives, false, true, 4);
  const auto ask_alone = [&](const Packet& packet) {
    const auto frame = p->frame_of(packet);
    wire::ParsedFrame parsed;
    EXPECT_EQ(wire::parse_and_verify(frame, parsed), wire::Verdict::kOk);
    responder.on_request(p->now, frame.data(), parsed);
    FrameList sink;
    EXPECT_TRUE(responder.poll_transmit(p->now, sink));
    EXPECT_EQ(wire::parse_and_verify(sink.frames.at(0), parsed), wire::Verdict::kOk);
    return wire::get<wire::AtomicAckEth>(sink.frames[0].data(), parsed).original;
  };
  responder.start(kFirst);
  set_word(5);
  EXPECT_EQ(ask_alone(fetch_add(kFirst, 1)), 5u);
  responder.start(kFirst);  // as if 2^24 packets had passed
  EXPECT_EQ(ask_alone(fetch_add(kFirst, 1)), 6u);
  EXPECT_EQ(ask_alone(fetch_add(kFirst, 1)), 6u) << "a duplicate of the newer one";
  EXPECT_EQ(word(), 7u);
}

// --- future ---

TEST_F(ResponderTest, NaksAGapOnceAndNamesTheExpectedPsn) {
  ask(write(kFirst, bytes(8)));
  const auto answers = ask(write(kFirst + 2, bytes(8, 9)));
  ASSERT_THAT(answers, SizeIs(1));
  ASSERT_TRUE(answers[0].aeth().is_nak());
  EXPECT_EQ(answers[0].aeth().nak_code(), NakCode::kPsnSequenceError);
  EXPECT_EQ(answers[0].psn(), kFirst + 1);
  EXPECT_EQ(answers[0].aeth().msn, 1u);
  expect_silence(write(kFirst + 3, bytes(8, 9)), p->counters().rx_out_of_sequence);
  expect_silence(read(kFirst + 4, 8), p->counters().rx_out_of_sequence);
  EXPECT_TRUE(region_begins_with(bytes(8))) << "nothing of the future has been executed";

  ask(write(kFirst + 1, bytes(8)));
  EXPECT_THAT(ask(write(kFirst + 7, bytes(8))), SizeIs(1)) << "a new gap, a new NAK";
}

TEST_F(ResponderTest, TakesHalfOfAllPsnsForTheFutureAndHalfForThePast) {
  EXPECT_THAT(ask(write(kFirst + 0x7F'FFFF, bytes(8))), SizeIs(1));
  EXPECT_EQ(p->counters().rx_out_of_sequence, 1u);
  ask(write(kFirst + 0x80'0000, bytes(8)));
  EXPECT_EQ(p->counters().rx_duplicate_requests, 1u);
  EXPECT_TRUE(p->memory_untouched());
}

// --- malformed ---

struct Malformed {
  const char* name;
  std::vector<Packet> before{};  // in order
  Packet packet{};               // PSN of its own set by the test
  NakCode code = NakCode::kInvalidRequest;
};

class MalformedRequest : public ResponderTest, public ::testing::WithParamInterface<int> {
 protected:
  std::vector<Malformed> cases() const {
    const auto first = write_first({}, 3000);
    const Packet send_first{.opcode = kRcSendFirst, .ack_request = false, .payload = bytes(1024)};
    Packet short_first = first, long_first = first, ends_at_once = first;
    short_first.payload = bytes(1020);
    long_first.payload = bytes(1028);
    ends_at_once.extended = CraftedPeer::reth(kBase, p->key, 1024);
    Packet long_only = write({}, bytes(1025));
    Packet promises_more = write({}, bytes(8));
    promises_more.extended = CraftedPeer::reth(kBase, p->key, 9);
    Packet promises_less = write({}, bytes(8));
    promises_less.extended = CraftedPeer::reth(kBase, p->key, 7);
    Packet huge = first;
    huge.extended = CraftedPeer::reth(kBase, p->key, (1u << 31) + 1);
    Packet other_key = write({}, bytes(8));
    other_key.extended = CraftedPeer::reth(kBase, memory::Key{p->key.value ^ 1}, 8);
    const Packet last{.opcode = kRcWriteLast, .payload = bytes(8)};
    return {
        {"MiddleOfNothing", {}, {.opcode = kRcWriteMiddle, .payload = bytes(1024)}},
        {"LastOfNothing", {}, last},
        {"SendLastOfNothing", {}, {.opcode = kRcSendLast, .payload = bytes(8)}},
        {"MessageWithinAMessage", {first}, write({}, bytes(8))},
        {"ReadWithinAMessage", {first}, read({}, 8)},
        {"AtomicWithinAMessage", {first}, fetch_add({}, 1)},
        {"SendWithinAWrite", {first}, {.opcode = kRcSendLast, .payload = bytes(8)}},
        {"WriteWithinASend", {send_first}, last},
        {"FirstShorterThanTheMtu", {}, short_first},
        {"FirstLongerThanTheMtu", {}, long_first},
        {"FirstThatIsAlreadyAll", {}, ends_at_once},
        {"OnlyLongerThanTheMtu", {}, long_only},
        {"MiddleShorterThanTheMtu", {first}, {.opcode = kRcWriteMiddle, .payload = bytes(512)}},
        {"LastOfNoBytes", {first}, {.opcode = kRcWriteLast}},
        {"SendLastOfNoBytes", {send_first}, {.opcode = kRcSendLast}},
        {"LastTooShortForThePromise", {first}, last},
        {"MiddleWhereTheLastShouldBe", {write_first({}, 2048)}, {.opcode = kRcWriteMiddle, .payload = bytes(1024)}},
        {"WriteThatPromisesMore", {}, promises_more},
        {"WriteThatPromisesLess", {}, promises_less},
        {"WriteOfMoreThanAMessage", {}, huge},
        {"ReadOfMoreThanAMessage", {}, read({}, (1u << 31) + 1)},
        {"AtomicAtAnOddAddress", {}, fetch_add({}, 1, kBase + 4)},
        {"WriteWithAWrongKey", {}, other_key, NakCode::kRemoteAccessError},
        {"WriteBeforeTheRegion", {}, write({}, bytes(8), kBase - 1), NakCode::kRemoteAccessError},
        {"WriteBehindTheRegion", {}, write({}, bytes(8), kBase + CraftedPeer::kSize - 7), NakCode::kRemoteAccessError},
        {"WriteAroundTheEndOfAddresses", {}, write({}, bytes(8), ~0ull - 3), NakCode::kRemoteAccessError},
        {"ReadBehindTheRegion", {}, read({}, 8, kBase + CraftedPeer::kSize - 7), NakCode::kRemoteAccessError},
        {"ReadOfAllThereCanBe", {}, read({}, 1u << 31), NakCode::kRemoteAccessError},
        {"AtomicBehindTheRegion", {}, fetch_add({}, 1, kBase + CraftedPeer::kSize), NakCode::kRemoteAccessError},
    };
  }
};

TEST_P(MalformedRequest, IsRefusedByNameAndNothingIsExecutedAnyMore) {
  const Malformed test = cases().at(static_cast<std::size_t>(GetParam()));
  SCOPED_TRACE(test.name);
  std::vector<std::uint8_t> buffer(4096);
  const Sge into = Sge::of(buffer);
  p->post_receive(1, {&into, 1});
  Psn psn = kFirst;
  for (Packet packet : test.before) {
    packet.psn = psn;
    ++psn;
    EXPECT_THAT(ask(packet), IsEmpty());
  }
  const auto memory = p->storage;
  Packet packet = test.packet;
  packet.psn = psn;
  p->deliver(packet);
  // Until the NAK has left nothing more is executed.
  p->deliver(write(psn, bytes(8)));
  EXPECT_EQ(p->counters().rx_wrong_state, 1u);
  expect_refusal(p->answers(), psn, test.code);
  EXPECT_EQ(p->counters().rx_invalid_requests + p->counters().rx_access_errors, 1u);
  EXPECT_EQ(p->storage, memory);
  const auto done = p->completed();
  ASSERT_THAT(done, SizeIs(1)) << "the receive, flushed";
  EXPECT_EQ(done[0].status, CompletionStatus::kFlushed);
  EXPECT_THAT(ask(write(psn, bytes(8))), IsEmpty());
  EXPECT_EQ(p->counters().rx_wrong_state, 2u);
}
INSTANTIATE_TEST_SUITE_P(All, MalformedRequest, ::testing::Range(0, 29));

TEST_F(ResponderTest, RefusesWhatTheQueuePairDoesNotAllow) {
  for (const auto& [access, refused] :
       std::vector<std::pair<memory::Access, int>>{{memory::kRemoteRead | memory::kRemoteAtomic, 0},
                                                   {memory::kRemoteWrite | memory::kRemoteAtomic, 1},
                                                   {memory::kRemoteWrite | memory::kRemoteRead, 2}}) {
    const Packet requests[] = {write({}, bytes(8)), read({}, 8), fetch_add({}, 1)};
    CraftedOptions options;
    options.access = access;
    for (int i = 0; i < 3; ++i) {
      restart(options);
      Packet packet = requests[i];
      packet.psn = kFirst;
      const auto answers = ask(packet);
      ASSERT_THAT(answers, SizeIs(1));
      EXPECT_EQ(answers[0].aeth().is_nak(), i == refused);
    }
  }
}

TEST_F(ResponderTest, AppliesNewAccessRightsFromTheNextPacketOn) {
  p->deliver(write_first(kFirst, 1030));
  p->must(p->modify({.access = memory::kRemoteRead}));
  expect_refusal(ask({.opcode = kRcWriteLast, .psn = kFirst + 1, .payload = bytes(6)}), kFirst + 1,
                 NakCode::kInvalidRequest);
}

TEST_F(ResponderTest, ASendLongerThanItsReceiveIsRefusedAndItsCompletionSaysWhy) {
  std::vector<std::uint8_t> buffer(1500, 0xEE);
  const Sge into{reinterpret_cast<std::uintptr_t>(buffer.data()), 1100};
  p->post_receive(4, {&into, 1});
  p->deliver({.opcode = kRcSendFirst, .psn = kFirst, .payload = bytes(1024)});
  p->answers();
  expect_refusal(ask({.opcode = kRcSendLast, .psn = kFirst + 1, .payload = bytes(77)}), kFirst + 1,
                 NakCode::kInvalidRequest);
  const auto done = p->completed();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].status, CompletionStatus::kLocalLengthError);
  EXPECT_THAT(std::span(buffer).subspan(1100), ::testing::Each(0xEE));
}

TEST_F(ResponderTest, RefusesToInvalidateARegionOfAnotherDomain) {
  p->post_receive(1);
  const auto other = p->adapter->create_domain();
  const auto key = p->adapter->regions().add({.pd = other, .bytes = p->region(), .access = memory::kAllAccess}).value();
  Packet packet = send(kFirst, {});
  packet.opcode = kRcSendOnlyInvalidate;
  packet.extended = CraftedPeer::written(wire::Ieth{wire::RKey{key.value}});
  expect_refusal(ask(packet), kFirst, NakCode::kRemoteAccessError);
  EXPECT_EQ(p->adapter->regions().translate(key, other, 0, 1, memory::kRemoteRead).fault, memory::AccessFault::kNone);
}

TEST_F(ResponderTest, RefusesToInvalidateARegionForLocalUseOnly) {
  p->post_receive(1);
  const auto key =
      p->adapter->regions().add({.pd = p->pd, .bytes = p->region(), .access = memory::kLocalWrite}).value();
  Packet packet = send(kFirst, {});
  packet.opcode = kRcSendOnlyInvalidate;
  packet.extended = CraftedPeer::written(wire::Ieth{wire::RKey{key.value}});
  expect_refusal(ask(packet), kFirst, NakCode::kRemoteAccessError);
  EXPECT_EQ(p->adapter->regions().translate(key, p->pd, 0, 1, memory::kLocalWrite).fault, memory::AccessFault::kNone);
}

TEST_F(ResponderTest, RefusesToInvalidateARegionThatIsNotForPeersToInvalidate) {
  p->post_receive(1);
  const auto key = p->adapter->regions().add({.pd = p->pd, .bytes = p->region(), .access = memory::kAllAccess}).value();
  Packet packet = send(kFirst, {});
  packet.opcode = kRcSendOnlyInvalidate;
  packet.extended = CraftedPeer::written(wire::Ieth{wire::RKey{key.value}});
  expect_refusal(ask(packet), kFirst, NakCode::kRemoteAccessError);
  EXPECT_EQ(p->adapter->regions().translate(key, p->pd, 0, 1, memory::kRemoteRead).fault, memory::AccessFault::kNone);
}

TEST_F(ResponderTest, InvalidatesARegionOfItsOwnDomain) {
  p->post_receive(1);
  Packet packet = send(kFirst, {});
  packet.opcode = kRcSendOnlyInvalidate;
  packet.extended = CraftedPeer::written(wire::Ieth{wire::RKey{p->key.value}});
  expect_ack(ask(packet), kFirst, 1);
  EXPECT_TRUE(p->completed().at(0).has_invalidate);
  expect_refusal(ask(write(kFirst + 1, bytes(8))), kFirst + 1, NakCode::kRemoteAccessError);
}

// --- at the limit ---

TEST_F(ResponderTest, AcceptsAsManyReadsAsAgreedAndRefusesOneMore) {
  for (std::uint32_t i = 0; i < 4; ++i) p->deliver(fetch_add(kFirst + i, 1));
  EXPECT_EQ(p->counters().rx_invalid_requests, 0u);
  p->deliver(fetch_add(kFirst + 4, 1));
  const auto answers = p->answers();
  ASSERT_THAT(answers, SizeIs(5)) << "those in time are answered first";
  EXPECT_EQ(answers[3].opcode(), kRcAtomicAcknowledge);
  EXPECT_EQ(answers[4].aeth().nak_code(), NakCode::kInvalidRequest);
}

TEST_F(ResponderTest, HasRoomForTheAnswersToAllReadsAgreedAndWhatComesBetweenThem) {
  AdapterConfig config;
  config.limits.max_reads_in_flight = 64;
  CraftedOptions options;
  options.max_reads = 64;
  restart(options, config);
  for (std::uint32_t i = 0; i < 64; ++i) {
    p->deliver(write(kFirst + 2 * i, bytes(8)));
    p->deliver(read(kFirst + (2 * i + 1), 8));
  }
  EXPECT_EQ(p->counters().rx_put_off, 0u);
  EXPECT_THAT(p->answers(), SizeIs(128));
}

TEST_F(ResponderTest, KeepsRoomForTheAnswersToReadsThoughEachAckHasItsOwn) {
  AdapterConfig config;
  config.coalesce_acks = false;
  restart({}, config);
  constexpr std::uint32_t kWrites = 100;
  for (std::uint32_t i = 0; i < kWrites; ++i) p->deliver(write(kFirst + i, bytes(8)));
  for (std::uint32_t i = 0; i < CraftedOptions{}.max_reads; ++i) p->deliver(read(kFirst + (kWrites + i), 8));
  EXPECT_EQ(p->counters().rx_put_off, 0u);
  EXPECT_EQ(p->answers().back().psn(), kFirst + (kWrites + CraftedOptions{}.max_reads - 1));
}

TEST_F(ResponderTest, LosesNoAnswerToAFloodOfDuplicates) {
  set_word(3);
  p->deliver(fetch_add(kFirst, 1));
  for (int i = 0; i < 500; ++i) p->deliver(fetch_add(kFirst, 1));
  p->deliver(write(kFirst + 1, bytes(8)));
  const auto answers = p->answers();
  EXPECT_LE(answers.size(), Responder::max_answers(CraftedOptions{}.max_reads));
  EXPECT_EQ(answers[0].get<wire::AtomicAckEth>().original, 3u);
  expect_ack(ask(write(kFirst + 1, bytes(8))), kFirst + 1, 2);
}

TEST_F(ResponderTest, PutsOffAReadOrAnAtomicForWhoseAnswerThereIsNoRoom) {
  set_word(3);
  ask(fetch_add(kFirst, 1));
  for (const Packet& packet : {read(kFirst + 1, 8), fetch_add(kFirst + 2, 1)}) {
    for (int i = 0; i < 100; ++i) p->deliver(fetch_add(kFirst, 1));
    const std::uint64_t before = word();
    p->deliver(packet);
    EXPECT_EQ(word(), before);
    EXPECT_EQ(p->pair->expected_psn(), packet.psn);
    for (const Answer& answer : p->answers()) {
      ASSERT_EQ(answer.psn(), kFirst);
      EXPECT_EQ(answer.get<wire::AtomicAckEth>().original, 3u);
    }
    EXPECT_THAT(ask(packet), SizeIs(1)) << "asked again";
  }
  EXPECT_EQ(p->counters().rx_put_off, 2u);
  EXPECT_EQ(word(), 5u);
}

TEST_F(ResponderTest, RefusesThoughManyAnswersWaitAndGivesThoseFirst) {
  ask(fetch_add(kFirst, 1));
  for (int i = 0; i < 100; ++i) p->deliver(fetch_add(kFirst, 1));
  p->deliver(write(kFirst + 1, bytes(1025)));
  auto answers = p->answers();
  ASSERT_THAT(answers, SizeIs(Responder::max_answers(CraftedOptions{}.max_reads)));
  EXPECT_TRUE(answers.back().aeth().is_nak());
  answers.pop_back();
  for (const Answer& answer : answers) EXPECT_EQ(answer.opcode(), kRcAtomicAcknowledge);
}

TEST_F(ResponderTest, ARefusalFollowsTheNakOfAGapBeforeIt) {
  p->deliver(write(kFirst + 1, bytes(8)));
  p->deliver(write(kFirst, bytes(1025)));
  FrameList one;
  one.room = 1;
  while (p->adapter->poll_transmit(p->now, one)) {
  }
  ASSERT_THAT(one.frames, SizeIs(1)) << "the NAK of the gap";
  EXPECT_EQ(p->pair->state(), QpState::kReadyToSend);
  expect_refusal(p->answers(), kFirst, NakCode::kInvalidRequest);
}

TEST_F(ResponderTest, ADuplicateAtomicThatWaitsDoesNotBringTheAnswerToALaterOne) {
  CraftedOptions options;
  options.max_reads = 16;
  restart(options);
  ask(fetch_add(kFirst, 1));
  p->deliver(fetch_add(kFirst, 1));
  for (std::uint32_t i = 1; i <= 16; ++i)
    p->deliver(fetch_add(kFirst + i, 1));  // the last takes the place of the first
  const auto answers = p->answers();
  ASSERT_THAT(answers, SizeIs(16));
  for (std::uint32_t i = 0; i < 16; ++i) EXPECT_EQ(answers[i].psn(), kFirst + i + 1);
}

TEST_F(ResponderTest, ADuplicateIsNoneOfTheReadsAgreed) {
  ask(read(kFirst, 8));
  p->deliver(read(kFirst, 8));
  for (std::uint32_t i = 1; i <= 4; ++i) p->deliver(read(kFirst + i, 8));
  FrameList one;
  one.room = 1;
  EXPECT_TRUE(p->adapter->poll_transmit(p->now, one)) << "of the duplicate";
  p->deliver(read(kFirst + 5, 8));
  EXPECT_EQ(p->counters().rx_invalid_requests, 1u) << "four are not answered yet";
}

TEST_F(ResponderTest, AcknowledgesTheNewestOfDuplicatesInAnyOrder) {
  ask(write(kFirst, bytes(8)));
  ask(write(kFirst + 1, bytes(8)));
  ask(read(kFirst + 2, 8));
  p->deliver(write(kFirst + 1, bytes(8)));
  p->deliver(write(kFirst, bytes(8)));
  expect_ack(p->answers(), kFirst + 1, 3);
}

TEST_F(ResponderTest, RefusesAnAtomicWhereTheMemoryItselfIsMisaligned) {
  constexpr std::uint64_t kElsewhere = 0x50'0000;
  const memory::Key key =
      p->adapter->regions()
          .add({.pd = p->pd, .bytes = p->region().subspan(4, 64), .address = kElsewhere, .access = memory::kAllAccess})
          .value();
  const Packet packet{.opcode = kRcFetchAdd, .psn = kFirst, .extended = CraftedPeer::atomic(kElsewhere, key, 1)};
  expect_refusal(ask(packet), kFirst, NakCode::kRemoteAccessError);
  EXPECT_TRUE(p->memory_untouched());
}

TEST_F(ResponderTest, TellsARequesterToWaitAndThenTakesTheMessage) {
  const auto answers = ask(send(kFirst, bytes(8)));
  ASSERT_THAT(answers, SizeIs(1));
  ASSERT_TRUE(answers[0].aeth().is_rnr_nak());
  EXPECT_EQ(answers[0].aeth().value(), 1);
  EXPECT_EQ(answers[0].psn(), kFirst);
  expect_silence(write(kFirst + 1, bytes(8)), p->counters().rx_out_of_sequence);
  EXPECT_THAT(ask(send(kFirst, bytes(8))), SizeIs(1)) << "asked again, told again";
  std::vector<std::uint8_t> buffer(8);
  const Sge into = Sge::of(buffer);
  p->post_receive(9, {&into, 1});
  expect_ack(ask(send(kFirst, bytes(8))), kFirst, 1);
  EXPECT_EQ(buffer, bytes(8));
}

TEST_F(ResponderTest, NeedsAReceiveForAWriteWithImmediateOnlyAtItsEnd) {
  p->deliver(write_first(kFirst, 1028));
  Packet last{.opcode = kRcWriteLastImmediate,
              .psn = kFirst + 1,
              .extended = CraftedPeer::written(wire::ImmDt{5}),
              .payload = bytes(4)};
  const auto answers = ask(last);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_TRUE(answers[0].aeth().is_rnr_nak());
  EXPECT_EQ(answers[0].psn(), kFirst + 1);
  EXPECT_FALSE(region_begins_with(bytes(4), 1024)) << "not executed yet";
  p->post_receive(1);
  expect_ack(ask(last), kFirst + 1, 1);
  EXPECT_EQ(p->completed().at(0).length, 1028u);
}

TEST_F(ResponderTest, AdvertisesItsReceivesAsCreditsWhenAsked) {
  AdapterConfig config;
  config.advertise_credits = true;
  restart({}, config);
  for (std::uint64_t i = 0; i < 5; ++i) p->post_receive(i);
  const auto answers = ask(send(kFirst, {}));
  ASSERT_THAT(answers, SizeIs(1));
  ASSERT_TRUE(answers[0].aeth().has_credits());
  EXPECT_EQ(answers[0].aeth().credits(), 4u);
}

TEST_F(ResponderTest, WritesNothingToARegionWithdrawnWithinAMessage) {
  p->deliver(write_first(kFirst, 1030));
  const auto before = p->storage;
  ASSERT_TRUE(p->adapter->regions().remove(p->key));
  expect_refusal(ask({.opcode = kRcWriteLast, .psn = kFirst + 1, .payload = bytes(6)}), kFirst + 1,
                 NakCode::kRemoteAccessError);
  EXPECT_EQ(p->storage, before);
}

TEST_F(ResponderTest, GoesOnWritingWhenAnotherRegionIsWithdrawnWithinAMessage) {
  const auto other = p->adapter->regions().add({.pd = p->pd, .bytes = p->region()}).value();
  p->deliver(write_first(kFirst, 1030));
  ASSERT_TRUE(p->adapter->regions().remove(other));
  expect_ack(ask({.opcode = kRcWriteLast, .psn = kFirst + 1, .payload = bytes(6)}), kFirst + 1, 1);
  EXPECT_TRUE(region_begins_with(bytes(6), 1024));
}

TEST_F(ResponderTest, WritesNothingToAReceiveWhoseRegionIsWithdrawnWithinAMessage) {
  const Sge into{kBase, 4096, p->key};
  p->post_receive(6, {&into, 1});
  p->deliver({.opcode = kRcSendFirst, .psn = kFirst, .ack_request = false, .payload = bytes(1024)});
  const auto before = p->storage;
  ASSERT_TRUE(p->adapter->regions().remove(p->key));
  expect_refusal(ask({.opcode = kRcSendLast, .psn = kFirst + 1, .payload = bytes(6)}), kFirst + 1,
                 NakCode::kRemoteOperationalError);
  EXPECT_EQ(p->completed().at(0).status, CompletionStatus::kLocalProtectionError);
  EXPECT_EQ(p->storage, before);
}

TEST_F(ResponderTest, LooksOnlyAtThePiecesOfAReceiveThatItFills) {
  const Sge nowhere{0x1234, 64, memory::Key{0x7777}};
  const Sge pieces[]{{kBase, 1024, p->key}, nowhere};
  p->post_receive(1, {&nowhere, 1});
  Packet notice = write(kFirst, bytes(8));
  notice.opcode = kRcWriteOnlyImmediate;
  notice.extended.resize(notice.extended.size() + wire::ImmDt::kSize);
  expect_ack(ask(notice), kFirst, 1);
  p->post_receive(2, {&nowhere, 1});
  expect_ack(ask(send(kFirst + 1, {})), kFirst + 1, 2);
  p->post_receive(3, pieces);
  expect_ack(ask(send(kFirst + 2, bytes(1024))), kFirst + 2, 3);
  for (const Completion& done : p->completed()) EXPECT_EQ(done.status, CompletionStatus::kSuccess) << done.id;

  p->post_receive(4, pieces);
  p->deliver({.opcode = kRcSendFirst, .psn = kFirst + 3, .ack_request = false, .payload = bytes(1024, 7)});
  EXPECT_TRUE(region_begins_with(bytes(1024, 7)));
  expect_refusal(ask({.opcode = kRcSendLast, .psn = kFirst + 4, .payload = bytes(1)}), kFirst + 4,
                 NakCode::kRemoteOperationalError);
  EXPECT_EQ(p->completed().at(0).status, CompletionStatus::kLocalProtectionError);
}

TEST_F(ResponderTest, APieceThatIsFullMayBeWithdrawnWithinTheMessage) {
  const auto header = p->adapter->regions()
                          .add({.pd = p->pd, .bytes = p->region(), .address = kBase, .access = memory::kAllAccess})
                          .value();
  const Sge pieces[]{{kBase, 1024, header}, {kBase + 1024, 64, p->key}};
  p->post_receive(1, pieces);
  p->deliver({.opcode = kRcSendFirst, .psn = kFirst, .ack_request = false, .payload = bytes(1024)});
  ASSERT_TRUE(p->adapter->regions().remove(header));
  expect_ack(ask({.opcode = kRcSendLast, .psn = kFirst + 1, .payload = bytes(64, 9)}), kFirst + 1, 1);
  EXPECT_TRUE(region_begins_with(bytes(64, 9), 1024));
}

TEST_F(ResponderTest, RefusesTheRestOfAReadWhoseRegionIsWithdrawnAndLetsNothingOvertakeThat) {
  p->deliver(read(kFirst, 3000));
  p->deliver(fetch_add(kFirst + 3, 1));
  FrameList sink;
  sink.room = 1;
  p->adapter->poll_transmit(p->now, sink);
  ASSERT_TRUE(p->adapter->regions().remove(p->key));
  expect_refusal(p->answers(), kFirst + 1, NakCode::kRemoteAccessError);
}

TEST_F(ResponderTest, AnswersAReadWholeBeforeItRefusesWhatFollows) {
  p->deliver(read(kFirst, 2500));
  Packet refused = write(kFirst + 3, bytes(64));
  refused.extended = CraftedPeer::reth(kBase, memory::Key{p->key.value ^ 0x7F00}, 64);
  p->deliver(refused);
  const auto answers = p->answers();
  ASSERT_THAT(answers, SizeIs(4));
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(answers[i].psn(), kFirst + i);
  EXPECT_EQ(answers[2].opcode(), kRcReadResponseLast);
  expect_refusal({answers[3]}, kFirst + 3, NakCode::kRemoteAccessError);
}

TEST_F(ResponderTest, ADuplicateReadWhoseRegionIsWithdrawnIsDroppedAloneAndWhatFollowsItIsAnswered) {
  EXPECT_THAT(ask(read(kFirst, 3000)), SizeIs(3));
  p->post_receive(1);
  p->deliver(read(kFirst, 3000));  // sent again though answered, and overtaken by the end of its region
  Packet withdrawal = send(kFirst + 3, {});
  withdrawal.opcode = kRcSendOnlyInvalidate;
  withdrawal.extended = CraftedPeer::written(wire::Ieth{wire::RKey{p->key.value}});
  p->deliver(withdrawal);
  expect_ack(p->answers(), kFirst + 3, 2);
  EXPECT_EQ(p->counters().rx_stale_duplicates, 1u);
  expect_silence(read(kFirst, 3000), p->counters().rx_stale_duplicates);
  EXPECT_EQ(p->pair->state(), QpState::kReadyToSend);
}

TEST_F(ResponderTest, StartsAnewAfterAResetWithFewerReads) {
  for (std::uint32_t i = 0; i < 4; ++i) ask(fetch_add(kFirst + i, 1));
  p->deliver(write_first(kFirst + 4, 3000));
  p->must(p->modify({.state = QpState::kReset}));
  p->options.max_reads = 1;
  p->make_ready();
  for (std::uint32_t i = 0; i < 9; ++i) EXPECT_THAT(ask(fetch_add(kFirst + i, 1)), SizeIs(1));
  expect_ack(ask(write(kFirst + 9, bytes(8))), kFirst + 9, 10);
  EXPECT_THAT(ask(read(kFirst + 10, 8)), SizeIs(1));
}

TEST_F(ResponderTest, StaysSilentToRecordsOfALifeBeforeTheReset) {
  const std::uint32_t places = p->adapter->config().limits.max_reads_in_flight;  // all are taken
  for (std::uint32_t i = 0; i < places; ++i) ask(fetch_add(kFirst + i, 1));
  p->must(p->modify({.state = QpState::kReset}));
  p->options.receive_psn = kFirst + places;
  p->make_ready();
  for (std::uint32_t i = 0; i < places; ++i) {
    expect_silence(fetch_add(kFirst + i, 1), p->counters().rx_stale_duplicates);
  }
}

TEST_F(ResponderTest, AcceptsAllReadsAgreedThoughSomeWaitedBeforeTheReset) {
  for (std::uint32_t i = 0; i < 4; ++i) p->deliver(read(kFirst + i, 8));
  p->must(p->modify({.state = QpState::kReset}));
  p->make_ready();
  for (std::uint32_t i = 0; i < 4; ++i) p->deliver(read(kFirst + i, 8));
  EXPECT_THAT(p->answers(), SizeIs(4));
  EXPECT_EQ(p->pair->state(), QpState::kReadyToSend);
}

TEST_F(ResponderTest, NaksTheFirstGapAfterAReset) {
  EXPECT_THAT(ask(write(kFirst + 1, bytes(8))), SizeIs(1));
  p->must(p->modify({.state = QpState::kReset}));
  p->make_ready();
  EXPECT_THAT(ask(write(kFirst + 1, bytes(8))), SizeIs(1));
}

TEST_F(ResponderTest, RefusesAllReadsWhenItAgreedToNone) {
  CraftedOptions options;
  options.max_reads = 0;
  restart(options);
  expect_refusal(ask(read(kFirst, 8)), kFirst, NakCode::kInvalidRequest);
}

TEST_F(ResponderTest, KeepsAnAnswerUntilTheSinkHasRoom) {
  p->deliver(read(kFirst, 3000));
  FrameList none;
  none.room = 0;
  EXPECT_FALSE(p->adapter->poll_transmit(p->now, none));
  FrameList two;
  two.room = 2;
  while (p->adapter->poll_transmit(p->now, two)) {
  }
  EXPECT_THAT(two.frames, SizeIs(2));
  EXPECT_THAT(p->answers(), SizeIs(1));
}

TEST_F(ResponderTest, LosesACompletionToAFullQueueOnceAndEndsTheQueuePair) {
  const Sge into{kBase, 64, p->key};
  std::uint64_t answered = 0;
  for (std::uint32_t i = 0; i < 300 && p->pair->state() == QpState::kReadyToSend; ++i) {
    if (i % 32 == 0) {
      for (std::uint64_t k = 0; k < 32; ++k) p->post_receive(k, {&into, 1});
    }
    answered += ask(send(kFirst + i, bytes(8))).size();
  }
  EXPECT_TRUE(p->completions->overrun());
  EXPECT_EQ(answered, 256u);
  EXPECT_EQ(p->pair->state(), QpState::kError);
  EXPECT_THAT(p->events, ElementsAre(AsyncEvent::Kind::kCommunicationEstablished,
                                     AsyncEvent::Kind::kCompletionQueueOverrun, AsyncEvent::Kind::kFatal));
}

TEST_F(ResponderTest, TellsOnceWhyItHasRefusedARequest) {
  Packet wrong_key = write(kFirst, bytes(8));
  wrong_key.extended = CraftedPeer::reth(kBase, memory::Key{1}, 8);
  p->deliver(wrong_key);
  EXPECT_THAT(p->events, IsEmpty()) << "the NAK has not left";
  expect_refusal(p->answers(), kFirst, NakCode::kRemoteAccessError);
  p->must(p->modify({.state = QpState::kError}));
  EXPECT_THAT(p->events, ElementsAre(AsyncEvent::Kind::kAccessError));

  restart({});
  expect_refusal(ask({.opcode = kRcWriteLast, .psn = kFirst, .payload = bytes(6)}), kFirst, NakCode::kInvalidRequest);
  EXPECT_THAT(p->events, ElementsAre(AsyncEvent::Kind::kInvalidRequest));
  // It begins anew with nothing to tell.
  p->must(p->modify({.state = QpState::kReset}));
  p->make_ready();
  p->must(p->modify({.state = QpState::kError}));
  EXPECT_THAT(p->events, ElementsAre(AsyncEvent::Kind::kInvalidRequest));
}

TEST_F(ResponderTest, AReceiveThatCannotBeUsedSaysSoItselfAndIsNoEvent) {
  const Sge into{kBase, 64, memory::Key{1}};
  p->post_receive(6, {&into, 1});
  expect_refusal(ask(send(kFirst, bytes(8))), kFirst, NakCode::kRemoteOperationalError);
  EXPECT_EQ(p->completed().at(0).status, CompletionStatus::kLocalProtectionError);
  EXPECT_THAT(p->events, IsEmpty());
}

TEST_F(ResponderTest, AReceiveOfForeignMemoryIsThatFirstThoughItIsTooShortAsWell) {
  const Sge into{kBase, 4, memory::Key{1}};
  p->post_receive(6, {&into, 1});
  expect_refusal(ask(send(kFirst, bytes(8))), kFirst, NakCode::kRemoteOperationalError);
  EXPECT_EQ(p->completed().at(0).status, CompletionStatus::kLocalProtectionError);
}

TEST_F(ResponderTest, ACompletionThatAnotherLostIsNoFatalEvent) {
  CompletionQueue* const small = p->adapter->create_completion_queue(1);
  const QueuePairConfig config{.pd = p->pd, .send_completions = small, .receive_completions = small};
  QueuePair* const loser = p->adapter->create_queue_pair(config).value();
  QueuePair* const other = p->adapter->create_queue_pair(config).value();
  const Sge into{kBase, 64, p->key};
  const auto end = [&](QueuePair& pair, std::uint64_t receives) {
    p->must(p->adapter->modify(p->now, pair, {.state = QpState::kInit}));
    for (std::uint64_t i = 0; i < receives; ++i) p->adapter->post_receive(pair, {.id = i, .sges = {&into, 1}});
    p->must(p->adapter->modify(p->now, pair, {.state = QpState::kError}));
  };
  end(*loser, 2);
  EXPECT_THAT(p->events, ElementsAre(AsyncEvent::Kind::kCompletionQueueOverrun, AsyncEvent::Kind::kFatal));
  p->events.clear();
  Completion completion;
  EXPECT_EQ(small->poll({&completion, 1}), 1u);
  end(*other, 1);
  EXPECT_THAT(p->events, IsEmpty());
  EXPECT_EQ(small->size(), 1u);
  // It begins anew with all of its completions.
  small->poll({&completion, 1});
  p->must(p->adapter->modify(p->now, *loser, {.state = QpState::kReset}));
  end(*loser, 1);
  EXPECT_THAT(p->events, IsEmpty());
}

// --- pace ---

TEST_F(ResponderTest, ReadResponsesKeepToThePaceAndAcksDoNot) {
  AdapterConfig config;
  config.dcqcn = true;
  for (const QpState state : {QpState::kReadyToReceive, QpState::kReadyToSend}) {
    restart({.timeout = 0, .state = state}, config);
    for (int i = 0; i < 8; ++i) {
      p->deliver({.opcode = kCnp, .psn = Psn(0), .extended = std::vector<std::uint8_t>(16)});
    }
    const Time start = p->now;
    std::size_t answered = ask(read(kFirst, CraftedPeer::kSize)).size();
    EXPECT_EQ(answered, 1u) << to_string(state);
    while (answered < 16) {
      ASSERT_GT(p->adapter->next_deadline(), p->now) << "a loop would spin";
      ASSERT_TRUE(p->wait()) << answered;
      answered += p->answers().size();
    }
    // Eight cuts from 40 Gb/s leave a 256th: 52 us for a kibibyte. It grows again meanwhile.
    EXPECT_GT(p->now - start, Duration::microseconds(100));
    const auto acks = ask(write(kFirst + 16, bytes(8)));
    ASSERT_THAT(acks, SizeIs(1)) << "though the pace allows no more READ response yet";
    EXPECT_EQ(acks[0].opcode(), kRcAcknowledge);
    EXPECT_THAT(ask(read(kFirst + 17, 8)), IsEmpty());
    ASSERT_TRUE(p->wait());
    EXPECT_THAT(p->answers(), SizeIs(1));
  }
}

// --- unreliable connections ---

class UnreliableResponder : public ResponderTest {
 protected:
  UnreliableResponder() {
    CraftedOptions options;
    options.transport = Transport::kUc;
    restart(options);
  }
  static Packet part(wire::Opcode opcode, Psn psn, std::size_t length) {
    return {.opcode = opcode, .psn = psn, .ack_request = false, .payload = bytes(length)};
  }
};

TEST_F(UnreliableResponder, AnswersNothing) {
  Packet packet = write(kFirst, bytes(8));
  packet.opcode = kUcWriteOnly;
  EXPECT_THAT(ask(packet), IsEmpty());
  EXPECT_TRUE(region_begins_with(bytes(8)));
  packet.psn = kFirst + 1;
  packet.extended = CraftedPeer::reth(kBase, memory::Key{1}, 8);
  EXPECT_THAT(ask(packet), IsEmpty());
  EXPECT_EQ(p->counters().rx_access_errors, 1u);
  EXPECT_EQ(p->pair->state(), QpState::kReadyToSend);
}

TEST_F(UnreliableResponder, EndsAtAReceiveThatIsTooShortOrNotItsOwn) {
  std::vector<std::uint8_t> buffer(64);
  for (const auto& [into, why] :
       {std::pair(Sge::of(buffer), CompletionStatus::kLocalLengthError),
        std::pair(Sge{kBase, 100, memory::Key{1}}, CompletionStatus::kLocalProtectionError)}) {
    CraftedOptions options;
    options.transport = Transport::kUc;
    restart(options);
    p->post_receive(1, {&into, 1});
    p->post_receive(2, {&into, 1});
    p->deliver(part(kUcSendOnly, kFirst, 65));
    const auto done = p->completed();
    ASSERT_THAT(done, SizeIs(2));
    EXPECT_EQ(done[0].status, why);
    EXPECT_EQ(done[1].status, CompletionStatus::kFlushed);
    EXPECT_EQ(p->pair->state(), QpState::kError);
    EXPECT_THAT(p->answers(), IsEmpty());
    EXPECT_THAT(p->events, IsEmpty());
  }
}

TEST_F(UnreliableResponder, DropsTheMessageWithAGapAndTakesTheNext) {
  std::vector<std::uint8_t> buffer(4096);
  const Sge into = Sge::of(buffer);
  p->post_receive(1, {&into, 1});
  p->deliver(part(kUcSendFirst, kFirst, 1024));
  p->deliver(part(kUcSendLast, kFirst + 2, 10));
  EXPECT_EQ(p->counters().rx_out_of_sequence, 1u);
  EXPECT_THAT(p->completed(), IsEmpty());
  p->deliver(part(kUcSendOnly, kFirst + 3, 20));
  const auto done = p->completed();
  ASSERT_THAT(done, SizeIs(1)) << "in the receive that the broken message had taken";
  EXPECT_EQ(done[0].id, 1u);
  EXPECT_EQ(done[0].length, 20u);
}

TEST_F(UnreliableResponder, WritesNothingToAReceiveWhoseRegionIsWithdrawnBetweenAMessageGivenUpAndTheNext) {
  const auto first = p->adapter->regions()
                         .add({.pd = p->pd, .bytes = p->region(), .address = kBase, .access = memory::kAllAccess})
                         .value();
  const Sge pieces[]{{kBase, 1024, first}, {kBase + 1024, 2048, p->key}};
  p->post_receive(1, pieces);
  p->deliver(part(kUcSendFirst, kFirst, 1024));
  ASSERT_TRUE(p->adapter->regions().remove(first));
  p->deliver(part(kUcSendMiddle, kFirst + 1, 1024));
  const auto before = p->storage;
  p->deliver(part(kUcSendOnly, kFirst + 5, 8));  // into the receive that is left over
  EXPECT_EQ(p->completed().at(0).status, CompletionStatus::kLocalProtectionError);
  EXPECT_EQ(p->storage, before);
}

TEST_F(UnreliableResponder, TakesANewMessageWhereTheOldOneWasGivenUp) {
  std::vector<std::uint8_t> buffer(4096);
  const Sge into = Sge::of(buffer);
  p->post_receive(1, {&into, 1});
  p->deliver(part(kUcSendFirst, kFirst, 1024));
  p->deliver(part(kUcSendOnly, kFirst + 1, 30));
  const auto done = p->completed();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].length, 30u);
}

}  // namespace
}  // namespace sluice::rc
