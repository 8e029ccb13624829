#include "rack/daemons/store_story.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "rack/endpoint/memory_node.h"
#include "rack/settings/json_number.h"

namespace sluice::rack {
namespace {

using nlohmann::json;

constexpr const char* kBeginAnew = "`sluice rack down`, then `sluice rack up` begin anew";

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
          {"life", home.life},
          {"name", home.name}};
}

clover::Home home_from(const json& in) {
  return {{{remote::NodeId(number_at<std::uint32_t>(in, "node")),
            remote::RegionKey(number_at<std::uint32_t>(in, "key")), number_at<std::uint64_t>(in, "address")},
           number_at<std::uint64_t>(in, "length")},
          number_at<std::uint64_t>(in, "life"),
          in.value("name", "")};  // of old there was none
}

// Where the memory is that a store lies in.
enum class Whereabouts : std::uint8_t {
  kThere,  // some of it
  kAway,   // nobody knows: a node that was stopped, or whose directory was, comes back with what it had
  kLost,   // its nodes' names are those of other lives
};

Whereabouts find_memory(const clover::MetadataServer& server, const std::vector<clover::Home>& homes,
                        const MetadataSettings& settings, const Snapshot& snapshot) {
  std::size_t others = 0;
  for (const NodeRecord* node : snapshot.ready(NodeKind::kMemory)) {
    const auto home = home_of(*node, settings.space);
    if (!home) continue;
    if (server.knows(*home)) return Whereabouts::kThere;
    others += static_cast<std::size_t>(server.has_part_on(*home));
  }
  return others == homes.size() ? Whereabouts::kLost : Whereabouts::kAway;
}

// False: it is lost, or has not come for so long.
Result<bool> wait_for_memory(const clover::MetadataServer& server, const std::vector<clover::Home>& homes,
                             const MetadataSettings& settings, Directory& directory, Duration patience) {
  std::optional<Whereabouts> seen;
  auto found = watch_memory(directory, patience, [&](const Snapshot& snapshot) {
    const auto now = find_memory(server, homes, settings, snapshot);
    if (!seen && now == Whereabouts::kAway)
      spdlog::info("{}: the memory that the store lies in is not there; waiting up to {} for it", settings.name,
                   duration_text(patience));
    seen = now;
    return now != Whereabouts::kAway;
  });
  if (!found) return found;
  return seen == Whereabouts::kThere;
}

}  // namespace

Result<bool> watch_memory(Directory& directory, Duration patience, const std::function<bool(const Snapshot&)>& enough) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::nanoseconds(patience.nanoseconds());
  for (std::uint64_t seen = 0;;) {
    const auto snapshot = directory.watch(seen, std::min(patience, Duration::milliseconds(500)), {NodeKind::kMemory});
    if (!snapshot) return tl::unexpected(snapshot.error());
    if (enough(*snapshot)) return true;
    if (std::chrono::steady_clock::now() >= give_up) return false;
    seen = snapshot->revision;
    // The directory may answer at once: too many watch already.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::optional<clover::Home> home_of(const NodeRecord& node, std::uint64_t space) {
  if (node.description.regions.empty()) return std::nullopt;
  const RegionRecord& region = node.description.regions.front();
  const auto life = node.description.attributes.find(kLifeAttribute);
  return clover::Home{{{node.id, remote::RegionKey(region.key), region.address},
                       space == 0 ? region.length : std::min(space, region.length)},
                      life == node.description.attributes.end() ? 0 : std::strtoull(life->second.c_str(), nullptr, 16),
                      node.description.name};
}

Result<std::unique_ptr<clover::MetadataServer>> StoreStory::build(const MetadataSettings& settings,
                                                                  const std::vector<clover::Home>& homes,
                                                                  std::uint32_t number) {
  std::vector<clover::Region> regions;
  for (const auto& home : homes) regions.push_back(home.region);
  auto volumes = clover::spread(regions, static_cast<std::uint32_t>(settings.replication));
  if (!volumes) return tl::unexpected(volumes.error());
  clover::ServerConfig config;
  config.volumes = std::move(*volumes);
  config.homes = homes;
  config.value_bytes = static_cast<std::uint32_t>(settings.value_size);
  config.cursor_lifetime = settings.cursor_lifetime;
  config.store = number;
  if (auto sound = clover::check(config); !sound) return tl::unexpected(sound.error());
  json store{{"make", make_of(settings)}, {"homes", json::array()}, {"number", number}};
  for (const auto& home : homes) store["homes"].push_back(to_json(home));
  store_ = store.dump();
  return std::make_unique<clover::MetadataServer>(std::move(config), &journal_);
}

Result<std::unique_ptr<clover::MetadataServer>> StoreStory::make(const MetadataSettings& settings,
                                                                 const std::vector<clover::Home>& homes) {
  std::random_device chance;
  auto server = build(settings, homes, std::uniform_int_distribution<std::uint32_t>(1)(chance));
  if (!server || !std::exchange(is_lost_, false)) return server;
  const std::string aside = lost(path_);
  if (std::rename(path_.c_str(), aside.c_str()) != 0)
    return fail(fmt::format("cannot move {} to {}: {}", path_, aside, std::strerror(errno)));
  spdlog::error("{}: a new store begins, empty; the journal of the one before is now {}", settings.name, aside);
  return server;
}

Result<std::unique_ptr<clover::MetadataServer>> StoreStory::recall(const MetadataSettings& settings,
                                                                   Directory& directory, Duration patience) {
  const auto story = JournalFile::read(path_);
  if (!story) return tl::unexpected(story.error());
  if (!*story) return nullptr;
  std::vector<clover::Home> homes;
  std::uint32_t number = 0;  // of a store that began when they had none
  const json store = json::parse((*story)->store, nullptr, false);
  try {
    if (store.at("make") != make_of(settings)) {
      return fail(fmt::format(
          "the store in {} is of another make ({}): give the flags it was made with; {}, without what was stored",
          path_, store.at("make").dump(), kBeginAnew));
    }
    for (const json& home : store.at("homes")) homes.push_back(home_from(home));
    if (store.contains("number")) number = number_at<std::uint32_t>(store, "number");
  } catch (const json::exception&) {
    return fail(fmt::format("{} is no journal of a store; {}", path_, kBeginAnew));
  }
  auto server = build(settings, homes, number);
  if (!server) return server;
  for (const auto& record : (*story)->records) {
    if (!(*server)->replay(record))
      return fail(fmt::format("{} does not tell one story; {}, without what was stored", path_, kBeginAnew));
  }
  const auto found = wait_for_memory(**server, homes, settings, directory, patience);
  if (!found) return tl::unexpected(found.error());
  if (*found) return server;
  spdlog::error("{}: none of the memory that the store lay in is there any more", settings.name);
  is_lost_ = true;
  return nullptr;
}

Result<void> StoreStory::begin(Time now, clover::MetadataServer& server) {
  server.restart(now);
  server.awake(now);
  return write_anew(now, server);
}

// A second or two for some million keys.
Result<void> StoreStory::write_anew(Time now, clover::MetadataServer& server) {
  const auto begun = std::chrono::steady_clock::now();
  auto written = journal_.begin(store_, server.state(now));
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begun;
  const Duration spent = Duration::nanoseconds(took.count());
  if (!written) next_try_ = now + std::max(kPause, spent * kPauses);
  return written;
}

void StoreStory::keep(Time now, clover::MetadataServer& server) {
  const bool failed = journal_.failed();
  if (!failed && !journal_.wants_to_begin_again()) return;
  const bool is_news = failed && !failed_;  // and has left its room on the disk
  if (now < next_try_ && !is_news) return;
  if (is_news)
    spdlog::error("{} cannot be written; until it can, the store does not survive the death of this process", path_);
  const auto begun = write_anew(now, server);
  if (!begun && !told_) spdlog::error("{}", begun.error().message);
  if (begun && told_) spdlog::info("{} is written again", path_);
  told_ = !begun;
  failed_ = journal_.failed();
}

}  // namespace sluice::rack
