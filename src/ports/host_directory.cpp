#include "ports/host_directory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace sluice::ports {
namespace {

bool locked(const Descriptor& file, int how) {
  int done = -1;
  do {
    done = flock(file.get(), how);
  } while (done != 0 && errno == EINTR);
  return done == 0;
}

bool is_at(const Descriptor& file, const std::string& path) {
  struct stat ours {};
  struct stat there {};
  if (fstat(file.get(), &ours) != 0 || stat(path.c_str(), &there) != 0) return false;
  return ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

// Of a service's listener. Whether somebody has it can be asked without taking it, which flock cannot.
bool takes_service(const Descriptor& file) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  return fcntl(file.get(), F_OFD_SETLK, &whole) == 0;
}
bool is_taken(const Descriptor& file) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  return fcntl(file.get(), F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

}  // namespace

Descriptor HostDirectory::open(const std::string& name, int flags) const {
  return Descriptor(::open((path_ + "/" + name).c_str(), flags | O_CLOEXEC, 0600));
}

Result<void> HostDirectory::prepare() const {
  if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) {
    return fail(fmt::format("{}: {}; is a rack up? `sluice rack up` starts one", path_, std::strerror(errno)));
  }
  return {};
}

namespace {

// As this file and rack/daemons/host_daemon.h make them; others may call theirs so, too.
bool is_shared(const std::filesystem::directory_entry& entry) {
  std::error_code ignored;
  const std::string name = entry.path().filename().string();
  if (name == "nic.sock") return entry.is_socket(ignored);
  if (!std::filesystem::is_regular_file(entry.symlink_status(ignored))) return false;
  const std::uintmax_t size = entry.file_size(ignored);
  if (name == "address") return size < 512;
  if (name.starts_with("service-")) return size <= 1;
  return size == 0 && (name == "users" || name.starts_with("place-"));
}

}  // namespace

void HostDirectory::remove() const {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
    if (is_shared(entry)) std::filesystem::remove(entry.path(), ignored);
  }
  if (std::filesystem::file_size(path_ + "/lock", ignored) == 0) std::filesystem::remove(path_ + "/lock", ignored);
  std::filesystem::remove(path_, ignored);
}

Descriptor HostDirectory::use() const {
  Descriptor file = open("users", O_RDWR | O_CREAT);
  if (file) locked(file, LOCK_SH);
  return file;
}

Descriptor HostDirectory::lock() const {
  for (;;) {  // until it is not one that was removed while we waited
    Descriptor file = open("lock", O_RDWR | O_CREAT);
    if (!file || !locked(file, LOCK_EX)) return {};
    if (is_at(file, path_ + "/lock")) return file;
  }
}

bool HostDirectory::has_users() const {
  const Descriptor file = open("users", O_RDWR);
  return file && !locked(file, LOCK_EX | LOCK_NB);
}

Result<HostDirectory::Place> HostDirectory::take_place() const {
  for (unsigned number = 1; number <= kPlaces; ++number) {
    Descriptor file = open(fmt::format("place-{}", number), O_RDWR | O_CREAT);
    if (!file) return fail(fmt::format("{}: {}", path_, std::strerror(errno)));
    if (locked(file, LOCK_EX | LOCK_NB)) return Place{static_cast<std::uint8_t>(number), std::move(file)};
  }
  return fail(fmt::format("{}: {} programs share this host's NIC already", path_, kPlaces));
}

Descriptor HostDirectory::take_service(std::uint32_t service, std::uint8_t place) const {
  Descriptor file = open(fmt::format("service-{:06x}", service), O_RDWR | O_CREAT);
  if (!file || !takes_service(file)) return {};
  if (pwrite(file.get(), &place, 1, 0) != 1) return {};
  return file;
}

std::optional<std::uint8_t> HostDirectory::listener(std::uint32_t service) const {
  const Descriptor file = open(fmt::format("service-{:06x}", service), O_RDWR);
  if (!file || !is_taken(file)) return std::nullopt;
  std::uint8_t place = 0;
  if (pread(file.get(), &place, 1, 0) != 1 || place == 0) return std::nullopt;
  return place;
}

}  // namespace sluice::ports
