// FUSEE's client: a replicated hash table in passive memory. get, put, insert and erase, one-sided, without locks and without a server.
//
// get:        a cached key takes one round trip: READ of its slot and of the object that was there, together. Else both choices of the key, then the
//             objects whose fingerprint fits. What is read of a table that is being split is frozen, and still right.
// put:        the object goes to all replicas (with the READ of the slot, if cached); then Snapshot changes the slot's word: three round trips
//             without contention. A put that loses was overwritten just before the winner took effect.
// insert:     the word goes into an empty slot as *tentative*, which readers do not see. Then both choices are read again: when no other entry of the
//             key stands there, it is made live.
// erase:      the slot's word becomes void: that of a tombstone, an object of one unit, so that the word is new and the log has its place.
//
// Why a key never has two live entries. An entry becomes live only after its client, in a reading that began when the entry was tentative in the
//   primary, has found no other entry of the key, live or tentative. Of two such entries the later one began its reading when the earlier was
//   tentative, live or gone for good; so it became live only in the last case. Entries do not move, but with their whole table (growth.h). RACE inserts live at once and lets re-readers
//   remove what they find double: between the two a reader may see either, and two clients may each remove the other's.
// Two that insert the same key: the larger word is withdrawn, the smaller waits for that. A tentative entry that stands longer than a lease is withdrawn
//   by whoever it is in the way of. Withdrawing and making live are both changes of one word: one of them wins.
// Life:       create_store() once; `co_await join()`; any number of operations at once. Who leaves says so (leave()); for who has died
//             others do (leave_for(), recover()).
// Errors:     Outcome. kUnknown: the change was proposed and what became of it could not be found out. A memory node that is out of reach: operations
//             wait until it has left the view (membership.h); where the store cannot do without it, kUnavailable for what needs it, kUnknown for
//             what was under way.
// Threads:    one owner, the thread of the RemoteMemory's scheduler. Operations hold on to the Client: it outlives them, or their
//             scheduler is destroyed without running again.
// Source:     README.md; FUSEE (FAST 2023).
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "fusee/connection.h"
#include "fusee/growth.h"
#include "fusee/membership.h"
#include "fusee/slot_cache.h"
#include "fusee/snapshot.h"
#include "fusee/space.h"

namespace sluice::fusee {

enum class Outcome : std::uint8_t { kOk, kNotFound, kExists, kNoSpace, kUnavailable, kTooLong, kUnknown };
std::string_view to_string(Outcome outcome);

struct GetResult {
  Outcome outcome = Outcome::kOk;
  std::size_t length = 0;
};

// Makes an empty store in memory that is all zero and that nobody else uses yet. kExists: something is in some of it already. kTooLong: no store has this geometry over so many nodes; kNoSpace: a heap
// is too small for it; kUnknown: another maker has begun and has not ended within kMaking; else try again, as the same maker.
inline constexpr Duration kMaking = Duration::seconds(2);
remote::Task<Outcome> create_store(remote::RemoteMemory& memory, std::vector<MemoryNode> nodes, Geometry geometry,
                                   Maker maker = {});

class Client : private Retirement {
 public:
  // The memory nodes in the order that create_store had.
  Client(remote::RemoteMemory& memory, std::vector<MemoryNode> nodes, const ClientConfig& config, Rng rng);
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() override;

  // kNotFound: there is no store, or one over other nodes, or over these in another order. kUnavailable: out of reach. kNoSpace: it has had as many clients as
  // it can have.
  remote::Task<Outcome> join();
  // The memory node's memory is this one now. Either it is what it was, under another key (the memory node did not get on for longer than its lease): then it
  // is used on. Or the memory node was started anew: then it is taken back once it has left, if it has as much memory as the store uses. Or it is none's, until it
  // is known where it is now. May be told what is known already.
  void moved(std::size_t node, const MemoryNode& memory);

  // The value goes to the start of `into`. REQUIRES: joined; into.size() >= value_bytes().
  remote::Task<GetResult> get(Key key, MutableBytes into);
  remote::Task<Outcome> put(Key key, ByteView value);
  remote::Task<Outcome> insert(Key key, ByteView value);
  remote::Task<Outcome> erase(Key key);

  // Takes over the memory of a client that has died (its number(); it never submits anything again), ends what it left half done, and frees what
  // nobody refers to. Several may do so at once. kUnavailable: not all of it; try again.
  remote::Task<Outcome> recover(std::uint32_t dead);
  // Frees those of its own objects that no slot refers to: what was left over by unknown outcomes, or by others that died between taking an object out of
  // its slot and marking it. Takes over some of what others have left behind. Done by itself when memory runs out.
  remote::Task<Outcome> audit();
  // Leaves its blocks to whoever needs room, with what is in them. Takes as long as it gets on (counters().left). kUnavailable: not all of them; recover() finds
  // the rest. REQUIRES: no operation is under way, and none is begun any more.
  remote::Task<Outcome> leave();
  // Does that for some that have died, as recover() has it, but looks through nothing: so it takes a moment, and what is free in there is found when
  // somebody needs room.
  remote::Task<Outcome> leave_for(std::vector<std::uint32_t> dead);

  std::uint32_t number() const { return c_.client; }
  std::uint32_t value_bytes() const { return c_.geometry.value_bytes; }
  const ClientCounters& counters() const { return c_.counters; }
  const Geometry& geometry() const { return c_.geometry; }
  const MemoryMap& map() const { return c_.map; }
  std::uint32_t view() const { return c_.view; }  // how many changes of the memory nodes there were
  std::span<const std::unique_ptr<Block>> blocks() const { return space_.blocks(); }

 private:
  enum class How : std::uint8_t { kPut, kInsert, kErase };
  enum class Step : std::uint8_t { kDone, kAgain };
  struct Mutation;
  struct Candidates;

  // An entry of the index, as it was at `seen`.
  struct Entry {
    Place slot;
    Word word{};  // raw 0: none
    std::uint64_t sequence = 0;
    Time seen;
  };
  // What was found of a key.
  struct Look {
    Entry live;
    Entry rival;  // tentative
    Entry vacant;
    Entry reusable;  // a vacancy that something was in before
    bool has_vacancy = false;
    Table table;             // where this is
    bool frozen = false;     // some of it: the table is being split
    std::size_t length = 0;  // of the live one's value, which is in the buffer from kObjectHeader on
  };
  // Reads both choices of the key, in the table that has it, and the objects of what may be it. `own`: not to be counted. False: out of reach before
  // the deadline.
  remote::Task<bool> look(Key key, Word own, MutableBytes object, Time deadline, Look& found);
  void list(const Choices& choices, ByteView slots, Word own, Candidates& candidates);
  enum class Seen : std::uint8_t { kKey, kOther, kBroken, kUnreachable };
  remote::Task<Seen> read_object(Word word, Key key, Time seen, MutableBytes object, Time deadline, Object& parsed);

  enum class Hit : std::uint8_t { kYes, kNo, kUnreachable };
  // Is its word worth reading the object by, unseen?
  bool trusted(const SlotCache::Entry& known) const {
    return c_.config.trusts_words && c_.fresh(known.seen) && !SlotCache::doubtful(known, c_.config.cache_doubt);
  }
  // Before every operation.
  void tend();
  // Where no memory node can leave: nothing is sent there before it is known what is there now.
  void forget_place(std::size_t node);
  remote::Task<void> look_into_moved_memory();
  remote::Task<Outcome> find_store(std::vector<Membership::Found>& all);
  remote::Task<void> say_made(std::span<const std::size_t> nodes);
  remote::Task<Outcome> take_number(std::span<const Membership::Found> found);
  remote::Task<bool> raise_counts(std::span<const Membership::Found> found, std::size_t giver, std::uint64_t count);
  // Has what is there now been seen to be the store's? Else nothing is asked of it.
  bool seen_whole(std::span<const Membership::Found> found, std::size_t node) const {
    return found[node].known && !found[node].blank && !unseen_.contains(node);
  }
  remote::Task<GetResult> get_once(Key key, MutableBytes object, MutableBytes into, Time deadline);
  remote::Task<Hit> get_cached(Key key, MutableBytes object, Time deadline, Object& parsed);

  // write.cpp
  remote::Task<Outcome> change(How how, Key key, ByteView value);
  remote::Task<Outcome> change_with(Mutation& op);
  remote::Task<Step> replace(Mutation& op, Entry entry, bool cached);
  remote::Task<Step> make_way(Mutation& op, const Look& found);
  remote::Task<bool> take_place(Mutation& op, const Look& found, Entry& vacant, Piece& piece);
  remote::Task<Step> add(Mutation& op, const Look& found);
  remote::Task<Step> confirm(Mutation& op, Entry mine);
  // False: it may be tentative still.
  remote::Task<bool> withdraw(Entry entry, Time deadline);
  // Has an audit looked at all entries of its own that never became live?
  void settle_tentative();
  bool expired(Mutation& op, Word rival);
  remote::Task<Space::Given> take_now(const Mutation& op, Space::Purpose purpose, Piece& piece);
  remote::Task<Space::Given> take_larger(const Mutation& op, Space::Purpose purpose, Piece& piece);
  remote::Task<bool> take(Mutation& op, Space::Purpose purpose, Piece& piece);
  // Writes the object to all replicas; and reads the slot, if there is one. False: not all.
  remote::Task<bool> write_object(Mutation& op, const Piece& piece, const Log& log, std::optional<Place> slot,
                                  std::uint64_t& in_slot);
  Word word_of(const Mutation& op, const Piece& piece, State state) const;
  void replaced(Word old, std::uint64_t sequence);
  void on_replaced(Word old, Time seen) override;
  remote::Task<void> retire(Word old, Time seen);

  // recovery.cpp
  // Where the object's word stands, in any replica. False: could not be found out.
  // REQUIRES: the object's slot is, or was, one of this key's.
  remote::Task<bool> find_reference(Key key, Place object, Time deadline, Entry& found);
  remote::Task<bool> read_choices(const Choices& choices, std::uint32_t first, std::uint32_t last, MutableBytes into,
                                  Time deadline);
  // Of the items from `next` on. Where it ends is in `next`: after the last one, or at the first for which there was no time. False: of some it could not be
  // found out.
  remote::Task<bool> examine(Block& block, std::uint32_t& next, Time deadline);
  struct InBlock {
    std::uint32_t index;
    bool taken_over;
    Object object;
  };
  remote::Task<bool> examine_one(Block& block, const InBlock& found, std::uint32_t& next, Time deadline,
                                 bool& all_known);
  remote::Task<Outcome> audit_until(Time deadline);
  // `taken`: what others have left has had its share.
  remote::Task<bool> audit_once(bool& taken, Time deadline);
  // For whoever finds no room. False: there has been one lately that has looked at everything, or there is no time.
  remote::Task<bool> audit_for(const Mutation& op);
  remote::Task<bool> examine_log(Key key, const Log& log, Time deadline);
  remote::Task<Outcome> recover_once(std::uint32_t dead, Time deadline);
  remote::Task<Outcome> take_over(Place owner, Place block, std::uint32_t dead, Time deadline);
  remote::Task<Outcome> take_over_blocks(std::uint32_t owned_by, Time deadline);
  // One of the last blocks of the partitions, whose owner has left, with room for so large objects. False: there is none.
  remote::Task<bool> take_over_kept(std::uint32_t units, Time deadline);
  remote::Task<bool> take_one_kept(std::uint32_t units, Time deadline);
  // Is something free in a block, as far as marks say, and those of its objects that are looked up? False as well: it could not be found out.
  remote::Task<bool> has_room(Place at, std::uint32_t units, Time deadline);
  // True as well: it could not be found out.
  remote::Task<bool> is_referred(Key key, Place object, Time deadline);
  remote::Task<bool> read_owners(std::uint32_t partition, std::uint32_t first, std::uint32_t count, MutableBytes into,
                                 Time deadline);
  bool strays(Owner owner, Place block) const;
  // What these have.
  remote::Task<Outcome> leave_all(std::span<const std::uint32_t> clients);
  remote::Task<bool> leave_some(std::span<const std::uint32_t> clients, std::uint32_t partition, std::uint32_t first,
                                std::uint32_t count, Time deadline, bool& left);
  remote::Task<bool> end_claim(Place at, Time deadline, bool& reached);
  remote::Task<bool> leave_one(Place at, Owner word, Time seen, Time deadline, bool& reached);

  Connection c_;
  std::vector<MemoryNode> nodes_;
  Snapshot snapshot_;
  Space space_;
  Growth growth_;
  std::unique_ptr<SlotCache> cache_;
  std::unique_ptr<Membership> membership_;  // none: no memory node can leave
  // Those that have moved, and nobody has looked into what is there now: while it joins; then only if no memory node can leave.
  std::set<std::size_t> unseen_;
  bool looking_ = false;
  bool auditing_ = false;
  bool taking_kept_ = false;
  Outcome audit_outcome_ = Outcome::kOk;  // of the last one
  std::optional<Time> audited_;
  // When an operation gave up last whose entry may stand there, and never become live. None: an audit has looked at all of them since.
  std::optional<Time> left_tentative_;
  bool some_left_behind_ = false;  // by others, that the last audit did not take over
  // Where the last audit ended in what is its own, and the next one goes on, round and round; how many blocks this round has, and has still to look
  // at, when it began and what it took so far, and whether it has found out all that it wanted to know so far; and when the last one began that has.
  std::size_t examined_block_ = 0;
  std::uint32_t examined_item_ = 0;
  std::size_t round_blocks_ = 0;
  std::size_t round_left_ = 0;
  Time round_began_;
  Duration round_took_;  // by audits
  bool round_whole_ = true;
  std::optional<Time> whole_round_began_;
};

}  // namespace sluice::fusee
