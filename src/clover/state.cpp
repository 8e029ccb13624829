// All that the metadata server and its account of slots know, as one record, so that a journal need not go back to the beginning.
#include <algorithm>
#include <utility>

#include "clover/metadata.h"
#include "clover/records.h"

namespace sluice::clover {
namespace {

using Bytes = std::vector<std::uint8_t>;

void put_time(Bytes& out, Time t) { put_number(out, static_cast<std::uint64_t>(t.since_start().picoseconds())); }
Time take_time(MessageReader& in) { return Time::at(Duration::picoseconds(static_cast<std::int64_t>(in.take64()))); }

void put_count(Bytes& out, std::size_t count) { put_number(out, static_cast<std::uint64_t>(count)); }

// A count of entries of at least `bytes` each: what cannot be there reads as none, and makes the reading end as not sound.
std::size_t take_count(MessageReader& in, std::size_t bytes, bool& sound) {
  const std::uint64_t count = in.take64();
  if (count <= in.left() / bytes) return count;
  sound = false;
  return 0;
}

void put_pointers(Bytes& out, const std::vector<NodePointer>& pointers) {
  put_count(out, pointers.size());
  for (const auto pointer : pointers) put_number(out, pointer.word);
}
std::vector<NodePointer> take_pointers(MessageReader& in, bool& sound) {
  std::vector<NodePointer> pointers(take_count(in, 8, sound));
  for (auto& pointer : pointers) pointer.word = in.take64();
  return pointers;
}

}  // namespace

void SlotTable::save(Bytes& out) const {
  for (const auto& space : spaces_) {
    put_count(out, space.table.size());
    for (const auto& slot : space.table) {
      put_number(out, slot.owner);
      put_number(out, static_cast<std::uint8_t>(slot.state));
      put_number(out, slot.generation);
      put_number(out, slot.lacking);
    }
    put_count(out, space.free.size());
    for (const auto index : space.free) put_number(out, index);
  }
  put_count(out, retired_.size());
  for (const auto& retired : retired_) {
    put_time(out, retired.ready);
    put_number(out, retired.pointer.word);
  }
  put_number(out, turn_);
}

bool SlotTable::load(MessageReader& in) {
  bool sound = true;
  std::fill(std::begin(counts_), std::end(counts_), 0);
  counts_[static_cast<std::size_t>(SlotState::kFree)] = capacity_;
  for (auto& space : spaces_) {
    space.table.resize(take_count(in, 7, sound));
    sound = sound && space.table.size() <= space.slots;
    for (auto& slot : space.table) {
      slot.owner = in.take<std::uint32_t>();
      const auto state = in.take<std::uint8_t>();
      slot.generation = in.take<std::uint8_t>();
      slot.lacking = in.take<std::uint8_t>();
      if (state >= kSlotStates) return false;
      set(slot, static_cast<SlotState>(state));
    }
    space.free.resize(take_count(in, 4, sound));
    for (auto& index : space.free) {
      index = in.take<std::uint32_t>();
      sound = sound && index < space.table.size() && space.table[index].state == SlotState::kFree;
    }
  }
  retired_.resize(take_count(in, 16, sound));
  for (auto& retired : retired_) {
    retired.ready = take_time(in);
    retired.pointer.word = in.take64();
    const auto* const slot = find(retired.pointer);
    sound = sound && slot != nullptr && slot->state == SlotState::kRetired;
  }
  turn_ = in.take<std::uint32_t>();
  return sound && in.ok();
}

Bytes MetadataServer::state(Time now) const {
  Bytes out;
  // Nearly all of it: the slots, those free and those retired, the keys, the clients' own. Grown step by step it would take thrice as much for a while.
  std::size_t granted = 0;
  for (const auto& [id, client] : clients_) granted += client.slots.size() + client.last_grant.size();
  out.reserve(touched_slots() * 16 + directory_.size() * 64 + granted * 8 + 4096);
  put_number(out, static_cast<std::uint8_t>(RecordKind::kState));
  put_time(out, now);
  put_number(out, view_);
  put_time(out, view_change_);
  put_number(out, clock_);
  put_number(out, next_client_);
  for (const auto& volume : config_.volumes) {
    put_number(out, volume.live);
    put_number(out, volume.first);
    for (std::size_t j = 0; j < volume.count; ++j) {
      put_number(out, volume.replicas[j].key.value);
      put_number(out, volume.replicas[j].address);
    }
  }
  put_count(out, config_.homes.size());
  for (const auto& home : config_.homes) put_home(out, home);
  put_count(out, leaving_.size());
  for (const auto node : leaving_) put_number(out, node.value);
  put_count(out, dead_.size());
  for (const auto node : dead_) put_number(out, node.value);
  put_time(out, last_gone_);
  put_count(out, suspicions_.size());
  for (const auto& [client, node] : suspicions_) {
    put_number(out, client);
    put_number(out, node.value);
  }
  put_count(out, joins_.size());
  for (const auto& join : joins_) {
    put_number(out, join.volume);
    put_number(out, join.replica);
    put_number(out, join.view);
  }
  put_count(out, client_order_.size());
  for (const auto id : client_order_) {
    const auto& client = clients_.at(id);
    put_number(out, id);
    put_number(out, client.settled);
    put_number(out, client.let_go);
    put_number(out, std::uint64_t{client.last_sequence});
    put_pointers(out, client.last_grant);
    put_pointers(out, client.slots);
  }
  put_count(out, directory_.size());
  const auto put_known = [&out](const Known& known) {
    put_number(out, known.node.word);
    put_number(out, known.told);
    put_number(out, known.stamp);
  };
  for (const auto& [key, entry] : directory_) {
    put_number(out, key);
    put_known(entry.head);
    put_count(out, entry.others.size());
    for (const auto& other : entry.others) put_known(other);
  }
  for (const auto* const queue : {&settles_, &seals_, &orphans_}) {
    put_count(out, queue->size());
    for (const auto& due : *queue) {
      put_time(out, due.due);
      put_number(out, due.key);
      put_number(out, due.node.word);
    }
  }
  slots_.save(out);
  put_duration(out, config_.cursor_lifetime);
  put_duration(out, longest_);
  put_time(out, grace_until_);
  return out;
}

// Volumes name nodes as the store began; the homes, in their order, tell what these are called now.
void MetadataServer::rename_volumes(const std::vector<Home>& before) {
  for (auto& volume : config_.volumes) {
    for (std::size_t j = 0; j < volume.count; ++j) {
      remote::NodeId& node = volume.replicas[j].node;
      const auto home = std::ranges::find_if(before, [&](const Home& h) { return h.region.base.node == node; });
      const auto i = static_cast<std::size_t>(home - before.begin());
      if (home != before.end() && i < config_.homes.size()) node = config_.homes[i].region.base.node;
    }
  }
}

bool MetadataServer::load(MessageReader& in) {
  bool sound = true;
  view_ = in.take<std::uint32_t>();
  view_change_ = take_time(in);
  clock_ = in.take64();
  next_client_ = in.take<std::uint32_t>();
  for (auto& volume : config_.volumes) {
    volume.live = in.take<std::uint8_t>();
    volume.first = in.take<std::uint8_t>();
    if (volume.live >= 1u << volume.count || volume.first >= volume.count) return false;
    for (std::size_t j = 0; j < volume.count; ++j) {
      volume.replicas[j].key = remote::RegionKey(in.take<std::uint32_t>());
      volume.replicas[j].address = in.take64();
    }
  }
  auto before = std::exchange(config_.homes, {});
  config_.homes.resize(take_count(in, 32, sound));
  for (auto& home : config_.homes) home = clover::take_home(in);
  for (std::size_t i = 0; i < std::min(before.size(), config_.homes.size()); ++i)
    config_.homes[i].name = before[i].name;
  rename_volumes(before);
  leaving_.resize(take_count(in, 4, sound));
  for (auto& node : leaving_) node = remote::NodeId(in.take<std::uint32_t>());
  dead_.clear();
  for (std::size_t dead = take_count(in, 4, sound); dead > 0; --dead)
    note_dead(remote::NodeId(in.take<std::uint32_t>()));
  last_gone_ = take_time(in);
  suspicions_.resize(take_count(in, 8, sound));
  for (auto& [client, node] : suspicions_) {
    client = in.take<std::uint32_t>();
    node = remote::NodeId(in.take<std::uint32_t>());
  }
  joins_.resize(take_count(in, 9, sound));
  for (auto& join : joins_) {
    join.volume = in.take<std::uint32_t>();
    join.replica = in.take<std::uint8_t>();
    join.view = in.take<std::uint32_t>();
    if (join.volume >= config_.volumes.size() || join.replica >= config_.volumes[join.volume].count) return false;
  }
  clients_.clear();
  client_order_.resize(take_count(in, 36, sound));
  for (auto& id : client_order_) {
    id = in.take<std::uint32_t>();
    auto& client = clients_[id];
    client.settled = in.take<std::uint32_t>();
    client.let_go = in.take<std::uint32_t>();
    client.last_sequence = static_cast<std::uint32_t>(in.take64());
    client.last_grant = take_pointers(in, sound);
    client.slots = take_pointers(in, sound);
  }
  directory_.clear();
  const auto take_known_from = [&in] {
    Known known;
    known.node.word = in.take64();
    known.told = in.take64();
    known.stamp = in.take64();
    return known;
  };
  for (std::size_t keys = take_count(in, 40, sound); keys > 0; --keys) {
    auto& entry = directory_[in.take64()];
    entry.head = take_known_from();
    entry.others.resize(take_count(in, 24, sound));
    for (auto& other : entry.others) other = take_known_from();
  }
  for (auto* const queue : {&settles_, &seals_, &orphans_}) {
    queue->resize(take_count(in, 24, sound));
    for (auto& due : *queue) {
      due.due = take_time(in);
      due.key = in.take64();
      due.node.word = in.take64();
    }
  }
  // An entry is in settles_ as long as it says so.
  for (const auto& due : settles_) {
    const auto entry = directory_.find(due.key);
    if (entry != directory_.end()) entry->second.settling = true;
  }
  if (!sound || !slots_.load(in)) return false;
  if (in.left() == 0)
    return in.ok();  // of a time when nothing was said about lifetimes: they are taken for what they are now
  config_.cursor_lifetime = take_duration(in);
  longest_ = take_duration(in);
  grace_until_ = take_time(in);
  return in.ok() && in.left() == 0 && longest_ >= config_.cursor_lifetime && longest_ <= Duration::seconds(3600) &&
         check(config_).has_value();
}

}  // namespace sluice::clover
