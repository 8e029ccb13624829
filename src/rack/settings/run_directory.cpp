#include "rack/settings/run_directory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

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

bool RunDirectory::has_switch() const { return is_served(directory_socket()); }

void RunDirectory::clear() const {
  std::error_code ignored;
  const bool has_directory = has_switch();
  const auto is_left_over = [&](const std::string& name) {
    const std::string path = path_ + "/" + name;
    const std::string stem = name.substr(0, name.rfind('.'));
    if (name.ends_with(".pid") || name.ends_with(".config")) return true;
    if (name.ends_with(".sock")) return !is_served(path);
    if (name.ends_with(".lease")) return !is_held(path);
    if (name.ends_with(".journal")) return !is_held(lease_file(stem));
    if (name.ends_with(".journal.lost")) return !is_held(lease_file(stem.substr(0, stem.rfind('.'))));
    if (name.starts_with("directory.sqlite") || name.ends_with(".new")) return !has_directory;
    if (!name.starts_with("host-") || name.ends_with(".log")) return false;
    const ports::HostDirectory host(path);
    return !host.has_users() && !is_served(host.socket());
  };
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
    if (is_left_over(entry.path().filename().string())) std::filesystem::remove_all(entry.path(), ignored);
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

Result<RunLock> RunLock::take(const std::string& path, const std::string& taken) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) return fail(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    close(descriptor);
    return fail(taken);
  }
  return RunLock(descriptor);
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace sluice::rack
