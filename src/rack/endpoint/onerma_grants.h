// The file that gives 1RMA clients their keys: a target writes it, each client takes one entry out of it.
//
// File:       JSON, mode 0600: the target's address, and for each client a list of regions with rights and key. It is a secret.
// Invariant:  an entry is given once: an initiator's number names one life of it (onerma/types.h).
// Errors:     a message that says what to do.
// Threads:    any number of processes; the file is locked.
// Source:     ours: the control plane that hands out keys is not 1RMA's (§5.2).
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "onerma/keys.h"
#include "onerma/node.h"

namespace sluice::rack {

// Drawn from the kernel.
onerma::Secret fresh_onerma_key();

// A region as a client is to know it.
struct GrantedRegion {
  onerma::Grant grant{};
  std::uint64_t address = 0;
  std::uint64_t length = 0;
};
struct ClientGrants {
  onerma::InitiatorId initiator{};
  std::vector<GrantedRegion> regions{};
};

Result<void> write_grants(const std::string& path, const onerma::Peer& target,
                          const std::vector<ClientGrants>& clients);

struct TakenGrants {
  onerma::Peer target{};
  ClientGrants mine{};
};
// `as`: the command that writes such files, for messages.
Result<TakenGrants> take_grants(const std::string& path, const std::string& as);

}  // namespace sluice::rack
