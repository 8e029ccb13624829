// Poll group: some requests of one channel, to be told of as they complete, as epoll does for descriptors.
//
// Life:       add() ids (before or after they complete) -> collect() returns each once, when it is complete -> gone from the group.
// Cost:       ids of one type added in the order of issue, as programs do: one comparison a request.
// Threads:    the channel's owner.
// Source:     Cowbird §4.1 (poll_create, poll_add, poll_remove, poll_wait), §4.3.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cowbird/channel.h"

namespace sluice::cowbird {

class PollGroup {
 public:
  explicit PollGroup(Channel& channel) : channel_(channel) {}

  // kNoSuchRequest: never issued on this channel. Adding an id twice has no effect.
  Status add(RequestId id);
  // kNoSuchRequest: not in the group (any more).
  Status remove(RequestId id);
  // Lets the channel advance, then takes what is complete: oldest first of each type. Neither type waits for the other for ever.
  std::size_t collect(std::span<Completion> out);
  std::size_t size() const { return lanes_[0].size() + lanes_[1].size(); }

 private:
  // Ids of one type in the order of their sequence; those before `first` are taken.
  struct Lane {
    std::vector<RequestId> ids;
    std::size_t first = 0;
    std::size_t size() const { return ids.size() - first; }
  };
  std::vector<RequestId>::iterator find(Lane& lane, RequestId id);

  void take(Lane& lane, std::span<Completion> out, std::size_t& count);

  Channel& channel_;
  Lane lanes_[2];              // reads, writes
  bool writes_first_ = false;  // in the next collect()
};

}  // namespace sluice::cowbird
