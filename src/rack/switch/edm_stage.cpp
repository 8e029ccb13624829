#include "rack/switch/edm_stage.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "switching/host_stage.h"
#include "wire/frame_inline.h"

namespace sluice::rack {

using switching::Packet;

namespace {

// Preamble, FCS and gap: what a frame takes of a link besides its bytes here.
constexpr std::uint32_t kAround = 24;
// Headers, ICRC and all around of a READ response's packet, on IPv4; and the least payload that such a packet is taken to have.
constexpr std::uint32_t kAnswerHeaders = 14 + 20 + 8 + 12 + 4 + 4 + kAround;
constexpr std::uint32_t kAnswerPacket = 1'024;
// Between two searches for a host that is silent, should strangers come all the time.
constexpr Duration kLook = Duration::milliseconds(1);

std::uint64_t answer_on_wire(std::uint32_t bytes) {
  const std::uint64_t packets = (std::uint64_t{bytes} + kAnswerPacket - 1) / kAnswerPacket;
  return bytes + std::max<std::uint64_t>(packets, 1) * kAnswerHeaders;
}

bool ends_answer(wire::Opcode opcode) {
  return opcode == wire::Opcode::kRcReadResponseLast || opcode == wire::Opcode::kRcReadResponseOnly;
}

edm::SchedulerConfig scheduler_config(const EdmStageSettings& settings) {
  const auto block_time = Duration::picoseconds(
      static_cast<std::int64_t>(64'000'000'000'000u / std::max<std::uint64_t>(settings.bits_per_second, 1)));
  return {
      .ports = EdmStage::kHosts,
      .active_per_pair = EdmStage::kReadsAsked,  // of data there is one, for all that waits
      .policy = settings.policy,
      .matching = edm::Matching::kGreedy,  // software decides within its turn
      .chunk_bytes = static_cast<std::uint32_t>(settings.chunk / 8 * 8),
      .block_time = block_time,
      .response_lead = {},
      // Less than between two sweeps: a line of data of which something is overdue asks anew at each, and waits from then on.
      .patience = settings.hold / 8,
      .most_late = block_time * static_cast<std::int64_t>(settings.burst / 8 * 2)};
}

// All programs on a host's NIC are one host, and answers come from whichever of their addresses (switching/host_stage.h).
std::uint64_t host_at(const std::uint8_t* mac) {
  std::array<std::uint8_t, 8> bytes{};
  std::memcpy(bytes.data(), mac, 6);
  bytes[switching::HostStage::kPlaceByte] = 0;
  return load_le<std::uint64_t>(bytes.data());
}

}  // namespace

EdmStage::EdmStage(const EdmStageSettings& settings)
    : settings_(settings),
      scheduler_(scheduler_config(settings)),
      lines_(std::size_t{kHosts} * kHosts),
      slots_(settings.frames),
      bytes_(std::size_t{settings.frames} * port::kMaxFrame) {
  SLUICE_CHECK(settings.frames >= 4 * kSpare);
  free_count_ = settings.frames;
  numbers_.fill(kNobody);
  known_.reserve(kHosts);
  busy_.reserve(lines_.size());
  for (std::uint32_t i = 0; i < settings.frames; ++i) slots_[i].next = i + 1 < settings.frames ? i + 1 : kNone;
}

void EdmStage::process(Time now, std::span<Packet> packets, port::FrameSink& outbox) {
  now_ = now;
  if (!on_ && ready_first_ == kNone) return;
  schedule(now);  // demands meet the ports as they are now
  for (Packet& packet : packets) {
    if (packet.action == Packet::Action::kForward && take(now, packet)) packet.action = Packet::Action::kDrop;
  }
  schedule(now);
  emit(outbox);
}

Time EdmStage::next_deadline() const {
  if (ready_first_ != kNone) return now_;
  if (held_ == 0) return Time::never();
  return std::min(scheduler_.next_deadline(), sweep_at_);
}

void EdmStage::on_deadline(Time now, port::FrameSink& outbox) {
  now_ = now;
  schedule(now);
  if (sweep_at_ <= now) sweep(now);
  emit(outbox);
}

// Whether the packet stays here.
bool EdmStage::take(Time now, const Packet& packet) {
  wire::ParsedFrame parsed;
  if (wire::parse_inline(packet.frame.bytes(), parsed) != wire::Verdict::kOk) return false;
  const wire::OpcodeTraits& traits = parsed.traits();
  if (traits.transport != wire::Transport::kRc) return false;
  if (!traits.is_request) {
    answered(now, packet.frame, parsed);
    return false;
  }
  if (std::ranges::equal(settings_.router.bytes, ByteView(packet.frame.data, 6))) return false;
  const std::uint32_t source = host(host_at(packet.frame.data + 6));
  const std::uint32_t destination = host(host_at(packet.frame.data));
  if (source == kNone || destination == kNone || source == destination) {
    ++counters_.strangers;
    return false;
  }
  const bool reads = traits.kind == wire::Kind::kReadRequest;
  const What what = reads ? What::kRead : traits.has_payload ? What::kData : What::kSmall;
  const std::uint32_t line = source * kHosts + destination;
  // Nothing to wait for, and nothing to wait behind.
  if (what == What::kSmall && lines_[line].first == kNone && ready_first_ == kNone) return false;
  const std::uint32_t answer = reads ? wire::get<wire::Reth>(packet.frame.data, parsed).length : 0;
  if (free_ == kNone) {
    ++counters_.lost;
    return true;
  }
  const bool room = free_count_ > kSpare;
  if (reads && is_asked_anew(lines_[line].granted, parsed)) end_read(now, line);
  push(now, line, packet.frame,
       {.length = packet.frame.length,
        .answer = answer,
        .psn = parsed.psn,
        .at = parsed.destination,
        .since = now,
        .what = what});
  if (on_ && room) {
    ask(now, line);
  } else {
    std::uint64_t uncounted = 0;
    let_go(line, on_ ? counters_.overflow : uncounted);  // what waits here goes, and this one behind it
  }
  return true;
}

// What has become of a READ. An answer itself goes on at once.
void EdmStage::answered(Time now, const port::Frame& frame, const wire::ParsedFrame& parsed) {
  const wire::Kind kind = parsed.traits().kind;
  const bool reads = kind == wire::Kind::kReadResponse;
  if (!reads && (kind != wire::Kind::kAcknowledge || !wire::get<wire::Aeth>(frame.data, parsed).is_nak())) return;
  const std::uint32_t node = number_of(host_at(frame.data + 6));
  const std::uint32_t reader = number_of(host_at(frame.data));
  if (node == kNone || reader == kNone) return;
  const std::uint32_t line = reader * kHosts + node;
  Line& l = lines_[line];
  if (reads) l.unanswered = 0;
  const Granted& g = l.granted;
  // Other queue pairs of the two have PSNs of their own.
  if (!g.covers(parsed.psn) || (g.begun && parsed.destination != g.reader)) return;
  reads ? answer_came(now, line, parsed) : refused(now, line);
}

void EdmStage::answer_came(Time now, std::uint32_t line, const wire::ParsedFrame& parsed) {
  Granted& g = lines_[line].granted;
  const std::uint32_t mtu = std::max<std::uint32_t>(parsed.payload_length, 1);
  if (!g.begun) g.packets = std::max(g.answer / mtu + (g.answer % mtu != 0 ? 1u : 0u), 1u);
  g.begun = true;
  g.reader = parsed.destination;
  if (g.left == 0) return;
  g.came += answer_on_wire(parsed.payload_length);
  g.heard = now;
  if (ends_answer(parsed.opcode)) return end_read(now, line);
  if (!g.asked && g.came + settings_.chunk > g.bytes) ask_chunk(now, line);
}

void EdmStage::refused(Time now, std::uint32_t line) {
  Granted& g = lines_[line].granted;
  if (g.until <= now && g.left == 0) return;
  ++counters_.refused;
  if (g.until > now) scheduler_.free_early(now, to(line), from(line));
  g.until = now;
  end_read(now, line);
}

// From where it broke off.
bool EdmStage::is_asked_anew(const Granted& granted, const wire::ParsedFrame& request) {
  return granted.left != 0 && granted.at == request.destination && granted.covers(request.psn);
}

// A few that are lost are no sign, nor is an answer that is late.
bool EdmStage::is_silent(Time now, const Line& line) const {
  return line.unanswered >= kReadsAsked && line.unanswered_since + settings_.hold <= now;
}

// Of an answer: so many bytes now, and so many later.
bool EdmStage::notify(Time now, std::uint32_t line, std::uint64_t bytes, std::uint64_t later) {
  const edm::Demand demand{
      .source = to(line),
      .destination = from(line),
      .id = edm::MessageId(0),
      .kind = edm::DemandKind::kResponse,
      .bytes = static_cast<std::uint32_t>(bytes),
      .later = static_cast<std::uint32_t>(std::min<std::uint64_t>(later, edm::kMaxMessageBytes - bytes))};
  return scheduler_.notify(now, demand) == edm::NotifyVerdict::kAccepted;
}

// Of the READ that is under way.
void EdmStage::ask_chunk(Time now, std::uint32_t line) {
  Granted& g = lines_[line].granted;
  const std::uint64_t bytes = std::min(g.left, settings_.chunk / 8 * 8);
  g.asked = notify(now, line, bytes, g.left - bytes);
}

// Nothing more is asked for of it; those behind it are.
void EdmStage::end_read(Time now, std::uint32_t line) {
  Granted& g = lines_[line].granted;
  if (g.asked) SLUICE_CHECK(scheduler_.withdraw(now, to(line), from(line), edm::DemandKind::kResponse));
  g.asked = false;
  if (std::exchange(g.left, 0) != 0) ask(now, line);
}

// Its number, a new one if it is new; kNone: there are too many.
std::uint32_t EdmStage::host(std::uint64_t mac) {
  auto number = number_of(mac);
  if (number != kNone) {
    known_[number].seen = now_;
    return number;
  }
  number = static_cast<std::uint32_t>(known_.size());
  if (number == kHosts) {
    number = place_of_silent();
    if (number == kNone) return kNone;
    known_[number] = {mac, now_};
    for (std::uint32_t other = 0; other < kHosts; ++other) {
      lines_[number * kHosts + other].forget();
      lines_[other * kHosts + number].forget();
    }
    numbers_.fill(kNobody);
    for (std::uint32_t i = 0; i < kHosts; ++i) *place_of(known_[i].mac) = static_cast<std::uint8_t>(i);
  } else {
    known_.push_back({mac, now_});
    *place_of(mac) = static_cast<std::uint8_t>(number);
  }
  return number;
}

// Where a host's number stands in the table, or would.
std::uint8_t* EdmStage::place_of(std::uint64_t mac) {
  constexpr std::uint64_t kSpread = 0x9E37'79B9'7F4A'7C15;  // 2^64 divided by the golden ratio
  std::size_t place = mac * kSpread >> (64 - kNumbersBits);
  while (numbers_[place] != kNobody && known_[numbers_[place]].mac != mac) place = (place + 1) % numbers_.size();
  return &numbers_[place];
}

std::uint32_t EdmStage::number_of(std::uint64_t mac) {
  const std::uint8_t number = *place_of(mac);
  return number == kNobody ? kNone : number;
}

// Clients come and go, each with an address of its own: who has said nothing for the longest makes room.
std::uint32_t EdmStage::place_of_silent() {
  if (now_ < next_look_) return kNone;
  next_look_ = now_ + kLook;
  std::uint32_t silent = kNone;
  for (std::uint32_t i = 0; i < kHosts; ++i) {
    const bool is_longer = silent == kNone || known_[i].seen < known_[silent].seen;
    if (known_[i].seen + kSilence <= now_ && is_longer && is_idle(i)) silent = i;
  }
  return silent;
}

// Nothing waits here of it or for it, and no grant is still to come.
bool EdmStage::is_idle(std::uint32_t number) const {
  const auto is_clear = [this](std::uint32_t line) {
    const Line& l = lines_[line];
    return l.first == kNone && !l.granted.asked;  // what is asked for besides waits in the line
  };
  for (std::uint32_t other = 0; other < kHosts; ++other) {
    if (!is_clear(number * kHosts + other) || !is_clear(other * kHosts + number)) return false;
  }
  return true;
}

void EdmStage::push(Time now, std::uint32_t line, const port::Frame& frame, const Slot& added) {
  Line& l = lines_[line];
  const std::uint32_t slot = free_;
  free_ = slots_[slot].next;
  --free_count_;
  std::memcpy(&bytes_[std::size_t{slot} * port::kMaxFrame], frame.data, frame.length);
  slots_[slot] = added;
  (l.first == kNone ? l.first : slots_[l.last].next) = slot;
  l.last = slot;
  counters_.most_held = std::max<std::uint64_t>(counters_.most_held, ++held_);
  if (!l.listed) {
    l.listed = true;
    busy_.push_back(line);
  }
  if (sweep_at_ == Time::never()) sweep_at_ = now + settings_.hold / 4;
}

// Demands for what is first in the line.
void EdmStage::ask(Time now, std::uint32_t line) {
  Line& l = lines_[line];
  while (l.first != kNone) {
    const What what = slots_[l.first].what;
    if (what == What::kSmall) {
      release_first(now, l);
    } else if (what == What::kRead && is_silent(now, l)) {
      if (l.reads_asked != 0) return;  // granted by now perhaps
      ++counters_.unanswered;
      let_go_first(line);
    } else {
      break;
    }
  }
  if (l.first == kNone) return;
  slots_[l.first].what == What::kRead ? ask_reads(now, line) : ask_data(now, line);
}

void EdmStage::ask_reads(Time now, std::uint32_t line) {
  Line& l = lines_[line];
  if (l.granted.left != 0 || (l.reads_asked != 0 && is_long(l.asked_last))) return;
  std::uint32_t next = l.reads_asked == 0 ? l.first : slots_[l.asked_last].next;
  bool last = false;
  for (; next != kNone && slots_[next].what == What::kRead && !last; next = slots_[next].next) {
    last = is_long(next);
    const std::uint64_t all = answer_on_wire(slots_[next].answer);
    const std::uint64_t bytes = last ? settings_.chunk / 8 * 8 : all;
    if (!notify(now, line, bytes, all - bytes)) return;
    l.asked_last = next;
    ++l.reads_asked;
  }
}

// One demand for several packets that are in front: a "mega" message (EDM §3.1.2). No more at once than may meet at a port; and one packet alone
// once it has waited for long, for to the scheduler a longer demand is less urgent than all that others send one by one.
void EdmStage::ask_data(Time now, std::uint32_t line) {
  Line& l = lines_[line];
  if (l.bytes_asked != 0) return;
  std::uint32_t bytes = 0;
  const std::uint64_t most = now - slots_[l.first].since >= settings_.hold / 4 ? 1 : settings_.burst;
  for (std::uint32_t s = l.first; s != kNone && slots_[s].what == What::kData && bytes < most; s = slots_[s].next)
    bytes += slots_[s].length + kAround;
  const edm::Demand demand{.source = from(line),
                           .destination = to(line),
                           .id = edm::MessageId(0),
                           .kind = edm::DemandKind::kWrite,
                           .bytes = bytes};
  if (scheduler_.notify(now, demand) == edm::NotifyVerdict::kAccepted) l.bytes_asked = bytes;
}

void EdmStage::schedule(Time now) {
  while (scheduler_.next_deadline() <= now) {
    scheduler_.on_deadline(now);
    for (edm::Grant grant; scheduler_.poll_grant(grant);) granted(now, grant);
  }
}

void EdmStage::granted(Time now, const edm::Grant& grant) {
  const auto pair = [](edm::PortId a, edm::PortId b) { return std::uint32_t{a.value} * kHosts + b.value; };
  if (grant.kind == edm::DemandKind::kResponse) {
    return granted_read(now, pair(grant.destination, grant.source), grant);
  }
  const std::uint32_t line = pair(grant.source, grant.destination);
  Line& l = lines_[line];
  l.credit += grant.bytes;
  while (l.first != kNone && slots_[l.first].what == What::kData && slots_[l.first].length + kAround <= l.credit) {
    const std::uint32_t used = slots_[l.first].length + kAround;
    l.credit -= used;
    l.bytes_asked -= used;
    ++counters_.frames;
    counters_.frame_bytes += slots_[l.first].length;
    release_granted(now, l);
  }
  ask(now, line);
}

void EdmStage::granted_read(Time now, std::uint32_t line, const edm::Grant& grant) {
  Line& l = lines_[line];
  const Time until = grant.at + scheduler_.time_taken(grant);
  if (!grant.first || l.granted.asked) {  // of an answer that comes as a whole
    l.granted.until = until;
    if (!std::exchange(l.granted.asked, false)) return;
    l.granted.bytes += grant.bytes;
    l.granted.left -= grant.bytes;
    if (l.granted.left == 0) ask(now, line);
    return;
  }
  SLUICE_CHECK(l.reads_asked != 0 && slots_[l.first].what == What::kRead);
  const Slot& request = slots_[l.first];
  l.granted = {.first = request.psn,
               .at = request.at,
               .answer = request.answer,
               .until = until,
               .left = is_long(l.first) ? answer_on_wire(request.answer) - grant.bytes : 0,
               .bytes = grant.bytes,
               .heard = now};
  if (l.unanswered++ == 0) l.unanswered_since = now;
  --l.reads_asked;
  ++counters_.reads;
  counters_.read_bytes += request.answer;
  release_granted(now, l);
  ask(now, line);
}

void EdmStage::release_granted(Time now, Line& line) {
  if (now > slots_[line.first].since) ++counters_.waited;
  release_first(now, line);
}

void EdmStage::release_first(Time now, Line& line) {
  const std::uint32_t slot = line.first;
  Slot& s = slots_[slot];
  line.first = s.next;
  if (line.first == kNone) line.last = kNone;
  counters_.longest = std::max(counters_.longest, now - s.since);
  s.next = kNone;
  (ready_first_ == kNone ? ready_first_ : slots_[ready_last_].next) = slot;
  ready_last_ = slot;
  --held_;
}

// The first of a line, without a grant: its demand is taken back. Of data, that of all that are in front; the others ask anew.
void EdmStage::let_go_first(std::uint32_t line) {
  Line& l = lines_[line];
  if (slots_[l.first].what == What::kRead && l.reads_asked != 0) {
    SLUICE_CHECK(scheduler_.withdraw(now_, to(line), from(line), edm::DemandKind::kResponse));
    --l.reads_asked;
  }
  if (slots_[l.first].what == What::kData && l.bytes_asked != 0) {
    SLUICE_CHECK(scheduler_.withdraw(now_, from(line), to(line), edm::DemandKind::kWrite));
    l.bytes_asked = l.credit = 0;
  }
  release_first(now_, l);
}

// All that a line holds.
void EdmStage::let_go(std::uint32_t line, std::uint64_t& counter) {
  for (; lines_[line].first != kNone; ++counter) let_go_first(line);
}

// Those that have waited for too long; and lines that hold nothing any more leave the list.
void EdmStage::sweep(Time now) {
  for (const std::uint32_t line : busy_) {
    Line& l = lines_[line];
    const std::uint64_t before = counters_.overdue;
    for (; l.first != kNone && slots_[l.first].since + settings_.hold <= now; ++counters_.overdue) let_go_first(line);
    if (counters_.overdue != before) ask(now, line);
    if (l.granted.left != 0 && l.granted.heard + settings_.hold < now) {
      ++counters_.abandoned;
      end_read(now, line);
    }
    l.listed = l.first != kNone || l.granted.left != 0;
  }
  std::erase_if(busy_, [&](std::uint32_t line) { return !lines_[line].listed; });
  sweep_at_ = busy_.empty() ? Time::never() : now + settings_.hold / 4;
}

void EdmStage::emit(port::FrameSink& outbox) {
  while (ready_first_ != kNone) {
    Slot& s = slots_[ready_first_];
    std::uint8_t* const room = outbox.reserve(s.length);
    if (room == nullptr) return;  // the rest in the next turn
    std::memcpy(room, &bytes_[std::size_t{ready_first_} * port::kMaxFrame], s.length);
    outbox.commit(s.length);
    const std::uint32_t slot = ready_first_;
    ready_first_ = s.next;
    s.next = free_;
    free_ = slot;
    ++free_count_;
  }
  ready_last_ = kNone;
}

Result<void> EdmStage::change(const std::string& text) {
  const auto wish = nlohmann::json::parse(text, nullptr, false);
  if (!wish.is_object() || wish.size() != 1 || !wish.contains("on") || !wish["on"].is_boolean())
    return fail(R"(EDM: what may change is {"on": true} or {"on": false})");
  on_ = wish["on"].get<bool>();
  if (on_) return {};
  std::uint64_t let = 0;
  for (std::uint32_t line = 0; line < lines_.size(); ++line) {
    let_go(line, let);
    end_read(now_, line);
    lines_[line].forget();  // nobody sees answers now
  }
  return {};
}

std::string EdmStage::status_json() const {
  const Counters& c = counters_;
  return nlohmann::json{{"on", on_},
                        {"policy", settings_.policy == edm::Policy::kFirstCome ? "fcfs" : "srpt"},
                        {"bits_per_second", settings_.bits_per_second},
                        {"hosts", known_.size()},
                        {"held", held_},
                        {"most_held", c.most_held},
                        {"longest_us", static_cast<double>(c.longest.picoseconds()) / 1e6},
                        {"reads", c.reads},
                        {"read_bytes", c.read_bytes},
                        {"frames", c.frames},
                        {"frame_bytes", c.frame_bytes},
                        {"waited", c.waited},
                        {"overdue", c.overdue},
                        {"overflow", c.overflow},
                        {"lost", c.lost},
                        {"strangers", c.strangers},
                        {"unanswered", c.unanswered},
                        {"refused", c.refused},
                        {"abandoned", c.abandoned},
                        {"grants", scheduler_.counters().grants}}
      .dump();
}

}  // namespace sluice::rack
