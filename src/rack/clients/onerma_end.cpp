#include "rack/clients/onerma_end.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "base/check.h"
#include "ports/interface_address.h"
#include "ports/open.h"
#include "rack/directory/sqlite_directory.h"
#include "rack/endpoint/endpoint.h"
#include "rack/endpoint/open_end.h"

namespace sluice::rack {
namespace {

using onerma::Grant;
using onerma::OpKind;
using onerma::Status;

constexpr std::uint64_t kAddress = 0x10'0000;
constexpr remote::NodeId kTarget{1};
constexpr Duration kGiveUp = Duration::seconds(5);

std::uint8_t pattern(std::uint64_t offset) { return static_cast<std::uint8_t>(offset * 7 + 3); }

}  // namespace

onerma::NodeConfig real_time_node(wire::Ipv4Address ip) {
  onerma::NodeConfig config;
  config.mac = Subnet::mac_of(ip);
  config.ip = ip;
  config.boot = onerma::Boot(std::random_device{}() & 0xFF'FFFF);
  config.window_bytes = 1u << 20;
  config.slots = {
      .slots = 1024, .dispatch_timeout = Duration::milliseconds(50), .timeout = Duration::milliseconds(100)};
  config.target.pull_timeout = Duration::milliseconds(50);  // less than that: a thread may be late by some of it
  config.target.nack_bytes = 4u << 20;
  config.target.pulls = 1024;
  config.target.queue = 16'384;  // answers to some milliseconds of small reads in half of it
  return config;
}

Result<onerma::RemoteOnerma::Parameters> real_time_client(const std::string& port) {
  const auto most = ports::path_mtu_of_port(port);  // of RoCE, whose headers are no shorter than ours
  if (!most) return tl::unexpected(most.error());
  onerma::RemoteOnerma::Parameters p;
  p.piece = std::min(*most, onerma::kMaxOp);
  p.repeat_writes = true;
  p.executor.base_rtt = Duration::microseconds(50);
  p.executor.local_target = Duration::milliseconds(10);
  p.executor.remote_target = Duration::milliseconds(10);
  p.executor.write_target = Duration::milliseconds(20);
  p.executor.first_local = 256 * onerma::CongestionWindow::kOne;
  p.executor.first_remote = 64 * onerma::CongestionWindow::kOne;
  p.executor.pacing_slack = Duration::milliseconds(1);
  p.give_up = kGiveUp;
  return p;
}

onerma::Algorithm1Parameters real_time_algorithm() { return {.smallest = onerma::CongestionWindow::kOne}; }

std::uint64_t draw_first_number(std::uint64_t clients) {
  SLUICE_CHECK(clients >= 1);
  std::random_device chance;
  return std::uniform_int_distribution<std::uint64_t>(1, kMostNumber - std::min(clients, kMostNumber) + 1)(chance);
}

wire::Ipv4Address address_of_client(std::uint64_t number) {
  return {static_cast<std::uint32_t>(0x0A4D'8001u + (number - 1) % kMostNumber)};
}

Result<void> serve_node(onerma::Node& node, const std::string& port, bool listen, nic::PollLoop& loop,
                        const std::function<Result<void>()>& listening, nic::Pollable* behind) {
  std::unique_ptr<port::Listener> listener;
  Result<void> good;
  const auto said = [&] {
    good = listening();
    if (!good) loop.stop();
  };
  auto opened = open_end(port, listen, loop, said, listener);
  if (!good) return good;
  if (!opened && loop.stopping()) return {};
  if (!opened) return tl::unexpected(opened.error());
  nic::MachinePoll<onerma::Node> shard(node, std::move(*opened));
  shard.attach(loop);
  if (behind != nullptr) loop.add(*behind);
  loop.run();
  return {};
}

Result<void> serve_onerma(const OnermaTargetEnd& end, const std::function<void()>& ready, const TargetEnded& ended) {
  StopSignals signals;
  nic::PollLoop loop;
  signals.stop_on_signal(loop);
  onerma::NodeConfig config = real_time_node(end.ip);
  config.allow_plain = end.allow_plain;
  onerma::Node node(config);
  std::vector<std::uint8_t> memory(end.memory);
  for (std::uint64_t i = 0; i < memory.size(); ++i) memory[i] = pattern(i);
  const auto region = node.regions().add(memory, kAddress, memory::kAllAccess, fresh_onerma_key());
  if (!region) return tl::unexpected(region.error());
  const onerma::Rights rights =
      onerma::kMayRead | onerma::kMayWrite | (end.allow_rekey ? onerma::kMayRekey : onerma::Rights{});
  std::vector<ClientGrants> clients;
  const std::uint64_t first = draw_first_number(end.clients);
  for (std::uint64_t i = 0; i < end.clients; ++i) {
    const onerma::InitiatorId initiator(first + i);
    const Grant grant = *node.regions().grant(*region, initiator, rights);
    clients.push_back({initiator, {{grant, kAddress, end.memory}}});
  }
  // Not before the port is ours: the file may be that of a target which has it.
  ports::Descriptor owned;
  const auto listening = [&]() -> Result<void> {
    auto own = own_grants(end.grants, kOnermaTarget);
    if (!own) return tl::unexpected(own.error());
    owned = std::move(*own);
    auto written = write_grants(end.grants, node.address(), clients);
    if (written) ready();
    return written;
  };
  auto served = serve_node(node, end.port, end.listen, loop, listening);
  if (served) ended(node.target().counters());
  return served;
}

// Turns the client library behind the node.
namespace {
class ClientPoll final : public nic::Pollable {
 public:
  explicit ClientPoll(onerma::RemoteOnerma& remote) : remote_(remote) {}
  std::size_t poll(Time now) override { return remote_.poll(now); }
  Time next_deadline() const override { return remote_.next_deadline(); }

 private:
  onerma::RemoteOnerma& remote_;
};
}  // namespace

std::unique_ptr<nic::Pollable> make_client_poll(onerma::RemoteOnerma& remote) {
  return std::make_unique<ClientPoll>(remote);
}

Result<std::unique_ptr<OnermaClient>> OnermaClient::open(const OnermaClientEnd& end) {
  const auto looked = look_at_grants(end.grants, kOnermaTarget);
  if (!looked) return tl::unexpected(looked.error());
  auto port = ports::open_port(end.port, ports::Absent::kWait);
  if (!port) return tl::unexpected(port.error());
  const auto parameters = real_time_client(end.port);
  if (!parameters) return tl::unexpected(parameters.error());
  auto taken = take_grants(end.grants, kOnermaTarget);
  if (!taken) return tl::unexpected(taken.error());
  std::unique_ptr<OnermaClient> client(new OnermaClient);
  client->grants_ = std::move(*taken);
  const GrantedRegion& memory = client->grants_->mine.regions.front();
  if (memory.length < 4 * std::uint64_t{kMaxBytes}) return fail("the target's memory is smaller than 4 MiB");
  onerma::NodeConfig config = real_time_node(address_of_client(client->grants_->mine.initiator.value));
  config.protection = client->protection_ = end.protection;
  client->node_ = std::make_unique<onerma::Node>(config);
  client->shard_ = std::make_unique<nic::MachinePoll<onerma::Node>>(*client->node_, std::move(*port));
  client->shard_->attach(client->loop_);
  client->remote_ = std::make_unique<onerma::RemoteOnerma>(client->scheduler_, client->node_->initiator(),
                                                           client->policy_, *parameters);
  client->remote_poll_ = make_client_poll(*client->remote_);
  client->loop_.add(*client->remote_poll_);
  client->remote_->add_node(kTarget, client->grants_->target);
  client->remote_->add_grant(kTarget, memory.grant);
  client->base_ = {kTarget, remote::RegionKey(memory.grant.region.value), memory.address};
  client->length_ = memory.length;
  client->local_.resize(kMaxBytes);
  return client;
}

OnermaClient::~OnermaClient() {
  const bool shown = shard_ && shard_->port().counters().tx_frames != 0;
  if (grants_ && !shown) give_back(*grants_);
}

// A try without an answer, or whose data came too late or twice, may have changed the key: the next one is then refused.
RekeyTry judge_rekey(Status status, const RekeySoFar& so_far) {
  if (status == Status::kOk || so_far.in_use) return RekeyTry::kDone;
  if (status == Status::kBadKey && so_far.tries > 1) return RekeyTry::kDone;
  const bool nobody_knows = status == Status::kNack || status == Status::kDispatchTimeout ||
                            status == Status::kTimeout || status == Status::kReplay;
  return nobody_knows && !so_far.time_is_over ? RekeyTry::kAgain : RekeyTry::kFailed;
}

// Changes the region's key again and again, with a key of its own making, which it uses next: control plane and user in one.
class OnermaClient::Rekeys {
 public:
  Rekeys(OnermaClient& client, Duration every) : client_(client), every_(every) {}

  void poll(Time now) {
    if (state_ == State::kIdle && every_ != Duration{} && now - begun_ >= every_) begin(now);
    if (state_ == State::kToSend) send(now);
  }
  void operation_ended(Time now) {
    pause_ = std::max(pause_, now - last_);
    last_ = now;
    if (state_ != State::kAnswered || present().generation != next_) return;
    pauses_.record(pause_.nanoseconds());
    state_ = State::kIdle;
  }
  // A change that is under way may end; it is not tried again.
  void stop() {
    stopped_ = true;
    if (state_ == State::kToSend) state_ = State::kIdle;
  }
  bool under_way() const { return state_ == State::kToSend || state_ == State::kSent; }
  const std::string& failure() const { return failure_; }
  const Histogram& pauses() const { return pauses_; }

 private:
  enum class State : std::uint8_t { kIdle, kToSend, kSent, kAnswered };

  const Grant& present() const { return client_.remote_->grant(kTarget, client_.region()); }
  void begin(Time now) {
    const Grant& grant = present();
    key_ = fresh_onerma_key();
    next_ = onerma::Generation(grant.generation.value + 1);
    client_.remote_->announce_grant(
        kTarget, onerma::make_grant(onerma::RegionKey(key_), grant.region, next_, grant.initiator, grant.rights));
    begun_ = now;
    last_ = client_.loop_.now();  // keys are drawn before they are to be changed
    pause_ = {};
    tries_ = 0;
    state_ = State::kToSend;
  }
  void send(Time now) {
    ++tries_;
    state_ = State::kSent;
    client_.remote_->rekey(now, kTarget, client_.region(), key_, [this](Time at, Status status) { ended(at, status); });
  }
  void ended(Time now, Status status) {
    const RekeyTry came_to = judge_rekey(status, {.tries = tries_,
                                                  .in_use = present().generation == next_,
                                                  .time_is_over = stopped_ || now - begun_ >= kGiveUp});
    state_ = came_to == RekeyTry::kDone    ? State::kAnswered
             : came_to == RekeyTry::kAgain ? State::kToSend
                                           : State::kIdle;
    if (came_to == RekeyTry::kFailed)
      failure_ = fmt::format("the key could not be changed: {}{}", to_string(status),
                             status == Status::kRightMissing ? "; was the target started with --allow-rekey?" : "");
  }

  OnermaClient& client_;
  Duration every_;
  State state_ = State::kIdle;
  bool stopped_ = false;
  onerma::Secret key_;
  onerma::Generation next_{};
  int tries_ = 0;
  Time begun_;
  Time last_;  // that an operation ended, or that this Rekey began
  Duration pause_{};
  Histogram pauses_;
  std::string failure_;
};

// Keeps `depth` operations under way.
class OnermaClient::Driver final : public nic::Pollable {
 public:
  Driver(OnermaClient& client, const OnermaPoint& point)
      : client_(client), point_(point), works_(point.depth), rekeys_(client, point.rekey_every) {
    for (Work& work : works_) work.driver = this;
  }

  std::size_t poll(Time now) override {
    if (running(now) || rekeys_.under_way()) rekeys_.poll(now);
    if (begun_) return 0;
    begun_ = true;
    start_ = end_ = now;
    for (Work& work : works_) submit(work);
    return works_.size();
  }
  bool done() const { return begun_ && under_way_ == 0 && !rekeys_.under_way(); }
  const std::string& failure() const { return failure_.empty() ? rekeys_.failure() : failure_; }
  OnermaMeasured measured() const {
    OnermaMeasured m{.operations = completed_, .latency_ns = latency_, .pause_ns = rekeys_.pauses()};
    const std::int64_t ns = (end_ - start_).nanoseconds();
    if (ns > 0) m.rate = static_cast<double>(completed_) * 1e9 / static_cast<double>(ns);
    return m;
  }

 private:
  struct Work {
    Driver* driver = nullptr;
    remote::Operation operation;
    Time submitted;
  };

  void submit(Work& work) {
    const MutableBytes local = MutableBytes(client_.local_).first(point_.bytes);
    work.operation = point_.op == OpKind::kRead ? remote::read_operation(client_.base_, local)
                                                : remote::write_operation(client_.base_, local);
    work.operation.context = &work;
    work.operation.on_complete = [](remote::Operation& operation) {
      auto& self = *static_cast<Work*>(operation.context);
      self.driver->take(self);
    };
    work.submitted = client_.loop_.now();
    ++under_way_;
    client_.remote_->submit(work.operation);
  }
  void take(Work& work) {
    const Time now = client_.loop_.now();
    --under_way_;
    if (work.operation.status != remote::Status::kOk) {
      failure_ = std::string(to_string(work.operation.status));
      rekeys_.stop();
    }
    latency_.record((now - work.submitted).nanoseconds());
    ++completed_;
    end_ = now;
    rekeys_.operation_ended(now);
    if (running(now)) submit(work);
  }
  bool running(Time now) const {
    return begun_ && failure().empty() && now - start_ < point_.duration && !client_.loop_.stopping();
  }

  OnermaClient& client_;
  OnermaPoint point_;
  std::vector<Work> works_;
  Rekeys rekeys_;
  std::uint32_t under_way_ = 0;
  std::uint64_t completed_ = 0;
  Histogram latency_;
  Time start_;
  Time end_;
  bool begun_ = false;
  std::string failure_;
};

Result<OnermaMeasured> OnermaClient::measure(const OnermaPoint& point) {
  if (auto sound = verify(point.bytes); !sound) return tl::unexpected(sound.error());
  const std::uint64_t retries = remote_->counters().retries;
  Driver driver(*this, point);
  loop_.add(driver);
  loop_.run_until([&] { return driver.done(); });
  loop_.remove(driver);
  if (!driver.failure().empty()) return fail(fmt::format("an operation failed: {}", driver.failure()));
  OnermaMeasured measured = driver.measured();
  measured.retries = remote_->counters().retries - retries;
  if (auto sound = verify(point.bytes); !sound) return tl::unexpected(sound.error());
  return measured;
}

Result<void> OnermaClient::run(remote::Operation operation) {
  bool done = false;
  operation.context = &done;
  operation.on_complete = [](remote::Operation& o) { *static_cast<bool*>(o.context) = true; };
  remote_->submit(operation);
  loop_.run_until([&] { return done; });
  if (!done) return fail("interrupted");
  if (operation.status == remote::Status::kOk) return {};
  return fail(
      fmt::format("no answer as it should be over {}: {}; is the target there, and are these its grants?{}",
                  port_name(), to_string(operation.status),
                  protection_ == onerma::Protection::kPlain ? " Does it obey plain clients (--allow-plain)?" : ""));
}

// What nobody has written is as the target made it; what is written is read back. Where measured operations do not come.
Result<void> OnermaClient::verify(std::uint32_t bytes) {
  std::vector<std::uint8_t> there(std::max<std::uint32_t>(bytes, 8));
  std::vector<std::uint8_t> back(there.size());
  if (auto read = run(remote::read_operation(base_ + kMaxBytes, back)); !read) return read;
  for (std::size_t i = 0; i < back.size(); ++i) {
    if (back[i] != pattern(kMaxBytes + i)) return fail("a read brought other bytes than the target has");
  }
  for (std::size_t i = 0; i < there.size(); ++i) there[i] = static_cast<std::uint8_t>(i * 31 + bytes);
  if (auto wrote = run(remote::write_operation(base_ + 2 * std::uint64_t{kMaxBytes}, there)); !wrote) return wrote;
  if (auto read = run(remote::read_operation(base_ + 2 * std::uint64_t{kMaxBytes}, back)); !read) return read;
  return back == there ? Result<void>() : fail("bytes did not arrive as they were sent");
}

}  // namespace sluice::rack
