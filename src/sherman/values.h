// Values that are too long for a leaf: each in a block of its own, which the leaf's entry names.
//
// Block       u64 tag | u64 key | u32 length | u32 check of these and the bytes | bytes; of 64, 96, 128, 192, … bytes, as few as it needs
// Tag         names one writing of a block for ever, so that a reader knows the value that its entry meant from whatever the block has become since.
// Life        written before the entry that names it; given back by who has replaced that entry. Blocks that may or may not be named, because the
//             outcome of a change is unknown or its client has died, are lost.
// Readers     need no protection: who finds another tag looks at the leaf again.
// Threads:    the client's.
// Source:     Sherman (SIGMOD 2022) §4.5 has values of variable length by indirection, and no more words on it.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "sherman/connection.h"
#include "sherman/space.h"

namespace sluice::sherman {

class Values {
 public:
  explicit Values(Connection& connection) : c_(connection) {}

  // Once the client knows the geometry.
  void open();

  // Into a new block.
  remote::Task<Space::Given> write(Key key, ByteView value, Time deadline, FarValue& far);
  void give_back(const FarValue& far);

  enum class Seen : std::uint8_t { kYes, kChanged, kUnavailable };
  // Of kYes, the value is at the start of `into`. REQUIRES: into.size() >= far.length.
  remote::Task<Seen> read(Key key, FarValue far, MutableBytes into, Time deadline);

  struct Wanted {
    Key key = 0;
    FarValue far;
    std::vector<std::uint8_t> block{};
    bool there = false;
    ByteView value() const { return ByteView(block).subspan(kBlockHeader); }  // REQUIRES: there
  };
  // Several, kAtOnce in a round trip. What is not there afterwards was out of reach, or has become another's.
  remote::Task<void> read_some(std::span<Wanted> wanted);
  static constexpr std::size_t kAtOnce = 16;

 private:
  // Could anybody have written it?
  bool plausible(const FarValue& far) const {
    return far.length <= c_.geometry.long_bytes && far.block.node() < c_.map.nodes();
  }
  Space& space_for(std::uint32_t length);

  Connection& c_;
  std::shared_ptr<Buffers> buffers_;  // each for the longest block
  std::map<std::uint32_t, Space> spaces_;
  std::uint64_t tags_ = 0;
};

}  // namespace sluice::sherman
