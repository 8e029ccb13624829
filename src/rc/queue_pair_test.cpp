// Queue pairs as a whole: states, draining, paths that are not found, datagrams, what they cost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <set>

#include "rc/crafted_peer.h"
#include "rc/neighbors.h"
#include "rc/two_adapters.h"
#include "wire/bth.h"
#include "wire/ethernet.h"

namespace {

std::atomic<std::size_t> allocations{0};
std::atomic<std::size_t> allocated_bytes{0};

void* counted(std::size_t size) {
  ++allocations;
  allocated_bytes += size;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void* counted(std::size_t size, std::align_val_t alignment) {
  ++allocations;
  allocated_bytes += size;
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* p = std::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return p;
  throw std::bad_alloc();
}

}  // namespace

// Of the whole test program: what it asks for is counted.
void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void* operator new(std::size_t size, std::align_val_t alignment) { return counted(size, alignment); }
void* operator new[](std::size_t size, std::align_val_t alignment) { return counted(size, alignment); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace sluice::rc {
namespace {

using enum wire::Opcode;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Event = AsyncEvent::Kind;

class QueuePairTest : public ::testing::Test {
 protected:
  PostError write(std::uint64_t id, std::uint32_t length = 8) {
    const Sge sge{CraftedPeer::kBase, length, p->key};
    return p->post({.id = id, .op = SendOp::kWrite, .sges = {&sge, 1}});
  }
  void ack(Psn psn) {
    p->deliver({.opcode = kRcAcknowledge, .psn = psn, .extended = CraftedPeer::aeth(wire::Aeth::ack(0))});
  }
  std::vector<std::pair<std::uint64_t, CompletionStatus>> done() {
    std::vector<std::pair<std::uint64_t, CompletionStatus>> out;
    for (const Completion& c : p->completed()) out.emplace_back(c.id, c.status);
    return out;
  }
  CraftedPeer::Packet request(Psn psn) const {
    return {.opcode = kRcWriteOnly,
            .psn = psn,
            .extended = CraftedPeer::reth(CraftedPeer::kBase, p->key, 1),
            .payload = {1}};
  }

  std::unique_ptr<CraftedPeer> p = std::make_unique<CraftedPeer>();
};

// --- states ---

TEST_F(QueuePairTest, MovesOnlyAlongTheStateDiagram) {
  using enum QpState;
  const QpState all[] = {kReset, kInit, kReadyToReceive, kReadyToSend, kSendQueueDrained, kSendQueueError, kError};
  const std::set<std::pair<QpState, QpState>> allowed = {{kReset, kInit},
                                                         {kInit, kInit},
                                                         {kInit, kReadyToReceive},
                                                         {kReadyToReceive, kReadyToSend},
                                                         {kReadyToSend, kReadyToSend},
                                                         {kReadyToSend, kSendQueueDrained},
                                                         {kSendQueueDrained, kSendQueueDrained},
                                                         {kSendQueueDrained, kReadyToSend}};
  for (const QpState from : {kReset, kInit, kReadyToReceive, kReadyToSend, kSendQueueDrained, kError}) {
    for (const QpState to : all) {
      CraftedPeer q({.state = from == kSendQueueDrained || from == kError ? kReadyToSend : from});
      if (from == kSendQueueDrained || from == kError) q.must(q.modify({.state = from}));
      ASSERT_EQ(q.pair->state(), from);
      QueuePairAttributes attributes{.state = to};
      if (to == kReadyToReceive) {
        attributes.remote_gid = CraftedPeer::peer_gid();
        attributes.remote_qpn = Qpn{1};
        attributes.receive_psn = Psn(1);
      }
      const bool moved = q.modify(attributes).has_value();
      EXPECT_EQ(moved, to == kReset || to == kError || allowed.contains({from, to}))
          << to_string(from) << " " << to_string(to);
      EXPECT_EQ(q.pair->state(), moved ? to : from);
    }
  }
}

TEST_F(QueuePairTest, SetsOnTheWayOnlyWhatTheStandardAllows) {
  EXPECT_TRUE(p->modify({.access = memory::kRemoteRead, .min_rnr_timer = 3}));
  for (const QueuePairAttributes& a :
       {QueuePairAttributes{.path_mtu = 4096}, QueuePairAttributes{.send_psn = Psn(1)},
        QueuePairAttributes{.receive_psn = Psn(1)}, QueuePairAttributes{.remote_gid = CraftedPeer::peer_gid()},
        QueuePairAttributes{.timeout = 3}, QueuePairAttributes{.max_reads_in = 16},
        QueuePairAttributes{.max_reads_out = 1}, QueuePairAttributes{.remote_qpn = Qpn{9}}}) {
    const auto set = p->modify(a);
    ASSERT_FALSE(set);
    EXPECT_THAT(set.error().message, ::testing::HasSubstr("cannot be set on the way from RTS to RTS"));
  }
  EXPECT_EQ(p->pair->attributes().path_mtu, 1024u);
  p->must(p->modify({.state = QpState::kSendQueueDrained}));
  EXPECT_TRUE(p->modify({.timeout = 3, .retry_count = 1, .max_reads_out = 1, .max_reads_in = 2}));
  EXPECT_FALSE(p->modify({.path_mtu = 4096}));
}

TEST_F(QueuePairTest, SaysWhatIsWrongWithAnAttribute) {
  CraftedPeer q({.state = QpState::kInit});
  const auto refused = [&](QueuePairAttributes a) {
    a.state = QpState::kReadyToReceive;
    const auto result = q.modify(a);
    return result ? std::string() : result.error().message;
  };
  EXPECT_THAT(refused({}), ::testing::HasSubstr("needs the peer's GID, QPN"));
  EXPECT_THAT(refused({.path_mtu = 1000}), ::testing::HasSubstr("path MTU 1000: must be"));
  EXPECT_THAT(refused({.source_gid_index = 1}), ::testing::HasSubstr("GID index 1: this port has 1"));
  EXPECT_THAT(refused({.max_reads_in = 17}), ::testing::HasSubstr("17 READs in flight: at most 16"));
  EXPECT_EQ(q.pair->state(), QpState::kInit);
}

TEST_F(QueuePairTest, TakesWorkInErrorAndFlushesItAtOnce) {
  p->post_receive(50);
  write(1);
  p->must(p->modify({.state = QpState::kError}));
  write(2);
  p->post_receive(51);
  EXPECT_THAT(done(),
              ElementsAre(std::pair(1ul, CompletionStatus::kFlushed), std::pair(50ul, CompletionStatus::kFlushed),
                          std::pair(2ul, CompletionStatus::kFlushed), std::pair(51ul, CompletionStatus::kFlushed)));
  EXPECT_THAT(p->answers(), IsEmpty());
}

TEST_F(QueuePairTest, SaysWhatItWouldTakeWithoutTakingIt) {
  const Sge sge{CraftedPeer::kBase, 8, p->key};
  const std::vector<Sge> many(5, sge);
  const auto check = [&](const SendRequest& request) { return p->adapter->check_send(*p->pair, request); };
  EXPECT_EQ(check({.op = SendOp::kWrite, .sges = {&sge, 1}}), PostError::kNone);
  EXPECT_EQ(check({.op = SendOp::kWrite, .sges = many}), PostError::kTooManySges);
  EXPECT_EQ(p->pair->send_queue_length(), 0u);
  EXPECT_THAT(p->answers(), IsEmpty());
  p->must(p->modify({.state = QpState::kReset}));
  EXPECT_EQ(check({.op = SendOp::kWrite, .sges = {&sge, 1}}), PostError::kWrongState);
}

TEST_F(QueuePairTest, TellsThatACompletionOfWhatWasFlushedAtOnceIsLost) {
  p->must(p->modify({.state = QpState::kError}));
  EXPECT_THAT(p->events, IsEmpty());
  for (std::uint32_t i = 0; i < p->completions->depth(); ++i) write(i);
  EXPECT_THAT(p->events, IsEmpty());
  p->post_receive(1);
  EXPECT_THAT(p->events, ElementsAre(Event::kCompletionQueueOverrun));
  write(2);
  EXPECT_THAT(p->events, SizeIs(1)) << "once";
}

TEST_F(QueuePairTest, ForgetsEverythingInReset) {
  p->post_receive(50);
  write(1, 3000);
  p->answers();
  p->deliver(request(Psn(0x1000)));
  p->must(p->modify({.state = QpState::kReset}));
  EXPECT_THAT(p->answers(), IsEmpty());
  EXPECT_EQ(p->adapter->next_deadline(), Time::never());
  EXPECT_THAT(done(), IsEmpty());
  EXPECT_EQ(write(2), PostError::kWrongState);
  EXPECT_EQ(p->post_receive(1), PostError::kWrongState);
  p->make_ready();
  write(3);
  const auto sent = p->answers();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].psn(), Psn(0x2000));
  ack(Psn(0x2000));
  EXPECT_THAT(done(), ElementsAre(std::pair(3ul, CompletionStatus::kSuccess)));
  p->deliver({.opcode = kRcSendOnly, .psn = Psn(0x1000)});
  EXPECT_TRUE(p->answers().at(0).aeth().is_rnr_nak()) << "the receive of before is gone";
}

TEST_F(QueuePairTest, IsAsNewAfterAReset) {
  p->deliver(request(Psn(0x1000)));
  p->must(p->modify({.state = QpState::kReset}));
  EXPECT_FALSE(p->pair->attributes().remote_gid || p->pair->attributes().remote_qpn || p->pair->attributes().access);
  p->make_ready();
  p->deliver(request(Psn(0x1000)));
  EXPECT_EQ(std::ranges::count(p->events, Event::kCommunicationEstablished), 2) << "its peer may be another";
}

TEST_F(QueuePairTest, TellsWhenTheLastReceiveOfASharedQueueHasBeenTaken) {
  SharedReceiveQueue* const shared = p->adapter->create_shared_receive_queue(p->pd, 8, 1);
  QueuePair* const pair = p->adapter
                              ->create_queue_pair({.pd = p->pd,
                                                   .send_completions = p->completions,
                                                   .receive_completions = p->completions,
                                                   .shared_receives = shared})
                              .value();
  p->must(p->adapter->modify(p->now, *pair, {.state = QpState::kError}));
  EXPECT_THAT(p->events, ElementsAre(Event::kLastReceiveReached));
}

// --- draining ---

TEST_F(QueuePairTest, FinishesWhatHasStartedAndStartsNothingWhileDraining) {
  AdapterConfig config;
  config.max_unacked_packets = 2;
  p = std::make_unique<CraftedPeer>(CraftedOptions{}, config);
  write(1, 3000);
  write(2);
  EXPECT_THAT(p->answers(), SizeIs(2));
  p->must(p->modify({.state = QpState::kSendQueueDrained}));
  EXPECT_EQ(write(3), PostError::kNone) << "work may be posted, and waits";
  EXPECT_THAT(p->answers(), IsEmpty());
  ack(Psn(0x2001));
  const auto rest = p->answers();
  ASSERT_THAT(rest, SizeIs(1)) << "the message that has started is sent to its end";
  EXPECT_EQ(rest[0].opcode(), kRcWriteLast);
  EXPECT_THAT(p->events, IsEmpty());
  // Its last packet is lost: the clock still runs.
  EXPECT_TRUE(p->wait());
  EXPECT_THAT(p->answers(), SizeIs(1));
  ack(Psn(0x2002));
  EXPECT_THAT(done(), ElementsAre(std::pair(1ul, CompletionStatus::kSuccess)));
  EXPECT_THAT(p->answers(), IsEmpty());
  EXPECT_THAT(p->events, ElementsAre(Event::kSendQueueDrained));
  while (p->wait()) {
  }
  p->must(p->modify({.state = QpState::kReadyToSend}));
  EXPECT_THAT(p->answers(), SizeIs(2));
  ack(Psn(0x2004));
  EXPECT_THAT(done(),
              ElementsAre(std::pair(2ul, CompletionStatus::kSuccess), std::pair(3ul, CompletionStatus::kSuccess)));
  EXPECT_THAT(p->events, SizeIs(1));
}

TEST_F(QueuePairTest, TellsAtOnceThatAnIdleSendQueueIsDrainedAndAgainTheNextTime) {
  for (std::size_t i = 1; i <= 2; ++i) {
    p->must(p->modify({.state = QpState::kSendQueueDrained}));
    EXPECT_THAT(p->events, SizeIs(i));
    p->must(p->modify({.state = QpState::kReadyToSend}));
  }
}

TEST_F(QueuePairTest, AnswersThePeerWhileDraining) {
  p->must(p->modify({.state = QpState::kSendQueueDrained}));
  p->deliver(request(Psn(0x1000)));
  EXPECT_THAT(p->answers(), SizeIs(1));
}

TEST_F(QueuePairTest, GivesUpWhileDrainingLikeAtAnyTime) {
  write(1);
  p->answers();
  p->must(p->modify({.state = QpState::kSendQueueDrained}));
  while (p->wait()) p->answers();
  EXPECT_EQ(p->pair->state(), QpState::kError);
  EXPECT_THAT(done(), ElementsAre(std::pair(1ul, CompletionStatus::kRetryExceeded)));
}

TEST_F(QueuePairTest, TakesAnotherTimeOutWhileDrainingForWhatIsUnderWay) {
  write(1);
  EXPECT_THAT(p->answers(), SizeIs(1));
  p->must(p->modify({.state = QpState::kSendQueueDrained}));
  p->must(p->modify({.timeout = std::uint8_t{0}}));
  while (p->wait()) EXPECT_THAT(p->answers(), IsEmpty()) << "for ever";
  p->must(p->modify({.timeout = std::uint8_t{8}}));
  EXPECT_TRUE(p->wait());
  EXPECT_THAT(p->answers(), SizeIs(1)) << "its time is up";
  EXPECT_EQ(p->counters().timeouts, 1u);
}

TEST_F(QueuePairTest, TakesAnotherPathWhenDrained) {
  p->must(p->modify({.state = QpState::kSendQueueDrained}));
  const wire::MacAddress other{{2, 0, 0, 0, 0, 9}};
  p->must(p->modify({.remote_mac = other, .traffic_class = 0x20}));
  p->must(p->modify({.state = QpState::kReadyToSend}));
  write(1);
  const auto sent = p->answers();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_TRUE(std::equal(other.bytes.begin(), other.bytes.end(), sent[0].frame.begin()));
  EXPECT_EQ(sent[0].parsed.traffic_class, 0x20);
  EXPECT_EQ(sent[0].psn(), Psn(0x2000));
}

TEST_F(QueuePairTest, AnotherPathIsNotThatOfTheMacBefore) {
  p->must(p->modify({.state = QpState::kSendQueueDrained}));
  p->must(p->modify({.remote_gid = wire::Gid::from(wire::Ipv4Address{0x0A000009})}));
  p->must(p->modify({.state = QpState::kReadyToSend}));
  write(1);
  EXPECT_THAT(p->answers(), IsEmpty());
  ASSERT_THAT(p->others, SizeIs(1));
  EXPECT_EQ(wire::ArpPacket::parse(p->others[0].data() + 14).target_ip, wire::Ipv4Address{0x0A000009});
}

// --- the way to the peer ---

class PathTest : public QueuePairTest {
 protected:
  PathTest() {
    CraftedOptions options;
    options.knows_mac = false;
    p = std::make_unique<CraftedPeer>(options);
  }
  void give_up_resolving() {
    for (int i = 0; i < 1000 && p->wait(); ++i) EXPECT_THAT(p->answers(), IsEmpty());
  }
  // Nothing of RoCE leaves before the peer's address has been asked for and told.
  void expect_question_then_packet() {
    EXPECT_THAT(p->answers(), IsEmpty());
    EXPECT_THAT(p->others, SizeIs(1));
    arp_reply();
    EXPECT_THAT(p->answers(), SizeIs(1));
  }
  void arp_reply() {
    std::vector<std::uint8_t> frame(14 + 28);
    wire::EthernetHeader{CraftedPeer::kOurMac, CraftedPeer::kPeerMac, wire::kEtherTypeArp}.write(frame.data());
    wire::ArpPacket{.operation = wire::ArpPacket::kReply,
                    .sender_mac = CraftedPeer::kPeerMac,
                    .sender_ip = CraftedPeer::peer_gid().v4(),
                    .target_mac = CraftedPeer::kOurMac,
                    .target_ip = CraftedPeer::our_gid().v4()}
        .write(frame.data() + 14);
    p->deliver(frame);
  }
};

TEST_F(PathTest, WorkGoesOutWhenTheAddressIsFound) {
  write(1);
  expect_question_then_packet();
}

TEST_F(PathTest, WorkEndsAsRetryExceededWhenNobodyHasTheAddress) {
  write(1);
  write(2);
  give_up_resolving();
  EXPECT_THAT(done(), ElementsAre(std::pair(1ul, CompletionStatus::kRetryExceeded),
                                  std::pair(2ul, CompletionStatus::kFlushed)));
  EXPECT_EQ(p->pair->state(), QpState::kError);
  EXPECT_EQ(p->adapter->next_deadline(), Time::never());
}

TEST_F(PathTest, WorkPostedAfterTheAddressWasNotFoundAsksAnew) {
  give_up_resolving();
  EXPECT_EQ(p->pair->state(), QpState::kReadyToSend) << "nothing has been asked of it";
  p->others.clear();
  write(1);
  p->answers();
  EXPECT_THAT(p->others, SizeIs(1));
  arp_reply();
  EXPECT_THAT(p->answers(), SizeIs(1));
}

TEST_F(PathTest, EachRequestOfThePeerAsksAnewOnceTheAddressWasGivenUp) {
  p->deliver(request(Psn(0x1000)));
  give_up_resolving();
  EXPECT_EQ(p->pair->state(), QpState::kReadyToSend);
  p->others.clear();
  p->deliver(request(Psn(0x1000)));
  expect_question_then_packet();
}

TEST_F(PathTest, SoDoesWorkThatWasPostedWhileItWasDrained) {
  p->must(p->modify({.state = QpState::kSendQueueDrained}));
  give_up_resolving();
  write(1);
  p->others.clear();
  p->must(p->modify({.state = QpState::kReadyToSend}));
  expect_question_then_packet();
}

TEST_F(PathTest, ARequestOfThePeerAsksAnewToo) {
  give_up_resolving();
  p->others.clear();
  p->deliver(request(Psn(0x1000)));
  expect_question_then_packet();
}

TEST_F(PathTest, ARefusalThatCannotBeSentStillEndsTheQueuePair) {
  p->answers();
  auto bad = request(Psn(0x1000));
  bad.extended = CraftedPeer::reth(0, p->key, 1);
  p->deliver(bad);
  give_up_resolving();
  EXPECT_EQ(p->pair->state(), QpState::kError);
}

// --- datagrams ---

class DatagramTest : public QueuePairTest {
 protected:
  DatagramTest() {
    CraftedOptions options;
    options.transport = Transport::kUd;
    p = std::make_unique<CraftedPeer>(options);
  }
  PostError to(const UdDestination& destination, std::uint64_t id, std::uint32_t length = 8,
               std::optional<memory::Key> key = {}) {
    const Sge sge{CraftedPeer::kBase, length, key.value_or(p->key)};
    return p->post({.id = id, .sges = {&sge, 1}, .destination = &destination});
  }
  UdDestination known() const { return {.gid = CraftedPeer::peer_gid(), .mac = CraftedPeer::kPeerMac, .qpn = Qpn{9}}; }
  UdDestination unknown() const { return {.gid = CraftedPeer::peer_gid(), .qpn = Qpn{9}}; }
  CraftedPeer::Packet datagram(std::size_t length, std::uint32_t qkey = 0x1111) const {
    return {.opcode = kUdSendOnly,
            .ack_request = false,
            .extended = CraftedPeer::written(wire::Deth{.qkey = wire::QKey{qkey}, .source = Qpn{5}}),
            .payload = std::vector<std::uint8_t>(length, 3)};
  }
};

TEST_F(DatagramTest, SendsEachToItsOwnDestinationAndCompletesAtOnce) {
  to(known(), 1);
  UdDestination other = known();
  other.qpn = Qpn{10};
  to(other, 2, 0);
  const auto sent = p->answers();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].parsed.destination, Qpn{9});
  EXPECT_EQ(sent[1].parsed.destination, Qpn{10});
  EXPECT_EQ(sent[1].psn(), sent[0].psn() + 1);
  EXPECT_EQ(sent[0].get<wire::Deth>().source, p->pair->qpn());
  EXPECT_THAT(done(), SizeIs(2));
  EXPECT_EQ(p->adapter->next_deadline(), Time::never());
}

TEST_F(DatagramTest, GoesAsItsDestinationSays) {
  UdDestination destination = known();
  destination.traffic_class = 0x20;
  destination.hop_limit = 7;
  destination.qkey = wire::QKey{0x2222};
  p->post({.id = 1, .flags = {.solicited = true}, .destination = &destination});
  destination.qkey = wire::QKey{0x8000'0000};
  to(destination, 2);
  const auto sent = p->answers();
  ASSERT_THAT(sent, SizeIs(2));
  constexpr std::size_t kTimeToLive = 8;
  EXPECT_EQ(sent[0].parsed.traffic_class, 0x20);
  EXPECT_EQ(sent[0].frame[sent[0].parsed.ip_offset + kTimeToLive], 7);
  EXPECT_EQ(sent[0].get<wire::Deth>().qkey, wire::QKey{0x2222});
  EXPECT_TRUE(sent[0].parsed.solicited);
  EXPECT_EQ(sent[1].get<wire::Deth>().qkey, wire::QKey{0x1111}) << "the top bit: its own";
  EXPECT_FALSE(sent[1].parsed.solicited);
}

TEST_F(DatagramTest, BringsItsImmediate) {
  const Sge into{CraftedPeer::kBase, 100, p->key};
  p->post_receive(1, {&into, 1});
  CraftedPeer::Packet packet = datagram(8);
  packet.opcode = kUdSendOnlyImmediate;
  const auto immediate = CraftedPeer::written(wire::ImmDt{0x1234});
  packet.extended.insert(packet.extended.end(), immediate.begin(), immediate.end());
  p->deliver(packet);
  const auto completed = p->completed();
  ASSERT_THAT(completed, SizeIs(1));
  EXPECT_TRUE(completed[0].has_immediate);
  EXPECT_EQ(completed[0].immediate, 0x1234u);
}

TEST_F(DatagramTest, ForgetsItsReceivesInReset) {
  const Sge into{CraftedPeer::kBase, 100, p->key};
  p->post_receive(1, {&into, 1});
  p->must(p->modify({.state = QpState::kReset}));
  p->make_ready();
  p->deliver(datagram(8));
  EXPECT_EQ(p->counters().rx_ud_dropped, 1u);
  EXPECT_THAT(p->completed(), IsEmpty());
}

TEST_F(DatagramTest, RefusesWhatIsTooLongOrGoesNowhere) {
  EXPECT_EQ(to(known(), 1, 1025), PostError::kTooLong);
  EXPECT_EQ(to({.gid = wire::Gid::parse("fe80::7").value()}, 1), PostError::kNoDestination);
  EXPECT_EQ(p->post({.id = 1}), PostError::kNoDestination);
  const UdDestination destination = known();
  EXPECT_EQ(p->post({.op = SendOp::kWrite, .destination = &destination}), PostError::kUnsupportedOp);
}

TEST_F(DatagramTest, WaitsForAnAddressWithoutHoldingUpTheClock) {
  to(unknown(), 1);
  to(known(), 2);
  EXPECT_THAT(p->answers(), IsEmpty());
  for (int i = 0; i < 1000 && p->pair->send_queue_length() == 2; ++i) {
    ASSERT_GT(p->adapter->next_deadline(), p->now);
    ASSERT_TRUE(p->wait());
    if (p->pair->send_queue_length() == 2) {
      EXPECT_THAT(p->answers(), IsEmpty());
    }
  }
  EXPECT_THAT(p->answers(), SizeIs(1)) << "who comes after does not wait for ever";
  EXPECT_THAT(done(), ElementsAre(std::pair(1ul, CompletionStatus::kRetryExceeded),
                                  std::pair(2ul, CompletionStatus::kSuccess)));
  EXPECT_EQ(p->pair->state(), QpState::kReadyToSend);
  EXPECT_TRUE(p->wait());
  EXPECT_FALSE(p->wait()) << "nothing is waited for any more";
}

TEST_F(DatagramTest, WaitsOnceForAllWhomNobodyKnows) {
  const auto nobody = [&](std::uint32_t n) {
    UdDestination to = unknown();
    to.gid = wire::Gid::from(wire::Ipv4Address{0x0A0000F0 + n});
    return to;
  };
  std::uint64_t id = 0;
  for (const std::uint32_t n : {0u, 0u, 1u, 2u, 1u, 0u}) to(nobody(n), ++id);
  to(known(), ++id);
  to(nobody(2), ++id);
  std::size_t sent = p->answers().size();
  while (sent == 0 && p->wait()) sent = p->answers().size();
  EXPECT_EQ(sent, 1u);
  EXPECT_LT(p->now.since_start(), Duration::seconds(4)) << "one wait, of eight tries";
  auto statuses = done();
  ASSERT_THAT(statuses, SizeIs(8));
  for (const auto& [which, status] : statuses)
    EXPECT_EQ(status, which == 7 ? CompletionStatus::kSuccess : CompletionStatus::kRetryExceeded) << which;
  // For a while nobody asks again.
  p->now = p->now + Duration::milliseconds(500);
  to(nobody(1), 20);
  to(known(), 21);
  EXPECT_THAT(p->answers(), SizeIs(1));
  EXPECT_THAT(done(), SizeIs(2));
  // Later somebody may be there.
  p->now = p->now + Duration::seconds(1);
  to(nobody(1), 30);
  EXPECT_THAT(p->answers(), IsEmpty());
  EXPECT_THAT(done(), IsEmpty());
  EXPECT_EQ(p->pair->send_queue_length(), 1u);
}

TEST_F(DatagramTest, EndsAtOnceWhereAFlushedPostFindsNoRoomForItsCompletion) {
  to(known(), 1, 8, memory::Key{3});
  EXPECT_THAT(p->answers(), IsEmpty());
  ASSERT_EQ(p->pair->state(), QpState::kSendQueueError);
  while (p->completions->size() < p->completions->depth()) to(known(), 2);
  EXPECT_EQ(p->pair->state(), QpState::kSendQueueError);
  to(known(), 3);
  EXPECT_EQ(p->pair->state(), QpState::kError);
  EXPECT_THAT(p->events, ElementsAre(Event::kCompletionQueueOverrun, Event::kFatal));
  EXPECT_FALSE(p->modify({.state = QpState::kReadyToSend}));
}

TEST_F(DatagramTest, StopsItsSendQueueAtABadLocalKeyAndGoesOnReceiving) {
  to(known(), 1, 8, memory::Key{3});
  to(known(), 2);
  EXPECT_THAT(p->answers(), IsEmpty());
  EXPECT_THAT(done(), ElementsAre(std::pair(1ul, CompletionStatus::kLocalProtectionError),
                                  std::pair(2ul, CompletionStatus::kFlushed)));
  EXPECT_EQ(p->pair->state(), QpState::kSendQueueError);
  const Sge into{CraftedPeer::kBase, 100, p->key};
  p->post_receive(7, {&into, 1});
  p->deliver(datagram(60));
  EXPECT_THAT(done(), ElementsAre(std::pair(7ul, CompletionStatus::kSuccess)));
}

TEST_F(DatagramTest, ReceivesWithItsKeyBeforeItMaySend) {
  CraftedOptions options;
  options.transport = Transport::kUd;
  options.state = QpState::kReadyToReceive;
  p = std::make_unique<CraftedPeer>(options);
  const Sge into{CraftedPeer::kBase, 100, p->key};
  p->post_receive(7, {&into, 1});
  p->deliver(datagram(4, 0));
  EXPECT_EQ(p->counters().rx_ud_dropped, 1u);
  p->deliver(datagram(4));
  EXPECT_THAT(done(), ElementsAre(std::pair(7ul, CompletionStatus::kSuccess)));
}

TEST_F(DatagramTest, DropsWhatHasAWrongKeyOrFindsNoReceive) {
  p->deliver(datagram(4));
  const Sge into{CraftedPeer::kBase, 100, p->key};
  p->post_receive(7, {&into, 1});
  p->deliver(datagram(4, 0x1112));
  EXPECT_EQ(p->counters().rx_ud_dropped, 2u);
  EXPECT_TRUE(p->memory_untouched());
  EXPECT_THAT(done(), IsEmpty());
}

TEST_F(DatagramTest, TellsThatASharedReceiveQueueHasFallenBelowItsLimit) {
  SharedReceiveQueue* const shared = p->adapter->create_shared_receive_queue(p->pd, 8, 1);
  QueuePair* const pair = p->adapter
                              ->create_queue_pair({.transport = Transport::kUd,
                                                   .pd = p->pd,
                                                   .send_completions = p->completions,
                                                   .receive_completions = p->completions,
                                                   .shared_receives = shared})
                              .value();
  p->must(p->adapter->modify(p->now, *pair, {.state = QpState::kInit, .qkey = wire::QKey{0x1111}}));
  p->must(p->adapter->modify(p->now, *pair, {.state = QpState::kReadyToReceive}));
  const Sge into{CraftedPeer::kBase, 100, p->key};
  for (std::uint64_t i = 0; i < 3; ++i) p->adapter->post_receive(*shared, {.id = i, .sges = {&into, 1}});
  int told = 0;
  shared->limit = 2;
  shared->on_limit = [&] { ++told; };
  for (const int expected : {0, 1, 1}) {
    p->deliver(p->frame_of(datagram(8), CraftedPeer::way_to_us(), {.destination = pair->qpn()}));
    EXPECT_EQ(told, expected);
  }
  EXPECT_THAT(done(), SizeIs(3));
}

TEST_F(DatagramTest, FillsAReceiveThatIsJustLongEnough) {
  const Sge into{CraftedPeer::kBase, 100, p->key};
  p->post_receive(7, {&into, 1});
  p->deliver(datagram(60));
  EXPECT_THAT(done(), ElementsAre(std::pair(7ul, CompletionStatus::kSuccess)));
  EXPECT_TRUE(p->guards_intact());
}

TEST_F(DatagramTest, EndsAtAReceiveThatIsTooShortAndWritesNothing) {
  const Sge into{CraftedPeer::kBase, 100, p->key};
  p->post_receive(7, {&into, 1});
  p->post_receive(8, {&into, 1});
  p->deliver(datagram(61));
  EXPECT_TRUE(p->memory_untouched());
  EXPECT_THAT(done(), ElementsAre(std::pair(7ul, CompletionStatus::kLocalLengthError),
                                  std::pair(8ul, CompletionStatus::kFlushed)));
  EXPECT_EQ(p->pair->state(), QpState::kError);
}

TEST_F(DatagramTest, LooksOnlyAtThePiecesOfAReceiveThatItFills) {
  const Sge into[]{{CraftedPeer::kBase, 100, p->key}, {0x1234, 100, memory::Key{3}}};
  p->post_receive(7, into);
  p->deliver(datagram(60));
  EXPECT_THAT(done(), ElementsAre(std::pair(7ul, CompletionStatus::kSuccess)));
}

TEST_F(DatagramTest, EndsAtAReceiveWithABadLocalKey) {
  const Sge into{CraftedPeer::kBase, 100, memory::Key{3}};
  p->post_receive(7, {&into, 1});
  p->deliver(datagram(8));
  EXPECT_THAT(done(), ElementsAre(std::pair(7ul, CompletionStatus::kLocalProtectionError)));
  EXPECT_EQ(p->pair->state(), QpState::kError);
}

// --- time ---

TEST_F(QueuePairTest, StandsOnceInTheHeapOfDeadlinesHoweverOftenItWaits) {
  CraftedOptions options;
  options.timeout = 20;  // seconds
  options.rnr_retry_count = 7;
  p = std::make_unique<CraftedPeer>(options);
  p->post({.op = SendOp::kSend});
  p->answers();
  const std::size_t before = allocations;
  for (int i = 0; i < 2000; ++i) {
    p->deliver(
        {.opcode = kRcAcknowledge, .psn = Psn(0x2000), .extended = CraftedPeer::aeth(wire::Aeth::rnr_nak(0, 1))});
    ASSERT_TRUE(p->wait());
    ASSERT_THAT(p->answers(), SizeIs(1));
  }
  EXPECT_LT(allocations - before, 2000u * 40) << "only what the test itself makes";
  EXPECT_GT(p->adapter->next_deadline(), p->now);
}

TEST(Deadlines, ComeOutInOrderAndOnceEach) {
  Rng rng(3);
  DeadlineHeap heap;
  std::vector<DeadlineHeap::Place> places(50);
  std::vector<Time> when(places.size(), Time::never());
  for (std::uint32_t i = 0; i < places.size(); ++i) places[i].qpn = Qpn{i};
  heap.reserve(places.size());
  for (int step = 0; step < 20'000; ++step) {
    const auto i = rng.below(places.size());
    when[i] =
        rng.below(4) == 0 ? Time::never() : Time::at(Duration::picoseconds(static_cast<std::int64_t>(rng.below(1000))));
    if (rng.below(2) == 0 && when[i] == Time::never()) {
      heap.remove(places[i]);
    } else {
      heap.set(places[i], when[i]);
    }
    const Time least = *std::ranges::min_element(when);
    ASSERT_EQ(heap.next(), least);
    if (least != Time::never()) {
      ASSERT_EQ(when[heap.first().qpn.value], least);
      if (rng.below(3) == 0) {
        when[heap.first().qpn.value] = Time::never();
        heap.remove(heap.first());
      }
    }
  }
}

// --- what it costs ---

TEST(QueuePairCost, IsUnderFourKibibytesBesidesItsWorkQueues) {
  CraftedPeer p;
  const QueuePairConfig config{.pd = p.pd,
                               .send_completions = p.completions,
                               .receive_completions = p.completions,
                               .send_depth = 64,
                               .receive_depth = 64,
                               .max_send_sges = 1,
                               .max_receive_sges = 1,
                               .max_inline = 64};
  for (int i = 0; i < 100; ++i) (void)p.adapter->create_queue_pair(config);  // tables have grown
  constexpr int kMany = 100;
  const std::size_t before = allocated_bytes;
  for (int i = 0; i < kMany; ++i) ASSERT_TRUE(p.adapter->create_queue_pair(config));
  const std::size_t each = (allocated_bytes - before) / kMany;
  const std::size_t queues = 64 * (sizeof(SendWqe) + sizeof(LocalPiece) + 64) + 64 * (16 + sizeof(LocalPiece));
  ::testing::Test::RecordProperty("bytes", std::to_string(each - queues));
  EXPECT_LT(each - queues, 4096u) << "of " << each << ", " << queues << " are work queues";
}

class NoAllocation : public ::testing::TestWithParam<SendOp> {};

TEST_P(NoAllocation, OnTheDataPathOnceSetUp) {
  TwoAdapters world;
  std::vector<std::uint8_t> remote(65'536);
  std::vector<std::uint8_t> local(5000);
  const auto key = world.region(world.b, remote, 0);
  const auto pair = world.connect();
  const Sge sge = Sge::of(local);
  Completion done[64];
  const auto burst = [&] {
    for (int i = 0; i < 32; ++i) {
      if (GetParam() == SendOp::kSend) {
        ASSERT_EQ(world.b.adapter->post_receive(*pair.b, {.sges = {&sge, 1}}), PostError::kNone);
      }
      ASSERT_EQ(
          world.a.adapter->post_send(world.now, *pair.a, {.op = GetParam(), .sges = {&sge, 1}, .remote_key = key}),
          PostError::kNone);
    }
    std::size_t n = 0;
    for (int i = 0; i < 100'000 && n < 32; ++i) {
      world.round();
      n += world.a.completions->poll(done);
    }
    ASSERT_EQ(n, 32u);
    while (world.b.completions->poll(done) != 0) {
    }
  };
  burst();
  const std::size_t before = allocations;
  for (int i = 0; i < 6; ++i) burst();
  EXPECT_EQ(allocations - before, 0u);
}
INSTANTIATE_TEST_SUITE_P(Operations, NoAllocation,
                         ::testing::Values(SendOp::kSend, SendOp::kWrite, SendOp::kRead, SendOp::kFetchAndAdd),
                         [](const auto& op) { return std::to_string(static_cast<int>(op.param)); });

}  // namespace
}  // namespace sluice::rc
