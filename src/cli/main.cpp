// sluice: the one program.
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/version.h"
#include "cli/commands.h"
#include "cli/reference.h"
#include "cli/usage.h"
#ifdef SLUICE_DPDK
#include "dpdk/dpdk_port.h"
#endif

namespace {

using namespace sluice::cli;

// What whoever started us may have left behind. A file that is opened later must not take the place of a stream that was closed: what is
// printed would go there. And the ends of our own processes are waited for.
void begin_anew() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // Takes the lowest number that is free. stdout takes nothing, so that a result that is lost is noticed.
    static_cast<void>(open("/dev/null", stream == STDOUT_FILENO ? O_RDONLY : O_RDWR));
  }
  signal(SIGCHLD, SIG_DFL);
}

// `help rack up` is `rack up --help`. Words that lead to no command are left as they are: the parser has something to say of them.
std::vector<std::string> without_help(const CLI::App& root, std::vector<std::string> words) {
  if (words.empty() || words.front() != "help") return words;
  words.erase(words.begin());
  const CLI::App* app = &root;
  for (auto word = words.begin(); word != words.end() && app->get_require_subcommand_min() != 0; ++word) {
    const auto next = app->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == *word; });
    if (next.empty()) return words;
    app = next.front();
  }
  words.emplace_back("--help");
  return words;
}

// A result that could not be written is none.
int end(int code) {
  const bool flushed = std::fflush(stdout) == 0;
  if ((flushed && std::ferror(stdout) == 0) || code != 0) return code;
  say(fmt::format("sluice: stdout takes no more{}{}", flushed ? "" : ": ", flushed ? "" : std::strerror(errno)));
  return kExitFailed;
}

int run(int argc, char** argv) {
#ifdef SLUICE_DPDK
  sluice::dpdk::add_port_kind();
#endif
  CLI::App root{
      "A rack of disaggregated memory in software: RoCEv2 NICs, a switch and passive memory nodes as ordinary "
      "processes",
      "sluice"};
  root.footer(
      "Examples:\n  sluice rack up\n  sluice bench clover --workload A\n  sluice rack down\n`sluice COMMAND --help` "
      "tells more.\nExit status: 0 done, 1 it failed, 2 it was asked wrongly.");
  root.formatter(help_formatter());
  root.require_subcommand(1);
  root.failure_message([](const CLI::App* app, const CLI::Error& error) { return usage_error(*app, error); });
  root.set_version_flag("--version", std::string("sluice ") + sluice::kVersion);
  CLI::App* version = root.add_subcommand("version", "Print the version")->footer("");
  // For lists of what there is: without_help() has made another line of it before it is parsed.
  root.add_subcommand("help", "Print what a command does, as its --help does: sluice help rack up")->footer("");

  Commands commands;
  add_demo_command(root, commands);
  add_rack_commands(root, commands);
  add_tenant_commands(root, commands);
  add_daemon_commands(root, commands);
  add_top_command(root, commands);
  add_capture_command(root, commands);
  add_run_command(root, commands);
  add_remote_commands(root, commands);
  add_bench_commands(root, commands);
  add_cowbird_commands(root, commands);
  add_onerma_commands(root, commands);
  add_cache_commands(root, commands);
  add_pcap_commands(root, commands);
  add_experiment_commands(root, commands);
  add_search_command(root, commands);
  add_edm_commands(root, commands);
  add_box_commands(root, commands);
  add_xdp_commands(root, commands);
  add_reference_commands(root, commands);
  Tables tables;
  for (const auto& command : commands) tables.insert(command->tables().begin(), command->tables().end());

  // Asked by a shell, with the words typed so far: see `sluice completion`.
  if (argc > 1 && std::string_view(argv[1]) == "__complete") {
    std::vector<std::string> words(argv + 2, argv + argc);
    if (words.size() > 1 && words.front() == "help") words.erase(words.begin());
    for (const Candidate& c : complete(root, commands, words)) fmt::print("{}\t{}\n", c.word, c.what);
    return 0;
  }
  try {
    std::vector<std::string> words = without_help(root, {argv + std::min(argc, 1), argv + argc});
    std::ranges::reverse(words);  // as CLI11 wants them
    root.parse(std::move(words));
  } catch (const CLI::ParseError& e) {
    return root.exit(e) == 0 ? 0 : kExitUsage;
  }
  if (version->parsed()) {
    fmt::print("sluice {}\n", sluice::kVersion);
    return 0;
  }
  // Results go to stdout, everything else to stderr.
  spdlog::set_default_logger(spdlog::stderr_color_mt("sluice"));
  spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
  spdlog::flush_on(spdlog::level::info);
  for (const auto& command : commands) {
    if (command->chosen()) return command->execute(tables);
  }
  return kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  begin_anew();
  int code = kExitFailed;
  try {
    code = run(argc, argv);
  } catch (const std::exception& e) {
    say(fmt::format("sluice: {}{}", std::ferror(stdout) != 0 ? "stdout: " : "",
                    e.what()));  // printing throws when it cannot
  }
  return end(code);
}
