// What commands that start the other end of a measurement themselves need: processes that run a function, in a folder of their own.
//
// Threads:  start() forks: before any thread is started.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

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
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);  // it was gone before that
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
  void kill_now() const {
    if (pid_ > 0) kill(pid_, SIGKILL);
  }
  // After kill_now(): until it is gone. Then its number may be another's.
  void wait() {
    if (pid_ > 0) waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGTERM);
    for (int i = 0; i < 100; ++i) {
      if (waitpid(pid_, nullptr, WNOHANG) != 0) return;
      usleep(10'000);
    }
    kill_now();
    wait();
  }

 private:
  pid_t pid_ = -1;
};

// Whether the user has interrupted, seen by a loop or not yet.
inline bool has_come(const rack::StopSignals& signals) {
  pollfd descriptor{signals.descriptor(), POLLIN, 0};
  return signals.received() != 0 || poll(&descriptor, 1, 0) == 1;
}

// Processes of our own and the folder in which they write until they end: it outlives them.
class Children {
 public:
  Children() {
    std::error_code none;
    const auto parent = std::filesystem::temp_directory_path(none);
    std::string name = (parent / "sluice-XXXXXX").string();
    if (!none && mkdtemp(name.data()) != nullptr) folder_ = name;
  }
  ~Children() {
    all_.clear();
    remove_folder();
  }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  const std::string& folder() const { return folder_; }
  bool empty() const { return all_.empty(); }
  // `what` is for who reads that it did not start. Fails without a folder, too.
  Result<void> start(const std::string& what, const std::function<Result<void>(const std::function<void()>&)>& body) {
    if (folder_.empty()) return fail("no folder could be made for what is temporary; TMPDIR says where");
    if (!all_.emplace_back().start(body)) return fail(what + " did not start");
    return {};
  }
  // Who started as number i, counted from 0, dies.
  void kill_now(std::size_t i) const { all_.at(i).kill_now(); }
  void end_last() { all_.pop_back(); }
  // For who ends without a destructor: nobody and nothing is left.
  void end_now() {
    for (const Child& child : all_) child.kill_now();
    for (Child& child : all_) child.wait();
    remove_folder();
  }

 private:
  void remove_folder() const {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  std::string folder_;
  std::deque<Child> all_;
};

}  // namespace sluice::cli
