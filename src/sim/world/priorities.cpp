#include "sim/world/priorities.h"

namespace sluice::sim {

Priorities::Priorities(EventLoop& loop, PacketPool& pool, Pipe& out, Duration latency, std::uint64_t queue_bytes)
    : loop_(loop), pool_(pool), out_(out), latency_(latency), queue_bytes_(queue_bytes) {
  out_.set_low(*this);
}

Priorities::~Priorities() {
  for (PacketLine* line : {&coming_, &queue_}) {
    while (!line->empty()) pool_.give_back(line->pop());
  }
}

void Priorities::send(Time now, Packet* packet) {
  packet->when = now + latency_;
  if (coming_.empty()) loop_.schedule(*this, packet->when);
  coming_.push(packet);
}

void Priorities::fire(Time now) {
  Packet* const packet = coming_.pop();
  if (!coming_.empty()) loop_.schedule(*this, coming_.front()->when);
  if (packet->priority == 0) return out_.send(now, now, packet);
  if (queued_ + packet->length > queue_bytes_) {
    ++dropped_;
    return pool_.give_back(packet);
  }
  queued_ += packet->length;
  queue_.push(packet);
  out_.offer(now);
}

Packet* Priorities::next(Time) {
  if (queue_.empty()) return nullptr;
  queued_ -= queue_.front()->length;
  return queue_.pop();
}

}  // namespace sluice::sim
