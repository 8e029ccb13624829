// RackWorld: a whole rack in one thread, for tests: clients and memory nodes on cables to a switch, all turned by one loop.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "port/memory_port.h"
#include "rack/directory/directory_store.h"
#include "rack/endpoint/memory_node.h"
#include "rack/endpoint/remote_nodes.h"
#include "rack/switch/switch_ports.h"

namespace sluice::rack {

// A listener whose callers are made by the test.
class CableListener final : public port::Listener {
 public:
  std::unique_ptr<port::Port> call() {
    auto cable = port::make_memory_cable(64);
    waiting_.push_back(std::move(cable.a));
    return std::move(cable.b);
  }
  std::unique_ptr<port::Port> accept(Time) override {
    if (waiting_.empty()) return nullptr;
    auto port = std::move(waiting_.front());
    waiting_.pop_front();
    return port;
  }
  int wait_descriptor() const override { return 0; }
  std::uint64_t refused() const override { return 0; }
  std::string name() const override { return "cables"; }

 private:
  std::deque<std::unique_ptr<port::Port>> waiting_;
};

// One machine on the rack.
struct Station {
  Station(nic::PollLoop& its_loop, std::unique_ptr<port::Port> port, std::uint32_t number)
      : loop(its_loop), id(number) {
    const wire::Ipv4Address ip = Subnet{}.ip_of(id);
    rc::AdapterConfig config;
    config.mac = Subnet::mac_of(ip);
    config.gids = {wire::Gid::from(ip)};
    config.seed = number;
    shard = std::make_unique<nic::Shard>(config, std::move(port));
    shard->attach(loop);
    connector = std::make_unique<nic::Connector>(shard->adapter());
    loop.add(*connector);
  }
  ~Station() {
    loop.remove(*connector);
    shard->detach(loop);
  }
  nic::PollLoop& loop;
  remote::NodeId id;
  std::unique_ptr<nic::Shard> shard;
  std::unique_ptr<nic::Connector> connector;
};

class RackWorld : public testing::Test {
 public:  // the tests' coroutines are lambdas without captures
  RackWorld() {
    auto cables = std::make_unique<CableListener>();
    listener_ = cables.get();
    // Not add_listener(): there is no descriptor to watch.
    switch_.add_listener(std::move(cables));
    loop_.unwatch(0);
    loop_.add(switch_);
    client_ = std::make_unique<Station>(loop_, listener_->call(), 100);
    nodes_ = std::make_unique<RemoteNodes>(*client_->connector, scheduler_,
                                           RemoteNodes::Options{.depth = 32, .ack_timeout = 8, .retry_count = 3});
    loop_.add(*nodes_);
    loop_.add(coroutines_);
  }
  ~RackWorld() override { loop_.remove(*nodes_); }

  struct Memory {
    std::unique_ptr<Station> station;
    std::unique_ptr<MemoryNode> node;
    std::uint64_t incarnation = 1;
  };
  void start_memory(std::uint32_t number, std::uint64_t incarnation = 1) {
    make_memory(number, incarnation);
    memories_[number].node->follow(loop_.now(), {}, "memory" + std::to_string(number));
  }
  // It has not heard of the rack yet.
  void make_memory(std::uint32_t number, std::uint64_t incarnation = 1) {
    Memory& m = memories_[number];
    m.station = std::make_unique<Station>(loop_, listener_->call(), number);
    m.node = MemoryNode::make(*m.station->connector, 1 << 20, 16, 1).value();
    m.incarnation = incarnation;
    ASSERT_TRUE(m.node->serve(7471));
  }
  void kill_memory(std::uint32_t number) {
    memories_[number].node.reset();
    memories_[number].station.reset();
    memories_.erase(number);
  }
  Snapshot snapshot() {
    Snapshot s;
    for (const auto& [number, m] : memories_) {
      NodeRecord node;
      node.description = {"memory" + std::to_string(number), NodeKind::kMemory, 7471, {m.node->region()}, {}};
      node.state = NodeState::kReady;
      node.id = remote::NodeId(number);
      node.ip = Subnet{}.ip_of(node.id);
      node.incarnation = m.incarnation;
      s.nodes.push_back(node);
    }
    return s;
  }
  bool run_until(const std::function<bool()>& done) {
    const Time give_up = loop_.now() + Duration::seconds(20);
    bool fulfilled = false;
    loop_.run_until([&] { return (fulfilled = done()) || loop_.now() > give_up; });
    return fulfilled;
  }
  void connect_all() {
    nodes_->set_nodes(loop_.now(), snapshot());
    ASSERT_TRUE(run_until([&] { return nodes_->up() == nodes_->nodes(); })) << nodes_->problems();
  }
  remote::RemoteAddress at(std::uint32_t number, std::uint64_t offset) {
    const RegionRecord region = memories_.at(number).node->region();
    return {remote::NodeId(number), remote::RegionKey(region.key), region.address + offset};
  }
  remote::Status write(std::uint32_t number, std::uint64_t offset, std::uint8_t value) {
    return write_to(at(number, offset), value);
  }
  remote::Status write_to(remote::RemoteAddress address, std::uint8_t value) {
    auto status = remote::Status::kUnknown;
    scheduler_.spawn(
        [](RackWorld& w, remote::RemoteAddress to, std::uint8_t v, remote::Status& result) -> remote::Task<void> {
          result = co_await w.nodes_->memory().write(to, {&v, 1});
        }(*this, address, value, status));
    EXPECT_TRUE(run_until([&] { return scheduler_.live() == 0; }));
    return status;
  }

  nic::PollLoop loop_;
  SwitchPorts switch_{{}, loop_};
  CableListener* listener_ = nullptr;
  remote::Scheduler scheduler_;
  nic::SchedulerPoll coroutines_{scheduler_};
  std::map<std::uint32_t, Memory> memories_;
  std::unique_ptr<Station> client_;
  std::unique_ptr<RemoteNodes> nodes_;
};

}  // namespace sluice::rack
