#include "cli/command.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace sluice::cli {

namespace {

// An empty word among the choices stands for leaving the flag out.
std::vector<std::string> named(std::vector<std::string> choices) {
  std::erase(choices, "");
  return choices;
}

}  // namespace

// Whether anybody hears it is nobody's concern.
void say(const std::string& line) { static_cast<void>(std::fputs((line + '\n').c_str(), stderr)); }

// Not SIG_IGN, which programs that we start would inherit.
void outlive_readers() {
  signal(SIGPIPE, [](int) {});
}

void tell_at_once(const std::string& text) {
  static_cast<void>(std::fputs(text.c_str(), stdout));
  std::fflush(stdout);
}

namespace {

namespace fs = std::filesystem;

Result<void> write_in_place(const fs::path& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return fail(fmt::format("cannot be written: {}", errno == 0 ? "unknown reason" : std::strerror(errno)));
  return {};
}

// Where a link leads.
fs::path place_of(const std::string& path) {
  std::error_code error;
  return fs::is_symlink(fs::symlink_status(path, error)) ? fs::weakly_canonical(path, error) : fs::path(path);
}
fs::path aside_of(const fs::path& place) { return fmt::format("{}.{}", place.string(), getpid()); }

// A pipe or a device is written to as it is.
bool is_special(const fs::file_status& status) { return fs::exists(status) && !fs::is_regular_file(status); }

}  // namespace

Result<void> write_whole(const std::string& path, const std::string& text) {
  std::error_code error;
  const fs::file_status before = fs::status(path, error);
  if (is_special(before)) return write_in_place(path, text);
  const fs::path place = place_of(path);
  const fs::path aside = aside_of(place);
  auto written = write_in_place(aside, text);
  if (written) {
    if (fs::exists(before)) fs::permissions(aside, before.permissions(), error);
    fs::rename(aside, place, error);
    if (error) written = fail(fmt::format("cannot be written: {}", error.message()));
  }
  if (!written) fs::remove(aside, error);
  return written;
}

namespace {

Result<void> about_output(std::string_view flag, const std::string& path, const Result<void>& done) {
  return done ? done : fail(fmt::format("--{} = \"{}\": {}", flag, path, done.error().message));
}

}  // namespace

Result<void> check_output(const std::string& path, std::string_view flag) {
  std::error_code error;
  const fs::file_status before = fs::status(path, error);
  if (path.empty() || (is_special(before) && !fs::is_directory(before))) return {};
  if (fs::is_directory(before)) return about_output(flag, path, fail("is a directory; name a file"));
  const fs::path aside = aside_of(place_of(path));
  const auto written = write_in_place(aside, "");
  fs::remove(aside, error);
  return about_output(flag, path, written);
}

Result<void> write_output(const std::string& out, const std::string& text) {
  if (!out.empty()) return about_output("out", out, write_whole(out, text));
  fmt::print("{}", text);
  return {};
}

CLI::App& add_group(CLI::App& root, const std::string& name, const std::string& what) {
  CLI::App* const group = root.add_subcommand(name, what);
  group->require_subcommand(1);
  group->footer(fmt::format("`sluice {} COMMAND --help` tells more.", name));  // not the examples of who it belongs to
  return *group;
}

Argument Argument::required() { return Argument(*option_->required()); }
Argument Argument::type_name(const std::string& name) { return Argument(*option_->type_name(name)); }
Argument Argument::default_text(const std::string& text) {
  return Argument(*option_->description(fmt::format("{} [{}]", option_->get_description(), text)));
}
Argument Argument::excludes(Argument other) { return Argument(*option_->excludes(other.option_)); }
Argument Argument::one_of(const std::vector<std::string>& words) {
  const auto check = [words](const std::string& text) {
    return std::ranges::find(words, text) != words.end() ? std::string()
                                                         : fmt::format("must be one of {}", fmt::join(words, ", "));
  };
  return Argument(*option_->check(CLI::Validator(check, ""))->type_name(fmt::format("{}", fmt::join(words, "|"))));
}
Argument Argument::not_negative() {
  const auto check = [](const std::string& text) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    return std::string(whole ? "" : text.starts_with('-') ? "must not be negative" : "must be a whole number");
  };
  return Argument(*option_->check(CLI::Validator(check, ""))->type_name("NUMBER"));
}
Argument Argument::between(std::uint64_t least, std::uint64_t most) {
  const auto check = [least, most](const std::string& text) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    return whole && number >= least && number <= most
               ? std::string()
               : fmt::format("must be a whole number from {} to {}", least, most);
  };
  return Argument(*option_->check(CLI::Validator(check, ""))->type_name("NUMBER"));
}
Argument Argument::between(Duration least, Duration most) {
  const auto check = [least, most](const std::string& text) {
    Duration time;
    return rack::parse_duration(text, time) && time >= least && time <= most
               ? std::string()
               : fmt::format("must be a time from {} to {}, such as {}", rack::duration_text(least),
                             rack::duration_text(most), rack::duration_text(most));
  };
  return Argument(*option_->check(CLI::Validator(check, "")));
}

Argument Arguments::option(const std::string& name, std::string& value, const std::string& what) {
  return Argument(*app_->add_option(name, value, what));
}
Argument Arguments::option(const std::string& name, std::vector<std::string>& values, const std::string& what) {
  return Argument(*app_->add_option(name, values, what));
}
Argument Arguments::option(const std::string& name, int& value, const std::string& what) {
  return Argument(*app_->add_option(name, value, what));
}
Argument Arguments::option(const std::string& name, std::uint32_t& value, const std::string& what) {
  return Argument(*app_->add_option(name, value, what));
}
Argument Arguments::option(const std::string& name, std::uint64_t& value, const std::string& what) {
  return Argument(*app_->add_option(name, value, what));
}
Argument Arguments::option(const std::string& name, Duration& value, const std::string& what) {
  const auto check = [](const std::string& text) {
    Duration time;
    return std::string(rack::parse_duration(text, time) ? "" : "must be a time, such as 500ms or 5s");
  };
  const auto take = [&value](const CLI::results_t& words) { return rack::parse_duration(words.back(), value); };
  return Argument(
      *app_->add_option(name, CLI::callback_t(take), what)->type_name("TIME")->check(CLI::Validator(check, "")));
}
Argument Arguments::option(const std::string& name, std::optional<bool>& value, const std::string& what) {
  const auto check = [](const std::string& text) {
    static constexpr std::array<std::string_view, 8> kWords{"true", "false", "on", "off", "yes", "no", "1", "0"};
    return std::string(std::ranges::find(kWords, text) != kWords.end() ? "" : "must be true or false");
  };
  return Argument(*app_->add_option(name, value, what)->type_name("true|false")->check(CLI::Validator(check, "")));
}
Argument Arguments::option(const std::string& name, std::optional<std::uint64_t>& value, const std::string& what) {
  return Argument(*app_->add_option(name, value, what));
}
Argument Arguments::flag(const std::string& name, bool& on, const std::string& what) {
  return Argument(*app_->add_flag(name, on, what));
}
Arguments Arguments::exactly_one(const std::string& name, const std::string& what) {
  CLI::App* const group = app_->add_option_group(name, what);
  group->require_option(1);
  return Arguments(*group);
}

Command::Command(CLI::App& parent, const std::string& name, const std::string& what,
                 const std::vector<std::string>& examples)
    : Arguments(*parent.add_subcommand(name, what)) {
  name_ = parent.get_parent() == nullptr ? name : parent.get_name() + " " + name;
  std::string footer = "Examples:";
  for (const std::string& example : examples) footer += "\n  " + example;
  app_->footer(footer);
  rack_.declare(rack_schema_);
}

bool Command::chosen() const { return app_->parsed(); }

void Command::use_rack() {
  option("--config", config_, "TOML file with the same settings; flags win").type_name("FILE");
  add_flag(*rack_schema_.find("dir"));
  add_flag(*rack_schema_.find("token-file"));
}

void Command::use(const std::string& table, rack::Schema& schema) {
  own_[table] = &schema;
  for (const rack::Setting& setting : schema.settings()) add_flag(setting);
}

void Command::add_flag(const rack::Setting& setting) {
  if (app_->get_option_no_throw("--" + setting.name) != nullptr) return;
  flags_.push_back(std::make_unique<Flag>());
  Flag& flag = *flags_.back();
  flag.setting = &setting;
  const std::string help =
      setting.default_text.empty() ? setting.help : fmt::format("{} [{}]", setting.help, setting.default_text);
  if (setting.is_switch) {
    // "--router", "--router=false", "--no-router"
    flag.option = app_->add_flag(fmt::format("--{},!--no-{}", setting.name, setting.name), flag.on, help);
  } else {
    // A list is given one by one: "--ports A --port B".
    const bool plural = setting.is_list && setting.name.ends_with('s');
    const std::string one = plural ? ",--" + setting.name.substr(0, setting.name.size() - 1) : "";
    std::vector<std::string> forms = named(setting.choices);
    if (!setting.open.empty()) forms.push_back(setting.open);
    const std::string words = fmt::format("{}", fmt::join(forms, "|"));
    flag.option = app_->add_option("--" + setting.name + one, flag.values, help)
                      ->type_name(words.empty() ? "VALUE" : words)
                      ->allow_extra_args(false);
    if (!setting.is_list) flag.option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
}

std::vector<std::string> Command::choices(const CLI::Option& option) const {
  for (const auto& flag : flags_) {
    if (flag->option == &option) return named(flag->setting->choices);
  }
  return {};
}

bool Command::given(std::string_view setting) const {
  return std::ranges::any_of(
      flags_, [setting](const auto& flag) { return flag->setting->name == setting && flag->option->count() != 0; });
}

Result<void> Command::configure(const Tables& all) {
  if (!config_.empty()) {
    Tables tables = all;
    tables["rack"] = &rack_schema_;
    if (auto loaded = rack::load_toml(config_, tables); !loaded) return loaded;
  }
  for (const auto& flag : flags_) {
    if (flag->option->count() == 0) continue;
    const std::string where = "--" + flag->setting->name;
    if (flag->setting->is_switch) flag->values = {flag->on ? "true" : "false"};
    if (flag->setting->is_list) flag->setting->clear();
    for (const std::string& value : flag->values) {
      if (auto done = rack::Schema::set(*flag->setting, value, where); !done) return done;
    }
  }
  // Whatever this command starts shows it too.
  if (!rack_.token_file.empty()) setenv(rack::kTokenVariable, std::filesystem::absolute(rack_.token_file).c_str(), 1);
  return {};
}

int Command::interrupted(const std::string& what) const {
  say(fmt::format("sluice {}: {}", name_, what));
  return kExitInterrupted;
}

int Command::execute(const Tables& all) {
  const auto give_up = [this](const Error& error, int code) {
    say(fmt::format("sluice {}: {}", name_, error.message));
    return code;
  };
  all_ = &all;
  if (const auto configured = configure(all); !configured) return give_up(configured.error(), kExitUsage);
  if (const auto checked = check(); !checked) return give_up(checked.error(), kExitUsage);
  const Result<int> code = run();
  return code ? *code : give_up(code.error(), kExitFailed);
}

}  // namespace sluice::cli
