// Metric set: what one scrape of a daemon finds, in the exposition format of Prometheus.
//
// Life:     made for a scrape -> counters, gauges and histograms are put in, in any order -> text().
// Names:    "sluice_" comes before every name but those of the process, which are Prometheus's own.
// Units:    seconds and bytes, as the name says.
// Limits:   a name has one type and one help text: that of its first mention.
// Threads:  one owner.
// Source:   Prometheus, "Exposition formats"; prometheus-cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::telemetry {

using Labels = std::vector<std::pair<std::string, std::string>>;

class MetricSet {
 public:
  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

  MetricSet();
  ~MetricSet();
  MetricSet(MetricSet&&) noexcept;
  MetricSet& operator=(MetricSet&&) noexcept;

  // "_total" is appended to the name.
  void counter(std::string_view name, std::string_view help, std::uint64_t value, const Labels& labels = {});
  void counter_seconds(std::string_view name, std::string_view help, double seconds, const Labels& labels = {});
  void gauge(std::string_view name, std::string_view help, double value, const Labels& labels = {});
  // counts[i]: how many were not more than edges[i] and more than the edge before; the last count is of what was more than all edges.
  // REQUIRES: counts.size() == edges.size() + 1.
  void histogram(std::string_view name, std::string_view help, std::span<const double> edges,
                 std::span<const std::uint64_t> counts, double sum, const Labels& labels = {});
  // This process: its version, processor time, memory, start, open descriptors.
  void process(std::string_view version, std::string_view daemon);

  std::string text() const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace sluice::telemetry
