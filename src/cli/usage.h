// What is said when a command line makes no sense: what was wrong, what may have been meant, and where help is.
//
// Errors:     one line, as everywhere: "sluice box: there is no command "nonsense"; …".
#pragma once

#include <string>

namespace CLI {
class App;
class Error;
}  // namespace CLI

namespace sluice::cli {

// Of a line that `root` did not take.
std::string usage_error(const CLI::App& root, const CLI::Error& error);

}  // namespace sluice::cli
