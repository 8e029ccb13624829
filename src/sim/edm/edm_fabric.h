// EDM's links and switch, unit by unit: what edm_testbed.h does block by block, without frames and faults of links, on the event loop of a rack.
//
// Life:       attach() a host for each port -> its stack's units by send() -> EdmHost::deliver() at the other end, when their last block is there.
// Up:         units one behind another. Requests go to the scheduler when whole; data take the circuit of their grant, five cycles behind.
// Down:       requests and grants go first, in their order: a single block between those of data, which are later by one, several when no data are
//             under way. A request does not pass data of its own sender that came before it.
// Waiting:    granted data find the link down free, but for requests and grants. most_waited() says how long any had to wait.
// Time:       as edm_testbed.h; edm_fabric_test.cpp holds the two against each other.
// Threads:    one owner.
// Source:     EDM §3.1, §3.2.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "edm/switch_stack.h"
#include "sim/edm/edm_testbed.h"
#include "sim/world/event_loop.h"
#include "sim/world/trace.h"

namespace sluice::sim {

// A unit that owns its bytes.
struct EdmUnit {
  edm::Unit unit;
  std::vector<std::uint8_t> data;

  static EdmUnit of(const edm::Unit& unit) { return {unit, {unit.data.begin(), unit.data.end()}}; }
  // The unit, with its bytes. Valid as long as this is.
  edm::Unit view() const {
    edm::Unit seen = unit;
    seen.data = data;
    return seen;
  }
};

class EdmHost {
 public:
  virtual ~EdmHost() = default;
  // All blocks of a unit have come, the first of them at that time.
  virtual void deliver(Time now, Time first_block, const edm::Unit& unit) = 0;
};

struct EdmFabricSettings {
  std::uint32_t ports = 2;
  std::uint32_t active_per_pair = 3;  // X: of reads and of writes each
  std::uint32_t chunk_bytes = 256;
  std::uint32_t gap_blocks = 1;
  edm::Policy policy = edm::Policy::kShortestRemaining;
  // In these, at most: kFirstCome is in bounded time with it, and a short message need not wait for luck (docs/edm.md).
  Duration patience = Duration::nanoseconds(500);
};

class EdmFabric {
 public:
  EdmFabric(EventLoop& loop, Trace& trace, const EdmTestbedHardware& hardware, const EdmFabricSettings& settings);
  ~EdmFabric();
  EdmFabric(const EdmFabric&) = delete;
  EdmFabric& operator=(const EdmFabric&) = delete;

  // REQUIRES: a port that is left.
  edm::PortId attach(EdmHost& host);
  void send(Time now, edm::PortId from, const edm::Unit& unit);

  EventLoop& loop() { return loop_; }
  const EdmTestbedHardware& hardware() const { return hardware_; }
  const EdmFabricSettings& settings() const { return settings_; }
  const edm::SwitchStack& switch_stack() const { return stack_; }
  Duration most_waited() const { return most_waited_; }
  std::uint64_t blocks(edm::PortId port) const;  // that a host's link has carried, both ways

 private:
  class Link;
  void switch_turn(Time now);

  EventLoop& loop_;
  Trace& trace_;
  EdmTestbedHardware hardware_;
  EdmFabricSettings settings_;
  edm::SwitchStack stack_;
  std::vector<std::unique_ptr<Link>> links_;
  Duration most_waited_{};
  MemberEvent<EdmFabric, &EdmFabric::switch_turn> switch_event_{*this};
};

}  // namespace sluice::sim
