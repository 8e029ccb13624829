#include "ports/shm_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "ports/unix_socket.h"

namespace sluice::ports {
namespace {

using port::Frame;
using port::Port;
using port::PortState;
using testing::HasSubstr;

// A directory of its own, and time that passes a millisecond a step.
class ShmPortTest : public testing::Test {
 protected:
  ShmPortTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-shm-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    path_ = directory_ + "/cable.sock";
  }
  ~ShmPortTest() override { std::filesystem::remove_all(directory_); }

  Time tick() { return now_ = now_ + Duration::milliseconds(1); }
  // Lets time pass for `ports` until `done` or ten seconds of their time are over.
  bool until(std::initializer_list<Port*> ports, const std::function<bool()>& done) {
    std::array<Frame, 1> none;
    for (int i = 0; i < 10'000; ++i) {
      for (Port* port : ports) port->receive(now_, std::span(none).first(0));
      if (done()) return true;
      tick();
    }
    return false;
  }

  std::string directory_;
  std::string path_;
  Time now_;
};

bool send(Port& port, std::uint8_t fill, std::size_t length) {
  std::uint8_t* room = port.reserve(length);
  if (room == nullptr) return false;
  std::fill_n(room, length, fill);
  port.commit(length);
  return true;
}

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

bool wait_readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, 10'000) == 1;
}

TEST_F(ShmPortTest, JoinsTwoEndsDirectly) {
  auto a = ShmPort::listen_one(path_).value();
  auto b = ShmPort::connect(path_).value();
  EXPECT_EQ(b->state(), PortState::kDown);
  ASSERT_TRUE(until({a.get(), b.get()}, [&] { return b->state() == PortState::kUp; }));
  EXPECT_EQ(a->state(), PortState::kUp);
  EXPECT_EQ(a->name(), "shm:" + path_);

  ASSERT_TRUE(send(*a, 5, 4096));
  ASSERT_TRUE(send(*b, 6, 64));
  a->flush(now_);
  b->flush(now_);
  std::array<Frame, 4> burst;
  ASSERT_EQ(b->receive(now_, burst), 1u);
  EXPECT_EQ(burst[0].length, 4096u);
  EXPECT_EQ(burst[0].data[4095], 5);
  ASSERT_EQ(a->receive(now_, burst), 1u);
  EXPECT_EQ(burst[0].data[63], 6);
  EXPECT_EQ(a->counters().tx_bytes, 4096u);
  EXPECT_EQ(a->counters().rx_bytes, 64u);
}

TEST_F(ShmPortTest, ForgetsWhatIsDiscarded) {
  auto a = ShmPort::listen_one(path_, {.ring_bytes = kMinRing}).value();
  auto b = ShmPort::connect(path_).value();
  ASSERT_TRUE(until({a.get(), b.get()}, [&] { return b->state() == PortState::kUp; }));
  ASSERT_TRUE(send(*a, 1, 60));
  a->flush(now_);
  std::size_t most = 0;
  while (send(*a, 2, 4096)) ++most;
  a->discard();
  EXPECT_EQ(a->counters().tx_discarded, most);
  std::size_t again = 0;
  while (send(*a, 3, 4096)) ++again;
  EXPECT_EQ(again, most) << "there is room as before";
  a->flush(now_);
  a->discard();
  EXPECT_EQ(a->counters().tx_discarded, most);
  std::array<Frame, 64> burst;
  const std::size_t count = b->receive(now_, burst);
  ASSERT_EQ(count, 1 + most);
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(burst[i].data[0], i == 0 ? 1 : 3);
}

TEST_F(ShmPortTest, GivesAListenerOnePortForEachThatConnects) {
  auto listener = ShmListener::listen(path_).value();
  EXPECT_EQ(listener->accept(now_), nullptr);
  std::vector<std::unique_ptr<ShmPort>> clients;
  std::vector<std::unique_ptr<Port>> ports;
  for (std::uint8_t i = 0; i < 5; ++i) {
    clients.push_back(ShmPort::connect(path_).value());
    ASSERT_TRUE(readable(listener->wait_descriptor()));
    ports.push_back(listener->accept(now_));
    ASSERT_NE(ports.back(), nullptr);
    ASSERT_TRUE(until({clients.back().get()}, [&] { return clients.back()->state() == PortState::kUp; }));
    ASSERT_TRUE(send(*clients.back(), i, 60));
    clients.back()->flush(now_);
  }
  std::array<Frame, 4> burst;
  for (std::uint8_t i = 0; i < 5; ++i) {
    ASSERT_EQ(ports[i]->receive(now_, burst), 1u);
    EXPECT_EQ(burst[0].data[0], i);
  }
}

TEST_F(ShmPortTest, SaysWhatIsWrongWhenNobodyListens) {
  const auto absent = ShmPort::connect(path_);
  ASSERT_FALSE(absent);
  EXPECT_THAT(absent.error().message, HasSubstr("start the listening side"));
  const auto long_path = ShmPort::connect(std::string(200, 'x'));
  ASSERT_FALSE(long_path);
  EXPECT_THAT(long_path.error().message, HasSubstr("too long"));
  const auto odd_ring = ShmListener::listen(path_, {.ring_bytes = 100'000});
  ASSERT_FALSE(odd_ring);
  EXPECT_THAT(odd_ring.error().message, HasSubstr("power of two"));
}

TEST_F(ShmPortTest, RefusesAPathWhereAnotherListens) {
  auto first = ShmListener::listen(path_).value();
  const auto second = ShmListener::listen(path_);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("another process listens"));
}

TEST_F(ShmPortTest, LeavesAFileAloneThatIsNoSocket) {
  std::ofstream(path_) << "notes";
  EXPECT_THAT(ShmListener::listen(path_).error().message, HasSubstr("is no socket to replace"));
  const std::string link = path_ + ".link";
  std::filesystem::create_symlink(path_, link);
  EXPECT_THAT(ShmListener::listen(link).error().message, HasSubstr("is no socket to replace"));
  std::string text;
  std::getline(std::ifstream(path_), text);
  EXPECT_EQ(text, "notes");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
}

TEST_F(ShmPortTest, ReplacesASocketFileThatADeadProcessLeft) {
  const pid_t child = fork();
  if (child == 0) {
    auto listener = ShmListener::listen(path_);
    _exit(listener ? 0 : 1);  // no destructor: the file stays
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(std::filesystem::exists(path_));
  EXPECT_TRUE(ShmListener::listen(path_));
}

TEST_F(ShmPortTest, WaitsForAListenerThatComesLater) {
  auto client = ShmPort::connect(path_, Absent::kWait).value();
  ASSERT_FALSE(until({client.get()}, [&] { return client->state() == PortState::kUp; }));
  EXPECT_NE(client->next_deadline(), Time::never());
  EXPECT_LE(client->next_deadline() - now_, Duration::milliseconds(100));
  auto listener = ShmListener::listen(path_).value();
  std::unique_ptr<Port> accepted;
  EXPECT_TRUE(until({client.get()}, [&] {
    if (!accepted) accepted = listener->accept(now_);
    return client->state() == PortState::kUp;
  }));
  EXPECT_EQ(client->counters().resets, 0u);
}

TEST_F(ShmPortTest, TakesAndCountsFramesForAPeerThatIsNotThere) {
  auto client = ShmPort::connect(path_, Absent::kWait).value();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(send(*client, 1, 60));
  client->flush(now_);
  EXPECT_EQ(client->counters().tx_dropped, 3u);
  EXPECT_EQ(client->counters().tx_frames, 0u);
}

TEST_F(ShmPortTest, DeliversWhatADeadPeerHadPublishedAndThenTurnsDown) {
  auto listener = ShmListener::listen(path_).value();
  auto client = ShmPort::connect(path_).value();
  auto port = listener->accept(now_);
  ASSERT_TRUE(until({client.get()}, [&] { return client->state() == PortState::kUp; }));
  ASSERT_TRUE(send(*client, 3, 60));
  client->flush(now_);
  client.reset();
  std::array<Frame, 4> burst;
  EXPECT_EQ(port->receive(tick(), burst), 1u);
  EXPECT_EQ(port->state(), PortState::kDown);
  EXPECT_EQ(port->counters().resets, 1u);
  EXPECT_EQ(port->receive(tick(), burst), 0u);
  EXPECT_TRUE(port->arm());
  EXPECT_EQ(port->next_deadline(), Time::never());
}

TEST_F(ShmPortTest, ReattachesWhenAKilledListenerComesBack) {
  // The child echoes frames until it is killed.
  const auto start_echo = [this] {
    const pid_t child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto listener = ShmListener::listen(path_).value();
    std::unique_ptr<Port> port;
    std::array<Frame, 8> burst;
    for (Time now;; now = now + Duration::microseconds(10)) {
      if (!port) port = listener->accept(now);
      if (!port) continue;
      for (const auto& frame : std::span(burst).first(port->receive(now, burst)))
        send(*port, frame.data[0], frame.length);
      port->flush(now);
      std::this_thread::yield();
    }
  };
  auto client = ShmPort::connect(path_, Absent::kWait).value();
  const auto echoes = [&](std::uint8_t value) {
    std::array<Frame, 8> burst;
    for (int i = 0; i < 2'000'000; ++i) {
      now_ = now_ + Duration::microseconds(10);
      if (i % 1000 == 0 && client->state() == PortState::kUp) {
        send(*client, value, 60);
        client->flush(now_);
      }
      if (client->receive(now_, burst) > 0 && burst[0].data[0] == value) return true;
      std::this_thread::yield();
    }
    return false;
  };
  for (std::uint8_t life = 1; life <= 3; ++life) {
    const pid_t child = start_echo();
    EXPECT_TRUE(echoes(life)) << "life " << int{life};
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_TRUE(until({client.get()}, [&] { return client->state() == PortState::kDown; }));
    EXPECT_EQ(client->counters().resets, life);
  }
}

TEST_F(ShmPortTest, ListensForTheNextPeerWhenTheFirstIsGone) {
  auto a = ShmPort::listen_one(path_).value();
  for (std::uint64_t life = 1; life <= 3; ++life) {
    auto b = ShmPort::connect(path_).value();
    ASSERT_TRUE(wait_readable(a->wait_descriptor()));
    ASSERT_TRUE(until({a.get(), b.get()}, [&] { return b->state() == PortState::kUp; }));
    EXPECT_EQ(a->state(), PortState::kUp);
    b.reset();
    ASSERT_TRUE(wait_readable(a->wait_descriptor()));  // death wakes
    ASSERT_TRUE(until({a.get()}, [&] { return a->state() == PortState::kDown; }));
    EXPECT_EQ(a->counters().resets, life);
    EXPECT_FALSE(readable(a->wait_descriptor()));
  }
}

TEST_F(ShmPortTest, WakesASleeperOnceAndIsQuietAfterwards) {
  auto a = ShmPort::listen_one(path_).value();
  auto b = ShmPort::connect(path_).value();
  ASSERT_TRUE(until({a.get(), b.get()}, [&] { return b->state() == PortState::kUp; }));
  std::array<Frame, 4> burst;
  b->disarm();
  b->receive(tick(), burst);
  EXPECT_EQ(b->next_deadline(), Time::never());
  ASSERT_TRUE(b->arm());
  EXPECT_FALSE(readable(b->wait_descriptor()));
  ASSERT_TRUE(send(*a, 1, 60));
  a->flush(now_);
  EXPECT_TRUE(readable(b->wait_descriptor()));
  b->disarm();
  EXPECT_EQ(b->receive(now_, burst), 1u);
  EXPECT_FALSE(readable(b->wait_descriptor()));
  ASSERT_TRUE(send(*a, 1, 60));
  a->flush(now_);
  EXPECT_FALSE(readable(b->wait_descriptor()));  // nobody sleeps: nobody is woken
  EXPECT_FALSE(b->arm());
}

TEST_F(ShmPortTest, AsksToBeCalledAgainAfterAFullRing) {
  auto a = ShmPort::listen_one(path_, {.ring_bytes = kMinRing}).value();
  auto b = ShmPort::connect(path_).value();
  ASSERT_TRUE(until({a.get(), b.get()}, [&] { return b->state() == PortState::kUp; }));
  while (send(*a, 1, 1000)) {
  }
  a->flush(now_);
  EXPECT_GT(a->counters().tx_full, 0u);
  EXPECT_GT(a->next_deadline(), now_);
  EXPECT_LE(a->next_deadline(), now_ + Duration::milliseconds(1));
  std::array<Frame, 4> burst;
  b->receive(now_, burst);
  b->receive(now_, burst);
  EXPECT_TRUE(send(*a, 1, 1000));
  a->flush(now_);
  EXPECT_EQ(a->next_deadline(), Time::never());
}

// Sleeps as a poll loop does, between messages that come at awkward moments: every one must wake it.
TEST_F(ShmPortTest, LosesNoWakeUpBetweenTwoSleepers) {
  auto a = ShmPort::listen_one(path_).value();
  auto b = ShmPort::connect(path_).value();
  ASSERT_TRUE(until({a.get(), b.get()}, [&] { return b->state() == PortState::kUp; }));
  constexpr int kRounds = 20'000;
  const auto sleep_until_frame = [](Port& port, Time now) {
    std::array<Frame, 1> burst;
    for (;;) {
      if (port.receive(now, burst) == 1) return true;
      const bool slept = port.arm();
      const bool woken = !slept || wait_readable(port.wait_descriptor());
      port.disarm();
      if (!woken) return false;
    }
  };
  bool echo_woken = true;
  std::thread echo([&] {
    for (int i = 0; i < kRounds && echo_woken; ++i) {
      echo_woken = sleep_until_frame(*b, now_);
      send(*b, 1, 60);
      b->flush(now_);
    }
  });
  bool woken = true;
  for (int i = 0; i < kRounds && woken; ++i) {
    send(*a, 1, 60);
    a->flush(now_);
    for (int spin = 0; spin < i % 97; ++spin) std::atomic_signal_fence(std::memory_order_seq_cst);
    woken = sleep_until_frame(*a, now_);
  }
  echo.join();
  EXPECT_TRUE(woken);
  EXPECT_TRUE(echo_woken);
}

// The peer of these tests speaks the hello by hand and then misbehaves.
class MadPeer {
 public:
  explicit MadPeer(const std::string& path) : socket_(connect_unix(path).value()) {}
  bool greeted() { return receive_hello(socket_.get(), region_) == HelloState::kReceived; }
  ShmRegion& region() { return region_; }

 private:
  Descriptor socket_;
  ShmRegion region_;
};

TEST_F(ShmPortTest, DropsAPeerThatPublishesNonsense) {
  auto listener = ShmListener::listen(path_).value();
  MadPeer peer(path_);
  auto port = listener->accept(now_);
  ASSERT_TRUE(peer.greeted());
  store_le<std::uint64_t>(peer.region().bytes(1), 12345);
  std::array<Frame, 4> burst;
  EXPECT_EQ(port->receive(now_, burst), 0u);
  EXPECT_EQ(port->state(), PortState::kDown);
  EXPECT_EQ(port->counters().rx_malformed, 1u);
  EXPECT_EQ(port->counters().resets, 1u);
  EXPECT_TRUE(port->arm());  // nothing more will come: its owner may sleep
}

TEST_F(ShmPortTest, DropsAPeerThatGivesBackWhatItNeverGot) {
  auto listener = ShmListener::listen(path_, {.ring_bytes = kMinRing}).value();
  MadPeer peer(path_);
  auto port = listener->accept(now_);
  ASSERT_TRUE(peer.greeted());
  peer.region().control(0)->head = 1 << 20;
  while (send(*port, 1, 4000)) {
  }
  port->flush(now_);
  std::array<Frame, 4> burst;
  port->receive(now_, burst);
  EXPECT_EQ(port->state(), PortState::kDown);
  EXPECT_EQ(port->counters().rx_malformed, 1u);
}

TEST_F(ShmPortTest, TakesTwoDescriptorsOnceItIsAttached) {
  const auto open_now = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  auto listener = ShmListener::listen(path_).value();
  const auto before = open_now();
  auto client = ShmPort::connect(path_).value();
  auto port = listener->accept(now_);
  ASSERT_TRUE(until({client.get()}, [&] { return client->state() == PortState::kUp; }));
  EXPECT_EQ(open_now() - before, 2 + 2) << "to sleep on, and to the other end";
}

TEST_F(ShmPortTest, CannotBeShrunkUnderItsFeet) {
  auto listener = ShmListener::listen(path_).value();
  MadPeer peer(path_);
  auto port = listener->accept(now_);
  ASSERT_TRUE(peer.greeted());
  EXPECT_NE(ftruncate(peer.region().memfd(), 0), 0);
}

TEST_F(ShmPortTest, RefusesAListenerThatIsNotOne) {
  auto fake = listen_unix(path_).value();
  auto client = ShmPort::connect(path_).value();
  Descriptor accepted(accept4(fake.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_EQ(write(accepted.get(), "HTTP/1.1 400 Bad", 16), 16);
  std::array<Frame, 4> burst;
  client->receive(tick(), burst);
  EXPECT_EQ(client->state(), PortState::kDown);
  EXPECT_NE(client->next_deadline(), Time::never());  // it tries again
}

TEST_F(ShmPortTest, RefusesMemoryThatIsUnsealedOrOfAnotherSize) {
  Descriptor unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 2 * (4096 + kMinRing)), 0);
  const auto first = ShmRegion::adopt(std::move(unsealed), kMinRing);
  ASSERT_FALSE(first);
  EXPECT_THAT(first.error().message, HasSubstr("not sealed"));
  Descriptor small(memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(small.get(), 4096), 0);
  EXPECT_FALSE(ShmRegion::adopt(std::move(small), kMinRing));
  EXPECT_FALSE(ShmRegion::adopt(Descriptor(), 12345));
}

}  // namespace
}  // namespace sluice::ports
