#include "rack/clients/lock_bench.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <vector>

#include "base/bytes.h"
#include "base/rng.h"
#include "nic/run_for.h"
#include "rack/endpoint/endpoint.h"
#include "rack/endpoint/remote_nodes.h"
#include "rack/endpoint/store_mark.h"
#include "rack/endpoint/store_memory.h"

namespace sluice::rack {
namespace {

using remote::RemoteAddress;
using remote::Status;
using remote::Task;

constexpr std::uint64_t kStride = 128;  // a lock word, and 64 bytes further on its record
constexpr std::uint64_t kRecordBytes = 64;
constexpr Duration kPatience = Duration::seconds(10);
constexpr Duration kLook = Duration::milliseconds(50);  // so often it is asked whether somebody has interrupted
constexpr std::uint32_t kDepth = 16;                    // operations at once of a connection

class Bench {
 public:
  Bench(const LockBenchConfig& config, Endpoint& endpoint)
      : config_(config), endpoint_(endpoint), loop_(endpoint.loop()), coroutines_(scheduler_) {}
  ~Bench() {
    stop_ = true;
    for (const auto& client : clients_) client->set_nodes(loop_.now(), {});
    run_for(Duration::seconds(1), [this] { return scheduler_.live() == 0; });
    for (const auto& client : clients_) loop_.remove(*client);
    loop_.remove(coroutines_);
  }

  Result<LockBenchResult> run() {
    loop_.add(coroutines_);
    if (auto connected = connect(); !connected) return tl::unexpected(connected.error());
    if (auto unused = in_coroutine(find_store_there()); !unused) return tl::unexpected(unused.error());
    if (auto cleared = in_coroutine(clear()); !cleared) return tl::unexpected(cleared.error());
    const auto& port = endpoint_.shard().port().counters();
    const std::uint64_t frames = port.rx_frames + port.tx_frames;
    const Time begin = loop_.now();
    tickets_.resize(config_.locks);
    for (std::uint32_t i = 0; i < config_.clients; ++i) scheduler_.spawn(config_.tickets ? draw(i) : work(i));
    run_for(config_.duration, [this] { return scheduler_.live() == 0 || interrupted(); });
    result_.whole = !interrupted_;
    stop_ = true;
    const bool ended = run_for(kPatience, [this] { return scheduler_.live() == 0; });
    result_.seconds = static_cast<double>((loop_.now() - begin).nanoseconds()) / 1e9;
    result_.wire_frames = port.rx_frames + port.tx_frames - frames;
    if (!error_.empty()) return fail(error_);
    if (!ended) return fail("operations do not end; is the memory node still there?");
    for (const auto& client : clients_) result_.reconnects += client->reconnects();
    const auto counted = in_coroutine(config_.tickets ? count_tickets() : count());
    if (!counted) return tl::unexpected(counted.error());
    // Whoever uses this memory next finds it as it was before.
    if (auto cleared = in_coroutine(clear()); !cleared) return tl::unexpected(cleared.error());
    return result_;
  }

 private:
  Result<void> connect() {
    const auto snapshot = endpoint_.directory().watch(0, Duration(), kMemoryKinds);
    if (!snapshot) return tl::unexpected(snapshot.error());
    const auto nodes = snapshot->ready(NodeKind::kMemory);
    const auto has_racks_own = [](const NodeRecord* node) {
      return std::ranges::find(node->description.regions, kMainRegion, &RegionRecord::name) !=
             node->description.regions.end();
    };
    if (snapshot->has_tenants && std::ranges::none_of(nodes, has_racks_own))
      return fail(
          "locks lie in the rack's own memory, and none of it is to be seen: no memory node is up, or you ask as a "
          "tenant: a tenant is not shown any, but of memory nodes with --shared; ask as the rack's operator");
    if (nodes.empty() || nodes.front()->description.regions.empty())
      return fail("no memory node is on the rack; `sluice rack up --no-metadata` starts some");
    const auto free = find_words(*snapshot).value_or(std::vector<swordbox::WordRegion>{});
    if (free.empty())
      return fail(
          "all memory belongs to a Clover store; `sluice rack down`, then `sluice rack up --no-metadata` starts a rack "
          "without one, or leave some with [metadata] space");
    const swordbox::WordRegion& region = free.front();
    const auto node = std::ranges::find(nodes, region.server, [](const auto* n) { return wire::Gid::from(n->ip); });
    base_ = {(*node)->id, remote::RegionKey(region.rkey.value), region.address};
    // Behind a Clover store there is no other.
    may_have_store_ =
        region.address == (*node)->description.regions.front().address && region.length >= kMarkOffset + kMarkBytes;
    if (region.length < config_.locks * kStride) return fail("locks: more than the memory node has room for");
    Snapshot one = *snapshot;
    std::erase_if(one.nodes, [&](const NodeRecord& n) { return n.id != base_.node; });
    for (std::uint32_t i = 0; i < config_.clients; ++i) {
      auto& client = clients_.emplace_back(
          std::make_unique<RemoteNodes>(endpoint_.connector(), scheduler_, RemoteNodes::Options{.depth = kDepth}));
      loop_.add(*client);
      client->set_nodes(loop_.now(), one);
    }
    const auto all_up = [this] {
      return std::ranges::all_of(clients_, [](const auto& client) { return client->up() == 1; });
    };
    run_for(kPatience, [&] { return all_up() || interrupted(); });
    return all_up() ? Result<void>() : fail(fmt::format("no connection: {}", clients_.front()->problems()));
  }

  bool interrupted() {
    if (!config_.interrupted || interrupted_ || loop_.now() < next_look_) return interrupted_;
    next_look_ = loop_.now() + kLook;
    return interrupted_ = config_.interrupted();
  }

  RemoteAddress lock(std::uint64_t i) const { return base_ + i * kStride; }
  RemoteAddress record(std::uint64_t i) const { return base_ + (i * kStride + kRecordBytes); }
  rc::RemoteRc& memory(std::uint32_t client) { return clients_[client]->memory(); }
  bool wrong(Status status) {
    if (status == Status::kOk) return false;
    if (error_.empty()) error_ = fmt::format("an operation ended as {}", to_string(status));
    stop_ = true;
    return true;
  }

  // What `make` says of each lock, as many at once as a connection takes.
  template <class Make>
  Task<void> each(Make make) {
    std::vector<remote::Operation> operations;
    for (std::uint64_t i = 0; i < config_.locks;) {
      operations.clear();
      for (; i < config_.locks && operations.size() < kDepth; ++i) operations.push_back(make(i));
      co_await memory(0).all(operations);
      for (const auto& operation : operations) {
        if (wrong(operation.status)) co_return;
      }
    }
  }
  // A tree of Sherman's has its locks among ours; of a FUSEE store we touch something with many locks only.
  Task<void> find_store_there() {
    if (!may_have_store_) co_return;
    std::array<std::uint8_t, kMarkBytes> superblock{};
    if (wrong(co_await memory(0).read(base_ + kMarkOffset, superblock))) co_return;
    const StoreMark mark = mark_in(superblock);
    const bool is_tree = mark == StoreMark::kSherman;
    const bool is_store = config_.locks * kStride > kMarkOffset && mark == StoreMark::kFusee;
    if (!is_tree && !is_store) co_return;
    error_ = fmt::format(
        "the memory is in use by another, a {}; `sluice rack down`, then `sluice rack up --no-metadata` starts a rack "
        "without one",
        is_tree ? "Sherman tree" : "FUSEE store");
  }
  Task<void> clear() {
    const std::array<std::uint8_t, kStride> zeros{};
    co_await each([&](std::uint64_t i) { return remote::write_operation(lock(i), zeros); });
  }
  // The words at offset `at` of all locks; none when one could not be read.
  Task<std::vector<std::uint64_t>> words(std::uint64_t at) {
    std::vector<std::array<std::uint8_t, 8>> bytes(config_.locks);
    co_await each([&](std::uint64_t i) { return remote::read_operation(lock(i) + at, bytes[i]); });
    std::vector<std::uint64_t> values;
    for (const auto& word : bytes) {
      if (error_.empty()) values.push_back(load_le<std::uint64_t>(word.data()));
    }
    co_return values;
  }
  Task<void> count() {
    const auto values = co_await words(kRecordBytes);
    result_.counted = std::accumulate(values.begin(), values.end(), std::uint64_t{0});
  }
  Task<void> work(std::uint32_t who) {
    Rng rng = Rng(config_.seed).fork(who);
    std::array<std::uint8_t, kRecordBytes> bytes{};
    while (!stop_) {
      const std::uint64_t i = rng.below(config_.locks);
      const Time begin = loop_.now();
      bool mine = false;
      while (!mine && !stop_) {
        const auto taken = co_await memory(who).compare_and_swap(lock(i), 0, who + 1);
        if (wrong(taken.status)) co_return;
        ++result_.swaps;
        mine = taken.prior == 0;
        if (!mine) ++result_.swaps_failed;
      }
      if (!mine) co_return;
      const Status read = co_await memory(who).read(record(i), bytes);
      if (wrong(read)) co_return;
      store_le(bytes.data(), load_le<std::uint64_t>(bytes.data()) + 1);
      if (!co_await release(who, i, bytes)) co_return;
      ++result_.turns;
      result_.turn_ns.record((loop_.now() - begin).nanoseconds());
    }
  }
  Task<void> draw(std::uint32_t who) {
    Rng rng = Rng(config_.seed).fork(who);
    while (!stop_) {
      const std::uint64_t i = rng.below(config_.locks);
      const Time begin = loop_.now();
      const auto drawn = co_await memory(who).fetch_and_add(lock(i), 1);
      if (drawn.status == Status::kOk) {
        tickets_[i].push_back(drawn.prior);
        ++result_.turns;
        result_.turn_ns.record((loop_.now() - begin).nanoseconds());
        continue;
      }
      // It was not sent when there was no connection; else it may have been executed.
      if (drawn.status == Status::kUnknown) ++result_.unknown;
      co_await scheduler_.sleep_for(Duration::milliseconds(5));
    }
  }
  Task<void> count_tickets() {
    const auto values = co_await words(0);
    for (std::uint64_t i = 0; i < values.size(); ++i) {
      const std::uint64_t value = values[i];
      result_.counted += value;
      std::ranges::sort(tickets_[i]);
      const auto twice = std::ranges::adjacent_find(tickets_[i]);
      if (twice != tickets_[i].end()) error_ = fmt::format("ticket {} of word {} was handed out twice", *twice, i);
      if (!tickets_[i].empty() && tickets_[i].back() >= value)
        error_ = fmt::format("word {} has lost additions: it is {}, and ticket {} was handed out", i, value,
                             tickets_[i].back());
    }
  }
  Task<bool> release(std::uint32_t who, std::uint64_t i, MutableBytes bytes) {
    std::array<std::uint8_t, 8> zero{};
    auto write_back = memory(who).write(record(i), bytes);
    write_back.start();
    if (config_.release_by_write) {
      auto unlock = memory(who).write(lock(i), zero);
      unlock.start();
      const Status wrote = co_await write_back;
      const Status unlocked = co_await unlock;
      co_return !wrong(wrote) && !wrong(unlocked);
    }
    auto unlock = memory(who).compare_and_swap(lock(i), who + 1, 0);
    unlock.start();
    const Status wrote = co_await write_back;
    const auto unlocked = co_await unlock;
    if (unlocked.status == Status::kOk && unlocked.prior != who + 1) error_ = "a lock was not its holder's any more";
    co_return !wrong(wrote) && !wrong(unlocked.status) && error_.empty();
  }

  Result<void> in_coroutine(Task<void> task) {
    scheduler_.spawn(std::move(task));
    const bool done = run_for(kPatience, [this] { return scheduler_.live() == 0; });
    if (!error_.empty()) return fail(error_);
    return done ? Result<void>() : fail("the memory node does not answer");
  }
  bool run_for(Duration patience, const std::function<bool()>& done) { return nic::run_for(loop_, patience, done); }

  const LockBenchConfig& config_;
  Endpoint& endpoint_;
  nic::PollLoop& loop_;
  remote::Scheduler scheduler_;
  nic::SchedulerPoll coroutines_;
  std::vector<std::unique_ptr<RemoteNodes>> clients_;
  RemoteAddress base_{};
  std::vector<std::vector<std::uint64_t>> tickets_;  // by lock
  LockBenchResult result_;
  std::string error_;
  bool may_have_store_ = false;
  bool stop_ = false;
  bool interrupted_ = false;
  Time next_look_{};
};

}  // namespace

Result<LockBenchResult> bench_locks(const LockBenchConfig& config) {
  EndpointConfig endpoint;
  endpoint.directory = config.directory;
  endpoint.description = {config.name, NodeKind::kClient, 0, {}, {{"pid", std::to_string(getpid())}}};
  endpoint.kinds = {};
  auto opened = Endpoint::open(endpoint);
  if (!opened) return tl::unexpected(opened.error());
  return Bench(config, **opened).run();
}

}  // namespace sluice::rack
