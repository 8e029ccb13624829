#include "sim/load/udp_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "sim/world/event_loop.h"
#include "sim/world/packet.h"
#include "sim/world/pipe.h"
#include "sim/world/switch.h"
#include "sim/world/trace.h"
#include "wire/ethernet.h"
#include "wire/ip.h"

namespace sluice::sim {
namespace {

constexpr std::size_t kIp = wire::EthernetHeader::kSize;
constexpr std::size_t kUdp = kIp + wire::Ipv4Header::kSize;
constexpr std::size_t kPayload = kUdp + wire::UdpHeader::kSize;
constexpr std::uint32_t kNetwork = 0x0A00'0000;  // 10.0.0.0/8
constexpr std::uint16_t kServerPort = 9;
constexpr std::uint16_t kClientPort = 49'153;

wire::MacAddress mac_of(std::uint32_t number) {
  return {{2, 0, static_cast<std::uint8_t>(number >> 24), static_cast<std::uint8_t>(number >> 16),
           static_cast<std::uint8_t>(number >> 8), static_cast<std::uint8_t>(number)}};
}

struct World {
  EventLoop loop;
  PacketPool pool;
  Trace trace;
  std::uint64_t wrong = 0;  // packets that no one should have got
};

struct Addressed {
  std::uint32_t to = 0;
  std::uint16_t source_port = 0;
  std::uint16_t destination_port = 0;
};

// What requester and server have in common: an address, a way out, and packets that are checked when they arrive.
class UdpMachine : public Consumer {
 public:
  UdpMachine(World& world, Switch& net_switch, const LinkParameters& link, std::uint32_t number)
      : world_(world),
        number_(number),
        out_(world.loop, world.pool,
             {.bits_per_second = link.bits_per_second,
              .delay = link.delay,
              .queue_bytes = std::numeric_limits<std::uint64_t>::max() / 2},
             net_switch.attach(*this, mac_of(number).bytes.data()), Rng(number)) {}

  void on_packet(Time now, Packet* packet) final {
    world_.trace.arrival(now, number_, packet->frame().bytes());
    Addressed back;
    if (is_ours(*packet, back)) {
      receive(now, back, packet->data + kPayload);
    } else {
      ++world_.wrong;
    }
    world_.pool.give_back(packet);
  }

 protected:
  virtual void receive(Time now, const Addressed& back, const std::uint8_t* payload) = 0;

  void send(Time now, const Addressed& addressed, std::uint32_t payload_bytes, std::uint64_t name) {
    const std::size_t length = kPayload + payload_bytes;
    Packet* const packet = world_.pool.take(length);
    packet->length = static_cast<std::uint32_t>(length);
    std::uint8_t* const at = packet->data;
    wire::EthernetHeader{mac_of(addressed.to), mac_of(number_), wire::kEtherTypeIpv4}.write(at);
    wire::Ipv4Header{.total_length = static_cast<std::uint16_t>(length - kIp),
                     .identification = identification_++,
                     .source = wire::Ipv4Address{kNetwork + number_},
                     .destination = wire::Ipv4Address{kNetwork + addressed.to}}
        .write(at + kIp);
    store_be(at + kIp + 10, wire::ipv4_checksum(at + kIp));
    wire::UdpHeader{.source_port = addressed.source_port,
                    .destination_port = addressed.destination_port,
                    .length = static_cast<std::uint16_t>(length - kUdp)}
        .write(at + kUdp);
    std::fill(at + kPayload, at + length, std::uint8_t{0});
    store_le(at + kPayload, name);
    out_.send(now, now, packet);
  }

 private:
  // `back`: where an answer would go.
  bool is_ours(const Packet& packet, Addressed& back) const {
    if (packet.length < kPayload + sizeof(std::uint64_t)) return false;
    const auto ethernet = wire::EthernetHeader::parse(packet.data);
    const auto ip = wire::Ipv4Header::parse(packet.data + kIp);
    const auto udp = wire::UdpHeader::parse(packet.data + kUdp);
    back = {.to = ip.source.value - kNetwork, .source_port = udp.destination_port, .destination_port = udp.source_port};
    return ethernet.ether_type == wire::kEtherTypeIpv4 && ip.protocol == wire::kIpProtocolUdp &&
           wire::ipv4_checksum_is_right(packet.data + kIp) && ip.destination.value == kNetwork + number_ &&
           udp.length == packet.length - kUdp;
  }

  World& world_;
  std::uint32_t number_;
  std::uint16_t identification_ = 0;
  Pipe out_;
};

class Server final : public UdpMachine {
 public:
  Server(World& world, Switch& net_switch, const UdpWorkload& workload, std::uint32_t number)
      : UdpMachine(world, net_switch, workload.link, number), bytes_(workload.answer_bytes) {}

 private:
  void receive(Time now, const Addressed& back, const std::uint8_t* payload) override {
    send(now, back, bytes_, load_le<std::uint64_t>(payload));
  }
  std::uint32_t bytes_;
};

class Client final : public UdpMachine {
 public:
  // `first_server`: their numbers go on from there.
  Client(World& world, Switch& net_switch, const UdpWorkload& workload, std::uint32_t number,
         std::uint32_t first_server)
      : UdpMachine(world, net_switch, workload.link, number), workload_(workload), first_server_(first_server) {}

  void start(Time now) {
    for (std::uint32_t i = 0; i < workload_.in_flight; ++i) ask(now);
  }
  std::uint64_t answered() const { return answered_; }
  // The names of requests that are open: their sum is 0 when each has been answered once.
  std::uint64_t open() const { return open_; }

 private:
  void receive(Time now, const Addressed&, const std::uint8_t* payload) override {
    open_ -= load_le<std::uint64_t>(payload);
    ++answered_;
    ask(now);
  }
  void ask(Time now) {
    if (asked_ == workload_.requests) return;
    const auto server = static_cast<std::uint32_t>(asked_ % workload_.servers);
    open_ += ++asked_;
    send(now, {.to = first_server_ + server, .source_port = kClientPort, .destination_port = kServerPort},
         workload_.request_bytes, asked_);
  }

  UdpWorkload workload_;
  std::uint32_t first_server_;
  std::uint64_t asked_ = 0;
  std::uint64_t answered_ = 0;
  std::uint64_t open_ = 0;
};

}  // namespace

UdpResult run_udp_load(const UdpWorkload& workload) {
  SLUICE_CHECK(std::min(workload.request_bytes, workload.answer_bytes) >= sizeof(std::uint64_t));
  SLUICE_CHECK(workload.clients > 0 && workload.servers > 0);
  World world;
  Switch net_switch(
      world.loop, world.pool,
      {.pipeline_latency = workload.switch_latency, .queue_bytes = std::numeric_limits<std::uint32_t>::max()},
      workload.link, 1);
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::unique_ptr<Server>> servers;
  for (std::uint32_t i = 0; i < workload.clients; ++i)
    clients.push_back(std::make_unique<Client>(world, net_switch, workload, i, workload.clients));
  for (std::uint32_t i = 0; i < workload.servers; ++i)
    servers.push_back(std::make_unique<Server>(world, net_switch, workload, workload.clients + i));

  for (const auto& client : clients) client->start(world.loop.now());
  const std::uint64_t expected = 2 * workload.clients * workload.requests;
  const bool all = world.loop.run_until(Time::never(), [&] { return world.trace.packets() >= expected; });
  const bool right = std::ranges::all_of(
      clients, [&](const auto& client) { return client->answered() == workload.requests && client->open() == 0; });
  UdpResult result{.packets = world.trace.packets(),
                   .events = world.loop.fired(),
                   .trace_hash = world.trace.hash(),
                   .took = world.loop.now().since_start(),
                   .problem = {}};
  if (!all || !right || world.wrong != 0)
    result.problem = fmt::format("{} of {} packets arrived, {} of them wrong", result.packets, expected, world.wrong);
  return result;
}

}  // namespace sluice::sim
