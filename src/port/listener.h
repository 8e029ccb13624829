// The Listener contract: a place where other ends appear by themselves, each a Port of its own.
//
// Life:     poll accept(now) until it says nullptr; a port whose peer is gone turns kDown, and its owner destroys it.
// Errors:   an end that could not be admitted (too many, not speaking the protocol) is refused and counted.
// Threads:  one owner, who owns the accepted ports too. The ports must not outlive the listener.
// Source:   ARCHITECTURE.md "Contracts"; the switch is its user.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/time.h"
#include "port/port.h"

namespace sluice::port {

class Listener {
 public:
  virtual ~Listener() = default;
  // The next end that has appeared, or nullptr.
  virtual std::unique_ptr<Port> accept(Time now) = 0;
  // Readable when accept() has something to do; ports may share it (see Port::wait_descriptor).
  virtual int wait_descriptor() const = 0;
  virtual Time next_deadline() const { return Time::never(); }
  // Ends that were turned away.
  virtual std::uint64_t refused() const = 0;
  // Frames that arrived and were lost for want of room, before anybody could say at which end's port.
  virtual std::uint64_t lost() const { return 0; }
  // "shm:/run/…/switch.sock"
  virtual std::string name() const = 0;
};

}  // namespace sluice::port
