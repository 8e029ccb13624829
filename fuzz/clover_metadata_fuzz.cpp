#include "fuzz/clover_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  sluice::fuzz::check_metadata_server({bytes, size});
  sluice::fuzz::check_chains({bytes, size});
  return 0;
}
