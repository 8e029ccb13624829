// Clients that keep to the rules, whatever the script has them do when, against a model that has all chains whole.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/check.h"
#include "clover/kept_journal.h"
#include "fuzz/clover_chain_model.h"
#include "fuzz/clover_properties.h"
#include "fuzz/script.h"

namespace sluice::fuzz {
namespace {

using namespace clover;  // the fuzzer speaks nothing else

constexpr std::size_t kClients = 3;

class Chains : private ChainModel {
 public:
  explicit Chains(ByteView script, KeptJournal& journal)
      : ChainModel({.lifetime = Duration::microseconds(80), .flight = Duration::microseconds(30), .keys = 4}, &journal),
        in_(script),
        journal_(journal) {}

  void run() {
    while (!in_.empty()) {
      command();
      check();
    }
    for (auto& client : clients_) client = {};
    finish(clients_[0]);
  }

 private:
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
      case 0: now_ = now_ + Duration::microseconds(in_.next() % 64); break;
      case 1: refresh(client); break;
      case 2: grant_some(client); break;
      case 3:
      case 4:
      case 5: append(client, NodeKind::kValue); break;
      case 6: append(client, NodeKind::kTombstone); break;
      case 7:
      case 8: report(client); break;
      case 9: see_tail(client); break;
      case 10:
      case 11: work(client, std::size_t{in_.next()} % 8); break;
      case 12: look_up(client); break;
      case 13: give_one_back(client); break;
      case 14: doubt_the_last(client); break;
      default: start_again(); break;
    }
  }

  Key some_key() { return in_.next() % terms_.keys; }
  bool tells_of_seals() override { return in_.next() % 2 == 0; }

  void grant_some(Client& client) {
    if (!is_in(client)) return;
    for (const NodePointer slot : grant(client, 4)) {
      // What anybody may still read is no slot of anybody's.
      for (const Cursor& cursor : cursors_) {
        const auto& nodes = chains_[cursor.chain].nodes;
        for (std::size_t n = cursor.at; n < nodes.size(); ++n)
          SLUICE_CHECK(nodes[n].volume() != slot.volume() || nodes[n].address() != slot.address());
      }
    }
  }

  void append(Client& client, NodeKind kind) {
    const Key key = some_key();
    if (is_in(client) && !client.slots.empty()) link(client, key, kind);
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
    cursors_.push_back({index_of(*chain), chain->nodes.size() - 1, now_ + terms_.lifetime});
    client.links.push_back({chain->key, chain->nodes.back(), client.clock});
  }

  void look_up(Client& client) {
    if (!is_in(client)) return;
    if (const auto head = named(client, some_key()))
      cursors_.push_back({head->first, head->second, now_ + terms_.lifetime});
  }

  void give_one_back(Client& client) {
    if (client.slots.empty() || !is_in(client) || client.slots.empty()) return;
    const bool is_orphan = in_.next() % 2 == 0;  // of a write whose outcome is not known
    give_back(client, is_orphan ? Request::kOrphan : Request::kRelease);
  }

  void doubt_the_last(Client& client) {
    if (client.links.empty() || !is_in(client) || client.links.empty()) return;
    doubt(client, client.links.size() - 1);
  }

  // Another process, from the journal or from all that is known; its clock goes on or begins anew.
  void start_again() {
    const std::uint8_t how = in_.next();
    if (how % 2 == 0) journal_.records = {server_->state(now_)};
    const Duration gone = how / 2 % 2 == 0 ? now_.since_start() : Duration{};
    for (auto& client : clients_) client.lease = client.lease - gone;
    for (auto& cursor : cursors_) cursor.until = cursor.until - gone;
    const auto records = journal_.records;
    ChainModel::start_again(records, gone, &journal_);
  }

  // All that a walk may meet is where it was.
  void check() override {
    std::erase_if(cursors_, [this](const Cursor& cursor) { return now_ >= cursor.until + terms_.flight; });
    for (const Cursor& cursor : cursors_) {
      const auto& nodes = chains_[cursor.chain].nodes;
      for (std::size_t i = cursor.at; i < nodes.size(); ++i) SLUICE_CHECK(server_->slots().find(nodes[i]) != nullptr);
    }
    check_tails();
  }

  Script in_;
  KeptJournal& journal_;
  std::array<Client, kClients> clients_;
  std::vector<Cursor> cursors_;
};

}  // namespace

void check_chains(ByteView script) {
  KeptJournal journal;
  Chains(script, journal).run();
}

}  // namespace sluice::fuzz
