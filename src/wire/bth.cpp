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

Duration rnr_delay_of(std::uint8_t timer_code) { return Duration::microseconds(10) * kRnrTens[timer_code & 0x1F]; }

std::uint32_t credits_of(std::uint8_t credit_code) {
  return kCredits[std::min<std::size_t>(credit_code, kCredits.size() - 1)];
}

std::uint8_t credit_code_of(std::uint32_t credits) {
  const auto* above = std::upper_bound(kCredits.begin(), kCredits.end(), credits);
  return static_cast<std::uint8_t>(above - kCredits.begin() - 1);
}

std::uint8_t rnr_timer_code_of(Duration delay) {
  for (std::uint32_t i = 1; i < kRnrTens.size(); ++i) {
    const auto code = static_cast<std::uint8_t>(i);
    if (rnr_delay_of(code) >= delay) return code;
  }
  return 0;
}

std::uint32_t Aeth::credits() const { return credits_of(value()); }
Duration Aeth::rnr_delay() const { return rnr_delay_of(value()); }

}  // namespace sluice::wire
