#include "sim/world/faulty_link.h"

#include <cstring>

#include "base/check.h"

namespace sluice::sim {

void FaultyLink::on_packet(Time now, Packet* packet) {
  // A long delay at a high rate; memory is the limit.
  if (link_.room() == 0) link_.grow();
  std::uint8_t* const slot = link_.slot();
  SLUICE_CHECK(slot != nullptr);  // a link without faults is none of these
  std::memcpy(slot, packet->data, packet->length);
  link_.push(packet->length);
  link_.stamp(now);
  pool_.give_back(packet);
  deliver(now);
}

void FaultyLink::deliver(Time now) {
  while (const auto frame = link_.next(now)) {
    Packet* const packet = pool_.take(frame->length);
    std::memcpy(packet->data, frame->data, frame->length);
    packet->length = frame->length;
    packet->ingress = 0;
    consumer_.on_packet(now, packet);
  }
  link_.give_back();
  if (const Time next = link_.next_deadline(); next != Time::never()) loop_.schedule_no_later(*this, next);
}

}  // namespace sluice::sim
