// 1RMA under load: users that keep operations under way from somewhere to somewhere, and what each of them got when.
//
// Life:       OnermaLoad(hardware, parameters, seed) -> add_machine() … -> add_user() … -> run_until() -> what the users say.
// A user:     an executor of its own, with windows and pace of its own, at one machine; operations of one kind and length to others in turn, from
//             `start` to `stop`. It tries again what failed.
// Units:      bytes of payload.
// Threads:    one owner.
// Source:     1RMA §7.2 (isolation), §7.4 (convergence), §7.5 (incast), as far as our text tells of them.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "base/histogram.h"
#include "onerma/executor.h"
#include "sim/world/onerma_machine.h"

namespace sluice::sim {

struct OnermaUserConfig {
  std::size_t machine = 0;
  std::vector<std::size_t> targets{};
  onerma::OpKind op = onerma::OpKind::kRead;
  std::uint32_t bytes = 4096;
  std::uint32_t depth = 64;  // operations submitted and not ended, for each target
  Time start{};
  Time stop = Time::never();
};

class OnermaUser final : public OnermaProgram {
 public:
  // What ended when, in turn.
  struct Done {
    Time when;
    std::uint32_t bytes = 0;
  };
  struct Sample {
    Time when;
    std::uint32_t window = 0;
  };

  OnermaUser(OnermaMachine& machine, const OnermaUserConfig& config, const onerma::ExecutorParameters& parameters,
             const onerma::CongestionPolicy& policy, EventLoop& loop);

  void add_target(OnermaMachine& target, std::uint64_t initiator, onerma::RegionId region);
  void begin();
  void poll(Time now) override { executor_.poll(now); }
  Time next_deadline() const override { return executor_.next_deadline(); }

  std::uint64_t bytes_between(Time from, Time to) const;
  // Of the window to the first target: its least size in this time, and when it was first less than `level` from `since` on.
  std::uint32_t least_window(Time from, Time to) const;
  Time first_below(Time since, std::uint32_t level) const;
  Duration rtt() const { return executor_.rtt(onerma::PathId(0)); }
  const onerma::ExecutorCounters& counters() const { return executor_.counters(); }
  const onerma::Executor& executor() const { return executor_; }
  const Histogram& latency_ns() const { return latency_ns_; }
  Time first_issue() const { return config_.start; }

 private:
  struct Work {
    OnermaUser* user = nullptr;
    onerma::Request request;
    Time since;
  };
  void submit(Time now, Work& work);
  void ended(Time now, Work& work, const onerma::Completion& completion);
  void on_start(Time now);

  OnermaMachine& machine_;
  OnermaUserConfig config_;
  onerma::Executor executor_;
  EventLoop& loop_;
  std::vector<onerma::GrantId> grants_;
  std::vector<onerma::PathId> paths_;
  std::deque<Work> works_;
  std::vector<std::uint8_t> local_;
  std::vector<Done> done_;
  std::vector<Sample> windows_;  // to the first target, whenever it changed
  std::uint32_t last_window_ = 0;
  Histogram latency_ns_;
  MemberEvent<OnermaUser, &OnermaUser::on_start> start_event_{*this};
};

class OnermaLoad {
 public:
  OnermaLoad(const Hardware& hardware, const onerma::ExecutorParameters& parameters,
             const onerma::Algorithm1Parameters& algorithm, std::uint64_t seed);

  OnermaMachine& add_machine(const onerma::NodeConfig& config = {});
  // REQUIRES: its machines have been added.
  OnermaUser& add_user(const OnermaUserConfig& config);
  void run_until(Time end) { rack_.loop.run_until(end); }
  OnermaRack& rack() { return rack_; }
  OnermaMachine& machine(std::size_t i) { return *machines_[i]; }
  OnermaUser& user(std::size_t i) { return *users_[i]; }

  // Jain's index of what these users got between two times: 1 when all got as much.
  double fairness(Time from, Time to) const;
  // The first time from which on the index of every window of this length, up to `end`, is above `least`; never: it is not at the end.
  Time fair_from(Time since, Time end, Duration window, double least) const;

 private:
  onerma::ExecutorParameters parameters_;
  onerma::Algorithm1 policy_;
  OnermaRack rack_;
  std::vector<OnermaMachine*> machines_;
  std::vector<std::vector<std::uint8_t>> memories_;
  std::vector<onerma::RegionId> regions_;
  std::vector<std::unique_ptr<OnermaUser>> users_;
  std::uint64_t initiators_ = 0;
};

}  // namespace sluice::sim
