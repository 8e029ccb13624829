// Progress on stderr for whatever takes longer than two seconds: one line that is rewritten on a terminal, a line every five seconds elsewhere.
#pragma once

#include <chrono>
#include <string>

namespace sluice::cli {

class Progress {
 public:
  Progress();
  ~Progress();  // clears the line
  void show(const std::string& line);
  // What stays on the screen, at once.
  void note(const std::string& lines);

 private:
  std::chrono::steady_clock::time_point begun_;
  std::chrono::steady_clock::time_point shown_;
  bool terminal_;
  bool on_screen_ = false;
};

// "1.23 M", "45.6 k"
std::string rate_text(double per_second);

}  // namespace sluice::cli
