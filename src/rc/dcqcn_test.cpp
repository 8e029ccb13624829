#include "rc/dcqcn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <queue>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace sluice::rc {
namespace {

constexpr std::uint64_t kGigabit = 1'000'000'000;

Time at_us(std::int64_t us) { return Time::at(Duration::microseconds(us)); }

TEST(ReactionPoint, DoesNotPaceAFlowThatNeverMetCongestion) {
  const DcqcnParameters parameters;
  ReactionPoint flow(parameters);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(flow.next_send(at_us(1)), at_us(1));
    flow.on_sent(at_us(1), 4200);
  }
  EXPECT_FALSE(flow.limited());
  EXPECT_EQ(flow.next_deadline(), Time::never());
}

TEST(ReactionPoint, HalvesItsRateAtTheFirstComplaint) {
  const DcqcnParameters parameters;
  ReactionPoint flow(parameters);
  flow.on_cnp(at_us(1000));
  EXPECT_TRUE(flow.limited());
  EXPECT_EQ(flow.rate(), 20 * kGigabit);
  EXPECT_EQ(flow.target_rate(), 40 * kGigabit);
  EXPECT_EQ(flow.alpha(), std::uint64_t{1} << 32);  // (1 - g) * 1 + g
}

TEST(ReactionPoint, SpacesPacketsByItsRate) {
  const DcqcnParameters parameters;
  ReactionPoint flow(parameters);
  const Time start = at_us(10);
  flow.on_cnp(start);
  EXPECT_EQ(flow.next_send(start), start);
  flow.on_sent(start, 1000);  // 8,000 bits at 20 Gb/s
  EXPECT_EQ(flow.next_send(start), start + Duration::nanoseconds(400));
  // Idle time is not saved up.
  const Time later = start + Duration::microseconds(20);
  EXPECT_EQ(flow.next_send(later), later);
  flow.on_sent(later, 1000);
  EXPECT_EQ(flow.next_send(later), later + Duration::nanoseconds(400));
}

TEST(ReactionPoint, RecoversHalfTheWayFiveTimesThenAddsThenHurries) {
  DcqcnParameters parameters;
  parameters.increase_bytes = 1'000'000;
  ReactionPoint flow(parameters);
  flow.on_cnp(Time());
  flow.on_cnp(Time());  // twice at once: R_T = 20 Gb/s, R_C = 10 Gb/s
  ASSERT_EQ(flow.target_rate(), 20 * kGigabit);
  ASSERT_EQ(flow.rate(), 10 * kGigabit);

  std::uint64_t expected = 10 * kGigabit;
  Time now;
  for (int step = 1; step <= 5; ++step) {
    now = flow.next_deadline();
    EXPECT_EQ(now, at_us(55 * step));
    flow.on_deadline(now - Duration::picoseconds(1));
    EXPECT_EQ(flow.rate(), expected) << "too early";
    flow.on_deadline(now);
    expected = (expected + 20 * kGigabit + 1) / 2;
    EXPECT_EQ(flow.rate(), expected);
    EXPECT_EQ(flow.target_rate(), 20 * kGigabit);
  }
  flow.on_deadline(at_us(55 * 6));
  EXPECT_EQ(flow.target_rate(), 20 * kGigabit + parameters.additive_increase);

  // The byte counter catches up: five more steps of one kind add R_AI each, the sixth makes both exceed F.
  for (int i = 0; i < 5; ++i) flow.on_sent(now, 1'000'000);
  EXPECT_EQ(flow.target_rate(), 20 * kGigabit + 6 * parameters.additive_increase);
  flow.on_sent(now, 1'000'000);
  EXPECT_EQ(flow.target_rate(), 20 * kGigabit + 6 * parameters.additive_increase + parameters.hyper_increase);
}

TEST(ReactionPoint, ForgetsCongestionWhileNobodyComplains) {
  const DcqcnParameters parameters;
  ReactionPoint flow(parameters);
  flow.on_cnp(Time());
  const std::uint64_t one = std::uint64_t{1} << 32;
  // 10 periods of K later alpha has become (255/256)^10, and the cut follows it.
  const Time later = at_us(550);
  flow.on_deadline(later);
  const std::uint64_t before = flow.rate();
  flow.on_cnp(later);
  double alpha = 1;
  for (int i = 0; i < 10; ++i) alpha *= 255.0 / 256;
  EXPECT_NEAR(static_cast<double>(flow.rate()), static_cast<double>(before) * (1 - alpha / 2), 1e4);
  alpha = alpha * 255 / 256 + 1.0 / 256;
  EXPECT_NEAR(static_cast<double>(flow.alpha()) / static_cast<double>(one), alpha, 1e-6);
}

TEST(ReactionPoint, CatchesUpAfterALongSilenceAndIsFreeAgain) {
  const DcqcnParameters parameters;
  ReactionPoint flow(parameters);
  for (int i = 0; i < 40; ++i) flow.on_cnp(at_us(50 * i));
  EXPECT_EQ(flow.rate(), parameters.min_rate);
  const Time later = Time::at(Duration::seconds(3600));
  EXPECT_EQ(flow.next_send(later), later);
  EXPECT_FALSE(flow.limited());
  EXPECT_EQ(flow.rate(), parameters.line_rate);
}

TEST(ReactionPoint, StaysBetweenItsBoundsWhateverHappens) {
  Rng rng(7);
  for (int run = 0; run < 50; ++run) {
    DcqcnParameters parameters;
    parameters.line_rate = 1 + rng.below(400 * kGigabit);
    parameters.min_rate = 1 + rng.below(parameters.line_rate);
    parameters.additive_increase = 1 + rng.below(kGigabit);
    parameters.hyper_increase = 1 + rng.below(kGigabit);
    parameters.gain_shift = static_cast<std::uint8_t>(1 + rng.below(12));
    parameters.increase_bytes = 1 + rng.below(100'000);
    ReactionPoint flow(parameters);
    Time now;
    for (int i = 0; i < 2000; ++i) {
      now = now + Duration::nanoseconds(static_cast<std::int64_t>(rng.below(60'000)));
      switch (rng.below(3)) {
        case 0: flow.on_cnp(now); break;
        case 1: flow.on_deadline(now); break;
        default: {
          const Time when = flow.next_send(now);
          ASSERT_GE(when, now);
          now = std::min(when, now + Duration::seconds(1));
          flow.on_sent(now, static_cast<std::uint32_t>(1 + rng.below(4352)));
        }
      }
      ASSERT_GE(flow.rate(), parameters.min_rate);
      ASSERT_LE(flow.rate(), parameters.line_rate);
      ASSERT_LE(flow.target_rate(), parameters.line_rate);
      ASSERT_LE(flow.alpha(), std::uint64_t{1} << 32);
    }
  }
}

TEST(NotificationPoint, ComplainsAtMostOnceInFiftyMicroseconds) {
  const DcqcnParameters parameters;
  NotificationPoint point;
  EXPECT_TRUE(point.on_marked(at_us(100), parameters));
  EXPECT_FALSE(point.on_marked(at_us(100), parameters));
  EXPECT_FALSE(point.on_marked(at_us(150) - Duration::picoseconds(1), parameters));
  EXPECT_TRUE(point.on_marked(at_us(150), parameters));
}

// Senders that share one 40 Gb/s link, whose queue marks as the paper's switch does: K_min 5 KB, K_max 200 KB, P_max 1 %.
class SharedLink {
 public:
  static constexpr std::uint32_t kPacket = 1066;
  explicit SharedLink(std::size_t flows)
      : senders_(flows, ReactionPoint(parameters_)), receivers_(flows), start_(flows) {}

  void start_flow(std::size_t flow, Time when) { start_[flow] = when; }

  void run_until(Time end) {
    for (;;) {
      const std::size_t next = next_sender();
      const Time when = std::max({senders_[next].next_send(now_), start_[next], wire_free_[next]});
      const Time due = std::min({when, complaints_.empty() ? Time::never() : complaints_.top().when});
      if (due > end) break;
      now_ = std::max(now_, due);
      if (due < when) {
        senders_[complaints_.top().flow].on_cnp(now_);
        complaints_.pop();
      } else {
        send(next);
      }
    }
    now_ = end;
  }

  // Bytes that each flow has sent since the last call.
  std::vector<std::uint64_t> take_sent() { return std::exchange(sent_, std::vector<std::uint64_t>(senders_.size())); }
  std::uint64_t longest_queue() const { return longest_queue_; }

 private:
  struct Complaint {
    Time when;
    std::size_t flow;
    bool operator<(const Complaint& other) const { return when != other.when ? when > other.when : flow > other.flow; }
  };

  std::size_t next_sender() {
    std::size_t best = 0;
    Time best_time = Time::never();
    for (std::size_t i = 0; i < senders_.size(); ++i) {
      const Time when = std::max({senders_[i].next_send(now_), start_[i], wire_free_[i]});
      if (when < best_time) best = i, best_time = when;
    }
    return best;
  }

  void send(std::size_t flow) {
    senders_[flow].on_sent(now_, kPacket);
    sent_[flow] += kPacket;
    constexpr Duration kOnWire =
        Duration::picoseconds(std::int64_t{kPacket} * 200);  // 8 bits at 40 Gb/s: 200 ps a byte
    wire_free_[flow] = now_ + kOnWire;                       // the sender's own link is as fast
    const Time departs = std::max(queue_empty_, now_) + kOnWire;
    queue_empty_ = departs;
    const auto queued = static_cast<std::uint64_t>((departs - now_).picoseconds() / 200);
    longest_queue_ = std::max(longest_queue_, queued);
    const Duration propagation = Duration::microseconds(2);
    if (marks(queued) && receivers_[flow].on_marked(departs + propagation, parameters_)) {
      complaints_.push({departs + propagation + propagation, flow});
    }
  }

  bool marks(std::uint64_t queued) {
    constexpr std::uint64_t kMin = 5'000;
    constexpr std::uint64_t kMax = 200'000;
    if (queued <= kMin) return false;
    if (queued > kMax) return true;
    return rng_.chance_per_million(static_cast<std::uint32_t>(10'000 * (queued - kMin) / (kMax - kMin)));
  }

  DcqcnParameters parameters_;
  std::vector<ReactionPoint> senders_;
  std::vector<NotificationPoint> receivers_;
  std::vector<Time> start_;
  std::vector<Time> wire_free_ = std::vector<Time>(senders_.size());
  std::vector<std::uint64_t> sent_ = std::vector<std::uint64_t>(senders_.size());
  std::priority_queue<Complaint> complaints_;
  Rng rng_{1};
  Time now_;
  Time queue_empty_;
  std::uint64_t longest_queue_ = 0;
};

// Jain's index: 1 when all shares are equal, 1/n when one flow has everything.
double fairness(const std::vector<std::uint64_t>& shares) {
  double sum = 0;
  double squares = 0;
  for (const std::uint64_t s : shares) {
    sum += static_cast<double>(s);
    squares += static_cast<double>(s) * static_cast<double>(s);
  }
  return sum * sum / (static_cast<double>(shares.size()) * squares);
}

TEST(Dcqcn, TwoFlowsConvergeToFairSharesOfOneLink) {
  SharedLink link(2);
  link.start_flow(1, at_us(5'000));  // the first has had the link for itself until then
  link.run_until(at_us(50'000));
  link.take_sent();
  link.run_until(at_us(150'000));
  const auto sent = link.take_sent();
  const double capacity = 5e9 * 0.1;  // bytes in 100 ms
  EXPECT_GT(fairness(sent), 0.98) << sent[0] << " " << sent[1];
  EXPECT_GT(static_cast<double>(sent[0] + sent[1]), 0.85 * capacity);
  EXPECT_LT(link.longest_queue(), 1'000'000u);
}

TEST(Dcqcn, EightFlowsShareTheLinkWithoutStarvingAny) {
  SharedLink link(8);
  for (std::size_t i = 0; i < 8; ++i) link.start_flow(i, at_us(static_cast<std::int64_t>(100 * i)));
  link.run_until(at_us(50'000));
  link.take_sent();
  link.run_until(at_us(150'000));
  const auto sent = link.take_sent();
  EXPECT_GT(fairness(sent), 0.95);
  EXPECT_GT(*std::min_element(sent.begin(), sent.end()), *std::max_element(sent.begin(), sent.end()) / 3);
}

}  // namespace
}  // namespace sluice::rc
