// Store session: one thread's use of a store on the rack, whichever it is: a loop to turn and stores for a Runner.
//
// Life:       opened -> stores() are ready for a Runner in scheduler() -> loop() turns -> destroyed: leaves.
// Threads:    one owner.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nic/nic.h"
#include "rack/remote_nodes.h"
#include "workload/store.h"

namespace sluice::rack {

class StoreSession {
 public:
  virtual ~StoreSession() = default;

  virtual remote::Scheduler& scheduler() = 0;
  virtual nic::PollLoop& loop() = 0;
  virtual port::Port& port() = 0;
  virtual std::vector<workload::Store*> stores() const = 0;
  // The most that a value may have.
  virtual std::uint32_t value_bytes() const = 0;
  virtual const RemoteNodes& nodes() const = 0;
  // What is not connected now, a line each; empty when all is well.
  virtual std::string problems() const = 0;
};

}  // namespace sluice::rack
