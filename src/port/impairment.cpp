#include "port/impairment.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <optional>
#include <string>

namespace sluice::port {
namespace {

constexpr Duration kLongestDelay = Duration::seconds(10);
constexpr Duration kLatestCut = Duration::seconds(3600);

std::optional<std::uint64_t> parse_integer(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

bool strip_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

std::optional<Duration> parse_duration(std::string_view text, Duration longest) {
  struct Unit {
    std::string_view suffix;
    Duration length;
  };
  constexpr std::array<Unit, 4> kUnits{{{"ns", Duration::nanoseconds(1)},
                                        {"us", Duration::microseconds(1)},
                                        {"ms", Duration::milliseconds(1)},
                                        {"s", Duration::seconds(1)}}};
  for (const auto& unit : kUnits) {
    if (!strip_suffix(text, unit.suffix)) continue;
    const auto count = parse_integer(text);
    if (!count || *count > static_cast<std::uint64_t>(longest / unit.length)) return std::nullopt;
    return unit.length * static_cast<std::int64_t>(*count);
  }
  return std::nullopt;
}

constexpr std::array<std::pair<std::string_view, std::uint32_t Impairment::*>, 4> kProbabilities{{
    {"drop", &Impairment::drop},
    {"duplicate", &Impairment::duplicate},
    {"reorder", &Impairment::reorder},
    {"corrupt", &Impairment::corrupt},
}};

tl::unexpected<Error> refuse(std::string_view key, std::string_view value, std::string_view allowed) {
  return fail(fmt::format("impairment {}={}: {} must be {}", key, value, key, allowed));
}

Result<bool> set_one(ImpairmentSpec& spec, std::string_view full_key, std::string_view value) {
  auto key = full_key;
  const bool only_tx = key.starts_with("tx.");
  const bool only_rx = key.starts_with("rx.");
  if (only_tx || only_rx) key.remove_prefix(3);
  const auto set = [&](auto member, auto number) {
    if (!only_rx) spec.tx.*member = number;
    if (!only_tx) spec.rx.*member = number;
  };
  for (const auto& [name, member] : kProbabilities) {
    if (key != name) continue;
    const auto ppm = parse_probability(value);
    if (!ppm) return refuse(full_key, value, "a probability from 0% to 100%, such as 1%, 0.5% or 250ppm");
    set(member, *ppm);
    return true;
  }
  if (key == "delay") {
    const auto delay = parse_duration(value, kLongestDelay);
    if (!delay) return refuse(full_key, value, "a time from 0ns to 10s, such as 500ns, 10us or 2ms");
    set(&Impairment::delay, *delay);
    return true;
  }
  if (full_key == "cut") {
    const auto time = parse_duration(value, kLatestCut);
    const auto frames = parse_integer(value);
    if (!time && !frames) return refuse(full_key, value, "a time such as 5s, at most an hour, or a number of frames");
    spec.cut_after = time.value_or(Duration());
    spec.cut_after_frames = frames.value_or(0);
    return true;
  }
  if (full_key == "seed") {
    const auto seed = parse_integer(value);
    if (!seed) return refuse(full_key, value, "an integer from 0 to 18446744073709551615");
    spec.seed = *seed;
    return true;
  }
  return fail(
      fmt::format("impairment {}={}: unknown key {}; allowed are drop, duplicate, reorder, corrupt, delay (each also "
                  "as tx.… or rx.…), "
                  "cut and seed",
                  full_key, value, full_key));
}

}  // namespace

std::optional<std::uint32_t> parse_probability(std::string_view text) {
  constexpr std::uint64_t kWhole = 1'000'000;
  std::optional<std::uint64_t> ppm;
  if (strip_suffix(text, "ppm")) {
    ppm = parse_integer(text);
  } else if (strip_suffix(text, "%")) {
    const auto point = text.find('.');
    const auto digits = std::string(text.substr(0, point));
    auto fraction = point == std::string_view::npos ? std::string() : std::string(text.substr(point + 1));
    if (digits.empty() || fraction.size() > 4) return std::nullopt;
    if (point != std::string_view::npos && fraction.empty()) return std::nullopt;
    fraction.resize(4, '0');
    ppm = parse_integer(digits + fraction);
  }
  if (!ppm || *ppm > kWhole) return std::nullopt;
  return static_cast<std::uint32_t>(*ppm);
}

Result<ImpairmentSpec> parse_impairment(std::string_view text) {
  ImpairmentSpec spec;
  while (!text.empty()) {
    const auto comma = text.find(',');
    const auto item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const auto equals = item.find('=');
    if (equals == std::string_view::npos) {
      return fail(fmt::format("impairment {}: expected key=value, such as drop=1%", item));
    }
    if (const auto done = set_one(spec, item.substr(0, equals), item.substr(equals + 1)); !done) {
      return tl::unexpected(done.error());
    }
  }
  return spec;
}

}  // namespace sluice::port
