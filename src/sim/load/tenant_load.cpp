#include "sim/load/tenant_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>

#include "base/check.h"
#include "base/histogram.h"
#include "kvcache/client.h"
#include "kvcache/server.h"
#include "sim/edm/edm_trace.h"
#include "sim/load/latency.h"

namespace sluice::sim {

void TenantWorkload::read(Fields& f) {
  constexpr auto kOptional = Fields::Need::kOptional;
  f.choice("scenario", scenario, {"lookups", "death", "incast", "arrival", "isolation", "rekey"});
  f.choice("transport", transport, {"1rma", "rc"}, kOptional);
  f.integer("servers", servers, 1, 64, kOptional);
  f.integer("clients", clients, 1, 1024, kOptional);
  f.integer("keys", keys, 1, 1u << 20, kOptional);
  f.byte_count("value_bytes", value_bytes, 1, 1u << 20, kOptional);
  f.integer("load_gbps", load_gbps, 1, 10'000, kOptional);
  f.duration("dies_at", dies_at, kOptional);
  f.duration("span_from", span_from, kOptional);
  f.span("span", span, scenario == "death" ? Fields::Need::kRequired : kOptional);
  f.choice("op", op, {"read", "write"}, kOptional);
  f.integer("others", others, 1, 1024, kOptional);
  f.byte_count("bytes", bytes, 1, 16u << 20, kOptional);
  f.integer("depth", depth, 1, 1024, kOptional);
  f.integer("small_depth", small_depth, 1, 1024, kOptional);
  f.choice("at", at, {"initiator", "target"}, kOptional);
  f.choice("who", who, {"small", "large", "both"}, kOptional);
  f.integer("small_per_ms", small_per_ms, 0, 1'000'000, kOptional);
  f.duration("rekey_every", rekey_every, kOptional);
  f.toggle("announced", announced, kOptional);
  f.duration("warm_up", warm_up, kOptional);
  f.span("measure", measure, kOptional);
  f.integer("first_window", first_window, 1, 256, kOptional);
  f.duration("remote_target", remote_target, kOptional);
  f.duration("write_target", write_target, kOptional);
  f.duration("local_target", local_target, kOptional);
  f.duration("spread", spread, kOptional);
  f.integer("deepen_percent", deepen_percent, 0, 100, kOptional);
  f.duration("give_up", give_up, kOptional);
  f.toggle("lossless", lossless, kOptional);
  f.integer("ack_timeout", ack_timeout, 1, 31, kOptional);
  if (scenario == "rekey" && transport == "rc" && rekey_every != Duration{} && !f.failed())
    f.fail(*f.node("rekey_every"), "rekey_every", "is nothing that transport = \"rc\" has: RC knows no Rekey");
  if (scenario != "death" || f.failed()) return;
  const Duration all = warm_up + measure;
  if (span_from + span > all)
    f.fail(*f.node("span"), "span", "must be over, from span_from on, when warm_up and measure are");
  if (dies_at > all && !f.failed())
    f.fail(*f.node("dies_at"), "dies_at", "must be before warm_up and measure are over");
}

namespace {

using remote::NodeId;
using remote::Task;

constexpr std::uint64_t kHeadroom = 256u << 20;  // of a port's queue where pauses are to keep it from overflowing

Time at(Duration since_start) { return Time::at(since_start); }
double us(Duration d) { return static_cast<double>(d.picoseconds()) / 1e6; }
double gbps(std::uint64_t bytes, Duration d) {
  return static_cast<double>(bytes) * 8e3 / static_cast<double>(d.picoseconds());
}

std::unique_ptr<Fabric> make_fabric(Hardware hardware, const TenantWorkload& w, std::uint64_t seed) {
  constexpr std::uint32_t kOne = onerma::CongestionWindow::kOne;
  if (w.transport == "rc") {
    if (w.lossless) {
      hardware.net_switch.queue_bytes = kHeadroom;
    } else {
      hardware.net_switch.pause_from_bytes = hardware.net_switch.pause_to_bytes = 0;
    }
    return make_rc_fabric(hardware, {.ack_timeout = static_cast<std::uint8_t>(w.ack_timeout)}, seed);
  }
  OnermaFabricOptions options;
  options.algorithm = {.spread = w.spread, .deepen = static_cast<std::uint32_t>(w.deepen_percent) * kOne / 100};
  onerma::ExecutorParameters& p = options.client.executor;
  p.base_rtt = Duration::nanoseconds(2500);
  p.remote_target = w.remote_target;
  p.write_target = w.write_target;
  p.local_target = w.local_target;
  p.first_local = 64 * kOne;
  p.first_remote = static_cast<std::uint32_t>(w.first_window) * kOne;
  options.client.give_up = w.give_up;
  return make_onerma_fabric(hardware, options, seed);
}

// ------------------------------------------------------------------------------------------------ operations, kept under way

// Keeps operations under way, to each of its targets; remembers what ended when.
class User {
 public:
  struct Done {
    Time when;
    Duration took;
    std::uint64_t bytes = 0;
  };

  User(Fabric& fabric, Tenant& tenant, const std::vector<std::size_t>& targets, const std::string& op,
       std::uint64_t bytes, std::uint64_t depth, Time start)
      : fabric_(fabric), tenant_(tenant), read_(op == "read"), start_(start), local_(bytes) {
    for (const std::size_t target : targets) {
      for (std::uint64_t i = 0; i < depth; ++i) tenant.scheduler().spawn(keep(fabric.memory_of(target)));
    }
  }
  // Offers operations at Poisson instants instead.
  User(Fabric& fabric, Tenant& tenant, std::size_t target, std::uint64_t bytes, Duration interval, Rng rng)
      : fabric_(fabric), tenant_(tenant), read_(true), local_(bytes) {
    tenant.scheduler().spawn(offer(fabric.memory_of(target), interval, rng));
  }
  User(const User&) = delete;
  User& operator=(const User&) = delete;

  std::uint64_t bytes_between(Time from, Time to) const {
    std::uint64_t bytes = 0;
    for (auto i = first_since(from); i != done_.end() && i->when < to; ++i) bytes += i->bytes;
    return bytes;
  }
  std::uint64_t operations_between(Time from, Time to) const {
    return static_cast<std::uint64_t>(std::distance(first_since(from), first_since(to)));
  }
  void latencies(Time from, Time to, Histogram& out) const {
    for (auto i = first_since(from); i != done_.end() && i->when < to; ++i) out.record(i->took.nanoseconds());
  }
  // The longest time in which nothing ended.
  Duration longest_pause(Time from, Time to) const {
    Duration longest{};
    Time last = from;
    for (auto i = first_since(from); i != done_.end() && i->when < to; ++i) {
      longest = std::max(longest, i->when - last);
      last = i->when;
    }
    return std::max(longest, to - last);
  }
  std::uint64_t failed() const { return failed_; }

 private:
  std::deque<Done>::const_iterator first_since(Time from) const {
    return std::lower_bound(done_.begin(), done_.end(), from, [](const Done& d, Time when) { return d.when < when; });
  }
  Task<void> once(remote::RemoteAddress there) {
    const Time begun = fabric_.loop().now();
    remote::Status status{};
    if (read_) {
      status = co_await tenant_.memory().read(there, local_);
    } else {
      status = co_await tenant_.memory().write(there, local_);
    }
    const Time now = fabric_.loop().now();
    if (status == remote::Status::kOk) {
      done_.push_back({now, now - begun, local_.size()});
    } else {
      ++failed_;
    }
  }
  Task<void> keep(remote::RemoteAddress there) {
    co_await tenant_.scheduler().sleep_until(start_);
    for (std::uint64_t before = 0; before == failed_;) co_await once(there);
  }
  Task<void> offer(remote::RemoteAddress there, Duration interval, Rng rng) {
    Time next;
    for (;;) {
      next = next + Duration::picoseconds(static_cast<std::int64_t>(
                        draw_exponential(rng, static_cast<std::uint64_t>(interval.picoseconds()))));
      co_await tenant_.scheduler().sleep_until(next);
      tenant_.scheduler().spawn(once(there));
    }
  }

  Fabric& fabric_;
  Tenant& tenant_;
  bool read_;
  Time start_;
  std::vector<std::uint8_t> local_;
  std::deque<Done> done_;
  std::uint64_t failed_ = 0;
};

// Machines, each with memory to share, and their users.
class Stage {
 public:
  Stage(const Hardware& hardware, const TenantWorkload& workload, std::uint64_t seed, std::size_t machines)
      : fabric(make_fabric(hardware, workload, seed)), w(workload), rng_(seed) {
    const std::size_t room = std::max<std::size_t>(w.bytes, 4096);
    for (std::size_t i = 0; i < machines; ++i) {
      fabric->add_machine();
      memory_.emplace_back(room);
      fabric->share(i, memory_.back());
    }
  }
  User& add(std::size_t machine, const std::vector<std::size_t>& targets, std::uint64_t bytes, std::uint64_t depth,
            Time start = {}) {
    Tenant& tenant = fabric->add_tenant(machine, targets);
    return *users_.emplace_back(std::make_unique<User>(*fabric, tenant, targets, w.op, bytes, depth, start));
  }
  User& offer(std::size_t machine, std::size_t target, std::uint64_t bytes, Duration interval) {
    Tenant& tenant = fabric->add_tenant(machine, {target});
    return *users_.emplace_back(
        std::make_unique<User>(*fabric, tenant, target, bytes, interval, rng_.fork("offer").fork(users_.size())));
  }
  void run() { fabric->loop().run_until(to()); }
  Time from() const { return at(w.warm_up); }
  Time to() const { return at(w.warm_up + w.measure); }

  TenantResult result(std::vector<std::pair<std::string, double>> metrics) const {
    metrics.emplace_back("dropped", static_cast<double>(fabric->dropped()));
    metrics.emplace_back("sent_again", static_cast<double>(fabric->sent_again()));
    std::uint64_t failed = 0;
    std::uint64_t ended = 0;
    for (const auto& user : users_) {
      failed += user->failed();
      ended += user->operations_between(Time(), to());
    }
    const char* const nothing =
        ended == 0 ? "no operation ended before what is measured did: make `measure` longer than one takes" : "";
    return {.metrics = std::move(metrics),
            .events = fabric->loop().fired(),
            .trace_hash = fabric->trace_hash(),
            .problem = failed == 0 ? nothing : fmt::format("{} operations failed", failed)};
  }

  std::unique_ptr<Fabric> fabric;
  const TenantWorkload& w;

 private:
  Rng rng_;
  std::deque<std::vector<std::uint8_t>> memory_;
  std::vector<std::unique_ptr<User>> users_;
};

void add_latencies(std::vector<std::pair<std::string, double>>& metrics, const std::string& prefix,
                   const Histogram& ns) {
  metrics.emplace_back(prefix + "p50_us", quantile_us(ns, 0.5));
  metrics.emplace_back(prefix + "p99_us", quantile_us(ns, 0.99));
}

TenantResult run_incast(const Hardware& hardware, const TenantWorkload& w, std::uint64_t seed) {
  Stage stage(hardware, w, seed, w.others + 1);
  std::vector<User*> users;
  if (w.op == "read") {
    std::vector<std::size_t> all(w.others);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i + 1;
    users.push_back(&stage.add(0, all, w.bytes, w.depth));
  } else {
    for (std::size_t i = 1; i <= w.others; ++i) users.push_back(&stage.add(i, {0}, w.bytes, w.depth));
  }
  stage.run();
  std::uint64_t bytes = 0;
  Histogram ns;
  for (const User* user : users) {
    bytes += user->bytes_between(stage.from(), stage.to());
    user->latencies(stage.from(), stage.to(), ns);
  }
  std::vector<std::pair<std::string, double>> metrics{{"goodput_gbps", gbps(bytes, w.measure)}};
  add_latencies(metrics, "", ns);
  return stage.result(std::move(metrics));
}

double jain(const std::vector<User*>& users, Time from, Time to) {
  double sum = 0, squares = 0;
  for (const User* user : users) {
    const auto got = static_cast<double>(user->bytes_between(from, to));
    sum += got;
    squares += got * got;
  }
  return squares == 0 ? 0 : sum * sum / (static_cast<double>(users.size()) * squares);
}

// The others come when the warm-up is over. Windows of 20 round trips of 4.2 us, 1RMA's under load, for whichever transport.
TenantResult run_arrival(const Hardware& hardware, const TenantWorkload& w, std::uint64_t seed) {
  constexpr Duration kRtt = Duration::nanoseconds(4200);
  constexpr Duration kWindow = kRtt * 20;
  const std::size_t target = w.others + 1;
  Stage stage(hardware, w, seed, w.others + 2);
  std::vector<User*> users;
  for (std::size_t i = 0; i <= w.others; ++i) {
    users.push_back(&stage.add(i, {target}, w.bytes, w.depth, i == 0 ? Time() : stage.from()));
  }
  stage.run();
  Time fair = stage.from();
  double least = std::numeric_limits<double>::infinity();  // of the last half
  for (Time t = stage.from(); t + kWindow <= stage.to(); t = t + kWindow / 4) {
    const double index = jain(users, t, t + kWindow);
    if (index <= 0.95) fair = t + kWindow / 4;
    if (t - stage.from() >= w.measure / 2) least = std::min(least, index);
  }
  std::uint64_t bytes = 0;
  Histogram ns;
  for (const User* user : users) {
    bytes += user->bytes_between(stage.from(), stage.to());
    user->latencies(stage.from(), stage.to(), ns);
  }
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const bool ever = fair + kWindow <= stage.to();
  std::vector<std::pair<std::string, double>> metrics{
      {"fair_after_rtts", ever ? us(fair - stage.from()) / us(kRtt) : kNone},
      {"least_jain_later", std::isinf(least) ? kNone : least},
      {"goodput_gbps", gbps(bytes, w.measure)}};
  add_latencies(metrics, "", ns);
  return stage.result(std::move(metrics));
}

TenantResult run_isolation(const Hardware& hardware, const TenantWorkload& w, std::uint64_t seed) {
  constexpr std::uint64_t kSmall = 64;
  const bool same_target = w.at == "target";
  // Initiators 0 and 1, targets 2 and 3; what they share is one of these.
  const std::size_t small_at = 0, large_at = same_target ? 1 : 0;
  const std::size_t small_to = 2, large_to = same_target ? 2 : 3;
  Stage stage(hardware, w, seed, 4);
  User* small = nullptr;
  User* large = nullptr;
  if (w.who != "large") {
    small = w.small_per_ms == 0 ? &stage.add(small_at, {small_to}, kSmall, w.small_depth)
                                : &stage.offer(small_at, small_to, kSmall,
                                               Duration::milliseconds(1) / static_cast<std::int64_t>(w.small_per_ms));
  }
  if (w.who != "small") large = &stage.add(large_at, {large_to}, w.bytes, w.depth);
  stage.run();
  std::vector<std::pair<std::string, double>> metrics;
  // Nobody there: 0, so that all series have the same metrics.
  const auto tell = [&](const User* user, const std::string& name) {
    const bool there = user != nullptr;
    const std::uint64_t bytes = there ? user->bytes_between(stage.from(), stage.to()) : 0;
    const std::uint64_t operations = there ? user->operations_between(stage.from(), stage.to()) : 0;
    metrics.emplace_back(name + "_gbps", gbps(bytes, w.measure));
    metrics.emplace_back(name + "_mops", static_cast<double>(operations) / us(w.measure));
    Histogram ns;
    if (there) user->latencies(stage.from(), stage.to(), ns);
    add_latencies(metrics, name + "_", ns);
  };
  tell(small, "small");
  tell(large, "large");
  return stage.result(std::move(metrics));
}

// One reader at full rate; the pause is the longest time in which none of its operations ended.
TenantResult run_rekey(const Hardware& hardware, const TenantWorkload& w, std::uint64_t seed) {
  Stage stage(hardware, w, seed, 2);
  const User& user = stage.add(0, {1}, w.bytes, w.depth);
  if (w.rekey_every != Duration{}) stage.fabric->rekey(1, w.rekey_every, w.announced);
  stage.run();
  std::vector<std::pair<std::string, double>> metrics{
      {"pause_us", us(user.longest_pause(stage.from(), stage.to()))},
      {"goodput_gbps", gbps(user.bytes_between(stage.from(), stage.to()), w.measure)},
      {"rekeys", static_cast<double>(stage.fabric->rekeys())}};
  Histogram ns;
  user.latencies(stage.from(), stage.to(), ns);
  add_latencies(metrics, "", ns);
  metrics.emplace_back("most_us", static_cast<double>(ns.max()) / 1e3);
  return stage.result(std::move(metrics));
}

// ------------------------------------------------------------------------------------------------------------ the cache

struct Lookups {
  struct One {
    Time begun;
    Time ended = Time::never();
    bool right = false;
  };
  std::deque<One> all;
};

std::string key_text(std::uint64_t i) { return fmt::format("key{:05}", i); }
std::vector<std::uint8_t> value_of(std::uint64_t key, std::size_t bytes) {
  std::vector<std::uint8_t> value(bytes);
  for (std::size_t i = 0; i < bytes; ++i) value[i] = static_cast<std::uint8_t>(key * 7 + i * 13);
  return value;
}
ByteView view(const std::string& text) { return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}; }

// A client of the cache that looks up at Poisson instants, whatever is under way.
class Looker {
 public:
  Looker(Fabric& fabric, Tenant& tenant, std::vector<kvcache::Replica> replicas, const TenantWorkload& w,
         Duration interval, Rng rng, Lookups& lookups)
      : fabric_(fabric),
        tenant_(tenant),
        w_(w),
        client_(tenant.memory(), std::move(replicas),
                {.max_value = static_cast<std::uint32_t>(w.value_bytes), .look_after = Duration::milliseconds(1)}),
        interval_(interval),
        rng_(rng),
        lookups_(lookups) {
    tenant.scheduler().spawn(run());
  }

 private:
  Task<void> run() {
    const kvcache::Outcome joined = co_await client_.join();
    SLUICE_CHECK(joined == kvcache::Outcome::kOk);
    Time next = fabric_.loop().now();
    for (;;) {
      next = next + Duration::picoseconds(static_cast<std::int64_t>(
                        draw_exponential(rng_, static_cast<std::uint64_t>(interval_.picoseconds()))));
      co_await tenant_.scheduler().sleep_until(next);
      lookups_.all.push_back({next});
      tenant_.scheduler().spawn(look(rng_.below(w_.keys), lookups_.all.back()));
    }
  }
  Task<void> look(std::uint64_t key, Lookups::One& one) {
    const std::string text = key_text(key);
    std::vector<std::uint8_t> into(w_.value_bytes);
    const kvcache::GetResult result = co_await client_.get(view(text), into);
    one.ended = fabric_.loop().now();
    one.right = result.outcome == kvcache::Outcome::kOk && result.length == into.size() &&
                into == value_of(key, w_.value_bytes);
  }

  Fabric& fabric_;
  Tenant& tenant_;
  const TenantWorkload& w_;
  kvcache::Client client_;
  Duration interval_;
  Rng rng_;
  Lookups& lookups_;
};

// What became of the lookups that began in a span of time, and how many ended in it.
struct Fates {
  Histogram ns;  // of those that are still open at the end no less than this
  std::uint64_t wrong = 0;
  std::uint64_t open = 0;
  std::uint64_t ended = 0;
};

Fates fates_of(const std::vector<Lookups>& lookups, Time from, Time to, Time end) {
  Fates fates;
  for (const Lookups& each : lookups) {
    for (const Lookups::One& one : each.all) {
      if (one.ended >= from && one.ended < to) ++fates.ended;
      if (one.begun < from || one.begun >= to) continue;
      const bool still = one.ended == Time::never();
      fates.open += still ? 1 : 0;
      fates.wrong += !still && !one.right ? 1 : 0;
      fates.ns.record(((still ? end : one.ended) - one.begun).nanoseconds());
    }
  }
  return fates;
}

std::string problem_of(const Fates& fates, bool death) {
  if (fates.wrong != 0) return fmt::format("{} lookups did not find what was there", fates.wrong);
  if (fates.ns.count() == 0)
    return death ? "no lookup began in the span asked after: make `span` longer, or `load_gbps` higher"
                 : "no lookup began in what is measured: make `measure` longer, or `load_gbps` higher";
  // Where a replica dies it may be that for a while none does.
  return !death && fates.ended == 0 ? "no lookup ended in what is measured: make `measure` longer than one takes" : "";
}

// Both figures of the cache: `death` also kills the first replica, and asks after the lookups of one span.
TenantResult run_cache(const Hardware& hardware, const TenantWorkload& w, std::uint64_t seed) {
  const bool death = w.scenario == "death";
  const auto fabric = make_fabric(hardware, w, seed);
  const std::size_t entry = kvcache::kEntryHeader + key_text(0).size() + w.value_bytes;
  const auto geometry = kvcache::Geometry::fitting(4 * w.keys * (entry + 2 * kvcache::kUnit) + 65'536, entry);
  std::vector<std::vector<std::uint8_t>> tables;
  std::vector<std::unique_ptr<kvcache::Server>> servers;
  std::vector<kvcache::Replica> replicas;
  std::vector<std::size_t> targets;
  for (std::size_t i = 0; i < w.servers; ++i) {
    targets.push_back(fabric->add_machine());
    tables.emplace_back(geometry.table_bytes());
    servers.push_back(std::make_unique<kvcache::Server>(tables.back(), geometry, i + 1));
    for (std::uint64_t k = 0; k < w.keys; ++k) {
      servers.back()->set(view(key_text(k)), value_of(k, w.value_bytes), kvcache::Version(1));
    }
    fabric->share(i, tables.back());
    replicas.push_back({.table = fabric->memory_of(i)});
  }
  // So that each server is offered its load.
  const std::uint64_t a_second = w.load_gbps * 1'000'000'000 / 8 / w.value_bytes * w.servers;
  const Duration interval = Duration::picoseconds(
      static_cast<std::int64_t>(std::max<std::uint64_t>(1'000'000'000'000 * w.clients / a_second, 1)));
  std::vector<Lookups> lookups(w.clients);
  std::vector<std::unique_ptr<Looker>> lookers;
  for (std::size_t i = 0; i < w.clients; ++i) {
    Tenant& tenant = fabric->add_tenant(fabric->add_machine(), targets);
    lookers.push_back(
        std::make_unique<Looker>(*fabric, tenant, replicas, w, interval, Rng(seed).fork("client").fork(i), lookups[i]));
  }
  const Time end = at(w.warm_up + w.measure);
  if (death) {
    fabric->loop().run_until(at(w.dies_at));
    fabric->kill(0);
  }
  fabric->loop().run_until(end);

  const Time from = death ? at(w.span_from) : at(w.warm_up);
  const Time to = death ? at(w.span_from + w.span) : end;
  const Fates fates = fates_of(lookups, from, to, end);
  const double bytes = static_cast<double>(fates.ended) * static_cast<double>(w.value_bytes);
  std::vector<std::pair<std::string, double>> metrics{
      {"served_gbps", bytes * 8e3 / static_cast<double>((to - from).picoseconds()) / static_cast<double>(w.servers)}};
  add_latencies(metrics, "", fates.ns);
  metrics.emplace_back("most_us", static_cast<double>(fates.ns.max()) / 1e3);
  metrics.emplace_back("not_ended", static_cast<double>(fates.open));
  metrics.emplace_back("failed", static_cast<double>(fates.wrong));
  metrics.emplace_back("dropped", static_cast<double>(fabric->dropped()));
  return {.metrics = std::move(metrics),
          .events = fabric->loop().fired(),
          .trace_hash = fabric->trace_hash(),
          .problem = problem_of(fates, death)};
}

}  // namespace

TenantResult run_tenant_load(const Hardware& hardware, const TenantWorkload& workload, std::uint64_t seed) {
  if (workload.scenario == "incast") return run_incast(hardware, workload, seed);
  if (workload.scenario == "arrival") return run_arrival(hardware, workload, seed);
  if (workload.scenario == "isolation") return run_isolation(hardware, workload, seed);
  if (workload.scenario == "rekey") return run_rekey(hardware, workload, seed);
  return run_cache(hardware, workload, seed);
}

}  // namespace sluice::sim
