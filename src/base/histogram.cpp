#include "base/histogram.h"

#include <algorithm>
#include <bit>
#include <boost/histogram/axis/option.hpp>
#include <boost/histogram/histogram.hpp>
#include <boost/histogram/make_histogram.hpp>
#include <cmath>
#include <limits>
#include <vector>

namespace sluice {
namespace {

// 128 linear buckets an octave, as HdrHistogram has them.
constexpr int kSubBits = 7;
constexpr int kSub = 1 << kSubBits;

struct LogLinearAxis {
  static int index(std::int64_t value) {
    const auto v = static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0));
    if (v < 2 * kSub) return static_cast<int>(v);
    const int shift = static_cast<int>(std::bit_width(v)) - 1 - kSubBits;
    return shift * kSub + static_cast<int>(v >> shift);
  }
  static std::int64_t upper_edge(int index) {
    if (index < 2 * kSub) return index;
    const int shift = index / kSub - 1;
    return static_cast<std::int64_t>(((static_cast<std::uint64_t>(index - shift * kSub) + 1) << shift) - 1);
  }
  int size() const { return (63 - kSubBits) * kSub + kSub; }
  static constexpr unsigned options() { return boost::histogram::axis::option::none_t::value; }
};

}  // namespace

// There from the first value on, so count is not 0.
struct Histogram::Buckets {
  using Storage = boost::histogram::dense_storage<std::uint64_t>;
  boost::histogram::histogram<std::tuple<LogLinearAxis>, Storage> counts{std::make_tuple(LogLinearAxis{}), Storage{}};
  std::uint64_t count = 0;
  double sum = 0;
  std::int64_t min = std::numeric_limits<std::int64_t>::max();
  std::int64_t max = 0;
};

Histogram::Histogram() = default;
Histogram::~Histogram() = default;
Histogram::Histogram(Histogram&&) noexcept = default;
Histogram& Histogram::operator=(Histogram&&) noexcept = default;
Histogram::Histogram(const Histogram& other)
    : buckets_(other.buckets_ ? std::make_unique<Buckets>(*other.buckets_) : nullptr) {}
Histogram& Histogram::operator=(const Histogram& other) {
  if (this != &other) *this = Histogram(other);
  return *this;
}

Histogram::Buckets& Histogram::buckets() {
  if (!buckets_) buckets_ = std::make_unique<Buckets>();
  return *buckets_;
}

void Histogram::record(std::int64_t value, std::uint64_t times) {
  if (times == 0) return;
  auto& b = buckets();
  b.counts.at(LogLinearAxis::index(value)) += times;
  b.count += times;
  b.sum += static_cast<double>(value) * static_cast<double>(times);
  b.min = std::min(b.min, value);
  b.max = std::max(b.max, value);
}

void Histogram::merge(const Histogram& other) {
  if (!other.buckets_) return;
  auto& b = buckets();
  const auto& o = *other.buckets_;
  for (int i = 0; i < b.counts.axis(0).size(); ++i) b.counts.at(i) += o.counts.at(i);
  b.count += o.count;
  b.sum += o.sum;
  b.min = std::min(b.min, o.min);
  b.max = std::max(b.max, o.max);
}

std::uint64_t Histogram::count() const { return buckets_ ? buckets_->count : 0; }
double Histogram::mean() const { return buckets_ ? buckets_->sum / static_cast<double>(buckets_->count) : 0; }
std::int64_t Histogram::min() const { return buckets_ ? buckets_->min : 0; }
std::int64_t Histogram::max() const { return buckets_ ? buckets_->max : 0; }

std::int64_t Histogram::at_quantile(double quantile) const {
  if (!buckets_) return 0;
  const auto& b = *buckets_;
  // The first that as many do not exceed; less what multiplying makes of a whole number at most.
  const double share = quantile * static_cast<double>(b.count);
  const auto wanted = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(share * (1 - 1e-12))));
  std::int64_t seen = 0;
  for (int i = 0; i < b.counts.axis(0).size(); ++i) {
    seen += static_cast<std::int64_t>(b.counts.at(i));
    if (seen >= wanted) return std::min(LogLinearAxis::upper_edge(i), b.max);
  }
  return b.max;
}

void Histogram::visit(const std::function<void(std::int64_t, std::uint64_t)>& visit) const {
  if (!buckets_) return;
  const auto& b = *buckets_;
  for (int i = 0; i < b.counts.axis(0).size(); ++i) {
    const std::uint64_t count = b.counts.at(i);
    if (count != 0) visit(std::min(LogLinearAxis::upper_edge(i), b.max), count);
  }
}

}  // namespace sluice
