// Processes that a rack has started: found again by pid file, told apart from strangers that got the same pid, ended for sure.
//
// Life:       spawn() -> wait_ready() -> (its pid file outlives us) -> read_pid_file() -> alive() -> end().
// Invariant:  a signal only ever goes to a process whose pid and start time are those that were recorded.
// Errors:     Results; a process that dies before it is ready is an error with the last lines of its log.
// Threads:    any.
// Source:     proc(5) (stat: field 22, start time), pidfd_open(2).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace sluice::rack {

struct ProcessRecord {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;  // since boot; together with the pid it names a process for ever
  friend bool operator==(const ProcessRecord&, const ProcessRecord&) = default;
};

// Null: there is no such process (any more).
std::optional<ProcessRecord> find_process(pid_t pid);
bool alive(const ProcessRecord& process);

struct ProcessUsage {
  std::uint64_t resident_bytes = 0;
  Duration cpu;  // user and system, since its start
  Duration age;
};
std::optional<ProcessUsage> usage_of(const ProcessRecord& process);

std::optional<ProcessRecord> read_pid_file(const std::string& path);
Result<void> write_pid_file(const std::string& path, const ProcessRecord& process);

// A started process that has not said yet that it is ready.
struct Spawned {
  ProcessRecord process;
  int ready_descriptor = -1;    // we read; it says one line
  std::int64_t log_begins = 0;  // its own lines, behind those of earlier ones
};
// How long it may live: beyond us, or until our thread that started it ends, by whatever: it is then sent SIGTERM.
enum class Lifetime : std::uint8_t { kItsOwn, kOurs };
// Starts argv[0] in a session of its own, its output appended to `log`, with the environment variable kReadyVariable naming the descriptor
// on which it says "ready\n". It begins only once `pid_file` (empty: none) names it: should that fail, or should we die before, it never does.
Result<Spawned> spawn(const std::vector<std::string>& argv, const std::string& log, const std::string& pid_file = {},
                      Lifetime lifetime = Lifetime::kItsOwn);
// Waits until it is ready, takes its descriptor back. An error when it dies first, says nothing in time, or `interrupt` (a descriptor, or
// -1) becomes readable.
Result<void> wait_ready(Spawned& spawned, const std::string& name, const std::string& log, Duration timeout,
                        int interrupt = -1);
// What it was started with; empty when that cannot be read.
std::vector<std::string> command_of(const ProcessRecord& process);

// In the started process: tells who started it, a service manager (sd_notify(3)), or both, that it is ready. Does nothing when nobody asked.
void say_ready();
inline constexpr const char* kReadyVariable = "SLUICE_READY_DESCRIPTOR";

// Asks it to end, and kills it when it has not after `patience`. True: it is gone; also when it was before.
bool end_process(const ProcessRecord& process, Duration patience);
// SIGKILL, as an accident would.
bool kill_process(const ProcessRecord& process);

std::string last_lines(const std::string& path, std::size_t lines, std::int64_t from = 0);

}  // namespace sluice::rack
