// The few names of FASTER's C++ store that a device meets, so that the device can be tested without it.
//
// Source: the device interface of FASTER C++; none of its code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace FASTER::core {

enum class Status : std::uint8_t { Ok, Pending, NotFound, OutOfMemory, IOError };

class IAsyncContext {
 public:
  virtual ~IAsyncContext() = default;
  // A copy that outlives the caller's frame; whoever is called back with it frees it.
  virtual Status DeepCopy(IAsyncContext*& copy) = 0;
};

// What garbage collection wants to be told: how far the log has been given up.
struct GcState {
  void (*truncated)(std::uint64_t offset) = nullptr;
  void IssueTruncateCallback(std::uint64_t offset) const {
    if (truncated != nullptr) truncated(offset);
  }
};

using AsyncIOCallback = void (*)(IAsyncContext* context, Status result, std::size_t bytes);

}  // namespace FASTER::core

namespace sluice::faster::stand_in {

struct Epoch {};

// A disk without files.
class LocalDisk {
 public:
  struct handler_t {};
  struct file_t {};
  LocalDisk(const std::string&, Epoch&, const std::string&, bool, bool) {}
  handler_t& handler() { return handler_; }
  file_t NewFile(const std::string&) { return {}; }
  bool TryComplete() { return false; }

 private:
  handler_t handler_;
};

}  // namespace sluice::faster::stand_in
