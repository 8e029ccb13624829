// What NICs of programs have counted (verbs/counter_file.h), for people.
#pragma once

#include <string>

namespace sluice::cli {

// Of each file of a folder: what is not zero, and what it means.
std::string counter_tables(const std::string& folder);
// Whether a NIC has written this file; an empty one could be, too.
bool are_counters(const std::string& file);

}  // namespace sluice::cli
