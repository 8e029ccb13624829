// Two PSN spaces of a connection towards its server: what the client numbers (in) and what the server expects (out). They are equal until
// an operation of the connection is moved elsewhere, or one of another is moved here; from then on they are joined by entries in two rings.
//
// Ring in:    by in-PSN: where the request went, and for a replaced operation what its answer says. A retransmission goes the same way.
// Ring out:   by out-PSN: whose it is. An answer finds its way back.
// Invariant:  an entry of ring in is overwritten only when it has been answered; of ring out, only when it has been acknowledged.
//             A client with more packets outstanding than its ring has entries is not answered a second time: it fails, it is not misled.
//             A READ of more packets than that is under way alone.
// Invariant:  what asks for data may be acknowledged, by what stands behind it, and not answered: its data is found by ring in.
// Limits:     a power of two of entries a connection; more for connections that carry others' operations. Memory is touched when used.
// Source:     SwordBox §4.1, figure 7; docs/design/swordbox.md ("Two PSN spaces").
#pragma once

#include <array>
#include <cstdint>

#include "base/check.h"
#include "swordbox/connections.h"
#include "swordbox/lazy_array.h"
#include "swordbox/waiting.h"
#include "wire/frame.h"

namespace sluice::swordbox {

enum class Went : std::uint8_t {
  kNowhere,      // an unused entry
  kOwnWay,       // on the client's own connection
  kReplaced,     // as a WRITE of its outcome, on the shared connection (which may be the client's own)
  kCarriedOver,  // ring out only: a WRITE of the last outcome for a word whose shared connection was lost
};

// Four of these fill a cache line, and none lies in two.
struct InEntry {
  static constexpr std::uint32_t kMostPackets = 1u << 12;

  std::uint64_t psn : 24 = 0;
  std::uint64_t out : 24 = 0;
  std::uint64_t more : 12 = 0;  // packets behind the first
  Went went : 2 = Went::kNowhere;
  bool answered : 1 = false;
  bool is_write : 1 = false;  // its answer is a plain ACK
  std::uint64_t prior = 0;    // of a replaced one; else how many messages end with it

  static InEntry replaced(Psn in, Psn out, std::uint64_t prior, bool is_write) {
    InEntry entry = of(in, out, Went::kReplaced);
    entry.is_write = is_write;
    entry.prior = prior;
    return entry;
  }
  // REQUIRES: 0 < packets <= kMostPackets.
  static InEntry own_way(Psn in, Psn out, std::uint32_t packets, bool ends_message) {
    InEntry entry = of(in, out, Went::kOwnWay);
    entry.more = (packets - 1) & (kMostPackets - 1);
    entry.prior = static_cast<std::uint64_t>(ends_message);
    return entry;
  }
  std::uint32_t messages() const { return went == Went::kReplaced ? 1 : static_cast<std::uint32_t>(prior); }
  std::uint32_t span() const { return static_cast<std::uint32_t>(more) + 1; }
  // Whether a packet of this number towards the server is a part of it.
  bool covers(Psn number) const {
    const std::int32_t behind = number.since(Psn(out));
    return behind >= 0 && behind < static_cast<std::int32_t>(span());
  }

 private:
  static InEntry of(Psn in, Psn out, Went went) {
    InEntry entry;
    entry.psn = in.value() & Psn::kMask;
    entry.out = out.value() & Psn::kMask;
    entry.went = went;
    return entry;
  }
};

struct OutEntry {
  std::uint32_t psn = 0;
  std::uint32_t in = 0;
  ConnectionIndex owner = kNone;  // kNone: gone
  std::uint32_t word = kNone;
  std::uint64_t value = 0;
  std::uint16_t packets = 1;
  Went went = Went::kNowhere;
  bool marked = false;     // it had met congestion before it came to the box
  bool asks_data = false;  // a READ or an atomic of the owner's own: an ACK alone does not answer it
  std::uint16_t came = 0;  // so many packets of its data, while it is not acknowledged

  std::uint32_t span() const { return packets; }
};
static_assert(sizeof(InEntry) == 16 && sizeof(OutEntry) == 32);

template <class Entry>
class NumberRing {
 public:
  NumberRing() = default;
  NumberRing(Entry* entries, std::uint32_t size) : entries_(entries), mask_(size - 1) {}

  Entry& place(Psn psn) const { return entries_[psn.value() & mask_]; }
  Entry* find(Psn psn) const {
    Entry& entry = place(psn);
    return entry.went != Went::kNowhere && entry.psn == psn.value() ? &entry : nullptr;
  }
  // The entry that this PSN is a part of; READs take several, some more than the ring has places.
  Entry* find_covering(Psn psn, std::uint32_t longest) const {
    for (std::uint32_t back = 0; back < longest && back <= mask_; ++back) {
      Entry& entry = place(psn - back);
      const std::int32_t behind = psn.since(Psn(entry.psn));
      if (entry.went == Went::kNowhere || behind < 0) continue;
      if (behind < static_cast<std::int32_t>(entry.span())) return &entry;
      if (behind == static_cast<std::int32_t>(back)) return nullptr;
    }
    return nullptr;
  }
  // A request of so many packets is entered: what bore the numbers behind its first one before they came round counts no more.
  void clear_covered(Psn first, std::uint32_t span) const {
    for (std::uint32_t k = 1; k < span && k <= mask_; ++k) {
      Entry& entry = place(first + k);
      const std::int32_t behind = Psn(entry.psn).since(first);
      if (behind > 0 && behind < static_cast<std::int32_t>(span)) entry.went = Went::kNowhere;
    }
  }
  std::uint32_t size() const { return mask_ + 1; }

 private:
  Entry* entries_ = nullptr;
  std::uint32_t mask_ = 0;
};

// Zeroed memory for `count` rings of one size that is touched only when used.
template <class Entry>
class RingMemory {
 public:
  RingMemory(std::size_t count, std::uint32_t size) : size_(size), all_(count * size) {
    SLUICE_CHECK((size & (size - 1)) == 0);
  }
  NumberRing<Entry> ring(std::size_t i) const { return {all_.data() + i * size_, size_}; }
  std::size_t bytes() const { return all_.bytes(); }
  void clear(std::size_t i) const {
    for (std::uint32_t k = 0; k < size_; ++k) all_[i * size_ + k].went = Went::kNowhere;
  }

 private:
  std::uint32_t size_;
  LazyArray<Entry> all_;
};

// One connection's numbers. What every packet needs comes first: kHot bytes, to the end of what an answer over IPv4 is made of.
struct alignas(64) Numbering {
  static constexpr std::size_t kHot = 128;

  Psn in_start{};            // before it the spaces are equal
  Psn out_next{};            // of the next request to the server
  Psn first_open{};          // the first out-PSN that the server has not acknowledged
  std::uint64_t proven = 0;  // regions in which one of its atomics has succeeded, a bit each
  std::uint32_t longest_read = 1;
  std::uint32_t msn = 0;  // of its messages that it has been answered
  std::uint8_t syndrome = wire::Aeth::kNoCredits;
  std::uint8_t server_end = 0;
  bool translated = false;
  bool mid_message = false;    // the client's own message is not complete
  bool cut_off : 1 = false;    // nothing of it may reach the server any more
  bool withholds : 1 = false;  // perhaps a WRITE, below
  bool member = false;         // has operated on tracked words
  bool has_request_headers = false;
  bool has_answer_headers = false;
  ConnectionIndex place = kNone;  // on which connection its operations under way are; kNone: they went their own way
  std::uint32_t carrier = kNone;  // if it carries others' operations: which carrier it is
  std::uint32_t first_pass = kNone;
  std::uint32_t burst = 0;  // in which an answer was last put into the outbox
  WaitingLine line;         // of its own direction: until nothing is under way elsewhere
  wire::PacketTemplate atomic_answer;
  Psn out_start{};         // as in_start
  std::uint32_t told = 0;  // of congestion, by so many notifications of its carrier
  std::uint64_t proven_write = 0;
  Time prolonged{};               // when what is watched of its WRITEs under way was last given more time
  std::uint32_t reading = kNone;  // in-PSN of the request whose data came last; kNone: another was numbered since
  wire::HeaderTemplate request_headers;
  wire::HeaderTemplate answer_headers;
  // The newest PSN that has passed out of order, by direction; kNone: none has. It may still be on its way to the server.
  std::array<std::uint32_t, 2> passed_early = {kNone, kNone};
  // The WRITE that began again last, if it was not let through: until then nothing up to this PSN, its last one, of what follows it is either.
  std::uint32_t withheld = kNone;
  Time withheld_until{};
  Time data_until{};  // data that has been asked for again may be on its way

  void note_passed_early(std::uint8_t end, Psn last) {
    std::uint32_t& newest = passed_early[end];
    if (newest == kNone || last.since(Psn(newest)) > 0) newest = last.value();
  }
  // Whether numbers from `first` on may be given to other requests than the client gives them to: a packet that passed early with one
  // of them, late in the network, would be executed in the place of the one that bears it now.
  bool may_be_renumbered_from(std::uint8_t end, Psn first) const {
    return translated || passed_early[end] == kNone || Psn(passed_early[end]).since(first) < 0;
  }
  // Whether its operations towards this end are numbered anew, and all is known that their replacements and answers take.
  bool replaces_for(std::uint8_t end) const {
    return (translated & member & has_request_headers & has_answer_headers & !cut_off) && server_end == end;
  }
};
// Numbers are 24 bits wide: what is compared with newer ones has to follow them.
constexpr Psn followed(Psn start, Psn newest) {
  // Further back than any packet that can still be asked for, and near enough for serial numbers.
  constexpr std::int32_t kFarBack = 1 << 21;
  return newest.since(start) > kFarBack ? newest - kFarBack / 2 : start;
}

}  // namespace sluice::swordbox
