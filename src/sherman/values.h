// Values that are too long for a leaf: each in a block of its own, which the leaf's entry names.
//
// Block       u64 tag | u64 key | u32 length | u32 check of these and the bytes | bytes; of 64, 96, 128, 192, … bytes, as few as it needs
// Tag         names one writing of a block for ever, so that a reader knows the value that its entry meant from whatever the block has become since.
//             0: nobody's, never written or marked as free.
// Life        written by its owner (space.h), before the entry that names it. Who has replaced that entry gives it back, or marks it by
//             CAS(its tag -> 0): that may be done twice, whatever has become of the block. Marks go out with the client's next block. What nobody
//             has marked, because its client has died or did not learn the outcome of a change, its owner's audit finds (Client::audit).
// Readers     need no protection: who finds another tag looks at the leaf again.
// Threads:    the client's.
// Source:     Marks: FUSEE (FAST 2023) §4.4. Sherman (SIGMOD 2022) §4.5 has values of variable length by indirection, and no more words on it.
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
  // An operation is about to replace an entry that names it. True: the block is in its hand now; else it is another's.
  bool hold(const FarValue& far);
  // What has become of a block in hand: an entry names it, or may; or none does, any more.
  void named(const FarValue& far) { space_for(far.length).place(far.block); }
  void doubtful(const FarValue& far) { space_for(far.length).doubt(far.block); }
  void unnamed(const FarValue& far) { space_for(far.length).give_back(far.block); }
  // No entry names another's any more. Of a client that has died, it may have become ours meanwhile.
  remote::Task<void> mark(const FarValue& far);
  // Marks that have not gone out yet go out. What fails is left to audits.
  remote::Task<void> send_marks();

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

  // That of the blocks of so many bytes, if there may be such.
  Space* space_of(std::uint32_t block_bytes);
  // By the size of blocks; more may be added while something is awaited.
  std::map<std::uint32_t, Space>& spaces() { return spaces_; }
  const std::map<std::uint32_t, Space>& spaces() const { return spaces_; }

 private:
  // Could anybody have written it?
  bool plausible(const FarValue& far) const {
    return far.length <= c_.geometry.long_bytes && far.block.node() < c_.map.nodes();
  }
  Space& space_for(std::uint32_t length) { return *space_of(Geometry::block_bytes(length)); }
  void take_marks(std::vector<remote::Operation>& operations);

  Connection& c_;
  std::shared_ptr<Buffers> buffers_;  // each for the longest block
  std::map<std::uint32_t, Space> spaces_;
  std::vector<FarValue> marks_;
  std::uint64_t tags_ = 0;
};

}  // namespace sluice::sherman
