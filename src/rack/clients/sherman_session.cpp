#include "rack/clients/sherman_session.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "rack/clients/sherman_store.h"

namespace sluice::rack {
namespace {

constexpr std::uint64_t kLockTableBytes = 64 << 10;
// A WRITE of so much is one packet, where the path MTU is at least what most interfaces' MTU of 1500 holds.
constexpr std::uint32_t kPacket = 1024;

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

sherman::MemoryNode memory_in(const StorePart& part) {
  return {part.region + kLockTableBytes, part.length - kLockTableBytes, part.region};
}

remote::Task<void> leave_one(sherman::Client& client, std::size_t& leaving, bool& whole) {
  const sherman::Outcome left = co_await client.leave();
  whole = whole && left == sherman::Outcome::kOk;
  --leaving;
}

}  // namespace

Result<std::unique_ptr<StoreSession>> ShermanSession::open(const ShermanSessionConfig& config) {
  std::unique_ptr<ShermanSession> session(new ShermanSession(config));
  const auto look = [raw = session.get()] { raw->look_for_moved_memory(); };
  if (auto connected = session->attach_to_memory(config, look); !connected) return tl::unexpected(connected.error());
  if (auto joined = session->join(); !joined) return tl::unexpected(joined.error());
  return std::unique_ptr<StoreSession>(std::move(session));
}

std::vector<sherman::MemoryNode> ShermanSession::memory_of(const StorePlan& plan) const {
  std::vector<sherman::MemoryNode> memory;
  for (const std::size_t part : plan.order) memory.push_back(memory_in(parts_[part]));
  return memory;
}

// What a client that dies writes is there whole, or not at all, if it is one packet.
std::string ShermanSession::refusal_of(const sherman::Geometry& shape) const {
  const std::uint32_t path_mtu = nodes().path_mtu();
  if (path_mtu >= shape.whole_bytes) return shape.refusal();
  return fmt::format(
      "its nodes need packets of {} bytes, and an interface here holds {}: `ip link set DEVICE mtu 1500`",
      shape.whole_bytes, path_mtu);
}

// A memory node that did not get on for longer than its lease has the same memory, in the same place, under another key. The clients see whether it is the same.
void ShermanSession::look_for_moved_memory() {
  for (const StorePart& part : parts_on(newest(), kLeast)) {
    if (part.what == StorePart::What::kGone) continue;
    for (std::uint32_t i = 0; i < memory_.size(); ++i) {
      if (names_[i] != part.node || memory_[i].locks.address != part.region.address) continue;
      memory_[i] = memory_in(part);
      for (const auto& client : clients_) client->moved(i, memory_[i]);
    }
  }
}

remote::Task<bool> ShermanSession::make(const StorePlan& plan, std::string& refused) {
  if (const auto small = too_small(newest(), kLeast); !small.empty()) {
    refused = fmt::format("{} has too little memory for a tree; start memory nodes of at least 256 KiB", small);
    co_return false;
  }
  const sherman::Geometry shape = geometry_for(config_.value_bytes);
  refused = refusal_of(shape);
  if (!refused.empty()) co_return false;
  const auto made =
      co_await sherman::create_tree(remote_nodes().memory(), memory_of(plan), shape, maker_, config_.client.flight);
  if (made == sherman::Outcome::kNoSpace) {
    refused = "it has no room in this memory: more memory or shorter values may do";
  } else if (made == sherman::Outcome::kUnknown) {
    refused = "another began to make the tree and has not ended; if it is gone, start the memory nodes anew";
  }
  co_return made == sherman::Outcome::kOk;
}

remote::Task<void> ShermanSession::join_all(std::string& refused) {
  MakeStore make_one;
  if (config_.may_create) make_one = [this](const StorePlan& plan, std::string& why) { return make(plan, why); };
  const StoreSearch search{
      .kind = "tree", .offset = kLockTableBytes, .least = kLeast, .judge = judge, .patience = config_.patience};
  const StorePlan found = co_await find_store(remote_nodes().memory(), newest(), search, make_one, parts_);
  if (found.what == StorePlan::What::kRefuse) {
    refused = found.refusal;
    co_return;
  }
  memory_ = memory_of(found);
  for (const std::size_t part : found.order) names_.push_back(parts_[part].node);
  look_for_moved_memory();
  const Rng rng = Rng(config_.seed).fork("sherman");
  for (std::uint32_t i = 0; i < config_.clients; ++i) {
    clients_.push_back(
        std::make_unique<sherman::Client>(remote_nodes().memory(), memory_, config_.client, rng.fork(i)));
  }
  for (const auto& client : clients_) {
    const sherman::Outcome outcome = co_await client->join();
    if (outcome == sherman::Outcome::kOk) refused = refusal_of(client->geometry());
    if (!refused.empty()) co_return;
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
  bool whole = true;
  if (offers()) {
    for (const auto& client : clients_) scheduler().spawn(leave_one(*client, leaving, whole));
    const bool ended = run_for(kFarewell, [&leaving] { return leaving == 0; });
    if (!ended || !whole)
      spdlog::warn("{}: not all memory of the tree was given back; the rest stays taken until the rack starts anew",
                   config_.name);
  }
  detach();
}

}  // namespace sluice::rack
