#include "nic/wait_epoll.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace {
int refusal = 0;  // what the kernel, or a sandbox around us, says of epoll_pwait2
}

// Of the whole test program.
extern "C" int epoll_pwait2(int epoll, epoll_event* events, int room, const timespec* timeout, const sigset_t* mask) {
  if (refusal != 0) {
    errno = refusal;
    return -1;
  }
  return static_cast<int>(syscall(SYS_epoll_pwait2, epoll, events, room, timeout, mask, 8));
}

namespace sluice::nic {
namespace {

TEST(WaitEpoll, WaitsWithOrWithoutTheNewerCall) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  const int bell = eventfd(0, EFD_CLOEXEC);
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, bell, &wanted), 0);
  std::array<epoll_event, 2> events;
  for (const int error : {0, ENOSYS, EPERM}) {
    refusal = error;
    EXPECT_EQ(wait_epoll(epoll, events, Duration::nanoseconds(1)), 0) << error;
    eventfd_write(bell, 1);
    EXPECT_EQ(wait_epoll(epoll, events, Duration::seconds(100)), 1) << error;
    eventfd_t rung = 0;
    eventfd_read(bell, &rung);
  }
  refusal = EBADF;
  EXPECT_EQ(wait_epoll(epoll, events, Duration()), -1) << "another error is one";
  refusal = 0;
  close(bell);
  close(epoll);
}

}  // namespace
}  // namespace sluice::nic
