// Directory store: a directory that has the rack's state itself, for who serves it to others (directory_http.h). Implementations:
// sqlite_directory.h, etcd_directory.h.
//
// Threads:  any.
#pragma once

#include <string>

#include "rack/directory.h"

namespace sluice::rack {

// Where nodes get their addresses from: number n has base + n, and the MAC 02:00 followed by the address.
struct Subnet {
  wire::Ipv4Address base{0x0A4D0000};  // 10.77.0.0/16

  wire::Ipv4Address ip_of(remote::NodeId id) const { return {base.value + id.value}; }
  static wire::MacAddress mac_of(wire::Ipv4Address ip);
};

class DirectoryStore : public Directory {
 public:
  // Called from time to time by whoever serves watchers: ends what time has ended.
  virtual void expire() {}
  // Ends the lease of a node whose process is known to be gone, so that the name may be taken at once.
  virtual Result<void> evict(const std::string& name) = 0;
  // Ends all watches, for shutting down.
  virtual void stop_watches() = 0;
};

// What every store says alike.
Result<void> check_join(const NodeDescription& description, Duration lease);
Error lease_is_unknown(LeaseId lease);
Error lease_is_of_another(LeaseId lease, const NodeDescription& owner, const NodeDescription& description);
Error no_room_for_nodes();

}  // namespace sluice::rack
