// The golden fixtures of the box through the steering program in the kernel, by BPF_PROG_TEST_RUN: the same lines as the pipeline in C++
// (tests/golden/swordbox). Where a mechanism is beyond the kernel the table says so, and this test counts it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include "golden/capture.h"
#include "golden/swordbox/fixture.h"
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
