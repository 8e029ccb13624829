// Memory that processes share through a descriptor: a memfd, sealed against changing its size, and mappings of it.
//
// Invariant:  no peer can shrink it and so turn an access into SIGBUS. Zero at first.
// Trust:      what a peer made is checked before it is mapped.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "ports/descriptor.h"

namespace sluice::ports {

// `name`: for people who look into /proc.
Result<Descriptor> make_sealed_memory(const char* name, std::size_t bytes);
// That it has exactly so many bytes and cannot lose them.
Result<void> check_sealed_memory(int memfd, std::size_t bytes);

// An mmap-ed range.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::uint8_t* start, std::size_t length) : start_(start), length_(length) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::uint8_t* start() const { return start_; }

 private:
  std::uint8_t* start_ = nullptr;
  std::size_t length_ = 0;
};

// `length` bytes of the file from `offset`, shared, read and write; at `where`, replacing what is mapped there, if it is not null.
// Null: errno says why.
std::uint8_t* map_shared(void* where, std::size_t length, int fd, std::size_t offset);

}  // namespace sluice::ports
