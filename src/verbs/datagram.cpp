// Address handles: where UD messages go.
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/bytes.h"
#include "rc/neighbor_discovery.h"
#include "verbs/objects.h"

using namespace sluice;
using namespace sluice::verbs;

namespace {

constexpr std::size_t kIpv4InGrh = 20;  // a GRH has 40 bytes; an IPv4 header stands in their second half

// Source and destination of the packet whose first 40 bytes these are, as GIDs.
struct Addresses {
  wire::Gid source{};
  wire::Gid destination{};
  std::uint8_t traffic_class = 0;
};

Addresses addresses_of(const std::uint8_t* grh) {
  Addresses found;
  if (grh[0] >> 4 != 6 && grh[kIpv4InGrh] >> 4 == 4) {
    found.source = wire::Gid::from({load_be<std::uint32_t>(grh + kIpv4InGrh + 12)});
    found.destination = wire::Gid::from({load_be<std::uint32_t>(grh + kIpv4InGrh + 16)});
    found.traffic_class = grh[kIpv4InGrh + 1];
    return found;
  }
  std::copy_n(grh + 8, 16, found.source.bytes.begin());
  std::copy_n(grh + 24, 16, found.destination.bytes.begin());
  found.traffic_class = static_cast<std::uint8_t>(load_be<std::uint16_t>(grh) >> 4);
  return found;
}

// As ibv_init_ah_from_wc(3) has it: unlike its neighbours it returns no errno.
int failed(std::string_view why) {
  refuse(EINVAL, why);
  return -1;
}

}  // namespace

SLUICE_VERB ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attributes) {
  Domain& domain = Domain::of(pd);
  const auto& gids = domain.nic().settings().gids;
  if (attributes->is_global == 0 || attributes->port_num != 1 || attributes->grh.sgid_index >= gids.size()) {
    refuse(EINVAL, "address handle: RoCE needs a GRH (is_global = 1), port 1 and a GID index that the port has");
    return nullptr;
  }
  auto ah = std::make_unique<AddressHandle>();
  ah->abi.context = pd->context;
  ah->abi.pd = pd;
  std::ranges::copy(attributes->grh.dgid.raw, ah->destination.gid.bytes.begin());
  ah->destination.source = gids[attributes->grh.sgid_index];
  ah->destination.traffic_class = attributes->grh.traffic_class;
  if (attributes->grh.hop_limit != 0) ah->destination.hop_limit = attributes->grh.hop_limit;
  if (ah->destination.gid.is_v4() != gids[attributes->grh.sgid_index].is_v4()) {
    refuse(EINVAL, fmt::format("address handle: {} and GID index {} are of different IP versions",
                               ah->destination.gid.to_string(), attributes->grh.sgid_index));
    return nullptr;
  }
  if (rc::is_multicast(ah->destination.gid)) {
    refuse(EOPNOTSUPP, "multicast is not supported");
    return nullptr;
  }
  const NicLock guard(domain.nic().lock());
  ++domain.users;
  return &ah.release()->abi;
}

SLUICE_VERB int ibv_destroy_ah(ibv_ah* handle) {
  Domain& domain = Domain::of(handle->pd);
  {
    const NicLock guard(domain.nic().lock());
    --domain.users;
  }
  delete &AddressHandle::of(handle);
  return 0;
}

SLUICE_VERB int ibv_init_ah_from_wc(ibv_context* context, std::uint8_t port, ibv_wc* wc, ibv_grh* grh,
                                    ibv_ah_attr* attributes) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->port_num = port;
  if ((wc->wc_flags & IBV_WC_GRH) == 0) return failed("address handle: the completion has no GRH");
  const Addresses addresses = addresses_of(reinterpret_cast<const std::uint8_t*>(grh));
  const auto& gids = Context::of(context).nic->settings().gids;
  const auto own = std::ranges::find(gids, addresses.destination);
  if (own == gids.end()) return failed("address handle: the message was not for an address of ours");
  attributes->is_global = 1;
  std::ranges::copy(addresses.source.bytes, attributes->grh.dgid.raw);
  attributes->grh.sgid_index = static_cast<std::uint8_t>(own - gids.begin());
  attributes->grh.hop_limit = 64;
  attributes->grh.traffic_class = addresses.traffic_class;
  return 0;
}

SLUICE_VERB ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, std::uint8_t port) {
  ibv_ah_attr attributes;
  if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attributes) != 0) return nullptr;
  return ibv_create_ah(pd, &attributes);
}

SLUICE_VERB int ibv_attach_mcast(ibv_qp*, const ibv_gid*, std::uint16_t) {
  return refuse(EOPNOTSUPP, "multicast is not supported");
}
SLUICE_VERB int ibv_detach_mcast(ibv_qp*, const ibv_gid*, std::uint16_t) {
  return refuse(EOPNOTSUPP, "multicast is not supported");
}
SLUICE_VERB int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, std::uint8_t[6], std::uint16_t*) {
  return refuse(EOPNOTSUPP, "the NIC resolves addresses itself");
}
