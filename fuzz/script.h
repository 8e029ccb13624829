// The input of a fuzzer as a script: byte after byte, zeros when it is used up.
#pragma once

#include "base/bytes.h"

namespace sluice::fuzz {

class Script {
 public:
  explicit Script(ByteView bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  std::uint8_t next() {
    if (bytes_.empty()) return 0;
    const std::uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }
  std::uint16_t next16() {
    const auto high = static_cast<std::uint16_t>(next() << 8);
    return static_cast<std::uint16_t>(high | next());
  }

 private:
  ByteView bytes_;
};

}  // namespace sluice::fuzz
