// Cowbird stage: Cowbird's switch engine as a stage of the switch, and its control plane.
//
// Control:    JSON objects with "owner" (who asks: the node's name on the rack), "incarnation" (how often that name has joined) and "do":
//               attach {layout {channels, entries, request_bytes, response_bytes}, channel, address, key, host END, mtu, max_reads}
//                                                          -> {id, psn, engine END}    the NIC's queue pair expects `psn` of the engine
//               connect {id, node, host END, pool END, mtu, host_reads, pool_reads}    END: {mac, ip, qpn, psn}; psn: that it expects
//               disconnect {id, node}    regions {id, generation, regions [{node, key, base, length, writable, denied}]}    detach {id}
//               renew                                      -> {channels [{id, attached, broken, generation, nodes [N]}]}
//             Every answer has "boot", another number for each switch engine.
// Leases:     what an owner has attached is detached when it has not asked for anything for kLease, or a later incarnation of it asks.
// Errors:     one line that says what was wrong.
// Threads:    the switch's owner.
// Source:     Cowbird §5.2, Phase I: "an RPC endpoint running on the switch control plane".
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cowbird/switch_engine.h"
#include "switching/stage.h"
#include "telemetry/metric_set.h"

namespace sluice::rack {

class CowbirdStage final : public switching::Stage {
 public:
  static constexpr Duration kLease = Duration::seconds(5);

  CowbirdStage(const wire::MacAddress& mac, const wire::Gid& gid, const cowbird::SwitchEngineConfig& config,
               std::uint64_t seed);

  void process(Time now, std::span<switching::Packet> packets, port::FrameSink& outbox) override;
  Time next_deadline() const override { return std::min(engine_.next_deadline(), next_look_); }
  void on_deadline(Time now, port::FrameSink& outbox) override;
  void on_spare(Time now, const switching::Ways& ways, port::FrameSink& outbox) override;

  Result<std::string> control(Time now, const std::string& json);
  // For people: counters, and every channel with its connections.
  std::string status_json() const;
  // For Prometheus.
  struct Counts {
    cowbird::SwitchEngineCounters engine;
    std::uint64_t damaged = 0;
    std::size_t channels = 0;
    std::size_t broken = 0;     // of them
    std::uint64_t waiting = 0;  // requests that the switch has fetched and not completed
    void collect(telemetry::MetricSet& set) const;
  };
  Counts counts() const;

 private:
  struct Owner {
    Time heard;
    std::uint64_t incarnation = 0;
    std::vector<cowbird::SwitchEngine::ChannelId> channels;
  };

  Result<nlohmann::json> carry_out(Time now, Owner& owner, const nlohmann::json& wish);
  Result<nlohmann::json> attach(Time now, Owner& owner, const nlohmann::json& wish);
  Result<void> set_regions(Time now, cowbird::SwitchEngine::ChannelId id, const nlohmann::json& wish);
  nlohmann::json channel_json(cowbird::SwitchEngine::ChannelId id) const;
  void drop_silent(Time now);
  void let_go(Owner& owner);

  cowbird::SwitchEngine engine_;
  std::uint64_t boot_;
  std::map<std::string, Owner> owners_;
  Time next_look_ = Time::never();  // for owners that are silent
};

// The JSON form of one end of a queue pair.
nlohmann::json end_json(const cowbird::ConnectionEnd& end);
Result<cowbird::ConnectionEnd> parse_end(const nlohmann::json& json);

}  // namespace sluice::rack
