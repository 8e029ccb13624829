#include "rack/clients/verbs_bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "nic/run_for.h"
#include "ports/open.h"
#include "rack/directory/sqlite_directory.h"
#include "rack/endpoint/endpoint.h"
#include "rack/endpoint/memory_node.h"
#include "rack/endpoint/open_end.h"

namespace sluice::rack {
namespace {

using rc::SendOp;

constexpr std::uint16_t kPort = 7471;
constexpr std::uint64_t kRegion = 16u << 20;
constexpr std::size_t kGreeting = 12;  // address and key
constexpr std::uint32_t kReceives = 2048;
constexpr std::uint32_t kReceiveBytes = 4096;

// What the peer's memory holds before anybody writes to it.
std::uint8_t pattern(std::uint64_t offset) { return static_cast<std::uint8_t>(offset * 7 + 3); }

// Keeps receives posted for SENDs.
class Receiver final : public nic::Pollable {
 public:
  explicit Receiver(rc::Adapter& adapter)
      : adapter_(adapter),
        completions_(adapter.create_completion_queue(2 * kReceives)),
        queue_(adapter.create_shared_receive_queue(adapter.create_domain(), kReceives, 1)),
        buffers_(std::size_t{kReceives} * kReceiveBytes) {
    for (std::uint64_t slot = 0; slot < kReceives; ++slot) post(slot);
  }
  std::size_t poll(Time) override {
    std::array<rc::Completion, 32> burst;
    const std::size_t n = completions_->poll(burst);
    for (std::size_t i = 0; i < n; ++i) {
      if (burst[i].status == rc::CompletionStatus::kSuccess) post(burst[i].id);
    }
    return n;
  }
  rc::CompletionQueue* completions() { return completions_; }
  rc::SharedReceiveQueue* queue() { return queue_; }

 private:
  void post(std::uint64_t slot) {
    const rc::Sge sge = rc::Sge::of(ByteView(buffers_).subspan(slot * kReceiveBytes, kReceiveBytes));
    adapter_.post_receive(*queue_, {.id = slot, .sges = {&sge, 1}});
  }
  rc::Adapter& adapter_;
  rc::CompletionQueue* completions_;
  rc::SharedReceiveQueue* queue_;
  std::vector<std::uint8_t> buffers_;
};

}  // namespace

rc::AdapterConfig bench_adapter_config(wire::Ipv4Address ip) {
  rc::AdapterConfig config;
  config.mac = Subnet::mac_of(ip);
  config.gids = {wire::Gid::from(ip)};
  config.seed = ip.value;
  config.limits.max_reads_in_flight = nic::kReadsInFlight;
  return config;
}

Result<void> serve_verbs(const VerbsEnd& end, const std::function<void()>& ready) {
  StopSignals signals;
  nic::PollLoop loop;
  signals.stop_on_signal(loop);
  std::unique_ptr<port::Listener> listener;
  auto port = open_end(end.port, end.listen, loop, ready, listener);
  if (!port) return tl::unexpected(port.error());
  nic::Shard shard(bench_adapter_config(end.ip), std::move(*port));
  shard.attach(loop);
  nic::Connector connector(shard.adapter());
  loop.add(connector);
  Receiver receiver(shard.adapter());
  loop.add(receiver);

  std::vector<std::uint8_t> memory(kRegion);
  for (std::uint64_t i = 0; i < kRegion; ++i) memory[i] = pattern(i);
  const memory::PdId domain = shard.adapter().create_domain();
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const auto key =
      shard.adapter().regions().add({.pd = domain, .bytes = memory, .address = address, .access = memory::kAllAccess});
  if (!key) return tl::unexpected(key.error());
  std::vector<std::uint8_t> greeting(kGreeting);
  store_be<std::uint64_t>(greeting.data(), address);
  store_be<std::uint32_t>(greeting.data() + 8, key->value);
  const rc::QueuePairConfig pair{.pd = domain,
                                 .send_completions = receiver.completions(),
                                 .receive_completions = receiver.completions(),
                                 .shared_receives = receiver.queue(),
                                 .send_depth = 1,
                                 .receive_depth = 0};
  Acceptor acceptor(connector, pair, 64, {.on_made = {}, .on_gone = {}, .greeting = greeting});
  if (auto listening = acceptor.listen(kPort); !listening) return listening;
  loop.run();
  return {};
}

Result<std::unique_ptr<VerbsClient>> VerbsClient::open(const VerbsEnd& end, wire::Ipv4Address peer, Duration patience) {
  std::unique_ptr<VerbsClient> client(new VerbsClient);
  auto port = ports::open_port(end.port, ports::Absent::kWait);
  if (!port) return tl::unexpected(port.error());
  client->shard_ = std::make_unique<nic::Shard>(bench_adapter_config(end.ip), std::move(*port));
  client->shard_->attach(client->loop_);
  client->connector_ = std::make_unique<nic::Connector>(client->shard_->adapter());
  client->loop_.add(*client->connector_);
  client->local_.resize(std::size_t{2} * kMaxBytes);
  if (auto connected = client->connect(peer, patience); !connected) return tl::unexpected(connected.error());
  return client;
}

VerbsClient::~VerbsClient() = default;

bool VerbsClient::run_for(Duration patience, const std::function<bool()>& done) {
  return nic::run_for(loop_, patience, done);
}

Result<void> VerbsClient::connect(wire::Ipv4Address peer, Duration patience) {
  rc::Adapter& adapter = shard_->adapter();
  completions_ = adapter.create_completion_queue(2 * kMaxDepth);
  auto made = adapter.create_queue_pair({.pd = adapter.create_domain(),
                                         .send_completions = completions_,
                                         .receive_completions = completions_,
                                         .send_depth = kMaxDepth,
                                         .receive_depth = 1});
  if (!made) return tl::unexpected(made.error());
  pair_ = *made;
  rc::ConnectionParameters parameters;
  parameters.pair = pair_;
  parameters.responder_resources = nic::kReadsInFlight;
  parameters.initiator_depth = nic::kReadsInFlight;
  auto id = connector_->connect(
      loop_.now(), wire::Gid::from(peer), kPort, parameters, [this](Time, const rc::ConnectionEvent& event) {
        up_ = event.kind == rc::ConnectionEvent::Kind::kEstablished && event.private_data.size() >= kGreeting;
        if (!up_) {
          why_ = "the peer does not take the connection";
          return;
        }
        remote_address_ = load_be<std::uint64_t>(event.private_data.data());
        remote_key_ = memory::Key(load_be<std::uint32_t>(event.private_data.data() + 8));
      });
  if (!id) return tl::unexpected(id.error());
  if (run_for(patience, [this] { return up_ || !why_.empty(); }) && up_) return {};
  return fail(why_.empty() ? fmt::format("no answer over {} within {} ms", port_name(), patience.milliseconds())
                           : why_);
}

// Keeps `depth` operations in flight, as a pollable of the loop.
class VerbsClient::Driver final : public nic::Pollable {
 public:
  Driver(VerbsClient& client, const VerbsPoint& point) : client_(client), point_(point), posted_at_(point.depth) {}

  std::size_t poll(Time now) override {
    std::array<rc::Completion, 64> burst;
    const std::size_t n = client_.completions_->poll(burst);
    const Time then = n == 0 ? now : client_.loop_.now();
    for (std::size_t i = 0; i < n; ++i) take(burst[i], then);
    if (begun_ == Time()) begun_ = end_ = now;
    if (failed_ || now - begun_ >= point_.duration) return n;
    while (in_flight_ < point_.depth && post(now)) ++in_flight_;
    return n;
  }

  bool done() const {
    return begun_ != Time() && (failed_ || in_flight_ == 0) &&
           (failed_ || end_ - begun_ >= point_.duration || stalled());
  }
  const std::string& failure() const { return failure_; }
  VerbsMeasured measured() const {
    VerbsMeasured m{completed_, 0, latency_};
    const std::int64_t ns = (end_ - begun_).nanoseconds();
    if (ns > 0) m.rate = static_cast<double>(completed_) * 1e9 / static_cast<double>(ns);
    return m;
  }

 private:
  bool stalled() const { return in_flight_ == 0 && client_.loop_.now() - begun_ >= point_.duration; }

  void take(const rc::Completion& completion, Time now) {
    --in_flight_;
    if (completion.status != rc::CompletionStatus::kSuccess) {
      failed_ = true;
      failure_ = std::string(to_string(completion.status));
      return;
    }
    latency_.record((now - posted_at_[completion.id]).nanoseconds());
    free_.push_back(completion.id);
    ++completed_;
    end_ = now;
  }

  bool post(Time now) {
    const std::uint64_t slot = free_.empty() ? next_slot_++ : free_.back();
    if (!free_.empty()) free_.pop_back();
    const bool atomic = point_.op == SendOp::kCompareAndSwap || point_.op == SendOp::kFetchAndAdd;
    const rc::Sge sge = rc::Sge::of(ByteView(client_.local_).first(atomic ? 8 : point_.bytes));
    rc::SendRequest request{.id = slot, .op = point_.op, .sges = {&sge, 1}};
    request.remote_address = client_.remote_address_;
    request.remote_key = client_.remote_key_;
    request.compare = 0;
    request.swap_or_add = point_.op == SendOp::kFetchAndAdd ? 1 : 0;
    posted_at_[slot] = point_.depth == 1 ? client_.loop_.now() : now;
    const rc::PostError error = client_.shard_->adapter().post_send(now, *client_.pair_, request);
    if (error == rc::PostError::kNone) return true;
    failed_ = true;
    failure_ = std::string(to_string(error));
    return false;
  }

  VerbsClient& client_;
  VerbsPoint point_;
  std::vector<Time> posted_at_;
  std::vector<std::uint64_t> free_;
  std::uint64_t next_slot_ = 0;
  std::uint32_t in_flight_ = 0;
  std::uint64_t completed_ = 0;
  Histogram latency_;
  Time begun_;
  Time end_;
  bool failed_ = false;
  std::string failure_;
};

Result<VerbsMeasured> VerbsClient::measure(const VerbsPoint& point) {
  if (auto sound = verify(point); !sound) return tl::unexpected(sound.error());
  Driver driver(*this, point);
  loop_.add(driver);
  const bool done = run_for(point.duration + Duration::seconds(10), [&] { return driver.done(); });
  loop_.remove(driver);
  if (!driver.failure().empty()) return fail(fmt::format("an operation failed: {}", driver.failure()));
  if (!done) return fail("operations do not complete");
  if (auto sound = verify(point); !sound) return tl::unexpected(sound.error());
  return driver.measured();
}

// Does one operation of this kind and looks at what it did, by reading where it does not read itself.
Result<void> VerbsClient::verify(const VerbsPoint& point) {
  const auto once = [&](SendOp op, MutableBytes bytes, std::uint64_t offset, std::uint64_t operand) {
    const rc::Sge sge = rc::Sge::of(bytes);
    rc::SendRequest request{.op = op, .sges = {&sge, 1}};
    request.remote_address = remote_address_ + offset;
    request.remote_key = remote_key_;
    request.swap_or_add = operand;
    std::array<rc::Completion, 1> completion;
    const bool posted = shard_->adapter().post_send(loop_.now(), *pair_, request) == rc::PostError::kNone;
    return posted && run_for(Duration::seconds(10), [&] { return completions_->poll(completion) == 1; }) &&
           completion[0].status == rc::CompletionStatus::kSuccess;
  };
  constexpr std::uint64_t kFar = kRegion / 2;  // measured operations do not come here
  std::vector<std::uint8_t> bytes(std::max<std::uint32_t>(point.bytes, 8));
  const auto wrong = [&] { return fail(fmt::format("{} bytes did not arrive as they were sent", point.bytes)); };
  switch (point.op) {
    case SendOp::kRead:
      if (!once(SendOp::kRead, bytes, kFar + kMaxBytes, 0)) return fail("a READ failed");
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] != pattern(kFar + kMaxBytes + i)) return wrong();
      }
      return {};
    case SendOp::kWrite: {
      std::vector<std::uint8_t> back(bytes.size());
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 + point.depth);
      if (!once(SendOp::kWrite, bytes, kFar, 0) || !once(SendOp::kRead, back, kFar, 0))
        return fail("a WRITE or READ failed");
      return back == bytes ? Result<void>() : wrong();
    }
    case SendOp::kFetchAndAdd:
    case SendOp::kCompareAndSwap: {
      std::array<std::uint8_t, 8> before{};
      std::array<std::uint8_t, 8> after{};
      const std::uint64_t at = kFar + 2 * kMaxBytes;
      if (!once(SendOp::kFetchAndAdd, before, at, 5) || !once(SendOp::kFetchAndAdd, after, at, 0))
        return fail("an atomic failed");
      return load_le<std::uint64_t>(after.data()) == load_le<std::uint64_t>(before.data()) + 5 ? Result<void>()
                                                                                               : wrong();
    }
    default: return {};
  }
}

}  // namespace sluice::rack
