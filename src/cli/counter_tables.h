// What NICs of programs have counted (verbs/counter_file.h), for people.
#pragma once

#include <string>

namespace sluice::cli {

// Of each file of a folder: what is not zero, and what it means.
std::string counter_tables(const std::string& folder);

}  // namespace sluice::cli
