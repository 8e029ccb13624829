// A replica's own side: keeps the table, and applies what clients put into their mailboxes.
//
// Life:       Server(table, …) makes an empty table -> change() by its own program, poll() for those of the mailboxes -> readers read meanwhile.
// Log:        entries follow each other round and round; what is overtaken is forgotten. A key that is changed gets a new entry; then its bucket's
//             word turns to it, so that a reader finds the old one or the new one.
// Refuses:    a change where something newer is (kOlder), or that is longer than a quarter of the log (kTooLong). The same change twice
//             is taken twice.
// Errors:     a mailbox holds what somebody else wrote: what is not a whole request for this place is not there.
// Threads:    one owner; readers may read in between at any time. Nothing is allocated after construction.
// Limits:     Geometry; the mailboxes that are added.
// Source:     README.md.
#pragma once

#include <span>
#include <vector>

#include "kvcache/layout.h"

namespace sluice::kvcache {

struct ServerCounters {
  std::uint64_t taken = 0;
  std::uint64_t older = 0;
  std::uint64_t too_long = 0;
  std::uint64_t overtaken = 0;    // entries that the log has come round to
  std::uint64_t crowded_out = 0;  // entries that left a full bucket

  template <class Visit>
  void for_each(Visit visit) const {
    visit("taken", "changes applied", taken);
    visit("older", "changes that something newer had overtaken", older);
    visit("too_long", "changes longer than a quarter of the log", too_long);
    visit("overtaken", "entries that the log came round to", overtaken);
    visit("crowded_out", "entries that left a full bucket", crowded_out);
  }
};

class Server {
 public:
  // REQUIRES: geometry.sound(), table.size() >= geometry.table_bytes(), the table stays; no other life of it had this number.
  Server(MutableBytes table, const Geometry& geometry, std::uint64_t life);

  // A client's: it may write there, nobody else. Zeroed. REQUIRES: longer than kMailEntry; stays.
  void add_mailbox(MutableBytes bytes);
  // Applies what has come. Returns how many changes.
  std::size_t poll();

  struct Changed {
    ChangeOutcome outcome{};
    Version version{};  // that is there now
  };
  // REQUIRES: key.size() <= kMaxKey.
  Changed set(ByteView key, ByteView value, Version version) { return change(key, value, version, false); }
  Changed erase(ByteView key, Version version) { return change(key, {}, version, true); }
  // As a reader would find it; empty: not there.
  std::optional<Entry> find(ByteView key) const;

  const Geometry& geometry() const { return geometry_; }
  const ServerCounters& counters() const { return counters_; }

 private:
  struct Mailbox {
    MutableBytes bytes;
    std::uint64_t answered = 0;
  };
  Changed change(ByteView key, ByteView value, Version version, bool erased);
  bool take(Mailbox& mailbox);
  std::uint32_t make_room(std::size_t units);
  void forget_oldest();
  std::uint8_t* bucket(Hash hash) const { return table_.data() + geometry_.bucket_offset(hash); }
  std::uint8_t* way_of(ByteView key, Hash hash) const;
  std::uint8_t* way_for(ByteView key, Hash hash);
  ByteView log_from(std::uint64_t place) const {
    return ByteView(table_).subspan(geometry_.log_offset() + place * kUnit);
  }
  std::uint64_t age(std::uint64_t place) const;

  MutableBytes table_;
  Geometry geometry_;
  std::uint64_t units_;     // of the log
  std::uint64_t head_ = 0;  // where the next entry goes
  std::uint64_t tail_ = 0;  // the oldest entry
  std::uint64_t end_ = 0;   // of the entries behind the tail, once the head has come round
  bool round_ = false;      // the head is before the tail
  std::vector<Mailbox> mailboxes_;
  ServerCounters counters_;
};

}  // namespace sluice::kvcache
