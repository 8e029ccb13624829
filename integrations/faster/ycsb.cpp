// YCSB on FASTER itself, whose log does not fit into its memory: its cold part in local memory, in a file, or in remote memory. Every value is
// checked, and that it is as new as it must be.
//
// Source: Cowbird §8.1, Figures 9 and 10; FASTER C++, compiled from a checkout of one's own (-DSLUICE_FASTER=…).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/faster.h"
#include "device/file_system_disk.h"
#include "device/null_disk.h"
// The logs come after the headers of the store.
#include "base/rng.h"
#include "integrations/faster/cowbird_device.h"
#include "integrations/faster/near_engine.h"
#include "integrations/faster/other_logs.h"
#include "workload/zipf.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using FASTER::core::IAsyncContext;
using FASTER::core::Status;
using LocalFiles = FASTER::device::FileSystemDisk<FASTER::environment::QueueIoHandler, 1u << 30>;

struct Settings {
  std::uint64_t records = 4'000'000;
  std::uint32_t value_bytes = 64;
  std::uint32_t local_percent = 28;
  std::uint32_t reads_percent = 100;
  std::uint64_t operations = 5'000'000;
  std::uint32_t threads = 1;
  std::string distribution = "zipfian";
  std::vector<std::string> logs = {"memory", "local", "cowbird-near", "cowbird", "one-sided", "one-sided-sync", "file"};
  std::string folder;
  std::string engine;
  std::string memory_node = "memory1";
  std::uint64_t offset = 0;
  std::uint64_t seed = 1;
  std::uint32_t rounds = 1;
  bool json = false;
};

struct Key {
  std::uint64_t number;
  static constexpr std::uint32_t size() { return sizeof(Key); }
  FASTER::core::KeyHash GetHash() const {
    return FASTER::core::KeyHash{FASTER::core::FasterHashHelper<std::uint64_t>::compute(number)};
  }
  bool operator==(const Key& other) const { return number == other.number; }
  bool operator!=(const Key& other) const { return number != other.number; }
};

// Of kBytes, its lock included. It says by itself whose it is and how often it has been written.
template <std::uint32_t kBytes>
class Value {
 public:
  static constexpr std::uint32_t size() { return sizeof(Value); }

  // Under no lock: nobody else sees it, or nobody changes it any more.
  void fill(std::uint64_t key, std::uint64_t version) {
    lock_.store(0, std::memory_order_relaxed);
    put(key, version);
  }
  void replace(std::uint64_t key, std::uint64_t version) {
    std::uint64_t even = lock_.load(std::memory_order_relaxed) & ~std::uint64_t{1};
    while (!lock_.compare_exchange_weak(even, even + 1, std::memory_order_acquire)) even &= ~std::uint64_t{1};
    put(key, version);
    lock_.store(even + 2, std::memory_order_release);
  }
  // The version; nothing when some byte is not as it was written for `key`.
  std::optional<std::uint64_t> check(std::uint64_t key) const {
    const std::uint64_t version = words_[0].load(std::memory_order_relaxed);
    const std::uint64_t first = word(key, version);
    std::uint64_t wrong = 0;
    for (std::size_t i = 1; i < kWords; ++i) wrong |= words_[i].load(std::memory_order_relaxed) ^ (first + i);
    return wrong == 0 ? std::optional(version) : std::nullopt;
  }
  std::optional<std::uint64_t> check_shared(std::uint64_t key) const {
    while (true) {
      const std::uint64_t before = lock_.load(std::memory_order_acquire);
      if (before % 2 != 0) continue;
      const auto version = check(key);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (lock_.load(std::memory_order_relaxed) == before) return version;
    }
  }

 private:
  static constexpr std::size_t kWords = kBytes / 8 - 1;
  static std::uint64_t word(std::uint64_t key, std::uint64_t version) {
    return (key * 0x9e37'79b9'7f4a'7c15) ^ (version << 32);
  }
  void put(std::uint64_t key, std::uint64_t version) {
    const std::uint64_t first = word(key, version);
    words_[0].store(version, std::memory_order_relaxed);
    for (std::size_t i = 1; i < kWords; ++i) words_[i].store(first + i, std::memory_order_relaxed);
  }

  std::atomic<std::uint64_t> lock_;  // odd while somebody writes
  std::atomic<std::uint64_t> words_[kWords];
};

// How often each key has been written: begun before the store is asked, done when it has said so. One thread writes a key. Where keys are only loaded,
// each once, nothing is kept: looking it up would cost as much as half of an operation.
class Versions {
 public:
  Versions(std::uint64_t records, bool kept) : begun_(kept ? records : 0), done_(kept ? records : 0) {}
  std::uint64_t begin(std::uint64_t key) { return begun_.empty() ? 1 : ++begun_[key]; }
  void end(std::uint64_t key, std::uint64_t version) {
    if (!done_.empty()) done_[key].store(static_cast<std::uint32_t>(version), std::memory_order_release);
  }
  // What a read may find that begins, or ends, now.
  std::uint64_t oldest(std::uint64_t key) const {
    return done_.empty() ? 1 : done_[key].load(std::memory_order_acquire);
  }
  std::uint64_t newest(std::uint64_t key) const {
    return begun_.empty() ? 1 : begun_[key].load(std::memory_order_acquire);
  }

 private:
  std::vector<std::atomic<std::uint32_t>> begun_, done_;
};

struct Tally {
  std::uint64_t ended = 0, wrong = 0, pending = 0;
};

template <std::uint32_t kBytes>
class Read final : public IAsyncContext {
 public:
  using key_t = Key;
  using value_t = Value<kBytes>;
  Read(std::uint64_t key, const Versions& versions, Tally& tally)
      : key_{key}, oldest_(versions.oldest(key)), versions_(versions), tally_(tally) {}
  const Key& key() const { return key_; }
  void Get(const value_t& value) { judge(value.check(key_.number)); }
  void GetAtomic(const value_t& value) { judge(value.check_shared(key_.number)); }
  static void ended(IAsyncContext* context, Status status) {
    const FASTER::core::CallbackContext<Read> read(context);
    ++read->tally_.ended;
    if (status != Status::Ok) ++read->tally_.wrong;
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext*& copy) override { return IAsyncContext::DeepCopy_Internal(*this, copy); }

 private:
  void judge(std::optional<std::uint64_t> version) {
    if (!version || *version < oldest_ || *version > versions_.newest(key_.number)) ++tally_.wrong;
  }
  Key key_;
  std::uint64_t oldest_;
  const Versions& versions_;
  Tally& tally_;
};

template <std::uint32_t kBytes>
class Upsert final : public IAsyncContext {
 public:
  using key_t = Key;
  using value_t = Value<kBytes>;
  Upsert(std::uint64_t key, Versions& versions, Tally& tally)
      : key_{key}, version_(versions.begin(key)), versions_(versions), tally_(tally) {}
  const Key& key() const { return key_; }
  static constexpr std::uint32_t value_size() { return sizeof(value_t); }
  void Put(value_t& value) { value.fill(key_.number, version_); }
  bool PutAtomic(value_t& value) {
    value.replace(key_.number, version_);
    return true;
  }
  void end(Status status) {
    versions_.end(key_.number, version_);
    ++tally_.ended;
    if (status != Status::Ok) ++tally_.wrong;
  }
  static void ended(IAsyncContext* context, Status status) {
    FASTER::core::CallbackContext<Upsert> upsert(context);
    upsert->end(status);
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext*& copy) override { return IAsyncContext::DeepCopy_Internal(*this, copy); }

 private:
  Key key_;
  std::uint64_t version_;
  Versions& versions_;
  Tally& tally_;
};

struct Outcome {
  std::string log;
  double per_second = 0;
  double remote_share = 0;  // of operations
  std::uint64_t wrong = 0;
};

// What all logs are asked for: drawn before, so that drawing costs nothing while it is measured.
class Plan {
 public:
  explicit Plan(const Settings& s) : per_thread_(s.operations / s.threads) {
    const workload::Zipf zipf(s.records, workload::Zipf::kYcsbTheta);
    for (std::uint32_t t = 0; t < s.threads; ++t) {
      Rng rng = Rng(s.seed).fork(t);
      std::vector<std::uint64_t>& mine = threads_.emplace_back();
      for (std::uint64_t i = 0; i < per_thread_; ++i) {
        // Keys are loaded in order: hot ones are spread over the log by a multiplication.
        std::uint64_t key =
            s.distribution == "zipfian" ? zipf.draw(rng) * 0x9e37'79b9'7f4a'7c15 % s.records : rng.below(s.records);
        const bool read = rng.below(100) < s.reads_percent;
        if (!read) key = std::min(key - key % s.threads + t, s.records - s.threads + t - s.records % s.threads);
        mine.push_back(key << 1 | (read ? 0 : 1));
      }
    }
  }
  const std::vector<std::uint64_t>& of(std::uint32_t thread) const { return threads_[thread]; }

 private:
  std::uint64_t per_thread_;
  std::vector<std::vector<std::uint64_t>> threads_;
};

constexpr std::uint64_t kPage = 32u << 20;  // FASTER's

template <class Disk, std::uint32_t kBytes>
class Bench {
 public:
  using Store = FASTER::core::FasterKv<Key, Value<kBytes>, Disk>;

  Bench(const Settings& s, const Plan& plan, std::uint64_t log_bytes, double mutable_fraction,
        const std::string& config)
      : s_(s),
        plan_(plan),
        versions_(s.records, s.reads_percent != 100),
        store_(std::bit_ceil(s.records / 2), log_bytes, s.folder, mutable_fraction,
               FASTER::core::DEFAULT_READ_CACHE_CONFIG, FASTER::core::DEFAULT_HLOG_COMPACTION_CONFIG, false, config) {}

  Outcome run() {
    Tally loaded;
    store_.StartSession();
    for (std::uint64_t key = 0; key < s_.records; ++key) {
      upsert(key, loaded);
      if (key % kRefreshEvery == 0) store_.CompletePending(false);
    }
    store_.CompletePending(true);
    store_.StopSession();

    std::vector<Tally> tallies(s_.threads);
    std::atomic<std::uint32_t> ready{0};
    std::vector<std::thread> threads;
    std::vector<Clock::time_point> began(s_.threads), ended(s_.threads);
    for (std::uint32_t t = 0; t < s_.threads; ++t) {
      threads.emplace_back([&, t] {
        store_.StartSession();
        ++ready;
        while (ready < s_.threads) std::this_thread::yield();
        began[t] = Clock::now();
        work(plan_.of(t), tallies[t]);
        ended[t] = Clock::now();
        store_.StopSession();
      });
    }
    for (auto& thread : threads) thread.join();

    Outcome o;
    std::uint64_t operations = 0, pending = 0;
    for (const Tally& tally : tallies) {
      o.wrong += tally.wrong;
      operations += tally.ended;
      pending += tally.pending;
    }
    for (std::uint32_t t = 0; t < s_.threads; ++t) o.wrong += plan_.of(t).size() != tallies[t].ended;
    o.wrong += loaded.wrong + (loaded.ended != s_.records);
    const auto first = *std::min_element(began.begin(), began.end());
    const auto last = *std::max_element(ended.begin(), ended.end());
    o.per_second = static_cast<double>(operations) / std::chrono::duration<double>(last - first).count();
    o.remote_share = static_cast<double>(pending) / static_cast<double>(operations);
    return o;
  }

 private:
  static constexpr std::uint64_t kRefreshEvery = 64;

  void upsert(std::uint64_t key, Tally& tally) {
    Upsert<kBytes> context(key, versions_, tally);
    const Status status = store_.Upsert(context, Upsert<kBytes>::ended, 1);
    if (status != Status::Pending) {
      context.end(status);
    } else {
      ++tally.pending;
    }
  }
  void read(std::uint64_t key, Tally& tally) {
    Read<kBytes> context(key, versions_, tally);
    const Status status = store_.Read(context, Read<kBytes>::ended, 1);
    if (status == Status::Pending) {
      ++tally.pending;
      return;
    }
    ++tally.ended;
    if (status != Status::Ok) ++tally.wrong;
  }
  void work(const std::vector<std::uint64_t>& operations, Tally& tally) {
    std::uint64_t n = 0;
    for (const std::uint64_t one : operations) {
      if (one % 2 == 0) {
        read(one >> 1, tally);
      } else {
        upsert(one >> 1, tally);
      }
      if (++n % kRefreshEvery == 0) store_.CompletePending(false);
    }
    store_.CompletePending(true);
  }

  const Settings& s_;
  const Plan& plan_;
  Versions versions_;
  Store store_;
};

template <std::uint32_t kBytes>
Outcome run_one(const Settings& s, const Plan& plan, const std::string& log) {
  const std::uint64_t record = 8 + sizeof(Key) + kBytes;
  const std::uint64_t data = s.records * record;
  // Pages of the log that stay in memory: FASTER keeps at least four of them for what is being flushed.
  const std::uint64_t pages = std::max<std::uint64_t>(data * s.local_percent / 100 / kPage, 8);
  const double mutable_fraction = static_cast<double>(pages - 5) / static_cast<double>(pages);
  const std::uint64_t written = data + s.operations * (100 - s.reads_percent) / 100 * record;
  const std::uint64_t capacity = (written / kPage + 8) * kPage;
  std::unique_ptr<faster::NearEngine> near;
  if (log == "cowbird-near") near = std::make_unique<faster::NearEngine>(s.folder + ".cowbird.sock", capacity);
  const std::string engine = near ? near->socket() : s.engine;
  const std::string config =
      fmt::format("memory_node={},offset={},capacity={},lanes={}{}", near ? near->kMemoryNode : s.memory_node,
                  near ? 0 : s.offset, capacity, s.threads + 1, engine.empty() ? "" : ",engine=" + engine);
  const auto with = [&]<class Disk>() {
    return Bench<Disk, kBytes>(s, plan, pages * kPage, mutable_fraction, config).run();
  };
  Outcome o;
  if (log == "memory") {
    o = Bench<LocalFiles, kBytes>(s, plan, (written / kPage + 16) * kPage, 0.9, "").run();
  } else if (log == "file") {
    o = Bench<LocalFiles, kBytes>(s, plan, pages * kPage, mutable_fraction, "").run();
  } else if (log == "local") {
    o = with.template operator()<faster::DiskWithLog<LocalFiles, faster::LocalLog>>();
  } else if (log == "one-sided") {
    o = with.template operator()<faster::DiskWithLog<LocalFiles, faster::OneSidedLog<false>>>();
  } else if (log == "one-sided-sync") {
    o = with.template operator()<faster::DiskWithLog<LocalFiles, faster::OneSidedLog<true>>>();
  } else {
    o = with.template operator()<faster::CowbirdDisk<LocalFiles>>();
  }
  o.log = log;
  return o;
}

nlohmann::json to_json(const Outcome& o) {
  return {{"log", o.log}, {"operations_per_second", o.per_second}, {"pending", o.remote_share}, {"wrong", o.wrong}};
}

int run(int argc, char** argv) {
  Settings s;
  CLI::App app(
      "YCSB on FASTER, with a log that does not fit into its memory. The log's cold part lies in turn in: memory (all "
      "of the log is in memory), local (this "
      "process's memory, behind FASTER's device interface: the limit for any remote one), cowbird-near (behind "
      "Cowbird, a thread of this process its engine and pool), cowbird (`sluice rack up "
      "--no-metadata`, `sluice cowbird engine`), "
      "one-sided and one-sided-sync (the store's threads read and write the memory node themselves), file. Every value "
      "is checked.");
  app.add_option("--logs", s.logs, "which, in turn")
      ->capture_default_str()
      ->delimiter(',')
      ->check(CLI::IsMember({"memory", "local", "cowbird-near", "cowbird", "one-sided", "one-sided-sync", "file"}));
  app.add_option("--folder", s.folder, "for the log as a file, and what else FASTER writes: empty, or not there yet")
      ->required();
  app.add_option("--records", s.records, "keys, of 8 bytes")
      ->capture_default_str()
      ->check(CLI::Range(1'000, 1'000'000'000));
  app.add_option("--value-size", s.value_bytes, "bytes of a value")
      ->capture_default_str()
      ->check(CLI::IsMember({64, 512}));
  app.add_option("--local", s.local_percent, "percent of the log that stay in memory, at least 256 MiB")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  app.add_option("--reads", s.reads_percent, "percent of the operations that read; the others write")
      ->capture_default_str()
      ->check(CLI::Range(0, 100));
  app.add_option("--operations", s.operations, "that are measured")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--threads", s.threads, "of the store")->capture_default_str()->check(CLI::Range(1, 64));
  app.add_option("--distribution", s.distribution, "of the keys; zipfian: 0.99")
      ->capture_default_str()
      ->check(CLI::IsMember({"uniform", "zipfian"}));
  app.add_option("--rounds", s.rounds, "times that all are measured; the median is printed")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  app.add_option("--seed", s.seed, "of what is drawn")->capture_default_str();
  app.add_option("--engine", s.engine, "socket of the Cowbird engine; empty: of the rack in its usual place");
  app.add_option("--memory-node", s.memory_node, "memory node of the rack")->capture_default_str();
  app.add_option("--offset", s.offset, "where the log begins in the node's memory")->capture_default_str();
  app.add_flag("--json", s.json, "one JSON document a log");
  CLI11_PARSE(app, argc, argv);

  std::error_code ignored;
  if (std::filesystem::exists(s.folder, ignored) && !std::filesystem::is_empty(s.folder, ignored)) {
    fmt::print(stderr,
               "faster_ycsb: --folder {}: there is something already; name a folder that is empty or does not exist\n",
               s.folder);
    return 2;
  }
  const Plan plan(s);
  std::vector<std::vector<Outcome>> outcomes(s.logs.size());
  for (std::uint32_t round = 0; round < s.rounds; ++round) {
    for (std::size_t i = 0; i < s.logs.size(); ++i) {
      fmt::print(stderr, "{}: loading {} keys, then {} operations\n", s.logs[i], s.records, s.operations);
      outcomes[i].push_back(s.value_bytes == 64 ? run_one<64>(s, plan, s.logs[i]) : run_one<512>(s, plan, s.logs[i]));
      std::filesystem::remove_all(s.folder, ignored);
    }
  }
  std::uint64_t wrong = 0;
  if (!s.json) fmt::print("{:<16} {:>14} {:>10} {:>6}\n", "cold log", "operations/s", "not local", "wrong");
  for (auto& one : outcomes) {
    for (const Outcome& o : one) wrong += o.wrong;
    std::sort(one.begin(), one.end(), [](const Outcome& a, const Outcome& b) { return a.per_second < b.per_second; });
    const Outcome& o = one[one.size() / 2];
    if (s.json) {
      fmt::print("{}\n", to_json(o).dump());
    } else {
      fmt::print("{:<16} {:>14.0f} {:>8.1f} % {:>6}\n", o.log, o.per_second, 100 * o.remote_share, o.wrong);
    }
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  try {
    return sluice::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "faster_ycsb: {}\n", error.what());
    return 1;
  }
}
