// Directory: who is on the rack, where their memory is, who is still alive. The contract; implementations: sqlite_directory.h (embedded in
// the switch daemon), directory_client.h (the same from another process).
//
// Life:       join() -> a node with its number and addresses, and a lease -> publish() what others need to reach it -> renew() before the
//             lease ends -> leave(). A lease that ends turns its node kGone.
// Invariant:  a name has at most one live lease; number and addresses stay with the name as long as the directory knows it, and with a process that
//             asks for them after that, if they are free; revision grows with every change that a snapshot shows.
// Errors:     Result, with what to do. unknown_lease() tells the one that a program handles: join again.
// Threads:    any.
// Limits:     kMaxNodes; gone nodes are forgotten after forget_lost_after(), or forget_left_after().
// Source:     ARCHITECTURE.md "Contracts".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/strong.h"
#include "base/time.h"
#include "remote/remote_memory.h"
#include "wire/address.h"

namespace sluice::rack {

using LeaseId = Strong<struct LeaseIdTag, std::uint64_t>;

enum class NodeKind : std::uint8_t { kSwitch, kMemory, kMetadata, kClient };
enum class NodeState : std::uint8_t {
  kJoining,  // has its addresses, has not published yet
  kReady,
  kGone,  // left, or its lease ended
};
std::string_view to_string(NodeKind kind);
std::string_view to_string(NodeState state);
std::optional<NodeKind> parse_node_kind(std::string_view text);
std::optional<NodeState> parse_node_state(std::string_view text);

// Those that somebody asks for.
class NodeKinds {
 public:
  constexpr NodeKinds() = default;
  constexpr NodeKinds(std::initializer_list<NodeKind> kinds) {
    for (const NodeKind kind : kinds) bits_ |= bit(kind);
  }
  constexpr bool contains(NodeKind kind) const { return (bits_ & bit(kind)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr NodeKinds with(NodeKind kind) const {
    NodeKinds more = *this;
    more.bits_ |= bit(kind);
    return more;
  }
  friend auto operator<=>(const NodeKinds&, const NodeKinds&) = default;

 private:
  static constexpr std::uint32_t bit(NodeKind kind) { return std::uint32_t{1} << static_cast<unsigned>(kind); }
  std::uint32_t bits_ = 0;
};
inline constexpr NodeKinds kAllKinds{NodeKind::kSwitch, NodeKind::kMemory, NodeKind::kMetadata, NodeKind::kClient};
// What who uses memory needs to know of.
inline constexpr NodeKinds kMemoryKinds{NodeKind::kMemory, NodeKind::kMetadata};
std::string to_string(NodeKinds kinds);  // "memory,metadata"
std::optional<NodeKinds> parse_node_kinds(std::string_view text);

// A piece of memory that others may use.
struct RegionRecord {
  std::string name;
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::uint32_t key = 0;
  std::string owner{};  // the tenant; empty: the rack itself
  friend bool operator==(const RegionRecord&, const RegionRecord&) = default;
};
inline constexpr const char* kMainRegion = "main";  // of a memory node, the rack's own
// Before "TENANT/NAME": what a tenant's region that is being moved is called where it leaves, and where it arrives.
inline constexpr const char* kLeaving = "leaving:";
inline constexpr const char* kArriving = "arriving:";

// A region that a tenant has been given, whether the node has made it yet or not (then it is among the node's regions).
struct TenantRegion {
  std::string tenant;
  std::string name;
  std::string node;
  std::uint64_t length = 0;
  std::uint64_t birth = 0;  // of the memory itself: another number is other memory, blank
  // While it is being moved: where to, and the birth that it will have there. Nobody but the rack itself reaches it meanwhile.
  std::string moving_to{};
  std::uint64_t next_birth = 0;
  friend bool operator==(const TenantRegion&, const TenantRegion&) = default;
};

inline constexpr const char* kHttpAttribute = "http";        // of a node: HOST:PORT of its server
inline constexpr const char* kMachineAttribute = "machine";  // the name in the certificate by which it came

// What a node says of itself.
struct NodeDescription {
  std::string name;
  NodeKind kind = NodeKind::kClient;
  std::uint16_t cm_port = 0;  // where it listens for RDMA-CM; 0: nowhere
  std::vector<RegionRecord> regions{};
  std::map<std::string, std::string> attributes{};  // for people and programs: pid, value size, …
  friend bool operator==(const NodeDescription&, const NodeDescription&) = default;
};

struct NodeRecord {
  NodeDescription description;
  NodeState state = NodeState::kJoining;
  remote::NodeId id{};
  wire::Ipv4Address ip{};
  wire::MacAddress mac{};
  std::uint64_t incarnation = 0;  // how often this name has joined
  bool has_left = false;          // of one that is gone: it has said so; else its lease has ended
  friend bool operator==(const NodeRecord&, const NodeRecord&) = default;
};

// What people are shown: of one that has said so "left", of one that was lost "gone".
std::string_view shown_state(const NodeRecord& node);

struct Registration {
  NodeRecord node;
  LeaseId lease{};
};

struct Snapshot {
  std::uint64_t revision = 0;
  std::vector<NodeRecord> nodes;  // by id
  // Of a rack that has tenants (rack/directory/tenants.h), as far as the asker may know:
  bool has_tenants = false;
  std::vector<TenantRegion> regions{};
  std::vector<std::string> draining{};  // memory nodes that are given no more regions

  const NodeRecord* find(std::string_view name) const;
  // All of a kind that are ready.
  std::vector<const NodeRecord*> ready(NodeKind kind) const;
  // Memory by what people call it: a memory node's name stands for the rack's own region there, for a tenant for the one that is the tenant's; a
  // tenant's region has its own name ("heap"), or its owner's before it ("red/heap").
  struct Memory {
    const NodeRecord* node = nullptr;  // null: there is none, or several are called so
    const RegionRecord* region = nullptr;
    bool are_several = false;
  };
  Memory find_memory(std::string_view name) const;
  // The same; the error says why there is none, and what may be named instead.
  Result<Memory> memory_called(std::string_view name) const;
  // Those of other kinds are left out.
  void keep(NodeKinds kinds);
  // All names that find_memory() knows, joined: "memory1, memory2, heap".
  std::string memory_names() const;
};

class Directory {
 public:
  static constexpr std::size_t kMaxNodes =
      0x7FFF;  // above are cache clients and replicas, Cowbird in the switch and the router
  // Whoever looks late still has to end the connections of one that was lost.
  static constexpr Duration kForgetAfter = Duration::seconds(600);
  // A client that has said so: there are many, and nobody asks for them again.
  static constexpr Duration kForgetClientAfter = Duration::seconds(10);
  // A metadata server's store lies in memory that others would take for free, were it forgotten; and a memory node that comes back under another
  // number is none of those that the store lies on.
  static constexpr Duration kForgetStoreAfter = Duration::seconds(3 * 86'400);
  static constexpr Duration forget_lost_after(NodeKind kind) {
    return kMemoryKinds.contains(kind) ? kForgetStoreAfter : kForgetAfter;
  }
  static constexpr Duration forget_left_after(NodeKind kind) {
    return kind == NodeKind::kClient ? kForgetClientAfter : forget_lost_after(kind);
  }
  static constexpr Duration kShortestLease = Duration::milliseconds(100);
  static constexpr Duration kLongestLease = Duration::seconds(3'600);

  virtual ~Directory() = default;

  // Only name, kind and attributes of the description count yet. `wish`: the number of a process that was on the rack before, where its name is not
  // known any more: granted if nobody has it, unless this directory never gave it, which then is another rack's. 0: none.
  virtual Result<Registration> join(const NodeDescription& description, Duration lease, remote::NodeId wish) = 0;
  Result<Registration> join(const NodeDescription& description, Duration lease) { return join(description, lease, {}); }
  // Tells all the rest; the node is ready. May be repeated. Name and kind must stay.
  virtual Result<void> publish(LeaseId lease, const NodeDescription& description) = 0;
  virtual Result<void> renew(LeaseId lease) = 0;
  virtual Result<void> leave(LeaseId lease) = 0;
  virtual Result<Snapshot> nodes() = 0;
  // The first snapshot with a revision beyond `seen`, or the present one after `timeout`. Nodes of other kinds are not in it, and what becomes of them
  // makes no revision of it. What tenants have does.
  virtual Result<Snapshot> watch(std::uint64_t seen, Duration timeout, NodeKinds kinds) = 0;
  // Ends the watches that are under way from here, where what is watched may not change for long; of a store itself all, others' too.
  virtual void cut_watches() {}
};

// Whether an error of publish(), renew() or leave() says that the lease has ended or never was.
bool unknown_lease(const Error& error);
inline constexpr std::string_view kUnknownLease = "unknown lease";

}  // namespace sluice::rack
