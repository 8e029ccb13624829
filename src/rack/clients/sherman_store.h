// A sherman::Client as a workload::Store.
#pragma once

#include "sherman/client.h"
#include "workload/client_store.h"

namespace sluice::rack {

class ShermanStore final : public workload::ClientStore<sherman::Client> {
 public:
  using ClientStore::ClientStore;

  std::string_view name() const override { return "sherman"; }
  workload::StoreAbilities abilities() const override { return {.insert = true, .erase = true, .scan = true}; }
  remote::Task<workload::ScanResult> scan(workload::Key first, std::size_t count, workload::ScanSink& sink) override {
    struct Passing final : sherman::ScanSink {
      explicit Passing(workload::ScanSink& the_sink) : to(the_sink) {}
      void on_pair(sherman::Key key, ByteView value) override { to.on_pair(key, value); }
      workload::ScanSink& to;
    } passing(sink);
    const sherman::ScanResult result = co_await client().scan(first, count, passing);
    co_return workload::ScanResult{workload::outcome_of(result.outcome), result.count};
  }
};

}  // namespace sluice::rack
