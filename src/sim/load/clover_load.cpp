#include "sim/load/clover_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "base/check.h"
#include "clover/client.h"
#include "clover/metadata.h"
#include "port/impairment.h"
#include "rc/remote_rc.h"
#include "sim/load/clover_shortcuts.h"
#include "sim/load/host_memory.h"
#include "sim/load/latency.h"
#include "sim/load/verbs_load.h"
#include "sim/world/box_stage.h"
#include "sim/world/lazy_memory.h"
#include "sim/world/rack.h"
#include "swordbox/clover_rule.h"
#include "workload/linearizability.h"
#include "workload/recorder.h"
#include "workload/runner.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kMemoryAddress = 0x1000'0000;
constexpr remote::NodeId kMemoryNode{1};
constexpr std::uint32_t kMessageDepth = 32;
constexpr Duration kPatience = Duration::seconds(1);  // of set-up, in virtual time

// The metadata server's threads: each takes the next message.
class ServerThreads final : public Event, public CompletionListener {
 public:
  ServerThreads(Rack& rack, Rack::Machine& machine, clover::MetadataServer& server, Duration cost,
                std::uint64_t threads)
      : rack_(rack),
        nic_(machine.nic),
        cost_(cost),
        threads_(static_cast<std::int64_t>(threads)),
        completions_(machine.make_completions(1u << 16)),
        messages_(machine.nic.adapter(), server, *completions_, kMessageDepth) {}

  rc::CompletionQueue* completions() const { return completions_; }
  void serve(rc::QueuePair& pair) {
    messages_.add(pair);
    pair.user = static_cast<CompletionListener*>(this);
  }
  void on_completions(Time now) override { rack_.loop.schedule_no_later(*this, std::max(now, free_) + cost_); }

 private:
  void fire(Time now) override {
    const std::size_t n = messages_.poll(now);
    free_ = now + cost_ * static_cast<std::int64_t>(n > 0 ? n - 1 : 0) / threads_;
    nic_.touched(now, nic_.doorbell_latency());
  }

  Rack& rack_;
  Nic& nic_;
  Duration cost_;
  std::int64_t threads_;
  rc::CompletionQueue* completions_;
  rc::MessageServerRc messages_;
  Time free_;
};

// A machine's way to the metadata server; its thread 0 looks after it.
class Channel final : public Event, public CompletionListener {
 public:
  Channel(remote::Scheduler& scheduler, Rack& rack, Rack::Machine& machine, HostMemory& memory, ServerThreads& server,
          Rack::Machine& server_machine)
      : rack_(rack), memory_(memory), completions_(*machine.make_completions(4 * kMessageDepth)) {
    const auto made =
        rack.connect({&machine, &completions_, this, 2 * kMessageDepth, 2 * kMessageDepth},
                     {&server_machine, server.completions(), nullptr, 2 * kMessageDepth, 2 * kMessageDepth});
    server.serve(*made.b);
    client_ =
        std::make_unique<rc::MessageClientRc>(scheduler, machine.nic.adapter(), *made.a, completions_, kMessageDepth);
  }
  remote::MessageChannel& channel() { return *client_; }
  void on_completions(Time now) override { rack_.loop.schedule_no_later(*this, now + Duration::nanoseconds(200)); }

 private:
  void fire(Time now) override {
    client_->poll(now);
    memory_.run(now, 0);
  }

  Rack& rack_;
  HostMemory& memory_;
  rc::CompletionQueue& completions_;
  std::unique_ptr<rc::MessageClientRc> client_;
};

// A thread's use of its machine's Clover client.
class ThreadStore final : public workload::Store {
 public:
  // What the library spends for an operation, and for a write besides: up to twice that, since it waits for locks.
  struct Costs {
    Duration operation{};
    Duration write{};
  };
  // `server`: with it, every kSlotsAGrant-th write begins by asking for memory, as in the published client, whose threads each have so many slots in hand;
  // the client's own, which asks ahead, does so as well.
  ThreadStore(clover::Client& client, HostMemory& memory, std::uint32_t thread, Costs costs, Rng chance,
              remote::MessageChannel* server)
      : client_(client), memory_(memory), thread_(thread), costs_(costs), chance_(chance), server_(server) {}

  std::string_view name() const override { return "clover"; }
  workload::StoreAbilities abilities() const override { return {}; }
  std::size_t max_value_bytes() const override { return client_.value_bytes(); }
  workload::StoreCost cost() const override { return {}; }
  remote::Task<workload::GetResult> get(workload::Key key, MutableBytes into) override {
    memory_.enter(thread_);
    memory_.work(costs_.operation);
    const clover::GetResult got = co_await client_.get(key, into);
    co_return workload::GetResult{outcome_of(got.outcome), got.length};
  }
  remote::Task<workload::Outcome> put(workload::Key key, ByteView value) override {
    if (server_ != nullptr && writes_++ % kSlotsAGrant == 0) co_await ask_server(*server_, key);
    memory_.enter(thread_);
    memory_.work(costs_.operation + around(costs_.write, 100, chance_));
    co_return outcome_of(co_await client_.put(key, value));
  }
  remote::Task<workload::Outcome> insert(workload::Key, ByteView) override { co_return workload::Outcome::kRefused; }
  remote::Task<workload::Outcome> erase(workload::Key) override { co_return workload::Outcome::kRefused; }

 private:
  static workload::Outcome outcome_of(clover::Outcome outcome) {
    switch (outcome) {
      case clover::Outcome::kOk: return workload::Outcome::kOk;
      case clover::Outcome::kNotFound: return workload::Outcome::kNotFound;
      case clover::Outcome::kUnknown: return workload::Outcome::kUnknown;
      default: return workload::Outcome::kUnavailable;
    }
  }
  clover::Client& client_;
  HostMemory& memory_;
  static constexpr std::uint64_t kSlotsAGrant = 16;

  std::uint32_t thread_;
  Costs costs_;
  Rng chance_;
  remote::MessageChannel* server_;
  std::uint64_t writes_ = 0;
};

// Where a machine's threads note how long their operations took: one after another.
class LatencyLog final : public workload::Between {
 public:
  LatencyLog(remote::Scheduler& scheduler, Duration cost) : scheduler_(scheduler), cost_(cost) {}

  remote::Task<void> pass() override {
    free_ = std::max(free_, scheduler_.now()) + cost_;
    co_await scheduler_.sleep_until(free_);
  }

 private:
  remote::Scheduler& scheduler_;
  Duration cost_;
  Time free_;
};

remote::Task<void> join_one(clover::Client& client, clover::Outcome& outcome) { outcome = co_await client.join(); }

// The keys that one of a machine's threads reads, each once, and what is to become of that.
struct Reading {
  workload::Key first = 0;
  workload::Key step = 1;
  workload::Key keys = 0;
  workload::History* history = nullptr;  // null: nobody asks
  std::uint32_t client = 0;              // by which the history knows the thread
};

remote::Task<void> read_keys(ThreadStore& of, Reading reading, std::uint32_t& running, std::uint64_t& not_read) {
  std::optional<workload::Recorder> recorder;
  workload::Store& store =
      reading.history ? recorder.emplace(of, *reading.history, reading.client) : static_cast<workload::Store&>(of);
  std::vector<std::uint8_t> into(store.max_value_bytes());
  for (workload::Key key = reading.first; key < reading.keys; key += reading.step) {
    const workload::GetResult got = co_await store.get(key, into);
    if (got.outcome != workload::Outcome::kOk) ++not_read;
  }
  --running;
}

// The threads of a client machine that keep shortcuts: its last ones.
class ShortcutSide {
 public:
  ShortcutSide(Rack& rack, Rack::Machine& machine, Cpu& cpu, Rack::Machine& server_machine, ServerThreads& server,
               const ShortcutTable& table, const KeeperTimes& times)
      : scheduler_(std::make_unique<remote::Scheduler>()),
        memory_(*scheduler_, rack, machine, cpu, {cpu.threads(), ShortcutKeepers::kThreads}, {}),
        channel_(*scheduler_, rack, machine, memory_, server, server_machine),
        keepers_(memory_, channel_.channel(), table, times) {}
  // Coroutines go before what they use.
  ~ShortcutSide() { scheduler_.reset(); }
  ShortcutSide(const ShortcutSide&) = delete;
  ShortcutSide& operator=(const ShortcutSide&) = delete;

  HostMemory& memory() { return memory_; }
  ShortcutKeepers& keepers() { return keepers_; }
  void begin(Time now) { memory_.run(now, 0); }

 private:
  std::unique_ptr<remote::Scheduler> scheduler_;
  HostMemory memory_;
  Channel channel_;
  ShortcutKeepers keepers_;
};

KeeperTimes keeper_times(const CloverWorkload& workload, std::uint32_t machine) {
  return {workload.keeper_nap, workload.record_cost,
          machine < workload.slow_machines ? workload.slow_batch : Duration()};
}

// A client machine: one Clover client, used by all its threads.
class ClientMachine {
 public:
  ClientMachine(Rack& rack, const CloverWorkload& workload, std::uint32_t number, std::uint32_t threads,
                Rack::Machine& server_machine, ServerThreads& server, const ShortcutTable& shortcuts)
      : machine_(rack.add_machine()),
        cpu_(rack.hardware().host, threads, workload.client == "paper" ? ShortcutKeepers::kThreads : 0),
        scheduler_(std::make_unique<remote::Scheduler>()),
        memory_(*scheduler_, rack, machine_, cpu_, {0, threads},
                {cpu_.with_cores(workload.step_cost, workload.step_cost_all_cores), StepCost::Of::kBatch,
                 workload.step_cost_spread_percent, workload.swap_cost}),
        channel_(*scheduler_, rack, machine_, memory_, server, server_machine),
        shortcuts_(workload.client == "paper"
                       ? std::make_unique<ShortcutSide>(rack, machine_, cpu_, server_machine, server, shortcuts,
                                                        keeper_times(workload, number))
                       : nullptr),
        client_(memory_, channel_.channel(), config(workload), Rng(rack.seed()).fork("client").fork(number)) {
    if (workload.log_cost != Duration{}) log_ = std::make_unique<LatencyLog>(*scheduler_, workload.log_cost);
    const ThreadStore::Costs costs{workload.operation_cost,
                                   cpu_.with_cores(workload.write_cost, workload.write_cost_all_cores)};
    const Rng chance = Rng(rack.seed()).fork("write").fork(number);
    for (std::uint32_t i = 0; i < threads; ++i)
      stores_.push_back(std::make_unique<ThreadStore>(client_, memory_, i, costs, chance.fork(i),
                                                      shortcuts_ ? &channel_.channel() : nullptr));
  }
  // Coroutines go before what they use.
  ~ClientMachine() { scheduler_.reset(); }
  ClientMachine(const ClientMachine&) = delete;
  ClientMachine& operator=(const ClientMachine&) = delete;

  // How it reaches the memory node, by what HostMemory::connect() takes; before it begins.
  void connect(EdmPort& port) {
    memory_.connect(kMemoryNode, port);
    if (shortcuts_) shortcuts_->memory().connect(kMemoryNode, port);
  }
  void connect(Rack& rack, Rack::Machine& server, rc::CompletionQueue& server_completions, std::uint64_t queue_pairs) {
    if (queue_pairs == 0) {
      memory_.connect(kMemoryNode, server, server_completions);
      if (shortcuts_) shortcuts_->memory().connect(kMemoryNode, server, server_completions);
      return;
    }
    const auto count = static_cast<std::uint32_t>(queue_pairs);
    const std::uint32_t threads = cpu_.threads() + ShortcutKeepers::kThreads;
    pairs_ = std::make_unique<SharedQueuePairs>(rack, machine_, server, server_completions, count,
                                                HostMemory::kDepth * ((threads + count - 1) / count));
    memory_.connect(kMemoryNode, *pairs_);
    if (shortcuts_) shortcuts_->memory().connect(kMemoryNode, *pairs_);
  }
  void begin(Time now) {
    if (shortcuts_) shortcuts_->begin(now);
    scheduler_->spawn(join_one(client_, joined_));
    memory_.run(now, 0);
  }
  bool joined() const { return joined_ == clover::Outcome::kOk; }
  void make_runner(Time now, workload::RunConfig run) {
    run.between = log_.get();
    scheduler_->spawn(client_.maintain());
    std::vector<workload::Store*> stores;
    for (const auto& store : stores_) stores.push_back(store.get());
    runner_ = std::make_unique<workload::Runner>(*scheduler_, stores, run);
    memory_.run(now, 0);
  }
  workload::Runner& runner() { return *runner_; }
  // Each key once, its threads in turn; so the machine's client knows where all are. Threads are called `first_client` and so on.
  void read_all(Time now, workload::Key keys, workload::History* history, std::uint32_t first_client) {
    reading_ = static_cast<std::uint32_t>(stores_.size());
    for (std::uint32_t i = 0; i < stores_.size(); ++i)
      scheduler_->spawn(
          read_keys(*stores_[i], {i, stores_.size(), keys, history, first_client + i}, reading_, not_read_));
    memory_.run(now, 0);
  }
  std::uint64_t not_read() const { return not_read_; }  // keys that read_all() got no value for
  bool busy() const { return reading_ != 0 || (runner_ && !runner_->done()); }
  void run(Time now) { memory_.run(now, 0); }
  const clover::ClientCounters& counters() const { return client_.counters(); }

 private:
  clover::ClientConfig config(const CloverWorkload& workload) const {
    clover::ClientConfig config;
    config.cursors = 16 * workload.keys;  // none has to give way to another: the published cache has no bound
    config.shortcuts = shortcuts_ ? &shortcuts_->keepers() : nullptr;
    if (workload.client != "sluice") {
      config.share_finds = false;
      config.writers_read_words = true;
      config.steps_before_lookup = std::numeric_limits<std::uint32_t>::max();
      config.swaps_before_walk = 1;
    }
    config.timeout = Duration::seconds(10);
    config.space_timeout = Duration::seconds(10);
    return config;
  }

  Rack::Machine& machine_;
  Cpu cpu_;
  std::unique_ptr<remote::Scheduler> scheduler_;
  std::unique_ptr<SharedQueuePairs> pairs_;  // null: each thread has its own
  HostMemory memory_;
  Channel channel_;
  std::unique_ptr<ShortcutSide> shortcuts_;  // null: none
  clover::Client client_;
  clover::Outcome joined_ = clover::Outcome::kUnknown;
  std::vector<std::unique_ptr<ThreadStore>> stores_;
  std::unique_ptr<LatencyLog> log_;  // null: nobody notes latencies, or it costs nothing
  std::unique_ptr<workload::Runner> runner_;
  std::uint32_t reading_ = 0;  // threads that read_all() has at work
  std::uint64_t not_read_ = 0;
};

// What is counted from one time to another.
struct Counts {
  std::uint64_t operations = 0;
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  std::uint64_t swaps = 0;
  std::uint64_t swaps_lost = 0;
  std::uint64_t walks = 0;
  std::uint64_t shortcuts = 0;
  std::uint64_t lookups = 0;
  std::uint64_t messages = 0;
  std::uint64_t wire_packets = 0;  // of the memory node, over RC
  std::uint64_t wire_bytes = 0;
  std::uint64_t locks = 0;
};

class World {
 public:
  World(const Hardware& hardware, const CloverWorkload& workload, std::uint64_t seed)
      : workload_(workload),
        memory_(workload.node_memory),
        stage_(make_stage(workload)),
        rack_(hardware, seed,
              {.faults = faults_of(workload), .ack_timeout = static_cast<std::uint8_t>(workload.ack_timeout)}) {
    if (stage_) rack_.net_switch().set_stage(stage_.get());
    if (shares_words()) rack_.announce_to(stage_->box());
    memory_machine_ = &rack_.add_machine();
    memory_completions_ = memory_machine_->make_completions(16);
    const memory::Key key = memory_machine_->share(memory_.bytes(), kMemoryAddress);
    // Behind the nodes, whether anybody uses them or not.
    const std::uint64_t of_nodes = workload.node_memory - ShortcutTable::bytes(workload.keys);
    const clover::Region region{{kMemoryNode, remote::RegionKey{key.value}, kMemoryAddress}, of_nodes};
    const ShortcutTable shortcuts{region.base + of_nodes, workload.keys};
    const std::uint64_t machines = std::min(workload.machines, workload.threads);
    if (workload.transport == "edm") {
      edm_ = std::make_unique<EdmSide>(rack_.loop, rack_.trace, hardware, workload.edm,
                                       static_cast<std::uint32_t>(machines + 1));
      memory_port_ = &edm_->add_memory(region.base, memory_.bytes());
    }
    auto volumes = clover::spread({&region, 1}, 1);
    clover::ServerConfig config{.volumes = *volumes, .value_bytes = static_cast<std::uint32_t>(workload.value_bytes)};
    config.cursor_lifetime = workload.cursor_lifetime;
    config.max_flight = workload.max_flight;
    server_ = std::make_unique<clover::MetadataServer>(std::move(config));
    server_machine_ = &rack_.add_machine();
    server_threads_ = std::make_unique<ServerThreads>(rack_, *server_machine_, *server_, workload.message_cost,
                                                      workload.server_threads);
    for (std::uint64_t i = 0; i < machines; ++i) {
      const std::uint64_t threads = workload.threads * (i + 1) / machines - workload.threads * i / machines;
      ClientMachine& client = *clients_.emplace_back(std::make_unique<ClientMachine>(
          rack_, workload, static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(threads), *server_machine_,
          *server_threads_, shortcuts));
      if (edm_) {
        client.connect(edm_->add_compute());
      } else {
        client.connect(rack_, *memory_machine_, *memory_completions_,
                       workload.client == "sluice" ? 0 : workload.queue_pairs);
      }
      client.begin(rack_.loop.now());
    }
    if (workload.lock_threads != 0) add_lock_threads();
  }

  CloverResult run() {
    CloverResult result;
    if (!set_up(result)) return result;
    start([](workload::Runner& runner) { runner.start_run(); });
    rack_.loop.run_until(rack_.loop.now() + workload_.warm_up);
    if (!sound(result)) return result;
    for (const auto& client : clients_) client->runner().count_anew();
    const Counts before = counts();
    rack_.loop.run_until(rack_.loop.now() + workload_.measure);
    report(before, result);
    return result;
  }

  CloverResult check(std::uint64_t operations) {
    CloverResult result;
    history_ = std::make_unique<workload::History>();
    operations_ = operations / clients_.size() + 1;
    if (set_up(result)) {
      start([](workload::Runner& runner) { runner.start_run(); });
      // The last word of every key, as each machine sees it.
      if (run_until_done(result, "running") && sound(result)) read_all(result, "reading all keys again");
    }
    if (result.problem.empty()) come_to_rest(result);
    result.events = rack_.loop.fired();
    result.trace_hash = rack_.trace.hash();
    if (result.problem.empty()) {
      const workload::Verdict verdict = workload::check_linearizable(history_->events());
      if (!verdict.proven()) result.problem = "not shown to be linearizable: " + verdict.explain();
    }
    return result;
  }

 private:
  void add_lock_threads() {
    VerbsWorkload locks;
    locks.operation = "cas";
    locks.addresses = "same";
    locks.queue_pairs = workload_.lock_threads;
    locks_ = std::make_unique<VerbsThreads>(rack_, *memory_machine_, locks, rack_.loop.now());
    if (!shares_words()) return;
    const std::array words{locks_->words()};
    SLUICE_CHECK(stage_->box().multiplexer()->set_regions(rack_.loop.now(), words) == 0);
  }
  bool shares_words() const { return workload_.system == "steering+words"; }

  static port::Impairment faults_of(const CloverWorkload& workload) {
    return workload.faults.empty() ? port::Impairment() : port::parse_impairment(workload.faults).value().tx;
  }

  // Every key by every machine.
  bool read_all(CloverResult& result, const char* what) {
    for (std::uint32_t i = 0; i < clients_.size(); ++i)
      clients_[i]->read_all(rack_.loop.now(), workload_.keys, history_.get(), first_thread(i));
    if (!run_until_done(result, what)) return false;
    for (const auto& client : clients_) {
      if (client->not_read() != 0) result.problem = fmt::format("{}: {} had no value", what, client->not_read());
    }
    return result.problem.empty();
  }
  bool sound(CloverResult& result) const {
    workload::RunResult all = clients_.front()->runner().result();
    for (std::size_t i = 1; i < clients_.size(); ++i) all.merge(clients_[i]->runner().result());
    const std::uint64_t wrong = all.operations() - all.with_outcome(workload::Outcome::kOk);
    if (all.values_wrong != 0) result.problem = all.errors.front();
    if (result.problem.empty() && wrong != 0) result.problem = fmt::format("{} operations did not end well", wrong);
    return result.problem.empty();
  }
  // Clients renew their leases now and then: between these there is time to rest.
  void come_to_rest(CloverResult& result) {
    const auto rests = [&] {
      return rack_.at_rest() && (!stage_ || stage_->box().held() == 0) && (!edm_ || edm_->at_rest());
    };
    if (!rack_.loop.run_until(rack_.loop.now() + kPatience, rests))
      result.problem =
          fmt::format("{} packets are left over, or ends of a connection do not agree", rack_.pool.in_flight());
  }

  static std::unique_ptr<BoxStage> make_stage(const CloverWorkload& workload) {
    if (workload.system == "clover") return nullptr;
    swordbox::BoxConfig config;
    config.connections.connections =
        static_cast<std::uint32_t>(std::max<std::uint64_t>(2 * (workload.threads + workload.lock_threads), 1024));
    config.connections.assumed_mtu = 1024;
    auto stage = std::make_unique<BoxStage>(config);
    swordbox::CloverConfig rule;
    rule.steer_reads = workload.system != "write_steering";
    rule.tracked_keys = static_cast<std::uint32_t>(workload.steered_keys);
    swordbox::Box& box = stage->box();
    box.set_rule(std::make_unique<swordbox::CloverRule>(rule, box.connections(), box.counters()));
    if (workload.system == "steering+words") {
      box.set_multiplexer(std::make_unique<swordbox::Multiplexer>(words_config(), box.connections(), box.counters()));
    }
    return stage;
  }

  // Threads are spread over the machines.
  std::uint32_t first_thread(std::size_t machine) const {
    return static_cast<std::uint32_t>(workload_.threads * machine / clients_.size());
  }
  workload::RunConfig run_config(std::uint32_t machine) const {
    workload::RunConfig run;
    run.mix =
        *workload::Mix::parse(workload_.mix.empty() ? fmt::format("w{}", workload_.writes_percent) : workload_.mix);
    run.mix.distribution = workload::KeyDistribution::kZipfian;
    run.theta_thousandths = static_cast<std::uint32_t>(workload_.theta_thousandths);
    run.records = workload_.keys;
    run.operations = operations_;
    run.history = history_.get();
    run.clients = first_thread(machine + 1) - first_thread(machine);
    run.value_bytes = workload_.value_bytes;
    run.seed = rack_.seed();
    run.place = {machine, static_cast<std::uint32_t>(clients_.size())};
    return run;
  }

  template <class Start>
  void start(Start&& begin) {
    for (const auto& client : clients_) {
      begin(client->runner());
      client->run(rack_.loop.now());
    }
  }
  bool run_until_done(CloverResult& result, const char* what) {
    const auto done = [&] { return std::ranges::all_of(clients_, [](const auto& c) { return !c->busy(); }); };
    if (rack_.loop.run_until(rack_.loop.now() + kPatience, done)) return true;
    result.problem = fmt::format("{} did not end", what);
    return false;
  }

  bool set_up(CloverResult& result) {
    const auto joined = [&] { return std::ranges::all_of(clients_, [](const auto& c) { return c->joined(); }); };
    if (!rack_.loop.run_until(rack_.loop.now() + kPatience, joined)) {
      result.problem = "the metadata server does not answer";
      return false;
    }
    for (std::uint32_t i = 0; i < clients_.size(); ++i) clients_[i]->make_runner(rack_.loop.now(), run_config(i));
    // Twice: a box meets a key when something is appended to its chain.
    for (const char* what : {"loading", "loading again"}) {
      start([](workload::Runner& runner) { runner.start_load(); });
      if (!run_until_done(result, what)) return false;
    }
    return read_all(result, "reading all keys");
  }

  Counts counts() const {
    Counts sum;
    for (const auto& client : clients_) {
      const clover::ClientCounters& c = client->counters();
      sum.operations += client->runner().completed();
      sum.reads += c.reads;
      sum.writes += c.writes;
      sum.swaps += c.swaps;
      sum.swaps_lost += c.swaps_lost;
      sum.walks += c.walks;
      sum.shortcuts += c.shortcuts;
      sum.lookups += c.lookups;
      sum.messages += c.messages;
    }
    sum.wire_packets = memory_machine_->nic.counters().wire_packets;
    sum.wire_bytes = memory_machine_->nic.counters().wire_bytes;
    if (edm_) sum.wire_bytes += edm_->wire_bytes(*memory_port_);
    if (locks_) sum.locks = locks_->operations();
    return sum;
  }

  void report(const Counts& before, CloverResult& result) const {
    const Counts now = counts();
    workload::RunResult all = clients_.front()->runner().result();
    for (std::size_t i = 1; i < clients_.size(); ++i) all.merge(clients_[i]->runner().result());
    const auto operations = static_cast<double>(now.operations - before.operations);
    const auto each = [&](std::uint64_t Counts::*field) {
      return static_cast<double>(now.*field - before.*field) / std::max(operations, 1.0);
    };
    Histogram together;
    for (const auto& action : all.actions) together.merge(action.latency_ns);
    const auto p99 = [&](workload::Action action) {
      return quantile_us(all.actions[static_cast<std::size_t>(action)].latency_ns, 0.99);
    };
    const double tries = each(&Counts::reads) + each(&Counts::swaps);
    const double packets = edm_ ? std::numeric_limits<double>::quiet_NaN() : each(&Counts::wire_packets);
    result.metrics = {
        {"throughput", operations * 1e6 / static_cast<double>(workload_.measure.picoseconds())},
        {"p50_us", quantile_us(together, 0.5)},
        {"p99_us", quantile_us(together, 0.99)},
        {"read_p99_us", p99(workload::Action::kRead)},
        {"write_p99_us", p99(workload::Action::kUpdate)},
        {"success_percent", tries > 0 ? 100 / tries : 0},
        {"three_packets_percent", 300 / packets},
        {"packets_per_operation", packets},
        {"bytes_per_operation", each(&Counts::wire_bytes)},
        {"reads_per_operation", each(&Counts::reads)},
        {"swaps_per_operation", each(&Counts::swaps)},
        {"swaps_lost_per_operation", each(&Counts::swaps_lost)},
        {"walks_per_operation", each(&Counts::walks)},
        {"shortcuts_per_operation", each(&Counts::shortcuts)},
        {"lookups_per_operation", each(&Counts::lookups)},
        {"messages_per_operation", each(&Counts::messages)},
        {"per_client_kops", operations * 1e9 / static_cast<double>(workload_.measure.picoseconds()) /
                                static_cast<double>(workload_.threads)},
        {"lock_throughput",
         static_cast<double>(now.locks - before.locks) * 1e6 / static_cast<double>(workload_.measure.picoseconds())},
    };
    if (edm_) result.metrics.emplace_back("edm_waited_ns", edm_->most_waited_ns());
    result.events = rack_.loop.fired();
    result.trace_hash = rack_.trace.hash();
    if (sound(result) && locks_) result.problem = locks_->problem();
    if (result.problem.empty() && operations == 0) result.problem = kNothingEnded;
  }

  CloverWorkload workload_;
  std::unique_ptr<workload::History> history_;
  std::uint64_t operations_ = std::numeric_limits<std::uint64_t>::max();  // of each machine
  LazyMemory memory_;
  std::unique_ptr<BoxStage> stage_;
  Rack rack_;
  std::unique_ptr<EdmSide> edm_;  // null: over RC
  EdmPort* memory_port_ = nullptr;
  Rack::Machine* memory_machine_ = nullptr;
  rc::CompletionQueue* memory_completions_ = nullptr;
  Rack::Machine* server_machine_ = nullptr;
  std::unique_ptr<clover::MetadataServer> server_;
  std::unique_ptr<ServerThreads> server_threads_;
  std::vector<std::unique_ptr<ClientMachine>> clients_;
  std::unique_ptr<VerbsThreads> locks_;
};

}  // namespace

void CloverWorkload::read(Fields& f) {
  constexpr auto kOptional = Fields::Need::kOptional;
  f.choice("system", system, {"clover", "write_steering", "steering", "steering+words"});
  f.choice("transport", transport, {"rc", "edm"}, kOptional);
  edm.read(f);
  f.integer("threads", threads, 1, 4096);
  f.integer("machines", machines, 1, 1024);
  f.choice("mix", mix, {"A", "B", "C", "F"}, kOptional);
  f.integer("writes_percent", writes_percent, 0, 100, mix.empty() ? Fields::Need::kRequired : kOptional);
  // A line's mix may go before what all others do.
  const bool vain = f.rank("writes_percent") >= f.rank("mix");
  if (const toml::node* const own = f.node("writes_percent", kOptional); own != nullptr && !mix.empty() && vain)
    f.fail(*own, "writes_percent", fmt::format("does not count beside mix = \"{}\", which says how many write", mix));
  f.integer("keys", keys, 1, 1 << 20);
  f.integer("theta_thousandths", theta_thousandths, 0, workload::Zipf::kMaxTheta);
  f.byte_count("value_bytes", value_bytes, std::max<std::uint64_t>(clover::kMinValueBytes, workload::kMinValueBytes),
               clover::kMaxValueBytes);
  f.integer("steered_keys", steered_keys, 1, 1 << 20, kOptional);
  f.choice("client", client, {"paper", "paper without shortcuts", "sluice"}, kOptional);
  f.byte_count("node_memory", node_memory, std::uint64_t{1} << 20, std::uint64_t{64} << 30, kOptional);
  f.cost("operation_cost", operation_cost, kOptional);
  f.cost("step_cost", step_cost, kOptional);
  f.cost("step_cost_all_cores", step_cost_all_cores, kOptional);
  f.integer("step_cost_spread_percent", step_cost_spread_percent, 0, 100, kOptional);
  f.cost("swap_cost", swap_cost, kOptional);
  f.cost("write_cost", write_cost, kOptional);
  f.cost("write_cost_all_cores", write_cost_all_cores, kOptional);
  f.cost("message_cost", message_cost, kOptional);
  f.cost("log_cost", log_cost, kOptional);
  f.duration("keeper_nap", keeper_nap, Duration::microseconds(1), Fields::kLongest, kOptional);
  f.cost("record_cost", record_cost, kOptional);
  f.integer("slow_machines", slow_machines, 0, 1024, kOptional);
  f.cost("slow_batch", slow_batch, kOptional);
  f.integer("server_threads", server_threads, 1, 1024, kOptional);
  f.integer("queue_pairs", queue_pairs, 0, 1024, kOptional);
  f.duration("warm_up", warm_up, kOptional);
  f.span("measure", measure, kOptional);
  f.integer("lock_threads", lock_threads, 0, 1024, kOptional);
  f.impairment("faults", faults, kOptional);
  f.integer("ack_timeout", ack_timeout, 1, 31, kOptional);
  f.duration("cursor_lifetime", cursor_lifetime, kOptional);
  f.duration("max_flight", max_flight, kOptional);
}

namespace {

// Why there is no such rack; empty: there is.
std::string lack(const Hardware& hardware, const CloverWorkload& workload) {
  if (workload.node_memory < ShortcutTable::bytes(workload.keys) + workload.value_bytes * workload.keys)
    return "node_memory: has no room for so many values";
  if (std::min(workload.cursor_lifetime, workload.max_flight) < Duration::microseconds(10))
    return "cursor_lifetime and max_flight: 10 us at least";
  if (workload.transport != "edm") return {};
  if (!hardware.edm) return "EDM needs hardware of its own: edm_hardware";
  if (workload.system != "clover" || workload.lock_threads != 0) return "EDM's messages do not pass a SwordBox";
  return edm_lacks_ports(1 + std::min(workload.machines, workload.threads));
}

}  // namespace

CloverResult run_clover_load(const Hardware& hardware, const CloverWorkload& workload, std::uint64_t seed) {
  if (std::string problem = lack(hardware, workload); !problem.empty())
    return {.metrics = {}, .problem = std::move(problem)};
  return World(hardware, workload, seed).run();
}

CloverResult check_clover_load(const Hardware& hardware, const CloverWorkload& workload, std::uint64_t operations,
                               std::uint64_t seed) {
  if (std::string problem = lack(hardware, workload); !problem.empty())
    return {.metrics = {}, .problem = std::move(problem)};
  return World(hardware, workload, seed).check(operations);
}

}  // namespace sluice::sim
