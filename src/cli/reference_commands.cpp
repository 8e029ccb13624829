// sluice completion | man | reference: what is known of all commands and settings, in the forms that shells and readers take.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/reference.h"

namespace sluice::cli {
namespace {

// Each asks the program itself, so what is offered is always what this version can do.
constexpr const char* kBash = R"(# bash completion for sluice
_sluice() {
  local word
  COMPREPLY=()
  while IFS=$'\t' read -r word _; do
    COMPREPLY+=("$word")
  done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _sluice sluice
)";

constexpr const char* kZsh = R"(#compdef sluice
_sluice() {
  local line
  local -a found
  for line in "${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    [[ -n $line ]] && found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
  done
  if (( $#found )); then
    _describe sluice found
  else
    _files
  fi
}
if [[ $funcstack[1] == _sluice ]]; then
  _sluice "$@"
else
  compdef _sluice sluice
fi
)";

constexpr const char* kFish = R"(# fish completion for sluice
function __sluice_complete
    set -l words (commandline -opc) (commandline -ct)
    command $words[1] __complete $words[2..-1] 2>/dev/null
end
complete -c sluice -a '(__sluice_complete)'
)";

class Completion final : public Command {
 public:
  explicit Completion(CLI::App& root)
      : Command(root, "completion", "Print what makes a shell complete this program's commands, flags and their values",
                {"source <(sluice completion bash)", "sluice completion zsh >~/.zfunc/_sluice",
                 "sluice completion fish >~/.config/fish/completions/sluice.fish"}) {
    option("SHELL", shell_, "bash, zsh or fish").required();
  }

 private:
  Result<void> check() override {
    script_ = shell_ == "bash" ? kBash : shell_ == "zsh" ? kZsh : shell_ == "fish" ? kFish : nullptr;
    if (script_ == nullptr) return fail(fmt::format("\"{}\": must be one of bash, zsh, fish", shell_));
    return {};
  }
  Result<int> run() override {
    fmt::print("{}", script_);
    return 0;
  }

  std::string shell_;
  const char* script_ = nullptr;
};

class Man final : public Command {
 public:
  explicit Man(CLI::App& root)
      : Command(root, "man", "Write a manual page for each command",
                {"sluice man --out /usr/local/share/man/man1", "man -l man1/sluice-rack-up.1"}),
        root_(root) {
    option("--out", out_, "the folder to write to [man1]").type_name("FOLDER");
  }

 private:
  Result<int> run() override {
    std::error_code error;
    std::filesystem::create_directories(out_, error);
    if (error) return fail(fmt::format("--out = \"{}\": {}", out_, error.message()));
    for (const CLI::App* command : with_subcommands(root_)) {
      std::string name = full_name(*command);
      std::replace(name.begin(), name.end(), ' ', '-');
      if (auto written = write_output(fmt::format("{}/{}.1", out_, name), man_page(*command)); !written)
        return tl::unexpected(written.error());
    }
    return 0;
  }

  const CLI::App& root_;
  std::string out_ = "man1";
};

class Reference final : public Command {
 public:
  Reference(CLI::App& root, const Commands& commands)
      : Command(root, "reference", "Print all commands and their flags, or all settings of files, in Markdown",
                {"sluice reference >commands.md", "sluice reference --settings >settings.md"}),
        root_(root),
        commands_(commands) {
    flag("--settings", settings_, "the tables that a file for --config may have, instead of the commands");
  }

 private:
  Result<int> run() override {
    if (settings_) {
      fmt::print("{}", settings_markdown(commands_));
      return 0;
    }
    fmt::print("# Commands of sluice\n\n");
    for (const CLI::App* command : with_subcommands(root_)) fmt::print("{}", markdown(*command));
    return 0;
  }

  const CLI::App& root_;
  const Commands& commands_;
  bool settings_ = false;
};

}  // namespace

void add_reference_commands(CLI::App& root, Commands& commands) {
  commands.push_back(std::make_unique<Completion>(root));
  commands.push_back(std::make_unique<Man>(root));
  commands.push_back(std::make_unique<Reference>(root, commands));
}

}  // namespace sluice::cli
