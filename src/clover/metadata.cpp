#include "clover/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "clover/records.h"

namespace sluice::clover {
namespace {

constexpr std::size_t kRecordHeader = 9;
constexpr std::size_t kLooksAtOnce = 1024;  // at pieces of work that may not be any more, for one answer
constexpr std::uint64_t kShortShare =
    8;  // where fewer slots are free than one of so many, clients give back what they have and do not need

bool changes_state(Request type) {
  return type != Request::kLookup && type != Request::kWork && type != Request::kRefresh;
}

bool has_a_body(Request type) {
  return type != Request::kRegister && type != Request::kRefresh && type != Request::kWork && type != Request::kLeave;
}

// kChecked as journals of old have it. Anybody else's is malformed and kept out of the journal, where it would be taken for one of these.
bool is_of_old(const RequestHeader& header, const MessageReader& in) {
  return header.type == Request::kChecked && header.count != 0 && in.left() == std::size_t{header.count} * 8;
}

}  // namespace

Result<void> check(const ServerConfig& config) {
  if (config.value_bytes < kMinValueBytes || config.value_bytes > kMaxValueBytes) {
    return fail(
        fmt::format("clover: value size {}: {} to {} bytes", config.value_bytes, kMinValueBytes, kMaxValueBytes));
  }
  if (config.volumes.empty() || config.volumes.size() > kMaxVolumes) {
    return fail(fmt::format("clover: {} volumes: 1 to {}", config.volumes.size(), kMaxVolumes));
  }
  const NodeLayout layout(config.value_bytes);
  for (const auto& volume : config.volumes) {
    if (volume.count < 1 || volume.count > kMaxReplicas) {
      return fail(fmt::format("clover: a volume has {} replicas: 1 to {}", volume.count, kMaxReplicas));
    }
    if (volume.length < layout.slot_bytes()) {
      return fail(
          fmt::format("clover: a volume of {} bytes holds no node of {}: give the memory nodes more memory, or values "
                      "fewer bytes",
                      volume.length, layout.slot_bytes()));
    }
    for (std::size_t j = 0; j < volume.count; ++j) {
      const auto base = volume.replicas[j].address;
      if (volume.length > kMaxVolumeBytes) {
        return fail(fmt::format("clover: a volume of {} bytes: at most {}", volume.length, kMaxVolumeBytes));
      }
      if (base % 64 != 0 || base > kMaxAddress || volume.length > kMaxAddress - base) {
        return fail(fmt::format("clover: volume at {:#x}: addresses must be 64-aligned and below 2^48", base));
      }
    }
  }
  const auto in_range = [](Duration d) { return d >= Duration::microseconds(10) && d <= Duration::seconds(3600); };
  if (!in_range(config.cursor_lifetime) || !in_range(config.max_flight)) {
    return fail("clover: cursor_lifetime and max_flight: 10 us to an hour each");
  }
  if (config.grant_slots < 1 || config.suspicions < 1)
    return fail("clover: grant_slots and suspicions must be at least 1");
  return {};
}

MetadataServer::MetadataServer(ServerConfig config, Journal* journal)
    : config_(std::move(config)),
      lifetime_asked_(config_.cursor_lifetime),
      longest_(config_.cursor_lifetime),
      journal_(journal),
      layout_(config_.value_bytes),
      slots_(config_.volumes, layout_.slot_bytes()) {
  SLUICE_CHECK(check(config_).has_value());
}

MetadataServer::~MetadataServer() = default;

// ---------------------------------------------------------------------------------------------------------- messages

std::size_t MetadataServer::handle(Time now, ByteView request, MutableBytes response) {
  ++counters_.requests;
  advance(now);
  MessageReader in(request);
  const auto header = take_request_header(in);
  AnswerHeader answer;
  MessageWriter body(response.subspan(kAnswerHeader));
  if (!header) {
    ++counters_.malformed;
    answer.result = Answer::kMalformed;
  } else {
    answer.type = static_cast<std::uint8_t>(static_cast<std::uint8_t>(header->type) | 0x80);
    if (changes_state(header->type) && !is_of_old(*header, in)) write_journal(now, RecordKind::kRequest, request);
    answer.result = serve(now, *header, in, body, answer.count);
    if (answer.result == Answer::kMalformed) ++counters_.malformed;
    if (answer.result == Answer::kRefused) ++counters_.refused;
  }
  SLUICE_CHECK(body.ok());
  const bool good = answer.result != Answer::kMalformed && answer.result != Answer::kExpired;
  answer.view = view_;
  const bool leased = good && !has_let_go(header->type == Request::kRegister ? next_client_ - 1 : header->client);
  answer.lease_us = leased ? static_cast<std::uint32_t>(lease_left(now).microseconds()) : 0;
  answer.work_waits = work_waits(now);
  answer.view_ends = may_end_early();
  const auto room = slots_.room(config_.volumes);
  answer.slots_short = room.free < room.slots / kShortShare;
  answer.clock = clock_;
  MessageWriter head(response);
  put_header(head, answer);
  return kAnswerHeader + body.length();
}

Answer MetadataServer::serve(Time now, const RequestHeader& header, MessageReader& in, MessageWriter& out,
                             std::uint16_t& count) {
  if (!has_a_body(header.type) && in.left() != 0) return Answer::kMalformed;
  if (header.type == Request::kRegister) return enter(now, header, out, count);
  const auto client = clients_.find(header.client);
  if (client == clients_.end() || header.store != config_.store) return Answer::kExpired;
  client->second.until = std::max(client->second.until, now + config_.cursor_lifetime);
  switch (header.type) {
    case Request::kRegister: break;
    case Request::kRefresh: put_current_view(header.client, out, count); return Answer::kOk;
    case Request::kLookup: return look_up(header, in, out, count);
    case Request::kCreate: return create(header, in, out, count);
    case Request::kReport: return report(now, header, in);
    case Request::kSealed: return take_sealed(now, header, in);
    case Request::kAllocate: return allocate(now, header, in, out, count);
    case Request::kRelease:
    case Request::kOrphan: return give_back(now, header, in);
    case Request::kChecked: return take_checked(now, header, in);
    case Request::kWork: return hand_out_work(now, header, out, count);
    case Request::kSuspect: return suspect(now, header, in);
    case Request::kLeave: expire(header.client, now, header.count == 1); return Answer::kOk;
    case Request::kSettled: return settle(header, in);
    case Request::kLetGo: return let_go(now, header, in);
  }
  return Answer::kMalformed;
}

Answer MetadataServer::enter(Time now, const RequestHeader&, MessageWriter& out, std::uint16_t& count) {
  const std::uint32_t id = next_client_++;
  clients_[id].until = now + config_.cursor_lifetime;
  clients_[id].settled = view_;
  if (may_end_early()) clients_[id].let_go = view_;  // it begins with the next
  client_order_.push_back(id);
  next_expiry_ = std::min(next_expiry_, clients_[id].until);
  if (client_order_.size() == 1) next_expiry_ = clients_[id].until;
  put_current_view(id, out, count);
  return Answer::kOk;
}

void MetadataServer::put_current_view(std::uint32_t client, MessageWriter& out, std::uint16_t& count) const {
  StoreView view{.client = client,
                 .value_bytes = config_.value_bytes,
                 .cursor_lifetime = config_.cursor_lifetime,
                 .max_flight = config_.max_flight,
                 .number = view_,
                 .volumes = config_.volumes,
                 .store = config_.store};
  // Clients of old take the first replica where none lives: what they do there is refused.
  for (auto& volume : view.volumes) {
    for (std::size_t j = 0; volume.is_lost() && j < volume.count; ++j) volume.replicas[j].key = remote::RegionKey(0);
  }
  count = static_cast<std::uint16_t>(view.volumes.size());
  put_view(out, view);
}

Answer MetadataServer::look_up(const RequestHeader& header, MessageReader& in, MessageWriter& out,
                               std::uint16_t& count) {
  if (header.count > kMaxSlotsPerMessage || in.left() != std::size_t{header.count} * 8) return Answer::kMalformed;
  for (; count < header.count; ++count) {
    ++counters_.lookups;
    const auto entry = directory_.find(in.take64());
    out.put(entry == directory_.end() ? std::uint64_t{0} : entry->second.head.node.word);
  }
  return Answer::kOk;
}

Answer MetadataServer::create(const RequestHeader& header, MessageReader& in, MessageWriter& out,
                              std::uint16_t& count) {
  if (header.count != 1 || in.left() != 16) return Answer::kMalformed;
  const Key key = in.take64();
  const NodePointer node{in.take64()};
  auto* const slot = slots_.find(node);
  if (slot == nullptr || slot->owner != header.client) return Answer::kRefused;
  const auto entry = directory_.find(key);
  // In another key's chain, as somebody says who reported it too late.
  if (slot->state == SlotState::kLive && (entry == directory_.end() || !names(entry->second, node)))
    return Answer::kRefused;
  count = 1;
  if (slot->state == SlotState::kLive || slot->is_spent()) {  // asked again, perhaps already superseded
    out.put(node.word);
    return Answer::kOk;
  }
  if (entry != directory_.end()) {
    out.put(entry->second.head.node.word);
    return Answer::kExists;
  }
  if (is_given_up(node)) return Answer::kRefused;  // lost since it was written
  slots_.make_live(*slot);
  // What is reported of a chain that the key had before comes from before this, however late: so the stamp is one that nobody can have had then.
  ++clock_;
  directory_[key].head = {.node = node, .told = clock_, .stamp = clock_};
  ++counters_.created;
  out.put(node.word);
  return Answer::kOk;
}

Answer MetadataServer::report(Time now, const RequestHeader& header, MessageReader& in) {
  if (in.left() != std::size_t{header.count} * 24) return Answer::kMalformed;
  for (std::size_t i = 0; i < header.count; ++i) {
    Link link;
    link.key = in.take64();
    link.node.word = in.take64();
    link.stamp = in.take64();
    take_link(now, link);
  }
  return Answer::kOk;
}

Answer MetadataServer::allocate(Time now, const RequestHeader& header, MessageReader& in, MessageWriter& out,
                                std::uint16_t& count) {
  if (in.left() != 8 && in.left() != 16) return Answer::kMalformed;
  auto& client = clients_.at(header.client);
  const auto ahead = static_cast<std::int32_t>(header.sequence - client.last_sequence);
  if (ahead < 0) return Answer::kRefused;  // late: it has asked again since
  const std::uint64_t wanted = in.take64();
  const std::uint64_t volume = in.left() == 8 ? in.take64() : ~std::uint64_t{0};
  // Else the same answer once more, also when it was that there is no room.
  if (ahead != 0) {
    client.last_sequence = header.sequence;
    // No one client takes all that is left.
    const std::uint64_t share = free_slots() / (2 * clients_.size()) + 1;
    const auto most = std::min({wanted, share, std::uint64_t{config_.grant_slots}, std::uint64_t{kMaxSlotsPerMessage}});
    client.last_grant.resize(most);
    client.last_grant.resize(slots_.allocate(header.client, config_.volumes, volume, client.last_grant));
    client.slots.insert(client.slots.end(), client.last_grant.begin(), client.last_grant.end());
    counters_.grants += client.last_grant.size();
    if (client.slots.size() >= client.tidy_at) tidy(client, header.client);
  }
  if (client.last_grant.empty()) {
    const Time ready = slots_.next_ready();
    const Duration wait = ready == Time::never() ? Duration{} : std::max(ready - now, Duration::microseconds(1));
    out.put(static_cast<std::uint64_t>(wait.microseconds()));
    return Answer::kNoSpace;
  }
  count = static_cast<std::uint16_t>(client.last_grant.size());
  for (const auto pointer : client.last_grant) out.put(pointer.word);
  return Answer::kOk;
}

// kRelease, kOrphan: lists of slots.
Answer MetadataServer::give_back(Time now, const RequestHeader& header, MessageReader& in) {
  if (in.left() != std::size_t{header.count} * 8) return Answer::kMalformed;
  bool all_good = true;
  for (std::size_t i = 0; i < header.count; ++i) {
    const NodePointer pointer = NodePointer{in.take64()}.as(NodeKind::kValue);
    auto* const slot = slots_.find(pointer);
    if (slot == nullptr) {
      all_good = false;
    } else if (slot->state != SlotState::kOwned || slot->owner != header.client) {
      all_good = false;  // linked meanwhile, as others have reported
    } else if (header.type == Request::kRelease) {
      slots_.release(pointer);
    } else {
      make_orphan(now, *slot, pointer);
    }
  }
  return all_good ? Answer::kOk : Answer::kRefused;
}

Answer MetadataServer::take_checked(Time now, const RequestHeader& header, MessageReader& in) {
  const bool names_no_keys = replaying_ && is_of_old(header, in);
  if (!names_no_keys && in.left() != std::size_t{header.count} * 16) return Answer::kMalformed;
  bool all_good = true;
  for (std::size_t i = 0; i < header.count; ++i) {
    const std::optional<Key> key = names_no_keys ? std::nullopt : std::optional(in.take64());
    const NodePointer orphan = NodePointer{in.take64()}.as(NodeKind::kValue);
    auto* const slot = slots_.find(orphan);
    if (slot == nullptr) all_good = false;
    if (slot == nullptr || slot->state != SlotState::kOrphan) continue;
    const auto entry = key ? directory_.find(*key) : directory_.end();
    if (entry != directory_.end()) {
      // It comes before the head of now, if it is linked. The head may still be one before it, until whoever is the head had heard
      // of this.
      slots_.set_aside(*slot);
      entry->second.others.push_back({.node = orphan, .told = ++clock_});
      // Nobody has something to tell that is worth waiting for.
      if (!std::exchange(entry->second.settling, true)) settles_.push_front({now, entry->first, {}});
    } else {
      slots_.retire(orphan, reusable(now));
    }
  }
  return all_good ? Answer::kOk : Answer::kRefused;
}

Answer MetadataServer::hand_out_work(Time now, const RequestHeader& header, MessageWriter& out, std::uint16_t& count) {
  const std::size_t most = std::min<std::size_t>(header.count, kMaxLinksPerMessage);
  const auto put = [&](WorkKind kind, Key key, NodePointer node) {
    out.put(static_cast<std::uint64_t>(kind));
    out.put(key);
    out.put(node.word);
    ++count;
  };
  // Whoever takes it may die: each piece of work comes up again unless its result has arrived by then.
  const Time again = now + config_.cursor_lifetime * 2;
  std::size_t looks = kLooksAtOnce;
  // What is not wanted any more is dropped; so is what nobody can do, as its volume is lost.
  const auto hand_out = [&](std::deque<DueKey>& queue, std::size_t up_to, WorkKind kind, const auto& wanted) {
    for (; count < up_to && looks != 0 && !queue.empty() && queue.front().due <= now; --looks) {
      auto item = queue.front();
      queue.pop_front();
      if (!wanted(item)) continue;
      put(kind, item.key, item.node);
      item.due = again;
      queue.push_back(item);
    }
  };
  const auto is_orphan = [&](DueKey& item) {
    const auto* const slot = slots_.find(item.node);
    return slot != nullptr && slot->state == SlotState::kOrphan && !is_given_up(item.node);
  };
  const auto is_unsettled = [&](DueKey& item) {
    const auto entry = directory_.find(item.key);
    if (entry == directory_.end()) return false;
    item.node = entry->second.head.node;
    entry->second.settling = !entry->second.others.empty() && !is_given_up(item.node);
    return entry->second.settling;
  };
  const auto is_tombstone = [&](DueKey& item) {
    const auto entry = directory_.find(item.key);
    return entry != directory_.end() && entry->second.head.node == item.node && !is_given_up(item.node);
  };
  // None waits for another, however much of that there is: a third is each one's own.
  hand_out(orphans_, most / 3, WorkKind::kOrphan, is_orphan);
  hand_out(settles_, most / 3 * 2, WorkKind::kSettle, is_unsettled);
  hand_out(seals_, most, WorkKind::kSeal, is_tombstone);
  hand_out(settles_, most, WorkKind::kSettle, is_unsettled);
  hand_out(orphans_, most, WorkKind::kOrphan, is_orphan);
  return Answer::kOk;
}

bool MetadataServer::work_waits(Time now) const {
  const auto due = [now](const std::deque<DueKey>& queue) { return !queue.empty() && queue.front().due <= now; };
  return due(orphans_) || due(settles_) || due(seals_);
}

// ------------------------------------------------------------------------------------------------------------ chains

void MetadataServer::retire(Time now, NodePointer node) {
  slots_.retire(node, reusable(now));
  ++counters_.retired;
}

void MetadataServer::take_link(Time now, const Link& link) {
  auto* const slot = slots_.find(link.node);
  if (slot == nullptr || slot->is_spent()) {
    ++counters_.links_stale;
    return;
  }
  const auto found = directory_.find(link.key);
  if (found == directory_.end()) {
    // Its chain was sealed after it. A live slot belongs to some other key's chain: not what the report says.
    if (slot->state != SlotState::kLive) retire(now, link.node);
    return;
  }
  auto& entry = found->second;
  Known known{.node = link.node, .told = clock_ + 1, .stamp = std::min(link.stamp, clock_)};
  if (slot->state == SlotState::kLive) {
    const auto before = take_known(entry, link.node);
    if (!before) return;  // in another key's chain
    known.told = before->told;
    known.stamp = std::max(known.stamp, before->stamp);
    ++counters_.confirmed;
  } else {
    slots_.make_live(*slot);
    ++clock_;
    ++counters_.links;
  }
  supersede(now, entry, known);
  if (!entry.head.node || known.stamp >= entry.head.stamp) std::swap(entry.head, known);
  if (known.node) entry.others.push_back(known);
  if (!entry.others.empty() && !std::exchange(entry.settling, true))
    settles_.push_back({now + config_.cursor_lifetime, link.key, {}});
  if (entry.head.node == link.node && link.node.kind() == NodeKind::kTombstone) {
    seals_.push_back({now + config_.cursor_lifetime, link.key, link.node});
  }
}

bool MetadataServer::names(const Entry& entry, NodePointer node) {
  return entry.head.node == node ||
         std::any_of(entry.others.begin(), entry.others.end(), [node](const Known& k) { return k.node == node; });
}

std::optional<MetadataServer::Known> MetadataServer::take_known(Entry& entry, NodePointer node) {
  if (entry.head.node == node) return std::exchange(entry.head, Known{});
  const auto other =
      std::find_if(entry.others.begin(), entry.others.end(), [node](const Known& k) { return k.node == node; });
  if (other == entry.others.end()) return std::nullopt;
  const Known known = *other;
  entry.others.erase(other);
  return known;
}

void MetadataServer::supersede(Time now, Entry& entry, Known& newer) {
  const std::uint64_t known_by = newer.stamp;
  const auto comes_before = [&](const Known& k) {
    if (k.told > known_by) return false;
    newer.stamp = std::max(newer.stamp, k.stamp);
    retire(now, k.node);
    return true;
  };
  if (entry.head.node && comes_before(entry.head)) entry.head = {};
  std::erase_if(entry.others, comes_before);
}

Answer MetadataServer::take_sealed(Time now, const RequestHeader& header, MessageReader& in) {
  if (header.count != 1 || in.left() != 16) return Answer::kMalformed;
  const Key key = in.take64();
  const NodePointer tail{in.take64()};
  const auto found = directory_.find(key);
  const auto* const slot = slots_.find(tail);
  if (found == directory_.end() || slot == nullptr || slot->is_spent()) return Answer::kOk;  // known
  if (tail.kind() != NodeKind::kTombstone) return Answer::kRefused;
  auto& entry = found->second;
  const bool known = take_known(entry, tail).has_value();
  if (!known && slot->state == SlotState::kLive) return Answer::kRefused;  // in another key's chain
  if (entry.head.node) retire(now, entry.head.node);
  for (const auto& other : entry.others) retire(now, other.node);
  retire(now, tail);
  directory_.erase(found);
  ++counters_.sealed;
  return Answer::kOk;
}

std::uint64_t MetadataServer::touched_slots() const {
  std::uint64_t touched = 0;
  for (std::uint32_t v = 0; v < config_.volumes.size(); ++v) touched += slots_.touched(v);
  return touched;
}

std::size_t MetadataServer::live_versions() const {
  const auto is_live = [this](const Known& known) { return slots_.find(known.node)->state == SlotState::kLive; };
  return std::transform_reduce(
      directory_.begin(), directory_.end(), std::size_t{0}, std::plus<>(), [&is_live](const auto& named) {
        return 1 + static_cast<std::size_t>(std::ranges::count_if(named.second.others, is_live));
      });
}

// ----------------------------------------------------------------------------------------------- time, clients and views

void MetadataServer::awake(Time now) {
  if (!awake_at_) awake_at_ = now;
  advance(now);
}

void MetadataServer::note_awake(Time now) {
  const Duration asleep = now - *awake_at_;
  awake_at_ = now;
  if (asleep < config_.cursor_lifetime / 4) return;
  for (auto& [id, client] : clients_) client.until = client.until + asleep;
  if (next_expiry_ != Time::never()) next_expiry_ = next_expiry_ + asleep;
}

void MetadataServer::advance(Time now) {
  if (awake_at_) note_awake(now);
  if (!replaying_ && now >= next_expiry_) expire_clients(now);
  slots_.reclaim(now);
  if (now >= view_change_) {
    change_view(now);
  } else if (may_end_early() && all_have_let_go(now)) {
    ++counters_.let_go;
    change_view(now);
  }
}

void MetadataServer::expire_clients(Time now) {
  next_expiry_ = Time::never();
  const auto all = client_order_;
  for (const auto id : all) {
    const Time until = clients_.at(id).until;
    if (until > now) {
      next_expiry_ = std::min(next_expiry_, until);
      continue;
    }
    ++counters_.expired_clients;
    std::uint8_t bytes[4];
    store_le(bytes, id);
    write_journal(now, RecordKind::kExpiry, bytes);
    expire(id, now, false);
  }
}

// In a lost volume nobody can look into it: it stays one.
void MetadataServer::make_orphan(Time now, Slot& slot, NodePointer pointer) {
  slots_.make_orphan(slot);
  ++counters_.orphans;
  if (!is_given_up(pointer)) orphans_.push_back({now + config_.max_flight, 0, pointer});
}

// Its slots may hold linked versions that nobody has reported: they become orphans.
void MetadataServer::expire(std::uint32_t id, Time now, bool clean) {
  auto& client = clients_.at(id);
  for (const auto pointer : client.slots) {
    auto* const slot = slots_.find(pointer);
    if (slot == nullptr || slot->state != SlotState::kOwned || slot->owner != id) continue;
    make_orphan(now, *slot, pointer);
  }
  if (!clean && client.let_go != view_) last_gone_ = now;
  clients_.erase(id);
  std::erase(client_order_, id);
}

// Forgets slots that are no longer the client's own.
void MetadataServer::tidy(ClientState& client, std::uint32_t id) {
  std::erase_if(client.slots, [this, id](NodePointer pointer) {
    const auto* const slot = slots_.find(pointer);
    return slot == nullptr || slot->state != SlotState::kOwned || slot->owner != id;
  });
  client.tidy_at = std::max<std::size_t>(1024, client.slots.size() * 2);
}

// ----------------------------------------------------------------------------------------------------------- journal

void MetadataServer::write_journal(Time now, RecordKind kind, ByteView bytes) {
  if (journal_ == nullptr || replaying_) return;
  std::vector<std::uint8_t> record(kRecordHeader + bytes.size());
  record[0] = static_cast<std::uint8_t>(kind);
  store_le(record.data() + 1, static_cast<std::uint64_t>(now.since_start().picoseconds()));
  std::copy(bytes.begin(), bytes.end(), record.begin() + kRecordHeader);
  journal_->append(record);
}

bool MetadataServer::replay(ByteView record) {
  if (record.size() < kRecordHeader) return false;
  replaying_ = true;
  const auto at = static_cast<std::int64_t>(load_le<std::uint64_t>(record.data() + 1));
  const Time now = last_record_ = Time::at(Duration::picoseconds(at));
  const auto bytes = record.subspan(kRecordHeader);
  switch (static_cast<RecordKind>(record[0])) {
    case RecordKind::kRequest: {
      std::uint8_t answer[remote::kMaxMessage];
      handle(now, bytes, answer);
      return true;
    }
    case RecordKind::kExpiry: {
      if (bytes.size() != 4 || !clients_.contains(load_le<std::uint32_t>(bytes.data()))) return false;
      advance(now);
      expire(load_le<std::uint32_t>(bytes.data()), now, false);
      return true;
    }
    case RecordKind::kRestart: {
      MessageReader in(bytes);
      // Records of old do not say.
      const Duration lifetime = bytes.empty() ? config_.cursor_lifetime : take_duration(in);
      const Duration longest = bytes.empty() ? longest_ : take_duration(in);
      renew(now, lifetime, longest);
      return in.ok();
    }
    case RecordKind::kState: {
      MessageReader in(bytes);
      return load(in);
    }
    default: {
      MessageReader in(bytes);
      advance(now);
      return replay_replicas(now, static_cast<RecordKind>(record[0]), in);
    }
  }
}

void MetadataServer::restart(Time now) {
  const bool may_hold_longer = (replaying_ ? last_record_ : now) < grace_until_;
  replaying_ = false;
  awake_at_.reset();
  const Duration before = std::max(config_.cursor_lifetime, may_hold_longer ? longest_ : Duration{});
  const Duration longest = std::max(lifetime_asked_, before);
  std::vector<std::uint8_t> bytes;
  put_duration(bytes, lifetime_asked_);
  put_duration(bytes, longest);
  write_journal(now, RecordKind::kRestart, bytes);
  renew(now, lifetime_asked_, longest);
}

// Time has begun again, perhaps at a smaller number: every wait starts anew.
void MetadataServer::renew(Time now, Duration lifetime, Duration longest) {
  if (lifetime != config_.cursor_lifetime) {
    // Whoever goes by another lifetime has nothing but the lease of then, and learns this one before it acts under the next view.
    ++view_;
    ++counters_.views;
  }
  config_.cursor_lifetime = lifetime;
  longest_ = longest;
  grace_until_ = now + longest + config_.max_flight;
  slots_.restart(grace_until_);
  for (auto& [id, client] : clients_) client.until = now + longest;
  next_expiry_ = clients_.empty() ? Time::never() : now + longest;
  for (auto& item : orphans_) item.due = reusable(now);
  for (auto& item : settles_) item.due = reusable(now);
  for (auto& item : seals_) item.due = reusable(now);
  if (view_change_ != Time::never()) view_change_ = reusable(now);
  last_gone_ = now;
  for (auto& join : joins_) {
    join.ready = reusable(now);
    join.at = 0;
  }
}

std::string MetadataServer::summary() const {
  using enum SlotState;
  return fmt::format(
      "{} keys, {} clients, view {}; slots: {} free, {} granted, {} live, {} retired, {} orphans, "
      "{} set aside",
      keys(), clients(), view_, slots_.count(kFree), slots_.count(kOwned), slots_.count(kLive), slots_.count(kRetired),
      slots_.count(kOrphan), slots_.count(kSetAside));
}

}  // namespace sluice::clover
