// Membership: keeps this process on the rack. Joins, publishes, renews the lease in a thread of its own, joins again when the lease was lost,
// leaves at the end; tells of changes among the nodes.
//
// Life:       join() -> node() has number and addresses -> publish() -> (renewals, changes) -> destroyed: leaves.
// Fencing:    a lease that was lost is not simply taken again: on_lost comes first. Who finds that another process has the name, or may have the address, is told so.
// Errors:     join() and publish() say why not. A directory that is away for a while (the switch restarts) is waited for, silently.
// Threads:    public functions from one thread; on_change is called from the membership's own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "rack/directory/directory.h"

namespace sluice::rack {

struct MembershipConfig {
  Duration lease = Duration::seconds(3);
  // How long join() waits for a name whose last owner died without leaving. Longer than any lease.
  Duration patience = Duration::seconds(6);
  // Called whenever join() finds the name taken; true: wait on, however long that takes. Null: as `patience` says.
  std::function<bool(const Error&)> on_taken{};
  // Where the lease is written down while this process lives, so that its successor need not wait for its end. Empty: nowhere. A file that
  // a living process holds is left alone until that lets it go.
  std::string lease_file{};
  // Called in the membership's thread when the lease has been lost (we have been stopped for too long, say), before the name is taken again:
  // others may have been told that we are gone. Does what that asks for and returns what to publish; nothing: try again later.
  std::function<std::optional<NodeDescription>()> on_lost{};
  // Called in the membership's thread when the lease has been lost and another process has the name, or the directory has begun anew and gives
  // us another address, so that ours may be another's: with each try to take it again.
  std::function<void()> on_superseded{};
  NodeKinds kinds = kAllKinds;  // that on_change is told of
  // Called in the membership's thread with why the lease is not renewed, and with nothing when it is again. Null: it is logged, which is for
  // programs whose output is ours.
  std::function<void(const std::string&)> on_trouble{};
};

class Membership {
 public:
  using OnChange = std::function<void(const Snapshot&)>;

  // The directory outlives the membership. Null on_change: nothing is watched.
  static Result<std::unique_ptr<Membership>> join(Directory& directory, NodeDescription description,
                                                  MembershipConfig config = {}, OnChange on_change = {});
  ~Membership();

  Result<void> publish(const NodeDescription& description);
  // The same in the membership's thread, until it is done; does not wait.
  void publish_soon(NodeDescription description);
  const NodeRecord& node() const { return registration_.node; }
  // The directory gives our name another address than ours. Any thread.
  bool is_misplaced() const { return is_misplaced_; }

 private:
  class LeaseFile;
  Membership(Directory& directory, NodeDescription description, MembershipConfig config, Registration registration,
             std::unique_ptr<LeaseFile> file, OnChange on_change);
  void begin();
  void keep_lease();
  void take_file();
  bool tell();
  void renew_once();
  void note_taken(const NodeDescription& ours);
  void note_trouble(const std::string& why);
  void take(const Registration& joined);
  void watch();
  bool wait(Duration duration);

  Directory& directory_;
  MembershipConfig config_;
  OnChange on_change_;
  std::unique_ptr<LeaseFile> file_;  // null: none, or somebody else's; the keeper's
  std::mutex publishing_;            // held while the directory is told: what was said last is told last. Before mutex_
  bool untold_ = false;              // the keeper's: the directory has not taken what it is to know
  std::atomic<bool> is_misplaced_{false};  // set by the keeper
  std::string trouble_;                    // the keeper's: why the last renewal failed; empty: it did not
  std::string told_of_;                    // the keeper's: the reason last told of; empty: none, or that it is over
  std::optional<std::chrono::steady_clock::time_point> lost_at_;      // the keeper's: when it last found the lease lost
  std::optional<std::chrono::steady_clock::time_point> taken_since_;  // the keeper's: our name, while we have no lease
  std::mutex mutex_;                                                  // never held while the directory is asked
  std::condition_variable stop_;
  bool stopping_ = false;     // guarded by mutex_, as the next six
  bool has_watched_ = false;  // the watcher looks no more
  bool changed_ = false;      // description_ is to be published
  NodeDescription description_;
  LeaseId lease_;
  bool published_ = false;
  Registration registration_;  // as first given
  std::thread keeper_;
  std::thread watcher_;
};

}  // namespace sluice::rack
