// Any 256 bytes as a management datagram: what parses is written so that it parses to the same.
#include "fuzz/wire_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::check_cm({data, size});
  return 0;
}
