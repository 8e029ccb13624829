// Clover's metadata server with chains that clients build who keep to the rules: what they say to it, and a model that has
// all chains whole.
//
// Life:       whoever derives from it decides what is done when: a script (clover_chains.cpp), or everything in turn
//             (tests/scenario/clover_orders_test.cpp).
// Errors:     a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "clover/metadata.h"

namespace sluice::fuzz {

class ChainModel {
 public:
  ChainModel& operator=(const ChainModel&) = delete;

 protected:
  struct Terms {
    Duration lifetime;  // of cursors
    Duration flight;
    clover::Key keys = 1;
  };
  // The versions of a key, in order; of a chain that was sealed nothing follows the last.
  struct Chain {
    clover::Key key = 0;
    std::vector<clover::NodePointer> nodes;  // with their kinds
    bool sealed = false;
  };
  struct Client {
    std::uint32_t id = 0;  // none: it is to register
    std::uint64_t clock = 0;
    Time lease;  // of its membership
    std::vector<clover::NodePointer> slots;
    std::vector<clover::Link> links;  // not reported yet
  };

  explicit ChainModel(Terms terms, clover::Journal* journal = nullptr);
  // A copy goes its own way, without a journal.
  ChainModel(const ChainModel& other);
  virtual ~ChainModel() = default;

  // What holds at any time.
  virtual void check() = 0;
  // Whether a client tells of a seal that it has set; else the others find out.
  virtual bool tells_of_seals() { return true; }

  // -------------------------------------------------------------------------------------------------------- messages

  void begin(clover::Request type, const Client& client, std::size_t count, std::uint32_t sequence = 0);
  // Nothing: the server does not know the client any more.
  std::optional<clover::AnswerHeader> send(Client& client);
  void refresh(Client& client);
  // As a client does before it acts on memory: out of its lease it asks first.
  bool is_in(Client& client);
  // The new slots; the client has them.
  std::vector<clover::NodePointer> grant(Client& client, std::uint64_t wanted);
  void give_back(Client& client, clover::Request how);
  void tell(Client& client, const clover::Link& said);
  void tell_sealed(Client& client, const Chain& chain);
  void tell_checked(Client& client, clover::Key key, clover::NodePointer orphan);
  // The version that the server names: chain and place. None: it knows no such key.
  std::optional<std::pair<std::size_t, std::size_t>> named(Client& client, clover::Key key);

  // ---------------------------------------------------------------------------------------------------------- chains

  Chain* chain_of(clover::Key key);  // that is not sealed
  std::size_t index_of(const Chain& chain) const { return static_cast<std::size_t>(&chain - chains_.data()); }
  // The chain and place that it has come to, if any.
  std::optional<std::pair<std::size_t, std::size_t>> find(clover::NodePointer slot) const;
  // A CAS at the tail, whatever tail that is by now, from the client's last slot to it; or the first version.
  void link(Client& client, clover::Key key, clover::NodeKind kind);
  // It has linked, and does not know it.
  void doubt(Client& client, std::size_t which);
  void work(Client& client, std::size_t most);
  void do_piece(Client& client, const clover::Work& piece);
  void look_into(Client& client, clover::NodePointer orphan);
  // The newest version of a key that is there is not on its way to another use.
  void check_tails() const;
  // One client does what is to be done until nothing is left of what was; then each key has the version that came last.
  void finish(Client& last);

  // Another process, from these records; its clock begins anew by so much.
  void start_again(const std::vector<std::vector<std::uint8_t>>& records, Duration gone, clover::Journal* journal);
  static clover::ServerConfig one_replica_each(const Terms& terms);

  Terms terms_;
  std::unique_ptr<clover::MetadataServer> server_;
  Time now_ = Time::at(Duration::milliseconds(1));
  std::uint64_t clock_ = 0;  // the server's, as it told last
  std::uint32_t sequence_ = 0;
  std::vector<Chain> chains_;

 private:
  std::array<std::uint8_t, remote::kMaxMessage> request_{};
  std::array<std::uint8_t, remote::kMaxMessage> answer_{};

 protected:
  clover::MessageWriter out_{request_};
  clover::MessageReader answer_in_{ByteView{}};
};

}  // namespace sluice::fuzz
