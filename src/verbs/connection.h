// rdma_cm behind librdmacm's symbols: ids and channels of programs over the NIC's connection manager.
//
// Life:       created -> resolved or bound -> listening | connecting -> established -> disconnected -> destroyed.
//             Finding addresses and routes takes no time of its own: the REQ waits for ARP in the NIC.
// Invariant:  an id has at most one connection; the connection manager's events find their id by it.
// Errors:     as librdmacm: -1 and errno; what comes later is an event with a status.
// Threads:    any; what is guarded, by the NIC's lock.
// Datagrams:  ids of RDMA_PS_UDP have no connection: rdma_connect asks for the peer's queue pair, rdma_accept names one.
// Limits:     RDMA_PS_IPOIB and multicast are refused with EOPNOTSUPP.
// Rsockets:   librdmacm's own (rsocket, rconnect, …), unmodified: they call these functions by name, and look behind the id (AfterId).
// Source:     rdma/rdma_cma.h (rdma-core 44), rdma_cm(7).
#pragma once

#include <rdma/rdma_cma.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "rc/connection_manager.h"
#include "verbs/objects.h"

namespace sluice::verbs {

struct ConnectionId;

struct CmEvent {
  rdma_cm_event abi{};
  std::vector<std::uint8_t> private_data{};
  ConnectionId* counted = nullptr;  // whose event this is; not destroyed before it is acknowledged

  static CmEvent& of(rdma_cm_event* event) { return *reinterpret_cast<CmEvent*>(event); }
};

struct EventChannel {
  rdma_event_channel abi{};
  std::deque<std::unique_ptr<CmEvent>> events{};  // guarded; abi.fd counts them

  static EventChannel& of(rdma_event_channel* channel) { return *reinterpret_cast<EventChannel*>(channel); }
};

// What librdmacm's rsockets look at behind an id: the device, null (then they ask for the least of all devices), and, at a place that
// differs from version to version, whether calls wait for their event. Nothing else, so all of it says that they do.
struct AfterId {
  AfterId() { waits.fill(1); }

  void* device = nullptr;
  std::array<std::uint32_t, 64> waits;
};

using Endpoint = std::pair<wire::ServiceId, wire::Gid>;  // a port at an address

struct ConnectionId {
  rdma_cm_id abi{};
  AfterId after{};
  bool synchronous = false;  // without a channel of the program's: calls wait for their event
  bool owns_queues = false;  // completion queues made with the queue pair
  std::uint8_t timeout = 0;  // of the queue pair; 0: the connection manager's choice
  std::uint8_t traffic_class = 0;
  bool shares_port = false;                       // RDMA_OPTION_ID_REUSEADDR
  bool one_family = false;                        // RDMA_OPTION_ID_AFONLY
  bool any_address = false;                       // bound to any of its family
  std::optional<ibv_qp_init_attr> queue_pairs{};  // a listener made by rdma_create_ep: what its connections get
  // Guarded:
  std::optional<rc::ConnectionId> connection{};
  std::optional<rc::ResolutionId> resolution{};  // of a datagram id
  bool incoming = false;                         // the peer has asked
  bool unanswered = false;                       // a request that has been neither accepted nor rejected
  bool ended_at_exit = false;                    // its connection has; nobody has been told yet
  std::optional<Endpoint> bound{};
  std::optional<Endpoint> listening{};
  std::uint32_t backlog = 0;      // of a listener: how many requests may wait to be fetched
  std::uint32_t unfetched = 0;    // … and do
  ports::Descriptor port_lock{};  // on a shared NIC: nobody else may listen there
  wire::Gid remote{};
  std::uint32_t events_given = 0;
  std::uint32_t events_acknowledged = 0;

  bool is_datagram() const { return abi.qp_type == IBV_QPT_UD; }
  static ConnectionId& of(rdma_cm_id* id) { return *reinterpret_cast<ConnectionId*>(id); }
};

}  // namespace sluice::verbs
