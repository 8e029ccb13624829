// Two connection managers, their programs, a bad cable, an intruder and time, all driven by the input.
#include "fuzz/cm_machine_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::check_connection_managers({data, size});
  sluice::fuzz::check_connection_rules({data, size});
  return 0;
}
