// A fusee::Client as a workload::Store.
#pragma once

#include "fusee/client.h"
#include "workload/client_store.h"

namespace sluice::rack {

class FuseeStore final : public workload::ClientStore<fusee::Client> {
 public:
  using ClientStore::ClientStore;

  std::string_view name() const override { return "fusee"; }
  workload::StoreAbilities abilities() const override { return {.insert = true, .erase = true, .scan = false}; }
};

}  // namespace sluice::rack
