// The file that gives 1RMA clients their keys: a target writes it, each client takes one entry out of it.
//
// File:       JSON, mode 0600: the target's address, and for each client a list of regions with rights and key. It is a secret.
// Invariant:  an entry is given once: an initiator's number names one life of it (onerma/types.h). One that no frame has shown may go back.
// Errors:     a message that says what to do.
// Threads:    any number of processes; the file is locked.
// Source:     ours: the control plane that hands out keys is not 1RMA's (§5.2).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "onerma/keys.h"
#include "onerma/node.h"
#include "ports/descriptor.h"

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

// Who writes such files, for messages.
struct GrantsWriter {
  std::string_view command;
  std::string_view is;
};
inline constexpr GrantsWriter kOnermaTarget{"sluice onerma target", "target"};
inline constexpr GrantsWriter kCacheReplica{"sluice cache serve", "replica"};

// For as long as the result is kept the file is nobody else's to write; an error: it is that of another process which lives.
Result<ports::Descriptor> own_grants(const std::string& path, const GrantsWriter& writer);
Result<void> write_grants(const std::string& path, const onerma::Peer& target,
                          const std::vector<ClientGrants>& clients);

struct TakenGrants {
  std::string path{};
  std::uint64_t life = 0;  // of the target; 0: the file does not say
  onerma::Peer target{};
  ClientGrants mine{};
};
// What take_grants() would give now. It stays in the file.
Result<TakenGrants> look_at_grants(const std::string& path, const GrantsWriter& writer);
Result<TakenGrants> take_grants(const std::string& path, const GrantsWriter& writer);
// Puts back what take_grants() gave, unless the file is another life's by now. REQUIRES: no frame has shown it.
void give_back(const TakenGrants& taken);

}  // namespace sluice::rack
