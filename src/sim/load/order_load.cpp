#include "sim/load/order_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "sim/world/rack.h"
#include "wire/frame.h"
#include "workload/zipf.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kServerAddress = 0x10000;
constexpr std::uint64_t kLine = 64;
constexpr std::uint32_t kDepth = 512;
constexpr Duration kLongestRun = Duration::seconds(1'000'000);

// Intervals until it ends: some are for the last answers.
std::int64_t turns_of(const OrderWorkload& workload) { return static_cast<std::int64_t>(workload.requests + 100); }

// Stands in the switch: numbers requests, and compares the numbers of answers.
class OrderProbe final : public switching::Stage {
 public:
  explicit OrderProbe(OrderResult& result) : result_(result) {}

  void watch(const rc::QueuePair& client, const rc::QueuePair& server) {
    client_of_[server.qpn().value] = client.qpn().value;
  }

  void process(Time, std::span<switching::Packet> packets, port::FrameSink&) override {
    for (const switching::Packet& packet : packets) {
      wire::ParsedFrame parsed;
      if (wire::parse(packet.frame.bytes(), parsed) != wire::Verdict::kOk) continue;
      if (parsed.traits().is_request) {
        numbers_[token(client_of_.at(parsed.destination.value), parsed.psn)] = ++requests_;
      } else {
        answered(token(parsed.destination.value, parsed.psn));
      }
    }
  }

 private:
  static std::uint64_t token(std::uint32_t client, wire::Psn psn) { return std::uint64_t{client} << 24 | psn.value(); }
  void answered(std::uint64_t token) {
    const auto found = numbers_.find(token);
    if (found == numbers_.end()) return;
    const auto number = static_cast<std::int64_t>(found->second);
    numbers_.erase(found);
    if (last_ != 0) {
      ++result_.gaps[number - last_];
      ++result_.answers;
    }
    last_ = number;
  }

  OrderResult& result_;
  std::unordered_map<std::uint32_t, std::uint32_t> client_of_;  // by the server's QPN
  std::unordered_map<std::uint64_t, std::uint64_t> numbers_;    // of requests not yet answered
  std::uint64_t requests_ = 0;
  std::int64_t last_ = 0;
};

// Posts a request each interval, whatever has been answered.
class Generator final : public Event, public CompletionListener {
 public:
  Generator(Rack& rack, Nic& nic, const OrderWorkload& workload, rc::CompletionQueue& completions, memory::Key key)
      : rack_(rack),
        nic_(nic),
        workload_(workload),
        completions_(completions),
        key_(key),
        rng_(Rng(rack.seed()).fork("order")),
        ranks_(workload.addresses, static_cast<std::uint32_t>(workload.theta_thousandths)),
        buffer_(std::max<std::size_t>(workload.bytes, sizeof(std::uint64_t))) {}

  // Not empty: it has given up.
  const std::string& problem() const { return problem_; }
  void add(rc::QueuePair& pair) { pairs_.push_back(&pair); }
  void fire(Time now) override {
    const std::uint64_t at = kServerAddress + ranks_.draw(rng_) * kLine;
    rc::SendRequest request{.remote_address = at, .remote_key = key_, .swap_or_add = posted_};
    static constexpr std::array kOps{rc::SendOp::kRead, rc::SendOp::kWrite, rc::SendOp::kCompareAndSwap};
    request.op = kOps.at(rng_.below(kOps.size()));
    const bool atomic = request.op == rc::SendOp::kCompareAndSwap;
    const rc::Sge sge = rc::Sge::of(ByteView(buffer_).first(atomic ? 8 : workload_.bytes));
    request.sges = {&sge, 1};
    rc::QueuePair& pair = *pairs_[posted_ % pairs_.size()];
    if (!problem_.empty()) return;
    if (nic_.post(now, nic_.doorbell_latency(), pair, request) != rc::PostError::kNone) {
      problem_ = "requests come faster than they are answered, and a queue pair is full: interval is too short";
      return;
    }
    if (++posted_ < workload_.requests) rack_.loop.schedule(*this, now + workload_.interval);
  }
  void on_completions(Time) override {
    std::array<rc::Completion, 32> found;
    while (const std::size_t n = completions_.poll(found)) {
      for (const rc::Completion& completion : std::span(found).first(n)) {
        if (completion.status != rc::CompletionStatus::kSuccess && problem_.empty())
          problem_ = fmt::format("an operation ended as {}", to_string(completion.status));
      }
    }
  }

 private:
  Rack& rack_;
  Nic& nic_;
  const OrderWorkload& workload_;
  rc::CompletionQueue& completions_;
  memory::Key key_;
  Rng rng_;
  workload::Zipf ranks_;
  std::vector<std::uint8_t> buffer_;
  std::vector<rc::QueuePair*> pairs_;
  std::uint64_t posted_ = 0;
  std::string problem_;
};

}  // namespace

double OrderResult::share_of(std::int64_t gap) const {
  if (answers == 0) return 0;
  std::uint64_t count = 0;
  for (const auto& [size, n] : gaps) {
    if (size == gap || size == -gap) count += n;
  }
  return static_cast<double>(count) / static_cast<double>(answers);
}

void OrderWorkload::read(Fields& f) {
  f.integer("queue_pairs", queue_pairs, 1, 4096);
  f.integer("addresses", addresses, 1, 1 << 20);
  f.integer("theta_thousandths", theta_thousandths, 0, workload::Zipf::kMaxTheta);
  f.byte_count("bytes", bytes, 1, 1u << 20);
  f.span("interval", interval);
  f.integer("requests", requests, 1, 100'000'000);
  f.integer("gap", gap, 0, 1000);
  if (!f.failed() && interval > kLongestRun / turns_of(*this))
    f.fail(*f.node("requests"), "requests", "times interval must be 1,000,000 s at most: make one of them less");
}

OrderResult run_order_load(const Hardware& hardware, const OrderWorkload& workload, std::uint64_t seed) {
  OrderResult result;
  OrderProbe probe(result);
  Rack rack(hardware, seed);
  rack.net_switch().set_stage(&probe);
  Rack::Machine& server = rack.add_machine();
  Rack::Machine& client = rack.add_machine();
  std::vector<std::uint8_t> memory(workload.addresses * kLine + workload.bytes);
  const memory::Key key = server.share(memory, kServerAddress);
  rc::CompletionQueue* const completions = client.make_completions(1u << 16);
  rc::CompletionQueue* const server_completions = server.make_completions(16);
  Generator generator(rack, client.nic, workload, *completions, key);
  for (std::uint64_t i = 0; i < workload.queue_pairs; ++i) {
    const auto connection = rack.connect({&client, completions, &generator, kDepth}, {&server, server_completions});
    probe.watch(*connection.a, *connection.b);
    generator.add(*connection.a);
  }
  rack.loop.schedule(generator, Time{});
  rack.loop.run_until(Time::at(workload.interval * turns_of(workload)));
  result.problem = generator.problem();
  if (result.problem.empty() && result.answers == 0)
    result.problem = "no two answers came, so there is no gap: make `requests` more, or `interval` longer";
  result.events = rack.loop.fired();
  result.packets = rack.trace.packets();
  result.trace_hash = rack.trace.hash();
  return result;
}

}  // namespace sluice::sim
