#include "sim/load/verbs_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "base/check.h"
#include "sim/world/box_stage.h"
#include "sim/world/cpu.h"
#include "sim/world/rack.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kServerAddress = 0x10000;
constexpr std::size_t kLine = 64;
constexpr std::uint32_t kMostInFlight = 4096;

rc::SendOp op_of(const std::string& name) {
  if (name == "read") return rc::SendOp::kRead;
  if (name == "cas") return rc::SendOp::kCompareAndSwap;
  if (name == "faa") return rc::SendOp::kFetchAndAdd;
  return rc::SendOp::kWrite;
}

struct Tally {
  Time from;
  std::uint64_t operations = 0;
  Histogram latency_ns;
  std::string problem;
};

// One polling thread and its queue pair.
class LoadThread final : public Event, public CompletionListener {
 public:
  LoadThread(Rack& rack, Rack::Machine& machine, Cpu& cpu, const VerbsWorkload& workload, std::uint32_t number,
             Tally& tally)
      : rack_(rack),
        nic_(machine.nic),
        cpu_(cpu),
        number_(number),
        tally_(tally),
        in_flight_(static_cast<std::uint32_t>(workload.in_flight)),
        signal_every_(static_cast<std::uint32_t>(std::min(workload.signal_every, workload.in_flight))),
        completions_(machine.make_completions(in_flight_)),
        buffer_(std::max<std::size_t>(workload.bytes, sizeof(std::uint64_t))) {
    request_.op = op_of(workload.operation);
    const bool atomic = request_.op == rc::SendOp::kCompareAndSwap || request_.op == rc::SendOp::kFetchAndAdd;
    sge_ = rc::Sge::of(ByteView(buffer_).first(atomic ? 8 : workload.bytes));
    request_.sges = {&sge_, 1};
  }

  rc::CompletionQueue* completions() const { return completions_; }
  void begin(rc::QueuePair& pair, memory::Key key, std::uint64_t address) {
    pair_ = &pair;
    request_.remote_key = key;
    request_.remote_address = address;
    rack_.loop.schedule(*this, rack_.loop.now());
  }
  void on_completions(Time now) override {
    rack_.loop.schedule_no_later(*this, std::max(now, cpu_.busy_until(number_)));
  }

 private:
  // One turn of the thread's loop: what has completed, and as much again.
  void fire(Time now) override {
    std::array<rc::Completion, HostParameters::kMostPolled> found;
    const std::size_t n = completions_->poll(std::span(found).first(cpu_.host().poll_batch));
    for (std::size_t i = 0; i < n; ++i) complete(now, found[i]);
    if (!tally_.problem.empty()) return;  // a queue pair that has given up would take requests and fail them for ever
    const std::uint32_t room = in_flight_ - out_;
    const HostParameters& host = cpu_.host();
    Duration cost = host.poll_cost + host.completion_cost * static_cast<std::int64_t>(n);
    if (room > 0) cost = cost + host.post_cost * room + host.doorbell_cost;
    const Time done = cpu_.finish_of(number_, now, cost);
    for (std::uint32_t i = 0; i < room; ++i) post(now, done, nic_.doorbell_latency());
    if (completions_->size() != 0) rack_.loop.schedule_no_later(*this, done);
  }

  void complete(Time now, const rc::Completion& completion) {
    if (completion.status != rc::CompletionStatus::kSuccess && tally_.problem.empty())
      tally_.problem = fmt::format("an operation ended as {}", to_string(completion.status));
    out_ -= signal_every_;
    if (now < tally_.from) return;
    tally_.operations += signal_every_;
    tally_.latency_ns.record(
        (now - Time::at(Duration::picoseconds(static_cast<std::int64_t>(completion.id)))).nanoseconds());
  }

  void post(Time now, Time done, Duration launch) {
    request_.id = static_cast<std::uint64_t>(done.since_start().picoseconds());
    request_.flags.signaled = ++posted_ % signal_every_ == 0;
    if (request_.op == rc::SendOp::kCompareAndSwap) {
      request_.compare = posted_ - 1;
      request_.swap_or_add = posted_;
    } else {
      request_.swap_or_add = 1;
    }
    SLUICE_CHECK(nic_.post(now, done - now + launch, *pair_, request_) == rc::PostError::kNone);
    ++out_;
  }

  Rack& rack_;
  Nic& nic_;
  Cpu& cpu_;
  std::uint32_t number_;
  Tally& tally_;
  std::uint32_t in_flight_;
  std::uint32_t signal_every_;
  rc::CompletionQueue* completions_;
  rc::QueuePair* pair_ = nullptr;
  std::vector<std::uint8_t> buffer_;
  rc::Sge sge_;
  rc::SendRequest request_;
  std::uint32_t out_ = 0;
  std::uint64_t posted_ = 0;
};

}  // namespace

void VerbsWorkload::read(Fields& f) {
  constexpr auto kOptional = Fields::Need::kOptional;
  f.choice("operation", operation, {"write", "read", "cas", "faa"});
  f.choice("memory", memory, {"host", "device"}, kOptional);
  f.choice("addresses", addresses, {"own", "same"}, kOptional);
  f.integer("queue_pairs", queue_pairs, 1, 4096);
  f.integer("in_flight", in_flight, 1, kMostInFlight / 4);
  f.integer("signal_every", signal_every, 1, kMostInFlight / 4, kOptional);
  f.byte_count("bytes", bytes, 1, 1u << 20, kOptional);
  f.choice("box", box, {"none", "watching", "words"}, kOptional);
  f.cost("box_packet_cost", box_packet_cost, kOptional);
  f.duration("warm_up", warm_up, kOptional);
  f.span("measure", measure, kOptional);
  if (in_flight % std::min(signal_every, in_flight) != 0)
    f.fail(*f.node("in_flight"), "in_flight", "must be a multiple of signal_every");
}

struct VerbsThreads::State {
  State(Rack& rack, Rack::Machine& server_machine, const VerbsWorkload& workload)
      : server(server_machine),
        stride((workload.bytes + kLine - 1) / kLine * kLine),
        memory(stride * (workload.addresses == "same" ? 1 : workload.queue_pairs)),
        cpu(rack.hardware().host, static_cast<std::uint32_t>(workload.queue_pairs)) {}

  Rack::Machine& server;
  std::uint64_t stride;  // from one thread's address to the next one's
  std::vector<std::uint8_t> memory;
  memory::Key key{};
  Cpu cpu;
  Tally tally;
  std::deque<LoadThread> threads;
};

VerbsThreads::VerbsThreads(Rack& rack, Rack::Machine& server, const VerbsWorkload& workload, Time count_from)
    : state_(std::make_unique<State>(rack, server, workload)) {
  State& s = *state_;
  Rack::Machine& client = rack.add_machine();
  const auto kind = workload.memory == "device" ? memory::RegionKind::kDevice : memory::RegionKind::kHost;
  s.key = server.share(s.memory, kServerAddress, kind);
  rc::CompletionQueue* const server_completions = server.make_completions(16);
  s.tally.from = count_from;
  for (std::uint32_t i = 0; i < workload.queue_pairs; ++i) {
    LoadThread& thread = s.threads.emplace_back(rack, client, s.cpu, workload, i, s.tally);
    const auto connection =
        rack.connect({&client, thread.completions(), &thread, static_cast<std::uint32_t>(workload.in_flight)},
                     {&server, server_completions});
    thread.begin(*connection.a, s.key, kServerAddress + (workload.addresses == "same" ? 0 : s.stride * i));
  }
}

VerbsThreads::~VerbsThreads() = default;
std::uint64_t VerbsThreads::operations() const { return state_->tally.operations; }
const Histogram& VerbsThreads::latency_ns() const { return state_->tally.latency_ns; }
const std::string& VerbsThreads::problem() const { return state_->tally.problem; }

swordbox::WordRegion VerbsThreads::words() const {
  return {.server = state_->server.nic.adapter().config().gids[0],
          .rkey = wire::RKey{state_->key.value},
          .address = kServerAddress,
          .length = state_->memory.size(),
          .writable = true};
}

swordbox::MultiplexerConfig words_config() {
  swordbox::MultiplexerConfig config;
  config.repair_after = Duration::milliseconds(10);
  config.give_up_after = Duration::milliseconds(250);
  config.flight = Duration::seconds(1);
  return config;
}

VerbsResult run_verbs_load(const Hardware& hardware, const VerbsWorkload& workload, std::uint64_t seed) {
  std::unique_ptr<BoxStage> box;
  if (workload.box != "none") box = std::make_unique<BoxStage>(swordbox::BoxConfig{});
  Rack rack(hardware, seed);
  if (box) {
    rack.net_switch().set_stage(box.get(), workload.box_packet_cost);
    rack.announce_to(box->box());
  }
  Rack::Machine& server = rack.add_machine();
  const VerbsThreads threads(rack, server, workload, Time::at(workload.warm_up));
  if (workload.box == "words") {
    swordbox::Box& words = box->box();
    words.set_multiplexer(
        std::make_unique<swordbox::Multiplexer>(words_config(), words.connections(), words.counters()));
    const std::array regions{threads.words()};
    SLUICE_CHECK(words.multiplexer()->set_regions(rack.loop.now(), regions) == 0);
  }
  rack.loop.run_until(Time::at(workload.warm_up + workload.measure));

  VerbsResult result;
  result.operations = threads.operations();
  result.per_second =
      static_cast<double>(result.operations) * 1e12 / static_cast<double>(workload.measure.picoseconds());
  result.latency_ns = threads.latency_ns();
  result.events = rack.loop.fired();
  result.packets = rack.trace.packets();
  result.trace_hash = rack.trace.hash();
  result.problem = threads.problem();
  return result;
}

}  // namespace sluice::sim
