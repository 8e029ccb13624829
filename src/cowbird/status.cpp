#include "cowbird/status.h"

namespace sluice::cowbird {

std::string_view describe(Status status) {
  switch (status) {
    case Status::kOk: return "done";
    case Status::kNoRegion: return "no region has this id; add it before use";
    case Status::kOutOfRange: return "the bytes are not all inside the region";
    case Status::kBadLength: return "the length is 0 or more than the data ring holds; split the transfer";
    case Status::kReadOnly: return "the region was added as read-only";
    case Status::kMetadataFull: return "the request metadata ring is full; poll for completions, then try again";
    case Status::kRequestDataFull: return "the request data ring is full; wait for writes to complete, then try again";
    case Status::kResponseDataFull: return "the response data ring is full; poll for completed reads, then try again";
    case Status::kNoSuchRequest: return "no such request was issued on this channel";
    case Status::kNoSuchGroup: return "no poll group has this id";
    case Status::kRegionInUse: return "requests of this region are under way; wait until they are complete";
    case Status::kDenied: return "the memory node refused: wrong key, or outside of what it exports; nothing happened";
    case Status::kUnreachable: return "the memory node cannot be reached; nothing happened";
    case Status::kUnknown:
      return "the memory node, or an engine, was lost during the write: it may have happened or not";
    case Status::kMalformed: return "the engine could not make sense of the request";
    case Status::kForgotten: return "complete, but too many others failed since to know how it ended; ask sooner";
    case Status::kTooLong:
      return "longer than this engine moves at once (the one in the switch: 1 MiB); split the transfer";
    case Status::kEngineAbsent:
      return "no engine serves this instance: start one with `sluice cowbird engine`, or see cowbird_last_error()";
  }
  return "unknown status";
}

}  // namespace sluice::cowbird
