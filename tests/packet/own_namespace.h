// Tests of ports on network devices run in a network namespace that they make for themselves: nothing outside is touched, and nothing is
// left behind. Needs root or unprivileged user namespaces.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace sluice::packet_tests {

inline void run(const std::string& command) { ASSERT_EQ(std::system(command.c_str()), 0) << command; }

inline bool write_file(const char* path, const std::string& text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  const bool done = fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) close(fd);
  return done;
}

// A network namespace of our own; as an ordinary user inside a user namespace of our own, where that is allowed.
inline bool enter_namespace() {
  if (unshare(CLONE_NEWNET) == 0) return true;
  const auto user = getuid();
  const auto group = getgid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  return write_file("/proc/self/setgroups", "deny") &&
         write_file("/proc/self/uid_map", "0 " + std::to_string(user) + " 1") &&
         write_file("/proc/self/gid_map", "0 " + std::to_string(group) + " 1");
}

// main() of such a test; 77, and a line that says why, where it cannot run.
inline int run_all_in_own_namespace(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!enter_namespace()) {
    std::printf("skipped: no network namespace of our own (needs root or unprivileged user namespaces)\n");
    return 77;
  }
  if (std::system("ip link set lo up && ip link add probe type veth && ip link del probe") != 0) {
    std::printf("skipped: `ip link add ... type veth` does not work here (package iproute2, kernel module veth)\n");
    return 77;
  }
  return RUN_ALL_TESTS();
}

}  // namespace sluice::packet_tests
