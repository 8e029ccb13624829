#include "rack/clients/cache_end.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "kvcache/server.h"
#include "ports/open.h"
#include "rack/endpoint/endpoint.h"

namespace sluice::rack {
namespace {

constexpr std::uint64_t kTable = 0x10'0000;
constexpr std::uint64_t kMailbox = 0x4000'0000'0000;  // each at this address of a region of its own

// Of one operation, at both ends: what a client has given up does not come to its mailbox later.
constexpr Duration kTimeout = CacheClientEnd::kLeastPatience;

constexpr std::uint64_t kBesideValue = kvcache::kMailEntry + kvcache::kEntryHeader + kvcache::kMaxKey;  // in a mailbox

}  // namespace

Result<void> serve_cache(const CacheReplicaEnd& end, const std::function<void()>& ready) {
  StopSignals signals;
  nic::PollLoop loop;
  signals.stop_on_signal(loop);
  onerma::NodeConfig config = real_time_node(end.ip);
  config.target.pull_timeout = kTimeout / 2;
  onerma::Node node(config);
  std::vector<std::uint8_t> table(end.memory);
  const auto geometry = kvcache::Geometry::fitting(end.memory, end.entry_bytes);
  std::random_device chance;
  kvcache::Server server(table, geometry, std::uint64_t{chance()} << 32 | chance());
  const auto region = node.regions().add(table, kTable, memory::kRemoteRead, fresh_onerma_key());
  if (!region) return tl::unexpected(region.error());
  std::vector<std::vector<std::uint8_t>> mailboxes(end.clients);
  std::vector<ClientGrants> clients;
  const std::uint64_t first = draw_first_number(end.clients);
  for (std::uint64_t i = 0; i < end.clients; ++i) {
    mailboxes[i].resize(kBesideValue + end.max_value);
    server.add_mailbox(mailboxes[i]);
    const auto mailbox = node.regions().add(mailboxes[i], kMailbox, memory::kAllAccess, fresh_onerma_key());
    if (!mailbox) return tl::unexpected(mailbox.error());
    const onerma::InitiatorId initiator(first + i);
    clients.push_back({initiator,
                       {{*node.regions().grant(*region, initiator, onerma::kMayRead), kTable, end.memory},
                        {*node.regions().grant(*mailbox, initiator, onerma::kMayRead | onerma::kMayWrite), kMailbox,
                         mailboxes[i].size()}}});
  }
  // Behind the node: what has just come is applied, and its answer can be read, in the same turn.
  class Mail final : public nic::Pollable {
   public:
    explicit Mail(kvcache::Server& s) : server_(s) {}
    std::size_t poll(Time) override { return server_.poll(); }

   private:
    kvcache::Server& server_;
  } mail(server);
  ports::Descriptor owned;
  const auto listening = [&]() -> Result<void> {  // not before: the file may be that of a replica which has the port
    auto own = own_grants(end.grants, kCacheReplica);
    if (!own) return tl::unexpected(own.error());
    owned = std::move(*own);
    auto written = write_grants(end.grants, node.address(), clients);
    if (written) ready();
    return written;
  };
  return serve_node(node, end.port, end.listen, loop, listening, &mail);
}

namespace {

std::uint64_t most_value(const TakenGrants& one) {
  return std::min(one.mine.regions[1].length - kBesideValue, CacheReplicaEnd::kMostValue);
}

Result<void> check_is_cache(const TakenGrants& one) {
  if (one.mine.regions.size() == 2 && one.mine.regions[1].length >= kBesideValue &&
      one.mine.initiator.value <= kMostNumber)
    return {};
  return fail(fmt::format("{} gives no cache: start `{}`", one.path, kCacheReplica.command));
}

// All that can be said before a grant is taken.
Result<void> check_grants(const CacheClientEnd& end) {
  std::vector<TakenGrants> all;
  std::uint64_t most = 0;
  for (const std::string& path : end.grants) {
    auto one = look_at_grants(path, kCacheReplica);
    if (!one) return tl::unexpected(one.error());
    if (auto sound = check_is_cache(*one); !sound) return sound;
    const auto has_its_address = [&](const TakenGrants& other) { return other.target.ip == one->target.ip; };
    if (const auto twin = std::ranges::find_if(all, has_its_address); twin != all.end())
      return fail(fmt::format("{} and {}: both are the grants of the replica at {}; name a file of each replica",
                              twin->path, path, one->target.ip.to_string()));
    most = std::max(most, most_value(*one));
    all.push_back(std::move(*one));
  }
  if (end.value_bytes <= most) return {};
  return fail(fmt::format("a value of {} bytes is too long: the replicas take {} at most (`{} --max-value`)",
                          end.value_bytes, most, kCacheReplica.command));
}

}  // namespace

Result<std::unique_ptr<CacheClient>> CacheClient::open(const CacheClientEnd& end) {
  if (auto sound = check_grants(end); !sound) return tl::unexpected(sound.error());
  auto port = ports::open_port(end.port, ports::Absent::kWait);
  if (!port) return tl::unexpected(port.error());
  const auto parameters = real_time_client(end.port);
  if (!parameters) return tl::unexpected(parameters.error());
  std::unique_ptr<CacheClient> client(new CacheClient);
  for (const std::string& path : end.grants) {
    auto one = take_grants(path, kCacheReplica);
    if (!one) return tl::unexpected(one.error());
    client->grants_.push_back(std::move(*one));
    if (auto sound = check_is_cache(client->grants_.back()); !sound) return tl::unexpected(sound.error());
  }
  // In whatever order the files are named: this client's number is that of one and the same replica for all clients.
  std::ranges::sort(client->grants_, {}, [](const TakenGrants& one) { return one.target.ip.value; });
  client->connect(end, *parameters, std::move(*port));
  if (auto joined = client->join(end.port); !joined) return tl::unexpected(joined.error());
  return client;
}

void CacheClient::connect(const CacheClientEnd& end, onerma::RemoteOnerma::Parameters parameters,
                          std::unique_ptr<port::Port> port) {
  // The first replica gives a number once, and another life of it or another replica hardly ever the same: nor does an address that follows
  // from it come twice.
  const auto number = static_cast<std::uint16_t>(grants_.front().mine.initiator.value);
  onerma::NodeConfig config = real_time_node(address_of_client(number));
  config.slots = {.slots = 1024, .dispatch_timeout = kTimeout / 2, .timeout = kTimeout};
  node_ = std::make_unique<onerma::Node>(config);
  shard_ = std::make_unique<nic::MachinePoll<onerma::Node>>(*node_, std::move(port));
  shard_->attach(loop_);
  parameters.give_up = end.patience;
  parameters.key_wait = Duration::milliseconds(1);
  remote_ = std::make_unique<onerma::RemoteOnerma>(scheduler_, node_->initiator(), policy_, parameters);
  remote_poll_ = make_client_poll(*remote_);
  loop_.add(*remote_poll_);
  scheduler_poll_ = std::make_unique<nic::SchedulerPoll>(scheduler_);
  loop_.add(*scheduler_poll_);
  std::vector<kvcache::Replica> replicas;
  for (std::size_t i = 0; i < grants_.size(); ++i) {
    const remote::NodeId node(static_cast<std::uint32_t>(i));
    remote_->add_node(node, grants_[i].target);
    const auto at = [&](const GrantedRegion& region) {
      remote_->add_grant(node, region.grant);
      return remote::RemoteAddress{node, remote::RegionKey(region.grant.region.value), region.address};
    };
    const GrantedRegion& mailbox = grants_[i].mine.regions[1];
    max_value_ = std::max(max_value_, most_value(grants_[i]));
    replicas.push_back(
        {.table = at(grants_[i].mine.regions[0]), .mailbox = at(mailbox), .mailbox_bytes = mailbox.length});
  }
  cache_ = std::make_unique<kvcache::Client>(*remote_, replicas,
                                             kvcache::ClientConfig{.number = number,
                                                                   .max_value = static_cast<std::uint32_t>(max_value_),
                                                                   .look_after = Duration::milliseconds(100),
                                                                   .change_deadline = Duration::seconds(5)});
}

CacheClient::~CacheClient() {
  if (shard_ && shard_->port().counters().tx_frames != 0) return;
  for (const TakenGrants& one : grants_) give_back(one);
}

Result<void> CacheClient::join(const std::string& port) {
  kvcache::Outcome outcome = kvcache::Outcome::kUnavailable;
  // Some looks: a replica may only now come to its port.
  const auto try_to = [&]() -> remote::Task<void> {
    for (int i = 0; i < 20 && outcome != kvcache::Outcome::kOk; ++i) outcome = co_await cache_->join();
  };
  if (!wait_for(try_to())) return fail("interrupted");
  if (outcome == kvcache::Outcome::kOk) return {};
  return fail(fmt::format("no replica answers over {}: are they there, and are these their grants?", port));
}

bool CacheClient::wait_for(remote::Task<void> task) {
  bool done = false;
  const auto keep = [&]() -> remote::Task<void> {
    co_await std::move(task);
    done = true;
  };
  scheduler_.spawn(keep());
  loop_.run_until([&] { return done; });
  return done;
}

}  // namespace sluice::rack
