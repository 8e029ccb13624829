#include "sim/load/tcp_flows.h"

#include <fmt/format.h>

#include <limits>

namespace sluice::sim {
namespace {

constexpr std::uint32_t kServerNumber = 0xFFFF;  // in the trace
constexpr std::uint64_t kStartWithin = 10'000;   // ns

TcpHostAddress server_address() { return {.mac = {{2, 0, 0, 0, 0xFF, 0xFD}}, .ip = wire::Ipv4Address{0x0A4DFFFD}}; }
TcpHostAddress address_of(Rack::Machine& machine) {
  const rc::AdapterConfig& config = machine.nic.adapter().config();
  return {.mac = config.mac, .ip = config.gids[0].v4()};
}
// Out and in.
Duration latency_of(const NicParameters& nic) {
  return nic.doorbell_latency + nic.fetch_latency + nic.transmit_latency + nic.receive_latency + nic.completion_latency;
}

}  // namespace

void TcpFlowsSettings::read(Fields& f) {
  constexpr auto kOptional = Fields::Need::kOptional;
  f.integer("tcp_flows", flows, 0, 1000, kOptional);
  f.rate("tcp_link", link, std::uint64_t{1}, kOptional);
  f.integer("tcp_mtu", mtu, 576, 4096, kOptional);
  f.byte_count("tcp_window", window, kOptional);
  f.integer("tcp_ack_every", ack_every, 1, 64, kOptional);
}

std::string TcpFlowsSettings::problem() const {
  if (flows == 0) return {};
  if (window < 2 * mtu || window > kMostTcpWindow)
    return fmt::format("tcp_window: from two segments to {} KiB", kMostTcpWindow >> 10);
  return {};
}

TcpParameters TcpFlowsSettings::parameters() const {
  TcpParameters p;
  p.mss = static_cast<std::uint32_t>(mtu) - kTcpHeaders;
  p.receive_window = window;
  p.ack_every = static_cast<std::uint32_t>(ack_every);
  return p;
}

TcpFlows::TcpFlows(Rack& rack, Rack::Machine& from, const TcpFlowsSettings& settings, const Rng& rng)
    : flows_(settings.flows),
      client_(rack.loop, rack.pool, rack.trace, address_of(from), from.nic.number(), latency_of(rack.hardware().nic)),
      server_(rack.loop, rack.pool, rack.trace, server_address(), kServerNumber, latency_of(rack.hardware().nic)) {
  const LinkParameters link{.bits_per_second = settings.link, .delay = rack.hardware().link.delay};
  up_ = std::make_unique<Pipe>(rack.loop, rack.pool,
                               PipeParameters{.bits_per_second = link.bits_per_second,
                                              .delay = link.delay,
                                              .queue_bytes = std::numeric_limits<std::uint64_t>::max() / 2},
                               rack.net_switch().attach(server_, server_address().mac.bytes.data(), link),
                               rng.fork("up"));
  server_.attach(*up_);
  client_.attach(from.uplink);
  from.nic.set_other(&client_);
  Rng when = rng.fork("start");
  for (std::size_t i = 0; i < flows_; ++i) {
    client_.add_sender(server_address(), settings.parameters());
    server_.add_receiver(client_.address(), settings.parameters());
    rack.loop.schedule(starts_.emplace_back(client_, i),
                       rack.loop.now() + Duration::nanoseconds(static_cast<std::int64_t>(when.below(kStartWithin))));
  }
}

std::uint64_t TcpFlows::received() const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < flows_; ++i) sum += received(i);
  return sum;
}

TcpSender::Counters TcpFlows::counters() const {
  TcpSender::Counters sum;
  for (std::size_t i = 0; i < flows_; ++i) {
    const TcpSender::Counters& one = client_.sender(i).counters();
    sum.segments += one.segments;
    sum.repairs += one.repairs;
    sum.losses += one.losses;
    sum.timeouts += one.timeouts;
  }
  return sum;
}

Duration TcpFlows::round_trip() const {
  Duration sum{};
  for (std::size_t i = 0; i < flows_; ++i) sum = sum + client_.sender(i).round_trip();
  return flows_ == 0 ? Duration{} : sum / static_cast<std::int64_t>(flows_);
}

}  // namespace sluice::sim
