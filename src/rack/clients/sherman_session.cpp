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
constexpr Duration kLookAgain = Duration::milliseconds(20);
constexpr std::uint64_t kLeast = 4 * kLockTableBytes;  // of memory of a node

void judge(ByteView bytes, StorePart& part) {
  static_assert(kStorePartRead == sherman::kSuperblockRead);
  using What = StorePart::What;
  sherman::Superblock its;
  if (!sherman::parse_superblock(bytes, its)) {
    const bool in_making = load_le<std::uint64_t>(bytes.data() + sherman::kMakerOffset) != 0;
    part.what = sherman::superblock_taken(bytes) ? What::kOther : in_making ? What::kMaking : What::kNothing;
    return;
  }
  part.what = What::kPart;
  part.store_id = its.tree_id;
  part.index = its.index;
  part.parts = its.nodes;
  part.least = its.heap_bytes + kLockTableBytes;
}

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
  snapshot_ = *snapshot;
  const auto ready = ready_nodes(snapshot_);
  if (ready == 0) return fail("no memory node is on the rack; `sluice rack up --no-metadata` starts some");
  remote_nodes().set_nodes(loop().now(), snapshot_);
  endpoint().on_change([this](Time now, const Snapshot& changed) {
    remote_nodes().set_nodes(now, changed);
    snapshot_ = changed;
  });
  if (!run_for(config_.patience, [this, ready] { return nodes().up() >= ready; })) return not_connected();
  return {};
}

std::vector<sherman::MemoryNode> ShermanSession::memory_of(const StorePlan& plan) const {
  std::vector<sherman::MemoryNode> memory;
  for (const std::size_t part : plan.order) {
    const StorePart& its = parts_[part];
    memory.push_back({its.region + kLockTableBytes, its.length - kLockTableBytes, its.region});
  }
  return memory;
}

remote::Task<sherman::Outcome> ShermanSession::make(const StorePlan& plan, sherman::Maker maker, std::string& refused) {
  if (const auto small = too_small(snapshot_, kLeast); !small.empty()) {
    refused = fmt::format("{} has too little memory for a tree; start memory nodes of at least 256 KiB", small);
    co_return sherman::Outcome::kNoSpace;
  }
  const sherman::Geometry shape = geometry_for(config_.value_bytes);
  const auto made = co_await sherman::create_tree(remote_nodes().memory(), memory_of(plan), shape, maker);
  if (made == sherman::Outcome::kTooLong) {
    refused = shape.refusal();
  } else if (made == sherman::Outcome::kNoSpace) {
    refused = "it has no room in this memory: more memory or shorter values may do";
  } else if (made == sherman::Outcome::kUnknown) {
    refused = "another began to make the tree and has not ended; if it is gone, start the memory nodes anew";
  }
  co_return made;
}

remote::Task<void> ShermanSession::find_tree(std::string& refused) {
  const sherman::Maker maker{std::random_device{}()};
  const Time give_up = scheduler().now() + config_.patience;
  std::string seen_before;
  while (true) {
    parts_ = parts_on(snapshot_, kLeast);
    co_await look_at_parts(remote_nodes().memory(), kLockTableBytes, judge, parts_);
    const StorePlan plan = plan_store(parts_, "tree");
    if (plan.what == StorePlan::What::kUse) {
      memory_ = memory_of(plan);
      co_return;
    }
    if (plan.what == StorePlan::What::kRefuse && plan.refusal == seen_before) {
      refused = plan.refusal;
      co_return;
    }
    seen_before = plan.refusal;
    const bool late = scheduler().now() >= give_up;
    if (late) refused = plan.what == StorePlan::What::kRefuse ? plan.refusal : "there is no tree";
    if (!late && plan.what == StorePlan::What::kMake && config_.may_create) {
      const sherman::Outcome made = co_await make(plan, maker, refused);
      if (made == sherman::Outcome::kOk) continue;
    }
    if (!refused.empty()) co_return;
    co_await scheduler().sleep_for(kLookAgain);
  }
}

remote::Task<void> ShermanSession::join_all(std::string& refused) {
  co_await find_tree(refused);
  if (!refused.empty()) co_return;
  const Rng rng = Rng(config_.seed).fork("sherman");
  for (std::uint32_t i = 0; i < config_.clients; ++i) {
    clients_.push_back(
        std::make_unique<sherman::Client>(remote_nodes().memory(), memory_, config_.client, rng.fork(i)));
  }
  for (const auto& client : clients_) {
    const sherman::Outcome outcome = co_await client->join();
    if (outcome == sherman::Outcome::kOk) continue;
    refused = outcome == sherman::Outcome::kNotFound      ? "its memory nodes have changed meanwhile; try again"
              : outcome == sherman::Outcome::kUnavailable ? "not all of its memory nodes are in reach"
                                                          : std::string(to_string(outcome));
    co_return;
  }
}

Result<void> ShermanSession::join() {
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
