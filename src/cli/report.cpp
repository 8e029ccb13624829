#include "cli/report.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/command.h"
#include "cli/report_assets.h"

namespace sluice::cli {
namespace {

// JSON that may stand in a <script>: no "<" that could end it.
std::string script_safe(const nlohmann::json& data) {
  const std::string text = data.dump(-1, ' ', true);
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string report_html(const nlohmann::json& data) {
  const std::string_view frame = report_frame();
  std::string out;
  std::size_t at = 0;
  const auto put = [&](std::string_view mark, std::string_view content) {
    const std::size_t place = frame.find(mark, at);
    out += frame.substr(at, place - at);
    out += content;
    at = place + mark.size();
  };
  put("@DATA@", script_safe(data));
  put("@PLOTS@", plotting_library());
  put("@REPORT@", report_script());
  return out += frame.substr(at);
}

Result<void> write_report(const std::string& path, const nlohmann::json& data) {
  if (auto written = write_whole(path, report_html(data)); !written)
    return fail(fmt::format("{}: {}", path, written.error().message));
  return {};
}

}  // namespace sluice::cli
