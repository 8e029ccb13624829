// Take what a machine sends, and keep the last frame of it, or all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "port/port.h"

namespace sluice::fuzz {

class RoomForOne : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    SLUICE_CHECK(length <= port::kMaxFrame);
    return full ? nullptr : room_.data();
  }
  bool full = false;

 protected:
  std::vector<std::uint8_t> first(std::size_t length) const {
    return {room_.begin(), room_.begin() + static_cast<std::ptrdiff_t>(length)};
  }

 private:
  std::array<std::uint8_t, port::kMaxFrame> room_{};
};

class LastFrame final : public RoomForOne {
 public:
  void commit(std::size_t length) override { frame = first(length); }
  std::vector<std::uint8_t> frame;
};

class AllFrames final : public RoomForOne {
 public:
  void commit(std::size_t length) override { frames.push_back(first(length)); }
  std::vector<std::vector<std::uint8_t>> frames;
};

}  // namespace sluice::fuzz
