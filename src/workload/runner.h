// Runner: many closed-loop clients of a store, as coroutines of one thread; measures them and verifies every value read.
//
// Life:       start_load() -> run the scheduler until done() -> start_run() -> run until done(), or stop() first -> result().
//             To leave a warm-up out: count_anew() in the midst of a run.
// Invariant:  a value read names its key, a writer of this workload and its number, and every byte follows from these.
// Units:      latencies in nanoseconds of the scheduler's time.
// Errors:     an outcome other than ok is counted, not repeated. A wrong value is counted and the first ones are described.
// Threads:    one owner. Several threads: a Runner each, with writers and Place of their own; merge results afterwards.
// Source:     YCSB's closed-loop clients (Cooper et al., SoCC 2010).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/histogram.h"
#include "base/rng.h"
#include "remote/scheduler.h"
#include "workload/history.h"
#include "workload/ycsb.h"

namespace sluice::workload {

// What a client does between two operations, which is part of no latency.
class Between {
 public:
  virtual ~Between() = default;
  virtual remote::Task<void> pass() = 0;
};

struct RunConfig {
  Mix mix{};
  std::uint32_t theta_thousandths = Zipf::kYcsbTheta;
  std::uint64_t records = 1000;       // keys loaded, by all threads together
  std::uint64_t operations = 10'000;  // of all clients together
  std::uint32_t clients = 16;
  std::size_t value_bytes = 1000;
  std::uint32_t scan_length = 100;  // at most; YCSB draws uniformly from 1
  std::uint64_t seed = 1;
  KeySpace::Place place{};              // of this thread among others
  const KeyChooser* chooser = nullptr;  // of these keys, if the runners of a program share one; outlives the runner
  History* history = nullptr;           // records load and run, if given
  std::uint64_t first_sequence = 0;     // values are numbered from the next on, of each writer
  Between* between = nullptr;           // operations of a run, if given; outlives the runner
};

struct RunResult {
  struct PerAction {
    std::uint64_t count = 0;
    std::array<std::uint64_t, 7> outcomes{};  // by Outcome
    Histogram latency_ns;                     // of those that were done: a failure may be quick

    std::uint64_t done() const;  // is_done()
  };
  std::array<PerAction, kActions> actions;
  std::uint64_t values_verified = 0;
  std::uint64_t values_wrong = 0;
  std::vector<std::string> errors;  // the first of them
  Time begun;
  Time ended;
  StoreCost cost;  // of these operations

  std::uint64_t operations() const;  // that have ended, however
  std::uint64_t with_outcome(Outcome outcome) const;
  std::uint64_t done() const;
  // From the first beginning to the last end.
  double seconds() const { return static_cast<double>((ended - begun).nanoseconds()) / 1e9; }
  double operations_per_second() const;
  // Of results of threads that ran side by side, by the same clock.
  void merge(const RunResult& other);
};

class Runner {
 public:
  // Client i uses stores[i % stores.size()]. REQUIRES: the stores can do what the mix wants, and outlive the runner.
  Runner(remote::Scheduler& scheduler, std::span<Store* const> stores, const RunConfig& config);

  // Puts the records of this thread: all whose number is place.thread modulo place.threads.
  void start_load();
  // Each run of a runner has keys and actions of its own.
  void start_run();
  // The result begins now: what ends from here on, whenever it began, and what that costs. Clients go on.
  void count_anew();
  // Lets operations under way end and begins no more.
  void stop() { stopping_ = true; }
  bool done() const { return running_ == 0; }
  std::uint64_t completed() const { return completed_; }
  const RunResult& result() const { return result_; }

 private:
  struct Client;
  void begin(std::uint64_t operations);
  remote::Task<void> load(std::uint32_t client);
  remote::Task<void> run(std::uint32_t client);
  remote::Task<Outcome> act(Client& client, Action action);
  remote::Task<Outcome> get(Client& client, Key key);
  remote::Task<Outcome> put(Client& client, Key key, EventKind kind);
  class Scanned;
  void verify(const Client& client, Key key, ByteView value);
  void wrong(std::string what);
  void finish(Action action, Outcome outcome, Time begun);
  void client_ended();
  StoreCost total_cost() const;

  remote::Scheduler& scheduler_;
  std::vector<Store*> stores_;
  RunConfig config_;
  Rng rng_;
  std::uint64_t runs_ = 0;
  KeySpace keys_;
  KeyChooser chooser_;
  std::vector<std::uint64_t> sequences_;  // by client: values written so far
  std::uint64_t left_ = 0;                // operations to begin
  std::uint32_t running_ = 0;             // clients
  std::uint64_t completed_ = 0;
  bool stopping_ = false;
  RunResult result_;
};

}  // namespace sluice::workload
