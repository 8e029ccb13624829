// The directory's records as JSON: on its HTTP interface, in its state file, in `sluice rack status --json`.
//
// Errors:  parsing anything that is not the expected shape is an Error that names the field.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/result.h"
#include "rack/directory/directory.h"

namespace sluice::rack {

nlohmann::json to_json(const NodeDescription& description);
nlohmann::json to_json(const NodeRecord& node);
nlohmann::json to_json(const Snapshot& snapshot);
nlohmann::json to_json(const TenantRegion& region);

Result<NodeDescription> description_from_json(const nlohmann::json& json);
Result<NodeRecord> node_from_json(const nlohmann::json& json);
Result<TenantRegion> tenant_region_from_json(const nlohmann::json& json);
Result<Snapshot> snapshot_from_json(const nlohmann::json& json);

}  // namespace sluice::rack
