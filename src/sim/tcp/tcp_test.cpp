#include "sim/tcp/tcp.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "sim/tcp/tcp_frame.h"

namespace sluice::sim {
namespace {

Time at_ms(std::int64_t ms) { return Time::at(Duration::milliseconds(ms)); }

constexpr TcpParameters kParameters{.mss = 1000, .receive_window = 100'000};

std::vector<std::uint64_t> all(TcpSender& sender, Time now) {
  std::vector<std::uint64_t> sent;
  while (const auto sequence = sender.poll_transmit(now)) sent.push_back(*sequence / 1000);
  return sent;
}
TcpAck ack(std::uint64_t next, std::vector<TcpBlock> blocks = {}) {
  TcpAck made{.next = next * 1000, .window = 100'000};
  for (const TcpBlock& block : blocks) made.blocks.at(made.block_count++) = {block.from * 1000, block.to * 1000};
  return made;
}
using Sent = std::vector<std::uint64_t>;

TEST(TcpSender, BeginsWithTenSegmentsAndDoublesThemInARoundTrip) {
  TcpSender sender(kParameters);
  EXPECT_EQ(all(sender, at_ms(0)), (Sent{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  std::size_t sent = 0;
  for (std::uint64_t i = 1; i <= 10; ++i) {
    sender.on_ack(at_ms(10), ack(i));
    sent += all(sender, at_ms(10)).size();
  }
  EXPECT_EQ(sent, 20u);
  EXPECT_EQ(sender.round_trip(), Duration::milliseconds(10));
}

TEST(TcpSender, StopsWhereTheReceiversWindowEnds) {
  TcpParameters parameters = kParameters;
  parameters.receive_window = 4'500;
  TcpSender sender(parameters);
  EXPECT_EQ(all(sender, at_ms(0)).size(), 4u);
  TcpAck first = ack(2);
  first.window = 4'500;
  sender.on_ack(at_ms(1), first);
  EXPECT_EQ(all(sender, at_ms(1)), (Sent{4, 5}));
}

TEST(TcpSender, RepairsWhatThreeLaterSegmentsHaveOvertakenAndReducesItsWindowOnce) {
  TcpSender sender(kParameters);
  all(sender, at_ms(0));
  sender.on_ack(at_ms(10), ack(0, {{2, 3}}));
  sender.on_ack(at_ms(10), ack(0, {{2, 4}}));
  EXPECT_EQ(sender.counters().losses, 0u);
  EXPECT_EQ(all(sender, at_ms(10)), (Sent{10, 11})) << "two are known to have left the network";
  sender.on_ack(at_ms(10), ack(0, {{2, 5}}));
  EXPECT_EQ(sender.window(), 7'000u);
  EXPECT_EQ(all(sender, at_ms(10)), (Sent{0})) << "one at once, the others as the window has room";
  sender.on_ack(at_ms(10), ack(0, {{2, 8}}));
  EXPECT_EQ(all(sender, at_ms(10)), (Sent{1, 12}));
  sender.on_ack(at_ms(20), ack(8));
  EXPECT_EQ(sender.window(), 7'000u);
  EXPECT_EQ(sender.counters().losses, 1u);
  EXPECT_EQ(sender.counters().repairs, 2u);
  EXPECT_EQ(sender.counters().timeouts, 0u);
}

TEST(TcpSender, FindsALostRepairByWhatWasSentAfterIt) {
  TcpSender sender(kParameters);
  all(sender, at_ms(0));
  sender.on_ack(at_ms(10), ack(0, {{1, 8}}));
  EXPECT_EQ(all(sender, at_ms(10)), (Sent{0, 10, 11, 12, 13}));
  sender.on_ack(at_ms(20), ack(0, {{1, 11}}));  // 10 was sent after it, and has come
  EXPECT_EQ(all(sender, at_ms(20)).front(), 0u);
  EXPECT_EQ(sender.counters().losses, 1u);
}

TEST(TcpSender, SendsTheFirstAgainWhenNothingComesAndWaitsTwiceAsLongTheNextTime) {
  TcpSender sender(kParameters);
  all(sender, at_ms(0));
  sender.on_ack(at_ms(10), ack(1));
  all(sender, at_ms(10));
  EXPECT_EQ(sender.next_deadline(), at_ms(210));
  sender.on_deadline(at_ms(209));
  EXPECT_EQ(sender.counters().timeouts, 0u);
  sender.on_deadline(at_ms(210));
  EXPECT_EQ(all(sender, at_ms(210)), (Sent{1}));
  EXPECT_EQ(sender.window(), 1'000u);
  EXPECT_EQ(sender.next_deadline(), at_ms(610));
  sender.on_ack(at_ms(220), ack(2));
  EXPECT_EQ(all(sender, at_ms(220)), (Sent{2, 3})) << "slow start";
  EXPECT_EQ(sender.counters().losses, 0u);
}

TEST(TcpSender, IgnoresACKsOfThePastAndOfWhatWasNeverSent) {
  TcpSender sender(kParameters);
  all(sender, at_ms(0));
  sender.on_ack(at_ms(10), ack(4));
  const std::size_t sent = all(sender, at_ms(10)).size();
  EXPECT_EQ(sent, 8u);
  sender.on_ack(at_ms(10), ack(2));
  sender.on_ack(at_ms(10), ack(1000));
  sender.on_ack(at_ms(10), ack(4, {{1000, 2000}}));
  EXPECT_TRUE(all(sender, at_ms(10)).empty());
  EXPECT_EQ(sender.acknowledged(), 4'000u);
}

TEST(TcpReceiver, AnswersEachSecondSegmentAndALoneOneAfterAWhile) {
  TcpReceiver receiver(kParameters);
  receiver.on_segment(at_ms(0), 0);
  EXPECT_FALSE(receiver.poll_transmit(at_ms(0)));
  receiver.on_segment(at_ms(1), 1000);
  EXPECT_EQ(receiver.poll_transmit(at_ms(1))->next, 2000u);
  EXPECT_EQ(receiver.next_deadline(), Time::never());
  receiver.on_segment(at_ms(2), 2000);
  EXPECT_EQ(receiver.next_deadline(), at_ms(42));
  receiver.on_deadline(at_ms(41));
  EXPECT_FALSE(receiver.poll_transmit(at_ms(41)));
  receiver.on_deadline(at_ms(42));
  EXPECT_EQ(receiver.poll_transmit(at_ms(42))->next, 3000u);
}

TEST(TcpReceiver, TellsAtOnceWhatIsOutOfOrderTheLatestFirst) {
  TcpReceiver receiver(kParameters);
  for (const std::uint64_t segment : {2u, 4u, 6u, 8u}) {
    receiver.on_segment(at_ms(0), segment * 1000);
    const auto told = receiver.poll_transmit(at_ms(0));
    ASSERT_TRUE(told);
    EXPECT_EQ(told->next, 0u);
    EXPECT_EQ(told->blocks[0], (TcpBlock{segment * 1000, segment * 1000 + 1000}));
  }
  receiver.on_segment(at_ms(0), 3000);
  const auto joined = receiver.poll_transmit(at_ms(0));
  EXPECT_EQ(joined->block_count, 3u);
  EXPECT_EQ(joined->blocks[0], (TcpBlock{2000, 5000}));
  EXPECT_EQ(joined->blocks[1], (TcpBlock{8000, 9000}));
  receiver.on_segment(at_ms(0), 0);
  receiver.on_segment(at_ms(0), 1000);
  EXPECT_EQ(receiver.poll_transmit(at_ms(0))->next, 5000u);
  receiver.on_segment(at_ms(0), 1000);  // a second time
  EXPECT_EQ(receiver.poll_transmit(at_ms(0))->next, 5000u);
}

TEST(TcpFrame, CarriesNumbersOverAWrap) {
  const TcpRoute route{
      {{{2, 0, 0, 0, 0, 1}}, wire::Ipv4Address{1}}, {{{2, 0, 0, 0, 0, 2}}, wire::Ipv4Address{2}}, 7, 9};
  std::array<std::uint8_t, 2000> frame{};
  TcpFrame read;
  const std::uint64_t sequence = (std::uint64_t{3} << 32) + 5;
  const std::uint32_t length = write_segment(frame.data(), route, sequence, 1448);
  EXPECT_EQ(length, 1514u) << "an MTU of 1,500";
  ASSERT_TRUE(read_tcp({frame.data(), length}, read));
  EXPECT_EQ(read.payload, 1448u);
  EXPECT_EQ(read.from_port, 7);
  EXPECT_EQ(read.to_port, 9);
  EXPECT_EQ(near(sequence - 10, read.sequence), sequence);

  TcpAck sent{.next = sequence, .window = 3u << 20, .block_count = 2};
  sent.blocks = {{{sequence + 10, sequence + 20}, {sequence + 30, sequence + 40}}};
  const std::uint32_t ack_length = write_ack(frame.data(), route, sent);
  EXPECT_EQ(ack_length, 14u + 52 + 20);
  ASSERT_TRUE(read_tcp({frame.data(), ack_length}, read));
  EXPECT_EQ(read.payload, 0u);
  EXPECT_EQ(read.ack.window, 3u << 20);
  ASSERT_EQ(read.ack.block_count, 2u);
  EXPECT_EQ(near(sequence, read.ack.blocks[1].to), sequence + 40);
  frame[20] ^= 1;
  EXPECT_FALSE(read_tcp({frame.data(), ack_length}, read)) << "IP's checksum";
}

}  // namespace
}  // namespace sluice::sim
