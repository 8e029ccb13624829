// Box agent: the box's own place on the rack: learns from the directory where the store's memory is, and brings links about that the
// box cannot, over reliable connections of its own.
//
// Life:       started once the switch takes ports -> tells the stage of the store, now and whenever it changes -> serves repairs until
//             destroyed.
// Invariant:  its packets pass the box untouched (BoxControl::set_agent).
// Errors:     a directory or a node that does not answer is tried again; meanwhile repairs are answered with "not now".
// Threads:    one of its own; joined when destroyed. It talks to the switch's thread by posting.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

#include "nic/poll_loop.h"
#include "rack/switch/box_stage.h"

namespace sluice::rack {

class Endpoint;

class BoxAgent {
 public:
  static constexpr const char* kName = "box-agent";  // on the rack

  // Loop and stage are the switch's and outlive the agent.
  // `flight`: as the box's; what the agent does is over within that.
  BoxAgent(std::string directory, nic::PollLoop& switch_loop, BoxControl& stage, Duration flight);
  ~BoxAgent();

 private:
  struct Desk;

  void work();
  void serve(Endpoint& endpoint);
  void run_errand(Desk& desk, const BoxControl::Errand& errand);

  std::string directory_;
  nic::PollLoop& switch_loop_;
  BoxControl& stage_;
  Duration flight_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  nic::PollLoop* own_loop_ = nullptr;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace sluice::rack
