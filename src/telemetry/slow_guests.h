// Slow guests, for tests: connections that say one byte and no more, opened anew when the server ends them.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace sluice::telemetry {

class SlowGuests {
 public:
  // `from`: the address that they come from.
  SlowGuests(std::size_t many, const std::string& host, int port, char says, const std::string& from)
      : from_(address(from, 0)), to_(address(host, port)), says_(says), sockets_(many, -1), thread_([this] {
          press();
        }) {}
  ~SlowGuests() {
    ending_ = true;
    thread_.join();
    for (const int s : sockets_) close(s);
  }
  SlowGuests(const SlowGuests&) = delete;
  SlowGuests& operator=(const SlowGuests&) = delete;

  // All of them have come and said it.
  bool are_there() const { return rounds_ > 1; }

 private:
  static sockaddr_in address(const std::string& host, int port) {
    sockaddr_in made{};
    made.sin_family = AF_INET;
    made.sin_port = htons(static_cast<std::uint16_t>(port));
    inet_pton(AF_INET, host.c_str(), &made.sin_addr);
    return made;
  }
  void press() {
    while (!ending_) {
      for (int& s : sockets_) {
        if (!is_over(s)) continue;
        if (s >= 0) close(s);
        s = come();
      }
      ++rounds_;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  static bool is_over(int s) {
    char byte = 0;
    return s < 0 || recv(s, &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
  }
  int come() {
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    timeval patience{.tv_sec = 0, .tv_usec = 100'000};
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    const bool connected = bind(s, reinterpret_cast<const sockaddr*>(&from_), sizeof from_) == 0 &&
                           connect(s, reinterpret_cast<const sockaddr*>(&to_), sizeof to_) == 0 &&
                           send(s, &says_, 1, MSG_NOSIGNAL) == 1;
    if (connected) return s;
    close(s);
    return -1;
  }

  sockaddr_in from_;
  sockaddr_in to_;
  char says_;
  std::vector<int> sockets_;
  std::atomic<bool> ending_{false};
  std::atomic<int> rounds_{0};
  std::thread thread_;
};

}  // namespace sluice::telemetry
