#include "telemetry/metric_set.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/check.h"

namespace sluice::telemetry {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

struct MetricSet::Families {
  std::map<std::string, MetricFamily> by_name;

  ClientMetric& add(std::string name, std::string_view help, MetricType type, const Labels& labels) {
    MetricFamily& family = by_name[name];
    if (family.metric.empty()) {
      family.name = std::move(name);
      family.help = help;
      family.type = type;
    }
    SLUICE_CHECK(family.type == type);
    ClientMetric metric;
    for (const auto& [label, value] : labels) metric.label.push_back({label, value});
    family.metric.push_back(std::move(metric));
    return family.metric.back();
  }
};

namespace {

std::string own(std::string_view name) { return "sluice_" + std::string(name); }

double seconds_of(const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6; }

// Fields of proc(5)'s stat, counted from 1; those behind the name in brackets.
double stat_field(int number) {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream rest(text.substr(text.rfind(')') + 1));
  std::string word;
  for (int i = 2; i < number; ++i) rest >> word;
  return word.empty() ? 0 : std::stod(word);
}

double start_time_of_process() {
  timespec since_boot{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const double up = static_cast<double>(since_boot.tv_sec) + static_cast<double>(since_boot.tv_nsec) / 1e9;
  return now - up + stat_field(22) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double open_descriptors() {
  std::error_code ignored;
  const std::filesystem::directory_iterator all("/proc/self/fd", ignored);
  return static_cast<double>(std::distance(begin(all), end(all)));
}

}  // namespace

MetricSet::MetricSet() : families_(std::make_unique<Families>()) {}
MetricSet::~MetricSet() = default;
MetricSet::MetricSet(MetricSet&&) noexcept = default;
MetricSet& MetricSet::operator=(MetricSet&&) noexcept = default;

void MetricSet::counter(std::string_view name, std::string_view help, std::uint64_t value, const Labels& labels) {
  families_->add(own(name) + "_total", help, MetricType::Counter, labels).counter.value = static_cast<double>(value);
}

void MetricSet::counter_seconds(std::string_view name, std::string_view help, double seconds, const Labels& labels) {
  families_->add(own(name) + "_seconds_total", help, MetricType::Counter, labels).counter.value = seconds;
}

void MetricSet::gauge(std::string_view name, std::string_view help, double value, const Labels& labels) {
  families_->add(own(name), help, MetricType::Gauge, labels).gauge.value = value;
}

void MetricSet::histogram(std::string_view name, std::string_view help, std::span<const double> edges,
                          std::span<const std::uint64_t> counts, double sum, const Labels& labels) {
  SLUICE_CHECK(counts.size() == edges.size() + 1);
  ClientMetric::Histogram& histogram = families_->add(own(name), help, MetricType::Histogram, labels).histogram;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    histogram.sample_count += counts[i];
    histogram.bucket.push_back({histogram.sample_count, edges[i]});
  }
  histogram.sample_count += counts.back();
  histogram.sample_sum = sum;
}

void MetricSet::process(std::string_view version, std::string_view daemon) {
  gauge("build_info", "1; which program this is", 1,
        {{"version", std::string(version)}, {"daemon", std::string(daemon)}});
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto standard = [&](const char* name, const char* help, MetricType type) -> ClientMetric& {
    return families_->add(name, help, type, {});
  };
  standard("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", MetricType::Counter)
      .counter.value = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  standard("process_resident_memory_bytes", "Resident memory size in bytes.", MetricType::Gauge).gauge.value =
      stat_field(24) * static_cast<double>(sysconf(_SC_PAGESIZE));
  standard("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", MetricType::Gauge)
      .gauge.value = start_time_of_process();
  standard("process_open_fds", "Number of open file descriptors.", MetricType::Gauge).gauge.value = open_descriptors();
}

std::string MetricSet::text() const {
  std::vector<MetricFamily> families;
  families.reserve(families_->by_name.size());
  for (const auto& [name, family] : families_->by_name) families.push_back(family);
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace sluice::telemetry
