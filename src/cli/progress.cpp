#include "cli/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>

namespace sluice::cli {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

void put(const std::string& text) { static_cast<void>(std::fputs(text.c_str(), stderr)); }

}  // namespace

Progress::Progress() : begun_(steady_clock::now()), shown_(begun_), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (on_screen_) put("\r\033[K");
}

void Progress::show(const std::string& line) {
  const auto now = steady_clock::now();
  const auto pause = terminal_ ? milliseconds(200) : milliseconds(5000);
  if (now - begun_ < milliseconds(2000) || now - shown_ < pause) return;
  shown_ = now;
  if (terminal_) {
    put("\r\033[K" + line);
    std::fflush(stderr);
    on_screen_ = true;
  } else {
    put(line + '\n');
  }
}

void Progress::note(const std::string& lines) {
  put((on_screen_ ? "\r\033[K" : "") + lines + '\n');
  on_screen_ = false;
}

std::string rate_text(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.2f} M", per_second / 1e6);
  if (per_second >= 1e3) return fmt::format("{:.1f} k", per_second / 1e3);
  return fmt::format("{:.0f}", per_second);
}

}  // namespace sluice::cli
