// Open links: CASes that the box has forwarded and that are not acknowledged together with all before them.
//
// Life:       open -> acknowledged -> closed, when all links of its key before it are. Unacknowledged ones stand in a line by the time
//             when the box itself will see to them.
// Invariant:  links of one key are numbered in the order in which they were forwarded, which is the order of the chain.
// Limits:     a fixed pool. They refer to each other by index.
// Source:     docs/design/swordbox.md ("Nobody learns of an update before its whole chain is acknowledged").
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/prefetch.h"
#include "base/time.h"
#include "swordbox/connections.h"
#include "swordbox/history.h"

namespace sluice::swordbox {

using LinkIndex = std::uint32_t;

struct Link {
  static constexpr std::size_t kMaxCasFrame = 128;

  std::uint32_t key = kNone;           // index in the rule's table; kNone: free
  std::uint32_t number = 0;            // among the links of its key
  std::uint64_t serial = 0;            // among all
  ConnectionIndex connection = kNone;  // kNone: gone
  std::uint8_t end = 0;
  std::uint32_t psn = 0;
  std::uint32_t entry = 0;             // its place in the history
  std::uint32_t target_entry = kNone;  // that of the node it is linked behind, if the box is sure of that node
  std::uint64_t target = 0;            // address of the next word that the CAS was sent to
  std::uint64_t compare = 0;
  std::uint64_t swap = 0;
  std::uint16_t region = 0;
  bool acknowledged = false;
  bool node_ready = false;    // once this link stands, the node can be read
  bool node_written = false;  // … and can be now, whatever becomes of the connection
  bool refused = false;       // by a fatal NAK: this queue pair will not do it
  bool repairing = false;
  std::uint8_t resends = 0;
  bool tried_twice = false;  // by a second CAS of the client
  bool overtaken = false;  // kPassing: a CAS of its node's next word has passed, so that the node may have a successor
  Time due{};
  LinkIndex next_of_key = kNone;
  LinkIndex earlier = kNone;  // in the line of unacknowledged links
  LinkIndex later = kNone;
  std::uint16_t frame_length = 0;
  std::array<std::uint8_t, kMaxCasFrame> frame{};  // as forwarded
};

class Links {
 public:
  explicit Links(std::uint32_t most) : links_(most) {
    for (LinkIndex i = most; i-- > 0;) free_.push_back(i);
  }
  void prefetch(LinkIndex i) const {
    const auto* const link = reinterpret_cast<const char*>(&links_[i]);
    sluice::prefetch(link);
    sluice::prefetch(link + 64);
  }
  Link& operator[](LinkIndex i) { return links_[i]; }
  const Link& operator[](LinkIndex i) const { return links_[i]; }
  bool full() const { return free_.empty(); }
  std::size_t size() const { return links_.size() - free_.size(); }
  std::uint32_t capacity() const { return static_cast<std::uint32_t>(links_.size()); }
  std::size_t bytes() const { return bytes_of(links_) + bytes_of(free_); }

  // REQUIRES: not full.
  LinkIndex take() {
    const LinkIndex i = free_.back();
    free_.pop_back();
    links_[i] = Link{};
    links_[i].serial = ++taken_;
    return i;
  }
  // REQUIRES: not in the line.
  void give_back(LinkIndex i) {
    links_[i].key = kNone;
    free_.push_back(i);
  }

  LinkIndex first_in_line() const { return first_; }
  void line_up(LinkIndex i, Time due) {
    Link& link = links_[i];
    link.due = due;
    link.earlier = last_;
    link.later = kNone;
    (last_ == kNone ? first_ : links_[last_].later) = i;
    last_ = i;
  }
  void leave_line(LinkIndex i) {
    const Link& link = links_[i];
    (link.earlier == kNone ? first_ : links_[link.earlier].later) = link.later;
    (link.later == kNone ? last_ : links_[link.later].earlier) = link.earlier;
  }

 private:
  Table<Link> links_;
  std::vector<LinkIndex> free_;
  std::uint64_t taken_ = 0;
  LinkIndex first_ = kNone;
  LinkIndex last_ = kNone;
};

}  // namespace sluice::swordbox
