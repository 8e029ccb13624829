#include "rack/switch/live_page.h"

#include "base/embed.h"

SLUICE_EMBED("live_html", SLUICE_WEB "/live.html");
SLUICE_EMBED("live_js", SLUICE_WEB "/live.js");

extern "C" {
extern const char sluice_live_html_begin[];
extern const char sluice_live_html_end[];
extern const char sluice_live_js_begin[];
extern const char sluice_live_js_end[];
}

namespace sluice::rack {
namespace {

std::string_view between(const char* begin, const char* end) { return {begin, static_cast<std::size_t>(end - begin)}; }

}  // namespace

std::string_view live_page() { return between(sluice_live_html_begin, sluice_live_html_end); }
std::string_view live_script() { return between(sluice_live_js_begin, sluice_live_js_end); }

}  // namespace sluice::rack
