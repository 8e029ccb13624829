// Cowbird's rack in virtual time: a compute node whose threads look records up in a hash table, most of which lies in the memory of a passive
// node, over the ways that the paper compares.
//
// Ways:       local, purely local memory; sync, one READ at a time; async, `depth` READs under way; two-sided, one request at a time to a thread of
//             the memory node; spot and switch, Cowbird, `depth` under way: the rings' own code on the application's side, the spot engine's on
//             cores of a third machine or of the memory node, the switch's engine in the simulated switch; io-threads and user-threads,
//             as Redy and AIFM do it (cowbird_rivals.h); disk, a local one.
//             latency: the same, with nothing but remote reads (`local_percent` 0, `index_cost` 0).
// A probe:    the thread looks the key up in its own index, then reads the record, `local_percent` of which are local. Every record is checked.
// A store:    FASTER does more for a record that is not local (`cold_cost`), also where that lies in its own memory behind its device interface, counts such
//             reads on a line of memory that all threads write (`line_cost`), and has `most_pending` of them under way in all.
// Costs:      of the application's thread and of the engine: settings, measured by us (`sluice bench cowbird`); of verbs: the hardware's. None is
//             fitted to Cowbird's figures.
// Beside it:  bulk TCP flows from the compute node to a server (tcp_flows.h), which RDMA's packets go before.
// Units:      throughput in millions of probes a second; latencies of remote reads, from issue to completion, in us;
//             communication, the share of a thread's time that goes into issuing, looking and completing, in per cent; up and down, what the
//             compute node's link carries of RDMA from it and to it, with preambles and gaps, in Gb/s; tcp, what the server's program gets.
// Threads:    one owner.
// Source:     Cowbird §8.1 (Figures 1 and 8), §8.2 (Figures 11 and 12), §8.3 (Figure 13), §8.4 (Figure 14).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/edm/edm_memory.h"
#include "sim/load/tcp_flows.h"
#include "sim/world/fields.h"
#include "sim/world/hardware.h"

namespace sluice::sim {

struct CowbirdWorkload {
  std::string way = "spot";  // local, sync, async, two-sided, spot, switch, io-threads, user-threads, disk
  std::string pool = "rc";   // spot: how the engines reach the pool: rc, edm, or near, on the memory node itself
  EdmChoice edm;
  std::uint64_t threads = 1;
  std::uint64_t bytes = 8;
  std::uint64_t depth = 100;
  std::uint64_t batch = 256;       // spot: reads in one publication at most; io-threads: in one message
  std::uint64_t messages = 4;      // io-threads: of one of them, under way
  std::uint64_t pairs = 1;         // spot: queue pairs of a channel's engine to the pool
  std::uint64_t engine_cores = 1;  // spot: over which the channels are spread; at most one a thread
  std::uint64_t local_percent = 5;
  std::uint64_t table_bytes = 8u << 20;
  Duration probe = Duration::microseconds(2);  // between two probes: spot, of each channel; switch, of whichever
  Duration index_cost{};                       // of a probe, before the record
  Duration local_cost{};                       // of a record in local memory
  Duration use_cost{};             // of a record that has arrived, beyond its first line; of all remote ways alike
  Duration issue_cost{};           // Cowbird: storing a request
  Duration complete_cost{};        // … taking a completed one, of 8 bytes
  Duration look_cost{};            // … a look at the progress
  Duration engine_cost{};          // spot: the engine's own code, a request
  Duration near_cost{};            // … where the pool is near: with the copying
  Duration switch_cost{};          // user-threads: from one to another
  Duration cold_cost{};            // of a record that is not local, to the store
  Duration line_cost{};            // … each of the two times that it is counted, when another thread has counted last
  std::uint64_t most_pending = 0;  // reads that all threads have under way; 0: no limit but depth
  Duration disk_interval{};        // disk: between two reads of all threads
  Duration disk_latency{};         // … of one
  TcpFlowsSettings tcp;
  Duration warm_up = Duration::microseconds(300);
  Duration measure = Duration::microseconds(700);

  void read(Fields& fields);
};

struct CowbirdResult {
  std::vector<std::pair<std::string, double>> metrics;
  std::uint64_t events = 0;
  std::uint64_t trace_hash = 0;
  std::string problem;
};

CowbirdResult run_cowbird_load(const Hardware& hardware, const CowbirdWorkload& workload, std::uint64_t seed);

}  // namespace sluice::sim
