// Cowbird host: takes in applications over a UNIX socket, for whatever service carries out what their channels ask for.
//
// Life:       open(path) -> an application connects, hands over its block, asks for regions -> it is served until it disconnects.
// Limits:     as many instances as said. Who has connected hands over a block within kPatience; kMostWaiting may still have to, then the oldest goes.
// Trust:      blocks and messages of applications are checked; a bad one loses its connection, nobody else notices.
// Errors:     an application learns why in words.
// Threads:    the loop's owner.
// Source:     Cowbird §5.2 Phase I (set-up), §6; docs/cowbird.md.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cowbird/attach.h"
#include "cowbird/engine.h"
#include "cowbird/layout.h"
#include "nic/poll_loop.h"
#include "ports/shared_block.h"
#include "rack/directory/directory.h"

namespace sluice::rack {

inline constexpr std::uint64_t kBlockBase = 0x10000;  // where engines have every block

// What the rack's memory nodes export to a tenant; empty: to the rack itself.
std::vector<cowbird::Region> exports_of(const Snapshot& snapshot, const std::string& tenant);

// What is done for one application.
class CowbirdServing {
 public:
  virtual ~CowbirdServing() = default;
  // It ends soon; then ended() is true and the block is not touched any more.
  virtual void stop() = 0;
  virtual bool ended() const = 0;
  // Channels that made no sense.
  virtual std::size_t broken() const = 0;
  // Of the engines, if they are in this process.
  virtual cowbird::EngineCounters engines() const { return {}; }
};

class CowbirdService {
 public:
  virtual ~CowbirdService() = default;
  // REQUIRES: the layout has been checked and fits the block, which outlives what is returned. May throw std::bad_alloc.
  virtual Result<std::unique_ptr<CowbirdServing>> serve(MutableBytes block, const cowbird::InstanceLayout& layout) = 0;
};

class CowbirdHost final : public nic::Pollable {
 public:
  struct Counters {
    std::uint64_t accepted = 0;
    std::uint64_t refused = 0;
    std::uint64_t broken = 0;  // channels that made no sense
  };

  static constexpr Duration kPatience = Duration::seconds(3);
  static constexpr std::size_t kMostWaiting = 64;

  // Serves at most so many `instances` at once. Loop and service outlive the host.
  static Result<std::unique_ptr<CowbirdHost>> open(const std::string& path, nic::PollLoop& loop,
                                                   CowbirdService& service, std::size_t instances);
  ~CowbirdHost() override;

  // Who is on the rack, for applications that ask for regions.
  void set_nodes(const Snapshot& snapshot) { nodes_ = snapshot; }
  // Takes no more and lets go of all applications; done when instances() is 0. Each finds the next engine by itself when it is done with.
  void stop();
  std::size_t instances() const { return applications_.size(); }
  // Of them, those that have handed over a block.
  std::size_t served() const;
  Counters counters() const;
  // Of all engines, those of applications that have gone included.
  cowbird::EngineCounters engines() const;

  std::size_t poll(Time now) override;
  Time next_deadline() const override;

 private:
  struct Application;

  CowbirdHost(std::string path, nic::PollLoop& loop, CowbirdService& service, std::size_t instances);
  void accept(Time now);
  // Those that have handed over nothing, if there are too many or it has taken too long.
  void let_go_of_waiting(Time now);
  void dismiss(Application& application, const std::string& why);
  void turn_away();
  void listen_to(Application& application);
  std::string answer(Application& application, ports::Message& message);
  // One application is not served: what it is told, and the log, too, the first time.
  std::string refuse(const std::string& why);
  Result<void> take_instance(Application& application, ports::Message& message);
  Result<cowbird::Region> find_region(const cowbird::RegionRequest& request) const;
  bool still_served(const ports::SharedBlock& block) const;
  void let_go(Application& application);
  void close_listener();

  std::string path_;
  nic::PollLoop& loop_;
  CowbirdService& service_;
  std::size_t most_;
  ports::Descriptor listener_;
  ports::Descriptor spare_;  // given up to turn an application away when descriptors have run out
  Snapshot nodes_;
  std::vector<std::unique_ptr<Application>> applications_;
  std::set<std::string> refusals_;  // as said in the log
  Counters counters_;
  cowbird::EngineCounters engines_gone_;
};

}  // namespace sluice::rack
