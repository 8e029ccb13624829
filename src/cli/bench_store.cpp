// sluice bench clover, sherman, fusee: YCSB over a store on the rack.
#include <fmt/core.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/bench_commands.h"
#include "cli/progress.h"
#include "cli/result_format.h"
#include "cli/store_results.h"
#include "cli/workloads.h"
#include "fusee/layout.h"
#include "rack/clients/store_bench.h"
#include "rack/endpoint/endpoint.h"
#include "workload/linearizability.h"

namespace sluice::cli {
namespace {

workload::StoreAbilities abilities_of(rack::StoreKind store) { return {.scan = store == rack::StoreKind::kSherman}; }

struct Settings {
  std::string workload = "A";
  std::string distribution;
  double theta = 0.99;
  std::uint64_t records = 10'000;
  std::uint64_t value_size = 0;
  std::uint64_t clients = 64;
  std::uint64_t threads = 1;
  std::uint64_t caches = 1;
  std::uint64_t index_slots = 0;
  std::uint64_t index_doublings = 2;
  std::uint64_t operations = 0;
  Duration duration = Duration::seconds(10);
  std::uint64_t seed = 1;
  std::string phase = "all";
  std::string place = "0/1";
  std::string port;
  std::string history;
  bool check = false;
  std::string out;

  void declare(rack::Schema& s, rack::StoreKind store) {
    const bool tree = store == rack::StoreKind::kSherman;
    const bool fusee = store == rack::StoreKind::kFusee;
    const std::string workloads = workload_names(abilities_of(store));
    s.text("workload", workload, "which of YCSB: " + workloads + "; docs/performance.md tells what each does",
           workloads)
        .choice("distribution", distribution, {"", "uniform", "zipfian", "scrambled", "latest", "sequential"},
                "of the keys; empty: the workload's own")
        .number("theta", theta, 0, 0.999, "skew of zipfian distributions")
        .integer("records", records, 1, 1'000'000'000, "keys that are loaded")
        .bytes("value-size", value_size, 0, fusee ? fusee::kMostValueBytes : 16'360,
               tree    ? "bytes of a value; 0: as long as the tree takes, which is 64 when it is made now"
               : fusee ? "bytes of a value; 0: as long as the store takes, which is 64 when it is made now"
                       : "bytes of a value; 0: as long as the store takes")
        .integer("clients", clients, 1, 65'536, "closed loops, of all threads together")
        .integer("threads", threads, 1, 64, "threads, each with an address of its own on the rack")
        .integer("caches", caches, 1, 4096,
                 tree    ? "Sherman clients, so index caches and local locks, a thread"
                 : fusee ? "FUSEE clients, so caches and blocks of memory, a thread"
                         : "Clover clients, so cursor caches, a thread")
        .integer("operations", operations, 0, 1'000'000'000'000, "end after so many; 0: after --duration")
        .duration("duration", duration, Duration::milliseconds(1), Duration::seconds(86'400), "how long to run")
        .integer("seed", seed, 0, ~std::uint64_t{0}, "of all that is drawn")
        .choice("phase", phase, {"all", "load", "run"},
                "only load, or only run on what has been loaded; one of these with --place of several")
        .text("place", place, "I/N: this is process I of N that run side by side", "I/N, such as 0/2")
        .text("port", port, "where each thread's frames go; empty: the switch of the run directory",
              "a port such as udp:HOST:PORT or shm:/path")
        .toggle("check", check, "record a history and check that it is linearizable (one thread)")
        .text("history", history, "write the history to this file, too", "a file's path")
        .text("out", out, "write the result to this file instead of stdout", "a file's path");
    if (!fusee) return;
    s.integer("index-slots", index_slots, 0, 4'000'000'000,
              "entries that the index of a store made now has room for at first, as far as there is memory; 0: one for "
              "512 B of memory, at most 3,145,728 a memory node")
        .integer("index-doublings", index_doublings, 0, fusee::kMostIndexDoublings,
                 "how often that index may double when it is full; memory for it is set aside");
  }
};

std::optional<workload::KeySpace::Place> parse_place(const std::string& text) {
  workload::KeySpace::Place place;
  int end = 0;
  if (std::sscanf(text.c_str(), "%u/%u%n", &place.thread, &place.threads, &end) != 2) return std::nullopt;
  if (static_cast<std::size_t>(end) != text.size() || place.thread >= place.threads || place.threads > 4096)
    return std::nullopt;
  return place;
}

Result<void> write_history(const std::string& path, const workload::History& history) {
  std::string out = "client,kind,key,value,begin,end,outcome\n";
  static constexpr const char* kKinds[] = {"get", "put", "insert", "erase"};
  for (const workload::Event& e : history.events()) {
    out += fmt::format("{},{},{},{},{},{},{}\n", e.client, kKinds[static_cast<std::size_t>(e.kind)], e.key, e.value,
                       e.begin, e.end == workload::Event::kNever ? std::string() : std::to_string(e.end),
                       to_string(e.outcome));
  }
  if (auto written = write_whole(path, out); !written)
    return fail(fmt::format("--history = \"{}\": {}", path, written.error().message));
  return {};
}

class BenchStore final : public Command {
 public:
  BenchStore(CLI::App& group, rack::StoreKind store, const char* name, const char* what,
             const std::vector<std::string>& examples)
      : Command(group, name, what, examples), store_(store), name_(name) {
    settings_.declare(schema_, store);
    use_rack();
    use("bench-" + name_, schema_);
    format_.declare(*this);
    flag("--buckets", buckets_, "latency histograms too, with --json");
  }

 private:
  Result<void> check() override {
    if (buckets_ && !format_.is_json()) return fail("--buckets: goes with --json; nothing else has room for them");
    auto config = bench_config();
    if (!config) return tl::unexpected(config.error());
    config_ = std::move(*config);
    return {};
  }
  Result<int> run() override;
  Result<rack::StoreBenchConfig> bench_config();
  bool watch(rack::StoreBench& bench, const rack::StopSignals& signals);
  Result<void> judge_history(const workload::History& history, StoreOutcome& outcome);

  rack::StoreKind store_;
  std::string name_;
  Settings settings_;
  rack::Schema schema_;
  rack::StoreBenchConfig config_;
  ResultFormat format_;
  bool buckets_ = false;
};

Result<rack::StoreBenchConfig> BenchStore::bench_config() {
  const Settings& s = settings_;
  rack::StoreBenchConfig config;
  auto mix = parse_workload(s.workload, abilities_of(store_));
  if (!mix) return tl::unexpected(mix.error());
  if (!s.distribution.empty()) mix->distribution = workload::parse_distribution(s.distribution).value();
  const auto place = parse_place(s.place);
  if (!place) return fail(fmt::format("--place = \"{}\": must be I/N with I below N, such as 0/2", s.place));
  config.history = s.check || !s.history.empty();
  if (config.history && s.threads != 1)
    return fail("--threads: must be 1 with --check or --history: threads have no common clock");
  if (config.history && place->threads != 1)
    return fail("--place: must be 0/1 with --check or --history: processes have no common clock");
  if (config.history && s.phase != "all")
    return fail("--phase: must be all with --check or --history: a history begins with the load");
  if (place->threads != 1 && s.phase == "all")
    return fail(
        "--phase: must be load or run with --place: processes do not wait for each other, so first all load, then all "
        "run");
  config.store = store_;
  config.directory = rack().dir;
  config.name = fmt::format("{}-{}", name_, getpid());
  config.port = s.port;
  config.threads = static_cast<std::uint32_t>(s.threads);
  config.clients = static_cast<std::uint32_t>(std::max(s.clients, s.threads));
  config.caches = static_cast<std::uint32_t>(s.caches);
  config.load = s.phase != "run";
  config.run = s.phase != "load";
  config.operations = s.operations;
  config.index_slots = s.index_slots;
  config.index_doublings = static_cast<std::uint32_t>(s.index_doublings);
  config.duration = s.duration;
  config.place = *place;
  config.workload.mix = *mix;
  config.workload.theta_thousandths = static_cast<std::uint32_t>(std::lround(s.theta * 1000));
  config.workload.records = s.records;
  config.workload.value_bytes = s.value_size;
  config.workload.seed = s.seed;
  if (s.value_size != 0 && s.value_size < workload::kMinValueBytes)
    return fail(fmt::format("--value-size = \"{}\": must be at least 8", s.value_size));
  return config;
}

// At once, whatever is under way: who says it twice means it.
void end_by(int number) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  std::signal(number, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  raise(number);
}

// False: interrupted.
bool BenchStore::watch(rack::StoreBench& bench, const rack::StopSignals& signals) {
  using Clock = std::chrono::steady_clock;
  Progress progress;
  std::string told;
  std::string phase;
  auto since = Clock::now();  // when that began
  bool interrupted = false;
  std::optional<Clock::time_point> hint_at;  // to who waits for the end
  while (bench.running()) {
    pollfd descriptor{signals.descriptor(), POLLIN, 0};
    signalfd_siginfo signal{};
    if (poll(&descriptor, 1, 100) == 1 && read(signals.descriptor(), &signal, sizeof signal) == sizeof signal) {
      if (interrupted) end_by(static_cast<int>(signal.ssi_signo));
      interrupted = true;
      hint_at = Clock::now() + std::chrono::milliseconds(300);
      bench.stop();
    }
    if (hint_at && Clock::now() >= *hint_at) {
      progress.note("ending what is under way; who interrupts again ends it at once");
      hint_at.reset();
    }
    bench.sample();
    const auto p = bench.progress();
    if (p.problems != std::exchange(told, p.problems)) progress.note(told.empty() ? "all is well again" : told);
    const std::string share = p.of == 0 ? "" : fmt::format(" of {}", p.of);
    const bool works = p.phase == "loading" || p.phase == "running";
    if (const bool is_new = std::exchange(phase, std::string(p.phase)) != p.phase; is_new) since = Clock::now();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - since).count();
    progress.show(works ? fmt::format("{}: {} operations{}", p.phase, p.completed, share)
                        : fmt::format("{}, for {} s now", p.phase, seconds));
  }
  return !interrupted;
}

Result<void> BenchStore::judge_history(const workload::History& history, StoreOutcome& outcome) {
  if (!settings_.history.empty()) {
    if (auto written = write_history(settings_.history, history); !written) return written;
  }
  const workload::Verdict verdict = workload::check_linearizable(history.events());
  outcome.history_checked = true;
  outcome.linearizable = verdict.linearizable();
  outcome.history_operations = verdict.operations;
  outcome.undecided_keys = verdict.undecided;
  if (!verdict.proven()) say(verdict.explain());
  return {};
}

Result<int> BenchStore::run() {
  if (auto possible = check_output(settings_.out); !possible) return tl::unexpected(possible.error());
  if (auto possible = check_output(settings_.history, "history"); !possible) return tl::unexpected(possible.error());
  rack::StopSignals signals;
  rack::StoreBench bench(config_);
  bench.start();
  const bool whole = watch(bench, signals);
  auto result = bench.result();
  if (!result) return tl::unexpected(result.error());

  StoreOutcome outcome;
  outcome.result = std::move(*result);
  outcome.facts = {.store = name_,
                   .workload = settings_.workload,
                   .distribution = std::string(to_string(config_.workload.mix.distribution)),
                   .theta_thousandths = config_.workload.theta_thousandths,
                   .clients = config_.clients,
                   .threads = config_.threads,
                   .processes = 1,
                   .records = config_.workload.records,
                   .value_bytes = outcome.result.value_bytes,
                   .copies = outcome.result.spread.copies,
                   .memory_nodes = outcome.result.spread.memory_nodes,
                   .seed = settings_.seed};
  if (config_.history) {
    if (auto judged = judge_history(bench.history(), outcome); !judged) return tl::unexpected(judged.error());
  }
  const std::string text = format_.text([&] { return to_json(outcome, buckets_); }, [&] { return csv_of(outcome); },
                                        [&] { return table_of(outcome); });
  if (auto written = write_output(settings_.out, text); !written) return tl::unexpected(written.error());
  if (!whole) return kExitInterrupted;
  return outcome.sound() ? 0 : kExitFailed;
}

}  // namespace

std::unique_ptr<Command> make_bench_clover(CLI::App& group) {
  return std::make_unique<BenchStore>(
      group, rack::StoreKind::kClover, "clover", "Run YCSB over the rack's Clover store; every value read is verified",
      std::vector<std::string>{"sluice bench clover",
                               "sluice bench clover --workload B --clients 256 --threads 2 --duration 30s",
                               "sluice bench clover --workload A --check --operations 100000",
                               "sluice bench clover --workload C --json > c.json"});
}

std::unique_ptr<Command> make_bench_sherman(CLI::App& group) {
  return std::make_unique<BenchStore>(
      group, rack::StoreKind::kSherman, "sherman",
      "Run YCSB over a Sherman tree in the rack's memory, made if there is none; every value read is verified",
      std::vector<std::string>{"sluice rack up --no-metadata && sluice bench sherman",
                               "sluice bench sherman --workload E --records 100000 --clients 16",
                               "sluice bench sherman --workload A --check --operations 100000",
                               "sluice rack up --no-metadata --box words && sluice bench sherman --caches 16"});
}

std::unique_ptr<Command> make_bench_fusee(CLI::App& group) {
  return std::make_unique<BenchStore>(
      group, rack::StoreKind::kFusee, "fusee",
      "Run YCSB over a FUSEE store in the rack's memory, made if there is none, with up to three copies of everything, "
      "each on another memory node; every value read is verified. With three memory nodes or more it goes on when one "
      "dies",
      std::vector<std::string>{"sluice rack up --no-metadata && sluice bench fusee",
                               "sluice bench fusee --workload B --clients 256 --threads 2 --duration 30s",
                               "sluice bench fusee --workload A --check --operations 100000"});
}

}  // namespace sluice::cli
