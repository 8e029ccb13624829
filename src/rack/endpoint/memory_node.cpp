#include "rack/endpoint/memory_node.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <set>
#include <utility>

#include "base/check.h"
#include "nic/nic.h"
#include "rack/settings/schema.h"

namespace sluice::rack {

using rc::ConnectionEvent;

namespace {
constexpr std::uint64_t kKeyVariants = 256;
}  // namespace

Result<Mapping> Mapping::make(std::uint64_t size) {
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return fail(
        fmt::format("size = \"{}\": cannot be mapped: {}; choose less", bytes_text(size), std::strerror(errno)));
  madvise(at, size, MADV_DONTDUMP);
  return Mapping(MutableBytes(static_cast<std::uint8_t*>(at), size));
}

Mapping::~Mapping() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

Acceptor::Acceptor(nic::Connector& connector, rc::QueuePairConfig pair, std::size_t most, Events events)
    : connector_(connector), pair_(pair), most_(most), events_(std::move(events)) {}

Acceptor::~Acceptor() { drop_all(Time()); }

Result<void> Acceptor::listen(std::uint16_t port) {
  return connector_.listen(port, [this](Time now, const ConnectionEvent& event) { on_request(now, event); });
}

void Acceptor::on_request(Time now, const ConnectionEvent& event) {
  rc::QueuePairConfig pair_config = pair_;
  if (events_.domain_for) {
    const auto domain = events_.domain_for(now, event);
    if (!domain) {
      ++refused_;
      return connector_.reject(now, event.id);
    }
    pair_config.pd = *domain;
  }
  auto made =
      connections_.size() < most_ ? connector_.adapter().create_queue_pair(pair_config) : fail("too many connections");
  if (!made) {
    ++refused_;
    return connector_.reject(now, event.id);
  }
  rc::QueuePair* pair = *made;
  rc::ConnectionParameters parameters;
  parameters.pair = pair;
  parameters.responder_resources = nic::kReadsInFlight;
  parameters.initiator_depth = nic::kReadsInFlight;
  parameters.private_data = events_.greeting;
  connections_[event.id.value] = {pair, event.remote};
  auto accepted =
      connector_.accept(now, event.id, parameters, [this](Time t, const ConnectionEvent& e) { on_event(t, e); });
  if (!accepted) {
    ++refused_;
    connections_.erase(event.id.value);
    connector_.adapter().destroy(pair);
    return connector_.reject(now, event.id);
  }
  ++accepted_;
  if (events_.on_made) events_.on_made(*pair);
}

void Acceptor::on_event(Time now, const ConnectionEvent& event) {
  if (event.kind == ConnectionEvent::Kind::kEstablished) return;
  end(now, event.id);
}

void Acceptor::end(Time now, rc::ConnectionId id) {
  const auto found = connections_.find(id.value);
  if (found == connections_.end()) return;
  rc::QueuePair* pair = found->second.pair;
  connections_.erase(found);
  connector_.forget(now, id);
  static_cast<void>(connector_.adapter().modify(now, *pair, {.state = rc::QpState::kError}));
  if (events_.on_gone) events_.on_gone(*pair);
  connector_.adapter().destroy(pair);
}

void Acceptor::drop_all(Time now) {
  while (!connections_.empty()) end(now, rc::ConnectionId(connections_.begin()->first));
}

void Acceptor::drop_if(Time now, const std::function<bool(const Connection&)>& over) {
  std::vector<rc::ConnectionId> ending;
  for (const auto& [id, connection] : connections_) {
    if (over(connection)) ending.emplace_back(id);
  }
  for (const rc::ConnectionId id : ending) end(now, id);
}

void Acceptor::drop_domain(Time now, memory::PdId domain) {
  drop_if(now, [&](const Connection& connection) { return connection.pair->config().pd == domain; });
}

void Acceptor::drop_gone(Time now, const Snapshot& snapshot) {
  // Whoever was there and is not named any more has been forgotten meanwhile.
  std::set<wire::Gid> gone = std::exchange(there_, {});
  for (const NodeRecord& node : snapshot.nodes)
    (node.state == NodeState::kGone ? gone : there_).insert(wire::Gid::from(node.ip));
  for (const wire::Gid& address : there_) gone.erase(address);
  drop_if(now, [&](const Connection& connection) { return gone.contains(connection.remote); });
}

MemoryNode::MemoryNode(nic::Connector& connector, Mapping mapping)
    : connector_(connector), mapping_(std::move(mapping)) {
  std::random_device chance;
  life_ = fmt::format("{:08x}{:08x}", chance(), chance());
}

Result<std::unique_ptr<MemoryNode>> MemoryNode::make(nic::Connector& connector, std::uint64_t size,
                                                     std::size_t connections, std::uint64_t incarnation) {
  auto mapping = Mapping::make(size);
  if (!mapping) return tl::unexpected(mapping.error());
  std::unique_ptr<MemoryNode> node(new MemoryNode(connector, std::move(*mapping)));
  rc::Adapter& adapter = connector.adapter();
  node->domain_ = adapter.create_domain();
  auto key = node->add_region(node->domain_, node->bytes());
  // Each key of a place in the table ends in the number after that of the one before (memory/region.h).
  while (key && key->value % kKeyVariants != incarnation % kKeyVariants) {
    adapter.regions().remove(*key);
    key = node->add_region(node->domain_, node->bytes());
  }
  if (!key) return tl::unexpected(key.error());
  node->key_ = *key;
  rc::CompletionQueue* completions = adapter.create_completion_queue(16);
  const rc::QueuePairConfig pair{.pd = node->domain_,
                                 .send_completions = completions,
                                 .receive_completions = completions,
                                 .send_depth = 1,
                                 .receive_depth = 1};
  Acceptor::Events events;
  events.domain_for = [self = node.get()](Time, const ConnectionEvent& event) {
    return self->domain_for(event.remote);
  };
  node->acceptor_ = std::make_unique<Acceptor>(connector, pair, connections, std::move(events));
  return node;
}

Result<memory::Key> MemoryNode::add_region(memory::PdId domain, MutableBytes bytes) {
  return connector_.adapter().regions().add({.pd = domain,
                                             .bytes = bytes,
                                             .address = reinterpret_cast<std::uintptr_t>(bytes.data()),
                                             .access = memory::kAllAccess});
}

void MemoryNode::fence(Time now) {
  acceptor_->drop_all(now);
  memory::RegionTable& table = connector_.adapter().regions();
  const auto renew = [&](memory::Key& key, memory::PdId domain, MutableBytes bytes) {
    table.remove(key);
    const auto added = add_region(domain, bytes);
    SLUICE_CHECK(added.has_value());  // its place was free
    key = *added;
  };
  renew(key_, domain_, bytes());
  for (auto& [name, piece] : pieces_) renew(piece.key, piece.domain, piece.mapping.bytes());
}

memory::PdId MemoryNode::domain_of(const std::string& tenant) {
  const auto [known, is_new] = domains_.try_emplace(tenant);
  if (is_new) known->second = connector_.adapter().create_domain();
  return known->second;
}

// An address that the directory does not know would be taken for the rack's own; a tenant that was shut out is one.
std::optional<memory::PdId> MemoryNode::domain_for(const wire::Gid& remote) {
  const auto owner = clients_.owner(remote);
  if (!owner) return std::nullopt;
  return shared_ || owner->empty() ? domain_ : domain_of(*owner);
}

bool MemoryNode::follow(Time now, const Snapshot& snapshot, const std::string& name) {
  acceptor_->drop_gone(now, snapshot);
  clients_.learn(snapshot);
  bool changed = false;
  std::erase_if(pieces_, [&](const auto& entry) {
    const std::uint64_t birth = entry.second.birth;
    const bool is_wanted = std::ranges::any_of(snapshot.regions, [&](const TenantRegion& region) {
      return (region.node == name && region.birth == birth) || (region.moving_to == name && region.next_birth == birth);
    });
    if (is_wanted) return false;
    connector_.adapter().regions().remove(entry.second.key);
    return changed = true;
  });
  for (const TenantRegion& region : snapshot.regions) {
    if (region.node == name &&
        provide(region, region.birth, region.moving_to.empty() ? Reach::kTenant : Reach::kLeaves))
      changed = true;
    if (region.moving_to == name && provide(region, region.next_birth, Reach::kArrives)) changed = true;
  }
  return changed;
}

// The memory of that birth, within that one's reach. True: that was news.
bool MemoryNode::provide(const TenantRegion& region, std::uint64_t birth, Reach reach) {
  const memory::PdId domain = reach == Reach::kTenant ? domain_of(region.tenant) : domain_;
  const std::pair<std::string, std::string> name{region.tenant, region.name};
  if (const auto known = pieces_.find(name); known != pieces_.end()) {
    Piece& piece = known->second;
    if (piece.reach == reach) return false;
    connector_.adapter().regions().remove(piece.key);
    const auto key = add_region(domain, piece.mapping.bytes());
    SLUICE_CHECK(key.has_value());  // its place was free
    piece.key = *key;
    piece.domain = domain;
    piece.reach = reach;
    return true;
  }
  auto mapping = Mapping::make(region.length);
  auto key = mapping ? add_region(domain, mapping->bytes()) : tl::unexpected(mapping.error());
  if (!key) {
    spdlog::warn("region {}/{}: {}", region.tenant, region.name, key.error().message);
    return false;  // tried again with the next change
  }
  pieces_.try_emplace(name, Piece{std::move(*mapping), birth, reach, domain, *key});
  return true;
}

RegionRecord MemoryNode::region() const {
  return {kMainRegion, reinterpret_cast<std::uintptr_t>(mapping_.bytes().data()), mapping_.bytes().size(), key_.value};
}

std::vector<RegionRecord> MemoryNode::regions() const {
  std::vector<RegionRecord> all{region()};
  for (const auto& [name, piece] : pieces_) {
    const MutableBytes bytes = piece.mapping.bytes();
    RegionRecord record{name.second, reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size(), piece.key.value,
                        name.first};
    if (piece.reach != Reach::kTenant) {
      record.name =
          fmt::format("{}{}/{}", piece.reach == Reach::kLeaves ? kLeaving : kArriving, name.first, name.second);
      record.owner.clear();
    }
    all.push_back(std::move(record));
  }
  return all;
}

std::vector<RegionRecord> MemoryNode::regions_of(const std::string& tenant) const {
  std::vector<RegionRecord> all = regions();
  std::erase_if(
      all, [&](const RegionRecord& region) { return region.owner != tenant && !(shared_ && region.owner.empty()); });
  return all;
}

std::uint64_t MemoryNode::tenants_bytes() const {
  std::uint64_t all = 0;
  for (const auto& [name, piece] : pieces_) all += piece.mapping.bytes().size();
  return all;
}

}  // namespace sluice::rack
