#include "nic/nic.h"

#include "base/check.h"

namespace sluice::nic {

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
