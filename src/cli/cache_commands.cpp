// sluice cache serve, get, set, erase, bench: the key-value cache of 1RMA §7.1 in real time.
#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <set>

#include "base/histogram.h"
#include "base/rng.h"
#include "cli/child.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/result_format.h"
#include "rack/clients/cache_end.h"
#include "rack/endpoint/endpoint.h"
#include "rack/switch/switch_daemon.h"

namespace sluice::cli {
namespace {

using kvcache::Outcome;
using remote::Task;

constexpr wire::Ipv4Address kFirstReplica{0x0A4DFD01};  // 10.77.253.1

ByteView view(const std::string& text) { return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}; }

class CacheServe final : public Command {
 public:
  explicit CacheServe(CLI::App& parent)
      : Command(parent, "serve", "Be one replica of a key-value cache, until told to end",
                {"sluice cache serve --port shm:/run/user/1000/sluice/switch.sock --grants one.json",
                 "sluice cache serve --port cable:/run/user/1000/cache --grants one.json --memory 1GiB"}) {
    schema_.text("port", end_.port, "where frames come and go", "a port, e.g. shm:/path, cable:/path, udp:HOST:PORT")
        .toggle("listen", end_.listen, "wait at the port for one client (udp)")
        .ipv4("ip", end_.ip, "this replica's address, another one for each; its MAC follows from it")
        .bytes("memory", end_.memory, 64u << 10, std::uint64_t{1} << 40, "memory for the table")
        .bytes("entry-size", end_.entry_bytes, 1, 1u << 20, "about how long key and value are together")
        .bytes("max-value", end_.max_value, 64, rack::CacheReplicaEnd::kMostValue, "longest value")
        .integer("clients", end_.clients, 1, 16'384, "grants to write; every run of a client uses one up")
        .text("grants", end_.grants, "file to write the clients' keys to; a secret", "a file's path");
    use("cache-serve", schema_);
  }

 private:
  Result<void> check() override {
    if (end_.port.empty()) return fail("--port is needed: where frames come and go, e.g. cable:/tmp/cache");
    if (end_.grants.empty()) return fail("--grants is needed: the file that gives clients their keys");
    if (end_.entry_bytes > end_.memory / 16) return fail("--entry-size: must be at most a 16th of --memory");
    return {};
  }
  Result<int> run() override {
    const auto ready = [this] {
      say(fmt::format("cache replica {} serves {}; grants in {}", end_.ip.to_string(), end_.port, end_.grants));
    };
    if (auto done = rack::serve_cache(end_, ready); !done) return tl::unexpected(done.error());
    return 0;
  }

  rack::CacheReplicaEnd end_ = [] {
    rack::CacheReplicaEnd end;
    end.ip = kFirstReplica;
    return end;
  }();
  rack::Schema schema_;
};

// What get, set and erase have in common: one operation of a client that is there for it alone.
class CacheOnce final : public Command {
 public:
  enum class What : std::uint8_t { kGet, kSet, kErase };
  CacheOnce(CLI::App& parent, What what, const std::string& name, const std::string& about)
      : Command(parent, name, about,
                {fmt::format("sluice cache {} --port shm:/run/user/1000/sluice/switch.sock --grants one.json --grants "
                             "two.json fruit{}",
                             name, what == What::kSet ? " apple" : "")}),
        what_(what) {
    schema_.text("port", end_.port, "the port from which all replicas can be reached", "a port, e.g. shm:/path")
        .list("grants", end_.grants, "the file that a replica wrote (repeat the flag for each)", "a file's path")
        .duration("patience", end_.patience, rack::CacheClientEnd::kLeastPatience, Duration::seconds(60),
                  "for a replica, before another one is asked");
    use("cache-" + name, schema_);
    option("key", key_, "the key, up to 250 bytes").required();
    if (what == What::kSet) option("value", value_, "the value").required();
  }

 private:
  Result<void> check() override {
    if (end_.port.empty()) return fail("--port is needed: from which the replicas can be reached");
    if (end_.grants.empty()) return fail("--grants is needed: the file that `sluice cache serve` wrote");
    if (key_.size() > kvcache::kMaxKey)
      return fail(fmt::format("the key has {} bytes; it may have {} at most", key_.size(), kvcache::kMaxKey));
    end_.value_bytes = value_.size();
    return {};
  }
  Result<int> run() override {
    rack::StopSignals signals;
    auto client = rack::CacheClient::open(end_);
    if (!client) return tl::unexpected(client.error());
    signals.stop_on_signal((*client)->loop());
    kvcache::Client& cache = (*client)->cache();
    std::vector<std::uint8_t> into((*client)->max_value());
    std::size_t length = 0;
    Outcome outcome{};
    const auto act = [&]() -> Task<void> {
      if (what_ == What::kGet) {
        const kvcache::GetResult got = co_await cache.get(view(key_), into);
        outcome = got.outcome;
        length = got.length;
      } else if (what_ == What::kSet) {
        outcome = co_await cache.set(view(key_), view(value_));
      } else {
        outcome = co_await cache.erase(view(key_));
      }
    };
    if (!(*client)->wait_for(act())) return interrupted("interrupted");
    if (outcome != Outcome::kOk) return fail(fmt::format("{}: {}", key_, to_string(outcome)));
    if (what_ != What::kGet) return 0;
    const std::string text(into.begin(), into.begin() + static_cast<std::ptrdiff_t>(length));
    if (auto written = write_output("", text + "\n"); !written) return tl::unexpected(written.error());
    return 0;
  }

  What what_;
  rack::CacheClientEnd end_;
  rack::Schema schema_;
  std::string key_;
  std::string value_;
};

struct Settings {
  std::uint64_t replicas = 3;
  std::uint64_t clients = 16;
  std::uint64_t records = 1000;
  std::uint64_t value_bytes = 64;
  std::uint64_t writes_percent = 0;
  Duration duration = Duration::seconds(2);
  Duration kill_after{};
  Duration patience = rack::CacheClientEnd{}.patience;
  std::uint64_t seed = 1;
  std::string out;

  void declare(rack::Schema& s) {
    s.integer("replicas", replicas, 1, 8, "processes that each hold everything")
        .integer("clients", clients, 1, 1024, "lookups under way")
        .integer("records", records, 1, 1'000'000, "keys")
        .bytes("value-size", value_bytes, 16, 32u << 10, "bytes of a value")
        .integer("writes", writes_percent, 0, 100, "of a hundred operations, how many change a value")
        .duration("duration", duration, Duration::milliseconds(10), Duration::seconds(3600), "how long to measure")
        .duration("kill-after", kill_after, Duration{}, Duration::seconds(3600),
                  "kill the first replica then; 0: never")
        .duration("patience", patience, rack::CacheClientEnd::kLeastPatience, Duration::seconds(60),
                  "for a replica, before another one is asked")
        .integer("seed", seed, 0, ~std::uint64_t{0}, "of all that is drawn")
        .text("out", out, "write the result to this file instead of stdout", "a file's path");
  }
};

// Values say which key they belong to and how manieth they are; every byte follows.
std::string key_text(std::uint64_t key) { return fmt::format("key{}", key); }
void fill(std::vector<std::uint8_t>& value, std::uint64_t key, std::uint64_t count) {
  store_le(value.data(), key);
  store_le(value.data() + 8, count);
  for (std::size_t i = 16; i < value.size(); ++i) value[i] = static_cast<std::uint8_t>(key * 31 + count * 7 + i);
}

// Closed loops over the cache.
class Load {
 public:
  static constexpr int kLoadAttempts = 100;

  struct Found {
    std::uint64_t lookups = 0, changes = 0, misses = 0, failed = 0, wrong = 0, partial = 0;
    Histogram lookup_ns, change_ns;
    Duration longest_pause{};  // between two lookups that ended
  };

  Load(rack::CacheClient& client, const Settings& settings) : client_(client), s_(settings), keys_(settings.records) {}

  Task<void> load() {
    std::vector<std::uint8_t> value(s_.value_bytes);
    for (std::uint64_t key = 0; key < s_.records && loaded_; ++key) {
      fill(value, key, 0);
      const std::string name = key_text(key);
      Outcome outcome = Outcome::kUnavailable;
      // A replica that did not answer in time is asked again when it is back.
      for (int attempt = 0; attempt < kLoadAttempts && outcome != Outcome::kOk; ++attempt) {
        if (attempt != 0) co_await client_.scheduler().sleep_for(Duration::milliseconds(100));
        outcome = co_await client_.cache().set(view(name), value);
      }
      loaded_ = outcome == Outcome::kOk;
    }
  }
  bool loaded() const { return loaded_; }

  Task<void> run() {
    begun_ = last_end_ = client_.loop().now();
    for (std::uint64_t i = 0; i < s_.clients; ++i, ++running_) client_.scheduler().spawn(one(Rng(s_.seed).fork(i)));
    while (running_ != 0) co_await client_.scheduler().sleep_for(Duration::milliseconds(1));
  }
  bool under_way() const { return running_ != 0; }
  Time begun() const { return begun_; }
  const Found& found() const { return found_; }
  double seconds() const { return static_cast<double>((client_.loop().now() - begun_).nanoseconds()) / 1e9; }

 private:
  // By the numbers of its changes.
  struct KeyState {
    std::uint64_t last = 0;
    std::uint64_t oldest = 0;  // that a lookup which begins now may find
    std::set<std::uint64_t> under_way;
  };
  Task<void> one(Rng rng) {
    std::vector<std::uint8_t> value(s_.value_bytes);
    while (client_.loop().now() - begun_ < s_.duration && !client_.loop().stopping()) {
      const std::uint64_t key = rng.below(s_.records);
      const Time since = client_.loop().now();
      if (rng.below(100) < s_.writes_percent) {
        co_await change(key, value);
        found_.change_ns.record((client_.loop().now() - since).nanoseconds());
        continue;
      }
      const std::string name = key_text(key);
      const std::uint64_t oldest = keys_[key].oldest;
      const kvcache::GetResult got = co_await client_.cache().get(view(name), value);
      const Time now = client_.loop().now();
      ++found_.lookups;
      found_.lookup_ns.record((now - since).nanoseconds());
      found_.longest_pause = std::max(found_.longest_pause, now - last_end_);
      last_end_ = now;
      judge(key, got, value, oldest);
    }
    --running_;
  }
  // Only whole values that were set for this key; which are all from the load on, or from some change of ours, and none older than `oldest`.
  void judge(std::uint64_t key, const kvcache::GetResult& got, const std::vector<std::uint8_t>& value,
             std::uint64_t oldest) {
    if (got.outcome == Outcome::kMiss) {
      ++found_.misses;
      return;
    }
    if (got.outcome != Outcome::kOk) {
      ++found_.failed;
      return;
    }
    std::vector<std::uint8_t> right(s_.value_bytes);
    const auto count = load_le<std::uint64_t>(value.data() + 8);
    fill(right, key, count);
    const bool may_be = oldest <= count && count <= keys_[key].last;
    found_.wrong += got.length != right.size() || value != right || !may_be ? 1u : 0u;
  }
  Task<void> change(std::uint64_t key, std::vector<std::uint8_t>& value) {
    KeyState& state = keys_[key];
    const std::uint64_t count = ++state.last;
    state.under_way.insert(count);
    const std::uint64_t oldest = *state.under_way.begin();
    fill(value, key, count);
    ++found_.changes;
    const std::string name = key_text(key);
    const Outcome outcome = co_await client_.cache().set(view(name), value);
    state.under_way.erase(count);
    // What had ended before it began is older.
    if (outcome == Outcome::kOk) state.oldest = std::max(state.oldest, oldest);
    found_.partial += outcome == Outcome::kPartial ? 1u : 0u;
    found_.failed += outcome != Outcome::kPartial && outcome != Outcome::kOk ? 1u : 0u;
  }

  rack::CacheClient& client_;
  const Settings& s_;
  std::vector<KeyState> keys_;
  Found found_;
  Time begun_;
  Time last_end_;
  std::uint64_t running_ = 0;
  bool loaded_ = true;
};

class CacheBench final : public Command {
 public:
  explicit CacheBench(CLI::App& parent)
      : Command(parent, "bench", "Measure a cache of several replicas around a switch; every value found is verified",
                {"sluice cache bench", "sluice cache bench --kill-after 1s --json",
                 "sluice cache bench --writes 10 --clients 64 --value-size 1000"}) {
    settings_.declare(schema_);
    use("cache-bench", schema_);
    format_.declare(*this);
  }

 private:
  Result<void> check() override {
    if (settings_.kill_after == Duration{} || settings_.kill_after < settings_.duration) return {};
    return fail(fmt::format("--kill-after {}: must be before the end, which --duration says ({})",
                            rack::duration_text(settings_.kill_after), rack::duration_text(settings_.duration)));
  }
  Result<int> run() override;
  Result<void> start(Children& children);
  std::string text(const Load& load, rack::CacheClient& client) const;

  Settings settings_;
  rack::Schema schema_;
  ResultFormat format_;
  std::vector<std::string> grants_;
};

constexpr std::size_t kFirstReplicaChild = 1;  // the switch starts first

Result<void> CacheBench::start(Children& children) {
  const std::string& folder = children.folder();
  auto up = children.start("the switch",
                           [&](const std::function<void()>& ready) { return rack::run_switch(folder, {}, ready); });
  for (std::uint64_t i = 0; i < settings_.replicas && up; ++i) {
    rack::CacheReplicaEnd end;
    end.port = fmt::format("shm:{}/switch.sock", folder);
    end.ip = wire::Ipv4Address{kFirstReplica.value + static_cast<std::uint32_t>(i)};
    end.grants = fmt::format("{}/replica{}.json", folder, i);
    end.entry_bytes = settings_.value_bytes + 16;
    end.memory = std::max<std::uint64_t>(64u << 20, 4 * settings_.records * (settings_.value_bytes + 128));
    grants_.push_back(end.grants);
    up = children.start("a replica", [&](const std::function<void()>& ready) { return rack::serve_cache(end, ready); });
  }
  return up;
}

Result<int> CacheBench::run() {
  if (auto possible = check_output(settings_.out); !possible) return tl::unexpected(possible.error());
  rack::StopSignals signals;
  Children children;
  const auto started = start(children);
  if (has_come(signals)) return interrupted("interrupted");
  if (!started) return tl::unexpected(started.error());
  auto client = rack::CacheClient::open({.port = fmt::format("shm:{}/switch.sock", children.folder()),
                                         .grants = grants_,
                                         .patience = settings_.patience});
  if (has_come(signals)) return interrupted("interrupted");
  if (!client) return tl::unexpected(client.error());
  signals.stop_on_signal((*client)->loop());
  Progress progress;
  Load load(**client, settings_);
  progress.show("loading");
  if (!(*client)->wait_for(load.load())) return interrupted("interrupted");
  if (!load.loaded()) return fail("a value could not be set at all replicas");
  progress.show("measuring");
  // In the loop's own thread: the replica dies when the time has come.
  bool killed = false;
  nic::Periodic killer(Duration::milliseconds(1), [&](Time now) {
    if (killed || settings_.kill_after == Duration{} || !load.under_way()) return;
    if (now - load.begun() < settings_.kill_after) return;
    killed = true;
    children.kill_now(kFirstReplicaChild);
  });
  (*client)->loop().add(killer);
  const bool whole = (*client)->wait_for(load.run());
  (*client)->loop().remove(killer);
  if (auto written = write_output(settings_.out, text(load, **client)); !written)
    return tl::unexpected(written.error());
  if (!whole) return kExitInterrupted;
  return load.found().wrong == 0 && load.found().failed == 0 ? 0 : kExitFailed;
}

std::string CacheBench::text(const Load& load, rack::CacheClient& client) const {
  const Load::Found& f = load.found();
  const auto us = [](const Histogram& ns, double quantile) {
    return static_cast<double>(ns.at_quantile(quantile)) / 1e3;
  };
  const double pause = static_cast<double>(f.longest_pause.nanoseconds()) / 1e3;
  const double rate = static_cast<double>(f.lookups) / load.seconds();
  const auto& counters = client.cache().counters();
  const auto facts = [&] {
    return nlohmann::ordered_json{{"lookups", f.lookups},
                                  {"lookups_per_second", rate},
                                  {"p50_us", us(f.lookup_ns, 0.5)},
                                  {"p99_us", us(f.lookup_ns, 0.99)},
                                  {"max_us", static_cast<double>(f.lookup_ns.max()) / 1e3},
                                  {"longest_pause_us", pause},
                                  {"changes", f.changes},
                                  {"changes_p50_us", us(f.change_ns, 0.5)},
                                  {"changes_partial", f.partial},
                                  {"misses", f.misses},
                                  {"failed", f.failed},
                                  {"wrong", f.wrong},
                                  {"failovers", counters.failovers},
                                  {"left_out", counters.left_out},
                                  {"retries", client.transfers().retries}};
  };
  const auto csv = [&] {
    nlohmann::ordered_json row{{"replicas", settings_.replicas},     {"clients", settings_.clients},
                               {"records", settings_.records},       {"value_bytes", settings_.value_bytes},
                               {"writes", settings_.writes_percent}, {"seed", settings_.seed}};
    row.update(facts());
    return csv_text({row});
  };
  const auto table = [&] {
    return fmt::format(
        "lookups   {} ({:.0f}/s), p50 {:.1f} us, p99 {:.1f} us, longest {:.0f} us; longest pause {:.0f} us\n"
        "changes   {}, p50 {:.1f} us; {} not at all replicas\n"
        "misses    {}; failed {}; wrong {}\n"
        "failover  {} lookups asked another replica; replicas left out {} times; {} operations tried again\n",
        f.lookups, rate, us(f.lookup_ns, 0.5), us(f.lookup_ns, 0.99), static_cast<double>(f.lookup_ns.max()) / 1e3,
        pause, f.changes, us(f.change_ns, 0.5), f.partial, f.misses, f.failed, f.wrong, counters.failovers,
        counters.left_out, client.transfers().retries);
  };
  return format_.text([&] { return nlohmann::json(facts()); }, csv, table);
}

}  // namespace

void add_cache_commands(CLI::App& root, Commands& commands) {
  CLI::App& group = add_group(root, "cache", "A replicated key-value cache, looked up by one-sided reads over 1RMA");
  commands.push_back(std::make_unique<CacheServe>(group));
  commands.push_back(std::make_unique<CacheOnce>(group, CacheOnce::What::kGet, "get", "Look one key up"));
  commands.push_back(std::make_unique<CacheOnce>(group, CacheOnce::What::kSet, "set", "Set one key at all replicas"));
  commands.push_back(
      std::make_unique<CacheOnce>(group, CacheOnce::What::kErase, "erase", "Erase one key at all replicas"));
  commands.push_back(std::make_unique<CacheBench>(group));
}

}  // namespace sluice::cli
