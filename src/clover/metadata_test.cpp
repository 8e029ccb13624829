#include "clover/metadata.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/rng.h"
#include "clover/kept_journal.h"
#include "clover/records.h"

namespace sluice::clover {
namespace {

constexpr Duration kLifetime = Duration::microseconds(100);
constexpr Duration kFlight = Duration::microseconds(50);

ServerConfig make_config(std::uint32_t replication = 1, std::uint64_t slots = 64) {
  std::vector<Region> regions;
  for (std::uint32_t i = 0; i < 2; ++i) {
    regions.push_back({{remote::NodeId(i), remote::RegionKey(i + 1), 0x10000}, 64 * slots / 2 * replication});
  }
  return {.volumes = *spread(regions, replication),
          .value_bytes = 40,
          .cursor_lifetime = kLifetime,
          .max_flight = kFlight,
          .grant_slots = 1000};
}

// Speaks to a server as a client would, message by message.
class Talk {
 public:
  explicit Talk(MetadataServer& server, Time& now) : server_(server), now_(now) {}

  AnswerHeader call(Request type, const std::vector<std::uint64_t>& body = {}, std::size_t count = 1,
                    std::uint32_t sequence = 0) {
    std::array<std::uint8_t, remote::kMaxMessage> request{};
    MessageWriter out(request);
    put_header(out, {type, static_cast<std::uint16_t>(count), id, sequence, store});
    for (const auto n : body) out.put(n);
    return send(ByteView(request).first(out.length()));
  }
  AnswerHeader send(ByteView request) {
    const std::size_t length = server_.handle(now_, request, answer_);
    MessageReader in(ByteView(answer_).first(length));
    const auto header = take_answer_header(in);
    EXPECT_TRUE(header.has_value());
    numbers.clear();
    if (header->type != 0x81 && header->type != 0x82) {
      while (in.left() >= 8) numbers.push_back(in.take64());
    } else if (header->result == Answer::kOk) {
      const auto view = take_view(in, header->count);
      EXPECT_TRUE(view.has_value());
      if (view) last_view = *view;
    }
    return *header;
  }
  void enter() {
    EXPECT_EQ(call(Request::kRegister, {}, 0).result, Answer::kOk);
    id = last_view.client;
    store = last_view.store;
  }
  std::vector<std::uint64_t> grant(std::uint64_t wanted) {
    EXPECT_EQ(call(Request::kAllocate, {wanted}, 1, ++sequence_).result, Answer::kOk);
    return numbers;
  }
  std::uint64_t head(Key key) {
    EXPECT_EQ(call(Request::kLookup, {key}).result, Answer::kOk);
    return numbers.at(0);
  }

  std::uint32_t id = 0;
  std::uint32_t store = 0;
  StoreView last_view;
  std::vector<std::uint64_t> numbers;

 private:
  MetadataServer& server_;
  Time& now_;
  std::uint32_t sequence_ = 0;
  std::array<std::uint8_t, remote::kMaxMessage> answer_{};
};

class Metadata : public testing::Test {
 protected:
  void begin(const ServerConfig& config, Journal* kept = nullptr) {
    server = std::make_unique<MetadataServer>(config, kept);
    a = std::make_unique<Talk>(*server, now);
    b = std::make_unique<Talk>(*server, now);
    a->enter();
    b->enter();
  }
  std::uint64_t in_state(SlotState state) const { return server->slots().count(state); }

  Time now = Time::at(Duration::seconds(1));
  std::unique_ptr<MetadataServer> server;
  std::unique_ptr<Talk> a;
  std::unique_ptr<Talk> b;
};

TEST_F(Metadata, NamesAKeyOnceCreatedAndTellsTheSecondCreatorOfTheFirst) {
  begin(make_config());
  const auto mine = a->grant(2);
  const auto yours = b->grant(2);
  EXPECT_EQ(a->head(9), 0u);
  EXPECT_EQ(a->call(Request::kCreate, {9, mine[0]}).result, Answer::kOk);
  EXPECT_EQ(b->call(Request::kCreate, {9, yours[0]}).result, Answer::kExists);
  EXPECT_EQ(b->numbers.at(0), mine[0]);
  EXPECT_EQ(b->head(9), mine[0]);
  // Asked again, because the answer was lost.
  EXPECT_EQ(a->call(Request::kCreate, {9, mine[0]}).result, Answer::kOk);
  // Not with a slot of somebody else's.
  EXPECT_EQ(a->call(Request::kCreate, {10, yours[1]}).result, Answer::kRefused);
}

TEST_F(Metadata, DoesNotTakeANodeOfAnotherKeysChainForOneThatItHasCreated) {
  begin(make_config());
  const auto mine = a->grant(1);
  const auto yours = b->grant(1);
  const auto created = b->call(Request::kCreate, {100, yours[0]});
  // By somebody who slept while the slot went back and came to another.
  b->call(Request::kReport, {100, mine[0], created.clock});
  EXPECT_EQ(a->call(Request::kCreate, {200, mine[0]}).result, Answer::kRefused);
  EXPECT_EQ(a->head(200), 0u);
  EXPECT_EQ(b->call(Request::kCreate, {200, yours[0]}).result, Answer::kOk) << "of a retired one nobody knows the key";
}

TEST_F(Metadata, RetiresWhatAStampProvesOlderAndReusesItOnlyAfterTheGrace) {
  begin(make_config(1, 4));
  const auto mine = a->grant(1);
  auto header = a->call(Request::kCreate, {9, mine[0]});
  const auto second = b->grant(1);
  header = b->call(Request::kReport, {9, second[0], header.clock});
  EXPECT_EQ(a->head(9), second[0]);
  EXPECT_EQ(in_state(SlotState::kRetired), 1u);
  now = now + kLifetime - Duration::microseconds(1);
  a->call(Request::kRefresh, {}, 0);
  b->call(Request::kRefresh, {}, 0);
  now = now + kFlight;
  a->call(Request::kRefresh, {}, 0);
  EXPECT_EQ(in_state(SlotState::kRetired), 1u);
  now = now + Duration::microseconds(1);
  a->call(Request::kRefresh, {}, 0);
  EXPECT_EQ(in_state(SlotState::kRetired), 0u);
}

TEST_F(Metadata, KeepsVersionsWhoseOrderItCannotKnowUntilSomebodySettlesIt) {
  begin(make_config());
  const auto mine = a->grant(2);
  const auto yours = b->grant(2);
  const auto created = a->call(Request::kCreate, {9, mine[0]});
  // Both began after the creation and know nothing of each other.
  a->call(Request::kReport, {9, mine[1], created.clock});
  b->call(Request::kReport, {9, yours[0], created.clock});
  EXPECT_EQ(in_state(SlotState::kLive), 2u);
  EXPECT_EQ(in_state(SlotState::kRetired), 1u);
  now = now + kLifetime - Duration::microseconds(1);
  EXPECT_FALSE(a->call(Request::kRefresh, {}, 0).work_waits);
  b->call(Request::kRefresh, {}, 0);
  now = now + Duration::microseconds(1);
  EXPECT_TRUE(a->call(Request::kRefresh, {}, 0).work_waits);
  const auto work = a->call(Request::kWork, {}, 10);
  ASSERT_EQ(work.count, 1u);
  EXPECT_EQ(a->numbers.at(0), static_cast<std::uint64_t>(WorkKind::kSettle));
  EXPECT_EQ(a->numbers.at(1), 9u);
  a->call(Request::kReport, {9, mine[1], work.clock});  // seen at the tail
  EXPECT_EQ(in_state(SlotState::kLive), 1u);
  EXPECT_EQ(a->head(9), mine[1]);
}

// Chains as they truly come about: who links, or sees the tail, has heard of the clock some time before, and tells of it some time later.
TEST_F(Metadata, RetiresOnlyWhatComesBeforeTheHeadWhateverIsToldWhen) {
  begin(make_config(1, 4096));
  Rng rng(1);
  struct Said {
    std::size_t at = 0;  // in the chain
    std::uint64_t stamp = 0;
  };
  for (Key key = 1; key <= 300; ++key) {
    const auto chain = a->grant(8);
    ASSERT_EQ(chain.size(), 8u);
    std::uint64_t clock = a->call(Request::kCreate, {key, chain[0]}).clock;
    std::array<std::uint64_t, 3> heard{};
    std::size_t tail = 0;
    std::vector<Said> untold;
    const auto tell = [&](Said said) {
      clock = a->call(Request::kReport, {key, chain[said.at], said.stamp}).clock;
      const std::uint64_t named = a->head(key);
      const auto head = static_cast<std::size_t>(std::ranges::find(chain, named) - chain.begin());
      ASSERT_LE(head, tail) << "key " << key;
      EXPECT_EQ(server->slots().find(NodePointer{named})->state, SlotState::kLive);
      for (std::size_t i = head + 1; i < chain.size(); ++i) {
        const auto* const slot = server->slots().find(NodePointer{chain[i]});
        ASSERT_TRUE(slot != nullptr && slot->state != SlotState::kRetired)
            << "key " << key << ": version " << i << " follows the head, " << head;
      }
    };
    while (tail + 1 < chain.size() || !untold.empty()) {
      auto& mine = heard.at(rng.below(heard.size()));
      switch (tail + 1 < chain.size() ? rng.below(4) : 3) {
        case 0: mine = clock; break;
        case 1: untold.push_back({++tail, mine}); break;
        case 2: untold.push_back({tail, mine}); break;
        default:
          if (untold.empty()) break;
          std::swap(untold.at(rng.below(untold.size())), untold.back());
          tell(untold.back());
          untold.pop_back();
      }
      if (HasFatalFailure()) return;
    }
    tell({tail, clock});
    EXPECT_EQ(a->head(key), chain.back());
    EXPECT_EQ(in_state(SlotState::kLive), key);
    now = now + Duration::microseconds(40);
    b->call(Request::kRefresh, {}, 0);
  }
  EXPECT_EQ(server->counters().retired, 300u * 7);
}

TEST_F(Metadata, ForgetsASealedKeyAndRetiresLateReportsOfItsChain) {
  begin(make_config());
  const auto mine = a->grant(3);
  const auto created = a->call(Request::kCreate, {9, mine[0]});
  const auto tombstone = NodePointer{mine[2]}.as(NodeKind::kTombstone).word;
  EXPECT_EQ(b->call(Request::kSealed, {9, mine[2]}).result, Answer::kRefused);
  EXPECT_EQ(b->call(Request::kSealed, {9, tombstone}).result, Answer::kOk);
  EXPECT_EQ(a->head(9), 0u);
  EXPECT_EQ(in_state(SlotState::kRetired), 2u);
  a->call(Request::kReport, {9, mine[1], created.clock});
  EXPECT_EQ(in_state(SlotState::kRetired), 3u);
  EXPECT_EQ(b->call(Request::kSealed, {9, tombstone}).result, Answer::kOk);
  EXPECT_EQ(in_state(SlotState::kRetired), 3u);
}

TEST_F(Metadata, NamesTheNewChainOfAKeyThatWasForgottenThoughTheOldOneIsReportedLate) {
  begin(make_config());
  const auto mine = a->grant(3);
  const auto yours = b->grant(2);
  const auto created = a->call(Request::kCreate, {9, mine[0]});
  // A value and a tombstone follow, and nobody has reported them when the chain is sealed and the key begins anew.
  const auto tombstone = NodePointer{mine[2]}.as(NodeKind::kTombstone).word;
  EXPECT_EQ(b->call(Request::kSealed, {9, tombstone}).result, Answer::kOk);
  const auto again = b->call(Request::kCreate, {9, yours[0]});
  EXPECT_EQ(again.result, Answer::kOk);
  a->call(Request::kReport, {9, mine[1], created.clock});
  EXPECT_EQ(a->head(9), yours[0]);
  a->call(Request::kReport, {9, mine[2], created.clock});
  EXPECT_EQ(a->head(9), yours[0]);
  // Who appends to the new one is the newest, and what was reported late goes, once somebody has heard of it.
  auto told = b->call(Request::kReport, {9, yours[1], again.clock});
  EXPECT_EQ(b->head(9), yours[1]);
  b->call(Request::kReport, {9, yours[1], told.clock});
  EXPECT_EQ(b->head(9), yours[1]);
  EXPECT_EQ(in_state(SlotState::kLive), 1u);
}

TEST_F(Metadata, AsksForAnOldTombstoneToBeSealed) {
  begin(make_config());
  const auto mine = a->grant(2);
  const auto created = a->call(Request::kCreate, {9, mine[0]});
  a->call(Request::kReport, {9, NodePointer{mine[1]}.as(NodeKind::kTombstone).word, created.clock});
  for (int i = 0; i < 2; ++i) {
    now = now + kLifetime / 2;
    a->call(Request::kRefresh, {}, 0);
  }
  ASSERT_EQ(a->call(Request::kWork, {}, 10).count, 1u);
  EXPECT_EQ(a->numbers.at(0), static_cast<std::uint64_t>(WorkKind::kSeal));
}

TEST_F(Metadata, TurnsTheSlotsOfALostClientIntoOrphansAndFreesThoseThatNoWalkMeets) {
  begin(make_config(1, 16));
  const auto mine = a->grant(3);
  a->call(Request::kCreate, {9, mine[0]});
  for (int i = 0; i < 3; ++i) {
    now = now + kLifetime / 2;
    b->call(Request::kRefresh, {}, 0);
  }
  EXPECT_EQ(server->clients(), 1u);
  EXPECT_EQ(in_state(SlotState::kOrphan), 2u);
  EXPECT_EQ(a->call(Request::kRefresh, {}, 0).result, Answer::kExpired);
  now = now + kFlight;
  ASSERT_EQ(b->call(Request::kWork, {}, 10).count, 2u);
  // What it held before is of a key that is not there, or of none.
  EXPECT_EQ(b->call(Request::kChecked, {8, mine[1], 8, mine[2]}, 2).result, Answer::kOk);
  EXPECT_EQ(in_state(SlotState::kOrphan), 0u);
  EXPECT_EQ(in_state(SlotState::kRetired), 2u);
  EXPECT_EQ(in_state(SlotState::kLive), 1u);
  now = now + kLifetime + kFlight;
  b->call(Request::kRefresh, {}, 0);
  EXPECT_EQ(in_state(SlotState::kRetired), 0u);
}

// B, C, the orphan D, E: no walk from E meets D, but B may be the head yet, and what it leads to is read.
TEST_F(Metadata, UsesAnOrphanOfAKeyAnewOnlyAfterAVersionWhoseClientHadHeardOfIt) {
  begin(make_config());
  const auto chain = a->grant(5);
  const auto before = a->call(Request::kCreate, {9, chain[0]}).clock;
  const auto after = b->call(Request::kReport, {5, chain[4], 0}).clock;  // of a key that is not there
  a->call(Request::kOrphan, {chain[2]});
  b->call(Request::kReport, {9, chain[3], before});
  ASSERT_EQ(b->head(9), chain[3]);
  b->call(Request::kChecked, {9, chain[2]});
  EXPECT_EQ(server->live_versions(), 1u);
  // It is settled like a version whose order is not known, and at once.
  const auto is_to_be_settled = [&] {
    return b->call(Request::kWork, {}, 10).count == 1 &&
           b->numbers.at(0) == static_cast<std::uint64_t>(WorkKind::kSettle);
  };
  EXPECT_TRUE(is_to_be_settled());
  a->call(Request::kReport, {9, chain[1], after});
  ASSERT_EQ(b->head(9), chain[1]);
  const auto spent = [&] { return server->slots().find(NodePointer{chain[2]}) == nullptr; };
  const auto wait = [&](int halves) {
    for (int i = 0; i < halves; ++i) {
      now = now + kLifetime / 2;
      b->call(Request::kRefresh, {}, 0);
    }
  };
  wait(16);
  EXPECT_FALSE(spent());
  EXPECT_TRUE(is_to_be_settled());
  const auto now_known = b->call(Request::kRefresh, {}, 0).clock;
  b->call(Request::kReport, {9, chain[3], now_known});
  ASSERT_EQ(b->head(9), chain[3]);
  EXPECT_FALSE(spent());
  wait(4);
  EXPECT_TRUE(spent());
  EXPECT_EQ(server->slots().count(SlotState::kLive), 1u);
}

TEST_F(Metadata, RepeatsWhatAJournalOfOldSaysOfOrphans) {
  KeptJournal journal;
  begin(make_config(), &journal);
  const auto mine = a->grant(2);
  a->call(Request::kCreate, {9, mine[0]});
  a->call(Request::kOrphan, {mine[1]});
  const std::size_t said = journal.records.size();
  std::array<std::uint8_t, kRequestHeader + 8> request{};
  MessageWriter out(request);
  put_header(out, {Request::kChecked, 1, a->id, 7, a->store});
  out.put(mine[1]);
  EXPECT_EQ(a->send(request).result, Answer::kMalformed) << "from a client";
  EXPECT_EQ(journal.records.size(), said) << "where it would be repeated";
  std::vector<std::uint8_t> record(9);
  record[0] = static_cast<std::uint8_t>(RecordKind::kRequest);
  store_le(record.data() + 1, static_cast<std::uint64_t>(now.since_start().picoseconds()));
  record.insert(record.end(), request.begin(), request.end());
  ASSERT_TRUE(server->replay(record));
  server->restart(now);
  EXPECT_EQ(in_state(SlotState::kOrphan), 0u);
  now = now + kLifetime * 2 + kFlight;
  a->call(Request::kRefresh, {}, 0);
  EXPECT_EQ(in_state(SlotState::kRetired), 0u);
}

TEST_F(Metadata, HandsOutSomeOfEachKindOfWorkHoweverMuchThereIsOfAnother) {
  begin(make_config(1, 400));
  const auto mine = a->grant(90);
  a->call(Request::kOrphan, {mine.begin(), mine.begin() + 40}, 40);
  for (Key key = 0; key < 20; ++key) {
    a->call(Request::kCreate, {key, mine[40 + key]});
    a->call(Request::kReport, {key, NodePointer{mine[60 + key]}.as(NodeKind::kTombstone).word, ~std::uint64_t{0}});
  }
  const auto more = b->grant(90);
  for (Key key = 100; key < 120; ++key) {
    b->call(Request::kCreate, {key, more[key - 100]});
    b->call(Request::kReport, {key, more[key - 80], 0});
  }
  now = now + kLifetime * 3 / 4;
  a->call(Request::kRefresh, {}, 0);
  now = now + kLifetime / 2;
  std::array<int, 4> of_kind{};
  const auto take = [&] {
    EXPECT_EQ(a->call(Request::kWork, {}, 30).result, Answer::kOk);
    for (std::size_t i = 0; i < a->numbers.size(); i += 3) ++of_kind.at(a->numbers[i]);
  };
  take();
  EXPECT_EQ(of_kind, (std::array<int, 4>{0, 10, 10, 10}));
  take();
  take();
  EXPECT_EQ(of_kind, (std::array<int, 4>{0, 20, 20, 40}));
}

TEST_F(Metadata, HandsWorkOutAgainWhenWhoeverTookItIsNotHeardOf) {
  begin(make_config(1, 16));
  const auto mine = a->grant(1);
  a->call(Request::kOrphan, {mine[0]});
  now = now + kFlight;
  EXPECT_EQ(b->call(Request::kWork, {}, 10).count, 1u);
  EXPECT_EQ(b->call(Request::kWork, {}, 10).count, 0u);
  for (int i = 0; i < 4; ++i) {
    now = now + kLifetime / 2;
    b->call(Request::kRefresh, {}, 0);
  }
  EXPECT_EQ(b->call(Request::kWork, {}, 10).count, 1u);
}

TEST_F(Metadata, RepeatsAGrantWhoseAnswerWasLost) {
  begin(make_config());
  EXPECT_EQ(a->call(Request::kAllocate, {4}, 1, 77).result, Answer::kOk);
  const auto first = a->numbers;
  EXPECT_EQ(a->call(Request::kAllocate, {4}, 1, 77).result, Answer::kOk);
  EXPECT_EQ(a->numbers, first);
  EXPECT_EQ(a->call(Request::kAllocate, {4}, 1, 78).result, Answer::kOk);
  EXPECT_NE(a->numbers, first);
}

TEST_F(Metadata, GrantsNothingToARequestThatComesLate) {
  begin(make_config());
  a->call(Request::kAllocate, {4}, 1, 77);
  a->call(Request::kAllocate, {4}, 1, 78);
  const auto newest = a->numbers;
  EXPECT_EQ(a->call(Request::kAllocate, {4}, 1, 77).result, Answer::kRefused);
  EXPECT_EQ(a->call(Request::kAllocate, {4}, 1, 78).result, Answer::kOk);
  EXPECT_EQ(a->numbers, newest);
  EXPECT_EQ(in_state(SlotState::kOwned), 8u);
}

TEST_F(Metadata, GrantsOnThoughTheSequencesOfRequestsBeginAgain) {
  begin(make_config());
  EXPECT_EQ(a->call(Request::kAllocate, {1}, 1, 0x7FFF'FFFF).result, Answer::kOk);
  EXPECT_EQ(a->call(Request::kAllocate, {1}, 1, 0xFFFF'FFFE).result, Answer::kOk);
  EXPECT_EQ(a->call(Request::kAllocate, {1}, 1, 1).result, Answer::kOk);
  EXPECT_EQ(a->call(Request::kAllocate, {1}, 1, 0xFFFF'FFFE).result, Answer::kRefused);
}

TEST_F(Metadata, KnowsNoClientOfAnotherStoreThoughItsNumberIsKnown) {
  auto config = make_config();
  config.store = 7;
  begin(config);
  EXPECT_EQ(a->store, 7u);
  Talk stranger(*server, now);
  stranger.id = a->id;
  const auto granted = a->grant(1);
  for (const std::uint32_t other : {0u, 8u}) {
    stranger.store = other;
    EXPECT_EQ(stranger.call(Request::kRefresh, {}, 0).result, Answer::kExpired);
    EXPECT_EQ(stranger.call(Request::kRelease, granted).result, Answer::kExpired);
    EXPECT_EQ(stranger.call(Request::kLeave, {}, 1).result, Answer::kExpired);
  }
  EXPECT_EQ(in_state(SlotState::kOwned), 1u);
  EXPECT_EQ(a->call(Request::kCreate, {9, granted[0]}).result, Answer::kOk);
  stranger.enter();
  EXPECT_NE(stranger.id, a->id);
  EXPECT_EQ(stranger.head(9), granted[0]);
}

TEST_F(Metadata, ARefusedRequestStaysRefusedThoughRoomComesFree) {
  begin(make_config());
  std::vector<std::uint64_t> granted;
  for (std::uint32_t sequence = 1; b->call(Request::kAllocate, {100}, 1, sequence).result == Answer::kOk; ++sequence)
    granted = b->numbers;
  ASSERT_EQ(a->call(Request::kAllocate, {4}, 1, 1).result, Answer::kNoSpace);
  ASSERT_EQ(b->call(Request::kRelease, granted, static_cast<std::uint16_t>(granted.size())).result, Answer::kOk);
  const std::size_t owned = in_state(SlotState::kOwned);
  EXPECT_EQ(a->call(Request::kAllocate, {4}, 1, 1).result, Answer::kNoSpace)
      << "it comes late: nobody hears the answer";
  EXPECT_EQ(in_state(SlotState::kOwned), owned);
}

TEST_F(Metadata, TakesNobodyForLostWhomItCouldNotHaveHeard) {
  begin(make_config());
  const auto is_awake_for = [&](Duration time) {
    for (const Time end = now + time; now < end; server->awake(now)) now = std::min(end, now + kLifetime / 8);
  };
  server->awake(now);
  is_awake_for(kLifetime / 2);
  now = now + kLifetime * 3;  // it is stopped; what they say lies in a queue
  EXPECT_NE(a->call(Request::kRefresh, {}, 0).result, Answer::kExpired);
  EXPECT_EQ(server->clients(), 2u);
  is_awake_for(kLifetime / 2 - Duration::microseconds(1));
  EXPECT_EQ(server->clients(), 2u);
  is_awake_for(Duration::microseconds(1));
  EXPECT_EQ(server->clients(), 1u) << "the other one has been silent for all the time there was";
  EXPECT_NE(a->call(Request::kRefresh, {}, 0).result, Answer::kExpired);
}

TEST_F(Metadata, GivesSlotsOfTheVolumeThatIsAskedForWhileItHasAny) {
  begin(make_config(1, 64));
  std::size_t of_one = 0;
  for (std::uint32_t sequence = 1; a->call(Request::kAllocate, {4, 1}, 1, sequence).result == Answer::kOk; ++sequence) {
    for (const std::uint64_t word : a->numbers) {
      const bool wanted = NodePointer{word}.volume() == 1;
      if (wanted) ++of_one;
      EXPECT_TRUE(wanted || of_one == 32u) << of_one;
    }
  }
  EXPECT_EQ(of_one, 32u);
  EXPECT_EQ(in_state(SlotState::kFree), 0u);
  EXPECT_EQ(a->call(Request::kAllocate, {4, 1, 1}, 1, 1000).result, Answer::kMalformed);
}

TEST_F(Metadata, GivesNoClientAllThatIsLeftAndSaysWhenThereIsNothing) {
  begin(make_config(1, 8));
  EXPECT_LE(a->grant(1000).size(), 3u);
  std::uint32_t sequence = 1000;
  while (a->call(Request::kAllocate, {1000}, 1, sequence).result == Answer::kOk) ++sequence;
  EXPECT_EQ(in_state(SlotState::kFree), 0u);
  EXPECT_EQ(a->numbers.at(0), 0u);  // nothing is on its way back
}

TEST_F(Metadata, TakesAReleasedSlotBackUnderAnotherGeneration) {
  begin(make_config(1, 2));
  const auto first = a->grant(1);
  EXPECT_EQ(a->call(Request::kRelease, {first[0]}).result, Answer::kOk);
  EXPECT_EQ(a->call(Request::kRelease, {first[0]}).result, Answer::kRefused);
  const auto again = a->grant(1);
  const auto more = a->grant(1);
  for (const auto slot : {again[0], more[0]}) EXPECT_NE(slot, first[0]);
}

TEST_F(Metadata, ChangesTheViewOnlyWhenAllLeasesOnTheOldOneHaveEnded) {
  begin(make_config(2));
  EXPECT_EQ(a->last_view.volumes[0].live, 3);
  EXPECT_EQ(a->call(Request::kSuspect, {1}).result, Answer::kMalformed);  // a node is 4 bytes
  std::array<std::uint8_t, 64> request{};
  MessageWriter out(request);
  put_header(out, {Request::kSuspect, 1, a->id, 0});
  out.put(std::uint32_t{1});
  EXPECT_EQ(a->send(ByteView(request).first(out.length())).result, Answer::kOk);
  const Time begun = now;
  std::uint32_t view = 1;
  const Duration lease = kLifetime / 4;  // on a view
  while (now < begun + lease + kFlight) {
    const auto header = b->call(Request::kRefresh, {}, 0);
    EXPECT_EQ(header.view, 1u);
    // No lease reaches beyond the change less what is in flight.
    EXPECT_LE(now + Duration::microseconds(header.lease_us), std::max(now, begun + lease));
    a->call(Request::kRefresh, {}, 0);
    now = now + Duration::microseconds(5);
    view = header.view;
  }
  EXPECT_EQ(view, 1u);
  EXPECT_EQ(b->call(Request::kRefresh, {}, 0).view, 2u);
  EXPECT_EQ(b->last_view.volumes[0].live, 1);
  EXPECT_EQ(b->last_view.volumes[1].live, 2);
  EXPECT_EQ(b->last_view.volumes[1].primary(), 1u);
  // The last replica is never left out.
  MessageWriter other(request);
  put_header(other, {Request::kSuspect, 1, a->id, 0});
  other.put(std::uint32_t{0});
  a->call(Request::kRefresh, {}, 0);
  EXPECT_EQ(a->send(ByteView(request).first(other.length())).result, Answer::kRefused);
}

// The other life of node 1's memory.
Home blank_home() { return {{{remote::NodeId(1), remote::RegionKey(77), 0x90000}, 64 * 64}, 12}; }

class MetadataReplicas : public Metadata {
 protected:
  void SetUp() override {
    auto config = make_config(2);
    for (std::uint32_t i = 0; i < 2; ++i)
      config.homes.push_back({{{remote::NodeId(i), remote::RegionKey(i + 1), 0x10000}, 64 * 64}, i + 1});
    begin(config);
  }
  void both_refresh() {
    a->call(Request::kRefresh, {}, 0);
    b->call(Request::kRefresh, {}, 0);
  }
  void wait(Duration d) {
    for (const Time end = now + d; now < end; now = now + kLifetime / 4) both_refresh();
  }
  // Node 1 dies and comes back.
  void come_back() {
    EXPECT_EQ(server->see(now, blank_home()), MetadataServer::Advice::kWait);
    wait(kLifetime + kFlight);
    EXPECT_EQ(server->see(now, blank_home()), MetadataServer::Advice::kWipe);
    EXPECT_TRUE(server->wipes(blank_home()).empty());  // it is blank
    server->rejoin(now, blank_home(), {});
    EXPECT_EQ(server->joining(), 2u);
    both_refresh();
  }
  std::vector<CopyTask> copies() {
    std::array<CopyTask, 16> out;
    Time until;
    const auto count = server->next_copies(now, out, until);
    EXPECT_LE(until, now + kLifetime);
    return {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  AnswerHeader say(Talk& talk, Request type, std::uint32_t view) {
    std::array<std::uint8_t, 64> request{};
    MessageWriter out(request);
    put_header(out, {type, 1, talk.id, 0});
    out.put(view);
    return talk.send(ByteView(request).first(out.length()));
  }
  void settle(Talk& talk) { EXPECT_EQ(say(talk, Request::kSettled, server->view_number()).result, Answer::kOk); }
};

TEST_F(MetadataReplicas, CountAgainOnlyWhenNobodyCanHaveKeptAnythingFromThem) {
  const auto mine = a->grant(3);
  a->call(Request::kCreate, {1, mine[0]});
  come_back();
  // Nothing is copied while somebody may still act under the view before.
  EXPECT_TRUE(copies().empty());
  settle(*a);
  settle(*b);
  wait(kLifetime + kFlight - kLifetime / 4);
  EXPECT_TRUE(copies().empty());
  EXPECT_EQ(server->joining(), 2u);
  wait(kLifetime / 2);
  const auto tasks = copies();
  ASSERT_EQ(tasks.size(), 1u);
  EXPECT_EQ(tasks[0].node.word, mine[0]);
  EXPECT_NE(tasks[0].from.node, remote::NodeId(1));
  EXPECT_EQ(tasks[0].to.node, remote::NodeId(1));
  EXPECT_EQ(tasks[0].to.key, remote::RegionKey(77));
  // Looked for again until it has been copied, and counted only after a look that finds nothing.
  EXPECT_EQ(copies().size(), 1u);
  server->copied(tasks[0]);
  while (!copies().empty()) {
  }
  EXPECT_EQ(server->joining(), 0u);
  EXPECT_EQ(server->missing(), 0u);
}

TEST_F(MetadataReplicas, WaitForClientsThatMayHaveWrittenUnderTheViewBefore) {
  come_back();
  wait((kLifetime + kFlight) * 2);
  settle(*a);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(copies().empty());
  EXPECT_EQ(server->joining(), 2u) << "b has not said that it has reported all";
  settle(*b);
  EXPECT_TRUE(copies().empty());
  EXPECT_EQ(server->joining(), 0u);
}

TEST_F(MetadataReplicas, AreLeftOutAsSoonAsAllHaveLetGoOfTheViewWhenTheyAreDead) {
  const auto view = server->view_number();
  EXPECT_TRUE(server->lose(now, remote::NodeId(1)));
  EXPECT_FALSE(a->call(Request::kRefresh, {}, 0).view_ends) << "it may live";
  EXPECT_EQ(server->see(now, blank_home()), MetadataServer::Advice::kWait);
  EXPECT_TRUE(a->call(Request::kRefresh, {}, 0).view_ends);
  EXPECT_TRUE(a->last_view.volumes[0].is_dead(1));
  EXPECT_FALSE(a->last_view.volumes[0].is_dead(0));
  EXPECT_EQ(say(*a, Request::kLetGo, view - 1).view, view);
  EXPECT_NE(a->call(Request::kRefresh, {}, 0).lease_us, 0u) << "that was another view";
  const auto told = say(*a, Request::kLetGo, view);
  EXPECT_EQ(told.view, view) << "b may still act under it";
  EXPECT_EQ(told.lease_us, 0u);
  EXPECT_EQ(a->call(Request::kRefresh, {}, 0).lease_us, 0u);
  // Who comes now waits for the next view, and nobody for it.
  Talk late(*server, now);
  late.enter();
  EXPECT_EQ(late.call(Request::kRefresh, {}, 0).lease_us, 0u);
  const auto last = say(*b, Request::kLetGo, view);
  EXPECT_EQ(last.view, view + 1);
  EXPECT_NE(last.lease_us, 0u);
  EXPECT_FALSE(last.view_ends);
  EXPECT_EQ(server->missing(), 2u);
  EXPECT_EQ(server->counters().let_go, 1u);
  EXPECT_EQ(server->see(now, blank_home()), MetadataServer::Advice::kWipe);
  b->call(Request::kRefresh, {}, 0);
  EXPECT_FALSE(b->last_view.volumes[0].is_dead(1));
}

TEST_F(MetadataReplicas, WaitForTheFlightsOfClientsThatHaveGoneWithoutAWord) {
  const auto view = server->view_number();
  a->call(Request::kLeave, {}, 0);
  EXPECT_EQ(server->see(now, blank_home()), MetadataServer::Advice::kWait);
  EXPECT_EQ(say(*b, Request::kLetGo, view).view, view);
  now = now + kFlight - Duration::microseconds(1);
  EXPECT_EQ(b->call(Request::kRefresh, {}, 0).view, view);
  now = now + Duration::microseconds(1);
  EXPECT_EQ(b->call(Request::kRefresh, {}, 0).view, view + 1);
}

TEST_F(MetadataReplicas, DoNotWaitForClientsThatLeftWithNothingUnderWay) {
  const auto view = server->view_number();
  EXPECT_EQ(say(*a, Request::kLetGo, view).result, Answer::kRefused) << "it does not end";
  EXPECT_NE(a->call(Request::kRefresh, {}, 0).lease_us, 0u);
  a->call(Request::kLeave, {}, 1);
  EXPECT_EQ(server->see(now, blank_home()), MetadataServer::Advice::kWait);
  EXPECT_EQ(say(*b, Request::kLetGo, view).view, view + 1);
}

TEST_F(MetadataReplicas, AreNotLeftOutEarlyWhileAnotherComesBack) {
  come_back();
  Home again = blank_home();
  again.life = 13;
  const auto view = server->view_number();
  EXPECT_EQ(server->see(now, again), MetadataServer::Advice::kWait);
  EXPECT_FALSE(a->call(Request::kRefresh, {}, 0).view_ends) << "what is being copied is under way";
  say(*a, Request::kLetGo, view);
  EXPECT_EQ(say(*b, Request::kLetGo, view).view, view);
}

TEST_F(MetadataReplicas, GetOrphansThatMayBeLinkedAndNotWhatWasGrantedSince) {
  const auto before = a->grant(2);
  come_back();
  const auto since = a->grant(2);
  settle(*a);
  settle(*b);
  wait((kLifetime + kFlight) * 2);
  a->call(Request::kOrphan, {before[0]});
  a->call(Request::kCreate, {1, since[0]});
  const auto tasks = copies();
  ASSERT_EQ(tasks.size(), 1u);
  EXPECT_EQ(tasks[0].node.word, before[0]);
  server->not_there(tasks[0]);
  EXPECT_TRUE(copies().empty());
  EXPECT_EQ(server->joining(), 0u);
}

// A head may be before it yet, and what that leads to is read on whichever replica is the primary by then.
TEST_F(MetadataReplicas, GetWhatNoWalkHasMetAsLongAsTheHeadMayBeBeforeIt) {
  const auto before = a->grant(3);
  a->call(Request::kCreate, {9, before[0]});
  come_back();
  settle(*a);
  settle(*b);
  wait((kLifetime + kFlight) * 2);
  for (const auto& task : copies()) server->copied(task);
  a->call(Request::kOrphan, {before[1]});
  b->call(Request::kChecked, {9, before[1]});
  ASSERT_EQ(in_state(SlotState::kSetAside), 1u);
  const auto tasks = copies();
  ASSERT_EQ(tasks.size(), 1u);
  EXPECT_EQ(tasks[0].node.word, before[1]);
  server->not_there(tasks[0]);
  EXPECT_TRUE(copies().empty());
  EXPECT_EQ(server->joining(), 0u);
}

TEST_F(MetadataReplicas, AreNotCountedWhileTheyComeBackSoTheLastOneStays) {
  come_back();
  EXPECT_FALSE(server->lose(now, remote::NodeId(0))) << "only node 0 has everything";
  EXPECT_TRUE(server->lose(now, remote::NodeId(1)));
  wait(kLifetime + kFlight);
  both_refresh();
  EXPECT_EQ(server->joining(), 0u);
  EXPECT_EQ(server->missing(), 2u);
  for (const auto& volume : server->volumes()) EXPECT_EQ(volume.replicas[volume.primary()].node, remote::NodeId(0));
}

TEST_F(MetadataReplicas, ThatWereLeftOutWithWhatTheyHadAreWipedFirst) {
  const auto mine = a->grant(5);
  EXPECT_TRUE(server->lose(now, remote::NodeId(1)));
  wait(kLifetime + kFlight);
  const Home same{{{remote::NodeId(1), remote::RegionKey(2), 0x10000}, 64 * 64}, 2};
  ASSERT_EQ(server->see(now, same), MetadataServer::Advice::kWipe);
  std::size_t slots = 0;
  for (const auto& task : server->wipes(same)) slots += task.slots;
  EXPECT_EQ(slots, mine.size());
}

TEST_F(MetadataReplicas, StayWhereTheyAreWhenAllAreSuspectedAndNobodyKnowsWhichAreDead) {
  EXPECT_TRUE(server->lose(now, remote::NodeId(0)));
  EXPECT_TRUE(server->lose(now, remote::NodeId(1)));
  const auto view = server->view_number();
  wait(kLifetime + kFlight);
  EXPECT_EQ(server->view_number(), view + 1);
  EXPECT_EQ(server->missing(), 0u);
  EXPECT_TRUE(server->lose(now, remote::NodeId(1))) << "the other one is not suspected any more";
  wait(kLifetime + kFlight);
  for (const auto& volume : server->volumes()) EXPECT_EQ(volume.replicas[volume.primary()].node, remote::NodeId(0));
}

// On three nodes without clients, so that a view ends as soon as nothing of it can be under way.
class MetadataReplicasOfThree : public Metadata {
 protected:
  void begin_with(std::uint32_t replicas, std::uint64_t bytes) {
    std::vector<Region> regions;
    for (std::uint32_t i = 0; i < 3; ++i)
      regions.push_back({{remote::NodeId(i), remote::RegionKey(i + 1), 0x10000}, bytes});
    config = make_config();
    config.volumes = *spread(regions, replicas);
    for (std::uint32_t i = 0; i < 3; ++i) config.homes.push_back({regions[i], i + 1});
    blank = {{{remote::NodeId(1), remote::RegionKey(77), 0x90000}, bytes}, 12};
    server = std::make_unique<MetadataServer>(config, &journal);
  }
  void pass() {
    now = now + kLifetime + kFlight;
    server->see(now, config.homes[2]);
  }

  ServerConfig config;
  Home blank;  // another life of node 1's memory
  KeptJournal journal;
};

// Node 0 was left out of its two volumes; then node 1 lost what it held of them. What node 0 has of the one is let alone: nobody has more. In the
// other node 2 has everything.
TEST_F(MetadataReplicasOfThree, AreNotWipedWhereTheOnlyOneThatCountsIsLost) {
  begin_with(2, 64 * 64);
  EXPECT_TRUE(server->lose(now, remote::NodeId(0)));
  pass();
  EXPECT_EQ(server->missing(), 2u);
  EXPECT_EQ(server->see(now, blank), MetadataServer::Advice::kWait);
  pass();
  EXPECT_EQ(server->missing(), 3u) << "node 1 stays in the volume in which it is the last,";
  server->see(now, blank);
  EXPECT_EQ(server->missing(), 2u) << "until it is known that nothing is left of that: no replica of it can come back";
  EXPECT_EQ(server->lost_volumes(), 1u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(server->see(now, config.homes[0]), MetadataServer::Advice::kWipe);
    EXPECT_EQ(server->wipes(config.homes[0]).size(), 1u);
    if (i == 0) {
      EXPECT_EQ(server->see(now, blank), MetadataServer::Advice::kWipe);
      server->rejoin(now, blank, {});
    }
  }
  server->rejoin(now, config.homes[0], server->wipes(config.homes[0]));
  EXPECT_EQ(server->missing(), 0u);
  EXPECT_EQ(server->see(now, config.homes[0]), MetadataServer::Advice::kNothing);
  Home fenced = blank;
  fenced.region.base.key = remote::RegionKey(78);
  EXPECT_EQ(server->see(now, fenced), MetadataServer::Advice::kNothing);
  EXPECT_EQ(server->see(now, config.homes[0]), MetadataServer::Advice::kNothing) << "under another key it is as blank";
  MetadataServer again(config);
  for (const auto& record : journal.records) EXPECT_TRUE(again.replay(record));
  EXPECT_EQ(again.state(now).size(), server->state(now).size());
  EXPECT_EQ(again.missing(), 0u);
  EXPECT_EQ(again.lost_volumes(), 1u);
}

// Clients of old take the first replica where none lives.
TEST_F(MetadataReplicasOfThree, HaveNoKeyInAVolumeThatIsLost) {
  begin_with(2, 64 * 64);
  EXPECT_TRUE(server->lose(now, remote::NodeId(0)));
  pass();
  server->see(now, blank);
  pass();
  server->see(now, blank);
  ASSERT_EQ(server->lost_volumes(), 1u);
  a = std::make_unique<Talk>(*server, now);
  a->enter();
  std::size_t without = 0;
  for (const Volume& volume : a->last_view.volumes) {
    for (std::size_t j = 0; j < volume.count; ++j) {
      without += static_cast<std::size_t>(volume.replicas[j].key == remote::RegionKey(0));
      EXPECT_EQ(volume.replicas[j].key == remote::RegionKey(0), volume.is_lost());
    }
  }
  EXPECT_EQ(without, 2u);
}

// Orphans, keys to settle and keys to seal.
TEST_F(MetadataReplicasOfThree, AskForNoWorkInAVolumeThatIsLost) {
  begin_with(1, 64 * 8000);
  a = std::make_unique<Talk>(*server, now);
  b = std::make_unique<Talk>(*server, now);
  Talk dies_before(*server, now);
  Talk dies_after(*server, now);
  for (auto* const talk : {a.get(), b.get(), &dies_before, &dies_after}) talk->enter();
  const auto take = [](Talk& talk, std::uint64_t volume, std::uint32_t sequence) {
    EXPECT_EQ(talk.call(Request::kAllocate, {100, volume}, 1, sequence).result, Answer::kOk);
    return talk.numbers;
  };
  for (std::uint32_t i = 1; i <= 20; ++i) take(dies_before, 1, i);
  now = now + kLifetime * 3 / 4;
  for (auto* const talk : {a.get(), b.get(), &dies_after}) talk->call(Request::kRefresh, {}, 0);
  for (std::uint32_t i = 1; i <= 20; ++i) take(dies_after, 1, i);
  std::uint64_t key = 0;
  for (std::uint32_t i = 1; i <= 30; ++i) {
    const auto slots = take(*a, 1, i);
    for (std::size_t n = 0; n + 1 < slots.size(); n += 2) {
      EXPECT_EQ(a->call(Request::kCreate, {++key, slots[n]}).result, Answer::kOk);
      a->call(Request::kReport, {key, slots[n + 1], 0});
    }
  }
  ASSERT_GT(key, 1024u);
  now = now + kLifetime / 2;
  for (auto* const talk : {a.get(), b.get(), &dies_after}) talk->call(Request::kRefresh, {}, 0);
  ASSERT_EQ(server->clients(), 3u);
  server->see(now, blank);
  ASSERT_EQ(server->lost_volumes(), 1u);
  for (int i = 0; i < 3; ++i) {
    now = now + kLifetime / 2;
    a->call(Request::kRefresh, {}, 0);
    b->call(Request::kRefresh, {}, 0);
  }
  ASSERT_EQ(server->clients(), 2u);
  EXPECT_GE(in_state(SlotState::kOrphan), 4'000u);
  // Those keys that were to be settled when their volume was lost are looked at once more, so many for an answer.
  const auto first = b->call(Request::kWork, {}, 32);
  EXPECT_EQ(first.count, 0u);
  EXPECT_TRUE(first.work_waits);
  for (std::uint64_t i = 0; i < key / 1000; ++i) EXPECT_EQ(b->call(Request::kWork, {}, 32).count, 0u);
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(b->call(Request::kRefresh, {}, 0).work_waits) << i;
    a->call(Request::kRefresh, {}, 0);
    now = now + kLifetime / 2;
  }
}

// Nobody could read the key that was told to be there.
TEST_F(MetadataReplicasOfThree, BeginNoKeyInAVolumeThatIsLost) {
  begin_with(1, 64 * 64);
  a = std::make_unique<Talk>(*server, now);
  a->enter();
  std::vector<std::uint64_t> mine;
  for (const auto slot : a->grant(12)) {
    if (NodePointer{slot}.volume() == 1) mine.push_back(slot);
  }
  ASSERT_GE(mine.size(), 2u);
  EXPECT_EQ(a->call(Request::kCreate, {5, mine[0]}).result, Answer::kOk);
  server->see(now, blank);
  ASSERT_EQ(server->lost_volumes(), 1u);
  EXPECT_EQ(a->call(Request::kCreate, {5, mine[0]}).result, Answer::kOk) << "asked again";
  EXPECT_EQ(a->call(Request::kCreate, {6, mine[1]}).result, Answer::kRefused);
  EXPECT_EQ(a->head(6), 0u);
  EXPECT_EQ(a->call(Request::kRelease, {mine[1]}).result, Answer::kOk);
}

// Node 0 was left out with what it had, then node 1 lost what it held: of three volumes two have their only replica that counts at node 1.
// While node 0 is blanked for the third, the view changes (at once, since no client is there).
TEST_F(MetadataReplicasOfThree, ComeBackOnlyWhereTheyWereBlankedThoughTheViewHasChangedMeanwhile) {
  begin_with(3, 64 * 640);
  const Home& back = config.homes[0];
  EXPECT_TRUE(server->lose(now, remote::NodeId(0)));
  pass();
  EXPECT_EQ(server->see(now, blank), MetadataServer::Advice::kWait);
  const auto blanked = server->wipes(back);
  ASSERT_EQ(blanked.size(), 1u);
  ASSERT_EQ(server->see(now, back), MetadataServer::Advice::kWipe);
  ASSERT_EQ(server->wipes(back).size(), 3u) << "node 2 has everything now";
  server->rejoin(now, back, blanked);
  EXPECT_EQ(server->joining(), 1u);
  MetadataServer again(config);
  for (const auto& record : journal.records) EXPECT_TRUE(again.replay(record));
  EXPECT_EQ(again.joining(), 1u);
  ASSERT_EQ(server->see(now, back), MetadataServer::Advice::kWipe) << "for the other two";
  const auto rest = server->wipes(back);
  EXPECT_EQ(rest.size(), 2u);
  server->rejoin(now, back, rest);
  EXPECT_EQ(server->joining(), 3u);
}

// A node that the directory had forgotten has another number, and its number may be another's.
TEST_F(MetadataReplicasOfThree, ComeBackUnderTheirNamesWhateverNumbersTheseHave) {
  begin_with(2, 64 * 64);
  for (std::uint32_t i = 0; i < 3; ++i) config.homes[i].name = "memory" + std::to_string(i);
  server = std::make_unique<MetadataServer>(config, &journal);
  EXPECT_TRUE(server->lose(now, remote::NodeId(1)));
  pass();
  EXPECT_EQ(server->missing(), 2u);
  blank.name = "memory7";
  EXPECT_EQ(server->see(now, blank), MetadataServer::Advice::kNothing) << "somebody else has its number";
  blank.name = "memory1";
  blank.region.base.node = remote::NodeId(9);
  EXPECT_EQ(server->see(now, blank), MetadataServer::Advice::kWipe);
  server->rejoin(now, blank, server->wipes(blank));
  EXPECT_EQ(server->missing(), 0u);
  EXPECT_EQ(server->joining(), 2u);
  EXPECT_EQ(server->name_of(remote::NodeId(9)), "memory1");
  // And after a restart, from the journal and from the state.
  const auto state = server->state(now);
  MetadataServer from_journal(config);
  for (const auto& record : journal.records) EXPECT_TRUE(from_journal.replay(record));
  MetadataServer from_state(config);
  EXPECT_TRUE(from_state.replay(state));
  for (auto* const other : {&from_journal, &from_state}) {
    EXPECT_TRUE(other->knows(blank));
    EXPECT_EQ(other->name_of(remote::NodeId(9)), "memory1");
    for (std::size_t v = 0; v < 3; ++v) {
      for (std::size_t j = 0; j < 2; ++j)
        EXPECT_EQ(other->volumes()[v].replicas[j], server->volumes()[v].replicas[j]) << v << j;
    }
  }
}

TEST_F(MetadataReplicas, UnderAnotherKeyWithTheSameMemoryStayWhatTheyAre) {
  const Home fenced{{{remote::NodeId(1), remote::RegionKey(3), 0x10000}, 64 * 64}, 2};
  const auto view = server->view_number();
  EXPECT_EQ(server->see(now, fenced), MetadataServer::Advice::kNothing);
  EXPECT_EQ(server->view_number(), view + 1);
  EXPECT_EQ(server->missing() + server->joining(), 0u);
  for (const auto& volume : server->volumes()) {
    for (std::size_t j = 0; j < volume.count; ++j) {
      if (volume.replicas[j].node == remote::NodeId(1)) {
        EXPECT_EQ(volume.replicas[j].key, remote::RegionKey(3));
      }
    }
  }
}

TEST_F(Metadata, AnswersEveryRequestThatIsTooShortOrTooLongAsMalformedAndChangesNothing) {
  begin(make_config(2));
  const auto mine = a->grant(8);
  const auto created = a->call(Request::kCreate, {1, mine[0]});
  a->call(Request::kOrphan, {mine[1]});
  const std::uint64_t tombstone = NodePointer{mine[2]}.as(NodeKind::kTombstone).word;
  struct Whole {
    Request type{};
    std::uint16_t count = 0;
    std::vector<std::uint64_t> body{};
    std::size_t bytes = body.size() * 8;  // of it
    std::size_t optional = 0;             // of these, at the end
  };
  const std::vector<Whole> all = {{Request::kRefresh, 0},
                                  {Request::kLookup, 2, {1, 2}},
                                  {Request::kReport, 2, {1, mine[3], created.clock, 1, mine[4], 0}},
                                  {Request::kSealed, 1, {1, tombstone}},
                                  {Request::kCreate, 1, {2, mine[5]}},
                                  {Request::kAllocate, 1, {2, 1}, 16, 8},
                                  {Request::kRelease, 1, {mine[6]}},
                                  {Request::kOrphan, 1, {mine[7]}},
                                  {Request::kWork, 2},
                                  {Request::kChecked, 1, {1, mine[1]}},
                                  {Request::kSuspect, 1, {1}, 4},
                                  {Request::kSettled, 1, {1}, 4},
                                  {Request::kLetGo, 1, {1}, 4},
                                  {Request::kLeave, 0},
                                  {Request::kRegister, 0}};
  std::uint32_t sequence = 100;
  for (const auto& whole : all) {
    std::array<std::uint8_t, 128> request{};
    MessageWriter out(request);
    put_header(out, {whole.type, whole.count, a->id, ++sequence, a->store});
    for (const auto n : whole.body) out.put(n);
    const std::size_t length = kRequestHeader + whole.bytes;
    for (std::size_t cut = 0; cut < length + 9; ++cut) {
      if (cut == length || cut == length - whole.optional) continue;
      const auto before = server->state(now);
      const auto answer = a->send(ByteView(request).first(cut));
      EXPECT_EQ(answer.result, Answer::kMalformed) << static_cast<int>(whole.type) << ": " << cut;
      EXPECT_EQ(answer.lease_us, 0u);
      EXPECT_TRUE(server->state(now) == before) << static_cast<int>(whole.type) << ": " << cut;
    }
    const auto good = a->send(ByteView(request).first(length)).result;
    EXPECT_TRUE(good == Answer::kOk || whole.type == Request::kLetGo) << static_cast<int>(whole.type);
  }
  for (const int unknown : {0, static_cast<int>(Request::kLetGo) + 1, 255})
    EXPECT_EQ(b->call(static_cast<Request>(unknown), {}, 0).result, Answer::kMalformed);
}

TEST_F(Metadata, AnswersNoMoreThanFitsIntoAMessageHoweverMuchIsAskedFor) {
  begin(make_config(1, 4096));
  constexpr std::size_t kMost = (remote::kMaxMessage - kAnswerHeader) / 8;
  const auto mine = a->grant(~std::uint64_t{0});
  EXPECT_EQ(mine.size(), kMost);
  std::vector<std::uint64_t> keys(kMost);
  EXPECT_EQ(a->call(Request::kLookup, keys, keys.size()).count, kMost);
  keys.push_back(0);  // the request still fits
  EXPECT_EQ(a->call(Request::kLookup, keys, keys.size()).result, Answer::kMalformed);
  for (std::size_t i = 0; i < 200; ++i) a->call(Request::kOrphan, {mine[i]});
  now = now + kFlight;
  EXPECT_EQ(a->call(Request::kWork, {}, 65'535).count, (remote::kMaxMessage - kAnswerHeader) / 24);
  EXPECT_EQ(a->call(Request::kWork, {}, 65'535).count, 200 - (remote::kMaxMessage - kAnswerHeader) / 24);
}

TEST_F(Metadata, KnowsTheSameAfterARestartFromItsJournal) {
  const auto config = make_config(2, 64);
  KeptJournal journal;
  server = std::make_unique<MetadataServer>(config, &journal);
  a = std::make_unique<Talk>(*server, now);
  b = std::make_unique<Talk>(*server, now);
  a->enter();
  b->enter();
  auto mine = a->grant(6);
  auto clock = a->call(Request::kCreate, {1, mine[0]}).clock;
  clock = a->call(Request::kReport, {1, mine[1], clock}).clock;
  b->grant(2);
  a->call(Request::kOrphan, {mine[2]});
  for (int i = 0; i < 4; ++i) {
    now = now + kLifetime / 2;
    a->call(Request::kRefresh, {}, 0);  // the other one expires
  }
  mine.push_back(a->grant(1).at(0));
  MetadataServer again(config);
  for (const auto& record : journal.records) EXPECT_TRUE(again.replay(record));
  again.restart(Time());  // a new process, whose time begins anew
  EXPECT_EQ(again.summary(), server->summary());
  Time later = Time() + Duration::microseconds(1);
  Talk c(again, later);
  c.id = a->id;
  EXPECT_EQ(c.head(1), mine[1]);
  EXPECT_EQ(c.call(Request::kCreate, {2, mine[6]}).result, Answer::kOk);
}

// From the journal, or from a journal that begins with all that was known.
class Restarted : public Metadata, public testing::WithParamInterface<bool> {
 protected:
  void begin_with_journal(const ServerConfig& config) {
    config_ = config;
    server = std::make_unique<MetadataServer>(config, &journal);
    a = std::make_unique<Talk>(*server, now);
    b = std::make_unique<Talk>(*server, now);
    a->enter();
    b->enter();
  }
  // Another process, whose clock begins now.
  void start_again() {
    auto again = std::make_unique<MetadataServer>(config_);
    if (GetParam()) journal.records = {server->state(now)};
    for (const auto& record : journal.records) ASSERT_TRUE(again->replay(record));
    now = Time();
    again->restart(now);
    server = std::move(again);
    for (auto* const talk : {&a, &b}) {
      auto same = std::make_unique<Talk>(*server, now);
      same->id = (*talk)->id;
      *talk = std::move(same);
    }
  }
  AnswerHeader refresh(Talk& talk) { return talk.call(Request::kRefresh, {}, 0); }

  KeptJournal journal;

 private:
  ServerConfig config_;
};
INSTANTIATE_TEST_SUITE_P(FromTheJournalAndFromTheState, Restarted, testing::Bool());

TEST_P(Restarted, WithAClockThatBeginsAnewAllThatWaitsWaitsFromThen) {
  begin_with_journal(make_config());
  const auto mine = a->grant(6);
  const auto clock = a->call(Request::kCreate, {1, mine[0]}).clock;
  a->call(Request::kReport, {1, mine[1], clock});  // retires the first, and
  a->call(Request::kReport, {1, mine[2], clock});  // nobody knows which of the two is the newer
  a->call(Request::kCreate, {2, mine[3]});
  a->call(Request::kReport, {2, NodePointer{mine[4]}.as(NodeKind::kTombstone).word, ~std::uint64_t{0}});
  a->call(Request::kOrphan, {mine[5]});
  ASSERT_EQ(in_state(SlotState::kRetired), 2u);
  start_again();
  const Duration grace = kLifetime + kFlight;
  EXPECT_FALSE(refresh(*a).work_waits);
  now = Time() + kLifetime - Duration::microseconds(1);
  refresh(*a);
  EXPECT_EQ(server->clients(), 2u) << "it may have been heard just before";
  now = Time() + kLifetime;
  refresh(*a);
  EXPECT_EQ(server->clients(), 1u);
  now = Time() + grace - Duration::microseconds(1);
  EXPECT_FALSE(refresh(*a).work_waits);
  EXPECT_EQ(in_state(SlotState::kRetired), 2u);
  now = Time() + grace;
  EXPECT_TRUE(refresh(*a).work_waits);
  EXPECT_EQ(in_state(SlotState::kRetired), 0u);
  ASSERT_EQ(a->call(Request::kWork, {}, 30).count, 3u);
  std::array<int, 4> of_kind{};
  for (std::size_t i = 0; i < a->numbers.size(); i += 3) ++of_kind.at(a->numbers[i]);
  EXPECT_EQ(of_kind, (std::array<int, 4>{0, 1, 1, 1}));
}

// With a shorter lifetime of cursors: whoever was there before goes by the longer one.
TEST_F(Metadata, WaitsAfterARestartAsLongAsTheLifetimeBeforeAsks) {
  KeptJournal journal;
  auto config = make_config(2, 64);
  config.cursor_lifetime = kLifetime * 60;
  server = std::make_unique<MetadataServer>(config, &journal);
  journal.append(server->state(now));
  a = std::make_unique<Talk>(*server, now);
  a->enter();
  auto mine = a->grant(3);
  const auto clock = a->call(Request::kCreate, {1, mine[0]}).clock;
  config.cursor_lifetime = kLifetime;
  // The second time the story says nothing but the shorter one, and that the longer one may still hold.
  std::vector<std::vector<std::uint8_t>> story = journal.records;
  for (int life = 0; life < 2; ++life) {
    auto again = std::make_unique<MetadataServer>(config);
    for (const auto& record : story) ASSERT_TRUE(again->replay(record));
    again->restart(now);
    server = std::move(again);
    story = {server->state(now)};
  }
  EXPECT_EQ(server->view_number(), 2u) << "so that nobody acts on before he has heard of the other lifetime";
  Talk c(*server, now);
  c.id = a->id;
  c.call(Request::kReport, {1, mine[1], clock});
  EXPECT_EQ(in_state(SlotState::kRetired), 1u);
  EXPECT_TRUE(server->lose(now, remote::NodeId(1)));
  now = now + kLifetime * 15;
  server->awake(now);
  EXPECT_EQ(server->view_number(), 2u) << "a lease on the view may be as old as that";
  now = now + kFlight;
  c.call(Request::kRefresh, {}, 0);
  EXPECT_EQ(server->view_number(), 3u);
  EXPECT_EQ(c.last_view.cursor_lifetime, kLifetime);
  now = now + kLifetime * 44;
  c.call(Request::kRefresh, {}, 0);
  EXPECT_EQ(server->clients(), 1u) << "it was not heard for less than it counts on";
  EXPECT_EQ(in_state(SlotState::kRetired), 1u);
  now = now + kLifetime;
  server->awake(now);
  EXPECT_EQ(in_state(SlotState::kRetired), 0u);
  // Then it is over, and another restart knows nothing of it.
  MetadataServer last(config);
  ASSERT_TRUE(last.replay(server->state(now)));
  last.restart(now);
  now = now + kLifetime + kFlight;
  last.awake(now);
  EXPECT_EQ(last.clients(), 0u);
}

TEST_F(MetadataReplicas, AreKnownAfterARestartFromTheJournalAndFromTheStateAlike) {
  KeptJournal journal;
  auto config = make_config(2);
  for (std::uint32_t i = 0; i < 2; ++i)
    config.homes.push_back({{{remote::NodeId(i), remote::RegionKey(i + 1), 0x10000}, 64 * 64}, i + 1});
  server = std::make_unique<MetadataServer>(config, &journal);
  a = std::make_unique<Talk>(*server, now);
  b = std::make_unique<Talk>(*server, now);
  a->enter();
  b->enter();
  auto mine = a->grant(6);
  auto clock = a->call(Request::kCreate, {1, mine[0]}).clock;
  a->call(Request::kCreate, {2, mine[1]});
  a->call(Request::kReport, {1, mine[2], clock});
  a->call(Request::kReport, {2, NodePointer{mine[3]}.as(NodeKind::kTombstone).word, 0});
  come_back();
  settle(*a);
  b->grant(2);
  a->call(Request::kOrphan, {mine[4]});
  MetadataServer from_journal(config);
  for (const auto& record : journal.records) EXPECT_TRUE(from_journal.replay(record));
  const auto state = server->state(now);
  MetadataServer from_state(config);
  EXPECT_TRUE(from_state.replay(state));
  from_journal.restart(now);
  from_state.restart(now);
  for (auto* const other : {&from_journal, &from_state}) {
    EXPECT_EQ(other->summary(), server->summary());
    EXPECT_EQ(other->joining(), 2u);
    EXPECT_EQ(other->state(now).size(), from_journal.state(now).size());
    Talk c(*other, now);
    c.id = a->id;
    EXPECT_EQ(c.head(1), mine[2]);
    EXPECT_EQ(other->see(now, blank_home()), MetadataServer::Advice::kNothing);
    c.call(Request::kRefresh, {}, 0);
    EXPECT_EQ(c.last_view.volumes[0].replicas[1].key, remote::RegionKey(77));
  }
  // What is cut short or of another store is refused.
  for (std::size_t length = 0; length < state.size(); ++length) {
    MetadataServer fresh(config);
    // Of old it ended before it tells of lifetimes.
    EXPECT_EQ(fresh.replay(ByteView(state).first(length)), length == state.size() - 24) << length;
  }
  MetadataServer smaller(make_config(1, 4));
  EXPECT_FALSE(smaller.replay(state));
}

// A view may change while nothing else is recorded: with a refresh, a look-up, work.
TEST_F(MetadataReplicas, AreLeftOutAfterARestartIfTheyWereWhoeverAskedWhenTheViewChanged) {
  auto config = make_config(2);
  for (std::uint32_t i = 0; i < 2; ++i)
    config.homes.push_back({{{remote::NodeId(i), remote::RegionKey(i + 1), 0x10000}, 64 * 64}, i + 1});
  KeptJournal journal;
  server = std::make_unique<MetadataServer>(config, &journal);
  a = std::make_unique<Talk>(*server, now);
  b = std::make_unique<Talk>(*server, now);
  a->enter();
  b->enter();
  const auto expect_same = [&] {
    MetadataServer again(config);
    for (const auto& record : journal.records) EXPECT_TRUE(again.replay(record));
    again.restart(now);
    EXPECT_EQ(again.summary(), server->summary());
    Talk c(again, now);
    c.id = a->id;
    EXPECT_EQ(c.call(Request::kRefresh, {}, 0).view, server->view_number());
    EXPECT_EQ(c.last_view.volumes[1].live, server->volumes()[1].live);
    EXPECT_EQ(c.last_view.volumes[1].primary(), server->volumes()[1].primary());
  };
  EXPECT_TRUE(server->lose(now, remote::NodeId(1)));
  const auto lost = journal.records.size();
  wait(kLifetime + kFlight);
  EXPECT_EQ(server->view_number(), 2u);
  EXPECT_EQ(server->volumes()[1].live, 2);
  expect_same();
  a->grant(1);
  expect_same();
  // A journal of before such changes were recorded tells it with the next request that is.
  const auto whole = journal.records;
  journal.records.erase(journal.records.begin() + static_cast<std::ptrdiff_t>(lost));
  expect_same();
  journal.records = whole;
  // One that ends since all have let go of it is known from what they said.
  EXPECT_EQ(server->see(now, blank_home()), MetadataServer::Advice::kWipe);
  server->rejoin(now, blank_home(), {});
  wait((kLifetime + kFlight) * 2);
  settle(*a);
  settle(*b);
  while (server->joining() != 0) {
    for (const auto& task : copies()) server->copied(task);
  }
  Home again = blank_home();
  again.life = 13;
  EXPECT_EQ(server->see(now, again), MetadataServer::Advice::kWait);
  const auto view = server->view_number();
  say(*a, Request::kLetGo, view);
  EXPECT_EQ(say(*b, Request::kLetGo, view).view, view + 1);
  expect_same();
}

// Of the clock that begins anew: what concerns replicas.
class RestartedReplicas : public Restarted {
 protected:
  void SetUp() override {
    auto config = make_config(2);
    for (std::uint32_t i = 0; i < 2; ++i)
      config.homes.push_back({{{remote::NodeId(i), remote::RegionKey(i + 1), 0x10000}, 64 * 64}, i + 1});
    begin_with_journal(config);
  }
  AnswerHeader say(Talk& talk, Request type, std::uint32_t view) {
    std::array<std::uint8_t, 64> request{};
    MessageWriter out(request);
    put_header(out, {type, 1, talk.id, 0});
    out.put(view);
    return talk.send(ByteView(request).first(out.length()));
  }
  // To just before so long after the restart, while clients are heard; what they hear then.
  AnswerHeader pass_to(Duration end) {
    AnswerHeader last;
    while (now < Time() + end - Duration::microseconds(1)) {
      now = std::min(now + kLifetime / 4, Time() + end - Duration::microseconds(1));
      refresh(*a);
      last = refresh(*b);
    }
    return last;
  }
  const Duration grace = kLifetime + kFlight;
};
INSTANTIATE_TEST_SUITE_P(FromTheJournalAndFromTheState, RestartedReplicas, testing::Bool());

TEST_P(RestartedReplicas, AreLeftOutWhenLeasesOfBeforeAndSinceHaveEnded) {
  const auto view = server->view_number();
  EXPECT_TRUE(server->lose(now, remote::NodeId(1)));
  start_again();
  const auto header = refresh(*b);
  EXPECT_LE(Duration::microseconds(header.lease_us), kLifetime / 4);
  EXPECT_EQ(pass_to(grace).view, view);
  EXPECT_EQ(refresh(*b).lease_us, 0u);
  now = Time() + grace;
  EXPECT_EQ(refresh(*b).view, view + 1);
  EXPECT_EQ(server->missing(), 2u);
}

TEST_P(RestartedReplicas, ThatAreDeadWaitForTheFlightsOfThoseWhoWereThereBefore) {
  const auto view = server->view_number();
  a->call(Request::kLeave, {}, 0);
  EXPECT_EQ(server->see(now, blank_home()), MetadataServer::Advice::kWait);
  start_again();
  EXPECT_TRUE(refresh(*b).view_ends);
  EXPECT_EQ(say(*b, Request::kLetGo, view).view, view);
  now = Time() + kFlight - Duration::microseconds(1);
  EXPECT_EQ(refresh(*b).view, view);
  now = Time() + kFlight;
  EXPECT_EQ(refresh(*b).view, view + 1);
}

TEST_P(RestartedReplicas, AreCopiedOntoOnceNobodyCanActUnderTheViewBefore) {
  const auto mine = a->grant(1);
  a->call(Request::kCreate, {1, mine[0]});
  EXPECT_EQ(server->see(now, blank_home()), MetadataServer::Advice::kWait);
  for (auto* const talk : {a.get(), b.get()}) say(*talk, Request::kLetGo, server->view_number());
  ASSERT_EQ(server->see(now, blank_home()), MetadataServer::Advice::kWipe);
  server->rejoin(now, blank_home(), {});
  for (auto* const talk : {a.get(), b.get()}) say(*talk, Request::kSettled, server->view_number());
  start_again();
  std::array<CopyTask, 16> tasks;
  Time until;
  EXPECT_EQ(server->next_copies(now, tasks, until), 0u);
  pass_to(grace);
  EXPECT_EQ(server->next_copies(now, tasks, until), 0u);
  EXPECT_EQ(server->joining(), 2u);
  now = Time() + grace;
  refresh(*a);
  ASSERT_EQ(server->next_copies(now, tasks, until), 1u);
  EXPECT_EQ(tasks[0].node.word, mine[0]);
  server->copied(tasks[0]);
  while (server->next_copies(now, tasks, until) != 0) {
  }
  EXPECT_EQ(server->joining(), 0u);
}

TEST(ServerConfigCheck, NamesWhatIsWrong) {
  EXPECT_TRUE(check(make_config()).has_value());
  const auto wrong = [](auto change) {
    auto config = make_config();
    change(config);
    const auto result = check(config);
    return result.has_value() ? std::string() : result.error().message;
  };
  EXPECT_NE(wrong([](auto& c) { c.value_bytes = 7; }).find("value size 7"), std::string::npos);
  EXPECT_NE(wrong([](auto& c) { c.value_bytes = 100'000; }), "");
  EXPECT_NE(wrong([](auto& c) { c.volumes.clear(); }), "");
  EXPECT_NE(wrong([](auto& c) { c.volumes[0].length = 10; }), "");
  EXPECT_NE(wrong([](auto& c) { c.cursor_lifetime = Duration(); }), "");
  EXPECT_NE(wrong([](auto& c) { c.grant_slots = 0; }), "");
}

}  // namespace
}  // namespace sluice::clover
