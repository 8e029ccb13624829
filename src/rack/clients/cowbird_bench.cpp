#include "rack/clients/cowbird_bench.h"

#include <algorithm>
#include <atomic>

#include "base/bytes.h"
#include "nic/connector.h"
#include "nic/nic.h"
#include "ports/open.h"
#include "rack/cowbird/cowbird_spot.h"
#include "rack/endpoint/endpoint.h"
#include "rack/endpoint/memory_node.h"
#include "rack/endpoint/open_end.h"
#include "rack/endpoint/remote_nodes.h"
#include "remote/mapped.h"

namespace sluice::rack {
namespace {

constexpr std::uint16_t kPort = 7472;
constexpr std::size_t kBoard = 64;  // address, key
constexpr std::uint32_t kDepth = 1024;
constexpr remote::NodeId kPool{1};
constexpr std::uint64_t kNearAddress = 1u << 20;
constexpr std::uint32_t kNearKey = 1;
constexpr Duration kPatience = Duration::seconds(10);

std::atomic_ref<std::uint64_t> word(MutableBytes bytes, std::size_t at) {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(bytes.data() + at));
}

// Hands the rings to engines that turn in `loop`, until it stops.
Result<void> serve(nic::PollLoop& loop, remote::Scheduler& scheduler, remote::RemoteMemory& pool, CowbirdWorld& world,
                   const std::vector<cowbird::EngineConfig>& configs, const std::function<void()>& ready) {
  std::vector<std::unique_ptr<CowbirdServing>> serving;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    CowbirdSpot spot(scheduler, pool, configs[i]);
    world.regions().front().write(world.block(i).data() + cowbird::InstanceLayout::kRegions);
    auto begun = spot.serve(world.block(i), world.layout());
    if (!begun) return tl::unexpected(begun.error());
    serving.push_back(std::move(*begun));
  }
  ready();
  loop.run();
  for (const auto& one : serving) one->stop();
  const Time give_up = loop.now() + Duration::seconds(1);
  const auto ended = [](const auto& one) { return one->ended(); };
  while (!std::ranges::all_of(serving, ended) && loop.now() < give_up) loop.turn();
  return {};
}

Result<void> serve_near(nic::PollLoop& loop, CowbirdWorld& world, const std::vector<cowbird::EngineConfig>& configs,
                        const std::function<void()>& ready) {
  std::vector<std::uint8_t> bytes(world.pool_bytes(), CowbirdWorld::kFill);
  auto scheduler = std::make_unique<remote::Scheduler>();
  remote::MappedMemory pool(*scheduler);
  pool.add({kPool, remote::RegionKey(kNearKey), kNearAddress}, bytes);
  world.tell(kNearAddress, kNearKey);
  nic::SchedulerPoll coroutines(*scheduler);
  loop.add(coroutines);
  auto done = serve(loop, *scheduler, pool, world, configs, ready);
  loop.remove(coroutines);
  scheduler.reset();
  return done;
}

}  // namespace

Result<std::unique_ptr<CowbirdWorld>> CowbirdWorld::make(std::size_t instances, std::uint64_t pool_bytes) {
  std::unique_ptr<CowbirdWorld> world(new CowbirdWorld);
  world->instances_ = instances;
  world->pool_bytes_ = pool_bytes;
  auto shared = ports::SharedBlock::create(kBoard + instances * world->layout_.bytes());
  if (!shared) return tl::unexpected(shared.error());
  world->shared_ = std::move(*shared);
  for (std::size_t i = 0; i < instances; ++i) world->layout_.write(world->block(i).data());
  return world;
}

MutableBytes CowbirdWorld::block(std::size_t instance) const {
  return shared_.bytes().subspan(kBoard + instance * layout_.bytes(), layout_.bytes());
}

void CowbirdWorld::tell(std::uint64_t address, std::uint32_t key) {
  word(shared_.bytes(), 0).store(address);
  word(shared_.bytes(), 8).store(key);
}

bool CowbirdWorld::told(std::uint64_t& address, std::uint32_t& key) const {
  key = static_cast<std::uint32_t>(word(shared_.bytes(), 8).load());
  address = word(shared_.bytes(), 0).load();
  return key != 0;
}

std::vector<cowbird::Region> CowbirdWorld::regions() const {
  cowbird::Region region{.node = kPool.value, .length = pool_bytes_};
  told(region.base, region.key);
  return {region};
}

Result<void> serve_cowbird_pool(const VerbsEnd& end, CowbirdWorld& world, const std::function<void()>& ready) {
  StopSignals signals;
  nic::PollLoop loop;
  signals.stop_on_signal(loop);
  std::unique_ptr<port::Listener> listener;
  auto port = open_end(end.port, end.listen, loop, ready, listener);
  if (!port) return tl::unexpected(port.error());
  nic::Shard shard(bench_adapter_config(end.ip), std::move(*port));
  shard.attach(loop);
  nic::Connector connector(shard.adapter());
  loop.add(connector);
  auto memory = MemoryNode::make(connector, world.pool_bytes(), 16, 1);
  if (!memory) return tl::unexpected(memory.error());
  std::ranges::fill((*memory)->bytes(), CowbirdWorld::kFill);
  (*memory)->follow(loop.now(), {}, "");  // no directory, so no tenants
  if (auto serving = (*memory)->serve(kPort); !serving) return serving;
  const RegionRecord region = (*memory)->region();
  world.tell(region.address, region.key);
  loop.run();
  return {};
}

Result<void> serve_cowbird_engine(const VerbsEnd& end, wire::Ipv4Address pool, CowbirdWorld& world,
                                  const std::vector<cowbird::EngineConfig>& configs,
                                  const std::function<void()>& ready) {
  StopSignals signals;
  nic::PollLoop loop;
  signals.stop_on_signal(loop);
  if (end.port.empty()) return serve_near(loop, world, configs, ready);
  auto port = ports::open_port(end.port, ports::Absent::kWait);
  if (!port) return tl::unexpected(port.error());
  nic::Shard shard(bench_adapter_config(end.ip), std::move(*port));
  shard.attach(loop);
  nic::Connector connector(shard.adapter());
  loop.add(connector);
  auto scheduler = std::make_unique<remote::Scheduler>();
  RemoteNodes nodes(connector, *scheduler, RemoteNodes::Options{.depth = kDepth});
  loop.add(nodes);
  nic::SchedulerPoll coroutines(*scheduler);
  loop.add(coroutines);
  Snapshot snapshot;
  snapshot.nodes.push_back({.description = {.name = "pool", .kind = NodeKind::kMemory, .cm_port = kPort},
                            .state = NodeState::kReady,
                            .id = kPool,
                            .ip = pool,
                            .mac = Subnet::mac_of(pool),
                            .incarnation = 1});
  nic::Periodic alarm(Duration::milliseconds(5), [](Time) {});
  loop.add(alarm);
  std::uint64_t address = 0;
  std::uint32_t key = 0;
  const Time give_up = loop.now() + kPatience;
  loop.run_until([&] { return world.told(address, key) || loop.now() >= give_up; });
  if (key != 0) {
    nodes.set_nodes(loop.now(), snapshot);
    loop.run_until([&] { return nodes.up() == 1 || loop.now() >= give_up; });
  }
  loop.remove(alarm);
  Result<void> done = nodes.up() == 1 ? serve(loop, *scheduler, nodes.memory(), world, configs, ready)
                                      : fail("the pool does not answer: " + nodes.problems());
  nodes.set_nodes(loop.now(), {});
  loop.remove(coroutines);
  loop.remove(nodes);
  scheduler.reset();
  return done;
}

}  // namespace sluice::rack
