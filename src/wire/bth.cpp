#include "wire/bth.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"

namespace sluice::wire {
namespace {

// IBTA vol. 1 table 45, in units of 10 us; code 0 is the longest.
constexpr std::array<std::uint32_t, 32> kRnrTens = {
    65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
    256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

// IBTA vol. 1 table 46. Code 31 is kNoCredits.
constexpr std::array<std::uint32_t, 31> kCredits = {0,    1,    2,    3,    4,    6,     8,     12,    16,   24,   32,
                                                    48,   64,   96,   128,  192,  256,   384,   512,   768,  1024, 1536,
                                                    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768};

}  // namespace

std::string_view to_string(NakCode code) {
  switch (code) {
    case NakCode::kPsnSequenceError: return "PSN sequence error";
    case NakCode::kInvalidRequest: return "invalid request";
    case NakCode::kRemoteAccessError: return "remote access error";
    case NakCode::kRemoteOperationalError: return "remote operational error";
    case NakCode::kInvalidRdRequest: return "invalid RD request";
  }
  return "reserved code";
}

Bth Bth::parse(const std::uint8_t* p) {
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

void Bth::write(std::uint8_t* p) const {
  p[0] = static_cast<std::uint8_t>(opcode);
  p[1] = static_cast<std::uint8_t>((solicited ? 0x80 : 0) | (migrated ? 0x40 : 0) | (pad_count & 3) << 4 |
                                   (version & 0xF));
  store_be(p + 2, pkey);
  p[4] = static_cast<std::uint8_t>((fecn ? 0x80 : 0) | (becn ? 0x40 : 0) | (reserved6 & 0x3F));
  store_be24(p + 5, destination.value);
  p[8] = static_cast<std::uint8_t>((ack_request ? 0x80 : 0) | (reserved7 & 0x7F));
  store_be24(p + 9, psn.value());
}

Reth Reth::parse(const std::uint8_t* p) {
  return {.virtual_address = load_be<std::uint64_t>(p),
          .rkey = RKey(load_be<std::uint32_t>(p + 8)),
          .length = load_be<std::uint32_t>(p + 12)};
}

void Reth::write(std::uint8_t* p) const {
  store_be(p, virtual_address);
  store_be(p + 8, rkey.value);
  store_be(p + 12, length);
}

Duration rnr_delay_of(std::uint8_t timer_code) { return Duration::microseconds(10) * kRnrTens[timer_code & 0x1F]; }

std::uint32_t credits_of(std::uint8_t credit_code) {
  return kCredits[std::min<std::size_t>(credit_code, kCredits.size() - 1)];
}

std::uint8_t credit_code_of(std::uint32_t credits) {
  const auto* above = std::upper_bound(kCredits.begin(), kCredits.end(), credits);
  return static_cast<std::uint8_t>(above - kCredits.begin() - 1);
}

std::uint8_t rnr_timer_code_of(Duration delay) {
  for (std::uint8_t code = 1; code < kRnrTens.size(); ++code) {
    if (rnr_delay_of(code) >= delay) return code;
  }
  return 0;
}

std::uint32_t Aeth::credits() const { return credits_of(value()); }
Duration Aeth::rnr_delay() const { return rnr_delay_of(value()); }

Aeth Aeth::parse(const std::uint8_t* p) { return {.syndrome = p[0], .msn = load_be24(p + 1)}; }

void Aeth::write(std::uint8_t* p) const {
  p[0] = syndrome;
  store_be24(p + 1, msn);
}

AtomicEth AtomicEth::parse(const std::uint8_t* p) {
  return {.virtual_address = load_be<std::uint64_t>(p),
          .rkey = RKey(load_be<std::uint32_t>(p + 8)),
          .swap_or_add = load_be<std::uint64_t>(p + 12),
          .compare = load_be<std::uint64_t>(p + 20)};
}

void AtomicEth::write(std::uint8_t* p) const {
  store_be(p, virtual_address);
  store_be(p + 8, rkey.value);
  store_be(p + 12, swap_or_add);
  store_be(p + 20, compare);
}

MaskedAtomicEth MaskedAtomicEth::parse(const std::uint8_t* p) {
  return {.virtual_address = load_be<std::uint64_t>(p),
          .rkey = RKey(load_be<std::uint32_t>(p + 8)),
          .swap = load_be<std::uint64_t>(p + 12),
          .compare = load_be<std::uint64_t>(p + 20),
          .swap_mask = load_be<std::uint64_t>(p + 28),
          .compare_mask = load_be<std::uint64_t>(p + 36)};
}

void MaskedAtomicEth::write(std::uint8_t* p) const {
  store_be(p, virtual_address);
  store_be(p + 8, rkey.value);
  store_be(p + 12, swap);
  store_be(p + 20, compare);
  store_be(p + 28, swap_mask);
  store_be(p + 36, compare_mask);
}

AtomicAckEth AtomicAckEth::parse(const std::uint8_t* p) { return {.original = load_be<std::uint64_t>(p)}; }
void AtomicAckEth::write(std::uint8_t* p) const { store_be(p, original); }

ImmDt ImmDt::parse(const std::uint8_t* p) { return {.immediate = load_be<std::uint32_t>(p)}; }
void ImmDt::write(std::uint8_t* p) const { store_be(p, immediate); }

Ieth Ieth::parse(const std::uint8_t* p) { return {.rkey = RKey(load_be<std::uint32_t>(p))}; }
void Ieth::write(std::uint8_t* p) const { store_be(p, rkey.value); }

Deth Deth::parse(const std::uint8_t* p) {
  return {.qkey = QKey(load_be<std::uint32_t>(p)), .reserved = p[4], .source = Qpn(load_be24(p + 5))};
}

void Deth::write(std::uint8_t* p) const {
  store_be(p, qkey.value);
  p[4] = reserved;
  store_be24(p + 5, source.value);
}

}  // namespace sluice::wire
