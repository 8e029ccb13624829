// The page that shows a rack at work, and what it loads; carried inside the program. web/README.md.
#pragma once

#include <string_view>

namespace sluice::rack {

std::string_view live_page();    // web/live.html
std::string_view live_script();  // web/live.js

}  // namespace sluice::rack
