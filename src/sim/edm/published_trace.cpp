#include "sim/edm/published_trace.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <tuple>

#include "base/check.h"

namespace sluice::sim {
namespace {

// Drawn before the first message, by the queues of a network that is built and not used.
constexpr int kDrawnBefore = 1154;

// Uniform, both ends included.
double uniform(GlibcRand& chance) { return static_cast<double>(chance.next()) / GlibcRand::kMost; }

// In whole units, to the nearest; each line between two points is found by the share that the later one has.
std::uint64_t draw_units(const SizeDistribution& sizes, GlibcRand& chance) {
  const double u = uniform(chance);
  const auto share = [](const SizeDistribution::Point& p) { return static_cast<double>(p.up_to_per_mille) / 1'000; };
  const auto above = std::ranges::find_if(sizes.points, [&](const auto& p) { return u <= share(p); });
  if (above == sizes.points.begin()) return above->units;
  const auto& below = *(above - 1);
  const double rise = static_cast<double>(above->units) - static_cast<double>(below.units);
  const double units = static_cast<double>(below.units) + (u - share(below)) * rise / (share(*above) - share(below));
  return static_cast<std::uint64_t>(std::floor(units + 0.5));
}

// The mean size in bytes as that program comes to it: in doubles, which end a little below a whole number, of which it keeps the whole part.
double mean_bytes(const SizeDistribution& sizes) {
  double units = 0;
  double share = 0;
  double before = 1;
  for (const auto& point : sizes.points) {
    const double up_to = static_cast<double>(point.up_to_per_mille) / 1'000;
    const auto here = static_cast<double>(point.units);
    units += (up_to - share) * ((here + before) / 2);
    share = up_to;
    before = here;
  }
  return std::floor(units * sizes.unit_bytes);
}

}  // namespace

std::vector<TraceRow> published_messages(const TraceSpec& spec) {
  SLUICE_CHECK(spec.nodes == kPublishedNodes);
  GlibcRand chance(0);
  for (int i = 0; i < kDrawnBefore; ++i) chance.next();
  const double rate = static_cast<double>(spec.bits_per_second) / (mean_bytes(spec.sizes) * 8);
  const double mean = (spec.nodes - 1) / rate;  // seconds between two messages from one node to one other
  const auto interval = [&] { return -mean * std::log(uniform(chance)); };
  using Next = std::tuple<double, std::uint16_t, std::uint16_t>;  // when, from where, to where
  std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
  for (std::uint16_t source = 0; source < spec.nodes; ++source) {
    for (std::uint16_t destination = 0; destination < spec.nodes; ++destination) {
      // Its clock begins at a second, which costs its times their last digits.
      if (source != destination) queue.emplace(1.0 + interval(), source, destination);
    }
  }
  const double slot = static_cast<double>(spec.slot_ps) * 1e-12;
  std::vector<TraceRow> rows;
  rows.reserve(spec.messages);
  while (rows.size() < spec.messages) {
    const auto [now, source, destination] = queue.top();
    queue.pop();
    const std::uint64_t units = draw_units(spec.sizes, chance);
    rows.push_back({.id = static_cast<std::uint32_t>(rows.size()),
                    .type = TraceRow::Type::kWrite,
                    .source = source,
                    .destination = destination,
                    .bytes = static_cast<std::uint32_t>(units * spec.sizes.unit_bytes),
                    .request_bytes = 0,
                    .slot = static_cast<std::int64_t>((now - 1) / slot)});
    queue.emplace(now + interval(), source, destination);
  }
  return rows;
}

}  // namespace sluice::sim
