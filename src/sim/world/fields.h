// Fields: reads a TOML table key by key, with units, and says what is wrong with it.
//
// Life:       Fields(table, …) -> over() for tables that come on top -> duration(), integer() … for each key there may be -> finish().
// Units:      written out: "54.6 ns", "100 Gb/s", "2 MiB".
// Errors:     the first one found: file, line, key, and what is allowed. finish() finds keys that nobody asked for.
#pragma once

#include <toml++/toml.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace sluice::sim {

Result<toml::table> parse_toml(std::string_view text, const std::string& path);
Result<std::string> read_text(const std::string& path);

// Numbers with units, exact: no floating point.
bool parse_duration(std::string_view text, Duration& out);         // ps, ns, us, ms, s
bool parse_rate(std::string_view text, std::uint64_t& out);        // b/s, Mb/s, Gb/s
bool parse_byte_count(std::string_view text, std::uint64_t& out);  // B, KiB, MiB, GiB

class Fields {
 public:
  enum class Sources : std::uint8_t { kNone, kRequired };

  // `section` is for messages. With kRequired each value is a table {value = …, source = "…"}. `first_error` may be shared by several
  // readers; what is read after an error is not looked at.
  Fields(const toml::table& table, std::string path, std::string section, std::string& first_error,
         Sources sources = Sources::kNone);

  // What this table says goes before what earlier ones say; its key "name" is its own. `section` is for messages, as above.
  void over(const toml::table& table, std::string section);
  // And this node before all of them.
  void replace(std::string_view key, const toml::node& node, std::string section);

  enum class Need : std::uint8_t { kRequired, kOptional };
  // At most kLongest, so that sums of them are durations, too; span(): and longer than nothing, as what rates are of.
  static constexpr Duration kLongest = Duration::seconds(1000);
  void duration(std::string_view key, Duration& out, Need need = Need::kRequired);
  void duration(std::string_view key, Duration& out, Duration least, Duration most, Need need = Need::kRequired);
  void span(std::string_view key, Duration& out, Need need = Need::kRequired);
  // Of a thread's time, from 0 to kHighestCost: what it becomes on a busy machine, times thousands under way, is a duration still.
  static constexpr Duration kHighestCost = Duration::seconds(1);
  void cost(std::string_view key, Duration& out, Need need = Need::kRequired);
  // Such that 64 bits take a picosecond at least.
  static constexpr std::uint64_t kHighestRate = 64'000'000'000'000;
  void rate(std::string_view key, std::uint64_t& out, Need need = Need::kRequired);
  void rate(std::string_view key, std::uint64_t& out, std::uint64_t least_mbps, Need need = Need::kRequired);
  void byte_count(std::string_view key, std::uint64_t& out, Need need = Need::kRequired);
  void byte_count(std::string_view key, std::uint64_t& out, std::uint64_t least, std::uint64_t most,
                  Need need = Need::kRequired);
  void integer(std::string_view key, std::uint64_t& out, std::uint64_t least, std::uint64_t most,
               Need need = Need::kRequired);
  // Text of port/impairment.h, "drop=1%,reorder=1%", that means both directions alike; kept as it is.
  void impairment(std::string_view key, std::string& out, Need need = Need::kRequired);
  void toggle(std::string_view key, bool& out, Need need = Need::kRequired);
  void text(std::string_view key, std::string& out, Need need = Need::kRequired);
  void choice(std::string_view key, std::string& out, const std::vector<std::string_view>& choices,
              Need need = Need::kRequired);
  // Everything else the caller reads by itself.
  const toml::node* node(std::string_view key, Need need = Need::kRequired);
  // How late a key is said: the later goes before. 0: nowhere.
  std::size_t rank(std::string_view key) const;

  // Keys that are left are unknown. False: there has been an error.
  bool finish();
  void fail(const toml::node& at, std::string_view key, std::string_view what);
  bool failed() const { return !error_.empty(); }

 private:
  const toml::node* find(std::string_view key) const;
  const toml::node* value(std::string_view key, Need need);
  template <class T, class Parse>
  void parsed(std::string_view key, T& out, Need need, std::string_view allowed, Parse parse);

  // The section that has this node, the first one's where none says it that way.
  const std::string& section_of(const toml::node& at) const;

  struct Layer {
    const toml::table* table;
    std::string section;
  };
  struct Replaced {
    const toml::node* node;
    std::string section;
  };
  std::vector<Layer> layers_;  // at least one
  std::string path_;
  std::string& error_;
  Sources sources_;
  std::set<std::string, std::less<>> known_;
  std::map<std::string, Replaced, std::less<>> replaced_;
};

}  // namespace sluice::sim
