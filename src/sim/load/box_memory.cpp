#include "sim/load/box_memory.h"

#include <memory>

#include "swordbox/clover_rule.h"

namespace sluice::sim {

void BoxMemoryWorkload::read(Fields& fields) {
  constexpr auto kOptional = Fields::Need::kOptional;
  fields.choice("feature", feature, {"all", "connections", "holding", "steering", "replacing"}, kOptional);
  fields.integer("connections", connections, 1, 1u << 16, kOptional);
  fields.integer("keys", keys, 1, 1u << 22, kOptional);
  fields.integer("nodes", nodes, 1, 1u << 26, kOptional);
  fields.integer("words", words, 1, 1u << 26, kOptional);
  fields.integer("held_packets", held_packets, 1, 1u << 16, kOptional);
}

std::unique_ptr<swordbox::Box> make_box(const BoxMemoryWorkload& w) {
  swordbox::BoxConfig config;
  config.connections.connections = static_cast<std::uint32_t>(w.connections);
  config.held_frames = static_cast<std::uint32_t>(w.held_packets);
  auto box = std::make_unique<swordbox::Box>(config);
  swordbox::CloverConfig clover;
  clover.tracked_keys = static_cast<std::uint32_t>(w.keys);
  clover.most_tracked_keys = static_cast<std::uint32_t>(w.most_keys);
  clover.history_entries = static_cast<std::uint32_t>(w.nodes);
  clover.ring = static_cast<std::uint32_t>(w.ring);
  box->set_rule(std::make_unique<swordbox::CloverRule>(clover, box->connections(), box->counters()));
  swordbox::MultiplexerConfig words;
  words.words = static_cast<std::uint32_t>(w.words);
  words.ring = static_cast<std::uint32_t>(w.ring);
  box->set_multiplexer(std::make_unique<swordbox::Multiplexer>(words, box->connections(), box->counters()));
  return box;
}

std::vector<std::pair<std::string, double>> run_box_memory(const BoxMemoryWorkload& w) {
  double bytes = 0;
  for (const swordbox::MemoryUse& use : make_box(w)->account()) {
    if (w.feature == "all" || w.feature == swordbox::feature_name(use.feature)) bytes += static_cast<double>(use.bytes);
  }
  return {{"kib", bytes / 1024},
          {"bytes_a_connection", bytes / static_cast<double>(w.connections)},
          {"bytes_a_key", bytes / static_cast<double>(w.keys)},
          {"bytes_a_word", bytes / static_cast<double>(w.words)}};
}

}  // namespace sluice::sim
