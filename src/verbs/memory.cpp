// Protection domains, memory regions, device memory.
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

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

// Whether its pages may be read, and written if `access` lets anybody write. Where the kernel does not tell, yes.
bool is_permitted(const void* address, std::size_t length, unsigned access) {
  const bool writes = (access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {  // in order of addresses
    std::uintptr_t from = 0;
    std::uintptr_t to = 0;
    std::array<char, 5> rights{};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, rights.data()) != 3 || to <= begin) continue;
    if (from >= begin + length) break;
    if (rights[0] != 'r' || (writes && rights[1] != 'w')) return false;
  }
  return true;
}

constexpr unsigned kKnownAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                  IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND |
                                  IBV_ACCESS_HUGETLB;

bool is_known(unsigned access) {
  if ((access & ~(kKnownAccess | IBV_ACCESS_OPTIONAL_RANGE)) == 0) return true;
  refuse(EOPNOTSUPP, fmt::format("memory region: access flags {:#x} are not supported", access));
  return false;
}

// False: errno says why not.
bool may_be_registered(const void* address, std::size_t length, unsigned access) {
  if (!is_known(access)) return false;
  if (length > ~std::uintptr_t{0} - reinterpret_cast<std::uintptr_t>(address)) {
    refuse(EINVAL, fmt::format("memory region: {} bytes from {} pass the end of the address space", length, address));
    return false;
  }
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) return true;
  if (!is_mapped(address, length)) {
    refuse(EFAULT, fmt::format("memory region: {} bytes from {} are not all mapped", length, address));
    return false;
  }
  if (!is_permitted(address, length, access)) {
    refuse(EFAULT,
           fmt::format("memory region: {} bytes from {} may not all be accessed so (mprotect)", length, address));
    return false;
  }
  return true;
}

memory::Access rights(unsigned access) { return {access & memory::kAllAccess.bits}; }

// Another key for the region, with what the program sees of it; what it had before is the caller's to take back. False: errno says why not.
// REQUIRES: the lock.
bool give_key(Region& region, ProcessNic& nic, const memory::RegionAttributes& attributes) {
  const auto key = nic.adapter().regions().add(attributes);
  if (!key) {
    const bool full = nic.adapter().regions().size() >= memory::RegionTable::kMaxRegions - 1;
    refuse(full ? ENOMEM : EINVAL, key.error().message);
    return false;
  }
  region.key = *key;
  region.attributes = attributes;
  region.abi.handle = region.abi.lkey = region.abi.rkey = key->value;
  return true;
}

// Null: errno says why not.
std::unique_ptr<Region> add_region(ibv_pd* pd, void* address, unsigned access,
                                   const memory::RegionAttributes& attributes) {
  Domain& domain = Domain::of(pd);
  auto region = std::make_unique<Region>();
  region->abi.context = pd->context;
  region->abi.pd = pd;
  region->abi.addr = address;
  region->abi.length = attributes.bytes.size();
  region->access = access;
  const NicLock guard(domain.nic().lock());
  if (!give_key(*region, domain.nic(), attributes)) return nullptr;
  ++domain.users;
  return region;
}

ibv_mr* add_host_region(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova, unsigned access) {
  if (!may_be_registered(address, length, access)) return nullptr;
  auto region = add_region(pd, address, access,
                           {.pd = Domain::of(pd).id,
                            .bytes = {static_cast<std::uint8_t*>(address), length},
                            .address = iova,
                            .access = rights(access)});
  return region ? &region.release()->abi : nullptr;
}

// --- device memory: the NIC's own, which the host reaches by copying only ---

bool is_inside(const DeviceMemory& memory, std::uint64_t offset, std::size_t length) {
  return offset <= memory.bytes.size() && length <= memory.bytes.size() - offset;
}

int copy_to_device(ibv_dm* dm, std::uint64_t offset, const void* from, std::size_t length) {
  DeviceMemory& memory = DeviceMemory::of(dm);
  if (!is_inside(memory, offset, length)) return refuse(EINVAL, "device memory: beyond its end");
  const NicLock guard(Context::of(dm->context).nic->lock());
  std::memcpy(memory.bytes.data() + offset, from, length);
  return 0;
}

int copy_from_device(void* to, ibv_dm* dm, std::uint64_t offset, std::size_t length) {
  DeviceMemory& memory = DeviceMemory::of(dm);
  if (!is_inside(memory, offset, length)) return refuse(EINVAL, "device memory: beyond its end");
  const NicLock guard(Context::of(dm->context).nic->lock());
  std::memcpy(to, memory.bytes.data() + offset, length);
  return 0;
}

}  // namespace

ibv_dm* allocate_device_memory(ibv_context* context, ibv_alloc_dm_attr* a) {
  ProcessNic& nic = *Context::of(context).nic;
  constexpr std::uint32_t kMostAligned = 12;
  if (a->comp_mask != 0 || a->length == 0 || a->log_align_req > kMostAligned) {
    refuse(EINVAL, fmt::format("device memory: at least a byte, aligned to at most {}", 1 << kMostAligned));
    return nullptr;
  }
  auto memory = std::make_unique<DeviceMemory>();
  {
    const NicLock guard(nic.lock());
    if (a->length > kDeviceMemory - nic.device_memory_used) {
      refuse(ENOMEM, fmt::format("device memory: {} of {} bytes are left", kDeviceMemory - nic.device_memory_used,
                                 kDeviceMemory));
      return nullptr;
    }
    nic.device_memory_used += a->length;
  }
  memory->bytes.resize(a->length);
  memory->abi = {.context = context,
                 .memcpy_to_dm = copy_to_device,
                 .memcpy_from_dm = copy_from_device,
                 .comp_mask = 0,
                 .handle = 0};
  return &memory.release()->abi;
}

int free_device_memory(ibv_dm* dm) {
  DeviceMemory& memory = DeviceMemory::of(dm);
  ProcessNic& nic = *Context::of(dm->context).nic;
  {
    const NicLock guard(nic.lock());
    if (memory.users != 0) return refuse(EBUSY, "device memory: regions still use it");
    nic.device_memory_used -= memory.bytes.size();
  }
  delete &memory;
  return 0;
}

ibv_mr* register_device_memory(ibv_pd* pd, ibv_dm* dm, std::uint64_t offset, std::size_t length, unsigned access) {
  DeviceMemory& memory = DeviceMemory::of(dm);
  if (!is_known(access)) return nullptr;
  if ((access & IBV_ACCESS_ZERO_BASED) == 0 || !is_inside(memory, offset, length)) {
    refuse(EINVAL, "device memory: a region of it is zero-based (IBV_ACCESS_ZERO_BASED) and inside");
    return nullptr;
  }
  auto region = add_region(pd, nullptr, access,
                           {.pd = Domain::of(pd).id,
                            .bytes = {memory.bytes.data() + offset, length},
                            .address = 0,
                            .access = rights(access),
                            .kind = memory::RegionKind::kDevice});
  if (!region) return nullptr;
  region->device_memory = &memory;
  const NicLock guard(Domain::of(pd).nic().lock());
  ++memory.users;
  return &region.release()->abi;
}

}  // namespace sluice::verbs

using namespace sluice;
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
  return add_host_region(pd, address, length, (access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : iova, access);
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
    if (region.device_memory != nullptr) --region.device_memory->users;
    --domain.users;
  }
  delete &region;
  return 0;
}

SLUICE_VERB ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int) {
  refuse(EOPNOTSUPP, "dma-buf memory regions are not supported");
  return nullptr;
}

// The keys are others afterwards. What is refused leaves the region as it was.
SLUICE_VERB int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, std::size_t length, int access) {
  Region& region = Region::of(mr);
  const bool moves = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  const bool permits = (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0;
  if (region.device_memory != nullptr || flags == 0 || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) != 0 ||
      (moves && (address == nullptr || length == 0)) || (!permits && access != 0)) {
    refuse(EINVAL,
           "memory region: another address and length, domain or access, each with its flag, for the program's memory");
    return IBV_REREG_MR_ERR_INPUT;
  }
  ibv_pd* const domain = (flags & IBV_REREG_MR_CHANGE_PD) != 0 ? pd : mr->pd;
  if (domain->context != mr->context) {
    refuse(EINVAL, "a memory region and its protection domain are of one context");
    return IBV_REREG_MR_ERR_CMD;
  }
  const unsigned permitted = permits ? static_cast<unsigned>(access) : region.access;
  memory::RegionAttributes attributes = region.attributes;
  attributes.pd = Domain::of(domain).id;
  attributes.access = rights(permitted);
  if (moves) {
    attributes.bytes = {static_cast<std::uint8_t*>(address), length};
    attributes.address = (permitted & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : reinterpret_cast<std::uintptr_t>(address);
  }
  if ((moves || permits) && !may_be_registered(attributes.bytes.data(), attributes.bytes.size(), permitted))
    return IBV_REREG_MR_ERR_CMD;
  ProcessNic& nic = Domain::of(domain).nic();
  const NicLock guard(nic.lock());
  const memory::Key before = region.key;
  if (!give_key(region, nic, attributes)) return IBV_REREG_MR_ERR_CMD;
  nic.adapter().regions().remove(before);
  --Domain::of(mr->pd).users;
  ++Domain::of(domain).users;
  mr->pd = domain;
  mr->addr = attributes.bytes.data();
  mr->length = attributes.bytes.size();
  region.access = permitted;
  return 0;
}
