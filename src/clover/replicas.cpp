// Metadata server: which replicas are in the view, how one is left out and how it comes back.
#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"
#include "clover/metadata.h"
#include "clover/records.h"

namespace sluice::clover {
namespace {

constexpr std::size_t kScanAtOnce = 1u << 16;  // slots looked at for a batch of copies

// Where replica j of the volume is in the memory (see spread).
remote::RemoteAddress place_of(const Volume& volume, std::size_t j, const Home& home) {
  return home.region.base + j * volume.length;
}

bool fits(const Volume& volume, std::size_t j, const Home& home) {
  return home.region.base.address % 64 == 0 && home.region.length / volume.length > j;
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------ leaving

bool MetadataServer::counts(std::size_t volume, std::size_t j) const {
  return config_.volumes[volume].is_live(j) && std::none_of(joins_.begin(), joins_.end(), [=](const Join& join) {
           return join.volume == volume && join.replica == j;
         });
}

bool MetadataServer::can_leave(std::size_t volume, std::size_t j) const {
  if (!config_.volumes[volume].is_live(j)) return false;
  if (!counts(volume, j)) return true;
  for (std::size_t other = 0; other < config_.volumes[volume].count; ++other) {
    if (other != j && counts(volume, other)) return true;
  }
  return false;  // there is nothing better, and it may come back
}

bool MetadataServer::can_leave(remote::NodeId node) const {
  for (std::size_t v = 0; v < config_.volumes.size(); ++v) {
    for (std::size_t j = 0; j < config_.volumes[v].count; ++j) {
      if (config_.volumes[v].replicas[j].node == node && can_leave(v, j)) return true;
    }
  }
  return false;
}

bool MetadataServer::is_leaving(remote::NodeId node) const {
  return std::find(leaving_.begin(), leaving_.end(), node) != leaving_.end();
}

void MetadataServer::leave_out(Time now, remote::NodeId node) {
  leaving_.push_back(node);
  // All leases on the present view end before, and all that was submitted under them.
  view_change_ = std::max(now + view_lease() + config_.max_flight, old_leases_end());
}

Answer MetadataServer::suspect(Time now, const RequestHeader& header, MessageReader& in) {
  const remote::NodeId node(in.take<std::uint32_t>());
  if (!in.ok() || in.left() != 0) return Answer::kMalformed;
  if (is_leaving(node)) return Answer::kOk;
  if (!can_leave(node)) return Answer::kRefused;
  const std::pair suspicion(header.client, node);
  if (std::find(suspicions_.begin(), suspicions_.end(), suspicion) == suspicions_.end())
    suspicions_.push_back(suspicion);
  const auto sharers =
      std::count_if(suspicions_.begin(), suspicions_.end(), [node](auto& s) { return s.second == node; });
  if (static_cast<std::size_t>(sharers) >= config_.suspicions) leave_out(now, node);
  return Answer::kOk;
}

bool MetadataServer::lose(Time now, remote::NodeId node) {
  advance(now);
  if (is_leaving(node)) return true;
  if (!can_leave(node)) return false;
  std::uint8_t bytes[4];
  store_le(bytes, node.value);
  write_journal(now, RecordKind::kLose, bytes);
  leave_out(now, node);
  return true;
}

void MetadataServer::note_dead(remote::NodeId node) {
  dead_.push_back(node);
  for (auto& volume : config_.volumes) {
    for (std::size_t j = 0; j < volume.count; ++j) {
      if (volume.replicas[j].node == node) volume.dead = static_cast<std::uint8_t>(volume.dead | 1u << j);
    }
  }
}

bool MetadataServer::may_end_early() const {
  return view_change_ != Time::never() && joins_.empty() && dead_.size() == leaving_.size();
}

bool MetadataServer::has_let_go(std::uint32_t client) const {
  const auto found = clients_.find(client);
  return found != clients_.end() && found->second.let_go == view_;
}

// Of those who are not here any more nobody knows what is under way.
bool MetadataServer::all_have_let_go(Time now) const {
  return now >= last_gone_ + config_.max_flight &&
         std::all_of(clients_.begin(), clients_.end(), [this](const auto& c) { return c.second.let_go == view_; });
}

// Where all that count leave and it is not known which of them are dead, they stay: the wrong one would take everything with it.
bool MetadataServer::leaves_now(std::size_t v, std::size_t j) const {
  const Volume& volume = config_.volumes[v];
  if (!can_leave(v, j)) return false;
  if (!counts(v, j) || volume.is_dead(j)) return true;
  for (std::size_t other = 0; other < volume.count; ++other) {
    if (counts(v, other) && !is_leaving(volume.replicas[other].node)) return true;
  }
  return false;
}

// May happen in a request that is not recorded, so it is recorded itself, before any answer names the view.
void MetadataServer::change_view(Time now) {
  // The dead go first: whoever is left as the last that counts stays.
  std::stable_partition(leaving_.begin(), leaving_.end(),
                        [this](remote::NodeId node) { return std::ranges::find(dead_, node) != dead_.end(); });
  for (const auto node : leaving_) {
    for (std::size_t v = 0; v < config_.volumes.size(); ++v) {
      auto& volume = config_.volumes[v];
      for (std::size_t j = 0; j < volume.count; ++j) {
        if (volume.replicas[j].node != node || !leaves_now(v, j)) continue;
        volume.live = static_cast<std::uint8_t>(volume.live & ~(1u << j));
        std::erase_if(joins_, [=](const Join& join) { return join.volume == v && join.replica == j; });
        for (std::size_t k = 0; !volume.is_live(volume.first) && k < volume.count; ++k) {
          if (counts(v, k)) volume.first = static_cast<std::uint8_t>(k);
        }
      }
    }
    std::erase_if(suspicions_, [node](const auto& s) { return s.second == node; });
  }
  for (auto& volume : config_.volumes) volume.dead = 0;
  leaving_.clear();
  dead_.clear();
  view_change_ = Time::never();
  ++view_;
  ++counters_.views;
  std::uint8_t bytes[4];
  store_le(bytes, view_);
  write_journal(now, RecordKind::kView, bytes);
}

Duration MetadataServer::lease_left(Time now) const {
  if (view_change_ == Time::never()) return view_lease();
  return std::clamp(view_change_ - config_.max_flight - now, Duration{}, view_lease());
}

// --------------------------------------------------------------------------------------------------------- coming back

const Home* MetadataServer::home_of(remote::NodeId node) const {
  const auto found = std::find_if(config_.homes.begin(), config_.homes.end(),
                                  [node](const Home& home) { return home.region.base.node == node; });
  return found == config_.homes.end() ? nullptr : &*found;
}

std::string MetadataServer::name_of(remote::NodeId node) const {
  const Home* const home = home_of(node);
  return home == nullptr || home->name.empty() ? "memory node " + std::to_string(node.value) : home->name;
}

const Home* MetadataServer::find_home(const Home& home) const {
  const auto named = std::ranges::find(config_.homes, home.name, &Home::name);
  if (!home.name.empty() && named != config_.homes.end()) return &*named;
  const Home* const numbered = home_of(home.region.base.node);
  const bool is_another = numbered != nullptr && !home.name.empty() && !numbered->name.empty();
  return is_another ? nullptr : numbered;
}

bool MetadataServer::has_part_on(remote::NodeId node, const std::string& name) const {
  const Home* const known = find_home({.region = {.base = {node, {}, 0}}, .name = name});
  return known != nullptr && known->region.base.node == node;
}

// Who has the number now, if any of the store, is not there under it: the two change places.
void MetadataServer::rename(remote::NodeId from, remote::NodeId to) {
  const auto change = [=](remote::NodeId& node) {
    if (node == from || node == to) node = node == from ? to : from;
  };
  for (auto& home : config_.homes) change(home.region.base.node);
  for (auto& volume : config_.volumes) {
    for (std::size_t j = 0; j < volume.count; ++j) change(volume.replicas[j].node);
  }
  for (auto* const nodes : {&leaving_, &dead_, &anew_}) std::ranges::for_each(*nodes, change);
  for (auto& suspicion : suspicions_) change(suspicion.second);
  ++view_;
  ++counters_.views;
}

// A store of old has no names.
void MetadataServer::name_home(const Home& home) {
  for (auto& known : config_.homes) {
    if (known.region.base.node == home.region.base.node && known.name.empty()) known.name = home.name;
  }
}

void MetadataServer::take_home(const Home& home) {
  for (auto& known : config_.homes) {
    if (known.region.base.node != home.region.base.node) continue;
    const std::string name = known.name;  // records do not tell it
    known = home;
    if (known.name.empty()) known.name = name;
  }
}

bool MetadataServer::knows(const Home& home) const {
  const Home* const known = find_home(home);
  return known != nullptr && known->life == home.life;
}

std::size_t MetadataServer::missing() const {
  std::size_t out = 0;
  for (const auto& volume : config_.volumes) {
    for (std::size_t j = 0; j < volume.count; ++j)
      out += static_cast<std::size_t>(volume.live != 0 && !volume.is_live(j));
  }
  return out;
}

// The primary's node serves its name with other memory than the volume lies in, or did when the volume was given up.
bool MetadataServer::is_lost(const Volume& volume) const {
  const std::size_t primary = volume.primary();
  if (primary == volume.count) return true;
  const remote::RemoteAddress& at = volume.replicas[primary];
  const Home* const known = home_of(at.node);
  return known != nullptr && (known->region.base.key != at.key || std::ranges::find(anew_, at.node) != anew_.end());
}

// The replica may be blanked and come back: its volume has another from which it can be copied.
bool MetadataServer::takes_back(const Volume& volume, std::size_t j, const Home& home) const {
  return volume.replicas[j].node == home.region.base.node && !volume.is_live(j) && fits(volume, j, home) &&
         !is_lost(volume);
}

MetadataServer::Advice MetadataServer::see(Time now, const Home& home) {
  advance(now);
  const remote::NodeId node = home.region.base.node;
  const Home* const known = find_home(home);
  if (known == nullptr) return Advice::kNothing;
  if (const remote::NodeId before = known->region.base.node; before != node) {
    std::vector<std::uint8_t> bytes;
    put_number(bytes, before.value);
    put_number(bytes, node.value);
    write_journal(now, RecordKind::kRename, bytes);
    rename(before, node);
  }
  name_home(home);
  std::erase(anew_, node);
  if (known->life != home.life) anew_.push_back(node);
  if (known->life != home.life && (is_leaving(node) || lose(now, node))) {
    if (std::find(dead_.begin(), dead_.end(), node) == dead_.end()) {
      std::uint8_t bytes[4];
      store_le(bytes, node.value);
      write_journal(now, RecordKind::kDead, bytes);
      note_dead(node);
    }
    return Advice::kWait;
  }
  if (is_leaving(node)) return Advice::kWait;
  if (known->life == home.life && known->region.base != home.region.base) {
    rekey(home);
    std::vector<std::uint8_t> bytes;
    put_home(bytes, home);
    write_journal(now, RecordKind::kRekey, bytes);
  }
  for (std::uint32_t v = 0; v < config_.volumes.size(); ++v) {
    const auto& volume = config_.volumes[v];
    const std::size_t primary = volume.primary();
    if (primary == volume.count || volume.replicas[primary].node != node || can_leave(v, primary) || !is_lost(volume))
      continue;
    std::uint8_t bytes[4];
    store_le(bytes, v);
    write_journal(now, RecordKind::kLost, bytes);
    give_up(v);
    // Nobody copies there any more, so the view may be over: as whoever repeats the journal finds before the next record.
    advance(now);
  }
  for (const auto& volume : config_.volumes) {
    for (std::size_t j = 0; j < volume.count; ++j) {
      if (takes_back(volume, j, home)) return Advice::kWipe;
    }
  }
  return Advice::kNothing;
}

// Whoever acts on what is gone is refused, so nobody needs to be waited for.
void MetadataServer::give_up(std::uint32_t volume) {
  config_.volumes[volume].live = 0;
  for (auto* const queue : {&orphans_, &seals_})
    std::erase_if(*queue, [volume](const DueKey& item) { return item.node.volume() == volume; });
  std::erase_if(joins_, [volume](const Join& join) { return join.volume == volume; });
  ++view_;
  ++counters_.views;
}

std::size_t MetadataServer::lost_volumes() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(config_.volumes, [](const Volume& volume) { return volume.live == 0; }));
}

// Whoever acts on the old key is refused, so nobody needs to be waited for. A replica in the memory of an earlier life is not there.
void MetadataServer::rekey(const Home& home) {
  const remote::RegionKey key = home_of(home.region.base.node)->region.base.key;
  for (auto& volume : config_.volumes) {
    for (std::size_t j = 0; j < volume.count; ++j) {
      const remote::RemoteAddress& at = volume.replicas[j];
      if (at.node == home.region.base.node && at.key == key && volume.is_live(j) && fits(volume, j, home))
        volume.replicas[j] = place_of(volume, j, home);
    }
  }
  take_home(home);
  ++view_;
  ++counters_.views;
}

std::vector<WipeTask> MetadataServer::wipes(const Home& home) const {
  std::vector<WipeTask> tasks;
  const Home* const known = home_of(home.region.base.node);
  if (known == nullptr || known->life != home.life) return tasks;
  for (std::uint32_t v = 0; v < config_.volumes.size(); ++v) {
    const auto& volume = config_.volumes[v];
    for (std::size_t j = 0; j < volume.count; ++j) {
      if (takes_back(volume, j, home)) tasks.push_back({v, place_of(volume, j, home), slots_.touched(v)});
    }
  }
  return tasks;
}

void MetadataServer::rejoin(Time now, const Home& home, std::span<const WipeTask> blanked) {
  advance(now);
  const bool has_old_words = knows(home);
  const auto is_blank = [&](std::uint32_t v) {
    return !has_old_words || std::ranges::any_of(blanked, [v](const WipeTask& task) { return task.volume == v; });
  };
  std::vector<std::uint8_t> bytes;
  put_home(bytes, home);
  std::vector<std::uint32_t> without;
  for (std::uint32_t v = 0; v < config_.volumes.size(); ++v) {
    if (!is_lost(config_.volumes[v]) && is_blank(v)) continue;
    without.push_back(v);
    put_number(bytes, v);
  }
  write_journal(now, RecordKind::kRejoin, bytes);
  admit(now, home, without);
}

void MetadataServer::admit(Time now, const Home& home, std::span<const std::uint32_t> without) {
  ++view_;
  ++counters_.views;
  for (std::uint32_t v = 0; v < config_.volumes.size(); ++v) {
    if (std::ranges::find(without, v) != without.end()) continue;
    auto& volume = config_.volumes[v];
    for (std::uint8_t j = 0; j < volume.count; ++j) {
      if (volume.replicas[j].node != home.region.base.node || volume.is_live(j) || !fits(volume, j, home)) continue;
      volume.replicas[j] = place_of(volume, j, home);
      volume.live = static_cast<std::uint8_t>(volume.live | 1u << j);
      slots_.lack_all(v, j);
      Join join;
      join.volume = v;
      join.replica = j;
      join.view = view_;
      join.ready = reusable(now);
      joins_.push_back(join);
      ++counters_.rejoined;
    }
  }
  take_home(home);
}

Answer MetadataServer::settle(const RequestHeader& header, MessageReader& in) {
  const auto view = in.take<std::uint32_t>();
  if (!in.ok() || in.left() != 0) return Answer::kMalformed;
  auto& settled = clients_.at(header.client).settled;
  settled = std::max(settled, std::min(view, view_));
  return Answer::kOk;
}

Answer MetadataServer::let_go(Time now, const RequestHeader& header, MessageReader& in) {
  const auto view = in.take<std::uint32_t>();
  if (!in.ok() || in.left() != 0) return Answer::kMalformed;
  // Of a view that goes on nobody lets go: who did could never act again.
  if (view != view_ || !may_end_early()) return Answer::kRefused;
  clients_.at(header.client).let_go = view;
  advance(now);
  return Answer::kOk;
}

bool MetadataServer::all_settled(std::uint32_t view) const {
  return std::all_of(clients_.begin(), clients_.end(), [view](const auto& c) { return c.second.settled >= view; });
}

std::size_t MetadataServer::next_copies(Time now, std::span<CopyTask> out, Time& until) {
  advance(now);
  until = now + lease_left(now);
  std::vector<NodePointer> nodes(out.size());
  for (std::size_t i = 0; i < joins_.size(); ++i) {
    Join& join = joins_[i];
    if (now < join.ready) continue;
    const auto& volume = config_.volumes[join.volume];
    if (join.at == 0) {
      join.clean = true;
      join.settled = all_settled(join.view);
    }
    const std::size_t found = slots_.find_lacking(join.volume, join.replica, join.at, kScanAtOnce, nodes);
    join.clean = join.clean && found == 0;
    for (std::size_t n = 0; n < found; ++n) {
      out[n] = {nodes[n], volume.locate(nodes[n], volume.primary()), volume.locate(nodes[n], join.replica),
                join.replica, join.view};
    }
    // A whole pass has found nothing that is lacking, after everyone had told what they had done before the replica came.
    if (join.at == 0 && join.clean && join.settled) {
      std::array<std::uint8_t, 8> bytes;
      store_le(bytes.data(), join.volume);
      store_le(bytes.data() + 4, std::uint32_t{join.replica});
      write_journal(now, RecordKind::kCount, bytes);
      count_replica(join.volume, join.replica);
      --i;
    } else if (found != 0) {
      return found;
    }
  }
  return 0;
}

void MetadataServer::count_replica(std::uint32_t volume, std::uint8_t replica) {
  std::erase_if(joins_, [=](const Join& join) { return join.volume == volume && join.replica == replica; });
  ++counters_.restored;
}

Slot* MetadataServer::awaits_copy(const CopyTask& task) {
  const bool current = std::any_of(joins_.begin(), joins_.end(), [&task](const Join& join) {
    return join.volume == task.node.volume() && join.replica == task.replica && join.view == task.view;
  });
  return current ? slots_.find(task.node) : nullptr;
}

void MetadataServer::copied(const CopyTask& task) {
  auto* const slot = awaits_copy(task);
  if (slot == nullptr) return;
  slot->lacking = static_cast<std::uint8_t>(slot->lacking & ~(1u << task.replica));
  ++counters_.copied;
}

// Whoever would link an orphan has submitted that before it became one, when its node had been written. So this one never will be linked. The same of
// one that has been set aside since.
void MetadataServer::not_there(const CopyTask& task) {
  auto* const slot = awaits_copy(task);
  if (slot == nullptr || (slot->state != SlotState::kOrphan && slot->state != SlotState::kSetAside)) return;
  slot->lacking = static_cast<std::uint8_t>(slot->lacking & ~(1u << task.replica));
}

bool MetadataServer::replay_replicas(Time now, RecordKind kind, MessageReader& in) {
  switch (kind) {
    case RecordKind::kLose: {
      const remote::NodeId node(in.take<std::uint32_t>());
      if (!in.ok()) return false;
      leave_out(now, node);
      return true;
    }
    case RecordKind::kDead: {
      const remote::NodeId node(in.take<std::uint32_t>());
      if (!in.ok() || !is_leaving(node)) return false;
      note_dead(node);
      return true;
    }
    case RecordKind::kRekey:
    case RecordKind::kRejoin: {
      const Home home = clover::take_home(in);
      if (!in.ok() || home_of(home.region.base.node) == nullptr) return false;
      if (kind == RecordKind::kRekey) {
        rekey(home);
      } else {
        std::vector<std::uint32_t> without;
        while (in.left() >= 4) without.push_back(in.take<std::uint32_t>());
        admit(now, home, without);
      }
      return true;
    }
    case RecordKind::kCount: {
      const auto volume = in.take<std::uint32_t>();
      const auto replica = in.take<std::uint32_t>();
      if (!in.ok() || volume >= config_.volumes.size() || replica >= config_.volumes[volume].count) return false;
      count_replica(volume, static_cast<std::uint8_t>(replica));
      return true;
    }
    case RecordKind::kRename: {
      const remote::NodeId from(in.take<std::uint32_t>());
      const remote::NodeId to(in.take<std::uint32_t>());
      if (in.ok()) rename(from, to);
      return in.ok();
    }
    case RecordKind::kLost: {
      const auto volume = in.take<std::uint32_t>();
      if (!in.ok() || volume >= config_.volumes.size()) return false;
      give_up(volume);
      return true;
    }
    case RecordKind::kView: {
      const auto view = in.take<std::uint32_t>();
      // Time, or the request before, may have changed it already.
      if (in.ok() && view_ + 1 == view) change_view(now);
      return in.ok() && view_ == view;
    }
    default: return false;
  }
}

}  // namespace sluice::clover
