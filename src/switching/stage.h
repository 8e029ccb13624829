// Stage: what may stand in the switch's pipeline before forwarding, and see, change, take or make packets there.
//
// Life:       process(burst of one port) -> the switch forwards what is left, then what was put into the outbox.
//             next_deadline() / on_deadline() as for every machine.
// Order:      packets stay in their order; those from the outbox follow the burst. Who needs another order drops the packet and puts all
//             into the outbox.
// Invariant:  a packet is edited in place; its length may shrink, and grow as far as its frame has room.
// Threads:    the switch's owner.
// Source:     docs/design/swordbox.md: this is where SwordBox stands.
#pragma once

#include <span>

#include "base/time.h"
#include "port/port.h"
#include "switching/types.h"
#include "wire/address.h"

namespace sluice::switching {

struct Packet {
  enum class Action : std::uint8_t { kForward, kDrop };

  port::Frame frame{};
  PortNumber in{};
  Action action = Action::kForward;
};

// What a stage may ask of the switch's ways out.
class Ways {
 public:
  virtual ~Ways() = default;
  // Nothing waits to be sent to this address.
  virtual bool is_idle(Time now, const wire::MacAddress& to) const = 0;
};

class Stage {
 public:
  virtual ~Stage() = default;
  // `outbox` takes frames that the switch then forwards by their destination MAC.
  virtual void process(Time now, std::span<Packet> packets, port::FrameSink& outbox) = 0;
  virtual Time next_deadline() const { return Time::never(); }
  virtual void on_deadline(Time now, port::FrameSink& outbox) {
    static_cast<void>(now);
    static_cast<void>(outbox);
  }
  // At the end of a turn: frames of the lowest priority, that shall only go where nothing else waits.
  virtual void on_spare(Time now, const Ways& ways, port::FrameSink& outbox) {
    static_cast<void>(now);
    static_cast<void>(ways);
    static_cast<void>(outbox);
  }
};

}  // namespace sluice::switching
