// Outbox: what a stage of a switch makes, until the switch of a test sends it on. It has room for everything.
#pragma once

#include <cstdint>
#include <vector>

#include "port/port.h"

namespace sluice::scenario {

class Outbox final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    frames_.resize(committed_);
    frames_.emplace_back(length);
    return frames_.back().data();
  }
  void commit(std::size_t length) override {
    frames_.back().resize(length);
    ++committed_;
  }
  template <class Send>
  void drain(Send send) {
    frames_.resize(committed_);
    for (auto& frame : frames_) send(port::Frame{frame.data(), static_cast<std::uint32_t>(frame.size())});
    frames_.clear();
    committed_ = 0;
  }

 private:
  std::vector<std::vector<std::uint8_t>> frames_;
  std::size_t committed_ = 0;
};

}  // namespace sluice::scenario
