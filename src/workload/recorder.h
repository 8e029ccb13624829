// Recorder: a Store that writes down in a History what is asked of another one and what comes of it.
//
// Life:       Recorder store(clover, history, client); then as any Store.
// Values:     put and insert take what fill_value() made, and get verifies it: what is no value of its key is written down as kNoValue,
//             which no order explains.
// Limits:     scans pass by unrecorded.
// Threads:    the store's.
#pragma once

#include "base/check.h"
#include "workload/history.h"

namespace sluice::workload {

class Recorder final : public Store {
 public:
  static constexpr ValueId kNoValue = ~ValueId{0};

  // REQUIRES: both outlive the recorder. `client`: by which the history knows who asked; one operation at a time.
  Recorder(Store& store, History& history, std::uint32_t client) : store_(store), history_(history), client_(client) {}

  std::string_view name() const override { return store_.name(); }
  StoreAbilities abilities() const override { return store_.abilities(); }
  std::size_t max_value_bytes() const override { return store_.max_value_bytes(); }
  StoreCost cost() const override { return store_.cost(); }
  // How many values were read that nobody wrote.
  std::uint64_t wrong() const { return wrong_; }

  remote::Task<GetResult> get(Key key, MutableBytes into) override {
    const auto event = history_.begin(client_, EventKind::kGet, key);
    const GetResult result = co_await store_.get(key, into);
    ValueId read = 0;
    if (result.outcome == Outcome::kOk) {
      read = verify_value(key, ByteView(into).first(result.length)).value_or(kNoValue);
      wrong_ += read == kNoValue;
    }
    history_.end(event, result.outcome, read);
    co_return result;
  }
  remote::Task<Outcome> put(Key key, ByteView value) override {
    const auto event = history_.begin(client_, EventKind::kPut, key, id_of(key, value));
    const Outcome outcome = co_await store_.put(key, value);
    history_.end(event, outcome);
    co_return outcome;
  }
  remote::Task<Outcome> insert(Key key, ByteView value) override {
    const auto event = history_.begin(client_, EventKind::kInsert, key, id_of(key, value));
    const Outcome outcome = co_await store_.insert(key, value);
    history_.end(event, outcome);
    co_return outcome;
  }
  remote::Task<Outcome> erase(Key key) override {
    const auto event = history_.begin(client_, EventKind::kErase, key);
    const Outcome outcome = co_await store_.erase(key);
    history_.end(event, outcome);
    co_return outcome;
  }
  remote::Task<ScanResult> scan(Key first, std::size_t count, ScanSink& sink) override {
    return store_.scan(first, count, sink);
  }

 private:
  static ValueId id_of(Key key, ByteView value) {
    const auto id = verify_value(key, value);
    SLUICE_CHECK(id.has_value());
    return *id;
  }

  Store& store_;
  History& history_;
  std::uint32_t client_;
  std::uint64_t wrong_ = 0;
};

}  // namespace sluice::workload
