#include "cowbird/switch_engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "wire/icrc.h"

namespace sluice::cowbird {
namespace {

constexpr std::uint32_t kFirstQpn = 0x10;

void add(SwitchEngineCounters& sum, const SwitchEngineCounters& c) {
  sum.probes += c.probes;
  sum.reads += c.reads;
  sum.writes += c.writes;
  sum.relayed += c.relayed;
  sum.unwanted += c.unwanted;
  sum.publications += c.publications;
  sum.paused += c.paused;
  sum.rewinds += c.rewinds;
  sum.timeouts += c.timeouts;
  sum.closed += c.closed;
  sum.failed += c.failed;
  sum.denied += c.denied;
  sum.malformed += c.malformed;
}

Result<void> check_mtu(std::uint32_t mtu, std::uint32_t least) {
  if (mtu == 512 || mtu == 1024 || mtu == 2048 || mtu == 4096) return {};
  if (mtu == 256 && least <= 256) return {};
  return fail(fmt::format("cowbird: a path MTU of {}; {} to 4096 is needed", mtu, least));
}

}  // namespace

SwitchEngine::SwitchEngine(const wire::MacAddress& mac, const wire::Gid& gid, const SwitchEngineConfig& config,
                           std::uint64_t seed)
    : mac_(mac), gid_(gid), config_(config), rng_(Rng(seed).fork("switch engine")) {
  next_qpn_ = wire::Qpn(kFirstQpn + static_cast<std::uint32_t>(rng_.below(1u << 23)));
}

std::size_t SwitchEngine::KeyHash::operator()(const Key& key) const {
  std::uint64_t x = load_le<std::uint64_t>(key.gid.bytes.data()) ^ load_le<std::uint64_t>(key.gid.bytes.data() + 8);
  x = (x ^ std::uint64_t{key.qpn.value} << 40 ^ key.qpn.value) * 0x9E3779B97F4A7C15u;
  return static_cast<std::size_t>(x ^ x >> 32);
}

SwitchEngine::Entry* SwitchEngine::find(ChannelId id) {
  const auto it = std::find_if(channels_.begin(), channels_.end(), [&](const Entry& e) { return e.id == id; });
  return it == channels_.end() ? nullptr : &*it;
}

const SwitchChannel* SwitchEngine::channel(ChannelId id) const {
  const Entry* const entry = const_cast<SwitchEngine*>(this)->find(id);
  return entry == nullptr ? nullptr : entry->channel.get();
}

std::vector<SwitchEngine::ChannelId> SwitchEngine::ids() const {
  std::vector<ChannelId> all;
  for (const Entry& entry : channels_) all.push_back(entry.id);
  return all;
}

SwitchEngineCounters SwitchEngine::counters() const {
  SwitchEngineCounters sum = gone_;
  for (const Entry& entry : channels_) add(sum, entry.channel->counters());
  return sum;
}

// Phase I: set-up -----------------------------------------------------------------------------------------------------

void SwitchEngine::map(Entry& entry, const Key& key, SwitchChannel::StreamId stream) {
  places_[key] = {entry.channel.get(), stream};
  entry.keys.push_back(key);
}

void SwitchEngine::forget(Entry& entry, const Key& key, SwitchChannel::StreamId stream) {
  const auto place = places_.find(key);
  if (place == places_.end() || place->second.channel != entry.channel.get() || place->second.stream != stream) return;
  std::erase(entry.keys, key);
  places_.erase(place);
}

void SwitchEngine::forget_connection(Entry& entry, std::uint32_t to_node) {
  std::uint32_t place = 0;
  for (const auto& [node, open, ends] : entry.channel->connections()) {
    const std::uint32_t connection = place++;
    if (node != to_node) continue;
    forget(entry, {ends.host.gid, ends.host.qpn}, {SwitchChannel::Stream::kToPool, connection});
    forget(entry, {ends.pool.gid, ends.pool.qpn}, {SwitchChannel::Stream::kToHost, connection});
  }
}

Result<SwitchEngine::Attached> SwitchEngine::attach(Time now, ChannelConfig config) {
  if (channels_.size() == kMostChannels)
    return fail(fmt::format("cowbird: the switch serves {} channels already", kMostChannels));
  if (auto good = config.layout.check(); !good) return tl::unexpected(good.error());
  if (config.channel >= config.layout.channels) {
    return fail(fmt::format("cowbird: channel {} of {}", config.channel, config.layout.channels));
  }
  if (auto good = check_mtu(config.mtu, SwitchChannel::kLeastMtu); !good) return tl::unexpected(good.error());
  if (config.max_reads == 0) return fail("cowbird: a queue pair that answers no READs");
  config.engine = {.mac = mac_, .gid = gid_, .qpn = next_qpn_, .expected = {}};
  next_qpn_ = wire::Qpn(kFirstQpn + (next_qpn_.value + 1 - kFirstQpn) % (1u << 23));
  config.host.expected = wire::Psn(static_cast<std::uint32_t>(rng_.next()));
  Entry& entry = channels_.emplace_back();
  entry.id = next_id_++;
  entry.channel = std::make_unique<SwitchChannel>(now, config, config_);
  map(entry, {gid_, config.engine.qpn}, {SwitchChannel::Stream::kControl, 0});
  Attached done{entry.id, config.engine};
  done.engine.expected = config.host.expected;
  return done;
}

Result<void> SwitchEngine::connect(Time now, ChannelId id, const DataConnection& connection) {
  Entry* const entry = find(id);
  if (entry == nullptr) return fail(fmt::format("cowbird: no channel {}", id));
  if (auto good = check_mtu(connection.mtu, 256); !good) return good;
  if (connection.host_reads == 0 || connection.pool_reads == 0)
    return fail("cowbird: a queue pair that answers no READs");
  for (const ConnectionEnd* end : {&connection.host, &connection.pool}) {
    const auto taken = places_.find({end->gid, end->qpn});
    if (taken != places_.end() && taken->second.channel != entry->channel.get()) {
      return fail(
          fmt::format("cowbird: queue pair {} of {} belongs to another channel", end->qpn.value, end->gid.to_string()));
    }
  }
  forget_connection(*entry, connection.node);
  const std::uint32_t place = entry->channel->connect(now, connection);
  // Answers to what is sent to one end are addressed to the other.
  map(*entry, {connection.pool.gid, connection.pool.qpn}, {SwitchChannel::Stream::kToHost, place});
  map(*entry, {connection.host.gid, connection.host.qpn}, {SwitchChannel::Stream::kToPool, place});
  return {};
}

Result<void> SwitchEngine::disconnect(Time now, ChannelId id, std::uint32_t node) {
  Entry* const entry = find(id);
  if (entry == nullptr) return fail(fmt::format("cowbird: no channel {}", id));
  forget_connection(*entry, node);
  entry->channel->disconnect(now, node);
  return {};
}

Result<void> SwitchEngine::set_regions(Time now, ChannelId id, std::uint64_t generation, std::vector<Region> regions) {
  Entry* const entry = find(id);
  if (entry == nullptr) return fail(fmt::format("cowbird: no channel {}", id));
  if (regions.size() > kMaxRegions)
    return fail(fmt::format("cowbird: {} regions; {} are allowed", regions.size(), kMaxRegions));
  entry->channel->set_regions(now, generation, std::move(regions));
  return {};
}

Result<void> SwitchEngine::detach(ChannelId id) {
  Entry* const entry = find(id);
  if (entry == nullptr) return fail(fmt::format("cowbird: no channel {}", id));
  for (const Key& key : entry->keys) places_.erase(key);
  add(gone_, entry->channel->counters());
  channels_.erase(channels_.begin() + (entry - channels_.data()));
  return {};
}

// The data path -------------------------------------------------------------------------------------------------------

bool SwitchEngine::on_frame(Time now, port::Frame frame, port::FrameSink& outbox) {
  if (places_.empty()) return false;
  wire::ParsedFrame parsed;
  if (wire::parse(frame.bytes(), parsed) != wire::Verdict::kOk || parsed.traits().transport != wire::Transport::kRc) {
    return false;
  }
  const wire::Kind kind = parsed.traits().kind;
  if (kind != wire::Kind::kReadResponse && kind != wire::Kind::kAcknowledge) return false;
  const auto place = places_.find({wire::destination_gid(frame.data, parsed), parsed.destination});
  if (place == places_.end()) return false;
  if (wire::verify_icrc(frame.data, parsed)) {
    place->second.channel->on_answer(now, place->second.stream, frame.data, parsed, outbox);
  } else {
    ++damaged_;
  }
  return true;
}

void SwitchEngine::on_deadline(Time now, port::FrameSink& outbox) {
  for (const Entry& entry : channels_) {
    if (entry.channel->next_deadline() <= now) entry.channel->on_deadline(now, outbox);
  }
}

Time SwitchEngine::next_deadline() const {
  Time next = Time::never();
  Time probe = Time::never();
  for (const Entry& entry : channels_) {
    next = std::min(next, entry.channel->next_deadline());
    probe = std::min(probe, entry.channel->probe_due());
  }
  if (probe != Time::never()) next = std::min(next, std::max(probe, next_slot_));
  return next;
}

}  // namespace sluice::cowbird
