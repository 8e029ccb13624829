// Verbs load: threads that post one-sided operations as fast as they complete, as the papers' microbenchmarks do.
//
// Life:       run_verbs_load(hardware, workload, seed) -> result.
// A thread:   owns one queue pair; polls; for what has completed posts as much again, with one doorbell.
// Threads:    one owner.
// Source:     SwordBox §3.2, Figures 1, 3 and 4; rdma-core providers/mlx5 (a request posted alone travels by BlueFlame).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/histogram.h"
#include "base/result.h"
#include "rc/work.h"
#include "sim/world/fields.h"
#include "sim/world/hardware.h"
#include "sim/world/rack.h"
#include "swordbox/multiplexer.h"

namespace sluice::sim {

struct VerbsWorkload {
  std::string operation = "write";  // write, read, cas, faa
  std::string memory = "host";      // host, device: where the operations end
  std::string addresses = "own";    // own: a cache line for each thread; same: one word for all
  std::uint64_t queue_pairs = 1;
  std::uint64_t in_flight = 1;     // operations of each queue pair
  std::uint64_t signal_every = 1;  // only each so-manieth operation leaves a completion
  std::uint64_t bytes = 8;
  std::uint64_t servers = 1;
  // SwordBox between them: none, one that only watches, or one that makes one connection of all and WRITEs of atomics. And what its one core
  // takes for each packet; 0: it keeps up with the links.
  std::string box = "none";  // none, watching, words
  Duration box_packet_cost{};
  Duration warm_up = Duration::microseconds(50);
  Duration measure = Duration::microseconds(500);

  void read(Fields& fields);
};

struct VerbsResult {
  std::uint64_t operations = 0;
  double per_second = 0;
  Histogram latency_ns;  // of operations that leave a completion
  std::uint64_t events = 0;
  std::uint64_t packets = 0;
  std::uint64_t trace_hash = 0;
  std::string problem;  // not empty: operations failed
};

// The polling threads, their queue pairs and what these work on, at a machine of a rack that may do other things besides.
class VerbsThreads {
 public:
  // A machine of their own is added for them. Operations are counted from `count_from` on. The rack outlives them.
  VerbsThreads(Rack& rack, Rack::Machine& server, const VerbsWorkload& workload, Time count_from);
  ~VerbsThreads();
  VerbsThreads(const VerbsThreads&) = delete;
  VerbsThreads& operator=(const VerbsThreads&) = delete;

  // The memory that they work on, for a box that watches it.
  swordbox::WordRegion words() const;
  std::uint64_t operations() const;
  const Histogram& latency_ns() const;
  const std::string& problem() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// SwordBox that shares connections and replaces atomics on `words`, once these are known.
swordbox::MultiplexerConfig words_config();

VerbsResult run_verbs_load(const Hardware& hardware, const VerbsWorkload& workload, std::uint64_t seed);

}  // namespace sluice::sim
