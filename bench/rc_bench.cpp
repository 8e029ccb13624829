// The state machines alone: requester plus responder, no port between but two arrays.
#include <benchmark/benchmark.h>

#include <array>

#include "rc/adapter.h"

namespace sluice::rc {
namespace {

// A sink that keeps frames in place and hands them to the peer.
class ArraySink final : public port::FrameSink {
 public:
  static constexpr std::size_t kFrames = 512;
  std::uint8_t* reserve(std::size_t) override { return count_ == kFrames ? nullptr : frames_[count_].data(); }
  void commit(std::size_t length) override { lengths_[count_++] = static_cast<std::uint32_t>(length); }
  void deliver(Time now, Adapter& to) {
    for (std::size_t i = 0; i < count_; ++i) to.on_frame(now, {frames_[i].data(), lengths_[i]});
    count_ = 0;
  }

 private:
  std::size_t count_ = 0;
  std::array<std::uint32_t, kFrames> lengths_{};
  std::vector<std::array<std::uint8_t, port::kMaxFrame>> frames_ =
      std::vector<std::array<std::uint8_t, port::kMaxFrame>>(kFrames);
};

struct World {
  World() {
    a = make(1);
    b = make(2);
    pd_b = b->create_domain();
    cq_a = a->create_completion_queue(1024);
    cq_b = b->create_completion_queue(1024);
    qp_a = a->create_queue_pair(
                {.pd = a->create_domain(), .send_completions = cq_a, .receive_completions = cq_a, .send_depth = 256})
               .value();
    qp_b = b->create_queue_pair({.pd = pd_b, .send_completions = cq_b, .receive_completions = cq_b}).value();
    ready(*a, *qp_a, *b, *qp_b);
    ready(*b, *qp_b, *a, *qp_a);
    key = b->regions().add({.pd = pd_b, .bytes = memory, .address = 0x1000, .access = memory::kAllAccess}).value();
  }
  static std::unique_ptr<Adapter> make(std::uint8_t n) {
    AdapterConfig config;
    config.mac = wire::MacAddress{{2, 0, 0, 0, 0, n}};
    config.gids = {wire::Gid::from(wire::Ipv4Address{0x0A000000u + n})};
    return std::make_unique<Adapter>(config);
  }
  static void ready(Adapter& adapter, QueuePair& pair, const Adapter& other, const QueuePair& peer) {
    (void)adapter.modify(Time(), pair, {.state = QpState::kInit, .access = memory::kAllAccess});
    (void)adapter.modify(Time(), pair,
                         {.state = QpState::kReadyToReceive,
                          .remote_gid = other.config().gids[0],
                          .remote_mac = other.config().mac,
                          .remote_qpn = peer.qpn(),
                          .path_mtu = 4096,
                          .receive_psn = Psn(1)});
    (void)adapter.modify(Time(), pair, {.state = QpState::kReadyToSend, .send_psn = Psn(1)});
  }
  void exchange() {
    now = now + Duration::nanoseconds(100);
    while (a->poll_transmit(now, to_b)) {
    }
    to_b.deliver(now, *b);
    while (b->poll_transmit(now, to_a)) {
    }
    to_a.deliver(now, *a);
  }

  std::unique_ptr<Adapter> a, b;
  memory::PdId pd_b{};
  CompletionQueue* cq_a = nullptr;
  CompletionQueue* cq_b = nullptr;
  QueuePair* qp_a = nullptr;
  QueuePair* qp_b = nullptr;
  std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(1 << 20);
  memory::Key key{};
  ArraySink to_a, to_b;
  Time now;
};

void run(benchmark::State& state, SendOp op) {
  World w;
  const auto depth = static_cast<std::uint32_t>(state.range(0));
  const auto size = static_cast<std::size_t>(state.range(1));
  std::vector<std::uint8_t> local(size);
  const Sge sge = Sge::of(local);
  const SendRequest request{.op = op, .sges = {&sge, 1}, .remote_address = 0x1000, .remote_key = w.key};
  Completion done[256];
  std::uint64_t operations = 0;
  for (auto _ : state) {
    for (std::uint32_t i = 0; i < depth; ++i) w.a->post_send(w.now, *w.qp_a, request);
    std::size_t n = 0;
    while (n < depth) {
      w.exchange();
      n += w.cq_a->poll(done);
    }
    operations += depth;
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(operations));
  if (done[0].status != CompletionStatus::kSuccess) state.SkipWithError("an operation failed");
}

void arguments(benchmark::internal::Benchmark* b) {
  for (const int depth : {1, 16, 64}) b->Args({depth, 8});
  b->Args({16, 4096});
  b->ArgNames({"depth", "bytes"});
}
BENCHMARK_CAPTURE(run, write, SendOp::kWrite)->Apply(arguments);
BENCHMARK_CAPTURE(run, read, SendOp::kRead)->Apply(arguments);
BENCHMARK_CAPTURE(run, cas, SendOp::kCompareAndSwap)
    ->Args({1, 8})
    ->Args({16, 8})
    ->Args({64, 8})
    ->ArgNames({"depth", "bytes"});

}  // namespace
}  // namespace sluice::rc
