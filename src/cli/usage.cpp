#include "cli/usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/reference.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kMostNamed = 12;  // commands in a message
constexpr std::size_t kMostMeant = 3;

// How many letters are to be put in, left out, replaced or swapped with their neighbour to make one word of the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const bool same = a[i - 1] == b[j - 1];
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

// Words that may have been meant, the nearest first.
class Meant {
 public:
  explicit Meant(std::string_view word) : word_(word) {}

  void offer(std::string_view word, std::string as) {
    if (word_.empty()) return;
    const std::size_t most = word_.size() < 4 ? 1 : 2;
    const bool begun = word_.size() > 1 && word.starts_with(word_);
    const std::size_t far = begun ? 1 : distance(word_, word);
    if (far <= most) found_.emplace_back(far, std::move(as));
  }
  // "; did you mean `sluice box`?", or nothing.
  std::string text() {
    std::ranges::stable_sort(found_, {}, &std::pair<std::size_t, std::string>::first);
    std::vector<std::string> words;
    for (const auto& [far, as] : found_) {
      if (far == found_.front().first && words.size() < kMostMeant) words.push_back(fmt::format("`{}`", as));
    }
    return words.empty() ? "" : fmt::format("; did you mean {}?", fmt::join(words, " or "));
  }

 private:
  std::string_view word_;
  std::vector<std::pair<std::size_t, std::string>> found_;
};

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
  Meant meant(word);
  const auto names = commands_of(app);
  for (const std::string& name : names) meant.offer(name, full_name(app) + " " + name);
  for (const CLI::App* other : with_subcommands(root)) {
    const bool elsewhere = other->get_parent() != nullptr && other->get_parent() != &app;
    const bool alike = other->get_name() == word || (word.size() >= 4 && distance(other->get_name(), word) == 1);
    if (elsewhere && alike) meant.offer(other->get_name(), full_name(*other));
  }
  std::string guess = meant.text();
  if (guess.empty() && names.size() <= kMostNamed) guess = fmt::format("; there are {}", fmt::join(names, ", "));
  return fmt::format("there is no command \"{}\"{}", word, guess);
}

std::string no_such_option(const CLI::App& app, const std::string& word) {
  const std::string bare = word.substr(0, word.find('='));
  Meant meant(bare);
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
