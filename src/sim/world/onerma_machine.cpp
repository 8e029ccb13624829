#include "sim/world/onerma_machine.h"

#include <algorithm>
#include <array>
#include <limits>

namespace sluice::sim {
namespace {

// A frame that carries data, by its length: requests and completions are shorter.
constexpr std::size_t kCarriesData = onerma::kOverhead + onerma::kRequestBody + 1;

}  // namespace

onerma::Secret simulated_key(std::uint64_t seed, std::size_t machine) {
  Rng rng = Rng(seed).fork("key").fork(machine);
  std::array<std::uint8_t, onerma::Secret::kSize> bytes;
  store_le(bytes.data(), rng.next());
  store_le(bytes.data() + 8, rng.next());
  return onerma::Secret(bytes);
}

// The wire is "nearly free" when what was given to it would be sent by the time that another frame could be ready.
bool OnermaMachine::Sink::has_room() {
  const bool busy = machine_.uplink_.free_at() > now + machine_.latest_ready();
  machine_.held_up_ = machine_.held_up_ || busy;
  return !busy;
}

void OnermaMachine::Sink::sent(Packet* packet) {
  if (machine_.cut_) return machine_.rack_.pool.give_back(packet);
  const NicParameters& nic = machine_.rack_.hardware_.nic;
  Time ready = now + nic.transmit_latency;
  if (packet->length >= kCarriesData) ready = ready + nic.read_latency + machine_.memory_jitter();
  machine_.last_ready_ = std::max(machine_.last_ready_, ready);
  machine_.uplink_.send(now, machine_.last_ready_, packet);
}

OnermaMachine::OnermaMachine(OnermaRack& rack, std::uint32_t number, const onerma::NodeConfig& config)
    : rack_(rack),
      number_(number),
      node_(config),
      memory_chance_(Rng(rack.seed_).fork("memory").fork(number)),
      sink_(*this, rack.pool),
      uplink_(rack.loop, rack.pool,
              {.bits_per_second = rack.hardware_.link.bits_per_second,
               .delay = rack.hardware_.link.delay,
               .queue_bytes = std::numeric_limits<std::uint64_t>::max() / 2},
              rack.switch_.attach(*this, config.mac.bytes.data()), Rng(rack.seed_).fork("up").fork(number)) {
  rack.switch_.set_uplink(uplink_);
}

OnermaMachine::~OnermaMachine() {
  while (!arriving_.empty()) rack_.pool.give_back(arriving_.pop());
}

// Host memory answers a bit unevenly: evenly from nothing to the most.
Duration OnermaMachine::memory_jitter() {
  const auto most = static_cast<std::uint64_t>(rack_.hardware_.nic.memory_jitter.picoseconds());
  return Duration::picoseconds(static_cast<std::int64_t>(memory_chance_.below(most + 1)));
}

Duration OnermaMachine::latest_ready() const {
  const NicParameters& nic = rack_.hardware_.nic;
  return nic.transmit_latency + nic.read_latency + nic.memory_jitter;
}

void OnermaMachine::on_packet(Time now, Packet* packet) {
  if (cut_) return rack_.pool.give_back(packet);
  rack_.trace.arrival(now, number_, packet->frame().bytes());
  const NicParameters& nic = rack_.hardware_.nic;
  packet->when = now + nic.receive_latency;
  if (packet->length >= kCarriesData) packet->when = packet->when + nic.completion_latency + memory_jitter();
  arriving_.push(packet);
  rack_.loop.schedule_no_later(execute_event_, arriving_.front()->when);
}

void OnermaMachine::execute(Time now) {
  Packet* const packet = arriving_.pop();
  if (!arriving_.empty()) rack_.loop.schedule(execute_event_, arriving_.front()->when);
  node_.on_frame(now, packet->frame());
  rack_.pool.give_back(packet);
  touched(now);
}

void OnermaMachine::touched(Time now) {
  sink_.now = now;
  held_up_ = false;
  for (OnermaProgram* const program : programs_) program->poll(now);
  while (node_.poll_transmit(now, sink_)) {
  }
  Time next = node_.next_deadline();
  for (const OnermaProgram* const program : programs_) next = std::min(next, program->next_deadline());
  if (held_up_) next = std::min(next, uplink_.free_at() - latest_ready());
  if (next != Time::never()) rack_.loop.schedule_no_later(timer_, std::max(next, now + Duration::picoseconds(1)));
}

void OnermaMachine::on_timer(Time now) {
  if (node_.next_deadline() <= now) node_.on_deadline(now);
  touched(now);
}

OnermaRack::OnermaRack(const Hardware& hardware, std::uint64_t seed)
    : hardware_(hardware), seed_(seed), switch_(loop, pool, hardware.net_switch, hardware.link, seed) {}

OnermaRack::~OnermaRack() = default;

OnermaMachine& OnermaRack::add_machine(onerma::NodeConfig config) {
  const auto number = static_cast<std::uint32_t>(machines_.size());
  const auto place = static_cast<std::uint16_t>(number + 1);
  config.mac =
      wire::MacAddress{{2, 0, 0, 0, static_cast<std::uint8_t>(place >> 8), static_cast<std::uint8_t>(place & 0xFF)}};
  config.ip = wire::Ipv4Address{0x0A4D0000u + place};
  config.boot = onerma::Boot(place);
  machines_.push_back(std::make_unique<OnermaMachine>(*this, number, config));
  return *machines_.back();
}

std::uint64_t OnermaRack::dropped() const {
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < machines_.size(); ++i) n += switch_.out(i).overflows;
  return n;
}

}  // namespace sluice::sim
