// Any bytes as a frame: nothing is read outside them, what parses is consistent, what is rewritten reads the same, and edits keep
// the ICRC as right or as wrong as it was.
#include "fuzz/wire_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::check_frame({data, size});
  return 0;
}
