#include "rack/clients/fusee_session.h"

#include <fmt/core.h>

#include <algorithm>

#include "rack/clients/fusee_store.h"

namespace sluice::rack {
namespace {

constexpr std::uint64_t kBefore = 64 << 10;     // not ours
constexpr std::uint64_t kLeast = 1 << 20;       // of memory of a node
constexpr std::uint64_t kBytesASlot = 512;      // of memory: so large is the index at first
constexpr std::uint64_t kMostGroups = 1 << 17;  // of a partition, at first, where nobody says how many
constexpr std::uint64_t kSlotsAGroup = 24;
constexpr std::uint64_t kGroupsATable = 64;         // of all partitions: writers wait while so much is moved
constexpr std::uint32_t kLongestSmallValue = 4096;  // with blocks of the usual size

constexpr Duration kFarewell = Duration::seconds(3);
constexpr remote::NodeId kNoNode{0xFFFF'FFFF};

fusee::MemoryNode heap_in(const RegionRecord& region, remote::NodeId node) {
  return {{node, remote::RegionKey(region.key), region.address + kBefore}, region.length - kBefore};
}

void judge(ByteView bytes, StorePart& part) {
  static_assert(kStorePartRead == fusee::kSuperblockRead);
  using What = StorePart::What;
  fusee::Superblock its;
  if (!fusee::parse_superblock(bytes, its)) {
    const bool in_making = load_le<std::uint64_t>(bytes.data() + fusee::kMadeOffset) != 0;
    part.what = fusee::superblock_taken(bytes) ? What::kOther : in_making ? What::kMaking : What::kNothing;
    return;
  }
  part.what = What::kPart;
  part.store_id = its.store_id;
  part.index = its.index;
  part.parts = its.nodes;
  part.least = its.heap_bytes + kBefore;
  part.life = its.votes_from;
  part.made = fusee::superblock_made(bytes);
  part.has_copies = fusee::Membership::possible(its.nodes, its.geometry);
}

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
  std::uint64_t groups = std::min(heap / replicas / kBytesASlot / kSlotsAGroup, kMostGroups);
  if (config_.index_slots != 0) groups = (config_.index_slots + nodes * kSlotsAGroup - 1) / (nodes * kSlotsAGroup);
  groups = std::max<std::uint64_t>(groups, 2);
  std::uint64_t tables = 1;
  if (config_.index_doublings != 0) tables = std::max<std::uint64_t>(1, groups * nodes / kGroupsATable);
  return {.replicas = replicas,
          .groups = static_cast<std::uint32_t>(std::max<std::uint64_t>(2, (groups + tables - 1) / tables)),
          .value_bytes = config_.value_bytes,
          .block_bytes = config_.value_bytes > kLongestSmallValue ? 1u << 20 : 64u << 10,
          .tables = static_cast<std::uint32_t>(tables),
          .doublings = config_.index_doublings};
}

std::vector<fusee::MemoryNode> FuseeSession::memory_of(const StorePlan& plan) const {
  std::vector<fusee::MemoryNode> memory;
  for (const std::size_t part : plan.order) {
    if (part != StorePlan::kNone) {
      memory.push_back({parts_[part].region + kBefore, parts_[part].length - kBefore});
    } else {
      // Out of reach, as one that is gone; not one with too little memory.
      memory.push_back({{kNoNode, {}, 0}, ~std::uint64_t{0}});
    }
  }
  return memory;
}

Result<std::unique_ptr<StoreSession>> FuseeSession::open(const FuseeSessionConfig& config) {
  std::unique_ptr<FuseeSession> session(new FuseeSession(config));
  const auto look = [raw = session.get()] { raw->look_for_new_memory(); };
  if (auto connected = session->attach_to_memory(config, look); !connected) return tl::unexpected(connected.error());
  if (auto joined = session->join(); !joined) return tl::unexpected(joined.error());
  return std::unique_ptr<StoreSession>(std::move(session));
}

StoreSession::Spread FuseeSession::spread() const {
  return {clients_.front()->geometry().replicas, clients_.front()->map().partitions()};
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
    lines += fmt::format("{}{}: {}", lines.empty() ? "" : "\n",
                         name == names_.end() ? "a memory node that left long ago" : name->second, what);
  }
  return lines;
}

// A memory node that was started anew has other memory. The clients take it back.
void FuseeSession::look_for_new_memory() {
  std::vector<remote::NodeId> places;
  for (const auto& memory : memory_) places.push_back(memory.heap.node);
  for (const NodeRecord& node : newest().nodes) {
    names_[node.id] = node.description.name;
    if (node.state != NodeState::kReady || node.description.regions.empty()) continue;
    const std::size_t place = place_of(node, places, newest(), names_);
    if (place == places.size()) continue;
    fusee::MemoryNode& known = memory_[place];
    const auto is_known = [&](const RegionRecord& region) { return known.heap == heap_in(region, node.id).heap; };
    if (std::ranges::any_of(node.description.regions, is_known)) continue;
    if (node.description.regions.front().length < kLeast) continue;
    known = heap_in(node.description.regions.front(), node.id);
    places[place] = node.id;
    for (const auto& client : clients_) client->moved(place, known);
  }
}

remote::Task<bool> FuseeSession::make(const StorePlan& plan, std::string& refused) {
  if (const auto small = too_small(newest(), kLeast); !small.empty()) {
    refused = fmt::format("{} has too little memory for a store; start memory nodes of at least 1 MiB", small);
    co_return false;
  }
  memory_ = memory_of(plan);
  const fusee::Geometry shape = geometry();
  const fusee::Outcome made = co_await fusee::create_store(remote_nodes().memory(), memory_, shape, maker_);
  if (made == fusee::Outcome::kTooLong) {
    refused = shape.refusal();
  } else if (made == fusee::Outcome::kNoSpace) {
    refused = "it has no room in this memory: more memory, shorter values or a smaller index may do";
  } else if (made == fusee::Outcome::kUnknown) {
    refused = "another began to make the store and has not ended; if it is gone, start the memory nodes anew";
  }
  co_return made == fusee::Outcome::kOk;
}

remote::Task<void> FuseeSession::join_all(std::string& refused) {
  MakeStore make_one;
  if (config_.may_create) make_one = [this](const StorePlan& plan, std::string& why) { return make(plan, why); };
  const StoreSearch search{
      .kind = "store", .offset = kBefore, .least = kLeast, .judge = judge, .patience = config_.patience};
  const StorePlan found = co_await find_store(remote_nodes().memory(), newest(), search, make_one, parts_);
  if (found.what == StorePlan::What::kRefuse) {
    refused = found.refusal;
    co_return;
  }
  memory_ = memory_of(found);
  look_for_new_memory();
  const Rng rng = Rng(config_.seed).fork("fusee");
  for (std::uint32_t i = 0; i < config_.clients; ++i) {
    clients_.push_back(std::make_unique<fusee::Client>(remote_nodes().memory(), memory_, config_.client, rng.fork(i)));
  }
  for (const auto& client : clients_) {
    const fusee::Outcome outcome = co_await client->join();
    if (outcome == fusee::Outcome::kOk) continue;
    refused = outcome == fusee::Outcome::kNotFound      ? "its memory nodes have changed meanwhile; try again"
              : outcome == fusee::Outcome::kUnavailable ? "too few of its memory nodes are in reach"
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
