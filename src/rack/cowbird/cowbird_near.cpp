#include "rack/cowbird/cowbird_near.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <new>
#include <utility>

#include "rack/cowbird/cowbird_spot.h"
#include "rack/endpoint/link.h"
#include "rack/settings/schema.h"
#include "rc/remote_rc.h"
#include "remote/mapped.h"

namespace sluice::rack {
namespace {

constexpr std::uint32_t kDepth = 256;  // operations at once, of a block and to another memory node
constexpr remote::NodeId kHost{0};     // the only node of a block's connection

}  // namespace

// What the engines of one tenant's hosts reach.
class CowbirdNear::Pool final : public remote::RemoteMemory {
 public:
  Pool(remote::Scheduler& scheduler, remote::NodeId self, rc::RemoteRc& others)
      : RemoteMemory(scheduler), self_(self), near_(scheduler), others_(others) {}

  // `others`: what other nodes export. What is ours is judged here, and may be newer than what the directory knows of it.
  void map(const std::vector<RegionRecord>& own, std::set<remote::NodeId> denied,
           const std::vector<cowbird::Region>& others) {
    exports_.set(others);
    near_.clear();
    for (const RegionRecord& region : own) {
      near_.add({self_, remote::RegionKey(region.key), region.address},
                {reinterpret_cast<std::uint8_t*>(region.address), region.length});
    }
    denied_ = std::move(denied);
  }

  remote::Capabilities capabilities() const override {
    remote::Capabilities all = near_.capabilities();
    all.max_length = std::min(all.max_length, others_.capabilities().max_length);
    all.name = "mapped, rc";
    return all;
  }
  remote::MappedMemory* mapped() override { return &near_; }
  cowbird::Exports& exports() { return exports_; }
  void submit(remote::Operation& operation) override {
    const remote::NodeId node = operation.remote.node;
    if (node == self_) return near_.submit(operation);
    if (denied_.contains(node)) return complete(operation, remote::Status::kAccessDenied);
    others_.submit(operation);
  }

 private:
  remote::NodeId self_;
  remote::MappedMemory near_;
  rc::RemoteRc& others_;
  std::set<remote::NodeId> denied_;
  cowbird::Exports exports_;
};

// One block, its connection, and while that is up its engines.
class CowbirdNear::Block {
 public:
  Block(CowbirdNear& owner, std::string host, Link::Peer peer, const CowbirdOffer& offer, Pool& pool)
      : owner_(owner),
        host_(std::move(host)),
        peer_(peer),
        offer_(offer),
        pool_(pool),
        completions_(owner.connector_.adapter().create_completion_queue(kDepth)),
        memory_(*owner.scheduler_, owner.connector_.adapter(), *completions_) {
    LinkConfig config;
    config.pair = {.pd = owner.connector_.adapter().create_domain(),
                   .send_completions = completions_,
                   .receive_completions = completions_,
                   .send_depth = kDepth,
                   .receive_depth = 1};
    config.private_data = greeting_for(offer);
    link_ = std::make_unique<Link>(owner.connector_, std::move(config),
                                   Link::Events{.on_up = [this](Time, rc::QueuePair& pair) { pair_ = &pair; },
                                                .on_down = [this](Time, rc::QueuePair&) { cut(); },
                                                .on_made = {}});
  }
  ~Block() {
    link_.reset();
    owner_.connector_.adapter().destroy(completions_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  const std::string& host() const { return host_; }
  std::uint64_t bytes() const { return offer_.layout.bytes(); }
  bool begun() const { return begun_; }
  bool serving() const { return engines_ != nullptr; }
  cowbird::EngineCounters engines() const { return engines_ ? engines_->engines() : cowbird::EngineCounters{}; }
  bool over() const { return leaving_ && !engines_; }

  void begin(Time now) {
    begun_ = true;
    link_->want(now, peer_);
  }
  void leave() {
    leaving_ = true;
    stop_engines();
  }
  // Said once.
  void wait_for_room() {
    if (std::exchange(waiting_, true)) return;
    ++owner_.counters_.refused;
    spdlog::warn(
        "cowbird: an application of {} has rings of {}, for which there is no room; it waits, see cowbird-rings", host_,
        bytes_text(bytes()));
  }
  // Whatever is under way ends now.
  void disconnect(Time now) { link_->want(now, std::nullopt); }
  // New engines, on a new connection.
  void renew(Time now, const std::string& why) { link_->failed(now, why); }

  std::size_t poll(Time now) {
    const std::size_t completed = memory_.poll(now);
    if (attached_ && !memory_.connected(kHost)) link_->failed(now, "the connection broke");
    link_->poll(now);
    if (engines_) look_at_engines();
    if (!engines_ && !leaving_ && pair_ != nullptr) serve(now);
    return completed;
  }
  Time next_deadline() const { return link_->next_deadline(); }

 private:
  void serve(Time now) {
    memory_.add_node(kHost, *pair_);
    attached_ = true;
    stopping_ = false;
    cowbird::EngineConfig config = owner_.config_.engine;
    config.exports = &pool_.exports();
    const remote::RemoteAddress at{kHost, remote::RegionKey(offer_.key), kBlockBase};
    try {
      engines_ = std::make_unique<CowbirdEngines>(*owner_.scheduler_, memory_, at, offer_.layout, pool_, config,
                                                  "an application of " + host_);
    } catch (const std::bad_alloc&) {
      return link_->failed(now, fmt::format("no memory left for rings of {}", bytes_text(bytes())));
    }
    ++owner_.counters_.served;
  }
  void cut() {
    memory_.remove_node(kHost);
    attached_ = false;
    pair_ = nullptr;
    stop_engines();
  }
  void stop_engines() {
    stopping_ = true;
    if (engines_) engines_->stop();
  }
  void look_at_engines() {
    if (const std::size_t broken = engines_->broken(); broken > broken_) {
      owner_.counters_.broken += broken - std::exchange(broken_, broken);
    }
    if (!stopping_ || !engines_->ended()) return;
    owner_.engines_gone_ += engines_->engines();
    engines_.reset();
    broken_ = 0;
  }

  CowbirdNear& owner_;
  std::string host_;
  Link::Peer peer_;
  CowbirdOffer offer_;
  Pool& pool_;
  rc::CompletionQueue* completions_;
  rc::RemoteRc memory_;
  std::unique_ptr<Link> link_;
  rc::QueuePair* pair_ = nullptr;  // null: not connected
  bool attached_ = false;          // memory_ has it
  std::unique_ptr<CowbirdEngines> engines_;
  std::size_t broken_ = 0;  // of these engines' channels
  bool stopping_ = false;
  bool begun_ = false;
  bool waiting_ = false;
  bool leaving_ = false;
};

CowbirdNear::CowbirdNear(nic::Connector& connector, MemoryNode& memory, remote::NodeId self, std::string name,
                         const Config& config)
    : connector_(connector),
      memory_(memory),
      self_(self),
      name_(std::move(name)),
      config_(config),
      others_(connector, *scheduler_, RemoteNodes::Options{.depth = kDepth}) {}

// Coroutines go after what they wait for has ended, and before what they use.
CowbirdNear::~CowbirdNear() {
  for (const auto& [id, block] : blocks_) block->disconnect(Time());
  others_.set_nodes(Time(), {});
  scheduler_.reset();
}

CowbirdNear::Pool& CowbirdNear::pool_of(const std::string& tenant) {
  auto& pool = pools_[tenant];
  if (!pool) pool = std::make_unique<Pool>(*scheduler_, self_, others_.memory());
  return *pool;
}

void CowbirdNear::map_pools() {
  std::vector<cowbird::Region> others = exports_of(nodes_, {});  // over the rack's connections
  std::erase_if(others, [&](const cowbird::Region& region) { return region.node == self_.value; });
  for (const auto& [tenant, pool] : pools_) {
    std::set<remote::NodeId> denied;
    for (const NodeRecord* node : nodes_.ready(NodeKind::kMemory)) {
      if (!tenant.empty() && !node->description.attributes.contains(kSharedAttribute)) denied.insert(node->id);
    }
    pool->map(memory_.regions_of(tenant), std::move(denied), others);
  }
}

void CowbirdNear::set_nodes(Time now, const Snapshot& snapshot) {
  nodes_ = snapshot;
  clients_.learn(snapshot);
  std::set<Id> offered;
  for (const NodeRecord* host : snapshot.ready(NodeKind::kClient)) {
    const auto& attributes = host->description.attributes;
    const auto at = attributes.find(kCowbirdAtAttribute);
    const auto offers = attributes.find(kCowbirdOffersAttribute);
    if (at == attributes.end() || at->second != name_ || offers == attributes.end()) continue;
    for (const CowbirdOffer& offer : parse_offers(offers->second)) {
      const Id id{host->id.value, host->incarnation, offer.serial};
      offered.insert(id);
      if (!blocks_.contains(id)) take(id, *host, offer);
    }
  }
  let_go(offered);
  Snapshot others;
  if (!blocks_.empty()) others = snapshot;
  std::erase_if(others.nodes, [&](const NodeRecord& node) { return node.id == self_; });
  others_.set_nodes(now, others);
  map_pools();
  begin_what_fits(now);
}

void CowbirdNear::take(const Id& id, const NodeRecord& host, const CowbirdOffer& offer) {
  const wire::Gid at = wire::Gid::from(host.ip);
  const auto owner = clients_.owner(at);
  if (!owner) return;
  blocks_[id] = std::make_unique<Block>(*this, host.description.name, Link::Peer{at, host.description.cm_port}, offer,
                                        pool_of(*owner));
}

void CowbirdNear::let_go(const std::set<Id>& offered) {
  for (const auto& [id, block] : blocks_) {
    if (!offered.contains(id)) block->leave();
  }
}

void CowbirdNear::begin_what_fits(Time now) {
  std::uint64_t room = config_.most_bytes;
  for (const auto& [id, block] : blocks_) {
    if (block->begun()) room -= block->bytes();
  }
  for (const auto& [id, block] : blocks_) {
    if (block->begun()) continue;
    if (block->bytes() > room) {
      block->wait_for_room();
      continue;
    }
    room -= block->bytes();
    block->begin(now);
  }
}

void CowbirdNear::fence(Time now) {
  for (const auto& [id, block] : blocks_) block->renew(now, "our lease was lost");
  map_pools();
}

std::size_t CowbirdNear::serving() const {
  return static_cast<std::size_t>(
      std::count_if(blocks_.begin(), blocks_.end(), [](const auto& entry) { return entry.second->serving(); }));
}

cowbird::EngineCounters CowbirdNear::engines() const {
  cowbird::EngineCounters sum = engines_gone_;
  for (const auto& [id, block] : blocks_) sum += block->engines();
  return sum;
}

std::size_t CowbirdNear::poll(Time now) {
  std::size_t done = others_.poll(now);
  for (const auto& [id, block] : blocks_) done += block->poll(now);
  if (std::erase_if(blocks_, [](const auto& entry) { return entry.second->over(); }) != 0) begin_what_fits(now);
  return done + coroutines_.poll(now);
}

Time CowbirdNear::next_deadline() const {
  Time next = std::min(others_.next_deadline(), coroutines_.next_deadline());
  for (const auto& [id, block] : blocks_) next = std::min(next, block->next_deadline());
  return next;
}

}  // namespace sluice::rack
