#include "golden/capture.h"

#include <pcap/pcap.h>

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>

namespace sluice::golden {
namespace {

std::vector<std::filesystem::path> captures_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().extension() == ".pcap") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<FrameBytes> read_capture(const std::filesystem::path& file) {
  std::array<char, PCAP_ERRBUF_SIZE> error{};
  const std::unique_ptr<pcap_t, decltype(&pcap_close)> pcap(pcap_open_offline(file.c_str(), error.data()), pcap_close);
  if (!pcap || pcap_datalink(pcap.get()) != DLT_EN10MB) throw std::runtime_error(file.string() + ": " + error.data());
  std::vector<FrameBytes> frames;
  pcap_pkthdr* header = nullptr;
  const std::uint8_t* bytes = nullptr;
  int result = 0;
  while ((result = pcap_next_ex(pcap.get(), &header, &bytes)) == 1) {
    if (header->caplen != header->len) throw std::runtime_error(file.string() + ": holds a cut frame");
    frames.emplace_back(bytes, bytes + header->caplen);
  }
  if (result != PCAP_ERROR_BREAK) throw std::runtime_error(file.string() + ": " + pcap_geterr(pcap.get()));
  return frames;
}

std::vector<std::filesystem::path> rxe_captures() { return captures_in(SLUICE_SOURCE_DIR "/tests/golden/rxe"); }
std::vector<std::filesystem::path> reference_captures() { return captures_in(SLUICE_REFERENCE_DIR "/pcap/connectx"); }

}  // namespace sluice::golden
