#include "cli/usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <sstream>
#include <vector>

#include "cli/reference.h"
#include "rack/settings/meant.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kMostNamed = 12;  // commands in a message

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!sub->get_name().empty() && !sub->get_group().empty()) names.push_back(sub->get_name());
  }
  return names;
}

// The command that the line led to, those on the way to it first.
std::vector<const CLI::App*> way_to_command(const CLI::App& root) {
  std::vector<const CLI::App*> way{&root};
  for (auto below = root.get_subcommands(); !below.empty(); below = way.back()->get_subcommands())
    way.push_back(below.back());
  return way;
}

std::string no_such_command(const CLI::App& root, const CLI::App& app, const std::string& word) {
  rack::Meant meant(word);
  const auto names = commands_of(app);
  for (const std::string& name : names) meant.offer(name, full_name(app) + " " + name);
  for (const CLI::App* other : with_subcommands(root)) {
    const bool elsewhere = other->get_parent() != nullptr && other->get_parent() != &app;
    const bool alike =
        other->get_name() == word || (word.size() >= 4 && rack::letters_between(other->get_name(), word) == 1);
    if (elsewhere && alike) meant.offer(other->get_name(), full_name(*other));
  }
  std::string guess = meant.text();
  if (guess.empty() && names.size() <= kMostNamed) guess = fmt::format("; there are {}", fmt::join(names, ", "));
  return fmt::format("there is no command \"{}\"{}", word, guess);
}

std::string no_such_option(const CLI::App& app, const std::string& word) {
  const std::string bare = word.substr(0, word.find('='));
  rack::Meant meant(bare);
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) meant.offer("--" + name, "--" + name);
  }
  return fmt::format("there is no option \"{}\"{}", bare, meant.text());
}

constexpr std::size_t kLeastText =
    24;  // letters of a line: where there is no room for them, the terminal breaks lines as it likes

// Of the terminal that help goes to; none: it goes elsewhere, and lines are as long as they are.
std::optional<std::size_t> terminal_width() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
    return std::nullopt;
  return size.ws_col;
}

// With line ends where a line would begin at `indent` and be longer than `width`.
std::string wrapped(const std::string& text, std::size_t indent, std::optional<std::size_t> width) {
  if (!width || *width < indent + kLeastText) return text;
  std::string out;
  std::size_t length = 0;  // of the line
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool fits = length == 0 || indent + length + 1 + word.size() <= *width;
    out += length == 0 ? "" : fits ? " " : "\n";
    length = fits && length != 0 ? length + 1 + word.size() : word.size();
    out += word;
  }
  return out;
}

class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    std::string what = option->get_description();
    for (const CLI::Option* other : option->get_excludes()) what += fmt::format("; not with {}", other->get_name());
    return line(is_positional ? option->get_name(true) : flag_text(*option), what);
  }
  std::string make_subcommand(const CLI::App* app) const override {
    return line(app->get_display_name(true), app->get_description());
  }
  std::string make_usage(const CLI::App* app, std::string) const override {
    return fmt::format("Usage: {}\n", synopsis(*app));
  }
  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description(), 0, terminal_width()) + "\n";
  }
  // Options of which one must be given: to CLI11, a subcommand without a name.
  std::string make_expanded(const CLI::App* group) const override {
    std::string out = "\nOne of:\n";
    for (const CLI::Option* option : group->get_options()) {
      if (option != group->get_help_ptr()) out += make_option(option, false);
    }
    return out;
  }

 private:
  std::string line(const std::string& name, const std::string& what) const {
    std::ostringstream out;
    CLI::detail::format_help(out, name, wrapped(what, get_column_width(), terminal_width()), get_column_width());
    return out.str();
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

std::string usage_error(const CLI::App& root, const CLI::Error& error) {
  const auto way = way_to_command(root);
  const CLI::App* app = way.back();
  std::string what = error.what();
  const auto lost = std::ranges::find_if(way, [](const CLI::App* one) { return !one->remaining().empty(); });
  const bool leads_on = app->get_require_subcommand_min() != 0 && app->get_subcommands().empty();
  if (lost != way.end()) {
    app = *lost;
    const std::string word = app->remaining().front();
    what = word.starts_with("-")       ? no_such_option(*app, word)
           : commands_of(*app).empty() ? fmt::format("\"{}\" is one word too many", word)
                                       : no_such_command(root, *app, word);
  } else if (leads_on) {
    const auto names = commands_of(*app);
    what = names.size() > kMostNamed ? "a command is missing"
                                     : fmt::format("a command is missing: one of {}", fmt::join(names, ", "));
  }
  // "--size: 1 required  missing"
  if (const auto missing = what.find(": 1 required "); missing != std::string::npos)
    what.replace(missing, std::string::npos, ": its value is missing");
  // "Exactly 1 option from [--text,--hex] is required and 2 were given"
  if (const std::string_view head = "Exactly 1 option from ["; what.starts_with(head)) {
    std::string names = what.substr(head.size(), what.find(']') - head.size());
    for (std::size_t at = 0; (at = names.find(',', at)) != std::string::npos; at += 2) names.insert(at + 1, " ");
    what = fmt::format("one of {} must be given, and only one", names);
  }
  std::ranges::replace(what, '\n', ' ');
  const bool asks = what.ends_with('?');
  return fmt::format("{}: {}{} `{} --help` tells more\n", full_name(*app), what, asks ? "" : ";", full_name(*app));
}

}  // namespace sluice::cli
