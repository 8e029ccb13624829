// Store bench: drives a store on the rack from several threads, each with a session of its own, and adds up what they measured.
//
// Life:       start() -> poll progress() while running() -> result().
// Invariant:  all threads have loaded before any runs, and all have ended before any leaves.
// Threads:    public functions from the caller's one thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rack/clients/store_session.h"
#include "workload/runner.h"

namespace sluice::rack {

enum class StoreKind : std::uint8_t { kClover, kSherman, kFusee };
std::string_view to_string(StoreKind kind);

struct StoreBenchConfig {
  StoreKind store = StoreKind::kClover;
  std::string directory;
  std::string name;  // sessions are called name-0, name-1, …
  std::string port;  // of each session; empty: the rack's switch
  std::uint32_t threads = 1;
  std::uint32_t clients = 64;  // closed loops, of all threads together
  std::uint32_t caches = 0;    // clients of the store (so cursor or index caches) a thread; 0: one
  bool load = true;
  bool run = true;
  std::uint64_t operations = 0;  // of all threads; 0: until `duration` is over
  Duration duration = Duration::seconds(10);
  std::uint64_t index_slots = 0;      // FUSEE's, of a store that is made: see FuseeSessionConfig
  std::uint32_t index_doublings = 2;  // the same
  bool history = false;               // REQUIRES: one thread
  workload::RunConfig workload{};     // place, clients, operations and history are set here; value_bytes 0: the store's
  workload::KeySpace::Place place{};  // of this process among others
};

// How many operations of the run had been completed by when.
struct StoreSample {
  std::int64_t wall_ms = 0;  // since 1970, so that processes can be laid side by side
  std::uint64_t completed = 0;
};

struct StoreBenchResult {
  workload::RunResult load;
  workload::RunResult run;
  double load_seconds = 0;  // from the first thread's beginning to the last one's end
  double run_seconds = 0;
  std::uint64_t wire_frames = 0;  // in and out, during the run
  std::uint64_t wire_bytes = 0;
  std::uint64_t reconnects = 0;
  std::size_t value_bytes = 0;
  StoreSession::Spread spread;
  std::vector<StoreSample> timeline;

  // Operations a second that were done: who ends before the others does nothing for the rest of the time.
  double load_rate() const { return load_seconds <= 0 ? 0 : static_cast<double>(load.done()) / load_seconds; }
  double run_rate() const { return run_rate_of(run.done()); }
  double run_rate_of(std::uint64_t done) const {
    return run_seconds <= 0 ? 0 : static_cast<double>(done) / run_seconds;
  }
};

class StoreBench {
 public:
  explicit StoreBench(StoreBenchConfig config);
  ~StoreBench();

  void start();
  // Ends early, with what there is.
  void stop() { stop_ = true; }
  bool running() const { return running_ != 0; }

  struct Progress {
    std::string phase;  // "connecting", "loading", "running" …, as people read it
    std::uint64_t completed = 0;
    std::uint64_t of = 0;  // 0: not known
    std::string problems;
  };
  Progress progress() const;
  // Notes where the run stands, for the timeline; to be called from time to time.
  void sample();
  // REQUIRES: !running(). An error when a thread could not do its part.
  Result<StoreBenchResult> result() const;
  const workload::History& history() const { return history_; }

 private:
  struct Worker;
  enum Phase : int { kConnect, kLoad, kRun, kLeave, kPhases };

  Result<std::unique_ptr<StoreSession>> open(const Worker& worker) const;
  void work(Worker& worker);
  Result<void> work_through(Worker& worker);
  Result<void> check_fresh(StoreSession& session) const;
  bool meet(Worker& worker, StoreSession& session, Phase phase);
  struct Stop {
    Duration after = Duration::max();
    bool full = false;  // once the store has no space
  };
  void turn_until_done(Worker& worker, StoreSession& session, workload::Runner& runner, Stop at);
  void fail_all(const std::string& why);

  StoreBenchConfig config_;
  workload::History history_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<StoreSample> timeline_;
  std::atomic<int> arrived_[kPhases] = {};
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::string failure_;  // guarded by mutex_: the first
};

}  // namespace sluice::rack
