// Any blocks on an EDM link: what is memory's and what is a frame's, what units and frames come out. And units and frames that were put into it.
#include "fuzz/edm_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::check_edm_line({data, size});
  sluice::fuzz::check_edm_link({data, size});
  return 0;
}
