#include "sim/tcp/tcp_host.h"

#include "wire/ethernet.h"

namespace sluice::sim {
namespace {

constexpr std::uint16_t kServerPort = 5201;  // iperf3's
constexpr std::uint16_t kFirstClientPort = 49'152;
constexpr std::size_t kAckRoom = 256;

}  // namespace

TcpHost::TcpHost(EventLoop& loop, PacketPool& pool, Trace& trace, const TcpHostAddress& address, std::uint32_t number,
                 Duration latency)
    : loop_(loop), pool_(pool), trace_(trace), address_(address), number_(number), latency_(latency) {}

TcpHost::~TcpHost() {
  for (PacketLine* line : {&arrived_, &acks_}) {
    while (!line->empty()) pool_.give_back(line->pop());
  }
}

void TcpHost::attach(Pipe& out) {
  out_ = &out;
  out.set_low(*this);
}

void TcpHost::add_sender(const TcpHostAddress& to, const TcpParameters& parameters) {
  const auto port = static_cast<std::uint16_t>(kFirstClientPort + senders_.size());
  senders_.push_back({{address_, to, port, kServerPort}, parameters, TcpSender(parameters)});
}

void TcpHost::add_receiver(const TcpHostAddress& from, const TcpParameters& parameters) {
  const auto port = static_cast<std::uint16_t>(kFirstClientPort + receivers_.size());
  receivers_.push_back({{address_, from, kServerPort, port}, TcpReceiver(parameters)});
}

void TcpHost::start(Time now, std::size_t flow) {
  senders_[flow].started = true;
  out_->offer(now);
}

void TcpHost::on_packet(Time now, Packet* packet) {
  trace_.arrival(now, number_, packet->frame().bytes());
  packet->when = now + latency_;
  if (arrived_.empty()) loop_.schedule(take_, packet->when);
  arrived_.push(packet);
}

void TcpHost::take(Time now) {
  Packet* const packet = arrived_.pop();
  if (!arrived_.empty()) loop_.schedule(take_, arrived_.front()->when);
  TcpFrame frame;
  const bool is_tcp = read_tcp(packet->frame().bytes(), frame);
  pool_.give_back(packet);
  const bool is_data = frame.payload != 0;
  const std::size_t flow = std::size_t{is_data ? frame.from_port : frame.to_port} - kFirstClientPort;
  if (!is_tcp || flow >= (is_data ? receivers_.size() : senders_.size())) {
    ++ignored_;
    return;
  }
  if (is_data) {
    take_data(now, receivers_[flow], frame);
  } else {
    take_ack(now, senders_[flow].machine, frame.ack);
  }
  arm_timer();
}

void TcpHost::take_data(Time now, Receiver& receiver, const TcpFrame& frame) {
  receiver.machine.on_segment(now, near(receiver.machine.received(), frame.sequence));
  answer(now, receiver);
}

void TcpHost::take_ack(Time now, TcpSender& sender, TcpAck ack) {
  ack.next = near(sender.acknowledged(), ack.next);
  for (TcpBlock& block : ack.blocks) block = {near(ack.next, block.from), near(ack.next, block.to)};
  sender.on_ack(now, ack);
  out_->offer(now);
}

void TcpHost::answer(Time now, Receiver& receiver) {
  const auto ack = receiver.machine.poll_transmit(now);
  if (!ack) return;
  Packet* const packet = pool_.take(kAckRoom);
  packet->length = write_ack(packet->data, receiver.route, *ack);
  acks_.push(packet);
  out_->offer(now);
}

Packet* TcpHost::next(Time now) {
  if (!acks_.empty()) return acks_.pop();
  for (std::size_t asked = 0; asked < senders_.size(); ++asked) {
    Sender& sender = senders_[turn_];
    turn_ = (turn_ + 1) % senders_.size();
    if (!sender.started) continue;
    const auto sequence = sender.machine.poll_transmit(now);
    if (!sequence) continue;
    Packet* const packet = pool_.take(wire::EthernetHeader::kSize + kTcpHeaders + sender.parameters.mss);
    packet->length = write_segment(packet->data, sender.route, *sequence, sender.parameters.mss);
    arm_timer();
    return packet;
  }
  return nullptr;
}

void TcpHost::arm_timer() {
  Time next = Time::never();
  for (const Sender& sender : senders_) next = std::min(next, sender.machine.next_deadline());
  for (const Receiver& receiver : receivers_) next = std::min(next, receiver.machine.next_deadline());
  if (next != Time::never()) loop_.schedule_no_later(timer_, next);
}

// It may be early: what a deadline was for may have been done since.
void TcpHost::on_timer(Time now) {
  for (Sender& sender : senders_) sender.machine.on_deadline(now);
  for (Receiver& receiver : receivers_) {
    receiver.machine.on_deadline(now);
    answer(now, receiver);
  }
  out_->offer(now);
  arm_timer();
}

}  // namespace sluice::sim
