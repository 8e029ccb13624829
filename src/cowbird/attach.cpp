#include "cowbird/attach.h"

#include <fmt/core.h>

#include <charconv>
#include <vector>

namespace sluice::cowbird {
namespace {

constexpr std::string_view kError = "error ";

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> found;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(' ', at), text.size());
    if (end > at) found.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return found;
}

bool parse(std::string_view word, std::uint64_t& value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size();
}

}  // namespace

std::string instance_message(std::uint64_t bytes) { return fmt::format("instance {} {}", kVersion, bytes); }

std::string region_message(std::string_view node, std::uint64_t offset, std::uint64_t length) {
  return fmt::format("region {} {} {}", node, offset, length);
}

std::string region_answer(const Region& region) {
  return fmt::format("region {} {} {} {}", region.node, region.key, region.base, region.length);
}

std::string error_answer(std::string_view why) { return fmt::format("{}{}", kError, why); }

Result<std::uint64_t> parse_instance(std::string_view message) {
  const auto w = words(message);
  std::uint64_t version = 0, bytes = 0;
  if (w.size() != 3 || w[0] != "instance" || !parse(w[1], version) || !parse(w[2], bytes)) {
    return fail("expected: instance VERSION BYTES");
  }
  if (version != kVersion) return fail(fmt::format("protocol version {}; this engine speaks {}", version, kVersion));
  return bytes;
}

Result<RegionRequest> parse_region_request(std::string_view message) {
  const auto w = words(message);
  RegionRequest request;
  if (w.size() != 4 || w[0] != "region" || !parse(w[2], request.offset) || !parse(w[3], request.length)) {
    return fail("expected: region NODE OFFSET LENGTH");
  }
  request.node = w[1];
  return request;
}

Result<Region> parse_region(std::string_view message) {
  const auto w = words(message);
  std::uint64_t node = 0, key = 0;
  Region region;
  if (w.size() != 5 || w[0] != "region" || !parse(w[1], node) || !parse(w[2], key) || !parse(w[3], region.base) ||
      !parse(w[4], region.length)) {
    return fail("expected: region NODE-ID KEY BASE LENGTH");
  }
  region.node = static_cast<std::uint32_t>(node);
  region.key = static_cast<std::uint32_t>(key);
  return region;
}

std::optional<std::string> attach_error(std::string_view message) {
  if (!message.starts_with(kError)) return std::nullopt;
  return std::string(message.substr(kError.size()));
}

std::string_view message_kind(std::string_view message) { return message.substr(0, message.find(' ')); }

}  // namespace sluice::cowbird
