// The directory in etcd: the rack's state survives the machine of the switch, and several switches' worth of racks share one cluster.
//
// Keys:       <prefix>/tenants  the ledger of tenants, and <prefix>/last  how many numbers have been given, without a lease;
//             <prefix>/nodes/NAME  the record; <prefix>/alive/NAME  the lease's number, there while the node lives; <prefix>/ids/N  NAME.
//             Each node has two leases of etcd's: one of its own length, which alive/ hangs on, and one of forget_lost_after(), which nodes/ and ids/
//             hang on. Both are renewed together, so a node that says nothing is gone when the first ends, forgotten when the second does. The
//             record of a client that has left hangs on a third instead, of forget_left_after(); its number is nobody else's until the second ends.
// Invariant:  what a call has answered is in etcd; every change is one transaction, guarded by what it was decided on. Questions may be asked again
//             when no answer came, so each recognises what it has done already.
// Leases:     whole seconds, and not below what etcd can do (2 s with its defaults): a shorter one is as long as that.
// History:    etcd keeps every value that a key ever had; expire() lets it forget what is older than kCompactAfter, that of others' keys as well.
// Errors:     as directory.h; an etcd that does not answer within kPatience, at any of its addresses, is one.
// Threads:    any.
// Source:     etcd 3.4's v3 API by its JSON gateway: KV.Range, KV.Txn, Lease.*, Watch, Auth.Authenticate.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "rack/directory/directory_store.h"
#include "telemetry/tls.h"

namespace httplib {
class ClientImpl;
}  // namespace httplib

namespace sluice::rack {

struct EtcdSettings {
  std::vector<std::string> addresses;  // HOST:PORT of clients' ports
  std::string prefix = "/sluice";
  std::string authority{};    // PEM files; empty: plain TCP
  std::string certificate{};  // empty: TLS without a certificate of one's own
  std::string key{};
  std::string user{};  // empty: without a password
  std::string password{};
};

class EtcdDirectory final : public DirectoryStore {
 public:
  static constexpr Duration kPatience = Duration::seconds(5);  // of one question to etcd
  static constexpr Duration kAnswerWithin =
      Duration::milliseconds(1500);  // then it is asked again, elsewhere if there is one
  static constexpr std::chrono::minutes kCompactAfter{5};

  // Asks etcd once, so that what is wrong is known at once.
  static Result<std::unique_ptr<EtcdDirectory>> open(EtcdSettings settings, Subnet subnet);
  ~EtcdDirectory() override;

  using Directory::join;
  Result<Registration> join(const NodeDescription& description, Duration lease, remote::NodeId wish) override;
  Result<void> publish(LeaseId lease, const NodeDescription& description) override;
  Result<void> renew(LeaseId lease) override;
  Result<void> leave(LeaseId lease) override;
  Result<Snapshot> nodes() override;
  Result<Snapshot> watch(std::uint64_t seen, Duration timeout, NodeKinds kinds) override;
  void expire() override;
  // Lets etcd forget what was before the last call. The first one only notes where that is.
  Result<void> compact();
  Result<void> evict(const std::string& name) override;
  void stop_watches() override { stopping_ = true; }
  void cut_watches() override { ++cuts_; }
  Result<VersionedText> ledger() override;
  Result<bool> replace_ledger(std::uint64_t version, const std::string& text) override;

 private:
  using Json = nlohmann::json;
  // What etcd has of one node.
  struct Known {
    std::optional<NodeRecord> record;
    std::uint64_t record_revision = 0;  // 0: there is none
    std::optional<LeaseId> alive;
  };

  // Nothing of some kinds has changed from one revision to another.
  struct Quiet {
    std::uint64_t since = 0;
    std::uint64_t until = 0;
  };

  EtcdDirectory(EtcdSettings settings, Subnet subnet) : settings_(std::move(settings)), subnet_(subnet) {}
  Result<Json> call(const std::string& path, const Json& body);
  Result<std::string> post(std::size_t address, const std::string& path, const std::string& body, int& status);
  std::unique_ptr<httplib::ClientImpl> connect(std::size_t address) const;
  Result<void> authenticate();
  Result<Known> look(const std::string& name);
  struct Number {
    remote::NodeId id{};
    std::uint64_t last = 0;           // how many have been given, with this one
    std::uint64_t last_revision = 0;  // of that before
  };
  Result<Number> free_number(remote::NodeId wish);
  Result<LeaseId> grant(NodeKind kind, Duration lease);
  Result<void> grant_one(std::uint64_t etcd_lease, Duration length);
  Result<void> revoke(std::uint64_t etcd_lease);
  Result<bool> keep_alive(std::uint64_t etcd_lease);
  void note_leaving(LeaseId lease);
  void note_leaving_of(const std::string& name, LeaseId lease);
  bool concerns(const Json& event, NodeKinds kinds);
  std::uint64_t quiet_until(std::uint64_t seen, NodeKinds kinds);
  void note_quiet(Quiet stretch, NodeKinds kinds);
  Result<bool> commit(const Json& compare, const Json& then);
  std::string key(const std::string& part) const { return settings_.prefix + part; }

  EtcdSettings settings_;
  Subnet subnet_;
  std::mutex mutex_;
  std::size_t address_ = 0;  // the one that answered last; guarded by mutex_, as the token
  std::string token_;
  std::map<std::string, NodeKind> kinds_;  // of nodes, as last seen; guarded by mutex_, as the next three
  std::map<NodeKinds, Quiet> quiet_;
  std::uint64_t compact_to_ = 0;  // what was current at the last compaction; 0: there was none
  std::chrono::steady_clock::time_point compact_at_ = std::chrono::steady_clock::now() + kCompactAfter;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> cuts_{0};  // how often watches were cut
};

}  // namespace sluice::rack
