// Turns a loop until something has come true, for no longer than a while.
//
// Threads:  the loop's owner, while nobody else turns it.
#pragma once

#include "nic/poll_loop.h"

namespace sluice::nic {

// Whether it came true.
template <class Condition>
bool run_for(PollLoop& loop, Duration patience, Condition&& done) {
  const Time give_up = loop.now() + patience;
  Periodic alarm(Duration::milliseconds(20), [](Time) {});  // so that a sleeping loop looks at the clock
  loop.add(alarm);
  bool fulfilled = false;
  loop.run_until([&] { return (fulfilled = done()) || loop.now() >= give_up; });
  loop.remove(alarm);
  return fulfilled;
}

}  // namespace sluice::nic
