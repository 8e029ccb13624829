// The memory of one shared-memory cable: two rings in one sealed memfd, each mapped twice in a row.
//
// Layout:     page 0: RingControl of ring 0.  page 1: RingControl of ring 1.  Then the bytes of ring 0, those of ring 1.
// Invariant:  the memfd is sealed against shrinking, so that no peer can turn an access into SIGBUS.
// Limits:     a ring is a power of two from kMinRing to kMaxRing bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "ports/sealed_memory.h"
#include "ports/shm_ring.h"

namespace sluice::ports {

inline constexpr std::size_t kMinRing = std::size_t{64} << 10;
inline constexpr std::size_t kMaxRing = std::size_t{64} << 20;

class ShmRegion {
 public:
  ShmRegion() = default;
  // A new region. REQUIRES: is_ring_size(ring_bytes).
  static Result<ShmRegion> create(std::size_t ring_bytes);
  // One that a peer made; size and seals are checked before anything is mapped.
  static Result<ShmRegion> adopt(Descriptor memfd, std::size_t ring_bytes);
  static bool is_ring_size(std::size_t bytes);

  // Sides 0 and 1: side N writes into ring N.
  RingWriter writer(unsigned side) const { return {control(side), rings_[side].start(), ring_bytes_}; }
  RingReader reader(unsigned side) const { return {control(1 - side), rings_[1 - side].start(), ring_bytes_}; }
  RingControl* control(unsigned ring) const;
  std::uint8_t* bytes(unsigned ring) const { return rings_[ring].start(); }

  // Of the memory itself, until it has been shown to the peer: the mappings live on without it.
  int memfd() const { return memfd_.get(); }
  void close_memfd() { memfd_.close(); }
  std::size_t ring_bytes() const { return ring_bytes_; }

 private:
  static Result<ShmRegion> map(Descriptor memfd, std::size_t ring_bytes);

  Descriptor memfd_;
  std::size_t ring_bytes_ = 0;
  Mapping controls_;
  std::array<Mapping, 2> rings_;
};

}  // namespace sluice::ports
