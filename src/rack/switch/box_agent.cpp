#include "rack/switch/box_agent.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>

#include "rack/endpoint/endpoint.h"
#include "rack/endpoint/remote_nodes.h"

namespace sluice::rack {
namespace {

remote::Task<void> repair_one(rc::RemoteRc& memory, remote::RemoteAddress address, swordbox::Repair repair,
                              std::function<void(std::optional<std::uint64_t>)> done) {
  auto swap = memory.compare_and_swap(address, repair.compare, repair.swap);
  const remote::AtomicResult result = co_await swap;
  done(result.status == remote::Status::kOk ? std::optional(result.prior) : std::nullopt);
}

}  // namespace

// What the agent has while it is on the rack.
struct BoxAgent::Desk {
  Desk(Endpoint& e, Duration flight)
      : endpoint(e), coroutines(scheduler), nodes(e.connector(), scheduler, {.leaves_within = flight / 2}) {}

  Endpoint& endpoint;
  remote::Scheduler scheduler;
  nic::SchedulerPoll coroutines;
  RemoteNodes nodes;
  std::map<wire::Gid, remote::NodeId> by_address;
};

BoxAgent::BoxAgent(std::string directory, nic::PollLoop& switch_loop, BoxControl& stage, Duration flight)
    : directory_(std::move(directory)), switch_loop_(switch_loop), stage_(stage), flight_(flight), thread_([this] {
        work();
      }) {}

BoxAgent::~BoxAgent() {
  stopping_ = true;
  {
    const std::scoped_lock lock(mutex_);
    if (own_loop_ != nullptr) own_loop_->stop();
  }
  thread_.join();
  stage_.set_agent({}, nullptr);  // a box with threads of its own goes on for a while
}

void BoxAgent::work() {
  EndpointConfig config;
  config.directory = directory_;
  config.description = {kName, NodeKind::kClient, 0, {}, {{"pid", std::to_string(getpid())}}};
  config.kinds = kMemoryKinds;
  while (!stopping_) {
    auto endpoint = Endpoint::open(config);
    if (endpoint) return serve(**endpoint);
    spdlog::warn("box: the repair agent waits: {}", endpoint.error().message);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

void BoxAgent::serve(Endpoint& endpoint) {
  Desk desk(endpoint, flight_);
  nic::PollLoop& loop = endpoint.loop();
  loop.add(desk.nodes);
  loop.add(desk.coroutines);
  endpoint.on_change([&](Time now, const Snapshot& snapshot) {
    desk.nodes.set_nodes(now, snapshot);
    for (const NodeRecord* node : snapshot.ready(NodeKind::kMemory))
      desk.by_address[wire::Gid::from(node->ip)] = node->id;
    switch_loop_.post([&stage = stage_, store = find_store(snapshot), words = find_words(snapshot)](Time t) {
      stage.set_store(t, store);
      if (words) stage.set_words(t, *words);
    });
  });
  {
    const std::scoped_lock lock(mutex_);
    own_loop_ = &loop;
  }
  switch_loop_.post([this, &desk, mac = endpoint.node().mac](Time) {
    stage_.set_agent(mac, [this, &desk](const BoxControl::Errand& errand) {
      const std::scoped_lock lock(mutex_);
      if (own_loop_ != nullptr) own_loop_->post([this, &desk, errand](Time) { run_errand(desk, errand); });
    });
  });
  if (!stopping_) loop.run();
  {
    const std::scoped_lock lock(mutex_);
    own_loop_ = nullptr;
  }
  // Connections fail, so everything under way ends before the scheduler goes.
  endpoint.on_change({});
  desk.nodes.set_nodes(loop.now(), {});
  for (int i = 0; i < 1000 && desk.scheduler.live() != 0; ++i) loop.turn();
  loop.remove(desk.coroutines);
  loop.remove(desk.nodes);
}

// Called in our own thread; the outcome goes back to the switch's.
void BoxAgent::run_errand(Desk& desk, const BoxControl::Errand& errand) {
  const auto done = [&loop = switch_loop_, &stage = stage_, errand](std::optional<std::uint64_t> prior) {
    loop.post([&stage, errand, prior](Time now) { stage.on_repair(now, errand, prior); });
  };
  const swordbox::Repair& repair = errand.repair;
  const auto node = desk.by_address.find(repair.server);
  if (node == desk.by_address.end()) return done(std::nullopt);
  const remote::RemoteAddress address{node->second, remote::RegionKey(repair.rkey.value), repair.address};
  desk.scheduler.spawn(repair_one(desk.nodes.memory(), address, repair, done));
}

}  // namespace sluice::rack
