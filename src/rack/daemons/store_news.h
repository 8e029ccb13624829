// Store news: what a metadata server's log says of replicas that are missing, and of volumes that are lost.
//
// Life:     look() now and then.
// Units:    missing replicas are told of after kPatience (a memory node that is started anew is back sooner), and every kAgain while they stay so.
#pragma once

#include <optional>
#include <string>

#include "base/time.h"
#include "clover/metadata.h"

namespace sluice::rack {

class StoreNews {
 public:
  static constexpr Duration kPatience = Duration::seconds(60);
  static constexpr Duration kAgain = Duration::seconds(3'600);
  struct Line {
    bool is_good = false;
    std::string text{};
  };
  // What is to be said now, if anything.
  std::optional<Line> look(Time now, const clover::MetadataServer& server);

 private:
  std::size_t lost_ = 0;
  std::optional<Time> next_;  // while replicas are missing
  bool told_ = false;
};

}  // namespace sluice::rack
