// The bodies of BasicChannel: for channel.cpp, and for tests that make one with words of their own.
#pragma once

#include <algorithm>

#include "cowbird/channel.h"

namespace sluice::cowbird {
namespace channel_detail {

inline constexpr std::uint64_t kOwned = 16;           // entries: eight lines
inline constexpr std::size_t kLookAhead = 4 * kLine;  // bytes of responses
// An id has no room for more. Looked at only when the ring may be full, so a ring earlier.
inline constexpr std::uint64_t kLastSequence = RequestId::kMostSequence - kMostInstanceEntries;

}  // namespace channel_detail

template <class Words>
BasicChannel<Words>::BasicChannel(Words words, const ChannelLayout& layout, const std::vector<Region>& regions)
    : words_(words), layout_(layout), regions_(regions), mask_(layout.shape.entries - 1) {
  requests_ = {.start = layout.requests, .size = layout.shape.request_bytes};
  responses_ = {.start = layout.responses, .size = layout.shape.response_bytes};
  for (auto& pending : pending_) pending.resize(layout.shape.entries);
  tail_ = head_ = words_.load(ChannelLayout::kProgress + ProgressLine::kHead);
  issued_[0] = done_[0] = words_.load(ChannelLayout::kProgress + ProgressLine::kReads);
  issued_[1] = done_[1] = words_.load(ChannelLayout::kProgress + ProgressLine::kWrites);
  errors_taken_ = words_.load(ChannelLayout::kErrorLog);
}

template <class Words>
typename BasicChannel<Words>::DataRing::Place BasicChannel<Words>::DataRing::place(std::uint64_t length) const {
  const std::uint64_t to_end = size - tail_at;
  const bool fits = length <= to_end;  // otherwise in one piece at the start
  const std::uint64_t new_tail = tail + (fits ? 0 : to_end) + aligned(length);
  if (new_tail - head > size) return {size, tail};
  return {fits ? tail_at : 0, new_tail};
}

template <class Words>
bool BasicChannel<Words>::DataRing::begin_anew() {
  if (head != tail) return false;
  head = tail += size - tail_at;
  tail_at = 0;
  return true;
}

template <class Words>
void BasicChannel<Words>::DataRing::take(const Place& place, std::uint64_t length) {
  tail = place.new_tail;
  tail_at = place.at + aligned(length);
  if (tail_at == size) tail_at = 0;
}

template <class Words>
Status BasicChannel<Words>::check(std::uint16_t region, std::uint64_t offset, std::uint32_t length,
                                  std::uint64_t ring) {
  if (region >= regions_.size() || regions_[region].length == 0) return Status::kNoRegion;
  if (length == 0 || length > ring) return Status::kBadLength;
  const std::uint64_t bytes = regions_[region].length;
  if (length > bytes || offset > bytes - length) return Status::kOutOfRange;
  return Status::kOk;
}

template <class Words>
bool BasicChannel<Words>::has_room(RwType type) {
  const bool write = type == RwType::kWrite;
  // Requests that are complete but not yet taken still need their place here.
  if (issued_[write] - done_[write] >= layout_.shape.entries) return false;
  if (tail_ - head_ < layout_.shape.entries) return true;
  if (issued_[write] >= channel_detail::kLastSequence) return false;
  head_ = words_.load(ChannelLayout::kProgress + ProgressLine::kHead);
  return tail_ - head_ < layout_.shape.entries;
}

template <class Words>
std::int64_t BasicChannel<Words>::refuse(Status status) {
  const bool full =
      status == Status::kMetadataFull || status == Status::kRequestDataFull || status == Status::kResponseDataFull;
  ++(full ? counters_.full : counters_.refused);
  return -static_cast<std::int64_t>(status);
}

// The engine has read the next entries' lines a lap ago. A store waits until its line is owned, and all later stores wait behind it: so
// the lines of many entries are asked for at once, one behind the other. (prefetchw of a line that is shared does nothing on AMD's.)
template <class Words>
void BasicChannel<Words>::own_next() {
  for (std::uint64_t i = 0; i < channel_detail::kOwned; i += kLine / kEntryBytes) {
    words_.own(ChannelLayout::kMetadata + ((tail_ + i) & mask_) * kEntryBytes);
  }
}

// Inlined into its two callers, so that the entry is never in memory of its own.
template <class Words>
[[gnu::always_inline]] inline void BasicChannel<Words>::put(const Entry& entry) {
  const std::size_t at = ChannelLayout::kMetadata + (tail_ & mask_) * kEntryBytes;
  if (tail_ % channel_detail::kOwned == 0) own_next();
  words_.store(at, entry.req_addr);
  words_.store(at + 8, entry.resp_addr);
  // Who reads it before the tail knows by its sequence that it is not whole, and by its type whose sequence stands there.
  words_.publish(at + 16, entry.type_word());
  words_.publish(at + 24, entry.sequence);
  words_.publish(ChannelLayout::kIssuer + IssuerLine::kTail, ++tail_);
}

template <class Words>
std::int64_t BasicChannel<Words>::async_read(std::uint16_t region, std::uint64_t from, void* to, std::uint32_t length) {
  if (const Status bad = check(region, from, length, responses_.size); bad != Status::kOk) return refuse(bad);
  if (!has_room(RwType::kRead)) return refuse(Status::kMetadataFull);
  auto place = responses_.place(length);
  if (place.at == responses_.size && responses_.begin_anew()) place = responses_.place(length);
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

template <class Words>
std::int64_t BasicChannel<Words>::async_write(std::uint16_t region, const void* from, std::uint64_t to,
                                              std::uint32_t length) {
  if (const Status bad = check(region, to, length, requests_.size); bad != Status::kOk) return refuse(bad);
  if (!regions_[region].writable) return refuse(Status::kReadOnly);
  if (!has_room(RwType::kWrite)) return refuse(Status::kMetadataFull);
  auto place = requests_.place(length);
  if (place.at == requests_.size) {
    requests_.head = std::max(requests_.head, pending_[1][progress().writes & mask_].new_head);
    place = requests_.place(length);
    if (place.at == requests_.size && requests_.begin_anew()) place = requests_.place(length);
    if (place.at == requests_.size) return refuse(Status::kRequestDataFull);
  }
  requests_.take(place, length);
  words_.copy_in(requests_.start + place.at, from, length);
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

template <class Words>
typename BasicChannel<Words>::Done BasicChannel<Words>::progress() const {
  // An engine that has lost its mind cannot lead us beyond what we have issued.
  return {std::min(words_.load(ChannelLayout::kProgress + ProgressLine::kReads), issued_[0]),
          std::min(words_.load(ChannelLayout::kProgress + ProgressLine::kWrites), issued_[1])};
}

template <class Words>
inline Status BasicChannel<Words>::take_read(const Pending& read, RequestId id) {
  words_.look_soon(responses_.start + read.at + channel_detail::kLookAhead);
  const Status status = status_of(id);
  if (status == Status::kOk) words_.copy_out(read.to, responses_.start + read.at, read.length);
  responses_.head = read.new_head;
  return status;
}

template <class Words>
void BasicChannel<Words>::advance() {
  const Done now = progress();
  take_errors();
  while (done_[0] < now.reads) {
    const Pending& read = pending_[0][++done_[0] & mask_];
    take_read(read, RequestId(RwType::kRead, read.region, done_[0]));
  }
  if (done_[1] < now.writes) {
    done_[1] = now.writes;
    requests_.head = std::max(requests_.head, pending_[1][now.writes & mask_].new_head);
  }
}

// REQUIRES: one of the type is complete and has not been taken.
template <class Words>
[[gnu::always_inline]] inline Completion BasicChannel<Words>::take_oldest(RwType type) {
  const bool write = type == RwType::kWrite;
  const Pending& oldest = pending_[write][++done_[write] & mask_];
  const RequestId id(type, oldest.region, done_[write]);
  if (!write) return {id, take_read(oldest, id)};
  requests_.head = std::max(requests_.head, oldest.new_head);
  return {id, status_of(id)};
}

template <class Words>
std::size_t BasicChannel<Words>::collect(std::span<Completion> out) {
  const Done now = progress();
  // With nothing complete, too: a killed engine may have filled the log, and the next one needs room in it for what comes before all that.
  take_errors();
  if (now.reads == done_[0] && now.writes == done_[1]) return 0;
  std::size_t count = 0;
  if (writes_first_) {
    while (count < out.size() && done_[1] < now.writes) out[count++] = take_oldest(RwType::kWrite);
  }
  while (count < out.size() && done_[0] < now.reads) out[count++] = take_oldest(RwType::kRead);
  while (count < out.size() && done_[1] < now.writes) out[count++] = take_oldest(RwType::kWrite);
  if (count == out.size()) writes_first_ = !writes_first_;
  return count;
}

template <class Words>
void BasicChannel<Words>::take_errors() {
  const std::uint64_t logged = words_.load(ChannelLayout::kErrorLog);
  if (logged == errors_taken_ || logged - errors_taken_ > kErrors) return;
  for (; errors_taken_ < logged; ++errors_taken_) {
    const std::size_t at = ChannelLayout::kErrorLog + kErrorBytes * (1 + errors_taken_ % kErrors);
    const RequestId id(static_cast<std::int64_t>(words_.load(at)));
    if (note_failure(id, static_cast<Status>(words_.load(at + 8)))) ++counters_.failed;
  }
  words_.publish(ChannelLayout::kIssuer + IssuerLine::kErrorsTaken, errors_taken_);
}

template <class Words>
bool BasicChannel<Words>::note_failure(RequestId id, Status status) {
  if (!is_issued(id) || status == Status::kOk) return false;  // an engine that has lost its mind
  auto& [runs, forgotten] = failures_[id.is_write()];
  const std::uint64_t sequence = id.sequence();
  if (!runs.empty() && runs.back().last + 1 == sequence && runs.back().status == status) {
    runs.back().last = sequence;
  } else {
    // Nearly always at the end: only what an engine logged and did not live to publish comes before its time.
    const auto before = std::find_if(runs.rbegin(), runs.rend(), [&](const Failed& r) { return r.first <= sequence; });
    if (before != runs.rend() && before->last >= sequence) return false;
    runs.insert(before.base(), {sequence, sequence, status});
  }
  newest_failure_[id.is_write()] = std::max(newest_failure_[id.is_write()], sequence);
  if (runs.size() <= kRemembered || runs.front().last > done_[id.is_write()]) return true;
  forgotten = runs.front().last;
  runs.pop_front();
  return true;
}

template <class Words>
Status BasicChannel<Words>::look_up(const Failures& failures, std::uint64_t sequence) {
  if (sequence <= failures.forgotten) return Status::kForgotten;
  const auto& runs = failures.runs;
  const auto run = std::partition_point(runs.begin(), runs.end(), [&](const Failed& r) { return r.last < sequence; });
  return run != runs.end() && run->first <= sequence ? run->status : Status::kOk;
}

template <class Words>
bool BasicChannel<Words>::is_in_use(std::uint16_t region) const {
  const Done now = progress();
  const auto names_it = [&](bool write, std::uint64_t complete) {
    for (std::uint64_t i = std::max(complete, done_[write]) + 1; i <= issued_[write]; ++i) {
      if (pending_[write][i & mask_].region == region) return true;
    }
    return false;
  };
  return names_it(false, now.reads) || names_it(true, now.writes);
}

template <class Words>
void BasicChannel<Words>::set_regions_generation(std::uint64_t generation) {
  words_.publish(ChannelLayout::kIssuer + IssuerLine::kRegionsGeneration, generation);
}

}  // namespace sluice::cowbird
