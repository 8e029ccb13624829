// Directory store: a directory that has the rack's state itself, for who serves it to others (directory_http.h). Implementations:
// sqlite_directory.h, etcd_directory.h.
//
// Threads:  any.
#pragma once

#include <string>

#include "rack/directory/directory.h"
#include "rack/directory/tenants.h"

namespace sluice::rack {

// Where nodes get their addresses from: number n has base + n, and the MAC 02:00 followed by the address.
struct Subnet {
  wire::Ipv4Address base{0x0A4D0000};  // 10.77.0.0/16

  wire::Ipv4Address ip_of(remote::NodeId id) const { return {base.value + id.value}; }
  static wire::MacAddress mac_of(wire::Ipv4Address ip);
};

struct VersionedText {
  std::string text;           // empty: there is none
  std::uint64_t version = 0;  // another with each change
};

class DirectoryStore : public Directory {
 public:
  Tenants& tenants() { return tenants_; }
  // Where they are kept: a text that is replaced as a whole, if it still is of this version (false: it is not). It outlives all nodes; a change ends
  // watches.
  virtual Result<VersionedText> ledger() = 0;
  virtual Result<bool> replace_ledger(std::uint64_t version, const std::string& text) = 0;
  // Called from time to time by whoever serves watchers: ends what time has ended.
  virtual void expire() {}
  // Ends the lease of a node whose process is known to be gone, so that the name may be taken at once.
  virtual Result<void> evict(const std::string& name) = 0;
  // Ends all watches, for shutting down.
  virtual void stop_watches() = 0;

 private:
  Tenants tenants_{*this};
};

// What every store says alike.
// What is kept of one that is gone: of a client, whose it was and where from. The rest nobody needs, and there may be much of it.
NodeDescription what_is_kept(NodeDescription description);
Result<void> check_join(const NodeDescription& description, Duration lease);
Error lease_is_unknown(LeaseId lease);
Error lease_is_of_another(LeaseId lease, const NodeDescription& owner, const NodeDescription& description);
Error no_room_for_nodes();

}  // namespace sluice::rack
