// Store claim: whether memory may become a new Clover store's, looked at by a metadata server before it makes one: no store's part is there, and no Clover
// store's memory.
//
// Errors:   whose store is there, or who cannot be asked, and what to do.
// Threads:  the loop's owner, while nobody else turns it.
#pragma once

#include <span>

#include "base/result.h"
#include "clover/volumes.h"
#include "rack/endpoint/endpoint.h"

namespace sluice::rack {

Result<void> check_unclaimed(Endpoint& endpoint, std::span<const clover::Home> homes, Duration patience);

}  // namespace sluice::rack
