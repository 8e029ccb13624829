// Memory session: plain one-sided access to the rack's memory nodes, by their names, for commands and tools that need no store.
//
// Life:       open() attaches and connects -> run() tasks over memory() -> destroyed: leaves the rack.
// Errors:     open() says who does not answer; operations end in a remote::Status.
// Threads:    one owner; open() and run() block it.
#pragma once

#include <memory>
#include <string>

#include "rack/clients/store_session.h"

namespace sluice::rack {

class MemorySession final : public StoreSession {
 public:
  // Connects to the node of this name alone, or to that of a region of this name (Snapshot::find_memory()); offsets are into that memory.
  static Result<std::unique_ptr<MemorySession>> open(const StoreSessionConfig& config, const std::string& node);
  ~MemorySession() override { detach(); }

  remote::RemoteMemory& memory() { return remote_nodes().memory(); }
  std::uint64_t length() const { return length_; }
  // REQUIRES: offset < length(). Of a byte of the node's memory, as Cowbird and the stores count.
  remote::RemoteAddress at(std::uint64_t offset) const { return base_ + offset; }
  // Runs the task. False: it has not ended within `patience`; it is abandoned when the session goes.
  bool run(remote::Task<void> task, Duration patience);

 private:
  explicit MemorySession(StoreSessionConfig config) : config_(std::move(config)) {}
  Result<void> connect(const std::string& node);

  StoreSessionConfig config_;
  remote::RemoteAddress base_{};
  std::uint64_t length_ = 0;
};

}  // namespace sluice::rack
