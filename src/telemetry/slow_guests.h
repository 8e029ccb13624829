// Slow guests, for tests: connections that say something and no more, opened anew when the server ends them.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sluice::telemetry {

class SlowGuests {
 public:
  // `from`: the address that they come from.
  SlowGuests(std::size_t many, const std::string& host, int port, std::string says, const std::string& from)
      : from_(address(from, 0)), to_(address(host, port)), says_(std::move(says)), sockets_(many, -1), thread_([this] {
          press();
        }) {}
  ~SlowGuests() {
    ending_ = true;
    thread_.join();
    for (const int s : sockets_) {
      if (s >= 0) close(s);
    }
  }
  SlowGuests(const SlowGuests&) = delete;
  SlowGuests& operator=(const SlowGuests&) = delete;

  // Waits until all of them have come and said it, and so many times in all. False: they cannot.
  bool come(int times = 2, std::chrono::milliseconds patience = std::chrono::seconds(20)) const {
    const auto give_up = std::chrono::steady_clock::now() + patience;
    while (rounds_ < times && std::chrono::steady_clock::now() < give_up)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return rounds_ >= times;
  }
  // How often all of them were there.
  int rounds() const { return rounds_; }

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
        s = connect_one();
      }
      if (std::ranges::all_of(sockets_, [](int s) { return s >= 0; })) ++rounds_;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  static bool is_over(int s) {
    if (s < 0) return true;
    std::array<char, 512> answer{};
    ssize_t n = 0;
    while ((n = recv(s, answer.data(), answer.size(), MSG_DONTWAIT)) > 0) {
    }
    return n == 0 || errno != EAGAIN;
  }
  int connect_one() const {
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    timeval patience{.tv_sec = 0, .tv_usec = 100'000};
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    const bool connected = bind(s, reinterpret_cast<const sockaddr*>(&from_), sizeof from_) == 0 &&
                           connect(s, reinterpret_cast<const sockaddr*>(&to_), sizeof to_) == 0;
    if (!connected) {
      close(s);
      return -1;
    }
    send(s, says_.data(), says_.size(), MSG_NOSIGNAL);  // unless the server has ended it already
    return s;
  }

  sockaddr_in from_;
  sockaddr_in to_;
  std::string says_;
  std::vector<int> sockets_;
  std::atomic<bool> ending_{false};
  std::atomic<int> rounds_{0};  // in which each of them had a connection
  std::thread thread_;
};

}  // namespace sluice::telemetry
