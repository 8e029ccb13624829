#include "workload/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "workload/recorder.h"

namespace sluice::workload {

using remote::Task;

namespace {
constexpr std::size_t kErrorsKept = 10;
}

struct Runner::Client {
  std::uint32_t index = 0;
  std::uint32_t writer = 0;
  Store* store = nullptr;
  Rng rng;
  std::vector<std::uint8_t> out;
  std::vector<std::uint8_t> in;
  std::optional<Recorder> recorder{};

  void record_in(History* history) {
    if (history != nullptr) store = &recorder.emplace(*store, *history, writer);
  }
};

std::uint64_t RunResult::operations() const {
  std::uint64_t sum = 0;
  for (const auto& action : actions) sum += action.count;
  return sum;
}

std::uint64_t RunResult::with_outcome(Outcome outcome) const {
  std::uint64_t sum = 0;
  for (const auto& action : actions) sum += action.outcomes.at(static_cast<std::size_t>(outcome));
  return sum;
}

std::uint64_t RunResult::PerAction::done() const {
  std::uint64_t sum = 0;
  for (std::size_t o = 0; o < outcomes.size(); ++o) sum += is_done(static_cast<Outcome>(o)) ? outcomes[o] : 0;
  return sum;
}

std::uint64_t RunResult::done() const {
  std::uint64_t sum = 0;
  for (const auto& action : actions) sum += action.done();
  return sum;
}

double RunResult::operations_per_second() const { return seconds() <= 0 ? 0 : static_cast<double>(done()) / seconds(); }

void RunResult::merge(const RunResult& other) {
  for (std::size_t i = 0; i < kActions; ++i) {
    actions[i].count += other.actions[i].count;
    for (std::size_t o = 0; o < actions[i].outcomes.size(); ++o) actions[i].outcomes[o] += other.actions[i].outcomes[o];
    actions[i].latency_ns.merge(other.actions[i].latency_ns);
  }
  values_verified += other.values_verified;
  values_wrong += other.values_wrong;
  errors.insert(errors.end(), other.errors.begin(), other.errors.end());
  if (errors.size() > kErrorsKept) errors.resize(kErrorsKept);
  begun = ended == Time{} ? other.begun : std::min(begun, other.begun);
  ended = std::max(ended, other.ended);
  cost += other.cost;
}

Runner::Runner(remote::Scheduler& scheduler, std::span<Store* const> stores, const RunConfig& config)
    : scheduler_(scheduler),
      stores_(stores.begin(), stores.end()),
      config_(config),
      rng_(Rng(config.seed).fork("workload").fork(config.place.thread)),
      keys_(config.records, config.place),
      chooser_(config.chooser != nullptr
                   ? *config.chooser
                   : KeyChooser(config.mix.distribution, config.records, config.theta_thousandths)),
      sequences_(config.clients, config.first_sequence) {
  SLUICE_CHECK(!stores_.empty() && config.clients > 0 && config.value_bytes >= kMinValueBytes);
}

StoreCost Runner::total_cost() const {
  StoreCost sum;
  // Several clients may share a store: it counts where it first stands.
  for (auto it = stores_.begin(); it != stores_.end(); ++it) {
    if (std::find(stores_.begin(), it, *it) == it) sum += (*it)->cost();
  }
  return sum;
}

void Runner::begin(std::uint64_t operations) {
  SLUICE_CHECK(done());
  left_ = operations;
  running_ = config_.clients;
  completed_ = 0;
  stopping_ = false;
  count_anew();
}

void Runner::count_anew() {
  result_ = {};
  result_.begun = scheduler_.now();
  result_.cost -= total_cost();
}

void Runner::start_load() {
  begin(0);
  for (std::uint32_t i = 0; i < config_.clients; ++i) scheduler_.spawn(load(i));
}

void Runner::start_run() {
  begin(config_.operations);
  ++runs_;
  for (std::uint32_t i = 0; i < config_.clients; ++i) scheduler_.spawn(run(i));
}

void Runner::client_ended() {
  if (--running_ != 0) return;
  result_.ended = scheduler_.now();
  result_.cost += total_cost();
}

Task<void> Runner::load(std::uint32_t index) {
  Client client{.index = index,
                .writer = index * config_.place.threads + config_.place.thread + 1,
                .store = stores_[index % stores_.size()],
                .rng = rng_.fork("load").fork(index),
                .out = std::vector<std::uint8_t>(config_.value_bytes),
                .in = {}};
  client.record_in(config_.history);
  const std::uint64_t step = std::uint64_t{config_.clients} * config_.place.threads;
  const std::uint64_t first = std::uint64_t{index} * config_.place.threads + config_.place.thread;
  for (Key key = first; key < config_.records && !stopping_; key += step) {
    const Time begun = scheduler_.now();
    const Outcome outcome = co_await put(client, key, EventKind::kPut);
    finish(Action::kUpdate, outcome, begun);
  }
  client_ended();
}

Task<void> Runner::run(std::uint32_t index) {
  Store* const store = stores_[index % stores_.size()];
  Client client{.index = index,
                .writer = index * config_.place.threads + config_.place.thread + 1,
                .store = store,
                .rng = rng_.fork("run").fork(runs_).fork(index),
                .out = std::vector<std::uint8_t>(config_.value_bytes),
                .in = std::vector<std::uint8_t>(store->max_value_bytes())};
  client.record_in(config_.history);
  while (left_ > 0 && !stopping_) {
    --left_;
    const Action action = config_.mix.draw(client.rng);
    const Time begun = scheduler_.now();
    const Outcome outcome = co_await act(client, action);
    finish(action, outcome, begun);
    if (config_.between != nullptr) co_await config_.between->pass();
  }
  client_ended();
}

void Runner::finish(Action action, Outcome outcome, Time begun) {
  ++completed_;
  auto& per_action = result_.actions[static_cast<std::size_t>(action)];
  ++per_action.count;
  ++per_action.outcomes.at(static_cast<std::size_t>(outcome));
  if (is_done(outcome)) per_action.latency_ns.record((scheduler_.now() - begun).nanoseconds());
}

// What a scan finds: values that were written, under keys that rise.
class Runner::Scanned final : public ScanSink {
 public:
  Scanned(Runner& runner, const Client& client, Key first) : runner_(runner), client_(client), next_(first) {}
  void on_pair(Key key, ByteView value) override {
    runner_.verify(client_, key, value);
    if (key < next_) runner_.wrong(fmt::format("client {} scanned key {} out of order", client_.writer, key));
    next_ = key + 1;
  }

 private:
  Runner& runner_;
  const Client& client_;
  Key next_;
};

Task<Outcome> Runner::act(Client& client, Action action) {
  if (action == Action::kInsert) {
    const Key key = keys_.reserve();
    const Outcome outcome = co_await put(client, key, EventKind::kInsert);
    keys_.acknowledge(key);
    co_return outcome;
  }
  const bool in_turn = config_.mix.distribution == KeyDistribution::kSequential;
  const Key key = in_turn ? keys_.in_turn() : chooser_.choose(keys_, client.rng);
  switch (action) {
    case Action::kRead: co_return co_await get(client, key);
    case Action::kUpdate: co_return co_await put(client, key, EventKind::kPut);
    case Action::kErase: co_return co_await client.store->erase(key);
    case Action::kScan: {
      Scanned scanned(*this, client, key);
      const auto found = co_await client.store->scan(key, 1 + client.rng.below(config_.scan_length), scanned);
      co_return found.outcome;
    }
    default: break;
  }
  const Outcome read = co_await get(client, key);
  if (read != Outcome::kOk && read != Outcome::kNotFound) co_return read;
  co_return co_await put(client, key, EventKind::kPut);
}

Task<Outcome> Runner::get(Client& client, Key key) {
  const GetResult result = co_await client.store->get(key, client.in);
  if (result.outcome == Outcome::kOk) verify(client, key, ByteView(client.in).first(result.length));
  co_return result.outcome;
}

void Runner::verify(const Client& client, Key key, ByteView value) {
  ++result_.values_verified;
  // A store that was there before may hold values of another size.
  const bool is_own_size = value.size() == config_.value_bytes;
  if ((is_own_size || value.size() >= kSelfChecking) && verify_value(key, value)) return;
  if (!is_own_size && value.size() < kSelfChecking)
    return wrong(
        fmt::format("client {} read of key {} a value of {} bytes, where this run writes {}: if the store holds "
                    "values of another --value-size, so short ones cannot be verified",
                    client.writer, key, value.size(), config_.value_bytes));
  std::string start;
  for (const auto byte : value.first(std::min<std::size_t>(value.size(), 32))) start += fmt::format("{:02x}", byte);
  wrong(
      fmt::format("client {} read of key {} what nobody wrote: {} bytes, {}", client.writer, key, value.size(), start));
}

void Runner::wrong(std::string what) {
  ++result_.values_wrong;
  if (result_.errors.size() < kErrorsKept) result_.errors.push_back(std::move(what));
}

Task<Outcome> Runner::put(Client& client, Key key, EventKind kind) {
  fill_value(key, value_id(client.writer, ++sequences_[client.index]), client.out);
  if (kind == EventKind::kInsert) co_return co_await client.store->insert(key, client.out);
  co_return co_await client.store->put(key, client.out);
}

}  // namespace sluice::workload
