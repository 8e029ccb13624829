// A store's client (clover::Client, sherman::Client) as a workload::Store: what is alike in all of them.
//
// Threads:    the client's.
#pragma once

#include "workload/store.h"

namespace sluice::rack {

// Outcomes go by the same names in every store; what only one of them has is its way to say that it cannot do this.
template <typename Outcome>
constexpr workload::Outcome translate(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk: return workload::Outcome::kOk;
    case Outcome::kNotFound: return workload::Outcome::kNotFound;
    case Outcome::kExists: return workload::Outcome::kExists;
    case Outcome::kNoSpace: return workload::Outcome::kNoSpace;
    case Outcome::kUnavailable: return workload::Outcome::kUnavailable;
    case Outcome::kUnknown: return workload::Outcome::kUnknown;
    default: return workload::Outcome::kRefused;
  }
}

template <typename Client>
class ClientStore : public workload::Store {
 public:
  // REQUIRES: the client has joined and outlives the store.
  explicit ClientStore(Client& client) : client_(client) {}

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
    const auto result = co_await client_.get(key, into);
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

 protected:
  Client& client() { return client_; }
  const Client& client() const { return client_; }

 private:
  Client& client_;
};

}  // namespace sluice::rack
