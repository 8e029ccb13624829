#include "sim/world/switch.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "sim/world/priorities.h"
#include "sim/world/roce_packet.h"

namespace sluice::sim {

class Switch::Port final : public Consumer, public port::FrameSink, private Pipe::Observer {
 public:
  Port(Switch& owner, std::uint32_t number, Consumer& consumer, const LinkParameters& link)
      : owner_(owner),
        number_(number),
        out_(owner.loop_, owner.pool_,
             {.bits_per_second = link.bits_per_second,
              .delay = link.delay,
              .queue_bytes = owner.parameters_.queue_bytes,
              .ecn_from = owner.parameters_.ecn_from_bytes,
              .ecn_to = owner.parameters_.ecn_to_bytes,
              .ecn_most_per_million = static_cast<std::uint32_t>(owner.parameters_.ecn_most_per_million)},
             consumer, owner.rng_.fork(number)) {
    if (owner.parameters_.pause_from_bytes != 0) out_.set_observer(this);
    if (owner.has_priorities_)
      priorities_ = std::make_unique<Priorities>(owner.loop_, owner.pool_, out_, owner.parameters_.pipeline_latency,
                                                 owner.parameters_.queue_bytes);
  }
  ~Port() override {
    if (reserved_ != nullptr) owner_.pool_.give_back(reserved_);
  }

  void on_packet(Time now, Packet* packet) override { owner_.arrive(now, number_, packet); }

  std::uint8_t* reserve(std::size_t length) override {
    if (reserved_ != nullptr && reserved_->room < length) {
      owner_.pool_.give_back(reserved_);
      reserved_ = nullptr;
    }
    if (reserved_ == nullptr) reserved_ = owner_.pool_.take(length);
    return reserved_->data;
  }
  void commit(std::size_t length) override {
    Packet* const packet = reserved_;
    reserved_ = nullptr;
    packet->length = static_cast<std::uint32_t>(length);
    packet->ingress = owner_.ingress_;
    const Time now = owner_.loop_.now();
    packet->priority = priorities_ != nullptr && !is_roce(*packet) ? 1 : 0;
    if (owner_.parameters_.pause_from_bytes != 0 && packet->priority == 0)
      owner_.ports_[packet->ingress]->hold(now, packet->length);
    if (priorities_ != nullptr) return priorities_->send(now, packet);
    out_.send(now, now + owner_.parameters_.pipeline_latency, packet);
  }

  std::uint32_t number() const { return number_; }
  bool has_reserved() const { return reserved_ != nullptr; }
  const Pipe& out() const { return out_; }
  void set_uplink(Pipe& uplink) { uplink_ = &uplink; }

 private:
  void on_left(Time now, const Packet& packet) override {
    if (packet.priority == 0) owner_.ports_[packet.ingress]->release(now, packet.length);
  }
  void hold(Time now, std::uint32_t bytes) {
    held_ += bytes;
    if (held_ > owner_.parameters_.pause_from_bytes && uplink_ != nullptr) uplink_->pause(now);
  }
  void release(Time now, std::uint32_t bytes) {
    held_ -= bytes;
    if (held_ <= owner_.parameters_.pause_to_bytes && uplink_ != nullptr) uplink_->resume(now);
  }

  Switch& owner_;
  std::uint32_t number_;
  Pipe out_;
  Packet* reserved_ = nullptr;
  Pipe* uplink_ = nullptr;
  std::uint64_t held_ = 0;                  // bytes that came in here and have not left
  std::unique_ptr<Priorities> priorities_;  // null: all packets are alike
};

Switch::Switch(EventLoop& loop, PacketPool& pool, const SwitchParameters& parameters, const LinkParameters& link,
               std::uint64_t seed)
    : loop_(loop),
      pool_(pool),
      parameters_(parameters),
      link_(link),
      rng_(Rng(seed).fork("switch")),
      forwarding_({.max_ports = kMaxPorts, .queue_bytes = std::size_t{1} << 16, .seed = rng_.fork("macs").next()}) {}

Switch::~Switch() {
  while (!at_stage_.empty()) pool_.give_back(at_stage_.pop());
}

Consumer& Switch::attach(Consumer& consumer, const std::uint8_t* mac, const LinkParameters& link) {
  const auto number = static_cast<std::uint32_t>(ports_.size());
  ports_.push_back(std::make_unique<Port>(*this, number, consumer, link));
  const auto given = forwarding_.attach(loop_.now(), *ports_.back());
  SLUICE_CHECK(given && given->value == number);
  // A frame from `mac` to itself is learned from and goes nowhere.
  std::array<std::uint8_t, 60> hello{};
  std::copy_n(mac, 6, hello.begin());
  std::copy_n(mac, 6, hello.begin() + 6);
  port::Frame frame{hello.data(), static_cast<std::uint32_t>(hello.size())};
  forwarding_.process(loop_.now(), *given, {&frame, 1});
  return *ports_.back();
}

void Switch::set_uplink(Pipe& uplink) { ports_.back()->set_uplink(uplink); }

const Pipe::Counters& Switch::out(std::size_t port) const { return ports_[port]->out().counters(); }

std::uint64_t Switch::reserved() const {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(ports_, [](const auto& port) { return port->has_reserved(); }));
}

void Switch::arrive(Time now, std::uint32_t port, Packet* packet) {
  ++packets_;
  packet->ingress = port;
  if (stage_cost_ == Duration{}) return forward(now, packet);
  packet->when = stage_free_ = std::max(now, stage_free_) + stage_cost_;
  if (at_stage_.empty()) loop_.schedule(stage_, packet->when);
  at_stage_.push(packet);
}

void Switch::on_stage(Time now) {
  Packet* const packet = at_stage_.pop();
  if (!at_stage_.empty()) loop_.schedule(stage_, at_stage_.front()->when);
  forward(now, packet);
}

void Switch::forward(Time now, Packet* packet) {
  ingress_ = packet->ingress;
  port::Frame frame = packet->frame();
  forwarding_.process(now, switching::PortNumber{static_cast<decltype(switching::PortNumber{}.value)>(ingress_)},
                      {&frame, 1});
  pool_.give_back(packet);
  forwarding_.offer_spare(now);
  arm_timer();
}

void Switch::touched(Time now) {
  forwarding_.offer_spare(now);
  arm_timer();
}

void Switch::arm_timer() {
  const Time next = forwarding_.next_deadline();
  if (next != Time::never()) loop_.schedule_no_later(timer_, next);
}

void Switch::on_timer(Time now) {
  if (forwarding_.next_deadline() <= now) forwarding_.on_deadline(now);
  forwarding_.offer_spare(now);
  const Time next = forwarding_.next_deadline();
  if (next != Time::never()) loop_.schedule(timer_, std::max(next, now + Duration::nanoseconds(1)));
}

}  // namespace sluice::sim
