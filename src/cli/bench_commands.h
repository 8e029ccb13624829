// The subcommands of `sluice bench`, one file each.
#pragma once

#include <memory>

#include "cli/command.h"

namespace sluice::cli {

std::unique_ptr<Command> make_bench_clover(CLI::App& group);
std::unique_ptr<Command> make_bench_sherman(CLI::App& group);
std::unique_ptr<Command> make_bench_fusee(CLI::App& group);
std::unique_ptr<Command> make_bench_verbs(CLI::App& group);
std::unique_ptr<Command> make_bench_cowbird(CLI::App& group);
std::unique_ptr<Command> make_bench_locks(CLI::App& group);

}  // namespace sluice::cli
