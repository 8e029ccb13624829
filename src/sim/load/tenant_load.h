// Tenants who share machines and links, over 1RMA or RC: what 1RMA's evaluation asks (§7.1 to §7.5), as far as our text tells of it.
//
// lookups:    clients look entries of a key-value cache up, at Poisson instants, whatever is under way; who outnumber the servers (Figure 8).
// death:      the same, and one of the replicas dies; latencies of the lookups that began in one span of time (Figure 9).
// incast:     one machine reads from, or is written to by, all others at once (§7.5).
// arrival:    a reader has a server's link; others come, all at once (§7.4).
// isolation:  a tenant with small operations and one with long transfers, at one machine or towards one (§7.2).
// rekey:      a reader at full rate, and somebody else who changes the region's key again and again (§7.3).
// Units:      throughputs in Gb/s of payload; times in us.
// Threads:    one owner.
// Source:     1RMA (SIGCOMM 2020) §7. Sizes, rates and machine counts that our text does not have are ours: the experiment files say which.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/load/fabric.h"
#include "sim/world/fields.h"

namespace sluice::sim {

struct TenantWorkload {
  std::string scenario = "lookups";
  std::string transport = "1rma";  // 1rma, rc

  // lookups, death
  std::uint64_t servers = 2;  // replicas of everything
  std::uint64_t clients = 8;
  std::uint64_t keys = 256;
  std::uint64_t value_bytes = 4000;
  std::uint64_t load_gbps = 50;  // of values, a server
  Duration dies_at{};            // death
  Duration span_from{}, span{};  // death: of lookups that began then

  // the others
  std::string op = "read";          // read, write
  std::uint64_t others = 8;         // incast: machines; arrival: readers that come
  std::uint64_t bytes = 4096;       // of an operation; isolation: of a long transfer
  std::uint64_t depth = 16;         // operations of each user to each machine at once
  std::uint64_t small_depth = 256;  // isolation
  std::string at = "initiator";     // isolation: where the two meet: initiator, target
  std::string who = "both";         // isolation: small, large, both
  std::uint64_t small_per_ms = 0;   // isolation: small operations offered; 0: as many as can be, small_depth at once
  Duration rekey_every{};           // rekey; 0: never
  bool announced = true;  // rekey: users have the next key before it counts; or ask for it when theirs is refused
  Duration warm_up = Duration::microseconds(500);
  Duration measure = Duration::milliseconds(1);

  // 1RMA's
  std::uint64_t first_window = 8;  // operations
  Duration remote_target = Duration::nanoseconds(3500);
  Duration write_target = Duration::microseconds(16);
  Duration local_target = Duration::microseconds(5);
  Duration spread = Duration::microseconds(2);
  std::uint64_t deepen_percent = 80;
  Duration give_up = Duration::milliseconds(100);
  // RC's
  bool lossless = true;            // PFC
  std::uint64_t ack_timeout = 14;  // 4.096 us x 2^n

  void read(Fields& fields);
};

struct TenantResult {
  std::vector<std::pair<std::string, double>> metrics;
  std::uint64_t events = 0;
  std::uint64_t trace_hash = 0;
  std::string problem;
};

TenantResult run_tenant_load(const Hardware& hardware, const TenantWorkload& workload, std::uint64_t seed);

}  // namespace sluice::sim
