#include "rack/clover_session.h"

#include <fmt/core.h>
#include <unistd.h>

namespace sluice::rack {
namespace {

remote::Task<void> join_one(clover::Client& client, clover::Outcome& outcome) { outcome = co_await client.join(); }
remote::Task<void> leave_one(clover::Client& client) { co_await client.leave(); }

}  // namespace

Result<std::unique_ptr<CloverSession>> CloverSession::open(const CloverSessionConfig& config) {
  std::unique_ptr<CloverSession> session(new CloverSession(config));
  EndpointConfig endpoint;
  endpoint.directory = config.directory;
  endpoint.description = {config.name, NodeKind::kClient, 0, {}, {{"pid", std::to_string(getpid())}}};
  endpoint.port = config.port;
  auto opened = Endpoint::open(endpoint);
  if (!opened) return tl::unexpected(opened.error());
  session->endpoint_ = std::move(*opened);
  if (auto connected = session->connect(); !connected) return tl::unexpected(connected.error());
  if (auto joined = session->join(); !joined) return tl::unexpected(joined.error());
  return session;
}

Result<void> CloverSession::connect() {
  scheduler_ = std::make_unique<remote::Scheduler>();
  coroutines_ = std::make_unique<nic::SchedulerPoll>(*scheduler_);
  nodes_ = std::make_unique<RemoteNodes>(endpoint_->connector(), *scheduler_, config_.nodes);
  metadata_ = std::make_unique<MessageLink>(endpoint_->connector(), *scheduler_);
  loop().add(*nodes_);
  loop().add(*metadata_);
  loop().add(*coroutines_);
  const auto snapshot = endpoint_->directory().nodes();
  if (!snapshot) return tl::unexpected(snapshot.error());
  if (snapshot->ready(NodeKind::kMetadata).empty()) {
    return fail(fmt::format("no metadata server is on the rack in {}; `sluice rack up` or `sluice metadata` starts one",
                            config_.directory));
  }
  set_nodes(loop().now(), *snapshot);
  endpoint_->on_change([this](Time now, const Snapshot& changed) { set_nodes(now, changed); });
  const bool all = run_for(config_.patience, [this] { return metadata_->up() && nodes_->up() == nodes_->nodes(); });
  if (!all && !metadata_->up()) return fail(fmt::format("no connection to {}", problems()));
  return {};  // memory nodes that do not answer are Clover's to cope with
}

// The first metadata server that is ready, and all memory nodes.
void CloverSession::set_nodes(Time now, const Snapshot& snapshot) {
  nodes_->set_nodes(now, snapshot);
  const auto servers = snapshot.ready(NodeKind::kMetadata);
  if (servers.empty()) return metadata_->want(now, std::nullopt);
  metadata_name_ = servers.front()->description.name;
  metadata_->want(now, Link::Peer{wire::Gid::from(servers.front()->ip), servers.front()->description.cm_port});
}

Result<void> CloverSession::join() {
  const Rng rng = Rng(config_.seed).fork("clover");
  std::vector<clover::Outcome> outcomes(config_.clients, clover::Outcome::kUnknown);
  for (std::uint32_t i = 0; i < config_.clients; ++i) {
    clients_.push_back(std::make_unique<clover::Client>(nodes_->memory(), *metadata_, config_.client, rng.fork(i)));
    scheduler_->spawn(join_one(*clients_[i], outcomes[i]));
  }
  if (!run_for(config_.patience, [this] { return scheduler_->live() == 0; }))
    return fail("the metadata server does not answer");
  for (std::uint32_t i = 0; i < config_.clients; ++i) {
    if (outcomes[i] != clover::Outcome::kOk)
      return fail(fmt::format("the metadata server does not let us in: {}", to_string(outcomes[i])));
    scheduler_->spawn(clients_[i]->maintain());
    stores_.push_back(std::make_unique<CloverStore>(*clients_[i]));
  }
  return {};
}

bool CloverSession::run_for(Duration patience, const std::function<bool()>& done) {
  const Time give_up = loop().now() + patience;
  nic::Periodic alarm(Duration::milliseconds(50), [](Time) {});  // so that a sleeping loop looks at the clock
  loop().add(alarm);
  bool fulfilled = false;
  loop().run_until([&] { return (fulfilled = done()) || loop().now() >= give_up; });
  loop().remove(alarm);
  return fulfilled;
}

// The order matters: what is under way must end before the scheduler goes, coroutines before their clients.
CloverSession::~CloverSession() {
  if (!nodes_) return;
  if (!stores_.empty()) {
    for (const auto& client : clients_) scheduler_->spawn(leave_one(*client));
    run_for(Duration::seconds(3), [this] { return scheduler_->live() == 0; });
  }
  endpoint_->on_change({});
  nodes_->set_nodes(loop().now(), {});
  metadata_->want(loop().now(), std::nullopt);
  loop().remove(*coroutines_);
  loop().remove(*nodes_);
  loop().remove(*metadata_);
  run_for(Duration::milliseconds(20), [] { return false; });  // farewells leave
  stores_.clear();
  scheduler_.reset();
  clients_.clear();
}

std::vector<workload::Store*> CloverSession::stores() const {
  std::vector<workload::Store*> out;
  for (const auto& store : stores_) out.push_back(store.get());
  return out;
}

std::string CloverSession::problems() const {
  std::string lines = nodes_->problems();
  if (!metadata_->up()) lines += fmt::format("{}{}: {}", lines.empty() ? "" : "\n", metadata_name_, metadata_->why());
  return lines;
}

}  // namespace sluice::rack
