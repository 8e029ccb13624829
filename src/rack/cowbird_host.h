// Cowbird host: takes in applications over a UNIX socket and runs a spot engine for every channel of their instances.
//
// Life:       open(path) -> an application connects, hands over its block, asks for regions -> its engines run until it disconnects.
// Trust:      blocks and messages of applications are checked; a bad one loses its connection, nobody else notices.
// Errors:     an application learns why in words.
// Threads:    the loop's owner.
// Limits:     Options::instances at once.
// Source:     Cowbird §5.2 Phase I (set-up), §6; docs/cowbird.md.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cowbird/attach.h"
#include "cowbird/engine.h"
#include "nic/poll_loop.h"
#include "ports/shared_block.h"
#include "rack/directory.h"
#include "remote/mapped.h"

namespace sluice::rack {

class CowbirdHost final : public nic::Pollable {
 public:
  struct Options {
    cowbird::EngineConfig engine{};
    std::size_t instances = 256;
  };
  struct Counters {
    std::uint64_t accepted = 0;
    std::uint64_t refused = 0;
    std::uint64_t broken = 0;  // channels that made no sense
  };

  // `pool`: where the rack's memory nodes are. Both must outlive the host; so must the loop.
  static Result<std::unique_ptr<CowbirdHost>> open(const std::string& path, nic::PollLoop& loop,
                                                   remote::Scheduler& scheduler, remote::RemoteMemory& pool,
                                                   const Options& options);
  ~CowbirdHost() override;

  // Who is on the rack, for applications that ask for regions.
  void set_nodes(const Snapshot& snapshot) { nodes_ = snapshot; }
  // Lets go of all applications; done when instances() is 0. They find the next engine by themselves.
  void stop();
  std::size_t instances() const { return applications_.size(); }
  const Counters& counters() const { return counters_; }
  // Of all engines that are at work.
  cowbird::EngineCounters engine_counters() const;

  std::size_t poll(Time now) override;

 private:
  struct Application;

  CowbirdHost(std::string path, nic::PollLoop& loop, remote::Scheduler& scheduler, remote::RemoteMemory& pool,
              const Options& options);
  void accept();
  void listen_to(Application& application);
  std::string answer(Application& application, ports::Message& message);
  Result<void> take_instance(Application& application, ports::Message& message);
  Result<cowbird::Region> find_region(const cowbird::RegionRequest& request) const;
  void let_go(Application& application);
  static remote::Task<void> run(cowbird::Engine& engine, std::shared_ptr<std::size_t> running);

  std::string path_;
  nic::PollLoop& loop_;
  remote::Scheduler& scheduler_;
  remote::RemoteMemory& pool_;
  Options options_;
  ports::Descriptor listener_;
  Snapshot nodes_;
  std::vector<std::unique_ptr<Application>> applications_;
  Counters counters_;
};

}  // namespace sluice::rack
