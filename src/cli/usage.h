// What is said of how the program is used: by --help, and when a command line makes no sense: what was wrong, what may have been meant,
// and where help is.
//
// Errors:     one line, as everywhere: "sluice box: there is no command "nonsense"; …".
#pragma once

#include <memory>
#include <string>

namespace CLI {
class App;
class Error;
class FormatterBase;
}  // namespace CLI

namespace sluice::cli {

// Of a line that `root` did not take.
std::string usage_error(const CLI::App& root, const CLI::Error& error);
// How help looks: flags as the reference has them, lines as long as the terminal is wide.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace sluice::cli
