// The base transport header and the extended headers that may follow it, as values in host order.
//
// Invariant:  write(parse(x)) == x for any bytes, reserved bits included.
// Source:     IBTA vol. 1 §9.2 (BTH), §9.3 (extended headers), §9.7.5.2 (AETH syndrome); A17.9.2 (FECN, BECN).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/time.h"
#include "wire/opcode.h"
#include "wire/types.h"

namespace sluice::wire {

inline constexpr std::size_t kIcrcSize = 4;

struct Bth {
  static constexpr std::size_t kSize = 12;
  Opcode opcode{};  // from the wire it may be any value: see opcode_traits
  bool solicited = false;
  bool migrated = true;  // MigReq: ConnectX sends 1, rxe 0
  std::uint8_t pad_count = 0;
  std::uint8_t version = 0;
  std::uint16_t pkey = kDefaultPkey;
  bool fecn = false;
  bool becn = false;
  std::uint8_t reserved6 = 0;
  Qpn destination{};
  bool ack_request = false;
  std::uint8_t reserved7 = 0;
  Psn psn{};

  static Bth parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const Bth&, const Bth&) = default;
};

// RDMA: first packet of a WRITE, and READ requests.
struct Reth {
  static constexpr std::size_t kSize = extended_size(Extended::kReth);
  static constexpr Extended kExtended = Extended::kReth;
  std::uint64_t virtual_address = 0;
  RKey rkey{};
  std::uint32_t length = 0;  // of the whole message

  static Reth parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const Reth&, const Reth&) = default;
};

enum class NakCode : std::uint8_t {
  kPsnSequenceError = 0,
  kInvalidRequest = 1,
  kRemoteAccessError = 2,
  kRemoteOperationalError = 3,
  kInvalidRdRequest = 4,
};
std::string_view to_string(NakCode code);

// ACK: all that a responder says besides data. The syndrome byte holds a type and five bits whose meaning it decides.
struct Aeth {
  static constexpr std::size_t kSize = extended_size(Extended::kAeth);
  static constexpr Extended kExtended = Extended::kAeth;
  enum class Type : std::uint8_t { kAck = 0, kRnrNak = 1, kReserved = 2, kNak = 3 };
  static constexpr std::uint8_t kNoCredits = 0x1F;  // of an ACK: the responder does not count credits

  std::uint8_t syndrome = kNoCredits;
  std::uint32_t msn = 0;  // 24 bits: messages completed by the responder

  static constexpr Aeth ack(std::uint32_t msn, std::uint8_t credit_code = kNoCredits) {
    return {static_cast<std::uint8_t>(credit_code & 0x1F), msn};
  }
  static constexpr Aeth rnr_nak(std::uint32_t msn, std::uint8_t timer_code) {
    return {static_cast<std::uint8_t>(0x20 | (timer_code & 0x1F)), msn};
  }
  static constexpr Aeth nak(std::uint32_t msn, NakCode code) {
    return {static_cast<std::uint8_t>(0x60 | static_cast<std::uint8_t>(code)), msn};
  }

  constexpr Type type() const { return static_cast<Type>(syndrome >> 5 & 3); }
  constexpr std::uint8_t value() const { return syndrome & 0x1F; }
  constexpr bool is_ack() const { return type() == Type::kAck; }
  constexpr bool is_rnr_nak() const { return type() == Type::kRnrNak; }
  constexpr bool is_nak() const { return type() == Type::kNak; }
  constexpr bool has_credits() const { return is_ack() && value() != kNoCredits; }
  // Receive WQEs that the responder has ready beyond `msn`. REQUIRES: has_credits().
  std::uint32_t credits() const;
  // How long to wait before trying again. REQUIRES: is_rnr_nak().
  Duration rnr_delay() const;
  // REQUIRES: is_nak(). May be a value outside the enum.
  constexpr NakCode nak_code() const { return static_cast<NakCode>(value()); }

  static Aeth parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const Aeth&, const Aeth&) = default;
};

// The five-bit codes of IBTA tables 45 and 46. REQUIRES: code < 32; for credits, not kNoCredits.
Duration rnr_delay_of(std::uint8_t timer_code);
std::uint32_t credits_of(std::uint8_t credit_code);
// The code of the greatest credit count that does not exceed `credits`.
std::uint8_t credit_code_of(std::uint32_t credits);
// The code of the smallest delay that is at least `delay` (the longest delay when none is).
std::uint8_t rnr_timer_code_of(Duration delay);

// COMPARE_SWAP and FETCH_ADD requests.
struct AtomicEth {
  static constexpr std::size_t kSize = extended_size(Extended::kAtomicEth);
  static constexpr Extended kExtended = Extended::kAtomicEth;
  std::uint64_t virtual_address = 0;
  RKey rkey{};
  std::uint64_t swap_or_add = 0;
  std::uint64_t compare = 0;

  static AtomicEth parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const AtomicEth&, const AtomicEth&) = default;
};

// ConnectX's masked COMPARE_SWAP: where compare_mask is set the old value must equal `compare`; then `swap` replaces
// the bits of swap_mask. The order of the two masks is the one of mlx5 work-queue segments: no capture tells it.
struct MaskedAtomicEth {
  static constexpr std::size_t kSize = extended_size(Extended::kMaskedAtomicEth);
  static constexpr Extended kExtended = Extended::kMaskedAtomicEth;
  std::uint64_t virtual_address = 0;
  RKey rkey{};
  std::uint64_t swap = 0;
  std::uint64_t compare = 0;
  std::uint64_t swap_mask = 0;
  std::uint64_t compare_mask = 0;

  static MaskedAtomicEth parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const MaskedAtomicEth&, const MaskedAtomicEth&) = default;
};

// The answer to an atomic: the value that was there before.
struct AtomicAckEth {
  static constexpr std::size_t kSize = extended_size(Extended::kAtomicAckEth);
  static constexpr Extended kExtended = Extended::kAtomicAckEth;
  std::uint64_t original = 0;

  static AtomicAckEth parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const AtomicAckEth&, const AtomicAckEth&) = default;
};

struct ImmDt {
  static constexpr std::size_t kSize = extended_size(Extended::kImmDt);
  static constexpr Extended kExtended = Extended::kImmDt;
  std::uint32_t immediate = 0;  // verbs hands it over in network order; here it is a number

  static ImmDt parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const ImmDt&, const ImmDt&) = default;
};

// SEND with invalidate: the key that the responder takes back.
struct Ieth {
  static constexpr std::size_t kSize = extended_size(Extended::kIeth);
  static constexpr Extended kExtended = Extended::kIeth;
  RKey rkey{};

  static Ieth parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const Ieth&, const Ieth&) = default;
};

// Datagrams: the key that the receiving QP asks for, and who sends.
struct Deth {
  static constexpr std::size_t kSize = extended_size(Extended::kDeth);
  static constexpr Extended kExtended = Extended::kDeth;
  QKey qkey{};
  std::uint8_t reserved = 0;
  Qpn source{};

  static Deth parse(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
  friend bool operator==(const Deth&, const Deth&) = default;
};

// ---- byte layouts; inline because the data path reads and writes them a packet ----

inline Bth Bth::parse(const std::uint8_t* p) {
  return {.opcode = static_cast<Opcode>(p[0]),
          .solicited = (p[1] & 0x80) != 0,
          .migrated = (p[1] & 0x40) != 0,
          .pad_count = static_cast<std::uint8_t>(p[1] >> 4 & 3),
          .version = static_cast<std::uint8_t>(p[1] & 0xF),
          .pkey = load_be<std::uint16_t>(p + 2),
          .fecn = (p[4] & 0x80) != 0,
          .becn = (p[4] & 0x40) != 0,
          .reserved6 = static_cast<std::uint8_t>(p[4] & 0x3F),
          .destination = Qpn(load_be24(p + 5)),
          .ack_request = (p[8] & 0x80) != 0,
          .reserved7 = static_cast<std::uint8_t>(p[8] & 0x7F),
          .psn = Psn(load_be24(p + 9))};
}

inline void Bth::write(std::uint8_t* p) const {
  p[0] = static_cast<std::uint8_t>(opcode);
  p[1] = static_cast<std::uint8_t>((solicited ? 0x80 : 0) | (migrated ? 0x40 : 0) | (pad_count & 3) << 4 |
                                   (version & 0xF));
  store_be(p + 2, pkey);
  p[4] = static_cast<std::uint8_t>((fecn ? 0x80 : 0) | (becn ? 0x40 : 0) | (reserved6 & 0x3F));
  store_be24(p + 5, destination.value);
  p[8] = static_cast<std::uint8_t>((ack_request ? 0x80 : 0) | (reserved7 & 0x7F));
  store_be24(p + 9, psn.value());
}

inline Reth Reth::parse(const std::uint8_t* p) {
  return {.virtual_address = load_be<std::uint64_t>(p),
          .rkey = RKey(load_be<std::uint32_t>(p + 8)),
          .length = load_be<std::uint32_t>(p + 12)};
}

inline void Reth::write(std::uint8_t* p) const {
  store_be(p, virtual_address);
  store_be(p + 8, rkey.value);
  store_be(p + 12, length);
}

inline Aeth Aeth::parse(const std::uint8_t* p) { return {.syndrome = p[0], .msn = load_be24(p + 1)}; }

inline void Aeth::write(std::uint8_t* p) const {
  p[0] = syndrome;
  store_be24(p + 1, msn);
}

inline AtomicEth AtomicEth::parse(const std::uint8_t* p) {
  return {.virtual_address = load_be<std::uint64_t>(p),
          .rkey = RKey(load_be<std::uint32_t>(p + 8)),
          .swap_or_add = load_be<std::uint64_t>(p + 12),
          .compare = load_be<std::uint64_t>(p + 20)};
}

inline void AtomicEth::write(std::uint8_t* p) const {
  store_be(p, virtual_address);
  store_be(p + 8, rkey.value);
  store_be(p + 12, swap_or_add);
  store_be(p + 20, compare);
}

inline MaskedAtomicEth MaskedAtomicEth::parse(const std::uint8_t* p) {
  return {.virtual_address = load_be<std::uint64_t>(p),
          .rkey = RKey(load_be<std::uint32_t>(p + 8)),
          .swap = load_be<std::uint64_t>(p + 12),
          .compare = load_be<std::uint64_t>(p + 20),
          .swap_mask = load_be<std::uint64_t>(p + 28),
          .compare_mask = load_be<std::uint64_t>(p + 36)};
}

inline void MaskedAtomicEth::write(std::uint8_t* p) const {
  store_be(p, virtual_address);
  store_be(p + 8, rkey.value);
  store_be(p + 12, swap);
  store_be(p + 20, compare);
  store_be(p + 28, swap_mask);
  store_be(p + 36, compare_mask);
}

inline AtomicAckEth AtomicAckEth::parse(const std::uint8_t* p) { return {.original = load_be<std::uint64_t>(p)}; }

inline void AtomicAckEth::write(std::uint8_t* p) const { store_be(p, original); }

inline ImmDt ImmDt::parse(const std::uint8_t* p) { return {.immediate = load_be<std::uint32_t>(p)}; }

inline void ImmDt::write(std::uint8_t* p) const { store_be(p, immediate); }

inline Ieth Ieth::parse(const std::uint8_t* p) { return {.rkey = RKey(load_be<std::uint32_t>(p))}; }

inline void Ieth::write(std::uint8_t* p) const { store_be(p, rkey.value); }

inline Deth Deth::parse(const std::uint8_t* p) {
  return {.qkey = QKey(load_be<std::uint32_t>(p)), .reserved = p[4], .source = Qpn(load_be24(p + 5))};
}

inline void Deth::write(std::uint8_t* p) const {
  store_be(p, qkey.value);
  p[4] = reserved;
  store_be24(p + 5, source.value);
}

}  // namespace sluice::wire
