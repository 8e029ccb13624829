#include "clover/messages.h"

namespace sluice::clover {
namespace {

constexpr std::uint8_t kWorkWaits = 1;
constexpr std::uint8_t kViewEnds = 2;
constexpr std::uint8_t kSlotsShort = 4;

}  // namespace

void put_header(MessageWriter& out, const RequestHeader& header) {
  out.put(kMessageVersion);
  out.put(static_cast<std::uint8_t>(header.type));
  out.put(header.count);
  out.put(header.client);
  out.put(header.sequence);
  out.put(header.store);
}

void put_header(MessageWriter& out, const AnswerHeader& header) {
  out.put(kMessageVersion);
  out.put(header.type);
  out.put(header.count);
  out.put(static_cast<std::uint8_t>(header.result));
  out.put(static_cast<std::uint8_t>((header.work_waits ? kWorkWaits : 0) | (header.view_ends ? kViewEnds : 0) |
                                    (header.slots_short ? kSlotsShort : 0)));
  out.put(std::uint16_t{0});
  out.put(header.view);
  out.put(header.lease_us);
  out.put(header.clock);
}

std::optional<RequestHeader> take_request_header(MessageReader& in) {
  const auto version = in.take<std::uint8_t>();
  const auto type = in.take<std::uint8_t>();
  RequestHeader header;
  header.count = in.take<std::uint16_t>();
  header.client = in.take<std::uint32_t>();
  header.sequence = in.take<std::uint32_t>();
  header.store = in.take<std::uint32_t>();
  if (!in.ok() || version != kMessageVersion) return std::nullopt;
  if (type < static_cast<std::uint8_t>(Request::kRegister) || type > static_cast<std::uint8_t>(Request::kLetGo)) {
    return std::nullopt;
  }
  header.type = static_cast<Request>(type);
  return header;
}

std::optional<AnswerHeader> take_answer_header(MessageReader& in) {
  const auto version = in.take<std::uint8_t>();
  AnswerHeader header;
  header.type = in.take<std::uint8_t>();
  header.count = in.take<std::uint16_t>();
  const auto result = in.take<std::uint8_t>();
  const auto flags = in.take<std::uint8_t>();
  header.work_waits = (flags & kWorkWaits) != 0;
  header.view_ends = (flags & kViewEnds) != 0;
  header.slots_short = (flags & kSlotsShort) != 0;
  in.take<std::uint16_t>();
  header.view = in.take<std::uint32_t>();
  header.lease_us = in.take<std::uint32_t>();
  header.clock = in.take64();
  if (!in.ok() || version != kMessageVersion || result > static_cast<std::uint8_t>(Answer::kMalformed))
    return std::nullopt;
  header.result = static_cast<Answer>(result);
  return header;
}

void put_view(MessageWriter& out, const StoreView& view) {
  out.put(view.client);
  out.put(view.value_bytes);
  out.put(static_cast<std::uint32_t>(view.cursor_lifetime.microseconds()));
  out.put(static_cast<std::uint32_t>(view.max_flight.microseconds()));
  for (const auto& volume : view.volumes) {
    out.put(volume.length);
    out.put(volume.base);
    out.put(std::uint32_t{volume.count});
    out.put(static_cast<std::uint32_t>(volume.live | volume.first << 8 | volume.dead << 16));
    for (std::size_t j = 0; j < volume.count; ++j) {
      out.put(volume.replicas[j].node.value);
      out.put(volume.replicas[j].key.value);
      out.put(volume.replicas[j].address);
    }
  }
  out.put(view.store);
}

std::optional<StoreView> take_view(MessageReader& in, std::uint16_t volumes) {
  StoreView view;
  view.client = in.take<std::uint32_t>();
  view.value_bytes = in.take<std::uint32_t>();
  view.cursor_lifetime = Duration::microseconds(in.take<std::uint32_t>());
  view.max_flight = Duration::microseconds(in.take<std::uint32_t>());
  if (view.value_bytes < kMinValueBytes || view.value_bytes > kMaxValueBytes || volumes > kMaxVolumes)
    return std::nullopt;
  for (std::size_t i = 0; i < volumes; ++i) {
    Volume volume;
    volume.length = in.take<std::uint64_t>();
    volume.base = in.take<std::uint64_t>();
    const auto count = in.take<std::uint32_t>();
    const auto live = in.take<std::uint32_t>();
    const std::uint32_t first = live >> 8 & 0xFF;
    const std::uint32_t dead = live >> 16;
    if (!in.ok() || count < 1 || count > kMaxReplicas || (live & 0xFF) >= 1u << count || first >= count ||
        dead >= 1u << count)
      return std::nullopt;
    volume.count = static_cast<std::uint8_t>(count);
    volume.live = static_cast<std::uint8_t>(live);
    volume.first = static_cast<std::uint8_t>(first);
    volume.dead = static_cast<std::uint8_t>(dead);
    for (std::size_t j = 0; j < count; ++j) {
      volume.replicas[j].node = remote::NodeId(in.take<std::uint32_t>());
      volume.replicas[j].key = remote::RegionKey(in.take<std::uint32_t>());
      volume.replicas[j].address = in.take<std::uint64_t>();
    }
    view.volumes.push_back(volume);
  }
  view.store = in.take<std::uint32_t>();
  if (!in.ok() || in.left() != 0) return std::nullopt;
  return view;
}

}  // namespace sluice::clover
