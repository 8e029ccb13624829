// BTH opcodes, and the one table that says what each means and which extended headers follow it, in which order.
//
// Invariant:  opcode_traits(code).valid is false for every code that is not an Opcode; then nothing else in it counts.
// Source:     IBTA vol. 1 §9.2.1, table 38; A17.9 (CNP); ARCHITECTURE.md "What real NICs do" (ConnectX masked compare and swap).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice::wire {

enum class Opcode : std::uint8_t {
  kRcSendFirst = 0x00,
  kRcSendMiddle = 0x01,
  kRcSendLast = 0x02,
  kRcSendLastImmediate = 0x03,
  kRcSendOnly = 0x04,
  kRcSendOnlyImmediate = 0x05,
  kRcWriteFirst = 0x06,
  kRcWriteMiddle = 0x07,
  kRcWriteLast = 0x08,
  kRcWriteLastImmediate = 0x09,
  kRcWriteOnly = 0x0A,
  kRcWriteOnlyImmediate = 0x0B,
  kRcReadRequest = 0x0C,
  kRcReadResponseFirst = 0x0D,
  kRcReadResponseMiddle = 0x0E,
  kRcReadResponseLast = 0x0F,
  kRcReadResponseOnly = 0x10,
  kRcAcknowledge = 0x11,
  kRcAtomicAcknowledge = 0x12,
  kRcCompareSwap = 0x13,
  kRcFetchAdd = 0x14,
  kRcSendLastInvalidate = 0x16,
  kRcSendOnlyInvalidate = 0x17,
  kRcMaskedCompareSwap = 0x18,  // ConnectX: a code that IBTA leaves reserved

  kUcSendFirst = 0x20,
  kUcSendMiddle = 0x21,
  kUcSendLast = 0x22,
  kUcSendLastImmediate = 0x23,
  kUcSendOnly = 0x24,
  kUcSendOnlyImmediate = 0x25,
  kUcWriteFirst = 0x26,
  kUcWriteMiddle = 0x27,
  kUcWriteLast = 0x28,
  kUcWriteLastImmediate = 0x29,
  kUcWriteOnly = 0x2A,
  kUcWriteOnlyImmediate = 0x2B,

  kUdSendOnly = 0x64,
  kUdSendOnlyImmediate = 0x65,

  kCnp = 0x81,  // congestion notification: the receiver of marked packets tells their sender
};

enum class Transport : std::uint8_t { kRc, kUc, kUd, kCnp };

enum class Kind : std::uint8_t {
  kSend,
  kWrite,
  kReadRequest,
  kReadResponse,
  kAcknowledge,
  kAtomicAcknowledge,
  kCompareSwap,
  kFetchAdd,
  kMaskedCompareSwap,
  kCnp,
};

// Where a packet stands in its message.
enum class Position : std::uint8_t { kFirst, kMiddle, kLast, kOnly };

enum class Extended : std::uint8_t {
  kNone,
  kReth,
  kAeth,
  kAtomicEth,
  kAtomicAckEth,
  kImmDt,
  kIeth,
  kDeth,
  kMaskedAtomicEth,
  kCnpReserved,
};

constexpr std::uint8_t extended_size(Extended e) {
  switch (e) {
    case Extended::kNone: return 0;
    case Extended::kReth: return 16;
    case Extended::kAeth: return 4;
    case Extended::kAtomicEth: return 28;
    case Extended::kAtomicAckEth: return 8;
    case Extended::kImmDt: return 4;
    case Extended::kIeth: return 4;
    case Extended::kDeth: return 8;
    case Extended::kMaskedAtomicEth: return 44;
    case Extended::kCnpReserved: return 16;
  }
  return 0;
}

struct OpcodeTraits {
  bool valid = false;
  bool is_request = false;  // goes from requester to responder
  bool has_payload = false;
  Transport transport = Transport::kRc;
  Kind kind = Kind::kSend;
  Position position = Position::kOnly;
  std::array<Extended, 2> extended{};  // in the order of the wire
  std::uint8_t extended_length = 0;    // of both together
  std::string_view name{};             // as IBTA spells it

  constexpr bool has(Extended e) const { return extended[0] == e || extended[1] == e; }
  // From the first byte after the BTH to header `e`. REQUIRES: has(e).
  constexpr std::size_t offset_of(Extended e) const { return extended[0] == e ? 0 : extended_size(extended[0]); }
  constexpr bool starts_message() const { return position == Position::kFirst || position == Position::kOnly; }
  constexpr bool ends_message() const { return position == Position::kLast || position == Position::kOnly; }
  constexpr bool is_atomic() const {
    return kind == Kind::kCompareSwap || kind == Kind::kFetchAdd || kind == Kind::kMaskedCompareSwap;
  }
};

namespace detail {

struct OpcodeRow {
  Opcode opcode;
  std::string_view name;
  Transport transport;
  Kind kind;
  Position position;
  Extended first = Extended::kNone;
  Extended second = Extended::kNone;
};

consteval std::array<OpcodeTraits, 256> make_opcode_table() {  // NOLINT(readability-function-size): it is a table
  using enum Opcode;
  using enum Position;
  using E = Extended;
  using K = Kind;
  constexpr Transport rc = Transport::kRc;
  constexpr Transport uc = Transport::kUc;
  constexpr Transport ud = Transport::kUd;
  const OpcodeRow rows[] = {
      {kRcSendFirst, "RC SEND_FIRST", rc, K::kSend, kFirst},
      {kRcSendMiddle, "RC SEND_MIDDLE", rc, K::kSend, kMiddle},
      {kRcSendLast, "RC SEND_LAST", rc, K::kSend, kLast},
      {kRcSendLastImmediate, "RC SEND_LAST_IMMEDIATE", rc, K::kSend, kLast, E::kImmDt},
      {kRcSendOnly, "RC SEND_ONLY", rc, K::kSend, kOnly},
      {kRcSendOnlyImmediate, "RC SEND_ONLY_IMMEDIATE", rc, K::kSend, kOnly, E::kImmDt},
      {kRcWriteFirst, "RC RDMA_WRITE_FIRST", rc, K::kWrite, kFirst, E::kReth},
      {kRcWriteMiddle, "RC RDMA_WRITE_MIDDLE", rc, K::kWrite, kMiddle},
      {kRcWriteLast, "RC RDMA_WRITE_LAST", rc, K::kWrite, kLast},
      {kRcWriteLastImmediate, "RC RDMA_WRITE_LAST_IMMEDIATE", rc, K::kWrite, kLast, E::kImmDt},
      {kRcWriteOnly, "RC RDMA_WRITE_ONLY", rc, K::kWrite, kOnly, E::kReth},
      {kRcWriteOnlyImmediate, "RC RDMA_WRITE_ONLY_IMMEDIATE", rc, K::kWrite, kOnly, E::kReth, E::kImmDt},
      {kRcReadRequest, "RC RDMA_READ_REQUEST", rc, K::kReadRequest, kOnly, E::kReth},
      {kRcReadResponseFirst, "RC RDMA_READ_RESPONSE_FIRST", rc, K::kReadResponse, kFirst, E::kAeth},
      {kRcReadResponseMiddle, "RC RDMA_READ_RESPONSE_MIDDLE", rc, K::kReadResponse, kMiddle},
      {kRcReadResponseLast, "RC RDMA_READ_RESPONSE_LAST", rc, K::kReadResponse, kLast, E::kAeth},
      {kRcReadResponseOnly, "RC RDMA_READ_RESPONSE_ONLY", rc, K::kReadResponse, kOnly, E::kAeth},
      {kRcAcknowledge, "RC ACKNOWLEDGE", rc, K::kAcknowledge, kOnly, E::kAeth},
      {kRcAtomicAcknowledge, "RC ATOMIC_ACKNOWLEDGE", rc, K::kAtomicAcknowledge, kOnly, E::kAeth, E::kAtomicAckEth},
      {kRcCompareSwap, "RC COMPARE_SWAP", rc, K::kCompareSwap, kOnly, E::kAtomicEth},
      {kRcFetchAdd, "RC FETCH_ADD", rc, K::kFetchAdd, kOnly, E::kAtomicEth},
      {kRcSendLastInvalidate, "RC SEND_LAST_INVALIDATE", rc, K::kSend, kLast, E::kIeth},
      {kRcSendOnlyInvalidate, "RC SEND_ONLY_INVALIDATE", rc, K::kSend, kOnly, E::kIeth},
      {kRcMaskedCompareSwap, "RC MASKED_COMPARE_SWAP", rc, K::kMaskedCompareSwap, kOnly, E::kMaskedAtomicEth},
      {kUcSendFirst, "UC SEND_FIRST", uc, K::kSend, kFirst},
      {kUcSendMiddle, "UC SEND_MIDDLE", uc, K::kSend, kMiddle},
      {kUcSendLast, "UC SEND_LAST", uc, K::kSend, kLast},
      {kUcSendLastImmediate, "UC SEND_LAST_IMMEDIATE", uc, K::kSend, kLast, E::kImmDt},
      {kUcSendOnly, "UC SEND_ONLY", uc, K::kSend, kOnly},
      {kUcSendOnlyImmediate, "UC SEND_ONLY_IMMEDIATE", uc, K::kSend, kOnly, E::kImmDt},
      {kUcWriteFirst, "UC RDMA_WRITE_FIRST", uc, K::kWrite, kFirst, E::kReth},
      {kUcWriteMiddle, "UC RDMA_WRITE_MIDDLE", uc, K::kWrite, kMiddle},
      {kUcWriteLast, "UC RDMA_WRITE_LAST", uc, K::kWrite, kLast},
      {kUcWriteLastImmediate, "UC RDMA_WRITE_LAST_IMMEDIATE", uc, K::kWrite, kLast, E::kImmDt},
      {kUcWriteOnly, "UC RDMA_WRITE_ONLY", uc, K::kWrite, kOnly, E::kReth},
      {kUcWriteOnlyImmediate, "UC RDMA_WRITE_ONLY_IMMEDIATE", uc, K::kWrite, kOnly, E::kReth, E::kImmDt},
      {kUdSendOnly, "UD SEND_ONLY", ud, K::kSend, kOnly, E::kDeth},
      {kUdSendOnlyImmediate, "UD SEND_ONLY_IMMEDIATE", ud, K::kSend, kOnly, E::kDeth, E::kImmDt},
      {kCnp, "CNP", Transport::kCnp, K::kCnp, kOnly, E::kCnpReserved},
  };
  std::array<OpcodeTraits, 256> table{};
  for (const OpcodeRow& row : rows) {
    const bool answers =
        row.kind == K::kReadResponse || row.kind == K::kAcknowledge || row.kind == K::kAtomicAcknowledge;
    table[static_cast<std::uint8_t>(row.opcode)] = {
        .valid = true,
        .is_request = !answers && row.kind != K::kCnp,
        .has_payload = row.kind == K::kSend || row.kind == K::kWrite || row.kind == K::kReadResponse,
        .transport = row.transport,
        .kind = row.kind,
        .position = row.position,
        .extended = {row.first, row.second},
        .extended_length = static_cast<std::uint8_t>(extended_size(row.first) + extended_size(row.second)),
        .name = row.name};
  }
  return table;
}

}  // namespace detail

inline constexpr std::array<OpcodeTraits, 256> kOpcodeTable = detail::make_opcode_table();

constexpr const OpcodeTraits& opcode_traits(std::uint8_t code) { return kOpcodeTable[code]; }
constexpr const OpcodeTraits& opcode_traits(Opcode opcode) { return kOpcodeTable[static_cast<std::uint8_t>(opcode)]; }

}  // namespace sluice::wire
