#include "rack/clients/fusee_session.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "rack/clients/fusee_store.h"

namespace sluice::rack {
namespace {

constexpr std::uint64_t kBefore = 64 << 10;     // not ours
constexpr std::uint64_t kLeast = 1 << 20;       // of memory of a node
constexpr std::uint64_t kBytesASlot = 512;      // of memory: so large is the index at first
constexpr std::uint64_t kMostGroups = 1 << 17;  // of a partition, at first
constexpr std::uint64_t kSlotsAGroup = 24;
constexpr std::uint64_t kGroupsATable = 64;         // of all partitions: writers wait while so much is moved
constexpr std::uint32_t kLongestSmallValue = 4096;  // with blocks of the usual size

constexpr Duration kFarewell = Duration::seconds(3);

remote::Task<void> leave_one(fusee::Client& client, std::size_t& leaving) {
  co_await client.leave();
  --leaving;
}

}  // namespace

fusee::Geometry FuseeSession::geometry() const {
  std::uint64_t heap = ~std::uint64_t{0};
  for (const auto& node : memory_) heap = std::min(heap, node.heap_bytes);
  const auto replicas = std::min(config_.replicas, static_cast<std::uint32_t>(memory_.size()));
  const std::uint64_t nodes = memory_.size();
  std::uint64_t groups = heap / replicas / kBytesASlot / kSlotsAGroup;
  if (config_.index_slots != 0) groups = (config_.index_slots + nodes * kSlotsAGroup - 1) / (nodes * kSlotsAGroup);
  groups = std::clamp<std::uint64_t>(groups, 2, kMostGroups);
  std::uint64_t tables = 1;
  if (config_.index_doublings != 0) tables = std::max<std::uint64_t>(1, groups * nodes / kGroupsATable);
  return {.replicas = replicas,
          .groups = static_cast<std::uint32_t>(std::max<std::uint64_t>(2, (groups + tables - 1) / tables)),
          .value_bytes = config_.value_bytes,
          .block_bytes = config_.value_bytes > kLongestSmallValue ? 1u << 20 : 64u << 10,
          .tables = static_cast<std::uint32_t>(tables),
          .doublings = config_.index_doublings};
}

Result<std::unique_ptr<StoreSession>> FuseeSession::open(const FuseeSessionConfig& config) {
  std::unique_ptr<FuseeSession> session(new FuseeSession(config));
  if (auto connected = session->connect(); !connected) return tl::unexpected(connected.error());
  if (auto joined = session->join(); !joined) return tl::unexpected(joined.error());
  return std::unique_ptr<StoreSession>(std::move(session));
}

Result<void> FuseeSession::connect() {
  const auto snapshot = attach(config_);
  if (!snapshot) return tl::unexpected(snapshot.error());
  if (!snapshot->ready(NodeKind::kMetadata).empty())
    return fail(
        "the memory belongs to a Clover store; `sluice rack down`, then `sluice rack up --no-metadata` starts a rack "
        "without one");
  for (const NodeRecord& node : snapshot->nodes) {
    if (node.description.kind != NodeKind::kMemory || node.description.regions.empty()) continue;
    const RegionRecord& region = node.description.regions.front();
    const bool ready = node.state == NodeState::kReady;
    if (ready && region.length < kLeast)
      return fail(fmt::format("{} has too little memory for a store; start memory nodes of at least 1 MiB",
                              node.description.name));
    if (region.length < kLeast) continue;
    names_[node.id] = node.description.name;
    const remote::RemoteAddress base{node.id, remote::RegionKey(region.key), region.address};
    with_gone_.push_back({base + kBefore, region.length - kBefore});
    if (ready) memory_.push_back(with_gone_.back());
  }
  if (memory_.empty()) return fail("no memory node is on the rack; `sluice rack up --no-metadata` starts some");
  remote_nodes().set_nodes(loop().now(), *snapshot);
  endpoint().on_change([this](Time now, const Snapshot& changed) {
    remote_nodes().set_nodes(now, changed);
    look_for_new_memory(changed);
  });
  if (!run_for(config_.patience, [this] { return nodes().up() >= memory_.size(); })) return not_connected();
  return {};
}

std::string FuseeSession::problems() const {
  std::string lines = StoreSession::problems();
  if (clients_.empty()) return lines;
  // The one that knows most.
  const auto newest = std::ranges::max_element(clients_, {}, [](const auto& client) { return client->view(); });
  const fusee::MemoryMap& map = (*newest)->map();
  for (std::uint32_t node = 0; node < map.partitions(); ++node) {
    const char* const what = map.member(node) == fusee::Member::kLeft         ? "the store does without it"
                             : map.member(node) == fusee::Member::kApprentice ? "is back, and given its replicas again"
                                                                              : nullptr;
    if (what == nullptr) continue;
    const auto name = names_.find(memory_[node].heap.node);
    lines += fmt::format("{}{}: {}", lines.empty() ? "" : "\n", name == names_.end() ? "?" : name->second, what);
  }
  return lines;
}

// A memory node that was started anew has other memory. The clients take it back.
void FuseeSession::look_for_new_memory(const Snapshot& snapshot) {
  for (const NodeRecord& node : snapshot.nodes) {
    if (node.state != NodeState::kReady || node.description.regions.empty()) continue;
    const RegionRecord& region = node.description.regions.front();
    if (region.length < kLeast) continue;
    const fusee::MemoryNode now{{node.id, remote::RegionKey(region.key), region.address + kBefore},
                                region.length - kBefore};
    const auto at_node = [&](const auto& m) { return m.heap.node == node.id; };
    // One that comes back while we find out whether the store has it.
    if (const auto gone = std::ranges::find_if(with_gone_, at_node); gone != with_gone_.end()) *gone = now;
    const auto known = std::ranges::find_if(memory_, at_node);
    if (known == memory_.end() || known->heap == now.heap) continue;
    *known = now;
    for (const auto& client : clients_) client->moved(static_cast<std::size_t>(known - memory_.begin()), now);
  }
}

// Does the store lie on memory nodes that are gone, too? It may do without them.
remote::Task<void> FuseeSession::find_gone() {
  if (with_gone_.size() == memory_.size()) co_return;
  const Rng rng = Rng(config_.seed).fork("fusee").fork("scout");
  scout_ = std::make_unique<fusee::Client>(remote_nodes().memory(), with_gone_, config_.client, rng);
  const fusee::Outcome found = co_await scout_->join();
  if (found == fusee::Outcome::kOk) memory_ = with_gone_;
}

remote::Task<void> FuseeSession::join_all(std::string& refused) {
  co_await find_gone();
  const Rng rng = Rng(config_.seed).fork("fusee");
  for (std::uint32_t i = 0; i < config_.clients; ++i) {
    clients_.push_back(std::make_unique<fusee::Client>(remote_nodes().memory(), memory_, config_.client, rng.fork(i)));
  }
  const fusee::Maker maker{std::random_device{}()};
  const Time give_up = scheduler().now() + config_.patience;
  for (const auto& client : clients_) {
    fusee::Outcome outcome = co_await client->join();
    while (outcome == fusee::Outcome::kNotFound && scheduler().now() < give_up) {
      if (config_.may_create && client == clients_.front()) {
        const auto made = co_await fusee::create_store(remote_nodes().memory(), memory_, geometry(), maker);
        outcome = made;
        if (made != fusee::Outcome::kOk && made != fusee::Outcome::kExists) break;
        outcome = co_await client->join();
        // Something is there, and it is none of ours.
        if (outcome == fusee::Outcome::kNotFound && made == fusee::Outcome::kExists) outcome = made;
      } else {
        co_await scheduler().sleep_for(Duration::milliseconds(20));
        outcome = co_await client->join();
      }
    }
    if (outcome == fusee::Outcome::kOk) continue;
    refused = outcome == fusee::Outcome::kNotFound ? "there is no store, or one over other memory nodes"
              : outcome == fusee::Outcome::kExists ? kMemoryInUse
              : outcome == fusee::Outcome::kUnknown
                  ? "another began to make the store and has not ended; if it is gone, start the memory nodes anew"
              : outcome == fusee::Outcome::kNoSpace || outcome == fusee::Outcome::kTooLong
                  ? "it has no room in this memory: more memory, shorter values or a smaller index may do"
                  : std::string(to_string(outcome));
    co_return;
  }
}

Result<void> FuseeSession::join() {
  std::string refused;
  scheduler().spawn(join_all(refused));
  if (!run_for(config_.patience * 3, [this] { return scheduler().live() == 0; }))
    return fail("the memory nodes do not answer");
  if (!refused.empty()) return fail(fmt::format("the store cannot be used: {}", refused));
  for (const auto& client : clients_) offer(std::make_unique<FuseeStore>(*client));
  return {};
}

// What they had is for others to use.
FuseeSession::~FuseeSession() {
  if (!attached()) return;
  std::size_t leaving = clients_.size();
  if (offers()) {
    for (const auto& client : clients_) scheduler().spawn(leave_one(*client, leaving));
    run_for(kFarewell, [&leaving] { return leaving == 0; });
  }
  detach();
}

}  // namespace sluice::rack
