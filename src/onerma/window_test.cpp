// Turns at the solicitation window, between what a node reads and what is written to it.
#include "onerma/window.h"

#include <gtest/gtest.h>

#include <deque>

#include "onerma/message.h"
#include "onerma/types.h"

namespace sluice::onerma {
namespace {

using Side = SolicitationWindow::Side;

constexpr std::uint32_t frame(std::uint32_t bytes) {
  return static_cast<std::uint32_t>(FrameWriter::frame_size(bytes));
}

// Both sides want frames of one length each without end; what has been asked for comes in the order of asking.
struct Link {
  struct Asked {
    Side side{};
    std::uint32_t bytes = 0;
  };
  bool ask(Side side, std::uint32_t bytes) {
    if (!window.has_room(side, bytes)) return false;
    window.take(side, bytes);
    asked.push_back({side, bytes});
    return true;
  }
  void arrive() {
    const Asked one = asked.front();
    asked.pop_front();
    window.give_back(one.bytes);
    (one.side == Side::kReads ? reads : pulls) += one.bytes;
  }
  // Who is asked first each time may never let the other one come.
  void share(std::uint32_t read, std::uint32_t pull, Side first) {
    for (int i = 0; i < 20'000; ++i) {
      arrive();
      while (first == Side::kReads ? ask(Side::kReads, read) || ask(Side::kPulls, pull)
                                   : ask(Side::kPulls, pull) || ask(Side::kReads, read)) {
      }
    }
  }

  SolicitationWindow window{64 << 10};
  std::deque<Asked> asked;
  std::uint64_t reads = 0;
  std::uint64_t pulls = 0;
};

TEST(SolicitationWindow, BothSidesHaveHalfOfIt) {
  for (const Side holder : {Side::kReads, Side::kPulls}) {
    for (const Side first : {Side::kReads, Side::kPulls}) {
      for (const std::uint32_t read : {64u, 1024u, 2048u, kMaxOp}) {
        for (const std::uint32_t pull : {64u, kMaxOp}) {
          Link link;
          while (link.ask(holder, frame(holder == Side::kReads ? read : pull))) {
          }
          link.share(frame(read), frame(pull), first);
          const auto all = static_cast<double>(link.reads + link.pulls);
          EXPECT_GT(static_cast<double>(link.reads) / all, 0.45) << read << " beside " << pull;
          EXPECT_GT(static_cast<double>(link.pulls) / all, 0.45) << read << " beside " << pull;
          EXPECT_LE(link.window.most_used(), link.window.limit());
        }
      }
    }
  }
}

TEST(SolicitationWindow, WhoWantsNothingKeepsNothingFromTheOther) {
  Link link;
  while (link.ask(Side::kReads, frame(64))) {
  }
  EXPECT_FALSE(link.ask(Side::kPulls, frame(kMaxOp)));
  link.arrive();
  EXPECT_TRUE(link.ask(Side::kReads, frame(64)));  // neither has had more in the other's way
  link.arrive();
  EXPECT_FALSE(link.ask(Side::kReads, frame(64)));  // now it has
  link.window.want_nothing(Side::kPulls);
  EXPECT_TRUE(link.ask(Side::kReads, frame(64)));
}

// Its port may be full, or a write be its next request.
TEST(SolicitationWindow, WhoHasRoomAndDoesNotTakeItWaitsAsBefore) {
  SolicitationWindow window{2 * frame(kMaxOp)};
  ASSERT_TRUE(window.has_room(Side::kPulls, 2 * frame(kMaxOp)));
  window.take(Side::kPulls, 2 * frame(kMaxOp));
  EXPECT_FALSE(window.has_room(Side::kReads, frame(kMaxOp)));
  window.give_back(frame(kMaxOp));
  ASSERT_TRUE(window.has_room(Side::kPulls, 64));
  window.take(Side::kPulls, 64);  // ahead, while reads wait
  window.give_back(64);
  EXPECT_TRUE(window.has_room(Side::kReads, frame(kMaxOp)));
  EXPECT_FALSE(window.has_room(Side::kPulls, 64));
  window.take(Side::kReads, frame(kMaxOp));
  window.give_back(frame(kMaxOp));
  EXPECT_TRUE(window.has_room(Side::kPulls, 64));  // reads have what they waited for
}

}  // namespace
}  // namespace sluice::onerma
