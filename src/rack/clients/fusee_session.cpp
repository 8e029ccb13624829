#include "rack/clients/fusee_session.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

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

constexpr Duration kFarewell = Duration::seconds(3);         // in which some of it must have been done
constexpr Duration kLookAgain = Duration::milliseconds(20);  // at first; then after twice as long each time
constexpr Duration kLookSeldom = Duration::seconds(1);

// Out of reach, as one that is gone; not one with too little memory.
constexpr fusee::MemoryNode kMissing{kNowhere, ~std::uint64_t{0}};

fusee::MemoryNode heap_in(const StorePart& part) { return {part.region + kBefore, part.length - kBefore}; }

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

struct Leaving {
  std::size_t under_way = 0;
  bool all = true;
};

remote::Task<void> leave_one(fusee::Client& client, Leaving& leaving) {
  const fusee::Outcome outcome = co_await client.leave();
  leaving.all = leaving.all && outcome == fusee::Outcome::kOk;
  --leaving.under_way;
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

void FuseeSession::use(const StorePlan& plan) {
  memory_.clear();
  places_.clear();
  for (const std::size_t part : plan.order) {
    const bool known = part != StorePlan::kNone;
    memory_.push_back(known ? heap_in(parts_[part]) : kMissing);
    places_.push_back(known ? parts_[part] : StorePart{.node = "a memory node that left long ago", .region = kNowhere});
    if (known && parts_[part].what == StorePart::What::kPart) store_ = parts_[part];
  }
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
    lines += fmt::format("{}{}: {}", lines.empty() ? "" : "\n", places_[node].node, what);
  }
  return lines;
}

void FuseeSession::place(std::size_t index, const fusee::MemoryNode& memory) {
  memory_[index] = memory;
  for (const auto& client : clients_) client->moved(index, memory);
}

// Regions are moved, a memory node that did not get on has other keys, one that was started anew has other memory.
void FuseeSession::look_for_new_memory() {
  if (clients_.empty()) return;  // whoever makes them looks
  const auto there = parts_on(newest(), kLeast);
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    const auto is_it = [&](const StorePart& part) { return heap_in(part).heap == memory_[i].heap; };
    // Whoever goes on with a key that is none any more breaks the connection for all.
    if (std::ranges::any_of(there, is_it)) continue;
    places_[i].region = kNowhere;
    place(i, kMissing);
  }
  changed_ = true;
  if (looking_) return;
  looking_ = true;
  scheduler().spawn(find_moved_memory());
}

remote::Task<void> FuseeSession::find_moved_memory() {
  const auto has = [this](const remote::RemoteAddress& region) {
    return std::ranges::find(places_, region, &StorePart::region) != places_.end();
  };
  Duration pause = kLookAgain;
  while (changed_ && has(kNowhere)) {
    changed_ = false;
    auto parts = parts_on(newest(), kLeast);
    const auto is_news = [&](const StorePart& part) { return !has(part.region); };
    const std::span news(parts.begin(), std::stable_partition(parts.begin(), parts.end(), is_news));
    co_await look_at_parts(remote_nodes().memory(), kBefore, judge, news);
    if (changed_) continue;
    const auto found = find_missing(parts, store_, places_);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i] == StorePlan::kNone) continue;
      places_[i] = parts[found[i]];
      place(i, heap_in(places_[i]));
    }
    if (std::ranges::find(news, StorePart::What::kSilent, &StorePart::what) == news.end()) continue;
    // It may just be connecting.
    const Time again = scheduler().now() + pause;
    while (!changed_ && scheduler().now() < again) co_await scheduler().sleep_for(kLookAgain);
    pause = changed_ ? kLookAgain : std::min(pause * 2, kLookSeldom);
    changed_ = true;
  }
  changed_ = looking_ = false;
}

remote::Task<bool> FuseeSession::make(const StorePlan& plan, std::string& refused) {
  if (const auto small = too_small(newest(), kLeast); !small.empty()) {
    refused = fmt::format("{} has too little memory for a store; start memory nodes of at least 1 MiB", small);
    co_return false;
  }
  use(plan);
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

remote::Task<void> FuseeSession::join_all(std::string& refused, bool& ended) {
  MakeStore make_one;
  if (config_.may_create) make_one = [this](const StorePlan& plan, std::string& why) { return make(plan, why); };
  const StoreSearch search{
      .kind = "store", .offset = kBefore, .least = kLeast, .judge = judge, .patience = config_.patience};
  const StorePlan found = co_await find_store(remote_nodes().memory(), newest(), search, make_one, parts_);
  if (found.what == StorePlan::What::kRefuse) {
    refused = found.refusal;
    ended = true;
    co_return;
  }
  use(found);
  const Rng rng = Rng(config_.seed).fork("fusee");
  for (std::uint32_t i = 0; i < config_.clients; ++i) {
    clients_.push_back(std::make_unique<fusee::Client>(remote_nodes().memory(), memory_, config_.client, rng.fork(i)));
  }
  look_for_new_memory();
  for (const auto& client : clients_) {
    const fusee::Outcome outcome = co_await client->join();
    if (outcome == fusee::Outcome::kOk) continue;
    refused = outcome == fusee::Outcome::kNotFound      ? "its memory nodes have changed meanwhile; try again"
              : outcome == fusee::Outcome::kUnavailable ? "too few of its memory nodes are in reach"
              : outcome == fusee::Outcome::kNoSpace
                  ? fmt::format("it has had as many clients as it can; {}", kStartAnew)
                  : std::string(to_string(outcome));
    break;
  }
  ended = true;
}

// Those of sessions of this machine that were killed.
remote::Task<void> FuseeSession::leave_for_the_dead(std::vector<ClientNumbers> dead) {
  std::vector<std::uint32_t> clients;
  for (const auto& session : dead) clients.insert(clients.end(), session.numbers().begin(), session.numbers().end());
  const fusee::Outcome left = co_await clients_.front()->leave_for(std::move(clients));
  for (auto& session : dead) {
    if (left == fusee::Outcome::kOk) session.remove();
  }
  leaves_for_others_ = false;
}

Result<void> FuseeSession::join() {
  std::string refused;
  bool ended = false;
  scheduler().spawn(join_all(refused, ended));
  if (!run_for(config_.patience * 3, [&ended] { return ended; })) return fail("the memory nodes do not answer");
  if (!refused.empty()) return fail(fmt::format("the store cannot be used: {}", refused));
  for (const auto& client : clients_) offer(std::make_unique<FuseeStore>(*client));
  const RunDirectory run(config_.directory);
  std::vector<std::uint32_t> numbers;
  for (const auto& client : clients_) numbers.push_back(client->number());
  numbers_ = ClientNumbers::keep(run, store_.store_id, std::move(numbers));
  auto dead = ClientNumbers::abandoned(run, store_.store_id);
  leaves_for_others_ = !dead.empty();
  if (!leaves_for_others_) return {};
  scheduler().spawn(leave_for_the_dead(std::move(dead)));
  // It may be needed at once. If not now, it goes on beside what is done with the store.
  run_for(config_.patience, [this] { return !leaves_for_others_; });
  return {};
}

// What they had is for others to use.
void FuseeSession::leave() {
  // One of the clients may be doing this for others.
  const bool alone = run_for(kFarewell, [this] { return !leaves_for_others_; });
  Leaving leaving{.under_way = clients_.size()};
  const auto progress = [this] {
    std::uint64_t left = 0;
    for (const auto& client : clients_) left += client->counters().left;
    return left;
  };
  for (const auto& client : clients_) scheduler().spawn(leave_one(*client, leaving));
  for (std::uint64_t before = ~std::uint64_t{0}; leaving.under_way != 0 && before != progress();) {
    before = progress();
    run_for(kFarewell, [&leaving] { return leaving.under_way == 0; });
  }
  if (alone && leaving.under_way == 0 && leaving.all) return numbers_.remove();
  const bool is_kept = !numbers_.numbers().empty();
  spdlog::warn("{}: not all of the memory that it used in the store could be given back{}", config_.name,
               is_kept ? "; whoever uses the store next from this run directory does that" : "");
}

FuseeSession::~FuseeSession() {
  if (!attached()) return;
  if (offers()) leave();
  detach();
}

}  // namespace sluice::rack
