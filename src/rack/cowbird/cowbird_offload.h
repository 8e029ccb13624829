// Cowbird offload: makes the rings of this machine's applications reachable over the rack, for the engine in the switch to serve.
//
// Life:       serve() registers a block with the NIC -> each channel gets a queue pair towards the switch and one to each memory node that
//             its regions name, and the switch is told of them (cowbird_stage.h) -> it is told again after it was restarted or a connection
//             broke -> stop() takes all back.
// Cost:       the NIC's answers to the switch; nothing a request.
// Trust:      regions that a block names are checked against the directory before the switch hears of them.
// Errors:     a switch without an engine, or none: tried again; said once.
// Threads:    the loop's owner; one of its own asks the switch.
// Source:     Cowbird §5.2, Phase I.
#pragma once

#include <list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cowbird/exports.h"
#include "rack/cowbird/cowbird_host.h"
#include "rack/endpoint/endpoint.h"

namespace sluice::rack {

class CowbirdOffload final : public CowbirdService, public nic::Pollable {
 public:
  // `directory`: the run directory's socket, where the switch's control plane is, too. The endpoint outlives this.
  CowbirdOffload(Endpoint& endpoint, HttpAddress directory);
  ~CowbirdOffload() override;
  CowbirdOffload(const CowbirdOffload&) = delete;
  CowbirdOffload& operator=(const CowbirdOffload&) = delete;

  void set_nodes(Time now, const Snapshot& snapshot);
  Result<std::unique_ptr<CowbirdServing>> serve(MutableBytes block, const cowbird::InstanceLayout& layout) override;

  std::size_t poll(Time now) override;
  Time next_deadline() const override { return next_look_; }

 private:
  class Desk;
  class Channel;
  class Block;
  class Serving;

  void check_boot(Time now, std::uint64_t boot, const Channel* but);
  void on_renewed(Time now, const nlohmann::json& channels);
  // Of the switch's `channels`, those that are nobody's here any more: an answer or a farewell was lost.
  void detach_strays(const nlohmann::json& channels);

  Endpoint& endpoint_;
  memory::PdId domain_;
  rc::CompletionQueue* completions_;
  Snapshot nodes_;
  cowbird::Exports exports_;
  std::unique_ptr<Desk> desk_;
  std::list<std::shared_ptr<Block>> blocks_;
  std::uint64_t boot_ = 0;  // of the switch engine that has heard of all; 0: none
  bool complained_ = false;
  bool renewing_ = false;
  std::uint64_t renewal_ = 0;  // the question
  Time next_renewal_;
  Time next_look_;
};

}  // namespace sluice::rack
