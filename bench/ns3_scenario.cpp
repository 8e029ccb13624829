// As fast as ns-3 goes without changing it: no traces, no checksums (its default), no queue discs, no ARP where there need be none.
#include "ns3_scenario.h"

#include <ns3/bridge-helper.h>
#include <ns3/core-module.h>
#include <ns3/internet-stack-helper.h>
#include <ns3/ipv4-address-helper.h>
#include <ns3/ipv4-list-routing-helper.h>
#include <ns3/ipv4-static-routing-helper.h>
#include <ns3/network-module.h>
#include <ns3/point-to-point-helper.h>
#include <ns3/simple-net-device-helper.h>
#include <ns3/traffic-control-helper.h>
#include <ns3/udp-socket-factory.h>

#include <memory>
#include <string>
#include <vector>

namespace sluice::bench {
namespace {

constexpr std::uint16_t kPort = 9;

void count_arrival(StarOutcome& outcome) {
  ++outcome.packets;
  outcome.simulated_us = ns3::Simulator::Now().GetSeconds() * 1e6;
}

class EchoServer {
 public:
  EchoServer(const ns3::Ptr<ns3::Node>& node, StarOutcome& outcome) : outcome_(outcome) {
    socket_ = ns3::Socket::CreateSocket(node, ns3::UdpSocketFactory::GetTypeId());
    socket_->Bind(ns3::InetSocketAddress(ns3::Ipv4Address::GetAny(), kPort));
    socket_->SetRecvCallback(ns3::MakeCallback(&EchoServer::Receive, this));
  }

 private:
  void Receive(ns3::Ptr<ns3::Socket> socket) {
    ns3::Address from;
    while (const ns3::Ptr<ns3::Packet> packet = socket->RecvFrom(from)) {
      count_arrival(outcome_);
      packet->RemoveAllPacketTags();
      packet->RemoveAllByteTags();
      socket->SendTo(packet, 0, from);
    }
  }
  ns3::Ptr<ns3::Socket> socket_;
  StarOutcome& outcome_;
};

class Requester {
 public:
  Requester(const ns3::Ptr<ns3::Node>& node, const StarScenario& scenario, const std::vector<ns3::Ipv4Address>& servers,
            StarOutcome& outcome)
      : scenario_(scenario), outcome_(outcome) {
    for (const ns3::Ipv4Address& server : servers) servers_.emplace_back(ns3::InetSocketAddress(server, kPort));
    socket_ = ns3::Socket::CreateSocket(node, ns3::UdpSocketFactory::GetTypeId());
    socket_->Bind();
    socket_->SetRecvCallback(ns3::MakeCallback(&Requester::Receive, this));
  }
  void Start() {
    for (std::uint32_t i = 0; i < scenario_.in_flight; ++i) Ask();
  }

 private:
  void Receive(ns3::Ptr<ns3::Socket> socket) {
    while (socket->Recv()) {
      count_arrival(outcome_);
      Ask();
    }
  }
  void Ask() {
    if (asked_ == scenario_.requests) return;
    const ns3::Address& server = servers_[asked_ % servers_.size()];
    ++asked_;
    socket_->SendTo(ns3::Create<ns3::Packet>(scenario_.bytes), 0, server);
  }
  StarScenario scenario_;
  StarOutcome& outcome_;
  std::vector<ns3::Address> servers_;
  ns3::Ptr<ns3::Socket> socket_;
  std::uint64_t asked_ = 0;
};

// Queues that hold all that can be in flight.
const char* const kQueue = "ns3::DropTailQueue<Packet>";
std::string queue_size(const StarScenario& s) { return std::to_string(s.clients * s.in_flight + 1) + "p"; }

// A network of its own for each machine, and a default route to the router. Returns the machines' addresses.
std::vector<ns3::Ipv4Address> join_by_router(const StarScenario& s, ns3::NodeContainer& machines) {
  const ns3::Ptr<ns3::Node> router = ns3::CreateObject<ns3::Node>();
  ns3::Ipv4StaticRoutingHelper routing;
  ns3::Ipv4ListRoutingHelper list;
  list.Add(routing, 0);
  ns3::InternetStackHelper internet;
  internet.SetRoutingHelper(list);
  internet.Install(machines);
  internet.Install(router);
  ns3::PointToPointHelper link;
  link.SetQueue(kQueue, "MaxSize", ns3::StringValue(queue_size(s)));
  link.SetDeviceAttribute("DataRate", ns3::DataRateValue(ns3::DataRate(s.bits_per_second)));
  link.SetChannelAttribute("Delay", ns3::TimeValue(ns3::NanoSeconds(s.link_delay_ns)));
  ns3::Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.252");
  ns3::TrafficControlHelper traffic;
  std::vector<ns3::Ipv4Address> found;
  for (std::uint32_t i = 0; i < machines.GetN(); ++i) {
    const ns3::NetDeviceContainer devices = link.Install(machines.Get(i), router);
    const ns3::Ipv4InterfaceContainer interfaces = addresses.Assign(devices);
    traffic.Uninstall(devices);
    addresses.NewNetwork();
    found.push_back(interfaces.GetAddress(0));
    routing.GetStaticRouting(machines.Get(i)->GetObject<ns3::Ipv4>())->SetDefaultRoute(interfaces.GetAddress(1), 1);
  }
  return found;
}

std::vector<ns3::Ipv4Address> join_by_bridge(const StarScenario& s, ns3::NodeContainer& machines) {
  const ns3::Ptr<ns3::Node> bridge = ns3::CreateObject<ns3::Node>();
  ns3::Ipv4StaticRoutingHelper routing;
  ns3::Ipv4ListRoutingHelper list;
  list.Add(routing, 0);
  ns3::InternetStackHelper internet;
  internet.SetRoutingHelper(list);
  internet.Install(machines);
  ns3::Config::SetDefault("ns3::ArpCache::PendingQueueSize", ns3::UintegerValue(s.in_flight));
  ns3::SimpleNetDeviceHelper link;
  link.SetQueue(kQueue, "MaxSize", ns3::StringValue(queue_size(s)));
  link.SetDeviceAttribute("DataRate", ns3::DataRateValue(ns3::DataRate(s.bits_per_second)));
  link.SetChannelAttribute("Delay", ns3::TimeValue(ns3::NanoSeconds(s.link_delay_ns)));
  ns3::NetDeviceContainer ends;
  ns3::NetDeviceContainer ports;
  for (std::uint32_t i = 0; i < machines.GetN(); ++i) {
    const ns3::NetDeviceContainer devices = link.Install(ns3::NodeContainer(machines.Get(i), bridge));
    ends.Add(devices.Get(0));
    ports.Add(devices.Get(1));
  }
  ns3::BridgeHelper().Install(bridge, ports);
  ns3::Ipv4AddressHelper addresses("10.0.0.0", "255.255.0.0");
  const ns3::Ipv4InterfaceContainer interfaces = addresses.Assign(ends);
  ns3::TrafficControlHelper().Uninstall(ends);
  std::vector<ns3::Ipv4Address> found;
  for (std::uint32_t i = 0; i < interfaces.GetN(); ++i) found.push_back(interfaces.GetAddress(i));
  return found;
}

}  // namespace

StarOutcome run_in_ns3(const StarScenario& s, Middle middle) {
  StarOutcome outcome;
  ns3::NodeContainer machines;
  machines.Create(s.clients + s.servers);
  std::vector<ns3::Ipv4Address> all =
      middle == Middle::kRouter ? join_by_router(s, machines) : join_by_bridge(s, machines);
  const std::vector<ns3::Ipv4Address> server_addresses(all.begin() + s.clients, all.end());

  std::vector<std::unique_ptr<EchoServer>> servers;
  std::vector<std::unique_ptr<Requester>> clients;
  for (std::uint32_t i = 0; i < s.servers; ++i)
    servers.push_back(std::make_unique<EchoServer>(machines.Get(s.clients + i), outcome));
  for (std::uint32_t i = 0; i < s.clients; ++i) {
    clients.push_back(std::make_unique<Requester>(machines.Get(i), s, server_addresses, outcome));
    ns3::Simulator::ScheduleNow(&Requester::Start, clients.back().get());
  }
  ns3::Simulator::Run();
  outcome.events = ns3::Simulator::GetEventCount();
  ns3::Simulator::Destroy();
  return outcome;
}

}  // namespace sluice::bench
