// Operations on a store of passive memory, by whole clients, in every order (every_order.h): what is the same of Sherman's and FUSEE's.
//
// Client:     of one store; `Store` speaks for it (rack/clients). Each has a program of its own; the founder is the rack's first.
// Threads:    one owner.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/scenario/every_order.h"
#include "workload/recorder.h"

namespace sluice {

struct Ask {
  workload::EventKind kind{};
  std::uint64_t key = 0;
  bool audit = false;  // instead
};
constexpr Ask get(std::uint64_t key) { return {workload::EventKind::kGet, key}; }
constexpr Ask put(std::uint64_t key) { return {workload::EventKind::kPut, key}; }
constexpr Ask insert(std::uint64_t key) { return {workload::EventKind::kInsert, key}; }
constexpr Ask erase(std::uint64_t key) { return {workload::EventKind::kErase, key}; }
constexpr Ask audit() { return {.audit = true}; }

// One after the other, by one client.
struct Lane {
  std::size_t client = 0;
  std::vector<Ask> asks;
};

template <class Client, class Store>
class StoreRun {
 public:
  static constexpr std::size_t kValueBytes = 16;

  std::size_t choices() { return rack_.choices(all_done()); }
  std::string choose(std::size_t which) { return rack_.choose(which); }

 protected:
  using Keys = std::set<std::uint64_t>;

  // `recover`: who dies is cleaned up after by the last client at once.
  StoreRun(std::vector<Lane> lanes, bool recover, std::uint32_t nodes, std::size_t node_bytes, bool ordered,
           Duration flight, const OrderLimits& limits)
      : rack_(nodes, node_bytes, ordered, flight, limits),
        lanes_(std::move(lanes)),
        done_(lanes_.size()),
        recover_(recover) {}

  template <class Memory, class Config>
  std::size_t join(const Memory& memory, const Config& config) {
    const std::size_t number = clients_.size();
    programs_.push_back(&rack_.add_program());
    clients_.push_back(std::make_unique<Client>(*programs_[number], memory, config, Rng(number)));
    stores_.push_back(std::make_unique<Store>(*clients_[number]));
    SLUICE_CHECK(is_ok(rack_.wait_for(*programs_[number], clients_[number]->join())));
    return number;
  }
  // All who have joined so far, the founder not.
  void start() {
    rack_.on_death = [this](std::size_t number) { died(number); };
    rack_.begin(1, clients_.size() + 1);
    for (std::size_t i = 0; i < lanes_.size(); ++i) programs_[lanes_[i].client]->own.spawn(run(i));
    for (OrderedRack::Program* program : programs_) program->own.run(rack_.now());
  }

  Keys keys_asked_for() const {
    Keys keys;
    for (const Lane& lane : lanes_) {
      for (const Ask& ask : lane.asks) {
        if (!ask.audit) keys.insert(ask.key);
      }
    }
    return keys;
  }
  // What is there, what is there once it has been cleaned up after the dead, and what becomes of a put to each key.
  void judge_by(std::size_t witness, const Keys& keys) {
    for (const auto key : keys) at_once(witness, get(key));
    for (std::size_t i = 0; i < witness; ++i) {
      if (programs_[i]->dead) clean_up_after(i, witness);
    }
    for (const auto key : keys) at_once(witness, get(key));
    for (const auto key : keys) at_once(witness, put(key));
    for (const auto key : keys) at_once(witness, get(key));
    const auto verdict = workload::check_linearizable(history_.events());
    EXPECT_TRUE(verdict.proven()) << verdict.explain();
  }
  void clean_up_after(std::size_t client, std::size_t by) {
    EXPECT_TRUE(is_ok(rack_.wait_for(*programs_[by], clients_[by]->recover(clients_[client]->number()))));
  }
  void audit_all() {
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      if (programs_[i]->dead) continue;
      EXPECT_TRUE(is_ok(rack_.wait_for(*programs_[i], clients_[i]->audit())));
    }
  }

  void at_once(std::size_t client, const Ask& ask) {
    const auto once = [](remote::Task<void> task) -> remote::Task<bool> {
      co_await std::move(task);
      co_return true;
    };
    rack_.wait_for(*programs_[client], once(perform(client, 1000 + static_cast<std::uint32_t>(client), ask)));
  }

  OrderedRack rack_;
  std::vector<OrderedRack::Program*> programs_;  // of each client
  std::vector<std::unique_ptr<Client>> clients_;
  workload::History history_;
  std::size_t value_bytes_ = kValueBytes;

 private:
  template <class Outcome>
  static bool is_ok(Outcome outcome) {
    return outcome == Outcome::kOk;
  }
  bool all_done() const {
    for (std::size_t i = 0; i < done_.size(); ++i) {
      if (!done_[i] && !programs_[lanes_[i].client]->dead) return false;
    }
    return recovering_ == 0 || programs_.back()->dead;
  }
  void died(std::size_t program) {
    if (!recover_ || programs_.back()->dead) return;
    ++recovering_;
    programs_.back()->own.spawn(clean_up(clients_[program - 1]->number()));
    programs_.back()->own.run(rack_.now());
  }
  remote::Task<void> clean_up(std::uint32_t dead) {
    co_await clients_.back()->recover(dead);
    --recovering_;
  }
  remote::Task<void> run(std::size_t lane) {
    const Lane& its = lanes_[lane];
    for (const Ask& ask : its.asks) co_await perform(its.client, static_cast<std::uint32_t>(lane) + 1, ask);
    done_[lane] = true;
  }
  remote::Task<void> perform(std::size_t client, std::uint32_t writer, Ask ask) {
    if (ask.audit) {
      co_await clients_[client]->audit();
      co_return;
    }
    workload::Recorder store(*stores_[client], history_, writer);
    std::vector<std::uint8_t> value(value_bytes_);
    workload::fill_value(ask.key, workload::value_id(writer, ++written_[writer]), value);
    switch (ask.kind) {
      case workload::EventKind::kGet: co_await store.get(ask.key, value); break;
      case workload::EventKind::kPut: co_await store.put(ask.key, value); break;
      case workload::EventKind::kInsert: co_await store.insert(ask.key, value); break;
      case workload::EventKind::kErase: co_await store.erase(ask.key); break;
    }
    EXPECT_EQ(store.wrong(), 0u) << "what was read is no value";
  }

  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<Store>> stores_;
  std::map<std::uint32_t, std::uint64_t> written_;
  std::vector<bool> done_;
  std::uint32_t recovering_ = 0;
  bool recover_;
};

}  // namespace sluice
