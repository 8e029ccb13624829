#include "swordbox/box.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/instructions.h"
#include "base/prefetch.h"
#include "wire/frame_inline.h"
#include "wire/icrc.h"

namespace sluice::swordbox {

using wire::Kind;

namespace {

bool is_refusal(const Judged& packet) {
  return packet.parsed.traits().kind == Kind::kAcknowledge &&
         !wire::get<wire::Aeth>(packet.frame, packet.parsed).is_ack();
}

// Of opcodes that are not known here. A transport stands in the upper three bits; those of the standard have the same operations in the lower five.
bool may_change_memory(std::uint8_t opcode) {
  constexpr std::uint32_t kSends = 0x3F | 1u << 0x16 | 1u << 0x17;
  constexpr std::uint32_t kReadAndAnswers = 0x7Fu << 0x0C;
  constexpr std::uint32_t kResync = 1u << 0x15;
  switch (opcode >> 5) {
    case 0: return true;  // reliable connection: it takes a number, at the least
    case 2:               // reliable datagram
    case 5: return ((kSends | kReadAndAnswers | kResync) >> (opcode & 0x1F) & 1) == 0;  // XRC
    case 3:
    case 4: return false;  // unreliable datagram, congestion
    default: return true;  // unreliable connection, vendors' own
  }
}

// Whether the multiplexer has put another packet into the place of this one, with its number.
bool is_made_anew(Verdict verdict) { return verdict == Verdict::kAtomicReplaced || verdict == Verdict::kWriteMoved; }

}  // namespace

Box::Box(const BoxConfig& config)
    : config_(config), on_(config.on), connections_(config.connections, counters_, *this), hold_(config.held_frames) {
  releasing_.reserve(std::size_t{config.connections.connections} * 2);
  if (config.watch_paths) paths_.resize(config.connections.connections);
}

Box::~Box() = default;

void Box::set_rule(std::unique_ptr<Rule> rule, Time fenced_until) {
  const bool has_open_links = rule_ && rule_->has_open_links();
  const bool fenced = now_ < config_.fenced_until;
  for (ConnectionIndex i = 0; i < connections_.capacity(); ++i) {
    Connection& connection = connections_[i];
    const bool under_way = connection.alive && (connection.to[0].under_way() || connection.to[1].under_way());
    connection.doubtful = (connection.doubtful && fenced) || (has_open_links && under_way);
    for (Direction& direction : connection.to) {
      hold_.purge(direction);
      direction.holds_request = false;
    }
    if (multiplexer_) multiplexer_->forget_waiting(i);
  }
  if (multiplexer_) multiplexer_->ready().clear();
  rule_ = std::move(rule);
  config_.fenced_until = fenced_until;
}

std::vector<MemoryUse> Box::account() const {
  std::vector<MemoryUse> uses{
      {Feature::kConnections, "numbers, progress, counts, index", connections_.capacity(), connections_.bytes()},
      {Feature::kHolding, "packets that wait", hold_.capacity(), hold_.bytes(), true}};
  if (rule_) rule_->account(uses);
  if (multiplexer_) multiplexer_->account(uses);
  return uses;
}

std::vector<BusyConnection> Box::busiest(std::size_t most) const {
  std::vector<ConnectionIndex> alive;
  for (ConnectionIndex i = 0; i < connections_.capacity(); ++i) {
    if (connections_[i].alive && (connections_.use(i).requests | connections_.use(i).responses) != 0)
      alive.push_back(i);
  }
  const std::size_t n = std::min(most, alive.size());
  std::ranges::partial_sort(alive, alive.begin() + static_cast<std::ptrdiff_t>(n), std::greater<>{},
                            [this](ConnectionIndex i) { return std::pair(connections_.use(i).requests, ~i); });
  std::vector<BusyConnection> out;
  for (const ConnectionIndex i : std::span(alive).first(n)) {
    const Connection& c = connections_[i];
    // The end that requests go to is the second.
    const bool backwards = c.to[0].started && !c.to[1].started;
    const std::size_t to = backwards ? 0 : 1;
    out.push_back(
        {c.address[1 - to].gid(), c.address[to].gid(), c.qpn[1 - to].value, c.qpn[to].value, connections_.use(i)});
  }
  return out;
}

void Box::switch_on(bool on) {
  if (on_ == on) return;
  on_ = on;
  if (rule_) rule_->forget_all();
}

void Box::set_held_frames(std::uint32_t most) {
  config_.held_frames = std::min(most, static_cast<std::uint32_t>(hold_.capacity()));
}

void Box::process(Time now, std::span<Packet> burst, port::FrameSink& outbox) {
  now_ = now;
  if (multiplexer_) multiplexer_->begin_burst();
  steps_ = rule_ ? rule_->prefetch_steps() : 0;
  for (std::size_t first = 0; first < burst.size(); first += kStage) {
    process_stage(now, burst.subspan(first, std::min(kStage, burst.size() - first)), outbox);
  }
  release(now, outbox);
}

void Box::process_stage(Time now, std::span<Packet> packets, port::FrameSink& outbox) {
  if (has_new_instructions()) return process_stage_on_new_machine(now, packets, outbox);
  for (std::size_t i = 0; i < packets.size(); ++i) {
    Prepared& p = prepared_[i];
    p.verdict = wire::parse_inline(packets[i].frame.bytes(), p.parsed);
    look_up(packets[i].frame, p);
  }
  do_stage(now, packets, outbox);
}

[[SLUICE_FOR_NEW_MACHINES]] void Box::process_stage_on_new_machine(Time now, std::span<Packet> packets,
                                                                   port::FrameSink& outbox) {
  Prepared* const prepared = prepared_.data();
  for (std::size_t i = 0; i < packets.size(); ++i) {
    prepared[i].verdict = wire::parse_on_new_machine(packets[i].frame.bytes(), prepared[i].parsed);
    look_up(packets[i].frame, prepared[i]);
  }
  do_stage(now, packets, outbox);
}

// Whose packet it is will be asked for: what that needs is on its way from here on.
[[gnu::always_inline]] inline void Box::look_up(const port::Frame& frame, Prepared& p) {
  p.reliable = p.verdict == wire::Verdict::kOk && p.parsed.traits().transport == wire::Transport::kRc;
  if (!p.reliable) return;
  p.key.assign(frame.data, p.parsed);
  connections_.prefetch(p.key);
  p.names_word = multiplexer_ && Multiplexer::names_word(p.parsed);
  if (p.names_word) p.word_asked = multiplexer_->ask_for_word(frame.data, p.parsed);
  if (steps_ > 1) rule_->prefetch_early(frame.data, p.parsed);
}

[[gnu::always_inline]] inline void Box::do_stage(Time now, std::span<Packet> packets, port::FrameSink& outbox) {
  Prepared* const prepared = prepared_.data();
  const bool far_words = multiplexer_ && !multiplexer_->is_near();
  for (std::size_t i = 0; i < packets.size(); ++i) {
    Prepared& p = prepared[i];
    p.crossing = p.reliable ? connections_.find(p.key) : Crossing();
    if (!p.crossing) continue;
    if (p.names_word) p.word_guess = multiplexer_->guess_word(p.word_asked);
    if (far_words) multiplexer_->prefetch(p.parsed, p.crossing.connection);
  }
  for (int step = 0; step < steps_; ++step) {
    for (std::size_t i = 0; i < packets.size(); ++i) {
      Prepared& p = prepared[i];
      if (!p.crossing || (step != 0 && !p.needs_step)) continue;
      if (step == 0) {
        sluice::prefetch(&connections_.use(p.crossing.connection));
        p.judged.emplace(packets[i].frame.data, p.parsed, connections_[p.crossing.connection], p.crossing, false);
      }
      p.needs_step = rule_->prefetch(*p.judged, step);
    }
  }
  const std::uint64_t version = connections_.version();
  const bool in_steps = !short_cuts_ || !multiplexer_ || !on_ || !share_words_ || !has_new_instructions();
  const bool fenced = now < config_.numbers_fenced_until || (rule_ && now < config_.fenced_until);
  for (std::size_t i = 0; i < packets.size(); ++i) {
    Packet& packet = packets[i];
    Prepared& p = prepared[i];
    if (version != connections_.version() && p.reliable) p.crossing = connections_.find(p.key);
    if (!in_steps && p.crossing && judge_at_once(now, packet, p, fenced, outbox)) continue;
    const Verdict verdict =
        p.reliable ? judge(now, packet.frame, p, outbox) : judge_other(now, packet.frame, p, outbox);
    packet.verdict = verdict;
    if (is_made_anew(verdict)) packet.frame.length = p.parsed.length;
    counters_.count(verdict);
    if (p.crossing) account(p.crossing.connection, p.parsed.traits().is_request, verdict);
    packet.action = action_of(verdict) == Action::kForward ? Action::kForward : Action::kDrop;
  }
}

// The packets of the steady state, without the questions that the others have to answer.
inline bool Box::judge_at_once(Time now, Packet& packet, Prepared& p, bool fenced, port::FrameSink& outbox) {
  const bool atomic = p.parsed.opcode == wire::Opcode::kRcFetchAdd || p.parsed.opcode == wire::Opcode::kRcCompareSwap;
  if (!atomic && p.parsed.opcode != wire::Opcode::kRcAcknowledge) return false;
  Connection& connection = connections_[p.crossing.connection];
  if (fenced && !connection.announced) return false;
  ConnectionUse& use = connections_.use(p.crossing.connection);
  if (atomic) {
    if (!multiplexer_->replace_at_once(now, packet.frame, p.parsed, connection, p.crossing, p.word_guess)) return false;
    packet.verdict = Verdict::kAtomicReplaced;
    packet.action = Action::kForward;
    packet.frame.length = p.parsed.length;
    ++use.requests;
    ++use.changed;
  } else {
    const auto answered = multiplexer_->answer_at_once(now, packet.frame, p.parsed, p.crossing, outbox);
    if (!answered) return false;
    packet.verdict = Verdict::kSharedAnswer;
    packet.action = *answered;
    ++use.responses;
    ++(*answered == Action::kForward ? use.changed : use.dropped);
  }
  use.last_seen = now;
  counters_.count(packet.verdict);
  return true;
}

inline void Box::account(ConnectionIndex connection, bool is_request, Verdict verdict) {
  ConnectionUse& use = connections_.use(connection);
  ++(is_request ? use.requests : use.responses);
  const Action action = action_of(verdict);
  use.dropped += static_cast<std::uint32_t>(action == Action::kDrop);
  use.delayed += static_cast<std::uint32_t>(action == Action::kHold);
  use.changed += static_cast<std::uint32_t>(changes_packet(verdict));
}

Time Box::next_deadline() const {
  const Time ageing = connections_.size() != 0 ? next_ageing_ : Time::never();
  Time next = rule_ ? std::min(ageing, rule_->next_deadline()) : ageing;
  if (multiplexer_) next = std::min(next, multiplexer_->next_deadline());
  return awake_ ? std::min(next, now_) : next;
}

void Box::on_deadline(Time now, port::FrameSink& outbox) {
  now_ = now;
  if (rule_) rule_->on_deadline(now, outbox);
  if (multiplexer_) {
    multiplexer_->begin_burst();
    multiplexer_->on_deadline(now, outbox);
  }
  if (now >= next_ageing_) {
    connections_.age(now);
    next_ageing_ = now + kAgeing;
    if (multiplexer_ && !one_way_) look_at_paths();
  }
  release(now, outbox);
}

void Box::look_at_paths() {
  for (ConnectionIndex i = 0; i < paths_.size(); ++i) {
    const Connection& c = connections_[i];
    const ConnectionUse& use = connections_.use(i);
    const bool lopsided = c.alive && c.announced && (use.requests == 0) != (use.responses == 0) &&
                          (multiplexer_->watches(c.address[0]) || multiplexer_->watches(c.address[1]));
    const std::uint32_t packets = lopsided ? use.requests + use.responses : 0;
    Path& path = paths_[i];
    const bool goes_on = path.packets != 0 && path.generation == c.generation && packets > path.packets;
    path = {c.generation, packets, static_cast<std::uint8_t>(goes_on ? path.rounds + 1 : 0)};
    if (path.rounds < kPathRounds) continue;
    const bool backwards = c.to[0].started && !c.to[1].started;
    const std::size_t to = backwards ? 0 : 1;
    one_way_ = {c.address[1 - to].gid(), c.address[to].gid(), use.responses == 0};
    ++counters_.paths_one_way;
    share_words_ = false;
    multiplexer_->give_up_passes();
    return;
  }
}

// ------------------------------------------------------------------------------------------------------------- judging

// What is no packet of a reliable connection.
Verdict Box::judge_other(Time now, const port::Frame& frame, const Prepared& prepared, port::FrameSink& outbox) {
  const wire::ParsedFrame& parsed = prepared.parsed;
  switch (prepared.verdict) {
    case wire::Verdict::kOk: break;
    case wire::Verdict::kNotIp:
    case wire::Verdict::kNotUdp:
    case wire::Verdict::kNotRoce: return Verdict::kNotRoce;
    case wire::Verdict::kUnknownOpcode: return judge_unknown_opcode(frame, parsed);
    default: return Verdict::kMalformed;
  }
  if (config_.verify_icrc && !wire::verify_icrc(frame.data, parsed)) return Verdict::kBadIcrc;
  if (parsed.traits().transport == wire::Transport::kCnp && multiplexer_) {
    const Crossing crossing = connections_.find(NetAddress::source_of(frame.data, parsed),
                                                NetAddress::destination_of(frame.data, parsed), parsed.destination);
    if (crossing && multiplexer_->on_congestion(frame, parsed, crossing, outbox)) return Verdict::kCongestionShared;
  }
  if (parsed.traits().transport == wire::Transport::kUc && parsed.traits().kind == Kind::kWrite && multiplexer_ &&
      !multiplexer_->on_unreliable_write(now, frame.data, parsed))
    return Verdict::kStrangerDropped;
  if (parsed.traits().transport != wire::Transport::kUd || parsed.destination != wire::kCmQpn)
    return Verdict::kNotReliable;
  connections_.on_management(now, frame.data, parsed);
  return Verdict::kManagement;
}

// What it does, the box cannot know. Where words are shared it must not do it: what is believed of them would be wrong, and the next WRITE
// of an outcome would undo it.
Verdict Box::judge_unknown_opcode(const port::Frame& frame, const wire::ParsedFrame& parsed) const {
  const bool concerns = multiplexer_ && !one_way_ && may_change_memory(frame.data[parsed.bth_offset]) &&
                        multiplexer_->watches(NetAddress::destination_of(frame.data, parsed));
  return concerns ? Verdict::kNotUnderstood : Verdict::kMalformed;
}

inline Verdict Box::judge(Time now, const port::Frame& frame, Prepared& prepared, port::FrameSink& outbox) {
  wire::ParsedFrame& parsed = prepared.parsed;
  if (config_.verify_icrc && !wire::verify_icrc(frame.data, parsed)) return Verdict::kBadIcrc;
  Crossing& crossing = prepared.crossing;
  if (now < config_.fenced_until && rule_ && is_fenced(frame.data, parsed, crossing)) return Verdict::kFenced;
  if (now < config_.numbers_fenced_until && multiplexer_ && has_strange_numbers(frame.data, parsed, crossing))
    return Verdict::kFenced;
  if (!crossing) {
    if (parsed.traits().is_request) {
      connections_.infer_from_request(now, frame.data, parsed);
      crossing = connections_.find(prepared.key);
    } else {
      crossing = connections_.infer_from_response(now, frame.data, parsed);
    }
    if (!crossing) return judge_homeless(frame.data, parsed);
  }
  Connection& connection = connections_[crossing.connection];
  connections_.use(crossing.connection).last_seen = now;
  observe_mtu(connection, parsed);
  const bool can_hold = hold_.used() < config_.held_frames;
  return judge_known(now, frame, {frame.data, parsed, connection, crossing, can_hold}, outbox);
}

bool Box::has_strange_numbers(const std::uint8_t* frame, const wire::ParsedFrame& parsed, Crossing crossing) const {
  if (crossing && connections_[crossing.connection].announced) return false;
  return multiplexer_->watches(parsed.traits().is_request ? NetAddress::destination_of(frame, parsed)
                                                          : NetAddress::source_of(frame, parsed));
}

// What the box, or the rule, before this one did to this connection's packets died with it: where its READs went, which links its answers depend on.
bool Box::is_fenced(const std::uint8_t* frame, const wire::ParsedFrame& parsed, Crossing crossing) {
  if (crossing && connections_[crossing.connection].set_up_anew()) return false;
  const wire::OpcodeTraits& traits = parsed.traits();
  switch (traits.kind) {
    case Kind::kReadRequest:
      return rule_->watches(NetAddress::destination_of(frame, parsed), wire::get<wire::Reth>(frame, parsed).rkey);
    case Kind::kCompareSwap:
    case Kind::kFetchAdd:
    case Kind::kMaskedCompareSwap:
      return rule_->watches(NetAddress::destination_of(frame, parsed),
                            wire::AtomicEth::parse(frame + parsed.extended_offset()).rkey);
    case Kind::kReadResponse:
    case Kind::kAtomicAcknowledge: return rule_->watches(NetAddress::source_of(frame, parsed));
    default: return false;
  }
}

// A packet for whose connection the table has no room.
Verdict Box::judge_homeless(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  if (!parsed.traits().is_atomic()) return Verdict::kUnknown;
  if (multiplexer_ && multiplexer_->watches(NetAddress::destination_of(frame, parsed)))
    return Verdict::kStrangerDropped;
  if (!rule_ || !on_) return Verdict::kUnknown;
  const auto eth = wire::AtomicEth::parse(frame + parsed.extended_offset());
  const bool watched = rule_->watches(NetAddress::destination_of(frame, parsed), eth.rkey);
  return watched ? Verdict::kStrangerDropped : Verdict::kUnknown;
}

[[gnu::always_inline]] inline Verdict Box::judge_known(Time now, const port::Frame& frame, const Judged& packet,
                                                       port::FrameSink& outbox) {
  const bool is_request = packet.parsed.traits().is_request;
  bool behind_outbox = false;  // answers that come before it stand there already
  if (!is_request && multiplexer_) {
    const auto shared = multiplexer_->on_response(now, packet, outbox);
    if (shared && *shared != Verdict::kResponse) {
      multiplexer_->after_progress(now, packet);
      return *shared;
    }
    behind_outbox = shared && multiplexer_->answered_in_burst(packet.index);
  }
  Direction& direction = packet.connection.to[packet.end];
  if (direction.holds()) {
    if (!is_request) note_progress(now, packet);
    const Verdict verdict = judge_behind_held(packet);
    // A request that was forwarded before overtakes those that wait.
    if (verdict != Verdict::kRepeated) return hold(frame, packet, verdict);
  }
  if (!is_request) note_progress(now, packet);
  const Verdict verdict = is_request ? judge_request(now, packet, outbox) : judge_response(now, packet);
  if (behind_outbox && action_of(verdict) == Action::kForward)
    return send({frame.data, packet.parsed.length}, outbox) ? Verdict::kSharedAnswer : Verdict::kHoldFull;
  return action_of(verdict) == Action::kHold ? hold(frame, packet, verdict) : verdict;
}

Verdict Box::judge_behind_held(const Judged& packet) {
  if (!packet.parsed.traits().is_request) return Verdict::kHeldResponse;
  const Direction& direction = packet.connection.to[packet.end];
  if (packet.psn().since(direction.expected) < 0) return Verdict::kRepeated;
  const Psn next = direction.holds_request ? direction.held_next : direction.expected;
  const auto ahead = packet.psn().since(next);
  if (ahead < 0) return Verdict::kHeldAlready;
  return ahead == 0 ? Verdict::kHeldRequest : Verdict::kGapDropped;
}

// Puts the packet behind those of its direction that wait, if that is its verdict.
Verdict Box::hold(const port::Frame& frame, const Judged& packet, Verdict verdict) {
  if (action_of(verdict) != Action::kHold) return verdict;
  Direction& direction = packet.connection.to[packet.end];
  if (hold_.used() >= config_.held_frames || !hold_.push(direction, frame)) return Verdict::kHoldFull;
  if (packet.parsed.traits().is_request) {
    const bool reads = packet.parsed.traits().kind == Kind::kReadRequest;
    const std::uint32_t span = reads ? read_span(packet.connection, packet.reth().length) : 1;
    direction.holds_request = true;
    direction.held_next = packet.psn() + std::max(span, 1u);
  }
  return verdict;
}

// The rule says where the original went, the multiplexer with which number.
Verdict Box::judge_repeated(Time now, const Judged& packet, port::FrameSink& outbox) {
  const bool complete = packet.connection.qpn[1 - packet.end] != kUnknownQpn;
  const Verdict verdict = rule_ && complete ? rule_->on_repeated_request(now, packet) : Verdict::kRepeated;
  if (!multiplexer_ || is_apart(packet) || action_of(verdict) != Action::kForward) return verdict;
  return multiplexer_->on_repeated_request(now, packet, on_ && share_words_, outbox).value_or(verdict);
}

// The next request in order: the multiplexer's, or the rule's.
[[gnu::always_inline]] inline Verdict Box::judge_next(Time now, const Judged& packet, bool complete) {
  if (multiplexer_ && !is_apart(packet)) {
    if (const auto shared = multiplexer_->on_request(now, packet, on_ && share_words_)) return *shared;
  }
  if (!rule_) return complete ? Verdict::kPlain : Verdict::kUnknown;
  if (!on_) return rule_->on_request_while_off(now, packet);
  return complete ? rule_->on_request(now, packet) : rule_->on_stranger_request(now, packet);
}

[[gnu::always_inline]] inline Verdict Box::judge_request(Time now, const Judged& packet, port::FrameSink& outbox) {
  Direction& direction = packet.connection.to[packet.end];
  const bool complete = packet.connection.qpn[1 - packet.end] != kUnknownQpn;
  if (!direction.started) {
    direction.started = true;
    direction.expected = packet.psn();
    direction.acknowledged = packet.psn() - 1;
  }
  const auto ahead = packet.psn().since(direction.expected);
  if (ahead < 0) return judge_repeated(now, packet, outbox);
  if (ahead > direction.loose) {
    if (multiplexer_ && !is_apart(packet) && !multiplexer_->may_pass_out_of_order(packet)) return Verdict::kGapDropped;
    return rule_ && complete && on_ && !rule_->may_pass_out_of_order(packet) ? Verdict::kGapDropped : Verdict::kGap;
  }
  const Psn psn = packet.psn();  // as the client numbers it
  const Verdict verdict = judge_next(now, packet, complete);
  if (action_of(verdict) != Action::kForward) return verdict;

  direction.loose = 0;
  std::uint32_t span = 1;
  if (packet.parsed.traits().kind == Kind::kReadRequest) {
    const auto reth = packet.reth();
    span = read_span(packet.connection, reth.length);
    if (span == 0) {
      span = 1;
      direction.loose = static_cast<std::uint16_t>(std::min<std::uint32_t>(reth.length / 256, 0xFFFF));
    }
  }
  direction.expected = psn + span;
  if (multiplexer_ && !is_made_anew(verdict)) {
    multiplexer_->number(packet, psn, span);
    if (rule_ && packet.psn() != psn) rule_->on_renumbered(packet, psn);
  }
  return verdict;
}

// What an answer says about the requests, whether or not it may pass now.
[[gnu::always_inline]] inline void Box::note_progress(Time now, const Judged& packet) {
  Direction& requests = packet.connection.to[1 - packet.end];
  if (!requests.started) return;
  const Psn done = is_refusal(packet) ? packet.psn() - 1 : packet.psn();
  // The multiplexer keeps this account itself for those to whom it answers.
  const bool is_kept = multiplexer_ && multiplexer_->translates(packet);
  if (!is_kept && done.since(requests.acknowledged) > 0) requests.acknowledged = done;
  if (done.since(requests.expected) >= 0) {
    requests.expected = done + 1;
    requests.loose = 0;
  }
  if (multiplexer_) multiplexer_->after_progress(now, packet);
  if (rule_ && packet.connection.qpn[1 - packet.end] != kUnknownQpn) rule_->observe_response(now, packet);
}

[[gnu::always_inline]] inline Verdict Box::judge_response(Time now, const Judged& packet) {
  if (!packet.connection.to[1 - packet.end].started) return Verdict::kUnknown;
  const bool complete = packet.connection.qpn[1 - packet.end] != kUnknownQpn;
  if (rule_ && complete) return rule_->on_response(now, packet);
  return is_refusal(packet) ? Verdict::kNak : Verdict::kResponse;
}

// ------------------------------------------------------------------------------------------------------------- holding

// Each round lets something go, or but a few have a shared connection left. Were that ever not so, whoever wakes himself waits for the next
// turn, and does not keep it from coming.
void Box::release(Time now, port::FrameSink& outbox) {
  awake_ = false;
  for (int idle = 0; idle < kIdleRounds; ++idle) {
    const std::size_t held = hold_.used();
    bool again = rule_ && release_ready(now, rule_->ready(), outbox);
    again = (multiplexer_ && release_ready(now, multiplexer_->ready(), outbox)) || again;
    if (!again) return;
    if (hold_.used() < held) idle = -1;
  }
  ++counters_.releases_cut_short;
  awake_ = true;
}

bool Box::release_ready(Time now, std::vector<DirectionToken>& ready, port::FrameSink& outbox) {
  if (ready.empty()) return false;
  releasing_.swap(ready);
  for (const DirectionToken direction : releasing_) release_direction(now, direction, outbox);
  releasing_.clear();
  return true;
}

// Judges what waits anew, in order, until something has to go on waiting.
void Box::release_direction(Time now, DirectionToken number, port::FrameSink& outbox) {
  if (multiplexer_ && multiplexer_->is_turn(number))
    return multiplexer_->take_turn(now, number, on_ && share_words_, outbox);
  Connection& connection = connections_[number / 2];
  const auto end = static_cast<std::uint8_t>(number % 2);
  Direction& direction = connection.to[end];
  if (direction.holds_request && now - connections_.use(number / 2).last_seen > config_.stale_after) {
    counters_.frames_stale += hold_.purge(direction);
  }
  while (direction.holds()) {
    port::Frame frame = hold_.front(direction);
    wire::ParsedFrame parsed;
    const bool sound = wire::parse(frame.bytes(), parsed) == wire::Verdict::kOk;
    SLUICE_CHECK(sound);
    const Judged packet{frame.data, parsed, connection, {number / 2, end}, true};
    const Verdict verdict =
        parsed.traits().is_request ? judge_request(now, packet, outbox) : judge_response(now, packet);
    if (action_of(verdict) == Action::kHold) return;
    if (is_made_anew(verdict)) frame.length = parsed.length;
    counters_.count(verdict);
    if (changes_packet(verdict)) ++connections_.use(number / 2).changed;
    if (action_of(verdict) == Action::kForward && send(frame, outbox)) ++counters_.frames_released;
    hold_.pop(direction);
  }
  direction.holds_request = false;
  if (multiplexer_) multiplexer_->after_release(now, number / 2, outbox);
}

bool Box::send(const port::Frame& frame, port::FrameSink& outbox) {
  std::uint8_t* const out = outbox.reserve(frame.length);
  if (out == nullptr) {
    ++counters_.outbox_full;
    return false;
  }
  std::memcpy(out, frame.data, frame.length);
  outbox.commit(frame.length);
  return true;
}

void Box::on_connection_gone(ConnectionIndex connection) {
  if (rule_) rule_->on_connection_gone(connection);
  if (multiplexer_) multiplexer_->on_connection_gone(now_, connection);
  for (Direction& direction : connections_[connection].to) hold_.purge(direction);
  // Whoever gets its place is not let go for what it waited for.
  const auto is_its = [connection](DirectionToken direction) { return direction / 2 == connection; };
  if (rule_) std::erase_if(rule_->ready(), is_its);
  if (multiplexer_) std::erase_if(multiplexer_->ready(), is_its);
}

}  // namespace sluice::swordbox
