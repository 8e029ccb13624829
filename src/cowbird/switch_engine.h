// Switch engine: Cowbird's engine in a switch's data path: many channels, one stream of frames.
//
// Life:       attach() a channel -> connect() it to memory nodes, set_regions() -> on_frame() for every frame that comes by, on_deadline()
//             when it is time, on_spare() when there is nothing better to send -> detach().
// A frame:    an answer to one of the switch's requests, by destination address and queue pair number (the QPN-to-instance map), is taken;
//             what follows from it is sent at once. All others pass.
// Probes:     one every `probe_slot`, of the channels in turn (time division) as far as they want one; only from on_spare(), so that they
//             come after everything else.
// Errors:     damaged frames are dropped and counted: the go-back-N of their stream follows.
// Threads:    one owner. No allocation but at set-up.
// Limits:     kMostChannels.
// Source:     Cowbird §5.2 (Phase I, probes of lowest priority), §5.4 (time-division multiplexing, QPN map).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "cowbird/switch_channel.h"

namespace sluice::cowbird {

class SwitchEngine {
 public:
  static constexpr std::size_t kMostChannels = 4096;
  using ChannelId = std::uint32_t;

  // `mac` and `gid`: under which the switch itself is a peer of the applications' NICs. `seed`: of queue pair and sequence numbers, which
  // must not repeat those of an engine before this one.
  SwitchEngine(const wire::MacAddress& mac, const wire::Gid& gid, const SwitchEngineConfig& config, std::uint64_t seed);

  // Phase I. `config.engine` is filled in. The NIC's queue pair is to be connected to it. It begins by itself.
  struct Attached {
    ChannelId id = 0;
    ConnectionEnd engine{};
  };
  Result<Attached> attach(Time now, ChannelConfig config);
  Result<void> connect(Time now, ChannelId id, const DataConnection& connection);
  Result<void> disconnect(Time now, ChannelId id, std::uint32_t node);
  Result<void> set_regions(Time now, ChannelId id, std::uint64_t generation, std::vector<Region> regions);
  Result<void> detach(ChannelId id);

  // True: the frame was for the engine.
  bool on_frame(Time now, port::Frame frame, port::FrameSink& outbox);
  void on_deadline(Time now, port::FrameSink& outbox);
  // Probes, if it is time and `is_idle(mac)` says that nothing else waits to be sent there.
  template <class IsIdle>
  void on_spare(Time now, IsIdle&& is_idle, port::FrameSink& outbox);
  Time next_deadline() const;

  std::size_t channels() const { return channels_.size(); }
  // By id; null: there is none.
  const SwitchChannel* channel(ChannelId id) const;
  std::vector<ChannelId> ids() const;
  SwitchEngineCounters counters() const;
  std::uint64_t damaged() const { return damaged_; }

 private:
  struct Key {
    wire::Gid gid{};
    wire::Qpn qpn{};
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  struct Place {
    SwitchChannel* channel = nullptr;
    SwitchChannel::StreamId stream{};
  };
  struct Entry {
    ChannelId id = 0;
    std::unique_ptr<SwitchChannel> channel;
    std::vector<Key> keys;
  };

  Entry* find(ChannelId id);
  void map(Entry& entry, const Key& key, SwitchChannel::StreamId stream);
  // Unless the key stands for another stream by now.
  void forget(Entry& entry, const Key& key, SwitchChannel::StreamId stream);
  // The keys of its queue pairs, which may be another channel's from now on.
  void forget_connection(Entry& entry, std::uint32_t to_node);

  wire::MacAddress mac_;
  wire::Gid gid_;
  SwitchEngineConfig config_;
  Rng rng_;
  std::vector<Entry> channels_;
  std::unordered_map<Key, Place, KeyHash> places_;
  ChannelId next_id_ = 1;
  wire::Qpn next_qpn_{};
  std::size_t turn_ = 0;  // whose probe comes next
  Time next_slot_;
  std::uint64_t damaged_ = 0;
  SwitchEngineCounters gone_{};  // of channels that have been detached
};

template <class IsIdle>
void SwitchEngine::on_spare(Time now, IsIdle&& is_idle, port::FrameSink& outbox) {
  if (now < next_slot_) return;
  // Slots that were missed are made up for, but nobody is probed twice.
  const std::int64_t missed = (now - next_slot_) / config_.probe_slot;
  std::int64_t slots = std::min<std::int64_t>(missed + 1, static_cast<std::int64_t>(channels_.size()));
  for (std::size_t looked = 0; looked < channels_.size() && slots > 0; ++looked) {
    SwitchChannel& channel = *channels_[turn_ % channels_.size()].channel;
    turn_ = (turn_ + 1) % channels_.size();
    if (channel.probe_due() > now || !is_idle(channel.config().host.mac)) continue;
    if (!channel.probe(now, outbox)) break;
    --slots;
    next_slot_ = now + config_.probe_slot;
  }
}

}  // namespace sluice::cowbird
