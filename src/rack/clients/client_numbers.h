// Client numbers: which clients of a store a session has, in a file of the run directory that it holds while it lives. So who comes later on this machine
// knows for certain which clients have died, and can leave the store for them. (A lease that has ended is no proof: who was only stopped goes on.)
//
// Life:       keep(), once its clients have their numbers -> remove(), once they have left. Killed, it leaves the file behind, held by nobody.
// Errors:     where no file can be made nobody will know.
// Threads:    any, each object in one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ports/descriptor.h"
#include "rack/settings/run_directory.h"

namespace sluice::rack {

class ClientNumbers {
 public:
  ClientNumbers() = default;  // of nobody
  // Of a session of a FUSEE store, which has this number. REQUIRES: no other session has these.
  static ClientNumbers keep(const RunDirectory& run, std::uint32_t store, std::vector<std::uint32_t> numbers);
  // What those of this store have left that have died. It is held from now on, so that others do not do the same.
  static std::vector<ClientNumbers> abandoned(const RunDirectory& run, std::uint32_t store);

  std::span<const std::uint32_t> numbers() const { return numbers_; }
  void remove();

 private:
  std::string path_;
  ports::Descriptor file_;
  std::vector<std::uint32_t> numbers_;
};

}  // namespace sluice::rack
