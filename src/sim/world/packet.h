// Packets in flight: one buffer a frame, handed from stage to stage without a copy, taken back by the pool.
//
// Invariant:  a packet has one owner at a time: the pool, a stage's queue, or the code between them.
// Units:      lengths in bytes, as port::Frame has them (no FCS).
// Threads:    one owner.
// Limits:     port::kMaxFrame. The pool grows to what was in flight at once and stays so.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/time.h"
#include "port/port.h"

namespace sluice::sim {

struct Packet {
  std::uint8_t* data = nullptr;
  std::uint32_t length = 0;
  std::uint32_t room = 0;
  Time ready;                 // in a pipe: may not be sent before
  Time when;                  // the stage that holds it: when it is due to leave
  std::uint64_t order = 0;    // the same: earlier ones first at one time
  std::uint32_t ingress = 0;  // in the switch: the port that it came in at
  std::uint8_t priority = 0;  // … and how urgent it is: 0 before 1 (priorities.h)
  Duration answer_after;      // in a NIC that executes it: how much later the answer is ready
  Packet* next = nullptr;

  port::Frame frame() const { return {data, length}; }
};

class PacketPool {
 public:
  PacketPool() = default;
  PacketPool(const PacketPool&) = delete;
  PacketPool& operator=(const PacketPool&) = delete;

  Packet* take(std::size_t room);
  void give_back(Packet* packet);
  // Taken and not given back.
  std::uint64_t in_flight() const { return in_flight_; }

 private:
  static constexpr std::array<std::uint32_t, 3> kRooms = {256, 1280, port::kMaxFrame};
  static constexpr std::size_t kSlabBytes = 1u << 18;
  static std::size_t class_of(std::size_t room);
  void grow(std::size_t size_class);

  std::array<Packet*, kRooms.size()> free_{};
  std::vector<std::unique_ptr<std::uint8_t[]>> slabs_;
  std::vector<std::unique_ptr<Packet[]>> packets_;
  std::uint64_t in_flight_ = 0;
};

// First in, first out.
class PacketLine {
 public:
  bool empty() const { return first_ == nullptr; }
  Packet* front() const { return first_; }
  void push(Packet* packet) {
    packet->next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = packet;
    last_ = packet;
  }
  Packet* pop() {
    Packet* const packet = first_;
    first_ = packet->next;
    return packet;
  }

 private:
  Packet* first_ = nullptr;
  Packet* last_ = nullptr;
};

// The one that is due earliest first; those of one time in the order in which they came.
class PacketHeap {
 public:
  bool empty() const { return heap_.empty(); }
  Packet* front() const { return heap_.front(); }
  std::size_t size() const { return heap_.size(); }
  void push(Packet* packet);
  Packet* pop();

 private:
  static bool later(const Packet* a, const Packet* b) {
    return a->when != b->when ? a->when > b->when : a->order > b->order;
  }
  std::vector<Packet*> heap_;
  std::uint64_t order_ = 0;
};

}  // namespace sluice::sim
