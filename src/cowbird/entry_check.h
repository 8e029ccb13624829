// What an engine believes of a request that it finds in an application's memory: nothing without a check.
//
// Source:  Cowbird §4.2 (entries), §5.3 (order). Ours: the checks.
#pragma once

#include <cstdint>
#include <span>

#include "cowbird/layout.h"
#include "cowbird/status.h"

namespace sluice::cowbird {

// Whether the request points nowhere but into its data ring and its region. `most`: bytes that the engine can move at once.
Status judge(const Entry& entry, const ChannelLayout& layout, std::span<const Region> regions, std::uint64_t most);

// Whether the entry is a request and the next of its type. `newest`: sequence of the one before it, 0 if it is the first that this engine
// sees; `published`: of the last of the type that an engine has completed.
bool follows(const Entry& entry, std::uint64_t newest, std::uint64_t published);

}  // namespace sluice::cowbird
