// The golden fixtures of the box through the steering program in the kernel, by BPF_PROG_TEST_RUN: the same lines as the pipeline in C++
// (tests/golden/swordbox). Where a mechanism is beyond the kernel the table says so, and this test counts it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "base/rng.h"
#include "golden/capture.h"
#include "golden/swordbox/fixture.h"
#include "packet/own_namespace.h"
#include "swordbox/box.h"
#include "wire/cm.h"
#include "wire/icrc.h"
#include "wire/text.h"
#include "xdp/steering.h"

namespace sluice::golden {
namespace {

using namespace swordbox;
using Bytes = std::vector<std::uint8_t>;
using xdp::Steering;

const std::filesystem::path kFolder = std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/golden/swordbox";

class KernelRun {
 public:
  explicit KernelRun(const Fixture& fixture) : fixture_(fixture) {}

  // Returns why it ended before the end; empty: it did not.
  std::string run() {
    for (const FixtureLine& line : fixture_.lines) {
      const std::string where = fmt::format("{}: \"{}\", line {}", fixture_.file, fixture_.name, line.number);
      SCOPED_TRACE(where);
      if (line.words.at(0) == "xdp") {
        std::string why;
        for (std::size_t i = 2; i < line.words.size(); ++i) why += (i == 2 ? "" : " ") + line.words[i];
        return why;
      }
      step(line);
      if (testing::Test::HasFatalFailure()) break;
    }
    return {};
  }

 private:
  static int client_of(const std::string& word) { return std::stoi(word.substr(1)); }
  std::uint32_t config_number(const char* name, std::uint32_t otherwise) const {
    const auto text = setting(config_, name);
    return text.empty() ? otherwise : static_cast<std::uint32_t>(std::stoul(text));
  }

  Steering& steering() {
    if (steering_ != nullptr) return *steering_;
    // One program for all fixtures of one configuration: the kernel takes its time to look through it.
    static std::map<std::vector<std::string>, std::unique_ptr<Steering>> loaded_before;
    if (const auto known = loaded_before.find(config_); known != loaded_before.end()) {
      steering_ = known->second.get();
      steering_->start_over();
      return *steering_;
    }
    xdp::SteeringConfig config;
    config.connections = config_number("connections", 64);
    CloverConfig& rule = config.rule;
    rule.regions = {{FixtureNetwork::server_gid(), FixtureNetwork::rkey(1)},
                    {FixtureNetwork::server_gid(), FixtureNetwork::rkey(2)}};
    if (setting(config_, "regions") == "none") rule.regions = {{FixtureNetwork::server_gid(), FixtureNetwork::rkey(9)}};
    rule.tracked_keys = config_number("keys", 16);
    rule.history_entries = config_number("history", 256);
    rule.ring = config_number("ring", 32);
    rule.hot_from = config_number("hot_from", 1);
    rule.steer_reads = config_number("steer_reads", 1) != 0;
    rule.steer_writes = config_number("steer_writes", 1) != 0;
    rule.mirrored = config_number("mirrored", 0) != 0;
    config.flight = Duration::milliseconds(config_number("flight_ms", 1000));
    auto loaded = Steering::load(config);
    if (!loaded) throw std::runtime_error(loaded.error().message);
    steering_ = loaded->get();
    loaded_before[config_] = std::move(*loaded);
    return *steering_;
  }

  static Announcement connection(const FixtureLine& line) {
    const int client = client_of(line.words.at(1));
    const auto psn = static_cast<std::uint32_t>(std::stoul(setting(line.words, "psn", "100"), nullptr, 0));
    return {.address = {FixtureNetwork::client_gid(client), FixtureNetwork::server_gid()},
            .qpn = {FixtureNetwork::client_qpn(client), FixtureNetwork::server_qpn(client)},
            .starting_psn = {Psn(psn), Psn(psn)},
            .mtu = static_cast<std::uint16_t>(std::stoul(setting(line.words, "mtu", "1024")))};
  }

  void step(const FixtureLine& line) {
    const std::string& first = line.words.at(0);
    if (first == "config") {
      config_ = line.words;
    } else if (first == "connect") {
      const auto announced = steering().announce(connection(line));
      EXPECT_TRUE(announced) << announced.error().message;
    } else if (first == "close") {
      EXPECT_TRUE(steering().close(connection(line)));
    } else if (first == "wait") {
      std::this_thread::sleep_for(std::chrono::microseconds(std::stoi(line.words.at(1))));
    } else if (first == "switch") {
      EXPECT_TRUE(steering().switch_on(line.words.at(1) == "on"));
    } else if (first == "tail") {
      // "tail 7 = C || B": only the acknowledged one is known in the kernel.
      const auto& expected = line.words.size() > 5 ? line.words[5] : line.words.at(3);
      EXPECT_EQ(steering().tail_of(std::stoull(line.words.at(1))),
                expected == "none" ? std::nullopt : std::optional(node_address(expected)));
    } else if (first == "links") {
      EXPECT_EQ(steering().status(0).open_links, std::stoull(line.words.at(1)));
    } else if (first[0] == 'c' || first[0] == 's') {
      packet(line);
    } else {
      ADD_FAILURE() << "the kernel knows nothing of this line; end its fixture before (xdp ends …): " << first;
    }
  }

  void packet(const FixtureLine& line) {
    Bytes frame = build_frame(line.words);
    if (std::ranges::find(line.words, "damaged") != line.words.end()) frame.back() ^= 0x40;
    const auto& verdict = line.in_kernel ? line.in_kernel->verdict : line.verdict;
    const auto& replaced = line.in_kernel ? line.in_kernel->replaced : line.replaced;
    const Counters before = steering().counters();
    const auto outcome = steering().try_frame(frame);
    ASSERT_TRUE(outcome) << outcome.error().message;
    const Counters after = steering().counters();
    std::vector<std::string> got;
    bool forward = true;
    for (std::size_t i = 0; i < kVerdicts; ++i) {
      for (auto n = before.verdicts[i]; n < after.verdicts[i]; ++n) {
        got.emplace_back(kVerdictTable[i].name);
        forward = kVerdictTable[i].action == Action::kForward;
      }
    }
    EXPECT_THAT(got, testing::ElementsAre(verdict)) << wire::describe(frame);
    EXPECT_EQ(outcome->dropped, !forward);
    if (outcome->dropped) return;
    Bytes expected = frame;
    if (!replaced.empty()) {
      std::vector<std::string> words = {line.words[0], line.words[1]};
      words.insert(words.end(), replaced.begin(), replaced.end());
      expected = build_frame(words);
    }
    EXPECT_EQ(outcome->frame, expected) << "left as    " << wire::describe(outcome->frame) << "\nexpected   "
                                        << wire::describe(expected);
  }

  const Fixture& fixture_;
  std::vector<std::string> config_;
  Steering* steering_ = nullptr;
};

TEST(XdpFixtures, TheKernelDoesWhatTheTableSays) {
  std::size_t whole = 0;
  std::size_t part = 0;
  std::map<std::string, std::size_t> beyond;
  for (const Fixture& fixture : read_fixtures(kFolder)) {
    if (!fixture.beyond_kernel.empty()) {
      ++beyond[fixture.beyond_kernel];
      continue;
    }
    const std::string why = KernelRun(fixture).run();
    if (why.empty()) {
      ++whole;
    } else {
      ++part;
      ++beyond[why];
    }
    if (HasFatalFailure()) return;
  }
  fmt::print("{} fixtures hold in the kernel, {} as far as it goes; beyond it, passed or dropped by XDP:\n", whole,
             part);
  for (const auto& [why, n] : beyond) fmt::print("  {:3} {}\n", n, why);
  EXPECT_GE(whole, 60u);
}

xdp::SteeringConfig plain_config() {
  xdp::SteeringConfig config;
  config.rule.regions = {{FixtureNetwork::server_gid(), FixtureNetwork::rkey(1)},
                         {FixtureNetwork::server_gid(), FixtureNetwork::rkey(2)}};
  config.rule.ring = 32;
  config.rule.hot_from = 1;
  config.rule.tracked_keys = 1024;
  config.rule.steer_reads_for = Duration::seconds(1000);
  return config;
}

Announcement connection_of(int client) {
  return {.address = {FixtureNetwork::client_gid(client), FixtureNetwork::server_gid()},
          .qpn = {FixtureNetwork::client_qpn(client), FixtureNetwork::server_qpn(client)},
          .starting_psn = {Psn(100), Psn(100)},
          .mtu = 1024};
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// Feeds the kernel with lines as in the table; returns the verdict of the last.
std::string feed(Steering& steering, std::initializer_list<const char*> lines) {
  std::string last;
  for (const char* line : lines) {
    const Counters before = steering.counters();
    EXPECT_TRUE(steering.try_frame(build_frame(words_of(line))));
    const Counters after = steering.counters();
    for (std::size_t i = 0; i < kVerdicts; ++i) {
      if (before.verdicts[i] != after.verdicts[i]) last = kVerdictTable[i].name;
    }
  }
  return last;
}

TEST(XdpSteering, ALinkWithoutAnAnswerIsGivenUp) {
  auto config = plain_config();
  config.flight = Duration::milliseconds(30);
  auto steering = Steering::load(config);
  ASSERT_TRUE(steering) << steering.error().message;
  Steering& s = **steering;
  ASSERT_TRUE(s.announce(connection_of(1)));
  feed(s, {"c1 100 write B key=7", "c1 101 write C key=7", "c1 102 write D key=7", "s1 102 ack"});
  EXPECT_EQ(feed(s, {"c1 103 cas A B key=7"}), "CasLearning");
  feed(s, {"s1 103 prior free=7"});
  EXPECT_EQ(feed(s, {"c1 104 cas A C key=7"}), "CasSteered");
  EXPECT_EQ(feed(s, {"c1 105 cas A D key=7"}), "CasBusy");
  feed(s, {"s1 105 prior ptr=B"});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(feed(s, {"c1 106 read A"}), "Plain");  // nobody was seen to write A
  EXPECT_EQ(feed(s, {"c1 107 cas A D key=7"}), "CasLearning");
  EXPECT_EQ(s.counters().links_expired, 1u);
  // Its client's retransmission still goes where the original went.
  EXPECT_EQ(feed(s, {"c1 104 cas A C key=7"}), "RepeatedSteered");
}

TEST(XdpSteering, RefusesNoConnectionWhileThereAreFreePlaces) {
  constexpr std::uint32_t kPlaces = 1024;
  constexpr std::uint32_t kStay = 400;
  xdp::SteeringConfig config = plain_config();
  config.connections = kPlaces;
  auto steering = Steering::load(config);
  ASSERT_TRUE(steering) << steering.error().message;
  Steering& s = **steering;
  const auto number = [](std::uint32_t n) {
    Announcement a = connection_of(1);
    a.qpn = {Qpn(0x10000 + n), Qpn(0x20000 + n)};
    return a;
  };
  std::uint32_t n = 0;
  for (; n < kStay; ++n) ASSERT_TRUE(s.announce(number(n))) << n;
  for (const std::uint32_t end = n + 2 * kPlaces; n < end; ++n) {
    ASSERT_TRUE(s.announce(number(n))) << n;
    ASSERT_TRUE(s.close(number(n)));
  }
  EXPECT_EQ(s.status(0).connections, kStay);
  for (const std::uint32_t end = n + kPlaces - kStay; n < end; ++n) ASSERT_TRUE(s.announce(number(n))) << n;
  EXPECT_FALSE(s.announce(number(n))) << "full";
  ASSERT_TRUE(s.close(number(7)));
  EXPECT_TRUE(s.announce(number(n)));
  EXPECT_FALSE(s.announce(number(n + 1)));
  EXPECT_EQ(s.status(0).connections, kPlaces);
}

// So many connections that some share the place that remembers where one was found: whoever comes stands at its own numbers.
TEST(XdpSteering, TakesNoConnectionForAnother) {
  constexpr std::uint32_t kConnections = 4096;
  xdp::SteeringConfig config = plain_config();
  config.connections = kConnections;
  auto steering = Steering::load(config);
  ASSERT_TRUE(steering) << steering.error().message;
  Steering& s = **steering;
  Rng rng(1);
  std::set<std::uint32_t> numbers;
  while (numbers.size() < kConnections) numbers.insert(static_cast<std::uint32_t>(rng.below(1u << 24)));
  const std::vector<std::uint32_t> servers(numbers.begin(), numbers.end());
  std::vector<std::uint32_t> turns;
  for (std::uint32_t n = 0; n < kConnections; ++n) {
    Announcement a = connection_of(1);
    a.qpn = {Qpn(n), Qpn(servers[n])};
    a.starting_psn = {Psn(n), Psn(n)};
    ASSERT_TRUE(s.announce(a)) << n;
    turns.insert(turns.end(), {n, n, n});
  }
  for (std::size_t i = turns.size(); i > 1; --i) std::swap(turns[i - 1], turns[rng.below(i)]);
  Bytes frame = build_frame({"c1", "100", "read", "A"});
  wire::ParsedFrame parsed;
  ASSERT_EQ(wire::parse(frame, parsed), wire::Verdict::kOk);
  std::vector<std::uint32_t> next(kConnections);
  for (const std::uint32_t n : turns) {
    wire::Bth{.opcode = wire::Opcode::kRcReadRequest, .destination = Qpn(servers[n]), .psn = Psn(n + next[n]++)}.write(
        frame.data() + parsed.bth_offset);
    ASSERT_TRUE(s.try_frame(frame));
  }
  EXPECT_EQ(s.counters().of(Verdict::kPlain), turns.size());
}

TEST(XdpSteering, WhatComesWhileAnotherCoreHasTheTablesForTooLongIsDroppedAndComesAgain) {
  auto steering = Steering::load(plain_config());
  ASSERT_TRUE(steering) << steering.error().message;
  Steering& s = **steering;
  ASSERT_TRUE(s.announce(connection_of(1)));
  const Bytes write = build_frame(words_of("c1 100 write A key=7"));
  s.hold(true);
  const auto dropped = s.try_frame(write);
  ASSERT_TRUE(dropped);
  EXPECT_TRUE(dropped->dropped);
  EXPECT_FALSE(s.announce(connection_of(2)));
  EXPECT_FALSE(s.switch_on(false));
  s.hold(false);
  EXPECT_EQ(s.counters().of(Verdict::kTablesHeld), 1u);
  ASSERT_TRUE(s.switch_on(true));
  EXPECT_EQ(feed(s, {"c1 100 write A key=7"}), "NodeWritten");
}

TEST(XdpSteering, CoresTakeTurnsAtTheTables) {
  constexpr std::uint32_t kFrames = 400'000;  // of each core
  auto steering = Steering::load(plain_config());
  ASSERT_TRUE(steering) << steering.error().message;
  Steering& s = **steering;
  ASSERT_TRUE(s.announce(connection_of(1)));
  feed(s, {"c1 100 write A key=7"});
  const Bytes again = build_frame(words_of("c1 100 write A key=7"));
  std::array<std::thread, 2> cores;
  for (auto& core : cores) core = std::thread([&] { EXPECT_TRUE(s.time_frame(again, kFrames)); });
  for (auto& core : cores) core.join();
  const auto counters = s.counters();
  EXPECT_EQ(counters.of(Verdict::kRepeated) + counters.of(Verdict::kTablesHeld), cores.size() * kFrames);
  EXPECT_LT(counters.of(Verdict::kTablesHeld), kFrames / 100);  // where a machine does not run one of its cores
  EXPECT_EQ(feed(s, {"c1 101 write B key=7"}), "NodeWritten");
}

TEST(XdpSteering, RefusesARegionThatIsNamedTwice) {
  xdp::SteeringConfig config = plain_config();
  config.rule.regions.push_back(config.rule.regions.front());
  const auto steering = Steering::load(config);
  ASSERT_FALSE(steering);
  EXPECT_THAT(steering.error().message, testing::HasSubstr("named twice"));
}

TEST(XdpSteering, OfConnectionsThatAreNotFollowedNothingIsLearnedAndWhatTheyMayChangeIsForgotten) {
  auto steering = Steering::load(plain_config());
  ASSERT_TRUE(steering) << steering.error().message;
  Steering& s = **steering;
  ASSERT_TRUE(s.announce(connection_of(1)));
  const auto learn = [&](int psn) {
    const auto at = [&](int k, const char* what) { return fmt::format("c1 {} {}", psn + k, what); };
    const std::string write = at(0, "write B key=7");
    const std::string ack = fmt::format("s1 {} ack", psn);
    const std::string cas = at(1, "cas A B key=7");
    const std::string prior = fmt::format("s1 {} prior free=7", psn + 1);
    feed(s, {write.c_str(), ack.c_str(), cas.c_str(), prior.c_str()});
    return s.tail_of(7) == node_address("B");
  };
  ASSERT_TRUE(learn(100));
  EXPECT_EQ(feed(s, {"c2 100 write X key=7"}), "Unknown");
  EXPECT_EQ(s.tail_of(7), node_address("B"));
  EXPECT_EQ(feed(s, {"c1 102 cas A X key=7"}), "CasUnknownNode");  // it was not learned
  feed(s, {"s1 102 prior ptr=B"});
  EXPECT_EQ(feed(s, {"c2 101 cas B X key=7"}), "Unknown");
  EXPECT_EQ(s.tail_of(7), std::nullopt);
  ASSERT_TRUE(learn(103));
  EXPECT_EQ(feed(s, {"c2 102 write B key=9"}), "Unknown");
  EXPECT_EQ(s.tail_of(7), std::nullopt);
  ASSERT_TRUE(learn(105));
  EXPECT_EQ(feed(s, {"c2 103 faa B"}), "Unknown");
  EXPECT_EQ(s.tail_of(7), std::nullopt);
}

class Nowhere final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t) override { return nullptr; }
  void commit(std::size_t) override {}
};

// The pipeline in C++ that holds nothing and the kernel: the same verdict and the same bytes for each packet.
class Pair {
 public:
  explicit Pair(Steering& kernel) : kernel_(kernel), box_(box_config()) {
    CloverConfig rule = plain_config().rule;
    rule.order = Order::kPassing;
    rule.history_entries = 1u << 16;
    box_.set_rule(std::make_unique<CloverRule>(rule, box_.connections(), box_.counters()));
    kernel_.start_over();
  }
  Steering& kernel() { return kernel_; }
  Box& box() { return box_; }

  // Returns what both say.
  Verdict both(const Bytes& frame) {
    Bytes mine = frame;
    Packet packet;
    packet.frame = {mine.data(), static_cast<std::uint32_t>(mine.size())};
    now_ = now_ + Duration::microseconds(1);
    box_.process(now_, {&packet, 1}, nowhere_);
    const Counters before = kernel_.counters();
    const auto outcome = kernel_.try_frame(frame);
    const Counters after = kernel_.counters();
    for (std::size_t i = 0; i < kVerdicts; ++i) {
      const auto expected = before.verdicts[i] + (i == static_cast<std::size_t>(packet.verdict) ? 1u : 0u);
      EXPECT_EQ(after.verdicts[i], expected) << kVerdictTable[i].name << ", but C++ says " << row(packet.verdict).name;
    }
    if (!outcome) {
      ADD_FAILURE() << outcome.error().message;
      return packet.verdict;
    }
    EXPECT_EQ(outcome->dropped, packet.action != Action::kForward);
    if (!outcome->dropped) {
      EXPECT_EQ(outcome->frame, mine);
    }
    return packet.verdict;
  }

 private:
  static BoxConfig box_config() {
    BoxConfig config;
    config.held_frames = 0;
    return config;
  }

  Steering& kernel_;
  Box box_;
  Nowhere nowhere_;
  Time now_;
};

// The same packets, drawn by chance, through both, whatever clients and server do.
class Twins {
 public:
  Twins(Steering& kernel, std::uint64_t seed) : rng_(Rng(seed).fork("twins")), pair_(kernel) {
    for (int client = 1; client <= kClients; ++client) {
      EXPECT_TRUE(kernel.announce(connection_of(client)));
      EXPECT_TRUE(pair_.box().connections().announce(Time(), connection_of(client)));
      clients_[static_cast<std::size_t>(client)].next = clients_[static_cast<std::size_t>(client)].answered = 100;
    }
  }

  void run(int packets) {
    for (int i = 0; i < packets && !testing::Test::HasFailure(); ++i) step();
  }
  const Counters& counters() { return pair_.box().counters(); }

 private:
  static constexpr int kClients = 4;
  struct Client {
    std::uint32_t next = 0;
    std::uint32_t answered = 0;
    std::map<std::uint32_t, std::string> sent;
  };

  char node() { return static_cast<char>('A' + rng_.below(8)); }
  std::string request() {
    const auto key = 1 + rng_.below(2);
    switch (rng_.below(10)) {
      case 0:
      case 1:
      case 2: return fmt::format("write {} key={}{}", node(), key, rng_.below(8) == 0 ? " tomb" : "");
      case 3:
      case 4:
      case 5:
      case 6: return fmt::format("cas {} {} {}={}", node(), node(), rng_.below(10) == 0 ? "tomb" : "key", key);
      case 7: return fmt::format("read {}", node());
      case 8: return rng_.below(4) == 0 ? fmt::format("faa {}", node()) : fmt::format("read {}", node());
      default: return rng_.below(4) == 0 ? fmt::format("write {} plain", node()) : "send";
    }
  }
  std::string answer(const std::string& request) {
    if (request.starts_with("read")) return "data";
    if (!request.starts_with("cas") && !request.starts_with("faa")) return "ack";
    switch (rng_.below(4)) {
      case 0: return fmt::format("prior ptr={}", node());
      case 1: return fmt::format("prior ptr={}", request.starts_with("cas") ? request[6] : node());
      default: return fmt::format("prior free={}", 1 + rng_.below(2));
    }
  }
  void step() {
    const auto number = 1 + rng_.below(kClients);
    Client& client = clients_[number];
    const bool may_answer = client.answered != client.next;
    if (may_answer && (rng_.below(2) == 0 || client.next - client.answered >= 8)) {
      const std::uint32_t psn = client.answered;
      if (rng_.below(20) == 0) return both(fmt::format("s{} {} nak 0", number, psn));
      if (rng_.below(20) != 0) ++client.answered;  // else it is lost on the way to the client, and comes again
      return both(fmt::format("s{} {} {}", number, psn, answer(client.sent[psn])));
    }
    if (!client.sent.empty() && rng_.below(8) == 0) {
      const std::uint32_t psn =
          client.next - 1 - static_cast<std::uint32_t>(rng_.below(std::min<std::uint64_t>(client.sent.size(), 6)));
      return both(fmt::format("c{} {} {}", number, psn, client.sent[psn]));
    }
    if (rng_.below(30) == 0) return both(fmt::format("c{} {} {}", number, client.next + 1, request()));
    const std::uint32_t psn = client.next++;
    client.sent[psn] = request();
    if (client.sent.size() > 8) client.sent.erase(client.sent.begin());
    both(fmt::format("c{} {} {}", number, psn, client.sent[psn]));
  }

  void both(const std::string& line) {
    history_ += line + "\n";
    pair_.both(build_frame(words_of(line)));
    if (testing::Test::HasFailure()) fmt::print("{}", history_);
  }

  Rng rng_;
  Pair pair_;
  std::array<Client, kClients + 1> clients_;
  std::string history_;
};

TEST(XdpSteering, DoesWhatTheBoxDoesThatHoldsNothing) {
  auto kernel = Steering::load(plain_config());
  ASSERT_TRUE(kernel) << kernel.error().message;
  const char* const text = std::getenv("SLUICE_SEEDS");
  const std::uint64_t seeds = text != nullptr ? std::strtoull(text, nullptr, 10) : 20;
  Counters all;
  for (std::uint64_t seed = 1; seed <= seeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Twins twins(**kernel, seed);
    twins.run(400);
    for (std::size_t i = 0; i < kVerdicts; ++i) all.verdicts[i] += twins.counters().verdicts[i];
  }
  for (const Verdict verdict :
       {Verdict::kCasSteered, Verdict::kCasBusy, Verdict::kCasProbe, Verdict::kCasReaimed, Verdict::kCasAgain,
        Verdict::kReadSteered, Verdict::kRepeatedSteered, Verdict::kGapDropped})
    EXPECT_GT(all.of(verdict), 0u) << row(verdict).name;
}

// A client and a server over IPv4 or IPv6, with a VLAN tag or without, that set up a connection by management messages.
struct Route {
  bool v6 = false;
  bool tagged = false;

  wire::HeaderTemplate headers(bool to_client) const {
    wire::AddressVector a;
    a.source = FixtureNetwork::client_gid(1);
    a.destination = FixtureNetwork::server_gid();
    if (v6) {
      a.source = a.destination = wire::Gid{{0xFD}};
      a.source.bytes[15] = 1;
      a.destination.bytes[15] = 2;
    }
    if (to_client) std::swap(a.source, a.destination);
    if (tagged) a.vlan_tci = 7;
    return wire::HeaderTemplate(a);
  }
  Bytes management(bool to_client, const wire::CmMessage& message) const {
    const wire::HeaderTemplate h = headers(to_client);
    Bytes frame(wire::cm_frame_size(h));
    frame.resize(wire::write_cm_frame(frame.data(), h, Psn(1), {.transaction_id = 1, .message = message}));
    return frame;
  }
  Bytes write(Qpn to, Psn psn) const {
    const wire::HeaderTemplate h = headers(false);
    Bytes frame(h.frame_size(wire::Bth::kSize + wire::Reth::kSize + 8));
    const std::size_t at = h.write(frame.data(), wire::Bth::kSize + wire::Reth::kSize + 8);
    wire::Bth{.opcode = wire::Opcode::kRcWriteOnly, .destination = to, .psn = psn}.write(frame.data() + at);
    wire::Reth{.virtual_address = 0x1000, .rkey = wire::RKey(0x99), .length = 8}.write(frame.data() + at +
                                                                                       wire::Bth::kSize);
    h.seal(frame.data(), frame.size() - wire::kIcrcSize);
    return frame;
  }
};

Bytes with_icrc(Bytes frame) {
  wire::ParsedFrame parsed;
  EXPECT_EQ(wire::parse(frame, parsed), wire::Verdict::kOk);
  store_le(frame.data() + parsed.icrc_offset(), wire::icrc(frame.data(), parsed));
  return frame;
}

TEST(XdpSteering, BelievesTheManagementMessagesThatTheBoxBelieves) {
  auto kernel = Steering::load(plain_config());
  ASSERT_TRUE(kernel) << kernel.error().message;
  // From the MAD on.
  constexpr int kBth = -20;
  constexpr int kQkey = -8;
  constexpr int kMethod = 3;
  constexpr int kRepPsn = 24 + 21;
  constexpr int kPrivate = 24 + 200;
  constexpr int kIcrc = 256;
  for (const Route route : {Route{}, Route{.tagged = true}, Route{.v6 = true}, Route{.v6 = true, .tagged = true}}) {
    SCOPED_TRACE(fmt::format("IPv{}, {}", route.v6 ? 6 : 4, route.tagged ? "tagged" : "no tag"));
    Pair pair(**kernel);
    const std::uint64_t announced_before = pair.kernel().counters().connections_announced;
    const std::uint64_t closed_before = pair.kernel().counters().connections_closed;
    const auto announced = [&] {
      const std::uint64_t n = pair.kernel().counters().connections_announced - announced_before;
      EXPECT_EQ(n, pair.box().counters().connections_announced);
      return n;
    };
    const auto closed = [&] { return pair.kernel().counters().connections_closed - closed_before; };
    const auto management = [&](const Bytes& frame) { EXPECT_EQ(pair.both(frame), Verdict::kManagement); };

    wire::CmReq req;
    req.local_comm_id = wire::CommId(5);
    req.local_qpn = Qpn(0x11);
    req.starting_psn = Psn(700);
    req.path_mtu = 3;
    wire::CmRep rep;
    rep.local_comm_id = wire::CommId(6);
    rep.remote_comm_id = req.local_comm_id;
    rep.local_qpn = Qpn(0x22);
    rep.starting_psn = Psn(0x800100);
    wire::CmDreq dreq;
    dreq.local_comm_id = req.local_comm_id;
    dreq.remote_comm_id = rep.local_comm_id;
    dreq.remote_qpn = rep.local_qpn;

    const auto changed = [](Bytes frame, int at, std::uint8_t bits) {
      frame.end()[at - kIcrc - static_cast<int>(wire::kIcrcSize)] ^= bits;
      return frame;
    };
    const Bytes right = route.management(true, rep);
    management(route.management(false, req));
    management(changed(right, kRepPsn, 0x01));
    for (int byte = 0; byte < 4; ++byte) management(changed(right, kIcrc + byte, 0x80));
    management(with_icrc(changed(right, kMethod, 0x80)));
    management(with_icrc(changed(right, kQkey, 0x01)));
    management(with_icrc(changed(right, kBth + 1, 0x10)));  // a byte of pad
    EXPECT_EQ(announced(), 0u);
    Bytes marked = right;  // what may change on the way
    wire::ParsedFrame parsed;
    ASSERT_EQ(wire::parse(marked, parsed), wire::Verdict::kOk);
    wire::mark_congestion(marked.data(), parsed);
    marked[parsed.udp_offset() + 6] = 0x12;  // its checksum
    management(changed(marked, kBth + 4, 0x80));
    EXPECT_EQ(announced(), 1u);
    // It comes again, damaged or not.
    management(changed(right, kRepPsn, 0x01));
    management(right);
    EXPECT_EQ(announced(), 1u);
    EXPECT_EQ(pair.both(route.write(rep.local_qpn, rep.starting_psn)), Verdict::kPlain);

    management(changed(route.management(false, dreq), kPrivate, 0x01));
    wire::CmDreq of_another = dreq;
    of_another.local_comm_id = wire::CommId(7);
    management(route.management(false, of_another));
    of_another = dreq;
    of_another.remote_comm_id = wire::CommId(7);
    management(route.management(false, of_another));
    EXPECT_EQ(closed(), 0u);
    management(route.management(false, req));
    management(right);
    EXPECT_EQ(announced(), 1u) << "it has got on";
    management(route.management(false, dreq));
    EXPECT_EQ(closed(), 1u);
    management(route.management(false, req));
    management(right);
    EXPECT_EQ(announced(), 2u) << "what has its numbers now is another";
  }
}

// Connections are learned from management messages between two Linux machines, with their PSNs, and taken down by them.
TEST(XdpCaptures, FollowsConnectionsFromManagementMessages) {
  xdp::SteeringConfig config;
  config.rule.regions = {{FixtureNetwork::server_gid(), FixtureNetwork::rkey(1)}};
  config.rule.ring = 32;
  auto steering = Steering::load(config);
  ASSERT_TRUE(steering) << steering.error().message;
  for (const auto& frame : read_capture(std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/golden/rxe/rping_cm.pcap")) {
    const auto outcome = (*steering)->try_frame(frame);
    ASSERT_TRUE(outcome) << outcome.error().message;
    EXPECT_FALSE(outcome->dropped) << wire::describe(frame);
    EXPECT_EQ(outcome->frame, frame);
  }
  const Counters counters = (*steering)->counters();
  EXPECT_GE(counters.connections_announced, 1u);
  EXPECT_EQ(counters.connections_closed, counters.connections_announced);
  EXPECT_EQ(counters.of(Verdict::kUnknown), 0u);
  EXPECT_EQ(counters.of(Verdict::kGap), 0u);
  EXPECT_EQ(counters.of(Verdict::kRepeated), 0u);
  EXPECT_GT(counters.of(Verdict::kPlain), 0u);
}

TEST(XdpCaptures, OtherTrafficPassesByteForByte) {
  auto files = rxe_captures();
  const auto reference = reference_captures();
  files.insert(files.end(), reference.begin(), reference.end());
  ASSERT_FALSE(files.empty());
  constexpr std::size_t kPage = 3500;  // what one buffer of the test run holds
  xdp::SteeringConfig config;
  config.rule.regions = {{FixtureNetwork::server_gid(), FixtureNetwork::rkey(1)}};
  config.rule.ring = 32;
  auto steering = Steering::load(config);
  ASSERT_TRUE(steering) << steering.error().message;
  for (const auto& file : files) {
    (*steering)->start_over();
    for (const auto& frame : read_capture(file)) {
      if (frame.size() > kPage) continue;
      const auto outcome = (*steering)->try_frame(frame);
      ASSERT_TRUE(outcome) << outcome.error().message;
      EXPECT_FALSE(outcome->dropped) << file << ": " << wire::describe(frame);
      EXPECT_EQ(outcome->frame, frame) << file;
    }
  }
}

// A veth device takes a program only while its frames fit into one page, which those of path MTU 4096 do not.
TEST(XdpAttachment, IsBeforeTheNetworkStackWhereTheDriverDoesNotTakeItAndEndsThere) {
  const bool pair = packet_tests::enter_namespace() &&
                    std::system("ip link add near mtu 4500 type veth peer name far mtu 4500 2>/dev/null") == 0;
  if (!pair) GTEST_SKIP() << "no veth devices in a network namespace of our own";
  auto steering = Steering::load(plain_config());
  ASSERT_TRUE(steering) << steering.error().message;
  const std::vector<std::string> both = {"near", "far"};
  const auto attached = (*steering)->attach(both);
  ASSERT_TRUE(attached) << attached.error().message;
  EXPECT_EQ(*attached, xdp::Attachment::kGeneric);
  EXPECT_THAT(Steering::attached().value(), testing::UnorderedElementsAreArray(both));
  for (const auto& name : both) {
    EXPECT_TRUE(Steering::open(name));
    const auto detached = Steering::detach(name);
    EXPECT_TRUE(detached) << detached.error().message;
  }
  EXPECT_TRUE(Steering::attached().value().empty());
}

// CAP_SYS_ADMIN is not among what this process may do, for a while.
class WithoutSystemAdministration {
 public:
  WithoutSystemAdministration() {
    EXPECT_EQ(syscall(SYS_capget, &header_, before_.data()), 0);
    auto now = before_;
    now[0].effective &= ~(1u << CAP_SYS_ADMIN);
    EXPECT_EQ(syscall(SYS_capset, &header_, now.data()), 0);
  }
  ~WithoutSystemAdministration() { EXPECT_EQ(syscall(SYS_capset, &header_, before_.data()), 0); }

 private:
  __user_cap_header_struct header_{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> before_{};
};

TEST(XdpAttachment, IsNotDeniedByWhoMayNotLookAtIt) {
  const bool pair = packet_tests::enter_namespace() &&
                    std::system("ip link add near mtu 4500 type veth peer name far mtu 4500 2>/dev/null") == 0;
  if (!pair) GTEST_SKIP() << "no veth devices in a network namespace of our own";
  auto steering = Steering::load(plain_config());
  ASSERT_TRUE(steering) << steering.error().message;
  const std::vector<std::string> one = {"near"};
  ASSERT_TRUE((*steering)->attach(one));
  {
    const WithoutSystemAdministration without;
    const auto opened = Steering::open("near");
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, testing::StartsWith("near has an XDP program: not permitted"));
    EXPECT_THAT(opened.error().message, testing::HasSubstr("CAP_SYS_ADMIN"));
    const auto detached = Steering::detach("near");
    ASSERT_FALSE(detached);
    EXPECT_EQ(detached.error().message, opened.error().message);
    const auto all = Steering::attached();
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().message, opened.error().message);
    EXPECT_THAT(Steering::open("far").error().message, testing::HasSubstr("no steering program"));
  }
  EXPECT_TRUE(Steering::detach("near"));
}

}  // namespace
}  // namespace sluice::golden

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (const std::string refusal = sluice::xdp::Steering::refusal(); !refusal.empty()) {
    fmt::print("skipped: {}\n", refusal);
    return 77;
  }
  return RUN_ALL_TESTS();
}
