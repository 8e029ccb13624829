// The requester, one response packet at a time: past, in order, future, malformed, at the limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <numeric>
#include <utility>

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

constexpr Psn kFirst{0x2000};  // the PSN that the requester begins with
constexpr std::uint64_t kRemote = 0x9000'0000;

class RequesterTest : public ::testing::Test {
 protected:
  using Answer = CraftedPeer::Answer;

  void restart(const CraftedOptions& o, const AdapterConfig& config = {}) {
    p = std::make_unique<CraftedPeer>(o, config);
  }
  PostError post(SendOp op, std::uint32_t length, SendFlags flags = {}) {
    const Sge sge{CraftedPeer::kBase, length, p->key};
    return p->post({.id = next_id++,
                    .op = op,
                    .flags = flags,
                    .sges = {&sge, 1},
                    .remote_address = kRemote,
                    .remote_key = memory::Key{0x1234},
                    .compare = 1,
                    .swap_or_add = 2});
  }
  std::vector<Answer> send(SendOp op, std::uint32_t length = 8) {
    EXPECT_EQ(post(op, length), PostError::kNone);
    return p->answers();
  }
  void ack(Psn psn, std::uint32_t msn = 0, std::uint8_t credits = Aeth::kNoCredits) {
    p->deliver({.opcode = kRcAcknowledge, .psn = psn, .extended = CraftedPeer::aeth(Aeth::ack(msn, credits))});
  }
  void nak(Psn psn, NakCode code) {
    p->deliver({.opcode = kRcAcknowledge, .psn = psn, .extended = CraftedPeer::aeth(Aeth::nak(0, code))});
  }
  void rnr_nak(Psn psn, std::uint8_t timer = 1) {
    p->deliver({.opcode = kRcAcknowledge, .psn = psn, .extended = CraftedPeer::aeth(Aeth::rnr_nak(0, timer))});
  }
  void read_response(Psn psn, std::size_t length, wire::Opcode opcode = kRcReadResponseMiddle, std::uint8_t fill = 7) {
    Packet packet{.opcode = opcode, .psn = psn, .payload = std::vector<std::uint8_t>(length, fill)};
    if (opcode != kRcReadResponseMiddle) packet.extended = CraftedPeer::aeth(Aeth::ack(1));
    p->deliver(packet);
  }
  void atomic_response(Psn psn, std::uint64_t prior) {
    Packet packet{.opcode = kRcAtomicAcknowledge, .psn = psn, .extended = CraftedPeer::aeth(Aeth::ack(1))};
    const auto value = CraftedPeer::written(wire::AtomicAckEth{prior});
    packet.extended.insert(packet.extended.end(), value.begin(), value.end());
    p->deliver(packet);
  }
  std::vector<std::uint64_t> done_ids(CompletionStatus status = CompletionStatus::kSuccess) {
    std::vector<std::uint64_t> ids;
    for (const Completion& c : p->completed()) {
      EXPECT_EQ(c.status, status) << c.id;
      ids.push_back(c.id);
    }
    return ids;
  }
  static std::vector<Psn> psns(const std::vector<Answer>& answers) {
    std::vector<Psn> out;
    for (const auto& answer : answers) out.push_back(answer.psn());
    return out;
  }
  void expect_failure(CompletionStatus status) {
    const auto done = p->completed();
    ASSERT_FALSE(done.empty());
    EXPECT_EQ(done[0].status, status);
    for (std::size_t i = 1; i < done.size(); ++i) EXPECT_EQ(done[i].status, CompletionStatus::kFlushed);
    EXPECT_EQ(p->pair->state(), QpState::kError);
    EXPECT_THAT(p->answers(), IsEmpty());
    EXPECT_EQ(p->adapter->next_deadline(), Time::never());
  }

  std::unique_ptr<CraftedPeer> p = std::make_unique<CraftedPeer>();
  std::uint64_t next_id = 1;
};

// --- what is sent ---

TEST_F(RequesterTest, CutsAMessageIntoPacketsAndAsksForAnAcknowledgementAtItsEnd) {
  const auto sent = send(SendOp::kWrite, 2500);
  ASSERT_THAT(sent, SizeIs(3));
  EXPECT_EQ(sent[0].opcode(), kRcWriteFirst);
  EXPECT_EQ(sent[1].opcode(), kRcWriteMiddle);
  EXPECT_EQ(sent[2].opcode(), kRcWriteLast);
  EXPECT_THAT(psns(sent), ElementsAre(kFirst, kFirst + 1, kFirst + 2));
  const auto reth = sent[0].get<wire::Reth>();
  EXPECT_EQ(reth.virtual_address, kRemote);
  EXPECT_EQ(reth.rkey.value, 0x1234u);
  EXPECT_EQ(reth.length, 2500u);
  EXPECT_FALSE(sent[0].parsed.ack_request);
  EXPECT_TRUE(sent[2].parsed.ack_request);
  EXPECT_TRUE(std::equal(sent[1].payload().begin(), sent[1].payload().end(), p->region().begin() + 1024));
}

TEST_F(RequesterTest, SendsMessagesOfNothing) {
  const auto written = send(SendOp::kWrite, 0);
  ASSERT_THAT(written, SizeIs(1));
  EXPECT_EQ(written[0].opcode(), kRcWriteOnly);
  EXPECT_THAT(written[0].payload(), IsEmpty());
  EXPECT_EQ(send(SendOp::kRead, 0).at(0).get<wire::Reth>().length, 0u);
  EXPECT_EQ(p->post({.id = 3, .op = SendOp::kSend}), PostError::kNone);
  EXPECT_EQ(p->answers().at(0).opcode(), kRcSendOnly);
  ack(kFirst);
  read_response(kFirst + 1, 0, kRcReadResponseOnly);
  ack(kFirst + 2);
  EXPECT_THAT(done_ids(), ElementsAre(1, 2, 3));
}

TEST_F(RequesterTest, AsksForALongReadInPieces) {
  CraftedOptions options;
  options.mtu = 256;
  options.max_reads = 2;
  restart(options);
  const Sge nowhere{CraftedPeer::kBase, CraftedPeer::kSize, p->key};
  const std::vector<Sge> pieces(4, nowhere);  // 64 KiB, into the same memory
  ASSERT_EQ(p->post({.op = SendOp::kRead, .sges = pieces, .remote_address = kRemote}), PostError::kNone);
  const auto asked = p->answers();
  ASSERT_THAT(asked, SizeIs(2)) << "as many as may be outstanding";
  for (std::uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(asked[i].psn(), kFirst + i * 64);
    EXPECT_EQ(asked[i].get<wire::Reth>().virtual_address, kRemote + i * 64 * 256);
    EXPECT_EQ(asked[i].get<wire::Reth>().length, 64u * 256);
  }
  for (std::uint32_t i = 0; i < 63; ++i) read_response(kFirst + i, 256);
  EXPECT_THAT(p->answers(), IsEmpty());
  read_response(kFirst + 63, 256);
  EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst + 128)) << "one piece complete, the next is asked for";
}

TEST_F(RequesterTest, BeginsAMessageOfTwoGibibytesAndRefusesALongerOne) {
  CraftedOptions options;
  options.mtu = 256;
  restart(options);
  // Half of all PSNs. Its memory is only named: a READ writes to it what is answered, and here that is little.
  const auto key = p->adapter->regions()
                       .add({.pd = p->pd,
                             .bytes = {p->region().data(), std::size_t{1} << 31},
                             .address = 0,
                             .access = memory::kLocalWrite})
                       .value();
  const Sge sge{0, 1u << 31, key};
  send(SendOp::kWrite);
  ASSERT_EQ(p->post({.id = 2, .op = SendOp::kRead, .sges = {&sge, 1}, .remote_address = kRemote}), PostError::kNone);
  post(SendOp::kWrite, 8);
  EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst + 1, kFirst + 65, kFirst + 129)) << "the window";
  ack(kFirst);
  for (std::uint32_t i = 0; i < 32; ++i) read_response(kFirst + 1 + i, 256);
  EXPECT_TRUE(p->wait());
  EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst + 33, kFirst + 65, kFirst + 129, kFirst + 193))
      << "from what is missing on, and one piece more fits the window";
  EXPECT_THAT(done_ids(), ElementsAre(1));
  const Sge both[2] = {sge, {0, 1, key}};
  EXPECT_EQ(p->post({.op = SendOp::kWrite, .sges = both}), PostError::kTooLong);
}

TEST_F(RequesterTest, KeepsToItsWindow) {
  AdapterConfig config;
  config.max_unacked_packets = 8;
  restart({}, config);
  for (int i = 0; i < 5; ++i) post(SendOp::kWrite, 2048);
  auto sent = p->answers();
  ASSERT_THAT(sent, SizeIs(8));
  EXPECT_TRUE(std::ranges::any_of(sent, [](const Answer& a) { return a.parsed.ack_request; }));
  ack(kFirst + 1);
  EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst + 8, kFirst + 9));
}

TEST_F(RequesterTest, WaitsBehindAFenceForEarlierReadsAndAtomics) {
  post(SendOp::kRead, 8);
  post(SendOp::kFetchAndAdd, 8);
  post(SendOp::kWrite, 8, {.fence = true});
  post(SendOp::kWrite, 8);
  EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst, kFirst + 1));
  read_response(kFirst, 8, kRcReadResponseOnly);
  EXPECT_THAT(p->answers(), IsEmpty());
  atomic_response(kFirst + 1, 0);
  EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst + 2, kFirst + 3));
}

TEST_F(RequesterTest, StartsOnlyAsManyReadsAsAgreed) {
  for (int i = 0; i < 6; ++i) post(SendOp::kCompareAndSwap, 8);
  post(SendOp::kWrite, 8);
  EXPECT_THAT(p->answers(), SizeIs(4));
  atomic_response(kFirst, 0);
  EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst + 4));
}

TEST_F(RequesterTest, RefusesReadsThatThePeerWouldNeverTake) {
  CraftedOptions options;
  options.max_reads = 0;
  restart(options);
  EXPECT_EQ(post(SendOp::kRead, 8), PostError::kUnsupportedOp);
  EXPECT_EQ(post(SendOp::kFetchAndAdd, 8), PostError::kUnsupportedOp);
  EXPECT_EQ(post(SendOp::kWrite, 8), PostError::kNone);
}

TEST_F(RequesterTest, RefusesWhatCannotBePosted) {
  EXPECT_EQ(post(SendOp::kFetchAndAdd, 7), PostError::kTooShort);
  const std::vector<Sge> many(5, Sge{CraftedPeer::kBase, 1, p->key});
  EXPECT_EQ(p->post({.op = SendOp::kWrite, .sges = many}), PostError::kTooManySges);
  const Sge long_one{reinterpret_cast<std::uintptr_t>(p->storage.data()), 65};
  EXPECT_EQ(p->post({.op = SendOp::kWrite, .flags = {.inline_data = true}, .sges = {&long_one, 1}}),
            PostError::kInlineTooLong);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(post(SendOp::kWrite, 1), PostError::kNone);
  EXPECT_EQ(post(SendOp::kWrite, 1), PostError::kQueueFull);
}

// --- responses: past ---

TEST_F(RequesterTest, IgnoresAnAcknowledgementOfThePast) {
  send(SendOp::kWrite);
  send(SendOp::kWrite);
  ack(kFirst + 1);
  EXPECT_THAT(done_ids(), ElementsAre(1, 2));
  ack(kFirst);
  nak(kFirst, NakCode::kRemoteAccessError);
  nak(kFirst + 1, NakCode::kRemoteAccessError);
  read_response(kFirst, 8, kRcReadResponseOnly);
  EXPECT_EQ(p->pair->state(), QpState::kReadyToSend);
  EXPECT_EQ(p->counters().rx_ignored_responses, 3u);
  EXPECT_THAT(p->completed(), IsEmpty());
}

TEST_F(RequesterTest, TakesCreditsFromTheLastAcknowledgementWheneverItComes) {
  send(SendOp::kSend);
  ack(kFirst, 1, 0);
  post(SendOp::kSend, 8);
  post(SendOp::kSend, 8);
  post(SendOp::kSend, 8);
  EXPECT_THAT(p->answers(), SizeIs(1)) << "without credit one goes alone, to hear how things stand";
  ack(kFirst, 1, 2);  // the same again, two more
  EXPECT_THAT(p->answers(), SizeIs(1));
  ack(kFirst + 1, 2, 2);
  EXPECT_THAT(p->answers(), SizeIs(1));
}

TEST_F(RequesterTest, CountsCreditsAcrossTheTurnOfTheMsn) {
  send(SendOp::kSend);
  ack(kFirst, 0xFF'FFFF, 1);  // one less than none, and one
  post(SendOp::kSend, 8);
  post(SendOp::kSend, 8);
  EXPECT_THAT(p->answers(), SizeIs(1)) << "alone, without credit";
}

TEST_F(RequesterTest, KnowsOfNoCreditsAfterAReset) {
  send(SendOp::kSend);
  ack(kFirst, 1, 0);
  p->must(p->modify({.state = QpState::kReset}));
  p->make_ready();
  post(SendOp::kSend, 8);
  post(SendOp::kSend, 8);
  EXPECT_THAT(p->answers(), SizeIs(2));
}

TEST_F(RequesterTest, CountsItsMessagesAnewAfterAReset) {
  for (std::uint32_t i = 0; i < 3; ++i) {
    send(SendOp::kSend);
    ack(kFirst + i, i + 1);
  }
  p->must(p->modify({.state = QpState::kReset}));
  p->make_ready();
  send(SendOp::kSend);
  ack(kFirst, 1, 2);
  for (int i = 0; i < 3; ++i) post(SendOp::kSend, 8);
  EXPECT_THAT(p->answers(), SizeIs(2));
}

TEST_F(RequesterTest, NeedsNoCreditForWhatTakesNoReceive) {
  send(SendOp::kSend);
  ack(kFirst, 1, 0);
  EXPECT_THAT(send(SendOp::kWrite), SizeIs(1));
  EXPECT_THAT(send(SendOp::kWrite), SizeIs(1));
  EXPECT_THAT(send(SendOp::kSend), IsEmpty());
}

TEST_F(RequesterTest, CountsEachPieceOfAReadAsTheResponderDoes) {
  CraftedOptions options;
  options.mtu = 256;
  restart(options);
  send(SendOp::kSend);
  ack(kFirst, 1, 0);
  // 64 packets: one message to the responder. And 16 KiB more: two.
  const std::vector<Sge> pieces(2, Sge{CraftedPeer::kBase, CraftedPeer::kSize, p->key});
  ASSERT_EQ(p->post({.op = SendOp::kRead, .sges = pieces, .remote_address = kRemote}), PostError::kNone);
  EXPECT_THAT(p->answers(), SizeIs(2));
  for (std::uint32_t i = 0; i < 128; ++i) read_response(kFirst + 1 + i, 256);
  send(SendOp::kWrite);
  ack(kFirst + 129, 4, 1);  // three messages and a READ of two pieces are four: one SEND more
  post(SendOp::kSend, 8);
  post(SendOp::kSend, 8);
  EXPECT_THAT(p->answers(), SizeIs(1));
}

// --- responses: in order ---

TEST_F(RequesterTest, CompletesAllThatAnAcknowledgementCovers) {
  for (int i = 0; i < 4; ++i) post(SendOp::kWrite, 1500);
  p->answers();
  ack(kFirst + 4);
  EXPECT_THAT(done_ids(), ElementsAre(1, 2)) << "of the third only its first packet";
  ack(kFirst + 7);
  EXPECT_THAT(done_ids(), ElementsAre(3, 4));
  EXPECT_EQ(p->pair->send_queue_length(), 0u);
}

TEST_F(RequesterTest, TakesReadResponsesWhateverTheyAreCalled) {
  send(SendOp::kRead, 2500);
  read_response(kFirst, 1024, kRcReadResponseFirst, 1);
  read_response(kFirst + 1, 1024, kRcReadResponseMiddle, 2);
  read_response(kFirst + 2, 452, kRcReadResponseMiddle, 3);  // rxe names them so when it answers from the middle
  EXPECT_THAT(done_ids(), ElementsAre(1));
  EXPECT_EQ(p->region()[0], 1);
  EXPECT_EQ(p->region()[1024], 2);
  EXPECT_EQ(p->region()[2499], 3);
  EXPECT_TRUE(p->guards_intact());
}

TEST_F(RequesterTest, LeavesACompletionOnlyWhereAsked) {
  post(SendOp::kWrite, 8, {.signaled = false});
  post(SendOp::kWrite, 8);
  p->answers();
  ack(kFirst + 1);
  EXPECT_THAT(done_ids(), ElementsAre(2));
}

TEST_F(RequesterTest, SaysInACompletionWhatKindOfWorkItWas) {
  constexpr std::pair<SendOp, CompletionKind> kKinds[] = {
      {SendOp::kSend, CompletionKind::kSend},
      {SendOp::kSendWithImmediate, CompletionKind::kSend},
      {SendOp::kSendWithInvalidate, CompletionKind::kSend},
      {SendOp::kWrite, CompletionKind::kWrite},
      {SendOp::kWriteWithImmediate, CompletionKind::kWrite},
      {SendOp::kRead, CompletionKind::kRead},
      {SendOp::kCompareAndSwap, CompletionKind::kCompareAndSwap},
      {SendOp::kFetchAndAdd, CompletionKind::kFetchAndAdd},
  };
  for (const auto& [op, kind] : kKinds) {
    restart({});
    send(op);
    if (op == SendOp::kRead) {
      read_response(kFirst, 8, kRcReadResponseOnly);
    } else if (is_atomic(op)) {
      atomic_response(kFirst, 1);
    } else {
      ack(kFirst);
    }
    const auto completed = p->completed();
    ASSERT_THAT(completed, SizeIs(1));
    EXPECT_EQ(completed[0].kind, kind);
    EXPECT_EQ(completed[0].length, reads(op) ? 8u : 0u);
  }
}

TEST_F(RequesterTest, GoesOnAcrossTheWrapOfThePsn) {
  CraftedOptions options;
  options.send_psn = Psn(0xFF'FFFE);
  restart(options);
  EXPECT_THAT(psns(send(SendOp::kWrite, 3000)), ElementsAre(Psn(0xFF'FFFE), Psn(0xFF'FFFF), Psn(0)));
  nak(Psn(0xFF'FFFF), NakCode::kPsnSequenceError);
  EXPECT_THAT(psns(p->answers()), ElementsAre(Psn(0xFF'FFFF), Psn(0)));
  ack(Psn(0));
  EXPECT_THAT(done_ids(), ElementsAre(1));
}

// --- responses: future ---

TEST_F(RequesterTest, IgnoresAnAcknowledgementOfWhatHasNotBeenSent) {
  send(SendOp::kWrite);
  ack(kFirst + 1);
  ack(kFirst + 0x7F'FFFF);
  rnr_nak(kFirst + 1);
  EXPECT_EQ(p->counters().rx_ignored_responses, 3u);
  EXPECT_THAT(p->completed(), IsEmpty());
  ack(kFirst);
  EXPECT_THAT(done_ids(), ElementsAre(1));
}

TEST_F(RequesterTest, AsksAgainOnceForAReadWhoseResponseWasOvertaken) {
  send(SendOp::kRead, 3000);
  send(SendOp::kWrite);
  read_response(kFirst, 1024, kRcReadResponseFirst);
  read_response(kFirst + 2, 952, kRcReadResponseLast);
  auto again = p->answers();
  ASSERT_THAT(psns(again), ElementsAre(kFirst + 1, kFirst + 3)) << "from what is missing on, and all that followed";
  EXPECT_EQ(again[0].get<wire::Reth>().virtual_address, kRemote + 1024);
  EXPECT_EQ(again[0].get<wire::Reth>().length, 1976u);
  ack(kFirst + 3);
  EXPECT_THAT(p->answers(), IsEmpty()) << "once, until it comes";
  EXPECT_THAT(p->completed(), IsEmpty());
  read_response(kFirst + 1, 1024);
  read_response(kFirst + 2, 952);
  ack(kFirst + 3);
  EXPECT_THAT(done_ids(), ElementsAre(1, 2));
}

TEST_F(RequesterTest, AsksAgainForEachReadThatIsOvertaken) {
  for (std::uint32_t i = 0; i < 6; i += 2) {
    send(SendOp::kRead);
    send(SendOp::kWrite);
    ack(kFirst + i + 1);
    EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst + i, kFirst + i + 1)) << i;
    read_response(kFirst + i, 8, kRcReadResponseOnly);
    ack(kFirst + i + 1);
    EXPECT_THAT(done_ids(), ElementsAre(i + 1, i + 2));
  }
}

TEST_F(RequesterTest, AsksAgainForAReadThatIsOvertakenAfterATimeOutToo) {
  send(SendOp::kRead);
  send(SendOp::kWrite);
  ack(kFirst + 1);
  EXPECT_THAT(p->answers(), SizeIs(2));
  p->wait();
  EXPECT_THAT(p->answers(), SizeIs(2));
  ack(kFirst + 1);
  EXPECT_THAT(p->answers(), SizeIs(2));
}

// --- responses: malformed ---

TEST_F(RequesterTest, FailsOnAReadResponseOfAWrongLength) {
  for (const std::size_t length : {0u, 1020u, 1025u}) {
    restart({});
    send(SendOp::kRead, 2000);
    send(SendOp::kWrite);
    read_response(kFirst, length, kRcReadResponseFirst);
    EXPECT_EQ(p->counters().rx_bad_responses, 1u);
    EXPECT_TRUE(p->memory_untouched());
    expect_failure(CompletionStatus::kBadResponse);
  }
}

TEST_F(RequesterTest, FailsOnAnAnswerToSomethingElse) {
  send(SendOp::kRead);
  atomic_response(kFirst, 1);
  expect_failure(CompletionStatus::kBadResponse);
  restart({});
  send(SendOp::kFetchAndAdd);
  read_response(kFirst, 8, kRcReadResponseOnly);
  expect_failure(CompletionStatus::kBadResponse);
}

TEST_F(RequesterTest, CountsAndDropsWhatMakesNoSense) {
  send(SendOp::kWrite);
  p->deliver({.opcode = kRcAcknowledge, .psn = kFirst, .extended = CraftedPeer::aeth({.syndrome = 0x45, .msn = 1})});
  p->deliver({.opcode = kRcAcknowledge, .psn = kFirst, .extended = CraftedPeer::aeth({.syndrome = 0x7F, .msn = 1})});
  EXPECT_EQ(p->counters().rx_bad_responses, 2u);
  read_response(kFirst, 8, kRcReadResponseOnly);
  atomic_response(kFirst, 8);
  EXPECT_EQ(p->counters().rx_ignored_responses, 2u);
  EXPECT_THAT(p->completed(), IsEmpty());
  EXPECT_EQ(p->pair->state(), QpState::kReadyToSend);
}

// --- refusals ---

TEST_F(RequesterTest, EndsTheWorkThatIsRefusedWithTheReason) {
  for (const auto& [code, status] : std::vector<std::pair<NakCode, CompletionStatus>>{
           {NakCode::kInvalidRequest, CompletionStatus::kRemoteInvalidRequest},
           {NakCode::kRemoteAccessError, CompletionStatus::kRemoteAccessError},
           {NakCode::kRemoteOperationalError, CompletionStatus::kRemoteOperationError},
           {NakCode::kInvalidRdRequest, CompletionStatus::kRemoteInvalidRequest}}) {
    restart({});
    next_id = 1;
    send(SendOp::kWrite);
    send(SendOp::kWrite, 3000);
    send(SendOp::kWrite);
    nak(kFirst + 2, code);
    const auto done = p->completed();
    ASSERT_THAT(done, SizeIs(3));
    EXPECT_EQ(done[0].status, CompletionStatus::kSuccess) << "what came before is acknowledged thereby";
    EXPECT_EQ(done[1].status, status);
    EXPECT_TRUE(done[1].begun) << "its first packet is not the one that is refused";
    EXPECT_EQ(done[2].status, CompletionStatus::kFlushed);
    EXPECT_FALSE(done[2].never_sent || done[2].begun);
    EXPECT_EQ(p->pair->state(), QpState::kError);
  }
}

TEST_F(RequesterTest, DoesNotTakeARefusalForTheAnswerToAnEarlierAtomic) {
  // The atomic has been executed: to call it refused would be wrong. It is asked for again until retries are spent.
  send(SendOp::kFetchAndAdd);
  send(SendOp::kWrite);
  nak(kFirst + 1, NakCode::kRemoteAccessError);
  EXPECT_THAT(p->completed(), IsEmpty());
  EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst, kFirst + 1));
  atomic_response(kFirst, 5);
  nak(kFirst + 1, NakCode::kRemoteAccessError);
  const auto done = p->completed();
  ASSERT_THAT(done, SizeIs(2));
  EXPECT_EQ(done[0].status, CompletionStatus::kSuccess);
  EXPECT_EQ(done[1].status, CompletionStatus::kRemoteAccessError);
}

TEST_F(RequesterTest, TakesARefusalInTheMiddleOfAReadForItself) {
  send(SendOp::kRead, 3000);
  nak(kFirst + 2, NakCode::kRemoteAccessError);
  expect_failure(CompletionStatus::kRemoteAccessError);
}

// --- time ---

TEST_F(RequesterTest, GoesBackToTheOldestUnacknowledgedPacketWhenTimeIsUp) {
  send(SendOp::kWrite, 3000);
  ack(kFirst);
  EXPECT_TRUE(p->wait());
  EXPECT_EQ(p->now, Time::at(Duration::nanoseconds(4096 << 8)));
  EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst + 1, kFirst + 2));
  EXPECT_EQ(p->counters().tx_retransmits, 2u);
}

TEST_F(RequesterTest, GivesUpAfterItsRetriesAndCountsAnewAfterEachSuccess) {
  send(SendOp::kWrite);
  for (int i = 0; i < 3; ++i) {
    p->wait();
    EXPECT_THAT(p->answers(), SizeIs(1));
  }
  ack(kFirst);
  EXPECT_THAT(done_ids(), ElementsAre(1));
  send(SendOp::kWrite);
  send(SendOp::kWrite);
  for (int i = 0; i < 3; ++i) {
    p->wait();
    EXPECT_THAT(p->answers(), SizeIs(2));
  }
  p->wait();
  expect_failure(CompletionStatus::kRetryExceeded);
}

TEST_F(RequesterTest, WhatHasNotAskedForAnAnswerIsNotWaitedFor) {
  // 64 packets, of which the last one asks, take longer to leave than the time-out.
  constexpr std::uint32_t kPackets = 200;
  std::vector<std::uint8_t> bytes(std::size_t{kPackets} * 1024);
  const Sge sge = Sge::of(bytes);
  ASSERT_EQ(p->post({.id = 1, .op = SendOp::kWrite, .sges = {&sge, 1}, .remote_address = kRemote}), PostError::kNone);
  std::uint32_t sent = 0;
  std::vector<Completion> done;
  for (int turn = 0; turn < 1000 && done.empty(); ++turn) {
    p->now = p->now + Duration::microseconds(40);
    p->adapter->on_deadline(p->now);
    FrameList port;
    port.room = 1;
    p->adapter->poll_transmit(p->now, port);
    for (auto& frame : port.frames) {
      ++sent;
      wire::ParsedFrame parsed;
      ASSERT_EQ(wire::parse(frame, parsed), wire::Verdict::kOk);
      if (parsed.ack_request) ack(parsed.psn, 1);
    }
    done = p->completed();
  }
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].status, CompletionStatus::kSuccess);
  EXPECT_EQ(p->counters().timeouts, 0u);
  EXPECT_EQ(sent, kPackets);
}

// Of work with a limit: no packet leaves after it, whatever was in the way.
class ExpiryTest : public RequesterTest {
 protected:
  void post_with_limit(std::uint64_t id, Duration limit) {
    const Sge sge{CraftedPeer::kBase, 8, p->key};
    ASSERT_EQ(p->post({.id = id,
                       .op = SendOp::kWrite,
                       .sges = {&sge, 1},
                       .remote_address = kRemote,
                       .not_after = p->now + limit}),
              PostError::kNone);
  }
  static constexpr Duration kLimit = Duration::milliseconds(100);
};

TEST_F(ExpiryTest, WhatCouldNotLeaveInTimeNeverDoes) {
  post_with_limit(1, kLimit);
  p->now = p->now + (kLimit + Duration::milliseconds(1));
  EXPECT_THAT(p->answers(), IsEmpty());
  const auto done = p->completed();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].status, CompletionStatus::kFlushed);
  EXPECT_TRUE(done[0].never_sent);
  EXPECT_EQ(p->pair->state(), QpState::kError);
  EXPECT_EQ(p->counters().expired, 1u);
}

TEST_F(ExpiryTest, NorIsItSentAgain) {
  CraftedOptions options;
  options.timeout = 14;  // 67 ms
  options.retry_count = 7;
  restart(options);
  post_with_limit(1, kLimit);
  post_with_limit(2, kLimit * 10);
  EXPECT_THAT(p->answers(), SizeIs(2));
  p->wait();
  EXPECT_THAT(p->answers(), SizeIs(2)) << "once more";
  p->wait();
  EXPECT_THAT(p->answers(), IsEmpty());
  const auto done = p->completed();
  ASSERT_THAT(done, SizeIs(2));
  for (const Completion& c : done) {
    EXPECT_EQ(c.status, CompletionStatus::kFlushed);
    EXPECT_FALSE(c.never_sent) << c.id << " may have been executed";
  }
}

TEST_F(ExpiryTest, InTimeItIsAsAnyOther) {
  p->now = Time::at(Duration::seconds(53 * 24 * 3600));  // about where ticks begin anew
  restart({});
  p->now = Time::at(Duration::seconds(53 * 24 * 3600));
  for (int i = 0; i < 100; ++i) {
    p->now = p->now + Duration::seconds(600);
    post_with_limit(1, kLimit);
    p->now = p->now + (kLimit - Duration::milliseconds(3));
    ASSERT_THAT(p->answers(), SizeIs(1));
    ack(kFirst + static_cast<std::uint32_t>(i), 1);
    ASSERT_THAT(done_ids(), ElementsAre(1));
  }
}

TEST_F(RequesterTest, NoRetryIsSpentWhileThePaceHoldsThePacketBack) {
  AdapterConfig config;
  config.dcqcn = true;
  CraftedOptions options;
  options.retry_count = 1;
  restart(options, config);
  for (int i = 0; i < 17; ++i) {
    p->now = p->now + Duration::microseconds(50);
    p->deliver({.opcode = kCnp, .ack_request = false, .extended = std::vector<std::uint8_t>(16)});
  }
  ASSERT_EQ(post(SendOp::kWrite, 1024), PostError::kNone);
  std::uint32_t left = 0;
  std::vector<Completion> done;
  for (int i = 0; i < 1000 && done.empty(); ++i) {
    // The first one is lost.
    for (const Answer& answer : p->answers()) {
      if (++left > 1) ack(answer.psn(), 1);
    }
    done = p->completed();
    if (done.empty()) {
      ASSERT_TRUE(p->wait());
    }
  }
  EXPECT_EQ(left, 2u);
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].status, CompletionStatus::kSuccess);
  EXPECT_EQ(p->counters().timeouts, 1u);
}

TEST_F(RequesterTest, CountsSequenceNaksAsRetries) {
  send(SendOp::kWrite);
  for (int i = 0; i < 3; ++i) {
    nak(kFirst, NakCode::kPsnSequenceError);
    EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst));
  }
  nak(kFirst, NakCode::kPsnSequenceError);
  expect_failure(CompletionStatus::kRetryExceeded);
}

TEST_F(RequesterTest, NeverGivesUpWithoutATimeOut) {
  CraftedOptions options;
  options.timeout = 0;
  restart(options);
  send(SendOp::kWrite);
  EXPECT_EQ(p->adapter->next_deadline(), Time::never());
}

TEST_F(RequesterTest, WhatIsSentLaterDoesNotMakeTheOldestWaitLonger) {
  send(SendOp::kWrite);
  const Time due = p->adapter->next_deadline();
  for (int i = 0; i < 5; ++i) {
    p->now = p->now + Duration::microseconds(200);
    send(SendOp::kWrite);
  }
  p->now = due;
  p->adapter->on_deadline(p->now);
  EXPECT_EQ(p->counters().timeouts, 1u);
}

TEST_F(RequesterTest, StopsItsClockWhenNothingIsOutstanding) {
  send(SendOp::kWrite);
  ack(kFirst);
  while (p->wait()) {
  }
  EXPECT_EQ(p->counters().timeouts, 0u);
}

// --- receiver not ready ---

TEST_F(RequesterTest, WaitsAsLongAsTheReceiverSaysAndSendsTheWholeMessageAgain) {
  send(SendOp::kSend, 3000);
  rnr_nak(kFirst, 14);  // 1.28 ms: longer than the time-out
  EXPECT_THAT(p->answers(), IsEmpty());
  const Time until = p->now + Duration::microseconds(1280);
  while (p->now < until) {
    EXPECT_THAT(p->answers(), IsEmpty());
    ASSERT_TRUE(p->wait());
  }
  EXPECT_EQ(p->now, until);
  EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst, kFirst + 1, kFirst + 2));
  EXPECT_EQ(p->counters().timeouts, 0u);
}

TEST_F(RequesterTest, KeepsWaitingWhenWhatFollowedIsNakd) {
  send(SendOp::kSend, 3000);
  rnr_nak(kFirst);
  nak(kFirst, NakCode::kPsnSequenceError);  // as rxe does
  EXPECT_THAT(p->answers(), IsEmpty());
  p->wait();
  EXPECT_THAT(p->answers(), SizeIs(3));
}

TEST_F(RequesterTest, SpendsNoRetryOnWhatIsNakdWhileItWaits) {
  send(SendOp::kSend, 3000);
  rnr_nak(kFirst);
  for (int i = 0; i < 10; ++i) nak(kFirst, NakCode::kPsnSequenceError);
  EXPECT_THAT(p->completed(), IsEmpty());
  p->wait();
  EXPECT_THAT(p->answers(), SizeIs(3));
}

TEST_F(RequesterTest, CountsTheWaitsForAReceiverAnewAfterEachSuccess) {
  for (std::uint32_t i = 0; i < 5; ++i) {
    send(SendOp::kSend);
    for (int j = 0; j < 3; ++j) {
      rnr_nak(kFirst + i);
      p->wait();
      EXPECT_THAT(p->answers(), SizeIs(1));
    }
    ack(kFirst + i);
    EXPECT_THAT(done_ids(), ElementsAre(i + 1));
  }
}

// Linux rxe, slow and a wait of 10 us: what it NAKs of one round comes when the next has been sent.
TEST_F(RequesterTest, DoesNotSendAgainWhenWhatFollowedIsNakdAfterTheWait) {
  CraftedOptions options;
  options.rnr_retry_count = 7;
  restart(options);
  send(SendOp::kSend, 3000);
  for (int i = 0; i < 20; ++i) {
    rnr_nak(kFirst);
    p->wait();
    EXPECT_THAT(p->answers(), SizeIs(3));
    nak(kFirst, NakCode::kPsnSequenceError);
    EXPECT_THAT(p->answers(), IsEmpty());
  }
  ack(kFirst + 2);
  EXPECT_THAT(done_ids(), ElementsAre(1));
}

TEST_F(RequesterTest, SendsAgainWhenASecondNakSaysThatTheResentPacketIsLost) {
  send(SendOp::kSend, 3000);
  rnr_nak(kFirst);
  p->wait();
  EXPECT_THAT(p->answers(), SizeIs(3));
  nak(kFirst, NakCode::kPsnSequenceError);
  nak(kFirst, NakCode::kPsnSequenceError);
  EXPECT_THAT(p->answers(), SizeIs(3));
}

TEST_F(RequesterTest, ANotReadyRestoresTheRetriesButNotItsOwn) {
  CraftedOptions options;
  options.rnr_retry_count = 7;
  restart(options);
  send(SendOp::kSend);
  for (int i = 0; i < 20; ++i) {
    nak(kFirst, NakCode::kPsnSequenceError);
    EXPECT_THAT(p->answers(), SizeIs(1));
    rnr_nak(kFirst);
    p->wait();
    EXPECT_THAT(p->answers(), SizeIs(1));
  }
  EXPECT_THAT(p->completed(), IsEmpty());
}

TEST_F(RequesterTest, KeepsWaitingWhenEarlierWorkIsAcknowledged) {
  send(SendOp::kRead, 8);
  send(SendOp::kSend, 8);
  rnr_nak(kFirst + 1, 14);
  read_response(kFirst, 8, kRcReadResponseOnly);
  EXPECT_THAT(done_ids(), ElementsAre(1));
  EXPECT_THAT(p->answers(), IsEmpty());
  EXPECT_EQ(p->adapter->next_deadline() >= Time::at(Duration::microseconds(1000)), true);
  while (p->now < Time::at(Duration::microseconds(1280))) ASSERT_TRUE(p->wait());
  EXPECT_EQ(p->counters().timeouts, 0u) << "the clock for answers stands still meanwhile";
  EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst + 1));
}

TEST_F(RequesterTest, SpendsOneRetryOnANotReadyThatIsToldTwice) {
  send(SendOp::kSend);
  for (int i = 0; i < 3; ++i) {
    rnr_nak(kFirst);
    rnr_nak(kFirst);
    p->wait();
    EXPECT_THAT(p->answers(), SizeIs(1));
  }
  rnr_nak(kFirst);
  expect_failure(CompletionStatus::kRnrRetryExceeded);
}

TEST_F(RequesterTest, DoesNotTakeANotReadyForTheAnswerToAnEarlierRead) {
  CraftedOptions options;
  options.rnr_retry_count = 0;
  restart(options);
  send(SendOp::kRead);
  send(SendOp::kSend);
  rnr_nak(kFirst + 1);  // the READ's answer is lost
  EXPECT_THAT(p->completed(), IsEmpty());
  EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst, kFirst + 1)) << "it is asked for again";
  read_response(kFirst, 8, kRcReadResponseOnly);
  rnr_nak(kFirst + 1);
  const auto done = p->completed();
  ASSERT_THAT(done, SizeIs(2));
  EXPECT_EQ(done[0].status, CompletionStatus::kSuccess);
  EXPECT_EQ(done[1].status, CompletionStatus::kRnrRetryExceeded);
}

TEST_F(RequesterTest, GivesUpAReadThatIsNeverAnsweredThoughAReceiverBehindItIsWaitedFor) {
  CraftedOptions options;
  options.rnr_retry_count = 7;
  restart(options);
  send(SendOp::kRead);
  send(SendOp::kSend);
  for (int i = 0; i < options.retry_count; ++i) {
    rnr_nak(kFirst + 1);
    p->wait();
    EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst, kFirst + 1));
  }
  rnr_nak(kFirst + 1);
  expect_failure(CompletionStatus::kRetryExceeded);
}

TEST_F(RequesterTest, WaitsForAReceiverForEverIfSoTold) {
  CraftedOptions options;
  options.rnr_retry_count = 7;
  restart(options);
  send(SendOp::kSend);
  for (int i = 0; i < 100; ++i) {
    rnr_nak(kFirst);
    p->wait();
    EXPECT_THAT(p->answers(), SizeIs(1));
  }
}

// --- local memory ---

TEST_F(RequesterTest, FailsWorkWhoseMemoryIsNotOursWhenItIsTheOldest) {
  send(SendOp::kWrite);
  const Sge bad{CraftedPeer::kBase, 8, memory::Key{p->key.value ^ 1}};
  p->post({.id = 2, .op = SendOp::kWrite, .sges = {&bad, 1}});
  post(SendOp::kWrite, 8);
  EXPECT_THAT(p->answers(), IsEmpty());
  EXPECT_THAT(p->completed(), IsEmpty());
  ack(kFirst);
  const auto done = p->completed();
  ASSERT_THAT(done, SizeIs(3));
  EXPECT_EQ(done[0].status, CompletionStatus::kSuccess);
  EXPECT_EQ(done[1].status, CompletionStatus::kLocalProtectionError);
  EXPECT_TRUE(done[1].never_sent);
  EXPECT_EQ(done[2].status, CompletionStatus::kFlushed);
  EXPECT_TRUE(done[2].never_sent);
}

TEST_F(RequesterTest, ReadsOnlyIntoMemoryThatMayBeWritten) {
  const auto key = p->adapter->regions().add({.pd = p->pd, .bytes = p->region(), .access = memory::kLocalRead}).value();
  const Sge sge{0, 8, key};
  p->post({.op = SendOp::kRead, .sges = {&sge, 1}});
  EXPECT_THAT(p->answers(), IsEmpty());
  expect_failure(CompletionStatus::kLocalProtectionError);
}

TEST_F(RequesterTest, WritesNoResponseToMemoryWithdrawnMeanwhile) {
  send(SendOp::kRead, 2000);
  read_response(kFirst, 1024, kRcReadResponseFirst);
  const auto before = p->storage;
  ASSERT_TRUE(p->adapter->regions().remove(p->key));
  read_response(kFirst + 1, 976, kRcReadResponseLast);
  EXPECT_EQ(p->storage, before);
  expect_failure(CompletionStatus::kLocalProtectionError);
}

TEST_F(RequesterTest, SendsNothingAgainFromMemoryWithdrawnMeanwhile) {
  send(SendOp::kWrite);
  ASSERT_TRUE(p->adapter->regions().remove(p->key));
  nak(kFirst, NakCode::kPsnSequenceError);
  EXPECT_THAT(p->answers(), IsEmpty());
  expect_failure(CompletionStatus::kLocalProtectionError);
}

TEST_F(RequesterTest, CompletesWhatWasAcknowledgedThoughItsMemoryIsGone) {
  send(SendOp::kWrite);
  ASSERT_TRUE(p->adapter->regions().remove(p->key));
  ack(kFirst);
  EXPECT_THAT(done_ids(), ElementsAre(1));
}

TEST_F(RequesterTest, GoesOnWhenARegionIsWithdrawnThatItDoesNotUse) {
  const auto other = p->adapter->regions().add({.pd = p->pd, .bytes = p->region()}).value();
  send(SendOp::kRead, 2000);
  ASSERT_TRUE(p->adapter->regions().remove(other));
  read_response(kFirst, 1024, kRcReadResponseFirst);
  read_response(kFirst + 1, 976, kRcReadResponseLast);
  EXPECT_THAT(done_ids(), ElementsAre(1));
}

// --- pace ---

TEST_F(RequesterTest, LeavesNoDeadlineOfItsPaceInThePast) {
  AdapterConfig config;
  config.dcqcn = true;
  config.max_unacked_packets = 4;
  CraftedOptions options;
  options.timeout = 20;
  restart(options, config);
  send(SendOp::kWrite);
  p->deliver({.opcode = kCnp, .psn = Psn(0), .extended = std::vector<std::uint8_t>(16)});
  EXPECT_EQ(p->counters().rx_cnp, 1u);
  for (int i = 0; i < 8; ++i) post(SendOp::kWrite, 8);
  std::size_t sent = 0;
  for (int i = 0; i < 100 && sent < 3; ++i) {
    sent += p->answers().size();
    const Time next = p->adapter->next_deadline();
    EXPECT_GT(next, p->now) << "a loop would spin";
    p->now = p->now + Duration::nanoseconds(100);
    if (next <= p->now) p->adapter->on_deadline(p->now);
    EXPECT_GT(p->adapter->next_deadline(), p->now);
  }
  // The window is full now: the pace is no reason to wake any more.
  p->now = p->now + Duration::milliseconds(10);
  p->adapter->on_deadline(p->now);
  EXPECT_THAT(p->answers(), IsEmpty());
  EXPECT_GT(p->adapter->next_deadline(), p->now + Duration::milliseconds(100));
}

TEST_F(RequesterTest, APostThatItsPaceHoldsBackIsSentWhenItsTimeComes) {
  AdapterConfig config;
  config.dcqcn = true;
  CraftedOptions options;
  options.timeout = 0;  // no other clock runs
  restart(options, config);
  for (int i = 0; i < 4; ++i) p->deliver({.opcode = kCnp, .psn = Psn(0), .extended = std::vector<std::uint8_t>(16)});
  ASSERT_THAT(send(SendOp::kWrite, 1000), SizeIs(1));
  ack(kFirst);
  ASSERT_THAT(done_ids(), ElementsAre(1));
  EXPECT_THAT(send(SendOp::kWrite, 1000), IsEmpty()) << "the first one has used up the pace";
  ASSERT_NE(p->adapter->next_deadline(), Time::never());
  p->now = p->adapter->next_deadline();
  p->adapter->on_deadline(p->now);
  EXPECT_THAT(p->answers(), SizeIs(1));
}

// --- the longest message ---

// Counts frames.
class NullSink final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t) override { return frame_.data(); }
  void commit(std::size_t) override { ++frames; }
  std::uint32_t frames = 0;

 private:
  std::array<std::uint8_t, port::kMaxFrame> frame_{};
};

// 2^31 bytes take 2^23 PSNs at an MTU of 256: as many as lie between the past and the future.
class LongestMessage : public RequesterTest {
 protected:
  static constexpr std::uint32_t kPackets = 1u << 23;

  // Sends a WRITE of 2^31 bytes and a small one behind it; only the last window of it is not acknowledged.
  LongestMessage() {
    CraftedOptions options;
    options.mtu = 256;
    options.timeout = 0;
    AdapterConfig config;
    config.max_unacked_packets = 60'000;  // the last window holds the end of the one and all of the other
    restart(options, config);
    constexpr std::size_t kPiece = std::size_t{1} << 29;
    memory_ = mmap(nullptr, kPiece, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(memory_, MAP_FAILED);
    const Sge piece = Sge::of({static_cast<const std::uint8_t*>(memory_), kPiece});
    const std::array<Sge, 4> pieces{piece, piece, piece, piece};
    EXPECT_EQ(p->post({.id = 1, .op = SendOp::kWrite, .sges = pieces}), PostError::kNone);
    next_id = 2;
    EXPECT_EQ(post(SendOp::kWrite, 8), PostError::kNone);
    NullSink sink;
    for (;;) {
      while (p->adapter->poll_transmit(p->now, sink)) {
      }
      if (sink.frames == kPackets + 1) break;
      ack(kFirst + (sink.frames - 1));
    }
  }
  ~LongestMessage() override { munmap(memory_, std::size_t{1} << 29); }

 private:
  void* memory_ = nullptr;
};

TEST_F(LongestMessage, IsCompletedByAnAckOfWhatFollows) {
  ack(kFirst + kPackets);
  const auto done = p->completed();
  ASSERT_THAT(done, SizeIs(2));
  for (const Completion& completion : done) {
    EXPECT_EQ(completion.status, CompletionStatus::kSuccess);
    EXPECT_FALSE(completion.never_sent);
  }
}

// --- unreliable connections ---

TEST_F(RequesterTest, UnreliableWorkCompletesWhenSentAndOffersNoReads) {
  CraftedOptions options;
  options.transport = Transport::kUc;
  restart(options);
  EXPECT_EQ(post(SendOp::kRead, 8), PostError::kUnsupportedOp);
  EXPECT_EQ(post(SendOp::kSendWithInvalidate, 8), PostError::kUnsupportedOp);
  next_id = 1;
  const auto sent = send(SendOp::kWrite, 1500);
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].opcode(), kUcWriteFirst);
  EXPECT_EQ(sent[1].opcode(), kUcWriteLast);
  EXPECT_FALSE(sent[1].parsed.ack_request);
  EXPECT_THAT(done_ids(), ElementsAre(1));
  EXPECT_EQ(p->adapter->next_deadline(), Time::never());
}

TEST_F(RequesterTest, UnreliableMessagesMayBeLongerThanTheWindow) {
  CraftedOptions options;
  options.transport = Transport::kUc;
  AdapterConfig config;
  config.max_unacked_packets = 4;
  restart(options, config);
  next_id = 1;
  EXPECT_THAT(send(SendOp::kWrite, 12 * 1024), SizeIs(12));
  EXPECT_THAT(done_ids(), ElementsAre(1));
}

TEST_F(RequesterTest, UnreliableSendQueueStopsAtABadLocalKeyAndGoesOnWhenTold) {
  CraftedOptions options;
  options.transport = Transport::kUc;
  restart(options);
  const Sge bad{CraftedPeer::kBase, 8, memory::Key{1}};
  p->post({.id = 1, .op = SendOp::kWrite, .sges = {&bad, 1}});
  p->post_receive(70);
  EXPECT_THAT(p->answers(), IsEmpty());
  EXPECT_EQ(p->pair->state(), QpState::kSendQueueError);
  EXPECT_THAT(done_ids(CompletionStatus::kLocalProtectionError), ElementsAre(1));
  next_id = 2;
  EXPECT_EQ(post(SendOp::kWrite, 8), PostError::kNone);
  EXPECT_THAT(done_ids(CompletionStatus::kFlushed), ElementsAre(2));
  p->deliver({.opcode = kUcSendOnly, .psn = Psn(0x1000)});
  EXPECT_THAT(done_ids(), ElementsAre(70)) << "receiving goes on";
  p->must(p->modify({.state = QpState::kReadyToSend}));
  EXPECT_THAT(psns(send(SendOp::kWrite)), ElementsAre(kFirst));
}

TEST_F(RequesterTest, UnreliableWorkThatIsFlushedInItsMiddleGivesBackThePsnsThatItHasNotUsed) {
  CraftedOptions options;
  options.transport = Transport::kUc;
  restart(options);
  post(SendOp::kWrite, 3000);
  FrameList one;
  one.room = 1;
  while (p->adapter->poll_transmit(p->now, one)) {
  }
  p->adapter->regions().remove(p->key);
  EXPECT_THAT(p->answers(), IsEmpty());
  EXPECT_THAT(done_ids(CompletionStatus::kLocalProtectionError), ElementsAre(1));
  p->must(p->modify({.state = QpState::kReadyToSend}));
  std::uint64_t word = 0;
  const Sge sge{reinterpret_cast<std::uintptr_t>(&word), 8};
  EXPECT_EQ(p->post({.id = 2, .op = SendOp::kWrite, .sges = {&sge, 1}}), PostError::kNone);
  EXPECT_THAT(psns(p->answers()), ElementsAre(kFirst + 1));
}

}  // namespace
}  // namespace sluice::rc
