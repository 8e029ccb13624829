#include "rack/store_story.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "rack/memory_node.h"

namespace sluice::rack {
namespace {

using nlohmann::json;

// What must agree between the one who died and the one who takes its place.
json make_of(const MetadataSettings& settings) {
  return {{"value-size", settings.value_size},
          {"replication", settings.replication},
          {"memory-nodes", settings.memory_nodes},
          {"space", settings.space}};
}

json to_json(const clover::Home& home) {
  return {{"node", home.region.base.node.value},
          {"key", home.region.base.key.value},
          {"address", home.region.base.address},
          {"length", home.region.length},
          {"life", home.life}};
}

clover::Home home_from(const json& in) {
  return {{{remote::NodeId(in.at("node").get<std::uint32_t>()), remote::RegionKey(in.at("key").get<std::uint32_t>()),
            in.at("address").get<std::uint64_t>()},
           in.at("length").get<std::uint64_t>()},
          in.at("life").get<std::uint64_t>()};
}

}  // namespace

std::optional<clover::Home> home_of(const NodeRecord& node, std::uint64_t space) {
  if (node.description.regions.empty()) return std::nullopt;
  const RegionRecord& region = node.description.regions.front();
  const auto life = node.description.attributes.find(kLifeAttribute);
  return clover::Home{{{node.id, remote::RegionKey(region.key), region.address},
                       space == 0 ? region.length : std::min(space, region.length)},
                      life == node.description.attributes.end() ? 0 : std::strtoull(life->second.c_str(), nullptr, 16)};
}

Result<std::unique_ptr<clover::MetadataServer>> StoreStory::build(const MetadataSettings& settings,
                                                                  const std::vector<clover::Home>& homes) {
  std::vector<clover::Region> regions;
  for (const auto& home : homes) regions.push_back(home.region);
  auto volumes = clover::spread(regions, static_cast<std::uint32_t>(settings.replication));
  if (!volumes) return tl::unexpected(volumes.error());
  clover::ServerConfig config;
  config.volumes = std::move(*volumes);
  config.homes = homes;
  config.value_bytes = static_cast<std::uint32_t>(settings.value_size);
  config.cursor_lifetime = settings.cursor_lifetime;
  if (auto sound = clover::check(config); !sound) return tl::unexpected(sound.error());
  json store{{"make", make_of(settings)}, {"homes", json::array()}};
  for (const auto& home : homes) store["homes"].push_back(to_json(home));
  store_ = store.dump();
  return std::make_unique<clover::MetadataServer>(std::move(config), &journal_);
}

Result<std::unique_ptr<clover::MetadataServer>> StoreStory::make(const MetadataSettings& settings,
                                                                 const std::vector<clover::Home>& homes) {
  return build(settings, homes);
}

Result<std::unique_ptr<clover::MetadataServer>> StoreStory::recall(const MetadataSettings& settings,
                                                                   const Snapshot& snapshot) {
  const auto story = JournalFile::read(path_);
  if (!story) return tl::unexpected(story.error());
  if (!*story) return nullptr;
  std::vector<clover::Home> homes;
  const json store = json::parse((*story)->store, nullptr, false);
  try {
    if (store.at("make") != make_of(settings)) {
      return fail(fmt::format(
          "the store in {} is of another make ({}): give the flags it was made with, or remove the file to begin anew",
          path_, store.at("make").dump()));
    }
    for (const json& home : store.at("homes")) homes.push_back(home_from(home));
  } catch (const json::exception&) {
    return fail(fmt::format("{} is no journal of a store; remove it to begin anew", path_));
  }
  auto server = build(settings, homes);
  if (!server) return server;
  for (const auto& record : (*story)->records) {
    if (!(*server)->replay(record))
      return fail(fmt::format("{} does not tell one story; remove it to begin anew, without what was stored", path_));
  }
  const bool some = std::any_of(snapshot.nodes.begin(), snapshot.nodes.end(), [&](const NodeRecord& node) {
    const auto home = home_of(node, settings.space);
    return node.description.kind == NodeKind::kMemory && node.state == NodeState::kReady && home &&
           (*server)->knows(*home);
  });
  if (some) return server;
  spdlog::error("{}: none of the memory that the store lay in is there any more; a new store begins, empty",
                settings.name);
  return nullptr;
}

Result<void> StoreStory::begin(Time now, clover::MetadataServer& server) {
  server.restart(now);
  return journal_.begin(store_, server.state(now));
}

void StoreStory::keep(Time now, const clover::MetadataServer& server) {
  if (!journal_.failed() && !journal_.wants_to_begin_again()) return;
  if (journal_.failed() && !told_)
    spdlog::error("{} cannot be written; until it can, the store does not survive the death of this process", path_);
  const auto begun = journal_.begin(store_, server.state(now));
  if (!begun && !told_) spdlog::error("{}", begun.error().message);
  if (begun && told_) spdlog::info("{} is written again", path_);
  told_ = !begun;
}

}  // namespace sluice::rack
