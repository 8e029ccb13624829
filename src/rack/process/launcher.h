// Launcher: brings a rack of separate processes up, and down again.
//
// Life:       up() starts what is not running, in order, and waits until each is ready -> status() -> down() ends exactly those.
// Invariant:  idempotent: up() on a running rack and down() on none change nothing. What up() has started it ends again when it fails; where a
//             daemon runs with other options it starts nothing, and fails.
// Errors:     the name of the daemon, what happened, the last lines of its log.
// Threads:    one; a lock in the run directory keeps other launchers out.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "rack/process/process.h"
#include "rack/settings/run_directory.h"

namespace sluice::rack {

struct DaemonSpec {
  std::string name;
  std::vector<std::string> argv;
  // Daemons of one stage start together, when all of earlier stages are ready.
  int stage = 0;
  std::string config{};  // file that it reads its settings from; empty: none
  std::string
      dies_with_it{};  // what people are told is lost when it is started in the place of one that died; empty: nothing
};

struct DaemonStatus {
  std::string name;
  ProcessRecord process;  // of its pid file
  bool running = false;   // false: it died
};

class Launcher {
 public:
  // `progress` is told one line for each thing that happens. When the descriptor `interrupt` becomes readable, up() gives up.
  Launcher(RunDirectory directory, std::function<void(const std::string&)> progress, int interrupt = -1,
           Lifetime lifetime = Lifetime::kItsOwn);

  Result<void> up(const std::vector<DaemonSpec>& daemons, Duration timeout = Duration::seconds(15));
  // Starts daemons that die anew, until the interrupt comes or another launcher has taken the rack down. One that dies again and again is
  // started at growing intervals.
  void keep(const std::vector<DaemonSpec>& daemons, Duration timeout = Duration::seconds(15));
  // Later stages end first. Returns how many were running.
  Result<std::size_t> down(Duration patience = Duration::seconds(5));
  // Of every daemon that has a pid file, by name; none where there is no run directory.
  Result<std::vector<DaemonStatus>> status() const;

  const RunDirectory& directory() const { return directory_; }

 private:
  Result<void> start_stage(const std::vector<DaemonSpec>& daemons, Duration timeout, std::vector<std::string>& started);
  void tell_loss(const DaemonSpec& daemon) const;
  void end(const std::vector<std::string>& names, Duration patience);

  RunDirectory directory_;
  std::function<void(const std::string&)> progress_;
  int interrupt_;
  Lifetime lifetime_;  // of the daemons
};

}  // namespace sluice::rack
