// sluice demo: a rack, a load, a run, an accident, a table, a report.
#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "cli/child.h"
#include "cli/client_processes.h"
#include "cli/commands.h"
#include "cli/demo_report.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "rack/directory/directory_http.h"
#include "rack/endpoint/endpoint.h"
#include "rack/process/launcher.h"
#include "rack/process/plan.h"

namespace sluice::cli {
namespace {

struct Settings {
  std::string dir;
  std::string report = "report.html";
  std::uint64_t records = 20'000;
  std::uint64_t value_size = 1000;
  std::uint64_t clients = 64;
  std::uint64_t processes = 2;
  Duration duration = Duration::seconds(8);
  bool verbs = true;
  std::string http = "127.0.0.1:0";
  std::string stay = "auto";

  bool stays() const {
    return stay == "yes" || (stay == "auto" && isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0);
  }

  void declare(rack::Schema& s) {
    s.text("dir", dir, "run directory; empty: a temporary one", "a directory's path")
        .path("report", report, "where to write the report", "a file's path")
        .integer("records", records, 100, 10'000'000, "values to load")
        .bytes("value-size", value_size, 8, 16'360, "bytes of a value")
        .integer("clients", clients, 1, 65'536, "closed-loop clients, in all processes together")
        .integer("processes", processes, 1, 64, "client processes")
        .duration("duration", duration, Duration::seconds(1), Duration::seconds(3600), "of each of the two runs")
        .toggle("verbs", verbs, "measure bare RDMA operations, too")
        .text("http", http, "where the live view is while the demo lasts; port 0: any that is free", "HOST:PORT")
        .choice("stay", stay, {"auto", "yes", "no"},
                "leave rack and live view up at the end, under a gentle load, until Ctrl-C; auto: in a terminal");
  }
};

constexpr std::uint64_t kMemoryNodes = 2;
constexpr std::uint64_t kReplication = 2;
constexpr const char* kVictim = "memory2";

class Demo final : public Command {
 public:
  explicit Demo(CLI::App& root)
      : Command(
            root, "demo",
            "Bring up a rack of processes, run YCSB-A over Clover, kill a memory node, write a report, take all down",
            {"sluice demo", "sluice demo --duration 20s --clients 256 --report /tmp/report.html"}) {
    settings_.declare(schema_);
    use("demo", schema_);
  }
  std::unique_ptr<Command> make_part() { return make_demo_contention(app()); }

 private:
  Result<int> run() override;
  Result<void> show(const rack::Launcher& launcher, int interrupt);
  Result<StoreOutcome> clients(const std::string& what, std::size_t processes, int interrupt,
                               const std::vector<std::string>& flags,
                               const std::function<void(Duration)>& meanwhile = {});
  Result<void> run_with_an_accident(const rack::Launcher& launcher, int interrupt);
  Result<void> wait_until_gone(const std::string& node, int interrupt);
  Result<void> measure_verbs(int interrupt);
  void stay_until_interrupted(int interrupt);
  Result<bool> tell();
  std::vector<std::string> common_flags() const;
  // As many in each process.
  std::uint64_t clients_each() const { return std::max<std::uint64_t>(settings_.clients / settings_.processes, 1); }
  void note_processes(const rack::Launcher& launcher);
  void print_summary() const;
  void begin(const std::string& what) { tell_at_once(fmt::format("==> {}. {}\n", ++step_, what)); }

  Settings settings_;
  rack::Schema schema_;
  rack::RunDirectory run_{""};
  DemoFindings findings_;
  int step_ = 0;
};

std::vector<std::string> Demo::common_flags() const {
  return {"--dir",     run_.path(),
          "--records", std::to_string(settings_.records),
          "--clients", std::to_string(clients_each())};
}

Result<StoreOutcome> Demo::clients(const std::string& what, std::size_t processes, int interrupt,
                                   const std::vector<std::string>& flags,
                                   const std::function<void(Duration)>& meanwhile) {
  ClientProcesses running(own_program(), run_.path(), interrupt);
  std::vector<std::string> all = common_flags();
  all.insert(all.end(), flags.begin(), flags.end());
  if (auto started = running.start(processes, all); !started) return tl::unexpected(started.error());
  Progress progress;
  return running.wait([&](Duration since) {
    progress.show(fmt::format("    {}: {} s", what, since.milliseconds() / 1000));
    if (meanwhile) meanwhile(since);
  });
}

// The same run again; when half of its time is over, a memory node is killed.
Result<void> Demo::run_with_an_accident(const rack::Launcher& launcher, int interrupt) {
  const auto victim = rack::read_pid_file(run_.pid_file(kVictim));
  if (!victim) return fail(fmt::format("{} has no pid file", kVictim));
  static_cast<void>(launcher);
  findings_.killed = kVictim;
  const Duration when = settings_.duration / 2;
  auto outcome = clients("running", settings_.processes, interrupt,
                         {"--phase", "run", "--seed", "2", "--duration", rack::duration_text(settings_.duration)},
                         [&](Duration since) {
                           if (since < when || findings_.killed_at_ms != 0) return;
                           const auto wall = std::chrono::system_clock::now().time_since_epoch();
                           findings_.killed_at_ms = std::chrono::duration_cast<std::chrono::milliseconds>(wall).count();
                           rack::kill_process(*victim);
                         });
  if (!outcome) return tl::unexpected(outcome.error());
  findings_.failure = std::move(*outcome);
  if (auto noticed = wait_until_gone(kVictim, interrupt); !noticed) return noticed;

  auto back = clients("reading back", 1, interrupt,
                      {"--phase", "run", "--workload", "C", "--distribution", "sequential", "--operations",
                       std::to_string(settings_.records)});
  if (!back) return tl::unexpected(back.error());
  findings_.read_back = back->result.run.operations();
  findings_.read_back_right = back->result.run.with_outcome(workload::Outcome::kOk) - back->result.run.values_wrong;
  return {};
}

// Until its lease is over, a client that comes now would still look for the node.
Result<void> Demo::wait_until_gone(const std::string& node, int interrupt) {
  rack::DirectoryClient directory(run_.directory_address(), Duration{});
  for (int looks = 0; looks < 100; ++looks) {
    const auto nodes = directory.nodes();
    if (!nodes) return tl::unexpected(nodes.error());
    const rack::NodeRecord* const record = nodes->find(node);
    if (record == nullptr || record->state == rack::NodeState::kGone) return {};
    pollfd descriptor{interrupt, POLLIN, 0};
    if (poll(&descriptor, 1, 100) == 1) return fail("interrupted");
  }
  return fail(fmt::format("the rack has not noticed within 10 s that {} is gone", node));
}

Result<void> Demo::measure_verbs(int interrupt) {
  const std::string result = run_.path() + "/verbs.json";
  const std::string log = run_.path() + "/verbs.log";
  unlink(result.c_str());  // of a run before
  std::vector<std::string> argv{own_program(), "bench", "verbs",  "--through", "switch",
                                "--duration",  "300ms", "--json", "--out",     result};
  auto spawned = rack::spawn(argv, log, {}, rack::Lifetime::kOurs);
  if (!spawned) return tl::unexpected(spawned.error());
  close(spawned->ready_descriptor);
  while (rack::alive(spawned->process)) {
    pollfd descriptor{interrupt, POLLIN, 0};
    if (poll(&descriptor, 1, 50) == 1) {
      rack::end_process(spawned->process, Duration::seconds(2));
      return fail("interrupted");
    }
  }
  std::ifstream in(result);
  findings_.verbs = nlohmann::json::parse(in, nullptr, false);
  if (!findings_.verbs.is_object())
    return fail(fmt::format("bench verbs failed; the end of its log:\n{}", rack::last_lines(log, 10)));
  return {};
}

void Demo::note_processes(const rack::Launcher& launcher) {
  findings_.processes = nlohmann::json::array();
  for (const auto& daemon : launcher.status().value_or(std::vector<rack::DaemonStatus>{})) {
    const auto usage = rack::usage_of(daemon.process);
    if (!usage) continue;
    findings_.processes.push_back({{"name", daemon.name},
                                   {"pid", daemon.process.pid},
                                   {"resident_bytes", usage->resident_bytes},
                                   {"cpu_ms", usage->cpu.milliseconds()}});
  }
}

void Demo::print_summary() const {
  tell_at_once("\n");
  for (const auto& [what, value] : summary_of(findings_)) tell_at_once(fmt::format("  {:<34} {}\n", what, value));
  tell_at_once("\n");
}

Result<void> Demo::show(const rack::Launcher& launcher, int interrupt) {
  begin(
      fmt::format("load {} values of {} bytes, {} copies each", settings_.records, settings_.value_size, kReplication));
  auto load =
      clients("loading", 1, interrupt, {"--phase", "load", "--value-size", std::to_string(settings_.value_size)});
  if (!load) return tl::unexpected(load.error());
  findings_.load = std::move(*load);
  tell_at_once(fmt::format("    {} a second\n", rate_text(findings_.load.result.load_rate())));

  begin(fmt::format("YCSB-A for {}: {} clients in {} processes", rack::duration_text(settings_.duration),
                    clients_each() * settings_.processes, settings_.processes));
  auto run = clients("running", settings_.processes, interrupt,
                     {"--phase", "run", "--duration", rack::duration_text(settings_.duration)});
  if (!run) return tl::unexpected(run.error());
  findings_.run = std::move(*run);
  tell_at_once(fmt::format("    {} a second, {} values checked, {} wrong\n", rate_text(findings_.run.result.run_rate()),
                           findings_.run.result.run.values_verified, findings_.run.result.run.values_wrong));
  note_processes(launcher);

  begin(fmt::format("the same again, and {} is killed in the middle", kVictim));
  if (auto done = run_with_an_accident(launcher, interrupt); !done) return done;
  tell_at_once(fmt::format("    {} a second, {} operations failed, {} values wrong\n",
                           rate_text(findings_.failure.result.run_rate()), findings_.failure.failed(),
                           findings_.failure.result.run.values_wrong));
  if (settings_.verbs) {
    begin("bare RDMA operations between two processes, through a switch process");
    if (auto done = measure_verbs(interrupt); !done) return done;
  }
  return {};
}

// What came of it, and the report. False: something was not right.
Result<bool> Demo::tell() {
  print_summary();
  if (auto written = write_report(settings_.report, demo_report(findings_)); !written)
    return tl::unexpected(written.error());
  const auto complaints = findings_.complaints();
  for (const std::string& complaint : complaints) tell_at_once(fmt::format("NOT RIGHT: {}\n", complaint));
  if (complaints.empty()) tell_at_once("Every value read was right.\n");
  tell_at_once(fmt::format("report: {}\n", std::filesystem::absolute(settings_.report).string()));
  return complaints.empty();
}

// The page at work is what a newcomer wants to look at: a few clients keep the rack busy meanwhile.
void Demo::stay_until_interrupted(int interrupt) {
  const auto url = live_view_of(run_);
  if (!url) return;
  begin(fmt::format("a gentle load goes on: look at the rack at {}, Ctrl-C ends it", *url));
  ClientProcesses running(own_program(), run_.path(), interrupt);
  if (!running.start(1, {"--dir", run_.path(), "--records", std::to_string(settings_.records), "--clients", "4",
                         "--phase", "run", "--duration", "86400s"}))
    return;
  static_cast<void>(running.wait([](Duration) {}));
}

Result<int> Demo::run() {
  if (auto possible = check_output(settings_.report, "report"); !possible) return tl::unexpected(possible.error());
  outlive_readers();
  rack::StopSignals signals;
  const bool temporary = settings_.dir.empty();
  run_ = rack::RunDirectory(temporary ? fmt::format("/tmp/sluice-demo-{}", getpid()) : settings_.dir);
  findings_.replication = kReplication;
  const auto told = [](const std::string& line) { tell_at_once(fmt::format("    {}\n", line)); };
  rack::RackSettings rack_settings;
  rack_settings.dir = run_.path();
  rack_settings.memory_nodes = kMemoryNodes;
  rack_settings.replication = kReplication;
  rack_settings.value_size = settings_.value_size;
  rack_settings.http = settings_.http;
  rack::Launcher launcher(run_, told, signals.descriptor(), rack::Lifetime::kOurs);
  const auto daemons = launcher.status();
  if (!daemons) return tl::unexpected(daemons.error());
  if (run_.is_joined() || run_.has_switch() || std::ranges::any_of(*daemons, &rack::DaemonStatus::running))
    return fail(
        fmt::format("a rack is up in {}: the demo makes one of its own, and takes it down; name another --dir, or "
                    "none",
                    run_.path()));
  begin("bring up a rack, each part a process of its own");
  Result<void> outcome = launcher.up(rack::plan(own_program(), "", rack_settings));
  if (outcome) {
    if (const auto url = live_view_of(run_)) tell_at_once(fmt::format("    see it live at {}\n", *url));
    outcome = show(launcher, signals.descriptor());
  }
  bool right = false;
  if (outcome) {
    const auto told_all = tell();
    right = told_all.value_or(false);
    if (!told_all) outcome = tl::unexpected(told_all.error());
  }
  if (outcome && settings_.stays()) stay_until_interrupted(signals.descriptor());
  begin("take the rack down");
  const auto down = launcher.down();
  std::error_code ignored;
  const bool cut_short = !outcome && has_come(signals);
  if (temporary && (outcome || cut_short)) std::filesystem::remove_all(run_.path(), ignored);
  if (cut_short) return interrupted("interrupted");
  if (!outcome) return fail(outcome.error().message + (temporary ? fmt::format(" (logs are in {})", run_.path()) : ""));
  if (!down) return tl::unexpected(down.error());
  return right ? 0 : kExitFailed;
}

}  // namespace

void add_demo_command(CLI::App& root, Commands& commands) {
  auto demo = std::make_unique<Demo>(root);
  // Before its parent, which is chosen, too, when a part of it is.
  commands.push_back(demo->make_part());
  commands.push_back(std::move(demo));
}

}  // namespace sluice::cli
