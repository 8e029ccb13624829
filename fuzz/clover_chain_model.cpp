#include "fuzz/clover_chain_model.h"

namespace sluice::fuzz {

using namespace clover;  // the fuzzer speaks nothing else

ServerConfig ChainModel::one_replica_each(const Terms& terms) {
  std::vector<Region> regions;
  for (std::uint32_t i = 0; i < 2; ++i)
    regions.push_back({{remote::NodeId(i), remote::RegionKey(7 + i), 0x1000}, 64 * 60});
  return {.volumes = *spread(regions, 1),
          .value_bytes = 40,
          .cursor_lifetime = terms.lifetime,
          .max_flight = terms.flight,
          .grant_slots = 8};
}

ChainModel::ChainModel(Terms terms, Journal* journal)
    : terms_(terms), server_(std::make_unique<MetadataServer>(one_replica_each(terms), journal)) {}

ChainModel::ChainModel(const ChainModel& other)
    : terms_(other.terms_),
      server_(std::make_unique<MetadataServer>(*other.server_)),
      now_(other.now_),
      clock_(other.clock_),
      sequence_(other.sequence_),
      chains_(other.chains_) {}

// ---------------------------------------------------------------------------------------------------------- messages

void ChainModel::begin(Request type, const Client& client, std::size_t count, std::uint32_t sequence) {
  out_ = MessageWriter(request_);
  put_header(out_, RequestHeader{type, static_cast<std::uint16_t>(count), client.id, sequence});
}

std::optional<AnswerHeader> ChainModel::send(Client& client) {
  const std::size_t length = server_->handle(now_, ByteView(request_).first(out_.length()), answer_);
  answer_in_ = MessageReader(ByteView(answer_).first(length));
  const auto header = take_answer_header(answer_in_);
  SLUICE_CHECK(header.has_value());
  SLUICE_CHECK(header->result != Answer::kMalformed);
  if (header->result == Answer::kExpired) {
    client = {};
    return std::nullopt;
  }
  SLUICE_CHECK(header->clock >= client.clock && header->clock >= clock_);
  client.clock = clock_ = header->clock;
  client.lease = now_ + Duration::microseconds(header->lease_us);
  return header;
}

void ChainModel::refresh(Client& client) {
  const bool is_new = client.id == 0;
  begin(is_new ? Request::kRegister : Request::kRefresh, client, 0);
  const auto header = send(client);
  if (!header) return;
  const auto view = take_view(answer_in_, header->count);
  SLUICE_CHECK(view.has_value());
  if (is_new) client.id = view->client;
}

bool ChainModel::is_in(Client& client) {
  if (client.id == 0 || now_ >= client.lease) refresh(client);
  if (client.id == 0) refresh(client);
  return now_ < client.lease;
}

std::vector<NodePointer> ChainModel::grant(Client& client, std::uint64_t wanted) {
  std::vector<NodePointer> granted;
  begin(Request::kAllocate, client, 1, ++sequence_);
  out_.put(wanted);
  const auto header = send(client);
  if (!header || header->result != Answer::kOk) return granted;
  for (std::size_t i = 0; i < header->count; ++i) granted.push_back({answer_in_.take64()});
  client.slots.insert(client.slots.end(), granted.begin(), granted.end());
  return granted;
}

// The last of its slots.
void ChainModel::give_back(Client& client, Request how) {
  begin(how, client, 1);
  out_.put(client.slots.back().word);
  client.slots.pop_back();
  const auto header = send(client);
  SLUICE_CHECK(!header || header->result == Answer::kOk);
}

void ChainModel::tell(Client& client, const Link& said) {
  begin(Request::kReport, client, 1);
  out_.put(said.key);
  out_.put(said.node.word);
  out_.put(said.stamp);
  send(client);
}

void ChainModel::tell_sealed(Client& client, const Chain& chain) {
  begin(Request::kSealed, client, 1);
  out_.put(chain.key);
  out_.put(chain.nodes.back().word);
  const auto header = send(client);
  SLUICE_CHECK(!header || header->result == Answer::kOk);
}

void ChainModel::tell_checked(Client& client, Key key, NodePointer orphan) {
  const bool has_gone_back = server_->slots().find(orphan) == nullptr;
  begin(Request::kChecked, client, 1);
  out_.put(key);
  out_.put(orphan.word);
  const auto header = send(client);
  SLUICE_CHECK(!header || has_gone_back || header->result == Answer::kOk);
}

std::optional<std::pair<std::size_t, std::size_t>> ChainModel::named(Client& client, Key key) {
  begin(Request::kLookup, client, 1);
  out_.put(key);
  SLUICE_CHECK(send(client).has_value());
  const NodePointer head{answer_in_.take64()};
  if (!head) {
    SLUICE_CHECK(chain_of(key) == nullptr);
    return std::nullopt;
  }
  const auto* const slot = server_->slots().find(head);
  SLUICE_CHECK(slot != nullptr && slot->state == SlotState::kLive);
  // A chain that is sealed is named until the server has heard of that.
  for (std::size_t i = chains_.size(); i-- > 0;) {
    const auto& nodes = chains_[i].nodes;
    const auto at = std::ranges::find(nodes, head);
    if (chains_[i].key != key || at == nodes.end()) continue;
    SLUICE_CHECK(chain_of(key) == nullptr || chain_of(key) == &chains_[i]);
    return std::pair(i, static_cast<std::size_t>(at - nodes.begin()));
  }
  SLUICE_CHECK(false);
  return std::nullopt;
}

// ------------------------------------------------------------------------------------------------------------ chains

ChainModel::Chain* ChainModel::chain_of(Key key) {
  for (auto& chain : chains_) {
    if (chain.key == key && !chain.sealed) return &chain;
  }
  return nullptr;
}

std::optional<std::pair<std::size_t, std::size_t>> ChainModel::find(NodePointer slot) const {
  for (std::size_t i = chains_.size(); i-- > 0;) {
    const auto& nodes = chains_[i].nodes;
    const auto at = std::ranges::find_if(nodes, [&](NodePointer n) { return n.as(NodeKind::kValue) == slot; });
    if (at != nodes.end()) return std::pair(i, static_cast<std::size_t>(at - nodes.begin()));
  }
  return std::nullopt;
}

void ChainModel::link(Client& client, Key key, NodeKind kind) {
  Chain* const chain = chain_of(key);
  const NodePointer node = client.slots.back().as(kind);
  if (chain != nullptr) {
    if (kind == NodeKind::kTombstone && chain->nodes.back().kind() == kind) return;
    client.slots.pop_back();
    chain->nodes.push_back(node);
    client.links.push_back({key, node, client.clock});
    return;
  }
  if (kind == NodeKind::kTombstone) return;
  begin(Request::kCreate, client, 1);
  out_.put(key);
  out_.put(node.word);
  const auto header = send(client);
  if (!header) return;
  // Sealed, and the server has not heard of it.
  if (header->result == Answer::kExists) return;
  SLUICE_CHECK(header->result == Answer::kOk);
  client.slots.pop_back();
  chains_.push_back({.key = key, .nodes = {node}});
}

void ChainModel::doubt(Client& client, std::size_t which) {
  const Link link = client.links[which];
  client.links.erase(client.links.begin() + static_cast<std::ptrdiff_t>(which));
  begin(Request::kOrphan, client, 1);
  out_.put(link.node.as(NodeKind::kValue).word);
  send(client);
}

void ChainModel::work(Client& client, std::size_t most) {
  if (!is_in(client)) return;
  begin(Request::kWork, client, most);
  const auto header = send(client);
  if (!header) return;
  std::vector<Work> pieces;
  for (std::size_t i = 0; i < header->count; ++i) {
    Work piece;
    piece.kind = static_cast<WorkKind>(answer_in_.take64());
    piece.key = answer_in_.take64();
    piece.node.word = answer_in_.take64();
    pieces.push_back(piece);
  }
  for (const Work& piece : pieces) do_piece(client, piece);
}

void ChainModel::do_piece(Client& client, const Work& piece) {
  if (piece.kind == WorkKind::kOrphan) return look_into(client, piece.node);
  Chain* const chain = chain_of(piece.key);
  if (chain == nullptr) {
    for (auto& sealed : chains_) {
      if (sealed.key == piece.key && std::ranges::find(sealed.nodes, piece.node) != sealed.nodes.end())
        tell_sealed(client, sealed);
    }
    return;
  }
  const std::uint64_t stamp = client.clock;
  if (piece.kind == WorkKind::kSeal && chain->nodes.back().kind() == NodeKind::kTombstone) {
    chain->sealed = true;
    if (tells_of_seals()) tell_sealed(client, *chain);
    return;
  }
  tell(client, {chain->key, chain->nodes.back(), stamp});
}

void ChainModel::look_into(Client& client, NodePointer orphan) {
  const auto at = find(orphan);
  // Where it never was written it holds the key of a life before.
  const Key key = at ? chains_[at->first].key : orphan.address() / 64 % terms_.keys;
  if (at) {
    const auto head = named(client, key);
    if (head && head->first == at->first && head->second <= at->second)
      return tell(client, {key, chains_[at->first].nodes[at->second], 0});
  }
  tell_checked(client, key, orphan);
}

// ---------------------------------------------------------------------------------------------- restarts and checks

void ChainModel::start_again(const std::vector<std::vector<std::uint8_t>>& records, Duration gone, Journal* journal) {
  auto again = std::make_unique<MetadataServer>(one_replica_each(terms_), journal);
  for (const auto& record : records) SLUICE_CHECK(again->replay(record));
  now_ = now_ - gone;
  again->restart(now_);
  server_ = std::move(again);
}

void ChainModel::check_tails() const {
  for (const Chain& chain : chains_) {
    if (chain.sealed) continue;
    const auto* const slot = std::as_const(*server_).slots().find(chain.nodes.back());
    SLUICE_CHECK(slot != nullptr && !slot->is_spent());
  }
}

void ChainModel::finish(Client& last) {
  for (int i = 0; i < 120; ++i) {
    now_ = now_ + terms_.lifetime / 4;
    for (int rounds = 0; rounds < 4; ++rounds) work(last, 64);
    check();
  }
  std::size_t there = 0;
  for (Key key = 0; key < terms_.keys; ++key) {
    const Chain* const chain = chain_of(key);
    const bool is_in_lease = is_in(last);
    SLUICE_CHECK(is_in_lease);
    const auto head = named(last, key);
    SLUICE_CHECK(head.has_value() == (chain != nullptr));
    if (chain == nullptr) continue;
    ++there;
    SLUICE_CHECK(head->first == index_of(*chain) && head->second + 1 == chain->nodes.size());
  }
  const auto count = [&](SlotState state) { return server_->slots().count(state); };
  SLUICE_CHECK(server_->keys() == there && count(SlotState::kLive) == there);
  SLUICE_CHECK(count(SlotState::kFree) + there == server_->slots().capacity());
}

}  // namespace sluice::fuzz
