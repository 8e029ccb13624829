// Store load: FUSEE or Sherman in the paper's rack, simulated: client machines whose threads run a YCSB mix, memory nodes, and SwordBox in
// the switch or not; or the same over EDM. There is no server besides.
//
// Life:       run_store_load(hardware, workload, seed): machines, connections, clients join, load, warm up, measure.
// Real:       fusee::Client (one a thread), sherman::Client (one a thread; those of a machine share index cache and local locks),
//             workload::Runner, swordbox::Box with its multiplexer, RC or EDM's host stacks and scheduler underneath.
// Cost:       what the store's code takes of a thread, for all that it submits together (or for each operation): of Clover's, which were fitted
//             to Clover's read-only line. Nothing is fitted to what FUSEE or Sherman were measured at.
// Source:     SwordBox §6.1, §6.2, §6.4; docs/design/sim.md.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/load/clover_load.h"
#include "sim/world/fields.h"
#include "sim/world/hardware.h"

namespace sluice::sim {

struct StoreWorkload {
  std::string store = "fusee";  // fusee, sherman; clover: all else is in `clover`
  CloverWorkload clover;

  // How clients reach memory nodes: rc, or edm (which has no SwordBox).
  std::string transport = "rc";
  EdmChoice edm;

  std::uint64_t threads = 7;  // of all client machines
  std::uint64_t machines = 7;
  std::uint64_t memory_nodes = 1;
  std::uint64_t writes_percent = 50;
  std::uint64_t keys = 1024;
  std::uint64_t theta_thousandths = 990;
  std::string distribution =
      "zipfian";  // zipfian: neighbouring keys are the hot ones; scrambled: keys anywhere; uniform
  std::uint64_t value_bytes = 128;
  std::uint64_t node_memory = std::uint64_t{1} << 30;
  Duration step_cost{};
  Duration step_cost_all_cores{};
  std::string cost_of = "batch";  // batch, operation
  std::string box = "none";       // none; watching; words: connections to lock tables shared, atomics on locks replaced
  Duration warm_up = Duration::milliseconds(2);
  Duration measure = Duration::milliseconds(4);
  std::string faults;  // as of CloverWorkload
  std::uint64_t ack_timeout = 14;

  // FUSEE. How a key that was read before is found: by its slot and word (one round trip), by its slot alone (two), by the index (two, of more bytes).
  std::uint64_t replicas = 2;
  std::uint64_t index_replicas = 0;  // 0: as many
  std::string cache = "words";       // words, slots, none

  // Sherman.
  std::uint64_t tree_node_bytes = 1024;
  std::uint64_t locks = 16'384;        // in each memory node
  std::string lock_memory = "device";  // device: the NIC's; host; over EDM all is the host's
  std::string local_locks =
      "machine";  // machine: its threads hand locks over; thread: each takes them by itself, with an index cache of its own
  // "paper": who has lost a lock tries again at once. "sluice": after a pause, longer and longer.
  std::string client = "paper";

  void read(Fields& fields);
};

struct StoreLoadResult {
  std::vector<std::pair<std::string, double>> metrics;
  std::uint64_t events = 0;
  std::uint64_t trace_hash = 0;
  std::string problem;
};

StoreLoadResult run_store_load(const Hardware& hardware, const StoreWorkload& workload, std::uint64_t seed);

// The same rack with checkers on, for `operations` operations whatever their time. A problem is: a wrong value, a history that is not
// linearizable, an operation that does not end well, a packet that is left over, a connection (not a shared one) whose ends do not agree, a lock that is not free.
StoreLoadResult check_store_load(const Hardware& hardware, const StoreWorkload& workload, std::uint64_t operations,
                                 std::uint64_t seed);

}  // namespace sluice::sim
