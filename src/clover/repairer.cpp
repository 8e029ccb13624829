#include "clover/repairer.h"

#include <algorithm>
#include <array>
#include <utility>

namespace sluice::clover {

using remote::NodeId;
using remote::Operation;
using remote::Status;
using remote::Task;

namespace {

constexpr int kWipeAttempts = 8;  // at some slots

bool succeeded(const Operation& operation) { return operation.status == Status::kOk; }

}  // namespace

Repairer::Repairer(remote::RemoteMemory& memory, MetadataServer& server, Duration turn, RepairerConfig config)
    : memory_(memory),
      server_(server),
      turn_(turn),
      config_(std::move(config)),
      buffers_(config_.copies_at_once * server.layout().node_bytes()) {}

Repairer::Seen* Repairer::find(NodeId node, const std::string& name) {
  const auto named = std::ranges::find_if(nodes_, [&](const Seen& seen) { return seen.home.name == name; });
  if (!name.empty() && named != nodes_.end()) return &*named;
  const auto numbered = std::ranges::find_if(nodes_, [&](const Seen& seen) {
    return seen.home.region.base.node == node && (name.empty() || seen.home.name.empty());
  });
  return numbered == nodes_.end() ? nullptr : &*numbered;
}

void Repairer::saw(Time now, const Home& home) {
  Seen* const known = find(home.region.base.node, home.name);
  // Whoever had the number is not there under it any more, though nobody may have said that it went.
  for (auto& seen : nodes_) {
    if (&seen != known && seen.home.region.base.node == home.region.base.node) seen.there = false;
  }
  if (known != nullptr) {
    // Another memory than before: it cannot have been wrongly taken for lost.
    if (known->home.life != home.life) known->again = now;
    known->home = home;
    known->there = true;
    return;
  }
  nodes_.push_back({.home = home, .there = true, .again = now, .pause = turn_ * 8 * config_.lifetimes_out});
}

void Repairer::gone(Time now, NodeId node, const std::string& name) {
  if (Seen* const seen = find(node, name)) {
    if (!seen->there || seen->home.region.base.node != node) return;
    seen->there = false;
  }
  if (server_.has_part_on(node, name)) server_.lose(now, node);
}

Task<void> Repairer::run() {
  while (!stopping_) {
    // All of them before anything is blanked: what one has lost another may be the last to have.
    for (const Seen& seen : nodes_) {
      if (seen.there) server_.see(now(), seen.home);
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].there) co_await take_back(i);
    }
    std::size_t copied = 1;
    while (copied != 0 && !stopping_) copied = co_await copy_some();
    co_await memory_.scheduler().rest_for(turn_);
  }
}

Task<void> Repairer::take_back(std::size_t index) {
  const Home home = nodes_[index].home;
  const auto advice = server_.see(now(), home);
  auto& seen = nodes_[index];
  if (advice == MetadataServer::Advice::kWait) {
    // With what it had it was left out although it lived, and may be again.
    if (!seen.left_out && server_.knows(home)) seen.again = std::max(seen.again, now() + seen.pause);
    seen.left_out = true;
  }
  if (advice != MetadataServer::Advice::kWipe || now() < seen.again) co_return;
  if (config_.is_free && !server_.knows(home)) {
    const bool is_free = co_await config_.is_free(home);
    if (!is_free || !still_there(index, home)) co_return;
  }
  const auto tasks = server_.wipes(home);
  const bool blank = co_await wipe(index, home, tasks);
  if (!blank || !still_there(index, home) || server_.see(now(), home) != MetadataServer::Advice::kWipe) co_return;
  const bool with_what_it_had = server_.knows(home);
  server_.rejoin(now(), home, tasks);
  nodes_[index].left_out = false;
  if (!with_what_it_had) co_return;
  nodes_[index].pause = nodes_[index].pause * 2;
  nodes_[index].again = now() + nodes_[index].pause;
}

// It may have gone, or been another, meanwhile.
bool Repairer::still_there(std::size_t index, const Home& home) const {
  const Seen& now = nodes_[index];
  return now.there && now.home.life == home.life && now.home.region.base == home.region.base;
}

// Nobody else acts on this memory: it is in no view, and all that was submitted under views before has ended. Nor does a zero arrive
// after this: it would take a next word written since.
Task<bool> Repairer::wipe(std::size_t index, Home home, const std::vector<WipeTask>& tasks) {
  const std::array<std::uint8_t, 8> zero{};
  std::vector<Operation> writes;
  writes.reserve(config_.copies_at_once);
  for (const auto& task : tasks) {
    for (std::size_t slot = 0; slot < task.slots;) {
      writes.clear();
      for (; slot < task.slots && writes.size() < config_.copies_at_once; ++slot)
        writes.push_back(remote::write_operation(task.at + slot * server_.layout().slot_bytes(), zero));
      co_await write_zeros(index, writes);
      // A connection that is lost for a moment is no reason to begin anew.
      for (int attempt = 0; std::erase_if(writes, succeeded), !writes.empty(); ++attempt) {
        if (attempt == kWipeAttempts) co_return false;
        co_await memory_.scheduler().sleep_for(turn_);
        if (stopping_ || !still_there(index, home)) co_return false;
        co_await write_zeros(index, writes);
      }
    }
  }
  while (now() < nodes_[index].quiet) {
    co_await memory_.scheduler().sleep_for(turn_);
    if (stopping_ || !still_there(index, home)) co_return false;
  }
  co_return true;
}

Task<void> Repairer::write_zeros(std::size_t index, std::vector<Operation>& writes) {
  co_await memory_.all(writes);
  const auto is_unknown = [](const Operation& operation) { return operation.status == Status::kUnknown; };
  if (std::ranges::any_of(writes, is_unknown)) nodes_[index].quiet = now() + server_.max_flight();
}

Task<std::size_t> Repairer::copy_some() {
  std::vector<CopyTask> tasks(config_.copies_at_once);
  Time until;
  tasks.resize(server_.next_copies(now(), tasks, until));
  if (tasks.empty() || now() >= until) co_return 0;
  const NodeLayout& layout = server_.layout();
  const auto node_of = [&](std::size_t i) {
    return MutableBytes(buffers_).subspan(i * layout.node_bytes(), layout.node_bytes());
  };
  std::vector<Operation> operations;
  for (std::size_t i = 0; i < tasks.size(); ++i)
    operations.push_back(remote::read_operation(tasks[i].from, node_of(i)));
  co_await memory_.all(operations);
  if (now() >= until) co_return 0;
  // What did not arrive comes up again in the next pass.
  std::vector<std::size_t> good;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (operations[i].status != Status::kOk) continue;
    const auto& volume = server_.volumes()[tasks[i].node.volume()];
    const NodeView seen = parse_node(layout, node_of(i));
    if (seen.next != 0 && seen.self(volume.base) == tasks[i].node) {
      good.push_back(i);
    } else {
      server_.not_there(tasks[i]);
    }
  }
  if (good.empty()) co_return 0;
  operations.clear();
  for (const auto i : good)
    operations.push_back(remote::write_operation(tasks[i].to + kKeyOffset, node_of(i).subspan(kKeyOffset)));
  co_await memory_.all(operations);
  std::vector<std::size_t> written;
  for (std::size_t n = 0; n < good.size(); ++n) {
    if (operations[n].status == Status::kOk) written.push_back(good[n]);
  }
  if (now() >= until || written.empty()) co_return 0;
  operations.clear();
  for (const auto i : written)
    operations.push_back(remote::swap_operation(tasks[i].to, 0, parse_node(layout, node_of(i)).next));
  co_await memory_.all(operations);
  std::size_t copied = 0;
  for (std::size_t n = 0; n < written.size(); ++n) {
    if (operations[n].status != Status::kOk) continue;
    server_.copied(tasks[written[n]]);
    ++copied;
  }
  co_return copied;
}

}  // namespace sluice::clover
