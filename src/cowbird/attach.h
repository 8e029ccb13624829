// What an application and an engine on its machine say to each other before the rings do all the talking.
//
// Messages:   one line of text each (ports/shared_block.h carries them):
//               application -> engine:  "instance 1 BYTES" with the block's descriptor;  "region NODE OFFSET LENGTH"
//               engine -> application:  "ok";  "region NODE-ID KEY BASE LENGTH";  "error WHY"
//             The engine knows the rack: it turns a memory node's name into an address and a key.
// Errors:     parsing says what was expected.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cowbird/layout.h"

namespace sluice::cowbird {

struct RegionRequest {
  std::string node;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

std::string instance_message(std::uint64_t bytes);
std::string region_message(std::string_view node, std::uint64_t offset, std::uint64_t length);
std::string region_answer(const Region& region);
std::string error_answer(std::string_view why);

Result<std::uint64_t> parse_instance(std::string_view message);
Result<RegionRequest> parse_region_request(std::string_view message);
Result<Region> parse_region(std::string_view message);
// Why, if it is an error.
std::optional<std::string> attach_error(std::string_view message);
// The first word.
std::string_view message_kind(std::string_view message);

}  // namespace sluice::cowbird
