#include "telemetry/metric_set.h"

#include <gmock/gmock.h>

namespace sluice::telemetry {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

TEST(MetricSet, SaysWhatAMetricIsOnceAndThenEachOfItsSeries) {
  MetricSet set;
  set.counter("port_receive_packets", "frames that came in", 7, {{"port", "1"}});
  set.counter("port_receive_packets", "frames that came in", 9, {{"port", "2"}});
  EXPECT_EQ(set.text(),
            "# HELP sluice_port_receive_packets_total frames that came in\n"
            "# TYPE sluice_port_receive_packets_total counter\n"
            "sluice_port_receive_packets_total{port=\"1\"} 7\n"
            "sluice_port_receive_packets_total{port=\"2\"} 9\n");
}

TEST(MetricSet, KeepsAllDigitsOfLargeCounts) {
  MetricSet set;
  set.counter("n", "a count", (std::uint64_t{1} << 53) - 1);
  EXPECT_THAT(set.text(), HasSubstr("sluice_n_total 9007199254740991\n"));
}

TEST(MetricSet, EscapesWhatALabelMayNotHold) {
  MetricSet set;
  set.gauge("g", "a gauge", 1, {{"name", "a\"b\\c\nd"}});
  EXPECT_THAT(set.text(), HasSubstr(R"(sluice_g{name="a\"b\\c\nd"} 1)"));
}

TEST(MetricSet, HistogramsAreCumulativeAndEndWithInfinity) {
  MetricSet set;
  set.histogram("latency_seconds", "how long", std::array{0.001, 0.002}, std::array<std::uint64_t, 3>{5, 2, 1}, 0.0125);
  const std::string text = set.text();
  EXPECT_THAT(text, HasSubstr("sluice_latency_seconds_count 8\n"));
  EXPECT_THAT(text, HasSubstr("sluice_latency_seconds_sum 0.0125"));
  EXPECT_THAT(text, HasSubstr("{le=\"0.001\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("{le=\"0.002\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("{le=\"+Inf\"} 8\n"));
}

TEST(MetricSet, KnowsThisProcess) {
  MetricSet set;
  set.process("1.2.3", "memory1");
  const std::string text = set.text();
  EXPECT_THAT(text, HasSubstr("sluice_build_info{version=\"1.2.3\",daemon=\"memory1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("process_cpu_seconds_total "));
  EXPECT_THAT(text, Not(HasSubstr("process_resident_memory_bytes 0\n")));
  const auto value = [&](const std::string& name) {
    const auto at = text.find("\n" + name + " ");
    return at == std::string::npos ? 0 : std::stod(text.substr(at + name.size() + 2));
  };
  EXPECT_GT(value("process_open_fds"), 2);
  const double now = static_cast<double>(time(nullptr));
  EXPECT_GT(value("process_start_time_seconds"), now - 3600);
  EXPECT_LE(value("process_start_time_seconds"), now + 1);
}

}  // namespace
}  // namespace sluice::telemetry
