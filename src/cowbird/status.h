// What can become of a Cowbird request, and what can be wrong with a call.
//
// Numbers are part of the block's layout (an engine reports them) and of the C interface (cowbird.h: negative).
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice::cowbird {

enum class Status : std::uint8_t {
  kOk = 0,
  // The call was refused; nothing was issued.
  kNoRegion = 1,
  kOutOfRange = 2,
  kBadLength = 3,
  kReadOnly = 4,
  kMetadataFull = 5,
  kRequestDataFull = 6,
  kResponseDataFull = 7,
  kNoSuchRequest = 8,
  kNoSuchGroup = 9,
  kRegionInUse = 10,
  // An engine reports it of a request.
  kDenied = 16,       // the memory node refused: nothing happened
  kUnreachable = 17,  // the memory node is out of reach: nothing happened
  kUnknown = 18,      // a write was on its way when the memory node was lost, or an engine: it may have happened
  kMalformed = 19,    // the engine could not make sense of the request
  // The issuing side's answer to a question that comes late.
  kForgotten = 20,  // complete, but so many others have failed since that nobody remembers whether this one did
  kTooLong = 21,    // an engine reports it: the ring has room for so much, the engine does not move it at once
  // Of the instance.
  kEngineAbsent = 32,  // no engine has shown itself for a while
};

// A sentence that says what it means and what to do.
std::string_view describe(Status status);

}  // namespace sluice::cowbird
