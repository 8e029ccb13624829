// A client that gets no turn, or whose port takes nothing, for longer than its lease lasts: what it had submitted by then must not come out afterwards, over
// slots that have become others' meanwhile. The real Clover client, server and RC; only messages go by hand.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clover/client.h"
#include "clover/metadata.h"
#include "rack/clients/clover_session.h"
#include "rc/remote_rc.h"
#include "rc/two_adapters.h"

namespace sluice::rack {
namespace {

using clover::Outcome;
using Bytes = std::vector<std::uint8_t>;

constexpr std::uint32_t kValue = 1000;
constexpr unsigned kKeys = 300;     // of each client
constexpr unsigned kTogether = 50;  // puts at once, but where more are meant
constexpr remote::NodeId kNode{3};

Bytes value_of(std::string_view who, unsigned key, unsigned round) {
  const std::string text = std::string(who) + std::to_string(key) + "/" + std::to_string(round);
  Bytes value(kValue);
  std::memcpy(value.data(), text.data(), text.size());
  return value;
}

class DirectChannel final : public remote::MessageChannel {
 public:
  DirectChannel(remote::Scheduler& scheduler, clover::MetadataServer& server, Time& now)
      : MessageChannel(scheduler), server_(server), now_(now) {}
  void submit(remote::Call& call) override {
    if (is_held_) return held_.push_back(&call);
    Bytes answer(remote::kMaxMessage);
    const std::size_t length = server_.handle(now_, call.request, answer);
    std::memcpy(call.response.data(), answer.data(), length);
    call.result = {remote::Status::kOk, length};
    call.on_complete(call);
  }
  void hold() { is_held_ = true; }
  void release() {
    is_held_ = false;
    for (remote::Call* const call : std::exchange(held_, {})) submit(*call);
  }

 private:
  clover::MetadataServer& server_;
  Time& now_;
  bool is_held_ = false;
  std::vector<remote::Call*> held_;
};

// A client's process and its way to the memory.
struct Party {
  Party(const rc::AdapterConfig& base, clover::MetadataServer& server, Time& clock, Duration timeout,
        std::uint64_t seed)
      : world(nullptr, base),
        pair(world.connect({.depth = 128, .timeout = 14})),
        memory(scheduler, *world.a.adapter, *world.a.completions,
               CloverSessionConfig(StoreSessionConfig{}).nodes.leaves_within),
        channel(scheduler, server, clock),
        now(clock) {
    memory.add_node(kNode, *pair.a);
    client = std::make_unique<clover::Client>(memory, channel, clover::ClientConfig{.timeout = timeout}, Rng(seed));
  }
  bool turn() {
    if (is_stopped) return false;
    bool moved = false;
    port::Frame burst[32];
    while (const std::size_t n = world.a.port->receive(now, burst)) {
      for (std::size_t i = 0; i < n; ++i) world.a.adapter->on_frame(now, burst[i]);
      moved = true;
    }
    if (world.a.adapter->next_deadline() <= now) {
      world.a.adapter->on_deadline(now);
      moved = true;
    }
    moved |= memory.poll(now) != 0;
    moved |= scheduler.run(now) != 0;
    while (!port_is_full && world.a.adapter->poll_transmit(now, *world.a.port)) moved = true;
    world.a.port->flush(now);
    return moved;
  }
  Time next() const {
    return is_stopped ? Time::never() : std::min(scheduler.next_deadline(), world.a.next_deadline());
  }

  rc::TwoAdapters world;
  rc::TwoAdapters::Pair pair;
  remote::Scheduler scheduler;
  rc::RemoteRc memory;
  DirectChannel channel;
  Time& now;
  std::unique_ptr<clover::Client> client;
  bool is_stopped = false;
  bool port_is_full = false;
};

class LateWork : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    rc::AdapterConfig base;
    base.regions = std::make_shared<memory::RegionTable>(Rng(5));
    // Both worlds' memory nodes have the same regions.
    const memory::Key key = base.regions
                                ->add({.pd = rc::TwoAdapters(nullptr, base).b.pd,
                                       .bytes = bytes_,
                                       .address = 0x100000,
                                       .access = memory::kAllAccess})
                                .value();
    const std::vector<clover::Region> home{{{kNode, remote::RegionKey(key.value), 0x100000}, bytes_.size()}};
    clover::ServerConfig config;
    config.volumes = clover::spread(home, 1).value();
    config.value_bytes = kValue;
    config.homes = {{home[0], 1}};
    server_ = std::make_unique<clover::MetadataServer>(config);
    a_ = std::make_unique<Party>(base, *server_, now_, Duration::seconds(4), 1);
    base.seed = 9;
    b_ = std::make_unique<Party>(base, *server_, now_, Duration::milliseconds(300), 2);
    for (Party* const party : {a_.get(), b_.get()}) {
      std::optional<Outcome> joined;
      party->scheduler.spawn(join(*party, joined));
      until([&] { return joined.has_value(); });
      ASSERT_EQ(joined, Outcome::kOk);
      party->scheduler.spawn(party->client->maintain());
    }
  }

  static remote::Task<void> join(Party& party, std::optional<Outcome>& outcome) {
    outcome = co_await party.client->join();
  }
  static remote::Task<void> put(Party& party, unsigned key, Bytes value, std::optional<Outcome>& outcome) {
    outcome = co_await party.client->put(key, value);
  }
  static remote::Task<void> get(Party& party, unsigned key, Bytes& into, std::optional<Outcome>& outcome) {
    const clover::GetResult result = co_await party.client->get(key, into);
    outcome = result.outcome;
  }

  void step() {
    a_->world.now = b_->world.now = now_;
    bool moved = a_->turn();
    moved |= b_->turn();
    moved |= a_->world.b.turn(now_);
    moved |= b_->world.b.turn(now_);
    const Time next = std::min({a_->next(), b_->next(), a_->world.b.next_deadline(), b_->world.b.next_deadline()});
    now_ = moved || next == Time::never() ? now_ + Duration::microseconds(5)
                                          : std::max(next, now_ + Duration::nanoseconds(20));
  }
  template <class Condition>
  void until(Condition condition) {
    for (int i = 0; !condition(); ++i) {
      ASSERT_LT(i, 50'000'000);
      step();
    }
  }
  void wait(Duration duration) {
    const Time end = now_ + duration;
    until([&] { return now_ >= end; });
  }
  void put_all(Party& party, std::string_view who, unsigned first, unsigned round) {
    for (unsigned from = first; from < first + kKeys; from += kTogether) {
      std::vector<std::optional<Outcome>> outcomes(kTogether);
      for (unsigned i = 0; i < kTogether; ++i)
        party.scheduler.spawn(put(party, from + i, value_of(who, from + i, round), outcomes[i]));
      until([&] { return std::ranges::all_of(outcomes, [](const auto& o) { return o.has_value(); }); });
      for (const auto& outcome : outcomes) ASSERT_EQ(outcome, Outcome::kOk);
    }
  }
  // Of B's values, how many read back as acknowledged.
  unsigned right(unsigned round) {
    unsigned count = 0;
    for (unsigned key = kKeys; key < 2 * kKeys; ++key) {
      Bytes value(kValue);
      std::optional<Outcome> outcome;
      b_->scheduler.spawn(get(*b_, key, value, outcome));
      until([&] { return outcome.has_value(); });
      count += outcome == Outcome::kOk && value == value_of("b", key, round);
    }
    return count;
  }

  Bytes bytes_ = Bytes(1400u << 10);
  Time now_;
  std::unique_ptr<clover::MetadataServer> server_;
  std::unique_ptr<Party> a_;
  std::unique_ptr<Party> b_;
};

TEST_P(LateWork, DoesNotComeOutOverWhatHasBecomeOthers) {
  put_all(*a_, "a", 0, 0);
  put_all(*b_, "b", kKeys, 0);
  wait(Duration::seconds(3));
  // More than the queue pair takes at once.
  std::vector<std::optional<Outcome>> outcomes(kKeys);
  for (unsigned key = 0; key < kKeys; ++key) a_->scheduler.spawn(put(*a_, key, value_of("a", key, 1), outcomes[key]));
  const bool only_its_port = GetParam();
  if (only_its_port) a_->port_is_full = true;
  step();
  a_->channel.hold();
  a_->is_stopped = !only_its_port;
  unsigned round = 0;
  for (const Time end = now_ + Duration::milliseconds(3500); now_ < end; wait(Duration::milliseconds(100)))
    put_all(*b_, "b", kKeys, ++round);
  EXPECT_EQ(server_->counters().expired_clients, 1u) << "its slots are others' by now";
  ASSERT_EQ(right(round), kKeys);
  a_->is_stopped = a_->port_is_full = false;
  a_->channel.release();
  wait(Duration::milliseconds(50));
  EXPECT_EQ(right(round), kKeys);
}

INSTANTIATE_TEST_SUITE_P(, LateWork, testing::Bool(), [](const auto& variant) {
  return variant.param ? std::string("ThoughOnlyThePortWasFull") : std::string("ThoughTheProgramWasStopped");
});

}  // namespace
}  // namespace sluice::rack
