// What reports are made of, put into the program at build time: web/README.md.
#include "cli/report_assets.h"

#include "base/embed.h"

SLUICE_EMBED("plots", SLUICE_PLOTS);
SLUICE_EMBED("report_html", SLUICE_WEB "/report.html");
SLUICE_EMBED("report_js", SLUICE_WEB "/report.js");

extern "C" {
extern const char sluice_plots_begin[];
extern const char sluice_plots_end[];
extern const char sluice_report_html_begin[];
extern const char sluice_report_html_end[];
extern const char sluice_report_js_begin[];
extern const char sluice_report_js_end[];
}

namespace sluice::cli {
namespace {

std::string_view between(const char* begin, const char* end) { return {begin, static_cast<std::size_t>(end - begin)}; }

}  // namespace

std::string_view plotting_library() { return between(sluice_plots_begin, sluice_plots_end); }
std::string_view report_frame() { return between(sluice_report_html_begin, sluice_report_html_end); }
std::string_view report_script() { return between(sluice_report_js_begin, sluice_report_js_end); }

}  // namespace sluice::cli
