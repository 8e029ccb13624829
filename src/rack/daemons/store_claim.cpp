#include "rack/daemons/store_claim.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "nic/run_for.h"
#include "rack/endpoint/remote_nodes.h"
#include "rack/endpoint/store_mark.h"
#include "rack/endpoint/store_memory.h"

namespace sluice::rack {
namespace {

constexpr Duration kFarewell = Duration::milliseconds(20);

struct Look {
  std::string node;
  std::optional<StoreMark> mark{};
};

remote::Task<void> look_at(remote::RemoteMemory& memory, remote::RemoteAddress region, std::uint64_t length,
                           Look& look) {
  look.mark = co_await read_mark(memory, region, length);
}

// Connections to memory nodes for as long as it lives.
class Lookout {
 public:
  Lookout(Endpoint& endpoint, const Snapshot& snapshot)
      : loop_(endpoint.loop()),
        scheduler_(std::make_unique<remote::Scheduler>()),
        coroutines_(*scheduler_),
        nodes_(endpoint.connector(), *scheduler_, {}) {
    loop_.add(nodes_);
    loop_.add(coroutines_);
    nodes_.set_nodes(loop_.now(), snapshot);
  }
  // What is under way ends before the scheduler goes.
  ~Lookout() {
    nodes_.set_nodes(loop_.now(), {});
    run_for(kFarewell, [] { return false; });
    loop_.remove(coroutines_);
    loop_.remove(nodes_);
    scheduler_.reset();
  }

  Result<void> look(const Snapshot& snapshot, std::vector<Look>& looks, Duration patience) {
    const auto is_connected = [&] { return nodes_.up() == snapshot.nodes.size(); };
    if (!run_for(patience, is_connected)) return fail(nodes_.problems());
    for (std::size_t i = 0; i < looks.size(); ++i) {
      const NodeRecord& node = snapshot.nodes[i];
      const RegionRecord& region = node.description.regions.front();
      const remote::RemoteAddress at{node.id, remote::RegionKey(region.key), region.address};
      scheduler_->spawn(look_at(nodes_.memory(), at, region.length, looks[i]));
    }
    run_for(patience, [&] { return scheduler_->live() == 0; });
    for (const Look& look : looks) {
      if (!look.mark) return fail(fmt::format("{} does not answer", look.node));
    }
    return {};
  }

 private:
  bool run_for(Duration patience, const std::function<bool()>& done) { return nic::run_for(loop_, patience, done); }

  nic::PollLoop& loop_;
  std::unique_ptr<remote::Scheduler> scheduler_;
  nic::SchedulerPoll coroutines_;
  RemoteNodes nodes_;
};

}  // namespace

Result<void> check_unclaimed(Endpoint& endpoint, std::span<const clover::Home> homes, Duration patience) {
  auto snapshot = endpoint.directory().nodes();
  if (!snapshot) return tl::unexpected(snapshot.error());
  if (auto may = check_makes_store(*snapshot, endpoint.node()); !may) return may;
  std::erase_if(snapshot->nodes, [&](const NodeRecord& node) {
    const auto is_it = [&](const clover::Home& home) { return home.region.base.node == node.id; };
    return node.state != NodeState::kReady || node.description.regions.empty() || std::ranges::none_of(homes, is_it);
  });
  if (snapshot->nodes.size() != homes.size()) return fail("a memory node has left meanwhile; try again");
  std::vector<Look> looks;
  for (const NodeRecord& node : snapshot->nodes) looks.push_back({node.description.name});
  Lookout lookout(endpoint, *snapshot);
  if (const auto seen = lookout.look(*snapshot, looks, patience); !seen)
    return fail(fmt::format("whether a FUSEE store or a Sherman tree is there is not known: {}", seen.error().message));
  for (const Look& look : looks) {
    if (*look.mark != StoreMark::kNone)
      return fail(
          fmt::format("{} holds {}; `sluice rack down`, then `sluice rack up` starts a rack whose memory is "
                      "empty",
                      look.node, to_string(*look.mark)));
  }
  return {};
}

}  // namespace sluice::rack
