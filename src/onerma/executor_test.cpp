// The executor over bare command slots: what it issues when, and how its windows hear of what ended.
#include "onerma/executor.h"

#include <gtest/gtest.h>

#include <deque>

namespace sluice::onerma {
namespace {

constexpr std::uint32_t kOne = CongestionWindow::kOne;

struct Bench {
  explicit Bench(const ExecutorParameters& parameters = {}, const CongestionPolicy* other = nullptr)
      : executor(parameters, other != nullptr ? *other : policy, slots) {}

  Request& submit(PathId path) {
    Request& request = requests.emplace_back();
    request = {
        .op = OpKind::kRead, .path = path, .local = bytes, .on_complete = [](Time, Request& r, const Completion&) {
          ++*static_cast<int*>(r.context);
        }};
    request.context = &ended;
    executor.submit(now, request);
    return request;
  }
  // What has been issued enters service at once.
  int issued() {
    executor.poll(now);
    int n = 0;
    while (Slot* const slot = slots.next_to_send()) {
      slots.on_sent(now, *slot);
      under_way.push_back(slot);
      ++n;
    }
    return n;
  }
  void end(Duration later, Status status = Status::kOk) {
    now = now + later;
    Slot& slot = *under_way.front();
    under_way.pop_front();
    slots.complete(now, slot, status);
  }

  SolicitationWindow window{1 << 24};
  CommandSlots slots{{.slots = 4096}, window};
  Algorithm1 policy;
  Executor executor;
  std::deque<Request> requests;
  std::deque<Slot*> under_way;
  std::array<std::uint8_t, 64> bytes{};
  int ended = 0;
  Time now = Time::at(Duration::milliseconds(1));
};

ExecutorParameters unpaced() {
  ExecutorParameters p;
  p.pacing_slack = Duration::milliseconds(1);
  return p;
}

TEST(Executor, APathHasAtMostItsWindowOutstanding) {
  auto p = unpaced();
  p.first_remote = 3 * kOne;
  Bench b(p);
  const PathId path = b.executor.add_path();
  for (int i = 0; i < 10; ++i) b.submit(path);
  EXPECT_EQ(b.issued(), 3);
  EXPECT_EQ(b.issued(), 0);
  b.end(Duration::microseconds(1));
  EXPECT_EQ(b.issued(), 1);
  EXPECT_EQ(b.ended, 1);
}

TEST(Executor, AllPathsTogetherHaveAtMostTheLocalWindow) {
  auto p = unpaced();
  p.first_local = 5 * kOne;
  Bench b(p);
  for (int i = 0; i < 4; ++i) {
    const PathId path = b.executor.add_path();
    for (int k = 0; k < 4; ++k) b.submit(path);
  }
  EXPECT_EQ(b.issued(), 5);
  EXPECT_EQ(b.executor.outstanding(PathId(0)), 2u);  // in turn
  EXPECT_EQ(b.executor.outstanding(PathId(1)), 1u);
}

TEST(Executor, AWindowThatIsCutHoldsForWhatWaitsAlready) {
  auto p = unpaced();
  p.first_local = 5 * kOne;
  p.first_remote = 4 * kOne;
  Bench b(p);
  const PathId cut = b.executor.add_path();
  const PathId other = b.executor.add_path();
  for (int i = 0; i < 8; ++i) b.submit(cut);
  for (int i = 0; i < 2; ++i) b.submit(other);
  ASSERT_EQ(b.issued(), 5);
  ASSERT_EQ(b.executor.outstanding(cut), 3u);  // the node's window holds back the fourth
  b.end(Duration::microseconds(5), Status::kTimeout);
  EXPECT_EQ(b.issued(), 0);
  EXPECT_EQ(b.executor.outstanding(cut), 2u);
  EXPECT_EQ(b.executor.window(cut).operations(), 1u);
}

TEST(Executor, AWindowLeavesEvenlyOverARoundTrip) {
  ExecutorParameters p;
  p.first_remote = 4 * kOne;
  p.base_rtt = Duration::microseconds(8);
  Bench b(p);
  const PathId path = b.executor.add_path();
  for (int i = 0; i < 10; ++i) b.submit(path);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(b.issued(), 1);
    EXPECT_EQ(b.issued(), 0);
    if (i == 3) break;
    EXPECT_EQ(b.executor.next_deadline(), b.now + Duration::microseconds(2));
    b.now = b.now + Duration::microseconds(2);
  }
  EXPECT_EQ(b.executor.next_deadline(), Time::never());  // full: a completion will tell
}

TEST(Executor, BelowOneAnOperationLeavesLessThanOnceARoundTrip) {
  ExecutorParameters p;
  p.first_remote = kOne / 4;
  p.base_rtt = Duration::microseconds(8);
  const FixedWindows fixed;
  Bench b(p, &fixed);
  const PathId path = b.executor.add_path();
  for (int i = 0; i < 3; ++i) b.submit(path);
  EXPECT_EQ(b.issued(), 1);
  b.end(Duration::microseconds(8));
  EXPECT_EQ(b.issued(), 0);
  EXPECT_EQ(b.executor.next_deadline(), b.now + Duration::microseconds(24));
}

// A path's, which time-outs have cut, and the node's, which dispatch time-outs have.
TEST(Executor, AWindowThatGrowsIsPacedAtWhatItIsNow) {
  for (const Status cut : {Status::kTimeout, Status::kDispatchTimeout}) {
    ExecutorParameters p;
    p.base_rtt = Duration::microseconds(8);
    Bench b(p);
    const PathId path = b.executor.add_path();
    const CongestionWindow& window = cut == Status::kTimeout ? b.executor.window(path) : b.executor.local_window();
    for (int i = 0; i < 40; ++i) b.submit(path);
    ASSERT_EQ(b.issued(), 1);
    while (window.size != kOne / 100) {
      b.end(Duration::milliseconds(1), cut);
      ASSERT_EQ(b.issued(), 1);
    }
    b.end(Duration::milliseconds(1), cut);
    ASSERT_EQ(b.issued(), 1);
    b.end(Duration::microseconds(4));  // a quarter more
    EXPECT_EQ(b.issued(), 0);
    EXPECT_LE(b.executor.next_deadline(), b.now + Duration::microseconds(8) * 4) << to_string(cut);
  }
}

TEST(Executor, EachFailureIsHeardByTheWindowThatItSpeaksOf) {
  struct Case {
    Status status;
    bool local, remote;
  };
  for (const Case c : {Case{Status::kDispatchTimeout, true, false}, Case{Status::kNack, false, true},
                       Case{Status::kTimeout, false, true}, Case{Status::kBadBounds, false, false},
                       Case{Status::kBadKey, false, false}, Case{Status::kReplay, false, false}}) {
    auto p = unpaced();
    Bench b(p);
    const PathId path = b.executor.add_path();
    const PathId other = b.executor.add_path();
    b.submit(path);
    b.issued();
    b.end(Duration::microseconds(5), c.status);
    b.executor.poll(b.now);
    EXPECT_EQ(b.executor.local_window().size < p.first_local / 9, c.local) << to_string(c.status);
    EXPECT_EQ(b.executor.window(path).size < p.first_remote / 9, c.remote) << to_string(c.status);
    EXPECT_EQ(b.executor.window(other).size, p.first_remote);
  }
}

TEST(Executor, ALateAnswerShrinksItsPathAloneAndALateIssueTheNode) {
  auto p = unpaced();
  Bench b(p);
  const PathId path = b.executor.add_path();
  b.submit(path);
  b.issued();
  b.end(p.remote_target * 2);
  b.executor.poll(b.now);
  EXPECT_LT(b.executor.window(path).size, p.first_remote);
  EXPECT_GT(b.executor.local_window().size, p.first_local);
  // Issued, and let into service late.
  const PathId second = b.executor.add_path();
  b.submit(second);
  b.executor.poll(b.now);
  b.now = b.now + p.local_target * 2;
  const auto local = b.executor.local_window().size;
  b.issued();
  b.end(Duration::microseconds(1));
  b.executor.poll(b.now);
  EXPECT_LT(b.executor.local_window().size, local);
  EXPECT_GT(b.executor.window(second).size, p.first_remote);
}

// As after a standstill of our process, when answers that came in time are looked at before time-outs are.
TEST(Executor, AnAnswerThatNobodyLookedAtForLongDoesNotCountAsALongRoundTrip) {
  struct Case {
    OpKind op;
    int time_outs;
  };
  for (const Case c : {Case{OpKind::kRead, 1}, Case{OpKind::kWrite, 2}}) {
    const ExecutorParameters p;
    const FixedWindows fixed;
    Bench b(p, &fixed);
    const PathId path = b.executor.add_path();
    for (int i = 0; i < 20; ++i) {
      b.submit(path).op = c.op;
      ASSERT_EQ(b.issued(), 1);
      b.end(Duration::seconds(10));
      b.executor.poll(b.now);
    }
    const Duration most = b.slots.parameters().timeout * c.time_outs;
    EXPECT_GT(b.executor.rtt(path), most * 7 / 8);
    EXPECT_LE(b.executor.rtt(path), most);
    b.submit(path);
    b.submit(path);
    EXPECT_EQ(b.issued(), 1);
    EXPECT_LE(b.executor.next_deadline(), b.now + b.executor.window(path).interval(most));
  }
}

TEST(Executor, WhoIsKeptFromASlotForAnotherWaitsWithoutADeadlineInThePast) {
  SolicitationWindow window{1 << 24};
  CommandSlots slots({.slots = 2}, window);
  const FixedWindows policy;
  Executor greedy(unpaced(), policy, slots), meek(unpaced(), policy, slots);
  std::array<std::uint8_t, 64> bytes{};
  int ended[2] = {0, 0};
  std::deque<Request> requests;
  const Time now = Time::at(Duration::milliseconds(1));
  const auto submit = [&](Executor& executor, PathId path, int& count) {
    requests.push_back({.op = OpKind::kRead,
                        .path = path,
                        .local = bytes,
                        .on_complete = [](Time, Request& r, const Completion&) { ++*static_cast<int*>(r.context); },
                        .context = &count});
    executor.submit(now, requests.back());
  };
  const PathId of_greedy = greedy.add_path();
  for (int i = 0; i < 5; ++i) submit(greedy, of_greedy, ended[0]);
  greedy.poll(now);
  submit(meek, meek.add_path(), ended[1]);
  meek.poll(now);
  EXPECT_EQ(meek.counters().issued, 0u);
  slots.complete(now, *slots.next_to_send(), Status::kOk);
  EXPECT_LE(meek.next_deadline(), now);
  greedy.poll(now);
  EXPECT_EQ(greedy.counters().issued, 2u);
  EXPECT_GT(greedy.next_deadline(), now);
  meek.poll(now);
  EXPECT_EQ(meek.counters().issued, 1u);
}

TEST(Executor, RequestsMayBeSubmittedFromWithinACompletion) {
  auto p = unpaced();
  Bench b(p);
  const PathId path = b.executor.add_path();
  struct Again {
    Executor* executor;
    int left = 5;
  } again{&b.executor};
  Request& request = b.submit(path);
  request.context = &again;
  request.on_complete = [](Time now, Request& r, const Completion&) {
    auto& a = *static_cast<Again*>(r.context);
    if (a.left-- > 0) a.executor->submit(now, r);
  };
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(b.issued(), 1);
    b.end(Duration::microseconds(1));
  }
  EXPECT_EQ(b.issued(), 0);
}

}  // namespace
}  // namespace sluice::onerma
