#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/effort_test.h"
#include "base/rng.h"
#include "cowbird/channel.h"
#include "cowbird/channel_impl.h"
#include "cowbird/engine.h"
#include "cowbird/entry_check.h"
#include "cowbird/error_log.h"
#include "cowbird/exports.h"
#include "cowbird/poll_group.h"
#include "cowbird/random_driver.h"
#include "remote/local.h"
#include "remote/mapped.h"

namespace sluice::cowbird {
namespace {

using remote::LocalFabric;
using remote::LocalMemory;
using remote::LocalMode;
using remote::LocalOptions;
using remote::NodeId;
using remote::RemoteAddress;

constexpr std::uint64_t kBlockBase = 0x10000;
constexpr std::uint64_t kPoolBase = 0x7000'0000;

// One node's memory is in this process, the other's is not.
class PartlyNear final : public remote::RemoteMemory {
 public:
  PartlyNear(remote::MappedMemory& near, NodeId node, remote::RemoteMemory& far)
      : RemoteMemory(near.scheduler()), near_(near), node_(node), far_(far) {}
  remote::Capabilities capabilities() const override { return far_.capabilities(); }
  remote::MappedMemory* mapped() override { return &near_; }
  void submit(remote::Operation& operation) override {
    if (operation.remote.node == node_) return near_.submit(operation);
    far_.submit(operation);
  }

 private:
  remote::MappedMemory& near_;
  NodeId node_;
  remote::RemoteMemory& far_;
};

// A compute node whose NIC reads entries before the tail that it was asked for first, and finds what stood there when the last tail was asked for.
class Overtaking final : public remote::RemoteMemory {
 public:
  // `ring`: of the entries, which stand `at` there.
  Overtaking(remote::RemoteMemory& under, std::uint64_t at, ByteView ring)
      : RemoteMemory(under.scheduler()), under_(under), at_(at), ring_(ring), now_(ring.begin(), ring.end()) {}
  remote::Capabilities capabilities() const override { return under_.capabilities(); }
  void submit(remote::Operation& operation) override {
    const std::uint64_t at = operation.remote.address - at_;
    const bool is_of_entries = at < ring_.size();
    const bool is_tail = operation.kind == remote::OpKind::kRead && operation.local.size() == kLine && !is_of_entries;
    if (is_tail) before_ = std::exchange(now_, {ring_.begin(), ring_.end()});
    if (!std::exchange(after_tail_, is_tail) || !is_of_entries) return under_.submit(operation);
    std::ranges::copy(ByteView(before_).subspan(at, operation.local.size()), operation.local.begin());
    ++overtaken;
    complete(operation, remote::Status::kOk);
  }
  std::size_t overtaken = 0;

 private:
  remote::RemoteMemory& under_;
  std::uint64_t at_;
  ByteView ring_;
  std::vector<std::uint8_t> now_;
  std::vector<std::uint8_t> before_;
  bool after_tail_ = false;
};

// A compute node that takes WRITEs when the test says so, and answers as the test says.
class Slow final : public remote::RemoteMemory {
 public:
  Slow(remote::RemoteMemory& under, MutableBytes bytes, std::uint64_t progress)
      : RemoteMemory(under.scheduler()), under_(under), bytes_(bytes), progress_(progress) {}
  remote::Capabilities capabilities() const override { return under_.capabilities(); }
  void submit(remote::Operation& operation) override {
    if (shut_out) return complete(operation, remote::Status::kUnreachable);
    if (operation.kind != remote::OpKind::kWrite) return under_.submit(operation);
    open_.push_back(&operation);
  }
  bool shut_out = false;
  // Of the publications that have come and are not answered, in order: the reads that each says are complete.
  std::vector<std::uint64_t> open() const {
    std::vector<std::uint64_t> reads;
    for (const remote::Operation* operation : open_) {
      if (operation->remote.address == progress_)
        reads.push_back(load_le<std::uint64_t>(operation->local.data() + ProgressLine::kReads));
    }
    return reads;
  }
  // The first so many take effect, with this answer.
  void answer(std::size_t publications, remote::Status status) {
    while (publications != 0 && !open_.empty()) {
      remote::Operation& operation = *open_.front();
      open_.pop_front();
      std::ranges::copy(operation.local,
                        bytes_.begin() + static_cast<std::ptrdiff_t>(operation.remote.address - kBlockBase));
      if (operation.remote.address == progress_) --publications;
      complete(operation, status);
    }
  }

 private:
  remote::RemoteMemory& under_;
  MutableBytes bytes_;
  std::uint64_t progress_;
  std::deque<remote::Operation*> open_;
};

// One compute node, memory nodes with a region each, and an engine, on a fabric of the test's choice.
class World {
 public:
  explicit World(const LocalOptions& options,
                 Shape shape = {.entries = 16, .request_bytes = 1024, .response_bytes = 1024}, std::size_t pools = 1,
                 EngineConfig config = {}, std::uint32_t threads = 1)
      : fabric(options), layout{.shape = shape, .channels = threads}, config_(config) {
    compute_node = fabric.add_node();
    block = fabric.add_region(compute_node, kBlockBase, layout.bytes());
    layout.write(bytes().data());
    for (std::size_t i = 0; i < pools; ++i) {
      const NodeId node = fabric.add_node();
      pools_.push_back(fabric.add_region(node, kPoolBase, kPoolBytes));
      add_region({.node = node.value, .key = pools_[i].key.value, .base = kPoolBase, .length = kPoolBytes});
    }
    for (std::uint32_t i = 0; i < threads; ++i) {
      channels.push_back(std::make_unique<Channel>(bytes().subspan(layout.channel_at(i)), layout.channel(), regions));
    }
  }

  MutableBytes bytes() { return fabric.region_bytes(block); }
  MutableBytes pool(std::size_t i = 0) { return fabric.region_bytes(pools_[i]); }
  Channel& channel(std::size_t i = 0) { return *channels[i]; }
  NodeId pool_node(std::size_t i = 0) const { return pools_[i].node; }

  void add_region(const Region& region) {
    region.write(bytes().data() + InstanceLayout::kRegions + regions.size() * kRegionBytes);
    regions.push_back(region);
  }

  // A client of the fabric with an engine for every channel.
  struct EngineProcess {
    std::unique_ptr<LocalMemory> memory;
    std::unique_ptr<remote::MappedMemory> near;  // the pools, as memory of the engine's process
    std::unique_ptr<PartlyNear> partly;
    std::unique_ptr<Overtaking> overtaking;
    std::unique_ptr<Slow> slow;
    std::vector<std::unique_ptr<Engine>> engines;
    std::size_t running = 0;
  };
  EngineProcess& start_engine() {
    auto& process = *engines.emplace_back(std::make_unique<EngineProcess>());
    process.memory = std::make_unique<LocalMemory>(scheduler, fabric);
    process.near = std::make_unique<remote::MappedMemory>(scheduler);
    for (const RemoteAddress& pool : pools_) {
      if (near) process.near->add(pool, fabric.region_bytes(pool));
    }
    remote::RemoteMemory* pool = process.memory.get();
    if (near) pool = process.near.get();
    if (partly_near) {
      process.near->add(pools_[0], this->pool());
      process.partly = std::make_unique<PartlyNear>(*process.near, pool_node(), *process.memory);
      pool = process.partly.get();
    }
    remote::RemoteMemory* compute = process.memory.get();
    if (overtaking) {
      const std::size_t at = layout.channel_at(0) + ChannelLayout::kMetadata;
      process.overtaking = std::make_unique<Overtaking>(*process.memory, kBlockBase + at,
                                                        bytes().subspan(at, layout.shape.entries * kEntryBytes));
      compute = process.overtaking.get();
    }
    if (slow) {
      process.slow = std::make_unique<Slow>(*process.memory, bytes(),
                                            kBlockBase + layout.channel_at(0) + ChannelLayout::kProgress);
      compute = process.slow.get();
    }
    for (std::uint32_t i = 0; i < layout.channels; ++i) {
      process.engines.push_back(std::make_unique<Engine>(scheduler, *compute, block, layout, i, *pool, config_));
      ++process.running;
      scheduler.spawn(run(*process.engines.back(), process));
    }
    return process;
  }
  static remote::Task<void> run(Engine& engine, EngineProcess& process) {
    co_await engine.run();
    --process.running;
  }

  // Moves on by some steps of fabric and scheduler.
  void step(int steps = 1) {
    for (int i = 0; i < steps; ++i) {
      now = now + Duration::nanoseconds(100);
      scheduler.run(now);
      if (!fabric.pump(now)) now = std::max(now, std::min(scheduler.next_deadline(), now + Duration::milliseconds(1)));
    }
  }
  template <class Condition>
  bool run_until(Condition condition, int most = 2'000'000) {
    for (int i = 0; i < most; ++i) {
      if (condition()) return true;
      step();
    }
    return condition();
  }
  std::vector<Completion> wait_for(std::size_t count, std::size_t channel = 0) {
    std::vector<Completion> all;
    run_until([&] {
      Completion out[8];
      const auto n = channels[channel]->collect(out);
      all.insert(all.end(), out, out + n);
      return all.size() >= count;
    });
    return all;
  }

  static constexpr std::size_t kPoolBytes = 1 << 16;
  LocalFabric fabric;
  InstanceLayout layout;
  remote::Scheduler scheduler;
  Time now;
  NodeId compute_node;
  RemoteAddress block;
  std::vector<Region> regions;
  std::vector<std::unique_ptr<Channel>> channels;
  std::vector<std::unique_ptr<EngineProcess>> engines;
  bool near = false;         // whether engines reach the pools as memory of their own
  bool partly_near = false;  // the first of them
  bool overtaking = false;   // whether the compute node's memory is read against the order
  bool slow = false;         // whether it is written when the test says so

 private:
  EngineConfig config_;
  std::vector<RemoteAddress> pools_;
};

LocalOptions seeded(std::uint64_t seed) { return {.mode = LocalMode::kSeeded, .seed = seed, .piece_bytes = 8}; }

TEST(Cowbird, AReadBringsTheBytesOfTheRegionToItsDestination) {
  World w(seeded(1));
  const auto expected = pattern(40, 7);
  std::copy(expected.begin(), expected.end(), w.pool().begin() + 100);
  w.start_engine();
  std::vector<std::uint8_t> into(40);
  const auto id = w.channel().async_read(0, 100, into.data(), 40);
  ASSERT_GT(id, 0);
  EXPECT_FALSE(w.channel().is_complete(RequestId(id)));
  const auto done = w.wait_for(1);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id.value(), id);
  EXPECT_EQ(done[0].status, Status::kOk);
  EXPECT_EQ(into, expected);
}

TEST(Cowbird, EntriesComeWithTheProbeThatTellsOfThem) {
  World w(seeded(1));
  const Engine& engine = *w.start_engine().engines[0];
  std::uint8_t bytes[8];
  for (int i = 0; i < 40; ++i) {
    ASSERT_GT(w.channel().async_read(0, 0, bytes, 8), 0);
    ASSERT_EQ(w.wait_for(1).size(), 1u);
  }
  const std::uint64_t at_first = engine.counters().fetches;
  EXPECT_LE(at_first, 1u) << "with the first probe";
  for (int i = 0; i < 14; ++i) ASSERT_GT(w.channel().async_read(0, 0, bytes, 8), 0);
  ASSERT_EQ(w.wait_for(14).size(), 14u);
  EXPECT_GT(engine.counters().fetches, at_first) << "more than were expected, and beyond the ring's end";
}

// Reads, each in a publication of its own.
struct SlowlyPublished : World {
  SlowlyPublished() : World(seeded(1), {.entries = 16, .request_bytes = 1024, .response_bytes = 1024}, 1, quiet()) {
    slow = true;
    regions[0].length = 1 << 20;  // the issuer believes in more than the engine does
    memory = start_engine().slow.get();
  }
  static EngineConfig quiet() { return {.heartbeat = Duration::seconds(100)}; }
  void read(std::uint64_t offset = 0) {
    ASSERT_GT(channel().async_read(0, offset, into, 8), 0);
    step(200);
  }
  // Heartbeats of nothing aside.
  void begin() {
    ASSERT_TRUE(run_until([&] { return !memory->open().empty(); }));
    memory->answer(1, remote::Status::kOk);
    step(200);
    ASSERT_THAT(memory->open(), testing::IsEmpty());
  }
  Slow* memory;
  std::uint8_t into[8] = {};
};

TEST(Cowbird, SomePublicationsAreUnderWayAtOnceAndNoMore) {
  SlowlyPublished w;
  w.begin();
  std::vector<std::uint64_t> expected;
  for (std::uint64_t i = 1; i <= Engine::kMostPublications; ++i) {
    w.read();
    expected.push_back(i);
    EXPECT_EQ(w.memory->open(), expected);
  }
  w.read();
  w.read();
  EXPECT_EQ(w.memory->open(), expected);
  w.memory->answer(1, remote::Status::kOk);
  w.step(200);
  expected.erase(expected.begin());
  expected.push_back(Engine::kMostPublications + 2);
  EXPECT_EQ(w.memory->open(), expected) << "what has been complete meanwhile goes into one";
  w.memory->answer(expected.size(), remote::Status::kOk);
  EXPECT_EQ(w.wait_for(Engine::kMostPublications + 2).size(), Engine::kMostPublications + 2);
}

// The application may have seen the last of them.
TEST(Cowbird, PublicationsThatMayHaveHappenedAreFollowedByNoLess) {
  SlowlyPublished w;
  w.begin();
  for (std::uint64_t i = 1; i <= Engine::kMostPublications; ++i) w.read();
  ASSERT_EQ(w.memory->open().size(), Engine::kMostPublications);
  w.memory->answer(Engine::kMostPublications - 1, remote::Status::kUnknown);
  w.read();
  EXPECT_EQ(w.memory->open().size(), 1u)
      << "nothing new follows one that has failed, nor is it repeated before the last has ended";
  w.memory->answer(1, remote::Status::kUnknown);
  EXPECT_EQ(w.wait_for(Engine::kMostPublications).size(), Engine::kMostPublications);
  ASSERT_TRUE(w.run_until([&] { return !w.memory->open().empty(); }));
  w.step(200);
  EXPECT_THAT(w.memory->open(), testing::ElementsAre(Engine::kMostPublications, Engine::kMostPublications + 1));
  w.memory->answer(2, remote::Status::kOk);
  EXPECT_EQ(w.wait_for(1).size(), 1u);
}

TEST(Cowbird, PublicationsThatAreRepeatedAndTellOfErrorsAreFollowedByNone) {
  SlowlyPublished w;
  w.begin();
  w.read();
  w.read(1 << 19);
  ASSERT_THAT(w.memory->open(), testing::ElementsAre(1u, 2u));
  w.memory->answer(2, remote::Status::kUnknown);
  ASSERT_TRUE(w.run_until([&] { return !w.memory->open().empty(); }));
  w.read();
  EXPECT_THAT(w.memory->open(), testing::ElementsAre(2u)) << "both in one, and the log must stay as it is";
  w.memory->answer(1, remote::Status::kOk);
  w.step(200);
  EXPECT_THAT(w.memory->open(), testing::ElementsAre(3u));
}

// It was stopped with a write that was to follow a read, and another engine has been let in meanwhile.
TEST(Cowbird, AnEngineThatIsShutOutWritesNothingAnyMore) {
  for (const bool shut_out : {false, true}) {
    SlowlyPublished w;
    w.begin();
    w.read();
    const std::uint8_t bytes[8] = {1, 2, 3};
    ASSERT_GT(w.channel().async_write(0, bytes, 0, 8), 0);
    w.step(200);
    ASSERT_EQ(w.pool()[0], 0) << "the read may be executed again";
    w.now = w.now + EngineConfig{}.leaves_within;
    w.memory->shut_out = shut_out;
    w.memory->answer(1, remote::Status::kOk);
    w.step(5000);
    EXPECT_EQ(w.pool()[0], shut_out ? 0 : 1);
  }
}

TEST(Cowbird, NothingFollowsAPublicationThatTellsOfErrorsUntilItHasEnded) {
  SlowlyPublished w;
  w.begin();
  w.read(1 << 19);
  w.read();
  EXPECT_THAT(w.memory->open(), testing::ElementsAre(1u));
  w.memory->answer(1, remote::Status::kOk);
  w.step(200);
  EXPECT_THAT(w.memory->open(), testing::ElementsAre(2u));
  w.memory->answer(1, remote::Status::kOk);
  const auto done = w.wait_for(2);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::kOutOfRange);
  EXPECT_EQ(done[1].status, Status::kOk);
}

TEST(Cowbird, EntriesThatWereReadBeforeTheirTailAreReadAgain) {
  World w(seeded(1));
  w.overtaking = true;
  const auto& process = w.start_engine();
  std::uint64_t value = 0;
  for (std::uint64_t i = 1; i < 40; ++i) {
    ASSERT_GT(w.channel().async_write(0, &i, 0, 8), 0);
    ASSERT_GT(w.channel().async_read(0, 0, &value, 8), 0);
    ASSERT_EQ(w.wait_for(2).size(), 2u);
    ASSERT_EQ(value, i);
  }
  EXPECT_GE(process.overtaking->overtaken, 39u);
  EXPECT_GE(process.engines[0]->counters().fetches, 39u);
}

// Keeps the ring of entries as it stood when so many stores to it had been done.
struct RingImage {
  MutableBytes ring;
  std::size_t stores = 0;  // still to come; 0: none are counted
  std::vector<std::uint8_t> bytes{};

  void stored() {
    if (stores != 0 && --stores == 0) bytes.assign(ring.begin(), ring.end());
  }
};

class WatchedWords : public PlainWords {
 public:
  WatchedWords(std::uint8_t* block, RingImage& image) : PlainWords(block), block_(block), image_(&image) {}
  void store(std::size_t at, std::uint64_t value) {
    PlainWords::store(at, value);
    if (block_ + at >= image_->ring.data() && block_ + at < image_->ring.data() + image_->ring.size()) image_->stored();
  }
  void publish(std::size_t at, std::uint64_t value) { store(at, value); }

 private:
  std::uint8_t* block_;
  RingImage* image_;
};

// A compute node whose NIC reads entries before the tail that it was asked for first: once, as the image has them.
class Torn final : public remote::RemoteMemory {
 public:
  Torn(remote::RemoteMemory& under, std::uint64_t at, RingImage& image)
      : RemoteMemory(under.scheduler()), under_(under), at_(at), image_(image) {}
  remote::Capabilities capabilities() const override { return under_.capabilities(); }
  void submit(remote::Operation& operation) override {
    const std::uint64_t from = operation.remote.address - at_;
    if (operation.kind != remote::OpKind::kRead || from >= image_.ring.size() || image_.bytes.empty())
      return under_.submit(operation);
    const std::vector<std::uint8_t> bytes = std::exchange(image_.bytes, {});
    std::ranges::copy(ByteView(bytes).subspan(from, operation.local.size()), operation.local.begin());
    complete(operation, remote::Status::kOk);
  }

 private:
  remote::RemoteMemory& under_;
  std::uint64_t at_;
  RingImage& image_;
};

TEST(Cowbird, AnEntryOfWhichOnlyTheFirstStoresAreSeenIsReadAgain) {
  for (const RwType last_lap : {RwType::kRead, RwType::kWrite}) {
    for (std::size_t stores = 1; stores <= 4; ++stores) {
      remote::Scheduler scheduler;
      const InstanceLayout layout{.shape = {.entries = 8, .request_bytes = 512, .response_bytes = 512}};
      std::vector<std::uint64_t> words(layout.bytes() / 8);
      const MutableBytes block(reinterpret_cast<std::uint8_t*>(words.data()), layout.bytes());
      layout.write(block.data());
      std::vector<std::uint8_t> held = pattern(4096, 7);
      remote::MappedMemory far(scheduler), rings(scheduler);
      far.add({NodeId(7), remote::RegionKey(9), kPoolBase}, held);
      rings.add({NodeId(0), remote::RegionKey(1), kBlockBase}, block);
      const std::vector<Region> regions{{.node = 7, .key = 9, .base = kPoolBase, .length = held.size()}};
      regions[0].write(block.data() + InstanceLayout::kRegions);
      const std::size_t ring = layout.channel_at(0) + ChannelLayout::kMetadata;
      RingImage image{.ring = block.subspan(ring, layout.shape.entries * kEntryBytes)};
      Torn compute(rings, kBlockBase + ring, image);
      BasicChannel<WatchedWords> channel(WatchedWords(block.data() + layout.channel_at(0), image), layout.channel(),
                                         regions);
      Engine engine(scheduler, compute, {NodeId(0), remote::RegionKey(1), kBlockBase}, layout, 0, far, {});
      scheduler.spawn(engine.run());
      Time now;
      Completion done[8];
      std::uint8_t small[8] = {}, into[64] = {};
      const auto finish = [&] {
        for (int i = 0; i < 2000; ++i) {
          now = now + Duration::microseconds(1);
          scheduler.run(now);
          if (channel.collect(done) != 0) return done[0].status;
        }
        return Status::kEngineAbsent;
      };
      for (int i = 0; i < 8; ++i) {
        const auto id =
            last_lap == RwType::kRead ? channel.async_read(0, 0, small, 8) : channel.async_write(0, small, 0, 8);
        ASSERT_GT(id, 0);
        ASSERT_EQ(finish(), Status::kOk);
      }
      image.stores = stores;
      ASSERT_GT(channel.async_read(0, 100, into, 64), 0);
      ASSERT_FALSE(image.bytes.empty());
      EXPECT_EQ(finish(), Status::kOk);
      EXPECT_TRUE(image.bytes.empty());
      EXPECT_TRUE(std::equal(into, into + 64, held.begin() + 100)) << stores << " stores";
      EXPECT_FALSE(engine.broken());
      engine.stop();
      while (scheduler.live() != 0) scheduler.run(now = now + Duration::milliseconds(1));
    }
  }
}

// As many requests as an id can name: the ring is said to be full rather than two be called the same.
TEST(Cowbird, IssuesNoRequestThatAnIdCannotName) {
  const ChannelLayout layout({.entries = 16, .request_bytes = 1024, .response_bytes = 1024});
  std::vector<std::uint64_t> words(layout.bytes / 8);
  const MutableBytes block(reinterpret_cast<std::uint8_t*>(words.data()), layout.bytes);
  const std::uint64_t first = RequestId::kMostSequence - kMostInstanceEntries - 20;
  store_le(block.data() + ChannelLayout::kProgress + ProgressLine::kReads, first);
  const std::vector<Region> regions{{.node = 1, .key = 1, .base = 0, .length = 64}};
  Channel channel(block, layout, regions);
  std::uint8_t bytes[8];
  std::uint64_t issued = 0;
  for (std::uint64_t done = first; issued < 1000; ++issued, ++done) {
    const auto id = channel.async_read(0, 0, bytes, 8);
    if (id < 0) {
      EXPECT_EQ(id, -static_cast<std::int64_t>(Status::kMetadataFull));
      break;
    }
    ASSERT_EQ(RequestId(id).sequence(), done + 1);
    ASSERT_EQ(RequestId(id).region(), 0u);
    store_le(block.data() + ChannelLayout::kProgress + ProgressLine::kReads, done + 1);
    store_le(block.data() + ChannelLayout::kProgress + ProgressLine::kHead, issued + 1);
    channel.advance();
  }
  EXPECT_GE(issued, 20u);
  EXPECT_LE(issued, 20u + 16u);
  EXPECT_GT(channel.async_write(0, bytes, 0, 8), 0) << "of the other type";
}

// An engine that stores something between two of the channel's loads.
class Interrupted {
 public:
  Interrupted(PlainWords words, const std::function<void()>& meanwhile) : words_(words), meanwhile_(&meanwhile) {}
  std::uint64_t load(std::size_t at) const {
    const std::uint64_t value = words_.load(at);
    (*meanwhile_)();
    return value;
  }
  void store(std::size_t at, std::uint64_t value) { words_.store(at, value); }
  void publish(std::size_t at, std::uint64_t value) { words_.publish(at, value); }
  void copy_in(std::size_t at, const void* from, std::size_t length) { words_.copy_in(at, from, length); }
  void copy_out(void* to, std::size_t at, std::size_t length) const { words_.copy_out(to, at, length); }
  void own(std::size_t) const {}
  void look_soon(std::size_t) const {}

 private:
  PlainWords words_;
  const std::function<void()>* meanwhile_;
};

TEST(Cowbird, AFailureIsNotTakenForSuccessWheneverTheEngineTellsOfIt) {
  const ChannelLayout layout({.entries = 4, .request_bytes = 64, .response_bytes = 64});
  const std::vector<Region> regions{{.node = 1, .key = 1, .base = 0, .length = 64}};
  for (const bool collects : {true, false}) {
    for (int after = 1; after <= 8; ++after) {
      std::vector<std::uint64_t> words(layout.bytes / 8);
      auto* const block = reinterpret_cast<std::uint8_t*>(words.data());
      int loads = -1'000;  // none of those before
      const RequestId id(RwType::kRead, 0, 1);
      const std::function<void()> fail = [&] {
        if (++loads != after) return;
        const std::size_t log = ChannelLayout::kErrorLog;
        store_le(block + log + kErrorBytes, static_cast<std::uint64_t>(id.value()));
        store_le(block + log + kErrorBytes + 8, static_cast<std::uint64_t>(Status::kDenied));
        store_le(block + log, std::uint64_t{1});
        store_le(block + ChannelLayout::kProgress + ProgressLine::kReads, std::uint64_t{1});
        store_le(block + ChannelLayout::kProgress + ProgressLine::kHead, std::uint64_t{1});
      };
      BasicChannel<Interrupted> channel({PlainWords(block), fail}, layout, regions);
      std::uint8_t into[8] = {0xA5};
      ASSERT_EQ(channel.async_read(0, 0, into, 8), id.value());
      loads = 0;
      for (int looks = 0; looks < 10 && !channel.is_complete(id); ++looks) {
        Completion done;
        if (!collects) {
          channel.advance();
        } else if (channel.collect({&done, 1}) == 1) {
          EXPECT_EQ(done.status, Status::kDenied);
        }
      }
      EXPECT_TRUE(channel.is_complete(id));
      EXPECT_EQ(channel.status_of(id), Status::kDenied) << "after load " << after;
      EXPECT_EQ(into[0], 0xA5);
    }
  }
}

// What the channel stores, and which of it may be seen only after all before.
class Recorded {
 public:
  struct Store {
    std::size_t at;
    bool publishes;
    friend bool operator==(const Store&, const Store&) = default;
  };
  Recorded(PlainWords words, std::vector<Store>& stores) : words_(words), stores_(&stores) {}
  std::uint64_t load(std::size_t at) const { return words_.load(at); }
  void store(std::size_t at, std::uint64_t value) {
    stores_->push_back({at, false});
    words_.store(at, value);
  }
  void publish(std::size_t at, std::uint64_t value) {
    stores_->push_back({at, true});
    words_.publish(at, value);
  }
  void copy_in(std::size_t at, const void* from, std::size_t length) {
    stores_->push_back({at, false});
    words_.copy_in(at, from, length);
  }
  void copy_out(void* to, std::size_t at, std::size_t length) const { words_.copy_out(to, at, length); }
  void own(std::size_t) const {}
  void look_soon(std::size_t) const {}

 private:
  PlainWords words_;
  std::vector<Store>* stores_;
};

// Compilers and processors without x86's order keep to what is said, no more.
TEST(Cowbird, AnEntryIsSeenInTheOrderThatEnginesRelyOn) {
  const ChannelLayout layout({.entries = 4, .request_bytes = 64, .response_bytes = 64});
  const std::vector<Region> regions{{.node = 1, .key = 1, .base = 0, .length = 64}};
  std::vector<std::uint64_t> words(layout.bytes / 8);
  auto* const block = reinterpret_cast<std::uint8_t*>(words.data());
  std::vector<Recorded::Store> stores;
  BasicChannel<Recorded> channel({PlainWords(block), stores}, layout, regions);
  std::uint8_t bytes[8] = {};
  const std::size_t entry = ChannelLayout::kMetadata;
  const std::size_t tail = ChannelLayout::kIssuer + IssuerLine::kTail;
  ASSERT_GT(channel.async_write(0, bytes, 0, 8), 0);
  ASSERT_EQ(stores.size(), 6u);
  EXPECT_EQ(stores[3], (Recorded::Store{entry + 16, true}));
  EXPECT_EQ(stores[4], (Recorded::Store{entry + 24, true}));
  EXPECT_EQ(stores[5], (Recorded::Store{tail, true}));
  stores.clear();
  store_le(block + ChannelLayout::kErrorLog, std::uint64_t{1});
  channel.advance();
  EXPECT_THAT(stores, testing::ElementsAre(Recorded::Store{ChannelLayout::kIssuer + IssuerLine::kErrorsTaken, true}))
      << "its place in the log may be another's from then on";
}

TEST(Cowbird, AChannelIsNotLedBeyondWhatItHasIssued) {
  const ChannelLayout layout({.entries = 4, .request_bytes = 64, .response_bytes = 64});
  const std::vector<Region> regions{{.node = 1, .key = 1, .base = 0, .length = 64}};
  std::vector<std::uint64_t> words(layout.bytes / 8);
  const MutableBytes block(reinterpret_cast<std::uint8_t*>(words.data()), layout.bytes);
  Channel channel(block, layout, regions);
  std::uint8_t bytes[8] = {};
  ASSERT_GT(channel.async_write(0, bytes, 0, 8), 0);
  ASSERT_GT(channel.async_read(0, 0, bytes, 8), 0);
  for (const std::size_t at : {ProgressLine::kReads, ProgressLine::kWrites})
    store_le(block.data() + ChannelLayout::kProgress + at, ~std::uint64_t{0});
  store_le(block.data() + ChannelLayout::kErrorLog, kErrors + 1);
  Completion done[4];
  EXPECT_EQ(channel.collect(done), 2u);
  EXPECT_EQ(channel.collect(done), 0u);
  EXPECT_EQ(channel.completed(RwType::kWrite), 1u);
  EXPECT_EQ(channel.under_way(), 0u);
  EXPECT_EQ(load_le<std::uint64_t>(block.data() + ChannelLayout::kIssuer + IssuerLine::kErrorsTaken), 0u)
      << "more than the log has room for";
}

TEST(Cowbird, AnEngineThatAdoptsDoesNotTakeAnEntryOfTheLastLapForAnother) {
  World w(seeded(1));
  w.overtaking = true;
  const auto write = [&w](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      ASSERT_GT(w.channel().async_write(0, &i, 0, 8), 0);
      ASSERT_EQ(w.wait_for(1).size(), 1u);
    }
  };
  auto& first = w.start_engine();
  write(20);
  first.engines[0]->stop();
  ASSERT_TRUE(w.run_until([&] { return first.running == 0; }));
  const auto& second = w.start_engine();
  w.step(2000);
  write(3);
  EXPECT_FALSE(second.engines[0]->broken());
}

TEST(Cowbird, AWriteIsInTheRegionWhenItIsCompleteAndItsSourceIsFreeAtOnce) {
  World w(seeded(2));
  w.start_engine();
  auto source = pattern(24, 1);
  const auto expected = source;
  const auto id = w.channel().async_write(0, source.data(), 4096, 24);
  ASSERT_GT(id, 0);
  std::fill(source.begin(), source.end(), 0xee);
  const auto done = w.wait_for(1);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id.value(), id);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), w.pool().begin() + 4096));
}

TEST(Cowbird, RefusesWhatMakesNoSenseAndSaysWhy) {
  World w(seeded(3));
  w.regions.push_back({.node = 9, .key = 1, .base = 0, .length = 100, .writable = false});
  std::uint8_t byte[2000] = {};
  const auto refused = [](std::int64_t value) { return value < 0 ? static_cast<Status>(-value) : Status::kOk; };
  EXPECT_EQ(refused(w.channel().async_read(7, 0, byte, 1)), Status::kNoRegion);
  EXPECT_EQ(refused(w.channel().async_read(0, World::kPoolBytes, byte, 1)), Status::kOutOfRange);
  EXPECT_EQ(refused(w.channel().async_read(0, ~0ull, byte, 2)), Status::kOutOfRange);
  EXPECT_EQ(refused(w.channel().async_read(0, 0, byte, 0)), Status::kBadLength);
  EXPECT_EQ(refused(w.channel().async_read(0, 0, byte, 1025)), Status::kBadLength);
  EXPECT_EQ(refused(w.channel().async_write(1, byte, 0, 8)), Status::kReadOnly);
  EXPECT_EQ(w.channel().counters().refused, 6u);
  EXPECT_EQ(w.channel().under_way(), 0u);
}

TEST(Cowbird, SaysWhichRingIsFullAndGoesOnOnceThereIsRoom) {
  World w(seeded(4));
  std::uint8_t bytes[512] = {};
  EXPECT_GT(w.channel().async_read(0, 0, bytes, 512), 0);
  EXPECT_GT(w.channel().async_read(0, 0, bytes, 512), 0);
  EXPECT_EQ(w.channel().async_read(0, 0, bytes, 8), -static_cast<int>(Status::kResponseDataFull));
  EXPECT_GT(w.channel().async_write(0, bytes, 0, 512), 0);
  EXPECT_GT(w.channel().async_write(0, bytes, 0, 512), 0);
  EXPECT_EQ(w.channel().async_write(0, bytes, 0, 8), -static_cast<int>(Status::kRequestDataFull));
  w.start_engine();
  EXPECT_EQ(w.wait_for(4).size(), 4u);
  const std::size_t head = w.layout.channel_at(0) + ChannelLayout::kProgress + ProgressLine::kHead;
  EXPECT_TRUE(w.run_until([&] { return load_le<std::uint64_t>(w.bytes().data() + head) == 4; }));
  for (int i = 0; i < 16; ++i) EXPECT_GT(w.channel().async_read(0, 0, bytes, 8), 0);
  EXPECT_EQ(w.channel().async_read(0, 0, bytes, 8), -static_cast<int>(Status::kMetadataFull));
  EXPECT_EQ(w.wait_for(16).size(), 16u);
}

TEST(Cowbird, ARequestAsLongAsItsRingIsTakenWhereverTheRingStands) {
  World w(seeded(12));
  w.start_engine();
  std::vector<std::uint8_t> bytes(1024);
  for (const std::uint32_t first : {8u, 504u, 512u, 520u, 1016u, 1024u}) {
    for (const std::uint32_t length : {first, 1024 - first / 2, 1024u}) {
      ASSERT_GT(w.channel().async_read(0, 0, bytes.data(), length), 0) << first << " " << length;
      ASSERT_GT(w.channel().async_write(0, bytes.data(), 0, length), 0) << first << " " << length;
      ASSERT_EQ(w.wait_for(2).size(), 2u);
    }
  }
}

TEST(Cowbird, AfterALongRequestTheRestOfTheRingIsFree) {
  World w(seeded(13));
  w.start_engine();
  std::vector<std::uint8_t> bytes(1024);
  ASSERT_GT(w.channel().async_read(0, 0, bytes.data(), 512), 0);
  ASSERT_EQ(w.wait_for(1).size(), 1u);
  EXPECT_GT(w.channel().async_read(0, 0, bytes.data(), 520), 0);
  EXPECT_GT(w.channel().async_read(0, 0, bytes.data(), 504), 0);
  EXPECT_EQ(w.channel().async_read(0, 0, bytes.data(), 8), -static_cast<int>(Status::kResponseDataFull));
  ASSERT_EQ(w.wait_for(2).size(), 2u);
}

TEST(Cowbird, PollGroupsReturnEachRequestOnceWhenItIsComplete) {
  World w(seeded(5));
  std::uint8_t bytes[8] = {};
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) ids.emplace_back(w.channel().async_read(0, 0, bytes, 8));
  ids.emplace_back(w.channel().async_write(0, bytes, 8, 8));
  PollGroup group(w.channel());
  EXPECT_EQ(group.add(ids[2]), Status::kOk);
  EXPECT_EQ(group.add(ids[0]), Status::kOk);
  EXPECT_EQ(group.add(ids[0]), Status::kOk);
  EXPECT_EQ(group.add(ids[1]), Status::kOk);
  EXPECT_EQ(group.add(ids[3]), Status::kOk);
  EXPECT_EQ(group.add(RequestId(RwType::kRead, 0, 99)), Status::kNoSuchRequest);
  EXPECT_EQ(group.remove(ids[1]), Status::kOk);
  EXPECT_EQ(group.remove(ids[1]), Status::kNoSuchRequest);
  Completion out[8];
  EXPECT_EQ(group.collect(out), 0u);
  w.start_engine();
  std::vector<RequestId> seen;
  w.run_until([&] {
    const auto n = group.collect(out);
    for (std::size_t i = 0; i < n; ++i) seen.push_back(out[i].id);
    return seen.size() == 3;
  });
  EXPECT_THAT(seen, testing::UnorderedElementsAre(ids[0], ids[2], ids[3]));
  EXPECT_EQ(group.size(), 0u);
}

TEST(Cowbird, AnUnreachableMemoryNodeFailsRequestsAfterAWhileAndLaterOnesToo) {
  EngineConfig config;
  config.patience = Duration::milliseconds(20);
  config.max_flight = Duration::milliseconds(5);
  World w(seeded(6), {.entries = 16, .request_bytes = 1024, .response_bytes = 1024}, 2, config);
  w.fabric.kill_node(w.pool_node(0));
  w.start_engine();
  std::uint8_t bytes[8] = {1, 2, 3};
  std::uint8_t good[8] = {};
  const RequestId read(w.channel().async_read(0, 0, bytes, 8));
  const RequestId write(w.channel().async_write(0, bytes, 0, 8));
  const RequestId other(w.channel().async_read(1, 0, good, 8));
  const auto done = w.wait_for(3);
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(w.channel().status_of(read), Status::kUnreachable);
  EXPECT_EQ(w.channel().status_of(write), Status::kUnreachable);
  EXPECT_EQ(w.channel().status_of(other), Status::kOk);
  EXPECT_EQ(bytes[2], 3) << "a failed read leaves its destination alone";
  EXPECT_EQ(w.channel().counters().failed, 2u);
}

// A transport without a connection fails operations within their submission.
TEST(Cowbird, OperationsThatFailAtOnceAreTriedAgainLaterNotForEver) {
  EngineConfig config;
  config.patience = Duration::milliseconds(20);
  World w({.mode = LocalMode::kImmediate}, {.entries = 16, .request_bytes = 1024, .response_bytes = 1024}, 2, config);
  w.fabric.kill_node(w.pool_node(0));
  w.start_engine();
  std::uint8_t bytes[8] = {};
  for (std::uint64_t i = 0; i < 4; ++i) {
    ASSERT_GT(w.channel().async_write(0, bytes, 8 * i, 8), 0);
    ASSERT_GT(w.channel().async_read(0, 8 * i, bytes, 8), 0);
  }
  ASSERT_GT(w.channel().async_read(1, 0, bytes, 8), 0);
  const auto done = w.wait_for(9);
  ASSERT_EQ(done.size(), 9u);
  for (const auto& completion : done) {
    EXPECT_EQ(completion.status, completion.id.region() == 1 ? Status::kOk : Status::kUnreachable);
  }
}

EngineConfig short_patience() {
  EngineConfig config;
  config.patience = Duration::milliseconds(20);
  return config;
}

TEST(Cowbird, RequestsToADeadNodeFailTogetherAndLaterOnesAtOnce) {
  World w({.mode = LocalMode::kImmediate}, {.entries = 64, .request_bytes = 1024, .response_bytes = 1024}, 2,
          short_patience());
  w.fabric.kill_node(w.pool_node(0));
  w.start_engine();
  std::uint8_t bytes[8] = {};
  const auto issue = [&] {
    for (std::uint64_t i = 0; i < 10; ++i) {
      ASSERT_GT(w.channel().async_write(0, bytes, 8 * i, 8), 0);
      ASSERT_GT(w.channel().async_read(0, 8 * i, bytes, 8), 0);
    }
    for (const auto& one : w.wait_for(20)) EXPECT_EQ(one.status, Status::kUnreachable);
  };
  issue();
  EXPECT_GE((w.now - Time()).milliseconds(), 20);
  EXPECT_LT((w.now - Time()).milliseconds(), 30);
  const Time later = w.now;
  issue();
  EXPECT_LT((w.now - later).milliseconds(), 3);
}

TEST(Cowbird, RequestsToOtherNodesGoOnWhileOneIsOutOfReach) {
  World w({.mode = LocalMode::kImmediate}, {.entries = 64, .request_bytes = 1024, .response_bytes = 1024}, 2,
          short_patience());
  w.fabric.kill_node(w.pool_node(0));
  w.start_engine();
  std::uint8_t bytes[8] = {1, 2, 3}, into[8] = {};
  for (std::uint64_t i = 0; i < 10; ++i) ASSERT_GT(w.channel().async_write(0, bytes, 8 * i, 8), 0);
  ASSERT_GT(w.channel().async_write(1, bytes, 0, 8), 0);
  ASSERT_GT(w.channel().async_read(1, 0, into, 8), 0);
  EXPECT_EQ(w.wait_for(1).size(), 1u);
  EXPECT_LT((w.now - Time()).milliseconds(), 10) << "a read of the healthy node";
  EXPECT_EQ(into[2], 3);
  EXPECT_EQ(w.wait_for(11).size(), 11u);
}

TEST(Cowbird, ANodeThatComesBackInTimeCostsNothing) {
  World w({.mode = LocalMode::kImmediate}, {.entries = 64, .request_bytes = 1024, .response_bytes = 1024}, 2,
          short_patience());
  w.start_engine();
  std::uint8_t bytes[8] = {};
  for (int round = 0; round < 5; ++round) {  // each absence shorter than patience, together longer
    auto& memory = *w.engines[0]->memory;
    memory.cut(w.pool_node(0));
    ASSERT_GT(w.channel().async_write(0, bytes, 0, 8), 0);
    ASSERT_GT(w.channel().async_read(0, 0, bytes, 8), 0);
    const Time begun = w.now;
    w.run_until([&] { return w.now - begun > Duration::milliseconds(10); });
    memory.mend(w.pool_node(0));
    for (const auto& one : w.wait_for(2)) EXPECT_EQ(one.status, Status::kOk);
  }
}

// The engine was stopped while a node was away: that time is not held against the node, which is there again a little later.
TEST(Cowbird, PatienceDoesNotCountTimeInWhichTheEngineWasStopped) {
  World w({.mode = LocalMode::kImmediate});
  w.start_engine();
  auto& memory = *w.engines[0]->memory;
  w.step(1000);
  memory.cut(w.pool_node(0));
  std::uint8_t bytes[8] = {};
  ASSERT_GT(w.channel().async_write(0, bytes, 0, 8), 0);
  ASSERT_GT(w.channel().async_read(0, 0, bytes, 8), 0);
  w.step(1000);
  w.now = w.now + EngineConfig{}.patience;
  const Time resumed = w.now;
  w.run_until([&] { return w.now - resumed > Duration::milliseconds(100); });
  memory.mend(w.pool_node(0));
  const auto done = w.wait_for(2);
  ASSERT_EQ(done.size(), 2u);
  for (const auto& one : done) EXPECT_EQ(one.status, Status::kOk);
}

TEST(Cowbird, ManyFailuresWaitUntilTheIssuerHasTakenThem) {
  World w(seeded(7), {.entries = 64, .request_bytes = 1024, .response_bytes = 1024});
  w.regions[0].length = 1 << 20;  // the issuer believes in more than the engine does
  w.start_engine();
  std::uint8_t bytes[8] = {};
  for (std::uint64_t i = 0; i < 50; ++i) ASSERT_GT(w.channel().async_read(0, (1 << 19) + 8 * i, bytes, 8), 0);
  const auto done = w.wait_for(50);
  ASSERT_EQ(done.size(), 50u);
  for (const auto& completion : done) EXPECT_EQ(completion.status, Status::kOutOfRange);
}

// The issuer believes in more than the engine does: what lies beyond fails.
class Failing : public World {
 public:
  Failing() : World({.mode = LocalMode::kImmediate}) {
    regions[0].length = 1 << 20;
    start_engine();
  }
  RequestId read(bool fails) {
    const RequestId id(channel().async_read(0, fails ? 1 << 19 : 0, bytes_, 8));
    EXPECT_EQ(wait_for(1).size(), 1u);
    return id;
  }

 private:
  std::uint8_t bytes_[8] = {};
};

TEST(Cowbird, AFailureIsRememberedHoweverManyFollow) {
  Failing w;
  const RequestId good = w.read(false), first = w.read(true);
  for (int i = 0; i < 3000; ++i) w.read(true);
  const RequestId after = w.read(false);
  EXPECT_EQ(w.channel().status_of(good), Status::kOk);
  EXPECT_EQ(w.channel().status_of(first), Status::kOutOfRange);
  EXPECT_EQ(w.channel().status_of(after), Status::kOk);
}

TEST(Cowbird, WhatIsForgottenIsNeverSaidToBeDone) {
  Failing w;
  const RequestId failed = w.read(true), good = w.read(false);
  RequestId last_good, last_failed;
  for (int i = 0; i < 2000; ++i) {
    last_failed = w.read(true);
    last_good = w.read(false);
  }
  EXPECT_EQ(w.channel().status_of(failed), Status::kForgotten);
  EXPECT_EQ(w.channel().status_of(good), Status::kForgotten);
  EXPECT_EQ(w.channel().status_of(last_failed), Status::kOutOfRange);
  EXPECT_EQ(w.channel().status_of(last_good), Status::kOk);
}

// A thousand complete requests of which the issuer has taken none, every other one failed.
TEST(Cowbird, NoFailureIsForgottenBeforeItWasCollected) {
  World w({.mode = LocalMode::kImmediate}, {.entries = 8192, .request_bytes = 1 << 16, .response_bytes = 1 << 16});
  w.regions[0].length = 1 << 20;
  w.start_engine();
  std::uint8_t bytes[8] = {};
  for (int i = 0; i < 8000; ++i) ASSERT_GT(w.channel().async_read(0, i % 2 == 0 ? 1 << 19 : 0, bytes, 8), 0);
  for (std::uint64_t taken = 0; taken < 8000;) {
    w.step(50);  // the engine is always ahead
    Completion done[1];
    if (w.channel().collect(done) == 0) continue;
    ASSERT_EQ(done[0].status, taken++ % 2 == 0 ? Status::kOutOfRange : Status::kOk) << taken;
  }
}

TEST(Cowbird, CompletionsOfWritesAreNotStarvedByReadsNorTheOtherWayRound) {
  for (const bool grouped : {false, true}) {
    for (const bool write : {false, true}) {
      World w({.mode = LocalMode::kImmediate});
      w.start_engine();
      PollGroup group(w.channel());
      std::uint8_t bytes[8] = {};
      const auto issue = [&](bool one) {
        const RequestId id(one ? w.channel().async_write(0, bytes, 0, 8) : w.channel().async_read(0, 64, bytes, 8));
        EXPECT_EQ(group.add(id), Status::kOk);
      };
      issue(write);
      for (int i = 0; i < 8; ++i) issue(!write);
      bool told = false;
      for (int i = 0; i < 100 && !told; ++i) {
        w.step(200);
        Completion out[1];
        if ((grouped ? group.collect(out) : w.channel().collect(out)) == 0) continue;
        told = out[0].id.is_write() == write;
        issue(!write);
      }
      EXPECT_TRUE(told) << (grouped ? "in a group" : "collected") << (write ? ", a write" : ", a read");
    }
  }
}

TEST(Cowbird, AnEngineLetsGoOfAChannelWhoseEntriesMakeNoSense) {
  World w(seeded(8));
  auto& process = w.start_engine();
  const std::size_t at = w.layout.channel_at(0);
  store_le(w.bytes().data() + at + ChannelLayout::kIssuer + IssuerLine::kTail, std::uint64_t{3});
  EXPECT_TRUE(w.run_until([&] { return process.running == 0; }));
  EXPECT_TRUE(process.engines[0]->broken());
}

// All requests of the ring are under way, and another lap's stands where the first was.
TEST(Cowbird, AnEngineLetsGoOfAChannelThatIsMoreThanItsRingAhead) {
  World w({.mode = LocalMode::kImmediate});
  w.fabric.kill_node(w.pool_node());
  auto& process = w.start_engine();
  std::uint8_t bytes[8];
  for (int i = 0; i < 16; ++i) ASSERT_GT(w.channel().async_read(0, 0, bytes, 8), 0);
  w.step(500);
  ASSERT_EQ(process.engines[0]->under_way(), 16u);
  std::uint8_t* const at = w.bytes().data() + w.layout.channel_at(0);
  store_le(at + ChannelLayout::kMetadata + 24, std::uint64_t{17});
  store_le(at + ChannelLayout::kIssuer + IssuerLine::kTail, std::uint64_t{17});
  w.step(500);
  EXPECT_TRUE(process.engines[0]->broken());
  EXPECT_EQ(process.engines[0]->under_way(), 16u);
}

TEST(Cowbird, AnIdleEngineIsSeenToLive) {
  World w({.mode = LocalMode::kImmediate});
  w.start_engine();
  for (int i = 0; i < 3; ++i) {
    const auto before = w.channel().heartbeat();
    const Time begun = w.now;
    ASSERT_TRUE(w.run_until([&] { return w.channel().heartbeat() != before; }));
    EXPECT_LE(w.now - begun, EngineConfig{}.heartbeat * 2);
  }
}

// They are complete, and where their bytes go is not known to anybody else.
TEST(Cowbird, RequestsThatAreCompleteAndNotTakenKeepTheirPlaces) {
  World w({.mode = LocalMode::kImmediate}, {.entries = 4, .request_bytes = 1024, .response_bytes = 1024});
  w.start_engine();
  std::uint8_t into[5][8] = {};
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < 4; ++i) {
      w.pool()[8 * i] = static_cast<std::uint8_t>(10 * round + 1 + static_cast<int>(i));
      ASSERT_GT(w.channel().async_read(0, 8 * i, into[i], 8), 0);
    }
    w.step(1000);
    EXPECT_EQ(w.channel().async_read(0, 0, into[4], 8), -static_cast<std::int64_t>(Status::kMetadataFull));
    ASSERT_EQ(w.wait_for(4).size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(into[i][0], w.pool()[8 * i]);
  }
}

// An application that has spoilt its own entry: the read is refused, and its region not looked up when a write asks which reads are before it.
TEST(Cowbird, AReadOfNoRegionDisturbsNothingBehindIt) {
  for (const bool near : {false, true}) {
    World w(seeded(10));
    w.near = near;
    const std::uint8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    std::uint8_t into[8];
    ASSERT_GT(w.channel().async_read(0, 0, into, 8), 0);
    const RequestId write(w.channel().async_write(0, bytes, 64, 8));
    std::uint8_t* const type_word = w.bytes().data() + w.layout.channel_at(0) + w.layout.channel().entry(0) + 16;
    store_le(type_word, load_le<std::uint64_t>(type_word) | std::uint64_t{0xFFFF} << 32);
    const auto& process = w.start_engine();
    const auto done = w.wait_for(2);
    ASSERT_EQ(done.size(), 2u);
    EXPECT_TRUE(
        std::ranges::any_of(done, [&](const Completion& c) { return c.id == write && c.status == Status::kOk; }));
    EXPECT_TRUE(std::equal(bytes, bytes + 8, w.pool().begin() + 64));
    EXPECT_EQ(process.engines[0]->counters().malformed, 1u);
    EXPECT_FALSE(process.engines[0]->broken());
  }
}

// An error that the last engine has logged and not published: it stays, and is not done after all.
TEST(Cowbird, WhatWasLoggedAsFailedStaysSo) {
  World w(seeded(11));
  const std::uint8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  std::uint8_t* const log = w.bytes().data() + w.layout.channel_at(0) + ChannelLayout::kErrorLog;
  std::vector<std::int64_t> ids;
  for (std::uint64_t i = 0; i < kErrors; ++i) {  // as many as it holds
    ids.push_back(w.channel().async_write(0, bytes, 64 + 8 * i, 8));
    ASSERT_GT(ids.back(), 0);
    store_le(log + 16 + 16 * i, static_cast<std::uint64_t>(ids.back()));
    store_le(log + 24 + 16 * i, static_cast<std::uint64_t>(Status::kUnreachable));
  }
  store_le(log, std::uint64_t{kErrors});  // ... and the engine died before it wrote the progress line
  w.start_engine();
  for (const auto& one : w.wait_for(kErrors)) EXPECT_EQ(one.status, Status::kUnreachable);
  EXPECT_EQ(w.pool()[64], 0);
  EXPECT_EQ(w.channel().counters().failed, kErrors) << "each once, whether an engine logs it again or not";
  ASSERT_GT(w.channel().async_write(0, bytes, 64, 8), 0);
  EXPECT_EQ(w.wait_for(1)[0].status, Status::kOk);
}

// As above, and the request before them, which had gone well, fails when it is done again: there is no room in the log for it until the application
// has taken what it has heard nothing of yet.
TEST(Cowbird, AFailureBeforeThoseThatFillTheLogIsToldOf) {
  for (const bool grouped : {false, true}) {
    World w(seeded(14), {.entries = 64, .request_bytes = 1024, .response_bytes = 1024});
    w.regions[0].length = 1 << 20;  // the issuer believes in more than the engine does
    PollGroup group(w.channel());
    std::uint8_t* const log = w.bytes().data() + w.layout.channel_at(0) + ChannelLayout::kErrorLog;
    std::uint8_t into[8];
    std::vector<std::int64_t> ids;
    for (std::uint64_t i = 0; i <= kErrors; ++i) {
      ids.push_back(w.channel().async_read(0, i == 0 ? 1 << 19 : 8 * i, into, 8));
      ASSERT_GT(ids.back(), 0);
      if (grouped) static_cast<void>(group.add(RequestId(ids.back())));
      if (i == 0) continue;
      store_le(log + 16 * i, static_cast<std::uint64_t>(ids.back()));
      store_le(log + 8 + 16 * i, static_cast<std::uint64_t>(Status::kUnreachable));
    }
    store_le(log, std::uint64_t{kErrors});
    w.start_engine();
    std::vector<Completion> done;
    EXPECT_TRUE(w.run_until([&] {
      Completion out[8];
      const std::size_t count = grouped ? group.collect(out) : w.channel().collect(out);
      done.insert(done.end(), out, out + count);
      return done.size() == ids.size();
    })) << done.size()
        << " of them";
    for (std::size_t i = 0; i < done.size(); ++i) {
      EXPECT_EQ(done[i].id.value(), ids[i]);
      EXPECT_EQ(done[i].status, i == 0 ? Status::kOutOfRange : Status::kUnreachable) << i;
    }
  }
}

// An error of which the last engine has stored the entry and not the count: the application has heard nothing of it.
TEST(Cowbird, AFailureThatWasNotCountedIsToldOfAllTheSame) {
  for (const std::uint64_t counted : {std::uint64_t{0}, std::uint64_t{kErrors + 3}}) {
    World w(seeded(12));
    std::uint8_t* const issuer = w.bytes().data() + w.layout.channel_at(0) + ChannelLayout::kIssuer;
    std::uint8_t* const log = w.bytes().data() + w.layout.channel_at(0) + ChannelLayout::kErrorLog;
    store_le(log, counted);  // all of which the application has taken
    store_le(issuer + IssuerLine::kErrorsTaken, counted);
    w.channels[0] = std::make_unique<Channel>(w.bytes().subspan(w.layout.channel_at(0)), w.layout.channel(), w.regions);
    std::uint8_t into[8] = {};
    const std::int64_t id = w.channel().async_read(0, 0, into, 8);
    ASSERT_GT(id, 0);
    std::uint8_t* const slot = log + ErrorLog::kEntries + kErrorBytes * (counted % kErrors);
    store_le(slot, static_cast<std::uint64_t>(id));
    store_le(slot + 8, static_cast<std::uint64_t>(Status::kUnreachable));
    w.start_engine();
    EXPECT_EQ(w.wait_for(1)[0].status, Status::kUnreachable);
    EXPECT_EQ(load_le<std::uint64_t>(log), counted + 1);
  }
}

// All places are held by failures that nobody has published; one of them was given up for another, which the application has taken.
TEST(Cowbird, AFailureThatNobodyHasPublishedKeepsItsPlaceInTheLogWhileAnotherIsFree) {
  const auto entry = [](RwType type, std::uint64_t sequence) { return Entry{.type = type, .sequence = sequence}; };
  ErrorLog log;
  store_le(log.bytes().data(), std::uint64_t{kErrors});
  for (std::uint64_t i = 0; i < kErrors; ++i) {
    store_le(log.entries().data() + i * kErrorBytes,
             static_cast<std::uint64_t>(RequestId(RwType::kWrite, 0, i + 2).value()));
    store_le(log.entries().data() + i * kErrorBytes + 8, static_cast<std::uint64_t>(Status::kDenied));
  }
  const std::uint64_t published[2] = {0, 0};
  log.adopt(published);
  ASSERT_TRUE(log.add(entry(RwType::kWrite, 1), Status::kDenied, published));
  EXPECT_EQ(log.logged(), kErrors + 1);
  log.set_taken(kErrors + 1);
  const std::uint64_t first_published[2] = {0, 1};
  ASSERT_TRUE(log.add(entry(RwType::kRead, 1), Status::kDenied, first_published));
  const RequestId third(RwType::kWrite, 0, 3);
  EXPECT_EQ(load_le<std::uint64_t>(log.entries().data() + kErrorBytes), static_cast<std::uint64_t>(third.value()));
}

TEST(Cowbird, AWriteThatMayHaveHappenedIsNotSaidToBeRefused) {
  World w(seeded(13));
  auto& engine = w.start_engine();
  const std::uint8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_GT(w.channel().async_write(0, bytes, 64, 8), 0);
  ASSERT_TRUE(w.run_until([&] { return w.pool()[64] == 1; }));  // it has happened, and the answer is on its way
  w.fabric.kill_node(w.pool_node());
  w.fabric.restart_node(w.pool_node());
  EXPECT_EQ(w.wait_for(1)[0].status, Status::kUnknown);
  EXPECT_EQ(engine.engines[0]->counters().refused, 1u);
}

TEST(Cowbird, AWriteThatMayHaveHappenedIsNotSaidToBeOutOfRangeOnceItsRegionIsAnother) {
  World w(seeded(13));
  auto& engine = w.start_engine();
  const std::uint8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_GT(w.channel().async_write(0, bytes, 64, 8), 0);
  ASSERT_TRUE(w.run_until([&] { return w.pool()[64] == 1; }));
  w.fabric.kill_node(w.pool_node());
  ASSERT_TRUE(w.run_until([&] { return engine.engines[0]->counters().retries == 1; }));
  Region shorter = w.regions[0];
  shorter.length = 64;
  shorter.write(w.bytes().data() + InstanceLayout::kRegions);
  w.channel().set_regions_generation(1);
  EXPECT_EQ(w.wait_for(1)[0].status, Status::kUnknown);
}

TEST(Cowbird, AnEngineThatEndsSaysForHowLongWhatItHasSentMayStillArrive) {
  World w(seeded(13));
  auto& engine = w.start_engine();
  const std::uint8_t bytes[8] = {1};
  ASSERT_GT(w.channel().async_write(0, bytes, 64, 8), 0);
  ASSERT_TRUE(w.run_until([&] { return w.pool()[64] == 1; }));
  w.fabric.kill_node(w.pool_node());
  ASSERT_TRUE(w.run_until([&] { return engine.engines[0]->counters().retries == 1; }));
  const Time certain = w.now + EngineConfig{}.max_flight;
  engine.engines[0]->stop();
  ASSERT_TRUE(w.run_until([&] { return engine.running == 0; }));
  const Duration flight = ProgressLine::flight(w.bytes().data() + w.layout.channel_at(0) + ChannelLayout::kProgress);
  EXPECT_GE(w.now + flight, certain - Duration::milliseconds(2));
  EXPECT_LE(flight, EngineConfig{}.max_flight);
}

struct Adversary {
  std::uint64_t seed;
  bool disconnects;
  bool restarts;
  bool near = false;
  bool kills = false;  // and does not wait for the last engine to end
};

void run_against(const Adversary& adversary) {
  LocalOptions options = seeded(adversary.seed);
  if (adversary.disconnects) {
    options.disconnect_per_million = 3000;
    options.straggler_lifetime = Duration::microseconds(300);
    options.stragglers_in_order = adversary.seed % 3 != 0;  // RC, or a transport without order
  }
  EngineConfig config;
  config.retry = Duration::microseconds(20);
  config.max_flight = Duration::microseconds(400);
  config.leaves_within = Duration::microseconds(200);
  config.batch_size = 1 + static_cast<std::uint32_t>(adversary.seed % 5);
  if (adversary.near && adversary.seed % 4 != 0) config.copied_a_turn = std::size_t{16} << adversary.seed % 4;
  World w(options, {.entries = 16, .request_bytes = 256, .response_bytes = 320}, 1, config);
  w.near = adversary.near;
  RandomDriver<World> driver(w, adversary.seed, {.longest = adversary.seed % 3 == 0 ? 320u : 48u});
  Rng rng = Rng(adversary.seed).fork("adversary");
  auto* engine = &w.start_engine();
  for (int i = 0; i < 3000; ++i) {
    driver.issue_some();
    w.step(static_cast<int>(rng.below(40)));
    driver.take();
    if (testing::Test::HasFatalFailure()) return;
    if (adversary.restarts && rng.below(100) == 0) {
      if (adversary.kills) {
        engine->memory->kill();
      } else {
        for (auto& one : engine->engines) one->stop();
        ASSERT_TRUE(w.run_until([&] { return engine->running == 0; }));
      }
      w.step(5000);  // what was under way is over
      engine = &w.start_engine();
    }
  }
  ASSERT_TRUE(w.run_until([&] {
    driver.take();
    return testing::Test::HasFatalFailure() || driver.completed() == driver.issued();
  })) << driver.completed()
      << " of " << driver.issued() << "; engine broken: " << engine->engines[0]->broken();
  EXPECT_TRUE(driver.model_is_pool());
  EXPECT_FALSE(engine->engines[0]->broken());
}

TEST(Cowbird, ReadsSeeEarlierWritesInEveryInterleaving) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(30); ++seed) {
    SCOPED_TRACE(seed);
    run_against({.seed = seed, .disconnects = false, .restarts = false});
    if (HasFailure()) return;
  }
}

TEST(Cowbird, NothingIsLostOrDoneTwiceWhenConnectionsBreak) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(30); ++seed) {
    SCOPED_TRACE(seed);
    run_against({.seed = seed, .disconnects = true, .restarts = false});
    if (HasFailure()) return;
  }
}

// What a killed engine had asked of the pool may be on its way.
TEST(Cowbird, ANewEngineWaitsForWhatTheLastOneMayHaveLeftUnderWay) {
  for (const bool killed : {false, true}) {
    World w({.mode = LocalMode::kImmediate});
    auto& last = w.start_engine();
    const std::uint8_t bytes[8] = {1, 2, 3};
    ASSERT_GT(w.channel().async_write(0, bytes, 0, 8), 0);
    ASSERT_EQ(w.wait_for(1).size(), 1u);
    if (killed) {
      last.memory->kill();
    } else {
      last.engines[0]->stop();
      ASSERT_TRUE(w.run_until([&] { return last.running == 0; }));
    }
    w.start_engine();
    ASSERT_GT(w.channel().async_write(0, bytes, 8, 8), 0);
    const Time begun = w.now;
    ASSERT_EQ(w.wait_for(1).size(), 1u);
    const Duration took = w.now - begun;
    if (killed) {
      EXPECT_GE(took, EngineConfig{}.leaves_within * 2);
      EXPECT_LT(took, EngineConfig{}.leaves_within * 3);
    } else {
      EXPECT_LT(took, Duration::milliseconds(10));
    }
  }
}

// It was carried out, and told of to nobody.
TEST(Cowbird, AWriteThatAKilledEngineMayHaveDoneIsNotSaidToBeRefusedByTheNext) {
  for (const bool exports_known : {false, true}) {
    Exports exports;
    EngineConfig config;
    config.exports = &exports;
    World w({.mode = LocalMode::kImmediate}, {.entries = 16, .request_bytes = 1024, .response_bytes = 1024}, 1, config);
    const std::uint8_t bytes[8] = {1, 2, 3};
    w.slow = true;
    auto& first = w.start_engine();
    w.step(100);
    first.slow->answer(1, remote::Status::kOk);  // that it is there
    const RequestId write(w.channel().async_write(0, bytes, 64, 8));
    const RequestId read(w.channel().async_read(0, 128, w.bytes().data(), 8));
    ASSERT_TRUE(w.run_until([&] { return w.pool()[66] == 3; }));
    first.slow->shut_out = true;
    first.memory->kill();
    // The memory node has been started anew.
    Region gone = w.regions[0];
    gone.key ^= 1;
    gone.write(w.bytes().data() + InstanceLayout::kRegions);
    if (exports_known) exports.set({w.regions[0]});
    w.channel().set_regions_generation(1);
    w.slow = false;
    w.start_engine();
    ASSERT_EQ(w.wait_for(2).size(), 2u);
    EXPECT_EQ(w.channel().status_of(write), Status::kUnknown) << "it has happened";
    EXPECT_EQ(w.channel().status_of(read), Status::kDenied);
    const RequestId later(w.channel().async_write(0, bytes, 64, 8));
    ASSERT_EQ(w.wait_for(1).size(), 1u);
    EXPECT_EQ(w.channel().status_of(later), Status::kDenied) << "no engine before this one has seen it";
  }
}

// A spoilt progress line: the head is near where its numbers end.
TEST(Cowbird, AHeadAsFarAsCanBeHarmsNobody) {
  for (const std::uint64_t short_of : {1u, 10u, 1023u, 1024u, 1025u}) {
    for (const bool near : {false, true}) {
      World w(seeded(15));
      w.near = near;
      std::uint8_t* const at = w.bytes().data() + w.layout.channel_at(0);
      store_le(at + ChannelLayout::kProgress + ProgressLine::kHead, std::uint64_t{0} - short_of);
      store_le(at + ChannelLayout::kIssuer + IssuerLine::kTail, std::uint64_t{0} - short_of);
      auto& process = w.start_engine();
      w.step(500);
      store_le(at + ChannelLayout::kIssuer + IssuerLine::kRegionsGeneration, std::uint64_t{7});
      w.step(500);
      EXPECT_EQ(process.engines[0]->counters().reads + process.engines[0]->counters().writes, 0u);
      process.engines[0]->stop();
      EXPECT_TRUE(w.run_until([&] { return process.running == 0; }));
    }
  }
}

TEST(Cowbird, ANewEngineTakesUpWhereTheLastOneLeftOff) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(30); ++seed) {
    SCOPED_TRACE(seed);
    run_against({.seed = seed, .disconnects = seed % 2 == 0, .restarts = true});
    if (HasFailure()) return;
  }
}

TEST(Cowbird, ANewEngineTakesUpWhereAKilledOneWas) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(30); ++seed) {
    SCOPED_TRACE(seed);
    run_against({.seed = seed, .disconnects = seed % 2 == 0, .restarts = true, .kills = true});
    if (HasFailure()) return;
  }
}

TEST(Cowbird, NoFailureIsLostWithAnEngineThatIsKilled) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(30); ++seed) {
    SCOPED_TRACE(seed);
    World w(seeded(seed), {.entries = 32, .request_bytes = 1024, .response_bytes = 1024}, 1, {.patience = Duration{}});
    w.fabric.kill_node(w.pool_node());
    Rng rng = Rng(seed).fork("killer");
    auto* engine = &w.start_engine();
    std::uint64_t issued = 0;
    std::uint64_t failed = 0;
    const auto collect = [&] {
      Completion out[8];
      const std::size_t n = w.channel().collect(out);
      for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(out[i].status, Status::kUnreachable);
      failed += n;
    };
    std::uint8_t into[8];
    for (int i = 0; i < 1000; ++i) {
      issued += w.channel().async_read(0, 0, into, 8) > 0;
      w.step(static_cast<int>(rng.below(20)));
      if (rng.below(3) == 0) collect();
      if (rng.below(20) != 0) continue;
      engine->memory->kill();
      w.step(100);  // what was under way is over
      engine = &w.start_engine();
    }
    EXPECT_TRUE(w.run_until([&] {
      collect();
      return failed == issued;
    })) << failed
        << " of " << issued;
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Cowbird, APoolBesideTheEngineIsReadAndWrittenInOrderToo) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + seeds(30); ++seed) {
    SCOPED_TRACE(seed);
    run_against({.seed = seed, .disconnects = seed % 2 == 0, .restarts = seed % 3 == 0, .near = true});
    if (HasFailure()) return;
  }
}

TEST(Cowbird, WhatAPoolBesideTheEngineDoesNotHaveIsDenied) {
  World w(seeded(9));
  w.near = true;
  w.add_region({.node = w.pool_node().value, .key = w.regions[0].key + 1, .base = kPoolBase, .length = 64});
  w.add_region({.node = w.pool_node().value, .key = w.regions[0].key, .base = kPoolBase, .length = 1 << 20});
  Channel channel(w.bytes().subspan(w.layout.channel_at(0)), w.layout.channel(), w.regions);
  w.start_engine();
  std::uint8_t bytes[8] = {};
  const RequestId stale(channel.async_read(1, 0, bytes, 8));
  const RequestId beyond(channel.async_write(2, bytes, World::kPoolBytes - 4, 8));
  const RequestId good(channel.async_read(2, World::kPoolBytes - 8, bytes, 8));
  Completion done[8];
  std::size_t n = 0;
  ASSERT_TRUE(w.run_until([&] { return (n += channel.collect(done)) == 3; }));
  EXPECT_EQ(channel.status_of(stale), Status::kDenied);
  EXPECT_EQ(channel.status_of(beyond), Status::kDenied);
  EXPECT_EQ(channel.status_of(good), Status::kOk);
}

TEST(Cowbird, APoolMayBePartlyBesideTheEngineAndNotForEver) {
  World w(seeded(9), {}, 2);
  w.partly_near = true;
  auto& process = w.start_engine();
  std::uint8_t bytes[2][8] = {};
  for (std::uint16_t region = 0; region < 2; ++region) {
    const auto expected = pattern(8, static_cast<std::uint8_t>(region));
    ASSERT_GT(w.channel().async_write(region, expected.data(), 64, 8), 0);
    ASSERT_GT(w.channel().async_read(region, 64, bytes[region], 8), 0);
  }
  for (const Completion& one : w.wait_for(4)) EXPECT_EQ(one.status, Status::kOk);
  for (std::uint8_t region = 0; region < 2; ++region) {
    EXPECT_TRUE(std::ranges::equal(bytes[region], pattern(8, region)));
    EXPECT_TRUE(std::equal(bytes[region], bytes[region] + 8, w.pool(region).begin() + 64));
  }
  process.near->clear();
  for (std::uint16_t region = 0; region < 2; ++region) {
    ASSERT_GT(w.channel().async_read(region, 64, bytes[region], 8), 0);
    const auto done = w.wait_for(1);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, region == 0 ? Status::kDenied : Status::kOk);
  }
}

TEST(Cowbird, ManyReadsOfAPoolBesideTheEngineEachGetTheirBytesAndNoneOnceItIsGone) {
  constexpr std::size_t kReads = 300, kBytes = 64;
  World w({.mode = LocalMode::kImmediate}, {.entries = 512, .request_bytes = 1024, .response_bytes = 32 << 10});
  w.near = true;
  auto& process = w.start_engine();
  const auto held = pattern(World::kPoolBytes, 3);
  std::ranges::copy(held, w.pool().begin());
  std::vector<std::uint8_t> into(kReads * kBytes);
  const auto from = [](std::size_t i) { return i * 7919 % (World::kPoolBytes - kBytes); };
  for (std::size_t i = 0; i < kReads; ++i) {
    ASSERT_GT(w.channel().async_read(0, from(i), into.data() + i * kBytes, kBytes), 0);
  }
  const Engine& engine = *process.engines[0];
  while (engine.counters().reads < kReads / 2) {  // one coroutine at a time: between two slices
    w.now = w.now + Duration::nanoseconds(100);
    w.scheduler.run(w.now, 1);
    w.fabric.pump(w.now);
  }
  const std::uint64_t read = engine.counters().reads;
  ASSERT_LT(read, kReads) << "all in one slice";
  process.near->clear();
  const auto done = w.wait_for(kReads);
  ASSERT_EQ(done.size(), kReads);
  for (std::size_t i = 0; i < kReads; ++i) {
    ASSERT_EQ(done[i].status, i < read ? Status::kOk : Status::kDenied) << i;
    if (i >= read) continue;
    EXPECT_TRUE(std::equal(held.begin() + static_cast<std::ptrdiff_t>(from(i)),
                           held.begin() + static_cast<std::ptrdiff_t>(from(i) + kBytes),
                           into.begin() + static_cast<std::ptrdiff_t>(i * kBytes)))
        << i;
  }
}

// A pool beside the engine, and requests far longer than what is copied in one turn of the loop.
struct LongRequests : World {
  LongRequests()
      : World({.mode = LocalMode::kImmediate}, {.entries = 16, .request_bytes = 65536, .response_bytes = 65536}, 1,
              {.copied_a_turn = 1024}) {
    near = true;
    process = &start_engine();
    std::ranges::copy(pattern(kPoolBytes, 3), pool().begin());
  }
  void turn() {
    now = now + Duration::nanoseconds(100);
    scheduler.run(now);
    fabric.pump(now);
  }
  // Turns until so many bytes from `at` on are other ones than before.
  std::size_t changed(const std::vector<std::uint8_t>& before) {
    std::size_t n = 0;
    while (n < before.size() && pool()[n] != before[n]) ++n;
    return n;
  }
  EngineProcess* process;
};

TEST(Cowbird, OthersHaveTheirTurnWhileALongRequestOfAPoolBesideTheEngineIsMoved) {
  constexpr std::uint32_t kBytes = 40'000;
  LongRequests w;
  const std::vector<std::uint8_t> before(w.pool().begin(), w.pool().begin() + kBytes);
  std::vector<std::uint8_t> all(kBytes), last(8), source(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) source[i] = static_cast<std::uint8_t>(before[i] + 1);
  ASSERT_GT(w.channel().async_read(0, 0, all.data(), kBytes), 0);
  ASSERT_GT(w.channel().async_write(0, source.data(), 0, kBytes), 0);
  ASSERT_GT(w.channel().async_read(0, kBytes - 8, last.data(), 8), 0);
  std::size_t turns = 0, done = 0, written = 0;
  for (; done < 3 && turns < 100'000; ++turns) {
    w.turn();
    const std::size_t now_written = w.changed(before);
    ASSERT_LE(now_written, written + 1024) << "in one turn";
    written = now_written;
    Completion out[4];
    const std::size_t n = w.channel().collect(out);
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(out[i].status, Status::kOk);
    done += n;
  }
  EXPECT_GE(turns, 2 * kBytes / 1024);
  EXPECT_EQ(all, before);
  EXPECT_TRUE(std::equal(source.begin(), source.end(), w.pool().begin()));
  EXPECT_TRUE(std::equal(last.begin(), last.end(), source.end() - 8)) << "a read behind the write waits for all of it";
}

TEST(Cowbird, ShortRequestsGoOnBesideALongOneOfAPoolBesideTheEngine) {
  LongRequests w;
  std::vector<std::uint8_t> all(40'000);
  const std::vector<std::uint8_t> source(1024, 0x5A);
  ASSERT_GT(w.channel().async_read(0, 0, all.data(), 40'000), 0);
  // A turn's bytes, twice, and the one that is looked for.
  for (std::uint64_t i = 0; i < 2; ++i)
    ASSERT_GT(w.channel().async_write(0, source.data(), 50'000 + 1024 * i, 1024), 0);
  ASSERT_GT(w.channel().async_write(0, source.data(), 60'000, 8), 0);
  w.pool()[60'000] = 0;
  std::size_t turns = 0;
  for (; turns < 1'000 && w.pool()[60'000] != 0x5A; ++turns) w.turn();
  EXPECT_LT(turns, 30u) << "the long read takes more than 40";
}

TEST(Cowbird, ManyShortRequestsOfAPoolBesideTheEngineLeaveTurnsToOthersToo) {
  LongRequests w;
  const std::vector<std::uint8_t> before(w.pool().begin(), w.pool().begin() + 8192);
  for (std::size_t i = 0; i < 8; ++i) {
    std::vector<std::uint8_t> source(1024);
    for (std::size_t b = 0; b < 1024; ++b) source[b] = static_cast<std::uint8_t>(before[1024 * i + b] + 1);
    ASSERT_GT(w.channel().async_write(0, source.data(), 1024 * i, 1024), 0);
  }
  std::size_t written = 0;
  for (int turn = 0; turn < 1000 && written < before.size(); ++turn) {
    w.turn();
    const std::size_t now_written = w.changed(before);
    ASSERT_LE(now_written, written + 1024);
    written = now_written;
  }
  EXPECT_EQ(written, before.size());
}

TEST(Cowbird, ALongWriteWhosePoolIsTakenBackMayHaveHappenedAndALongReadIsDenied) {
  constexpr std::uint32_t kBytes = 40'000;
  for (const bool write : {false, true}) {
    LongRequests w;
    const std::vector<std::uint8_t> before(w.pool().begin(), w.pool().begin() + kBytes);
    std::vector<std::uint8_t> bytes(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<std::uint8_t>(before[i] + 1);
    ASSERT_GT(write ? w.channel().async_write(0, bytes.data(), 0, kBytes)
                    : w.channel().async_read(0, 0, bytes.data(), kBytes),
              0);
    for (int turn = 0; turn < (write ? 1000 : 15) && w.changed(before) < kBytes / 2; ++turn) w.turn();
    ASSERT_EQ(w.process->engines[0]->under_way(), 1u);
    w.process->near->clear();
    const auto done = w.wait_for(1);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, write ? Status::kUnknown : Status::kDenied);
    EXPECT_LT(w.changed(before), kBytes);
  }
}

TEST(Cowbird, ARegionThatWasRefusedIsNotAskedForAgain) {
  World w({.mode = LocalMode::kImmediate});
  w.add_region({.node = w.pool_node().value, .key = w.regions[0].key + 1, .base = kPoolBase, .length = 64});
  Channel channel(w.bytes().subspan(w.layout.channel_at(0)), w.layout.channel(), w.regions);
  auto& process = w.start_engine();
  std::uint8_t bytes[8] = {};
  for (int i = 0; i < 3; ++i) {
    ASSERT_GT(channel.async_read(1, 0, bytes, 8), 0);
    Completion done[2];
    ASSERT_TRUE(w.run_until([&] { return channel.collect(done) == 1; }));
    EXPECT_EQ(done[0].status, Status::kDenied);
  }
  EXPECT_EQ(process.engines[0]->counters().refused, 1u);
  EXPECT_EQ(process.engines[0]->counters().denied, 3u);
}

TEST(Cowbird, ARegionThatIsNotExportedIsNotAskedForHoweverOftenTheRegionsChange) {
  Exports exports;
  World w({.mode = LocalMode::kImmediate}, {}, 1, {.exports = &exports});
  const Region good = w.regions[0];
  exports.set({good});
  Region wrong = good;
  wrong.key = good.key + 1;
  w.add_region(wrong);
  Channel channel(w.bytes().subspan(w.layout.channel_at(0)), w.layout.channel(), w.regions);
  const Engine& engine = *w.start_engine().engines[0];
  const auto read = [&](std::uint16_t region) {
    std::uint8_t bytes[8];
    EXPECT_GT(channel.async_read(region, 0, bytes, 8), 0);
    Completion done[2];
    EXPECT_TRUE(w.run_until([&] { return channel.collect(done) == 1; }));
    return done[0].status;
  };
  for (std::uint64_t generation = 3; generation < 6; ++generation) {
    channel.set_regions_generation(generation);
    EXPECT_EQ(read(1), Status::kDenied);
    EXPECT_EQ(read(0), Status::kOk);
  }
  EXPECT_EQ(engine.counters().refused, 0u);
  EXPECT_EQ(engine.counters().denied, 3u);
  EXPECT_EQ(engine.counters().malformed, 0u);
  // What the node refuses all the same is asked for once, until its exports change.
  exports.set({good, wrong});
  for (std::uint64_t generation = 6; generation < 9; ++generation) {
    EXPECT_EQ(read(1), Status::kDenied);
    channel.set_regions_generation(generation);
  }
  EXPECT_EQ(engine.counters().refused, 1u);
  exports.set({wrong, good});
  EXPECT_EQ(read(1), Status::kDenied);
  EXPECT_EQ(engine.counters().refused, 2u);
  EXPECT_EQ(read(0), Status::kOk);
}

// An application changes its regions under a request that waits: the memory node is not asked for what they do not allow any more, so that it
// refuses nothing that others could be made to suffer for.
TEST(Cowbird, ARequestIsJudgedByTheRegionsAsTheyAreWhenItIsMoved) {
  for (const std::uint64_t shorter : {0u, 4096u}) {  // not all of it exported any more, and all
    Exports exports;
    World w({.mode = LocalMode::kImmediate}, {.entries = 16, .request_bytes = 1024, .response_bytes = 1024}, 1,
            {.heartbeat = Duration::seconds(100), .exports = &exports});
    w.slow = true;
    const Region whole = w.regions[0];
    exports.set({whole});
    auto& process = w.start_engine();
    ASSERT_TRUE(w.run_until([&] { return !process.slow->open().empty(); }));
    process.slow->answer(1, remote::Status::kOk);
    w.step(200);
    std::uint8_t bytes[8] = {1};
    ASSERT_GT(w.channel().async_read(0, World::kPoolBytes - 8, bytes, 8), 0);
    w.step(200);
    ASSERT_EQ(process.slow->open().size(), 1u);
    ASSERT_GT(w.channel().async_write(0, bytes, World::kPoolBytes - 8, 8), 0);  // waits until the read is published
    w.step(200);
    Region shifted = whole;
    shifted.base += 4096;
    shifted.length -= shorter;
    shifted.write(w.bytes().data() + InstanceLayout::kRegions);
    w.channel().set_regions_generation(2);
    w.step(30'000);
    process.slow->answer(1, remote::Status::kOk);
    w.step(200);
    process.slow->answer(1, remote::Status::kOk);
    const auto done = w.wait_for(2);
    ASSERT_EQ(done.size(), 2u);
    EXPECT_EQ(done[1].status, shorter == 0 ? Status::kDenied : Status::kOutOfRange);
    EXPECT_EQ(process.engines[0]->counters().refused, 0u);
    EXPECT_FALSE(exports.denies(whole));
  }
}

// An application names other nodes all the time, which nobody knows.
TEST(Cowbird, TroublesOfNodesThatNoRegionNamesAreForgotten) {
  World w({.mode = LocalMode::kImmediate}, {.entries = 64, .request_bytes = 1024, .response_bytes = 1024});
  const Region good = w.regions[0];
  w.regions.resize(kMaxRegions, good);
  const Engine& engine = *w.start_engine().engines[0];
  std::uint32_t node = 1000;
  const auto rename = [&] {
    for (std::size_t i = 0; i < kMaxRegions; ++i) {
      Region region = good;
      region.node = node++;
      region.write(w.bytes().data() + InstanceLayout::kRegions + i * kRegionBytes);
    }
    w.channel().set_regions_generation(node);
  };
  rename();
  std::uint8_t bytes[8] = {};
  for (std::uint16_t i = 0; i < 64; ++i) ASSERT_GT(w.channel().async_read(i, 0, bytes, 8), 0);
  w.step(2000);
  EXPECT_EQ(engine.troubled_nodes(), 64u);
  const Time begun = w.now;
  for (int i = 0; i < 20; ++i) {
    rename();
    const Time before = w.now;
    w.run_until([&] { return w.now - before > Duration::milliseconds(15); });
    EXPECT_LE(engine.troubled_nodes(), 64u);
  }
  EXPECT_EQ(engine.troubled_nodes(), 0u);
  for (const Completion& one : w.wait_for(16)) EXPECT_EQ(one.status, Status::kUnreachable);
  EXPECT_LT(w.now - begun, EngineConfig{}.patience);
}

// The application does not take its errors: nothing can be published, and what waits for that is not looked at again and again.
TEST(Cowbird, AChannelThatIsStuckCostsNothingAProbe) {
  World w({.mode = LocalMode::kImmediate}, {.entries = 256, .request_bytes = 4096, .response_bytes = 4096});
  w.regions.push_back({.node = 1, .key = 1, .base = 0, .length = 8});  // the engine does not know it
  const Engine& engine = *w.start_engine().engines[0];
  std::uint8_t bytes[8] = {};
  for (std::size_t i = 0; i < kErrors + 1; ++i) ASSERT_GT(w.channel().async_read(1, 0, bytes, 8), 0);
  ASSERT_GT(w.channel().async_read(0, 0, bytes, 8), 0);
  for (int i = 0; i < 100; ++i) ASSERT_GT(w.channel().async_write(0, bytes, 0, 8), 0);
  w.step(5000);
  const EngineCounters before = engine.counters();
  const Time begun = w.now;
  w.run_until([&] { return w.now - begun > Duration::milliseconds(500); });
  EXPECT_GT(engine.counters().probes, before.probes + 100);
  EXPECT_GT(engine.counters().publications, before.publications) << "heartbeats";
  EXPECT_EQ(engine.counters().looks, before.looks);
  EXPECT_EQ(w.wait_for(kErrors + 102).size(), kErrors + 102);
}

TEST(Cowbird, ExportsDenyWhatIsNotAllInsideOneOfThem) {
  const Region whole{.node = 1, .key = 7, .base = 4096, .length = 1024};
  const auto part = [](std::uint32_t node, std::uint32_t key, std::uint64_t base, std::uint64_t length) {
    return Region{.node = node, .key = key, .base = base, .length = length};
  };
  Exports exports;
  EXPECT_FALSE(exports.denies(part(1, 8, 0, 1))) << "nothing is known";
  exports.set({whole, part(1, 9, 0, 64)});
  EXPECT_FALSE(exports.denies(whole));
  EXPECT_FALSE(exports.denies(part(1, 9, 8, 56)));
  EXPECT_FALSE(exports.denies(part(2, 7, 0, 1))) << "another node, of which nothing is known";
  EXPECT_TRUE(exports.denies(part(1, 8, 4096, 1)));
  EXPECT_TRUE(exports.denies(part(1, 7, 4095, 2)));
  EXPECT_TRUE(exports.denies(part(1, 7, 4096, 1025)));
  EXPECT_TRUE(exports.denies(part(1, 7, 5119, 2)));
  EXPECT_TRUE(exports.denies(part(1, 7, ~std::uint64_t{0}, 2)));
  const auto before = exports.generation();
  exports.set({whole, part(1, 9, 0, 64)});
  EXPECT_EQ(exports.generation(), before) << "the same";
  exports.refused({NodeId(2), remote::RegionKey(7), 0}, 1);
  exports.refused({NodeId(1), remote::RegionKey(7), 4096}, 1025);
  exports.refused({NodeId(1), remote::RegionKey(8), 4096}, 8);
  EXPECT_FALSE(exports.denies(whole)) << "of what is not exported a refusal says nothing";
  EXPECT_FALSE(exports.denies(part(2, 7, 0, 1)));
  EXPECT_EQ(exports.generation(), before);
  exports.refused({NodeId(1), remote::RegionKey(7), 4096}, 8);
  EXPECT_TRUE(exports.denies(whole));
  EXPECT_NE(exports.generation(), before);
}

// All is beside the engine, so that nothing waits: what one resumption does is what the engine takes upon itself.
TEST(Cowbird, ABurstOfWritesLeavesRoomForOthersInBetween) {
  constexpr std::uint32_t kWrites = 65536;
  const InstanceLayout layout{.shape = {.entries = kWrites, .request_bytes = 1 << 20, .response_bytes = 1024}};
  std::vector<std::uint64_t> block(layout.bytes() / 8);
  std::vector<std::uint64_t> pool(kWrites);
  const MutableBytes bytes(reinterpret_cast<std::uint8_t*>(block.data()), layout.bytes());
  const std::vector<Region> regions{{.node = 1, .key = 1, .base = 0, .length = pool.size() * 8}};
  regions[0].write(bytes.data() + InstanceLayout::kRegions);
  Channel channel(bytes.subspan(layout.channel_at(0)), layout.channel(), regions);
  for (std::uint64_t i = 0; i < kWrites; ++i) {
    const std::uint64_t value = i + 1;
    ASSERT_GT(channel.async_write(0, &value, 8 * i, 8), 0);
  }
  remote::Scheduler scheduler;
  remote::MappedMemory compute(scheduler);
  remote::MappedMemory memory(scheduler);
  const RemoteAddress at{NodeId(0), remote::RegionKey(1), 0};
  compute.add(at, bytes);
  memory.add({NodeId(1), remote::RegionKey(1), 0},
             MutableBytes(reinterpret_cast<std::uint8_t*>(pool.data()), pool.size() * 8));
  Engine engine(scheduler, compute, at, layout, 0, memory, {});
  scheduler.spawn(engine.run());
  Time now;
  std::uint64_t before = 0;
  std::uint64_t most = 0;
  for (std::uint64_t taken = 0; taken < kWrites;) {
    now = now + Duration::nanoseconds(100);
    scheduler.run(now, 1);
    most = std::max(most, engine.counters().writes - std::exchange(before, engine.counters().writes));
    Completion out[64];
    taken += channel.collect(out);
  }
  EXPECT_LE(most, Engine::kMostAtOnce);
  for (std::uint64_t i = 0; i < kWrites; ++i) ASSERT_EQ(pool[i], i + 1);
  engine.stop();
  while (scheduler.live() != 0) scheduler.run(now = now + Duration::milliseconds(1));
}

// An engine dies after it has logged a failure and before it has published it, and so does the next one, after others have failed.
TEST(Cowbird, AFailureThatTheApplicationHasSeenOutlivesTwoEngines) {
  const auto entry = [](RwType type, std::uint64_t sequence) {
    return Entry{.type = type, .region = 1, .length = 8, .sequence = sequence};
  };
  const auto succeed = [](ErrorLog& last, ErrorLog& next, const std::uint64_t(&published)[2]) {
    std::ranges::copy(last.bytes(), next.bytes().begin());
    next.adopt(published);
  };
  for (const std::uint64_t logged : {std::uint64_t{1}, std::uint64_t{5}, std::uint64_t{kErrors - 1}}) {
    std::uint64_t published[2] = {};
    ErrorLog first, second, third;
    first.adopt(published);
    for (std::uint64_t i = 0; i < logged; ++i) {
      ASSERT_TRUE(first.add(entry(RwType::kWrite, 2 + i), Status::kUnreachable, published));
    }
    succeed(first, second, published);
    second.set_taken(second.logged());  // and the write before them is on its way once more
    for (std::uint64_t i = 1; i <= 3 * kErrors; ++i) {
      ASSERT_TRUE(second.has_room_for(entry(RwType::kRead, i), published));
      ASSERT_TRUE(second.add(entry(RwType::kRead, i), Status::kUnreachable, published)) << i;
      published[0] = i;
      second.set_taken(second.logged());
    }
    succeed(second, third, published);
    for (std::uint64_t i = 0; i < logged; ++i) {
      EXPECT_EQ(third.adopted(entry(RwType::kWrite, 2 + i)), Status::kUnreachable) << i << " of " << logged;
    }
    EXPECT_EQ(third.adopted(entry(RwType::kRead, published[0])), Status::kOk) << "published";
    // That write fails: the others keep their places until they are published, and none waits for ever.
    for (std::uint64_t i = 1; i <= logged + 1; ++i) {
      third.set_taken(third.logged());
      ASSERT_TRUE(third.add(entry(RwType::kWrite, i), Status::kUnreachable, published)) << i;
      published[1] = i;
    }
  }
}

TEST(Cowbird, NothingIsBelievedOfAnEntryThatPointsElsewhere) {
  const ChannelLayout layout({.entries = 16, .request_bytes = 128, .response_bytes = 256});
  const std::vector<Region> regions{{.base = 4096, .length = 64},
                                    {.base = 4096, .length = 64, .writable = false},
                                    {},
                                    {.base = 4096, .length = 64, .denied = true},
                                    {.length = 1 << 20}};
  const Entry read{.type = RwType::kRead, .length = 8, .req_addr = 56, .resp_addr = layout.responses};
  const Entry write{.type = RwType::kWrite, .length = 8, .req_addr = layout.requests, .resp_addr = 56};
  const auto judged = [&](Entry entry, auto change) {
    change(entry);
    return judge(entry, layout, regions, 4096);
  };
  const auto as_it_is = [](Entry&) {};
  EXPECT_EQ(judged(read, as_it_is), Status::kOk);
  EXPECT_EQ(judged(write, as_it_is), Status::kOk);
  EXPECT_EQ(judged(read, [](Entry& e) { e.length = 0; }), Status::kBadLength);
  EXPECT_EQ(judged(read, [](Entry& e) { e.length = 257, e.region = 4; }), Status::kBadLength);
  EXPECT_EQ(judged(write, [](Entry& e) { e.length = 129, e.region = 4; }), Status::kBadLength);
  EXPECT_EQ(judged(read, [](Entry& e) { e.length = ~0u, e.region = 4; }), Status::kBadLength);
  EXPECT_EQ(judged(read, [](Entry& e) { e.resp_addr -= 8; }), Status::kMalformed) << "in the other ring";
  EXPECT_EQ(judged(write, [](Entry& e) { e.req_addr -= 8; }), Status::kMalformed) << "among the entries";
  EXPECT_EQ(judged(read, [](Entry& e) { e.resp_addr += 256; }), Status::kMalformed);
  EXPECT_EQ(judged(read, [](Entry& e) { e.resp_addr += 248; }), Status::kOk) << "to the ring's end";
  EXPECT_EQ(judged(read, [](Entry& e) { e.resp_addr += 248, e.length = 9; }), Status::kMalformed);
  EXPECT_EQ(judged(read, [](Entry& e) { e.resp_addr += 4; }), Status::kMalformed);
  EXPECT_EQ(judged(read, [](Entry& e) { e.resp_addr = ~std::uint64_t{0} - 7; }), Status::kMalformed);
  EXPECT_EQ(judged(read, [](Entry& e) { e.req_addr = 57; }), Status::kOutOfRange);
  EXPECT_EQ(judged(read, [](Entry& e) { e.req_addr = ~std::uint64_t{0} - 3; }), Status::kOutOfRange);
  EXPECT_EQ(judged(read, [](Entry& e) { e.length = 65, e.req_addr = 0; }), Status::kOutOfRange);
  EXPECT_EQ(judged(read, [](Entry& e) { e.region = 2; }), Status::kNoRegion);
  EXPECT_EQ(judged(read, [](Entry& e) { e.region = 5; }), Status::kNoRegion);
  EXPECT_EQ(judged(read, [](Entry& e) { e.region = 1; }), Status::kOk);
  EXPECT_EQ(judged(write, [](Entry& e) { e.region = 1; }), Status::kReadOnly);
  EXPECT_EQ(judged(read, [](Entry& e) { e.region = 3; }), Status::kDenied);
  Entry longer = read;
  longer.length = 32;
  longer.req_addr = 0;
  EXPECT_EQ(judge(longer, layout, regions, 31), Status::kTooLong);
  const auto next = [](RwType type, std::uint64_t sequence, std::uint64_t newest, std::uint64_t published) {
    return follows({.type = type, .sequence = sequence}, newest, published);
  };
  EXPECT_TRUE(next(RwType::kRead, 8, 7, 3));
  EXPECT_FALSE(next(RwType::kRead, 7, 7, 3));
  EXPECT_FALSE(next(RwType::kWrite, 9, 7, 3));
  EXPECT_TRUE(next(RwType::kWrite, 4, 0, 3)) << "the first that this engine sees";
  EXPECT_TRUE(next(RwType::kRead, 2, 0, 3)) << "another engine has completed it";
  EXPECT_FALSE(next(RwType::kRead, 5, 0, 3));
  EXPECT_FALSE(next(RwType::kRead, 0, 0, 3));
  EXPECT_FALSE(next(RwType::kNone, 8, 7, 3));
  EXPECT_FALSE(next(static_cast<RwType>(3), 8, 7, 3));
}

// More of them than a group puts up with before it makes room.
TEST(Cowbird, APollGroupTellsOfEachOfThousandsOnce) {
  const ChannelLayout layout({.entries = 4096, .request_bytes = 64, .response_bytes = 1 << 16});
  std::vector<std::uint64_t> words(layout.bytes / 8);
  const MutableBytes block(reinterpret_cast<std::uint8_t*>(words.data()), layout.bytes);
  const std::vector<Region> regions{{.node = 1, .key = 1, .base = 0, .length = 64}};
  Channel channel(block, layout, regions);
  PollGroup group(channel);
  std::uint8_t bytes[8];
  std::vector<RequestId> issued, told;
  for (int i = 0; i < 3000; ++i) {
    issued.emplace_back(channel.async_read(0, 0, bytes, 8));
    ASSERT_EQ(group.add(issued.back()), Status::kOk);
  }
  for (std::uint64_t done = 300; done <= issued.size(); done += 300) {
    store_le(block.data() + ChannelLayout::kProgress + ProgressLine::kReads, done);
    Completion out[512];
    const auto n = group.collect(out);
    for (std::size_t i = 0; i < n; ++i) told.push_back(out[i].id);
    ASSERT_EQ(told.size(), done);
    ASSERT_EQ(group.size(), issued.size() - done);
  }
  EXPECT_EQ(told, issued);
}

TEST(Cowbird, LayoutRefusesShapesThatCannotBe) {
  const auto check = [](Shape shape, std::uint32_t channels) {
    return InstanceLayout{.shape = shape, .channels = channels}.check();
  };
  EXPECT_TRUE(check({}, 1));
  EXPECT_FALSE(check({.entries = 3}, 1));
  EXPECT_THAT(check({.entries = 131072}, 1).error().message, testing::HasSubstr("from 2 to 65536 is allowed"));
  EXPECT_FALSE(check({.entries = 1024, .request_bytes = 100}, 1));
  EXPECT_FALSE(check({.entries = 1024, .request_bytes = 1024, .response_bytes = 0}, 1));
  EXPECT_FALSE(check({}, 0));
  std::vector<std::uint8_t> header(InstanceLayout::kHeaderBytes);
  EXPECT_THAT(InstanceLayout::parse(header).error().message, testing::HasSubstr("no Cowbird instance"));
  EXPECT_TRUE(check({.entries = 65536}, 16));
  EXPECT_FALSE(check({.entries = 65536}, 17)) << "an engine would keep 150 MB for them";
  EXPECT_FALSE(check({.request_bytes = 1 << 30, .response_bytes = 1 << 30}, 2)) << "rings of 4 GiB and a bit";
  const InstanceLayout layout{.shape = {.entries = 64}, .channels = 3};
  layout.write(header.data());
  const auto parsed = InstanceLayout::parse(header);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->shape, layout.shape);
  EXPECT_EQ(parsed->channels, 3u);
}

}  // namespace
}  // namespace sluice::cowbird
