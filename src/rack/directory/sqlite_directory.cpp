#include "rack/directory/sqlite_directory.h"

#include <fmt/core.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "rack/directory/directory_json.h"
#include "rack/settings/private_file.h"

namespace sluice::rack {
namespace {

// Without tenants everybody is the rack itself: a file that cannot be read, or that a link to nothing stands for, is not none.
Result<bool> has_ledger(const std::string& file) {
  struct stat status {};
  const std::filesystem::path whole = std::filesystem::absolute(file);
  std::filesystem::path place = whole;
  while (lstat(place.c_str(), &status) != 0 && errno == ENOENT && place.has_relative_path())
    place = place.parent_path();  // the nearest that is there
  if (stat(place.c_str(), &status) == 0) return place == whole;
  if (errno != ENOENT) return fail(fmt::format("cannot read {}: {}", file, std::strerror(errno)));
  return fail(fmt::format(
      "cannot read {}: {} is a link to what is not there; bring that back, or remove the link to begin without tenants",
      file, place.string()));
}

Duration remembered_for(const NodeRecord& gone) {
  const NodeKind kind = gone.description.kind;
  return gone.has_left ? Directory::forget_left_after(kind) : Directory::forget_lost_after(kind);
}

}  // namespace

// A prepared statement; SQLite copies what is bound.
class SqliteDirectory::Statement {
 public:
  Statement(sqlite3* database, const char* sql) {
    ok_ = sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr) == SQLITE_OK;
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(const std::string& text) {
    ok_ = ok_ && sqlite3_bind_text(statement_, ++bound_, text.c_str(), static_cast<int>(text.size()),
                                   SQLITE_TRANSIENT) == SQLITE_OK;
    return *this;
  }
  Statement& bind(std::uint64_t number) {
    ok_ = ok_ && sqlite3_bind_int64(statement_, ++bound_, static_cast<sqlite3_int64>(number)) == SQLITE_OK;
    return *this;
  }
  bool done() { return ok_ && sqlite3_step(statement_) == SQLITE_DONE; }
  bool row() {
    return ok_ && (ok_ = (last_ = sqlite3_step(statement_)) == SQLITE_ROW || last_ == SQLITE_DONE) &&
           last_ == SQLITE_ROW;
  }
  bool ok() const { return ok_; }
  std::uint64_t number(int column) const {
    return static_cast<std::uint64_t>(sqlite3_column_int64(statement_, column));
  }
  std::string text(int column) const {
    const unsigned char* bytes = sqlite3_column_text(statement_, column);
    return bytes == nullptr ? std::string() : std::string(bytes, bytes + sqlite3_column_bytes(statement_, column));
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
  int last_ = 0;
  bool ok_ = false;
};

Result<std::unique_ptr<SqliteDirectory>> SqliteDirectory::open(const std::string& path, Subnet subnet,
                                                               std::function<Time()> clock,
                                                               const std::string& ledger_file) {
  sqlite3* database = nullptr;
  const int status = sqlite3_open_v2(path.c_str(), &database,
                                     SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  std::unique_ptr<SqliteDirectory> directory(new SqliteDirectory(database, subnet, std::move(clock)));
  if (status != SQLITE_OK)
    return fail(fmt::format("directory state {}: {}; is its folder writable?", path, sqlite3_errstr(status)));
  if (auto made = directory->create_tables(); !made) return tl::unexpected(made.error());
  if (auto loaded = directory->load(); !loaded) return tl::unexpected(loaded.error());
  directory->ledger_file_ = ledger_file;
  if (ledger_file.empty()) return directory;
  const auto there = has_ledger(ledger_file);
  if (!there) return tl::unexpected(there.error());
  if (!*there) return directory;
  auto text = read_whole_file(ledger_file);
  if (!text) return tl::unexpected(text.error());
  directory->ledger_ = {std::move(*text), 1};
  return directory;
}

SqliteDirectory::SqliteDirectory(sqlite3* database, Subnet subnet, std::function<Time()> clock)
    : database_(database), subnet_(subnet), clock_(std::move(clock)) {}

SqliteDirectory::~SqliteDirectory() { sqlite3_close(database_); }

std::string SqliteDirectory::file() const {
  const char* const known = sqlite3_db_filename(database_, "main");
  return known == nullptr ? "" : known;
}

std::string SqliteDirectory::how_to_start_anew() const {
  return fmt::format("remove {}* to start anew; memory nodes have to be started again, too", file());
}

Error SqliteDirectory::database_error(const std::string& what) const {
  const int why = sqlite3_errcode(database_);
  const bool is_damaged = why == SQLITE_NOTADB || why == SQLITE_CORRUPT;
  return {fmt::format("directory state: {}: {}: {}; {}", file(), what, sqlite3_errmsg(database_),
                      is_damaged ? how_to_start_anew() : "free space and rights of its folder may be the cause")};
}

Result<void> SqliteDirectory::run(const std::string& sql, const std::string& what) {
  if (sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK)
    return tl::unexpected(database_error(what));
  return {};
}

Result<void> SqliteDirectory::create_tables() {
  return run(R"(
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    CREATE TABLE IF NOT EXISTS nodes (name TEXT PRIMARY KEY, lease INTEGER, duration_ms INTEGER, record TEXT);
    CREATE TABLE IF NOT EXISTS counters (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER, id INTEGER);
    INSERT OR IGNORE INTO counters (one, revision, id) VALUES (1, 0, 0);)",
             "making its tables");
}

Result<void> SqliteDirectory::load() {
  Statement counters(database_, "SELECT revision, id FROM counters");
  if (!counters.row()) return tl::unexpected(database_error("reading counters"));
  revision_ = counters.number(0);
  revisions_.fill(revision_);
  last_id_ = static_cast<std::uint32_t>(counters.number(1));
  Statement nodes(database_, "SELECT lease, duration_ms, record FROM nodes");
  const Time now = clock_();
  while (nodes.row()) {
    auto record = node_from_json(nlohmann::json::parse(nodes.text(2), nullptr, false));
    if (!record)
      return fail(fmt::format("directory state: {}: {}; {}", file(), record.error().message, how_to_start_anew()));
    Entry entry{std::move(*record), LeaseId(nodes.number(0)),
                Duration::milliseconds(static_cast<std::int64_t>(nodes.number(1))), now};
    entry.ends = now + (entry.lease.value != 0 ? entry.duration : remembered_for(entry.node));
    put(entry);
  }
  if (!nodes.ok()) return tl::unexpected(database_error("reading nodes"));
  return {};
}

Result<void> SqliteDirectory::store(const Entry& entry) {
  const std::string record = to_json(entry.node).dump();
  const auto written = [&]() -> bool {
    return Statement(database_, "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?)")
               .bind(entry.node.description.name)
               .bind(entry.lease.value)
               .bind(static_cast<std::uint64_t>(entry.duration.milliseconds()))
               .bind(record)
               .done() &&
           Statement(database_, "UPDATE counters SET revision = ?, id = ?").bind(revision_ + 1).bind(last_id_).done();
  };
  if (auto begun = run("BEGIN IMMEDIATE", "writing " + entry.node.description.name); !begun) return begun;
  const bool sound = written();
  if (!sound || !run("COMMIT", "writing")) {
    Error error = database_error("writing " + entry.node.description.name);
    static_cast<void>(run("ROLLBACK", "writing"));
    return tl::unexpected(std::move(error));
  }
  ++revision_;
  if (const auto before = entries_.find(entry.node.description.name); before != entries_.end())
    note_change(before->second.node.description.kind);  // the name may have been another kind's
  note_change(entry.node.description.kind);
  put(entry);
  unwritten_.erase(entry.node.description.name);
  return {};
}

void SqliteDirectory::put(const Entry& entry) {
  Entry& kept = entries_[entry.node.description.name];
  leases_.erase(kept.lease);
  kept = entry;
  if (kept.lease.value != 0) leases_.emplace(kept.lease, kept.node.description.name);
  ids_.insert(kept.node.id);
}

void SqliteDirectory::note_change(NodeKind kind) {
  revisions_.at(static_cast<std::size_t>(kind)) = revision_;
  changed_.notify_all();
}

Result<void> SqliteDirectory::erase(const std::string& name) {
  const bool sound = Statement(database_, "DELETE FROM nodes WHERE name = ?").bind(name).done() &&
                     Statement(database_, "UPDATE counters SET revision = ?").bind(revision_ + 1).done();
  if (!sound) return tl::unexpected(database_error("forgetting " + name));
  ++revision_;
  const auto known = entries_.find(name);
  note_change(known->second.node.description.kind);
  leases_.erase(known->second.lease);
  ids_.erase(known->second.node.id);
  entries_.erase(known);
  unwritten_.erase(name);
  return {};
}

// The number after the last one given that nobody has.
Result<remote::NodeId> SqliteDirectory::next_id() {
  for (std::size_t i = 0; i < kMaxNodes; ++i) {
    const remote::NodeId id(last_id_++ % static_cast<std::uint32_t>(kMaxNodes) + 1);
    if (!ids_.contains(id)) return id;
  }
  return tl::unexpected(no_room_for_nodes());
}

bool SqliteDirectory::may_have(remote::NodeId wish) const {
  return wish.value != 0 && wish.value <= std::min<std::size_t>(last_id_, kMaxNodes) && !ids_.contains(wish);
}

SqliteDirectory::Entry* SqliteDirectory::find(LeaseId lease) {
  const auto found = leases_.find(lease);
  return found == leases_.end() ? nullptr : &entries_.at(found->second);
}

Result<Registration> SqliteDirectory::join(const NodeDescription& description, Duration lease, remote::NodeId wish) {
  const std::lock_guard lock(mutex_);
  expire_locked();
  if (auto sound = check_join(description, lease); !sound) return tl::unexpected(sound.error());
  Entry entry;
  const auto known = entries_.find(description.name);
  if (known != entries_.end()) {
    entry = known->second;
    if (entry.lease.value != 0) {
      return fail(fmt::format(
          "node name '{}' is taken: its lease ends in {} ms unless renewed; stop that node or choose another name",
          description.name, (entry.ends - clock_()).milliseconds()));
    }
  } else {
    auto id = may_have(wish) ? Result<remote::NodeId>(wish) : next_id();
    if (!id) return tl::unexpected(id.error());
    entry.node.id = *id;
    entry.node.ip = subnet_.ip_of(*id);
    entry.node.mac = Subnet::mac_of(entry.node.ip);
  }
  entry.node.description = description;
  entry.node.state = NodeState::kJoining;
  entry.node.has_left = false;
  ++entry.node.incarnation;
  entry.lease = new_lease();
  entry.duration = lease;
  entry.ends = clock_() + lease;
  if (auto stored = store(entry); !stored) return tl::unexpected(stored.error());
  return Registration{entry.node, entry.lease};
}

// Who knows a lease's number may end it, so it cannot be guessed.
LeaseId SqliteDirectory::new_lease() {
  std::random_device chance;
  for (;;) {
    const LeaseId lease((std::uint64_t{chance()} << 32 | chance()) >> 1);
    if (lease.value != 0 && find(lease) == nullptr) return lease;
  }
}

Result<void> SqliteDirectory::publish(LeaseId lease, const NodeDescription& description) {
  const std::lock_guard lock(mutex_);
  expire_locked();
  const Entry* known = find(lease);
  if (known == nullptr) return tl::unexpected(lease_is_unknown(lease));
  Entry entry = *known;
  if (description.name != entry.node.description.name || description.kind != entry.node.description.kind) {
    return tl::unexpected(lease_is_of_another(lease, entry.node.description, description));
  }
  entry.node.description = description;
  entry.node.state = NodeState::kReady;
  if (entry.node == known->node) return renew_locked(lease);
  entry.ends = clock_() + entry.duration;
  return store(entry);
}

Result<void> SqliteDirectory::renew(LeaseId lease) {
  const std::lock_guard lock(mutex_);
  expire_locked();
  return renew_locked(lease);
}

Result<void> SqliteDirectory::renew_locked(LeaseId lease) {
  Entry* entry = find(lease);
  if (entry == nullptr) return tl::unexpected(lease_is_unknown(lease));
  entry->ends = clock_() + entry->duration;
  return {};
}

Result<void> SqliteDirectory::leave(LeaseId lease) {
  const std::lock_guard lock(mutex_);
  expire_locked();
  const Entry* known = find(lease);
  if (known == nullptr) return tl::unexpected(lease_is_unknown(lease));
  Entry entry = *known;
  entry.node.has_left = true;
  return end_lease(std::move(entry));
}

Result<void> SqliteDirectory::end_lease(Entry entry) {
  entry.node.description = what_is_kept(std::move(entry.node.description));
  entry.node.state = NodeState::kGone;
  entry.lease = {};
  entry.ends = clock_() + remembered_for(entry.node);
  return store(entry);
}

Result<Snapshot> SqliteDirectory::nodes() {
  const std::lock_guard lock(mutex_);
  expire_locked();
  return snapshot_locked(kAllKinds);
}

Result<Snapshot> SqliteDirectory::watch(std::uint64_t seen, Duration timeout, NodeKinds kinds) {
  std::unique_lock lock(mutex_);
  expire_locked();
  changed_.wait_for(lock, std::chrono::nanoseconds(std::max<std::int64_t>(timeout.nanoseconds(), 0)),
                    [&, cuts = cuts_] { return revision_of(kinds) > seen || stopping_ || cuts_ != cuts; });
  return snapshot_locked(kinds);
}

void SqliteDirectory::expire() {
  const std::lock_guard lock(mutex_);
  expire_locked();
}

Result<void> SqliteDirectory::evict(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto known = entries_.find(name);
  if (known == entries_.end() || known->second.lease.value == 0) return {};
  return end_lease(known->second);
}

void SqliteDirectory::stop_watches() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

void SqliteDirectory::cut_watches() {
  const std::lock_guard lock(mutex_);
  ++cuts_;
  changed_.notify_all();
}

Result<VersionedText> SqliteDirectory::ledger() {
  const std::lock_guard lock(mutex_);
  return ledger_;
}

Result<bool> SqliteDirectory::replace_ledger(std::uint64_t version, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (version != ledger_.version) return false;
  if (!ledger_file_.empty()) {
    if (auto written = write_private_file(ledger_file_, text); !written)
      return fail("directory state: " + written.error().message);
  }
  ledger_ = {text, version + 1};
  ledger_revision_ = ++revision_;
  // Should that fail, watchers that outlive us look anew when their time is over.
  static_cast<void>(Statement(database_, "UPDATE counters SET revision = ?").bind(revision_).done());
  changed_.notify_all();
  return true;
}

void SqliteDirectory::expire_locked() {
  const Time now = clock_();
  std::vector<Entry> due;
  for (const auto& [name, entry] : entries_) {
    if (entry.ends <= now || unwritten_.contains(name)) due.push_back(entry);
  }
  for (const Entry& entry : due) expire_entry(entry);
}

// A failing disk must not hide that a node is gone: what cannot be written is true all the same, and is written at a later call.
void SqliteDirectory::expire_entry(const Entry& entry) {
  const std::string& name = entry.node.description.name;
  if (entry.ends > clock_()) {
    static_cast<void>(store(entry));
  } else if (entry.lease.value == 0) {
    static_cast<void>(erase(name));
  } else if (!end_lease(entry)) {
    Entry gone = entries_.at(name);
    gone.node.description = what_is_kept(std::move(gone.node.description));
    gone.node.state = NodeState::kGone;
    gone.lease = {};
    gone.ends = clock_() + remembered_for(gone.node);
    put(gone);
    unwritten_.insert(name);
    ++revision_;
    note_change(gone.node.description.kind);
  }
}

std::uint64_t SqliteDirectory::revision_of(NodeKinds kinds) const {
  std::uint64_t last = ledger_revision_;
  for (std::size_t i = 0; i < revisions_.size(); ++i) {
    if (kinds.contains(static_cast<NodeKind>(i))) last = std::max(last, revisions_[i]);
  }
  return last;
}

Snapshot SqliteDirectory::snapshot_locked(NodeKinds kinds) const {
  Snapshot snapshot{revision_of(kinds), {}};
  for (const auto& [name, entry] : entries_) {
    if (kinds.contains(entry.node.description.kind)) snapshot.nodes.push_back(entry.node);
  }
  std::sort(snapshot.nodes.begin(), snapshot.nodes.end(),
            [](const NodeRecord& a, const NodeRecord& b) { return a.id < b.id; });
  return snapshot;
}

}  // namespace sluice::rack
