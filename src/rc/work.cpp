#include "rc/work.h"

namespace sluice::rc {

std::string_view to_string(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::kSuccess: return "success";
    case CompletionStatus::kLocalLengthError: return "local length error";
    case CompletionStatus::kLocalQpOperationError: return "local QP operation error";
    case CompletionStatus::kLocalProtectionError: return "local protection error";
    case CompletionStatus::kFlushed: return "work request flushed";
    case CompletionStatus::kBadResponse: return "bad response";
    case CompletionStatus::kLocalAccessError: return "local access error";
    case CompletionStatus::kRemoteInvalidRequest: return "remote invalid request";
    case CompletionStatus::kRemoteAccessError: return "remote access error";
    case CompletionStatus::kRemoteOperationError: return "remote operation error";
    case CompletionStatus::kRetryExceeded: return "transport retry counter exceeded";
    case CompletionStatus::kRnrRetryExceeded: return "RNR retry counter exceeded";
    case CompletionStatus::kGeneralError: return "general error";
  }
  return "?";
}

std::string_view to_string(PostError error) {
  switch (error) {
    case PostError::kNone: return "none";
    case PostError::kQueueFull: return "work queue full";
    case PostError::kTooManySges: return "more sges than the queue pair was made for";
    case PostError::kInlineTooLong: return "inline data longer than the queue pair was made for";
    case PostError::kTooLong: return "message longer than the transport allows";
    case PostError::kTooShort: return "less than the 8 bytes that an atomic returns";
    case PostError::kWrongState: return "queue pair is in a state that takes no work";
    case PostError::kUnsupportedOp: return "operation not offered by this transport";
    case PostError::kBadLocalKey: return "bad local key";
    case PostError::kNoDestination: return "datagram without a destination";
  }
  return "?";
}

}  // namespace sluice::rc
