#include "cli/reference.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <map>

#include "base/version.h"

namespace sluice::cli {
namespace {

const auto kAll = [](const CLI::App*) { return true; };

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  std::vector<const CLI::App*> out = app.get_subcommands(kAll);
  std::erase_if(out, [](const CLI::App* sub) { return sub->get_group().empty() || sub->get_name().empty(); });
  return out;
}

// Of a command some options of which are alternatives (Arguments::exactly_one()): to CLI11, a subcommand without a name each.
std::vector<const CLI::App*> alternatives(const CLI::App& app) {
  std::vector<const CLI::App*> out = app.get_subcommands(kAll);
  std::erase_if(out, [](const CLI::App* sub) { return !sub->get_name().empty(); });
  return out;
}

// Without --help, which each has from the command.
std::vector<const CLI::Option*> options_of_group(const CLI::App& group) {
  std::vector<const CLI::Option*> out = group.get_options();
  std::erase(out, group.get_help_ptr());
  return out;
}

std::vector<const CLI::Option*> options(const CLI::App& app, bool positional) {
  std::vector<const CLI::Option*> out = app.get_options();
  for (const CLI::App* group : alternatives(app)) {
    const auto more = options_of_group(*group);
    out.insert(out.end(), more.begin(), more.end());
  }
  std::erase_if(out, [=](const CLI::Option* o) { return o->get_group().empty() || o->get_positional() != positional; });
  return out;
}

const CLI::Option* find_flag(const CLI::App& app, const std::string& word) {
  for (const CLI::Option* option : options(app, false)) {
    const auto is = [&](const std::string& prefix, const std::vector<std::string>& names) {
      return std::any_of(names.begin(), names.end(), [&](const auto& name) { return prefix + name == word; });
    };
    if (is("--", option->get_lnames()) || is("-", option->get_snames())) return option;
  }
  return nullptr;
}

// Values of CLI11's own type names that say nothing.
std::string value_name(const CLI::Option& option) {
  const std::string name = option.get_type_name();
  return name.empty() || name == "TEXT" ? "VALUE" : name;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Of whoever reads it, not of whoever asks for it.
constexpr const char* kRunDirectory = "$SLUICE_DIR, or $XDG_RUNTIME_DIR/sluice, or /tmp/sluice-UID";

std::string description(const CLI::Option& option) {
  std::string text = option.get_description();
  const std::string here = fmt::format("[{}]", rack::RunDirectory::default_path());
  if (text.ends_with(here)) text.replace(text.size() - here.size(), here.size(), fmt::format("[{}]", kRunDirectory));
  return text;
}

// Lines of the footer after its heading.
std::vector<std::string> examples(const CLI::App& app) {
  std::vector<std::string> out;
  std::string text = app.get_footer();
  std::size_t at = text.find('\n');
  while (at != std::string::npos) {
    const std::size_t end = text.find('\n', at + 1);
    std::string line = text.substr(at + 1, end == std::string::npos ? end : end - at - 1);
    if (line.starts_with("  ")) out.push_back(line.substr(2));
    at = end;
  }
  return out;
}

std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += std::string("\\&") + c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

}  // namespace

std::vector<Candidate> complete(const CLI::App& root, const Commands& commands, std::span<const std::string> words) {
  const std::string last = words.empty() ? "" : words.back();
  const CLI::App* app = &root;
  const CLI::Option* awaits = nullptr;  // its value comes next
  for (const std::string& word : words.first(words.empty() ? 0 : words.size() - 1)) {
    if (awaits != nullptr) {
      awaits = nullptr;
      continue;
    }
    if (word.starts_with("-")) {
      const CLI::Option* const option = find_flag(*app, word);
      if (option != nullptr && takes_value(*option)) awaits = option;
      continue;
    }
    const auto below = subcommands(*app);
    const auto next = std::find_if(below.begin(), below.end(), [&](auto* sub) { return sub->get_name() == word; });
    if (next != below.end()) app = *next;
  }
  std::vector<Candidate> out;
  const auto offer = [&](const std::string& word, const std::string& what) {
    if (word.starts_with(last)) out.push_back({word, one_line(what)});
  };
  if (awaits != nullptr) {
    const auto command = std::find_if(commands.begin(), commands.end(), [&](const auto& c) { return c->is(*app); });
    if (command == commands.end()) return out;
    for (const std::string& choice : (*command)->choices(*awaits)) offer(choice, "");
  } else if (last.starts_with("-")) {
    for (const CLI::Option* option : options(*app, false)) {
      for (const std::string& name : option->get_lnames()) offer("--" + name, option->get_description());
    }
  } else {
    for (const CLI::App* sub : subcommands(*app)) offer(sub->get_name(), sub->get_description());
  }
  return out;
}

std::string flag_text(const CLI::Option& option) {
  std::string out;
  for (const auto& name : option.get_snames()) out += fmt::format("{}-{}", out.empty() ? "" : ", ", name);
  for (const auto& name : option.get_lnames()) out += fmt::format("{}--{}", out.empty() ? "" : ", ", name);
  if (!takes_value(option)) return out;
  const bool several = option.get_items_expected_max() > 1 && option.get_allow_extra_args();
  return fmt::format("{} {}{}", out, value_name(option), several ? "..." : "");
}

std::string synopsis(const CLI::App& app) {
  std::string out = full_name(app);
  const bool leads_on = !subcommands(app).empty();
  if (leads_on && app.get_require_subcommand_min() != 0) return out + " COMMAND";
  out += leads_on ? " [OPTIONS] [COMMAND]" : " [OPTIONS]";
  for (const CLI::App* group : alternatives(app)) {
    std::string words;
    for (const CLI::Option* option : options_of_group(*group))
      words += fmt::format("{}{}", words.empty() ? "" : " | ", flag_text(*option));
    out += fmt::format(" ({})", words);
  }
  for (const CLI::Option* option : options(app, true)) {
    std::string name = option->get_name(true);
    if (option->get_items_expected_max() > 1) name += "...";
    out += option->get_required() ? " " + name : fmt::format(" [{}]", name);
  }
  return out;
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : full_name(*app.get_parent()) + " " + app.get_name();
}

std::vector<const CLI::App*> with_subcommands(const CLI::App& app) {
  std::vector<const CLI::App*> out = {&app};
  for (const CLI::App* sub : subcommands(app)) {
    const auto below = with_subcommands(*sub);
    out.insert(out.end(), below.begin(), below.end());
  }
  return out;
}

std::string man_page(const CLI::App& app) {
  const std::string name = dashed(full_name(app));
  std::string title = name;
  std::transform(title.begin(), title.end(), title.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string out = fmt::format(".TH {} 1 \"\" \"sluice {}\" \"Sluice\"\n.ad l\n", title, kVersion);
  out += fmt::format(".SH NAME\n{} \\- {}\n", roff(name), roff(app.get_description()));
  out += fmt::format(".SH SYNOPSIS\n.B {}\n", roff(synopsis(app)));
  const auto below = subcommands(app);
  if (!below.empty()) out += ".SH COMMANDS\n";
  for (const CLI::App* sub : below)
    out += fmt::format(".TP\n.BR {} (1)\n{}\n", roff(dashed(full_name(*sub))), roff(sub->get_description()));
  const auto flags = options(app, false);
  if (!flags.empty()) out += ".SH OPTIONS\n";
  for (const CLI::Option* option : flags)
    out += fmt::format(".TP\n.B {}\n{}\n", roff(flag_text(*option)), roff(description(*option)));
  for (const CLI::Option* option : options(app, true))
    out += fmt::format(".TP\n.I {}\n{}\n", roff(option->get_name(true)), roff(option->get_description()));
  const auto lines = examples(app);
  if (!lines.empty()) out += ".SH EXAMPLES\n.nf\n";
  for (const std::string& line : lines) out += roff(line) + "\n";
  if (!lines.empty()) out += ".fi\n";
  if (app.get_parent() != nullptr)
    out += fmt::format(".SH SEE ALSO\n.BR {} (1)\n", roff(dashed(full_name(*app.get_parent()))));
  return out;
}

std::string markdown(const CLI::App& app) {
  std::string out = fmt::format("## {}\n\n{}.\n\n    {}\n\n", full_name(app), app.get_description(), synopsis(app));
  for (const CLI::Option* option : options(app, true))
    out += fmt::format("- `{}`: {}\n", option->get_name(true), one_line(option->get_description()));
  for (const CLI::Option* option : options(app, false))
    out += fmt::format("- `{}`: {}\n", flag_text(*option), one_line(description(*option)));
  const auto lines = examples(app);
  if (!lines.empty()) out += "\nExamples:\n\n";
  for (const std::string& line : lines) out += fmt::format("    {}\n", line);
  return out + "\n";
}

std::string settings_markdown(const Commands& commands) {
  std::map<std::string, const rack::Schema*> tables;
  for (const auto& command : commands) {
    for (const auto& [name, schema] : command->tables()) tables.emplace(name, schema);
  }
  std::string out =
      "# Settings\n\nWhat a TOML file may say that `--config FILE` names. Flags of the same names win. A key or table "
      "that is not here is an "
      "error, with the line where it stands. One file can serve all commands.\n\n";
  const auto cell = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
    return one_line(text);
  };
  for (const auto& [name, schema] : tables) {
    out += fmt::format("## [{}]\n\n| key | default | must be | |\n|---|---|---|---|\n", name);
    for (const rack::Setting& setting : schema->settings()) {
      const std::string usual =
          setting.default_text == rack::RunDirectory::default_path() ? kRunDirectory : setting.default_text;
      out += fmt::format("| `{}`{} | {} | {} | {} |\n", setting.name, setting.is_list ? " (a list)" : "",
                         usual.empty() ? "" : fmt::format("`{}`", usual), cell(setting.allowed), cell(setting.help));
    }
    out += "\n";
  }
  return out;
}

}  // namespace sluice::cli
