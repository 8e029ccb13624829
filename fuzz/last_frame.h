// Takes what a machine sends, and keeps the last frame of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "port/port.h"

namespace sluice::fuzz {

class LastFrame final : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    SLUICE_CHECK(length <= port::kMaxFrame);
    return full ? nullptr : room_.data();
  }
  void commit(std::size_t length) override { frame.assign(room_.begin(), room_.begin() + static_cast<long>(length)); }
  bool full = false;
  std::vector<std::uint8_t> frame;

 private:
  std::array<std::uint8_t, port::kMaxFrame> room_{};
};

}  // namespace sluice::fuzz
