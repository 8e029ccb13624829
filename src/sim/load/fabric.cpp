#include "sim/load/fabric.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "sim/load/host_memory.h"
#include "sim/world/onerma_machine.h"
#include "sim/world/rack.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kBase = 0x10'0000;
constexpr Duration kKeyAnswer = Duration::microseconds(10);  // from who gives keys; ours
constexpr remote::NodeId node_of(std::size_t machine) { return remote::NodeId(static_cast<std::uint32_t>(machine)); }

// ---------------------------------------------------------------------------------------------------------------- 1RMA

class OnermaTenant final : public Tenant, public OnermaProgram {
 public:
  OnermaTenant(EventLoop& loop, OnermaMachine& machine, const onerma::RemoteOnerma::Parameters& parameters,
               const onerma::CongestionPolicy& policy)
      : machine_(machine), client_(scheduler_, machine.node().initiator(), policy, parameters) {
    machine.add(*this);
    loop.schedule(start_, loop.now());
  }

  remote::RemoteMemory& memory() override { return client_; }
  onerma::RemoteOnerma& client() { return client_; }

  void poll(Time now) override {
    client_.poll(now);
    if (scheduler_.run(now) != 0) client_.poll(now);  // what its coroutines submitted leaves now
  }
  Time next_deadline() const override { return std::min(client_.next_deadline(), scheduler_.next_deadline()); }

 private:
  void on_start(Time now) { machine_.touched(now); }

  OnermaMachine& machine_;
  onerma::RemoteOnerma client_;
  MemberEvent<OnermaTenant, &OnermaTenant::on_start> start_{*this};
};

class OnermaFabric final : public Fabric {
 public:
  OnermaFabric(const Hardware& hardware, const OnermaFabricOptions& options, std::uint64_t seed)
      : options_(options), policy_(options.algorithm), seed_(seed), rack_(hardware, seed) {
    options_.client.repeat_writes = true;  // no two tenants write the same bytes
  }

  EventLoop& loop() override { return rack_.loop; }
  std::size_t add_machine() override {
    machines_.push_back(&rack_.add_machine(options_.node));
    regions_.emplace_back();
    return machines_.size() - 1;
  }
  void share(std::size_t machine, MutableBytes bytes) override {
    regions_[machine] = machines_[machine]
                            ->node()
                            .regions()
                            .add(bytes, kBase, memory::kAllAccess, simulated_key(seed_, machine))
                            .value();
  }
  remote::RemoteAddress memory_of(std::size_t machine) const override {
    return {node_of(machine), remote::RegionKey(regions_[machine].value), kBase};
  }
  Tenant& add_tenant(std::size_t machine, const std::vector<std::size_t>& targets) override {
    auto tenant = std::make_unique<OnermaTenant>(rack_.loop, *machines_[machine], options_.client, policy_);
    for (const std::size_t target : targets) admit(*tenant, target, onerma::kMayRead | onerma::kMayWrite);
    tenants_.push_back(std::move(tenant));
    return *tenants_.back();
  }
  void kill(std::size_t machine) override { machines_[machine]->cut(); }
  void rekey(std::size_t machine, Duration every, bool announced) override {
    const std::size_t place = add_machine();
    controller_ = std::make_unique<OnermaTenant>(rack_.loop, *machines_[place], options_.client, policy_);
    admit(*controller_, machine, {onerma::Rights::kAll});
    controller_->scheduler().spawn(keep_rekeying(machine, every, announced));
  }
  std::uint64_t rekeys() const override { return rekeys_; }
  std::uint64_t dropped() const override { return rack_.dropped(); }
  std::uint64_t sent_again() const override {
    std::uint64_t n = 0;
    for (const auto& tenant : tenants_) n += tenant->client().counters().retries;
    return n;
  }
  std::uint64_t trace_hash() const override { return rack_.trace.hash(); }

 private:
  struct Admitted {
    OnermaTenant* tenant = nullptr;
    std::size_t target = 0;
    onerma::Grant grant{};  // the key in it is not kept up to date
  };

  void admit(OnermaTenant& tenant, std::size_t target, onerma::Rights rights) {
    onerma::Node& node = machines_[target]->node();
    const auto grant = node.regions().grant(regions_[target], onerma::InitiatorId(++initiators_), rights);
    SLUICE_CHECK(grant.has_value());
    tenant.client().add_node(node_of(target), node.address());
    tenant.client().add_grant(node_of(target), *grant);
    admitted_.push_back({&tenant, target, *grant});
  }
  // Of all whose key was refused the first brings the next one.
  remote::Task<void> ask_for_key(OnermaTenant& user, std::size_t machine, onerma::Grant next) {
    co_await user.scheduler().sleep_for(kKeyAnswer);
    if (user.client().grant(node_of(machine), next.region).generation == next.generation) co_return;
    user.client().replace_grant(rack_.loop.now(), node_of(machine), next);
  }
  remote::Task<void> keep_rekeying(std::size_t machine, Duration every, bool announced) {
    onerma::Generation generation{1};
    for (;;) {
      co_await controller_->scheduler().sleep_for(every);
      const onerma::Secret key = simulated_key(seed_, 1'000'000 + generation.value);
      ++generation.value;
      const onerma::RegionKey region_key(key);
      std::vector<std::pair<OnermaTenant*, onerma::Grant>> next;
      for (const Admitted& one : admitted_) {
        if (one.target != machine) continue;
        next.emplace_back(one.tenant, onerma::make_grant(region_key, regions_[machine], generation, one.grant.initiator,
                                                         one.grant.rights));
      }
      for (const auto& [tenant, grant] : next) {
        if (tenant == controller_.get()) continue;
        if (announced) {
          tenant->client().announce_grant(node_of(machine), grant);
        } else {
          tenant->client().on_key_refused(
              [this, machine, t = tenant, g = grant](Time, remote::NodeId, onerma::RegionId) {
                t->scheduler().spawn(ask_for_key(*t, machine, g));
              });
        }
      }
      bool done = false;
      const Time now = rack_.loop.now();
      controller_->client().rekey(now, node_of(machine), regions_[machine], key, [&](Time, onerma::Status status) {
        SLUICE_CHECK(status == onerma::Status::kOk);
        done = true;
      });
      while (!done) co_await controller_->scheduler().sleep_for(Duration::nanoseconds(500));
      ++rekeys_;
      controller_->client().replace_grant(rack_.loop.now(), node_of(machine), next.back().second);
    }
  }

  OnermaFabricOptions options_;
  onerma::Algorithm1 policy_;
  std::uint64_t seed_;
  OnermaRack rack_;
  std::vector<OnermaMachine*> machines_;
  std::vector<onerma::RegionId> regions_;
  std::uint64_t initiators_ = 0;
  std::vector<Admitted> admitted_;
  std::vector<std::unique_ptr<OnermaTenant>> tenants_;
  std::unique_ptr<OnermaTenant> controller_;
  std::uint64_t rekeys_ = 0;
};

// ------------------------------------------------------------------------------------------------------------------ RC

class RcTenant final : public Tenant, public remote::RemoteMemory, public CompletionListener, public Event {
 public:
  static constexpr std::uint32_t kDepth = 64;

  RcTenant(Rack& rack, Rack::Machine& machine, std::size_t targets)
      : RemoteMemory(Tenant::scheduler_),
        rack_(rack),
        machine_(machine),
        completions_(machine.make_completions(static_cast<std::uint32_t>(2 * kDepth * targets))) {
    rack.loop.schedule(*this, rack.loop.now());
  }

  void connect(std::size_t target, Rack::Machine& server, rc::CompletionQueue& server_completions) {
    Path& path = paths_[node_of(target).value];
    path.pair = rack_.connect({&machine_, completions_, this, kDepth}, {&server, &server_completions}).a;
  }

  remote::RemoteMemory& memory() override { return *this; }
  remote::Capabilities capabilities() const override {
    return {.atomics = true, .ordered = true, .max_length = 1u << 24, .name = "rc, simulated"};
  }
  void submit(remote::Operation& operation) override {
    count(operation);
    const auto found = paths_.find(operation.remote.node.value);
    if (found == paths_.end()) return complete(operation, remote::Status::kNodeUnknown);
    Path& path = found->second;
    if (path.failed) return complete(operation, remote::Status::kUnreachable);
    operation.next = nullptr;
    (path.first == nullptr ? path.first : path.last->next) = &operation;
    path.last = &operation;
    post(path);
  }
  void on_completions(Time now) override {
    std::array<rc::Completion, 16> found;
    while (const std::size_t n = completions_->poll(found)) {
      for (std::size_t i = 0; i < n; ++i) take(found.at(i));
    }
    rack_.loop.schedule_no_later(*this, now);
  }

 private:
  struct Path {
    rc::QueuePair* pair = nullptr;
    remote::Operation* first = nullptr;  // not posted yet
    remote::Operation* last = nullptr;
    std::uint32_t posted = 0;
    bool failed = false;
  };

  void post(Path& path) {
    while (path.first != nullptr && path.posted < kDepth) {
      remote::Operation& operation = *std::exchange(path.first, path.first->next);
      rc::Sge sge;
      const rc::SendRequest request = request_of(operation, sge);
      const auto error = machine_.nic.post(rack_.loop.now(), machine_.nic.doorbell_latency(), *path.pair, request);
      SLUICE_CHECK(error == rc::PostError::kNone);
      ++path.posted;
    }
  }
  void take(const rc::Completion& completion) {
    auto& operation = *reinterpret_cast<remote::Operation*>(static_cast<std::uintptr_t>(completion.id));
    Path& path = paths_.at(operation.remote.node.value);
    --path.posted;
    const bool ok = completion.status == rc::CompletionStatus::kSuccess;
    complete(operation, ok ? remote::Status::kOk : remote::Status::kUnknown);
    if (ok) return post(path);
    path.failed = true;
    while (path.first != nullptr) {
      complete(*std::exchange(path.first, path.first->next), remote::Status::kUnreachable);
    }
  }
  // Its coroutines have their turn.
  void fire(Time now) override {
    Tenant::scheduler_.run(now);
    const Time next = Tenant::scheduler_.next_deadline();
    if (next != Time::never()) rack_.loop.schedule_no_later(*this, std::max(next, now + Duration::picoseconds(1)));
  }

  Rack& rack_;
  Rack::Machine& machine_;
  rc::CompletionQueue* completions_;
  std::unordered_map<std::uint32_t, Path> paths_;
};

class RcFabric final : public Fabric {
 public:
  RcFabric(const Hardware& hardware, const RcFabricOptions& options, std::uint64_t seed)
      : rack_(hardware, seed, {.ack_timeout = options.ack_timeout}) {}

  EventLoop& loop() override { return rack_.loop; }
  std::size_t add_machine() override {
    Rack::Machine& machine = rack_.add_machine();
    keys_.emplace_back();
    server_completions_.push_back(machine.make_completions(1));
    return keys_.size() - 1;
  }
  void share(std::size_t machine, MutableBytes bytes) override {
    keys_[machine] = rack_.machine(machine).share(bytes, kBase);
  }
  remote::RemoteAddress memory_of(std::size_t machine) const override {
    return {node_of(machine), remote::RegionKey(keys_[machine].value), kBase};
  }
  Tenant& add_tenant(std::size_t machine, const std::vector<std::size_t>& targets) override {
    auto tenant = std::make_unique<RcTenant>(rack_, rack_.machine(machine), targets.size());
    for (const std::size_t target : targets) {
      tenant->connect(target, rack_.machine(target), *server_completions_[target]);
    }
    tenants_.push_back(std::move(tenant));
    return *tenants_.back();
  }
  void kill(std::size_t machine) override { rack_.machine(machine).nic.cut(); }
  void rekey(std::size_t, Duration, bool) override { SLUICE_CHECK(false); }  // RC has none
  std::uint64_t rekeys() const override { return 0; }
  std::uint64_t dropped() const override {
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < rack_.machines(); ++i) n += rack_.net_switch().out(i).overflows;
    return n;
  }
  std::uint64_t sent_again() const override {
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < rack_.machines(); ++i) n += rack_.machine(i).nic.adapter().counters().tx_retransmits;
    return n;
  }
  std::uint64_t trace_hash() const override { return rack_.trace.hash(); }

 private:
  mutable Rack rack_;  // whose counters can be had of a rack that may change only
  std::vector<memory::Key> keys_;
  std::vector<rc::CompletionQueue*> server_completions_;
  std::vector<std::unique_ptr<RcTenant>> tenants_;
};

}  // namespace

std::unique_ptr<Fabric> make_onerma_fabric(const Hardware& hardware, const OnermaFabricOptions& options,
                                           std::uint64_t seed) {
  return std::make_unique<OnermaFabric>(hardware, options, seed);
}

std::unique_ptr<Fabric> make_rc_fabric(const Hardware& hardware, const RcFabricOptions& options, std::uint64_t seed) {
  return std::make_unique<RcFabric>(hardware, options, seed);
}

}  // namespace sluice::sim
