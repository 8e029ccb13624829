// What a rule did to the requests of each connection, in rings by PSN: so that retransmissions go where the originals went and answers
// find what they belong to.
//
// Invariant:  an entry is overwritten only when its request has been acknowledged. That is enough for atomics, whose repetition the
//             responder answers from memory, and for READs of one packet; a client with more packets outstanding than the ring has
//             entries might see a READ of several packets answered from two nodes. So the ring is at least as long as a client's window.
// Limits:     entries a connection: a power of two; 32 bytes each, touched only when used.
// Source:     SwordBox §4.1 (map entries in rings indexed by sequence number).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/prefetch.h"
#include "swordbox/connections.h"
#include "swordbox/lazy_array.h"

namespace sluice::swordbox {

struct Operation {
  // Equal for equal words; for unequal ones hardly ever, which costs a steering and no more.
  static std::uint16_t mark_of(std::uint64_t word) { return static_cast<std::uint16_t>(mix(word)); }

  enum class Kind : std::uint8_t {
    kUnused,
    kLink,   // a CAS that is a link under watch
    kTry,    // a CAS that may link a node, not watched
    kProbe,  // the same, steered
    kRead,   // a steered READ
    kDone,   // a link that failed: only its address counts
  };
  std::uint32_t psn = 0;
  std::uint16_t span = 1;          // kRead: packets of the answer
  std::uint16_t compare_mark = 0;  // kTry, kProbe: mark_of() what the CAS compares with
  std::uint32_t key = 0;
  std::uint16_t key_generation = 0;
  Kind kind = Kind::kUnused;
  std::uint32_t needs = 0;    // of the key's links must be committed before the answer may pass
  std::uint32_t subject = 0;  // kLink: the link; kTry, kProbe: the history entry
  std::int64_t shift = 0;     // added to the address
};
static_assert(sizeof(Operation) == 32);

class Operations {
 public:
  Operations(std::uint32_t connections, std::uint32_t ring) : ring_(ring), all_(std::size_t{connections} * 2 * ring) {
    SLUICE_CHECK((ring & (ring - 1)) == 0);
  }

  // The entry of exactly this request; null when nothing was done to it.
  Operation* find(ConnectionIndex connection, std::uint8_t end, Psn psn) const {
    Operation& op = at(connection, end, psn);
    return op.kind != Operation::Kind::kUnused && op.psn == psn.value() ? &op : nullptr;
  }
  // The READ whose answer this PSN is a part of.
  Operation* find_read(ConnectionIndex connection, std::uint8_t end, Psn psn) const {
    if (Operation* const op = find(connection, end, psn)) return op->kind == Operation::Kind::kRead ? op : nullptr;
    for (std::uint32_t back = 1; back < longest_read_; ++back) {
      Operation* const op = find(connection, end, psn - back);
      if (op != nullptr) return op->kind == Operation::Kind::kRead && back < op->span ? op : nullptr;
    }
    return nullptr;
  }
  // A new request takes these PSNs: what was done to the ones that had them before the numbers wrapped counts no more.
  void begin(ConnectionIndex connection, std::uint8_t end, Psn psn, std::uint32_t span) const {
    for (std::uint32_t k = 0; k < std::min(span, ring_); ++k) {
      Operation& op = at(connection, end, psn + k);
      if (op.psn == (psn + k).value()) op.kind = Operation::Kind::kUnused;
    }
  }
  // A fresh entry; null when the place is taken by one that is not acknowledged.
  Operation* add(ConnectionIndex connection, std::uint8_t end, Psn psn, Psn acknowledged) const {
    Operation& op = at(connection, end, psn);
    const bool outstanding = Psn(op.psn).since(acknowledged) > 0 && Psn(op.psn).since(psn) < 0;
    if (op.kind != Operation::Kind::kUnused && outstanding) return nullptr;
    op = Operation{};
    op.psn = psn.value();
    return &op;
  }
  // A READ of so many packets is entered.
  void note_span(std::uint32_t span) { longest_read_ = std::max(longest_read_, span); }
  void prefetch(ConnectionIndex connection, std::uint8_t end, Psn psn) const {
    sluice::prefetch(&at(connection, end, psn));
  }
  void forget(ConnectionIndex connection) const {
    std::memset(static_cast<void*>(all_.data() + std::size_t{connection} * 2 * ring_), 0,
                sizeof(Operation) * 2 * ring_);
  }
  std::uint32_t ring() const { return ring_; }
  std::size_t bytes() const { return all_.bytes(); }
  static constexpr std::uint32_t kMaxReadSpan = 16;  // steered READs are of one node

 private:
  Operation& at(ConnectionIndex connection, std::uint8_t end, Psn psn) const {
    return all_[(std::size_t{connection} * 2 + end) * ring_ + (psn.value() & (ring_ - 1))];
  }
  std::uint32_t ring_;
  std::uint32_t longest_read_ = 1;
  LazyArray<Operation> all_;
};

}  // namespace sluice::swordbox
