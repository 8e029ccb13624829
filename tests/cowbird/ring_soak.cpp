// A soak of Cowbird's rings: an issuer in this thread, engines one after the other in another, every byte that comes back compared.
//
// ring_soak [OPERATIONS [SEED]]: reads and writes of a small pool, of 1 to 64 bytes and now and then of up to a whole data ring, as many
// under way as the rings take. A read must bring what the writes before it have left, and the pool must end as they have left it. The
// engine is replaced 50 times a second; every second one takes the pool for memory of its own process, the others reach it by operations.
// ctest runs 300,000 operations (`cowbird_rings`), the nightly set 1,000,000,000; under the thread sanitizer by hand.
#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "cowbird/channel.h"
#include "cowbird/engine.h"
#include "remote/mapped.h"

namespace {

using namespace sluice;
using std::chrono::steady_clock;

constexpr std::size_t kPool = 4096;  // small: requests overlap
constexpr std::uint32_t kUsual = 64;
constexpr std::uint32_t kLongest = 1024;  // a data ring
constexpr auto kEngineLives = std::chrono::milliseconds(20);

struct Free {
  void operator()(std::uint8_t* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<std::uint8_t[], Free>;

Bytes pages(std::size_t bytes) {
  const std::size_t whole = (bytes + 4095) / 4096 * 4096;
  Bytes made(static_cast<std::uint8_t*>(std::aligned_alloc(4096, whole)));
  std::memset(made.get(), 0, whole);
  return made;
}

struct World {
  cowbird::InstanceLayout layout{.shape = {.entries = 64, .request_bytes = kLongest, .response_bytes = kLongest}};
  Bytes block = pages(layout.bytes());
  Bytes pool = pages(kPool);
  std::atomic<bool> stop{false};
  std::uint64_t engines = 0;
};

// The same memory, for engines that are not to know what is behind it.
class Behind final : public remote::RemoteMemory {
 public:
  explicit Behind(remote::MappedMemory& memory) : RemoteMemory(memory.scheduler()), memory_(memory) {}
  remote::Capabilities capabilities() const override { return memory_.capabilities(); }
  void submit(remote::Operation& operation) override { memory_.submit(operation); }

 private:
  remote::MappedMemory& memory_;
};

// Until stop: an engine, and when it has lived long enough another.
void serve(World& world) {
  const auto begin = steady_clock::now();
  while (!world.stop) {
    remote::Scheduler scheduler;
    remote::MappedMemory compute(scheduler), memory(scheduler);
    const remote::RemoteAddress at{remote::NodeId(0), remote::RegionKey(1), 0};
    compute.add(at, MutableBytes(world.block.get(), world.layout.bytes()));
    memory.add({remote::NodeId(1), remote::RegionKey(1), 0}, MutableBytes(world.pool.get(), kPool));
    Behind behind(memory);
    auto& pool = world.engines % 2 == 0 ? static_cast<remote::RemoteMemory&>(memory) : behind;
    cowbird::Engine engine(scheduler, compute, at, world.layout, 0, pool, {});
    ++world.engines;
    scheduler.spawn(engine.run());
    const auto end = steady_clock::now() + kEngineLives;
    while (scheduler.live() != 0) {
      const auto now = steady_clock::now();
      const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now - begin).count();
      if (scheduler.run(Time() + Duration::nanoseconds(ns)) == 0) std::this_thread::yield();
      if (now >= end || world.stop) engine.stop();
    }
    if (engine.broken()) {
      fmt::print(stderr, "the engine could not make sense of the rings\n");
      std::exit(1);
    }
  }
}

// Issues, and compares what comes.
class Issuer {
 public:
  Issuer(World& world, std::uint64_t seed)
      : world_(world), rng_(seed), shadow_(kPool), slots_(world.layout.shape.entries) {
    regions_.push_back({.node = 1, .key = 1, .base = 0, .length = kPool});
    regions_[0].write(world.block.get() + cowbird::InstanceLayout::kRegions);
    channel_ = std::make_unique<cowbird::Channel>(
        MutableBytes(world.block.get() + world.layout.channel_at(0), world.layout.channel().bytes),
        world.layout.channel(), regions_);
  }

  // False: something was wrong, and has been said.
  bool run(std::uint64_t operations) {
    for (std::uint64_t issued = 0; issued < operations || channel_->under_way() != 0;) {
      const bool full = issued == operations || !issue();
      if (!full) ++issued;
      if (full && !collect()) return false;
    }
    return std::memcmp(shadow_.data(), world_.pool.get(), kPool) == 0 || complain("the pool is not as it should be");
  }
  std::uint64_t compared() const { return compared_; }

 private:
  struct Slot {
    std::uint32_t length = 0;
    std::uint8_t into[kLongest];
    std::uint8_t expected[kLongest];
  };

  bool issue() {
    if (length_ == 0) {  // the last one was taken
      write_ = rng_.below(2) == 0;
      length_ = 1 + static_cast<std::uint32_t>(rng_.below(rng_.below(32) == 0 ? kLongest : kUsual));
      offset_ = rng_.below(kPool - kLongest);
      if (write_) {
        for (std::uint32_t i = 0; i < length_; i += 8) store_le(bytes_ + i, rng_.next());
      }
    }
    std::int64_t id = 0;
    if (write_) {
      id = channel_->async_write(0, bytes_, offset_, length_);
      if (id > 0) std::memcpy(shadow_.data() + offset_, bytes_, length_);
    } else {
      Slot& slot = slots_[(reads_ + 1) & (slots_.size() - 1)];
      if (channel_->completed(cowbird::RwType::kRead) + slots_.size() <= reads_) return false;
      id = channel_->async_read(0, offset_, slot.into, length_);
      if (id > 0) {
        ++reads_;
        slot.length = length_;
        std::memcpy(slot.expected, shadow_.data() + offset_, length_);
      }
    }
    if (id > 0) length_ = 0;
    return id > 0;
  }

  bool collect() {
    cowbird::Completion done[64];
    const std::size_t n = channel_->collect(done);
    if (n == 0) std::this_thread::yield();
    for (std::size_t i = 0; i < n; ++i) {
      const auto& id = done[i].id;
      if (done[i].status != cowbird::Status::kOk) return complain("a request failed");
      if (id.sequence() != ++completed_[id.is_write()]) return complain("a completion out of order");
      if (id.is_write()) continue;
      const Slot& slot = slots_[id.sequence() & (slots_.size() - 1)];
      if (std::memcmp(slot.into, slot.expected, slot.length) != 0) return complain("a read brought other bytes");
      compared_ += slot.length;
    }
    return true;
  }
  bool complain(const char* what) {
    fmt::print(stderr, "{} after {} reads and {} writes\n", what, completed_[0], completed_[1]);
    return false;
  }

  World& world_;
  Rng rng_;
  std::vector<std::uint8_t> shadow_;
  std::vector<Slot> slots_;
  std::vector<cowbird::Region> regions_;
  std::unique_ptr<cowbird::Channel> channel_;
  bool write_ = false;  // the next one, when length_ is not 0
  std::uint32_t length_ = 0;
  std::uint64_t offset_ = 0;
  std::uint8_t bytes_[kLongest + 8];
  std::uint64_t reads_ = 0;
  std::uint64_t completed_[2] = {};
  std::uint64_t compared_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t operations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2'000'000;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  World world;
  world.layout.write(world.block.get());
  Issuer issuer(world, seed);
  const auto begin = steady_clock::now();
  std::thread engine([&] { serve(world); });
  const bool well = issuer.run(operations);
  world.stop = true;
  engine.join();
  const double seconds = std::chrono::duration<double>(steady_clock::now() - begin).count();
  fmt::print("{} operations, seed {}: {} in {:.1f} s, {} engines, {} bytes compared\n", operations, seed,
             well ? "all right" : "WRONG", seconds, world.engines, issuer.compared());
  return well ? 0 : 1;
}
