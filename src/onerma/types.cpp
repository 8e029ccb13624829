#include "onerma/types.h"

namespace sluice::onerma {

std::string_view to_string(Status status) {
  switch (status) {
    case Status::kOk: return "ok";
    case Status::kNack: return "nack";
    case Status::kDispatchTimeout: return "dispatch time-out";
    case Status::kTimeout: return "time-out";
    case Status::kBadKey: return "bad key";
    case Status::kBadBounds: return "bad bounds";
    case Status::kRightMissing: return "right missing";
    case Status::kReplay: return "replay";
  }
  return "?";
}

}  // namespace sluice::onerma
