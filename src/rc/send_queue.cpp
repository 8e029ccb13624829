#include "rc/send_queue.h"

#include <algorithm>
#include <cstring>

namespace sluice::rc {
namespace {

std::uint64_t length_of(const SendRequest& request) {
  std::uint64_t length = 0;
  for (const Sge& sge : request.sges) length += sge.length;
  return length;
}

}  // namespace

PostError SendQueue::check(const SendRequest& request) const {
  if (full()) return PostError::kQueueFull;
  const std::uint64_t length = length_of(request);
  if (length > kLongestMessage) return PostError::kTooLong;
  const bool atomic = is_atomic(request.op);
  if (atomic && length < 8) return PostError::kTooShort;
  const bool copies = request.flags.inline_data;
  if (copies && (length > max_inline_ || request.op == SendOp::kRead || atomic)) {
    return PostError::kInlineTooLong;
  }
  return !copies && request.sges.size() > max_sges_ ? PostError::kTooManySges : PostError::kNone;
}

PostError SendQueue::push(const SendRequest& request) {
  if (const PostError error = check(request); error != PostError::kNone) return error;
  const std::uint64_t length = length_of(request);
  const bool atomic = is_atomic(request.op);
  const bool copies = request.flags.inline_data;
  const std::uint32_t slot = tail_ & mask_;
  SendWqe& wqe = wqes_[slot];
  wqe = {.id = request.id,
         .remote_address = request.remote_address,
         .compare = request.compare,
         .swap_or_add = request.swap_or_add,
         .remote_key = request.remote_key,
         .length = atomic ? 8 : static_cast<std::uint32_t>(length),
         .immediate = request.op == SendOp::kSendWithInvalidate ? request.invalidate_key.value : request.immediate,
         .op = request.op,
         .flags = request.flags,
         .expires = request.not_after == Time::never() ? 0 : std::max(SendWqe::ticks(request.not_after), 1u)};
  LocalPiece* const pieces = &pieces_[std::size_t{slot} * std::max(max_sges_, 1u)];
  if (copies) {
    std::uint8_t* to = inline_.data() + std::size_t{slot} * max_inline_;
    wqe.sge_count = length == 0 ? 0 : 1;
    if (length != 0) pieces[0] = {reinterpret_cast<std::uintptr_t>(to), to, wqe.length, memory::kReservedKey};
    for (const Sge& sge : request.sges) {
      if (sge.length == 0) continue;
      std::memcpy(to, reinterpret_cast<const void*>(static_cast<std::uintptr_t>(sge.address)), sge.length);
      to += sge.length;
    }
  } else {
    wqe.sge_count = static_cast<std::uint8_t>(request.sges.size());
    for (std::size_t i = 0; i < request.sges.size(); ++i) {
      pieces[i] = {request.sges[i].address, nullptr, request.sges[i].length, request.sges[i].key};
    }
  }
  ++tail_;
  return PostError::kNone;
}

}  // namespace sluice::rc
