#include "sim/world/packet.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "sim/world/trace.h"

namespace sluice::sim {
namespace {

Time at(std::int64_t ps) { return Time::at(Duration::picoseconds(ps)); }

TEST(PacketHeap, GivesTheEarliestFirstAndThoseOfOneTimeInTheOrderInWhichTheyCame) {
  std::vector<Packet> packets(500);
  PacketHeap heap;
  Rng rng(1);
  for (std::uint32_t i = 0; i < packets.size(); ++i) {
    packets[i].when = at(static_cast<std::int64_t>(rng.below(20)));
    packets[i].ingress = i;
    heap.push(&packets[i]);
  }
  std::vector<std::pair<Time, std::uint32_t>> left;
  while (!heap.empty()) {
    const Packet* const packet = heap.pop();
    left.emplace_back(packet->when, packet->ingress);
  }
  EXPECT_EQ(left.size(), packets.size());
  EXPECT_TRUE(std::ranges::is_sorted(left));
}

TEST(PacketPool, HasRoomForWhatIsAskedAndTakesBackWhatItGave) {
  PacketPool pool;
  for (const std::size_t room :
       {std::size_t{1}, std::size_t{256}, std::size_t{257}, std::size_t{1281}, port::kMaxFrame}) {
    Packet* const packet = pool.take(room);
    EXPECT_GE(packet->room, room);
    EXPECT_EQ(pool.in_flight(), 1u);
    pool.give_back(packet);
    EXPECT_EQ(pool.take(room), packet);
    pool.give_back(packet);
    EXPECT_EQ(pool.in_flight(), 0u);
  }
}

// Two runs share a trace only if they share all of it.
TEST(Trace, IsAnotherWhereTimePlaceLengthContentsOrOrderAreOthers) {
  const std::vector<std::uint8_t> frame(64, 1);
  std::vector<std::uint8_t> other = frame;
  other.back() = 2;
  const auto of = [](std::vector<std::tuple<Time, std::uint32_t, ByteView>> arrivals) {
    Trace trace;
    for (const auto& [when, node, bytes] : arrivals) trace.arrival(when, node, bytes);
    EXPECT_EQ(trace.packets(), arrivals.size());
    return trace.hash();
  };
  const std::vector hashes{of({}),
                           of({{at(5), 1, frame}}),
                           of({{at(6), 1, frame}}),
                           of({{at(5), 2, frame}}),
                           of({{at(5), 1, ByteView(frame).first(60)}}),
                           of({{at(5), 1, ByteView(frame).first(4)}}),
                           of({{at(5), 1, other}}),
                           of({{at(5), 1, frame}, {at(5), 2, other}}),
                           of({{at(5), 2, other}, {at(5), 1, frame}})};
  for (std::size_t i = 0; i < hashes.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(hashes[i], hashes[j]) << i << " " << j;
  EXPECT_EQ(of({{at(5), 1, frame}}), of({{at(5), 1, frame}}));
  Trace noted;
  noted.note(7);
  EXPECT_NE(noted.hash(), Trace().hash());
  EXPECT_EQ(noted.packets(), 0u);
}

}  // namespace
}  // namespace sluice::sim
