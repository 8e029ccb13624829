#include "rack/daemons/store_news.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace sluice::rack {
namespace {

// Of the nodes that replicas are missing on.
std::string missing_on(const clover::MetadataServer& server) {
  std::vector<remote::NodeId> nodes;
  for (const clover::Volume& volume : server.volumes()) {
    for (std::size_t j = 0; j < volume.count; ++j) {
      const remote::NodeId node = volume.replicas[j].node;
      if (volume.live != 0 && !volume.is_live(j) && std::ranges::find(nodes, node) == nodes.end())
        nodes.push_back(node);
    }
  }
  std::string names;
  for (const remote::NodeId node : nodes) names += fmt::format("{}{}", names.empty() ? "" : ", ", server.name_of(node));
  return names;
}

}  // namespace

std::optional<StoreNews::Line> StoreNews::look(Time now, const clover::MetadataServer& server) {
  const std::size_t lost = server.lost_volumes();
  if (lost > lost_) {
    lost_ = lost;
    return Line{.text =
                    fmt::format("what {} of {} volumes held is lost with the memory nodes that had it: those keys are "
                                "unavailable until `sluice rack down`; new ones go elsewhere",
                                lost, server.volumes().size())};
  }
  const std::string names = missing_on(server);
  if (!names.empty()) {
    if (!next_) next_ = now + kPatience;
    if (now < *next_) return std::nullopt;
    next_ = now + kAgain;
    told_ = true;
    return Line{
        .text = fmt::format("replicas are missing: the store does not outlive the loss of another memory node until {} "
                            "is back, here or elsewhere, under that name",
                            names)};
  }
  next_.reset();
  if (!told_ || server.joining() != 0) return std::nullopt;
  told_ = false;
  return Line{.is_good = true, .text = "no replica is missing any more"};
}

}  // namespace sluice::rack
