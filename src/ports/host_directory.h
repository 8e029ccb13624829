// What the programs of one host share besides its NIC: who has which place on it, and who listens at which port. Locks on files: a program
// that dies, however it dies, gives back what it had.
//
// Files:      nic.sock (where programs connect), address (of the NIC), lock, users (locked by everybody who needs the NIC), place-N (locked by the program whose
//             queue pairs are N << 16 and up), service-N (locked by who listens for the rdma_cm service N: port space and port, the low
//             24 bits of its id; the first byte is his place).
// Threads:    any; each call stands alone.
// Limits:     kPlaces programs at once.
// Source:     flock(2), and for services F_OFD_SETLK of fcntl(2): a lock belongs to an open file, so it also outlives a parent whose child has
//             it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "ports/descriptor.h"

namespace sluice::ports {

class HostDirectory {
 public:
  static constexpr std::uint8_t kPlaces = 255;  // 1 to 255
  struct Place {
    std::uint8_t number = 0;
    Descriptor lock{};
  };

  explicit HostDirectory(std::string path) : path_(std::move(path)) {}

  Result<void> prepare() const;
  // Removes what is shared, the lock last, and the directory if that was all.
  void remove() const;
  std::string socket() const { return path_ + "/nic.sock"; }

  // As a user: shared. Empty: the directory is gone.
  Descriptor use() const;
  // Held by one at a time, who waits for it. Empty: errno says why; ENOENT: the directory is gone.
  Descriptor lock() const;
  bool has_users() const;

  // The lowest free one.
  Result<Place> take_place() const;
  // Empty: another program listens there.
  Descriptor take_service(std::uint32_t service, std::uint8_t place) const;
  // The place of who listens there.
  std::optional<std::uint8_t> listener(std::uint32_t service) const;

 private:
  Descriptor open(const std::string& name, int flags) const;

  std::string path_;
};

}  // namespace sluice::ports
