// Clover load: the paper's rack of Clover, simulated: client machines whose threads run a YCSB mix, a memory node, a metadata server, and
// SwordBox in the switch or not.
//
// Life:       run_clover_load(hardware, workload, seed): machines, connections, clients join, load, warm up, measure.
// Real:       clover::Client (one a machine: its threads share its cursors, as threads of a process do), clover::MetadataServer over
//             messages, workload::Runner, swordbox::Box with its rule for Clover, RC underneath.
// Source:     SwordBox §6.1, §6.4.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/edm/edm_memory.h"
#include "sim/world/fields.h"
#include "sim/world/hardware.h"

namespace sluice::sim {

struct CloverWorkload {
  // clover, write_steering, steering (of writes and reads), steering+words (and connections to the memory node shared, atomics replaced)
  std::string system = "clover";
  // How clients reach the memory node: rc, or edm (which has no SwordBox). The metadata server they reach by RC, in frames.
  std::string transport = "rc";
  EdmChoice edm;
  std::uint64_t threads = 7;  // of all client machines
  std::uint64_t machines = 7;
  std::uint64_t writes_percent = 50;
  std::string mix;  // one of YCSB's instead: A, B, C, F
  std::uint64_t keys = 1024;
  std::uint64_t theta_thousandths = 990;
  std::uint64_t value_bytes = 128;
  std::uint64_t steered_keys = 1024;
  // "paper": as the authors' code: who finds a successor where he looked goes on at the key's shortcut, which threads of his machine move
  // (clover_shortcuts.h), and reads his way to the tail from there, however long that is; so does a writer that lost its CAS.
  // "paper without shortcuts": reads on from where he stood. "sluice": as our clients do by default.
  std::string client = "paper";
  std::uint64_t node_memory = std::uint64_t{256} << 20;
  // What Clover's library spends: for an operation, for a round trip, for a CAS besides, for a write besides; of round trips and writes on a
  // machine with one busy core and with all. The others' are here as fitted to what the SwordBox authors measured on six machines before the paper
  // (experiments/fig11-six-machines.toml; docs/evaluation.md).
  Duration operation_cost = Duration::nanoseconds(600);
  Duration step_cost = Duration::nanoseconds(500);
  Duration step_cost_all_cores = Duration::nanoseconds(700);
  std::uint64_t step_cost_spread_percent = 80;
  Duration swap_cost = Duration::nanoseconds(1100);
  Duration write_cost = Duration::microseconds(1);
  Duration write_cost_all_cores = Duration::nanoseconds(3500);
  Duration message_cost = Duration::microseconds(1);  // of the metadata server
  // What it costs a thread to note an operation's latency, while the other threads of its machine that want to wait. Part of no latency.
  Duration log_cost{};
  // Times of the threads that keep shortcuts (clover_shortcuts.h). They sleep with usleep(10): Linux lets timers of ordinary threads be late by 50 us
  // (PR_SET_TIMERSLACK), and a core that sleeps takes its time to wake: 78 us measured on an idle virtual machine. On slow_machines, the first ones,
  // they take slow_batch more for a batch: of the authors' some must have had such (docs/evaluation.md).
  Duration keeper_nap = Duration::microseconds(70);
  Duration record_cost = Duration::nanoseconds(1200);
  std::uint64_t slow_machines = 0;
  Duration slow_batch = Duration::microseconds(1250);
  std::uint64_t server_threads = 8;  // of the metadata server; as published
  // From a machine to the memory node, shared by its threads: Clover's authors have 8, the published fork of SwordBox's 32. 0: one a thread, as our
  // own clients have in any case.
  std::uint64_t queue_pairs = 32;
  Duration warm_up = Duration::milliseconds(2);
  Duration measure = Duration::milliseconds(6);

  // Threads of one more machine, which all CAS one word of the memory node, without a pause.
  std::uint64_t lock_threads = 0;

  // What goes wrong on every link, as text of port/impairment.h; empty: nothing. How long queue pairs wait for an ACK: 4.096 us times two to
  // the power of ack_timeout.
  std::string faults;
  std::uint64_t ack_timeout = 14;
  // Longer than the run, unless said otherwise: what is collected, and when, is no part of the figures.
  Duration cursor_lifetime = Duration::seconds(10);
  Duration max_flight = Duration::seconds(10);

  void read(Fields& fields);
};

struct CloverResult {
  std::vector<std::pair<std::string, double>> metrics;
  std::uint64_t events = 0;
  std::uint64_t trace_hash = 0;
  std::string problem;
};

CloverResult run_clover_load(const Hardware& hardware, const CloverWorkload& workload, std::uint64_t seed);

// The same rack with checkers on, for `operations` operations whatever their time, and then a READ of every key. A problem is: a wrong value, a
// history that is not linearizable, an operation that does not end, a packet that is left over, a connection whose ends do not agree.
CloverResult check_clover_load(const Hardware& hardware, const CloverWorkload& workload, std::uint64_t operations,
                               std::uint64_t seed);

}  // namespace sluice::sim
