// Run directory: the one place where a rack on this machine keeps its sockets, state, logs and pid files.
//
// Joined:     on a machine that has joined another's rack (rack/directory/invitation.h) the switch and the directory are there; all else is here.
// Invariant:  it is owned by us, and nobody else may write to it. What we make ourselves is 0700; what was there keeps its mode.
// Limits:     a UNIX socket's path has at most kMaxSocketPath bytes, so the directory's at most kMaxPath.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"
#include "telemetry/http_server.h"

namespace sluice::rack {

inline constexpr const char* kSettingsHead = "# what this daemon was started with; written by `sluice rack up`\n";

// Names the file with the token that this process and what it starts show to the rack (rack/directory/tenants.h); unset: none.
inline constexpr const char* kTokenVariable = "SLUICE_TOKEN_FILE";

class RunDirectory {
 public:
  static constexpr std::size_t kMaxPath = 80;
  static constexpr std::size_t kMaxSocketPath = 107;
  static constexpr std::size_t kMaxSocketName = 16;  // of a daemon; fits below the longest directory

  explicit RunDirectory(std::string path) : path_(std::move(path)) {}
  // As ports/run_path.h has it.
  static std::string default_path();

  // Makes it if need be; an error when it is another's, or others may write to it.
  Result<void> prepare() const;
  // Where others may look in, what this process, and what it starts, makes from now on is for us alone (umask).
  void shield() const;
  // Removes what a rack leaves there, except logs, and except what a living process of somebody else's (a service manager's, say) has there.
  // What is a rack's is told by its contents: the directory may have been there before, with files of its owner's.
  void clear() const;
  // Whether a switch's directory is served here.
  bool has_switch() const;

  const std::string& path() const { return path_; }
  // Where the rack is: the directory, and the port to the switch for ports/open.h.
  telemetry::HttpAddress directory_address() const;
  std::string switch_port() const;
  bool is_joined() const;
  std::string joined() const { return path_ + "/joined"; }
  // This machine's name on the rack that it has joined; empty: it has joined none.
  std::string machine() const;
  // A client's name on the rack: names are the rack's, but process numbers, which clients are named by, and hosts are a machine's.
  std::string client_name(const std::string& name) const { return is_joined() ? machine() + "." + name : name; }
  std::string tls() const { return path_ + "/tls"; }

  // What a rack of this machine has here.
  std::string switch_socket() const { return path_ + "/switch.sock"; }
  std::string directory_socket() const { return path_ + "/directory.sock"; }
  // A daemon's own HTTP server: rack/process/daemon_http.h.
  // A name of more than kMaxSocketName letters is stood for by '~', which no name may have, and 15 digits made from it. How the
  // directory is spelled plays no part: who serves and who asks may spell it differently.
  std::string http_socket(const std::string& daemon) const;
  std::string cowbird_socket() const { return path_ + "/cowbird.sock"; }
  // What the programs of one host share: ports/host_directory.h.
  std::string host(const std::string& name) const { return path_ + "/host-" + name; }
  std::string directory_state() const { return path_ + "/directory.sqlite"; }
  // Who may use the rack; outlives it, as tls() does.
  std::string tenants_file() const { return path_ + "/tenants.json"; }
  std::string pid_file(const std::string& daemon) const { return path_ + "/" + daemon + ".pid"; }
  std::string log(const std::string& daemon) const { return path_ + "/" + daemon + ".log"; }
  // What its settings file had in it when it started, behind a line of ours: kSettingsHead. Empty: the disk was full.
  std::string settings_copy(const std::string& daemon) const { return path_ + "/" + daemon + ".settings"; }
  // Held by a daemon while it lives: rack/directory/membership.h.
  std::string lease_file(const std::string& daemon) const { return path_ + "/" + daemon + ".lease"; }
  // What a daemon must find again when it is started anew: rack/daemons/journal_file.h.
  std::string journal(const std::string& daemon) const { return path_ + "/" + daemon + ".journal"; }
  std::string lock() const { return path_ + "/lock"; }

 private:
  std::string path_;
};

// Whether an open file has no name any more: a lock on it keeps nobody out, for whoever comes next makes a file of his own.
bool is_removed(int descriptor);

// Held by `up` and `down`, so that two of them do not mix, and by a switch. Released when destroyed, or when the process dies.
class RunLock {
 public:
  static Result<RunLock> take(const RunDirectory& directory);
  // Held by the switch while it lives: of two that are started at once one gives way.
  static Result<RunLock> of_switch(const RunDirectory& directory);
  // The same of two whose tenants are kept in one file, which each would replace by what it knows itself.
  static Result<RunLock> of_tenants(const std::string& file);
  RunLock(RunLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  RunLock& operator=(RunLock&&) = delete;
  ~RunLock();

 private:
  static Result<RunLock> take(const std::string& path, const std::string& taken);
  explicit RunLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace sluice::rack
