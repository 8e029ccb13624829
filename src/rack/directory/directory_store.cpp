#include "rack/directory/directory_store.h"

#include <fmt/core.h>

#include "base/bytes.h"
#include "rack/settings/names.h"

namespace sluice::rack {
wire::MacAddress Subnet::mac_of(wire::Ipv4Address ip) {
  wire::MacAddress mac{{2, 0, 0, 0, 0, 0}};
  store_be(mac.bytes.data() + 2, ip.value);
  return mac;
}

Result<void> check_join(const NodeDescription& description, Duration lease) {
  if (auto sound = check_name("node name", description.name, kMostNodeName); !sound) return sound;
  if (lease < Directory::kShortestLease || lease > Directory::kLongestLease)
    return fail("a lease must last between 100 ms and 3600 s");
  return {};
}

NodeDescription what_is_kept(NodeDescription description) {
  if (description.kind != NodeKind::kClient) return description;
  std::erase_if(description.attributes, [](const auto& attribute) {
    return attribute.first != kTenantAttribute && attribute.first != kMachineAttribute;
  });
  return description;
}

Error lease_is_unknown(LeaseId lease) {
  return {fmt::format("{} {}: it has ended or never was; join again", kUnknownLease, lease.value)};
}

Error lease_is_of_another(LeaseId lease, const NodeDescription& owner, const NodeDescription& description) {
  return {fmt::format("lease {} belongs to {} '{}', not to {} '{}'", lease.value, to_string(owner.kind), owner.name,
                      to_string(description.kind), description.name)};
}

Error no_room_for_nodes() {
  return {fmt::format(
      "the directory knows {} nodes already, and that is its limit; those that were lost are forgotten after {} s, "
      "memory nodes and metadata servers after {} s",
      Directory::kMaxNodes, Directory::kForgetAfter.milliseconds() / 1000,
      Directory::kForgetStoreAfter.milliseconds() / 1000)};
}

}  // namespace sluice::rack
