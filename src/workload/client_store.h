// A store's client (clover::Client, sherman::Client, fusee::Client) as a Store: what is alike in all of them.
//
// Threads:    the client's.
#pragma once

#include "workload/store.h"

namespace sluice::workload {

// Outcomes go by the same names in every store; what only one of them has is its way to say that it cannot do this.
template <typename Theirs>
constexpr Outcome outcome_of(Theirs outcome) {
  switch (outcome) {
    case Theirs::kOk: return Outcome::kOk;
    case Theirs::kNotFound: return Outcome::kNotFound;
    case Theirs::kExists: return Outcome::kExists;
    case Theirs::kNoSpace: return Outcome::kNoSpace;
    case Theirs::kUnavailable: return Outcome::kUnavailable;
    case Theirs::kUnknown: return Outcome::kUnknown;
    default: return Outcome::kRefused;
  }
}

template <typename Client>
class ClientStore : public Store {
 public:
  // REQUIRES: the client has joined and outlives the store.
  explicit ClientStore(Client& client) : client_(client) {}

  std::size_t max_value_bytes() const override { return client_.value_bytes(); }
  StoreCost cost() const override {
    const auto& c = client_.counters();
    return {.round_trips = c.round_trips,
            .remote_operations = c.reads + c.writes + c.swaps,
            .remote_bytes = c.bytes,
            .messages = 0,
            .atomics = c.swaps,
            .atomics_failed = c.swaps_lost,
            .walks = c.walks};
  }

  remote::Task<GetResult> get(Key key, MutableBytes into) override {
    const auto result = co_await client_.get(key, into);
    co_return GetResult{outcome_of(result.outcome), result.length};
  }
  remote::Task<Outcome> put(Key key, ByteView value) override {
    co_return outcome_of(co_await client_.put(key, value));
  }
  remote::Task<Outcome> insert(Key key, ByteView value) override {
    co_return outcome_of(co_await client_.insert(key, value));
  }
  remote::Task<Outcome> erase(Key key) override { co_return outcome_of(co_await client_.erase(key)); }

 protected:
  Client& client() { return client_; }
  const Client& client() const { return client_; }

 private:
  Client& client_;
};

}  // namespace sluice::workload
