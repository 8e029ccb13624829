#include "cli/capture.h"

#include <fmt/core.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

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

CaptureMarks::CaptureMarks(const std::string& file) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(file, ignored)) file_.open(file, std::ios::binary);
}

SeenAt CaptureMarks::next() {
  using ports::pcapng::BlockType;
  while (file_.is_open()) {
    const auto block = stream_.next();
    if (!block) break;
    if (!*block) {
      if (!read_more()) break;
      continue;
    }
    const BlockType type = (*block)->type;
    if (!is_pcapng_ && type != BlockType::kSection) break;
    is_pcapng_ = true;
    if (type == BlockType::kSection) interfaces_.clear();
    if (type == BlockType::kInterface) interfaces_.push_back(ports::pcapng::interface_name(**block));
    if (type == BlockType::kSimplePacket || type == BlockType::kOldPacket) return {};
    if (type != BlockType::kPacket) continue;
    const auto packet = ports::pcapng::packet_of(**block);
    if (!packet || packet->interface >= interfaces_.size()) return {};
    return {.interface = interfaces_[packet->interface], .direction = packet->direction};
  }
  file_.close();
  return {};
}

bool CaptureMarks::read_more() {
  std::string chunk(std::size_t{1} << 16, '\0');
  file_.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
  stream_.push(std::string_view(chunk).substr(0, static_cast<std::size_t>(file_.gcount())));
  return file_.gcount() != 0;
}

std::string frame_line(std::uint64_t number, double seconds, const SeenAt& seen, std::string_view text) {
  using ports::pcapng::Direction;
  std::string line = fmt::format("{:>6} {:>11.6f} ", number, seconds);
  if (seen.direction != Direction::kUnknown) line += seen.direction == Direction::kIn ? "in  " : "out ";
  if (!seen.interface.empty()) line += fmt::format("{:<14} ", seen.interface);
  return line.append(text);
}

}  // namespace sluice::cli
