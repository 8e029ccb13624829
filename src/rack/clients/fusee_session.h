// FUSEE session: one thread's use of the replicated hash table in the rack's memory: any number of FUSEE clients, each with a cache and blocks of
// its own. Makes the store if there is none and it may.
//
// Life, errors, threads: as StoreSession. Clients that go leave their blocks to whoever needs room; for those that were killed the next session on this
//             machine does that (client_numbers.h).
// Memory:     all memory nodes' first regions, when the store is made, in the order of their numbers, behind their first 64 KiB, which are Sherman's lock
//             tables; so each of the two finds the other's superblock in its place. Later, what the superblocks say (store_parts.h): memory nodes that have
//             come to the rack since are left alone, those that are gone are still of the store, and are taken back when they are there again.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fusee/client.h"
#include "rack/clients/client_numbers.h"
#include "rack/clients/store_parts.h"
#include "rack/clients/store_session.h"

namespace sluice::rack {

struct FuseeSessionConfig : StoreSessionConfig {
  bool may_create = false;         // the others wait for the one that may
  std::uint32_t value_bytes = 64;  // of a store that is made
  std::uint32_t replicas = 3;      // of a store that is made; at most as many as memory nodes
  // Of a store that is made: slots of its index at first, 0: one for 512 bytes of memory; and how often it may double when it is full. Memory for
  // that, 8 bytes a slot and twice as many slots, is set aside.
  std::uint64_t index_slots = 0;
  std::uint32_t index_doublings = 2;
  // Nothing leaves later than 0.27 s after it was submitted (below), so `flight` leaves as long for what is on its way. `hold` is longer than a change of the
  // view takes, so that what was under way is told how it ended.
  fusee::ClientConfig client{.timeout = Duration::seconds(15),
                             .hold = Duration::milliseconds(1600),
                             .flight = Duration::milliseconds(550),
                             .suspect_after = Duration::milliseconds(300),
                             .return_after = Duration::seconds(1),
                             .lease = Duration::milliseconds(20)};
  FuseeSessionConfig() = default;
  explicit FuseeSessionConfig(const StoreSessionConfig& session) : StoreSessionConfig(session) {
    nodes.ack_timeout = 13;  // 34 ms, eight times
    nodes.leaves_within = client.flight / 2;
  }
};

class FuseeSession final : public StoreSession {
 public:
  static Result<std::unique_ptr<StoreSession>> open(const FuseeSessionConfig& config);
  ~FuseeSession() override;
  // And which memory nodes the store does without, or is giving back what they had.
  std::string problems() const override;
  Spread spread() const override;

 private:
  explicit FuseeSession(FuseeSessionConfig config) : config_(std::move(config)) {}
  Result<void> join();
  remote::Task<void> join_all(std::string& refused, bool& ended);
  remote::Task<bool> make(const StorePlan& plan, std::string& refused);  // as MakeStore
  fusee::Geometry geometry() const;
  void use(const StorePlan& plan);
  // A place of the store has this memory now.
  void place(std::size_t index, const fusee::MemoryNode& memory);
  void look_for_new_memory();
  remote::Task<void> find_moved_memory();
  remote::Task<void> leave_for_the_dead(std::vector<ClientNumbers> dead);
  void leave();

  FuseeSessionConfig config_;
  const fusee::Maker maker_{std::random_device{}()};
  std::vector<StorePart> parts_;
  std::vector<fusee::MemoryNode> memory_;  // by the place in the store, as the clients were told
  std::vector<StorePart> places_;          // the memory that each had last, at kNowhere while that is not there
  StorePart store_;                        // one of its parts
  bool looking_ = false;
  bool changed_ = false;  // who is there, since it was last looked for what is missing
  std::vector<std::unique_ptr<fusee::Client>> clients_;
  ClientNumbers numbers_;  // theirs
  bool leaves_for_others_ = false;
};

}  // namespace sluice::rack
