// How long frames wait in a port whose kernel takes none: what leaves late comes when nobody reckons with it any more (rc/remote_rc.h, "Flight"), and
// its sender has sent it again, or given up. So a port drops what it holds when kBound has passed since it could not send, and not all that it held
// then has left: nothing is held for longer than twice that, however slowly the device takes the rest. What the kernel has taken is
// out of reach: an interface whose device stands still (paused, throttled) has whole queues in it, which leave late.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace sluice::ports {

class Patience {
 public:
  static constexpr Duration kBound = Duration::milliseconds(50);

  // After the kernel has refused: of the `given` frames, counted since ever, so many are still held. True: they are to be dropped.
  bool ends(Time now, std::uint64_t given, std::uint64_t held) {
    if (given - held >= awaited_) {  // what was held at first has left
      awaited_ = given;
      since_ = now;
    }
    return now - since_ >= kBound;
  }

 private:
  std::uint64_t awaited_ = 0;  // so many have been given when
  Time since_;                 // the wait began
};

}  // namespace sluice::ports
