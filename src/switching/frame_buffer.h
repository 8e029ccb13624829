// Frame buffer: frames that a stage makes, kept until the burst that they follow has gone.
//
// Limits:   kFrames of up to port::kMaxFrame; then reserve() refuses.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "port/port.h"

namespace sluice::switching {

class FrameBuffer final : public port::FrameSink {
 public:
  static constexpr std::size_t kFrames = 256;

  std::uint8_t* reserve(std::size_t length) override {
    return count_ < kFrames && length <= port::kMaxFrame ? &bytes_[count_ * port::kMaxFrame] : nullptr;
  }
  void commit(std::size_t length) override { lengths_[count_++] = static_cast<std::uint32_t>(length); }

  std::size_t size() const { return count_; }
  port::Frame frame(std::size_t i) { return {&bytes_[i * port::kMaxFrame], lengths_[i]}; }
  void clear() { count_ = 0; }

 private:
  std::vector<std::uint8_t> bytes_ = std::vector<std::uint8_t>(kFrames * port::kMaxFrame);
  std::array<std::uint32_t, kFrames> lengths_{};
  std::size_t count_ = 0;
};

}  // namespace sluice::switching
