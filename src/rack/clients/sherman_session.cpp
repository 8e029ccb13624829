#include "rack/clients/sherman_session.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "rack/clients/sherman_store.h"

namespace sluice::rack {
namespace {

constexpr std::uint64_t kLockTableBytes = 64 << 10;
constexpr std::uint32_t kPacket = 1024;  // the smallest path MTU of the rack: a WRITE of so much is one packet

constexpr std::uint32_t kLongestInLeaf = 88;  // eight entries of it in a leaf of one packet

sherman::Geometry geometry_for(std::uint32_t value_bytes) {
  sherman::Geometry geometry{.node_bytes = kPacket,
                             .value_bytes = std::min(value_bytes, kLongestInLeaf),
                             .locks = kLockTableBytes / 8,
                             .chunk_bytes = 64 << 10,
                             .whole_bytes = kPacket};
  if (value_bytes <= kLongestInLeaf) return geometry;
  geometry.value_bytes = sherman::kFarBytes;  // shorter ones stay in the leaf
  geometry.long_bytes = value_bytes;
  geometry.chunk_bytes = std::max(geometry.chunk_bytes, 4 * sherman::Geometry::block_bytes(value_bytes));
  return geometry;
}

constexpr Duration kFarewell = Duration::seconds(3);

remote::Task<void> leave_one(sherman::Client& client, std::size_t& leaving) {
  co_await client.leave();
  --leaving;
}

}  // namespace

Result<std::unique_ptr<StoreSession>> ShermanSession::open(const ShermanSessionConfig& config) {
  std::unique_ptr<ShermanSession> session(new ShermanSession(config));
  if (auto connected = session->connect(); !connected) return tl::unexpected(connected.error());
  if (auto joined = session->join(); !joined) return tl::unexpected(joined.error());
  return std::unique_ptr<StoreSession>(std::move(session));
}

Result<void> ShermanSession::connect() {
  const auto snapshot = attach(config_);
  if (!snapshot) return tl::unexpected(snapshot.error());
  if (!snapshot->ready(NodeKind::kMetadata).empty())
    return fail(
        "the memory belongs to a Clover store; `sluice rack down`, then `sluice rack up --no-metadata` starts a rack "
        "without one");
  for (const NodeRecord* node : snapshot->ready(NodeKind::kMemory)) {
    if (node->description.regions.empty()) continue;
    const RegionRecord& region = node->description.regions.front();
    if (region.length < 4 * kLockTableBytes)
      return fail(fmt::format("{} has too little memory for a tree; start memory nodes of at least 256 KiB",
                              node->description.name));
    const remote::RemoteAddress base{node->id, remote::RegionKey(region.key), region.address};
    memory_.push_back({base + kLockTableBytes, region.length - kLockTableBytes, base});
  }
  if (memory_.empty()) return fail("no memory node is on the rack; `sluice rack up --no-metadata` starts some");
  remote_nodes().set_nodes(loop().now(), *snapshot);
  endpoint().on_change([this](Time now, const Snapshot& changed) { remote_nodes().set_nodes(now, changed); });
  if (!run_for(config_.patience, [this] { return nodes().up() >= memory_.size(); })) return not_connected();
  return {};
}

remote::Task<void> ShermanSession::join_all(std::string& refused) {
  const sherman::Maker maker{std::random_device{}()};
  const Time give_up = scheduler().now() + config_.patience;
  for (const auto& client : clients_) {
    sherman::Outcome outcome = co_await client->join();
    while (outcome == sherman::Outcome::kNotFound && scheduler().now() < give_up) {
      if (config_.may_create && client == clients_.front()) {
        const auto made =
            co_await sherman::create_tree(remote_nodes().memory(), memory_, geometry_for(config_.value_bytes), maker);
        outcome = made;
        if (made != sherman::Outcome::kOk && made != sherman::Outcome::kExists) break;
        outcome = co_await client->join();
        // Something is there, and it is none of ours.
        if (outcome == sherman::Outcome::kNotFound && made == sherman::Outcome::kExists) outcome = made;
      } else {
        co_await scheduler().sleep_for(Duration::milliseconds(20));
        outcome = co_await client->join();
      }
    }
    if (outcome == sherman::Outcome::kOk) continue;
    refused = outcome == sherman::Outcome::kNotFound ? "there is no tree, or one over other memory nodes"
              : outcome == sherman::Outcome::kExists ? kMemoryInUse
              : outcome == sherman::Outcome::kUnknown
                  ? "another began to make the tree and has not ended; if it is gone, start the memory nodes anew"
                  : std::string(to_string(outcome));
    co_return;
  }
}

Result<void> ShermanSession::join() {
  const Rng rng = Rng(config_.seed).fork("sherman");
  for (std::uint32_t i = 0; i < config_.clients; ++i) {
    clients_.push_back(
        std::make_unique<sherman::Client>(remote_nodes().memory(), memory_, config_.client, rng.fork(i)));
  }
  std::string refused;
  scheduler().spawn(join_all(refused));
  if (!run_for(config_.patience * 3, [this] { return scheduler().live() == 0; }))
    return fail("the memory nodes do not answer");
  if (!refused.empty()) return fail(fmt::format("the tree cannot be used: {}", refused));
  for (const auto& client : clients_) offer(std::make_unique<ShermanStore>(*client));
  return {};
}

// What they had is for others to use.
ShermanSession::~ShermanSession() {
  if (!attached()) return;
  std::size_t leaving = clients_.size();
  if (offers()) {
    for (const auto& client : clients_) scheduler().spawn(leave_one(*client, leaving));
    run_for(kFarewell, [&leaving] { return leaving == 0; });
  }
  detach();
}

}  // namespace sluice::rack
