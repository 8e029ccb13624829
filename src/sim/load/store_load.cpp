#include "sim/load/store_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

#include "base/check.h"
#include "fusee/client.h"
#include "port/impairment.h"
#include "sherman/client.h"
#include "sim/load/host_memory.h"
#include "sim/load/latency.h"
#include "sim/load/verbs_load.h"
#include "sim/world/box_stage.h"
#include "sim/world/lazy_memory.h"
#include "sim/world/rack.h"
#include "workload/client_store.h"
#include "workload/linearizability.h"
#include "workload/runner.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kHeapAddress = 0x1000'0000;
constexpr std::uint64_t kLocksAddress = 0x1000;
constexpr Duration kPatience = Duration::seconds(1);  // of set-up, in virtual time
constexpr Duration kLongerThanARun = Duration::seconds(10);
constexpr std::uint32_t kTreeChunk = 64 << 10;

// What is counted from one time to another.
struct Counts {
  std::uint64_t operations = 0;
  std::uint64_t wire_bytes = 0;  // of the memory nodes
  std::uint64_t round_trips = 0;
  std::uint64_t remote_operations = 0;
  std::uint64_t swaps = 0;
  std::uint64_t swaps_lost = 0;
  std::uint64_t cache_hits = 0;
  std::uint64_t walks = 0;
  std::uint64_t hand_overs = 0;
  std::uint64_t torn = 0;
  std::uint64_t changes_lost = 0;

  template <class Counters>
  void add(const Counters& c) {
    round_trips += c.round_trips;
    remote_operations += c.reads + c.writes + c.swaps;
    swaps += c.swaps;
    swaps_lost += c.swaps_lost;
    cache_hits += c.cache_hits;
    walks += c.walks;
  }
};

// One thread's use of a store: a client of its own.
class ThreadClient {
 public:
  virtual ~ThreadClient() = default;
  virtual remote::Task<workload::Outcome> join() = 0;
  virtual workload::Store& store() = 0;
  virtual void count(Counts& into) const = 0;
};

template <class Client>
class NamedStore final : public workload::ClientStore<Client> {
 public:
  NamedStore(Client& client, std::string_view name) : workload::ClientStore<Client>(client), name_(name) {}
  std::string_view name() const override { return name_; }
  workload::StoreAbilities abilities() const override { return {}; }

 private:
  std::string_view name_;
};

// The store in the memory of the rack: what differs between FUSEE and Sherman.
class Rooms {
 public:
  virtual ~Rooms() = default;
  virtual std::string lack() const = 0;  // empty, or why there can be no such store
  virtual remote::Task<workload::Outcome> create(remote::RemoteMemory& memory) = 0;
  // `first`: of the same machine; null: this is it.
  virtual std::unique_ptr<ThreadClient> make_client(remote::RemoteMemory& memory, ThreadClient* first, Rng rng) = 0;
  virtual std::uint64_t locks_held() const { return 0; }
};

// A memory node: its heap, and behind it the table of Sherman's locks.
class NodeMemory {
 public:
  NodeMemory(Rack::Machine& machine, remote::NodeId node, const StoreWorkload& workload)
      : machine_(&machine),
        heap_bytes_(workload.node_memory),
        memory_(workload.node_memory + 8 * workload.locks),
        completions_(machine.make_completions(16)) {
    const auto kind = workload.lock_memory == "device" ? memory::RegionKind::kDevice : memory::RegionKind::kHost;
    heap = {node, remote::RegionKey{machine.share(memory_.bytes().first(heap_bytes_), kHeapAddress).value},
            kHeapAddress};
    locks = {node, remote::RegionKey{machine.share(lock_table(), kLocksAddress, kind).value}, kLocksAddress};
  }
  // Over EDM, where a node's memory is one region.
  NodeMemory(Rack::Machine& machine, EdmSide& edm, remote::NodeId node, const StoreWorkload& workload)
      : machine_(&machine), heap_bytes_(workload.node_memory), memory_(workload.node_memory + 8 * workload.locks) {
    heap = {node, remote::RegionKey{node.value}, kHeapAddress};
    locks = {node, heap.key, kHeapAddress + heap_bytes_};
    port_ = &edm.add_memory(heap, memory_.bytes());
  }

  MutableBytes lock_table() const { return memory_.bytes().subspan(heap_bytes_); }
  swordbox::WordRegion words() const {
    return {.server = machine_->nic.adapter().config().gids[0],
            .rkey = wire::RKey{locks.key.value},
            .address = locks.address,
            .length = lock_table().size(),
            .writable = true};
  }
  void connect(HostMemory& client) const { client.connect(heap.node, *machine_, *completions_); }
  std::uint64_t wire_bytes(const EdmSide* edm) const {
    return edm ? edm->wire_bytes(*port_) : machine_->nic.counters().wire_bytes;
  }

  remote::RemoteAddress heap;
  remote::RemoteAddress locks;

 private:
  Rack::Machine* machine_;
  std::size_t heap_bytes_;
  LazyMemory memory_;
  rc::CompletionQueue* completions_ = nullptr;  // over RC
  EdmPort* port_ = nullptr;                     // over EDM
};
using Nodes = std::vector<std::unique_ptr<NodeMemory>>;

// ------------------------------------------------------------------------------------------------------------- FUSEE

class FuseeThread final : public ThreadClient {
 public:
  FuseeThread(remote::RemoteMemory& memory, std::vector<fusee::MemoryNode> nodes, const fusee::ClientConfig& config,
              Rng rng)
      : client_(memory, std::move(nodes), config, rng), store_(client_, "fusee") {}
  remote::Task<workload::Outcome> join() override { co_return workload::outcome_of(co_await client_.join()); }
  workload::Store& store() override { return store_; }
  void count(Counts& into) const override {
    into.add(client_.counters());
    into.changes_lost += client_.counters().lost;
  }

 private:
  fusee::Client client_;
  NamedStore<fusee::Client> store_;
};

class FuseeRooms final : public Rooms {
 public:
  FuseeRooms(const StoreWorkload& workload, const Nodes& nodes) {
    for (const auto& node : nodes) nodes_.push_back({node->heap, workload.node_memory});
    geometry_ = {.replicas = static_cast<std::uint32_t>(workload.replicas),
                 // A third of the slots is used.
                 .groups = static_cast<std::uint32_t>(workload.keys / (8 * nodes.size()) + 16),
                 .value_bytes = static_cast<std::uint32_t>(workload.value_bytes),
                 .index_replicas = static_cast<std::uint32_t>(workload.index_replicas)};
    config_.timeout = kLongerThanARun;
    config_.hold = kLongerThanARun;
    config_.flight = kLongerThanARun;
    config_.cached_keys = 2;
    if (workload.cache != "none") {
      while (config_.cached_keys < 2 * workload.keys) config_.cached_keys *= 2;
    }
    if (workload.cache == "slots") config_.trusts_words = false;
  }
  std::string lack() const override {
    if (geometry_.replicas > nodes_.size()) return "there are more replicas than memory nodes";
    return geometry_.refusal();
  }
  remote::Task<workload::Outcome> create(remote::RemoteMemory& memory) override {
    co_return workload::outcome_of(co_await fusee::create_store(memory, nodes_, geometry_));
  }
  std::unique_ptr<ThreadClient> make_client(remote::RemoteMemory& memory, ThreadClient*, Rng rng) override {
    return std::make_unique<FuseeThread>(memory, nodes_, config_, rng);
  }

 private:
  std::vector<fusee::MemoryNode> nodes_;
  fusee::Geometry geometry_;
  fusee::ClientConfig config_;
};

// ----------------------------------------------------------------------------------------------------------- Sherman

class ShermanThread final : public ThreadClient {
 public:
  ShermanThread(remote::RemoteMemory& memory, std::vector<sherman::MemoryNode> nodes,
                const sherman::ClientConfig& config, Rng rng)
      : client_(memory, std::move(nodes), config, rng), store_(client_, "sherman") {}
  ShermanThread(remote::RemoteMemory& memory, ShermanThread& sibling, Rng rng)
      : client_(memory, sibling.client_, rng), store_(client_, "sherman") {}
  remote::Task<workload::Outcome> join() override { co_return workload::outcome_of(co_await client_.join()); }
  workload::Store& store() override { return store_; }
  void count(Counts& into) const override {
    into.add(client_.counters());
    into.hand_overs += client_.counters().hand_overs;
    into.torn += client_.counters().torn;
  }

 private:
  sherman::Client client_;
  NamedStore<sherman::Client> store_;
};

class ShermanRooms final : public Rooms {
 public:
  ShermanRooms(const StoreWorkload& workload, const Nodes& nodes)
      : memory_(nodes), shared_(workload.local_locks == "machine") {
    for (const auto& node : nodes) nodes_.push_back({node->heap, workload.node_memory, node->locks});
    geometry_ = {
        .node_bytes = static_cast<std::uint32_t>(workload.tree_node_bytes),
        .value_bytes = static_cast<std::uint32_t>(workload.value_bytes),
        .locks = static_cast<std::uint32_t>(workload.locks),
        .chunk_bytes = static_cast<std::uint32_t>(kTreeChunk / workload.tree_node_bytes * workload.tree_node_bytes)};
    config_.timeout = kLongerThanARun;
    if (workload.client == "paper") config_.backoff_first = config_.backoff_most = Duration{};
  }
  std::string lack() const override { return geometry_.refusal(); }
  remote::Task<workload::Outcome> create(remote::RemoteMemory& memory) override {
    co_return workload::outcome_of(co_await sherman::create_tree(memory, nodes_, geometry_));
  }
  std::unique_ptr<ThreadClient> make_client(remote::RemoteMemory& memory, ThreadClient* first, Rng rng) override {
    if (first != nullptr && shared_)
      return std::make_unique<ShermanThread>(memory, static_cast<ShermanThread&>(*first), rng);
    return std::make_unique<ShermanThread>(memory, nodes_, config_, rng);
  }
  std::uint64_t locks_held() const override {
    std::uint64_t held = 0;
    for (const auto& node : memory_) {
      const MutableBytes table = node->lock_table();
      for (std::size_t i = 0; i < table.size(); i += 8) held += load_le<std::uint64_t>(table.data() + i) != 0;
    }
    return held;
  }

 private:
  const Nodes& memory_;
  bool shared_;
  std::vector<sherman::MemoryNode> nodes_;
  sherman::Geometry geometry_;
  sherman::ClientConfig config_;
};

std::unique_ptr<Rooms> make_rooms(const StoreWorkload& workload, const Nodes& nodes) {
  if (workload.store == "sherman") return std::make_unique<ShermanRooms>(workload, nodes);
  return std::make_unique<FuseeRooms>(workload, nodes);
}

// ----------------------------------------------------------------------------------------------------------- machines

remote::Task<void> note(remote::Task<workload::Outcome> task, workload::Outcome& outcome) {
  outcome = co_await std::move(task);
}

// Keys from `first` on, every `step`-th of `keys`.
remote::Task<void> read_keys(workload::Store& store, workload::Key first, workload::Key step, workload::Key keys,
                             std::uint32_t& running, std::uint64_t& not_read) {
  std::vector<std::uint8_t> into(store.max_value_bytes());
  for (workload::Key key = first; key < keys; key += step) {
    const workload::GetResult got = co_await store.get(key, into);
    if (got.outcome != workload::Outcome::kOk) ++not_read;
  }
  --running;
}

// One thread of a client machine.
struct ClientThread {
  ClientThread(Rack& rack, Rack::Machine& machine, Cpu& cpu, std::uint32_t number, StepCost step)
      : scheduler(std::make_unique<remote::Scheduler>()), memory(*scheduler, rack, machine, cpu, {number, 1}, step) {}
  // Coroutines go before what they use.
  ~ClientThread() { scheduler.reset(); }
  ClientThread(const ClientThread&) = delete;
  ClientThread& operator=(const ClientThread&) = delete;

  void begin(Time now, remote::Task<void> task) {
    scheduler->spawn(std::move(task));
    memory.run(now, 0);
  }

  std::unique_ptr<remote::Scheduler> scheduler;
  HostMemory memory;
  std::unique_ptr<ThreadClient> client;
  std::unique_ptr<workload::Runner> runner;
  workload::Outcome joined = workload::Outcome::kUnknown;
};

struct ClientMachine {
  ClientMachine(Rack& rack, std::uint32_t count) : machine(rack.add_machine()), cpu(rack.hardware().host, count) {}

  Rack::Machine& machine;
  Cpu cpu;
  std::vector<std::unique_ptr<ClientThread>> threads;
  std::vector<HostMemory*> memories;
};

class World {
 public:
  World(const Hardware& hardware, const StoreWorkload& workload, std::uint64_t seed)
      : workload_(workload),
        chooser_(*workload::parse_distribution(workload.distribution), workload.keys,
                 static_cast<std::uint32_t>(workload.theta_thousandths)),
        stage_(make_stage(workload)),
        rack_(hardware, seed,
              {.faults =
                   workload.faults.empty() ? port::Impairment() : port::parse_impairment(workload.faults).value().tx,
               .ack_timeout = static_cast<std::uint8_t>(workload.ack_timeout)}) {
    if (stage_) {
      rack_.net_switch().set_stage(stage_.get());
      rack_.announce_to(stage_->box());
    }
    const std::uint64_t machines = std::min(workload.machines, workload.threads);
    if (workload.transport == "edm") {
      edm_ = std::make_unique<EdmSide>(rack_.loop, rack_.trace, hardware, workload.edm,
                                       static_cast<std::uint32_t>(machines + workload.memory_nodes));
    }
    for (std::uint64_t i = 0; i < workload.memory_nodes; ++i) {
      const remote::NodeId node{static_cast<std::uint32_t>(i + 1)};
      Rack::Machine& machine = rack_.add_machine();
      nodes_.push_back(edm_ ? std::make_unique<NodeMemory>(machine, *edm_, node, workload)
                            : std::make_unique<NodeMemory>(machine, node, workload));
    }
    if (workload.box == "words") share_words();
    rooms_ = make_rooms(workload, nodes_);
    for (std::uint64_t i = 0; i < machines; ++i) {
      const std::uint64_t threads = workload.threads * (i + 1) / machines - workload.threads * i / machines;
      add_machine(static_cast<std::uint32_t>(threads));
    }
  }

  StoreLoadResult run() {
    StoreLoadResult result;
    if (!set_up(result)) return result;
    begin_all([](workload::Runner& runner) { runner.start_run(); });
    rack_.loop.run_until(rack_.loop.now() + workload_.warm_up);
    if (!sound(result)) return result;
    each([](ClientThread& thread) { thread.runner->count_anew(); });
    const Counts before = counts();
    rack_.loop.run_until(rack_.loop.now() + workload_.measure);
    report(before, result);
    return result;
  }

  StoreLoadResult check(std::uint64_t operations) {
    StoreLoadResult result;
    history_ = std::make_unique<workload::History>();
    operations_ = operations / all_.size() + 1;
    if (set_up(result)) {
      begin_all([](workload::Runner& runner) { runner.start_run(); });
      if (run_until_done(result, "running") && sound(result)) come_to_rest(result);
    }
    result.events = rack_.loop.fired();
    result.trace_hash = rack_.trace.hash();
    if (!result.problem.empty()) return result;
    if (const std::uint64_t held = rooms_->locks_held(); held != 0) result.problem = fmt::format("{} locks held", held);
    const workload::Verdict verdict = workload::check_linearizable(history_->events());
    if (!verdict.proven()) result.problem = "not shown to be linearizable: " + verdict.explain();
    return result;
  }

 private:
  void share_words() {
    std::vector<swordbox::WordRegion> words;
    for (const auto& node : nodes_) words.push_back(node->words());
    SLUICE_CHECK(stage_->box().multiplexer()->set_regions(rack_.loop.now(), words) == 0);
  }

  static std::unique_ptr<BoxStage> make_stage(const StoreWorkload& workload) {
    if (workload.box == "none") return nullptr;
    swordbox::BoxConfig config;
    config.connections.connections =
        static_cast<std::uint32_t>(std::max<std::uint64_t>(2 * workload.threads * workload.memory_nodes, 1024));
    config.connections.assumed_mtu = 1024;
    auto stage = std::make_unique<BoxStage>(config);
    if (workload.box == "words") {
      swordbox::MultiplexerConfig words = words_config();
      words.words = static_cast<std::uint32_t>(workload.locks * workload.memory_nodes);
      swordbox::Box& box = stage->box();
      box.set_multiplexer(std::make_unique<swordbox::Multiplexer>(words, box.connections(), box.counters()));
    }
    return stage;
  }

  void add_machine(std::uint32_t threads) {
    ClientMachine& machine = *machines_.emplace_back(std::make_unique<ClientMachine>(rack_, threads));
    const StepCost step{machine.cpu.with_cores(workload_.step_cost, workload_.step_cost_all_cores),
                        workload_.cost_of == "batch" ? StepCost::Of::kBatch : StepCost::Of::kOperation};
    EdmPort* const port = edm_ ? &edm_->add_compute() : nullptr;
    for (std::uint32_t i = 0; i < threads; ++i) {
      ClientThread& thread =
          *machine.threads.emplace_back(std::make_unique<ClientThread>(rack_, machine.machine, machine.cpu, i, step));
      for (const auto& node : nodes_) {
        if (port != nullptr) {
          thread.memory.connect(node->heap.node, *port);
        } else {
          node->connect(thread.memory);
        }
      }
      machine.memories.push_back(&thread.memory);
      all_.push_back(&thread);
    }
    for (const auto& thread : machine.threads) thread->memory.set_neighbors(machine.memories);
  }

  template <class Do>
  void each(Do&& act) {
    for (ClientThread* const thread : all_) act(*thread);
  }
  template <class Start>
  void begin_all(Start&& begin) {
    each([&](ClientThread& thread) {
      begin(*thread.runner);
      thread.memory.run(rack_.loop.now(), 0);
    });
  }
  bool run_until_done(StoreLoadResult& result, const char* what) {
    // Asked after each event: the first that is not done answers.
    std::size_t at = 0;
    const auto done = [&] {
      while (at < all_.size() && all_[at]->runner->done()) ++at;
      return at == all_.size() && reading_ == 0;
    };
    if (rack_.loop.run_until(rack_.loop.now() + kPatience, done)) return true;
    result.problem = fmt::format("{} did not end", what);
    return false;
  }

  bool set_up(StoreLoadResult& result) {
    result.problem = rooms_->lack();
    if (!result.problem.empty() || !create(result) || !join(result)) return false;
    const auto threads = static_cast<std::uint32_t>(all_.size());
    for (std::uint32_t i = 0; i < threads; ++i) {
      workload::Store* const store = &all_[i]->client->store();
      all_[i]->runner = std::make_unique<workload::Runner>(*all_[i]->scheduler, std::span(&store, 1), run_config(i));
    }
    begin_all([](workload::Runner& runner) { runner.start_load(); });
    return run_until_done(result, "loading") && sound(result) && read_all(result);
  }

  bool create(StoreLoadResult& result) {
    auto created = workload::Outcome::kUnknown;
    all_[0]->begin(rack_.loop.now(), note(rooms_->create(all_[0]->memory), created));
    const auto done = [&] { return created != workload::Outcome::kUnknown; };
    rack_.loop.run_until(rack_.loop.now() + kPatience, done);
    if (created != workload::Outcome::kOk)
      result.problem = fmt::format("the store cannot be made: {}", to_string(created));
    return result.problem.empty();
  }

  // First one thread of each machine, then the others.
  bool join(StoreLoadResult& result) {
    std::uint32_t number = 0;
    const Rng rng = Rng(rack_.seed()).fork("client");
    const auto join_one = [&](const ClientMachine& machine, ClientThread& thread) {
      ThreadClient* const first = machine.threads.front()->client.get();
      thread.client = rooms_->make_client(thread.memory, first, rng.fork(number++));
      thread.begin(rack_.loop.now(), note(thread.client->join(), thread.joined));
    };
    const auto joined = [&] {
      return std::ranges::all_of(all_, [](const auto& t) { return !t->client || t->joined == workload::Outcome::kOk; });
    };
    for (const auto& machine : machines_) join_one(*machine, *machine->threads.front());
    bool all = rack_.loop.run_until(rack_.loop.now() + kPatience, joined);
    for (const auto& machine : machines_) {
      for (std::size_t i = 1; all && i < machine->threads.size(); ++i) join_one(*machine, *machine->threads[i]);
    }
    all = all && rack_.loop.run_until(rack_.loop.now() + kPatience, joined);
    if (!all) result.problem = "not all clients could join";
    return all;
  }

  // So that caches know where everything is: FUSEE's are a thread's own, Sherman's a machine's.
  bool read_all(StoreLoadResult& result) {
    const bool own = workload_.store == "fusee" && workload_.cache != "none";
    for (const auto& machine : machines_) {
      const std::size_t threads = machine->threads.size();
      for (std::size_t i = 0; i < threads; ++i) {
        ++reading_;
        ClientThread& thread = *machine->threads[i];
        thread.begin(rack_.loop.now(), read_keys(thread.client->store(), own ? 0 : i, own ? 1 : threads, workload_.keys,
                                                 reading_, not_read_));
      }
    }
    if (!run_until_done(result, "reading all keys")) return false;
    if (not_read_ != 0) result.problem = fmt::format("{} reads of loaded keys found no value", not_read_);
    return result.problem.empty();
  }

  workload::RunConfig run_config(std::uint32_t thread) const {
    workload::RunConfig run;
    run.mix = *workload::Mix::parse(fmt::format("w{}", workload_.writes_percent));
    run.mix.distribution = *workload::parse_distribution(workload_.distribution);
    run.theta_thousandths = static_cast<std::uint32_t>(workload_.theta_thousandths);
    run.records = workload_.keys;
    run.operations = operations_;
    run.history = history_.get();
    run.clients = 1;
    run.value_bytes = workload_.value_bytes;
    run.seed = rack_.seed();
    run.place = {thread, static_cast<std::uint32_t>(all_.size())};
    run.chooser = &chooser_;
    return run;
  }

  Counts counts() const {
    Counts sum;
    for (const ClientThread* const thread : all_) {
      sum.operations += thread->runner->completed();
      thread->client->count(sum);
    }
    for (const auto& node : nodes_) sum.wire_bytes += node->wire_bytes(edm_.get());
    return sum;
  }

  workload::RunResult all_results() const {
    workload::RunResult all = all_.front()->runner->result();
    for (std::size_t i = 1; i < all_.size(); ++i) all.merge(all_[i]->runner->result());
    return all;
  }

  void report(const Counts& before, StoreLoadResult& result) const {
    const Counts now = counts();
    const workload::RunResult all = all_results();
    const auto operations = static_cast<double>(now.operations - before.operations);
    const auto of_each = [&](std::uint64_t Counts::*field) {
      return static_cast<double>(now.*field - before.*field) / std::max(operations, 1.0);
    };
    const auto quantile = [&](workload::Action action, double q) {
      return quantile_us(all.actions[static_cast<std::size_t>(action)].latency_ns, q);
    };
    result.metrics = {
        {"throughput", operations * 1e6 / static_cast<double>(workload_.measure.picoseconds())},
        {"read_p50_us", quantile(workload::Action::kRead, 0.5)},
        {"read_p99_us", quantile(workload::Action::kRead, 0.99)},
        {"write_p50_us", quantile(workload::Action::kUpdate, 0.5)},
        {"write_p99_us", quantile(workload::Action::kUpdate, 0.99)},
        {"bytes_per_operation", of_each(&Counts::wire_bytes)},
        {"round_trips_per_operation", of_each(&Counts::round_trips)},
        {"remote_per_operation", of_each(&Counts::remote_operations)},
        {"swaps_per_operation", of_each(&Counts::swaps)},
        {"swap_throughput",
         static_cast<double>(now.swaps - before.swaps) * 1e6 / static_cast<double>(workload_.measure.picoseconds())},
        {"swaps_lost_per_operation", of_each(&Counts::swaps_lost)},
        {"cache_hits_per_operation", of_each(&Counts::cache_hits)},
        {"walks_per_operation", of_each(&Counts::walks)},
        {"hand_overs_per_operation", of_each(&Counts::hand_overs)},
        {"torn_per_operation", of_each(&Counts::torn)},
        {"changes_lost_per_operation", of_each(&Counts::changes_lost)},
    };
    if (edm_) result.metrics.emplace_back("edm_waited_ns", edm_->most_waited_ns());
    result.events = rack_.loop.fired();
    result.trace_hash = rack_.trace.hash();
    if (sound(result) && operations == 0) result.problem = kNothingEnded;
  }

  bool sound(StoreLoadResult& result) const {
    const workload::RunResult all = all_results();
    const std::uint64_t wrong = all.operations() - all.with_outcome(workload::Outcome::kOk);
    if (all.values_wrong != 0) result.problem = all.errors.front();
    if (result.problem.empty() && wrong != 0) result.problem = fmt::format("{} operations did not end well", wrong);
    return result.problem.empty();
  }
  void come_to_rest(StoreLoadResult& result) {
    // On shared connections the box numbers packets anew: their ends count differently.
    const auto rests = [&] {
      return (workload_.box == "words" || rack_.at_rest()) && (!stage_ || stage_->box().held() == 0) &&
             (!edm_ || edm_->at_rest());
    };
    if (!rack_.loop.run_until(rack_.loop.now() + kPatience, rests))
      result.problem =
          fmt::format("{} packets are left over, or ends of a connection do not agree", rack_.pool.in_flight());
  }

  StoreWorkload workload_;
  workload::KeyChooser chooser_;
  std::unique_ptr<workload::History> history_;
  std::uint64_t operations_ = std::numeric_limits<std::uint64_t>::max();  // of each thread
  std::unique_ptr<BoxStage> stage_;
  Rack rack_;
  std::unique_ptr<EdmSide> edm_;  // null: over RC
  Nodes nodes_;
  std::unique_ptr<Rooms> rooms_;
  std::vector<std::unique_ptr<ClientMachine>> machines_;
  std::vector<ClientThread*> all_;
  std::uint32_t reading_ = 0;  // threads that read_all() has at work
  std::uint64_t not_read_ = 0;
};

}  // namespace

void StoreWorkload::read(Fields& f) {
  constexpr auto kOptional = Fields::Need::kOptional;
  f.choice("store", store, {"clover", "fusee", "sherman"});
  if (store == "clover") return clover.read(f);
  f.choice("transport", transport, {"rc", "edm"}, kOptional);
  edm.read(f);
  f.integer("threads", threads, 1, 4096);
  f.integer("machines", machines, 1, 1024);
  f.integer("memory_nodes", memory_nodes, 1, 64, kOptional);
  f.integer("writes_percent", writes_percent, 0, 100);
  f.integer("keys", keys, 1, 1 << 20);
  f.integer("theta_thousandths", theta_thousandths, 0, workload::Zipf::kMaxTheta);
  f.choice("distribution", distribution, {"zipfian", "scrambled", "uniform"}, kOptional);
  f.byte_count("value_bytes", value_bytes, workload::kMinValueBytes, 1u << 20);
  f.byte_count("node_memory", node_memory, std::uint64_t{1} << 20, std::uint64_t{64} << 30, kOptional);
  f.cost("step_cost", step_cost);
  f.cost("step_cost_all_cores", step_cost_all_cores);
  f.choice("cost_of", cost_of, {"batch", "operation"}, kOptional);
  f.choice("box", box, {"none", "watching", "words"}, kOptional);
  f.duration("warm_up", warm_up, kOptional);
  f.span("measure", measure, kOptional);
  f.impairment("faults", faults, kOptional);
  f.integer("ack_timeout", ack_timeout, 1, 31, kOptional);
  if (store == "fusee") {
    f.integer("replicas", replicas, 1, fusee::kMostReplicas, kOptional);
    f.integer("index_replicas", index_replicas, 0, fusee::kMostReplicas, kOptional);
    f.choice("cache", cache, {"words", "slots", "none"}, kOptional);
    return;
  }
  f.byte_count("tree_node_bytes", tree_node_bytes, 64, kTreeChunk, kOptional);
  f.integer("locks", locks, 1, 1 << 16, kOptional);
  f.choice("lock_memory", lock_memory, {"device", "host"}, kOptional);
  f.choice("local_locks", local_locks, {"machine", "thread"}, kOptional);
  f.choice("client", client, {"paper", "sluice"}, kOptional);
}

namespace {

// Why there is no such rack; empty: there is.
std::string lack(const Hardware& hardware, const StoreWorkload& workload) {
  if (workload.transport != "edm") return {};
  if (!hardware.edm) return "EDM needs hardware of its own: edm_hardware";
  if (workload.box != "none") return "EDM's messages do not pass a SwordBox";
  if (!workload.faults.empty()) return "faults are of links that carry frames, and over EDM nothing goes in frames";
  return edm_lacks_ports(workload.memory_nodes + std::min(workload.machines, workload.threads));
}

}  // namespace

StoreLoadResult run_store_load(const Hardware& hardware, const StoreWorkload& workload, std::uint64_t seed) {
  if (workload.store == "clover") {
    CloverResult clover = run_clover_load(hardware, workload.clover, seed);
    return {std::move(clover.metrics), clover.events, clover.trace_hash, std::move(clover.problem)};
  }
  if (std::string problem = lack(hardware, workload); !problem.empty())
    return {.metrics = {}, .problem = std::move(problem)};
  return World(hardware, workload, seed).run();
}

StoreLoadResult check_store_load(const Hardware& hardware, const StoreWorkload& workload, std::uint64_t operations,
                                 std::uint64_t seed) {
  if (std::string problem = lack(hardware, workload); !problem.empty())
    return {.metrics = {}, .problem = std::move(problem)};
  return World(hardware, workload, seed).check(operations);
}

}  // namespace sluice::sim
