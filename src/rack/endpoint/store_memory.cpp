#include "rack/endpoint/store_memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace sluice::rack {

std::string volumes_attribute(std::span<const clover::Volume> volumes) {
  std::string text;
  for (const clover::Volume& volume : volumes) {
    const remote::RemoteAddress& first = volume.replicas[0];
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", first.node.value, first.key.value);
  }
  return text;
}

namespace {

// Of this metadata server, as it said it last.
std::optional<StoreMemory> store_of(const Snapshot& snapshot, const NodeRecord& server) {
  const auto& attributes = server.description.attributes;
  const auto volumes = attributes.find(kVolumesAttribute);
  if (volumes == attributes.end()) return std::nullopt;
  const auto replication = attributes.find(kReplicationAttribute);

  StoreMemory store;
  store.incarnation = server.incarnation;
  store.mirrored = replication != attributes.end() && replication->second != "1";
  std::istringstream words(volumes->second);
  for (std::string word; words >> word;) {
    unsigned node = 0;
    unsigned key = 0;
    if (std::sscanf(word.c_str(), "%u:%u", &node, &key) != 2) return std::nullopt;
    const auto found = std::ranges::find_if(snapshot.nodes, [&](const NodeRecord& n) { return n.id.value == node; });
    if (found == snapshot.nodes.end()) return std::nullopt;
    store.volumes.push_back({wire::Gid::from(found->ip), wire::RKey(key)});
  }
  if (store.volumes.empty()) return std::nullopt;
  if (const auto space = attributes.find(kSpaceAttribute); space != attributes.end())
    store.space = std::strtoull(space->second.c_str(), nullptr, 10);
  return store;
}

}  // namespace

std::optional<StoreMemory> find_store(const Snapshot& snapshot) {
  const auto servers = snapshot.ready(NodeKind::kMetadata);
  return servers.empty() ? std::nullopt : store_of(snapshot, *servers.front());
}

bool is_served(const Snapshot& snapshot) {
  return std::ranges::any_of(snapshot.nodes, [](const NodeRecord& node) {
    return node.description.kind == NodeKind::kMetadata && node.state != NodeState::kGone;
  });
}

std::optional<StoreMemory> find_store_left(const Snapshot& snapshot) {
  if (is_served(snapshot)) return std::nullopt;
  for (const NodeRecord& server : snapshot.nodes) {
    if (server.description.kind != NodeKind::kMetadata) continue;
    auto store = store_of(snapshot, server);
    if (!store) continue;
    // Memory that has begun anew, or lost its lease, has another key.
    std::erase_if(store->volumes, [&](const StoreMemory::Volume& volume) {
      return std::ranges::none_of(snapshot.ready(NodeKind::kMemory), [&](const NodeRecord* node) {
        const auto is_it = [&](const RegionRecord& region) { return region.key == volume.key.value; };
        return wire::Gid::from(node->ip) == volume.node && std::ranges::any_of(node->description.regions, is_it);
      });
    });
    if (!store->volumes.empty()) return store;
  }
  return std::nullopt;
}

Result<void> check_makes_store(const Snapshot& snapshot, const NodeRecord& maker) {
  const auto is_there = [&](std::string_view volume) {
    return std::ranges::any_of(snapshot.ready(NodeKind::kMemory), [&](const NodeRecord* node) {
      return std::ranges::any_of(node->description.regions, [&](const RegionRecord& region) {
        return volume == fmt::format("{}:{}", node->id.value, region.key);
      });
    });
  };
  for (const NodeRecord& server : snapshot.nodes) {
    if (server.description.kind != NodeKind::kMetadata) continue;
    const std::string& name = server.description.name;
    if (server.state != NodeState::kGone && server.id != maker.id)
      return fail(fmt::format("{} is the rack's metadata server, and there is one on a rack", name));
    const auto volumes = server.description.attributes.find(kVolumesAttribute);
    if (volumes == server.description.attributes.end()) continue;
    std::istringstream words(volumes->second);
    for (std::string word; words >> word;) {
      if (is_there(word))
        return fail(
            fmt::format("the memory holds the Clover store of {}, and its journal is not here: `sluice metadata --name "
                        "{}` finds it where {}.journal is; `sluice rack "
                        "down`, then `sluice rack up` gives it up",
                        name, name, name));
    }
  }
  return {};
}

std::optional<std::vector<swordbox::WordRegion>> find_words(const Snapshot& snapshot) {
  const bool served = is_served(snapshot);
  const auto store = served ? find_store(snapshot) : find_store_left(snapshot);
  if (!store && served) return std::nullopt;
  std::vector<swordbox::WordRegion> words;
  for (const NodeRecord* node : snapshot.ready(NodeKind::kMemory)) {
    for (const RegionRecord& region : node->description.regions) {
      // None of tenants': clients that share a connection in the box share its rights.
      if (region.name != kMainRegion) continue;
      const StoreMemory::Volume here{wire::Gid::from(node->ip), wire::RKey(region.key)};
      const bool is_stores = store && std::ranges::find(store->volumes, here) != store->volumes.end();
      const std::uint64_t taken = !is_stores          ? 0
                                  : store->space == 0 ? region.length
                                                      : std::min(store->space, region.length);
      if (taken == region.length) continue;
      words.push_back({.server = here.node,
                       .rkey = here.key,
                       .address = region.address + taken,
                       .length = region.length - taken,
                       .writable = true});
    }
  }
  return words;
}

}  // namespace sluice::rack
