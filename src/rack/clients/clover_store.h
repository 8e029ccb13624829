// A clover::Client as a workload::Store.
#pragma once

#include "clover/client.h"
#include "workload/client_store.h"

namespace sluice::rack {

class CloverStore final : public workload::ClientStore<clover::Client> {
 public:
  using ClientStore::ClientStore;

  std::string_view name() const override { return "clover"; }
  workload::StoreAbilities abilities() const override { return {.insert = true, .erase = true, .scan = false}; }
  workload::StoreCost cost() const override {
    workload::StoreCost cost = ClientStore::cost();
    cost.messages = client().counters().messages;
    return cost;
  }
};

}  // namespace sluice::rack
