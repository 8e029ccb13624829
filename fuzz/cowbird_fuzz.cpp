// Two applications, engines, a network and a pool that do what the input says.
#include "fuzz/cowbird_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::check_cowbird_switch({data, size});
  sluice::fuzz::check_cowbird_spot({data, size});
  return 0;
}
