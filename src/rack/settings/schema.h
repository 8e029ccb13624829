// Schema: the settings of one command, declared once, set from a TOML table and from flags of the same names.
//
// Life:     declare with text(), integer(), size() … -> set() from the file, then from the flags -> the bound variables have their values.
// Errors:   one line: where it stands, the value, and what is allowed.
// Source:   ARCHITECTURE.md "Errors"; tomlplusplus.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "wire/address.h"

namespace sluice::rack {

struct Setting {
  std::string name;  // of the key and of the flag: "value-size"
  std::string help;
  std::string allowed;  // completes "must be …"
  std::string default_text;
  bool is_switch = false;                     // a flag without a value sets it to true
  bool is_list = false;                       // may be given several times
  std::function<bool(std::string_view)> set;  // false: not allowed
  std::function<void()> clear;                // lists: before the first set() of a source
  std::vector<std::string> choices{};         // all that is allowed, where that is a few words
  std::string open{};                         // "at:NODE", say: and all that begins like it
};

// What is allowed of paths: in a file of settings a relative one begins at that file's folder, not where the program is started.
inline constexpr const char* kFilePath = "a file's path";
inline constexpr const char* kFolderPath = "a directory's path";

class Schema {
 public:
  // The bound variables outlive the schema and hold the defaults now.
  Schema& text(std::string name, std::string& target, std::string help, std::string allowed = "text");
  // Of a file or a folder that there must be: not empty.
  Schema& path(std::string name, std::string& target, std::string help, std::string allowed);
  Schema& integer(std::string name, std::uint64_t& target, std::uint64_t least, std::uint64_t most, std::string help);
  Schema& number(std::string name, double& target, double least, double most, std::string help);
  Schema& bytes(std::string name, std::uint64_t& target, std::uint64_t least, std::uint64_t most, std::string help);
  // The same, or 0.
  Schema& bytes_or_0(std::string name, std::uint64_t& target, std::uint64_t least, std::uint64_t most,
                     std::string help);
  Schema& duration(std::string name, Duration& target, Duration least, Duration most, std::string help);
  // `open`: "at:NODE", say, when all that begins with "at:" and goes on is allowed too.
  Schema& choice(std::string name, std::string& target, std::vector<std::string> choices, std::string help,
                 const std::string& open = {});
  // "HOST:PORT", "[V6]:PORT", a UNIX socket's path, or nothing.
  Schema& http(std::string name, std::string& target, std::string help);
  Schema& toggle(std::string name, bool& target, std::string help);
  Schema& list(std::string name, std::vector<std::string>& target, std::string help, std::string allowed);
  Schema& ipv4(std::string name, wire::Ipv4Address& target, std::string help);

  const std::vector<Setting>& settings() const { return settings_; }
  const Setting* find(std::string_view name) const;
  // Names, joined: "a, b, c".
  std::string names() const;

  // `where` comes first in the message: "--size", "rack.toml: line 3: [memory] size".
  static Result<void> set(const Setting& setting, std::string_view value, const std::string& where);

 private:
  Schema& add(Setting setting);
  std::vector<Setting> settings_;
};

// The tables that a file may have.
using Tables = std::map<std::string, Schema*>;

// Sets from a TOML file whose tables are named after the schemas; other tables and keys are refused.
Result<void> load_toml(const std::string& path, const Tables& tables);
// The same from text; `path` is for messages.
Result<void> parse_toml(std::string_view text, const std::string& path, const Tables& tables);

// "16GiB", "64k", "4096"; binary units, with or without "iB" or "B".
bool parse_bytes(std::string_view text, std::uint64_t& out);
// "3s", "500ms", "20us".
bool parse_duration(std::string_view text, Duration& out);
std::string bytes_text(std::uint64_t bytes);
std::string duration_text(Duration duration);

}  // namespace sluice::rack
