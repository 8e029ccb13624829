#include "rack/switch/box_stage.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

namespace sluice::rack {
namespace {

using nlohmann::json;
using swordbox::Order;

// WRITEs seen earlier after the loss of a box may be late duplicates.
constexpr Duration kDistrust = Duration::milliseconds(1);

swordbox::BoxConfig box_config(const BoxSettings& settings, Time fenced_until) {
  swordbox::BoxConfig config;
  config.connections.connections = static_cast<std::uint32_t>(settings.connections);
  config.held_frames = static_cast<std::uint32_t>(settings.held_frames);
  config.verify_icrc = settings.verify_icrc;
  config.fenced_until = fenced_until;
  config.watch_paths = !settings.servers.empty();
  return config;
}

Order order_of(const std::string& text) { return text == "strict" ? Order::kStrict : Order::kPipelined; }

}  // namespace

swordbox::MultiplexerConfig BoxStage::words_config(const BoxSettings& settings) {
  swordbox::MultiplexerConfig config;
  config.words = static_cast<std::uint32_t>(settings.words);
  config.ring = static_cast<std::uint32_t>(settings.ring);
  config.give_up_after = settings.flight / 4;
  // More than once before that.
  config.repair_after = std::min(settings.repair_after, settings.flight / 8);
  config.flight = settings.flight;
  for (const std::string& server : settings.servers) config.servers.push_back(wire::Gid::parse(server).value());
  return config;
}

BoxStage::BoxStage(const BoxSettings& settings, Time fenced_until)
    : settings_(settings), box_(box_config(settings, fenced_until)), first_fence_(fenced_until) {
  settings_.keys_at_start = settings.keys;
  most_held_ = box_.held_frames();
  if (!settings.shares()) return;
  box_.set_multiplexer(
      std::make_unique<swordbox::Multiplexer>(words_config(settings), box_.connections(), box_.counters()));
}

BoxStage::~BoxStage() = default;

swordbox::CloverConfig BoxStage::rule_config(Time now, const StoreMemory& store, Time fenced_until) const {
  swordbox::CloverConfig config;
  for (const StoreMemory::Volume& volume : store.volumes) {
    config.layout.regions_by_volume.push_back(static_cast<std::uint16_t>(config.regions.size()));
    config.regions.push_back({volume.node, volume.key});
  }
  config.mirrored = store.mirrored;
  config.order = order_of(settings_.order);
  config.steer_reads = settings_.steer_reads;
  config.steer_reads_for = settings_.steer_reads_for;
  config.steer_writes = settings_.steer_writes;
  config.tracked_keys = static_cast<std::uint32_t>(settings_.keys);
  config.most_tracked_keys = static_cast<std::uint32_t>(settings_.most_keys());
  config.history_entries = static_cast<std::uint32_t>(settings_.history);
  config.ring = static_cast<std::uint32_t>(settings_.ring);
  config.repair_after = settings_.repair_after;
  if (now < fenced_until) {
    config.fenced_until = fenced_until;
    config.trust_writes_from = now + kDistrust;
  }
  return config;
}

void BoxStage::set_store(Time now, const std::optional<StoreMemory>& store) {
  if (!settings_.steers() || !store || store == store_) return;
  // What the rule before this one knew of links under way is lost with it.
  const Time fenced_until = store_ ? std::max(first_fence_, now + settings_.fence) : first_fence_;
  store_ = store;
  auto rule = std::make_unique<swordbox::CloverRule>(rule_config(now, *store, fenced_until), box_.connections(),
                                                     box_.counters());
  rule_ = rule.get();
  ++rule_number_;
  box_.set_rule(std::move(rule), fenced_until);
  if (store->mirrored) {
    spdlog::warn("box: the store keeps each value on several memory nodes: it is not steered");
  } else {
    spdlog::info("box: steers a Clover store of {} volumes{}", store->volumes.size(),
                 now < fenced_until ? ", behind a fence for a while" : "");
  }
}

void BoxStage::set_words(Time now, const std::vector<swordbox::WordRegion>& regions) {
  if (!settings_.shares()) return;
  if (settings_.steers() && !store_) return;  // what of the memory is the store's is not known yet
  if (const auto too_many = box_.multiplexer()->set_regions(now, regions); too_many != 0)
    spdlog::warn("box: {} regions of memory are too many: atomics on the last {} are not replaced", regions.size(),
                 too_many);
}

bool BoxStage::is_agents(const port::Frame& frame) const {
  return agent_ && frame.length >= 12 &&
         (std::memcmp(frame.data, agent_mac_.bytes.data(), 6) == 0 ||
          std::memcmp(frame.data + 6, agent_mac_.bytes.data(), 6) == 0);
}

void BoxStage::process(Time now, std::span<switching::Packet> packets, port::FrameSink& outbox) {
  burst_.clear();
  places_.clear();
  for (std::size_t i = 0; i < packets.size(); ++i) {
    if (is_agents(packets[i].frame)) continue;
    burst_.push_back({.frame = packets[i].frame});
    places_.push_back(i);
  }
  box_.process(now, burst_, outbox);
  for (std::size_t i = 0; i < burst_.size(); ++i) {
    switching::Packet& packet = packets[places_[i]];
    packet.frame = burst_[i].frame;
    const bool forward = burst_[i].action == swordbox::Action::kForward;
    packet.action = forward ? switching::Packet::Action::kForward : switching::Packet::Action::kDrop;
  }
}

// Once.
void BoxStage::tell_of_one_way() {
  if (!box_.one_way() || told_of_one_way_) return;
  told_of_one_way_ = true;
  spdlog::warn(
      "box: {}: atomics are not replaced any more. Let both directions cross the box, then start the switch anew",
      one_way_text());
}

// Once.
void BoxStage::tell_of_full_table() {
  if (box_.counters().connections_refused == 0 || told_of_full_table_) return;
  told_of_full_table_ = true;
  spdlog::warn(
      "box: it follows {} connections at once, and there was one more: that may not reach memory whose words are "
      "shared. "
      "For more: --box-connections",
      settings_.connections);
}

std::string BoxStage::one_way_text() const {
  const auto& path = box_.one_way();
  if (!path) return "";
  return fmt::format("of a connection from {} to {} only the {} cross here", path->from.to_string(),
                     path->to.to_string(), path->answers_missing ? "requests" : "answers");
}

void BoxStage::on_deadline(Time now, port::FrameSink& outbox) {
  box_.on_deadline(now, outbox);
  tell_of_one_way();
  tell_of_full_table();
  if (rule_ == nullptr || !agent_) return;
  std::array<swordbox::Repair, 16> repairs;
  while (const std::size_t n = rule_->take_repairs(repairs)) {
    for (std::size_t i = 0; i < n; ++i) agent_({.rule = rule_number_, .repair = repairs[i]});
  }
}

void BoxStage::set_agent(wire::MacAddress mac, Agent agent) {
  agent_mac_ = mac;
  agent_ = std::move(agent);
}

void BoxStage::on_repair(Time now, const Errand& errand, std::optional<std::uint64_t> prior) {
  if (rule_ != nullptr && errand.rule == rule_number_) rule_->on_repair(now, errand.repair, prior);
}

namespace {

constexpr const char* kSteerWrites = "clover-writes";
constexpr const char* kSteerReads = "clover-reads";
constexpr const char* kWords = "words";

Result<void> refuse(std::string_view name, const json& value, std::string_view allowed) {
  // Printing what is nested would take stack for each level.
  const std::string shown = value.is_array() ? "[…]" : value.is_object() ? "{…}" : value.dump();
  return fail(fmt::format("{} = {}: {}", name, shown, allowed));
}

}  // namespace

// The rules that this box was started with, and whether they act.
std::vector<std::pair<std::string, bool>> BoxStage::rules() const {
  std::vector<std::pair<std::string, bool>> rules;
  if (settings_.steers()) rules = {{kSteerWrites, settings_.steer_writes}, {kSteerReads, settings_.steer_reads}};
  if (settings_.shares()) rules.emplace_back(kWords, box_.shares_words());
  return rules;
}

Result<void> BoxStage::check_change(const json& wish) const {
  for (const auto& [name, value] : wish.items()) {
    if (name == "on") {
      if (!value.is_boolean()) return refuse(name, value, "must be true or false");
    } else if (name == "order") {
      if (value != "pipelined" && value != "strict") return refuse(name, value, "must be pipelined or strict");
    } else if (name == "keys") {
      if (!settings_.steers())
        return refuse(name, value, "this box does not steer (it was not started with --box clover)");
      if (!value.is_number_unsigned() || value == 0 || value > settings_.most_keys())
        return refuse(name, value,
                      fmt::format("must be 1 to {}; more needs a switch with more box-keys", settings_.most_keys()));
    } else if (name == "held-frames") {
      if (!value.is_number_unsigned() || value < BoxSettings::kLeastHeldFrames || value > most_held_)
        return refuse(name, value,
                      fmt::format("must be {} to {}; more needs a switch with more box-held-frames",
                                  BoxSettings::kLeastHeldFrames, most_held_));
    } else if (name == "rules") {
      const auto mine = rules();
      if (!value.is_object()) return refuse(name, value, "must be an object");
      for (const auto& [rule, state] : value.items()) {
        if (std::ranges::find(mine, rule, &std::pair<std::string, bool>::first) == mine.end())
          return refuse(rule, state, "this box has no such rule; `sluice box rules` lists those that it has");
        if (!state.is_boolean()) return refuse(rule, state, "must be true or false");
        if (rule == kWords && state == true && box_.one_way()) {
          return refuse(rule, state,
                        one_way_text() + ": let both directions cross the box, then start the switch anew");
        }
      }
    } else {
      return refuse(name, value, "the box takes on, order, keys, held-frames and rules");
    }
  }
  return {};
}

Result<void> BoxStage::change(const std::string& text) {
  if (auto sound = may_change(text); !sound) return sound;
  make_change(text);
  return {};
}

Result<void> BoxStage::may_change(const std::string& text) const {
  const json wish = json::parse(text, nullptr, false);
  if (!wish.is_object()) return fail("the box is told what to change by a JSON object");
  return check_change(wish);
}

void BoxStage::make_change(const std::string& text) {
  const json wish = json::parse(text);
  if (wish.contains("on")) box_.switch_on(wish["on"].get<bool>());
  if (wish.contains("order")) settings_.order = wish["order"].get<std::string>();
  if (wish.contains("keys")) settings_.keys = wish["keys"].get<std::uint64_t>();
  if (wish.contains("held-frames")) box_.set_held_frames(wish["held-frames"].get<std::uint32_t>());
  if (wish.contains("rules")) {
    const json& rules = wish["rules"];
    settings_.steer_writes = rules.value(kSteerWrites, settings_.steer_writes);
    settings_.steer_reads = rules.value(kSteerReads, settings_.steer_reads);
    box_.share_words(rules.value(kWords, box_.shares_words()));
  }
  // A rule that is made later, for another store, takes them from the settings.
  if (rule_ != nullptr) {
    rule_->set_order(order_of(settings_.order));
    rule_->set_tracked_keys(static_cast<std::uint32_t>(settings_.keys));
    rule_->set_steer_writes(settings_.steer_writes);
    rule_->set_steer_reads(settings_.steer_reads);
  }
}

std::string BoxStage::status_json(std::size_t most) {
  json counters = json::object();
  json meanings = json::object();
  box_.counters().for_each([&](std::string_view name, std::string_view meaning, std::uint64_t value) {
    if (value == 0) return;
    counters[std::string(name)] = value;
    meanings[std::string(name)] = meaning;
  });
  json connections = json::array();
  for (const auto& c : box_.busiest(most)) {
    connections.push_back({{"from", c.from.to_string()},
                           {"to", c.to.to_string()},
                           {"qpns", {c.from_qpn, c.to_qpn}},
                           {"requests", c.use.requests},
                           {"responses", c.use.responses},
                           {"changed", c.use.changed},
                           {"delayed", c.use.delayed},
                           {"dropped", c.use.dropped}});
  }
  json keys = json::array();
  if (rule_ != nullptr) {
    for (const auto& k : rule_->hottest(most)) {
      keys.push_back({{"key", k.key},
                      {"heat", k.heat},
                      {"links", k.links},
                      {"writes_steered", k.use.writes_steered},
                      {"reads_steered", k.use.reads_steered},
                      {"tail", k.tail},
                      {"tail_known", k.tail != 0}});
    }
  }
  json rule_states = json::object();
  for (const auto& [name, acts] : rules()) rule_states[name] = acts;
  return json{{"box", settings_.box},
              {"rules", std::move(rule_states)},
              {"limits",
               {{"keys", settings_.keys},
                {"most_keys", settings_.most_keys()},
                {"held_frames", box_.held_frames()},
                {"most_held_frames", most_held_}}},
              {"on", box_.on()},
              {"asymmetric", one_way_text()},
              {"order", settings_.order},
              {"steering", rule_ != nullptr && !store_->mirrored},
              {"mirrored", store_ && store_->mirrored},
              {"volumes", store_ ? store_->volumes.size() : 0},
              {"connections", box_.connections().size()},
              {"tracked_keys", rule_ != nullptr ? rule_->tracked() : 0},
              {"open_links", rule_ != nullptr ? rule_->open_links() : 0},
              {"tracked_words", settings_.shares() ? box_.multiplexer()->words() : 0},
              {"shared_connections", settings_.shares() ? box_.multiplexer()->carriers() : 0},
              {"replaced_under_way", settings_.shares() ? box_.multiplexer()->open() : 0},
              {"held", box_.held()},
              {"counters", std::move(counters)},
              {"meanings", std::move(meanings)},
              {"top_connections", std::move(connections)},
              {"top_keys", std::move(keys)}}
      .dump();
}

}  // namespace sluice::rack
