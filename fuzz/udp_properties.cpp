#include "fuzz/udp_properties.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ports/udp_container.h"
#include "ports/udp_session.h"

namespace sluice::fuzz {
namespace {

using namespace ports;

using Frames = std::vector<std::vector<std::uint8_t>>;

bool same(const std::optional<ContainerHeader>& a, const std::optional<ContainerHeader>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  return a->kind == b->kind && a->sender == b->sender && a->receiver == b->receiver;
}

// What udp_container.h says of records, with offsets.
Frames records_of(ByteView datagram, bool& malformed) {
  Frames frames;
  std::size_t at = kContainerHeader;
  malformed = false;
  while (at + 2 <= datagram.size()) {
    const std::size_t length = datagram[at] * 256u + datagram[at + 1];
    if (length == 0) break;
    malformed = length > port::kMaxFrame || at + 2 + length > datagram.size();
    if (malformed) break;
    const auto begin = datagram.begin() + static_cast<std::ptrdiff_t>(at + 2);
    frames.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(length));
    at += 2 + length;
  }
  return frames;
}

Frames unpack(MutableBytes datagram) {
  Frames frames;
  ContainerReader reader(datagram);
  const std::uint8_t* from = datagram.data() + kContainerHeader;
  while (reader.more()) {
    const auto frame = reader.next();
    if (!frame) break;
    SLUICE_CHECK(frame->length > 0 && frame->length <= port::kMaxFrame);
    SLUICE_CHECK(frame->data >= from + kRecordPrefix &&
                 frame->data + frame->length <= datagram.data() + datagram.size());
    from = frame->data + frame->length;
    frames.emplace_back(frame->data, frame->data + frame->length);
  }
  SLUICE_CHECK(!reader.more() && !reader.next());
  bool malformed = false;
  SLUICE_CHECK(frames == records_of(datagram, malformed) && reader.malformed() == malformed);
  return frames;
}

void check_repacked(const Frames& frames, const ContainerHeader& header, std::size_t datagram_bytes, Padding padding) {
  std::size_t bytes = 2 * port::kMaxFrame;
  for (const auto& frame : frames) bytes += 2 * frame.size() + kContainerHeader;
  ContainerTrain train(bytes);
  datagram_bytes = std::min(datagram_bytes, bytes);
  train.set_datagram(datagram_bytes, padding);
  for (const auto& frame : frames) {
    std::uint8_t* room = train.reserve(frame.size());
    if (room == nullptr) return;
    std::copy(frame.begin(), frame.end(), room);
    train.commit(frame.size());
  }
  train.close(header);
  // Sent by and by: what is not sent yet stays as it is.
  Frames again;
  std::size_t datagrams = train.datagrams().size();
  for (std::size_t some = 1; !train.datagrams().empty(); some = some % 3 + 1) {
    SLUICE_CHECK(train.datagrams().size() == datagrams);
    const std::size_t now = std::min(some, datagrams);
    for (std::size_t i = 0; i < now; ++i) {
      const auto& datagram = train.datagrams()[i];
      const bool last = i + 1 == datagrams;
      SLUICE_CHECK(datagram.length <= datagram_bytes || datagram.frames == 1);
      if (padding == Padding::kToFullSize && !last) SLUICE_CHECK(datagram.length >= datagram_bytes);
      SLUICE_CHECK(same(ContainerHeader::parse(train.bytes(datagram)), header));
      const Frames inside = unpack(train.bytes(datagram));
      SLUICE_CHECK(inside.size() == datagram.frames);
      again.insert(again.end(), inside.begin(), inside.end());
    }
    train.sent(now);
    datagrams -= now;
  }
  SLUICE_CHECK(train.empty() && datagrams == 0 && again == frames);
}

// A session once more, from udp_session.h.
struct SessionModel {
  UdpSession::Role role{};
  SessionId own;
  SessionId peer{};
  bool up = false;
  std::optional<ContainerHeader> reply{};
  Time heard{};
  Time sent{};
  Time hello{};
  Duration interval = UdpSession::kFirstHello;
  std::uint64_t resets = 0;

  bool calls() const { return role == UdpSession::Role::kCaller; }
  ContainerHeader header(ContainerKind kind) const { return {.kind = kind, .sender = own, .receiver = peer}; }
  void rise(Time now, SessionId who) {
    up = true;
    peer = who;
    heard = sent = now;
    interval = UdpSession::kFirstHello;
  }
  void fall(Time now) {
    if (!up) return;
    up = false;
    peer = SessionId();
    reply.reset();
    hello = now + interval;
    ++resets;
  }
  UdpSession::Verdict on_header(Time now, const ContainerHeader& h) {
    using Verdict = UdpSession::Verdict;
    const bool ours = h.receiver == own, named = h.sender != SessionId();
    switch (h.kind) {
      case ContainerKind::kHello:
        if (calls() || !named) return Verdict::kStale;
        if (up && h.sender != peer) ++resets;
        rise(now, h.sender);
        reply = header(ContainerKind::kWelcome);
        return Verdict::kDone;
      case ContainerKind::kWelcome:
        if (!calls() || !ours || !named || (up && h.sender != peer)) return Verdict::kStale;
        if (!up) rise(now, h.sender);
        return Verdict::kDone;
      case ContainerKind::kGoodbye:
        if (!up || !ours || (named && h.sender != peer)) return Verdict::kStale;
        fall(now);
        return Verdict::kDone;
      default: break;
    }
    if (!up || !ours || h.sender != peer) {
      if (!calls()) reply = {.kind = ContainerKind::kGoodbye, .sender = SessionId(), .receiver = h.sender};
      return Verdict::kStale;
    }
    heard = now;
    return h.kind == ContainerKind::kData ? Verdict::kTakeFrames : Verdict::kDone;
  }
  std::optional<ContainerHeader> to_send(Time now) {
    if (reply) {
      sent = now;
      return std::exchange(reply, std::nullopt);
    }
    if (up && now - sent >= UdpSession::kKeepAlive) {
      sent = now;
      return header(ContainerKind::kKeepAlive);
    }
    if (up || !calls() || now < hello) return std::nullopt;
    hello = now + interval;
    interval = std::min(interval * 2, UdpSession::kLastHello);
    return header(ContainerKind::kHello);
  }
  Time next_deadline() const {
    if (up) return std::min(heard + UdpSession::kSilence, sent + UdpSession::kKeepAlive);
    return calls() ? hello : Time::never();
  }
};

struct End {
  End(UdpSession::Role role, SessionId own) : session(role, own, Time()), model{.role = role, .own = own} {}

  void take(Time now, const ContainerHeader& header) {
    const auto due = model.on_header(now, header);
    SLUICE_CHECK(session.on_header(now, header) == due);
  }
  // What it has to say now.
  std::vector<ContainerHeader> turn(Time now) {
    if (model.up && now - model.heard >= UdpSession::kSilence) model.fall(now);
    session.on_deadline(now);
    std::vector<ContainerHeader> said;
    for (;;) {
      const auto header = session.poll_transmit(now);
      SLUICE_CHECK(same(header, model.to_send(now)));
      if (!header) break;
      said.push_back(*header);
      SLUICE_CHECK(said.size() <= 2);
    }
    SLUICE_CHECK(session.up() == model.up && session.resets() == model.resets);
    SLUICE_CHECK(session.next_deadline() == model.next_deadline() && session.next_deadline() > now);
    return said;
  }

  UdpSession session;
  SessionModel model;
};

void check_datagram(ByteView input) {
  std::vector<std::uint8_t> datagram(input.begin(), input.end());  // its end is where the sanitizer sees it
  const auto header = ContainerHeader::parse(datagram);
  const bool sound = datagram.size() >= kContainerHeader && datagram[0] == 's' && datagram[1] == 'L' &&
                     datagram[2] == 1 && datagram[3] <= 4;
  SLUICE_CHECK(header.has_value() == sound);
  if (!header) return;
  std::vector<std::uint8_t> written(kContainerHeader);
  header->write(written.data());
  SLUICE_CHECK(std::equal(written.begin(), written.end(), datagram.begin()));
  const Frames frames = unpack(datagram);
  check_repacked(frames, *header, 60'000, Padding::kNone);
  check_repacked(frames, *header, 1'472, Padding::kToFullSize);
}

}  // namespace

void check_container(ByteView input) {
  check_datagram(input);
  // Chance alone seldom finds the beginning that lets the rest through.
  std::vector<std::uint8_t> plausible(input.begin(), input.end());
  if (plausible.size() < kContainerHeader) return;
  plausible[0] = 's';
  plausible[1] = 'L';
  plausible[2] = 1;
  plausible[3] %= 5;
  check_datagram(plausible);
}

void check_sessions(ByteView script) {
  End caller(UdpSession::Role::kCaller, SessionId(0x01010101));
  End callee(UdpSession::Role::kCallee, SessionId(0x02020202));
  Time now;
  // A step: what, to whom, kind, sender, receiver, how much later.
  for (; script.size() >= 5; script = script.subspan(5)) {
    End& target = (script[0] & 1) != 0 ? caller : callee;
    now = now + Duration::milliseconds(script[4] * script[4]);
    if ((script[0] & 6) == 6) {
      target.model.fall(now);
      target.session.on_refused(now);
    } else if ((script[0] & 6) == 4) {
      target.model.sent = now;
      target.session.on_data_sent(now);
    } else {
      const auto id = [](std::uint8_t byte) { return SessionId(byte * 0x01010101u); };
      target.take(now, {.kind = ContainerKind{static_cast<std::uint8_t>(script[1] % 5)},
                        .sender = id(script[2] % 4),
                        .receiver = id(script[3] % 4)});
    }
    for (End* end : {&caller, &callee}) end->turn(now);
  }
  // Whatever has happened, over a network that brings everything they find each other soon.
  for (int i = 0; i < 120; ++i) {
    now = now + Duration::milliseconds(50);
    for (const ContainerHeader& header : caller.turn(now)) callee.take(now, header);
    for (const ContainerHeader& header : callee.turn(now)) caller.take(now, header);
  }
  SLUICE_CHECK(caller.session.up() && callee.session.up());
  SLUICE_CHECK(callee.session.on_header(now, caller.session.header(ContainerKind::kData)) ==
               UdpSession::Verdict::kTakeFrames);
  SLUICE_CHECK(caller.session.on_header(now, callee.session.header(ContainerKind::kData)) ==
               UdpSession::Verdict::kTakeFrames);
}

}  // namespace sluice::fuzz
