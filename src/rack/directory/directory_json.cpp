#include "rack/directory/directory_json.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "rack/settings/json_number.h"

namespace sluice::rack {
namespace {

using nlohmann::json;

// Runs `read` and turns what nlohmann throws at a wrong shape into an Error.
template <class Read>
auto guarded(std::string_view what, Read&& read) -> decltype(read()) {
  try {
    return read();
  } catch (const json::exception& e) {
    return fail(fmt::format("malformed {}: {}", what, e.what()));
  }
}

}  // namespace

json to_json(const NodeDescription& description) {
  json regions = json::array();
  for (const RegionRecord& r : description.regions) {
    regions.push_back({{"name", r.name}, {"address", r.address}, {"length", r.length}, {"key", r.key}});
    if (!r.owner.empty()) regions.back()["owner"] = r.owner;
  }
  return {{"name", description.name},
          {"kind", to_string(description.kind)},
          {"cm_port", description.cm_port},
          {"regions", std::move(regions)},
          {"attributes", description.attributes}};
}

json to_json(const NodeRecord& node) {
  json out = to_json(node.description);
  out["state"] = to_string(node.state);
  out["id"] = node.id.value;
  out["ip"] = node.ip.to_string();
  out["mac"] = node.mac.to_string();
  out["incarnation"] = node.incarnation;
  if (node.has_left) out["left"] = true;
  return out;
}

json to_json(const Snapshot& snapshot) {
  json nodes = json::array();
  for (const NodeRecord& node : snapshot.nodes) nodes.push_back(to_json(node));
  json out{{"revision", snapshot.revision}, {"nodes", std::move(nodes)}};
  if (!snapshot.has_tenants && snapshot.draining.empty()) return out;
  out["has_tenants"] = snapshot.has_tenants;
  out["draining"] = snapshot.draining;
  json& regions = out["regions"] = json::array();
  for (const TenantRegion& region : snapshot.regions) regions.push_back(to_json(region));
  return out;
}

json to_json(const TenantRegion& region) {
  json out{{"tenant", region.tenant},
           {"name", region.name},
           {"node", region.node},
           {"length", region.length},
           {"birth", region.birth}};
  if (region.moving_to.empty()) return out;
  out["moving_to"] = region.moving_to;
  out["next_birth"] = region.next_birth;
  return out;
}

Result<NodeDescription> description_from_json(const json& in) {
  return guarded("node", [&]() -> Result<NodeDescription> {
    NodeDescription out;
    out.name = in.at("name").get<std::string>();
    const auto kind = parse_node_kind(in.at("kind").get<std::string>());
    if (!kind)
      return fail(fmt::format("malformed node: kind '{}' is none of switch, memory, metadata, client",
                              in.at("kind").get<std::string>()));
    out.kind = *kind;
    out.cm_port = number_at<std::uint16_t>(in, "cm_port");
    for (const json& r : in.at("regions")) {
      out.regions.push_back({r.at("name").get<std::string>(), number_at<std::uint64_t>(r, "address"),
                             number_at<std::uint64_t>(r, "length"), number_at<std::uint32_t>(r, "key"),
                             r.value("owner", "")});
    }
    out.attributes = in.at("attributes").get<std::map<std::string, std::string>>();
    return out;
  });
}

Result<NodeRecord> node_from_json(const json& in) {
  auto description = description_from_json(in);
  if (!description) return tl::unexpected(description.error());
  return guarded("node", [&]() -> Result<NodeRecord> {
    NodeRecord out;
    out.description = std::move(*description);
    const auto state = parse_node_state(in.at("state").get<std::string>());
    const auto ip = wire::Ipv4Address::parse(in.at("ip").get<std::string>());
    const auto mac = wire::MacAddress::parse(in.at("mac").get<std::string>());
    if (!state || !ip || !mac) return fail("malformed node: state, ip or mac");
    out.state = *state;
    out.ip = *ip;
    out.mac = *mac;
    out.id = remote::NodeId(number_at<std::uint32_t>(in, "id"));
    out.incarnation = number_at<std::uint64_t>(in, "incarnation");
    out.has_left = in.value("left", false);
    return out;
  });
}

Result<TenantRegion> tenant_region_from_json(const json& in) {
  return guarded("region", [&]() -> Result<TenantRegion> {
    return TenantRegion{in.at("tenant").get<std::string>(),      in.at("name").get<std::string>(),
                        in.at("node").get<std::string>(),        number_at<std::uint64_t>(in, "length"),
                        number_at<std::uint64_t>(in, "birth"),   in.value("moving_to", ""),
                        in.value("next_birth", std::uint64_t{0})};
  });
}

Result<Snapshot> snapshot_from_json(const json& in) {
  return guarded("snapshot", [&]() -> Result<Snapshot> {
    Snapshot out;
    out.revision = number_at<std::uint64_t>(in, "revision");
    for (const json& node : in.at("nodes")) {
      auto record = node_from_json(node);
      if (!record) return tl::unexpected(record.error());
      out.nodes.push_back(std::move(*record));
    }
    out.has_tenants = in.value("has_tenants", false);
    out.draining = in.value("draining", std::vector<std::string>{});
    for (const json& region : in.value("regions", json::array())) {
      auto parsed = tenant_region_from_json(region);
      if (!parsed) return tl::unexpected(parsed.error());
      out.regions.push_back(std::move(*parsed));
    }
    return out;
  });
}

}  // namespace sluice::rack
