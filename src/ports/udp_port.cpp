#include "ports/udp_port.h"

#include <fmt/core.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace sluice::ports {
namespace {

constexpr std::size_t kTrainBytes = 256 << 10;
constexpr std::size_t kCallerBuffers = 32;
constexpr std::size_t kListenerBuffers = 64;
constexpr std::size_t kBatch = 16;
constexpr std::size_t kSmallestDatagram = 128;
constexpr Duration kBusyRetry = Duration::microseconds(100);
constexpr Duration kOverrunInterval = Duration::seconds(1);
constexpr int kSendAttempts = 64;

SessionId draw_session() {
  std::uint32_t value = 0;
  while (value == 0) {
    if (getrandom(&value, sizeof value, 0) != sizeof value) value = static_cast<std::uint32_t>(getpid());
  }
  return SessionId(value);
}

Result<UdpOptions> checked(UdpOptions options) {
  if (options.datagram_bytes != 0 &&
      (options.datagram_bytes < kSmallestDatagram || options.datagram_bytes > UdpSocket::kLargestDatagram)) {
    return fail(fmt::format("UDP datagrams of {} bytes are not allowed: take {} to {}, or 0 for what the path allows",
                            options.datagram_bytes, kSmallestDatagram, UdpSocket::kLargestDatagram));
  }
  return options;
}

}  // namespace

// The hub -------------------------------------------------------------------------------------------------------------

UdpHub::UdpHub(UdpSocket socket, std::size_t buffers) : socket_(std::move(socket)), session_(draw_session()) {
  for (std::size_t i = 0; i < buffers; ++i) {
    buffers_.push_back(std::make_unique_for_overwrite<std::uint8_t[]>(UdpSocket::kBuffer));
    free_.push_back(buffers - 1 - i);
  }
}

void UdpHub::poll(Time now) {
  ++generation_;
  polled_at_ = now;
  std::array<std::uint8_t*, kBatch> memory;
  std::array<std::size_t, kBatch> indexes;
  const std::size_t offered = std::min(free_.size(), kBatch);
  for (std::size_t i = 0; i < offered; ++i) {
    indexes[i] = free_[free_.size() - 1 - i];
    memory[i] = buffers_[indexes[i]].get();
  }
  const auto arrivals = socket_.receive(std::span(memory).first(offered));
  free_.resize(free_.size() - arrivals.size());
  for (const auto& arrival : arrivals) dispatch(arrival, indexes[arrival.buffer]);
  if (socket_.error_seen()) spread_refusals(now);
}

void UdpHub::dispatch(const UdpSocket::Arrival& arrival, std::size_t buffer) {
  const auto found = ports_.find(arrival.source);
  UdpPort* port = found == ports_.end() ? nullptr : found->second;
  if (port != nullptr && port->role_ == UdpSession::Role::kCallee && port->state() == port::PortState::kDown) {
    ports_.erase(found);  // that one is over; whoever is there now is a stranger
    port = nullptr;
  }
  if (arrival.length == 0) {  // nothing that an end of ours sends
    ++(port == nullptr ? refused_ : port->counters_.rx_malformed);
    give_back(buffer);
  } else if (port == nullptr) {
    meet_stranger(arrival.source, {buffers_[buffer].get(), std::min(arrival.length, arrival.segment)});
    give_back(buffer);
  } else if (port->inbound_.size() >= UdpPort::kMostInbound) {
    port->counters_.rx_lost += (arrival.length + arrival.segment - 1) / arrival.segment;
    give_back(buffer);
  } else {
    port->take({.buffer = buffer, .length = arrival.length, .segment = arrival.segment});
  }
}

void UdpHub::meet_stranger(const SocketAddress& source, ByteView datagram) {
  const auto header = ContainerHeader::parse(datagram);
  if (!header || most_peers_ == 0) {
    ++refused_;
    return;
  }
  if (header->kind == ContainerKind::kData || header->kind == ContainerKind::kKeepAlive) {
    std::array<std::uint8_t, kContainerHeader> reply;
    UdpSession::stranger_reply(*header).write(reply.data());
    socket_.send_one(reply, &source);
    return;
  }
  if (header->kind != ContainerKind::kHello || header->sender == SessionId()) return;
  const auto same = [&source](const Greeting& greeting) { return greeting.peer == source; };
  if (std::any_of(greetings_.begin(), greetings_.end(), same)) return;
  if (ports_.size() + greetings_.size() >= most_peers_) {
    ++refused_;
    return;
  }
  greetings_.push_back({source, *header});
}

void UdpHub::spread_refusals(Time now) {
  for (const auto& address : socket_.take_refusals()) {
    if (const auto found = ports_.find(address); found != ports_.end()) found->second->on_refused(now);
  }
}

void UdpHub::enter(const SocketAddress& peer, UdpPort& port) { ports_[peer] = &port; }

void UdpHub::leave(const SocketAddress& peer, const UdpPort& port) {
  if (const auto found = ports_.find(peer); found != ports_.end() && found->second == &port) ports_.erase(found);
}

// The port ------------------------------------------------------------------------------------------------------------

UdpPort::UdpPort(std::shared_ptr<UdpHub> hub, UdpSession::Role role, SocketAddress peer, UdpOptions options, Time now)
    : hub_(std::move(hub)),
      role_(role),
      peer_(peer),
      session_(role, hub_->session(), now),
      train_(kTrainBytes),
      last_now_(now),
      scrap_(std::make_unique_for_overwrite<std::uint8_t[]>(port::kMaxFrame)) {
  const auto bytes = options.datagram_bytes != 0 ? options.datagram_bytes : UdpSocket::datagram_limit(peer_);
  // Padding pays where several datagrams fit into one train.
  train_.set_datagram(bytes, bytes * 2 <= UdpSocket::kLargestDatagram ? Padding::kToFullSize : Padding::kNone);
  hub_->enter(destination() == nullptr ? SocketAddress() : peer_, *this);
}

UdpPort::~UdpPort() {
  hub_->leave(destination() == nullptr ? SocketAddress() : peer_, *this);
  for (const auto& inbound : inbound_) hub_->give_back(inbound.buffer);
  for (const auto buffer : spent_) hub_->give_back(buffer);
  if (!session_.up()) return;
  std::array<std::uint8_t, kContainerHeader> goodbye;
  session_.header(ContainerKind::kGoodbye).write(goodbye.data());
  hub_->socket().send_one(goodbye, destination());
}

Result<std::unique_ptr<UdpPort>> UdpPort::connect(const HostPort& peer, UdpOptions options) {
  if (const auto good = checked(options); !good) return tl::unexpected(good.error());
  const auto address = resolve(peer);
  if (!address) return tl::unexpected(address.error());
  auto socket = UdpSocket::connect(*address);
  if (!socket) return tl::unexpected(socket.error());
  auto hub = std::make_shared<UdpHub>(std::move(*socket), kCallerBuffers);
  return std::unique_ptr<UdpPort>(new UdpPort(std::move(hub), UdpSession::Role::kCaller, *address, options, Time()));
}

std::uint8_t* UdpPort::reserve(std::size_t length) {
  SLUICE_CHECK(length <= port::kMaxFrame);
  reserved_ = length;
  reserved_scrap_ = !session_.up();
  if (reserved_scrap_) return scrap_.get();
  if (std::uint8_t* const room = train_.reserve(length)) return room;
  reserved_ = 0;
  ++counters_.tx_full;
  return nullptr;
}

void UdpPort::commit(std::size_t length) {
  SLUICE_CHECK(length > 0 && length <= reserved_);
  reserved_ = 0;
  if (reserved_scrap_) {
    ++counters_.tx_dropped;
    return;
  }
  train_.commit(length);
  ++counters_.tx_frames;
  counters_.tx_bytes += length;
}

bool UdpPort::make_room() {
  while (!train_.empty() && send_some(last_now_)) {
  }
  return train_.empty();
}

bool UdpPort::flush_some(Time now) {
  last_now_ = now;
  reserved_ = 0;
  return !train_.empty() && send_some(now);
}

// One call that takes something. True: more could be sent at once.
bool UdpPort::send_some(Time now) {
  retry_at_ = Time::never();
  if (!session_.up()) {
    counters_.tx_dropped += forget_train();
    return false;
  }
  train_.close(session_.header(ContainerKind::kData));
  bool failed = false;
  for (int attempt = 0; attempt < kSendAttempts && !train_.empty(); ++attempt) {
    switch (hub_->socket().send(train_, destination()).status) {
      case UdpSocket::SendStatus::kSent: session_.on_data_sent(now); return !train_.empty();
      case UdpSocket::SendStatus::kBusy: retry_at_ = now + kBusyRetry; return false;
      case UdpSocket::SendStatus::kRefused:
        hub_->spread_refusals(now);
        if (!session_.up()) counters_.tx_dropped += forget_train();
        break;  // it was another peer's refusal
      case UdpSocket::SendStatus::kFailed:
        hub_->spread_refusals(now);
        if (!std::exchange(failed, true)) break;  // at first it may be what the kernel had to say of another peer
        counters_.tx_dropped += train_.datagrams().front().frames;
        train_.sent(1);
        break;
    }
  }
  if (!train_.empty()) retry_at_ = now + kBusyRetry;
  return false;
}

// Returns how many frames it had.
std::uint64_t UdpPort::forget_train() {
  std::uint64_t frames = 0;
  reserved_ = 0;
  retry_at_ = Time::never();
  train_.close({});
  for (const auto& datagram : train_.datagrams()) frames += datagram.frames;
  train_.sent(train_.datagrams().size());
  return frames;
}

std::size_t UdpPort::receive(Time now, std::span<port::Frame> burst) {
  last_now_ = now;
  reserved_ = 0;
  for (const auto buffer : spent_) hub_->give_back(buffer);
  spent_.clear();

  std::size_t count = 0;
  bool looked = false;
  bool opened = false;
  while (count < burst.size() || count == 0) {
    if (reader_.more()) {
      if (burst.empty()) break;
      if (const auto frame = reader_.next()) {
        burst[count++] = *frame;
        counters_.rx_bytes += frame->length;
      } else if (reader_.malformed()) {
        ++counters_.rx_malformed;
        reader_ = ContainerReader();
      }
      continue;
    }
    if (open_next_datagram(now)) {
      opened = true;
      continue;
    }
    if (looked || count > 0) break;
    // Unless another port of this hub has received for all since our last look.
    if (hub_->generation() == seen_generation_) hub_->poll(now);
    seen_generation_ = hub_->generation();
    looked = true;
  }
  counters_.rx_frames += count;
  // After what has waited here: who was stopped for a while has not heard yet what the other end said meanwhile.
  // (Ports of one socket are served at the same `now`, and each polls it now and then: see SwitchPorts::poll().)
  const bool nothing_waits =
      inbound_.empty() && !reader_.more() && hub_->polled_at() == now && hub_->socket().emptied();
  if (now >= session_.next_deadline() || now >= next_overrun_look_) {
    if (opened || nothing_waits || ++put_off_ >= kMostPutOff) on_time(now);
  } else {
    put_off_ = 0;
  }
  return count;
}

bool UdpPort::open_next_datagram(Time now) {
  if (inbound_.empty()) return false;
  const auto& front = inbound_.front();
  if (offset_ >= front.length) {
    spent_.push_back(front.buffer);
    inbound_.pop_front();
    offset_ = 0;
    return true;
  }
  const std::size_t length = std::min(front.segment, front.length - offset_);
  const MutableBytes datagram(hub_->buffer(front.buffer) + offset_, length);
  offset_ += length;
  const auto header = ContainerHeader::parse(datagram);
  if (!header) {
    ++counters_.rx_malformed;
    return true;
  }
  switch (session_.on_header(now, *header)) {
    case UdpSession::Verdict::kTakeFrames: reader_ = ContainerReader(datagram); break;
    case UdpSession::Verdict::kStale: ++counters_.rx_malformed; [[fallthrough]];
    case UdpSession::Verdict::kDone:
      send_control(now);
      counters_.resets = session_.resets();
      break;
  }
  return true;
}

void UdpPort::take(const UdpHub::Inbound& inbound) { inbound_.push_back(inbound); }

void UdpPort::on_refused(Time now) {
  session_.on_refused(now);
  counters_.resets = session_.resets();
}

void UdpPort::on_time(Time now) {
  session_.on_deadline(now);
  send_control(now);
  counters_.resets = session_.resets();
  if (now >= next_overrun_look_) {
    next_overrun_look_ = now + kOverrunInterval;
    // A listener's socket cannot tell whose datagrams it lost.
    if (role_ == UdpSession::Role::kCaller) {
      const std::uint64_t overruns = hub_->socket().overruns();
      counters_.rx_lost += overruns - std::exchange(overruns_, overruns);
    }
    expelled_ = role_ == UdpSession::Role::kCallee && !hub_->admits(now, peer_);
  }
}

void UdpPort::send_control(Time now) {
  while (const auto header = session_.poll_transmit(now)) {
    std::array<std::uint8_t, kContainerHeader> datagram;
    header->write(datagram.data());
    const auto status = hub_->socket().send_one(datagram, destination());
    if (status == UdpSocket::SendStatus::kRefused) hub_->spread_refusals(now);
    if (status == UdpSocket::SendStatus::kFailed && header->kind == ContainerKind::kHello)
      hub_->socket().connect_anew(peer_);
  }
}

Time UdpPort::next_deadline() const { return std::min(session_.next_deadline(), retry_at_); }

// The listener --------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<UdpListener>> UdpListener::listen(const HostPort& local, UdpOptions options) {
  if (const auto good = checked(options); !good) return tl::unexpected(good.error());
  if (options.most_peers == 0) return fail("a UDP listener needs room for at least one peer");
  const auto address = resolve(local);
  if (!address) return tl::unexpected(address.error());
  auto socket = UdpSocket::bind(*address);
  if (!socket) return tl::unexpected(socket.error());
  auto hub = std::make_shared<UdpHub>(std::move(*socket), kListenerBuffers);
  hub->admit_strangers(options.most_peers);
  return std::unique_ptr<UdpListener>(new UdpListener(std::move(hub), options));
}

std::unique_ptr<port::Port> UdpListener::accept(Time now) {
  if (hub_->greetings().empty() && hub_->generation() == seen_generation_) hub_->poll(now);
  seen_generation_ = hub_->generation();
  while (!hub_->greetings().empty() && !hub_->admits(now, hub_->greetings().front().peer)) {
    hub_->greetings().pop_front();
    hub_->refuse();
  }
  if (hub_->greetings().empty()) return nullptr;
  const auto greeting = hub_->greetings().front();
  hub_->greetings().pop_front();
  std::unique_ptr<UdpPort> made(new UdpPort(hub_, UdpSession::Role::kCallee, greeting.peer, options_, now));
  made->session_.on_header(now, greeting.hello);
  made->send_control(now);
  return made;
}

std::uint16_t UdpListener::port_number() const { return hub_->socket().local().port_number(); }

}  // namespace sluice::ports
