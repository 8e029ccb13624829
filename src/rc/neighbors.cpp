#include "rc/neighbors.h"

#include <algorithm>
#include <iterator>

#include "rc/neighbor_discovery.h"
#include "wire/ethernet.h"

namespace sluice::rc {
namespace {

using wire::ArpPacket;
using wire::EthernetHeader;

constexpr std::size_t kArpFrame = EthernetHeader::kSize + ArpPacket::kSize;
constexpr wire::Gid kAllNodes{{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01}};

// No station has such an address.
bool is_impossible(const wire::MacAddress& mac) { return mac.is_multicast() || mac == wire::MacAddress{}; }

bool write_arp(port::FrameSink& sink, const wire::MacAddress& to, const ArpPacket& packet) {
  std::uint8_t* frame = sink.reserve(kArpFrame);
  if (frame == nullptr) return false;
  EthernetHeader{.destination = to, .source = packet.sender_mac, .ether_type = wire::kEtherTypeArp}.write(frame);
  packet.write(frame + EthernetHeader::kSize);
  sink.commit(kArpFrame);
  return true;
}

bool write_message(port::FrameSink& sink, const NeighborMessage& message) {
  std::uint8_t* frame = sink.reserve(NeighborMessage::kFrameSize);
  if (frame == nullptr) return false;
  message.write(frame);
  sink.commit(NeighborMessage::kFrameSize);
  return true;
}

}  // namespace

Neighbors::Neighbors(const NeighborsConfig& config) : config_(config) {
  config_.capacity = std::max(config_.capacity, 1u);
  config_.tries = std::max<std::uint8_t>(config_.tries, 1);
  entries_.reserve(config_.capacity);
}

bool Neighbors::is_own(const wire::Gid& gid) const {
  return std::find(config_.own.begin(), config_.own.end(), gid) != config_.own.end();
}

std::optional<wire::MacAddress> Neighbors::lookup(const wire::Gid& gid) const {
  if (is_own(gid)) return config_.mac;
  if (is_multicast(gid)) return multicast_mac(gid);
  const Entry* entry = find(gid);
  if (entry == nullptr || !entry->known) return std::nullopt;
  return entry->mac;
}

void Neighbors::resolve(Time now, const wire::Gid& gid) {
  if (const auto mac = lookup(gid)) {
    tell({gid, mac});
    return;
  }
  if (find(gid) != nullptr) return;
  if (is_unspecified(gid) || source_for(gid) == nullptr || !make_room()) {
    ++counters_.failed;
    tell({gid, std::nullopt});
    return;
  }
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), gid,
                                   [](const Entry& entry, const wire::Gid& key) { return entry.gid < key; });
  entries_.insert(at, {.gid = gid, .ask = true, .tries = 1, .deadline = now + config_.first_wait});
  ++to_ask_;
  plan();
}

void Neighbors::probe() {
  probe_rounds_ = kProbes;
  queue_probes();
}

void Neighbors::queue_probes() {
  for (const wire::Gid& own : config_.own) {
    if (own.is_v4()) probes_.push_back(own);
  }
}

std::optional<Resolution> Neighbors::poll_resolution() {
  if (resolutions_.empty()) return std::nullopt;
  const Resolution resolution = resolutions_.front();
  resolutions_.pop_front();
  return resolution;
}

bool Neighbors::on_frame(Time now, ByteView frame) {
  if (frame.size() < EthernetHeader::kSize) return false;
  if (load_be<std::uint16_t>(frame.data() + 12) == wire::kEtherTypeArp) {
    on_arp(now, frame);
    return true;
  }
  if (!NeighborMessage::is_one(frame)) return false;
  on_discovery(now, frame);
  return true;
}

void Neighbors::on_arp(Time now, ByteView frame) {
  const bool whole = frame.size() >= kArpFrame;
  const ArpPacket arp = whole ? ArpPacket::parse(frame.data() + EthernetHeader::kSize) : ArpPacket{};
  if (!whole || !arp.is_ethernet_ipv4() || is_impossible(arp.sender_mac)) {
    ++counters_.malformed;
    return;
  }
  if (arp.sender_mac == config_.mac) return;  // our own, come back
  const auto sender = wire::Gid::from(arp.sender_ip);
  const auto target = wire::Gid::from(arp.target_ip);
  if (is_own(sender)) {
    ++counters_.conflicts;
  } else if (find(sender) != nullptr) {
    learn(now, sender, arp.sender_mac);
  } else if (arp.operation == ArpPacket::kReply) {
    ++counters_.unsolicited;
  }
  if (arp.operation == ArpPacket::kRequest && is_own(target)) {
    answer({.own = target, .to = sender, .to_mac = arp.sender_mac});
  }
}

void Neighbors::on_discovery(Time now, ByteView frame) {
  const auto message = NeighborMessage::parse(frame);
  if (!message || is_impossible(message->link_layer.value_or(message->source_mac))) {
    ++counters_.malformed;
    return;
  }
  if (message->source_mac == config_.mac) return;
  if (message->kind == NeighborMessage::Kind::kSolicitation) {
    const bool probe = is_unspecified(message->source);
    if (!probe && message->link_layer && find(message->source) != nullptr)
      learn(now, message->source, *message->link_layer);
    if (!is_own(message->target)) return;
    const auto to_mac = probe ? multicast_mac(kAllNodes) : message->link_layer.value_or(message->source_mac);
    answer({.own = message->target, .to = probe ? kAllNodes : message->source, .to_mac = to_mac, .solicited = !probe});
    return;
  }
  if (!message->link_layer) return;
  const Entry* entry = find(message->target);
  if (is_own(message->target)) {
    ++counters_.conflicts;
  } else if (entry == nullptr) {
    ++counters_.unsolicited;
  } else if (!entry->known || entry->mac == *message->link_layer || message->override_known) {
    learn(now, message->target, *message->link_layer);
  }
}

void Neighbors::answer(const Answer& answer) {
  if (answers_.size() == kMaxAnswers) {
    ++counters_.answers_dropped;
    return;
  }
  answers_.push_back(answer);
}

// REQUIRES: there is an entry for `gid`.
void Neighbors::learn(Time now, const wire::Gid& gid, const wire::MacAddress& mac) {
  Entry& entry = *find(gid);
  const bool news = !entry.known || entry.mac != mac;
  if (news) ++(entry.known ? counters_.changed : counters_.resolved);
  if (entry.ask) --to_ask_;
  entry.ask = false;
  entry.known = true;
  entry.mac = mac;
  entry.deadline = now + config_.lifetime;
  if (news) tell({gid, mac});
  plan();
}

Neighbors::Entry* Neighbors::find(const wire::Gid& gid) {
  return const_cast<Entry*>(static_cast<const Neighbors*>(this)->find(gid));
}

const Neighbors::Entry* Neighbors::find(const wire::Gid& gid) const {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), gid,
                                   [](const Entry& entry, const wire::Gid& key) { return entry.gid < key; });
  return at != entries_.end() && at->gid == gid ? &*at : nullptr;
}

// True when there is room for one more, if need be after forgetting the known neighbour heard of longest ago. Questions that nobody
// may ever answer take at most half of the room from those that are known.
bool Neighbors::make_room() {
  if (entries_.size() < config_.capacity) return true;
  const auto known = std::ranges::count_if(entries_, &Entry::known);
  if (known <= static_cast<std::ptrdiff_t>(config_.capacity / 2)) return false;
  auto oldest = entries_.end();
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->known && (oldest == entries_.end() || entry->deadline < oldest->deadline)) oldest = entry;
  }
  if (oldest == entries_.end()) return false;
  entries_.erase(oldest);
  ++counters_.evicted;
  return true;
}

void Neighbors::tell(const Resolution& resolution) {
  // Who never asks is not to cost memory without end; each entry has at most a few lines here otherwise.
  if (resolutions_.size() >= std::size_t{4} * config_.capacity) resolutions_.pop_front();
  resolutions_.push_back(resolution);
}

// Our address to ask from: of the same kind, and of the same scope when there is one.
const wire::Gid* Neighbors::source_for(const wire::Gid& target) const {
  const wire::Gid* best = nullptr;
  for (const wire::Gid& own : config_.own) {
    if (own.is_v4() != target.is_v4()) continue;
    if (is_link_local(own) == is_link_local(target)) return &own;
    if (best == nullptr) best = &own;
  }
  return best;
}

bool Neighbors::poll_transmit(Time now, port::FrameSink& sink) {
  if (!answers_.empty()) {
    if (!send_answer(sink, answers_.front())) return false;
    ++counters_.answered;
    answers_.pop_front();
    return true;
  }
  if (!probes_.empty()) {
    if (!send_probe(sink, probes_.back())) return false;
    probes_.pop_back();
    if (probes_.empty() && --probe_rounds_ != 0) {
      next_probe_ = now + kProbeEvery;
      next_deadline_ = std::min(next_deadline_, next_probe_);
    }
    return true;
  }
  if (to_ask_ == 0) return false;
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [](const Entry& e) { return e.ask; });
  if (!send_solicitation(sink, entry->gid)) return false;
  ++counters_.solicitations;
  entry->ask = false;
  --to_ask_;
  return true;
}

bool Neighbors::send_answer(port::FrameSink& sink, const Answer& answer) const {
  if (answer.own.is_v4()) {
    return write_arp(sink, answer.to_mac,
                     {.operation = ArpPacket::kReply,
                      .sender_mac = config_.mac,
                      .sender_ip = answer.own.v4(),
                      .target_mac = answer.to_mac,
                      .target_ip = answer.to.v4()});
  }
  return write_message(sink, {.kind = NeighborMessage::Kind::kAdvertisement,
                              .source_mac = config_.mac,
                              .destination_mac = answer.to_mac,
                              .source = answer.own,
                              .destination = answer.to,
                              .target = answer.own,
                              .link_layer = config_.mac,
                              .solicited = answer.solicited,
                              .override_known = true});
}

bool Neighbors::send_probe(port::FrameSink& sink, const wire::Gid& own) const {
  return write_arp(sink, wire::MacAddress::broadcast(),
                   {.operation = ArpPacket::kRequest,
                    .sender_mac = config_.mac,
                    .sender_ip = {},
                    .target_mac = {},
                    .target_ip = own.v4()});
}

bool Neighbors::send_solicitation(port::FrameSink& sink, const wire::Gid& target) const {
  const wire::Gid& source = *source_for(target);
  if (target.is_v4()) {
    return write_arp(sink, wire::MacAddress::broadcast(),
                     {.operation = ArpPacket::kRequest,
                      .sender_mac = config_.mac,
                      .sender_ip = source.v4(),
                      .target_mac = {},
                      .target_ip = target.v4()});
  }
  const wire::Gid group = solicited_node(target);
  return write_message(sink, {.kind = NeighborMessage::Kind::kSolicitation,
                              .source_mac = config_.mac,
                              .destination_mac = multicast_mac(group),
                              .source = source,
                              .destination = group,
                              .target = target,
                              .link_layer = config_.mac});
}

void Neighbors::on_deadline(Time now) {
  if (now < next_deadline_) return;
  if (now >= next_probe_) {
    next_probe_ = Time::never();
    queue_probes();
  }
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entry->deadline > now) {
      ++entry;
      continue;
    }
    if (entry->ask && !entry->known) {  // it could not even be asked: no try is spent
      entry->deadline = now + config_.first_wait;
      ++entry;
      continue;
    }
    if (entry->known || entry->tries == config_.tries) {
      if (!entry->known) {
        ++counters_.failed;
        tell({entry->gid, std::nullopt});
      }
      entry = entries_.erase(entry);
      continue;
    }
    const Duration wait = config_.first_wait * (std::int64_t{1} << std::min<int>(entry->tries, 20));
    ++entry->tries;
    entry->deadline = now + std::min(wait, config_.longest_wait);
    if (!entry->ask) ++to_ask_;
    entry->ask = true;
    ++entry;
  }
  plan();
}

void Neighbors::plan() {
  next_deadline_ = next_probe_;
  for (const Entry& entry : entries_) next_deadline_ = std::min(next_deadline_, entry.deadline);
}

}  // namespace sluice::rc
