// Repairer: brings memory nodes that come back into a store again, beside its metadata server: blanks them where they hold what is old, and
// copies what the others have.
//
// Life:       saw() and gone() tell of memory nodes -> spawn(run()) -> stop() -> run() returns before long.
// Invariant:  nothing is written to a replica but what its primary says, and no next word but where none stands yet, so whatever clients do
//             meanwhile is kept. Nothing is begun on a version out of the time in which its slot cannot be used again.
// Errors:     none to the caller: what fails is tried again at the next turn.
// Threads:    the server's.
// Source:     docs/design/clover.md §4.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "clover/metadata.h"
#include "remote/remote_memory.h"
#include "remote/task.h"

namespace sluice::clover {

struct RepairerConfig {
  std::size_t copies_at_once = 16;
  // A node that was left out although it kept its memory is taken back after so many cursor lifetimes; after each further time twice as many.
  std::uint32_t lifetimes_out = 4;
  // Asked of memory that the store has not been in, before anything is written to it; false: at the next turn again. Null: it is free.
  std::function<remote::Task<bool>(Home)> is_free{};
};

class Repairer {
 public:
  // Memory and server outlive it. Looks for something to do every `turn`: an eighth of the cursors' lifetime.
  Repairer(remote::RemoteMemory& memory, MetadataServer& server, Duration turn, RepairerConfig config = {});

  // The node's memory is there, and what it is now: the node of that name, if it has one, whatever number it had before.
  void saw(Time now, const Home& home);
  // The node of this number and, if it has one, of this name.
  void gone(Time now, remote::NodeId node, const std::string& name);
  remote::Task<void> run();
  void stop() { stopping_ = true; }

 private:
  struct Seen {
    Home home;
    bool there = false;
    bool left_out = false;
    Time again;    // not taken back before
    Time quiet{};  // no zero that was written to it, and may not have arrived, arrives any more
    Duration pause;
  };
  // By its name, where that is known.
  Seen* find(remote::NodeId node, const std::string& name);
  // Whether the server wants the node back, and if so, does what is needed.
  remote::Task<void> take_back(std::size_t index);
  bool still_there(std::size_t index, const Home& home) const;
  remote::Task<bool> wipe(std::size_t index, Home home, const std::vector<WipeTask>& tasks);
  remote::Task<void> write_zeros(std::size_t index, std::vector<remote::Operation>& writes);
  remote::Task<std::size_t> copy_some();
  Time now() const { return memory_.scheduler().now(); }

  remote::RemoteMemory& memory_;
  MetadataServer& server_;
  Duration turn_;
  RepairerConfig config_;
  std::vector<Seen> nodes_;
  std::vector<std::uint8_t> buffers_;  // a node for each copy
  bool stopping_ = false;
};

}  // namespace sluice::clover
