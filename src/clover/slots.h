// The metadata server's account of every slot: who has it, whether it is in a chain, when it may be used again.
//
// Life of a slot:  free -> owned (granted to a client) -> live (the newest version known) -> retired (superseded) -> free
//                  owned -> orphan (client lost, or outcome of its CAS unknown) -> live, or set aside when no walk has met it
//                  set aside -> retired, when a version has come that is known to follow it
// Invariant:  a retired slot is free again not before its time, in the order of retirement; each grant has a generation of its own, so
//             a pointer from an earlier life is known to be stale.
// Limits:     12 bytes a slot that was ever granted.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/time.h"
#include "clover/messages.h"
#include "clover/volumes.h"

namespace sluice::clover {

enum class SlotState : std::uint8_t { kFree, kOwned, kLive, kRetired, kOrphan, kSetAside };
inline constexpr std::size_t kSlotStates = 6;

struct Slot {
  std::uint32_t owner = 0;  // kOwned, kOrphan: the client
  SlotState state = SlotState::kFree;
  std::uint8_t generation = 0;
  std::uint8_t lacking = 0;  // bit j: granted before replica j came (back), which may not have its node

  // Never live again, whatever is said of it.
  bool is_spent() const { return state == SlotState::kRetired || state == SlotState::kSetAside; }
};

class SlotTable {
 public:
  SlotTable(std::span<const Volume> volumes, std::size_t slot_bytes);

  // Grants up to out.size() slots of volumes that live: of volume `first` while it has any, then of all in turn. Returns how many.
  std::size_t allocate(std::uint32_t client, std::span<const Volume> volumes, std::uint64_t first,
                       std::span<NodePointer> out);
  // The slot, if `pointer` is one of its present life.
  const Slot* find(NodePointer pointer) const;
  Slot* find(NodePointer pointer) { return const_cast<Slot*>(std::as_const(*this).find(pointer)); }

  void make_live(Slot& slot) { set(slot, SlotState::kLive); }
  void make_orphan(Slot& slot) { set(slot, SlotState::kOrphan); }
  void set_aside(Slot& slot) { set(slot, SlotState::kSetAside); }
  // REQUIRES: `ready` is not earlier than that of any slot retired before.
  void retire(NodePointer pointer, Time ready);
  // Free at once: it was never linked.
  void release(NodePointer pointer);
  // Frees what was retired and is ready.
  void reclaim(Time now);

  std::uint64_t count(SlotState state) const { return counts_[static_cast<std::size_t>(state)]; }
  std::uint64_t capacity() const { return capacity_; }
  // What there is to grant, of volumes that live, and their slots.
  struct Room {
    std::uint64_t free = 0;
    std::uint64_t slots = 0;
  };
  Room room(std::span<const Volume> volumes) const;
  // When the next retired slot comes free; Time::never() when none is retired.
  Time next_ready() const { return retired_.empty() ? Time::never() : retired_.front().ready; }
  // Replica j of the volume has come, and has none of the nodes that are there now.
  void lack_all(std::uint32_t volume, std::size_t j);
  // Looks at up to `most` slots of the volume from `at` on, and moves `at`; back to 0 at the end. Those that a chain may lead
  // to, live or set aside or orphans, and that replica j lacks, go to `out` until that is full. Returns how many.
  std::size_t find_lacking(std::uint32_t volume, std::size_t j, std::uint32_t& at, std::size_t most,
                           std::span<NodePointer> out) const;
  // Of the volume, from its start on, so many slots have been granted at some time.
  std::size_t touched(std::uint32_t volume) const { return spaces_[volume].table.size(); }
  // All retired slots wait anew: time has started again.
  void restart(Time ready);
  // All that it knows, as bytes, and back: into a table of the same volumes that has granted nothing. False: that is not what they are.
  void save(std::vector<std::uint8_t>& out) const;
  bool load(MessageReader& in);
  // Is told of every slot that comes free, before it can be granted again: a place to poison it.
  void on_free(std::function<void(NodePointer)> observer) { observer_ = std::move(observer); }

 private:
  struct Space {
    std::uint64_t base = 0;
    std::uint32_t slots = 0;
    std::vector<Slot> table;         // of those ever granted
    std::deque<std::uint32_t> free;  // of those, longest free first
  };
  struct Retired {
    Time ready;
    NodePointer pointer;
  };
  void set(Slot& slot, SlotState state);
  bool take_one(std::uint32_t client, std::uint32_t volume, NodePointer& out);

  std::size_t slot_bytes_;
  std::vector<Space> spaces_;  // by volume
  std::deque<Retired> retired_;
  std::uint32_t turn_ = 0;
  std::uint64_t counts_[kSlotStates] = {};
  std::uint64_t capacity_ = 0;
  std::function<void(NodePointer)> observer_;
};

}  // namespace sluice::clover
