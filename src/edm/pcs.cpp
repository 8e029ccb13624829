#include "edm/pcs.h"

#include <algorithm>
#include <utility>

namespace sluice::edm {
namespace {

// What stands in each lane. Data lanes before a /T/ are shifted up by one byte, as the type takes the first.
struct Format {
  std::uint8_t type;
  const char* lanes;
};
constexpr std::array<Format, 15> kFormats{{{0x1e, "CCCCCCCC"},
                                           {0x2d, "CCCCODDD"},
                                           {0x33, "CCCCSDDD"},
                                           {0x66, "ODDDSDDD"},
                                           {0x55, "ODDDODDD"},
                                           {0x78, "SDDDDDDD"},
                                           {0x4b, "ODDDCCCC"},
                                           {0x87, "TCCCCCCC"},
                                           {0x99, "DTCCCCCC"},
                                           {0xaa, "DDTCCCCC"},
                                           {0xb4, "DDDTCCCC"},
                                           {0xcc, "DDDDTCCC"},
                                           {0xd2, "DDDDDTCC"},
                                           {0xe1, "DDDDDDTC"},
                                           {0xff, "DDDDDDDT"}}};
// Control characters and their seven bits; ordered sets and their four.
using Code = std::pair<std::uint8_t, std::uint8_t>;
constexpr std::array<Code, 9> kControlCodes{{{lane::kIdle, 0x00},
                                             {0x06, 0x06},
                                             {lane::kError, 0x1e},
                                             {0x1c, 0x2d},
                                             {0x3c, 0x33},
                                             {0x7c, 0x4b},
                                             {0xbc, 0x55},
                                             {0xdc, 0x66},
                                             {0xf7, 0x78}}};
constexpr std::array<Code, 2> kOrderedSetCodes{{{lane::kSequence, 0x0}, {lane::kSignal, 0xf}}};

template <class Codes>
const Code* by_character(const Codes& codes, std::uint8_t character) {
  const auto found = std::find_if(codes.begin(), codes.end(), [=](const Code& c) { return c.first == character; });
  return found == codes.end() ? nullptr : &*found;
}
template <class Codes>
const Code* by_bits(const Codes& codes, std::uint64_t bits) {
  const auto found = std::find_if(codes.begin(), codes.end(), [=](const Code& c) { return c.second == bits; });
  return found == codes.end() ? nullptr : &*found;
}

const Format* format_of(std::uint8_t type) {
  const auto found = std::find_if(kFormats.begin(), kFormats.end(), [=](const Format& f) { return f.type == type; });
  return found == kFormats.end() ? nullptr : &*found;
}

bool ends_with_terminate(const Format& format) { return format.type >= 0x87; }
unsigned data_bit(const Format& format, unsigned lane) { return ends_with_terminate(format) ? 8 + 8 * lane : 8 * lane; }
constexpr unsigned control_bit(unsigned lane) { return 8 + 7 * lane; }
constexpr unsigned ordered_set_bit(unsigned lane) { return lane == 0 ? 32 : 36; }

bool lane_fits(char kind, const Lanes& lanes, unsigned i) {
  const std::uint8_t byte = lanes.lane(i);
  if (kind == 'D') return !lanes.is_control(i);
  if (!lanes.is_control(i)) return false;
  if (kind == 'S') return byte == lane::kStart;
  if (kind == 'T') return byte == lane::kTerminate;
  if (kind == 'O') return by_character(kOrderedSetCodes, byte) != nullptr;
  return by_character(kControlCodes, byte) != nullptr;
}

bool fits(const Format& format, const Lanes& lanes) {
  for (unsigned i = 0; i < 8; ++i) {
    if (!lane_fits(format.lanes[i], lanes, i)) return false;
  }
  return true;
}

bool has_error(const Lanes& lanes) {
  for (unsigned i = 0; i < 8; ++i) {
    if (lanes.is_control(i) && lanes.lane(i) == lane::kError) return true;
  }
  return false;
}
// An /E/ is none of the control characters that are a block by themselves.
bool is_legal(const Format& format, const Lanes& lanes) {
  return format.type != kIdleBlock.type() || !has_error(lanes);
}

// False: not a block of the standard.
bool try_decode(const Block& block, Lanes& out) {
  if (block.is_data()) return out = {block.payload, 0}, true;
  if (!block.is_control()) return false;
  const Format* const format = format_of(block.type());
  if (format == nullptr) return false;
  for (unsigned i = 0; i < 8; ++i) {
    const Code* code = nullptr;
    switch (format->lanes[i]) {
      case 'D': out.set(i, static_cast<std::uint8_t>(block.payload >> data_bit(*format, i)), false); continue;
      case 'S': out.set(i, lane::kStart, true); continue;
      case 'T': out.set(i, lane::kTerminate, true); continue;
      case 'O': code = by_bits(kOrderedSetCodes, block.payload >> ordered_set_bit(i) & 0xf); break;
      default: code = by_bits(kControlCodes, block.payload >> control_bit(i) & 0x7f);
    }
    if (code == nullptr) return false;
    out.set(i, code->first, true);
  }
  return is_legal(*format, out);
}

}  // namespace

Block encode(const Lanes& lanes) {
  if (lanes.control == 0) return {Sync::kData, lanes.data};
  const auto format = std::find_if(kFormats.begin(), kFormats.end(), [&](const Format& f) { return fits(f, lanes); });
  const bool is_error = lanes == kErrorLanes;
  if (!is_error && (format == kFormats.end() || !is_legal(*format, lanes))) return encode(kErrorLanes);
  std::uint64_t payload = format->type;
  for (unsigned i = 0; i < 8; ++i) {
    const std::uint8_t byte = lanes.lane(i);
    switch (format->lanes[i]) {
      case 'D': payload |= std::uint64_t{byte} << data_bit(*format, i); break;
      case 'O': payload |= std::uint64_t{by_character(kOrderedSetCodes, byte)->second} << ordered_set_bit(i); break;
      case 'C': payload |= std::uint64_t{by_character(kControlCodes, byte)->second} << control_bit(i); break;
      default: break;  // /S/ and /T/ are in the type
    }
  }
  return {Sync::kControl, payload};
}

Lanes decode(const Block& block) {
  Lanes out;
  return try_decode(block, out) ? out : kErrorLanes;
}

BlockClass class_of(const Block& block) {
  Lanes lanes;
  if (!try_decode(block, lanes)) return BlockClass::kInvalid;
  if (block.is_data()) return BlockClass::kData;
  const std::uint8_t type = block.type();
  if (type >= 0x87) return BlockClass::kTerminate;
  return type == 0x33 || type == 0x66 || type == 0x78 ? BlockClass::kStart : BlockClass::kControl;
}

bool StreamRule::accept(const Block& block) {
  switch (class_of(block)) {
    case BlockClass::kData: return in_frame_;
    case BlockClass::kControl: return !std::exchange(in_frame_, false);
    case BlockClass::kStart: return !std::exchange(in_frame_, true);
    case BlockClass::kTerminate: return std::exchange(in_frame_, false);
    case BlockClass::kInvalid: break;
  }
  in_frame_ = false;
  return false;
}

void LaneWriter::put(std::uint8_t byte, bool is_control, std::vector<Lanes>& out) {
  lanes_.set(at_, byte, is_control);
  if (++at_ < 8) return;
  out.push_back(lanes_);
  at_ = 0;
}

void LaneWriter::frame(ByteView bytes, std::vector<Lanes>& out) {
  while (gap_ < 12 || at_ % 4 != 0) {
    put(lane::kIdle, true, out);
    ++gap_;
  }
  put(lane::kStart, true, out);
  for (int i = 0; i < 6; ++i) put(0x55, false, out);
  put(0xd5, false, out);
  for (const std::uint8_t byte : bytes) put(byte, false, out);
  put(lane::kTerminate, true, out);
  gap_ = 1;
}

void LaneWriter::idle(std::vector<Lanes>& out) {
  do {
    put(lane::kIdle, true, out);
    ++gap_;
  } while (at_ != 0);
}

void LaneReader::take(const Lanes& lanes, std::vector<std::vector<std::uint8_t>>& out) {
  constexpr std::size_t kPreamble = 7;
  for (unsigned i = 0; i < 8; ++i) {
    const std::uint8_t byte = lanes.lane(i);
    if (!lanes.is_control(i)) {
      if (open_) frame_.push_back(byte);
      continue;
    }
    if (open_ && byte == lane::kTerminate && frame_.size() >= kPreamble) {
      out.emplace_back(frame_.begin() + kPreamble, frame_.end());
    } else if (open_) {
      ++broken_;
    }
    open_ = byte == lane::kStart;
    frame_.clear();
  }
}

}  // namespace sluice::edm
