// A Cowbird engine in a thread of this process, beside a pool of its own: what a store's threads gain when the engine keeps up. Where few cores have to do for an
// engine, a switch and a memory node, these are the limit instead.
//
// Life:    open() -> socket(), for CowbirdLogOptions::engine -> destroyed after the stores that use it.
// Threads: its owner's; the engine has one of its own.
// Source:  Cowbird §6: the spot engine runs where the memory is, and copies.
#pragma once

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "nic/nic.h"
#include "nic/poll_loop.h"
#include "rack/cowbird/cowbird_host.h"
#include "rack/cowbird/cowbird_spot.h"
#include "rack/endpoint/memory_node.h"
#include "remote/mapped.h"

namespace sluice::faster {

class NearEngine {
 public:
  static constexpr const char* kMemoryNode = "memory1";

  // Throws std::runtime_error.
  NearEngine(std::string socket, std::uint64_t pool_bytes)
      : socket_(std::move(socket)), mapping_(or_throw(rack::Mapping::make(pool_bytes))), thread_([this] { serve(); }) {
    while (!ready_) std::this_thread::yield();
    if (!problem_.empty()) {
      thread_.join();
      throw std::runtime_error(problem_);
    }
  }
  ~NearEngine() {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
  }
  NearEngine(const NearEngine&) = delete;
  NearEngine& operator=(const NearEngine&) = delete;

  const std::string& socket() const { return socket_; }

 private:
  static rack::Mapping or_throw(Result<rack::Mapping> made) {
    if (!made) throw std::runtime_error(made.error().message);
    return std::move(*made);
  }
  void serve() {
    constexpr remote::NodeId kNode{1};
    constexpr std::uint32_t kKey = 1;
    constexpr std::uint64_t kBase = 0x10000;
    auto scheduler = std::make_unique<remote::Scheduler>();
    remote::MappedMemory pool(*scheduler);
    pool.add({kNode, remote::RegionKey(kKey), kBase}, mapping_.bytes());
    rack::CowbirdSpot service(*scheduler, pool, {});
    auto host = rack::CowbirdHost::open(socket_, loop_, service, 16);
    if (!host) {
      problem_ = host.error().message;
      ready_ = true;
      return;
    }
    rack::NodeRecord node;
    node.description = {
        kMemoryNode, rack::NodeKind::kMemory, 0, {{rack::kMainRegion, kBase, mapping_.bytes().size(), kKey}}};
    node.state = rack::NodeState::kReady;
    node.id = kNode;
    (*host)->set_nodes({.nodes = {node}});
    nic::SchedulerPoll coroutines(*scheduler);
    loop_.add(coroutines);
    loop_.add(**host);
    ready_ = true;
    loop_.run();
    loop_.remove(**host);
    loop_.remove(coroutines);
    scheduler.reset();
  }

  std::string socket_;
  rack::Mapping mapping_;
  nic::PollLoop loop_;
  std::string problem_;
  std::atomic<bool> ready_{false};
  std::thread thread_;
};

}  // namespace sluice::faster
