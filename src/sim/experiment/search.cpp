#include "sim/experiment/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>

#include "base/rng.h"
#include "sim/world/fields.h"

namespace sluice::sim {
namespace {

// One of `choices`.
template <class T, std::size_t N>
T one_of(Rng& rng, const std::array<T, N>& choices) {
  return choices.at(rng.below(N));
}

// Bad links in three of four cases.
std::string draw_faults(Rng& rng) {
  if (rng.below(4) == 0) return {};
  const auto share = [&] { return one_of<std::uint64_t>(rng, std::array<std::uint64_t, 4>{0, 500, 5'000, 20'000}); };
  const std::uint64_t drop = share();
  const std::uint64_t duplicate = share();
  const std::uint64_t reorder = share();
  if (drop + duplicate + reorder == 0) return {};
  return fmt::format("drop={}ppm,duplicate={}ppm,reorder={}ppm", drop, duplicate, reorder);
}

std::string exact(Duration duration) {
  const bool whole = duration == Duration::microseconds(duration.microseconds());
  return whole ? fmt::format("{} us", duration.microseconds()) : fmt::format("{} ps", duration.picoseconds());
}

// What the table has, and these lines have not, as lines.
std::string settings_beyond(toml::table table, const std::string& lines) {
  const auto known = parse_toml(lines, "");
  for (const auto& [key, value] : *known) table.erase(key);
  std::ostringstream text;
  text << table;
  return table.empty() ? "" : text.str() + '\n';
}

std::uint64_t halved(std::uint64_t value, std::uint64_t least) { return std::max(value / 2, least); }

}  // namespace

SearchCase draw_case(std::uint64_t seed) {
  Rng rng = Rng(seed).fork("search");
  SearchCase drawn{.seed = seed, .operations = 500 + rng.below(6'000)};
  CloverWorkload& w = drawn.workload;
  w.system = one_of<const char*>(rng, std::array{"clover", "write_steering", "steering", "steering"});
  w.client = one_of<const char*>(rng, std::array{"paper", "sluice"});
  w.machines = 1 + rng.below(4);
  w.threads = w.machines + rng.below(20);
  w.keys = one_of<std::uint64_t>(rng, std::array<std::uint64_t, 5>{1, 2, 7, 40, 200});
  w.theta_thousandths = one_of<std::uint64_t>(rng, std::array<std::uint64_t, 3>{0, 990, 1500});
  w.writes_percent = one_of<std::uint64_t>(rng, std::array<std::uint64_t, 4>{5, 50, 90, 100});
  w.value_bytes =
      one_of<std::uint64_t>(rng, std::array<std::uint64_t, 4>{16, 128, 1000, 4000});  // one and several packets
  w.steered_keys = one_of<std::uint64_t>(rng, std::array<std::uint64_t, 3>{2, 16, 1024});
  w.faults = draw_faults(rng);
  w.ack_timeout = 4 + rng.below(4);  // 66 us to 0.5 ms: some are too short, and queue pairs send again for nothing
  w.step_cost = Duration::nanoseconds(200);
  w.step_cost_all_cores = w.step_cost;
  w.write_cost = Duration::nanoseconds(100);
  w.write_cost_all_cores = w.write_cost;
  // Some collect garbage while they run; longer than a queue pair's retries in any case.
  w.max_flight = Duration::milliseconds(10);
  w.cursor_lifetime = Duration::milliseconds(rng.below(2) == 0 ? 10 : 1000);
  w.node_memory = std::uint64_t{64} << 20;
  return drawn;
}

CloverResult run_case(const Hardware& hardware, const SearchCase& one) {
  return check_clover_load(hardware, one.workload, one.operations, one.seed);
}

std::vector<SearchCase> simpler_cases(const SearchCase& one) {
  std::vector<SearchCase> simpler;
  const auto with = [&](auto&& change) {
    SearchCase changed = one;
    change(changed.workload, changed);
    if (to_string(changed) != to_string(one)) simpler.push_back(std::move(changed));
  };
  with([](CloverWorkload& w, SearchCase&) { w.faults.clear(); });
  with([](CloverWorkload& w, SearchCase&) { w.system = "clover"; });
  with([](CloverWorkload&, SearchCase& c) { c.operations = halved(c.operations, 10); });
  with([](CloverWorkload& w, SearchCase&) {
    w.machines = halved(w.machines, 1);
    w.threads = std::max(w.threads / 2, w.machines);
  });
  with([](CloverWorkload& w, SearchCase&) { w.threads = std::max(w.threads / 2, w.machines); });
  with([](CloverWorkload& w, SearchCase&) { w.threads = std::max(w.threads - 1, w.machines); });
  with([](CloverWorkload& w, SearchCase&) { w.keys = halved(w.keys, 1); });
  with([](CloverWorkload& w, SearchCase&) { w.value_bytes = halved(w.value_bytes, 16); });
  with([](CloverWorkload& w, SearchCase&) { w.system = w.system == "steering" ? "write_steering" : w.system; });
  with([](CloverWorkload& w, SearchCase&) { w.writes_percent = 100; });
  with([](CloverWorkload& w, SearchCase&) { w.client = "sluice"; });
  with([](CloverWorkload& w, SearchCase&) { w.ack_timeout = 7; });  // no longer than any that is drawn
  with([](CloverWorkload& w, SearchCase&) { w.cursor_lifetime = Duration::seconds(1); });
  with([](CloverWorkload&, SearchCase& c) {
    c.operations = std::max<std::uint64_t>(c.operations - c.operations / 8, 10);
  });
  return simpler;
}

SearchCase shrink(SearchCase failing, std::uint64_t tries, const std::function<bool(const SearchCase&)>& fails) {
  for (bool better = true; better;) {
    better = false;
    for (SearchCase& simpler : simpler_cases(failing)) {
      if (tries-- == 0) return failing;
      if (!fails(simpler)) continue;
      failing = std::move(simpler);
      better = true;
      break;
    }
  }
  return failing;
}

std::string to_string(const SearchCase& one) {
  const CloverWorkload& w = one.workload;
  return fmt::format(
      "system = \"{}\"\nclient = \"{}\"\nmachines = {}\nthreads = {}\nkeys = {}\ntheta_thousandths = {}\n"
      "{}value_bytes = \"{} B\"\nsteered_keys = {}\nfaults = \"{}\"\nack_timeout = {}\ncursor_lifetime = \"{}\"\n"
      "operations = {}\nseed = {}\n{}",
      w.system, w.client, w.machines, w.threads, w.keys, w.theta_thousandths,
      w.mix.empty() ? fmt::format("writes_percent = {}\n", w.writes_percent) : "", w.value_bytes, w.steered_keys,
      w.faults, w.ack_timeout, exact(w.cursor_lifetime), one.operations, one.seed, one.more);
}

Result<SearchCase> load_case(const std::string& path) {
  auto text = read_text(path);
  if (!text) return tl::unexpected(text.error());
  const auto table = parse_toml(*text, path);
  if (!table) return tl::unexpected(table.error());
  SearchCase one = draw_case(1);  // what is the same in all of them
  std::string error;
  Fields fields(*table, path, "", error);
  fields.integer("seed", one.seed, 0, std::numeric_limits<std::int64_t>::max());
  fields.integer("operations", one.operations, 1, 1'000'000);
  one.workload.read(fields);
  if (!fields.finish()) return fail(error);
  one.more = settings_beyond(*table, to_string(one));
  return one;
}

}  // namespace sluice::sim
