// sluice: the one program.
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>

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
  root.require_subcommand(1);
  root.failure_message([](const CLI::App* app, const CLI::Error& error) { return usage_error(*app, error); });
  root.set_version_flag("--version", std::string("sluice ") + sluice::kVersion);
  CLI::App* version = root.add_subcommand("version", "Print the version");

  Commands commands;
  add_demo_command(root, commands);
  add_rack_commands(root, commands);
  add_tenant_commands(root, commands);
  add_daemon_commands(root, commands);
  add_top_command(root, commands);
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
    const std::vector<std::string> words(argv + 2, argv + argc);
    for (const Candidate& c : complete(root, commands, words)) fmt::print("{}\t{}\n", c.word, c.what);
    return 0;
  }
  try {
    root.parse(argc, argv);
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
