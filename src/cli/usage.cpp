#include "cli/usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
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

}  // namespace

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
  std::ranges::replace(what, '\n', ' ');
  const bool asks = what.ends_with('?');
  return fmt::format("{}: {}{} `{} --help` tells more\n", full_name(*app), what, asks ? "" : ";", full_name(*app));
}

}  // namespace sluice::cli
