#include "rack/settings/schema.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <utility>

#include "rack/settings/meant.h"
#include "rack/settings/private_file.h"

namespace sluice::rack {
namespace {

bool parse_unsigned(std::string_view text, std::uint64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

bool parse_real(std::string_view text, double& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty() && std::isfinite(out);
}

bool parse_bool(std::string_view text, bool& out) {
  if (text == "true" || text == "yes" || text == "on" || text == "1") return out = true, true;
  if (text == "false" || text == "no" || text == "off" || text == "0") return out = false, true;
  return false;
}

// Where the number ends and the unit begins.
std::size_t unit_start(std::string_view text) { return std::min(text.find_first_not_of("0123456789"), text.size()); }

bool is_http_address(std::string_view text) {
  if (text.find('/') != std::string_view::npos) return true;  // a UNIX socket
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view host = text.substr(0, colon);
  const bool in_brackets = host.size() > 2 && host.starts_with('[') && host.ends_with(']');
  std::uint64_t port = 0;
  return parse_unsigned(text.substr(colon + 1), port) && port <= 65'535 &&
         (in_brackets || host.find_first_of("[]:") == std::string_view::npos);
}

std::string in_quotes(std::string_view value) { return fmt::format("\"{}\"", value); }

// ", such as 500ms or 3s": those of the examples that are allowed themselves.
template <typename Value, std::size_t kCount>
std::string such_as(const std::array<std::pair<std::string_view, Value>, kCount>& examples, Value least, Value most) {
  std::vector<std::string_view> allowed;
  for (const auto& [text, value] : examples) {
    if (least <= value && value <= most) allowed.push_back(text);
  }
  return allowed.empty() ? "" : fmt::format(", such as {}", fmt::join(allowed, " or "));
}

std::string size_from(std::uint64_t least, std::uint64_t most) {
  constexpr std::array<std::pair<std::string_view, std::uint64_t>, 1> kExamples{{{"64KiB", 64 << 10}}};
  return fmt::format("a size from {} to {}{}", bytes_text(least), bytes_text(most), such_as(kExamples, least, most));
}

std::string time_from(Duration least, Duration most) {
  constexpr std::array<std::pair<std::string_view, Duration>, 2> kExamples{
      {{"500ms", Duration::milliseconds(500)}, {"3s", Duration::seconds(3)}}};
  return fmt::format("a time from {} to {}{}", duration_text(least), duration_text(most),
                     such_as(kExamples, least, most));
}

}  // namespace

bool parse_bytes(std::string_view text, std::uint64_t& out) {
  const std::size_t split = unit_start(text);
  std::uint64_t count = 0;
  if (!parse_unsigned(text.substr(0, split), count)) return false;
  std::string_view unit = text.substr(split);
  std::uint64_t shift = 0;
  if (!unit.empty() && unit != "B") {
    constexpr std::string_view kLetters = "kmgt";
    const std::size_t power = kLetters.find(static_cast<char>(unit[0] | 0x20));
    if (power == std::string_view::npos) return false;
    unit.remove_prefix(1);
    if (!unit.empty() && unit != "B" && unit != "iB") return false;
    shift = 10 * (power + 1);
  }
  if (shift != 0 && count >> (64 - shift) != 0) return false;
  out = count << shift;
  return true;
}

bool parse_duration(std::string_view text, Duration& out) {
  const std::size_t split = unit_start(text);
  std::uint64_t count = 0;
  if (!parse_unsigned(text.substr(0, split), count)) return false;
  static constexpr std::array<std::pair<std::string_view, Duration>, 5> kUnits{{{"ns", Duration::nanoseconds(1)},
                                                                                {"us", Duration::microseconds(1)},
                                                                                {"ms", Duration::milliseconds(1)},
                                                                                {"s", Duration::seconds(1)},
                                                                                {"min", Duration::seconds(60)}}};
  for (const auto& [name, unit] : kUnits) {
    if (text.substr(split) != name) continue;
    if (count > static_cast<std::uint64_t>(Duration::max() / unit)) return false;
    out = unit * static_cast<std::int64_t>(count);
    return true;
  }
  return false;
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes == 0) return "0";
  constexpr std::array<std::string_view, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes % 1024 == 0 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

std::string duration_text(Duration duration) {
  const std::int64_t ns = duration.nanoseconds();
  if (ns % 1'000'000'000 == 0) return fmt::format("{}s", ns / 1'000'000'000);
  if (ns % 1'000'000 == 0) return fmt::format("{}ms", ns / 1'000'000);
  if (ns % 1'000 == 0) return fmt::format("{}us", ns / 1'000);
  return fmt::format("{}ns", ns);
}

namespace {

Setting size_setting(std::string name, std::uint64_t& target, std::uint64_t least, std::uint64_t most, std::string help,
                     bool or_0) {
  return {std::move(name),
          std::move(help),
          (or_0 ? "0, or " : "") + size_from(least, most),
          bytes_text(target),
          false,
          false,
          [&target, least, most, or_0](std::string_view value) {
            std::uint64_t n = 0;
            if (!parse_bytes(value, n) || n > most || (n < least && !(or_0 && n == 0))) return false;
            return target = n, true;
          },
          {}};
}

}  // namespace

Schema& Schema::add(Setting setting) {
  settings_.push_back(std::move(setting));
  return *this;
}

Schema& Schema::text(std::string name, std::string& target, std::string help, std::string allowed) {
  return add({std::move(name),
              std::move(help),
              std::move(allowed),
              target,
              false,
              false,
              [&target](std::string_view value) { return target = value, true; },
              {}});
}

Schema& Schema::path(std::string name, std::string& target, std::string help, std::string allowed) {
  return add({std::move(name),
              std::move(help),
              std::move(allowed),
              target,
              false,
              false,
              [&target](std::string_view value) { return target = value, !value.empty(); },
              {}});
}

Schema& Schema::integer(std::string name, std::uint64_t& target, std::uint64_t least, std::uint64_t most,
                        std::string help) {
  return add({std::move(name),
              std::move(help),
              fmt::format("a whole number from {} to {}", least, most),
              fmt::to_string(target),
              false,
              false,
              [&target, least, most](std::string_view value) {
                std::uint64_t n = 0;
                if (!parse_unsigned(value, n) || n < least || n > most) return false;
                return target = n, true;
              },
              {}});
}

Schema& Schema::number(std::string name, double& target, double least, double most, std::string help) {
  return add({std::move(name),
              std::move(help),
              fmt::format("a number from {} to {}", least, most),
              fmt::to_string(target),
              false,
              false,
              [&target, least, most](std::string_view value) {
                double n = 0;
                if (!parse_real(value, n) || n < least || n > most) return false;
                return target = n, true;
              },
              {}});
}

Schema& Schema::bytes(std::string name, std::uint64_t& target, std::uint64_t least, std::uint64_t most,
                      std::string help) {
  return add(size_setting(std::move(name), target, least, most, std::move(help), false));
}

Schema& Schema::bytes_or_0(std::string name, std::uint64_t& target, std::uint64_t least, std::uint64_t most,
                           std::string help) {
  return add(size_setting(std::move(name), target, least, most, std::move(help), true));
}

Schema& Schema::duration(std::string name, Duration& target, Duration least, Duration most, std::string help) {
  return add({std::move(name),
              std::move(help),
              time_from(least, most),
              duration_text(target),
              false,
              false,
              [&target, least, most](std::string_view value) {
                Duration d;
                if (!parse_duration(value, d) || d < least || d > most) return false;
                return target = d, true;
              },
              {}});
}

Schema& Schema::choice(std::string name, std::string& target, std::vector<std::string> choices, std::string help,
                       const std::string& open) {
  // The empty word stands for not saying it.
  std::vector<std::string> words = choices;
  const bool may_be_empty = std::erase(words, "") != 0;
  if (!open.empty()) words.push_back(open);
  std::string allowed = fmt::format("one of {}{}", fmt::join(words, ", "), may_be_empty ? ", or empty" : "");
  std::string prefix = open.substr(0, open.find(':') + 1);
  return add({std::move(name),
              std::move(help),
              std::move(allowed),
              target,
              false,
              false,
              [&target, choices, prefix = std::move(prefix)](std::string_view value) {
                const bool is_open = !prefix.empty() && value.starts_with(prefix) && value != prefix;
                if (!is_open && std::find(choices.begin(), choices.end(), value) == choices.end()) return false;
                return target = value, true;
              },
              {},
              std::move(choices),
              open});
}

Schema& Schema::http(std::string name, std::string& target, std::string help) {
  return add({std::move(name),
              std::move(help),
              "HOST:PORT, such as 127.0.0.1:7470; port 0: any that is free",
              target,
              false,
              false,
              [&target](std::string_view value) {
                if (!value.empty() && !is_http_address(value)) return false;
                return target = value, true;
              },
              {}});
}

Schema& Schema::toggle(std::string name, bool& target, std::string help) {
  return add({std::move(name),
              std::move(help),
              "true or false",
              target ? "true" : "false",
              true,
              false,
              [&target](std::string_view value) { return parse_bool(value, target); },
              {}});
}

Schema& Schema::list(std::string name, std::vector<std::string>& target, std::string help, std::string allowed) {
  return add({std::move(name), std::move(help), std::move(allowed), fmt::format("{}", fmt::join(target, " ")), false,
              true, [&target](std::string_view value) { return target.emplace_back(value), !value.empty(); },
              [&target] { target.clear(); }});
}

Schema& Schema::ipv4(std::string name, wire::Ipv4Address& target, std::string help) {
  return add({std::move(name),
              std::move(help),
              "an IPv4 address, such as 10.77.0.0",
              target.to_string(),
              false,
              false,
              [&target](std::string_view value) {
                const auto address = wire::Ipv4Address::parse(value);
                if (!address) return false;
                return target = *address, true;
              },
              {}});
}

const Setting* Schema::find(std::string_view name) const {
  const auto found = std::find_if(settings_.begin(), settings_.end(), [&](const Setting& s) { return s.name == name; });
  return found == settings_.end() ? nullptr : &*found;
}

std::string Schema::names() const {
  std::vector<std::string_view> names;
  for (const Setting& s : settings_) names.push_back(s.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Result<void> Schema::set(const Setting& setting, std::string_view value, const std::string& where) {
  if (setting.set(value)) return {};
  return fail(fmt::format("{} = {}: must be {}", where, in_quotes(value), setting.allowed));
}

namespace {

// The value as the user wrote it, near enough, or nothing for tables and the like.
std::string text_of(const toml::node& node) {
  if (const auto* s = node.as_string()) return s->get();
  if (const auto* i = node.as_integer()) return fmt::to_string(i->get());
  if (const auto* d = node.as_floating_point()) return fmt::to_string(d->get());
  if (const auto* b = node.as_boolean()) return b->get() ? "true" : "false";
  std::ostringstream out;
  out << toml::node_view<const toml::node>(&node);
  std::string text = out.str();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string place_of(const std::string& path, const toml::node& node) {
  return fmt::format("{}: line {}", path, node.source().begin.line);
}

// `path`: of the file in which it stands.
std::string value_of(const Setting& setting, const toml::node& node, const std::string& path) {
  std::string text = text_of(node);
  const bool is_path = setting.allowed == kFilePath || setting.allowed == kFolderPath;
  if (!is_path || text.empty()) return text;
  return (std::filesystem::absolute(path).parent_path() / text).string();  // an absolute one stays
}

Result<void> apply_value(const Setting& setting, const toml::node& node, const std::string& path,
                         const std::string& where) {
  const toml::array* array = node.as_array();
  if (array == nullptr) {
    if (node.is_table())
      return fail(fmt::format("{} = {}: must be {}", where, in_quotes(text_of(node)), setting.allowed));
    if (setting.is_list) setting.clear();
    return Schema::set(setting, value_of(setting, node, path), where);
  }
  if (!setting.is_list)
    return fail(fmt::format("{} = {}: must be {}", where, in_quotes(text_of(node)), setting.allowed));
  setting.clear();
  for (const toml::node& element : *array) {
    if (auto done = Schema::set(setting, text_of(element), where); !done) return done;
  }
  return {};
}

std::string names_of(const Tables& tables) {
  std::vector<std::string_view> names;
  for (const auto& [name, schema] : tables) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Result<void> apply_table(const toml::table& content, const std::string& name, const Schema& schema,
                         const std::string& path) {
  for (const auto& [key, node] : content) {
    const Setting* setting = schema.find(key.str());
    if (setting == nullptr) {
      Meant meant(key.str());
      for (const Setting& one : schema.settings()) meant.offer(one.name, one.name);
      std::string guess = meant.text();
      if (guess.empty()) guess = fmt::format("; [{}] has {}", name, schema.names());
      return fail(fmt::format("{}: [{}] {} = {}: unknown key{}", place_of(path, node), name, key.str(),
                              in_quotes(text_of(node)), guess));
    }
    const std::string where = fmt::format("{}: [{}] {}", place_of(path, node), name, key.str());
    if (auto done = apply_value(*setting, node, path, where); !done) return done;
  }
  return {};
}

tl::unexpected<Error> no_such_table(const std::string& name, const toml::node& node, const std::string& path,
                                    const Tables& tables) {
  const std::string all = names_of(tables);
  if (!node.is_table())
    return fail(fmt::format("{}: {} = {}: stands in no [table]; there are {}", place_of(path, node), name,
                            in_quotes(text_of(node)), all));
  Meant meant(name);
  for (const auto& [table, schema] : tables) meant.offer(table, fmt::format("[{}]", table));
  std::string guess = meant.text();
  if (guess.empty()) guess = "; there are " + all;
  return fail(fmt::format("{}: [{}]: unknown table{}", place_of(path, node), name, guess));
}

// Of a line that is no TOML: a size or a time as its value, which needs quotes.
std::string unquoted(std::string_view text, toml::source_index line) {
  for (; line > 1; --line) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  text = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.find('='), text.size()));
  text.remove_prefix(std::min(text.find_first_not_of("= \t["), text.size()));
  text = text.substr(0, text.find_first_of(" \t\r,]#"));
  std::uint64_t bytes = 0;
  Duration time;
  const bool has_unit = text.find_first_not_of("0123456789") != std::string_view::npos;
  if (!has_unit || (!parse_bytes(text, bytes) && !parse_duration(text, time))) return "";
  return fmt::format("; sizes and times are in quotes: {}", in_quotes(text));
}

}  // namespace

Result<void> parse_toml(std::string_view text, const std::string& path, const Tables& tables) {
  toml::table file;
  try {
    file = toml::parse(text);
  } catch (const toml::parse_error& e) {
    const auto line = e.source().begin.line;
    return fail(fmt::format("{}: line {}: no valid TOML: {}{}", path, line, e.description(), unquoted(text, line)));
  }
  for (const auto& [key, node] : file) {
    const std::string name(key.str());
    const auto table = tables.find(name);
    const bool known = table != tables.end() && node.is_table();
    if (!known) return no_such_table(name, node, path, tables);
    if (auto done = apply_table(*node.as_table(), name, *table->second, path); !done) return done;
  }
  return {};
}

Result<void> load_toml(const std::string& path, const Tables& tables) {
  const auto text = read_whole_file(path);
  if (!text) return fail(fmt::format("--config: {}; give the path of a TOML file", text.error().message));
  return parse_toml(*text, path, tables);
}

}  // namespace sluice::rack
