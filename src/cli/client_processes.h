// Client processes: several `sluice bench clover` side by side, their results added up.
//
// Life:     start() -> wait() -> the merged outcome. Destroyed earlier: they are ended.
// Errors:   a process that fails is told with the end of its log.
// Threads:  one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/store_results.h"
#include "rack/process/process.h"

namespace sluice::cli {

class ClientProcesses {
 public:
  // `folder` takes their logs and results; `interrupt` is a descriptor that becomes readable when all is to end.
  ClientProcesses(std::string program, std::string folder, int interrupt);
  ~ClientProcesses();

  // Starts `count` processes with these flags of bench clover, each with its place among them.
  Result<void> start(std::size_t count, const std::vector<std::string>& flags);
  // Calls `meanwhile` ten times a second until all have ended.
  Result<StoreOutcome> wait(const std::function<void(Duration since_start)>& meanwhile);

 private:
  struct One {
    rack::ProcessRecord process;
    std::string log;
    std::string result;
    bool ended = false;
    int status = 0;
  };
  bool all_ended();

  std::string program_;
  std::string folder_;
  int interrupt_;
  std::vector<One> processes_;
};

}  // namespace sluice::cli
