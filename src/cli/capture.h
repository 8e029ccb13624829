// Captures in files: opened, or why not.
#pragma once

#include <pcap/pcap.h>

#include <memory>
#include <string>

#include "base/result.h"

namespace sluice::cli {

struct CloseCapture {
  void operator()(pcap_t* capture) const { pcap_close(capture); }
};
using Capture = std::unique_ptr<pcap_t, CloseCapture>;

// An Ethernet capture, pcap or pcapng. `precision`: PCAP_TSTAMP_PRECISION_MICRO or _NANO.
Result<Capture> open_capture(const std::string& file, unsigned precision);

}  // namespace sluice::cli
