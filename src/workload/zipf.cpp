#include "workload/zipf.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"

namespace sluice::workload {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr int kFractionBits = 48;  // of logarithms
constexpr std::uint64_t kExactRanks = 1u << 16;
constexpr int kSpareBits = 9;  // 2^40 weights of 2^96 have a sum of more than 128 bits

// log2(x) as a fixed-point number with kFractionBits, by repeated squaring. REQUIRES: x > 0.
std::uint64_t log2_fixed(std::uint64_t x) {
  const int whole = static_cast<int>(std::bit_width(x)) - 1;
  std::uint64_t mantissa = x << (63 - whole);  // in [1, 2), 63 bits after the point
  std::uint64_t result = static_cast<std::uint64_t>(whole);
  for (int i = 0; i < kFractionBits; ++i) {
    const Wide square = Wide{mantissa} * mantissa;  // in [1, 4), 126 bits after the point
    const bool two_or_more = (square >> 127) != 0;
    mantissa = static_cast<std::uint64_t>(square >> (two_or_more ? 64 : 63));
    result = result << 1 | static_cast<std::uint64_t>(two_or_more);
  }
  return result;
}

std::uint64_t square_root(Wide x) {
  std::uint64_t root = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const std::uint64_t candidate = root | std::uint64_t{1} << bit;
    if (Wide{candidate} * candidate <= x) root = candidate;
  }
  return root;
}

// 2^-(2^-1), 2^-(2^-2), …, 64 bits after the point.
std::array<std::uint64_t, kFractionBits> make_roots_of_half() {
  std::array<std::uint64_t, kFractionBits> roots{};
  std::uint64_t root = std::uint64_t{1} << 63;
  for (auto& r : roots) r = root = square_root(Wide{root} << 64);
  return roots;
}

// 2^-exponent with 96 bits after the point; the exponent has kFractionBits after its point.
Wide exp2_negative(Wide exponent, const std::array<std::uint64_t, kFractionBits>& roots_of_half) {
  const Wide whole = exponent >> kFractionBits;
  if (whole >= 96) return 0;
  std::uint64_t product = ~std::uint64_t{0};
  for (int i = 0; i < kFractionBits; ++i) {
    if ((exponent >> (kFractionBits - 1 - i) & 1) != 0) {
      product = static_cast<std::uint64_t>(Wide{product} * roots_of_half[static_cast<std::size_t>(i)] >> 64);
    }
  }
  return Wide{product} << 32 >> static_cast<int>(whole);
}

}  // namespace

Zipf::Zipf(std::uint64_t items, std::uint32_t theta_thousandths) : items_(items) {
  SLUICE_CHECK(items > 0 && items <= std::uint64_t{1} << 40 && theta_thousandths <= kMaxTheta);
  cut_runs();
  const auto roots_of_half = make_roots_of_half();
  std::vector<Wide> exact;
  exact.reserve(runs_.size());
  Wide sum = 0;
  for (const auto& run : runs_) {
    const std::uint64_t middle = run.first + (run.length - 1) / 2;
    const Wide exponent = Wide{log2_fixed(middle + 1)} * theta_thousandths / 1000;
    exact.push_back(exp2_negative(exponent, roots_of_half) * run.length);
    sum += exact.back() >> kSpareBits;
  }
  // Scaled down so that their sum has at most 63 bits.
  int shift = kSpareBits;
  while ((sum >> (shift - kSpareBits)) >> 63 != 0) ++shift;
  std::vector<std::uint64_t> weights;
  weights.reserve(exact.size());
  for (const Wide w : exact) weights.push_back(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(w >> shift)));
  build_alias(std::move(weights));
}

void Zipf::cut_runs() {
  for (std::uint64_t rank = 0; rank < items_;) {
    const std::uint64_t length = std::min(std::max<std::uint64_t>(1, rank / kExactRanks), items_ - rank);
    runs_.push_back({.first = rank, .threshold = 0, .length = static_cast<std::uint32_t>(length), .alias = 0});
    rank += length;
  }
}

// Vose's construction: every run's share of the table is filled up by one other run.
void Zipf::build_alias(std::vector<std::uint64_t> weights) {
  Wide total = 0;
  for (const auto w : weights) total += w;
  const std::uint64_t n = weights.size();
  std::vector<Wide> share(n);  // `total` is a full share
  std::vector<std::uint32_t> small;
  std::vector<std::uint32_t> large;
  for (std::uint32_t i = 0; i < n; ++i) {
    share[i] = Wide{weights[i]} * n;
    (share[i] < total ? small : large).push_back(i);
  }
  while (!small.empty() && !large.empty()) {
    const auto s = small.back();
    const auto l = large.back();
    small.pop_back();
    runs_[s].threshold = static_cast<std::uint64_t>((share[s] << 64) / total);
    runs_[s].alias = l;
    share[l] -= total - share[s];
    if (share[l] < total) {
      large.pop_back();
      small.push_back(l);
    }
  }
  for (const auto i : large) runs_[i] = {runs_[i].first, ~std::uint64_t{0}, runs_[i].length, i};
  for (const auto i : small) runs_[i] = {runs_[i].first, ~std::uint64_t{0}, runs_[i].length, i};
}

std::uint64_t Zipf::draw(Rng& rng) const {
  const auto i = rng.below(runs_.size());
  const Run& run = rng.next() < runs_[i].threshold ? runs_[i] : runs_[runs_[i].alias];
  return run.length == 1 ? run.first : run.first + rng.below(run.length);
}

}  // namespace sluice::workload
