#include "cowbird/channel.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::cowbird {
namespace {

constexpr std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kDataAlignment - 1) & ~(kDataAlignment - 1); }

constexpr std::uint64_t kOwnedAhead = 8;  // entries

// Asks for a line that will be written soon, and that another core has read.
void own_soon(const std::uint8_t* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*line));
#else
  __builtin_prefetch(line, 1, 3);
#endif
}

// The sizes that programs really use become single moves.
void copy_small(void* to, const void* from, std::size_t length) {
  switch (length) {
    case 8: std::memcpy(to, from, 8); return;
    case 16: std::memcpy(to, from, 16); return;
    case 64: std::memcpy(to, from, 64); return;
    default: std::memcpy(to, from, length);
  }
}

}  // namespace

Channel::Channel(MutableBytes block, const ChannelLayout& layout, const std::vector<Region>& regions)
    : block_(block.data()), layout_(layout), regions_(regions), mask_(layout.shape.entries - 1) {
  SLUICE_CHECK(block.size() >= layout.bytes && reinterpret_cast<std::uintptr_t>(block.data()) % kDataAlignment == 0);
  requests_ = {.start = layout.requests, .size = layout.shape.request_bytes};
  responses_ = {.start = layout.responses, .size = layout.shape.response_bytes};
  for (auto& pending : pending_) pending.resize(layout.shape.entries);
  tail_ = head_ = load(ChannelLayout::kProgress + ProgressLine::kHead);
  issued_[0] = done_[0] = load(ChannelLayout::kProgress + ProgressLine::kReads);
  issued_[1] = done_[1] = load(ChannelLayout::kProgress + ProgressLine::kWrites);
  errors_taken_ = load(ChannelLayout::kErrorLog);
}

Channel::DataRing::Place Channel::DataRing::place(std::uint64_t length) const {
  const std::uint64_t to_end = size - tail_at;
  const bool fits = length <= to_end;  // otherwise in one piece at the start
  const std::uint64_t new_tail = tail + (fits ? 0 : to_end) + aligned(length);
  if (new_tail - head > size) return {size, tail};
  return {fits ? tail_at : 0, new_tail};
}

void Channel::DataRing::take(const Place& place, std::uint64_t length) {
  tail = place.new_tail;
  tail_at = place.at + aligned(length);
  if (tail_at == size) tail_at = 0;
}

Status Channel::check(std::uint16_t region, std::uint64_t offset, std::uint32_t length, std::uint64_t ring) {
  if (region >= regions_.size() || regions_[region].length == 0) return Status::kNoRegion;
  if (length == 0 || length > ring) return Status::kBadLength;
  const std::uint64_t bytes = regions_[region].length;
  if (length > bytes || offset > bytes - length) return Status::kOutOfRange;
  return Status::kOk;
}

bool Channel::has_room(RwType type) {
  const bool write = type == RwType::kWrite;
  // Requests that are complete but not yet taken still need their place here.
  if (issued_[write] - done_[write] >= layout_.shape.entries) return false;
  if (tail_ - head_ < layout_.shape.entries) return true;
  head_ = load(ChannelLayout::kProgress + ProgressLine::kHead);
  return tail_ - head_ < layout_.shape.entries;
}

std::int64_t Channel::refuse(Status status) {
  const bool full =
      status == Status::kMetadataFull || status == Status::kRequestDataFull || status == Status::kResponseDataFull;
  ++(full ? counters_.full : counters_.refused);
  return -static_cast<std::int64_t>(status);
}

// Inlined into its two callers, so that the entry is never in memory of its own.
[[gnu::always_inline]] inline void Channel::put(const Entry& entry) {
  const std::size_t at = ChannelLayout::kMetadata + (tail_ & mask_) * kEntryBytes;
  // The engine has read these lines a lap ago. Owned before they are needed, none of them is waited for.
  own_soon(block_ + ChannelLayout::kMetadata + ((tail_ + kOwnedAhead) & mask_) * kEntryBytes);
  word(at).store(entry.req_addr, std::memory_order_relaxed);
  word(at + 8).store(entry.resp_addr, std::memory_order_relaxed);
  word(at + 24).store(entry.sequence, std::memory_order_relaxed);
  word(at + 16).store(entry.type_word(), std::memory_order_release);
  word(ChannelLayout::kIssuer + IssuerLine::kTail).store(++tail_, std::memory_order_release);
}

std::int64_t Channel::async_read(std::uint16_t region, std::uint64_t from, void* to, std::uint32_t length) {
  if (const Status bad = check(region, from, length, responses_.size); bad != Status::kOk) return refuse(bad);
  if (!has_room(RwType::kRead)) return refuse(Status::kMetadataFull);
  const DataRing::Place place = responses_.place(length);
  if (place.at == responses_.size) return refuse(Status::kResponseDataFull);
  responses_.take(place, length);
  const std::uint64_t sequence = ++issued_[0];
  pending_[0][sequence & mask_] = {place.new_tail, to, length, static_cast<std::uint32_t>(place.at), region};
  put({.type = RwType::kRead,
       .region = region,
       .length = length,
       .req_addr = from,
       .resp_addr = responses_.start + place.at,
       .sequence = sequence});
  ++counters_.reads;
  return RequestId(RwType::kRead, region, sequence).value();
}

std::int64_t Channel::async_write(std::uint16_t region, const void* from, std::uint64_t to, std::uint32_t length) {
  if (const Status bad = check(region, to, length, requests_.size); bad != Status::kOk) return refuse(bad);
  if (!regions_[region].writable) return refuse(Status::kReadOnly);
  if (!has_room(RwType::kWrite)) return refuse(Status::kMetadataFull);
  DataRing::Place place = requests_.place(length);
  if (place.at == requests_.size) {
    requests_.head = std::max(requests_.head, pending_[1][progress().writes & mask_].new_head);
    place = requests_.place(length);
    if (place.at == requests_.size) return refuse(Status::kRequestDataFull);
  }
  requests_.take(place, length);
  copy_small(block_ + requests_.start + place.at, from, length);
  const std::uint64_t sequence = ++issued_[1];
  pending_[1][sequence & mask_] = {place.new_tail, nullptr, length, 0, region};
  put({.type = RwType::kWrite,
       .region = region,
       .length = length,
       .req_addr = requests_.start + place.at,
       .resp_addr = to,
       .sequence = sequence});
  ++counters_.writes;
  return RequestId(RwType::kWrite, region, sequence).value();
}

Channel::Done Channel::progress() {
  // An engine that has lost its mind cannot lead us beyond what we have issued.
  return {std::min(load(ChannelLayout::kProgress + ProgressLine::kReads), issued_[0]),
          std::min(load(ChannelLayout::kProgress + ProgressLine::kWrites), issued_[1])};
}

void Channel::take_read(const Pending& read, RequestId id) {
  if (errors_.empty() || status_of(id) == Status::kOk) {
    copy_small(read.to, block_ + responses_.start + read.at, read.length);
  }
  responses_.head = read.new_head;
}

void Channel::advance() {
  const Done now = progress();
  if (now.reads > done_[0] || now.writes > done_[1]) take_errors();
  while (done_[0] < now.reads) {
    const Pending& read = pending_[0][++done_[0] & mask_];
    take_read(read, RequestId(RwType::kRead, read.region, done_[0]));
  }
  if (done_[1] < now.writes) {
    done_[1] = now.writes;
    requests_.head = std::max(requests_.head, pending_[1][now.writes & mask_].new_head);
  }
}

std::size_t Channel::collect(std::span<Completion> out) {
  const Done now = progress();
  if (now.reads == done_[0] && now.writes == done_[1]) return 0;
  take_errors();
  std::size_t count = 0;
  for (; count < out.size() && done_[0] < now.reads; ++count) {
    const Pending& read = pending_[0][++done_[0] & mask_];
    const RequestId id(RwType::kRead, read.region, done_[0]);
    take_read(read, id);
    out[count] = {id, status_of(id)};
  }
  for (; count < out.size() && done_[1] < now.writes; ++count) {
    const Pending& write = pending_[1][++done_[1] & mask_];
    requests_.head = std::max(requests_.head, write.new_head);
    const RequestId id(RwType::kWrite, write.region, done_[1]);
    out[count] = {id, status_of(id)};
  }
  return count;
}

void Channel::take_errors() {
  const std::uint64_t logged = load(ChannelLayout::kErrorLog);
  if (logged == errors_taken_ || logged - errors_taken_ > kErrors) return;
  for (; errors_taken_ < logged; ++errors_taken_) {
    const std::size_t at = ChannelLayout::kErrorLog + kErrorBytes * (1 + errors_taken_ % kErrors);
    if (errors_.size() == kRemembered) errors_.erase(errors_.begin());
    errors_.push_back({RequestId(static_cast<std::int64_t>(load(at))), static_cast<Status>(load(at + 8))});
    ++counters_.failed;
  }
  word(ChannelLayout::kIssuer + IssuerLine::kErrorsTaken).store(errors_taken_, std::memory_order_release);
}

Status Channel::status_of(RequestId id) const {
  if (errors_.empty()) return Status::kOk;
  for (const Completion& error : errors_) {
    if (error.id == id) return error.status;
  }
  return Status::kOk;
}

void Channel::set_regions_generation(std::uint64_t generation) {
  word(ChannelLayout::kIssuer + IssuerLine::kRegionsGeneration).store(generation, std::memory_order_release);
}

}  // namespace sluice::cowbird
