// What does not compose: Clover needs a compare-and-swap, 1RMA has none.
#include <gtest/gtest.h>

#include "clover/client.h"
#include "onerma/test_world.h"

namespace sluice {
namespace {

// Nobody may be asked: the client must refuse before.
class NoChannel final : public remote::MessageChannel {
 public:
  using MessageChannel::MessageChannel;
  void submit(remote::Call&) override { ADD_FAILURE() << "the metadata server was asked"; }
};

TEST(OnermaClover, CloverRefusesAMemoryWithoutAtomicsAndSaysWhy) {
  onerma::World world;
  onerma::World::Host& host = world.add_host();
  const onerma::Algorithm1 policy;
  onerma::RemoteOnerma memory(world.scheduler, host.node->initiator(), policy, {});
  ASSERT_FALSE(memory.capabilities().atomics);
  NoChannel channel(world.scheduler);
  clover::Client client(memory, channel, {}, Rng(1));
  clover::Outcome outcome = clover::Outcome::kOk;
  const auto join = [&]() -> remote::Task<void> { outcome = co_await client.join(); };
  world.scheduler.spawn(join());
  world.scheduler.run(world.now);
  EXPECT_EQ(outcome, clover::Outcome::kNoAtomics);
  EXPECT_EQ(clover::to_string(outcome), "this transport has no atomics, which Clover needs");
}

}  // namespace
}  // namespace sluice
