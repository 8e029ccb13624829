#include "fuzz/udp_properties.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "ports/udp_container.h"
#include "ports/udp_session.h"

namespace sluice::fuzz {
namespace {

using namespace ports;

using Frames = std::vector<std::vector<std::uint8_t>>;

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
  Frames again;
  for (const auto& datagram : train.datagrams()) {
    SLUICE_CHECK(datagram.length <= datagram_bytes || datagram.frames == 1);
    SLUICE_CHECK(ContainerHeader::parse(train.bytes(datagram)));
    for (auto& frame : unpack(train.bytes(datagram))) again.push_back(std::move(frame));
  }
  SLUICE_CHECK(again == frames);
}

// One end's answers must come to an end and carry its own session.
void drain(UdpSession& session, SessionId own, Time now) {
  int sent = 0;
  while (const auto header = session.poll_transmit(now)) {
    SLUICE_CHECK(header->sender == own || header->sender == SessionId());
    SLUICE_CHECK(++sent <= 4);
  }
}

}  // namespace

void check_container(ByteView input) {
  std::vector<std::uint8_t> datagram(input.begin(), input.end());  // its end is where the sanitizer sees it
  const auto header = ContainerHeader::parse(datagram);
  if (!header) return;
  std::vector<std::uint8_t> written(kContainerHeader);
  header->write(written.data());
  SLUICE_CHECK(std::equal(written.begin(), written.end(), datagram.begin()));
  const Frames frames = unpack(datagram);
  check_repacked(frames, *header, 60'000, Padding::kNone);
  check_repacked(frames, *header, 1'472, Padding::kToFullSize);
}

void check_sessions(ByteView script) {
  constexpr SessionId kCaller(0x01010101);
  constexpr SessionId kCallee(0x02020202);
  UdpSession caller(UdpSession::Role::kCaller, kCaller, Time());
  UdpSession callee(UdpSession::Role::kCallee, kCallee, Time());
  Time now;
  // A step: what, to whom, kind, sender, receiver, how much later.
  for (; script.size() >= 5; script = script.subspan(5)) {
    const bool to_caller = (script[0] & 1) != 0;
    UdpSession& target = to_caller ? caller : callee;
    const SessionId own = to_caller ? kCaller : kCallee;
    now = now + Duration::milliseconds(script[4] * script[4]);
    if ((script[0] & 6) == 6) {
      target.on_refused(now);
      SLUICE_CHECK(!target.up());
    } else {
      const auto id = [](std::uint8_t byte) { return SessionId(byte * 0x01010101u); };
      const ContainerHeader header{.kind = ContainerKind{static_cast<std::uint8_t>(script[1] % 5)},
                                   .sender = id(script[2] % 4),
                                   .receiver = id(script[3] % 4)};
      const bool was_up = target.up();
      const auto verdict = target.on_header(now, header);
      if (verdict == UdpSession::Verdict::kTakeFrames) SLUICE_CHECK(was_up && header.receiver == own);
    }
    drain(caller, kCaller, now);
    drain(callee, kCallee, now);
    for (UdpSession* session : {&caller, &callee}) {
      session->on_deadline(now);
      if (session->up())
        SLUICE_CHECK(session->next_deadline() > now || session->next_deadline() + UdpSession::kKeepAlive > now);
    }
    SLUICE_CHECK(caller.next_deadline() != Time::never());
  }
}

}  // namespace sluice::fuzz
