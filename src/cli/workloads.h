// Workloads by their names, for the stores that benches run them over.
#pragma once

#include <string>

#include "base/result.h"
#include "workload/store.h"
#include "workload/ycsb.h"

namespace sluice::cli {

// Those that a store with these abilities can run: "A, B, C, D, F, or w0 to w100 for a percentage of writes".
std::string workload_names(const workload::StoreAbilities& abilities);

// The one that --workload names.
Result<workload::Mix> parse_workload(const std::string& name, const workload::StoreAbilities& abilities);

}  // namespace sluice::cli
