// What the NIC of a process has counted, as a JSON file that others read while the process lives, and after it.
//
// Life:       take() -> write() about every second -> write_last(). Killed meanwhile, the file stays as the last write() left it, and
//             says so: "complete" is false.
// File:       each write makes a whole file beside it, which then takes its name: readers find the one or the other.
// Owner:      a file that is there already is never written to: the process takes FILE.PID then, and says so. The owner's is locked
//             (flock) as long as it lives; `sluice run` removes one of before that is not.
// Fork:       the child closes what it has got of the file, and leaves it to its parent.
// Errors:     a file that cannot be written is said once on stderr.
// Threads:    write() and write_last() from any. They allocate nothing: a signal handler may have called exit().
// Source:     /sys/class/infiniband/*/ports/1/{counters,hw_counters} of Linux, of which "port" and "nic" have the place.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "port/port.h"
#include "ports/descriptor.h"
#include "rc/counters.h"
#include "verbs/spin_lock.h"

namespace sluice::verbs {

struct NicCounters {
  rc::AdapterCounters nic{};
  port::PortCounters port{};

  bool operator==(const NicCounters&) const = default;
};

class CounterFile {
 public:
  // `address`: the NIC's, for who reads the file. Null: it cannot be written.
  static std::unique_ptr<CounterFile> take(const std::string& name, const std::string& address);
  // Nothing, if they are those of the last time.
  void write(const NicCounters& counters) { write(counters, false); }
  // Once; nothing is written after it.
  void write_last(const NicCounters& counters) { write(counters, true); }
  // In the child of a fork.
  void abandon() { file_.close(); }

  const std::string& path() const { return path_; }

 private:
  CounterFile(std::string path, const std::string& address);
  enum class How : std::uint8_t { kIfFree, kInPlace };

  int claim();
  int put(const NicCounters& counters, bool complete, How how);  // 0, or errno
  void write(const NicCounters& counters, bool complete);

  std::string path_;
  std::string aside_;
  std::string head_;  // of the JSON: who we are

  // Guarded by lock_.
  SpinLock lock_;
  NicCounters written_{};
  ports::Descriptor file_;  // that has our name now, locked
  bool ended_ = false;
  bool complained_ = false;
};

}  // namespace sluice::verbs
