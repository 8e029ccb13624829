#include "clover/slots.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::clover {

SlotTable::SlotTable(std::span<const Volume> volumes, std::size_t slot_bytes) : slot_bytes_(slot_bytes) {
  for (const auto& volume : volumes) {
    Space space;
    space.base = volume.base;
    space.slots = static_cast<std::uint32_t>(std::min<std::uint64_t>(volume.length / slot_bytes, 0xFFFF'FFFF));
    capacity_ += space.slots;
    spaces_.push_back(std::move(space));
  }
  counts_[static_cast<std::size_t>(SlotState::kFree)] = capacity_;
}

void SlotTable::set(Slot& slot, SlotState state) {
  --counts_[static_cast<std::size_t>(slot.state)];
  ++counts_[static_cast<std::size_t>(state)];
  slot.state = state;
}

bool SlotTable::take_one(std::uint32_t client, std::uint32_t volume, NodePointer& out) {
  auto& space = spaces_[volume];
  std::uint32_t index = 0;
  if (!space.free.empty()) {
    index = space.free.front();
    space.free.pop_front();
  } else if (space.table.size() < space.slots) {
    index = static_cast<std::uint32_t>(space.table.size());
    space.table.emplace_back();
  } else {
    return false;
  }
  auto& slot = space.table[index];
  SLUICE_CHECK(slot.state == SlotState::kFree);
  slot.generation = static_cast<std::uint8_t>(slot.generation % 63 + 1);
  slot.owner = client;
  slot.lacking = 0;
  set(slot, SlotState::kOwned);
  out = NodePointer::make(volume, slot.generation, space.base + std::uint64_t{index} * slot_bytes_);
  return true;
}

std::size_t SlotTable::allocate(std::uint32_t client, std::span<const Volume> volumes, std::uint64_t first,
                                std::span<NodePointer> out) {
  std::size_t granted = 0;
  if (first < spaces_.size() && volumes[first].live != 0) {
    while (granted < out.size() && take_one(client, static_cast<std::uint32_t>(first), out[granted])) ++granted;
  }
  for (std::size_t misses = 0; granted < out.size() && misses < spaces_.size();) {
    const auto volume = turn_++ % static_cast<std::uint32_t>(spaces_.size());
    if (volumes[volume].live != 0 && take_one(client, volume, out[granted])) {
      ++granted;
      misses = 0;
    } else {
      ++misses;
    }
  }
  return granted;
}

SlotTable::Room SlotTable::room(std::span<const Volume> volumes) const {
  Room room;
  for (std::size_t v = 0; v < spaces_.size(); ++v) {
    if (volumes[v].live == 0) continue;
    room.slots += spaces_[v].slots;
    room.free += spaces_[v].slots - spaces_[v].table.size() + spaces_[v].free.size();
  }
  return room;
}

const Slot* SlotTable::find(NodePointer pointer) const {
  if (is_end(pointer.word) || pointer.volume() >= spaces_.size()) return nullptr;
  const auto& space = spaces_[pointer.volume()];
  if (pointer.address() < space.base) return nullptr;
  const std::uint64_t offset = pointer.address() - space.base;
  const std::uint64_t index = offset / slot_bytes_;
  if (offset % slot_bytes_ != 0 || index >= space.table.size()) return nullptr;
  const auto& slot = space.table[index];
  return slot.generation == pointer.generation() && slot.state != SlotState::kFree ? &slot : nullptr;
}

void SlotTable::retire(NodePointer pointer, Time ready) {
  auto* const slot = find(pointer);
  SLUICE_CHECK(slot != nullptr);
  set(*slot, SlotState::kRetired);
  SLUICE_CHECK(retired_.empty() || retired_.back().ready <= ready);
  retired_.push_back({ready, pointer});
}

void SlotTable::release(NodePointer pointer) {
  auto* const slot = find(pointer);
  SLUICE_CHECK(slot != nullptr);
  if (observer_) observer_(pointer.as(NodeKind::kValue));
  set(*slot, SlotState::kFree);
  auto& space = spaces_[pointer.volume()];
  space.free.push_back(static_cast<std::uint32_t>((pointer.address() - space.base) / slot_bytes_));
}

void SlotTable::reclaim(Time now) {
  while (!retired_.empty() && retired_.front().ready <= now) {
    release(retired_.front().pointer);
    retired_.pop_front();
  }
}

void SlotTable::lack_all(std::uint32_t volume, std::size_t j) {
  for (auto& slot : spaces_[volume].table) slot.lacking = static_cast<std::uint8_t>(slot.lacking | 1u << j);
}

std::size_t SlotTable::find_lacking(std::uint32_t volume, std::size_t j, std::uint32_t& at, std::size_t most,
                                    std::span<NodePointer> out) const {
  const auto& space = spaces_[volume];
  std::size_t found = 0;
  for (; at < space.table.size() && most != 0 && found < out.size(); ++at, --most) {
    const auto& slot = space.table[at];
    if ((slot.lacking >> j & 1) == 0) continue;
    if (slot.state != SlotState::kLive && slot.state != SlotState::kOrphan && slot.state != SlotState::kSetAside)
      continue;
    out[found++] = NodePointer::make(volume, slot.generation, space.base + std::uint64_t{at} * slot_bytes_);
  }
  if (at >= space.table.size()) at = 0;
  return found;
}

void SlotTable::restart(Time ready) {
  for (auto& r : retired_) r.ready = ready;
}

}  // namespace sluice::clover
