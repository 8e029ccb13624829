// What the parser knows of the commands, for shells and readers: completions, man pages, a reference in Markdown.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace sluice::cli {

struct Candidate {
  std::string word;
  std::string what;  // one line
};

// What the last of `words` (may be empty) may become: commands, flags, values that a flag may have. None: the shell may offer files.
std::vector<Candidate> complete(const CLI::App& root, const Commands& commands, std::span<const std::string> words);

// "sluice bench clover"
std::string full_name(const CLI::App& app);
// "--ports, --port VALUE"
std::string flag_text(const CLI::Option& option);
// "sluice remote read [OPTIONS] NODE OFFSET [LENGTH]"
std::string synopsis(const CLI::App& app);
// The command and all below it, each before its own; what is not to be seen is left out.
std::vector<const CLI::App*> with_subcommands(const CLI::App& app);
// A page in man(7), section 1.
std::string man_page(const CLI::App& app);
// A chapter in Markdown.
std::string markdown(const CLI::App& app);
// All tables that a settings file may have, in Markdown: a table each of key, default, what is allowed, meaning.
std::string settings_markdown(const Commands& commands);

}  // namespace sluice::cli
