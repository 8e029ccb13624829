// Any bytes as a 1RMA frame, and as a script for two nodes and an intruder, for a target and for an initiator.
#include "fuzz/onerma_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::check_onerma_frame({data, size});
  sluice::fuzz::check_onerma_nodes({data, size});
  sluice::fuzz::check_onerma_target({data, size});
  sluice::fuzz::check_onerma_initiator({data, size});
  return 0;
}
