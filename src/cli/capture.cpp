#include "cli/capture.h"

#include <fmt/core.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace sluice::cli {

Result<Capture> open_capture(const std::string& file, unsigned precision) {
  std::FILE* const stream = std::fopen(file.c_str(), "rb");
  if (stream == nullptr) return fail(fmt::format("{}: {}", file, std::strerror(errno)));
  std::array<char, PCAP_ERRBUF_SIZE> error{};
  Capture capture(pcap_fopen_offline_with_tstamp_precision(stream, precision, error.data()));  // closes the stream then
  if (!capture) {
    std::fclose(stream);
    return fail(fmt::format("{}: {}", file, error.data()));
  }
  if (pcap_datalink(capture.get()) != DLT_EN10MB)
    return fail(fmt::format("{}: no Ethernet capture (link type {})", file, pcap_datalink(capture.get())));
  return capture;
}

}  // namespace sluice::cli
