#include "nic/nic.h"

#include "base/check.h"

namespace sluice::nic {

Shard::Shard(const rc::AdapterConfig& config, std::unique_ptr<port::Port> port)
    : port_(std::move(port)), adapter_(config) {}

Shard::~Shard() = default;

void Shard::attach(PollLoop& loop) {
  loop.add(*this);
  loop.add_port(*port_);
}

void Shard::detach(PollLoop& loop) {
  loop.remove(*this);
  loop.remove_port(*port_);
}

std::size_t Shard::poll(Time now) {
  std::size_t work = 0;
  for (std::size_t i = 0; i < kBursts; ++i) {
    const std::size_t n = port_->receive(now, burst_);
    for (std::size_t k = 0; k < n; ++k) adapter_.on_frame(now, burst_[k]);
    work += n;
    if (n < burst_.size()) break;
  }
  if (adapter_.next_deadline() <= now) {
    adapter_.on_deadline(now);
    ++work;
  }
  return work;
}

void Shard::flush(Time now) {
  const std::uint64_t refusals = port_->counters().tx_full;
  while (adapter_.poll_transmit(now, *port_)) {
  }
  held_up_ = port_->counters().tx_full != refusals;
  port_->flush(now);
}

Nic::Nic(const NicConfig& config) : config_(config), regions_(config.adapter.regions) {
  if (!regions_) regions_ = std::make_shared<memory::RegionTable>(Rng(config.adapter.seed).fork("regions"));
}

Shard& Nic::add_shard(const ShardAddress& address, std::unique_ptr<port::Port> port) {
  rc::AdapterConfig adapter = config_.adapter;
  const auto index = static_cast<std::uint32_t>(shards_.size());
  adapter.mac = address.mac;
  adapter.gids = address.gids;
  adapter.regions = regions_;
  adapter.seed = Rng(config_.adapter.seed).fork(index).next();
  adapter.first_qpn = wire::Qpn(config_.adapter.first_qpn.value + index * config_.queue_pairs_per_shard);
  adapter.limits.max_queue_pairs = config_.queue_pairs_per_shard;
  SLUICE_CHECK(adapter.first_qpn.value + config_.queue_pairs_per_shard <= 1u << 24);
  shards_.push_back(std::make_unique<Shard>(adapter, std::move(port)));
  return *shards_.back();
}

}  // namespace sluice::nic
