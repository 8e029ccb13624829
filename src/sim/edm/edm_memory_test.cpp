// RemoteMemory over EDM: the links against the block-accurate testbed, operations against a model of memory, order, refusals, nodes that die.
#include "sim/edm/edm_memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/effort_test.h"
#include "base/rng.h"

namespace sluice::sim {
namespace {

using remote::Operation;
using remote::RemoteAddress;
using remote::Status;

EdmTestbedHardware hardware(const char* file = "edm_testbed") {
  return load_edm_testbed_hardware(fmt::format("{}/experiments/hardware/{}.toml", SLUICE_SOURCE_DIR, file)).value();
}

// ---- The links, against the testbed.

class StackHost final : public EdmHost {
 public:
  StackHost(EdmFabric& fabric, MutableBytes memory)
      : fabric_(fabric),
        port_(fabric.attach(*this)),
        stack({.port = port_, .cycle = fabric.hardware().cycle, .block = fabric.hardware().block()}, memory) {}

  void deliver(Time now, Time first_block, const edm::Unit& unit) override {
    stack.take(first_block, now, unit);
    wake(now);
  }
  void wake(Time now) {
    stack.on_deadline(now);
    for (edm::Unit unit; stack.poll(now, unit);) fabric_.send(now, port_, unit);
    if (const Time next = stack.next_deadline(); next != Time::never()) fabric_.loop().schedule_no_later(event_, next);
  }

 private:
  EdmFabric& fabric_;
  edm::PortId port_;
  MemberEvent<StackHost, &StackHost::wake> event_{*this};

 public:
  edm::HostStack stack;
};

struct Asked {
  Time at{};
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  bool reads = false;
  std::uint32_t bytes = 0;
};

// When each read's last block was there; and each write's, by its node and in order.
struct Times {
  std::vector<std::int64_t> reads;
  std::vector<std::int64_t> writes;
};
std::int64_t ps(Time t) { return t.since_start().picoseconds(); }

void ask(edm::HostStack& stack, const Asked& one, std::size_t number) {
  const edm::PortId to(static_cast<std::uint16_t>(one.to));
  ASSERT_TRUE(one.reads ? stack.read(one.at, to, 128, one.bytes, number)
                        : stack.write(one.at, to, 64, std::vector<std::uint8_t>(one.bytes)));
}
void collect(edm::HostStack& stack, Times& times) {
  for (edm::Done done; stack.poll_done(done);) times.reads.at(done.tag) = ps(done.last_block);
  for (const auto& written : stack.written()) times.writes.push_back(ps(written.last_block));
}

constexpr std::size_t kBytes = 16'384;

Times on_testbed(std::uint32_t hosts, const std::vector<Asked>& all) {
  EdmTestbed bed(hardware(), hosts, kBytes, {});
  for (std::size_t i = 0; i < all.size(); ++i) {
    bed.run(all[i].at);
    ask(bed.host(all[i].from), all[i], i);
    bed.wake_at(all[i].from, all[i].at);
  }
  bed.run(Time::at(Duration::microseconds(90)));
  EXPECT_EQ(bed.switch_stack().refused(), 0u);
  Times times{std::vector<std::int64_t>(all.size()), {}};
  for (std::uint32_t i = 0; i < hosts; ++i) collect(bed.host(i), times);
  return times;
}

Times on_fabric(std::uint32_t hosts, const std::vector<Asked>& all) {
  EventLoop loop;
  Trace trace;
  // As the testbed's switch.
  EdmFabric fabric(loop, trace, hardware(), {.ports = hosts, .active_per_pair = 3, .gap_blocks = 0, .patience = {}});
  std::vector<std::uint8_t> memory(kBytes);
  std::vector<std::unique_ptr<StackHost>> nodes;
  for (std::uint32_t i = 0; i < hosts; ++i) nodes.push_back(std::make_unique<StackHost>(fabric, memory));
  for (std::size_t i = 0; i < all.size(); ++i) {
    loop.run_until(all[i].at);
    ask(nodes[all[i].from]->stack, all[i], i);
    nodes[all[i].from]->wake(all[i].at);
  }
  loop.run_until(Time::at(Duration::microseconds(90)));
  Times times{std::vector<std::int64_t>(all.size()), {}};
  for (const auto& node : nodes) collect(node->stack, times);
  return times;
}

TEST(EdmFabric, TakesToThePicosecondWhatTheTestbedTakesForOneMessageAtATime) {
  for (const bool reads : {false, true}) {
    for (const std::uint32_t bytes : {1u, 8u, 64u, 100u, 256u, 257u, 1024u, 4096u}) {
      const std::vector<Asked> one{{Time{}, 0, 1, reads, bytes}};
      const Times bed = on_testbed(2, one);
      const Times fabric = on_fabric(2, one);
      EXPECT_EQ(bed.reads, fabric.reads) << bytes;
      EXPECT_EQ(bed.writes, fabric.writes) << bytes;
    }
  }
}

TEST(EdmFabric, AgreesWithTheTestbedToThePicosecondUnderLoad) {
  constexpr std::uint32_t kHosts = 6;
  for (std::uint64_t seed = 1; seed <= usual_effort(60); ++seed) {
    Rng rng(seed);
    std::vector<Asked> all;
    Time at;
    // One message of a pair at a time, so that X, which counts differently here and there, does not matter.
    for (std::uint32_t turn = 1; turn < kHosts; ++turn) {
      for (std::uint32_t from = 0; from < kHosts; ++from) {
        at = at + Duration::picoseconds(static_cast<std::int64_t>(rng.below(60'000)));
        const bool reads = rng.below(2) == 0;
        all.push_back({at, from, (from + turn) % kHosts, reads, 1 + static_cast<std::uint32_t>(rng.below(2'000))});
      }
    }
    const Times bed = on_testbed(kHosts, all);
    const Times fabric = on_fabric(kHosts, all);
    ASSERT_EQ(bed.writes, fabric.writes) << seed;
    ASSERT_EQ(bed.reads, fabric.reads) << seed;
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(bed.reads[i] != 0, all[i].reads) << seed << ": " << i;
  }
}

// ---- Operations.

constexpr std::uint64_t kBase = 0x1000'0000;
constexpr remote::RegionKey kKey{77};

// Compute nodes, then memory nodes, named 1, 2, …
struct World {
  explicit World(std::uint32_t compute_nodes, std::uint32_t memory_nodes, const EdmPortSettings& settings = {})
      : fabric(loop, trace, hardware(), {.ports = compute_nodes + memory_nodes}) {
    for (std::uint32_t i = 0; i < compute_nodes; ++i) {
      compute.push_back(std::make_unique<EdmPort>(fabric, regions, settings));
      schedulers.push_back(std::make_unique<remote::Scheduler>());
      memories.push_back(std::make_unique<EdmMemory>(*schedulers[i], loop, *compute[i]));
    }
    for (std::uint32_t i = 0; i < memory_nodes; ++i) {
      auto& bytes = bytes_of.emplace_back(kBytes);
      nodes.push_back(std::make_unique<EdmPort>(fabric, regions, settings, bytes));
      regions.by_node[remote::NodeId(i + 1)] = {nodes[i]->port(), kKey, kBase, kBytes};
    }
  }
  ~World() {
    for (auto& scheduler : schedulers) scheduler.reset();  // coroutines go before what they use
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  static RemoteAddress at(std::uint64_t offset, std::uint32_t node = 1) {
    return {remote::NodeId(node), kKey, kBase + offset};
  }
  // Until all that was submitted has ended.
  void finish() {
    loop.run_until(loop.now() + Duration::milliseconds(100),
                   [&] { return std::ranges::all_of(compute, [](const auto& port) { return port->open() == 0; }); });
    for (const auto& port : compute) EXPECT_EQ(port->open(), 0u);
  }

  EventLoop loop;
  Trace trace;
  EdmRegions regions;
  EdmFabric fabric;
  std::deque<std::vector<std::uint8_t>> bytes_of;
  std::vector<std::unique_ptr<EdmPort>> compute;
  std::vector<std::unique_ptr<EdmPort>> nodes;
  std::vector<std::unique_ptr<remote::Scheduler>> schedulers;
  std::vector<std::unique_ptr<EdmMemory>> memories;
};

// An operation, and how it ended.
struct Tried {
  Operation operation;
  std::vector<std::uint8_t> bytes;
  std::uint32_t times = 0;
  Time ended{};
};
// Submits now.
void submit(World& world, std::size_t host, Tried& tried) {
  tried.operation.on_complete = [](Operation& operation) { ++static_cast<Tried*>(operation.context)->times; };
  tried.operation.context = &tried;
  world.memories[host]->submit(tried.operation);
}
Tried reading(RemoteAddress from, std::size_t bytes) {
  Tried tried{{}, std::vector<std::uint8_t>(bytes)};
  tried.operation = remote::read_operation(from, tried.bytes);
  return tried;
}
Tried writing(RemoteAddress to, std::vector<std::uint8_t> bytes) {
  Tried tried{{}, std::move(bytes)};
  tried.operation = remote::write_operation(to, tried.bytes);
  return tried;
}

TEST(EdmMemory, ReadsInTable1sTimeAndWritesInThatOfAWriteAndOfAReadBehindIt) {
  World world(1, 1);
  Tried read = reading(World::at(128), 64);
  submit(world, 0, read);
  world.finish();
  EXPECT_EQ(read.times, 1u);
  EXPECT_EQ(ps(world.loop.now()), 322'560);  // 299.52 ns, and eight blocks of data and /MT/ behind the first
  const Time from = world.loop.now();
  Tried write = writing(World::at(128), std::vector<std::uint8_t>(64, 9));
  submit(world, 0, write);
  world.finish();
  EXPECT_EQ(world.compute[0]->confirmations(), 1u);
  EXPECT_EQ(world.bytes_of[0][128 + 63], 9);
  EXPECT_EQ((world.loop.now() - from).picoseconds(), 492'800);
}

// Each host has a part of each node to itself, and pipelines what it does there; words that all add to.
TEST(EdmMemory, IsWhatAModelOfItSaysOverSeeds) {
  constexpr std::uint32_t kHosts = 4, kNodes = 2;
  constexpr std::uint64_t kPart = 2'048;
  for (std::uint64_t seed = 1; seed <= usual_effort(300); ++seed) {
    World world(kHosts, kNodes);
    Rng rng(seed);
    std::vector<std::vector<std::uint8_t>> model(kNodes, std::vector<std::uint8_t>(kBytes));
    std::deque<Tried> all;
    std::vector<std::pair<Tried*, std::vector<std::uint8_t>>> reads;
    std::vector<std::pair<Tried*, std::uint64_t>> atomics;
    std::uint64_t sums[kNodes] = {};
    for (int i = 0; i < 120; ++i) {
      world.loop.run_until(world.loop.now() + Duration::nanoseconds(static_cast<std::int64_t>(rng.below(200))));
      const std::size_t host = rng.below(kHosts);
      const std::size_t node = rng.below(kNodes);
      const std::uint64_t part = kPart * (host + 1);
      std::vector<std::uint8_t>& bytes = model[node];
      const auto address = [&](std::uint64_t offset) {
        return World::at(offset, static_cast<std::uint32_t>(node) + 1);
      };
      switch (rng.below(4)) {
        case 0: {
          const std::uint64_t length = 1 + rng.below(600), offset = part + rng.below(kPart - length);
          all.push_back(reading(address(offset), length));
          submit(world, host, all.back());
          const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(offset);
          reads.push_back({&all.back(), {begin, begin + static_cast<std::ptrdiff_t>(length)}});
          // What follows a read to the same bytes must await it (remote_memory.h).
          if (rng.below(2) == 0)
            world.finish();
          else
            world.loop.run_until(world.loop.now() + Duration::microseconds(20), [&] { return all.back().times != 0; });
          break;
        }
        case 1: {
          std::vector<std::uint8_t> data(1 + rng.below(600));
          for (std::uint8_t& byte : data) byte = static_cast<std::uint8_t>(rng.below(256));
          const std::uint64_t offset = part + rng.below(kPart - data.size());
          std::ranges::copy(data, bytes.begin() + static_cast<std::ptrdiff_t>(offset));
          all.push_back(writing(address(offset), data));
          submit(world, host, all.back());
          break;
        }
        case 2: {
          // Right or wrong about what is there.
          const std::uint64_t offset = part + 8 * rng.below(kPart / 8);
          const auto before = load_le<std::uint64_t>(bytes.data() + offset);
          const std::uint64_t compare = rng.below(2) == 0 ? before : before + 1;
          const std::uint64_t swap = rng.next();
          if (compare == before) store_le(bytes.data() + offset, swap);
          all.push_back({remote::swap_operation(address(offset), compare, swap), {}});
          submit(world, host, all.back());
          atomics.push_back({&all.back(), before});
          break;
        }
        default: {
          const std::uint64_t add = rng.below(1'000);
          sums[node] += add;
          all.push_back({remote::add_operation(address(8), add), {}});
          submit(world, host, all.back());
          break;
        }
      }
    }
    world.finish();
    for (const Tried& tried : all) {
      ASSERT_EQ(tried.times, 1u) << seed;
      ASSERT_EQ(tried.operation.status, Status::kOk) << seed;
    }
    for (const auto& [tried, before] : atomics) ASSERT_EQ(tried->operation.prior, before) << seed;
    for (const auto& [tried, bytes] : reads) ASSERT_EQ(tried->bytes, bytes) << seed;
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      store_le(model[node].data() + 8, sums[node]);
      ASSERT_EQ(world.bytes_of[node], model[node]) << seed;
    }
    ASSERT_EQ(world.fabric.switch_stack().refused(), 0u) << seed;
  }
}

TEST(EdmMemory, ALineThatIsReadBehindAWriteHasWhatWasWrittenWhateverElseIsUnderWay) {
  for (std::uint64_t seed = 1; seed <= usual_effort(100); ++seed) {
    World world(6, 1);
    Rng rng(seed);
    std::deque<Tried> others;
    std::deque<Tried> writes, reads;
    for (int i = 0; i < 40; ++i) {
      for (std::size_t host = 1; host < 6; ++host) {
        others.push_back(writing(World::at(8'192), std::vector<std::uint8_t>(1 + rng.below(1'000))));
        submit(world, host, others.back());
      }
      writes.push_back(writing(World::at(64), std::vector<std::uint8_t>(64, static_cast<std::uint8_t>(i + 1))));
      reads.push_back(reading(World::at(64), 64));
      submit(world, 0, writes.back());
      submit(world, 0, reads.back());
      world.loop.run_until(world.loop.now() + Duration::microseconds(20), [&] { return reads.back().times != 0; });
      ASSERT_EQ(reads.back().bytes, writes.back().bytes) << seed;
      ASSERT_EQ(writes.back().times, 1u) << "an answer to what came later says so; " << seed;
    }
    world.finish();
  }
}

TEST(EdmMemory, GrantedDataHardlyWaitInTheSwitchWhenManyReadOneNode) {
  EdmPortSettings settings;
  settings.dram = hardware().dram;
  World world(8, 1, settings);
  std::deque<Tried> all;
  for (int i = 0; i < 50; ++i) {
    for (std::size_t host = 0; host < 8; ++host) {
      all.push_back(reading(World::at(0), 1 + static_cast<std::size_t>(i) * 37 % 1'500));
      submit(world, host, all.back());
      all.push_back({remote::add_operation(World::at(0), 1), {}});
      submit(world, host, all.back());
    }
  }
  world.finish();
  for (const Tried& tried : all) ASSERT_EQ(tried.operation.status, Status::kOk);
  // Grants and requests displace chunks; no chunk another.
  EXPECT_LE(world.fabric.most_waited(), hardware().block() * 16);
}

TEST(EdmMemory, ADeadNodeEndsAsUnknownWhenTheReadTimerEndsAndOthersGoOn) {
  EdmPortSettings settings;
  settings.read_timer = Duration::microseconds(100);
  World world(2, 2, settings);
  world.nodes[0]->kill();
  std::deque<Tried> dead, alive;
  for (int i = 0; i < 10; ++i) {
    for (std::size_t host = 0; host < 2; ++host) {
      dead.push_back(i % 2 == 0 ? reading(World::at(0, 1), 100) : writing(World::at(0, 1), {1, 2, 3}));
      submit(world, host, dead.back());
      dead.push_back({remote::add_operation(World::at(0, 1), 1), {}});
      submit(world, host, dead.back());
      alive.push_back(reading(World::at(0, 2), 100));
      submit(world, host, alive.back());
    }
  }
  world.loop.run_until(Time::at(Duration::microseconds(50)));
  for (const Tried& tried : alive) EXPECT_EQ(tried.times, 1u);
  world.finish();
  for (const Tried& tried : alive) EXPECT_EQ(tried.operation.status, Status::kOk);
  for (const Tried& tried : dead) {
    EXPECT_EQ(tried.times, 1u);
    EXPECT_EQ(tried.operation.status, Status::kUnknown);
  }
}

TEST(EdmMemory, RefusesWhatItsCapabilitiesAndRegionsDoNotAllow) {
  World world(1, 1);
  const auto status_of = [&](Tried tried) {
    submit(world, 0, tried);
    world.finish();
    EXPECT_EQ(tried.times, 1u);
    return tried.operation.status;
  };
  const RemoteAddress other_key{remote::NodeId(1), remote::RegionKey(78), kBase};
  const RemoteAddress before{remote::NodeId(1), kKey, kBase - 1};
  EXPECT_EQ(status_of(reading(World::at(kBytes - 8), 8)), Status::kOk);
  EXPECT_EQ(status_of(reading(World::at(kBytes - 8), 9)), Status::kAccessDenied);
  EXPECT_EQ(status_of(reading(before, 8)), Status::kAccessDenied);
  EXPECT_EQ(status_of(reading(other_key, 8)), Status::kAccessDenied);
  EXPECT_EQ(status_of(reading(World::at(0, 9), 8)), Status::kNodeUnknown);
  EXPECT_EQ(status_of(reading(World::at(0), EdmPort::kMaxLength + 1)), Status::kTooLong);
  EXPECT_EQ(status_of(reading(World::at(0), 0)), Status::kOk);
  EXPECT_EQ(status_of({remote::add_operation(World::at(4), 1), {}}), Status::kMisaligned);
  EXPECT_EQ(status_of({remote::add_operation(World::at(kBytes), 1), {}}), Status::kAccessDenied);
  EXPECT_EQ(world.bytes_of[0], std::vector<std::uint8_t>(kBytes));
}

}  // namespace
}  // namespace sluice::sim
