// A NIC in many states, and a peer, a program, time and an intruder that do what the input says.
#include "fuzz/adapter_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::check_adapter({data, size});
  return 0;
}
