// Report: one self-contained HTML file of tables and plots, for people; loads nothing when opened.
//
// Source:  web/report.js says what it makes of the JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::cli {

// data = {title, subtitle, sound, verdict, sections: [{title, text, table: {columns, rows}, plot: Vega-Lite}], facts}
std::string report_html(const nlohmann::json& data);
Result<void> write_report(const std::string& path, const nlohmann::json& data);

}  // namespace sluice::cli
