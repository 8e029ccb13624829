// Box stage: SwordBox as a stage of the switch.
//
// Life:       made from settings -> set_store() whenever the directory tells of another store -> process() and on_deadline() by the switch.
// Rule:       steering begins when the store is known. When the store changes, the rule is made anew and the old store's connections are
//             fenced, as after the loss of a box.
// Repair:     links that the box cannot bring about by itself are handed to the agent; on_repair() takes the outcome.
// Threads:    the switch's owner.
// Source:     docs/design/swordbox.md.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rack/endpoint/store_memory.h"
#include "rack/settings/box_settings.h"
#include "switching/stage.h"
#include "swordbox/box.h"
#include "swordbox/clover_rule.h"

namespace sluice::rack {

// What the rest of a switch may ask of its box, be it one or several.
class BoxControl {
 public:
  // A repair, and the rule that it is for: one for a rule that is gone means nothing.
  struct Errand {
    std::uint32_t shard = 0;
    std::uint64_t rule = 0;
    swordbox::Repair repair{};
  };
  using Agent = std::function<void(Errand)>;

  virtual ~BoxControl() = default;
  virtual void set_store(Time now, const std::optional<StoreMemory>& store) = 0;
  // The memory whose atomics may be replaced, as the directory tells it.
  virtual void set_words(Time now, const std::vector<swordbox::WordRegion>& regions) = 0;
  // Frames from or to the agent's own address pass without a look. Without an agent (null) repairs wait. It may be called from any of the
  // box's threads; the one before is not called any more when this returns.
  virtual void set_agent(wire::MacAddress mac, Agent agent) = 0;
  virtual void on_repair(Time now, const Errand& errand, std::optional<std::uint64_t> prior) = 0;
  // {"on": bool, "order": "strict", "keys": 64, "held-frames": 100, "rules": {"clover-reads": false}}: what may change at run time. An
  // error says what is not known or too much; then nothing has changed. No packet is lost by it.
  virtual Result<void> change(const std::string& json) = 0;
  // Counters; the hottest keys and busiest connections, so many of each.
  virtual std::string status_json(std::size_t most) = 0;
};

class BoxStage final : public switching::Stage, public BoxControl {
 public:
  // `fenced_until`: a steering box came before this one and was lost.
  BoxStage(const BoxSettings& settings, Time fenced_until);
  ~BoxStage() override;

  // What it makes of them for shared connections.
  static swordbox::MultiplexerConfig words_config(const BoxSettings& settings);

  void process(Time now, std::span<switching::Packet> packets, port::FrameSink& outbox) override;
  Time next_deadline() const override { return box_.next_deadline(); }
  void on_deadline(Time now, port::FrameSink& outbox) override;

  void set_store(Time now, const std::optional<StoreMemory>& store) override;
  void set_words(Time now, const std::vector<swordbox::WordRegion>& regions) override;
  void set_agent(wire::MacAddress mac, Agent agent) override;
  void on_repair(Time now, const Errand& errand, std::optional<std::uint64_t> prior) override;
  Result<void> change(const std::string& json) override;
  // change() in two steps, so that of several boxes all change or none. REQUIRES of the second: the first, of the same text, found it sound.
  Result<void> may_change(const std::string& json) const;
  void make_change(const std::string& json);
  std::string status_json(std::size_t most) override;

 private:
  bool is_agents(const port::Frame& frame) const;
  void tell_of_one_way();
  void tell_of_full_table();
  std::string one_way_text() const;  // empty: none was found
  std::vector<std::pair<std::string, bool>> rules() const;
  Result<void> check_change(const nlohmann::json& wish) const;
  swordbox::CloverConfig rule_config(Time now, const StoreMemory& store, Time fenced_until) const;

  BoxSettings settings_;
  swordbox::Box box_;
  swordbox::CloverRule* rule_ = nullptr;  // the box's
  std::uint64_t rule_number_ = 0;
  std::optional<StoreMemory> store_;
  Time first_fence_;
  std::uint32_t most_held_ = 0;
  bool told_of_one_way_ = false;
  bool told_of_full_table_ = false;
  wire::MacAddress agent_mac_{};
  Agent agent_;
  std::vector<swordbox::Packet> burst_;
  std::vector<std::size_t> places_;  // of burst_ in the switch's burst
};

}  // namespace sluice::rack
