// Latency histogram: log-linear buckets, under 1 % relative error from 1 to 2^62, mergeable.
//
// Units:   the caller's (nanoseconds everywhere in Sluice).
// Threads: one owner; merge afterwards.
// Limits:  about 60 KiB each, once it holds something; an empty one takes no memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace sluice {

class Histogram {
 public:
  Histogram();
  ~Histogram();
  Histogram(Histogram&&) noexcept;
  Histogram& operator=(Histogram&&) noexcept;
  Histogram(const Histogram&);
  Histogram& operator=(const Histogram&);

  void record(std::int64_t value) { record(value, 1); }
  // As often as `times` says.
  void record(std::int64_t value, std::uint64_t times);
  void merge(const Histogram& other);

  std::uint64_t count() const;
  double mean() const;
  std::int64_t min() const;
  std::int64_t max() const;
  // The smallest recorded bucket's upper edge that `quantile` (0 to 1) of the values do not exceed; 0 when empty.
  std::int64_t at_quantile(double quantile) const;
  // Calls visit(upper edge, count) for each bucket that holds something, smallest first.
  void visit(const std::function<void(std::int64_t, std::uint64_t)>& visit) const;

 private:
  struct Buckets;
  Buckets& buckets();

  std::unique_ptr<Buckets> buckets_;  // none while it is empty
};

}  // namespace sluice
