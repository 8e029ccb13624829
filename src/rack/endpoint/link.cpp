#include "rack/endpoint/link.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "nic/nic.h"

namespace sluice::rack {

using rc::ConnectionEvent;

constexpr std::uint32_t kLeastPathMtu = 256;

Link::Link(nic::Connector& connector, LinkConfig config, Events events)
    : connector_(connector), config_(std::move(config)), events_(std::move(events)), pause_(config_.first_pause) {}

Link::~Link() { drop(Time()); }

void Link::want(Time now, std::optional<Peer> peer) {
  if (peer == peer_) return;
  drop(now);
  peer_ = peer;
  state_ = State::kIdle;
  pause_ = config_.first_pause;
  path_mtu_ = 0;
  if (peer_) connect(now);
}

void Link::poll(Time now) {
  if (state_ == State::kWaiting && now >= retry_at_) connect(now);
}

void Link::connect(Time now) {
  auto made = connector_.adapter().create_queue_pair(config_.pair);
  if (!made) return pause(now, made.error().message);
  pair_ = *made;
  if (events_.on_made) events_.on_made(now, *pair_);
  rc::ConnectionParameters parameters;
  parameters.pair = pair_;
  parameters.path_mtu = path_mtu_;
  parameters.private_data = config_.private_data;
  parameters.responder_resources = nic::kReadsInFlight;
  parameters.initiator_depth = nic::kReadsInFlight;
  parameters.retry_count = config_.retry_count;
  parameters.ack_timeout = config_.ack_timeout;
  parameters.response_timeout = config_.response_timeout;
  parameters.max_retries = config_.max_retries;
  auto id = connector_.connect(now, peer_->gid, peer_->port, parameters,
                               [this](Time t, const ConnectionEvent& event) { on_event(t, event); });
  if (!id) {
    connector_.adapter().destroy(std::exchange(pair_, nullptr));
    return pause(now, id.error().message);
  }
  id_ = *id;
  state_ = State::kConnecting;
}

void Link::on_event(Time now, const ConnectionEvent& event) {
  switch (event.kind) {
    case ConnectionEvent::Kind::kRequest:
    case ConnectionEvent::Kind::kResponse: return;
    case ConnectionEvent::Kind::kEstablished:
      state_ = State::kUp;
      ++connects_;
      pause_ = config_.first_pause;
      why_.clear();
      return events_.on_up(now, *pair_);
    case ConnectionEvent::Kind::kRejected:
      drop(now);
      if (event.reject_reason == wire::CmRejectReason::kInvalidMtu) ask_for_less();
      return pause(now, fmt::format("{} refuses the connection", peer_->gid.to_string()));
    case ConnectionEvent::Kind::kUnreachable:
      drop(now);
      return pause(now, fmt::format("{} does not answer", peer_->gid.to_string()));
    case ConnectionEvent::Kind::kDisconnected:
      drop(now);
      return pause(now, fmt::format("{} has closed the connection", peer_->gid.to_string()));
  }
}

void Link::failed(Time now, std::string why) {
  if (state_ != State::kUp) return;
  drop(now);
  pause(now, std::move(why));
}

// The peer's interface holds less than ours.
void Link::ask_for_less() {
  const std::uint32_t asked = path_mtu_ == 0 ? connector_.adapter().config().mtu : path_mtu_;
  path_mtu_ = std::max(asked / 2, kLeastPathMtu);
}

std::uint32_t Link::path_mtu() const {
  SLUICE_CHECK(up());
  return pair_->attributes().path_mtu.value();
}

// Leaves no queue pair behind. The state is then the caller's to set.
void Link::drop(Time now) {
  if (pair_ == nullptr) return;
  connector_.forget(now, id_);
  static_cast<void>(connector_.adapter().modify(now, *pair_, {.state = rc::QpState::kError}));
  if (state_ == State::kUp) events_.on_down(now, *pair_);
  state_ = State::kIdle;
  connector_.adapter().destroy(std::exchange(pair_, nullptr));
}

void Link::pause(Time now, std::string why) {
  why_ = std::move(why);
  state_ = State::kWaiting;
  retry_at_ = now + pause_;
  pause_ = std::min(pause_ * 2, config_.longest_pause);
}

}  // namespace sluice::rack
