// A sherman::Client as a workload::Store.
//
// Threads:    the client's.
#pragma once

#include "sherman/client.h"
#include "workload/store.h"

namespace sluice::rack {

class ShermanStore : public workload::Store {
 public:
  // REQUIRES: the client has joined and outlives the store.
  explicit ShermanStore(sherman::Client& client) : client_(client) {}

  std::string_view name() const override { return "sherman"; }
  workload::StoreAbilities abilities() const override { return {.insert = true, .erase = true, .scan = true}; }
  std::size_t max_value_bytes() const override { return client_.value_bytes(); }
  workload::StoreCost cost() const override {
    const auto& c = client_.counters();
    return {.round_trips = c.round_trips,
            .remote_operations = c.reads + c.writes + c.swaps,
            .remote_bytes = c.bytes,
            .messages = 0,
            .atomics = c.swaps,
            .atomics_failed = c.swaps_lost,
            .walks = c.walks};
  }

  remote::Task<workload::GetResult> get(workload::Key key, MutableBytes into) override {
    const sherman::GetResult result = co_await client_.get(key, into);
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
  remote::Task<workload::ScanResult> scan(workload::Key first, std::size_t count) override {
    struct Nowhere : sherman::ScanSink {
      void on_pair(sherman::Key, ByteView) override {}
    } nowhere;
    const sherman::ScanResult result = co_await client_.scan(first, count, nowhere);
    co_return workload::ScanResult{translate(result.outcome), result.count};
  }

 private:
  static workload::Outcome translate(sherman::Outcome outcome) {
    switch (outcome) {
      case sherman::Outcome::kOk: return workload::Outcome::kOk;
      case sherman::Outcome::kNotFound: return workload::Outcome::kNotFound;
      case sherman::Outcome::kExists: return workload::Outcome::kExists;
      case sherman::Outcome::kNoSpace: return workload::Outcome::kNoSpace;
      case sherman::Outcome::kUnavailable: return workload::Outcome::kUnavailable;
      case sherman::Outcome::kTooLong: return workload::Outcome::kRefused;
      case sherman::Outcome::kUnknown: return workload::Outcome::kUnknown;
    }
    return workload::Outcome::kUnknown;
  }

  sherman::Client& client_;
};

}  // namespace sluice::rack
