// Protection domains and memory regions.
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "verbs/objects.h"

namespace sluice::verbs {
namespace {

// Whether all of it is mapped: what pinning would find out.
bool is_mapped(const void* address, std::size_t length) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  std::uintptr_t at = reinterpret_cast<std::uintptr_t>(address) & ~(page - 1);
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(address) + length;
  std::array<unsigned char, 4096> resident;
  while (at < end) {
    const std::size_t step = std::min<std::size_t>(end - at, resident.size() * page);
    if (mincore(reinterpret_cast<void*>(at), step, resident.data()) != 0) return false;
    at += step;
  }
  return true;
}

ibv_mr* add_region(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova, unsigned access) {
  Domain& domain = Domain::of(pd);
  ProcessNic& nic = domain.nic();
  const unsigned known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                         IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB;
  if ((access & ~(known | IBV_ACCESS_OPTIONAL_RANGE)) != 0) {
    refuse(EOPNOTSUPP, fmt::format("memory region: access flags {:#x} are not supported", access));
    return nullptr;
  }
  if ((access & IBV_ACCESS_ON_DEMAND) == 0 && !is_mapped(address, length)) {
    refuse(EFAULT, fmt::format("memory region: {} bytes from {} are not all mapped", length, address));
    return nullptr;
  }
  auto region = std::make_unique<Region>();
  const NicLock guard(nic.lock());
  const auto key = nic.adapter().regions().add({.pd = domain.id,
                                                .bytes = {static_cast<std::uint8_t*>(address), length},
                                                .address = iova,
                                                .access = {access & memory::kAllAccess.bits}});
  if (!key) {
    const bool full = nic.adapter().regions().size() >= memory::RegionTable::kMaxRegions - 1;
    refuse(full ? ENOMEM : EINVAL, key.error().message);
    return nullptr;
  }
  ++domain.users;
  region->key = *key;
  region->abi = {.context = pd->context,
                 .pd = pd,
                 .addr = address,
                 .length = length,
                 .handle = key->value,
                 .lkey = key->value,
                 .rkey = key->value};
  return &region.release()->abi;
}

}  // namespace
}  // namespace sluice::verbs

using namespace sluice::verbs;

SLUICE_VERB ibv_pd* ibv_alloc_pd(ibv_context* context) {
  ProcessNic& nic = *Context::of(context).nic;
  auto domain = std::make_unique<Domain>();
  const NicLock guard(nic.lock());
  domain->id = nic.adapter().create_domain();
  domain->abi.context = context;
  domain->abi.handle = domain->id.value;
  return &domain.release()->abi;
}

SLUICE_VERB int ibv_dealloc_pd(ibv_pd* pd) {
  Domain& domain = Domain::of(pd);
  {
    const NicLock guard(domain.nic().lock());
    if (domain.users != 0) return refuse(EBUSY, "protection domain: regions, queues or address handles still use it");
  }
  delete &domain;
  return 0;
}

SLUICE_VERB ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                                     unsigned access) {
  return add_region(pd, address, length, (access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : iova, access);
}

SLUICE_VERB ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova, int access) {
  return ibv_reg_mr_iova2(pd, address, length, iova, static_cast<unsigned>(access));
}

SLUICE_VERB ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, std::size_t length, int access) {
  return ibv_reg_mr_iova(pd, address, length, reinterpret_cast<std::uintptr_t>(address), access);
}

SLUICE_VERB int ibv_dereg_mr(ibv_mr* mr) {
  Region& region = Region::of(mr);
  Domain& domain = Domain::of(mr->pd);
  {
    const NicLock guard(domain.nic().lock());
    domain.nic().adapter().regions().remove(region.key);
    --domain.users;
  }
  delete &region;
  return 0;
}

SLUICE_VERB ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int) {
  refuse(EOPNOTSUPP, "dma-buf memory regions are not supported");
  return nullptr;
}

SLUICE_VERB int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, std::size_t, int) {
  refuse(EOPNOTSUPP, "changing a memory region is not supported: deregister it and register anew");
  return IBV_REREG_MR_ERR_INPUT;
}
