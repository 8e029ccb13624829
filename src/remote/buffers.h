// Buffers of one size, used again, for the coroutines of one thread.
//
// Life:       a Buffer takes one from the pool and gives it back when its frame goes. Shared, so that a frame may be destroyed after the client
//             whose pool it is.
// Threads:    one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace sluice::remote {

class Buffers {
 public:
  explicit Buffers(std::size_t bytes) : bytes_(bytes) {}
  std::size_t size() const { return bytes_; }
  std::unique_ptr<std::uint8_t[]> take() {
    if (idle_.empty()) return std::make_unique<std::uint8_t[]>(bytes_);
    auto buffer = std::move(idle_.back());
    idle_.pop_back();
    return buffer;
  }
  void give(std::unique_ptr<std::uint8_t[]> buffer) { idle_.push_back(std::move(buffer)); }

 private:
  std::size_t bytes_;
  std::vector<std::unique_ptr<std::uint8_t[]>> idle_;
};

class Buffer {
 public:
  explicit Buffer(const std::shared_ptr<Buffers>& buffers) : buffers_(buffers), memory_(buffers->take()) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { buffers_->give(std::move(memory_)); }
  MutableBytes bytes() { return {memory_.get(), buffers_->size()}; }

 private:
  std::shared_ptr<Buffers> buffers_;
  std::unique_ptr<std::uint8_t[]> memory_;
};

}  // namespace sluice::remote
