// A box, and clients, a server and time that do what the input says.
#include "fuzz/swordbox_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::check_swordbox({data, size});
  sluice::fuzz::check_operations_through_swordbox({data, size});
  return 0;
}
