#include "ports/udp_session.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sluice::ports {

UdpSession::UdpSession(Role role, SessionId own, Time now)
    : role_(role), own_(own), last_heard_(now), last_sent_(now), next_hello_(now) {
  SLUICE_CHECK(own != SessionId());
}

UdpSession::Verdict UdpSession::on_header(Time now, const ContainerHeader& header) {
  switch (header.kind) {
    case ContainerKind::kHello: return on_hello(now, header);
    case ContainerKind::kWelcome: return on_welcome(now, header);
    case ContainerKind::kGoodbye:
      // Whoever does not know us answers with a session of 0, but names ours.
      if (!up_ || header.receiver != own_ || (header.sender != peer_ && header.sender != SessionId())) break;
      fall(now);
      return Verdict::kDone;
    case ContainerKind::kData:
    case ContainerKind::kKeepAlive:
      if (!is_current(header)) {
        if (role_ == Role::kCallee) reply_ = stranger_reply(header);
        break;
      }
      last_heard_ = now;
      return header.kind == ContainerKind::kData ? Verdict::kTakeFrames : Verdict::kDone;
  }
  return Verdict::kStale;
}

ContainerHeader UdpSession::stranger_reply(const ContainerHeader& header) {
  return {.kind = ContainerKind::kGoodbye, .sender = SessionId(), .receiver = header.sender};
}

UdpSession::Verdict UdpSession::on_hello(Time now, const ContainerHeader& header) {
  if (role_ != Role::kCallee || header.sender == SessionId()) return Verdict::kStale;
  if (up_ && header.sender != peer_) ++resets_;  // another life of the caller, at the same address
  rise(now, header.sender);
  reply_ = this->header(ContainerKind::kWelcome);
  return Verdict::kDone;
}

UdpSession::Verdict UdpSession::on_welcome(Time now, const ContainerHeader& header) {
  if (role_ != Role::kCaller || header.receiver != own_ || header.sender == SessionId()) return Verdict::kStale;
  if (up_) return header.sender == peer_ ? Verdict::kDone : Verdict::kStale;
  rise(now, header.sender);
  return Verdict::kDone;
}

bool UdpSession::is_current(const ContainerHeader& header) const {
  return up_ && header.sender == peer_ && header.receiver == own_;
}

void UdpSession::on_refused(Time now) {
  if (up_) fall(now);
}

void UdpSession::rise(Time now, SessionId peer) {
  up_ = true;
  peer_ = peer;
  last_heard_ = last_sent_ = now;
  hello_interval_ = kFirstHello;
}

void UdpSession::fall(Time now) {
  up_ = false;
  peer_ = SessionId();
  reply_.reset();
  ++resets_;
  next_hello_ = now + hello_interval_;
}

void UdpSession::on_deadline(Time now) {
  if (up_ && now - last_heard_ >= kSilence) fall(now);
}

Time UdpSession::next_deadline() const {
  if (up_) return std::min(last_heard_ + kSilence, last_sent_ + kKeepAlive);
  return role_ == Role::kCaller ? next_hello_ : Time::never();
}

std::optional<ContainerHeader> UdpSession::poll_transmit(Time now) {
  if (reply_) {
    last_sent_ = now;
    return std::exchange(reply_, std::nullopt);
  }
  if (up_) {
    if (now - last_sent_ < kKeepAlive) return std::nullopt;
    last_sent_ = now;
    return header(ContainerKind::kKeepAlive);
  }
  if (role_ != Role::kCaller || now < next_hello_) return std::nullopt;
  next_hello_ = now + hello_interval_;
  hello_interval_ = std::min(hello_interval_ * 2, kLastHello);
  return header(ContainerKind::kHello);
}

}  // namespace sluice::ports
