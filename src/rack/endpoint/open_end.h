// One end of a port that joins two processes: opened, or listened for until the other end is there.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "nic/poll_loop.h"
#include "port/listener.h"
#include "port/port.h"

namespace sluice::rack {

// `listen`: a listener whose first caller is the peer; it is then kept in `listener`, which outlives the port. `listening` is called when
// the other end may come. Waits in the loop.
Result<std::unique_ptr<port::Port>> open_end(const std::string& spec, bool listen, nic::PollLoop& loop,
                                             const std::function<void()>& listening,
                                             std::unique_ptr<port::Listener>& listener);

}  // namespace sluice::rack
