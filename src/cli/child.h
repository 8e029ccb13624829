// What commands that start the other end of a measurement themselves need: a process that runs a function, and a folder of their own.
//
// Threads:  start() forks: before any thread is started.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "base/result.h"
#include "cli/command.h"
#include "rack/endpoint/endpoint.h"

namespace sluice::cli {

// A process of our own that runs a function and dies with us.
class Child {
 public:
  // `body` gets a function to call when it is ready; false when it never was.
  bool start(const std::function<Result<void>(const std::function<void()>& ready)>& body) {
    int ends[2];
    if (pipe(ends) != 0) return false;
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(ends[0]);
      const auto done = body([&] { static_cast<void>(!write(ends[1], "r", 1)); });
      if (!done) say("peer: " + done.error().message);
      _exit(done ? 0 : 1);
    }
    close(ends[1]);
    pollfd descriptor{ends[0], POLLIN, 0};
    char byte = 0;
    const bool ready = pid_ > 0 && poll(&descriptor, 1, 10'000) == 1 && read(ends[0], &byte, 1) == 1;
    close(ends[0]);
    return ready;
  }
  Child() = default;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  // As if it had died.
  void kill_now() {
    if (pid_ > 0) kill(pid_, SIGKILL);
  }
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGTERM);
    for (int i = 0; i < 100 && waitpid(pid_, nullptr, WNOHANG) == 0; ++i) usleep(10'000);
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
};

// Whether the user has interrupted, seen by a loop or not yet.
inline bool has_come(const rack::StopSignals& signals) {
  pollfd descriptor{signals.descriptor(), POLLIN, 0};
  return signals.received() != 0 || poll(&descriptor, 1, 0) == 1;
}

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~Folder() { remove(); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  void remove() const {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace sluice::cli
