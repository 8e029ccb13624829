#include "sim/load/onerma_load.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kBase = 0x10000;
constexpr std::size_t kMemory = 1u << 16;

}  // namespace

OnermaUser::OnermaUser(OnermaMachine& machine, const OnermaUserConfig& config,
                       const onerma::ExecutorParameters& parameters, const onerma::CongestionPolicy& policy,
                       EventLoop& loop)
    : machine_(machine),
      config_(config),
      executor_(parameters, policy, machine.node().initiator().slots()),
      loop_(loop),
      local_(config.bytes) {
  machine.add(*this);
}

void OnermaUser::add_target(OnermaMachine& target, std::uint64_t initiator, onerma::RegionId region) {
  const auto grant =
      target.node().regions().grant(region, onerma::InitiatorId(initiator), onerma::kMayRead | onerma::kMayWrite);
  SLUICE_CHECK(grant.has_value());
  grants_.push_back(machine_.node().initiator().add_grant(target.node().address(), *grant));
  paths_.push_back(executor_.add_path(config_.op == onerma::OpKind::kRead ? onerma::Executor::Direction::kInbound
                                                                          : onerma::Executor::Direction::kOutbound));
}

void OnermaUser::begin() { loop_.schedule(start_event_, config_.start); }

void OnermaUser::on_start(Time now) {
  last_window_ = executor_.window(paths_[0]).size;
  for (std::uint32_t i = 0; i < config_.depth; ++i) {
    for (std::size_t target = 0; target < paths_.size(); ++target) {
      Work& work = works_.emplace_back();
      work.user = this;
      work.request = {.op = config_.op,
                      .grant = grants_[target],
                      .path = paths_[target],
                      .address = kBase,
                      .local = local_,
                      .on_complete =
                          [](Time at, onerma::Request& request, const onerma::Completion& completion) {
                            auto& self = *static_cast<Work*>(request.context);
                            self.user->ended(at, self, completion);
                          },
                      .context = &work};
      submit(now, work);
    }
  }
  machine_.touched(now);
}

void OnermaUser::submit(Time now, Work& work) {
  work.since = now;
  executor_.submit(now, work.request);
}

void OnermaUser::ended(Time now, Work& work, const onerma::Completion& completion) {
  const std::uint32_t window = executor_.window(paths_[0]).size;
  if (window != last_window_) windows_.push_back({now, window});
  last_window_ = window;
  if (completion.status == onerma::Status::kOk) {
    done_.push_back({now, completion.length});
    latency_ns_.record(completion.total_delay.nanoseconds());
  }
  if (now < config_.stop) submit(now, work);
}

std::uint64_t OnermaUser::bytes_between(Time from, Time to) const {
  const auto before = [](const Done& done, Time when) { return done.when < when; };
  auto at = std::lower_bound(done_.begin(), done_.end(), from, before);
  std::uint64_t bytes = 0;
  for (; at != done_.end() && at->when < to; ++at) bytes += at->bytes;
  return bytes;
}

std::uint32_t OnermaUser::least_window(Time from, Time to) const {
  std::uint32_t least = std::numeric_limits<std::uint32_t>::max();
  for (const Sample& sample : windows_) {
    if (sample.when >= from && sample.when < to) least = std::min(least, sample.window);
  }
  return least;
}

Time OnermaUser::first_below(Time since, std::uint32_t level) const {
  for (const Sample& sample : windows_) {
    if (sample.when >= since && sample.window < level) return sample.when;
  }
  return Time::never();
}

OnermaLoad::OnermaLoad(const Hardware& hardware, const onerma::ExecutorParameters& parameters,
                       const onerma::Algorithm1Parameters& algorithm, std::uint64_t seed)
    : parameters_(parameters), policy_(algorithm), rack_(hardware, seed) {
  memories_.reserve(4096);
}

OnermaMachine& OnermaLoad::add_machine(const onerma::NodeConfig& config) {
  SLUICE_CHECK(memories_.size() < memories_.capacity());
  OnermaMachine& machine = rack_.add_machine(config);
  memories_.emplace_back(kMemory);
  const auto region = machine.node().regions().add(memories_.back(), kBase, memory::kAllAccess,
                                                   simulated_key(machines_.size(), machines_.size()));
  SLUICE_CHECK(region.has_value());
  regions_.push_back(*region);
  machines_.push_back(&machine);
  return machine;
}

OnermaUser& OnermaLoad::add_user(const OnermaUserConfig& config) {
  users_.push_back(std::make_unique<OnermaUser>(*machines_[config.machine], config, parameters_, policy_, rack_.loop));
  OnermaUser& user = *users_.back();
  for (const std::size_t target : config.targets) user.add_target(*machines_[target], ++initiators_, regions_[target]);
  user.begin();
  return user;
}

double OnermaLoad::fairness(Time from, Time to) const {
  double sum = 0, squares = 0;
  for (const auto& user : users_) {
    const auto got = static_cast<double>(user->bytes_between(from, to));
    sum += got;
    squares += got * got;
  }
  return squares == 0 ? 0 : sum * sum / (static_cast<double>(users_.size()) * squares);
}

Time OnermaLoad::fair_from(Time since, Time end, Duration window, double least) const {
  Time from = since;
  for (Time at = since; at + window <= end; at = at + window / 4) {
    if (fairness(at, at + window) <= least) from = at + window / 4;
  }
  return from + window > end ? Time::never() : from;
}

}  // namespace sluice::sim
