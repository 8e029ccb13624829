// The embedded directory: state in memory, every change first in one SQLite file.
//
// Life:       open() -> used by any thread -> destroyed. A killed process leaves a file that open() takes up where it was.
// Invariant:  what a call has answered is in the file. Lease times are not: after open() every live lease has its whole time again.
// Threads:    any; one mutex. watch() waits outside of it.
// Source:     SQLite's WAL mode: a crash of the process loses no commit.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "rack/directory/directory_store.h"

struct sqlite3;

namespace sluice::rack {

class SqliteDirectory final : public DirectoryStore {
 public:
  // `clock` tells the time that leases are measured in. ":memory:" as the path keeps nothing. `ledger_file`: where tenants are kept, in a file of
  // its own because it outlives the rack's processes; empty: nowhere.
  static Result<std::unique_ptr<SqliteDirectory>> open(const std::string& path, Subnet subnet,
                                                       std::function<Time()> clock,
                                                       const std::string& ledger_file = {});
  ~SqliteDirectory() override;

  using Directory::join;
  Result<Registration> join(const NodeDescription& description, Duration lease, remote::NodeId wish) override;
  Result<void> publish(LeaseId lease, const NodeDescription& description) override;
  Result<void> renew(LeaseId lease) override;
  Result<void> leave(LeaseId lease) override;
  Result<Snapshot> nodes() override;
  Result<Snapshot> watch(std::uint64_t seen, Duration timeout, NodeKinds kinds) override;

  // Every call does so first.
  void expire() override;
  Result<void> evict(const std::string& name) override;
  void stop_watches() override;
  void cut_watches() override;
  Result<VersionedText> ledger() override;
  Result<bool> replace_ledger(std::uint64_t version, const std::string& text) override;

 private:
  struct Entry {
    NodeRecord node;
    LeaseId lease{};  // 0: none
    Duration duration{};
    Time ends;  // of the lease; for a gone node: when it is forgotten
  };
  class Statement;

  SqliteDirectory(sqlite3* database, Subnet subnet, std::function<Time()> clock);
  Result<void> create_tables();
  Result<void> load();
  Result<void> run(const std::string& sql, const std::string& what);
  // Writes an entry and the counters in one transaction; the entry takes the next revision.
  Result<void> store(const Entry& entry);
  // The same without the file.
  void put(const Entry& entry);
  void note_change(NodeKind kind);
  Result<void> erase(const std::string& name);
  Result<void> end_lease(Entry entry);
  Result<remote::NodeId> next_id();
  bool may_have(remote::NodeId wish) const;
  Entry* find(LeaseId lease);
  Result<void> renew_locked(LeaseId lease);
  LeaseId new_lease();
  void expire_locked();
  void expire_entry(const Entry& entry);
  std::uint64_t revision_of(NodeKinds kinds) const;
  Snapshot snapshot_locked(NodeKinds kinds) const;
  Error database_error(const std::string& what) const;
  std::string file() const;
  std::string how_to_start_anew() const;

  sqlite3* database_;
  Subnet subnet_;
  std::function<Time()> clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Entry> entries_;   // by name
  std::set<std::string> unwritten_;        // of those, what the file does not have as it is
  std::map<LeaseId, std::string> leases_;  // of those, who lives
  std::set<remote::NodeId> ids_;           // of those
  std::string ledger_file_;
  VersionedText ledger_;
  std::uint64_t revision_ = 0;
  std::array<std::uint64_t, 4> revisions_{};  // of the last change, by kind of node
  std::uint64_t ledger_revision_ = 0;         // of its last change
  std::uint32_t last_id_ =
      0;  // counted on beyond kMaxNodes, where numbers begin again: how many have been given is seen by it
  bool stopping_ = false;
  std::uint64_t cuts_ = 0;  // how often watches were cut
};

}  // namespace sluice::rack
