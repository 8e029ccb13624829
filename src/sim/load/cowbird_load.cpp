#include "sim/load/cowbird_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>

#include "base/check.h"
#include "base/histogram.h"
#include "base/rng.h"
#include "cowbird/engine.h"
#include "cowbird/switch_engine.h"
#include "remote/mapped.h"
#include "sim/load/cowbird_core.h"
#include "sim/load/cowbird_rivals.h"
#include "sim/load/cowbird_ways.h"
#include "sim/load/latency.h"
#include "sim/load/tcp_flows.h"
#include "sim/world/cpu.h"
#include "sim/world/rack.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kBlockBase = 0x10'0000;
constexpr remote::NodeId kCompute{0}, kPool{1};
constexpr std::uint32_t kMtu = 1024;

// The word that every record begins with.
std::uint64_t mark_of(std::uint64_t offset) { return offset * 0x9E37'79B9'7F4A'7C15u + 1; }

struct Tally {
  Time from;
  std::uint64_t probes = 0;
  Duration communicating{};  // of all threads' work
  Duration working{};
  Histogram latency_ns;
  std::string problem;
};

// What the store's threads have in common: how many reads are under way, counted on one line of memory, which goes from thread to thread.
class PendingReads {
 public:
  explicit PendingReads(const CowbirdWorkload& w) : most_(w.most_pending), line_cost_(w.line_cost) {}
  bool full() const { return most_ != 0 && count_ >= most_; }
  // How long `thread` waits until it has counted `times` times. Others wait for the line meanwhile.
  Duration touch(Time now, std::uint32_t thread, std::size_t times) {
    if (line_cost_ == Duration{} || std::exchange(last_, thread) == thread) return {};
    free_at_ = std::max(free_at_, now) + line_cost_ * static_cast<std::int64_t>(times);
    return free_at_ - now;
  }
  void add() { ++count_; }
  void remove(std::size_t n) { count_ -= n; }

 private:
  std::uint64_t most_;
  Duration line_cost_;
  std::uint64_t count_ = 0;
  std::uint32_t last_ = 0;
  Time free_at_;
};

// One application thread.
class Prober final : public Event {
 public:
  // `way` null: all is local.
  Prober(EventLoop& loop, Cpu& cpu, std::uint32_t number, const CowbirdWorkload& w, std::unique_ptr<Way> way, Rng rng,
         PendingReads& pending, Tally& tally)
      : loop_(loop),
        cpu_(cpu),
        number_(number),
        w_(w),
        way_(std::move(way)),
        rng_(rng),
        pending_(pending),
        tally_(tally),
        slots_(w.depth) {}
  void begin(Time at) { loop_.schedule(*this, at); }

 private:
  enum class Doing : std::uint8_t { kNothing, kLocal, kIssue, kLook, kComplete };
  struct Slot {
    std::uint64_t offset = 0;
    Time issued;
  };

  // What it was at takes effect now; then comes the next thing.
  void fire(Time now) override {
    switch (doing_) {
      case Doing::kNothing: break;
      case Doing::kLocal: count(now); break;
      case Doing::kIssue: issue(now); break;
      case Doing::kLook: found_ = way_->look(now); break;
      case Doing::kComplete: take(now); break;
    }
    if (way_ != nullptr && way_->failed()) tally_.problem = "a read failed";
    if (!tally_.problem.empty()) return;
    const Duration own = next(), communication = communication_of(doing_), waiting = waiting_for_line(now);
    if (now >= tally_.from) {
      tally_.communicating = tally_.communicating + communication;
      tally_.working = tally_.working + own + communication + waiting;
    }
    loop_.schedule(*this, cpu_.finish_of(number_, now, own + communication) + waiting);
  }

  // Decides; returns what it costs, without communication.
  Duration next() {
    if (found_ != 0) {
      doing_ = Doing::kComplete;
      taking_ = w_.line_cost == Duration{} ? found_ : 1;  // between two, others count theirs
      return w_.use_cost * static_cast<std::int64_t>(taking_);
    }
    if (way_ != nullptr && (full_ || pending_.full())) {
      doing_ = Doing::kLook;
      return {};
    }
    cold_ = rng_.below(100) >= w_.local_percent;
    doing_ = cold_ && way_ != nullptr ? Doing::kIssue : Doing::kLocal;
    return w_.index_cost + (cold_ ? w_.cold_cost : Duration{}) + (doing_ == Doing::kLocal ? w_.local_cost : Duration{});
  }
  Duration waiting_for_line(Time now) {
    switch (doing_) {
      case Doing::kIssue: return pending_.touch(now, number_, 1);
      case Doing::kComplete: return pending_.touch(now, number_, taking_);
      // Where it is only called remote, it is counted twice at once.
      case Doing::kLocal: return cold_ ? pending_.touch(now, number_, 2) : Duration{};
      default: return {};
    }
  }
  Duration communication_of(Doing doing) const {
    switch (doing) {
      case Doing::kIssue: return way_->issue_cost();
      case Doing::kLook: return way_->look_cost();
      case Doing::kComplete: return way_->complete_cost() * static_cast<std::int64_t>(taking_);
      default: return {};
    }
  }

  void issue(Time now) {
    const std::uint64_t records = w_.table_bytes / w_.bytes;
    Slot& slot = slots_[issued_ % w_.depth];
    slot = {rng_.below(records) * w_.bytes, now};
    way_->issue(now, slot.offset, issued_++ % w_.depth);
    pending_.add();
    full_ = issued_ - completed_ == w_.depth;
  }
  void take(Time now) {
    pending_.remove(taking_);
    for (; taking_ > 0; --taking_, --found_, ++completed_) {
      const Slot& slot = slots_[completed_ % w_.depth];
      if (load_le<std::uint64_t>(way_->record(completed_ % w_.depth)) != mark_of(slot.offset))
        tally_.problem = fmt::format("thread {} got another record than that at {}", number_, slot.offset);
      if (now >= tally_.from) tally_.latency_ns.record((now - slot.issued).nanoseconds());
      count(now);
    }
    full_ = false;
  }
  void count(Time now) {
    if (now >= tally_.from) ++tally_.probes;
  }

  EventLoop& loop_;
  Cpu& cpu_;
  std::uint32_t number_;
  const CowbirdWorkload& w_;
  std::unique_ptr<Way> way_;
  Rng rng_;
  PendingReads& pending_;
  Tally& tally_;
  std::vector<Slot> slots_;
  std::uint64_t issued_ = 0;
  std::uint64_t completed_ = 0;
  std::size_t found_ = 0;
  std::size_t taking_ = 0;  // of them, now
  bool cold_ = false;
  bool full_ = false;
  Doing doing_ = Doing::kNothing;
};

// The switch's engine in the simulated switch.
class EngineStage final : public switching::Stage {
 public:
  EngineStage(const cowbird::SwitchEngineConfig& config, std::uint64_t seed)
      : engine_({{2, 0, 0, 0, 0xFF, 0xFE}}, wire::Gid::from(wire::Ipv4Address{0x0A4DFFFE}), config, seed) {}
  cowbird::SwitchEngine& engine() { return engine_; }

  void process(Time now, std::span<switching::Packet> packets, port::FrameSink& outbox) override {
    for (switching::Packet& packet : packets) {
      if (engine_.on_frame(now, packet.frame, outbox)) packet.action = switching::Packet::Action::kDrop;
    }
  }
  Time next_deadline() const override { return engine_.next_deadline(); }
  void on_deadline(Time now, port::FrameSink& outbox) override { engine_.on_deadline(now, outbox); }
  void on_spare(Time now, const switching::Ways& ways, port::FrameSink& outbox) override {
    engine_.on_spare(
        now, [&](const wire::MacAddress& mac) { return ways.is_idle(now, mac); }, outbox);
  }

 private:
  cowbird::SwitchEngine engine_;
};

class World {
 public:
  World(const Hardware& hardware, const CowbirdWorkload& w, std::uint64_t seed)
      : w_(w),
        stage_(w.way == "switch" ? std::make_unique<EngineStage>(switch_config(w), seed) : nullptr),
        rack_(hardware, seed),
        rng_(seed),
        pending_(w_),
        cpu_(hardware.host, static_cast<std::uint32_t>(has_io_threads() ? 2 * w.threads : w.threads)),
        pool_cpu_(hardware.host, static_cast<std::uint32_t>(w.threads)),
        table_(w.table_bytes) {
    if (stage_) rack_.net_switch().set_stage(stage_.get());
    if (w.tcp.flows != 0) rack_.net_switch().set_priorities();
    tally_.from = Time::at(w.warm_up);
    for (std::uint64_t at = 0; at + w.bytes <= table_.size(); at += w.bytes) store_le(table_.data() + at, mark_of(at));
    compute_ = &rack_.add_machine();
    pool_ = &rack_.add_machine();
    key_ = pool_->share(table_, kPoolBase);
    pool_completions_ = pool_->make_completions(16);
    regions_ = {{.node = kPool.value, .key = key_.value, .base = kPoolBase, .length = table_.size()}};
    if (w.way == "spot" || w.way == "switch") make_rings();
    if (w.way == "spot") make_spot();
    if (w.way == "switch") make_switch();
    if (w.tcp.flows != 0) tcp_ = std::make_unique<TcpFlows>(rack_, *compute_, w_.tcp, Rng(seed).fork("tcp"));
    const Rng rng = Rng(seed).fork("probers");
    for (std::uint32_t i = 0; i < w.threads; ++i) {
      probers_
          .emplace_back(rack_.loop, cpu_, has_io_threads() ? 2 * i : i, w_, make_way(i), rng.fork(i), pending_, tally_)
          .begin(Time::at(Duration::nanoseconds(static_cast<std::int64_t>(rng.fork(1000 + i).next() % 1000))));
    }
  }
  ~World() {
    for (const auto& engine : engines_) engine->stop();
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  CowbirdResult run() {
    rack_.loop.run_until(Time::at(w_.warm_up));
    const std::uint64_t up = wire_bytes(compute_->uplink.counters());
    const std::uint64_t down = wire_bytes(rack_.net_switch().out(kComputePort));
    const std::uint64_t tcp = tcp_ ? tcp_->received() : 0;
    const TcpSender::Counters tcp_before = tcp_ ? tcp_->counters() : TcpSender::Counters{};
    const Duration busy_before = engines_busy();
    rack_.loop.run_until(Time::at(w_.warm_up + w_.measure));
    const double seconds = static_cast<double>(w_.measure.picoseconds()) / 1e12;
    CowbirdResult result;
    result.metrics = {{"throughput", static_cast<double>(tally_.probes) / seconds / 1e6},
                      {"gbps", static_cast<double>(tally_.probes * w_.bytes * 8) / seconds / 1e9},
                      {"p50_us", quantile_us(tally_.latency_ns, 0.5)},
                      {"p99_us", quantile_us(tally_.latency_ns, 0.99)},
                      {"communication_percent", 100 * static_cast<double>(tally_.communicating.picoseconds()) /
                                                    static_cast<double>(tally_.working.picoseconds())}};
    const auto gbps = [&](std::uint64_t bytes) { return static_cast<double>(bytes * 8) / seconds / 1e9; };
    result.metrics.emplace_back("up_gbps", gbps(wire_bytes(compute_->uplink.counters()) - up));
    result.metrics.emplace_back("down_gbps", gbps(wire_bytes(rack_.net_switch().out(kComputePort)) - down));
    if (tcp_) {
      const TcpSender::Counters after = tcp_->counters();
      result.metrics.emplace_back("tcp_gbps", gbps(tcp_->received() - tcp));
      result.metrics.emplace_back(
          "tcp_repaired_percent",
          100 * static_cast<double>(after.repairs - tcp_before.repairs) /
              static_cast<double>(std::max<std::uint64_t>(after.segments - tcp_before.segments, 1)));
      result.metrics.emplace_back("tcp_timeouts", static_cast<double>(after.timeouts - tcp_before.timeouts));
      result.metrics.emplace_back("tcp_round_trip_us", static_cast<double>(tcp_->round_trip().nanoseconds()) / 1e3);
    }
    if (!cores_.empty()) {
      const Duration busy = engines_busy() - busy_before;
      const double all = static_cast<double>(w_.measure.picoseconds() * std::ssize(cores_));
      result.metrics.emplace_back("engine_busy_percent", 100 * static_cast<double>(busy.picoseconds()) / all);
    }
    result.events = rack_.loop.fired();
    result.trace_hash = rack_.trace.hash();
    result.problem = tally_.problem;
    for (const auto& core : cores_) {
      if (result.problem.empty()) result.problem = core->problem();
    }
    if (result.problem.empty() && tally_.probes == 0)
      result.problem = "no probe ended in what is measured: make `measure` longer than one takes on this hardware";
    return result;
  }

 private:
  static constexpr std::size_t kComputePort = 0;  // of the switch: the first machine's
  Duration engines_busy() const {
    Duration busy{};
    for (const auto& core : cores_) busy = busy + core->busy();
    return busy;
  }
  static std::uint64_t wire_bytes(const Pipe::Counters& c) { return c.bytes + c.packets * Pipe::kWireOverhead; }
  // One beside each application thread, and next to it where threads take turns.
  bool has_io_threads() const { return w_.way == "io-threads"; }
  static cowbird::SwitchEngineConfig switch_config(const CowbirdWorkload& w) {
    cowbird::SwitchEngineConfig config;
    config.probe_slot = config.probe_least = w.probe;
    return config;
  }

  void make_rings() {
    layout_ = {.shape = {}, .channels = static_cast<std::uint32_t>(w_.threads)};
    block_.resize(layout_.bytes() / 8);
    layout_.write(block().data());
    regions_.front().write(block().data() + cowbird::InstanceLayout::kRegions);
    block_key_ = compute_->share(block(), kBlockBase);
  }
  MutableBytes block() { return {reinterpret_cast<std::uint8_t*>(block_.data()), block_.size() * 8}; }

  void make_spot() {
    Rack::Machine& machine = w_.pool == "near" ? *pool_ : rack_.add_machine();
    rc::CompletionQueue* const compute_completions = compute_->make_completions(16);
    const remote::RemoteAddress at{kCompute, remote::RegionKey(block_key_.value), kBlockBase};
    EdmPort* edm_port = nullptr;
    if (w_.pool == "edm") {
      edm_ = std::make_unique<EdmSide>(rack_.loop, rack_.trace, rack_.hardware(), w_.edm, 2);
      edm_->add_memory({kPool, remote::RegionKey(key_.value), kPoolBase}, table_);
      edm_port = &edm_->add_compute();
    }
    cowbird::EngineConfig config;
    config.probe_least = w_.probe;
    config.batch_size = static_cast<std::uint32_t>(w_.batch);
    const std::uint64_t cores = std::min(w_.engine_cores, w_.threads);
    for (std::uint64_t c = 0; c < cores; ++c) {
      auto& core = *cores_.emplace_back(std::make_unique<CowbirdCore>(
          rack_, rack_.hardware().host, w_.pool == "near" ? w_.near_cost : w_.engine_cost));
      auto rings = std::make_unique<EngineMemory>(core, rack_, machine);  // one connection for the rings of all threads
      rings->connect(*compute_, *compute_completions, 1);
      for (std::uint64_t i = c; i < w_.threads; i += cores) {
        engines_.push_back(std::make_unique<cowbird::Engine>(core.scheduler(), *rings, at, layout_,
                                                             static_cast<std::uint32_t>(i),
                                                             make_pool(core, machine, edm_port), config));
        core.serve(*engines_.back());
      }
      memories_.push_back(std::move(rings));
      core.start();
    }
  }
  // As one engine reaches it.
  remote::RemoteMemory& make_pool(CowbirdCore& core, Rack::Machine& machine, EdmPort* edm_port) {
    if (w_.pool == "near") {
      auto near = std::make_unique<remote::MappedMemory>(core.scheduler());
      near->add({kPool, remote::RegionKey(key_.value), kPoolBase}, table_);
      return *memories_.emplace_back(std::move(near));
    }
    auto far = std::make_unique<EngineMemory>(core, rack_, machine);
    if (edm_port != nullptr) {
      far->connect(*edm_port);
    } else {
      far->connect(*pool_, *pool_completions_, w_.pairs);
    }
    return *memories_.emplace_back(std::move(far));
  }

  // Phase I, as the compute node's host does it.
  void make_switch() {
    rc::CompletionQueue* const completions = compute_->make_completions(16);
    for (std::uint32_t i = 0; i < w_.threads; ++i) {
      rc::QueuePair& control = make_pair(*compute_, completions);
      const auto attached = stage_->engine()
                                .attach(rack_.loop.now(), {.layout = layout_,
                                                           .channel = i,
                                                           .address = kBlockBase,
                                                           .key = wire::RKey(block_key_.value),
                                                           .host = end_of(*compute_, control),
                                                           .mtu = kMtu,
                                                           .max_reads = reads()})
                                .value();
      to_receive(*compute_, control, attached.engine, attached.engine.expected);
      rc::QueuePair& near = make_pair(*compute_, completions);
      rc::QueuePair& far = make_pair(*pool_, pool_completions_);
      const cowbird::DataConnection data{.node = kPool.value,
                                         .host = end_of(*compute_, near),
                                         .pool = end_of(*pool_, far),
                                         .mtu = kMtu,
                                         .host_reads = reads(),
                                         .pool_reads = reads()};
      to_receive(*compute_, near, data.pool, data.host.expected);
      to_receive(*pool_, far, data.host, data.pool.expected);
      check(stage_->engine().connect(rack_.loop.now(), attached.id, data));
      check(stage_->engine().set_regions(rack_.loop.now(), attached.id, 1, regions_));
    }
    rack_.net_switch().touched(rack_.loop.now());
  }
  std::uint32_t reads() const { return static_cast<std::uint32_t>(rack_.hardware().nic.reads_in_flight); }
  static void check(const Result<void>& done) { SLUICE_CHECK(done.has_value()); }
  static rc::QueuePair& make_pair(Rack::Machine& machine, rc::CompletionQueue* completions) {
    return *machine.nic.adapter()
                .create_queue_pair({.pd = machine.nic.domain(),
                                    .send_completions = completions,
                                    .receive_completions = completions,
                                    .send_depth = 1,
                                    .receive_depth = 1})
                .value();
  }
  cowbird::ConnectionEnd end_of(Rack::Machine& machine, const rc::QueuePair& pair) {
    const rc::AdapterConfig& config = machine.nic.adapter().config();
    return {config.mac, config.gids[0], pair.qpn(), rc::Psn(static_cast<std::uint32_t>(rng_.next()))};
  }
  void to_receive(Rack::Machine& machine, rc::QueuePair& pair, const cowbird::ConnectionEnd& peer, rc::Psn expected) {
    rc::Adapter& adapter = machine.nic.adapter();
    const Time now = rack_.loop.now();
    check(adapter.modify(now, pair, {.state = rc::QpState::kInit, .access = memory::kAllAccess}));
    check(adapter.modify(now, pair,
                         {.state = rc::QpState::kReadyToReceive,
                          .remote_gid = peer.gid,
                          .remote_mac = peer.mac,
                          .remote_qpn = peer.qpn,
                          .path_mtu = kMtu,
                          .receive_psn = expected,
                          .min_rnr_timer = 1,
                          .max_reads_in = static_cast<std::uint8_t>(reads())}));
  }

  std::unique_ptr<Way> make_way(std::uint32_t i) {
    if (w_.way == "local") return nullptr;
    if (w_.way == "sync" || w_.way == "async")
      return std::make_unique<ReadWay>(rack_, *compute_, *pool_, *pool_completions_, key_, w_);
    if (w_.way == "two-sided") {
      servers_.push_back(std::make_unique<CallWay::Server>(rack_, *pool_, pool_cpu_, i, table_, w_.bytes));
      return std::make_unique<CallWay>(rack_, *compute_, *pool_, *servers_.back(), w_);
    }
    if (has_io_threads()) {
      BatchServer& server =
          *batch_servers_.emplace_back(std::make_unique<BatchServer>(rack_, *pool_, pool_cpu_, i, table_, w_));
      return std::make_unique<IoThreadWay>(rack_, *compute_, *pool_, cpu_, 2 * i + 1, server, w_);
    }
    if (w_.way == "disk") return std::make_unique<DiskWay>(disk_, table_, w_);
    if (w_.way == "user-threads") {
      return std::make_unique<UserThreadWay>(
          std::make_unique<ReadWay>(rack_, *compute_, *pool_, *pool_completions_, key_, w_), w_.switch_cost);
    }
    return std::make_unique<RingWay>(block().subspan(layout_.channel_at(i)), layout_.channel(), regions_, w_);
  }

  CowbirdWorkload w_;
  std::unique_ptr<EngineStage> stage_;  // outlives the rack
  Rack rack_;
  Rng rng_;
  PendingReads pending_;
  Cpu cpu_, pool_cpu_;
  Tally tally_;
  std::vector<std::uint8_t> table_;
  Disk disk_;
  Rack::Machine* compute_ = nullptr;
  Rack::Machine* pool_ = nullptr;
  memory::Key key_{};
  rc::CompletionQueue* pool_completions_ = nullptr;
  std::vector<cowbird::Region> regions_;
  cowbird::InstanceLayout layout_{};
  std::vector<std::uint64_t> block_;
  memory::Key block_key_{};
  std::unique_ptr<EdmSide> edm_;  // null: the engines reach the pool over RC
  std::vector<std::unique_ptr<remote::RemoteMemory>> memories_;
  std::vector<std::unique_ptr<cowbird::Engine>> engines_;
  std::vector<std::unique_ptr<CowbirdCore>> cores_;  // their coroutines go before engines and memories
  std::vector<std::unique_ptr<CallWay::Server>> servers_;
  std::vector<std::unique_ptr<BatchServer>> batch_servers_;
  std::deque<Prober> probers_;
  std::unique_ptr<TcpFlows> tcp_;  // null: none
};

}  // namespace

void CowbirdWorkload::read(Fields& f) {
  constexpr auto kOptional = Fields::Need::kOptional;
  f.choice("way", way, {"local", "sync", "async", "two-sided", "spot", "switch", "io-threads", "user-threads", "disk"});
  f.choice("pool", pool, {"rc", "edm", "near"}, kOptional);
  edm.read(f);
  f.integer("threads", threads, 1, 64);
  f.integer("bytes", bytes, 8, 4096);
  f.integer("depth", depth, 1, 512, kOptional);
  f.integer("batch", batch, 1, 512, kOptional);
  f.integer("messages", messages, 1, 64, kOptional);
  f.integer("pairs", pairs, 1, 16, kOptional);
  f.integer("engine_cores", engine_cores, 1, 64, kOptional);
  f.integer("local_percent", local_percent, 0, 99, kOptional);
  f.byte_count("table_bytes", table_bytes, 4096, std::uint64_t{16} << 30, kOptional);
  f.duration("probe", probe, Duration::nanoseconds(1), Fields::kLongest, kOptional);
  f.cost("index_cost", index_cost);
  f.cost("local_cost", local_cost);
  f.cost("use_cost", use_cost, kOptional);
  f.cost("issue_cost", issue_cost);
  f.cost("complete_cost", complete_cost);
  f.cost("look_cost", look_cost);
  f.cost("engine_cost", engine_cost);
  f.cost("near_cost", near_cost, kOptional);
  f.cost("switch_cost", switch_cost, kOptional);
  f.cost("cold_cost", cold_cost, kOptional);
  f.cost("line_cost", line_cost, kOptional);
  f.integer("most_pending", most_pending, 0, 4096, kOptional);
  f.cost("disk_interval", disk_interval, kOptional);
  f.duration("disk_latency", disk_latency, kOptional);
  tcp.read(f);
  f.duration("warm_up", warm_up, kOptional);
  f.span("measure", measure, kOptional);
  if (way == "sync" || way == "two-sided") depth = 1;
}

namespace {

// Why a thread's loop would go round without any time passing; empty: it does not. Who waits for records only looks.
std::string timeless(const Hardware& hardware, const CowbirdWorkload& w) {
  if (w.way == "local")
    return w.index_cost + w.local_cost + w.cold_cost > Duration{} ? ""
                                                                  : "index_cost and local_cost: a probe takes time";
  const bool verbs = w.way == "sync" || w.way == "async" || w.way == "two-sided" || w.way == "user-threads";
  if (verbs) return hardware.host.poll_cost > Duration{} ? "" : "the hardware's poll_cost: a look takes time";
  return w.look_cost > Duration{} ? "" : "look_cost: a look takes time";
}

}  // namespace

CowbirdResult run_cowbird_load(const Hardware& hardware, const CowbirdWorkload& workload, std::uint64_t seed) {
  if (std::string problem = timeless(hardware, workload); !problem.empty()) return {.metrics = {}, .problem = problem};
  if (workload.pool != "rc" && workload.way != "spot")
    return {.metrics = {}, .problem = "the pool is near, or over EDM, for spot engines alone"};
  if (workload.pool == "near" && workload.near_cost == Duration{})
    return {.metrics = {}, .problem = "near_cost: what a request costs an engine beside the pool"};
  if (workload.way == "io-threads" && workload.near_cost < workload.engine_cost)
    return {.metrics = {},
            .problem = "near_cost: what a request costs an engine beside the pool, more than engine_cost"};
  if (workload.way == "user-threads" && workload.switch_cost == Duration{})
    return {.metrics = {}, .problem = "switch_cost: what a switch from one user thread to another costs"};
  if (workload.way == "disk" && (workload.disk_interval == Duration{} || workload.disk_latency == Duration{}))
    return {.metrics = {},
            .problem = "disk_interval and disk_latency: how many reads a second a disk does, and how long one takes"};
  if (std::string problem = workload.tcp.problem(); !problem.empty()) return {.metrics = {}, .problem = problem};
  if (workload.pool == "edm" && !hardware.edm)
    return {.metrics = {}, .problem = "EDM needs hardware of its own: edm_hardware"};
  return World(hardware, workload, seed).run();
}

}  // namespace sluice::sim
