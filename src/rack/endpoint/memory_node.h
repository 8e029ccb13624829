// Memory node: a region of this process's memory that anybody on the rack may read, write and do atomics on, one-sided.
//
// Life:       make() maps and registers the memory -> serve() accepts connections until destroyed.
// Invariant:  the CPU does nothing for an operation but move frames; the region's pages are paid for when they are first touched.
// Errors:     of set-up only. A connection that breaks costs itself.
// Threads:    the connector's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "nic/connector.h"
#include "rack/directory/directory.h"
#include "rack/directory/tenants.h"

namespace sluice::rack {

// Zeroed memory of this process that takes no space until it is touched (MAP_NORESERVE).
class Mapping {
 public:
  static Result<Mapping> make(std::uint64_t size);
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping();
  MutableBytes bytes() const { return bytes_; }

 private:
  explicit Mapping(MutableBytes bytes) : bytes_(bytes) {}
  MutableBytes bytes_;
};

// Accepts connections of one adapter and keeps their queue pairs: for whatever serves by being connected to.
class Acceptor {
 public:
  struct Events {
    std::function<void(rc::QueuePair&)> on_made{};  // in INIT or RESET, before it is accepted
    std::function<void(rc::QueuePair&)> on_gone{};  // in ERR, destroyed when this returns
    std::vector<std::uint8_t> greeting{};           // private data that those who connect are given
    // The protection domain for who asks so to be connected, nothing: refused. Null: that of the pair's configuration.
    std::function<std::optional<memory::PdId>(Time, const rc::ConnectionEvent&)> domain_for{};
  };

  Acceptor(nic::Connector& connector, rc::QueuePairConfig pair, std::size_t most, Events events);
  ~Acceptor();

  Result<void> listen(std::uint16_t port);
  void drop_all(Time now);
  void drop_domain(Time now, memory::PdId domain);
  // Ends the connections of those who are gone: a client that was killed says no farewell.
  void drop_gone(Time now, const Snapshot& snapshot);
  std::size_t connections() const { return connections_.size(); }
  std::uint64_t accepted() const { return accepted_; }
  std::uint64_t refused() const { return refused_; }

 private:
  struct Connection {
    rc::QueuePair* pair;
    wire::Gid remote;
  };
  void on_request(Time now, const rc::ConnectionEvent& event);
  void on_event(Time now, const rc::ConnectionEvent& event);
  void end(Time now, rc::ConnectionId id);
  void drop_if(Time now, const std::function<bool(const Connection&)>& over);

  nic::Connector& connector_;
  rc::QueuePairConfig pair_;
  std::size_t most_;
  Events events_;
  std::map<std::uint32_t, Connection> connections_;  // by ConnectionId
  std::set<wire::Gid> there_;                        // who was on the rack when it was last said who is
  std::uint64_t accepted_ = 0;
  std::uint64_t refused_ = 0;
};

inline constexpr const char* kLifeAttribute = "life";  // of a memory node: 16 hexadecimal digits

// Keys:       the key of what we export, in the node's `incarnation`-th life, ends in that number, so whoever still has one of the 255 lives before
//             is refused.
// Tenants:    each has a protection domain of its own, which its regions and the connections from its clients' addresses are in: a key alone opens
//             nothing of another's. Regions are memory of their own, zero when they are made, and gone for good when they are removed.
class MemoryNode {
 public:
  static Result<std::unique_ptr<MemoryNode>> make(nic::Connector& connector, std::uint64_t size,
                                                  std::size_t connections, std::uint64_t incarnation);

  // The lease on our name was lost, so others may have been told that we are gone: all connections end and the keys change. What the memory
  // holds stays.
  void fence(Time now);
  // Every tenant may use the memory that we export.
  void share_with_all() { shared_ = true; }
  // What the directory says, before which nobody is connected to: ends the connections of who is gone, makes and removes tenants' regions of the node of this name. True: regions() are
  // others than before.
  bool follow(Time now, const Snapshot& snapshot, const std::string& name);
  // Another number with each memory that begins blank, for kLifeAttribute.
  const std::string& life() const { return life_; }

  Result<void> serve(std::uint16_t port) { return acceptor_->listen(port); }
  Acceptor& acceptor() { return *acceptor_; }
  // Our own, which is the first of all, and those of tenants.
  RegionRecord region() const;
  std::vector<RegionRecord> regions() const;
  MutableBytes bytes() const { return mapping_.bytes(); }
  // What this tenant may use of them; nobody: the rack itself.
  std::vector<RegionRecord> regions_of(const std::string& tenant) const;
  std::uint64_t tenants_bytes() const;

 private:
  enum class Reach : std::uint8_t { kTenant, kLeaves, kArrives };  // a region that is being moved is for the rack alone
  struct Piece {
    Mapping mapping;
    std::uint64_t birth;
    Reach reach;
    memory::PdId domain;
    memory::Key key;
  };
  MemoryNode(nic::Connector& connector, Mapping mapping);
  Result<memory::Key> add_region(memory::PdId domain, MutableBytes bytes);
  bool provide(const TenantRegion& region, std::uint64_t birth, Reach reach);
  memory::PdId domain_of(const std::string& tenant);
  std::optional<memory::PdId> domain_for(const wire::Gid& remote);

  nic::Connector& connector_;
  Mapping mapping_;
  std::string life_;
  memory::PdId domain_{};
  memory::Key key_{};
  bool shared_ = false;
  ClientsByAddress clients_;
  std::map<std::string, memory::PdId> domains_;                  // of tenants
  std::map<std::pair<std::string, std::string>, Piece> pieces_;  // by tenant and name
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace sluice::rack
