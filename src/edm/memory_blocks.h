// EDM's blocks: memory messages, notifications and grants as 66-bit blocks that Ethernet's decoder never sees.
//
// Layout of the payload, bit 0 first (every one but /MD/ is a control block, with a CRC-8 of bits 0 to 55 in bits 56 to 63):
//
//   bits    | 0-7  | 8-10 | 11-19 | 20-27 | 28-51            | 52-54 | 55   |
//   /MS/    | 0x1d | kind | port  | id    | bytes            | op    | last | begins a message or a chunk of one
//           |                             | 28-42 bytes, 43-51 to    | of kResponse
//   /MT/    | 0x2e | CRC-32C in bits 8 to 39, of the payloads from /MS/ on; zeros in 40 to 55             | ends it
//           |      | of kReadShort: the address in bits 8 to 55                                           |
//   /MST/   | 0x48 | kind | port  | id    | bits 28 to 55: line number (kReadLine); of kNull `to` in 43-51 | a whole message
//   /N/     | 0x56 | 0    | port  | id    | bytes            | 0     | 0    | notification
//   /G/     | 0x65 | kind | port  | id    | bytes            | 0     | last | grant of a chunk
//   /MD/    | 64 bits of data: on the wire a data block like any other, so no frame's blocks stand between /MS/ and /MT/; the others may
//
//   kReadLine  /MST/                                   64 bytes at 64 times the line number (16 GiB)
//   kReadShort /MS/ /MT/                               any other below 2^48: both blocks have a CRC-8 of their own, and need no other
//   kRead      /MS/ /MD/ address /MT/                  an address of 8 bytes does not fit beside the rest of a request: three blocks
//   kWrite     /MS/ /MD/ address /MD/ data… /MT/       each chunk with the address of its own first byte; op 1: more of the same chunk follows
//   kModify    /MS/ /MD/ address /MD/ operands… /MT/   op says which: one operand, compare-and-swap has two
//   kResponse  /MS/ /MD/ data… /MT/
//   kNull      /MST/                                   a response of nothing: the memory node is gone
//
// Types:      the fifteen of Clause 49 are words of the extended Hamming code, four bits apart, and leave no other such word but 0. These five
//             are four bits apart from each other and two from any of those: one flipped bit makes no type of another.
// Port:       of a request or a write the destination, of a request on its way down who asked, of an answer who answers, of a grant the
//             destination of the data. So an answer says besides to whom it goes (`to`): what goes along a circuit names its end.
// Errors:     a reader says what was wrong with a unit, and is ready for the next.
// Threads:    one owner; no allocation after construction.
// Limits:     chunks up to kMaxChunkBytes.
// Source:     EDM §3.1.4, §3.2; the layout, and the CRCs, which 64b/66b does not have, are ours.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "edm/pcs.h"
#include "edm/types.h"

namespace sluice::edm {

inline constexpr std::uint32_t kMaxChunkBytes = 4096;
inline constexpr std::uint32_t kLineBytes = 64;
inline constexpr std::uint32_t kWriteFramingBlocks = 3;  // /MS/, address, /MT/
inline constexpr std::uint64_t kMaxLine = (std::uint64_t{1} << 28) - 1;
inline constexpr std::uint64_t kMaxShortAddress = (std::uint64_t{1} << 48) - 1;
// /MS/, an address, data, /MT/.
inline constexpr std::size_t kMaxUnitBlocks = kMaxChunkBytes / 8 + 3;

enum class MemoryBlock : std::uint8_t { kStart = 0x1d, kEnd = 0x2e, kSingle = 0x48, kNotify = 0x56, kGrant = 0x65 };

enum class UnitKind : std::uint8_t {
  kReadLine = 0,
  kRead = 1,
  kWrite = 2,
  kModify = 3,
  kResponse = 4,
  kNull = 5,
  kReadShort = 6,
  kNotify = 8,  // these two have block types of their own
  kGrant = 9,
};
enum class ModifyOp : std::uint8_t { kNone = 0, kCompareAndSwap = 1, kFetchAndAdd = 2, kSwap = 3 };

// What one unit says: a whole small message, a chunk of a long one, a notification or a grant.
struct Unit {
  UnitKind kind = UnitKind::kReadLine;
  PortId port{};
  PortId to{};  // kResponse, kNull: who asked
  MessageId id{};
  std::uint32_t bytes = 0;  // of data: to read, in this chunk, asked for, granted
  ModifyOp op = ModifyOp::kNone;
  bool last = false;          // kWrite, kResponse, kGrant: the last chunk of its message
  bool of_response = false;   // kGrant: for a response, not a write
  bool more = false;          // kWrite: another write follows along the same circuit (mega_message.h)
  std::uint64_t address = 0;  // kReadLine, kReadShort, kRead, kWrite, kModify
  ByteView data;  // kWrite, kResponse: the chunk; kModify: operands, little-endian. Of a reader, until its next block
};

// Whether a block is one of EDM's control blocks; data blocks are told by where they stand.
bool is_memory_control(const Block& block);

// Whether the CRC-8 of one of EDM's control blocks is right. Nothing that it says is to be believed before: a switch that passes a message on sees its
// end only when the next one may have begun.
bool checks(const Block& control);

// Of the first block of a unit: whether it goes along a circuit, untouched (a write, an answer), and not to the scheduler.
bool goes_through(const Block& first);
// Of the first block of what goes through: the end of its circuit.
PortId destination_of(const Block& first);
// The same of a write's; and whether another write follows it along the same circuit.
bool begins_write(const Block& first);
bool more_follow(const Block& first);

// The shortest request there is for these bytes.
UnitKind read_kind(std::uint64_t address, std::uint32_t bytes);

// Blocks of a unit; returns how many. REQUIRES: a unit that fits its layout (SLUICE_CHECK), room for unit_blocks().
std::size_t unit_blocks(const Unit& unit);
std::size_t write_unit(const Unit& unit, std::span<Block> out);

enum class UnitVerdict : std::uint8_t {
  kMore,  // inside a unit
  kWhole,
  kBadCheck,  // CRC-8 of a block, or CRC-32C of a message
  kBadKind,
  kBadLength,   // not as many data blocks as the header says
  kOutOfPlace,  // no message had begun, or another one had
  kCount,
};
std::string_view to_string(UnitVerdict verdict);

class UnitReader {
 public:
  // A block of EDM: one of its control blocks, or a data block between /MS/ and /MT/.
  UnitVerdict take(const Block& block);
  // After kWhole.
  const Unit& unit() const { return unit_; }
  bool inside() const { return inside_; }
  // The link has lost its place, or a block has come that is none of memory's.
  void reset() { inside_ = false; }

 private:
  UnitVerdict begin(std::uint64_t payload);
  UnitVerdict end(std::uint64_t payload);
  UnitVerdict single(std::uint64_t payload);

  Unit unit_;                                             // the last whole one
  Unit open_;                                             // between /MS/ and /MT/
  std::array<std::uint8_t, kMaxChunkBytes + 8> bytes_{};  // the address, where there is one, and the data
  std::size_t size_ = 0;
  std::size_t wanted_ = 0;
  std::uint32_t crc_ = 0;
  bool inside_ = false;
};

}  // namespace sluice::edm
