// A read workload on a RocksDB database, with and without a secondary cache; every value is checked.
#include <fmt/format.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/statistics.h>
#include <rocksdb/table.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/histogram.h"
#include "base/rng.h"
#include "integrations/rocksdb/cowbird_cache.h"
#include "workload/zipf.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::string db;
  std::uint64_t records = 200'000;
  std::uint64_t value_bytes = 400;
  std::uint64_t reads = 200'000;
  std::uint32_t threads = 1;
  std::uint32_t block_cache_percent = 10;
  std::uint32_t second_percent = 120;
  std::string distribution = "uniform";
  std::vector<std::string> caches = {"none", "compressed", "cowbird"};
  bool direct = true;
  std::uint64_t seed = 1;
  bool json = false;
  CowbirdCacheOptions cowbird;
};

std::string key_of(std::uint64_t number) { return fmt::format("user{:016}", number); }

// Half of it is noise, so that compression has something to do, and not everything.
void fill_value(std::uint64_t number, std::string& value) {
  Rng rng(number);
  for (std::size_t i = 0; i < value.size(); ++i)
    value[i] = i % 2 == 0 ? static_cast<char>(rng.next()) : static_cast<char>('a' + i % 16);
}

struct Outcome {
  std::string cache;
  double per_second = 0;
  Histogram latency_ns;
  std::uint64_t wrong = 0;
  // Of data blocks: where each was found.
  std::uint64_t in_block_cache = 0, in_second = 0, on_disk = 0;
  CowbirdCacheCounters cowbird;
};

[[noreturn]] void stop(const std::string& what) {
  fmt::print(stderr, "rocksdb_cache_bench: {}\n", what);
  std::exit(1);
}
void must(const rocksdb::Status& status, const char* what) {
  if (!status.ok()) stop(fmt::format("{}: {}", what, status.ToString()));
}

class Bench {
 public:
  explicit Bench(const Settings& settings) : s_(settings) {}

  void load() {
    std::error_code ignored;
    if (std::filesystem::exists(s_.db, ignored) && !std::filesystem::is_empty(s_.db, ignored))
      stop(fmt::format("--db {}: there is something already; name a folder that is empty or does not exist", s_.db));
    auto db = open(nullptr, nullptr);
    rocksdb::WriteOptions write;
    write.disableWAL = true;
    std::string value(s_.value_bytes, 0);
    for (std::uint64_t i = 0; i < s_.records; ++i) {
      fill_value(i, value);
      must(db->Put(write, key_of(i), value), "loading");
    }
    must(db->Flush({}), "flushing");
    must(db->CompactRange({}, nullptr, nullptr), "compacting");
  }

  Outcome run(const std::string& name) {
    Outcome outcome;
    outcome.cache = name;
    rocksdb::LRUCacheOptions lru;
    lru.capacity = data_bytes() * s_.block_cache_percent / 100;
    lru.num_shard_bits = 2;
    lru.secondary_cache = second(name);
    auto statistics = rocksdb::CreateDBStatistics();
    auto db = open(rocksdb::NewLRUCache(lru), statistics);
    fmt::print(stderr, "{}: warming up\n", name);
    read(*db, s_.reads / 2, s_.seed + 1000, outcome);  // warms up
    fmt::print(stderr, "{}: measuring\n", name);
    outcome.latency_ns = Histogram();
    statistics->Reset();
    const auto begun = Clock::now();
    read(*db, s_.reads, s_.seed, outcome);
    outcome.per_second = static_cast<double>(s_.reads) / std::chrono::duration<double>(Clock::now() - begun).count();
    // RocksDB counts what comes from the secondary cache among the block cache's hits.
    outcome.in_second = statistics->getTickerCount(rocksdb::SECONDARY_CACHE_HITS);
    const std::uint64_t hits = statistics->getTickerCount(rocksdb::BLOCK_CACHE_DATA_HIT);
    outcome.in_block_cache = hits - std::min(hits, outcome.in_second);
    outcome.on_disk = statistics->getTickerCount(rocksdb::BLOCK_CACHE_DATA_MISS);
    if (name == "cowbird") outcome.cowbird = counters_of(*lru.secondary_cache);
    return outcome;
  }

 private:
  std::uint64_t data_bytes() const { return s_.records * (s_.value_bytes + key_of(0).size()); }

  std::shared_ptr<rocksdb::SecondaryCache> second(const std::string& name) const {
    const std::uint64_t bytes = data_bytes() * s_.second_percent / 100 / 64 * 64;
    if (name == "compressed") {
      rocksdb::CompressedSecondaryCacheOptions options;
      options.capacity = bytes;
      return rocksdb::NewCompressedSecondaryCache(options);
    }
    if (name == "cowbird") {
      CowbirdCacheOptions options = s_.cowbird;
      options.capacity = bytes;
      options.lanes = s_.threads;
      std::shared_ptr<rocksdb::SecondaryCache> cache;
      must(NewCowbirdCache(options, &cache), "the cache in remote memory");
      return cache;
    }
    return nullptr;
  }

  std::unique_ptr<rocksdb::DB> open(std::shared_ptr<rocksdb::Cache> cache,
                                    std::shared_ptr<rocksdb::Statistics> statistics) const {
    rocksdb::Options options;
    options.create_if_missing = true;
    options.compression = rocksdb::kNoCompression;
    options.use_direct_reads = s_.direct;
    options.statistics = std::move(statistics);
    rocksdb::BlockBasedTableOptions table;
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    if (cache) table.block_cache = std::move(cache);
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    rocksdb::DB* db = nullptr;
    must(rocksdb::DB::Open(options, s_.db, &db), "opening the database");
    return std::unique_ptr<rocksdb::DB>(db);
  }

  void read(rocksdb::DB& db, std::uint64_t reads, std::uint64_t seed, Outcome& outcome) const {
    std::vector<std::thread> threads;
    std::vector<Outcome> parts(s_.threads);
    for (std::uint32_t t = 0; t < s_.threads; ++t)
      threads.emplace_back([&, t] { read_some(db, reads / s_.threads, Rng(seed).fork(t), parts[t]); });
    for (auto& thread : threads) thread.join();
    for (const auto& part : parts) {
      outcome.latency_ns.merge(part.latency_ns);
      outcome.wrong += part.wrong;
    }
  }

  void read_some(rocksdb::DB& db, std::uint64_t reads, Rng rng, Outcome& outcome) const {
    const workload::Zipf zipf(s_.records, 990);
    std::string expected(s_.value_bytes, 0);
    rocksdb::PinnableSlice value;
    for (std::uint64_t i = 0; i < reads; ++i) {
      // Neighbours in the key space share a block: hot ones are spread by a multiplication.
      const std::uint64_t number =
          s_.distribution == "zipfian" ? zipf.draw(rng) * 0x9E37'79B9'7F4A'7C15 % s_.records : rng.below(s_.records);
      const auto begun = Clock::now();
      const rocksdb::Status status = db.Get({}, db.DefaultColumnFamily(), key_of(number), &value);
      outcome.latency_ns.record((Clock::now() - begun).count());
      fill_value(number, expected);
      if (!status.ok() || value != expected) ++outcome.wrong;
      value.Reset();
    }
  }

  Settings s_;
};

nlohmann::json to_json(const Outcome& o) {
  return {{"cache", o.cache},
          {"operations_per_second", o.per_second},
          {"p50_us", static_cast<double>(o.latency_ns.at_quantile(0.5)) / 1e3},
          {"p99_us", static_cast<double>(o.latency_ns.at_quantile(0.99)) / 1e3},
          {"wrong", o.wrong},
          {"in_block_cache", o.in_block_cache},
          {"in_secondary", o.in_second},
          {"on_disk", o.on_disk},
          {"cowbird",
           {{"inserts", o.cowbird.inserts},
            {"inserts_dropped", o.cowbird.inserts_dropped},
            {"inserts_failed", o.cowbird.inserts_failed},
            {"refused", o.cowbird.refused},
            {"late", o.cowbird.late},
            {"failed", o.cowbird.failed},
            {"other_bytes", o.cowbird.wrong}}}};
}

void print(const Outcome& o) {
  const std::uint64_t blocks = std::max<std::uint64_t>(o.in_block_cache + o.in_second + o.on_disk, 1);
  const auto share = [&](std::uint64_t n) { return 100.0 * static_cast<double>(n) / static_cast<double>(blocks); };
  fmt::print("{:<12} {:>10.0f} {:>9.1f} {:>9.1f} {:>9.1f} % {:>9.1f} % {:>6.1f} % {:>6}\n", o.cache, o.per_second,
             static_cast<double>(o.latency_ns.at_quantile(0.5)) / 1e3,
             static_cast<double>(o.latency_ns.at_quantile(0.99)) / 1e3, share(o.in_block_cache), share(o.in_second),
             share(o.on_disk), o.wrong);
  if (o.cowbird.inserts != 0)
    fmt::print(
        "             {} blocks written, {} dropped; look-ups: {} refused, {} late, {} failed, {} with other bytes\n",
        o.cowbird.inserts - o.cowbird.inserts_dropped - o.cowbird.inserts_failed,
        o.cowbird.inserts_dropped + o.cowbird.inserts_failed, o.cowbird.refused, o.cowbird.late, o.cowbird.failed,
        o.cowbird.wrong);
}

int run(int argc, char** argv) {
  Settings s;
  CLI::App app(
      "Read a RocksDB database through a small block cache: without a secondary cache, with RocksDB's own compressed "
      "one in local "
      "memory, and with one in remote memory behind Cowbird (`sluice rack up --no-metadata`, `sluice cowbird engine`). "
      "Every value read is checked.");
  app.add_option("--db", s.db, "folder for the database: empty, or not there yet")->required();
  app.add_option("--records", s.records, "keys")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--value-size", s.value_bytes, "bytes of a value")->capture_default_str()->check(CLI::Range(1, 65536));
  app.add_option("--reads", s.reads, "reads that are measured, after half as many to warm up")->capture_default_str();
  app.add_option("--threads", s.threads, "that read")->capture_default_str()->check(CLI::Range(1, 256));
  app.add_option("--block-cache", s.block_cache_percent, "percent of the data that fit into the block cache")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--secondary", s.second_percent, "percent of the data that fit into the secondary cache")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--distribution", s.distribution, "of the keys")
      ->capture_default_str()
      ->check(CLI::IsMember({"uniform", "zipfian"}));
  app.add_option("--caches", s.caches, "which secondary caches to try, in turn")
      ->capture_default_str()
      ->delimiter(',')
      ->check(CLI::IsMember({"none", "compressed", "cowbird"}));
  app.add_flag("--direct,!--buffered", s.direct,
               "read past the kernel's page cache, which would be a cache of its own");
  app.add_option("--seed", s.seed, "of what is drawn")->capture_default_str();
  app.add_option("--engine", s.cowbird.engine, "socket of the Cowbird engine; empty: of the rack in its usual place");
  app.add_option("--memory-node", s.cowbird.memory_node, "memory node of the rack")->capture_default_str();
  app.add_option("--offset", s.cowbird.offset, "where the cache begins in the node's memory")->capture_default_str();
  app.add_flag("--json", s.json, "one JSON document a cache");
  CLI11_PARSE(app, argc, argv);

  Bench bench(s);
  bench.load();
  if (!s.json)
    fmt::print("{} keys of {} bytes, {} reads, {} threads, {}{}\n{:<12} {:>10} {:>9} {:>9} {:>11} {:>11} {:>8} {:>6}\n",
               s.records, s.value_bytes, s.reads, s.threads, s.distribution, s.direct ? ", direct reads" : "",
               "secondary", "reads/s", "p50 us", "p99 us", "block cache", "secondary", "disk", "wrong");
  std::uint64_t wrong = 0;
  for (const std::string& cache : s.caches) {
    const Outcome outcome = bench.run(cache);
    wrong += outcome.wrong;
    if (s.json) {
      fmt::print("{}\n", to_json(outcome).dump());
    } else {
      print(outcome);
    }
    std::fflush(stdout);
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::run(argc, argv); }
