#include "cowbird/layout.h"

#include <fmt/core.h>

#include <bit>

namespace sluice::cowbird {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint32_t kLongestRing = 1u << 16;  // entries
constexpr std::uint32_t kMostData = 1u << 30;
constexpr std::uint64_t kWritable = 1;

static_assert(ChannelLayout::kErrorLog + kErrorBlock <= ChannelLayout::kMetadata);
static_assert(InstanceLayout::kRegions + kMaxRegions * kRegionBytes <= InstanceLayout::kChannels);

Result<void> check_ring(const char* name, std::uint32_t bytes) {
  if (bytes >= kLine && bytes <= kMostData && bytes % kLine == 0) return {};
  return fail(fmt::format("cowbird: a {} ring of {} bytes; a multiple of {} from {} to {} is allowed", name, bytes,
                          kLine, kLine, kMostData));
}

}  // namespace

ChannelLayout::ChannelLayout(const Shape& s)
    : shape(s),
      requests(kMetadata + s.entries * kEntryBytes),
      responses(requests + s.request_bytes),
      bytes((responses + s.response_bytes + kPage - 1) / kPage * kPage) {}

Region Region::parse(const std::uint8_t* bytes) {
  return {.node = load_le<std::uint32_t>(bytes),
          .key = load_le<std::uint32_t>(bytes + 4),
          .base = load_le<std::uint64_t>(bytes + 8),
          .length = load_le<std::uint64_t>(bytes + 16),
          .writable = (load_le<std::uint64_t>(bytes + 24) & kWritable) != 0};
}

void Region::write(std::uint8_t* bytes) const {
  store_le(bytes, node);
  store_le(bytes + 4, key);
  store_le(bytes + 8, base);
  store_le(bytes + 16, length);
  store_le(bytes + 24, writable ? kWritable : std::uint64_t{0});
}

Result<void> InstanceLayout::check() const {
  if (channels < 1 || channels > kMaxChannels) {
    return fail(fmt::format("cowbird: {} channels; 1 to {} are allowed", channels, kMaxChannels));
  }
  if (!std::has_single_bit(shape.entries) || shape.entries < 2 || shape.entries > kLongestRing) {
    return fail(fmt::format("cowbird: a metadata ring of {} entries; a power of two from 2 to {} is allowed",
                            shape.entries, kLongestRing));
  }
  if (auto good = check_ring("request data", shape.request_bytes); !good) return good;
  if (auto good = check_ring("response data", shape.response_bytes); !good) return good;
  if (std::uint64_t{channels} * shape.entries > kMostInstanceEntries) {
    return fail(fmt::format("cowbird: {} channels of {} entries; {} entries in all are allowed", channels,
                            shape.entries, kMostInstanceEntries));
  }
  if (bytes() > kMostInstanceBytes) {
    return fail(fmt::format("cowbird: the rings of {} channels take {} bytes; {} in all are allowed", channels, bytes(),
                            kMostInstanceBytes));
  }
  return {};
}

void InstanceLayout::write(std::uint8_t* bytes) const {
  store_le(bytes, kMagic);
  store_le(bytes + 8, kVersion);
  store_le(bytes + 12, channels);
  store_le(bytes + 16, shape.entries);
  store_le(bytes + 20, shape.request_bytes);
  store_le(bytes + 24, shape.response_bytes);
  store_le(bytes + 28, static_cast<std::uint32_t>(kMaxRegions));
}

Result<InstanceLayout> InstanceLayout::parse(ByteView header) {
  if (header.size() < kHeaderBytes || load_le<std::uint64_t>(header.data()) != kMagic) {
    return fail("cowbird: this is no Cowbird instance (its first bytes are not COWBIRD1)");
  }
  const auto version = load_le<std::uint32_t>(header.data() + 8);
  if (version != kVersion) {
    return fail(
        fmt::format("cowbird: the instance has layout version {}; this program knows version {}", version, kVersion));
  }
  const InstanceLayout layout{.shape = {.entries = load_le<std::uint32_t>(header.data() + 16),
                                        .request_bytes = load_le<std::uint32_t>(header.data() + 20),
                                        .response_bytes = load_le<std::uint32_t>(header.data() + 24)},
                              .channels = load_le<std::uint32_t>(header.data() + 12)};
  if (load_le<std::uint32_t>(header.data() + 28) != kMaxRegions) return fail("cowbird: a region table of another size");
  if (auto good = layout.check(); !good) return tl::unexpected(good.error());
  return layout;
}

}  // namespace sluice::cowbird
