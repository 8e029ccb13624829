// Clients that keep to the rules, whatever the script has them do when, against a model that has all chains whole.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "clover/kept_journal.h"
#include "clover/metadata.h"
#include "fuzz/clover_properties.h"
#include "fuzz/script.h"

namespace sluice::fuzz {
namespace {

using namespace clover;  // the fuzzer speaks nothing else

constexpr Duration kLifetime = Duration::microseconds(80);
constexpr Duration kFlight = Duration::microseconds(30);
constexpr std::size_t kClients = 3;
constexpr Key kKeys = 4;

ServerConfig one_replica_each() {
  std::vector<Region> regions;
  for (std::uint32_t i = 0; i < 2; ++i)
    regions.push_back({{remote::NodeId(i), remote::RegionKey(7 + i), 0x1000}, 64 * 60});
  return {.volumes = *spread(regions, 1),
          .value_bytes = 40,
          .cursor_lifetime = kLifetime,
          .max_flight = kFlight,
          .grant_slots = 8};
}

class Chains {
 public:
  explicit Chains(ByteView script) : in_(script) {}

  void run() {
    while (!in_.empty()) {
      command();
      check_cursors();
      check_tails();
    }
    finish();
  }

 private:
  // The versions of a key, in order; of a chain that was sealed nothing follows the last.
  struct Chain {
    Key key = 0;
    std::vector<NodePointer> nodes;  // with their kinds
    bool sealed = false;
  };
  struct Client {
    std::uint32_t id = 0;  // none: it is to register
    std::uint64_t clock = 0;
    Time lease;  // of its membership
    std::vector<NodePointer> slots;
    std::vector<Link> links;  // not reported yet
  };
  // Who holds it may read all that follows, up to then and a flight more.
  struct Cursor {
    std::size_t chain = 0;
    std::size_t at = 0;
    Time until;
  };

  void command() {
    const std::uint8_t what = in_.next();
    Client& client = clients_[in_.next() % kClients];
    switch (what % 16) {
      case 0: pass(Duration::microseconds(in_.next() % 64)); break;
      case 1: refresh(client); break;
      case 2: grant(client); break;
      case 3:
      case 4:
      case 5: link(client, NodeKind::kValue); break;
      case 6: link(client, NodeKind::kTombstone); break;
      case 7:
      case 8: report(client); break;
      case 9: see_tail(client); break;
      case 10:
      case 11: work(client, std::size_t{in_.next()} % 8); break;
      case 12: look_up(client); break;
      case 13: give_back(client); break;
      case 14: doubt(client); break;
      default: start_again(); break;
    }
  }

  Key some_key() { return in_.next() % kKeys; }

  // -------------------------------------------------------------------------------------------------------- messages

  void begin(Request type, const Client& client, std::size_t count, std::uint32_t sequence = 0) {
    out_ = MessageWriter(request_);
    put_header(out_, RequestHeader{type, static_cast<std::uint16_t>(count), client.id, sequence});
  }
  // Nothing: the server does not know the client any more.
  std::optional<AnswerHeader> send(Client& client) {
    const std::size_t length = server_->handle(now_, ByteView(request_).first(out_.length()), answer_);
    answer_in_ = MessageReader(ByteView(answer_).first(length));
    const auto header = take_answer_header(answer_in_);
    SLUICE_CHECK(header.has_value());
    SLUICE_CHECK(header->result != Answer::kMalformed);
    if (header->result == Answer::kExpired) {
      client = {};
      return std::nullopt;
    }
    SLUICE_CHECK(header->clock >= client.clock);
    client.clock = header->clock;
    client.lease = now_ + Duration::microseconds(header->lease_us);
    return header;
  }
  void refresh(Client& client) {
    const bool is_new = client.id == 0;
    begin(is_new ? Request::kRegister : Request::kRefresh, client, 0);
    const auto header = send(client);
    if (!header) return;
    const auto view = take_view(answer_in_, header->count);
    SLUICE_CHECK(view.has_value());
    if (is_new) client.id = view->client;
  }
  // As a client does before it acts on memory: out of its lease it asks first.
  bool is_in(Client& client) {
    if (client.id == 0 || now_ >= client.lease) refresh(client);
    if (client.id == 0) refresh(client);
    return now_ < client.lease;
  }

  void grant(Client& client) {
    if (!is_in(client)) return;
    begin(Request::kAllocate, client, 1, ++sequence_);
    out_.put(std::uint64_t{4});
    const auto header = send(client);
    if (!header || header->result != Answer::kOk) return;
    for (std::size_t i = 0; i < header->count; ++i) {
      const NodePointer slot{answer_in_.take64()};
      // What anybody may still read is no slot of anybody's.
      for (const Cursor& cursor : cursors_) {
        const auto& nodes = chains_[cursor.chain].nodes;
        for (std::size_t n = cursor.at; n < nodes.size(); ++n)
          SLUICE_CHECK(nodes[n].volume() != slot.volume() || nodes[n].address() != slot.address());
      }
      client.slots.push_back(slot);
    }
  }

  Chain* chain_of(Key key) {
    for (auto& chain : chains_) {
      if (chain.key == key && !chain.sealed) return &chain;
    }
    return nullptr;
  }

  // A CAS at the tail, whatever tail that is by now; or the first version.
  void link(Client& client, NodeKind kind) {
    const Key key = some_key();
    if (!is_in(client) || client.slots.empty()) return;
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

  void tell(Client& client, const Link& said) {
    begin(Request::kReport, client, 1);
    out_.put(said.key);
    out_.put(said.node.word);
    out_.put(said.stamp);
    send(client);
  }
  void report(Client& client) {
    if (client.links.empty()) return;
    const std::size_t which = in_.next() % client.links.size();
    const Link said = client.links[which];
    client.links.erase(client.links.begin() + static_cast<std::ptrdiff_t>(which));
    // Where it has been lost meanwhile, and registered again, others find what it has linked.
    const std::uint32_t id = client.id;
    if (is_in(client) && client.id == id) tell(client, said);
  }

  void see_tail(Client& client) {
    if (!is_in(client)) return;
    Chain* const chain = chain_of(some_key());
    if (chain == nullptr) return;
    cursors_.push_back({index_of(*chain), chain->nodes.size() - 1, now_ + kLifetime});
    client.links.push_back({chain->key, chain->nodes.back(), client.clock});
  }

  void look_up(Client& client) {
    if (!is_in(client)) return;
    if (const auto head = named(client, some_key())) cursors_.push_back({head->first, head->second, now_ + kLifetime});
  }
  // The version that the server names: chain and place. None: it knows no such key.
  std::optional<std::pair<std::size_t, std::size_t>> named(Client& client, Key key) {
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

  void give_back(Client& client) {
    if (client.slots.empty() || !is_in(client) || client.slots.empty()) return;
    const bool is_orphan = in_.next() % 2 == 0;  // of a write whose outcome is not known
    begin(is_orphan ? Request::kOrphan : Request::kRelease, client, 1);
    out_.put(client.slots.back().word);
    client.slots.pop_back();
    const auto header = send(client);
    SLUICE_CHECK(!header || header->result == Answer::kOk);
  }

  // It has linked, and does not know it.
  void doubt(Client& client) {
    if (client.links.empty() || !is_in(client) || client.links.empty()) return;
    const Link last = client.links.back();
    client.links.pop_back();
    begin(Request::kOrphan, client, 1);
    out_.put(last.node.as(NodeKind::kValue).word);
    send(client);
  }

  void work(Client& client, std::size_t most) {
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
  void do_piece(Client& client, const Work& piece) {
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
      // The others find out.
      if (in_.next() % 2 == 0) tell_sealed(client, *chain);
      return;
    }
    tell(client, {chain->key, chain->nodes.back(), stamp});
  }
  void tell_sealed(Client& client, const Chain& chain) {
    begin(Request::kSealed, client, 1);
    out_.put(chain.key);
    out_.put(chain.nodes.back().word);
    const auto header = send(client);
    SLUICE_CHECK(!header || header->result == Answer::kOk);
  }
  void look_into(Client& client, NodePointer orphan) {
    Key key = orphan.address() / 64 % kKeys;  // of a life before, where it never was written
    for (std::size_t i = chains_.size(); i-- > 0;) {
      const auto& nodes = chains_[i].nodes;
      const auto at = std::ranges::find_if(nodes, [&](NodePointer n) { return n.as(NodeKind::kValue) == orphan; });
      if (at == nodes.end()) continue;
      key = chains_[i].key;
      const auto head = named(client, chains_[i].key);
      if (!head || head->first != i || head->second > static_cast<std::size_t>(at - nodes.begin())) break;
      return tell(client, {chains_[i].key, *at, 0});
    }
    begin(Request::kChecked, client, 1);
    out_.put(key);
    out_.put(orphan.word);
    const auto header = send(client);
    SLUICE_CHECK(!header || header->result == Answer::kOk);
  }

  // ------------------------------------------------------------------------------------------------- time and restarts

  void pass(Duration time) {
    now_ = now_ + time;
    std::erase_if(cursors_, [this](const Cursor& cursor) { return now_ >= cursor.until + kFlight; });
  }

  // Another process, from the journal or from all that is known; its clock goes on or begins anew.
  void start_again() {
    const std::uint8_t how = in_.next();
    if (how % 2 == 0) journal_->records = {server_->state(now_)};
    auto again = std::make_unique<MetadataServer>(one_replica_each(), journal_.get());
    const auto records = journal_->records;
    for (const auto& record : records) SLUICE_CHECK(again->replay(record));
    const Duration gone = how / 2 % 2 == 0 ? now_.since_start() : Duration{};
    now_ = now_ - gone;
    for (auto& client : clients_) client.lease = client.lease - gone;
    for (auto& cursor : cursors_) cursor.until = cursor.until - gone;
    again->restart(now_);
    server_ = std::move(again);
  }

  // ------------------------------------------------------------------------------------------------------------ checks

  std::size_t index_of(const Chain& chain) const { return static_cast<std::size_t>(&chain - chains_.data()); }

  // All that a walk may meet is where it was.
  void check_cursors() {
    for (const Cursor& cursor : cursors_) {
      const auto& nodes = chains_[cursor.chain].nodes;
      for (std::size_t i = cursor.at; i < nodes.size(); ++i) SLUICE_CHECK(server_->slots().find(nodes[i]) != nullptr);
    }
  }
  // The newest version of a key that is there is not on its way to another use.
  void check_tails() {
    for (const Chain& chain : chains_) {
      if (chain.sealed) continue;
      const auto* const slot = server_->slots().find(chain.nodes.back());
      SLUICE_CHECK(slot != nullptr && slot->state != SlotState::kRetired);
    }
  }

  // One client does what is to be done until nothing is left of what was; then each key has the version that came last.
  void finish() {
    for (auto& client : clients_) client = {};
    Client& last = clients_[0];
    for (int i = 0; i < 120; ++i) {
      pass(kLifetime / 4);
      for (int rounds = 0; rounds < 4; ++rounds) work(last, 64);
      check_cursors();
      check_tails();
    }
    std::size_t there = 0;
    for (Key key = 0; key < kKeys; ++key) {
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
    SLUICE_CHECK(count(SlotState::kOrphan) == 0 && count(SlotState::kRetired) == 0 && count(SlotState::kOwned) == 0);
  }

  Script in_;
  std::unique_ptr<KeptJournal> journal_ = std::make_unique<KeptJournal>();
  std::unique_ptr<MetadataServer> server_ = std::make_unique<MetadataServer>(one_replica_each(), journal_.get());
  Time now_ = Time::at(Duration::milliseconds(1));
  std::uint32_t sequence_ = 0;
  std::array<Client, kClients> clients_;
  std::vector<Chain> chains_;
  std::vector<Cursor> cursors_;
  std::array<std::uint8_t, remote::kMaxMessage> request_{};
  std::array<std::uint8_t, remote::kMaxMessage> answer_{};
  MessageWriter out_{request_};
  MessageReader answer_in_{ByteView{}};
};

}  // namespace

void check_chains(ByteView script) { Chains(script).run(); }

}  // namespace sluice::fuzz
