#include "rack/process/launcher.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "rack/settings/private_file.h"

namespace sluice::rack {
namespace {

// Of keep(): how often it looks, and when it starts one that dies again and again.
constexpr auto kLook = std::chrono::milliseconds(20);
constexpr auto kFirstPause = std::chrono::milliseconds(20);
constexpr auto kLongestPause = std::chrono::milliseconds(5'000);
constexpr auto kStable = std::chrono::seconds(10);

std::string content_of(const std::string& path) { return read_whole_file(path).value_or(""); }

// Unknown counts as the same.
bool has_same_config(const RunDirectory& directory, const DaemonSpec& daemon) {
  const std::string copy = content_of(directory.settings_copy(daemon.name));
  return daemon.config.empty() || !copy.starts_with(kSettingsHead) ||
         copy.substr(std::strlen(kSettingsHead)) == content_of(daemon.config);
}

// What a command line says, by flag; flags alone, such as --edm, have no value.
std::map<std::string, std::string> flags_of(const std::vector<std::string>& command) {
  std::map<std::string, std::string> flags;
  for (std::size_t i = 0; i < command.size(); ++i) {
    if (!command[i].starts_with("--")) continue;
    const bool has_value = i + 1 < command.size() && !command[i + 1].starts_with("--");
    flags[command[i]] = has_value ? command[i + 1] : "";
  }
  return flags;
}

// "--box watch instead of clover, no --edm": how what runs differs from what is asked for. Empty where that is not in the flags.
std::string differences(const std::vector<std::string>& runs, const std::vector<std::string>& asked) {
  const auto is = flags_of(runs);
  const auto wanted = flags_of(asked);
  std::vector<std::string> all;
  for (const auto& [flag, value] : is) {
    const auto other = wanted.find(flag);
    if (other != wanted.end() && other->second == value) continue;
    const std::string instead = other != wanted.end() ? other->second : "none";
    all.push_back(value.empty() ? flag : fmt::format("{} {} instead of {}", flag, value, instead));
  }
  for (const auto& [flag, value] : wanted) {
    if (!is.contains(flag)) all.push_back(fmt::format("no {}{}{}", flag, value.empty() ? "" : " ", value));
  }
  return fmt::format("{}", fmt::join(all, ", "));
}

// Daemons that run with other options than those that are asked for, and which those are.
class Otherwise {
 public:
  void add(const std::string& name, const std::string& difference) {
    names_.push_back(name);
    if (difference.empty()) return;
    const auto same = std::ranges::find(groups_, difference, &Group::difference);
    if (same != groups_.end()) {
      same->names += ", " + name;
    } else {
      groups_.push_back({difference, name});
    }
  }
  bool none() const { return names_.empty(); }
  std::string text() const {
    return fmt::format("{} {} with other options{}; `sluice rack down` first", fmt::join(names_, ", "),
                       names_.size() == 1 ? "runs" : "run", details());
  }

 private:
  struct Group {
    std::string difference;
    std::string names;
  };
  std::string details() const {
    std::vector<std::string> texts;
    for (const Group& group : groups_) {
      const bool all = group.names == fmt::format("{}", fmt::join(names_, ", "));
      texts.push_back(all ? group.difference : fmt::format("{}: {}", group.names, group.difference));
    }
    return texts.empty() ? "" : fmt::format(" ({})", fmt::join(texts, "; "));
  }

  std::vector<std::string> names_;
  std::vector<Group> groups_;
};

// Not over a file that somebody else calls so.
void keep_config(const RunDirectory& directory, const DaemonSpec& daemon) {
  const std::string copy = directory.settings_copy(daemon.name);
  const std::string config = content_of(daemon.config);
  const auto before = read_whole_file(copy);
  const bool is_ours = before && (before->empty() || before->starts_with(kSettingsHead));
  if (std::filesystem::exists(copy) && !is_ours) return;
  std::ofstream(copy) << kSettingsHead << config;
}

}  // namespace

Launcher::Launcher(RunDirectory directory, std::function<void(const std::string&)> progress, int interrupt,
                   Lifetime lifetime)
    : directory_(std::move(directory)), progress_(std::move(progress)), interrupt_(interrupt), lifetime_(lifetime) {}

Result<std::vector<DaemonStatus>> Launcher::status() const {
  std::vector<DaemonStatus> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path(), error)) {
    if (entry.path().extension() != ".pid") continue;
    const auto process = read_pid_file(entry.path().string());
    if (process) all.push_back({entry.path().stem().string(), *process, alive(*process)});
  }
  if (error && error != std::errc::no_such_file_or_directory)
    return fail(fmt::format("{}: {}{}", directory_.path(), error.message(),
                            error == std::errc::permission_denied ? "; ask as its owner" : ""));
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return all;
}

Result<void> Launcher::up(const std::vector<DaemonSpec>& daemons, Duration timeout) {
  if (auto prepared = directory_.prepare(); !prepared) return prepared;
  directory_.shield();
  auto lock = RunLock::take(directory_);
  if (!lock) return tl::unexpected(lock.error());

  const auto found_running = status();
  if (!found_running) return tl::unexpected(found_running.error());
  const std::vector<DaemonStatus>& running = *found_running;
  const bool any = std::any_of(running.begin(), running.end(), [](const DaemonStatus& d) { return d.running; });
  if (!any) directory_.clear();  // whatever an earlier rack left: no process that it speaks of lives

  std::map<int, std::vector<DaemonSpec>> stages;
  std::vector<std::string> as_they_should;
  Otherwise otherwise;
  std::vector<const DaemonSpec*> anew;
  for (const DaemonSpec& daemon : daemons) {
    const auto found =
        std::find_if(running.begin(), running.end(), [&](const DaemonStatus& d) { return d.name == daemon.name; });
    if (found == running.end() || !found->running) {
      stages[daemon.stage].push_back(daemon);
      if (any && found != running.end()) anew.push_back(&daemon);
      continue;
    }
    const auto command = command_of(found->process);
    const bool same =
        command.empty() || std::equal(command.begin() + 1, command.end(), daemon.argv.begin() + 1, daemon.argv.end());
    if (!same) {
      otherwise.add(daemon.name, differences(command, daemon.argv));
    } else if (!command.empty() && !has_same_config(directory_, daemon)) {
      otherwise.add(daemon.name, "the settings file has changed since");
    } else {
      as_they_should.push_back(daemon.name);
    }
  }
  if (!otherwise.none()) return fail(otherwise.text());
  for (const std::string& name : as_they_should) progress_(fmt::format("{} is running already", name));
  std::vector<std::string> started;
  for (const auto& [number, stage] : stages) {
    if (auto done = start_stage(stage, timeout, started); !done) {
      std::reverse(started.begin(), started.end());
      end(started, Duration::seconds(2));
      return done;
    }
  }
  for (const DaemonSpec* daemon : anew) tell_loss(*daemon);
  return {};
}

void Launcher::tell_loss(const DaemonSpec& daemon) const {
  if (!daemon.dies_with_it.empty()) progress_(fmt::format("{} was started anew: {}", daemon.name, daemon.dies_with_it));
}

void Launcher::keep(const std::vector<DaemonSpec>& daemons, Duration timeout) {
  using Clock = std::chrono::steady_clock;
  struct Kept {
    DaemonSpec daemon;
    Clock::time_point next;  // not started before
    Clock::time_point started;
    std::chrono::milliseconds pause = kFirstPause;
  };
  std::vector<Kept> all;
  for (const DaemonSpec& daemon : daemons) all.push_back({daemon, {}, {}});
  std::stable_sort(all.begin(), all.end(),
                   [](const Kept& a, const Kept& b) { return a.daemon.stage < b.daemon.stage; });
  for (;;) {
    pollfd descriptor{interrupt_, POLLIN, 0};
    if (poll(&descriptor, 1, static_cast<int>(kLook.count())) > 0) return;
    bool any = false;
    for (Kept& kept : all) {
      const auto process = read_pid_file(directory_.pid_file(kept.daemon.name));
      any = any || process;
      if (!process || alive(*process) || Clock::now() < kept.next) continue;
      auto lock = RunLock::take(directory_);
      if (!lock || read_pid_file(directory_.pid_file(kept.daemon.name)) != process)
        continue;                               // another launcher's work
      waitpid(process->pid, nullptr, WNOHANG);  // if it was our child, let it go for good
      progress_(fmt::format("{} has died; starting it again", kept.daemon.name));
      if (Clock::now() - kept.started > kStable) kept.pause = kFirstPause;
      std::vector<std::string> started;
      const auto done = start_stage({kept.daemon}, timeout, started);
      if (done) {
        tell_loss(kept.daemon);
      } else {
        progress_(done.error().message);
      }
      kept.started = Clock::now();
      kept.next = kept.started + kept.pause;
      kept.pause = std::min(kept.pause * 2, kLongestPause);
    }
    if (!any) return;
  }
}

Result<void> Launcher::start_stage(const std::vector<DaemonSpec>& daemons, Duration timeout,
                                   std::vector<std::string>& started) {
  std::vector<Spawned> spawned;
  Result<void> outcome;
  for (const DaemonSpec& daemon : daemons) {
    if (!daemon.config.empty()) keep_config(directory_, daemon);
    auto process = spawn(daemon.argv, directory_.log(daemon.name), directory_.pid_file(daemon.name), lifetime_);
    if (!process) {
      outcome = fail(fmt::format("{}: {}", daemon.name, process.error().message));
      break;
    }
    spawned.push_back(*process);
    started.push_back(daemon.name);
  }
  for (std::size_t i = 0; i < spawned.size(); ++i) {
    const std::string& name = daemons[i].name;
    auto ready = wait_ready(spawned[i], name, directory_.log(name), timeout, interrupt_);
    if (!ready && outcome) outcome = ready;
    if (ready) progress_(fmt::format("{} is ready, pid {}", name, spawned[i].process.pid));
  }
  return outcome;
}

Result<std::size_t> Launcher::down(Duration patience) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory_.path(), ignored)) return 0;
  if (auto prepared = directory_.prepare(); !prepared) return tl::unexpected(prepared.error());
  auto lock = RunLock::take(directory_);
  if (!lock) return tl::unexpected(lock.error());

  auto found = status();
  if (!found) return tl::unexpected(found.error());
  std::vector<DaemonStatus>& daemons = *found;
  const auto dead =
      std::stable_partition(daemons.begin(), daemons.end(), [](const DaemonStatus& d) { return d.running; });
  daemons.erase(dead, daemons.end());
  // The youngest first: others lean on those that were started before them.
  std::stable_sort(daemons.begin(), daemons.end(), [](const DaemonStatus& a, const DaemonStatus& b) {
    return a.process.start_ticks != b.process.start_ticks ? a.process.start_ticks > b.process.start_ticks
                                                          : a.process.pid > b.process.pid;
  });
  std::vector<std::string> names;
  for (const DaemonStatus& daemon : daemons) names.push_back(daemon.name);
  end(names, patience);
  for (const DaemonStatus& daemon : daemons) {
    if (alive(daemon.process))
      return fail(fmt::format("{} (pid {}) does not end, not even by SIGKILL", daemon.name, daemon.process.pid));
  }
  directory_.clear();
  if (directory_.has_switch())
    progress_(fmt::format("a switch that `sluice rack up` has not started goes on in {}: end it as it was started",
                          directory_.path()));
  return daemons.size();
}

void Launcher::end(const std::vector<std::string>& names, Duration patience) {
  for (const std::string& name : names) {
    const auto process = read_pid_file(directory_.pid_file(name));
    if (process && alive(*process) && end_process(*process, patience)) progress_(fmt::format("{} has ended", name));
    std::error_code ignored;
    if (!process || !alive(*process)) std::filesystem::remove(directory_.pid_file(name), ignored);
  }
}

}  // namespace sluice::rack
