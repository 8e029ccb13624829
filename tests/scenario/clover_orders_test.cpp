// One key of Clover's metadata server, in every order in which clients that keep to the rules may do and tell things: each
// state once, up to so many versions, orphans and so on. No client has a name: who links, or sees the tail, may have heard of
// the server's clock at any time before.
//
// Held to: section 5 of docs/design/clover.md (no slot comes free while a cursor may lead to it, whoever took that when) and
//          what it follows from, by section 6: no version after the one that look-ups name is on its way to another use. And
//          from one state of 64 on all that is to be done is done: then nothing is left but the newest version, and it is
//          named.
// Effort:  SLUICE_EVERY_WAY=1 goes further. A check that fails prints the moves that led there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/effort_test.h"
#include "fuzz/clover_chain_model.h"

namespace sluice::fuzz {
namespace {

using namespace clover;  // the test speaks nothing else

constexpr Key kKey = 0;
constexpr Duration kFlight = Duration::microseconds(40);  // time passes in steps of it
constexpr Duration kLifetime = kFlight * 2;

// So many of each, at most.
struct Scope {
  int versions = 0;
  int tombstones = 0;  // of them
  int doubts = 0;      // links whose clients do not know of them
  int failures = 0;    // appends that end as unknown, and never were linked
  int sights = 0;      // of the tail
  int steps = 0;       // of time
  int restarts = 0;
};

enum class What : std::uint8_t {
  kLink,
  kErase,
  kFail,
  kSee,
  kReport,
  kDoubt,
  kTellSight,
  kWalk,
  kTellWalk,
  kSeal,
  kTellSeal,
  kPass,
  kRestart
};
constexpr const char* kNames[] = {"link", "erase",     "fail", "see",       "report", "doubt",  "tell sight",
                                  "walk", "tell walk", "seal", "tell seal", "pass",   "restart"};

struct Move {
  What what{};
  std::uint64_t which = 0;  // a stamp, or which of several
};

class Orders : private ChainModel {
 public:
  explicit Orders(const Scope& scope)
      : ChainModel({.lifetime = kLifetime, .flight = kFlight, .keys = 1}), left_(scope) {
    refresh(client_);
  }

  std::vector<Move> moves() const {
    std::vector<Move> out;
    const auto each = [&out](What what, std::uint64_t count) {
      for (std::uint64_t i = 0; i < count; ++i) out.push_back({what, i});
    };
    const Chain* const chain = open_chain();
    const std::uint64_t stamps = clock_ + 1;
    const bool erased = chain != nullptr && chain->nodes.back().kind() == NodeKind::kTombstone;
    if (left_.versions > 0) {
      if (chain != nullptr) {
        each(What::kLink, stamps);
        if (left_.tombstones > 0 && !erased) each(What::kErase, stamps);
      } else if (!has_untold_seal()) {
        each(What::kLink, 1);
      }
    }
    if (left_.failures > 0 && !chains_.empty()) each(What::kFail, 1);
    if (left_.sights > 0 && chain != nullptr) each(What::kSee, stamps);
    each(What::kReport, client_.links.size());
    for (std::size_t i = 0; left_.doubts > 0 && i < client_.links.size(); ++i) {
      if (state_of(client_.links[i].node) == SlotState::kOwned) out.push_back({What::kDoubt, i});
    }
    each(What::kTellSight, sights_.size());
    for (std::size_t i = 0; i < orphans_.size(); ++i) {
      if (orphans_[i].walked) {
        out.push_back({What::kTellWalk, i});
      } else if (now_ >= orphans_[i].due && state_of(orphans_[i].node) == SlotState::kOrphan) {
        out.push_back({What::kWalk, i});
      }
    }
    if (erased) each(What::kSeal, 1);
    if (has_untold_seal()) each(What::kTellSeal, 1);
    if (left_.steps > 0) each(What::kPass, 1);
    if (left_.restarts > 0) each(What::kRestart, 1);
    return out;
  }

  void make(const Move& move) {
    const auto at = static_cast<std::ptrdiff_t>(move.which);
    switch (move.what) {
      case What::kLink: append(NodeKind::kValue, move.which); break;
      case What::kErase: append(NodeKind::kTombstone, move.which); break;
      case What::kFail: fail(); break;
      case What::kSee:
        --left_.sights;
        sights_.push_back({kKey, open_chain()->nodes.back(), move.which});
        break;
      case What::kReport: {
        const Link said = client_.links[move.which];
        client_.links.erase(client_.links.begin() + at);
        tell(client_, said);
        break;
      }
      case What::kDoubt: {
        --left_.doubts;
        const NodePointer node = client_.links[move.which].node;
        doubt(client_, move.which);
        orphans_.push_back({.node = node.as(NodeKind::kValue), .due = now_ + kFlight});
        break;
      }
      case What::kTellSight: {
        const Link said = sights_[move.which];
        sights_.erase(sights_.begin() + at);
        tell(client_, said);
        break;
      }
      case What::kWalk: walk(orphans_[move.which]); break;
      case What::kTellWalk: {
        const Orphan orphan = orphans_[move.which];
        orphans_.erase(orphans_.begin() + at);
        tell_of(orphan);
        break;
      }
      case What::kSeal: chains_.back().sealed = true; break;
      case What::kTellSeal:
        tell_sealed(client_, chains_.back());
        seals_told_ = chains_.size();
        break;
      case What::kPass:
        --left_.steps;
        now_ = now_ + kFlight;
        break;
      case What::kRestart:
        --left_.restarts;
        start_again({server_->state(now_)}, {}, nullptr);
        break;
    }
    // It lives on, whatever it has heard.
    refresh(client_);
    check();
  }

  // All that the future depends on.
  std::string state() const {
    auto server = server_->state(now_);
    std::string out(server.begin(), server.end());
    const auto put = [&out](std::uint64_t n) { out.append(reinterpret_cast<const char*>(&n), sizeof n); };
    const auto put_time = [&put](Time t) { put(static_cast<std::uint64_t>(t.since_start().picoseconds())); };
    for (const auto* const links : {&client_.links, &sights_}) {
      std::vector<std::pair<std::uint64_t, std::uint64_t>> all;
      for (const Link& link : *links) all.emplace_back(link.node.word, link.stamp);
      std::ranges::sort(all);
      put(all.size());
      for (const auto& [node, stamp] : all) {
        put(node);
        put(stamp);
      }
    }
    for (const Orphan& orphan : orphans_) {
      put(orphan.node.word);
      put_time(orphan.due);
      put((orphan.walked ? 1u : 0u) + (orphan.met ? 2u : 0u));
    }
    for (const Chain& chain : chains_) {
      put(chain.nodes.size() * 2 + (chain.sealed ? 1 : 0));
      for (const NodePointer node : chain.nodes) put(node.word);
    }
    for (const auto& chain : read_) {
      for (const Time at : chain) put_time(at);
    }
    put(seals_told_);
    for (const int left :
         {left_.versions, left_.tombstones, left_.doubts, left_.failures, left_.sights, left_.steps, left_.restarts})
      put(static_cast<std::uint64_t>(left));
    return out;
  }

  // As of the last move.
  bool head_is_before_one_set_aside() const { return moved_back_; }

  void come_to_an_end() {
    client_ = {};
    finish(client_);
  }

 private:
  struct Orphan {
    NodePointer node;
    Time due;
    bool walked = false;
    bool met = false;
  };

  SlotState state_of(NodePointer node) const {
    const auto* const slot = std::as_const(*server_).slots().find(node);
    return slot == nullptr ? SlotState::kFree : slot->state;
  }
  const Chain* open_chain() const { return chains_.empty() || chains_.back().sealed ? nullptr : &chains_.back(); }
  bool has_untold_seal() const { return seals_told_ < chains_.size() && chains_.back().sealed; }

  void append(NodeKind kind, std::uint64_t stamp) {
    --left_.versions;
    left_.tombstones -= static_cast<int>(kind == NodeKind::kTombstone);
    const auto granted = grant(client_, 1);
    SLUICE_CHECK(granted.size() == 1);
    client_.clock = stamp;
    link(client_, kKey, kind);
  }
  void fail() {
    --left_.failures;
    const auto granted = grant(client_, 1);
    give_back(client_, Request::kOrphan);
    orphans_.push_back({.node = granted.at(0), .due = now_ + kFlight});
  }
  void walk(Orphan& orphan) {
    orphan.walked = true;
    const auto head = named(client_, kKey);
    const auto at = find(orphan.node);
    orphan.met = head && at && head->first == at->first && head->second <= at->second;
  }
  void tell_of(const Orphan& orphan) {
    if (!orphan.met) return tell_checked(client_, kKey, orphan.node);
    const auto at = find(orphan.node);
    tell(client_, {kKey, chains_[at->first].nodes[at->second], 0});
  }

  void check() override {
    read_.resize(chains_.size());
    const auto head = named(client_, kKey);
    moved_back_ = false;
    for (std::size_t i = 0; i < chains_.size(); ++i) {
      const auto& nodes = chains_[i].nodes;
      const auto first_named = head && head->first == i ? head->second : nodes.size();
      read_[i].resize(nodes.size(), Time() - kLifetime - kFlight);
      for (std::size_t n = 0; n < nodes.size(); ++n) {
        const auto* const slot = std::as_const(*server_).slots().find(nodes[n]);
        const bool may_be_led_to = now_ < read_[i][n] + kLifetime + kFlight;
        const bool is_tail = n + 1 == nodes.size() && !chains_[i].sealed;
        const bool follows_the_head = n >= first_named;
        SLUICE_CHECK(slot != nullptr || (!may_be_led_to && !follows_the_head && !is_tail));
        if (follows_the_head || is_tail) {
          SLUICE_CHECK(slot->state != SlotState::kRetired);
          read_[i][n] = now_;
          moved_back_ = moved_back_ || slot->state == SlotState::kSetAside;
        }
      }
    }
    check_tails();
  }

  Scope left_;
  Client client_;  // speaks for all
  std::vector<Link> sights_;
  std::vector<Orphan> orphans_;
  std::size_t seals_told_ = 0;           // of chains
  std::vector<std::vector<Time>> read_;  // by chain and place: when a cursor that leads there may have been taken last
  bool moved_back_ = false;
};

class Search {
 public:
  explicit Search(const Scope& scope) { from(Orders(scope)); }
  std::size_t states() const { return seen_.size(); }
  // Of these, with a slot that is set aside after the version that look-ups name.
  std::size_t moved_back() const { return moved_back_; }

 private:
  void from(const Orders& orders) {
    for (const Move& move : orders.moves()) {
      const std::size_t length = path_.size();
      path_ += std::string(kNames[static_cast<std::size_t>(move.what)]) + ' ' + std::to_string(move.which) + ", ";
      set_check_context(path_);
      Orders next = orders;
      next.make(move);
      const std::size_t name = std::hash<std::string>{}(next.state());
      if (seen_.insert(name).second) {
        moved_back_ += static_cast<std::size_t>(next.head_is_before_one_set_aside());
        if (name % 64 == 0) Orders(next).come_to_an_end();
        from(next);
      }
      path_.resize(length);
    }
  }

  std::unordered_set<std::size_t> seen_;
  std::size_t moved_back_ = 0;
  std::string path_;
};

Search search(Scope usual, const Scope& further) {
  if (kAddressSanitizer) {
    usual.versions -= static_cast<int>(usual.versions > 4);
    --usual.steps;
  }
  const bool goes_further = from_environment("SLUICE_EVERY_WAY", 0) != 0;
  const Search done(goes_further ? further : usual);
  testing::Test::RecordProperty("states", std::to_string(done.states()));
  EXPECT_GT(done.states(), 1'000u);
  return done;
}

TEST(CloverInEveryOrder, LinksMayBeTold) { search({.versions = 5, .steps = 3}, {.versions = 6, .steps = 3}); }

TEST(CloverInEveryOrder, TheTailMayBeSeen) {
  search({.versions = 4, .sights = 1, .steps = 3}, {.versions = 5, .sights = 1, .steps = 2});
}

TEST(CloverInEveryOrder, OrphansMayBeLookedInto) {
  const Search done = search({.versions = 5, .doubts = 2, .steps = 2}, {.versions = 5, .doubts = 2, .steps = 4});
  EXPECT_GT(done.moved_back(), 0u);
}

TEST(CloverInEveryOrder, OrphansMayBeLookedIntoWhileTheTailIsSeen) {
  const Search done = search({.versions = 4, .doubts = 1, .sights = 1, .steps = 2},
                             {.versions = 5, .doubts = 1, .sights = 1, .steps = 1});
  EXPECT_GT(done.moved_back(), 0u);
}

TEST(CloverInEveryOrder, AppendsMayNeverComeAbout) {
  search({.versions = 3, .tombstones = 1, .doubts = 1, .failures = 1, .steps = 2},
         {.versions = 4, .doubts = 1, .failures = 1, .steps = 4});
}

TEST(CloverInEveryOrder, AKeyMayBeForgottenAndBeginAnew) {
  search({.versions = 4, .tombstones = 1, .doubts = 1, .steps = 3},
         {.versions = 5, .tombstones = 2, .doubts = 1, .steps = 1});
}

TEST(CloverInEveryOrder, TheServerMayStartAnew) {
  search({.versions = 3, .tombstones = 1, .doubts = 1, .steps = 4, .restarts = 1},
         {.versions = 4, .tombstones = 1, .doubts = 1, .steps = 4, .restarts = 1});
}

}  // namespace
}  // namespace sluice::fuzz
