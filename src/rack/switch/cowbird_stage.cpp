#include "rack/switch/cowbird_stage.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "rack/settings/json_number.h"

namespace sluice::rack {
namespace {

using cowbird::ConnectionEnd;
using nlohmann::json;
using ChannelId = cowbird::SwitchEngine::ChannelId;

}  // namespace

json end_json(const ConnectionEnd& end) {
  return {
      {"mac", end.mac.to_string()}, {"ip", end.gid.to_string()}, {"qpn", end.qpn.value}, {"psn", end.expected.value()}};
}

Result<ConnectionEnd> parse_end(const json& from) {
  const auto mac = wire::MacAddress::parse(from.at("mac").get<std::string>());
  if (!mac) return tl::unexpected(mac.error());
  const auto gid = wire::Gid::parse(from.at("ip").get<std::string>());
  if (!gid) return tl::unexpected(gid.error());
  const auto qpn = number_at<std::uint32_t>(from, "qpn");
  const auto psn = number_at<std::uint32_t>(from, "psn");
  if (qpn > wire::Psn::kMask || psn > wire::Psn::kMask)
    return fail(fmt::format("\"qpn\": {}, \"psn\": {}: both have 24 bits", qpn, psn));
  return ConnectionEnd{*mac, *gid, wire::Qpn(qpn), wire::Psn(psn)};
}

CowbirdStage::CowbirdStage(const wire::MacAddress& mac, const wire::Gid& gid, const cowbird::SwitchEngineConfig& config,
                           std::uint64_t seed)
    : engine_(mac, gid, config, seed), boot_(Rng(seed).fork("boot").next() >> 12) {}

void CowbirdStage::process(Time now, std::span<switching::Packet> packets, port::FrameSink& outbox) {
  for (switching::Packet& packet : packets) {
    if (engine_.on_frame(now, packet.frame, outbox)) packet.action = switching::Packet::Action::kDrop;
  }
}

void CowbirdStage::on_deadline(Time now, port::FrameSink& outbox) {
  engine_.on_deadline(now, outbox);
  if (now >= next_look_) drop_silent(now);
}

void CowbirdStage::on_spare(Time now, const switching::Ways& ways, port::FrameSink& outbox) {
  engine_.on_spare(
      now, [&](const wire::MacAddress& mac) { return ways.is_idle(now, mac); }, outbox);
}

void CowbirdStage::drop_silent(Time now) {
  // The switch was stopped: nobody could be heard.
  if (const Duration late = now - next_look_; late > kLease / 10) {
    for (auto& [name, owner] : owners_) owner.heard = owner.heard + late;
  }
  for (auto it = owners_.begin(); it != owners_.end();) {
    if (now - it->second.heard < kLease) {
      ++it;
      continue;
    }
    spdlog::info("cowbird: {} is gone; its {} channels are let go", it->first, it->second.channels.size());
    let_go(it->second);
    it = owners_.erase(it);
  }
  next_look_ = owners_.empty() ? Time::never() : now + kLease / 4;
}

void CowbirdStage::let_go(Owner& owner) {
  for (const ChannelId id : std::exchange(owner.channels, {})) static_cast<void>(engine_.detach(id));
}

Result<std::string> CowbirdStage::control(Time now, const std::string& text) {
  const json wish = json::parse(text, nullptr, false);
  if (!wish.is_object() || !wish.contains("owner") || !wish["owner"].is_string() || !wish.contains("do")) {
    return fail("cowbird is told what to do by a JSON object with \"owner\" and \"do\"");
  }
  try {
    Owner& owner = owners_[wish["owner"].get<std::string>()];
    if (next_look_ == Time::never()) next_look_ = now + kLease;
    const auto incarnation = wish.contains("incarnation") ? number_at<std::uint64_t>(wish, "incarnation") : 0;
    if (incarnation < owner.incarnation) {
      return fail(fmt::format("cowbird: {} has been started again since; this is its {}th life, the {}th asks",
                              wish["owner"].get<std::string>(), owner.incarnation, incarnation));
    }
    // Its memory and queue pairs went with the process; new ones may have the same numbers.
    if (incarnation > owner.incarnation) let_go(owner);
    owner.incarnation = incarnation;
    owner.heard = now;
    auto answer = carry_out(now, owner, wish);
    if (!answer) return tl::unexpected(answer.error());
    (*answer)["boot"] = boot_;
    return answer->dump();
  } catch (const json::exception& e) {
    return fail(fmt::format("cowbird: {}", e.what()));
  }
}

Result<json> CowbirdStage::carry_out(Time now, Owner& owner, const json& wish) {
  const std::string what = wish["do"].is_string() ? wish["do"].get<std::string>() : "";
  if (what == "renew") {
    json channels = json::array();
    for (const ChannelId id : owner.channels) channels.push_back(channel_json(id));
    return json{{"channels", std::move(channels)}};
  }
  if (what == "attach") return attach(now, owner, wish);
  const auto id = number_at<ChannelId>(wish, "id");
  if (std::find(owner.channels.begin(), owner.channels.end(), id) == owner.channels.end()) {
    return fail(fmt::format("cowbird: {} has no channel {}", wish["owner"].get<std::string>(), id));
  }
  Result<void> done;
  if (what == "detach") {
    std::erase(owner.channels, id);
    done = engine_.detach(id);
  } else if (what == "disconnect") {
    done = engine_.disconnect(now, id, number_at<std::uint32_t>(wish, "node"));
  } else if (what == "regions") {
    done = set_regions(now, id, wish);
  } else if (what == "connect") {
    const auto host = parse_end(wish.at("host"));
    const auto pool = parse_end(wish.at("pool"));
    if (!host || !pool) return tl::unexpected(host ? pool.error() : host.error());
    done = engine_.connect(now, id,
                           {.node = number_at<std::uint32_t>(wish, "node"),
                            .host = *host,
                            .pool = *pool,
                            .mtu = number_at<std::uint32_t>(wish, "mtu"),
                            .host_reads = number_at<std::uint32_t>(wish, "host_reads"),
                            .pool_reads = number_at<std::uint32_t>(wish, "pool_reads")});
  } else {
    return fail(
        fmt::format("cowbird: \"do\": \"{}\"; attach, connect, disconnect, regions, detach and renew are known", what));
  }
  if (!done) return tl::unexpected(done.error());
  return json::object();
}

Result<json> CowbirdStage::attach(Time now, Owner& owner, const json& wish) {
  const json& layout = wish.at("layout");
  const auto host = parse_end(wish.at("host"));
  if (!host) return tl::unexpected(host.error());
  const auto attached =
      engine_.attach(now, {.layout = {.shape = {.entries = number_at<std::uint32_t>(layout, "entries"),
                                                .request_bytes = number_at<std::uint32_t>(layout, "request_bytes"),
                                                .response_bytes = number_at<std::uint32_t>(layout, "response_bytes")},
                                      .channels = number_at<std::uint32_t>(layout, "channels")},
                           .channel = number_at<std::uint32_t>(wish, "channel"),
                           .address = number_at<std::uint64_t>(wish, "address"),
                           .key = wire::RKey(number_at<std::uint32_t>(wish, "key")),
                           .host = *host,
                           .mtu = number_at<std::uint32_t>(wish, "mtu"),
                           .max_reads = number_at<std::uint32_t>(wish, "max_reads")});
  if (!attached) return tl::unexpected(attached.error());
  owner.channels.push_back(attached->id);
  return json{{"id", attached->id}, {"psn", attached->engine.expected.value()}, {"engine", end_json(attached->engine)}};
}

Result<void> CowbirdStage::set_regions(Time now, ChannelId id, const json& wish) {
  std::vector<cowbird::Region> regions;
  for (const json& r : wish.at("regions")) {
    regions.push_back({.node = number_at<std::uint32_t>(r, "node"),
                       .key = number_at<std::uint32_t>(r, "key"),
                       .base = number_at<std::uint64_t>(r, "base"),
                       .length = number_at<std::uint64_t>(r, "length"),
                       .writable = r.at("writable").get<bool>(),
                       .denied = r.value("denied", false)});
  }
  return engine_.set_regions(now, id, number_at<std::uint64_t>(wish, "generation"), std::move(regions));
}

json CowbirdStage::channel_json(ChannelId id) const {
  const cowbird::SwitchChannel& channel = *engine_.channel(id);
  json nodes = json::array();
  for (const auto& connection : channel.connections()) {
    if (connection.open) nodes.push_back(connection.node);
  }
  return {{"id", id},
          {"attached", channel.attached()},
          {"broken", channel.broken()},
          {"generation", channel.generation()},
          {"nodes", std::move(nodes)}};
}

CowbirdStage::Counts CowbirdStage::counts() const {
  Counts counts{.engine = engine_.counters(), .damaged = engine_.damaged(), .channels = engine_.channels()};
  for (const ChannelId id : engine_.ids()) {
    const cowbird::SwitchChannel& channel = *engine_.channel(id);
    counts.broken += channel.broken() ? 1u : 0u;
    counts.waiting += channel.under_way();
  }
  return counts;
}

void CowbirdStage::Counts::collect(telemetry::MetricSet& set) const {
  set.gauge("cowbird_switch_channels", "channels of applications that the switch serves",
            static_cast<double>(channels));
  set.gauge("cowbird_switch_channels_broken", "of them, those whose rings made no sense", static_cast<double>(broken));
  set.gauge("cowbird_switch_under_way", "requests that it has fetched and not completed", static_cast<double>(waiting));
  set.counter("cowbird_switch_probes", "READs of an issuer line", engine.probes);
  set.counter("cowbird_switch_reads", "reads completed, with success or not", engine.reads);
  set.counter("cowbird_switch_writes", "writes completed, with success or not", engine.writes);
  set.counter("cowbird_switch_relayed", "READ responses that became WRITEs", engine.relayed);
  set.counter("cowbird_switch_unwanted", "READ responses that came at the wrong time", engine.unwanted);
  set.counter("cowbird_switch_publications", "WRITEs of a progress line", engine.publications);
  set.counter("cowbird_switch_paused", "times that requests waited for others", engine.paused);
  set.counter("cowbird_switch_rewinds", "times that it went back N", engine.rewinds);
  set.counter("cowbird_switch_timeouts", "times that an answer did not come", engine.timeouts);
  set.counter("cowbird_switch_connections_closed", "connections to memory nodes given up", engine.closed);
  set.counter("cowbird_switch_failed", "requests reported as failed", engine.failed);
  set.counter("cowbird_switch_denied", "of them, those that their memory node does not export, or refuses",
              engine.denied);
  set.counter("cowbird_switch_malformed", "of them, those that made no sense", engine.malformed);
  set.counter("cowbird_switch_damaged", "answers with a bad ICRC", damaged);
}

std::string CowbirdStage::status_json() const {
  const auto c = engine_.counters();
  json channels = json::array();
  for (const auto& [name, owner] : owners_) {
    for (const ChannelId id : owner.channels) {
      const cowbird::SwitchChannel& channel = *engine_.channel(id);
      json one = channel_json(id);
      one["owner"] = name;
      one["ip"] = channel.config().host.gid.to_string();
      one["channel"] = channel.config().channel;
      one["under_way"] = channel.under_way();
      one["reads"] = channel.counters().reads;
      one["writes"] = channel.counters().writes;
      channels.push_back(std::move(one));
    }
  }
  return json{{"boot", boot_},
              {"channels", std::move(channels)},
              {"counters",
               {{"probes", c.probes},
                {"reads", c.reads},
                {"writes", c.writes},
                {"relayed", c.relayed},
                {"unwanted", c.unwanted},
                {"publications", c.publications},
                {"paused", c.paused},
                {"rewinds", c.rewinds},
                {"timeouts", c.timeouts},
                {"closed", c.closed},
                {"failed", c.failed},
                {"denied", c.denied},
                {"malformed", c.malformed},
                {"damaged", engine_.damaged()}}}}
      .dump();
}

}  // namespace sluice::rack
