#include "swordbox/clover_rule.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/bytes.h"
#include "wire/frame_editor.h"

namespace sluice::swordbox {

using wire::Kind;

namespace {

std::uint64_t region_hash(const NetAddress& server, wire::RKey rkey) {
  return mix(server.low * 3 + server.high + (std::uint64_t{rkey.value} << 32));
}

// A next word or key in a node or packet: Clover's machines are little-endian.
std::uint64_t word_at(ByteView bytes, std::size_t offset) { return load_le<std::uint64_t>(bytes.data() + offset); }

}  // namespace

CloverRule::CloverRule(const CloverConfig& config, Connections& connections, Counters& counters)
    : config_(config),
      connections_(connections),
      counters_(counters),
      regions_index_(kMaxRegions),
      regions_fixed_(false),
      far_(config.history_entries * sizeof(HistoryEntry) + config.tracked_keys * sizeof(KeyState) > kNearBytes),
      history_(config.history_entries),
      keys_(std::max(config.tracked_keys, config.most_tracked_keys)),
      links_(config.open_links),
      operations_(connections.capacity(), config.ring),
      proven_(connections.capacity(), kNoRegion),
      waiting_(std::size_t{connections.capacity()} * 2) {
  regions_.reserve(kMaxRegions);
  for (const Region& region : config.regions) region_index(NetAddress::from(region.server), region.rkey);
  regions_fixed_ = !config.regions.empty();
  repairs_.reserve(config.open_links);
  ready_.reserve(waiting_.size() * 2);
}

void CloverRule::account(std::vector<MemoryUse>& uses) const {
  const auto add = [&](std::string_view table, std::size_t entries, std::size_t bytes, bool lazy = false) {
    uses.push_back({Feature::kSteering, table, entries, bytes, lazy});
  };
  add("nodes written lately (the hashed history)", history_.size(), history_.bytes());
  add("keys with their tails", keys_.capacity(), keys_.bytes());
  add("links under way, with their CAS", links_.capacity(), links_.bytes());
  add("what was done to each operation, by PSN", connections_.capacity(), operations_.bytes(), true);
  add("count-min sketch", 1, sketch_.bytes());
  add("who waits, what is proven", connections_.capacity(), bytes_of(waiting_) + bytes_of(proven_));
}

std::uint16_t CloverRule::find_region(const NetAddress& server, wire::RKey rkey) {
  const std::uint64_t hash = region_hash(server, rkey);
  const std::uint32_t found = regions_index_.find(hash, [&](std::uint32_t i) { return is_region(i, server, rkey); });
  if (found != kNone) return last_region_ = static_cast<std::uint16_t>(found);
  if (regions_fixed_ || regions_.size() == kMaxRegions) return kNoRegion;
  regions_.push_back({server, rkey});
  regions_index_.insert(hash, static_cast<std::uint32_t>(regions_.size() - 1));
  return static_cast<std::uint16_t>(regions_.size() - 1);
}

void CloverRule::shift_address(const Judged& packet, std::int64_t shift) {
  if (shift == 0) return;
  // RETH and AtomicETH both begin with the address.
  const std::size_t at = packet.parsed.extended_offset();
  const std::uint64_t address = load_be<std::uint64_t>(packet.frame + at) + static_cast<std::uint64_t>(shift);
  wire::patch_word(packet.frame, packet.parsed, at, swap_bytes(address));
}

std::optional<std::uint64_t> CloverRule::tail_of(std::uint64_t key) const {
  const std::uint32_t i = keys_.find(key);
  if (i == kNone || keys_[i].tail == 0) return std::nullopt;
  return address_of(keys_[i].tail);
}

std::vector<CloverRule::HotKey> CloverRule::hottest(std::size_t most) const {
  std::vector<HotKey> keys;
  for (const std::uint32_t i : keys_.places()) {
    const KeyState& state = keys_[i];
    keys.push_back({state.key, sketch_.estimate(state.key), state.opened, address_of(state.tail), state.use});
  }
  const std::size_t n = std::min(most, keys.size());
  std::ranges::partial_sort(keys, keys.begin() + static_cast<std::ptrdiff_t>(n), std::greater<>{},
                            [](const HotKey& k) { return std::pair(k.heat, ~k.key); });
  keys.resize(n);
  return keys;
}

// ------------------------------------------------------------------------------------------------------------ requests

// The right one as long as there is one region; with more the guess may be wrong, which costs nothing.
std::optional<Place> CloverRule::place_to_prefetch(const std::uint8_t* frame, const wire::ParsedFrame& parsed) const {
  const wire::OpcodeTraits& traits = parsed.traits();
  const std::uint8_t* const at = frame + parsed.extended_offset();
  if (traits.has(wire::Extended::kReth)) return place_of(0, load_be<std::uint64_t>(at) & kAddressBits);
  if (traits.kind != Kind::kCompareSwap) return std::nullopt;
  return place_of(0, config_.layout.address_of(load_be<std::uint64_t>(at + 12)) & kAddressBits);
}

void CloverRule::prefetch_early(const std::uint8_t* frame, const wire::ParsedFrame& parsed) const {
  if (const auto place = place_to_prefetch(frame, parsed)) history_.prefetch(*place);
}

bool CloverRule::prefetch(const Judged& packet, int step) const {
  const bool is_request = packet.parsed.traits().is_request;
  const std::uint8_t server_end = is_request ? packet.end : static_cast<std::uint8_t>(1 - packet.end);
  if (step == 0) operations_.prefetch(packet.index, server_end, packet.psn());
  if (!far_) return false;
  if (!is_request) {
    if (step == 0) return true;
    const Operation* const op = operations_.find(packet.index, server_end, packet.psn());
    if (op == nullptr) return false;
    if (op->kind == Operation::Kind::kLink) links_.prefetch(op->subject);
    if (op->kind != Operation::Kind::kTry) keys_.prefetch_state(op->key);
    return false;
  }
  const auto place = place_to_prefetch(packet.frame, packet.parsed);
  const std::uint32_t entry = place ? history_.find(*place) : kNone;
  if (entry == kNone) return false;
  const HistoryEntry& node = history_[entry];
  if (node.has_key_place()) {
    keys_.prefetch_state(node.key_place());
    return false;
  }
  if (step == 0) {
    keys_.prefetch(node.key);
  } else {
    keys_.prefetch_likely(node.key);
  }
  return true;
}

Verdict CloverRule::on_request(Time now, const Judged& packet) {
  now_ = now;
  std::uint32_t span = 1;
  if (packet.parsed.traits().kind == Kind::kReadRequest) {
    span = std::max(1u, read_span(packet.connection, packet.reth().length));
  }
  operations_.begin(packet.index, packet.end, packet.psn(), span);
  switch (packet.parsed.traits().kind) {
    case Kind::kWrite: return packet.parsed.traits().starts_message() ? on_write(now, packet) : Verdict::kPlain;
    case Kind::kCompareSwap: return on_cas(now, packet);
    case Kind::kReadRequest: return on_read(packet);
    case Kind::kFetchAdd:
    case Kind::kMaskedCompareSwap: return on_other_atomic(packet);
    default: return Verdict::kPlain;
  }
}

Verdict CloverRule::on_repeated_request(Time now, const Judged& packet) {
  now_ = now;
  const Kind kind = packet.parsed.traits().kind;
  Operation* op = nullptr;
  if (kind == Kind::kReadRequest) op = operations_.find_read(packet.index, packet.end, packet.psn());
  if (kind == Kind::kCompareSwap) op = operations_.find(packet.index, packet.end, packet.psn());
  if (op == nullptr) {
    const auto cas = kind == Kind::kCompareSwap ? parse_cas(packet) : std::nullopt;
    return cas && fenced(now, *cas) ? Verdict::kCasFenced : Verdict::kRepeated;
  }
  if (op->kind == Operation::Kind::kLink && awaits_answer(*op)) {
    // The client sees to it itself.
    links_.leave_line(op->subject);
    links_.line_up(op->subject, now + config_.repair_after);
  }
  if (op->shift == 0) return Verdict::kRepeated;
  shift_address(packet, op->shift);
  return Verdict::kRepeatedSteered;
}

// The responder refuses what is out of order; but reordered on its way to it, the packet may after all be in order there.
bool CloverRule::may_pass_out_of_order(const Judged& packet) { return !packet.parsed.traits().is_atomic(); }

bool CloverRule::write_acknowledged(const HistoryEntry& entry) const {
  if (entry.state() == NodeState::kReady) return true;
  if (entry.state() != NodeState::kWritten) return false;
  const auto awaited = entry.awaited();
  const Connection& connection = connections_[awaited.connection];
  return connection.alive && (connection.generation & 0xF) == awaited.generation &&
         connection.to[awaited.end].acknowledged.since(awaited.psn) >= 0;
}

Verdict CloverRule::on_write(Time now, const Judged& packet) {
  const auto reth = packet.reth();
  const std::uint16_t region = region_index(packet.connection.address[packet.end], reth.rkey);
  if (region == kNoRegion || reth.virtual_address > kAddressBits) return Verdict::kPlain;
  const Place place = place_of(region, reth.virtual_address);
  std::uint32_t entry = history_.find(place);
  if (entry != kNone) {
    // The address is used anew: whatever was believed of it is over.
    const NodeState state = history_[entry].state();
    if (state == NodeState::kTail || state == NodeState::kOpen) {
      const std::uint32_t key = keys_.find(history_[entry].key);
      if (key != kNone && keys_[key].tail == place) lose_tail(key);
      const LinkIndex newest = key != kNone ? keys_[key].last_open : kNone;
      if (newest != kNone && links_[newest].entry == entry) links_[newest].overtaken = true;
      if (state == NodeState::kOpen) return Verdict::kPlain;
    }
    history_[entry].become_past(now_);
  }

  const ChainLayout& layout = config_.layout;
  const ByteView bytes = wire::payload(packet.frame, packet.parsed);
  const std::size_t needed = std::max(layout.key_offset, layout.next_offset) + std::size_t{8};
  const bool is_node = reth.length >= layout.min_node_bytes && reth.length <= layout.max_node_bytes &&
                       reth.length % 4 == 0 && bytes.size() >= needed &&
                       layout.is_free(word_at(bytes, layout.next_offset));
  if (!is_node) {
    if (entry != kNone) history_[entry].become_empty();
    return Verdict::kPlain;
  }
  // Of a connection from before it may come again, because its ACK was lost with the box: then its node may hang in a chain already.
  const bool is_from_before = now < config_.fenced_until && !packet.connection.set_up_anew();
  if (now < config_.trust_writes_from || is_from_before) return Verdict::kPlain;
  if (entry == kNone) entry = history_.claim(place);
  if (entry == kNone) return Verdict::kPlain;
  const auto packets = static_cast<std::uint32_t>((reth.length + bytes.size() - 1) / bytes.size());
  HistoryEntry& node = history_[entry];
  node.key = word_at(bytes, layout.key_offset);
  node.free_word = word_at(bytes, layout.next_offset);
  node.words = static_cast<std::uint16_t>(reth.length / 4);
  node.set_state(NodeState::kWritten);
  node.await({packet.index & 0xFFFF, packet.end, static_cast<std::uint8_t>(packet.connection.generation & 0xF),
              packet.psn() + (packets - 1)});
  return Verdict::kNodeWritten;
}

// Where the node lies that the CAS wants to link.
std::optional<Place> CloverRule::node_place(const Cas& cas) const {
  const ChainLayout& layout = config_.layout;
  if (!layout.is_pointer(cas.swap)) return std::nullopt;
  std::uint16_t region = cas.region;
  if (!layout.regions_by_volume.empty()) {
    const auto volume = cas.swap >> layout.volume_shift & layout.volume_mask;
    if (volume >= layout.regions_by_volume.size()) return std::nullopt;
    region = layout.regions_by_volume[volume];
  }
  const std::uint64_t address = layout.address_of(cas.swap);
  if (address > kAddressBits) return std::nullopt;
  return place_of(region, address);
}

bool CloverRule::must_wait(const Cas& cas, bool only_if_free, std::uint32_t& key) {
  const std::uint32_t entry = history_.find(cas.at);
  if (entry == kNone) return false;
  const HistoryEntry& node = history_[entry];
  if (node.state() != NodeState::kTail && node.state() != NodeState::kOpen) return false;
  if (only_if_free && cas.compare != node.free_word) return false;  // it will fail
  key = keys_.find(node.key);
  if (key == kNone) return false;
  if (keys_[key].first_open != kNone && !keys_[key].broken) {
    if (config_.order != Order::kPassing) return true;
    Link& link = links_[keys_[key].last_open];
    if (link.entry == entry) link.overtaken = true;
  }
  if (keys_[key].tail == cas.at) lose_tail(key);
  return false;
}

Verdict CloverRule::wait_for_turn(const Judged& packet, std::uint32_t key) {
  if (!packet.can_hold) return Verdict::kHoldFull;
  wait(keys_[key].requests, token(packet.index, packet.end), key, true);
  return Verdict::kHeldRequest;
}

Verdict CloverRule::on_other_atomic(const Judged& packet) {
  // Masked or not, address and key come first.
  const auto eth = wire::AtomicEth::parse(packet.frame + packet.parsed.extended_offset());
  const std::uint16_t region = region_index(packet.connection.address[packet.end], eth.rkey);
  if (region == kNoRegion || eth.virtual_address > kAddressBits) return Verdict::kPlain;
  std::uint32_t key = kNone;
  const Cas cas{.at = place_of(region, eth.virtual_address - config_.layout.next_offset)};
  return must_wait(cas, false, key) ? wait_for_turn(packet, key) : Verdict::kPlain;
}

std::optional<CloverRule::Cas> CloverRule::parse_cas(const Judged& packet) {
  const auto eth = wire::get<wire::AtomicEth>(packet.frame, packet.parsed);
  const std::uint16_t region = region_index(packet.connection.address[packet.end], eth.rkey);
  if (region == kNoRegion || config_.mirrored || eth.virtual_address > kAddressBits) return std::nullopt;
  return Cas{.region = region,
             .address = eth.virtual_address,
             .compare = eth.compare,
             .swap = eth.swap_or_add,
             .at = place_of(region, eth.virtual_address - config_.layout.next_offset)};
}

// What the box before this one let happen to the node, nobody knows: it may hang in a chain that hangs nowhere.
bool CloverRule::fenced(Time now, const Cas& cas) const {
  if (now >= config_.fenced_until || !config_.layout.is_pointer(cas.swap)) return false;
  const auto place = node_place(cas);
  return !place || history_.find(*place) == kNone;
}

Verdict CloverRule::on_stranger_request(Time now, const Judged& packet) {
  now_ = now;
  const Kind kind = packet.parsed.traits().kind;
  if (kind == Kind::kWrite && packet.parsed.traits().starts_message()) {
    on_write(now, packet);
  } else if (kind == Kind::kCompareSwap) {
    const auto cas = parse_cas(packet);
    if (!cas) return Verdict::kUnknown;
    if (fenced(now, *cas)) return Verdict::kCasFenced;
    const auto place = node_place(*cas);
    const std::uint32_t entry = place ? history_.find(*place) : kNone;
    return entry == kNone ? pass_unknown_node(packet, *cas) : pass_untracked(packet, *cas, entry, Verdict::kUnknown);
  } else if (packet.parsed.traits().is_atomic()) {
    return on_other_atomic(packet);
  }
  return Verdict::kUnknown;
}

Verdict CloverRule::on_request_while_off(Time now, const Judged& packet) {
  if (links_.size() == 0 || !packet.parsed.traits().is_atomic()) return Verdict::kOff;
  now_ = now;
  const auto cas = packet.parsed.traits().kind == Kind::kCompareSwap ? parse_cas(packet) : std::nullopt;
  std::uint32_t key = kNone;
  if (cas) return must_wait(*cas, true, key) ? wait_for_turn(packet, key) : Verdict::kOff;
  const Verdict verdict = on_other_atomic(packet);
  return verdict == Verdict::kPlain ? Verdict::kOff : verdict;
}

Verdict CloverRule::pass_unknown_node(const Judged& packet, const Cas& cas) {
  std::uint32_t key = kNone;
  return must_wait(cas, true, key) ? wait_for_turn(packet, key) : Verdict::kCasUnknownNode;
}

bool CloverRule::watches(const NetAddress& server, wire::RKey rkey) { return region_index(server, rkey) != kNoRegion; }

bool CloverRule::watches(const NetAddress& server) const {
  return !regions_fixed_ || std::ranges::any_of(regions_, [&](const KnownRegion& r) { return r.server == server; });
}

Verdict CloverRule::on_cas(Time now, const Judged& packet) {
  const auto parsed = parse_cas(packet);
  if (!parsed) return Verdict::kPlain;
  const Cas& cas = *parsed;
  if (fenced(now, cas)) return Verdict::kCasFenced;
  const auto place = node_place(cas);
  const std::uint32_t entry = place ? history_.find(*place) : kNone;
  if (entry == kNone) return pass_unknown_node(packet, cas);
  const std::uint64_t name = history_[entry].key;
  std::uint32_t key = keys_.find(name);
  const std::uint32_t heat = sketch_.add(name);
  if (key == kNone && heat >= config_.hot_from) key = admit(name);
  if (key == kNone || keys_[key].broken) return pass_untracked(packet, cas, entry, Verdict::kCasCold);
  return judge_tracked(now, packet, cas, entry, key);
}

Verdict CloverRule::judge_tracked(Time now, const Judged& packet, const Cas& cas, std::uint32_t entry,
                                  std::uint32_t key) {
  KeyState& state = keys_[key];
  HistoryEntry& node = history_[entry];
  if (node.state() == NodeState::kOpen) return reaim(packet, cas, entry, key);
  const bool fresh = node.state() == NodeState::kWritten || node.state() == NodeState::kReady;
  const bool at_tail = state.tail == cas.at;
  // A past node's next word may be forgotten: then it is no tail to watch.
  if (!fresh && (!at_tail || node.has_key_place())) return pass_untracked(packet, cas, entry, Verdict::kCasAgain);

  // One at a time: while the tail is not known, and behind a link that may yet be refused.
  const bool one_at_a_time = config_.order != Order::kPipelined;
  const bool alone = state.tail == 0 || state.exclusive || one_at_a_time;
  if (alone && state.first_open != kNone) {
    return config_.order == Order::kPassing ? pass_untracked(packet, cas, entry, Verdict::kCasBusy)
                                            : wait_for_turn(packet, key);
  }
  const bool proven = proven_[packet.index] == cas.region;
  const bool exclusive = one_at_a_time || !proven || !write_acknowledged(node);
  if (state.tail == 0) return open_link(now, packet, cas, entry, key, 0, true, Verdict::kCasLearning);

  if (!at_tail && region_of(state.tail) != cas.region)
    return pass_untracked(packet, cas, entry, Verdict::kCasElsewhere);
  if (!at_tail && !config_.steer_writes) return pass_untracked(packet, cas, entry, Verdict::kCasAgain);
  if (cas.compare != state.free_word) return probe(packet, cas, entry, key);
  const auto shift = static_cast<std::int64_t>(address_of(state.tail) - address_of(cas.at));
  if (shift != 0) ++state.use.writes_steered;
  return open_link(now, packet, cas, entry, key, shift, exclusive,
                   shift == 0 ? Verdict::kCasAtTail : Verdict::kCasSteered);
}

// Forwards a CAS that is not watched. From its answer it is known whether the node may be tried again elsewhere.
Verdict CloverRule::pass_untracked(const Judged& packet, const Cas& cas, std::uint32_t entry, Verdict verdict) {
  std::uint32_t disturbed = kNone;
  if (must_wait(cas, true, disturbed)) return wait_for_turn(packet, disturbed);
  HistoryEntry& node = history_[entry];
  const bool ready = write_acknowledged(node);
  const bool fresh = node.state() == NodeState::kWritten || node.state() == NodeState::kReady;
  if (!fresh) return verdict;
  Operation* const op =
      ready ? operations_.add(packet.index, packet.end, packet.psn(), packet.connection.to[packet.end].acknowledged)
            : nullptr;
  if (op == nullptr) {
    node.become_past(now_);
    return verdict;
  }
  node.set_state(NodeState::kTried);
  node.await(
      {packet.index & 0xFFFF, packet.end, static_cast<std::uint8_t>(packet.connection.generation & 0xF), packet.psn()});
  op->kind = Operation::Kind::kTry;
  op->compare_mark = Operation::mark_of(cas.compare);
  op->subject = entry;
  return verdict;
}

// The CAS compares with another word than the tail has: it will fail there, and its client will learn what the tail is like.
Verdict CloverRule::probe(const Judged& packet, const Cas& cas, std::uint32_t entry, std::uint32_t key) {
  KeyState& state = keys_[key];
  HistoryEntry& node = history_[entry];
  const bool ready = write_acknowledged(node);
  const auto shift = static_cast<std::int64_t>(address_of(state.tail) - address_of(cas.at));
  Operation* const op =
      operations_.add(packet.index, packet.end, packet.psn(), packet.connection.to[packet.end].acknowledged);
  if (op == nullptr) return Verdict::kCasNoRoom;
  op->kind = Operation::Kind::kProbe;
  op->compare_mark = Operation::mark_of(cas.compare);
  op->key = key;
  op->key_generation = state.generation;
  op->needs = number_of_tail(state);
  op->subject = entry;
  op->shift = shift;
  node.become_past(now_);
  if (ready) {
    node.set_state(NodeState::kTried);
    node.await({packet.index & 0xFFFF, packet.end, static_cast<std::uint8_t>(packet.connection.generation & 0xF),
                packet.psn()});
  }
  shift_address(packet, shift);
  return Verdict::kCasProbe;
}

// The client tries a link again that is already under way, perhaps on a new connection: it must not be linked in a second place.
Verdict CloverRule::reaim(const Judged& packet, const Cas& cas, std::uint32_t entry, std::uint32_t key) {
  LinkIndex found = kNone;
  for (LinkIndex i = keys_[key].first_open; i != kNone; i = links_[i].next_of_key) {
    if (links_[i].entry == entry) found = i;
  }
  if (found == kNone || links_[found].region != cas.region || links_[found].swap != cas.swap) {
    return pass_untracked(packet, cas, entry, Verdict::kCasAgain);
  }
  Operation* const op =
      operations_.add(packet.index, packet.end, packet.psn(), packet.connection.to[packet.end].acknowledged);
  if (op == nullptr) return Verdict::kCasNoRoom;
  Link& link = links_[found];
  link.tried_twice = true;
  op->kind = Operation::Kind::kLink;
  op->key = key;
  op->key_generation = keys_[key].generation;
  op->needs = link.number;
  op->subject = found;
  op->shift = static_cast<std::int64_t>(link.target - cas.address);
  shift_address(packet, op->shift);
  return Verdict::kCasReaimed;
}

Verdict CloverRule::on_read(const Judged& packet) {
  const auto reth = packet.reth();
  const std::uint16_t region = region_index(packet.connection.address[packet.end], reth.rkey);
  if (region == kNoRegion || !config_.steer_reads || config_.mirrored || reth.virtual_address > kAddressBits)
    return Verdict::kPlain;
  const Place place = place_of(region, reth.virtual_address);
  const std::uint32_t entry = history_.find(place);
  if (entry == kNone) return Verdict::kPlain;
  HistoryEntry& node = history_[entry];
  std::uint32_t key = node.key_place();
  if (!keys_.has_tail_at(key, node.key)) {
    key = keys_.find(node.key);
    if (key != kNone && node.state() == NodeState::kPast) node.note_key_place(key);
  }
  if (key == kNone || keys_[key].broken) return Verdict::kReadCold;
  KeyState& state = keys_[key];
  if (state.tail == place) return Verdict::kReadAtTail;
  if (state.tail == 0) return Verdict::kReadNoTail;
  // Its client takes the answer for that of the old node, and the old node for the tail: not for longer than the store waits before it
  // uses a node's memory again.
  if (node.state() == NodeState::kPast && now_ - node.past_since() > config_.steer_reads_for)
    return Verdict::kReadTooOld;
  const std::uint32_t span = read_span(packet.connection, reth.length);
  if (region_of(state.tail) != region || !state.tail_has(reth.length) || span == 0 || span > Operations::kMaxReadSpan) {
    return Verdict::kReadElsewhere;
  }
  Operation* const op =
      operations_.add(packet.index, packet.end, packet.psn(), packet.connection.to[packet.end].acknowledged);
  if (op == nullptr) return Verdict::kReadElsewhere;
  op->kind = Operation::Kind::kRead;
  op->span = static_cast<std::uint16_t>(span);
  operations_.note_span(span);
  op->key = key;
  op->key_generation = state.generation;
  op->needs = number_of_tail(state);
  op->shift = static_cast<std::int64_t>(address_of(state.tail) - reth.virtual_address);
  shift_address(packet, op->shift);
  ++state.use.reads_steered;
  return Verdict::kReadSteered;
}

// ---------------------------------------------------------------------------------------------------------------- keys

// REQUIRES: idle.
void CloverRule::give_up(std::uint32_t key) {
  lose_tail(key);
  keys_.remove(key);
  ++counters_.keys_evicted;
}

void CloverRule::set_tracked_keys(std::uint32_t most) {
  config_.tracked_keys = std::min(most, keys_.capacity());
  if (keys_.size() <= config_.tracked_keys) return;
  auto places = keys_.places();
  std::ranges::sort(places, {}, [this](std::uint32_t i) { return std::pair(sketch_.estimate(keys_[i].key), i); });
  for (const std::uint32_t i : places) {
    if (keys_.size() > config_.tracked_keys && keys_[i].idle()) give_up(i);
  }
}

// A place among the tracked keys, if need be that of a colder one. kNone: it is not hot enough.
std::uint32_t CloverRule::admit(std::uint64_t key) {
  constexpr std::uint32_t kSample = 8;
  // More than there should be, because those were not idle when their number was reduced.
  if (keys_.size() > config_.tracked_keys) set_tracked_keys(config_.tracked_keys);
  if (keys_.size() >= config_.tracked_keys) {
    std::uint32_t coldest = kNone;
    std::uint32_t least = sketch_.estimate(key);
    for (std::uint32_t k = 0; k < std::min(kSample, keys_.reach()); ++k) {
      eviction_hand_ = (eviction_hand_ + 1) % keys_.reach();
      if (!keys_.is_tracked(eviction_hand_)) continue;
      const std::uint32_t heat = sketch_.estimate(keys_[eviction_hand_].key);
      // Some way below, so that two keys of equal heat do not take turns.
      if (heat + heat / 4 + 1 < least && keys_[eviction_hand_].idle()) {
        least = heat;
        coldest = eviction_hand_;
      }
    }
    if (coldest == kNone) return kNone;
    give_up(coldest);
  }
  if (keys_.size() >= config_.tracked_keys) return kNone;
  ++counters_.keys_admitted;
  return keys_.add(key);
}

void CloverRule::forget_all() {
  for (std::uint32_t i = 0; i < keys_.capacity(); ++i) {
    if (keys_[i].tail != 0) lose_tail(i);
  }
  // Nobody may come between the links under way, so what they lead from stays known as well.
  std::vector<std::uint32_t> kept;
  for (LinkIndex i = 0; i < links_.capacity(); ++i) {
    if (links_[i].key != kNone && links_[i].target_entry != kNone) kept.push_back(links_[i].target_entry);
  }
  std::ranges::sort(kept);
  for (std::uint32_t i = 0; i < history_.size(); ++i) {
    if (history_[i].state() != NodeState::kOpen && !std::ranges::binary_search(kept, i)) history_[i].become_empty();
  }
}

}  // namespace sluice::swordbox
