#include "sim/cowbird_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>

#include "base/check.h"
#include "base/histogram.h"
#include "base/rng.h"
#include "cowbird/channel.h"
#include "cowbird/engine.h"
#include "cowbird/switch_engine.h"
#include "remote/mapped.h"
#include "sim/cowbird_core.h"
#include "sim/cpu.h"
#include "sim/rack.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kBlockBase = 0x10'0000;
constexpr std::uint64_t kPoolBase = 0x7000'0000;
constexpr remote::NodeId kCompute{0}, kPool{1};
constexpr std::uint32_t kMtu = 1024;

// The word that every record begins with.
std::uint64_t mark_of(std::uint64_t offset) { return offset * 0x9E37'79B9'7F4A'7C15u + 1; }

// How a thread gets at remote records. What it does takes effect when it is called; what that costs the thread is said beforehand.
class Way {
 public:
  virtual ~Way() = default;
  // REQUIRES: fewer than the depth are under way.
  virtual void issue(Time now, std::uint64_t offset, std::size_t slot) = 0;
  // Reads that are complete now, in the order of issue.
  virtual std::size_t look(Time now) = 0;
  virtual const std::uint8_t* record(std::size_t slot) const = 0;
  virtual Duration issue_cost() const = 0;
  virtual Duration look_cost() const = 0;
  virtual Duration complete_cost() const = 0;
  virtual bool failed() const { return false; }
};

// One-sided READs; the thread posts and polls by itself.
class ReadWay final : public Way {
 public:
  ReadWay(Rack& rack, Rack::Machine& compute, Rack::Machine& pool, rc::CompletionQueue& pool_completions,
          memory::Key key, const CowbirdWorkload& w)
      : host_(rack.hardware().host),
        nic_(compute.nic),
        key_(key),
        bytes_(w.bytes),
        completions_(compute.make_completions(static_cast<std::uint32_t>(w.depth))),
        buffer_(w.depth * w.bytes),
        pair_(rack.connect({&compute, completions_, nullptr, static_cast<std::uint32_t>(w.depth)},
                           {&pool, &pool_completions})
                  .a) {}

  void issue(Time now, std::uint64_t offset, std::size_t slot) override {
    const rc::Sge sge = rc::Sge::of(ByteView(buffer_).subspan(slot * bytes_, bytes_));
    rc::SendRequest request{.op = rc::SendOp::kRead, .sges = {&sge, 1}};
    request.remote_address = kPoolBase + offset;
    request.remote_key = key_;
    failed_ |= nic_.post(now, nic_.doorbell_latency(), *pair_, request) != rc::PostError::kNone;
  }
  std::size_t look(Time) override {
    std::array<rc::Completion, 64> found;
    const std::size_t n = completions_->poll(std::span(found).first(host_.poll_batch));
    for (std::size_t i = 0; i < n; ++i) failed_ |= found.at(i).status != rc::CompletionStatus::kSuccess;
    return n;
  }
  const std::uint8_t* record(std::size_t slot) const override { return buffer_.data() + slot * bytes_; }
  Duration issue_cost() const override { return host_.post_cost + host_.doorbell_cost; }
  Duration look_cost() const override { return host_.poll_cost; }
  Duration complete_cost() const override { return host_.completion_cost; }
  bool failed() const override { return failed_; }

 private:
  const HostParameters& host_;
  Nic& nic_;
  memory::Key key_;
  std::size_t bytes_;
  rc::CompletionQueue* completions_;
  std::vector<std::uint8_t> buffer_;
  rc::QueuePair* pair_;
  bool failed_ = false;
};

// A request as a SEND to a thread of the memory node, which finds the record and answers with a SEND.
class CallWay final : public Way {
 public:
  // The memory node's side: one thread for each of the compute node's.
  class Server final : public Event, public CompletionListener {
   public:
    Server(Rack& rack, Rack::Machine& pool, Cpu& cpu, std::uint32_t number, ByteView memory, std::size_t bytes)
        : rack_(rack),
          nic_(pool.nic),
          cpu_(cpu),
          number_(number),
          memory_(memory),
          bytes_(bytes),
          completions_(pool.make_completions(16)) {}
    rc::CompletionQueue* completions() const { return completions_; }
    void begin(rc::QueuePair& pair) {
      pair_ = &pair;
      post_receive();
    }
    void on_completions(Time now) override {
      if (scheduled()) return;
      std::array<rc::Completion, 4> found;
      const std::size_t n = completions_->poll(found);
      bool asked = false;
      for (std::size_t i = 0; i < n; ++i) asked |= found.at(i).kind == rc::CompletionKind::kReceive;
      const HostParameters& host = cpu_.host();
      if (!asked) return;
      // It finds the request, posts another receive, and the answer.
      const Duration cost = host.poll_cost + host.completion_cost + host.post_cost * 2 + host.doorbell_cost * 2;
      rack_.loop.schedule(*this, cpu_.finish_of(number_, now, cost));
    }

   private:
    void fire(Time now) override {
      const auto offset = load_le<std::uint64_t>(request_.data());
      SLUICE_CHECK(offset + bytes_ <= memory_.size());
      post_receive();
      const rc::Sge sge = rc::Sge::of(memory_.subspan(offset, bytes_));
      const rc::SendRequest answer{.op = rc::SendOp::kSend, .sges = {&sge, 1}};
      SLUICE_CHECK(nic_.post(now, nic_.doorbell_latency(), *pair_, answer) == rc::PostError::kNone);
      on_completions(now);
    }
    void post_receive() {
      const rc::Sge sge = rc::Sge::of(ByteView(request_));
      nic_.adapter().post_receive(*pair_, {.sges = {&sge, 1}});
    }
    Rack& rack_;
    Nic& nic_;
    Cpu& cpu_;
    std::uint32_t number_;
    ByteView memory_;
    std::size_t bytes_;
    rc::CompletionQueue* completions_;
    rc::QueuePair* pair_ = nullptr;
    std::array<std::uint8_t, 8> request_{};
  };

  CallWay(Rack& rack, Rack::Machine& compute, Rack::Machine& pool, Server& server, const CowbirdWorkload& w)
      : host_(rack.hardware().host), nic_(compute.nic), completions_(compute.make_completions(16)), buffer_(w.bytes) {
    const auto made =
        rack.connect({&compute, completions_, nullptr, 4, 4}, {&pool, server.completions(), &server, 4, 4});
    pair_ = made.a;
    server.begin(*made.b);
  }

  void issue(Time now, std::uint64_t offset, std::size_t) override {
    const rc::Sge into = rc::Sge::of(ByteView(buffer_));
    nic_.adapter().post_receive(*pair_, {.sges = {&into, 1}});
    store_le(request_.data(), offset);
    const rc::Sge sge = rc::Sge::of(ByteView(request_));
    const rc::SendRequest request{.op = rc::SendOp::kSend, .sges = {&sge, 1}};
    failed_ |= nic_.post(now, nic_.doorbell_latency(), *pair_, request) != rc::PostError::kNone;
  }
  std::size_t look(Time) override {
    std::array<rc::Completion, 4> found;
    const std::size_t n = completions_->poll(found);
    std::size_t answers = 0;
    for (std::size_t i = 0; i < n; ++i) {
      failed_ |= found.at(i).status != rc::CompletionStatus::kSuccess;
      answers += found.at(i).kind == rc::CompletionKind::kReceive ? 1u : 0u;
    }
    return answers;
  }
  const std::uint8_t* record(std::size_t) const override { return buffer_.data(); }
  Duration issue_cost() const override { return (host_.post_cost + host_.doorbell_cost) * 2; }  // receive and request
  Duration look_cost() const override { return host_.poll_cost; }
  Duration complete_cost() const override { return host_.completion_cost * 2; }  // of the request and the answer
  bool failed() const override { return failed_; }

 private:
  const HostParameters& host_;
  Nic& nic_;
  rc::CompletionQueue* completions_;
  std::vector<std::uint8_t> buffer_;
  std::array<std::uint8_t, 8> request_{};
  rc::QueuePair* pair_ = nullptr;
  bool failed_ = false;
};

// Cowbird: stores into the channel's rings, and looks at them.
class RingWay final : public Way {
 public:
  RingWay(MutableBytes channel, const cowbird::ChannelLayout& layout, const std::vector<cowbird::Region>& regions,
          const CowbirdWorkload& w)
      : w_(w), channel_(channel, layout, regions), buffer_(w.depth * w.bytes), done_(w.depth) {
    channel_.set_regions_generation(1);
  }
  void issue(Time, std::uint64_t offset, std::size_t slot) override {
    const auto id =
        channel_.async_read(0, offset, buffer_.data() + slot * w_.bytes, static_cast<std::uint32_t>(w_.bytes));
    failed_ |= id < 0;
  }
  std::size_t look(Time) override {
    const std::size_t n = channel_.collect(done_);
    for (std::size_t i = 0; i < n; ++i) failed_ |= done_[i].status != cowbird::Status::kOk;
    return n;
  }
  const std::uint8_t* record(std::size_t slot) const override { return buffer_.data() + slot * w_.bytes; }
  Duration issue_cost() const override { return w_.issue_cost; }
  Duration look_cost() const override { return w_.look_cost; }
  Duration complete_cost() const override { return w_.complete_cost; }
  bool failed() const override { return failed_; }

 private:
  const CowbirdWorkload& w_;
  cowbird::Channel channel_;
  std::vector<std::uint8_t> buffer_;
  std::vector<cowbird::Completion> done_;
  bool failed_ = false;
};

struct Tally {
  Time from;
  std::uint64_t probes = 0;
  Duration communicating{};  // of all threads' work
  Duration working{};
  Histogram latency_ns;
  std::string problem;
};

// One application thread.
class Prober final : public Event {
 public:
  // `way` null: all is local.
  Prober(EventLoop& loop, Cpu& cpu, std::uint32_t number, const CowbirdWorkload& w, std::unique_ptr<Way> way, Rng rng,
         Tally& tally)
      : loop_(loop),
        cpu_(cpu),
        number_(number),
        w_(w),
        way_(std::move(way)),
        rng_(rng),
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
    const Duration own = next(), communication = communication_of(doing_);
    if (now >= tally_.from) {
      tally_.communicating = tally_.communicating + communication;
      tally_.working = tally_.working + own + communication;
    }
    loop_.schedule(*this, cpu_.finish_of(number_, now, own + communication));
  }

  // Decides; returns what it costs, without communication.
  Duration next() {
    if (found_ != 0) {
      doing_ = Doing::kComplete;
      return w_.use_cost * static_cast<std::int64_t>(found_);
    }
    if (way_ == nullptr || (issued_ - completed_ < w_.depth && full_ == false)) {
      const bool local = way_ == nullptr || rng_.below(100) < w_.local_percent;
      doing_ = local ? Doing::kLocal : Doing::kIssue;
      return w_.index_cost + (local ? w_.local_cost : Duration{});
    }
    doing_ = Doing::kLook;
    return {};
  }
  Duration communication_of(Doing doing) const {
    switch (doing) {
      case Doing::kIssue: return way_->issue_cost();
      case Doing::kLook: return way_->look_cost();
      case Doing::kComplete: return way_->complete_cost() * static_cast<std::int64_t>(found_);
      default: return {};
    }
  }

  void issue(Time now) {
    const std::uint64_t records = w_.table_bytes / w_.bytes;
    Slot& slot = slots_[issued_ % w_.depth];
    slot = {rng_.below(records) * w_.bytes, now};
    way_->issue(now, slot.offset, issued_++ % w_.depth);
    full_ = issued_ - completed_ == w_.depth;
  }
  void take(Time now) {
    for (; found_ > 0; --found_, ++completed_) {
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
  Tally& tally_;
  std::vector<Slot> slots_;
  std::uint64_t issued_ = 0;
  std::uint64_t completed_ = 0;
  std::size_t found_ = 0;
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
        cpu_(hardware.host, static_cast<std::uint32_t>(w.threads)),
        pool_cpu_(hardware.host, static_cast<std::uint32_t>(w.threads)),
        table_(w.table_bytes) {
    if (stage_) rack_.net_switch().set_stage(stage_.get());
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
    const Rng rng = Rng(seed).fork("probers");
    for (std::uint32_t i = 0; i < w.threads; ++i) {
      probers_.emplace_back(rack_.loop, cpu_, i, w_, make_way(i), rng.fork(i), tally_)
          .begin(Time::at(Duration::nanoseconds(static_cast<std::int64_t>(rng.fork(1000 + i).next() % 1000))));
    }
  }
  ~World() {
    for (const auto& engine : engines_) engine->stop();
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  CowbirdResult run() {
    rack_.loop.run_until(Time::at(w_.warm_up + w_.measure));
    const auto us = [&](double quantile) { return static_cast<double>(tally_.latency_ns.at_quantile(quantile)) / 1e3; };
    const double seconds = static_cast<double>(w_.measure.picoseconds()) / 1e12;
    CowbirdResult result;
    result.metrics = {{"throughput", static_cast<double>(tally_.probes) / seconds / 1e6},
                      {"gbps", static_cast<double>(tally_.probes * w_.bytes * 8) / seconds / 1e9},
                      {"p50_us", us(0.5)},
                      {"p99_us", us(0.99)},
                      {"communication_percent", 100 * static_cast<double>(tally_.communicating.picoseconds()) /
                                                    static_cast<double>(tally_.working.picoseconds())}};
    if (!cores_.empty()) {
      Duration busy{};
      for (const auto& core : cores_) busy = busy + core->busy();
      const double all = static_cast<double>((w_.warm_up + w_.measure).picoseconds() * std::ssize(cores_));
      result.metrics.emplace_back("engine_busy_percent", 100 * static_cast<double>(busy.picoseconds()) / all);
    }
    result.events = rack_.loop.fired();
    result.trace_hash = rack_.trace.hash();
    result.problem = tally_.problem;
    for (const auto& core : cores_) {
      if (result.problem.empty()) result.problem = core->problem();
    }
    if (result.problem.empty() && tally_.probes == 0) result.problem = "no probe ended";
    return result;
  }

 private:
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
    return std::make_unique<RingWay>(block().subspan(layout_.channel_at(i)), layout_.channel(), regions_, w_);
  }

  CowbirdWorkload w_;
  std::unique_ptr<EngineStage> stage_;  // outlives the rack
  Rack rack_;
  Rng rng_;
  Cpu cpu_, pool_cpu_;
  Tally tally_;
  std::vector<std::uint8_t> table_;
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
  std::deque<Prober> probers_;
};

}  // namespace

void CowbirdWorkload::read(Fields& f) {
  constexpr auto kOptional = Fields::Need::kOptional;
  f.choice("way", way, {"local", "sync", "async", "two-sided", "spot", "switch"});
  f.choice("pool", pool, {"rc", "edm", "near"}, kOptional);
  edm.read(f);
  f.integer("threads", threads, 1, 64);
  f.integer("bytes", bytes, 8, 4096);
  f.integer("depth", depth, 1, 512, kOptional);
  f.integer("batch", batch, 1, 512, kOptional);
  f.integer("pairs", pairs, 1, 16, kOptional);
  f.integer("engine_cores", engine_cores, 1, 64, kOptional);
  f.integer("local_percent", local_percent, 0, 99, kOptional);
  f.byte_count("table_bytes", table_bytes, kOptional);
  f.duration("probe", probe, kOptional);
  f.duration("index_cost", index_cost);
  f.duration("local_cost", local_cost);
  f.duration("use_cost", use_cost, kOptional);
  f.duration("issue_cost", issue_cost);
  f.duration("complete_cost", complete_cost);
  f.duration("look_cost", look_cost);
  f.duration("engine_cost", engine_cost);
  f.duration("near_cost", near_cost, kOptional);
  f.duration("warm_up", warm_up, kOptional);
  f.duration("measure", measure, kOptional);
  if (way == "sync" || way == "two-sided") depth = 1;
}

CowbirdResult run_cowbird_load(const Hardware& hardware, const CowbirdWorkload& workload, std::uint64_t seed) {
  if (workload.pool != "rc" && workload.way != "spot")
    return {.metrics = {}, .problem = "the pool is near, or over EDM, for spot engines alone"};
  if (workload.pool == "near" && workload.near_cost == Duration{})
    return {.metrics = {}, .problem = "near_cost: what a request costs an engine beside the pool"};
  if (workload.pool == "edm" && !hardware.edm)
    return {.metrics = {}, .problem = "EDM needs hardware of its own: edm_hardware"};
  return World(hardware, workload, seed).run();
}

}  // namespace sluice::sim
