// Any bytes as a cache's entry, header or answer, and as a script for a server and what is written into its mailboxes.
#include "fuzz/kvcache_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::check_kvcache_bytes({data, size});
  sluice::fuzz::check_kvcache_server({data, size});
  return 0;
}
