// Machine gate: which machines may send frames to the switch over UDP: those that have shown a certificate to the directory of late.
//
// Frames carry no proof of who sent them; this keeps away whoever cannot receive at the address of a machine that was invited, or never was
// one. What it cannot keep away, and what to do then: docs/security.md.
//
// Invariant:  an address counts for kCounts after its last request. Who is on the rack asks the directory twice a second.
// Threads:    any.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "base/time.h"

namespace sluice::rack {

class MachineGate {
 public:
  static constexpr Duration kCounts = Duration::seconds(20);

  // `address`: an IP address, as text.
  void seen(Time now, const std::string& address);
  // At once, whatever it has shown.
  void forget(const std::string& address);
  bool admits(Time now, const std::string& address) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Time, std::less<>> last_seen_;
};

}  // namespace sluice::rack
