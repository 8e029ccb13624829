#include "ports/udp_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <functional>
#include <vector>

#include "base/rng.h"

namespace sluice::ports {
namespace {

using port::Frame;
using port::Port;
using port::PortState;
using testing::HasSubstr;

const HostPort kAnyPort{"127.0.0.1", 0};

bool send(Port& port, std::uint8_t fill, std::size_t length) {
  std::uint8_t* room = port::reserve_at_once(port, length);
  if (room == nullptr) return false;
  std::fill_n(room, length, fill);
  port.commit(length);
  return true;
}

bool wait_readable(int fd, int milliseconds = 10'000) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, milliseconds) == 1;
}

struct Copy {
  std::uint8_t fill = 0;
  std::size_t length = 0;
  bool operator==(const Copy&) const = default;
};

// The first look may rely on one that another port of the same socket has taken already; the second does not.
std::size_t receive(Port& port, Time now, std::span<Frame> burst) {
  const auto count = port.receive(now, burst);
  return count > 0 ? count : port.receive(now, burst);
}

// A listener on loopback and callers of it. Time is the test's own.
class UdpPortTest : public testing::Test {
 protected:
  explicit UdpPortTest(UdpOptions options = {}) : listener_(UdpListener::listen(kAnyPort, options).value()) {}

  std::unique_ptr<UdpPort> call(UdpOptions options = {}) {
    return UdpPort::connect({"127.0.0.1", listener_->port_number()}, options).value();
  }
  // Lets caller and listener come together.
  std::unique_ptr<Port> meet(UdpPort& caller) {
    std::unique_ptr<Port> accepted;
    until([&] {
      take(caller);
      if (!accepted) accepted = listener_->accept(now_);
      return accepted != nullptr && caller.state() == PortState::kUp;
    });
    return accepted;
  }
  bool until(const std::function<bool()>& done) {
    for (int i = 0; i < 20'000; ++i) {
      if (done()) return true;
      now_ = now_ + Duration::milliseconds(1);
    }
    return false;
  }
  std::vector<Copy> take(Port& port) {
    std::vector<Copy> all;
    std::array<Frame, 16> burst;
    while (const auto count = receive(port, now_, burst)) {
      for (const auto& frame : std::span(burst).first(count)) {
        const bool uniform =
            std::all_of(frame.data, frame.data + frame.length, [&](auto b) { return b == *frame.data; });
        all.push_back({frame.data[0], uniform ? frame.length : std::size_t{0}});
      }
    }
    return all;
  }

  std::unique_ptr<UdpListener> listener_;
  Time now_;
};

TEST_F(UdpPortTest, CarriesBurstsBothWays) {
  auto caller = call();
  auto callee = meet(*caller);
  ASSERT_TRUE(callee);
  for (std::uint8_t i = 0; i < 200; ++i) ASSERT_TRUE(send(*caller, i, 64u + i));
  caller->flush(now_);
  auto got = take(*callee);
  ASSERT_EQ(got.size(), 200u);
  for (std::uint8_t i = 0; i < 200; ++i) EXPECT_EQ(got[i], (Copy{i, 64u + i}));
  ASSERT_TRUE(send(*callee, 9, 4352));
  callee->flush(now_);
  got = take(*caller);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0], (Copy{9, 4352}));
  EXPECT_EQ(caller->counters().tx_frames, 200u);
  EXPECT_EQ(callee->counters().rx_frames, 200u);
  EXPECT_EQ(caller->counters().tx_bytes, callee->counters().rx_bytes);
}

TEST_F(UdpPortTest, UsesLargeDatagramsOnLoopbackAndTheAskedSizeElsewhere) {
  EXPECT_GT(call()->datagram_bytes(), 30'000u);
  EXPECT_EQ(call({.datagram_bytes = 1472})->datagram_bytes(), 1472u);
  const auto refused = UdpPort::connect({"127.0.0.1", 1}, {.datagram_bytes = 20});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("128 to 60000"));
}

TEST_F(UdpPortTest, SendsTrainsOfSmallDatagramsWholeAndInOrder) {
  auto caller = call({.datagram_bytes = 1472});
  auto callee = meet(*caller);
  ASSERT_TRUE(callee);
  for (int round = 0; round < 20; ++round) {
    std::vector<Copy> sent;
    for (std::uint8_t i = 0; i < 250; ++i) {
      // Some do not fit into a datagram, and go alone.
      sent.push_back({i, i % 50 == 49 ? 4000u : 40u + i});
      ASSERT_TRUE(send(*caller, i, sent.back().length));
    }
    caller->flush(now_);
    std::vector<Copy> got;
    until([&] {
      for (const auto& copy : take(*callee)) got.push_back(copy);
      return got.size() >= sent.size();
    });
    ASSERT_EQ(got, sent);
  }
  EXPECT_EQ(callee->counters().rx_malformed, 0u);
}

TEST_F(UdpPortTest, SendsMoreThanItsBufferHoldsWithinOneBurst) {
  auto caller = call();
  auto callee = meet(*caller);
  ASSERT_TRUE(callee);
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(send(*caller, static_cast<std::uint8_t>(i), 4000));
  caller->flush(now_);
  std::size_t received = 0;
  until([&] { return (received += take(*callee).size()) == 500; });
  EXPECT_EQ(received, 500u);
}

TEST_F(UdpPortTest, SendsNothingBeforeItIsAskedToAndThenInPieces) {
  auto caller = call({.datagram_bytes = 1472});
  auto callee = meet(*caller);
  ASSERT_TRUE(callee);
  std::size_t taken = 0;
  while (std::uint8_t* const room = caller->reserve(4000)) {
    std::fill_n(room, 4000, static_cast<std::uint8_t>(taken));
    caller->commit(4000);
    ASSERT_LT(++taken, 1000u);
  }
  EXPECT_TRUE(take(*callee).empty());
  EXPECT_TRUE(caller->flush_some(now_));
  std::size_t calls = 1;
  do {
    ASSERT_LT(++calls, 100u);
  } while (caller->flush_some(now_));
  std::size_t received = 0;
  until([&] { return (received += take(*callee).size()) == taken; });
  EXPECT_EQ(received, taken);
}

TEST_F(UdpPortTest, ForgetsWhatIsDiscarded) {
  for (const std::size_t datagram : {0u, 1472u}) {
    auto caller = call({.datagram_bytes = datagram});
    auto callee = meet(*caller);
    ASSERT_TRUE(callee);
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(send(*caller, 1, 1000));
    caller->discard();
    EXPECT_EQ(caller->counters().tx_discarded, 50u);
    ASSERT_TRUE(send(*caller, 2, 100));
    caller->flush(now_);
    std::vector<Copy> got;
    until([&] {
      for (const auto& copy : take(*callee)) got.push_back(copy);
      return !got.empty();
    });
    EXPECT_EQ(got, (std::vector<Copy>{{2, 100}}));
    caller->discard();
    EXPECT_EQ(caller->counters().tx_discarded, 50u);
  }
}

TEST_F(UdpPortTest, WantsNoOtherTryForWhatIsDiscarded) {
  auto caller = call({.datagram_bytes = 128});
  ASSERT_TRUE(meet(*caller));
  ASSERT_EQ(shutdown(caller->wait_descriptor(), SHUT_WR),
            0);  // every call of the kernel fails; after some it is left alone for a while
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(send(*caller, 1, 100));
  caller->flush(now_);
  const Time retry = caller->next_deadline();
  EXPECT_LT(retry, now_ + Duration::milliseconds(1));
  caller->discard();
  EXPECT_GT(caller->counters().tx_discarded, 0u);
  EXPECT_GT(caller->next_deadline(), retry);
}

TEST_F(UdpPortTest, KeepsManyPeersApartOnOneSocket) {
  std::vector<std::unique_ptr<UdpPort>> callers;
  std::vector<std::unique_ptr<Port>> callees;
  for (std::uint8_t i = 0; i < 20; ++i) {
    callers.push_back(call());
    callees.push_back(meet(*callers.back()));
    ASSERT_TRUE(callees.back());
    EXPECT_EQ(callees.back()->wait_descriptor(), listener_->wait_descriptor());
  }
  for (std::uint8_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(send(*callers[i], i, 100));
    callers[i]->flush(now_);
  }
  for (std::uint8_t i = 0; i < 20; ++i) {
    const auto got = take(*callees[i]);
    ASSERT_EQ(got.size(), 1u) << int{i};
    EXPECT_EQ(got[0].fill, i);
    ASSERT_TRUE(send(*callees[i], i, 50));
    callees[i]->flush(now_);
    EXPECT_EQ(take(*callers[i]), (std::vector<Copy>{{i, 50}}));
  }
}

TEST_F(UdpPortTest, HandsOutFramesThatOutliveOtherPortsReceives) {
  auto first = call();
  auto second = call();
  auto at_first = meet(*first);
  auto at_second = meet(*second);
  ASSERT_TRUE(at_first && at_second);
  ASSERT_TRUE(send(*first, 1, 1000));
  first->flush(now_);
  std::array<Frame, 4> burst;
  ASSERT_EQ(receive(*at_first, now_, burst), 1u);
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(send(*second, 2, 1000));
    second->flush(now_);
    take(*at_second);
  }
  EXPECT_EQ(burst[0].data[0], 1);
  EXPECT_EQ(burst[0].data[999], 1);
}

TEST_F(UdpPortTest, SleepsOnItsSocket) {
  auto caller = call();
  auto callee = meet(*caller);
  ASSERT_TRUE(callee);
  take(*callee);
  ASSERT_TRUE(callee->arm());
  EXPECT_FALSE(wait_readable(callee->wait_descriptor(), 0));
  ASSERT_TRUE(send(*caller, 1, 60));
  caller->flush(now_);
  ASSERT_TRUE(wait_readable(callee->wait_descriptor()));
  callee->disarm();
  EXPECT_EQ(take(*callee).size(), 1u);
  EXPECT_FALSE(wait_readable(callee->wait_descriptor(), 0));
}

TEST_F(UdpPortTest, DropsFramesWhileNobodyAnswers) {
  auto caller = call();
  ASSERT_TRUE(send(*caller, 1, 60));
  caller->flush(now_);
  EXPECT_EQ(caller->counters().tx_dropped, 1u);
  EXPECT_EQ(caller->state(), PortState::kDown);
}

TEST_F(UdpPortTest, TurnsDownWhenTheListenersSideSaysGoodbyeAndMeetsItAgain) {
  auto caller = call();
  auto callee = meet(*caller);
  ASSERT_TRUE(callee);
  callee.reset();
  ASSERT_TRUE(until([&] {
    take(*caller);
    return caller->state() == PortState::kDown;
  }));
  EXPECT_EQ(caller->counters().resets, 1u);
  EXPECT_TRUE(meet(*caller));
}

TEST_F(UdpPortTest, IsToldOfACallerThatIsGone) {
  auto caller = call();
  auto callee = meet(*caller);
  ASSERT_TRUE(callee);
  caller.reset();
  ASSERT_TRUE(until([&] {
    take(*callee);
    return callee->state() == PortState::kDown;
  }));
  EXPECT_EQ(callee->counters().resets, 1u);
  EXPECT_TRUE(meet(*(caller = call())));
}

TEST_F(UdpPortTest, LearnsFromTheKernelThatAKilledCallersPortIsClosed) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto caller = call();
    Time now;
    std::array<Frame, 4> burst;
    for (;; now = now + Duration::milliseconds(1)) {
      caller->receive(now, burst);
      wait_readable(caller->wait_descriptor(), 1);
    }
  }
  std::unique_ptr<Port> callee;
  for (int i = 0; i < 10'000 && !callee; ++i) {
    wait_readable(listener_->wait_descriptor(), 1);
    callee = listener_->accept(now_);
  }
  ASSERT_TRUE(callee);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  // No goodbye came; the first datagram to the closed port brings the refusal.
  for (int i = 0; i < 1000 && callee->state() == PortState::kUp; ++i) {
    send(*callee, 1, 60);
    callee->flush(now_);
    take(*callee);
  }
  EXPECT_EQ(callee->state(), PortState::kDown);
  EXPECT_EQ(callee->counters().resets, 1u);
}

TEST_F(UdpPortTest, ExpiresASilentPeer) {
  auto caller = call();
  auto callee = meet(*caller);
  ASSERT_TRUE(callee);
  now_ = now_ + UdpSession::kSilence;
  take(*callee);
  EXPECT_EQ(callee->state(), PortState::kDown);
}

TEST_F(UdpPortTest, WhoWasStoppedHearsWhatWasSaidMeanwhile) {
  auto caller = call();
  auto callee = meet(*caller);
  ASSERT_TRUE(callee);
  constexpr std::size_t kFrames = 40;
  for (std::size_t i = 0; i < kFrames; ++i) {
    now_ = now_ + UdpSession::kSilence / 20;
    ASSERT_TRUE(send(*caller, static_cast<std::uint8_t>(i), 64));
    caller->flush(now_);
  }
  std::size_t taken = 0;
  until([&] {
    taken += take(*callee).size();
    return taken == kFrames || callee->state() == PortState::kDown;
  });
  EXPECT_EQ(taken, kFrames);
  EXPECT_EQ(callee->state(), PortState::kUp);
  EXPECT_EQ(callee->counters().resets, 0u);
}

TEST_F(UdpPortTest, NorIsAnyOfManyLostWhoSpokeMeanwhile) {
  for (const int frames : {1, 4, 40}) {
    auto a = call();
    auto b = call();
    auto from_a = meet(*a);
    auto from_b = meet(*b);
    ASSERT_TRUE(from_a && from_b);
    // Idle for a while, then stopped.
    for (int i = 0; i < 50; ++i) {
      now_ = now_ + Duration::milliseconds(100);
      for (Port* const port : {static_cast<Port*>(a.get()), static_cast<Port*>(b.get()), from_a.get(), from_b.get()})
        take(*port);
    }
    for (int i = 0; i < frames; ++i) ASSERT_TRUE(send(*a, 1, 64));
    a->flush(now_);
    for (int i = 0; i < 40; ++i) {
      now_ = now_ + UdpSession::kSilence / 20;
      take(*a);
      take(*b);
    }
    for (int turn = 0; turn < 20; ++turn) {
      now_ = now_ + Duration::milliseconds(1);
      std::array<Frame, 16> burst;
      from_a->receive(now_, burst);
      from_b->receive(now_, burst);
    }
    EXPECT_EQ(from_a->state(), PortState::kUp) << frames;
    EXPECT_EQ(from_b->state(), PortState::kUp) << frames;
  }
}

TEST_F(UdpPortTest, StaysUpWhileIdle) {
  auto caller = call();
  auto callee = meet(*caller);
  ASSERT_TRUE(callee);
  for (int i = 0; i < 600; ++i) {
    now_ = now_ + Duration::milliseconds(100);
    EXPECT_GT(caller->next_deadline() + Duration::milliseconds(100), now_);
    take(*caller);
    take(*callee);
    ASSERT_EQ(caller->state(), PortState::kUp);
    ASSERT_EQ(callee->state(), PortState::kUp);
  }
}

TEST_F(UdpPortTest, CallsUntilAListenerAppearsAtARefusingPort) {
  const auto number = listener_->port_number();
  auto caller = call();
  listener_.reset();
  EXPECT_FALSE(until([&] {
    take(*caller);
    return caller->state() == PortState::kUp;
  }));
  listener_ = UdpListener::listen({"127.0.0.1", number}).value();
  EXPECT_TRUE(meet(*caller));
}

TEST_F(UdpPortTest, CountsForeignAndMalformedDatagrams) {
  auto caller = call();
  auto callee = meet(*caller);
  ASSERT_TRUE(callee);
  // Written past the port, on its own socket.
  const int raw = caller->wait_descriptor();
  ASSERT_GT(::send(raw, "GET / HTTP/1.1", 14, 0), 0);
  std::array<std::uint8_t, 20> forged{};
  ContainerHeader{ContainerKind::kData, SessionId(1), SessionId(2)}.write(forged.data());
  ASSERT_GT(::send(raw, forged.data(), forged.size(), 0), 0);
  ASSERT_GE(::send(raw, "", 0, 0), 0);
  ASSERT_TRUE(send(*caller, 1, 60));
  caller->flush(now_);
  EXPECT_TRUE(until([&] { return take(*callee).size() == 1; }));
  EXPECT_EQ(callee->counters().rx_malformed, 3u);
}

TEST_F(UdpPortTest, SurvivesAnEmptyDatagramWhileItsPortHasABacklog) {
  auto caller = call();
  auto callee = meet(*caller);
  ASSERT_TRUE(callee);
  ASSERT_TRUE(until([&] {
    send(*caller, 1, 60);
    caller->flush(now_);
    listener_->accept(now_);  // which receives for all, and the port takes nothing
    return callee->counters().rx_lost > 0;
  }));
  ASSERT_EQ(::send(caller->wait_descriptor(), "", 0, 0), 0);
  EXPECT_TRUE(until([&] {
    listener_->accept(now_);
    return callee->counters().rx_malformed > 0;
  }));
}

// One datagram of many short frames.
std::vector<std::uint8_t> crowded(const ContainerHeader& header) {
  std::vector<std::uint8_t> datagram(kContainerHeader);
  header.write(datagram.data());
  for (int i = 0; i < 900; ++i) {
    datagram.insert(datagram.end(), {0, 60});
    datagram.resize(datagram.size() + 60, 7);
  }
  return datagram;
}

// Lengths from none to the longest, sound, cut short and damaged, of those who have a port and of strangers, and more than is fetched.
TEST_F(UdpPortTest, SurvivesDatagramsOfEveryLengthWithAndWithoutABacklog) {
  Rng rng(11);
  std::vector<std::unique_ptr<UdpPort>> callers;
  std::vector<std::unique_ptr<Port>> callees;
  for (int i = 0; i < 4; ++i) {
    callers.push_back(call());
    callees.push_back(meet(*callers.back()));
    ASSERT_TRUE(callees.back());
  }
  callees.pop_back();  // that one is a stranger, who greets at times
  std::array<Frame, 64> burst;
  std::uint64_t touched = 0;
  const auto ids = [&] { return SessionId(static_cast<std::uint32_t>(rng.below(3))); };
  for (int turn = 0; turn < 3'000; ++turn) {
    now_ = now_ + Duration::microseconds(50);
    for (std::uint64_t i = rng.below(8); i > 0; --i) {
      auto datagram = crowded({static_cast<ContainerKind>(rng.below(6)), ids(), ids()});
      if (rng.below(3) == 0) datagram.resize(rng.below(rng.below(2) == 0 ? datagram.size() : 40));
      if (rng.below(4) == 0) datagram.clear();
      if (!datagram.empty() && rng.below(3) == 0) datagram[rng.below(datagram.size())] ^= 1;
      ::send(callers[rng.below(callers.size())]->wait_descriptor(), datagram.data(), datagram.size(), MSG_DONTWAIT);
    }
    for (std::uint8_t i = 0; i < 10; ++i) send(*callers[i % callers.size()], i, 1 + rng.below(port::kMaxFrame));
    for (auto& caller : callers) {
      caller->flush(now_);
      caller->receive(now_, burst);
    }
    if (auto again = listener_->accept(now_)) callees.push_back(std::move(again));
    for (auto& callee : callees) {
      const auto count = callee->receive(now_, std::span(burst).first(rng.below(3)));
      for (const Frame& frame : std::span(burst).first(count)) touched += frame.data[frame.length - 1];
    }
    std::erase_if(callees, [](const auto& callee) { return callee->state() == PortState::kDown; });
  }
  std::uint64_t lost = 0, malformed = 0;
  for (const auto& callee : callees) {
    lost += callee->counters().rx_lost;
    malformed += callee->counters().rx_malformed;
  }
  EXPECT_GT(touched, 0u);
  EXPECT_GT(lost, 0u);
  EXPECT_GT(malformed, 0u);
  EXPECT_GT(listener_->refused(), 0u);
}

class UdpPortWithThreePeers : public UdpPortTest {
 protected:
  UdpPortWithThreePeers() : UdpPortTest({.most_peers = 3}) {}
};

TEST_F(UdpPortWithThreePeers, TurnsTheFourthAway) {
  std::vector<std::unique_ptr<UdpPort>> callers;
  std::vector<std::unique_ptr<Port>> callees;
  for (int i = 0; i < 3; ++i) {
    callers.push_back(call());
    callees.push_back(meet(*callers.back()));
    ASSERT_TRUE(callees.back());
  }
  auto fourth = call();
  EXPECT_FALSE(meet(*fourth));
  EXPECT_GT(listener_->refused(), 0u);
  callees.pop_back();
  EXPECT_TRUE(meet(*fourth));
}

TEST_F(UdpPortTest, AdmitsWhomItIsToldToAndExpelsWhoIsNotAnyMore) {
  bool admitted = false;
  std::string asked;
  listener_->admit_only([&](Time, const std::string& host) {
    asked = host;
    return admitted;
  });
  auto caller = call();
  EXPECT_FALSE(meet(*caller));
  EXPECT_EQ(asked, "127.0.0.1");
  EXPECT_GT(listener_->refused(), 0u);
  admitted = true;
  auto callee = meet(*caller);
  ASSERT_TRUE(callee);
  ASSERT_TRUE(send(*caller, 7, 60));
  caller->flush(now_);
  EXPECT_TRUE(until([&] { return take(*callee).size() == 1; }));
  admitted = false;
  EXPECT_TRUE(until([&] {
    take(*caller);
    take(*callee);
    return callee->state() == PortState::kDown;
  }));
  callee.reset();
  EXPECT_FALSE(meet(*caller)) << "and stays out";
  admitted = true;
  EXPECT_TRUE(meet(*caller));
}

TEST(UdpPort, SaysWhatIsWrongWithAnAddress) {
  const auto unknown = UdpPort::connect({"no.such.host.invalid", 7471});
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("no.such.host.invalid"));
  const auto foreign = UdpListener::listen({"192.0.2.1", 7471});
  ASSERT_FALSE(foreign);
  EXPECT_THAT(foreign.error().message, HasSubstr("does not have that address"));
  auto first = UdpListener::listen(kAnyPort).value();
  const auto second = UdpListener::listen({"127.0.0.1", first->port_number()});
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("take another"));
}

TEST(UdpPort, WorksOverIpv6) {
  auto listener = UdpListener::listen({"::1", 0});
  if (!listener) GTEST_SKIP() << "no IPv6 loopback on this machine";
  auto caller = UdpPort::connect({"::1", (*listener)->port_number()}).value();
  std::unique_ptr<Port> callee;
  std::array<Frame, 4> burst;
  Time now;
  for (int i = 0; i < 1000 && !(callee && caller->state() == PortState::kUp);
       ++i, now = now + Duration::milliseconds(1)) {
    caller->receive(now, burst);
    if (!callee) callee = (*listener)->accept(now);
  }
  ASSERT_TRUE(callee);
  EXPECT_THAT(callee->name(), HasSubstr("udp:[::1]:"));
  ASSERT_TRUE(send(*caller, 3, 700));
  caller->flush(now);
  EXPECT_EQ(receive(*callee, now, burst), 1u);
}

}  // namespace
}  // namespace sluice::ports
