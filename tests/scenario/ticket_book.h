// Ticket book: who has drawn which ticket (the prior value of a FAA of one) from which word, and whether that can have been.
//
// Each value is handed out once, in the order of time; the word in memory counts those that were drawn, and of those whose outcome nobody
// was told, each at most once.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/time.h"

namespace sluice::scenario {

class TicketBook {
 public:
  std::size_t begin(std::uint32_t word, Time now) {
    draws_.push_back({.word = word, .begin = now});
    return draws_.size() - 1;
  }
  void end(std::size_t draw, Time now, std::uint64_t ticket) {
    draws_[draw].end = now;
    draws_[draw].ticket = ticket;
    draws_[draw].known = true;
  }
  std::size_t drawn() const { return draws_.size(); }
  // `value`: what stands in the word at the end.
  void judge(std::uint32_t word, std::uint64_t value, std::uint64_t seed) const {
    std::map<std::uint64_t, const Draw*> by_ticket;
    std::uint64_t maybe = 0;
    for (const Draw& draw : draws_) {
      if (draw.word != word) continue;
      if (!draw.known) {
        ++maybe;
        continue;
      }
      const auto [other, fresh] = by_ticket.emplace(draw.ticket, &draw);
      EXPECT_TRUE(fresh) << "ticket " << draw.ticket << " of word " << word << " was given twice, seed " << seed << ": "
                         << span(*other->second) << " and " << span(draw);
    }
    EXPECT_GE(value, by_ticket.size()) << "an addition is lost, seed " << seed;
    EXPECT_LE(value, by_ticket.size() + maybe) << "one was made twice, seed " << seed;
    if (!by_ticket.empty()) {
      EXPECT_LT(by_ticket.rbegin()->first, value) << "seed " << seed;
    }
    Time earliest_end = Time::never();
    for (auto it = by_ticket.rbegin(); it != by_ticket.rend(); ++it) {
      EXPECT_LE(it->second->begin, earliest_end) << "ticket " << it->first << " against time, seed " << seed;
      earliest_end = std::min(earliest_end, it->second->end);
    }
  }

 private:
  struct Draw {
    std::uint32_t word = 0;
    Time begin{};
    Time end = Time::never();
    std::uint64_t ticket = 0;
    bool known = false;
  };
  static std::string span(const Draw& draw) {
    return std::to_string(draw.begin.since_start().microseconds()) + " to " +
           std::to_string(draw.end.since_start().microseconds()) + " us";
  }
  std::vector<Draw> draws_;
};

}  // namespace sluice::scenario
