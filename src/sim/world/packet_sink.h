// PacketSink: where a machine makes its frames, in packets of the pool.
//
// Life:       reserve() -> the machine writes -> commit() -> sent() of whoever the sink belongs to. What was reserved and not committed is used again.
// Threads:    one owner.
#pragma once

#include <utility>

#include "port/port.h"
#include "sim/world/packet.h"

namespace sluice::sim {

class PacketSink : public port::FrameSink {
 public:
  explicit PacketSink(PacketPool& pool) : pool_(pool) {}
  PacketSink(const PacketSink&) = delete;
  PacketSink& operator=(const PacketSink&) = delete;
  ~PacketSink() override {
    if (reserved_ != nullptr) pool_.give_back(reserved_);
  }

  std::uint8_t* reserve(std::size_t length) override {
    if (!has_room()) return nullptr;
    if (reserved_ != nullptr && reserved_->room < length) pool_.give_back(std::exchange(reserved_, nullptr));
    if (reserved_ == nullptr) reserved_ = pool_.take(length);
    return reserved_->data;
  }
  void commit(std::size_t length) override {
    Packet* const packet = std::exchange(reserved_, nullptr);
    packet->length = static_cast<std::uint32_t>(length);
    sent(packet);
  }

 private:
  virtual bool has_room() { return true; }
  // Owns the packet from then on.
  virtual void sent(Packet* packet) = 0;

  PacketPool& pool_;
  Packet* reserved_ = nullptr;
};

}  // namespace sluice::sim
