// Command: one subcommand of `sluice`: its flags, the same settings from a TOML file, its run.
//
// Declares:   settings with use(), which files may set too; what only the command line says with option() and flag(). CLI11 itself, which
//             takes seconds to compile, is seen by the few files that make, walk or explain the parser.
// Life:       constructed with the parser -> settings() declares -> CLI11 parses -> execute(): file, then flags, then check(), then run().
// Errors:     one line on stderr, "sluice switch: …". Exit codes: 0 fine, 1 it failed, 2 it was asked wrongly, 130 interrupted (docs/operate.md, "Exit status").
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "rack/settings/config.h"
#include "rack/settings/schema.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace sluice::cli {

inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;  // as a shell says after Ctrl-C

using rack::Tables;

// A command that leads to others: it is not run itself, one of its own must be named.
CLI::App& add_group(CLI::App& root, const std::string& name, const std::string& what);

// One option, flag or positional, as it is declared; what is said of it is checked in the order in which it is said.
class Argument {
 public:
  explicit Argument(CLI::Option& option) : option_(&option) {}

  Argument required();
  // What help shows for its value.
  Argument type_name(const std::string& name);
  // What help shows as its default.
  Argument default_text(const std::string& text);
  Argument excludes(Argument other);
  // Help shows the words.
  Argument one_of(const std::vector<std::string>& words);
  // A whole number, of any size.
  Argument not_negative();
  // A whole number; both are allowed.
  Argument between(std::uint64_t least, std::uint64_t most);
  Argument between(Duration least, Duration most);

 private:
  CLI::Option* option_;
};

// Where arguments are declared: a command, or a few of its options of which exactly one must be given. The value stays what it is when the
// command line says nothing. A name without dashes is that of a positional.
class Arguments {
 public:
  explicit Arguments(CLI::App& app) : app_(&app) {}

  Argument option(const std::string& name, std::string& value, const std::string& what);
  Argument option(const std::string& name, std::vector<std::string>& values, const std::string& what);
  Argument option(const std::string& name, int& value, const std::string& what);
  Argument option(const std::string& name, std::uint32_t& value, const std::string& what);
  Argument option(const std::string& name, std::uint64_t& value, const std::string& what);
  // "500ms"
  Argument option(const std::string& name, Duration& value, const std::string& what);
  Argument option(const std::string& name, std::optional<bool>& value, const std::string& what);
  Argument option(const std::string& name, std::optional<std::uint64_t>& value, const std::string& what);
  Argument flag(const std::string& name, bool& on, const std::string& what);
  Arguments exactly_one(const std::string& name, const std::string& what);

 protected:
  CLI::App* app_;
};

class Command : protected Arguments {
 public:
  // `examples` end the help, a line each.
  Command(CLI::App& parent, const std::string& name, const std::string& what, const std::vector<std::string>& examples);
  virtual ~Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  bool chosen() const;
  bool is(const CLI::App& app) const { return app_ == &app; }
  // What an option may be set to, where that is a few words.
  std::vector<std::string> choices(const CLI::Option& option) const;
  // `all`: every command's tables, because one file may serve them all.
  int execute(const Tables& all);
  const Tables& tables() const { return own_; }

 protected:
  // What can be told from the settings alone, before anything is touched. An error is reported and exits with kExitUsage.
  virtual Result<void> check() { return {}; }
  // An error is reported and exits with kExitFailed.
  virtual Result<int> run() = 0;
  // What run() returns, once it has said so, when the user interrupted it before it was through.
  int interrupted(const std::string& what) const;

  CLI::App& app() { return *app_; }
  // Gives the command --config and --dir.
  void use_rack();
  // Flags for all settings of the schema, which [table] of a file may set too.
  void use(const std::string& table, rack::Schema& schema);
  const std::string& config_path() const { return config_; }
  // Whether the command line says the setting of this name; what a file says does not count, for it may be there for other commands.
  bool given(std::string_view setting) const;
  // Every command's tables, as execute() was given them.
  const Tables& all_tables() const { return *all_; }
  rack::RackSettings& rack() { return rack_; }
  rack::Schema& rack_schema() { return rack_schema_; }
  rack::RunDirectory run_directory() const { return rack::RunDirectory(rack_.dir); }

 private:
  struct Flag {
    const rack::Setting* setting;
    CLI::Option* option;
    std::vector<std::string> values;
    bool on = false;
  };
  void add_flag(const rack::Setting& setting);
  Result<void> configure(const Tables& all);

  std::string name_;
  Tables own_;
  std::vector<std::unique_ptr<Flag>> flags_;
  std::string config_;
  const Tables* all_ = nullptr;
  rack::RackSettings rack_;
  rack::Schema rack_schema_;
};

// What commands write to people: progress lines go to stderr, results to stdout.
void say(const std::string& line);
// The same on stdout, for commands that take down at their end what they have brought up: whoever reads may go before that. From
// outlive_readers() on that ends nobody; what was not taken is lost, and the exit code says so.
void outlive_readers();
void tell_at_once(const std::string& text);
// Writes a file whole or not at all: whoever dies meanwhile leaves what was there before. The error says why not, but not where.
Result<void> write_whole(const std::string& path, const std::string& text);
// Whether that may be, before the work is done that the result is of.
Result<void> check_output(const std::string& path, std::string_view flag = "out");
// Writes a result to the file that --out names, or to stdout when it names none.
Result<void> write_output(const std::string& out, const std::string& text);

}  // namespace sluice::cli
