#include "edm/memory_blocks.h"

#include "base/check.h"

namespace sluice::edm {
namespace {

constexpr std::array<std::uint8_t, 256> make_crc8() {
  std::array<std::uint8_t, 256> table{};
  for (unsigned i = 0; i < 256; ++i) {
    unsigned crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc << 1 ^ ((crc & 0x80) != 0 ? 0x07u : 0u)) & 0xff;
    table[i] = static_cast<std::uint8_t>(crc);
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> make_crc32c() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr auto kCrc8 = make_crc8();
constexpr auto kCrc32c = make_crc32c();

// Of bits 0 to 55; all ones at first, so that a block of zeros is wrong.
std::uint64_t crc8(std::uint64_t payload) {
  std::uint8_t crc = 0xff;
  for (int byte = 0; byte < 7; ++byte) crc = kCrc8[crc ^ (payload >> 8 * byte & 0xff)];
  return crc;
}
std::uint32_t crc32c(std::uint32_t crc, std::uint64_t payload) {
  for (int byte = 0; byte < 8; ++byte) crc = crc >> 8 ^ kCrc32c[(crc ^ payload >> 8 * byte) & 0xff];
  return crc;
}

constexpr unsigned kKindAt = 8;
constexpr unsigned kPortAt = 11;
constexpr unsigned kIdAt = 20;
constexpr unsigned kBytesAt = 28;
constexpr unsigned kBytesBits = 24;
constexpr unsigned kAnswerBytesBits = 15;  // where `to` follows
constexpr unsigned kToAt = 43;
constexpr unsigned kLineAt = 28;
constexpr unsigned kOpAt = 52;
constexpr unsigned kLastAt = 55;
constexpr unsigned kCrc32At = 8;
constexpr unsigned kShortAddressAt = 8;
constexpr unsigned kShortAddressBits = 48;
constexpr unsigned kCrc8At = 56;
constexpr std::uint64_t kMore = 1;  // op of a write

std::uint64_t field(std::uint64_t payload, unsigned at, unsigned bits) {
  return payload >> at & ((std::uint64_t{1} << bits) - 1);
}

Block sealed(MemoryBlock type, std::uint64_t rest) {
  const std::uint64_t payload = rest | static_cast<std::uint64_t>(type);
  return {Sync::kControl, payload | crc8(payload) << kCrc8At};
}

std::uint64_t port_and_id(const Unit& unit) {
  return std::uint64_t{unit.port.value} << kPortAt | std::uint64_t{unit.id.value} << kIdAt;
}

bool has_address(UnitKind kind) {
  return kind == UnitKind::kRead || kind == UnitKind::kWrite || kind == UnitKind::kModify;
}
bool is_answer(UnitKind kind) { return kind == UnitKind::kResponse || kind == UnitKind::kNull; }
bool is_read(UnitKind kind) { return kind == UnitKind::kRead || kind == UnitKind::kReadShort; }
std::uint32_t operand_bytes(ModifyOp op) { return op == ModifyOp::kCompareAndSwap ? 16 : 8; }
PortId to_of(UnitKind kind, std::uint64_t payload) {
  return is_answer(kind) ? PortId(static_cast<std::uint16_t>(field(payload, kToAt, 9))) : PortId{};
}
// That follow the header, address included.
std::size_t payload_bytes(UnitKind kind, ModifyOp op, std::uint32_t bytes) {
  const std::size_t address = has_address(kind) ? 8 : 0;
  if (is_read(kind)) return address;
  if (kind == UnitKind::kModify) return address + operand_bytes(op);
  return address + bytes;
}

void check_fields(const Unit& unit) {
  SLUICE_CHECK(unit.port.value < kMaxPorts && unit.to.value < kMaxPorts && unit.bytes <= kMaxMessageBytes);
  if (unit.kind == UnitKind::kReadLine)
    SLUICE_CHECK(unit.address % kLineBytes == 0 && unit.address / kLineBytes <= kMaxLine);
  if (unit.kind == UnitKind::kReadShort) SLUICE_CHECK(unit.address <= kMaxShortAddress);
  if (unit.kind == UnitKind::kWrite || unit.kind == UnitKind::kResponse)
    SLUICE_CHECK(unit.bytes != 0 && unit.bytes <= kMaxChunkBytes && unit.data.size() == unit.bytes);
  if (unit.kind == UnitKind::kModify)
    SLUICE_CHECK(unit.op != ModifyOp::kNone && unit.data.size() == operand_bytes(unit.op));
  SLUICE_CHECK(!unit.more || unit.kind == UnitKind::kWrite);
}

std::uint64_t word_of(ByteView bytes, std::size_t at) {
  std::array<std::uint8_t, 8> word{};
  std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), std::min<std::size_t>(8, bytes.size() - at),
              word.begin());
  return load_le<std::uint64_t>(word.data());
}

}  // namespace

bool is_memory_control(const Block& block) {
  if (!block.is_control()) return false;
  switch (static_cast<MemoryBlock>(block.type())) {
    case MemoryBlock::kStart:
    case MemoryBlock::kEnd:
    case MemoryBlock::kSingle:
    case MemoryBlock::kNotify:
    case MemoryBlock::kGrant: return true;
  }
  return false;
}

bool checks(const Block& control) { return crc8(control.payload) == control.payload >> kCrc8At; }

bool goes_through(const Block& first) {
  const auto kind = static_cast<UnitKind>(field(first.payload, kKindAt, 3));
  const auto type = static_cast<MemoryBlock>(first.type());
  if (!first.is_control()) return false;
  if (type == MemoryBlock::kStart) return kind == UnitKind::kWrite || kind == UnitKind::kResponse;
  return type == MemoryBlock::kSingle && kind == UnitKind::kNull;
}

PortId destination_of(const Block& first) {
  return PortId(static_cast<std::uint16_t>(field(first.payload, begins_write(first) ? kPortAt : kToAt, 9)));
}

bool begins_write(const Block& first) {
  return first.is_control() && static_cast<MemoryBlock>(first.type()) == MemoryBlock::kStart &&
         static_cast<UnitKind>(field(first.payload, kKindAt, 3)) == UnitKind::kWrite;
}

bool more_follow(const Block& first) { return begins_write(first) && field(first.payload, kOpAt, 3) == kMore; }

UnitKind read_kind(std::uint64_t address, std::uint32_t bytes) {
  if (bytes == kLineBytes && address % kLineBytes == 0 && address / kLineBytes <= kMaxLine) return UnitKind::kReadLine;
  return address <= kMaxShortAddress ? UnitKind::kReadShort : UnitKind::kRead;
}

std::size_t unit_blocks(const Unit& unit) {
  switch (unit.kind) {
    case UnitKind::kReadLine:
    case UnitKind::kNull:
    case UnitKind::kNotify:
    case UnitKind::kGrant: return 1;
    default: return 2 + (payload_bytes(unit.kind, unit.op, unit.bytes) + 7) / 8;
  }
}

std::size_t write_unit(const Unit& unit, std::span<Block> out) {
  check_fields(unit);
  const std::uint64_t kind = static_cast<std::uint64_t>(unit.kind);
  const std::uint64_t common = port_and_id(unit);
  const std::uint64_t bytes = std::uint64_t{unit.bytes} << kBytesAt;
  const std::uint64_t last = std::uint64_t{unit.last} << kLastAt;
  const std::uint64_t to = is_answer(unit.kind) ? std::uint64_t{unit.to.value} << kToAt : 0;
  switch (unit.kind) {
    case UnitKind::kReadLine:
      out[0] = sealed(MemoryBlock::kSingle, common | kind << kKindAt | unit.address / kLineBytes << kLineAt);
      return 1;
    case UnitKind::kNull: out[0] = sealed(MemoryBlock::kSingle, common | kind << kKindAt | to); return 1;
    case UnitKind::kNotify: out[0] = sealed(MemoryBlock::kNotify, common | bytes); return 1;
    case UnitKind::kGrant:
      out[0] = sealed(MemoryBlock::kGrant, common | bytes | last | std::uint64_t{unit.of_response} << kKindAt);
      return 1;
    default: break;
  }
  std::size_t n = 0;
  std::uint32_t crc = ~0u;
  const auto put = [&](const Block& block) {
    crc = crc32c(crc, block.payload);
    out[n++] = block;
  };
  const std::uint64_t op = unit.more ? kMore : static_cast<std::uint64_t>(unit.op);
  put(sealed(MemoryBlock::kStart, common | kind << kKindAt | bytes | to | op << kOpAt | last));
  if (unit.kind == UnitKind::kReadShort) {
    out[n++] = sealed(MemoryBlock::kEnd, unit.address << kShortAddressAt);
    return n;
  }
  if (has_address(unit.kind)) put({Sync::kData, unit.address});
  if (unit.kind != UnitKind::kRead) {
    for (std::size_t at = 0; at < unit.data.size(); at += 8) put({Sync::kData, word_of(unit.data, at)});
  }
  out[n++] = sealed(MemoryBlock::kEnd, std::uint64_t{~crc} << kCrc32At);
  return n;
}

std::string_view to_string(UnitVerdict verdict) {
  switch (verdict) {
    case UnitVerdict::kMore: return "more";
    case UnitVerdict::kWhole: return "whole";
    case UnitVerdict::kBadCheck: return "bad check";
    case UnitVerdict::kBadKind: return "bad kind";
    case UnitVerdict::kBadLength: return "bad length";
    case UnitVerdict::kOutOfPlace: return "out of place";
    case UnitVerdict::kCount: break;
  }
  return "?";
}

UnitVerdict UnitReader::take(const Block& block) {
  if (block.is_data()) {
    if (!inside_) return UnitVerdict::kOutOfPlace;
    if (size_ + 8 > (wanted_ + 7) / 8 * 8) {
      inside_ = false;
      return UnitVerdict::kBadLength;
    }
    crc_ = crc32c(crc_, block.payload);
    store_le(bytes_.data() + size_, block.payload);
    size_ += 8;
    return UnitVerdict::kMore;
  }
  if (!checks(block) || !is_memory_control(block)) {
    inside_ = false;
    return UnitVerdict::kBadCheck;
  }
  switch (static_cast<MemoryBlock>(block.type())) {
    case MemoryBlock::kStart: return begin(block.payload);
    case MemoryBlock::kEnd: return end(block.payload);
    default: return single(block.payload);
  }
}

UnitVerdict UnitReader::begin(std::uint64_t payload) {
  const bool was_inside = inside_;
  const auto kind = static_cast<UnitKind>(field(payload, kKindAt, 3));
  const auto op = static_cast<ModifyOp>(field(payload, kOpAt, 3));
  const unsigned bytes_bits = is_answer(kind) ? kAnswerBytesBits : kBytesBits;
  const auto bytes = static_cast<std::uint32_t>(field(payload, kBytesAt, bytes_bits));
  const bool carries = kind == UnitKind::kWrite || kind == UnitKind::kResponse;
  inside_ = false;
  if (!is_read(kind) && kind != UnitKind::kModify && !carries) return UnitVerdict::kBadKind;
  const bool known_op = op >= ModifyOp::kCompareAndSwap && op <= ModifyOp::kSwap;
  const bool more = kind == UnitKind::kWrite && static_cast<std::uint64_t>(op) == kMore;
  if (kind == UnitKind::kModify ? !known_op : !more && op != ModifyOp::kNone) return UnitVerdict::kBadKind;
  if (carries && (bytes == 0 || bytes > kMaxChunkBytes)) return UnitVerdict::kBadLength;
  open_ = {.kind = kind,
           .port = PortId(static_cast<std::uint16_t>(field(payload, kPortAt, 9))),
           .to = to_of(kind, payload),
           .id = MessageId(static_cast<std::uint8_t>(field(payload, kIdAt, 8))),
           .bytes = bytes,
           .op = more ? ModifyOp::kNone : op,
           .last = field(payload, kLastAt, 1) != 0,
           .more = more,
           .data = {}};
  wanted_ = payload_bytes(kind, op, bytes);
  size_ = 0;
  crc_ = crc32c(~0u, payload);
  inside_ = true;
  return was_inside ? UnitVerdict::kOutOfPlace : UnitVerdict::kMore;
}

UnitVerdict UnitReader::end(std::uint64_t payload) {
  if (!inside_) return UnitVerdict::kOutOfPlace;
  inside_ = false;
  if (size_ != (wanted_ + 7) / 8 * 8) return UnitVerdict::kBadLength;
  if (open_.kind == UnitKind::kReadShort) {
    unit_ = open_;
    unit_.address = field(payload, kShortAddressAt, kShortAddressBits);
    return UnitVerdict::kWhole;
  }
  if (field(payload, kCrc32At, 32) != static_cast<std::uint32_t>(~crc_)) return UnitVerdict::kBadCheck;
  const std::size_t address = has_address(open_.kind) ? 8 : 0;
  unit_ = open_;
  if (address != 0) unit_.address = load_le<std::uint64_t>(bytes_.data());
  unit_.data = ByteView(bytes_).subspan(address, wanted_ - address);
  return UnitVerdict::kWhole;
}

// /N/, /G/ and /MST/ may stand inside a message, which goes on behind them.
UnitVerdict UnitReader::single(std::uint64_t payload) {
  const auto type = static_cast<MemoryBlock>(payload & 0xff);
  unit_ = {.port = PortId(static_cast<std::uint16_t>(field(payload, kPortAt, 9))),
           .id = MessageId(static_cast<std::uint8_t>(field(payload, kIdAt, 8))),
           .data = {}};
  if (type == MemoryBlock::kSingle) {
    unit_.kind = static_cast<UnitKind>(field(payload, kKindAt, 3));
    if (unit_.kind == UnitKind::kReadLine) {
      unit_.bytes = kLineBytes;
      unit_.address = field(payload, kLineAt, 28) * kLineBytes;
      return UnitVerdict::kWhole;
    }
    unit_.to = to_of(unit_.kind, payload);
    return unit_.kind == UnitKind::kNull ? UnitVerdict::kWhole : UnitVerdict::kBadKind;
  }
  unit_.kind = type == MemoryBlock::kNotify ? UnitKind::kNotify : UnitKind::kGrant;
  unit_.bytes = static_cast<std::uint32_t>(field(payload, kBytesAt, kBytesBits));
  if (type == MemoryBlock::kGrant) {
    unit_.of_response = field(payload, kKindAt, 1) != 0;
    unit_.last = field(payload, kLastAt, 1) != 0;
  }
  return UnitVerdict::kWhole;
}

}  // namespace sluice::edm
