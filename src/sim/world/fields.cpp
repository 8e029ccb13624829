#include "sim/world/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>

#include "port/impairment.h"

namespace sluice::sim {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t scale;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes the digits at the start of `text` into `value`, appending; false: too large.
bool take_digits(std::string_view& text, std::int64_t& value, int& digits) {
  for (; !text.empty() && is_digit(text.front()); text.remove_prefix(1), ++digits) {
    if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text.front() - '0', &value))
      return false;
  }
  return true;
}

// "54.6 ns": the mantissa times the unit's scale, which must be a whole number.
bool parse_scaled(std::string_view text, std::span<const Unit> units, std::int64_t& out) {
  std::int64_t mantissa = 0;
  int digits = 0;
  int decimals = 0;
  if (!take_digits(text, mantissa, digits) || digits == 0) return false;
  if (!text.empty() && text.front() == '.') {
    text.remove_prefix(1);
    if (!take_digits(text, mantissa, decimals) || decimals == 0) return false;
  }
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  const auto unit = std::ranges::find(units, text, &Unit::name);
  if (unit == units.end()) return false;
  if (__builtin_mul_overflow(mantissa, unit->scale, &out)) return false;
  for (; decimals > 0; --decimals, out /= 10) {
    if (out % 10 != 0) return false;
  }
  return true;
}

bool parse_unsigned_scaled(std::string_view text, std::span<const Unit> units, std::uint64_t& out) {
  std::int64_t value = 0;
  if (!parse_scaled(text, units, value)) return false;
  out = static_cast<std::uint64_t>(value);
  return true;
}

constexpr std::array<Unit, 5> kDurationUnits{
    {{"ps", 1}, {"ns", 1'000}, {"us", 1'000'000}, {"ms", 1'000'000'000}, {"s", 1'000'000'000'000}}};

// In the largest unit of which it is a whole number.
std::string text_of(Duration duration) {
  const std::int64_t ps = duration.picoseconds();
  const Unit* unit = kDurationUnits.data();
  for (const Unit& one : kDurationUnits) {
    if (ps != 0 && ps % one.scale == 0) unit = &one;
  }
  return fmt::format("{} {}", ps / unit->scale, unit->name);
}

}  // namespace

bool parse_duration(std::string_view text, Duration& out) {
  std::int64_t ps = 0;
  if (!parse_scaled(text, kDurationUnits, ps)) return false;
  out = Duration::picoseconds(ps);
  return true;
}

bool parse_rate(std::string_view text, std::uint64_t& out) {
  static constexpr std::array<Unit, 3> kUnits{{{"b/s", 1}, {"Mb/s", 1'000'000}, {"Gb/s", 1'000'000'000}}};
  return parse_unsigned_scaled(text, kUnits, out);
}

bool parse_byte_count(std::string_view text, std::uint64_t& out) {
  static constexpr std::array<Unit, 4> kUnits{{{"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}};
  return parse_unsigned_scaled(text, kUnits, out);
}

Result<toml::table> parse_toml(std::string_view text, const std::string& path) {
  try {
    return toml::parse(text, path);
  } catch (const toml::parse_error& e) {
    return fail(fmt::format("{}: line {}: {}", path, e.source().begin.line, e.description()));
  }
}

Result<std::string> read_text(const std::string& path) {
  constexpr std::size_t kMost = std::size_t{64} << 20;  // a device without an end is no text
  std::ifstream in(path, std::ios::binary);
  std::string text;
  std::array<char, 65'536> part{};
  while (in && text.size() <= kMost) {
    in.read(part.data(), part.size());
    text.append(part.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (text.size() > kMost) return sluice::fail(fmt::format("{}: has more than 64 MiB", path));
  std::error_code ignored;
  if (!in.eof() || std::filesystem::is_directory(path, ignored))
    return sluice::fail(fmt::format("{}: cannot be read", path));
  return text;
}

Fields::Fields(const toml::table& table, std::string path, std::string section, std::string& first_error,
               Sources sources)
    : layers_{{&table, std::move(section)}}, path_(std::move(path)), error_(first_error), sources_(sources) {}

const std::string& Fields::section_of(const toml::node& at) const {
  for (const auto& [key, replaced] : replaced_) {
    if (replaced.node == &at) return replaced.section;
  }
  for (const Layer& layer : layers_) {
    const bool has =
        std::any_of(layer.table->begin(), layer.table->end(), [&](const auto& it) { return &it.second == &at; });
    if (has) return layer.section;
  }
  return layers_.front().section;
}

void Fields::fail(const toml::node& at, std::string_view key, std::string_view what) {
  if (failed()) return;
  const std::string& name = section_of(at);
  const std::string section = name.empty() ? "" : fmt::format("[{}] ", name);
  error_ = fmt::format("{}: line {}: {}{} {}", path_, at.source().begin.line, section, key, what);
}

void Fields::over(const toml::table& table, std::string section) {
  layers_.push_back({&table, std::move(section)});
  known_.emplace("name");
}

void Fields::replace(std::string_view key, const toml::node& node, std::string section) {
  replaced_.insert_or_assign(std::string(key), Replaced{&node, std::move(section)});
}

const toml::node* Fields::find(std::string_view key) const {
  if (const auto replaced = replaced_.find(key); replaced != replaced_.end()) return replaced->second.node;
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
    if (const toml::node* const found = layer->table->get(key)) return found;
  }
  return nullptr;
}

const toml::node* Fields::node(std::string_view key, Need need) {
  known_.emplace(key);
  const toml::node* const found = find(key);
  if (found == nullptr && need == Need::kRequired) fail(*layers_.front().table, key, "is missing");
  return failed() ? nullptr : found;
}

std::size_t Fields::rank(std::string_view key) const {
  if (replaced_.contains(key)) return layers_.size() + 1;
  std::size_t at = layers_.size();
  while (at > 0 && !layers_[at - 1].table->contains(key)) --at;
  return at;
}

// The node that holds the value itself.
const toml::node* Fields::value(std::string_view key, Need need) {
  const toml::node* const found = node(key, need);
  if (found == nullptr || sources_ == Sources::kNone) return found;
  const toml::table* const pair = found->as_table();
  const toml::node* const inner = pair == nullptr ? nullptr : pair->get("value");
  const auto source = pair == nullptr ? std::nullopt
                      : pair->get_as<std::string>("source") == nullptr
                          ? std::nullopt
                          : std::optional(pair->get_as<std::string>("source")->get());
  if (inner != nullptr && source && !source->empty() && pair->size() == 2) return inner;
  fail(*found, key, "must be {value = ..., source = \"where the number comes from\"}");
  return nullptr;
}

template <class T, class Parse>
void Fields::parsed(std::string_view key, T& out, Need need, std::string_view allowed, Parse parse) {
  const toml::node* const found = value(key, need);
  if (found == nullptr) return;
  const auto text = found->value_exact<std::string>();
  if (!text || !parse(*text, out)) fail(*found, key, fmt::format("must be {}", allowed));
}

void Fields::duration(std::string_view key, Duration& out, Need need) {
  parsed(key, out, need, "a duration such as \"54.6 ns\" (ps, ns, us, ms, s), 1000 s at most",
         [](std::string_view text, Duration& to) { return parse_duration(text, to) && to <= kLongest; });
}

void Fields::duration(std::string_view key, Duration& out, Duration least, Duration most, Need need) {
  parsed(
      key, out, need,
      fmt::format("a duration such as \"54.6 ns\" (ps, ns, us, ms, s), from {} to {}", text_of(least), text_of(most)),
      [=](std::string_view text, Duration& to) { return parse_duration(text, to) && to >= least && to <= most; });
}

void Fields::span(std::string_view key, Duration& out, Need need) {
  parsed(key, out, need, "a duration such as \"54.6 ns\" (ps, ns, us, ms, s), longer than 0 and 1000 s at most",
         [](std::string_view text, Duration& to) {
           return parse_duration(text, to) && to > Duration() && to <= kLongest;
         });
}

void Fields::cost(std::string_view key, Duration& out, Need need) {
  duration(key, out, Duration(), kHighestCost, need);
}

void Fields::rate(std::string_view key, std::uint64_t& out, Need need) {
  parsed(key, out, need, "a rate such as \"100 Gb/s\" (b/s, Mb/s, Gb/s), 64000 Gb/s at most",
         [](std::string_view text, std::uint64_t& rate) {
           return parse_rate(text, rate) && rate > 0 && rate <= kHighestRate;
         });
}

void Fields::rate(std::string_view key, std::uint64_t& out, std::uint64_t least_mbps, Need need) {
  parsed(key, out, need,
         fmt::format("a rate such as \"100 Gb/s\" (b/s, Mb/s, Gb/s), from {} Mb/s to 64000 Gb/s", least_mbps),
         [=](std::string_view text, std::uint64_t& rate) {
           return parse_rate(text, rate) && rate >= least_mbps * 1'000'000 && rate <= kHighestRate;
         });
}

void Fields::byte_count(std::string_view key, std::uint64_t& out, Need need) {
  parsed(key, out, need, "a number of bytes such as \"64 KiB\" (B, KiB, MiB, GiB)", parse_byte_count);
}

void Fields::byte_count(std::string_view key, std::uint64_t& out, std::uint64_t least, std::uint64_t most, Need need) {
  parsed(key, out, need,
         fmt::format("a number of bytes such as \"64 KiB\" (B, KiB, MiB, GiB), from {} to {} B", least, most),
         [=](std::string_view text, std::uint64_t& to) {
           return parse_byte_count(text, to) && to >= least && to <= most;
         });
}

void Fields::integer(std::string_view key, std::uint64_t& out, std::uint64_t least, std::uint64_t most, Need need) {
  const toml::node* const found = value(key, need);
  if (found == nullptr) return;
  const auto number = found->value_exact<std::int64_t>();
  if (number && *number >= 0 && static_cast<std::uint64_t>(*number) >= least &&
      static_cast<std::uint64_t>(*number) <= most) {
    out = static_cast<std::uint64_t>(*number);
    return;
  }
  fail(*found, key, fmt::format("must be a whole number from {} to {}", least, most));
}

void Fields::toggle(std::string_view key, bool& out, Need need) {
  const toml::node* const found = value(key, need);
  if (found == nullptr) return;
  const auto on = found->value_exact<bool>();
  if (!on) return fail(*found, key, "must be true or false");
  out = *on;
}

void Fields::text(std::string_view key, std::string& out, Need need) {
  parsed(key, out, need, "text", [](std::string_view text, std::string& to) { return !(to = text).empty(); });
}

void Fields::impairment(std::string_view key, std::string& out, Need need) {
  parsed(key, out, need,
         "faults of a link, the same each way and without seed and cut, such as "
         "drop=1%,duplicate=1%,reorder=1%,delay=10us",
         [](std::string_view text, std::string& to) {
           const auto spec = port::parse_impairment(to = text);
           return spec && spec->tx == spec->rx && spec->seed == port::ImpairmentSpec().seed && !spec->cuts();
         });
}

void Fields::choice(std::string_view key, std::string& out, const std::vector<std::string_view>& choices, Need need) {
  parsed(key, out, need, fmt::format("one of {}", fmt::join(choices, ", ")),
         [&](std::string_view text, std::string& to) {
           to = text;
           return std::ranges::find(choices, text) != choices.end();
         });
}

bool Fields::finish() {
  const auto check = [this](std::string_view key, const toml::node& at) {
    if (known_.contains(key)) return;
    fail(at, key, fmt::format("is not known here; there are {}", fmt::join(known_, ", ")));
  };
  for (const Layer& layer : layers_) {
    for (const auto& [key, at] : *layer.table) check(key.str(), at);
  }
  for (const auto& [key, replaced] : replaced_) check(key, *replaced.node);
  return !failed();
}

}  // namespace sluice::sim
