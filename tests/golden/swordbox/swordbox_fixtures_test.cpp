// The fixture table through the C++ pipeline; and real captures of Clover, which must pass untouched.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>

#include "golden/capture.h"
#include "golden/swordbox/fixture.h"
#include "swordbox/box.h"
#include "swordbox/clover_rule.h"
#include "wire/icrc.h"
#include "wire/text.h"

namespace sluice::golden {
namespace {

using namespace swordbox;
using Bytes = std::vector<std::uint8_t>;

class Collector final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    room_.assign(length, 0);
    return room_.data();
  }
  void commit(std::size_t length) override {
    frames.emplace_back(room_.begin(), room_.begin() + static_cast<std::ptrdiff_t>(length));
  }
  std::deque<Bytes> frames;

 private:
  Bytes room_;
};

class FixtureRun {
 public:
  explicit FixtureRun(const Fixture& fixture) : fixture_(fixture) {}

  void run() {
    for (const FixtureLine& line : fixture_.lines) {
      const std::string where = fmt::format("{}: \"{}\", line {}", fixture_.file, fixture_.name, line.number);
      SCOPED_TRACE(where);
      const std::string& first = line.words.at(0);
      if (first == "xdp") continue;
      if (first == "config") {
        config_ = line.words;
      } else if (first == "connect") {
        connect(line);
      } else if (first == "close") {
        const auto crossing = find(client_of(line.words.at(1)));
        ASSERT_TRUE(crossing);
        box().connections().close(crossing.connection);
      } else if (first == "out") {
        expect_out({line.words.begin() + 1, line.words.end()});
      } else if (first == "wait") {
        pass_time(std::stoi(line.words.at(1)));
      } else if (first == "switch") {
        box().switch_on(line.words.at(1) == "on");
      } else if (first == "rule") {
        box();
        set_rule(now_ + Duration::milliseconds(std::stoi(line.words.at(3))));
      } else if (first == "tail") {
        const auto tail = rule_->tail_of(std::stoull(line.words.at(1)));
        const auto& expected = line.words.at(3);
        EXPECT_EQ(tail, expected == "none" ? std::nullopt : std::optional(node_address(expected)));
      } else if (first == "word") {
        const auto value = box().multiplexer()->value_of(node_address(line.words.at(1)));
        const auto& expected = line.words.at(3);
        EXPECT_EQ(value, expected == "none" ? std::nullopt : std::optional(std::stoull(expected, nullptr, 0)));
      } else if (first == "open") {
        EXPECT_EQ(box().multiplexer()->open(), std::stoull(line.words.at(1)));
      } else if (first == "carriers") {
        EXPECT_EQ(box().multiplexer()->carriers(), std::stoull(line.words.at(1)));
      } else if (first == "event") {
        std::uint64_t count = 0;
        box().counters().for_each([&](std::string_view name, std::string_view, std::uint64_t value) {
          if (name == line.words.at(1)) count = value;
        });
        EXPECT_EQ(count, std::stoull(line.words.at(3)));
      } else if (first == "links") {
        EXPECT_EQ(rule_->open_links(), std::stoull(line.words.at(1)));
      } else if (first == "repair") {
        Repair asked[1];
        box();
        ASSERT_EQ(rule_->take_repairs(asked), 1u);
        repair_ = asked[0];
        EXPECT_EQ(repair_.address, node_address(line.words.at(1)));
        const std::string& node = line.words.at(2);
        EXPECT_EQ(repair_.swap, node == "nothing" ? repair_.compare : pointer_to(node_address(node)));
      } else if (first == "repaired") {
        const auto key = setting(line.words, "free");
        const auto node = setting(line.words, "ptr");
        const bool nothing = key.empty() && node.empty();
        rule_->on_repair(now_, repair_,
                         nothing       ? std::nullopt
                         : key.empty() ? std::optional(pointer_to(node_address(node)))
                                       : std::optional(free_word(std::stoull(key))));
        box().on_deadline(now_, out_);
      } else if (first[0] == 'c' || first[0] == 's') {
        packet(line);
      } else {
        FAIL() << "unknown line: " << first;
      }
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_TRUE(out_.frames.empty()) << fixture_.name << ": something came out that nobody expected: "
                                     << wire::describe(out_.frames.front());
  }

 private:
  static int client_of(const std::string& word) { return std::stoi(word.substr(1)); }
  std::uint64_t config_number(const char* name, std::uint64_t otherwise) const {
    const auto text = setting(config_, name);
    return text.empty() ? otherwise : std::stoull(text);
  }

  // Steering and shared connections: nodes lie in region 1, words in region 2.
  bool both() const { return config_number("both", 0) != 0; }

  Box& box() {
    if (box_) return *box_;
    BoxConfig config;
    config.connections.connections = static_cast<std::uint32_t>(config_number("connections", 64));
    config.connections.assumed_mtu = static_cast<std::uint16_t>(config_number("assumed_mtu", 0));
    config.held_frames = static_cast<std::uint32_t>(config_number("held", 64));
    config.fenced_until = Time::at(Duration::milliseconds(static_cast<std::int64_t>(config_number("fence_ms", 0))));
    config.verify_icrc = config_number("verify_icrc", 0) != 0;
    if (config_number("numbers_fence", 1) == 0) config.numbers_fenced_until = Time();
    config.watch_paths = config_number("watch_paths", 0) != 0;
    config.stale_after = Duration::milliseconds(static_cast<std::int64_t>(config_number("stale_ms", 250)));
    box_ = std::make_unique<Box>(config);
    if (config_number("words", 0) != 0) share_words();
    if (config_number("words", 0) == 0 || both()) set_rule(config.fenced_until);
    return *box_;
  }

  void set_rule(Time fenced_until) {
    CloverConfig rule;
    rule.regions = {{FixtureNetwork::server_gid(), FixtureNetwork::rkey(1)},
                    {FixtureNetwork::server_gid(), FixtureNetwork::rkey(2)}};
    if (both()) rule.regions.pop_back();
    if (setting(config_, "regions") == "none") rule.regions = {{FixtureNetwork::server_gid(), FixtureNetwork::rkey(9)}};
    const std::string order = setting(config_, "order");
    rule.order = order == "strict" ? Order::kStrict : order == "passing" ? Order::kPassing : Order::kPipelined;
    rule.tracked_keys = static_cast<std::uint32_t>(config_number("keys", 16));
    rule.history_entries = static_cast<std::uint32_t>(config_number("history", 256));
    rule.open_links = static_cast<std::uint32_t>(config_number("open_links", 64));
    rule.ring = static_cast<std::uint32_t>(config_number("ring", 64));
    rule.hot_from = static_cast<std::uint32_t>(config_number("hot_from", 1));
    rule.resends = static_cast<std::uint8_t>(config_number("resends", 2));
    rule.steer_reads = config_number("steer_reads", 1) != 0;
    rule.steer_writes = config_number("steer_writes", 1) != 0;
    rule.mirrored = config_number("mirrored", 0) != 0;
    rule.fenced_until = fenced_until;
    auto made = std::make_unique<CloverRule>(rule, box_->connections(), box_->counters());
    rule_ = made.get();
    box_->set_rule(std::move(made), fenced_until);
  }

  void share_words() {
    MultiplexerConfig words;
    const bool discovers = config_number("servers", 0) != 0;
    if (discovers) words.servers = {FixtureNetwork::server_gid()};
    for (int region = both() ? 2 : 1; region <= 2 && !discovers; ++region) {
      words.regions.push_back({.server = FixtureNetwork::server_gid(),
                               .rkey = FixtureNetwork::rkey(region),
                               .address = node_address("A"),
                               .length = config_number("length", 0x1000),
                               .writable = config_number("writable", 1) != 0});
    }
    words.words = static_cast<std::uint32_t>(config_number("words", 16));
    words.ring = static_cast<std::uint32_t>(config_number("ring", 16));
    words.carriers = static_cast<std::uint32_t>(config_number("carriers", 4));
    words.carrier_ring = static_cast<std::uint32_t>(config_number("carrier_ring", 64));
    words.long_writes = static_cast<std::uint32_t>(config_number("long_writes", 64));
    words.flight = Duration::milliseconds(static_cast<std::int64_t>(config_number("flight_ms", 100)));
    words.passes = static_cast<std::uint32_t>(config_number("passes", 64));
    box_->set_multiplexer(std::make_unique<Multiplexer>(words, box_->connections(), box_->counters()));
  }

  void connect(const FixtureLine& line) {
    const int client = client_of(line.words.at(1));
    const auto psn = static_cast<std::uint32_t>(std::stoul(setting(line.words, "psn", "100"), nullptr, 0));
    EXPECT_TRUE(box().connections().announce(
        now_, {.address = {FixtureNetwork::client_gid(client), FixtureNetwork::server_gid()},
               .qpn = {FixtureNetwork::client_qpn(client), FixtureNetwork::server_qpn(client)},
               .starting_psn = {Psn(psn), Psn(psn)},
               .mtu = static_cast<std::uint16_t>(std::stoul(setting(line.words, "mtu", "1024")))}));
  }
  Crossing find(int client) {
    return box().connections().find(NetAddress::from(FixtureNetwork::client_gid(client)),
                                    NetAddress::from(FixtureNetwork::server_gid()), FixtureNetwork::server_qpn(client));
  }

  void packet(const FixtureLine& line) {
    Bytes frame = build_frame(line.words);
    if (std::ranges::find(line.words, "damaged") != line.words.end()) frame.back() ^= 0x40;
    const Bytes before = frame;
    Packet packet;
    packet.frame = {frame.data(), static_cast<std::uint32_t>(frame.size())};
    box().process(now_, {&packet, 1}, out_);
    EXPECT_EQ(row(packet.verdict).name, line.verdict) << wire::describe(before);
    const bool leaves = action_of(packet.verdict) == Action::kForward;
    EXPECT_EQ(packet.action, leaves ? Action::kForward : Action::kDrop);
    if (!leaves) return;
    Bytes expected = before;
    if (!line.replaced.empty()) {
      // With a client and a number of its own, or those of the packet that came.
      const bool whole =
          line.replaced[0].size() > 1 && std::isdigit(static_cast<unsigned char>(line.replaced[0][1])) != 0;
      std::vector<std::string> words;
      if (!whole) words = {line.words[0], line.words[1]};
      words.insert(words.end(), line.replaced.begin(), line.replaced.end());
      expected = build_frame(words);
    }
    frame.resize(packet.frame.length);
    EXPECT_EQ(frame, expected) << "left as    " << wire::describe(frame) << "\nexpected   " << wire::describe(expected);
  }
  void expect_out(const std::vector<std::string>& words) {
    ASSERT_FALSE(out_.frames.empty()) << "nothing came out";
    EXPECT_EQ(out_.frames.front(), build_frame(words)) << "came out   " << wire::describe(out_.frames.front())
                                                       << "\nexpected   " << wire::describe(build_frame(words));
    out_.frames.pop_front();
  }
  void pass_time(int microseconds) {
    const Time end = now_ + Duration::microseconds(microseconds);
    while (box().next_deadline() <= end) {
      now_ = std::max(now_ + Duration::picoseconds(1), box().next_deadline());
      box().on_deadline(now_, out_);
    }
    now_ = end;
  }

  const Fixture& fixture_;
  std::vector<std::string> config_;
  Time now_;
  std::unique_ptr<Box> box_;
  CloverRule* rule_ = nullptr;
  Collector out_;
  Repair repair_;
};

const std::filesystem::path kFolder = std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/golden/swordbox";

class SwordBoxFixture : public testing::TestWithParam<Fixture> {};

TEST_P(SwordBoxFixture, Holds) { FixtureRun(GetParam()).run(); }

std::string test_name(const testing::TestParamInfo<Fixture>& info) {
  std::string name = info.param.file + "_" + info.param.name;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Table, SwordBoxFixture, testing::ValuesIn(read_fixtures(kFolder)), test_name);

// The authors' nodes: constant free word, pointers that count nodes of 8 KiB.
ChainLayout authors_layout(std::uint64_t address, std::uint64_t pointer) {
  ChainLayout layout;
  layout.free_value = 0x800;
  layout.address_shift = 31;
  layout.address_mask = (std::uint64_t{1} << 33) - 1;
  layout.address_stride = 0x2000;
  layout.address_base = address - (pointer >> 31 & layout.address_mask) * 0x2000;
  return layout;
}

// Every packet of every capture, of whatever kind: with the rule on, none is changed, none is lost.
TEST(SwordBoxCaptures, OtherTrafficPassesByteForByte) {
  auto files = rxe_captures();
  const auto reference = reference_captures();
  files.insert(files.end(), reference.begin(), reference.end());
  ASSERT_FALSE(files.empty());
  for (const auto& file : files) {
    Box box(BoxConfig{});
    box.set_rule(std::make_unique<CloverRule>(CloverConfig{}, box.connections(), box.counters()));
    Collector out;
    Time now;
    for (const auto& original : read_capture(file)) {
      auto frame = original;
      Packet packet;
      packet.frame = {frame.data(), static_cast<std::uint32_t>(frame.size())};
      now = now + Duration::microseconds(1);
      box.process(now, {&packet, 1}, out);
      EXPECT_EQ(packet.action, Action::kForward)
          << file << ": " << row(packet.verdict).name << " " << wire::describe(original);
      EXPECT_EQ(frame, original) << file << ": " << wire::describe(original);
    }
    EXPECT_TRUE(out.frames.empty()) << file;
  }
}

// rdma_cm's messages between two Linux machines announce the connection before its first packet, and take it down.
TEST(SwordBoxCaptures, FollowsConnectionsFromManagementMessages) {
  const auto file = std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/golden/rxe/rping_cm.pcap";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no " << file;
  Box box(BoxConfig{});
  Collector out;
  Time now;
  for (auto frame : read_capture(file)) {
    Packet packet;
    packet.frame = {frame.data(), static_cast<std::uint32_t>(frame.size())};
    now = now + Duration::microseconds(1);
    box.process(now, {&packet, 1}, out);
  }
  EXPECT_GE(box.counters().connections_announced, 1u);
  EXPECT_EQ(box.counters().connections_inferred, 0u);
  EXPECT_EQ(box.counters().of(Verdict::kUnknown), 0u);
  // And tell the PSNs of both directions right.
  EXPECT_EQ(box.counters().of(Verdict::kGap), 0u);
  EXPECT_EQ(box.counters().of(Verdict::kRepeated), 0u);
  EXPECT_GT(box.counters().of(Verdict::kPlain), 0u);
  for (int i = 0; i < 20; ++i) {
    now = now + Duration::milliseconds(100);
    box.on_deadline(now, out);
  }
  EXPECT_EQ(box.counters().connections_closed, box.counters().connections_announced);
  EXPECT_EQ(box.connections().size(), 0u);
}

TEST(SwordBoxCaptures, CloverWithOneClientPassesByteForByte) {
  bool any = false;
  for (const auto& file : reference_captures()) {
    const std::string name = file.filename().string();
    if (!name.starts_with("clover_1_client")) continue;
    any = true;
    const auto frames = read_capture(file);
    // Where nodes lie, from the first node and the first pointer to it.
    std::uint64_t address = 0;
    std::uint64_t pointer = 0;
    for (const auto& frame : frames) {
      wire::ParsedFrame parsed;
      ASSERT_EQ(wire::parse(frame, parsed), wire::Verdict::kOk);
      if (parsed.opcode == wire::Opcode::kRcWriteOnly && parsed.payload_length == 1024 && pointer == 0) {
        address = wire::get<wire::Reth>(frame.data(), parsed).virtual_address;
      }
      if (parsed.opcode == wire::Opcode::kRcCompareSwap && pointer == 0) {
        pointer = wire::get<wire::AtomicEth>(frame.data(), parsed).swap_or_add;
      }
    }
    Box box(BoxConfig{});
    CloverConfig config;
    config.layout = authors_layout(address, pointer);
    config.hot_from = 1;
    box.set_rule(std::make_unique<CloverRule>(config, box.connections(), box.counters()));
    Collector out;
    Time now;
    for (const auto& original : frames) {
      auto frame = original;
      Packet packet;
      packet.frame = {frame.data(), static_cast<std::uint32_t>(frame.size())};
      now = now + Duration::microseconds(1);
      box.process(now, {&packet, 1}, out);
      EXPECT_EQ(packet.action, Action::kForward) << name << ": " << wire::describe(original);
      EXPECT_EQ(frame, original) << name << ": " << wire::describe(original);
    }
    EXPECT_TRUE(out.frames.empty());
    EXPECT_EQ(box.counters().of(Verdict::kMalformed), 0u);
    if (name.find("100") != std::string::npos) {
      // It did follow what went on: every CAS after the first of its key was seen to be at the tail.
      EXPECT_GT(box.counters().of(Verdict::kCasAtTail), 5u) << name;
      EXPECT_GT(box.counters().of(Verdict::kReadAtTail), 5u) << name;
    }
  }
  if (!any) GTEST_SKIP() << "no reference data";
}

}  // namespace
}  // namespace sluice::golden
