#include "base/check.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sluice {
namespace {
thread_local char context_text[160] = "";
}

void set_check_context(std::string_view context) {
  const auto n = std::min(context.size(), sizeof context_text - 1);
  std::memcpy(context_text, context.data(), n);
  context_text[n] = '\0';
}

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "sluice: internal error: %s does not hold at %s:%d %s\n", expression, file, line, context_text);
  std::abort();
}

}  // namespace sluice
