// A clover::Client as a workload::Store.
//
// Threads:    the client's.
#pragma once

#include "clover/client.h"
#include "workload/store.h"

namespace sluice::rack {

class CloverStore : public workload::Store {
 public:
  // REQUIRES: the client has joined and outlives the store.
  explicit CloverStore(clover::Client& client) : client_(client) {}

  std::string_view name() const override { return "clover"; }
  workload::StoreAbilities abilities() const override { return {.insert = true, .erase = true, .scan = false}; }
  std::size_t max_value_bytes() const override { return client_.value_bytes(); }
  workload::StoreCost cost() const override {
    const auto& c = client_.counters();
    return {.round_trips = c.round_trips,
            .remote_operations = c.reads + c.writes + c.swaps,
            .remote_bytes = c.bytes,
            .messages = c.messages,
            .atomics = c.swaps,
            .atomics_failed = c.swaps_lost,
            .walks = c.walks};
  }

  remote::Task<workload::GetResult> get(workload::Key key, MutableBytes into) override {
    const clover::GetResult result = co_await client_.get(key, into);
    co_return workload::GetResult{translate(result.outcome), result.length};
  }
  remote::Task<workload::Outcome> put(workload::Key key, ByteView value) override {
    co_return translate(co_await client_.put(key, value));
  }
  remote::Task<workload::Outcome> insert(workload::Key key, ByteView value) override {
    co_return translate(co_await client_.insert(key, value));
  }
  remote::Task<workload::Outcome> erase(workload::Key key) override {
    co_return translate(co_await client_.erase(key));
  }

 private:
  static workload::Outcome translate(clover::Outcome outcome) {
    switch (outcome) {
      case clover::Outcome::kOk: return workload::Outcome::kOk;
      case clover::Outcome::kNotFound: return workload::Outcome::kNotFound;
      case clover::Outcome::kExists: return workload::Outcome::kExists;
      case clover::Outcome::kNoSpace: return workload::Outcome::kNoSpace;
      case clover::Outcome::kUnavailable: return workload::Outcome::kUnavailable;
      case clover::Outcome::kTooLong:
      case clover::Outcome::kNoAtomics: return workload::Outcome::kRefused;
      case clover::Outcome::kUnknown: return workload::Outcome::kUnknown;
    }
    return workload::Outcome::kUnknown;
  }

  clover::Client& client_;
};

}  // namespace sluice::rack
