#include "rack/endpoint/endpoint.h"

#include <fmt/core.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <random>
#include <utility>

#include "base/check.h"
#include "ports/interface_address.h"
#include "ports/open.h"

namespace sluice::rack {

Result<std::unique_ptr<Endpoint>> Endpoint::open(const EndpointConfig& config) {
  const RunDirectory run(config.directory);
  std::unique_ptr<Endpoint> endpoint(new Endpoint(run.directory_address()));
  Endpoint* self = endpoint.get();
  NodeDescription description = config.description;
  if (description.kind == NodeKind::kClient) description.name = run.client_name(description.name);
  Membership::OnChange on_change;
  if (!config.kinds.empty()) {
    on_change = [self](const Snapshot& snapshot) { self->take_soon(snapshot); };
  }
  MembershipConfig lease{
      .lease = config.lease, .on_taken = config.on_taken, .kinds = config.kinds, .on_trouble = config.on_trouble};
  const bool is_client = description.kind == NodeKind::kClient;
  if (!is_client) {
    lease.lease_file = run.lease_file(description.name);
    lease.on_lost = [self] { return self->fence(); };
  }
  const bool ends = !is_client || config.has_successors;
  lease.on_superseded = [self, ends] {
    self->loop_.post([self, ends](Time) {
      self->is_superseded_ = true;
      if (ends) return self->loop_.stop();
      if (!self->unplugged_) self->unplugged_ = self->shard_->unplug(self->loop_);
    });
  };
  auto membership = Membership::join(endpoint->directory_, description, std::move(lease), std::move(on_change));
  if (!membership) return tl::unexpected(membership.error());
  endpoint->membership_ = std::move(*membership);
  // Who offers nothing is ready at once.
  if (is_client) {
    if (auto published = endpoint->publish(description); !published) return tl::unexpected(published.error());
  }

  const std::string port_name = config.port.empty() ? run.switch_port() : config.port;
  auto port = ports::open_port(port_name);
  if (!port) return fail(fmt::format("{}: {}", port_name, port.error().message));
  const auto path_mtu = ports::path_mtu_of_port(port_name);
  if (!path_mtu) return fail(fmt::format("{}: {}", port_name, path_mtu.error().message));
  rc::AdapterConfig adapter;
  adapter.mtu = *path_mtu;
  adapter.mac = endpoint->node().mac;
  adapter.gids = {wire::Gid::from(endpoint->node().ip)};
  adapter.seed = std::uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  adapter.regions = config.regions;
  adapter.first_qpn = config.first_qpn;
  adapter.dcqcn = config.dcqcn;
  adapter.line_rate = config.line_rate;
  adapter.limits.max_reads_in_flight = nic::kReadsInFlight;
  endpoint->shard_ = std::make_unique<nic::Shard>(adapter, std::move(*port));
  endpoint->shard_->attach(endpoint->loop_);
  endpoint->connector_ = std::make_unique<nic::Connector>(endpoint->adapter());
  endpoint->loop_.add(*endpoint->connector_);
  return endpoint;
}

Endpoint::~Endpoint() {
  ending_ = true;
  membership_.reset();
}

Result<void> Endpoint::run() {
  loop_.run();
  if (is_superseded_ && membership_->is_misplaced())
    return fail("the rack has begun anew, and the address of this process may be another's there; start it again");
  if (is_superseded_)
    return fail("stopped for longer than its lease, and another process has taken the name; this one ends");
  return {};
}

// In the membership's thread. A loop that does not turn for a while finds the last one alone.
void Endpoint::take_soon(const Snapshot& snapshot) {
  const std::lock_guard lock(changes_);
  if (!std::exchange(newest_, snapshot)) loop_.post([this](Time now) { take(now); });
}

void Endpoint::take(Time now) {
  std::optional<Snapshot> snapshot;
  {
    const std::lock_guard lock(changes_);
    snapshot.swap(newest_);
  }
  if (on_change_) on_change_(now, *snapshot);
}

// In the membership's thread.
std::optional<NodeDescription> Endpoint::fence() {
  auto told = std::make_shared<std::promise<NodeDescription>>();
  auto answer = told->get_future();
  loop_.post([this, told](Time now) {
    if (on_fence_) published_ = on_fence_(now);
    if (on_fence_ && !published_.name.empty()) membership_->publish_soon(published_);  // before what is said after it
    told->set_value(published_);
  });
  // The loop may have ended.
  while (!ending_) {
    if (answer.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) continue;
    const NodeDescription description = answer.get();
    if (description.name.empty()) break;  // not published yet
    return description;
  }
  return std::nullopt;
}

StopSignals::StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  // A terminal that is closed; unless nobody is to care (nohup). A blocked signal comes also where it is ignored.
  struct sigaction hang_up {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  SLUICE_CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
  descriptor_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  SLUICE_CHECK(descriptor_ >= 0);
}

StopSignals::~StopSignals() { close(descriptor_); }

void StopSignals::stop_on_signal(nic::PollLoop& loop) {
  loop.watch(descriptor_, [this, &loop](Time) {
    signalfd_siginfo info{};
    if (read(descriptor_, &info, sizeof info) == sizeof info) received_ = static_cast<int>(info.ssi_signo);
    loop.stop();
  });
}

}  // namespace sluice::rack
