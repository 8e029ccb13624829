#include "nic/wait_epoll.h"

#include <algorithm>
#include <cerrno>

namespace sluice::nic {

int wait_epoll(int epoll, std::span<epoll_event> events, Duration timeout) {
  constexpr std::int64_t kLongest = 60'000;  // ms; whoever waits longer looks up in between
  const std::int64_t ns = std::max<std::int64_t>(timeout.nanoseconds(), 0);
  const int room = static_cast<int>(events.size());
  timespec ts{};
  ts.tv_sec = ns / 1'000'000'000;
  ts.tv_nsec = ns % 1'000'000'000;
  const int n = epoll_pwait2(epoll, events.data(), room, &ts, nullptr);
  if (n >= 0 || (errno != ENOSYS && errno != EPERM)) return n;
  return epoll_wait(epoll, events.data(), room,
                    static_cast<int>(std::min<std::int64_t>((ns + 999'999) / 1'000'000, kLongest)));
}

}  // namespace sluice::nic
