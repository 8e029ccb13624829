// Sharded box: SwordBox on several threads, each a whole box for its share of the memory nodes.
//
// A packet:   the switch's thread says to which shard it belongs (swordbox/shard.h) and puts it into that shard's ring; the shard judges it
//             and puts what leaves into the ring back, from where the switch sends it on. Rings are shared-memory cables
//             (ports/shm_port.h): no lock, no atomic but theirs.
// Management: goes its way at once, and a copy to every shard, so that each learns the connection before its first request.
// Invariant:  all that concerns one node's memory passes one ring, one thread and one ring, in order.
// Invariant:  a shard's box is touched by that shard's thread alone.
// Errors:     a full ring drops; RC sends again. What is not RoCE passes by itself, unseen by any box.
// Threads:    the public functions from the switch's thread.
// Limits:     a single memory node's traffic is one thread's work.
// Source:     docs/design/swordbox.md ("Several cores").
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nic/poll_loop.h"
#include "rack/switch/box_stage.h"
#include "switching/learning_switch.h"

namespace sluice::rack {

class ShardedBox final : public switching::Stage, public BoxControl, public nic::Pollable {
 public:
  // Sockets of the rings are made in the run directory at `path`. `fence`: for so long from now on; 0: none. The loop is the switch's, and
  // outlives it, like the machine.
  static Result<std::unique_ptr<ShardedBox>> start(const std::string& path, const BoxSettings& settings, Duration fence,
                                                   nic::PollLoop& loop, switching::LearningSwitch& machine);
  ~ShardedBox() override;

  // As a stage: takes what belongs to a shard.
  void process(Time now, std::span<switching::Packet> packets, port::FrameSink& outbox) override;
  // In the switch's loop: what comes back from the shards.
  std::size_t poll(Time now) override;
  Time next_deadline() const override { return Time::never(); }

  void set_store(Time now, const std::optional<StoreMemory>& store) override;
  void set_words(Time now, const std::vector<swordbox::WordRegion>& regions) override;
  void set_agent(wire::MacAddress mac, Agent agent) override;
  void on_repair(Time now, const Errand& errand, std::optional<std::uint64_t> prior) override;
  Result<void> change(const std::string& json) override;
  // Of all shards together; how much each had to do.
  std::string status_json(std::size_t most) override;

 private:
  class Shard;

  ShardedBox(nic::PollLoop& loop, switching::LearningSwitch& machine);
  bool hand_over(Shard& shard, const port::Frame& frame);
  void give_to(std::uint32_t shard, switching::Packet& packet);

  nic::PollLoop& loop_;
  switching::LearningSwitch& machine_;
  wire::MacAddress agent_mac_{};
  bool has_agent_ = false;
  std::uint64_t rings_full_ = 0;
  std::vector<port::Frame> burst_;
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace sluice::rack
