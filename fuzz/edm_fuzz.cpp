// Any blocks on an EDM link: what is memory's and what is a frame's, what units and frames come out.
#include "fuzz/edm_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::check_edm_line({data, size});
  return 0;
}
