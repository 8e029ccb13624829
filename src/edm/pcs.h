// The 64b/66b code of Ethernet's PCS: eight lanes of the MAC's interface as one block of 66 bits and back, what may follow what, and the
// scrambler on the line.
//
// Bits:       a payload is a 64-bit word whose bit 0 goes first; the sync header likewise, so a control block's is 01 in binary, as in the paper
//             (the standard prints it in the order of sending, 10).
// Errors:     encode() and decode() never fail: what is no legal block becomes the error block, or lanes full of /E/, as the standard asks. A block
//             whose sync header is neither of the two is none, whatever its payload says: so who asks for a control block asks is_control(). An /E/ among eight control characters makes them so; beside /S/, /T/ or an ordered set it is a control character as any other.
// Threads:    plain values; the scrambler has one owner.
// Source:     IEEE 802.3 Clause 49 (49.2.4, Figures 49-7, 49-16 and 49-17, 49.2.6).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/bytes.h"

namespace sluice::edm {

// One transfer of the MAC's interface. Lane i: bits 8i to 8i+7 of data; a control character where bit i of control is set.
struct Lanes {
  std::uint64_t data = 0;
  std::uint8_t control = 0;

  std::uint8_t lane(unsigned i) const { return static_cast<std::uint8_t>(data >> 8 * i); }
  bool is_control(unsigned i) const { return (control >> i & 1) != 0; }
  void set(unsigned i, std::uint8_t byte, bool is_control_character) {
    data = (data & ~(std::uint64_t{0xff} << 8 * i)) | std::uint64_t{byte} << 8 * i;
    control = static_cast<std::uint8_t>((control & ~(1u << i)) | (is_control_character ? 1u << i : 0u));
  }
  friend bool operator==(const Lanes&, const Lanes&) = default;
};

// Control characters of the interface.
namespace lane {
inline constexpr std::uint8_t kIdle = 0x07;
inline constexpr std::uint8_t kStart = 0xfb;
inline constexpr std::uint8_t kTerminate = 0xfd;
inline constexpr std::uint8_t kError = 0xfe;
inline constexpr std::uint8_t kSequence = 0x9c;  // begins an ordered set
inline constexpr std::uint8_t kSignal = 0x5c;    // likewise
}  // namespace lane

// From a line the two other values may come, too.
enum class Sync : std::uint8_t { kControl = 0b01, kData = 0b10 };

struct Block {
  Sync sync = Sync::kControl;
  std::uint64_t payload = 0;  // a control block's type in its lowest byte

  std::uint8_t type() const { return static_cast<std::uint8_t>(payload); }
  bool is_data() const { return sync == Sync::kData; }
  bool is_control() const { return sync == Sync::kControl; }
  friend bool operator==(const Block&, const Block&) = default;
};

inline constexpr Lanes kIdleLanes{0x0707070707070707u, 0xff};
inline constexpr Lanes kErrorLanes{0xfefefefefefefefeu, 0xff};
inline constexpr Block kIdleBlock{Sync::kControl, 0x1e};

Block encode(const Lanes& lanes);
Lanes decode(const Block& block);

// What a block is in the standard's state diagrams.
enum class BlockClass : std::uint8_t { kData, kControl, kStart, kTerminate, kInvalid };
BlockClass class_of(const Block& block);

// Whether blocks follow each other as a receiver wants them: /S/, then data, then /T/, and nothing else between.
class StreamRule {
 public:
  // False: this block must not come here.
  bool accept(const Block& block);
  bool in_frame() const { return in_frame_; }

 private:
  bool in_frame_ = false;
};

// 1 + x^39 + x^58 over the payloads; sync headers go as they are.
class Scrambler {
 public:
  explicit Scrambler(std::uint64_t state = ~std::uint64_t{0}) : sent_(state) {}
  std::uint64_t scramble(std::uint64_t payload) {
    const std::uint64_t out = payload ^ sent_ >> 6 ^ sent_ >> 25;
    return sent_ = out ^ out << 39 ^ out << 58;
  }

 private:
  std::uint64_t sent_;  // the last 64 bits
};
// Finds its state by itself: right after one block.
class Descrambler {
 public:
  std::uint64_t descramble(std::uint64_t payload) {
    const std::uint64_t out = payload ^ came_ >> 6 ^ came_ >> 25 ^ payload << 39 ^ payload << 58;
    came_ = payload;
    return out;
  }

 private:
  std::uint64_t came_ = ~std::uint64_t{0};
};

// Frames (from the destination address to the FCS) as lanes: preamble, start in lane 0 or 4, at least 12 bytes of gap.
class LaneWriter {
 public:
  // Appends; what does not fill eight lanes waits for more.
  void frame(ByteView bytes, std::vector<Lanes>& out);
  void idle(std::vector<Lanes>& out);  // until the eight lanes are full; a whole transfer if they are empty

 private:
  void put(std::uint8_t byte, bool is_control, std::vector<Lanes>& out);
  Lanes lanes_;
  unsigned at_ = 0;
  unsigned gap_ = 12;  // since the last frame
};

// And back. A frame that is broken off, or has an error in it, is counted and dropped.
class LaneReader {
 public:
  // Appends whole frames.
  void take(const Lanes& lanes, std::vector<std::vector<std::uint8_t>>& out);
  std::uint64_t broken() const { return broken_; }

 private:
  std::vector<std::uint8_t> frame_;
  bool open_ = false;
  std::uint64_t broken_ = 0;
};

}  // namespace sluice::edm
