#include "rack/clients/clover_session.h"

#include <fmt/core.h>

#include <cstdlib>

#include "rack/clients/clover_store.h"
#include "rack/settings/run_directory.h"

namespace sluice::rack {
namespace {

remote::Task<void> join_one(clover::Client& client, clover::Outcome& outcome) { outcome = co_await client.join(); }
remote::Task<void> leave_one(clover::Client& client) { co_await client.leave(); }

}  // namespace

Result<std::unique_ptr<StoreSession>> CloverSession::open(const CloverSessionConfig& config) {
  std::unique_ptr<CloverSession> session(new CloverSession(config));
  if (auto connected = session->connect(); !connected) return tl::unexpected(connected.error());
  if (auto joined = session->join(); !joined) return tl::unexpected(joined.error());
  return std::unique_ptr<StoreSession>(std::move(session));
}

Result<void> CloverSession::connect() {
  const auto snapshot = attach(config_);
  if (!snapshot) return tl::unexpected(snapshot.error());
  metadata_ = std::make_unique<MessageLink>(endpoint().connector(), scheduler());
  loop().add(*metadata_);
  if (snapshot->ready(NodeKind::kMetadata).empty()) {
    if (std::getenv(kTokenVariable) != nullptr)
      return fail(
          fmt::format("no metadata server that this token opens is on the rack in {}: Clover's is the rack's own, for "
                      "operators; FUSEE and Sherman keep their stores in a tenant's regions",
                      config_.directory));
    return fail(fmt::format("no metadata server is on the rack in {}; `sluice rack up` or `sluice metadata` starts one",
                            config_.directory));
  }
  set_nodes(loop().now(), *snapshot);
  endpoint().on_change([this](Time now, const Snapshot& changed) { set_nodes(now, changed); });
  const bool all = run_for(config_.patience, [this] { return metadata_->up() && nodes().up() == nodes().nodes(); });
  if (!all && !metadata_->up()) return not_connected();
  return {};  // memory nodes that do not answer are Clover's to cope with
}

// The first metadata server that is ready, and all memory nodes.
void CloverSession::set_nodes(Time now, const Snapshot& snapshot) {
  remote_nodes().set_nodes(now, snapshot);
  const auto servers = snapshot.ready(NodeKind::kMetadata);
  if (servers.empty()) return metadata_->want(now, std::nullopt);
  metadata_name_ = servers.front()->description.name;
  metadata_->want(now, Link::Peer{wire::Gid::from(servers.front()->ip), servers.front()->description.cm_port});
}

Result<void> CloverSession::join() {
  const Rng rng = Rng(config_.seed).fork("clover");
  std::vector<clover::Outcome> outcomes(config_.clients, clover::Outcome::kUnknown);
  for (std::uint32_t i = 0; i < config_.clients; ++i) {
    clients_.push_back(
        std::make_unique<clover::Client>(remote_nodes().memory(), *metadata_, config_.client, rng.fork(i)));
    scheduler().spawn(join_one(*clients_[i], outcomes[i]));
  }
  if (!run_for(config_.patience, [this] { return scheduler().live() == 0; }))
    return fail("the metadata server does not answer");
  for (std::uint32_t i = 0; i < config_.clients; ++i) {
    if (outcomes[i] != clover::Outcome::kOk)
      return fail(fmt::format("the metadata server does not let us in: {}", to_string(outcomes[i])));
    scheduler().spawn(clients_[i]->maintain());
    offer(std::make_unique<CloverStore>(*clients_[i]));
  }
  return {};
}

CloverSession::~CloverSession() {
  if (!attached()) return;
  if (offers()) {
    for (const auto& client : clients_) scheduler().spawn(leave_one(*client));
    run_for(Duration::seconds(3), [this] { return scheduler().live() == 0; });
  }
  if (metadata_) {
    metadata_->want(loop().now(), std::nullopt);
    loop().remove(*metadata_);
  }
  detach();
}

std::string CloverSession::problems() const {
  std::string lines = StoreSession::problems();
  if (!metadata_->up()) lines += fmt::format("{}{}: {}", lines.empty() ? "" : "\n", metadata_name_, metadata_->why());
  return lines;
}

}  // namespace sluice::rack
