#include "rack/memory_node.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "base/check.h"
#include "nic/nic.h"
#include "rack/schema.h"

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
  auto made =
      connections_.size() < most_ ? connector_.adapter().create_queue_pair(pair_) : fail("too many connections");
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

void Acceptor::drop_gone(Time now, const Snapshot& snapshot) {
  std::vector<rc::ConnectionId> over;
  for (const auto& [id, connection] : connections_) {
    const auto& remote = connection.remote;
    const bool gone = std::any_of(snapshot.nodes.begin(), snapshot.nodes.end(), [&remote](const NodeRecord& node) {
      return node.state == NodeState::kGone && wire::Gid::from(node.ip) == remote;
    });
    if (gone) over.emplace_back(id);
  }
  for (const rc::ConnectionId id : over) end(now, id);
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
  if (auto added = node->add_region(); !added) return tl::unexpected(added.error());
  // Each key of a place in the table ends in the number after that of the one before (memory/region.h).
  while (node->key_.value % kKeyVariants != incarnation % kKeyVariants) {
    adapter.regions().remove(node->key_);
    if (auto added = node->add_region(); !added) return tl::unexpected(added.error());
  }
  rc::CompletionQueue* completions = adapter.create_completion_queue(16);
  const rc::QueuePairConfig pair{.pd = node->domain_,
                                 .send_completions = completions,
                                 .receive_completions = completions,
                                 .send_depth = 1,
                                 .receive_depth = 1};
  node->acceptor_ = std::make_unique<Acceptor>(connector, pair, connections, Acceptor::Events{});
  return node;
}

Result<void> MemoryNode::add_region() {
  auto key = connector_.adapter().regions().add({.pd = domain_,
                                                 .bytes = mapping_.bytes(),
                                                 .address = reinterpret_cast<std::uintptr_t>(mapping_.bytes().data()),
                                                 .access = memory::kAllAccess});
  if (!key) return tl::unexpected(key.error());
  key_ = *key;
  return {};
}

void MemoryNode::fence(Time now) {
  acceptor_->drop_all(now);
  connector_.adapter().regions().remove(key_);
  const auto added = add_region();
  SLUICE_CHECK(added.has_value());  // its place was free
}

RegionRecord MemoryNode::region() const {
  return {"main", reinterpret_cast<std::uintptr_t>(mapping_.bytes().data()), mapping_.bytes().size(), key_.value};
}

}  // namespace sluice::rack
