#include "sim/world/rack.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace sluice::sim {
namespace {

constexpr std::uint32_t kMtu = 1024;  // of RoCE, as on Ethernet with 1,500-byte frames
constexpr std::uint32_t kFirstQpn = 0x100;

rc::AdapterConfig adapter_config(const Hardware& hardware, std::uint64_t seed, std::uint32_t number) {
  const auto place = static_cast<std::uint16_t>(number + 1);
  rc::AdapterConfig config;
  config.mac =
      wire::MacAddress{{2, 0, 0, 0, static_cast<std::uint8_t>(place >> 8), static_cast<std::uint8_t>(place & 0xFF)}};
  config.gids = {wire::Gid::from(wire::Ipv4Address{0x0A4D0000u + place})};
  config.mtu = kMtu;
  config.seed = Rng(seed).fork("nic").fork(number).next();
  config.dcqcn = hardware.net_switch.ecn_from_bytes != 0;
  config.line_rate = hardware.link.bits_per_second;
  config.first_qpn = rc::Qpn{kFirstQpn};
  config.limits.max_reads_in_flight = static_cast<std::uint32_t>(hardware.nic.reads_in_flight);
  return config;
}

}  // namespace

Rack::Machine::Machine(Rack& rack, std::uint32_t number)
    : nic(rack.loop, rack.pool, rack.trace, rack.hardware_.nic, adapter_config(rack.hardware_, rack.seed_, number),
          number),
      uplink(rack.loop, rack.pool,
             {.bits_per_second = rack.hardware_.link.bits_per_second,
              .delay = rack.hardware_.link.delay,
              .queue_bytes = std::numeric_limits<std::uint64_t>::max() / 2},  // a NIC does not lose its own packets
             rack.behind_faults(rack.switch_.attach(rack.behind_faults(nic, down, "down", number),
                                                    nic.adapter().config().mac.bytes.data()),
                                up, "up", number),
             Rng(rack.seed_).fork("up").fork(number)) {
  nic.attach(uplink);
  rack.switch_.set_uplink(uplink);
}

memory::Key Rack::Machine::share(MutableBytes bytes, std::uint64_t address, memory::RegionKind kind) {
  return nic.adapter()
      .regions()
      .add({.pd = nic.domain(), .bytes = bytes, .address = address, .access = memory::kAllAccess, .kind = kind})
      .value();
}

Rack::Rack(const Hardware& hardware, std::uint64_t seed, const RackOptions& options)
    : hardware_(hardware),
      seed_(seed),
      options_(options),
      switch_(loop, pool, hardware.net_switch, hardware.link, seed) {}

Consumer& Rack::behind_faults(Consumer& consumer, std::unique_ptr<FaultyLink>& link, std::string_view way,
                              std::uint32_t machine) {
  if (!options_.faults.any()) return consumer;
  const Rng rng = Rng(seed_).fork("faults").fork(way).fork(machine);
  link = std::make_unique<FaultyLink>(loop, pool, consumer, options_.faults, rng);
  return *link;
}

Rack::Machine& Rack::add_machine() {
  machines_.push_back(std::make_unique<Machine>(*this, static_cast<std::uint32_t>(machines_.size())));
  return *machines_.back();
}

rc::QueuePair* Rack::make_pair(const End& end) {
  auto made = end.machine->nic.adapter().create_queue_pair({.pd = end.machine->nic.domain(),
                                                            .send_completions = end.completions,
                                                            .receive_completions = end.completions,
                                                            .send_depth = end.send_depth,
                                                            .receive_depth = end.receive_depth,
                                                            .max_inline = 64});
  (*made)->user = end.listener;
  return *made;
}

void Rack::bring_up(const End& end, rc::QueuePair& pair, const End& other, const rc::QueuePair& peer) {
  rc::Adapter& adapter = end.machine->nic.adapter();
  const auto reads = static_cast<std::uint8_t>(hardware_.nic.reads_in_flight);
  const auto psn = [](const rc::QueuePair& of) { return rc::Psn{of.qpn().value * 0x9E37u & 0xFF'FFFFu}; };
  const auto check = [](const Result<void>& done) { SLUICE_CHECK(done.has_value()); };
  check(adapter.modify(loop.now(), pair, {.state = rc::QpState::kInit, .access = memory::kAllAccess}));
  check(adapter.modify(loop.now(), pair,
                       {.state = rc::QpState::kReadyToReceive,
                        .remote_gid = other.machine->nic.adapter().config().gids[0],
                        .remote_mac = other.machine->nic.adapter().config().mac,
                        .remote_qpn = peer.qpn(),
                        .path_mtu = kMtu,
                        .receive_psn = psn(peer),
                        .min_rnr_timer = 1,
                        .max_reads_in = reads}));
  check(adapter.modify(loop.now(), pair,
                       {.state = rc::QpState::kReadyToSend,
                        .send_psn = psn(pair),
                        .timeout = options_.ack_timeout,
                        .retry_count = 7,
                        .rnr_retry_count = 7,
                        .max_reads_out = reads}));
}

Rack::Connection Rack::connect(const End& a, const End& b) {
  const Connection connection{make_pair(a), make_pair(b)};
  bring_up(a, *connection.a, b, *connection.b);
  bring_up(b, *connection.b, a, *connection.a);
  connections_.push_back(connection);
  if (box_ != nullptr) announce(a, b, connection);
  return connection;
}

void Rack::announce(const End& a, const End& b, const Connection& connection) {
  const auto gid = [](const End& end) { return end.machine->nic.adapter().config().gids[0]; };
  const bool room =
      box_->connections().announce(loop.now(), {.address = {gid(a), gid(b)},
                                                .qpn = {connection.a->qpn(), connection.b->qpn()},
                                                .starting_psn = {connection.a->next_psn(), connection.b->next_psn()},
                                                .mtu = kMtu});
  SLUICE_CHECK(room);
}

bool Rack::at_rest() const {
  if (pool.in_flight() > switch_.reserved()) return false;
  return std::ranges::all_of(connections_, [](const Connection& c) {
    return c.a->next_psn() == c.b->expected_psn() && c.b->next_psn() == c.a->expected_psn();
  });
}

}  // namespace sluice::sim
