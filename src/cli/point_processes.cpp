#include "cli/point_processes.h"

#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "cli/command.h"

namespace sluice::cli {
namespace {

std::atomic<bool> interrupted{false};
int living = 0;  // Interrupts

}  // namespace

Interrupts::Interrupts() {
  if (living++ == 0) interrupted = false;
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };
  sigaction(SIGINT, &action, &before_int_);
  sigaction(SIGTERM, &action, &before_term_);
}

Interrupts::~Interrupts() {
  --living;
  sigaction(SIGINT, &before_int_, nullptr);
  sigaction(SIGTERM, &before_term_, nullptr);
}

bool Interrupts::come() { return interrupted; }

tl::unexpected<Error> Interrupts::told() {
  return fail("interrupted; what has been simulated is kept, the same command goes on from there");
}

PointProcesses::~PointProcesses() {
  for (const auto& [pid, task] : running_) kill(pid, SIGKILL);
  for (const auto& [pid, task] : running_) waitpid(pid, nullptr, 0);
}

Result<void> PointProcesses::start(std::size_t task) {
  PointTask one = tasks_.task(task);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return fail(fmt::format("no further process could be started: {}", std::strerror(errno)));
  if (pid == 0) {
    signal(SIGINT, SIG_IGN);  // the parent decides
    signal(SIGTERM, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    const auto done = one.simulate();
    if (done) _exit(0);
    say(one.name + ": " + done.error().message);
    _exit(one.exit_code ? one.exit_code(done.error()) : 1);
  }
  running_[pid] = {task, std::move(one.name)};
  return {};
}

Result<std::optional<std::size_t>> PointProcesses::wait_briefly() {
  int status = 0;
  const pid_t pid = waitpid(-1, &status, WNOHANG);
  if (pid <= 0) {
    usleep(20'000);
    return std::optional<std::size_t>();
  }
  const auto found = running_.find(pid);
  if (found == running_.end()) return std::optional<std::size_t>();
  ended_ = {found->second.task, status};
  const std::string name = std::move(found->second.name);
  running_.erase(found);
  if (WIFSIGNALED(status)) return fail(fmt::format("{}: its process died of signal {}", name, WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0) return fail(fmt::format("{}: could not be simulated", name));
  return std::optional(ended_.task);
}

Result<void> run_in_processes(const PointTasks& tasks, unsigned at_once,
                              const std::function<void(std::size_t, std::size_t)>& progress,
                              std::optional<FailedTask>* failed) {
  const Interrupts interrupts;
  PointProcesses children(tasks);
  std::size_t started = 0;
  for (std::size_t done = 0; done < tasks.count;) {
    if (Interrupts::come()) return Interrupts::told();
    if (started < tasks.count && children.running() < at_once) {
      if (auto begun = children.start(started++); !begun) return begun;
      continue;
    }
    const auto ended = children.wait_briefly();
    if (!ended) {
      if (failed != nullptr) *failed = children.ended();
      return tl::unexpected(ended.error());
    }
    if (*ended) ++done;
    progress(done, tasks.count);
  }
  // Also while the last one ended: more may come after this.
  if (Interrupts::come()) return Interrupts::told();
  return {};
}

}  // namespace sluice::cli
