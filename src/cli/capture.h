// Captures in files: opened, or why not; and how a frame of one is shown.
#pragma once

#include <pcap/pcap.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ports/pcapng.h"

namespace sluice::cli {

struct CloseCapture {
  void operator()(pcap_t* capture) const { pcap_close(capture); }
};
using Capture = std::unique_ptr<pcap_t, CloseCapture>;

// An Ethernet capture, pcap or pcapng. `precision`: PCAP_TSTAMP_PRECISION_MICRO or _NANO.
Result<Capture> open_capture(const std::string& file, unsigned precision);

// Where a frame was seen: the interface's name, and which way it went there.
struct SeenAt {
  std::string interface;
  ports::pcapng::Direction direction = ports::pcapng::Direction::kUnknown;
};

// Where the frames of a pcapng file were seen, in its order, which libpcap does not tell. A pipe can be read once only: by libpcap.
class CaptureMarks {
 public:
  explicit CaptureMarks(const std::string& file);

  // Of the next frame. Empty when the file does not say: it is pcap, or pcapng of a machine of the other byte order.
  SeenAt next();

 private:
  // False: there is no more.
  bool read_more();

  std::ifstream file_;
  ports::pcapng::PcapngStream stream_;
  std::vector<std::string> interfaces_;  // of this section
  bool is_pcapng_ = false;
};

// "    17    0.000042 in  2:memory1      10.77.0.3 > …", what `seen` does not say left out.
std::string frame_line(std::uint64_t number, double seconds, const SeenAt& seen, std::string_view text);

}  // namespace sluice::cli
