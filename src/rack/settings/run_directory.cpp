#include "rack/settings/run_directory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "base/fnv.h"
#include "ports/descriptor.h"
#include "ports/host_directory.h"
#include "ports/run_path.h"
#include "ports/unix_socket.h"

namespace sluice::rack {

std::string RunDirectory::default_path() { return ports::default_run_directory(); }

Result<void> RunDirectory::prepare() const {
  if (path_.size() > kMaxPath) {
    return fail(
        fmt::format("--dir = \"{}\": must have at most {} bytes, because UNIX sockets live in it", path_, kMaxPath));
  }
  if (path_.find(',') != std::string::npos)
    return fail(fmt::format("--dir = \"{}\": must have no comma, which ends an address in the name of a port", path_));
  if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) {
    return fail(fmt::format("--dir = \"{}\": {}; choose a directory that can be made", path_, std::strerror(errno)));
  }
  struct stat status {};
  const bool ours = lstat(path_.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
  if (!ours) return fail(fmt::format("--dir = \"{}\": must be a directory of your own", path_));
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return fail(
        fmt::format("--dir = \"{}\": others may write to it; name one that is not there yet, or run chmod 700 "
                    "on it if nobody else needs it",
                    path_));
  }
  return {};
}

void RunDirectory::shield() const {
  struct stat status {};
  if (lstat(path_.c_str(), &status) == 0 && (status.st_mode & 0077) != 0) umask(umask(0077) | 0077);
}

namespace {

std::string first_line_of(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

bool RunDirectory::is_joined() const { return access((joined() + "/address").c_str(), F_OK) == 0; }

std::string RunDirectory::machine() const { return first_line_of(joined() + "/machine"); }

telemetry::HttpAddress RunDirectory::directory_address() const {
  const char* const token = std::getenv(kTokenVariable);
  telemetry::HttpAddress address{directory_socket(), {}, token == nullptr ? "" : token};
  if (!is_joined()) return address;
  address.text = first_line_of(joined() + "/address");
  address.tls = telemetry::TlsFiles{joined() + "/authority.pem", joined() + "/certificate.pem", joined() + "/key.pem"};
  return address;
}

std::string RunDirectory::switch_port() const {
  return is_joined() ? "udp:" + first_line_of(joined() + "/address") : "shm:" + switch_socket();
}

namespace {

// Somebody listens there; a socket that a dead process has left refuses.
bool is_served(const std::string& socket) {
  return ports::connect_unix(socket).has_value() || (errno != ECONNREFUSED && errno != ENOENT);
}

// A living daemon holds it.
bool is_held(const std::string& lease_file) {
  const ports::Descriptor file(open(lease_file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  return file && flock(file.get(), LOCK_EX | LOCK_NB) != 0;
}

}  // namespace

std::string RunDirectory::http_socket(const std::string& daemon) const {
  constexpr std::string_view kBehind = ".http.sock";
  static_assert(kMaxPath + 1 + kMaxSocketName + kBehind.size() <= kMaxSocketPath);
  if (daemon.size() <= kMaxSocketName) return fmt::format("{}/{}{}", path_, daemon, kBehind);
  const std::uint64_t hash = fnv1a(daemon);
  return fmt::format("{}/~{:015x}{}", path_, (hash ^ (hash >> 60)) & ((std::uint64_t{1} << 60) - 1), kBehind);
}

bool RunDirectory::has_switch() const { return is_served(directory_socket()); }

namespace {

std::string head_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string head(128, '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(in.gcount()));
  return head;
}

// Nothing but a line with so many numbers.
bool is_numbers(std::string_view text, int count) {
  for (int i = 1; i <= count; ++i) {
    const std::size_t digits = text.find_first_not_of("0123456789");
    if (digits == 0 || digits == std::string_view::npos || text[digits] != (i < count ? ' ' : '\n')) return false;
    text.remove_prefix(digits + 1);
  }
  return text.empty();
}

// Of rack/switch/sharded_box.h: one for each of a switch's box cores.
bool is_box_socket(std::string_view name) {
  constexpr std::string_view kBefore = "box-";
  constexpr std::string_view kBehind = ".sock";
  if (!name.starts_with(kBefore) || !name.ends_with(kBehind) || name.size() <= kBefore.size() + kBehind.size())
    return false;
  name.remove_prefix(kBefore.size());
  name.remove_suffix(kBehind.size());
  return name.find_first_not_of("0123456789") == std::string_view::npos;
}

// Of rack/daemons/journal_file.h: a length, then which store it is.
bool is_journal(std::string_view head) { return head.size() > 4 && head.substr(4).starts_with("{\"homes\":"); }

// What a rack of ours has written, and not somebody who calls his files so too.
bool is_ours(const std::filesystem::path& path, const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(path, ignored);
  if (fs::is_socket(status))
    return name == "switch.sock" || name == "directory.sock" || name == "cowbird.sock" ||
           name.ends_with(".http.sock") || is_box_socket(name);
  if (fs::is_directory(status))
    return name.starts_with("host-") &&
           !fs::is_empty(path, ignored);  // whose contents it knows: ports/host_directory.h
  if (!fs::is_regular_file(status)) return false;
  if (name == "directory.sqlite-wal" || name == "directory.sqlite-shm") return true;
  if (name == "switch.lease" || name == "tenants.json.lock") return fs::file_size(path, ignored) == 0;
  if (name.starts_with("fusee-") && name.ends_with(".clients"))  // rack/clients/client_numbers.h
    return head_of(path.string()).find_first_not_of("0123456789 \n") == std::string::npos;
  if (name.ends_with(".settings") && fs::file_size(path, ignored) == 0) return true;
  const std::string head = head_of(path.string());
  if (name == "directory.sqlite") return head.starts_with("SQLite format 3");
  if (name.ends_with(".pid") || name.ends_with(".pid.new")) return is_numbers(head, 2);
  if (name.ends_with(".lease")) return is_numbers(head, 1);
  if (name.ends_with(".settings")) return head.starts_with(kSettingsHead);
  if (name.ends_with(".journal") || name.ends_with(".journal.lost") || name.ends_with(".journal.new"))
    return is_journal(head);
  constexpr std::string_view kDraft = "tenants.json.XXXXXX.new";  // of rack/settings/private_file.h
  return name.size() == kDraft.size() && name.starts_with("tenants.json.") && name.ends_with(".new");
}

}  // namespace

void RunDirectory::clear() const {
  std::error_code ignored;
  const bool has_directory = has_switch() || is_held(lease_file("switch"));  // one that starts does not listen yet
  const auto is_in_use = [&](const std::string& name, bool is_directory) {
    if (name.ends_with(".sock")) return is_served(path_ + "/" + name);
    if (const auto at = name.find(".journal"); at != std::string::npos) return is_held(lease_file(name.substr(0, at)));
    if (name.starts_with("directory.sqlite") || name.ends_with(".new")) return has_directory;
    if (!is_directory) return false;
    const ports::HostDirectory host(path_ + "/" + name);
    return host.has_users() || is_served(host.socket());
  };
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool is_directory = std::filesystem::is_directory(entry.symlink_status(ignored));
    if (!is_ours(entry.path(), name) || is_in_use(name, is_directory)) continue;
    // A lock is ours while its file goes: whoever takes it next finds that the file is gone.
    const bool is_lock = name.ends_with(".lease") || name.ends_with(".lock") || name.ends_with(".clients");
    const ports::Descriptor lock(is_lock ? open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1);
    if (lock && flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (is_directory)
      ports::HostDirectory(entry.path().string()).remove();
    else
      std::filesystem::remove(entry.path(), ignored);
  }
}

Result<RunLock> RunLock::take(const RunDirectory& directory) {
  return take(directory.lock(),
              fmt::format("another `sluice rack` command is at work in {}; wait for its end", directory.path()));
}

Result<RunLock> RunLock::of_switch(const RunDirectory& directory) {
  return take(directory.lease_file("switch"),
              fmt::format("a switch lives in {} already; is this rack up already?", directory.path()));
}

Result<RunLock> RunLock::of_tenants(const std::string& file) {
  std::error_code failed;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(file, failed);
  if (failed || !std::filesystem::is_directory(whole.parent_path(), failed))
    return RunLock(-1);  // whoever reads the file says why it cannot be there
  return take(
      whole.string() + ".lock",
      fmt::format("{} is another switch's: each rack needs a file of its own for its tenants ([switch] tenants)",
                  file));
}

// A process that was killed keeps what it holds until its last thread has ended.
Result<RunLock> RunLock::take(const std::string& path, const std::string& taken) {
  constexpr std::chrono::milliseconds kDying{1000};
  const auto give_up = std::chrono::steady_clock::now() + kDying;
  for (;;) {
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0) return fail(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
    while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (std::chrono::steady_clock::now() >= give_up) {
        close(descriptor);
        return fail(taken);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (!is_removed(descriptor)) return RunLock(descriptor);
    close(descriptor);
  }
}

bool is_removed(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) != 0 || status.st_nlink == 0;
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace sluice::rack
