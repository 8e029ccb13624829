#include "cli/client_processes.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace sluice::cli {

ClientProcesses::ClientProcesses(std::string program, std::string folder, int interrupt)
    : program_(std::move(program)), folder_(std::move(folder)), interrupt_(interrupt) {}

ClientProcesses::~ClientProcesses() {
  for (One& one : processes_) {
    if (!one.ended) rack::end_process(one.process, Duration::seconds(3));
  }
}

Result<void> ClientProcesses::start(std::size_t count, const std::vector<std::string>& flags) {
  processes_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    One one;
    one.log = fmt::format("{}/client{}.log", folder_, i + 1);
    one.result = fmt::format("{}/client{}.json", folder_, i + 1);
    unlink(one.result.c_str());  // of a run before
    std::vector<std::string> argv{program_,   "bench",     "clover",
                                  "--json",   "--buckets", "--out",
                                  one.result, "--place",   fmt::format("{}/{}", i, count)};
    argv.insert(argv.end(), flags.begin(), flags.end());
    auto spawned = rack::spawn(argv, one.log, {}, rack::Lifetime::kOurs);
    if (!spawned) return tl::unexpected(spawned.error());
    close(spawned->ready_descriptor);
    one.process = spawned->process;
    processes_.push_back(std::move(one));
  }
  return {};
}

bool ClientProcesses::all_ended() {
  for (One& one : processes_) {
    if (!one.ended) one.ended = waitpid(one.process.pid, &one.status, WNOHANG) == one.process.pid;
  }
  return std::all_of(processes_.begin(), processes_.end(), [](const One& one) { return one.ended; });
}

Result<StoreOutcome> ClientProcesses::wait(const std::function<void(Duration)>& meanwhile) {
  const auto begun = std::chrono::steady_clock::now();
  while (!all_ended()) {
    pollfd descriptor{interrupt_, POLLIN, 0};
    if (poll(&descriptor, 1, 100) == 1) return fail("interrupted");
    const auto since = std::chrono::steady_clock::now() - begun;
    meanwhile(Duration::milliseconds(std::chrono::duration_cast<std::chrono::milliseconds>(since).count()));
  }
  std::vector<StoreOutcome> outcomes;
  for (const One& one : processes_) {
    // With 1 it ends that has told a result in which something is wrong.
    if (!WIFEXITED(one.status) || WEXITSTATUS(one.status) > 1)
      return fail(fmt::format("a client died ({}); the end of its log:\n{}",
                              WIFSIGNALED(one.status) ? fmt::format("of signal {}", WTERMSIG(one.status))
                                                      : fmt::format("with status {}", WEXITSTATUS(one.status)),
                              rack::last_lines(one.log, 10)));
    std::ifstream in(one.result);
    const auto json = nlohmann::json::parse(in, nullptr, false);
    auto outcome = json.is_object() ? store_outcome_from_json(json) : fail("no result");
    if (!outcome)
      return fail(
          fmt::format("a client: {}; the end of its log:\n{}", outcome.error().message, rack::last_lines(one.log, 10)));
    outcomes.push_back(std::move(*outcome));
  }
  return merge(outcomes);
}

}  // namespace sluice::cli
