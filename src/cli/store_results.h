// What a run of `sluice bench clover`, `sherman` or `fusee` found, as people and programs read it.
//
// Invariant:  to_json() with buckets and from_json() lose nothing that the tables show: results of several processes are added up so.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "rack/clients/store_bench.h"

namespace sluice::cli {

struct StoreRunFacts {
  std::string store = "clover";
  std::string workload;
  std::string distribution;
  std::uint64_t theta_thousandths = 990;
  std::uint64_t clients = 0;
  std::uint64_t threads = 0;
  std::uint64_t processes = 1;
  std::uint64_t records = 0;
  std::uint64_t value_bytes = 0;
  std::uint64_t copies = 0;        // of what is in the store,
  std::uint64_t memory_nodes = 0;  // and on so many; 0: not known
  std::uint64_t seed = 0;
};

struct StoreOutcome {
  StoreRunFacts facts;
  rack::StoreBenchResult result;
  bool history_checked = false;
  bool linearizable = false;         // no violation was found
  std::uint64_t undecided_keys = 0;  // of too many orders to be searched
  std::uint64_t history_operations = 0;
  std::vector<std::vector<rack::StoreSample>> timelines;  // of each process

  // Operations that did not do what they should.
  std::uint64_t failed() const;
  bool sound() const { return failed() == 0 && result.run.values_wrong == 0 && (!history_checked || linearizable); }
};

nlohmann::json to_json(const StoreOutcome& outcome, bool with_buckets);
Result<StoreOutcome> store_outcome_from_json(const nlohmann::json& json);
// Runs of processes side by side, as one.
StoreOutcome merge(const std::vector<StoreOutcome>& outcomes);

std::string table_of(const StoreOutcome& outcome);
std::string csv_of(const StoreOutcome& outcome);

}  // namespace sluice::cli
