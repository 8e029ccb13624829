// All commands of `sluice`, each made with the parser it belongs to.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"

namespace sluice::cli {

using Commands = std::vector<std::unique_ptr<Command>>;

void add_daemon_commands(CLI::App& root, Commands& commands);      // switch, memory, metadata, host
void add_rack_commands(CLI::App& root, Commands& commands);        // rack up, down, status
void add_join_commands(CLI::App& group, Commands& commands);       // rack init, invite, revoke, join, leave
void add_drain_command(CLI::App& group, Commands& commands);       // rack drain
void add_tenant_commands(CLI::App& root, Commands& commands);      // tenant …, region …
void add_top_command(CLI::App& root, Commands& commands);          // top
void add_capture_command(CLI::App& root, Commands& commands);      // capture
void add_run_command(CLI::App& root, Commands& commands);          // run
void add_bench_commands(CLI::App& root, Commands& commands);       // bench clover, bench verbs …
void add_remote_commands(CLI::App& root, Commands& commands);      // remote read, write, add, cas
void add_box_commands(CLI::App& root, Commands& commands);         // box top, set, explain
void add_xdp_commands(CLI::App& root, Commands& commands);         // xdp attach, detach, show
void add_cowbird_commands(CLI::App& root, Commands& commands);     // cowbird engine
void add_onerma_commands(CLI::App& root, Commands& commands);      // onerma target, onerma bench
void add_cache_commands(CLI::App& root, Commands& commands);       // cache serve, get, set, erase, bench
void add_pcap_commands(CLI::App& root, Commands& commands);        // pcap check, show
void add_experiment_commands(CLI::App& root, Commands& commands);  // experiment, report
void add_edm_commands(CLI::App& root, Commands& commands);         // edm trace, simulate
void add_search_command(CLI::App& root, Commands& commands);       // search
// completion, man, reference; they see all commands that there are when they run.
void add_reference_commands(CLI::App& root, Commands& commands);
// The path of this very program, to start others of its kind.
std::string own_program();
// The path of libsluice-verbs.so: beside this program as built, or where it is installed.
Result<std::string> find_verbs_library();
// Where the switch of that run directory serves its live view, "http://127.0.0.1:7470/"; nothing: it does not.
std::optional<std::string> live_view_of(const rack::RunDirectory& run);

void add_demo_command(CLI::App& root, Commands& commands);  // demo, demo contention
std::unique_ptr<Command> make_demo_contention(CLI::App& demo);

}  // namespace sluice::cli
