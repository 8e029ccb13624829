// The switch's stack in the PHY: requests into the scheduler, grants out, data from port to port along the circuits that grants set up.
//
// Life:       take(now, port, unit, behind) for requests and notifications, forward(port, to) for each unit of data ->
//             on_deadline(now) when next_deadline() is due -> poll(now, down) for what is to be sent to whom.
// Cycles:     a block is identified in 1; into the notification queue 2; an iteration 3, in the last of which the /G/ (or the buffered request) is made
//             while ports become busy; data pass in 4, after 1 to be identified.
// Port field: of a request, the destination on its way here; who asked, on its way on.
// Errors:     what the scheduler refuses is counted, and leaves nothing behind: a read that it refuses ends as NULL, by its host's timer. It refuses no
//             write of a host that keeps to X, whatever reads there are of the same pair (scheduler.h).
// Threads:    one owner. Allocates for each request, as host_stack.h.
// Source:     EDM §3.1, §3.2.2.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "edm/memory_blocks.h"
#include "edm/scheduler.h"

namespace sluice::edm {

inline constexpr std::int64_t kIdentifyCycles = 1;
inline constexpr std::int64_t kInsertCycles = 2;   // into the notification queue
inline constexpr std::int64_t kForwardCycles = 4;  // from RX to TX, across the clock domains

// Keeps requests behind writes: on its way down to a node, a request does not pass a write's data of its own sender that came to the switch before
// it. A request may go as soon as it is granted, while data take their cycles to pass. Of the link down to one node; what a request goes behind
// travels with it.
class RequestOrder {
 public:
  void write_came(PortId from) { ++of_[from.value].came; }
  void write_gone(PortId from) { ++of_[from.value].gone; }
  // So many chunks of this sender's writes have come: a request of it that comes now goes behind them.
  std::uint64_t came(PortId from) const {
    const auto found = of_.find(from.value);
    return found == of_.end() ? 0 : found->second.came;
  }
  bool may_go(PortId from, std::uint64_t behind) const {
    const auto found = of_.find(from.value);
    return behind <= (found == of_.end() ? 0 : found->second.gone);
  }

 private:
  struct Sender {
    std::uint64_t came = 0;  // chunks of writes
    std::uint64_t gone = 0;
  };
  std::map<std::uint16_t, Sender> of_;
};

class SwitchStack {
 public:
  // A grant or a request on its way down.
  struct Down {
    PortId to{};
    Unit unit;                 // its data are the stack's until the next call
    std::uint64_t behind = 0;  // of a request: as it was taken
  };

  SwitchStack(const SchedulerConfig& scheduler, Duration cycle);

  // An RREQ, RMWREQ or /N/ whose last block came now. Those of one instant are taken in the order of their ports. `behind`: of a request, what the
  // RequestOrder of its destination's link says.
  void take(Time now, PortId from, const Unit& unit, std::uint64_t behind = 0);
  // Data from one port begin to pass to another, which they name: along a circuit that a grant has set up. False: there is none. Data come by a
  // grant alone, but where switches are mirrored it may have been the other's: then this one's, which comes later, is taken for it.
  bool forward(PortId from, PortId to);
  // How long a block of data is in the switch.
  Duration data_latency() const { return cycle_ * (kIdentifyCycles + kForwardCycles); }

  Time next_deadline() const;
  void on_deadline(Time now);
  // Something to send from now on.
  bool poll(Time now, Down& out);

  const Scheduler& scheduler() const { return scheduler_; }
  std::uint64_t refused() const { return refused_; }
  std::uint64_t refused_writes() const { return refused_writes_; }

 private:
  struct Request {
    Unit unit;
    std::vector<std::uint8_t> data;
    std::uint64_t behind = 0;
  };
  struct Notified {
    Time at{};
    PortId from{};
    Request request;
  };
  struct Outgoing {
    Time at{};
    PortId to{};
    Request request;
  };
  void notify(const Notified& notified);
  void granted(const Grant& grant);
  std::int64_t& circuits(PortId from, PortId to) {
    return circuits_[std::size_t{from.value} * scheduler_.config().ports + to.value];
  }

  Scheduler scheduler_;
  Duration cycle_;
  std::deque<Notified> coming_;
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::deque<Request>> requests_;  // by pair of the data
  std::vector<std::int64_t> circuits_;  // of each pair; below 0: used before they were granted
  std::deque<Outgoing> going_;
  Outgoing sending_;
  std::uint64_t refused_ = 0;
  std::uint64_t refused_writes_ = 0;  // of these
};

}  // namespace sluice::edm
