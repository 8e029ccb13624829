// Clover through the box, on real packets in virtual time: losses on every side, clients that die, boxes that are lost. What was
// acknowledged is there at the end, and what anybody saw is linearizable per key.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/check.h"
#include "base/effort_test.h"
#include "clover/client.h"
#include "clover/metadata.h"
#include "remote/local.h"
#include "tests/scenario/swordbox_star.h"
#include "tests/scenario/ticket_book.h"
#include "wire/text.h"
#include "workload/linearizability.h"

namespace sluice::scenario {
namespace {

using remote::Task;
using workload::EventKind;
using workload::History;
using workload::Key;
using workload::Outcome;

constexpr std::size_t kValueBytes = 40;
constexpr std::uint64_t kWordBytes = 4096;  // at the end of the memory, no store's
constexpr std::uint32_t kWords = 3;         // of these so many, a cache line each, are used

struct Scenario {
  std::uint64_t seed = 1;
  std::uint32_t clients = 8;
  std::uint32_t operations = 60;  // a client
  std::uint64_t keys = 4;
  std::uint32_t writes_per_thousand = 500;
  std::uint32_t erases_per_thousand = 0;
  std::uint32_t tickets_per_thousand =
      0;  // of the operations: a FAA on a word beside the store, which the box shares connections for
  std::uint32_t kills = 0;
  std::uint32_t box_restarts = 0;
  std::uint32_t node_restarts = 0;
  std::uint64_t node_dies_after = 0;  // so many operations, for good
  std::uint32_t in_flight = 2;        // coroutines a client
  StarOptions star{};
};

Outcome translate(clover::Outcome outcome) {
  switch (outcome) {
    case clover::Outcome::kOk: return Outcome::kOk;
    case clover::Outcome::kNotFound: return Outcome::kNotFound;
    case clover::Outcome::kExists: return Outcome::kExists;
    case clover::Outcome::kUnknown: return Outcome::kUnknown;
    default: return Outcome::kUnavailable;
  }
}

class CloverThroughBox {
 public:
  explicit CloverThroughBox(const Scenario& s)
      : scenario_(s),
        rng_(Rng(s.seed).fork("scenario")),
        fabric_({.seed = s.seed}),
        star_(scheduler_, star_options(s)) {
    set_check_context(fmt::format("seed {}", s.seed));
    const clover::Region region{star_.base(), star_.memory().size() - kWordBytes};
    auto volumes = clover::spread({&region, 1}, 1);
    EXPECT_TRUE(volumes.has_value());
    server_ = std::make_unique<clover::MetadataServer>(clover::ServerConfig{
        .volumes = *volumes, .value_bytes = kValueBytes, .cursor_lifetime = kLifetime, .max_flight = kFlight});
    for (std::uint32_t i = 0; i < s.clients + 1; ++i) {
      Member& m = *members_.emplace_back(std::make_unique<Member>());
      m.channel = std::make_unique<remote::LocalChannel>(scheduler_, fabric_, *server_);
      m.client = std::make_unique<clover::Client>(*star_.client(i).memory, *m.channel, client_config(),
                                                  Rng(s.seed).fork("client").fork(i));
    }
  }

  void run() {
    for (std::uint32_t i = 0; i < members_.size(); ++i) join(i);
    if (testing::Test::HasFatalFailure()) return;
    load();
    for (std::uint32_t i = 0; i < scenario_.clients; ++i) {
      for (std::uint32_t k = 0; k < scenario_.in_flight; ++k) {
        ++running_;
        scheduler_.spawn(work(i, k));
      }
    }
    const std::uint64_t all = std::uint64_t{scenario_.clients} * scenario_.operations;
    std::vector<std::uint64_t> kills;
    std::vector<std::uint64_t> restarts;
    std::vector<std::uint64_t> node_restarts;
    for (std::uint32_t i = 0; i < scenario_.kills; ++i) kills.push_back(rng_.below(all));
    for (std::uint32_t i = 0; i < scenario_.box_restarts; ++i) restarts.push_back(rng_.below(all));
    for (std::uint32_t i = 0; i < scenario_.node_restarts; ++i) node_restarts.push_back(rng_.below(all));
    std::ranges::sort(node_restarts, std::greater<>());
    std::ranges::sort(kills, std::greater<>());
    std::ranges::sort(restarts, std::greater<>());
    run_until([&] {
      if (!kills.empty() && done_ >= kills.back()) {
        kills.pop_back();
        kill(static_cast<std::uint32_t>(rng_.below(scenario_.clients)));
      }
      if (!restarts.empty() && done_ >= restarts.back()) {
        restarts.pop_back();
        star_.restart_box(kFence);
      }
      if (!node_restarts.empty() && done_ >= node_restarts.back()) {
        node_restarts.pop_back();
        star_.restart_node(Duration::microseconds(static_cast<std::int64_t>(rng_.below(5000))));
      }
      if (scenario_.node_dies_after != 0 && done_ >= scenario_.node_dies_after && !node_is_dead_) {
        node_is_dead_ = true;
        star_.restart_node(Duration::seconds(1'000'000));
      }
      return running_ == 0;
    });
    if (testing::Test::HasFatalFailure()) return;
    look_at_everything();
    judge();
  }

  // One client writes a key again and again, so that its newest versions are always such that READs of them are led on; another dies with slots in hand.
  // How many of these nobody has been able to use after so long.
  std::uint64_t orphans_left_while_a_key_is_written(Duration time) {
    for (std::uint32_t i = 0; i < members_.size(); ++i) join(i);
    load();
    bool stop = false;
    bool ended = false;
    scheduler_.spawn(keep_writing(0, stop, ended));
    bool written = false;
    scheduler_.spawn(write_once(1, written));
    run_until([&] { return written; });
    kill(1);
    run_until([&] { return server_->counters().expired_clients == 1; });
    EXPECT_GT(orphans(), 0u);
    const Time end = star_.now + time;
    run_until([&] { return star_.now >= end; });
    const std::uint64_t left = orphans();
    stop = true;
    run_until([&] { return ended; });
    return left;
  }

  Star& star() { return star_; }
  std::uint64_t swaps() const { return sum(&clover::ClientCounters::swaps); }
  std::uint64_t swaps_lost() const { return sum(&clover::ClientCounters::swaps_lost); }
  std::uint64_t walks() const { return sum(&clover::ClientCounters::walks); }
  std::uint64_t sum(std::uint64_t clover::ClientCounters::*field) const {
    std::uint64_t n = 0;
    for (const auto& m : members_) n += m->client->counters().*field;
    return n;
  }
  std::uint64_t with(Outcome outcome) const {
    return static_cast<std::uint64_t>(
        std::ranges::count_if(history_.events(), [=](auto& e) { return e.outcome == outcome; }));
  }
  std::uint64_t replaced() const { return star_.count(swordbox::Verdict::kAtomicReplaced); }
  std::uint64_t steered() const { return star_.count(swordbox::Verdict::kCasSteered); }
  void show() {
    using swordbox::Counters;
    fmt::print(
        "seed {}: {} ops in {} us: ok {}, unknown {}, unavailable {}; swaps {} lost {}, walks {}, foreign {}; "
        "reconnects {}\n",
        scenario_.seed, history_.events().size(), star_.now.since_start().microseconds(), with(Outcome::kOk),
        with(Outcome::kUnknown), with(Outcome::kUnavailable), swaps(), swaps_lost(), walks(),
        sum(&clover::ClientCounters::foreign), star_.reconnects());
    for (std::size_t i = 0; i < swordbox::kVerdicts; ++i) {
      const auto n = star_.count(static_cast<swordbox::Verdict>(i));
      if (n != 0) fmt::print("  {} {}", swordbox::kVerdictTable[i].name, n);
    }
#define X(name, meaning) \
  if (star_.event(&Counters::name) != 0) fmt::print("  {} {}", #name, star_.event(&Counters::name));
    SLUICE_BOX_EVENTS(X)
#undef X
    fmt::print("\n");
  }

 private:
  static constexpr Duration kLifetime = Duration::milliseconds(30);
  static constexpr Duration kFlight = Duration::milliseconds(30);
  static constexpr Duration kFence = Duration::milliseconds(400);
  struct Member {
    std::unique_ptr<remote::LocalChannel> channel;
    std::unique_ptr<clover::Client> client;
    bool dead = false;
  };

  static StarOptions star_options(const Scenario& s) {
    StarOptions o = s.star;
    o.seed = s.seed;
    o.clients = s.clients + 1;  // the last one is the witness
    o.rule.steer_reads_for = Duration::milliseconds(10);
    if (s.tickets_per_thousand != 0) {
      o.words.emplace();
      o.words->repair_after = Duration::microseconds(100);
      o.words->give_up_after = Duration::milliseconds(3);
      o.words->flight = Duration::milliseconds(20);
      o.words->ring = 64;
      o.words_at = o.memory_bytes - kWordBytes;
      o.word_bytes = kWordBytes;
    }
    return o;
  }
  static clover::ClientConfig client_config() {
    return {.cursors = 64,
            .timeout = Duration::milliseconds(300),
            .space_timeout = Duration::milliseconds(300),
            .backoff_first = Duration::microseconds(5),
            .backoff_most = Duration::microseconds(200),
            .suspect_after = Duration::seconds(100),
            .slots_wanted = 32,
            .links_per_report = 8};
  }

  void step() {
    scheduler_.run(star_.now);
    bool moved = star_.round();
    for (int i = 0; i < 8; ++i) moved |= fabric_.pump(star_.now);
    scheduler_.run(star_.now);
    const Time next = std::min(star_.next_deadline(), scheduler_.next_deadline());
    star_.now = moved || next == Time::never() ? star_.now + Star::kRound
                                               : std::max(star_.now + Duration::picoseconds(1), next);
  }
  template <class Until>
  void run_until(Until until, std::uint64_t limit = 20'000'000) {
    for (std::uint64_t i = 0; !until(); ++i) {
      if (i == limit) {
        show();
        FAIL() << "no end in sight, seed " << scenario_.seed;
      }
      step();
    }
  }

  void join(std::uint32_t i) {
    clover::Outcome joined = clover::Outcome::kUnknown;
    scheduler_.spawn(join(*members_[i]->client, joined));
    run_until([&] { return joined != clover::Outcome::kUnknown; });
    ASSERT_EQ(joined, clover::Outcome::kOk);
    scheduler_.spawn(members_[i]->client->maintain());
  }
  static Task<void> join(clover::Client& client, clover::Outcome& joined) { joined = co_await client.join(); }

  void load() {
    bool done = false;
    scheduler_.spawn(load_all(done));
    run_until([&] { return done; });
  }
  Task<void> load_all(bool& done) {
    for (Key key = 0; key < scenario_.keys; ++key) co_await put(0, key);
    done = true;
  }

  Task<void> put(std::uint32_t who, Key key) {
    std::uint8_t value[kValueBytes];
    const auto id = workload::value_id(who, ++written_);
    workload::fill_value(key, id, value);
    const auto event = history_.begin(who, EventKind::kPut, key, id);
    const auto outcome = co_await members_[who]->client->put(key, value);
    history_.end(event, translate(outcome));
  }
  Task<void> get(std::uint32_t who, Key key) {
    std::uint8_t value[kValueBytes];
    const auto event = history_.begin(who, EventKind::kGet, key);
    const auto result = co_await members_[who]->client->get(key, value);
    workload::ValueId read = 0;
    if (result.outcome == clover::Outcome::kOk) {
      const auto id = workload::verify_value(key, {value, result.length});
      EXPECT_TRUE(id.has_value()) << "seed " << scenario_.seed << ": a value that nobody wrote, key " << key;
      if (id) read = *id;
    }
    history_.end(event, translate(result.outcome), read);
  }
  Task<void> erase(std::uint32_t who, Key key) {
    const auto event = history_.begin(who, EventKind::kErase, key);
    history_.end(event, translate(co_await members_[who]->client->erase(key)));
  }
  Task<void> write_once(std::uint32_t who, bool& done) {
    co_await put(who, 0);
    done = true;
  }
  Task<void> keep_writing(std::uint32_t who, const bool& stop, bool& ended) {
    while (!stop) {
      co_await put(who, 0);
      co_await scheduler_.sleep_for(Duration::microseconds(5));
    }
    ended = true;
  }
  std::uint64_t orphans() const { return server_->slots().count(clover::SlotState::kOrphan); }
  Task<void> draw_ticket(std::uint32_t who, std::uint32_t word) {
    const std::size_t draw = tickets_.begin(word, star_.now);
    const remote::RemoteAddress at = star_.base() + (star_.memory().size() - kWordBytes + std::uint64_t{word} * 64);
    const auto result = co_await star_.client(who).memory->fetch_and_add(at, 1);
    if (result.status == remote::Status::kOk && !members_[who]->dead) tickets_.end(draw, star_.now, result.prior);
  }
  Task<void> work(std::uint32_t who, std::uint32_t lane) {
    Rng rng = Rng(scenario_.seed).fork("work").fork(who * 100 + lane);
    for (std::uint32_t i = 0; i < scenario_.operations / scenario_.in_flight && !members_[who]->dead; ++i) {
      const Key key = rng.below(scenario_.keys);
      const auto dice = rng.below(1000);
      if (rng.below(1000) < scenario_.tickets_per_thousand) {
        co_await draw_ticket(who, static_cast<std::uint32_t>(rng.below(kWords)));
        ++done_;
        continue;
      }
      if (dice < scenario_.erases_per_thousand) {
        co_await erase(who, key);
      } else if (dice < scenario_.erases_per_thousand + scenario_.writes_per_thousand) {
        co_await put(who, key);
      } else {
        co_await get(who, key);
      }
      ++done_;
    }
    if (members_[who]->dead) co_return;
    ended_[who * 100 + lane] = true;
    --running_;
  }
  void kill(std::uint32_t who) {
    if (members_[who]->dead) return;
    members_[who]->dead = true;
    members_[who]->channel->kill();
    star_.kill(who);
    // Its coroutines never go on.
    running_ -= unfinished(who);
  }
  std::uint32_t unfinished(std::uint32_t who) const {
    std::uint32_t lanes = 0;
    for (std::uint32_t k = 0; k < scenario_.in_flight; ++k) lanes += ended_[who * 100 + k] ? 0u : 1u;
    return lanes;
  }

  // The box is taken away; a client that was idle all the time reads every key.
  void look_at_everything() {
    const Time settle = star_.now + Duration::milliseconds(scenario_.tickets_per_thousand == 0 ? 50 : 800);
    run_until([&] { return star_.now >= settle; });
    if (star_.box() != nullptr && scenario_.tickets_per_thousand != 0) {
      EXPECT_EQ(star_.box()->multiplexer()->open(), 0u) << "operations are never done, seed " << scenario_.seed;
    }
    if (node_is_dead_) return;  // there is nothing to be seen, and links to it stay open
    if (star_.box() != nullptr && scenario_.star.steer) {
      EXPECT_EQ(star_.rule().open_links(), 0u) << "a link was never brought about, seed " << scenario_.seed;
      EXPECT_EQ(star_.box()->held(), 0u) << "packets wait for ever, seed " << scenario_.seed;
    }
    star_.take_box_away();
    bool done = false;
    scheduler_.spawn(read_all(done));
    run_until([&] { return done; });
  }
  Task<void> read_all(bool& done) {
    for (Key key = 0; key < scenario_.keys; ++key) co_await get(scenario_.clients, key);
    done = true;
  }
  void judge() {
    const auto verdict = workload::check_linearizable(history_.events());
    EXPECT_TRUE(verdict.proven()) << "seed " << scenario_.seed << "\n" << verdict.explain();
    EXPECT_EQ(star_.event(&swordbox::Counters::chains_broken), 0u) << "seed " << scenario_.seed;
    const auto* const words =
        reinterpret_cast<const std::uint64_t*>(star_.memory().data() + star_.memory().size() - kWordBytes);
    for (std::uint32_t i = 0; i < kWordBytes / 8; ++i) {
      if (i % 8 == 0 && i / 8 < kWords) {
        tickets_.judge(i / 8, words[i], scenario_.seed);
      } else {
        EXPECT_EQ(words[i], 0u) << "seed " << scenario_.seed;
      }
    }
  }

  Scenario scenario_;
  Rng rng_;
  remote::Scheduler scheduler_;
  remote::LocalFabric fabric_;
  Star star_;
  std::unique_ptr<clover::MetadataServer> server_;
  std::vector<std::unique_ptr<Member>> members_;
  History history_;
  TicketBook tickets_;
  bool node_is_dead_ = false;
  std::uint64_t written_ = 0;
  std::uint64_t done_ = 0;
  std::uint32_t running_ = 0;
  std::vector<bool> ended_ = std::vector<bool>(100 * 300);
};

bool verbose() { return std::getenv("SLUICE_SHOW") != nullptr; }

void print_packet(Time now, const swordbox::Packet& packet) {
  fmt::print("{:.1f} us {}: {}\n", static_cast<double>(now.since_start().nanoseconds()) / 1000,
             swordbox::row(packet.verdict).name, wire::describe(packet.frame.bytes()));
}

void run_seeds(Scenario s, std::uint64_t few) {
  if (std::getenv("SLUICE_TRACE") != nullptr) s.star.trace = print_packet;
  for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(few); ++seed) {
    s.seed = seed;
    CloverThroughBox world(s);
    world.run();
    if (verbose()) world.show();
    if (s.tickets_per_thousand != 0) {
      EXPECT_GT(world.replaced(), 0u) << "seed " << seed;
      EXPECT_GT(world.steered(), 0u) << "seed " << seed;
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(SwordBoxClover, SteersNearlyEverySwapToItsTail) {
  Scenario s{.clients = 16, .operations = 200, .keys = 2, .writes_per_thousand = 1000};
  CloverThroughBox on(s);
  on.run();
  s.star.steer = false;
  CloverThroughBox off(s);
  off.run();
  if (verbose()) {
    on.show();
    off.show();
  }
  EXPECT_LT(on.swaps_lost() * 100, on.swaps());
  EXPECT_GT(off.swaps_lost() * 2, off.swaps());
}

TEST(SwordBoxClover, SlotsOfTheDeadComeBackWhileTheirKeyIsWritten) {
  CloverThroughBox world({.clients = 2, .keys = 1, .in_flight = 0});
  EXPECT_EQ(world.orphans_left_while_a_key_is_written(Duration::milliseconds(500)), 0u);
}

TEST(SwordBoxClover, IsLinearizableWithoutFaults) { run_seeds({}, 5); }
TEST(SwordBoxClover, IsLinearizableUnderLossOnBothSides) {
  Scenario s;
  s.star.client_rate = s.star.server_rate = 10'000;
  run_seeds(s, 10);
}
TEST(SwordBoxClover, IsLinearizableUnderHeavyLossOnBothSides) {
  Scenario s;
  s.star.client_rate = s.star.server_rate = 100'000;
  run_seeds(s, 10);
}
TEST(SwordBoxClover, IsLinearizableWithErasesUnderLoss) {
  Scenario s{.erases_per_thousand = 200};
  s.star.client_rate = s.star.server_rate = 20'000;
  run_seeds(s, 10);
}
TEST(SwordBoxClover, IsLinearizableInStrictOrderUnderLoss) {
  Scenario s;
  s.star.client_rate = s.star.server_rate = 20'000;
  s.star.rule.order = swordbox::Order::kStrict;
  run_seeds(s, 10);
}
// As in the kernel, where nothing can be held.
TEST(SwordBoxClover, IsLinearizableWhenNothingIsHeldUnderLoss) {
  Scenario s{.keys = 2, .erases_per_thousand = 100};
  s.star.client_rate = s.star.server_rate = 20'000;
  s.star.rule.order = swordbox::Order::kPassing;
  s.star.held_frames = 0;
  run_seeds(s, 10);
}
TEST(SwordBoxClover, LosesNothingWhenNothingIsHeldAndClientsDie) {
  Scenario s{.clients = 12, .kills = 4};
  s.star.client_rate = s.star.server_rate = 50'000;
  s.star.rule.order = swordbox::Order::kPassing;
  s.star.held_frames = 0;
  run_seeds(s, 10);
}
TEST(SwordBoxClover, InfersConnectionsUnderLoss) {
  Scenario s;
  s.star.client_rate = s.star.server_rate = 20'000;
  s.star.announce = false;
  run_seeds(s, 10);
}
TEST(SwordBoxClover, LosesNothingWhenClientsDie) {
  Scenario s{.clients = 12, .kills = 4};
  s.star.client_rate = s.star.server_rate = 50'000;
  run_seeds(s, 10);
}
TEST(SwordBoxClover, LosesNothingWhenBoxesAreLost) {
  Scenario s{.box_restarts = 2};
  s.star.client_rate = s.star.server_rate = 20'000;
  run_seeds(s, 10);
}
// Clients, box and memory node, each at random moments: 1 % and 10 % of all packets dropped, as many doubled, as many overtaken.
TEST(SwordBoxClover, LosesNothingWhoeverDiesUnderLoss) {
  Scenario s{.clients = 12, .kills = 3, .box_restarts = 2, .node_restarts = 2};
  s.star.client_rate = s.star.server_rate = 10'000;
  run_seeds(s, 10);
}
TEST(SwordBoxClover, LosesNothingWhoeverDiesUnderHeavyLoss) {
  Scenario s{.clients = 12, .kills = 3, .box_restarts = 2, .node_restarts = 2};
  s.star.client_rate = s.star.server_rate = 100'000;
  run_seeds(s, 10);
}
TEST(SwordBoxClover, PromisesNothingThatADeadMemoryNodeHasNotDone) {
  Scenario s{.operations = 30, .node_dies_after = 120};
  s.star.client_rate = s.star.server_rate = 20'000;
  run_seeds(s, 5);
}
// Steering and shared connections in one box, for the same clients on the same connections.
TEST(SwordBoxClover, StandsBesideSharedConnections) { run_seeds({.tickets_per_thousand = 400}, 5); }
TEST(SwordBoxClover, StandsBesideSharedConnectionsUnderLoss) {
  Scenario s{.tickets_per_thousand = 400};
  s.star.client_rate = s.star.server_rate = 10'000;
  run_seeds(s, 10);
}
TEST(SwordBoxClover, StandsBesideSharedConnectionsUnderHeavyLoss) {
  Scenario s{.tickets_per_thousand = 400};
  s.star.client_rate = s.star.server_rate = 100'000;
  run_seeds(s, 10);
}
TEST(SwordBoxClover, StandsBesideSharedConnectionsWhoeverDies) {
  Scenario s{.clients = 12, .tickets_per_thousand = 400, .kills = 3, .box_restarts = 2, .node_restarts = 2};
  s.star.client_rate = s.star.server_rate = 50'000;
  run_seeds(s, 10);
}
TEST(SwordBoxClover, LosesNothingWhenClientsDieAndBoxesAreLost) {
  Scenario s{.clients = 12, .kills = 3, .box_restarts = 2};
  s.star.client_rate = s.star.server_rate = 50'000;
  run_seeds(s, 10);
}

}  // namespace
}  // namespace sluice::scenario
