#include "rack/switch/machine_gate.h"

namespace sluice::rack {

void MachineGate::seen(Time now, const std::string& address) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(last_seen_, [now](const auto& entry) { return now - entry.second >= kCounts; });
  last_seen_[address] = now;
}

void MachineGate::forget(const std::string& address) {
  const std::scoped_lock lock(mutex_);
  last_seen_.erase(address);
}

bool MachineGate::admits(Time now, const std::string& address) const {
  const std::scoped_lock lock(mutex_);
  const auto found = last_seen_.find(address);
  return found != last_seen_.end() && now - found->second < kCounts;
}

}  // namespace sluice::rack
