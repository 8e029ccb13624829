#include "sim/world/packet.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::sim {

std::size_t PacketPool::class_of(std::size_t room) {
  std::size_t size_class = 0;
  while (kRooms.at(size_class) < room) ++size_class;
  return size_class;
}

Packet* PacketPool::take(std::size_t room) {
  SLUICE_CHECK(room <= kRooms.back());
  const std::size_t size_class = class_of(room);
  if (free_[size_class] == nullptr) grow(size_class);
  Packet* const packet = free_[size_class];
  free_[size_class] = packet->next;
  ++in_flight_;
  return packet;
}

void PacketPool::give_back(Packet* packet) {
  const std::size_t size_class = class_of(packet->room);
  packet->next = free_[size_class];
  free_[size_class] = packet;
  --in_flight_;
}

void PacketPool::grow(std::size_t size_class) {
  const std::uint32_t room = kRooms.at(size_class);
  const std::size_t count = kSlabBytes / room;
  slabs_.push_back(std::make_unique<std::uint8_t[]>(kSlabBytes));
  packets_.push_back(std::make_unique<Packet[]>(count));
  for (std::size_t i = 0; i < count; ++i) {
    Packet& packet = packets_.back()[i];
    packet.data = slabs_.back().get() + i * room;
    packet.room = room;
    packet.next = free_[size_class];
    free_[size_class] = &packet;
  }
}

void PacketHeap::push(Packet* packet) {
  packet->order = order_++;
  heap_.push_back(packet);
  std::ranges::push_heap(heap_, later);
}

Packet* PacketHeap::pop() {
  std::ranges::pop_heap(heap_, later);
  Packet* const packet = heap_.back();
  heap_.pop_back();
  return packet;
}

}  // namespace sluice::sim
