// Files that the program carries inside itself.
#pragma once

#include <string_view>

namespace sluice::cli {

std::string_view plotting_library();  // Vega and Vega-Lite; empty when built without npm
std::string_view report_frame();      // web/report.html
std::string_view report_script();     // web/report.js

}  // namespace sluice::cli
