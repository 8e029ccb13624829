// Tenants: who may use the rack besides the rack itself, by a token; which memory is theirs, and how much it may be.
//
// Life:       a tenant is added and its token told once -> shows the token with each question to the directory -> regions, within its quota -> its
//             token is rotated or revoked -> removed.
// Who asks:   with an operator's token, or at the run directory's own socket without any: the rack itself, which may do everything. With a tenant's
//             token: that tenant, which joins as a client and sees its own memory, and that which is shared by all. Without: on a rack
//             that has no tenants the rack itself, else nobody.
// Invariant:  tokens are not kept, only their SHA-256; they are 256 random bits, so that is as good as they are. The regions of a tenant are never
//             longer together than its quota was when the last was added. Every change is one replacement of the directory's ledger, decided
//             on what the ledger was before.
// Errors:     one line with what to do; refused() counts by reason.
// Threads:    any.
// Limits:     kMostTenants, kMostRegions; of each tenant kMostClients, kMostAttributes of each of those and
//             kMostAttributesInAll of all, kMostSnapshots of what is told to it at once. What another switch of the same etcd has changed is seen within kLedgerAge.
// Source:     docs/security.md "Tenants".
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "rack/directory/directory.h"
#include "telemetry/places.h"
#include "wire/address.h"

namespace sluice::rack {

class DirectoryStore;

inline constexpr const char* kTenantAttribute = "tenant";  // of a client: whose it is
std::string tenant_of(const NodeDescription& node);        // empty: the rack's own
inline constexpr const char* kTenantBytesAttribute =
    "tenant-bytes";                                               // of a memory node: what it has for tenants' regions
inline constexpr const char* kSharedAttribute = "shared-by-all";  // of a memory node whose memory every tenant may use

// Whose the addresses on the rack are, for who is connected to by clients. Before it has learned anything everybody is nobody.
class ClientsByAddress {
 public:
  void learn(const Snapshot& snapshot);
  // The tenant; empty: the rack itself, as everybody is on a rack without tenants. Nothing: nobody on the rack, which on one with tenants could be
  // anybody.
  std::optional<std::string> owner(const wire::Gid& address) const;

 private:
  bool has_learned_ = false;
  bool has_tenants_ = false;
  std::map<wire::Gid, std::string> owners_;
};

// Whether a memory node has memory that every tenant may use.
bool has_shared_memory(const Snapshot& snapshot);

class Tenants {
 public:
  static constexpr std::size_t kMostTenants = 1000;
  static constexpr std::size_t kMostRegions = 4096;
  static constexpr std::size_t kMostClients = 1024;     // at once
  static constexpr std::size_t kMostRemembered = 8192;  // with those that are gone and not forgotten yet
  // Bytes of one client; a host of Cowbird's says 60 for each block of rings. And of all that the directory has of them.
  static constexpr std::size_t kMostAttributes = std::size_t{16} << 10;
  static constexpr std::size_t kMostAttributesInAll = std::size_t{256} << 10;
  static constexpr int kMostSnapshots = 8;  // that are being made, or written, for one
  static constexpr std::chrono::milliseconds kLedgerAge{500};

  struct Quota {
    std::uint64_t bytes = 0;
    std::uint64_t regions = 0;
    friend bool operator==(const Quota&, const Quota&) = default;
  };
  // Who asks.
  struct Asker {
    bool is_rack = false;
    std::string tenant{};
  };
  enum class Refusal : std::uint8_t { kMissing, kWrong, kRevoked, kForbidden, kOverQuota };
  static constexpr std::size_t kRefusals = 5;
  static std::string_view to_string(Refusal refusal);

  struct Standing {
    std::string name;
    Quota quota;
    Quota used;
    bool is_operator = false;
    bool is_revoked = false;
  };

  explicit Tenants(DirectoryStore& directory) : directory_(directory) {}

  // Whether the ledger can be read and makes sense.
  Result<void> check();
  // `token`: as shown, empty when none was. `at_socket`: asked at the run directory's own socket.
  Result<Asker> identify(std::string_view token, bool at_socket);
  // Whether that is the rack itself; a question that is no request, and is not counted.
  bool is_rack(std::string_view token, bool at_socket);
  telemetry::Places& snapshots() { return snapshots_; }
  // What this one may see of it.
  Result<Snapshot> view(Snapshot snapshot, const Asker& asker);
  // What a node may say when it joins, or why it may not: adds whose it is.
  Result<NodeDescription> admitted(NodeDescription description, const Asker& asker);
  // Whether it may still do that once it has joined: asked of the ledger as it is now.
  Result<void> still(const Asker& asker);
  // The same when it publishes: it stays whose it was.
  Result<NodeDescription> published(NodeDescription description);

  // --- the rack's own: the token that is returned is told nowhere else ---
  Result<std::string> add(const std::string& name, Quota quota, bool is_operator);
  Result<std::string> rotate(const std::string& name);
  // From now on its token opens nothing, and its nodes are gone. Its regions stay.
  Result<void> revoke(const std::string& name);
  enum class Regions : std::uint8_t { kKeep, kRemove };
  // With kKeep only one that has no regions.
  Result<void> remove(const std::string& name, Regions regions);
  // What is left out stays as it is. The quota that it has then.
  struct QuotaChange {
    std::optional<std::uint64_t> bytes{};
    std::optional<std::uint64_t> regions{};
  };
  Result<Quota> set_quota(const std::string& name, QuotaChange to);
  Result<std::vector<Standing>> list();
  // Whether the memory node is to be given no more regions.
  Result<void> drain(const std::string& node, bool on);

  // --- regions; `node` empty: the one with the most room ---
  Result<TenantRegion> add_region(const std::string& tenant, const std::string& name, std::uint64_t length,
                                  const std::string& node);
  Result<void> remove_region(const std::string& tenant, const std::string& name);
  // To another node: from begin_move() on nobody but the rack itself reaches the region, on either node; who has copied what is in it says so, with
  // the birth that its copy has and the incarnation that the node had before, and then it is there: one that has joined anew since may be blank. Begun twice, it goes on. undo_move() leaves it where it was, as it was.
  Result<TenantRegion> begin_move(const std::string& tenant, const std::string& name, const std::string& node);
  Result<TenantRegion> end_move(const std::string& tenant, const std::string& name, std::uint64_t next_birth,
                                std::uint64_t incarnation);
  Result<TenantRegion> undo_move(const std::string& tenant, const std::string& name);

  std::uint64_t refused(Refusal refusal) const { return refused_[static_cast<std::size_t>(refusal)]; }
  // Counts it, and says why.
  tl::unexpected<Error> refuse(Refusal refusal, std::string why);

 private:
  struct Ledger;
  using Change = std::function<Result<void>(Ledger&)>;

  Result<std::shared_ptr<const Ledger>> current();
  Result<std::shared_ptr<const Ledger>> fetch();
  Result<void> change(const Change& change);
  Result<TenantRegion> change_region(const std::string& tenant, const std::string& name,
                                     const std::function<Result<void>(Ledger&, TenantRegion&)>& how);
  void evict_nodes_of(const std::string& tenant);
  Result<void> room_for_client(const Snapshot& snapshot, const std::string& tenant);
  Result<NodeDescription> owned_by(const Snapshot& snapshot, NodeDescription description, const std::string& tenant);
  Result<std::string> choose_node(const Ledger& ledger, const Snapshot& snapshot, const std::string& wanted,
                                  std::uint64_t length) const;

  DirectoryStore& directory_;
  telemetry::Places snapshots_{kMostSnapshots};
  std::mutex mutex_;  // of the next two
  std::shared_ptr<const Ledger> ledger_;
  std::chrono::steady_clock::time_point asked_at_{};
  std::array<std::atomic<std::uint64_t>, kRefusals> refused_{};
};

}  // namespace sluice::rack
