// Any bytes as a datagram of the UDP port, and as a script of its handshake.
#include "fuzz/udp_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::check_container({data, size});
  sluice::fuzz::check_sessions({data, size});
  return 0;
}
