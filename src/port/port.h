// The Port contract: Ethernet frames in, Ethernet frames out, in bursts. The only thing that touches the outside.
//
// Send:       reserve(n) -> write the frame there -> commit(length) ... -> flush(now) once a burst. Or discard(): whose program was stopped in
//             between does not send seconds later what it had judged before (nic/poll_loop.h).
// Receive:    receive(now, burst) -> read or edit the frames in place -> the next receive() takes them back.
// Invariant:  frames leave in the order of their commits, and in flush() and make_room() alone; nothing is promised about arrival.
// Units:      lengths in bytes, from destination MAC to ICRC; no Ethernet FCS.
// Errors:     a full port refuses (reserve returns nullptr); a dead one (kDown) takes frames and drops them, so that its
//             owner's timers see loss and not a stall. Both are counted; nothing throws after set-up.
// Threads:    one owner. Two owners of two ends (two processes, two threads) are the normal case.
// Limits:     a frame is at most kMaxFrame bytes: 4,096 of payload and every header RoCEv2 can put before it.
// Source:     ARCHITECTURE.md "Contracts".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/time.h"

namespace sluice::port {

// Ethernet 14 + VLAN 4 + IPv6 40 + UDP 8 + BTH 12 + extended headers + 4,096 + ICRC 4, rounded up. Non-RoCE jumbo frames of
// 9,000 bytes are dropped and counted by ports.
inline constexpr std::size_t kMaxFrame = 4352;

// One received frame. The bytes belong to the port, may be edited in place, and stay valid until its next receive().
struct Frame {
  std::uint8_t* data = nullptr;
  std::uint32_t length = 0;
  std::uint32_t room = 0;  // bytes from `data` on into which it may grow; where a port does not say so, it may not

  ByteView bytes() const { return {data, length}; }
  MutableBytes mutable_bytes() const { return {data, length}; }
};

// Where a machine writes the frames that it sends.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Room for one frame of up to `length` bytes, or nullptr when there is none now (then stop and come back later).
  // A reservation that is not committed is simply forgotten by the next one, by flush() and by receive().
  // REQUIRES: length <= kMaxFrame.
  virtual std::uint8_t* reserve(std::size_t length) = 0;
  // The first `length` bytes of the last reservation are a frame. REQUIRES: length <= the reserved length.
  virtual void commit(std::size_t length) = 0;
  // After a refusal: sends what has been committed where that gives room, and says whether it did. For who does not mind when frames leave,
  // as a switch, which would have to drop them; a NIC of a loop's waits for flush().
  virtual bool make_room() { return false; }
};

// Room as of reserve(), though other frames must leave for it.
inline std::uint8_t* reserve_at_once(FrameSink& sink, std::size_t length) {
  std::uint8_t* const room = sink.reserve(length);
  return room == nullptr && sink.make_room() ? sink.reserve(length) : room;
}

enum class PortState : std::uint8_t { kUp, kDown };

// name, what it means
#define SLUICE_PORT_COUNTERS(X)                                                         \
  X(rx_frames, "frames received")                                                       \
  X(rx_bytes, "bytes of them")                                                          \
  X(tx_frames, "frames given to it to send")                                            \
  X(tx_bytes, "bytes of them")                                                          \
  X(tx_full, "times that it had no room (a NIC waits, a switch makes some, or queues)") \
  X(rx_malformed, "arrivals that were no frame: too long, or of a session of before")   \
  X(tx_dropped, "frames given to it and lost here: peer gone, socket error")            \
  X(tx_discarded, "frames given to it that its program, stopped amid it, sent no more") \
  X(rx_lost, "frames that arrived, and were lost here for want of room")                \
  X(resets, "times that the other end was lost: it died, or started anew")

struct PortCounters {
#define X(name, meaning) std::uint64_t name = 0;
  SLUICE_PORT_COUNTERS(X)
#undef X

  bool operator==(const PortCounters&) const = default;

  // f(name, meaning, value) for each, in the order above.
  template <class F>
  void for_each(F&& f) const {
#define X(name, meaning) f(#name, meaning, name);
    SLUICE_PORT_COUNTERS(X)
#undef X
  }
};

class Port : public FrameSink {
 public:
  // Sends what has been committed. Cheap when nothing has.
  void flush(Time now) {
    while (flush_some(now)) {
    }
  }
  // The same, but with one call of the kernel's at most, for who looks at the clock in between. True: more could be sent at once.
  virtual bool flush_some(Time now) = 0;
  // Forgets what has been committed and has not left, which is counted as tx_discarded. What is ahead of it on its way stays.
  virtual void discard() = 0;

  // Fills `burst` from its start and returns how many frames. Takes back all frames of the call before.
  virtual std::size_t receive(Time now, std::span<Frame> burst) = 0;

  // When the port itself wants flush() and receive() to be called though nothing arrived (delayed frames, keep-alives,
  // reattachment, another try after a refused reserve()).
  virtual Time next_deadline() const { return Time::never(); }

  // A descriptor that becomes readable when frames arrive while the port is armed, or when its peer goes or comes; the
  // same one for the port's whole life. -1: the port can only be polled. Ports may share one (those of a UDP listener
  // share its socket): add each descriptor once, and remove it when its last port goes.
  virtual int wait_descriptor() const { return -1; }
  // Before sleeping: ask to be woken. False: frames are there already, do not sleep.
  virtual bool arm() { return false; }
  // After sleeping, or when arm() of another port said no; receive() follows. Drains the wake-up.
  virtual void disarm() {}

  virtual PortState state() const { return PortState::kUp; }
  virtual const PortCounters& counters() const = 0;
  // For status lines and messages: "shm:/run/…/switch.sock", "udp:127.0.0.1:7471".
  virtual std::string name() const = 0;
};

}  // namespace sluice::port
