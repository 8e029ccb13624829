// Shared connections for longer than numbers last: sequence numbers of 24 bits come round while a client does nothing but operations
// that are replaced. And WRITEs of all extents over tracked words.
#include "swordbox/multiplexer.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "base/effort_test.h"
#include "swordbox/test_net.h"

namespace sluice::swordbox {
namespace {

constexpr wire::RKey kKey{7};
constexpr std::uint64_t kWord = 0x10'0000;

MultiplexerConfig config_of(const std::vector<WordRegion>& regions) {
  MultiplexerConfig config;
  config.regions = regions;
  config.words = 4;
  config.ring = 64;
  return config;
}

// Of node 2, behind one another from kWord on, of these lengths; 0: all that the key opens.
std::vector<WordRegion> regions_of(const std::vector<std::uint64_t>& lengths) {
  std::vector<WordRegion> regions;
  std::uint64_t at = kWord;
  for (const std::uint64_t length : lengths) {
    regions.push_back({.server = Net::node(2), .rkey = kKey, .address = at, .length = length, .writable = true});
    at += length;
  }
  return regions;
}

// One client on a connection of its own, one word, one box between them; the server's answers are made by hand.
class Lane : public Net {
 public:
  explicit Lane(const std::vector<std::uint64_t>& lengths = {0}) : Net(config_of(regions_of(lengths))) {}

  Verdict add(std::uint32_t psn, std::uint64_t address = kWord) { return Net::add(line, psn, kKey, address); }
  Verdict write(std::uint32_t psn, std::uint64_t address, std::uint32_t length) {
    return Net::write(line, psn, kKey, address, length);
  }
  // A connection to queue pair 0x33, by REQ and REP. `id`: the client's name for it.
  void request(std::uint32_t id = 1) {
    manage(line.near, line.far,
           wire::CmReq{
               .local_comm_id = wire::CommId(id), .local_qpn = Qpn(0x44), .starting_psn = Psn(500), .path_mtu = 3});
  }
  void reply(std::uint32_t starting_psn, std::uint32_t id = 1) {
    manage(line.far, line.near,
           wire::CmRep{.local_comm_id = wire::CommId(2),
                       .remote_comm_id = wire::CommId(id),
                       .local_qpn = Qpn(0x33),
                       .starting_psn = Psn(starting_psn)});
  }
  void end(std::uint32_t id) {
    manage(line.near, line.far,
           wire::CmDreq{.local_comm_id = wire::CommId(id), .remote_comm_id = wire::CommId(2), .remote_qpn = Qpn(0x33)});
  }
  // Two atomics on it, of which the first tells the word's value; what the second one's answer says was there before.
  std::uint64_t add_twice(std::uint32_t psn, std::uint64_t there) {
    const Line managed{line.near, line.far, Qpn(0x44), Qpn(0x33)};
    EXPECT_EQ(Net::add(managed, psn, kKey, kWord), Verdict::kWordPassed);
    EXPECT_EQ(Net::prior(managed.turned(), psn, there), Verdict::kResponse);
    EXPECT_EQ(Net::add(managed, psn + 1, kKey, kWord), Verdict::kAtomicReplaced);
    EXPECT_EQ(Net::ack(managed.turned(), psn + 1), Verdict::kSharedAnswer);
    return last.prior;
  }
  std::uint64_t announced() { return box.counters().connections_announced; }
  std::optional<std::uint64_t> value_of(std::uint64_t address) { return box.multiplexer()->value_of(address); }
  Verdict read(std::uint32_t psn, std::uint32_t length) { return Net::read(line, psn, kKey, 0x5000, length); }
  Verdict data(std::uint32_t psn, wire::Opcode opcode) { return Net::data(line.turned(), psn, opcode); }
  Verdict ack(std::uint32_t psn) { return Net::ack(line.turned(), psn); }
  Verdict swapped(std::uint32_t psn, std::uint64_t prior) { return Net::prior(line.turned(), psn, prior); }

  Line line = connect(1, 2);
};

// A word that is known, because this client's operation has passed: the next one is replaced.
void make_known(Net& net, const Net::Line& line, std::uint32_t psn, std::uint64_t prior, std::uint64_t word = kWord) {
  ASSERT_EQ(net.add(line, psn, kKey, word), Verdict::kWordPassed);
  ASSERT_EQ(net.prior(line.turned(), psn, prior), Verdict::kResponse);
  ASSERT_EQ(net.box.multiplexer()->value_of(word), prior + 1);
}

TEST(Multiplexer, GoesOnReplacingWhenAllNumbersHaveBeenUsed) {
  if (kAddressSanitizer) GTEST_SKIP() << "eight million operations: seconds without it, more than a minute with it";
  Lane lane;
  ASSERT_EQ(lane.add(100), Verdict::kWordPassed);
  ASSERT_EQ(lane.swapped(100, 0), Verdict::kResponse);
  constexpr std::uint32_t kAll = Psn::kMask + 1;
  for (std::uint32_t i = 0; i < kAll / 2 + 1000; ++i) {
    const std::uint32_t psn = 101 + i;
    ASSERT_EQ(lane.add(psn), Verdict::kAtomicReplaced) << i;
    ASSERT_EQ(lane.ack(psn), Verdict::kSharedAnswer) << i;
    ASSERT_EQ(lane.last.psn, Psn(psn));
    ASSERT_EQ(lane.last.prior, i + 1) << "what was there before";
    ASSERT_EQ(lane.made, i + 1);
  }
  // Asked for again, the last one is answered again.
  ASSERT_EQ(lane.add(100 + kAll / 2 + 1000), Verdict::kAnsweredAgain);
}

// READs of several packets enter their first number only: what stood in the places of the others a turn of all numbers ago counts no more.
TEST(Multiplexer, TakesNoPartOfAReadForWhatHadItsNumberBefore) {
  Lane lane;
  ASSERT_EQ(lane.add(100), Verdict::kWordPassed);
  ASSERT_EQ(lane.swapped(100, 0), Verdict::kResponse);
  for (const std::uint32_t psn : {101u, 102u, 103u}) {
    ASSERT_EQ(lane.add(psn), Verdict::kAtomicReplaced);
    ASSERT_EQ(lane.ack(psn), Verdict::kSharedAnswer);
  }
  const std::uint64_t made = lane.made;
  constexpr std::uint32_t kSpan = 32;
  static_assert((Psn::kMask + 1) % kSpan == 0);
  for (std::uint32_t i = 0; i < Psn::kMask + 1 + kSpan; i += kSpan) {
    const std::uint32_t psn = (104 + i) & Psn::kMask;
    ASSERT_EQ(lane.read(psn, kSpan * 1024), Verdict::kPlain) << i;
    // The last round has the numbers of the atomics.
    if (i + kSpan >= Psn::kMask + 1) {
      ASSERT_EQ(lane.data(psn, wire::Opcode::kRcReadResponseFirst), Verdict::kResponse) << i;
      for (std::uint32_t k = 1; k + 1 < kSpan; ++k) {
        ASSERT_EQ(lane.data((psn + k) & Psn::kMask, wire::Opcode::kRcReadResponseMiddle), Verdict::kResponse) << i << k;
        // Asked for from there on.
        ASSERT_EQ(lane.read((psn + k) & Psn::kMask, (kSpan - k) * 1024), Verdict::kRepeatedRenumbered) << i << k;
      }
    }
    ASSERT_EQ(lane.data((psn + kSpan - 1) & Psn::kMask, wire::Opcode::kRcReadResponseLast), Verdict::kResponse) << i;
  }
  EXPECT_EQ(lane.made, made) << "nothing was answered by the box";
}

// Of more packets than the ring has places, when nothing else is under way.
TEST(Multiplexer, LetsALongReadThroughByItself) {
  Lane lane;
  ASSERT_EQ(lane.add(100), Verdict::kWordPassed);
  ASSERT_EQ(lane.swapped(100, 0), Verdict::kResponse);
  ASSERT_EQ(lane.add(101), Verdict::kAtomicReplaced);
  EXPECT_EQ(lane.read(102, 300 * 1024), Verdict::kHeldRequest) << "until all before it is answered";
  EXPECT_EQ(lane.add(402), Verdict::kHeldRequest);
  EXPECT_EQ(lane.ack(101), Verdict::kSharedAnswer);
  EXPECT_EQ(lane.box.held(), 1u) << "the READ has left, the atomic waits for its end";
  EXPECT_EQ(lane.last.opcode, wire::Opcode::kRcReadRequest);
  EXPECT_EQ(lane.last.psn, Psn(102));
  EXPECT_EQ(lane.data(102, wire::Opcode::kRcReadResponseFirst), Verdict::kResponse);
  for (std::uint32_t psn = 103; psn < 401; ++psn)
    ASSERT_EQ(lane.data(psn, wire::Opcode::kRcReadResponseMiddle), Verdict::kResponse) << psn;
  EXPECT_EQ(lane.read(350, 52 * 1024), Verdict::kRepeatedRenumbered) << "its end comes again";
  EXPECT_EQ(lane.box.held(), 1u);
  EXPECT_EQ(lane.data(401, wire::Opcode::kRcReadResponseLast), Verdict::kResponse);
  EXPECT_EQ(lane.box.held(), 0u);
  EXPECT_EQ(lane.last.opcode, wire::Opcode::kRcWriteOnly);
  EXPECT_EQ(lane.ack(402), Verdict::kSharedAnswer);
  EXPECT_EQ(lane.value_of(kWord), 3u);
  // And those of others, behind it on the same connection.
  const Net::Line other = lane.connect(3, 2);
  ASSERT_EQ(lane.Net::add(other, 100, kKey, kWord + 8), Verdict::kWordPassed);
  ASSERT_EQ(lane.Net::prior(other.turned(), 100, 0), Verdict::kResponse);
  EXPECT_EQ(lane.read(403, 300 * 1024), Verdict::kPlain);
  EXPECT_EQ(lane.Net::add(other, 101, kKey, kWord), Verdict::kAtomicReplaced);
  EXPECT_EQ(lane.ack(703), Verdict::kNak) << "asks for the READ's data again";
  EXPECT_EQ(lane.last.to, other.near_qpn);
  EXPECT_EQ(lane.read(403, 300 * 1024), Verdict::kRepeatedRenumbered);
  EXPECT_EQ(lane.data(702, wire::Opcode::kRcReadResponseLast), Verdict::kResponse);
  EXPECT_EQ(lane.add(703), Verdict::kAtomicReplaced);
  EXPECT_EQ(lane.ack(704), Verdict::kSharedAnswer);
  EXPECT_EQ(lane.read(704, 5000 * 1024), Verdict::kReadTooLong);
}

// The carrier's last operation of others is over and its owner's connection goes on by itself, with a long READ under way.
TEST(Multiplexer, KeepsALongReadWhenItsConnectionCarriesNoMore) {
  Lane lane;
  ASSERT_EQ(lane.add(100), Verdict::kWordPassed);
  ASSERT_EQ(lane.swapped(100, 0), Verdict::kResponse);
  ASSERT_EQ(lane.add(101), Verdict::kAtomicReplaced);
  ASSERT_EQ(lane.ack(101), Verdict::kSharedAnswer);
  ASSERT_EQ(lane.read(102, 300 * 1024), Verdict::kPlain);
  lane.manage(lane.line.near, lane.line.far, wire::CmDreq{.remote_qpn = lane.line.far_qpn});
  const Net::Line other = lane.connect(3, 2);
  ASSERT_EQ(lane.Net::add(other, 100, kKey, kWord + 8), Verdict::kWordPassed);
  ASSERT_EQ(lane.Net::prior(other.turned(), 100, 0), Verdict::kResponse);
  ASSERT_EQ(lane.Net::add(other, 101, kKey, kWord), Verdict::kAtomicReplaced) << "on its own connection";
  EXPECT_EQ(lane.data(401, wire::Opcode::kRcReadResponseLast), Verdict::kResponse);
  EXPECT_EQ(lane.read(402, 64), Verdict::kPlain);
  EXPECT_EQ(lane.data(402, wire::Opcode::kRcReadResponseOnly), Verdict::kResponse);
}

// A connection that carries, and a client whose operations on words of node 2 go over it.
class Shared : public Net {
 public:
  Shared() : Net(config_of(regions_of({0}))) {
    EXPECT_EQ(add(own, 100, kKey, kWord), Verdict::kWordPassed);
    EXPECT_EQ(prior(own.turned(), 100, 0), Verdict::kResponse);
    EXPECT_EQ(add(own, 101, kKey, kWord), Verdict::kAtomicReplaced);
    EXPECT_EQ(ack(own.turned(), 101), Verdict::kSharedAnswer);
    EXPECT_EQ(add(other, 100, kKey, kWord + 8), Verdict::kWordPassed);
    EXPECT_EQ(prior(other.turned(), 100, 0), Verdict::kResponse);
  }
  // The owner's, of so many packets; its numbers are 102 and those behind it.
  Verdict read(std::uint32_t packets) { return Net::read(own, 102, kKey, 0x5000, packets * 1024); }
  Verdict data(std::uint32_t packet, wire::Opcode opcode) { return Net::data(own.turned(), 102 + packet, opcode); }

  Line own = connect(1, 2);
  Line other = connect(3, 2);
};

constexpr wire::Opcode kFirst = wire::Opcode::kRcReadResponseFirst;
constexpr wire::Opcode kMiddle = wire::Opcode::kRcReadResponseMiddle;
constexpr wire::Opcode kLast = wire::Opcode::kRcReadResponseLast;

TEST(Multiplexer, ACarrierGetsOnWhileTheDataOfItsOwnersReadComes) {
  for (const std::uint32_t packets : {60u, 4000u}) {
    Shared net;
    ASSERT_EQ(net.read(packets), Verdict::kPlain);
    ASSERT_EQ(net.add(net.other, 101, kKey, kWord), Verdict::kAtomicReplaced);
    for (std::uint32_t k = 0; k < packets; ++k) {
      net.wait(Duration::milliseconds(100) / packets);
      ASSERT_EQ(net.data(k, k == 0 ? kFirst : k + 1 == packets ? kLast : kMiddle), Verdict::kResponse) << packets << k;
    }
    EXPECT_EQ(net.box.counters().carriers_lost, 0u);
    EXPECT_EQ(net.ack(net.own.turned(), 102 + packets), Verdict::kSharedAnswer);
  }
}

TEST(Multiplexer, ACarrierIsLostWhenTheDataOfItsOwnersReadStops) {
  Shared net;
  ASSERT_EQ(net.read(60), Verdict::kPlain);
  ASSERT_EQ(net.add(net.other, 101, kKey, kWord), Verdict::kAtomicReplaced);
  net.wait(Duration::milliseconds(10));
  ASSERT_EQ(net.data(0, kFirst), Verdict::kResponse);
  net.wait(Duration::milliseconds(15));
  ASSERT_EQ(net.data(0, kFirst), Verdict::kResponse) << "again";
  EXPECT_EQ(net.box.counters().carriers_lost, 0u);
  net.wait(Duration::milliseconds(10));
  EXPECT_EQ(net.box.counters().carriers_lost, 1u);
}

TEST(Multiplexer, ARefusedReadIsToldHoweverLongItIs) {
  for (const std::uint32_t packets : {32u, 300u}) {  // of the ring's 64
    MultiplexerConfig config;
    config.regions = {{.server = Net::node(2), .rkey = kKey, .address = kWord, .length = 0, .writable = true}};
    config.words = 4;
    config.ring = 64;
    Net net(config);
    const Net::Line a = net.connect(1, 2);
    const Net::Line b = net.connect(3, 2);
    ASSERT_EQ(net.add(a, 100, kKey, kWord), Verdict::kWordPassed);
    ASSERT_EQ(net.prior(a.turned(), 100, 0), Verdict::kResponse);
    ASSERT_EQ(net.add(a, 101, kKey, kWord), Verdict::kAtomicReplaced);
    ASSERT_EQ(net.ack(a.turned(), 101), Verdict::kSharedAnswer);
    net.add(b, 100, kKey, kWord + 8);
    net.prior(b.turned(), 100, 0);
    ASSERT_EQ(net.add(b, 101, kKey, kWord), Verdict::kAtomicReplaced);
    ASSERT_EQ(net.ack(a.turned(), 102), Verdict::kSharedAnswer);
    net.read(b, 102, kKey, 0x5000, packets * 1024);
    EXPECT_EQ(net.nak(b.turned(), 101, wire::NakCode::kRemoteAccessError), Verdict::kNak) << packets;
  }
}

TEST(Multiplexer, ACarrierIsNotLostWhileNobodyHadATurn) {
  Shared net;
  ASSERT_EQ(net.read(2), Verdict::kPlain);
  for (std::uint32_t k = 0; k < 2; ++k) ASSERT_EQ(net.data(k, k == 0 ? kFirst : kLast), Verdict::kResponse);
  ASSERT_EQ(net.add(net.other, 101, kKey, kWord), Verdict::kAtomicReplaced);
  net.now = net.now + Duration::milliseconds(300);
  net.box.on_deadline(net.now, net);
  EXPECT_EQ(net.box.counters().carriers_lost, 0u);
  EXPECT_EQ(net.box.counters().operations_sent_again, 1u);
  net.wait(Duration::milliseconds(30));
  EXPECT_EQ(net.box.counters().carriers_lost, 1u) << "but it is when it says nothing";
}

// What others do behind it acknowledges the READ, and takes its place in the ring.
TEST(Multiplexer, TheDataOfAReadFindsItsClientHoweverMuchOthersDoMeanwhile) {
  for (const std::uint32_t packets : {60u, 4000u}) {
    Shared net;
    ASSERT_EQ(net.read(packets), Verdict::kPlain);
    constexpr std::uint32_t kOthers = 9000;
    static_assert(kOthers > MultiplexerConfig{}.carrier_ring);
    for (std::uint32_t i = 0; i < kOthers; ++i) {
      ASSERT_EQ(net.add(net.other, 101 + i, kKey, kWord), Verdict::kAtomicReplaced);
      const Verdict said = net.ack(net.own.turned(), 102 + packets + i);
      ASSERT_EQ(said, i == 0 ? Verdict::kNak : Verdict::kSharedAnswer) << "the data was lost";
    }
    EXPECT_EQ(net.read(packets), Verdict::kRepeatedRenumbered);
    for (std::uint32_t k = 0; k < packets; ++k)
      ASSERT_EQ(net.data(k, k == 0 ? kFirst : k + 1 == packets ? kLast : kMiddle), Verdict::kResponse) << packets << k;
    // Its end comes again, lost between box and client; then another READ.
    EXPECT_EQ(net.Net::read(net.own, 100 + packets, kKey, 0x5000, 2048), Verdict::kRepeatedRenumbered);
    EXPECT_EQ(net.data(packets - 2, kFirst), Verdict::kResponse);
    EXPECT_EQ(net.data(packets - 1, kLast), Verdict::kResponse);
    EXPECT_EQ(net.Net::read(net.own, 102 + packets, kKey, 0x5000, 64), Verdict::kPlain);
    EXPECT_EQ(net.data(packets + kOthers, wire::Opcode::kRcReadResponseOnly), Verdict::kResponse);
    EXPECT_EQ(net.add(net.own, 103 + packets, kKey, kWord), Verdict::kAtomicReplaced);
    EXPECT_EQ(net.ack(net.own.turned(), 103 + kOthers + packets), Verdict::kSharedAnswer);
    EXPECT_EQ(net.last.psn, Psn(103 + packets));
    EXPECT_EQ(net.last.prior, 2 + kOthers);
  }
}

TEST(Multiplexer, AReadOfSoLongAgoThatItsNumberMeansAnotherIsNotAskedForAgain) {
  if (kAddressSanitizer) GTEST_SKIP() << "two million operations, as above";
  Shared net;
  ASSERT_EQ(net.read(60), Verdict::kPlain);
  for (std::uint32_t i = 0; i < (1u << 21) + 1000; ++i) {
    ASSERT_EQ(net.add(net.other, (101 + i) & Psn::kMask, kKey, kWord), Verdict::kAtomicReplaced);
    static_cast<void>(net.ack(net.own.turned(), (162 + i) & Psn::kMask));
  }
  EXPECT_EQ(net.read(60), Verdict::kStale);
}

TEST(Multiplexer, IsNotDisturbedByAHandshakeThatComesAgainLate) {
  Lane lane;
  lane.request();
  lane.reply(900);
  EXPECT_EQ(lane.announced(), 2u);
  lane.reply(900);  // of a handshake that is over
  lane.request();
  lane.reply(900);
  EXPECT_EQ(lane.announced(), 2u);
  lane.request();
  lane.reply(901);  // another life of the same queue pairs
  EXPECT_EQ(lane.announced(), 3u);
}

// A program that begins with the same PSNs each time.
TEST(Multiplexer, AConnectionWithTheNumbersOfTheOneBeforeIsAnother) {
  for (const bool is_closed : {false, true}) {
    Lane lane;
    lane.request();
    lane.reply(900);
    EXPECT_EQ(lane.add_twice(900, 10), 11u);
    if (is_closed) lane.end(1);
    const std::uint32_t id = is_closed ? 1 : 3;  // whoever has said goodbye may use his name again
    lane.request(id);
    lane.reply(900, id);
    EXPECT_EQ(lane.announced(), 3u);
    EXPECT_EQ(lane.add_twice(900, 20), 21u) << "executed, not answered from what the other one did";
  }
}

// A DREQ whose answer was lost, when the queue pair has been given to another connection.
TEST(Multiplexer, ALateGoodbyeEndsNotTheConnectionThatCameAfter) {
  Lane lane;
  lane.request(1);
  lane.reply(900, 1);
  lane.end(1);
  lane.request(3);
  lane.reply(700, 3);
  lane.end(1);
  for (int ageing = 0; ageing < 100; ++ageing) lane.wait(Duration::milliseconds(100));
  EXPECT_EQ(lane.box.counters().connections_closed, 0u);
  EXPECT_EQ(lane.add_twice(700, 10), 11u);
  lane.end(3);
  for (int ageing = 0; ageing < 100; ++ageing) lane.wait(Duration::milliseconds(100));
  EXPECT_EQ(lane.box.counters().connections_closed, 1u);
}

// What an atomic at this address has shown is not known any more after the WRITE.
void expect_forgotten(const std::vector<std::uint64_t>& lengths, std::uint64_t word, std::uint64_t address,
                      std::uint32_t length) {
  Lane lane(lengths);
  ASSERT_EQ(lane.add(100, word), Verdict::kWordPassed);
  ASSERT_EQ(lane.swapped(100, 5), Verdict::kResponse);
  ASSERT_EQ(lane.value_of(word), 6u);
  EXPECT_EQ(lane.write(101, address, length), Verdict::kWordPassed);
  EXPECT_EQ(lane.value_of(word), std::nullopt) << std::hex << word << ' ' << address << ' ' << length;
}

TEST(Multiplexer, KnowsNoWordAnyMoreThatAWriteReaches) {
  expect_forgotten({0}, kWord, kWord, 64);
  expect_forgotten({0}, kWord + 8, kWord + 15, 4);
  expect_forgotten({0}, kWord + 0x2000, kWord + 0x1FF9, 8);
  expect_forgotten({0x800, 0x1000}, kWord, kWord - 16, 64);             // begins before all regions, on their page
  expect_forgotten({0x800, 0x1000}, kWord + 0x800, kWord + 0x7F0, 64);  // reaches from one into the next
  expect_forgotten({0x800, 0x1000}, kWord + 0x1000, kWord - 0x5000, 0x8000);  // over pages of none and of both
  expect_forgotten({0}, kWord, 1, 0xFFFF'FFFF);
  expect_forgotten({0}, ~std::uint64_t{7}, ~std::uint64_t{63}, 64);  // the last of all memory
}

TEST(Multiplexer, LeavesAloneWhatAWriteDoesNotReach) {
  Lane lane({0x800, 0x1000});
  ASSERT_EQ(lane.add(100, kWord + 0x800), Verdict::kWordPassed);
  ASSERT_EQ(lane.swapped(100, 5), Verdict::kResponse);
  EXPECT_EQ(lane.write(101, kWord + 0x7F0, 16), Verdict::kPlain);
  EXPECT_EQ(lane.write(102, kWord + 0x808, 64), Verdict::kPlain);
  EXPECT_EQ(lane.write(103, kWord - 0x1000, 0x1000), Verdict::kPlain);
  EXPECT_EQ(lane.value_of(kWord + 0x800), 6u);
}

TEST(Multiplexer, PassesAWriteThatGoesBeyondAllMemory) {
  Lane lane({0x800});
  EXPECT_EQ(lane.write(100, ~std::uint64_t{0xFFF}, 0x1010), Verdict::kPlain);
  EXPECT_EQ(lane.write(101, ~std::uint64_t{7}, 16), Verdict::kPlain);
}

// Requests of transports and vendors that the box cannot read might change words behind its back.
TEST(Multiplexer, DropsWhatItCannotReadOnItsWayToWords) {
  Lane lane;
  const Net::Line other = lane.connect(3, 2);
  const Net::Line elsewhere = lane.connect(3, 4);
  // ConnectX's masked FETCH_ADD, FLUSH, ATOMIC WRITE; UC's and RD's WRITE; XRC's WRITE and atomics; a vendor's.
  for (const int opcode : {0x19, 0x1C, 0x1D, 0x2C, 0x4A, 0xAA, 0xB3, 0xB4, 0xBD, 0xCA}) {
    EXPECT_EQ(lane.odd(other, static_cast<std::uint8_t>(opcode), 100, kKey, kWord), Verdict::kNotUnderstood) << opcode;
    EXPECT_EQ(lane.odd(elsewhere, static_cast<std::uint8_t>(opcode), 100, kKey, kWord), Verdict::kMalformed) << opcode;
    EXPECT_EQ(lane.odd(other.turned(), static_cast<std::uint8_t>(opcode), 100, kKey, kWord), Verdict::kMalformed)
        << opcode;
  }
  // RD's and XRC's SENDs, READs and answers; datagrams.
  for (const int opcode : {0x44, 0x4C, 0x51, 0x55, 0xA4, 0xAC, 0xB0, 0xB1, 0xB2, 0xB7, 0x66, 0x82})
    EXPECT_EQ(lane.odd(other, static_cast<std::uint8_t>(opcode), 100, kKey, kWord), Verdict::kMalformed) << opcode;
}

// The others need not wait until it might have been executed late: it never will be.
TEST(Multiplexer, AnAtomicThatIsRefusedHoldsNobodyUp) {
  Lane lane;
  const Net::Line good = lane.connect(3, 2);
  ASSERT_EQ(lane.add(100), Verdict::kWordPassed);
  ASSERT_EQ(lane.add(101, kWord + 8), Verdict::kWordPassed);
  EXPECT_EQ(lane.Net::nak(lane.line.turned(), 100, wire::NakCode::kPsnSequenceError), Verdict::kNak);
  EXPECT_EQ(lane.Net::add(good, 100, kKey, kWord + 8), Verdict::kHeldRequest) << "it is sent again";
  EXPECT_EQ(lane.Net::nak(lane.line.turned(), 100, wire::NakCode::kRemoteAccessError), Verdict::kNak);
  EXPECT_EQ(lane.made, 1u) << "what waited for the one behind it has left";
  EXPECT_EQ(lane.Net::prior(good.turned(), 100, 5), Verdict::kResponse);
  EXPECT_EQ(lane.Net::add(good, 101, kKey, kWord), Verdict::kWordPassed);
  EXPECT_EQ(lane.Net::prior(good.turned(), 101, 0), Verdict::kResponse);
  // On a connection with numbers of its own, too, and when it was a WRITE where a word comes to be tracked.
  ASSERT_EQ(lane.Net::add(good, 102, kKey, kWord), Verdict::kAtomicReplaced);
  ASSERT_EQ(lane.Net::ack(good.turned(), 102), Verdict::kSharedAnswer);
  ASSERT_EQ(lane.Net::write(good, 103, kKey, kWord + 0x100, 64), Verdict::kPlain);
  const Net::Line third = lane.connect(4, 2);
  EXPECT_EQ(lane.Net::add(third, 100, kKey, kWord + 0x100), Verdict::kHeldRequest);
  EXPECT_EQ(lane.Net::nak(good.turned(), 103, wire::NakCode::kRemoteAccessError), Verdict::kNak);
  EXPECT_EQ(lane.box.held(), 0u);
}

// A READ of a client's is lost behind the box, its next operation waits for the data, and the client dies.
TEST(Multiplexer, WhatWaitsOfAClientThatIsGoneIsNotHeldForAsLongAsItsConnection) {
  Lane lane;
  make_known(lane, lane.line, 100, 0);
  ASSERT_EQ(lane.add(101), Verdict::kAtomicReplaced);
  ASSERT_EQ(lane.ack(101), Verdict::kSharedAnswer);
  const Net::Line rests = lane.connect(3, 2);
  ASSERT_EQ(lane.read(102, 64), Verdict::kPlain);
  EXPECT_EQ(lane.add(103), Verdict::kHeldRequest);
  lane.wait(Duration::seconds(9));
  EXPECT_EQ(lane.box.held(), 1u) << "it may yet try again";
  lane.wait(Duration::seconds(4));
  EXPECT_EQ(lane.box.held(), 0u);
  EXPECT_EQ(lane.box.connections().size(), 1u) << "one that has nothing waiting stays";
  EXPECT_EQ(lane.Net::add(rests, 100, kKey, kWord), Verdict::kWordPassed);
}

TEST(Multiplexer, HoldsNoMorePacketsThanItIsTold) {
  Lane lane;
  lane.box.set_held_frames(2);
  const Net::Line other = lane.connect(3, 2);
  ASSERT_EQ(lane.add(100), Verdict::kWordPassed);
  EXPECT_EQ(lane.Net::add(other, 100, kKey, kWord), Verdict::kHeldRequest);
  EXPECT_EQ(lane.Net::add(other, 101, kKey, kWord), Verdict::kHeldRequest);
  for (int again = 0; again < 10; ++again) EXPECT_EQ(lane.Net::add(other, 102, kKey, kWord), Verdict::kHoldFull);
  EXPECT_EQ(lane.box.held(), 2u);
}

TEST(Multiplexer, LetsAWriteOvertakeAGapOnlyWhereNoWordMayBe) {
  Lane lane({0x800});
  ASSERT_EQ(lane.add(100), Verdict::kWordPassed);
  ASSERT_EQ(lane.swapped(100, 5), Verdict::kResponse);
  EXPECT_EQ(lane.write(105, kWord - 32, 32), Verdict::kGap);
  EXPECT_EQ(lane.write(105, kWord - 32, 64), Verdict::kGapDropped);
  EXPECT_EQ(lane.write(105, kWord + 0x400, 32), Verdict::kGapDropped);
}

// The request before them finds no room, because of another that waits for what they write to.
TEST(Multiplexer, WritesBeyondAGapThatComeAgainAndAgainKeepNobodyFromAWord) {
  MultiplexerConfig config = config_of(regions_of({0}));
  config.long_writes = 2;
  Net net(config);
  const Net::Line writes = net.connect(1, 2);
  const Net::Line adds = net.connect(3, 2);
  for (int again = 0; again < 50; ++again) {
    for (const std::uint32_t psn : {101u, 102u, 103u})
      EXPECT_EQ(net.write(writes, psn, kKey, kWord + 32, 16), Verdict::kGapDropped);
    if (again == 5) {
      EXPECT_EQ(net.add(adds, 100, kKey, kWord), Verdict::kWordPassed);
    }
    net.wait(Duration::milliseconds(10));
  }
  EXPECT_EQ(net.box.held(), 0u);
}

// ------------------------------------------------------------------------------------------------- memory that comes and goes

TEST(MultiplexerRegions, AConnectionThatCarriesOneWayIsNotTurnedByALongWriteTheOther) {
  std::vector<WordRegion> regions = regions_of({0});
  regions.push_back({.server = Net::node(1), .rkey = kKey, .address = 0x900'000, .length = 0x1000, .writable = true});
  Net net(config_of(regions));
  const Net::Line between = net.connect(1, 2);
  const Net::Line third = net.connect(3, 1);
  make_known(net, between, 100, 0);
  make_known(net, third, 100, 0, 0x900'000);
  ASSERT_EQ(net.add(between, 101, kKey, kWord), Verdict::kAtomicReplaced);
  // Node 2 writes over node 1's word, on the connection that carries node 1's operations to node 2.
  EXPECT_EQ(net.write(between.turned(), 100, kKey, 0x900'000, 16), Verdict::kWordNoRoom);
  EXPECT_EQ(net.ack(between.turned(), 101), Verdict::kSharedAnswer);
  EXPECT_EQ(net.made, 1u);
  EXPECT_EQ(net.last.psn, Psn(101));
  EXPECT_EQ(net.last.prior, 1u);
}

TEST(MultiplexerRegions, WhatPassedBeforeTheMemoryWasKnownIsNotExecutedUnseenLater) {
  Net net(config_of({}));
  const Net::Line one = net.connect(1, 2);
  const Net::Line two = net.connect(3, 2);
  EXPECT_EQ(net.add(one, 100, kKey, kWord), Verdict::kPlain);  // and is lost behind the box
  EXPECT_EQ(net.box.multiplexer()->set_regions(net.now, regions_of({0})), 0u);
  // It could still be under way.
  EXPECT_EQ(net.add(two, 100, kKey, kWord), Verdict::kHeldRequest);
  net.wait(Duration::milliseconds(101));
  EXPECT_EQ(net.prior(two.turned(), 100, 0), Verdict::kResponse);
  ASSERT_EQ(net.box.multiplexer()->value_of(kWord), 1u);
  EXPECT_EQ(net.add(one, 100, kKey, kWord), Verdict::kRepeated);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), std::nullopt);
  EXPECT_EQ(net.add(two, 101, kKey, kWord), Verdict::kHeldRequest) << "until it is answered";
}

TEST(MultiplexerRegions, AReadFromBeforeTheMemoryWasKnownHoldsNobodyUp) {
  Net net(config_of({}));
  const Net::Line one = net.connect(1, 2);
  const Net::Line two = net.connect(3, 2);
  EXPECT_EQ(net.read(one, 100, kKey, kWord, 8), Verdict::kPlain);
  EXPECT_EQ(net.box.multiplexer()->set_regions(net.now, regions_of({0})), 0u);
  EXPECT_EQ(net.add(two, 100, kKey, kWord), Verdict::kWordPassed);
}

TEST(MultiplexerRegions, AWriteFromBeforeTheMemoryWasKnownIsWatchedWhenItComesAgain) {
  Net net(config_of({}));
  const Net::Line one = net.connect(1, 2);
  const Net::Line two = net.connect(3, 2);
  EXPECT_EQ(net.write(one, 100, kKey, kWord, 8), Verdict::kPlain);
  EXPECT_EQ(net.box.multiplexer()->set_regions(net.now, regions_of({0})), 0u);
  net.wait(Duration::milliseconds(101));
  make_known(net, two, 100, 0);
  EXPECT_EQ(net.write(one, 100, kKey, kWord, 8), Verdict::kRepeated);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), std::nullopt);
  EXPECT_EQ(net.add(two, 101, kKey, kWord), Verdict::kHeldRequest) << "until the WRITE is answered";
  EXPECT_EQ(net.ack(one.turned(), 100), Verdict::kResponse);
  // Of a WRITE that was executed before, the server says the same: then the word still has what came behind it.
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), std::nullopt);
  EXPECT_EQ(net.last.opcode, wire::Opcode::kRcFetchAdd) << "it goes to the server itself";
  EXPECT_EQ(net.prior(two.turned(), 101, 1), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), 2u);
}

TEST(Multiplexer, AnOwnerWhoseAckIsLostHasItAgainThoughTheServersNextOneNamesAnothersOperation) {
  Lane lane({64});
  const Net::Line other = lane.connect(3, 2);
  make_known(lane, lane.line, 100, 0);
  make_known(lane, other, 100, 1);
  EXPECT_EQ(lane.add(101), Verdict::kAtomicReplaced);
  EXPECT_EQ(lane.ack(101), Verdict::kSharedAnswer);
  EXPECT_EQ(lane.write(102, kWord + 4096, 64), Verdict::kPlain);
  EXPECT_EQ(lane.Net::add(other, 101, kKey, kWord), Verdict::kAtomicReplaced);
  EXPECT_EQ(lane.ack(103), Verdict::kResponse);  // and is lost on its way to the owner
  const std::uint64_t made = lane.made;
  EXPECT_EQ(lane.write(102, kWord + 4096, 64), Verdict::kAnsweredAgain);
  EXPECT_EQ(lane.made, made + 1);
  EXPECT_EQ(lane.last.opcode, wire::Opcode::kRcAcknowledge);
  EXPECT_EQ(lane.last.psn, Psn(102));
  EXPECT_EQ(lane.last.to, lane.line.near_qpn);
}

// Its WRITE may be lost, and with it the connection. What was replaced would then be done on another, without it.
TEST(Multiplexer, WhatAnOwnerDoesBehindARequestOfItsOwnWaitsForItsAnswer) {
  Lane lane;
  make_known(lane, lane.line, 100, 0);
  ASSERT_EQ(lane.add(101), Verdict::kAtomicReplaced);
  EXPECT_EQ(lane.write(102, 0x5000, 64), Verdict::kPlain) << "behind that it may stand";
  EXPECT_EQ(lane.add(103), Verdict::kHeldRequest);
  EXPECT_EQ(lane.ack(101), Verdict::kSharedAnswer);
  EXPECT_EQ(lane.box.held(), 1u);
  EXPECT_EQ(lane.ack(102), Verdict::kResponse);
  EXPECT_EQ(lane.box.held(), 0u);
  EXPECT_EQ(lane.value_of(kWord), 3u);
  EXPECT_EQ(lane.add(104), Verdict::kAtomicReplaced);
}

// ------------------------------------------------------------------------------------------------ WRITEs that come again late

// A WRITE of node 1's was lost behind the box, so long ago that the word is its others' again: two more clients that add, one of them shared.
class LateUnlock : public Net {
 public:
  static constexpr std::uint32_t kLength = 16;  // write-back and unlock
  explicit LateUnlock(std::uint32_t length = kLength) : Net(config_of(regions_of({0}))) {
    make_known(*this, one, 100, 0);
    make_known(*this, two, 100, 0, kWord + 8);
    EXPECT_EQ(Net::write(late, 100, kKey, kWord, length), Verdict::kWordPassed);
    if (length > kLength) {
      EXPECT_EQ(write_on(late, 101), Verdict::kPlain);
    }
    wait(Duration::milliseconds(130));
    make_known(*this, one, 101, 1);
    EXPECT_EQ(add(one, 102, kKey, kWord), Verdict::kAtomicReplaced);
  }
  Verdict write_again(std::uint32_t length = kLength) { return Net::write(late, 100, kKey, kWord, length); }

  Line one = connect(3, 2);
  Line two = connect(4, 2);
  Line late = connect(1, 2);
};

TEST(MultiplexerLate, AWriteThatComesAgainHasItsTurnHoweverManyOthersThereAre) {
  LateUnlock net;
  EXPECT_EQ(net.write_again(), Verdict::kLate);
  EXPECT_EQ(net.add(net.two, 101, kKey, kWord), Verdict::kHeldRequest) << "behind it";
  EXPECT_EQ(net.write_again(), Verdict::kLate);
  const std::uint64_t made = net.made;
  EXPECT_EQ(net.ack(net.one.turned(), 102), Verdict::kSharedAnswer);
  // It is its turn: its client is asked for it, and nobody else begins on the word.
  EXPECT_EQ(net.made, made + 2) << "behind the answer of the one before it";
  EXPECT_EQ(net.last.opcode, wire::Opcode::kRcAcknowledge);
  EXPECT_EQ(net.last.to, net.late.near_qpn);
  EXPECT_EQ(net.last.psn, Psn(100));
  EXPECT_EQ(net.box.held(), 1u);
  EXPECT_EQ(net.add(net.one, 103, kKey, kWord), Verdict::kHeldRequest);
  EXPECT_EQ(net.write_again(), Verdict::kRepeated) << "it goes to the server";
  EXPECT_EQ(net.box.held(), 2u);
  EXPECT_EQ(net.ack(net.late.turned(), 100), Verdict::kResponse);
  EXPECT_EQ(net.last.opcode, wire::Opcode::kRcFetchAdd) << "the next one asks what the word holds now";
  EXPECT_EQ(net.last.to, net.two.far_qpn);
  EXPECT_EQ(net.box.held(), 1u);
}

TEST(MultiplexerLate, AWriteWhoseClientComesNoMoreHoldsTheOthersUpNoLongerThanAnOperationThatIsLost) {
  LateUnlock net;
  EXPECT_EQ(net.write_again(), Verdict::kLate);
  EXPECT_EQ(net.add(net.two, 101, kKey, kWord), Verdict::kHeldRequest);
  EXPECT_EQ(net.ack(net.one.turned(), 102), Verdict::kSharedAnswer);
  net.wait(Duration::milliseconds(99));
  EXPECT_EQ(net.box.held(), 1u);
  net.wait(Duration::milliseconds(2));
  EXPECT_EQ(net.box.held(), 0u);
}

// Its answer was late, or its client is gone.
TEST(MultiplexerLate, AWriteThatIsOverHasNoTurn) {
  for (const bool is_answered : {false, true}) {
    LateUnlock net;
    EXPECT_EQ(net.write_again(), Verdict::kLate);
    EXPECT_EQ(net.add(net.two, 101, kKey, kWord), Verdict::kHeldRequest);
    if (is_answered) {
      EXPECT_EQ(net.ack(net.late.turned(), 100), Verdict::kResponse);
    } else {
      Connections& all = net.box.connections();
      all.close(all.find(NetAddress::from(net.late.near), NetAddress::from(net.late.far), net.late.far_qpn).connection);
    }
    EXPECT_EQ(net.ack(net.one.turned(), 102), Verdict::kSharedAnswer);
    EXPECT_EQ(net.box.held(), 0u);
    EXPECT_EQ(net.last.opcode, wire::Opcode::kRcWriteOnly) << "the next one has been replaced";
  }
}

TEST(MultiplexerLate, NothingBehindAWriteThatWaitsForItsTurnIsBegun) {
  LateUnlock net;
  EXPECT_EQ(net.write_again(), Verdict::kLate);
  EXPECT_EQ(net.add(net.late, 101, kKey, kWord + 8), Verdict::kLate) << "it would hold up the WRITE that it waits for";
  EXPECT_EQ(net.ack(net.one.turned(), 102), Verdict::kSharedAnswer);
  EXPECT_EQ(net.last.opcode, wire::Opcode::kRcAcknowledge) << "its client is asked for it";
  EXPECT_EQ(net.write_again(), Verdict::kRepeated);
  EXPECT_EQ(net.add(net.late, 101, kKey, kWord + 8), Verdict::kHeldRequest) << "behind it";
}

// Neither in order nor when it comes again: it would be watched as often as it comes, on a word that the one before it waits for.
TEST(MultiplexerLate, NoWriteBehindOneThatWaitsForItsTurnIsBegunNorBegunAgain) {
  LateUnlock net;
  ASSERT_EQ(net.ack(net.one.turned(), 102), Verdict::kSharedAnswer);
  ASSERT_EQ(net.Net::write(net.late, 101, kKey, kWord + 8, 8), Verdict::kWordPassed);
  net.wait(Duration::milliseconds(130));
  ASSERT_EQ(net.add(net.one, 103, kKey, kWord), Verdict::kAtomicReplaced);
  EXPECT_EQ(net.write_again(), Verdict::kLate);
  EXPECT_EQ(net.Net::write(net.late, 101, kKey, kWord + 8, 8), Verdict::kLate);
  EXPECT_EQ(net.Net::write(net.late, 102, kKey, kWord + 8, 8), Verdict::kLate);
  EXPECT_EQ(net.ack(net.one.turned(), 103), Verdict::kSharedAnswer);
  EXPECT_EQ(net.last.opcode, wire::Opcode::kRcAcknowledge) << "its client is asked for it";
  EXPECT_EQ(net.last.psn, Psn(100));
  EXPECT_EQ(net.write_again(), Verdict::kRepeated);
}

// Of a client whose operations are replaced otherwise, and at once.
TEST(MultiplexerLate, NothingIsReplacedBehindAWriteThatWaitsForItsTurn) {
  Net net(config_of(regions_of({0})));
  const Net::Line one = net.connect(3, 2);
  const Net::Line late = net.connect(1, 2);
  make_known(net, one, 100, 0);
  make_known(net, late, 100, 1);
  ASSERT_EQ(net.add(one, 101, kKey, kWord), Verdict::kAtomicReplaced);
  ASSERT_EQ(net.add(late, 101, kKey, kWord), Verdict::kAtomicReplaced);
  ASSERT_EQ(net.add(late, 102, kKey, kWord), Verdict::kAtomicReplaced);
  ASSERT_EQ(net.ack(one.turned(), 103), Verdict::kSharedAnswer);
  // Its own connection has not had the two that were replaced.
  ASSERT_EQ(net.write(late, 103, kKey, kWord, 16), Verdict::kWordPassed);
  net.wait(Duration::milliseconds(130));
  ASSERT_EQ(net.add(one, 102, kKey, kWord), Verdict::kWordPassed);
  ASSERT_EQ(net.prior(one.turned(), 104, 5), Verdict::kResponse);
  ASSERT_EQ(net.add(one, 103, kKey, kWord), Verdict::kAtomicReplaced);
  EXPECT_EQ(net.write(late, 103, kKey, kWord, 16), Verdict::kLate);
  EXPECT_EQ(net.add(late, 104, kKey, kWord), Verdict::kLate);
  EXPECT_EQ(net.ack(one.turned(), 105), Verdict::kSharedAnswer);
  EXPECT_EQ(net.last.to, late.near_qpn);
  EXPECT_EQ(net.last.psn, Psn(103));
  EXPECT_EQ(net.write(late, 103, kKey, kWord, 16), Verdict::kRepeatedRenumbered);
  EXPECT_EQ(net.add(late, 104, kKey, kWord), Verdict::kHeldRequest) << "behind it";
  EXPECT_EQ(net.ack(late.turned(), 101), Verdict::kResponse);
  EXPECT_EQ(net.box.held(), 0u);
  EXPECT_EQ(net.last.opcode, wire::Opcode::kRcFetchAdd) << "the word is asked";
}

// Its client's time-out is longer than anything is watched for. The server executes it once, however often it comes.
TEST(MultiplexerLate, AnAtomicThatComesAgainHasItsTurnAsAWriteHas) {
  Net net(config_of(regions_of({0})));
  const Net::Line late = net.connect(1, 2);
  const Net::Line one = net.connect(3, 2);
  ASSERT_EQ(net.add(late, 100, kKey, kWord), Verdict::kWordPassed);
  net.wait(Duration::milliseconds(101));
  make_known(net, one, 100, 0);
  ASSERT_EQ(net.add(one, 101, kKey, kWord), Verdict::kAtomicReplaced);
  EXPECT_EQ(net.add(late, 100, kKey, kWord), Verdict::kLate);
  EXPECT_EQ(net.add(one, 102, kKey, kWord), Verdict::kHeldRequest) << "behind it";
  EXPECT_EQ(net.ack(one.turned(), 101), Verdict::kSharedAnswer);
  EXPECT_EQ(net.last.to, late.near_qpn) << "its client is asked for it";
  EXPECT_EQ(net.add(late, 100, kKey, kWord), Verdict::kRepeated);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), std::nullopt);
  EXPECT_EQ(net.prior(late.turned(), 100, 2), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), std::nullopt) << "it may have been executed long ago";
  EXPECT_EQ(net.box.held(), 0u);
  EXPECT_EQ(net.last.opcode, wire::Opcode::kRcFetchAdd) << "the next one asks what the word holds now";
  EXPECT_EQ(net.last.to, one.far_qpn);
}

// The server may have had its first packet from before, and would execute the others unwatched.
TEST(MultiplexerLate, OfAWriteThatWaitsForItsTurnNoPacketPasses) {
  LateUnlock net(100);
  EXPECT_EQ(net.write_again(100), Verdict::kLate);
  EXPECT_EQ(net.write_on(net.late, 101), Verdict::kLate);
  EXPECT_EQ(net.ack(net.one.turned(), 102), Verdict::kSharedAnswer);
  EXPECT_EQ(net.write_again(100), Verdict::kRepeated);
  EXPECT_EQ(net.write_on(net.late, 101), Verdict::kRepeated);
}

// ----------------------------------------------------------------------------------------- operations that cannot be replaced

// Clients that each have one operation under way at a time, on one word. Returns how many have ended after so many round trips; the last
// value is `value`.
class Loops {
 public:
  Loops(Net& net, std::uint32_t clients) : net_(net), psn_(clients, 100) {
    for (std::uint32_t i = 0; i < clients; ++i) lines_.push_back(net.connect(10 + i, 2));
  }
  std::uint64_t run(int round_trips) {
    std::uint64_t done = 0;
    for (int turn = 0; turn < round_trips; ++turn) {
      net_.now = net_.now + Duration::microseconds(10);
      std::vector<std::size_t> at_server;
      for (std::size_t i = 0; i < lines_.size(); ++i) {
        if (action_of(net_.add(lines_[i], psn_[i], kKey, kWord)) == Action::kForward) at_server.push_back(i);
      }
      for (const std::size_t i : at_server) {
        EXPECT_EQ(net_.prior(lines_[i].turned(), psn_[i], value), Verdict::kResponse);
        ++value;
        ++psn_[i];
        ++done;
      }
    }
    return done;
  }
  const Net::Line& line(std::size_t i) const { return lines_[i]; }
  std::uint32_t& psn(std::size_t i) { return psn_[i]; }
  std::uint64_t value = 0;

 private:
  Net& net_;
  std::vector<Net::Line> lines_;
  std::vector<std::uint32_t> psn_;
};

TEST(MultiplexerTogether, NobodyWaitsWhileTheBoxIsOff) {
  Net net(config_of(regions_of({0})));
  Loops loops(net, 8);
  net.box.switch_on(false);
  EXPECT_EQ(loops.run(1000), 8000u);
  // On again, when what is under way has been answered.
  ASSERT_EQ(net.add(loops.line(0), loops.psn(0), kKey, kWord), Verdict::kWordPassed);
  ASSERT_EQ(net.add(loops.line(1), loops.psn(1), kKey, kWord), Verdict::kWordPassed);
  net.box.switch_on(true);
  EXPECT_EQ(net.add(loops.line(2), loops.psn(2), kKey, kWord), Verdict::kHeldRequest);
  EXPECT_EQ(net.prior(loops.line(1).turned(), loops.psn(1), loops.value++), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), std::nullopt) << "the other one may change it";
  EXPECT_EQ(net.box.held(), 1u);
  EXPECT_EQ(net.prior(loops.line(0).turned(), loops.psn(0), loops.value++), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), std::nullopt) << "nor did it know when that one was executed";
  EXPECT_EQ(net.box.held(), 0u);
  EXPECT_EQ(net.prior(loops.line(2).turned(), loops.psn(2), loops.value++), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), loops.value);
  EXPECT_EQ(net.add(loops.line(2), ++loops.psn(2), kKey, kWord), Verdict::kAtomicReplaced);
  // Off, with that under way.
  net.box.switch_on(false);
  EXPECT_EQ(net.add(loops.line(0), ++loops.psn(0), kKey, kWord), Verdict::kHeldRequest);
  EXPECT_EQ(net.ack(loops.line(2).turned(), loops.psn(2)), Verdict::kSharedAnswer);
  EXPECT_EQ(net.box.held(), 0u);
}

// Until the box has forgotten it.
void close(Net& net, const Net::Line& line) {
  net.manage(line.near, line.far, wire::CmDreq{.remote_qpn = line.far_qpn});
  for (int ageing = 0; ageing < 100; ++ageing) net.wait(Duration::milliseconds(100));
  ASSERT_EQ(net.box.counters().connections_closed, 1u);
}

TEST(MultiplexerTogether, NobodyWaitsForACounterWhoseKeyWasNotShownToAllowWrites) {
  MultiplexerConfig config = config_of({});
  config.servers = {Net::node(2)};
  Net net(config);
  Loops loops(net, 8);
  EXPECT_EQ(loops.run(1000), 8000u);
  // It is shown, by one that adds as well.
  ASSERT_EQ(net.write(loops.line(0), loops.psn(0), kKey, kWord + 8, 8), Verdict::kWordPassed);
  ASSERT_EQ(net.ack(loops.line(0).turned(), loops.psn(0)++), Verdict::kResponse);
  ASSERT_EQ(net.add(loops.line(0), loops.psn(0), kKey, kWord), Verdict::kWordPassed);
  EXPECT_EQ(net.add(loops.line(1), loops.psn(1), kKey, kWord), Verdict::kHeldRequest);
  EXPECT_EQ(net.prior(loops.line(0).turned(), loops.psn(0)++, loops.value++), Verdict::kResponse);
  EXPECT_EQ(net.last.opcode, wire::Opcode::kRcWriteOnly) << "the other one's is replaced";
  EXPECT_EQ(net.ack(loops.line(0).turned(), loops.psn(0)), Verdict::kSharedAnswer);
  EXPECT_EQ(net.add(loops.line(0), loops.psn(0), kKey, kWord), Verdict::kAtomicReplaced);
  EXPECT_EQ(net.ack(loops.line(0).turned(), loops.psn(0) + 1), Verdict::kSharedAnswer);
  ++loops.psn(1);
  loops.value += 2;
  // When that one is gone, it is as before.
  ASSERT_NO_FATAL_FAILURE(close(net, loops.line(0)));
  ASSERT_EQ(net.add(loops.line(1), loops.psn(1), kKey, kWord), Verdict::kWordPassed);
  EXPECT_EQ(net.add(loops.line(2), loops.psn(2), kKey, kWord), Verdict::kWordPassed);
}

TEST(MultiplexerTogether, NobodyWaitsForOneThatHasShownItAndRests) {
  MultiplexerConfig config = config_of({});
  config.servers = {Net::node(2)};
  Net net(config);
  Loops loops(net, 8);
  EXPECT_EQ(loops.run(10), 80u);
  const Net::Line shows = net.connect(1, 2);
  ASSERT_EQ(net.add(shows, 100, kKey, kWord + 64), Verdict::kWordPassed);
  ASSERT_EQ(net.prior(shows.turned(), 100, 0), Verdict::kResponse);
  ASSERT_EQ(net.write(shows, 101, kKey, kWord + 64, 8), Verdict::kWordPassed);
  ASSERT_EQ(net.ack(shows.turned(), 101), Verdict::kResponse);
  EXPECT_EQ(loops.run(1000), 8000u);
  // When it goes on, theirs are replaced, too.
  ASSERT_EQ(net.add(shows, 102, kKey, kWord + 64), Verdict::kAtomicReplaced);
  ASSERT_EQ(net.ack(shows.turned(), 102), Verdict::kSharedAnswer);
  ASSERT_EQ(net.add(loops.line(0), loops.psn(0), kKey, kWord), Verdict::kWordPassed);
  EXPECT_EQ(net.prior(loops.line(0).turned(), loops.psn(0)++, loops.value++), Verdict::kResponse);
  EXPECT_EQ(net.add(loops.line(1), loops.psn(1), kKey, kWord), Verdict::kAtomicReplaced);
}

TEST(MultiplexerTogether, NobodyWaitsWhenTheOneThatHadShownIsCutOff) {
  MultiplexerConfig config = config_of({});
  config.servers = {Net::node(2)};
  Net net(config);
  Loops loops(net, 8);
  EXPECT_EQ(loops.run(10), 80u);
  const Net::Line shows = net.connect(1, 2);
  ASSERT_EQ(net.write(shows, 100, kKey, kWord + 8, 8), Verdict::kWordPassed);
  ASSERT_EQ(net.ack(shows.turned(), 100), Verdict::kResponse);
  ASSERT_EQ(net.add(shows, 101, kKey, kWord), Verdict::kWordPassed);
  ASSERT_EQ(net.prior(shows.turned(), 101, loops.value++), Verdict::kResponse);
  ASSERT_EQ(net.add(shows, 102, kKey, kWord), Verdict::kAtomicReplaced);
  net.wait(Duration::milliseconds(30));  // its server is silent
  net.wait(Duration::milliseconds(101));
  ASSERT_EQ(net.box.counters().carriers_lost, 1u);
  ASSERT_EQ(net.box.counters().operations_abandoned, 1u);
  EXPECT_EQ(loops.run(1000), 8000u);
  // And when it is gone, it is not counted out twice.
  ASSERT_NO_FATAL_FAILURE(close(net, shows));
  EXPECT_EQ(loops.run(10), 80u);
}

// A WRITE that waits for the word gets its turn, however many others there are.
TEST(MultiplexerTogether, WhoNeedsTheWordForHimselfIsNotOvertaken) {
  Net net(config_of(regions_of({0})));
  net.box.switch_on(false);
  const Net::Line one = net.connect(1, 2);
  const Net::Line two = net.connect(3, 2);
  ASSERT_EQ(net.add(one, 100, kKey, kWord), Verdict::kWordPassed);
  EXPECT_EQ(net.write(two, 100, kKey, kWord, 64), Verdict::kHeldRequest);
  EXPECT_EQ(net.add(one, 101, kKey, kWord), Verdict::kHeldRequest);
  EXPECT_EQ(net.prior(one.turned(), 100, 0), Verdict::kResponse);
  EXPECT_EQ(net.made, 2u) << "the WRITE, and behind it the atomic";
  EXPECT_EQ(net.last.opcode, wire::Opcode::kRcFetchAdd);
  EXPECT_EQ(net.ack(two.turned(), 100), Verdict::kResponse);
  EXPECT_EQ(net.prior(one.turned(), 101, 0), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), std::nullopt);
}

MultiplexerConfig with_passes(std::uint32_t passes) {
  MultiplexerConfig config = config_of(regions_of({0}));
  config.passes = passes;
  return config;
}

TEST(MultiplexerTogether, WaitsWhenThereAreTooManyToWatch) {
  Net net(with_passes(2));
  net.box.switch_on(false);
  const std::vector<Net::Line> lines = {net.connect(1, 2), net.connect(3, 2), net.connect(4, 2), net.connect(5, 2)};
  ASSERT_EQ(net.add(lines[0], 100, kKey, kWord), Verdict::kWordPassed);
  ASSERT_EQ(net.add(lines[1], 100, kKey, kWord), Verdict::kWordPassed);
  EXPECT_EQ(net.add(lines[2], 100, kKey, kWord), Verdict::kHeldRequest);
  EXPECT_EQ(net.add(lines[3], 100, kKey, kWord + 8), Verdict::kWordPassed) << "whom would it wait for";
  EXPECT_EQ(net.prior(lines[0].turned(), 100, 0), Verdict::kResponse);
  EXPECT_EQ(net.prior(lines[1].turned(), 100, 1), Verdict::kResponse);
  EXPECT_EQ(net.box.held(), 0u);
}

TEST(MultiplexerTogether, OfWhatPassedUnwatchedNothingIsLearnedBeforeItIsCertainToBeOver) {
  Net net(with_passes(1));
  net.box.switch_on(false);
  const std::vector<Net::Line> lines = {net.connect(1, 2), net.connect(3, 2), net.connect(4, 2)};
  constexpr std::uint64_t kOther = kWord + 64;
  ASSERT_EQ(net.add(lines[0], 100, kKey, kOther), Verdict::kWordPassed);
  ASSERT_EQ(net.prior(lines[0].turned(), 100, 0), Verdict::kResponse);
  ASSERT_EQ(net.box.multiplexer()->value_of(kOther), 1u);
  ASSERT_EQ(net.add(lines[0], 101, kKey, kWord), Verdict::kWordPassed);
  EXPECT_EQ(net.add(lines[1], 100, kKey, kOther), Verdict::kWordPassed) << "unwatched";
  EXPECT_EQ(net.box.multiplexer()->value_of(kOther), std::nullopt);
  EXPECT_EQ(net.prior(lines[0].turned(), 101, 0), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), 1u);
  // The answer of one that is watched does not say whether the other came before it.
  EXPECT_EQ(net.add(lines[2], 100, kKey, kOther), Verdict::kWordPassed);
  EXPECT_EQ(net.prior(lines[2].turned(), 100, 1), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kOther), std::nullopt);
  net.box.switch_on(true);
  EXPECT_EQ(net.add(lines[0], 102, kKey, kOther), Verdict::kHeldRequest);
  EXPECT_EQ(net.prior(lines[1].turned(), 100, 2), Verdict::kResponse);
  EXPECT_EQ(net.box.held(), 1u);
  net.wait(Duration::milliseconds(101));
  EXPECT_EQ(net.box.held(), 0u);
  EXPECT_EQ(net.prior(lines[0].turned(), 102, 3), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kOther), 4u);
  EXPECT_EQ(net.add(lines[0], 103, kKey, kOther), Verdict::kAtomicReplaced);
}

// Its client sends it again when the packet, or the answer, was lost.
TEST(MultiplexerTogether, WhatPassedUnwatchedPassesAgain) {
  Net net(with_passes(1));
  net.box.switch_on(false);
  const std::vector<Net::Line> lines = {net.connect(1, 2), net.connect(3, 2), net.connect(4, 2)};
  constexpr std::uint64_t kOther = kWord + 64;
  ASSERT_EQ(net.add(lines[0], 100, kKey, kWord), Verdict::kWordPassed);
  ASSERT_EQ(net.add(lines[1], 100, kKey, kOther), Verdict::kWordPassed);
  net.wait(Duration::milliseconds(90));
  EXPECT_EQ(net.add(lines[1], 100, kKey, kOther), Verdict::kRepeated) << "unwatched as before";
  net.wait(Duration::milliseconds(20));
  EXPECT_EQ(net.add(lines[1], 100, kKey, kOther), Verdict::kRepeated) << "and watched, now that there is room";
  net.box.switch_on(true);
  EXPECT_EQ(net.add(lines[2], 100, kKey, kOther), Verdict::kHeldRequest);
  EXPECT_EQ(net.add(lines[0], 100, kKey, kWord), Verdict::kStale) << "not while its word may be replaced";
  EXPECT_EQ(net.prior(lines[1].turned(), 100, 1), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kOther), std::nullopt) << "it may have been executed at any time";
  net.wait(Duration::milliseconds(101));
  EXPECT_EQ(net.prior(lines[2].turned(), 100, 2), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kOther), 3u);
}

// Two connections that could be shared have broken off a message of their own and said goodbye: what they do then is theirs alone.
TEST(Multiplexer, MakesNothingOfAConnectionThatIsClosingOrAmidAMessageShared) {
  for (const bool breaks_off : {false, true}) {
    Net net(config_of(regions_of({0})));
    const std::vector<Net::Line> lines = {net.connect(1, 2), net.connect(3, 2)};
    make_known(net, lines[0], 100, 0);
    make_known(net, lines[1], 100, 0, kWord + 64);
    ASSERT_EQ(net.add(lines[0], 101, kKey, kWord), Verdict::kAtomicReplaced);
    ASSERT_EQ(net.ack(lines[0].turned(), 101), Verdict::kSharedAnswer);
    ASSERT_EQ(net.add(lines[1], 101, kKey, kWord + 64), Verdict::kAtomicReplaced);
    ASSERT_EQ(net.ack(lines[0].turned(), 102), Verdict::kSharedAnswer);
    for (const Net::Line& line : lines) {
      if (breaks_off) {
        ASSERT_EQ(net.write(line, 102, kKey, kWord + 0x10000, 5000), Verdict::kPlain);
      }
      net.manage(line.near, line.far, wire::CmDreq{.remote_qpn = line.far_qpn});
    }
    const std::uint32_t next = breaks_off ? 103 : 102;
    EXPECT_EQ(net.add(lines[0], next, kKey, kWord), Verdict::kWordPassed);
    EXPECT_EQ(net.add(lines[1], next, kKey, kWord + 64), Verdict::kWordPassed);
    EXPECT_EQ(net.box.counters().carriers_chosen, 1u) << "before";
    EXPECT_EQ(net.box.counters().carriers_lost, 0u);
  }
}

// An atomic that comes again may be executed so much later.
TEST(MultiplexerTogether, WhatComesAgainIsWatchedAnew) {
  Net net(config_of(regions_of({0})));
  const Net::Line one = net.connect(1, 2);
  const Net::Line two = net.connect(3, 2);
  ASSERT_EQ(net.add(one, 100, kKey, kWord), Verdict::kWordPassed);
  EXPECT_EQ(net.add(two, 100, kKey, kWord), Verdict::kHeldRequest);
  net.wait(Duration::milliseconds(90));
  EXPECT_EQ(net.add(one, 100, kKey, kWord), Verdict::kRepeated);
  net.wait(Duration::milliseconds(90));
  EXPECT_EQ(net.box.held(), 1u);
  net.wait(Duration::milliseconds(11));
  EXPECT_EQ(net.box.held(), 0u);
}

TEST(MultiplexerRegions, MemoryThatIsNotNamedAnyMoreIsItsClientsOwnBusinessOnceNothingIsUnderWay) {
  Net net(config_of({}));
  EXPECT_EQ(net.box.multiplexer()->set_regions(net.now, regions_of({0})), 0u);
  net.wait(Duration::milliseconds(101));
  const Net::Line one = net.connect(1, 2);
  const Net::Line two = net.connect(3, 2);
  make_known(net, one, 100, 0);
  make_known(net, two, 100, 1);
  ASSERT_EQ(net.add(one, 101, kKey, kWord), Verdict::kAtomicReplaced);
  EXPECT_EQ(net.box.multiplexer()->set_regions(net.now, {}), 0u);
  EXPECT_EQ(net.add(two, 101, kKey, kWord), Verdict::kHeldRequest) << "the word has an operation under way";
  EXPECT_EQ(net.ack(one.turned(), 101), Verdict::kSharedAnswer);
  EXPECT_EQ(net.add(one, 102, kKey, kWord), Verdict::kPlain);
  EXPECT_EQ(net.box.multiplexer()->open(), 0u);
  // Named again, it is learned anew, when all that went by unseen has ended.
  EXPECT_EQ(net.box.multiplexer()->set_regions(net.now, regions_of({0})), 0u);
  EXPECT_EQ(net.prior(one.turned(), 102, 7), Verdict::kResponse);
  EXPECT_EQ(net.prior(two.turned(), 101, 8), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), std::nullopt);
  EXPECT_EQ(net.add(two, 102, kKey, kWord), Verdict::kHeldRequest);
  net.wait(Duration::milliseconds(101));
  EXPECT_EQ(net.prior(two.turned(), 102, 9), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), 10u);
  EXPECT_EQ(net.add(two, 103, kKey, kWord), Verdict::kAtomicReplaced);
}

TEST(MultiplexerRegions, AKeyThatIsWithdrawnCostsTwoConnectionsAndNotEveryOne) {
  Net net(config_of(regions_of({0})));
  const Net::Line one = net.connect(1, 2);
  const Net::Line two = net.connect(3, 2);
  const Net::Line three = net.connect(4, 2);
  std::uint64_t prior = 0;
  for (const Net::Line& line : {one, two, three}) make_known(net, line, 100, prior++);
  ASSERT_EQ(net.add(one, 101, kKey, kWord), Verdict::kAtomicReplaced);
  ASSERT_EQ(net.add(two, 101, kKey, kWord), Verdict::kAtomicReplaced);
  EXPECT_EQ(net.nak(one.turned(), 101, wire::NakCode::kRemoteAccessError), Verdict::kSharedAnswer);
  net.wait(Duration::milliseconds(101));
  EXPECT_EQ(net.box.counters().operations_carried_over, 1u);
  ASSERT_EQ(net.last.to, two.far_qpn);
  // It might have been the first queue pair's fault; now it cannot.
  EXPECT_EQ(net.nak(two.turned(), net.last.psn.value(), wire::NakCode::kRemoteAccessError), Verdict::kSharedAnswer);
  net.wait(Duration::seconds(1));
  EXPECT_EQ(net.box.counters().operations_carried_over, 1u);
  EXPECT_EQ(net.box.counters().carriers_lost, 2u);
  EXPECT_EQ(net.box.multiplexer()->open(), 0u);
  // The server itself tells those who come what they may still do.
  EXPECT_EQ(net.add(three, 101, kKey, kWord), Verdict::kWordPassed);
}

TEST(MultiplexerRegions, AnUnreliableWriteMakesWordsUnknownAndIsDroppedWhileTheyAreInUse) {
  Net net(config_of(regions_of({0})));
  const Net::Line one = net.connect(1, 2);
  const Net::Line wild{Net::node(3), Net::node(2), wire::Qpn(0x900), wire::Qpn(0x901)};
  make_known(net, one, 100, 0);
  ASSERT_EQ(net.add(one, 101, kKey, kWord), Verdict::kAtomicReplaced);
  EXPECT_EQ(net.unreliable_write(wild, kKey, kWord, 8), Verdict::kStrangerDropped);
  EXPECT_EQ(net.unreliable_write(wild, kKey, kWord + 64, 8), Verdict::kNotReliable) << "no word of ours";
  EXPECT_EQ(net.ack(one.turned(), 101), Verdict::kSharedAnswer);
  EXPECT_EQ(net.unreliable_write(wild, kKey, kWord, 8), Verdict::kNotReliable);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), std::nullopt);
  EXPECT_EQ(net.add(one, 102, kKey, kWord), Verdict::kHeldRequest) << "until it has been executed or never will be";
  EXPECT_EQ(net.add(one, 103, kKey, kWord + 64), Verdict::kHeldRequest);
  net.wait(Duration::milliseconds(101));
  EXPECT_EQ(net.prior(one.turned(), 102, 0), Verdict::kResponse);
  EXPECT_EQ(net.box.multiplexer()->value_of(kWord), 1u);
}

TEST(MultiplexerRegions, UnreliableWritesDoNotDropEachOtherNorKeepAWordForThemselves) {
  Net net(config_of(regions_of({0})));
  const Net::Line one = net.connect(1, 2);
  const Net::Line wild{Net::node(3), Net::node(2), wire::Qpn(0x900), wire::Qpn(0x901)};
  make_known(net, one, 100, 0);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(net.unreliable_write(wild, kKey, kWord - 64, 128), Verdict::kNotReliable) << i;
    net.wait(Duration::milliseconds(15));
  }
  EXPECT_EQ(net.add(one, 101, kKey, kWord), Verdict::kHeldRequest);
  EXPECT_EQ(net.unreliable_write(wild, kKey, kWord - 64, 128), Verdict::kStrangerDropped) << "somebody waits";
  net.wait(Duration::milliseconds(84));
  EXPECT_EQ(net.box.held(), 1u) << "until the last one has been executed or never will be";
  net.wait(Duration::milliseconds(2));
  EXPECT_EQ(net.box.held(), 0u);
}

TEST(MultiplexerRegions, HoweverOftenMemoryComesBackWithAnotherKeyThereIsRoomForIt) {
  Net net(config_of({}));
  const auto with_key = [](std::uint32_t key) {
    return std::vector<WordRegion>{{.server = Net::node(2), .rkey = wire::RKey(key), .writable = true}};
  };
  const Net::Line line = net.connect(1, 2);
  std::uint32_t psn = 100;
  for (std::uint32_t key = 1; key <= 3 * Multiplexer::kMaxRegions; ++key) {
    ASSERT_EQ(net.box.multiplexer()->set_regions(net.now, with_key(key)), 0u) << key;
    net.wait(Duration::milliseconds(101));
    ASSERT_EQ(net.add(line, psn, wire::RKey(key), kWord), Verdict::kWordPassed) << key;
    ASSERT_EQ(net.prior(line.turned(), psn++, 4), Verdict::kResponse);
    ASSERT_EQ(net.add(line, psn, wire::RKey(key), kWord), Verdict::kAtomicReplaced) << key;
    ASSERT_EQ(net.ack(line.turned(), psn++), Verdict::kSharedAnswer);
  }
  EXPECT_EQ(net.box.multiplexer()->words(), 1u);
  std::vector<WordRegion> many;
  for (std::uint32_t key = 0; key < Multiplexer::kMaxRegions + 5; ++key)
    many.push_back({.server = Net::node(2), .rkey = wire::RKey(1000 + key)});
  EXPECT_EQ(net.box.multiplexer()->set_regions(net.now, many), 5u);
}

TEST(MultiplexerRegions, WritesWithKeysThatOpenNothingTakeNoRoomFromMemoryThatIsDiscovered) {
  MultiplexerConfig config = config_of({});
  config.discover = true;
  Net net(config);
  const Net::Line wild = net.connect(1, 2);
  const Net::Line line = net.connect(3, 2);
  std::uint32_t psn = 100;
  for (std::uint32_t key = 1; key <= 2 * Multiplexer::kMaxRegions; ++key) {
    net.write(wild, psn++, wire::RKey(1000 + key), kWord, 24);
    net.add(wild, psn, wire::RKey(3000 + key), kWord);
    net.nak(wild.turned(), psn++, wire::NakCode::kRemoteAccessError);
    net.wait(Duration::milliseconds(101));
  }
  make_known(net, line, 100, 0);
}

}  // namespace
}  // namespace sluice::swordbox
