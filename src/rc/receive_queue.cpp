#include "rc/receive_queue.h"

#include "base/check.h"

namespace sluice::rc {

PostError ReceiveQueue::push(const ReceiveRequest& request) {
  if (size() == depth_) return PostError::kQueueFull;
  if (request.sges.size() > max_sges_) return PostError::kTooManySges;
  const std::uint32_t slot = tail_ & mask_;
  entries_[slot] = {request.id, static_cast<std::uint8_t>(request.sges.size())};
  LocalPiece* const pieces = &pieces_[std::size_t{slot} * std::max(max_sges_, 1u)];
  for (std::size_t i = 0; i < request.sges.size(); ++i) {
    pieces[i] = {request.sges[i].address, nullptr, request.sges[i].length, request.sges[i].key};
  }
  ++tail_;
  return PostError::kNone;
}

ReceiveQueue::Taken ReceiveQueue::take(std::span<LocalPiece> into) {
  SLUICE_CHECK(!empty());
  const std::uint32_t slot = head_++ & mask_;
  const Entry& entry = entries_[slot];
  SLUICE_CHECK(entry.sge_count <= into.size());
  const LocalPiece* const pieces = &pieces_[std::size_t{slot} * std::max(max_sges_, 1u)];
  std::copy_n(pieces, entry.sge_count, into.begin());
  return {entry.id, entry.sge_count};
}

}  // namespace sluice::rc
