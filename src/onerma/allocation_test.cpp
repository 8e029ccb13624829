// Nothing is allocated on the way of an operation: neither by us nor by OpenSSL.
#include <gtest/gtest.h>
#include <openssl/crypto.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "onerma/test_world.h"

namespace {

std::atomic<std::size_t> allocations{0};

void* counted(std::size_t size) {
  ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void* openssl_malloc(std::size_t size, const char*, int) {
  ++allocations;
  return std::malloc(size);
}
void* openssl_realloc(void* p, std::size_t size, const char*, int) {
  ++allocations;
  return std::realloc(p, size);
}
void openssl_free(void* p, const char*, int) { std::free(p); }

// Before OpenSSL asks for the first byte.
const bool counting = CRYPTO_set_mem_functions(openssl_malloc, openssl_realloc, openssl_free) == 1;

}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace sluice::onerma {
namespace {

constexpr std::uint64_t kBase = 0x1000;

struct Load {
  RemoteOnerma* client = nullptr;
  remote::RemoteAddress at;
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(10'000);
  remote::Operation operation;
  std::uint64_t done = 0;
  bool writes = false;

  void submit() {
    writes = !writes;
    operation = writes ? remote::write_operation(at, bytes) : remote::read_operation(at, bytes);
    operation.context = this;
    operation.on_complete = [](remote::Operation& ended) {
      auto& self = *static_cast<Load*>(ended.context);
      ++self.done;
      self.submit();
    };
    client->submit(operation);
  }
};

TEST(OnermaAllocation, TransfersOverABadNetworkAllocateNothing) {
  ASSERT_TRUE(counting);
  port::Impairment bad;
  bad.drop = bad.duplicate = 20'000;
  World world(5, bad);
  World::Host& a = world.add_host();
  World::Host& b = world.add_host();
  std::vector<std::uint8_t> memory(10'000);
  const RegionId region = b.node->regions().add(memory, kBase, memory::kAllAccess, test_key(1)).value();
  const Algorithm1 policy;
  RemoteOnerma client(world.scheduler, a.node->initiator(), policy, {});
  client.add_node(remote::NodeId(1), b.node->address());
  client.add_grant(remote::NodeId(1), *b.node->regions().grant(region, InitiatorId(1), {Rights::kAll}));
  a.clients.push_back(&client);
  std::vector<Load> loads(8);
  for (Load& load : loads) {
    load.client = &client;
    load.at = {remote::NodeId(1), remote::RegionKey(region.value), kBase};
    load.submit();
  }
  world.run_for(Duration::milliseconds(2));
  const std::size_t before = allocations;
  const std::uint64_t done = loads[0].done;
  world.run_for(Duration::milliseconds(20));
  EXPECT_EQ(allocations - before, 0u);
  EXPECT_GT(loads[0].done, done + 50);
  EXPECT_GT(client.counters().retries, 100u);
}

}  // namespace
}  // namespace sluice::onerma
