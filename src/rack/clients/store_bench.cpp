#include "rack/clients/store_bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>
#include <system_error>

#include "rack/clients/clover_session.h"
#include "rack/clients/fusee_session.h"
#include "rack/clients/sherman_session.h"

namespace sluice::rack {

using workload::Runner;

struct StoreBench::Worker {
  std::uint32_t index = 0;
  std::thread thread;
  std::atomic<int> phase{kConnect};
  std::atomic<std::uint64_t> completed{0};
  StoreBenchResult result;
  std::string problems;  // guarded by the bench's mutex
};

std::string_view to_string(StoreKind kind) {
  switch (kind) {
    case StoreKind::kClover: return "Clover";
    case StoreKind::kSherman: return "Sherman";
    case StoreKind::kFusee: return "FUSEE";
  }
  return "?";
}

namespace {

struct Wire {
  std::uint64_t frames = 0;
  std::uint64_t bytes = 0;
  static Wire of(const port::Port& port) {
    const port::PortCounters& c = port.counters();
    return {c.rx_frames + c.tx_frames, c.rx_bytes + c.tx_bytes};
  }
};

// Share number `index` of `whole` among `parts`, so that all shares add up.
std::uint64_t share(std::uint64_t whole, std::uint32_t parts, std::uint32_t index) {
  return whole * (index + 1) / parts - whole * index / parts;
}

}  // namespace

StoreBench::StoreBench(StoreBenchConfig config) : config_(std::move(config)) {}

StoreBench::~StoreBench() {
  stop_ = true;
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

void StoreBench::start() {
  running_ = static_cast<int>(config_.threads);
  for (std::uint32_t i = 0; i < config_.threads; ++i) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->index = i;
  }
  for (const auto& worker : workers_) worker->thread = std::thread([this, w = worker.get()] { work(*w); });
}

void StoreBench::work(Worker& worker) {
  try {
    if (auto done = work_through(worker); !done) fail_all(done.error().message);
  } catch (const std::system_error& error) {  // of descriptors mostly: a session has several
    fail_all(fmt::format("thread {} of {}: {}{}", worker.index + 1, config_.threads, error.what(),
                         error.code() == std::errc::too_many_files_open
                             ? "; fewer --threads, or a higher limit (`ulimit -n`), may do"
                             : ""));
  }
  worker.phase = kPhases;
  --running_;
}

void StoreBench::fail_all(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = why;
  failed_ = true;
}

Result<std::unique_ptr<StoreSession>> StoreBench::open(const Worker& worker) const {
  StoreSessionConfig session;
  session.directory = config_.directory;
  session.name = fmt::format("{}-{}", config_.name, worker.index);
  session.port = config_.port;
  session.clients = std::max<std::uint32_t>(config_.caches, 1);
  session.seed = Rng(config_.workload.seed).fork(config_.place.thread).fork(worker.index).next();
  switch (config_.store) {
    case StoreKind::kClover: return CloverSession::open(CloverSessionConfig{session});
    case StoreKind::kSherman: {
      ShermanSessionConfig sherman{session};
      sherman.may_create = config_.place.thread == 0 && worker.index == 0;
      if (config_.workload.value_bytes != 0)
        sherman.value_bytes = static_cast<std::uint32_t>(config_.workload.value_bytes);
      return ShermanSession::open(sherman);
    }
    case StoreKind::kFusee: {
      FuseeSessionConfig fusee{session};
      fusee.may_create = config_.place.thread == 0 && worker.index == 0;
      if (config_.workload.value_bytes != 0)
        fusee.value_bytes = static_cast<std::uint32_t>(config_.workload.value_bytes);
      fusee.index_slots = config_.index_slots;
      fusee.index_doublings = config_.index_doublings;
      return FuseeSession::open(fusee);
    }
  }
  return fail("no such store");
}

namespace {

bool is_full(const Runner& runner) { return runner.result().with_outcome(workload::Outcome::kNoSpace) != 0; }

// A key that was not has the value of an earlier run, perhaps, which nobody in the history has put.
bool is_loaded(const Runner& runner) {
  return runner.result().with_outcome(workload::Outcome::kOk) == runner.result().operations();
}

std::string no_room(const workload::RunConfig& run, StoreKind store) {
  return fmt::format(
      "the store has no space for {} records of {} bytes: fewer --records, a smaller --value-size,{} or a rack with "
      "more memory (`sluice rack up --memory-size`) may do",
      run.records, run.value_bytes,
      store == StoreKind::kFusee ? " a store made with more --index-slots or --index-doublings," : "");
}

// Of the keys that a run will insert: one that an earlier run could not does not hide those after it.
constexpr workload::Key kAhead = 16;

remote::Task<void> look_for(workload::Store& store, workload::Key first, bool& found, bool& done) {
  std::vector<std::uint8_t> value(store.max_value_bytes());
  auto outcome = workload::Outcome::kNotFound;
  for (workload::Key key = first; key < first + kAhead && outcome == workload::Outcome::kNotFound; ++key)
    outcome = (co_await store.get(key, value)).outcome;
  found = outcome == workload::Outcome::kOk;
  done = true;
}

}  // namespace

// What a history says of a key that a run inserts begins with that it is not there.
Result<void> StoreBench::check_fresh(StoreSession& session) const {
  const workload::RunConfig& run = config_.workload;
  if (!config_.history || run.mix.share[static_cast<std::size_t>(workload::Action::kInsert)] == 0) return {};
  bool found = false;
  bool done = false;
  session.scheduler().spawn(look_for(*session.stores().front(), run.records, found, done));
  nic::Periodic look(Duration::milliseconds(5), [](Time) {});
  session.loop().add(look);
  session.loop().run_until([&] { return done; });
  session.loop().remove(look);
  if (!found) return {};
  return fail(fmt::format(
      "the store holds more keys than the {} that are loaded; --check and --history need a fresh one", run.records));
}

Result<void> StoreBench::work_through(Worker& worker) {
  auto opened = open(worker);
  if (!opened) return tl::unexpected(opened.error());
  StoreSession& session = **opened;

  workload::RunConfig run = config_.workload;
  run.place = {config_.place.thread * config_.threads + worker.index, config_.place.threads * config_.threads};
  run.clients =
      std::max(static_cast<std::uint32_t>(share(config_.clients, config_.threads, worker.index)), std::uint32_t{1});
  run.operations = config_.operations == 0 ? std::numeric_limits<std::uint64_t>::max()
                                           : share(config_.operations, config_.threads, worker.index);
  run.history = config_.history ? &history_ : nullptr;
  // Of a store that was there before no value is one of this run's.
  if (config_.history) run.first_sequence = std::uint64_t{std::random_device()()} << 7;
  if (run.value_bytes == 0) run.value_bytes = session.value_bytes();
  if (run.value_bytes > session.value_bytes()) {
    return fail(fmt::format("value-size = \"{}\": the store on this rack takes at most {}", run.value_bytes,
                            session.value_bytes()));
  }
  worker.result.value_bytes = run.value_bytes;
  worker.result.spread = session.spread();
  if (auto fresh = check_fresh(session); !fresh) return fresh;
  const std::vector<workload::Store*> stores = session.stores();
  Runner runner(session.scheduler(), stores, run);

  if (meet(worker, session, kLoad) && config_.load) {
    runner.start_load();
    turn_until_done(worker, session, runner, {.full = true});
    worker.result.load = runner.result();
    if (is_full(runner)) return fail(no_room(run, config_.store));
    if (run.history != nullptr && !is_loaded(runner))
      return fail(
          "not all records could be loaded, and a history begins with what they are; once the whole store is in reach, "
          "try again");
  }
  if (meet(worker, session, kRun) && config_.run) {
    const Wire before = Wire::of(session.port());
    runner.start_run();
    turn_until_done(worker, session, runner, {.after = config_.operations == 0 ? config_.duration : Duration::max()});
    worker.result.run = runner.result();
    worker.result.wire_frames = Wire::of(session.port()).frames - before.frames;
    worker.result.wire_bytes = Wire::of(session.port()).bytes - before.bytes;
  }
  worker.result.reconnects = session.nodes().reconnects();
  meet(worker, session, kLeave);
  return {};
}

// Waits for all workers, turning the session's loop meanwhile. False: it is over.
bool StoreBench::meet(Worker& worker, StoreSession& session, Phase phase) {
  const int all = static_cast<int>(workers_.size());
  ++arrived_[phase];
  nic::Periodic look(Duration::milliseconds(5), [](Time) {});
  session.loop().add(look);
  session.loop().run_until([&] { return arrived_[phase] == all || stop_ || failed_; });
  session.loop().remove(look);
  worker.phase = phase;
  worker.completed = 0;
  return !stop_ && !failed_;
}

void StoreBench::turn_until_done(Worker& worker, StoreSession& session, Runner& runner, Stop at) {
  const Time begun = session.loop().now();
  nic::Periodic look(Duration::milliseconds(20), [&](Time now) {
    worker.completed = runner.completed();
    if (stop_ || failed_ || now - begun >= at.after || (at.full && is_full(runner))) runner.stop();
    std::string problems = session.problems();
    const std::lock_guard lock(mutex_);
    worker.problems = std::move(problems);
  });
  session.loop().add(look);
  session.loop().run_until([&] { return runner.done(); });
  session.loop().remove(look);
}

StoreBench::Progress StoreBench::progress() const {
  // The last but one takes time where clients hold memory of the store that others may have now.
  static constexpr const char* kNames[] = {"connecting", "loading", "running",
                                           "clients give back what they hold of the store", "done"};
  Progress progress;
  int phase = kPhases;
  for (const auto& worker : workers_) {
    phase = std::min(phase, worker->phase.load());
    progress.completed += worker->completed;
    const std::lock_guard lock(mutex_);
    if (progress.problems.empty()) progress.problems = worker->problems;
  }
  progress.phase = kNames[phase];
  if (phase == kLoad) progress.of = config_.workload.records / config_.place.threads;
  if (phase == kRun) progress.of = config_.operations;
  return progress;
}

void StoreBench::sample() {
  const Progress now = progress();
  if (now.phase != "running") return;
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  timeline_.push_back({std::chrono::duration_cast<std::chrono::milliseconds>(wall).count(), now.completed});
}

Result<StoreBenchResult> StoreBench::result() const {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return fail(failure_);
  StoreBenchResult all;
  all.timeline = timeline_;
  for (const auto& worker : workers_) {
    const StoreBenchResult& one = worker->result;
    all.load.merge(one.load);
    all.run.merge(one.run);
    all.wire_frames += one.wire_frames;
    all.wire_bytes += one.wire_bytes;
    all.reconnects += one.reconnects;
    all.value_bytes = one.value_bytes;
    all.spread = one.spread;
  }
  all.load_seconds = all.load.seconds();
  all.run_seconds = all.run.seconds();
  return all;
}

}  // namespace sluice::rack
